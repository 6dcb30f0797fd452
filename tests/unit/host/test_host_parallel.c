/* Loops over a device's threads, and the backend's devices. */
#include <stdatomic.h>

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
