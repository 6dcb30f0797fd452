/* transform_choice.c: transforms of other transforms: random_apply, random_choice, random_order. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/generator.h"
#include "data/transform_picture.h"

typedef struct choice {
    ek_transform transform;
    ek_transform **of; /* owned, with the transforms */
    int count;
    double p;        /* random_apply */
    double *weights; /* random_choice, owned: the sums of the first ones */
} choice;

static void choice_destroy(ek_transform *transform)
{
    choice *self = (choice *)transform;
    for (int i = 0; i < self->count; i++)
        ek_transform_free(self->of[i]);
    free(self->of);
    free(self->weights);
}

/* Describes the result of transforms one after the other. */
static int choice_describe_all(ek_transform *const *of, int count, ek_array *array)
{
    ek_chain chain;
    EK_TRY(ek_chain_open(&chain, of, count, array->dtype, &array->shape));
    *array = *ek_chain_result(&chain);
    ek_chain_close(&chain);
    return 0;
}

static int choice_run(ek_transform *const *of, int count, const ek_array *in, ek_array *out,
                      ek_generator *generator)
{
    ek_chain chain;
    EK_TRY(ek_chain_open(&chain, of, count, in->dtype, &in->shape));
    int rc = ek_chain_run(&chain, in->data, out->data, generator);
    ek_chain_close(&chain);
    return rc;
}

static int choice_check_same(const choice *self, const ek_array *a, const ek_array *b,
                             const char *when)
{
    char first[200], second[200];
    if (a->dtype == b->dtype && ek_shape_equal(&a->shape, &b->shape))
        return 0;
    return EK_FAIL(EK_E_SHAPE, "%s: %s becomes %s %s; what is left to chance cannot change it",
                   self->transform.type->name, ek_array_text(a, first), ek_array_text(b, second),
                   when);
}

/* ---- random_apply ---- */

static int choice_describe_apply(const ek_transform *transform, ek_array *array)
{
    const choice *self = (const choice *)transform;
    ek_array result = *array;
    EK_TRY(choice_describe_all(self->of, self->count, &result));
    return choice_check_same(self, array, &result, "if the transforms are applied");
}

static int choice_apply_all(const ek_transform *transform, const ek_array *in, ek_array *out,
                            ek_generator *generator)
{
    const choice *self = (const choice *)transform;
    ek_generator *locked = ek_generator_lock(generator);
    bool not = (float)self->p < ek_generator_f32(locked);
    ek_generator_unlock(locked);
    if (!not )
        return choice_run(self->of, self->count, in, out, generator);
    ek_array_keep(in, out);
    return 0;
}

/* ---- random_choice ---- */

static int choice_describe(const ek_transform *transform, ek_array *array)
{
    const choice *self = (const choice *)transform;
    ek_array first = *array;
    EK_TRY(choice_describe_all(self->of, 1, &first));
    for (int i = 1; i < self->count; i++) {
        ek_array other = *array;
        EK_TRY(choice_describe_all(self->of + i, 1, &other));
        EK_TRY(choice_check_same(self, &first, &other, "by another of the transforms"));
    }
    *array = first;
    return 0;
}

static int choice_apply(const ek_transform *transform, const ek_array *in, ek_array *out,
                        ek_generator *generator)
{
    const choice *self = (const choice *)transform;
    ek_generator *locked = ek_generator_lock(generator);
    double drawn = (double)ek_generator_f32(locked) * self->weights[self->count - 1];
    ek_generator_unlock(locked);
    int number = 0;
    while (number < self->count - 1 && !(drawn < self->weights[number]))
        number++;
    return choice_run(self->of + number, 1, in, out, generator);
}

/* ---- random_order ---- */

static int choice_describe_order(const ek_transform *transform, ek_array *array)
{
    const choice *self = (const choice *)transform;
    for (int i = 0; i < self->count; i++) {
        ek_array result = *array;
        EK_TRY(choice_describe_all(self->of + i, 1, &result));
        EK_TRY(choice_check_same(self, array, &result, "by one of the transforms"));
    }
    return 0;
}

static int choice_apply_order(const ek_transform *transform, const ek_array *in, ek_array *out,
                              ek_generator *generator)
{
    const choice *self = (const choice *)transform;
    int64_t *order = ek_calloc((size_t)self->count, sizeof *order);
    ek_transform **shuffled = ek_calloc((size_t)self->count, sizeof *shuffled);
    int rc = order && shuffled ? ek_randperm(self->count, order, generator) : EK_E_NO_MEMORY;
    for (int i = 0; rc == 0 && i < self->count; i++)
        shuffled[i] = self->of[order[i]];
    if (rc == 0)
        rc = choice_run(shuffled, self->count, in, out, generator);
    free(order);
    free(shuffled);
    return rc;
}

/* ---- making ---- */

static const ek_transform_type random_apply_type = {.name = "random_apply",
                                                    .size = sizeof(choice),
                                                    .describe = choice_describe_apply,
                                                    .apply = choice_apply_all,
                                                    .destroy = choice_destroy};
static const ek_transform_type random_choice_type = {.name = "random_choice",
                                                     .size = sizeof(choice),
                                                     .describe = choice_describe,
                                                     .apply = choice_apply,
                                                     .destroy = choice_destroy};
static const ek_transform_type random_order_type = {.name = "random_order",
                                                    .size = sizeof(choice),
                                                    .describe = choice_describe_order,
                                                    .apply = choice_apply_order,
                                                    .destroy = choice_destroy};

static int choice_sum_weights(choice *self, const double *weights, int count)
{
    double sum = 0;
    self->weights = ek_calloc((size_t)count, sizeof *self->weights);
    if (!self->weights)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < count; i++) {
        double weight = weights ? weights[i] : 1;
        if (!(weight >= 0) || isinf(weight))
            return EK_FAIL(EK_E_INVALID,
                           "random_choice: weight %d is %g; weights are finite and not negative", i,
                           weight);
        self->weights[i] = sum += weight;
    }
    return sum > 0 ? 0 : EK_FAIL(EK_E_INVALID, "random_choice: no weight is above 0");
}

static int choice_fill(choice *self, ek_transform *const *transforms, int count,
                       const double *weights)
{
    const char *name = self->transform.type->name;
    EK_TRY(ek_transforms_check(name, transforms, count));
    if (count == 0)
        return EK_FAIL(EK_E_INVALID, "%s: 0 transforms; at least one is needed", name);
    EK_TRY(ek_check_chance(name, self->p));
    EK_TRY(choice_sum_weights(self, weights, count));
    self->of = ek_calloc((size_t)count, sizeof *self->of);
    return self->of ? 0 : EK_E_NO_MEMORY;
}

/* Takes the transforms over, also if it fails. */
static ek_transform *choice_new(const ek_transform_type *type, ek_transform *const *transforms,
                                int count, double p, const double *weights)
{
    choice *self = (choice *)ek_transform_new(type);
    if (self)
        self->p = p;
    if (self && choice_fill(self, transforms, count, weights) == 0) {
        memcpy(self->of, transforms, (size_t)count * sizeof *self->of);
        self->count = count;
        return &self->transform;
    }
    if (self)
        ek_transform_free(&self->transform);
    for (int i = 0; transforms && i < count; i++)
        ek_transform_free(transforms[i]);
    return NULL;
}

ek_transform *ek_random_apply_of(double p, ek_transform *const *transforms, int count)
{
    return choice_new(&random_apply_type, transforms, count, p, NULL);
}

ek_transform *ek_random_choice_of(ek_transform *const *transforms, int count, const double *weights)
{
    return choice_new(&random_choice_type, transforms, count, 0, weights);
}

ek_transform *ek_random_order_of(ek_transform *const *transforms, int count)
{
    return choice_new(&random_order_type, transforms, count, 0, NULL);
}
