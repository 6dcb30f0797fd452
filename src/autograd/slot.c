/* slot.c: summing gradients if several meet. */
#include "autograd/basic.h"
#include "autograd/run.h"
#include "kernels/kernels.h"

bool ek_is_exclusive(const ek_tensor *tensor)
{
    /* Acquire: whoever gave up the other references has finished with the memory. */
    return atomic_load_explicit((atomic_int *)&tensor->object.references, memory_order_acquire) ==
               1 &&
           atomic_load_explicit(&tensor->storage->object.references, memory_order_acquire) == 1;
}

/* sum + gradient, in memory of one of the two if nobody else sees it. Takes both references; the
 * result, one reference, is NULL on error. */
static ek_tensor *add(const ek_run *run, ek_tensor *sum, ek_tensor *gradient)
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
        slot->sum = slot->sum ? add(run, slot->sum, gradient) : gradient;
        if (!slot->sum)
            return ek_error_pending();
    }
    return 0;
}
