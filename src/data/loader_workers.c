/* loader_workers.c: the threads that make batches ahead. */
#include <stdio.h>
#include <string.h>

#include "data/loader.h"

#include "core/clock.h"

static ek_loader_slot *loader_slot(const ek_loader *loader, int64_t number)
{
    return &loader->slots[number % loader->slot_count];
}

/* ---- workers ----
 *
 * Threads are signalled after loader->lock is released: on a single processor a woken thread may
 * run at once, and it begins by taking that lock. */

/* Takes the batch that the worker will make next; NULL if there is none. loader->lock is held. */
static ek_loader_slot *worker_take(ek_loader_maker *worker)
{
    ek_loader *loader = worker->loader;
    int64_t *next = ek_loader_seeds_workers(loader) ? &worker->next : &loader->taken;
    int64_t number = *next;
    if (loader->stop || number >= loader->asked)
        return NULL;
    *next += next == &worker->next ? loader->options.workers : 1;
    loader->busy++;
    return loader_slot(loader, number);
}

static void worker_make(ek_loader_maker *worker, ek_loader_slot *slot)
{
    ek_loader *loader = worker->loader;
    uint64_t began = ek_clock_ns();
    ek_loader_make(worker, slot);
    uint64_t worked_ns = ek_clock_ns() - began;
    pthread_mutex_lock(&loader->lock);
    slot->made = true;
    loader->busy--;
    loader->worked_ns += worked_ns;
    bool awaited = loader->awaited == slot->number || (loader->stop && loader->busy == 0);
    pthread_mutex_unlock(&loader->lock);
    if (awaited)
        pthread_cond_signal(&loader->made);
}

/* Waits for worker->wake. loader->lock is held. */
static void worker_rest(ek_loader_maker *worker)
{
    worker->waiting = true;
    pthread_cond_wait(&worker->wake, &worker->loader->lock);
    worker->waiting = false;
}

static void *worker_main(void *user)
{
    ek_loader_maker *worker = user;
    ek_loader *loader = worker->loader;
    char name[16];
    snprintf(name, sizeof name, "ek-loader-%d", worker->number);
    pthread_setname_np(pthread_self(), name);
    ek_loader_start_worker(worker);
    pthread_mutex_lock(&loader->lock);
    if (--loader->busy == 0)
        pthread_cond_signal(&loader->made);
    while (!loader->quit) {
        ek_loader_slot *slot = worker_take(worker);
        if (!slot) {
            worker_rest(worker);
            continue;
        }
        pthread_mutex_unlock(&loader->lock);
        worker_make(worker, slot);
        pthread_mutex_lock(&loader->lock);
    }
    pthread_mutex_unlock(&loader->lock);
    return NULL;
}

/* ---- starting ---- */

static int worker_start_thread(ek_loader_maker *worker)
{
    int rc = pthread_create(&worker->thread, NULL, worker_main, worker);
    if (rc != 0)
        return EK_FAIL(EK_E_NO_MEMORY, "loader: no thread for worker %d of %d can be had (%s)",
                       worker->number, worker->loader->options.workers, strerror(rc));
    return 0;
}

static void loader_join_threads(ek_loader *loader, int count)
{
    pthread_mutex_lock(&loader->lock);
    loader->quit = true;
    for (int w = 0; w < count; w++)
        pthread_cond_signal(&loader->workers[w].wake);
    pthread_mutex_unlock(&loader->lock);
    for (int w = 0; w < count; w++)
        pthread_join(loader->workers[w].thread, NULL);
    loader->quit = false;
}

static void loader_wait_until_idle(ek_loader *loader)
{
    while (loader->busy > 0)
        pthread_cond_wait(&loader->made, &loader->lock);
}

int ek_loader_start(ek_loader *loader)
{
    ek_fork_arm();
    int workers = loader->options.workers;
    if (loader->started)
        return 0;
    loader->busy = workers;
    for (int w = 0; w < workers; w++) {
        int rc = worker_start_thread(&loader->workers[w]);
        if (rc < 0) {
            loader_join_threads(loader, w);
            loader->busy = 0;
            return rc;
        }
    }
    loader->started = true;
    if (loader->options.worker_start) {
        pthread_mutex_lock(&loader->lock);
        loader_wait_until_idle(loader);
        pthread_mutex_unlock(&loader->lock);
    }
    return 0;
}

/* ---- the caller's side ---- */

/* Returns a waiting worker that may make batch `number`, or NULL. The first is preferred: its
 * caches are warmest. loader->lock is held. */
static ek_loader_maker *loader_resting(ek_loader *loader, int64_t number)
{
    int workers = loader->options.workers;
    int first = ek_loader_seeds_workers(loader) ? (int)(number % workers) : 0;
    int last = ek_loader_seeds_workers(loader) ? first : workers - 1;
    for (int w = first; w <= last; w++) {
        ek_loader_maker *worker = &loader->workers[w];
        if (worker->waiting) {
            worker->waiting = false; /* the next batch wakes another worker */
            return worker;
        }
    }
    return NULL;
}

void ek_loader_hand_out(ek_loader *loader, int64_t end)
{
    for (int64_t number = loader->asked; number < end; number++) {
        pthread_mutex_lock(&loader->lock);
        loader->asked = number + 1;
        ek_loader_maker *worker = loader_resting(loader, number);
        pthread_mutex_unlock(&loader->lock);
        if (worker)
            pthread_cond_signal(&worker->wake);
    }
}

void ek_loader_wait(ek_loader *loader)
{
    ek_loader_slot *slot = loader_slot(loader, loader->given);
    pthread_mutex_lock(&loader->lock);
    loader->awaited = loader->given;
    while (!slot->made)
        pthread_cond_wait(&loader->made, &loader->lock);
    loader->awaited = -1;
    pthread_mutex_unlock(&loader->lock);
}

ek_loader_slot *ek_loader_made_already(ek_loader *loader)
{
    ek_loader_slot *slot = loader_slot(loader, loader->given);
    pthread_mutex_lock(&loader->lock);
    bool made = loader->given < loader->asked && slot->made;
    pthread_mutex_unlock(&loader->lock);
    return made ? slot : NULL;
}

void ek_loader_settle(ek_loader *loader, int64_t number)
{
    int workers = loader->options.workers;
    pthread_mutex_lock(&loader->lock);
    loader->stop = true;
    pthread_cond_broadcast(&loader->reader.turned);
    loader_wait_until_idle(loader);
    loader->stop = false;
    for (int s = 0; s < loader->slot_count; s++) {
        ek_loader_drop(&loader->slots[s]);
        loader->slots[s].made = false;
    }
    loader->asked = loader->taken = number;
    for (int w = 0; w < workers; w++) /* the worker's first batch from `number` on */
        loader->workers[w].next = number + (w - number % workers + workers) % workers;
    pthread_mutex_unlock(&loader->lock);
}

void ek_loader_join(ek_loader *loader)
{
    ek_loader_settle(loader, 0);
    if (loader->started)
        loader_join_threads(loader, loader->options.workers);
    loader->started = false;
}
