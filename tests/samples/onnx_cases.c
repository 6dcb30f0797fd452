/* onnx_cases.c: writes networks and modules as ONNX files, with inputs and outputs for three batch
 * sizes. tests/samples/onnx runs the files by onnxruntime.
 *
 *     onnx_cases FOLDER
 *
 * A case is written as FOLDER/NAME.17.onnx and FOLDER/NAME.20.onnx, in these opsets. Its tensors
 * are in FOLDER/NAME.safetensors: "0.in.0", "0.out.0", ... for the batch that was traced, "1.in.0",
 * ... and "2.in.0", ... for the others. */
#include <string.h>

#include "networks.h"

static const int batches[] = {3, 5, 1}; /* sizes; the first is traced */

/* ---- a module of a function ---- */

typedef struct function_module {
    ek_module module;
    ek_tensor *(*function)(ek_tensor *x);
} function_module;

static ek_value function_forward(ek_module *module, const ek_args *args)
{
    return EK_VALUE(((function_module *)module)->function(ek_arg_tensor(args, 0)));
}

static ek_module *function_new(ek_tensor *(*function)(ek_tensor *x))
{
    static const ek_module_type type = {.name = "function",
                                        .size = sizeof(function_module),
                                        .forward = function_forward};
    function_module *self = (function_module *)ek_module_new(&type);
    if (self)
        self->function = function;
    return (ek_module *)self;
}

/* ---- a module that calls its child twice ---- */

typedef struct twice_module {
    ek_module module;
    ek_module *gru;
} twice_module;

static ek_value twice_forward(ek_module *module, const ek_args *args)
{
    ek_module *gru = ((twice_module *)module)->gru;
    ek_tensor *once = ek_value_tensor(ek_value_at(ek_forward(gru, ek_arg_tensor(args, 0)), 0));
    return ek_forward(gru, once);
}

static ek_module *twice(void)
{
    static const ek_module_type type = {.name = "twice",
                                        .size = sizeof(twice_module),
                                        .forward = twice_forward};
    twice_module *self = (twice_module *)ek_module_new(&type);
    if (self)
        ek_register_module(&self->module, "gru", &self->gru, ek_gru(6, 6, .batch_first = true));
    return (ek_module *)self;
}

/* FUNCTION(name, expression of x) is a function of a tensor. */
#define FUNCTION(name, ...)              \
    static ek_tensor *name(ek_tensor *x) \
    {                                    \
        return __VA_ARGS__;              \
    }
FUNCTION(softplus_low, ek_f_softplus(x, 2, 1))
FUNCTION(remainders, ek_add(ek_remainder_scalar(x, 0.7), ek_fmod_scalar(x, 0.7)))
FUNCTION(roots, ek_add(ek_sqrt(ek_abs(x)), ek_rsqrt(ek_add_scalar(ek_square(x), 1))))
FUNCTION(exponentials, ek_add(ek_exp2(x), ek_add(ek_expm1(x), ek_exp(ek_neg(x)))))
FUNCTION(logarithms, ek_add(ek_log1p(ek_abs(x)), ek_add(ek_log2(ek_add_scalar(ek_abs(x), 1)),
                                                        ek_log10(ek_add_scalar(ek_abs(x), 1)))))
FUNCTION(rounded, ek_add(ek_add(ek_round(x), ek_trunc(ek_mul_scalar(x, 3))),
                         ek_add(ek_floor(x), ek_add(ek_ceil(x), ek_frac(x)))))
FUNCTION(angles, ek_add(ek_sin(x), ek_add(ek_cos(x), ek_add(ek_atan(x), ek_erf(x)))))
FUNCTION(powers, ek_pow(ek_add_scalar(ek_abs(x), 1), ek_mul_scalar(x, 0.5)))
FUNCTION(sums, ek_add(ek_sum(x, EK_DIMS(1), .keepdim = true),
                      ek_mul(ek_mean(x, EK_DIMS(2), .keepdim = true),
                             ek_sum(ek_square(x), EK_DIMS(1, 2), .keepdim = true))))
FUNCTION(moments, ek_add(ek_var(x, EK_DIMS(2)), ek_std(x, EK_DIMS(1))))
FUNCTION(extremes, ek_add(ek_amax(x, EK_DIMS(2)),
                          ek_add(ek_max_dim(x, 2, false), ek_logsumexp(x, EK_DIMS(1)))))
FUNCTION(norms, ek_add(ek_norm(x, EK_DIMS(1)), ek_norm(x, EK_DIMS(1), .p = 1)))
FUNCTION(choices, ek_where(ek_logical_and(ek_gt_scalar(x, -0.5), ek_le_scalar(x, 0.5)), x,
                           ek_maximum(ek_neg(x), ek_minimum(x, ek_square(x)))))
FUNCTION(counts,
         ek_to_dtype(ek_sum(ek_ne(ek_argmax(x, 1, true), ek_argmin(x, 1, true)), EK_DIMS(1)),
                     EK_F32))
FUNCTION(parts,
         ek_add(ek_slice(x, 2, 1, 4, 2), ek_add(ek_unsqueeze(ek_select(x, 2, -1), 2),
                                                ek_narrow(ek_flip(x, EK_SHAPE(1, 2)), 2, 0, 2))))
FUNCTION(rolled, ek_roll(x, EK_SHAPE(1, -2), EK_SHAPE(1, 2)))
FUNCTION(joined,
         ek_cat(EK_ITEMS(ek_tensor *, x, ek_repeat(x, EK_SHAPE(1, 1, 2)),
                         ek_expand(ek_mean(x, EK_DIMS(2), .keepdim = true), EK_SHAPE(-1, -1, 3))),
                3, 2))
FUNCTION(turned, ek_f_flatten(ek_transpose(x, 1, 2), 1, 2))
FUNCTION(batch_joined, ek_f_softmax(ek_reshape(x, EK_SHAPE(-1, ek_tensor_size(x, 2))), 1))
FUNCTION(batch_expanded,
         ek_matmul(ek_expand(ek_amax(x, EK_DIMS(0), .keepdim = true), ek_tensor_shape(x)),
                   ek_transpose(x, 1, 2)))
FUNCTION(with_zeros, ek_cat(EK_ITEMS(ek_tensor *, x, ek_zeros(ek_tensor_shape(x))), 2, 1))
FUNCTION(in_place, ek_add_(ek_mul_(ek_clone(x), ek_square(x)), ek_ones(EK_SHAPE(1))))
FUNCTION(positions, ek_add(x, ek_reshape(ek_arange(ek_tensor_size(x, 2), EK_F32, ek_cpu()),
                                         EK_SHAPE(1, 1, -1))))
FUNCTION(resized_cubic, ek_f_interpolate(x, .sizes = {7, 9}, .mode = EK_BICUBIC))
FUNCTION(resized_corners,
         ek_f_interpolate(x, .sizes = {7, 9}, .mode = EK_BILINEAR, .align_corners = true))
FUNCTION(resized_scale, ek_f_interpolate(x, .scale_factor = 1.3, .mode = EK_BILINEAR))
FUNCTION(resized_exact, ek_f_interpolate(x, .sizes = {7, 9}, .mode = EK_NEAREST_EXACT))
FUNCTION(resized_nearest, ek_f_interpolate(x, .sizes = {7, 9}, .mode = EK_NEAREST))
FUNCTION(resized_area, ek_f_interpolate(x, .size = 4, .mode = EK_AREA))

static ek_tensor *rotated(ek_tensor *x)
{
    ek_tensor *cosine, *sine;
    if (!x || ek_rotary_tables(ek_tensor_size(x, 1), ek_tensor_size(x, 2), 0, &cosine, &sine) < 0)
        return NULL;
    return ek_f_rotary(ek_f_rotary(x, cosine, sine, EK_ROTARY_HALVES), cosine, sine,
                       EK_ROTARY_INTERLEAVED);
}

static ek_tensor *grouped_attention(ek_tensor *x) /* (N, 6, L, E): 4 heads of queries, 2 of keys */
{
    ek_tensor *q = ek_narrow(x, 1, 0, 4), *k = ek_narrow(x, 1, 4, 2);
    return ek_f_scaled_dot_product_attention(q, k, k, .enable_gqa = true, .is_causal = true);
}

static ek_tensor *masked_attention(ek_tensor *x)
{
    ek_tensor *mask = ek_ge_scalar(x, -0.2); /* (N, H, L, L) */
    return ek_f_scaled_dot_product_attention(x, x, x, .mask = mask);
}

/* ---- inputs ---- */

static ek_value noise(int64_t n, int ndim, int64_t a, int64_t b, int64_t c)
{
    return EK_VALUE(ek_randn((ek_shape){.ndim = ndim, .dims = {n, a, b, c}}));
}
/* Places of (n, 4, 2, 2) maxima in planes of 4 x 4. */
static ek_tensor *places(int64_t n)
{
    ek_tensor *plane = ek_mul_scalar(ek_arange(4, EK_I64, ek_cpu()), 5);
    return ek_expand(ek_reshape(plane, EK_SHAPE(1, 1, 2, 2)), EK_SHAPE(n, 4, 2, 2));
}
#define FLAT noise(n, 2, 6, 0, 0)
#define SIGNAL noise(n, 3, 4, 6, 0)
#define IMAGE noise(n, 4, 4, 8, 8)
#define ODD noise(n, 4, 4, 9, 7)
#define TOKENS EK_VALUE(ek_randint(0, 20, EK_SHAPE(n, 7)))

/* ---- cases: a name, the module, its inputs for a batch of n ---- */

#define OP(name, inputs) X(op_##name, function_new(name), inputs)
#define LIST(...) EK_LIST(__VA_ARGS__)
#define LETTERS(cell_)                               \
    letter_network((letter_options){.cell = (cell_), \
                                    .letters = 20,   \
                                    .embedded = 6,   \
                                    .hidden = 8,     \
                                    .classes = 5,    \
                                    .layers = 2,     \
                                    .dropout = 0.2})
/* clang-format off */
#define CASES(X)                                                                                        \
    X(resnet18, ek_resnet18(10), noise(n, 4, 3, 64, 64))                                                \
    X(unet, unet(3, 8, 2, UNET_TRANSPOSED, true, 4), noise(n, 4, 3, 16, 24))                            \
    X(unet_bilinear, unet(3, 8, 2, UNET_BILINEAR, false, 4), noise(n, 4, 3, 18, 21))                    \
    X(gpt, ek_gpt2(20, .context = 8, .width = 16, .layers = 2, .heads = 4), TOKENS)                     \
    X(lstm_letters, LETTERS(CELL_LSTM), TOKENS)                                                         \
    X(gru_letters, LETTERS(CELL_GRU), TOKENS)                                                           \
    X(rnn_letters, LETTERS(CELL_RNN), LIST(TOKENS, ek_value_none(), ek_randint(1, 8, EK_SHAPE(n))))     \
    X(lengths_letters, LETTERS(CELL_LSTM), LIST(TOKENS, ek_randint(1, 8, EK_SHAPE(n))))                 \
    X(mlp, ek_sequential(ek_linear(6, 12), ek_relu(), ek_dropout(0.5), ek_linear(12, 3)), FLAT)         \
    X(resnet_sample, resnet(3, 8, 1, true, 5), noise(n, 4, 3, 16, 16))                                  \
    X(segmentation, segmentation_network(8), noise(n, 4, 1, 24, 24))                                    \
    X(gan_critic, gan_critic(8, NORM_LAYER), noise(n, 4, 1, 32, 32))                                    \
    X(gan_generator, gan_generator(8), noise(n, 4, GAN_NOISE, 1, 1))                                    \
    X(diffusion, diffusion_unet(1, 8, 1, 3), LIST(noise(n, 4, 1, 8, 8),                                 \
                                                  ek_randint(0, 50, EK_SHAPE(n)),                       \
                                                  ek_randint(0, 3, EK_SHAPE(n))))                       \
    X(reid, reid_network(8, 1, 6, 4), noise(n, 4, 1, 16, 8))                                            \
    X(encoder, ek_transformer_encoder(ek_transformer_encoder_layer(8, 2, .dim_feedforward = 16,         \
                                                                   .batch_first = true), 2),            \
      noise(n, 3, 5, 8, 0))                                                                             \
    X(transformer, ek_transformer(8, 2, .num_encoder_layers = 1, .num_decoder_layers = 1,               \
                                  .dim_feedforward = 16, .batch_first = true, .norm_first = true),      \
      LIST(noise(n, 3, 5, 8, 0), noise(n, 3, 4, 8, 0)))                                                 \
    X(lstm, ek_lstm(4, 5, .num_layers = 2, .bidirectional = true),                                      \
      LIST(ek_value_batched(EK_VALUE(ek_randn(EK_SHAPE(6, n, 4))), 1),                                  \
           ek_value_batched(LIST(ek_randn(EK_SHAPE(4, n, 5)), ek_randn(EK_SHAPE(4, n, 5))), 1),         \
           ek_randint(1, 7, EK_SHAPE(n))))                                                              \
    X(lstm_projected, ek_lstm(6, 5, .proj_size = 3, .batch_first = true), SIGNAL)                       \
    X(gru, ek_gru(6, 5, .bias = false, .batch_first = true, .bidirectional = true), SIGNAL)             \
    X(rnn_relu, ek_rnn(6, 5, .nonlinearity = EK_RNN_RELU, .batch_first = true), SIGNAL)                 \
    X(gru_twice, twice(), SIGNAL)                                                                        \
    X(lstm_cell, ek_lstm_cell(6, 5), FLAT)                                                              \
    X(gru_cell, ek_gru_cell(6, 5), FLAT)                                                                \
    X(rnn_cell, ek_rnn_cell(6, 5), FLAT)                                                                \
    X(conv1d, ek_conv1d(4, 6, 3, .padding = 1, .stride = 2), SIGNAL)                                    \
    X(conv2d, ek_conv2d(4, 6, .kernels = {3, 2}, .strides = {2, 1}, .dilations = {1, 2}, .groups = 2),  \
      IMAGE)                                                                                            \
    X(conv2d_same, ek_conv2d(4, 6, 4, .padding = EK_SAME), IMAGE)                                       \
    X(conv2d_reflect, ek_conv2d(4, 6, 3, .padding = 1, .padding_mode = EK_PAD_REFLECT), IMAGE)          \
    X(conv2d_circular, ek_conv2d(4, 6, 3, .padding = 1, .padding_mode = EK_PAD_CIRCULAR), IMAGE)        \
    X(conv3d, ek_conv3d(1, 2, 2), EK_VALUE(ek_randn(EK_SHAPE(n, 1, 4, 4, 4))))                          \
    X(conv_transpose1d, ek_conv_transpose1d(4, 6, 3, .stride = 2, .output_padding = 1), SIGNAL)         \
    X(conv_transpose2d, ek_conv_transpose2d(4, 6, 3, .stride = 2, .padding = 1, .output_padding = 1,    \
                                            .groups = 2, .dilation = 2), IMAGE)                         \
    X(max_pool, ek_max_pool2d(3, .stride = 2, .padding = 1, .ceil_mode = true), IMAGE)                  \
    X(max_pool_dilated, ek_max_pool2d(2, .stride = 1, .dilation = 2), IMAGE)                            \
    X(max_pool1d, ek_max_pool1d(2), SIGNAL)                                                             \
    X(avg_pool, ek_avg_pool2d(3, .stride = 2, .padding = 1, .ceil_mode = true), IMAGE)                  \
    X(avg_pool_inner, ek_avg_pool2d(3, .stride = 2, .padding = 1, .ceil_mode = true,                    \
                                    .count_include_pad = false), IMAGE)                                 \
    X(avg_pool1d, ek_avg_pool1d(2), SIGNAL)                                                             \
    X(adaptive_avg, ek_adaptive_avg_pool2d(4, 2), IMAGE)                                                \
    X(adaptive_max, ek_adaptive_max_pool2d(2, 3, false), IMAGE)                                         \
    X(max_unpool, ek_max_unpool2d(2), LIST(noise(n, 4, 4, 2, 2), places(n)))                            \
    X(lp_pool, ek_lp_pool2d(2, 2), IMAGE)                                                               \
    X(batch_norm1d, ek_batch_norm1d(6), FLAT)                                                           \
    X(batch_norm, ek_batch_norm2d(4, .affine = false), IMAGE)                                           \
    X(batch_norm_relu, ek_sequential(ek_batch_norm2d(4, .eps = 1e-3), ek_relu()), IMAGE)                \
    X(instance_norm, ek_instance_norm2d(4, .affine = true), IMAGE)                                      \
    X(instance_norm_tracked, ek_instance_norm1d(4, .track_running_stats = true), SIGNAL)                \
    X(layer_norm, ek_layer_norm(EK_SHAPE(6)), SIGNAL)                                                   \
    X(layer_norm_two, ek_layer_norm(EK_SHAPE(8, 8), .affine = false, .eps = 1e-3), IMAGE)               \
    X(group_norm, ek_group_norm(2, 4), IMAGE)                                                           \
    X(rms_norm, ek_rms_norm(EK_SHAPE(6)), SIGNAL)                                                       \
    X(local_response_norm, ek_local_response_norm(3), IMAGE)                                            \
    X(spectral_norm, ek_spectral_norm(ek_linear(6, 3)), FLAT)                                           \
    X(weight_norm, ek_weight_norm(ek_conv2d(4, 3, 3)), IMAGE)                                           \
    X(attention, ek_multihead_attention(8, 2, .is_causal = true),                                       \
      LIST(ek_value_batched(EK_VALUE(ek_randn(EK_SHAPE(5, n, 8))), 1),                                  \
           ek_value_batched(EK_VALUE(ek_randn(EK_SHAPE(5, n, 8))), 1),                                  \
           ek_value_batched(EK_VALUE(ek_randn(EK_SHAPE(5, n, 8))), 1)))                                 \
    X(bilinear, ek_bilinear(6, 6, 3), LIST(FLAT, FLAT))                                                 \
    X(cosine, ek_cosine_similarity(1), LIST(FLAT, FLAT))                                                 \
    X(distance, ek_pairwise_distance(1e-6), LIST(FLAT, FLAT))                                               \
    X(gelu, ek_gelu(EK_GELU_NONE), FLAT) X(gelu_tanh, ek_gelu(EK_GELU_TANH), FLAT)                      \
    X(silu, ek_silu(), FLAT) X(mish, ek_mish(), FLAT) X(elu, ek_elu(0.7), FLAT)                         \
    X(celu, ek_celu(0.7), FLAT) X(selu, ek_selu(), FLAT) X(relu6, ek_relu6(), FLAT)                     \
    X(hardtanh, ek_hardtanh(-0.5, 0.7), FLAT) X(hardsigmoid, ek_hardsigmoid(), FLAT)                    \
    X(hardswish, ek_hardswish(), FLAT) X(hardshrink, ek_hardshrink(0.5), FLAT)                          \
    X(softshrink, ek_softshrink(0.5), FLAT) X(tanhshrink, ek_tanhshrink(), FLAT)                        \
    X(softsign, ek_softsign(), FLAT) X(log_sigmoid, ek_log_sigmoid(), FLAT)                             \
    X(threshold, ek_threshold(0.1, 20), FLAT) X(glu, ek_glu(-1), FLAT)                                  \
    X(softmax, ek_softmax(1), SIGNAL) X(log_softmax, ek_log_softmax(-1), SIGNAL)                        \
    X(softmin, ek_softmin(1), SIGNAL) X(softplus, ek_softplus(.beta = 2), FLAT)                         \
    X(rrelu, ek_rrelu(0.1, 0.3), FLAT) X(prelu, ek_prelu(4), IMAGE) X(leaky_relu, ek_leaky_relu(0.1), FLAT)     \
    X(dropout, ek_sequential(ek_dropout2d(0.5), ek_alpha_dropout(0.3), ek_identity()), IMAGE)           \
    X(unflatten, ek_sequential(ek_flatten(1, -1), ek_unflatten(1, EK_SHAPE(8, -1))), IMAGE)             \
    X(pixel_shuffle, ek_sequential(ek_pixel_shuffle(2), ek_pixel_unshuffle(4), ek_channel_shuffle(4)),  \
      IMAGE)                                                                                            \
    X(constant_pad, ek_constant_pad2d(1, .value = 3), IMAGE)                                            \
    X(replication_pad, ek_replication_pad2d(2), IMAGE)                                                  \
    X(upsample, ek_upsample(.scale_factor = 2), IMAGE)                                                  \
    X(upsample1d, ek_upsample(9, .mode = EK_LINEAR), SIGNAL)                                            \
    OP(softplus_low, FLAT) OP(remainders, FLAT) OP(roots, FLAT) OP(exponentials, FLAT)                  \
    OP(logarithms, FLAT) OP(rounded, FLAT) OP(angles, FLAT) OP(powers, FLAT)                            \
    OP(sums, SIGNAL) OP(moments, noise(n, 3, 4, 4, 0)) OP(extremes, noise(n, 3, 4, 4, 0))               \
    OP(norms, SIGNAL) OP(choices, SIGNAL) OP(counts, SIGNAL) OP(parts, SIGNAL) OP(rolled, SIGNAL)       \
    OP(joined, noise(n, 3, 4, 3, 0)) OP(turned, SIGNAL) OP(batch_joined, SIGNAL)                        \
    OP(batch_expanded, SIGNAL) OP(with_zeros, SIGNAL) OP(in_place, SIGNAL) OP(positions, SIGNAL)        \
    OP(resized_cubic, ODD) OP(resized_corners, ODD) OP(resized_scale, ODD) OP(resized_exact, ODD)       \
    OP(resized_nearest, ODD) OP(resized_area, IMAGE) OP(rotated, SIGNAL)                                \
    OP(grouped_attention, noise(n, 4, 6, 5, 4)) OP(masked_attention, noise(n, 4, 2, 4, 4))
/* clang-format on */

#define X(name, make, give)                \
    static ek_module *name##_make(void)    \
    {                                      \
        return make;                       \
    }                                      \
    static ek_value name##_give(int64_t n) \
    {                                      \
        return give;                       \
    }
CASES(X)
#undef X

static const struct {
    const char *name;
    ek_module *(*make)(void);
    ek_value (*give)(int64_t n);
} cases[] = {
#define X(name, make, give) {#name, name##_make, name##_give},
    CASES(X)
#undef X
};

/* ---- files ---- */

static ek_value call(ek_module *module, ek_value inputs)
{
    const int count = inputs.kind == EK_VALUE_LIST ? ek_value_length(inputs) : 1;
    ek_value items[8];
    for (int i = 0; i < count; i++)
        items[i] = inputs.kind == EK_VALUE_LIST ? ek_value_at(inputs, i) : inputs;
    return ek_module_forward_of(module, items, count, ek_value_none());
}

/* Puts the tensors of a value as "RUN.SIDE.0", "RUN.SIDE.1" and so on. */
static void put(ek_archive *archive, int run, const char *side, ek_value value, int *count)
{
    char name[64];
    if (value.kind == EK_VALUE_TENSOR) {
        snprintf(name, sizeof name, "%d.%s.%d", run, side, (*count)++);
        ek_archive_put(archive, name, value);
    }
    for (int i = 0; i < ek_value_length(value); i++)
        put(archive, run, side, ek_value_at(value, i), count);
}

static int write_case(const char *folder, int i)
{
    char path[512];
    ek_scope scope = ek_scope_begin();
    ek_module *module = cases[i].make();
    ek_archive *archive = ek_archive_new();
    ek_set_grad_enabled(false);
    if (module && strcmp(cases[i].name, "spectral_norm") != 0)
        call(module, cases[i].give(8)); /* for running statistics */
    for (int run = 0; run < 3 && ek_error_status() == 0; run++) {
        int ins = 0, outs = 0;
        const ek_value inputs = cases[i].give(batches[run]);
        for (int opset = 17; run == 0 && opset <= 20; opset += 3) {
            snprintf(path, sizeof path, "%s/%s.%d.onnx", folder, cases[i].name, opset);
            ek_onnx_export(path, module, inputs, .opset = opset);
        }
        ek_module_train(module, false);
        put(archive, run, "in", inputs, &ins);
        put(archive, run, "out", call(module, inputs), &outs);
    }
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, cases[i].name);
    ek_archive_save(archive, path);
    ek_archive_free(archive);
    ek_module_free(module);
    ek_scope_end(&scope);
    const int status = ek_error_status();
    if (status < 0)
        fprintf(stderr, "%s: %s\n", cases[i].name, ek_error_message());
    ek_error_clear();
    return status;
}

int main(int argc, char **argv)
{
    int status = 0;
    for (int i = 0; argc == 2 && i < (int)(sizeof cases / sizeof *cases); i++) {
        ek_manual_seed(7);
        status = write_case(argv[1], i) < 0 ? 1 : status;
    }
    return argc == 2 ? status : 2;
}
