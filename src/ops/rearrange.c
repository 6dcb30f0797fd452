/* rearrange.c: elements in another order, repeated, or along diagonals. */
#include "ops/attributes.h"
#include "ops/ops.h"

/* Makes the entries of `dims`, dimensions of x, non-negative. Returns false with an error if x
 * lacks a dimension, or a dimension occurs twice. */
static bool rearrange_dims(const char *operation, const ek_tensor *x, ek_shape *dims)
{
    unsigned seen = 0;
    if (dims->ndim < 0 || dims->ndim > EK_MAX_DIMS)
        return EK_REFUSE(EK_E_INVALID, "%s: %d dimensions; there can be 0 to %d", operation,
                         dims->ndim, EK_MAX_DIMS);
    for (int i = 0; i < dims->ndim; i++) {
        int dim = ek_dimension(operation, x, dims->dims[i]);
        if (dim < 0)
            return false;
        if (seen >> dim & 1)
            return EK_REFUSE(EK_E_SHAPE, "%s: dimension %d is given twice", operation, dim);
        seen |= 1u << dim;
        dims->dims[i] = dim;
    }
    return true;
}

/* ---- flip: the gradient is flipped ---- */

EK_BACKWARD(flip, ek_shape, ek_flip(g, *a))
EK_OPERATION(flip, "flip", flip_backward);

ek_tensor *ek_flip(ek_tensor *x, ek_shape dims)
{
    if (dims.ndim == 1 && ek_is_scalar_dim(x, dims.dims[0]))
        dims.ndim = 0;
    if (!ek_given("flip", "x", x) || !rearrange_dims("flip", x, &dims))
        return NULL;
    ek_tensor *y = ek_result(x, NULL, NULL, x->dtype), from;
    ek_borrow(&from, x);
    for (int i = 0; i < dims.ndim; i++)
        if (x->shape[dims.dims[i]] > 1) { /* read from its end on */
            from.offset += (x->shape[dims.dims[i]] - 1) * x->stride[dims.dims[i]];
            from.stride[dims.dims[i]] *= -1;
        }
    if (!y || (ek_count(y) > 0 && ek_kernels_of(y)->copy(ek_tensor_dev(y), y, &from) < 0))
        return NULL;
    return EK_RECORD(y, &flip_operation, EK_INPUTS(x), EK_ATTRIBUTES(dims));
}

/* ---- roll along one dimension: the gradient is rolled back ---- */

static ek_tensor *roll_one(ek_tensor *x, int dim, int64_t shift);
EK_BACKWARD(roll, ek_roll_attributes, roll_one(g, a->dim, -a->shift))
EK_OPERATION(roll, "roll", roll_backward);

static ek_tensor *roll_one(ek_tensor *x, int dim, int64_t shift)
{
    int64_t size = x->shape[dim];
    ek_tensor *y = ek_result(x, NULL, NULL, x->dtype), from, to;
    shift = size == 0 ? 0 : (shift % size + size) % size;
    if (!y)
        return NULL;
    for (int end = 0; end < 2; end++) {
        ek_borrow_slice(&from, x, dim, end ? size - shift : 0, end ? shift : size - shift, 1);
        ek_borrow_slice(&to, y, dim, end ? 0 : shift, end ? shift : size - shift, 1);
        if (ek_count(&to) > 0 && ek_kernels_of(y)->copy(ek_tensor_dev(y), &to, &from) < 0)
            return NULL;
    }
    ek_roll_attributes attributes = {dim, shift};
    return EK_RECORD(y, &roll_operation, EK_INPUTS(x), EK_ATTRIBUTES(attributes));
}

ek_tensor *ek_roll(ek_tensor *x, ek_shape shifts, ek_shape dims)
{
    if (!ek_given("roll", "x", x))
        return NULL;
    if (dims.ndim == 0 && shifts.ndim == 1) {
        ek_tensor *row = ek_reshape(x, EK_SHAPE(-1));
        return row ? ek_reshape(roll_one(row, 0, shifts.dims[0]), ek_tensor_shape(x)) : NULL;
    }
    if (shifts.ndim != dims.ndim || dims.ndim < 1 || dims.ndim > EK_MAX_DIMS)
        return EK_REFUSE(EK_E_INVALID, "roll: %d shifts for %d dimensions", shifts.ndim, dims.ndim);
    for (int i = 0; x && i < dims.ndim; i++) {
        int dim = ek_dimension("roll", x, dims.dims[i]);
        x = dim < 0 ? NULL : roll_one(x, dim, shifts.dims[i]);
    }
    return x;
}

/* ---- repeat: by way of an expanded dimension ---- */

/* Repeats dimension `dim` of x `times` times: as a whole, or with `each` element by element. */
static ek_tensor *repeat_dim(const char *operation, ek_tensor *x, int dim, int64_t times, bool each)
{
    ek_shape shape = ek_tensor_shape(x);
    int64_t before = 1, after = 1;
    for (int d = 0; d < x->ndim; d++)
        *(d < dim + each ? &before : &after) *= x->shape[d];
    if (__builtin_mul_overflow(shape.dims[dim], times, &shape.dims[dim]))
        return EK_REFUSE(EK_E_SHAPE, "%s: dimension %d of %lld elements %lld times is too large",
                         operation, dim, (long long)x->shape[dim], (long long)times);
    x = ek_reshape(x, EK_SHAPE(before, 1, after));
    return ek_reshape(ek_expand(x, EK_SHAPE(before, times, after)), shape);
}

static ek_tensor *repeat_all(const char *operation, ek_tensor *x, ek_shape times)
{
    bool fits = times.ndim >= x->ndim && times.ndim <= EK_MAX_DIMS;
    for (int d = 0; fits && d < times.ndim; d++)
        fits = times.dims[d] >= 0;
    if (!fits)
        return EK_REFUSE(EK_E_SHAPE,
                         "%s: numbers %s for x of shape %s; there must be one for each dimension, "
                         "none of them negative, and at most %d",
                         operation, EK_SHAPE_TEXT(&times), EK_SIZE_TEXT(x), EK_MAX_DIMS);
    ek_shape shape = {.ndim = times.ndim};
    for (int d = 0; d < times.ndim; d++) {
        int own = d - (times.ndim - x->ndim);
        shape.dims[d] = own < 0 ? 1 : x->shape[own];
    }
    ek_tensor *y = ek_reshape(x, shape);
    for (int d = times.ndim - 1; y && d >= 0; d--)
        if (times.dims[d] != 1)
            y = repeat_dim(operation, y, d, times.dims[d], false);
    return y && y->storage == x->storage ? ek_clone(y) : y;
}

ek_tensor *ek_repeat(ek_tensor *x, ek_shape times)
{
    return ek_given("repeat", "x", x) ? repeat_all("repeat", x, times) : NULL;
}

ek_tensor *ek_tile(ek_tensor *x, ek_shape times)
{
    if (!ek_given("tile", "x", x))
        return NULL;
    if (times.ndim < 0 || times.ndim >= x->ndim)
        return repeat_all("tile", x, times);
    int missing = x->ndim - times.ndim;
    ek_shape all = {.ndim = x->ndim};
    for (int d = 0; d < x->ndim; d++)
        all.dims[d] = d < missing ? 1 : times.dims[d - missing];
    return repeat_all("tile", x, all);
}

ek_tensor *ek_repeat_interleave(ek_tensor *x, int64_t times, int dim)
{
    if (!ek_given("repeat_interleave", "x", x) ||
        (dim = ek_dimension("repeat_interleave", x, dim)) < 0)
        return NULL;
    if (times < 0)
        return EK_REFUSE(EK_E_INVALID, "repeat_interleave: %lld times; that must not be negative",
                         (long long)times);
    return times == 1 ? ek_clone(x) : repeat_dim("repeat_interleave", x, dim, times, true);
}

/* Writes the positions of elements that occur times[i] times to a tensor on cpu. */
static ek_tensor *repeat_positions(const int64_t *times, int64_t count)
{
    int64_t total = 0, at = 0;
    for (int64_t i = 0; i < count; i++) {
        if (times[i] < 0 || __builtin_add_overflow(total, times[i], &total))
            return EK_REFUSE(EK_E_INVALID,
                             "repeat_interleave: element %lld %lld times; that must not be "
                             "negative, nor all together too many",
                             (long long)i, (long long)times[i]);
    }
    ek_tensor *index = ek_empty(EK_SHAPE(total), EK_I64);
    int64_t *position = index ? ek_tensor_address(index) : NULL;
    for (int64_t i = 0; index && i < count; i++)
        for (int64_t j = 0; j < times[i]; j++)
            position[at++] = i;
    return index;
}

ek_tensor *ek_repeat_interleave_by(ek_tensor *x, ek_tensor *times, int dim)
{
    if (!ek_given("repeat_interleave", "x", x) ||
        !(times = ek_as_index("repeat_interleave", "times", times)) ||
        (dim = ek_dimension("repeat_interleave", x, dim)) < 0 ||
        !ek_of_shape("repeat_interleave", "times", times, &EK_SHAPE(x->shape[dim])))
        return NULL;
    times = ek_contiguous(ek_to_device(times, ek_cpu()), EK_CONTIGUOUS);
    if (!times)
        return NULL;
    ek_tensor *index = repeat_positions(ek_tensor_address(times), times->shape[0]);
    return ek_index_select(x, dim, ek_to_device(index, ek_tensor_dev(x)->id));
}

/* ---- triangles and diagonals ---- */

static ek_tensor *triangle(const char *operation, ek_tensor *x, int64_t diagonal, bool lower)
{
    if (!ek_given(operation, "x", x))
        return NULL;
    if (x->ndim < 2)
        return EK_REFUSE(EK_E_SHAPE, "%s: x has %d dimensions and must have at least 2", operation,
                         x->ndim);
    int64_t rows = x->shape[x->ndim - 2], columns = x->shape[x->ndim - 1];
    ek_device device = ek_tensor_dev(x)->id;
    diagonal = diagonal < -rows - 1 ? -rows - 1 : diagonal > columns ? columns : diagonal;
    ek_tensor *row = ek_reshape(ek_arange(rows, EK_I64, device), EK_SHAPE(rows, 1));
    ek_tensor *column = ek_arange(columns, EK_I64, device);
    row = ek_add_scalar(row, (double)diagonal);
    ek_tensor *kept = lower ? ek_le(column, row) : ek_ge(column, row);
    return ek_where(kept, x, ek_number_like(x, 0));
}

ek_tensor *ek_tril(ek_tensor *x, int64_t diagonal)
{
    return triangle("tril", x, diagonal, true);
}

ek_tensor *ek_triu(ek_tensor *x, int64_t diagonal)
{
    return triangle("triu", x, diagonal, false);
}

typedef struct diagonal_attributes {
    ek_shape shape; /* x's shape */
    int64_t diagonal;
    int dim0, dim1;
} diagonal_attributes;

static ek_tensor *diagonal_view(ek_tensor *x, const diagonal_attributes *a);
static ek_tensor *diagonal_place(ek_tensor *x, const diagonal_attributes *a);
EK_BACKWARD(diagonal, diagonal_attributes, diagonal_place(g, a))
EK_BACKWARD(diagonal_place, diagonal_attributes, diagonal_view(g, a))
EK_OPERATION(diagonal, "diagonal", diagonal_backward);
EK_OPERATION(diagonal_place, "diag", diagonal_place_backward);

/* `view` shows the diagonals of x, borrowed. */
static void diagonal_borrow(ek_tensor *view, const ek_tensor *x, const diagonal_attributes *a)
{
    int64_t rows = x->shape[a->dim0], columns = x->shape[a->dim1];
    int64_t down = a->diagonal < -rows ? rows : a->diagonal < 0 ? -a->diagonal : 0;
    int64_t right = a->diagonal > columns ? columns : a->diagonal > 0 ? a->diagonal : 0;
    rows -= down;
    columns -= right;
    int64_t size = rows < columns ? rows : columns;
    int to = 0;
    ek_borrow(view, x);
    for (int d = 0; d < x->ndim; d++) {
        if (d == a->dim0 || d == a->dim1)
            continue;
        view->shape[to] = x->shape[d];
        view->stride[to++] = x->stride[d];
    }
    view->ndim = to + 1;
    view->shape[to] = size > 0 ? size : 0;
    view->stride[to] = x->stride[a->dim0] + x->stride[a->dim1];
    if (size > 0)
        view->offset += down * x->stride[a->dim0] + right * x->stride[a->dim1];
}

static ek_tensor *diagonal_view(ek_tensor *x, const diagonal_attributes *a)
{
    ek_tensor view;
    diagonal_borrow(&view, x, a);
    return EK_RECORD(ek_tensor_view(x, view.ndim, view.shape, view.stride, view.offset),
                     &diagonal_operation, EK_INPUTS(x), EK_ATTRIBUTES(*a));
}

/* Zeros with x on the diagonals. */
static ek_tensor *diagonal_place(ek_tensor *x, const diagonal_attributes *a)
{
    ek_tensor view, *y = ek_filled(ek_tensor_dev(x), x->dtype, &a->shape, 0);
    if (!y)
        return NULL;
    diagonal_borrow(&view, y, a);
    if (ek_count(&view) > 0 && ek_kernels_of(y)->copy(ek_tensor_dev(y), &view, x) < 0)
        return NULL;
    return EK_RECORD(y, &diagonal_place_operation, EK_INPUTS(x), EK_ATTRIBUTES(*a));
}

ek_tensor *ek_diagonal(ek_tensor *x, int64_t diagonal, int dim0, int dim1)
{
    ek_shape dims = EK_SHAPE(dim0, dim1);
    if (!ek_given("diagonal", "x", x) || !rearrange_dims("diagonal", x, &dims))
        return NULL;
    return diagonal_view(x, &(diagonal_attributes){ek_tensor_shape(x), diagonal, (int)dims.dims[0],
                                                   (int)dims.dims[1]});
}

ek_tensor *ek_diag(ek_tensor *x, int64_t diagonal)
{
    if (!ek_given("diag", "x", x))
        return NULL;
    if (x->ndim == 2)
        return ek_clone(ek_diagonal(x, diagonal, 0, 1));
    if (x->ndim != 1)
        return EK_REFUSE(EK_E_SHAPE, "diag: x has %d dimensions and must have 1 or 2", x->ndim);
    int64_t size;
    if (diagonal < 0 ? __builtin_sub_overflow(x->shape[0], diagonal, &size)
                     : __builtin_add_overflow(x->shape[0], diagonal, &size))
        return EK_REFUSE(EK_E_SHAPE, "diag: diagonal %lld is too far from the main one",
                         (long long)diagonal);
    return diagonal_place(x, &(diagonal_attributes){EK_SHAPE(size, size), diagonal, 0, 1});
}

/* ---- other shapes ---- */

ek_tensor *ek_movedim(ek_tensor *x, int from, int to)
{
    if (ek_is_scalar_dim(x, from) && ek_is_scalar_dim(x, to))
        return ek_permute(x, ek_scalar_shape());
    if (!ek_given("movedim", "x", x) || (from = ek_dimension("movedim", x, from)) < 0 ||
        (to = ek_dimension("movedim", x, to)) < 0)
        return NULL;
    ek_shape order = {.ndim = x->ndim};
    for (int i = 0, d = 0; i < x->ndim; i++) {
        d += d == from;
        order.dims[i] = i == to ? from : d++;
    }
    return ek_permute(x, order);
}

ek_tensor *ek_f_unflatten(ek_tensor *x, int dim, ek_shape shape)
{
    if (!ek_given("unflatten", "x", x) || (dim = ek_dimension("unflatten", x, dim)) < 0)
        return NULL;
    int64_t known = 1;
    int open = -1;
    if (shape.ndim < 1 || shape.ndim > EK_MAX_DIMS + 1 - x->ndim)
        return EK_REFUSE(EK_E_SHAPE, "unflatten: %d dimensions for one; there can be 1 to %d",
                         shape.ndim, EK_MAX_DIMS + 1 - x->ndim);
    ek_shape whole = {.ndim = x->ndim - 1 + shape.ndim};
    for (int i = 0; i < shape.ndim; i++) {
        if (shape.dims[i] == -1)
            open = i;
        else if (shape.dims[i] < 0 || __builtin_mul_overflow(known, shape.dims[i], &known))
            known = 0; /* fits nothing */
    }
    if (open >= 0 && known > 0 && x->shape[dim] % known == 0)
        shape.dims[open] = x->shape[dim] / known;
    if (ek_shape_count(&shape) != x->shape[dim])
        return EK_REFUSE(EK_E_SHAPE, "unflatten: dimension %d of %lld elements does not fit %s",
                         dim, (long long)x->shape[dim], EK_SHAPE_TEXT(&shape));
    for (int i = 0; i < whole.ndim; i++)
        whole.dims[i] = i < dim                ? x->shape[i]
                        : i < dim + shape.ndim ? shape.dims[i - dim]
                                               : x->shape[i - shape.ndim + 1];
    return ek_reshape(x, whole);
}

int ek_unbind(ek_tensor *x, int dim, ek_tensor **out, int capacity)
{
    if (!ek_given("unbind", "x", x))
        return ek_error_pending();
    EK_TRY(dim = ek_dimension("unbind", x, dim));
    if (x->shape[dim] == 0)
        return 0;
    int count = ek_split(x, 1, dim, out, capacity);
    for (int i = 0; i < count; i++)
        if (!(out[i] = ek_squeeze(out[i], dim)))
            return ek_error_pending();
    return count;
}

int ek_meshgrid(ek_tensor *const *tensors, int count, ek_indexing indexing, ek_tensor **out)
{
    if (!tensors || !out)
        return EK_FAIL(EK_E_INVALID, "meshgrid: %s is NULL", tensors ? "out" : "tensors");
    if (count < 1 || count > EK_MAX_DIMS)
        return EK_FAIL(EK_E_INVALID, "meshgrid: %d tensors; there can be 1 to %d", count,
                       EK_MAX_DIMS);
    if (!ek_chosen("meshgrid", "indexing", (int)indexing, 2, "EK_IJ or EK_XY"))
        return ek_error_pending();
    ek_shape shape = {.ndim = count};
    int place[EK_MAX_DIMS];
    for (int i = 0; i < count; i++) {
        if (!ek_given("meshgrid", "a tensor", tensors[i]))
            return ek_error_pending();
        if (tensors[i]->ndim > 1)
            return EK_FAIL(EK_E_SHAPE, "meshgrid: tensor %d has %d dimensions and must have 1", i,
                           tensors[i]->ndim);
        place[i] = indexing == EK_XY && count > 1 && i < 2 ? 1 - i : i;
        shape.dims[place[i]] = ek_count(tensors[i]);
    }
    for (int i = 0; i < count; i++) {
        ek_shape own = {.ndim = count};
        for (int d = 0; d < count; d++)
            own.dims[d] = d == place[i] ? shape.dims[d] : 1;
        out[i] = ek_expand(ek_reshape(tensors[i], own), shape);
        if (!out[i])
            return ek_error_pending();
    }
    return 0;
}
