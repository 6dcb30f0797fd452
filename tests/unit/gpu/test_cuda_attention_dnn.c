/* Attention by cuDNN against the host's, in bf16 and f16: masks, dropout, groups, layouts. The
 * emulator counts what cuDNN computes. */
#include "cuda/cuda_setup.h"
#include "cuda/runtime.h"

enum { NO_MASK, FLOATS, SHIFTED, PER_HEAD, PADDING, HIDDEN_ROW };

typedef struct attention_case {
    const char *what;
    int64_t batch, heads, groups, rows, keys, depth, width;
    int mask;
    bool causal, apart, spread, deterministic; /* apart: contiguous heads; spread: dout repeats */
    double dropout;
    uint64_t served; /* how many of forward and gradient cuDNN computes */
} attention_case;

static const attention_case cases[] = {
    {"plain", 2, 3, 3, 16, 16, 8, 8, .served = 2},
    {"causal", 2, 3, 3, 40, 40, 16, 16, .causal = true, .served = 2},
    {"contiguous heads", 2, 2, 2, 16, 24, 64, 64, .apart = true, .served = 2},
    {"other width", 1, 2, 2, 9, 33, 32, 16, .served = 2},
    {"groups", 2, 6, 2, 20, 20, 24, 24, .causal = true, .served = 2},
    {"a mask of numbers", 2, 2, 2, 16, 24, 16, 16, .mask = FLOATS, .served = 2},
    {"a mask within another", 2, 2, 2, 16, 24, 16, 16, .mask = SHIFTED, .served = 2},
    {"a mask of each head", 2, 2, 2, 12, 10, 16, 16, .mask = PER_HEAD, .served = 2},
    {"a padding mask", 3, 2, 2, 8, 16, 16, 16, .mask = PADDING, .served = 2},
    {"a row that sees nothing", 2, 2, 2, 8, 16, 16, 16, .mask = HIDDEN_ROW, .served = 2},
    {"dropout", 2, 2, 2, 16, 16, 16, 16, .dropout = 0.25, .served = 2},
    {"all at once", 2, 4, 2, 16, 24, 16, 16, .mask = HIDDEN_ROW, .dropout = 0.5, .served = 2},
    {"causal dropout", 2, 4, 4, 24, 24, 16, 16, .causal = true, .dropout = 0.1, .served = 2},
    {"a repeated gradient", 2, 2, 2, 16, 16, 16, 16, .spread = true, .served = 2},
    {"deterministic", 2, 2, 2, 16, 16, 16, 16, .deterministic = true, .served = 2},
    {"deterministic groups", 2, 4, 2, 16, 16, 16, 16, .deterministic = true, .served = 2},
    {"features of no multiple of 8", 2, 2, 2, 16, 16, 12, 12, .served = 0},
    {"too many features", 1, 1, 1, 16, 16, 264, 264, .served = 0},
    {"one key", 2, 2, 2, 1, 1, 16, 16, .served = 0},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Heads (batch, head, row, column) of columns of a tensor (batch, row, columns). */
static ek_tensor *heads_of(ek_tensor *x, int64_t first, int64_t rows, int64_t heads, int64_t depth)
{
    ek_tensor *part = ek_narrow(ek_narrow(x, 2, first, heads * depth), 1, 0, rows);
    return ek_transpose(ek_reshape(part, EK_SHAPE(x->shape[0], rows, heads, depth)), 1, 2);
}

static ek_tensor *mask_of(const attention_case *c)
{
    ek_tensor *mask;
    switch (c->mask) {
    case FLOATS:
        return ek_randn(EK_SHAPE(c->rows, c->keys));
    case SHIFTED:
        return ek_randn(EK_SHAPE(c->rows, c->keys + 3));
    case PER_HEAD:
        return ek_randn(EK_SHAPE(c->batch, c->heads, c->rows, c->keys));
    case PADDING:
        mask = ek_ones(EK_SHAPE(c->batch, 1, 1, c->keys), EK_BOOL);
        ek_fill_(ek_narrow(ek_narrow(mask, 0, 0, 1), 3, c->keys - 3, 3), 0);
        return mask;
    case HIDDEN_ROW:
        mask = ek_ones(EK_SHAPE(c->batch, 1, c->rows, c->keys), EK_BOOL);
        ek_fill_(ek_narrow(ek_narrow(mask, 0, 1, 1), 2, 3, 1), 0);
        return mask;
    default:
        return NULL;
    }
}

/* Attention of heads of `x`. */
static ek_tensor *attend_heads(const attention_case *c, ek_tensor *x, ek_tensor *mask)
{
    ek_tensor *heads[] = {heads_of(x, 0, c->rows, c->heads, c->depth),
                          heads_of(x, c->heads * c->depth, c->keys, c->groups, c->depth),
                          heads_of(x, (c->heads + c->groups) * c->depth, c->keys, c->groups,
                                   c->width)};
    for (int i = 0; i < 3 && c->apart; i++)
        heads[i] = ek_contiguous(heads[i], EK_CONTIGUOUS);
    ek_manual_seed(5);
    ek_tensor *y =
        ek_f_scaled_dot_product_attention(heads[0], heads[1], heads[2], .mask = mask,
                                          .dropout_p = c->dropout, .is_causal = c->causal,
                                          .enable_gqa = c->heads != c->groups);
    assert_made(y);
    return y;
}

/* Attention as f32 on the host, with the gradients of a sum of it. */
static ek_tensor *attend(const attention_case *c, ek_tensor *x, ek_tensor *mask, ek_tensor *weight,
                         ek_tensor **gradient)
{
    if (mask && ek_dtype_is_floating(mask->dtype))
        mask = ek_to_dtype(mask, x->dtype);
    if (c->mask == SHIFTED)
        mask = ek_narrow(mask, 1, 3, c->keys);
    ek_tensor *y = attend_heads(c, x, mask);
    ek_tensor *sum = ek_sum(c->spread ? y : ek_mul(y, ek_to_dtype(weight, y->dtype)));
    assert_ok(ek_grad(.outputs = &sum, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = gradient));
    return ek_to_device(ek_to_dtype(y, EK_F32), ek_cpu());
}

/* On a GPU, cuDNN's plans are made for many scores only. */
#ifdef EK_CUDA_EMULATED
enum { LARGER = 1 };
#else
enum { LARGER = 64 };
#endif

static void compare(const attention_case *small, ek_dtype dtype)
{
    attention_case larger = *small, *c = &larger;
    larger.rows *= small->rows > 1 ? LARGER : 1;
    larger.keys *= small->keys > 1 ? LARGER : 1;
    const int64_t columns = (c->heads + c->groups) * c->depth + c->groups * c->width;
    const int64_t most = c->rows > c->keys ? c->rows : c->keys;
    ek_tensor *x[2], *g[2], *y[2];
    ek_use_deterministic_algorithms(c->deterministic);
    ek_manual_seed(3);
    ek_tensor *mask = mask_of(c), *drawn = ek_randn(EK_SHAPE(c->batch, most, columns));
    ek_tensor *weight = ek_randn(EK_SHAPE(c->batch, c->heads, c->rows, c->width));
    if (mask && ek_dtype_is_floating(mask->dtype))
        mask = ek_to_dtype(ek_to_dtype(mask, dtype), EK_F32);
    x[0] = ek_to_dtype(ek_to_dtype(drawn, dtype), EK_F32);
    x[1] = ek_to_device(ek_to_dtype(drawn, dtype), ek_cuda(0));
    for (int i = 0; i < 2; i++)
        assert_ok(ek_tensor_set_requires_grad(x[i], true));
    y[0] = attend(c, x[0], mask, weight, &g[0]);
#ifdef EK_CUDA_EMULATED
    ek_emulator_reset_counters();
#endif
    y[1] = attend(c, x[1], mask ? ek_to_device(mask, ek_cuda(0)) : NULL,
                  ek_to_device(weight, ek_cuda(0)), &g[1]);
    g[1] = ek_to_device(ek_to_dtype(g[1], EK_F32), ek_cpu());
    ek_use_deterministic_algorithms(false);
#ifdef EK_CUDA_EMULATED
    ek_emulator_counters counters;
    ek_emulator_count(&counters);
    if (counters.attentions != c->served)
        ck_abort_msg("%s: cuDNN has computed %d times", c->what, (int)counters.attentions);
#endif
    const double near = dtype == EK_BF16 ? 1.5e-2 : 3e-3;
    assert_close_norm(y[1], y[0], near);
    assert_close_norm(g[1], g[0], near);
}

static void open_cudnn(void)
{
    emulator_set("LIBRARIES", "cublas,cudnn,nccl");
    open_cuda("0");
    assert_ok(ek_generator_set_engine(NULL, EK_RANDOM_PHILOX));
}

TEST_LOOP(cudnn_gives_the_hosts_numbers, 0, CASES)
{
    open_cudnn();
    compare(&cases[_i], EK_BF16);
    compare(&cases[_i], EK_F16);
    close_cuda();
}

/* Double backward computes from what cuDNN's forward has left. */
TEST(gradients_of_gradients_are_the_hosts)
{
    const attention_case c = {"", 2, 4, 2, 16, 16, 16, 16, .causal = true, .dropout = 0.25};
    ek_tensor *g[2];
    open_cudnn();
    for (int i = 0; i < 2; i++) {
        ek_manual_seed(3);
        ek_tensor *drawn = ek_randn(EK_SHAPE(2, 16, 128)), *y, *first;
        ek_tensor *x = i ? ek_to_device(ek_to_dtype(drawn, EK_F16), ek_cuda(0))
                         : ek_to_dtype(ek_to_dtype(drawn, EK_F16), EK_F32);
        assert_ok(ek_tensor_set_requires_grad(x, true));
        y = attend_heads(&c, x, NULL);
        ek_tensor *sum = ek_sum(ek_square(y));
        assert_ok(ek_grad(.outputs = &sum, .output_count = 1, .inputs = &x, .input_count = 1,
                          .create_graph = true, .gradients = &first));
        sum = ek_sum(ek_square(first));
        assert_ok(ek_grad(.outputs = &sum, .output_count = 1, .inputs = &x, .input_count = 1,
                          .gradients = &g[i]));
        g[i] = ek_to_device(ek_to_dtype(g[i], EK_F32), ek_cpu());
    }
    assert_close_norm(g[1], g[0], 1e-2);
    close_cuda();
}

#ifdef EK_CUDA_EMULATED

/* If cuDNN says when it runs that it doesn't support a plan, the library's kernels compute. */
TEST(a_plan_that_fails_is_replaced)
{
    attention_case c = cases[1];
    c.served = 1;
    for (int i = 0; i < 2; i++) {
        open_cudnn();
        ek_emulator_fail_next("cudnnBackendExecute", 3000, i);
        compare(&c, EK_BF16);
        close_cuda();
    }
}

/* The gradient by cuDNN needs dq in f32 beside. With less and less memory our kernels compute it,
 * before there is none for the results. */
TEST(scarce_memory_leaves_the_gradient_to_our_kernels)
{
    enum { STEP = 2048, MOST = 128 };
    ek_tensor *x[3], *wanted[3], *g[3];
    ek_emulator_counters counters;
    ek_memory_stats stats;
    int ours = 0, rc = 0;
    open_cudnn();
    for (int i = 0; i < 3; i++) {
        x[i] = ek_to_device(ek_to_dtype(ek_randn(EK_SHAPE(1, 2, 64, 64)), EK_F16), ek_cuda(0));
        assert_ok(ek_tensor_set_requires_grad(x[i], true));
    }
    ek_tensor *y = ek_f_scaled_dot_product_attention(x[0], x[1], x[2]);
    ek_tensor *ones = ek_ones(EK_SHAPE(1, 2, 64, 64), EK_F16, .device = ek_cuda(0));
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = x, .input_count = 3,
                      .grad_outputs = &ones, .retain_graph = true, .gradients = wanted));
    for (int steps = MOST; steps > 0 && rc >= 0; steps--) {
        ek_scope scope = ek_scope_begin();
        assert_ok(ek_memory_get_stats(ek_cuda(0), &stats));
        assert_ok(ek_memory_set_capacity(ek_cuda(0), stats.in_use + (uint64_t)steps * STEP));
        ek_emulator_reset_counters();
        rc = ek_grad(.outputs = &y, .output_count = 1, .inputs = x, .input_count = 3,
                     .grad_outputs = &ones, .retain_graph = true, .gradients = g);
        assert_ok(ek_memory_set_capacity(ek_cuda(0), (uint64_t)1 << 29));
        for (int i = 0; i < 3 && rc >= 0; i++)
            assert_close_norm(ek_to_device(ek_to_dtype(g[i], EK_F32), ek_cpu()),
                              ek_to_device(ek_to_dtype(wanted[i], EK_F32), ek_cpu()), 3e-3);
        ek_emulator_count(&counters);
        ours += rc >= 0 && counters.attentions == 0;
        ek_scope_end(&scope);
    }
    ck_assert_int_eq(ek_error_status(), EK_E_OUT_OF_MEMORY);
    ek_error_clear();
    ck_assert_int_gt(ours, 0);
    close_cuda();
}

TEST(an_error_of_cudnn_is_told)
{
    open_cudnn();
    ek_tensor *x = ek_to_device(ek_to_dtype(ek_randn(EK_SHAPE(2, 2, 16, 16)), EK_F16), ek_cuda(0));
    ek_emulator_fail_next("cudnnBackendExecute", 5000, 0);
    ck_assert_ptr_null(ek_f_scaled_dot_product_attention(x, x, x));
    ck_assert_ptr_nonnull(
        strstr(ek_error_message(), "attention: cuDNN says CUDNN_STATUS_EXECUTION_FAILED (5000)"));
    ek_error_clear();
    close_cuda();
}

/* Attention is the call that returns what is known of earlier work of the device. */
TEST(an_earlier_error_is_returned)
{
    open_cudnn();
    ek_tensor *x = ek_to_device(ek_to_dtype(ek_randn(EK_SHAPE(2, 2, 16, 16)), EK_F16), ek_cuda(0));
    ek_cuda_tell(ek_cuda_of(cuda_dev(0)), "a copy failed");
    ck_assert_ptr_null(ek_f_scaled_dot_product_attention(x, x, x));
    assert_error(EK_E_BACKEND, "a copy failed");
    assert_made(ek_f_scaled_dot_product_attention(x, x, x));
    close_cuda();
}

#endif

/* A layer of a transformer under autocast, in training: its output, and the gradient of x. */
static void run_layer(ek_module *layer, ek_tensor *x, ek_tensor *mask, ek_tensor *results[2])
{
    ek_value_entry padding = {"src_key_padding_mask", ek_value_of_tensor(mask)};
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_manual_seed(7);
    ek_autocast autocast = ek_autocast_begin(EK_BF16);
    ek_tensor *y = ek_value_tensor(ek_forward_kw(layer, ek_value_dict(&padding, 1), x));
    ek_tensor *sum = ek_sum(ek_square(y));
    ek_autocast_end(&autocast);
    assert_made(sum);
    assert_ok(ek_grad(.outputs = &sum, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &results[1]));
    results[0] = ek_to_device(ek_to_dtype(y, EK_F32), ek_cpu());
    results[1] = ek_to_device(ek_to_dtype(results[1], EK_F32), ek_cpu());
}

TEST(a_layer_of_a_transformer)
{
    ek_tensor *host[2], *gpu[2];
    open_cudnn();
    ek_manual_seed(3);
    ek_module *layer =
        ek_transformer_encoder_layer(32, 4, .dim_feedforward = 64, .batch_first = true);
    ek_tensor *x = ek_randn(EK_SHAPE(3, LARGER * 12, 32));
    ek_tensor *mask = ek_zeros(EK_SHAPE(3, LARGER * 12), EK_U8);
    ek_fill_(ek_narrow(ek_narrow(mask, 0, 1, 1), 1, 7, 5), 1);
    run_layer(layer, ek_detach(x), mask, host);
#ifdef EK_CUDA_EMULATED
    ek_emulator_reset_counters();
#endif
    assert_ok(ek_module_to_device(layer, ek_cuda(0)));
    run_layer(layer, ek_to_device(x, ek_cuda(0)), ek_to_device(mask, ek_cuda(0)), gpu);
#ifdef EK_CUDA_EMULATED
    ek_emulator_counters counters;
    ek_emulator_count(&counters);
    ck_assert_uint_eq(counters.attentions, 2);
#endif
    assert_close_norm(gpu[0], host[0], 2e-2);
    assert_close_norm(gpu[1], host[1], 4e-2);
    ek_module_free(layer);
    close_cuda();
}

TEST(other_ways_serve_without_cudnn)
{
    attention_case c = cases[1];
    c.served = 0;
    setenv("EVENKEEL_CUDA_WITHOUT", "cudnn", 1);
    open_cudnn();
    compare(&c, EK_BF16);
    close_cuda();
}
