/* pad.c: tensors with a margin. */
#include "ops/attributes.h"
#include "ops/ops.h"

/* ---- constants: the gradient is cut out by negative padding ---- */

static ek_tensor *pad_constant(ek_tensor *x, const ek_pad_attributes *sides, double value);

static int pad_constant_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_pad_attributes sides = *(const ek_pad_attributes *)ek_node_attributes(node);
    for (int d = 0; d < EK_MAX_DIMS; d++) {
        sides.before[d] = -sides.before[d];
        sides.after[d] = -sides.after[d];
    }
    results[0] = pad_constant(gradients[0], &sides, 0);
    return 0;
}

EK_OPERATION(pad_constant, "pad", pad_constant_backward);

/* Writes the number to the margin of y, and x into its middle. */
static int pad_run(ek_tensor *y, const ek_tensor *x, const ek_pad_attributes *sides, double value)
{
    ek_tensor middle, margin;
    ek_dev *dev = ek_tensor_dev(y);
    const ek_kernels *kernels = ek_kernels_of(y);
    ek_borrow(&middle, y);
    for (int d = 0; d < y->ndim; d++) {
        int64_t before = sides->before[d], size = x->shape[d];
        for (int side = 0; side < 2; side++) {
            int64_t start = side ? before + size : 0, length = side ? sides->after[d] : before;
            ek_borrow_slice(&margin, &middle, d, length > 0 ? start : 0, length, 1);
            if (ek_count(&margin) > 0)
                EK_TRY(kernels->fill(dev, &margin, value));
        }
        ek_tensor whole = middle;
        ek_borrow_slice(&middle, &whole, d, size > 0 ? before : 0, size, 1);
    }
    return ek_count(x) > 0 ? kernels->copy(dev, &middle, x) : 0;
}

static ek_tensor *pad_constant(ek_tensor *x, const ek_pad_attributes *sides, double value)
{
    ek_pad_attributes added = {.value = value};
    ek_shape shape = ek_tensor_shape(x);
    bool grows = false;
    for (int d = 0; x && d < shape.ndim; d++) {
        int64_t before = sides->before[d], after = sides->after[d];
        int64_t first = before < 0 ? -before : 0, cut = first + (after < 0 ? -after : 0);
        if (cut > 0)
            x = ek_narrow(x, d, first, shape.dims[d] - cut);
        added.before[d] = before > 0 ? before : 0;
        added.after[d] = after > 0 ? after : 0;
        shape.dims[d] += before + after;
        grows = grows || before > 0 || after > 0;
    }
    if (!x || !grows)
        return x;
    bool channels_last = x->ndim == 4 && !ek_tensor_is_contiguous(x, EK_CONTIGUOUS) &&
                         ek_tensor_is_contiguous(x, EK_CHANNELS_LAST);
    ek_tensor *y = ek_tensor_new(ek_tensor_dev(x), x->dtype, &shape,
                                 channels_last ? EK_CHANNELS_LAST : EK_CONTIGUOUS);
    if (!y || pad_run(y, x, &added, value) < 0)
        return NULL;
    return EK_RECORD(y, &pad_constant_operation, EK_INPUTS(x), EK_ATTRIBUTES(added));
}

/* ---- the other modes repeat elements of x, dimension by dimension ---- */

/* Returns the position in a dimension of `size` that padded position `at` shows; -1 is the position
 * before the first element. */
static int64_t pad_position(ek_pad_mode mode, int64_t at, int64_t size)
{
    if (at >= 0 && at < size)
        return at;
    if (mode == EK_PAD_REPLICATE)
        return at < 0 ? 0 : size - 1;
    if (mode == EK_PAD_CIRCULAR)
        return at < 0 ? at + size : at - size;
    return at < 0 ? -at : 2 * (size - 1) - at;
}

static ek_tensor *pad_dim(ek_tensor *x, ek_pad_mode mode, int dim, int64_t before, int64_t after)
{
    int64_t size = x->shape[dim], count = size + before + after;
    int64_t most = mode == EK_PAD_REFLECT ? size - 1 : mode == EK_PAD_CIRCULAR ? size : INT64_MAX;
    if (size == 0 || count < 1 || before > most || after > most)
        return EK_REFUSE(EK_E_SHAPE,
                         "pad: %lld before and %lld after dimension %d of size %lld; %s",
                         (long long)before, (long long)after, dim, (long long)size,
                         mode == EK_PAD_REFLECT    ? "a reflection must be smaller than the size"
                         : mode == EK_PAD_CIRCULAR ? "circular padding can't exceed the size"
                                                   : "there must be an element");
    ek_tensor *index = ek_empty(EK_SHAPE(count), EK_I64);
    int64_t *positions = index ? ek_tensor_address(index) : NULL;
    for (int64_t i = 0; index && i < count; i++)
        positions[i] = pad_position(mode, i - before, size);
    return ek_index_select(x, dim, ek_to_device(index, ek_tensor_dev(x)->id));
}

/* Reads the numbers, which begin with the last dimension's. */
static bool pad_read(ek_tensor *x, const int64_t *pad, int count, ek_pad_mode mode,
                     ek_pad_attributes *sides)
{
    int most = mode == EK_PAD_CONSTANT || x->ndim < 3 ? x->ndim : 3;
    if (!ek_chosen("pad", "mode", (int)mode, 4,
                   "EK_PAD_CONSTANT, EK_PAD_REFLECT, EK_PAD_REPLICATE or EK_PAD_CIRCULAR"))
        return false;
    if (count < 0 || count % 2 != 0 || count > 2 * most || (count > 0 && !pad))
        return EK_REFUSE(EK_E_INVALID,
                         "pad: %d numbers; there must be two for each padded dimension, of which "
                         "there can be %d",
                         count, most);
    *sides = (ek_pad_attributes){.value = 0};
    for (int i = 0; i < count / 2; i++) {
        int d = x->ndim - 1 - i;
        int64_t before = pad[2 * i], after = pad[2 * i + 1], size;
        if (__builtin_add_overflow(before, after, &size) || before < -x->shape[d] ||
            after < -x->shape[d] || __builtin_add_overflow(size, x->shape[d], &size) || size < 0)
            return EK_REFUSE(EK_E_SHAPE,
                             "pad: %lld before and %lld after dimension %d of size %lld",
                             (long long)before, (long long)after, d, (long long)x->shape[d]);
        sides->before[d] = before;
        sides->after[d] = after;
    }
    return true;
}

ek_tensor *ek_f_pad(ek_tensor *x, const int64_t *pad, int count, ek_pad_mode mode, double value)
{
    ek_pad_attributes sides;
    if (!ek_given("pad", "x", x) || !pad_read(x, pad, count, mode, &sides))
        return NULL;
    ek_tensor *y = x;
    if (mode == EK_PAD_CONSTANT) {
        if (!ek_holds("pad", "the value", x->dtype, value))
            return NULL;
        y = pad_constant(x, &sides, value);
    }
    for (int d = x->ndim - 1; mode != EK_PAD_CONSTANT && y && d >= x->ndim - count / 2; d--)
        if (sides.before[d] != 0 || sides.after[d] != 0)
            y = pad_dim(y, mode, d, sides.before[d], sides.after[d]);
    return y && y->storage == x->storage ? ek_clone(y) : y;
}
