/* trajectories.h: the optimizers and options that tests/golden/make_optim.py followed. */
#ifndef EK_TESTS_TRAJECTORIES_H
#define EK_TESTS_TRAJECTORIES_H

#include "evenkeel/optim.h"
#include "kit/optimizers.h"

#define TRAJECTORY_LIST(X)                                                                        \
    X(sgd_plain, "sgd/plain", 0, ek_sgd(module, .lr = 0.1))                                       \
    X(sgd_decay, "sgd/decay", 0, ek_sgd(module, .lr = 0.1, .weight_decay = 0.05))                 \
    X(sgd_momentum, "sgd/momentum", 0, ek_sgd(module, .lr = 0.1, .momentum = 0.9))                \
    X(sgd_dampening, "sgd/dampening", 0,                                                          \
      ek_sgd(module, .lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.01))         \
    X(sgd_nesterov, "sgd/nesterov", 0,                                                            \
      ek_sgd(module, .lr = 0.1, .momentum = 0.8, .nesterov = true, .weight_decay = 0.01))         \
    X(sgd_maximize, "sgd/maximize", 0,                                                            \
      ek_sgd(module, .lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .maximize = true))          \
    X(adam_plain, "adam/plain", 0, ek_adam(module, .lr = 0.01))                                   \
    X(adam_decay, "adam/decay", 0,                                                                \
      ek_adam(module, .lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1)) \
    X(adam_amsgrad, "adam/amsgrad", 0, ek_adam(module, .lr = 0.01, .amsgrad = true))              \
    X(adam_maximize, "adam/maximize", 0,                                                          \
      ek_adam(module, .lr = 0.01, .weight_decay = 0.1, .maximize = true))                         \
    X(adam_beta_zero, "adam/beta_zero", 0, ek_adam(module, .lr = 0.01, .beta1 = 0, .beta2 = 0.9)) \
    X(adamw_plain, "adamw/plain", 0, ek_adamw(module, .lr = 0.01))                                \
    X(adamw_no_decay, "adamw/no_decay", 0, ek_adamw(module, .lr = 0.01, .weight_decay = 0))       \
    X(adamw_amsgrad, "adamw/amsgrad", 0,                                                          \
      ek_adamw(module, .lr = 0.02, .weight_decay = 0.3, .amsgrad = true, .maximize = true))       \
    X(adamax_plain, "adamax/plain", 0, ek_adamax(module, .lr = 0.01))                             \
    X(adamax_decay, "adamax/decay", 0,                                                            \
      ek_adamax(module, .lr = 0.02, .beta1 = 0.8, .beta2 = 0.7, .eps = 1e-3, .weight_decay = 0.1, \
                .maximize = true))                                                                \
    X(nadam_plain, "nadam/plain", 0, ek_nadam(module))                                            \
    X(nadam_decay, "nadam/decay", 0,                                                              \
      ek_nadam(module, .lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1, \
               .momentum_decay = 0.2))                                                            \
    X(radam_plain, "radam/plain", 0, ek_radam(module, .lr = 0.01))                                \
    X(radam_decay, "radam/decay", 0,                                                              \
      ek_radam(module, .lr = 0.01, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.1))              \
    X(rmsprop_plain, "rmsprop/plain", 0, ek_rmsprop(module))                                      \
    X(rmsprop_momentum, "rmsprop/momentum", 0,                                                    \
      ek_rmsprop(module, .lr = 0.02, .alpha = 0.8, .momentum = 0.9, .weight_decay = 0.1))         \
    X(rmsprop_centered, "rmsprop/centered", 0, ek_rmsprop(module, .eps = 1e-3, .centered = true)) \
    X(rmsprop_both, "rmsprop/both", 0,                                                            \
      ek_rmsprop(module, .alpha = 0.9, .eps = 1e-3, .centered = true, .momentum = 0.5,            \
                 .maximize = true))                                                               \
    X(adagrad_plain, "adagrad/plain", 0, ek_adagrad(module))                                      \
    X(adagrad_decay, "adagrad/decay", 0,                                                          \
      ek_adagrad(module, .lr = 0.1, .lr_decay = 0.1, .weight_decay = 0.2,                         \
                 .initial_accumulator_value = 0.3, .maximize = true))                             \
    X(adadelta_plain, "adadelta/plain", 0, ek_adadelta(module))                                   \
    X(adadelta_decay, "adadelta/decay", 0,                                                        \
      ek_adadelta(module, .lr = 0.5, .rho = 0.7, .eps = 1e-3, .weight_decay = 0.1,                \
                  .maximize = true))                                                              \
    X(rprop_plain, "rprop/plain", 0, ek_rprop(module))                                            \
    X(rprop_bounds, "rprop/bounds", 0,                                                            \
      ek_rprop(module, .lr = 0.1, .eta_minus = 0.3, .eta_plus = 1.7, .step_min = 0.04,            \
               .step_max = 0.2, .maximize = true))                                                \
    X(asgd_plain, "asgd/plain", 0, ek_asgd(module))                                               \
    X(asgd_average, "asgd/average", 0,                                                            \
      ek_asgd(module, .lr = 0.1, .lambd = 0.3, .alpha = 0.5, .t0 = 2, .weight_decay = 0.1,        \
              .maximize = true))
TRAJECTORY_LIST(OPTIMIZER_MAKER)
static const optimizer_row trajectories[] = {TRAJECTORY_LIST(OPTIMIZER_ROW)};
enum { TRAJECTORIES = sizeof trajectories / sizeof *trajectories };

#endif
