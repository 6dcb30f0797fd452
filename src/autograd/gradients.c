/* gradients.c: adds gradients in input buffers and in leaves, and defines the few differentiable
 * operations that these sums need. src/ops has the other operations. */
#include "autograd/run.h"
#include "kernels/kernels.h"

/* ---- operations ---- */

/* Backward of sums and copies: each input gets the output's gradient. */
static int gradient_same_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    for (int i = 0; i < node->input_count; i++)
        results[i] = gradients[0];
    return 0;
}

static const ek_operation add_operation = {.name = "gradient sum",
                                           .backward = gradient_same_backward};

ek_tensor *ek_fold_add(ek_tensor *x, ek_tensor *y)
{
    if (!x || !y)
        return NULL;
    /* The sum takes the layout of a dense term, because a broadcast gradient has zero strides. */
    ek_tensor *sum = ek_tensor_like(ek_is_dense(x) ? x : y);
    if (!sum || ek_kernels_of(sum)->binary(ek_tensor_dev(sum), EK_BINARY_ADD, sum, x, y, 1) < 0)
        return NULL;
    return EK_RECORD(sum, &add_operation, EK_INPUTS(x, y));
}

static const ek_operation copy_operation = {.name = "gradient copy",
                                            .backward = gradient_same_backward};

ek_tensor *ek_fold_copy(ek_tensor *x, const ek_tensor *like)
{
    if (!x)
        return NULL;
    ek_tensor *copy = ek_tensor_like(like);
    if (!copy || ek_kernels_of(copy)->copy(ek_tensor_dev(copy), copy, x) < 0)
        return NULL;
    return EK_RECORD(copy, &copy_operation, EK_INPUTS(x));
}

ek_tensor *ek_fold_whole(const ek_tensor *x, const ek_shape *shape)
{
    bool channels_last = x->ndim == 4 && !ek_tensor_is_contiguous(x, EK_CONTIGUOUS) &&
                         ek_tensor_is_contiguous(x, EK_CHANNELS_LAST);
    return ek_tensor_new(ek_tensor_dev(x), x->dtype, shape,
                         channels_last ? EK_CHANNELS_LAST : EK_CONTIGUOUS);
}

static int gradient_cast_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    results[0] = ek_fold_cast(gradients[0], *(const ek_dtype *)ek_node_attributes(node));
    return 0;
}

static const ek_operation cast_operation = {.name = "gradient cast",
                                            .backward = gradient_cast_backward};

ek_tensor *ek_fold_cast(ek_tensor *x, ek_dtype dtype)
{
    if (!x || x->dtype == dtype)
        return x;
    ek_dtype before = x->dtype;
    ek_tensor *y = ek_tensor_like_dtype(x, dtype);
    if (!y || ek_kernels_of(y)->copy(ek_tensor_dev(y), y, x) < 0)
        return NULL;
    return EK_RECORD(y, &cast_operation, EK_INPUTS(x), EK_ATTRIBUTES(before));
}

/* ---- sums in input buffers ---- */

/* Returns true if the caller has the only handle on the tensor's memory. */
static bool gradient_is_exclusive(const ek_tensor *tensor)
{
    /* Acquire: threads that released the other references have finished with the memory. */
    return atomic_load_explicit((atomic_int *)&tensor->object.references, memory_order_acquire) ==
               1 &&
           atomic_load_explicit(&tensor->storage->object.references, memory_order_acquire) == 1;
}

/* Returns sum + gradient. The result lies in `into`, which may be either of the two. If `into` is
 * NULL, the result lies in new memory, and is recorded if create_graph. Takes both references;
 * returns one reference, or NULL with an error. */
static ek_tensor *gradient_sum(ek_tensor *sum, ek_tensor *gradient, ek_tensor *into,
                               bool create_graph, const char *writer)
{
    ek_tensor *out = NULL;
    if (into) {
        int rc =
            ek_kernels_of(into)->binary(ek_tensor_dev(into), EK_BINARY_ADD, into, sum, gradient, 1);
        ek_tensor_written(into, writer);
        out = rc < 0 ? NULL : ek_keep(into);
    } else {
        ek_scope scope = ek_scope_begin();
        bool enabled = ek_set_grad_enabled(create_graph);
        out = ek_keep(ek_fold_add(sum, gradient));
        ek_set_grad_enabled(enabled);
        ek_scope_end(&scope);
    }
    ek_release(sum);
    ek_release(gradient);
    return out;
}

/* Adds in the memory of the sum or of the gradient if nobody else has a handle on it. The last sum
 * of a leaf is written to `slot`, the memory of the leaf's gradient, unless that is NULL. */
static ek_tensor *buffer_add(const ek_run *run, ek_tensor *slot, ek_tensor *sum,
                             ek_tensor *gradient)
{
    ek_tensor *into = slot;
    if (!run->create_graph && !into)
        into = gradient_is_exclusive(sum) && ek_is_dense(sum)             ? sum
               : gradient_is_exclusive(gradient) && ek_is_dense(gradient) ? gradient
                                                                          : NULL;
    return gradient_sum(sum, gradient, into, run->create_graph, "gradient sum");
}

/* Takes the contribution with the next ordinal. Returns false if it hasn't arrived. */
static bool buffer_take_next(ek_run *run, ek_buffer *buffer, ek_contribution *next)
{
    if (buffer->summed == buffer->expected)
        return false;
    ek_run_lock(run);
    *next = buffer->contributions[buffer->summed];
    ek_run_unlock(run);
    buffer->summed += next->arrived;
    return next->arrived;
}

/* Returns the leaf's grad buffer if the leaf has no gradient yet and nothing else captures the sum;
 * else NULL. */
static ek_tensor *buffer_slot(const ek_run *run, const ek_task *task, const ek_buffer *buffer)
{
    const ek_tensor *leaf =
        task->runs && !run->create_graph && !buffer->capture ? task->leaf : NULL;
    return leaf && !leaf->grad && !leaf->hooks && buffer->summed == buffer->expected
               ? leaf->grad_buffer
               : NULL;
}

/* ---- gradients of slices, which are put in their places in the sum ---- */

/* Writes zeros to elements [begin, end) of the sum along the buffer's dimension. */
static int slice_clear(const ek_buffer *buffer, int64_t begin, int64_t end)
{
    ek_tensor gap;
    if (begin >= end)
        return 0;
    ek_borrow_slice(&gap, buffer->sum, buffer->dim, begin, end - begin, 1);
    return ek_kernels_of(buffer->sum)->fill(ek_tensor_dev(buffer->sum), &gap, 0);
}

/* Writes the zeros of a partial sum. */
static int slice_complete(ek_buffer *buffer)
{
    if (!buffer->partial)
        return 0;
    EK_TRY(slice_clear(buffer, 0, buffer->begin));
    EK_TRY(slice_clear(buffer, buffer->end, buffer->sum->shape[buffer->dim]));
    buffer->partial = false;
    return 0;
}

/* Begins a sum of which no element is set. */
static int slice_begin(ek_buffer *buffer, const ek_tensor *part, const ek_slice_attributes *slice,
                       int64_t start)
{
    ek_scope scope = ek_scope_begin();
    buffer->sum = ek_keep(ek_fold_whole(part, &slice->shape));
    ek_scope_end(&scope);
    if (!buffer->sum)
        return ek_error_pending();
    buffer->partial = true;
    buffer->dim = slice->dim;
    buffer->begin = buffer->end = start;
    return 0;
}

/* Replaces the sum by a copy if the sum may not be written in place. */
static int slice_own_sum(ek_buffer *buffer)
{
    ek_tensor *sum = buffer->sum;
    if (gradient_is_exclusive(sum) && ek_is_dense(sum))
        return 0;
    ek_scope scope = ek_scope_begin();
    bool enabled = ek_set_grad_enabled(false);
    buffer->sum = ek_keep(ek_fold_copy(sum, sum));
    ek_set_grad_enabled(enabled);
    ek_scope_end(&scope);
    ek_release(sum);
    return buffer->sum ? 0 : ek_error_pending();
}

/* Puts the gradient of a slice in its place: copies it to elements that are not set, or adds it.
 * Neighbours that come one after the other, and cover the whole, leave no zeros to be written. */
static int slice_add(ek_buffer *buffer, const ek_tensor *gradient, const ek_slice_attributes *slice)
{
    const int dim = slice->dim;
    ek_tensor part, place;
    ek_borrow(&part, gradient);
    if (slice->drop) {
        for (int i = part.ndim++; i > dim; i--) {
            part.shape[i] = part.shape[i - 1];
            part.stride[i] = part.stride[i - 1];
        }
        part.shape[dim] = part.stride[dim] = 1;
    }
    const int64_t length = part.shape[dim], start = length > 0 ? slice->start : 0;
    const bool fresh = !buffer->sum, run = length < 2 || slice->step == 1;
    if (fresh)
        EK_TRY(slice_begin(buffer, &part, slice, start));
    bool unset = buffer->partial && buffer->dim == dim && run &&
                 (start >= buffer->end || start + length <= buffer->begin);
    if (unset && start >= buffer->end) {
        EK_TRY(slice_clear(buffer, buffer->end, start));
        buffer->end = start + length;
    } else if (unset) {
        EK_TRY(slice_clear(buffer, start + length, buffer->begin));
        buffer->begin = start;
    } else {
        EK_TRY(slice_complete(buffer));
        EK_TRY(slice_own_sum(buffer));
    }
    ek_tensor *sum = buffer->sum;
    ek_dev *dev = ek_tensor_dev(sum);
    ek_borrow_slice(&place, sum, dim, start, length, slice->step);
    ek_tensor_written(sum, "gradient sum");
    return unset || fresh
               ? ek_kernels_of(sum)->copy(dev, &place, &part)
               : ek_kernels_of(sum)->binary(dev, EK_BINARY_ADD, &place, &place, &part, 1);
}

int ek_buffer_sum(ek_run *run, const ek_task *task, ek_buffer *buffer)
{
    ek_contribution next;
    int rc = 0;
    while (rc >= 0 && buffer_take_next(run, buffer, &next)) {
        ek_tensor *gradient = next.gradient;
        if (gradient && next.slice) {
            rc = slice_add(buffer, gradient, next.slice);
            ek_release(gradient);
        } else if (gradient && buffer->sum) {
            rc = slice_complete(buffer);
            buffer->sum = buffer_add(run, buffer_slot(run, task, buffer), buffer->sum, gradient);
            rc = buffer->sum ? rc : ek_error_pending();
        } else if (gradient) {
            buffer->sum = gradient;
        }
    }
    return rc >= 0 && buffer->summed == buffer->expected ? slice_complete(buffer) : rc;
}

/* ---- sums in leaves ---- */

static bool gradient_fills_storage(const ek_tensor *tensor)
{
    return tensor->offset == 0 &&
           (size_t)ek_count(tensor) * ek_dtype_size(tensor->dtype) == tensor->storage->nbytes;
}

/* Returns a gradient that belongs to the leaf alone: `gradient` if nobody else has a handle on its
 * memory, else a copy. Takes and returns one reference. */
static ek_tensor *gradient_adopt(ek_tensor *leaf, ek_tensor *gradient)
{
    if (gradient_is_exclusive(gradient) && gradient_fills_storage(gradient) &&
        ek_same_layout(gradient, leaf)) {
        ek_storage_assign(gradient->storage, EK_MEMORY_GRADIENT, gradient->storage->path);
        return gradient;
    }
    ek_tensor *copy = ek_keep(ek_fold_copy(gradient, leaf));
    ek_release(gradient);
    return copy;
}

/* Sets a leaf's first gradient: a copy in the leaf's grad buffer; without a grad buffer, or with
 * create_graph, `gradient` or a copy in new memory. With `unset`, `gradient` lies in its final
 * memory already. */
static int gradient_begin(ek_tensor *leaf, ek_tensor *gradient, bool create_graph, bool unset)
{
    ek_tensor *slot = leaf->grad_buffer;
    int rc = 0;
    if (unset && !slot) {
        leaf->grad = gradient;
        return 0;
    }
    if (create_graph || !slot) {
        leaf->grad = gradient_adopt(leaf, gradient);
        return leaf->grad ? 0 : ek_error_pending();
    }
    if (gradient->storage != slot->storage || gradient->offset != slot->offset)
        rc = ek_kernels_of(slot)->copy(ek_tensor_dev(slot), slot, gradient);
    ek_release(gradient);
    if (rc < 0)
        return rc;
    ek_tensor_written(slot, "backward");
    leaf->grad = ek_keep(slot);
    return 0;
}

static int gradient_add(ek_tensor *leaf, ek_tensor *gradient, bool create_graph)
{
    ek_tensor *grad = leaf->grad;
    ek_tensor *sum =
        gradient_sum(ek_keep(grad), gradient, create_graph ? NULL : grad, create_graph, "backward");
    if (!sum)
        return ek_error_pending();
    leaf->grad = sum;
    ek_release(grad);
    return 0;
}

int ek_accumulate(ek_tensor *leaf, ek_tensor *gradient, bool create_graph, bool unset)
{
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_GRADIENT);
    ek_scope scope = ek_scope_begin();
    int rc = leaf->grad ? gradient_add(leaf, gradient, create_graph)
                        : gradient_begin(leaf, gradient, create_graph, unset);
    ek_scope_end(&scope);
    ek_memory_set_category(before);
    return rc;
}
