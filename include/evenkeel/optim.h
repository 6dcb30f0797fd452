/** @file
 * optim.h: optimizers by PyTorch's formulas, gradient clipping; schedules are in schedule.h.
 *
 * An optimizer keeps references to its parameters, and a state per parameter. A parameter without a
 * gradient is skipped, and its state is unchanged. Neighbouring parameters of one slab are updated
 * by one fused kernel. Sharded parameters (EK_SHARD_OPTIMIZER) are updated in parallel on the
 * devices of their shards, where their state lies; if the sharding changes, the state moves at the
 * next step. An optimizer and its parameters are for one thread at a time. */
#ifndef EVENKEEL_OPTIM_H
#define EVENKEEL_OPTIM_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/module.h"
#include "evenkeel/schedule.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_optimizer ek_optimizer;
typedef struct ek_grad_scaler ek_grad_scaler; /* scaler.h */

/** The length of LBFGS's steps along a direction: lr, or a length that satisfies the strong Wolfe
 * conditions. */
typedef enum ek_step_length { EK_FIXED_STEP = 0, EK_STRONG_WOLFE = 1 } ek_step_length;

/* ---- algorithms ----
 *
 * The parameters of `module` form group 0; NULL: there is no group yet. A constructor's result is
 * owned by the caller. NULL with EK_E_INVALID, which names an option that is out of range. */

typedef struct ek_sgd_options {
    int begin; /**< no option, see base.h */
    ek_module *module;
    double lr EK_IS(1e-3);
    double momentum;
    double dampening;
    double weight_decay;
    bool nesterov; /**< needs momentum and no dampening */
    bool maximize;
} ek_sgd_options;
#define EK_DEFAULTS_ek_sgd_options EK_DEFAULT(lr, 1e-3)
EK_API ek_optimizer *ek_sgd_with(ek_sgd_options options);
/** ek_sgd(net, .lr = 0.1, .momentum = 0.9): stochastic gradient descent. */
#define ek_sgd(...) EK_CALL_1(ek_sgd_with, ek_sgd_options, module, __VA_ARGS__)

typedef struct ek_adam_options {
    int begin; /**< no option, see base.h */
    ek_module *module;
    double lr EK_IS(1e-3);
    double weight_decay;
    double beta1 EK_IS(0.9);
    double beta2 EK_IS(0.999);
    double eps EK_IS(1e-8);
    bool amsgrad;
    bool maximize;
} ek_adam_options;
#define EK_DEFAULTS_ek_adam_options \
    EK_DEFAULT(lr, 1e-3), EK_DEFAULT(beta1, 0.9), EK_DEFAULT(beta2, 0.999), EK_DEFAULT(eps, 1e-8)
EK_API ek_optimizer *ek_adam_with(ek_adam_options options);
/** Adam; AMSGrad if .amsgrad. */
#define ek_adam(...) EK_CALL_1(ek_adam_with, ek_adam_options, module, __VA_ARGS__)

typedef struct ek_adamw_options {
    int begin; /**< no option, see base.h */
    ek_module *module;
    double lr EK_IS(1e-3);
    double weight_decay EK_IS(1e-2);
    double beta1 EK_IS(0.9);
    double beta2 EK_IS(0.999);
    double eps EK_IS(1e-8);
    bool amsgrad;
    bool maximize;
} ek_adamw_options;
#define EK_DEFAULTS_ek_adamw_options                                              \
    EK_DEFAULT(lr, 1e-3), EK_DEFAULT(weight_decay, 1e-2), EK_DEFAULT(beta1, 0.9), \
        EK_DEFAULT(beta2, 0.999), EK_DEFAULT(eps, 1e-8)
EK_API ek_optimizer *ek_adamw_with(ek_adamw_options options);
/** Adam with decoupled weight decay, which is not part of the gradient. */
#define ek_adamw(...) EK_CALL_1(ek_adamw_with, ek_adamw_options, module, __VA_ARGS__)

typedef struct ek_adamax_options {
    int begin; /**< no option, see base.h */
    ek_module *module;
    double lr EK_IS(2e-3);
    double weight_decay;
    double beta1 EK_IS(0.9);
    double beta2 EK_IS(0.999);
    double eps EK_IS(1e-8);
    bool maximize;
} ek_adamax_options;
#define EK_DEFAULTS_ek_adamax_options \
    EK_DEFAULT(lr, 2e-3), EK_DEFAULT(beta1, 0.9), EK_DEFAULT(beta2, 0.999), EK_DEFAULT(eps, 1e-8)
EK_API ek_optimizer *ek_adamax_with(ek_adamax_options options);
/** Adamax: Adam with the largest gradient in place of the mean of squares. */
#define ek_adamax(...) EK_CALL_1(ek_adamax_with, ek_adamax_options, module, __VA_ARGS__)

typedef struct ek_nadam_options {
    int begin; /**< no option, see base.h */
    ek_module *module;
    double lr EK_IS(2e-3);
    double weight_decay;
    double beta1 EK_IS(0.9);
    double beta2 EK_IS(0.999);
    double eps EK_IS(1e-8);
    bool maximize;
    double momentum_decay EK_IS(4e-3);
} ek_nadam_options;
#define EK_DEFAULTS_ek_nadam_options                                                               \
    EK_DEFAULT(lr, 2e-3), EK_DEFAULT(beta1, 0.9), EK_DEFAULT(beta2, 0.999), EK_DEFAULT(eps, 1e-8), \
        EK_DEFAULT(momentum_decay, 4e-3)
EK_API ek_optimizer *ek_nadam_with(ek_nadam_options options);
/** NAdam: Adam with Nesterov's momentum. */
#define ek_nadam(...) EK_CALL_1(ek_nadam_with, ek_nadam_options, module, __VA_ARGS__)

typedef struct ek_radam_options {
    int begin; /**< no option, see base.h */
    ek_module *module;
    double lr EK_IS(1e-3);
    double weight_decay;
    double beta1 EK_IS(0.9);
    double beta2 EK_IS(0.999);
    double eps EK_IS(1e-8);
    bool maximize;
} ek_radam_options;
#define EK_DEFAULTS_ek_radam_options \
    EK_DEFAULT(lr, 1e-3), EK_DEFAULT(beta1, 0.9), EK_DEFAULT(beta2, 0.999), EK_DEFAULT(eps, 1e-8)
EK_API ek_optimizer *ek_radam_with(ek_radam_options options);
/** RAdam: Adam that is rectified in the first steps. */
#define ek_radam(...) EK_CALL_1(ek_radam_with, ek_radam_options, module, __VA_ARGS__)

typedef struct ek_rmsprop_options {
    int begin; /**< no option, see base.h */
    ek_module *module;
    double lr EK_IS(1e-2);
    double momentum;
    double weight_decay;
    double eps EK_IS(1e-8);
    bool maximize;
    double alpha EK_IS(0.99);
    bool centered;
} ek_rmsprop_options;
#define EK_DEFAULTS_ek_rmsprop_options \
    EK_DEFAULT(lr, 1e-2), EK_DEFAULT(eps, 1e-8), EK_DEFAULT(alpha, 0.99)
EK_API ek_optimizer *ek_rmsprop_with(ek_rmsprop_options options);
/** RMSprop, also with momentum. */
#define ek_rmsprop(...) EK_CALL_1(ek_rmsprop_with, ek_rmsprop_options, module, __VA_ARGS__)

typedef struct ek_adagrad_options {
    int begin; /**< no option, see base.h */
    ek_module *module;
    double lr EK_IS(1e-2);
    double weight_decay;
    double eps EK_IS(1e-10);
    bool maximize;
    double lr_decay;
    double initial_accumulator_value;
} ek_adagrad_options;
#define EK_DEFAULTS_ek_adagrad_options EK_DEFAULT(lr, 1e-2), EK_DEFAULT(eps, 1e-10)
EK_API ek_optimizer *ek_adagrad_with(ek_adagrad_options options);
/** Adagrad. */
#define ek_adagrad(...) EK_CALL_1(ek_adagrad_with, ek_adagrad_options, module, __VA_ARGS__)

typedef struct ek_adadelta_options {
    int begin; /**< no option, see base.h */
    ek_module *module;
    double lr EK_IS(1);
    double weight_decay;
    double eps EK_IS(1e-6);
    bool maximize;
    double rho EK_IS(0.9);
} ek_adadelta_options;
#define EK_DEFAULTS_ek_adadelta_options \
    EK_DEFAULT(lr, 1), EK_DEFAULT(eps, 1e-6), EK_DEFAULT(rho, 0.9)
EK_API ek_optimizer *ek_adadelta_with(ek_adadelta_options options);
/** Adadelta. */
#define ek_adadelta(...) EK_CALL_1(ek_adadelta_with, ek_adadelta_options, module, __VA_ARGS__)

typedef struct ek_rprop_options {
    int begin; /**< no option, see base.h */
    ek_module *module;
    double lr EK_IS(1e-2);
    bool maximize;
    double eta_minus EK_IS(0.5);
    double eta_plus EK_IS(1.2);
    double step_min EK_IS(1e-6);
    double step_max EK_IS(50);
} ek_rprop_options;
#define EK_DEFAULTS_ek_rprop_options                                             \
    EK_DEFAULT(lr, 1e-2), EK_DEFAULT(eta_minus, 0.5), EK_DEFAULT(eta_plus, 1.2), \
        EK_DEFAULT(step_min, 1e-6), EK_DEFAULT(step_max, 50)
EK_API ek_optimizer *ek_rprop_with(ek_rprop_options options);
/** Rprop. */
#define ek_rprop(...) EK_CALL_1(ek_rprop_with, ek_rprop_options, module, __VA_ARGS__)

typedef struct ek_asgd_options {
    int begin; /**< no option, see base.h */
    ek_module *module;
    double lr EK_IS(1e-2);
    double weight_decay;
    bool maximize;
    double alpha EK_IS(0.75);
    double lambd EK_IS(1e-4);
    double t0 EK_IS(1e6);
} ek_asgd_options;
#define EK_DEFAULTS_ek_asgd_options \
    EK_DEFAULT(lr, 1e-2), EK_DEFAULT(alpha, 0.75), EK_DEFAULT(lambd, 1e-4), EK_DEFAULT(t0, 1e6)
EK_API ek_optimizer *ek_asgd_with(ek_asgd_options options);
/** Averaged SGD. */
#define ek_asgd(...) EK_CALL_1(ek_asgd_with, ek_asgd_options, module, __VA_ARGS__)

typedef struct ek_lbfgs_options {
    int begin; /**< no option, see base.h */
    ek_module *module;
    double lr EK_IS(1);
    int max_iter EK_IS(20);              /**< iterations of one step */
    int max_eval EK_IS(EK_UNSET);        /**< evaluations of one step; EK_UNSET: 5/4 of max_iter */
    double tolerance_grad EK_IS(1e-7);   /**< a step ends if no |gradient element| is larger */
    double tolerance_change EK_IS(1e-9); /**< or if parameters or loss change by less */
    int history_size EK_IS(100);
    ek_step_length line_search; /**< EK_STRONG_WOLFE searches */
} ek_lbfgs_options;
#define EK_DEFAULTS_ek_lbfgs_options                                             \
    EK_DEFAULT(lr, 1), EK_DEFAULT(max_iter, 20), EK_DEFAULT(max_eval, EK_UNSET), \
        EK_DEFAULT(tolerance_grad, 1e-7), EK_DEFAULT(tolerance_change, 1e-9),    \
        EK_DEFAULT(history_size, 100)
EK_API ek_optimizer *ek_lbfgs_with(ek_lbfgs_options options);
/** L-BFGS, whose steps evaluate the loss several times: ek_step_closure. It has one group, of one
 * dtype, on any devices. Its state are vectors over all parameters, two per remembered iteration,
 * on the first parameter's device. */
#define ek_lbfgs(...) EK_CALL_1(ek_lbfgs_with, ek_lbfgs_options, module, __VA_ARGS__)

/* ---- all ---- */

/** Frees the optimizer, not its parameters and their gradients; NULL is ignored. */
EK_API void ek_optimizer_free(ek_optimizer *optimizer);
#define ek_optimizer_free(optimizer) ek_optimizer_free(EK_PLACED(optimizer))

/** Adds a group with the options that the optimizer was made with, and returns its index;
 * ek_optimizer_set changes them. EK_E_INVALID for a parameter that is in a group already, is no
 * leaf, or is a view with gaps. EK_E_DTYPE for a parameter that is not f32 or f64: keep parameters
 * in f32 and compute in bf16 or f16 by autocast. */
EK_API int ek_optimizer_add_group(ek_optimizer *optimizer, ek_tensor *const *parameters, int count);
/** The number of groups, and the learning rate of a group. */
EK_API int ek_optimizer_group_count(const ek_optimizer *optimizer);
EK_API double ek_optimizer_lr(const ek_optimizer *optimizer, int group);
/** Sets or reads any option of a group by the name of its member, ek_optimizer_set(optimizer, 0,
 * "lr", 0.1); switches are 0 or 1. Options must be consistent after each call: set "momentum"
 * before "nesterov". EK_E_INVALID for a name that the algorithm doesn't have or a value out of
 * range. EK_E_STATE if the option would need other state than parameters have (amsgrad after the
 * first update). On an error nothing has changed. Checkpoints of the optimizer (archive.h) include
 * the changed options. */
EK_API int ek_optimizer_set(ek_optimizer *optimizer, int group, const char *name, double value);
EK_API int ek_optimizer_get(const ek_optimizer *optimizer, int group, const char *name,
                            double *value);

/** Updates every parameter that has a gradient. If no parameter has one, nothing is updated, as in
 * PyTorch, but a warning is logged (ek_set_log). On an error nothing has been updated. If
 * parameters are sharded over ranks (ddp.h), all ranks call ek_step. EK_E_INVALID for LBFGS, which
 * needs a closure. */
EK_API int ek_step(ek_optimizer *optimizer);

/** Computes the loss for the present parameters, and their gradients anew. Returns 0 or a negative
 * status.
 *
 *     static int evaluate(double *loss, void *user)
 *     {
 *         job *j = user;
 *         ek_zero_grad(j->optimizer);
 *         ek_tensor *l = ek_loss(j->criterion, ek_forward(j->model, j->input), j->target);
 *         return ek_backward(l) < 0 ? ek_error_status() : ek_item(l, loss);
 *     }
 *
 * ek_train_step with .accumulate_only does the same in micro-batches. */
typedef int ek_closure(double *loss, void *user);

/** Makes a step that evaluates the closure, with gradient mode on and in a new scope: LBFGS several
 * times, other optimizers once, before ek_step. If `loss` is not NULL, writes the first loss to it.
 * On an error parameters and state are unchanged; gradients are those of the last evaluation.
 *
 * LBFGS: EK_E_STATE for parameters that are sharded, over ranks or not. The state follows
 * parameters that were moved to another device before the step or by its first evaluation; a later
 * move in the step is EK_E_DEVICE.
 *
 * LBFGS under ek_distributed_data_parallel: the closure must return the loss of all ranks on every
 * rank, because the loss decides when a step ends. An error of the closure must be an error on all
 * ranks, too: a rank whose closure fails restores the parameters from before the step, and the
 * other ranks would wait for it. Errors in the wrapper's forward and backward and in calls of
 * dist.h reach all ranks; the step does not send other errors. A closure with another error calls
 * ek_dist_raise (dist.h) before it returns, and then the other ranks' next call fails. This next
 * call must be in the same evaluation, so that all ranks end the step alike: sum the losses over
 * the ranks as the last call of the closure that can fail. */
EK_API int ek_step_closure(ek_optimizer *optimizer, ek_closure *closure, void *user, double *loss);

/** Removes the gradients of all parameters. */
EK_API void ek_zero_grad(ek_optimizer *optimizer);

typedef struct ek_minimize_options {
    int begin; /**< no option, see base.h */
    ek_optimizer *optimizer;
    ek_tensor *loss;
    double max_norm;        /**< > 0: the gradients' largest joint norm (ek_clip_grad_norm) */
    ek_grad_scaler *scaler; /**< for a loss under autocast to f16 (scaler.h), or NULL */
    double *value;          /**< result: the loss, without the scale; NULL saves waiting for it */
    bool accumulate;        /**< keeps earlier gradients; with a scaler, of scaled losses */
} ek_minimize_options;
#define EK_DEFAULTS_ek_minimize_options EK_NO_DEFAULTS
EK_API int ek_minimize_with(ek_minimize_options options);
/** ek_minimize(optimizer, loss, .max_norm = 1, .value = &value): removes the gradients of all
 * parameters, and makes the step that follows from the loss: ek_zero_grad, ek_backward, ek_item,
 * ek_clip_grad_norm, ek_step, with their numbers. With a scaler, the loss is scaled, gradients are
 * unscaled before they are clipped, and ek_grad_scaler_step and ek_grad_scaler_update follow.
 *
 * A NULL loss returns the pending error, so that only this call of a training loop needs a look at
 * its status. On an error, parameters, the optimizer's state and the scaler are unchanged, and
 * gradients are those so far. With max_norm, a norm that is not finite is EK_E_INVALID, but a
 * scaler that finds infinite or NaN elements skips the step without an error. LBFGS needs
 * ek_step_closure. If parameters are sharded over ranks, all ranks call ek_minimize, as ek_step.
 * ek_train_step makes steps in micro-batches. */
#define ek_minimize(...) \
    EK_CALL_2(ek_minimize_with, ek_minimize_options, optimizer, loss, __VA_ARGS__)

/** A state of one parameter, for checkpoints, by PyTorch's name: SGD's "momentum_buffer";
 * "exp_avg", "exp_avg_sq" and "max_exp_avg_sq" of Adam and its like, Adamax's "exp_inf", NAdam's
 * "mu_product"; RMSprop's "square_avg", "momentum_buffer", "grad_avg"; Adagrad's "sum"; Adadelta's
 * "square_avg", "acc_delta"; Rprop's "prev", "step_size"; ASGD's "ax", "eta". "mu_product" and
 * "eta" are scalars of f64 in the scope. LBFGS's states cover all parameters and are found at the
 * first, as in PyTorch: "d", "prev_flat_grad", and, with a row per remembered iteration,
 * "old_dirs", "old_stps" and "ro"; "t", "H_diag", "prev_loss" and "func_evals" are scalars; if the
 * first evaluation has converged already, there is "func_evals" alone. All LBFGS states but "d" and
 * "prev_flat_grad" are new tensors in the scope. NULL, without an error, if there is no state yet.
 *
 * Unless said otherwise above, the optimizer owns the state. For a sharded parameter the result is
 * a copy of the whole state, on cpu, in the scope; if the parameter is sharded over ranks (ddp.h),
 * all ranks call this function. */
EK_API ek_tensor *ek_optimizer_state(ek_optimizer *optimizer, ek_tensor *parameter,
                                     const char *name);

/** True if `parameter` is one of the optimizer's. */
EK_API bool ek_optimizer_has(ek_optimizer *optimizer, const ek_tensor *parameter);
/** How many parameters all groups have; 0 for a NULL optimizer. */
EK_API int ek_optimizer_parameter_count(const ek_optimizer *optimizer);

/** How many updates the parameter has had. EK_E_INVALID if it is no parameter of the optimizer. */
EK_API int64_t ek_optimizer_steps(ek_optimizer *optimizer, ek_tensor *parameter);
/** Restores a parameter's state from a checkpoint: `steps` updates, and copies of all states that
 * the algorithm has after so many updates (none for 0 steps, or LBFGS's "func_evals"). Shapes are
 * those that ek_optimizer_state returns; dtypes and devices are converted. On an error nothing has
 * changed. */
EK_API int ek_optimizer_set_state(ek_optimizer *optimizer, ek_tensor *parameter, int64_t steps,
                                  const char *const *names, ek_tensor *const *states, int count);
/** The name of state `index`, with the present options; NULL, without an error, past the last. */
EK_API const char *ek_optimizer_state_name(const ek_optimizer *optimizer, int index);

typedef struct ek_clip_grad_norm_options {
    int begin; /**< no option, see base.h */
    ek_optimizer *optimizer;
    double max_norm EK_IS(EK_UNSET); /**< required: EK_E_INVALID if it is EK_UNSET */
    double *norm;                    /**< result: the norm before clipping; may be NULL */
    bool error_if_nonfinite;
    double norm_type EK_IS(2); /**< 2, 1, INFINITY or another number above 0 */
    ek_module *module;         /**< instead of the optimizer: a module's parameters */
    ek_tensor *const *tensors; /**< instead of both: `count` leaves; repeated ones count once */
    int count;
} ek_clip_grad_norm_options;
#define EK_DEFAULTS_ek_clip_grad_norm_options \
    EK_DEFAULT(max_norm, EK_UNSET), EK_DEFAULT(norm_type, 2)

EK_API int ek_clip_grad_norm_with(ek_clip_grad_norm_options options);
/** ek_clip_grad_norm(optimizer, 1.0, &norm) or ek_clip_grad_norm(.max_norm = 1, .module = net):
 * scales the gradients of all parameters so that their joint norm is at most max_norm. As in
 * torch.nn.utils.clip_grad_norm_, gradients of an infinite norm are scaled by 0 (infinite elements
 * become NaN), those of a NaN norm by NaN. With error_if_nonfinite an infinite or NaN norm is
 * EK_E_INVALID, and gradients are unchanged. Waits for a GPU only with `norm`, with
 * error_if_nonfinite, if other gradients lie on the host, or if parameters are sharded over ranks
 * (ddp.h). */
#define ek_clip_grad_norm(...)                                                              \
    EK_CALL_3(ek_clip_grad_norm_with, ek_clip_grad_norm_options, optimizer, max_norm, norm, \
              __VA_ARGS__)
/** Limits every element of the gradients to [-max_value, max_value]. */
EK_API int ek_clip_grad_value(ek_optimizer *optimizer, double max_value);
EK_API int ek_clip_grad_value_of(ek_tensor *const *tensors, int count, double max_value);

EK_END_DECLARATIONS
#endif
