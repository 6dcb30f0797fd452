/* Losses of parts as sums and weights: what criteria tell, and how parts are joined. */
#include "balance/balance.h"
#include "kit/remote.h"
#include "step_setup.h"

/* ---- joining ---- */

static ek_tensor *number(double value, ek_device device)
{
    return ek_scalar(value, EK_F64, device);
}

static ek_tensor *leaf(double value, ek_device device)
{
    ek_tensor *x = number(value, device);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    return x;
}

static double gradient_of(ek_tensor *x)
{
    return ek_tensor_grad(x) ? value_of(ek_tensor_grad(x)) : 0;
}

/* (2 + 7) / (1 + 3): the part without weight is left out, whatever its sum is. */
static void check_sums(bool weights_on_cpu)
{
    ek_tensor *x[3];
    ek_loss_sum parts[3];
    const double sums[] = {2, (double)NAN, 7}, weights[] = {1, 0, 3};
    for (int i = 0; i < 3; i++) {
        x[i] = leaf(sums[i], test_device(i));
        parts[i] =
            (ek_loss_sum){x[i], number(weights[i], weights_on_cpu ? ek_cpu() : test_device(i))};
    }
    ek_tensor *loss = ek_loss_sums_mean(parts, 3, test_device(1));
    ck_assert_double_eq(value_of(loss), 2.25);
    ck_assert(ek_device_equal(ek_tensor_device(loss), test_device(1)));
    assert_ok(ek_backward(loss));
    ck_assert_double_eq(gradient_of(x[0]), 0.25);
    ck_assert_double_eq(gradient_of(x[1]), 0);
    ck_assert_double_eq(gradient_of(x[2]), 0.25);
}

TEST_LOOP(sums_and_weights_are_added, 0, 2)
{
    check_sums(_i);
}

TEST(weights_on_devices_are_not_waited_for)
{
    make_remote(3, EK_COLLECTIVE_NONE);
    check_sums(false);
    end_remote();
}

TEST(nothing_divides_sums)
{
    ek_loss_sum parts[2] = {{leaf(2, test_device(0)), NULL}, {leaf(5, test_device(1)), NULL}};
    ck_assert_double_eq(value_of(ek_loss_sums_mean(parts, 2, test_device(0))), 7);
}

/* All are empty: the loss is NaN, and still has a history. */
TEST(all_empty_is_nan)
{
    ek_loss_sum parts[2] = {{leaf(0, test_device(0)), number(0, ek_cpu())},
                            {leaf(0, test_device(1)), number(0, ek_cpu())}};
    ek_tensor *loss = ek_loss_sums_mean(parts, 2, test_device(0));
    ck_assert(isnan(value_of(loss)));
    assert_ok(ek_backward(loss));
}

/* Joined in steps or at once, the numbers are the same: what has been joined is a part again. */
TEST(what_is_joined_is_a_part)
{
    ek_loss_sum parts[4], two[2];
    for (int i = 0; i < 4; i++)
        parts[i] = (ek_loss_sum){number(1 << i, test_device(i % 2)), number(i, ek_cpu())};
    assert_ok(ek_loss_sums_add(parts, 2, test_device(0), &two[0]));
    assert_ok(ek_loss_sums_add(parts + 2, 2, test_device(1), &two[1]));
    /* The first part is empty, so 1 doesn't count. */
    ck_assert_double_eq(value_of(ek_loss_sums_mean(two, 2, test_device(0))), 14.0 / 6);
    ck_assert_double_eq(value_of(ek_loss_sums_mean(parts, 4, test_device(0))), 14.0 / 6);
}

/* ---- what criteria tell ---- */

/* Criteria give their mean by sum and weight too; a sum has no weight, and losses per element have
 * no sum. */
TEST_LOOP(sums_over_weights_are_the_loss, 0, LOSS_KINDS)
{
    loss_kind kind = (loss_kind)_i;
    job j = make_job(PLAIN, kind, EK_F64);
    ek_value target = ek_value_to_device(make_target(kind, 5, EK_F64), test_home(), 0);
    ek_tensor *scores =
        ek_value_tensor(ek_forward(j.net, ek_to_device(make_inputs(5), test_home())));
    ek_value inputs[] = {EK_VALUE(scores), target};
    ek_args args = {inputs, target.kind == EK_VALUE_NONE ? 1 : 2, ek_value_none()};
    ek_loss_sum part;
    ek_value loss = ek_module_forward(j.criterion, &args);
    ck_assert_int_ne(ek_loss_sum_ask(j.criterion, &args, 5, &part).kind, EK_VALUE_ERROR);
    ck_assert_int_eq(part.weight == NULL, kind == SUM);
    assert_near(value_of(ek_loss_sums_mean(&part, 1, test_home())), value_of(loss.as.tensor),
                1e-13);
    free_job(&j);
}

TEST(losses_per_element_have_no_sum)
{
    ek_module *criterion = held(ek_mse_loss(.reduction = EK_NONE));
    ek_tensor *x = ek_ones(EK_SHAPE(3), .device = test_device(0));
    ek_loss_sum part;
    ek_value loss =
        ek_loss_sum_ask(criterion, &(const ek_args){EK_VALUES(x, x), 2, ek_value_none()}, 3, &part);
    ck_assert_int_eq(ek_tensor_ndim(ek_value_tensor(loss)), 1);
    ck_assert_ptr_null(part.sum);
}

/* The second device has nothing to average. */
TEST(a_sum_of_the_users_own)
{
    job plain = make_job(PLAIN, USERS_SUM, EK_F64), j = make_job(BALANCED, USERS_SUM, EK_F64);
    ek_tensor *x = make_inputs(9), *target = make_targets(9, 3, 6);
    double expected = whole_batch(&plain, ek_value_of_tensor(x), ek_value_of_tensor(target));
    ek_tensor *loss = ek_loss(j.criterion, ek_forward(j.model, x), target);
    assert_near(value_of(loss), expected, 1e-13);
    assert_ok(ek_backward(loss));
    assert_at_most(gradient_distance(j.net, plain.net), 1e-12);
    free_job(&plain);
    free_job(&j);
}

/* ---- errors ---- */

enum { NO_SUM, NO_SCALAR, TWO_WEIGHTS, FAILS };
static int fault;

static int faulty_loss_sum(ek_module *module, const ek_args *args, ek_loss_sum *loss)
{
    ek_tensor *x = ek_arg_tensor(args, 0);
    if (fault == FAILS)
        return ek_error(EK_E_STATE, "not today");
    if (fault != NO_SUM)
        loss->sum = fault == NO_SCALAR ? x : ek_sum(x);
    loss->weight = ek_ones(EK_SHAPE(fault == TWO_WEIGHTS ? 2 : 1), .dtype = EK_F64,
                           .device = ek_tensor_device(x));
    return 0;
}

static const ek_module_type faulty_type = {.name = "faulty",
                                           .size = sizeof(ek_module),
                                           .forward = counted_forward,
                                           .loss_sum = faulty_loss_sum};

TEST(wrong_sums_are_errors)
{
    static const char *const texts[] = {"faulty: loss_sum gave no sum",
                                        "faulty: the sum of its loss has to be one number, not f64",
                                        "faulty: the weight of its loss has to be one number, not "
                                        "f64[2]",
                                        "faulty: not today"};
    static const int statuses[] = {EK_E_INVALID, EK_E_SHAPE, EK_E_SHAPE, EK_E_STATE};
    ek_device_list devices = ek_devices(test_kind(), 2);
    ek_module *model = held(ek_data_parallel_model(make_scorer(), devices));
    ek_module *criterion = held(ek_data_parallel_criterion(ek_module_new(&faulty_type), devices));
    for (fault = NO_SUM; fault <= FAILS; fault++) {
        assert_refused(ek_loss(criterion, ek_forward(model, make_inputs(4)), make_targets(4, 0, 0)),
                       statuses[fault], texts[fault]);
    }
}

/* Losses per element have no sum that micro-batches could add, on several devices neither. */
TEST(losses_per_element_are_no_step)
{
    job j = make_job(BALANCED, CROSS_ENTROPY, EK_F64);
    ek_module_free(j.criterion);
    j.criterion = ek_data_parallel_criterion(ek_cross_entropy_loss(.reduction = EK_NONE,
                                                                   .ignore_index = IGNORED),
                                             ek_devices(test_kind(), 3));
    for (int parts = 1; parts <= 2; parts++) {
        assert_refused(train_job(NULL, &j, .input = EK_VALUE(make_inputs(6)),
                                 .target = EK_VALUE(make_targets(6, 0, 0)), .micro_batches = parts),
                       EK_E_SHAPE, "its reduction has to be a mean or a sum");
    }
    free_job(&j);
}
