/* steps.h: the arithmetic of optimizer steps, once for all backends: PyTorch 1.13's single-tensor
 * path, operation by operation; what it keeps in double is computed in double and rounded once.
 * Functions end in _f32 and _f64. */
#ifndef EK_KERNELS_STEPS_H
#define EK_KERNELS_STEPS_H

#include "kernels/formulas.h"
#include "kernels/params.h"

typedef enum ek_sgd_kind {
    EK_SGD_PLAIN,    /* without momentum: no buffer */
    EK_SGD_FIRST,    /* the buffer becomes the gradient */
    EK_SGD_NESTEROV, /* and later steps, with either kind of momentum */
    EK_SGD_HEAVY,
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

#define EK_REAL float
#define EK_NAME(name) name##_f32
#include "kernels/steps_real.h"
#undef EK_REAL
#undef EK_NAME

#define EK_REAL double
#define EK_NAME(name) name##_f64
#include "kernels/steps_real.h"
#undef EK_REAL
#undef EK_NAME

#endif
