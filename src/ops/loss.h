/* loss.h: checks and reductions of losses. */
#ifndef EK_OPS_LOSS_H
#define EK_OPS_LOSS_H

#include "ops/autocast.h"
#include "ops/ops.h"

/* Reduces a loss to its mean or sum, or not at all. EK_BATCH_MEAN divides the sum by the size of
 * dimension 0, or by 1 if the loss is a scalar. */
ek_tensor *ek_loss_reduce(ek_tensor *loss, ek_reduction reduction);
/* Reduces the loss, ends the scope and returns the result. */
static inline ek_tensor *ek_loss_return(ek_scope *scope, ek_tensor *loss, ek_reduction reduction)
{
    return ek_scope_return(scope, ek_loss_reduce(loss, reduction));
}

/* Checks that the reduction is EK_MEAN, EK_SUM or EK_NONE. */
bool ek_loss_check_reduction(const char *name, ek_reduction reduction);
/* Checks that operands x and y (called `other` in sentences) are floating, with one device, dtype
 * and shape. Broadcasting is refused, because in a loss it is nearly always a forgotten squeeze. */
bool ek_loss_check_pair(const char *name, const ek_tensor *x, const char *other,
                        const ek_tensor *y);
/* Checks that `factor` (may be NULL; sentences call it `factor_name`) has x's device and dtype and
 * broadcasts to x's shape. */
bool ek_loss_check_factor(const char *name, const ek_tensor *x, const char *factor_name,
                          const ek_tensor *factor);

/* Defines a public loss. `checked` is an expression of `options`, whose bf16 and f16 tensors are
 * cast to f32 by autocast. Targets that are classes are integers and stay. */
#define EK_PUBLIC_LOSS(name, type, checked)                \
    ek_tensor *ek_f_##name##_with(type options)            \
    {                                                      \
        ek_scope scope = ek_scope_begin();                 \
        options.input = ek_autocast_wide(options.input);   \
        options.target = ek_autocast_wide(options.target); \
        return ek_scope_return(&scope, checked);           \
    }
/* EK_PUBLIC_LOSS of options with a weight. */
#define EK_PUBLIC_WEIGHTED_LOSS(name, type, checked) \
    EK_PUBLIC_LOSS(name, type, (options.weight = ek_autocast_wide(options.weight), checked))

#endif
