/* Cross entropy, its gradient and the weight of targets: the GPU's kernels against the host's. */
#include "cuda_cases.h"

#include "evenkeel/device.h"

static const int64_t no_dims[1] = {0}; /* of a scalar */
static const int64_t shapes[][4] = {{2, 5, 3, 4},   {3, 11, 9, 13}, {2, 1, 3, 3},   {2, 300, 2, 3},
                                    {40, 10, 1, 1}, {0, 3, 2, 2},   {3, 2000, 1, 1}};
enum { SHAPES = sizeof shapes / sizeof shapes[0], IGNORED = -100 };
static const ek_dtype floating[] = {EK_F32, EK_F64, EK_BF16};

typedef struct entropy_case {
    twin x, target, weight, loss, lse, gradient, dx;
    ek_cross_entropy_params params;
} entropy_case;

static entropy_case case_of(ek_dtype dtype, const int64_t *shape, int layout, double smoothing,
                            bool weighted)
{
    const int64_t plane[] = {shape[0], shape[2], shape[3]};
    ek_dtype lse = dtype == EK_F64 ? EK_F64 : EK_F32;
    entropy_case c = {.params = {.ignore_index = IGNORED, .label_smoothing = smoothing}};
    c.x = twin_uniform(twin_new(dtype, 4, shape, (twin_layout)layout), -4, 4, 1);
    c.dx = twin_new(dtype, 4, shape, (twin_layout)((layout + 1) % TWIN_LAYOUTS));
    c.target = twin_new(EK_I64, 3, plane, (twin_layout)((layout + 2) % TWIN_LAYOUTS));
    twin_integers(c.target, 0, shape[1] - 1, 2);
    for (int64_t i = 3; i < ek_count(c.target.host); i += 7)
        case_set(c.target.host, i, IGNORED);
    twin_push(c.target);
    c.loss = twin_new(dtype, 3, plane, TWIN_ROWS);
    c.lse = twin_new(lse, 3, plane, TWIN_GAPS);
    c.gradient = twin_uniform(twin_new(dtype, 3, plane, TWIN_ROWS), -2, 2, 3);
    if (layout % 2)
        c.gradient = twin_repeat(c.gradient, 7);
    if (weighted)
        c.weight = twin_uniform(twin_new(dtype, 1, &shape[1], TWIN_GAPS), 0.5, 2, 4);
    return c;
}

static void run(const entropy_case *c)
{
    assert_ok(twin_host()->cross_entropy_forward(twin_dev(EK_HOST), c->loss.host, c->lse.host,
                                                 c->x.host, c->target.host, c->weight.host,
                                                 &c->params));
    assert_ok(twin_cuda()->cross_entropy_forward(twin_dev(EK_CUDA), c->loss.cuda, c->lse.cuda,
                                                 c->x.cuda, c->target.cuda, c->weight.cuda,
                                                 &c->params));
}

static void run_gradient(const entropy_case *c)
{
    twin_push(c->lse);
    assert_ok(twin_host()->cross_entropy_gradient(twin_dev(EK_HOST), c->dx.host, c->gradient.host,
                                                  c->lse.host, c->x.host, c->target.host,
                                                  c->weight.host, &c->params));
    assert_ok(twin_cuda()->cross_entropy_gradient(twin_dev(EK_CUDA), c->dx.cuda, c->gradient.cuda,
                                                  c->lse.cuda, c->x.cuda, c->target.cuda,
                                                  c->weight.cuda, &c->params));
}

TEST_LOOP(cross_entropy, 0, 3)
{
    ek_dtype dtype = floating[_i];
    double tolerance = dtype == EK_F64 ? 1e-13 : 3e-6, last = dtype == EK_BF16 ? 8e-3 : tolerance;
    for (int s = 0; s < SHAPES; s++)
        for (int l = 0; l < TWIN_LAYOUTS; l++)
            for (int option = 0; option < 4; option++) {
                ek_scope scope = ek_scope_begin();
                char what[80];
                snprintf(what, sizeof what, "shape %d, layout %d, options %d", s, l, option);
                entropy_case c =
                    case_of(dtype, shapes[s], l, option & 1 ? 0.1 : 0, (option & 2) != 0);
                run(&c);
                twin_close(c.loss, last, tolerance, what);
                twin_close(c.lse, tolerance, tolerance, what);
                run_gradient(&c);
                twin_close(c.dx, last, 2 * tolerance, what);
                ek_scope_end(&scope);
            }
}

/* So many elements that fewer lanes work on each. */
TEST_LOOP(cross_entropy_of_many_elements, 0, 6)
{
    ek_dtype dtype = floating[_i / 2];
    double tolerance = dtype == EK_F64 ? 1e-13 : 3e-6, last = dtype == EK_BF16 ? 8e-3 : tolerance;
    const int64_t shape[] = {2, _i % 2 == 0 ? 11 : 40, 45, 47};
    entropy_case c = case_of(dtype, shape, TWIN_LAST, 0.1, true);
    run(&c);
    twin_close(c.loss, last, tolerance, "loss");
    twin_close(c.lse, tolerance, tolerance, "lse");
    run_gradient(&c);
    twin_close(c.dx, last, tolerance, "gradient");
}

TEST(special_values)
{
    const int64_t shape[] = {6, 7, 1, 2};
    const double infinity = (double)INFINITY;
    for (int l = TWIN_LAST; l <= TWIN_ROWS; l++)
        for (int option = 0; option < 4; option++) {
            entropy_case c = case_of(EK_F32, shape, l, option & 1 ? 0.1 : 0, (option & 2) != 0);
            for (int64_t i = 0; i < ek_count(c.x.host); i++) {
                int64_t n = i / 14, k = i / 2 % 7;
                case_set(c.x.host, i,
                         n == 0   ? -infinity
                         : n == 1 ? (k == 2 ? (double)NAN : 0.5)
                         : n == 2 ? (k == 3 ? infinity : 1)
                         : n == 3 ? (k < 4 ? -infinity : 1)
                         : n == 4 ? 1e4 + (double)k
                                  : (k == 5 ? 3e38 : -3e38));
            }
            twin_push(c.x);
            run(&c);
            twin_close(c.loss, 1e-5, 1e-5, "special losses");
            twin_close(c.lse, 1e-6, 1e-6, "special lse");
            run_gradient(&c);
            twin_close(c.dx, 1e-5, 1e-5, "special gradients");
        }
}

TEST(target_weight)
{
    const int64_t shape[] = {3, 4, 5, 7}, large[] = {3, 6, 60, 211}, one[] = {1};
    for (int big = 0; big < 2; big++)
        for (int weighted = 0; weighted < 2; weighted++)
            for (int l = 0; l < TWIN_LAYOUTS; l++) {
                ek_scope scope = ek_scope_begin();
                entropy_case c = case_of(EK_F32, big ? large : shape, l, 0, weighted);
                twin out = twin_new(floating[l % 3], l % 2, one, TWIN_ROWS);
                assert_ok(twin_host()->target_weight(twin_dev(EK_HOST), out.host, c.target.host,
                                                     c.weight.host, IGNORED));
                assert_ok(twin_cuda()->target_weight(twin_dev(EK_CUDA), out.cuda, c.target.cuda,
                                                     c.weight.cuda, IGNORED));
                twin_close(out, out.host->dtype == EK_BF16 ? 8e-3 : 1e-7, 0, "target weight");
                ek_scope_end(&scope);
            }
    const int64_t none[] = {0};
    twin target = twin_new(EK_I64, 1, none, TWIN_ROWS),
         out = twin_new(EK_F32, 0, no_dims, TWIN_ROWS);
    assert_ok(twin_cuda()->target_weight(twin_dev(EK_CUDA), out.cuda, target.cuda, NULL, IGNORED));
    case_set(out.host, 0, 0);
    twin_same(out, "no targets");
}

TEST(targets_out_of_range)
{
    const int64_t shape[] = {6, 4, 1, 1};
    ek_dev *dev = twin_dev(EK_CUDA);
    for (int kernel = 0; kernel < 3; kernel++)
        for (int bad = -1; bad < 5; bad += 5) {
            entropy_case c = case_of(EK_F32, shape, TWIN_ROWS, 0.1, true);
            run(&c);
            run_gradient(&c);
            double before = case_get(c.target.host, 5);
            twin out = twin_new(EK_F32, 0, no_dims, TWIN_ROWS);
            case_set(c.target.host, 5, bad);
            twin_push(c.target);
            if (kernel == 0)
                assert_ok(twin_cuda()->cross_entropy_forward(dev, c.loss.cuda, c.lse.cuda, c.x.cuda,
                                                             c.target.cuda, c.weight.cuda,
                                                             &c.params));
            else if (kernel == 1)
                assert_ok(twin_cuda()->cross_entropy_gradient(dev, c.dx.cuda, c.gradient.cuda,
                                                              c.lse.cuda, c.x.cuda, c.target.cuda,
                                                              c.weight.cuda, &c.params));
            else
                assert_ok(twin_cuda()->target_weight(dev, out.cuda, c.target.cuda, c.weight.cuda,
                                                     IGNORED));
            assert_refused(ek_synchronize(ek_cuda(0)), EK_E_INVALID,
                           bad < 0 ? "target -1 is out of range for 4 classes"
                                   : "target 4 is out of range for 4 classes");
            ck_assert_int_eq(ek_synchronize(ek_cuda(0)), 0);
            case_set(c.target.host, 5, before);
            twin_push(c.target);
            run(&c);
            twin_close(c.loss, 1e-5, 1e-5, "after an error");
        }
}
