/* join.c: several tensors as one, and one as several, along a dimension. */
#include <stdlib.h>
#include <string.h>

#include "autograd/observer.h"
#include "ops/autocast.h"
#include "ops/ops.h"

/* ---- cat: the gradient is cut into the inputs' parts ---- */

typedef struct cat_attributes {
    int dim;
    int64_t sizes[]; /* one per input */
} cat_attributes;

static int cat_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const cat_attributes *a = ek_node_attributes(node);
    int64_t start = 0;
    for (int i = 0; i < ek_node_input_count(node); i++) {
        if (ek_node_needs(node, i))
            results[i] = ek_narrow(gradients[0], a->dim, start, a->sizes[i]);
        start += a->sizes[i];
    }
    return 0;
}

EK_OPERATION(cat, "cat", cat_backward);

/* The result's shape is the first tensor's, with the sum of the sizes along dim. */
static int cat_shape(ek_tensor *const *tensors, int count, int dim, ek_shape *shape)
{
    *shape = ek_tensor_shape(tensors[0]);
    for (int i = 1; i < count; i++) {
        const ek_tensor *x = tensors[i];
        if (!ek_given("cat", "a tensor", x) || !ek_alike("cat", tensors[0], x))
            return ek_error_pending();
        bool fits = x->ndim == shape->ndim;
        for (int d = 0; fits && d < x->ndim; d++)
            fits = d == dim || x->shape[d] == shape->dims[d];
        if (!fits) {
            ek_shape own = ek_tensor_shape(x), of_first = ek_tensor_shape(tensors[0]);
            return EK_FAIL(EK_E_SHAPE,
                           "cat: shapes %s and %s (tensor %d) differ outside of dimension %d",
                           EK_SHAPE_TEXT(&of_first), EK_SHAPE_TEXT(&own), i, dim);
        }
        /* Sizes of views that repeat elements can overflow. */
        if (__builtin_add_overflow(shape->dims[dim], x->shape[dim], &shape->dims[dim]))
            return EK_FAIL(EK_E_SHAPE, "cat: %d tensors are too long in dimension %d", count, dim);
    }
    return 0;
}

/* Returns channels-last if all inputs are channels-last and at least one isn't row-major as well.
 */
static ek_memory_format cat_format(ek_tensor *const *tensors, int count)
{
    bool row_major = true;
    if (tensors[0]->ndim != 4)
        return EK_CONTIGUOUS;
    for (int i = 0; i < count; i++) {
        if (!ek_tensor_is_contiguous(tensors[i], EK_CHANNELS_LAST))
            return EK_CONTIGUOUS;
        row_major = row_major && ek_tensor_is_contiguous(tensors[i], EK_CONTIGUOUS);
    }
    return row_major ? EK_CONTIGUOUS : EK_CHANNELS_LAST;
}

/* ek_cat with bf16 tensors cast to f32. */
static ek_tensor *cat_wide(ek_tensor *const *tensors, int count, int dim)
{
    ek_tensor **wide = ek_calloc((size_t)count, sizeof *wide), *y = NULL;
    if (!wide)
        return NULL;
    ek_scope scope = ek_scope_begin();
    for (int i = 0; i < count; i++)
        wide[i] = ek_autocast_wide(tensors[i]);
    y = ek_scope_return(&scope, ek_cat(wide, count, dim));
    free(wide);
    return y;
}

ek_tensor *ek_cat(ek_tensor *const *tensors, int count, int dim)
{
    if (tensors && ek_autocast_mixes(tensors, count))
        return cat_wide(tensors, count, dim);
    if (!tensors || count < 1)
        return EK_REFUSE(EK_E_INVALID, "cat: no tensors");
    ek_shape shape;
    if (!ek_given("cat", "a tensor", tensors[0]) ||
        (dim = ek_dimension("cat", tensors[0], dim)) < 0 ||
        cat_shape(tensors, count, dim, &shape) < 0)
        return NULL;
    ek_dev *dev = tensors[0]->storage->dev;
    ek_tensor *y = ek_tensor_new(dev, tensors[0]->dtype, &shape, cat_format(tensors, count));
    if (!y)
        return NULL;
    int64_t start = 0;
    for (int i = 0; i < count; i++) {
        ek_tensor part;
        int64_t size = tensors[i]->shape[dim];
        ek_borrow_slice(&part, y, dim, start, size, 1);
        if (size > 0 && dev->backend->kernels->copy(dev, &part, tensors[i]) < 0)
            return NULL;
        start += size;
    }
    if (!ek_records(tensors, count))
        return EK_OBSERVED(y, cat_operation.name, .inputs = tensors, .input_count = count);

    size_t nbytes = sizeof(cat_attributes) + (size_t)count * sizeof(int64_t);
    cat_attributes *attributes = ek_calloc(1, nbytes);
    if (!attributes)
        return NULL;
    attributes->dim = dim;
    for (int i = 0; i < count; i++)
        attributes->sizes[i] = tensors[i]->shape[dim];
    y = EK_RECORD(y, &cat_operation, .inputs = tensors, .input_count = count,
                  .attributes = attributes, .attributes_size = nbytes);
    free(attributes);
    return y;
}

ek_tensor *ek_stack(ek_tensor *const *tensors, int count, int dim)
{
    if (!tensors || count < 1)
        return EK_REFUSE(EK_E_INVALID, "stack: no tensors");
    if (!ek_given("stack", "a tensor", tensors[0]))
        return NULL;
    ek_shape shape = ek_tensor_shape(tensors[0]);
    if (dim < -shape.ndim - 1 || dim > shape.ndim)
        return EK_REFUSE(EK_E_SHAPE, "stack: dimension %d is not in [%d, %d]", dim, -shape.ndim - 1,
                         shape.ndim);
    if (dim < 0)
        dim += shape.ndim + 1;
    ek_tensor **rows = ek_calloc((size_t)count, sizeof *rows), *y = NULL;
    for (int i = 0; rows && i < count; i++) {
        if (!ek_of_shape("stack", "a tensor", tensors[i], &shape))
            goto exit;
        rows[i] = ek_unsqueeze(tensors[i], dim);
    }
    if (rows)
        y = ek_cat(rows, count, dim);
exit:
    free(rows);
    return y;
}

/* ---- split: one node for all pieces. Its gradient is cat, with zeros for unused pieces ---- */

static int split_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    int dim = *(const int *)ek_node_attributes(node), count = ek_node_output_count(node);
    ek_tensor **pieces = ek_calloc((size_t)count, sizeof *pieces);
    if (!pieces)
        return ek_error_pending();
    for (int i = 0; i < count; i++)
        pieces[i] = gradients[i] ? gradients[i] : ek_node_zeros(node, i);
    results[0] = ek_cat(pieces, count, dim);
    free(pieces);
    return 0;
}

EK_OPERATION(split, "split", split_backward);

/* Makes views of `size` elements each, or of sizes[i] if `sizes` is given. */
static int join_split(ek_tensor *x, int dim, int64_t size, const int64_t *sizes, int count,
                      ek_tensor **out)
{
    int64_t start = 0, length = x->shape[dim];
    for (int i = 0; i < count; i++) {
        int64_t mine = sizes ? sizes[i] : size < length - start ? size : length - start;
        ek_tensor part;
        ek_borrow_slice(&part, x, dim, mine > 0 ? start : 0, mine, 1);
        out[i] = ek_tensor_view(x, part.ndim, part.shape, part.stride, part.offset);
        if (!out[i])
            return ek_error_pending();
        start += mine;
    }
    ek_record_options options = {EK_INPUTS(x), EK_ATTRIBUTES(dim)};
    return ek_record_outputs(out, count, &split_operation, &options);
}

static int join_fits(const char *operation, int64_t pieces, ek_tensor **out, int capacity)
{
    if (!out)
        return EK_FAIL(EK_E_INVALID, "%s: out is NULL", operation);
    if (pieces <= capacity)
        return 0;
    return EK_FAIL(EK_E_INVALID, "%s: there are %lld pieces and room for %d", operation,
                   (long long)pieces, capacity);
}

int ek_split(ek_tensor *x, int64_t size, int dim, ek_tensor **out, int capacity)
{
    if (!ek_given("split", "x", x))
        return ek_error_pending();
    EK_TRY(dim = ek_dimension("split", x, dim));
    int64_t length = x->shape[dim];
    if (size < 0 || (size == 0 && length > 0))
        return EK_FAIL(EK_E_INVALID, "split: pieces of %lld elements; there must be at least 1",
                       (long long)size);
    int64_t pieces = length == 0 ? 1 : (length - 1) / size + 1;
    EK_TRY(join_fits("split", pieces, out, capacity));
    EK_TRY(join_split(x, dim, size, NULL, (int)pieces, out));
    return (int)pieces;
}

int ek_split_sizes(ek_tensor *x, const int64_t *sizes, int count, int dim, ek_tensor **out)
{
    if (!ek_given("split_sizes", "x", x))
        return ek_error_pending();
    EK_TRY(dim = ek_dimension("split_sizes", x, dim));
    if (!sizes || !out)
        return EK_FAIL(EK_E_INVALID, "split_sizes: %s is NULL", sizes ? "out" : "sizes");
    int64_t total = 0;
    for (int i = 0; i < count; i++) {
        if (sizes[i] < 0)
            return EK_FAIL(EK_E_INVALID, "split_sizes: size %d is %lld; it must not be negative", i,
                           (long long)sizes[i]);
        if (__builtin_add_overflow(total, sizes[i], &total))
            total = INT64_MAX;
    }
    if (count < 1 || total != x->shape[dim])
        return EK_FAIL(EK_E_SHAPE, "split_sizes: %d sizes add up to %lld, and dimension %d is %lld",
                       count, (long long)total, dim, (long long)x->shape[dim]);
    return join_split(x, dim, 0, sizes, count, out);
}

/* chunk_size and chunk_count return the size and number of torch.chunk's pieces of n elements: the
 * size is ceil(n / k), which may make fewer than k pieces. If n is 0, there are k empty pieces. */
static int64_t chunk_size(int64_t n, int k)
{
    if (n < 0 || k < 1)
        return EK_FAIL(EK_E_INVALID,
                       "chunk: %lld elements into %d chunks; there must be at least 1",
                       (long long)n, k);
    return n / k + (n % k != 0);
}

static int chunk_count(int64_t n, int k, int64_t size)
{
    return n == 0 ? k : (int)((n - 1) / size + 1);
}

int ek_chunk(ek_tensor *x, int chunks, int dim, ek_tensor **out, int capacity)
{
    if (!ek_given("chunk", "x", x))
        return ek_error_pending();
    EK_TRY(dim = ek_dimension("chunk", x, dim));
    int64_t size = chunk_size(x->shape[dim], chunks);
    if (size < 0)
        return (int)size;
    int count = chunk_count(x->shape[dim], chunks, size);
    EK_TRY(join_fits("chunk", count, out, capacity));
    EK_TRY(join_split(x, dim, size, NULL, count, out));
    return count;
}

int ek_chunk_sizes(int64_t n, int k, int64_t *sizes)
{
    int64_t size = chunk_size(n, k);
    if (size < 0)
        return (int)size;
    if (!sizes)
        return EK_FAIL(EK_E_INVALID, "chunk: sizes is NULL");
    int count = chunk_count(n, k, size);
    for (int i = 0; i < count; i++) {
        sizes[i] = n < size ? n : size;
        n -= sizes[i];
    }
    return count;
}
