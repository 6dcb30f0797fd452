/* accumulate.c: what becomes of a leaf's gradient when a new one arrives. */
#include "autograd/basic.h"
#include "autograd/run.h"
#include "kernels/kernels.h"

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
