/* distributed_sampler.c: one rank's share of an order that all ranks agree on. */
#include <stdlib.h>
#include <string.h>

#include "core/generator.h"
#include "core/keywords.h"
#include "core/thread.h"
#include "data/samplers.h"

typedef struct distributed_sampler {
    ek_ranged_sampler ranged; /* [0, count) */
    int num_replicas, rank;
    int64_t seed;
    bool shuffle, drop_last, padding, contiguous;
    bool repeat_last; /* padding is the last sample again, not those of the start */
} distributed_sampler;

/* If ranks get no padding, the first count % num_replicas have one more. */
static bool uneven(const distributed_sampler *self)
{
    return !self->padding && !self->drop_last;
}

static int64_t distributed_length(ek_sampler *sampler)
{
    const distributed_sampler *self = (distributed_sampler *)sampler;
    int64_t each = self->ranged.high / self->num_replicas;
    int64_t rest = self->ranged.high % self->num_replicas;

    if (self->drop_last)
        return each;
    return each + (self->padding ? rest != 0 : self->rank < rest);
}

/* Where this rank's share begins in the order, and how far apart its samples lie there. */
static int64_t find_share(const distributed_sampler *self, int64_t length, int64_t *step)
{
    int64_t rest = self->ranged.high % self->num_replicas;

    *step = self->contiguous ? 1 : self->num_replicas;
    if (!self->contiguous)
        return self->rank;
    if (uneven(self) && self->rank >= rest)
        return length * self->rank + rest;
    return length * self->rank;
}

/* The order, as long as the set; NULL in *order stands for 0, 1, 2, ... */
static int draw_order(const distributed_sampler *self, int64_t **order)
{
    uint64_t seed = (uint64_t)self->seed + (uint64_t)self->ranged.sampler.epoch;
    ek_generator generator;

    *order = NULL;
    if (!self->shuffle || self->ranged.high == 0)
        return 0;
    *order = ek_calloc((size_t)self->ranged.high, sizeof **order);
    if (!*order)
        return EK_E_NO_MEMORY;
    memset(&generator, 0, sizeof generator);
    ek_generator_seed(&generator, seed);
    return ek_randperm(self->ranged.high, *order, &generator);
}

static int distributed_draw(ek_sampler *sampler, ek_pass *pass)
{
    const distributed_sampler *self = (distributed_sampler *)sampler;
    int64_t count = self->ranged.high, length = distributed_length(sampler), step, *order;

    EK_TRY(ek_pass_reserve(pass, length));
    EK_TRY(draw_order(self, &order));
    int64_t place = find_share(self, length, &step);
    for (int64_t i = 0; i < length; i++, place += step) {
        int64_t within = place < count ? place : self->repeat_last ? count - 1 : place % count;
        pass->indices[i] = order ? order[within] : within;
    }
    pass->count = length;
    free(order);
    return 0;
}

const ek_sampler_type ek_distributed_type = {.name = "distributed",
                                             .size = sizeof(distributed_sampler),
                                             .length = distributed_length,
                                             .draw = distributed_draw};

const ek_sampler_type ek_distributed_inference_type = {.name = "distributed_inference",
                                                       .size = sizeof(distributed_sampler),
                                                       .length = distributed_length,
                                                       .draw = distributed_draw};

static distributed_sampler *make(const ek_sampler_type *type, const char *function, int64_t count,
                                 int num_replicas, int rank)
{
    if (count < 0) {
        EK_FAIL(EK_E_INVALID, "%s: the count is %lld; it must be 0 or more", function,
                (long long)count);
        return NULL;
    }
    if (ek_sampler_check_rank(num_replicas, rank, function) < 0)
        return NULL;
    distributed_sampler *self = (distributed_sampler *)ek_sampler_new(type);
    if (!self)
        return NULL;
    self->ranged.high = count;
    self->num_replicas = num_replicas;
    self->rank = rank;
    return self;
}

ek_sampler *ek_distributed_sampler_with(ek_distributed_sampler_options options)
{
    distributed_sampler *self =
        make(&ek_distributed_type, "distributed_sampler", options.count,
             (int)ek_integer_or(EK_GIVEN(&options, num_replicas, 1), 1), options.rank);

    if (!self)
        return NULL;
    self->ranged.sampler.automatic_epochs = options.automatic_epochs;
    self->seed = options.seed;
    self->shuffle = options.shuffle != EK_OFF;
    self->drop_last = options.drop_last;
    self->padding = options.padding != EK_OFF;
    self->contiguous = options.contiguous;
    return &self->ranged.sampler;
}

ek_sampler *ek_distributed_inference_sampler(int64_t count, int num_replicas, int rank,
                                             ek_switch padding)
{
    distributed_sampler *self = make(&ek_distributed_inference_type,
                                     "distributed_inference_sampler", count, num_replicas, rank);

    if (!self)
        return NULL;
    self->padding = padding != EK_OFF;
    self->contiguous = self->repeat_last = true;
    return &self->ranged.sampler;
}
