/* transformed.c: data sets with transforms applied to tensors of each sample.
 *
 * Rows of batches go one by one from the raw batch through the whole chain into the batch that is
 * given, which lies on the device already. The raw batch is made on cpu: on the device it would
 * count as memory in use there, and be cached after. So only what no transform changes is copied
 * once more where the device is another: labels, most often. */
#include <stdlib.h>
#include <string.h>

#include "core/generator.h"
#include "core/value.h"
#include "data/dataset.h"
#include "data/sample_element.h"
#include "data/transform_chain.h"

/* An element of samples, and what becomes of it. */
typedef struct part {
    ek_sample_element element;
    char *key;                 /* owned: the element's */
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

/* ---- random numbers ---- */

/* Runs parts 0 to count - 1 of one sample until one fails. All of them draw the same numbers; the
 * generator goes on behind those of the first. It is not locked meanwhile, since transforms may be
 * the user's. */
static int run_alike(int count, int (*run)(void *user, int number), void *user)
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
    ek_value sample; /* so far */
} sample_run;

static int run_sample(void *user, int number)
{
    sample_run *run = user;
    const part *p = &run->self->parts[number];
    int at;
    EK_TRY(ek_sample_find(&p->element, run->sample, &at));
    ek_tensor *tensor = ek_sample_tensor(ek_sample_at(run->sample, at));
    if (!tensor)
        return ek_error_pending();
    run->sample = ek_sample_replaced(run->sample, at,
                                     ek_transform_apply(p->transforms, p->count, tensor, NULL));
    return run->sample.kind == EK_VALUE_ERROR ? ek_error_pending() : 0;
}

static ek_value transformed_get(ek_dataset *dataset, int64_t index)
{
    sample_run run = {.self = (const transformed *)dataset};
    run.sample = ek_dataset_get(run.self->of, index);
    if (run.sample.kind == EK_VALUE_ERROR || run_alike(run.self->part_count, run_sample, &run) < 0)
        return ek_value_error();
    return run.sample;
}

/* ---- batches ---- */

static int check_rows(const ek_tensor *rows, int64_t count)
{
    char text[200];
    if (rows->ndim >= 1 && rows->shape[0] == count)
        return 0;
    return EK_FAIL(EK_E_SHAPE, "a batch of %lld samples is %s; as many rows are needed",
                   (long long)count, ek_tensor_text(rows, text));
}

static ek_tensor *new_batch(ek_dev *dev, const ek_array *row, int64_t count)
{
    char text[200];
    if (row->shape.ndim == EK_MAX_DIMS) {
        EK_FAIL(EK_E_SHAPE, "samples become %s; a batch of them has more than %d dimensions",
                ek_array_text(row, text), EK_MAX_DIMS);
        return NULL;
    }
    ek_shape shape = {.ndim = row->shape.ndim + 1, .dims = {count}};
    memcpy(shape.dims + 1, row->shape.dims, (size_t)row->shape.ndim * sizeof *shape.dims);
    return ek_tensor_new(dev, row->dtype, &shape, EK_CONTIGUOUS);
}

/* The rows of one part, from the raw batch to the one that is given. */
typedef struct rows {
    ek_chain chain;
    bool open;
    int at; /* where the element is in the batch */
    const char *in;
    size_t in_nbytes, out_nbytes; /* of a row */
    ek_tensor *batch;
} rows;

typedef struct rows_run {
    rows *parts;
    int64_t row;
} rows_run;

static int run_row(void *user, int number)
{
    const rows_run *run = user;
    const rows *r = &run->parts[number];
    char *out = ek_tensor_address(r->batch);
    return ek_chain_run(&r->chain, r->in + (size_t)run->row * r->in_nbytes,
                        out + (size_t)run->row * r->out_nbytes, NULL);
}

/* Row by row, in their order: random numbers are drawn as when samples are asked for one by one. */
static int run_rows(rows *parts, int part_count, const int64_t *samples, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        rows_run run = {parts, i};
        int before = ek_error_status();
        int rc = run_alike(part_count, run_row, &run);
        if (rc < 0)
            ek_error_prefix(before, "sample %lld", (long long)samples[i]);
        EK_TRY(rc);
    }
    return 0;
}

/* `from` becomes a batch on `dev`. */
static int open_rows(rows *r, const part *p, ek_tensor *from, int64_t count, ek_dev *dev)
{
    EK_TRY(check_rows(from, count));
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
    r->batch = new_batch(dev, result, count);
    return r->batch ? 0 : ek_error_pending();
}

/* The transformed sets around one whose batch is made, the innermost first. */
typedef struct around {
    const transformed *set;
    const struct around *next;
} around;

static bool transformed_again(const part *p, const around *outer)
{
    for (; outer; outer = outer->next)
        for (int i = 0; i < outer->set->part_count; i++)
            if (ek_sample_same(&p->element, &outer->set->parts[i].element))
                return true;
    return false;
}

static const ek_dataset_type rows_type;

static int open_parts(const transformed *self, const around *outer, ek_value batch, int64_t count,
                      ek_dev *dev, rows *parts)
{
    for (int i = 0; i < self->part_count; i++) {
        const part *p = &self->parts[i];
        EK_TRY(ek_sample_find(&p->element, batch, &parts[i].at));
        ek_tensor *from = ek_sample_tensor(ek_sample_at(batch, parts[i].at));
        ek_dev *to = transformed_again(p, outer) ? ek_dev_get(ek_cpu()) : dev;
        if (!from || !to)
            return ek_error_pending();
        EK_TRY(open_rows(&parts[i], p, from, count, to));
    }
    return 0;
}

/* The batch with its parts transformed. */
static ek_value transform_batch(const transformed *self, const around *outer, ek_value batch,
                                const int64_t *samples, int64_t count, ek_dev *dev)
{
    rows *parts = ek_calloc((size_t)self->part_count, sizeof *parts);
    if (!parts)
        return ek_value_error();
    int rc = open_parts(self, outer, batch, count, dev, parts);
    if (rc >= 0)
        rc = run_rows(parts, self->part_count, samples, count);
    for (int i = 0; i < self->part_count; i++) {
        if (rc >= 0)
            batch = ek_sample_replaced(batch, parts[i].at, parts[i].batch);
        if (batch.kind == EK_VALUE_ERROR)
            rc = ek_error_pending();
        if (parts[i].open)
            ek_chain_close(&parts[i].chain);
    }
    free(parts);
    return rc < 0 ? ek_value_error() : batch;
}

/* What is transformed, for the last time, is written on `dev`; the rest lies on cpu. *raw says
 * whether there was a batch of what is not transformed yet. */
static ek_value make_batch(transformed *self, const around *outer, const int64_t *samples,
                           int64_t count, ek_dev *dev, bool *raw)
{
    const around here = {self, outer};
    ek_value batch;
    if (self->of->type == &rows_type) {
        batch = make_batch((transformed *)self->of, &here, samples, count, dev, raw);
    } else {
        batch = ek_dataset_get_batch(self->of, samples, count, ek_cpu());
        *raw = batch.kind != EK_VALUE_ERROR;
    }
    if (batch.kind == EK_VALUE_ERROR)
        return batch;
    return transform_batch(self, outer, batch, samples, count, dev);
}

/* All tensors of a value on `dev`. */
static ek_value moved(ek_value value, ek_dev *dev)
{
    int count = ek_value_length(value);
    if (value.kind == EK_VALUE_TENSOR) {
        ek_tensor *tensor = ek_row_major(value.as.tensor, dev);
        return tensor ? ek_value_of_tensor(tensor) : ek_value_error();
    }
    if (count == 0)
        return value;
    ek_value *items = ek_calloc((size_t)count, sizeof *items);
    ek_value result = items ? value : ek_value_error();
    for (int i = 0; i < count && result.kind != EK_VALUE_ERROR; i++) {
        items[i] = moved(ek_value_at(value, i), dev);
        if (items[i].kind == EK_VALUE_ERROR)
            result = items[i];
    }
    if (result.kind != EK_VALUE_ERROR)
        result = ek_value_like(value, items);
    free(items);
    return result;
}

/* Samples of several data sets, one after another, may be no batch before they are transformed. */
static bool differ(int status)
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
    ek_value batch = make_batch((transformed *)dataset, NULL, samples, count, dev, &raw);
    if (batch.kind == EK_VALUE_ERROR && !raw && !before && differ(ek_error_status())) {
        ek_error_clear();
        return ek_dataset_batch_by_samples(dataset, samples, count, device);
    }
    if (batch.kind == EK_VALUE_ERROR || device.kind == EK_CPU)
        return batch;
    return moved(batch, dev);
}

/* ---- making ---- */

static void free_transforms(ek_transform *const *transforms, int count)
{
    for (int i = 0; transforms && i < count; i++)
        ek_transform_free(transforms[i]);
}

static void transformed_destroy(ek_dataset *dataset)
{
    transformed *self = (transformed *)dataset;
    for (int i = 0; i < self->part_count; i++) {
        free_transforms(self->parts[i].transforms, self->parts[i].count);
        free(self->parts[i].transforms);
        free(self->parts[i].key);
    }
    free(self->parts);
    ek_dataset_free(self->of);
}

/* Of data sets that give rows at once. Samples of others, pictures of files, may differ in shape
 * until they are transformed: those are transformed one by one and collated. */
static const ek_dataset_type rows_type = {.name = "transformed",
                                          .size = sizeof(transformed),
                                          .length = transformed_length,
                                          .get = transformed_get,
                                          .get_batch = transformed_get_batch,
                                          .destroy = transformed_destroy};
static const ek_dataset_type samples_type = {.name = "transformed",
                                             .size = sizeof(transformed),
                                             .length = transformed_length,
                                             .get = transformed_get,
                                             .destroy = transformed_destroy};

static int check_fields(const ek_field_transforms *fields, int count)
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

static int check_repeats(const part *parts, int number)
{
    const ek_sample_element *element = &parts[number].element;
    for (int i = 0; i < number; i++) {
        if (!ek_sample_same(&parts[i].element, element))
            continue;
        return element->key
                   ? EK_FAIL(EK_E_INVALID, "transformed: \"%s\" is named twice", element->key)
                   : EK_FAIL(EK_E_INVALID, "transformed: field %d is named twice", element->field);
    }
    return 0;
}

static int fill_part(part *p, const ek_field_transforms *fields)
{
    p->key = fields->key ? ek_strdup(fields->key) : NULL;
    p->element = (ek_sample_element){fields->field, p->key};
    p->transforms = ek_calloc((size_t)fields->count, sizeof *p->transforms);
    return p->transforms && (p->key || !fields->key) ? 0 : EK_E_NO_MEMORY;
}

/* With room for the transforms, which are not taken over yet. */
static int add_parts(transformed *self, const ek_field_transforms *fields, int count)
{
    self->parts = ek_calloc((size_t)count, sizeof *self->parts);
    if (!self->parts)
        return EK_E_NO_MEMORY;
    while (self->part_count < count) {
        int number = self->part_count++;
        EK_TRY(fill_part(&self->parts[number], &fields[number]));
        EK_TRY(check_repeats(self->parts, number));
    }
    return 0;
}

/* Owns nothing yet. */
static transformed *new_set(const ek_dataset *of, const ek_field_transforms *fields, int count)
{
    if (ek_dataset_given(of, "transformed") < 0 || check_fields(fields, count) < 0)
        return NULL;
    transformed *self =
        (transformed *)ek_dataset_new(of->type->get_batch ? &rows_type : &samples_type);
    if (self && add_parts(self, fields, count) < 0) {
        ek_dataset_free(&self->dataset);
        return NULL;
    }
    return self;
}

ek_dataset *ek_transformed_alike_of(ek_dataset *dataset, const ek_field_transforms *fields,
                                    int count)
{
    transformed *self = new_set(dataset, fields, count);
    if (!self) {
        for (int i = 0; fields && i < count; i++)
            free_transforms(fields[i].transforms, fields[i].count);
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
    if (ek_dataset_given(dataset, "transformed_key") == 0)
        EK_FAIL(EK_E_INVALID, "transformed_key: the key is NULL");
    free_transforms(transforms, count);
    ek_dataset_free(dataset);
    return NULL;
}
