/* steps.h: the arithmetic of optimizer steps, once for all backends: ek_step_<RULE>_f32 and _f64.
 * It is PyTorch 1.13's single-tensor path, operation by operation; numbers that PyTorch keeps in
 * double are computed in double and rounded once. */
#ifndef EK_KERNELS_STEPS_H
#define EK_KERNELS_STEPS_H

#include "kernels/formulas.h"
#include "kernels/params.h"

#define EK_FOR_REALS "kernels/steps.h"
#include "kernels/for_reals.h"

/* ---- norms of gradients ---- */

/* Returns |x|^p; if p is infinite, |x|. */
EK_FORMULA double ek_power_of(double x, double p)
{
    x = fabs(x);
    return p == 2 ? x * x : p == 1 || isinf(p) ? x : pow(x, p);
}

/* Joins two power sums, or two largest elements, of which NaN is the larger one. */
EK_FORMULA double ek_power_join(double a, double b, double p)
{
    return !isinf(p) ? a + b : b > a || b != b ? b : a;
}

/* Writes the numbers of a norm. If the norm is NaN, so is the factor. */
EK_FORMULA void ek_norm_of_sum(double *out, double sum, double p, double max_norm)
{
    const double norm = p == 2 ? sqrt(sum) : p == 1 || isinf(p) ? sum : pow(sum, 1 / p);
    const double factor = max_norm / (norm + 1e-6);
    out[EK_NORM_SUM] = sum;
    out[EK_NORM_VALUE] = norm;
    out[EK_NORM_FACTOR] = factor >= 1 ? 1 : factor;
}

#elif defined EK_REAL /* for each EK_REAL */

/* A step's numbers, rounded to EK_REAL. */
typedef struct EK_NAME(ek_step_constants) {
#define EK_MEMBER(name) EK_REAL name;
    EK_STEP_NUMBERS(EK_MEMBER)
#undef EK_MEMBER
} EK_NAME(ek_step_constants);

EK_FORMULA EK_NAME(ek_step_constants) EK_NAME(ek_step_constants_of)(const ek_step_numbers *n)
{
    EK_NAME(ek_step_constants) c;
#define EK_MEMBER(name) c.name = (EK_REAL)n->name;
    EK_STEP_NUMBERS(EK_MEMBER)
#undef EK_MEMBER
    return c;
}

/* A rule returns the new value of parameter w, and replaces the states s[0], s[1], ... g0 is the
 * gradient, g the gradient after sign and decay. */
#define EK_STEP_FORMULA(rule)                                                                   \
    EK_FORMULA EK_REAL EK_NAME(ek_step_##rule)(const EK_NAME(ek_step_constants) * c, EK_REAL w, \
                                               EK_REAL g0, EK_REAL * s)
#define EK_STEP_GRADIENT (c->sign * g0 + c->decay * w)

/* ---- SGD: s[0] is the momentum buffer, keep1 the momentum, add1 one minus the dampening ---- */

EK_STEP_FORMULA(SGD)
{
    (void)s;
    EK_REAL g = EK_STEP_GRADIENT;
    return w - c->rate * g;
}

/* The first step: the buffer becomes the gradient. `initial` is Nesterov's momentum, else 0. */
EK_STEP_FORMULA(SGD_FIRST)
{
    EK_REAL g = EK_STEP_GRADIENT;
    s[0] = g;
    return w - c->rate * (g + c->initial * g);
}

EK_STEP_FORMULA(SGD_NESTEROV)
{
    EK_REAL g = EK_STEP_GRADIENT;
    EK_REAL v = c->keep1 * s[0] + c->add1 * g;
    s[0] = v;
    return w - c->rate * (g + c->keep1 * v);
}

EK_STEP_FORMULA(SGD_HEAVY)
{
    EK_REAL g = EK_STEP_GRADIENT;
    EK_REAL v = c->keep1 * s[0] + c->add1 * g;
    s[0] = v;
    return w - c->rate * v;
}

/* ---- Adam and its like: s[0] is exp_avg, s[1] exp_avg_sq ---- */

/* exp_avg is first multiplied by keep1, then increased by add1 g, as in PyTorch 1.13. */
EK_FORMULA void EK_NAME(ek_step_averages)(const EK_NAME(ek_step_constants) * c, EK_REAL g,
                                          EK_REAL *s)
{
    s[0] = s[0] * c->keep1 + c->add1 * g;
    s[1] = s[1] * c->keep2 + c->add2 * g * g;
}

EK_STEP_FORMULA(ADAM)
{
    EK_REAL u = c->shrink * w;
    EK_REAL g = c->sign * g0 + c->decay * u;
    EK_NAME(ek_step_averages)(c, g, s);
    return u - c->rate * s[0] / (EK_NAME(ek_sqrt)(s[1]) / c->correction + c->eps);
}

/* s[2] is the largest exp_avg_sq. */
EK_STEP_FORMULA(AMSGRAD)
{
    EK_REAL u = c->shrink * w;
    EK_REAL g = c->sign * g0 + c->decay * u;
    EK_NAME(ek_step_averages)(c, g, s);
    EK_REAL v = ((s[1] > s[2]) | (s[1] != s[1])) ? s[1] : s[2];
    s[2] = v;
    return u - c->rate * s[0] / (EK_NAME(ek_sqrt)(v) / c->correction + c->eps);
}

/* s[1] is exp_inf, the largest |gradient|, which is multiplied by keep2 in each step. */
EK_STEP_FORMULA(ADAMAX)
{
    EK_REAL g = EK_STEP_GRADIENT;
    s[0] = s[0] * c->keep1 + c->add1 * g;
    EK_REAL faded = s[1] * c->keep2, size = EK_NAME(ek_abs)(g) + c->eps;
    s[1] = ((size > faded) | (size != size)) ? size : faded;
    return w - c->rate * s[0] / s[1];
}

/* `initial` is the rate of the gradient, `rate` the rate of the average. */
EK_STEP_FORMULA(NADAM)
{
    EK_REAL g = EK_STEP_GRADIENT;
    EK_NAME(ek_step_averages)(c, g, s);
    EK_REAL size = EK_NAME(ek_sqrt)(s[1] / c->correction) + c->eps;
    EK_REAL u = w - c->initial * g / size;
    return u - c->rate * s[0] / size;
}

/* `low` is the average's bias correction, `correction` the root's, `high` the rectification. */
EK_STEP_FORMULA(RADAM)
{
    EK_REAL g = EK_STEP_GRADIENT;
    EK_NAME(ek_step_averages)(c, g, s);
    EK_REAL adapted = c->correction / (EK_NAME(ek_sqrt)(s[1]) + c->eps);
    return w - s[0] / c->low * c->rate * adapted * c->high;
}

EK_STEP_FORMULA(RADAM_WARM_UP)
{
    EK_REAL g = EK_STEP_GRADIENT;
    EK_NAME(ek_step_averages)(c, g, s);
    return w - s[0] / c->low * c->rate;
}

/* ---- RMSprop: s[0] is square_avg; then come momentum_buffer and grad_avg if they exist ---- */

EK_STEP_FORMULA(RMSPROP)
{
    EK_REAL g = EK_STEP_GRADIENT;
    s[0] = s[0] * c->keep2 + c->add2 * g * g;
    return w - c->rate * g / (EK_NAME(ek_sqrt)(s[0]) + c->eps);
}

EK_STEP_FORMULA(RMSPROP_MOMENTUM)
{
    EK_REAL g = EK_STEP_GRADIENT;
    s[0] = s[0] * c->keep2 + c->add2 * g * g;
    s[1] = s[1] * c->keep1 + g / (EK_NAME(ek_sqrt)(s[0]) + c->eps);
    return w - c->rate * s[1];
}

EK_STEP_FORMULA(RMSPROP_CENTERED)
{
    EK_REAL g = EK_STEP_GRADIENT;
    s[0] = s[0] * c->keep2 + c->add2 * g * g;
    s[1] = s[1] * c->keep2 + c->add2 * g;
    return w - c->rate * g / (EK_NAME(ek_sqrt)(s[0] - s[1] * s[1]) + c->eps);
}

EK_STEP_FORMULA(RMSPROP_CENTERED_MOMENTUM)
{
    EK_REAL g = EK_STEP_GRADIENT;
    s[0] = s[0] * c->keep2 + c->add2 * g * g;
    s[2] = s[2] * c->keep2 + c->add2 * g;
    s[1] = s[1] * c->keep1 + g / (EK_NAME(ek_sqrt)(s[0] - s[2] * s[2]) + c->eps);
    return w - c->rate * s[1];
}

/* ---- others ---- */

EK_STEP_FORMULA(ADAGRAD)
{
    EK_REAL g = EK_STEP_GRADIENT;
    s[0] = s[0] + c->initial + g * g;
    return w - c->rate * g / (EK_NAME(ek_sqrt)(s[0]) + c->eps);
}

EK_STEP_FORMULA(ADADELTA)
{
    EK_REAL g = EK_STEP_GRADIENT;
    s[0] = s[0] * c->keep2 + c->add2 * g * g;
    EK_REAL delta = EK_NAME(ek_sqrt)(s[1] + c->eps) / EK_NAME(ek_sqrt)(s[0] + c->eps) * g;
    s[1] = s[1] * c->keep2 + c->add2 * delta * delta;
    return w - c->rate * delta;
}

/* s[0] is the previous step's gradient, s[1] the step's size, which keep1 reduces and keep2
 * increases. */
EK_STEP_FORMULA(RPROP)
{
    EK_REAL g = c->sign * g0;
    EK_REAL trend = g * s[0], size = s[1] + c->initial;
    size = size * (trend > 0 ? c->keep2 : trend < 0 ? c->keep1 : (EK_REAL)1);
    size = size < c->low ? c->low : size;
    size = size > c->high ? c->high : size;
    g = trend < 0 ? (EK_REAL)0 : g;
    s[0] = g;
    s[1] = size;
    return w - (EK_REAL)((g > 0) - (g < 0)) * size;
}

/* s[0] is the average of the parameter; add1 is the newest value's part. */
EK_STEP_FORMULA(ASGD)
{
    EK_REAL g = EK_STEP_GRADIENT;
    EK_REAL u = c->shrink * w - c->rate * g;
    s[0] = c->add1 == 1 ? u : s[0] + (u - s[0]) * c->add1;
    return u;
}

/* ---- averages w of the values g0 (optim/ema.c) ---- */

EK_STEP_FORMULA(AVERAGE)
{
    (void)s;
    return c->keep1 * w + c->add1 * g0;
}

/* `rate` is the number of values, g0 included. The first value is copied. */
EK_STEP_FORMULA(MEAN)
{
    (void)s;
    return c->rate == 1 ? g0 : w + (g0 - w) / c->rate;
}

#undef EK_STEP_FORMULA
#undef EK_STEP_GRADIENT

#endif
