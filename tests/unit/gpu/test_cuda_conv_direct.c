/* Convolution by the GPU's own kernels against the host's. */
#include "cuda/conv_direct.h"
#include "host/twin.h"

BEFORE_ALL(skip_without_gpu)

typedef struct conv_case {
    const char *what;
    int dims;
    int64_t samples, channels, outputs, groups;
    int64_t in[3], window[3], stride[3], padding[3], dilation[3];
} conv_case;

/* The first are too small for tiles; `tiles` has what comes in tiles. */
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
static const conv_case tiles[] = {
    {"3x3", 2, 1, 19, 70, 1, {6, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"pointwise", 2, 2, 65, 65, 1, {5, 9}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {"strided", 2, 1, 18, 36, 1, {11, 12}, {4, 4}, {2, 2}, {1, 1}, {1, 1}},
    {"strided and dilated", 2, 1, 24, 24, 1, {19, 22}, {3, 4}, {3, 2}, {2, 3}, {2, 4}},
    {"stride larger than the window", 2, 1, 32, 48, 1, {22, 21}, {2, 3}, {3, 4}, {1, 0}, {1, 1}},
    {"grouped", 2, 1, 48, 96, 3, {5, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"many rows", 2, 2, 16, 16, 1, {17, 16}, {2, 2}, {1, 1}, {1, 1}, {1, 1}},
    {"three dimensions", 3, 1, 17, 40, 1, {3, 5, 6}, {3, 2, 3}, {1, 2, 1}, {1, 0, 2}, {1, 1, 2}},
};
enum { SMALL = sizeof small / sizeof *small, TILES = sizeof tiles / sizeof *tiles };
static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16};

typedef struct problem {
    ek_conv_params params;
    twin x, w, bias, y, dx, dw, dbias, dy;
} problem;

/* `unread`: windows at the end of each dimension that y lacks. */
static problem problem_of(const conv_case *c, ek_dtype dtype, twin_layout of_x, twin_layout of_w,
                          twin_layout of_y, int64_t unread)
{
    problem p = {.params = {.dims = c->dims, .groups = c->groups}};
    int64_t xs[5] = {c->samples, c->channels}, ws[5] = {c->outputs, c->channels / c->groups};
    int64_t ys[5] = {c->samples, c->outputs};
    for (int i = 0; i < c->dims; i++) {
        p.params.stride[i] = c->stride[i];
        p.params.padding[i] = c->padding[i];
        p.params.dilation[i] = c->dilation[i];
        xs[2 + i] = c->in[i];
        ws[2 + i] = c->window[i];
        ys[2 + i] = (c->in[i] + 2 * c->padding[i] - c->dilation[i] * (c->window[i] - 1) - 1) /
                        c->stride[i] +
                    1;
        ys[2 + i] -= ys[2 + i] > unread ? unread : 0;
    }
    int ndim = 2 + c->dims;
    p.x = twin_uniform(twin_new(dtype, ndim, xs, of_x), -2, 2, 1);
    p.dx = twin_new(dtype, ndim, xs, of_x);
    p.w = twin_uniform(twin_new(dtype, ndim, ws, of_w), -2, 2, 2);
    p.dw = twin_new(dtype, ndim, ws, of_w);
    p.y = twin_new(dtype, ndim, ys, of_y);
    p.dy = twin_uniform(twin_new(dtype, ndim, ys, of_y), -2, 2, 3);
    p.bias = twin_uniform(twin_new(dtype, 1, &c->outputs, TWIN_DENSE_OFFSET), -2, 2, 4);
    p.dbias = twin_new(dtype, 1, &c->outputs, TWIN_DENSE_OFFSET);
    return p;
}

static void check(problem *p, ek_dtype dtype, bool with_bias, const char *what)
{
    const ek_kernels *on_host = twin_host();
    ek_dev *host = twin_dev(EK_HOST), *cuda = twin_dev(EK_CUDA);
    double tolerance = dtype == EK_F64 ? 1e-13 : dtype == EK_F32 ? 3e-6 : 6e-3;
    assert_ok(on_host->conv_forward(host, p->y.host, p->x.host, p->w.host,
                                    with_bias ? p->bias.host : NULL, &p->params));
    assert_ok(ek_cuda_conv_direct_forward(cuda, p->y.cuda, p->x.cuda, p->w.cuda,
                                          with_bias ? p->bias.cuda : NULL, &p->params));
    twin_close_norm(p->y, tolerance, what);
    assert_ok(on_host->conv_input_gradient(host, p->dx.host, p->dy.host, p->w.host, &p->params));
    assert_ok(
        ek_cuda_conv_direct_input_gradient(cuda, p->dx.cuda, p->dy.cuda, p->w.cuda, &p->params));
    twin_close_norm(p->dx, tolerance, what);
    assert_ok(on_host->conv_weight_gradient(host, p->dw.host, with_bias ? p->dbias.host : NULL,
                                            p->x.host, p->dy.host, &p->params));
    assert_ok(ek_cuda_conv_direct_weight_gradient(cuda, p->dw.cuda,
                                                  with_bias ? p->dbias.cuda : NULL, p->x.cuda,
                                                  p->dy.cuda, &p->params));
    twin_close_norm(p->dw, tolerance, what);
    if (with_bias)
        twin_close_norm(p->dbias, tolerance, what);
}

/* Layouts of x, w and y: each comes with several of the others. */
static void check_layouts(const conv_case *c, ek_dtype dtype, int first, int step)
{
    for (int layout = first; layout < TWIN_LAYOUTS; layout += step) {
        ek_scope scope = ek_scope_begin();
        twin_layout a = (twin_layout)layout, b = (twin_layout)((layout + 1) % TWIN_LAYOUTS);
        problem p = problem_of(c, dtype, a, layout % 2 == 0 ? a : b, a, layout % 3);
        check(&p, dtype, layout % 2 == 0, c->what);
        p = problem_of(c, dtype, a, b, b, 0);
        check(&p, dtype, layout % 2 == 1, c->what);
        ek_scope_end(&scope);
    }
}

TEST_LOOP(small_ones_agree, 0, 3 * SMALL)
{
    check_layouts(&small[_i / 3], dtypes[_i % 3], (_i + _i / 3) % 2, 2);
}

TEST_LOOP(tiles_agree, 0, 3 * TILES)
{
    check_layouts(&tiles[_i / 3], dtypes[_i % 3], (_i + _i / 3) % 3, 3);
}

TEST(results_are_the_same_from_run_to_run)
{
    problem p = problem_of(&tiles[6], EK_F32, TWIN_LAST, TWIN_LAST, TWIN_LAST, 0);
    ek_dev *cuda = twin_dev(EK_CUDA);
    ek_tensor *first = NULL;
    for (int round = 0; round < 3; round++) {
        assert_ok(ek_cuda_conv_direct_weight_gradient(cuda, p.dw.cuda, p.dbias.cuda, p.x.cuda,
                                                      p.dy.cuda, &p.params));
        ek_tensor *got = twin_pull(p.dw.cuda);
        if (first)
            case_same(got, first, "dw");
        first = got;
    }
}
