/* trajectories.h: the optimizers and options that tests/golden/make_optim.py followed. */
#ifndef EK_TESTS_TRAJECTORIES_H
#define EK_TESTS_TRAJECTORIES_H

#include "evenkeel/optim.h"

typedef ek_optimizer *constructor(ek_optimizer_options options);

static const struct {
    const char *name;
    constructor *make;
    ek_optimizer_options options;
} trajectories[] = {
    {"sgd/plain", ek_sgd_with, {.lr = 0.1}},
    {"sgd/decay", ek_sgd_with, {.lr = 0.1, .weight_decay = 0.05}},
    {"sgd/momentum", ek_sgd_with, {.lr = 0.1, .momentum = 0.9}},
    {"sgd/dampening",
     ek_sgd_with,
     {.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.01}},
    {"sgd/nesterov",
     ek_sgd_with,
     {.lr = 0.1, .momentum = 0.8, .nesterov = true, .weight_decay = 0.01}},
    {"sgd/maximize",
     ek_sgd_with,
     {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .maximize = true}},
    {"adam/plain", ek_adam_with, {.lr = 0.01}},
    {"adam/decay",
     ek_adam_with,
     {.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1}},
    {"adam/amsgrad", ek_adam_with, {.lr = 0.01, .amsgrad = true}},
    {"adam/maximize", ek_adam_with, {.lr = 0.01, .weight_decay = 0.1, .maximize = true}},
    {"adam/beta_zero", ek_adam_with, {.lr = 0.01, .beta1 = EK_ZERO, .beta2 = 0.9}},
    {"adamw/plain", ek_adamw_with, {.lr = 0.01}},
    {"adamw/no_decay", ek_adamw_with, {.lr = 0.01, .weight_decay = EK_ZERO}},
    {"adamw/amsgrad",
     ek_adamw_with,
     {.lr = 0.02, .weight_decay = 0.3, .amsgrad = true, .maximize = true}},
    {"adamax/plain", ek_adamax_with, {.lr = 0.01}},
    {"adamax/decay",
     ek_adamax_with,
     {.lr = 0.02, .beta1 = 0.8, .beta2 = 0.7, .eps = 1e-3, .weight_decay = 0.1, .maximize = true}},
    {"nadam/plain", ek_nadam_with, {.lr = 0}},
    {"nadam/decay",
     ek_nadam_with,
     {.lr = 0.01,
      .beta1 = 0.8,
      .beta2 = 0.95,
      .eps = 1e-3,
      .weight_decay = 0.1,
      .momentum_decay = 0.2}},
    {"radam/plain", ek_radam_with, {.lr = 0.01}},
    {"radam/decay", ek_radam_with, {.lr = 0.01, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.1}},
    {"rmsprop/plain", ek_rmsprop_with, {.lr = 0}},
    {"rmsprop/momentum",
     ek_rmsprop_with,
     {.lr = 0.02, .alpha = 0.8, .momentum = 0.9, .weight_decay = 0.1}},
    {"rmsprop/centered", ek_rmsprop_with, {.eps = 1e-3, .centered = true}},
    {"rmsprop/both",
     ek_rmsprop_with,
     {.alpha = 0.9, .eps = 1e-3, .centered = true, .momentum = 0.5, .maximize = true}},
    {"adagrad/plain", ek_adagrad_with, {.lr = 0}},
    {"adagrad/decay",
     ek_adagrad_with,
     {.lr = 0.1,
      .lr_decay = 0.1,
      .weight_decay = 0.2,
      .initial_accumulator_value = 0.3,
      .maximize = true}},
    {"adadelta/plain", ek_adadelta_with, {.lr = 0}},
    {"adadelta/decay",
     ek_adadelta_with,
     {.lr = 0.5, .rho = 0.7, .eps = 1e-3, .weight_decay = 0.1, .maximize = true}},
    {"rprop/plain", ek_rprop_with, {.lr = 0}},
    {"rprop/bounds",
     ek_rprop_with,
     {.lr = 0.1,
      .eta_minus = 0.3,
      .eta_plus = 1.7,
      .step_min = 0.04,
      .step_max = 0.2,
      .maximize = true}},
    {"asgd/plain", ek_asgd_with, {.lr = 0}},
    {"asgd/average",
     ek_asgd_with,
     {.lr = 0.1, .lambd = 0.3, .alpha = 0.5, .t0 = 2, .weight_decay = 0.1, .maximize = true}},
};
enum { TRAJECTORIES = sizeof trajectories / sizeof *trajectories };

#endif
