/* params.h: what kernels are told beside their tensors: operations and options. Plain C that C++
 * compiles too, so that device code can read it. */
#ifndef EK_KERNELS_PARAMS_H
#define EK_KERNELS_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/elementwise.h"

/* ---- elementwise ---- */

#define EK_ENUMERATOR(name, formula) EK_UNARY_##name,
typedef enum ek_unary { EK_UNARY_REALS(EK_ENUMERATOR) EK_UNARY_COUNT } ek_unary;
#undef EK_ENUMERATOR

#define EK_ENUMERATOR(name, formula) EK_BINARY_##name,
typedef enum ek_binary { EK_BINARY_REALS(EK_ENUMERATOR) EK_BINARY_COUNT } ek_binary;
#undef EK_ENUMERATOR

#define EK_ENUMERATOR(name, operator) EK_COMPARE_##name,
typedef enum ek_compare { EK_COMPARISONS(EK_ENUMERATOR) } ek_compare;
#undef EK_ENUMERATOR

typedef enum ek_reduce_kind {
    EK_REDUCE_SUM,
    EK_REDUCE_SUM_SQUARES,
    EK_REDUCE_MAX,
    EK_REDUCE_MIN
} ek_reduce_kind;

/* ---- windows ---- */

/* Convolution over 2 or 3 dimensions (the host takes 1 too); arrays are in the order of the
 * tensor's last dimensions. */
typedef struct ek_conv_params {
    int dims;
    int64_t stride[3], padding[3], dilation[3];
    int64_t groups;
} ek_conv_params;

typedef struct ek_pool_params {
    int dims;
    int64_t kernel[3], stride[3], padding[3], dilation[3];
    bool count_include_pad;
} ek_pool_params;

/* ---- optimizer steps over flat ranges ---- */

typedef struct ek_sgd_params {
    double lr, momentum, dampening, weight_decay;
    bool nesterov, maximize;
    bool first; /* the momentum buffer is set to the gradient, without dampening */
} ek_sgd_params;

typedef struct ek_adam_params {
    double lr, beta1, beta2, eps, weight_decay;
    bool decoupled; /* AdamW */
    bool maximize;
    int64_t step; /* the number of this step, from 1 on */
} ek_adam_params;

/* Cross entropy: which targets count, and how. */
typedef struct ek_cross_entropy_params {
    int64_t ignore_index;
    double label_smoothing;
} ek_cross_entropy_params;

#endif
