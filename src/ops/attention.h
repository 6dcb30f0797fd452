/* attention.h: attention of heads, for the modules that are made of it. */
#ifndef EK_OPS_ATTENTION_H
#define EK_OPS_ATTENTION_H

#include "evenkeel/attention.h"

/* Adds masks: `mask` is NULL, a tensor of bool or u8, or floating numbers that are added to scores.
 * Returns such numbers in `dtype`, and NULL for NULL. bool and u8 become 0 and -inf: an element
 * takes part if it is not 0, or with `inverted` if it is 0. The one place that knows which dtypes
 * masks have. */
ek_tensor *ek_attention_bias(const char *operation, ek_tensor *mask, ek_dtype dtype, bool inverted);

typedef struct ek_attention_call {
    ek_tensor *q, *k, *v; /* (B, H, L, E), (B, G, S, E), (B, G, S, D) */
    ek_tensor *mask;      /* floating, broadcast to (B, H, L, S); or NULL */
    bool causal;
    double dropout_p, scale;
} ek_attention_call;

/* The output (B, H, L, D). With `weights`, also the probabilities (B, H, L, S) after dropout; they
 * and all that leads to them are then kept in memory. Differentiable to any order. */
ek_tensor *ek_attention(const char *operation, const ek_attention_call *call, ek_tensor **weights);

#endif
