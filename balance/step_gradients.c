/* step_gradients.c: the gradients of all parameters that a training step touches. */
#include <stdlib.h>

#include "autograd/shards.h"
#include "balance/balance.h"
#include "core/map.h"
#include "core/object.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "nn/module_table.h"
#include "optim/optimizer.h"

struct ek_step_gradients {
    int leaf_count;
    ek_tensor **leaves; /* one reference each */
    /* The tensors whose gradients were moved aside, and these gradients (NULL: unset); references.
     */
    int earlier_count;
    ek_tensor **holders, **earlier;
};

/* ---- finding all gradients ---- */

int ek_collect_trained(ek_module *model, const ek_optimizer *optimizer, ek_tensor_list *list)
{
    int status = 0;
    ek_map seen = {0};
    ek_tensor_list all = {0};
    if (model)
        status = ek_module_collect(model, true, false, &all);
    for (int i = 0; optimizer && i < optimizer->slot_count && status >= 0; i++)
        status = ek_tensor_list_append(&all, optimizer->slots[i]->parameter);
    for (int i = 0; i < all.count && status >= 0; i++)
        if (ek_map_add(&seen, all.tensors[i], &status))
            status = ek_tensor_list_append(list, all.tensors[i]);
    ek_tensor_list_clear(&all);
    ek_map_clear(&seen);
    return status;
}

int ek_gradient_holders(ek_tensor *const *leaves, int count, ek_tensor ***holders)
{
    int room = count, n = 0;
    for (int i = 0; i < count; i++)
        room += ek_leaf_shard_count(leaves[i]);
    *holders = ek_calloc((size_t)room + 1, sizeof **holders);
    if (!*holders)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < count; i++) {
        (*holders)[n++] = ek_object_retain(leaves[i]);
        for (int k = 0; leaves[i]->shards && k < ek_leaf_shard_count(leaves[i]); k++)
            (*holders)[n++] = ek_object_retain(ek_leaf_shard(leaves[i], k).tensor);
    }
    return n;
}

ek_step_gradients *ek_step_gradients_new(ek_module *model, ek_optimizer *optimizer)
{
    ek_tensor_list list = {0};
    ek_step_gradients *gradients = ek_calloc(1, sizeof *gradients);
    if (!gradients || ek_collect_trained(model, optimizer, &list) < 0) {
        ek_tensor_list_clear(&list);
        free(gradients);
        return NULL;
    }
    gradients->leaves = list.tensors;
    gradients->leaf_count = list.count;
    for (int i = 0; i < list.count; i++)
        ek_object_retain(list.tensors[i]);
    return gradients;
}

static void gradients_drop_earlier(ek_step_gradients *g)
{
    ek_tensors_release(g->earlier, g->earlier_count);
    ek_tensors_release(g->holders, g->earlier_count);
    g->earlier = g->holders = NULL;
    g->earlier_count = 0;
}

void ek_step_gradients_free(ek_step_gradients *gradients)
{
    gradients_drop_earlier(gradients);
    ek_tensors_release(gradients->leaves, gradients->leaf_count);
    free(gradients);
}

/* ---- earlier gradients ---- */

/* Moves a gradient aside. If it lies in the grad buffer, which the next gradient needs, copies it.
 */
static int gradients_set_one_aside(ek_tensor *holder, ek_tensor **earlier)
{
    ek_tensor *gradient = ek_tensor_grad(holder);
    if (!gradient)
        return 0;
    if (gradient == holder->grad_buffer) {
        ek_memory_category before = ek_memory_set_category(EK_MEMORY_GRADIENT);
        gradient = ek_clone(gradient);
        ek_memory_set_category(before);
    }
    *earlier = ek_keep(gradient);
    if (!*earlier)
        return ek_error_pending();
    ek_leaf_set_own_gradient(holder, NULL);
    return 0;
}

int ek_step_gradients_set_aside(ek_step_gradients *gradients)
{
    int count = ek_gradient_holders(gradients->leaves, gradients->leaf_count, &gradients->holders);
    EK_TRY(count);
    gradients->earlier_count = count;
    gradients->earlier = ek_calloc((size_t)count + 1, sizeof(ek_tensor *));
    if (!gradients->earlier)
        return EK_E_NO_MEMORY;
    ek_scope scope = ek_scope_begin();
    bool enabled = ek_set_grad_enabled(false);
    int rc = 0;
    for (int i = 0; i < count && rc >= 0; i++)
        rc = gradients_set_one_aside(gradients->holders[i], &gradients->earlier[i]);
    ek_set_grad_enabled(enabled);
    ek_scope_end(&scope);
    return rc;
}

int ek_step_gradients_add_earlier(ek_step_gradients *gradients)
{
    int rc = 0;
    bool enabled = ek_set_grad_enabled(false);
    for (int i = 0; i < gradients->earlier_count && rc >= 0; i++) {
        ek_tensor *earlier = gradients->earlier[i];
        ek_tensor *gradient = ek_tensor_grad(gradients->holders[i]);
        if (earlier && gradient)
            rc = ek_add_(gradient, earlier) ? 0 : ek_error_pending();
        else if (earlier)
            ek_leaf_set_own_gradient(gradients->holders[i], earlier);
    }
    ek_set_grad_enabled(enabled);
    gradients_drop_earlier(gradients);
    return rc;
}

/* ---- the step's gradients ---- */

/* Returns the scalar with a gradient's device and dtype. If `last`, the previous result, has both,
 * returns `last`. */
static ek_tensor *gradients_scalar_for(const ek_tensor *gradient, ek_tensor *scalar,
                                       ek_tensor *last)
{
    ek_device device = ek_tensor_device(gradient);
    if (last && ek_device_equal(ek_tensor_device(last), device) && last->dtype == gradient->dtype)
        return last;
    return ek_to_dtype(ek_to_device(scalar, device), gradient->dtype);
}

static int gradients_scale(ek_tensor *const *holders, int count, double number, ek_tensor *scalar)
{
    ek_tensor *factor = NULL;
    for (int i = 0; i < count; i++) {
        ek_tensor *gradient = ek_tensor_grad(holders[i]);
        if (!gradient)
            continue;
        if (scalar && !(factor = gradients_scalar_for(gradient, scalar, factor)))
            return ek_error_pending();
        if (!(scalar ? ek_mul_(gradient, factor) : ek_mul_scalar_(gradient, number)))
            return ek_error_pending();
    }
    return 0;
}

int ek_step_gradients_scale(const ek_step_gradients *gradients, double number, ek_tensor *scalar)
{
    ek_tensor **holders;
    int count = ek_gradient_holders(gradients->leaves, gradients->leaf_count, &holders);
    EK_TRY(count);
    ek_scope scope = ek_scope_begin();
    bool enabled = ek_set_grad_enabled(false);
    int rc = gradients_scale(holders, count, number, scalar);
    ek_set_grad_enabled(enabled);
    ek_scope_end(&scope);
    ek_tensors_release(holders, count);
    return rc;
}

void ek_step_gradients_remove(const ek_step_gradients *gradients)
{
    for (int i = 0; i < gradients->leaf_count; i++)
        ek_tensor_set_grad(gradients->leaves[i], NULL);
}
