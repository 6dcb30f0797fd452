/* Criteria: the operations' values, and what data-parallel reduction asks: denominator and is_sum.
 */
#include "unit.h"

static double scalar_of(ek_tensor *tensor)
{
    double value = -1;
    assert_made(tensor);
    assert_ok(ek_item(tensor, &value));
    return value;
}

static double denominator(ek_module *criterion, ek_tensor *input, ek_tensor *target)
{
    const ek_value values[2] = {EK_VALUE(input), EK_VALUE(target)};
    const ek_args args = {values, 2, ek_value_none()};
    return scalar_of(criterion->type->denominator(criterion, &args));
}

TEST(class_criteria)
{
    ek_manual_seed(2);
    ek_tensor *x = ek_randn(EK_SHAPE(6, 4));
    const int64_t labels[] = {0, 3, 1, -100, 2, 3};
    ek_tensor *target = ek_from_data(labels, EK_SHAPE(6), .dtype = EK_I64);
    const double class_weights[] = {0.5, 1, 2, 4};
    ek_tensor *weight = tensor_of(class_weights, EK_SHAPE(4), EK_F32, ek_cpu());

    ek_module *mean = ek_cross_entropy_loss();
    ck_assert_double_eq(denominator(mean, x, target), 5);
    assert_close(ek_loss(mean, x, target), ek_f_cross_entropy(x, target), 0, 0);
    ck_assert(!mean->type->is_sum(mean));

    ek_module *zero = ek_cross_entropy_loss(.ignore_index = 0);
    const int64_t zeros[] = {0, 3, 1, 0, 2, 3};
    ek_tensor *with_zeros = ek_from_data(zeros, EK_SHAPE(6), .dtype = EK_I64);
    ck_assert_double_eq(denominator(zero, x, with_zeros), 4);
    ck_assert_double_eq(denominator(mean, x, with_zeros), 6);
    assert_close(ek_loss(zero, x, with_zeros), ek_f_cross_entropy(x, with_zeros, .ignore_index = 0),
                 0, 0);

    ek_module *weighted = ek_nll_loss(.weight = weight, .ignore_index = 3);
    const int64_t threes[] = {0, 3, 1, 3, 2, 3};
    ek_tensor *with_threes = ek_from_data(threes, EK_SHAPE(6), .dtype = EK_I64);
    ck_assert_double_eq(denominator(weighted, x, with_threes), 3.5);
    assert_close(ek_loss(weighted, x, with_threes),
                 ek_f_nll_loss(x, with_threes, .weight = weight, .ignore_index = 3), 0, 0);
    ck_assert_ptr_eq(ek_module_tensor(weighted, "weight"), weight);

    /* mean = sum / denominator */
    ek_module *sum = ek_cross_entropy_loss(.reduction = EK_SUM, .label_smoothing = 0.1);
    ek_module *smooth = ek_cross_entropy_loss(.label_smoothing = 0.1);
    ck_assert(sum->type->is_sum(sum));
    ck_assert_double_eq_tol(scalar_of(ek_loss(sum, x, target)),
                            scalar_of(ek_loss(smooth, x, target)) * denominator(smooth, x, target),
                            1e-5);
    ek_module *none = ek_cross_entropy_loss(.reduction = EK_NONE);
    ck_assert_int_eq(ek_tensor_count(ek_loss(none, x, target)), 6);
    ck_assert(!none->type->is_sum(none));

    /* A denominator is of f64 where the loss is. */
    const ek_value values[2] = {EK_VALUE(ek_to_dtype(x, EK_F64)), EK_VALUE(target)};
    const ek_args args = {values, 2, ek_value_none()};
    ck_assert_int_eq(ek_tensor_dtype(mean->type->denominator(mean, &args)), EK_F64);
    ek_module *all[] = {mean, zero, weighted, sum, smooth, none};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        ek_module_free(all[i]);
}

/* Classes in the last dimension: the values of cross entropy, which has them in dimension 1. */
TEST(token_criteria)
{
    ek_manual_seed(2);
    ek_tensor *x = ek_randn(EK_SHAPE(2, 3, 4)), *turned = ek_transpose(x, 1, 2);
    const int64_t words[] = {0, 3, 1, -100, 2, 3};
    ek_tensor *target = ek_from_data(words, EK_SHAPE(2, 3), .dtype = EK_I64);
    ek_tensor *weight = tensor_of((double[]){0.5, 1, 2, 4}, EK_SHAPE(4), EK_F32, ek_cpu());
    ek_module *mean = ek_token_cross_entropy_loss(),
              *zero = ek_token_cross_entropy_loss(.weight = weight, .ignore_index = 3,
                                                  .label_smoothing = 0.1);
    ek_module *none = ek_token_cross_entropy_loss(EK_NONE);
    ck_assert_double_eq(denominator(mean, x, target), 5);
    assert_close(ek_loss(mean, x, target), ek_f_cross_entropy(turned, target), 1e-6, 1e-6);
    const int64_t known[] = {0, 3, 1, 2, 2, 3};
    ek_tensor *all = ek_from_data(known, EK_SHAPE(2, 3), .dtype = EK_I64);
    ck_assert_double_eq(denominator(zero, x, all), 5.5);
    assert_close(ek_loss(zero, x, all),
                 ek_f_cross_entropy(turned, all, .weight = weight, .ignore_index = 3,
                                    .label_smoothing = 0.1),
                 1e-6, 1e-6);
    assert_close(ek_loss(none, x, target), ek_f_cross_entropy(turned, target, .reduction = EK_NONE),
                 1e-6, 1e-6);
    assert_refused(ek_loss(mean, x, ek_zeros(EK_SHAPE(3, 2), EK_I64)), EK_E_SHAPE,
                   "target has shape [3, 2] and must have [2, 3]");
    ek_module_free(mean);
    ek_module_free(zero);
    ek_module_free(none);
}

TEST(element_criteria)
{
    ek_manual_seed(2);
    ek_tensor *x = ek_randn(EK_SHAPE(3, 4)), *y = ek_rand(EK_SHAPE(3, 4));
    ek_tensor *weight = ek_rand(EK_SHAPE(3, 4));
    ek_module *mse = ek_mse_loss(), *l1 = ek_l1_loss(.reduction = EK_SUM);
    ek_module *bce = ek_bce_with_logits_loss(.weight = weight);
    assert_close(ek_loss(mse, x, y), ek_f_mse_loss(x, y), 0, 0);
    assert_close(ek_loss(l1, x, y), ek_f_l1_loss(x, y, .reduction = EK_SUM), 0, 0);
    assert_close(ek_loss(bce, x, y), ek_f_bce_with_logits(x, y, .weight = weight), 0, 0);
    ck_assert_double_eq(denominator(mse, x, y), 12);
    ck_assert_double_eq(denominator(bce, x, y), 12);
    ck_assert(l1->type->is_sum(l1) && !mse->type->is_sum(mse));

    ek_tensor *pos_weight = tensor_of((double[]){1, 0.5, 20, 3}, EK_SHAPE(4), EK_F32, ek_cpu());
    ek_module *positive = ek_bce_with_logits_loss(.weight = weight, .pos_weight = pos_weight);
    assert_close(ek_loss(positive, x, y),
                 ek_f_bce_with_logits(x, y, .weight = weight, .pos_weight = pos_weight), 0, 0);
    ck_assert_double_eq(denominator(positive, x, y), 12);
    ck_assert_ptr_eq(ek_module_tensor(positive, "pos_weight"), pos_weight);
    ck_assert_int_eq(ek_module_numel(positive), 0);
    ek_module_free(positive);
    ek_module_free(mse);
    ek_module_free(l1);
    ek_module_free(bce);
}

/* Views that repeat one element: more pairs than an integer counts. */
TEST(denominators_of_any_size)
{
    ek_module *mse = ek_mse_loss();
    ek_tensor *one = ek_ones(EK_SHAPE(1, 1), EK_F64);
    ek_tensor *x = ek_expand(one, EK_SHAPE(1LL << 40, 1)),
              *y = ek_expand(one, EK_SHAPE(1, 1LL << 40));
    ck_assert_double_eq(denominator(mse, x, y), 0x1p80);
    ek_module_free(mse);
}

TEST(options_out_of_range)
{
    assert_refused(ek_cross_entropy_loss(.label_smoothing = 2), EK_E_INVALID,
                   "between 0 and 1, not 2");
    assert_refused(ek_token_cross_entropy_loss(.label_smoothing = -1), EK_E_INVALID, "not -1");
    assert_refused(ek_mse_loss(.reduction = (ek_reduction)5), EK_E_INVALID, "reduction 5");
    ek_module *mse = ek_mse_loss();
    ek_tensor *x = ek_ones(EK_SHAPE(2));
    assert_refused(ek_loss(mse, x), EK_E_INVALID, "takes 2 inputs, not 1");
    ek_module_free(mse);
}
