/* Measured plans, and what they level. */
#include "auto_setup.h"
#include "plan/split.h"

/* ---- memory ---- */

TEST(memory_is_levelled_after_three_measured_forwards)
{
    run r = {.parameters = MIB,
             .optimizer = 2 * MIB,
             .fixed = MIB,
             .per_sample = MIB / 8,
             .gathered = MIB / 64};
    open_run(&r, "3", EK_GOAL_MEMORY);
    steps(&r, 96, 4);
    ck_assert_int_eq(lines, 4);
    steps(&r, 96, 1);
    ck_assert_msg(evenness(r.peak, 3) > 0.98, "%s", last_line);
    ck_assert_ptr_nonnull(strstr(last_line, "data_parallel: plan of forward 4, batch 96: host:0 "));
    ck_assert_ptr_nonnull(strstr(last_line, "(levels memory: "));
    ck_assert_int_lt(r.sizes[0], r.sizes[1]);
    steps(&r, 96, 60);
    ck_assert_int_eq(lines, 5);
    close_run(&r);
}

/* The first measured plan of linear devices is the best there is, but for a sample's rounding. */
TEST(any_linear_devices_are_levelled)
{
    run draw = {.state = 9};
    for (int round = 0; round < 200; round++) {
        run r = {.parameters = MIB * (1 + floor(4 * uniform(&draw))),
                 .optimizer = MIB * floor(4 * uniform(&draw)),
                 .fixed = MIB * 4 * uniform(&draw),
                 .per_sample = MIB * (0.05 + uniform(&draw)),
                 .gathered = MIB * 0.05 * uniform(&draw)};
        const int64_t batch = 12 + (int64_t)(100 * uniform(&draw));
        ek_cost costs[MOST];
        int64_t best[MOST];
        double got = 0, wanted = 0;
        open_run(&r, round % 3 == 0 ? "2" : round % 3 == 1 ? "3" : "4", EK_GOAL_MEMORY);
        steps(&r, batch, 5);
        for (int i = 0; i < r.devices; i++)
            costs[i] = (ek_cost){r.parameters + r.optimizer + r.fixed +
                                     (i == 0 ? r.gathered * (double)batch : 0),
                                 r.per_sample, INT64_MAX};
        ck_assert(ek_split_level(batch, r.devices, costs, best));
        for (int i = 0; i < r.devices; i++) {
            double cost = costs[i].fixed + costs[i].per_sample * (double)best[i];
            wanted = best[i] && cost > wanted ? cost : wanted;
            got = r.peak[i] > got ? r.peak[i] : got;
        }
        ck_assert_msg(got <= wanted + r.per_sample + 1024, "round %d: %g for %g, %s", round, got,
                      wanted, last_line);
        close_run(&r);
    }
}

/* Each batch is twice the one before, and planned for before it was ever seen. */
TEST(larger_batches_are_foreseen)
{
    run r = {.parameters = 20 * MIB,
             .optimizer = 40 * MIB,
             .fixed = 30 * MIB,
             .per_sample = 1.25 * MIB,
             .gathered = 0.05 * MIB};
    open_run(&r, "2x512M,2x256M", EK_GOAL_MEMORY);
    int64_t fits = 0, fails = 0;
    for (int64_t batch = 8; !fails; batch *= 2) {
        if (step(&r, batch) == 0 && step(&r, batch) == 0)
            fits = batch;
        else
            fails = batch;
    }
    while (fails - fits > 1) {
        int64_t batch = fits + (fails - fits) / 2;
        if (step(&r, batch) == 0 || step(&r, batch) == 0)
            fits = batch;
        else
            fails = batch;
    }
    /* (1536 - 4 x 90 - 0.05 batch) / 1.25, rounded */
    ck_assert_int_ge(fits, 900);
    ck_assert_int_le(fits, 905);
    steps(&r, fits, 2);
    for (int i = 0; i < 4; i++)
        ck_assert_msg(fullness(&r, i) >= 0.97, "device %d: %g, %s", i, fullness(&r, i), last_line);
    close_run(&r);
}

/* The last batch of an epoch is cut in proportion and changes nothing. */
TEST(short_batches_do_not_disturb)
{
    run r = {.parameters = MIB,
             .optimizer = 2 * MIB,
             .fixed = MIB,
             .per_sample = MIB / 8,
             .gathered = MIB / 64};
    open_run(&r, "2x64M,2x32M", EK_GOAL_MEMORY);
    for (int epoch = 0; epoch < 12; epoch++) {
        steps(&r, 128, 10);
        steps(&r, 5 + epoch, 1);
    }
    ck_assert_int_eq(lines, 5);
    steps(&r, 128, 1);
    for (int i = 1; i < 4; i++)
        ck_assert(evenness((double[]){fullness(&r, 0), fullness(&r, i)}, 2) > 0.95);
    close_run(&r);
}

TEST(a_step_that_failed_can_be_retried)
{
    /* From 52 samples on a device needs more than any line would say. */
    run r = {.parameters = 8 * MIB,
             .fixed = MIB,
             .per_sample = MIB,
             .step_above = 52,
             .jump = 100 * MIB};
    open_run(&r, "64M,128M", EK_GOAL_MEMORY);
    steps(&r, 60, 6);
    int64_t before = r.sizes[1];
    ck_assert_int_lt(before, 52);
    ck_assert_int_eq(step(&r, 80), EK_E_OUT_OF_MEMORY);
    ck_assert_int_ge(r.sizes[1], 52);
    int tries = 0;
    while (step(&r, 80) < 0)
        ck_assert_int_lt(++tries, 4);
    ck_assert_int_lt(r.sizes[1], 52);
    int plans = lines;
    steps(&r, 80, 30);
    ck_assert_int_eq(lines, plans);
    close_run(&r);
}

/* A device without room for what every replica needs is left out. */
TEST(a_full_device_gets_nothing)
{
    run r = {.parameters = 16 * MIB, .optimizer = 32 * MIB, .fixed = 4 * MIB, .per_sample = MIB};
    open_run(&r, "128M,128M,40M", EK_GOAL_MEMORY);
    int failures = 0;
    for (int i = 0; i < 12; i++)
        failures += step(&r, 64) < 0;
    ck_assert_int_le(failures, 6);
    ck_assert_int_eq(r.sizes[2], 0);
    ck_assert_int_eq(r.sizes[0], 32);
    steps(&r, 64, 10);
    close_run(&r);
}

TEST(what_is_too_much_for_all_is_levelled)
{
    run r = {.parameters = MIB, .fixed = MIB, .per_sample = MIB};
    open_run(&r, "64M,32M", EK_GOAL_MEMORY);
    steps(&r, 48, 6);
    ck_assert_int_eq(step(&r, 4096), EK_E_OUT_OF_MEMORY);
    ck_assert_int_gt(r.sizes[0], 2600);
    ck_assert_int_lt(r.sizes[0], 2800);
    steps(&r, 48, 12);
    ck_assert(evenness((double[]){fullness(&r, 0), fullness(&r, 1)}, 2) > 0.95);
    close_run(&r);
}

/* ---- time ---- */

TEST(devices_finish_together)
{
    run r = timed(0);
    open_run(&r, "0@1,0@1", EK_GOAL_TIME); /* the speeds are not what they say */
    steps(&r, 96, 5);
    ck_assert_int_eq(lines, 5);
    ck_assert_str_eq(last_line, "data_parallel: plan of forward 4, batch 96: host:0 64, host:1 32 "
                                "(levels time: 7.4 ms, 7.4 ms)");
    steps(&r, 96, 100);
    ck_assert_int_eq(lines, 5);
    ck_assert(evenness(r.spent_ns, 2) > 0.99);
    close_run(&r);
}

TEST(noise_is_no_reason_for_plans)
{
    run r = timed(0.04);
    open_run(&r, "0@1,0@0.5", EK_GOAL_TIME);
    steps(&r, 96, 40);
    int settled = lines;
    ck_assert_int_le(settled, 7);
    steps(&r, 96, 300);
    ck_assert_int_le(lines, settled + 1);
    r.hiccup = 5;
    steps(&r, 96, 100);
    ck_assert_int_le(lines, settled + 2);
    r.noise = r.hiccup = 0;
    steps(&r, 96, 1);
    ck_assert(evenness(r.spent_ns, 2) > 0.95);
    close_run(&r);
}

TEST(a_device_that_slows_down_is_relieved_once)
{
    run r = timed(0.01);
    open_run(&r, "0@1,0@0.5", EK_GOAL_TIME);
    steps(&r, 96, 50);
    int before = lines;
    r.base_ns[0] *= 2;
    r.rate_ns[0] *= 2;
    steps(&r, 96, 60);
    ck_assert_int_ge(lines, before + 1);
    ck_assert_int_le(lines, before + 2);
    ck_assert_msg(evenness(r.spent_ns, 2) > 0.95, "%s", last_line);
    close_run(&r);
}

/* A device so slow that it got nothing gets its share once it is fast again; until then it is asked
 * seldom. */
TEST(a_slow_device_gets_another_chance)
{
    run r = timed(0.01);
    open_run(&r, "0@1,0@1", EK_GOAL_TIME);
    steps(&r, 32, 8);
    const double base = r.base_ns[0];
    r.base_ns[0] = 1e9;
    steps(&r, 32, 30);
    ck_assert_int_eq(r.sizes[0], 0);
    int asked = 0;
    for (int i = 0; i < 2000; i++) {
        steps(&r, 32, 1);
        ck_assert_int_le(r.sizes[0], 1);
        asked += r.sizes[0] > 0;
    }
    ck_assert_int_ge(asked, 1);
    ck_assert_int_le(asked, 60);
    ck_assert_int_le(lines, 25);
    r.base_ns[0] = base;
    steps(&r, 32, 4200);
    ck_assert_int_gt(r.sizes[0], 10);
    close_run(&r);
}

/* A fast device takes what its capacity allows and no more. */
TEST(time_is_subject_to_memory)
{
    run r = timed(0);
    r.per_sample = MIB;
    open_run(&r, "32M@1,128M@1", EK_GOAL_TIME);
    steps(&r, 96, 5);
    ck_assert_int_eq(r.sizes[0], 30);
    ck_assert_int_eq(r.sizes[1], 66);
    close_run(&r);
}
