/* Plans of the balanced wrappers: who gets how many, and losses where devices have nothing to do.
 */
#include "balance_setup.h"
#include "kit/models.h"

/* Samples on each device of an ek_data_parallel_model's output, zero if there are none. */
static void assert_sizes(ek_value out, int devices, const int64_t *sizes)
{
    int part = 0;
    ck_assert(out.per_device);
    for (int d = 0; d < devices; d++) {
        if (sizes[d] == 0)
            continue;
        ck_assert_int_lt(part, ek_value_length(out));
        ek_tensor *own = ek_value_tensor(ek_value_at(out, part++));
        assert_made(own);
        ck_assert(ek_device_equal(ek_tensor_device(own), test_device(d)));
        ck_assert_int_eq(ek_tensor_size(own, 0), sizes[d]);
    }
    ck_assert_int_eq(ek_value_length(out), part);
}

/* ---- BalancedDataParallel's published examples, and the other ways ---- */

static const struct {
    int batch;
    int64_t first; /* of the first device */
    int64_t sizes[4];
} published[] = {{30, 3, {3, 9, 9, 9}},
                 {31, 2, {2, 10, 10, 9}},
                 {60, 0, {0, 20, 20, 20}},
                 {12, 4, {3, 3, 3, 3}},
                 {10, 1, {1, 3, 3, 3}}};
enum { PUBLISHED = sizeof published / sizeof *published };

TEST_LOOP(a_smaller_share_for_the_first_device, 0, PUBLISHED)
{
    ek_module *net = held(make_scorer());
    ek_module *model = held(ek_data_parallel_model(make_scorer(), ek_devices(test_kind(), 4),
                                                   .first_device_batch = published[_i].first));
    ek_tensor *x = make_inputs(published[_i].batch);
    int64_t sizes[4];
    assert_ok(ek_data_parallel_sizes(model, published[_i].batch, sizes));
    ck_assert_int_eq(memcmp(sizes, published[_i].sizes, sizeof sizes), 0);
    ek_value out = ek_forward(model, x);
    assert_sizes(out, 4, published[_i].sizes);
    assert_close(ek_value_tensor(ek_value_to_device(out, ek_cpu(), 0)), ek_apply(net, x), 1e-14,
                 1e-15);
}

TEST(shares_of_other_kinds)
{
    ek_device_list devices = ek_devices(test_kind(), 3);
    ek_module *models[] = {ek_data_parallel_model(make_scorer(), devices, .chunks = {12, 0, 20}),
                           ek_data_parallel_model(make_scorer(), devices, .weights = {0.5, 1, 1}),
                           ek_data_parallel_model(make_scorer(), devices,
                                                  .plan = "0,1,1; 1: 1,0,0; 2: 2,1,1"),
                           ek_data_parallel_model(make_scorer(), devices, .split = EK_SPLIT_EVEN)};
    static const int64_t sizes[4][3][3] = {{{12, 0, 20}, {3, 0, 5}, {1, 0, 1}},
                                           {{6, 13, 13}, {2, 3, 3}, {0, 1, 1}},
                                           {{0, 16, 16}, {8, 0, 0}, {1, 1, 0}},
                                           {{11, 11, 10}, {3, 3, 2}, {1, 1, 0}}};
    static const int batches[] = {32, 8, 2};
    for (int m = 0; m < 4; m++) {
        assert_made(models[m]);
        for (int i = 0; i < 3; i++)
            assert_sizes(ek_forward(models[m], make_inputs(batches[i])), 3, sizes[m][i]);
        /* Evaluation is a plain call. */
        ek_module_train(models[m], false);
        ek_value out = ek_forward(models[m], make_inputs(5));
        ck_assert(!out.per_device);
        ck_assert(ek_device_equal(ek_tensor_device(ek_value_tensor(out)), test_device(0)));
        ek_module_free(models[m]);
    }
}

TEST(scattered_inputs_stay_where_they_lie)
{
    ek_module *model = held(
        ek_data_parallel_model(make_scorer(), ek_devices(test_kind(), 4), .chunks = {0, 2, 0, 1}));
    ek_tensor *x = make_inputs(6);
    ek_tensor *a = ek_narrow(x, 0, 0, 5), *b = ek_narrow(x, 0, 5, 1);
    assert_sizes(ek_forward(model, EK_SCATTERED(a, b)), 4, (const int64_t[]){5, 1, 0, 0});
    a = ek_to_device(a, test_device(0));
    b = ek_to_device(b, test_device(2));
    assert_sizes(ek_forward(model, EK_SCATTERED(a, b)), 4, (const int64_t[]){5, 0, 1, 0});
    assert_sizes(ek_forward(model, EK_SCATTERED(b, a)), 4, (const int64_t[]){1, 5, 0, 0});
    assert_sizes(ek_forward(model, EK_SCATTERED(b)), 4, (const int64_t[]){0, 0, 1, 0});
    /* One model's outputs are the next one's inputs. */
    ek_module *last =
        held(ek_data_parallel_model(ek_tanh(), ek_devices(test_kind(), 4), .weights = {1, 1}));
    assert_sizes(ek_forward(last, ek_forward(model, x)), 4, (const int64_t[]){0, 4, 0, 2});
}

/* ---- losses ---- */

static ek_module *make_criterion(ek_device_list devices, bool scattered)
{
    ek_module *criterion =
        ek_data_parallel_criterion(ek_cross_entropy_loss(.ignore_index = IGNORED), devices,
                                   .is_target_scattered = scattered);
    assert_made(criterion);
    return criterion;
}

TEST(losses_meet_on_the_first_device)
{
    ek_device_list devices = ek_devices(test_kind(), 4);
    ek_module *model = held(ek_data_parallel_model(make_scorer(), devices, .chunks = {0, 0, 2, 3}));
    ek_module *net = held(make_scorer()),
              *plain = held(ek_cross_entropy_loss(.ignore_index = IGNORED));
    ek_module *criterion = held(make_criterion(devices, false)),
              *given = held(make_criterion(devices, true));
    ek_tensor *x = make_inputs(10), *target = make_targets(10, 4, 10); /* none for the last */
    ek_tensor *expected = ek_loss(plain, ek_forward(net, x), target);
    ek_tensor *loss = ek_loss(criterion, ek_forward(model, x), target);
    assert_near(value_of(loss), value_of(expected), 1e-13);
    ck_assert(ek_device_equal(ek_tensor_device(loss), test_device(0)));
    assert_ok(ek_backward(expected));
    assert_ok(ek_backward(loss));
    assert_same_gradients(net, model, 1e-12);
    loss = ek_loss(given, ek_forward(model, x),
                   EK_LIST(ek_narrow(target, 0, 0, 4), ek_narrow(target, 0, 4, 6)));
    assert_near(value_of(loss), value_of(expected), 1e-13);
}

TEST(outputs_from_strange_places_are_errors)
{
    ek_device_list devices = ek_devices(test_kind(), 4);
    ek_module *model = held(ek_data_parallel_model(make_scorer(), devices, .chunks = {0, 2, 0, 1}));
    ek_module *fewer = held(make_criterion(ek_devices(test_kind(), 3), false));
    ek_module *turned =
        held(make_criterion(EK_DEVICES(test_device(3), test_device(0), test_device(1)), false));
    ek_tensor *x = make_inputs(6), *target = make_targets(6, 0, 0);
    assert_refused(ek_loss(fewer, ek_forward(model, x), target), EK_E_DEVICE,
                   "output 1 is on host:3, which isn't in device_ids");
    assert_refused(ek_loss(turned, ek_forward(model, x), target), EK_E_DEVICE,
                   "output 1 is on host:3, which isn't in device_ids or stands before");
    assert_refused(ek_data_parallel_criterion(ek_mse_loss(), devices, .split = EK_SPLIT_AUTO),
                   EK_E_INVALID, "targets are cut as the outputs are");
}

TEST(a_criterion_has_no_plans)
{
    char text[8];
    ek_module *criterion = held(make_criterion(ek_devices(test_kind(), 4), false));
    ck_assert_int_eq(ek_data_parallel_plan(criterion, text, sizeof text), 0);
    ck_assert_str_eq(text, "");
}

/* Adds the mean over all replicas' samples: they have to meet. */
typedef struct meeting {
    ek_module module;
} meeting;

static ek_value meeting_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *x = ek_arg_tensor(args, 0), *sum = ek_sum(x), *total;
    if (ek_allreduce(&sum, 1, 1, &total) < 0)
        return ek_value_error();
    return ek_value_of_tensor(ek_add(x, total));
}

MODULE_TYPE(meeting, meeting)

TEST(those_that_take_part_meet)
{
    static const int64_t sizes[] = {0, 2, 0, 2};
    ek_module *model =
        held(ek_data_parallel_model(ek_module_new(&meeting_type), ek_devices(test_kind(), 4),
                                    .chunks = {0, 1, 0, 1}));
    ek_value out = ek_forward(model, ek_arange(4, EK_F64, ek_cpu()));
    assert_sizes(out, 4, sizes);
    assert_close(ek_value_tensor(ek_value_to_device(out, ek_cpu(), 0)),
                 tensor_of((double[]){6, 7, 8, 9}, EK_SHAPE(4), EK_F64, ek_cpu()), 0, 0);
    /* Alone elsewhere. */
    out = ek_forward(model, ek_ones(EK_SHAPE(1), .dtype = EK_F64));
    assert_sizes(out, 4, (const int64_t[]){0, 1, 0, 0});
    ck_assert_double_eq(value_of(ek_value_tensor(ek_value_at(out, 0))), 2);
}

TEST(a_penalty_is_a_forward_of_its_critic)
{
    ek_module *critic =
        held(ek_data_parallel_model(ek_linear(FEATURES, 1), ek_devices(test_kind(), 2),
                                    .plan = "1,1; 1: 0,1"));
    ek_tensor *x = ek_ones(EK_SHAPE(4, FEATURES));
    int64_t sizes[2];
    for (int i = 0; i < 2; i++) {
        assert_ok(ek_data_parallel_sizes(critic, 4, sizes));
        ck_assert_int_eq(sizes[0], i ? 0 : 2);
        ek_tensor *penalty = ek_gradient_penalty(critic, x, .kind = EK_PENALTY_R1);
        assert_made(penalty);
        ck_assert(ek_device_equal(ek_tensor_device(penalty), test_device(0)));
    }
}

static void train_steps(ek_module *model, ek_module *criterion, int count)
{
    for (int i = 0; i < count; i++) {
        ek_scope scope = ek_scope_begin();
        ek_value out = ek_forward(model, make_inputs(24));
        assert_ok(ek_backward(ek_loss(criterion, out, make_targets(24, 0, 0))));
        ek_scope_end(&scope);
    }
}

/* From a plan's last entry on; and evaluation, all on the first device, changes nothing. */
TEST(a_measured_plan_goes_on)
{
    ek_device_list devices = ek_devices(test_kind(), 2);
    ek_module *model = held(ek_data_parallel_model(make_scorer(), devices, .split = EK_SPLIT_AUTO,
                                                   .plan = "1,1; 3: 3,1"));
    ek_module *criterion = held(make_criterion(devices, false));
    char text[2][200];
    assert_sizes(ek_forward(model, make_inputs(24)), 2, (const int64_t[]){18, 6});
    train_steps(model, criterion, 12);
    ek_data_parallel_plan(model, text[0], sizeof text[0]);
    ck_assert_int_eq(strncmp(text[0], "3,1; 1: ", 8), 0);
    for (int epoch = 0; epoch < 4; epoch++) {
        ek_module_train(model, false);
        ek_scope scope = ek_scope_begin();
        assert_made(ek_value_tensor(ek_forward(model, make_inputs(4096))));
        ek_scope_end(&scope);
        ek_module_train(model, true);
        train_steps(model, criterion, 12);
        ek_data_parallel_plan(model, text[1], sizeof text[1]);
        ck_assert_str_eq(text[1], text[0]);
    }
}
