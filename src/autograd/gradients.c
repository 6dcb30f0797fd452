/* gradients.c: summing gradients, where several meet in the graph and where one arrives at a leaf.
 */

#include "autograd/basic.h"
#include "autograd/run.h"
#include "kernels/kernels.h"

/* ---- where several meet ---- */

bool ek_is_exclusive(const ek_tensor *tensor)
{
    /* Acquire: whoever gave up the other references has finished with the memory. */
    return atomic_load_explicit((atomic_int *)&tensor->object.references, memory_order_acquire) ==
               1 &&
           atomic_load_explicit(&tensor->storage->object.references, memory_order_acquire) == 1;
}

/* sum + gradient, in memory of one of the two if nobody else sees it. Takes both references; the
 * result, one reference, is NULL on error. */
static ek_tensor *slot_add(const ek_run *run, ek_tensor *sum, ek_tensor *gradient)
{
    ek_tensor *out = NULL;
    if (!run->create_graph) {
        if (ek_is_exclusive(sum) && ek_is_dense(sum))
            out = sum;
        else if (ek_is_exclusive(gradient) && ek_is_dense(gradient))
            out = gradient;
    }
    if (out) {
        int rc =
            ek_kernels_of(out)->binary(ek_tensor_dev(out), EK_BINARY_ADD, out, sum, gradient, 1);
        ek_tensor_written(out, "gradient sum");
        out = rc < 0 ? NULL : ek_keep(out);
    } else {
        ek_scope scope = ek_scope_begin();
        bool enabled = ek_set_grad_enabled(run->create_graph);
        out = ek_keep(ek_fold_add(sum, gradient));
        ek_set_grad_enabled(enabled);
        ek_scope_end(&scope);
    }
    ek_release(sum);
    ek_release(gradient);
    return out;
}

/* Takes the next contribution if it has arrived. */
static bool take_next(ek_run *run, ek_slot *slot, ek_tensor **gradient)
{
    if (slot->folded == slot->expected)
        return false;
    if (run->threaded)
        pthread_mutex_lock(&run->lock);
    ek_contribution *next = &slot->contributions[slot->folded];
    bool arrived = next->arrived;
    *gradient = next->gradient;
    if (run->threaded)
        pthread_mutex_unlock(&run->lock);
    slot->folded += arrived;
    return arrived;
}

int ek_slot_fold(ek_run *run, ek_slot *slot)
{
    ek_tensor *gradient;
    while (take_next(run, slot, &gradient)) {
        if (!gradient)
            continue;
        slot->sum = slot->sum ? slot_add(run, slot->sum, gradient) : gradient;
        if (!slot->sum)
            return ek_error_pending();
    }
    return 0;
}

/* ---- a leaf's gradient when a new one arrives ---- */

static void set_grad(ek_tensor *leaf, ek_tensor *grad)
{
    ek_tensor *before = leaf->grad;
    leaf->grad = grad;
    leaf->grad_absent = false;
    ek_release(before);
}

static bool fills_storage(const ek_tensor *tensor)
{
    return tensor->offset == 0 &&
           (size_t)ek_count(tensor) * ek_dtype_size(tensor->dtype) == tensor->storage->nbytes;
}

/* The gradient as the leaf's own, one reference: the tensor itself if nobody else can see it. */
static ek_tensor *adopt(ek_tensor *leaf, ek_tensor *gradient)
{
    if (ek_is_exclusive(gradient) && fills_storage(gradient) && ek_same_layout(gradient, leaf)) {
        ek_storage_recategorise(gradient->storage, EK_MEMORY_GRADIENT);
        return gradient;
    }
    ek_tensor *copy = ek_keep(ek_fold_copy(gradient, leaf));
    ek_release(gradient);
    return copy;
}

/* Into memory that was kept for it. */
static int fill_slot(ek_tensor *grad, ek_tensor *gradient)
{
    int rc = 0;
    if (gradient->storage != grad->storage || gradient->offset != grad->offset)
        rc = ek_kernels_of(grad)->copy(ek_tensor_dev(grad), grad, gradient);
    if (rc >= 0)
        ek_tensor_written(grad, "backward");
    return rc;
}

static int accumulate(ek_tensor *leaf, ek_tensor *gradient, bool create_graph)
{
    ek_tensor *grad = leaf->grad;
    bool absent = !grad || leaf->grad_absent;
    if (grad && absent && !leaf->grad_slot)
        leaf->grad_slot = ek_keep(grad);

    if (grad && absent && !create_graph) {
        int rc = fill_slot(grad, gradient);
        ek_release(gradient);
        if (rc >= 0)
            leaf->grad_absent = false;
        return rc;
    }
    if (absent) {
        ek_tensor *adopted = adopt(leaf, gradient);
        if (!adopted)
            return ek_error_pending();
        set_grad(leaf, adopted);
        return 0;
    }
    if (!create_graph) {
        int rc = ek_kernels_of(grad)->binary(ek_tensor_dev(grad), EK_BINARY_ADD, grad, grad,
                                             gradient, 1);
        ek_tensor_written(grad, "backward");
        ek_release(gradient);
        return rc;
    }
    ek_tensor *sum = ek_keep(ek_fold_add(grad, gradient));
    ek_release(gradient);
    if (!sum)
        return ek_error_pending();
    set_grad(leaf, sum);
    return 0;
}

int ek_accumulate(ek_tensor *leaf, ek_tensor *gradient, bool create_graph)
{
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_GRADIENT);
    ek_scope scope = ek_scope_begin();
    int rc = accumulate(leaf, gradient, create_graph);
    ek_scope_end(&scope);
    ek_memory_set_category(before);
    return rc;
}
