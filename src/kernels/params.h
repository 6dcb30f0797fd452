/* params.h: arguments of kernels other than tensors: operations and options. The header is C that
 * C++ compiles, too, so that device code can include it. */
#ifndef EK_KERNELS_PARAMS_H
#define EK_KERNELS_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "evenkeel/spatial.h"
#include "kernels/elementwise.h"

/* ---- elementwise ---- */

#define EK_ENUMERATOR(name, formula) EK_UNARY_##name,
typedef enum ek_unary {
    EK_UNARY_REALS(EK_ENUMERATOR) EK_UNARY_MATHEMATICS(EK_ENUMERATOR) EK_UNARY_COUNT
} ek_unary;
#undef EK_ENUMERATOR

#define EK_ENUMERATOR(name, formula) EK_BINARY_##name,
typedef enum ek_binary {
    EK_BINARY_REALS(EK_ENUMERATOR) EK_BINARY_MATHEMATICS(EK_ENUMERATOR) EK_BINARY_COUNT
} ek_binary;
#undef EK_ENUMERATOR

#define EK_ENUMERATOR(name, operator) EK_COMPARE_##name,
typedef enum ek_compare { EK_COMPARISONS(EK_ENUMERATOR) } ek_compare;
#undef EK_ENUMERATOR

typedef enum ek_reduce_kind {
    EK_REDUCE_SUM,
    EK_REDUCE_SUM_SQUARES,
    EK_REDUCE_MAX,
    EK_REDUCE_MIN,
    EK_REDUCE_PRODUCT
} ek_reduce_kind;

/* ---- steps of recurrent networks ---- */

typedef enum ek_recurrent_cell {
    EK_CELL_TANH,
    EK_CELL_RELU,
    EK_CELL_LSTM,
    EK_CELL_GRU
} ek_recurrent_cell;

/* ---- norms of gradients ---- */

/* The numbers of a norm: a power sum; the norm, which is the sum to the power of 1 / p; and the
 * factor that limits the norm, which is max_norm / (norm + 1e-6), or 1 if that is 1 or more. */
enum { EK_NORM_SUM, EK_NORM_VALUE, EK_NORM_FACTOR, EK_NORM_NUMBERS };

/* ---- windows ---- */

/* Convolution over 2 or 3 dimensions (on the host also over 1). Arrays are in the order of the
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

/* ---- resampling ---- */

typedef enum ek_resample_kind {
    EK_RESAMPLE_NEAREST,
    EK_RESAMPLE_NEAREST_EXACT,
    EK_RESAMPLE_LINEAR,
    EK_RESAMPLE_CUBIC,
    EK_RESAMPLE_LINEAR_ANTIALIAS,
    EK_RESAMPLE_CUBIC_ANTIALIAS
} ek_resample_kind;

/* A linear map between images, applied dimension by dimension (resample.h). Arrays are in the order
 * of the tensor's last dimensions. */
typedef struct ek_resample_params {
    ek_resample_kind kind;
    bool align_corners;
    bool adjoint;     /* the adjoint of the map, from its outputs to its inputs */
    double factor[3]; /* the output size over the input size; 0: computed from the sizes */
} ek_resample_params;

/* Interpolation at given places (grid_sample.h), or a derivative of it by these places. */
typedef struct ek_grid_params {
    int dims;
    ek_grid_mode mode;
    ek_grid_padding padding;
    bool align_corners;
    int order[3]; /* the order of the derivative by each of the tensor's last dimensions */
} ek_grid_params;

/* ---- optimizer steps over flat ranges ---- */

/* RULE(NAME, states) is the update of one element that has `states` states (steps.h). */
/* clang-format off */
#define EK_STEP_RULES(RULE) \
    RULE(SGD, 0) RULE(SGD_FIRST, 1) RULE(SGD_NESTEROV, 1) RULE(SGD_HEAVY, 1) \
    RULE(ADAM, 2) RULE(AMSGRAD, 3) RULE(ADAMAX, 2) RULE(NADAM, 2) \
    RULE(RADAM, 2) RULE(RADAM_WARM_UP, 2) \
    RULE(RMSPROP, 1) RULE(RMSPROP_MOMENTUM, 2) \
    RULE(RMSPROP_CENTERED, 2) RULE(RMSPROP_CENTERED_MOMENTUM, 3) \
    RULE(ADAGRAD, 1) RULE(ADADELTA, 2) RULE(RPROP, 2) RULE(ASGD, 1) \
    RULE(AVERAGE, 0) RULE(MEAN, 0)
/* clang-format on */

#define EK_ENUMERATOR(name, states) EK_STEP_##name,
typedef enum ek_step_rule { EK_STEP_RULES(EK_ENUMERATOR) EK_STEP_RULE_COUNT } ek_step_rule;
#undef EK_ENUMERATOR

enum { EK_STEP_STATES = 3 }; /* most states of a rule */

static inline int ek_step_states(ek_step_rule rule)
{
#define EK_ENUMERATOR(name, states) states,
    static const int counts[] = {EK_STEP_RULES(EK_ENUMERATOR)};
#undef EK_ENUMERATOR
    return counts[rule];
}

/* The numbers that rules read. A rule's formula (steps.h) defines which numbers it reads and what
 * they mean. All are doubles, which are rounded once, to the tensors' dtype. */
#define EK_STEP_NUMBERS(NUMBER)                                                  \
    NUMBER(sign)   /* of the gradient: 1, or -1 to maximize */                   \
    NUMBER(decay)  /* the part of the parameter that is added to its gradient */ \
    NUMBER(shrink) /* the part of the parameter that stays */                    \
    NUMBER(rate)   /* of the step */                                             \
    NUMBER(keep1)  /* first average: the factor of the old average */            \
    NUMBER(add1)   /* first average: the factor of the new value */              \
    NUMBER(keep2)  /* second average: the factor of the old average */           \
    NUMBER(add2)   /* second average: the factor of the new value */             \
    NUMBER(eps)                                                                  \
    NUMBER(correction) /* of the second average or its root */                   \
    NUMBER(initial)    /* added to a state in its first step */                  \
    NUMBER(low) NUMBER(high)

typedef struct ek_step_numbers {
#define EK_MEMBER(name) double name;
    EK_STEP_NUMBERS(EK_MEMBER)
#undef EK_MEMBER
} ek_step_numbers;

/* The most features of a head's queries and values for which GPUs have attention kernels. */
enum { EK_ATTENTION_DEPTH = 256 };
struct ek_draw;
typedef struct ek_attention_params {
    double scale;
    bool causal; /* row i sees keys 0 to i */
    /* NULL, or dropout of the probabilities (EK_DRAW_DROPOUT of a tensor (B, H, L, S)). Its `row`
     * is a multiple of H L S. */
    const struct ek_draw *dropout;
} ek_attention_params;

/* Cross entropy: which targets count, and how. */
typedef struct ek_cross_entropy_params {
    int64_t ignore_index;
    double label_smoothing;
} ek_cross_entropy_params;

#endif
