/* sampler.h: in which order samples are gone through.
 *
 * A sampler draws passes: lists of samples' indices, cut into batches or not. The library's are
 * PyTorch's to the number. A user's own is a struct whose first member is an ek_sampler, with a
 * type record:
 *
 *     static int backwards_draw(ek_sampler *sampler, ek_pass *pass)
 *     {
 *         for (int64_t i = ((backwards *)sampler)->count; i-- > 0;)
 *             if (ek_pass_add(pass, i) < 0)
 *                 return ek_error_status();
 *         return 0;
 *     }
 */
#ifndef EVENKEEL_SAMPLER_H
#define EVENKEEL_SAMPLER_H

#include "evenkeel/random.h"
#include "evenkeel/value.h"

EK_BEGIN_DECLARATIONS

/* One pass. Zeroed is empty; freed with ek_pass_free. */
typedef struct ek_pass {
    int64_t *indices, count; /* of all samples, in their order */
    int64_t *ends, batches;  /* of batch samplers: batch b ends before indices[ends[b]]; else 0 */
    int64_t room, ends_room; /* allocated */
} ek_pass;
/* For draw functions: one more sample; the end of a batch. EK_E_NO_MEMORY. */
EK_API int ek_pass_add(ek_pass *pass, int64_t index);
EK_API int ek_pass_end_batch(ek_pass *pass);
EK_API void ek_pass_free(ek_pass *pass);

typedef struct ek_sampler ek_sampler;

typedef struct ek_sampler_type {
    const char *name;
    size_t size; /* of the struct that embeds ek_sampler */
    /* Samples in a pass, or batches if the sampler makes batches. */
    int64_t (*length)(ek_sampler *self);
    /* Adds a pass to `pass`, which is empty. May look at self->epoch, may draw from
     * self->generator. */
    int (*draw)(ek_sampler *self, ek_pass *pass);
    bool makes_batches; /* draw ends batches */
    /* Optional: frees what the struct owns. */
    void (*destroy)(ek_sampler *self);
} ek_sampler_type;

struct ek_sampler {
    const ek_sampler_type *type;
    int64_t epoch;           /* as set, 0 at first */
    bool automatic_epochs;   /* each pass drawn ends an epoch */
    ek_generator *generator; /* the caller's; NULL: numbers come from the default one */
    ek_sampler *inner;       /* what a batch sampler draws from; owned */
    ek_pass pass;            /* what ek_sampler_next gives */
    int64_t position;        /* in `pass`; negative: none is begun */
};

/* A zeroed struct of type->size bytes at epoch 0; free with ek_sampler_free, which frees `inner`
 * too. */
EK_API ek_sampler *ek_sampler_new(const ek_sampler_type *type);
EK_API void ek_sampler_free(ek_sampler *sampler); /* NULL is ignored */

EK_API int64_t ek_sampler_length(ek_sampler *sampler);
/* For samplers whose order depends on it (and those of batches around them): the same epoch gives
 * the same order. Without it, or automatic epochs, every pass of a distributed sampler is the same.
 */
EK_API int ek_sampler_set_epoch(ek_sampler *sampler, int64_t epoch);

/* A whole pass, in place of what `pass` held; apart from that of ek_sampler_next. EK_E_INVALID
 * if a user's type leaves a batch empty or without an end. */
EK_API int ek_sampler_draw(ek_sampler *sampler, ek_pass *pass);
/* One by one: 1 and the next index; 0 at the end of a pass, after which the next call begins
 * another; negative on error. EK_E_INVALID for a sampler that makes batches. */
EK_API int ek_sampler_next(ek_sampler *sampler, int64_t *index);
/* The next batch of a sampler that makes batches; *indices stays valid until the next call. */
EK_API int ek_sampler_next_batch(ek_sampler *sampler, const int64_t **indices, int64_t *count);

/* All that a sampler needs to go on, also within a pass of ek_sampler_next: a dictionary of tensors
 * for checkpoints (evenkeel/archive.h), in the scope; and back. Of a generator that the caller
 * gave it the state is there too. The default generator's, and Python's and NumPy's, are kept apart
 * (ek_archive_put_random), and what a user's own type adds to ek_sampler is the user's to keep.
 * EK_E_FORMAT for a state of another kind of sampler. */
EK_API ek_value ek_sampler_state(ek_sampler *sampler);
EK_API int ek_sampler_load_state(ek_sampler *sampler, ek_value state);

/* ---- PyTorch's ---- */

/* 0, 1, ..., count - 1. */
EK_API ek_sampler *ek_sequential_sampler(int64_t count);

typedef struct ek_random_sampler_options {
    const char *keywords;
    int64_t count; /* 1 at least */
    bool replacement;
    int64_t
        num_samples; /* default count; more than count without replacement: several permutations */
    ek_generator
        *generator; /* NULL: each pass has a new one, seeded by 64 bits of the default one */
} ek_random_sampler_options;
/* ek_random_sampler(100, .replacement = true). */
EK_API ek_sampler *ek_random_sampler_with(ek_random_sampler_options options);
#define ek_random_sampler(...) \
    ek_random_sampler_with(EK_OPTIONS_1(ek_random_sampler_options, count, __VA_ARGS__))

/* A permutation of indices[0..count-1] (copied). */
EK_API ek_sampler *ek_subset_random_sampler(const int64_t *indices, int64_t count,
                                            ek_generator *generator);

/* num_samples of 0..count-1 with replacement, i with a probability in proportion to weights[i]
 * (copied). EK_E_INVALID for weights that are negative or not finite, or if none is
 * positive. */
EK_API ek_sampler *ek_weighted_random_sampler(const double *weights, int64_t count,
                                              int64_t num_samples, ek_generator *generator);

/* Batches of `batch_size` of another sampler's samples (which it owns from now on, also when it
 * fails); a last smaller one is given unless drop_last. */
EK_API ek_sampler *ek_batch_sampler(ek_sampler *sampler, int64_t batch_size, bool drop_last);

/* ---- one rank's share ---- */

typedef struct ek_distributed_sampler_options {
    const char *keywords;
    int64_t count;
    int num_replicas;  /* default 1 */
    int rank;          /* EK_E_INVALID: "Invalid rank 2, rank should be in the interval [0, 1]" */
    ek_switch shuffle; /* default on: a permutation by seed + epoch, the same for all ranks */
    int64_t seed;
    bool drop_last; /* the rest is dropped, so that all ranks have as many */
    /* Default on: samples from the start of the order are given twice, so that all ranks have as
     * many. Off, for evaluation: ranks' lengths differ by one at most and no sample is given twice.
     */
    ek_switch padding;
    bool contiguous; /* rank r gets a block of the order; else each num_replicas-th from r on */
    bool automatic_epochs; /* ek_sampler_set_epoch by itself, after each pass */
} ek_distributed_sampler_options;
/* torch.utils.data.DistributedSampler: ek_distributed_sampler(10, .num_replicas = 4, .rank = 1). */
EK_API ek_sampler *ek_distributed_sampler_with(ek_distributed_sampler_options options);
#define ek_distributed_sampler(...) \
    ek_distributed_sampler_with(EK_OPTIONS_1(ek_distributed_sampler_options, count, __VA_ARGS__))

/* ---- re-identification: samples of the same identity side by side ----
 *
 * Python's and NumPy's global generators are not locked: passes of these are drawn by one thread at
 * a time. */

typedef struct ek_identity_sampler_options {
    const char *keywords;
    const int64_t *identities; /* of each sample; copied */
    int64_t count;
    int64_t num_instances;  /* of an identity side by side; default 4 */
    int num_replicas, rank; /* the distributed one's; default 1, 0 */
    int64_t seed;
    bool automatic_epochs;
} ek_identity_sampler_options;
/* RandomIdentitySampler: draws with Python's and NumPy's global generators (ek_set_seed). It has no
 * ranks and no seed: EK_E_INVALID if they are given. */
EK_API ek_sampler *ek_random_identity_sampler_with(ek_identity_sampler_options options);
#define ek_random_identity_sampler(...) \
    ek_random_identity_sampler_with(    \
        EK_OPTIONS_2(ek_identity_sampler_options, identities, count, __VA_ARGS__))
/* DistributedRandomIdentitySampler: seeds both by seed + epoch at each pass; rank r gets each
 * num_replicas-th group of num_instances. */
EK_API ek_sampler *ek_distributed_random_identity_sampler_with(ek_identity_sampler_options options);
#define ek_distributed_random_identity_sampler(...) \
    ek_distributed_random_identity_sampler_with(    \
        EK_OPTIONS_2(ek_identity_sampler_options, identities, count, __VA_ARGS__))
/* DistributedInferenceSampler: contiguous blocks, padded by repeating the last sample; with padding
 * off nothing is given twice, and lengths differ by one at most. */
EK_API ek_sampler *ek_distributed_inference_sampler(int64_t count, int num_replicas, int rank,
                                                    ek_switch padding);

EK_END_DECLARATIONS
#endif
