/* Measured plans over a run: other batches, replays, runs that go on, what comes between. */
#include "auto_setup.h"

/* They need not come twice for a plan that is better. */
TEST(batches_that_change_are_planned_for)
{
    run r = timed(0);
    open_run(&r, "0@1,0@1", EK_GOAL_TIME);
    steps(&r, 140, 6); /* none is larger */
    r.base_ns[0] *= 3;
    r.rate_ns[0] *= 3;
    for (int i = 0; i < 40; i++)
        steps(&r, 96 + (7 * i) % 40, 1);
    ck_assert_msg(evenness(r.spent_ns, 2) > 0.93, "%s", last_line);
    close_run(&r);
}

/* Any batches, none like the one before: there is little to say about that. */
TEST(batches_that_change_are_planned_for_seldom)
{
    run r = {.parameters = MIB,
             .optimizer = MIB,
             .fixed = MIB,
             .per_sample = MIB / 8,
             .gathered = MIB / 64};
    open_run(&r, "3", EK_GOAL_MEMORY);
    for (int i = 0; i < 400; i++)
        steps(&r, 64 + (int64_t)(uniform(&r) * 64), 1);
    ck_assert_int_le(lines, 10);
    lines = 0;
    for (int i = 0; i < 400; i++)
        steps(&r, 128 + i, 1);
    ck_assert_int_le(lines, 20);
    lines = 0;
    for (int i = 0; i < 400; i++)
        steps(&r, i / 10 % 2 ? 64 : 96, 1);
    ck_assert_int_le(lines, 10);
    steps(&r, 128, 1);
    ck_assert_msg(evenness(r.peak, 3) > 0.95, "%s", last_line);
    close_run(&r);
}

/* ---- replay ---- */

TEST(what_was_planned_is_replayed)
{
    run r = timed(0.1);
    open_run(&r, "0@1,0@1", EK_GOAL_TIME);
    int64_t batches[120], sizes[120][2], held[120][2];
    for (int i = 0; i < 120; i++) {
        batches[i] = i % 10 == 9 ? 17 + i : i > 60 ? 200 : 96;
        steps(&r, batches[i], 1);
        memcpy(sizes[i], r.sizes, sizeof sizes[i]);
        assert_ok(ek_planner_hold(r.planner, r.devs, 31, held[i]));
    }
    char text[8000];
    ck_assert_uint_lt(ek_planner_text(r.planner, text, sizeof text), sizeof text);
    ek_planner *again =
        ek_planner_new("data_parallel", &(ek_split_options){.plan = text}, r.devices);
    assert_made(again);
    for (int i = 0; i < 120; i++) {
        int64_t now[2];
        assert_ok(ek_planner_begin(again, r.devs, batches[i], now));
        ck_assert_msg(now[0] == sizes[i][0] && now[1] == sizes[i][1], "forward %d", i);
        assert_ok(ek_planner_hold(again, r.devs, 31, now));
        ck_assert_msg(now[0] == held[i][0] && now[1] == held[i][1], "after forward %d", i);
    }
    ek_planner_free(again);
    close_run(&r);
}

/* ---- runs that go on ---- */

/* One that begins where another ended needs no plan of capacities first, and ends where that did.
 */
TEST(a_run_goes_on_from_a_plan)
{
    run r = timed(0);
    char text[200];
    int64_t held[2];
    open_run_from(&r, "0@1,0@1", EK_GOAL_TIME, "48,48; 4: 1,0; 9: 20,10");
    ek_planner_text(r.planner, text, sizeof text);
    ck_assert_str_eq(text, "20,10");
    assert_ok(ek_planner_hold(r.planner, r.devs, 9, held));
    ck_assert_int_eq(held[0], 6);
    steps(&r, 96, 1);
    ck_assert_int_eq(r.sizes[0], 64);
    ck_assert_int_eq(lines, 0);
    steps(&r, 96, 4);
    ck_assert_str_eq(last_line, "data_parallel: plan of forward 4, batch 96: host:0 64, host:1 32 "
                                "(levels time: 7.4 ms, 7.4 ms)");
    r.rate_ns[0] *= 4;
    steps(&r, 96, 60);
    ck_assert(evenness(r.spent_ns, 2) > 0.95);
    close_run(&r);
}

/* What a plan calls for may not fit any more; who has no share in it helps only then. */
TEST(a_plan_that_fits_no_more_is_left)
{
    run r = {.parameters = MIB, .fixed = MIB, .per_sample = MIB};
    open_run_from(&r, "16M,64M,64M", EK_GOAL_MEMORY, "30,10,0");
    ck_assert_int_eq(step(&r, 40), EK_E_OUT_OF_MEMORY);
    ck_assert_int_eq(r.sizes[0], 30);
    int tries = 0;
    while (step(&r, 40) < 0)
        ck_assert_int_lt(++tries, 4);
    ck_assert_int_eq(r.sizes[2], 0);
    steps(&r, 40, 10);
    ck_assert_int_gt(r.sizes[2], 10);
    close_run(&r);
}

/* ---- what isn't measured ---- */

/* A wrapper without gradients between any two forwards, as a generator whose critic is trained,
 * is measured all the same. */
TEST(forwards_that_are_held_every_time_are_no_hindrance)
{
    run r = timed(0);
    int64_t held[2];
    open_run(&r, "0@1,0@1", EK_GOAL_TIME);
    for (int i = 0; i < 20; i++) {
        assert_ok(ek_planner_hold(r.planner, r.devs, 96, held));
        steps(&r, 96, 1);
    }
    ck_assert_int_eq(r.sizes[0], 64);
    close_run(&r);
}

/* An evaluation now and then needs what no step does. */
TEST(evaluations_are_not_taken_for_steps)
{
    run r = {.parameters = MIB, .fixed = MIB, .per_sample = MIB / 8};
    open_run(&r, "2", EK_GOAL_MEMORY);
    for (int epoch = 0; epoch < 8; epoch++) {
        void *made;
        steps(&r, 64, 12);
        ek_planner_disturb(r.planner);
        assert_ok(ek_dev_alloc(r.devs[0], (size_t)(64 * MIB), EK_MEMORY_ACTIVATION, &made));
        ek_dev_free(r.devs[0], made, (size_t)(64 * MIB), EK_MEMORY_ACTIVATION);
    }
    ck_assert_int_eq(lines, 5);
    ck_assert_int_eq(r.sizes[0], 32);
    close_run(&r);
}

TEST(small_cases_are_planned_too)
{
    run r = {.parameters = MIB, .fixed = MIB, .per_sample = MIB / 8};
    open_run(&r, "1", EK_GOAL_TIME);
    steps(&r, 7, 8);
    ck_assert_int_eq(r.sizes[0], 7);
    close_run(&r);
    run few = {.parameters = MIB, .fixed = MIB, .per_sample = MIB / 8};
    open_run(&few, "4", EK_GOAL_MEMORY);
    int64_t held[MOST];
    assert_ok(ek_planner_hold(few.planner, few.devs, 6, held));
    ck_assert_int_eq(held[0] + held[1] + held[2] + held[3], 6);
    steps(&few, 2, 8);
    steps(&few, 1, 8);
    steps(&few, 3, 20);
    for (int i = 0; i < 4; i++)
        ck_assert_int_le(few.sizes[i], 1);
    for (int i = 0; i < 200; i++)
        steps(&few, 1 + (int64_t)(uniform(&few) * 40), 1);
    close_run(&few);
}

/* Devices that were closed and opened again are others. */
TEST(devices_may_be_replaced)
{
    run r = {.parameters = 0, .fixed = MIB, .per_sample = MIB / 8};
    open_run(&r, "2", EK_GOAL_MEMORY);
    steps(&r, 8, 6);
    assert_ok(ek_host_devices_configure("2x1M"));
    for (int i = 0; i < 2; i++)
        r.devs[i] = ek_dev_get(ek_host(i));
    ck_assert_int_eq(step(&r, 8), EK_E_OUT_OF_MEMORY);
    close_run(&r);
}
