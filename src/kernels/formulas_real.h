/* formulas_real.h: formulas of floating operations, included by formulas.h for each EK_REAL. */

/* ---- f(x, a, b) ---- */

#define EK_DEFINE_UNARY(name, formula)                                     \
    EK_FORMULA EK_REAL EK_NAME(ek_##name)(EK_REAL x, EK_REAL a, EK_REAL b) \
    {                                                                      \
        (void)a, (void)b;                                                  \
        return formula;                                                    \
    }

EK_DEFINE_UNARY(affine, a *x + b)
EK_DEFINE_UNARY(neg, -x)
EK_DEFINE_UNARY(magnitude, EK_NAME(ek_abs)(x))
EK_DEFINE_UNARY(sign, (EK_REAL)((x > 0) - (x < 0)))
EK_DEFINE_UNARY(square, x *x)
EK_DEFINE_UNARY(square_root, EK_NAME(ek_sqrt)(x))
EK_DEFINE_UNARY(reciprocal, 1 / x)
EK_DEFINE_UNARY(pow, EK_NAME(ek_power)(x, a))
EK_DEFINE_UNARY(exponential, EK_NAME(ek_exp)(x))
EK_DEFINE_UNARY(logarithm, EK_NAME(ek_log)(x))
EK_DEFINE_UNARY(sigmoid, 1 / (1 + EK_NAME(ek_exp)(-x)))
EK_DEFINE_UNARY(hyperbolic_tangent, EK_NAME(ek_tanh)(x))
/* log(1 + e^x), as max(x, 0) + log(1 + e^-|x|) */
EK_DEFINE_UNARY(softplus,
                (x <= 0 ? 0 : x) + EK_NAME(ek_log1p)(EK_NAME(ek_exp)(-EK_NAME(ek_abs)(x))))
EK_DEFINE_UNARY(relu, x <= 0 ? 0 : x)
EK_DEFINE_UNARY(leaky_relu, x > 0 ? x : a * x)
EK_DEFINE_UNARY(step, x > a ? 1 : b)
EK_DEFINE_UNARY(inside, (EK_REAL)((x >= a) & (x <= b)))
#undef EK_DEFINE_UNARY

EK_FORMULA EK_REAL EK_NAME(ek_clamp)(EK_REAL x, EK_REAL a, EK_REAL b)
{
    EK_REAL raised = x < a ? a : x;
    return raised > b ? b : raised;
}

/* ---- f(x, y, a) ---- */

#define EK_DEFINE_BINARY(name, formula)                                    \
    EK_FORMULA EK_REAL EK_NAME(ek_##name)(EK_REAL x, EK_REAL y, EK_REAL a) \
    {                                                                      \
        (void)a;                                                           \
        return formula;                                                    \
    }

EK_DEFINE_BINARY(add, x + a * y)
EK_DEFINE_BINARY(sub, x - y)
EK_DEFINE_BINARY(mul, x *y)
EK_DEFINE_BINARY(div, x / y)
EK_DEFINE_BINARY(maximum, ((x > y) | (x != x)) ? x : y)
EK_DEFINE_BINARY(minimum, ((x < y) | (x != x)) ? x : y)
/* Without a slope an infinite gradient is cut off too; a NaN hides nothing. */
EK_DEFINE_BINARY(relu_gradient, y <= 0 ? (a == 0 ? 0 : a * x) : x)
EK_DEFINE_BINARY(sigmoid_gradient, x *(1 - y) * y)
EK_DEFINE_BINARY(tanh_gradient, x *(1 - y * y))
EK_DEFINE_BINARY(sign_mul, x *(EK_REAL)((y > 0) - (y < 0)))
EK_DEFINE_BINARY(squared_difference, (x - y) * (x - y))
EK_DEFINE_BINARY(absolute_difference, EK_NAME(ek_abs)(x - y))
#undef EK_DEFINE_BINARY
