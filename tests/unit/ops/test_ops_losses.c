/* test_ops_losses.c: losses beside those of test_ops_loss.c, medians, quantiles and logcumsumexp,
 * by PyTorch's numbers, and their refusals. */
#include "table.h"

FIXTURE(two_devices, NULL)

#define REDUCTION ((ek_reduction)o[0])
/* An option in percent. */
#define PERCENT(i) (o[i] / 100)

FROM(.file = "losses.golden", .numbered = true, .inputs = {"x", "u", "v"},
     .constants = {"t", "w", "target_lengths"}, .dy = "dy", .tolerance = 2e-6)

#define TARGET (count > 1 ? x[1] : c[0])

/* ---- errors ---- */

ROW(smooth_l1, SECOND,
    ek_f_smooth_l1_loss(x[0], TARGET, .reduction = REDUCTION, .beta = PERCENT(1)))
ROW(huber, SECOND | THIRD(2),
    ek_f_huber_loss(x[0], TARGET, .reduction = REDUCTION, .delta = PERCENT(1)))

/* ---- yes or no ---- */

#define BCE ek_f_bce(x[0], TARGET, c[1], REDUCTION)
ROW(bce_loss, SECOND | THIRD(2), BCE)
ROW(bce_both, ALONE, BCE)
ROW(bce_edges, KINKED, BCE)
ROW(multilabel_soft_margin, SECOND, ek_f_multilabel_soft_margin_loss(x[0], TARGET, c[1], REDUCTION))
ROW(soft_margin, SECOND, ek_f_soft_margin_loss(x[0], TARGET, REDUCTION))

/* ---- likelihoods ---- */

ROW(kl_div, SECOND | THIRD(0) | THIRD(1),
    ek_f_kl_div(x[0], x[1], .reduction = REDUCTION, .log_target = o[1] != 0))
ROW(kl_div_zeros, 0, ek_f_kl_div(x[0], c[0], .reduction = REDUCTION, .log_target = o[1] != 0))
ROW(poisson_nll, SECOND | THIRD(2),
    ek_f_poisson_nll_loss(x[0], c[0], .reduction = REDUCTION, .log_input = o[1] != 0,
                          .full = o[2] != 0, .eps = o[3] == 0 ? 1e-8 : o[3] / 100))
/* The clamp of the last case is no function that differences know. */
static ek_tensor *gaussian(ek_tensor *const *x, const double *o)
{
    return ek_f_gaussian_nll_loss(x[0], x[1], x[2], .reduction = REDUCTION, .full = o[1] != 0,
                                  .eps = o[2] == 0 ? 1e-6 : o[2] / 100);
}
ROW(gaussian_nll, SECOND | THIRD(0) | THIRD(1), gaussian(x, o))
ROW(gaussian_nll_bounded, KINKED, gaussian(x, o))

/* ---- margins ---- */

ROW(margin_ranking, 0,
    ek_f_margin_ranking_loss(x[0], x[1], c[0], .reduction = REDUCTION, .margin = PERCENT(1)))
ROW(cosine_embedding, SECOND,
    ek_f_cosine_embedding_loss(x[0], x[1], c[0], .reduction = REDUCTION, .margin = PERCENT(1)))
ROW(hinge_embedding, 0,
    ek_f_hinge_embedding_loss(x[0], c[0], .reduction = REDUCTION, .margin = PERCENT(1)))
ROW(triplet_margin, SECOND | ALONE,
    ek_f_triplet_margin_loss(x[0], x[1], x[2], .reduction = REDUCTION, .margin = PERCENT(1),
                             .p = o[2], .eps = o[3] == 0 ? 1e-6 : o[3] / 100, .swap = o[4] != 0))
ROW(multi_margin, 0,
    ek_f_multi_margin_loss(x[0], c[0], .weight = c[1], .reduction = REDUCTION, .p = o[1],
                           .margin = PERCENT(2)))
ROW(multilabel_margin, 0, ek_f_multilabel_margin_loss(x[0], c[0], .reduction = REDUCTION))

/* ---- classes and sequences ---- */

ROW(probabilities, SECOND | ALONE | THIRD(6),
    ek_f_cross_entropy(x[0], x[1], .weight = c[1], .reduction = REDUCTION,
                       .label_smoothing = o[1] / 100))
ROW(token_cross_entropy, SECOND,
    ek_f_token_cross_entropy(x[0], c[0], .weight = c[1], .reduction = REDUCTION,
                             .label_smoothing = o[1] / 100))
ROW(ctc, 0,
    ek_f_ctc_loss(ek_f_log_softmax(x[0], 2), c[0], c[1], c[2], .reduction = REDUCTION,
                  .blank = (int64_t)o[1], .zero_infinity = o[2] != 0))

/* ---- order ---- */

ROW(median, 0, ek_median(x[0]))
ROW(median_equal, KINKED, ek_median(x[0]))
ROW(nanmedian, KINKED, ek_nanmedian(x[0]))
ROW(median_dim, 0, ek_median_dim(x[0], (int)o[0], false, NULL))

static ek_quantile_options quantile_options(ek_tensor *const *x, const double *o,
                                            ek_tensor *const *c)
{
    return EK_OPTIONS(ek_quantile_options, .x = x[0], .q = c[0],
                      .dims = {o[1] == 9 ? EK_UNSET : (int)o[1]}, .dim_count = o[1] != 9,
                      .keepdim = o[2] != 0, .interpolation = (ek_quantile_interpolation)o[0]);
}
ROW(quantile, 0, ek_quantile_with(quantile_options(x, o, c)))
ROW(quantile_nan, KINKED, ek_nan_to_num(ek_quantile_with(quantile_options(x, o, c)), .nan = 77))
ROW(nanquantile, KINKED, ek_nan_to_num(ek_nanquantile_with(quantile_options(x, o, c)), .nan = 77))
ROW(logcumsumexp, THIRD(1), ek_logcumsumexp(x[0], (int)o[0]))
ROW(logcumsumexp_far, KINKED, ek_logcumsumexp(x[0], (int)o[0]))

/* No golden: what PyTorch differentiates once. */
FROM(.shapes = {{EK_SHAPE(2, 3), EK_SHAPE(1)}})
ROW(quantile_of_number, 0, ek_quantile(x[0], ek_f_sigmoid(x[1]), EK_DIMS(1)))

/* ---- beside the table ---- */

static ek_tensor *stored(const char *text)
{
    return golden("losses.golden", text);
}

static ek_tensor *integers(ek_shape shape, const int64_t *values)
{
    return ek_from_data(values, shape, EK_I64);
}

TEST(medians_give_positions)
{
    char key[64];
    for (int number = 0; number < 7; number++) {
        ek_tensor *at = NULL, *nan_at = NULL;
        snprintf(key, sizeof key, "median_dim/%d/x", number);
        ek_tensor *x = stored(key);
        snprintf(key, sizeof key, "median_dim/%d/options", number);
        int dim = (int)element(stored(key), 0);
        assert_made(ek_median_dim(x, dim, true, &at));
        snprintf(key, sizeof key, "median_dim/%d/index", number);
        assert_close(ek_squeeze(at, dim), stored(key), 0, 0);

        snprintf(key, sizeof key, "nanmedian_dim/%d/x", number);
        x = stored(key);
        ek_tensor *y = ek_nanmedian_dim(x, dim, false, &nan_at);
        snprintf(key, sizeof key, "nanmedian_dim/%d/y", number);
        assert_close(ek_nan_to_num(y, 77), ek_nan_to_num(stored(key), 77), 0, 0);
        snprintf(key, sizeof key, "nanmedian_dim/%d/index", number);
        assert_close(nan_at, stored(key), 0, 0);
        y = ek_median_dim(x, dim, false, &at);
        snprintf(key, sizeof key, "nanmedian_dim/%d/median", number);
        assert_close(ek_nan_to_num(y, 77), ek_nan_to_num(stored(key), 77), 0, 0);
        snprintf(key, sizeof key, "nanmedian_dim/%d/median_index", number);
        assert_close(at, stored(key), 0, 0);
    }
}

TEST(medians_of_integers_and_of_nan)
{
    const double some[] = {3, (double)NAN, 1};
    ek_tensor *x = tensor_of(some, EK_SHAPE(3), EK_F64, test_home());
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *y = ek_median(x);
    assert_made(y);
    ck_assert_double_nan(element(y, 0));
    assert_ok(ek_backward(y));
    ck_assert_double_eq(element(ek_tensor_grad(x), 0), 0);
    ck_assert_double_eq(element(ek_tensor_grad(x), 1), 1);
    ck_assert_double_eq(element(ek_nanmedian(x), 0), 1);
    ek_tensor *i = integers(EK_SHAPE(4), (const int64_t[]){7, -2, 5, 6});
    ck_assert_double_eq(element(ek_median(i), 0), 5);
    ck_assert_int_eq(ek_tensor_dtype(ek_median(i)), EK_I64);
    assert_refused(ek_median(ek_zeros(EK_SHAPE(0))), EK_E_SHAPE,
                   "median: dimension 0 has no elements");
    assert_refused(ek_nanmedian_dim(x, 1, false, NULL), EK_E_SHAPE, "nanmedian: dimension 1");
}

TEST(quantile_refusals)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3)), *q = ek_full(0.5, EK_SHAPE(1));
    assert_refused(ek_quantile(x, ek_full(1.5, EK_SHAPE(1))), EK_E_INVALID,
                   "quantile: q is 1.5; it must lie in [0, 1]");
    assert_refused(ek_quantile(x, ek_full((double)NAN, EK_SHAPE(1))), EK_E_INVALID, "q is nan");
    assert_refused(ek_quantile(x, x), EK_E_SHAPE, "q has 2 dimensions and must have 0 or 1");
    assert_refused(ek_quantile(x, q, EK_DIMS(0, 1)), EK_E_INVALID, "quantile: 2 dimensions");
    assert_refused(ek_nanquantile(x, q, EK_DIMS(2)), EK_E_SHAPE, "nanquantile: dimension 2");
    assert_refused(ek_quantile(ek_zeros(EK_SHAPE(0)), q), EK_E_SHAPE, "there are no elements");
    assert_refused(ek_quantile(x, ek_to_dtype(q, EK_F64)), EK_E_DTYPE, "f32 and f64");
    assert_refused(ek_quantile(x, q, .interpolation = (ek_quantile_interpolation)5), EK_E_INVALID,
                   "interpolation");
}

TEST(medians_and_quantiles_of_scalars)
{
    ek_tensor *x = ek_full(3, ek_scalar_shape(), EK_F64, .requires_grad = true);
    ek_tensor *half = ek_full(0.5, ek_scalar_shape(), EK_F64);
    ek_tensor *at = NULL, *nan_at = NULL;
    ek_tensor *all[] = {ek_median_dim(x, 0, false, &at), ek_nanmedian_dim(x, -1, true, &nan_at),
                        ek_quantile(x, half, EK_DIMS(0)),
                        ek_nanquantile(x, half, EK_DIMS(-1), .keepdim = true)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_made(all[i]);
        ck_assert_int_eq(ek_tensor_ndim(all[i]), 0);
        ck_assert_double_eq(element(all[i], 0), 3);
        assert_ok(ek_backward(all[i]));
        ck_assert_double_eq(element(ek_tensor_grad(x), 0), (double)i + 1);
    }
    ck_assert_int_eq(ek_tensor_ndim(at), 0);
    ck_assert_double_eq(element(at, 0), 0);
    ck_assert_int_eq(ek_tensor_ndim(nan_at), 0);
    ek_tensor *row = ek_quantile(x, ek_reshape(half, EK_SHAPE(1)), EK_DIMS(0), .keepdim = true);
    assert_made(row);
    ck_assert_int_eq(ek_tensor_ndim(row), 1);
    assert_refused(ek_median_dim(x, 1, false, &at), EK_E_SHAPE, "median: dimension 1");
    ck_assert_ptr_null(at);
    assert_refused(ek_quantile(x, half, EK_DIMS(1)), EK_E_SHAPE, "quantile: dimension 1");
}

/* Only results stay: the median, and positions that are asked for. */
TEST(medians_leave_nothing_behind)
{
    enum { ROWS = 64, SIZE = 1000 };
    ek_memory_stats before, after;
    ek_tensor *at = NULL, *x = ek_rand(EK_SHAPE(ROWS, SIZE), .device = test_device(0));
    assert_made(x);
    assert_ok(ek_memory_get_stats(test_device(0), &before));
    assert_made(ek_median_dim(x, 1, false, NULL));
    assert_ok(ek_memory_get_stats(test_device(0), &after));
    ck_assert_uint_le(after.in_use - before.in_use, ROWS * sizeof(float) + 1024);
    before = after;
    assert_made(ek_median_dim(x, 1, false, &at));
    assert_made(at);
    assert_ok(ek_memory_get_stats(test_device(0), &after));
    ck_assert_uint_le(after.in_use - before.in_use,
                      ROWS * (sizeof(float) + sizeof(int64_t)) + 2048);
}

TEST(quantiles_of_the_most_dimensions)
{
    ek_shape shape = {.ndim = EK_MAX_DIMS, .dims = {5}};
    for (int i = 1; i < EK_MAX_DIMS; i++)
        shape.dims[i] = 1;
    ek_tensor *x = ek_reshape(ek_arange(5, EK_F32, test_home()), shape),
              *half = ek_full(0.5, EK_SHAPE(1));
    ek_tensor *number = ek_reshape(half, ek_scalar_shape());
    for (int i = 0; i < 2; i++) {
        ek_tensor *y = i == 0 ? ek_quantile(x, number, .keepdim = true)
                              : ek_quantile(x, number, EK_DIMS(0), .keepdim = true);
        assert_made(y);
        ck_assert_int_eq(ek_tensor_ndim(y), EK_MAX_DIMS);
        ck_assert_double_eq(element(y, 0), 2);
    }
    ck_assert_int_eq(ek_tensor_ndim(ek_quantile(x, half, EK_DIMS(0))), EK_MAX_DIMS);
    assert_refused(
        ek_quantile(x, half, .keepdim = true), EK_E_SHAPE,
        "quantile: the result for x of 8 dimensions, with keepdim and a dimension for q, "
        "has 9; at most 8 are possible");
    assert_refused(ek_nanquantile(x, half, EK_DIMS(0), .keepdim = true), EK_E_SHAPE,
                   "nanquantile: the result for x of 8 dimensions");
}

TEST(logcumsumexp_of_infinities)
{
    const double values[] = {-INFINITY, -INFINITY, 2, INFINITY, 0};
    ek_tensor *x = tensor_of(values, EK_SHAPE(5), EK_F64, test_home());
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *y = ek_logcumsumexp(x, 0);
    assert_made(y);
    ck_assert(element(y, 0) == -INFINITY && element(y, 1) == -INFINITY);
    ck_assert_double_eq(element(y, 2), 2);
    ck_assert(element(y, 3) == INFINITY && element(y, 4) == INFINITY);
    assert_ok(ek_backward(ek_select(y, 0, 2)));
    ck_assert_double_eq(element(ek_tensor_grad(x), 0), 0);
    ck_assert_double_eq(element(ek_tensor_grad(x), 2), 1);
    assert_refused(ek_logcumsumexp(ek_zeros(EK_SHAPE(2), EK_I64), 0), EK_E_DTYPE, "logcumsumexp");
}

/* ---- rrelu ---- */

TEST(rrelu_draws_as_pytorch)
{
    char key[64];
    for (int number = 0; number < 2; number++) {
        snprintf(key, sizeof key, "rrelu/%d/x", number);
        ek_tensor *x = ek_to_device(stored(key), test_device(0));
        assert_ok(ek_tensor_set_requires_grad(x, true));
        ek_manual_seed(7);
        ek_tensor *y = ek_f_rrelu(x, 0.1, 0.3, true);
        snprintf(key, sizeof key, "rrelu/%d/y", number);
        assert_close(y, stored(key), 0, 0);
        double next;
        assert_ok(ek_item(ek_rand(EK_SHAPE(1), EK_F64, ek_cpu()), &next));
        snprintf(key, sizeof key, "rrelu/%d/next", number);
        ck_assert_double_eq(next, element(stored(key), 0));
        /* The gradient is the slope. */
        assert_ok(ek_backward(ek_sum(y)));
        assert_close(ek_mul(ek_tensor_grad(x), x), y, 1e-6, 1e-6);
        snprintf(key, sizeof key, "rrelu/%d/still", number);
        assert_close(ek_f_rrelu(x, 0.1, 0.3, false), stored(key), 1e-7, 1e-7);
    }
    assert_refused(ek_f_rrelu(ek_ones(EK_SHAPE(1)), 2, 1, true), EK_E_INVALID,
                   "rrelu: lower is 2 and upper 1");
}

TEST(rrelu_of_philox)
{
    assert_ok(ek_generator_set_engine(NULL, EK_RANDOM_PHILOX));
    ek_tensor *x = ek_randn(EK_SHAPE(1000), .device = test_device(0));
    ek_manual_seed(3);
    ek_tensor *y = ek_f_rrelu(x, 0.1, 0.3, true);
    ek_manual_seed(3);
    assert_close(ek_f_rrelu(x, 0.1, 0.3, true), y, 0, 0);
    ek_tensor *slopes = ek_to_device(ek_div(y, x), ek_cpu());
    x = ek_to_device(x, ek_cpu());
    double sum = 0, count = 0;
    for (int64_t i = 0; i < 1000; i++) {
        double slope = element(slopes, i);
        ck_assert(element(x, i) > 0 ? slope == 1 : slope >= 0.0999 && slope <= 0.3001);
        sum += element(x, i) > 0 ? 0 : slope;
        count += !(element(x, i) > 0);
    }
    ck_assert_double_eq_tol(sum / count, 0.2, 0.01);
    assert_ok(ek_generator_set_engine(NULL, EK_RANDOM_TWISTER));
}

/* ---- ctc ---- */

typedef struct ctc_case {
    ek_tensor *x, *targets, *frames, *lengths;
} ctc_case;

static ctc_case ctc_begin(void)
{
    ek_manual_seed(5);
    ctc_case c = {.x = ek_randn(EK_SHAPE(4, 2, 3), EK_F64, .requires_grad = true),
                  .targets = integers(EK_SHAPE(2, 3), (const int64_t[]){1, 1, 2, 2, 1, 9}),
                  .frames = integers(EK_SHAPE(2), (const int64_t[]){3, 4}),
                  .lengths = integers(EK_SHAPE(2), (const int64_t[]){3, 2})};
    return c;
}

TEST(ctc_without_a_path)
{
    ctc_case c = ctc_begin();
    ek_tensor *x = ek_f_log_softmax(c.x, 2);
    ek_tensor *loss = ek_f_ctc_loss(x, c.targets, c.frames, c.lengths, EK_NONE);
    assert_made(loss);
    ck_assert(element(loss, 0) == INFINITY);
    ck_assert(isfinite(element(loss, 1)));
    assert_ok(ek_backward(ek_sum(loss)));
    for (int64_t i = 0; i < 4 * 2 * 3; i++) {
        double g = element(ek_tensor_grad(c.x), i);
        ck_assert(i / 3 % 2 == 0 ? g == 0 : isfinite(g));
    }
    ek_tensor *zero =
        ek_f_ctc_loss(ek_detach(x), c.targets, c.frames, c.lengths, EK_NONE, .zero_infinity = true);
    ck_assert_double_eq(element(zero, 0), 0);
    ck_assert_double_eq(element(zero, 1), element(loss, 1));
    /* A NaN isn't an impossible path. */
    ek_tensor *nan = ek_f_ctc_loss(ek_full((double)NAN, EK_SHAPE(4, 2, 3), EK_F64), c.targets,
                                   c.frames, c.lengths, EK_SUM, .zero_infinity = true);
    ck_assert_double_nan(element(nan, 0));
}

TEST(ctc_takes_batches_first_and_joined_targets)
{
    ctc_case c = ctc_begin();
    ek_tensor *x = ek_f_log_softmax(c.x, 2);
    c.frames = integers(EK_SHAPE(2), (const int64_t[]){4, 3});
    ek_tensor *loss = ek_f_ctc_loss(x, c.targets, c.frames, c.lengths);
    assert_close(ek_f_ctc_loss(ek_transpose(x, 0, 1), c.targets, c.frames, c.lengths,
                               .batch_first = true),
                 loss, 0, 1e-15);
    ek_tensor *joined = integers(EK_SHAPE(5), (const int64_t[]){1, 1, 2, 2, 1});
    assert_close(ek_f_ctc_loss(x, joined, ek_to_dtype(c.frames, EK_I32), c.lengths), loss, 0, 0);
    ek_tensor *narrow = ek_f_ctc_loss(ek_to_dtype(x, EK_BF16), c.targets, c.frames, c.lengths);
    ck_assert_int_eq(ek_tensor_dtype(narrow), EK_BF16);
    ck_assert_double_eq_tol(element(narrow, 0), element(loss, 0), 2e-2);
    /* No frame reads as nothing. */
    ek_tensor *none = ek_zeros(EK_SHAPE(2), EK_I64);
    loss = ek_f_ctc_loss(ek_zeros(EK_SHAPE(0, 2, 3), EK_F64), c.targets, none, none);
    ck_assert_double_eq(element(loss, 0), 0);
}

TEST(ctc_gradients)
{
    ctc_case c = ctc_begin();
    ek_tensor *x = ek_detach(ek_f_log_softmax(c.x, 2));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    /* For log_probs themselves it is -1 in sum over the classes of a frame that counts. */
    ek_tensor *loss = ek_f_ctc_loss(x, c.targets, c.frames, c.lengths, EK_SUM);
    assert_ok(ek_backward(loss));
    ek_tensor *sums = ek_sum(ek_tensor_grad(x), EK_DIMS(2));
    for (int64_t i = 0; i < 8; i++)
        ck_assert_double_eq_tol(element(sums, i), i % 2 == 0 ? 0 : -1, 1e-12);
}

TEST(ctc_refusals)
{
    ctc_case c = ctc_begin();
    assert_refused(ek_f_ctc_loss(c.x, c.targets, c.frames, c.lengths, .blank = 3), EK_E_INVALID,
                   "ctc_loss: blank is 3; it must be from 0 to 2");
    ek_tensor *wrong = integers(EK_SHAPE(2), (const int64_t[]){5, 1});
    assert_refused(ek_f_ctc_loss(c.x, c.targets, wrong, c.lengths), EK_E_INVALID,
                   "ctc_loss: input_lengths has 5 for sample 0; it must be from 0 to 4");
    assert_refused(ek_f_ctc_loss(c.x, c.targets, c.frames, wrong), EK_E_INVALID,
                   "target_lengths has 5 for sample 0; it must be from 0 to 3");
    ek_tensor *whole = integers(EK_SHAPE(2), (const int64_t[]){3, 3});
    assert_refused(ek_f_ctc_loss(c.x, c.targets, c.frames, whole), EK_E_INVALID,
                   "targets has 9 in sample 1; it must be from 0 to 2");
    assert_refused(ek_f_ctc_loss(c.x, ek_reshape(c.targets, EK_SHAPE(-1)), c.frames, c.lengths),
                   EK_E_INVALID, "targets has 6 classes, but target_lengths add up to 5");
    assert_refused(ek_f_ctc_loss(ek_select(c.x, 1, 0), c.targets, c.frames, c.lengths), EK_E_SHAPE,
                   "log_probs has shape [4, 3] and must be (T, N, C)");
    assert_refused(ek_f_ctc_loss(c.x, c.targets, ek_zeros(EK_SHAPE(3), EK_I64), c.lengths),
                   EK_E_SHAPE, "input_lengths has shape [3] and must have [2]");
    assert_refused(ek_f_ctc_loss(c.x, c.targets, c.frames, ek_zeros(EK_SHAPE(2))), EK_E_DTYPE,
                   "target_lengths has dtype f32");
    assert_refused(ek_f_ctc_loss(c.x, ek_zeros(EK_SHAPE(3, 3), EK_I64), c.frames, c.lengths),
                   EK_E_SHAPE, "targets has shape [3, 3]; it must be (2, S)");
}

/* ---- values that are raised ---- */

/* log(var) / 2 + 1 / (2 var) for var as it is raised to eps; the gradient is that of var. */
TEST(variances_are_raised_exactly)
{
    const double inf = (double)INFINITY, values[] = {-1000, -1, -inf, 0, 1, inf};
    const double expected[] = {499993.0922, 499993.0922, 499993.0922, 499993.0922, 0.5, inf};
    ek_tensor *var = ek_to_device(tensor_of(values, EK_SHAPE(6), EK_F32, ek_cpu()), test_device(0));
    ek_tensor *x = ek_zeros(EK_SHAPE(6), .device = test_device(0));
    assert_ok(ek_tensor_set_requires_grad(var, true));
    ek_tensor *loss = ek_f_gaussian_nll_loss(x, ek_add_scalar(x, 1), var, .reduction = EK_NONE);
    assert_made(loss);
    for (int64_t i = 0; i < 6; i++)
        ck_assert(element(loss, i) == expected[i] ||
                  fabs(element(loss, i) / expected[i] - 1) < 2e-6);
    assert_ok(ek_backward(ek_sum(loss)));
    for (int64_t i = 0; i < 4; i++) /* (1 / eps - 1 / eps^2) / 2 */
        ck_assert_double_eq_tol(element(ek_tensor_grad(var), i) / -4.999995e11, 1, 2e-6);
}

TEST(cosine_similarity_of_large_rows_is_0_as_in_pytorch)
{
    ek_tensor *x = ek_full(1e20, EK_SHAPE(2, 2), .device = test_device(0));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *y = ek_f_cosine_similarity(x, x);
    assert_made(y);
    ck_assert_double_eq(element(y, 0), 0);
    assert_ok(ek_backward(ek_sum(y)));
    ck_assert_double_eq(element(ek_tensor_grad(x), 0), 0);
}

/* ---- other refusals ---- */

TEST(loss_refusals)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3)), *row = ek_ones(EK_SHAPE(2));
    ek_tensor *classes = integers(EK_SHAPE(2), (const int64_t[]){0, 3});
    assert_refused(ek_f_smooth_l1_loss(x, x, .beta = -1), EK_E_INVALID,
                   "smooth_l1_loss: beta is -1; it must be 0 or above");
    assert_refused(ek_f_huber_loss(x, x, .delta = 0), EK_E_INVALID,
                   "huber_loss: delta is 0; it must be above 0");
    assert_refused(ek_f_huber_loss(x, row), EK_E_SHAPE, "huber_loss: target has shape [2]");
    assert_refused(ek_f_bce(x, x, row), EK_E_SHAPE, "bce: shapes [2, 3] and [2] do not broadcast");
    assert_refused(ek_f_kl_div(x, x, (ek_reduction)4), EK_E_INVALID, "EK_BATCH_MEAN, got 4");
    assert_refused(ek_f_mse_loss(x, x, .reduction = EK_BATCH_MEAN), EK_E_INVALID,
                   "reduction must be EK_MEAN, EK_SUM or EK_NONE, got 3");
    assert_refused(ek_f_gaussian_nll_loss(x, x, ek_ones(EK_SHAPE(3))), EK_E_SHAPE,
                   "var has shape [3]; it must have the input's, [2, 3]");
    assert_refused(ek_f_gaussian_nll_loss(x, x, x, .eps = 0), EK_E_INVALID, "eps is 0");
    assert_refused(ek_f_gaussian_nll_loss(x, x, x, EK_MEAN, 0.0), EK_E_INVALID, "eps is 0");
    assert_refused(ek_f_margin_ranking_loss(x, x, NULL), EK_E_INVALID, "target is NULL");
    assert_refused(ek_f_cosine_embedding_loss(x, x, x), EK_E_SHAPE,
                   "target has shape [2, 3] and must have [2]");
    assert_refused(ek_f_triplet_margin_loss(x, x, row), EK_E_SHAPE,
                   "anchor, positive and negative have 2, 2 and 1 dimensions");
    assert_refused(ek_f_multi_margin_loss(x, classes, .p = 3), EK_E_INVALID,
                   "p is 3 and must be 1 or 2");
    assert_refused(ek_f_multi_margin_loss(x, classes, row), EK_E_SHAPE,
                   "weight has shape [2] and must have [3]");
    assert_refused(settled_tensor(ek_f_multi_margin_loss(x, classes)), EK_E_INVALID,
                   test_kind() == EK_HOST ? "multi_margin_loss: target: " : "gather on ");
    assert_refused(ek_f_multilabel_margin_loss(x, classes), EK_E_SHAPE,
                   "target has shape [2] and must have [2, 3]");
    assert_refused(ek_f_cross_entropy(x, x, .ignore_index = 1), EK_E_INVALID,
                   "ignore_index goes with targets that are classes");
    assert_refused(ek_f_cross_entropy(x, row), EK_E_SHAPE,
                   "a target of dtype f32 is probabilities and must have the input's shape, "
                   "[2, 3], not [2]; classes have dtype i64 or i32");
    assert_refused(ek_f_token_cross_entropy(x, x), EK_E_SHAPE,
                   "token_cross_entropy: target has shape [2, 3] and must have [2]");
    assert_refused(ek_f_token_cross_entropy(x, row), EK_E_DTYPE, "token_cross_entropy: target");
    assert_refused(ek_f_token_cross_entropy(ek_sum(x), classes), EK_E_SHAPE,
                   "input must have a dimension of classes");
}

/* Under autocast losses are computed in f32. */
TEST(losses_widen_under_autocast)
{
    ek_tensor *x = ek_to_dtype(ek_rand(EK_SHAPE(2, 3), .device = test_device(0)), EK_BF16);
    ek_tensor *row = ek_to_dtype(ek_ones(EK_SHAPE(2), .device = test_device(0)), EK_BF16);
    ek_tensor *tokens = ek_to_dtype(row, EK_I64);
    ek_autocast autocast = ek_autocast_begin(EK_BF16);
    ek_tensor *all[] = {ek_f_huber_loss(x, x),
                        ek_f_smooth_l1_loss(x, x),
                        ek_f_bce(x, x),
                        ek_f_kl_div(x, x),
                        ek_f_poisson_nll_loss(x, x),
                        ek_f_gaussian_nll_loss(x, x, x),
                        ek_f_margin_ranking_loss(x, x, x),
                        ek_f_hinge_embedding_loss(x, x),
                        ek_f_cosine_embedding_loss(x, x, row),
                        ek_f_triplet_margin_loss(x, x, x),
                        ek_f_soft_margin_loss(x, x),
                        ek_f_cross_entropy(x, x),
                        ek_f_token_cross_entropy(x, tokens)};
    ek_autocast_end(&autocast);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_made(all[i]);
        ck_assert_int_eq(ek_tensor_dtype(all[i]), EK_F32);
    }
}
