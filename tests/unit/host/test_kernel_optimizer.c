/* Optimizer steps on lists of parameters, norms and scaling of lists of gradients: the host's
 * against the formulas in double, the GPU's against the host's. */
#include "host/host.h"
#include "host/isa.h"
#include "kernels/steps.h"
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

/* Options of the formulas. */
typedef struct sgd_params {
    double lr, momentum, dampening, weight_decay;
    bool nesterov, maximize, first;
} sgd_params;

static const sgd_params sgd_variants[] = {
    {.lr = 0.1},
    {.lr = 0.1, .weight_decay = 0.01, .maximize = true},
    {.lr = 0.05, .momentum = 0.9},
    {.lr = 0.05, .momentum = 0.9, .dampening = 0.25, .weight_decay = 0.1},
    {.lr = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1, .maximize = true},
};

/* One call of the kernel, with the states from `first` on. */
static void rule_step(stepped *all, ek_step_rule rule, int first, const ek_step_numbers *numbers)
{
    const int at[] = {first, first == 3 ? 4 : 3, first == 3 ? 2 : 4};
    twin_run(step_list, rule, all->count, all->on[side][0], all->on[side][1],
             ((ek_tensor *const *const[]){all->on[side][at[0]], all->on[side][at[1]],
                                          all->on[side][at[2]]}),
             numbers);
}

static void sgd_step(stepped *all, const sgd_params *p)
{
    const ek_step_numbers numbers = {.sign = p->maximize ? -1 : 1,
                                     .decay = p->weight_decay,
                                     .rate = p->lr,
                                     .keep1 = p->momentum,
                                     .add1 = 1 - p->dampening,
                                     .initial = p->nesterov ? p->momentum : 0};
    const ek_step_rule rule = p->momentum == 0 ? EK_STEP_SGD
                              : p->first       ? EK_STEP_SGD_FIRST
                              : p->nesterov    ? EK_STEP_SGD_NESTEROV
                                               : EK_STEP_SGD_HEAVY;
    rule_step(all, rule, 2, &numbers);
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
        sgd_params p = sgd_variants[_i % 5];
        for (int step = 0; step < STEPS; step++) {
            p.first = step == 0;
            sgd_step(all, &p);
        }
        stepped_compare(all, "sgd", _i);
        ek_scope_end(&scope);
    }
}

typedef struct adam_params {
    double lr, beta1, beta2, eps, weight_decay;
    bool decoupled, maximize;
    int step;
} adam_params;

static const adam_params adam_variants[] = {
    {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
    {.lr = 1e-2, .beta1 = 0.5, .beta2 = 0.9, .eps = 1e-8, .weight_decay = 0.1},
    {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3, .weight_decay = 0.1, .decoupled = 1},
    {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .maximize = true},
};

static void adam_step(stepped *all, const adam_params *p, bool amsgrad)
{
    const double s = p->step;
    const ek_step_numbers numbers = {.sign = p->maximize ? -1 : 1,
                                     .decay = p->decoupled ? 0 : p->weight_decay,
                                     .shrink = p->decoupled ? 1 - p->lr * p->weight_decay : 1,
                                     .rate = p->lr / (1 - pow(p->beta1, s)),
                                     .keep1 = p->beta1,
                                     .add1 = 1 - p->beta1,
                                     .keep2 = p->beta2,
                                     .add2 = 1 - p->beta2,
                                     .eps = p->eps,
                                     .correction = sqrt(1 - pow(p->beta2, s))};
    rule_step(all, amsgrad ? EK_STEP_AMSGRAD : EK_STEP_ADAM, 3, &numbers);
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
        adam_params p = adam_variants[_i % 4];
        for (p.step = 1; p.step <= STEPS; p.step++)
            adam_step(all, &p, _i & 8);
        stepped_compare(all, _i & 8 ? "amsgrad" : "adam", _i);
        ek_scope_end(&scope);
    }
}

TEST(not_a_number)
{
    const adam_params p = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .step = 3};
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

/* ---- all rules: the f32 and the device's kernels against the formula in double ---- */

typedef double formula(const ek_step_constants_f64 *c, double w, double g, double *s);

#define FORMULA(name, states)                                                                   \
    static double formula_##name(const ek_step_constants_f64 *c, double w, double g, double *s) \
    {                                                                                           \
        return ek_step_##name##_f64(c, w, g, s);                                                \
    }
EK_STEP_RULES(FORMULA)
#undef FORMULA
static formula *const formulas[] = {
#define FORMULA(name, states) formula_##name,
    EK_STEP_RULES(FORMULA)
#undef FORMULA
};

static const ek_step_numbers rule_numbers = {.sign = -1,
                                             .decay = 0.1,
                                             .shrink = 0.99,
                                             .rate = 0.02,
                                             .keep1 = 0.8,
                                             .add1 = 0.2,
                                             .keep2 = 0.9,
                                             .add2 = 0.1,
                                             .eps = 1e-2,
                                             .correction = 0.7,
                                             .initial = 1.25,
                                             .low = 0.3,
                                             .high = 1.9};

TEST_LOOP(rules, 0, 2 * EK_STEP_RULE_COUNT)
{
    const ek_step_rule rule = (ek_step_rule)(_i / 2);
    const ek_step_constants_f64 constants = ek_step_constants_of_f64(&rule_numbers);
    stepped *all = stepped_new(_i % 2 ? EK_F64 : EK_F32, 8, (unsigned)_i);
    /* s[0] - s[1]^2 and s[0] - s[2]^2 have roots. */
    for (int t = 0; t < all->count; t++)
        for (int64_t i = 0; i < ek_count(all->both[2][t].host); i++)
            all->wanted[2][t][i] = 1 + (double)(i % 16) / 16;
    for (int t = 0; t < all->count; t++) {
        for (int64_t i = 0; i < ek_count(all->both[2][t].host); i++)
            case_set(all->both[2][t].host, i, all->wanted[2][t][i]);
        twin_push(all->both[2][t]);
    }
    rule_step(all, rule, 2, &rule_numbers);
    for (int t = 0; t < all->count; t++)
        for (int64_t i = 0; i < ek_count(all->both[0][t].host); i++) {
            double own[EK_STEP_STATES], *w = &all->wanted[0][t][i];
            for (int k = 0; k < EK_STEP_STATES; k++)
                own[k] = all->wanted[2 + k][t][i];
            *w = formulas[rule](&constants, *w, all->wanted[1][t][i], own);
            for (int k = 0; k < EK_STEP_STATES; k++)
                all->wanted[2 + k][t][i] = own[k];
        }
    stepped_compare(all, "rule", _i);
}

/* ---- the bits of all rules: those of the formula without vectors ---- */

typedef float formula_f32(const ek_step_constants_f32 *c, float w, float g, float *s);

static formula_f32 *const formulas_f32[] = {
#define FORMULA(name, states) ek_step_##name##_f32,
    EK_STEP_RULES(FORMULA)
#undef FORMULA
};

/* Host kernels have versions for several processors, of which the program's start picks one. */
TEST_LOOP(rules_have_equal_bits_with_any_instructions, 0, EK_STEP_RULE_COUNT)
{
    static const char *const isas[] = {"plain", "avx2", "avx512"};
    enum { COUNT = 4099 };
    static float first[ALL][COUNT], wanted[ALL][COUNT];
    const ek_step_constants_f32 constants = ek_step_constants_of_f32(&rule_numbers);
    ek_tensor *x[ALL];
    for (int k = 0; k < ALL; k++) {
        twin t = twin_uniform(twin_new(EK_F32, 1, (const int64_t[]){COUNT}, TWIN_ROWS),
                              k == 2 ? 1 : 0, k == 2 ? 2 : 1, (unsigned)k + 1);
        x[k] = t.host;
        memcpy(first[k], ek_tensor_address(x[k]), sizeof first[k]);
    }
    memcpy(wanted, first, sizeof wanted);
    for (int i = 0; i < COUNT; i++) {
        float own[EK_STEP_STATES] = {wanted[2][i], wanted[3][i], wanted[4][i]};
        wanted[0][i] = formulas_f32[_i](&constants, wanted[0][i], wanted[1][i], own);
        for (int k = 0; k < ek_step_states((ek_step_rule)_i); k++)
            wanted[2 + k][i] = own[k];
    }
    for (int isa = 0; isa < 3; isa++) {
        setenv("EVENKEEL_HOST_ISA", isas[isa], 1);
        assert_ok(ek_host_read_settings());
        for (int k = 0; k < ALL; k++)
            memcpy(ek_tensor_address(x[k]), first[k], sizeof first[k]);
        assert_ok(ek_host_step_list(case_device(2), (ek_step_rule)_i, 1, &x[0], &x[1],
                                    (ek_tensor *const *const[]){&x[2], &x[3], &x[4]},
                                    &rule_numbers));
        for (int k = 0; k < ALL; k++)
            if (memcmp(ek_tensor_address(x[k]), wanted[k], sizeof wanted[k]) != 0)
                ck_abort_msg("rule %d, %s: tensor %d has other bits", _i, isas[isa], k);
    }
}

/* ---- norms ---- */

enum { GRADIENTS = 140 };

static const ek_dtype floating[] = {EK_F32, EK_F64, EK_BF16, EK_F16};

/* Gradients that may be one element off a vector's bounds. */
static void gradients_new(twin *x, ek_tensor *on[2][GRADIENTS], ek_dtype dtype, bool off)
{
    static const int64_t sizes[] = {5, 4096, 1, 16, 9001, 33, 250};
    for (int i = 0; i < GRADIENTS; i++) {
        x[i] = twin_new(dtype, 1, &sizes[i % 7], off ? TWIN_DENSE_OFFSET : TWIN_ROWS);
        x[i] = twin_uniform(x[i], -2, 2, (unsigned)i);
        for (int side = 0; side < 2; side++)
            on[side][i] = ON(x[i]);
    }
}

static double power_sum_of(const twin *x, double p)
{
    double sum = 0;
    for (int i = 0; i < GRADIENTS; i++) {
        double *values = case_values(x[i].host);
        for (int64_t k = 0; k < ek_count(x[i].host); k++) {
            const double size = fabs(values[k]);
            sum = isinf(p) ? fmax(sum, size) : sum + pow(size, p);
        }
        free(values);
    }
    return sum;
}

TEST_LOOP(norms, 0, 16)
{
    const double p = ((double[]){2, 1, 3, INFINITY})[_i % 4], most = _i % 4 == 2 ? 1e6 : 0.5;
    const int64_t three = 3;
    twin x[GRADIENTS], out = twin_new(EK_F64, 1, &three, TWIN_ROWS);
    ek_tensor *on[2][GRADIENTS];
    double *first[2] = {NULL, NULL};
    for (int off = 0; off < 2; off++) { /* the bits don't depend on addresses */
        gradients_new(x, on, floating[_i / 4], off);
        twin_repeats(out, norm_list, ON(out), GRADIENTS, on[side], NULL, p, most);
        for (int side = 0; side < twin_sides(); side++)
            twin_repeated(side ? twin_pull(out.cuda) : out.host, &first[side], "norm_list");
    }
    free(first[0]);
    free(first[1]);
    const double sum = power_sum_of(x, p), norm = isinf(p) ? sum : pow(sum, 1 / p);
    twin_expect(out, (double[]){sum, norm, _i % 4 == 2 ? 1 : most / (norm + 1e-6)}, 1e-6,
                "norm_list");
    twin_close(out, 1e-6, 1e-6, "norm_list");
    /* The join of sums. */
    const int64_t count = 301;
    twin sums = twin_uniform(twin_new(EK_F64, 1, &count, TWIN_DENSE_OFFSET), 0, 3, 7);
    double *values = case_values(sums.host), joined = 0;
    for (int i = 0; i < count; i++)
        joined = isinf(p) ? fmax(joined, values[i]) : joined + values[i];
    free(values);
    twin_run(norm_list, ON(out), 0, NULL, ON(sums), p, INFINITY);
    twin_expect(out, (double[]){joined, isinf(p) ? joined : pow(joined, 1 / p), 1}, 1e-14, "sums");
    twin_close(out, 1e-14, 0, "sums");
    twin_run(norm_list, ON(out), 0, NULL, NULL, p, 1);
    twin_expect(out, (double[]){0, 0, 1}, 0, "no gradients");
}

TEST_LOOP(scaling, 0, 8)
{
    const double factor = _i % 2 ? 1 : 0.3;
    const int64_t one = 1;
    twin x[GRADIENTS], by = twin_uniform(twin_new(EK_F64, 1, &one, TWIN_ROWS), factor, factor, 1);
    ek_tensor *on[2][GRADIENTS];
    gradients_new(x, on, floating[_i / 2], _i % 2);
    double *wanted[GRADIENTS];
    for (int i = 0; i < GRADIENTS; i++) {
        wanted[i] = case_values(x[i].host);
        for (int64_t k = 0; k < ek_count(x[i].host); k++)
            wanted[i][k] *= factor;
    }
    twin_run(scale_list, GRADIENTS, on[side], ON(by));
    for (int i = 0; i < GRADIENTS; i++) {
        const double tolerance = ((double[]){1e-6, 1e-15, 1e-2, 2e-3})[_i / 2] * (factor != 1);
        twin_expect(x[i], wanted[i], tolerance, "scale_list");
        twin_same(x[i], "scale_list");
        free(wanted[i]);
    }
}

TEST(errors)
{
    const int64_t dims[] = {4};
    const ek_step_numbers numbers = {.rate = 0.1};
    ek_tensor *const *const none[EK_STEP_STATES] = {NULL};
    twin w = twin_new(EK_F32, 1, dims, TWIN_ROWS), narrow = twin_new(EK_BF16, 1, dims, TWIN_ROWS);
    twin_refused(EK_E_INVALID, "SGD_HEAVY needs 1 states, and state 0 is missing", step_list,
                 EK_STEP_SGD_HEAVY, 1, &ON(w), &ON(w), none, &numbers);
    twin_refused(EK_E_DTYPE, "SGD steps parameters of f32 or f64, not bf16", step_list, EK_STEP_SGD,
                 1, &ON(narrow), &ON(narrow), none, &numbers);
    twin_refused(EK_E_INVALID, "ADAM needs 2 states, and state 1 is missing", step_list,
                 EK_STEP_ADAM, 1, &ON(w), &ON(w), ((ek_tensor *const *const[]){&ON(w), NULL, NULL}),
                 &numbers);
    twin_run(step_list, EK_STEP_SGD, 0, NULL, NULL, none, &numbers);
}
