/* test_norm_modules.c: the modules of normalisation beside batch_norm1d and 2d. */
#include "nn/nn.h"
#include "unit.h"

/* x of this shape: values without a pattern that a norm could hide. */
static ek_tensor *picture(ek_shape shape)
{
    ek_tensor *x = ek_zeros(shape);
    ek_manual_seed(3);
    assert_ok(ek_init_normal(x, 1, 2));
    return x;
}

/* Two parameters of this shape, of values 1 and 0. */
static void assert_affine(ek_module *module, ek_shape shape)
{
    int64_t count = 2;
    for (int i = 0; i < shape.ndim; i++)
        count *= shape.dims[i];
    ck_assert_int_eq(ek_module_numel(module), count);
    assert_close(ek_module_tensor(module, "weight"), ek_ones(shape), 0, 0);
    assert_close(ek_module_tensor(module, "bias"), ek_zeros(shape), 0, 0);
}

TEST(layer_norm)
{
    ek_tensor *x = picture(EK_SHAPE(2, 3, 4, 5));
    ek_module *norm = ek_layer_norm(EK_SHAPE(4, 5));
    assert_affine(norm, EK_SHAPE(4, 5));
    assert_close(ek_apply(norm, x), ek_f_layer_norm(x, 2, NULL, NULL, 1e-5), 1e-6, 1e-6);
    ek_fill_(ek_detach(ek_module_tensor(norm, "weight")), 2);
    ek_fill_(ek_detach(ek_module_tensor(norm, "bias")), 1);
    ek_tensor *y = ek_apply(norm, x);
    assert_close(y, ek_add_scalar(ek_mul_scalar(ek_f_layer_norm(x, 2, NULL, NULL, 1e-5), 2), 1),
                 1e-6, 1e-6);
    assert_ok(ek_backward(ek_sum(ek_square(y))));
    assert_made(ek_tensor_grad(ek_module_tensor(norm, "weight")));
    assert_refused(
        ek_apply(norm, picture(EK_SHAPE(4, 4))), EK_E_SHAPE,
        "given normalized_shape [4, 5], expected an input that ends in it, got input size "
        "[4, 4]");
    assert_refused(ek_apply(norm, picture(EK_SHAPE(5))), EK_E_SHAPE, "got input size [5]");
    ek_module_free(norm);

    norm = ek_layer_norm(EK_SHAPE(5), .affine = false, .eps = 0.5);
    ck_assert_int_eq(ek_module_numel(norm), 0);
    assert_close(ek_apply(norm, x), ek_f_layer_norm(x, 1, NULL, NULL, 0.5), 0, 0);
    ek_module_free(norm);
}

TEST(group_norm)
{
    ek_tensor *x = picture(EK_SHAPE(2, 6, 3, 3));
    ek_module *norm = ek_group_norm(3, 6);
    assert_affine(norm, EK_SHAPE(6));
    assert_close(ek_apply(norm, x), ek_f_group_norm(x, 3, NULL, NULL, 1e-5), 1e-6, 1e-6);
    assert_refused(ek_apply(norm, picture(EK_SHAPE(2, 3, 3, 3))), EK_E_SHAPE,
                   "expected an input (N, 6, ...), got f32[2, 3, 3, 3]");
    assert_refused(ek_apply(norm, picture(EK_SHAPE(6))), EK_E_SHAPE,
                   "expected an input (N, 6, ...)");
    ek_module_free(norm);

    norm = ek_group_norm(1, 6, .affine = false);
    ck_assert_int_eq(ek_module_numel(norm), 0);
    /* One group of everything is a layer norm over everything. */
    assert_close(ek_apply(norm, x), ek_f_layer_norm(x, 3, NULL, NULL, 1e-5), 1e-5, 1e-6);
    ek_module_free(norm);
}

TEST(instance_norm)
{
    const ek_shape shapes[] = {EK_SHAPE(2, 3, 5), EK_SHAPE(2, 3, 4, 5), EK_SHAPE(2, 3, 2, 4, 3)};
    for (int i = 0; i < 3; i++) {
        ek_module *norm = i == 0   ? ek_instance_norm1d(3)
                          : i == 1 ? ek_instance_norm2d(3)
                                   : ek_instance_norm3d(3);
        ck_assert_int_eq(ek_module_numel(norm), 0);
        ek_tensor *x = picture(shapes[i]), *y = ek_apply(norm, x);
        assert_close(y, ek_f_group_norm(x, 3, NULL, NULL, 1e-5), 1e-6, 1e-6);
        /* The same in evaluation: statistics are the sample's. */
        ek_module_train(norm, false);
        assert_close(ek_apply(norm, x), y, 0, 0);
        assert_refused(ek_apply(norm, picture(shapes[(i + 1) % 3])), EK_E_SHAPE,
                       "dimensions with 3 channels, got f32[2, 3, ");
        ek_module_free(norm);
    }
    ek_module *norm = ek_instance_norm2d(3, .affine = true, .track_running_stats = false);
    assert_affine(norm, EK_SHAPE(3));
    assert_refused(ek_apply(norm, picture(EK_SHAPE(2, 4, 3, 3))), EK_E_SHAPE,
                   "4 dimensions with 3 channels, got f32[2, 4, 3, 3]");
    assert_refused(ek_apply(norm, picture(EK_SHAPE(2, 3, 1, 1))), EK_E_SHAPE,
                   "expected more than 1 spatial element");
    ek_module_free(norm);
}

TEST(batch_norm_of_volumes)
{
    ek_tensor *x = picture(EK_SHAPE(2, 3, 2, 4, 3));
    ek_module *norm = ek_batch_norm3d(3);
    ck_assert(ek_module_is_batch_norm(norm));
    assert_affine(norm, EK_SHAPE(3));
    ek_tensor *y = ek_apply(norm, x);
    assert_close(y, ek_f_batch_norm(x, .training = true), 1e-6, 1e-6);
    ck_assert_double_eq(element(ek_module_tensor(norm, "num_batches_tracked"), 0), 1);
    assert_refused(ek_apply(norm, picture(EK_SHAPE(2, 3, 4, 3))), EK_E_SHAPE,
                   "expected an input of 5 dimensions, got f32[2, 3, 4, 3]");
    ek_module_free(norm);
}

/* An input without samples or without pixels says nothing about the statistics. */
TEST(nothing_moves_no_statistics)
{
    ek_module *norm = ek_instance_norm1d(3, .track_running_stats = true);
    ek_tensor *mean = ek_module_tensor(norm, "running_mean");
    ek_tensor *var = ek_module_tensor(norm, "running_var");
    assert_made(ek_apply(norm, ek_ones(EK_SHAPE(0, 3, 4))));
    assert_made(ek_apply(norm, ek_ones(EK_SHAPE(2, 3, 0))));
    assert_close(mean, ek_zeros(EK_SHAPE(3)), 0, 0);
    assert_close(var, ek_ones(EK_SHAPE(3)), 0, 0);
    ek_module_free(norm);
}

/* Averages over all batches, as torch's momentum=None: each weighs as much as any other. */
TEST(cumulative_averages)
{
    enum { BATCHES = 3 };
    ek_module *norm = ek_batch_norm2d(3, .momentum = EK_CUMULATIVE);
    double mean = 0, var = 0;
    for (int i = 0; i < BATCHES; i++) {
        ek_tensor *x = ek_mul_scalar(picture(EK_SHAPE(2, 3, 4, 3)), i + 1);
        assert_made(ek_apply(norm, x));
        ek_tensor *channel = ek_select(x, 1, 1);
        mean += element(ek_mean(channel), 0) / BATCHES;
        var += element(ek_var(channel), 0) / BATCHES;
    }
    ck_assert_double_eq(element(ek_module_tensor(norm, "num_batches_tracked"), 0), BATCHES);
    ck_assert_double_eq_tol(element(ek_module_tensor(norm, "running_mean"), 1), mean, 1e-5);
    ck_assert_double_eq_tol(element(ek_module_tensor(norm, "running_var"), 1), var, 1e-5 * var);
    ek_module_free(norm);
}

TEST(refusals)
{
    assert_refused(ek_instance_norm2d(3, .momentum = 2), EK_E_INVALID,
                   "instance_norm2d: eps 1e-05 has to be at least 0, momentum 2 between");
    assert_refused(ek_instance_norm2d(3, .momentum = EK_CUMULATIVE), EK_E_INVALID,
                   "instance_norm2d: momentum must be between 0 and 1; EK_CUMULATIVE is for batch");
    assert_refused(ek_layer_norm(EK_SHAPE(3, 0)), EK_E_INVALID, "normalized_shape needs 1 to");
    assert_refused(ek_layer_norm(.affine = false), EK_E_INVALID, "normalized_shape needs 1 to");
    assert_refused(ek_layer_norm(EK_SHAPE(3), .eps = -1), EK_E_INVALID, "layer_norm: eps -1");
    assert_refused(ek_group_norm(2, 3), EK_E_INVALID, "got 3 channels and 2 groups");
    assert_refused(ek_group_norm(0, 3), EK_E_INVALID, "got 3 channels and 0 groups");
    assert_refused(ek_group_norm(1, 3, .eps = -2), EK_E_INVALID, "group_norm: eps -2");
    assert_refused(ek_instance_norm1d(0), EK_E_INVALID, "instance_norm1d: features");
    assert_refused(ek_instance_norm3d(3, .eps = -1), EK_E_INVALID, "instance_norm3d: eps -1");
}
