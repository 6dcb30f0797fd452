/* Convolution on a GPU without cuDNN against loops in double. */
#include "cuda/conv.h"
#include "host/conv_cases.h"
#ifdef EK_CUDA_EMULATED
#include <emulator.h>
#endif

BEFORE_ALL(skip_without_gpu)

/* `small` are summed by own kernels, `large` are products. */
static const conv_case small[] = {
    {"3x3", 2, 2, 5, 7, 1, {6, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"strided, dilated", 2, 2, 4, 6, 2, {9, 11}, {3, 2}, {2, 3}, {2, 0}, {2, 3}},
    {"stride larger than the window", 2, 1, 3, 4, 1, {10, 9}, {2, 1}, {4, 3}, {1, 0}, {1, 1}},
    {"even stride and dilation", 2, 1, 3, 4, 1, {12, 12}, {3, 4}, {4, 6}, {3, 2}, {2, 4}},
    {"depthwise", 2, 2, 40, 40, 40, {7, 6}, {3, 3}, {1, 2}, {1, 1}, {1, 1}},
    {"depthwise, two outputs each", 2, 3, 6, 12, 6, {8, 17}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"one output", 2, 2, 37, 1, 1, {6, 6}, {3, 3}, {1, 1}, {0, 0}, {1, 1}},
    {"three outputs", 2, 1, 33, 3, 1, {7, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"window larger than the image", 2, 2, 3, 2, 1, {2, 3}, {5, 5}, {1, 1}, {2, 2}, {1, 1}},
    {"three dimensions", 3, 1, 4, 4, 2, {4, 5, 6}, {2, 2, 2}, {1, 2, 1}, {1, 1, 0}, {2, 1, 1}},
    {"no samples", 2, 0, 3, 4, 1, {5, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
};
static const conv_case large[] = {
    {"3x3", 2, 1, 19, 70, 1, {6, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"pointwise", 2, 2, 65, 65, 1, {5, 9}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {"strided", 2, 1, 18, 36, 1, {11, 12}, {4, 4}, {2, 2}, {1, 1}, {1, 1}},
    {"strided and dilated", 2, 1, 24, 24, 1, {19, 22}, {3, 4}, {3, 2}, {2, 3}, {2, 4}},
    {"stride larger than the window", 2, 1, 32, 48, 1, {22, 21}, {2, 3}, {3, 4}, {1, 0}, {1, 1}},
    {"grouped", 2, 1, 48, 96, 3, {5, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"many rows", 2, 2, 16, 16, 1, {17, 16}, {2, 2}, {1, 1}, {1, 1}, {1, 1}},
    {"three dimensions", 3, 1, 17, 40, 1, {3, 5, 6}, {3, 2, 3}, {1, 2, 1}, {1, 0, 2}, {1, 1, 2}},
};
enum { SMALL = sizeof small / sizeof *small, LARGE = sizeof large / sizeof *large };

/* The three functions, beside loops in double. */
static void check(const conv_case *c, ek_dtype dtype, const twin_layout layouts[3], int64_t unread,
                  bool with_bias)
{
    problem p = problem_of(c, unread, dtype, layouts, with_bias);
    const double tolerance = dtype == EK_F64 ? 1e-13 : dtype == EK_F32 ? 3e-6 : 6e-3;
    ek_dev *cuda = twin_dev(EK_CUDA);
    twin *out = p.out;
    assert_ok(
        ek_cuda_conv_direct_forward(cuda, out[Y].cuda, p.x.cuda, p.w.cuda, p.bias.cuda, &p.params));
    assert_ok(
        ek_cuda_conv_direct_input_gradient(cuda, out[DX].cuda, p.dy.cuda, p.w.cuda, &p.params));
    assert_ok(ek_cuda_conv_direct_weight_gradient(cuda, out[DW].cuda, out[DBIAS].cuda, p.x.cuda,
                                                  p.dy.cuda, &p.params));
    for (int i = 0; i < RESULTS; i++)
        if (out[i].host) {
            ek_tensor *got = twin_pull(out[i].cuda);
            case_compare(got, p.wanted[i], tolerance, c->what);
            twin_gaps(out[i].host, got, c->what);
        }
    problem_free(&p);
}

/* Layouts of x, w and y: each comes with several of the others. */
static void check_layouts(const conv_case *c, ek_dtype dtype, int first, int step)
{
    for (int layout = first; layout < TWIN_LAYOUTS; layout += step) {
        ek_scope scope = ek_scope_begin();
        twin_layout a = (twin_layout)layout, b = (twin_layout)((layout + 1) % TWIN_LAYOUTS);
        check(c, dtype, (const twin_layout[]){a, layout % 2 == 0 ? a : b, a}, layout % 3,
              layout % 2 == 0);
        check(c, dtype, (const twin_layout[]){a, b, b}, 0, layout % 2 == 1);
        ek_scope_end(&scope);
    }
}

TEST_LOOP(small_ones_agree, 0, 3 * SMALL)
{
    check_layouts(&small[_i / 3], (ek_dtype)(_i % 3), (_i + _i / 3) % 2, 2);
}

TEST_LOOP(large_ones_agree, 0, 3 * LARGE)
{
    check_layouts(&large[_i / 3], (ek_dtype)(_i % 3), (_i + _i / 3) % 3, 3);
}

TEST(results_are_the_same_from_run_to_run)
{
    static const twin_layout last[3] = {TWIN_LAST, TWIN_LAST, TWIN_LAST};
    problem p = problem_of(&large[6], 0, EK_F32, last, true);
    double *once = NULL;
    for (int round = 0; round < 2; round++) {
        assert_ok(ek_cuda_conv_direct_weight_gradient(twin_dev(EK_CUDA), p.out[DW].cuda,
                                                      p.out[DBIAS].cuda, p.x.cuda, p.dy.cuda,
                                                      &p.params));
        twin_repeated(twin_pull(p.out[DW].cuda), &once, "dw");
    }
    free(once);
    problem_free(&p);
}

/* The matrix of 4900 rows of 432 numbers is gathered in two parts. */
TEST(a_matrix_is_gathered_in_parts)
{
    static const conv_case parts = {"parts",  2,      1,      48,     48,    1,
                                    {70, 70}, {3, 3}, {1, 1}, {1, 1}, {1, 1}};
    check(&parts, EK_F64, (const twin_layout[]){TWIN_LAST, TWIN_LAST, TWIN_LAST}, 0, true);
}

#ifdef EK_CUDA_EMULATED
static int products(void)
{
    ek_emulator_counters counters;
    assert_ok(ek_synchronize(ek_cuda(0)));
    ek_emulator_count(&counters);
    ek_emulator_reset_counters();
    return (int)counters.products;
}

/* Without memory for a matrix, sums are those of own kernels. */
TEST(products_are_for_large_ones_with_memory)
{
    static const twin_layout last[3] = {TWIN_LAST, TWIN_LAST, TWIN_LAST};
    const struct {
        const conv_case *c;
        bool scarce, multiplies;
    } runs[] = {{&small[0], false, false}, {&large[0], false, true}, {&large[0], true, false}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        ek_memory_stats stats;
        problem p = problem_of(runs[i].c, 0, EK_F32, last, true);
        ek_dev *cuda = twin_dev(EK_CUDA);
        products();
        assert_ok(ek_memory_get_stats(ek_cuda(0), &stats));
        if (runs[i].scarce)
            assert_ok(ek_memory_set_capacity(ek_cuda(0), stats.in_use));
        assert_ok(ek_cuda_conv_direct_forward(cuda, p.out[Y].cuda, p.x.cuda, p.w.cuda, p.bias.cuda,
                                              &p.params));
        assert_ok(ek_cuda_conv_direct_input_gradient(cuda, p.out[DX].cuda, p.dy.cuda, p.w.cuda,
                                                     &p.params));
        assert_ok(ek_memory_set_capacity(ek_cuda(0), stats.capacity));
        ck_assert_int_eq(products() > 0, runs[i].multiplies);
        for (int out = Y; out <= DX; out++)
            case_compare(twin_pull(p.out[out].cuda), p.wanted[out], 3e-6, p.what);
        problem_free(&p);
    }
}
#endif
