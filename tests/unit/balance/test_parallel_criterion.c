/* ek_data_parallel_criterion: one device's loss and gradients, for any chunks and ignored targets.
 */
#include "balance_setup.h"
#include "kit/models.h"

/* Samples [from, to) are ignored. 4 devices: 10 is cut 3 3 3 1, 5 is cut 2 2 1. */
static const struct {
    int batch, from, to;
    ek_split_policy split;
} cases[] = {{8, 0, 0, EK_SPLIT_CHUNK},  {10, 0, 0, EK_SPLIT_CHUNK},  {10, 0, 3, EK_SPLIT_CHUNK},
             {10, 3, 6, EK_SPLIT_CHUNK}, {10, 9, 10, EK_SPLIT_CHUNK}, {10, 1, 10, EK_SPLIT_EVEN},
             {5, 2, 4, EK_SPLIT_CHUNK},  {3, 0, 1, EK_SPLIT_CHUNK},   {1, 0, 0, EK_SPLIT_CHUNK}};
enum { CASES = sizeof cases / sizeof *cases };

static ek_module *make_criterion(ek_reduction reduction)
{
    ek_tensor *weight = tensor_of((double[]){1, 2, 0.5, 3}, EK_SHAPE(CLASSES), EK_F64, ek_cpu());
    return ek_cross_entropy_loss(.reduction = reduction, .ignore_index = IGNORED, .weight = weight);
}

TEST_LOOP(all_ways_agree, 0, CASES)
{
    static const ek_reduction reductions[] = {EK_MEAN, EK_SUM};
    for (int r = 0; r < 2; r++) {
        ek_tensor *x = make_inputs(cases[_i].batch);
        ek_tensor *target = make_targets(cases[_i].batch, cases[_i].from, cases[_i].to);
        ek_module *net = make_scorer(), *criterion = make_criterion(reductions[r]);
        ek_tensor *loss = ek_loss(criterion, ek_forward(net, x), target);
        assert_ok(ek_backward(loss));

        ek_device_list devices = ek_devices(test_kind(), 4);
        ek_module *classic = ek_data_parallel(make_scorer(), devices, .split = cases[_i].split);
        assert_ok(ek_module_to_device(criterion, test_device(0)));
        ek_tensor *classic_loss = ek_loss(criterion, ek_forward(classic, x), target);
        assert_near(value_of(classic_loss), value_of(loss), 1e-13);
        assert_ok(ek_backward(classic_loss));
        assert_same_gradients(net, classic, 1e-12);

        ek_module *model = ek_data_parallel_model(make_scorer(), devices, .split = cases[_i].split);
        ek_module *balanced = ek_data_parallel_criterion(make_criterion(reductions[r]), devices);
        for (int repeat = 0; repeat < 2; repeat++) {
            ek_module_zero_grad(model);
            ek_tensor *balanced_loss = ek_loss(balanced, ek_forward(model, x), target);
            assert_near(value_of(balanced_loss), value_of(loss), 1e-13);
            ck_assert(ek_device_equal(ek_tensor_device(balanced_loss), test_device(0)));
            assert_ok(ek_backward(balanced_loss));
            assert_same_gradients(net, model, 1e-12);
        }
        ek_module_free(net);
        ek_module_free(criterion);
        ek_module_free(classic);
        ek_module_free(model);
        ek_module_free(balanced);
    }
}

/* The weights of positives go to every device, and the loss is that of one. */
TEST(positives_are_weighted)
{
    static const ek_reduction reductions[] = {EK_MEAN, EK_SUM};
    ek_device_list devices = ek_devices(test_kind(), 4);
    ek_tensor *x = make_inputs(10), *target = ek_empty(EK_SHAPE(10, CLASSES, 5), EK_F64);
    ek_manual_seed(5);
    assert_ok(ek_bernoulli_(target, 0.4, NULL));
    for (int r = 0; r < 2; r++) {
        ek_tensor *positive =
            tensor_of((double[]){1, 20, 0.5, 3}, EK_SHAPE(CLASSES, 1), EK_F64, ek_cpu());
        ek_module *net = make_scorer(), *model = ek_data_parallel_model(make_scorer(), devices);
        ek_module *balanced =
            ek_data_parallel_criterion(ek_bce_with_logits_loss(.reduction = reductions[r],
                                                               .pos_weight = ek_clone(positive)),
                                       devices);
        ek_tensor *loss = ek_f_bce_with_logits(ek_value_tensor(ek_forward(net, x)), target,
                                               .reduction = reductions[r], .pos_weight = positive);
        assert_ok(ek_backward(loss));
        ek_tensor *balanced_loss = ek_loss(balanced, ek_forward(model, x), target);
        assert_near(value_of(balanced_loss), value_of(loss), 1e-13);
        assert_ok(ek_backward(balanced_loss));
        assert_same_gradients(net, model, 1e-12);
        ek_module_free(net);
        ek_module_free(model);
        ek_module_free(balanced);
    }
}

TEST(nothing_counts_anywhere)
{
    ek_device_list devices = ek_devices(test_kind(), 4);
    ek_module *model = held(ek_data_parallel_model(make_scorer(), devices));
    ek_module *criterion = held(ek_data_parallel_criterion(make_criterion(EK_MEAN), devices));
    ek_tensor *loss = ek_loss(criterion, ek_forward(model, make_inputs(8)), make_targets(8, 0, 8));
    ck_assert(isnan(value_of(loss)));
}

TEST(the_mean_of_means_is_the_literatures)
{
    ek_device_list devices = ek_devices(test_kind(), 4);
    ek_module *net = held(make_scorer()),
              *model = held(ek_data_parallel_model(make_scorer(), devices));
    ek_module *criterion = held(ek_cross_entropy_loss(.ignore_index = IGNORED));
    ek_module *means =
        held(ek_data_parallel_criterion(ek_cross_entropy_loss(.ignore_index = IGNORED), devices,
                                        .reduction = EK_MEAN_OF_MEANS));
    ek_tensor *x = make_inputs(10), *target = make_targets(10, 0, 0);
    ek_tensor *sum = NULL;
    for (int d = 0; d < 4; d++) {
        int64_t size = d < 3 ? 3 : 1;
        ek_tensor *part = ek_loss(criterion, ek_forward(net, ek_narrow(x, 0, 3 * d, size)),
                                  ek_narrow(target, 0, 3 * d, size));
        sum = sum ? ek_add(sum, part) : part;
    }
    ek_tensor *expected = ek_mul_scalar(sum, 0.25);
    ek_tensor *loss = ek_loss(means, ek_forward(model, x), target);
    assert_near(value_of(loss), value_of(expected), 1e-13);
    assert_ok(ek_backward(expected));
    assert_ok(ek_backward(loss));
    assert_same_gradients(net, model, 1e-12);
}

TEST(losses_per_point_stay_on_their_devices)
{
    ek_device_list devices = ek_devices(test_kind(), 4);
    ek_module *net = held(make_scorer()),
              *model = held(ek_data_parallel_model(make_scorer(), devices));
    ek_module *criterion = held(make_criterion(EK_NONE));
    ek_module *balanced = held(ek_data_parallel_criterion(make_criterion(EK_NONE), devices));
    ek_tensor *x = make_inputs(10), *target = make_targets(10, 2, 4);
    ek_value losses = ek_forward(balanced, ek_forward(model, x), target);
    ck_assert(losses.per_device);
    ek_value parts[4];
    for (int d = 0; d < 4; d++) {
        parts[d] = ek_value_at(losses, d);
        ck_assert(ek_device_equal(ek_tensor_device(ek_value_tensor(parts[d])), test_device(d)));
    }
    ek_tensor *joined = ek_value_tensor(ek_gather_value(parts, 4, ek_cpu(), 0));
    ek_tensor *expected = ek_loss(criterion, ek_forward(net, x), target);
    assert_close(joined, expected, 1e-13, 1e-14);
    assert_ok(ek_backward(ek_mean(joined)));
    assert_ok(ek_backward(ek_mean(expected)));
    assert_same_gradients(net, model, 1e-12);
}

TEST(targets_may_be_scattered_already)
{
    ek_device_list devices = ek_devices(test_kind(), 2);
    ek_module *model = held(ek_data_parallel_model(make_scorer(), devices));
    ek_module *given = held(ek_data_parallel_criterion(make_criterion(EK_MEAN), devices));
    ek_module *option = held(
        ek_data_parallel_criterion(make_criterion(EK_MEAN), devices, .is_target_scattered = true));
    ek_tensor *x = make_inputs(6), *target = make_targets(6, 0, 1);
    ek_tensor *parts[2] = {ek_narrow(target, 0, 0, 3),
                           ek_to_device(ek_narrow(target, 0, 3, 3), test_device(1))};
    double expected = value_of(ek_loss(given, ek_forward(model, x), target));
    assert_near(value_of(ek_loss(given, ek_forward(model, x), EK_SCATTERED(parts[0], parts[1]))),
                expected, 0);
    assert_near(value_of(ek_loss(option, ek_forward(model, x), EK_LIST(parts[0], parts[1]))),
                expected, 0);
    assert_refused(ek_loss(option, ek_forward(model, x), target), EK_E_INVALID,
                   "target 0 has to be a list with one element per device, not a tensor");
    assert_refused(ek_loss(option, ek_forward(model, x), EK_LIST(target)), EK_E_SHAPE,
                   "target 0 is scattered to 1 devices, but there are 2 outputs");
}

TEST(inputs_and_targets_scattered_unevenly)
{
    ek_device_list devices = ek_devices(test_kind(), 3);
    ek_module *net = held(make_scorer()), *criterion = held(make_criterion(EK_MEAN));
    ek_module *model = held(ek_data_parallel_model(make_scorer(), devices));
    ek_module *balanced = held(ek_data_parallel_criterion(make_criterion(EK_MEAN), devices));
    ek_tensor *x = make_inputs(7), *target = make_targets(7, 0, 1);
    ek_tensor *loss = ek_loss(criterion, ek_forward(net, x), target);
    /* The target is cut here as the outputs are: 1, 5, 1. */
    ek_value scattered =
        EK_SCATTERED(ek_narrow(x, 0, 0, 1), ek_narrow(x, 0, 1, 5), ek_narrow(x, 0, 6, 1));
    ek_tensor *same = ek_loss(balanced, ek_forward(model, scattered), target);
    assert_near(value_of(same), value_of(loss), 1e-13);
    assert_ok(ek_backward(loss));
    assert_ok(ek_backward(same));
    assert_same_gradients(net, model, 1e-12);
}

/* ---- criteria of the user's own ---- */

/* mean(scale (a - b)^2 + c), over (a, b) or a list of both as the output; samples are the
 * denominator. */
static ek_value distance_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *difference = ek_sub(ek_arg_tensor(args, 0), ek_arg_tensor(args, 1));
    ek_tensor *y = ek_square(difference);
    if (args->count > 2)
        y = ek_add(y, ek_arg_tensor(args, 2));
    ek_value scale = ek_value_get(args->keywords, "scale"),
             mask = ek_value_get(args->keywords, "mask");
    if (mask.kind == EK_VALUE_TENSOR)
        y = ek_mul(y, mask.as.tensor);
    if (scale.kind == EK_VALUE_FLOAT)
        y = ek_mul_scalar(y, scale.as.floating);
    return ek_value_of_tensor(ek_mean(y));
}

MODULE_TYPE(distance, ek_module)

/* Twice its input, and its input: two outputs. */
static ek_value pair_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *x = ek_arg_tensor(args, 0);
    return EK_LIST(ek_mul_scalar(x, 2), x);
}

MODULE_TYPE(pair, ek_module)

TEST(several_targets_and_keywords)
{
    ek_tensor *x = make_inputs(7);
    ek_tensor *a = make_inputs(7), *mask = ek_narrow(make_inputs(7), 2, 0, 1);
    a = ek_mul_scalar(a, 0.5);
    ek_tensor *c = ek_mul_scalar(a, 3);
    const ek_value_entry keywords[] = {{"scale", ek_value_of_float(2)}, {"mask", EK_VALUE(mask)}};
    for (int count = 1; count < 5; count++) { /* with one device: a plain call */
        ek_device_list devices = ek_devices(test_kind(), count);
        ek_module *model = ek_data_parallel_model(ek_identity(), devices);
        ek_module *criterion = ek_data_parallel_criterion(ek_module_new(&distance_type), devices);
        ek_value loss =
            ek_forward_kw(criterion, ek_value_dict(keywords, 2), ek_forward(model, x), a, c);
        ek_tensor *expected =
            ek_mul_scalar(ek_mean(ek_mul(ek_add(ek_square(ek_sub(x, a)), c), mask)), 2);
        assert_near(value_of(ek_value_tensor(loss)), value_of(expected), 1e-13);
        ek_module_free(model);
        ek_module_free(criterion);
    }
}

TEST(scattered_keywords_come_together_in_a_plain_call)
{
    ek_tensor *x = make_inputs(7), *a = ek_mul_scalar(x, 0.5), *mask = ek_narrow(x, 2, 0, 1);
    ek_value parts = EK_SCATTERED(ek_narrow(mask, 0, 0, 2), ek_narrow(mask, 0, 2, 5));
    ek_module *criterion =
        held(ek_data_parallel_criterion(ek_module_new(&distance_type), ek_devices(test_kind(), 2)));
    ek_value keywords = ek_value_dict(&(const ek_value_entry){"mask", parts}, 1);
    ek_tensor *expected = ek_mean(ek_mul(ek_square(ek_sub(x, a)), mask));
    ek_value loss = ek_forward_kw(criterion, keywords, x, a);
    assert_near(value_of(ek_value_tensor(loss)), value_of(expected), 1e-13);
}

TEST(targets_of_outputs_without_a_batch_are_split_as_asked)
{
    ek_value outputs[4];
    for (int d = 0; d < 4; d++)
        outputs[d] = EK_VALUE(ek_scalar(1, EK_F64, test_device(d)));
    ek_module *criterion =
        held(ek_data_parallel_criterion(ek_module_new(&distance_type), ek_devices(test_kind(), 4),
                                        .split = EK_SPLIT_EVEN));
    ek_value per_device = ek_value_per_device(outputs, 4);
    /* 2, 1, 1, 1: (1 + 0) / 2, 1, 4 and 9 */
    ek_tensor *loss = ek_loss(criterion, per_device, ek_arange(5, EK_F64, ek_cpu()));
    assert_near(value_of(loss), 14.5 / 4, 1e-13);
}

TEST(idle_devices_may_be_opened_anew)
{
    ek_device_list devices = ek_devices(test_kind(), 4);
    ek_module *criterion = held(ek_data_parallel_criterion(ek_module_new(&distance_type), devices));
    for (int i = 0; i < 2; i++) {
        ek_scope scope = ek_scope_begin();
        ek_value parts[4];
        ek_tensor *x = make_inputs(8);
        ck_assert_int_eq(ek_scatter_value(EK_VALUE(x), &devices, NULL, 0, parts), 4);
        ek_tensor *loss = ek_loss(criterion, ek_value_per_device(parts, 4), ek_mul_scalar(x, 2));
        assert_near(value_of(loss), value_of(ek_mean(ek_square(x))), 1e-13);
        ek_scope_end(&scope);
        assert_ok(ek_shutdown());
        for (int d = 3; d >= 0; d--) /* in another order: other memory */
            assert_made(ek_zeros(EK_SHAPE(1), .device = test_device(d)));
    }
}

TEST(an_output_list_is_spread)
{
    ek_tensor *x = make_inputs(7);
    for (int count = 1; count < 4; count++) {
        ek_device_list devices = ek_devices(test_kind(), count);
        ek_module *model = ek_data_parallel_model(ek_module_new(&pair_type), devices);
        ek_module *criterion = ek_data_parallel_criterion(ek_module_new(&distance_type), devices);
        ek_tensor *loss = ek_loss(criterion, ek_forward(model, x), ek_mul_scalar(x, 10));
        ek_tensor *expected = ek_mean(ek_add(ek_square(x), ek_mul_scalar(x, 10)));
        assert_near(value_of(loss), value_of(expected), 1e-12);
        ek_module_free(model);
        ek_module_free(criterion);
    }
}

TEST(bare_outputs_are_a_plain_call)
{
    ek_device_list devices = ek_devices(test_kind(), 3);
    ek_module *model = held(ek_data_parallel_model(make_scorer(), devices));
    ek_module *balanced = held(ek_data_parallel_criterion(make_criterion(EK_MEAN), devices));
    ek_module *scattered = held(
        ek_data_parallel_criterion(make_criterion(EK_MEAN), devices, .is_target_scattered = true));
    ek_tensor *x = make_inputs(6), *target = make_targets(6, 0, 1);
    double expected = value_of(ek_loss(balanced, ek_forward(model, x), target));
    ek_module_train(model, false);
    assert_near(value_of(ek_loss(balanced, ek_forward(model, x), target)), expected, 1e-13);
    ek_value parts = EK_LIST(ek_narrow(target, 0, 0, 4), ek_narrow(target, 0, 4, 2));
    assert_near(value_of(ek_loss(scattered, ek_forward(model, x), parts)), expected, 1e-13);
}

/* A loss that fails on host:1. */
static ek_value touchy_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *target = ek_arg_tensor(args, 1);
    if (ek_tensor_device(target).index == 1)
        return ek_value_of_tensor(
            ek_add(ek_arg_tensor(args, 0),
                   ek_zeros(EK_SHAPE(99, 99), .dtype = EK_F64, .device = test_device(1))));
    return ek_value_of_tensor(ek_mean(ek_arg_tensor(args, 0)));
}

MODULE_TYPE(touchy, ek_module)

TEST(wrong_calls_are_errors)
{
    ek_device_list devices = ek_devices(test_kind(), 3);
    ek_module *model = held(ek_data_parallel_model(make_scorer(), devices));
    ek_module *balanced = held(ek_data_parallel_criterion(make_criterion(EK_MEAN), devices));
    ek_module *others = held(
        ek_data_parallel_criterion(make_criterion(EK_MEAN),
                                   EK_DEVICES(test_device(0), test_device(2), test_device(1))));
    ek_module *touchy = held(ek_data_parallel_criterion(ek_module_new(&touchy_type), devices));
    ek_tensor *x = make_inputs(6);
    assert_refused(ek_loss(balanced, ek_forward(model, x), make_targets(5, 0, 0)), EK_E_SHAPE,
                   "add up to 6, but a tensor to be cut has 5");
    ck_assert_ptr_null(ek_loss(others, ek_forward(model, x), make_targets(6, 0, 0)));
    ck_assert_int_eq(strncmp(ek_error_message(), "data_parallel_criterion: output", 31), 0);
    assert_error(EK_E_DEVICE, "output 2 is on host:2, which isn't in device_ids or stands before");
    assert_refused(ek_loss(touchy, ek_forward(model, x), make_targets(6, 0, 0)), EK_E_SHAPE,
                   "data_parallel_criterion: replica 1 on host:1: touchy");
    ek_value out = ek_module_forward(balanced, &(const ek_args){NULL, 0, ek_value_none()});
    ck_assert_int_eq(out.kind, EK_VALUE_ERROR);
    assert_error(EK_E_INVALID, "data_parallel_criterion: the model's outputs are missing");
    /* A target out of range is found on its device. */
    ek_tensor *target = make_targets(6, 0, 0);
    ((int64_t *)ek_tensor_data(target))[5 * POINTS] = 77;
    assert_refused(settled_tensor(ek_loss(balanced, ek_forward(model, x), target)), EK_E_INVALID,
                   "host:2");
    value_of(ek_loss(balanced, ek_forward(model, x), make_targets(6, 0, 0)));
    assert_refused(ek_data_parallel_criterion(make_criterion(EK_MEAN), devices,
                                              .reduction = (ek_loss_reduction)7),
                   EK_E_INVALID, "7 is no reduction");
}

TEST(only_scalars_reach_the_first_device)
{
    ek_device_list devices = ek_devices(test_kind(), 4);
    ek_module *model = held(ek_data_parallel_model(make_scorer(), devices));
    ek_module *balanced = held(ek_data_parallel_criterion(make_criterion(EK_MEAN), devices));
    value_of(ek_loss(balanced, ek_forward(model, make_inputs(64)), make_targets(64, 0, 0)));
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(test_device(0), &stats));
    ck_assert_uint_eq(stats.at_peak[EK_MEMORY_COMMUNICATION], 0);
}

TEST(memory_does_not_grow)
{
    ek_device_list devices = ek_devices(test_kind(), 4);
    ek_module *model = held(ek_data_parallel_model(make_scorer(), devices));
    ek_module *balanced = held(ek_data_parallel_criterion(make_criterion(EK_MEAN), devices));
    uint64_t after[4] = {0};
    for (int step = 0; step < 200; step++) {
        ek_scope scope = ek_scope_begin();
        int n = 4 + step % 7;
        ek_module_zero_grad(model);
        ek_tensor *loss =
            ek_loss(balanced, ek_forward(model, make_inputs(n)), make_targets(n, 0, step % 3));
        assert_ok(ek_backward(loss));
        ek_scope_end(&scope);
        for (int d = 0; d < 4; d++) {
            if (step == 8)
                after[d] = bytes_in_use(test_device(d));
            if (step > 8)
                ck_assert_uint_eq(bytes_in_use(test_device(d)), after[d]);
        }
    }
}
