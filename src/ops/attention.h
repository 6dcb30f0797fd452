/* attention.h: attention over heads, for modules. */
#ifndef EK_OPS_ATTENTION_H
#define EK_OPS_ATTENTION_H

#include "evenkeel/attention.h"

/* Returns a mask as numbers of `dtype` that are added to scores; NULL for NULL. A floating mask
 * holds these numbers already. In a mask of bool or u8, elements that aren't 0 (with `inverted`:
 * elements that are 0) take part. They become 0, other elements -inf. */
ek_tensor *ek_attention_bias(const char *operation, ek_tensor *mask, ek_dtype dtype, bool inverted);

typedef struct ek_attention_call {
    ek_tensor *q, *k, *v; /* (B, H, L, E), (B, G, S, E), (B, G, S, D) */
    ek_tensor *mask;      /* floating, broadcast to (B, H, L, S); or NULL */
    bool causal;
    double dropout_p, scale;
} ek_attention_call;

/* Returns the output (B, H, L, D). If `weights` isn't NULL, *weights becomes the probabilities
 * (B, H, L, S) after dropout, which are then kept in memory with all that leads to them.
 * Differentiable to any order. */
ek_tensor *ek_attention(const char *operation, const ek_attention_call *call, ek_tensor **weights);

#endif
