/* test_ops_norm.c: batch normalisation beside the table: running statistics, large means; what it
 * refuses. Layer and RMS norm of rows of many lengths. */
#include "evenkeel/attention.h"
#include "ops/norm.h"
#include "ops/ops.h"

#include "home.h"

static ek_tensor *number(const char *name, int i, const char *key)
{
    char text[64];
    snprintf(text, sizeof text, "%s/%d/%s", name, i, key);
    return golden_has("nn_norm.golden", text) ? golden("nn_norm.golden", text) : NULL;
}

TEST_LOOP(running_statistics_match_pytorch, 0, 12)
{
    const char *name = _i / 6 ? "batch_norm_relu" : "batch_norm";
    ek_tensor *numbers = number(name, _i % 6, "numbers");
    ek_batch_norm_options options =
        EK_OPTIONS(ek_batch_norm_options, .x = number(name, _i % 6, "x"),
                   .weight = number(name, _i % 6, "w"), .bias = number(name, _i % 6, "b"),
                   .running_mean = number(name, _i % 6, "running_mean"),
                   .running_var = number(name, _i % 6, "running_var"),
                   .training = element(number(name, _i % 6, "options"), 0) != 0,
                   .momentum = element(numbers, 0), .eps = element(numbers, 1));
    ek_tensor *y = ek_batch_norm_tracked(options, _i / 6, NULL);
    assert_close(y, number(name, _i % 6, "y"), 1e-12, 1e-12);
    assert_close(options.running_mean, number(name, _i % 6, "after_mean"), 1e-12, 1e-12);
    assert_close(options.running_var, number(name, _i % 6, "after_var"), 1e-12, 1e-12);
}

TEST(weight_and_bias_alone)
{
    /* One parameter of the two, or one gradient of the three. */
    const double values[] = {1, 2, 3, 5, 8, 13};
    ek_tensor *x = tensor_of(values, EK_SHAPE(3, 2), EK_F64, test_home());
    ek_tensor *w = ek_ones(EK_SHAPE(2), EK_F64, .requires_grad = true);
    ek_tensor *b = ek_zeros(EK_SHAPE(2), EK_F64, .requires_grad = true);
    for (int pass = 1; pass <= 2; pass++) {
        ek_tensor *y = ek_f_batch_norm(x, w, b, .training = true);
        assert_ok(ek_backward(ek_sum(ek_mul(y, y))));
        /* sum of 2 y xhat, y = xhat: twice the count, but for eps. */
        ck_assert_double_eq_tol(element(ek_tensor_grad(w), 0), 6 * pass, 1e-3);
        ck_assert_double_eq_tol(element(ek_tensor_grad(b), 1), 0, 1e-12);
    }
    ek_tensor *only_weight = ek_f_batch_norm(x, w, .training = true);
    ek_tensor *only_bias = ek_f_batch_norm(x, .bias = b, .training = true);
    assert_close(only_weight, only_bias, 1e-15, 1e-15);
}

TEST(backward_of_evaluation_survives_training)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 2), EK_F64, .requires_grad = true);
    ek_tensor *mean = ek_zeros(EK_SHAPE(2), EK_F64), *var = ek_full(4, EK_SHAPE(2), EK_F64);
    ek_tensor *y = ek_f_batch_norm(x, .running_mean = mean, .running_var = var);
    uint64_t version = ek_tensor_version(mean);
    assert_made(ek_f_batch_norm(x, .running_mean = mean, .running_var = var, .training = true));
    ck_assert(ek_tensor_version(mean) > version);
    assert_ok(ek_backward(ek_sum(y)));
    ck_assert_double_eq_tol(element(ek_tensor_grad(x), 0), 0.5, 1e-5);
}

/* As in PyTorch, whose backward doesn't read the bias, also where a ReLU follows. */
TEST_LOOP(a_bias_may_change_before_backward, 0, 2)
{
    const double values[] = {1, 2, 3, 5, 8, 13};
    ek_tensor *gradients[2];
    for (int changed = 0; changed < 2; changed++) {
        ek_tensor *x = tensor_of(values, EK_SHAPE(3, 2), _i ? EK_F64 : EK_F32, test_home());
        assert_ok(ek_tensor_set_requires_grad(x, true));
        ek_tensor *w = ek_ones(EK_SHAPE(2), x->dtype, .requires_grad = true);
        ek_tensor *b = ek_zeros(EK_SHAPE(2), x->dtype, .requires_grad = true);
        ek_tensor *y = ek_batch_norm_tracked(EK_OPTIONS(ek_batch_norm_options, .x = x, .weight = w,
                                                        .bias = b, .training = true),
                                             true, NULL);
        if (changed)
            assert_made(ek_add_(ek_detach(b), ek_full(100, EK_SHAPE(2), x->dtype)));
        assert_ok(ek_backward(ek_sum(ek_mul(y, y))));
        gradients[changed] = ek_tensor_grad(x);
        ck_assert_double_gt(element(ek_tensor_grad(b), 0), 1);
    }
    assert_close(gradients[1], gradients[0], 0, 0);
}

TEST(large_mean_keeps_its_variance)
{
    const int64_t count = 4096;
    ek_tensor *x =
        ek_add_scalar(ek_mul_scalar(ek_arange(count, EK_F32, test_home()), 1.0 / 4096), 1e3);
    ek_tensor *y = ek_f_batch_norm(ek_reshape(x, EK_SHAPE(count, 1)), .training = true);
    assert_made(y);
    double square;
    assert_ok(ek_item(ek_mean(ek_square(y)), &square));
    ck_assert_double_eq_tol(square, 1, 2e-2);
}

TEST(empty_batch)
{
    ek_tensor *x = ek_zeros(EK_SHAPE(0, 3, 2, 2), .requires_grad = true);
    ek_tensor *w = ek_ones(EK_SHAPE(3), .requires_grad = true), *b = ek_zeros(EK_SHAPE(3));
    ek_tensor *mean = ek_zeros(EK_SHAPE(3)), *var = ek_ones(EK_SHAPE(3));
    ek_tensor *y = ek_f_batch_norm(x, w, b, mean, var, .training = true);
    assert_made(y);
    ck_assert_int_eq(ek_tensor_count(y), 0);
    assert_ok(ek_backward(ek_sum(y)));
    ck_assert_double_eq(element(ek_tensor_grad(w), 0), 0);
    ck_assert_double_eq(element(var, 0), 1);
}

TEST(refusals)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3)), *c = ek_ones(EK_SHAPE(3));
    assert_refused(ek_f_batch_norm(NULL, c), EK_E_INVALID, "batch_norm: x is NULL");
    assert_refused(ek_f_batch_norm(c, c), EK_E_SHAPE, "expected x of 2 or more dimensions");
    assert_refused(ek_f_batch_norm(x, ek_ones(EK_SHAPE(2)), .training = true), EK_E_SHAPE,
                   "batch_norm: weight has shape [2] and must have [3]");
    assert_refused(ek_f_batch_norm(x, .running_mean = ek_ones(EK_SHAPE(3), EK_F64),
                                   .running_var = c),
                   EK_E_DTYPE, "running_mean has dtype f64 and must have f32");
    assert_refused(ek_f_batch_norm(x, .running_mean = c), EK_E_INVALID,
                   "running_mean and running_var go together");
    assert_refused(ek_f_batch_norm(x, .running_mean = c, .running_var = c, .training = true,
                                   .momentum = EK_CUMULATIVE),
                   EK_E_INVALID, "batch_norm: EK_CUMULATIVE is for modules");
    assert_refused(ek_f_batch_norm(x, .training = true, .eps = -1), EK_E_INVALID,
                   "eps must not be negative, got -1");
    assert_refused(ek_f_batch_norm(ek_ones(EK_SHAPE(1, 3)), .training = true), EK_E_SHAPE,
                   "batch_norm: expected more than 1 value per channel when training, got "
                   "input size [1, 3]");
    assert_refused(ek_f_batch_norm(ek_ones(EK_SHAPE(1, 3, 1, 1))), EK_E_SHAPE,
                   "got input size [1, 3, 1, 1]");
    assert_made(ek_f_batch_norm(ek_ones(EK_SHAPE(1, 3)), .running_mean = c, .running_var = c));
}

/* ---- rows: GPUs keep rows up to a length in registers, with or without loads of 16 bytes ---- */

static const int64_t lengths[] = {1, 7, 64, 100, 768, 2048, 2056, 4097, 8192, 8200};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static ek_tensor *rows_normalised(bool rms, ek_tensor *x, ek_tensor *w, ek_tensor *b)
{
    return rms ? ek_f_rms_norm(x, 1, w, 1e-5) : ek_f_layer_norm(x, 1, w, b, 1e-5);
}

/* Layer norm or RMS norm by other operations. */
static ek_tensor *rows_composed(bool rms, ek_tensor *x, ek_tensor *w, ek_tensor *b)
{
    ek_tensor *center = rms ? x : ek_sub(x, ek_mean(x, EK_DIMS(1), .keepdim = true));
    ek_tensor *var = ek_mean(ek_square(center), EK_DIMS(1), .keepdim = true);
    ek_tensor *y = ek_mul(center, ek_rsqrt(ek_add_scalar(var, 1e-5)));
    y = w ? ek_mul(y, w) : y;
    return b && !rms ? ek_add(y, b) : y;
}

typedef struct row_results {
    ek_tensor *y, *gradients[3];
} row_results;

/* Returns y, and the gradients of x, w and b, as f64. */
static row_results rows_run(ek_tensor *function(bool, ek_tensor *, ek_tensor *, ek_tensor *),
                            bool rms, ek_tensor *const values[4], ek_dtype dtype, bool affine)
{
    const ek_dtype wide = ek_dtype_wide(dtype);
    row_results r = {NULL, {NULL}};
    ek_tensor *operands[3];
    for (int i = 0; i < 3; i++) {
        operands[i] = ek_clone(ek_to_dtype(values[i], i ? wide : dtype));
        assert_ok(ek_tensor_set_requires_grad(operands[i], true));
    }
    ek_tensor *w = affine ? operands[1] : NULL, *b = affine && !rms ? operands[2] : NULL;
    r.y = function(rms, operands[0], w, b);
    assert_made(r.y);
    ek_tensor *const sum = ek_sum(ek_mul(ek_to_dtype(r.y, EK_F64), ek_to_dtype(values[3], EK_F64)));
    assert_ok(ek_backward(sum));
    r.y = ek_to_dtype(r.y, EK_F64);
    for (int i = 0; i < 1 + (w != NULL) + (b != NULL); i++)
        r.gradients[i] = ek_to_dtype(ek_tensor_grad(operands[i]), EK_F64);
    return r;
}

TEST_LOOP(rows_of_many_lengths, 0, (LENGTHS * 2 * 4))
{
    static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16, EK_F16};
    const int64_t length = lengths[_i / 8], rows = length < 100 ? 300 : 4;
    const bool rms = _i / 4 % 2;
    const ek_dtype dtype = dtypes[_i % 4];
    const double close = dtype == EK_F64 ? 1e-10 : dtype == EK_F32 ? 1e-5 : 2e-2;
    ek_manual_seed(17);
    /* A mean that is large against the deviation, and values that 16 bits hold. */
    ek_tensor *x =
        ek_to_dtype(ek_affine(ek_randn(EK_SHAPE(rows, length), EK_F64), 1, rms ? 0.5 : 20), dtype);
    ek_tensor *const values[] = {ek_to_dtype(x, EK_F64), ek_randn(EK_SHAPE(length), EK_F64),
                                 ek_randn(EK_SHAPE(length), EK_F64),
                                 ek_to_dtype(ek_randn(EK_SHAPE(rows, length), EK_F64), dtype)};
    for (int affine = 0; affine < 2; affine++) {
        const row_results exact = rows_run(rows_composed, rms, values, EK_F64, affine);
        const row_results got = rows_run(rows_normalised, rms, values, dtype, affine);
        assert_close_norm(got.y, exact.y, close);
        for (int i = 0; i < 3; i++)
            if (exact.gradients[i] && length > 1)
                assert_close_norm(got.gradients[i], exact.gradients[i], close);
    }
}

/* ---- the sum of two tensors, and layer norm of the sum ---- */

static ek_tensor *added_composed(ek_tensor **total, ek_tensor *x, ek_tensor *residual, int ndim,
                                 ek_tensor *w, ek_tensor *b, double eps)
{
    *total = ek_add(x, residual);
    return ek_f_layer_norm(*total, ndim, w, b, eps);
}

enum { ADDED_RESULTS = 6 };

/* Sets results to y, the sum, and the gradients of all operands of a loss of both, as f64. Without
 * `reads_total`, the loss is of y alone. */
static void added_run(ek_tensor *function(ek_tensor **, ek_tensor *, ek_tensor *, int, ek_tensor *,
                                          ek_tensor *, double),
                      ek_tensor *const values[4], bool reads_total,
                      ek_tensor *results[ADDED_RESULTS])
{
    ek_tensor *operands[4], *total = NULL;
    for (int i = 0; i < 4; i++) {
        operands[i] = ek_clone(values[i]);
        assert_ok(ek_tensor_set_requires_grad(operands[i], true));
    }
    const ek_autocast region = ek_autocast_begin(values[0]->dtype == EK_BF16 ? EK_F32 : EK_BF16);
    ek_tensor *y = function(&total, operands[0], operands[1], 1, operands[2], operands[3], 1e-5);
    ek_autocast_end(&region);
    assert_made(y);
    assert_made(total);
    ek_tensor *loss = ek_sum(ek_square(ek_add_scalar(ek_to_dtype(y, EK_F64), 0.25)));
    if (reads_total)
        loss = ek_add(loss, ek_sum(ek_sin(ek_to_dtype(total, EK_F64))));
    assert_ok(ek_backward(loss));
    results[0] = ek_to_dtype(y, EK_F64);
    results[1] = ek_to_dtype(total, EK_F64);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(ek_tensor_dtype(ek_tensor_grad(operands[i])), values[i]->dtype);
        results[2 + i] = ek_to_dtype(ek_tensor_grad(operands[i]), EK_F64);
    }
}

/* On the host the results are equal to the bit. A GPU's registers don't hold rows of 9000. */
TEST_LOOP(added_is_add_and_layer_norm, 0, 24)
{
    static const ek_dtype dtypes[][2] = {{EK_F32, EK_F32},
                                         {EK_F64, EK_F64},
                                         {EK_BF16, EK_BF16},
                                         {EK_F32, EK_BF16}};
    static const int64_t few_lengths[] = {9, 36, 9000};
    const ek_dtype *dtype = dtypes[_i / 6];
    const int64_t length = few_lengths[_i % 3];
    ek_tensor *values[4], *expected[ADDED_RESULTS], *got[ADDED_RESULTS];
    ek_manual_seed(5);
    for (int i = 0; i < 4; i++)
        values[i] =
            ek_to_dtype(i < 2 ? ek_randn(EK_SHAPE(2, 5, length)) : ek_randn(EK_SHAPE(length)),
                        i < 2 ? dtype[i] : ek_dtype_wide(dtype[0]));
    added_run(added_composed, values, _i / 3 % 2, expected);
    added_run(ek_layer_norm_added, values, _i / 3 % 2, got);
    const bool exact = test_kind() == EK_HOST, narrow = dtype[1] == EK_BF16;
    for (int i = 0; i < ADDED_RESULTS; i++)
        assert_close_norm(got[i], expected[i],
                          exact                ? 0
                          : dtype[0] == EK_F64 ? 1e-12
                          : narrow             ? 2e-2
                                               : 1e-5);
}

TEST(added_refuses_as_its_parts)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3)), *w = ek_ones(EK_SHAPE(3)), *total;
    assert_refused(ek_layer_norm_added(&total, x, ek_ones(EK_SHAPE(2, 4)), 1, w, w, 1e-5),
                   EK_E_SHAPE, "add: shapes [2, 3] and [2, 4] do not broadcast");
    assert_refused(ek_layer_norm_added(&total, x, x, 1, ek_ones(EK_SHAPE(2)), w, 1e-5), EK_E_SHAPE,
                   "layer_norm: weight has shape [2] and must have [3]");
    assert_refused(ek_layer_norm_added(&total, x, x, 1, w, w, -1), EK_E_INVALID,
                   "layer_norm: eps must not be negative, got -1");
    assert_refused(ek_layer_norm_added(&total, NULL, x, 1, w, w, 1e-5), EK_E_INVALID, "x is NULL");
}
