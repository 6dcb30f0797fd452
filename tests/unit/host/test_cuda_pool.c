/* Pooling on the GPU against the host's. */
#include "cuda_cases.h"

typedef struct pool_case {
    const char *what;
    int dims;
    int64_t samples, channels;
    int64_t in[3], kernel[3], stride[3], padding[3], dilation[3];
    bool ceil;
} pool_case;

static const pool_case cases[] = {
    {"2x2", 2, 3, 16, {8, 8}, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false},
    {"3x3 stride 2 padding 1", 2, 2, 70, {9, 8}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, false},
    {"3x3 stride 2 padding 1, vectors", 2, 2, 24, {9, 7}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, false},
    {"3x3 stride 2, vectors", 2, 2, 8, {7, 10}, {3, 3}, {2, 2}, {0, 0}, {1, 1}, true},
    {"3x2 stride 1, vectors", 2, 1, 12, {5, 6}, {3, 2}, {1, 1}, {1, 1}, {1, 1}, false},
    {"overlapping, one channel", 2, 1, 1, {7, 5}, {3, 2}, {1, 1}, {1, 0}, {1, 1}, false},
    {"many outputs of few planes", 2, 1, 2, {40, 41}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, false},
    {"ceil", 2, 2, 5, {8, 10}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, true},
    {"dilated", 2, 2, 9, {11, 12}, {3, 3}, {2, 1}, {1, 1}, {2, 3}, false},
    {"one position", 2, 2, 37, {4, 4}, {4, 4}, {4, 4}, {0, 0}, {1, 1}, false},
    {"large windows", 2, 2, 37, {24, 15}, {20, 9}, {4, 3}, {3, 2}, {1, 1}, false},
    {"gaps between windows", 2, 2, 3, {9, 10}, {2, 1}, {4, 3}, {1, 0}, {1, 1}, false},
    {"three dimensions", 3, 2, 4, {5, 6, 7}, {2, 3, 2}, {2, 2, 2}, {1, 1, 0}, {1, 1, 1}, false},
    {"no samples", 2, 0, 4, {4, 4}, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false},
};
enum { CASES = sizeof cases / sizeof *cases };
static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16};

static double tolerance_of(ek_dtype dtype)
{
    return dtype == EK_F64 ? 1e-13 : dtype == EK_F32 ? 1e-5 : 8e-3;
}

typedef struct problem {
    ek_pool_params params;
    twin x, dx, y, dy, index;
} problem;

/* Layouts of the two sides. */
static problem problem_of(const pool_case *c, ek_dtype dtype, twin_layout of_x, twin_layout of_y,
                          bool dilated)
{
    problem p = {.params.dims = c->dims};
    int64_t xs[5] = {c->samples, c->channels}, ys[5] = {c->samples, c->channels};
    for (int i = 0; i < c->dims; i++) {
        int64_t dilation = dilated ? c->dilation[i] : 1;
        int64_t rest = c->in[i] + 2 * c->padding[i] - dilation * (c->kernel[i] - 1) - 1;
        p.params.kernel[i] = c->kernel[i];
        p.params.stride[i] = c->stride[i];
        p.params.padding[i] = c->padding[i];
        p.params.dilation[i] = dilation;
        xs[2 + i] = c->in[i];
        ys[2 + i] = (rest + (c->ceil ? c->stride[i] - 1 : 0)) / c->stride[i] + 1;
    }
    int ndim = 2 + c->dims;
    p.x = twin_uniform(twin_new(dtype, ndim, xs, of_x), -2, 2, 1);
    p.dx = twin_new(dtype, ndim, xs, of_x);
    p.y = twin_new(dtype, ndim, ys, of_y);
    p.dy = twin_uniform(twin_new(dtype, ndim, ys, of_y), -2, 2, 2);
    p.index = twin_new(EK_I64, ndim, ys, of_y);
    return p;
}

static void run_max(const problem *p, ek_dtype dtype, const char *what)
{
    ek_dev *host = twin_dev(EK_HOST), *cuda = twin_dev(EK_CUDA);
    const ek_kernels *on_host = twin_host(), *on_cuda = twin_cuda();
    assert_ok(on_host->max_pool_forward(host, p->y.host, p->index.host, p->x.host, &p->params));
    assert_ok(on_cuda->max_pool_forward(cuda, p->y.cuda, p->index.cuda, p->x.cuda, &p->params));
    twin_same(p->y, what);
    twin_same(p->index, what);
    assert_ok(on_host->max_pool_gradient(host, p->dx.host, p->dy.host, p->index.host, &p->params));
    assert_ok(on_cuda->max_pool_gradient(cuda, p->dx.cuda, p->dy.cuda, p->index.cuda, &p->params));
    twin_close(p->dx, tolerance_of(dtype), tolerance_of(dtype), what);
    assert_ok(on_host->max_pool_gather(host, p->y.host, p->x.host, p->index.host));
    assert_ok(on_cuda->max_pool_gather(cuda, p->y.cuda, p->x.cuda, p->index.cuda));
    twin_same(p->y, what);
}

static void check_max(const pool_case *c, ek_dtype dtype, twin_layout of_x, twin_layout of_y)
{
    problem p = problem_of(c, dtype, of_x, of_y, true);
    if (ek_count(p.x.host) > 9) {
        /* Whole numbers meet equals; NaN and the smallest win and lose. */
        p.x = twin_integers(p.x, -2, 2, 3);
        case_set(p.x.host, 3, (double)NAN);
        case_set(p.x.host, 4, (double)NAN);
        case_set(p.x.host, 5, -(double)INFINITY);
        twin_push(p.x);
    }
    run_max(&p, dtype, c->what);
}

static void run_avg(const problem *p, ek_dtype dtype, const char *what)
{
    ek_dev *host = twin_dev(EK_HOST), *cuda = twin_dev(EK_CUDA);
    double tolerance = tolerance_of(dtype);
    assert_ok(twin_host()->avg_pool_forward(host, p->y.host, p->x.host, &p->params));
    assert_ok(twin_cuda()->avg_pool_forward(cuda, p->y.cuda, p->x.cuda, &p->params));
    twin_close(p->y, tolerance, tolerance, what);
    assert_ok(twin_host()->avg_pool_gradient(host, p->dx.host, p->dy.host, &p->params));
    assert_ok(twin_cuda()->avg_pool_gradient(cuda, p->dx.cuda, p->dy.cuda, &p->params));
    twin_close(p->dx, tolerance, tolerance, what);
}

static void check_avg(const pool_case *c, ek_dtype dtype, twin_layout of_x, twin_layout of_y,
                      bool count_include_pad)
{
    problem p = problem_of(c, dtype, of_x, of_y, false);
    p.params.count_include_pad = count_include_pad;
    run_avg(&p, dtype, c->what);
}

/* Either side in each layout. */
TEST_LOOP(pools_agree, 0, 3 * CASES)
{
    ek_dtype dtype = dtypes[_i % 3];
    for (int layout = 0; layout < TWIN_LAYOUTS; layout++) {
        ek_scope scope = ek_scope_begin();
        twin_layout of_x = (twin_layout)layout, of_y = (twin_layout)((layout + _i) % TWIN_LAYOUTS);
        check_max(&cases[_i / 3], dtype, of_x, of_y);
        check_max(&cases[_i / 3], dtype, of_x, of_x);
        check_avg(&cases[_i / 3], dtype, of_x, of_y, true);
        check_avg(&cases[_i / 3], dtype, of_x, of_x, false);
        ek_scope_end(&scope);
    }
}

TEST_LOOP(adaptive_pools_agree, 0, 3)
{
    static const int64_t sizes[][8] = {{2, 35, 1, 8, 8, 1, 4, 4},   {2, 3, 1, 7, 5, 1, 3, 2},
                                       {1, 33, 1, 16, 20, 1, 1, 1}, {2, 2, 1, 3, 5, 1, 7, 5},
                                       {1, 4, 1, 1, 1, 1, 2, 3},    {2, 3, 1, 6, 6, 1, 6, 6},
                                       {1, 3, 5, 7, 6, 2, 3, 4},    {2, 3, 10, 9, 8, 1, 2, 1}};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    ek_dtype dtype = dtypes[_i];
    ek_dev *host = twin_dev(EK_HOST), *cuda = twin_dev(EK_CUDA);
    for (int k = 0; k < SIZES * TWIN_LAYOUTS; k++) {
        ek_scope scope = ek_scope_begin();
        const int64_t *s = sizes[k / TWIN_LAYOUTS];
        twin_layout layout = (twin_layout)(k % TWIN_LAYOUTS);
        int ndim = s[2] > 1 ? 5 : 4, skip = 5 - ndim;
        int64_t xs[5] = {s[0], s[1]}, ys[5] = {s[0], s[1]};
        for (int d = 2; d < ndim; d++) {
            xs[d] = s[d + skip];
            ys[d] = s[d + skip + 3];
        }
        twin x = twin_uniform(twin_new(dtype, ndim, xs, layout), -2, 2, 1);
        twin dx = twin_new(dtype, ndim, xs, layout);
        twin y = twin_new(dtype, ndim, ys, layout);
        twin dy = twin_uniform(twin_new(dtype, ndim, ys, layout), -2, 2, 2);
        assert_ok(twin_host()->adaptive_avg_pool_forward(host, y.host, x.host));
        assert_ok(twin_cuda()->adaptive_avg_pool_forward(cuda, y.cuda, x.cuda));
        twin_close(y, tolerance_of(dtype), tolerance_of(dtype), "adaptive");
        assert_ok(twin_host()->adaptive_avg_pool_gradient(host, dx.host, dy.host));
        assert_ok(twin_cuda()->adaptive_avg_pool_gradient(cuda, dx.cuda, dy.cuda));
        twin_close(dx, tolerance_of(dtype), tolerance_of(dtype), "adaptive gradient");
        ek_scope_end(&scope);
    }
}

/* `channels` of `all`, from the first-th on, of memory with all of them innermost. */
static twin some_channels(twin all, int64_t first, int64_t channels)
{
    int64_t shape[EK_MAX_DIMS];
    memcpy(shape, all.host->shape, sizeof shape);
    shape[1] = channels;
    twin view = {ek_tensor_view(all.host, 4, shape, all.host->stride, first),
                 ek_tensor_view(all.cuda, 4, shape, all.cuda->stride, first)};
    assert_made(view.host);
    assert_made(view.cuda);
    return view;
}

/* Vectors of channels that start at any element, with neighbours on either side. */
TEST_LOOP(pools_of_some_channels_agree, 0, 18)
{
    static const int64_t all[] = {24, 24, 19}, firsts[] = {1, 8, 1};
    pool_case c = cases[_i % 2 == 0 ? 1 : 2];
    ek_dtype dtype = dtypes[_i / 2 % 3];
    c.channels = all[_i / 6];
    problem p = problem_of(&c, dtype, TWIN_LAST, TWIN_LAST, true);
    twin *const tensors[] = {&p.x, &p.dx, &p.y, &p.dy, &p.index};
    for (int k = 0; k < 5; k++)
        *tensors[k] = some_channels(*tensors[k], firsts[_i / 6], 8);
    run_max(&p, dtype, c.what);
    p.params.count_include_pad = true;
    run_avg(&p, dtype, c.what);
}

TEST(max_gradients_are_the_same_from_run_to_run)
{
    problem p = problem_of(&cases[1], EK_F32, TWIN_LAST, TWIN_LAST, true);
    ek_dev *cuda = twin_dev(EK_CUDA);
    assert_ok(twin_cuda()->max_pool_forward(cuda, p.y.cuda, p.index.cuda, p.x.cuda, &p.params));
    assert_ok(twin_cuda()->max_pool_gradient(cuda, p.dx.cuda, p.dy.cuda, p.index.cuda, &p.params));
    ek_tensor *first = twin_pull(p.dx.cuda);
    assert_ok(twin_cuda()->max_pool_gradient(cuda, p.dx.cuda, p.dy.cuda, p.index.cuda, &p.params));
    case_same(twin_pull(p.dx.cuda), first, "gradient");
}

/* The device tells by the next call that waits, and goes on; the other elements are right. */
TEST_LOOP(positions_out_of_range_are_refused, 0, 4)
{
    const double bad = _i % 2 == 0 ? 72 : -1;
    problem p = problem_of(&cases[1], EK_F32, TWIN_LAST, TWIN_LAST, true);
    ek_dev *cuda = twin_dev(EK_CUDA);
    assert_ok(twin_host()->max_pool_forward(twin_dev(EK_HOST), p.y.host, p.index.host, p.x.host,
                                            &p.params));
    const double good = case_get(p.index.host, 7);
    case_set(p.index.host, 7, bad);
    twin_push(p.index);
    for (int round = 0; round < 2; round++) {
        if (_i < 2)
            assert_ok(twin_cuda()->max_pool_gather(cuda, p.y.cuda, p.x.cuda, p.index.cuda));
        else
            assert_ok(twin_cuda()->max_pool_gradient(cuda, p.dx.cuda, p.dy.cuda, p.index.cuda,
                                                     &p.params));
        assert_refused(ek_dev_synchronize(cuda), EK_E_INVALID,
                       _i % 2 == 0 ? "position 72" : "position -1");
    }
    assert_ok(ek_dev_synchronize(cuda));
    if (_i < 2)
        return;
    case_set(p.index.host, 7, good);
    case_set(p.dy.host, 7, 0);
    assert_ok(twin_host()->max_pool_gradient(twin_dev(EK_HOST), p.dx.host, p.dy.host, p.index.host,
                                             &p.params));
    twin_close(p.dx, 1e-5, 1e-5, "without the bad position");
}
