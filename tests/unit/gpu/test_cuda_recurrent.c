/* test_cuda_recurrent.c: which recurrent networks cuDNN computes, and what a training step
 * launches. The emulator counts. That the numbers are right is tested in ops/test_ops_recurrent.c.
 */
#include "cuda/cuda_setup.h"

#ifdef EK_CUDA_EMULATED

enum { STEPS = 8, BATCH = 2, WIDTH = 16, LAYERS = 2 };

static ek_emulator_counters counted(void)
{
    ek_emulator_counters counters;
    assert_ok(ek_synchronize(ek_cuda(0)));
    ek_emulator_count(&counters);
    ek_emulator_reset_counters();
    return counters;
}

static ek_module *open_net(const char *libraries, ek_dtype dtype, double dropout)
{
    emulator_set("LIBRARIES", libraries);
    open_cuda("0");
    ek_manual_seed(5);
    ek_module *net = ek_lstm(WIDTH, WIDTH, .num_layers = LAYERS, .dropout = dropout);
    assert_made(net);
    assert_ok(ek_module_to_device(net, ek_cuda(0)));
    assert_ok(ek_module_to_dtype(net, dtype));
    return net;
}

/* A forward and a backward. Lengths may be NULL. */
static int step(ek_module *net, ek_dtype dtype, const int64_t *lengths)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *x =
        ek_to_dtype(ek_randn(EK_SHAPE(STEPS, BATCH, WIDTH), .device = ek_cuda(0)), dtype);
    const ek_value given =
        lengths ? EK_VALUE(ek_from_data(lengths, EK_SHAPE(BATCH), EK_I64)) : ek_value_none();
    ek_tensor *y = ek_value_tensor(ek_value_at(ek_forward(net, x, ek_value_none(), given), 0));
    const int rc = y ? ek_backward(ek_sum(y)) : ek_error_status();
    ek_scope_end(&scope);
    return rc;
}

/* How many calls of cuDNN a step makes. */
static int calls(ek_module *net, ek_dtype dtype, const int64_t *lengths)
{
    counted();
    assert_ok(step(net, dtype, lengths));
    return (int)counted().networks;
}

static void close_net(ek_module *net)
{
    ek_module_free(net);
    close_cuda();
}

/* One call forward, and two back. With dropout between them, layers are computed one by one. */
TEST_LOOP(a_network_is_one_call, 0, 4)
{
    static const ek_dtype dtypes[] = {EK_F32, EK_BF16, EK_F16, EK_F32};
    ek_module *net = open_net("cublas,cublasLt,cudnn", dtypes[_i], _i == 3 ? 0.5 : 0);
    ck_assert_int_eq(calls(net, dtypes[_i], NULL), _i == 3 ? 3 * LAYERS : 3);
    ck_assert_int_eq(calls(net, dtypes[_i], (const int64_t[]){STEPS, 3}), _i == 3 ? 3 * LAYERS : 3);
    close_net(net);
}

TEST(other_networks_are_our_own)
{
    ek_module *net = open_net("cublas,cublasLt,cudnn", EK_F32, 0);
    ck_assert_int_eq(calls(net, EK_F32, (const int64_t[]){STEPS, 0}), 0);
    ek_use_deterministic_algorithms(true);
    ck_assert_int_eq(calls(net, EK_F32, NULL), 0);
    ek_use_deterministic_algorithms(false);
    assert_ok(ek_module_to_dtype(net, EK_F64));
    ck_assert_int_eq(calls(net, EK_F64, NULL), 0);
    close_net(net);
}

/* What cuDNN doesn't support is computed by our own kernels, forward or backward. */
TEST(a_refusal_is_no_error)
{
    ek_module *net = open_net("cublas,cublasLt,cudnn", EK_F32, 0);
    ek_emulator_fail_next("cudnnRNNForward", 3000, 0);
    ck_assert_int_eq(calls(net, EK_F32, NULL), 0);
    ek_emulator_fail_next("cudnnRNNBackwardData_v8", 3000, 0);
    ck_assert_int_eq(calls(net, EK_F32, NULL), 1);
    ck_assert_int_eq(calls(net, EK_F32, NULL), 3);
    close_net(net);
}

/* Returns with how many pieces of memory beside the network's a forward still works. Counts the
 * forwards that cuDNN computed, and the others. */
static int least_memory(bool deterministic, int computed[2])
{
    enum { PIECE = 512, MOST = 256 };
    ek_module *net = open_net("cublas,cublasLt,cudnn", EK_F32, 0);
    ek_tensor *x = ek_randn(EK_SHAPE(STEPS, BATCH, WIDTH), .device = ek_cuda(0));
    ek_memory_stats stats;
    int pieces = MOST, rc = 0;
    ek_use_deterministic_algorithms(deterministic);
    for (; pieces > 0 && rc >= 0; pieces--) {
        ek_scope scope = ek_scope_begin();
        counted();
        assert_ok(ek_memory_get_stats(ek_cuda(0), &stats));
        assert_ok(ek_memory_set_capacity(ek_cuda(0), stats.in_use + (uint64_t)pieces * PIECE));
        rc = ek_value_tensor(ek_value_at(ek_forward(net, x), 0)) ? 0 : ek_error_status();
        assert_ok(ek_memory_set_capacity(ek_cuda(0), stats.capacity));
        if (rc >= 0)
            computed[counted().networks == 0]++;
        ek_scope_end(&scope);
    }
    assert_error(EK_E_OUT_OF_MEMORY, "is out of memory");
    ek_use_deterministic_algorithms(false);
    close_net(net);
    return pieces + 2;
}

/* cuDNN's copies of weights and its workspace aren't asked for where only our own kernels fit. */
TEST(scarce_memory_leaves_a_network_to_our_kernels)
{
    int with[2] = {0}, without[2] = {0};
    const int least = least_memory(true, without);
    ck_assert_int_le(least_memory(false, with), least);
    ck_assert_int_gt(with[0], 0);
    ck_assert_int_gt(with[1], 0);
    ck_assert_int_eq(without[0], 0);
}

TEST(an_error_of_cudnn_is_returned)
{
    ek_module *net = open_net("cublas,cublasLt,cudnn", EK_F32, 0);
    ek_emulator_fail_next("cudnnRNNForward", 5000, 0);
    ck_assert_int_eq(step(net, EK_F32, NULL), EK_E_BACKEND);
    assert_error(EK_E_BACKEND, "recurrent network: cuDNN says CUDNN_STATUS_EXECUTION_FAILED");
    ek_emulator_fail_next("cudnnRNNBackwardWeights_v8", 5000, 0);
    ck_assert_int_eq(step(net, EK_F32, NULL), EK_E_BACKEND);
    assert_error(EK_E_BACKEND, "recurrent network's gradient: cuDNN says");
    close_net(net);
}

/* Under autocast cuDNN computes in bf16, and the results are f32 as those of our own kernels. */
TEST(autocast_narrows_the_operands)
{
    ek_module *net = open_net("cublas,cublasLt,cudnn", EK_F32, 0);
    ek_tensor *x = ek_randn(EK_SHAPE(STEPS, BATCH, WIDTH), .device = ek_cuda(0));
    counted();
    ek_autocast region = ek_autocast_begin(EK_BF16);
    ek_tensor *y = ek_value_tensor(ek_value_at(ek_forward(net, x), 0));
    ek_autocast_end(&region);
    assert_made(y);
    ck_assert_int_eq(y->dtype, EK_F32);
    assert_ok(ek_backward(ek_sum(y)));
    ck_assert_int_eq((int)counted().networks, 3);
    assert_made(ek_tensor_grad(ek_module_tensor(net, "weight_hh_l1")));
    close_net(net);
}

/* Without cuDNN each step of a layer is a product and a kernel, forward and backward. What a layer
 * launches beside these doesn't depend on how many steps there are. */
TEST(a_step_is_a_product_and_a_kernel)
{
    enum { BESIDE = 30 };
    ek_module *net = open_net("cublas,cublasLt", EK_F32, 0);
    assert_ok(step(net, EK_F32, NULL));
    counted();
    assert_ok(step(net, EK_F32, NULL));
    const ek_emulator_counters got = counted();
    const int all = (int)(got.kernels + got.products + got.copies + got.fills);
    ck_assert_int_ge(all, 4 * LAYERS * STEPS);
    ck_assert_int_le(all, 4 * LAYERS * STEPS + LAYERS * BESIDE);
    close_net(net);
}

#endif
