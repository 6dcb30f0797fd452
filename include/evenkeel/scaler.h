/** @file
 * scaler.h: the scale of losses under autocast to f16, as torch.cuda.amp.GradScaler.
 *
 * Gradients in f16 that are too small become 0. So the loss is multiplied by a scale before
 * backward, and the gradients of the parameters, which are f32, are divided by it before the step:
 *
 *     ek_grad_scaler *scaler = ek_grad_scaler_new();
 *     ...
 *     ek_autocast autocast = ek_autocast_begin(EK_F16);
 *     ek_tensor *loss = ek_loss(criterion, ek_forward(model, x), target);
 *     ek_autocast_end(&autocast);
 *     ek_minimize(optimizer, loss, .max_norm = 1, .scaler = scaler);
 *
 * ek_minimize makes these calls, for one optimizer:
 *
 *     ek_zero_grad(optimizer);
 *     ek_backward(ek_grad_scaler_scale(scaler, loss));
 *     ek_grad_scaler_unscale(scaler, optimizer);     (only if gradients are clipped or looked at)
 *     ek_clip_grad_norm(optimizer, 1.0);
 *     ek_grad_scaler_step(scaler, optimizer);
 *     ek_grad_scaler_update(scaler);
 *
 * If an element of a gradient is infinite or NaN, the scale was too large: the step is skipped, and
 * the update makes the scale smaller. After `growth_interval` updates without such elements it
 * becomes larger. Numbers are PyTorch's.
 *
 * Data-parallel wrappers need nothing else: gradients, also those of shards, lie in the original
 * module's parameters. Ranks whose gradients are averaged (ddp.h) see the same gradients, so that
 * their scalers agree. If parameters are sharded over ranks, all ranks must call unscale and step
 * together, as with ek_step. A scaler is for one thread at a time. */
#ifndef EVENKEEL_SCALER_H
#define EVENKEEL_SCALER_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/optim.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_grad_scaler_options {
    int begin; /**< no option, see base.h */
    double init_scale EK_IS(65536);
    double growth_factor EK_IS(2);    /**< more than 1 */
    double backoff_factor EK_IS(0.5); /**< less than 1 */
    int64_t growth_interval EK_IS(2000);
    bool enabled EK_IS(true); /**< if false, the scale is 1, and every step is made */
} ek_grad_scaler_options;
#define EK_DEFAULTS_ek_grad_scaler_options                                                        \
    EK_DEFAULT(init_scale, 65536), EK_DEFAULT(growth_factor, 2), EK_DEFAULT(backoff_factor, 0.5), \
        EK_DEFAULT(growth_interval, 2000), EK_DEFAULT(enabled, true)

EK_API ek_grad_scaler *ek_grad_scaler_new_with(ek_grad_scaler_options options);
/** ek_grad_scaler_new(.init_scale = 1024): owned by the caller. NULL with EK_E_INVALID for an
 * option that is out of range. */
#define ek_grad_scaler_new(...) \
    EK_CALL_1(ek_grad_scaler_new_with, ek_grad_scaler_options, init_scale, __VA_ARGS__)
EK_API void ek_grad_scaler_free(ek_grad_scaler *scaler); /**< NULL is ignored */
#define ek_grad_scaler_free(scaler) ek_grad_scaler_free(EK_PLACED(scaler))

/** The loss times the scale, in the loss's dtype. Differentiable. */
EK_API ek_tensor *ek_grad_scaler_scale(ek_grad_scaler *scaler, ek_tensor *loss);

/** Divides all gradients of the optimizer's parameters by the scale, and looks for elements that
 * are not finite. At most once per optimizer between two updates, and before its step (EK_E_STATE).
 */
EK_API int ek_grad_scaler_unscale(ek_grad_scaler *scaler, ek_optimizer *optimizer);

/** Unscales if ek_grad_scaler_unscale was not called, and calls ek_step if all elements are finite.
 * A skipped step is no error. If ek_step fails, gradients stay unscaled, and the call may be
 * repeated. At most once per optimizer between two updates (EK_E_STATE). */
EK_API int ek_grad_scaler_step(ek_grad_scaler *scaler, ek_optimizer *optimizer);

/** Sets the scale for the next backward, after the steps of all optimizers. EK_E_STATE if there was
 * no unscale or step since the last update. */
EK_API int ek_grad_scaler_update(ek_grad_scaler *scaler);

/** The scale (0 for NULL), the number of updates since it changed, and how many steps were skipped
 * in the scaler's life. */
EK_API double ek_grad_scaler_factor(const ek_grad_scaler *scaler);
EK_API int64_t ek_grad_scaler_tracker(const ek_grad_scaler *scaler);
EK_API int64_t ek_grad_scaler_skipped(const ek_grad_scaler *scaler);
/** Sets the scale, and as tracker the number of updates since it changed, from a checkpoint
 * (archive.h saves and loads both). */
EK_API int ek_grad_scaler_set(ek_grad_scaler *scaler, double scale, int64_t tracker);

EK_END_DECLARATIONS
#endif
