/* gradient_list.c: lists gradients, measures them over devices and ranks, and writes to all of
 * them. */
#include "optim/gradient_list.h"

#include <math.h>
#include <stdlib.h>

#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "kernels/kernels.h"

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

/* ---- totals ---- */

/* Returns element `index` of a vector as a view with x->ndim dimensions of size 1, into which a
 * kernel reduces all of x. */
static ek_tensor *gradient_cell(const ek_tensor *vector, int64_t index, const ek_tensor *x)
{
    int64_t ones[EK_MAX_DIMS];
    for (int i = 0; i < EK_MAX_DIMS; i++)
        ones[i] = 1;
    return ek_tensor_view(vector, x->ndim, ones, ones, vector->offset + index);
}

/* Writes the gradient's terms to the vector, from element `index` on. */
static int gradient_write_terms(ek_tensor *gradient, const ek_gradient_measure *measure,
                                ek_tensor *terms, int64_t index)
{
    ek_tensor *x = ek_to_dtype(gradient, terms->dtype);
    if (measure->prepare)
        x = measure->prepare(x, measure->p);
    for (int k = 0; k < measure->terms; k++) {
        ek_tensor *out = x ? gradient_cell(terms, index + k, x) : NULL;
        EK_TRY(out ? ek_kernels_of(x)->reduce(ek_tensor_dev(x), measure->kinds[k], out, x)
                   : ek_error_pending());
    }
    return 0;
}

static void gradients_combine(double *total, double term, double p)
{
    if (!isinf(p))
        *total += term;
    else if (term > *total || term != term)
        *total = term;
}

/* Combines with *total the terms of all gradients of the device and dtype of gradients[first], and
 * marks these gradients as done. The device computes the terms in the order of parameters, and one
 * copy moves the terms to the host. */
static int gradients_measure_alike(ek_tensor *const *gradients, bool *done, int count, int first,
                                   const ek_gradient_measure *measure, double *total)
{
    ek_dev *dev = ek_tensor_dev(gradients[first]);
    const ek_dtype dtype = gradients[first]->dtype;
    const int64_t term_count = (int64_t)count * measure->terms;
    const size_t bytes = (size_t)term_count * sizeof(double);
    const ek_shape shape = EK_SHAPE(term_count);
    /* Terms of 16 bits are summed in f32, because 16 bits are too coarse. */
    ek_tensor *terms = ek_tensor_new(dev, ek_dtype_wide(dtype), &shape, EK_CONTIGUOUS);
    double *values = ek_calloc((size_t)term_count, sizeof *values);
    int status = terms && values ? dev->backend->kernels->fill(dev, terms, 0) : ek_error_pending();
    for (int i = first; i < count && status == 0; i++) {
        if (ek_tensor_dev(gradients[i]) != dev || gradients[i]->dtype != dtype)
            continue;
        done[i] = true;
        ek_scope scope = ek_scope_begin();
        status = gradient_write_terms(gradients[i], measure, terms, (int64_t)i * measure->terms);
        ek_scope_end(&scope);
    }
    ek_tensor *wide = status == 0 ? ek_to_dtype(terms, EK_F64) : NULL;
    if (status == 0)
        status = wide ? ek_to_data(wide, values, bytes) : ek_error_pending();
    for (int64_t i = 0; i < term_count && status == 0; i++)
        gradients_combine(total, measure->counts_nonfinite ? !isfinite(values[i]) : values[i],
                          measure->p);
    free(values);
    return status;
}

/* Combines with *total the terms of the gradients of these shards. If `shards` is NULL, takes the
 * gradients that aren't sharded over ranks. */
static int gradients_measure(const ek_gradient_list *list, const ek_shards *shards,
                             const ek_gradient_measure *measure, double *total)
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
            status = gradients_measure_alike(gradients, done, count, i, measure, total);
    free(gradients);
    free(done);
    return status;
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

int ek_gradients_total(const ek_gradient_list *list, int status, const ek_gradient_measure *measure,
                       double *total)
{
    if (status >= 0)
        status = gradients_measure(list, NULL, measure, total);
    for (int i = 0; i < list->parameters.count; i++) {
        ek_shards *shards = gradients_shards_of(&list->parameters, i);
        double part = 0;
        if (!shards)
            continue;
        if (status >= 0)
            status = gradients_measure(list, shards, measure, &part);
        EK_TRY(status = ek_ranks_combine(shards->ranks, status, &part, isinf(measure->p)));
        gradients_combine(total, part, measure->p);
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
