/* Measured plans, on devices whose memory and time are made up. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/planner.h"
#include "plan/split.h"
#include "unit.h"

enum { MOST = 4 };
#define MIB ((double)(1 << 20))

/* A data-parallel run: what a replica needs, and what the devices are like. */
typedef struct run {
    int devices;
    double parameters, optimizer; /* bytes on each device once it takes part, once stepped */
    double fixed, per_sample;     /* bytes of a forward */
    double gathered;              /* bytes per sample of the batch, on the first device */
    double step_above;            /* samples from which on a device needs `jump` bytes more */
    double jump;
    double base_ns[MOST], rate_ns[MOST];
    double noise; /* of time, relative */
    int hiccup;   /* every so many steps the first device takes four times as long; 0: never */
    uint64_t state;
    ek_planner *planner;
    ek_dev *devs[MOST];
    void *held[MOST][2]; /* parameters, optimizer state */
    int64_t sizes[MOST];
    double spent_ns[MOST]; /* in the last step */
    double peak[MOST];     /* of the last step */
    int forward;
} run;

/* ---- the log ---- */

static int lines;
static char last_line[1200];

static void listen(ek_log_level level, const char *line, void *user)
{
    (void)user;
    ck_assert_int_eq(level, EK_LOG_INFO);
    snprintf(last_line, sizeof last_line, "%s", line);
    lines++;
}

/* ---- steps ---- */

static double uniform(run *r)
{
    r->state = r->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(r->state >> 11) * 0x1p-53;
}

static void open_run(run *r, const char *devices, ek_plan_goal goal)
{
    assert_ok(ek_host_devices_configure(devices));
    r->devices = ek_device_count(EK_HOST);
    for (int i = 0; i < r->devices; i++)
        assert_made(r->devs[i] = ek_dev_get(ek_host(i)));
    ek_split_options wishes = {.policy = EK_SPLIT_AUTO, .goal = goal};
    assert_made(r->planner = ek_planner_new("data_parallel", &wishes, r->devices));
    r->state = 42;
    lines = 0;
    ek_set_log(listen, NULL);
}

static void close_run(run *r)
{
    for (int i = 0; i < r->devices; i++) {
        ek_dev_free(r->devs[i], r->held[i][0], (size_t)r->parameters, EK_MEMORY_PARAMETER);
        ek_dev_free(r->devs[i], r->held[i][1], (size_t)r->optimizer, EK_MEMORY_OPTIMIZER);
    }
    ek_planner_free(r->planner);
    ek_set_log(NULL, NULL);
    assert_ok(ek_shutdown());
}

static int hold(run *r, int i, int which)
{
    size_t nbytes = (size_t)(which ? r->optimizer : r->parameters);
    if (r->held[i][which] || nbytes == 0)
        return 0;
    return ek_dev_alloc(r->devs[i], nbytes, which ? EK_MEMORY_OPTIMIZER : EK_MEMORY_PARAMETER,
                        &r->held[i][which]);
}

static int forward_on(run *r, int i, int64_t batch, void **made, size_t *nbytes)
{
    double n = (double)r->sizes[i], need = r->fixed + r->per_sample * n;
    if (i == 0)
        need += r->gathered * (double)batch;
    if (r->jump > 0 && n >= r->step_above)
        need += r->jump;
    *nbytes = (size_t)need;
    return ek_dev_alloc(r->devs[i], *nbytes, EK_MEMORY_ACTIVATION, made);
}

/* 0, or EK_E_OUT_OF_MEMORY with all given back. */
static int step(run *r, int64_t batch)
{
    int64_t foreseen[MOST];
    assert_ok(ek_planner_peek(r->planner, r->devs, batch, foreseen));
    assert_ok(ek_planner_begin(r->planner, r->devs, batch, r->sizes));
    int64_t sum = 0;
    void *made[MOST] = {NULL};
    size_t nbytes[MOST];
    int rc = 0;
    for (int i = 0; i < r->devices; i++) {
        ck_assert_int_eq(foreseen[i], r->sizes[i]);
        ck_assert_int_ge(r->sizes[i], 0);
        sum += r->sizes[i];
        r->spent_ns[i] = 0;
        assert_ok(ek_memory_reset_peak(r->devs[i]->id));
        if (r->sizes[i] == 0 || rc < 0)
            continue;
        rc = hold(r, i, 0);
        rc = rc < 0 ? rc : forward_on(r, i, batch, &made[i], &nbytes[i]);
        double slower = r->forward == 0 ? 3 : 1 + r->noise * (2 * uniform(r) - 1);
        if (i == 0 && r->hiccup && r->forward > 5 && r->forward % r->hiccup == 0)
            slower = 4;
        r->spent_ns[i] = (r->base_ns[i] + r->rate_ns[i] * (double)r->sizes[i]) * slower;
        atomic_fetch_add(&r->devs[i]->busy_ns, (uint64_t)r->spent_ns[i]);
    }
    ck_assert_int_eq(sum, batch);
    for (int i = 0; i < r->devices; i++) {
        if (made[i])
            ek_dev_free(r->devs[i], made[i], nbytes[i], EK_MEMORY_ACTIVATION);
        if (made[i] && rc >= 0)
            rc = hold(r, i, 1);
        ek_memory_stats stats;
        assert_ok(ek_memory_get(r->devs[i]->id, &stats));
        r->peak[i] = (double)stats.peak;
    }
    r->forward++;
    ek_error_clear();
    return rc;
}

static void steps(run *r, int64_t batch, int count)
{
    for (int i = 0; i < count; i++)
        assert_ok(step(r, batch));
}

/* The smallest number by the largest. */
static double evenness(const double *numbers, int count)
{
    double least = numbers[0], most = numbers[0];
    for (int i = 1; i < count; i++) {
        least = numbers[i] < least ? numbers[i] : least;
        most = numbers[i] > most ? numbers[i] : most;
    }
    return least / most;
}

static double fullness(const run *r, int i)
{
    return r->peak[i] / (double)r->devs[i]->allocator.stats.capacity;
}

/* ---- memory ---- */

START_TEST(memory_is_levelled_after_three_measured_forwards)
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
END_TEST

/* The first measured plan of linear devices is the best there is, but for a sample's rounding. */
START_TEST(any_linear_devices_are_levelled)
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
END_TEST

/* Each batch is twice the one before, and planned for before it was ever seen. */
START_TEST(larger_batches_are_foreseen)
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
END_TEST

/* The last batch of an epoch is cut in proportion and changes nothing. */
START_TEST(short_batches_do_not_disturb)
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
END_TEST

START_TEST(a_step_that_failed_can_be_retried)
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
END_TEST

/* A device without room for what every replica needs is left out. */
START_TEST(a_full_device_gets_nothing)
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
END_TEST

START_TEST(what_is_too_much_for_all_is_levelled)
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
END_TEST

/* ---- time ---- */

static run timed(double noise)
{
    return (run){.parameters = MIB,
                 .fixed = MIB,
                 .per_sample = MIB / 8,
                 .base_ns = {1e6, 1e6},
                 .rate_ns = {1e5, 2e5},
                 .noise = noise};
}

START_TEST(devices_finish_together)
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
END_TEST

START_TEST(noise_is_no_reason_for_plans)
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
END_TEST

START_TEST(a_device_that_slows_down_is_relieved_once)
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
END_TEST

/* A fast device takes what its capacity allows and no more. */
START_TEST(time_is_subject_to_memory)
{
    run r = timed(0);
    r.per_sample = MIB;
    open_run(&r, "32M@1,128M@1", EK_GOAL_TIME);
    steps(&r, 96, 5);
    ck_assert_int_eq(r.sizes[0], 30);
    ck_assert_int_eq(r.sizes[1], 66);
    close_run(&r);
}
END_TEST

/* ---- replay ---- */

START_TEST(what_was_planned_is_replayed)
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
END_TEST

START_TEST(small_cases_are_planned_too)
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
END_TEST

/* Devices that were closed and opened again are others. */
START_TEST(devices_may_be_replaced)
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
END_TEST

Suite *suite(void)
{
    Suite *s = suite_create("plan auto");
    TCase *tcase = tcase_create("auto");
    tcase_add_test(tcase, memory_is_levelled_after_three_measured_forwards);
    tcase_add_test(tcase, any_linear_devices_are_levelled);
    tcase_add_test(tcase, larger_batches_are_foreseen);
    tcase_add_test(tcase, short_batches_do_not_disturb);
    tcase_add_test(tcase, a_step_that_failed_can_be_retried);
    tcase_add_test(tcase, a_full_device_gets_nothing);
    tcase_add_test(tcase, what_is_too_much_for_all_is_levelled);
    tcase_add_test(tcase, devices_finish_together);
    tcase_add_test(tcase, noise_is_no_reason_for_plans);
    tcase_add_test(tcase, a_device_that_slows_down_is_relieved_once);
    tcase_add_test(tcase, time_is_subject_to_memory);
    tcase_add_test(tcase, what_was_planned_is_replayed);
    tcase_add_test(tcase, small_cases_are_planned_too);
    tcase_add_test(tcase, devices_may_be_replaced);
    suite_add_tcase(s, tcase);
    return s;
}
