/* EK_SHARD_PARAMETERS: a model that is larger than a device, and its parameters between calls.
 * test_sharded.c checks that training gives the numbers of training without sharding. */
#include <string.h>

#include "core/tensor.h"
#include "kit/devices.h"
#include "kit/held.h"
#include "nn/module_table.h"

FIXTURE(NULL, free_held)

#if defined(__SANITIZE_THREAD__) /* ThreadSanitizer is slow; the capacity is generous */
enum { WIDTH = 64 };
#else
enum { WIDTH = 512 };
#endif
enum { DEVICES = 4, LAYERS = 16, ROWS = 8, STEPS = 3 };

/* Linear layers of 1 MiB each. */
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
    ek_module *net = ek_sequential_of(parts, count);
    assert_made(net);
    return net;
}

typedef struct training {
    ek_module *net, *model, *criterion;
    ek_optimizer *optimizer;
} training;

/* Makes all parts, which are held. If the wrapper can't be made, `model` is NULL and the error is
 * pending. */
static training training_begin(ek_shard_policy shard)
{
    training t = {.net = large_net()};
    ek_device_list devices = ek_devices(test_kind(), DEVICES);
    t.model = ek_data_parallel_model(t.net, .device_ids = devices, .shard = shard);
    if (!t.model)
        return t;
    held(t.model);
    t.criterion = held(ek_data_parallel_criterion(ek_mse_loss(), devices));
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

static void limit_devices(uint64_t nbytes)
{
    for (int d = 0; d < DEVICES; d++)
        assert_ok(ek_memory_set_capacity(test_device(d), nbytes));
}

/* Bytes of the parameters; gradients have as many, and Adam's states twice as many. */
static uint64_t net_nbytes(const training *t)
{
    return (uint64_t)ek_module_numel(t->net) * sizeof(float);
}

/* ---- larger than a device ---- */

/* A quarter of all, two units, the gradients that a device may be ahead (autograd/run.h), and a few
 * more. All would be twice as much. */
static uint64_t capacity_of(const training *t)
{
    return net_nbytes(t) + 6 * (WIDTH + 1) * WIDTH * sizeof(float) + (8 << 20);
}

TEST(a_model_larger_than_a_device_trains)
{
    double expected[STEPS], loss;
    char hashes[2][65];
    assert_ok(test_devices_configure("4"));
    training whole = training_begin(EK_SHARD_OPTIMIZER);
    for (int i = 0; i < STEPS; i++)
        assert_ok(training_step(&whole, i, &expected[i]));
    assert_ok(ek_module_sha256(whole.net, hashes[0]));
    free_held();

    training t = training_begin(EK_SHARD_PARAMETERS);
    const uint64_t unit = (WIDTH + 1) * WIDTH * sizeof(float);
    /* cuBLAS has a workspace beside these. It makes the limit a loose one, and the next test checks
     * what a device keeps. */
    if (WIDTH != 64)
        limit_devices(capacity_of(&t) + (test_kind() == EK_CUDA ? 32 << 20 : 0));
    for (int i = 0; i < STEPS; i++) {
        assert_ok(training_step(&t, i, &loss));
        ck_assert_msg(memcmp(&loss, &expected[i], sizeof loss) == 0, "step %d: %.17g is not %.17g",
                      i, loss, expected[i]);
    }
    ek_data_parallel_stats stats;
    assert_ok(ek_data_parallel_get_stats(t.model, &stats));
    ck_assert_uint_eq(stats.shared_nbytes, 0);
    ck_assert_uint_gt(stats.gathered_nbytes, STEPS * DEVICES * net_nbytes(&t));
    ck_assert_uint_le(stats.gathered_nbytes, 2 * STEPS * DEVICES * (net_nbytes(&t) + unit));
    assert_ok(ek_module_sha256(t.net, hashes[1]));
    ck_assert_str_eq(hashes[1], hashes[0]);
}

/* A device keeps its shards; within a step it has at most two units beside them. */
TEST(a_device_keeps_its_range_and_two_units)
{
    double loss;
    assert_ok(test_devices_configure("4"));
    training t = training_begin(EK_SHARD_PARAMETERS);
    const uint64_t unit = (WIDTH + 1) * WIDTH * sizeof(float);
    for (int i = 0; i < 2; i++)
        assert_ok(training_step(&t, i, &loss));
    for (int d = 0; d < DEVICES; d++) {
        ek_memory_stats memory;
        assert_ok(ek_memory_get_stats(test_device(d), &memory));
        const uint64_t share = net_nbytes(&t) / DEVICES, slack = LAYERS * 64;
        ck_assert_uint_le(memory.at_peak[EK_MEMORY_GATHERED], 2 * unit + slack);
        ck_assert_uint_gt(memory.at_peak[EK_MEMORY_GATHERED], 0);
        ck_assert_uint_eq(memory.now[EK_MEMORY_GATHERED], 0); /* the step took them */
        ck_assert_uint_le(memory.now[EK_MEMORY_PARAMETER], share + slack);
        ck_assert_uint_le(memory.now[EK_MEMORY_GRADIENT], share + slack);
        ck_assert_uint_le(memory.now[EK_MEMORY_OPTIMIZER], 2 * (share + slack));
    }
}

/* Trains two steps, whose average is put into the model. */
static void train_and_average(const training *t, char hashes[2][65])
{
    double loss;
    ek_ema *ema = ek_ema_new(t->net, .decay = 0.9);
    assert_made(ema);
    for (int i = 0; i < 2; i++) {
        assert_ok(training_step(t, i, &loss));
        assert_ok(ek_ema_update(ema));
    }
    assert_ok(ek_ema_apply(ema));
    assert_ok(ek_module_sha256(t->net, hashes[0]));
    assert_ok(ek_ema_restore(ema));
    assert_ok(ek_module_sha256(t->net, hashes[1]));
    ek_ema_free(ema);
}

TEST(a_model_larger_than_a_device_is_averaged)
{
    char expected[2][65], hashes[2][65];
    if (test_kind() != EK_HOST) /* averages lie on cpu wherever parameters are */
        return;
    assert_ok(test_devices_configure("4"));
    training whole = training_begin(EK_SHARD_OPTIMIZER);
    train_and_average(&whole, expected);
    free_held();
    training t = training_begin(EK_SHARD_PARAMETERS);
    if (WIDTH != 64)
        limit_devices(capacity_of(&t));
    train_and_average(&t, hashes);
    for (int k = 0; k < 2; k++)
        ck_assert_str_eq(hashes[k], expected[k]);
}

/* Units and their casts are counted apart from shards until the sharding ends. */
TEST(units_have_a_category_until_they_stay)
{
    assert_ok(test_devices_configure("4"));
    ek_module *net = large_net(), *other = held(ek_linear(1, 1));
    ek_module *model = ek_data_parallel(net, .device_ids = ek_devices(test_kind(), DEVICES),
                                        .shard = EK_SHARD_PARAMETERS);
    assert_made(model);
    ek_tensor *weight = ek_module_tensor(net, "2.weight");
    const uint64_t shards = bytes_now(test_device(0), EK_MEMORY_PARAMETER);
    assert_ok(
        ek_register_parameter(other, "shared", NULL, weight)); /* the weight has no memory now */
    ek_tensor *x = ek_ones(EK_SHAPE(1, WIDTH), .device = test_device(0));
    ek_autocast region = ek_autocast_begin(EK_BF16);
    assert_made(ek_matmul(x, weight));
    ek_autocast_end(&region);
    ck_assert_uint_eq(bytes_now(test_device(0), EK_MEMORY_PARAMETER), shards);
    ck_assert_uint_ge(bytes_now(test_device(0), EK_MEMORY_GATHERED),
                      3 * weight->storage->nbytes / 2);
    assert_made(ek_data_parallel_unwrap(model));
    held(net);
    ck_assert_uint_eq(bytes_now(test_device(0), EK_MEMORY_GATHERED), 0);
    ck_assert_uint_ge(bytes_now(test_device(0), EK_MEMORY_PARAMETER),
                      (uint64_t)ek_module_numel(net) * sizeof(float));
    ck_assert_int_eq(weight->storage->category, EK_MEMORY_PARAMETER);
}

/* ---- reading and writing ---- */

static ek_tensor *outputs_of(const training *t, ek_tensor *x)
{
    return ek_value_tensor(ek_value_to_device(ek_forward(t->model, x), ek_cpu(), 0));
}

TEST(parameters_are_read_and_written_as_always)
{
    double before, after, norm;
    assert_ok(test_devices_configure("4"));
    training t = training_begin(EK_SHARD_PARAMETERS);
    ek_tensor *weight = ek_module_tensor(t.net, "2.weight");
    ek_tensor *x = ek_ones(EK_SHAPE(ROWS, WIDTH));
    ek_set_grad_enabled(false);
    assert_ok(ek_item(ek_sum(outputs_of(&t, x)), &before));
    for (int i = 0; i < 3; i++) { /* before the next forward, and after it */
        ek_scope scope = ek_scope_begin();
        assert_made(ek_mul_scalar_(weight, i == 1 ? 0.5 : 2));
        assert_ok(ek_item(ek_sum(outputs_of(&t, x)), &after));
        if (i == 1)
            ck_assert_double_eq(after, before);
        else
            ck_assert_double_ne(after, before);
        ek_scope_end(&scope);
    }
    /* A scope keeps what it reads, and gives it back. */
    uint64_t in_use = bytes_in_use(test_device(0));
    ek_scope scope = ek_scope_begin();
    for (int i = 0; i < LAYERS; i++) {
        char path[16];
        snprintf(path, sizeof path, "%d.weight", 2 * i);
        assert_ok(ek_item(ek_sum(ek_abs(ek_module_tensor(t.net, path))), &norm));
    }
    ck_assert_uint_gt(bytes_in_use(test_device(0)), net_nbytes(&t));
    ek_scope_end(&scope);
    ck_assert_uint_le(bytes_in_use(test_device(0)),
                      in_use + 2 * (WIDTH + 1) * WIDTH * sizeof(float));
    ek_set_grad_enabled(true);
}

/* Reads some weights, whose units then lie on the first device. */
static void read_weights(const training *t, int first, int end)
{
    for (int i = first; i < end; i++) {
        char path[16];
        double sum;
        snprintf(path, sizeof path, "%d.weight", 2 * i);
        assert_ok(ek_item(ek_sum(ek_module_tensor(t->net, path)), &sum));
    }
}

/* The unit's memory is taken at once, because the scope holds more than two units. */
TEST(a_write_beside_many_held_units_is_kept)
{
    double sum;
    static float ones[WIDTH * WIDTH];
    assert_ok(test_devices_configure("4"));
    training t = training_begin(EK_SHARD_PARAMETERS);
    for (int i = 0; i < WIDTH * WIDTH; i++)
        ones[i] = 1;
    ek_set_grad_enabled(false);
    ek_scope scope = ek_scope_begin();
    read_weights(&t, 0, 4);
    assert_ok(ek_set_data(ek_module_tensor(t.net, "18.weight"), ones, sizeof ones));
    read_weights(&t, 4, 7);
    assert_ok(ek_item(ek_sum(ek_module_tensor(t.net, "18.weight")), &sum));
    ck_assert_double_eq(sum, (double)WIDTH * WIDTH);
    ek_scope_end(&scope);
    ek_set_grad_enabled(true);
}

/* Device 0 has no samples, so that only the other devices' graphs know of the write. */
TEST(a_write_between_forward_and_backward_is_reported)
{
    assert_ok(test_devices_configure("2"));
    ek_module *net = large_net();
    ek_module *model = held(ek_data_parallel(net, .device_ids = ek_devices(test_kind(), 2),
                                             .shard = EK_SHARD_PARAMETERS, .chunks = {0, 4}));
    ek_tensor *y = ek_sum(ek_value_tensor(ek_forward(model, ek_ones(EK_SHAPE(4, WIDTH)))));
    assert_made(y);
    ek_set_grad_enabled(false);
    ek_scope scope = ek_scope_begin();
    assert_made(ek_mul_scalar_(ek_module_tensor(net, "18.weight"), 100));
    ek_scope_end(&scope);
    read_weights(&(training){.net = net}, 0, 4);
    ek_set_grad_enabled(true);
    assert_refused(ek_backward(y), EK_E_MODIFIED, "a write to the parameter");
}

/* ---- units ---- */

TEST(modules_are_marked_as_units)
{
    ek_data_parallel_stats stats[2];
    assert_refused(ek_shard_unit(NULL), EK_E_INVALID, "shard_unit: the module is NULL");
    assert_ok(test_devices_configure("2"));
    for (int marked = 0; marked < 2; marked++) {
        ek_manual_seed(1);
        ek_module *part = ek_sequential(ek_linear(8, 8), ek_linear(8, 8), ek_linear(8, 8));
        ek_module *net = ek_sequential(ek_linear(8, 8), part);
        if (marked)
            assert_ok(ek_shard_unit(part));
        ek_module *model = held(ek_data_parallel(net, .device_ids = ek_devices(test_kind(), 2),
                                                 .shard = EK_SHARD_PARAMETERS));
        double sum;
        assert_ok(ek_item(ek_sum(ek_module_tensor(net, "1.1.weight")), &sum));
        assert_ok(ek_data_parallel_get_stats(model, &stats[marked]));
    }
    ck_assert_uint_lt(stats[0].gathered_nbytes, 3 * 9 * 8 * sizeof(float));
    ck_assert_uint_ge(stats[1].gathered_nbytes, 3 * 9 * 8 * sizeof(float));
}

/* ---- the end of a sharding ---- */

TEST(what_fits_no_device_stays_in_its_wrapper)
{
    double loss, more;
    assert_ok(test_devices_configure("4"));
    training t = training_begin(EK_SHARD_PARAMETERS);
    assert_ok(training_step(&t, 0, &loss));
    for (int d = 0; d < DEVICES; d++)
        assert_ok(ek_memory_set_capacity(test_device(d),
                                         bytes_in_use(test_device(d)) + net_nbytes(&t) / 2));
    assert_refused(ek_data_parallel_unwrap(t.model), EK_E_OUT_OF_MEMORY, "is out of memory");
    limit_devices(0);
    assert_ok(training_step(&t, 1, &more)); /* nothing has changed */
    ck_assert_double_lt(more, loss + 1);
}

TEST(no_optimizer_steps_what_lost_its_wrapper)
{
    assert_ok(test_devices_configure("4"));
    ek_module *net = held(large_net());
    ek_module *model = ek_data_parallel(ek_module_retain(net), .shard = EK_SHARD_PARAMETERS,
                                        .device_ids = ek_devices(test_kind(), DEVICES));
    assert_made(model);
    ek_optimizer *optimizer = held(ek_sgd(net, .lr = 0.1));
    const uint64_t numel = (uint64_t)ek_module_numel(net) * sizeof(float);
    assert_ok(ek_memory_set_capacity(test_device(0), bytes_in_use(test_device(0)) + numel / 2));
    ek_module_free(model);
    limit_devices(0);
    ek_tensor *x = ek_to_device(ek_ones(EK_SHAPE(ROWS, WIDTH)), test_device(0));
    assert_ok(ek_backward(ek_sum(ek_apply(net, x))));
    assert_refused(ek_step(optimizer), EK_E_STATE, "a wrapper that was freed");
    assert_ok(ek_module_to_device(net, ek_cpu()));
    assert_ok(ek_step(optimizer));
}

TEST(a_module_that_could_not_be_sharded_anew_is_tried_again)
{
    assert_ok(test_devices_configure("2"));
    ek_module *net = large_net();
    ek_module *model = held(ek_data_parallel(net, .device_ids = ek_devices(test_kind(), 2),
                                             .shard = EK_SHARD_PARAMETERS));
    ek_tensor *x = ek_ones(EK_SHAPE(4, WIDTH));
    ek_scope scope = ek_scope_begin();
    assert_made(ek_value_tensor(ek_forward(model, x)));
    ek_scope_end(&scope);
    assert_ok(ek_register_buffer(net, "more", NULL,
                                 ek_to_device(ek_zeros(EK_SHAPE(4 << 20)), test_device(0))));
    assert_ok(ek_memory_set_capacity(test_device(1), bytes_in_use(test_device(1)) + (1 << 20)));
    for (int i = 0; i < 2; i++)
        assert_refused(ek_forward(model, x), EK_E_OUT_OF_MEMORY, "is out of memory");
    assert_ok(ek_memory_set_capacity(test_device(1), 0));
    assert_made(ek_value_tensor(ek_forward(model, x)));
}
