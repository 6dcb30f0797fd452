/* Moments merged, and what becomes of moments and sums of the batch, on the GPU against the host's.
 */
#include "cuda_cases.h"

enum { CHUNKS = 3 };
static const ek_dtype floating[] = {EK_F32, EK_F64, EK_BF16};

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
    bool averages;
} outcome;

static outcome outcome_new(ek_dtype dtype, int64_t channels, twin_layout layout, bool averages)
{
    twin made[4];
    for (int i = 0; i < 4; i++)
        made[i] = values(dtype, channels, layout, i - 2, (unsigned)i);
    return (outcome){.mean = made[0],
                     .invstd = made[1],
                     .running_mean = made[2],
                     .running_var = made[3],
                     .batches = number(6),
                     .average = number(7),
                     .averages = averages};
}

static ek_norm_update update_of(const outcome *o, bool cuda)
{
#define SIDE(t) (cuda ? (t).cuda : (t).host)
    return (ek_norm_update){.eps = 1e-3,
                            .running_mean = SIDE(o->running_mean),
                            .running_var = SIDE(o->running_var),
                            .momentum = 0.3,
                            .count = 20,
                            .average = o->averages ? SIDE(o->average) : NULL,
                            .batches = SIDE(o->batches)};
#undef SIDE
}

static void merge(const outcome *o, twin means, twin vars, const double *shares)
{
    const ek_norm_update host = update_of(o, false), cuda = update_of(o, true);
    assert_ok(twin_host()->norm_merge(twin_dev(EK_HOST), o->mean.host, o->invstd.host, means.host,
                                      vars.host, shares, &host));
    assert_ok(twin_cuda()->norm_merge(twin_dev(EK_CUDA), o->mean.cuda, o->invstd.cuda, means.cuda,
                                      vars.cuda, shares, &cuda));
}

static void outcomes_close(const outcome *o, double exact, const char *what)
{
    twin_close(o->invstd, exact, 0, what);
    twin_close(o->mean, exact, exact, what);
    twin_close(o->running_mean, exact, exact, what);
    twin_close(o->running_var, exact, exact, what);
    twin_same(o->batches, what);
    twin_same(o->average, what);
}

/* Row 0 or 1 of every chunk's. */
static twin row_of_chunks(twin moments, int row)
{
    const int64_t dims[] = {moments.host->shape[0], moments.host->shape[2]};
    const int64_t strides[] = {2 * dims[1], 1};
    return (twin){ek_tensor_view(moments.host, 2, dims, strides, row * dims[1]),
                  ek_tensor_view(moments.cuda, 2, dims, strides, row * dims[1])};
}

TEST_LOOP(chunks, 0, 2)
{
    static const int64_t counts[] = {1, 7, 300};
    static const twin_layout layouts[] = {TWIN_ROWS, TWIN_GAPS, TWIN_DENSE_OFFSET};
    static const double shares[CHUNKS] = {0.5, 0.2, 0.3};
    const ek_dtype dtype = wide_of(floating[_i]);
    for (int k = 0; k < 3; k++)
        for (int l = 0; l < 3; l++) {
            const int64_t dims[] = {CHUNKS, 2, counts[k]};
            twin moments = twin_uniform(twin_new(dtype, 3, dims, TWIN_ROWS), 0.5, 2, 1);
            outcome o = outcome_new(dtype, counts[k], layouts[l], (k + l) % 2);
            merge(&o, row_of_chunks(moments, 0), row_of_chunks(moments, 1), shares);
            outcomes_close(&o, 4 * exact_of(dtype), "merged");
        }
}

/* They come out as they are. */
TEST_LOOP(one_chunk, 0, 2)
{
    static const int64_t counts[] = {1, 7, 300};
    static const twin_layout layouts[] = {TWIN_ROWS, TWIN_GAPS, TWIN_DENSE_OFFSET};
    const ek_dtype dtype = wide_of(floating[_i]);
    for (int k = 0; k < 3; k++)
        for (int l = 0; l < 3; l++) {
            twin mean = values(dtype, counts[k], layouts[l], -0.5, 4);
            twin var = values(dtype, counts[k], layouts[l], 0, 5);
            outcome o = outcome_new(dtype, counts[k], layouts[(l + 1) % 3], (k + l) % 2);
            merge(&o, mean, var, (const double[]){1});
            outcomes_close(&o, exact_of(dtype), "one chunk");
            for (int64_t c = 0; c < counts[k]; c++)
                case_must(case_get(o.mean.host, c) == case_get(mean.host, c));
        }
}

/* With the moments or after them: the host's numbers, and the same bits. Sums that are a block's
 * own, and sums in parts. */
TEST_LOOP(with_moments, 0, 3)
{
    static const int64_t shapes[][4] = {{4, 5, 2, 3}, {40, 8, 16, 16}};
    const ek_dtype dtype = floating[_i], wide = wide_of(dtype);
    for (int k = 0; k < 2; k++)
        for (int l = 0; l < 2; l++) {
            const int64_t channels = shapes[k][1];
            twin x = twin_uniform(twin_new(dtype, 4, shapes[k], (twin_layout)l), -1, 3, 7);
            twin mean = values(wide, channels, TWIN_ROWS, 0, 1);
            twin var = values(wide, channels, TWIN_ROWS, 0, 1);
            outcome o[2];
            for (int t = 0; t < 2; t++)
                o[t] = outcome_new(wide, channels, TWIN_ROWS, (k + l) % 2);
            const ek_norm_update host = update_of(&o[0], false), cuda = update_of(&o[0], true);
            assert_ok(twin_host()->norm_moments(twin_dev(EK_HOST), o[0].mean.host, o[0].invstd.host,
                                                x.host, &host));
            assert_ok(twin_cuda()->norm_moments(twin_dev(EK_CUDA), o[0].mean.cuda, o[0].invstd.cuda,
                                                x.cuda, &cuda));
            assert_ok(
                twin_host()->norm_moments(twin_dev(EK_HOST), mean.host, var.host, x.host, NULL));
            assert_ok(
                twin_cuda()->norm_moments(twin_dev(EK_CUDA), mean.cuda, var.cuda, x.cuda, NULL));
            merge(&o[1], mean, var, (const double[]){1});
            for (int t = 0; t < 2; t++)
                outcomes_close(&o[t], 8 * exact_of(wide), "updated with moments");
            const twin pairs[][2] = {{o[0].mean, o[1].mean},
                                     {o[0].invstd, o[1].invstd},
                                     {o[0].running_mean, o[1].running_mean},
                                     {o[0].running_var, o[1].running_var}};
            for (int i = 0; i < 4; i++)
                twin_same((twin){twin_pull(pairs[i][0].cuda), pairs[i][1].cuda}, "at once");
        }
}

/* A sample's groups turn their variances, too. */
TEST_LOOP(of_samples, 0, 3)
{
    static const int64_t dims[] = {6, 8, 5, 4}, tables[][2] = {{6, 8}, {6, 2}, {6, 1}};
    const ek_dtype dtype = floating[_i], wide = wide_of(dtype);
    const ek_norm_update update = {.eps = 1e-3};
    for (int k = 0; k < 3; k++)
        for (int l = 0; l < 2; l++) {
            twin x = twin_uniform(twin_new(dtype, 4, dims, (twin_layout)l), -1, 3, 7);
            twin mean = twin_new(wide, 2, tables[k], TWIN_ROWS);
            twin var = twin_new(wide, 2, tables[k], TWIN_ROWS);
            assert_ok(
                twin_host()->norm_moments(twin_dev(EK_HOST), mean.host, var.host, x.host, &update));
            assert_ok(
                twin_cuda()->norm_moments(twin_dev(EK_CUDA), mean.cuda, var.cuda, x.cuda, &update));
            twin_close(mean, 8 * exact_of(wide), 8 * exact_of(wide), "mean of groups");
            twin_close(var, 8 * exact_of(wide), 0, "invstd of groups");
        }
}

/* What makes the gradient of x from the sums, and that gradient about a centre. */
TEST_LOOP(lines, 0, 3)
{
    static const int64_t shapes[][4] = {{4, 5, 2, 3}, {40, 8, 16, 16}};
    const ek_dtype dtype = floating[_i], wide = wide_of(dtype);
    const double exact = 16 * exact_of(wide);
    for (int k = 0; k < 2; k++)
        for (int l = 0; l < 8; l++) {
            const int64_t channels = shapes[k][1];
            twin x = twin_uniform(twin_new(dtype, 4, shapes[k], (twin_layout)(l % 2)), -1, 1, 1);
            twin dy = twin_uniform(twin_new(dtype, 4, shapes[k], (twin_layout)(l % 2)), 0, 1, 2);
            twin dx = twin_new(dtype, 4, shapes[k], (twin_layout)(l % 2));
            twin mean = values(wide, channels, TWIN_ROWS, -0.5, 3);
            twin invstd = values(wide, channels, TWIN_ROWS, 0.5, 4);
            twin weight = values(wide, channels, TWIN_ROWS, 0.5, 5), none = {NULL, NULL};
            twin w = l < 4 ? weight : none, r = l % 4 < 2 ? invstd : none, out[5];
            for (int i = 0; i < 5; i++)
                out[i] = values(wide, channels, TWIN_ROWS, 0, 1);
            const ek_norm_sums host = {.dbias = out[0].host,
                                       .dweight = out[1].host,
                                       .scale = out[2].host,
                                       .shift = out[3].host,
                                       .slope = out[4].host,
                                       .count = 50};
            const ek_norm_sums cuda = {.dbias = out[0].cuda,
                                       .dweight = out[1].cuda,
                                       .scale = out[2].cuda,
                                       .shift = out[3].cuda,
                                       .slope = out[4].cuda,
                                       .count = 50};
            assert_ok(twin_host()->norm_reduce(twin_dev(EK_HOST), &host, dy.host, x.host, mean.host,
                                               r.host, w.host, NULL));
            assert_ok(twin_cuda()->norm_reduce(twin_dev(EK_CUDA), &cuda, dy.cuda, x.cuda, mean.cuda,
                                               r.cuda, w.cuda, NULL));
            for (int i = 0; i < 5; i++) {
                twin_close_norm(out[i], exact, "lines");
                twin_push(out[i]);
            }
            assert_ok(twin_host()->norm_gradient(twin_dev(EK_HOST), dx.host, dy.host, x.host,
                                                 mean.host, NULL, out[2].host, out[3].host,
                                                 out[4].host, -1, NULL));
            assert_ok(twin_cuda()->norm_gradient(twin_dev(EK_CUDA), dx.cuda, dy.cuda, x.cuda,
                                                 mean.cuda, NULL, out[2].cuda, out[3].cuda,
                                                 out[4].cuda, -1, NULL));
            twin_close(dx, dtype == EK_BF16 ? 8e-3 : exact, 4 * exact, "gradient of x");
        }
}
