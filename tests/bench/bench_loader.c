/* bench_loader.c: samples per second that a loader gives.
 *
 *     bench_loader IMAGES LABELS BATCH WORKERS [SECONDS]
 *
 * IMAGES and LABELS are IDX files, held in memory: each pass is shuffled, each batch is gathered
 * and looked at, a byte in each line of its memory. Prints "WORKERS MEDIAN_SAMPLES_PER_SECOND
 * PASSES SUM"; the sum of what was looked at in the first pass is the same for any number of
 * workers, and for PyTorch (loader.py). */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "evenkeel/evenkeel.h"

enum { LINE = 64, MOST_PASSES = 100000 };

static double rates[MOST_PASSES];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t look_at(const ek_tensor *tensor)
{
    const unsigned char *bytes = ek_tensor_data(tensor);
    size_t nbytes = (size_t)ek_tensor_count(tensor) * ek_dtype_size(ek_tensor_dtype(tensor));
    uint64_t sum = 0;
    for (size_t i = 0; i < nbytes; i += LINE)
        sum += bytes[i];
    return sum;
}

/* Samples of a pass, or a negative status. */
static int64_t run_pass(ek_loader *loader, uint64_t *sum)
{
    ek_batch batch;
    int64_t samples = 0;
    int rc;
    while ((rc = ek_loader_next(loader, &batch)) > 0) {
        *sum += look_at(ek_value_tensor(batch.input)) + look_at(ek_value_tensor(batch.target));
        samples += batch.count;
    }
    return rc < 0 ? rc : samples;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The first pass warms up. */
static int measure(ek_loader *loader, int workers, double seconds)
{
    uint64_t sum = 0, other = 0;
    int count = 0;
    if (run_pass(loader, &sum) < 0)
        return ek_error_status();
    for (double begin = now(); count < MOST_PASSES && (count == 0 || now() - begin < seconds);) {
        double before = now();
        int64_t samples = run_pass(loader, &other);
        if (samples < 0)
            return ek_error_status();
        rates[count++] = (double)samples / (now() - before);
    }
    qsort(rates, (size_t)count, sizeof *rates, ascending);
    printf("%d %.0f %d %llu\n", workers, rates[count / 2], count, (unsigned long long)sum);
    return 0;
}

/* Bytes as whole numbers, as labels are wanted. */
static ek_tensor *numbers_of(const ek_tensor *bytes)
{
    int64_t count = ek_tensor_count(bytes);
    ek_tensor *numbers = bytes ? ek_empty(EK_SHAPE(count), EK_I64) : NULL;
    for (int64_t i = 0; numbers && i < count; i++)
        ((int64_t *)ek_tensor_data(numbers))[i] = ((unsigned char *)ek_tensor_data(bytes))[i];
    return numbers;
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: %s IMAGES LABELS BATCH WORKERS [SECONDS]\n", argv[0]);
        return 2;
    }
    int workers = atoi(argv[4]);
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(0);
    ek_loader *loader =
        ek_data_loader(ek_tensor_dataset(ek_read_idx(argv[1]), numbers_of(ek_read_idx(argv[2]))),
                       .shuffle = true, .batch_size = atoll(argv[3]), .workers = workers);
    int rc = loader ? measure(loader, workers, argc > 5 ? atof(argv[5]) : 1) : ek_error_status();
    ek_loader_free(loader);
    ek_scope_end(&scope);
    if (rc < 0 || ek_shutdown() < 0) {
        ek_print_error(stderr);
        return 1;
    }
    return 0;
}
