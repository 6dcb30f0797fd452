/** @file
 * functional.h: derivatives of functions of tensors, as torch.autograd.functional. */
#ifndef EVENKEEL_FUNCTIONAL_H
#define EVENKEEL_FUNCTIONAL_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/autograd.h"

EK_BEGIN_DECLARATIONS

/** A function of tensors. Writes its outputs, in the scope. Returns 0 or a negative status; a NULL
 * output means that its operation failed, with an error pending. */
typedef int ek_tensor_function(ek_tensor *const *inputs, ek_tensor **outputs, void *user);

enum { EK_FUNCTIONAL_TENSORS = 16 }; /**< limit for inputs and for outputs */

typedef struct ek_functional_options {
    int begin; /**< no option, see base.h */
    ek_tensor_function *function;
    ek_tensor *const *inputs; /**< floating */
    int input_count;
    int output_count EK_IS(1); /**< ek_hessian: 1 */
    void *user;
    /** ek_vjp: one for each output, of its shape. NULL: 1, if all outputs have one element.
     * ek_jvp: one for each input, of its shape. NULL: 1, if all inputs have one element. */
    ek_tensor *const *v;
    ek_tensor **results; /**< in the scope */
    ek_tensor **outputs; /**< the function's outputs, in the scope; NULL: not wanted */
    bool create_graph; /**< results and outputs can be differentiated: by the inputs that require a
                          gradient, and by whatever else the function uses */
} ek_functional_options;
#define EK_DEFAULTS_ek_functional_options EK_DEFAULT(output_count, 1)

EK_API int ek_vjp_with(ek_functional_options options);
EK_API int ek_jvp_with(ek_functional_options options);
EK_API int ek_jacobian_with(ek_functional_options options);
EK_API int ek_hessian_with(ek_functional_options options);
/** The function is called with handles on the inputs' memory that require a gradient, in gradient
 * mode. The derivative of an output by an input that it does not depend on is 0.
 *
 * ek_vjp: results[i] is the sum over outputs of v' J, of input i's shape.
 * ek_jvp: results[o] is the sum over inputs of J v, of output o's shape; by differentiating v' J.
 * ek_jacobian: results[o * input_count + i] has output o's dimensions, then those of input i.
 * ek_hessian: results[i * input_count + k] has input i's dimensions, then those of input k; of a
 * function with one output of one element.
 * EK_E_SHAPE if a result would have more than EK_MAX_DIMS dimensions. */
#define ek_vjp(...) EK_CALL(ek_vjp_with, ek_functional_options, __VA_ARGS__)
#define ek_jvp(...) EK_CALL(ek_jvp_with, ek_functional_options, __VA_ARGS__)
#define ek_jacobian(...) EK_CALL(ek_jacobian_with, ek_functional_options, __VA_ARGS__)
#define ek_hessian(...) EK_CALL(ek_hessian_with, ek_functional_options, __VA_ARGS__)

EK_END_DECLARATIONS
#endif
