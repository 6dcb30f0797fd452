/* All kinds of schedules against PyTorch's rates and momentum: by stepping, at once, and from a
 * file. */
#include "../optim/schedule_setup.h"
#include "archive_setup.h"

/* ---- the kinds ---- */

static double fade(int64_t step, int group, void *user)
{
    return group ? pow(0.5, (double)step) : 1 / (1 + (double)step);
}

static double shrink(int64_t step, int group, void *user)
{
    return group ? 1 - *(double *)user * (double)step : 0.9;
}

static double hundredth = 0.01;
static const double max_lrs[] = {0.5, 2};

static ek_schedule *make(const char *name, ek_optimizer *o)
{
    static const int64_t first[] = {4, 9}, second[] = {5, 11}, third[] = {3};
#define IS(text)                 \
    if (strcmp(name, text) == 0) \
    return
    IS("lambda") ek_lambda_lr(o, fade, NULL);
    IS("multiplicative") ek_multiplicative_lr(o, shrink, &hundredth);
    IS("multi_step") ek_multi_step_lr(o, 0.5, 7, 3, 7, 12);
    IS("constant") ek_constant_lr(o, 0.25, 4);
    IS("linear") ek_linear_lr(o, 0.25, 0.75, 6);
    IS("exponential") ek_exponential_lr(o, 0.9);
    IS("polynomial") ek_polynomial_lr(o, 9, 2.5);
    IS("restarts") ek_cosine_annealing_warm_restarts(o, 3, 2, 0.01);
    IS("restarts_equal") ek_cosine_annealing_warm_restarts(o, 4, 1, 0);
    IS("one_cycle") ek_one_cycle_lr(o, .total_steps = 18, .max_lrs = max_lrs);
    IS("adam_one_cycle") ek_one_cycle_lr(o, 0.5, 18);
    IS("one_cycle_three")
    ek_one_cycle_lr(o, 0.5, 19, .pct_start = 0.4, .linear = true, .base_momentum = 0.7,
                    .max_momentum = 0.9, .div_factor = 10, .final_div_factor = 100,
                    .three_phase = true);
    IS("cyclic") ek_cyclic_lr(o, 0.01, 0.1, .step_size_up = 3, .step_size_down = 4);
    IS("cyclic_halves")
    ek_cyclic_lr(o, 0.01, 0.1, .step_size_up = 2, .mode = EK_CYCLIC_TRIANGULAR2,
                 .cycle_momentum = false);
    IS("cyclic_range")
    ek_cyclic_lr(o, 0.01, 0.1, .step_size_up = 4, .mode = EK_CYCLIC_EXP_RANGE, .gamma = 0.95);
    IS("sequential")
    ek_sequential_lr((ek_schedule *[]){ek_constant_lr(o, 0.1, 3), ek_exponential_lr(o, 0.9),
                                       ek_cosine_annealing_lr(o, 6, 0)},
                     3, first);
    IS("sequential_step")
    ek_sequential_lr((ek_schedule *[]){ek_linear_lr(o, 0.1, 1, 5), ek_step_lr(o, 2, 0.5),
                                       ek_polynomial_lr(o, 5, 1)},
                     3, second);
    IS("sequential_restarts")
    ek_sequential_lr((ek_schedule *[]){ek_linear_lr(o, 0.5, 1, 3),
                                       ek_cosine_annealing_warm_restarts(o, 4, 1, 0)},
                     2, third);
    IS("chained")
    ek_chained_lr(ek_constant_lr(o, 0.1, 4), ek_exponential_lr(o, 0.9),
                  ek_multi_step_lr(o, 0.5, 2, 6));
#undef IS
    ck_abort_msg("there is no schedule %s", name);
    return NULL;
}

static const char *const names[] = {"lambda",     "multiplicative",  "multi_step",
                                    "constant",   "linear",          "exponential",
                                    "polynomial", "restarts",        "restarts_equal",
                                    "one_cycle",  "adam_one_cycle",  "one_cycle_three",
                                    "cyclic",     "cyclic_halves",   "cyclic_range",
                                    "sequential", "sequential_step", "sequential_restarts",
                                    "chained"};
enum { KINDS = sizeof names / sizeof *names, STEPS = 18 };

static ek_optimizer *optimizer_for(const char *name)
{
    return with_two_groups(strncmp(name, "adam", 4) == 0 ? ek_adam(.lr = 0.3)
                                                         : ek_sgd(.lr = 0.3, .momentum = 0.4));
}

static double momentum_of(const ek_optimizer *optimizer, int group)
{
    double momentum = NAN;
    const char *name = ek_optimizer_state_name(optimizer, 0);
    assert_ok(ek_optimizer_get(optimizer, group,
                               strcmp(name, "exp_avg") == 0 ? "beta1" : "momentum", &momentum));
    return momentum;
}

static void assert_as_golden(const ek_optimizer *optimizer, const ek_tensor *rows, int64_t step)
{
    for (int group = 0; group < 2; group++) {
        ck_assert_double_eq_tol(ek_optimizer_lr(optimizer, group), element(rows, 4 * step + group),
                                1e-13);
        ck_assert_double_eq_tol(momentum_of(optimizer, group), element(rows, 4 * step + 2 + group),
                                1e-13);
    }
}

static ek_tensor *golden_rows(const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "more/%s", name);
    return golden("optim.golden", path);
}

TEST_LOOP(follow_pytorch, 0, KINDS)
{
    ek_tensor *rows = golden_rows(names[_i]);
    ek_optimizer *optimizer = optimizer_for(names[_i]), *other = optimizer_for(names[_i]);
    ek_schedule *schedule = make(names[_i], optimizer), *again = make(names[_i], other);
    assert_made(schedule);
    for (int64_t step = 0; step <= STEPS; step++) {
        assert_as_golden(optimizer, rows, step);
        /* ek_schedule_set_steps sets the rates of this step in one call, whatever was set by hand.
         */
        assert_ok(ek_optimizer_set(other, 0, "lr", 0.125));
        assert_ok(ek_schedule_set_steps(again, step));
        for (int group = 0; group < 2; group++)
            ck_assert_double_eq(ek_optimizer_lr(other, group), ek_optimizer_lr(optimizer, group));
        assert_as_golden(other, rows, step);
        if (step < STEPS)
            assert_ok(ek_schedule_step(schedule));
    }
    ek_schedule_free(schedule);
    ek_schedule_free(again);
    ek_optimizer_free(optimizer);
    ek_optimizer_free(other);
}

TEST_LOOP(go_on_from_a_file, 0, KINDS)
{
    ek_tensor *rows = golden_rows(names[_i]);
    ek_optimizer *optimizer = optimizer_for(names[_i]), *other = optimizer_for(names[_i]);
    ek_schedule *schedule = make(names[_i], optimizer);
    for (int step = 0; step < 10; step++)
        assert_ok(ek_schedule_step(schedule));
    ek_archive *archive = ek_archive_new();
    assert_ok(ek_archive_put_schedule(archive, "s", schedule));
    archive = through_file(archive);
    ek_schedule *again = make(names[_i], other);
    assert_ok(ek_archive_load_schedule(archive, "s", again));
    for (int64_t step = 10; step <= STEPS; step++) {
        assert_as_golden(other, rows, step);
        if (step < STEPS)
            assert_ok(ek_schedule_step(again));
    }
    ek_archive_free(archive);
    ek_schedule_free(schedule);
    ek_schedule_free(again);
    ek_optimizer_free(optimizer);
    ek_optimizer_free(other);
}

/* ---- plateaus ---- */

static ek_schedule *make_plateau(int i, ek_optimizer *o)
{
    switch (i) {
    case 0:
        return ek_reduce_lr_on_plateau(o, .patience = 2);
    case 1:
        return ek_reduce_lr_on_plateau(o, .factor = 0.5, .patience = 1, .cooldown = 2,
                                       .min_lr = 0.05);
    case 2:
        return ek_reduce_lr_on_plateau(o, .factor = 0.3, .patience = 0, .higher = true,
                                       .threshold = 0.2, .absolute = true);
    default:
        return ek_reduce_lr_on_plateau(o, .patience = 2, .higher = true, .threshold = 0.1,
                                       .eps = 0.1);
    }
}

TEST_LOOP(plateaus_follow_pytorch, 0, 4)
{
    static const char *const plateaus[] = {"plateau/plain", "plateau/cooldown", "plateau/higher",
                                           "plateau/relative"};
    ek_tensor *rows = golden("optim.golden", plateaus[_i]);
    ek_tensor *measures = golden("optim.golden", "plateau/measures");
    for (int64_t stop = 0; stop < ek_tensor_size(rows, 0); stop += 3) {
        ek_optimizer *optimizer = two_groups();
        ek_schedule *schedule = make_plateau(_i, optimizer);
        for (int64_t step = 0; step < ek_tensor_size(rows, 0); step++) {
            if (step == stop) { /* goes on from a file */
                ek_archive *archive = ek_archive_new();
                assert_ok(ek_archive_put_schedule(archive, "s", schedule));
                archive = through_file(archive);
                ek_schedule_free(schedule);
                schedule = make_plateau(_i, optimizer);
                assert_ok(ek_archive_load_schedule(archive, "s", schedule));
                ek_archive_free(archive);
            }
            assert_ok(ek_schedule_step_measure(schedule, element(measures, step)));
            for (int group = 0; group < 2; group++)
                ck_assert_double_eq_tol(ek_optimizer_lr(optimizer, group),
                                        element(rows, 2 * step + group), 1e-14);
        }
        ck_assert_int_eq(ek_schedule_steps(schedule), ek_tensor_size(rows, 0));
        assert_refused(ek_schedule_step(schedule), EK_E_INVALID, "ek_schedule_step_measure");
        assert_refused(ek_schedule_set_steps(schedule, 3), EK_E_INVALID, "what was measured");
        ek_schedule_free(schedule);
        ek_optimizer_free(optimizer);
    }
}

/* ---- what PyTorch doesn't have ---- */

/* From 0 PyTorch can't go up, because it divides by the factor before. */
TEST(warms_up_from_nothing)
{
    ek_optimizer *o = two_groups();
    ek_schedule *schedule = ek_warm_up_lr(o, 0, 4, ek_step_lr(o, 2, 0.5));
    assert_made(schedule);
    static const double wanted[] = {0, 0.25, 0.5, 0.75, 1, 1, 0.5, 0.5, 0.25};
    for (int step = 0; step < 9; step++) {
        for (int group = 0; group < 2; group++)
            ck_assert_double_eq_tol(ek_optimizer_lr(o, group), wanted[step] * (group ? 0.7 : 0.3),
                                    1e-15);
        assert_ok(ek_schedule_step(schedule));
    }
    ek_schedule_free(schedule);
    schedule = ek_warm_up_lr(o, 0.5, 4, NULL);
    assert_made(schedule);
    ek_schedule_free(schedule);
    ek_optimizer_free(o);
}

/* A momentum of 1.5 and more is no beta1, and is refused only when it is set. */
TEST_LOOP(one_that_fails_leaves_the_initial_rates, 0, 2)
{
    ek_optimizer *o = with_two_groups(_i ? ek_sgd(.lr = 0.3, .momentum = 0.5) : ek_adam(.lr = 0.3));
    if (_i)
        assert_refused(ek_cyclic_lr(o, 0.1, 0.4, .max_momentum = -3), EK_E_INVALID, "momentum");
    else
        assert_refused(ek_one_cycle_lr(o, 8, 10, .max_momentum = 1.5), EK_E_INVALID, "beta1");
    ek_schedule *schedule = ek_step_lr(o, 1, 0.5);
    assert_made(schedule);
    for (int group = 0; group < 2; group++)
        ck_assert_double_eq(ek_optimizer_lr(o, group), group ? 0.7 : 0.3);
    assert_ok(ek_schedule_set_steps(schedule, 1));
    for (int group = 0; group < 2; group++)
        ck_assert_double_eq_tol(ek_optimizer_lr(o, group), group ? 0.35 : 0.15, 1e-15);
    ek_schedule_free(schedule);
    ek_optimizer_free(o);
}

TEST(refuse)
{
    ek_optimizer *o = two_groups(), *other = two_groups(), *plain = with_two_groups(ek_rprop());
    const int64_t falling[] = {5, 3};
    assert_refused(ek_multi_step_lr_of(o, 0.1, NULL, 2), EK_E_INVALID, "2 milestones at NULL");
    assert_refused(ek_exponential_lr(o, NAN), EK_E_INVALID, "gamma has to be 0 or more, not nan");
    assert_refused(ek_constant_lr(o, 1.5, 2), EK_E_INVALID, "factor has to be 0 to 1, not 1.5");
    assert_refused(ek_linear_lr(o, 0.5, 2, 2), EK_E_INVALID, "end has to be 0 to 1");
    assert_refused(ek_polynomial_lr(o, 0, 1), EK_E_INVALID, "steps has to be at least 1");
    assert_refused(ek_cosine_annealing_warm_restarts(o, 1, 0, 0), EK_E_INVALID,
                   "factor has to be at least 1");
    assert_refused(ek_lambda_lr(o, NULL, NULL), EK_E_INVALID, "lambda_lr: the function is NULL");
    assert_refused(ek_lambda_lr(NULL, fade, NULL), EK_E_INVALID, "optimizer is NULL");
    assert_refused(ek_one_cycle_lr(o, 0.1), EK_E_INVALID, "total_steps has to be at least 1");
    assert_refused(ek_one_cycle_lr(o, 0.1, 5, .div_factor = 0), EK_E_INVALID, "div_factor 0");
    assert_refused(ek_one_cycle_lr(plain, 0.1, 5), EK_E_INVALID,
                   "one_cycle_lr: rprop has no momentum to cycle");
    assert_refused(ek_one_cycle_lr(o, 0.1, 10, .pct_start = 0.1), EK_E_INVALID,
                   "pct_start 0.1 of total_steps 10 is 1 step");
    assert_refused(ek_cyclic_lr(o, 0.1, -1), EK_E_INVALID, "max_lr has to be 0 or more");
    assert_refused(ek_reduce_lr_on_plateau(o, .factor = 1), EK_E_INVALID, "less than 1");
    assert_refused(ek_reduce_lr_on_plateau(o, .patience = -1), EK_E_INVALID, "patience -1");
    assert_refused(ek_chained_lr(ek_step_lr(o, 1, 1), ek_step_lr(other, 1, 1)), EK_E_INVALID,
                   "different optimizers");
    assert_refused(ek_chained_lr(ek_step_lr(o, 1, 1), ek_reduce_lr_on_plateau(o)), EK_E_INVALID,
                   "needs a measure");
    assert_refused(ek_chained_lr(ek_step_lr(o, 1, 1), ek_step_lr(o, 0, 1)), EK_E_INVALID,
                   "step_size");
    assert_refused(ek_sequential_lr(NULL, 0, NULL), EK_E_INVALID, "at least one schedule");
    assert_refused(ek_sequential_lr((ek_schedule *[]){ek_step_lr(o, 1, 1), ek_step_lr(o, 1, 1),
                                                      ek_step_lr(o, 1, 1)},
                                    3, falling),
                   EK_E_INVALID, "number 1 is 3");
    /* A function that gives no rate. */
    ek_schedule *schedule = ek_multiplicative_lr(o, shrink, &hundredth);
    double before = ek_optimizer_lr(o, 0), most = hundredth;
    hundredth = 2;
    assert_refused(ek_schedule_step(schedule), EK_E_INVALID,
                   "multiplicative_lr: step 1 would make the rate of group 1 -0.7");
    hundredth = most;
    ck_assert_double_eq(ek_optimizer_lr(o, 0), before);
    ek_schedule_free(schedule);
    schedule = ek_one_cycle_lr(o, 0.1, 2, .pct_start = 0.9, .cycle_momentum = false);
    assert_ok(ek_schedule_step(schedule));
    assert_ok(ek_schedule_step(schedule));
    assert_refused(ek_schedule_step(schedule), EK_E_INVALID, "step 3 is beyond total_steps 2");
    ck_assert_int_eq(ek_schedule_steps(schedule), 2);
    ek_schedule_free(schedule);
    ek_optimizer_free(o);
    ek_optimizer_free(other);
    ek_optimizer_free(plain);
}
