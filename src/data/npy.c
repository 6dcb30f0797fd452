/* npy.c: NumPy's format: a header (npy_header.c), then the elements. */
#include <stdlib.h>
#include <string.h>

#include "core/tensor.h"
#include "data/npy.h"
#include "evenkeel/data.h"

/* ---- the other order ---- */

/* to[i * to_step + j] = from[i + j * from_step], in squares that both sides' lines of cache
 * outlive. */
static inline void transpose(int64_t rows, int64_t columns, const uint8_t *from, int64_t from_step,
                             uint8_t *to, int64_t to_step, size_t size)
{
    enum { SIDE = 32 };

    for (int64_t i0 = 0; i0 < rows; i0 += SIDE)
        for (int64_t j0 = 0; j0 < columns; j0 += SIDE) {
            int64_t i1 = i0 + SIDE < rows ? i0 + SIDE : rows;
            int64_t j1 = j0 + SIDE < columns ? j0 + SIDE : columns;
            for (int64_t i = i0; i < i1; i++)
                for (int64_t j = j0; j < j1; j++)
                    memcpy(to + (size_t)(i * to_step + j) * size,
                           from + (size_t)(i + j * from_step) * size, size);
        }
}

/* With sizes that the compiler knows. */
static void transpose_any(int64_t rows, int64_t columns, const uint8_t *from, int64_t from_step,
                          uint8_t *to, int64_t to_step, size_t size)
{
    if (size == 1)
        transpose(rows, columns, from, from_step, to, to_step, 1);
    else if (size == 4)
        transpose(rows, columns, from, from_step, to, to_step, 4);
    else
        transpose(rows, columns, from, from_step, to, to_step, 8);
}

/* Fills a row-major tensor with elements whose first index runs fastest: a transposition of the
 * first and the last dimension for each place of those between. */
static void fill_reversed(ek_tensor *tensor, const uint8_t *from)
{
    size_t size = ek_dtype_size(tensor->dtype);
    int last = tensor->ndim - 1;
    int64_t step[EK_MAX_DIMS] = {1}, index[EK_MAX_DIMS] = {0}, places = 1;

    for (int i = 1; i <= last; i++)
        step[i] = step[i - 1] * tensor->shape[i - 1];
    for (int i = 1; i < last; i++)
        places *= tensor->shape[i];
    for (int64_t place = 0; place < places; place++) {
        int64_t at = 0, to = 0;
        for (int i = 1; i < last; i++) {
            at += index[i] * step[i];
            to += index[i] * tensor->stride[i];
        }
        transpose_any(tensor->shape[0], tensor->shape[last], from + (size_t)at * size, step[last],
                      (uint8_t *)ek_tensor_address(tensor) + (size_t)to * size, tensor->stride[0],
                      size);
        for (int i = last - 1; i >= 1 && ++index[i] == tensor->shape[i]; i--)
            index[i] = 0;
    }
}

/* ---- the file ---- */

/* Of elements of the tensor's dtype, in the file's order. */
static ek_tensor *ordered(const ek_npy_header *header, const uint8_t *elements)
{
    ek_dtype dtype = header->element->dtype;
    if (!header->fortran_order || header->shape.ndim < 2)
        return ek_from_data(elements, header->shape, dtype);
    ek_tensor *tensor = ek_empty(header->shape, dtype);
    if (tensor && ek_count(tensor) > 0)
        fill_reversed(tensor, elements);
    return tensor;
}

static ek_tensor *tensor_of(const ek_npy_header *header, const uint8_t *elements)
{
    size_t count = (size_t)ek_shape_count(&header->shape);
    if (!header->element->widen)
        return ordered(header, elements);
    uint8_t *wide = ek_element_widened(header->element, elements, count);
    ek_tensor *tensor = wide ? ordered(header, wide) : NULL;
    free(wide);
    return tensor;
}

ek_tensor *ek_read_npy(const char *path)
{
    ek_stream stream;
    ek_npy_header header;
    ek_bytes elements = {0};
    ek_tensor *tensor = NULL;

    if (ek_stream_open(&stream, "read_npy", path) < 0)
        return NULL;
    if (ek_npy_read_header(&stream, &header) == 0 &&
        ek_stream_append_elements(&stream, (size_t)ek_shape_count(&header.shape),
                                  header.element->size, &elements) == 0)
        tensor = tensor_of(&header, elements.bytes);
    free(elements.bytes);
    ek_stream_close(&stream);
    return tensor;
}
