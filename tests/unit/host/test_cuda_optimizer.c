/* The GPU's optimizer steps against the host's: lists of parameters. */
#include "cuda_cases.h"

enum { MOST = 150, STEPS = 3, STATES = 3 };

/* A parameter, its gradient and states, or lists of such. */
typedef struct stepped {
    int count;
    ek_tensor *host[2 + STATES][MOST], *cuda[2 + STATES][MOST];
    twin both[2 + STATES][MOST];
} stepped;

/* Sizes: nothing, one, parts of vectors, more than a chunk; some lie off a vector's bounds. */
static int64_t size_of(int i)
{
    static const int64_t sizes[] = {5, 0, 1, 16, 4099, 33, 250, 8};
    return sizes[i % 8];
}

static stepped *make(ek_dtype dtype, int count, unsigned seed)
{
    stepped *all = calloc(1, sizeof *all);
    ck_assert_ptr_nonnull(all);
    all->count = count;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < 2 + STATES; k++) {
            int64_t size = size_of(i);
            twin_layout layout = (i + k) % 7 == 3 ? TWIN_DENSE_OFFSET : TWIN_ROWS;
            twin t = twin_new(dtype, 1, &size, layout);
            t = twin_uniform(t, k < 3 ? -1 : 0, 1, seed + (unsigned)(i * 8 + k));
            all->both[k][i] = t;
            all->host[k][i] = t.host;
            all->cuda[k][i] = t.cuda;
        }
    return all;
}

static void compare(const stepped *all, ek_dtype dtype, const char *name, int variant)
{
    static const char *const names[] = {"parameter", "gradient", "state", "state 1", "state 2"};
    for (int i = 0; i < all->count; i++)
        for (int k = 0; k < 2 + STATES; k++) {
            char what[120];
            snprintf(what, sizeof what, "%s, variant %d, %s of tensor %d of %d", name, variant,
                     names[k], i, all->count);
            double tolerance = k == 1 ? 0 : dtype == EK_F64 ? 1e-14 : 2e-6;
            twin_close(all->both[k][i], tolerance, tolerance, what);
        }
}

TEST_LOOP(sgd, 0, 2)
{
    static const ek_sgd_params variants[] = {
        {.lr = 0.1},
        {.lr = 0.1, .weight_decay = 0.01, .maximize = true},
        {.lr = 0.05, .momentum = 0.9},
        {.lr = 0.05, .momentum = 0.9, .dampening = 0.25, .weight_decay = 0.1},
        {.lr = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1, .maximize = true},
    };
    static const int counts[] = {1, 8, MOST};
    ek_dtype dtype = _i ? EK_F64 : EK_F32;
    for (int v = 0; v < 5; v++)
        for (int c = 0; c < (v < 2 ? 3 : 2); c++) {
            ek_scope scope = ek_scope_begin();
            stepped *all = make(dtype, counts[c], (unsigned)v);
            ek_sgd_params p = variants[v];
            for (int step = 0; step < STEPS; step++) {
                p.first = step == 0;
                bool buffers = p.momentum != 0;
                assert_ok(twin_host()->sgd_step_list(twin_dev(EK_HOST), counts[c], all->host[0],
                                                     all->host[1], buffers ? all->host[2] : NULL,
                                                     &p));
                assert_ok(twin_cuda()->sgd_step_list(twin_dev(EK_CUDA), counts[c], all->cuda[0],
                                                     all->cuda[1], buffers ? all->cuda[2] : NULL,
                                                     &p));
            }
            compare(all, dtype, "sgd", v);
            free(all);
            ek_scope_end(&scope);
        }
}

TEST_LOOP(adam, 0, 4)
{
    static const ek_adam_params variants[] = {
        {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
        {.lr = 1e-2, .beta1 = 0.5, .beta2 = 0.9, .eps = 1e-8, .weight_decay = 0.1},
        {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3, .weight_decay = 0.1, .decoupled = 1},
        {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .maximize = true},
    };
    static const int counts[] = {1, 8, MOST};
    ek_dtype dtype = _i % 2 ? EK_F64 : EK_F32;
    bool largest = _i / 2;
    for (int v = 0; v < 4; v++)
        for (int c = 0; c < (v < 2 ? 3 : 2); c++) {
            ek_scope scope = ek_scope_begin();
            stepped *all = make(dtype, counts[c], (unsigned)v);
            ek_adam_params p = variants[v];
            for (int step = 1; step <= STEPS; step++) {
                p.step = step;
                assert_ok(twin_host()->adam_step_list(twin_dev(EK_HOST), counts[c], all->host[0],
                                                      all->host[1], all->host[3], all->host[4],
                                                      largest ? all->host[2] : NULL, &p));
                assert_ok(twin_cuda()->adam_step_list(twin_dev(EK_CUDA), counts[c], all->cuda[0],
                                                      all->cuda[1], all->cuda[3], all->cuda[4],
                                                      largest ? all->cuda[2] : NULL, &p));
            }
            compare(all, dtype, largest ? "amsgrad" : "adam", v);
            free(all);
            ek_scope_end(&scope);
        }
}

TEST(not_a_number)
{
    const ek_adam_params p = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .step = 3};
    stepped *all = make(EK_F32, 1, 1);
    case_set(all->host[1][0], 2, (double)NAN);
    case_set(all->host[2][0], 3, (double)INFINITY);
    twin_push(all->both[1][0]);
    twin_push(all->both[2][0]);
    assert_ok(twin_host()->adam_step_list(twin_dev(EK_HOST), 1, all->host[0], all->host[1],
                                          all->host[3], all->host[4], all->host[2], &p));
    assert_ok(twin_cuda()->adam_step_list(twin_dev(EK_CUDA), 1, all->cuda[0], all->cuda[1],
                                          all->cuda[3], all->cuda[4], all->cuda[2], &p));
    case_must(isnan(case_get(all->host[0][0], 2)) && isnan(case_get(all->host[2][0], 2)));
    compare(all, EK_F32, "not a number", 0);
    free(all);
}

TEST(errors)
{
    const int64_t dims[] = {4};
    ek_dev *dev = twin_dev(EK_CUDA);
    const ek_sgd_params heavy = {.lr = 0.1, .momentum = 0.9};
    const ek_adam_params zeroth = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.9};
    ek_tensor *w = twin_new(EK_F32, 1, dims, TWIN_ROWS).cuda;
    ek_tensor *narrow = twin_new(EK_BF16, 1, dims, TWIN_ROWS).cuda;
    assert_refused(twin_cuda()->sgd_step_list(dev, 1, &w, &w, NULL, &heavy), EK_E_INVALID,
                   "SGD with momentum 0.9 needs a momentum buffer");
    assert_refused(twin_cuda()->sgd_step_list(dev, 1, &narrow, &narrow, &narrow, &heavy),
                   EK_E_DTYPE, "SGD steps parameters of f32 or f64, not bf16");
    assert_refused(twin_cuda()->adam_step_list(dev, 1, &w, &w, &w, &w, NULL, &zeroth), EK_E_INVALID,
                   "Adam's first step has number 1, not 0");
    assert_refused(twin_cuda()->adam_step_list(dev, 1, &narrow, &w, &w, &w, NULL, &zeroth),
                   EK_E_DTYPE, "Adam steps parameters of f32 or f64, not bf16");
    assert_ok(twin_cuda()->sgd_step_list(dev, 0, NULL, NULL, NULL, &(ek_sgd_params){.lr = 1}));
}
