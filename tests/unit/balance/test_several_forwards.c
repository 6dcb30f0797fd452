/* Several forwards before one backward, with batch normalisation in training mode: a critic's real,
 * fake and interpolated batches. */
#include "balance_setup.h"
#include "kit/models.h"
#include "kit/tensors.h"

enum { INPUTS = 3, PASSES = 3 };

typedef enum mode { SINGLE, CLASSIC, BALANCED, MODES } mode;

static const struct {
    mode mode;
    int devices, batch;
    bool broadcast_buffers;
    ek_running_stats running_stats;
} cases[] = {
    {SINGLE, 1, 6, true, EK_RUNNING_STATS_FIRST},
    {CLASSIC, 3, 9, true, EK_RUNNING_STATS_FIRST},
    {CLASSIC, 3, 8, true, EK_RUNNING_STATS_FIRST}, /* chunks of 3, 3, 2 */
    {CLASSIC, 3, 8, false, EK_RUNNING_STATS_FIRST},
    {CLASSIC, 3, 8, true, EK_RUNNING_STATS_AVERAGE},
    {CLASSIC, 4, 9, true, EK_RUNNING_STATS_FIRST}, /* 3, 3, 3: a device stays idle */
    {BALANCED, 3, 9, true, EK_RUNNING_STATS_FIRST},
    {BALANCED, 3, 8, true, EK_RUNNING_STATS_FIRST},
    {BALANCED, 3, 8, false, EK_RUNNING_STATS_FIRST},
    {BALANCED, 3, 8, true, EK_RUNNING_STATS_AVERAGE},
};
enum { CASES = sizeof cases / sizeof *cases };

/* The same numbers each time. */
static ek_module *make_critic(int index)
{
    ek_manual_seed(7);
    ek_module *net = ek_sequential(ek_linear(INPUTS, 5), ek_batch_norm1d(5), ek_tanh(),
                                   ek_linear(5, 4), ek_batch_norm1d(4), ek_tanh(), ek_linear(4, 1));
    assert_made(net);
    assert_ok(ek_module_to_dtype(net, EK_F64));
    ek_device_list devices = ek_devices(test_kind(), cases[index].devices);
    ek_module *model =
        cases[index].mode == BALANCED
            ? ek_data_parallel_model(net, devices, .running_stats = cases[index].running_stats,
                                     .broadcast_buffers = cases[index].broadcast_buffers)
            : ek_data_parallel(net, devices, .running_stats = cases[index].running_stats,
                               .broadcast_buffers = cases[index].broadcast_buffers);
    assert_made(model);
    return model;
}

/* The outputs of all devices, joined. */
static ek_tensor *criticise(ek_module *model, ek_tensor *x)
{
    ek_value out = ek_forward(model, x);
    if (out.kind == EK_VALUE_LIST) {
        ek_value parts[EK_MAX_DEVICES];
        int count = ek_value_length(out);
        for (int i = 0; i < count; i++)
            parts[i] = ek_value_at(out, i);
        out = ek_gather_value(parts, count, test_device(0), 0);
    }
    ek_tensor *joined = ek_value_tensor(out);
    assert_made(joined);
    return joined;
}

/* What one pass adds to the loss: the mean of the critic's values; of the last, a penalty on the
 * gradient with respect to its input. */
static ek_tensor *pass_loss(ek_module *model, int pass, int batch)
{
    ek_tensor *x =
        ek_to_device(normal(60 + (uint64_t)pass, EK_SHAPE(batch, INPUTS), EK_F64, ek_cpu()),
                     test_device(0));
    if (pass < 2) {
        ek_tensor *value = ek_mean(ek_square(criticise(model, x)));
        return pass == 0 ? ek_mul_scalar(value, -1) : value;
    }
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *out = ek_sum(criticise(model, x)), *gradient;
    assert_ok(ek_grad(.outputs = &out, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &gradient, .create_graph = true));
    return ek_mul_scalar(ek_mean(ek_square(gradient)), 10);
}

static int same_gradient(const char *path, ek_tensor *parameter, void *user)
{
    ek_tensor *wanted = ek_tensor_grad(ek_module_tensor(user, path));
    assert_made(wanted);
    if (strcmp(path, "0.bias") == 0 || strcmp(path, "3.bias") == 0) {
        /* Batch normalisation takes it away: rounding noise. */
        assert_close(ek_tensor_grad(parameter), wanted, 0, 1e-12);
        return 0;
    }
    assert_close_norm(ek_tensor_grad(parameter), wanted, 1e-11);
    return 0;
}

TEST_LOOP(gradients_are_the_sum_of_separate_passes, 0, CASES)
{
    ek_module *together = held(make_critic(_i)), *separate = held(make_critic(_i));
    for (int step = 0; step < 2; step++) {
        ek_tensor *sum = NULL;
        ek_module_zero_grad(together);
        ek_module_zero_grad(separate);
        for (int pass = 0; pass < PASSES; pass++) {
            ek_tensor *loss = pass_loss(together, pass, cases[_i].batch);
            sum = sum ? ek_add(sum, loss) : loss;
        }
        assert_ok(ek_backward(sum));
        for (int pass = 0; pass < PASSES; pass++)
            assert_ok(ek_backward(pass_loss(separate, pass, cases[_i].batch)));
        assert_ok(ek_module_parameters(together, same_gradient, separate));
    }
    assert_close(ek_module_tensor(together, "1.running_mean"),
                 ek_module_tensor(separate, "1.running_mean"), 1e-13, 1e-15);
}

TEST_LOOP(an_extra_forward_changes_no_gradient, 0, CASES)
{
    ek_module *plain = held(make_critic(_i)), *extra = held(make_critic(_i));
    ek_tensor *loss = pass_loss(plain, 1, cases[_i].batch);
    assert_ok(ek_backward(loss));
    loss = pass_loss(extra, 1, cases[_i].batch);
    assert_made(criticise(extra, normal(80, EK_SHAPE(cases[_i].batch, INPUTS), EK_F64, ek_cpu())));
    assert_ok(ek_backward(loss));
    assert_ok(ek_module_parameters(extra, same_gradient, plain));
    /* And one without gradients, as an evaluation in between. */
    loss = pass_loss(extra, 1, cases[_i].batch);
    bool before = ek_set_grad_enabled(false);
    assert_made(criticise(extra, normal(81, EK_SHAPE(cases[_i].batch, INPUTS), EK_F64, ek_cpu())));
    ek_module_train(extra, false);
    assert_made(criticise(extra, normal(82, EK_SHAPE(cases[_i].batch, INPUTS), EK_F64, ek_cpu())));
    ek_set_grad_enabled(before);
    ek_module_zero_grad(extra);
    assert_ok(ek_backward(loss));
    assert_ok(ek_module_parameters(extra, same_gradient, plain));
}

TEST_LOOP(parameters_are_sent_once_per_step, 0, CASES)
{
    ek_module *critic = held(make_critic(_i));
    ek_optimizer *optimizer = held(ek_adam(critic));
    uint64_t nbytes = sizeof(double) * (uint64_t)ek_module_numel(critic);
    uint64_t others = (uint64_t)cases[_i].devices - 1;
    for (uint64_t step = 1; step <= 3; step++) {
        ek_tensor *sum = NULL;
        for (int pass = 0; pass < PASSES; pass++) {
            ek_tensor *loss = pass_loss(critic, pass, cases[_i].batch);
            sum = sum ? ek_add(sum, loss) : loss;
        }
        ek_zero_grad(optimizer);
        assert_ok(ek_backward(sum));
        assert_ok(ek_step(optimizer));
        ek_data_parallel_stats stats;
        assert_ok(ek_data_parallel_get_stats(critic, &stats));
        ck_assert_uint_eq(stats.forwards, others ? step * PASSES : 0);
        ck_assert_uint_eq(stats.parameter_broadcasts, others ? step : 0);
        /* Of 9 samples on four devices the fourth gets none, and nothing else either. */
        if (cases[_i].devices < 4)
            ck_assert_uint_eq(stats.parameter_nbytes, step * nbytes * others);
        else
            ck_assert_uint_eq(stats.parameter_nbytes, step * nbytes * 2);
    }
}

/* ---- the balanced wrappers and replication ---- */

typedef struct told {
    ek_module module;
    int index, count;
} told;

static int told_calls, told_releases;

static void count_release(void *context)
{
    told_releases++;
}

static int told_replicated(ek_module *module, ek_replication *replication)
{
    told *self = (told *)module;
    self->index = replication->index;
    self->count = replication->count;
    replication->release = count_release;
    told_calls++;
    return 0;
}

/* x + index / count; of several inputs, the mean of the first so changed. */
static ek_value told_forward(ek_module *module, const ek_args *args)
{
    told *self = (told *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    if (self->count)
        x = ek_add_scalar(x, (double)self->index / self->count);
    return ek_value_of_tensor(args->count > 1 ? ek_mean(x) : x);
}

MODULE_TYPE_WITH(told, told, .replicated = told_replicated)

TEST(balanced_wrappers_tell_their_modules)
{
    ek_device_list devices = ek_devices(test_kind(), 4);
    ek_module *model = held(ek_data_parallel_model(ek_module_new(&told_type), devices));
    ek_module *criterion = held(ek_data_parallel_criterion(ek_module_new(&told_type), devices));
    assert_ok(ek_patch_replication_callback(model));
    assert_ok(ek_patch_replication_callback(criterion));
    told_calls = told_releases = 0;
    ek_tensor *x = ek_zeros(EK_SHAPE(6, 2));
    ek_value out = ek_forward(model, x); /* chunks of 2, 2, 2 */
    ck_assert_int_eq(ek_value_length(out), 3);
    ck_assert_int_eq(told_calls, 3);
    ck_assert_int_eq(told_releases, 1);
    for (int i = 0; i < 3; i++)
        ck_assert_double_eq(element(ek_value_tensor(ek_value_at(out, i)), 3), (float)(i / 3.0));
    /* The criterion adds as much once more: the mean of 0, 2/3, 4/3. */
    assert_near(value_of(ek_loss(criterion, out, x)), 2 / 3.0, 1e-6);
    ck_assert_int_eq(told_calls, 6);
    ck_assert_int_eq(told_releases, 2);
    /* Plain calls: none. */
    ek_module_train(model, false);
    out = ek_forward(model, x);
    ck_assert_double_eq(element(ek_value_tensor(out), 11), 0);
    assert_near(value_of(ek_loss(criterion, ek_full(3, EK_SHAPE(6, 2)), x)), 3, 0);
    ck_assert_int_eq(told_calls, 6);
    ek_data_parallel_stats stats;
    assert_ok(ek_data_parallel_get_stats(model, &stats));
    ck_assert_uint_eq(stats.forwards, 1);
    assert_ok(ek_data_parallel_get_stats(criterion, &stats));
    ck_assert_uint_eq(stats.forwards, 1);
}

TEST(balanced_statistics_are_averaged)
{
    ek_device_list devices = ek_devices(test_kind(), 3);
    ek_module *norms[2] = {ek_batch_norm1d(INPUTS), ek_batch_norm1d(INPUTS)}, *models[2];
    for (int i = 0; i < 2; i++)
        assert_ok(ek_module_to_dtype(norms[i], EK_F64));
    models[0] = ek_data_parallel(norms[0], devices, .running_stats = EK_RUNNING_STATS_AVERAGE);
    models[1] =
        ek_data_parallel_model(norms[1], devices, .running_stats = EK_RUNNING_STATS_AVERAGE);
    for (int step = 0; step < 2; step++) {
        ek_tensor *x = normal(90 + (uint64_t)step, EK_SHAPE(8, INPUTS), EK_F64, ek_cpu());
        ek_value parts[3];
        assert_made(ek_apply(models[0], x));
        /* Scattered already: the same chunks. */
        ck_assert_int_eq(ek_scatter_value(EK_VALUE(x), &devices, NULL, 0, parts), 3);
        ek_value out = ek_forward(models[1], step ? EK_VALUE(x) : ek_value_per_device(parts, 3));
        ck_assert_int_eq(ek_value_length(out), 3);
    }
    static const char *const paths[] = {"running_mean", "running_var", "num_batches_tracked"};
    for (int i = 0; i < 3; i++)
        assert_close(ek_module_tensor(norms[1], paths[i]), ek_module_tensor(norms[0], paths[i]), 0,
                     0);
    ek_module_free(models[0]);
    ek_module_free(models[1]);
    assert_refused(ek_data_parallel_model(ek_batch_norm1d(3), devices, .broadcast_buffers = false,
                                          .running_stats = EK_RUNNING_STATS_AVERAGE),
                   EK_E_INVALID, "data_parallel_model: EK_RUNNING_STATS_AVERAGE needs");
}
