/* attention_second.h: functions that attention and the derivatives of its gradients share. */
#ifndef EK_OPS_ATTENTION_SECOND_H
#define EK_OPS_ATTENTION_SECOND_H

#include "core/draw.h"
#include "ops/ops.h"

typedef struct ek_attention_attributes {
    double scale;
    bool causal;
    bool drops;
    ek_draw draw;
    int64_t heads; /* The heads of one input with queries, keys and values; 0: three inputs. */
} ek_attention_attributes;

static inline ek_tensor *ek_attention_product(ek_tensor *x, ek_tensor *y)
{
    return x && y ? ek_matmul(x, y) : NULL;
}

static inline ek_tensor *ek_attention_transposed(ek_tensor *x)
{
    return x ? ek_transpose(x, -2, -1) : NULL;
}

/* Repeats every group of k (B, G, S, E) for each head of the group: (B, H, S, E). */
ek_tensor *ek_attention_repeated(ek_tensor *k, int64_t heads);

/* Returns the probabilities of the rows of q, the first of which is row `row` of the queries. k has
 * keys for every head. If a mask makes all scores of a row -inf, its probabilities are 0. */
ek_tensor *ek_attention_softmax(ek_tensor *q, ek_tensor *k, ek_tensor *mask, bool causal,
                                double scale, int64_t row);

/* The backward of the gradients' operation. Inputs dout, q, k, v; saved dout, q, k, v, mask. */
int ek_attention_gradient_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results);

#endif
