/* stage_attention.c: attention.h: attention, positions, embeddings, and transformers; GPT-2. */
#include "evenkeel/attention.h"
#include "evenkeel/models.h"

#include "rows.h"

static ek_tensor *rotary(ek_tensor *x)
{
    ek_tensor *cosine, *sine;
    if (ek_rotary_tables(3, 4, 0, &cosine, &sine) < 0)
        return NULL;
    cosine = ek_to_device(cosine, ek_host(0));
    sine = ek_to_device(sine, ek_host(0));
    return ek_f_rotary(x, cosine, sine, EK_ROTARY_INTERLEAVED);
}

/* Calls the module, which may be NULL, on one tensor or two, and frees it. */
static ek_tensor *attention_call(ek_module *module, ek_tensor *x, ek_tensor *y, ek_value keywords)
{
    ek_value z = ek_value_error();
    if (module && ek_module_to_device(module, ek_host(0)) >= 0) {
        ek_module_train(module, false);
        z = y ? ek_forward_kw(module, keywords, x, y) : ek_forward_kw(module, keywords, x);
    }
    ek_tensor *out =
        z.kind == EK_VALUE_TENSOR && fault_note_parameters(module) >= 0 ? ek_value_tensor(z) : NULL;
    ek_module_free(module);
    return out;
}

/* Three inputs, and weights. */
static ek_tensor *multihead(ek_tensor *x, ek_tensor *mask)
{
    ek_module *module = ek_multihead_attention(4, 2);
    const ek_value_entry entries[] = {{"attn_mask", ek_value_of_tensor(mask)},
                                      {"need_weights", ek_value_of_int(1)}};
    ek_value y = ek_value_error();
    if (module && ek_module_to_device(module, ek_host(0)) >= 0)
        y = ek_forward_kw(module, ek_value_dict(entries, 2), x, x, x);
    ek_tensor *out = y.kind == EK_VALUE_LIST ? ek_value_tensor(ek_value_at(y, 0)) : NULL;
    ek_module_free(module);
    return out;
}

static ek_value causal(const char *name)
{
    return ek_value_dict(&(ek_value_entry){name, ek_value_of_int(1)}, 1);
}

#define WIDTH 4, 2, .dim_feedforward = 3
#define ATTENTION(X)                                                                            \
    X(attention, "f1x2x3x2 f1x1x4x2 f1x1x4x3",                                                  \
      ek_f_scaled_dot_product_attention(x[0], x[1], x[2], .enable_gqa = true))                  \
    X(attention_mask, "f2x3x2 f2x4x2 f2x4x2 b3x4",                                              \
      ek_f_scaled_dot_product_attention(x[0], x[1], x[2], .mask = x[3], .dropout_p = 0.25))     \
    X(attention_bias, "f2x3x2 f2x4x2 f2x4x2 f3x4",                                              \
      ek_f_scaled_dot_product_attention(x[0], x[1], x[2], .mask = x[3]))                        \
    X(rotary, "f2x3x4", rotary(x[0]))                                                           \
    X(rms_norm, "f2x3 f3", ek_f_rms_norm(x[0], 1, x[1], EK_UNSET))                              \
    X(rms_norm_module, "f2x3",                                                                  \
      attention_call(ek_rms_norm(EK_SHAPE(3)), x[0], NULL, ek_value_none()))                    \
    X(embedding, "f3x2 i2x2", ek_f_embedding(x[0], x[1], .padding_idx = 1))                     \
    X(embedding_module, "i4",                                                                   \
      attention_call(ek_embedding(3, 2, .padding_idx = 0), x[0], NULL, ek_value_none()))        \
    X(multihead, "f3x2x4 b3x3", multihead(x[0], x[1]))                                          \
    X(encoder, "f3x2x4",                                                                        \
      attention_call(ek_transformer_encoder(ek_transformer_encoder_layer(WIDTH), 2,             \
                                            .norm = ek_layer_norm(EK_SHAPE(4))),                \
                     x[0], NULL, causal("is_causal")))                                          \
    X(decoder, "f3x2x4 f2x2x4",                                                                 \
      attention_call(                                                                           \
          ek_transformer_decoder(ek_transformer_decoder_layer(WIDTH, .norm_first = true), 1),   \
          x[0], x[1], causal("tgt_is_causal")))                                                 \
    X(gpt2, "i2x3",                                                                             \
      attention_call(ek_gpt2(3, .context = 4, .width = 4, .layers = 1, .heads = 2), x[0], NULL, \
                     ek_value_none()))                                                          \
    X(transformer, "f2x2x4 f3x2x4",                                                             \
      attention_call(ek_transformer(4, 2, .num_encoder_layers = 1, .num_decoder_layers = 1,     \
                                    .dim_feedforward = 3),                                      \
                     x[0], x[1], ek_value_none()))

ROWS_STAGE(attention, ATTENTION);
