/* transformed.c: data sets that apply transforms to tensors of each sample.
 *
 * A batch is first made raw, on cpu. Each of its rows runs through the whole chain into the final
 * batch, which lies on the device already. A raw batch on the device would count as memory in use
 * there, and stay cached. The price is a second copy of tensors that are not transformed, most
 * often labels. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/generator.h"
#include "core/value.h"
#include "data/dataset.h"
#include "data/transform_chain.h"

/* An element of samples and batches, which have the same nesting, and its transforms. */
typedef struct part {
    int field;                 /* index in a list; 0 also stands for a value that is no list */
    char *key;                 /* owned; not NULL: the key in a dictionary */
    ek_transform **transforms; /* owned */
    int count;
} part;

typedef struct transformed {
    ek_dataset dataset;
    ek_dataset *of;
    part *parts;
    int part_count;
} transformed;

static int64_t transformed_length(ek_dataset *dataset)
{
    return ek_dataset_length(((transformed *)dataset)->of);
}

/* ---- elements ---- */

enum { ITSELF = -1 };

static bool part_same(const part *a, const part *b)
{
    return a->key && b->key ? strcmp(a->key, b->key) == 0
                            : !a->key && !b->key && a->field == b->field;
}

static bool part_is_leaf(ek_value value)
{
    return value.kind == EK_VALUE_TENSOR || value.kind == EK_VALUE_INT ||
           value.kind == EK_VALUE_FLOAT;
}

static int part_find_key(const part *self, ek_value sample, int *at)
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

/* Finds the element's index in a sample or batch. EK_E_INVALID if there is none. */
static int part_find(const part *self, ek_value sample, int *at)
{
    if (self->key)
        return part_find_key(self, sample, at);
    *at = self->field;
    if (sample.kind == EK_VALUE_LIST && self->field < ek_value_length(sample))
        return 0;
    if (sample.kind == EK_VALUE_LIST)
        return EK_FAIL(EK_E_INVALID, "field %d is transformed, and the sample is a list of %d",
                       self->field, ek_value_length(sample));
    *at = ITSELF;
    if (part_is_leaf(sample) && self->field == 0)
        return 0;
    return EK_FAIL(EK_E_INVALID, "field %d is transformed, and the sample is %s%s", self->field,
                   ek_value_kind_name(sample),
                   sample.kind == EK_VALUE_DICT ? "; ek_transformed_key transforms its elements"
                                                : "");
}

/* Returns the element's tensor and its index *at; a number becomes a zero-dimensional one. */
static ek_tensor *part_tensor(const part *self, ek_value sample, int *at)
{
    if (part_find(self, sample, at) < 0)
        return NULL;
    ek_value element = *at == ITSELF ? sample : ek_value_at(sample, *at);
    if (element.kind == EK_VALUE_INT)
        return ek_from_data(&element.as.integer, ek_scalar_shape(), EK_I64);
    if (element.kind == EK_VALUE_FLOAT)
        return ek_from_data(&element.as.floating, ek_scalar_shape(), EK_F64);
    if (element.kind == EK_VALUE_TENSOR)
        return element.as.tensor;
    return EK_FAIL_NULL(EK_E_INVALID, "what is transformed is %s; tensors and numbers are",
                        ek_value_kind_name(element));
}

/* Returns the sample with `tensor` as its element `at`; an error if `tensor` is NULL. */
static ek_value part_replaced(ek_value sample, int at, ek_tensor *tensor)
{
    if (!tensor)
        return ek_value_error();
    if (at == ITSELF)
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

/* Runs parts 0 to count - 1 of one sample until one fails. Each of them draws the same numbers.
 * Afterwards the generator stands where the first part left it. No lock of the generator is held
 * meanwhile, because transforms may be the user's functions. */
static int parts_run_alike(int count, int (*run)(void *user, int number), void *user)
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

typedef struct sample_run {
    const transformed *self;
    ek_value sample; /* some parts of it are transformed already */
} sample_run;

static int sample_run_part(void *user, int number)
{
    sample_run *run = user;
    const part *p = &run->self->parts[number];
    int at;
    ek_tensor *tensor = part_tensor(p, run->sample, &at);
    if (!tensor)
        return ek_error_pending();
    run->sample =
        part_replaced(run->sample, at, ek_transform_apply(p->transforms, p->count, tensor, NULL));
    return run->sample.kind == EK_VALUE_ERROR ? ek_error_pending() : 0;
}

static ek_value transformed_get(ek_dataset *dataset, int64_t index)
{
    sample_run run = {.self = (const transformed *)dataset};
    run.sample = ek_dataset_get(run.self->of, index);
    if (run.sample.kind == EK_VALUE_ERROR ||
        parts_run_alike(run.self->part_count, sample_run_part, &run) < 0)
        return ek_value_error();
    return run.sample;
}

/* ---- samples without an index: transformed after they were read ---- */

static void *transformed_open(ek_dataset *dataset, int64_t epoch)
{
    return ek_iterate(ek_dataset_keep(((transformed *)dataset)->of), epoch);
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
    sample_run run = {.self = (const transformed *)dataset};
    run.sample = ek_dataset_convert(run.self->of, sample);
    if (run.sample.kind == EK_VALUE_ERROR ||
        parts_run_alike(run.self->part_count, sample_run_part, &run) < 0)
        return ek_value_error();
    return run.sample;
}

/* ---- batches ---- */

static int rows_check(const ek_tensor *rows, int64_t count)
{
    char text[200];
    if (rows->ndim >= 1 && rows->shape[0] == count)
        return 0;
    return EK_FAIL(EK_E_SHAPE, "a batch of %lld samples is %s; as many rows are needed",
                   (long long)count, ek_tensor_text(rows, text));
}

static ek_tensor *rows_batch(ek_dev *dev, const ek_array *row, int64_t count)
{
    char text[200];
    if (row->shape.ndim == EK_MAX_DIMS)
        return EK_FAIL_NULL(EK_E_SHAPE,
                            "samples become %s; a batch of them has more than %d dimensions",
                            ek_array_text(row, text), EK_MAX_DIMS);
    ek_shape shape = {.ndim = row->shape.ndim + 1, .dims = {count}};
    memcpy(shape.dims + 1, row->shape.dims, (size_t)row->shape.ndim * sizeof *shape.dims);
    return ek_tensor_new(dev, row->dtype, &shape, EK_CONTIGUOUS);
}

/* One part of a batch: its rows in the raw batch, and the final batch that they go to. */
typedef struct rows {
    ek_chain chain;
    bool open;
    int at; /* the element's index in the batch */
    const char *in;
    size_t in_nbytes, out_nbytes; /* bytes of one row */
    ek_tensor *batch;
} rows;

typedef struct rows_run {
    rows *parts;
    int64_t row;
} rows_run;

static int rows_run_one(void *user, int number)
{
    const rows_run *run = user;
    const rows *r = &run->parts[number];
    char *out = ek_tensor_address(r->batch);
    return ek_chain_run(&r->chain, r->in + (size_t)run->row * r->in_nbytes,
                        out + (size_t)run->row * r->out_nbytes, NULL);
}

/* Goes row by row, so that random numbers are drawn in the same order as for single samples. */
static int rows_run_all(rows *parts, int part_count, const int64_t *samples, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        rows_run run = {parts, i};
        int before = ek_error_status();
        int rc = parts_run_alike(part_count, rows_run_one, &run);
        if (rc < 0)
            ek_error_prefix(before, "sample %lld", (long long)samples[i]);
        EK_TRY(rc);
    }
    return 0;
}

/* Describes the chain for the rows of `from`, and allocates the part's batch on `dev`. */
static int rows_open(rows *r, const part *p, ek_tensor *from, int64_t count, ek_dev *dev)
{
    EK_TRY(rows_check(from, count));
    from = ek_row_major(from, ek_tensor_dev(from));
    if (!from)
        return ek_error_pending();
    ek_shape row = {.ndim = from->ndim - 1};
    memcpy(row.dims, from->shape + 1, (size_t)row.ndim * sizeof *row.dims);
    EK_TRY(ek_chain_open(&r->chain, p->transforms, p->count, from->dtype, &row));
    r->open = true;
    const ek_array *result = ek_chain_result(&r->chain);
    r->in = ek_tensor_address(from);
    r->in_nbytes = (size_t)ek_shape_count(&row) * ek_dtype_size(from->dtype);
    r->out_nbytes = (size_t)ek_shape_count(&result->shape) * ek_dtype_size(result->dtype);
    r->batch = rows_batch(dev, result, count);
    return r->batch ? 0 : ek_error_pending();
}

/* The transformed sets around the one whose batch is made, as a list from inside out. */
typedef struct around {
    const transformed *set;
    const struct around *next;
} around;

static bool part_transformed_again(const part *p, const around *outer)
{
    for (; outer; outer = outer->next)
        for (int i = 0; i < outer->set->part_count; i++)
            if (part_same(p, &outer->set->parts[i]))
                return true;
    return false;
}

static const ek_dataset_type transformed_rows;

static int transformed_open_parts(const transformed *self, const around *outer, ek_value batch,
                                  int64_t count, ek_dev *dev, rows *parts)
{
    for (int i = 0; i < self->part_count; i++) {
        const part *p = &self->parts[i];
        ek_tensor *from = part_tensor(p, batch, &parts[i].at);
        ek_dev *to = part_transformed_again(p, outer) ? ek_dev_get(ek_cpu()) : dev;
        if (!from || !to)
            return ek_error_pending();
        EK_TRY(rows_open(&parts[i], p, from, count, to));
    }
    return 0;
}

/* Returns the batch with its parts transformed. */
static ek_value transformed_batch(const transformed *self, const around *outer, ek_value batch,
                                  const int64_t *samples, int64_t count, ek_dev *dev)
{
    rows *parts = ek_calloc((size_t)self->part_count, sizeof *parts);
    if (!parts)
        return ek_value_error();
    int rc = transformed_open_parts(self, outer, batch, count, dev, parts);
    if (rc >= 0)
        rc = rows_run_all(parts, self->part_count, samples, count);
    for (int i = 0; i < self->part_count; i++) {
        if (rc >= 0)
            batch = part_replaced(batch, parts[i].at, parts[i].batch);
        if (batch.kind == EK_VALUE_ERROR)
            rc = ek_error_pending();
        if (parts[i].open)
            ek_chain_close(&parts[i].chain);
    }
    free(parts);
    return rc < 0 ? ek_value_error() : batch;
}

/* Makes a batch in which parts that no outer set transforms again are written on `dev`; all else
 * lies on cpu. *raw becomes true once the raw batch could be made. */
static ek_value transformed_make_batch(transformed *self, const around *outer,
                                       const int64_t *samples, int64_t count, ek_dev *dev,
                                       bool *raw)
{
    const around here = {self, outer};
    ek_value batch;
    if (self->of->type == &transformed_rows) {
        batch = transformed_make_batch((transformed *)self->of, &here, samples, count, dev, raw);
    } else {
        batch = ek_dataset_get_batch(self->of, samples, count, ek_cpu());
        *raw = batch.kind != EK_VALUE_ERROR;
    }
    if (batch.kind == EK_VALUE_ERROR)
        return batch;
    return transformed_batch(self, outer, batch, samples, count, dev);
}

/* True if raw samples may differ in shape or dtype; transforms may make them alike. */
static bool transformed_differ(int status)
{
    return status == EK_E_SHAPE || status == EK_E_DTYPE;
}

static ek_value transformed_get_batch(ek_dataset *dataset, const int64_t *samples, int64_t count,
                                      ek_device device)
{
    ek_dev *dev = ek_batch_dev(device, "get_batch");
    int before = ek_error_status();
    bool raw = false;
    if (!dev)
        return ek_value_error();
    ek_value batch =
        transformed_make_batch((transformed *)dataset, NULL, samples, count, dev, &raw);
    if (batch.kind == EK_VALUE_ERROR && !raw && !before && transformed_differ(ek_error_status())) {
        ek_error_clear();
        return ek_dataset_batch_by_samples(dataset, samples, count, device);
    }
    if (batch.kind == EK_VALUE_ERROR || device.kind == EK_CPU)
        return batch;
    return ek_batch_map(batch, ek_row_major, dev);
}

/* ---- making ---- */

static void transformed_free_transforms(ek_transform *const *transforms, int count)
{
    for (int i = 0; transforms && i < count; i++)
        ek_transform_free(transforms[i]);
}

static void transformed_destroy(ek_dataset *dataset)
{
    transformed *self = (transformed *)dataset;
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
                                                 .size = sizeof(transformed),
                                                 .length = transformed_length,
                                                 .get = transformed_get,
                                                 .get_batch = transformed_get_batch,
                                                 .destroy = transformed_destroy};
static const ek_dataset_type transformed_samples = {.name = "transformed",
                                                    .size = sizeof(transformed),
                                                    .length = transformed_length,
                                                    .get = transformed_get,
                                                    .destroy = transformed_destroy};

static const ek_dataset_type transformed_iterable = {.name = "transformed",
                                                     .size = sizeof(transformed),
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

static int transformed_check_repeats(const part *parts, int number)
{
    const part *last = &parts[number];
    for (int i = 0; i < number; i++) {
        if (!part_same(&parts[i], last))
            continue;
        return last->key
                   ? EK_FAIL(EK_E_INVALID, "transformed: \"%s\" is named twice", last->key)
                   : EK_FAIL(EK_E_INVALID, "transformed: field %d is named twice", last->field);
    }
    return 0;
}

static int part_fill(part *p, const ek_field_transforms *fields)
{
    p->key = fields->key ? ek_strdup(fields->key) : NULL;
    p->field = fields->field;
    p->transforms = ek_calloc((size_t)fields->count, sizeof *p->transforms);
    return p->transforms && (p->key || !fields->key) ? 0 : EK_E_NO_MEMORY;
}

/* Allocates room for the transforms, but does not take them over yet. */
static int transformed_add_parts(transformed *self, const ek_field_transforms *fields, int count)
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
static transformed *transformed_new(const ek_dataset *of, const ek_field_transforms *fields,
                                    int count)
{
    if (ek_check_given("transformed", "the data set", of) < 0 ||
        transformed_check_fields(fields, count) < 0)
        return NULL;
    transformed *self = (transformed *)ek_dataset_new(of->type->next        ? &transformed_iterable
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
    transformed *self = transformed_new(dataset, fields, count);
    if (!self) {
        for (int i = 0; fields && i < count; i++)
            transformed_free_transforms(fields[i].transforms, fields[i].count);
        ek_dataset_free(dataset);
        return NULL;
    }
    self->of = dataset;
    for (int i = 0; i < count; i++) {
        part *p = &self->parts[i];
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
