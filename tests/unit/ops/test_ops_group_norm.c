/* test_ops_group_norm.c: layer, group and instance normalisation beside the table: orders of
 * memory, bf16, groups of one value, many dimensions; what they refuse. */
#include "core/tensor.h"
#include "kit/tensors.h"

#include "home.h"

/* ---- the gradient of the weight alone ---- */

static ek_tensor *group(ek_tensor *x, ek_tensor *w, ek_tensor *b)
{
    return ek_f_group_norm(x, 2, w, b, 1e-5);
}

static ek_tensor *instance(ek_tensor *x, ek_tensor *w, ek_tensor *b)
{
    return ek_f_instance_norm(x, w, b, 1e-5);
}

static ek_tensor *layer(ek_tensor *x, ek_tensor *w, ek_tensor *b)
{
    return ek_f_layer_norm(x, 2, w, b, 1e-5);
}

TEST_LOOP(gradient_of_the_weight_is_differentiable, 0, 3)
{
    ek_tensor *(*const functions[])(ek_tensor *, ek_tensor *, ek_tensor *) = {group, instance,
                                                                              layer};
    const ek_shape shape = _i < 2 ? EK_SHAPE(4) : EK_SHAPE(3, 5);
    ek_tensor *x = leaf(1, EK_SHAPE(2, 4, 3, 5)), *w = leaf(2, shape), *b = leaf(3, shape);
    ek_tensor *dy = ek_f_tanh(ek_detach(x)), *dw, *dx[2], *y = functions[_i](x, w, b);
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = &w, .input_count = 1,
                      .gradients = &dw, .grad_outputs = &dy, .create_graph = true));
    /* The sum of dy xhat by hand: xhat is the operation without parameters. */
    ek_tensor *product = ek_mul(dy, functions[_i](x, NULL, NULL));
    ek_tensor *sums[] = {dw,
                         _i < 2 ? ek_sum(product, EK_DIMS(0, 2, 3)) : ek_sum_to(product, shape)};
    assert_close(sums[0], sums[1], 1e-11, 1e-11);
    for (int i = 0; i < 2; i++) {
        ek_tensor *total = ek_sum(ek_square(sums[i]));
        assert_ok(ek_grad(.outputs = &total, .output_count = 1, .inputs = &x, .input_count = 1,
                          .gradients = &dx[i]));
    }
    assert_close(dx[0], dx[1], 1e-10, 1e-10);
}

TEST(memory_order_is_kept)
{
    ek_tensor *x = ek_contiguous(ek_reshape(ek_arange(2 * 6 * 4 * 5, EK_F32, test_home()),
                                            EK_SHAPE(2, 6, 4, 5)),
                                 EK_CHANNELS_LAST);
    x = ek_detach(ek_mul(x, x));
    ek_tensor *w = ek_ones(EK_SHAPE(6, 4, 5)), *c = ek_ones(EK_SHAPE(6));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *results[] = {ek_f_group_norm(x, 1, c, c, 1e-5), ek_f_group_norm(x, 3, c, c, 1e-5),
                            ek_f_instance_norm(x, NULL, NULL, 1e-5),
                            ek_f_layer_norm(x, 3, w, w, 1e-5)};
    for (int i = 0; i < 4; i++) {
        assert_made(results[i]);
        ck_assert(ek_same_layout(results[i], x));
        ek_tensor *dy = ek_detach(ek_mul(x, x)), *dx;
        assert_ok(ek_grad(.outputs = &results[i], .output_count = 1, .inputs = &x, .input_count = 1,
                          .gradients = &dx, .grad_outputs = &dy));
        ck_assert(ek_same_layout(dx, x));
    }
}

TEST(bf16_has_f32_statistics)
{
    /* Around 256, bf16 counts in twos: its own sums would be far off. */
    ek_tensor *wide =
        ek_add_scalar(ek_mul_scalar(ek_reshape(ek_arange(2 * 4 * 24, EK_F32, test_home()),
                                               EK_SHAPE(2, 4, 24)),
                                    2.0),
                      256);
    ek_tensor *x = ek_detach(ek_to_dtype(wide, EK_BF16));
    wide = ek_detach(ek_to_dtype(x, EK_F32));
    ek_tensor *c = ek_full(3, EK_SHAPE(4)), *w = ek_full(3, EK_SHAPE(4, 24));
    ek_tensor *pairs[][2] = {
        {ek_f_group_norm(x, 2, c, c, 1e-5), ek_f_group_norm(wide, 2, c, c, 1e-5)},
        {ek_f_instance_norm(x, c, c, 1e-5), ek_f_instance_norm(wide, c, c, 1e-5)},
        {ek_f_layer_norm(x, 2, w, w, 1e-5), ek_f_layer_norm(wide, 2, w, w, 1e-5)}};
    for (int i = 0; i < 3; i++)
        assert_close(pairs[i][0], ek_to_dtype(pairs[i][1], EK_BF16), 8e-3, 1e-2);
    assert_refused(ek_f_group_norm(x, 2, ek_to_dtype(c, EK_BF16), NULL, 1e-5), EK_E_DTYPE,
                   "group_norm: weight has dtype bf16 and must have f32");
    /* Gradients of both orders. */
    assert_ok(ek_tensor_set_requires_grad(x, true));
    assert_ok(ek_tensor_set_requires_grad(c, true));
    ek_tensor *y = ek_sum(ek_square(ek_f_group_norm(x, 2, c, NULL, 1e-5))), *dx;
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &dx, .create_graph = true));
    assert_ok(ek_backward(ek_sum(ek_square(dx))));
    ck_assert(isfinite(element(ek_tensor_grad(x), 5)));
    ck_assert_int_eq(ek_tensor_dtype(ek_tensor_grad(x)), EK_BF16);
    ck_assert_int_eq(ek_tensor_dtype(ek_tensor_grad(c)), EK_F32);
}

TEST(layer_norm_of_every_rank)
{
    ek_tensor *x = ek_reshape(ek_arange(24, EK_F64, test_home()), EK_SHAPE(2, 3, 4));
    x = ek_mul(x, x);
    /* All of x is one row; a transposed x has the same rows in another order. */
    ek_tensor *whole = ek_f_layer_norm(x, 3, NULL, NULL, 1e-5);
    ek_tensor *flat = ek_f_layer_norm(ek_reshape(x, EK_SHAPE(24)), 1, NULL, NULL, 1e-5);
    assert_close(ek_reshape(whole, EK_SHAPE(24)), flat, 1e-14, 1e-14);
    ek_tensor *turned = ek_transpose(x, 0, 1);
    assert_close(ek_f_layer_norm(turned, 1, NULL, NULL, 1e-5),
                 ek_transpose(ek_f_layer_norm(x, 1, NULL, NULL, 1e-5), 0, 1), 1e-14, 1e-14);
    /* A row of one value is 0, and moves nothing. */
    ek_tensor *single = ek_ones(EK_SHAPE(3, 1), EK_F64, .requires_grad = true);
    ek_tensor *y = ek_f_layer_norm(single, 1, NULL, NULL, 1e-5);
    assert_close(y, ek_zeros(EK_SHAPE(3, 1), EK_F64), 0, 0);
    assert_ok(ek_backward(ek_sum(y)));
    assert_close(ek_tensor_grad(single), ek_zeros(EK_SHAPE(3, 1), EK_F64), 0, 0);
}

static ek_tensor *group_of_one(ek_tensor *const *inputs, int count, void *user)
{
    return ek_f_group_norm(inputs[0], 3, inputs[1], inputs[2], 1e-5);
}

/* What varies in no group is the bias, and x and the weight move nothing, in any order. */
TEST(one_value_per_group)
{
    const double x_values[] = {3, -1.7, 1e3, 0.1, 5, -2}, w_values[] = {2, -3, 0.5},
                 b_values[] = {0.25, 7, -1}, c_values[] = {1, 2, 3, 5, 8, 13};
    const ek_shape shapes[] = {EK_SHAPE(2, 3), EK_SHAPE(2, 3, 1, 1)};
    const ek_dtype dtypes[] = {EK_F64, EK_F32, EK_BF16};
    for (int i = 0; i < 6; i++) {
        ek_dtype dtype = dtypes[i / 2], statistic = dtype == EK_F64 ? EK_F64 : EK_F32;
        ek_tensor *x = tensor_of(x_values, shapes[i % 2], dtype, test_home());
        ek_tensor *inputs[] = {x, tensor_of(w_values, EK_SHAPE(3), statistic, test_home()),
                               tensor_of(b_values, EK_SHAPE(3), statistic, test_home())};
        for (int k = 0; k < 3; k++)
            assert_ok(ek_tensor_set_requires_grad(inputs[k], true));
        ek_tensor *y = group_of_one(inputs, 3, NULL);
        assert_made(y);
        ek_tensor *bias = ek_reshape(ek_to_dtype(ek_detach(inputs[2]), dtype), EK_SHAPE(1, 3));
        assert_close(ek_reshape(ek_detach(y), EK_SHAPE(2, 3)), ek_expand(bias, EK_SHAPE(2, 3)), 0,
                     0);
        ek_tensor *dy = tensor_of(c_values, shapes[i % 2], dtype, test_home());
        assert_ok(ek_tensor_set_requires_grad(dy, true));
        ek_tensor *first[3], *second[3];
        assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = inputs, .input_count = 3,
                          .gradients = first, .grad_outputs = &dy, .create_graph = true));
        assert_close(first[0], ek_zeros(shapes[i % 2], dtype), 0, 0);
        assert_close(first[1], ek_zeros(EK_SHAPE(3), statistic), 0, 0);
        assert_close(first[2],
                     tensor_of((const double[]){6, 10, 16}, EK_SHAPE(3), statistic, test_home()), 0,
                     0);
        ek_tensor *total = ek_add(ek_sum(ek_to_dtype(ek_mul(first[0], dy), statistic)),
                                  ek_sum(ek_mul(first[1], inputs[1])));
        ek_tensor *operands[] = {x, inputs[1], dy};
        assert_ok(ek_grad(.outputs = &total, .output_count = 1, .inputs = operands,
                          .input_count = 3, .gradients = second));
        assert_close(second[0], ek_zeros(shapes[i % 2], dtype), 0, 0);
        assert_close(second[1], ek_zeros(EK_SHAPE(3), statistic), 0, 0);
        assert_close(second[2], ek_zeros(shapes[i % 2], dtype), 0, 0);
        if (dtype != EK_F64)
            continue;
        assert_ok(ek_gradcheck(.function = group_of_one, .inputs = inputs, .input_count = 3));
        assert_ok(ek_gradgradcheck(.function = group_of_one, .inputs = inputs, .input_count = 3));
    }
}

/* The largest rank: the second order splits channels into groups, one dimension more. */
static ek_tensor *group_of_eight(ek_tensor *const *inputs, int count, void *user)
{
    ek_tensor *x = ek_reshape(inputs[0], EK_SHAPE(2, 4, 1, 2, 1, 1, 2, 1));
    return *(int *)user ? ek_f_group_norm(x, 2, inputs[1], NULL, 1e-5)
                        : ek_f_layer_norm(x, 7, NULL, NULL, 1e-5);
}

TEST_LOOP(eight_dimensions, 0, 2)
{
    double values[32];
    for (int i = 0; i < 32; i++)
        values[i] = i * i % 11 + 0.1 * i;
    ek_tensor *inputs[] = {tensor_of(values, EK_SHAPE(32), EK_F64, test_home()),
                           tensor_of(values + 3, EK_SHAPE(4), EK_F64, test_home())};
    assert_ok(ek_tensor_set_requires_grad(inputs[0], true));
    int grouped = _i;
    assert_ok(ek_tensor_set_requires_grad(inputs[1], grouped != 0));
    assert_ok(ek_gradcheck(.function = group_of_eight, .inputs = inputs, .input_count = 2,
                           .user = &grouped));
    assert_ok(ek_gradgradcheck(.function = group_of_eight, .inputs = inputs, .input_count = 2,
                               .user = &grouped));
}

TEST(eps_zero_is_said)
{
    const double values[] = {1, 3};
    ek_tensor *x = tensor_of(values, EK_SHAPE(1, 2), EK_F64, test_home());
    ck_assert_double_eq(element(ek_f_layer_norm(x, 1, NULL, NULL, 0), 1), 1);
    ck_assert_double_lt(element(ek_f_layer_norm(x, 1, NULL, NULL, 1e-5), 1), 1);
}

TEST(empty_batch)
{
    ek_tensor *x = ek_zeros(EK_SHAPE(0, 4, 2, 2), .requires_grad = true);
    ek_tensor *w = ek_ones(EK_SHAPE(4), .requires_grad = true);
    ek_tensor *b = ek_zeros(EK_SHAPE(4), .requires_grad = true);
    ek_tensor *y = ek_f_group_norm(x, 2, w, b, 1e-5);
    assert_made(y);
    ck_assert_int_eq(ek_tensor_count(y), 0);
    assert_ok(ek_backward(ek_sum(y)));
    ck_assert_double_eq(element(ek_tensor_grad(w), 3), 0);
    ck_assert_double_eq(element(ek_tensor_grad(b), 3), 0);
    assert_made(ek_f_instance_norm(x, w, b, 1e-5));
    assert_made(ek_f_layer_norm(x, 1, NULL, NULL, 1e-5));
    assert_made(ek_f_instance_norm(ek_zeros(EK_SHAPE(2, 0, 3)), NULL, NULL, 1e-5));
    assert_made(ek_f_group_norm(ek_zeros(EK_SHAPE(2, 3, 0)), 3, NULL, NULL, 1e-5));
}

TEST(refusals)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 6, 2, 2)), *c = ek_ones(EK_SHAPE(6));
    assert_refused(ek_f_group_norm(NULL, 2, c, c, 1e-5), EK_E_INVALID, "group_norm: x is NULL");
    assert_refused(ek_f_group_norm(c, 2, NULL, NULL, 1e-5), EK_E_SHAPE,
                   "expected x of 2 or more dimensions (N, C, ...), got [6]");
    assert_refused(ek_f_group_norm(x, 4, c, c, 1e-5), EK_E_INVALID,
                   "got input size [2, 6, 2, 2] and 4 groups");
    assert_refused(ek_f_group_norm(x, 0, c, c, 1e-5), EK_E_INVALID, "and 0 groups");
    assert_refused(ek_f_group_norm(x, 2, ek_ones(EK_SHAPE(2)), c, 1e-5), EK_E_SHAPE,
                   "group_norm: weight has shape [2] and must have [6]");
    assert_refused(ek_f_group_norm(x, 2, c, ek_ones(EK_SHAPE(6), EK_F64), 1e-5), EK_E_DTYPE,
                   "group_norm: bias has dtype f64 and must have f32");
    assert_refused(ek_f_group_norm(x, 2, c, c, -1), EK_E_INVALID,
                   "group_norm: eps must not be negative, got -1");
    assert_refused(ek_f_group_norm(ek_ones(EK_SHAPE(1, 6)), 6, NULL, NULL, 1e-5), EK_E_SHAPE,
                   "more than 1 value per group or a batch of more than 1, got input size "
                   "[1, 6] and 6 groups");
    assert_refused(ek_f_group_norm(ek_ones(EK_SHAPE(1, 6, 1, 1)), 6, NULL, NULL, 1e-5), EK_E_SHAPE,
                   "got input size [1, 6, 1, 1] and 6 groups");
    assert_refused(ek_f_group_norm(ek_ones(EK_SHAPE(4, 6), EK_I64), 2, NULL, NULL, 1e-5),
                   EK_E_DTYPE, "group_norm: x has dtype i64");

    assert_refused(ek_f_instance_norm(ek_ones(EK_SHAPE(2, 6, 1, 1)), c, c, 1e-5), EK_E_SHAPE,
                   "instance_norm: expected more than 1 spatial element, got input size "
                   "[2, 6, 1, 1]");
    assert_refused(ek_f_instance_norm(ek_ones(EK_SHAPE(2, 6)), c, c, 1e-5), EK_E_SHAPE,
                   "instance_norm: expected x of 3 or more dimensions");

    assert_refused(
        ek_f_layer_norm(x, 5, NULL, NULL, 1e-5), EK_E_SHAPE,
        "layer_norm: cannot normalise over the last 5 dimensions of [2, 6, 2, 2]; 1 to 4 "
        "can be");
    assert_refused(ek_f_layer_norm(ek_reshape(x, EK_SHAPE(2, 1, 1, 6, 1, 2, 1, 2)), 8, NULL, NULL,
                                   1e-5),
                   EK_E_SHAPE, "last 8 dimensions of [2, 1, 1, 6, 1, 2, 1, 2]; 1 to 7 can be");
    assert_refused(ek_f_layer_norm(x, 0, NULL, NULL, 1e-5), EK_E_SHAPE,
                   "over the last 0 dimensions");
    assert_refused(ek_f_layer_norm(x, 2, c, NULL, 1e-5), EK_E_SHAPE,
                   "layer_norm: weight has shape [6] and must have [2, 2]");
}
