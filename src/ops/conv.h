/* conv.h: convolution's three operations, each the others' derivative. */
#ifndef EK_OPS_CONV_H
#define EK_OPS_CONV_H

#include "autograd/graph.h"
#include "kernels/kernels.h"

/* The operations under one public name, as errors show them. */
typedef struct ek_conv_family {
    const char *name;
    int dims; /* of x, behind (N, C) */
    bool transposed;
    ek_operation forward, input_gradient, weight_gradient;
} ek_conv_family;

/* Shapes of a convolution from x to y. Of one dimension: lifted to two. */
typedef struct ek_conv_attributes {
    const ek_conv_family *family;
    ek_conv_params params;
    ek_shape x, w, y;
} ek_conv_attributes;

/* y from x and w. bias (O) may be NULL. */
ek_tensor *ek_conv_forward(ek_tensor *x, ek_tensor *w, ek_tensor *bias,
                           const ek_conv_attributes *attributes);

/* x from dy and w. bias (C), which is added to x, may be NULL. */
ek_tensor *ek_conv_input_gradient(ek_tensor *dy, ek_tensor *w, ek_tensor *bias,
                                  const ek_conv_attributes *attributes);

/* *result is the weight's gradient, written to `dw` if that is given, else to a new tensor. If
 * `dbias` is given, the bias's is made in the same pass: in *dbias, or a new tensor where that is
 * NULL. */
int ek_conv_weight_gradient(ek_tensor *x, ek_tensor *dy, const ek_conv_attributes *attributes,
                            ek_tensor *dw, ek_tensor **dbias, ek_tensor **result);

/* What the operations of every family have as backward. */
int ek_conv_forward_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results);
int ek_conv_input_gradient_backward(ek_node *node, ek_tensor *const *gradients,
                                    ek_tensor **results);
int ek_conv_weight_gradient_backward(ek_node *node, ek_tensor *const *gradients,
                                     ek_tensor **results);

#endif
