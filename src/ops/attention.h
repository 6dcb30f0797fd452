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
    ek_tensor *all; /* q, k and v are its heads (ek_attention_split); NULL: they aren't. */
} ek_attention_call;

/* Sets q, k and v of a call to the heads (B, H, L, E) of `all` (B, L, 3 H E), which has queries,
 * keys and values side by side. Their gradients will be written to one tensor. Returns false on
 * error, and if `all` is NULL. */
bool ek_attention_split(ek_attention_call *call, ek_tensor *all, int64_t heads);

/* Returns the output (B, H, L, D). If `weights` isn't NULL, *weights becomes the probabilities
 * (B, H, L, S) after dropout, which are then kept in memory with all that leads to them.
 * Differentiable to any order. */
ek_tensor *ek_attention(const char *operation, const ek_attention_call *call, ek_tensor **weights);

#endif
