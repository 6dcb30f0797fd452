/* Plans that leave devices out, the first too. */
#include "kit/models.h"
#include "parallel_setup.h"

enum { CHANNELS = 3 };

static ek_device_list devices_of(int count)
{
    return ek_devices(test_kind(), count);
}

static ek_tensor *on_cpu(ek_module *module, const char *path)
{
    ek_tensor *tensor = ek_module_tensor(module, path);
    assert_made(tensor);
    return ek_to_device(ek_detach(tensor), ek_cpu());
}

static ek_data_parallel_stats stats_of(ek_module *model)
{
    ek_data_parallel_stats stats;
    assert_ok(ek_data_parallel_get_stats(model, &stats));
    return stats;
}

/* ---- results ---- */

static const struct {
    int devices;
    int64_t chunks[4];
} plans[] = {{4, {0, 2, 0, 1}}, {4, {0, 0, 0, 1}}, {3, {0, 1, 0}},    {4, {1, 0, 0, 3}},
             {2, {0, 1}},       {4, {1, 0, 0, 0}}, {4, {0, 5, 4, 3}}, {3, {2, 0, 1}}};
enum { PLANS = sizeof plans / sizeof *plans };

TEST_LOOP(results_are_one_devices, 0, PLANS)
{
    ek_module *net = held(make_net());
    ek_data_parallel_options options = EK_OPTIONS(ek_data_parallel_options, .module = make_net(),
                                                  .device_ids = devices_of(plans[_i].devices));
    memcpy(options.chunks, plans[_i].chunks, sizeof plans[_i].chunks);
    ek_module *model = held(ek_data_parallel_with(options));
    for (int batch = 1; batch < 8; batch++) {
        ek_tensor *x = normal((uint64_t)batch, EK_SHAPE(batch, 3), EK_F64, ek_cpu());
        double expected = square_loss(ek_apply(net, x)), got = square_loss(ek_apply(model, x));
        ck_assert(fabs(got - expected) <= 1e-13 * expected);
        assert_same_gradients(net, model, 1e-12);
        assert_on(ek_tensor_grad(ek_module_tensor(model, "0.weight")), test_device(0));
        ek_module_zero_grad(net);
        ek_module_zero_grad(model);
    }
}

TEST(idle_devices_keep_no_replica)
{
    uint64_t before = 0;
    assert_made(ek_zeros(EK_SHAPE(1), .device = test_device(3)));
    before = bytes_in_use(test_device(3));
    ek_module *model = held(ek_data_parallel(make_net(), devices_of(4), .chunks = {1, 1, 1}));
    assert_made(ek_apply(model, normal(3, EK_SHAPE(9, 3), EK_F64, ek_cpu())));
    ck_assert_uint_eq(bytes_in_use(test_device(3)), before);
    /* Nor does device 0, beside the module itself: two copies were sent. */
    ek_module *others = held(ek_data_parallel(make_net(), devices_of(3), .chunks = {0, 1, 1}));
    assert_made(ek_apply(others, normal(3, EK_SHAPE(9, 3), EK_F64, ek_cpu())));
    uint64_t nbytes = (uint64_t)ek_module_numel(others) * sizeof(double);
    ck_assert_uint_eq(stats_of(others).parameter_nbytes, 2 * nbytes);
    ck_assert_uint_eq(stats_of(others).forwards, 1);
}

/* ---- buffers ---- */

static ek_module *make_norm(void)
{
    ek_module *net = ek_sequential(ek_batch_norm1d(CHANNELS));
    assert_made(net);
    assert_ok(ek_module_to_dtype(net, EK_F64));
    return net;
}

static ek_tensor *batch_of(int step)
{
    return normal(20 + (uint64_t)step, EK_SHAPE(6, CHANNELS, 4), EK_F64, ek_cpu());
}

static void assert_same_statistics(ek_module *model, ek_module *alone)
{
    static const char *const paths[] = {"0.running_mean", "0.running_var", "0.num_batches_tracked"};
    for (int i = 0; i < 3; i++)
        assert_close(on_cpu(model, paths[i]), on_cpu(alone, paths[i]), test_rounding(), 0);
}

TEST(statistics_of_the_first_replica_come_home)
{
    ek_module *alone = held(make_norm());
    ek_module *model = held(ek_data_parallel(make_norm(), devices_of(4), .chunks = {0, 4, 0, 2}));
    for (int step = 0; step < 3; step++) {
        bool before = ek_set_grad_enabled(step != 1);
        assert_made(ek_apply(model, batch_of(step)));
        ek_set_grad_enabled(before);
        assert_made(ek_apply(alone, ek_narrow(batch_of(step), 0, 0, 4)));
        assert_same_statistics(model, alone);
    }
    /* The second replica alone is sent what the first one wrote. */
    uint64_t sent = stats_of(model).buffer_nbytes;
    uint64_t nbytes = 2 * CHANNELS * sizeof(double) + sizeof(int64_t);
    ck_assert_uint_eq(sent, 2 * nbytes + 2 * nbytes);
    /* In evaluation nobody writes. */
    uint64_t version = ek_tensor_version(ek_module_tensor(model, "0.running_mean"));
    ek_module_train(model, false);
    ek_module_train(alone, false);
    assert_close(ek_to_device(ek_apply(model, batch_of(5)), ek_cpu()), ek_apply(alone, batch_of(5)),
                 1e-13, 1e-13);
    ck_assert_uint_eq(ek_tensor_version(ek_module_tensor(model, "0.running_mean")), version);
}

TEST(averages_come_home)
{
    ek_module *idle = held(ek_data_parallel(make_norm(), devices_of(3), .chunks = {0, 4, 2},
                                            .running_stats = EK_RUNNING_STATS_AVERAGE));
    ek_module *busy = held(ek_data_parallel(make_norm(), devices_of(2), .chunks = {4, 2},
                                            .running_stats = EK_RUNNING_STATS_AVERAGE));
    for (int step = 0; step < 3; step++) {
        assert_made(ek_apply(idle, batch_of(step)));
        assert_made(ek_apply(busy, batch_of(step)));
        assert_same_statistics(idle, busy);
    }
}

TEST(replicas_with_buffers_of_their_own)
{
    /* The module shows the first taking part's; each goes on with its own. */
    ek_module *first = held(make_norm()), *last = held(make_norm());
    ek_module *model = held(ek_data_parallel(make_norm(), devices_of(3), .plan = "0,4,2; 3: 0,0,6",
                                             .broadcast_buffers = false));
    for (int step = 0; step < 3; step++) {
        assert_made(ek_apply(model, batch_of(step)));
        assert_made(ek_apply(first, ek_narrow(batch_of(step), 0, 0, 4)));
        assert_made(ek_apply(last, ek_narrow(batch_of(step), 0, 4, 2)));
        assert_same_statistics(model, first);
    }
    /* What evaluation finds is not overwritten by what a replica wrote long ago. */
    ek_module_train(model, false);
    ek_module_train(last, false);
    ek_tensor *mean = ek_module_tensor(model, "0.running_mean");
    assert_made(ek_fill_(mean, 5));
    assert_close(ek_to_device(ek_apply(model, batch_of(4)), ek_cpu()), ek_apply(last, batch_of(4)),
                 1e-13, 1e-13);
    ck_assert_double_eq(element(mean, 0), 5);
}

TEST(a_device_that_comes_back_is_up_to_date)
{
    ek_module *alone = held(make_norm());
    ek_module *model =
        held(ek_data_parallel(make_norm(), devices_of(3),
                              .plan = "0,4,2; 1: 6,0,0; 2: 3,0,3; 3: 0,0,1; 4: 0,1,0"));
    static const int64_t firsts[] = {4, 6, 3, 6, 6};
    for (int step = 0; step < 5; step++) {
        assert_made(ek_apply(model, batch_of(step)));
        assert_made(ek_apply(alone, ek_narrow(batch_of(step), 0, 0, firsts[step])));
        assert_same_statistics(model, alone);
    }
}

/* ---- who is told what ---- */

static int told[4][2], told_count;

static int noting_replicated(ek_module *module, ek_replication *replication)
{
    told[told_count][0] = replication->index;
    told[told_count++][1] = replication->count;
    return 0;
}

/* Fails where x is negative. */
static ek_value noting_forward(ek_module *module, const ek_args *args)
{
    double value = -1;
    ek_tensor *x = ek_arg_tensor(args, 0);
    if (ek_item(ek_sum(x), &value) >= 0 && value < 0)
        ek_error(EK_E_USER, "below zero");
    return value < 0 ? ek_value_error() : ek_value_of_tensor(x);
}

MODULE_TYPE_WITH(noting, ek_module, .replicated = noting_replicated)

TEST(replicas_are_counted_without_idle_devices)
{
    ek_module *model = held(ek_data_parallel(ek_module_new(&noting_type), devices_of(4),
                                             .plan = "0,2,0,1; 1: 0,0,0,1; 2: 1,0,0,0"));
    assert_ok(ek_patch_replication_callback(model));
    ek_tensor *x = ek_ones(EK_SHAPE(3));
    assert_made(ek_apply(model, x));
    ck_assert_int_eq(told_count, 2);
    for (int r = 0; r < 2; r++) {
        ck_assert_int_eq(told[r][0], r);
        ck_assert_int_eq(told[r][1], 2);
    }
    /* A replica of its own elsewhere; at home the module itself. */
    told_count = 0;
    assert_made(ek_apply(model, x));
    ck_assert_int_eq(told_count, 1);
    ck_assert_int_eq(told[0][1], 1);
    assert_made(ek_apply(model, x));
    ck_assert_int_eq(told_count, 1);
}

TEST(errors_name_the_device)
{
    ek_module *model =
        held(ek_data_parallel(ek_module_new(&noting_type), devices_of(4), .chunks = {0, 2, 0, 1}));
    const double x[] = {1, 1, -1};
    assert_refused(ek_apply(model, tensor_of(x, EK_SHAPE(3), EK_F64, ek_cpu())), EK_E_USER,
                   "replica 1 on host:3: noting: below zero");
    assert_made(ek_apply(model, ek_ones(EK_SHAPE(3))));
}

/* ---- inputs of all sorts ---- */

/* (list of x and y, keyword z) -> x + y + z. */
static ek_value summing_forward(ek_module *module, const ek_args *args)
{
    ek_value list = ek_arg(args, 0);
    ek_tensor *x = ek_value_tensor(ek_value_at(list, 0)),
              *y = ek_value_tensor(ek_value_at(list, 1));
    ek_tensor *z = ek_value_tensor(ek_value_get(args->keywords, "z"));
    return ek_value_of_tensor(ek_add(ek_add(x, y), z));
}

MODULE_TYPE(summing, ek_module)

TEST(nests_and_keywords_follow_the_plan)
{
    ek_module *model =
        held(ek_data_parallel(ek_module_new(&summing_type), devices_of(3), .chunks = {0, 4, 1}));
    for (int batch = 1; batch < 7; batch++) {
        ek_tensor *x = normal(1, EK_SHAPE(batch, 2), EK_F64, ek_cpu()),
                  *y = normal(2, EK_SHAPE(batch, 2), EK_F64, ek_cpu()),
                  *z = normal(3, EK_SHAPE(batch, 2), EK_F64, ek_cpu());
        const ek_value_entry keywords[] = {{"z", EK_VALUE(z)}};
        ek_value out = ek_forward_kw(model, ek_value_dict(keywords, 1), EK_LIST(x, y));
        assert_close(ek_to_device(ek_value_tensor(out), ek_cpu()), ek_add(ek_add(x, y), z), 0, 0);
    }
}

TEST(an_empty_batch)
{
    ek_module *model = held(ek_data_parallel(make_net(), devices_of(3), .chunks = {0, 4, 1}));
    ek_tensor *x = ek_zeros(EK_SHAPE(0, 3), .dtype = EK_F64);
    ek_tensor *out = ek_apply(model, x);
    assert_made(out);
    ck_assert_int_eq(ek_tensor_size(out, 0), 0);
    ck_assert_int_eq(ek_tensor_size(out, 1), 2);
}

TEST(what_is_scattered_already_stays_so)
{
    ek_module *net = held(make_net());
    ek_module *model = held(ek_data_parallel(make_net(), devices_of(4), .chunks = {0, 4, 1, 1}));
    ek_tensor *x = normal(1, EK_SHAPE(5, 3), EK_F64, ek_cpu()), *expected = ek_apply(net, x);
    ek_tensor *a = ek_narrow(x, 0, 0, 1), *b = ek_narrow(x, 0, 1, 4);
    /* Fewer lists than devices; on cpu, so for the first devices, and if some lie. */
    assert_close(ek_to_device(ek_apply(model, x), ek_cpu()), expected, 1e-14, 1e-15);
    ek_value out = ek_forward(model, EK_SCATTERED(a, b));
    assert_close(ek_to_device(ek_value_tensor(out), ek_cpu()), expected, 1e-14, 1e-15);
    a = ek_to_device(a, test_device(1));
    b = ek_to_device(b, test_device(3));
    out = ek_forward(model, EK_SCATTERED(a, b));
    assert_close(ek_to_device(ek_value_tensor(out), ek_cpu()), expected, 1e-14, 1e-15);
    out = ek_forward(model, EK_SCATTERED(b, a)); /* in another order */
    ck_assert_int_eq(ek_tensor_size(ek_value_tensor(out), 0), 5);
}

TEST(numbers_per_device_must_suit_the_plan)
{
    ek_module *model =
        held(ek_data_parallel(ek_module_new(&noting_type), devices_of(3), .chunks = {0, 4, 1}));
    ek_tensor *x = ek_ones(EK_SHAPE(5, 3));
    ek_value numbers = EK_SCATTERED(ek_value_of_int(1), ek_value_of_int(2), ek_value_of_int(3));
    ek_value out = ek_forward(model, x, numbers);
    ck_assert_int_eq(out.kind, EK_VALUE_ERROR);
    ck_assert_int_eq(strncmp(ek_error_message(), "data_parallel: the plan", 23), 0);
    assert_error(EK_E_SHAPE,
                 "the plan cuts a batch of 5 into 2 chunks, but a scattered list has 3 elements");
    out = ek_forward(model, x, EK_SCATTERED(ek_value_of_int(1), ek_value_of_int(2)));
    ck_assert_int_ne(out.kind, EK_VALUE_ERROR);
}

TEST(a_wrapper_within_a_wrapper)
{
    ek_tensor *x = normal(3, EK_SHAPE(6, 3), EK_F64, ek_cpu());
    ek_module *net = held(make_net());
    ek_module *inner = ek_data_parallel(make_net(), devices_of(2), .chunks = {0, 1});
    ek_module *model =
        held(ek_data_parallel(ek_sequential(inner), devices_of(3), .chunks = {0, 1, 2}));
    double expected = square_loss(ek_apply(net, x)), got = square_loss(ek_apply(model, x));
    ck_assert(fabs(got - expected) <= 1e-13 * expected);
    ek_tensor *gradient = ek_tensor_grad(ek_module_tensor(model, "0.0.weight"));
    assert_close_norm(ek_to_device(gradient, ek_cpu()),
                      ek_tensor_grad(ek_module_tensor(net, "0.weight")), 1e-12);
}

/* ---- asking for plans ---- */

TEST(plans_can_be_asked_for)
{
    int64_t sizes[4];
    char text[40];
    ek_module *model = ek_data_parallel(make_net(), devices_of(3), .plan = "0,4,1; 2: 1,1,1");
    assert_ok(ek_data_parallel_sizes(model, 10, sizes));
    ck_assert(sizes[0] == 0 && sizes[1] == 8 && sizes[2] == 2);
    ck_assert_int_eq(ek_data_parallel_plan(model, text, sizeof text), 15);
    ck_assert_str_eq(text, "0,4,1; 2: 1,1,1");
    ek_module_free(model);
    model = ek_data_parallel(make_net(), devices_of(3));
    assert_ok(ek_data_parallel_sizes(model, 4, sizes));
    ck_assert(sizes[0] == 2 && sizes[1] == 2 && sizes[2] == 0);
    ck_assert_int_eq(ek_data_parallel_plan(model, NULL, 0), 0);
    for (int d = 0; d < 3; d++)
        sizes[d] = -1;
    assert_ok(ek_data_parallel_sizes(model, 0, sizes)); /* as a forward takes it */
    ck_assert(sizes[0] == 0 && sizes[1] == 0 && sizes[2] == 0);
    assert_refused(ek_data_parallel_sizes(model, -1, sizes), EK_E_INVALID, "a batch of -1 samples");
    assert_refused(ek_data_parallel_sizes(model, 4, NULL), EK_E_INVALID, "sizes is NULL");
    assert_refused(ek_data_parallel_plan(ek_data_parallel_module(model), text, sizeof text),
                   EK_E_INVALID, "sequential is no data-parallel wrapper");
    assert_refused(ek_data_parallel_sizes(NULL, 4, sizes), EK_E_INVALID,
                   "NULL is no data-parallel wrapper");
    ek_module_free(model);
}

TEST(only_forwards_with_gradients_count)
{
    /* The first two go by the first entry; evaluation in between only follows it. */
    ek_module *model = held(ek_data_parallel(make_net(), devices_of(2), .plan = "1,3; 2: 3,1"));
    int64_t sizes[2];
    ek_tensor *x = normal(3, EK_SHAPE(4, 3), EK_F64, ek_cpu());
    for (int step = 0; step < 6; step++) {
        bool before = ek_set_grad_enabled(step % 3 == 2);
        assert_ok(ek_data_parallel_sizes(model, 4, sizes));
        ck_assert_int_eq(sizes[0], 1);
        assert_made(ek_apply(model, x));
        ek_set_grad_enabled(before);
    }
    assert_ok(ek_data_parallel_sizes(model, 4, sizes));
    ck_assert_int_eq(sizes[0], 3);
}

TEST(wishes_that_contradict_are_errors)
{
    ek_device_list two = devices_of(2);
    assert_refused(ek_data_parallel(make_net(), two, .split = EK_SPLIT_EVEN, .chunks = {1, 2}),
                   EK_E_INVALID, "data_parallel: one way to split is possible");
    assert_refused(ek_data_parallel(make_net(), two, .chunks = {1, 2, 3}), EK_E_INVALID,
                   "there are 2 devices");
    assert_refused(ek_data_parallel(make_net(), two, .plan = "1,2,3"), EK_E_INVALID,
                   "data_parallel: .plan");
    assert_refused(ek_data_parallel(make_net(), two, .weights = {1, -1}), EK_E_INVALID,
                   ".weights[1] is -1");
}
