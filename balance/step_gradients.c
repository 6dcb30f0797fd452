/* step_gradients.c: the gradients of all parameters that a training step touches. */
#include "balance/step_gradients.h"

#include <stdlib.h>

#include "autograd/shards.h"
#include "core/object.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "nn/module_table.h"
#include "optim/optimizer.h"

static void release_all(ek_tensor **tensors, int count)
{
    for (int i = 0; tensors && i < count; i++)
        ek_object_release(tensors[i]);
    free(tensors);
}

/* ---- which there are ---- */

static int collect(ek_optimizer *optimizer, ek_module *model, ek_tensor_list *list)
{
    int status = 0;
    ek_map seen = {0};
    ek_tensor_list of_model = {0};
    for (int i = 0; i < optimizer->slot_count && status >= 0; i++) {
        ek_tensor *parameter = optimizer->slots[i]->parameter;
        if (ek_map_add(&seen, parameter, &status))
            status = ek_tensor_list_append(list, parameter);
    }
    if (status >= 0)
        status = ek_module_collect(model, true, false, &of_model);
    for (int i = 0; i < of_model.count && status >= 0; i++)
        if (ek_map_add(&seen, of_model.tensors[i], &status))
            status = ek_tensor_list_append(list, of_model.tensors[i]);
    ek_tensor_list_clear(&of_model);
    ek_map_clear(&seen);
    return status;
}

/* What holds gradients: the leaves, and of divided ones their pieces too. A parameter may be
 * divided, or become whole again, in any forward. References; returns how many. */
static int find_holders(const ek_step_gradients *g, ek_tensor ***holders)
{
    int count = g->leaf_count, n = 0;
    for (int i = 0; i < g->leaf_count; i++)
        if (ek_leaf_shards(g->leaves[i]))
            count += ek_leaf_shards(g->leaves[i])->count;
    *holders = ek_calloc((size_t)count + 1, sizeof **holders);
    if (!*holders)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < g->leaf_count; i++) {
        const ek_shards *shards = ek_leaf_shards(g->leaves[i]);
        (*holders)[n++] = ek_object_retain(g->leaves[i]);
        for (int s = 0; shards && s < shards->count; s++)
            (*holders)[n++] = ek_object_retain(shards->shards[s].piece);
    }
    return n;
}

int ek_step_gradients_open(ek_optimizer *optimizer, ek_module *model, ek_step_gradients *gradients)
{
    ek_tensor_list list = {0};
    *gradients = (ek_step_gradients){0};
    int status = collect(optimizer, model, &list);
    if (status < 0) {
        ek_tensor_list_clear(&list);
        return status;
    }
    gradients->leaves = list.tensors;
    gradients->leaf_count = list.count;
    for (int i = 0; i < list.count; i++)
        ek_object_retain(list.tensors[i]);
    return 0;
}

static void drop_earlier(ek_step_gradients *g)
{
    release_all(g->earlier, g->earlier_count);
    release_all(g->holders, g->earlier_count);
    g->earlier = g->holders = NULL;
    g->earlier_count = 0;
}

void ek_step_gradients_close(ek_step_gradients *gradients)
{
    drop_earlier(gradients);
    release_all(gradients->leaves, gradients->leaf_count);
    *gradients = (ek_step_gradients){0};
}

/* ---- those before ---- */

/* Memory that belongs to the next gradient is copied. */
static int set_one_aside(ek_tensor *holder, ek_tensor **earlier)
{
    ek_tensor *gradient = ek_tensor_grad(holder);
    if (!gradient)
        return 0;
    if (gradient == holder->grad_slot) {
        ek_memory_category before = ek_memory_set_category(EK_MEMORY_GRADIENT);
        gradient = ek_clone(gradient);
        ek_memory_set_category(before);
    }
    *earlier = ek_keep(gradient);
    return *earlier ? ek_tensor_set_grad(holder, NULL) : ek_error_pending();
}

int ek_step_gradients_set_aside(ek_step_gradients *gradients)
{
    int count = find_holders(gradients, &gradients->holders);
    EK_TRY(count);
    gradients->earlier_count = count;
    gradients->earlier = ek_calloc((size_t)count + 1, sizeof(ek_tensor *));
    if (!gradients->earlier)
        return EK_E_NO_MEMORY;
    ek_scope scope = ek_scope_begin();
    bool enabled = ek_set_grad_enabled(false);
    int rc = 0;
    for (int i = 0; i < count && rc >= 0; i++)
        rc = set_one_aside(gradients->holders[i], &gradients->earlier[i]);
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
            rc = ek_tensor_set_grad(gradients->holders[i], earlier);
    }
    ek_set_grad_enabled(enabled);
    drop_earlier(gradients);
    return rc;
}

/* ---- those of the step ---- */

/* The scalar where the gradient is: made once for neighbours of one device and dtype. */
static ek_tensor *scalar_for(const ek_tensor *gradient, ek_tensor *scalar, ek_tensor *last)
{
    ek_device device = ek_tensor_device(gradient);
    if (last && ek_device_equal(ek_tensor_device(last), device) && last->dtype == gradient->dtype)
        return last;
    return ek_to_dtype(ek_to_device(scalar, device), gradient->dtype);
}

static int scale(ek_tensor *const *holders, int count, double number, ek_tensor *scalar)
{
    ek_tensor *factor = NULL;
    for (int i = 0; i < count; i++) {
        ek_tensor *gradient = ek_tensor_grad(holders[i]);
        if (!gradient)
            continue;
        if (scalar && !(factor = scalar_for(gradient, scalar, factor)))
            return ek_error_pending();
        if (!(scalar ? ek_mul_(gradient, factor) : ek_mul_scalar_(gradient, number)))
            return ek_error_pending();
    }
    return 0;
}

int ek_step_gradients_scale(const ek_step_gradients *gradients, double number, ek_tensor *scalar)
{
    ek_tensor **holders;
    int count = find_holders(gradients, &holders);
    EK_TRY(count);
    ek_scope scope = ek_scope_begin();
    bool enabled = ek_set_grad_enabled(false);
    int rc = scale(holders, count, number, scalar);
    ek_set_grad_enabled(enabled);
    ek_scope_end(&scope);
    release_all(holders, count);
    return rc;
}

void ek_step_gradients_remove(const ek_step_gradients *gradients)
{
    for (int i = 0; i < gradients->leaf_count; i++) {
        const ek_shards *shards = ek_leaf_shards(gradients->leaves[i]);
        ek_tensor_set_grad(gradients->leaves[i], NULL);
        for (int s = 0; shards && s < shards->count; s++)
            ek_tensor_set_grad(shards->shards[s].piece, NULL);
    }
}
