/* clip.c: limits on gradients. */
#include <math.h>

#include "evenkeel/autograd.h"
#include "kernels/kernels.h"
#include "optim/gradient_list.h"

static int clip_check_limit(const char *name, const char *what, double limit)
{
    return limit >= 0
               ? 0
               : EK_FAIL(EK_E_INVALID, "%s: %s has to be 0 or more, not %g", name, what, limit);
}

int ek_clip_check(double norm)
{
    return isfinite(norm) ? 0
                          : EK_FAIL(EK_E_INVALID,
                                    "clip_grad_norm: the norm of the gradients is %g, so they "
                                    "cannot be scaled; skip this step",
                                    norm);
}

/* Scales the gradients by a factor that stays on the device, unless the host has to know the norm:
 * if `norm` isn't NULL, the host waits for the norm. With `finite`, gradients of a norm that is not
 * finite are unchanged. */
static int clip_list(ek_gradient_list *list, double max_norm, double p, double *norm, bool finite)
{
    double values[EK_NORM_NUMBERS];
    int status = ek_gradients_collect(list);
    const ek_tensor *all = ek_gradients_norm(list, status, p, max_norm);
    if (!all)
        return ek_error_pending();
    if (norm || ek_dev_is_host(ek_tensor_dev(all))) {
        EK_TRY(ek_to_data(all, values, sizeof values));
        if (norm)
            *norm = values[EK_NORM_VALUE];
        if (values[EK_NORM_FACTOR] == 1 || (finite && !isfinite(values[EK_NORM_VALUE])))
            return 0;
    }
    return ek_gradients_scale(list, all, 0);
}

static int clip_norm(const ek_clip_grad_norm_options *options, double *norm, bool finite)
{
    ek_gradient_list list = {.name = "clip_grad_norm"};
    const double p = options->norm_type;
    int status = ek_gradients_open(&list, options->optimizer, options->module, options->tensors,
                                   options->count);
    if (status >= 0 && options->max_norm == EK_UNSET)
        status =
            EK_FAIL(EK_E_INVALID,
                    "clip_grad_norm: max_norm is left out, the largest norm that gradients may "
                    "have; write ek_clip_grad_norm(optimizer, 1.0)");
    if (status >= 0)
        status = clip_check_limit(list.name, "max_norm", options->max_norm);
    if (status >= 0 && !(p > 0))
        status =
            EK_FAIL(EK_E_INVALID, "clip_grad_norm: norm_type has to be more than 0, not %g", p);
    ek_scope scope = ek_scope_begin();
    bool grad_enabled = ek_set_grad_enabled(false);
    if (status >= 0)
        status = clip_list(&list, options->max_norm, p, norm, finite);
    ek_set_grad_enabled(grad_enabled);
    ek_scope_end(&scope);
    ek_gradients_free(&list);
    return status;
}

int ek_clip_finite(ek_optimizer *optimizer, double max_norm, double *norm)
{
    const ek_clip_grad_norm_options options = {.optimizer = optimizer,
                                               .max_norm = max_norm,
                                               .norm_type = 2};
    return clip_norm(&options, norm, true);
}

int ek_clip_grad_norm_with(ek_clip_grad_norm_options options)
{
    const bool checks = options.error_if_nonfinite;
    double norm = 0;
    EK_TRY(clip_norm(&options, options.norm || checks ? &norm : NULL, checks));
    if (options.norm)
        *options.norm = norm;
    return checks ? ek_clip_check(norm) : 0;
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
