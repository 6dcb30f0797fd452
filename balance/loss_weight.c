/* loss_weight.c: asking a criterion what its loss divides by. */
#include "balance/loss_weight.h"

#include "core/tensor.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"

int ek_loss_weight_ask(ek_module *criterion, const ek_args *args, double samples,
                       ek_loss_weight *weight)
{
    const ek_module_type *type = criterion->type;
    *weight =
        (ek_loss_weight){.is_sum = type->is_sum && type->is_sum(criterion), .number = samples};
    if (weight->is_sum || !type->denominator)
        return 0;
    bool enabled = ek_set_grad_enabled(false);
    ek_tensor *tensor = type->denominator(criterion, args);
    int rc = tensor ? 0 : ek_error_pending();
    if (rc >= 0 && ek_dev_is_host(ek_tensor_dev(tensor))) {
        rc = ek_item(tensor, &weight->number);
    } else if (rc >= 0) {
        weight->counted = ek_keep(ek_to_dtype(tensor, EK_F64));
        rc = weight->counted ? 0 : ek_error_pending();
    }
    ek_set_grad_enabled(enabled);
    return rc;
}
