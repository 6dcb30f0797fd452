/** @file
 * function.h: differentiable operations written by the user.
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
 * The forward runs with gradient mode off and may contain any code (ek_tensor_data gives the
 * memory). A backward that is made of differentiable operations, functions like this one included,
 * can be differentiated again, to any order; ek_gradcheck and ek_gradgradcheck test it. In replicas
 * a backward runs on the thread of its device. A backward runs under autocast if its forward did;
 * its results may then be bf16 or f16 for f32 inputs, or the other way round. */
#ifndef EVENKEEL_FUNCTION_H
#define EVENKEEL_FUNCTION_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_function_call ek_function_call;

typedef struct ek_function {
    const char *name; /**< name in error sentences; must outlive the graph (a string literal) */
    int outputs;      /**< number of outputs, at most EK_FUNCTION_TENSORS; 0 means 1 */

    /** Writes the outputs, in the scope. An output must not be an input or a view of one, and
     * inputs must not be modified (EK_E_AUTOGRAD). Returns 0 or a negative status. A NULL output
     * means that its operation failed, with an error pending. */
    int (*forward)(ek_function_call *call, ek_tensor *const *inputs, ek_tensor **outputs);

    /** Writes the gradients of the inputs to `results`. A NULL result means zero, and is right for
     * inputs for which ek_function_needs is false. gradients[o] is NULL if no gradient arrived for
     * output o (but see `meets`). Gradient mode is on if results must be differentiable. If
     * `backward` is NULL, outputs carry no gradient. */
    int (*backward)(ek_function_call *call, ek_tensor *const *gradients, ek_tensor **results);

    /** Optional: frees what ek_function_user returns. Called when the graph is released, or after
     * the forward if it failed or nothing was recorded. */
    void (*destroy)(void *user);

    /** True: the backward communicates with other ranks (calls ek_dist_*). It then runs even if no
     * gradient arrived on this rank, because other ranks may have gradients. gradients[o] is zeros
     * if none arrived, and NULL only if output o carries no gradient. These backwards, and the
     * backward of an ek_checkpoint around one of them, run one after another, in the reverse order
     * of their forwards, which must be the same on all ranks. EK_E_STATE inside of a replica,
     * because replicas run in parallel. */
    bool meets;
} ek_function;

enum { EK_FUNCTION_TENSORS = 64 }; /**< limit for inputs, outputs and saved tensors, each */

EK_API int ek_function_apply_user(const ek_function *function, ek_tensor *const *inputs, int count,
                                  ek_tensor **outputs, void *user);
/** Calls the function on `count` inputs, of which some may be NULL, and writes its outputs. The
 * call owns `user` (ek_function_user) if `destroy` is set. Returns 0 or a negative status. */
#define ek_function_apply(function, inputs, count, outputs) \
    ek_function_apply_user((function), (inputs), (count), (outputs), NULL)

/** Saves tensors for the backward: inputs, outputs, or other tensors, which count as constants when
 * gradients are differentiated. NULLs stay NULL. Called in forward, at most once. */
EK_API int ek_function_save(ek_function_call *call, ek_tensor *const *tensors, int count);
/** Saved tensor `index`, in the scope. Called in backward. NULL with EK_E_MODIFIED if the tensor
 * has been modified since; NULL with EK_E_STATE if an earlier backward has freed it. */
EK_API ek_tensor *ek_function_saved(ek_function_call *call, int index);
/** True if the gradient of this input is needed; in forward, if it may be needed. */
EK_API bool ek_function_needs(const ek_function_call *call, int input);
/** The `user` that ek_function_apply_user was given; NULL with ek_function_apply. */
EK_API void *ek_function_user(const ek_function_call *call);

EK_END_DECLARATIONS
#endif
