/* loader.h: batches of a data set, made ahead of their use by threads.
 *
 *     ek_loader *loader = ek_data_loader(ek_mnist(path, true), .batch_size = 128, .shuffle = true,
 *                                        .workers = 1);
 *     ek_batch batch;
 *     int rc;
 *     while ((rc = ek_loader_next(loader, &batch)) > 0) {
 *         ek_scope step = ek_scope_begin();
 *         ... batch.input, batch.target ...
 *         ek_scope_end(&step);
 *     }
 *
 * With the same seed (ek_manual_seed) the order is PyTorch's. What a run computes does not depend
 * on the number of workers (but see EK_SEED_WORKER). */
#ifndef EVENKEEL_LOADER_H
#define EVENKEEL_LOADER_H

#include "evenkeel/dataset.h"
#include "evenkeel/plan.h"
#include "evenkeel/sampler.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_loader ek_loader;

/* Where random numbers of samples (augmentation) come from: the generator that draws with NULL use
 * in data sets and transforms while a batch is made. */
typedef enum ek_seeding {
    EK_SEED_BATCH = 0, /* a new one per batch, seeded by the pass's base seed plus the batch's
                          number: the same numbers for any number of workers, and after a resume */
    /* PyTorch's: worker w's, seeded by base seed + w and going on for a pass, batch b being made by
     * worker b % workers; without workers, the default generator. */
    EK_SEED_WORKER = 1
} ek_seeding;

/* What samples become instead of ek_collate. In a worker; the result in its caller's scope. For
 * each device's part of a batch by itself. */
typedef ek_value ek_collate_function(const ek_value *samples, int64_t count, void *user);
/* In each worker before its first batch; numbers that it draws are no batch's. Returns 0 or a
 * negative status, which all batches give. */
typedef int ek_worker_function(int worker, void *user);
/* How many samples of a batch each device gets; sizes, zeros at first, add up to `batch`.
 * ek_data_parallel_sizes in a function of the user's does it. In the thread that calls
 * ek_loader_next, when the batch is handed out to be made: up to workers x prefetch batches before
 * it is given. 0 or a negative status. */
typedef int ek_sizes_function(int64_t batch, int64_t *sizes, void *user);

typedef struct ek_loader_options {
    const char *keywords;
    ek_dataset *dataset; /* taken over (evenkeel/dataset.h) */

    /* Which samples: in order; shuffled by ek_random_sampler with `generator`; by a sampler; or by
     * one that makes batches. Samplers become the loader's, also when it fails. At most one of the
     * three, and batch_size and drop_last not with batch_sampler (EK_E_INVALID). */
    bool shuffle;
    ek_sampler *sampler;
    ek_sampler *batch_sampler;
    int64_t batch_size; /* default 1; 0: samples as they are, not collated */
    bool drop_last;     /* a smaller last batch is left out */

    int workers;  /* threads that make batches; 0: ek_loader_next makes them, when prefetch and
                     worker_start have no meaning */
    int prefetch; /* batches that each worker is ahead at most; default 2 */
    ek_seeding seeding;
    ek_generator *generator; /* the caller's: base seeds and, if `shuffle`, the order come from it;
                                NULL: from the default one */
    ek_collate_function *collate;
    void *collate_user;
    ek_worker_function *worker_start;
    void *worker_user;

    /* Each device's part of a batch is made by itself and where it is needed: a per-device value,
     * as the data-parallel wrappers take it, whose tensors lie on these devices in order (those
     * that get no sample left out). On host devices a part is written in the device's memory; for a
     * GPU to page-locked memory, and sent beside what the GPU computes (see send_ahead). One
     * device: plain values there. Empty: plain values on cpu. */
    ek_device_list device_ids;
    ek_split_policy split;    /* EK_SPLIT_CHUNK or EK_SPLIT_EVEN */
    ek_sizes_function *sizes; /* instead of it */
    void *sizes_user;
    /* When a GPU's part of a batch is sent. On (default): while the batch before it is given, if
     * workers have made it by then, so that it is there when it is asked for. The GPU then holds
     * one batch more while a step runs: a step that has no room beside that needs this off. Where
     * the batch itself finds no room, none is sent ahead from then on. Off: when it is asked for.
     */
    ek_switch send_ahead;
} ek_loader_options;

/* NULL with a sentence for options that are out of range or exclude each other. Threads start with
 * the first batch. */
EK_API ek_loader *ek_data_loader_with(ek_loader_options options);
#define ek_data_loader(...) \
    ek_data_loader_with(EK_OPTIONS_1(ek_loader_options, dataset, __VA_ARGS__))
/* At any time, also in the midst of a pass: waits for samples that are being read, not for batches.
 * Before ek_shutdown, since its threads are inside the library. NULL is ignored. */
EK_API void ek_loader_free(ek_loader *loader);

/* Values and indices are the loader's: they go when the next batch is asked for, or the loader is
 * reset, loaded or freed, whatever scopes are open. ek_value_keep keeps a value longer. */
typedef struct ek_batch {
    ek_value data;          /* the collated samples */
    ek_value input, target; /* elements 0 and 1 of samples that are lists; else `data` and none. Of
                               per-device values: per device too */
    const int64_t *indices; /* of the samples */
    int64_t count;          /* of samples */
    int64_t number;         /* of the batch in its pass, from 0 */
} ek_batch;

/* 1 with the next batch; 0 at the end of a pass, after which the next call begins another; negative
 * on error. An error in a data set names the sample (and its worker); the batch is lost, and the
 * next call goes on with the one after it. One thread at a time. */
EK_API int ek_loader_next(ek_loader *loader, ek_batch *batch);
/* Leaves a pass before its end: the next call of ek_loader_next begins another. */
EK_API int ek_loader_reset(ek_loader *loader);
/* Batches in a pass (samples, with batch_size 0). */
EK_API int64_t ek_loader_length(ek_loader *loader);
/* Passed on to the sampler, for the next pass. */
EK_API int ek_loader_set_epoch(ek_loader *loader, int64_t epoch);
/* The loader's own, valid as long as it is. */
EK_API ek_dataset *ek_loader_dataset(ek_loader *loader);
EK_API ek_sampler *ek_loader_sampler(ek_loader *loader);

/* In a data set or transform: which worker calls. */
typedef struct ek_worker_info {
    int worker, workers; /* number from 0 and how many */
    uint64_t seed;       /* the pass's base seed + worker */
} ek_worker_info;
/* False, and *info as it was, on threads that are no loader's worker. */
EK_API bool ek_loader_worker(ek_worker_info *info);

/* Since the loader was made. */
typedef struct ek_loader_stats {
    int64_t batches, samples; /* that ek_loader_next has given */
    uint64_t waited_ns;       /* that it has waited for, or spent on, making them */
    uint64_t worked_ns;       /* that workers have spent on making batches, of all workers */
} ek_loader_stats;
EK_API int ek_loader_get_stats(ek_loader *loader, ek_loader_stats *stats);

/* Where the loader is, for checkpoints: as of the batches that ek_loader_next has given, whatever
 * has been made ahead. A dictionary of tensors, the sampler's state among them; and back, into a
 * loader with the same data set, sampler and batch size (EK_E_FORMAT, EK_E_INVALID otherwise): the
 * pass goes on with the batch after the last one given. Workers, devices and prefetch may be
 * others, except that with EK_SEED_WORKER the number of workers has to be the same. */
EK_API ek_value ek_loader_state(ek_loader *loader);
EK_API int ek_loader_load_state(ek_loader *loader, ek_value state);

EK_END_DECLARATIONS
#endif
