/* auto_setup.h: runs with measured plans, on devices whose memory and time are made up. */
#ifndef EK_TESTS_AUTO_SETUP_H
#define EK_TESTS_AUTO_SETUP_H

#include <stdatomic.h>

#include "plan/planner.h"
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

static inline void listen(ek_log_level level, const char *line, void *user)
{
    snprintf(last_line, sizeof last_line, "%s", line);
    ck_assert_int_eq(level, strstr(line, "(to measure)") ? EK_LOG_DEBUG : EK_LOG_INFO);
    lines++;
}

/* ---- steps ---- */

static inline double uniform(run *r)
{
    r->state = r->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(r->state >> 11) * 0x1p-53;
}

static inline void open_run_from(run *r, const char *devices, ek_plan_goal goal, const char *plan)
{
    assert_ok(ek_host_devices_configure(devices));
    r->devices = ek_device_count(EK_HOST);
    for (int i = 0; i < r->devices; i++)
        assert_made(r->devs[i] = ek_dev_get(ek_host(i)));
    ek_split_options wishes = {.policy = EK_SPLIT_AUTO, .goal = goal, .plan = plan};
    assert_made(r->planner = ek_planner_new("data_parallel", &wishes, r->devices));
    r->state = 42;
    lines = 0;
    ek_set_log(listen, NULL);
}

static inline void open_run(run *r, const char *devices, ek_plan_goal goal)
{
    open_run_from(r, devices, goal, NULL);
}

static inline void close_run(run *r)
{
    for (int i = 0; i < r->devices; i++) {
        ek_dev_free(r->devs[i], r->held[i][0], (size_t)r->parameters, EK_MEMORY_PARAMETER);
        ek_dev_free(r->devs[i], r->held[i][1], (size_t)r->optimizer, EK_MEMORY_OPTIMIZER);
    }
    ek_planner_free(r->planner);
    ek_set_log(NULL, NULL);
    assert_ok(ek_shutdown());
}

static inline int hold(run *r, int i, int which)
{
    size_t nbytes = (size_t)(which ? r->optimizer : r->parameters);
    if (r->held[i][which] || nbytes == 0)
        return 0;
    return ek_dev_alloc(r->devs[i], nbytes, which ? EK_MEMORY_OPTIMIZER : EK_MEMORY_PARAMETER,
                        &r->held[i][which]);
}

static inline int forward_on(run *r, int i, int64_t batch, void **made, size_t *nbytes)
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
static inline int step(run *r, int64_t batch)
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
        assert_ok(ek_memory_get_stats(r->devs[i]->id, &stats));
        r->peak[i] = (double)stats.peak;
    }
    r->forward++;
    ek_error_clear();
    return rc;
}

static inline void steps(run *r, int64_t batch, int count)
{
    for (int i = 0; i < count; i++)
        assert_ok(step(r, batch));
}

/* The smallest number by the largest. */
static inline double evenness(const double *numbers, int count)
{
    double least = numbers[0], most = numbers[0];
    for (int i = 1; i < count; i++) {
        least = numbers[i] < least ? numbers[i] : least;
        most = numbers[i] > most ? numbers[i] : most;
    }
    return least / most;
}

static inline double fullness(const run *r, int i)
{
    ek_memory_stats stats;
    ek_ledger_read(r->devs[i], &stats);
    return r->peak[i] / (double)stats.capacity;
}

static inline run timed(double noise)
{
    return (run){.parameters = MIB,
                 .fixed = MIB,
                 .per_sample = MIB / 8,
                 .base_ns = {1e6, 1e6},
                 .rate_ns = {1e5, 2e5},
                 .noise = noise};
}

#endif
