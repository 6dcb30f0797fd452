/* transformed.c: data sets that apply transforms to tensors of each sample: how these elements are
 * found and replaced, how several of them draw alike, samples, and making the sets. */
#include <stdlib.h>
#include <string.h>

#include "core/generator.h"
#include "core/value.h"
#include "data/transformed.h"

/* ---- elements ---- */

enum { PART_ITSELF = -1 }; /* the index of a value that is no list */

bool ek_part_same(const ek_part *a, const ek_part *b)
{
    return a->key && b->key ? strcmp(a->key, b->key) == 0
                            : !a->key && !b->key && a->field == b->field;
}

static bool part_is_leaf(ek_value value)
{
    return value.kind == EK_VALUE_TENSOR || value.kind == EK_VALUE_INT ||
           value.kind == EK_VALUE_FLOAT;
}

static int part_find_key(const ek_part *self, ek_value sample, int *at)
{
    if (sample.kind != EK_VALUE_DICT)
        return EK_FAIL(EK_E_INVALID,
                       "\"%s\" is transformed, and the sample is %s; a dictionary is "
                       "needed",
                       self->key, ek_value_kind_name(sample));
    for (*at = 0; *at < ek_value_length(sample); ++*at)
        if (strcmp(ek_value_key(sample, *at), self->key) == 0)
            return 0;
    return EK_FAIL(EK_E_INVALID, "\"%s\" is transformed, and the sample has no such element",
                   self->key);
}

/* Finds the element's index in a sample or batch. EK_E_INVALID if there is no such element. */
static int part_find(const ek_part *self, ek_value sample, int *at)
{
    if (self->key)
        return part_find_key(self, sample, at);
    *at = self->field;
    if (sample.kind == EK_VALUE_LIST && self->field < ek_value_length(sample))
        return 0;
    if (sample.kind == EK_VALUE_LIST)
        return EK_FAIL(EK_E_INVALID, "field %d is transformed, and the sample is a list of %d",
                       self->field, ek_value_length(sample));
    *at = PART_ITSELF;
    if (part_is_leaf(sample) && self->field == 0)
        return 0;
    return EK_FAIL(EK_E_INVALID, "field %d is transformed, and the sample is %s%s", self->field,
                   ek_value_kind_name(sample),
                   sample.kind == EK_VALUE_DICT ? "; ek_transformed_key transforms its elements"
                                                : "");
}

ek_tensor *ek_part_tensor(const ek_part *self, ek_value sample, int *at)
{
    if (part_find(self, sample, at) < 0)
        return NULL;
    ek_value element = *at == PART_ITSELF ? sample : ek_value_at(sample, *at);
    if (element.kind == EK_VALUE_INT)
        return ek_from_data(&element.as.integer, ek_scalar_shape(), EK_I64);
    if (element.kind == EK_VALUE_FLOAT)
        return ek_from_data(&element.as.floating, ek_scalar_shape(), EK_F64);
    if (element.kind == EK_VALUE_TENSOR)
        return element.as.tensor;
    return EK_FAIL_NULL(EK_E_INVALID, "what is transformed is %s; tensors and numbers are",
                        ek_value_kind_name(element));
}

ek_value ek_part_replaced(ek_value sample, int at, ek_tensor *tensor)
{
    if (!tensor)
        return ek_value_error();
    if (at == PART_ITSELF)
        return ek_value_of_tensor(tensor);
    ek_value *items = ek_calloc((size_t)ek_value_length(sample), sizeof *items);
    if (!items)
        return ek_value_error();
    for (int i = 0; i < ek_value_length(sample); i++)
        items[i] = i == at ? ek_value_of_tensor(tensor) : ek_value_at(sample, i);
    ek_value result = ek_value_like(sample, items);
    free(items);
    return result;
}

/* ---- random numbers ---- */

int ek_parts_run_alike(int count, int (*run)(void *user, int number), void *user)
{
    if (count == 1)
        return run(user, 0);
    ek_generator begin, end, meanwhile;
    ek_generator_borrow(&begin, &meanwhile);
    int rc = 0;
    for (int i = 0; i < count && rc >= 0; i++) {
        ek_generator drawn = begin, *before = ek_generator_stand_in(&drawn);
        rc = run(user, i);
        ek_generator_stand_in(before);
        if (i == 0)
            end = drawn;
    }
    ek_generator_give_back(&end, &meanwhile);
    return rc;
}

/* ---- samples ---- */

static int64_t transformed_length(ek_dataset *dataset)
{
    return ek_dataset_length(((ek_transformed_set *)dataset)->of);
}

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

static ek_value transformed_sample(ek_dataset *dataset, ek_value sample)
{
    sample_run run = {(const ek_transformed_set *)dataset, sample};
    if (sample.kind == EK_VALUE_ERROR ||
        ek_parts_run_alike(run.self->part_count, sample_run_part, &run) < 0)
        return ek_value_error();
    return run.sample;
}

static ek_value transformed_get(ek_dataset *dataset, int64_t index)
{
    ek_dataset *of = ((ek_transformed_set *)dataset)->of;
    return transformed_sample(dataset, ek_dataset_get(of, index));
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
    ek_dataset *of = ((ek_transformed_set *)dataset)->of;
    return transformed_sample(dataset, ek_dataset_convert(of, sample));
}

/* ---- making ---- */

static void transformed_destroy(ek_dataset *dataset)
{
    ek_transformed_set *self = (ek_transformed_set *)dataset;
    for (int i = 0; i < self->part_count; i++) {
        ek_transforms_free(self->parts[i].transforms, self->parts[i].count);
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
    if (ek_check_handle("transformed", "the data set", of) < 0 ||
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
            ek_transforms_free(fields[i].transforms, fields[i].count);
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
    if (ek_check_handle("transformed_key", "the data set", dataset) == 0)
        ek_check_pointer("transformed_key", "the key", key);
    ek_transforms_free(transforms, count);
    ek_dataset_free(dataset);
    return NULL;
}
