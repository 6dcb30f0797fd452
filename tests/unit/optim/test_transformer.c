/* test_transformer.c: attention, encoders, decoders and transformers as modules: PyTorch's initial
 * values, outputs, gradients and training. */
#include "core/tensor.h"
#include "nn/module_table.h"
#include "unit.h"

enum { D = 8, H = 2, STEPS = 20 };

/* How a case calls its module. */
typedef enum call_kind { ITSELF, PAIR, ONE, TWO, REVERSED } call_kind;

typedef struct model_case {
    const char *name;
    call_kind kind;
    ek_module *(*make)(void);
} model_case;

#define MODEL(name, ...)                \
    static ek_module *make_##name(void) \
    {                                   \
        return __VA_ARGS__;             \
    }
#define SMALL D, H, .dim_feedforward = 16
#define FIRST .activation = EK_TRANSFORMER_GELU, .norm_first = true, .batch_first = true

MODEL(mha, ek_multihead_attention(D, H, .dropout = 0.1))
MODEL(mha_kv, ek_multihead_attention(D, H, .kdim = 6, .vdim = 6, .batch_first = true))
MODEL(mha_bare, ek_multihead_attention(D, H, .bias = false))
MODEL(mha_alone, ek_multihead_attention(D, H, .batch_first = true))
MODEL(encoder_layer, ek_transformer_encoder_layer(SMALL))
MODEL(encoder_layer_first, ek_transformer_encoder_layer(SMALL, FIRST))
MODEL(decoder_layer, ek_transformer_decoder_layer(SMALL, .layer_norm_eps = 1e-3))
MODEL(decoder_layer_first, ek_transformer_decoder_layer(SMALL, FIRST, .dropout = 0.2))
MODEL(encoder, ek_transformer_encoder(ek_transformer_encoder_layer(SMALL), 2,
                                      .norm = ek_layer_norm(EK_SHAPE(D))))
MODEL(decoder, ek_transformer_decoder(ek_transformer_decoder_layer(SMALL, .dropout = 0), 2))
MODEL(transformer,
      ek_transformer(D, H, .num_encoder_layers = 2, .num_decoder_layers = 2, .dim_feedforward = 16))
MODEL(transformer_first, ek_transformer(D, H, .num_encoder_layers = 1, .num_decoder_layers = 2,
                                        .dim_feedforward = 16, FIRST))

static const model_case cases[] = {
    {"mha", ITSELF, make_mha},
    {"mha_kv", PAIR, make_mha_kv},
    {"mha_bare", ITSELF, make_mha_bare},
    {"mha_alone", ITSELF, make_mha_alone},
    {"encoder_layer", ONE, make_encoder_layer},
    {"encoder_layer_first", ONE, make_encoder_layer_first},
    {"decoder_layer", TWO, make_decoder_layer},
    {"decoder_layer_first", TWO, make_decoder_layer_first},
    {"encoder", ONE, make_encoder},
    {"decoder", TWO, make_decoder},
    {"transformer", REVERSED, make_transformer},
    {"transformer_first", REVERSED, make_transformer_first},
};
enum { CASES = sizeof cases / sizeof *cases };

static const char *case_key(const model_case *c, const char *key)
{
    static char text[96];
    snprintf(text, sizeof text, "%s/%s", c->name, key);
    return text;
}

/* NULL if the case has none. */
static ek_tensor *of_case(const model_case *c, const char *key, ek_dtype dtype)
{
    if (!golden_has("transformer.golden", case_key(c, key)))
        return NULL;
    ek_tensor *x = golden("transformer.golden", case_key(c, key));
    return ek_dtype_is_floating(x->dtype) ? ek_to_dtype(x, dtype) : x;
}

/* All parameters, one after the other. */
static ek_tensor *joined(ek_module *module)
{
    ek_tensor_list list = {0};
    assert_ok(ek_module_collect(module, true, false, &list));
    ek_tensor *flat[128];
    ck_assert_int_lt(list.count, 128);
    for (int i = 0; i < list.count; i++)
        flat[i] = ek_reshape(ek_detach(list.tensors[i]), EK_SHAPE(-1));
    ek_tensor *all = ek_cat(flat, list.count, 0);
    ek_tensor_list_clear(&list);
    return all;
}

static ek_value keywords_of(const model_case *c, ek_dtype dtype)
{
    static const char *const names[] = {"attn_mask",
                                        "key_padding_mask",
                                        "src_mask",
                                        "mask",
                                        "src_key_padding_mask",
                                        "tgt_mask",
                                        "tgt_key_padding_mask",
                                        "memory_key_padding_mask"};
    ek_value_entry entries[8];
    int count = 0;
    for (int i = 0; i < 8; i++) {
        ek_tensor *mask = of_case(c, names[i], dtype);
        if (mask)
            entries[count++] = (ek_value_entry){names[i], ek_value_of_tensor(mask)};
    }
    return count > 0 ? ek_value_dict(entries, count) : ek_value_none();
}

static ek_tensor *call(const model_case *c, ek_module *m, ek_tensor *x, ek_tensor *y,
                       ek_value keywords)
{
    switch (c->kind) {
    case ITSELF:
        return ek_value_tensor(ek_forward_kw(m, keywords, x, x, x));
    case PAIR:
        return ek_value_tensor(ek_forward_kw(m, keywords, x, y, y));
    case ONE:
        return ek_value_tensor(ek_forward_kw(m, keywords, x));
    case TWO:
        return ek_value_tensor(ek_forward_kw(m, keywords, x, y));
    default:
        return ek_value_tensor(ek_forward_kw(m, keywords, y, x));
    }
}

static ek_tensor *input(const model_case *c, const char *key, ek_dtype dtype)
{
    ek_tensor *x = of_case(c, key, dtype);
    x = x ? ek_detach(ek_clone(x)) : NULL;
    if (x)
        assert_ok(ek_tensor_set_requires_grad(x, true));
    return x;
}

static void check_case(const model_case *c, ek_dtype dtype)
{
    const double near = dtype == EK_F64 ? 1e-10 : 2e-4;
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(3);
    ek_module *m = c->make();
    assert_made(m);
    assert_close(joined(m), of_case(c, "first", EK_F32), 0, 0);
    assert_ok(ek_module_to_dtype(m, dtype));
    ek_tensor *x = input(c, "x", dtype), *memory = input(c, "memory", dtype);
    ek_tensor *target = of_case(c, "target", dtype), *losses = of_case(c, "loss", EK_F64);
    ek_value keywords = keywords_of(c, dtype);
    ek_module_train(m, false);
    assert_close(call(c, m, x, memory, keywords), of_case(c, "eval", dtype), near, near);
    ek_module_train(m, true);
    ek_manual_seed(4);
    ek_optimizer *optimizer = ek_sgd(m, .lr = 0.1, .momentum = 0.9);
    for (int step = 0; step < STEPS; step++) {
        ek_scope one = ek_scope_begin();
        ek_module_zero_grad(m);
        ek_tensor *y = call(c, m, x, memory, keywords);
        if (!y)
            ck_abort_msg("%s: %s", c->name, ek_error_message());
        ek_tensor *loss = ek_f_mse_loss(y, target);
        assert_ok(ek_backward(loss));
        if (step == 0) {
            assert_close(y, of_case(c, "y", dtype), near, near);
            assert_close(ek_tensor_grad(x), of_case(c, "dx", dtype), near, near);
            if (memory)
                assert_close(ek_tensor_grad(memory), of_case(c, "dmemory", dtype), near, near);
        }
        ck_assert_double_eq_tol(element(loss, 0), element(losses, step), near);
        assert_ok(ek_step(optimizer));
        ek_scope_end(&one);
    }
    assert_close(joined(m), of_case(c, "last", dtype), near, near);
    ek_optimizer_free(optimizer);
    ek_module_free(m);
    ek_scope_end(&scope);
}

TEST(modules_train_as_pytorchs_in_f64)
{
    for (int i = 0; i < CASES; i++)
        check_case(&cases[i], EK_F64);
}

TEST(modules_train_as_pytorchs_in_f32)
{
    for (int i = 0; i < CASES; i++)
        check_case(&cases[i], EK_F32);
}

TEST(attention_gives_probabilities)
{
    ek_manual_seed(3);
    ek_module *m = ek_multihead_attention(D, H);
    assert_ok(ek_module_to_dtype(m, EK_F64));
    ek_tensor *x = golden("transformer.golden", "mha/x"), *mask = ek_zeros(EK_SHAPE(3, 5), EK_U8);
    ek_fill_(ek_narrow(ek_select(mask, 0, 0), 0, 4, 1), 1);
    ek_fill_(ek_narrow(ek_select(mask, 0, 2), 0, 3, 2), 1);
    ek_value_entry entries[] = {{"key_padding_mask", ek_value_of_tensor(mask)},
                                {"need_weights", ek_value_of_int(1)},
                                {"average_attn_weights", ek_value_of_int(0)}};
    ek_value pair = ek_forward_kw(m, ek_value_dict(entries, 2), x, x, x);
    ek_tensor *wanted = golden("transformer.golden", "mha/weights");
    assert_close(ek_value_tensor(ek_value_at(pair, 1)), wanted, 1e-12, 1e-12);
    ek_tensor *plain = ek_value_tensor(ek_forward_kw(m, ek_value_dict(entries, 1), x, x, x));
    assert_close(ek_value_tensor(ek_value_at(pair, 0)), plain, 1e-12, 1e-12);
    pair = ek_forward_kw(m, ek_value_dict(entries, 3), x, x, x);
    ek_tensor *each = ek_value_tensor(ek_value_at(pair, 1));
    ck_assert_int_eq(ek_tensor_ndim(each), 4);
    assert_close(ek_mean(each, EK_DIMS(1)), wanted, 1e-12, 1e-12);
    ek_module_free(m);
}

/* A flag is a mask that needs no memory. */
TEST(a_causal_flag_is_a_causal_mask)
{
    ek_manual_seed(3);
    ek_module *m = make_encoder();
    ek_module_train(m, false);
    ek_tensor *x = ek_to_dtype(golden("transformer.golden", "encoder/x"), EK_F32);
    ek_tensor *mask = ek_to_dtype(golden("transformer.golden", "encoder/mask"), EK_F32);
    ek_value_entry entries[] = {{"mask", ek_value_of_tensor(mask)},
                                {"is_causal", ek_value_of_int(1)}};
    assert_close(ek_value_tensor(ek_forward_kw(m, ek_value_dict(&entries[1], 1), x)),
                 ek_value_tensor(ek_forward_kw(m, ek_value_dict(entries, 1), x)), 1e-6, 1e-6);
    ek_module_free(m);
}

TEST(embeddings_begin_as_pytorchs)
{
    ek_manual_seed(3);
    ek_module *m = ek_embedding(5, 4);
    assert_close(ek_module_tensor(m, "weight"), golden("transformer.golden", "embedding/first"), 0,
                 0);
    ek_module_free(m);
    ek_manual_seed(3);
    m = ek_embedding(5, 4, .padding_idx = -2);
    assert_close(ek_module_tensor(m, "weight"), golden("transformer.golden", "embedding/padded"), 0,
                 0);
    const int64_t words[] = {3, 1, 3};
    ek_tensor *y = ek_apply(m, ek_from_data(words, EK_SHAPE(3), EK_I64));
    assert_ok(ek_backward(ek_sum(y)));
    ek_tensor *gradient = ek_tensor_grad(ek_module_tensor(m, "weight"));
    ck_assert_double_eq(element(gradient, 3 * 4), 0);
    ck_assert_double_eq(element(gradient, 1 * 4), 1);
    ek_module_free(m);
}

/* Layers of a stack begin equal and go their own ways. */
TEST(layers_of_a_stack_are_apart)
{
    ek_module *m = make_encoder();
    ek_tensor *first = ek_module_tensor(m, "layers.0.linear1.weight");
    ek_tensor *second = ek_module_tensor(m, "layers.1.linear1.weight");
    ck_assert_ptr_ne(first, second);
    assert_close(first, second, 0, 0);
    ck_assert(ek_tensor_requires_grad(second));
    ek_fill_(ek_detach(first), 0);
    ck_assert_double_ne(element(second, 0), 0);
    assert_made(ek_module_tensor(m, "norm.weight"));
    assert_made(ek_module_tensor(m, "layers.1.self_attn.in_proj_weight"));
    assert_made(ek_module_tensor(m, "layers.1.self_attn.out_proj.bias"));
    ek_module_free(m);
}

TEST(modules_refuse)
{
    ek_module *m = make_mha();
    ek_tensor *x = ek_ones(EK_SHAPE(5, 3, D)), *other = ek_ones(EK_SHAPE(5, 3, D + 1));
    ek_value_entry mask = {"attn_mask", ek_value_of_tensor(ek_ones(EK_SHAPE(5, 4)))};
    ek_value_entry flag = {"is_causal", ek_value_of_float(1)}, unknown = {"mask", mask.value};
    ek_value_entry padding = {"key_padding_mask", ek_value_of_int(1)};
    assert_refused(ek_forward(m, x, x), EK_E_INVALID, "takes 3 inputs, not 2");
    assert_refused(ek_forward(m, x, other, x), EK_E_SHAPE, "key has to be of 2 or 3 dimensions");
    assert_refused(ek_forward(m, x, x, ek_ones(EK_SHAPE(4, 3, D))), EK_E_SHAPE,
                   "differ in batch or length");
    assert_refused(ek_forward_kw(m, ek_value_dict(&mask, 1), x, x, x), EK_E_SHAPE,
                   "attn_mask has to be (L, S)");
    assert_refused(ek_forward_kw(m, ek_value_dict(&flag, 1), x, x, x), EK_E_INVALID,
                   "is_causal has to be an integer");
    assert_refused(ek_forward_kw(m, ek_value_dict(&padding, 1), x, x, x), EK_E_INVALID,
                   "key_padding_mask has to be a tensor");
    assert_refused(ek_forward_kw(m, ek_value_dict(&unknown, 1), x, x, x), EK_E_INVALID,
                   "takes no keyword argument \"mask\"");
    ek_module_free(m);
    assert_refused(ek_multihead_attention(6, 4), EK_E_INVALID, "a positive multiple of num_heads");
    assert_refused(ek_multihead_attention(4, 4, .dropout = 2), EK_E_INVALID, "dropout");
    assert_refused(ek_transformer_encoder(make_encoder_layer(), 0), EK_E_INVALID,
                   "num_layers has to be at least 1");
    assert_refused(ek_transformer_encoder_layer(4, 2, .activation = (ek_transformer_activation)2),
                   EK_E_INVALID, "activation must be");
    assert_refused(ek_embedding(0, 4), EK_E_INVALID, "at least 1");
    assert_refused(ek_embedding(3, 4, .padding_idx = 3), EK_E_INVALID, "padding_idx is 3");
    assert_refused(ek_rms_norm(EK_SHAPE(4), .eps = -1), EK_E_INVALID, "rms_norm: eps");
}
