/* transformed_rows.c: batches of transformed data sets that have get_batch.
 *
 * A batch is first made raw, on cpu. Each of its rows runs through the whole chain into the final
 * batch, which lies on the device already. A raw batch on the device would count as memory in use
 * there, and stay cached. The price is a second copy of tensors that are not transformed, most
 * often labels. */
#include <stdlib.h>
#include <string.h>

#include "core/value.h"
#include "data/transformed.h"

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

/* Transforms row by row, so that random numbers are drawn in the order of single samples. */
static int rows_run_all(rows *parts, int part_count, const int64_t *samples, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        rows_run run = {parts, i};
        int before = ek_error_status();
        int rc = ek_parts_run_alike(part_count, rows_run_one, &run);
        if (rc < 0)
            ek_error_prefix(before, "sample %lld", (long long)samples[i]);
        EK_TRY(rc);
    }
    return 0;
}

/* Describes the chain for the rows of `from`, and allocates the part's batch on `dev`. */
static int rows_open(rows *r, const ek_part *p, ek_tensor *from, int64_t count, ek_dev *dev)
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
    const ek_transformed_set *set;
    const struct around *next;
} around;

static bool rows_again(const ek_part *p, const around *outer)
{
    for (; outer; outer = outer->next)
        for (int i = 0; i < outer->set->part_count; i++)
            if (ek_part_same(p, &outer->set->parts[i]))
                return true;
    return false;
}

static int rows_open_parts(const ek_transformed_set *self, const around *outer, ek_value batch,
                           int64_t count, ek_dev *dev, rows *parts)
{
    for (int i = 0; i < self->part_count; i++) {
        const ek_part *p = &self->parts[i];
        ek_tensor *from = ek_part_tensor(p, batch, &parts[i].at);
        ek_dev *to = rows_again(p, outer) ? ek_dev_get(ek_cpu()) : dev;
        if (!from || !to)
            return ek_error_pending();
        EK_TRY(rows_open(&parts[i], p, from, count, to));
    }
    return 0;
}

/* Returns the batch with its parts transformed. */
static ek_value rows_make_parts(const ek_transformed_set *self, const around *outer, ek_value batch,
                                const int64_t *samples, int64_t count, ek_dev *dev)
{
    rows *parts = ek_calloc((size_t)self->part_count, sizeof *parts);
    if (!parts)
        return ek_value_error();
    int rc = rows_open_parts(self, outer, batch, count, dev, parts);
    if (rc >= 0)
        rc = rows_run_all(parts, self->part_count, samples, count);
    for (int i = 0; i < self->part_count; i++) {
        if (rc >= 0)
            batch = ek_part_replaced(batch, parts[i].at, parts[i].batch);
        if (batch.kind == EK_VALUE_ERROR)
            rc = ek_error_pending();
        if (parts[i].open)
            ek_chain_close(&parts[i].chain);
    }
    free(parts);
    return rc < 0 ? ek_value_error() : batch;
}

/* Makes a batch in which parts that no outer set transforms again lie on `dev`, and all else on
 * cpu. *raw becomes true if the raw batch could be made. */
static ek_value rows_make_batch(ek_transformed_set *self, const around *outer,
                                const int64_t *samples, int64_t count, ek_dev *dev, bool *raw)
{
    const around here = {self, outer};
    ek_value batch;
    if (self->of->type->get_batch == ek_transformed_get_batch) {
        batch = rows_make_batch((ek_transformed_set *)self->of, &here, samples, count, dev, raw);
    } else {
        batch = ek_dataset_get_batch(self->of, samples, count, ek_cpu());
        *raw = batch.kind != EK_VALUE_ERROR;
    }
    if (batch.kind == EK_VALUE_ERROR)
        return batch;
    return rows_make_parts(self, outer, batch, samples, count, dev);
}

/* Returns true if raw samples may differ in shape or dtype, which transforms may make equal. */
static bool rows_differ(int status)
{
    return status == EK_E_SHAPE || status == EK_E_DTYPE;
}

ek_value ek_transformed_get_batch(ek_dataset *dataset, const int64_t *samples, int64_t count,
                                  ek_device device)
{
    ek_dev *dev = ek_batch_dev(device, "get_batch");
    int before = ek_error_status();
    bool raw = false;
    if (!dev)
        return ek_value_error();
    ek_value batch =
        rows_make_batch((ek_transformed_set *)dataset, NULL, samples, count, dev, &raw);
    if (batch.kind == EK_VALUE_ERROR && !raw && !before && rows_differ(ek_error_status())) {
        ek_error_clear();
        return ek_dataset_batch_by_samples(dataset, samples, count, device);
    }
    if (batch.kind == EK_VALUE_ERROR || device.kind == EK_CPU)
        return batch;
    return ek_batch_map(batch, ek_row_major, dev);
}
