/* samplers.c: the samplers of torch.utils.data: in order, permuted, with replacement, by weights,
 * from a subset, one rank's share. Numbers are drawn in PyTorch's order. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "data/sampler.h"

/* ---- in order ---- */

static int sequential_fill(ek_index_sampler *self, int64_t *indices)
{
    for (int64_t i = 0; i < self->length; i++)
        indices[i] = i;
    return 0;
}

static const ek_index_sampler_type sequential_type =
    EK_INDEX_SAMPLER_TYPE("sequential", ek_index_sampler, sequential_fill);

ek_sampler *ek_sequential_sampler(int64_t count)
{
    if (ek_sampler_check_least("sequential_sampler", "the count", count, 0) < 0)
        return NULL;
    return ek_index_sampler_new(&sequential_type, count, count);
}

/* ---- random ---- */

typedef struct random_sampler {
    ek_index_sampler base; /* its samples lie in [0, count) */
    bool replacement;
} random_sampler;

/* Writes whole permutations, then the begin of another permutation. PyTorch draws that permutation
 * even if none of its samples is needed. This matters only if the generator is used afterwards
 * (`goes_on`). */
static int random_fill_permutations(ek_generator *generator, bool goes_on, int64_t count,
                                    int64_t *indices, int64_t wanted)
{
    int64_t whole = wanted / count, part = wanted % count;
    for (int64_t i = 0; i < whole; i++)
        EK_TRY(ek_randperm(count, indices + i * count, generator));
    if (part == 0 && !goes_on)
        return 0;
    int64_t *last = ek_calloc((size_t)count, sizeof *last);
    if (!last)
        return EK_E_NO_MEMORY;
    int rc = ek_randperm(count, last, generator);
    if (part > 0)
        memcpy(indices + whole * count, last, (size_t)part * sizeof *indices);
    free(last);
    return rc;
}

static int random_fill(ek_index_sampler *self, int64_t *indices)
{
    ek_generator fresh, *generator = self->sampler.generator;
    if (!generator) {
        memset(&fresh, 0, sizeof fresh);
        ek_generator_seed(&fresh, ek_random_u64(NULL) & INT64_MAX);
        generator = &fresh;
    }
    if (!((const random_sampler *)self)->replacement)
        return random_fill_permutations(generator, generator != &fresh, self->high, indices,
                                        self->length);
    for (int64_t i = 0; i < self->length; i++)
        indices[i] = ek_generator_below(generator, self->high);
    return 0;
}

static const ek_index_sampler_type random_type =
    EK_INDEX_SAMPLER_TYPE("random", random_sampler, random_fill);

ek_sampler *ek_random_sampler_with(ek_random_sampler_options options)
{
    static const char function[] = "random_sampler";
    int64_t wanted = options.num_samples == EK_UNSET ? options.count : options.num_samples;
    if (ek_sampler_check_least(function, "the count", options.count, 1) < 0 ||
        ek_sampler_check_least(function, "num_samples", wanted, 1) < 0)
        return NULL;
    random_sampler *self = ek_index_sampler_new(&random_type, options.count, wanted);
    if (!self)
        return NULL;
    self->base.sampler.generator = options.generator;
    self->replacement = options.replacement;
    return &self->base.sampler;
}

/* ---- a subset: a permutation of the indices that it owns ---- */

static int subset_fill(ek_index_sampler *self, int64_t *indices)
{
    const int64_t *chosen = self->owned;
    EK_TRY(ek_randperm(self->length, indices, self->sampler.generator));
    for (int64_t i = 0; i < self->length; i++)
        indices[i] = chosen[indices[i]];
    return 0;
}

static const ek_index_sampler_type subset_type =
    EK_INDEX_SAMPLER_TYPE("subset_random", ek_index_sampler, subset_fill);

ek_sampler *ek_subset_random_sampler(const int64_t *indices, int64_t count, ek_generator *generator)
{
    if (ek_sampler_check_array("subset_random_sampler", "the array of indices", indices, count) < 0)
        return NULL;
    int64_t *chosen = ek_calloc((size_t)count + 1, sizeof *chosen);
    ek_index_sampler *self = chosen ? ek_index_sampler_new(&subset_type, 0, count) : NULL;
    if (!self) {
        free(chosen);
        return NULL;
    }
    self->sampler.generator = generator;
    self->owned = chosen;
    self->low = INT64_MAX;
    for (int64_t i = 0; i < count; i++) {
        chosen[i] = indices[i];
        if (indices[i] < self->low)
            self->low = indices[i];
        if (indices[i] >= self->high)
            self->high = indices[i] < INT64_MAX ? indices[i] + 1 : INT64_MAX;
    }
    return &self->sampler;
}

/* ---- by weights, drawn as by torch.multinomial from f64 weights with replacement ----
 *
 * The sampler owns the cumulative shares of the weights; the last one is 1. A uniform number is
 * looked up in them (inversion). */

/* Returns the first index whose share is not below `u`. */
static int64_t weighted_search(const double *shares, int64_t count, double u)
{
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (shares[middle] < u)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int weighted_fill(ek_index_sampler *self, int64_t *indices)
{
    ek_generator *generator = ek_generator_lock(self->sampler.generator);
    for (int64_t i = 0; i < self->length; i++)
        indices[i] = weighted_search(self->owned, self->high, ek_generator_f64(generator));
    ek_generator_unlock(generator);
    return 0;
}

static const ek_index_sampler_type weighted_type =
    EK_INDEX_SAMPLER_TYPE("weighted_random", ek_index_sampler, weighted_fill);

static int weighted_check(const double *weights, int64_t count, int64_t num_samples, double *sum)
{
    static const char function[] = "weighted_random_sampler";
    EK_TRY(ek_sampler_check_least(function, "the count", count, 1));
    EK_TRY(ek_check_pointer(function, "the array of weights", weights));
    EK_TRY(ek_sampler_check_least(function, "num_samples", num_samples, 1));
    *sum = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!(weights[i] >= 0) || !isfinite(weights[i]))
            return EK_FAIL(EK_E_INVALID, "%s: weight %lld is %g; weights are finite, 0 or more",
                           function, (long long)i, weights[i]);
        *sum += weights[i];
    }
    if (!(*sum > 0) || !isfinite(*sum))
        return EK_FAIL(EK_E_INVALID,
                       "%s: the weights add up to %g; a positive, finite sum is needed", function,
                       *sum);
    return 0;
}

ek_sampler *ek_weighted_random_sampler(const double *weights, int64_t count, int64_t num_samples,
                                       ek_generator *generator)
{
    double whole, sum = 0;
    if (weighted_check(weights, count, num_samples, &whole) < 0)
        return NULL;
    double *shares = ek_calloc((size_t)count, sizeof *shares);
    ek_index_sampler *self =
        shares ? ek_index_sampler_new(&weighted_type, count, num_samples) : NULL;
    if (!self) {
        free(shares);
        return NULL;
    }
    for (int64_t i = 0; i < count; i++) {
        sum += weights[i];
        shares[i] = sum / whole;
    }
    self->sampler.generator = generator;
    self->owned = shares;
    return &self->sampler;
}

/* ---- one rank's share of an order that all ranks agree on ---- */

typedef struct distributed_sampler {
    ek_index_sampler base; /* its samples lie in [0, count) */
    int64_t begin, step;   /* the share is order[begin], order[begin + step], ... */
    int64_t seed;
    bool shuffle;
    bool repeat_last; /* pads with the last sample instead of the first ones */
} distributed_sampler;

/* Makes the order of all samples, which the caller frees. *order NULL means 0, 1, 2, ... */
static int distributed_order(const distributed_sampler *self, int64_t **order)
{
    ek_generator generator;
    int64_t count = self->base.high;
    *order = NULL;
    if (!self->shuffle || count == 0)
        return 0;
    *order = ek_calloc((size_t)count, sizeof **order);
    if (!*order)
        return EK_E_NO_MEMORY;
    memset(&generator, 0, sizeof generator);
    ek_generator_seed(&generator, (uint64_t)self->seed + (uint64_t)self->base.sampler.epoch);
    return ek_randperm(count, *order, &generator);
}

static int distributed_fill(ek_index_sampler *base, int64_t *indices)
{
    const distributed_sampler *self = (distributed_sampler *)base;
    int64_t count = base->high, place = self->begin, *order;
    EK_TRY(distributed_order(self, &order));
    for (int64_t i = 0; i < base->length; i++, place += self->step) {
        int64_t within = place < count ? place : self->repeat_last ? count - 1 : place % count;
        indices[i] = order ? order[within] : within;
    }
    free(order);
    return 0;
}

static const ek_index_sampler_type distributed_type =
    EK_INDEX_SAMPLER_TYPE("distributed", distributed_sampler, distributed_fill);
static const ek_index_sampler_type inference_type =
    EK_INDEX_SAMPLER_TYPE("distributed_inference", distributed_sampler, distributed_fill);

/* Makes the sampler of a rank's share. Without padding and drop_last, the shares of the first
 * count % num_replicas ranks have one more sample. */
static distributed_sampler *distributed_new(const ek_index_sampler_type *type, const char *function,
                                            ek_distributed_sampler_options *options)
{
    int replicas = options->num_replicas, rank = options->rank;
    bool drop_last = options->drop_last;
    if (ek_sampler_check_least(function, "the count", options->count, 0) < 0 ||
        ek_sampler_find_rank(function, &replicas, &rank) < 0)
        return NULL;
    int64_t each = options->count / replicas, rest = options->count % replicas;
    bool uneven = !options->padding && !drop_last;
    int64_t length = each + (uneven ? rank < rest : !drop_last && rest != 0);
    distributed_sampler *self = ek_index_sampler_new(type, options->count, length);
    if (!self)
        return NULL;
    self->base.lacks = uneven && rest != 0 && rank >= rest;
    self->begin = rank;
    self->step = replicas;
    if (options->contiguous) {
        self->begin = length * rank + (uneven && rank >= rest ? rest : 0);
        self->step = 1;
    }
    self->base.rank = rank;
    self->base.ranks = replicas;
    self->base.strided = self->step == replicas;
    self->base.sampler.automatic_epochs = options->automatic_epochs;
    self->seed = options->seed;
    self->shuffle = options->shuffle;
    return self;
}

ek_sampler *ek_distributed_sampler_with(ek_distributed_sampler_options options)
{
    return (ek_sampler *)distributed_new(&distributed_type, "distributed_sampler", &options);
}

ek_sampler *ek_distributed_inference_sampler_with(ek_inference_sampler_options options)
{
    const char *function = "distributed_inference_sampler";
    ek_distributed_sampler_options block = {.count = options.count,
                                            .num_replicas = options.num_replicas,
                                            .rank = options.rank,
                                            .padding = options.padding,
                                            .contiguous = true};
    distributed_sampler *self = distributed_new(&inference_type, function, &block);
    if (self)
        self->repeat_last = true;
    return (ek_sampler *)self;
}
