/* clip.c: limits on gradients. */
#include <math.h>
#include <stdlib.h>

#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "kernels/kernels.h"
#include "optim/gradient_list.h"

/* ---- norms: terms are combined, and the root is taken at last ---- */

/* Reduces a gradient to its term. */
static int clip_norm_term(ek_tensor *gradient, ek_tensor *terms, int64_t index, double p)
{
    ek_tensor *x = ek_to_dtype(gradient, terms->dtype);
    ek_reduce_kind kind = EK_REDUCE_SUM_SQUARES;
    if (p != 2) {
        kind = isinf(p) ? EK_REDUCE_MAX : EK_REDUCE_SUM;
        x = ek_abs(x);
        x = p == 1 || isinf(p) ? x : ek_pow_scalar(x, p);
    }
    ek_tensor *out = x ? ek_gradient_cell(terms, index, x) : NULL;
    return out ? ek_kernels_of(x)->reduce(ek_tensor_dev(x), kind, out, x) : ek_error_pending();
}

/* Adds to *total the terms of all gradients of the device and dtype of gradients[first]. The device
 * makes a term per gradient, in the order of parameters, and one copy moves them to the host. */
static int clip_norm_terms(ek_tensor *const *gradients, bool *done, int count, int first, double p,
                           double *total)
{
    ek_dev *dev = ek_tensor_dev(gradients[first]);
    ek_dtype dtype = gradients[first]->dtype;
    /* Terms of 16 bits are summed in f32, because 16 bits are too coarse. */
    ek_dtype sum_dtype = ek_dtype_wide(dtype);
    ek_shape shape = EK_SHAPE(count);
    ek_tensor *terms = ek_tensor_new(dev, sum_dtype, &shape, EK_CONTIGUOUS);
    double *values = ek_calloc((size_t)count, sizeof *values);
    int status = terms && values ? dev->backend->kernels->fill(dev, terms, 0) : ek_error_pending();
    for (int i = first; i < count && status == 0; i++) {
        if (ek_tensor_dev(gradients[i]) != dev || gradients[i]->dtype != dtype)
            continue;
        done[i] = true;
        ek_scope scope = ek_scope_begin();
        status = clip_norm_term(gradients[i], terms, i, p);
        ek_scope_end(&scope);
    }
    ek_tensor *wide = status == 0 ? ek_to_dtype(terms, EK_F64) : NULL;
    if (status == 0)
        status =
            wide ? ek_to_data(wide, values, (size_t)count * sizeof *values) : ek_error_pending();
    for (int i = 0; i < count && status == 0; i++)
        ek_gradients_combine(total, values[i], p);
    free(values);
    return status;
}

/* ---- clipping ---- */

static int clip_check_limit(const char *name, const char *what, double limit)
{
    return limit >= 0
               ? 0
               : EK_FAIL(EK_E_INVALID, "%s: %s has to be 0 or more, not %g", name, what, limit);
}

static int clip_norm(ek_gradient_list *list, const ek_clip_grad_norm_options *options, double p)
{
    double total = 0;
    int status = ek_gradients_collect(list);
    EK_TRY(ek_gradients_total(list, status, clip_norm_terms, p, &total));
    total = p == 2 ? sqrt(total) : p == 1 || isinf(p) ? total : pow(total, 1 / p);
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
               : ek_gradients_apply(list, EK_UNARY_AFFINE, scale, 0);
}

int ek_clip_grad_norm_with(ek_clip_grad_norm_options options)
{
    ek_gradient_list list = {.name = "clip_grad_norm"};
    const double p = options.norm_type;
    int status =
        ek_gradients_open(&list, options.optimizer, options.module, options.tensors, options.count);
    if (status >= 0 && options.max_norm == EK_UNSET)
        status =
            EK_FAIL(EK_E_INVALID,
                    "clip_grad_norm: max_norm is left out, the largest norm that gradients may "
                    "have; write ek_clip_grad_norm(optimizer, 1.0)");
    if (status >= 0)
        status = clip_check_limit(list.name, "max_norm", options.max_norm);
    if (status >= 0 && !(p > 0))
        status =
            EK_FAIL(EK_E_INVALID, "clip_grad_norm: norm_type has to be more than 0, not %g", p);
    ek_scope scope = ek_scope_begin();
    bool grad_enabled = ek_set_grad_enabled(false);
    if (status >= 0)
        status = clip_norm(&list, &options, p);
    ek_set_grad_enabled(grad_enabled);
    ek_scope_end(&scope);
    ek_gradients_free(&list);
    return status;
}

static int clip_value(const ek_optimizer *optimizer, ek_tensor *const *tensors, int count,
                      double max_value)
{
    ek_gradient_list list = {.name = "clip_grad_value"};
    int status = ek_gradients_open(&list, optimizer, NULL, tensors, count);
    if (status >= 0)
        status = clip_check_limit(list.name, "max_value", max_value);
    if (status >= 0)
        status = ek_gradients_collect(&list);
    if (status >= 0)
        status = ek_gradients_apply(&list, EK_UNARY_CLAMP, -max_value, max_value);
    ek_gradients_free(&list);
    return status;
}

int ek_clip_grad_value(ek_optimizer *optimizer, double max_value)
{
    return clip_value(optimizer, NULL, 0, max_value);
}

int ek_clip_grad_value_of(ek_tensor *const *tensors, int count, double max_value)
{
    static ek_tensor *const none[1];
    return clip_value(NULL, tensors || count != 0 ? tensors : none, count, max_value);
}
