/* transform_choice.c: transforms of other transforms: random_apply, random_choice, random_order. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/transform_operation.h"

typedef enum choice_kind { CHOICE_APPLY, CHOICE_ONE, CHOICE_ORDER } choice_kind;

/* After the options lie `count` sums of the first weights, then the transforms, which are owned. */
typedef struct choice {
    double p; /* random_apply */
    int64_t count;
    choice_kind kind;
} choice;

static double *choice_weights(const choice *o)
{
    return (double *)(uintptr_t)(o + 1);
}

static ek_transform **choice_of(const choice *o)
{
    return (ek_transform **)(void *)(choice_weights(o) + o->count);
}

static void choice_destroy(ek_transform *self)
{
    const choice *o = ek_options_of(self);
    ek_transforms_free(choice_of(o), (int)o->count);
}

/* Describes the result of transforms one after the other. */
static int choice_describe_chain(ek_transform *const *of, int64_t count, ek_array *array)
{
    ek_chain chain;
    EK_TRY(ek_chain_open(&chain, of, (int)count, array->dtype, &array->shape));
    *array = *ek_chain_result(&chain);
    ek_chain_close(&chain);
    return 0;
}

static int choice_run(ek_transform *const *of, int64_t count, const ek_array *in, ek_array *out,
                      ek_generator *generator)
{
    ek_chain chain;
    EK_TRY(ek_chain_open(&chain, of, (int)count, in->dtype, &in->shape));
    int rc = ek_chain_run(&chain, in->data, out->data, generator);
    ek_chain_close(&chain);
    return rc;
}

/* Fails unless dtype and shape of the result are the same whatever is drawn: those of the first
 * transform's result (random_choice), or those of the input. */
static int choice_describe(const ek_transform *self, ek_array *array)
{
    static const char *const when[] = {[CHOICE_APPLY] = "if the transforms are applied",
                                       [CHOICE_ONE] = "by another of the transforms",
                                       [CHOICE_ORDER] = "by one of the transforms"};
    const choice *o = ek_options_of(self);
    const int64_t at_once = o->kind == CHOICE_APPLY ? o->count : 1;
    ek_array expected = *array;
    char first[200], second[200];
    for (int64_t i = 0; i < o->count; i += at_once) {
        ek_array result = *array;
        EK_TRY(choice_describe_chain(choice_of(o) + i, at_once, &result));
        if (i == 0 && o->kind == CHOICE_ONE)
            expected = result;
        if (result.dtype != expected.dtype || !ek_shape_equal(&result.shape, &expected.shape))
            return EK_FAIL(EK_E_SHAPE,
                           "%s: %s becomes %s %s; what is left to chance cannot change it",
                           self->type->name, ek_array_text(&expected, first),
                           ek_array_text(&result, second), when[o->kind]);
    }
    *array = expected;
    return 0;
}

/* ---- random_apply ---- */

static int choice_draw_all(ek_application *a)
{
    return !((float)((const choice *)a->options)->p < ek_generator_f32(a->generator));
}

static int choice_apply_all(ek_application *a)
{
    const choice *o = a->options;
    return choice_run(choice_of(o), o->count, a->in, a->out, a->generator);
}

/* ---- random_choice ---- */

static int choice_draw_one(ek_application *a)
{
    const choice *o = a->options;
    a->number[0] = (double)ek_generator_f32(a->generator) * choice_weights(o)[o->count - 1];
    return 1;
}

static int choice_apply_one(ek_application *a)
{
    const choice *o = a->options;
    int64_t one = 0;
    while (one < o->count - 1 && !(a->number[0] < choice_weights(o)[one]))
        one++;
    return choice_run(choice_of(o) + one, 1, a->in, a->out, a->generator);
}

/* ---- random_order ---- */

static int choice_apply_order(ek_application *a)
{
    const choice *o = a->options;
    int64_t *order = ek_calloc((size_t)o->count, sizeof *order);
    ek_transform **shuffled = ek_calloc((size_t)o->count, sizeof *shuffled);
    int rc = order && shuffled ? ek_randperm(o->count, order, a->generator) : EK_E_NO_MEMORY;
    for (int64_t i = 0; rc == 0 && i < o->count; i++)
        shuffled[i] = choice_of(o)[order[i]];
    if (rc == 0)
        rc = choice_run(shuffled, o->count, a->in, a->out, a->generator);
    free(order);
    free(shuffled);
    return rc;
}

/* ---- making ---- */

static const ek_operation choices[] = {
    [CHOICE_APPLY] = {EK_OPERATION(random_apply, choice, EK_ANY_ARRAY, choice_describe,
                                   choice_draw_all, choice_apply_all),
                      .type.destroy = choice_destroy},
    [CHOICE_ONE] = {EK_OPERATION(random_choice, choice, EK_ANY_ARRAY, choice_describe,
                                 choice_draw_one, choice_apply_one),
                    .type.destroy = choice_destroy},
    [CHOICE_ORDER] = {EK_OPERATION(random_order, choice, EK_ANY_ARRAY, choice_describe, NULL,
                                   choice_apply_order),
                      .type.destroy = choice_destroy},
};

static int choice_sum_weights(double *sums, const double *weights, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++) {
        double weight = weights ? weights[i] : 1;
        if (!(weight >= 0) || isinf(weight))
            return EK_FAIL(EK_E_INVALID,
                           "random_choice: weight %d is %g; weights are finite and not negative", i,
                           weight);
        sums[i] = sum += weight;
    }
    return sum > 0 ? 0 : EK_FAIL(EK_E_INVALID, "random_choice: no weight is above 0");
}

static int choice_check(const char *name, ek_transform *const *transforms, int count, double p)
{
    EK_TRY(ek_transforms_check(name, transforms, count));
    if (count == 0)
        return EK_FAIL(EK_E_INVALID, "%s: 0 transforms; at least one is needed", name);
    return ek_check_chance(name, p);
}

/* Takes the transforms over, also if it fails. */
static ek_transform *choice_new(choice_kind kind, ek_transform *const *transforms, int count,
                                double p, const double *weights)
{
    const choice options = {p, count, kind};
    const size_t each = sizeof *weights + sizeof *transforms;
    ek_transform *self = NULL;
    if (choice_check(choices[kind].type.name, transforms, count, p) == 0)
        self = ek_operation_new(&choices[kind], &options, (size_t)count * each);
    if (self && choice_sum_weights(choice_weights(ek_options_of(self)), weights, count) == 0) {
        memcpy(choice_of(ek_options_of(self)), transforms, (size_t)count * sizeof *transforms);
        return self;
    }
    ek_transform_free(self);
    ek_transforms_free(transforms, count);
    return NULL;
}

ek_transform *ek_random_apply_of(double p, ek_transform *const *transforms, int count)
{
    return choice_new(CHOICE_APPLY, transforms, count, p, NULL);
}

ek_transform *ek_random_choice_of(ek_transform *const *transforms, int count, const double *weights)
{
    return choice_new(CHOICE_ONE, transforms, count, 0, weights);
}

ek_transform *ek_random_order_of(ek_transform *const *transforms, int count)
{
    return choice_new(CHOICE_ORDER, transforms, count, 0, NULL);
}
