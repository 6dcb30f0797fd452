/* gradient_list.c: lists gradients, measures them over devices and ranks, and writes to all of
 * them. */
#include "optim/gradient_list.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/graph.h"
#include "core/device.h"
#include "core/map.h"
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
    free(list->dense);
    free(list->numbers);
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

/* A tensor that is listed twice counts once. */
static int gradients_open_tensors(ek_gradient_list *list, ek_tensor *const *tensors, int count)
{
    ek_map seen = {0};
    int status = 0;
    for (int i = 0; i < count && status >= 0; i++) {
        if (!tensors[i])
            status = ek_error_status() < 0
                         ? ek_error_pending()
                         : EK_FAIL(EK_E_INVALID, "%s: tensor %d is NULL", list->name, i);
        else if (ek_map_add(&seen, tensors[i], &status))
            status = ek_tensor_list_append(&list->parameters, tensors[i]);
    }
    ek_map_clear(&seen);
    return status;
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
    if (tensors)
        EK_TRY(gradients_open_tensors(list, tensors, count));
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

/* Makes what norms need in the scope, so that nothing is allocated once other ranks count on this
 * one. */
static int gradients_reserve(ek_gradient_list *list)
{
    const size_t room = (size_t)list->count + 1;
    const ek_shape sums = EK_SHAPE(list->count + list->parameters.count);
    bool made = true;
    list->dense = ek_calloc(room, sizeof *list->dense);
    list->numbers = ek_calloc(room, sizeof *list->numbers);
    list->lead = list->count ? ek_tensor_dev(list->gradients[0]) : ek_dev_get(ek_cpu());
    if (!list->dense || !list->numbers || !list->lead)
        return ek_error_pending();
    for (int i = 0; i < list->count && made; i++) {
        ek_tensor *x = list->gradients[i];
        list->dense[i] = ek_is_dense(x) ? x : ek_fold_copy(x, x);
        made = list->dense[i];
    }
    for (int i = 0; i < list->count && made; i = gradients_run_end(list, i)) {
        ek_dev *dev = ek_tensor_dev(list->gradients[i]);
        list->numbers[i] = ek_tensor_new(dev, EK_F64, &EK_SHAPE(EK_NORM_NUMBERS), EK_CONTIGUOUS);
        made = list->numbers[i];
    }
    list->joins = list->count == 0 || gradients_run_end(list, 0) < list->count;
    for (int i = 0; i < list->parameters.count; i++)
        list->joins = list->joins || gradient_shards(list->parameters.tensors[i]);
    list->sums = ek_tensor_new(list->lead, EK_F64, &sums, EK_CONTIGUOUS);
    list->joined = ek_tensor_new(list->lead, EK_F64, &EK_SHAPE(EK_NORM_NUMBERS), EK_CONTIGUOUS);
    return made && list->sums && list->joined ? 0 : ek_error_pending();
}

/* Adds a power sum, which lies on `dev`, to those that are joined. */
static int gradients_add_sum(const ek_gradient_list *list, int64_t *count, ek_dev *dev,
                             const void *sum)
{
    double *to = ek_tensor_address(list->sums);
    if (!list->joins)
        return 0;
    return ek_dev_copy(list->lead, to + (*count)++, dev, sum, sizeof *to);
}

/* Measures the gradients of these shards over ranks, device by device and dtype by dtype. If
 * `shards` is NULL, takes the gradients that have none. Without `total`, adds the power sums to
 * those that are joined; else waits for them and joins them to *total. */
static int gradients_measure(const ek_gradient_list *list, const ek_shards *shards, double p,
                             double max_norm, int64_t *count, double *total)
{
    for (int begin = 0, end; begin < list->count; begin = end) {
        ek_tensor *out = list->numbers[begin];
        double values[EK_NORM_NUMBERS];
        end = gradients_run_end(list, begin);
        if (list->shards[begin] != shards)
            continue;
        ek_dev *dev = ek_tensor_dev(out);
        EK_TRY(dev->backend->kernels->norm_list(dev, out, end - begin, list->dense + begin, NULL, p,
                                                max_norm));
        if (!total) {
            EK_TRY(gradients_add_sum(list, count, dev, ek_tensor_address(out)));
            continue;
        }
        EK_TRY(ek_to_data(out, values, sizeof values));
        *total = ek_power_join(*total, values[EK_NORM_SUM], p);
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

/* Fills list->sums: `*count` power sums, of which each is one of this process or of all ranks. */
static int gradients_sum(const ek_gradient_list *list, int status, double p, double max_norm,
                         int64_t *count)
{
    ek_dev *cpu = ek_dev_get(ek_cpu());
    if (status >= 0)
        status = cpu ? gradients_measure(list, NULL, p, max_norm, count, NULL) : ek_error_pending();
    for (int i = 0; i < list->parameters.count; i++) {
        ek_shards *shards = gradients_shards_of(&list->parameters, i);
        double total = 0;
        if (!shards)
            continue;
        if (status >= 0)
            status = gradients_measure(list, shards, p, max_norm, count, &total);
        EK_TRY(status = ek_ranks_combine(shards->ranks, status, &total, isinf(p)));
        status = gradients_add_sum(list, count, cpu, &total);
    }
    return status;
}

ek_tensor *ek_gradients_norm(ek_gradient_list *list, int status, double p, double max_norm)
{
    int64_t stride = 1, count = 0;
    if (status >= 0)
        status = gradients_reserve(list);
    status = gradients_sum(list, status, p, max_norm, &count);
    if (status < 0 || !list->joins)
        return status < 0 ? NULL : list->numbers[0];
    const ek_tensor *sums = ek_tensor_view(list->sums, 1, &count, &stride, list->sums->offset);
    const ek_kernels *kernels = list->lead->backend->kernels;
    return sums && kernels->norm_list(list->lead, list->joined, 0, NULL, sums, p, max_norm) >= 0
               ? list->joined
               : NULL;
}

/* ---- writing ---- */

/* Multiplies gradients [begin, end), which have one device and dtype. */
static int gradients_scale_run(const ek_gradient_list *list, int begin, int end,
                               const ek_tensor *numbers, double factor)
{
    ek_tensor *own = list->numbers[begin], by;
    ek_dev *dev = ek_tensor_dev(own);
    const ek_kernels *kernels = dev->backend->kernels;
    ek_borrow_slice(&by, own, 0, EK_NORM_FACTOR, 1, 1);
    if (!numbers)
        EK_TRY(kernels->fill(dev, &by, factor));
    else if (numbers != own)
        EK_TRY(ek_dev_copy(dev, ek_tensor_address(own), ek_tensor_dev(numbers),
                           ek_tensor_address(numbers), EK_NORM_NUMBERS * sizeof(double)));
    EK_TRY(kernels->scale_list(dev, end - begin, list->dense + begin, &by));
    for (int i = begin; i < end; i++) {
        if (list->dense[i] != list->gradients[i])
            EK_TRY(kernels->copy(dev, list->gradients[i], list->dense[i]));
        ek_tensor_written(list->gradients[i], list->name);
    }
    return 0;
}

int ek_gradients_scale(const ek_gradient_list *list, const ek_tensor *numbers, double factor)
{
    for (int begin = 0, end; begin < list->count; begin = end) {
        end = gradients_run_end(list, begin);
        EK_TRY(gradients_scale_run(list, begin, end, numbers, factor));
    }
    return 0;
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
