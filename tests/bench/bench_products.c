/* bench_products.c: matrix products of the benchmarks' nets beside those of MKL and OpenBLAS.
 *
 *     [MKL=libmkl_rt.so.3] [OPENBLAS=libopenblas.so.0] bench_products [THREADS [ROUNDS [FIRST
 *     [LAST]]]]
 *
 * prints, for each shape, GFLOP/s, the share of what the threads can do (machine.h; half of it in
 * f64), the GFLOP/s of the libraries that can be loaded, and the ratio to the faster one; at the
 * end the geometric mean of the ratios. The sides run in turn; a side's time is its best of ROUNDS
 * (8). On Linux each side's threads are pinned to processors of their own. Fails if results differ.
 * Libraries read the instructions that they may use from MKL_ENABLE_INSTRUCTIONS and
 * OPENBLAS_CORETYPE, this library from EVENKEEL_HOST_ISA. */
#if defined(__linux__)
#include <sched.h>
#endif
#include <dirent.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <evenkeel/evenkeel.h>

#include "core/device.h"
#include "core/error.h"
#include "core/tensor.h"
#include "kernels/kernels.h"
#include "machine.h"

/* The product of x (n, k) and y (k, m). `form` has a letter for x and one for y: N, or T if the
 * operand lies transposed in memory. */
typedef struct shape {
    const char *what;
    ek_dtype dtype;
    int batch, n, k, m;
    const char *form; /* "NN", "NT", "TN" or "TT" */
} shape;

static const shape shapes[] = {
    {"square", EK_F32, 1, 128, 128, 128, "NN"},
    {"", EK_F32, 1, 128, 128, 128, "NT"},
    {"", EK_F32, 1, 128, 128, 128, "TN"},
    {"", EK_F32, 1, 128, 128, 128, "TT"},
    {"", EK_F32, 1, 256, 256, 256, "NN"},
    {"", EK_F32, 1, 512, 512, 512, "NT"},
    {"", EK_F32, 1, 1024, 1024, 1024, "NN"},
    {"", EK_F32, 1, 1024, 1024, 1024, "TT"},
    {"MLP, forward", EK_F32, 1, 256, 784, 2048, "NT"},
    {"", EK_F32, 1, 256, 2048, 2048, "NT"},
    {"input gradient", EK_F32, 1, 256, 2048, 2048, "NN"},
    {"weight gradient", EK_F32, 1, 2048, 256, 784, "TN"},
    {"", EK_F32, 1, 2048, 256, 2048, "TN"},
    {"classifier", EK_F32, 1, 256, 2048, 10, "NT"},
    {"", EK_F32, 1, 256, 10, 2048, "NN"},
    {"", EK_F32, 1, 10, 256, 2048, "TN"},
    {"ImageNet's", EK_F32, 1, 8, 2048, 1000, "NT"},
    {"", EK_F32, 1, 8, 1000, 2048, "NN"},
    {"", EK_F32, 1, 1000, 8, 2048, "TN"},
    {"GPT, forward", EK_F32, 1, 2048, 128, 384, "NT"},
    {"", EK_F32, 1, 2048, 128, 128, "NT"},
    {"", EK_F32, 1, 2048, 128, 512, "NT"},
    {"", EK_F32, 1, 2048, 512, 128, "NT"},
    {"input gradient", EK_F32, 1, 2048, 384, 128, "NN"},
    {"", EK_F32, 1, 2048, 512, 128, "NN"},
    {"", EK_F32, 1, 2048, 128, 512, "NN"},
    {"weight gradient", EK_F32, 1, 384, 2048, 128, "TN"},
    {"", EK_F32, 1, 512, 2048, 128, "TN"},
    {"", EK_F32, 1, 128, 2048, 128, "TN"},
    {"GPT-2, forward", EK_F32, 1, 1024, 768, 2304, "NT"},
    {"weight gradient", EK_F32, 1, 768, 1024, 3072, "TN"},
    {"heads", EK_F32, 64, 128, 32, 128, "NT"},
    {"", EK_F32, 64, 128, 128, 32, "NN"},
    {"", EK_F32, 64, 128, 128, 32, "TN"},
    {"", EK_F32, 96, 64, 64, 64, "NT"},
    {"", EK_F32, 96, 64, 64, 64, "NN"},
    {"", EK_F32, 24, 256, 64, 256, "NT"},
    {"LSTM, input", EK_F32, 1, 4096, 32, 768, "NT"},
    {"step", EK_F32, 1, 256, 192, 768, "NT"},
    {"", EK_F32, 1, 256, 768, 192, "NN"},
    {"weight gradient", EK_F32, 1, 768, 4096, 192, "TN"},
    {"", EK_F32, 1, 768, 4096, 32, "TN"},
    {"of 512, step", EK_F32, 1, 64, 512, 2048, "NT"},
    {"", EK_F32, 1, 64, 2048, 512, "NN"},
    {"weight gradient", EK_F32, 1, 2048, 3200, 512, "TN"},
    {"ResNet-50, 1x1", EK_F32, 1, 6272, 64, 256, "NT"},
    {"", EK_F32, 1, 6272, 256, 64, "NT"},
    {"", EK_F32, 1, 392, 2048, 512, "NN"},
    {"weight gradient", EK_F32, 1, 256, 6272, 64, "TN"},
    {"", EK_F32, 1, 1024, 1568, 256, "TN"},
    {"square", EK_F64, 1, 128, 128, 128, "NN"},
    {"", EK_F64, 1, 128, 128, 128, "TT"},
    {"", EK_F64, 1, 256, 256, 256, "NT"},
    {"", EK_F64, 1, 1024, 1024, 1024, "NN"},
    {"MLP", EK_F64, 1, 256, 784, 2048, "NT"},
    {"", EK_F64, 1, 2048, 256, 784, "TN"},
    {"classifier", EK_F64, 1, 256, 2048, 10, "NT"},
    {"heads", EK_F64, 64, 64, 64, 64, "NN"},
    {"LSTM, step", EK_F64, 1, 256, 192, 768, "NT"},
    {"weight gradient", EK_F64, 1, 512, 2048, 128, "TN"},
};
enum { SHAPES = sizeof shapes / sizeof *shapes, SIDES = 3, MOST_LIBRARIES = SIDES - 1 };

/* ---- the libraries ---- */

#define GEMM(NAME, REAL)                                                                  \
    typedef void NAME(int layout, int trans_a, int trans_b, int m, int n, int k, REAL up, \
                      const REAL *a, int lda, const REAL *b, int ldb, REAL beta, REAL *c, int ldc)
GEMM(sgemm, float);
GEMM(dgemm, double);
typedef void sgemm_batch(int layout, int trans_a, int trans_b, int m, int n, int k, float up,
                         const float *a, int lda, int step_a, const float *b, int ldb, int step_b,
                         float beta, float *c, int ldc, int step_c, int count);
typedef void dgemm_batch(int layout, int trans_a, int trans_b, int m, int n, int k, double up,
                         const double *a, int lda, int step_a, const double *b, int ldb, int step_b,
                         double beta, double *c, int ldc, int step_c, int count);

typedef struct library {
    const char *name;
    sgemm *f32;
    dgemm *f64;
    sgemm_batch *batch_f32; /* NULL: the library multiplies one after another */
    dgemm_batch *batch_f64;
} library;

static bool load(library *l, const char *name, const char *file, const char *set_threads,
                 int threads)
{
    const char *other = getenv(name);
    void *handle = dlopen(other ? other : file, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return false;
    l->name = name;
    *(void **)&l->f32 = dlsym(handle, "cblas_sgemm");
    *(void **)&l->f64 = dlsym(handle, "cblas_dgemm");
    *(void **)&l->batch_f32 = dlsym(handle, "cblas_sgemm_batch_strided");
    *(void **)&l->batch_f64 = dlsym(handle, "cblas_dgemm_batch_strided");
    void (*set)(int threads);
    *(void **)&set = dlsym(handle, set_threads);
    if (set)
        set(threads);
    return l->f32 && l->f64;
}

/* ---- one product ---- */

typedef struct product {
    const shape *shape;
    ek_dev *dev;
    const library *libraries;
    ek_tensor *x, *y, *stored_x, *stored_y, *out[SIDES];
} product;

static bool make(product *p)
{
    const shape *s = p->shape;
    bool x_transposed = s->form[0] == 'T', y_transposed = s->form[1] == 'T';
    p->stored_x =
        ek_rand(x_transposed ? EK_SHAPE(s->batch, s->k, s->n) : EK_SHAPE(s->batch, s->n, s->k),
                s->dtype, ek_host(0));
    p->stored_y =
        ek_rand(y_transposed ? EK_SHAPE(s->batch, s->m, s->k) : EK_SHAPE(s->batch, s->k, s->m),
                s->dtype, ek_host(0));
    p->x = x_transposed ? ek_transpose(p->stored_x, 1, 2) : p->stored_x;
    p->y = y_transposed ? ek_transpose(p->stored_y, 1, 2) : p->stored_y;
    for (int side = 0; side < SIDES; side++)
        p->out[side] = ek_zeros(EK_SHAPE(s->batch, s->n, s->m), s->dtype, ek_host(0));
    return p->x && p->y && p->out[0] && p->out[1] && p->out[2];
}

static void multiply_by_library(const product *p, const library *l, ek_tensor *out)
{
    enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
    const shape *s = p->shape;
    const int ta = s->form[0] == 'T' ? TRANSPOSED : PLAIN, n = s->n, k = s->k, m = s->m;
    const int tb = s->form[1] == 'T' ? TRANSPOSED : PLAIN;
    const int lda = ta == PLAIN ? k : n, ldb = tb == PLAIN ? m : k;
    const void *a = ek_tensor_address(p->stored_x), *b = ek_tensor_address(p->stored_y);
    void *c = ek_tensor_address(out);
#define MULTIPLY(ONE, BATCH, REAL)                                                           \
    if (s->batch > 1 && (BATCH))                                                             \
        (BATCH)(ROW_MAJOR, ta, tb, n, m, k, 1, a, lda, n * k, b, ldb, k * m, 0, c, m, n * m, \
                s->batch);                                                                   \
    else                                                                                     \
        for (int64_t i = 0; i < s->batch; i++)                                               \
            (ONE)(ROW_MAJOR, ta, tb, n, m, k, 1, (const REAL *)a + i * n * k, lda,           \
                  (const REAL *)b + i * k * m, ldb, 0, (REAL *)c + i * n * m, m);
    if (s->dtype == EK_F32) {
        MULTIPLY(l->f32, l->batch_f32, float)
    } else {
        MULTIPLY(l->f64, l->batch_f64, double)
    }
}

static int multiply(const product *p, int side)
{
    if (side > 0) {
        multiply_by_library(p, &p->libraries[side - 1], p->out[side]);
        return 0;
    }
    return p->dev->backend->kernels->matmul(p->dev, p->out[0], p->x, p->y, NULL, false);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Lowers *best to the seconds of a product of the fastest of some bursts. The first burst isn't
 * measured: threads that have slept may share a processor until the system's scheduler parts them,
 * which takes some milliseconds. */
static int measure(const product *p, int side, double *best)
{
    enum { BURSTS = 3 };
    const double burst = 2e-3, first_burst = 10e-3;
    int rc = 0, calls = 0;
    double begin = now();
    for (; rc == 0 && now() - begin < first_burst; calls++)
        rc = multiply(p, side);
    calls = 1 + (int)(calls * burst / first_burst);
    for (int i = 0; i < BURSTS && rc == 0; i++) {
        begin = now();
        for (int c = 0; c < calls && rc == 0; c++)
            rc = multiply(p, side);
        *best = fmin(*best, (now() - begin) / calls);
    }
    return rc;
}

/* Returns the largest difference between two sides' results, divided by k; NaN if there is one. */
static double difference(const product *p, int side)
{
    double largest = 0;
    for (int64_t i = 0; i < ek_count(p->out[0]); i++) {
        double a, b;
        if (p->shape->dtype == EK_F32) {
            a = (double)((float *)ek_tensor_address(p->out[0]))[i];
            b = (double)((float *)ek_tensor_address(p->out[side]))[i];
        } else {
            a = ((double *)ek_tensor_address(p->out[0]))[i];
            b = ((double *)ek_tensor_address(p->out[side]))[i];
        }
        double d = fabs(a - b) / p->shape->k;
        if (isnan(d))
            return d;
        largest = fmax(largest, d);
    }
    return largest;
}

/* ---- threads ---- */

/* Sleeps until library threads that spin after a product have stopped (main sets how long they
 * spin). */
static void settle(int threads)
{
    if (threads > 1)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

/* Pins the threads that began since the last call: the first thread of all to a processor, all
 * others, in turn, to the others of `threads` processors. The system's scheduler otherwise lets two
 * threads that wake each other share a processor for milliseconds. */
static void pin_new_threads(int threads)
{
#if defined(__linux__)
    static cpu_set_t allowed;
    static long last;
    int processors[CPU_SETSIZE], count = 0, next = 0;
    if (last == 0 && sched_getaffinity(0, sizeof allowed, &allowed) < 0)
        return;
    for (int i = 0; i < CPU_SETSIZE && count < threads; i++)
        if (CPU_ISSET(i, &allowed))
            processors[count++] = i;
    DIR *directory = threads > 1 && count == threads ? opendir("/proc/self/task") : NULL;
    if (!directory)
        return;
    long largest = last;
    for (struct dirent *entry; (entry = readdir(directory));) {
        const long thread = atol(entry->d_name);
        if (thread <= last)
            continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(processors[thread == (long)getpid() ? 0 : 1 + next++ % (threads - 1)], &one);
        sched_setaffinity((pid_t)thread, sizeof one, &one);
        largest = thread > largest ? thread : largest;
    }
    closedir(directory);
    last = largest;
#else
    (void)threads;
#endif
}

/* Writes the sides' seconds. Returns 0 or a negative status. */
static int compare(const product *p, int libraries, int threads, int rounds, double *seconds)
{
    int rc = 0;
    for (int side = 0; side < SIDES; side++)
        seconds[side] = INFINITY;
    for (int side = 0; side <= libraries && rc == 0; side++)
        rc = multiply(p, side);
    pin_new_threads(threads);
    for (int round = 0; round < rounds; round++)
        for (int side = 0; side <= libraries && rc == 0; side++) {
            settle(threads);
            rc = measure(p, side, &seconds[side]);
        }
    for (int side = 1; side <= libraries && rc == 0; side++)
        if (!(difference(p, side) < (p->shape->dtype == EK_F32 ? 1e-5 : 1e-13)))
            rc = EK_FAIL(EK_E_INVALID, "%s has other results than this library",
                         p->libraries[side - 1].name);
    return rc;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1, rounds = argc > 2 ? atoi(argv[2]) : 8;
    int first = argc > 3 ? atoi(argv[3]) : 0, last = argc > 4 ? atoi(argv[4]) : SHAPES - 1;
    if (threads < 1 || rounds < 1 || first < 0 || last >= SHAPES || argc > 5) {
        fprintf(stderr, "usage: %s [THREADS [ROUNDS [FIRST [LAST]]]], of %d shapes\n", argv[0],
                SHAPES);
        return 2;
    }
    /* How long threads spin after a product: milliseconds in MKL, powers of two of cycles in
     * OpenBLAS, whose threads otherwise take half a processor from the next product. */
    setenv("KMP_BLOCKTIME", "1", 0);
    setenv("OPENBLAS_THREAD_TIMEOUT", "20", 0);
    library libraries[MOST_LIBRARIES] = {{.name = NULL}};
    int count = 0, counted = 0, low = 0, rc = 0;
    count += load(&libraries[count], "MKL", "libmkl_rt.so.3", "MKL_Set_Num_Threads", threads);
    count += load(&libraries[count], "OPENBLAS", "libopenblas.so.0", "openblas_set_num_threads",
                  threads);
    double peak = machine_peak(threads), logarithms = 0, worst = INFINITY;
    ek_dev *dev = ek_dev_get(ek_host(0));
    if (!dev || ek_device_set_threads(ek_host(0), threads) < 0)
        rc = -1;
    printf("%d threads, peak %.1f GFLOP/s in f32\n", threads, 1e-9 * peak);
    printf("%-16s %-3s %5s %5s %5s %5s %-4s %8s %5s", "", "", "batch", "n", "k", "m", "form",
           "GFLOP/s", "peak");
    for (int l = 0; l < count; l++)
        printf(" %8s", libraries[l].name);
    printf("%s\n", count ? " ratio" : "");
    for (int i = first; i <= last && rc == 0; i++) {
        const shape *s = &shapes[i];
        ek_scope scope = ek_scope_begin();
        product p = {.shape = s, .dev = dev, .libraries = libraries};
        double seconds[SIDES] = {0}, work = 2.0 * s->batch * s->n * s->k * s->m;
        rc = make(&p) ? compare(&p, count, threads, rounds, seconds) : -1;
        if (rc < 0) {
            ek_scope_end(&scope);
            break;
        }
        printf("%-16s %-3s %5d %5d %5d %5d %-4s %8.1f %4.0f%%", s->what, ek_dtype_name(s->dtype),
               s->batch, s->n, s->k, s->m, s->form, 1e-9 * work / seconds[0],
               100 * work / seconds[0] / peak * (s->dtype == EK_F64 ? 2 : 1));
        double theirs = INFINITY;
        for (int l = 0; l < count; l++) {
            printf(" %8.1f", 1e-9 * work / seconds[l + 1]);
            theirs = fmin(theirs, seconds[l + 1]);
        }
        if (count) {
            double ratio = theirs / seconds[0];
            printf(" %5.2f", ratio);
            logarithms += log(ratio);
            worst = fmin(worst, ratio);
            low += ratio < 0.95;
            counted++;
        }
        printf("\n");
        fflush(stdout);
        ek_scope_end(&scope);
    }
    if (counted)
        printf("geometric mean %.3f, lowest %.2f, below 0.95: %d of %d\n",
               exp(logarithms / counted), worst, low, counted);
    if (rc < 0)
        ek_print_error(stderr);
    return rc < 0 ? 1 : 0;
}
