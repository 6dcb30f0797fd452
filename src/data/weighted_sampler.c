/* weighted_sampler.c: samples by weights, drawn as torch.multinomial draws from f64 weights with
 * replacement: a uniform number is searched in the sums of weights (inversion). */
#include <math.h>
#include <stdlib.h>

#include "core/generator.h"
#include "core/thread.h"
#include "data/samplers.h"

typedef struct weighted_sampler {
    ek_ranged_sampler ranged; /* [0, count) */
    double *shares;           /* of weights up to and with each in all; the last is 1 */
    int64_t num_samples;
} weighted_sampler;

static int64_t weighted_length(ek_sampler *sampler)
{
    return ((weighted_sampler *)sampler)->num_samples;
}

/* The first whose share is not below `u`. */
static int64_t search(const double *shares, int64_t count, double u)
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

static int weighted_draw(ek_sampler *sampler, ek_pass *pass)
{
    const weighted_sampler *self = (weighted_sampler *)sampler;
    int64_t count = self->ranged.high;

    EK_TRY(ek_pass_reserve(pass, self->num_samples));
    ek_generator *generator = ek_generator_lock(sampler->generator);
    for (int64_t i = 0; i < self->num_samples; i++)
        pass->indices[i] = search(self->shares, count, ek_generator_f64(generator));
    ek_generator_unlock(generator);
    pass->count = self->num_samples;
    return 0;
}

static void weighted_destroy(ek_sampler *sampler)
{
    free(((weighted_sampler *)sampler)->shares);
}

const ek_sampler_type ek_weighted_random_type = {.name = "weighted_random",
                                                 .size = sizeof(weighted_sampler),
                                                 .length = weighted_length,
                                                 .draw = weighted_draw,
                                                 .destroy = weighted_destroy};

static int check_weights(const double *weights, int64_t count, double *sum)
{
    *sum = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!(weights[i] >= 0) || !isfinite(weights[i]))
            return EK_FAIL(EK_E_INVALID,
                           "weighted_random_sampler: weight %lld is %g; weights are finite, 0 or "
                           "more",
                           (long long)i, weights[i]);
        *sum += weights[i];
    }
    if (!(*sum > 0) || !isfinite(*sum))
        return EK_FAIL(EK_E_INVALID,
                       "weighted_random_sampler: the weights add up to %g; a positive, finite sum "
                       "is needed",
                       *sum);
    return 0;
}

static int fill(weighted_sampler *self, const double *weights, int64_t count, double whole)
{
    double sum = 0;

    self->shares = ek_calloc((size_t)count, sizeof *weights);
    if (!self->shares)
        return EK_E_NO_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        sum += weights[i];
        self->shares[i] = sum / whole;
    }
    return 0;
}

ek_sampler *ek_weighted_random_sampler(const double *weights, int64_t count, int64_t num_samples,
                                       ek_generator *generator)
{
    double sum;

    if (count < 1 || !weights || num_samples < 1) {
        EK_FAIL(EK_E_INVALID,
                "weighted_random_sampler: %s; there are weights of 1 sample or more, "
                "of which 1 or more are drawn",
                count < 1  ? "the count is not positive"
                : !weights ? "the weights are NULL"
                           : "num_samples is not positive");
        return NULL;
    }
    if (check_weights(weights, count, &sum) < 0)
        return NULL;
    weighted_sampler *self = (weighted_sampler *)ek_sampler_new(&ek_weighted_random_type);
    if (!self)
        return NULL;
    self->ranged.high = count;
    self->ranged.sampler.generator = generator;
    self->num_samples = num_samples;
    if (fill(self, weights, count, sum) < 0) {
        ek_sampler_free(&self->ranged.sampler);
        return NULL;
    }
    return &self->ranged.sampler;
}
