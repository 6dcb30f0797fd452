/* random_samplers.c: torch.utils.data's samplers of one process: in order, permuted, drawn with
 * replacement, parts of a set. Numbers are drawn in PyTorch's order. */
#include <stdlib.h>
#include <string.h>

#include "core/generator.h"
#include "core/keywords.h"
#include "core/thread.h"
#include "data/samplers.h"

/* ---- in order ---- */

static int64_t sequential_length(ek_sampler *sampler)
{
    return ((ek_ranged_sampler *)sampler)->high;
}

static int sequential_draw(ek_sampler *sampler, ek_pass *pass)
{
    int64_t count = ((ek_ranged_sampler *)sampler)->high;

    EK_TRY(ek_pass_reserve(pass, count));
    for (int64_t i = 0; i < count; i++)
        pass->indices[i] = i;
    pass->count = count;
    return 0;
}

const ek_sampler_type ek_sequential_type = {.name = "sequential",
                                            .size = sizeof(ek_ranged_sampler),
                                            .length = sequential_length,
                                            .draw = sequential_draw};

ek_sampler *ek_sequential_sampler(int64_t count)
{
    if (count < 0) {
        EK_FAIL(EK_E_INVALID, "sequential_sampler: the count is %lld; it must be 0 or more",
                (long long)count);
        return NULL;
    }
    ek_ranged_sampler *self = (ek_ranged_sampler *)ek_sampler_new(&ek_sequential_type);
    if (!self)
        return NULL;
    self->high = count;
    return &self->sampler;
}

/* ---- random ---- */

typedef struct random_sampler {
    ek_ranged_sampler ranged; /* [0, count) */
    bool replacement;
    int64_t num_samples;
} random_sampler;

static int64_t random_length(ek_sampler *sampler)
{
    return ((random_sampler *)sampler)->num_samples;
}

static void draw_with_replacement(ek_generator *generator, int64_t below, int64_t *out,
                                  int64_t count)
{
    bool wide = (uint64_t)below >> 32 != 0;

    for (int64_t i = 0; i < count; i++) {
        uint64_t draw = wide ? ek_generator_u64(generator) : ek_generator_u32(generator);
        out[i] = (int64_t)(draw % (uint64_t)below);
    }
}

/* Whole permutations, then a part of one more. PyTorch draws that also if nothing of it is
 * needed, which is seen where somebody goes on with the generator. */
static int draw_permutations(ek_generator *generator, bool goes_on, int64_t count, int64_t *out,
                             int64_t wanted)
{
    int64_t whole = wanted / count, part = wanted % count;

    for (int64_t i = 0; i < whole; i++)
        EK_TRY(ek_randperm(count, out + i * count, generator));
    if (part == 0 && !goes_on)
        return 0;
    int64_t *last = ek_calloc((size_t)count, sizeof *last);
    if (!last)
        return EK_E_NO_MEMORY;
    int rc = ek_randperm(count, last, generator);
    if (part > 0)
        memcpy(out + whole * count, last, (size_t)part * sizeof *out);
    free(last);
    return rc;
}

static int random_draw(ek_sampler *sampler, ek_pass *pass)
{
    const random_sampler *self = (random_sampler *)sampler;
    ek_generator fresh, *generator = sampler->generator;
    int rc = 0;

    EK_TRY(ek_pass_reserve(pass, self->num_samples));
    if (!generator) {
        memset(&fresh, 0, sizeof fresh);
        ek_generator_seed(&fresh, ek_random_u64(NULL) & INT64_MAX);
        generator = &fresh;
    }
    if (self->replacement)
        draw_with_replacement(generator, self->ranged.high, pass->indices, self->num_samples);
    else
        rc = draw_permutations(generator, generator != &fresh, self->ranged.high, pass->indices,
                               self->num_samples);
    pass->count = self->num_samples;
    return rc;
}

const ek_sampler_type ek_random_type = {.name = "random",
                                        .size = sizeof(random_sampler),
                                        .length = random_length,
                                        .draw = random_draw};

ek_sampler *ek_random_sampler_with(ek_random_sampler_options options)
{
    int64_t wanted = ek_integer_or(EK_GIVEN(&options, num_samples, 2), options.count);

    if (options.count < 1) {
        EK_FAIL(EK_E_INVALID, "random_sampler: the count is %lld; it must be 1 or more",
                (long long)options.count);
        return NULL;
    }
    if (wanted < 1) {
        EK_FAIL(EK_E_INVALID, "random_sampler: num_samples is %lld; it must be 1 or more",
                (long long)wanted);
        return NULL;
    }
    random_sampler *self = (random_sampler *)ek_sampler_new(&ek_random_type);
    if (!self)
        return NULL;
    self->ranged.high = options.count;
    self->ranged.sampler.generator = options.generator;
    self->replacement = options.replacement;
    self->num_samples = wanted;
    return &self->ranged.sampler;
}

/* ---- a subset ---- */

typedef struct subset_sampler {
    ek_ranged_sampler ranged;
    int64_t *indices, count;
} subset_sampler;

static int64_t subset_length(ek_sampler *sampler)
{
    return ((subset_sampler *)sampler)->count;
}

static int subset_draw(ek_sampler *sampler, ek_pass *pass)
{
    const subset_sampler *self = (subset_sampler *)sampler;

    EK_TRY(ek_pass_reserve(pass, self->count));
    EK_TRY(ek_randperm(self->count, pass->indices, sampler->generator));
    for (int64_t i = 0; i < self->count; i++)
        pass->indices[i] = self->indices[pass->indices[i]];
    pass->count = self->count;
    return 0;
}

static void subset_destroy(ek_sampler *sampler)
{
    free(((subset_sampler *)sampler)->indices);
}

const ek_sampler_type ek_subset_random_type = {.name = "subset_random",
                                               .size = sizeof(subset_sampler),
                                               .length = subset_length,
                                               .draw = subset_draw,
                                               .destroy = subset_destroy};

ek_sampler *ek_subset_random_sampler(const int64_t *indices, int64_t count, ek_generator *generator)
{
    if (count < 0 || (count > 0 && !indices)) {
        EK_FAIL(EK_E_INVALID, "subset_random_sampler: %s",
                count < 0 ? "the count is negative" : "the indices are NULL");
        return NULL;
    }
    subset_sampler *self = (subset_sampler *)ek_sampler_new(&ek_subset_random_type);
    if (!self)
        return NULL;
    self->ranged.sampler.generator = generator;
    self->indices = ek_calloc((size_t)count + 1, sizeof *indices);
    if (!self->indices) {
        ek_sampler_free(&self->ranged.sampler);
        return NULL;
    }
    self->count = count;
    self->ranged.low = INT64_MAX;
    for (int64_t i = 0; i < count; i++) {
        self->indices[i] = indices[i];
        if (indices[i] < self->ranged.low)
            self->ranged.low = indices[i];
        if (indices[i] >= self->ranged.high)
            self->ranged.high = indices[i] < INT64_MAX ? indices[i] + 1 : INT64_MAX;
    }
    return &self->ranged.sampler;
}
