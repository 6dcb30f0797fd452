/* user_samplers.h: two samplers as users write them, one of them of batches. */
#ifndef EK_TESTS_USER_SAMPLERS_H
#define EK_TESTS_USER_SAMPLERS_H

#include "unit.h"

/* Counts down, `step` by `step`: in batches of pairs where its type says so. */
typedef struct backwards {
    ek_sampler sampler;
    int64_t count;
    int fault;
    int *freed;
} backwards;

enum { NO_FAULT, FAILS, FAILS_SILENTLY, EMPTY_BATCH, OPEN_BATCH };

static int64_t backwards_length(ek_sampler *sampler)
{
    return ((backwards *)sampler)->count;
}

static int backwards_draw(ek_sampler *sampler, ek_pass *pass)
{
    const backwards *self = (backwards *)sampler;
    if (self->fault == FAILS)
        return ek_error(EK_E_USER, "no samples today");
    for (int64_t i = self->count; i-- > 0;)
        if (ek_pass_add(pass, i) < 0)
            return ek_error_status();
    return self->fault == FAILS_SILENTLY ? EK_E_USER : 0;
}

static void backwards_destroy(ek_sampler *sampler)
{
    if (((backwards *)sampler)->freed)
        ++*((backwards *)sampler)->freed;
}

static const ek_sampler_type backwards_type = {.name = "backwards",
                                               .size = sizeof(backwards),
                                               .length = backwards_length,
                                               .draw = backwards_draw,
                                               .destroy = backwards_destroy};

static int64_t pairs_length(ek_sampler *sampler)
{
    return (((backwards *)sampler)->count + 1) / 2;
}

static int pairs_draw(ek_sampler *sampler, ek_pass *pass)
{
    const backwards *self = (backwards *)sampler;
    if (self->fault == EMPTY_BATCH && ek_pass_end_batch(pass) < 0)
        return ek_error_status();
    for (int64_t i = self->count; i-- > 0;)
        if (ek_pass_add(pass, i) < 0 ||
            (i % 2 == 0 && (i > 0 || self->fault != OPEN_BATCH) && ek_pass_end_batch(pass) < 0))
            return ek_error_status();
    return 0;
}

static const ek_sampler_type pairs_type = {.name = "pairs",
                                           .size = sizeof(backwards),
                                           .length = pairs_length,
                                           .draw = pairs_draw,
                                           .makes_batches = true};

static inline ek_sampler *make_user(const ek_sampler_type *type, int64_t count, int fault)
{
    backwards *self = (backwards *)ek_sampler_new(type);
    assert_made(self);
    self->count = count;
    self->fault = fault;
    return &self->sampler;
}

#endif
