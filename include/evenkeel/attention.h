/** @file
 * attention.h: attention and what transformers need beside it: embeddings, rotary positions, RMS
 * norm, and transformers as modules. The rules of ops.h hold for functions, those of nn.h for
 * modules. */
#ifndef EVENKEEL_ATTENTION_H
#define EVENKEEL_ATTENTION_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/nn.h"
#include "evenkeel/ops.h"

EK_BEGIN_DECLARATIONS

/* ---- attention ---- */

typedef struct ek_attention_options {
    int begin;            /**< no option, see base.h */
    ek_tensor *q, *k, *v; /**< (..., H, L, E), (..., H, S, E), (..., H, S, D) */
    ek_tensor *mask;      /**< broadcast to (..., H, L, S). bool or u8: not 0 if a query sees a
                             key. Floating: added to the scores. NULL: no mask */
    bool is_causal;       /**< query i sees keys 0 to i; not with a mask */
    double dropout_p;     /**< probabilities are dropped, not only in training */
    double scale EK_IS(EK_UNSET); /**< EK_UNSET: 1 / sqrt(E) */
    bool enable_gqa; /**< k and v may have fewer heads; each is shared by equally many of q's */
} ek_attention_options;
#define EK_DEFAULTS_ek_attention_options EK_DEFAULT(scale, EK_UNSET)
EK_API ek_tensor *ek_f_scaled_dot_product_attention_with(ek_attention_options options);
/** softmax(scale q k' + mask) v, (..., H, L, D). A query that sees no key gets 0. Scores are held a
 * block at a time, so that memory grows with L + S and not with L S. All scores are in memory at
 * once if the mask requires a gradient, or if a Mersenne Twister draws dropout (its numbers are
 * PyTorch's; see random.h for Philox).
 *
 * On a GPU, cuDNN computes large bf16 and f16 attention. It compiles each new shape for about a
 * second. With dropout, a tensor of the scores' size is in memory during each call. Without cuDNN,
 * all scores are in memory at once if they take at most 1/16 of the GPU's free memory (1/16 of its
 * capacity if algorithms must be deterministic), because that is faster. */
#define ek_f_scaled_dot_product_attention(...) \
    EK_CALL_3(ek_f_scaled_dot_product_attention_with, ek_attention_options, q, k, v, __VA_ARGS__)

/* ---- positions ---- */

/** Tables (length, dim / 2) of f32: cos and sin of position / base^(2 i / dim). `base` 0 means
 * 10000. `dim` is even. Returns 0 or a negative status. */
EK_API int ek_rotary_tables(int64_t length, int64_t dim, double base, ek_tensor **cosine,
                            ek_tensor **sine);
typedef enum ek_rotary_pairs {
    EK_ROTARY_HALVES = 0,     /**< pair i: elements i and i + D / 2 */
    EK_ROTARY_INTERLEAVED = 1 /**< pair i: elements 2 i and 2 i + 1 */
} ek_rotary_pairs;
/** Returns x (..., L, D) with pair i of row l rotated by the angle whose cosine and sine are
 * elements (l, i) of the tables. Tables are (L, D / 2), or broadcast with x's other dimensions, and
 * get no gradient. */
EK_API ek_tensor *ek_f_rotary(ek_tensor *x, ek_tensor *cosine, ek_tensor *sine,
                              ek_rotary_pairs pairs);

/* ---- embeddings ---- */

typedef struct ek_embedding_options {
    int begin;         /**< no option, see base.h */
    ek_tensor *weight; /**< (num, dim) */
    ek_tensor *index;  /**< i64 or i32 of any shape */
    /** The row that gets no gradient; EK_UNSET: none. A negative one counts from the end. */
    int64_t padding_idx EK_IS(EK_UNSET);
} ek_embedding_options;
#define EK_DEFAULTS_ek_embedding_options EK_DEFAULT(padding_idx, EK_UNSET)
EK_API ek_tensor *ek_f_embedding_with(ek_embedding_options options);
/** weight[index], of the shape (*index.shape, dim). */
#define ek_f_embedding(...) \
    EK_CALL_2(ek_f_embedding_with, ek_embedding_options, weight, index, __VA_ARGS__)

typedef struct ek_embedding_module_options {
    int begin; /**< no option, see base.h */
    int64_t num, dim;
    /** The row that gets no gradient; EK_UNSET: none. A negative one counts from the end. */
    int64_t padding_idx EK_IS(EK_UNSET);
} ek_embedding_module_options;
#define EK_DEFAULTS_ek_embedding_module_options EK_DEFAULT(padding_idx, EK_UNSET)
EK_API ek_module *ek_embedding_with(ek_embedding_module_options options);
/** ek_embedding(num, dim): normal initial values; the row padding_idx is 0. */
#define ek_embedding(...) \
    EK_CALL_2(ek_embedding_with, ek_embedding_module_options, num, dim, __VA_ARGS__)

/* ---- RMS norm ---- */

/** x / sqrt(mean(x^2) + eps) weight, over the last `normalized_ndim` dimensions. The weight has
 * their shape, or is NULL. eps EK_UNSET means the machine epsilon of x's dtype. */
EK_API ek_tensor *ek_f_rms_norm(ek_tensor *x, int normalized_ndim, ek_tensor *weight, double eps);

typedef struct ek_rms_norm_options {
    int begin; /**< no option, see base.h */
    ek_shape normalized_shape;
    double eps EK_IS(EK_UNSET); /**< EK_UNSET: the machine epsilon of x's dtype */
    bool affine EK_IS(true);    /**< weight of normalized_shape */
} ek_rms_norm_options;
#define EK_DEFAULTS_ek_rms_norm_options EK_DEFAULT(eps, EK_UNSET), EK_DEFAULT(affine, true)
EK_API ek_module *ek_rms_norm_with(ek_rms_norm_options options);
/** ek_rms_norm(EK_SHAPE(512), .eps = 1e-6); .affine = false leaves out the weight. */
#define ek_rms_norm(...) \
    EK_CALL_1(ek_rms_norm_with, ek_rms_norm_options, normalized_shape, __VA_ARGS__)

/* ---- transformers as modules, with PyTorch's names of parameters ----
 *
 * Tensors are (length, batch, features), or with `batch_first` (batch, length, features), or
 * without a batch (length, features). Masks are keyword arguments of a call, with PyTorch's
 * meaning: bool or u8 is not 0 if a query does not see a key, floating numbers are added to the
 * scores. Attention masks are (L, S) or (batch * heads, L, S); padding masks are (batch, S), or (S)
 * without a batch. A flag such as is_causal is ek_value_of_int(1); unlike a mask it needs no
 * memory, and wrappers don't cut it. A query that sees no key gets 0 from attention, where
 * PyTorch 1.13 gives NaN. */

typedef struct ek_multihead_attention_options {
    int begin;                    /**< no option, see base.h */
    int64_t embed_dim, num_heads; /**< embed_dim is a multiple of num_heads */
    double dropout;               /**< probabilities are dropped in training */
    int64_t kdim, vdim;           /**< features of keys and values; 0: embed_dim */
    bool bias EK_IS(true);
    bool batch_first;
    bool is_causal; /**< in every call */
} ek_multihead_attention_options;
#define EK_DEFAULTS_ek_multihead_attention_options EK_DEFAULT(bias, true)
EK_API ek_module *ek_multihead_attention_with(ek_multihead_attention_options options);
/** The module's forward takes query, key and value; keywords attn_mask, key_padding_mask,
 * is_causal, need_weights (off by default, unlike PyTorch's) and average_attn_weights. It returns
 * the output; with need_weights a list of the output and the probabilities, which are (batch, L,
 * S), the mean over heads, or (batch, heads, L, S) if average_attn_weights is 0. Without
 * need_weights the probabilities need no memory, see ek_f_scaled_dot_product_attention. */
#define ek_multihead_attention(...)                                                              \
    EK_CALL_2(ek_multihead_attention_with, ek_multihead_attention_options, embed_dim, num_heads, \
              __VA_ARGS__)

typedef enum ek_transformer_activation {
    EK_TRANSFORMER_RELU = 0,
    EK_TRANSFORMER_GELU = 1
} ek_transformer_activation;

typedef struct ek_transformer_layer_options {
    int begin; /**< no option, see base.h */
    int64_t d_model, nhead;
    int64_t dim_feedforward EK_IS(2048);
    double dropout EK_IS(0.1);
    ek_transformer_activation activation;
    double layer_norm_eps EK_IS(1e-5);
    bool batch_first;
    bool norm_first; /**< norms come before attention and feed-forward, not after */
    bool is_causal;  /**< self-attention is causal in every call */
} ek_transformer_layer_options;
#define EK_DEFAULTS_ek_transformer_layer_options \
    EK_DEFAULT(dim_feedforward, 2048), EK_DEFAULT(dropout, 0.1), EK_DEFAULT(layer_norm_eps, 1e-5)
EK_API ek_module *ek_transformer_encoder_layer_with(ek_transformer_layer_options options);
EK_API ek_module *ek_transformer_decoder_layer_with(ek_transformer_layer_options options);
#define EK_TRANSFORMER_LAYER_CALL(function, ...) \
    EK_CALL_2(function, ek_transformer_layer_options, d_model, nhead, __VA_ARGS__)
/** The module's forward takes src; keywords src_mask, src_key_padding_mask, is_causal. */
#define ek_transformer_encoder_layer(...) \
    EK_TRANSFORMER_LAYER_CALL(ek_transformer_encoder_layer_with, __VA_ARGS__)
/** The module's forward takes tgt and memory; keywords tgt_mask, memory_mask,
 * tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal, memory_is_causal. */
#define ek_transformer_decoder_layer(...) \
    EK_TRANSFORMER_LAYER_CALL(ek_transformer_decoder_layer_with, __VA_ARGS__)

typedef struct ek_transformer_stack_options {
    int begin; /**< no option, see base.h */
    ek_module *layer;
    int num_layers;
    ek_module *norm;
} ek_transformer_stack_options;
#define EK_DEFAULTS_ek_transformer_stack_options EK_NO_DEFAULTS
EK_API ek_module *ek_transformer_encoder_with(ek_transformer_stack_options options);
EK_API ek_module *ek_transformer_decoder_with(ek_transformer_stack_options options);
/** Encoder and decoder take ownership of `layer` and `norm`, also on an error. `layer` is the first
 * of `num_layers`; the others begin as copies of it. `norm` follows the last layer; NULL: no norm.
 */
/** The encoder's forward takes src; keywords mask, src_key_padding_mask, is_causal. */
#define ek_transformer_encoder(...)                                                         \
    EK_CALL_2(ek_transformer_encoder_with, ek_transformer_stack_options, layer, num_layers, \
              __VA_ARGS__)
/** The decoder's forward takes tgt and memory, and the keywords of its layers. */
#define ek_transformer_decoder(...)                                                         \
    EK_CALL_2(ek_transformer_decoder_with, ek_transformer_stack_options, layer, num_layers, \
              __VA_ARGS__)

typedef struct ek_transformer_options {
    int begin; /**< no option, see base.h */
    int64_t d_model EK_IS(512);
    int64_t nhead EK_IS(8);
    int num_encoder_layers EK_IS(6);
    int num_decoder_layers EK_IS(6);
    int64_t dim_feedforward EK_IS(2048);
    double dropout EK_IS(0.1);
    ek_transformer_activation activation;
    double layer_norm_eps EK_IS(1e-5);
    bool batch_first, norm_first;
} ek_transformer_options;
#define EK_DEFAULTS_ek_transformer_options                                             \
    EK_DEFAULT(d_model, 512), EK_DEFAULT(nhead, 8), EK_DEFAULT(num_encoder_layers, 6), \
        EK_DEFAULT(num_decoder_layers, 6), EK_DEFAULT(dim_feedforward, 2048),          \
        EK_DEFAULT(dropout, 0.1), EK_DEFAULT(layer_norm_eps, 1e-5)
EK_API ek_module *ek_transformer_with(ek_transformer_options options);
/** The module's forward takes src and tgt; keywords src_mask, tgt_mask, memory_mask,
 * src_key_padding_mask, tgt_key_padding_mask, memory_key_padding_mask, src_is_causal,
 * tgt_is_causal, memory_is_causal. Initial matrices are xavier-uniform. */
#define ek_transformer(...) \
    EK_CALL_2(ek_transformer_with, ek_transformer_options, d_model, nhead, __VA_ARGS__)

EK_END_DECLARATIONS
#endif
