/* loader.h: what a loader is made of.
 *
 * The caller's thread draws passes, hands batches out, in their order, to a ring of slots, and
 * takes them from there in the same order; workers make what is handed out. Batch b lies in slot b
 * modulo the number of slots, which is workers x prefetch, so that nobody is ahead by more. Without
 * workers there is one slot, and the caller makes the batch himself.
 *
 * Between passes, and while a loader is reset, no worker holds a batch: what describes the pass is
 * written by the caller then, and only read while batches are made.
 *
 * Locks: `lock` guards what its comments say, and is never held while a sample is read or a
 * function of the user's runs. */
#ifndef EK_DATA_LOADER_H
#define EK_DATA_LOADER_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/generator.h"
#include "core/thread.h"
#include "evenkeel/loader.h"

enum { EK_LOADER_MOST_WORKERS = 1024, EK_LOADER_MOST_SLOTS = 1 << 16 };

/* A batch on its way from being handed out to being given. Whose it is changes under the lock. */
typedef struct ek_loader_slot {
    int64_t number;
    const int64_t *indices; /* in the pass */
    int64_t count;
    int64_t sizes[EK_MAX_DEVICES]; /* of each device's part; of the only part if none is named */
    bool made;                     /* guarded by lock: the rest is the caller's again */
    int parts;
    ek_value part[EK_MAX_DEVICES]; /* references; of the devices that have samples, in order */
    int device[EK_MAX_DEVICES];    /* in device_ids */
    bool sent;                     /* the parts are on their way to their devices */
    ek_error_record error;         /* status 0: none */
    ek_generator after;            /* EK_SEED_WORKER: the worker's, when the batch was made */
} ek_loader_slot;

/* Who makes batches: a thread, or the caller if there are no workers. */
typedef struct ek_loader_maker {
    ek_loader *loader;
    int number;
    pthread_t thread;
    pthread_cond_t wake;
    bool waiting;           /* guarded by lock: for `wake` */
    int64_t next;           /* guarded by lock: EK_SEED_WORKER: the batch that it makes next */
    ek_error_record failed; /* what worker_start said; written before it is counted as started */
    ek_generator generator; /* stands in for the default one */
    ek_value *samples;      /* room for collate functions */
    int64_t room;
} ek_loader_maker;

struct ek_loader {
    ek_loader_options options;
    ek_sampler *sampler; /* owned */
    int64_t batch_size;  /* 0: the sampler makes batches */
    bool single;         /* samples as they are, each by itself */
    bool sends_ahead;    /* a batch is sent one call before it is given, if it is made by then */

    /* The pass. */
    bool begun;
    ek_pass pass;
    int64_t first;   /* the number of the first batch that `pass` has: not 0 after a load */
    int64_t batches; /* of the pass, those before `first` included */
    int64_t given;
    uint64_t base_seed;
    ek_generator *after; /* EK_SEED_WORKER: of each worker, after its last batch that was given */

    ek_value data, input, target; /* of the last batch given; references */
    ek_loader_stats stats;        /* but worked_ns */

    int slot_count;
    ek_loader_slot *slots;
    ek_loader_maker *workers; /* 1 without threads */
    bool started;             /* threads run */

    pthread_mutex_t lock;
    pthread_cond_t made; /* the caller waits */
    int64_t awaited;     /* guarded: the batch that he waits for; -1 */
    int64_t asked;       /* guarded: batches handed out */
    int64_t taken;       /* guarded: EK_SEED_BATCH: of which workers have begun with */
    int busy;            /* guarded: workers that make a batch, or start */
    bool quit;           /* guarded */
    uint64_t worked_ns;  /* guarded */
    atomic_bool stop;    /* written under the lock: nothing is begun any more, what is being made
                            will be thrown away */
};

/* ---- loader_batch.c ---- */

/* Makes the batch that the slot asks for: its parts, or its error. */
void ek_loader_make(ek_loader_maker *worker, ek_loader_slot *slot);
/* worker_start, on the worker's thread. */
void ek_loader_start_worker(ek_loader_maker *worker);
/* Sends what a made slot holds to its devices, in memory of their own, without waiting for them. A
 * device that has no room for it is left alone from now on: then, and after any other error, the
 * slot is as it was, to be sent when it is taken. */
void ek_loader_send_ahead(ek_loader *loader, ek_loader_slot *slot);
/* What a made slot holds becomes the loader's data, input and target; its error is raised. */
int ek_loader_take(ek_loader *loader, ek_loader_slot *slot);
/* Gives a slot's parts back. */
void ek_loader_drop(ek_loader_slot *slot);
/* Gives the last batch's values back. */
void ek_loader_forget(ek_loader *loader);

/* ---- loader_workers.c ---- */

/* Starts the threads that don't run yet: all or none. With worker_start, waits until each has
 * called it. */
int ek_loader_start(ek_loader *loader);
/* Slots of batches [loader->asked, end) are ready to be made. */
void ek_loader_hand_out(ek_loader *loader, int64_t end);
/* Returns when the batch loader->given is made. */
void ek_loader_wait(ek_loader *loader);
/* Its slot if it is made already, without waiting; NULL: not yet, or there is none. */
ek_loader_slot *ek_loader_made_already(ek_loader *loader);
/* Returns when no worker makes a batch; all that was handed out is given back, and the next batch
 * that is handed out is `number`. */
void ek_loader_settle(ek_loader *loader, int64_t number);
/* Settles, and joins the threads. */
void ek_loader_join(ek_loader *loader);

/* ---- loader.c ---- */

/* Batch `number` of the pass. */
void ek_loader_range(const ek_loader *loader, int64_t number, int64_t *begin, int64_t *end);
/* Batches that a pass (or the rest of one) has. */
int64_t ek_loader_batches_in(const ek_loader *loader, const ek_pass *pass);
/* The pass in loader->pass, whose first batch is loader->first, begins, or goes on, there, with
 * workers' generators as they are in loader->after. */
void ek_loader_go_on(ek_loader *loader);

static inline bool ek_loader_seeds_workers(const ek_loader *loader)
{
    return loader->options.seeding == EK_SEED_WORKER && loader->options.workers > 0;
}

#endif
