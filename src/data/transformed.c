/* transformed.c: data sets that apply transforms to tensors of each sample: making them, and their
 * samples. */
#include <stdlib.h>
#include <string.h>

#include "data/transformed.h"

static int64_t transformed_length(ek_dataset *dataset)
{
    return ek_dataset_length(((ek_transformed_set *)dataset)->of);
}

/* ---- samples ---- */

typedef struct sample_run {
    const ek_transformed_set *self;
    ek_value sample; /* some parts of it are transformed already */
} sample_run;

static int sample_run_part(void *user, int number)
{
    sample_run *run = user;
    const ek_part *p = &run->self->parts[number];
    int at;
    ek_tensor *tensor = ek_part_tensor(p, run->sample, &at);
    if (!tensor)
        return ek_error_pending();
    run->sample = ek_part_replaced(run->sample, at,
                                   ek_transform_apply(p->transforms, p->count, tensor, NULL));
    return run->sample.kind == EK_VALUE_ERROR ? ek_error_pending() : 0;
}

static ek_value transformed_get(ek_dataset *dataset, int64_t index)
{
    sample_run run = {.self = (const ek_transformed_set *)dataset};
    run.sample = ek_dataset_get(run.self->of, index);
    if (run.sample.kind == EK_VALUE_ERROR ||
        ek_parts_run_alike(run.self->part_count, sample_run_part, &run) < 0)
        return ek_value_error();
    return run.sample;
}

/* ---- samples without an index: transformed after they were read ---- */

static void *transformed_open(ek_dataset *dataset, int64_t epoch)
{
    return ek_iterate(ek_dataset_keep(((ek_transformed_set *)dataset)->of), epoch);
}

static int transformed_next(ek_dataset *dataset, void *cursor, ek_value *sample)
{
    (void)dataset;
    return ek_iterator_read(cursor, sample);
}

static int64_t transformed_skip(ek_dataset *dataset, void *cursor, int64_t count)
{
    (void)dataset;
    return ek_iterator_skip(cursor, count);
}

static void transformed_close(ek_dataset *dataset, void *cursor)
{
    (void)dataset;
    ek_iterator_free(cursor);
}

static ek_value transformed_convert(ek_dataset *dataset, ek_value sample)
{
    sample_run run = {.self = (const ek_transformed_set *)dataset};
    run.sample = ek_dataset_convert(run.self->of, sample);
    if (run.sample.kind == EK_VALUE_ERROR ||
        ek_parts_run_alike(run.self->part_count, sample_run_part, &run) < 0)
        return ek_value_error();
    return run.sample;
}

/* ---- making ---- */

static void transformed_free_transforms(ek_transform *const *transforms, int count)
{
    for (int i = 0; transforms && i < count; i++)
        ek_transform_free(transforms[i]);
}

static void transformed_destroy(ek_dataset *dataset)
{
    ek_transformed_set *self = (ek_transformed_set *)dataset;
    for (int i = 0; i < self->part_count; i++) {
        transformed_free_transforms(self->parts[i].transforms, self->parts[i].count);
        free(self->parts[i].transforms);
        free(self->parts[i].key);
    }
    free(self->parts);
    ek_dataset_free(self->of);
}

/* transformed_rows is for data sets with get_batch. In other sets, such as pictures in files, raw
 * samples may differ in shape, so they are transformed one by one and then collated. */
static const ek_dataset_type transformed_rows = {.name = "transformed",
                                                 .size = sizeof(ek_transformed_set),
                                                 .length = transformed_length,
                                                 .get = transformed_get,
                                                 .get_batch = ek_transformed_get_batch,
                                                 .destroy = transformed_destroy};
static const ek_dataset_type transformed_samples = {.name = "transformed",
                                                    .size = sizeof(ek_transformed_set),
                                                    .length = transformed_length,
                                                    .get = transformed_get,
                                                    .destroy = transformed_destroy};

static const ek_dataset_type transformed_iterable = {.name = "transformed",
                                                     .size = sizeof(ek_transformed_set),
                                                     .destroy = transformed_destroy,
                                                     .open = transformed_open,
                                                     .next = transformed_next,
                                                     .skip = transformed_skip,
                                                     .close = transformed_close,
                                                     .convert = transformed_convert};

static int transformed_check_fields(const ek_field_transforms *fields, int count)
{
    if (count < 1 || !fields)
        return EK_FAIL(EK_E_INVALID, "transformed: %d fields%s; at least one is transformed", count,
                       fields ? "" : " at NULL");
    for (int i = 0; i < count; i++) {
        EK_TRY(ek_transforms_check("transformed", fields[i].transforms, fields[i].count));
        if (!fields[i].key && fields[i].field < 0)
            return EK_FAIL(EK_E_INVALID, "transformed: field %d; fields count from 0",
                           fields[i].field);
    }
    return 0;
}

static int transformed_check_repeats(const ek_part *parts, int number)
{
    const ek_part *last = &parts[number];
    for (int i = 0; i < number; i++) {
        if (!ek_part_same(&parts[i], last))
            continue;
        return last->key
                   ? EK_FAIL(EK_E_INVALID, "transformed: \"%s\" is named twice", last->key)
                   : EK_FAIL(EK_E_INVALID, "transformed: field %d is named twice", last->field);
    }
    return 0;
}

static int part_fill(ek_part *p, const ek_field_transforms *fields)
{
    p->key = fields->key ? ek_strdup(fields->key) : NULL;
    p->field = fields->field;
    p->transforms = ek_calloc((size_t)fields->count, sizeof *p->transforms);
    return p->transforms && (p->key || !fields->key) ? 0 : EK_E_NO_MEMORY;
}

/* Allocates room for the transforms, but does not take them over yet. */
static int transformed_add_parts(ek_transformed_set *self, const ek_field_transforms *fields,
                                 int count)
{
    self->parts = ek_calloc((size_t)count, sizeof *self->parts);
    if (!self->parts)
        return EK_E_NO_MEMORY;
    while (self->part_count < count) {
        int number = self->part_count++;
        EK_TRY(part_fill(&self->parts[number], &fields[number]));
        EK_TRY(transformed_check_repeats(self->parts, number));
    }
    return 0;
}

/* Makes the struct, which does not own the data set and the transforms yet. */
static ek_transformed_set *transformed_new(const ek_dataset *of, const ek_field_transforms *fields,
                                           int count)
{
    if (ek_check_given("transformed", "the data set", of) < 0 ||
        transformed_check_fields(fields, count) < 0)
        return NULL;
    ek_transformed_set *self =
        (ek_transformed_set *)ek_dataset_new(of->type->next        ? &transformed_iterable
                                             : of->type->get_batch ? &transformed_rows
                                                                   : &transformed_samples);
    if (self && transformed_add_parts(self, fields, count) < 0) {
        ek_dataset_free(&self->dataset);
        return NULL;
    }
    return self;
}

ek_dataset *ek_transformed_alike_of(ek_dataset *dataset, const ek_field_transforms *fields,
                                    int count)
{
    ek_transformed_set *self = transformed_new(dataset, fields, count);
    if (!self) {
        for (int i = 0; fields && i < count; i++)
            transformed_free_transforms(fields[i].transforms, fields[i].count);
        ek_dataset_free(dataset);
        return NULL;
    }
    self->of = dataset;
    for (int i = 0; i < count; i++) {
        ek_part *p = &self->parts[i];
        for (; p->count < fields[i].count; p->count++)
            p->transforms[p->count] = fields[i].transforms[p->count];
    }
    return &self->dataset;
}

ek_dataset *ek_transformed_of(ek_dataset *dataset, int field, ek_transform *const *transforms,
                              int count)
{
    const ek_field_transforms one = {field, NULL, transforms, count};
    return ek_transformed_alike_of(dataset, &one, 1);
}

ek_dataset *ek_transformed_key_of(ek_dataset *dataset, const char *key,
                                  ek_transform *const *transforms, int count)
{
    const ek_field_transforms one = {0, key, transforms, count};
    if (key)
        return ek_transformed_alike_of(dataset, &one, 1);
    if (ek_check_given("transformed_key", "the data set", dataset) == 0)
        ek_check_pointer("transformed_key", "the key", key);
    transformed_free_transforms(transforms, count);
    ek_dataset_free(dataset);
    return NULL;
}
