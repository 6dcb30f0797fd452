/* test_host_workspace.c: the workspace of a kernel is small beside its operands, even if the data
 * is a single row or matrix. */
#include "host/conv.h"
#include "host/host.h"
#include "host/isa.h"
#include "host_cases.h"

static void begin(const ek_dev *dev)
{
    assert_ok(ek_memory_reset_peak(dev->id));
}

/* Bytes of workspace since begin, against a bound. */
static void at_most(const ek_dev *dev, int64_t bound, const char *what)
{
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(dev->id, &stats));
    if (stats.at_peak[EK_MEMORY_WORKSPACE] > (uint64_t)bound)
        ck_abort_msg("%s: %llu bytes of workspace, at most %lld are wanted", what,
                     (unsigned long long)stats.at_peak[EK_MEMORY_WORKSPACE], (long long)bound);
    ck_assert_uint_eq(stats.now[EK_MEMORY_WORKSPACE], 0);
}

/* Rows of all shapes: where memory is in place nothing is taken, else a row of f32 for each operand
 * and thread, though never for more rows than there are. */
TEST(softmax)
{
    static const int64_t shapes[][2] = {{1, 300000}, {2, 150000}, {3000, 100}, {300000, 1}};
    ek_dev *dev = case_device(2);
    for (int s = 0; s < 4; s++)
        for (int d = 0; d < 2; d++) {
            ek_scope scope = ek_scope_begin();
            ek_dtype dtype = d ? EK_BF16 : EK_F32;
            ek_tensor *x = case_tensor(dev, dtype, 2, shapes[s], CASE_ROWS);
            ek_tensor *y = case_tensor(dev, dtype, 2, shapes[s], CASE_ROWS);
            case_fill(x, 1);
            int64_t nbytes = ek_count(x) * 4, bound = d ? 2 * nbytes : 0;
            begin(dev);
            assert_ok(ek_host_softmax(dev, y, x, 1, s % 2 == 0));
            at_most(dev, bound, "softmax");
            begin(dev);
            assert_ok(ek_host_softmax_gradient(dev, y, x, x, 1, s % 2 == 0));
            at_most(dev, bound + (d ? nbytes : 0), "softmax gradient");
            ek_scope_end(&scope);
        }
}

TEST(cross_entropy)
{
    static const int64_t shapes[][2] = {{1, 300000}, {3000, 100}, {150000, 2}};
    const ek_cross_entropy_params params = {.ignore_index = -100, .label_smoothing = 0.1};
    ek_dev *dev = case_device(2);
    for (int s = 0; s < 3; s++)
        for (int d = 0; d < 2; d++) {
            ek_scope scope = ek_scope_begin();
            ek_dtype dtype = d ? EK_BF16 : EK_F32;
            ek_tensor *x = case_tensor(dev, dtype, 2, shapes[s], CASE_ROWS);
            ek_tensor *dx = case_tensor(dev, dtype, 2, shapes[s], CASE_ROWS);
            ek_tensor *target = case_tensor(dev, EK_I64, 1, shapes[s], CASE_ROWS);
            ek_tensor *loss = case_tensor(dev, EK_F32, 1, shapes[s], CASE_ROWS);
            ek_tensor *lse = case_tensor(dev, EK_F32, 1, shapes[s], CASE_ROWS);
            case_fill(x, 1);
            assert_ok(ek_host_fill(dev, target, 1));
            int64_t nbytes = ek_count(x) * 4;
            begin(dev);
            assert_ok(ek_host_cross_entropy_forward(dev, loss, lse, x, target, NULL, &params));
            at_most(dev, d ? nbytes : 0, "cross entropy");
            begin(dev);
            assert_ok(ek_host_cross_entropy_gradient(dev, dx, loss, lse, x, target, NULL, &params));
            at_most(dev, d ? 2 * nbytes : 0, "cross entropy gradient");
            ek_scope_end(&scope);
        }
}

static ek_tensor *ones(ek_dev *dev, ek_dtype dtype, int64_t batch, int64_t rows, int64_t columns)
{
    ek_tensor *x = case_tensor(dev, dtype, 3, (const int64_t[]){batch, rows, columns}, CASE_ROWS);
    assert_ok(ek_host_fill(dev, x, 1));
    return x;
}

/* bf16 by f32, which no library takes: converted, and not more at once than 3 blocks of 16 MiB,
 * with a tenth more for the product's own packing. */
TEST(matrix_products)
{
    static const int64_t products[][4] = {/* batch, n, k, m */
                                          {1, (1 << 23) + 5, 1, 2},
                                          {1, 2, 1, (1 << 23) + 5},
                                          {1, 2, (1 << 23) + 5, 2},
                                          {(1 << 22) + 5, 2, 1, 2}};
    ek_dev *dev = case_device(2);
    for (int i = 0; i < 4; i++) {
        ek_scope scope = ek_scope_begin();
        const int64_t *p = products[i];
        ek_tensor *x = ones(dev, EK_BF16, p[0], p[1], p[2]);
        ek_tensor *y = ones(dev, EK_F32, p[0], p[2], p[3]);
        ek_tensor *out = ones(dev, EK_BF16, p[0], p[1], p[3]);
        begin(dev);
        assert_ok(ek_host_matmul(dev, out, x, y, NULL, false));
        at_most(dev, (3 << 24) + (3 << 24) / 10, "matrix product");
        /* 2^23 + 5 is 2^23 in bf16. */
        for (int64_t j = 0; j < ek_count(out); j += ek_count(out) < 1000 ? 1 : 997)
            case_must(case_get(out, j) == (double)p[2] ||
                      case_get(out, j) == (double)(p[2] - p[2] % 65536));
        ek_scope_end(&scope);
    }
}

/* Winograd's forms: transformed inputs and weights take twice what a direct convolution packs of
 * weights, or 2 MiB, and each thread has at most 96 tiles of inputs and of 64 outputs at hand. A
 * weight gradient has sums of as many outputs as fit into a direct convolution's weights, and 64
 * tiles of inputs and of those outputs, or for several threads twice as many. */
TEST_LOOP(winograd, 0, 6)
{
    enum { CHANNELS = 128, OUTPUTS = 512, SAMPLES = 16, SIZE = 16, MOST_TILES = 96, GROUP = 64 };
    static const int64_t products_of[] = {16, 25, 36}, points_of[] = {16, 9, 9};
    int form = _i / 2, threads = _i % 2 ? 3 : 1;
    ek_dev *dev = case_device(threads);
    int window = form == 2 ? 4 : 3, stride = form == 0 ? 1 : 2, size = SIZE / stride;
    ek_tensor *x =
        case_tensor(dev, EK_F32, 4, (const int64_t[]){SAMPLES, CHANNELS, SIZE, SIZE}, CASE_LAST);
    ek_tensor *w = case_tensor(dev, EK_F32, 4, (const int64_t[]){OUTPUTS, CHANNELS, window, window},
                               CASE_LAST);
    ek_tensor *y =
        case_tensor(dev, EK_F32, 4, (const int64_t[]){SAMPLES, OUTPUTS, size, size}, CASE_LAST);
    ek_conv_params params = {
        .stride = {stride, stride}, .padding = {1, 1}, .dilation = {1, 1}, .groups = 1, .dims = 2};
    case_fill(x, 1);
    case_fill(w, 2);
    case_fill(y, 3);
    int64_t direct = ek_larger(ek_count(w) * 4, 1 << 20), inputs = 4 * products_of[form] * CHANNELS;
    int64_t outputs = direct / inputs + 16; /* and what lies between rows */
    int64_t at_hand = threads * MOST_TILES * (inputs + 4 * products_of[0] * 64);
    int64_t groups = (threads > 1 ? 2 : 1) * GROUP * (inputs + 4 * points_of[form] * outputs);
    for (int kind = EK_CONV_FORWARD; kind <= EK_CONV_WEIGHT_GRADIENT; kind++) {
        const ek_conv conv = {(ek_conv_kind)kind, x, w, NULL, y, &params};
        if (!ek_conv_winograd_can(&conv))
            return;
        begin(dev);
        assert_ok(ek_conv_winograd(dev, &conv, 2));
        int64_t bound = kind == EK_CONV_WEIGHT_GRADIENT ? direct + groups : 2 * direct + at_hand;
        at_most(dev, bound + (1 << 16), "Winograd's forms");
    }
}

/* Returns the sum of products over all channels of the image `a` at a position and all rows, or
 * with `columns` all columns, of w. */
static double point_sum(const ek_tensor *a, int64_t sample, int64_t row, int64_t column,
                        const ek_tensor *w, int64_t line, bool columns)
{
    double sum = 0;
    for (int64_t c = 0; c < a->shape[1]; c++) {
        const int64_t at = ((sample * a->shape[1] + c) * a->shape[2] + row) * a->shape[3] + column;
        sum += case_get(a, at) *
               case_get(w, columns ? line * w->shape[1] + c : c * w->shape[1] + line);
    }
    return sum;
}

/* Strided windows of one element: the elements that they reach are copied, 2 MiB at a time. The
 * product has its packing beside them. Some results of each copy are checked. */
TEST_LOOP(strided_points, 0, 4)
{
    enum { CHANNELS = 64, OUTPUTS = 128, SIDE = 128, EACH = 997 };
    const bool images = _i < 2, narrow = _i % 2;
    const int64_t samples = images ? 4 : 1, height = images ? SIDE : 2 * SIDE, width = SIDE * 2;
    const ek_conv_params params = {.stride = {images ? 2 : 1, images ? 1 : 2},
                                   .dilation = {1, 1},
                                   .groups = 1,
                                   .dims = 2};
    const ek_dtype dtype = narrow ? EK_BF16 : EK_F32;
    const int64_t x_shape[] = {samples, CHANNELS, height, width};
    const int64_t y_shape[] = {samples, OUTPUTS, height / params.stride[0],
                               width / params.stride[1]};
    if (narrow ? ek_host_bf16_is_fast() : ek_host_isa() < EK_ISA_AVX2)
        return; /* The processor takes another algorithm. */
    ek_dev *dev = case_device(2);
    ek_tensor *x = case_tensor(dev, dtype, 4, x_shape, CASE_LAST);
    ek_tensor *w =
        case_tensor(dev, dtype, 4, (const int64_t[]){OUTPUTS, CHANNELS, 1, 1}, CASE_LAST);
    ek_tensor *y = case_tensor(dev, dtype, 4, y_shape, CASE_LAST);
    case_fill(x, 1);
    case_fill(w, 2);
    begin(dev);
    assert_ok(ek_host_conv_forward(dev, y, x, w, NULL, &params));
    at_most(dev, 3 << 20, "strided windows of one element");
    const double tolerance = narrow ? 1.0 / 256 : 1e-5;
    for (int64_t i = 0; i < ek_count(y); i += EACH) {
        const int64_t column = i % y->shape[3], row = i / y->shape[3] % y->shape[2];
        const int64_t image = i / y->shape[3] / y->shape[2];
        const double wanted = point_sum(x, image / OUTPUTS, row * params.stride[0],
                                        column * params.stride[1], w, image % OUTPUTS, true);
        case_must(fabs(case_get(y, i) - wanted) <= tolerance * (1 + fabs(wanted)));
    }
    begin(dev);
    assert_ok(ek_host_conv_input_gradient(dev, x, y, w, &params));
    at_most(dev, 3 << 20, "input gradient of strided windows of one element");
    for (int64_t i = 0; i < ek_count(x); i += EACH) {
        const int64_t column = i % width, row = i / width % height, image = i / width / height;
        const bool reached = row % params.stride[0] == 0 && column % params.stride[1] == 0;
        const double wanted = reached
                                  ? point_sum(y, image / CHANNELS, row / params.stride[0],
                                              column / params.stride[1], w, image % CHANNELS, false)
                                  : 0;
        case_must(fabs(case_get(x, i) - wanted) <= tolerance * (1 + fabs(wanted)));
    }
}
