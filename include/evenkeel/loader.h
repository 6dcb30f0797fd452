/** @file
 * loader.h: batches of a data set, made in advance by worker threads.
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
 * With the same seed (ek_manual_seed) samples come in PyTorch's order. Results do not depend on the
 * number of workers, except with EK_SEED_WORKER. */
#ifndef EVENKEEL_LOADER_H
#define EVENKEEL_LOADER_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/dataset.h"
#include "evenkeel/plan.h"
#include "evenkeel/sampler.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_loader ek_loader;

/** Where random numbers of samples (augmentation) come from: the generator that data sets and
 * transforms use when they draw with NULL. */
typedef enum ek_seeding {
    /** A new generator per batch, seeded by the pass's base seed plus the batch's number. Numbers
     * are the same for any number of workers, and after a resume. */
    EK_SEED_BATCH = 0,
    /** As in PyTorch: worker w has one generator per pass, seeded by base seed + w, and batch b is
     * made by worker b % workers. Without workers the default generator is used. */
    EK_SEED_WORKER = 1
} ek_seeding;

/** Makes samples into a batch in place of ek_collate. Called in a worker, for each device's part of
 * a batch separately; the result is in the caller's scope. For an empty batch the function gets one
 * sample, and the loader then removes the rows (dimension 0) of the result's tensors. */
typedef ek_value ek_collate_function(const ek_value *samples, int64_t count, void *user);
/** Called in each worker before its first batch. Random numbers that it draws do not change those
 * of batches. Returns 0, or a negative status, which ek_loader_next then returns for every batch.
 */
typedef int ek_worker_function(int worker, void *user);
/** Writes how many samples of a batch that isn't empty each device gets; `sizes` is zeroed, and its
 * sum must be `batch`. It may call ek_data_parallel_sizes. It runs in the thread that calls
 * ek_loader_next, when a worker is assigned the batch: up to workers * prefetch batches before the
 * batch is returned. Returns 0, or a negative status: then the batch is lost, and the next batch
 * begins after its samples. */
typedef int ek_sizes_function(int64_t batch, int64_t *sizes, void *user);

typedef struct ek_loader_options {
    int begin; /**< no option, see base.h */
    /** One reference is taken over (evenkeel/dataset.h). A data set without a length
     * (evenkeel/iterable.h) excludes shuffle and samplers (EK_E_INVALID; ek_shuffled shuffles), and
     * `sizes` unless drop_last is on. Its samples, or this rank's share of them, form batches in
     * their own order. */
    ek_dataset *dataset;

    /** The order of samples: 0, 1, 2, ...; shuffled by ek_random_sampler with `generator`; that of
     * `sampler`; or that of batch_sampler, which makes batches. The loader owns samplers, also if
     * it could not be made. Give at most one of the three; batch_sampler excludes batch_size and
     * drop_last (EK_E_INVALID). */
    bool shuffle;
    ek_sampler *sampler;
    ek_sampler *batch_sampler;
    int64_t batch_size EK_IS(1); /**< 0: samples as they are, not collated */
    bool drop_last;              /**< leaves out a last batch that is smaller */
    /** True: empty batches follow at the end of a pass until every rank has had as many batches as
     * the rank with the most, so that all ranks take part in each step. Nothing is communicated:
     * the sampler knows the shares of all ranks (ek_sampler_longest), which only differ if it
     * doesn't pad. An empty batch is a batch of the data set's first sample without its row:
     * tensors of the same dtypes and shapes, but with 0 rows. With several device_ids it is on the
     * first. With batch_size 0 there are no empty batches. */
    bool empty_batches EK_IS(true);

    union {
        /** Threads that make batches; 0: ek_loader_next makes them, without prefetch. One option;
         * its second name is PyTorch's. */
        int workers, num_workers;
    };
    int prefetch EK_IS(2); /**< how many batches each worker may be ahead */
    ek_seeding seeding;
    ek_generator *generator; /**< gives base seeds and, with `shuffle`, the order; owned by the
                                caller; NULL: the default one */
    ek_collate_function *collate;
    void *collate_user;
    ek_worker_function *worker_start;
    void *worker_user;

    /** Batches are cut into parts for these devices. Values are then lists marked per_device, as
     * the data-parallel wrappers take them, with one element per device that gets samples, in this
     * order. A part for a host device is written to its memory; a part for a GPU is written to
     * pinned memory and copied while the GPU computes (see send_ahead). With one device: values on
     * this device, not lists. Empty: values on cpu, not lists. */
    ek_device_list device_ids;
    ek_split_policy split;    /**< EK_SPLIT_CHUNK or EK_SPLIT_EVEN */
    ek_sizes_function *sizes; /**< used in place of `split`; may be NULL */
    void *sizes_user;
    /** When a GPU's part of a batch is sent. True: while the batch before it is in use, if
     * workers have made the part by then. The GPU then holds one more batch while a step runs; if
     * memory is short for that, set this to false. If a batch finds no room on the GPU when it is
     * sent ahead, no later batch is sent ahead. False: when ek_loader_next returns the batch. */
    bool send_ahead EK_IS(true);
} ek_loader_options;
#define EK_DEFAULTS_ek_loader_options                                                    \
    EK_DEFAULT(batch_size, 1), EK_DEFAULT(empty_batches, true), EK_DEFAULT(prefetch, 2), \
        EK_DEFAULT(send_ahead, true)

EK_API ek_loader *ek_data_loader_with(ek_loader_options options);
/** Makes a loader, owned by the caller. NULL with an error for options that are out of range or
 * exclude each other. Threads start with the first batch. */
#define ek_data_loader(...) EK_CALL_1(ek_data_loader_with, ek_loader_options, dataset, __VA_ARGS__)
/** Frees a loader at any time. Waits for samples that are being read, not for whole batches. Free
 * loaders before ek_shutdown, because their threads use the library. NULL is ignored. */
EK_API void ek_loader_free(ek_loader *loader);
#define ek_loader_free(loader) ek_loader_free(EK_PLACED(loader))

/** One batch. The loader owns values and indices: they are valid in any scope until the next call
 * of ek_loader_next, or until the loader is reset, loaded or freed. ek_value_keep keeps a value
 * longer. If `data` is marked per_device, `input` and `target` are marked too. */
typedef struct ek_batch {
    ek_value data;          /**< the collated samples */
    ek_value input, target; /**< elements 0 and 1 of samples that are lists, else `data` and none */
    /** The samples' indices; NULL for an empty batch, and if the data set has no length. */
    const int64_t *indices;
    int64_t count;  /**< number of samples; 0: an empty batch */
    int64_t number; /**< number of the batch in its pass, from 0 */
} ek_batch;

/** Returns 1 with the next batch; 0 at the end of a pass, after which the next call begins another;
 * or a negative status. An error in a data set names the sample, and the worker if there is one;
 * the failed batch is lost, and the next call returns the batch after it. For one thread at a time.
 */
EK_API int ek_loader_next(ek_loader *loader, ek_batch *batch);
/** Abandons the current pass; the next call of ek_loader_next begins another. */
EK_API int ek_loader_reset(ek_loader *loader);
/** How many batches a pass has, empty ones included; if batch_size is 0, how many samples.
 * EK_E_INVALID for a data set without a length. */
EK_API int64_t ek_loader_length(ek_loader *loader);
/** Sets the epoch of the next pass: the sampler's, or that of a data set without a length, whose
 * epochs otherwise count the passes from 0. */
EK_API int ek_loader_set_epoch(ek_loader *loader, int64_t epoch);
/** The data set and the sampler; borrowed, valid as long as the loader. NULL for the sampler of a
 * data set without a length. */
EK_API ek_dataset *ek_loader_dataset(ek_loader *loader);
EK_API ek_sampler *ek_loader_sampler(ek_loader *loader);

/** The worker that calls a data set or transform. */
typedef struct ek_worker_info {
    int worker, workers; /**< the worker's number, from 0; how many workers there are */
    uint64_t seed;       /**< base seed of the pass + worker */
} ek_worker_info;
/** Describes the calling worker in *info and returns true. On a thread that is no loader's worker,
 * returns false and leaves *info unchanged. */
EK_API bool ek_loader_worker(ek_worker_info *info);

/** Totals since the loader was made. */
typedef struct ek_loader_stats {
    int64_t batches, samples; /**< how many ek_loader_next has returned */
    uint64_t waited_ns; /**< time that ek_loader_next waited for batches or spent making them */
    uint64_t worked_ns; /**< time that workers spent making batches, summed over workers */
} ek_loader_stats;
EK_API int ek_loader_get_stats(ek_loader *loader, ek_loader_stats *stats);

/** The loader's position, for checkpoints: a dictionary of tensors, with the sampler's state, in
 * the scope. It counts the batches that ek_loader_next has returned, not those made ahead.
 * ek_loader_load_state restores it in a loader with the same data set and kind of sampler (else
 * EK_E_FORMAT or EK_E_INVALID); the pass continues with the next batch. Workers, devices and
 * prefetch may differ, but with EK_SEED_WORKER the number of workers must be the same. A data set
 * without a length is read, or skipped, up to the position when the next batch is made.
 *
 * A position counts the samples of all ranks, so that one rank's state resumes on every rank, on
 * any number of ranks and with any batch size, if the position is a whole number of batches of all
 * ranks there: 2 ranks with batches of 6 continue as 3 ranks with batches of 4, and each step has
 * the samples that it would have had. Else EK_E_INVALID says why. With several ranks this takes
 * ek_distributed_sampler without .contiguous, or a data set without a length; contiguous shares
 * resume on the same number of ranks. Other samplers count as giving all ranks the same samples.
 * Batches of another size need EK_SEED_BATCH. Random numbers of samples continue as on the rank
 * that saved. */
EK_API ek_value ek_loader_state(ek_loader *loader);
EK_API int ek_loader_load_state(ek_loader *loader, ek_value state);

EK_END_DECLARATIONS
#endif
