/* basic.c: the differentiable operations that the engine itself is made of. */
#include "autograd/basic.h"

#include "kernels/kernels.h"

static int add_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    for (int i = 0; i < 2; i++)
        if (ek_node_needs(node, i))
            results[i] = gradients[0];
    return 0;
}

static const ek_operation add_operation = {.name = "gradient sum", .backward = add_backward};

ek_tensor *ek_fold_add(ek_tensor *x, ek_tensor *y)
{
    if (!x || !y)
        return NULL;
    /* A broadcast gradient (zero strides) is no model for the sum's memory. */
    ek_tensor *sum = ek_tensor_like(ek_is_dense(x) ? x : y);
    if (!sum || ek_kernels_of(sum)->binary(ek_tensor_dev(sum), EK_BINARY_ADD, sum, x, y, 1) < 0)
        return NULL;
    return EK_RECORD(sum, &add_operation, EK_INPUTS(x, y));
}

static int identity_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    (void)node;
    results[0] = gradients[0];
    return 0;
}

static const ek_operation copy_operation = {.name = "gradient copy", .backward = identity_backward};

ek_tensor *ek_fold_copy(ek_tensor *x, const ek_tensor *like)
{
    if (!x)
        return NULL;
    ek_tensor *copy = ek_tensor_like(like);
    if (!copy || ek_kernels_of(copy)->copy(ek_tensor_dev(copy), copy, x) < 0)
        return NULL;
    return EK_RECORD(copy, &copy_operation, EK_INPUTS(x));
}

static int cast_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    results[0] = ek_fold_cast(gradients[0], *(const ek_dtype *)ek_node_attributes(node));
    return 0;
}

static const ek_operation cast_operation = {.name = "gradient cast", .backward = cast_backward};

ek_tensor *ek_fold_cast(ek_tensor *x, ek_dtype dtype)
{
    if (!x || x->dtype == dtype)
        return x;
    ek_dtype before = x->dtype;
    ek_tensor *y = ek_tensor_like_dtype(x, dtype);
    if (!y || ek_kernels_of(y)->copy(ek_tensor_dev(y), y, x) < 0)
        return NULL;
    return EK_RECORD(y, &cast_operation, EK_INPUTS(x), EK_ATTRIBUTES(before));
}

static const ek_operation alias_operation = {.name = "saved leaf", .backward = identity_backward};

ek_tensor *ek_fold_alias(const ek_tensor *storage, ek_tensor *leaf)
{
    return EK_RECORD(ek_tensor_alias(storage), &alias_operation, EK_INPUTS(leaf));
}
