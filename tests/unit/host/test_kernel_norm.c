/* Batch and group normalisation: the host's kernels against two-pass loops in double, the GPU's
 * against the host's. */
#include "twin.h"

/* Dimensions at the end are dropped where ndim is smaller. `groups` 0: statistics of channels;
 * `element`: parameters per element. Among them: one value per channel, one channel, channels that
 * are no multiple of a vector, that are joined to lanes and a rest, or more than a block has
 * columns; planes and rows that are cut into parts; groups of one value, many short ones, instance
 * and layer normalisation. */
typedef struct norm_shape {
    int ndim;
    int64_t dims[5], groups;
    bool element;
} norm_shape;

static const norm_shape shapes[] = {
    {2, {1, 1}, 0, 0},           {2, {1, 7}, 0, 0},           {2, {70, 37}, 0, 0},
    {2, {100, 600}, 0, 0},       {2, {5000, 8}, 0, 0},        {3, {4, 6, 50}, 0, 0},
    {3, {3, 8, 1100}, 0, 0},     {4, {3, 5, 7, 9}, 0, 0},     {4, {2, 64, 6, 5}, 0, 0},
    {4, {5, 3, 33, 7}, 0, 0},    {4, {2, 300, 5, 3}, 0, 0},   {4, {4, 16, 1, 1}, 0, 0},
    {4, {1, 1, 20, 30}, 0, 0},   {4, {9, 20, 40, 20}, 0, 0},  {4, {3, 16, 64, 64}, 0, 0},
    {4, {40, 2, 4, 4}, 0, 0},    {4, {1, 600, 2, 1}, 0, 0},   {5, {2, 5, 3, 4, 5}, 0, 0},
    {5, {2, 16, 2, 8, 8}, 0, 0}, {2, {20000, 3}, 0, 0},       {4, {1, 2, 200, 150}, 0, 0},
    {2, {100, 4}, 0, 0},         {2, {3, 10}, 0, 0},          {4, {3, 6, 5, 7}, 1, 0},
    {4, {3, 6, 5, 7}, 2, 0},     {4, {3, 6, 5, 7}, 6, 0},     {4, {2, 4, 37, 41}, 4, 0},
    {4, {2, 3, 9, 15}, 3, 0},    {4, {2, 300, 3, 2}, 100, 0}, {4, {1, 64, 24, 23}, 1, 0},
    {4, {2, 520, 1, 2}, 2, 0},   {3, {2, 4, 1100}, 2, 0},     {3, {5, 6, 2}, 3, 0},
    {2, {7, 12}, 3, 0},          {2, {4, 530}, 2, 0},         {2, {5, 7}, 1, 1},
    {2, {150, 40}, 1, 1},        {2, {3, 2600}, 1, 1},        {4, {3, 4, 5, 3}, 1, 1},
    {4, {70, 3, 9, 19}, 1, 1},   {3, {2, 3, 16}, 1, 1},       {4, {2, 16, 32, 40}, 1, 1},
    {4, {1, 1, 4, 5}, 1, 0},     {4, {70, 12, 1, 1}, 3, 0},   {4, {3, 8, 1, 1}, 1, 0},
    {4, {2, 2200, 1, 1}, 2, 0},  {4, {2, 32, 16, 16}, 8, 0},  {4, {1, 600, 5, 4}, 1, 0},
    {5, {2, 4, 3, 4, 5}, 2, 0},  {5, {2, 4, 3, 4, 5}, 1, 1},  {2, {3000, 16}, 1, 1},
    {4, {2, 1, 30, 8}, 1, 1},    {4, {1, 4, 64, 64}, 4, 0},   {2, {1, 1}, 1, 1},
    {4, {150, 8, 2, 2}, 2, 0},   {2, {2, 600}, 1, 1},         {2, {5, 8}, 8, 0},
    {4, {3, 16, 1, 1}, 16, 0},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct norm_case {
    const norm_shape *shape;
    ek_dtype dtype, wide; /* of x, and of statistics and parameters */
    bool relu;
    int64_t count, values; /* elements, and those of a statistic */
    twin x, dy, y, mean, invstd, weight, bias;
    double exact, rounded; /* tolerances of wide and dtype */
} norm_case;

static twin like_x(const norm_case *c, twin_layout layout)
{
    return twin_new(c->dtype, c->shape->ndim, c->shape->dims, layout);
}

static twin statistic(const norm_case *c)
{
    const norm_shape *s = c->shape;
    if (s->groups == 0)
        return twin_new(c->wide, 1, s->dims + 1, TWIN_ROWS);
    return twin_new(c->wide, 2, (const int64_t[]){s->dims[0], s->groups}, TWIN_ROWS);
}

static twin parameter(const norm_case *c, double low, double high, unsigned seed)
{
    twin t = twin_new(c->wide, c->shape->element ? c->shape->ndim - 1 : 1, c->shape->dims + 1,
                      TWIN_ROWS);
    return twin_uniform(t, low, high, seed);
}

/* What parameter element i has, and what statistic. */
static int64_t parameter_at(const norm_case *c, int64_t i)
{
    int64_t row = c->count / c->shape->dims[0];
    return c->shape->element ? i % row : i % row / (row / c->shape->dims[1]);
}

static int64_t statistic_at(const norm_case *c, int64_t i)
{
    return c->shape->groups == 0 ? parameter_at(c, i) : i / c->values;
}

static double xhat_at(const norm_case *c, int64_t i)
{
    int64_t at = statistic_at(c, i);
    return (case_get(c->x.host, i) - twin_value(c->mean, at, 0)) * case_get(c->invstd.host, at);
}

/* dy as far as it passes the ReLU. */
static double dy_at(const norm_case *c, int64_t i)
{
    return c->relu && case_get(c->y.host, i) <= 0 ? 0 : case_get(c->dy.host, i);
}

static const char *text(const norm_case *c, const char *what)
{
    const int64_t *d = c->shape->dims;
    return text_of("%s of (%lld, %lld, %lld, %lld), %lld groups, strides %lld %lld%s%s", what,
                   (long long)d[0], (long long)d[1], (long long)d[2], (long long)d[3],
                   (long long)c->shape->groups, (long long)c->x.host->stride[0],
                   (long long)c->x.host->stride[1], c->weight.host ? ", affine" : "",
                   c->relu ? ", relu" : "");
}

static norm_case case_of(const norm_shape *shape, ek_dtype dtype, twin_layout layout,
                         twin_layout other)
{
    norm_case c = {.shape = shape,
                   .dtype = dtype,
                   .wide = dtype == EK_F64 ? EK_F64 : EK_F32,
                   .exact = dtype == EK_F64 ? 1e-13 : 2e-6};
    c.rounded = dtype == EK_BF16 ? 8e-3 : c.exact;
    c.x = twin_uniform(like_x(&c, layout), -1, 3, 1);
    c.dy = twin_uniform(like_x(&c, other), -2, 2, 2);
    c.mean = statistic(&c);
    c.count = ek_count(c.x.host);
    c.values = ek_count(c.mean.host) > 0 ? c.count / ek_count(c.mean.host) : 0;
    return c;
}

static void moments_of(const norm_case *c, double *mean, double *var)
{
    double share = 1 / (double)c->values;
    for (int64_t i = 0; i < c->count; i++)
        mean[statistic_at(c, i)] += case_get(c->x.host, i) * share;
    for (int64_t i = 0; i < c->count; i++) {
        double d = case_get(c->x.host, i) - mean[statistic_at(c, i)];
        var[statistic_at(c, i)] += d * d * share;
    }
}

static void check_statistics(norm_case *c)
{
    twin var = statistic(c);
    double *mean = case_zeros(ek_count(var.host)), *wanted = case_zeros(ek_count(var.host));
    moments_of(c, mean, wanted);
    twin_run(norm_moments, ON(c->mean), ON(var), ON(c->x), NULL);
    twin_expect(c->mean, mean, c->exact, text(c, "mean"));
    twin_expect(var, wanted, c->exact, text(c, "var"));
    twin_close(c->mean, c->exact, c->exact, text(c, "mean"));
    twin_close(var, c->exact, c->exact, text(c, "var"));
    twin_push(c->mean);
    c->invstd = statistic(c);
    for (int64_t i = 0; i < ek_count(var.host); i++)
        case_set(c->invstd.host, i, 1 / sqrt(case_get(var.host, i) + 1e-2));
    twin_push(c->invstd);
    free(mean), free(wanted);
}

static void check_apply(norm_case *c, twin_layout layout)
{
    double *wanted = case_zeros(c->count);
    c->y = like_x(c, layout);
    for (int64_t i = 0; i < c->count; i++) {
        int64_t at = parameter_at(c, i);
        wanted[i] = xhat_at(c, i) * twin_value(c->weight, at, 1) + twin_value(c->bias, at, 0);
        if (c->relu)
            wanted[i] = fmax(wanted[i], 0);
    }
    ek_norm_args args[2];
    for (int side = 0; side < 2; side++)
        args[side] = (ek_norm_args){.x = ON(c->x),
                                    .mean = ON(c->mean),
                                    .invstd = ON(c->invstd),
                                    .weight = ON(c->weight),
                                    .bias = ON(c->bias),
                                    .relu = c->relu};
    twin_run(norm_line, ON(c->y), &args[side]);
    twin_expect(c->y, wanted, fmax(c->rounded, 4 * c->exact), text(c, "apply"));
    twin_close(c->y, c->rounded, 8 * c->exact, text(c, "apply"));
    twin_push(c->y);
    free(wanted);
}

/* The operands of gradients, without sums. */
static void gradient_args(const norm_case *c, twin weight, ek_norm_args args[2])
{
    for (int side = 0; side < 2; side++)
        args[side] = (ek_norm_args){.x = ON(c->x),
                                    .mean = ON(c->mean),
                                    .invstd = ON(c->invstd),
                                    .weight = ON(weight),
                                    .dy = ON(c->dy),
                                    .y_relu = c->relu ? ON(c->y) : NULL};
}

/* Which pairs of sums are asked for; out[] has them: sum, sum_xhat, dweight, dbias. */
static void check_reduce(const norm_case *c, bool groups, bool parameters, twin out[4])
{
    static const char *const names[] = {"sum", "sum_xhat", "dweight", "dbias"};
    double *wanted[4];
    for (int k = 0; k < 4; k++) {
        twin made = k < 2 ? statistic(c) : parameter(c, 0, 0, 0);
        wanted[k] = case_zeros(ek_count(made.host));
        out[k] = (k < 2 ? groups : parameters) ? made : twin_none;
    }
    for (int64_t i = 0; i < c->count; i++) {
        int64_t s = statistic_at(c, i), p = parameter_at(c, i);
        double dy = dy_at(c, i), weight = twin_value(c->weight, p, 1);
        wanted[0][s] += weight * dy;
        wanted[1][s] += weight * dy * xhat_at(c, i);
        wanted[2][p] += dy * xhat_at(c, i);
        wanted[3][p] += dy;
    }
    twin weight = groups ? c->weight : twin_none;
    ek_norm_sums sums[2];
    for (int side = 0; side < 2; side++)
        sums[side] = (ek_norm_sums){.sum = ON(out[0]),
                                    .sum_xhat = ON(out[1]),
                                    .dweight = ON(out[2]),
                                    .dbias = ON(out[3])};
    ek_norm_args args[2];
    gradient_args(c, weight, args);
    twin_run(norm_reduce, &sums[side], &args[side]);
    for (int k = 0; k < 4; k++) {
        if (out[k].host) {
            double scale = sqrt((double)c->count / (double)ek_count(out[k].host));
            twin_expect(out[k], wanted[k], 4 * c->exact * scale, text(c, names[k]));
            twin_close(out[k], c->exact, 8 * c->exact * scale, text(c, names[k]));
            twin_push(out[k]);
        }
        free(wanted[k]);
    }
}

/* From sums that contain the weight, if of groups; from none. */
static void check_gradient(const norm_case *c, twin sum, twin sum_xhat, twin_layout layout)
{
    twin dx = like_x(c, layout);
    double *wanted = case_zeros(c->count), n = (double)c->values;
    for (int64_t i = 0; i < c->count; i++) {
        int64_t at = statistic_at(c, i);
        double weight = twin_value(c->weight, parameter_at(c, i), 1);
        double centre = twin_value(sum, at, 0) + xhat_at(c, i) * twin_value(sum_xhat, at, 0);
        wanted[i] = case_get(c->invstd.host, at) *
                    (weight * dy_at(c, i) - centre / n * (c->shape->groups == 0 ? weight : 1));
    }
    ek_norm_args args[2];
    gradient_args(c, c->weight, args);
    for (int side = 0; side < 2; side++) {
        args[side].sum = ON(sum);
        args[side].sum_xhat = ON(sum_xhat);
        args[side].count = n;
    }
    twin_run(norm_line, ON(dx), &args[side]);
    const char *what = text(c, sum_xhat.host ? "dx" : "dx, constant");
    twin_expect(dx, wanted, fmax(c->rounded, 20 * c->exact), what);
    twin_close(dx, c->rounded, 40 * c->exact, what);
    free(wanted);
}

/* Gradients of x, weight and bias have equal bits whether the ReLU's output is read or computed
 * again. */
static void check_again(const norm_case *c, twin_layout layout)
{
    twin dx[2], out[2][2];
    for (int again = 0; again < 2; again++) {
        dx[again] = like_x(c, layout);
        for (int k = 0; k < 2; k++)
            out[again][k] = parameter(c, 0, 0, 0);
        ek_norm_args args[2];
        ek_norm_sums sums[2];
        gradient_args(c, c->weight, args);
        for (int side = 0; side < 2; side++) {
            args[side].bias = ON(c->bias);
            args[side].y_again = again;
            sums[side] = (ek_norm_sums){.dweight = ON(out[again][0]), .dbias = ON(out[again][1])};
        }
        twin_run(norm_reduce, &sums[side], &args[side]);
        for (int side = 0; side < 2; side++) {
            args[side].sum = ON(out[again][1]);
            args[side].sum_xhat = ON(out[again][0]);
            args[side].count = (double)c->values;
        }
        twin_run(norm_line, ON(dx[again]), &args[side]);
    }
    for (int64_t i = 0; i < c->count; i++)
        case_must(case_get(dx[0].host, i) == case_get(dx[1].host, i));
    for (int64_t i = 0; i < ek_count(out[0][0].host); i++)
        for (int k = 0; k < 2; k++)
            case_must(case_get(out[0][k].host, i) == case_get(out[1][k].host, i));
}

static void check_backward(const norm_case *c, bool other, twin_layout layout)
{
    twin out[4];
    if (c->shape->groups == 0) {
        check_reduce(c, false, true, out);
        check_gradient(c, out[3], out[2], layout);
        check_gradient(c, twin_none, twin_none, layout);
        return;
    }
    check_reduce(c, !other, other, out);
    check_reduce(c, true, true, out);
    check_gradient(c, twin_uniform(statistic(c), -2, 2, 7), twin_uniform(statistic(c), -2, 2, 8),
                   layout);
}

/* x in one layout, what goes with it in one of its own. */
static void check_case(const norm_shape *shape, ek_dtype dtype, twin_layout layout,
                       twin_layout other, bool affine, bool relu)
{
    ek_scope scope = ek_scope_begin();
    norm_case c = case_of(shape, dtype, layout, other);
    c.relu = relu && shape->groups == 0;
    if (affine) {
        c.weight = parameter(&c, 0.5, 1.5, 3);
        c.bias = parameter(&c, -1, 1, 4);
    }
    check_statistics(&c);
    check_apply(&c, other);
    check_backward(&c, relu, layout);
    if (c.relu)
        check_again(&c, layout);
    ek_scope_end(&scope);
}

TEST_LOOP(normalisation, 0, 3 * SHAPES)
{
    const norm_shape *shape = &shapes[_i / 3];
    const int k = _i / 3;
    for (int l = 0; l < 4; l++) {
        int64_t count = 1;
        for (int d = 0; d < shape->ndim; d++)
            count *= shape->dims[d];
        /* How memory is cut depends little on the dtype. */
        if ((k + _i + l) % (count > 30000 ? 6 : count > 8000 ? 3 : 1) != 0)
            continue;
        twin_layout other = (twin_layout)((k + l + _i) % 3 == 0 ? (l + 1) % 3 : l);
        check_case(shape, (ek_dtype)(_i % 3), (twin_layout)l, other, (k + l) % 2 == 0,
                   (k + l / 2) % 2 == 0);
    }
}

/* Memory in unusual orders. */
TEST(other_layouts)
{
    static const norm_shape some[] = {{4, {3, 5, 7, 9}, 0, 0},   {5, {2, 5, 3, 4, 5}, 0, 0},
                                      {3, {4, 6, 50}, 0, 0},     {2, {70, 37}, 0, 0},
                                      {4, {3, 6, 5, 7}, 2, 0},   {4, {3, 4, 5, 3}, 1, 1},
                                      {3, {2, 3, 16}, 1, 1},     {5, {2, 4, 3, 4, 5}, 2, 0},
                                      {5, {2, 4, 3, 4, 5}, 1, 1}};
    for (int i = 0; i < (int)(sizeof some / sizeof *some); i++)
        for (int l = 0; l < TWIN_LAYOUTS; l++) {
            ek_dtype dtype = i == 2 ? EK_BF16 : i == 3 ? EK_F64 : EK_F32;
            twin_layout layout = (twin_layout)l, other = (twin_layout)((l + 2) % TWIN_LAYOUTS);
            check_case(&some[i], dtype, layout, layout, l % 2 == 0, true);
            check_case(&some[i], dtype, layout, other, l % 2 != 0, l % 3 == 0);
        }
}

/* One of the parameters alone; a gradient that is repeated, as a sum's is; no mean. */
TEST(some_operands)
{
    static const norm_shape some[] = {{4, {2, 64, 6, 5}, 0, 0},
                                      {4, {3, 6, 5, 7}, 2, 0},
                                      {4, {3, 6, 5, 7}, 6, 0},
                                      {2, {3, 2600}, 1, 1},
                                      {4, {2, 16, 20, 24}, 1, 1}};
    for (int i = 0; i < 10; i++) {
        twin_layout layout = (twin_layout)(i % 2);
        norm_case c = case_of(&some[i / 2], EK_F32, layout, TWIN_ROWS);
        c.dy = twin_repeat(c.dy, 15);
        check_statistics(&c);
        c.bias = parameter(&c, -1, 1, 4);
        check_apply(&c, layout);
        c.bias = twin_none;
        c.weight = parameter(&c, -1, 1, 4);
        check_apply(&c, layout);
        check_backward(&c, false, layout);
        c.mean = twin_none;
        check_apply(&c, layout);
        check_backward(&c, false, layout);
        check_gradient(&c, twin_none, twin_uniform(statistic(&c), -2, 2, 8), layout);
    }
}

/* Channels of a wider tensor, samples of a longer one: strides are kept. */
TEST_LOOP(parts_of_tensors, 0, 2)
{
    static const norm_shape part = {4, {3, 8, 6, 10}, 0, 0};
    const int64_t dims[] = {4, 24, 6, 10};
    norm_case c = case_of(&part, EK_F32, TWIN_ROWS, TWIN_ROWS);
    twin whole = twin_uniform(twin_new(EK_F32, 4, dims, (twin_layout)_i), -1, 1, 5);
    const int64_t *stride = whole.host->stride;
    c.x = twin_view(whole, 4, part.dims, stride, stride[1] * 8 + stride[0]);
    check_statistics(&c);
    check_apply(&c, TWIN_ROWS);
}

/* Statistics that are rows of one tensor, strided parameters, parameters of x's own dtype. */
TEST_LOOP(other_parameters, 0, 5)
{
    static const norm_shape some[] = {{4, {3, 8, 5, 4}, 0, 0},
                                      {4, {3, 6, 5, 7}, 2, 0},
                                      {4, {3, 4, 5, 3}, 1, 1}};
    const int64_t stride = 2;
    norm_case c =
        case_of(&some[_i < 3 ? 0 : _i - 2], _i < 3 ? (ek_dtype)_i : EK_BF16, TWIN_LAST, TWIN_LAST);
    const int64_t *dims = c.shape->dims + 1, table[] = {dims[0], 2};
    if (_i < 4) {
        twin both = twin_uniform(twin_new(EK_F32, 2, table, TWIN_ROWS), 0.5, 1, 6);
        twin into = twin_new(c.wide, 2, table, TWIN_GAPS);
        check_statistics(&c);
        c.weight = twin_view(both, 1, dims, &stride, 1);
        c.bias = _i == 3 ? twin_view(both, 1, dims, &stride, 0)
                         : twin_uniform(twin_new(c.dtype, 1, dims, TWIN_ROWS), 0.5, 1, 6);
        if (_i < 3) {
            const int64_t row = into.host->stride[0];
            twin mean = twin_view(into, 1, dims, &row, into.host->offset);
            twin var = twin_view(into, 1, dims, &row, into.host->offset + 1);
            twin_run(norm_moments, ON(mean), ON(var), ON(c.x), NULL);
            twin_close(into, 2e-6, 2e-6, "strided statistics");
            c.mean = mean;
            twin_push(into);
        }
    } else {
        check_statistics(&c);
        c.weight = twin_uniform(twin_new(EK_BF16, 3, dims, TWIN_GAPS), 0, 1, 4);
        c.bias = twin_uniform(twin_new(EK_F32, 3, dims, TWIN_REVERSED), 0, 1, 4);
    }
    c.relu = _i < 3;
    check_apply(&c, TWIN_LAST);
    /* Sums are of the dtype that is computed in. */
    c.weight = parameter(&c, 0, 1, 3);
    check_backward(&c, false, TWIN_LAST);
}

/* A mean 1e4 times the deviation: sums of squares alone would lose all digits of f32. */
TEST_LOOP(large_mean, 0, 16)
{
    static const norm_shape some[] = {{4, {8, 24, 30, 17}, 0, 0},
                                      {4, {3, 24, 30, 17}, 1, 0},
                                      {4, {3, 24, 30, 17}, 6, 0},
                                      {4, {3, 24, 30, 17}, 24, 0}};
    norm_case c = case_of(&some[_i / 4], EK_F32, (twin_layout)(_i % 4), TWIN_ROWS);
    twin var = statistic(&c);
    double mean[72] = {0}, wanted[72] = {0};
    twin_uniform(c.x, 9998.3, 10001.7, 9);
    moments_of(&c, mean, wanted);
    twin_run(norm_moments, ON(c.mean), ON(var), ON(c.x), NULL);
    twin_expect(c.mean, mean, 1e-7, "large mean");
    twin_expect(var, wanted, 1e-5, "var around a large mean");
    /* The GPU's are closer. */
    twin_set((twin){c.mean.host, twin_of(c.mean.host).cuda}, mean);
    twin_set((twin){var.host, twin_of(var.host).cuda}, wanted);
    twin_close(c.mean, 1e-7, 0, "large mean");
    twin_close(var, 2e-6, 0, "var around a large mean");
}

/* NaN and infinity stay where they are, and a NaN hides nothing behind a ReLU. */
TEST_LOOP(not_finite, 0, 2)
{
    static const norm_shape shape = {4, {6, 8, 4, 4}, 0, 0};
    norm_case c = case_of(&shape, EK_F32, (twin_layout)_i, (twin_layout)_i);
    twin var = statistic(&c), y = like_x(&c, (twin_layout)_i), dx = like_x(&c, (twin_layout)_i);
    case_set(c.x.host, 16 * 8 + 3, (double)NAN);      /* channel 0 of sample 1 */
    case_set(c.x.host, 16 * 9 + 2, (double)INFINITY); /* channel 1 */
    twin_push(c.x);
    twin_run(norm_moments, ON(c.mean), ON(var), ON(c.x), NULL);
    for (int side = 0; side < twin_sides(); side++) {
        const ek_tensor *m = side ? twin_pull(c.mean.cuda) : c.mean.host;
        const ek_tensor *v = side ? twin_pull(var.cuda) : var.host;
        case_must(isnan(case_get(m, 0)) && !isfinite(case_get(m, 1)));
        case_must(isnan(case_get(v, 0)) && isnan(case_get(v, 1)) && isfinite(case_get(v, 2)));
    }
    twin_uniform(c.mean, 0, 0, 0);
    twin_uniform(var, 1, 2, 0);
    ek_norm_args args[2];
    for (int side = 0; side < 2; side++)
        args[side] =
            (ek_norm_args){.x = ON(c.x), .mean = ON(c.mean), .invstd = ON(var), .relu = true};
    twin_run(norm_line, ON(y), &args[side]);
    twin_close(y, 1e-6, 1e-6, "not finite");
    twin_push(y);
    /* Constant statistics: x isn't looked at. */
    for (int side = 0; side < 2; side++)
        args[side].dy = args[side].y_relu = ON(y);
    twin_run(norm_line, ON(dx), &args[side]);
    twin_close(dx, 1e-6, 1e-6, "gradient of what isn't finite");
    case_must(!isnan(case_get(dx.host, 16 * 9 + 2)));
}

TEST_LOOP(repeats, 0, 14)
{
    static const norm_shape some[] = {{4, {6, 5, 41, 43}, 0, 0},  {4, {6, 70, 41, 43}, 0, 0},
                                      {4, {3, 5, 41, 43}, 5, 0},  {4, {2, 70, 41, 43}, 7, 0},
                                      {4, {1, 32, 40, 40}, 1, 0}, {4, {90, 4, 20, 30}, 1, 1},
                                      {4, {2, 300, 3, 2}, 100, 0}};
    norm_case c = case_of(&some[_i / 2], EK_F32, (twin_layout)(_i % 2), (twin_layout)(_i % 2));
    twin var = statistic(&c), dx = like_x(&c, (twin_layout)(_i % 2)), out[4];
    const bool groups = c.shape->groups > 0;
    ek_norm_sums sums[2];
    for (int k = 0; k < 4; k++)
        out[k] = k >= 2 ? parameter(&c, 0, 0, 0) : groups ? statistic(&c) : twin_none;
    for (int side = 0; side < 2; side++)
        sums[side] =
            (ek_norm_sums){ON(out[0]), ON(out[1]), ON(out[2]), ON(out[3]), NULL, NULL, NULL, 0};
    c.invstd = var;
    ek_norm_args args[2];
    gradient_args(&c, twin_none, args);
    twin_repeats(c.mean, norm_moments, ON(c.mean), ON(var), ON(c.x), NULL);
    twin_repeats(var, norm_moments, ON(c.mean), ON(var), ON(c.x), NULL);
    for (int k = groups ? 0 : 2; k < 4; k++)
        twin_repeats(out[k], norm_reduce, &sums[side], &args[side]);
    for (int side = 0; side < 2; side++) {
        args[side].sum = ON(out[groups ? 0 : 3]);
        args[side].sum_xhat = ON(out[groups ? 1 : 2]);
        args[side].count = (double)c.values;
    }
    twin_repeats(dx, norm_line, ON(dx), &args[side]);
}

/* Slots return 0, also where runs are normed: 1 is an answer of norm_rows alone. */
TEST_LOOP(slots_return_zero, 0, 2)
{
    static const norm_shape some[] = {{2, {150, 40}, 1, 1}, {4, {5, 6, 3, 4}, 0, 0}};
    const norm_case c = case_of(&some[_i], EK_F32, TWIN_ROWS, TWIN_ROWS);
    const twin var = statistic(&c), dx = like_x(&c, TWIN_ROWS);
    const twin weight = parameter(&c, 0.5, 1.5, 3), dbias = parameter(&c, 0, 0, 0);
    const ek_kernels *kernels = twin_host();
    ek_dev *dev = twin_dev(EK_HOST);
    ck_assert_int_eq(kernels->norm_moments(dev, c.mean.host, var.host, c.x.host, NULL), 0);
    ek_norm_args args = {.x = c.x.host,
                         .mean = c.mean.host,
                         .invstd = var.host,
                         .weight = weight.host};
    ck_assert_int_eq(kernels->norm_line(dev, dx.host, &args), 0);
    args.dy = c.dy.host;
    args.count = (double)c.values;
    ck_assert_int_eq(kernels->norm_line(dev, dx.host, &args), 0);
    const ek_norm_sums sums = {.dweight = weight.host, .dbias = dbias.host};
    args.weight = NULL;
    ck_assert_int_eq(kernels->norm_reduce(dev, &sums, &args), 0);
}

/* Statistics of no values are NaN, sums are 0. */
TEST_LOOP(no_values, 0, 3)
{
    static const norm_shape some[] = {{4, {0, 3, 2, 2}, 0, 0},
                                      {4, {2, 3, 0, 2}, 3, 0},
                                      {4, {0, 3, 4, 2}, 3, 0}};
    norm_case c = case_of(&some[_i], EK_F32, TWIN_ROWS, TWIN_ROWS);
    twin var = statistic(&c), out[4];
    ek_norm_sums sums[2];
    for (int k = 0; k < 4; k++)
        out[k] = k >= 2 ? parameter(&c, 1, 2, 0) : _i ? statistic(&c) : twin_none;
    for (int side = 0; side < 2; side++)
        sums[side] =
            (ek_norm_sums){ON(out[0]), ON(out[1]), ON(out[2]), ON(out[3]), NULL, NULL, NULL, 0};
    twin_uniform(c.mean, 1, 2, 3);
    twin_run(norm_moments, ON(c.mean), ON(var), ON(c.x), NULL);
    double *nan = case_zeros(6), *zeros = case_zeros(6);
    for (int i = 0; i < 6; i++)
        nan[i] = (double)NAN;
    twin_expect(c.mean, nan, 0, "mean of nothing");
    twin_expect(var, nan, 0, "var of nothing");
    twin_same(c.mean, "mean of nothing");
    twin_same(var, "var of nothing");
    ek_norm_args args[2];
    for (int side = 0; side < 2; side++)
        args[side] =
            (ek_norm_args){.x = ON(c.x), .mean = ON(c.mean), .invstd = ON(var), .relu = _i == 0};
    twin_run(norm_line, ON(c.x), &args[side]);
    for (int side = 0; side < 2; side++) {
        args[side].dy = ON(c.x);
        args[side].sum = ON(out[2]);
        args[side].sum_xhat = ON(out[3]);
        args[side].count = 1;
    }
    twin_run(norm_reduce, &sums[side], &args[side]);
    for (int k = _i ? 0 : 2; k < 4; k++) {
        twin_expect(out[k], zeros, 0, "sum of nothing");
        twin_same(out[k], "sum of nothing");
    }
    twin_run(norm_line, ON(c.x), &args[side]);
    free(nan), free(zeros);
}
