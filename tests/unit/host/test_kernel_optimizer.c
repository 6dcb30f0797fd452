/* Optimizer steps on lists of parameters: the host's against the formulas in double, the GPU's
 * against the host's. */
#include "twin.h"

enum { MOST = 150, STEPS = 3, STATES = 3, ALL = 2 + STATES };

/* Parameters, their gradients and states. */
typedef struct stepped {
    int count;
    ek_tensor *on[2][ALL][MOST]; /* by side */
    twin both[ALL][MOST];
    double *wanted[ALL][MOST]; /* after as many steps of the formulas */
} stepped;

/* Sizes: nothing, one, parts of vectors, more than a chunk; some lie off a vector's bounds. */
static int64_t size_of(int i)
{
    static const int64_t sizes[] = {5, 0, 1, 16, 4099, 33, 250, 8};
    return sizes[i % 8];
}

static stepped *stepped_new(ek_dtype dtype, int count, unsigned seed)
{
    stepped *all = calloc(1, sizeof *all);
    ck_assert_ptr_nonnull(all);
    all->count = count;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < ALL; k++) {
            int64_t size = count == 1 ? 20011 : size_of(i);
            twin_layout layout = (i + k) % 7 == 3 ? TWIN_DENSE_OFFSET : TWIN_ROWS;
            twin t = twin_new(dtype, 1, &size, layout);
            t = twin_uniform(t, k < 3 ? -1 : 0, 1, seed + (unsigned)(i * 8 + k));
            all->both[k][i] = t;
            for (int side = 0; side < 2; side++)
                all->on[side][k][i] = ON(t);
            all->wanted[k][i] = case_values(t.host);
        }
    return all;
}

static void stepped_compare(stepped *all, const char *name, int variant)
{
    static const char *const names[ALL] = {"parameter", "gradient", "state", "state 1", "state 2"};
    for (int i = 0; i < all->count; i++)
        for (int k = 0; k < ALL; k++) {
            const char *what = text_of("%s, variant %d, %s of tensor %d of %d", name, variant,
                                       names[k], i, all->count);
            bool wide = all->both[k][i].host->dtype == EK_F64;
            twin_expect(all->both[k][i], all->wanted[k][i], wide ? 1e-13 : 2e-6, what);
            double tolerance = k == 1 ? 0 : wide ? 1e-14 : 2e-6;
            twin_close(all->both[k][i], tolerance, tolerance, what);
            free(all->wanted[k][i]);
        }
    free(all);
}

static const ek_sgd_params sgd_variants[] = {
    {.lr = 0.1},
    {.lr = 0.1, .weight_decay = 0.01, .maximize = true},
    {.lr = 0.05, .momentum = 0.9},
    {.lr = 0.05, .momentum = 0.9, .dampening = 0.25, .weight_decay = 0.1},
    {.lr = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1, .maximize = true},
};

static void sgd_step(stepped *all, const ek_sgd_params *p)
{
    twin_run(sgd_step_list, all->count, all->on[side][0], all->on[side][1],
             p->momentum != 0 ? all->on[side][2] : NULL, p);
    for (int t = 0; t < all->count; t++) {
        double *w = all->wanted[0][t], *g = all->wanted[1][t], *b = all->wanted[2][t];
        for (int64_t i = 0; i < ek_count(all->both[0][t].host); i++) {
            double d = (p->maximize ? -1 : 1) * g[i] + p->weight_decay * w[i];
            if (p->momentum != 0) {
                b[i] = p->first ? d : p->momentum * b[i] + (1 - p->dampening) * d;
                d = p->nesterov ? d + p->momentum * b[i] : b[i];
            }
            w[i] -= p->lr * d;
        }
    }
}

TEST_LOOP(sgd, 0, 10)
{
    static const int counts[] = {1, 8, MOST};
    for (int c = 0; c < (_i % 5 < 2 ? 3 : 2); c++) {
        ek_scope scope = ek_scope_begin();
        stepped *all = stepped_new(_i / 5 ? EK_F64 : EK_F32, counts[c], (unsigned)_i);
        ek_sgd_params p = sgd_variants[_i % 5];
        for (int step = 0; step < STEPS; step++) {
            p.first = step == 0;
            sgd_step(all, &p);
        }
        stepped_compare(all, "sgd", _i);
        ek_scope_end(&scope);
    }
}

static const ek_adam_params adam_variants[] = {
    {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
    {.lr = 1e-2, .beta1 = 0.5, .beta2 = 0.9, .eps = 1e-8, .weight_decay = 0.1},
    {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3, .weight_decay = 0.1, .decoupled = 1},
    {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .maximize = true},
};

static void adam_step(stepped *all, const ek_adam_params *p, bool amsgrad)
{
    twin_run(adam_step_list, all->count, all->on[side][0], all->on[side][1], all->on[side][3],
             all->on[side][4], amsgrad ? all->on[side][2] : NULL, p);
    const double s = (double)p->step;
    for (int t = 0; t < all->count; t++) {
        double *w = all->wanted[0][t], *g = all->wanted[1][t], *most = all->wanted[2][t];
        double *m = all->wanted[3][t], *v = all->wanted[4][t];
        for (int64_t i = 0; i < ek_count(all->both[0][t].host); i++) {
            double d = (p->maximize ? -1 : 1) * g[i];
            if (p->decoupled)
                w[i] *= 1 - p->lr * p->weight_decay;
            else
                d += p->weight_decay * w[i];
            m[i] = p->beta1 * m[i] + (1 - p->beta1) * d;
            v[i] = p->beta2 * v[i] + (1 - p->beta2) * d * d;
            if (amsgrad) /* NaN stays */
                most[i] = most[i] > v[i] ? most[i] : v[i];
            double root = sqrt(amsgrad ? most[i] : v[i]) / sqrt(1 - pow(p->beta2, s));
            w[i] -= p->lr / (1 - pow(p->beta1, s)) * m[i] / (root + p->eps);
        }
    }
}

TEST_LOOP(adam, 0, 16)
{
    static const int counts[] = {1, 8, MOST};
    for (int c = 0; c < (_i % 4 < 2 ? 3 : 2); c++) {
        ek_scope scope = ek_scope_begin();
        stepped *all = stepped_new(_i & 4 ? EK_F64 : EK_F32, counts[c], (unsigned)_i);
        ek_adam_params p = adam_variants[_i % 4];
        for (p.step = 1; p.step <= STEPS; p.step++)
            adam_step(all, &p, _i & 8);
        stepped_compare(all, _i & 8 ? "amsgrad" : "adam", _i);
        ek_scope_end(&scope);
    }
}

TEST(not_a_number)
{
    const ek_adam_params p = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .step = 3};
    static const int of[] = {1, 2}, at[] = {2, 3};
    static const double values[] = {(double)NAN, (double)INFINITY};
    stepped *all = stepped_new(EK_F32, 1, 1);
    for (int k = 0; k < 2; k++) {
        case_set(all->both[of[k]][0].host, at[k], values[k]);
        twin_push(all->both[of[k]][0]);
        all->wanted[of[k]][0][at[k]] = values[k];
    }
    adam_step(all, &p, true);
    case_must(isnan(case_get(all->both[0][0].host, 2)) && isnan(case_get(all->both[2][0].host, 2)));
    stepped_compare(all, "not a number", 0);
}

TEST(errors)
{
    const int64_t dims[] = {4};
    const ek_adam_params zeroth = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.9};
    const ek_adam_params first = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.9, .step = 1};
    twin w = twin_new(EK_F32, 1, dims, TWIN_ROWS), narrow = twin_new(EK_BF16, 1, dims, TWIN_ROWS);
    twin_refused(EK_E_INVALID, "SGD with momentum 0.9 needs a momentum buffer", sgd_step_list, 1,
                 &ON(w), &ON(w), NULL, &sgd_variants[2]);
    twin_refused(EK_E_DTYPE, "SGD steps parameters of f32 or f64, not bf16", sgd_step_list, 1,
                 &ON(narrow), &ON(narrow), &ON(narrow), &sgd_variants[2]);
    twin_refused(EK_E_INVALID, "Adam's first step has number 1, not 0", adam_step_list, 1, &ON(w),
                 &ON(w), &ON(w), &ON(w), NULL, &zeroth);
    twin_refused(EK_E_DTYPE, "Adam steps parameters of f32 or f64, not bf16", adam_step_list, 1,
                 &ON(narrow), &ON(w), &ON(w), &ON(w), NULL, &first);
    twin_run(sgd_step_list, 0, NULL, NULL, NULL, &sgd_variants[0]);
}
