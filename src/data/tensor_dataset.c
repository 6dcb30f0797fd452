/* tensor_dataset.c: rows of tensors as samples. A batch gathers rows. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "data/dataset.h"

/* One tensor: row-major, on cpu. The data set has a separate handle, so that it keeps no graph
 * alive, and the caller may free or change their handle. */
typedef struct column {
    ek_tensor *tensor;
    size_t row_nbytes;
    int64_t row_count; /* elements of one row */
} column;

typedef struct tensor_dataset {
    ek_dataset dataset;
    int64_t length;
    int count;
    column *columns;
} tensor_dataset;

static int64_t tensors_length(ek_dataset *dataset)
{
    return ((tensor_dataset *)dataset)->length;
}

/* Returns the list of what `make` gives for each column; a single column's value is no list. */
typedef ek_tensor *column_function(const column *from, const void *context);

static ek_value tensors_columns(const tensor_dataset *self, column_function *make,
                                const void *context)
{
    enum { USUAL = 8 };
    ek_value few[USUAL] = {{0}}, *items = few;
    if (self->count == 1)
        return ek_value_of_tensor(make(&self->columns[0], context));
    if (self->count > USUAL && !(items = ek_calloc((size_t)self->count, sizeof *items)))
        return ek_value_error();
    for (int i = 0; i < self->count; i++)
        items[i] = ek_value_of_tensor(make(&self->columns[i], context));
    ek_value sample = ek_value_list(items, self->count); /* an error if an item is one */
    if (items != few)
        free(items);
    return sample;
}

static ek_tensor *column_row(const column *from, const void *context)
{
    const ek_tensor *tensor = from->tensor;
    const int64_t *index = context;
    return ek_tensor_view(tensor, tensor->ndim - 1, tensor->shape + 1, tensor->stride + 1,
                          tensor->offset + *index * from->row_count);
}

static ek_value tensors_get(ek_dataset *dataset, int64_t index)
{
    return tensors_columns((tensor_dataset *)dataset, column_row, &index);
}

/* ---- batches ---- */

typedef struct request {
    ek_dev *dev;
    const int64_t *samples;
    int64_t count;
} request;

/* Rows are gathered in an order that processors cannot predict, so AHEAD rows are prefetched. The
 * first LINES_AHEAD lines are enough: within a long row the processor prefetches by itself. */
enum { AHEAD = 4, LINE = 64, LINES_AHEAD = 16 };

static inline void rows_fetch(const char *row, size_t nbytes)
{
    size_t end = nbytes < LINES_AHEAD * LINE ? nbytes : LINES_AHEAD * LINE;
    for (size_t at = 0; at < end; at += LINE)
        __builtin_prefetch(row + at);
}

/* Gathers rows. It is inlined with a constant nbytes for small rows, for which a call of memcpy
 * costs more than the copy. */
static inline void rows_gather(char *restrict out, const char *restrict rows, size_t nbytes,
                               const request *wanted)
{
    for (int64_t i = 0; i < wanted->count; i++) {
        if (i + AHEAD < wanted->count)
            rows_fetch(rows + (size_t)wanted->samples[i + AHEAD] * nbytes, nbytes);
        memcpy(out + (size_t)i * nbytes, rows + (size_t)wanted->samples[i] * nbytes, nbytes);
    }
}

static ek_tensor *column_rows(const column *from, const void *context)
{
    const request *wanted = context;
    ek_shape shape = ek_tensor_shape(from->tensor);
    shape.dims[0] = wanted->count;
    ek_tensor *batch = ek_tensor_new(wanted->dev, from->tensor->dtype, &shape, EK_CONTIGUOUS);
    if (!batch)
        return NULL;
    char *out = ek_tensor_address(batch);
    const char *rows = ek_tensor_address(from->tensor);
    switch (from->row_nbytes) {
    case 0:
        break;
    case 1:
        rows_gather(out, rows, 1, wanted);
        break;
    case 2:
        rows_gather(out, rows, 2, wanted);
        break;
    case 4:
        rows_gather(out, rows, 4, wanted);
        break;
    case 8:
        rows_gather(out, rows, 8, wanted);
        break;
    default:
        rows_gather(out, rows, from->row_nbytes, wanted);
    }
    return batch;
}

static ek_value tensors_get_batch(ek_dataset *dataset, const int64_t *samples, int64_t count,
                                  ek_device device)
{
    request wanted = {ek_batch_dev(device, "get_batch"), samples, count};
    if (!wanted.dev)
        return ek_value_error();
    return tensors_columns((tensor_dataset *)dataset, column_rows, &wanted);
}

static void tensors_destroy(ek_dataset *dataset)
{
    tensor_dataset *self = (tensor_dataset *)dataset;
    for (int i = 0; self->columns && i < self->count; i++)
        ek_release(self->columns[i].tensor);
    free(self->columns);
}

static const ek_dataset_type tensor_dataset_type = {
    .name = "tensor_dataset",
    .size = sizeof(tensor_dataset),
    .length = tensors_length,
    .get = tensors_get,
    .get_batch = tensors_get_batch,
    .destroy = tensors_destroy,
};

/* ---- making ---- */

static int tensors_check(ek_tensor *const *tensors, int count)
{
    char text[200], first[200];
    if (count < 1 || !tensors)
        return EK_FAIL(EK_E_INVALID, "tensor_dataset: %s",
                       count < 1 ? "no tensor is given" : "the tensors are NULL");
    for (int i = 0; i < count; i++) {
        snprintf(text, sizeof text, "tensor %d", i);
        EK_TRY(ek_check_handle("tensor_dataset", text, tensors[i]));
        ek_tensor_text(tensors[i], text);
        if (ek_tensor_dev(tensors[i])->id.kind != EK_CPU)
            return EK_FAIL(EK_E_DEVICE, "tensor_dataset: tensor %d is %s; samples lie on cpu", i,
                           text);
        if (tensors[i]->ndim < 1)
            return EK_FAIL(EK_E_SHAPE, "tensor_dataset: tensor %d, %s, has no rows", i, text);
        if (tensors[i]->shape[0] != tensors[0]->shape[0])
            return EK_FAIL(EK_E_SHAPE,
                           "tensor_dataset: tensor %d, %s, has another number of rows than tensor "
                           "0, %s",
                           i, text, ek_tensor_text(tensors[0], first));
    }
    return 0;
}

static int tensors_add(tensor_dataset *self, ek_tensor *const *tensors, int count)
{
    self->columns = ek_calloc((size_t)count, sizeof *self->columns);
    if (!self->columns)
        return EK_E_NO_MEMORY;
    self->length = tensors[0]->shape[0];
    for (; self->count < count; self->count++) {
        ek_tensor *given = tensors[self->count], *rows = ek_row_major(given, ek_tensor_dev(given));
        rows = rows == given ? ek_tensor_alias(rows) : rows;
        if (!rows)
            return ek_error_pending();
        column *to = &self->columns[self->count];
        to->tensor = ek_keep(rows);
        to->row_count = 1;
        for (int i = 1; i < rows->ndim; i++)
            to->row_count *= rows->shape[i];
        to->row_nbytes = (size_t)to->row_count * ek_dtype_size(rows->dtype);
    }
    return 0;
}

ek_dataset *ek_tensor_dataset_of(ek_tensor *const *tensors, int count)
{
    if (tensors_check(tensors, count) < 0)
        return NULL;
    ek_dataset *dataset = ek_dataset_new(&tensor_dataset_type);
    if (!dataset)
        return NULL;
    ek_scope scope = ek_scope_begin();
    int rc = tensors_add((tensor_dataset *)dataset, tensors, count);
    ek_scope_end(&scope);
    if (rc < 0) {
        ek_dataset_free(dataset);
        return NULL;
    }
    return dataset;
}
