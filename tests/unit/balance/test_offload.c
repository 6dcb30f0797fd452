/* EK_OFFLOAD_OPTIMIZER: a model whose optimizer has no room on its devices, and where memory lies.
 * That training gives the same numbers as without is in test_sharded.c. */
#include <string.h>

#include "kit/devices.h"
#include "kit/held.h"

COST(15)

FIXTURE(NULL, free_held)

#if defined(__SANITIZE_THREAD__) /* which is slow; the capacity is then generous */
enum { WIDTH = 64 };
#else
enum { WIDTH = 512 };
#endif
enum { LAYERS = 16, ROWS = 8, STEPS = 3 };

typedef struct training {
    ek_module *net, *model, *criterion;
    ek_optimizer *optimizer;
} training;

static ek_module *large_net(void)
{
    ek_module *parts[2 * LAYERS];
    int count = 0;
    ek_manual_seed(1);
    for (int i = 0; i < LAYERS; i++) {
        if (i > 0)
            parts[count++] = ek_relu();
        parts[count++] = ek_linear(WIDTH, WIDTH);
    }
    parts[1] = ek_dropout(0.1);
    ek_module *net = ek_sequential_of(parts, count);
    assert_made(net);
    return net;
}

/* Everything is held. */
static training training_begin(int devices, ek_shard_policy shard, ek_offload_policy offload)
{
    training t = {.net = large_net()};
    ek_device_list ids = ek_devices(test_kind(), devices);
    t.model =
        held(ek_data_parallel_model(t.net, .device_ids = ids, .shard = shard, .offload = offload));
    t.criterion = held(ek_data_parallel_criterion(ek_mse_loss(), ids));
    t.optimizer = held(ek_adam(t.model, .lr = 1e-3));
    return t;
}

static int training_step(const training *t, int step, double *loss)
{
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(100 + (uint64_t)step);
    ek_value x = EK_VALUE(ek_randn(EK_SHAPE(ROWS, WIDTH)));
    int rc = ek_train_step(loss, .model = t->model, .criterion = t->criterion,
                           .optimizer = t->optimizer, .input = x, .target = x);
    ek_scope_end(&scope);
    return rc;
}

static uint64_t net_nbytes(const training *t)
{
    return (uint64_t)ek_module_numel(t->net) * sizeof(float);
}

static ek_memory_stats memory_of(ek_device device)
{
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(device, &stats));
    return stats;
}

/* ---- larger than a device ---- */

static const struct {
    int devices;
    ek_shard_policy shard;
} ways[] = {{1, EK_SHARD_NONE},
            {1, EK_SHARD_PARAMETERS},
            {4, EK_SHARD_NONE},
            {4, EK_SHARD_PARAMETERS},
            {2, EK_SHARD_OPTIMIZER}};

/* Returns what a device has memory for: its parameters or two units, the gradients that a device
 * may be ahead (autograd/run.h), and as much as five layers for activations and gradients on their
 * way. A GPU also needs workspaces, and keeps freed memory apart by streams; what it keeps in vain
 * is found by the checks of categories. */
static uint64_t capacity_of(ek_shard_policy shard, uint64_t nbytes)
{
    uint64_t parameters = shard == EK_SHARD_PARAMETERS ? 2 * nbytes / LAYERS : nbytes;
    return parameters + 5 * nbytes / LAYERS + (8 << 20) + (test_kind() == EK_CUDA ? 36 << 20 : 0);
}

TEST_LOOP(an_optimizer_larger_than_a_device_trains, 0, 5)
{
    const int devices = ways[_i].devices;
    double expected[STEPS], loss;
    char hashes[2][65];
    assert_ok(test_devices_configure("4"));
    training whole = training_begin(devices, EK_SHARD_NONE, EK_OFFLOAD_NONE);
    for (int i = 0; i < STEPS; i++)
        assert_ok(training_step(&whole, i, &expected[i]));
    assert_ok(ek_module_sha256(whole.net, hashes[0]));
    free_held();

    training t = training_begin(devices, ways[_i].shard, EK_OFFLOAD_OPTIMIZER);
    const uint64_t nbytes = net_nbytes(&t), states = memory_of(ek_cpu()).now[EK_MEMORY_OPTIMIZER];
    for (int d = 0; d < devices; d++) {
        assert_ok(ek_memory_reset_peak(test_device(d)));
        if (WIDTH != 64)
            assert_ok(ek_memory_set_capacity(test_device(d), capacity_of(ways[_i].shard, nbytes)));
    }
    for (int i = 0; i < STEPS; i++) {
        assert_ok(training_step(&t, i, &loss));
        ck_assert_msg(memcmp(&loss, &expected[i], sizeof loss) == 0, "step %d: %.17g is not %.17g",
                      i, loss, expected[i]);
    }
    assert_ok(ek_module_sha256(t.net, hashes[1]));
    ck_assert_str_eq(hashes[1], hashes[0]);
    for (int d = 0; d < devices; d++) {
        const ek_memory_stats memory = memory_of(test_device(d));
        ck_assert_uint_eq(memory.now[EK_MEMORY_OPTIMIZER], 0);
        ck_assert_uint_eq(memory.at_peak[EK_MEMORY_OPTIMIZER], 0);
        ck_assert_uint_eq(memory.now[EK_MEMORY_GRADIENT], 0);
    }
    ck_assert_uint_ge(memory_of(ek_cpu()).now[EK_MEMORY_OPTIMIZER] - states, 2 * nbytes);
}

/* Without offloading that capacity is too little. */
TEST(the_capacity_is_too_little_otherwise)
{
    double loss;
    assert_ok(test_devices_configure("1"));
    training t = training_begin(1, EK_SHARD_NONE, EK_OFFLOAD_NONE);
    const uint64_t most = capacity_of(EK_SHARD_NONE, net_nbytes(&t));
    if (WIDTH == 64 || test_kind() == EK_CUDA)
        return;
    assert_refused(ek_memory_set_capacity(test_device(0), most), EK_E_STATE, "in use");
    assert_ok(ek_memory_set_capacity(test_device(0), 3 * net_nbytes(&t)));
    assert_refused(training_step(&t, 0, &loss), EK_E_OUT_OF_MEMORY, "is out of memory");
}

static int try_batch(int64_t batch, void *user)
{
    const training *t = user;
    ek_scope scope = ek_scope_begin();
    ek_value x = EK_VALUE(ek_randn(EK_SHAPE(batch, WIDTH)));
    int rc = ek_train_step(NULL, .model = t->model, .criterion = t->criterion,
                           .optimizer = t->optimizer, .input = x, .target = x);
    ek_scope_end(&scope);
    return rc;
}

/* The search leaves the model unchanged, without ever having it whole on the device. */
TEST_LOOP(the_largest_batch_is_found, 0, 2)
{
    char hashes[2][65];
    double loss;
    const ek_shard_policy shard = _i ? EK_SHARD_PARAMETERS : EK_SHARD_NONE;
    assert_ok(test_devices_configure("1"));
    training t = training_begin(1, shard, EK_OFFLOAD_OPTIMIZER);
    if (WIDTH != 64)
        assert_ok(ek_memory_set_capacity(test_device(0), capacity_of(shard, net_nbytes(&t))));
    assert_ok(training_step(&t, 0, &loss));
    assert_ok(ek_module_sha256(t.net, hashes[0]));
    int64_t batch = ek_find_batch(.function = try_batch, .user = &t, .model = t.model,
                                  .optimizer = t.optimizer, .first = 4, .most = 16);
    assert_ok(batch < 0 ? (int)batch : 0);
    ck_assert_int_ge(batch, 4);
    assert_ok(ek_module_sha256(t.net, hashes[1]));
    ck_assert_str_eq(hashes[1], hashes[0]);
    assert_ok(training_step(&t, 1, &loss));
}

/* Nothing of a model lies on its devices between steps, and yet they can't be closed. */
TEST(devices_stay_open)
{
    assert_ok(test_devices_configure("2"));
    ek_module *net = ek_linear(3, 2);
    ek_module *model =
        held(ek_data_parallel(net, .device_ids = ek_devices(test_kind(), 2),
                              .shard = EK_SHARD_PARAMETERS, .offload = EK_OFFLOAD_OPTIMIZER));
    assert_made(model);
    assert_refused(test_devices_configure("2"), EK_E_STATE, "bytes in use");
    ek_scope scope = ek_scope_begin();
    assert_made(ek_apply(model, ek_ones(EK_SHAPE(4, 3))));
    ek_scope_end(&scope);
}

/* One device is planned for as several are. */
TEST_LOOP(one_device_takes_every_plan, 0, 3)
{
    static const ek_split_policy splits[] = {EK_SPLIT_CHUNK, EK_SPLIT_EVEN, EK_SPLIT_AUTO};
    double losses[2];
    for (int offloads = 0; offloads < 2; offloads++) {
        assert_ok(test_devices_configure("1"));
        ek_manual_seed(1);
        ek_module *model = held(
            ek_data_parallel_model(ek_sequential(ek_linear(3, 8), ek_dropout(0.5), ek_linear(8, 3)),
                                   .device_ids = ek_devices(test_kind(), 1), .split = splits[_i],
                                   .offload = offloads ? EK_OFFLOAD_OPTIMIZER : EK_OFFLOAD_NONE));
        ek_module *criterion = held(
            ek_data_parallel_criterion(ek_mse_loss(), .device_ids = ek_devices(test_kind(), 1)));
        ek_optimizer *optimizer = held(ek_adam(model, .lr = 0.1));
        for (int step = 0; step < 12; step++) {
            ek_scope scope = ek_scope_begin();
            ek_value x = EK_VALUE(ek_randn(EK_SHAPE(5 + step / 8, 3)));
            assert_ok(ek_train_step(&losses[offloads], .model = model, .criterion = criterion,
                                    .optimizer = optimizer, .input = x, .target = x,
                                    .micro_batches = 1 + step % 2));
            ek_scope_end(&scope);
        }
        free_held();
    }
    ck_assert_double_eq(losses[1], losses[0]);
}

/* ---- parameters ---- */

/* What is written to a parameter is stepped on. */
TEST_LOOP(writes_reach_the_shards, 0, 3)
{
    assert_ok(test_devices_configure("2"));
    ek_module *net = ek_linear(3, 2);
    ek_module *model = held(ek_data_parallel(net, .device_ids = ek_devices(test_kind(), 1 + _i % 2),
                                             .offload = EK_OFFLOAD_OPTIMIZER));
    ek_optimizer *optimizer = held(ek_sgd(model, .lr = 1));
    for (int step = 0; step < 3; step++) {
        ek_scope scope = ek_scope_begin();
        ek_zero_grad(optimizer);
        if (step != 1)
            assert_ok(ek_init_constant(ek_module_tensor(net, "weight"), 10 * step));
        assert_ok(ek_backward(ek_sum(ek_apply(model, ek_ones(EK_SHAPE(4, 3))))));
        if (_i == 2)
            assert_ok(ek_init_constant(ek_module_tensor(net, "weight"), 100 * step));
        assert_ok(ek_step(optimizer));
        ek_tensor *weight = ek_to_device(ek_detach(ek_module_tensor(net, "weight")), ek_cpu());
        const double expected = _i == 2 ? 100 * step - 4 : step == 1 ? -8 : 10 * step - 4;
        for (int64_t i = 0; i < 6; i++)
            ck_assert_double_eq(element(weight, i), expected);
        ek_scope_end(&scope);
    }
}

/* What cpu steps anyway needs no second copy there. */
TEST(cpu_offloads_nothing)
{
    for (int listed = 0; listed < 2; listed++) {
        ek_device_list devices = {.count = listed, .devices = {ek_cpu()}};
        ek_module *net = ek_linear(64, 64);
        uint64_t before = memory_of(ek_cpu()).now[EK_MEMORY_PARAMETER];
        if (!listed && ek_device_count(ek_default_device_kind()) > 0)
            devices = (ek_device_list){.count = 1, .devices = {ek_cpu()}};
        ek_module *model =
            held(ek_data_parallel(net, .device_ids = devices, .offload = EK_OFFLOAD_OPTIMIZER));
        assert_ok(ek_backward(ek_sum(ek_apply(model, ek_ones(EK_SHAPE(2, 64))))));
        ck_assert_uint_le(memory_of(ek_cpu()).now[EK_MEMORY_PARAMETER], before + 128);
        assert_made(ek_tensor_grad(ek_module_tensor(net, "weight")));
    }
}

TEST(cpu_may_be_one_of_several_devices)
{
    double sums[2] = {0};
    assert_ok(test_devices_configure("1"));
    for (int offloads = 0; offloads < 2; offloads++) {
        ek_manual_seed(1);
        ek_module *net = ek_linear(30, 20);
        ek_device_list devices = {.count = 2, .devices = {ek_cpu(), test_device(0)}};
        ek_module *model =
            held(ek_data_parallel(net, .device_ids = devices,
                                  .offload = offloads ? EK_OFFLOAD_OPTIMIZER : EK_OFFLOAD_NONE));
        ek_optimizer *optimizer = held(ek_adam(model, .lr = 0.1));
        for (int step = 0; step < 2; step++) {
            ek_scope scope = ek_scope_begin();
            assert_ok(ek_backward(ek_sum(ek_apply(model, ek_ones(EK_SHAPE(4, 30))))));
            assert_ok(ek_step(optimizer));
            assert_ok(ek_item(ek_sum(ek_detach(ek_module_tensor(net, "weight"))), &sums[offloads]));
            ek_scope_end(&scope);
        }
    }
    ck_assert_double_eq(sums[1], sums[0]);
}

TEST(a_policy_that_is_none_is_refused)
{
    assert_refused(ek_data_parallel(ek_linear(2, 2), .offload = (ek_offload_policy)2), EK_E_INVALID,
                   "data_parallel: 2 is no offload policy; EK_OFFLOAD_NONE and");
    assert_refused(ek_data_parallel_model(ek_linear(2, 2), .offload = (ek_offload_policy)-1),
                   EK_E_INVALID, "data_parallel_model: -1 is no offload policy");
}
