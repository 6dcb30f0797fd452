/* Optimizer steps against the formulas in double, over several steps. */
#include "host/host.h"
#include "host_cases.h"

enum { COUNT = 20011, STEPS = 5 };

static ek_tensor *vector(ek_dev *dev, ek_dtype dtype, unsigned seed)
{
    ek_tensor *x = case_tensor(dev, dtype, 1, (const int64_t[]){COUNT}, CASE_ROWS);
    case_fill(x, seed);
    return x;
}

static double *values_of(const ek_tensor *x)
{
    double *values = case_zeros(COUNT);
    for (int64_t i = 0; i < COUNT; i++)
        values[i] = case_get(x, i);
    return values;
}

static void near(const ek_tensor *x, const double *want, const char *what, int variant)
{
    double tolerance = x->dtype == EK_F64 ? 1e-13 : 2e-6;
    for (int64_t i = 0; i < COUNT; i++)
        if (!(fabs(case_get(x, i) - want[i]) <= tolerance * fmax(1, fabs(want[i]))))
            ck_abort_msg("%s, variant %d, element %lld: %.9g, not %.9g", what, variant,
                         (long long)i, case_get(x, i), want[i]);
}

TEST(sgd)
{
    ek_dev *dev = case_device(2);
    static const ek_sgd_params variants[] = {
        {.lr = 0.1},
        {.lr = 0.1, .weight_decay = 0.01, .maximize = true},
        {.lr = 0.05, .momentum = 0.9},
        {.lr = 0.05, .momentum = 0.9, .dampening = 0.25, .weight_decay = 0.1},
        {.lr = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1},
    };
    for (int v = 0; v < 10; v++) {
        ek_scope scope = ek_scope_begin();
        ek_dtype dtype = v < 5 ? EK_F32 : EK_F64;
        ek_sgd_params p = variants[v % 5];
        ek_tensor *w = vector(dev, dtype, 1);
        ek_tensor *buffer = p.momentum != 0 ? vector(dev, dtype, 9) : NULL;
        double *want = values_of(w), *b = case_zeros(COUNT);
        for (int step = 0; step < STEPS; step++) {
            ek_tensor *g = vector(dev, dtype, 10 + (unsigned)step);
            p.first = step == 0;
            assert_ok(ek_host_sgd_step_list(dev, 1, &w, &g, buffer ? &buffer : NULL, &p));
            for (int64_t i = 0; i < COUNT; i++) {
                double d = (p.maximize ? -1 : 1) * case_get(g, i) + p.weight_decay * want[i];
                if (p.momentum != 0) {
                    b[i] = step == 0 ? d : p.momentum * b[i] + (1 - p.dampening) * d;
                    d = p.nesterov ? d + p.momentum * b[i] : b[i];
                }
                want[i] -= p.lr * d;
            }
        }
        near(w, want, "sgd", v);
        if (buffer != NULL)
            near(buffer, b, "momentum", v);
        free(want), free(b);
        ek_scope_end(&scope);
    }
    ek_tensor *w = vector(dev, EK_F32, 1);
    assert_refused(ek_host_sgd_step_list(dev, 1, &w, &w, NULL, &variants[2]), EK_E_INVALID,
                   "momentum buffer");
}

TEST(adam)
{
    ek_dev *dev = case_device(2);
    static const ek_adam_params variants[] = {
        {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
        {.lr = 1e-2, .beta1 = 0.5, .beta2 = 0.9, .eps = 1e-8, .weight_decay = 0.1},
        {.lr = 1e-2,
         .beta1 = 0.9,
         .beta2 = 0.99,
         .eps = 1e-3,
         .weight_decay = 0.1,
         .decoupled = true},
        {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .maximize = true},
    };
    for (int k = 0; k < 16; k++) {
        ek_scope scope = ek_scope_begin();
        ek_dtype dtype = k & 4 ? EK_F64 : EK_F32;
        bool largest = k & 8;
        ek_adam_params p = variants[k % 4];
        ek_tensor *w = vector(dev, dtype, 1), *m = vector(dev, dtype, 0),
                  *v = vector(dev, dtype, 0);
        ek_tensor *most = largest ? vector(dev, dtype, 0) : NULL;
        assert_ok(ek_host_fill(dev, m, 0));
        assert_ok(ek_host_fill(dev, v, 0));
        if (largest)
            assert_ok(ek_host_fill(dev, most, 0));
        double *want = values_of(w), *a = case_zeros(COUNT), *s = case_zeros(COUNT);
        double *top = case_zeros(COUNT);
        for (int step = 1; step <= STEPS; step++) {
            ek_tensor *g = vector(dev, dtype, 10 + (unsigned)step);
            p.step = step;
            assert_ok(ek_host_adam_step_list(dev, 1, &w, &g, &m, &v, most ? &most : NULL, &p));
            for (int64_t i = 0; i < COUNT; i++) {
                double d = (p.maximize ? -1 : 1) * case_get(g, i);
                if (p.decoupled)
                    want[i] *= 1 - p.lr * p.weight_decay;
                else
                    d += p.weight_decay * want[i];
                a[i] = p.beta1 * a[i] + (1 - p.beta1) * d;
                s[i] = p.beta2 * s[i] + (1 - p.beta2) * d * d;
                top[i] = fmax(top[i], s[i]);
                double root = sqrt(largest ? top[i] : s[i]) / sqrt(1 - pow(p.beta2, step));
                want[i] -= p.lr / (1 - pow(p.beta1, step)) * a[i] / (root + p.eps);
            }
        }
        near(w, want, "adam", k);
        near(m, a, "exp_avg", k);
        near(v, s, "exp_avg_sq", k);
        if (largest)
            near(most, top, "max_exp_avg_sq", k);
        free(want), free(a), free(s), free(top);
        ek_scope_end(&scope);
    }
    ek_tensor *w = vector(dev, EK_F32, 1);
    assert_refused(ek_host_adam_step_list(dev, 1, &w, &w, &w, &w, NULL, &variants[0]), EK_E_INVALID,
                   "number 1");
}
