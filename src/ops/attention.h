/* attention.h: attention over heads, for modules. */
#ifndef EK_OPS_ATTENTION_H
#define EK_OPS_ATTENTION_H

#include "evenkeel/attention.h"

/* Returns a mask as numbers of `dtype` that are added to scores; NULL for NULL. A floating mask has
 * such numbers already. In a mask of bool or u8 an element takes part if it isn't 0, with
 * `inverted` if it is 0; elements that take part become 0, others -inf. */
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
