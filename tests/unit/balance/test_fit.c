/* ek_fit: for each means there is a capacity that needs it; what is chosen runs as expected;
 * nothing else changes. */
#include "core/device.h"
#include "kit/devices.h"
#include "kit/held.h"
#include "kit/models.h"

NAMES_DEVICES

FIXTURE(four_devices, free_held)

enum { WIDTH = 24, BLOCKS = 4, CLASSES = 3, BATCH = 240, FEW = 8, MOST_USED = 2 };

/* How many devices are used: two, but one where a cut would help as much as the means. */
static int used = MOST_USED;

/* ---- a net, and what it needs ---- */

static ek_module *make_net(bool norm, ek_dtype dtype)
{
    ek_manual_seed(3);
    ek_module *net = ek_sequential_of(NULL, 0);
    for (int b = 0; b < BLOCKS; b++) {
        ek_module *block =
            ek_sequential(ek_linear(WIDTH, WIDTH), ek_tanh(), ek_linear(WIDTH, WIDTH), ek_tanh());
        if (norm)
            ek_module_list_append(block, ek_batch_norm1d(WIDTH));
        ek_module_list_append(net, block);
    }
    ek_module_list_append(net, ek_linear(WIDTH, CLASSES));
    assert_made(net);
    assert_ok(ek_module_to_dtype(net, dtype));
    return net;
}

static ek_optimizer *make_adam(ek_module *model, void *user)
{
    return ek_adam(model);
}

static ek_value input_of(int64_t batch, ek_dtype dtype)
{
    ek_generator *generator = ek_generator_new(5);
    ek_tensor *x = ek_empty(EK_SHAPE(batch, WIDTH), .dtype = dtype);
    assert_ok(ek_normal_(x, 0, 1, generator));
    ek_generator_free(generator);
    return EK_VALUE(x);
}

static ek_value target_of(int64_t batch)
{
    return EK_VALUE(ek_zeros(EK_SHAPE(batch), .dtype = EK_I64));
}

static ek_device_list used_devices(void)
{
    return ek_devices(test_kind(), used);
}

static void set_capacities(uint64_t first, uint64_t second)
{
    assert_ok(ek_memory_set_capacity(test_device(0), first));
    assert_ok(ek_memory_set_capacity(test_device(1), second));
}

/* Trains a new net as the result says, for three steps, and writes the peaks. Returns a status. */
static int run_as(const ek_fit_result *fit, bool norm, ek_dtype dtype, int64_t batch,
                  uint64_t *peaks)
{
    ek_module *model = ek_fit_model(fit, make_net(norm, dtype));
    ek_module *criterion = ek_fit_criterion(fit, ek_cross_entropy_loss());
    ek_optimizer *optimizer = model ? make_adam(model, NULL) : NULL;
    int rc = ek_error_status();
    for (int d = 0; d < used; d++)
        assert_ok(ek_memory_reset_peak(test_device(d)));
    for (int step = 0; step < 3 && rc == 0; step++) {
        ek_scope scope = ek_scope_begin();
        ek_autocast autocast = ek_autocast_begin(fit->autocast);
        rc = ek_train_step(NULL, .model = model, .criterion = criterion, .optimizer = optimizer,
                           .input = input_of(batch, dtype), .target = target_of(batch),
                           .micro_batches = fit->micro_batches);
        ek_autocast_end(&autocast);
        ek_scope_end(&scope);
    }
    ek_optimizer_free(optimizer);
    ek_module_free(model);
    ek_module_free(criterion);
    for (int d = 0; d < used; d++) {
        ek_memory_stats stats;
        assert_ok(ek_memory_get_stats(test_device(d), &stats));
        peaks[d] = stats.peak;
        assert_ok(ek_memory_trim(test_device(d)));
    }
    return rc;
}

static uint64_t larger(const uint64_t *peaks)
{
    return peaks[0] > peaks[1] ? peaks[0] : peaks[1];
}

/* ---- one means at a time ---- */

enum { CHECKPOINTS, STATE, PARAMETERS, OFFLOAD, AUTOCAST, PARTS, MEANS };

static ek_fit_result plain_training(void)
{
    ek_fit_result plain = {.wrapper = EK_DEFAULTS(ek_data_parallel_options), .autocast = EK_F32};
    plain.wrapper.device_ids = used_devices();
    return plain;
}

/* Returns the largest peak of a few trainings, with the means or without. Peaks vary with the order
 * of threads. */
static uint64_t peak_of(int means, int64_t batch, ek_dtype dtype)
{
    uint64_t most = 0;
    ek_fit_result training = plain_training();
    if (means == CHECKPOINTS)
        strcpy(training.checkpointed, "0,1,2,3");
    if (means == STATE || means == PARAMETERS)
        training.wrapper.shard = means == STATE ? EK_SHARD_OPTIMIZER : EK_SHARD_PARAMETERS;
    if (means == OFFLOAD)
        training.wrapper.offload = EK_OFFLOAD_OPTIMIZER;
    if (means == AUTOCAST)
        training.autocast = EK_BF16;
    if (means == PARTS)
        training.micro_batches = 4;
    set_capacities(0, 0);
    for (int i = 0; i < 4; i++) {
        uint64_t peaks[MOST_USED] = {0};
        assert_ok(run_as(&training, false, dtype, batch, peaks));
        most = larger(peaks) > most ? larger(peaks) : most;
    }
    return most;
}

static int fit_with(ek_fit_result *fit, int means, int64_t batch, bool norm, ek_dtype dtype)
{
    ek_module *net = make_net(norm, dtype), *criterion = ek_cross_entropy_loss();
    ek_scope scope = ek_scope_begin();
    int rc = ek_fit(fit, .module = net, .criterion = criterion, .optimizer = make_adam,
                    .input = input_of(batch, dtype), .target = target_of(batch),
                    .device_ids = used_devices(), .headroom = 0,
                    .log = getenv("FIT_LOG") ? stderr : NULL,
                    .checkpoint = means == CHECKPOINTS || means == MEANS,
                    .shard = means == STATE                          ? EK_SHARD_OPTIMIZER
                             : means == PARAMETERS || means == MEANS ? EK_SHARD_PARAMETERS
                                                                     : EK_SHARD_NONE,
                    .offload = means == OFFLOAD || means == MEANS, .autocast = means == AUTOCAST,
                    .micro_batches = means == PARTS   ? 8
                                     : means == MEANS ? 0
                                                      : 1);
    ek_scope_end(&scope);
    ek_module_free(net);
    ek_module_free(criterion);
    return rc;
}

/* The result has this means alone, was measured within the capacity, and runs as expected. */
static void assert_chosen(const ek_fit_result *fit, int means, int64_t batch, ek_dtype dtype,
                          uint64_t capacity)
{
    uint64_t peaks[MOST_USED] = {0};
    ck_assert_int_eq(fit->checkpointed_count > 0, means == CHECKPOINTS);
    ck_assert_int_eq(fit->wrapper.shard != EK_SHARD_NONE, means == STATE || means == PARAMETERS);
    ck_assert_int_eq(fit->wrapper.offload != EK_OFFLOAD_NONE, means == OFFLOAD);
    ck_assert_int_eq(fit->autocast == EK_BF16, means == AUTOCAST);
    ck_assert_int_eq(fit->micro_batches > 1, means == PARTS);
    ck_assert_int_eq(fit->expected.batch, batch);
    ck_assert_int_eq(fit->expected.device_count, used);
    ck_assert_double_gt(fit->expected.step_seconds, 0);
    ck_assert_int_ge(fit->expected.means_count, 1);
    ck_assert_int_gt(fit->expected.means[0].saved, 0);
    assert_ok(run_as(fit, false, dtype, batch, peaks));
    for (int d = 0; d < used; d++) {
        uint64_t expected = fit->expected.devices[d].peak, sum = 0;
        ck_assert_uint_le(expected, capacity);
        /* The order in which devices finish moves the peak of few bytes. */
        const double near = batch == FEW ? 0.5 : 0.05;
        ck_assert_double_le(fabs((double)expected / (double)peaks[d] - 1), near);
        for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
            sum += fit->expected.devices[d].now[c];
        ck_assert_uint_eq(sum, expected);
    }
}

/* Devices hold little but parameters, gradients and state in a batch of FEW, so that no cut helps.
 */
TEST_LOOP(a_means_is_chosen_where_it_is_needed, 0, MEANS)
{
    const ek_dtype dtype = _i == AUTOCAST ? EK_F32 : EK_F64;
    const int64_t batch = _i == STATE || _i == PARAMETERS || _i == OFFLOAD ? FEW : BATCH;
    ek_fit_result fit;
    used = batch == FEW ? 2 : 1;
    uint64_t plain = peak_of(MEANS, batch, dtype), with_it = peak_of(_i, batch, dtype);
    ck_assert_uint_lt(with_it + 2000, plain);
    /* The capacity lies halfway, because a rare order of threads adds up to a fifth to the peak
     * with the means. */
    uint64_t capacity = with_it + (plain - with_it) / 2;
    set_capacities(capacity, capacity);
    assert_ok(fit_with(&fit, _i, batch, false, dtype));
    assert_chosen(&fit, _i, batch, dtype, capacity);
}

TEST(with_room_there_is_no_need)
{
    ek_fit_result fit;
    uint64_t peaks[MOST_USED] = {0}, plain = peak_of(MEANS, BATCH, EK_F64);
    set_capacities(plain, plain);
    assert_ok(fit_with(&fit, STATE + MEANS, BATCH, false, EK_F64));
    ck_assert_int_eq(fit.micro_batches, 1);
    ck_assert_int_eq(fit.expected.means_count, 0);
    assert_ok(run_as(&fit, false, EK_F64, BATCH, peaks));
    ck_assert(fit.larger[0].batch == BATCH * 5 / 4 && fit.larger[1].batch == 2 * BATCH);
    ck_assert(!fit.larger[1].fits && fit.larger[1].missing > 0);
}

TEST(samples_go_where_memory_is)
{
    ek_fit_result fit;
    uint64_t peaks[MOST_USED] = {0}, plain = peak_of(MEANS, BATCH, EK_F64);
    set_capacities(plain * 3 / 2, plain * 2 / 3);
    assert_ok(fit_with(&fit, STATE + MEANS, BATCH, false, EK_F64));
    ck_assert_int_gt(fit.wrapper.chunks[0], fit.wrapper.chunks[1]);
    ck_assert_int_eq(fit.wrapper.chunks[0] + fit.wrapper.chunks[1], BATCH);
    ck_assert_str_eq(fit.expected.means[fit.expected.means_count - 1].name, "uneven cut");
    assert_ok(run_as(&fit, false, EK_F64, BATCH, peaks));
}

/* All means together go where none alone does. */
TEST(means_are_combined)
{
    ek_fit_result fit;
    uint64_t peaks[MOST_USED] = {0}, least = UINT64_MAX;
    for (int means = 0; means < MEANS; means++) {
        uint64_t peak = means == AUTOCAST ? UINT64_MAX : peak_of(means, BATCH, EK_F64);
        least = peak < least ? peak : least;
    }
    set_capacities(least * 2 / 3, least * 2 / 3);
    assert_ok(fit_with(&fit, MEANS, BATCH, false, EK_F64));
    ck_assert_int_ge(fit.expected.means_count, 2);
    assert_ok(run_as(&fit, false, EK_F64, BATCH, peaks));
    ck_assert_uint_le(larger(peaks), least * 2 / 3);
}

/* Micro-batches change what batch norm computes: they have to be asked for. */
TEST(batch_norm_is_not_cut_unasked)
{
    ek_fit_result fit;
    uint64_t peaks[MOST_USED] = {0};
    ek_fit_result training = plain_training();
    set_capacities(0, 0);
    assert_ok(run_as(&training, true, EK_F64, BATCH, peaks));
    set_capacities(larger(peaks) * 3 / 4, larger(peaks) * 3 / 4);
    ck_assert_int_eq(fit_with(&fit, STATE + MEANS, BATCH, true, EK_F64), EK_E_OUT_OF_MEMORY);
    ek_error_clear();
    assert_ok(fit_with(&fit, PARTS, BATCH, true, EK_F64));
    ck_assert_int_gt(fit.micro_batches, 1);
}

/* A checkpoint refuses modules that wait for other replicas. */
TEST(modules_that_wait_are_not_checkpointed)
{
    ek_fit_result fit;
    ek_module *net = held(ek_convert_sync_batch_norm(make_net(true, EK_F64)));
    ek_module *criterion = held(ek_cross_entropy_loss());
    set_capacities(0, 0);
    assert_ok(ek_fit(&fit, .module = net, .criterion = criterion, .optimizer = make_adam,
                     .input = input_of(BATCH, EK_F64), .target = target_of(BATCH),
                     .device_ids = used_devices()));
    ck_assert_int_eq(fit.micro_batches, 1);
    ck_assert_int_eq(fit.checkpointed_count, 0);
}

/* A checkpoint refuses modules that write to their inputs, and ek_fit finds out. */
static ek_value writer_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *x = ek_arg_tensor(args, 0);
    for (int i = 0; x && i < 4; i++) /* keeps what a checkpoint would save */
        x = i == 0 ? ek_add_(x, x) : ek_f_tanh(x);
    return ek_value_of_tensor(x);
}

MODULE_TYPE(writer, ek_module)

TEST(what_a_checkpoint_refuses_is_left_out)
{
    ek_fit_result fit;
    uint64_t plain = peak_of(MEANS, BATCH, EK_F64);
    ek_module *net = held(make_net(false, EK_F64)), *criterion = held(ek_cross_entropy_loss());
    ek_module_list_append(net, ek_module_new(&writer_type));
    set_capacities(plain * 3 / 4, plain * 3 / 4);
    assert_ok(ek_fit(&fit, .module = net, .criterion = criterion, .optimizer = make_adam,
                     .input = input_of(BATCH, EK_F64), .target = target_of(BATCH),
                     .device_ids = used_devices()));
    ck_assert_ptr_null(strstr(fit.checkpointed, "5"));
    ck_assert_uint_gt(fit.expected.devices[0].peak, 0);
}

/* ---- what can't fit ---- */

TEST(what_is_missing_is_said)
{
    enum { SOME_FIT = 250000 };
    ek_fit_result fit;
    unsigned long long missing;
    for (int round = 0; round < 2; round++) {
        uint64_t capacity = round ? SOME_FIT : 12000;
        set_capacities(capacity, capacity);
        ck_assert_int_eq(fit_with(&fit, MEANS + 1, BATCH, false, EK_F64), EK_E_OUT_OF_MEMORY);
        ck_assert_ptr_nonnull(strstr(ek_error_message(), round ? "a batch of 240 doesn't fit"
                                                               : "not even a sample per device"));
        const char *lacks = strstr(ek_error_message(), " lacks ");
        ck_assert_ptr_nonnull(lacks);
        ck_assert_int_eq(sscanf(lacks, " lacks %llu bytes", &missing), 1);
        ck_assert_uint_gt(missing, 0);
        ek_error_clear();
    }
    /* With that much more, and a little, the batch fits. */
    set_capacities(SOME_FIT + missing * 11 / 10, SOME_FIT + missing * 11 / 10);
    assert_ok(fit_with(&fit, MEANS + 1, BATCH, false, EK_F64));
}

/* ---- nothing changes ---- */

typedef struct traces {
    char parameters[65];
    uint32_t next;
    ek_memory_stats stats[MOST_USED];
} traces;

static traces look(ek_module *net)
{
    traces t;
    memset(&t, 0, sizeof t);
    assert_ok(ek_module_sha256(net, t.parameters));
    for (int d = 0; d < used; d++) {
        assert_ok(ek_memory_trim(test_device(d)));
        assert_ok(ek_memory_get_stats(test_device(d), &t.stats[d]));
    }
    return t;
}

TEST_LOOP(leaves_no_trace, 0, 2)
{
    ek_fit_result fit;
    set_capacities(_i ? 20000 : 0, _i ? 20000 : 0);
    ek_module *net = held(make_net(true, EK_F64)), *criterion = held(ek_cross_entropy_loss());
    ek_tensor *there = ek_ones(EK_SHAPE(100), .device = test_device(0));
    ek_manual_seed(77);
    uint32_t next = ek_random_u32(NULL);
    ek_manual_seed(77);
    traces before = look(net);
    int rc = ek_fit(&fit, .module = net, .criterion = criterion, .optimizer = make_adam,
                    .input = input_of(BATCH, EK_F64), .target = target_of(BATCH),
                    .device_ids = used_devices());
    ck_assert_int_eq(rc, _i ? EK_E_OUT_OF_MEMORY : 0);
    ek_error_clear();
    traces after = look(net);
    ck_assert_str_eq(before.parameters, after.parameters);
    ck_assert_double_eq(element(ek_module_tensor(net, "0.4.num_batches_tracked"), 0), 0);
    ck_assert_ptr_null(ek_tensor_grad(ek_module_tensor(net, "0.0.weight")));
    ck_assert_uint_eq(ek_random_u32(NULL), next);
    ck_assert(ek_grad_enabled());
    for (int d = 0; d < used; d++) {
        ck_assert_uint_eq(before.stats[d].in_use, after.stats[d].in_use);
        ck_assert_uint_eq(before.stats[d].peak, after.stats[d].peak);
    }
    ck_assert_ptr_nonnull(there);
}

static ek_optimizer *fail_to_make(ek_module *model, void *user)
{
    return NULL;
}

/* ---- errors ---- */

#define fit_refused(status, part, ...) assert_refused(ek_fit(&fit, __VA_ARGS__), status, part)

TEST(bad_input)
{
    ek_fit_result fit;
    ek_module *net = held(make_net(false, EK_F64)), *criterion = held(ek_cross_entropy_loss());
    ek_value x = input_of(6, EK_F64), y = target_of(6);
    assert_refused(ek_fit(NULL, .module = net), EK_E_INVALID, "the result is NULL");
    fit_refused(EK_E_INVALID, "module is missing", .criterion = criterion);
    fit_refused(EK_E_INVALID, "criterion is missing", .module = net);
    fit_refused(EK_E_INVALID, "makes an optimizer is missing", .module = net,
                .criterion = criterion);
#define JOB .module = net, .criterion = criterion, .optimizer = make_adam
    fit_refused(EK_E_INVALID, "the input is missing", JOB);
    fit_refused(EK_E_INVALID, "headroom is a share", JOB, .input = x, .headroom = 1);
    fit_refused(EK_E_INVALID, "7 is no shard policy", JOB, .input = x, .shard = 7);
    fit_refused(EK_E_INVALID, "-1 micro-batches", JOB, .input = x, .micro_batches = -1);
    fit_refused(EK_E_INVALID, "whole batch", JOB, .input = ek_value_of_int(3));
    fit_refused(EK_E_SHAPE, "", JOB, .input = x, .target = target_of(5));
    fit_refused(EK_E_STATE, "", .module = net, .criterion = criterion, .optimizer = fail_to_make,
                .input = x, .target = y);
    assert_ok(ek_module_to_device(net, test_device(0)));
    fit_refused(EK_E_INVALID, "the module has to be on cpu", JOB, .input = x, .target = y);
    ck_assert_ptr_null(ek_fit_model(NULL, make_net(false, EK_F64)));
    ek_error_clear();
    ck_assert_ptr_null(ek_fit_model(&fit, NULL));
    ek_error_clear();
    ck_assert_ptr_null(ek_fit_criterion(NULL, ek_mse_loss()));
    ek_error_clear();
    ck_assert_ptr_null(ek_fit_criterion(&fit, NULL));
    ek_error_clear();
    assert_refused(ek_fit_print(NULL, stdout), EK_E_INVALID, "the result is NULL");
    assert_refused(ek_fit_print(&fit, NULL), EK_E_INVALID, "the stream is NULL");
}

/* ---- sentences ---- */

TEST(a_result_in_sentences)
{
    static char text[4000];
    ek_fit_result fit;
    used = 1;
    uint64_t capacity = peak_of(CHECKPOINTS, BATCH, EK_F64) + 2000;
    set_capacities(capacity, capacity);
    assert_ok(fit_with(&fit, CHECKPOINTS, BATCH, false, EK_F64));
    FILE *stream = fmemopen(text, sizeof text, "w");
    assert_ok(ek_fit_print(&fit, stream));
    fclose(stream);
    ck_assert_ptr_nonnull(strstr(text, "A batch of 240 fits with "));
    ck_assert_ptr_nonnull(strstr(text, "checkpointed module"));
    ck_assert_ptr_nonnull(strstr(text, "; devices get "));
    ck_assert_ptr_nonnull(strstr(text, "on the fullest device"));
    ck_assert_ptr_nonnull(strstr(text, "A batch of 300 would "));
    ck_assert_ptr_nonnull(strstr(text, "A batch of 480 would "));
}
