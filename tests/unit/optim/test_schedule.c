/* Learning-rate schedules against PyTorch's. */
#include "kit/optimizers.h"
#include "schedule_setup.h"

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

TEST(step_follows_pytorch)
{
    ek_optimizer *optimizer = two_groups();
    follow(optimizer, ek_step_lr(optimizer, 3, 0.5), "schedule/step");
}

TEST(cosine_follows_pytorch)
{
    ek_optimizer *optimizer = two_groups();
    follow(optimizer, ek_cosine_annealing_lr(optimizer, 8, 0.01), "schedule/cosine");
}

TEST(cosine_follows_pytorch_beyond_its_end)
{
    ek_optimizer *optimizer = two_groups();
    follow(optimizer, ek_cosine_annealing_lr(optimizer, 7, 0.003), "schedule/cosine_beyond");
}

/* ---- rates that are set by hand ---- */

/* After these steps; the script that wrote the golden file has the same. */
static const struct {
    int64_t step;
    double rates[2];
} by_hand[] = {{4, {0.05, 0.9}}, {8, {0.2, 0.2}}, {9, {0.6, 0.04}}};

static void set_by_hand(ek_optimizer *optimizer, int64_t step)
{
    for (size_t k = 0; k < sizeof by_hand / sizeof *by_hand; k++)
        for (int group = 0; group < 2 && by_hand[k].step == step; group++)
            assert_ok(ek_optimizer_set(optimizer, group, "lr", by_hand[k].rates[group]));
}

static ek_schedule *schedule_by_hand(ek_optimizer *optimizer, int which)
{
    return which ? ek_cosine_annealing_lr(optimizer, 8, 0.01) : ek_step_lr(optimizer, 3, 0.7);
}

TEST_LOOP(goes_on_from_what_is_set_as_pytorch_does, 0, 2)
{
    ek_tensor *rates =
        golden("optim.golden", _i ? "schedule/cosine_by_hand" : "schedule/step_by_hand");
    ek_optimizer *optimizer = two_groups();
    ek_schedule *schedule = schedule_by_hand(optimizer, _i);
    for (int step = 1; step <= ek_tensor_size(rates, 0); step++) {
        assert_ok(ek_schedule_step(schedule));
        for (int group = 0; group < 2; group++) {
            double wanted = element(rates, 2 * (step - 1) + group);
            ck_assert_double_eq_tol(ek_optimizer_lr(optimizer, group), wanted, 1e-14 * wanted);
        }
        set_by_hand(optimizer, step);
    }
    ek_schedule_free(schedule);
    ek_optimizer_free(optimizer);
}

/* As many steps at once are what they are one by one, to the bit; and what was set by hand is
 * forgotten. */
TEST_LOOP(set_steps_is_as_stepping, 0, 2)
{
    ek_optimizer *optimizer = two_groups(), *other = two_groups();
    ek_schedule *schedule = schedule_by_hand(optimizer, _i);
    ek_schedule *again = schedule_by_hand(other, _i);
    for (int64_t step = 1; step <= 60; step++) {
        assert_ok(ek_schedule_step(schedule));
        assert_ok(ek_optimizer_set(other, 0, "lr", 0.125));
        assert_ok(ek_schedule_set_steps(again, step));
        for (int group = 0; group < 2; group++)
            ck_assert_double_eq(ek_optimizer_lr(other, group), ek_optimizer_lr(optimizer, group));
    }
    assert_ok(ek_schedule_set_steps(again, 0));
    ck_assert_double_eq(ek_optimizer_lr(other, 0), 0.3);
    /* Nobody waits for very many. */
    assert_ok(ek_schedule_set_steps(again, INT64_MAX - 1));
    ck_assert_double_ge(ek_optimizer_lr(other, 0), 0);
    ck_assert_double_le(ek_optimizer_lr(other, 0), 0.3 + 1e-12);
    ek_schedule_free(schedule);
    ek_schedule_free(again);
    ek_optimizer_free(optimizer);
    ek_optimizer_free(other);
}

/* A rate below lr_min is led away from it beyond the end, and would become negative. */
TEST(an_impossible_rate_changes_nothing)
{
    ek_optimizer *optimizer = two_groups();
    ek_schedule *schedule = ek_cosine_annealing_lr(optimizer, 4, 0.1);
    for (int step = 0; step < 5; step++)
        assert_ok(ek_schedule_step(schedule));
    double first = ek_optimizer_lr(optimizer, 0);
    assert_ok(ek_optimizer_set(optimizer, 1, "lr", 0));
    assert_refused(ek_schedule_step(schedule), EK_E_INVALID,
                   "cosine_annealing_lr: step 6 would make the rate of group 1 -0.");
    ck_assert_int_eq(ek_schedule_steps(schedule), 5);
    ck_assert_double_eq(ek_optimizer_lr(optimizer, 0), first);
    ck_assert_double_eq(ek_optimizer_lr(optimizer, 1), 0);
    ek_schedule_free(schedule);
    ek_optimizer_free(optimizer);
}

/* Of 2048 linear schedules to 0 a quarter ends below it by the rounding of its last step. */
TEST(a_rate_that_rounding_makes_negative_is_zero)
{
    const double starts[] = {1, 0.5, 0.3, 0.1};
    ek_optimizer *optimizer = two_groups();
    for (int steps = 2; steps < 130; steps++) {
        ek_schedule *schedule = ek_linear_lr(optimizer, starts[steps % 4], 0, steps);
        for (int step = 0; step < steps; step++)
            assert_ok(ek_schedule_step(schedule));
        ck_assert_double_eq_tol(ek_optimizer_lr(optimizer, 0), 0, 1e-15);
        ck_assert(ek_optimizer_lr(optimizer, 0) >= 0);
        ek_schedule_free(schedule);
        assert_ok(ek_optimizer_set(optimizer, 0, "lr", 0.3));
        assert_ok(ek_optimizer_set(optimizer, 1, "lr", 0.3));
    }
    ek_optimizer_free(optimizer);
}

TEST(a_refused_rate_names_the_schedule_of_a_list)
{
    ek_optimizer *optimizer = two_groups();
    ek_schedule *chain =
        ek_chained_lr(ek_exponential_lr(optimizer, 0.5), ek_cosine_annealing_lr(optimizer, 4, 0.1));
    int status = 0;
    for (int step = 0; step < 12 && status == 0; step++)
        status = ek_schedule_step(chain);
    ck_assert_int_eq(status, EK_E_INVALID);
    assert_error(EK_E_INVALID, "by its schedule 1, cosine_annealing_lr");
    ek_schedule_free(chain);
    ek_optimizer_free(optimizer);
}

TEST(later_groups_start_from_their_own_rate)
{
    ek_optimizer *optimizer = two_groups();
    ek_schedule *schedule = ek_step_lr(optimizer, 1, 0.5);
    ek_tensor *r = ek_zeros(EK_SHAPE(1), .requires_grad = true);
    assert_ok(ek_schedule_step(schedule));
    assert_ok(add_group_with(optimizer, &r, 1, "lr", 8));
    assert_ok(ek_schedule_step(schedule));
    ck_assert_double_eq(ek_optimizer_lr(optimizer, 2), 4);
    ck_assert_double_eq_tol(ek_optimizer_lr(optimizer, 0), 0.075, 1e-15);
    ek_schedule_free(schedule);
    ek_optimizer_free(optimizer);
}

TEST(refuses)
{
    ek_optimizer *optimizer = two_groups();
    assert_refused(ek_step_lr(optimizer, 0, 0.5), EK_E_INVALID,
                   "step_size has to be at least 1, not 0");
    assert_refused(ek_step_lr(optimizer, 1, -1), EK_E_INVALID, "gamma");
    assert_refused(ek_cosine_annealing_lr(optimizer, -4, 0), EK_E_INVALID,
                   "steps has to be at least 1, not -4");
    assert_refused(ek_cosine_annealing_lr(NULL, 4, 0), EK_E_INVALID, "optimizer is NULL");
    assert_refused(ek_schedule_step(NULL), EK_E_INVALID, "schedule is NULL");
    ek_schedule_free(NULL);
    ek_optimizer_free(optimizer);
}
