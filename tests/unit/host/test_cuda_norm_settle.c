/* What follows from statistics and sums of normalisation, on the GPU against the host's. */
#include "cuda_cases.h"

enum { CHUNKS = 3, CHANNELS = 37 };
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

/* Everything that can follow. */
typedef struct outcome {
    twin invstd, mean, running_mean, running_var, batches, average;
    bool averages;
} outcome;

static outcome outcome_new(ek_dtype dtype, int ndim, const int64_t *dims, twin_layout layout,
                           bool averages)
{
    twin made[4];
    for (int i = 0; i < 4; i++)
        made[i] = twin_uniform(twin_new(dtype, ndim, dims, layout), i - 2, i - 1, (unsigned)i);
    return (outcome){.invstd = made[0],
                     .mean = made[1],
                     .running_mean = made[2],
                     .running_var = made[3],
                     .batches = number(6),
                     .average = number(7),
                     .averages = averages};
}

static ek_norm_settle settle_of(const outcome *o, bool cuda)
{
#define SIDE(t) (cuda ? (t).cuda : (t).host)
    return (ek_norm_settle){.eps = 1e-3,
                            .invstd = SIDE(o->invstd),
                            .mean = SIDE(o->mean),
                            .running_mean = SIDE(o->running_mean),
                            .running_var = SIDE(o->running_var),
                            .momentum = 0.3,
                            .count = 20,
                            .average = o->averages ? SIDE(o->average) : NULL,
                            .batches = SIDE(o->batches)};
#undef SIDE
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

START_TEST(settled_alone)
{
    static const int64_t counts[] = {1, 7, 300};
    static const twin_layout layouts[] = {TWIN_ROWS, TWIN_GAPS, TWIN_DENSE_OFFSET};
    const ek_dtype dtype = wide_of(floating[_i]);
    for (int k = 0; k < 3; k++)
        for (int l = 0; l < 3; l++) {
            twin mean = values(dtype, counts[k], layouts[l], -0.5, 4);
            twin var = values(dtype, counts[k], layouts[l], 0, 5);
            outcome o = outcome_new(dtype, 1, &counts[k], layouts[(l + 1) % 3], (k + l) % 2);
            const ek_norm_settle host = settle_of(&o, false), cuda = settle_of(&o, true);
            assert_ok(twin_host()->norm_settle(twin_dev(EK_HOST), mean.host, var.host, &host));
            assert_ok(twin_cuda()->norm_settle(twin_dev(EK_CUDA), mean.cuda, var.cuda, &cuda));
            outcomes_close(&o, exact_of(dtype), "settled");

            /* In place, and nothing else. */
            const ek_norm_settle in_host = {.eps = 0.5, .invstd = var.host};
            const ek_norm_settle in_cuda = {.eps = 0.5, .invstd = var.cuda};
            assert_ok(twin_host()->norm_settle(twin_dev(EK_HOST), mean.host, var.host, &in_host));
            assert_ok(twin_cuda()->norm_settle(twin_dev(EK_CUDA), mean.cuda, var.cuda, &in_cuda));
            twin_close(var, exact_of(dtype), 0, "in place");
        }
}
END_TEST

/* With the statistics or after them: the host's numbers, and the same bits. Sums that are a block's
 * own, and sums in parts; of batches, and of groups of one channel and of several. */
START_TEST(settled_with_statistics)
{
    static const int64_t shapes[][4] = {{4, 5, 2, 3}, {40, 8, 16, 16}};
    const ek_dtype dtype = floating[_i], wide = wide_of(dtype);
    for (int k = 0; k < 2; k++)
        for (int l = 0; l < 2; l++)
            for (int groups = 0; groups < 2; groups++) {
                twin x = twin_uniform(twin_new(dtype, 4, shapes[k], (twin_layout)l), -1, 3, 7);
                const int64_t dims[] = {shapes[k][0], shapes[k][1]};
                twin mean[2], var[2];
                outcome o[2];
                for (int t = 0; t < 2; t++) {
                    o[t] =
                        outcome_new(wide, groups ? 2 : 1, dims + !groups, TWIN_ROWS, (k + l) % 2);
                    mean[t] = twin_new(wide, groups ? 2 : 1, dims + !groups, TWIN_ROWS);
                    var[t] = twin_new(wide, groups ? 2 : 1, dims + !groups, TWIN_ROWS);
                    const ek_norm_settle host = settle_of(&o[t], false),
                                         cuda = settle_of(&o[t], true);
                    const ek_norm_settle *at_once[2] = {t ? NULL : &host, t ? NULL : &cuda};
                    if (groups) {
                        assert_ok(twin_host()->group_norm_statistics(twin_dev(EK_HOST),
                                                                     mean[t].host, var[t].host,
                                                                     x.host, at_once[0]));
                        assert_ok(twin_cuda()->group_norm_statistics(twin_dev(EK_CUDA),
                                                                     mean[t].cuda, var[t].cuda,
                                                                     x.cuda, at_once[1]));
                    } else {
                        assert_ok(twin_host()->batch_norm_statistics(twin_dev(EK_HOST),
                                                                     mean[t].host, var[t].host,
                                                                     x.host, at_once[0]));
                        assert_ok(twin_cuda()->batch_norm_statistics(twin_dev(EK_CUDA),
                                                                     mean[t].cuda, var[t].cuda,
                                                                     x.cuda, at_once[1]));
                    }
                    if (t) {
                        assert_ok(twin_host()->norm_settle(twin_dev(EK_HOST), mean[t].host,
                                                           var[t].host, &host));
                        assert_ok(twin_cuda()->norm_settle(twin_dev(EK_CUDA), mean[t].cuda,
                                                           var[t].cuda, &cuda));
                    }
                    outcomes_close(&o[t], 8 * exact_of(wide), "settled with statistics");
                }
                twin_same((twin){twin_pull(o[0].invstd.cuda), o[1].invstd.cuda}, "at once");
                twin_same((twin){twin_pull(o[0].running_mean.cuda), o[1].running_mean.cuda},
                          "at once");
                twin_same((twin){twin_pull(o[0].running_var.cuda), o[1].running_var.cuda},
                          "at once");
            }
}
END_TEST

/* The chain rule behind the sums, and the gradient with those of moments. */
START_TEST(chained)
{
    static const int64_t shapes[][4] = {{4, 5, 2, 3}, {40, 8, 16, 16}};
    const ek_dtype dtype = floating[_i], wide = wide_of(dtype);
    const double exact = 16 * exact_of(wide);
    for (int k = 0; k < 2; k++)
        for (int l = 0; l < 4; l++) {
            const int64_t channels = shapes[k][1];
            twin x = twin_uniform(twin_new(dtype, 4, shapes[k], (twin_layout)(l % 2)), -1, 1, 1);
            twin dy = twin_uniform(twin_new(dtype, 4, shapes[k], (twin_layout)(l % 2)), 0, 1, 2);
            twin dx = twin_new(dtype, 4, shapes[k], (twin_layout)(l % 2));
            twin mean = values(wide, channels, TWIN_ROWS, -0.5, 3);
            twin invstd = values(wide, channels, TWIN_ROWS, 0.5, 4);
            twin weight = values(wide, channels, TWIN_ROWS, 0.5, 5), none = {NULL, NULL};
            twin w = l < 2 ? weight : none, out[5];
            for (int i = 0; i < 5; i++)
                out[i] = values(wide, channels, TWIN_ROWS, 0, 1);
            const ek_norm_chain host = {w.host, out[2].host, out[3].host, out[4].host};
            const ek_norm_chain cuda = {w.cuda, out[2].cuda, out[3].cuda, out[4].cuda};
            assert_ok(twin_host()->batch_norm_reduce(twin_dev(EK_HOST), out[0].host, out[1].host,
                                                     dy.host, x.host, mean.host, invstd.host, NULL,
                                                     &host));
            assert_ok(twin_cuda()->batch_norm_reduce(twin_dev(EK_CUDA), out[0].cuda, out[1].cuda,
                                                     dy.cuda, x.cuda, mean.cuda, invstd.cuda, NULL,
                                                     &cuda));
            for (int i = 0; i < 5; i++)
                twin_close_norm(out[i], exact, "chained");
            assert_ok(twin_host()->norm_moments_gradient(twin_dev(EK_HOST), dx.host, dy.host,
                                                         w.host, x.host, mean.host, invstd.host,
                                                         weight.host));
            assert_ok(twin_cuda()->norm_moments_gradient(twin_dev(EK_CUDA), dx.cuda, dy.cuda,
                                                         w.cuda, x.cuda, mean.cuda, invstd.cuda,
                                                         weight.cuda));
            twin_close(dx, dtype == EK_BF16 ? 8e-3 : exact, exact, "gradient with moments");
        }
}
END_TEST

START_TEST(merged)
{
    static const double shares[CHUNKS] = {0.5, 0.2, 0.3};
    const ek_dtype dtype = wide_of(floating[_i]);
    const int64_t dims[] = {CHUNKS, 2, CHANNELS};
    for (int chunks = 1; chunks <= CHUNKS; chunks += CHUNKS - 1) {
        const int64_t own[] = {chunks, dims[1], dims[2]};
        twin moments = twin_uniform(twin_new(dtype, 3, own, TWIN_ROWS), 0.5, 2, 1), out[3], d[3];
        for (int i = 0; i < 3; i++) {
            out[i] = values(dtype, CHANNELS, TWIN_ROWS, 0, 1);
            d[i] = values(dtype, CHANNELS, TWIN_ROWS, -0.5, 2 + (unsigned)i);
        }
        const double *of = chunks == 1 ? (const double[]){1} : shares;
        assert_ok(twin_host()->norm_merge(twin_dev(EK_HOST), out[0].host, out[1].host, out[2].host,
                                          moments.host, of, 1e-3));
        assert_ok(twin_cuda()->norm_merge(twin_dev(EK_CUDA), out[0].cuda, out[1].cuda, out[2].cuda,
                                          moments.cuda, of, 1e-3));
        for (int i = 0; i < 3; i++)
            twin_close(out[i], exact_of(dtype), 0, "merged");
        for (int without = 0; without < 4; without++) {
            twin gradient = twin_new(dtype, 3, own, TWIN_ROWS), of_d[3];
            for (int i = 0; i < 3; i++)
                of_d[i] = i == without ? (twin){NULL, NULL} : d[i];
            assert_ok(twin_host()->norm_merge_gradient(twin_dev(EK_HOST), gradient.host,
                                                       of_d[0].host, of_d[1].host, of_d[2].host,
                                                       moments.host, out[0].host, out[2].host, of));
            assert_ok(twin_cuda()->norm_merge_gradient(twin_dev(EK_CUDA), gradient.cuda,
                                                       of_d[0].cuda, of_d[1].cuda, of_d[2].cuda,
                                                       moments.cuda, out[0].cuda, out[2].cuda, of));
            twin_close(gradient, 8 * exact_of(dtype), 8 * exact_of(dtype), "gradient of merging");
        }
    }
}
END_TEST

Suite *suite(void)
{
    Suite *s = twin_suite("settled normalisation on the GPU");
    TCase *tests = tcase_create("settled");
    tcase_add_loop_test(tests, settled_alone, 0, 2);
    tcase_add_loop_test(tests, settled_with_statistics, 0, 3);
    tcase_add_loop_test(tests, chained, 0, 3);
    tcase_add_loop_test(tests, merged, 0, 2);
    suite_add_tcase(s, tests);
    return s;
}
