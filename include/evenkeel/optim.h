/* optim.h: optimizers by PyTorch's formulas, learning-rate schedules, gradient clipping.
 *
 * An optimizer keeps references to its parameters, and a state per parameter. A parameter without a
 * gradient is skipped, and its state stays. Neighbouring parameters of one slab are stepped by one
 * fused kernel. Sharded parameters (EK_SHARD_OPTIMIZER) are stepped on the devices of their shards,
 * side by side, with their state there; if the sharding changes, the state follows at the next
 * step. An optimizer and its parameters are for one thread at a time. */
#ifndef EVENKEEL_OPTIM_H
#define EVENKEEL_OPTIM_H

#include "evenkeel/module.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_optimizer ek_optimizer;

typedef struct ek_optimizer_options {
    const char *keywords;
    ek_module *module;   /* its parameters form group 0; NULL: no group yet */
    double lr;           /* default 1e-3 */
    double momentum;     /* SGD */
    double dampening;    /* SGD */
    double weight_decay; /* AdamW's default is 1e-2 */
    bool nesterov;       /* SGD: needs momentum and no dampening */
    double beta1, beta2; /* Adam: default 0.9, 0.999 */
    double eps;          /* Adam: default 1e-8 */
    bool amsgrad;        /* Adam */
    bool maximize;
} ek_optimizer_options;

/* ek_sgd(net, .lr = 0.1, .momentum = 0.9): owned by the caller, freed with ek_optimizer_free. NULL
 * with EK_E_INVALID, which names an option that is out of range. */
EK_API ek_optimizer *ek_sgd_with(ek_optimizer_options options);
EK_API ek_optimizer *ek_adam_with(ek_optimizer_options options);
EK_API ek_optimizer *ek_adamw_with(ek_optimizer_options options);
#define EK_OPTIMIZER_OPTIONS(...) EK_OPTIONS_1(ek_optimizer_options, module, __VA_ARGS__)
#define ek_sgd(...) ek_sgd_with(EK_OPTIMIZER_OPTIONS(__VA_ARGS__))
#define ek_adam(...) ek_adam_with(EK_OPTIMIZER_OPTIONS(__VA_ARGS__))
#define ek_adamw(...) ek_adamw_with(EK_OPTIMIZER_OPTIONS(__VA_ARGS__))
EK_API void ek_optimizer_free(ek_optimizer *optimizer);

/* Adds a group with its own options, EK_OPTIMIZER_OPTIONS(.lr = 0.1), and returns its index.
 * Their `module` is ignored. Numbers that are left out are those that the optimizer was made with;
 * switches that were on then stay on. EK_E_INVALID for a parameter that is in a group already, is
 * no leaf, or is a view with gaps. EK_E_DTYPE unless it is f32 or f64: keep parameters in f32 and
 * compute in bf16 by autocast. */
EK_API int ek_optimizer_add_group(ek_optimizer *optimizer, ek_tensor *const *parameters, int count,
                                  ek_optimizer_options options);
EK_API int ek_optimizer_group_count(const ek_optimizer *optimizer);
EK_API double ek_optimizer_lr(const ek_optimizer *optimizer, int group);
EK_API int ek_optimizer_set_lr(ek_optimizer *optimizer, int group, double lr);

/* Updates every parameter that has a gradient. On an error nothing has been updated. All ranks call
 * it if parameters are divided over them (ddp.h). */
EK_API int ek_step(ek_optimizer *optimizer);

/* Removes the gradients of all parameters. */
EK_API void ek_zero_grad(ek_optimizer *optimizer);

/* A state of one parameter, for checkpoints: "momentum_buffer", "exp_avg", "exp_avg_sq" or
 * "max_exp_avg_sq". NULL, without an error, if there is none yet. Owned by the optimizer. For a
 * sharded parameter it is a copy of the whole state instead, on cpu, in the scope; if it is divided
 * over ranks (ddp.h), all of them call this. */
EK_API ek_tensor *ek_optimizer_state(ek_optimizer *optimizer, ek_tensor *parameter,
                                     const char *name);

/* True if `parameter` is one of the optimizer's. */
EK_API bool ek_optimizer_has(ek_optimizer *optimizer, const ek_tensor *parameter);
/* How many parameters all groups have; 0 for a NULL optimizer. */
EK_API int ek_optimizer_parameter_count(const ek_optimizer *optimizer);

/* How many updates the parameter has had. EK_E_INVALID if it is no parameter of the optimizer. */
EK_API int64_t ek_optimizer_steps(ek_optimizer *optimizer, ek_tensor *parameter);
/* Restores a parameter's state from a checkpoint: `steps` updates, and copies of all states that
 * the algorithm has by then (none for 0 steps). Shapes are the parameter's; dtypes and devices are
 * converted. On an error nothing has changed. */
EK_API int ek_optimizer_set_state(ek_optimizer *optimizer, ek_tensor *parameter, int64_t steps,
                                  const char *const *names, ek_tensor *const *states, int count);
/* The name of state `index`, with the present options; NULL, without an error, past the last. */
EK_API const char *ek_optimizer_state_name(const ek_optimizer *optimizer, int index);

/* Learning-rate schedules, as torch.optim.lr_scheduler.StepLR and CosineAnnealingLR. Call
 * ek_schedule_step after each epoch (or step). A step goes on from the groups' present rates, which
 * ek_optimizer_set_lr may have changed. A group that is added later starts from its own rate.
 * EK_E_INVALID if a rate would become negative, as one below lr_min can after `steps` steps. On an
 * error nothing has changed. A schedule must not be stepped after its optimizer is freed. */
typedef struct ek_schedule ek_schedule;
EK_API ek_schedule *ek_step_lr(ek_optimizer *optimizer, int64_t step_size, double gamma);
EK_API ek_schedule *ek_cosine_annealing_lr(ek_optimizer *optimizer, int64_t steps, double lr_min);
EK_API int ek_schedule_step(ek_schedule *schedule);
/* How often the schedule has stepped. ek_schedule_set_steps restores that from a checkpoint: the
 * rates become those after so many steps from the groups' first rates, whatever was set by hand
 * since. They are the same to the bit as by stepping; within rounding for more than 2^24 steps. */
EK_API int64_t ek_schedule_steps(const ek_schedule *schedule);
EK_API int ek_schedule_set_steps(ek_schedule *schedule, int64_t steps);
EK_API void ek_schedule_free(ek_schedule *schedule);

typedef struct ek_clip_grad_norm_options {
    const char *keywords;
    ek_optimizer *optimizer;
    double max_norm;
    double *norm; /* result: the norm before clipping; may be NULL */
    bool error_if_nonfinite;
} ek_clip_grad_norm_options;

/* ek_clip_grad_norm(optimizer, 1.0, &norm): scales the gradients of all parameters so that their
 * joint 2-norm is at most max_norm. As in torch.nn.utils.clip_grad_norm_, gradients of an infinite
 * norm are scaled by 0 (infinite elements become NaN), those of a NaN norm by NaN. With
 * error_if_nonfinite such a norm is EK_E_INVALID, and gradients stay as they are. */
EK_API int ek_clip_grad_norm_with(ek_clip_grad_norm_options options);
#define ek_clip_grad_norm(...) \
    ek_clip_grad_norm_with(    \
        EK_OPTIONS_3(ek_clip_grad_norm_options, optimizer, max_norm, norm, __VA_ARGS__))
EK_API int ek_clip_grad_value(ek_optimizer *optimizer, double max_value);

EK_END_DECLARATIONS
#endif
