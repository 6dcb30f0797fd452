/** @file
 * sampler.h: samplers: the order in which samples are read.
 *
 * A sampler draws passes: lists of sample indices, which may be cut into batches. The library's
 * samplers draw exactly PyTorch's numbers. A sampler of the user is a struct whose first member is
 * an ek_sampler, with a type record:
 *
 *     static int backwards_draw(ek_sampler *sampler, ek_pass *pass)
 *     {
 *         for (int64_t i = ((backwards *)sampler)->count; i-- > 0;)
 *             if (ek_pass_add(pass, i) < 0)
 *                 return ek_error_status();
 *         return 0;
 *     } */
#ifndef EVENKEEL_SAMPLER_H
#define EVENKEEL_SAMPLER_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/random.h"
#include "evenkeel/value.h"

EK_BEGIN_DECLARATIONS

/** One pass, freed with ek_pass_free. A struct of zeros is an empty pass. */
typedef struct ek_pass {
    int64_t *indices, count; /**< indices of all samples in order; their number */
    int64_t *ends, batches;  /**< for batch samplers: batch b ends before indices[ends[b]] */
    int64_t room, ends_room; /**< allocated lengths */
} ek_pass;
/** For draw functions: append a sample, and end a batch. Return 0 or EK_E_NO_MEMORY. */
EK_API int ek_pass_add(ek_pass *pass, int64_t index);
EK_API int ek_pass_end_batch(ek_pass *pass);
/** Frees what a pass holds; it is empty then. */
EK_API void ek_pass_free(ek_pass *pass);

typedef struct ek_sampler ek_sampler;

typedef struct ek_sampler_type {
    const char *name;
    size_t size; /**< size of the struct that embeds ek_sampler */
    /** How many samples a pass has, or batches if the sampler makes batches. */
    int64_t (*length)(ek_sampler *self);
    /** Appends a pass to `pass`, which is empty. It may read self->epoch and draw from
     * self->generator. Returns 0 or a negative status. */
    int (*draw)(ek_sampler *self, ek_pass *pass);
    bool makes_batches; /**< `draw` calls ek_pass_end_batch */
    /** Optional: frees what the struct owns. */
    void (*destroy)(ek_sampler *self);
    /** Optional, for samplers that give each rank a share: the length of the longest share of any
     * rank. NULL: the shares of all ranks have the length that `length` returns. */
    int64_t (*longest)(ek_sampler *self);
} ek_sampler_type;

struct ek_sampler {
    const ek_sampler_type *type;
    int64_t epoch;           /**< as ek_sampler_set_epoch has set it; 0 at first */
    bool automatic_epochs;   /**< each pass that is drawn ends an epoch */
    ek_generator *generator; /**< owned by the caller; NULL: the default generator */
    ek_sampler *inner;       /**< the sampler that a batch sampler draws from; owned */
    ek_pass pass;            /**< the pass of ek_sampler_next */
    int64_t position;        /**< position in `pass`; negative: no pass has begun */
};

/** Makes a zeroed struct of type->size bytes, owned by the caller; ek_sampler_free frees `inner`,
 * too. */
EK_API ek_sampler *ek_sampler_new(const ek_sampler_type *type);
EK_API void ek_sampler_free(ek_sampler *sampler); /**< NULL is ignored */
#define ek_sampler_free(sampler) ek_sampler_free(EK_PLACED(sampler))

/** How many samples, or batches, a pass has; of a distributed sampler, this rank's share. */
EK_API int64_t ek_sampler_length(ek_sampler *sampler);
/** The length of the longest share of any rank: more than ek_sampler_length if another rank's share
 * is longer. For samplers that give no shares it is ek_sampler_length. */
EK_API int64_t ek_sampler_longest(ek_sampler *sampler);
/** Sets the epoch. The order of some samplers, and of batch samplers over them, depends on it: the
 * same epoch gives the same order. If the epoch is never set and automatic_epochs is off, a
 * distributed sampler draws the same pass every time. */
EK_API int ek_sampler_set_epoch(ek_sampler *sampler, int64_t epoch);

/** Draws a whole pass into `pass`, replacing its contents. It does not touch the pass of
 * ek_sampler_next. EK_E_INVALID if a user's sampler leaves a batch empty or without an end. */
EK_API int ek_sampler_draw(ek_sampler *sampler, ek_pass *pass);
/** Returns 1 with the next index; 0 at the end of a pass, after which the next call begins another;
 * or a negative status. EK_E_INVALID for a sampler that makes batches. */
EK_API int ek_sampler_next(ek_sampler *sampler, int64_t *index);
/** ek_sampler_next for a sampler that makes batches. *indices is valid until the next call. */
EK_API int ek_sampler_next_batch(ek_sampler *sampler, const int64_t **indices, int64_t *count);

/** The state of a sampler, also within a pass of ek_sampler_next: a dictionary of tensors for
 * checkpoints (evenkeel/archive.h), in the scope. It includes a generator that the caller gave,
 * but not the default one, nor Python's and NumPy's (ek_archive_put_random), nor members that a
 * user's type adds. ek_sampler_load_state restores it. EK_E_FORMAT for a state of another kind
 * of sampler. */
EK_API ek_value ek_sampler_state(ek_sampler *sampler);
EK_API int ek_sampler_load_state(ek_sampler *sampler, ek_value state);

/* ---- PyTorch's ---- */

/** The order 0, 1, ..., count - 1. */
EK_API ek_sampler *ek_sequential_sampler(int64_t count);

typedef struct ek_random_sampler_options {
    int begin;     /**< no option, see base.h */
    int64_t count; /**< at least 1 */
    bool replacement;
    /** EK_UNSET: count. If it is above count, without replacement, several permutations follow. */
    int64_t num_samples EK_IS(EK_UNSET);
    /** NULL: each pass has a new one, seeded by 64 bits of the default one. */
    ek_generator *generator;
} ek_random_sampler_options;
#define EK_DEFAULTS_ek_random_sampler_options EK_DEFAULT(num_samples, EK_UNSET)
EK_API ek_sampler *ek_random_sampler_with(ek_random_sampler_options options);
/** ek_random_sampler(100, .replacement = true): a random order of 0..count-1. */
#define ek_random_sampler(...) \
    EK_CALL_1(ek_random_sampler_with, ek_random_sampler_options, count, __VA_ARGS__)

/** A random permutation of indices[0..count-1] (copied). */
EK_API ek_sampler *ek_subset_random_sampler(const int64_t *indices, int64_t count,
                                            ek_generator *generator);

/** num_samples numbers of 0..count-1 with replacement; i has a probability in proportion to
 * weights[i] (copied). EK_E_INVALID for a weight that is negative or not finite, or if none is
 * positive. */
EK_API ek_sampler *ek_weighted_random_sampler(const double *weights, int64_t count,
                                              int64_t num_samples, ek_generator *generator);

/** Batches of `batch_size` samples of `sampler`. Takes ownership of `sampler`, also if it fails. A
 * smaller last batch is left out if drop_last. */
EK_API ek_sampler *ek_batch_sampler(ek_sampler *sampler, int64_t batch_size, bool drop_last);

/* ---- the share of one rank ----
 *
 * EK_UNSET means, for num_replicas, the number of processes (evenkeel/dist.h), and for rank this
 * process's rank; without a process group they are 1 and 0. */

typedef struct ek_distributed_sampler_options {
    int begin; /**< no option, see base.h */
    int64_t count;
    int num_replicas EK_IS(EK_UNSET); /**< EK_UNSET: the number of processes */
    int rank EK_IS(EK_UNSET); /**< EK_UNSET: this process's. EK_E_INVALID: "Invalid rank 2, rank
                 should be in the interval [0, 1]" */
    bool shuffle EK_IS(true); /**< a permutation by seed + epoch, the same for all ranks */
    int64_t seed;
    bool drop_last; /**< drops the last samples so that all ranks have equally many */
    /** True: the first samples are repeated at the end so that all ranks have equally many.
     * False, for evaluation: none is repeated, and lengths differ by at most one. */
    bool padding EK_IS(true);
    bool contiguous;       /**< rank r gets a block; else samples r, r + num_replicas, ... */
    bool automatic_epochs; /**< each pass that is drawn ends an epoch */
} ek_distributed_sampler_options;
#define EK_DEFAULTS_ek_distributed_sampler_options                                             \
    EK_DEFAULT(num_replicas, EK_UNSET), EK_DEFAULT(rank, EK_UNSET), EK_DEFAULT(shuffle, true), \
        EK_DEFAULT(padding, true)
EK_API ek_sampler *ek_distributed_sampler_with(ek_distributed_sampler_options options);
/** torch.utils.data.DistributedSampler: ek_distributed_sampler(10, .num_replicas = 4, .rank = 1).
 */
#define ek_distributed_sampler(...) \
    EK_CALL_1(ek_distributed_sampler_with, ek_distributed_sampler_options, count, __VA_ARGS__)

/* ---- re-identification: samples of one identity side by side ----
 *
 * These samplers draw from Python's and NumPy's global generators, which are not locked: only one
 * thread at a time may draw passes. */

typedef struct ek_identity_sampler_options {
    int begin;                 /**< no option, see base.h */
    const int64_t *identities; /**< identity of each sample; copied */
    int64_t count;
    int64_t num_instances EK_IS(4); /**< samples of an identity side by side */
} ek_identity_sampler_options;
#define EK_DEFAULTS_ek_identity_sampler_options EK_DEFAULT(num_instances, 4)
EK_API ek_sampler *ek_random_identity_sampler_with(ek_identity_sampler_options options);
/** RandomIdentitySampler: draws with Python's and NumPy's global generators (ek_set_seed). */
#define ek_random_identity_sampler(...)                                                        \
    EK_CALL_2(ek_random_identity_sampler_with, ek_identity_sampler_options, identities, count, \
              __VA_ARGS__)
typedef struct ek_distributed_identity_options {
    int begin;                 /**< no option, see base.h */
    const int64_t *identities; /**< as of ek_random_identity_sampler */
    int64_t count;
    int64_t num_instances EK_IS(4);
    int num_replicas EK_IS(EK_UNSET); /**< EK_UNSET: the number of processes */
    int rank EK_IS(EK_UNSET);         /**< EK_UNSET: this process's */
    int64_t seed;
    bool automatic_epochs;
} ek_distributed_identity_options;
#define EK_DEFAULTS_ek_distributed_identity_options \
    EK_DEFAULT(num_instances, 4), EK_DEFAULT(num_replicas, EK_UNSET), EK_DEFAULT(rank, EK_UNSET)
EK_API ek_sampler *
ek_distributed_random_identity_sampler_with(ek_distributed_identity_options options);
/** DistributedRandomIdentitySampler: seeds both generators by seed + epoch at each pass. Rank r
 * gets each num_replicas-th group of num_instances samples. */
#define ek_distributed_random_identity_sampler(...)                                         \
    EK_CALL_2(ek_distributed_random_identity_sampler_with, ek_distributed_identity_options, \
              identities, count, __VA_ARGS__)

typedef struct ek_inference_sampler_options {
    int begin; /**< no option, see base.h */
    int64_t count;
    int num_replicas EK_IS(EK_UNSET); /**< EK_UNSET: the number of processes */
    int rank EK_IS(EK_UNSET);         /**< EK_UNSET: this process's */
    /** True: the last sample is repeated so that all ranks have equally many. False: no sample is
     * repeated, and lengths differ by at most one. */
    bool padding EK_IS(true);
} ek_inference_sampler_options;
#define EK_DEFAULTS_ek_inference_sampler_options \
    EK_DEFAULT(num_replicas, EK_UNSET), EK_DEFAULT(rank, EK_UNSET), EK_DEFAULT(padding, true)
EK_API ek_sampler *ek_distributed_inference_sampler_with(ek_inference_sampler_options options);
/** DistributedInferenceSampler: contiguous blocks. */
#define ek_distributed_inference_sampler(...)                                             \
    EK_CALL_1(ek_distributed_inference_sampler_with, ek_inference_sampler_options, count, \
              __VA_ARGS__)

EK_END_DECLARATIONS
#endif
