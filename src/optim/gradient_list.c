/* gradient_list.c: see gradient_list.h. */
#include "optim/gradient_list.h"

#include <math.h>
#include <stdlib.h>

#include "evenkeel/autograd.h"
#include "kernels/kernels.h"

/* ---- the list ---- */

void ek_gradients_free(ek_gradient_list *list)
{
    ek_tensor_list_clear(&list->parameters);
    free(list->gradients);
    free(list->shards);
}

/* The shards of a parameter that is sharded over ranks; NULL: it is this process's. */
static ek_shards *gradient_shards(const ek_tensor *parameter)
{
    return ek_leaf_ranks(parameter) ? ek_leaf_shards(parameter) : NULL;
}

static int gradients_add(ek_gradient_list *list, ek_tensor *gradient, ek_shards *shards)
{
    EK_TRY(ek_grow(&list->gradients, &list->room, list->count + 1));
    EK_TRY(ek_grow(&list->shards, &list->shards_room, list->count + 1));
    list->shards[list->count] = shards;
    list->gradients[list->count++] = gradient;
    return 0;
}

int ek_gradients_open(ek_gradient_list *list, const ek_optimizer *optimizer, ek_module *module,
                      ek_tensor *const *tensors, int count)
{
    const char *name = list->name;
    const int given = (optimizer != NULL) + (module != NULL) + (tensors != NULL);
    if (given == 0)
        return ek_error_status() < 0 ? ek_error_pending()
                                     : EK_FAIL(EK_E_INVALID, "%s: the optimizer is NULL", name);
    if (given > 1)
        return EK_FAIL(EK_E_INVALID, "%s: give an optimizer, a module or tensors, not several",
                       name);
    if (tensors && count < 0)
        return EK_FAIL(EK_E_INVALID, "%s: %d tensors", name, count);
    for (int i = 0; optimizer && i < optimizer->slot_count; i++)
        EK_TRY(ek_tensor_list_append(&list->parameters, optimizer->slots[i]->parameter));
    if (module)
        EK_TRY(ek_module_collect(module, true, false, &list->parameters));
    for (int i = 0; tensors && i < count; i++) {
        if (!tensors[i])
            return ek_error_status() < 0 ? ek_error_pending()
                                         : EK_FAIL(EK_E_INVALID, "%s: tensor %d is NULL", name, i);
        EK_TRY(ek_tensor_list_append(&list->parameters, tensors[i]));
    }
    return ek_fork_check();
}

int ek_gradients_collect(ek_gradient_list *list)
{
    for (int i = 0; i < list->parameters.count; i++)
        EK_TRY(ek_leaf_settle_gradient(list->parameters.tensors[i]));
    for (int i = 0; i < list->parameters.count; i++) {
        const ek_tensor *parameter = list->parameters.tensors[i];
        for (int k = 0; k < ek_leaf_shard_count(parameter); k++) {
            ek_tensor *gradient = ek_tensor_grad(ek_leaf_shard(parameter, k).tensor);
            if (gradient && ek_count(gradient) > 0)
                EK_TRY(gradients_add(list, gradient, gradient_shards(parameter)));
        }
    }
    return 0;
}

/* ---- totals ---- */

ek_tensor *ek_gradient_cell(const ek_tensor *vector, int64_t index, const ek_tensor *like)
{
    int64_t ones[EK_MAX_DIMS];
    for (int i = 0; i < EK_MAX_DIMS; i++)
        ones[i] = 1;
    return ek_tensor_view(vector, like->ndim, ones, ones, vector->offset + index);
}

void ek_gradients_combine(double *total, double term, double p)
{
    if (!isinf(p))
        *total += term;
    else if (term > *total || term != term)
        *total = term;
}

/* Adds to *total the terms of the gradients of these shards. */
static int gradients_measure(const ek_gradient_list *list, const ek_shards *shards,
                             ek_gradient_measure *measure, double p, double *total)
{
    size_t room = (size_t)list->count + 1;
    bool *done = ek_calloc(room, sizeof *done);
    ek_tensor **gradients = ek_calloc(room, sizeof *gradients);
    int count = 0, status = done && gradients ? 0 : EK_E_NO_MEMORY;
    for (int i = 0; i < list->count && status == 0; i++)
        if (list->shards[i] == shards)
            gradients[count++] = list->gradients[i];
    for (int i = 0; i < count && status == 0; i++)
        if (!done[i])
            status = measure(gradients, done, count, i, p, total);
    free(gradients);
    free(done);
    return status;
}

/* As above for a parameter with a gradient; NULL also if a parameter before has the same. */
static ek_shards *gradients_shards_of(const ek_tensor_list *parameters, int at)
{
    const ek_tensor *parameter = parameters->tensors[at];
    ek_shards *shards = gradient_shards(parameter);
    if (!shards || !ek_leaf_has_gradient(parameter))
        return NULL;
    for (int i = 0; i < at; i++)
        if (gradient_shards(parameters->tensors[i]) == shards &&
            ek_leaf_has_gradient(parameters->tensors[i]))
            return NULL;
    return shards;
}

int ek_gradients_total(const ek_gradient_list *list, int status, ek_gradient_measure *measure,
                       double p, double *total)
{
    if (status >= 0)
        status = gradients_measure(list, NULL, measure, p, total);
    for (int i = 0; i < list->parameters.count; i++) {
        ek_shards *shards = gradients_shards_of(&list->parameters, i);
        double part = 0;
        if (!shards)
            continue;
        if (status >= 0)
            status = gradients_measure(list, shards, measure, p, &part);
        EK_TRY(status = ek_ranks_combine(shards->ranks, status, &part, isinf(p)));
        ek_gradients_combine(total, part, p);
    }
    return status;
}

/* ---- writing ---- */

int ek_gradients_apply(const ek_gradient_list *list, ek_unary op, double a, double b)
{
    for (int i = 0; i < list->count; i++) {
        ek_tensor *x = list->gradients[i];
        EK_TRY(ek_kernels_of(x)->unary(ek_tensor_dev(x), op, x, x, a, b));
        ek_tensor_written(x, list->name);
    }
    return 0;
}
