/* Moments merged, and what becomes of moments and sums of the batch: the host's kernels against the
 * formulas, the GPU's against the host's. */
#include "twin.h"

enum { CHUNKS = 3 };
static const double eps = 1e-3;

static double exact_of(ek_dtype dtype)
{
    return dtype == EK_F64 ? 1e-13 : 1e-6;
}

static ek_dtype wide_of(ek_dtype dtype)
{
    return dtype == EK_F64 ? EK_F64 : EK_F32;
}

static twin values(ek_dtype dtype, int64_t count, twin_layout layout, double low, unsigned seed)
{
    return twin_uniform(twin_new(dtype, 1, &count, layout), low, low + 1, seed);
}

static twin number(int64_t value)
{
    const int64_t one = 1;
    return twin_integers(twin_new(EK_I64, 1, &one, TWIN_ROWS), value, value, 1);
}

/* All that a call with an update writes. */
typedef struct outcome {
    twin mean, invstd, running_mean, running_var, batches, average;
    ek_norm_update update[2];
    double *before[2]; /* the running mean and variance */
} outcome;

static outcome outcome_new(ek_dtype dtype, int64_t channels, twin_layout layout, bool averages)
{
    twin made[4];
    for (int i = 0; i < 4; i++)
        made[i] = values(dtype, channels, layout, i - 2, (unsigned)i);
    outcome o = {.mean = made[0],
                 .invstd = made[1],
                 .running_mean = made[2],
                 .running_var = made[3],
                 .batches = number(6),
                 .average = number(7)};
    for (int side = 0; side < 2; side++)
        o.update[side] = (ek_norm_update){.eps = eps,
                                          .running_mean = ON(o.running_mean),
                                          .running_var = ON(o.running_var),
                                          .momentum = 0.3,
                                          .count = 20,
                                          .average = averages ? ON(o.average) : NULL,
                                          .batches = ON(o.batches)};
    o.before[0] = case_values(o.running_mean.host);
    o.before[1] = case_values(o.running_var.host);
    return o;
}

/* From the mean and the biased variance of all values. */
static void outcome_compare(outcome *o, const double *mean, const double *var, double exact,
                            const char *what)
{
    const int64_t channels = ek_count(o->mean.host);
    const double momentum = o->update[0].average ? 1. / 7 : 0.3;
    double *invstd = case_zeros(channels);
    for (int64_t c = 0; c < channels; c++) {
        invstd[c] = 1 / sqrt(var[c] + eps);
        o->before[0][c] += momentum * (mean[c] - o->before[0][c]);
        o->before[1][c] += momentum * (var[c] * 20 / 19 - o->before[1][c]);
    }
    twin_expect(o->mean, mean, exact, what);
    twin_expect(o->invstd, invstd, 4 * exact, what);
    twin_expect(o->running_mean, o->before[0], exact, what);
    twin_expect(o->running_var, o->before[1], exact, what);
    twin_expect(o->batches, (const double[]){7}, 0, what);
    twin_close(o->invstd, exact, 0, what);
    twin_close(o->mean, exact, exact, what);
    twin_close(o->running_mean, exact, exact, what);
    twin_close(o->running_var, exact, exact, what);
    twin_same(o->batches, what);
    twin_same(o->average, what);
    free(invstd), free(o->before[0]), free(o->before[1]);
}

/* One chunk's moments come out as they are. */
TEST_LOOP(chunks, 0, 36)
{
    static const int64_t counts[] = {1, 7, 300};
    static const twin_layout layouts[] = {TWIN_ROWS, TWIN_GAPS, TWIN_DENSE_OFFSET};
    static const double all_shares[] = {0.5, 0.2, 0.3}, one[] = {1};
    const ek_dtype dtype = (ek_dtype)(_i % 2);
    const int64_t channels = counts[_i / 2 % 3], dims[] = {CHUNKS, 2, channels};
    const int64_t rows[] = {CHUNKS, channels}, row[] = {channels}, strides[] = {2 * channels, 1};
    const bool merges = _i >= 18;
    const double *shares = merges ? all_shares : one;
    twin moments = twin_uniform(twin_new(dtype, 3, dims, TWIN_ROWS), 0.5, 2, 1), part[2];
    double *wanted[2];
    for (int k = 0; k < 2; k++) {
        part[k] = merges ? twin_view(moments, 2, rows, strides, k * channels)
                         : twin_view(moments, 1, row, strides + 1, k * channels);
        wanted[k] = case_zeros(channels);
    }
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < (merges ? CHUNKS : 1) * channels; i++) {
            const double share = shares[i / channels], d = case_get(part[0].host, i);
            const int64_t c = i % channels;
            wanted[k][c] +=
                k == 0 ? share * d : share * (case_get(part[1].host, i) + pow(d - wanted[0][c], 2));
        }
    outcome o = outcome_new(dtype, channels, layouts[_i / 6 % 3], _i / 2 % 2);
    twin_run(norm_merge, ON(o.mean), ON(o.invstd), ON(part[0]), ON(part[1]), shares,
             &o.update[side]);
    outcome_compare(&o, wanted[0], wanted[1], 4 * exact_of(dtype), "merged");
    for (int64_t c = 0; c < (merges ? 0 : channels); c++)
        case_must(case_get(o.mean.host, c) == case_get(part[0].host, c));
    free(wanted[0]), free(wanted[1]);
}

/* With the moments or after them: the same bits. Sums that are a block's own, and sums in parts. */
TEST_LOOP(with_moments, 0, 12)
{
    static const int64_t shapes[][4] = {{4, 5, 2, 3}, {40, 8, 16, 16}};
    const ek_dtype dtype = (ek_dtype)(_i % 3), wide = wide_of(dtype);
    const int64_t *shape = shapes[_i / 3 % 2];
    twin x = twin_uniform(twin_new(dtype, 4, shape, (twin_layout)(_i / 6)), -1, 3, 7);
    twin mean = values(wide, shape[1], TWIN_ROWS, 0, 1),
         var = values(wide, shape[1], TWIN_ROWS, 0, 1);
    outcome o[2];
    for (int t = 0; t < 2; t++)
        o[t] = outcome_new(wide, shape[1], TWIN_ROWS, _i % 2);
    twin_run(norm_moments, ON(o[0].mean), ON(o[0].invstd), ON(x), &o[0].update[side]);
    twin_run(norm_moments, ON(mean), ON(var), ON(x), NULL);
    twin_run(norm_merge, ON(o[1].mean), ON(o[1].invstd), ON(mean), ON(var), (const double[]){1},
             &o[1].update[side]);
    double *m = case_values(mean.host), *v = case_values(var.host);
    for (int t = 0; t < 2; t++)
        outcome_compare(&o[t], m, v, 8 * exact_of(wide), "updated with moments");
    const twin pairs[][2] = {{o[0].mean, o[1].mean},
                             {o[0].invstd, o[1].invstd},
                             {o[0].running_mean, o[1].running_mean},
                             {o[0].running_var, o[1].running_var}};
    for (int i = 0; i < 4 && twin_sides() == 2; i++)
        twin_same((twin){twin_pull(pairs[i][0].cuda), pairs[i][1].cuda}, "at once");
    free(m), free(v);
}

/* A sample's groups turn their variances, too. */
TEST_LOOP(of_samples, 0, 18)
{
    static const int64_t dims[] = {6, 8, 5, 4}, tables[][2] = {{6, 8}, {6, 2}, {6, 1}};
    const ek_dtype dtype = (ek_dtype)(_i % 3), wide = wide_of(dtype);
    const double exact = 8 * exact_of(wide);
    const ek_norm_update update = {.eps = eps};
    twin x = twin_uniform(twin_new(dtype, 4, dims, (twin_layout)(_i / 9)), -1, 3, 7), out[3];
    for (int k = 0; k < 3; k++)
        out[k] = twin_new(wide, 2, tables[_i / 3 % 3], TWIN_ROWS);
    twin_run(norm_moments, ON(out[0]), ON(out[1]), ON(x), NULL);
    double *invstd = case_values(out[1].host);
    for (int64_t i = 0; i < ek_count(out[1].host); i++)
        invstd[i] = 1 / sqrt(invstd[i] + eps);
    twin_run(norm_moments, ON(out[0]), ON(out[2]), ON(x), &update);
    twin_expect(out[2], invstd, exact, "invstd of groups");
    twin_close(out[0], exact, exact, "mean of groups");
    twin_close(out[2], exact, 0, "invstd of groups");
    free(invstd);
}

/* What makes the gradient of x from the sums, and that gradient about a center. */
TEST_LOOP(lines, 0, 48)
{
    static const int64_t shapes[][4] = {{4, 5, 2, 3}, {40, 8, 16, 16}};
    const ek_dtype dtype = (ek_dtype)(_i % 3), wide = wide_of(dtype);
    const twin_layout layout = (twin_layout)(_i / 6 % 2);
    const int64_t *shape = shapes[_i / 3 % 2], channels = shape[1];
    const double exact = 16 * exact_of(wide);
    twin x = twin_uniform(twin_new(dtype, 4, shape, layout), -1, 1, 1);
    twin dy = twin_uniform(twin_new(dtype, 4, shape, layout), 0, 1, 2);
    twin dx = twin_new(dtype, 4, shape, layout), mean = values(wide, channels, TWIN_ROWS, -0.5, 3);
    twin invstd = values(wide, channels, TWIN_ROWS, 0.5, 4), out[5];
    twin weight = values(wide, channels, TWIN_ROWS, 0.5, 5);
    twin w = _i < 24 ? weight : twin_none, r = _i % 24 < 12 ? invstd : twin_none;
    ek_norm_sums sums[2];
    for (int i = 0; i < 5; i++)
        out[i] = values(wide, channels, TWIN_ROWS, 0, 1);
    for (int side = 0; side < 2; side++)
        sums[side] = (ek_norm_sums){.dbias = ON(out[0]),
                                    .dweight = ON(out[1]),
                                    .scale = ON(out[2]),
                                    .shift = ON(out[3]),
                                    .slope = ON(out[4]),
                                    .count = 50};
    ek_norm_args args[2];
    for (int side = 0; side < 2; side++)
        args[side] = (ek_norm_args){
            .x = ON(x), .mean = ON(mean), .invstd = ON(r), .weight = ON(w), .dy = ON(dy)};
    twin_run(norm_reduce, &sums[side], &args[side]);
    double *wanted[3], *wanted_dx = case_zeros(ek_count(x.host));
    for (int i = 0; i < 3; i++)
        wanted[i] = case_zeros(channels);
    for (int64_t c = 0; c < channels; c++) {
        double turn = r.host ? case_get(r.host, c) : 1;
        double scale = (w.host ? case_get(w.host, c) : 1) * turn;
        wanted[0][c] = scale;
        wanted[1][c] = -scale * case_get(out[0].host, c) / 50;
        wanted[2][c] = -scale * turn * case_get(out[1].host, c) / 50;
    }
    for (int i = 0; i < 5; i++) {
        if (i >= 2)
            twin_expect_norm(out[i], wanted[i - 2], exact, "lines");
        twin_close_norm(out[i], exact, "lines");
        twin_push(out[i]);
    }
    for (int64_t i = 0; i < ek_count(x.host); i++) {
        const int64_t c = i / (shape[2] * shape[3]) % channels;
        wanted_dx[i] = wanted[0][c] * case_get(dy.host, i) + wanted[1][c] +
                       wanted[2][c] * (case_get(x.host, i) - case_get(mean.host, c));
    }
    for (int side = 0; side < 2; side++)
        args[side] = (ek_norm_args){.x = ON(x),
                                    .mean = ON(mean),
                                    .weight = ON(out[2]),
                                    .dy = ON(dy),
                                    .sum = ON(out[3]),
                                    .sum_xhat = ON(out[4]),
                                    .count = -1};
    twin_run(norm_line, ON(dx), &args[side]);
    twin_expect(dx, wanted_dx, dtype == EK_BF16 ? 8e-3 : 4 * exact, "gradient of x");
    twin_close(dx, dtype == EK_BF16 ? 8e-3 : exact, 4 * exact, "gradient of x");
    for (int i = 0; i < 3; i++)
        free(wanted[i]);
    free(wanted_dx);
}
