/* ops.h: functions that operations share: operand checks, broadcasting, results, fused gradients.
 *
 * An operation checks its operands, allocates its result, runs a kernel and records itself:
 *
 *     EK_BACKWARD(sign_mul, void, ek_sign_mul(g, ek_node_saved(node, 0)))
 *     EK_OPERATION(sign_mul, "sign_mul", sign_mul_backward);
 *
 *     ek_tensor *ek_sign_mul(ek_tensor *x, ek_tensor *y)
 *     {
 *         if (!ek_given("sign_mul", "x", x) || !ek_given("sign_mul", "y", y))
 *             return NULL;
 *         ek_tensor *z = ek_run_binary(EK_BINARY_SIGN_MUL, x, y, 0);
 *         return EK_RECORD(z, &sign_mul_operation, EK_INPUTS(x), EK_SAVED(y));
 *     }
 *
 * An elementwise operation of one tensor is a row (unary.h). A backward calls
 * operations, so that the files of this folder call each other in a circle: they are one layer. If
 * a kernel makes the gradient of a parameter, backward lets it write straight to
 * ek_node_destination, if that exists: convolution, linear, normalisation and casts do.
 *
 * Checks return false (or a negative number) with an error; `operation` and `name` are static
 * strings that begin its sentence: "exp: x is NULL". */
#ifndef EK_OPS_OPS_H
#define EK_OPS_OPS_H

#include "autograd/graph.h"
#include "core/thread.h"
#include "evenkeel/ops.h"
#include "kernels/kernels.h"
#include "ops/spatial.h"

/* ---- rows of an operation ---- */

/* Defines `id_operation`. */
#define EK_OPERATION(id, title, function) \
    static const ek_operation id##_operation = {.name = title, .backward = function}

/* Defines `id_backward` for an operation with one input. `gradient` is an expression of node; of g,
 * the result's gradient; and of a, which points to the attributes, of this type. */
#define EK_BACKWARD(id, type, gradient)                                                       \
    static int id##_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results) \
    {                                                                                         \
        ek_tensor *g = gradients[0];                                                          \
        const type *a = ek_node_attributes(node);                                             \
        (void)a;                                                                              \
        results[0] = gradient;                                                                \
        return 0;                                                                             \
    }

/* EK_FAIL for functions that return a tensor: its value is NULL. */
#define EK_REFUSE(...) ((void)EK_FAIL(__VA_ARGS__), (void *)NULL)

/* Text for errors: of a tensor, of a tensor's shape, of a shape. */
#define EK_TENSOR_TEXT(x) ek_tensor_text((x), (char[200]){0})
#define EK_SIZE_TEXT(x) EK_SHAPE_TEXT((ek_shape[]){ek_tensor_shape(x)})
#define EK_SHAPE_TEXT(shape) ek_shape_text((shape), (char[160]){0})

/* Writes y by a kernel (a slot) of y's device if y has elements. The macro's value is y, or NULL if
 * y is NULL or the kernel fails. */
#define EK_RUN(y, slot, ...)                                                                      \
    ((y) && (ek_count(y) == 0 || ek_kernels_of(y)->slot(ek_tensor_dev(y), (y), __VA_ARGS__) >= 0) \
         ? (y)                                                                                    \
         : NULL)

/* Records an operation in place that has written x. The macro's value is x. */
#define EK_RECORD_WRITTEN(x, operation, ...)    \
    (ek_tensor_written((x), (operation)->name), \
     ek_record_in_place((x), (operation), &(const ek_record_options){__VA_ARGS__}))

/* ---- checks ---- */

/* Checks that x isn't NULL. A pending error stays. */
bool ek_given(const char *operation, const char *name, const ek_tensor *x);
/* x is not NULL and has a floating dtype. */
bool ek_floating(const char *operation, const char *name, const ek_tensor *x);
/* Checks an operand that may be NULL: if x is NULL and an error is pending, a failed call may have
 * made it NULL, and the check fails. */
static inline bool ek_optional(const ek_tensor *x)
{
    return x ? ek_check_alive("an operation", "an operand", x) == 0 : ek_error_status() == 0;
}
/* ek_alike checks that x and y have one device and one dtype, ek_same_device that they have one
 * device. */
bool ek_alike(const char *operation, const ek_tensor *x, const ek_tensor *y);
bool ek_same_device(const char *operation, const ek_tensor *x, const ek_tensor *y);
/* x is not NULL and has this dtype. */
bool ek_of_dtype(const char *operation, const char *name, const ek_tensor *x, ek_dtype dtype);
/* x is not NULL, and a mask: bool or u8. */
bool ek_is_mask(const char *operation, const char *name, const ek_tensor *x);
/* x is not NULL and not bool. */
bool ek_no_bool(const char *operation, const char *name, const ek_tensor *x);
/* Returns `index` as i64, which kernels take; NULL with an error if it is neither i64 nor i32. */
ek_tensor *ek_as_index(const char *operation, const char *name, ek_tensor *index);
/* Checks that `dtype` can store `value`: any value if it is floating, else a whole number in its
 * range. EK_E_DTYPE otherwise. */
bool ek_holds(const char *operation, const char *name, ek_dtype dtype, double value);
/* ek_holds for an end of a range, which may also lie beyond all elements of `dtype`. */
bool ek_holds_low(const char *operation, const char *name, ek_dtype dtype, double value);
bool ek_holds_high(const char *operation, const char *name, ek_dtype dtype, double value);
/* Checks that `choice`, the value of an enumeration, is below `count`. `names` are the enumerators.
 */
bool ek_chosen(const char *operation, const char *name, int choice, int count, const char *names);
/* x is not NULL and has exactly this shape. */
bool ek_of_shape(const char *operation, const char *name, const ek_tensor *x,
                 const ek_shape *shape);
/* Returns dimension `dim` of x, which may count from the end, as a number in [0, ndim); EK_E_SHAPE
 * if x doesn't have it. */
int ek_dimension(const char *operation, const ek_tensor *x, int64_t dim);
/* Returns true if x is a scalar and `dim` 0 or -1, which PyTorch accepts as a dimension of scalars.
 */
bool ek_is_scalar_dim(const ek_tensor *x, int64_t dim);
/* Returns 0 if ek_is_scalar_dim, else ek_dimension. For operations composed of reductions. */
int ek_reduced_dimension(const char *operation, const ek_tensor *x, int64_t dim);
/* Returns a scalar as a row of one element; other tensors and NULL unchanged. */
ek_tensor *ek_row_of(ek_tensor *x);
/* Returns a row of one element as a scalar; NULL for NULL. */
ek_tensor *ek_scalar_of(ek_tensor *row);
/* EK_E_INVALID if dimensions are given without a count. */
int ek_counted_dimensions(const char *operation, const int *dims, int dim_count);
/* Returns the dimensions of a reduction as a bit mask, or a negative status. EK_REDUCED gets them
 * from a struct of options. */
int ek_reduced_dimensions(const char *operation, const ek_tensor *x, int dim, const int *dims,
                          int dim_count);
#define EK_REDUCED(operation, options)                                              \
    ek_reduced_dimensions(operation, (options)->x, (options)->dim, (options)->dims, \
                          (options)->dim_count)
/* Returns true for a scalar on cpu, which is moved to the other operand's device. */
static inline bool ek_is_cpu_scalar(const ek_tensor *x)
{
    return x->ndim == 0 && x->storage->dev->id.kind == EK_CPU;
}
/* Returns true if x wants a gradient: the operation must then save what this gradient needs. */
static inline bool ek_wants(const ek_tensor *x)
{
    return x && x->requires_grad;
}

/* ---- broadcasting ---- */

/* *shape becomes the shape that a and b broadcast to. EK_E_SHAPE names a dimension that doesn't
 * fit. */
int ek_broadcast_shapes(const char *operation, const ek_shape *a, const ek_shape *b,
                        ek_shape *result);
/* Gives *x and *y one shape, and checks that device and dtype agree. A scalar on cpu is moved to
 * the other operand's device, and autocast may cast. Smaller operands are expanded to views with
 * zero strides, whose gradients are summed. Differentiable. */
bool ek_broadcast_operands(const char *operation, ek_tensor **x, ek_tensor **y);

/* Borrows x expanded to `shape`, to which x must broadcast. */
void ek_borrow_expanded(ek_tensor *view, const ek_tensor *x, const ek_shape *shape);

/* ---- results ---- */

/* Makes an uninitialised tensor for an elementwise result, with the operands' common shape and
 * device. It has the memory order of the first dense operand; if none is dense, of the first
 * operand without a zero stride; otherwise it is row-major. y and z may be NULL. */
ek_tensor *ek_result(const ek_tensor *x, const ek_tensor *y, const ek_tensor *z, ek_dtype dtype);

/* Return a new tensor of f(x; a, b) or f(x, y; a), not recorded. x and y have one shape. */
ek_tensor *ek_run_unary(ek_unary op, const ek_tensor *x, double a, double b);
ek_tensor *ek_run_binary(ek_binary op, const ek_tensor *x, const ek_tensor *y, double a);

/* Returns x reduced over the dimensions in the mask, which get size 1, as a new tensor of `dtype`,
 * not recorded. */
ek_tensor *ek_run_reduce(ek_reduce_kind kind, const ek_tensor *x, unsigned mask, ek_dtype dtype);

/* An expression of x and a in differentiable operations. */
typedef ek_tensor *ek_composition(ek_tensor *x, double a);
/* Returns the gradient of x from g, the gradient of composition(x, a). If gradient mode is on, the
 * result is differentiable. For operations that are one kernel and equal a composition. */
ek_tensor *ek_composed_gradient(ek_tensor *g, ek_composition *composition, ek_tensor *x, double a);

/* Returns a tensor filled with a number, without history. */
ek_tensor *ek_filled(ek_dev *dev, ek_dtype dtype, const ek_shape *shape, double value);
/* A scalar of x's device and dtype. */
ek_tensor *ek_number_like(const ek_tensor *x, double value);

/* Returns x as a result, with one more reference in the caller's scope. */
static inline ek_tensor *ek_itself(ek_tensor *x)
{
    return ek_scope_adopt(ek_object_retain(x));
}

/* ---- differentiable operations without a public name ---- */

/* Records y, which has x's elements in another floating dtype, as a result of ek_to_dtype. */
ek_tensor *ek_record_cast(ek_tensor *y, ek_tensor *x);

/* Returns x's shape with size 1 in the mask's dimensions, which are reduced. */
ek_shape ek_reduced_shape(const ek_tensor *x, unsigned mask);
/* Returns y without the dimensions in the mask, which have size 1; with `keepdim` y itself. */
ek_tensor *ek_reduced(ek_tensor *y, unsigned mask, bool keepdim);
/* Returns the sum over the dimensions in the mask `reduced`. Reduced dimensions in `dropped`
 * disappear, other reduced dimensions get size 1. NULL for NULL. */
ek_tensor *ek_sum_mask(ek_tensor *x, unsigned reduced, unsigned dropped);
/* Returns a * x + b, by one kernel. x's dtype holds both numbers. */
ek_tensor *ek_affine(ek_tensor *x, double a, double b);
/* log(1 + e^x), without softplus's threshold. */
ek_tensor *ek_log1p_exp(ek_tensor *x);
/* Returns the largest or smallest element over the dimensions in `mask`, which get size 1. Equal
 * elements share the gradient. */
ek_tensor *ek_extreme(const char *operation, ek_tensor *x, bool largest, unsigned mask);
/* Records y, a new scalar with the value of an element of x that was chosen by order. Elements
 * equal to it share the gradient; if it is NaN, all NaNs do. */
ek_tensor *ek_record_chosen(ek_tensor *y, ek_tensor *x);
/* Returns slope * x where y <= 0, else x (for a NaN y, too). Constant in y. */
ek_tensor *ek_relu_gradient(ek_tensor *x, ek_tensor *y, double slope);
/* Return x * y * (1 - y) for sigmoid, and x * (1 - y^2) for tanh. */
ek_tensor *ek_sigmoid_gradient(ek_tensor *x, ek_tensor *y);
ek_tensor *ek_tanh_gradient(ek_tensor *x, ek_tensor *y);
/* Returns exp(-x^2 / 2) / sqrt(2 pi), the derivative of ek_ndtr. */
ek_tensor *ek_normal_density(ek_tensor *x);
/* Returns max(x, low) with the gradient of x in both cases, as PyTorch clamps without a gradient of
 * the bound. */
ek_tensor *ek_raise_value(ek_tensor *x, double low);
/* x * sign(y). Constant in y. */
ek_tensor *ek_sign_mul(ek_tensor *x, ek_tensor *y);
/* Returns zeros of `shape` with x at elements start, start + step, ... along `dim`: the adjoint of
 * ek_slice. */
ek_tensor *ek_slice_gradient(ek_tensor *x, const ek_shape *shape, int dim, int64_t start,
                             int64_t step);
/* Returns zeros of `shape` to which slice i of x along `dim` is added at index[i]: the adjoint of
 * ek_index_select. */
ek_tensor *ek_index_sum(ek_tensor *x, int dim, ek_tensor *index, const ek_shape *shape);

/* Returns y * (dy - sum(dy * y)) along dim for y = softmax(x): the gradient of x from dy, the
 * gradient of y. Differentiable in dy and y. */
ek_tensor *ek_softmax_gradient(ek_tensor *dy, ek_tensor *y, int dim);

/* The backward of ek_lerp_scalar, with the weight as attribute. */
int ek_lerp_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results);
/* The backwards of x + alpha * y, with the attribute alpha, and of x * y. The latter has saved x
 * and y in this order, each if the other operand wants a gradient. */
int ek_add_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results);
int ek_mul_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results);

/* Copies y's elements to x, which has its shape, between any devices and dtypes. Counts no version
 * and records no history. */
int ek_transfer(ek_tensor *x, const ek_tensor *y);

#endif
