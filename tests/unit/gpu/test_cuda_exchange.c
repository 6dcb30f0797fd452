/* Gradients are summed beside backward: kernels that follow a bucket don't wait for its sum, and
 * what uses the sum does. The exchange streams are held, so that nothing that waits for them goes
 * on. */
#include <pthread.h>

#include "core/lane.h"
#include "core/trace.h"
#include "cuda/runtime.h"
#include "held_stream.h"
#ifdef EK_CUDA_EMULATED
#include <emulator.h>
#endif

BEFORE_ALL(skip_without_gpu)
#ifdef EK_CUDA_EMULATED
OWN_PROCESSES /* the emulator is set up once */
#endif

    enum {
        DEVICES = 2,
        WIDTH = 768,
        LAYERS = 4,
        BATCH = 4
    };

/* ---- how devices communicate ---- */

typedef struct route {
    const char *devices, *comm, *peers;
} route;

static const route routes[] = {{"0,1", "", "1"}, /* NCCL moves */
                               {"0,1", "nccl-sum", "1"},
                               {"0,1", "copy", "1"}, /* one device reads the other's memory */
                               {"0,1", "copy", "0"}, /* through the host */
                               {"0,0", "", "1"}};    /* two devices on one GPU */
enum { ROUTES = sizeof routes / sizeof *routes };

/* False on a machine without the GPUs. */
static bool open_route(const route *r)
{
    setenv("EK_EMULATOR_DEVICES", "2", 1);
    setenv("EK_EMULATOR_PEERS", r->peers, 1);
    setenv("EVENKEEL_COMM", r->comm, 1);
    bool there = ek_cuda_devices_configure(r->devices) >= 0;
    ek_error_clear();
    return there;
}

/* ---- a place in backward ---- */

static atomic_int sums; /* buckets whose sums have been issued */
static hold held;
static atomic_int probed; /* devices whose kernels were done while the sum was not */

static void count_sums(const ek_span *span, uint64_t ended, void *user)
{
    if (span->name && strcmp(span->name, "broadcast") == 0)
        atomic_fetch_add(&sums, 1);
}

static void ignore_memory(const ek_dev *dev, const ek_memory_stats *stats, const ek_span *span,
                          const ek_held *left, void *user)
{
}

static atomic_int arrived; /* blocks that the second device's first layers have waited for */
static bool looks;

static void wait_until_some(atomic_int *counter);

/* The first device's later layers, which wait for more, are issued after the second has looked. */
static void look_at_arrivals(ek_dev *dev)
{
#ifdef EK_CUDA_EMULATED
    ek_emulator_counters counters;
    if (looks && dev->id.index == 0)
        wait_until_some(&arrived);
    if (!looks || dev->id.index != 1 || atomic_load(&arrived))
        return;
    assert_ok(ek_dev_wait(ek_dev_get(ek_cpu()), dev));
    ek_emulator_count(&counters);
    atomic_store(&arrived, (int)counters.collectives);
#endif
}

static int probe_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    look_at_arrivals(ek_tensor_dev(x[0]));
    y[0] = ek_mul_scalar(x[0], 1);
    return y[0] ? 0 : ek_error_status();
}

/* Waits until the counter isn't 0; other devices' threads go on. */
static void wait_until_some(atomic_int *counter)
{
    const struct timespec moment = {0, 1000000};
    for (int i = 0; i < 20000 && atomic_load(counter) == 0; i++)
        nanosleep(&moment, NULL);
    ck_assert_int_gt(atomic_load(counter), 0);
}

static bool ahead; /* the first device's kernels are ahead of the second's */
static hold later; /* stands in its compute stream, after the terms of the first bucket */
static atomic_int laters;

/* At the beginning of each device's backward: its exchange stream stands still from now on. */
static int begin_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    ek_dev *dev = ek_tensor_dev(dy[0]);
    if (ahead && dev->id.index == 1)
        wait_until_some(&laters);
    if (held.patience > 0)
        hold_stream(dev, ek_cuda_of(dev)->exchange, &held);
    dx[0] = dy[0];
    return 0;
}

/* On the second device: once a sum is issued, waits for kernels that are issued later, or for the
 * sum. */
static int probe_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    ek_dev *dev = ek_tensor_dev(dy[0]);
    dx[0] = ek_mul_scalar(dy[0], 1);
    if (ahead && dev->id.index == 0) {
        hold_compute(dev, &later);
        atomic_fetch_add(&laters, 1);
    }
    if (dev->id.index != 1 || (!ahead && held.patience == 0))
        return dx[0] ? 0 : ek_error_status();
    wait_until_some(&sums);
    if (ahead) { /* the sum is done, whatever the first device has yet to do */
        ck_assert_int_eq(cudaStreamSynchronize(ek_cuda_of(dev)->exchange), cudaSuccess);
        atomic_fetch_add(&probed, !atomic_load(&later.gave_up));
        return 0;
    }
    assert_ok(ek_dev_wait(ek_dev_get(ek_cpu()), dev));
    atomic_fetch_add(&probed, !atomic_load(&held.gave_up));
    return 0;
}

static const ek_function begin = {.name = "begin",
                                  .outputs = 1,
                                  .forward = probe_forward,
                                  .backward = begin_backward};
static const ek_function probe = {.name = "probe",
                                  .outputs = 1,
                                  .forward = probe_forward,
                                  .backward = probe_backward};

static ek_value apply_function(const ek_function *function, const ek_args *args)
{
    ek_tensor *x = ek_arg_tensor(args, 0), *y;
    return ek_function_apply(function, &x, 1, &y) < 0 ? ek_value_error() : ek_value_of_tensor(y);
}

static ek_value begin_apply(ek_module *module, const ek_args *args)
{
    return apply_function(&begin, args);
}

static ek_value probe_apply(ek_module *module, const ek_args *args)
{
    return apply_function(&probe, args);
}

static const ek_module_type begin_type = {.name = "begin",
                                          .size = sizeof(ek_module),
                                          .forward = begin_apply};
static const ek_module_type probe_type = {.name = "probe",
                                          .size = sizeof(ek_module),
                                          .forward = probe_apply};

/* ---- what is trained: its gradients are buckets of one, two and one layers, because each device's
 * capacity is 32 buckets of 4 MiB ---- */

typedef struct job {
    ek_module *model;
    ek_tensor *input;
    ek_tensor *gradients[2 * LAYERS]; /* of the last step, on the host */
} job;

static void open_job(job *j)
{
    ek_module *net = ek_sequential(ek_linear(WIDTH, WIDTH), ek_linear(WIDTH, WIDTH),
                                   ek_module_new(&probe_type), ek_linear(WIDTH, WIDTH), ek_tanh(),
                                   ek_linear(WIDTH, WIDTH), ek_module_new(&begin_type));
    *j = (job){ek_data_parallel(net, ek_devices(EK_CUDA, DEVICES)), .input = NULL};
    ek_scope scope = ek_scope_begin();
    for (int d = 0; d < DEVICES; d++)
        assert_ok(ek_memory_set_capacity(ek_cuda(d), 128 << 20));
    ek_manual_seed(5);
    j->input = ek_keep(ek_randn(EK_SHAPE(BATCH, WIDTH)));
    ek_scope_end(&scope);
    assert_made(j->model);
    assert_made(j->input);
}

static void drop_gradients(job *j)
{
    for (int i = 0; i < 2 * LAYERS; i++) {
        ek_release(j->gradients[i]);
        j->gradients[i] = NULL;
    }
}

static void close_job(job *j)
{
    drop_gradients(j);
    ek_release(j->input);
    ek_module_free(j->model);
}

static int run_backward(job *j)
{
    ek_tensor *loss = ek_sum(ek_square(ek_apply(j->model, j->input)));
    return loss ? ek_backward(loss) : ek_error_status();
}

static const char *const layer_paths[] = {"0.weight", "0.bias", "1.weight", "1.bias",
                                          "3.weight", "3.bias", "5.weight", "5.bias"};

static void read_gradients(job *j)
{
    ek_module *net = ek_data_parallel_module(j->model);
    drop_gradients(j);
    for (int i = 0; i < 2 * LAYERS; i++) {
        ek_tensor *gradient = ek_tensor_grad(ek_module_tensor(net, layer_paths[i]));
        j->gradients[i] = ek_keep(ek_to_device(gradient, ek_cpu()));
        assert_made(j->gradients[i]);
    }
}

static void assert_same(const job *a, const job *b)
{
    for (int i = 0; i < 2 * LAYERS; i++)
        ck_assert_int_eq(memcmp(ek_tensor_address(a->gradients[i]),
                                ek_tensor_address(b->gradients[i]),
                                (size_t)ek_count(a->gradients[i]) * sizeof(float)),
                         0);
}

/* ---- tests ---- */

static void run_held(job *j)
{
    const ek_tracer tracer = {.span = count_sums, .memory = ignore_memory};
    assert_ok(ek_synchronize(ek_cuda(0)));
    assert_ok(ek_synchronize(ek_cuda(1)));
    assert_ok(ek_trace_set(&tracer));
    held.patience = 5;
    assert_ok(run_backward(j));
    held.patience = 0;
    assert_ok(ek_trace_set(NULL));
    ck_assert_msg(!atomic_load(&held.gave_up), "something waited for the exchange");
    ck_assert_int_eq(atomic_load(&probed), 1);
    ck_assert_int_eq(atomic_load(&sums), 3);
    atomic_store(&held.released, true);
}

/* The first or the second pass is held. The gradients are those of two passes that nobody holds, to
 * the bit. */
TEST_LOOP(backward_goes_on_while_a_bucket_is_summed, 0, 2 * ROUTES)
{
    job plain, beside;
    if (!open_route(&routes[_i / 2]))
        return;
    ek_manual_seed(3);
    open_job(&plain);
    assert_ok(run_backward(&plain));
    assert_ok(run_backward(&plain));
    read_gradients(&plain);
    ek_manual_seed(3);
    open_job(&beside);
    for (int i = 0; i < 2; i++) /* these passes ask the system for memory */
        assert_ok(run_backward(&beside));
    ek_module_zero_grad(beside.model);
    for (int i = 0; i < 2; i++) {
        if (i == _i % 2)
            run_held(&beside);
        else
            assert_ok(run_backward(&beside));
    }
    read_gradients(&beside);
    assert_same(&plain, &beside);
    close_job(&plain);
    close_job(&beside);
}

/* The sum of a bucket begins when its terms are there, though the first device has got more work.
 */
TEST_LOOP(a_bucket_waits_for_its_terms_alone, 0, ROUTES)
{
    const ek_tracer tracer = {.span = count_sums, .memory = ignore_memory};
    job j;
    if (!open_route(&routes[_i]))
        return;
    open_job(&j);
    for (int i = 0; i < 2; i++)
        assert_ok(run_backward(&j));
    ek_module_zero_grad(j.model);
    assert_ok(ek_synchronize(ek_cuda(0)));
    assert_ok(ek_synchronize(ek_cuda(1)));
    assert_ok(ek_trace_set(&tracer));
    ahead = true;
    later.patience = 5;
    assert_ok(run_backward(&j));
    assert_ok(ek_trace_set(NULL));
    ck_assert_int_eq(atomic_load(&probed), 1);
    atomic_store(&later.released, true);
    close_job(&j);
}

#ifdef EK_CUDA_EMULATED

static ek_dev *cuda_dev(int index)
{
    ek_dev *dev = ek_dev_get(ek_cuda(index));
    assert_made(dev);
    return dev;
}

/* A hold that nobody releases and that has no patience tells whether it was reached. */
static bool is_reached(hold *h, ek_dev *dev)
{
    assert_ok(ek_dev_wait(ek_dev_get(ek_cpu()), dev));
    return atomic_load(&h->gave_up);
}

/* What a lane keeps is bounded: beyond two buckets, 50 MiB, the compute stream waits for the oldest
 * sum. */
TEST(parked_terms_are_bounded)
{
    enum { MIB = 1 << 18 };
    hold h[3] = {{0}};
    ck_assert(open_route(&routes[0]));
    ek_dev *devs[] = {cuda_dev(0), cuda_dev(1)};
    const ek_deferral deferral = {0};
    const ek_deferral *before = ek_section_defer(&deferral);
    for (int i = 0; i < 3; i++) {
        ek_tensor *term = ek_keep(ek_zeros(EK_SHAPE(20 * MIB), .device = ek_cuda(1)));
        ek_section section;
        assert_made(term);
        ek_section_begin(&section, devs, 2, false);
        hold_stream(devs[1], ek_cuda_of(devs[1])->exchange, &h[i]);
        ek_section_end(&section);
        ek_lane_park(devs[1], &term, 1);
        ek_release(term);
        ck_assert_int_eq(is_reached(&h[0], devs[1]), i == 2);
    }
    ck_assert(!atomic_load(&h[1].gave_up));
    ek_section_defer(before);
    ek_lane_join_all();
    ck_assert(is_reached(&h[2], devs[1]));
}

#ifdef EK_CUDA_EMULATED

/* Two devices that could add 32 MiB at once with 96 MiB more, which the first doesn't have. */
TEST(sums_do_with_little_memory)
{
    enum { MIB = 1 << 18 };
    setenv("EK_EMULATOR_MEMORY", "256M", 1);
    ck_assert(open_route(&routes[0]));
    ek_tensor *others = ek_zeros(EK_SHAPE(140 * MIB), .device = ek_cuda(0));
    ek_tensor *terms[] = {ek_full(1, EK_SHAPE(32 * MIB), .device = ek_cuda(0)),
                          ek_full(2, EK_SHAPE(32 * MIB), .device = ek_cuda(1))};
    assert_made(others);
    ek_tensor *sum = ek_to_device(ek_reduce_add(terms, 2, ek_cuda(0)), ek_cpu());
    assert_made(sum);
    const float *x = ek_tensor_data(sum);
    for (int i = 0; i < 32 * MIB; i++)
        ck_assert(x[i] == 3);
}

#endif

/* ---- what a step has changed is sent while the next forward runs ---- */

static void change_all(ek_module *model)
{
    bool before = ek_set_grad_enabled(false);
    for (int i = 0; i < 2 * LAYERS; i++) {
        ek_tensor *tensor = ek_module_tensor(model, layer_paths[i]);
        assert_made(ek_mul_(tensor, ek_add_scalar(ek_zeros_like(tensor), 0.5)));
    }
    ek_set_grad_enabled(before);
    for (int d = 0; d < DEVICES; d++)
        assert_ok(ek_synchronize(ek_cuda(d)));
    ek_emulator_reset_counters();
}

/* A layer is a block: the first two layers of the second device wait for two of four. */
TEST(a_layer_waits_for_its_own_parameters)
{
    ek_emulator_counters counters;
    job j;
    ck_assert(open_route(&routes[0]));
    open_job(&j);
    ek_module *net = ek_data_parallel_module(j.model);
    assert_made(ek_apply(j.model, j.input));
    change_all(net);
    looks = true;
    ek_tensor *y = ek_to_device(ek_apply(j.model, j.input), ek_cpu());
    looks = false;
    assert_made(y);
    ck_assert_int_eq(atomic_load(&arrived), LAYERS / 2);
    for (int d = 0; d < DEVICES; d++)
        assert_ok(ek_synchronize(ek_cuda(d)));
    ek_emulator_count(&counters);
    ck_assert_uint_ge(counters.collectives, LAYERS);
    ek_tensor *alone = ek_to_device(ek_apply(net, ek_to_device(j.input, ek_cuda(0))), ek_cpu());
    assert_made(alone);
    const float *a = ek_tensor_data(y), *b = ek_tensor_data(alone);
    for (int i = 0; i < BATCH * WIDTH; i++)
        ck_assert_double_eq_tol(a[i], b[i], 1e-6);
    close_job(&j);
}

/* A part that can't be launched ends the pass with its sentence, and the next pass has all. */
TEST_LOOP(a_launch_that_fails_in_backward_ends_the_pass, 0, 3)
{
    static const char *const calls[] = {"ncclGroupEnd", "ncclSend", "ncclRecv"};
    job plain, failing;
    ck_assert(open_route(&routes[0]));
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(3);
    open_job(&plain);
    assert_ok(run_backward(&plain));
    read_gradients(&plain);
    ek_manual_seed(3);
    open_job(&failing);
    ek_tensor *loss = ek_sum(ek_square(ek_apply(failing.model, failing.input)));
    assert_made(loss);
    ek_emulator_fail_next(calls[_i], 3, 1);
    assert_refused(ek_backward(loss), EK_E_BACKEND, "internal error");
    ek_error_clear();
    ek_module_zero_grad(failing.model);
    assert_ok(run_backward(&failing));
    read_gradients(&failing);
    assert_same(&plain, &failing);
    ek_scope_end(&scope);
    close_job(&plain);
    close_job(&failing);
    assert_ok(ek_shutdown());
    ck_assert_uint_eq(ek_emulator_live_communicators(), 0);
    ck_assert_uint_eq(ek_emulator_live_events(), 0);
}

/* ---- lists that share devices ---- */

enum { CLIQUES = 4, ROUNDS = 100, GPUS = 4, NBYTES = 64 };

typedef struct clique {
    pthread_t thread;
    ek_dev *devs[3];
    void *data[3];
    int count;
} clique;

static void *broadcast_often(void *user)
{
    clique *c = user;
    for (int i = 0; i < ROUNDS; i++)
        if (ek_dev_broadcast(c->devs, c->count, c->data, NBYTES) < 0)
            return user;
    return NULL;
}

/* Threads communicate among lists in orders that would be circles; every list has its order. */
TEST(lists_that_share_devices_have_one_order)
{
    static const int members[CLIQUES][3] = {{0, 1, 2}, {2, 1, 3}, {3, 0, 1}, {1, 0, 2}};
    clique c[CLIQUES];
    setenv("EK_EMULATOR_DEVICES", "4", 1);
    assert_ok(ek_cuda_devices_configure("0,1,2,3"));
    for (int i = 0; i < CLIQUES; i++) {
        c[i] = (clique){.count = 3};
        for (int k = 0; k < 3; k++) {
            c[i].devs[k] = cuda_dev(members[i][k]);
            assert_ok(ek_dev_alloc(c[i].devs[k], NBYTES, EK_MEMORY_ACTIVATION, &c[i].data[k]));
            assert_ok(ek_dev_zero(c[i].devs[k], c[i].data[k], NBYTES));
        }
        unsigned char bytes[NBYTES];
        memset(bytes, 11 * i + 1, NBYTES);
        assert_ok(ek_dev_copy(c[i].devs[0], c[i].data[0], ek_dev_get(ek_cpu()), bytes, NBYTES));
        ck_assert_int_gt(ek_dev_collective(c[i].devs, 3), EK_COLLECTIVE_NONE);
    }
    for (int i = 0; i < CLIQUES; i++)
        ck_assert_int_eq(pthread_create(&c[i].thread, NULL, broadcast_often, &c[i]), 0);
    for (int i = 0; i < CLIQUES; i++) {
        void *failed;
        pthread_join(c[i].thread, &failed);
        ck_assert_ptr_null(failed);
    }
    for (int i = 0; i < CLIQUES; i++)
        for (int k = 0; k < 3; k++) {
            unsigned char bytes[NBYTES] = {0};
            assert_ok(ek_dev_copy(ek_dev_get(ek_cpu()), bytes, c[i].devs[k], c[i].data[k], NBYTES));
            ck_assert_int_eq(bytes[0], 11 * i + 1);
            ck_assert_int_eq(bytes[NBYTES - 1], 11 * i + 1);
            ek_dev_free(c[i].devs[k], c[i].data[k], NBYTES, EK_MEMORY_ACTIVATION);
        }
}

#endif
