/* What trials say about trainings that have not run. */
#include "balance/fit_model.h"
#include "unit.h"

static ek_fit_estimator estimator;

static void begin(void)
{
    estimator = (ek_fit_estimator){.devices = 2,
                                   .limits = {UINT64_MAX, UINT64_MAX},
                                   .costs = {1, 1},
                                   .levels = {3, 1, 2, 1, 2},
                                   .most_parts = 8};
}

static void end(void)
{
    free(estimator.trials);
}

FIXTURE(begin, end)

/* A trial of n samples on each device, which needs what the lines say; a failed one if seconds is
 * 0.
 */
static void add(int checkpoints, int offload, int parts, int n, double seconds, uint64_t peak)
{
    ek_fit_trial trial = {.training = {.levels = {checkpoints, 0, offload, 0, parts > 1},
                                       .parts = parts,
                                       .sizes = {n, n}},
                          .ran = seconds > 0,
                          .need = {seconds, {peak, peak}},
                          .update_seconds = 0.5};
    trial.short_of[0] = trial.short_of[1] = !trial.ran;
    assert_ok(ek_fit_add_trial(&estimator, &trial));
}

static ek_fit_training training(int checkpoints, int offload, int parts, int first, int second)
{
    return (ek_fit_training){.levels = {checkpoints, 0, offload, 0, parts > 1},
                             .parts = parts,
                             .sizes = {first, second}};
}

static void assert_need(ek_fit_training of, double seconds, uint64_t first, uint64_t second)
{
    ek_fit_need need = ek_fit_estimate(&estimator, &of);
    ck_assert_double_eq_tol(need.seconds, seconds, 1e-9);
    ck_assert_uint_eq(need.peaks[0], first);
    ck_assert_uint_eq(need.peaks[1], second);
}

/* The plain kind: 1000 + 10 n bytes, 0.5 + 1 + n / 10 seconds. */
static void add_plain(void)
{
    add(0, 0, 1, 10, 2.5, 1100);
    add(0, 0, 1, 30, 4.5, 1300);
}

TEST(a_kind_is_a_line)
{
    add_plain();
    assert_need(training(0, 0, 1, 20, 10), 3.5, 1200, 1100);
    assert_need(training(0, 0, 1, 40, 30), 5.5, 1400, 1300);
    /* A third point bends it. */
    add(0, 0, 1, 50, 8.5, 2300);
    assert_need(training(0, 0, 1, 40, 60), 10.5, 1800, 2800);
    /* Before the first point: not less than in proportion. */
    add(0, 1, 1, 10, 1.5, 100);
    add(0, 1, 1, 20, 3.5, 300);
    assert_need(training(0, 1, 1, 5, 5), 1, 50, 50);
}

TEST(parts_follow_each_other)
{
    add(0, 0, 2, 10, 4.5, 1500);
    add(0, 0, 2, 20, 6.5, 1600);
    assert_need(training(0, 0, 5, 10, 10), 10.5, 1500, 1500);
    assert_need(training(0, 0, 2, 20, 20), 6.5, 1600, 1600);
}

TEST(kinds_without_trials_are_combined)
{
    add_plain();
    add(2, 0, 1, 10, 4.5, 1050); /* twice the time of a part, 5 n bytes */
    add(2, 0, 1, 30, 8.5, 1150);
    add(0, 1, 1, 10, 2.5, 600); /* half the bytes */
    add(0, 1, 1, 30, 4.5, 800);
    assert_need(training(2, 1, 1, 30, 30), 8.5, 650, 650);
}

TEST(the_fastest_that_fits_is_chosen)
{
    ek_fit_training chosen;
    estimator.only_known = true;
    add_plain();
    add(2, 0, 1, 10, 3.5, 1050);
    add(2, 0, 1, 30, 6.5, 1150);
    ck_assert(ek_fit_choose(&estimator, 60, &chosen));
    ck_assert_int_eq(chosen.levels[EK_FIT_CHECKPOINTS], 0);
    ck_assert(chosen.parts == 1 && chosen.sizes[0] == 30 && chosen.sizes[1] == 30);
    estimator.limits[0] = estimator.limits[1] = 1200;
    ck_assert(ek_fit_choose(&estimator, 60, &chosen));
    ck_assert_int_eq(chosen.levels[EK_FIT_CHECKPOINTS], 2);
    /* Devices of other sizes and speeds get other shares. */
    estimator.limits[1] = 1100;
    ck_assert(ek_fit_choose(&estimator, 60, &chosen));
    ck_assert(chosen.sizes[0] == 40 && chosen.sizes[1] == 20);
    estimator.limits[0] = estimator.limits[1] = UINT64_MAX;
    estimator.costs[0] = 0.5;
    ck_assert(ek_fit_choose(&estimator, 60, &chosen));
    ck_assert(chosen.sizes[0] == 40 && chosen.sizes[1] == 20);
}

TEST(what_failed_is_not_chosen_again)
{
    ek_fit_training chosen;
    int device;
    estimator.only_known = true;
    estimator.limits[0] = estimator.limits[1] = 2000;
    add_plain();
    add(0, 0, 1, 60, 0, 0);
    ck_assert(!ek_fit_choose(&estimator, 120, &chosen));
    ck_assert(chosen.sizes[0] == 60 && chosen.sizes[1] == 60);
    ek_fit_need need = ek_fit_estimate(&estimator, &chosen);
    ck_assert_uint_eq(ek_fit_missing(&estimator, &need, &device), 200);
    ck_assert(ek_fit_choose(&estimator, 100, &chosen));
}

TEST(trials_of_one_training_are_one)
{
    ek_fit_training plain = training(0, 0, 1, 10, 10);
    add(0, 0, 1, 10, 2.5, 1100);
    add(0, 0, 1, 10, 2, 1000);
    ck_assert_int_eq(estimator.count, 1);
    ck_assert_int_eq(ek_fit_trial_of(&estimator, &plain)->times, 2);
    assert_need(plain, 2, 1100, 1100);
    add(0, 0, 1, 10, 0, 0);
    ck_assert(!ek_fit_trial_of(&estimator, &plain)->ran);
}

TEST(a_means_is_taken_away)
{
    ek_fit_training all = training(2, 1, 4, 7, 3), without;
    without = ek_fit_without(&estimator, &all, 40, EK_FIT_CHECKPOINTS);
    ck_assert(without.levels[EK_FIT_CHECKPOINTS] == 0 && without.sizes[0] == 7);
    without = ek_fit_without(&estimator, &all, 40, EK_FIT_PARTS);
    ck_assert(without.parts == 1 && without.sizes[0] == 20 && without.sizes[1] == 20);
    without = ek_fit_without(&estimator, &all, 40, EK_FIT_FACTORS);
    ck_assert(without.parts == 4 && without.sizes[0] == 5 && without.sizes[1] == 5);
    all.levels[EK_FIT_SHARD] = EK_SHARD_PARAMETERS; /* offloading shards the state */
    without = ek_fit_without(&estimator, &all, 40, EK_FIT_SHARD);
    ck_assert_int_eq(without.levels[EK_FIT_SHARD], EK_SHARD_OPTIMIZER);
}
