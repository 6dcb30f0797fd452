/* test_ops_loss.c: softmax and losses beside the table: their corners and refusals. */
#include "core/tensor.h"

#include "home.h"

static ek_tensor *targets(const int64_t *values, ek_shape shape)
{
    return ek_from_data(values, shape, EK_I64);
}

TEST(cross_entropy_is_nll_of_log_softmax)
{
    const double values[] = {2, -1, 0.5, 3, 0, 1, -2, 4};
    ek_tensor *x = tensor_of(values, EK_SHAPE(2, 4), EK_F64, test_home());
    ek_tensor *t = targets((const int64_t[]){3, 0}, EK_SHAPE(2));
    assert_close(ek_f_cross_entropy(x, t), ek_f_nll_loss(ek_f_log_softmax(x, 1), t), 1e-14, 0);
}

TEST(nothing_that_counts)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3), .requires_grad = true);
    ek_tensor *t = targets((const int64_t[]){255, 255}, EK_SHAPE(2));
    double value;
    assert_ok(ek_item(ek_f_cross_entropy(x, t, .ignore_index = 255), &value));
    ck_assert_double_nan(value);
    assert_ok(ek_item(ek_f_nll_loss(x, t, .ignore_index = 255), &value));
    ck_assert_double_nan(value);
    ek_tensor *sum = ek_f_cross_entropy(x, t, .reduction = EK_SUM, .ignore_index = 255);
    assert_ok(ek_item(sum, &value));
    ck_assert_double_eq(value, 0);
    assert_ok(ek_backward(sum));
    ck_assert_double_eq(element(ek_tensor_grad(x), 5), 0);
}

TEST(ignored_elements_hide_infinities)
{
    const double values[] = {-INFINITY, 0, 0, 0};
    ek_tensor *x = tensor_of(values, EK_SHAPE(2, 2), EK_F64, test_home());
    ek_tensor *t = targets((const int64_t[]){-100, 1}, EK_SHAPE(2));
    double value;
    assert_ok(ek_item(ek_f_nll_loss(x, t, .reduction = EK_SUM), &value));
    ck_assert_double_eq(value, 0);
}

TEST(target_weight_is_the_denominator)
{
    const double values[] = {0.5, 1, 2};
    ek_tensor *weight = tensor_of(values, EK_SHAPE(3), EK_F64, test_home());
    ek_tensor *t = targets((const int64_t[]){0, 2, 255, 2}, EK_SHAPE(2, 2));
    double value;
    assert_ok(ek_item(ek_target_weight(t, weight, 255, EK_F64), &value));
    ck_assert_double_eq(value, 4.5);
    ek_tensor *count = ek_target_weight(t, NULL, 255, EK_F32);
    assert_ok(ek_item(count, &value));
    ck_assert_double_eq(value, 3);
    ck_assert_int_eq(ek_tensor_dtype(count), EK_F32);
    ck_assert_int_eq(ek_tensor_ndim(count), 0);
    assert_ok(ek_item(ek_target_weight(t, NULL, 0, EK_F32), &value));
    ck_assert_double_eq(value, 3);
}

TEST(mean_saves_no_log_probabilities)
{
    /* What stays for backward beside the logits: lse, and the mean's scalars. */
    const ek_device host = test_device(0);
    ek_tensor *x = ek_zeros(EK_SHAPE(4, 16, 128, 128), .device = host, .requires_grad = true);
    ek_tensor *t = ek_zeros(EK_SHAPE(4, 128, 128), EK_I64, host);
    ek_memory_stats before, after;
    assert_ok(ek_memory_get_stats(host, &before));
    assert_ok(ek_memory_reset_peak(host));
    ek_tensor *loss = ek_f_cross_entropy(x, t);
    assert_made(loss);
    assert_ok(ek_memory_get_stats(host, &after));
    const size_t elements = 4 * 128 * 128 * sizeof(float), slack = 1024, workspace = 65536;
    ck_assert_uint_le(after.in_use - before.in_use, elements + slack);
    ck_assert_uint_le(after.peak - before.in_use, 2 * elements + workspace);
    /* Backward adds the logits' gradient. */
    assert_ok(ek_memory_reset_peak(host));
    assert_ok(ek_backward(loss));
    assert_ok(ek_memory_get_stats(host, &after));
    ck_assert_uint_le(after.peak - before.in_use, 17 * elements + workspace);
}

/* The logits' memory, and that of their gradient. */
typedef struct addresses {
    const void *logits, *gradient;
} addresses;

static ek_tensor *note_gradient(ek_tensor *gradient, void *user)
{
    ((addresses *)user)->gradient = ek_tensor_address(gradient);
    return gradient;
}

/* Who beside cross entropy's node has the logits. */
typedef enum holder { NOBODY, A_SCOPE, A_VIEW, ANOTHER_NODE, HOLDERS } holder;

/* Returns the loss of logits 3 w and, for ANOTHER_NODE, of their squares. */
static ek_tensor *loss_of_held(ek_tensor *w, ek_dtype dtype, holder who, addresses *noted,
                               ek_tensor **held)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *logits = ek_to_dtype(ek_mul_scalar(w, 3), dtype);
    assert_made(logits);
    noted->logits = ek_tensor_address(logits);
    ck_assert_int_gt(ek_tensor_register_hook(logits, note_gradient, noted), 0);
    const ek_autocast region = ek_autocast_begin(EK_BF16);
    ek_tensor *loss =
        ek_f_cross_entropy(logits, targets((const int64_t[]){3, 0, -100}, EK_SHAPE(3)),
                           .label_smoothing = 0.1);
    ek_autocast_end(&region);
    if (who == ANOTHER_NODE)
        loss = ek_add(loss, ek_to_dtype(ek_sum(ek_square(logits)), loss->dtype));
    *held = who == A_SCOPE  ? ek_keep(logits)
            : who == A_VIEW ? ek_keep(ek_narrow(logits, 0, 1, 1))
                            : NULL;
    return ek_scope_return(&scope, loss);
}

TEST_LOOP(gradient_takes_memory_that_nobody_reads, 0, (2 * HOLDERS))
{
    const ek_dtype dtype = _i % 2 ? EK_BF16 : EK_F32;
    const holder who = _i / 2;
    const double values[] = {2, -1, 0.5, 3, 0, 1, -2, 4, 5, -0.25, 1, 2};
    ek_tensor *gradients[2], *held;
    for (int retained = 0; retained < 2; retained++) {
        ek_tensor *w = tensor_of(values, EK_SHAPE(3, 4), EK_F32, test_home());
        assert_ok(ek_tensor_set_requires_grad(w, true));
        addresses noted = {NULL, NULL};
        ek_tensor *loss = loss_of_held(w, dtype, who, &noted, &held);
        assert_ok(ek_backward(loss, .retain_graph = retained));
        ck_assert_int_eq(noted.gradient == noted.logits, who == NOBODY && !retained);
        if (held)
            ck_assert_double_eq(element(held, 0), who == A_SCOPE ? 6 : 0);
        ek_release(held);
        if (retained)
            assert_ok(ek_backward(loss));
        gradients[retained] = ek_tensor_grad(w);
    }
    assert_close(ek_mul_scalar(gradients[0], 2), gradients[1], 0, 0);
}

TEST(bf16_probabilities_sum_to_one)
{
    /* lse is about 100, where bf16 steps by 0.5. */
    const double values[] = {100, 99, 98, 97};
    ek_tensor *x = tensor_of(values, EK_SHAPE(1, 4), EK_BF16, test_home());
    assert_ok(ek_tensor_set_requires_grad(x, true));
    assert_ok(ek_backward(
        ek_f_cross_entropy(x, targets((const int64_t[]){0}, EK_SHAPE(1)), .reduction = EK_SUM)));
    ek_tensor *gradient = ek_tensor_grad(x);
    double total = 0;
    for (int64_t i = 0; i < 4; i++)
        total += element(gradient, i);
    ck_assert_double_eq_tol(total, 0, 5e-3);
    ck_assert_double_eq_tol(element(gradient, 1), 0.2369, 2e-3);
}

TEST(bce_keeps_small_losses)
{
    const double values[] = {80, -80}, ones[] = {1, 0};
    ek_tensor *x = tensor_of(values, EK_SHAPE(2), EK_F64, test_home());
    ek_tensor *t = tensor_of(ones, EK_SHAPE(2), EK_F64, test_home());
    ek_tensor *loss = ek_f_bce_with_logits(x, t, .reduction = EK_NONE);
    assert_made(loss);
    ck_assert_double_eq_tol(element(loss, 0) / exp(-80), 1, 1e-12);
    ck_assert_double_eq_tol(element(loss, 1) / exp(-80), 1, 1e-12);
}

TEST(bce_weights_carry_gradients)
{
    const double values[] = {1, -2, 0.5, 3}, positive[] = {1, 0, 0.5, 1};
    ek_tensor *x = tensor_of(values, EK_SHAPE(2, 2), EK_F64, test_home());
    ek_tensor *t = tensor_of(positive, EK_SHAPE(2, 2), EK_F64, test_home());
    ek_tensor *weight = ek_ones(EK_SHAPE(2), EK_F64, .requires_grad = true);
    ek_tensor *pos_weight = ek_ones(EK_SHAPE(2), EK_F64, .requires_grad = true);
    ek_tensor *loss = ek_f_bce_with_logits(x, t, weight, EK_SUM, .pos_weight = pos_weight);
    assert_ok(ek_backward(loss));
    ck_assert_double_eq_tol(element(ek_tensor_grad(pos_weight), 1), log1p(exp(-3)), 1e-12);
    ck_assert_double_eq_tol(element(ek_tensor_grad(weight), 0) + element(ek_tensor_grad(weight), 1),
                            element(loss, 0), 1e-12);
}

TEST(class_refusals)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3));
    ek_tensor *t = targets((const int64_t[]){0, 2}, EK_SHAPE(2));
    assert_refused(ek_f_cross_entropy(x, NULL), EK_E_INVALID, "cross_entropy: target is NULL");
    assert_refused(
        ek_f_cross_entropy(x, ek_zeros(EK_SHAPE(2))), EK_E_SHAPE,
        "cross_entropy: a target of dtype f32 is probabilities and must have the input's "
        "shape, [2, 3], not [2]; classes have dtype i64 or i32");
    assert_refused(ek_f_nll_loss(x, targets((const int64_t[]){0, 1, 2}, EK_SHAPE(3))), EK_E_SHAPE,
                   "nll_loss: target has shape [3] and must have [2]");
    assert_refused(ek_f_cross_entropy(x, t, ek_ones(EK_SHAPE(2))), EK_E_SHAPE,
                   "cross_entropy: weight has shape [2] and must have [3]");
    assert_refused(ek_f_cross_entropy(ek_ones(EK_SHAPE(3)), t), EK_E_SHAPE,
                   "expected an input of 2 or more dimensions (N, C, ...)");
    assert_refused(ek_f_cross_entropy(x, t, .label_smoothing = 1.5), EK_E_INVALID,
                   "label_smoothing must be in [0, 1], got 1.5");
    assert_refused(ek_f_cross_entropy(x, t, .reduction = (ek_reduction)7), EK_E_INVALID,
                   "reduction must be EK_MEAN, EK_SUM or EK_NONE, got 7");
    ek_tensor *outside = targets((const int64_t[]){0, 3}, EK_SHAPE(2));
    assert_refused(settled_tensor(ek_f_cross_entropy(x, outside)), EK_E_INVALID, "3");
    assert_refused(settled_tensor(ek_f_nll_loss(x, outside)), EK_E_INVALID,
                   test_kind() == EK_HOST ? "nll_loss: " : "gather on ");
    assert_refused(settled_tensor(ek_f_nll_loss(x, targets((const int64_t[]){0, -1}, EK_SHAPE(2)))),
                   EK_E_INVALID, "-1");
    assert_refused(ek_target_weight(t, NULL, 0, EK_I64), EK_E_DTYPE,
                   "target_weight: dtype must be floating, got i64");
    assert_made(ek_f_cross_entropy(x, outside, .ignore_index = 3));
}

TEST(pair_refusals)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 1));
    assert_refused(ek_f_mse_loss(NULL, x), EK_E_INVALID, "mse_loss: input is NULL");
    assert_refused(ek_f_mse_loss(x, ek_ones(EK_SHAPE(2))), EK_E_SHAPE,
                   "mse_loss: target has shape [2] and must have [2, 1]");
    assert_refused(ek_f_l1_loss(x, ek_ones(EK_SHAPE(2, 1), EK_F64)), EK_E_DTYPE,
                   "l1_loss: operands of dtype f32 and f64");
    assert_refused(ek_f_bce_with_logits(x, x, ek_ones(EK_SHAPE(2, 3))), EK_E_SHAPE,
                   "weight of shape [2, 3] does not broadcast to the input's [2, 1]");
    assert_refused(ek_f_bce_with_logits(x, x, .pos_weight = ek_ones(EK_SHAPE(5, 1))), EK_E_SHAPE,
                   "bce_with_logits: shapes [2, 1] and [5, 1] do not broadcast");
}

/* ---- softmax ---- */

TEST(large_values_do_not_overflow)
{
    const double values[] = {1e4, 1e4 - 1, -1e4, 0, -INFINITY, 0};
    ek_tensor *x = tensor_of(values, EK_SHAPE(2, 3), EK_F32, test_home());
    ek_tensor *p = ek_f_softmax(x, -1), *log_p = ek_f_log_softmax(x, -1);
    assert_made(p);
    assert_made(log_p);
    ck_assert_double_eq_tol(element(p, 0), 1 / (1 + exp(-1)), 1e-6);
    ck_assert_double_eq_tol(element(log_p, 2), -2e4 - log(1 + exp(-1)), 1e-2);
    ck_assert_double_eq_tol(element(p, 3), 0.5, 1e-6);
    ck_assert(element(p, 4) == 0);
    ck_assert(element(log_p, 4) == -INFINITY);
}

TEST(softmax_refusals)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3));
    assert_refused(ek_f_softmax(NULL, 0), EK_E_INVALID, "softmax: x is NULL");
    assert_refused(ek_f_log_softmax(x, 2), EK_E_SHAPE,
                   "log_softmax: dimension 2 is not in [-2, 1]");
    assert_refused(ek_f_softmax(ek_zeros(EK_SHAPE(2, 3), EK_I64), 0), EK_E_DTYPE,
                   "softmax: x has dtype i64");
}
