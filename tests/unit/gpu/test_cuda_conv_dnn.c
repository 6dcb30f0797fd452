/* Convolutions by cuDNN: which of its plans are taken. On the emulator the engines of emulator.h
 * are counted; a GPU's are only seen to be right and to leave nothing behind. */
#include "cuda/cuda_setup.h"

enum { CHANNELS = 8, OUTPUTS = 16, SIZE = 9 };

static bool allowed_by_default;

/* Before the tests' own setting. */
__attribute__((constructor)) static void note_default(void)
{
    allowed_by_default = ek_tf32_convolution_allowed() && !ek_tf32_allowed();
}

typedef struct conv {
    ek_tensor *x, *w, *bias;
} conv;

static conv make_conv(int64_t channels)
{
    ek_tensor *x, *w, *bias;
    emulator_set("KIND", "1");
    open_cuda("0");
    ek_manual_seed(3);
    x = ek_to_device(ek_randn(EK_SHAPE(2, channels, SIZE, SIZE)), ek_cuda(0));
    w = ek_to_device(ek_randn(EK_SHAPE(OUTPUTS, channels, 3, 3)), ek_cuda(0));
    bias = ek_to_device(ek_randn(EK_SHAPE(OUTPUTS)), ek_cuda(0));
    assert_made(bias);
    return (conv){x, w, bias};
}

static uint64_t in_use(void)
{
    ek_memory_stats stats;
    assert_ok(ek_synchronize(ek_cuda(0)));
    assert_ok(ek_memory_get_stats(ek_cuda(0), &stats));
    return stats.in_use;
}

/* A forward, whose result has to be right, and which leaves no more than that. */
static void check_forward(const conv *c)
{
    const uint64_t before = in_use();
    ek_tensor *y = ek_f_conv2d(c->x, c->w, c->bias, .padding = 1);
    assert_made(y);
    ck_assert_uint_eq(in_use() - before, (2 * OUTPUTS * SIZE * SIZE * 4 + 63) / 64 * 64);
    ek_tensor *wanted = ek_f_conv2d(ek_to_device(c->x, ek_cpu()), ek_to_device(c->w, ek_cpu()),
                                    ek_to_device(c->bias, ek_cpu()), .padding = 1);
    const double tolerance = ek_tf32_convolution_allowed() ? 2e-2 : 1e-4;
    assert_close(ek_to_device(y, ek_cpu()), wanted, tolerance, tolerance);
}

/* How often each engine has computed since the last call: five numbers as text. */
static void check_engines(const char *wanted)
{
#ifdef EK_CUDA_EMULATED
    char text[80] = "";
    ek_emulator_counters counters;
    ek_emulator_count(&counters);
    for (int i = 0; i < 5; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", i ? " " : "",
                 (int)counters.convolutions[i]);
    ck_assert_str_eq(text, wanted);
    ek_emulator_reset_counters();
#endif
}

TEST(the_first_plan_is_taken)
{
    conv c = make_conv(CHANNELS);
    ck_assert(!ek_convolution_benchmarked());
    check_forward(&c);
    check_engines("1 0 0 0 0");
    ek_allow_tf32_convolution(true);
    check_forward(&c);
    check_engines("0 1 0 0 0");
}

/* Each switch is for one of the two. */
TEST(convolutions_alone_are_rounded_by_default)
{
    ck_assert(allowed_by_default);
    conv c = make_conv(CHANNELS);
    ek_allow_tf32(true);
    check_forward(&c);
    check_engines("1 0 0 0 0");
    ek_allow_tf32(false);
    ek_allow_tf32_convolution(true);
    check_forward(&c);
    check_engines("0 1 0 0 0");
    /* TF32 has no such number between 1 and its next one. */
    ek_tensor *x = ek_full(1 + 0x1p-12, EK_SHAPE(16, 16), .device = ek_cuda(0));
    ek_tensor *eye = ek_eye(16, 16, EK_F32, ek_cuda(0));
    assert_close(ek_to_device(ek_matmul(eye, x), ek_cpu()), ek_to_device(x, ek_cpu()), 0, 0);
}

/* Each runs four times; engine 3 fails; the fastest computes from then on. */
TEST(the_fastest_plan_is_taken)
{
    conv c = make_conv(CHANNELS);
    check_forward(&c);
    check_engines("1 0 0 0 0");
    ek_benchmark_convolution(true);
    check_forward(&c);
    check_engines("4 0 4 0 5");
    check_forward(&c);
    check_engines("0 0 0 0 1");
    ek_benchmark_convolution(false);
    check_forward(&c);
    check_engines("0 0 0 0 1");
    ek_benchmark_convolution(true);
    ek_allow_tf32_convolution(true);
    check_forward(&c);
    check_engines("4 4 4 0 5");
}

/* Gradients are timed into scratch memory, too: they are computed once. */
TEST(gradients_are_timed)
{
    conv c = make_conv(CHANNELS);
    ek_tensor *gradients[2][2];
    for (int timed = 0; timed < 2; timed++) {
        ek_benchmark_convolution(timed);
        ek_tensor *leaves[] = {ek_detach(c.x), ek_detach(c.w)};
        for (int i = 0; i < 2; i++)
            assert_ok(ek_tensor_set_requires_grad(leaves[i], true));
        ek_tensor *y = ek_f_conv2d(leaves[0], leaves[1], NULL, .padding = 1);
        assert_ok(ek_backward(ek_sum(ek_mul(y, y))));
        for (int i = 0; i < 2; i++)
            gradients[timed][i] = ek_to_device(ek_tensor_grad(leaves[i]), ek_cpu());
        check_engines(timed ? "12 0 12 0 15" : "3 0 0 0 0");
    }
    for (int i = 0; i < 2; i++)
        assert_close(gradients[1][i], gradients[0][i], 1e-4, 1e-4);
}

TEST(results_that_repeat_are_not_timed)
{
    conv c = make_conv(CHANNELS);
    ek_benchmark_convolution(true);
    ek_use_deterministic_algorithms(true);
    ck_assert(ek_convolution_benchmarked());
    check_forward(&c);
    check_engines("1 0 0 0 0");
}

/* Too little for the fastest engine's workspace, then even for one more result. */
TEST(memory_may_be_short)
{
    conv c = make_conv(CHANNELS);
    /* the weights are copied to the order of parameters, and for the plan */
    const uint64_t result = 2 * OUTPUTS * SIZE * SIZE * 4, weights = 2 * OUTPUTS * CHANNELS * 9 * 4;
    ek_benchmark_convolution(true);
    assert_ok(ek_memory_set_capacity(ek_cuda(0), in_use() + 2 * result + weights + 1024));
    check_forward(&c);
    check_engines("4 0 5 0 0");
    assert_ok(ek_memory_set_capacity(ek_cuda(0), in_use() + result + weights + 1024));
    ek_tensor *y = ek_f_conv2d(c.x, c.w, NULL, .padding = 1); /* another problem: no bias */
    assert_made(y);
    assert_ok(ek_synchronize(ek_cuda(0)));
    check_engines("1 0 0 0 0");
    ck_assert_int_eq(ek_error_status(), 0);
}

/* A plan that memory was too short for runs again once there is memory. */
TEST(a_shortage_passes)
{
    conv c = make_conv(CHANNELS);
    const uint64_t result = 2 * OUTPUTS * SIZE * SIZE * 4, weights = 2 * OUTPUTS * CHANNELS * 9 * 4;
    ek_benchmark_convolution(true);
    check_forward(&c);
    check_engines("4 0 4 0 5");
    for (int i = 0; i < 3; i++) {
        assert_ok(ek_memory_set_capacity(ek_cuda(0), in_use() + result + weights + 1024));
        check_forward(&c);
        check_engines("1 0 0 0 0");
        assert_ok(ek_memory_set_capacity(ek_cuda(0), 0));
        check_forward(&c);
        check_engines("0 0 0 0 1");
    }
}

/* ---- on a machine whose engines depend on the problem ---- */

static ek_tensor *randn_of(ek_dtype dtype, int64_t n, int64_t channels, int64_t size)
{
    ek_tensor *t = ek_to_dtype(ek_randn(EK_SHAPE(n, channels, size, size)), dtype);
    assert_made(t);
    return t;
}

TEST_LOOP(a_bias_is_added_to_all_dtypes, 0, 2)
{
    const ek_dtype dtype = _i ? EK_F16 : EK_BF16;
    open_cuda("0");
    for (int64_t n = 1; n < 6; n++) {
        ek_tensor *x = randn_of(dtype, n, CHANNELS, SIZE),
                  *w = randn_of(dtype, OUTPUTS, CHANNELS, 3);
        ek_tensor *bias = ek_to_dtype(ek_randn(EK_SHAPE(OUTPUTS)), dtype);
        ek_tensor *y = ek_f_conv2d(ek_to_device(x, ek_cuda(0)), ek_to_device(w, ek_cuda(0)),
                                   ek_to_device(bias, ek_cuda(0)), .padding = 1);
        assert_made(y);
        assert_close(ek_to_device(y, ek_cpu()), ek_f_conv2d(x, w, bias, .padding = 1), 2e-2, 5e-2);
    }
}

/* Returns how many of the weight's gradients for batches of several sizes differ from a first
 * run's.
 */
static int count_changes(void)
{
    int changed = 0;
    for (int64_t n = 2; n < 14; n++) {
        ek_tensor *gradients[2], *x = randn_of(EK_F32, n, 3, SIZE), *w = randn_of(EK_F32, 5, 3, 3);
        for (int run = 0; run < 2; run++) {
            ek_tensor *leaf = ek_to_device(w, ek_cuda(0));
            assert_ok(ek_tensor_set_requires_grad(leaf, true));
            ek_tensor *y = ek_f_conv2d(ek_to_device(x, ek_cuda(0)), leaf, NULL);
            assert_ok(ek_backward(ek_sum(ek_mul(y, y))));
            gradients[run] = ek_to_device(ek_tensor_grad(leaf), ek_cpu());
            assert_made(gradients[run]);
        }
        assert_close(gradients[1], gradients[0], 1e-4, 1e-4);
        changed += memcmp(ek_tensor_data(gradients[0]), ek_tensor_data(gradients[1]),
                          5 * 3 * 3 * 3 * sizeof(float)) != 0;
    }
    return changed;
}

TEST(gradients_repeat_if_they_must)
{
    open_cuda("0");
    ek_use_deterministic_algorithms(true);
    ck_assert_int_eq(count_changes(), 0);
    ek_use_deterministic_algorithms(false);
#ifdef EK_CUDA_EMULATED
    ck_assert_int_gt(count_changes(), 0);
#endif
}

#ifdef EK_CUDA_EMULATED

static int refusals; /* of workspaces */

static void count_refusals(ek_log_level level, const char *line, void *user)
{
    refusals += strstr(line, "bytes of workspace are left for a convolution") != NULL;
}

/* Devices with room for a step, but not for workspaces: no lack of memory, and no plan retreats. */
TEST(refused_workspaces_bound_no_device)
{
    enum { BATCH = 12, STEPS = 12 };
    int64_t sizes[2];
    emulator_set("MEMORY", "13M");
    open_cuda("0,1");
    const ek_device_list devices = ek_devices(EK_CUDA, 2);
    ek_set_log(count_refusals, NULL);
    ek_module *model = ek_data_parallel_model(ek_conv2d(3, 5, 3, .bias = false),
                                              .device_ids = devices, .split = EK_SPLIT_AUTO);
    ek_module *criterion = ek_data_parallel_criterion(ek_mse_loss(), .device_ids = devices);
    ek_optimizer *optimizer = ek_sgd(model, .lr = 0.01);
    assert_made(optimizer);
    for (int i = 0; i < STEPS; i++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *x = ek_randn(EK_SHAPE(BATCH, 3, SIZE, SIZE));
        ek_tensor *y = ek_randn(EK_SHAPE(BATCH, 5, SIZE - 2, SIZE - 2));
        assert_ok(ek_train_step(NULL, .model = model, .criterion = criterion,
                                .optimizer = optimizer, .input = EK_VALUE(x),
                                .target = EK_VALUE(y)));
        ek_scope_end(&scope);
    }
    ck_assert_int_gt(refusals, 0);
    for (int d = 0; d < 2; d++) {
        ek_memory_stats stats;
        assert_ok(ek_memory_get_stats(ek_cuda(d), &stats));
        ck_assert_uint_eq(stats.failures, 0);
    }
    assert_ok(ek_data_parallel_sizes(model, BATCH, sizes));
    ck_assert_msg(sizes[0] >= BATCH / 3 && sizes[1] >= BATCH / 3, "%d and %d samples",
                  (int)sizes[0], (int)sizes[1]);
    ek_set_log(NULL, NULL);
    ek_optimizer_free(optimizer);
    ek_module_free(criterion);
    ek_module_free(model);
    close_cuda();
}

/* The tenth run is the first of engine 4. */
TEST(a_plan_that_fails_is_passed_over)
{
    conv c = make_conv(CHANNELS);
    ek_benchmark_convolution(true);
    ek_emulator_fail_next("cudnnBackendExecute", 5000, 9);
    check_forward(&c);
    check_engines("4 0 5 0 0");
    check_forward(&c);
    check_engines("0 0 1 0 0");
}

TEST(errors_of_the_gpu_are_told)
{
    conv c = make_conv(CHANNELS);
    const uint64_t before = in_use();
    ek_benchmark_convolution(true);
    ek_emulator_fail_next("cudaEventCreate", 2, 1);
    ck_assert(!ek_f_conv2d(c.x, c.w, c.bias, .padding = 1));
    ck_assert_int_eq(ek_error_status(), EK_E_OUT_OF_MEMORY);
    ek_error_clear();
    ck_assert_uint_eq(in_use(), before);
    check_engines("0 0 0 0 0");
}

/* The engines for weight gradients of many channels copy row-major tensors, all three; two copies
 * are fewer. Other operations stay row-major, and copy the weights at most. */
TEST(weight_gradients_choose_their_order)
{
    enum { MANY = 64 };
    conv c = make_conv(MANY);
    const uint64_t x = 2 * MANY * SIZE * SIZE * 4, w = OUTPUTS * MANY * 9 * 4;
    const uint64_t y = 2 * OUTPUTS * SIZE * SIZE * 4, slack = 4096;
    ek_tensor *leaf = ek_contiguous(c.w, EK_CHANNELS_LAST);
    ek_memory_stats stats;
    assert_ok(ek_tensor_set_requires_grad(leaf, true));
    ek_tensor *result = ek_f_conv2d(c.x, leaf, NULL, .padding = 1);
    ek_tensor *loss = ek_sum(result);
    assert_made(loss);
    ck_assert(ek_tensor_is_contiguous(result, EK_CONTIGUOUS));
    const uint64_t before = in_use();
    assert_ok(ek_memory_reset_peak(ek_cuda(0)));
    assert_ok(ek_backward(loss));
    (void)in_use();
    assert_ok(ek_memory_get_stats(ek_cuda(0), &stats));
    /* the gradients of y and w, and copies of x and y */
    ck_assert_uint_lt(stats.peak - before, y + w + x + y + slack);
    check_engines("2 0 0 0 0");
}

#endif
