/* world.c: joining and leaving the job, process groups, and errors of the job. */
#include "distributed/world.h"

#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/ranks.h"
#include "core/clock.h"
#include "core/device.h"
#include "core/environment.h"
#include "core/keywords.h"
#include "core/locale.h"
#include "core/rail.h"
#include "core/thread.h"
#include "distributed/ddp.h"
#include "distributed/launcher.h"
#include "distributed/roster.h"

static const double default_timeout = 1800; /* seconds */

static ek_communication *world_communication;
static ek_process_group *world_alone;  /* the world of a process without others */
static ek_process_group *world_groups; /* made by ek_dist_new_group; linked by `next_made` */

ek_communication *ek_world_communication(void)
{
    return world_communication;
}

bool ek_dist_is_initialized(void)
{
    return world_communication || world_alone;
}

ek_process_group *ek_dist_world(void)
{
    return world_communication ? world_communication->world : world_alone;
}

/* ---- a group without others ---- */

static void world_free_alone(ek_process_group *group)
{
    if (group)
        free(group->ranks);
    free(group);
}

/* The group of one rank, which needs no communication. */
static ek_process_group *world_new_alone(int number)
{
    ek_process_group *group = ek_calloc(1, sizeof *group);
    int *ranks = ek_calloc(1, sizeof *ranks);
    if (!group || !ranks) {
        free(ranks);
        free(group);
        return NULL;
    }
    group->size = 1;
    group->ranks = ranks;
    group->number = number;
    snprintf(group->name, sizeof group->name, number ? "group %d" : "the world", number);
    return group;
}

/* ---- joining ---- */

static int world_check_options(const ek_dist_options *options)
{
    if (options->init_method && strcmp(options->init_method, "env://") != 0)
        return EK_FAIL(EK_E_INVALID,
                       "init_process_group: init_method \"%s\"; rank and world size are the "
                       "launcher's (\"env://\"): start the program with mpirun -n 2 PROGRAM",
                       options->init_method);
    bool shared;
    EK_TRY(ek_environment_switch("EVENKEEL_DIST_SHARED_MEMORY", &shared));
    const char *sums = getenv("EVENKEEL_DIST_SUM");
    if (sums && *sums && strcmp(sums, "nccl") != 0)
        return EK_FAIL(
            EK_E_INVALID,
            "EVENKEEL_DIST_SUM is \"%.80s\"; it can be nccl, or absent: then sums are made "
            "in the order of ranks",
            sums);
    if ((unsigned)options->backend > EK_DIST_NCCL)
        return EK_FAIL(EK_E_INVALID, "init_process_group: backend %d is unknown",
                       (int)options->backend);
    return 0;
}

/* Rank and world size that are given must be those that there are. */
static int world_check_place(const ek_dist_options *options, int rank, int size)
{
    int given_size = (int)ek_integer_or(EK_GIVEN(options, world_size, 3), size);
    int given_rank = (int)ek_integer_or(EK_GIVEN(options, rank, 4), rank);
    if (given_size == size && given_rank == rank)
        return 0;
    return EK_FAIL(
        EK_E_INVALID,
        "init_process_group: rank %d of %d was asked for, but the launcher has made this "
        "process rank %d of %d",
        given_rank, given_size, rank, size);
}

/* Seconds; negative with the error set. */
static double world_timeout(const ek_dist_options *options)
{
    const char *text = getenv("EVENKEEL_DIST_TIMEOUT");
    double seconds = default_timeout;
    if (text && *text) {
        char *end;
        locale_t before = ek_locale_begin();
        seconds = strtod(text, &end);
        ek_locale_end(before);
        if (*end || !(seconds > 0) || !isfinite(seconds)) {
            EK_FAIL(EK_E_INVALID,
                    "EVENKEEL_DIST_TIMEOUT is \"%s\"; it is a positive number of seconds", text);
            return -1;
        }
    }
    seconds = ek_number_or(EK_GIVEN(options, timeout, 2), seconds);
    if (!(seconds > 0) || !isfinite(seconds)) {
        EK_FAIL(EK_E_INVALID, "init_process_group: a timeout of %g seconds; it must be positive",
                seconds);
        return -1;
    }
    return seconds;
}

/* A program that ends without ek_shutdown tells the others why, and gives them a short time to end
 * too. */
static void world_at_exit(int status, void *unused)
{
    (void)unused;
    if (!world_communication || ek_forked())
        return;
    if (pthread_equal(pthread_self(), world_communication->thread))
        return; /* the transport ends the job by exit */
    ek_error_record error = {.status = EK_E_STATE};
    snprintf(error.message, sizeof error.message,
             "the program has ended with status %d and without ek_shutdown%s%.800s", status,
             ek_error_status() < 0 ? "; its error was: " : "", ek_error_message());
    ek_communication_raise(world_communication, &error);
    ek_communication_print(world_communication, &error, stderr);
    fflush(NULL); /* the job may be ended now */
    ek_communication_close(world_communication, true);
    world_communication = NULL;
}

/* EK_DIST_NCCL is an error if this process has no GPU, or no NCCL. */
static int world_check_backend(ek_dist_backend backend)
{
    const ek_backend *cuda = NULL;
    for (const ek_backend *const *one = ek_backend_table; *one; one++)
        cuda = (*one)->kind == EK_CUDA ? *one : cuda;
    if (backend != EK_DIST_NCCL)
        return 0;
    const char *reason = !cuda ? "this library was built without CUDA" : NULL;
    if (cuda && cuda->device_count() < 1)
        reason = cuda->why_none && cuda->why_none() ? cuda->why_none() : "there are no GPUs";
    if (!reason)
        reason = cuda->rails ? cuda->rails->reason() : "it is not part of this build";
    return !reason ? 0
                   : EK_FAIL(EK_E_BACKEND,
                             "init_process_group: EK_DIST_NCCL, but NCCL cannot be used: %s; "
                             "EK_DIST_AUTO carries tensors of GPUs by what there is",
                             reason);
}

/* Numbers the devices over ranks, so that each draws random numbers of its own. */
static int world_number_devices(void)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *all = ek_zeros(EK_SHAPE(ek_world.size, 2), EK_I64, .device = ek_cpu());
    int64_t *counts = all ? ek_tensor_address(all) : NULL;
    ek_device_list gpus = ek_dist_devices(EK_CUDA);
    if (counts) {
        counts[2 * ek_world.rank] = ek_device_count(EK_HOST);
        counts[2 * ek_world.rank + 1] = gpus.count > 0 ? gpus.count : 0;
    }
    int rc = counts ? ek_error_status() : ek_error_pending();
    rc = rc < 0 ? ek_world_outcome(NULL, rc) : ek_dist_all_reduce(all);
    ek_world.first_device[EK_CPU] = ek_world.rank;
    ek_world.first_device[EK_HOST] = ek_world.first_device[EK_CUDA] = 0;
    for (int r = 0; r < ek_world.rank && rc >= 0; r++) {
        ek_world.first_device[EK_HOST] += (int)counts[2 * r];
        ek_world.first_device[EK_CUDA] += (int)counts[2 * r + 1];
    }
    if (gpus.count > 0) /* its own share begins with this one */
        ek_world.first_device[EK_CUDA] -= gpus.devices[0].index;
    ek_scope_end(&scope);
    return rc;
}

/* Set by SIGCONT, on any thread, while the process waits to join. */
static atomic_bool world_is_woken;

static void world_note_signal(int number)
{
    (void)number;
    atomic_store(&world_is_woken, true);
}

typedef struct world_wait {
    const ek_launched *launched;
    uint64_t began;
    double seconds;    /* waited so far */
    char missing[800]; /* who has not come */
} world_wait;

static bool world_look(world_wait *wait)
{
    wait->seconds = 1e-9 * (double)(ek_clock_ns() - wait->began);
    return ek_roster_describe(wait->launched, wait->missing, sizeof wait->missing);
}

/* If a rank ends before all have joined, Open MPI's launcher ends the others, and does not say
 * for whom they waited. It sends them SIGCONT a second before. */
static void world_answer_signal(void *user)
{
    world_wait *wait = user;
    char seconds[32];
    if (!atomic_exchange(&world_is_woken, false) || !world_look(wait))
        return;
    ek_format(seconds, sizeof seconds, "%.1f", wait->seconds);
    fprintf(stderr, "evenkeel: init_process_group has waited %s s: %s\n", seconds, wait->missing);
}

/* Joins the job; the sentence of a time-out says which ranks have not come. */
static int world_open(const ek_launched *launched, const ek_transport *transport, double timeout,
                      bool check)
{
    world_wait wait = {.launched = launched, .began = ek_clock_ns()};
    struct sigaction noting = {.sa_handler = world_note_signal, .sa_flags = SA_RESTART}, before;
    atomic_store(&world_is_woken, false);
    sigaction(SIGCONT, NULL, &before);
    if (before.sa_handler == SIG_DFL)
        sigaction(SIGCONT, &noting, NULL);
    int rc = ek_communication_open(transport, NULL, launched->size, timeout, check,
                                   world_answer_signal, &wait, &world_communication);
    sigaction(SIGCONT, &before, NULL);
    if (rc != EK_E_TIMEOUT)
        return rc;
    world_look(&wait);
    ek_error_clear();
    return EK_FAIL(EK_E_TIMEOUT, "init_process_group waited %.1f s: %s", wait.seconds,
                   wait.missing);
}

int ek_dist_init_process_group_with(ek_dist_options options)
{
    EK_TRY(ek_fork_check());
    if (ek_dist_is_initialized())
        return EK_FAIL(EK_E_STATE, "init_process_group: the process is in a world already");
    ek_launched launched;
    EK_TRY(ek_launcher_find(&launched));
    EK_TRY(world_check_options(&options));
    EK_TRY(EK_READ_SWITCH("init_process_group", &options, check, 5, EK_ON));
    if (launched.size > 0)
        EK_TRY(world_check_place(&options, launched.rank, launched.size));
    double timeout = world_timeout(&options);
    if (timeout < 0)
        return ek_error_pending();
    if (!launched.several) {
        EK_TRY(world_check_backend(options.backend));
        world_alone = world_new_alone(0);
        return world_alone ? 0 : ek_error_pending();
    }
    const ek_transport *transport;
    EK_TRY(ek_launcher_transport(&launched, &transport));
    EK_TRY(world_open(&launched, transport, timeout, options.check != EK_OFF));
    ek_fork_arm();
    ek_world = world_communication->place;
    world_communication->backend = options.backend;
    if (world_check_backend(options.backend) < 0)
        return ek_world_outcome(NULL, ek_error_pending());
    if (launched.size <= 0 && world_check_place(&options, ek_world.rank, ek_world.size) < 0)
        return ek_world_outcome(NULL, ek_error_pending());
    static bool registered; /* for one thread at a time */
    if (!registered)
        registered = on_exit(world_at_exit, NULL) == 0;
    return world_number_devices();
}

/* ---- groups ---- */

static int world_compare_ranks(const void *a, const void *b)
{
    int first = *(const int *)a, second = *(const int *)b;
    return (first > second) - (first < second);
}

/* Sorts a copy of the ranks, and checks them. */
static int world_sorted_ranks(const ek_group_options *options, int size, int *ranks)
{
    for (int i = 0; i < options->count; i++)
        ranks[i] = options->ranks[i];
    qsort(ranks, (size_t)options->count, sizeof *ranks, world_compare_ranks);
    for (int i = 0; i < options->count; i++) {
        if (ranks[i] < 0 || ranks[i] >= size)
            return EK_FAIL(EK_E_INVALID, "new_group: rank %d; the world has ranks 0 to %d",
                           ranks[i], size - 1);
        if (i > 0 && ranks[i] == ranks[i - 1])
            return EK_FAIL(EK_E_INVALID, "new_group: rank %d is named twice", ranks[i]);
    }
    return 0;
}

static int world_check_group(const ek_group_options *options, const ek_process_group *world,
                             double timeout)
{
    if (options->ranks && (options->count < 1 || options->count > world->size))
        return EK_FAIL(EK_E_INVALID, "new_group: %d ranks; 1 to %d are possible", options->count,
                       world->size);
    if (world->communication && !(timeout > 0 && isfinite(timeout)))
        return EK_FAIL(EK_E_INVALID, "new_group: a timeout of %g seconds; it must be positive",
                       timeout);
    return 0;
}

ek_process_group *ek_dist_new_group_with(ek_group_options options)
{
    static int made_alone; /* groups made in worlds of one */
    ek_process_group *world = NULL, *group = NULL;
    if (ek_world_group("new_group", NULL, &world) < 0)
        return NULL;
    double timeout = ek_number_or(EK_GIVEN(&options, timeout, 2), world->timeout);
    int count = options.ranks ? options.count : world->size, rc;
    int *ranks = NULL;
    if ((rc = world_check_group(&options, world, timeout)) >= 0) {
        ranks = ek_calloc((size_t)count, sizeof *ranks);
        rc = ranks ? 0 : ek_error_pending();
    }
    for (int i = 0; i < count && rc >= 0; i++)
        ranks[i] = i;
    if (rc >= 0 && options.ranks)
        rc = world_sorted_ranks(&options, world->size, ranks);
    if (ek_world_outcome(world, rc) >= 0)
        group = world->communication
                    ? ek_communication_new_group(world->communication, ranks, count, timeout)
                    : world_new_alone(++made_alone);
    free(ranks);
    if (!group)
        return NULL;
    group->next_made = world_groups;
    world_groups = group;
    return group;
}

static int world_destroy_made(ek_process_group *group)
{
    ek_process_group **at = &world_groups;
    while (*at && *at != group)
        at = &(*at)->next_made;
    if (!*at)
        return EK_FAIL(EK_E_INVALID,
                       "destroy_process_group: not a group that ek_dist_new_group has made");
    *at = group->next_made;
    if (group->communication)
        ek_communication_destroy_group(group);
    else
        world_free_alone(group);
    return 0;
}

int ek_dist_destroy_process_group(ek_process_group *group)
{
    EK_TRY(ek_fork_check());
    if (!ek_dist_is_initialized())
        return group ? EK_FAIL(EK_E_STATE, "destroy_process_group: there is no process group") : 0;
    if (group && group != ek_dist_world())
        return world_destroy_made(group);
    while (world_groups)
        world_destroy_made(world_groups);
    int rc = ek_communication_close(world_communication, false);
    world_communication = NULL;
    world_free_alone(world_alone);
    world_alone = NULL;
    ek_world = (ek_world_place){.size = 1, .local_size = 1};
    return rc;
}

static int world_leave(void)
{
    return ek_dist_destroy_process_group(NULL);
}

__attribute__((constructor)) static void world_watch_shutdown(void)
{
    ek_at_shutdown(world_leave);
    ek_ranks_of = ek_process_group_ranks;
    ek_ranks_of_wrapper = ek_distributed_ranks;
    ek_ranks_set_sync = ek_distributed_set_sync;
}

/* ---- errors of the job ---- */

int ek_world_outcome(const ek_process_group *group, int rc)
{
    ek_communication *communication = group ? group->communication : world_communication;
    const ek_error_record *pending = &ek_thread_self()->error;
    if (rc >= 0 || !communication || (pending->status < 0 && pending->told))
        return rc;
    ek_error_record error;
    ek_error_take(&error);
    error.origin = communication->place.rank + 1;
    ek_communication_raise(communication, &error);
    error.told = true;
    return ek_error_raise(&error);
}

int ek_dist_raise(void)
{
    return ek_world_outcome(NULL, ek_error_status());
}

int ek_dist_error_rank(void)
{
    const ek_error_record *pending = &ek_thread_self()->error;
    int origin = pending->status < 0 ? pending->origin - 1 : -1;
    return world_communication && origin != world_communication->place.rank ? origin : -1;
}

void ek_dist_print_error(FILE *stream)
{
    ek_error_record error;
    if (!world_communication)
        ek_print_error(stream);
    else if (ek_dist_error_rank() >= 0)
        ek_error_clear();
    else if (stream && ek_error_take(&error))
        ek_communication_print(world_communication, &error, stream);
}
