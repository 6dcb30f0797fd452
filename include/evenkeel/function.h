/* function.h: operations of one's own.
 *
 *     static int cube_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
 *     {
 *         y[0] = ek_mul(x[0], ek_square(x[0]));
 *         return ek_function_save(call, x, 1);
 *     }
 *
 *     static int cube_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
 *     {
 *         dx[0] = ek_mul(dy[0], ek_mul_scalar(ek_square(ek_function_saved(call, 0)), 3));
 *         return 0;
 *     }
 *
 *     static const ek_function cube = {
 *         .name = "cube", .forward = cube_forward, .backward = cube_backward};
 *
 *     ek_tensor *y;
 *     if (ek_function_apply(&cube, &x, 1, &y) < 0) ...
 *
 * The forward runs without gradient mode, on any code (ek_tensor_data gives memory). A backward
 * that is made of differentiable operations, of functions like this one too, can be differentiated
 * again, to any order; ek_gradcheck and ek_gradgradcheck tell whether it is right. Functions work
 * in replicas: a backward runs on the thread of its device. Where the forward ran under autocast,
 * the backward does too, and its results may be bf16 for f32 inputs and the other way round. */
#ifndef EVENKEEL_FUNCTION_H
#define EVENKEEL_FUNCTION_H

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_function_call ek_function_call;

typedef struct ek_function {
    const char *name; /* in error sentences; must outlive the graph (a string literal) */
    int outputs;      /* how many; 0 stands for 1, at most EK_FUNCTION_TENSORS */

    /* Writes the outputs, in the scope. They must not be inputs or views of them, and inputs must
     * not be modified (EK_E_AUTOGRAD). Returns 0 or a negative status; a NULL output with an error
     * pending is that error. */
    int (*forward)(ek_function_call *call, ek_tensor *const *inputs, ek_tensor **outputs);

    /* Writes the gradients of the inputs, NULL for zero or for those that ek_function_needs says no
     * to. gradients[o] is NULL if nothing arrived for output o. In gradient mode if the
     * gradient is to be differentiated again. NULL: the outputs carry no gradient. */
    int (*backward)(ek_function_call *call, ek_tensor *const *gradients, ek_tensor **results);

    /* Optional: frees what ek_function_user points to, when the graph is released, or after the
     * forward if nothing was recorded or it failed. */
    void (*destroy)(void *user);
} ek_function;

enum { EK_FUNCTION_TENSORS = 64 }; /* inputs, outputs or saved tensors of a call, at most */

/* Calls the function on `count` inputs (NULL inputs are passed on) and writes its outputs. `user`
 * is for the function (ek_function_user), owned by the call if `destroy` is set. Returns 0 or a
 * negative status. */
EK_API int ek_function_apply_user(const ek_function *function, ek_tensor *const *inputs, int count,
                                  ek_tensor **outputs, void *user);
#define ek_function_apply(function, inputs, count, outputs) \
    ek_function_apply_user((function), (inputs), (count), (outputs), NULL)

/* In forward, at most once: what backward wants to read, inputs, outputs or others (constants to
 * the gradient's gradient); NULLs stay NULL. */
EK_API int ek_function_save(ek_function_call *call, ek_tensor *const *tensors, int count);
/* In backward: saved tensor `index`, in the scope. NULL with EK_E_MODIFIED if it was modified
 * since, with EK_E_STATE if an earlier backward freed it. */
EK_API ek_tensor *ek_function_saved(ek_function_call *call, int index);
/* Does anybody want the gradient of this input? In forward: might anybody? */
EK_API bool ek_function_needs(const ek_function_call *call, int input);
EK_API void *ek_function_user(const ek_function_call *call);

EK_END_DECLARATIONS
#endif
