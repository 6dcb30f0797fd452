/* operations.h: facts about operations that every backend's slots ask for. */
#ifndef EK_KERNELS_OPERATIONS_H
#define EK_KERNELS_OPERATIONS_H

#include "kernels/params.h"

/* Both return true if the operation exists for integers. */
static inline bool ek_unary_has_integers(ek_unary op)
{
    switch (op) {
#define EK_HAS(name, formula) case EK_UNARY_##name:
        EK_UNARY_INTEGERS(EK_HAS)
#undef EK_HAS
        return true;
    default:
        return false;
    }
}

static inline bool ek_binary_has_integers(ek_binary op)
{
    switch (op) {
#define EK_HAS(name, formula) case EK_BINARY_##name:
        EK_BINARY_INTEGERS(EK_HAS)
#undef EK_HAS
        return true;
    default:
        return false;
    }
}

/* Returns the operation that computes `op`: for the powers 2, 1/2 and -1 the simpler one that
 * PyTorch uses, else `op`. */
static inline ek_unary ek_unary_simplest(ek_unary op, double a)
{
    if (op != EK_UNARY_POW)
        return op;
    return a == 2 ? EK_UNARY_SQUARE : a == 0.5 ? EK_UNARY_SQRT : a == -1 ? EK_UNARY_RECIPROCAL : op;
}

#endif
