/* function_setup.h: what the tests of ek_function_apply share. */
#ifndef EK_TESTS_AUTOGRAD_FUNCTION_SETUP_H
#define EK_TESTS_AUTOGRAD_FUNCTION_SETUP_H

#include "kit/devices.h"
#include "toy.h"

/* ---- x^3 ---- */

static inline int cube_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    ck_assert(!ek_grad_enabled());
    y[0] = toy_mul(x[0], toy_mul(x[0], x[0]));
    return ek_function_save(call, x, 1);
}

static inline int cube_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    ek_tensor *x = ek_function_saved(call, 0);
    dx[0] = toy_mul(dy[0], toy_scale(toy_mul(x, x), 3));
    return 0;
}

static const ek_function cube = {.name = "cube",
                                 .forward = cube_forward,
                                 .backward = cube_backward};

static inline ek_tensor *apply(const ek_function *function, ek_tensor *x)
{
    ek_tensor *y;
    return ek_function_apply(function, &x, 1, &y) < 0 ? NULL : y;
}

#endif
