/** @file
 * autograd.h: gradients, and gradients of gradients.
 *
 * Operations record themselves if gradient mode is on and an operand requires a gradient. The
 * backward of every operation is made of differentiable operations, so that with `create_graph` the
 * backward pass can be differentiated again, to any order. Gradients are the same to the bit from
 * run to run for a given number of devices and threads per device. */
#ifndef EVENKEEL_AUTOGRAD_H
#define EVENKEEL_AUTOGRAD_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/** True for leaves that want a gradient, and for what operations made of such. */
EK_API bool ek_tensor_requires_grad(const ek_tensor *tensor);
/** For leaves only (else EK_E_AUTOGRAD), and for floating dtypes only. */
EK_API int ek_tensor_set_requires_grad(ek_tensor *tensor, bool requires_grad);
/** True unless an operation that is recorded made the tensor. */
EK_API bool ek_tensor_is_leaf(const ek_tensor *tensor);

/** The accumulated gradient, owned by `tensor`; NULL, without an error, if there is none. */
EK_API ek_tensor *ek_tensor_grad(const ek_tensor *tensor);
/** Replaces the gradient; NULL removes it. `grad` has the shape, dtype and device of `tensor`. For
 * a sharded parameter it replaces the gradients of all shards. */
EK_API int ek_tensor_set_grad(ek_tensor *tensor, ek_tensor *grad);

/** The whole gradient of a parameter, on its device. If it is sharded (EK_SHARD_OPTIMIZER), this is
 * a gathered copy in the scope, else ek_tensor_grad. NULL, without an error, if there is none. If
 * it is sharded over ranks (ddp.h), all of them call this. */
EK_API ek_tensor *ek_gather_grad(ek_tensor *parameter);

/** A handle, in the scope, on the same memory and version, without history. */
EK_API ek_tensor *ek_detach(ek_tensor *tensor);

/** Gradient mode of the thread, on at first; ek_set_grad_enabled returns what it was. Jobs on
 * workers inherit it. */
EK_API bool ek_grad_enabled(void);
EK_API bool ek_set_grad_enabled(bool enabled);

typedef struct ek_backward_options {
    int begin; /**< no option, see base.h */
    ek_tensor *loss;
    ek_tensor *gradient; /**< gradient of the loss; NULL: 1, if the loss has one element */
    bool retain_graph;   /**< keeps saved tensors for another backward; create_graph implies it */
    bool create_graph;
} ek_backward_options;
#define EK_DEFAULTS_ek_backward_options EK_NO_DEFAULTS

EK_API int ek_backward_with(ek_backward_options options);
/** ek_backward(loss, .retain_graph = true): adds d loss / d leaf to the gradient of every leaf
 * that requires one. A node's saved tensors are freed when it has run, unless the graph is
 * retained. The nodes of each device run on its worker, side by side; the call returns when all
 * are done. A NULL loss gives the pending error.
 *
 * With create_graph a leaf's gradient holds the graph that made it, and the graph holds the
 * leaf: they are freed only if the gradient is removed. So to differentiate gradients use
 * ek_grad, which stores none in leaves, or remove the gradients after use (ek_module_zero_grad,
 * ek_zero_grad, ek_tensor_set_grad). ek_module_free detaches the gradients of its parameters
 * from their graphs. */
#define ek_backward(...) EK_CALL_1(ek_backward_with, ek_backward_options, loss, __VA_ARGS__)

typedef struct ek_grad_options {
    int begin; /**< no option, see base.h */
    ek_tensor *const *outputs;
    int output_count;
    ek_tensor *const *inputs;
    int input_count;
    ek_tensor **gradients; /**< result: input_count tensors, in the scope */
    /** One per output; NULL: all are NULL. A NULL entry is 1, for an output of one element. */
    ek_tensor *const *grad_outputs;
    bool retain_graph; /**< as that of ek_backward */
    bool create_graph;
    /** On: an input that has no part in the outputs gets the gradient NULL. Off: such an input is
     * EK_E_AUTOGRAD. Masks (of relu, abs, clamp, max, ...) are constants: an input that acts
     * through a mask alone has no part, whereas torch gives it zeros. */
    bool allow_unused;
} ek_grad_options;
#define EK_DEFAULTS_ek_grad_options EK_NO_DEFAULTS

EK_API int ek_grad_with(ek_grad_options options);
/** Computes the gradients of the sum of the outputs, weighted by grad_outputs, with respect to the
 * inputs. Leaves' accumulated gradients stay. Only nodes on a path to an input run. */
#define ek_grad(...) EK_CALL(ek_grad_with, ek_grad_options, __VA_ARGS__)

/* ---- hooks ---- */

/** Is called with the gradient of a tensor whenever a pass has computed it, before anything uses
 * it. Returns the gradient to go on with, in the scope, of the same shape, dtype and device;
 * `gradient` itself, or NULL, to keep it; NULL with an error set fails the pass. With create_graph
 * its operations are recorded. It runs on the thread of the tensor's device. */
typedef ek_tensor *ek_tensor_hook(ek_tensor *gradient, void *user);

/** As torch.Tensor.register_hook. Hooks of a tensor are called in order of registration, each with
 * the gradient that the one before returned. Those of a leaf see the sum of all that arrives in
 * this pass, from all replicas, before it is added to the leaf's gradient; those of other tensors
 * belong to the operation that made it, and are freed with the graph. While a pass is under way,
 * only a hook may register and remove hooks, of the tensor that it is called for; this counts from
 * that tensor's next gradient. Returns an id, which is positive; EK_E_AUTOGRAD if the tensor
 * requires no gradient; EK_E_STATE if it is sharded (EK_SHARD_OPTIMIZER), because gradients go to
 * its shards. */
EK_API int64_t ek_tensor_register_hook(ek_tensor *tensor, ek_tensor_hook *hook, void *user);
/** EK_E_INVALID if the tensor has no hook of this id. */
EK_API int ek_tensor_remove_hook(ek_tensor *tensor, int64_t id);

/* ---- checking ---- */

/** A function under test. It returns one output, in the scope, or NULL with an error. */
typedef ek_tensor *ek_check_function(ek_tensor *const *inputs, int count, void *user);

typedef struct ek_gradcheck_options {
    int begin; /**< no option, see base.h */
    ek_check_function *function;
    ek_tensor *const *inputs; /**< f64; elements of those that require a gradient are varied */
    int input_count;
    void *user;
    double epsilon EK_IS(1e-6);
    double absolute_tolerance EK_IS(1e-5);
    double relative_tolerance EK_IS(1e-3);
} ek_gradcheck_options;
#define EK_DEFAULTS_ek_gradcheck_options                             \
    EK_DEFAULT(epsilon, 1e-6), EK_DEFAULT(absolute_tolerance, 1e-5), \
        EK_DEFAULT(relative_tolerance, 1e-3)

EK_API int ek_gradcheck_with(ek_gradcheck_options options);
EK_API int ek_gradgradcheck_with(ek_gradcheck_options options);
/** Compares the backward of `function` with central differences. ek_gradgradcheck also compares the
 * backward of its gradient. Returns 0, or EK_E_AUTOGRAD with the worst element. */
#define ek_gradcheck(...) EK_CALL(ek_gradcheck_with, ek_gradcheck_options, __VA_ARGS__)
#define ek_gradgradcheck(...) EK_CALL(ek_gradgradcheck_with, ek_gradcheck_options, __VA_ARGS__)

EK_END_DECLARATIONS
#endif
