/* Running statistics averaged over replicas. */
#include "kit/models.h"
#include "parallel_setup.h"

enum { CHANNELS = 3, LENGTH = 4 };

static ek_module *make_norm(ek_dtype dtype)
{
    ek_module *net = ek_sequential(ek_batch_norm1d(CHANNELS));
    assert_made(net);
    assert_ok(ek_module_to_dtype(net, dtype));
    return net;
}

static ek_tensor *on_cpu(ek_module *module, const char *path)
{
    ek_tensor *tensor = ek_module_tensor(module, path);
    assert_made(tensor);
    return ek_to_device(ek_detach(tensor), ek_cpu());
}

/* Mean and unbiased variance of a batch norm's input: what it keeps with a momentum of 1. */
static void statistics_of(ek_tensor *x, ek_tensor **mean, ek_tensor **var)
{
    ek_module *norm = ek_batch_norm1d(CHANNELS, .momentum = 1);
    assert_made(norm);
    assert_ok(ek_module_to_dtype(norm, EK_F64));
    assert_made(ek_apply(norm, x));
    *mean = ek_clone(ek_detach(ek_module_tensor(norm, "running_mean")));
    *var = ek_clone(ek_detach(ek_module_tensor(norm, "running_var")));
    ek_module_free(norm);
}

/* Samples per device, 0 past the last that takes part. */
static const struct {
    int batch, devices;
    ek_split_policy split;
    int64_t sizes[4];
} cases[] = {{8, 4, EK_SPLIT_CHUNK, {2, 2, 2, 2}}, {7, 4, EK_SPLIT_CHUNK, {2, 2, 2, 1}},
             {7, 3, EK_SPLIT_EVEN, {3, 2, 2}},     {5, 4, EK_SPLIT_CHUNK, {2, 2, 1}},
             {2, 4, EK_SPLIT_CHUNK, {1, 1}},       {1, 4, EK_SPLIT_CHUNK, {1}},
             {6, 1, EK_SPLIT_CHUNK, {6}}};
enum { CASES = sizeof cases / sizeof *cases };

TEST_LOOP(they_are_the_weighted_mean_of_the_replicas, 0, CASES)
{
    const double m = 0.1;
    double mean[CHANNELS] = {0}, var[CHANNELS] = {1, 1, 1};
    ek_module *model =
        held(ek_data_parallel(make_norm(EK_F64), ek_devices(test_kind(), cases[_i].devices),
                              .split = cases[_i].split, .running_stats = EK_RUNNING_STATS_AVERAGE));
    for (int step = 0; step < 4; step++) {
        int batch = cases[_i].batch;
        ek_tensor *x =
            normal(20 + (uint64_t)step, EK_SHAPE(batch, CHANNELS, LENGTH), EK_F64, ek_cpu());
        bool before = ek_set_grad_enabled(step % 2 == 0);
        assert_made(ek_apply(model, x));
        ek_set_grad_enabled(before);
        double batch_mean[CHANNELS] = {0}, batch_var[CHANNELS] = {0};
        int64_t start = 0;
        for (int d = 0; d < 4 && cases[_i].sizes[d]; d++) {
            int64_t size = cases[_i].sizes[d];
            ek_tensor *part_mean, *part_var;
            statistics_of(ek_narrow(x, 0, start, size), &part_mean, &part_var);
            for (int c = 0; c < CHANNELS; c++) {
                batch_mean[c] += (double)size / batch * element(part_mean, c);
                batch_var[c] += (double)size / batch * element(part_var, c);
            }
            start += size;
        }
        ck_assert_int_eq(start, batch);
        for (int c = 0; c < CHANNELS; c++) {
            mean[c] = (1 - m) * mean[c] + m * batch_mean[c];
            var[c] = (1 - m) * var[c] + m * batch_var[c];
        }
        assert_close(on_cpu(model, "0.running_mean"),
                     tensor_of(mean, EK_SHAPE(CHANNELS), EK_F64, ek_cpu()), 1e-13, 1e-15);
        assert_close(on_cpu(model, "0.running_var"),
                     tensor_of(var, EK_SHAPE(CHANNELS), EK_F64, ek_cpu()), 1e-13, 1e-15);
    }
    ck_assert_double_eq(element(on_cpu(model, "0.num_batches_tracked"), 0), 4);
}

TEST(the_mean_is_the_whole_batchs)
{
    ek_module *alone = held(make_norm(EK_F64));
    ek_module *model = held(ek_data_parallel(make_norm(EK_F64), ek_devices(test_kind(), 4),
                                             .dim = 2, .running_stats = EK_RUNNING_STATS_AVERAGE));
    for (int step = 0; step < 3; step++) {
        /* Cut along the last dimension: 3, 3, 3 and 1 values per sample. */
        ek_tensor *x = normal(30 + (uint64_t)step, EK_SHAPE(4, CHANNELS, 10), EK_F64, ek_cpu());
        assert_made(ek_apply(alone, x));
        assert_made(ek_apply(model, x));
        assert_close(on_cpu(model, "0.running_mean"), on_cpu(alone, "0.running_mean"), 1e-12,
                     1e-15);
    }
    /* All replicas evaluate with them. */
    ek_module_train(model, false);
    ek_module_train(alone, false);
    assert_made(ek_copy_(ek_module_tensor(alone, "0.running_var"), on_cpu(model, "0.running_var")));
    ek_tensor *x = normal(40, EK_SHAPE(4, CHANNELS, 10), EK_F64, ek_cpu());
    uint64_t version = ek_tensor_version(ek_module_tensor(model, "0.running_mean"));
    assert_close(ek_to_device(ek_apply(model, x), ek_cpu()), ek_apply(alone, x), 1e-12, 1e-12);
    ck_assert_uint_eq(ek_tensor_version(ek_module_tensor(model, "0.running_mean")), version);
}

TEST(gradients_are_the_same)
{
    ek_module *first = held(ek_data_parallel(make_norm(EK_F64), ek_devices(test_kind(), 3)));
    ek_module *average = held(ek_data_parallel(make_norm(EK_F64), ek_devices(test_kind(), 3),
                                               .running_stats = EK_RUNNING_STATS_AVERAGE));
    ek_tensor *a = NULL, *b = NULL;
    for (int i = 0; i < 2; i++) { /* two forwards, one backward */
        ek_tensor *x = normal(50 + (uint64_t)i, EK_SHAPE(7, CHANNELS, LENGTH), EK_F64, ek_cpu());
        ek_tensor *of_first = ek_sum(ek_pow_scalar(ek_apply(first, x), 3));
        ek_tensor *of_average = ek_sum(ek_pow_scalar(ek_apply(average, x), 3));
        a = a ? ek_add(a, of_first) : of_first;
        b = b ? ek_add(b, of_average) : of_average;
    }
    assert_ok(ek_backward(a));
    assert_ok(ek_backward(b));
    assert_close(ek_tensor_grad(ek_module_tensor(average, "0.weight")),
                 ek_tensor_grad(ek_module_tensor(first, "0.weight")), 0, 0);
}

/* ---- buffers of a user's own ---- */

typedef struct keeper {
    ek_module module;
    ek_tensor *same, *wide, *count, *idle; /* f32, f64, i64; never written */
} keeper;

/* Writes 0.1 to `same`; the first element of x to `wide` and `count`, unless that is negative. */
static ek_value keeper_forward(ek_module *module, const ek_args *args)
{
    keeper *self = (keeper *)module;
    ek_value named = ek_value_get(args->keywords, "x");
    ek_tensor *x = named.kind == EK_VALUE_TENSOR ? named.as.tensor : ek_arg_tensor(args, 0);
    double value;
    if (ek_item(ek_select(ek_f_flatten(x, 0, -1), 0, 0), &value) < 0)
        return ek_value_error();
    bool before = ek_set_grad_enabled(false);
    ek_fill_(self->same, 0.1);
    if (value >= 0) {
        ek_fill_(self->wide, value);
        ek_fill_(self->count, value);
    }
    ek_set_grad_enabled(before);
    return ek_value_of_tensor(x);
}

MODULE_TYPE(keeper, keeper)

static keeper *make_keeper(void)
{
    keeper *self = (keeper *)ek_module_new(&keeper_type);
    ek_module *module = &self->module;
    assert_made(self);
    assert_ok(ek_register_buffer(module, "same", &self->same, ek_zeros(EK_SHAPE(5))));
    assert_ok(ek_register_buffer(module, "idle", &self->idle, ek_full(0.3, EK_SHAPE(3))));
    assert_ok(ek_register_buffer(module, "wide", &self->wide,
                                 ek_full(8, EK_SHAPE(2, 2), .dtype = EK_F64)));
    assert_ok(ek_register_buffer(module, "count", &self->count,
                                 ek_full(8, EK_SHAPE(2), .dtype = EK_I64)));
    return self;
}

TEST(any_floating_buffer_that_was_written)
{
    keeper *self = make_keeper();
    ek_module *model = held(ek_data_parallel(&self->module, ek_devices(test_kind(), 3),
                                             .running_stats = EK_RUNNING_STATS_AVERAGE));
    uint64_t idle = ek_tensor_version(self->idle);
    /* Chunks (1 9), (2 9), (5): weights 2/5, 2/5, 1/5. */
    double x[] = {1, 9, 2, 9, 5};
    assert_made(ek_apply(model, tensor_of(x, EK_SHAPE(5), EK_F64, ek_cpu())));
    for (int i = 0; i < 4; i++)
        ck_assert(fabs(element(self->wide, i) - 2.2) <= 1e-15);
    ck_assert_double_eq(element(self->count, 0), 1); /* an integer: the first replica's */
    /* What is equal everywhere stays so to the bit. */
    for (int i = 0; i < 5; i++)
        ck_assert_double_eq(element(self->same, i), 0.1f);
    ck_assert_uint_eq(ek_tensor_version(self->idle), idle);
    ck_assert_double_eq(element(self->idle, 2), 0.3f);
    /* A replica that wrote nothing counts with what it was sent. */
    x[0] = -1;
    double sent = element(self->wide, 0);
    assert_made(ek_apply(model, tensor_of(x, EK_SHAPE(5), EK_F64, ek_cpu())));
    ck_assert(fabs(element(self->wide, 0) - (0.4 * sent + 0.4 * 2 + 0.2 * 5)) <= 1e-15);
    ck_assert_double_eq(element(self->count, 0), 1);
    /* Nobody wrote: nothing is averaged. */
    x[2] = x[4] = -1;
    uint64_t version = ek_tensor_version(self->wide);
    assert_made(ek_apply(model, tensor_of(x, EK_SHAPE(5), EK_F64, ek_cpu())));
    ck_assert_uint_eq(ek_tensor_version(self->wide), version);
}

TEST(a_buffer_with_a_gradient_stays_the_first_replicas)
{
    keeper *self = make_keeper();
    assert_ok(ek_tensor_set_requires_grad(self->wide, true));
    ek_module *model = held(ek_data_parallel(&self->module, ek_devices(test_kind(), 3),
                                             .running_stats = EK_RUNNING_STATS_AVERAGE));
    const double x[] = {1, 2, 5};
    assert_made(ek_apply(model, tensor_of(x, EK_SHAPE(3), EK_F64, ek_cpu())));
    ck_assert_double_eq(element(self->wide, 0), 1);
    ck_assert_double_eq(element(self->same, 0), 0.1f);
}

TEST(keywords_count_samples_too)
{
    /* The only tensor that is cut is a keyword; positional inputs hold none. */
    keeper *self = make_keeper();
    ek_module *model = held(ek_data_parallel(&self->module, ek_devices(test_kind(), 2),
                                             .running_stats = EK_RUNNING_STATS_AVERAGE));
    double x[] = {1, 9, 4};
    ek_tensor *cut = tensor_of(x, EK_SHAPE(3), EK_F64, ek_cpu());
    const ek_value_entry keywords[] = {{"x", EK_VALUE(cut)}};
    ek_value out = ek_forward_kw(model, ek_value_dict(keywords, 1), ek_value_of_int(1));
    ck_assert_int_ne(out.kind, EK_VALUE_ERROR);
    ck_assert(fabs(element(self->wide, 0) - 2) <= 1e-15); /* 2/3 x 1 + 1/3 x 4 */
}

TEST(wrong_policies_are_errors)
{
    ek_device_list devices = ek_devices(test_kind(), 2);
    assert_refused(ek_data_parallel(make_norm(EK_F64), devices, .broadcast_buffers = false,
                                    .running_stats = EK_RUNNING_STATS_AVERAGE),
                   EK_E_INVALID,
                   "data_parallel: EK_RUNNING_STATS_AVERAGE needs .broadcast_buffers");
    assert_refused(ek_data_parallel(make_norm(EK_F64), devices,
                                    .running_stats = (ek_running_stats)7),
                   EK_E_INVALID, "data_parallel: 7 is no policy for running statistics");
}
