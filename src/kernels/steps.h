/* steps.h: the arithmetic of optimizer steps, once for all backends. It is PyTorch 1.13's
 * single-tensor path, operation by operation; numbers that PyTorch keeps in double are computed in
 * double and rounded once. Functions end in _f32 and _f64. */
#ifndef EK_KERNELS_STEPS_H
#define EK_KERNELS_STEPS_H

#include "kernels/formulas.h"
#include "kernels/params.h"

typedef enum ek_sgd_kind {
    EK_SGD_PLAIN,    /* without momentum: no buffer */
    EK_SGD_FIRST,    /* first step with momentum: the buffer becomes the gradient */
    EK_SGD_NESTEROV, /* later steps with Nesterov momentum */
    EK_SGD_HEAVY,    /* later steps with plain momentum */
    EK_SGD_KINDS
} ek_sgd_kind;

static inline ek_sgd_kind ek_sgd_kind_of(const ek_sgd_params *params)
{
    if (params->momentum == 0)
        return EK_SGD_PLAIN;
    if (params->first)
        return EK_SGD_FIRST;
    return params->nesterov ? EK_SGD_NESTEROV : EK_SGD_HEAVY;
}

#define EK_FOR_REALS "kernels/steps.h"
#include "kernels/for_reals.h"

#elif defined EK_REAL /* for each */

/* ---- SGD ---- */

typedef struct EK_NAME(ek_sgd_constants) {
    EK_REAL lr, decay, momentum, kept, sign;
    EK_REAL own; /* the part of the first gradient that is added to itself */
} EK_NAME(ek_sgd_constants);

EK_FORMULA EK_NAME(ek_sgd_constants) EK_NAME(ek_sgd_constants_of)(const ek_sgd_params *p)
{
    EK_NAME(ek_sgd_constants) c;
    c.lr = (EK_REAL)p->lr;
    c.decay = (EK_REAL)p->weight_decay;
    c.momentum = (EK_REAL)p->momentum;
    c.kept = (EK_REAL)(1 - p->dampening);
    c.sign = p->maximize ? -1 : 1;
    c.own = p->nesterov ? c.momentum : 0;
    return c;
}

/* The new value of parameter w. *buffer is replaced, if the kind has a buffer. */
EK_FORMULA EK_REAL EK_NAME(ek_sgd)(ek_sgd_kind kind, EK_NAME(ek_sgd_constants) c, EK_REAL w,
                                   EK_REAL gradient, EK_REAL *buffer)
{
    EK_REAL g = c.sign * gradient + c.decay * w;
    if (kind == EK_SGD_PLAIN)
        return w - c.lr * g;
    if (kind == EK_SGD_FIRST) {
        *buffer = g;
        return w - c.lr * (g + c.own * g);
    }
    EK_REAL v = c.momentum * *buffer + c.kept * g;
    *buffer = v;
    if (kind == EK_SGD_NESTEROV)
        return w - c.lr * (g + c.momentum * v);
    return w - c.lr * v;
}

/* ---- Adam ---- */

typedef struct EK_NAME(ek_adam_constants) {
    EK_REAL beta1, beta2, rest1, rest2, eps, step, correction, shrink, decay, sign;
} EK_NAME(ek_adam_constants);

EK_FORMULA EK_NAME(ek_adam_constants) EK_NAME(ek_adam_constants_of)(const ek_adam_params *p)
{
    EK_NAME(ek_adam_constants) c;
    c.beta1 = (EK_REAL)p->beta1;
    c.beta2 = (EK_REAL)p->beta2;
    c.rest1 = (EK_REAL)(1 - p->beta1);
    c.rest2 = (EK_REAL)(1 - p->beta2);
    c.eps = (EK_REAL)p->eps;
    c.step = (EK_REAL)(p->lr / (1 - pow(p->beta1, (double)p->step)));
    c.correction = (EK_REAL)sqrt(1 - pow(p->beta2, (double)p->step));
    c.shrink = p->decoupled ? (EK_REAL)(1 - p->lr * p->weight_decay) : 1;
    c.decay = p->decoupled ? 0 : (EK_REAL)p->weight_decay;
    c.sign = p->maximize ? -1 : 1;
    return c;
}

/* The new value of parameter w. The averages are replaced, and so is *largest (AMSGrad), unless it
 * is NULL. exp_avg is multiplied and then added to, as in PyTorch 1.13. */
EK_FORMULA EK_REAL EK_NAME(ek_adam)(EK_NAME(ek_adam_constants) c, EK_REAL w, EK_REAL gradient,
                                    EK_REAL *exp_avg, EK_REAL *exp_avg_sq, EK_REAL *largest)
{
    EK_REAL u = c.shrink * w;
    EK_REAL g = c.sign * gradient + c.decay * u;
    EK_REAL m = *exp_avg * c.beta1 + c.rest1 * g;
    EK_REAL v = *exp_avg_sq * c.beta2 + c.rest2 * g * g;
    *exp_avg = m;
    *exp_avg_sq = v;
    if (largest) {
        v = ((v > *largest) | (v != v)) ? v : *largest;
        *largest = v;
    }
    return u - c.step * m / (EK_NAME(ek_sqrt)(v) / c.correction + c.eps);
}

#endif
