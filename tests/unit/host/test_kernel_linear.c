/* Linear layers with and without a ReLU, and the gradients of weight and bias: the host's against
 * loops in double, the GPU's against the host's, with the GPU's libraries; test_kernel_linear_own.c
 * does without these. */
#include "twin.h"

typedef struct layer {
    int64_t n, in, out;
} layer;

static const layer layers[] = {{1, 1, 1},   {5, 7, 3}, {64, 33, 10},  {1, 65, 40},  {40, 65, 1},
                               {13, 1, 17}, {2, 9, 4}, {33, 40, 130}, {17, 20, 16}, {100, 48, 26}};
enum { LAYERS = sizeof layers / sizeof *layers, LAYOUTS = 3 };

static const twin_layout layouts[LAYOUTS] = {TWIN_ROWS, TWIN_REVERSED, TWIN_GAPS};

static twin operand(ek_dtype dtype, int ndim, const int64_t *dims, twin_layout layout,
                    unsigned seed)
{
    return twin_uniform(twin_new(dtype, ndim, dims, layout), -1, 1, seed);
}

/* Sums of `terms` products of numbers below 1, in another order than the host's. */
static double slack(ek_dtype dtype, int64_t terms)
{
    double epsilon = dtype == EK_F64 ? 2.3e-16 : dtype == EK_F32 ? 1.2e-7 : 0;
    return (dtype == EK_BF16 ? 8e-3 : 0) + epsilon * (double)(terms + 8);
}

static void check_forward(const layer *l, int way)
{
    const ek_dtype dtype = (ek_dtype)(way % 3);
    const bool relu = way / 3 % 2, with_bias = way / 6 % 2;
    const twin_layout layout = layouts[way / 12];
    const int64_t x_dims[] = {l->n, l->in}, w_dims[] = {l->out, l->in}, y_dims[] = {l->n, l->out};
    twin x = operand(dtype, 2, x_dims, layout, 1), w = operand(dtype, 2, w_dims, layout, 2);
    twin y = operand(dtype, 2, y_dims, TWIN_ROWS, 4);
    twin bias = with_bias ? operand(dtype, 1, &l->out, layout, 3) : twin_none;
    double *wanted = case_values(y.host);
    for (int64_t i = 0; i < l->n * l->out; i++) {
        double sum = with_bias ? case_get(bias.host, i % l->out) : 0;
        for (int64_t k = 0; k < l->in; k++)
            sum +=
                case_get(x.host, i / l->out * l->in + k) * case_get(w.host, i % l->out * l->in + k);
        wanted[i] = relu && sum <= 0 ? 0 : sum;
    }
    const char *what =
        text_of("%s (%lld, %lld, %lld), relu %d, bias %d, layout %d", ek_dtype_name(dtype),
                (long long)l->n, (long long)l->in, (long long)l->out, relu, with_bias, layout);
    case_poison(y.host); /* what was there must not matter */
    twin_push(y);
    twin_run(linear, ON(y), ON(x), ON(w), ON(bias), relu);
    twin_expect_norm(y, wanted, case_tolerance(dtype), what);
    twin_close(y, slack(dtype, l->in), slack(dtype, l->in), what);
    free(wanted);
}

static void check_gradients(const layer *l, int way)
{
    const ek_dtype dtype = (ek_dtype)(way % 3);
    const twin_layout layout = layouts[way / 3 % LAYOUTS];
    /* dw in the other order is the other way round for cuBLAS. */
    const twin_layout result = way / 3 / LAYOUTS ? TWIN_REVERSED : TWIN_ROWS;
    const int64_t x_dims[] = {l->n, l->in}, w_dims[] = {l->out, l->in}, y_dims[] = {l->n, l->out};
    twin x = operand(dtype, 2, x_dims, layout, 1), dy = operand(dtype, 2, y_dims, layout, 2);
    twin dw = operand(dtype, 2, w_dims, result, 3), db = operand(dtype, 1, &l->out, TWIN_ROWS, 4);
    double *weight = case_values(dw.host), *bias = case_values(db.host);
    for (int64_t o = 0; o < l->out; o++) {
        bias[o] = 0;
        for (int64_t row = 0; row < l->n; row++)
            bias[o] += case_get(dy.host, row * l->out + o);
        for (int64_t i = 0; i < l->in; i++) {
            double sum = 0;
            for (int64_t row = 0; row < l->n; row++)
                sum += case_get(dy.host, row * l->out + o) * case_get(x.host, row * l->in + i);
            weight[o * l->in + i] = sum;
        }
    }
    const char *what =
        text_of("%s (%lld, %lld, %lld), layouts %d, %d", ek_dtype_name(dtype), (long long)l->n,
                (long long)l->in, (long long)l->out, layout, result);
    case_poison(dw.host);
    case_poison(db.host);
    twin_push(dw);
    twin_push(db);
    twin_run(linear_weight_gradient, ON(dw), ON(db), ON(x), ON(dy));
    twin_expect_norm(dw, weight, case_tolerance(dtype), what);
    twin_expect_norm(db, bias, case_tolerance(dtype), what);
    twin_close(dw, slack(dtype, l->n), slack(dtype, l->n), what);
    twin_close(db, slack(dtype, l->n), slack(dtype, l->n), what);
    free(weight), free(bias);
}

TEST_LOOP(all, 0, LAYERS)
{
    case_device(1 + _i % 2);
    for (int way = 0; way < 3 * 4 * LAYOUTS; way++) {
        ek_scope scope = ek_scope_begin();
        check_forward(&layers[_i], way);
        ek_scope_end(&scope);
    }
    for (int way = 0; way < 3 * LAYOUTS * 2; way++) {
        ek_scope scope = ek_scope_begin();
        check_gradients(&layers[_i], way);
        ek_scope_end(&scope);
    }
}

/* Apart and in one pass: the same bits on the host. NaN stays. */
TEST_LOOP(relu_is_the_operations, 0, 3)
{
    const ek_dtype dtype = (ek_dtype)_i;
    const int64_t x_dims[] = {9, 20}, w_dims[] = {11, 20}, y_dims[] = {9, 11}, out = 11;
    twin x = operand(dtype, 2, x_dims, TWIN_ROWS, 1), w = operand(dtype, 2, w_dims, TWIN_ROWS, 2);
    twin bias = operand(dtype, 1, &out, TWIN_ROWS, 3);
    twin apart = operand(dtype, 2, y_dims, TWIN_ROWS, 4);
    twin fused = operand(dtype, 2, y_dims, TWIN_ROWS, 5);
    case_set(x.host, 20, NAN);
    twin_push(x);
    twin_run(linear, ON(apart), ON(x), ON(w), ON(bias), false);
    twin_run(unary, EK_UNARY_RELU, ON(apart), ON(apart), 0, 0);
    twin_run(linear, ON(fused), ON(x), ON(w), ON(bias), true);
    case_same(fused.host, apart.host, "the host's");
    ck_assert(isnan(case_get(fused.host, 11)) && !isnan(case_get(fused.host, 0)));
    if (twin_sides() == 2) {
        ek_tensor *got = twin_pull(fused.cuda);
        ck_assert(isnan(case_get(got, 11)) && !isnan(case_get(got, 0)));
    }
    twin_close(fused, slack(dtype, 20), slack(dtype, 20), "NaN");
}
