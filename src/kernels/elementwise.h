/* elementwise.h: the list of elementwise operations. Each row is an operation: its name, from which
 * its enumerator is made (params.h), and its formula, from which both backends make its kernels
 * (formulas.h). A new row adds an operation.
 *
 * Formulas of reals are compiled for f32 and f64: EK_REAL is the type, EK_NAME(f) the function f
 * for that type. Formulas of integers are compiled for i64, and wrap on overflow. The lists of
 * mathematics continue the lists of reals. Training uses the operations in the lists of reals, for
 * each of which GPUs have a kernel. */
#ifndef EK_KERNELS_ELEMENTWISE_H
#define EK_KERNELS_ELEMENTWISE_H

/* ---- y = f(x; a, b) ---- */

#define EK_UNARY_REALS(X)                                                                   \
    X(AFFINE, a *x + b)                                                                     \
    X(NEG, -x)                                                                              \
    X(ABS, EK_NAME(ek_abs)(x))                                                              \
    X(SIGN, (EK_REAL)((x > 0) - (x < 0)))                                                   \
    X(SQUARE, x *x)                                                                         \
    X(CLAMP, EK_NAME(ek_clamp)(x, a, b))                                                    \
    X(SQRT, EK_NAME(ek_sqrt)(x))                                                            \
    X(RECIPROCAL, 1 / x)                                                                    \
    X(SAFE_RECIPROCAL, x == 0 ? 0 : 1 / x)                                                  \
    X(POW, EK_NAME(ek_power)(x, a))                                                         \
    X(EXP, EK_NAME(ek_exp)(x))                                                              \
    X(LOG, EK_NAME(ek_log)(x))                                                              \
    X(SIGMOID, 1 / (1 + EK_NAME(ek_exp)(-x)))                                               \
    X(TANH, EK_NAME(ek_tanh)(x))                                                            \
    /* log(1 + e^ax) / a, and x where a x is above b */                                     \
    X(SOFTPLUS, EK_NAME(ek_softplus)(x, a, b))                                              \
    X(SOFTPLUS_SLOPE, a *x > b ? 1 : 1 / (1 + EK_NAME(ek_exp)(-a * x)))                     \
    X(LOG_SIGMOID, -EK_NAME(ek_softplus)(-x, 1, (EK_REAL)INFINITY))                         \
    X(NDTR, EK_NAME(ek_ndtr)(x))                                                            \
    X(NORMAL_DENSITY, (EK_REAL)0.3989422804014327 * EK_NAME(ek_exp)((EK_REAL)-0.5 * x * x)) \
    X(GELU, x *EK_NAME(ek_unary_NDTR)(x, 0, 0))                                             \
    X(GELU_TANH, x / (1 + EK_NAME(ek_exp)(x * ((EK_REAL)-1.5957691216057308 -               \
                                               (EK_REAL)0.07135481627260025 * x * x))))     \
    X(RELU, x <= 0 ? 0 : x) /* a NaN stays NaN */                                           \
    X(LEAKY_RELU, x > 0 ? x : a * x)                                                        \
    X(STEP, x > a ? 1 : b)                                                                  \
    X(INSIDE, (EK_REAL)((x >= a) & (x <= b)))                                               \
    X(OUTSIDE, (EK_REAL)(1 - ((x >= a) & (x <= b))))                                        \
    X(OPEN_INSIDE, (EK_REAL)(1 - ((x <= a) | (x >= b))))                                    \
    X(SILU, x / (1 + EK_NAME(ek_exp)(-x)))                                                  \
    X(MISH, x *EK_NAME(ek_mish_gate)(x))                                                    \
    X(ELU, x > 0 ? x : a * EK_NAME(ek_expm1)(x))                                            \
    X(CELU, x > 0 ? x : a * EK_NAME(ek_expm1)(x / a))                                       \
    X(SELU, (EK_REAL)1.0507009873554805 *                                                   \
                (x > 0 ? x : (EK_REAL)1.6732632423543772 * EK_NAME(ek_expm1)(x)))           \
    X(HARDSWISH, x *EK_NAME(ek_clamp)(x + 3, 0, 6) / 6)                                     \
    X(HARDSIGMOID, EK_NAME(ek_clamp)(x + 3, 0, 6) / 6)                                      \
    X(SOFTSIGN, x / (1 + EK_NAME(ek_abs)(x)))                                               \
    X(HARDSHRINK, ((x >= -a) & (x <= a)) != 0 ? 0 : x)                                      \
    X(SOFTSHRINK, x > a ? x - a : x < -a ? x + a : x * 0)                                   \
    X(THRESHOLD, x <= a ? b : x)

#define EK_UNARY_MATHEMATICS(X)       \
    X(SIN, EK_NAME(ek_sin)(x))        \
    X(COS, EK_NAME(ek_cos)(x))        \
    X(TAN, EK_NAME(ek_tan)(x))        \
    X(ASIN, EK_NAME(ek_asin)(x))      \
    X(ACOS, EK_NAME(ek_acos)(x))      \
    X(ATAN, EK_NAME(ek_atan)(x))      \
    X(SINH, EK_NAME(ek_sinh)(x))      \
    X(COSH, EK_NAME(ek_cosh)(x))      \
    X(ASINH, EK_NAME(ek_asinh)(x))    \
    X(ACOSH, EK_NAME(ek_acosh)(x))    \
    X(ATANH, EK_NAME(ek_atanh)(x))    \
    X(ERF, EK_NAME(ek_erf)(x))        \
    X(ERFC, EK_NAME(ek_erfc)(x))      \
    X(LOG1P, EK_NAME(ek_log1p)(x))    \
    X(EXPM1, EK_NAME(ek_expm1)(x))    \
    X(LOG2, EK_NAME(ek_log2)(x))      \
    X(LOG10, EK_NAME(ek_log10)(x))    \
    X(EXP2, EK_NAME(ek_exp2)(x))      \
    X(FLOOR, EK_NAME(ek_floor)(x))    \
    X(CEIL, EK_NAME(ek_ceil)(x))      \
    X(ROUND, EK_NAME(ek_round)(x))    \
    X(TRUNC, EK_NAME(ek_trunc)(x))    \
    X(FRAC, x - EK_NAME(ek_trunc)(x)) \
    X(RSQRT, 1 / EK_NAME(ek_sqrt)(x))

#define EK_UNARY_INTEGERS(X)                                                            \
    X(AFFINE, (int64_t)((uint64_t)ek_i64_of(a) * (uint64_t)x + (uint64_t)ek_i64_of(b))) \
    X(NEG, (int64_t)(0 - (uint64_t)x))                                                  \
    X(ABS, x < 0 ? (int64_t)(0 - (uint64_t)x) : x)                                      \
    X(SIGN, (x > 0) - (x < 0))                                                          \
    X(SQUARE, (int64_t)((uint64_t)x * (uint64_t)x))                                     \
    X(CLAMP, ek_clamp_i64(x, a, b))

/* ---- z = f(x, y; a) ---- */

#define EK_BINARY_REALS(X)                                                               \
    X(ADD, x + a * y)                                                                    \
    X(SUB, x - y)                                                                        \
    X(MUL, x *y)                                                                         \
    X(DIV, x / y)                                                                        \
    X(MAXIMUM, ((x > y) | (x != x)) ? x : y)                                             \
    X(MINIMUM, ((x < y) | (x != x)) ? x : y)                                             \
    /* In these three, x is a gradient and y an output. If y <= 0, a slope a = 0 makes   \
     * even an infinite gradient 0. If y is NaN, the gradient passes. */                 \
    X(RELU_GRADIENT, y <= 0 ? (a == 0 ? 0 : a * x) : x)                                  \
    X(SIGMOID_GRADIENT, x *(1 - y) * y)                                                  \
    X(TANH_GRADIENT, x *(1 - y * y))                                                     \
    X(SIGN_MUL, x *(EK_REAL)((y > 0) - (y < 0)))                                         \
    X(SQUARED_DIFFERENCE, (x - y) * (x - y))                                             \
    X(ABSOLUTE_DIFFERENCE, EK_NAME(ek_abs)(x - y))                                       \
    X(HUBER, EK_NAME(ek_huber)(EK_NAME(ek_abs)(x - y), a))                               \
    /* in these three, x is a probability (BCE_LOGITS: a logit) and y the target */      \
    X(BCE, EK_NAME(ek_bce)(x, y))                                                        \
    X(BCE_LOGITS, EK_NAME(ek_bce_logits)(x, y))                                          \
    X(BCE_SLOPE, (x - y) / EK_NAME(ek_floored)(x * (1 - x), (EK_REAL)1e-12f))            \
    X(LERP, a < (EK_REAL)0.5 ? x + a * (y - x) : y - (y - x) * (1 - a))                  \
    /* from here on, x is a gradient and y an input */                                   \
    X(GELU_GRADIENT, x *EK_NAME(ek_gelu_slope)(y))                                       \
    X(GELU_TANH_GRADIENT,                                                                \
      x *EK_NAME(ek_gated_slope)(                                                        \
          y, y * ((EK_REAL)1.5957691216057308 + (EK_REAL)0.07135481627260025 * y * y),   \
          (EK_REAL)1.5957691216057308 + (EK_REAL)0.21406444881780075 * y * y))           \
    X(SILU_GRADIENT, x *EK_NAME(ek_gated_slope)(y, y, 1))                                \
    X(MISH_GRADIENT, x *EK_NAME(ek_mish_slope)(y))                                       \
    X(ELU_GRADIENT, y > 0 ? x : x * a * EK_NAME(ek_exp)(y))                              \
    X(CELU_GRADIENT, y > 0 ? x : x * EK_NAME(ek_exp)(y / a))                             \
    X(SELU_GRADIENT, x *(EK_REAL)1.0507009873554805 *                                    \
                         (y > 0 ? 1 : (EK_REAL)1.6732632423543772 * EK_NAME(ek_exp)(y))) \
    X(HARDSWISH_GRADIENT, y < -3 ? 0 : y < 3 ? x * (y / 3 + (EK_REAL)0.5) : x)           \
    X(SOFTSIGN_GRADIENT, x / ((1 + EK_NAME(ek_abs)(y)) * (1 + EK_NAME(ek_abs)(y))))      \
    X(LOG_SIGMOID_GRADIENT, x / (1 + EK_NAME(ek_exp)(y)))

#define EK_BINARY_MATHEMATICS(X)      \
    X(POW, EK_NAME(ek_power)(x, y))   \
    X(ATAN2, EK_NAME(ek_atan2)(x, y)) \
    X(FMOD, EK_NAME(ek_fmod)(x, y))   \
    X(REMAINDER, EK_NAME(ek_remainder)(x, y))

#define EK_BINARY_INTEGERS(X)                                             \
    X(ADD, (int64_t)((uint64_t)x + (uint64_t)ek_i64_of(a) * (uint64_t)y)) \
    X(SUB, (int64_t)((uint64_t)x - (uint64_t)y))                          \
    X(MUL, (int64_t)((uint64_t)x * (uint64_t)y))                          \
    /* rounds toward 0; the result of a division by 0 is 0 */             \
    X(DIV, y == 0 ? 0 : y == -1 ? (int64_t)(0 - (uint64_t)x) : x / y)     \
    X(MAXIMUM, x > y ? x : y)                                             \
    X(MINIMUM, x < y ? x : y)                                             \
    X(FMOD, ek_fmod_i64(x, y))                                            \
    X(REMAINDER, ek_remainder_i64(x, y))

/* ---- comparisons, whose results are bytes: x operator y ---- */

#define EK_COMPARISONS(X) X(EQ, ==) X(NE, !=) X(LT, <) X(LE, <=) X(GT, >) X(GE, >=)

#endif
