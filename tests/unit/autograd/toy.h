/* toy.h: a few differentiable operations for the tests of autograd, made from kernels alone. */
#ifndef EK_TESTS_TOY_H
#define EK_TESTS_TOY_H

#include <unistd.h>

#include "autograd/graph.h"
#include "core/worker.h"
#include "kernels/kernels.h"
#include "unit.h"

/* ---- x y ---- */

static inline ek_tensor *toy_mul(ek_tensor *x, ek_tensor *y);

static inline int toy_mul_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    for (int i = 0; i < 2; i++)
        if (ek_node_needs(node, i))
            results[i] = toy_mul(gradients[0], ek_node_saved(node, 1 - i));
    return 0;
}

static inline ek_tensor *toy_mul(ek_tensor *x, ek_tensor *y)
{
    static const ek_operation operation = {.name = "toy_mul", .backward = toy_mul_backward};
    if (!x || !y)
        return NULL;
    ek_tensor *z = ek_tensor_like(x);
    if (!z || ek_kernels_of(z)->binary(ek_tensor_dev(z), EK_BINARY_MUL, z, x, y, 1) < 0)
        return NULL;
    return EK_RECORD(z, &operation, EK_INPUTS(x, y), EK_SAVED(x, y));
}

/* ---- exp x, which saves its output; and counts how often its backward runs ---- */

static atomic_int toy_exp_runs;

static inline int toy_exp_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    atomic_fetch_add(&toy_exp_runs, 1);
    results[0] = toy_mul(gradients[0], ek_node_saved(node, 0));
    return 0;
}

static inline ek_tensor *toy_exp(ek_tensor *x)
{
    static const ek_operation operation = {.name = "toy_exp", .backward = toy_exp_backward};
    ek_tensor *y = x ? ek_tensor_like(x) : NULL;
    if (!y || ek_kernels_of(y)->unary(ek_tensor_dev(y), EK_UNARY_EXP, y, x, 0, 0) < 0)
        return NULL;
    return EK_RECORD(y, &operation, EK_INPUTS(x), EK_SAVED(y));
}

/* ---- c x, which saves nothing; in place too ---- */

static inline ek_tensor *toy_scale(ek_tensor *x, double factor);

static inline int toy_scale_backward(ek_node *node, ek_tensor *const *gradients,
                                     ek_tensor **results)
{
    const double *factor = ek_node_attributes(node);
    results[0] = toy_scale(gradients[0], *factor);
    return 0;
}

static const ek_operation toy_scale_operation = {.name = "toy_scale",
                                                 .backward = toy_scale_backward};

static inline ek_tensor *toy_scale(ek_tensor *x, double factor)
{
    ek_tensor *y = x ? ek_tensor_like(x) : NULL;
    if (!y || ek_kernels_of(y)->unary(ek_tensor_dev(y), EK_UNARY_AFFINE, y, x, factor, 0) < 0)
        return NULL;
    return EK_RECORD(y, &toy_scale_operation, EK_INPUTS(x), EK_ATTRIBUTES(factor));
}

static inline ek_tensor *toy_scale_(ek_tensor *x, double factor)
{
    static const ek_operation operation = {.name = "toy_scale_", .backward = toy_scale_backward};
    if (!x || ek_check_in_place("toy_scale_", x) < 0 ||
        ek_kernels_of(x)->unary(ek_tensor_dev(x), EK_UNARY_AFFINE, x, x, factor, 0) < 0)
        return NULL;
    ek_tensor_written(x, "toy_scale_");
    return ek_record_in_place(x, &operation,
                              &(ek_record_options){EK_INPUTS(x), EK_ATTRIBUTES(factor)});
}

/* ---- the sum of all elements, and its adjoint ---- */

static inline ek_tensor *toy_sum(ek_tensor *x);
static inline ek_tensor *toy_spread(ek_tensor *x, ek_shape shape);

static inline int toy_sum_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_shape *shape = ek_node_attributes(node);
    results[0] = toy_spread(gradients[0], *shape);
    return 0;
}

static inline int toy_spread_backward(ek_node *node, ek_tensor *const *gradients,
                                      ek_tensor **results)
{
    results[0] = toy_sum(gradients[0]);
    return 0;
}

static inline ek_tensor *toy_sum(ek_tensor *x)
{
    static const ek_operation operation = {.name = "toy_sum", .backward = toy_sum_backward};
    if (!x)
        return NULL;
    ek_shape shape = ek_tensor_shape(x), scalar = ek_scalar_shape();
    ek_shape kept = shape;
    for (int i = 0; i < kept.ndim; i++)
        kept.dims[i] = 1;
    ek_tensor *y = ek_tensor_new(ek_tensor_dev(x), x->dtype, &scalar, EK_CONTIGUOUS);
    ek_tensor *wide =
        y ? ek_tensor_member(y->storage, y->dtype, &kept, (const int64_t[EK_MAX_DIMS]){0}, 0)
          : NULL;
    if (!wide || ek_kernels_of(x)->reduce(ek_tensor_dev(x), EK_REDUCE_SUM, wide, x) < 0)
        return NULL;
    return EK_RECORD(y, &operation, EK_INPUTS(x), EK_ATTRIBUTES(shape));
}

/* A scalar as a view of any shape with strides of zero. */
static inline ek_tensor *toy_spread(ek_tensor *x, ek_shape shape)
{
    static const ek_operation operation = {.name = "toy_spread", .backward = toy_spread_backward};
    static const int64_t none[EK_MAX_DIMS];
    ek_tensor *y = x ? ek_tensor_view(x, shape.ndim, shape.dims, none, x->offset) : NULL;
    return EK_RECORD(y, &operation, EK_INPUTS(x));
}

/* ---- a copy on another device; naps in backward to shuffle arrivals ---- */

static inline ek_tensor *toy_to(ek_tensor *x, ek_dev *dev, unsigned nap_us);

typedef struct toy_move {
    ek_dev *from;
    unsigned nap_us;
} toy_move;

static inline int toy_to_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const toy_move *move = ek_node_attributes(node);
    if (move->nap_us)
        usleep(move->nap_us);
    results[0] = toy_to(gradients[0], move->from, 0);
    return 0;
}

static inline ek_tensor *toy_to(ek_tensor *x, ek_dev *dev, unsigned nap_us)
{
    static const ek_operation operation = {.name = "toy_to", .backward = toy_to_backward};
    if (!x)
        return NULL;
    ek_shape shape = ek_tensor_shape(x);
    ek_tensor *y = ek_tensor_new_strided(dev, x->dtype, &shape, x->stride);
    if (!y || ek_dev_copy(dev, ek_tensor_address(y), ek_tensor_dev(x), ek_tensor_address(x),
                          (size_t)ek_count(x) * ek_dtype_size(x->dtype)) < 0)
        return NULL;
    toy_move move = {ek_tensor_dev(x), nap_us};
    return EK_RECORD(y, &operation, EK_INPUTS(x), EK_ATTRIBUTES(move));
}

/* ---- one input, a copy on each of several devices: one node ---- */

static int toy_broadcast_missing; /* how many gradients of the last broadcast did not arrive */

static inline int toy_broadcast_backward(ek_node *node, ek_tensor *const *gradients,
                                         ek_tensor **results)
{
    ek_dev *const *home = ek_node_attributes(node);
    toy_broadcast_missing = 0;
    for (int i = 0; i < ek_node_output_count(node); i++) {
        toy_broadcast_missing += !gradients[i];
        if (!gradients[i])
            continue;
        ek_tensor *here = toy_to(gradients[i], *home, 0);
        results[0] = results[0] ? ek_fold_add(results[0], here) : here;
    }
    return 0;
}

static inline int toy_broadcast(ek_tensor *x, ek_dev *const *devs, int count, ek_tensor **copies)
{
    static const ek_operation operation = {.name = "toy_broadcast",
                                           .backward = toy_broadcast_backward,
                                           .urgent = true};
    bool enabled = ek_set_grad_enabled(false);
    for (int i = 0; i < count; i++)
        copies[i] = toy_to(x, devs[i], 0);
    ek_set_grad_enabled(enabled);
    ek_dev *home = ek_tensor_dev(x);
    return ek_record_outputs(copies, count, &operation,
                             &(ek_record_options){EK_INPUTS(x), EK_ATTRIBUTES(home)});
}

/* ---- x itself, whose backward fails in one of several ways ---- */

typedef enum toy_failure {
    TOY_FAIL_STATUS, /* with a sentence */
    TOY_FAIL_SILENT, /* a status alone */
    TOY_FAIL_NULL,   /* 0, with an error pending */
    TOY_FAIL_SHAPE,  /* a gradient that doesn't fit */
} toy_failure;

static inline int toy_fail_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    switch (*(const toy_failure *)ek_node_attributes(node)) {
    case TOY_FAIL_STATUS:
        return ek_error(EK_E_USER, "the toy is broken");
    case TOY_FAIL_SILENT:
        return EK_E_BACKEND;
    case TOY_FAIL_NULL:
        ek_error(EK_E_USER, "the toy gave nothing");
        return 0;
    case TOY_FAIL_SHAPE:
        break;
    }
    results[0] = toy_spread(toy_sum(gradients[0]), EK_SHAPE(7, 7));
    return 0;
}

static inline ek_tensor *toy_fail(ek_tensor *x, toy_failure failure)
{
    static const ek_operation operation = {.name = "toy_fail", .backward = toy_fail_backward};
    ek_tensor *y = x ? ek_fold_copy(ek_detach(x), x) : NULL;
    return EK_RECORD(y, &operation, EK_INPUTS(x), EK_ATTRIBUTES(failure));
}

/* ---- shorthands ---- */

/* f64, all elements equal */
static inline ek_tensor *toy_full(double value, ek_shape shape, ek_device device)
{
    ek_tensor *x = ek_empty(shape, .dtype = EK_F64, .device = device);
    assert_made(x);
    assert_ok(ek_kernels_of(x)->fill(ek_tensor_dev(x), x, value));
    return x;
}

static inline ek_tensor *toy_leaf(const double *values, int64_t count, ek_device device)
{
    ek_tensor *x = tensor_of(values, EK_SHAPE(count), EK_F64, device);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    return x;
}

static inline ek_tensor *toy_grad(ek_tensor *y, ek_tensor *x, bool create_graph)
{
    ek_tensor *gradient;
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &gradient, .create_graph = create_graph));
    return gradient;
}

static inline ek_memory_stats toy_memory(ek_device device)
{
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(device, &stats));
    return stats;
}

#endif
