/* Loops over a device's threads, and the backend's devices. */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/worker.h"
#include "core/world.h"
#include "host/parallel.h"
#include "host_cases.h"

enum { COUNT = 1000 };

typedef struct visits {
    atomic_int seen[COUNT];
    atomic_int parts;
    int64_t grain;
    atomic_int too_small;
} visits;

static void visit(void *context, int64_t begin, int64_t end)
{
    visits *v = context;
    atomic_fetch_add(&v->parts, 1);
    if (end - begin < v->grain && end != COUNT)
        atomic_fetch_add(&v->too_small, 1);
    for (int64_t i = begin; i < end; i++)
        atomic_fetch_add(&v->seen[i], 1);
}

TEST(parallel_for_visits_each_index_once)
{
    static const int64_t grains[] = {0, 1, 7, 300, 999, 1000, 5000};
    for (int threads = 1; threads <= 5; threads++) {
        ek_dev *dev = case_device(threads);
        for (size_t g = 0; g < sizeof grains / sizeof *grains; g++) {
            visits *v = calloc(1, sizeof *v);
            ck_assert_ptr_nonnull(v);
            v->grain = grains[g];
            ek_parallel_for(dev, COUNT, grains[g], visit, v);
            for (int i = 0; i < COUNT; i++)
                ck_assert_int_eq(v->seen[i], 1);
            ck_assert_int_le(v->parts, threads);
            ck_assert_int_eq(v->too_small, 0);
            free(v);
        }
    }
}

static void count_calls(void *context, int64_t begin, int64_t end)
{
    atomic_fetch_add((atomic_int *)context, (int)(end - begin) + 100);
}

TEST(parallel_for_of_nothing_calls_nothing)
{
    atomic_int calls = 0;
    ek_parallel_for(case_device(2), 0, 1, count_calls, &calls);
    ek_parallel_for(case_device(2), -1, 1, count_calls, &calls);
    ck_assert_int_eq(calls, 0);
}

typedef struct nest {
    ek_dev *dev;
    atomic_int total;
} nest;

static void inner(void *context, int64_t begin, int64_t end)
{
    atomic_fetch_add(&((nest *)context)->total, (int)(end - begin));
}

static void outer(void *context, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++)
        ek_parallel_for(((nest *)context)->dev, 10, 1, inner, context);
}

TEST(parallel_for_nests)
{
    nest n = {.dev = case_device(2)};
    ek_parallel_for(n.dev, 20, 1, outer, &n);
    ck_assert_int_eq(n.total, 200);
}

/* ---- busy cores ---- */

static void compute(double *number, int64_t turns)
{
    for (int64_t i = 0; i < turns; i++)
        *number = *number * 0.999 + 1;
}

static void compute_part(void *context, int64_t begin, int64_t end)
{
    double number = 0;
    compute(&number, (end - begin) * 1000);
    ck_assert(number > 0 && context);
}

/* Processor time of loops with some work of one thread between them. */
static double time_of_loops(int threads)
{
    ek_dev *dev = case_device(threads);
    struct timespec now[2];
    double between = 0;
    for (int i = -5; i < 60; i++) {
        if (i == 0)
            clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now[0]);
        ek_parallel_for(dev, 60, 1, compute_part, &between);
        compute(&between, 60000);
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now[1]);
    return (double)(now[1].tv_sec - now[0].tv_sec) +
           1e-9 * (double)(now[1].tv_nsec - now[0].tv_nsec);
}

/* Threads that wait on cores that others use take no time of the processor. */
TEST(teams_do_not_spin_on_busy_cores)
{
    enum { CORES = 2, BUSY = 4 };
    const pid_t test = getpid();
    pid_t busy[BUSY];
    cpu_set_t cores, some;
    CPU_ZERO(&some);
    ck_assert_int_eq(sched_getaffinity(0, sizeof cores, &cores), 0);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&some) < CORES; i++)
        if (CPU_ISSET(i, &cores))
            CPU_SET(i, &some);
    ck_assert_int_eq(sched_setaffinity(0, sizeof some, &some), 0);
    for (int i = 0; i < BUSY; i++) {
        busy[i] = fork();
        ck_assert_int_ge(busy[i], 0);
        if (busy[i] == 0) {
            double number = 0;
            while (getppid() == test)
                compute(&number, 100000);
            _exit(0);
        }
    }
    double alone = time_of_loops(1), team = time_of_loops(CORES);
    for (int i = 0; i < BUSY; i++) {
        kill(busy[i], SIGKILL);
        waitpid(busy[i], NULL, 0);
    }
    if (!(team < 1.5 * alone))
        ck_abort_msg("%g s of one thread, %g s of two", alone, team);
}

/* ---- devices ---- */

TEST(host_devices_share_the_cores)
{
    int cores = ek_world_cores();
    ck_assert_int_ge(cores, 1);
    assert_ok(ek_host_devices_configure("3x64M,32M@0.5"));
    ck_assert_int_eq(ek_device_count(EK_HOST), 4);
    for (int i = 0; i < 4; i++) {
        ek_dev *dev = ek_dev_get(ek_host(i));
        assert_made(dev);
        ck_assert_int_eq(dev->threads, cores / 4 > 1 ? cores / 4 : 1);
        ck_assert(dev->speed == (i == 3 ? 0.5 : 1.0));
        ek_memory_stats stats;
        assert_ok(ek_memory_get_stats(ek_host(i), &stats));
        ck_assert(stats.capacity == (uint64_t)(i == 3 ? 32 : 64) << 20);
    }
    assert_refused(ek_dev_get(ek_host(4)), EK_E_DEVICE, "host:4");
}

TEST(memory_is_aligned_and_copied)
{
    assert_ok(ek_host_devices_configure("2"));
    ek_dev *from = ek_dev_get(ek_host(0)), *to = ek_dev_get(ek_cpu());
    assert_made(from);
    assert_made(to);
    void *a, *b;
    assert_ok(ek_dev_alloc(from, 1001, EK_MEMORY_ACTIVATION, &a));
    assert_ok(ek_dev_alloc(to, 1001, EK_MEMORY_ACTIVATION, &b));
    ck_assert_uint_eq((uintptr_t)a % 64, 0);
    ck_assert_uint_eq((uintptr_t)b % 64, 0);
    for (int i = 0; i < 1001; i++)
        ((unsigned char *)a)[i] = (unsigned char)(i * 7);
    assert_ok(ek_dev_copy(to, b, from, a, 1001));
    ck_assert_int_eq(memcmp(a, b, 1001), 0);
    ek_dev_free(from, a, 1001, EK_MEMORY_ACTIVATION);
    ek_dev_free(to, b, 1001, EK_MEMORY_ACTIVATION);
}

TEST(impossible_requests_are_refused)
{
    ek_dev *dev = case_device(1);
    void *pointer;
    assert_refused(ek_dev_alloc(dev, (size_t)PTRDIFF_MAX, EK_MEMORY_ACTIVATION, &pointer),
                   EK_E_OUT_OF_MEMORY, "host:0");
    assert_ok(ek_dev_alloc(dev, 64, EK_MEMORY_ACTIVATION, &pointer));
    ek_dev_free(dev, pointer, 64, EK_MEMORY_ACTIVATION);
}

/* ---- several devices at once ---- */

typedef struct gang {
    ek_tensor *x, *w, *y[4];
    ek_conv_params params;
} gang;

static int convolve(void *user, int index)
{
    gang *g = user;
    ek_dev *dev = ek_tensor_dev(g->y[index]);
    int rc = 0;
    for (int i = 0; i < 20 && rc >= 0; i++) { /* a new shape each time: all build plans at once */
        int64_t rows = 4 + i, in[4] = {1, 8, rows, 9}, out[4] = {1, 16, rows, 9};
        ek_shape x_shape = {4, {in[0], in[1], in[2], in[3]}};
        ek_shape y_shape = {4, {out[0], out[1], out[2], out[3]}};
        ek_tensor *x = ek_tensor_new(dev, EK_F32, &x_shape, EK_CHANNELS_LAST);
        ek_tensor *w = ek_tensor_new(dev, EK_F32, &EK_SHAPE(16, 8, 3, 3), EK_CHANNELS_LAST);
        ek_tensor *y = ek_tensor_new(dev, EK_F32, &y_shape, EK_CHANNELS_LAST);
        if (!x || !w || !y)
            return EK_E_OUT_OF_MEMORY;
        case_fill(x, (unsigned)i);
        case_fill(w, 9);
        rc = dev->backend->kernels->conv_forward(dev, y, x, w, NULL, &g->params);
        for (int64_t j = 0; rc >= 0 && j < 16; j++)
            case_set(g->y[index], i * 16 + j, case_get(y, j * rows * 9 + 10));
    }
    return rc;
}

TEST(devices_compute_side_by_side)
{
    assert_ok(ek_host_devices_configure("4"));
    gang g = {.params = {
                  .dims = 2, .stride = {1, 1}, .padding = {1, 1}, .dilation = {1, 1}, .groups = 1}};
    ek_dev *devs[4];
    for (int i = 0; i < 4; i++) {
        devs[i] = ek_dev_get(ek_host(i));
        assert_made(devs[i]);
        g.y[i] = ek_tensor_new(devs[i], EK_F32, &EK_SHAPE(320), EK_CONTIGUOUS);
        assert_made(g.y[i]);
    }
    assert_ok(ek_jobs_run(devs, 4, convolve, &g, "replica"));
    for (int i = 1; i < 4; i++)
        case_same(g.y[0], g.y[i], "devices");
    ck_assert(case_get(g.y[0], 3) != 0);
}

/* ---- oneDNN's work in parts ---- */

static unsigned drawn;

static int64_t draw(int64_t from, int64_t to)
{
    drawn = drawn * 1664525u + 1013904223u;
    return from + (int64_t)(drawn >> 8) % (to - from + 1);
}

/* The distance of two tensors over the length of one. */
static double distance(const ek_tensor *a, const ek_tensor *b)
{
    double sum = 0, of = 0;
    for (int64_t i = 0; i < ek_count(a); i++) {
        double d = case_get(a, i) - case_get(b, i);
        sum += d * d;
        of += case_get(a, i) * case_get(a, i);
    }
    return sqrt(sum / of);
}

/* Convolutions and their gradients that are divided into samples, or into bands of rows. */
TEST_LOOP(convolutions_in_parts_are_those_of_one_thread, 0, 24)
{
    static const int64_t samples[] = {1, 1, 2, 3, 5, 9};
    const ek_dtype dtype = _i % 4 == 3 ? EK_BF16 : EK_F32;
    const int ndim = 2 + (_i % 6 == 5 ? 3 : _i % 6 == 4 ? 1 : 2);
    drawn = 100u + (unsigned)_i;
    for (int turn = 0; turn < 6; turn++) {
        const int64_t groups = draw(0, 2) == 0 ? 8 : 1;
        int64_t x[5] = {samples[draw(0, 5)], 8 * draw(1, 2)},
                w[5] = {8 * draw(1, 3), x[1] / groups};
        int64_t y[5] = {x[0], w[0]};
        ek_conv_params params = {.dims = ndim - 2, .groups = groups};
        for (int d = 0; d < ndim - 2; d++) {
            w[2 + d] = draw(1, 4);
            params.stride[d] = draw(1, 2);
            params.dilation[d] = draw(1, 2);
            params.padding[d] = draw(0, 3);
            const int64_t window = (w[2 + d] - 1) * params.dilation[d] + 1;
            x[2 + d] = window + (ndim == 5 ? draw(3, 12) : draw(20, 40));
            y[2 + d] = (x[2 + d] + 2 * params.padding[d] - window) / params.stride[d] + 1;
        }
        ek_tensor *made[2][4], *given[3] = {NULL};
        for (int several = 0; several < 2; several++) {
            ek_dev *dev = case_device(several ? 5 : 1);
            const int64_t *shapes[] = {x, w, y};
            for (int i = 0; i < 3 && !several; i++) {
                given[i] = case_tensor(dev, dtype, ndim, shapes[i], CASE_LAST);
                case_fill(given[i], 7u * (unsigned)turn + (unsigned)i);
            }
            for (int i = 0; i < 4; i++)
                made[several][i] = i < 3 ? case_tensor(dev, dtype, ndim, shapes[i], CASE_LAST)
                                         : case_tensor(dev, dtype, 1, w, CASE_ROWS);
            ek_tensor **to = made[several];
            const ek_kernels *k = dev->backend->kernels;
            assert_ok(k->conv_input_gradient(dev, to[0], given[2], given[1], &params));
            assert_ok(k->conv_weight_gradient(dev, to[1], to[3], given[0], given[2], &params));
            assert_ok(k->conv_forward(dev, to[2], given[0], given[1], NULL, &params));
        }
        for (int i = 0; i < 4; i++)
            if (!(distance(made[0][i], made[1][i]) < (dtype == EK_BF16 ? 5e-3 : 1e-6)))
                ck_abort_msg("turn %d, result %d: %g", turn, i, distance(made[0][i], made[1][i]));
    }
}

/* Products that are divided into areas, or into groups of a batch. */
TEST_LOOP(products_in_parts_are_those_of_one_thread, 0, 8)
{
    drawn = 300u + (unsigned)_i;
    const ek_dtype dtype = _i % 2 ? EK_BF16 : EK_F32;
    const int64_t b = _i < 2 ? 9 : draw(1, 3), n = draw(1, 90), m = draw(1, 200), k = draw(64, 300);
    ek_tensor *out[2], *x = NULL, *y = NULL, *bias = NULL;
    for (int several = 0; several < 2; several++) {
        ek_dev *dev = case_device(several ? 5 : 1);
        if (!several) {
            x = case_tensor(dev, dtype, 3, (const int64_t[]){b, n, k}, CASE_ROWS);
            y = case_tensor(dev, dtype, 3, (const int64_t[]){b, k, m}, CASE_ROWS);
            bias = case_tensor(dev, dtype, 1, &m, CASE_ROWS);
            case_fill(x, 1);
            case_fill(y, 2);
            case_fill(bias, 3);
        }
        out[several] = case_tensor(dev, dtype, 3, (const int64_t[]){b, n, m}, CASE_ROWS);
        assert_ok(dev->backend->kernels->matmul(dev, out[several], x, y, bias, false));
    }
    ck_assert(distance(out[0], out[1]) < (dtype == EK_BF16 ? 5e-3 : 1e-6));
}
