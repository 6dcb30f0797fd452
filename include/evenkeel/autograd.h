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

/** True for leaves that require a gradient, and for results that operations recorded. */
EK_API bool ek_tensor_requires_grad(const ek_tensor *tensor);
/** Sets whether a leaf requires a gradient. EK_E_AUTOGRAD if the tensor is no leaf; only floating
 * dtypes can require one. */
EK_API int ek_tensor_set_requires_grad(ek_tensor *tensor, bool requires_grad);
/** False if a recorded operation made the tensor, else true. */
EK_API bool ek_tensor_is_leaf(const ek_tensor *tensor);

/** The accumulated gradient, owned by `tensor`; NULL, without an error, if there is none. */
EK_API ek_tensor *ek_tensor_grad(const ek_tensor *tensor);
/** Replaces the gradient; NULL removes it. `grad` has the shape, dtype and device of `tensor`. For
 * a sharded parameter it replaces the gradients of all shards. */
EK_API int ek_tensor_set_grad(ek_tensor *tensor, ek_tensor *grad);

/** Returns the whole gradient of a parameter, on its device: a gathered copy in the scope if the
 * parameter is sharded (EK_SHARD_OPTIMIZER), else ek_tensor_grad. NULL, without an error, if there
 * is no gradient. If the parameter is sharded over ranks (ddp.h), all ranks call this function. */
EK_API ek_tensor *ek_gather_grad(ek_tensor *parameter);

/** Returns a handle, in the scope, on the tensor's memory and version, without history. */
EK_API ek_tensor *ek_detach(ek_tensor *tensor);

/** Gradient mode of the calling thread, on at first; ek_set_grad_enabled returns the mode before.
 * Work that the thread hands to device threads has the same mode. */
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
 * that requires one. A node's saved tensors are freed when the node has run, unless the graph is
 * retained. Each device's nodes run on the device's thread, and devices run in parallel; the call
 * returns when all nodes are done. For a NULL loss it returns the pending error.
 *
 * With create_graph a leaf's gradient holds the graph that made it, and the graph holds the
 * leaf: both are freed only if the gradient is removed. To differentiate gradients, use ek_grad,
 * which stores no gradient in leaves, or remove the gradients after use (ek_module_zero_grad,
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
    /** One per output. NULL: all entries are NULL. A NULL entry means 1, and its output must have
     * one element. */
    ek_tensor *const *grad_outputs;
    bool retain_graph; /**< as that of ek_backward */
    bool create_graph;
    /** True: an input on which no output depends gets the gradient NULL. False: it is an error,
     * EK_E_AUTOGRAD. Masks (of relu, abs, clamp, max, ...) are constants: no output depends on an
     * input that is used in a mask alone (PyTorch gives it a gradient of zeros). */
    bool allow_unused;
} ek_grad_options;
#define EK_DEFAULTS_ek_grad_options EK_NO_DEFAULTS

EK_API int ek_grad_with(ek_grad_options options);
/** Computes the gradients of the sum of the outputs, weighted by grad_outputs, with respect to the
 * inputs. Leaves' accumulated gradients are unchanged. Only nodes on a path to an input run. */
#define ek_grad(...) EK_CALL(ek_grad_with, ek_grad_options, __VA_ARGS__)

/* ---- hooks ---- */

/** A hook is called with the gradient of a tensor whenever a backward pass has computed it, before
 * anything uses it. The hook returns the gradient to be used instead, in the scope, of the same
 * shape, dtype and device. `gradient` itself, or NULL, keeps the gradient; NULL with an error set
 * fails the backward pass. With create_graph the hook's operations are recorded. It runs on the
 * thread of the tensor's device. */
typedef ek_tensor *ek_tensor_hook(ek_tensor *gradient, void *user);

/** Registers a hook, as torch.Tensor.register_hook. A tensor's hooks are called in the order of
 * registration, each with the gradient that the hook before it returned. A leaf's hooks see the sum
 * of all gradients that arrive in one backward pass, from all replicas, before the sum is added to
 * the leaf's gradient. Another tensor's hooks belong to the operation that made the tensor, and are
 * freed with the graph. During a backward pass only a hook may register and remove hooks, and only
 * of the tensor that it is called for; the change takes effect at that tensor's next gradient.
 * Returns a positive id; EK_E_AUTOGRAD if the tensor requires no gradient; EK_E_STATE if it is
 * sharded (EK_SHARD_OPTIMIZER), because gradients go to its shards. */
EK_API int64_t ek_tensor_register_hook(ek_tensor *tensor, ek_tensor_hook *hook, void *user);
/** Removes a hook. EK_E_INVALID if the tensor has no hook of this id. */
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
