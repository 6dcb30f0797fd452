/* gradient_list.c: lists gradients, measures them over devices and ranks, and writes to all of
 * them. */
#include "optim/gradient_list.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/graph.h"
#include "core/device.h"
#include "evenkeel/autograd.h"
#include "evenkeel/shape.h"
#include "kernels/kernels.h"
#include "kernels/steps.h"

/* ---- the list ---- */

void ek_gradients_free(ek_gradient_list *list)
{
    ek_tensor_list_clear(&list->parameters);
    free(list->gradients);
    free(list->shards);
}

/* Returns the shards of a parameter that is sharded over ranks; NULL for other parameters. */
static ek_shards *gradient_shards(const ek_tensor *parameter)
{
    return ek_leaf_ranks(parameter) ? ek_leaf_shards(parameter) : NULL;
}

static bool gradients_are_alike(const ek_gradient_list *list, int at, const ek_tensor *gradient,
                                const ek_shards *shards)
{
    const ek_tensor *x = list->gradients[at];
    return list->shards[at] == shards && x->dtype == gradient->dtype &&
           ek_tensor_dev(x) == ek_tensor_dev(gradient);
}

/* Puts a gradient after the last one with its device, dtype and shards, or at the end. */
static int gradients_add(ek_gradient_list *list, ek_tensor *gradient, ek_shards *shards)
{
    EK_TRY(ek_grow(&list->gradients, &list->room, list->count + 1));
    EK_TRY(ek_grow(&list->shards, &list->shards_room, list->count + 1));
    int at = list->count++;
    while (at > 0 && !gradients_are_alike(list, at - 1, gradient, shards))
        at--;
    at = at > 0 ? at : list->count - 1;
    size_t behind = (size_t)(list->count - 1 - at);
    memmove(list->gradients + at + 1, list->gradients + at, behind * sizeof *list->gradients);
    memmove(list->shards + at + 1, list->shards + at, behind * sizeof *list->shards);
    list->gradients[at] = gradient;
    list->shards[at] = shards;
    return 0;
}

/* Returns the end of the gradients that have the device, dtype and shards of gradient `begin`. */
static int gradients_run_end(const ek_gradient_list *list, int begin)
{
    int end = begin + 1;
    while (end < list->count &&
           gradients_are_alike(list, end, list->gradients[begin], list->shards[begin]))
        end++;
    return end;
}

/* Returns gradients [begin, end), of which those with gaps are replaced by dense copies in the
 * scope. The caller frees the array. NULL with an error. */
static ek_tensor **gradients_without_gaps(const ek_gradient_list *list, int begin, int end)
{
    ek_tensor **dense = ek_calloc((size_t)(end - begin), sizeof *dense);
    for (int i = begin; i < end && dense; i++) {
        ek_tensor *x = list->gradients[i];
        dense[i - begin] = ek_is_dense(x) ? x : ek_fold_copy(x, x);
        if (!dense[i - begin]) {
            free(dense);
            return NULL;
        }
    }
    return dense;
}

int ek_gradients_open(ek_gradient_list *list, const ek_optimizer *optimizer, ek_module *module,
                      ek_tensor *const *tensors, int count)
{
    const char *name = list->name;
    const int given = (optimizer != NULL) + (module != NULL) + (tensors != NULL);
    if (given == 0)
        return ek_check_given(name, "the optimizer", NULL);
    EK_TRY(ek_check_alive(name, "the optimizer", optimizer));
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

/* ---- norms ---- */

/* Power sums of gradients: outputs of ek_norm_list_kernel, or single sums, in the scope. */
typedef struct gradient_sums {
    ek_tensor **parts; /* owned */
    int count;
} gradient_sums;

/* Adds the power sums of the gradients of these shards, one for each device and dtype. If `shards`
 * is NULL, takes the gradients that aren't sharded over ranks. */
static int gradients_sum(const ek_gradient_list *list, const ek_shards *shards, double p,
                         double max_norm, gradient_sums *sums)
{
    for (int begin = 0, end; begin < list->count; begin = end) {
        end = gradients_run_end(list, begin);
        if (list->shards[begin] != shards)
            continue;
        ek_dev *dev = ek_tensor_dev(list->gradients[begin]);
        ek_tensor **dense = gradients_without_gaps(list, begin, end);
        ek_tensor *out = ek_tensor_new(dev, EK_F64, &EK_SHAPE(3), EK_CONTIGUOUS);
        int rc = dense && out ? dev->backend->kernels->norm_list(dev, out, end - begin, dense, NULL,
                                                                 p, max_norm)
                              : ek_error_pending();
        free(dense);
        EK_TRY(rc);
        sums->parts[sums->count++] = out;
    }
    return 0;
}

/* Returns the shards over ranks of parameter `at` if the parameter has a gradient. Returns NULL if
 * it has no gradient or no such shards, or if an earlier parameter with a gradient has the same
 * shards. */
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

/* Replaces the parts from `first` on by their sum over all ranks. */
static int gradients_sum_ranks(ek_ranks *ranks, int status, double p, gradient_sums *sums,
                               int first)
{
    double sum = 0, values[3];
    for (int i = first; i < sums->count && status >= 0; i++) {
        status = ek_to_data(sums->parts[i], values, sizeof values);
        sum = ek_power_join(sum, values[0], p);
    }
    EK_TRY(ek_ranks_combine(ranks, status, &sum, isinf(p)));
    sums->count = first;
    ek_tensor *part = ek_scalar(sum, EK_F64, ek_cpu());
    if (!part)
        return ek_error_pending();
    sums->parts[sums->count++] = part;
    return 0;
}

static int gradients_sum_all(const ek_gradient_list *list, int status, double p, double max_norm,
                             gradient_sums *sums)
{
    if (status >= 0)
        status = gradients_sum(list, NULL, p, max_norm, sums);
    for (int i = 0; i < list->parameters.count; i++) {
        ek_shards *shards = gradients_shards_of(&list->parameters, i);
        const int first = sums->count;
        if (!shards)
            continue;
        if (status >= 0)
            status = gradients_sum(list, shards, p, max_norm, sums);
        EK_TRY(status = gradients_sum_ranks(shards->ranks, status, p, sums, first));
    }
    return status;
}

/* Returns the norm of all parts, on the device of the first. */
static ek_tensor *gradients_join(const gradient_sums *sums, double p, double max_norm)
{
    if (sums->count == 1 && ek_count(sums->parts[0]) == 3)
        return sums->parts[0];
    ek_dev *dev = sums->count ? ek_tensor_dev(sums->parts[0]) : ek_dev_get(ek_cpu());
    const ek_shape shape = EK_SHAPE(sums->count);
    ek_tensor *out = dev ? ek_tensor_new(dev, EK_F64, &EK_SHAPE(3), EK_CONTIGUOUS) : NULL;
    ek_tensor *all = out ? ek_tensor_new(dev, EK_F64, &shape, EK_CONTIGUOUS) : NULL;
    for (int i = 0; i < sums->count && all; i++)
        if (ek_dev_copy(dev, (double *)ek_tensor_address(all) + i, ek_tensor_dev(sums->parts[i]),
                        ek_tensor_address(sums->parts[i]), sizeof(double)) < 0)
            return NULL;
    return all && dev->backend->kernels->norm_list(dev, out, 0, NULL, all, p, max_norm) >= 0 ? out
                                                                                             : NULL;
}

ek_tensor *ek_gradients_norm(const ek_gradient_list *list, int status, double p, double max_norm)
{
    gradient_sums sums = {.parts = ek_calloc((size_t)(list->count + list->parameters.count) + 1,
                                             sizeof(ek_tensor *))};
    status = sums.parts || status < 0 ? status : ek_error_pending();
    status = gradients_sum_all(list, status, p, max_norm, &sums);
    ek_tensor *norm = status >= 0 ? gradients_join(&sums, p, max_norm) : NULL;
    free(sums.parts);
    return norm;
}

/* ---- writing ---- */

/* Multiplies gradients [begin, end), which have one device and dtype. */
static int gradients_scale_run(const ek_gradient_list *list, int begin, int end, ek_tensor *factor)
{
    ek_dev *dev = ek_tensor_dev(list->gradients[begin]);
    const ek_kernels *kernels = dev->backend->kernels;
    ek_tensor **dense = gradients_without_gaps(list, begin, end);
    const ek_tensor *here = dense ? ek_to_device(factor, dev->id) : NULL;
    int rc = here ? kernels->scale_list(dev, end - begin, dense, here) : ek_error_pending();
    for (int i = begin; i < end && rc >= 0; i++) {
        ek_tensor *x = list->gradients[i];
        if (dense[i - begin] != x)
            rc = kernels->copy(dev, x, dense[i - begin]);
        ek_tensor_written(x, list->name);
    }
    free(dense);
    return rc;
}

int ek_gradients_scale(const ek_gradient_list *list, ek_tensor *factor)
{
    int rc = factor ? 0 : ek_error_pending();
    for (int begin = 0, end; begin < list->count && rc >= 0; begin = end) {
        end = gradients_run_end(list, begin);
        ek_scope scope = ek_scope_begin();
        rc = gradients_scale_run(list, begin, end, factor);
        ek_scope_end(&scope);
    }
    return rc;
}

int ek_gradients_apply(const ek_gradient_list *list, ek_unary op, double a, double b)
{
    for (int i = 0; i < list->count; i++) {
        ek_tensor *x = list->gradients[i];
        EK_TRY(ek_kernels_of(x)->unary(ek_tensor_dev(x), op, x, x, a, b));
        ek_tensor_written(x, list->name);
    }
    return 0;
}
