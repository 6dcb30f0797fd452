/* Convolution and its gradients on the GPU against the host's, by cuDNN and without it. */
#include "cuda_cases.h"
#include "evenkeel/precision.h"

typedef struct conv_case {
    const char *what;
    int dims;
    int64_t samples, channels, outputs, groups;
    int64_t in[3], window[3], stride[3], padding[3], dilation[3];
    int64_t fewer; /* positions of y than there are windows */
} conv_case;

static const conv_case cases[] = {
    {"3x3", 2, 2, 16, 24, 1, {9, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 0},
    {"one sample, 1x1", 2, 1, 8, 5, 1, {4, 4}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 0},
    {"1x1 stride 2", 2, 3, 16, 32, 1, {8, 8}, {1, 1}, {2, 2}, {0, 0}, {1, 1}, 0},
    {"three channels", 2, 2, 3, 16, 1, {11, 10}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 0},
    {"one channel to one", 2, 2, 1, 1, 1, {5, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 0},
    {"to one position", 2, 3, 16, 4, 1, {4, 4}, {4, 4}, {1, 1}, {0, 0}, {1, 1}, 0},
    {"dilation and stride", 2, 2, 6, 10, 1, {12, 13}, {3, 2}, {2, 3}, {2, 1}, {2, 3}, 0},
    {"groups", 2, 2, 12, 18, 3, {7, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 0},
    {"depthwise", 2, 2, 16, 16, 16, {7, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 0},
    {"asymmetric", 2, 1, 7, 9, 1, {9, 5}, {5, 2}, {2, 1}, {2, 0}, {1, 2}, 0},
    {"last windows left out", 2, 2, 8, 16, 1, {9, 11}, {3, 3}, {1, 2}, {1, 1}, {3, 4}, 2},
    {"three dimensions", 3, 2, 3, 8, 1, {6, 5, 7}, {2, 3, 3}, {1, 2, 1}, {0, 1, 2}, {3, 1, 2}, 0},
    {"three dimensions, fewer",
     3,
     1,
     4,
     6,
     2,
     {6, 5, 7},
     {2, 3, 3},
     {2, 2, 1},
     {0, 1, 1},
     {1, 1, 1},
     1},
};
enum { CASES = sizeof cases / sizeof *cases };
static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16};

typedef struct problem {
    twin x, w, y, bias, dx, dw, dy, dbias;
    ek_conv_params params;
} problem;

static problem problem_of(const conv_case *c, ek_dtype dtype, twin_layout layout, bool with_bias)
{
    problem p = {.params = {.dims = c->dims, .groups = c->groups}};
    int64_t x[5] = {c->samples, c->channels}, w[5] = {c->outputs, c->channels / c->groups};
    int64_t y[5] = {c->samples, c->outputs};
    int ndim = 2 + c->dims;
    for (int i = 0; i < c->dims; i++) {
        p.params.stride[i] = c->stride[i];
        p.params.padding[i] = c->padding[i];
        p.params.dilation[i] = c->dilation[i];
        x[2 + i] = c->in[i];
        w[2 + i] = c->window[i];
        y[2 + i] = (c->in[i] + 2 * c->padding[i] - c->dilation[i] * (c->window[i] - 1) - 1) /
                       c->stride[i] +
                   1 - c->fewer;
    }
    p.x = twin_uniform(twin_new(dtype, ndim, x, layout), -1, 1, 1);
    p.w = twin_uniform(twin_new(dtype, ndim, w, layout), -1, 1, 2);
    p.dy = twin_uniform(twin_new(dtype, ndim, y, layout), -1, 1, 3);
    p.y = twin_new(dtype, ndim, y, layout);
    p.dx = twin_new(dtype, ndim, x, layout);
    p.dw = twin_new(dtype, ndim, w, layout);
    if (with_bias) {
        p.bias = twin_uniform(twin_new(dtype, 1, w, TWIN_ROWS), -1, 1, 4);
        p.dbias = twin_new(dtype, 1, w, TWIN_ROWS);
    }
    return p;
}

static void run(problem *p)
{
    ek_dev *host = twin_dev(EK_HOST), *cuda = twin_dev(EK_CUDA);
    const ek_kernels *a = twin_host(), *b = twin_cuda();
    const ek_conv_params *o = &p->params;
    assert_ok(a->conv_forward(host, p->y.host, p->x.host, p->w.host, p->bias.host, o));
    assert_ok(b->conv_forward(cuda, p->y.cuda, p->x.cuda, p->w.cuda, p->bias.cuda, o));
    assert_ok(a->conv_input_gradient(host, p->dx.host, p->dy.host, p->w.host, o));
    assert_ok(b->conv_input_gradient(cuda, p->dx.cuda, p->dy.cuda, p->w.cuda, o));
    assert_ok(a->conv_weight_gradient(host, p->dw.host, p->dbias.host, p->x.host, p->dy.host, o));
    assert_ok(b->conv_weight_gradient(cuda, p->dw.cuda, p->dbias.cuda, p->x.cuda, p->dy.cuda, o));
}

/* Of norms. Winograd's transforms, which cuDNN may choose for f32, lose some bits. */
static double tolerance_of(ek_dtype dtype)
{
    return dtype == EK_F64 ? 1e-14 : dtype == EK_F32 ? 1e-5 : 6e-3;
}

static void check(const conv_case *c, ek_dtype dtype, twin_layout layout, bool with_bias)
{
    ek_scope scope = ek_scope_begin();
    problem p = problem_of(c, dtype, layout, with_bias);
    double relative = tolerance_of(dtype);
    char what[128];
    snprintf(what, sizeof what, "%s, layout %d, bias %d", c->what, (int)layout, with_bias);
    run(&p);
    twin_close_norm(p.y, relative, what);
    twin_close_norm(p.dx, relative, what);
    twin_close_norm(p.dw, relative, what);
    if (with_bias)
        twin_close_norm(p.dbias, relative, what);
    ek_scope_end(&scope);
}

TEST_LOOP(conv_agrees_with_the_host, 0, 3 * CASES)
{
    static const twin_layout layouts[] = {TWIN_LAST, TWIN_ROWS, TWIN_DENSE_OFFSET, TWIN_SWAPPED};
    for (int i = 0; i < 4; i++)
        check(&cases[_i / 3], dtypes[_i % 3], layouts[i], i % 2 == 0);
}

TEST_LOOP(conv_without_libraries_agrees_with_the_host, 0, 3 * CASES)
{
    setenv("EVENKEEL_CUDA_WITHOUT", "cublas,cudnn", 1);
    check(&cases[_i / 3], dtypes[_i % 3], TWIN_GAPS, true);
    check(&cases[_i / 3], dtypes[_i % 3], TWIN_REVERSED, false);
}

TEST_LOOP(conv_with_rounded_operands, 0, CASES)
{
    ek_allow_tf32(true);
    ek_scope scope = ek_scope_begin();
    problem p = problem_of(&cases[_i], EK_F32, TWIN_LAST, true);
    run(&p);
    twin_close_norm(p.y, 2e-3, cases[_i].what);
    twin_close_norm(p.dx, 2e-3, cases[_i].what);
    twin_close_norm(p.dw, 2e-3, cases[_i].what);
    ek_scope_end(&scope);
}

TEST_LOOP(conv_repeats_to_the_bit, 0, CASES)
{
    ek_use_deterministic_algorithms(true);
    for (int d = 0; d < 3; d++) {
        problem p = problem_of(&cases[_i], dtypes[d], TWIN_LAST, true);
        problem q = problem_of(&cases[_i], dtypes[d], TWIN_LAST, true);
        run(&p);
        run(&q);
        case_same(twin_pull(p.y.cuda), twin_pull(q.y.cuda), cases[_i].what);
        case_same(twin_pull(p.dx.cuda), twin_pull(q.dx.cuda), cases[_i].what);
        case_same(twin_pull(p.dw.cuda), twin_pull(q.dw.cuda), cases[_i].what);
        case_same(twin_pull(p.dbias.cuda), twin_pull(q.dbias.cuda), cases[_i].what);
    }
}

/* Gradients of sums have one value, expanded. */
TEST(conv_takes_zero_strides)
{
    for (int d = 0; d < 3; d++) {
        problem p = problem_of(&cases[0], dtypes[d], TWIN_LAST, true);
        p.dy = twin_repeat(p.dy, 15);
        p.x = twin_repeat(p.x, 1);
        run(&p);
        twin_close_norm(p.y, tolerance_of(dtypes[d]), "y");
        twin_close_norm(p.dx, tolerance_of(dtypes[d]), "dx");
        twin_close_norm(p.dw, tolerance_of(dtypes[d]), "dw");
        twin_close_norm(p.dbias, tolerance_of(dtypes[d]), "dbias");
    }
}

/* No samples, or no channels: sums of nothing are 0, and a bias remains. */
TEST(conv_of_nothing)
{
    conv_case samples = cases[0], channels = cases[0], outputs = cases[0];
    samples.samples = 0;
    channels.channels = 0;
    outputs.outputs = 0;
    const conv_case *empty[] = {&samples, &channels, &outputs};
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < 3; i++) {
            problem p = problem_of(empty[i], dtypes[d], TWIN_LAST, true);
            run(&p);
            twin_same(p.y, empty[i]->what);
            twin_same(p.dx, empty[i]->what);
            twin_same(p.dw, empty[i]->what);
            twin_close_norm(p.dbias, tolerance_of(dtypes[d]), empty[i]->what);
        }
}

/* With little memory another engine, or our own kernels, compute the same. */
TEST(conv_with_little_memory)
{
    ek_memory_stats stats;
    conv_case c = cases[0];
    c.samples = 16;
    problem p = problem_of(&c, EK_F32, TWIN_LAST, true);
    assert_ok(ek_memory_trim(ek_cuda(0)));
    assert_ok(ek_memory_get_stats(ek_cuda(0), &stats));
    assert_ok(ek_memory_set_capacity(ek_cuda(0), stats.reserved + (64 << 10)));
    assert_ok(twin_host()->conv_forward(twin_dev(EK_HOST), p.y.host, p.x.host, p.w.host,
                                        p.bias.host, &p.params));
    assert_ok(twin_cuda()->conv_forward(twin_dev(EK_CUDA), p.y.cuda, p.x.cuda, p.w.cuda,
                                        p.bias.cuda, &p.params));
    ck_assert_int_eq(ek_error_status(), 0);
    twin_close_norm(p.y, tolerance_of(EK_F32), "little memory");
}

TEST(conv_workspace_is_given_back)
{
    ek_memory_stats before, after;
    problem p = problem_of(&cases[0], EK_F32, TWIN_SWAPPED, true);
    assert_ok(ek_memory_get_stats(ek_cuda(0), &before));
    run(&p);
    assert_ok(ek_memory_get_stats(ek_cuda(0), &after));
    ck_assert(after.now[EK_MEMORY_WORKSPACE] == before.now[EK_MEMORY_WORKSPACE]);
    ck_assert(after.in_use == before.in_use);
}
