/* optim.h: optimizers to PyTorch's formulas, schedules, gradient clipping.
 *
 * An optimizer keeps references to its parameters and one state per parameter. Parameters without a
 * gradient are skipped, their state too. Neighbouring parameters that live in one slab are stepped
 * by one fused kernel. Parameters that a wrapper has divided (EK_SHARD_OPTIMIZER) are stepped in
 * pieces where these lie, devices side by side, and their state lies there too; if a division
 * changes, the state follows at the next step. An optimizer and its parameters are for one thread
 * at a time. */
#ifndef EVENKEEL_OPTIM_H
#define EVENKEEL_OPTIM_H

#include "evenkeel/module.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_optimizer ek_optimizer;

typedef struct ek_optimizer_options {
    const char *keywords;
    ek_module *module;   /* whose parameters form group 0; NULL: no group yet */
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

/* ek_sgd(net, .lr = 0.1, .momentum = 0.9). NULL with EK_E_INVALID naming the option that is out of
 * range. Free with ek_optimizer_free. */
EK_API ek_optimizer *ek_sgd_with(ek_optimizer_options options);
EK_API ek_optimizer *ek_adam_with(ek_optimizer_options options);
EK_API ek_optimizer *ek_adamw_with(ek_optimizer_options options);
#define EK_OPTIMIZER_OPTIONS(...) EK_OPTIONS_1(ek_optimizer_options, module, __VA_ARGS__)
#define ek_sgd(...) ek_sgd_with(EK_OPTIMIZER_OPTIONS(__VA_ARGS__))
#define ek_adam(...) ek_adam_with(EK_OPTIMIZER_OPTIONS(__VA_ARGS__))
#define ek_adamw(...) ek_adamw_with(EK_OPTIMIZER_OPTIONS(__VA_ARGS__))
EK_API void ek_optimizer_free(ek_optimizer *optimizer);

/* Adds a group with options of its own, EK_OPTIMIZER_OPTIONS(.lr = 0.1), and returns its index; the
 * module among them is ignored. Numbers left out are those the optimizer was made with, and
 * switches that were on there stay on. EK_E_INVALID for a parameter that is in a group already, no
 * leaf, or a view with gaps; EK_E_DTYPE unless it is f32 or f64 (bf16 is for computing: masters are
 * f32). */
EK_API int ek_optimizer_add_group(ek_optimizer *optimizer, ek_tensor *const *parameters, int count,
                                  ek_optimizer_options options);
EK_API int ek_optimizer_group_count(const ek_optimizer *optimizer);
EK_API double ek_optimizer_lr(const ek_optimizer *optimizer, int group);
EK_API int ek_optimizer_set_lr(ek_optimizer *optimizer, int group, double lr);

/* One update of every parameter that has a gradient. On an error nothing has been updated. */
EK_API int ek_step(ek_optimizer *optimizer);

/* Removes the gradients of all parameters. */
EK_API void ek_zero_grad(ek_optimizer *optimizer);

/* State of one parameter, for checkpoints: "momentum_buffer", "exp_avg", "exp_avg_sq",
 * "max_exp_avg_sq"; NULL without an error if there is none yet. Owned by the optimizer, but of a
 * divided parameter a copy of the whole, on cpu, in the scope. */
EK_API ek_tensor *ek_optimizer_state(ek_optimizer *optimizer, ek_tensor *parameter,
                                     const char *name);

/* Is it one of the optimizer's parameters? */
EK_API bool ek_optimizer_has(ek_optimizer *optimizer, const ek_tensor *parameter);
/* Parameters of all groups; 0 for no optimizer. */
EK_API int ek_optimizer_parameter_count(const ek_optimizer *optimizer);

/* How many updates the parameter had (0: none); EK_E_INVALID for a parameter of another. */
EK_API int64_t ek_optimizer_steps(ek_optimizer *optimizer, ek_tensor *parameter);
/* Puts a parameter where a checkpoint left it: `steps` updates, and copies of the named states, all
 * that the algorithm has at that point (none for steps 0). Shapes are the parameter's; dtypes and
 * devices are converted. On an error the parameter's state is as before. */
EK_API int ek_optimizer_set_state(ek_optimizer *optimizer, ek_tensor *parameter, int64_t steps,
                                  const char *const *names, ek_tensor *const *states, int count);
/* The name of state `index` of this algorithm with its options; NULL without an error past the end.
 */
EK_API const char *ek_optimizer_state_name(const ek_optimizer *optimizer, int index);

/* Learning-rate schedules: call ek_schedule_step after each epoch (or step). As
 * torch.optim.lr_scheduler.StepLR and CosineAnnealingLR each step goes on from the rates that the
 * groups have: those of the step before, or what ek_optimizer_set_lr made of them. A group that is
 * added later is taken along from its own rate. A rate that would become negative (one below lr_min
 * does, beyond the end) is EK_E_INVALID; on an error all is as before. A schedule is not to
 * be stepped after its optimizer is freed. */
typedef struct ek_schedule ek_schedule;
EK_API ek_schedule *ek_step_lr(ek_optimizer *optimizer, int64_t step_size, double gamma);
EK_API ek_schedule *ek_cosine_annealing_lr(ek_optimizer *optimizer, int64_t steps, double lr_min);
EK_API int ek_schedule_step(ek_schedule *schedule);
/* How often it has stepped; and back, for checkpoints: the rates become those of that many steps
 * from the rates that the groups had when the schedule first saw them, whatever was set by hand
 * since; the same to the bit as by stepping (after more than 2^24 steps within rounding). */
EK_API int64_t ek_schedule_steps(const ek_schedule *schedule);
EK_API int ek_schedule_set_steps(ek_schedule *schedule, int64_t steps);
EK_API void ek_schedule_free(ek_schedule *schedule);

typedef struct ek_clip_grad_norm_options {
    const char *keywords;
    ek_optimizer *optimizer;
    double max_norm;
    double *norm; /* result: the norm before; may be NULL */
    bool error_if_nonfinite;
} ek_clip_grad_norm_options;

/* ek_clip_grad_norm(optimizer, 1.0, &norm): scales the gradients of all parameters so that their
 * joint 2-norm is at most max_norm. As torch.nn.utils.clip_grad_norm_: gradients of a norm that is
 * not finite are scaled too, by 0 (infinite elements become NaN) or NaN. With error_if_nonfinite
 * such a norm is EK_E_INVALID, and the gradients stay. */
EK_API int ek_clip_grad_norm_with(ek_clip_grad_norm_options options);
#define ek_clip_grad_norm(...) \
    ek_clip_grad_norm_with(    \
        EK_OPTIONS_3(ek_clip_grad_norm_options, optimizer, max_norm, norm, __VA_ARGS__))
EK_API int ek_clip_grad_value(ek_optimizer *optimizer, double max_value);

EK_END_DECLARATIONS
#endif
