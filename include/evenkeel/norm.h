/** @file
 * norm.h: normalisation as functions. The rules of ops.h hold. */
#ifndef EVENKEEL_NORM_H
#define EVENKEEL_NORM_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/** A momentum for batch norm modules: running statistics are plain averages over all batches. */
#define EK_CUMULATIVE (-1)

typedef struct ek_batch_norm_options {
    int begin;                             /**< no option, see base.h */
    ek_tensor *x;                          /**< (N, C) or (N, C, ...) */
    ek_tensor *weight, *bias;              /**< (C) or NULL */
    ek_tensor *running_mean, *running_var; /**< (C) or NULL; updated if training */
    bool training;                         /**< counts as true without running statistics */
    double momentum EK_IS(0.1);
    double eps EK_IS(1e-5);
} ek_batch_norm_options;
#define EK_DEFAULTS_ek_batch_norm_options EK_DEFAULT(momentum, 0.1), EK_DEFAULT(eps, 1e-5)
EK_API ek_tensor *ek_f_batch_norm_with(ek_batch_norm_options options);
/** If training, normalises by the biased variance and updates running_var with the unbiased one. A
 * single value per channel is then EK_E_SHAPE ("Expected more than 1 value per channel"). */
#define ek_f_batch_norm(...) \
    EK_CALL_3(ek_f_batch_norm_with, ek_batch_norm_options, x, weight, bias, __VA_ARGS__)

/* ---- normalisation with statistics per sample: biased variance, no running statistics ---- */

/** Normalises over the last `normalized_ndim` dimensions, at most EK_MAX_DIMS - 1. Weight and bias
 * have the shape of these dimensions, or are NULL. PyTorch's eps is 1e-5, here and below. */
EK_API ek_tensor *ek_f_layer_norm(ek_tensor *x, int normalized_ndim, ek_tensor *weight,
                                  ek_tensor *bias, double eps);
/** Takes x (N, C, ...) and normalises over each of `groups` groups of channels and over space.
 * Weight and bias are (C) or NULL. If a group has a single value, the result is the bias; in a
 * batch of one sample it is EK_E_SHAPE. */
EK_API ek_tensor *ek_f_group_norm(ek_tensor *x, int64_t groups, ek_tensor *weight, ek_tensor *bias,
                                  double eps);
/** Group norm with one channel per group. One value per channel is EK_E_SHAPE. */
EK_API ek_tensor *ek_f_instance_norm(ek_tensor *x, ek_tensor *weight, ek_tensor *bias, double eps);

/** x / (k + alpha m)^beta, where m is the mean of x^2 over `size` neighbouring channels of x
 * (N, C, ...), size / 2 of them before each; channels beyond the ends count as 0. PyTorch's
 * alpha, beta and k are 1e-4, 0.75 and 1 (Krizhevsky et al., 2012). */
EK_API ek_tensor *ek_f_local_response_norm(ek_tensor *x, int64_t size, double alpha, double beta,
                                           double k);

EK_END_DECLARATIONS
#endif
