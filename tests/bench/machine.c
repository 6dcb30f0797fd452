#include "machine.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MOST_THREADS = 256, PEAK_ROUNDS = 100, PEAK_PASSES = 300000, TRIAD_ROUNDS = 5 };

static double machine_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- threads ---- */

typedef struct part {
    void (*work)(struct part *part);
    double rate, sum; /* operations per second; a result that nobody can leave out */
    float *a, *b, *c; /* the part's slices of the triad */
    int64_t count;    /* their elements */
} part;

static void *part_run(void *argument)
{
    part *p = argument;
    p->work(p);
    return NULL;
}

/* Seconds in which all parts were done, each by a thread of its own; negative if threads were
 * refused. */
static double parts_seconds(part *parts, int count)
{
    pthread_t threads[MOST_THREADS];
    double begin = machine_now();
    int started = 0;
    while (started < count &&
           pthread_create(&threads[started], NULL, part_run, &parts[started]) == 0)
        started++;
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return started == count ? machine_now() - begin : -1;
}

static bool parts_begin(part *parts, int threads, void (*work)(part *part))
{
    if (threads < 1 || threads > MOST_THREADS)
        return false;
    for (int i = 0; i < threads; i++)
        parts[i] = (part){.work = work};
    return true;
}

/* ---- multiplications: more independent sums than the units have in flight, and no more than there
 * are registers ---- */

#define MULTIPLY(name, bytes, sums, attribute)                                 \
    attribute static double name(part *p)                                      \
    {                                                                          \
        typedef float vector __attribute__((vector_size(bytes)));              \
        enum { LANES = (bytes) / sizeof(float) };                              \
        vector sum[sums], zero = {0}, term = zero + 0.25F;                     \
        vector factor = zero + (p->sum > 1 ? 0.501F : 0.5F);                   \
        for (int i = 0; i < (sums); i++)                                       \
            sum[i] = term + (float)i;                                          \
        for (int pass = 0; pass < PEAK_PASSES; pass++)                         \
            _Pragma("GCC unroll 24") for (int i = 0; i < (sums); i++) sum[i] = \
                sum[i] * factor + term;                                        \
        for (int i = 0; i < (sums); i++)                                       \
            p->sum += (double)sum[i][0];                                       \
        return 2.0 * LANES * (sums)*PEAK_PASSES;                               \
    }

#ifdef __x86_64__
MULTIPLY(multiply_avx512, 64, 24, __attribute__((target("avx512f"))))
MULTIPLY(multiply_avx2, 32, 12, __attribute__((target("avx2,fma"))))
MULTIPLY(multiply, 16, 12, )
#else
MULTIPLY(multiply, 16, 24, )
#endif

/* Operations that were done. */
static double multiply_best(part *p)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f"))
        return multiply_avx512(p);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return multiply_avx2(p);
#endif
    return multiply(p);
}

/* Rounds of about a millisecond: some are not interrupted, whatever else runs. */
static void peak_work(part *p)
{
    for (int round = 0; round < PEAK_ROUNDS; round++) {
        double begin = machine_now(), rate = multiply_best(p) / (machine_now() - begin);
        p->rate = rate > p->rate ? rate : p->rate;
    }
}

double machine_peak(int threads)
{
    static part parts[MOST_THREADS];
    double sum = 0;
    if (!parts_begin(parts, threads, peak_work) || parts_seconds(parts, threads) < 0)
        return 0;
    for (int i = 0; i < threads; i++)
        sum += parts[i].rate;
    return sum;
}

/* ---- the triad ---- */

static void triad(part *p)
{
    float *restrict a = p->a;
    const float *restrict b = p->b, *restrict c = p->c;
    for (int64_t i = 0; i < p->count; i++)
        a[i] = b[i] + 3.0F * c[i];
}

/* Each thread writes to its pages first, so that they lie near to it. */
static void triad_fill(part *p)
{
    for (int64_t i = 0; i < p->count; i++) {
        p->a[i] = 0;
        p->b[i] = (float)i;
        p->c[i] = 1;
    }
}

/* Elements of each of three arrays, together four times as large as the last cache. No core of a
 * machine with more than 64 MiB of it can fill it alone. */
static int64_t triad_elements(void)
{
    int64_t cache = 0, least = 192 << 20, most = 256 << 20;
#ifdef _SC_LEVEL3_CACHE_SIZE
    cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    int64_t nbytes = 4 * cache < least ? least : 4 * cache > most ? most : 4 * cache;
    return nbytes / 3 / (int64_t)sizeof(float);
}

double machine_bandwidth(int threads)
{
    static part parts[MOST_THREADS];
    double best = 0;
    if (!parts_begin(parts, threads, triad_fill))
        return 0;
    int64_t each = triad_elements() / threads, count = each * threads;
    size_t nbytes = 3 * (size_t)count * sizeof(float);
    float *memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 0;
    madvise(memory, nbytes, MADV_HUGEPAGE); /* quicker, and no less true without */
    for (int i = 0; i < threads; i++) {
        parts[i].a = memory + i * each;
        parts[i].b = memory + count + i * each;
        parts[i].c = memory + 2 * count + i * each;
        parts[i].count = each;
    }
    double seconds = parts_seconds(parts, threads);
    for (int round = 0; round < TRIAD_ROUNDS && seconds >= 0; round++) {
        for (int i = 0; i < threads; i++)
            parts[i].work = triad;
        seconds = parts_seconds(parts, threads);
        double rate = 3 * sizeof(float) * (double)count / seconds;
        best = seconds > 0 && rate > best ? rate : best;
    }
    munmap(memory, nbytes);
    return seconds < 0 ? 0 : best;
}
