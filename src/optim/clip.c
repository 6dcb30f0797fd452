/* clip.c: limits on gradients. */
#include <math.h>

#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "optim/gradient_list.h"

/* Returns |x|^p; if p is infinite, |x|. */
static ek_tensor *clip_power(ek_tensor *x, double p)
{
    ek_tensor *size = ek_abs(x);
    return p == 1 || isinf(p) ? size : ek_pow_scalar(size, p);
}

static int clip_check_limit(const char *name, const char *what, double limit)
{
    return limit >= 0
               ? 0
               : EK_FAIL(EK_E_INVALID, "%s: %s has to be 0 or more, not %g", name, what, limit);
}

static int clip_norm(ek_gradient_list *list, const ek_clip_grad_norm_options *options, double p)
{
    const ek_gradient_measure measure = {.terms = 1,
                                         .kinds = {p == 2     ? EK_REDUCE_SUM_SQUARES
                                                   : isinf(p) ? EK_REDUCE_MAX
                                                              : EK_REDUCE_SUM},
                                         .prepare = p == 2 ? NULL : clip_power,
                                         .p = p};
    double total = 0;
    int status = ek_gradients_collect(list);
    EK_TRY(ek_gradients_total(list, status, &measure, &total));
    total = p == 2 ? sqrt(total) : p == 1 || isinf(p) ? total : pow(total, 1 / p);
    if (options->norm)
        *options->norm = total;
    if (options->error_if_nonfinite && !isfinite(total))
        return EK_FAIL(EK_E_INVALID,
                       "clip_grad_norm: the norm of the gradients is %g, so they cannot be scaled; "
                       "skip this step",
                       total);
    double scale = options->max_norm / (total + 1e-6);
    return scale >= 1 /* false if scale is NaN; all gradients become NaN then */
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
