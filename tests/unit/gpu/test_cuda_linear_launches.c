/* What a linear layer launches on a GPU: a product with its bias and ReLU is one launch, and so is
 * the weight's gradient with the bias's. The emulator counts them. */
#include "core/tensor.h"
#include "unit.h"

BEFORE_ALL(skip_without_gpu)

#ifdef EK_CUDA_EMULATED
#include <emulator.h>

static ek_emulator_counters counted(void)
{
    ek_emulator_counters counters;
    assert_ok(ek_synchronize(ek_cuda(0)));
    ek_emulator_count(&counters);
    ek_emulator_reset_counters();
    return counters;
}

typedef struct launches {
    int forward, backward, plans;
} launches;

/* Of the second of two passes through `net`. */
static launches count(ek_module *net, ek_dtype dtype, bool wants_x)
{
    launches got = {0, 0, 0};
    assert_ok(ek_module_to_device(net, ek_cuda(0)));
    assert_ok(ek_module_to_dtype(net, dtype));
    ek_tensor *x = ek_to_dtype(ek_randn(EK_SHAPE(6, 16), .device = ek_cuda(0)), dtype);
    ek_tensor *g = ek_to_dtype(ek_randn(EK_SHAPE(6, 8), .device = ek_cuda(0)), dtype);
    assert_made(g);
    assert_ok(ek_tensor_set_requires_grad(x, wants_x));
    for (int pass = 0; pass < 2; pass++) {
        counted();
        ek_tensor *y = ek_apply(net, x);
        assert_made(y);
        ek_emulator_counters forward = counted();
        ek_tensor *inputs[3] = {ek_module_tensor(net, "0.weight"), ek_module_tensor(net, "0.bias"),
                                x};
        ek_tensor *gradients[3];
        assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = inputs,
                          .input_count = 2 + wants_x, .gradients = gradients, .grad_outputs = &g));
        ek_emulator_counters backward = counted();
        got.forward = (int)(forward.kernels + forward.products + forward.copies + forward.fills);
        got.backward =
            (int)(backward.kernels + backward.products + backward.copies + backward.fills);
        got.plans = (int)(forward.plans + backward.plans);
    }
    ek_module_free(net);
    return got;
}

static void expect(launches got, int forward, int backward)
{
    ck_assert_int_eq(got.forward, forward);
    ck_assert_int_eq(got.backward, backward);
    ck_assert_int_eq(got.plans, 0); /* asked for in the first pass */
}

TEST_LOOP(one_launch, 0, 2)
{
    const ek_dtype dtype = _i ? EK_BF16 : EK_F32;
    expect(count(ek_sequential(ek_linear(16, 8)), dtype, false), 1, 1);
    expect(count(ek_sequential(ek_linear(16, 8)), dtype, true), 1, 2);
    expect(count(ek_sequential(ek_linear(16, 8), ek_relu()), dtype, false), 1, 2);
}

/* f64 has no epilogue: a copy of the bias, the product, the ReLU. */
TEST(without_an_algorithm)
{
    expect(count(ek_sequential(ek_linear(16, 8), ek_relu()), EK_F64, false), 3, 3);
}

/* Sums are no products, which alone may be rounded to TF32. */
TEST(tf32)
{
    ek_allow_tf32(true);
    expect(count(ek_sequential(ek_linear(16, 8), ek_relu()), EK_F32, false), 1, 3);
    ek_allow_tf32(false);
}

/* A ReLU that loses NaN is not ours: the layer takes two launches, and NaN stays. */
TEST_LOOP(relu_that_loses_nan, 0, 2)
{
    const ek_dtype dtype = _i ? EK_BF16 : EK_F32;
    ek_emulator_relu_eats_nan(true);
    ek_module *net = ek_sequential(ek_linear(16, 8), ek_relu());
    assert_ok(ek_module_to_device(net, ek_cuda(0)));
    assert_ok(ek_module_to_dtype(net, dtype));
    ek_tensor *x = ek_full(NAN, EK_SHAPE(2, 16), .device = ek_cuda(0), .dtype = dtype);
    ek_tensor *y = ek_to_dtype(ek_to_device(ek_apply(net, x), ek_cpu()), EK_F32);
    assert_made(y);
    for (int i = 0; i < 16; i++)
        ck_assert(isnan(element(y, i)));
    expect(count(net, dtype, false), 2, 2);
    ek_emulator_relu_eats_nan(false);
}

/* A question of the ReLU that failed is asked again. */
TEST(relu_whose_question_failed)
{
    ek_module *net = ek_sequential(ek_linear(16, 8), ek_relu());
    assert_ok(ek_module_to_device(net, ek_cuda(0)));
    ek_tensor *x = ek_ones(EK_SHAPE(6, 16), .device = ek_cuda(0));
    ek_emulator_fail_next("cublasLtMatmul", 15, 0);
    assert_made(ek_apply(net, x));
    expect(count(net, EK_F32, false), 1, 2);
}

/* The sum of a parameter's gradients is added where the optimizer wants it, without a copy; the
 * gradient of a convolution's weight in one part is its result. */
TEST(gradients_of_what_is_used_twice)
{
    ek_module *layer = ek_linear(8, 8);
    ek_module *net =
        ek_data_parallel(ek_sequential(layer, layer, layer), .device_ids = ek_devices(EK_CUDA, 1));
    assert_made(net);
    ek_optimizer *optimizer = ek_sgd(net, .lr = 0.125);
    assert_made(optimizer);
    ek_tensor *x = ek_randn(EK_SHAPE(3, 8), .device = ek_cuda(0));
    for (int pass = 0; pass < 2; pass++) {
        ek_tensor *loss = ek_sum(ek_apply(net, x));
        ek_zero_grad(optimizer);
        counted();
        assert_ok(ek_backward(loss));
        ek_emulator_counters got = counted();
        ck_assert_int_eq((int)got.products, 5);
        ck_assert_int_eq((int)got.copies, 0);
        ek_tensor *gradient = ek_keep(ek_tensor_grad(ek_module_tensor(layer, "weight")));
        assert_ok(ek_tensor_set_grad(ek_module_tensor(layer, "weight"), NULL));
        ek_tensor *single, *weight = ek_module_tensor(layer, "weight");
        loss = ek_sum(ek_apply(net, x));
        assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &weight, .input_count = 1,
                          .gradients = &single));
        assert_close(ek_to_device(single, ek_cpu()), ek_to_device(gradient, ek_cpu()), 0, 0);
        ek_release(gradient);
    }
    ek_optimizer_free(optimizer);
    ek_module_free(net);
}

/* By own kernels. */
TEST(gradients_of_a_convolution)
{
    setenv("EVENKEEL_CUDA_WITHOUT", "cudnn", 1);
    ek_tensor *x = ek_randn(EK_SHAPE(1, 4, 6, 6), .device = ek_cuda(0));
    ek_tensor *w = ek_randn(EK_SHAPE(32, 4, 3, 3), .device = ek_cuda(0), .requires_grad = true);
    ek_tensor *y = ek_f_conv2d(x, w, NULL), *gradient;
    ek_tensor *g = ek_randn(EK_SHAPE(1, 32, 4, 4), .device = ek_cuda(0));
    assert_made(y);
    g = ek_contiguous(g, EK_CHANNELS_LAST);
    assert_made(g);
    counted();
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = &w, .input_count = 1,
                      .gradients = &gradient, .grad_outputs = &g));
    ck_assert_int_eq((int)counted().kernels, 1);

    /* A gradient that is the same everywhere gets the order of images once. */
    ek_tensor *one =
        ek_expand(ek_ones(EK_SHAPE(1, 1, 1, 1), .device = ek_cuda(0)), EK_SHAPE(1, 32, 4, 4));
    ek_tensor *inputs[2] = {x, w}, *gradients[2];
    assert_ok(ek_tensor_set_requires_grad(x, true));
    y = ek_f_conv2d(x, w, NULL);
    assert_made(y);
    counted();
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = inputs, .input_count = 2,
                      .gradients = gradients, .grad_outputs = &one));
    ck_assert_int_eq((int)counted().kernels, 3);
}

/* A product of cuBLASLt that fails says so; one that it refuses is computed in another way. */
TEST(failures)
{
    ek_module *net = ek_sequential(ek_linear(16, 8));
    assert_ok(ek_module_to_device(net, ek_cuda(0)));
    ek_tensor *x = ek_ones(EK_SHAPE(3, 16), .device = ek_cuda(0));
    ek_tensor *wanted = ek_to_device(ek_apply(net, x), ek_cpu());
    ek_emulator_fail_next("cublasLtMatmul", 15, 0);
    assert_close(ek_to_device(ek_apply(net, x), ek_cpu()), wanted, 1e-6, 1e-6);
    ek_emulator_fail_next("cublasLtMatmul", 13, 0);
    assert_refused(ek_apply(net, x), EK_E_BACKEND, "cuBLAS says CUBLAS_STATUS_EXECUTION_FAILED");
    assert_close(ek_to_device(ek_apply(net, x), ek_cpu()), wanted, 0, 0);
    ek_module_free(net);
}
#endif
