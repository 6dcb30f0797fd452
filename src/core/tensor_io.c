/* tensor_io.c: copies elements between tensors and the caller's memory, in row-major order.
 *
 * If a tensor's elements aren't in row-major order, its span (the memory from its first to its last
 * element) is copied between devices in one piece, and the CPU reorders the elements. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtypes.h"
#include "core/tensor.h"

/* Returns how many elements the span has, gaps included. */
static int64_t io_span(const ek_tensor *tensor)
{
    int64_t last = 0;
    for (int i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] == 0)
            return 0;
        last += (tensor->shape[i] - 1) * tensor->stride[i];
    }
    return last + 1;
}

typedef enum direction { TO_ROWS, FROM_ROWS } direction;

static void io_copy_row(char *rows, char *span, int64_t count, int64_t stride, size_t size,
                        direction way)
{
    for (int64_t i = 0; i < count; i++) {
        char *element = span + (size_t)(i * stride) * size;
        if (way == TO_ROWS)
            memcpy(rows + (size_t)i * size, element, size);
        else
            memcpy(element, rows + (size_t)i * size, size);
    }
}

/* Copies elements between row-major memory and a tensor's span on the CPU. */
static void io_reorder(const ek_tensor *tensor, char *rows, char *span, direction way)
{
    size_t size = ek_dtype_size(tensor->dtype);
    int64_t index[EK_MAX_DIMS] = {0};
    int inner = tensor->ndim - 1;
    int64_t count = ek_count(tensor);
    if (count == 0)
        return;
    int64_t row = inner < 0 ? 1 : tensor->shape[inner];
    int64_t step = inner < 0 ? 1 : tensor->stride[inner];
    for (int64_t done = 0; done < count; done += row) {
        int64_t offset = 0;
        for (int i = 0; i < inner; i++)
            offset += index[i] * tensor->stride[i];
        io_copy_row(rows + (size_t)done * size, span + (size_t)offset * size, row, step, size, way);
        for (int i = inner - 1; i >= 0 && ++index[i] == tensor->shape[i]; i--)
            index[i] = 0;
    }
}

static int io_check_room(const char *what, const ek_tensor *tensor, const void *data, size_t nbytes,
                         size_t *needed)
{
    char text[200];
    if (!tensor)
        return ek_error_status() ? ek_error_pending()
                                 : EK_FAIL(EK_E_INVALID, "%s: the tensor is NULL", what);
    EK_TRY(ek_check_alive(what, "the tensor", tensor));
    *needed = (size_t)ek_count(tensor) * ek_dtype_size(tensor->dtype);
    if (!data && *needed)
        return EK_FAIL(EK_E_INVALID, "%s: the memory is NULL", what);
    if (nbytes != *needed)
        return EK_FAIL(EK_E_INVALID, "%s: %zu bytes given, %s has %zu", what, nbytes,
                       ek_tensor_text(tensor, text), *needed);
    return 0;
}

/* Copies all elements between row-major memory of the caller and a tensor with memory. */
static int io_copy_held(const ek_tensor *tensor, char *rows, size_t nbytes, direction way)
{
    ek_dev *dev = ek_tensor_dev(tensor), *cpu;
    char *address = ek_tensor_address(tensor);
    bool in_order = ek_tensor_is_contiguous(tensor, EK_CONTIGUOUS);
    if (ek_dev_is_host(dev)) {
        if (in_order)
            memcpy(way == TO_ROWS ? rows : address, way == TO_ROWS ? address : rows, nbytes);
        else
            io_reorder(tensor, rows, address, way);
        return 0;
    }
    if (!(cpu = ek_dev_get(ek_cpu())))
        return ek_error_pending();
    if (in_order)
        return way == TO_ROWS ? ek_dev_copy(cpu, rows, dev, address, nbytes)
                              : ek_dev_copy(dev, address, cpu, rows, nbytes);
    size_t span_nbytes = (size_t)io_span(tensor) * ek_dtype_size(tensor->dtype);
    char *span = ek_calloc(1, span_nbytes);
    if (!span)
        return ek_error_pending();
    /* The span is read, its elements are changed, and it is written back, so that gaps keep their
     * contents. */
    int rc = ek_dev_copy(cpu, span, dev, address, span_nbytes);
    if (rc >= 0)
        io_reorder(tensor, rows, span, way);
    if (rc >= 0 && way == FROM_ROWS)
        rc = ek_dev_copy(dev, address, cpu, span, span_nbytes);
    free(span);
    return rc;
}

static int io_copy(const ek_tensor *tensor, char *rows, size_t nbytes, direction way)
{
    ek_scope scope = ek_scope_begin();
    int rc = ek_tensor_hold(tensor);
    if (rc >= 0)
        rc = io_copy_held(tensor, rows, nbytes, way);
    ek_scope_end(&scope);
    return rc;
}

int ek_to_data(const ek_tensor *tensor, void *data, size_t nbytes)
{
    size_t needed = 0;
    EK_TRY(io_check_room("to_data", tensor, data, nbytes, &needed));
    return needed ? io_copy(tensor, data, needed, TO_ROWS) : 0;
}

int ek_set_data(ek_tensor *tensor, const void *data, size_t nbytes)
{
    size_t needed = 0;
    EK_TRY(io_check_room("set_data", tensor, data, nbytes, &needed));
    if (needed == 0)
        return 0;
    if (ek_repeats(tensor)) {
        char text[200];
        return EK_FAIL(EK_E_INVALID,
                       "set_data: elements of %s share memory (an expanded view); clone it first",
                       ek_tensor_text(tensor, text));
    }
    /* With FROM_ROWS the caller's memory is only read. */
    ek_scope scope = ek_scope_begin(); /* holds the tensor until the write has been recorded */
    int rc = ek_tensor_hold(tensor);
    if (rc >= 0)
        rc = ek_tensor_unshare(tensor);
    if (rc >= 0)
        rc = io_copy(tensor, (char *)(uintptr_t)data, needed, FROM_ROWS);
    if (rc >= 0)
        ek_tensor_written(tensor, "set_data");
    ek_scope_end(&scope);
    return rc;
}

int ek_rows_of(const ek_tensor *tensor, ek_rows *rows)
{
    ek_dev *dev = ek_tensor_dev(tensor);
    size_t nbytes = (size_t)ek_count(tensor) * ek_dtype_size(tensor->dtype);
    *rows = (ek_rows){NULL, NULL};
    if (ek_dev_is_host(dev) && ek_tensor_is_contiguous(tensor, EK_CONTIGUOUS)) {
        EK_TRY(ek_dev_synchronize(dev));
        EK_TRY(ek_tensor_hold(tensor));
        rows->bytes = ek_tensor_address(tensor);
        return 0;
    }
    rows->bytes = rows->copy = ek_calloc(1, nbytes);
    int rc = rows->copy ? ek_to_data(tensor, rows->copy, nbytes) : EK_E_NO_MEMORY;
    if (rc < 0)
        ek_rows_free(rows);
    return rc;
}

void ek_rows_free(ek_rows *rows)
{
    free(rows->copy);
    *rows = (ek_rows){NULL, NULL};
}

ek_tensor *ek_from_data_with(const void *data, ek_tensor_options options)
{
    ek_tensor *tensor = ek_empty_with(options);
    size_t nbytes = tensor ? (size_t)ek_count(tensor) * ek_dtype_size(tensor->dtype) : 0;
    if (!tensor || ek_set_data(tensor, data, nbytes) < 0)
        return NULL;
    return tensor;
}

double ek_element_double(const void *element, ek_dtype dtype)
{
    switch (dtype) {
#define ELEMENT(label, text, type, ...)        \
    case EK_##label: {                         \
        type value;                            \
        memcpy(&value, element, sizeof value); \
        return (double)EK_LOAD_##label(value); \
    }
        EK_DTYPE_ROWS(ELEMENT)
#undef ELEMENT
    }
    return 0;
}

int ek_item(const ek_tensor *tensor, double *value)
{
    char text[200];
    unsigned char element[8];
    if (!tensor)
        return ek_error_status() ? ek_error_pending()
                                 : EK_FAIL(EK_E_INVALID, "item: the tensor is NULL");
    EK_TRY(ek_check_alive("item", "the tensor", tensor));
    EK_TRY(ek_check_pointer("item", "where to put the value", value));
    if (ek_count(tensor) != 1)
        return EK_FAIL(EK_E_SHAPE, "item: %s has %lld elements, one is wanted",
                       ek_tensor_text(tensor, text), (long long)ek_count(tensor));
    EK_TRY(ek_to_data(tensor, element, ek_dtype_size(tensor->dtype)));
    *value = ek_element_double(element, tensor->dtype);
    if (isnan(*value))
        *value = NAN; /* a NaN without a sign, because printf would show the sign */
    return 0;
}
