/* The classic wrapper: one device's values and gradients from several. */
#include "core/world.h"
#include "kit/models.h"
#include "parallel_setup.h"

static const struct {
    int batch, devices;
    ek_split_policy split;
} cases[] = {{8, 4, EK_SPLIT_CHUNK}, {10, 4, EK_SPLIT_CHUNK}, {10, 4, EK_SPLIT_EVEN},
             {5, 4, EK_SPLIT_CHUNK}, {5, 4, EK_SPLIT_EVEN},   {3, 4, EK_SPLIT_EVEN},
             {1, 4, EK_SPLIT_CHUNK}, {6, 1, EK_SPLIT_CHUNK},  {7, 2, EK_SPLIT_CHUNK}};
enum { CASES = sizeof cases / sizeof *cases };

TEST_LOOP(equals_one_device, 0, CASES)
{
    ek_tensor *x = normal(3, EK_SHAPE(cases[_i].batch, 3), EK_F64, ek_cpu());
    ek_module *net = held(make_net());
    ek_tensor *expected = ek_apply(net, x);
    double loss = square_loss(expected);
    ek_module *model = held(ek_data_parallel(make_net(), ek_devices(test_kind(), cases[_i].devices),
                                             .split = cases[_i].split));
    for (int repeat = 0; repeat < 2; repeat++) {
        ek_module_zero_grad(model);
        ek_tensor *out = ek_apply(model, x);
        assert_on(out, test_device(0));
        assert_close(ek_to_device(out, ek_cpu()), expected, 1e-14, 1e-15);
        double value = square_loss(out);
        ck_assert(fabs(value - loss) <= 1e-14 * loss);
        assert_same_gradients(net, model, 1e-13);
    }
}

TEST(inputs_need_gradients_too)
{
    ek_module *net = held(make_net()),
              *model = held(ek_data_parallel(make_net(), ek_devices(test_kind(), 3)));
    ek_tensor *x = normal(3, EK_SHAPE(7, 3), EK_F64, ek_cpu());
    ek_tensor *y = ek_detach(ek_to_device(x, test_device(2)));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    assert_ok(ek_tensor_set_requires_grad(y, true));
    square_loss(ek_apply(net, x));
    square_loss(ek_apply(model, y));
    assert_on(ek_tensor_grad(y), test_device(2));
    assert_close_norm(ek_to_device(ek_tensor_grad(y), ek_cpu()), ek_tensor_grad(x), 1e-13);
}

TEST(outputs_meet_where_they_should)
{
    ek_tensor *x = normal(3, EK_SHAPE(4, 3), EK_F64, test_device(1));
    ek_module *model =
        ek_data_parallel(make_net(), ek_devices(test_kind(), 3), .output_device = test_device(2));
    ek_tensor *out = ek_apply(model, x);
    assert_on(out, test_device(2));
    square_loss(out);
    assert_on(ek_tensor_grad(ek_module_tensor(model, "0.weight")), test_device(0));
    ek_module_free(model);
    model = ek_data_parallel(make_net(), EK_DEVICES(test_device(2), test_device(1)),
                             .output_on_cpu = true);
    assert_on(ek_apply(model, x), ek_cpu());
    assert_on(ek_module_tensor(model, "0.weight"), test_device(2));
    ek_module_free(model);
    model = ek_data_parallel(make_net(), EK_DEVICES(test_device(2)), .output_on_cpu = true);
    assert_on(ek_apply(model, x), ek_cpu());
    ek_module_free(model);
    model = ek_data_parallel(make_net()); /* all accelerators */
    assert_on(ek_apply(model, x), test_device(0));
    ck_assert_uint_gt(bytes_in_use(test_device(3)), 0);
    ek_module_free(model);
}

TEST(paths_are_the_modules_own)
{
    ek_module *net = make_net();
    ek_tensor *weight = ek_module_tensor(net, "2.weight");
    ek_module *model = held(ek_data_parallel(net, ek_devices(test_kind(), 2)));
    ck_assert_ptr_eq(ek_module_tensor(model, "2.weight"), weight);
    ck_assert_ptr_eq(ek_data_parallel_module(model), net);
    ck_assert_int_eq(ek_module_numel(model), 3 * 5 + 5 + 5 * 2 + 2);
    assert_refused(ek_data_parallel_module(net), EK_E_INVALID,
                   "sequential is no data-parallel wrapper");
}

/* ---- a module with nests and keywords ---- */

typedef struct nested {
    ek_module module;
    ek_tensor *scale;
    int calls; /* lost in replicas */
} nested;

static atomic_int nested_calls;

static ek_value nested_forward(ek_module *module, const ek_args *args)
{
    nested *self = (nested *)module;
    self->calls++;
    atomic_fetch_add(&nested_calls, 1);
    if (args->count == 0)
        return ek_value_of_tensor(ek_mul_scalar(self->scale, 2));
    ek_tensor *a = ek_value_tensor(ek_value_get(ek_arg(args, 0), "a"));
    ek_tensor *b = ek_value_tensor(ek_value_at(ek_arg(args, 1), 0));
    ek_tensor *mask = ek_value_tensor(ek_value_get(args->keywords, "mask"));
    double power = (double)ek_value_get(args->keywords, "power").as.integer;
    ek_tensor *sum = ek_mul(ek_add(a, ek_mul(b, mask)), self->scale);
    const ek_value_entry entries[] = {{"sum", EK_VALUE(sum)},
                                      {"power", EK_VALUE(ek_pow_scalar(a, power))},
                                      {"nothing", ek_value_none()},
                                      {"size", ek_value_of_int(ek_tensor_size(a, 0))}};
    return EK_LIST(ek_value_dict(entries, 4), a);
}

MODULE_TYPE(nested, nested)

static ek_module *make_nested(void)
{
    nested *self = new_module(&nested_type);
    assert_ok(ek_register_parameter(&self->module, "scale", &self->scale,
                                    ek_full(3, EK_SHAPE(1), .dtype = EK_F64)));
    return &self->module;
}

static const int short_batches[] = {2, 4, 7};

TEST_LOOP(nests_and_keywords_of_short_batches, 0, 3)
{
    int n = short_batches[_i];
    ek_module *model = held(ek_data_parallel(make_nested(), ek_devices(test_kind(), 4)));
    ek_tensor *a = normal(1, EK_SHAPE(n, 2), EK_F64, ek_cpu()),
              *b = normal(2, EK_SHAPE(n, 2), EK_F64, test_device(3));
    ek_tensor *mask = normal(3, EK_SHAPE(n, 1), EK_F64, ek_cpu());
    const ek_value_entry input[] = {{"a", EK_VALUE(a)}},
                         keywords[] = {{"mask", EK_VALUE(mask)}, {"power", ek_value_of_int(2)}};
    ek_value out =
        ek_forward_kw(model, ek_value_dict(keywords, 2), ek_value_dict(input, 1), EK_LIST(b));
    ek_value dict = ek_value_at(out, 0);
    ek_tensor *expected = ek_mul_scalar(ek_add(a, ek_mul(ek_to_device(b, ek_cpu()), mask)), 3);
    assert_close(ek_to_device(ek_value_tensor(ek_value_get(dict, "sum")), ek_cpu()), expected, 0,
                 0);
    assert_close(ek_to_device(ek_value_tensor(ek_value_get(dict, "power")), ek_cpu()),
                 ek_pow_scalar(a, 2), 0, 0);
    ck_assert_int_eq(ek_value_get(dict, "nothing").kind, EK_VALUE_NONE);
    ek_tensor *sizes = ek_value_tensor(ek_value_get(dict, "size"));
    ck_assert_int_eq(ek_tensor_count(sizes), n == 2 ? 2 : 4);
    ck_assert_int_eq(((nested *)ek_data_parallel_module(model))->calls, 0);
}

TEST(without_inputs_it_runs_once)
{
    ek_module *model = held(ek_data_parallel(make_nested(), ek_devices(test_kind(), 4)));
    atomic_store(&nested_calls, 0);
    ek_value out = ek_module_forward(model, &(const ek_args){NULL, 0, ek_value_none()});
    ck_assert_double_eq(element(ek_value_tensor(out), 0), 6);
    ck_assert_int_eq(atomic_load(&nested_calls), 1);
}

TEST(unequal_batches_are_errors)
{
    ek_module *model = held(ek_data_parallel(make_net(), ek_devices(test_kind(), 2)));
    ek_value out = ek_forward(model, ek_zeros(EK_SHAPE(4, 3)), ek_zeros(EK_SHAPE(3, 3)));
    ck_assert_int_eq(out.kind, EK_VALUE_ERROR);
    assert_error(EK_E_SHAPE, "data_parallel: scatter:");
}

TEST(along_another_dimension)
{
    /* Linear layers act on the last dimension: a batch in the middle. */
    ek_tensor *x = normal(3, EK_SHAPE(2, 5, 3), EK_F64, ek_cpu());
    ek_module *net = held(make_net());
    ek_module *model = held(ek_data_parallel(make_net(), ek_devices(test_kind(), 3), .dim = 1));
    ek_tensor *out = ek_apply(model, x);
    assert_close(ek_to_device(out, ek_cpu()), ek_apply(net, x), 1e-14, 1e-15);
}

TEST(no_gradients_no_graph)
{
    ek_module *model = held(ek_data_parallel(make_net(), ek_devices(test_kind(), 2)));
    bool before = ek_set_grad_enabled(false);
    ek_tensor *out = ek_apply(model, normal(3, EK_SHAPE(4, 3), EK_F64, ek_cpu()));
    ek_set_grad_enabled(before);
    assert_made(out);
    ck_assert(!ek_tensor_requires_grad(out));
}

typedef struct writing {
    ek_module module;
    ek_tensor *weight;
} writing;

static ek_value writing_forward(ek_module *module, const ek_args *args)
{
    writing *self = (writing *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    if (ek_tensor_device(x).index == 0 && !ek_fill_(self->weight, 3))
        return ek_value_error();
    return ek_value_of_tensor(ek_mul(x, self->weight));
}

static const ek_module_type writing_type = {.name = "writing",
                                            .size = sizeof(writing),
                                            .forward = writing_forward};

/* The first device's write to a parameter in its forward is the module's. It reaches no other
 * device before the next forward, because it doesn't overtake the parameter's broadcast. */
TEST(a_forward_may_write_to_parameters)
{
    writing *net = (writing *)ek_module_new(&writing_type);
    assert_ok(ek_register_parameter(&net->module, "weight", &net->weight, ek_ones(EK_SHAPE(1))));
    ek_module *model = held(ek_data_parallel(&net->module, ek_devices(test_kind(), 2)));
    const bool before = ek_set_grad_enabled(false);
    ek_tensor *x = ek_ones(EK_SHAPE(2, 1));
    for (int i = 0; i < 20; i++) {
        assert_made(ek_fill_(net->weight, 10 + i));
        const float *y = ek_tensor_data(ek_to_device(ek_apply(model, x), ek_cpu()));
        ck_assert_double_eq(y[0], 3);
        ck_assert_double_eq(y[1], 10 + i);
        ck_assert_double_eq(element(net->weight, 0), 3);
    }
    ek_set_grad_enabled(before);
}

TEST(a_wrapper_within_a_wrapper)
{
    ek_tensor *x = normal(3, EK_SHAPE(6, 3), EK_F64, ek_cpu());
    ek_module *net = held(make_net());
    ek_module *inner = ek_data_parallel(make_net(), ek_devices(test_kind(), 2));
    ek_module *model = held(ek_data_parallel(ek_sequential(inner), ek_devices(test_kind(), 3)));
    ek_tensor *out = ek_apply(model, x);
    assert_close(ek_to_device(out, ek_cpu()), ek_apply(net, x), 1e-14, 1e-15);
}

TEST(wrong_constructions_are_errors)
{
    assert_refused(ek_data_parallel(NULL), EK_E_INVALID, "data_parallel: module is NULL");
    assert_refused(ek_data_parallel(make_net(), EK_DEVICES(test_device(0), test_device(0))),
                   EK_E_INVALID, "host:0 stands twice in device_ids");
    assert_refused(ek_data_parallel(make_net(), EK_DEVICES(test_device(0), test_device(7))),
                   EK_E_DEVICE, "host:7");
    assert_refused(ek_data_parallel(make_net(), ek_devices(test_kind(), 9)), EK_E_DEVICE,
                   "devices wanted, but there are 4");
    assert_refused(ek_data_parallel(make_net(), .output_device = test_device(9)), EK_E_DEVICE,
                   "host:9");
    assert_refused(ek_data_parallel(make_net(), .plain = true), EK_E_INVALID,
                   "ek_data_parallel_model");
    assert_refused(ek_data_parallel(make_net(), .split = (ek_split_policy)5), EK_E_INVALID,
                   "5 is no way to split");
}

/* Moving it would undo what somebody did on purpose. */
TEST_LOOP(a_module_on_two_devices_is_refused, 0, 2)
{
    ek_device_list devices = ek_devices(test_kind(), 3);
    ek_module *first = ek_linear(3, 4), *second = _i ? ek_batch_norm1d(4) : ek_linear(4, 2);
    assert_made(first);
    assert_made(second);
    assert_ok(ek_module_to_device(first, test_device(1)));
    assert_ok(ek_module_to_device(second, test_device(2)));
    if (_i) /* only buffers are elsewhere */
        for (int k = 0; k < 2; k++) {
            ek_tensor *parameter = ek_module_tensor(second, k ? "bias" : "weight");
            ek_tensor *there = ek_keep(ek_to_device(ek_detach(parameter), test_device(1)));
            ek_tensor_rebind(parameter, there);
            ek_release(there);
        }
    assert_refused(ek_data_parallel(ek_sequential(first, second), .device_ids = devices),
                   EK_E_INVALID,
                   _i ? "data_parallel: buffer \"1.running_mean\" is on host:2, "
                        "but what comes before it is on host:1"
                      : "data_parallel: parameter \"1.weight\" is on host:2, "
                        "but what comes before it is on host:1");
    /* All of it may lie on another device, or some on cpu still. */
    for (int part = 0; part < 2; part++) {
        ek_module *net = make_net();
        assert_ok(ek_module_to_device(part ? ek_module_child(net, 2) : net, test_device(2)));
        ek_module *model = ek_data_parallel(net, .device_ids = devices);
        assert_made(model);
        assert_on(ek_module_tensor(model, "0.weight"), test_device(0));
        assert_on(ek_module_tensor(model, "2.weight"), test_device(0));
        ek_module_free(model);
    }
}

TEST(parameters_must_be_at_home)
{
    ek_module *model = held(ek_data_parallel(make_net(), ek_devices(test_kind(), 2)));
    assert_ok(ek_module_to_device(ek_data_parallel_module(model), test_device(1)));
    assert_refused(ek_apply(model, normal(3, EK_SHAPE(4, 3), EK_F64, ek_cpu())), EK_E_DEVICE,
                   "the module must have its parameters and buffers on device host:0 "
                   "(device_ids[0]), but parameter \"0.weight\" is on device host:1");
    assert_ok(ek_module_to_device(ek_data_parallel_module(model), test_device(0)));
    assert_made(ek_apply(model, normal(3, EK_SHAPE(4, 3), EK_F64, ek_cpu())));
}

TEST(replicas_draw_the_same_numbers_in_every_run)
{
    ek_module *model = held(ek_data_parallel(ek_dropout(0.5), ek_devices(test_kind(), 4)));
    ek_tensor *x = ek_ones(EK_SHAPE(8, 4000)), *first = NULL;
    for (int run = 0; run < 5; run++) {
        ek_manual_seed(11);
        assert_made(ek_apply(model, x));
        ek_tensor *second = ek_apply(model, x); /* the streams go on */
        if (first)
            assert_close(second, first, 0, 0);
        first = second;
    }
    /* Each device has numbers of its own. */
    ek_tensor *a = ek_narrow(first, 0, 0, 2), *b = ek_narrow(first, 0, 2, 2);
    double same;
    assert_ok(ek_item(ek_mean(ek_to_dtype(ek_eq(a, b), EK_F64)), &same));
    ck_assert_double_eq_tol(same, 0.5, 0.05);
}

/* ---- several ranks ---- */

enum { DRAWERS = 4 };

/* Dropout's second forward on `devices` devices of the `first`th on; in a job of several ranks if
 * `ranks` is more than 1. Rows of a device in this forward: 2. */
static ek_tensor *drawn_by(int ranks, int first, ek_device_list devices)
{
    const ek_world_place before = ek_world;
    ek_module *model = ek_data_parallel(ek_dropout(0.5), .device_ids = devices);
    assert_made(model);
    ek_world.size = ranks;
    ek_world.first_device[devices.devices[0].kind] = first;
    ek_manual_seed(11);
    ek_tensor *x = ek_ones(EK_SHAPE(2 * devices.count, 1000));
    assert_made(ek_apply(model, x));
    ek_tensor *second = ek_to_device(ek_apply(model, x), ek_cpu());
    assert_made(second);
    ek_world = before;
    ek_module_free(model);
    return second;
}

/* However the devices are spread over ranks. */
TEST_LOOP(ranks_draw_as_devices_of_one_process, 0, 6)
{
    static const int spreads[][DRAWERS] = {{4}, {2, 2}, {1, 3}, {3, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}};
    const bool on_cpu = _i == 5; /* each rank computes on cpu */
    ek_tensor *whole = drawn_by(1, 0, ek_devices(test_kind(), DRAWERS));
    for (int r = 0, first = 0; first < DRAWERS; first += spreads[_i][r++]) {
        int count = spreads[_i][r];
        ek_tensor *part = drawn_by(DRAWERS, first,
                                   on_cpu ? EK_DEVICES(ek_cpu()) : ek_devices(test_kind(), count));
        assert_close(part, ek_narrow(whole, 0, 2 * first, 2 * count), 0, 0);
    }
}

/* Of a rank's share of a machine's GPUs, the first may have any index. */
TEST(devices_before_a_ranks_own_are_not_counted)
{
    ek_tensor *whole = drawn_by(1, 0, ek_devices(test_kind(), DRAWERS));
    ek_device_list last = {2, {test_device(2), test_device(3)}};
    assert_close(drawn_by(2, -2, last), ek_narrow(whole, 0, 0, 4), 0, 0);
}

/* The default generator is every rank's alike, and that of a device alone without other ranks. */
TEST(one_device_draws_from_the_default_generator_in_a_process_alone)
{
    ek_tensor *alone = drawn_by(1, 3, ek_devices(test_kind(), 1));
    ek_manual_seed(11);
    ek_module *net = held(ek_dropout(0.5));
    ek_tensor *x = ek_ones(EK_SHAPE(2, 1000));
    assert_made(ek_apply(net, x));
    assert_close(ek_apply(net, x), alone, 0, 0);
    const ek_world_place before = ek_world;
    for (int rank = 0; rank < 2; rank++) {
        ek_world = (ek_world_place){.rank = rank, .size = 2, .first_device = {rank, rank, rank}};
        ek_manual_seed(11);
        assert_made(ek_apply(net, x));
        assert_close(ek_apply(net, x), alone, 0, 0);
    }
    ek_world = before;
}

/* A batch so small that one of two devices gets it. */
TEST(ranks_draw_their_own_for_small_batches)
{
    const ek_world_place before = ek_world;
    ek_tensor *drawn[2];
    double same;
    for (int rank = 0; rank < 2; rank++) {
        ek_world = (ek_world_place){.rank = rank, .size = 2};
        ek_world.first_device[test_kind()] = 2 * rank;
        ek_module *model = ek_data_parallel(ek_dropout(0.5), ek_devices(test_kind(), 2));
        ek_manual_seed(11);
        drawn[rank] = ek_to_device(ek_apply(model, ek_ones(EK_SHAPE(1, 1000))), ek_cpu());
        ek_world = before;
        ek_module_free(model);
    }
    assert_ok(ek_item(ek_mean(ek_to_dtype(ek_eq(drawn[0], drawn[1]), EK_F64)), &same));
    ck_assert_double_eq_tol(same, 0.5, 0.1);
}

/* The first device alone has a small batch, and then its worker goes on. */
TEST(a_worker_goes_on_with_numbers_drawn_in_its_place)
{
    const ek_world_place before = ek_world;
    ek_world.size = 2;
    ek_module *model = held(ek_data_parallel(ek_dropout(0.5), ek_devices(test_kind(), 2)));
    ek_manual_seed(11);
    ek_tensor *first = ek_to_device(ek_apply(model, ek_ones(EK_SHAPE(1, 1000))), ek_cpu());
    ek_tensor *second = ek_to_device(ek_apply(model, ek_ones(EK_SHAPE(2, 1000))), ek_cpu());
    ek_tensor *third = ek_to_device(ek_apply(model, ek_ones(EK_SHAPE(1, 1000))), ek_cpu());
    ek_world = before;
    ek_tensor *others[] = {ek_narrow(second, 0, 0, 1), third};
    for (int i = 0; i < 2; i++) {
        double same;
        assert_ok(ek_item(ek_mean(ek_to_dtype(ek_eq(first, others[i]), EK_F64)), &same));
        ck_assert_double_eq_tol(same, 0.5, 0.1);
    }
}

static char logged[2][300];
static int log_count;

static void keep_line(ek_log_level level, const char *line, void *user)
{
    if (level == EK_LOG_WARNING && log_count < 2)
        snprintf(logged[log_count++], sizeof logged[0], "%s", line);
}

TEST(unequal_devices_are_logged)
{
    static const char *const specifications[] = {
        "3x512M",        "512M,256M",           "512M@0.5,256M",
        "512M,512M@0.5", "512M,512M,256M,256M", "300M,200M,100M"};
    static const char *const parts[][2] = {
        {NULL},
        {"host:1 has less than 75% of the memory of host:0", ".weights = {2, 1} would suit them"},
        {"memory", ".weights = {2, 1} would suit them, or .split = EK_SPLIT_AUTO"},
        {"host:1 has less than 75% of the speed of host:0", ".weights = {2, 1} would suit them"},
        {"host:2 has less than 75% of the memory of host:0", ".weights = {2, 2, 1, 1} would"},
        {"host:2 has less than 75% of the memory of host:0", ".weights = {3, 2, 1} would"}};
    ek_set_log(keep_line, NULL);
    for (int i = 0; i < 6; i++) {
        if (i == 3 && test_kind() != EK_HOST)
            continue; /* GPUs have no speeds */
        assert_ok(test_devices_configure(specifications[i]));
        log_count = 0;
        ek_module_free(ek_data_parallel(make_net()));
        ck_assert_int_eq(log_count, parts[i][0] ? 1 : 0); /* at most one */
        for (int p = 0; p < 2 && parts[i][0]; p++)
            ck_assert_ptr_nonnull(strstr(logged[0], device_text(parts[i][p])));
    }
    ek_set_log(NULL, NULL);
}

TEST(whoever_chose_a_plan_is_not_warned)
{
    ek_device_list devices = {2, {test_device(0), test_device(1)}};
    ek_set_log(keep_line, NULL);
    assert_ok(test_devices_configure("512M,256M"));
    log_count = 0;
    ek_module_free(ek_data_parallel(make_net(), devices, .split = EK_SPLIT_AUTO));
    ek_module_free(ek_data_parallel(make_net(), devices, .weights = {1, 1}));
    ek_module_free(ek_data_parallel(make_net(), devices, .chunks = {4, 4}));
    ek_module_free(ek_data_parallel(make_net(), devices, .first_device_batch = 0));
    ek_module_free(ek_data_parallel(make_net(), devices, .plan = "1,1"));
    ck_assert_int_eq(log_count, 0);
    ek_module_free(ek_data_parallel(make_net(), devices, .split = EK_SPLIT_EVEN));
    ck_assert_int_eq(log_count, 1);
    ek_set_log(NULL, NULL);
}
