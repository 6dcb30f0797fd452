/* bench_random.c: how fast either engine of random numbers is, and how even Philox's numbers are.
 *
 *     [EVENKEEL_HOST_ISA=avx2] bench_random [COUNT [ROUNDS]]
 *
 * Times are nanoseconds of CPU per element (f32) on one thread of cpu, the best of ROUNDS (5), in
 * which the engines take turns; COUNT is 10^7. The last lines are the statistics of Kolmogorov and
 * Smirnov, D sqrt(COUNT): D is the largest difference between the share of numbers up to x and its
 * probability. 1.36 is exceeded by one in twenty perfect generators, 1.95 by one in a thousand. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "evenkeel/evenkeel.h"

enum { ENGINES = 2 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- what is timed: each fills or reads x, and returns a negative status on error ---- */

typedef int subject_function(ek_tensor *x);

static int run_uniform(ek_tensor *x)
{
    return ek_uniform_(x, 0, 1, NULL);
}

static int run_normal(ek_tensor *x)
{
    return ek_normal_(x, 0, 1, NULL);
}

static int run_bernoulli(ek_tensor *x)
{
    return ek_bernoulli_(x, 0.1, NULL);
}

static int run_integers(ek_tensor *x)
{
    return ek_random_(x, 0, 1000, NULL);
}

static int run_dropout(ek_tensor *x)
{
    return ek_f_dropout(x, 0.1, true) ? 0 : ek_error_status();
}

static int run_training(ek_tensor *x)
{
    ek_tensor *leaf = ek_detach(x);
    if (!leaf || ek_tensor_set_requires_grad(leaf, true) < 0)
        return ek_error_status();
    ek_tensor *y = ek_f_dropout(leaf, 0.1, true);
    return y ? ek_backward(y, .gradient = x) : ek_error_status();
}

static const struct {
    const char *name;
    subject_function *run;
} subjects[] = {
    {"uniform", run_uniform},     {"normal", run_normal},
    {"bernoulli", run_bernoulli}, {"integers", run_integers},
    {"dropout", run_dropout},     {"dropout and its gradient", run_training},
};
enum { SUBJECTS = sizeof subjects / sizeof *subjects };

static int time_subject(int s, ek_tensor *x, int rounds)
{
    double best[ENGINES] = {INFINITY, INFINITY};
    for (int round = 0; round <= rounds; round++) /* the first warms up */
        for (int engine = 0; engine < ENGINES; engine++) {
            ek_scope scope = ek_scope_begin();
            int rc = ek_generator_set_engine(NULL, (ek_random_engine)engine);
            double begin = now();
            rc = rc < 0 ? rc : subjects[s].run(x);
            double seconds = now() - begin;
            ek_scope_end(&scope);
            if (rc < 0)
                return rc;
            if (round > 0 && seconds < best[engine])
                best[engine] = seconds;
        }
    double each = 1e9 / (double)ek_tensor_count(x);
    printf("%-26s %8.3f %8.3f %8.1f\n", subjects[s].name, best[0] * each, best[1] * each,
           best[0] / best[1]);
    return 0;
}

/* ---- Kolmogorov and Smirnov ---- */

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static int show_evenness(ek_tensor *x, bool normal)
{
    int64_t count = ek_tensor_count(x);
    float *values = ek_tensor_data(x);
    double largest = 0;
    int rc = normal ? run_normal(x) : run_uniform(x);
    if (rc < 0 || !values)
        return ek_error_status();
    qsort(values, (size_t)count, sizeof *values, compare);
    for (int64_t i = 0; i < count; i++) {
        double p = normal ? 0.5 * erfc(-values[i] / sqrt(2)) : values[i];
        largest =
            fmax(largest, fmax((double)(i + 1) / (double)count - p, p - (double)i / (double)count));
    }
    printf("%-26s %8.3f   from %g to %g\n", normal ? "normal" : "uniform",
           largest * sqrt((double)count), values[0], values[count - 1]);
    return 0;
}

int main(int argc, char **argv)
{
    int64_t count = argc > 1 ? atoll(argv[1]) : 10000000;
    int rounds = argc > 2 ? atoi(argv[2]) : 5, rc = 0;
    ek_device_set_threads(ek_cpu(), 1);
    ek_tensor *x = ek_ones(EK_SHAPE(count));
    printf("%-26s %8s %8s %8s\n", "ns per element", "twister", "philox", "ratio");
    for (int s = 0; s < SUBJECTS && x && rc == 0; s++)
        rc = time_subject(s, x, rounds);
    ek_manual_seed(1);
    printf("D sqrt(%lld)\n", (long long)count);
    for (int normal = 0; normal < 2 && x && rc == 0; normal++)
        rc = show_evenness(x, normal);
    if (!x || rc < 0)
        fprintf(stderr, "bench_random: %s\n", ek_error_message());
    return !x || rc < 0;
}
