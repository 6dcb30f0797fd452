/* batch_sampler.c: another sampler's samples in batches. */
#include "core/thread.h"
#include "data/samplers.h"

typedef struct batch_sampler {
    ek_sampler sampler;
    int64_t batch_size;
    bool drop_last;
} batch_sampler;

static int64_t batch_length(ek_sampler *sampler)
{
    const batch_sampler *self = (batch_sampler *)sampler;
    int64_t samples = ek_sampler_length(sampler->inner);

    if (samples < 0)
        return samples;
    return samples / self->batch_size + (!self->drop_last && samples % self->batch_size != 0);
}

static int batch_draw(ek_sampler *sampler, ek_pass *pass)
{
    const batch_sampler *self = (batch_sampler *)sampler;

    EK_TRY(ek_sampler_draw(sampler->inner, pass));
    int64_t left = pass->count;
    if (self->drop_last)
        left -= left % self->batch_size;
    for (pass->count = 0; left > 0;) {
        int64_t size = left < self->batch_size ? left : self->batch_size;
        pass->count += size;
        left -= size;
        EK_TRY(ek_pass_end_batch(pass));
    }
    return 0;
}

static const ek_sampler_type batch_type = {.name = "batch",
                                           .size = sizeof(batch_sampler),
                                           .length = batch_length,
                                           .draw = batch_draw,
                                           .makes_batches = true};

ek_sampler *ek_batch_sampler(ek_sampler *sampler, int64_t batch_size, bool drop_last)
{
    batch_sampler *self = NULL;

    if (ek_sampler_given(sampler, "batch_sampler") < 0)
        return NULL;
    if (batch_size < 1)
        EK_FAIL(EK_E_INVALID, "batch_sampler: batch_size is %lld; it has to be 1 at least",
                (long long)batch_size);
    else if (sampler->type->makes_batches)
        EK_FAIL(EK_E_INVALID, "batch_sampler: sampler \"%s\" makes batches already",
                sampler->type->name);
    else
        self = (batch_sampler *)ek_sampler_new(&batch_type);
    if (!self) {
        ek_sampler_free(sampler);
        return NULL;
    }
    self->sampler.inner = sampler;
    self->batch_size = batch_size;
    self->drop_last = drop_last;
    return &self->sampler;
}
