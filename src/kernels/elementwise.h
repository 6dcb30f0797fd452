/* elementwise.h: the list of elementwise operations. A row is an operation: its name, from which
 * its enumerator is made (params.h), and its formula, from which both backends make its kernels
 * (formulas.h). An operation is added by a row.
 *
 * Formulas of reals are compiled for f32 and f64: EK_REAL is the type, EK_NAME(f) the type's f.
 * Formulas of integers are compiled for i64, and wrap on overflow. */
#ifndef EK_KERNELS_ELEMENTWISE_H
#define EK_KERNELS_ELEMENTWISE_H

/* ---- y = f(x; a, b) ---- */

/* Operations that integers have as well come first, in the order of EK_UNARY_INTEGERS. */
#define EK_UNARY_REALS(X)                                                                   \
    X(AFFINE, a *x + b)                                                                     \
    X(NEG, -x)                                                                              \
    X(ABS, EK_NAME(ek_abs)(x))                                                              \
    X(SIGN, (EK_REAL)((x > 0) - (x < 0)))                                                   \
    X(SQUARE, x *x)                                                                         \
    X(CLAMP, EK_NAME(ek_clamp)(x, a, b))                                                    \
    X(SQRT, EK_NAME(ek_sqrt)(x))                                                            \
    X(RECIPROCAL, 1 / x)                                                                    \
    X(POW, EK_NAME(ek_power)(x, a))                                                         \
    X(EXP, EK_NAME(ek_exp)(x))                                                              \
    X(LOG, EK_NAME(ek_log)(x))                                                              \
    X(SIGMOID, 1 / (1 + EK_NAME(ek_exp)(-x)))                                               \
    X(TANH, EK_NAME(ek_tanh)(x))                                                            \
    /* log(1 + e^x), as max(x, 0) + log(1 + e^-|x|) */                                      \
    X(SOFTPLUS, (x <= 0 ? 0 : x) + EK_NAME(ek_log1p)(EK_NAME(ek_exp)(-EK_NAME(ek_abs)(x)))) \
    /* the normal distribution's, in double, because its tail needs the digits */           \
    X(NDTR, (EK_REAL)(0.5 * erfc(-0.70710678118654752 * (double)x)))                        \
    X(NORMAL_DENSITY, (EK_REAL)0.3989422804014327 * EK_NAME(ek_exp)((EK_REAL)-0.5 * x * x)) \
    X(GELU, x *EK_NAME(ek_unary_NDTR)(x, 0, 0))                                             \
    X(GELU_TANH, x / (1 + EK_NAME(ek_exp)(x * ((EK_REAL)-1.5957691216057308 -               \
                                               (EK_REAL)0.07135481627260025 * x * x))))     \
    X(RELU, x <= 0 ? 0 : x) /* NaN stays NaN */                                             \
    X(LEAKY_RELU, x > 0 ? x : a * x)                                                        \
    X(STEP, x > a ? 1 : b)                                                                  \
    X(INSIDE, (EK_REAL)((x >= a) & (x <= b)))

#define EK_UNARY_INTEGERS(X)                                                            \
    X(AFFINE, (int64_t)((uint64_t)ek_i64_of(a) * (uint64_t)x + (uint64_t)ek_i64_of(b))) \
    X(NEG, (int64_t)(0 - (uint64_t)x))                                                  \
    X(ABS, x < 0 ? (int64_t)(0 - (uint64_t)x) : x)                                      \
    X(SIGN, (x > 0) - (x < 0))                                                          \
    X(SQUARE, (int64_t)((uint64_t)x * (uint64_t)x))                                     \
    X(CLAMP, ek_clamp_i64(x, a, b))

/* ---- z = f(x, y; a) ---- */

#define EK_BINARY_REALS(X)                                                     \
    X(ADD, x + a * y)                                                          \
    X(SUB, x - y)                                                              \
    X(MUL, x *y)                                                               \
    X(DIV, x / y)                                                              \
    X(MAXIMUM, ((x > y) | (x != x)) ? x : y)                                   \
    X(MINIMUM, ((x < y) | (x != x)) ? x : y)                                   \
    /* x is a gradient and y an output. With slope 0 even an infinite gradient \
     * becomes 0. A NaN in y lets the gradient pass. */                        \
    X(RELU_GRADIENT, y <= 0 ? (a == 0 ? 0 : a * x) : x)                        \
    X(SIGMOID_GRADIENT, x *(1 - y) * y)                                        \
    X(TANH_GRADIENT, x *(1 - y * y))                                           \
    X(SIGN_MUL, x *(EK_REAL)((y > 0) - (y < 0)))                               \
    X(SQUARED_DIFFERENCE, (x - y) * (x - y))                                   \
    X(ABSOLUTE_DIFFERENCE, EK_NAME(ek_abs)(x - y))

#define EK_BINARY_INTEGERS(X)                                             \
    X(ADD, (int64_t)((uint64_t)x + (uint64_t)ek_i64_of(a) * (uint64_t)y)) \
    X(SUB, (int64_t)((uint64_t)x - (uint64_t)y))                          \
    X(MUL, (int64_t)((uint64_t)x * (uint64_t)y))                          \
    /* Truncates. A division by zero gives 0. */                          \
    X(DIV, y == 0 ? 0 : y == -1 ? (int64_t)(0 - (uint64_t)x) : x / y)     \
    X(MAXIMUM, x > y ? x : y)                                             \
    X(MINIMUM, x < y ? x : y)

/* ---- bytes: x operator y ---- */

#define EK_COMPARISONS(X) X(EQ, ==) X(NE, !=) X(LT, <) X(LE, <=) X(GT, >) X(GE, >=)

#endif
