/* loop.c: the loop itself, its faults, and its record of violations; see loop.h. */
#include <stdarg.h>

#include "core/clock.h"
#include "kit/loop_state.h"

/* ---- parts ---- */

void *loop_room(size_t count, size_t size)
{
    void *room = calloc(count > 0 ? count : 1, size > 0 ? size : 1);
    if (!room)
        abort();
    return room;
}

int loop_violation(loop *l, const char *format, ...)
{
    size_t at = strlen(l->violations);
    va_list list;
    va_start(list, format);
    vsnprintf(l->violations + at, sizeof l->violations - at, format, list);
    va_end(list);
    at = strlen(l->violations);
    snprintf(l->violations + at, sizeof l->violations - at, "\n");
    return LOOP_E_INVALID;
}

loop_members *loop_members_new(loop *l, int size)
{
    loop_members *members = loop_room(1, sizeof *members);
    members->id = l->ids++;
    members->size = size;
    members->ranks = loop_room((size_t)size, sizeof(int));
    members->next = l->members;
    l->members = members;
    return members;
}

ek_communicator *loop_handle(loop_process *process, loop_members *members, int rank)
{
    ek_communicator *communicator = loop_room(1, sizeof *communicator);
    communicator->process = process;
    communicator->members = members;
    communicator->rank = rank;
    communicator->came = loop_room((size_t)members->size, sizeof(uint64_t));
    communicator->next = process->handles;
    return process->handles = communicator;
}

void loop_handle_free(ek_communicator *communicator)
{
    ek_communicator **at = &communicator->process->handles;
    while (*at != communicator)
        at = &(*at)->next;
    *at = communicator->next;
    free(communicator->came);
    free(communicator);
}

int loop_open_handles(const loop_process *process)
{
    int open = 0;
    for (const ek_communicator *handle = process->handles; handle; handle = handle->next)
        open++;
    return open;
}

void loop_record_free(loop_record *record)
{
    free(record->sizes);
    free(record->colors);
    free(record->keys);
    free(record->parts);
    free(record);
}

/* ---- chance ---- */

static uint64_t loop_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t loop_draw(loop_process *process, int bound)
{
    process->random += 0x9e3779b97f4a7c15u;
    return loop_mix(process->random) % ((uint64_t)bound + 1);
}

void loop_draw_due(loop_process *from, const loop_process *at, uint64_t *tests, uint64_t *ns)
{
    *tests = at->tests + loop_draw(from, from->loop->delay_tests);
    *ns = ek_clock_ns() + loop_draw(from, from->loop->delay_ms) * 1000000u;
}

bool loop_is_due(const loop_process *at, uint64_t tests, uint64_t ns)
{
    return at->tests >= tests && ek_clock_ns() >= ns;
}

/* ---- calls ---- */

static int loop_status(const loop_process *process)
{
    return process->loop->ended ? LOOP_E_ENDED : process->dead ? LOOP_E_DEAD : 0;
}

int loop_enter(loop_process *process)
{
    pthread_mutex_lock(&process->loop->lock);
    if (!pthread_equal(process->thread, pthread_self()))
        loop_violation(process->loop, "rank %d calls from two threads", process->rank);
    return loop_status(process);
}

int loop_start(loop_process *process)
{
    int rc = loop_enter(process);
    if (rc == 0 && process->fail_call > 0 && --process->fail_call == 0)
        rc = LOOP_E_FAULT;
    return rc;
}

int loop_leave(loop_process *process, int rc)
{
    pthread_mutex_unlock(&process->loop->lock);
    return rc;
}

int loop_wait(loop_process *process)
{
    pthread_cond_wait(&process->loop->changed, &process->loop->lock);
    return loop_status(process);
}

/* ---- the test's side ---- */

loop *loop_new(int size, uint64_t seed)
{
    loop *l = loop_room(1, sizeof *l);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    l->size = size;
    l->seed = seed;
    l->delay_tests = seed ? 4 : 0;
    l->processes = loop_room((size_t)size, sizeof(loop_process));
    l->world = loop_members_new(l, size);
    for (int rank = 0; rank < size; rank++) {
        l->world->ranks[rank] = rank;
        l->processes[rank].loop = l;
        l->processes[rank].rank = rank;
        l->processes[rank].random = loop_mix(seed + ((uint64_t)rank << 32));
    }
    return l;
}

static void loop_process_free(loop_process *process)
{
    while (process->requests)
        loop_request_free(process->requests);
    while (process->handles)
        loop_handle_free(process->handles);
    while (process->parcels) {
        loop_parcel *parcel = process->parcels;
        process->parcels = parcel->next;
        free(parcel->data);
        free(parcel);
    }
}

static void loop_members_free(loop_members *members)
{
    while (members->records) {
        loop_record *record = members->records;
        members->records = record->next;
        loop_record_free(record);
    }
    free(members->ranks);
    free(members);
}

void loop_free(loop *l)
{
    for (int rank = 0; rank < l->size; rank++)
        loop_process_free(&l->processes[rank]);
    while (l->members) {
        loop_members *members = l->members;
        l->members = members->next;
        loop_members_free(members);
    }
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    free(l->processes);
    free(l);
}

void *loop_rank(loop *l, int rank)
{
    return &l->processes[rank];
}

int loop_size(const loop *l)
{
    return l->size;
}

/* Locks the loop. Returns the rank's process. */
static loop_process *loop_locked(loop *l, int rank)
{
    pthread_mutex_lock(&l->lock);
    return &l->processes[rank];
}

static void loop_unlock_changed(loop *l)
{
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

void loop_delay(loop *l, int tests, int milliseconds)
{
    pthread_mutex_lock(&l->lock);
    l->delay_tests = tests;
    l->delay_ms = milliseconds;
    pthread_mutex_unlock(&l->lock);
}

void loop_rate(loop *l, size_t nbytes, int milliseconds)
{
    pthread_mutex_lock(&l->lock);
    l->part = nbytes;
    l->part_ms = milliseconds;
    pthread_mutex_unlock(&l->lock);
}

void loop_stop(loop *l, int rank)
{
    loop_locked(l, rank)->stopped = true;
    loop_unlock_changed(l);
}

void loop_resume(loop *l, int rank)
{
    loop_locked(l, rank)->stopped = false;
    for (int to = 0; to < l->size; to++)
        for (loop_parcel *p = l->processes[to].parcels; p; p = p->next)
            if (p->members->ranks[p->from] == rank)
                p->held = false;
    loop_unlock_changed(l);
}

void loop_kill(loop *l, int rank)
{
    loop_locked(l, rank)->dead = true;
    loop_unlock_changed(l);
}

void loop_end(loop *l, int status)
{
    pthread_mutex_lock(&l->lock);
    if (!l->ended)
        l->end_status = status;
    l->ended = true;
    loop_unlock_changed(l);
}

void loop_fail_call(loop *l, int rank, int n)
{
    loop_locked(l, rank)->fail_call = n;
    loop_unlock_changed(l);
}

void loop_fail_request(loop *l, int rank, int n)
{
    loop_locked(l, rank)->fail_request = n;
    loop_unlock_changed(l);
}

void loop_cut(loop *l, int rank, int to)
{
    loop_locked(l, rank)->cut |= (uint64_t)1 << to;
    loop_unlock_changed(l);
}

void loop_drop(loop *l, int rank, int to, int n)
{
    loop_process *process = loop_locked(l, rank);
    process->drop = n;
    process->drop_to = to;
    loop_unlock_changed(l);
}

const char *loop_violations(loop *l)
{
    pthread_mutex_lock(&l->lock); /* makes what the ranks wrote before visible */
    pthread_mutex_unlock(&l->lock);
    return l->violations;
}

int loop_leaks(loop *l)
{
    int open = 0;
    pthread_mutex_lock(&l->lock);
    for (int rank = 0; rank < l->size; rank++)
        open +=
            loop_open_handles(&l->processes[rank]) + loop_open_requests(&l->processes[rank], NULL);
    pthread_mutex_unlock(&l->lock);
    return open;
}

int loop_transfers(loop *l, int rank)
{
    pthread_mutex_lock(&l->lock);
    int started = l->processes[rank].transfers;
    pthread_mutex_unlock(&l->lock);
    return started;
}

int loop_strays(loop *l)
{
    int strays = 0;
    pthread_mutex_lock(&l->lock);
    for (int rank = 0; rank < l->size; rank++)
        for (const loop_parcel *p = l->processes[rank].parcels; p; p = p->next)
            strays += !p->lost;
    pthread_mutex_unlock(&l->lock);
    return strays;
}

bool loop_ended(loop *l, int *status)
{
    pthread_mutex_lock(&l->lock);
    bool ended = l->ended;
    if (ended && status)
        *status = l->end_status;
    pthread_mutex_unlock(&l->lock);
    return ended;
}
