/** @file
 * module.h: modules, the library's and the user's own.
 *
 * A module is a struct whose first member is an ek_module. A type record gives its name, size and
 * functions. Parameters, buffers and children are registered by the address of the member that
 * holds them; from this, replication, checkpoints and optimizers work for any module:
 *
 *     typedef struct { ek_module module; ek_tensor *scale; ek_module *body; } scaled;
 *
 *     static ek_value scaled_forward(ek_module *module, const ek_args *args)
 *     {
 *         scaled *self = (scaled *)module;
 *         ek_tensor *y = ek_apply(self->body, ek_arg_tensor(args, 0));
 *         return ek_value_of_tensor(ek_mul(y, self->scale));
 *     }
 *
 *     static const ek_module_type scaled_type = {
 *         .name = "scaled", .size = sizeof(scaled), .forward = scaled_forward};
 *
 *     scaled *self = (scaled *)ek_module_new(&scaled_type);
 *     ek_register_parameter(&self->module, "scale", &self->scale, ek_ones(EK_SHAPE(1)));
 *     ek_register_module(&self->module, "body", &self->body, ek_linear(4, 4));
 *
 * Calls, copies and prints of nested modules recurse on the stack; some thousand levels fit into
 * 8 MiB. Backward through a graph of any depth does not recurse.
 *
 * A replica is a copy of the struct in which the registered members point to the replica's tensors
 * and children. All other fields are copied by value, pointers too.
 *
 * Several threads may call a module at a time if they only read its tensors, as in evaluation with
 * gradient mode off. Calls that write (a forward that updates running statistics, backward, an
 * optimizer's step) are for one thread at a time. All calls of a data-parallel wrapper are for one
 * thread at a time, too; it refuses calls of other threads meanwhile (parallel.h). */
#ifndef EVENKEEL_MODULE_H
#define EVENKEEL_MODULE_H
#pragma GCC system_header /* see base.h */

#include <stdio.h>

#include "evenkeel/device.h"
#include "evenkeel/tensor.h"
#include "evenkeel/value.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_module ek_module;

/** Positional inputs and keyword arguments (a dictionary or none) of one call. */
typedef struct ek_args {
    const ek_value *inputs;
    int count;
    ek_value keywords;
} ek_args;

/** Data that all replicas of one module share during one forward. */
typedef struct ek_replication {
    /** The replica's index, and how many there are; replica 0 is called first. */
    int index, count;
    ek_module *original;
    /** For the modules' use: NULL for the first replica, then as the replica before left it. If
     * `release` is set, it is called with the context when the forward has ended. */
    void *context;
    void (*release)(void *context);
} ek_replication;

/** A criterion's loss before the division: loss = sum / weight. The loss of a batch is computed
 * from its parts (of devices, of micro-batches) by adding up sums and weights. Scalars, in the
 * scope. */
typedef struct ek_loss_sum {
    ek_tensor *sum;    /**< on the inputs' device; of any value, also NaN, if the weight is 0 */
    ek_tensor *weight; /**< on the inputs' device or cpu, no gradient; NULL: no division */
} ek_loss_sum;

typedef struct ek_module_type {
    const char *name;
    size_t size; /**< size of the struct that embeds ek_module */

    /** Returns the output, in the scope; on error EK_VALUE_ERROR or a NULL tensor's value. */
    ek_value (*forward)(ek_module *self, const ek_args *args);

    /** Optional: frees what the struct owns besides registered members. Not called for replicas. */
    void (*destroy)(ek_module *self);

    /** Optional, for criteria: computes this call's loss as a sum and a weight. A loss that is not
     * reduced is a sum of any shape, without a weight. Returns 0 or a negative status. If NULL, the
     * scalar that `forward` gives is used: a sum (`is_sum`), or a mean times `denominator`. */
    int (*loss_sum)(ek_module *self, const ek_args *args, ek_loss_sum *loss);

    /** Optional, for criteria without `loss_sum`: the number by which the mean divides, as a scalar
     * tensor on the inputs' device, without a gradient. The forward's scalar result must then be
     * this mean. If NULL, the mean is taken to be over samples. */
    ek_tensor *(*denominator)(ek_module *self, const ek_args *args);

    /** Optional, for criteria without `loss_sum`: true if the loss is a sum. Devices' losses then
     * add up undivided, and `denominator` is not called. If NULL, a scalar loss is a mean. */
    bool (*is_sum)(ek_module *self);

    /** For criteria: true if ek_loss leaves lists among the arguments as they are. */
    bool takes_lists;

    /** Optional: called on each replica before any forward runs, if the data-parallel wrapper is
     * patched (ek_patch_replication_callback). Returns 0 or a negative status. */
    int (*replicated)(ek_module *replica, ek_replication *replication);

    /** Needed for ek_module_copy if there is a `destroy`. When it is called, registered members
     * have been copied, and all other members of `copy` are equal to the original's. It must
     * replace whatever destroy frees by separate memory. Returns 0; or a negative status, and then
     * `copy` must own nothing that destroy would free. */
    int (*copy)(ek_module *copy, const ek_module *original);

    /** Optional: writes what ek_module_print shows in the parentheses behind the name, such as
     * "in_features=4, out_features=2", of at most `size` bytes, the NUL included. */
    void (*describe)(const ek_module *self, char *text, size_t size);

    /** Optional: for types whose structs begin with a common struct, the address of an object that
     * identifies this struct, so that code can tell such modules from others. */
    const void *family;
} ek_module_type;

struct ek_module_members; /**< registered parameters, buffers and children */

struct ek_module {
    const ek_module_type *type;
    struct ek_module_members *members;
    bool training;
    bool is_replica;
};

/* ---- making and freeing ---- */

/** Makes a zeroed struct of type->size bytes in training mode, owned by the caller; NULL on error.
 */
EK_API ek_module *ek_module_new(const ek_module_type *type);

/** Frees a module with its children, parameters and buffers; NULL is ignored. A parameter that is
 * kept elsewhere keeps its gradient, but without a history (create_graph). */
EK_API void ek_module_free(ek_module *module);
#define ek_module_free(module) ek_module_free(EK_PLACED(module))

/** Registers *member under `name` (copied; no dots) and stores `tensor` there with a reference of
 * its own. A parameter is made to require a gradient, unless it is a module's parameter already.
 * `member` must lie within the struct; if it is NULL, only the module's table holds the tensor, for
 * modules that learn at run time how many tensors they have. A NULL `tensor` registers an absent
 * tensor (a bias that is off). Returns 0;
 * the pending error if `tensor` is the NULL of a failed operation; or EK_E_INVALID for a name that
 * is taken or malformed, or a member outside of the struct. */
EK_API int ek_register_parameter(ek_module *module, const char *name, ek_tensor **member,
                                 ek_tensor *tensor);
EK_API int ek_register_buffer(ek_module *module, const char *name, ek_tensor **member,
                              ek_tensor *tensor);
/** Registers a child. The module takes ownership of `child`, even on an error. A child that has a
 * parent already is then shared by both parents; on an error it stays with the first. */
EK_API int ek_register_module(ek_module *module, const char *name, ek_module **member,
                              ek_module *child);

/** Copies the module and all below it, with separate parameters and buffers, on the same devices
 * and without gradients. Tensors and modules that are shared within the module are shared within
 * the copy. Members that are not registered are copied by value. Owned by the caller. NULL with
 * EK_E_INVALID if a type has a `destroy` but no `copy`, as data-parallel wrappers do: copy the
 * wrapped module (ek_data_parallel_module). */
EK_API ek_module *ek_module_copy(ek_module *module);

/** A constructor's last line: returns `module`; or frees it and returns NULL on a pending error. */
EK_API ek_module *ek_module_finish(ek_module *module);

/* ---- replacing: model.fc = nn.Linear(512, 10), decoder.weight = encoder.weight ----
 *
 *     ek_module *net = ek_resnet18();
 *     ek_module_set(net, "fc", ek_linear(512, 10));
 *     ek_module_set_tensor(net, "conv1.weight", ek_randn(EK_SHAPE(64, 1, 7, 7)));
 *
 * What is new is found where the old was: by the type's forward in the struct's member, and under
 * the path by walks and archives. It is not moved to the module's device, and it keeps its training
 * mode. Optimizers and averages (ek_ema_new) keep the parameters of the time when they were made:
 * make them afterwards. Nobody may be calling the module.
 *
 * Wrapped modules may change between two steps: replicas and shards are made anew at the next
 * forward (parallel.h). A module inside of ek_distributed_data_parallel may not get parameters that
 * require a gradient: its next forward in gradient mode is EK_E_STATE. */

/** Puts `child` in the place of the child at `path`; in lists and sequentials numbers are names
 * ("layer4.1"). The old child is freed if no other parent has it. Ownership of `child` passes as to
 * ek_register_module, so that a new parent of the old child may take its place:
 *
 *     ek_module_set(net, "0", ek_spectral_norm(ek_module_at(net, "0")));
 *
 * On an error the module is unchanged. The pending error if `child` is the NULL of a failed
 * constructor. EK_E_INVALID if there is no such child (the sentence lists those that there are), or
 * if `child` would be a part of itself. EK_E_STATE for a replica. */
EK_API int ek_module_set(ek_module *module, const char *path, ek_module *child);

/** Puts `tensor` in the place of the parameter or buffer at `path`, with a reference of its own.
 * NULL makes it absent (a bias that is off). A parameter begins to require a gradient as by
 * ek_register_parameter.
 *
 * If the tensor is a parameter elsewhere, too, both are tied: one parameter to walks, optimizers,
 * replicas, sharding and ranks, whose gradient is the sum over its uses. Archives have it under all
 * of its paths.
 *
 * The shape may be another one. Layers take sizes from their weights; what they keep apart from
 * these stays (groups of convolutions, features of norms, sizes of attention and of recurrent
 * networks), and a forward says what does not fit.
 *
 * On an error the module is unchanged. The pending error if `tensor` is the NULL of a failed
 * operation. EK_E_INVALID if there is nothing of this path, and for a weight that is computed in
 * each forward (ek_weight_norm), of which the sentence names the origin. EK_E_AUTOGRAD for a
 * parameter with a history. EK_E_STATE for a replica. */
EK_API int ek_module_set_tensor(ek_module *module, const char *path, ek_tensor *tensor);

/* ---- calling ---- */

/** Calls a module with the arguments of an array; the output is in the scope. */
EK_API ek_value ek_module_forward(ek_module *module, const ek_args *args);
/** ek_forward's type of result, named so that a compiler's message explains the mistake if a tensor
 * is wanted. */
typedef ek_value ek_value_where_ek_apply_gives_a_tensor;
#define ek_forward(module, ...) ek_forward_kw((module), ek_value_none(), __VA_ARGS__)
/** ek_forward(module, x, y): calls a module with up to 8 tensors or values; output in the scope. */
#define ek_forward_kw(module, keyword_arguments, ...)                                    \
    ek_module_forward_of((module), EK_VALUES(__VA_ARGS__), EK_VALUES_COUNT(__VA_ARGS__), \
                         (keyword_arguments))
static inline ek_value_where_ek_apply_gives_a_tensor
ek_module_forward_of(ek_module *module, const ek_value *inputs, int count, ek_value keywords)
{
    ek_args args = {inputs, count, keywords};
    return ek_module_forward(module, &args);
}

/** Calls a module that takes one tensor and returns one, in the scope. NULL with an error. */
EK_API ek_tensor *ek_apply(ek_module *module, ek_tensor *x);

EK_API ek_tensor *ek_loss_of(ek_module *criterion, const ek_value *arguments, int count);
/** ek_loss(criterion, output, target): calls a criterion with up to 8 tensors or values, and
 * returns its result, a tensor, in the scope.
 *
 * A list becomes arguments: for a model that returns EK_LIST(a, b) the criterion is called as (a,
 * b, target), unless ek_module_type.takes_lists. Tensors after the first argument that have no
 * gradient, as targets and masks, are moved to the device of the first tensor, from any device.
 * Targets that a loader has cut for devices are joined there.
 *
 * A criterion is called alike on its own, by ek_data_parallel_criterion on one device or several,
 * by ek_distributed_criterion and by ek_train_step. Outputs that are marked per_device are for
 * ek_data_parallel_criterion. A wrapper, a module whose only member is a child with an empty name,
 * gets the arguments unchanged. */
#define ek_loss(criterion, ...) \
    ek_loss_of((criterion), EK_VALUES(__VA_ARGS__), EK_VALUES_COUNT(__VA_ARGS__))

/** Positional argument `index` (borrowed). EK_E_INVALID if it is missing or no tensor. */
EK_API ek_tensor *ek_arg_tensor(const ek_args *args, int index);
EK_API ek_value ek_arg(const ek_args *args, int index);

/* ---- walking: depth first, registration order, shared tensors and modules once ---- */

typedef int ek_tensor_visitor(const char *path, ek_tensor *tensor, void *user);
/** Calls `visit` for each parameter or buffer, with a path below `module` such as
 * "features.0.weight", which stays valid until the process ends. A non-zero result stops the walk
 * and is returned. */
EK_API int ek_module_parameters(ek_module *module, ek_tensor_visitor *visit, void *user);
EK_API int ek_module_buffers(ek_module *module, ek_tensor_visitor *visit, void *user);
/** Child `index` in the order of registration (borrowed); NULL, without an error, past the last. */
EK_API ek_module *ek_module_child(ek_module *module, int index);
/** The name of child `index` (borrowed); NULL, without an error, past the last. */
EK_API const char *ek_module_child_name(const ek_module *module, int index);
/** The module with the path "features.0" below `module`, or `module` itself for "" (borrowed). NULL
 * with EK_E_INVALID if the path does not exist. */
EK_API ek_module *ek_module_at(ek_module *module, const char *path);
/** Calls `visit` for the module itself, with the path "", and all below it. Paths stay valid until
 * the process ends. */
typedef int ek_module_visitor(const char *path, ek_module *module, void *user);
EK_API int ek_module_modules(ek_module *module, ek_module_visitor *visit, void *user);
/** Calls `visit` as torch's apply does: for children first, then for the module itself, and for a
 * shared module once in each of its parents. `visit` may replace modules below `module`, also the
 * one that it is given: ek_module_set(net, path, ...). What takes its place is not visited. */
EK_API int ek_module_apply(ek_module *module, ek_module_visitor *visit, void *user);
/** True if the module is of the type of this name, as ek_module_print writes it: "conv2d". NULL is
 * of no type. */
EK_API bool ek_module_is(const ek_module *module, const char *type);
/** The module's own path, "features.0", from the outermost of its parents; "" if it has none.
 * Wrappers are not named in it. If the module has several parents, it is the path through the first
 * one. Reports of memory and time name modules so. A path stays valid until the process ends. NULL,
 * without an error, for a NULL module. Registering a parent with another module gives all modules
 * below new paths. A shared module keeps its path if ek_module_set empties its first place. */
EK_API const char *ek_module_path(const ek_module *module);
/** The path of the module whose forward or backward the calling thread runs; "" outside of modules.
 * For hooks, and for functions that modules call. A module without a parent that another module
 * calls counts as part of the caller. Valid until the process ends. */
EK_API const char *ek_current_module_path(void);
/** The parameter or buffer of a path (borrowed); NULL with EK_E_INVALID if there is none. */
EK_API ek_tensor *ek_module_tensor(ek_module *module, const char *path);
/** How many elements all parameters have. */
EK_API int64_t ek_module_numel(ek_module *module);

/* ---- changing ---- */

/** Sets training mode, or evaluation mode, for the module and all below it. */
EK_API void ek_module_train(ek_module *module, bool training);
/** Moves or converts parameters and buffers; handles stay valid. Gradients of tensors that change
 * are dropped. Sharded parameters (EK_SHARD_OPTIMIZER) are whole again until their wrapper shards
 * them anew. On an error nothing has changed. */
EK_API int ek_module_to_device(ek_module *module, ek_device device);
EK_API int ek_module_to_dtype(ek_module *module, ek_dtype dtype);
/** Removes all gradients. */
EK_API void ek_module_zero_grad(ek_module *module);
/** Sets for all parameters whether they require a gradient. */
EK_API void ek_module_set_requires_grad(ek_module *module, bool requires_grad);

/* ---- hooks: functions that see a module's calls, as torch.nn.Module's ----
 *
 * Hooks of one kind are called in order of registration. Copies of the module have its hooks. Each
 * replica has them, too: it calls them for its chunk, on its own thread, in parallel with other
 * replicas, with the replica as `module`. Changes of a replica's hooks last for this call only.
 * ek_sequential calls modules with hooks one by one. Registering returns a positive id or a
 * negative status. While the module is called, only a hook may register and remove hooks, and only
 * of the module that it is given; the change takes effect at that module's next call. `user` is
 * borrowed. */

/** Called before the forward. Returns EK_VALUE_NONE to keep the inputs, or new inputs: the only
 * one, or a list of all. EK_VALUE_ERROR with an error set fails the call of the module. */
typedef ek_value ek_forward_pre_hook(ek_module *module, const ek_args *args, void *user);
EK_API int64_t ek_module_register_forward_pre_hook(ek_module *module, ek_forward_pre_hook *hook,
                                                   void *user);
/** Called after the forward. Returns EK_VALUE_NONE to keep the output, or another output. */
typedef ek_value ek_forward_hook(ek_module *module, const ek_args *args, ek_value output,
                                 void *user);
EK_API int64_t ek_module_register_forward_hook(ek_module *module, ek_forward_hook *hook,
                                               void *user);
/** Called in backward, as torch's full backward hook, once for each forward, when the gradients of
 * the inputs have been computed. `grad_inputs` has an entry for each positional input,
 * `grad_outputs` one for the output or for each element of an output that is a list; an entry is
 * EK_VALUE_NONE if there is no tensor or no gradient. Returns EK_VALUE_NONE to keep the inputs'
 * gradients, or a list of others, as long as grad_inputs. Outputs are those after the forward
 * hooks. If no input requires a gradient, the hook is called as soon as the outputs have theirs. It
 * is not called in a backward pass that reaches the inputs without passing through the outputs, as
 * a pass through gradients (create_graph) may. grad_outputs have no history. Inputs and outputs of
 * a module with this hook are views. The graph holds the hooks, not the module, which may be freed
 * before. */
typedef ek_value ek_full_backward_hook(ek_value grad_inputs, ek_value grad_outputs, void *user);
EK_API int64_t ek_module_register_full_backward_hook(ek_module *module, ek_full_backward_hook *hook,
                                                     void *user);
/** Removes a hook of any kind. EK_E_INVALID if the module has no hook of this id. */
EK_API int ek_module_remove_hook(ek_module *module, int64_t id);

/** Writes the module and all below it to `stream`, a line each:
 *
 *     sequential(
 *       (0): linear(in_features=4, out_features=2, bias=True)
 *       (1): relu()
 *     )
 *
 * A NULL module is written as NULL. Returns EK_E_IO if the stream fails. */
EK_API int ek_module_print(const ek_module *module, FILE *stream);

/** SHA-256 of all parameters (dtype, shape, bytes in row-major order), as 64 hex digits. */
EK_API int ek_module_sha256(ek_module *module, char text[65]);

EK_END_DECLARATIONS
#endif
