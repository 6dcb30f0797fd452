/* Sequences: order, ownership, what they free on the way, batch norm and ReLU in one pass. */
#include "unit.h"

TEST(runs_in_order)
{
    ek_module *first = ek_linear(3, 3), *second = ek_linear(3, 3);
    ek_module *net = ek_sequential(first, ek_tanh(), second);
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3));
    assert_close(ek_apply(net, x), ek_apply(second, ek_f_tanh(ek_apply(first, x))), 0, 0);
    ek_module_free(net);

    /* The input itself if there is nothing to do; a list passes through. */
    net = ek_sequential(ek_identity());
    ck_assert_ptr_eq(ek_apply(net, x), x);
    ek_module_free(net);
    net = ek_sequential_of(NULL, 0);
    ck_assert_ptr_eq(ek_apply(net, x), x);
    ck_assert_int_eq(ek_value_length(ek_forward(net, EK_LIST(x, x))), 2);
    ek_module_free(net);
}

TEST(owns_all_also_when_one_failed)
{
    assert_refused(ek_sequential(ek_linear(3, 3), ek_linear(3, 0), ek_linear(3, 3)), EK_E_INVALID,
                   "out_features 0");
    assert_refused(ek_sequential(ek_relu(), NULL), EK_E_INVALID, "module 1 is NULL");
    assert_refused(ek_sequential_of(NULL, 2), EK_E_INVALID, "sequential: 2 modules at NULL");
    /* The same module in two places has one set of weights. */
    ek_module *layer = ek_linear(3, 3);
    ek_module *net = ek_sequential(layer, ek_relu(), layer);
    ck_assert_int_eq(ek_module_numel(net), 12);
    ek_module_free(net);
}

enum { LAYERS = 6, WIDTH = 64, BATCH = 128 };

/* With `gelu`, every second layer is a GELU, which is one operation with the linear layer before.
 */
static uint64_t peak_of_forward(bool grad, bool gelu)
{
    ek_module *layers[LAYERS];
    for (int i = 0; i < LAYERS; i++)
        layers[i] = gelu && i % 2 ? ek_gelu(EK_GELU_NONE) : ek_linear(WIDTH, WIDTH);
    ek_module *net = ek_sequential_of(layers, LAYERS);
    assert_ok(ek_module_to_device(net, test_device(0)));
    ek_tensor *x = ek_ones(EK_SHAPE(BATCH, WIDTH), .device = test_device(0));
    bool before = ek_set_grad_enabled(grad);
    ek_memory_stats start, end;
    assert_ok(ek_memory_reset_peak(test_device(0)));
    assert_ok(ek_memory_get_stats(test_device(0), &start));
    assert_made(ek_apply(net, x));
    assert_ok(ek_memory_get_stats(test_device(0), &end));
    ek_set_grad_enabled(before);
    ek_module_free(net);
    return end.at_peak[EK_MEMORY_ACTIVATION] - start.now[EK_MEMORY_ACTIVATION];
}

/* Without a graph two activations are alive at a time; with one, all that the layers read. */
TEST_LOOP(frees_what_no_graph_holds, 0, 2)
{
    uint64_t activation = sizeof(float) * WIDTH * BATCH;
    ck_assert_uint_eq(peak_of_forward(false, _i), 2 * activation);
    ck_assert_uint_eq(peak_of_forward(true, _i), LAYERS * activation);
}

/* The output stays the caller's alone. */
TEST(leaves_nothing_behind)
{
    ek_module *net = ek_sequential(ek_linear(4, 4), ek_sequential(ek_relu(), ek_tanh()));
    ek_tensor *x = ek_ones(EK_SHAPE(1, 4));
    ek_set_grad_enabled(false);
    ek_memory_stats before, after;
    assert_ok(ek_memory_get_stats(ek_cpu(), &before));
    ek_scope call = ek_scope_begin();
    ek_tensor *y = ek_scope_return(&call, ek_apply(net, x));
    assert_made(y);
    assert_ok(ek_memory_get_stats(ek_cpu(), &after));
    ck_assert_uint_eq(after.in_use - before.in_use, 64);
    ek_module_free(net);
}

/* A linear layer and a ReLU are one operation in a sequence, with the bits of two; gradients and
 * gradients of gradients too. */
TEST_LOOP(linear_and_relu_fused, 0, 3)
{
    const ek_dtype dtype = (ek_dtype)_i;
    ek_manual_seed(12);
    ek_module *layer = ek_linear(7, 5), *net = ek_sequential(layer, ek_relu(), ek_identity());
    assert_ok(ek_module_to_device(net, test_device(0)));
    assert_ok(ek_module_to_dtype(net, dtype));
    ek_tensor *x = ek_randn(EK_SHAPE(2, 3, 7), .dtype = dtype, .device = test_device(0));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *w = ek_randn(EK_SHAPE(2, 3, 5), .dtype = dtype, .device = test_device(0));
    ek_tensor *inputs[3] = {x, ek_module_tensor(layer, "weight"), ek_module_tensor(layer, "bias")};
    ek_tensor *outputs[2], *gradients[2][3], *second[2][2];
    for (int i = 0; i < 2; i++) {
        outputs[i] = i ? ek_f_relu(ek_apply(layer, x)) : ek_apply(net, x);
        ek_tensor *loss = ek_sum(ek_mul(w, ek_square(outputs[i])));
        assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = inputs, .input_count = 3,
                          .gradients = gradients[i], .create_graph = true));
        ek_tensor *square = ek_sum(ek_square(gradients[i][0]));
        assert_ok(ek_grad(.outputs = &square, .output_count = 1, .inputs = inputs, .input_count = 2,
                          .gradients = second[i]));
    }
    assert_close(outputs[0], outputs[1], 0, 0);
    for (int k = 0; k < 3; k++)
        assert_close(gradients[0][k], gradients[1][k], 0, 0);
    for (int k = 0; k < 2; k++)
        assert_close(second[0][k], second[1][k], 0, 0);
    assert_refused(ek_apply(net, ek_ones(EK_SHAPE(2, 5), .device = test_device(0))),
                   dtype == EK_F32 ? EK_E_SHAPE : EK_E_DTYPE, "sequential: 0 (linear): ");
    ek_module_free(net);
}

/* In a sequence they are one operation; apart, two. Both give the same, gradients and buffers too.
 */
TEST(batch_norm_and_relu_fused)
{
    ek_manual_seed(11);
    ek_tensor *x = ek_randn(EK_SHAPE(4, 5, 6, 6), .dtype = EK_F64, .requires_grad = true);
    ek_module *fused = ek_batch_norm2d(5), *apart = ek_batch_norm2d(5);
    assert_ok(ek_init_normal(ek_module_tensor(fused, "weight"), 0, 1));
    assert_ok(ek_init_normal(ek_module_tensor(fused, "bias"), 0, 1));
    ek_set_grad_enabled(false);
    ek_copy_(ek_module_tensor(apart, "weight"), ek_module_tensor(fused, "weight"));
    ek_copy_(ek_module_tensor(apart, "bias"), ek_module_tensor(fused, "bias"));
    ek_set_grad_enabled(true);
    ek_module *net = ek_sequential(fused, ek_relu(), ek_identity());
    assert_ok(ek_module_to_dtype(net, EK_F64));
    assert_ok(ek_module_to_dtype(apart, EK_F64));
    for (int training = 1; training >= 0; training--) {
        ek_module_train(net, training);
        ek_module_train(apart, training);
        ek_tensor *w = ek_randn(EK_SHAPE(4, 5, 6, 6), .dtype = EK_F64);
        ek_tensor *gradients[2][3];
        ek_tensor *outputs[2];
        for (int i = 0; i < 2; i++) {
            ek_module *norm = i ? apart : fused;
            outputs[i] = i ? ek_f_relu(ek_apply(apart, x)) : ek_apply(net, x);
            ek_tensor *loss = ek_sum(ek_mul(w, outputs[i]));
            ek_tensor *inputs[3] = {x, ek_module_tensor(norm, "weight"),
                                    ek_module_tensor(norm, "bias")};
            assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = inputs,
                              .input_count = 3, .gradients = gradients[i]));
        }
        assert_close(outputs[0], outputs[1], 1e-12, 1e-12);
        for (int k = 0; k < 3; k++)
            assert_close_norm(gradients[0][k], gradients[1][k], 1e-12);
    }
    assert_close(ek_module_tensor(net, "0.running_var"), ek_module_tensor(apart, "running_var"),
                 1e-12, 0);
    ck_assert_double_eq(element(ek_module_tensor(net, "0.num_batches_tracked"), 0), 1);
    /* An error carries the place also there. */
    assert_refused(ek_apply(net, ek_ones(EK_SHAPE(2, 5))), EK_E_SHAPE,
                   "sequential: 0 (batch_norm2d): ");
    ek_module_free(net);
    ek_module_free(apart);
}

/* A ReLU before maxima passes over the maxima: outputs and gradients are those of the written
 * order, ties and negative windows included, and a graph holds less. */
TEST_LOOP(maxima_come_before_a_relu, 0, 2)
{
    const ek_dtype dtype = (ek_dtype)_i;
    ek_manual_seed(13);
    ek_module *net = ek_sequential(ek_relu(), ek_max_pool2d(2), ek_identity());
    ek_tensor *x = ek_randn(EK_SHAPE(3, 20, 8, 6), .dtype = dtype, .device = test_device(0));
    x = ek_f_hardtanh(ek_mul_scalar(x, 2), -1, 1);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *w = ek_randn(EK_SHAPE(3, 20, 4, 3), .dtype = dtype, .device = test_device(0));
    ek_tensor *outputs[2], *gradients[2];
    uint64_t held[2];
    for (int i = 0; i < 2; i++) {
        ek_memory_stats before, after;
        assert_ok(ek_memory_get_stats(test_device(0), &before));
        ek_scope call = ek_scope_begin();
        outputs[i] =
            ek_scope_return(&call, i ? ek_f_max_pool2d(ek_f_relu(x), 2) : ek_apply(net, x));
        assert_ok(ek_memory_get_stats(test_device(0), &after));
        held[i] = after.in_use - before.in_use;
        ek_tensor *loss = ek_sum(ek_mul(w, outputs[i]));
        assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &x, .input_count = 1,
                          .gradients = &gradients[i]));
    }
    assert_close(outputs[0], outputs[1], 0, 0);
    assert_close(gradients[0], gradients[1], 0, 0);
    ck_assert_uint_lt(held[0], held[1]);
    ek_module_free(net);
}

TEST(parameters_and_buffers_are_no_layers)
{
    ek_module *net = ek_sequential(ek_identity(), ek_relu());
    assert_ok(ek_register_buffer(net, "seen", NULL, ek_zeros(EK_SHAPE(1))));
    assert_ok(ek_register_parameter(net, "scale", NULL, ek_ones(EK_SHAPE(1))));
    ek_tensor *y = ek_apply(net, ek_full(-2, EK_SHAPE(3)));
    assert_close(y, ek_zeros(EK_SHAPE(3)), 0, 0);
    ek_module_free(net);
}
