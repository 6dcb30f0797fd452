/* loader.h: the parts of a loader.
 *
 * The caller's thread draws a pass, hands its batches out to a ring of slots, and takes them from
 * the ring in order. Workers make the batches. Batch b lies in slot b modulo the number of slots,
 * which is workers * prefetch and bounds how far ahead batches are made. Without workers there is
 * one slot, and the caller's thread makes the batch.
 *
 * Note [Who may touch a loader]
 *
 * A slot belongs to the caller's thread until it is handed out, then to the worker that takes it,
 * and once `made` is true to the caller's thread again. Its owner changes while `lock` is held.
 * Only the caller's thread writes members that describe the pass, and only while no worker makes a
 * batch. Members that say so are guarded by `lock`. No thread holds `lock` while it reads a sample
 * or calls a user's function. */
#ifndef EK_DATA_LOADER_H
#define EK_DATA_LOADER_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/generator.h"
#include "core/thread.h"
#include "evenkeel/iterable.h"
#include "evenkeel/loader.h"

enum { EK_LOADER_MOST_WORKERS = 1024, EK_LOADER_MOST_SLOTS = 1 << 16 };

/* A batch that is being made, or is ready for the caller. See Note [Who may touch a loader]. */
typedef struct ek_loader_slot {
    int64_t number;
    const int64_t *indices;        /* borrowed from the pass */
    int64_t count;                 /* 0: an empty batch */
    int64_t sizes[EK_MAX_DEVICES]; /* samples of each device; sizes[0] if no device is named */
    bool made;                     /* guarded by lock: the worker is done with the slot */
    /* Of a data set without a length: `count` is known once the batch is made. */
    bool over;        /* the data set ended before this batch */
    int64_t position; /* how many samples of this rank were read, with this batch */
    int parts;
    ek_value part[EK_MAX_DEVICES]; /* one reference per device that has samples, in order */
    int device[EK_MAX_DEVICES];    /* index of each part's device in device_ids */
    bool sent;                     /* the copies of the parts to their devices have begun */
    ek_error_record error;         /* why making the batch failed; before it is made: why making its
                                      sizes failed; status 0: no error */
    ek_generator after; /* EK_SEED_WORKER: the worker's generator after the batch. While an empty
                           batch is made: the generator from which its sample draws */
} ek_loader_slot;

/* A maker of batches: a worker's thread, or the caller's thread if there are no workers. */
typedef struct ek_loader_maker {
    ek_loader *loader;
    int number;
    pthread_t thread;
    pthread_cond_t wake;
    bool waiting; /* guarded by lock: the thread waits for `wake` */
    int64_t next; /* guarded by lock: with EK_SEED_WORKER, the batch that this worker makes next */
    ek_error_record failed; /* the error of worker_start; written before the worker leaves `busy` */
    ek_generator generator; /* replaces the default generator while a batch is made */
    ek_value *samples;      /* room for the samples that a collate function gets */
    int64_t room;
} ek_loader_maker;

/* The reader of a data set without a length. The maker of batch `turn` may use it; between passes,
 * and while no worker makes a batch, the caller's thread may. See loader_reader.c. */
typedef struct ek_loader_reader {
    pthread_cond_t turned;
    int64_t turn;          /* guarded by lock: the batch whose samples may be read */
    ek_iterator *iterator; /* owned; NULL: not opened yet */
    int64_t epoch;
    int64_t passed;   /* samples of the data set that were read or skipped */
    int64_t position; /* samples of this rank, with those before a load */
    bool ended;
    ek_value first; /* the data set's first sample, one reference, if there may be empty batches */
    /* Only touched by the caller's thread: */
    int64_t given;      /* `position` after the batches given so far */
    int64_t next_epoch; /* of the next pass */
} ek_loader_reader;

struct ek_loader {
    ek_loader_options options;
    bool iterates;           /* the data set has no length: `reader` reads it */
    ek_loader_reader reader; /* else all zero */
    ek_sampler *sampler;     /* owned; NULL if it iterates */
    int64_t batch_size;      /* 0: the sampler makes the batches */
    bool single;             /* each batch is one sample as it is */
    bool evens;              /* passes are filled up with empty batches */
    bool sends_ahead;        /* a batch that is made early is sent one call before it is given */

    /* The pass that is under way. */
    bool begun;
    ek_pass pass;
    int64_t first;   /* the number of the first batch in `pass`: not 0 after a load */
    int64_t before;  /* how many samples of this rank come before those in `pass` */
    int64_t epoch;   /* The sampler's epoch when it drew this rank's share; 0: there is no such
                        sampler. */
    int64_t longest; /* the number of batches of the rank with the most; 0: no empty batches */
    int64_t batches; /* batches of the whole pass, with those before `first` and empty ones */
    int64_t given;
    uint64_t base_seed;
    ek_generator *after; /* EK_SEED_WORKER: workers' generators after the batches given so far */

    ek_value data, input, target; /* the last batch given; one reference each */
    ek_loader_stats stats;        /* all but worked_ns */

    int slot_count;
    ek_loader_slot *slots;
    ek_loader_maker *workers; /* without workers: a single maker without a thread */
    bool started;             /* the threads run */

    pthread_mutex_t lock;
    pthread_cond_t made; /* the caller's thread waits for it */
    int64_t awaited; /* guarded by lock: the batch that the caller's thread waits for; -1: none */
    int64_t asked;   /* guarded by lock: how many batches were handed out */
    int64_t taken;   /* guarded by lock: with EK_SEED_BATCH, how many batches workers have taken */
    int busy;        /* guarded by lock: how many workers make a batch or are starting */
    bool quit;       /* guarded by lock: threads end */
    uint64_t worked_ns; /* guarded by lock */
    atomic_bool stop; /* written under lock; true: no batch is begun, unfinished ones are dropped */
};

/* ---- loader_batch.c ---- */

/* Makes the slot's batch: fills its parts, or its error. */
void ek_loader_make(ek_loader_maker *worker, ek_loader_slot *slot);
/* Makes room for `count` samples of a batch, keeping the samples read so far. Returns
 * worker->samples, or NULL with EK_E_NO_MEMORY. */
ek_value *ek_loader_room(ek_loader_maker *worker, int64_t count);
/* Calls worker_start, on the worker's thread. */
void ek_loader_start_worker(ek_loader_maker *worker);
/* Begins the copies of a made slot's parts to their devices, without waiting for the copies. After
 * an error the slot is unchanged, and is sent when the caller takes it. If a device is out of
 * memory, the loader stops sending ahead. */
void ek_loader_send_ahead(ek_loader *loader, ek_loader_slot *slot);
/* Moves a made slot's parts to the loader's data, input and target, or raises the slot's error. */
int ek_loader_take(ek_loader *loader, ek_loader_slot *slot);
/* Releases a slot's parts. */
void ek_loader_drop(ek_loader_slot *slot);
/* Releases the values of the last batch given. */
void ek_loader_forget(ek_loader *loader);

/* ---- loader_workers.c ---- */

/* Starts all threads, or none if one fails. Does nothing if they run already. With worker_start,
 * returns after every worker has called it. */
int ek_loader_start(ek_loader *loader);
/* Hands out the batches [loader->asked, end), whose slots are filled in. */
void ek_loader_hand_out(ek_loader *loader, int64_t end);
/* Waits until batch loader->given is made. */
void ek_loader_wait(ek_loader *loader);
/* Returns the slot of batch loader->given if the batch is made already, else NULL. Doesn't wait. */
ek_loader_slot *ek_loader_made_already(ek_loader *loader);
/* Waits until no worker makes a batch, and takes back all batches that were handed out. The next
 * batch to hand out is then `number`. */
void ek_loader_settle(ek_loader *loader, int64_t number);
/* Settles the loader, and joins the threads. */
void ek_loader_join(ek_loader *loader);

/* ---- loader_options.c ---- */

/* Fails with the pending error if an option is NULL: making that option has failed. */
int ek_loader_check(const ek_loader_options *options);

/* ---- loader_reader.c ---- */

/* Sets the reader to batch `number`, before which `position` samples of this rank are skipped. The
 * data set is opened, and samples are skipped, when the batch is made. No worker makes a batch
 * now. */
void ek_loader_reader_begin(ek_loader *loader, int64_t number, int64_t position);
void ek_loader_reader_close(ek_loader_reader *reader);
/* Waits for the slot's turn, and reads its samples into worker->samples, at most
 * loader->batch_size, in the caller's scope. Sets count, over and position. For an empty batch
 * gives one sample. Every slot that is handed out must be read; otherwise later batches wait for
 * ever. */
int ek_loader_read(ek_loader_maker *worker, ek_loader_slot *slot);

/* ---- loader.c ---- */

/* Divides slot->count samples among the devices. */
int ek_loader_cut(const ek_loader *loader, ek_loader_slot *slot);
/* Returns into how many batches the loader cuts so many samples. */
int64_t ek_loader_batches_of(const ek_loader *loader, int64_t samples);

/* Writes the range of the pass's indices that batch `number` has. For batches after the pass's last
 * batch, writes the empty range at the end. */
void ek_loader_range(const ek_loader *loader, int64_t number, int64_t *begin, int64_t *end);
/* Returns how many batches a pass, or the rest of one, has. */
int64_t ek_loader_batches_in(const ek_loader *loader, const ek_pass *pass);
/* Returns how many batches the longest pass of any rank has; 0 if no batches are empty. */
int64_t ek_loader_longest(const ek_loader *loader);
/* Begins or resumes loader->pass at batch loader->first. The workers' generators are copied from
 * loader->after. */
void ek_loader_go_on(ek_loader *loader);

static inline bool ek_loader_seeds_workers(const ek_loader *loader)
{
    return loader->options.seeding == EK_SEED_WORKER && loader->options.workers > 0;
}

#endif
