/* clip.c: limits on gradients. */
#include <math.h>
#include <stdlib.h>

#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "kernels/kernels.h"
#include "optim/optimizer.h"

/* All gradients, in the order of the slots; for a sharded parameter those of its shards. Of one
 * that is divided between processes that is this process's part. */
typedef struct gradient_list {
    ek_tensor **gradients;
    int count, room;
    /* Per gradient: the processes that it is divided between, or NULL. Borrowed. */
    ek_owners **owners;
    int owners_room;
} gradient_list;

static void clip_free(gradient_list *list)
{
    free(list->gradients);
    free(list->owners);
}

static int clip_add(gradient_list *list, ek_tensor *gradient, ek_owners *owners)
{
    EK_TRY(ek_grow(&list->gradients, &list->room, list->count + 1));
    EK_TRY(ek_grow(&list->owners, &list->owners_room, list->count + 1));
    list->owners[list->count] = owners;
    list->gradients[list->count++] = gradient;
    return 0;
}

static int clip_collect(const ek_optimizer *optimizer, gradient_list *list)
{
    for (int i = 0; i < optimizer->slot_count; i++)
        EK_TRY(ek_leaf_settle_gradient(optimizer->slots[i]->parameter));
    for (int i = 0; i < optimizer->slot_count; i++) {
        const ek_tensor *parameter = optimizer->slots[i]->parameter;
        for (int k = 0; k < ek_leaf_shard_count(parameter); k++) {
            ek_tensor *gradient = ek_tensor_grad(ek_leaf_shard(parameter, k).tensor);
            if (gradient && ek_count(gradient) > 0)
                EK_TRY(clip_add(list, gradient, ek_leaf_owners(parameter)));
        }
    }
    return 0;
}

/* Element `index` of a vector as a view with like->ndim dimensions of size 1, into which a kernel
 * reduces all of `like`. */
static ek_tensor *clip_square_cell(const ek_tensor *vector, int64_t index, const ek_tensor *like)
{
    int64_t ones[EK_MAX_DIMS];
    for (int i = 0; i < EK_MAX_DIMS; i++)
        ones[i] = 1;
    return ek_tensor_view(vector, like->ndim, ones, ones, vector->offset + index);
}

/* Adds to *sum the squares of all gradients of the device and dtype of gradients[first]. The device
 * makes a sum per gradient, in the order of parameters, and one copy moves the sums to the host. */
static int clip_norm_sum_squares(ek_tensor *const *gradients, bool *done, int count, int first,
                                 double *sum)
{
    ek_dev *dev = ek_tensor_dev(gradients[first]);
    ek_dtype dtype = gradients[first]->dtype;
    /* Squares of bf16 are summed in f32, because bf16 is too coarse. */
    ek_dtype sum_dtype = dtype == EK_BF16 ? EK_F32 : dtype;
    ek_shape shape = EK_SHAPE(count);
    ek_tensor *squares = ek_tensor_new(dev, sum_dtype, &shape, EK_CONTIGUOUS);
    double *values = ek_calloc((size_t)count, sizeof *values);
    int status =
        squares && values ? dev->backend->kernels->fill(dev, squares, 0) : ek_error_pending();
    for (int i = first; i < count && status == 0; i++) {
        if (ek_tensor_dev(gradients[i]) != dev || gradients[i]->dtype != dtype)
            continue;
        done[i] = true;
        ek_tensor *x = ek_to_dtype(gradients[i], sum_dtype);
        ek_tensor *out = x ? clip_square_cell(squares, i, x) : NULL;
        status = out ? dev->backend->kernels->reduce(dev, EK_REDUCE_SUM_SQUARES, out, x)
                     : ek_error_pending();
    }
    ek_tensor *wide = status == 0 ? ek_to_dtype(squares, EK_F64) : NULL;
    if (status == 0)
        status =
            wide ? ek_to_data(wide, values, (size_t)count * sizeof *values) : ek_error_pending();
    for (int i = 0; i < count && status == 0; i++)
        *sum += values[i];
    free(values);
    return status;
}

/* Adds to *sum the squares of the gradients with these owners. */
static int clip_norm_add(const gradient_list *list, const ek_owners *owners, double *sum)
{
    size_t room = (size_t)list->count + 1;
    bool *done = ek_calloc(room, sizeof *done);
    ek_tensor **gradients = ek_calloc(room, sizeof *gradients);
    int count = 0, status = done && gradients ? 0 : EK_E_NO_MEMORY;
    for (int i = 0; i < list->count && status == 0; i++)
        if (list->owners[i] == owners)
            gradients[count++] = list->gradients[i];
    for (int i = 0; i < count && status == 0; i++)
        if (!done[i])
            status = clip_norm_sum_squares(gradients, done, count, i, sum);
    free(gradients);
    free(done);
    return status;
}

/* The owners of a slot's gradient; NULL also if a slot before has the same. */
static ek_owners *clip_owners_of(const ek_optimizer *optimizer, int slot)
{
    const ek_tensor *parameter = optimizer->slots[slot]->parameter;
    ek_owners *owners = ek_leaf_owners(parameter);
    if (!owners || !ek_leaf_has_gradient(parameter))
        return NULL;
    for (int i = 0; i < slot; i++)
        if (ek_leaf_owners(optimizer->slots[i]->parameter) == owners &&
            ek_leaf_has_gradient(optimizer->slots[i]->parameter))
            return NULL;
    return owners;
}

/* The norm of all gradients, those of other processes included. `status`: the outcome so far, which
 * other processes are told. */
static int clip_norm_total(const ek_optimizer *optimizer, const gradient_list *list, int status,
                           double *norm)
{
    double sum = 0;
    if (status >= 0)
        status = clip_norm_add(list, NULL, &sum);
    for (int i = 0; i < optimizer->slot_count; i++) {
        ek_owners *owners = clip_owners_of(optimizer, i);
        double part = 0;
        if (!owners)
            continue;
        if (status >= 0)
            status = clip_norm_add(list, owners, &part);
        EK_TRY(status = owners->sum(owners, status, &part));
        sum += part;
    }
    *norm = sqrt(sum);
    return status;
}

static int clip_apply(ek_tensor *const *gradients, int count, ek_unary op, double a, double b,
                      const char *writer)
{
    for (int i = 0; i < count; i++) {
        ek_tensor *x = gradients[i];
        EK_TRY(ek_kernels_of(x)->unary(ek_tensor_dev(x), op, x, x, a, b));
        ek_tensor_written(x, writer);
    }
    return 0;
}

static int clip_check(const char *name, const ek_optimizer *optimizer, const char *what,
                      double limit)
{
    if (!optimizer)
        return ek_error_status() < 0 ? ek_error_pending()
                                     : EK_FAIL(EK_E_INVALID, "%s: the optimizer is NULL", name);
    if (!(limit >= 0))
        return EK_FAIL(EK_E_INVALID, "%s: %s has to be 0 or more, not %g", name, what, limit);
    return ek_fork_check();
}

static int clip_norm(gradient_list *list, const ek_clip_grad_norm_options *options)
{
    double total = 0;
    int status = clip_collect(options->optimizer, list);
    EK_TRY(clip_norm_total(options->optimizer, list, status, &total));
    if (options->norm)
        *options->norm = total;
    if (options->error_if_nonfinite && !isfinite(total))
        return EK_FAIL(EK_E_INVALID,
                       "clip_grad_norm: the norm of the gradients is %g, so they cannot be scaled; "
                       "skip this step",
                       total);
    double scale = options->max_norm / (total + 1e-6);
    return scale >= 1 /* false for NaN, which makes all gradients NaN */
               ? 0
               : clip_apply(list->gradients, list->count, EK_UNARY_AFFINE, scale, 0,
                            "clip_grad_norm");
}

int ek_clip_grad_norm_with(ek_clip_grad_norm_options options)
{
    ek_optimizer *optimizer = options.optimizer;
    EK_TRY(clip_check("clip_grad_norm", optimizer, "max_norm", options.max_norm));
    gradient_list list = {0};
    ek_scope scope = ek_scope_begin();
    bool grad_enabled = ek_set_grad_enabled(false);
    int status = clip_norm(&list, &options);
    ek_set_grad_enabled(grad_enabled);
    ek_scope_end(&scope);
    clip_free(&list);
    return status;
}

int ek_clip_grad_value(ek_optimizer *optimizer, double max_value)
{
    EK_TRY(clip_check("clip_grad_value", optimizer, "max_value", max_value));
    gradient_list list = {0};
    int status = clip_collect(optimizer, &list);
    if (status >= 0)
        status = clip_apply(list.gradients, list.count, EK_UNARY_CLAMP, -max_value, max_value,
                            "clip_grad_value");
    clip_free(&list);
    return status;
}
