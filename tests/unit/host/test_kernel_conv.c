/* Convolution and its gradients: the host's against loops in double, the GPU's against the host's,
 * with the GPU's libraries; test_kernel_conv_own.c does without these. */
#include "conv_isas.h"
#include "host/host.h"

static const conv_case cases[] = {
    {"3x3", 2, 2, 16, 24, 1, {9, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"one sample, 1x1", 2, 1, 8, 5, 1, {4, 4}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {"1x1 stride 2", 2, 3, 16, 32, 1, {8, 8}, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
    {"three channels", 2, 2, 3, 16, 1, {11, 10}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
    {"one channel", 2, 4, 1, 32, 1, {12, 12}, {3, 3}, {1, 1}, {0, 0}, {1, 1}},
    {"one channel to one", 2, 2, 1, 1, 1, {5, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"stride 3, rest unused", 2, 2, 8, 8, 1, {13, 12}, {3, 3}, {3, 3}, {1, 1}, {1, 1}},
    {"dilation", 2, 2, 16, 8, 1, {12, 13}, {3, 3}, {1, 1}, {2, 2}, {2, 2}},
    {"dilation and stride", 2, 2, 6, 10, 1, {12, 13}, {3, 2}, {2, 3}, {2, 1}, {2, 3}},
    {"groups", 2, 2, 12, 18, 3, {7, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"groups of 8", 2, 2, 16, 16, 2, {7, 6}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
    {"depthwise", 2, 2, 16, 16, 16, {7, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"depthwise, dilated, two each", 2, 2, 5, 10, 5, {9, 8}, {3, 3}, {1, 1}, {2, 2}, {2, 2}},
    {"asymmetric", 2, 1, 7, 9, 1, {9, 5}, {5, 2}, {2, 1}, {2, 0}, {1, 2}},
    {"window as large as the input", 2, 3, 4, 6, 1, {5, 4}, {5, 4}, {1, 1}, {0, 0}, {1, 1}},
    {"4x4 stride 2", 2, 2, 8, 16, 1, {8, 8}, {4, 4}, {2, 2}, {1, 1}, {1, 1}},
    {"large", 2, 1, 64, 64, 1, {9, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"one dimension", 1, 3, 6, 8, 1, {17}, {5}, {2}, {2}, {1}},
    {"one dimension, grouped, dilated", 1, 2, 6, 4, 2, {17}, {3}, {1}, {1}, {3}},
    {"three dimensions", 3, 2, 4, 6, 1, {5, 6, 7}, {3, 2, 3}, {2, 1, 2}, {1, 0, 1}, {1, 1, 1}},
    {"3-d, grouped", 3, 1, 4, 4, 2, {4, 5, 6}, {2, 2, 2}, {1, 2, 1}, {1, 1, 0}, {2, 1, 1}},
    {"three dimensions, pointwise", 3, 2, 8, 6, 1, {3, 4, 2}, {1, 1, 1}, {1, 1, 1}, {0}, {1, 1, 1}},
    {"1x1 stride 2, three channels", 2, 13, 3, 12, 1, {14, 14}, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
    {"1x1 stride 2, six channels", 2, 13, 6, 7, 1, {14, 14}, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
    {"1x1 stride 3 and 1, one channel", 2, 9, 1, 4, 1, {14, 14}, {1, 1}, {3, 1}, {0, 0}, {1, 1}},
    {"mostly padding, one dimension", 1, 2, 6, 6, 2, {1}, {3}, {2}, {1}, {1}},
    {"mostly padding", 2, 2, 3, 2, 1, {4, 2}, {1, 3}, {1, 3}, {0, 2}, {1, 1}},
    {"3-d, one window, padded",
     3,
     2,
     1,
     2,
     1,
     {3, 3, 3},
     {3, 3, 3},
     {2, 2, 2},
     {1, 1, 1},
     {1, 1, 1}},
    {"3-d, mostly padding", 3, 2, 3, 2, 1, {4, 1, 4}, {1, 5, 1}, {1, 1, 1}, {0, 2, 0}, {1, 1, 1}},
    {"to one position", 2, 3, 16, 4, 1, {4, 4}, {4, 4}, {1, 1}, {0, 0}, {1, 1}},
    {"to one output", 2, 3, 16, 1, 1, {9, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"to two outputs, mostly padding", 2, 2, 16, 2, 1, {2, 3}, {5, 4}, {1, 1}, {4, 3}, {1, 1}},
    {"one window of three dimensions",
     3,
     3,
     5,
     6,
     1,
     {2, 3, 4},
     {2, 3, 4},
     {1, 1, 1},
     {0},
     {1, 1, 1}},
    {"1x1, many channels", 2, 2, 64, 80, 1, {5, 6}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {"1x1 stride 2, many channels", 2, 2, 80, 64, 1, {11, 10}, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
    {"many channels", 2, 3, 64, 66, 1, {6, 5}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
};
enum { CASES = sizeof cases / sizeof *cases };

static problem alike(const conv_case *c, int64_t unread, ek_dtype dtype, twin_layout layout,
                     bool with_bias)
{
    return problem_of(c, unread, dtype, (const twin_layout[]){layout, layout, layout}, with_bias);
}

static void run(problem *p)
{
    for (int i = 0; i < RESULTS; i++)
        if (p->out[i].host) {
            case_poison(p->out[i].host);
            twin_push(p->out[i]);
        }
    twin_run(conv_forward, ON(p->out[Y]), ON(p->x), ON(p->w), ON(p->bias), &p->params);
    twin_run(conv_input_gradient, ON(p->out[DX]), ON(p->dy), ON(p->w), &p->params);
    twin_run(conv_weight_gradient, ON(p->out[DW]), ON(p->out[DBIAS]), ON(p->x), ON(p->dy),
             &p->params);
}

/* Of norms, the GPU's from the host's. Winograd's transforms, which cuDNN may choose for f32, lose
 * some bits. */
static double tolerance_of(ek_dtype dtype)
{
    return dtype == EK_F64 ? 1e-14 : dtype == EK_F32 ? 1e-5 : 6e-3;
}

static void compare(const problem *p, double relative)
{
    static const char *const names[] = {"y", "dx", "dw", "dbias"};
    for (int i = 0; i < RESULTS; i++) {
        if (!p->out[i].host)
            continue;
        ek_dtype dtype = p->x.host->dtype;
        const char *what =
            text_of("%s, %s, strides %lld %lld: %s", p->what, ek_dtype_name(dtype),
                    (long long)p->x.host->stride[0], (long long)p->x.host->stride[1], names[i]);
        twin_expect_norm(p->out[i], p->wanted[i], 2 * case_tolerance(dtype), what);
        twin_close_norm(p->out[i], relative, what);
    }
}

static void check(const conv_case *c, int64_t unread, ek_dtype dtype, twin_layout layout,
                  bool with_bias)
{
    ek_scope scope = ek_scope_begin();
    problem p = alike(c, unread, dtype, layout, with_bias);
    run(&p);
    compare(&p, tolerance_of(dtype));
    problem_free(&p);
    ek_scope_end(&scope);
}

TEST_LOOP(convolution, 0, 3 * CASES)
{
    for (int l = 0; l < 4; l++) {
        twin_layout layout = l < 3 ? (twin_layout)l : (twin_layout)(TWIN_DENSE_OFFSET + _i % 3);
        case_device(1 + (l + _i) % 2);
        check(&cases[_i / 3], 0, (ek_dtype)(_i % 3), layout, l != TWIN_ROWS);
    }
}

TEST_LOOP(with_rounded_operands, 0, CASES)
{
    ek_allow_tf32_convolution(true);
    problem p = alike(&cases[_i], 0, EK_F32, TWIN_LAST, false);
    run(&p);
    compare(&p, 2e-3);
    problem_free(&p);
}

/* As a transposed convolution asks for with an output padding: more of x than the windows of y
 * reach, which may be more than a stride. */
static const conv_case few[] = {
    {"dilated", 2, 2, 8, 16, 1, {9, 11}, {3, 3}, {1, 2}, {1, 1}, {3, 4}},
    {"dilated, grouped", 2, 2, 4, 6, 2, {12, 11}, {3, 2}, {1, 2}, {1, 1}, {3, 3}},
    {"strided", 2, 2, 16, 24, 1, {9, 10}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
    {"three dimensions", 3, 2, 3, 16, 1, {6, 5, 7}, {2, 3, 3}, {1, 2, 1}, {0, 1, 2}, {3, 1, 2}},
    {"three, grouped", 3, 1, 4, 6, 2, {6, 5, 7}, {2, 3, 3}, {2, 2, 1}, {0, 1, 1}, {1, 1, 1}},
};
enum { FEW = sizeof few / sizeof *few };

TEST_LOOP(last_windows_left_out, 0, 3 * FEW)
{
    for (int64_t unread = 1; unread <= (_i / 3 == FEW - 1 ? 1 : 2); unread++)
        check(&few[_i / 3], unread, (ek_dtype)(_i % 3), TWIN_LAST, true);
}

/* Gradients of sums have one value, expanded. */
TEST_LOOP(zero_strides, 0, 3)
{
    problem p = alike(&cases[0], 0, (ek_dtype)_i, TWIN_LAST, true);
    p.dy = twin_repeat(p.dy, 15);
    p.x = twin_repeat(p.x, 1);
    for (int i = 0; i < RESULTS; i++)
        memset(p.wanted[i], 0, sizeof *p.wanted[i] * (size_t)ek_count(p.out[i].host));
    problem_solve(&p);
    run(&p);
    compare(&p, tolerance_of((ek_dtype)_i));
    problem_free(&p);
}

/* On one thread of the host each time: oneDNN's sums depend on their number. */
TEST_LOOP(repeats_to_the_bit, 0, CASES)
{
    ek_use_deterministic_algorithms(true);
    for (int k = 0; k < (_i % 4 ? 1 : 3); k++) {
        double *once[2][RESULTS] = {{NULL}};
        problem p = alike(&cases[_i], 0, (ek_dtype)k, TWIN_LAST, true);
        for (int turn = 0; turn < 2; turn++) {
            run(&p);
            for (int i = 0; i < 2 * RESULTS; i++)
                if (i < RESULTS || twin_sides() == 2)
                    twin_repeated(i < RESULTS ? p.out[i].host : twin_pull(p.out[i % RESULTS].cuda),
                                  &once[i / RESULTS][i % RESULTS], p.what);
        }
        for (int i = 0; i < 2 * RESULTS; i++)
            free(once[i / RESULTS][i % RESULTS]);
        problem_free(&p);
    }
}

/* No samples, or no channels: sums of nothing are 0, and a bias remains. */
TEST_LOOP(nothing, 0, 9)
{
    conv_case empty = cases[0];
    *(_i / 3 == 0 ? &empty.samples : _i / 3 == 1 ? &empty.channels : &empty.outputs) = 0;
    check(&empty, 0, (ek_dtype)(_i % 3), TWIN_LAST, true);
}

#ifndef TWIN_WITHOUT_LIBRARIES

/* ---- products over columns, on the host ---- */

/* Cases for ek_conv_columns, even if conv.c would choose another algorithm. */
static const conv_case columns_cases[] = {
    {"many samples", 2, 13, 32, 64, 1, {5, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"many samples, no padding", 2, 7, 64, 32, 1, {5, 6}, {3, 3}, {1, 1}, {0, 0}, {1, 1}},
    {"odd sizes", 2, 2, 13, 19, 1, {9, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"one sample, wide padding", 2, 1, 12, 33, 1, {7, 9}, {3, 3}, {1, 1}, {2, 2}, {1, 1}},
    {"stride 2", 2, 9, 16, 20, 1, {9, 8}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
    {"stride 2, one sample", 2, 1, 48, 20, 1, {9, 8}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
    {"1x1 stride 2", 2, 6, 16, 16, 1, {7, 8}, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
    {"stride 3, dilation 2", 2, 3, 16, 7, 1, {12, 13}, {2, 3}, {3, 2}, {1, 2}, {2, 3}},
    {"some rows unread", 2, 8, 32, 17, 1, {8, 8}, {1, 2}, {3, 3}, {0, 1}, {1, 1}},
    {"padding only", 2, 2, 16, 5, 1, {1, 1}, {3, 3}, {1, 1}, {2, 2}, {1, 1}},
    {"far taps unread", 2, 2, 64, 8, 1, {2, 1}, {5, 5}, {1, 1}, {2, 2}, {1, 1}},
    {"several blocks", 2, 3, 96, 100, 1, {16, 15}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"pieces of samples", 2, 9, 32, 24, 1, {15, 14}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"pieces of rows", 2, 2, 32, 24, 1, {41, 39}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
    {"far channels", 2, 9, 256, 270, 1, {6, 7}, {2, 2}, {1, 1}, {0, 1}, {1, 1}},
    {"far channels, rows", 2, 1, 256, 270, 1, {24, 14}, {2, 1}, {1, 1}, {1, 0}, {1, 1}},
    {"few positions", 2, 2, 128, 260, 1, {4, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"two groups", 2, 3, 12, 20, 2, {9, 8}, {3, 3}, {2, 1}, {1, 1}, {1, 2}},
    {"groups of three channels", 2, 3, 9, 12, 3, {7, 8}, {2, 3}, {1, 1}, {1, 0}, {1, 1}},
    {"one dimension, grouped", 1, 5, 8, 24, 2, {33}, {4}, {3}, {2}, {2}},
    {"three dimensions", 3, 2, 6, 8, 1, {5, 6, 7}, {3, 2, 3}, {2, 1, 2}, {1, 0, 1}, {1, 1, 1}},
    {"a stride longer than x", 1, 2, 4, 6, 1, {5}, {2}, {100000}, {0}, {1}},
    {"common factors", 2, 2, 4, 6, 1, {13, 11}, {3, 2}, {4, 6}, {1, 0}, {2, 3}},
};
enum { COLUMNS_CASES = sizeof columns_cases / sizeof *columns_cases };

static int columns_results_in(ek_dtype dtype, const problem *p)
{
    for (int i = 0; i < DBIAS; i++) {
        const ek_conv conv = conv_to(p, i);
        const bool can = ek_conv_columns_can(&conv, dtype);
        ck_assert(can || dtype == EK_BF16);
        if (!can)
            return 0;
    }
    return RESULTS;
}

static int columns_results(const problem *p)
{
    return columns_results_in(p->x.host->dtype, p);
}

static int run_columns(ek_dev *dev, const ek_conv *conv, int side)
{
    return ek_conv_columns(dev, conv);
}

static void check_columns(const conv_case *c, int64_t unread, ek_dtype dtype)
{
    const conv_way way = {run_columns, 0, columns_results, case_tolerance(dtype)};
    problem p = alike(c, unread, dtype, TWIN_LAST, true);
    conv_check_isas(&p, &way);
    problem_free(&p);
}

TEST_LOOP(columns, 0, 2 * COLUMNS_CASES)
{
    check_columns(&columns_cases[_i / 2], 0, _i % 2 ? EK_F64 : EK_F32);
}

TEST_LOOP(columns_leave_the_last_windows_out, 0, 3 + COLUMNS_CASES)
{
    check_columns(_i < 3 ? &few[_i] : &columns_cases[_i - 3], 1, EK_F32);
    if (_i < 3)
        check_columns(&few[_i], 2, EK_F32);
}

/* ---- windows of one element, on the host: products, and an algorithm of their weight gradients.
 * Products are taken for 64 channels and more. ---- */

static const conv_case point_cases[] = {
    {"1x1", 2, 2, 32, 64, 1, {6, 8}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {"1x1, one sample", 2, 1, 16, 16, 1, {5, 5}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {"1x1, odd sizes", 2, 3, 13, 19, 1, {7, 5}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {"1x1, one channel", 2, 2, 1, 3, 1, {7, 5}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {"1x1, half a panel", 2, 5, 48, 40, 1, {6, 6}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {"1x1, one position", 2, 7, 64, 33, 1, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {"1x1, deep sums", 2, 2, 1040, 112, 1, {4, 4}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {"1x1, many outputs", 2, 2, 130, 1056, 1, {4, 4}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {"1x1, several groups", 2, 1, 528, 304, 1, {5, 4}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {"1x1, deep sums to odd sizes", 2, 1, 1030, 150, 1, {5, 4}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {"1x1, several blocks of positions", 2, 3, 40, 24, 1, {17, 13}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {"1x1 stride 2", 2, 3, 64, 128, 1, {14, 14}, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
    {"1x1 stride 2, odd sizes", 2, 3, 11, 21, 1, {15, 13}, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
    {"1x1 stride 2, wide", 2, 1, 16, 24, 1, {5, 57}, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
    {"1x1 stride 2, deep sums", 2, 2, 528, 1040, 1, {4, 6}, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
    {"1x1 stride 2, several blocks", 2, 6, 24, 40, 1, {15, 26}, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
    {"1x1 strides 1 and 2", 2, 2, 80, 128, 1, {8, 9}, {1, 1}, {1, 2}, {0, 0}, {1, 1}},
    {"1x1 strides 3 and 1", 2, 2, 128, 64, 1, {8, 9}, {1, 1}, {3, 1}, {0, 0}, {1, 1}},
    {"1x1 stride 2 to one position", 2, 9, 64, 144, 1, {2, 2}, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
};
enum { POINT_CASES = sizeof point_cases / sizeof *point_cases };

static int point_results(const problem *p)
{
    const ek_conv conv = conv_of(p);
    ck_assert(ek_conv_point_can(&conv));
    return p->bias.host ? RESULTS : DW;
}

static int run_point(ek_dev *dev, const ek_conv *c, int side)
{
    ek_tensor *dx = (ek_tensor *)(uintptr_t)c->x, *out = (ek_tensor *)(uintptr_t)c->y;
    return c->kind == EK_CONV_FORWARD
               ? ek_host_conv_forward(dev, out, c->x, c->w, c->bias, c->params)
           : c->kind == EK_CONV_INPUT_GRADIENT
               ? ek_host_conv_input_gradient(dev, dx, c->y, c->w, c->params)
               : ek_conv_point_weight(dev, c);
}

static void check_point(const conv_case *c, int64_t unread, bool with_bias)
{
    const conv_way way = {run_point, 0, point_results, case_tolerance(EK_F32)};
    problem p = alike(c, unread, EK_F32, TWIN_LAST, with_bias);
    conv_check_isas(&p, &way);
    problem_free(&p);
}

TEST_LOOP(point, 0, POINT_CASES)
{
    check_point(&point_cases[_i], 0, true);
    check_point(&point_cases[_i], 0, false);
}

TEST_LOOP(point_leaves_the_last_windows_out, 0, POINT_CASES)
{
    check_point(&point_cases[_i], 1, true);
}

/* ---- the same by pairs of bf16, if the processor multiplies them ---- */

static int pairs_results(const problem *p)
{
    return columns_results_in(EK_BF16, p);
}

static void check_pairs(const conv_case *c, int64_t unread, twin_layout layout)
{
    const conv_way way = {run_columns, 0, pairs_results, case_tolerance(EK_BF16)};
    problem p = alike(c, unread, EK_BF16, layout, true);
    conv_check_isas(&p, &way);
    problem_free(&p);
}

TEST_LOOP(columns_by_pairs, 0, COLUMNS_CASES)
{
    check_pairs(&columns_cases[_i], _i % 2, TWIN_LAST);
}

/* Operands that begin at an odd element, in the middle of a word. At one position channels-last is
 * row-major too. */
TEST(columns_by_pairs_of_odd_elements)
{
    const conv_case c = {"odd", 2, 13, 64, 80, 1, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {1, 1}};
    check_pairs(&c, 0, TWIN_DENSE_OFFSET);
}

/* Sums of ones, infinities and NaN. A weight gradient multiplies padding by them, so that only its
 * case without padding is compared. */
TEST_LOOP(columns_by_pairs_keeps_infinities_and_nan, 0, 2)
{
    const conv_case cases_of[] = {
        {"padded", 2, 3, 32, 34, 1, {5, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
        {"without padding", 2, 3, 32, 34, 1, {7, 8}, {3, 3}, {1, 1}, {0, 0}, {1, 1}}};
    const conv_case c = cases_of[_i];
    const int64_t plane = c.in[0] * c.in[1];
    const int compared = _i == 0 ? DW : DBIAS;
    ek_dev *dev = case_device(1);
    problem p = alike(&c, 0, EK_BF16, TWIN_LAST, false);
    twin *ones[] = {&p.x, &p.w, &p.dy};
    for (int k = 0; k < 3; k++)
        for (int64_t i = 0; i < ek_count(ones[k]->host); i++)
            case_set(ones[k]->host, i, 1);
    case_set(p.x.host, 7, INFINITY);
    case_set(p.x.host, 2 * 32 * plane + 11, NAN);
    case_set(p.dy.host, 5, -INFINITY);
    case_set(p.dy.host, 2 * 34 * 30 + 40, NAN);
    for (int i = 0; i < RESULTS; i++)
        memset(p.wanted[i], 0,
               sizeof *p.wanted[i] * (size_t)(i == DBIAS ? 34 : ek_count(p.out[i].host)));
    problem_solve(&p);
    bool can = pairs_results(&p) == RESULTS;
    for (int k = 0; k < compared && can; k++) {
        const ek_conv conv = conv_to(&p, k);
        assert_ok(ek_conv_columns(dev, &conv));
    }
    for (int k = 0; k < compared && can; k++)
        for (int64_t i = 0; i < ek_count(p.out[k].host); i++) {
            double got = case_get(p.out[k].host, i), wanted = p.wanted[k][i];
            bool same = isnan(wanted)   ? isnan(got)
                        : isinf(wanted) ? got == wanted
                                        : fabs(got - wanted) <= fabs(wanted) / 256;
            ck_assert_msg(same, "result %d, element %lld: %g, not %g", k, (long long)i, got,
                          wanted);
        }
    problem_free(&p);
}

#endif
/* ---- memory ---- */

static const conv_case large = {"large", 2, 1, 64, 64, 1, {9, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}};

static ek_memory_stats stats_of(int side)
{
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(side ? ek_cuda(0) : ek_host(0), &stats));
    return stats;
}

TEST(workspace_is_on_the_ledger_and_given_back)
{
    case_device(1);
    problem p = alike(&large, 0, EK_F32, TWIN_LAST, true);
    ek_memory_stats before[2], after[2];
    for (int side = 0; side < twin_sides(); side++)
        before[side] = stats_of(side);
    run(&p);
    for (int side = 0; side < twin_sides(); side++) {
        after[side] = stats_of(side);
        ck_assert(after[side].now[EK_MEMORY_WORKSPACE] == before[side].now[EK_MEMORY_WORKSPACE]);
        ck_assert(after[side].in_use == before[side].in_use);
    }
    /* A panel of reordered weights. */
    ck_assert(after[0].peak >= before[0].in_use + 64 * 16 * 9 * sizeof(float));
    problem_free(&p);
}

/* The host's call fails, and leaves all usable; the GPU has another engine, or our own kernels. */
TEST(little_memory)
{
    case_device(1);
    problem p = alike(&large, 0, EK_F32, TWIN_LAST, true);
    for (int side = 0; side < twin_sides(); side++) {
        ek_dev *dev = twin_dev(side ? EK_CUDA : EK_HOST);
        assert_ok(ek_memory_trim(dev->id));
        assert_ok(
            ek_memory_set_capacity(dev->id, stats_of(side).in_use + (side ? 64 << 10 : 4096)));
        int rc = dev->backend->kernels->conv_forward(dev, ON(p.out[Y]), ON(p.x), ON(p.w),
                                                     ON(p.bias), &p.params);
        ck_assert_int_eq(rc, side ? 0 : EK_E_OUT_OF_MEMORY);
        ck_assert_int_eq(ek_error_status(), rc);
        ek_error_clear();
        assert_ok(ek_memory_set_capacity(dev->id, 0));
    }
    assert_ok(twin_host()->conv_forward(twin_dev(EK_HOST), p.out[Y].host, p.x.host, p.w.host,
                                        p.bias.host, &p.params));
    twin_expect_norm(p.out[Y], p.wanted[Y], 1e-6, "after running out of memory");
    twin_close_norm(p.out[Y], tolerance_of(EK_F32), "little memory");
    problem_free(&p);
}
