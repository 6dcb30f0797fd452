/* module.h: modules, the library's and the user's own.
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
 * A replica is a copy of the struct in which the registered members point to the replica's tensors
 * and children, so plain fields are shared by value and pointers in them are shared as they are.
 *
 * Several threads may call a module at a time if they only read its tensors, as in evaluation
 * without gradient mode. What writes (a forward that moves running statistics, backward, an
 * optimizer) is for one thread at a time, and so is a data-parallel wrapper, which says so
 * (parallel.h). */
#ifndef EVENKEEL_MODULE_H
#define EVENKEEL_MODULE_H

#include "evenkeel/device.h"
#include "evenkeel/tensor.h"
#include "evenkeel/value.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_module ek_module;

/* Positional inputs and keyword arguments (a dictionary or none) of one call. */
typedef struct ek_args {
    const ek_value *inputs;
    int count;
    ek_value keywords;
} ek_args;

/* What the replicas of one module in one forward share. */
typedef struct ek_replication {
    int index, count; /* of the replica; the first is 0 and is called first */
    ek_module *original;
    /* For the modules: NULL for the first replica, then what it was left as. `release`, if set, is
     * called with it when the forward has ended. */
    void *context;
    void (*release)(void *context);
} ek_replication;

/* A criterion's loss before its division: loss = sum / weight. So losses of parts of a batch (of
 * devices, of micro-batches) become the loss of the whole: their sums and weights are added.
 * Scalars in the caller's scope. */
typedef struct ek_loss_sum {
    ek_tensor *sum;    /* on the inputs' device; anything, NaN too, if the weight is 0 */
    ek_tensor *weight; /* there or on cpu, without a gradient; NULL: nothing divides the sum */
} ek_loss_sum;

typedef struct ek_module_type {
    const char *name;
    size_t size; /* of the struct that embeds ek_module */

    /* Gives the output, in the caller's scope; EK_VALUE_ERROR (or a NULL tensor's value) on error.
     */
    ek_value (*forward)(ek_module *self, const ek_args *args);

    /* Optional: frees what the struct owns beside its registered members. Not called for replicas.
     */
    void (*destroy)(ek_module *self);

    /* Optional, for criteria: this call's loss as a sum and a weight. A loss that is not reduced is
     * a sum of any shape without a weight. Returns 0 or a negative status. Without it a scalar loss
     * is asked of `forward`, and is a mean that is multiplied by `denominator`, or a sum. */
    int (*loss_sum)(ek_module *self, const ek_args *args, ek_loss_sum *loss);

    /* Optional, for criteria without `loss_sum`: the number that the mean of this loss divides by,
     * a scalar tensor on the inputs' device, without a gradient. With it the forward's scalar
     * result must be that mean. Without it a mean is taken to be over samples. */
    ek_tensor *(*denominator)(ek_module *self, const ek_args *args);

    /* Optional, for criteria without `loss_sum`: true if this loss is a sum, so that devices'
     * losses add up and nothing divides them; `denominator` is not asked then. Without it a scalar
     * loss is a mean. */
    bool (*is_sum)(ek_module *self);

    /* Optional: called on each replica that a patched data-parallel wrapper makes
     * (ek_patch_replication_callback), before any forward runs. Returns 0 or a negative status. */
    int (*replicated)(ek_module *replica, ek_replication *replication);
} ek_module_type;

struct ek_module_members; /* registered parameters, buffers and children */

struct ek_module {
    const ek_module_type *type;
    struct ek_module_members *members;
    bool training;
    bool is_replica;
};

/* ---- making and freeing ---- */

/* A zeroed struct of type->size bytes, in training mode, owned by the caller. */
EK_API ek_module *ek_module_new(const ek_module_type *type);

/* Frees a module with its children, parameters and buffers; NULL is ignored. A parameter that
 * somebody else holds keeps its gradient, but without a history (create_graph). */
EK_API void ek_module_free(ek_module *module);

/* Registers *member under `name` (copied; no dots) and stores `tensor` there, keeping a reference:
 * a parameter, which is made to require a gradient, or a buffer. `member` must lie within the
 * struct; with member NULL the module's table alone holds the tensor (if their number is known
 * at run time only). tensor NULL registers an absent one (a bias that is off). Returns 0, the
 * pending error when tensor is the result of a failed operation, or EK_E_INVALID (name taken or
 * malformed, member outside of the struct). */
EK_API int ek_register_parameter(ek_module *module, const char *name, ek_tensor **member,
                                 ek_tensor *tensor);
EK_API int ek_register_buffer(ek_module *module, const char *name, ek_tensor **member,
                              ek_tensor *tensor);
/* The module takes ownership of `child`, also when it fails. A child that has a parent already is
 * shared by both. */
EK_API int ek_register_module(ek_module *module, const char *name, ek_module **member,
                              ek_module *child);

/* Frees `module` and returns NULL if an error is pending, else returns it: the last line of a
 * constructor. */
EK_API ek_module *ek_module_finish(ek_module *module);

/* ---- calling ---- */

/* ek_forward(module, x, y): up to 8 tensors or values. */
EK_API ek_value ek_module_forward(ek_module *module, const ek_args *args);
#define ek_forward(module, ...) ek_forward_kw((module), ek_value_none(), __VA_ARGS__)
#define ek_forward_kw(module, keyword_arguments, ...)                                    \
    ek_module_forward_of((module), EK_VALUES(__VA_ARGS__), EK_VALUES_COUNT(__VA_ARGS__), \
                         (keyword_arguments))
static inline ek_value ek_module_forward_of(ek_module *module, const ek_value *inputs, int count,
                                            ek_value keywords)
{
    ek_args args = {inputs, count, keywords};
    return ek_module_forward(module, &args);
}

/* One tensor in, one tensor out. */
EK_API ek_tensor *ek_apply(ek_module *module, ek_tensor *x);

/* A criterion's result as a tensor: ek_loss(criterion, output, target). */
#define ek_loss(criterion, ...) ek_value_tensor(ek_forward(criterion, __VA_ARGS__))

/* Positional argument `index`: EK_E_INVALID if there is none or it is not a tensor. */
EK_API ek_tensor *ek_arg_tensor(const ek_args *args, int index);
EK_API ek_value ek_arg(const ek_args *args, int index);

/* ---- walking: depth first, registration order, shared tensors and modules once ---- */

typedef int ek_tensor_visitor(const char *path, ek_tensor *tensor, void *user);
/* `path` is "features.0.weight". A non-zero result stops the walk and is returned. */
EK_API int ek_module_parameters(ek_module *module, ek_tensor_visitor *visit, void *user);
EK_API int ek_module_buffers(ek_module *module, ek_tensor_visitor *visit, void *user);
/* Child by registration order; NULL without an error past the end. */
EK_API ek_module *ek_module_child(ek_module *module, int index);
/* A parameter or buffer by its path; NULL with EK_E_INVALID. */
EK_API ek_tensor *ek_module_tensor(ek_module *module, const char *path);
EK_API int64_t ek_module_numel(ek_module *module); /* elements */

/* ---- changing ---- */

EK_API void ek_module_train(ek_module *module, bool training);
/* Moves parameters and buffers; handles stay valid. Gradients of what moves are dropped, and
 * divided parameters (EK_SHARD_OPTIMIZER) are whole again until their wrapper divides them anew. On
 * an error nothing has moved. */
EK_API int ek_module_to_device(ek_module *module, ek_device device);
EK_API int ek_module_to_dtype(ek_module *module, ek_dtype dtype);
/* Removes all gradients. */
EK_API void ek_module_zero_grad(ek_module *module);
EK_API void ek_module_set_requires_grad(ek_module *module, bool requires_grad);

/* SHA-256 of all parameters (dtype, shape, bytes in row-major order), as 64 hex digits. */
EK_API int ek_module_sha256(ek_module *module, char text[65]);

EK_END_DECLARATIONS
#endif
