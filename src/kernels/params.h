/* params.h: what kernels are told beside their tensors: operations and options. Plain C that C++
 * compiles too, so that device code can read it. */
#ifndef EK_KERNELS_PARAMS_H
#define EK_KERNELS_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

/* ---- elementwise: names in the order of kernels/formulas.h ---- */

/* y = f(x; a, b) */
typedef enum ek_unary {
    EK_UNARY_AFFINE, /* a x + b */
    EK_UNARY_NEG,
    EK_UNARY_ABS,
    EK_UNARY_SIGN,
    EK_UNARY_SQUARE,
    EK_UNARY_SQRT,
    EK_UNARY_RECIPROCAL,
    EK_UNARY_POW, /* x^a */
    EK_UNARY_EXP,
    EK_UNARY_LOG,
    EK_UNARY_SIGMOID,
    EK_UNARY_TANH,
    EK_UNARY_SOFTPLUS,
    EK_UNARY_RELU,       /* NaN stays NaN */
    EK_UNARY_LEAKY_RELU, /* x > 0 ? x : a x */
    EK_UNARY_CLAMP,      /* into [a, b] */
    EK_UNARY_STEP,       /* x > a ? 1 : b */
    EK_UNARY_INSIDE,     /* a <= x <= b ? 1 : 0 */
    EK_UNARY_COUNT
} ek_unary;

/* z = f(x, y; a) */
typedef enum ek_binary {
    EK_BINARY_ADD, /* x + a y */
    EK_BINARY_SUB,
    EK_BINARY_MUL,
    EK_BINARY_DIV,
    EK_BINARY_MAXIMUM,
    EK_BINARY_MINIMUM,
    EK_BINARY_RELU_GRADIENT,       /* x (gradient), a x where y <= 0 */
    EK_BINARY_SIGMOID_GRADIENT,    /* x y (1 - y), y the output */
    EK_BINARY_TANH_GRADIENT,       /* x (1 - y^2), y the output */
    EK_BINARY_SIGN_MUL,            /* x sign(y) */
    EK_BINARY_SQUARED_DIFFERENCE,  /* (x - y)^2 */
    EK_BINARY_ABSOLUTE_DIFFERENCE, /* |x - y| */
    EK_BINARY_COUNT
} ek_binary;

typedef enum ek_compare {
    EK_COMPARE_EQ,
    EK_COMPARE_NE,
    EK_COMPARE_LT,
    EK_COMPARE_LE,
    EK_COMPARE_GT,
    EK_COMPARE_GE
} ek_compare;

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
    int64_t step; /* 1 for the first */
} ek_adam_params;

/* Cross entropy: which targets count, and how. */
typedef struct ek_cross_entropy_params {
    int64_t ignore_index;
    double label_smoothing;
} ek_cross_entropy_params;

#endif
