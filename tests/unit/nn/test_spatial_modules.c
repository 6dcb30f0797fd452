/* Padding modes of convolutions, instance norm's running statistics, and modules of pooling,
 * padding and pairs: PyTorch's numbers and gradients, or those of the functions that they stand
 * for. */
#include "module_golden.h"

/* A module of PyTorch's: state before, output, penalty's gradients, state after. Owns the module.
 */
static void assert_module(ek_module *module, const char *name, bool training)
{
    char before[64], after[64];
    ek_scope scope = ek_scope_begin();
    assert_made(module);
    assert_ok(ek_module_to_dtype(module, EK_F64));
    ek_module_train(module, training);
    snprintf(before, sizeof before, "%s/state", name);
    snprintf(after, sizeof after, "%s/after", name);
    golden_state state = {.file = "spatial.golden", .prefix = before, .load = true};
    golden_visit(module, state);
    state = (golden_state){.file = "spatial.golden", .prefix = name, .tolerance = 1e-11};
    ek_tensor *x = golden_leaf(&state, "x0"), *y = ek_apply(module, x);
    assert_made(y);
    assert_close(ek_detach(y), golden_of(&state, "y"), 1e-12, 1e-12);
    golden_penalty(module, state, x, ek_sum(ek_pow_scalar(y, 3)));
    state = (golden_state){.file = "spatial.golden", .prefix = after, .tolerance = 1e-12};
    golden_visit(module, state);
    ek_module_free(module);
    ek_scope_end(&scope);
}

TEST(padding_modes)
{
    assert_module(ek_conv2d(2, 3, 3, .padding = 1, .padding_mode = EK_PAD_REFLECT), "reflect",
                  true);
    assert_module(ek_conv1d(2, 3, 3, .stride = 2, .padding = 4, .padding_mode = EK_PAD_REPLICATE),
                  "replicate", true);
    assert_module(ek_conv2d(2, 2, .kernels = {2, 3}, .padding = EK_SAME,
                            .padding_mode = EK_PAD_CIRCULAR),
                  "circular", true);
    assert_module(ek_conv3d(1, 2, 2, .paddings = {1, 0, 2}, .padding_mode = EK_PAD_CIRCULAR),
                  "circular3d", true);
    assert_module(ek_conv2d(2, 2, .kernels = {2, 3}, .padding = EK_SAME, .dilation = 2), "same",
                  true);
}

TEST(running_statistics_of_instances)
{
    assert_module(ek_instance_norm2d(3, .momentum = 0.3, .affine = true,
                                     .track_running_stats = true),
                  "instance_norm1", true);
    assert_module(ek_instance_norm2d(3, .momentum = 0.3, .affine = true,
                                     .track_running_stats = true),
                  "instance_norm0", false);
    assert_module(ek_instance_norm1d(3, .track_running_stats = true), "instance_norm_single", true);
}

TEST(initial_bilinear)
{
    ek_manual_seed(6);
    ek_module *module = ek_bilinear(3, 2, 4);
    golden_state state = {.file = "spatial.golden", .prefix = "initial/bilinear"};
    ck_assert_int_eq(golden_visit(module, state), 2);
    ek_tensor *x = ek_randn(EK_SHAPE(5, 3)), *y = ek_randn(EK_SHAPE(5, 2));
    assert_close(ek_value_tensor(ek_forward(module, x, y)),
                 ek_f_bilinear(x, y, ek_module_tensor(module, "weight"),
                               ek_module_tensor(module, "bias")),
                 0, 0);
    assert_refused(ek_forward(module, x), EK_E_INVALID, "bilinear takes 2 inputs, not 1");
    ek_module_free(module);
    assert_refused(ek_bilinear(3, 0, 1), EK_E_INVALID, "bilinear: in1_features 3, in2_features 0");
}

/* ---- modules of functions ---- */

static void assert_same(ek_module *module, ek_tensor *x, ek_tensor *expected)
{
    assert_made(module);
    assert_made(expected);
    assert_close(ek_apply(module, x), expected, 0, 0);
    ek_module_free(module);
}

static ek_tensor *padded(ek_tensor *x, ek_pad_mode mode, int sides, double value)
{
    const int64_t pad[] = {1, 1, 1, 1, 1, 1};
    return ek_f_pad(x, pad, sides, mode, value);
}

TEST(padding_layers)
{
    ek_tensor *x1 = ek_randn(EK_SHAPE(2, 3, 4)), *x2 = ek_randn(EK_SHAPE(2, 3, 4, 5)),
              *x3 = ek_randn(EK_SHAPE(1, 2, 3, 4, 5)), *single = ek_randn(EK_SHAPE(3, 4, 5));
    assert_same(ek_zero_pad1d(1), x1, padded(x1, EK_PAD_CONSTANT, 2, 0));
    assert_same(ek_zero_pad2d(1), x2, padded(x2, EK_PAD_CONSTANT, 4, 0));
    assert_same(ek_zero_pad3d(1), x3, padded(x3, EK_PAD_CONSTANT, 6, 0));
    assert_same(ek_constant_pad1d(1, 2.5), x1, padded(x1, EK_PAD_CONSTANT, 2, 2.5));
    assert_same(ek_constant_pad2d(1, 2.5), single, padded(single, EK_PAD_CONSTANT, 4, 2.5));
    assert_same(ek_constant_pad3d(1, -1), x3, padded(x3, EK_PAD_CONSTANT, 6, -1));
    assert_same(ek_reflection_pad1d(1), x1, padded(x1, EK_PAD_REFLECT, 2, 0));
    assert_same(ek_reflection_pad2d(1), x2, padded(x2, EK_PAD_REFLECT, 4, 0));
    assert_same(ek_reflection_pad3d(1), x3, padded(x3, EK_PAD_REFLECT, 6, 0));
    assert_same(ek_replication_pad1d(1), x1, padded(x1, EK_PAD_REPLICATE, 2, 0));
    assert_same(ek_replication_pad2d(1), single, padded(single, EK_PAD_REPLICATE, 4, 0));
    assert_same(ek_replication_pad3d(1), x3, padded(x3, EK_PAD_REPLICATE, 6, 0));
    assert_same(ek_circular_pad1d(1), x1, padded(x1, EK_PAD_CIRCULAR, 2, 0));
    assert_same(ek_circular_pad2d(1), x2, padded(x2, EK_PAD_CIRCULAR, 4, 0));
    assert_same(ek_circular_pad3d(1), x3, padded(x3, EK_PAD_CIRCULAR, 6, 0));
    const int64_t sides[] = {0, 2, -1, 1};
    assert_same(ek_zero_pad2d(.paddings = {0, 2, -1, 1}), x2,
                ek_f_pad(x2, sides, 4, EK_PAD_CONSTANT, 0));
    ek_module *pad = ek_reflection_pad2d(1);
    assert_refused(ek_apply(pad, x3), EK_E_SHAPE, "expected an input of 4 dimensions, or 3");
    ek_module_free(pad);
    assert_refused(ek_reflection_pad1d(.paddings = {1, 1, 1}), EK_E_INVALID,
                   "reflection_pad1d: paddings has an entry 3, but there are 2 sides");
    assert_refused(ek_zero_pad1d(1, .paddings = {2}), EK_E_INVALID,
                   "zero_pad1d: padding is 1, and paddings are given; give one of the two");
}

TEST(channels_and_space)
{
    ek_tensor *x = ek_randn(EK_SHAPE(2, 8, 4, 6));
    assert_same(ek_pixel_shuffle(2), x, ek_f_pixel_shuffle(x, 2));
    assert_same(ek_pixel_unshuffle(2), x, ek_f_pixel_unshuffle(x, 2));
    assert_same(ek_channel_shuffle(4), x, ek_f_channel_shuffle(x, 4));
    assert_same(ek_local_response_norm(3, .alpha = 0.5, .k = 2), x,
                ek_f_local_response_norm(x, 3, 0.5, 0.75, 2));
    assert_refused(ek_pixel_shuffle(0), EK_E_INVALID, "pixel_shuffle: upscale_factor is 0");
    assert_refused(ek_local_response_norm(0), EK_E_INVALID, "local_response_norm: size is 0");
}

TEST(pairs)
{
    ek_tensor *x = ek_randn(EK_SHAPE(4, 3)), *y = ek_randn(EK_SHAPE(4, 3));
    ek_module *cosine = ek_cosine_similarity(),
              *distance = ek_pairwise_distance(.p = 1, .keepdim = true);
    assert_close(ek_value_tensor(ek_forward(cosine, x, y)), ek_f_cosine_similarity(x, y), 0, 0);
    assert_close(ek_value_tensor(ek_forward(distance, x, y)),
                 ek_f_pairwise_distance(x, y, .p = 1, .keepdim = true), 0, 0);
    assert_refused(ek_forward(cosine, x), EK_E_INVALID, "cosine_similarity takes 2 inputs");
    ek_module_free(cosine);
    ek_module_free(distance);
    distance = ek_pairwise_distance(.p = 0, .eps = 0);
    assert_close(ek_value_tensor(ek_forward(distance, x, y)),
                 ek_sum(ek_to_dtype(ek_ne(x, y), EK_F32), EK_DIMS(1)), 0, 0);
    ek_module_free(distance);
    assert_refused(ek_cosine_similarity(.eps = -1), EK_E_INVALID, "cosine_similarity: eps is -1");
}

/* ---- pooling ---- */

static void assert_unpools(ek_module *pool, ek_module *unpool, ek_tensor *x)
{
    assert_made(pool);
    assert_made(unpool);
    ek_value pooled = ek_forward(pool, x);
    ck_assert_int_eq(ek_value_length(pooled), 2);
    ek_tensor *y = ek_value_tensor(ek_value_at(pooled, 0));
    ek_tensor *back = ek_value_tensor(ek_forward(unpool, y, ek_value_at(pooled, 1)));
    assert_made(back);
    /* Maxima of what is spread out again are the same. */
    assert_close(ek_value_tensor(ek_value_at(ek_forward(pool, back), 0)), y, 0, 0);
    assert_close(ek_sum(back), ek_sum(y), 1e-6, 1e-6);
    ek_module_free(pool);
    ek_module_free(unpool);
}

TEST(unpooling)
{
    assert_unpools(ek_max_pool1d(2, .return_indices = true), ek_max_unpool1d(2),
                   ek_rand(EK_SHAPE(2, 3, 6)));
    assert_unpools(ek_max_pool2d(2, .return_indices = true), ek_max_unpool2d(2),
                   ek_rand(EK_SHAPE(2, 3, 6, 4)));
    assert_unpools(ek_max_pool3d(2, .return_indices = true), ek_max_unpool3d(2),
                   ek_rand(EK_SHAPE(2, 3, 4, 2, 4)));
    ek_tensor *x = ek_rand(EK_SHAPE(1, 2, 7, 5));
    ek_module *pool = ek_max_pool2d(2, .return_indices = true), *unpool = ek_max_unpool2d(2);
    ek_value pooled = ek_forward(pool, x), y = ek_value_at(pooled, 0), i = ek_value_at(pooled, 1);
    ek_value sizes = EK_LIST(ek_value_of_int(7), ek_value_of_int(5));
    ek_value all =
        EK_LIST(ek_value_of_int(1), ek_value_of_int(2), ek_value_of_int(7), ek_value_of_int(5));
    ek_tensor *back = ek_value_tensor(ek_forward(unpool, y, i, sizes));
    assert_made(back);
    ck_assert_int_eq(ek_tensor_size(back, 2), 7);
    ck_assert_int_eq(ek_tensor_size(back, 3), 5);
    assert_close(ek_value_tensor(ek_forward(unpool, y, i, all)), back, 0, 0);
    ek_value named = ek_value_dict(&(ek_value_entry){"output_size", sizes}, 1);
    assert_close(ek_value_tensor(ek_forward_kw(unpool, named, y, i)), back, 0, 0);
    assert_refused(ek_forward(unpool, y), EK_E_INVALID, "max_unpool2d takes 2 inputs, not 1");
    assert_refused(ek_forward(unpool, y, i, ek_value_of_int(7)), EK_E_INVALID,
                   "output_size must be a list of 2 positive integers");
    ek_module_free(pool);
    ek_module_free(unpool);
    assert_refused(ek_max_unpool2d(2, .stride = 0), EK_E_INVALID, "stride must be at least 1");
    assert_refused(ek_lp_pool2d(2, 2, .stride = 0), EK_E_INVALID, "stride must be at least 1");
    assert_refused(ek_max_unpool2d(0), EK_E_INVALID, "max_unpool2d: kernel must be at least 1");
}

TEST(pools)
{
    ek_tensor *x1 = ek_randn(EK_SHAPE(2, 3, 7)), *x2 = ek_randn(EK_SHAPE(2, 3, 7, 5)),
              *x3 = ek_randn(EK_SHAPE(1, 2, 4, 5, 3)), *index = NULL;
    assert_same(ek_adaptive_max_pool1d(3, false), x1, ek_f_adaptive_max_pool1d(x1, 3, NULL));
    assert_same(ek_adaptive_max_pool2d(3, 2, false), x2, ek_f_adaptive_max_pool2d(x2, 3, 2, NULL));
    assert_same(ek_adaptive_max_pool3d(2, 3, 2, false), x3,
                ek_f_adaptive_max_pool3d(x3, 2, 3, 2, NULL));
    assert_same(ek_lp_pool1d(2, 3), x1, ek_f_lp_pool1d(x1, 2, 3));
    assert_same(ek_lp_pool2d(2, 2, .stride = 1), x2, ek_f_lp_pool2d(x2, 2, 2, .stride = 1));
    assert_same(ek_lp_pool3d(2, .kernels = {2, 1, 3}, .ceil_mode = true), x3,
                ek_f_lp_pool3d(x3, 2, .kernels = {2, 1, 3}, .ceil_mode = true));
    ek_module *pool = ek_adaptive_max_pool2d(3, 2, true);
    ek_value both = ek_forward(pool, x2);
    assert_made(ek_f_adaptive_max_pool2d(x2, 3, 2, &index));
    assert_close(ek_value_tensor(ek_value_at(both, 1)), index, 0, 0);
    ek_module_free(pool);
    assert_refused(ek_adaptive_max_pool2d(3, 0, false), EK_E_INVALID,
                   "adaptive_max_pool2d: the output must be at least 1, got 3 x 0");
    assert_refused(ek_lp_pool2d(0, 2), EK_E_INVALID, "lp_pool2d: norm_type is 0");
    assert_refused(ek_lp_pool2d(2), EK_E_INVALID, "lp_pool2d: kernel must be at least 1");
}

/* ---- texts, refusals, lists of parameters ---- */

static void assert_text(ek_module *module, const char *wanted)
{
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    assert_made(module);
    assert_ok(ek_module_print(module, stream));
    fclose(stream);
    ck_assert_str_eq(text, wanted);
    free(text);
    ek_module_free(module);
}

TEST(texts_are_pytorchs)
{
    assert_text(ek_conv2d(2, 3, 3, .padding = EK_SAME, .padding_mode = EK_PAD_REFLECT),
                "conv2d(2, 3, kernel_size=(3, 3), stride=(1, 1), padding=same, "
                "padding_mode=reflect)\n");
    assert_text(ek_conv1d(2, 3, 3, .padding = 1, .bias = false, .padding_mode = EK_PAD_CIRCULAR),
                "conv1d(2, 3, kernel_size=(3,), stride=(1,), padding=(1,), bias=False, "
                "padding_mode=circular)\n");
    assert_text(ek_instance_norm2d(3), "instance_norm2d(3, eps=1e-05, momentum=0.1, affine=False, "
                                       "track_running_stats=False)\n");
    assert_text(ek_constant_pad2d(1, 2.5), "constant_pad2d((1, 1, 1, 1), value=2.5)\n");
    assert_text(ek_pixel_shuffle(2), "pixel_shuffle(upscale_factor=2)\n");
    assert_text(ek_local_response_norm(5),
                "local_response_norm(5, alpha=0.0001, beta=0.75, k=1)\n");
    assert_text(ek_bilinear(3, 2, 4, .bias = false),
                "bilinear(in1_features=3, in2_features=2, out_features=4, bias=False)\n");
}

TEST(refusals_of_convolutions)
{
    assert_refused(ek_conv_transpose2d(1, 1, 3, .padding = EK_SAME), EK_E_INVALID,
                   "conv_transpose2d: EK_SAME is not for transposed convolution");
    assert_refused(ek_conv2d(1, 1, 3, .padding = EK_SAME, .stride = 2), EK_E_INVALID,
                   "conv2d: EK_SAME goes with a stride of 1");
    assert_refused(ek_conv2d(1, 1, 3, .padding_mode = (ek_pad_mode)7), EK_E_INVALID,
                   "conv2d: padding_mode must be EK_PAD_CONSTANT");
}

TEST(lists_of_parameters)
{
    ek_tensor *a = ek_ones(EK_SHAPE(2)), *b = ek_ones(EK_SHAPE(3, 2));
    ek_module *list = ek_parameter_list(a, b);
    assert_made(list);
    ck_assert_int_eq(ek_module_numel(list), 8);
    ck_assert_ptr_eq(ek_module_tensor(list, "1"), b);
    ck_assert(ek_tensor_requires_grad(a));
    assert_ok(ek_parameter_list_append(list, ek_zeros(EK_SHAPE(4))));
    ck_assert_int_eq(ek_tensor_count(ek_module_tensor(list, "2")), 4);
    assert_refused(ek_apply(list, a), EK_E_INVALID, "a parameter_list has no forward");
    assert_refused(ek_parameter_list_append(list, NULL), EK_E_INVALID, "the parameter is NULL");
    ek_module *copy = ek_module_copy(list);
    ck_assert_int_eq(ek_module_numel(copy), 12);
    ek_module_free(copy);
    ek_module_free(list);
    ek_module *dict = ek_parameter_dict({"left", a}, {"right", b});
    assert_made(dict);
    ck_assert_ptr_eq(ek_module_tensor(dict, "right"), b);
    assert_refused(ek_parameter_list_append(dict, a), EK_E_INVALID, "is no list of parameters");
    ek_module_free(dict);
    assert_refused(ek_parameter_list(a, NULL), EK_E_INVALID, "parameter_list: parameter 1 is NULL");
    assert_refused(ek_parameter_dict({"x", a}, {"x", b}), EK_E_INVALID, "registered already");
}
