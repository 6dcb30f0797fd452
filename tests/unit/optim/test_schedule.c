/* Learning-rate schedules against PyTorch's. */
#include "evenkeel/optim.h"
#include "unit.h"

static ek_optimizer *two_groups(void)
{
    ek_tensor *p = ek_zeros(EK_SHAPE(1), .requires_grad = true);
    ek_tensor *q = ek_zeros(EK_SHAPE(1), .requires_grad = true);
    ek_optimizer *optimizer = ek_sgd(.lr = 0.3);
    assert_ok(ek_optimizer_add_group(optimizer, &p, 1, (ek_optimizer_options){0}));
    assert_ok(ek_optimizer_add_group(optimizer, &q, 1, (ek_optimizer_options){.lr = 0.7}));
    return optimizer;
}

static void follow(ek_optimizer *optimizer, ek_schedule *schedule, const char *name)
{
    ek_tensor *rates = golden("optim.golden", name);
    assert_made(schedule);
    for (int step = 0; step < ek_tensor_size(rates, 0); step++) {
        assert_ok(ek_schedule_step(schedule));
        for (int group = 0; group < 2; group++)
            ck_assert_double_eq_tol(ek_optimizer_lr(optimizer, group),
                                    element(rates, 2 * step + group), 1e-14);
    }
    ek_schedule_free(schedule);
    ek_optimizer_free(optimizer);
}

START_TEST(step_follows_pytorch)
{
    ek_optimizer *optimizer = two_groups();
    follow(optimizer, ek_step_schedule(optimizer, 3, 0.5), "schedule/step");
}
END_TEST

/* Up to T_max: behind it PyTorch's recursion and its closed form differ. */
START_TEST(cosine_follows_pytorch)
{
    ek_optimizer *optimizer = two_groups();
    follow(optimizer, ek_cosine_schedule(optimizer, 8, 0.01), "schedule/cosine");
}
END_TEST

START_TEST(later_groups_start_from_their_own_rate)
{
    ek_optimizer *optimizer = two_groups();
    ek_schedule *schedule = ek_step_schedule(optimizer, 1, 0.5);
    ek_tensor *r = ek_zeros(EK_SHAPE(1), .requires_grad = true);
    assert_ok(ek_schedule_step(schedule));
    assert_ok(ek_optimizer_add_group(optimizer, &r, 1, (ek_optimizer_options){.lr = 8}));
    assert_ok(ek_schedule_step(schedule));
    ck_assert_double_eq(ek_optimizer_lr(optimizer, 2), 2);
    ck_assert_double_eq_tol(ek_optimizer_lr(optimizer, 0), 0.075, 1e-15);
    ek_schedule_free(schedule);
    ek_optimizer_free(optimizer);
}
END_TEST

START_TEST(refuses)
{
    ek_optimizer *optimizer = two_groups();
    ck_assert_ptr_null(ek_step_schedule(optimizer, 0, 0.5));
    assert_error(EK_E_INVALID, "step_size has to be at least 1, not 0");
    ck_assert_ptr_null(ek_step_schedule(optimizer, 1, -1));
    assert_error(EK_E_INVALID, "gamma");
    ck_assert_ptr_null(ek_cosine_schedule(optimizer, -4, 0));
    assert_error(EK_E_INVALID, "steps has to be at least 1, not -4");
    ck_assert_ptr_null(ek_cosine_schedule(NULL, 4, 0));
    assert_error(EK_E_INVALID, "optimizer is NULL");
    ck_assert_int_lt(ek_schedule_step(NULL), 0);
    assert_error(EK_E_INVALID, "schedule is NULL");
    ek_schedule_free(NULL);
    ek_optimizer_free(optimizer);
}
END_TEST

Suite *suite(void)
{
    Suite *s = suite_create("schedule");
    TCase *t = tcase_create("schedule");
    tcase_add_test(t, step_follows_pytorch);
    tcase_add_test(t, cosine_follows_pytorch);
    tcase_add_test(t, later_groups_start_from_their_own_rate);
    tcase_add_test(t, refuses);
    suite_add_tcase(s, t);
    return s;
}
