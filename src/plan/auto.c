/* auto.c: plans from what forwards have shown.
 *
 * What a forward shows becomes known when the next one begins: its backward and the optimizer's
 * step are over then. The first one is not measured: memory is touched for the first time, caches
 * are empty, and optimizers make their state. Three more are tilted around the first guess, or the
 * plan that a run goes on from; then follow plans from models, which every later forward goes on to
 * feed. */
#include "plan/auto.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "plan/plan_log.h"
#include "plan/proposal.h"
#include "plan/tilt.h"

/* Forwards that a plan stays, unless it is too large for a device. */
static const int64_t least_stay = 8;
/* Forwards after which a device that got nothing, because it was slow, gets a sample again; twice
 * as many the next time, and so on. */
static const int64_t first_patience = 64;

/* One device's counters at one moment. */
typedef struct reading {
    uint64_t peak, state, optimizer, capacity, failures, busy_ns;
} reading;

/* All that is known, and the forward that is under way. Flat: ek_auto_peek tries on a copy. */
typedef struct mind {
    ek_plan_device known[EK_MAX_DEVICES];
    bool open;                    /* a forward is under way */
    bool disturbed;               /* and others that are not measured came between, */
    bool before_disturbed;        /* as in the one before */
    bool begun;                   /* the one that isn't measured is over */
    int measured;                 /* forwards, up to EK_TILTS */
    double first[EK_MAX_DEVICES]; /* bytes beside state per sample of the one before */
    int64_t batch, sizes[EK_MAX_DEVICES];
    int64_t changing; /* forwards on end whose batch was not that of the one before */
    reading before[EK_MAX_DEVICES];
    int64_t planned; /* the forward of the last plan that models made; -1: none yet */
    bool failed;     /* a device ran out of memory in the last one */
    int64_t patience, idle[EK_MAX_DEVICES]; /* forwards since a device last had samples */
} mind;

struct ek_auto {
    const char *what;
    ek_plan_goal goal;
    ek_plans *plans;
    bool goes_on;                  /* from a plan that was there before the first forward: */
    int64_t start[EK_MAX_DEVICES]; /* its sizes */
    ek_memory_watch watches[EK_MAX_DEVICES];
    mind mind;
};

ek_auto *ek_auto_new(const char *what, ek_plan_goal goal, ek_plans *plans)
{
    ek_auto *automatic = ek_calloc(1, sizeof *automatic);
    if (!automatic)
        return NULL;
    automatic->what = what;
    automatic->goal = goal;
    automatic->plans = plans;
    automatic->mind.planned = -1;
    automatic->mind.patience = first_patience;
    const int64_t *start = ek_plans_at(plans, 0);
    automatic->goes_on = start != NULL;
    if (start)
        memcpy(automatic->start, start, (size_t)plans->devices * sizeof *start);
    return automatic;
}

void ek_auto_free(ek_auto *automatic)
{
    for (int i = 0; automatic && i < automatic->plans->devices; i++)
        ek_memory_watch_end(&automatic->watches[i]);
    free(automatic);
}

/* ---- measuring ---- */

static void read_all(const ek_auto *automatic, ek_dev *const *devs, reading *now)
{
    for (int i = 0; i < automatic->plans->devices; i++) {
        const ek_memory_stats *stats = ek_ledger_hold(devs[i]);
        now[i] =
            (reading){.peak = automatic->watches[i].peak,
                      .state = stats->now[EK_MEMORY_PARAMETER] + stats->now[EK_MEMORY_OPTIMIZER],
                      .optimizer = stats->now[EK_MEMORY_OPTIMIZER],
                      .capacity = stats->capacity,
                      .failures = stats->failures};
        ek_ledger_release(devs[i]);
        now[i].busy_ns = ek_dev_busy_ns(devs[i]);
    }
}

/* The forward under way failed on these devices. */
static bool note_failures(mind *m, int devices, const reading *now)
{
    bool failed = false;
    for (int i = 0; i < devices; i++) {
        if (now[i].failures == m->before[i].failures)
            continue;
        failed = true;
        ek_plan_bound_add(&m->known[i], m->batch, m->sizes[i]);
    }
    return failed;
}

static void note_memory(ek_plan_device *known, int64_t batch, int64_t n, const reading *before,
                        const reading *now)
{
    if (now->state != before->state) { /* what is left of it was not there all the time */
        ek_memory_model_outdate(&known->memory);
        return;
    }
    if (n > 0)
        ek_memory_model_add(&known->memory, batch, n,
                            now->peak > now->state ? (double)(now->peak - now->state) : 0);
}

/* The first forward, roughly: optimizers make their state in its step, after its peak. */
static void note_first(mind *m, int devices, const reading *now)
{
    for (int i = 0; i < devices; i++) {
        uint64_t state = now[i].state - now[i].optimizer + m->before[i].optimizer;
        if (m->sizes[i] > 0 && now[i].peak > state)
            m->first[i] = (double)(now[i].peak - state) / (double)m->sizes[i];
    }
    m->begun = true;
}

/* A forward counts with its backward and step alone. What comes between now and then, as an
 * evaluation does, would be taken for theirs; what comes every time is part of a step. */
static bool tells(const mind *m)
{
    return !m->disturbed || m->before_disturbed;
}

/* What the forward that ends showed. */
static void learn(mind *m, ek_dev *const *devs, int devices, const reading *now)
{
    m->failed = m->open && note_failures(m, devices, now);
    for (int i = 0; i < devices; i++) {
        m->known[i].state = (double)now[i].state;
        m->known[i].capacity = (double)now[i].capacity;
        m->known[i].speed = devs[i]->speed;
    }
    if (!m->open || m->failed)
        return;
    for (int i = 0; i < devices; i++)
        m->known[i].failures = m->sizes[i] > 0 ? 0 : m->known[i].failures;
    if (m->begun && tells(m)) {
        for (int i = 0; i < devices; i++) {
            note_memory(&m->known[i], m->batch, m->sizes[i], &m->before[i], &now[i]);
            if (m->sizes[i] > 0 && now[i].busy_ns > m->before[i].busy_ns)
                ek_time_model_add(&m->known[i].time, m->sizes[i],
                                  (double)(now[i].busy_ns - m->before[i].busy_ns));
        }
        m->measured += m->measured < EK_TILTS;
    }
    if (!m->begun)
        note_first(m, devices, now);
}

/* ---- first plans ---- */

/* In the proportions of the plan that the run goes on from, within what has not failed: devices
 * without a share get what the others can't take. */
static void resume(const ek_auto *automatic, const mind *m, int64_t batch, int64_t *sizes)
{
    const int devices = automatic->plans->devices;
    ek_cost costs[EK_MAX_DEVICES];
    bool within = true;
    ek_split_chunks(batch, devices, automatic->start, sizes);
    for (int i = 0; i < devices; i++) {
        double share = (double)automatic->start[i];
        costs[i] =
            (ek_cost){0, share > 0 ? 1 / share : 1e100, ek_plan_bound_of(&m->known[i], batch)};
        within = within && sizes[i] <= costs[i].most;
    }
    if (!within)
        ek_split_level(batch, devices, costs, sizes);
}

/* Without such a plan: by capacity if all devices have one, by speed where time is the goal,
 * else even. */
static void guess(const ek_auto *automatic, const mind *m, int64_t batch, int64_t *sizes)
{
    const int devices = automatic->plans->devices;
    ek_cost costs[EK_MAX_DEVICES];
    bool limited = true;
    if (automatic->goes_on) {
        resume(automatic, m, batch, sizes);
        return;
    }
    for (int i = 0; i < devices; i++)
        limited = limited && m->known[i].capacity > 0;
    for (int i = 0; i < devices; i++) {
        double weight = limited                           ? m->known[i].capacity
                        : automatic->goal == EK_GOAL_TIME ? m->known[i].speed
                                                          : 1;
        costs[i] = (ek_cost){0, 1 / weight, ek_plan_bound_of(&m->known[i], batch)};
    }
    ek_split_level(batch, devices, costs, sizes);
}

/* As many samples as a device has room for, all memory beside state counted as the samples'. */
static int64_t room_of(const ek_plan_device *known, double per_sample, int64_t batch)
{
    int64_t bound = ek_plan_bound_of(known, batch);
    double room = known->capacity - known->state;
    if (known->capacity > 0 && per_sample > 0 && room < per_sample * 0x1p60) {
        int64_t fits = room > 0 ? (int64_t)(room / per_sample) : 0;
        return fits < bound ? fits : bound;
    }
    return bound;
}

static void guess_tilted(const ek_auto *automatic, const mind *m, int64_t batch, int64_t *sizes)
{
    const int devices = automatic->plans->devices;
    int64_t room[EK_MAX_DEVICES];
    guess(automatic, m, batch, sizes);
    if (!m->begun)
        return;
    for (int i = 0; i < devices; i++)
        room[i] = room_of(&m->known[i], m->first[i], batch);
    ek_tilt(m->measured, automatic->goal == EK_GOAL_TIME ? 0.25 : 0.125, devices, room, sizes);
}

/* ---- plans ---- */

/* What is decided about one forward. */
typedef struct decision {
    int64_t sizes[EK_MAX_DEVICES];
    int64_t plan[EK_MAX_DEVICES]; /* the same, or what they are in proportion to */
    bool fresh;                   /* it is another plan than the last one */
    int tried;            /* a device that gets a sample to see how slow it is now; -1: none */
    bool modelled;        /* `proposal` is what made it */
    ek_proposal proposal; /* where modelled */
} decision;

static bool equal(const int64_t *a, const int64_t *b, int devices)
{
    return memcmp(a, b, (size_t)devices * sizeof *a) == 0;
}

static int64_t sum_of(const int64_t *sizes, int devices)
{
    int64_t sum = 0;
    for (int i = 0; i < devices; i++)
        sum += sizes[i];
    return sum;
}

static bool gains(const ek_auto *automatic, const ek_proposal *proposal, const int64_t *held)
{
    const int devices = automatic->plans->devices;
    const double least_gain = automatic->goal == EK_GOAL_TIME ? 0.03 : 0.02;
    double now = ek_proposal_cost(proposal, devices, held);
    double then = ek_proposal_cost(proposal, devices, proposal->sizes);
    return now - then >= least_gain * now;
}

/* The proposal is worth leaving the last plan for, which gives `held` of this batch. A smaller
 * batch that is there once, as the last of an epoch, is no reason; a larger one than the plan was
 * made for need not wait. */
static bool worth_it(const ek_auto *automatic, const mind *m, int64_t forward, int64_t batch,
                     int64_t planned_batch, const int64_t *held, const ek_proposal *proposal)
{
    const int devices = automatic->plans->devices;
    if (m->planned < 0 || m->failed ||
        (!ek_proposal_allows(proposal, devices, held) &&
         ek_proposal_allows(proposal, devices, proposal->sizes)))
        return true;
    bool due = batch == m->batch ? forward - m->planned >= least_stay : batch > planned_batch;
    return due && gains(automatic, proposal, held);
}

/* If no batch comes twice, the last plan is compared for the batch that it was made for. */
static bool look_again(const ek_auto *automatic, const mind *m, int64_t forward,
                       const int64_t *last, ek_proposal *proposal)
{
    const int devices = automatic->plans->devices;
    return m->changing >= least_stay && forward - m->planned >= least_stay &&
           ek_propose(m->known, devices, automatic->goal, sum_of(last, devices), proposal) &&
           gains(automatic, proposal, last);
}

/* What a device takes is measured only if it has samples: one that was slow once would stay
 * without any for good. Moves one to the first that has waited long enough and has room for it. */
static int try_idle(const ek_auto *automatic, const mind *m, decision *d)
{
    int largest = 0, waiting = -1;
    for (int i = 0; i < automatic->plans->devices; i++) {
        largest = d->sizes[i] > d->sizes[largest] ? i : largest;
        if (waiting < 0 && d->sizes[i] == 0 && m->idle[i] >= m->patience && d->proposal.most[i] > 0)
            waiting = i;
    }
    if (automatic->goal != EK_GOAL_TIME || waiting < 0 || d->sizes[largest] < 2)
        return -1;
    d->sizes[largest]--;
    d->sizes[waiting]++;
    return waiting;
}

static void decide(const ek_auto *automatic, const mind *m, int64_t forward, int64_t batch,
                   decision *d)
{
    const ek_plans *plans = automatic->plans;
    const int devices = plans->devices;
    const int64_t *last = ek_plans_at(plans, forward);
    int64_t held[EK_MAX_DEVICES];
    if (last)
        ek_split_chunks(batch, devices, last, held);
    d->tried = -1;
    d->modelled = m->measured >= EK_TILTS &&
                  ek_propose(m->known, devices, automatic->goal, batch, &d->proposal);
    bool first = d->modelled && m->planned < 0, again = false;
    if (!d->modelled) {
        guess_tilted(automatic, m, batch, d->sizes);
    } else if (!last ||
               worth_it(automatic, m, forward, batch, sum_of(last, devices), held, &d->proposal)) {
        memcpy(d->sizes, d->proposal.sizes, sizeof d->sizes);
    } else {
        again = look_again(automatic, m, forward, last, &d->proposal);
        memcpy(d->plan, d->proposal.sizes, sizeof d->plan);
        ek_split_chunks(batch, devices, again ? d->plan : last, d->sizes);
    }
    if (d->modelled)
        d->tried = try_idle(automatic, m, d);
    if (!again || d->tried >= 0)
        memcpy(d->plan, d->sizes, sizeof d->plan);
    d->fresh = !last || !equal(d->sizes, held, devices) || first || again;
}

/* ---- forwards ---- */

/* The watches are of these devices still: one that was closed since is another now. */
static bool watched(const ek_auto *automatic, ek_dev *const *devs)
{
    for (int i = 0; i < automatic->plans->devices; i++)
        if (automatic->watches[i].dev != devs[i])
            return false;
    return true;
}

/* What is known once the forward under way has ended, now. */
static void think(const ek_auto *automatic, mind *m, ek_dev *const *devs, reading *now)
{
    m->open = m->open && watched(automatic, devs);
    read_all(automatic, devs, now);
    learn(m, devs, automatic->plans->devices, now);
    m->open = false;
}

static void start(ek_auto *automatic, ek_dev *const *devs, int64_t batch, const int64_t *sizes,
                  const reading *now)
{
    mind *m = &automatic->mind;
    const int devices = automatic->plans->devices;
    for (int i = 0; i < devices; i++) {
        ek_memory_watch *watch = &automatic->watches[i];
        if (watch->dev == devs[i]) {
            ek_memory_watch_restart(watch);
        } else {
            ek_memory_watch_end(watch);
            ek_memory_watch_begin(devs[i], watch);
        }
    }
    m->open = true;
    m->before_disturbed = m->disturbed;
    m->disturbed = false;
    m->changing = batch == m->batch ? 0 : m->changing + 1;
    m->batch = batch;
    for (int i = 0; i < devices; i++)
        m->idle[i] = sizes[i] > 0 ? 0 : m->idle[i] + 1;
    memcpy(m->sizes, sizes, (size_t)devices * sizeof *sizes);
    memcpy(m->before, now, (size_t)devices * sizeof *now);
}

/* Devices that work later may still be at the forward before: while little is known, its time is to
 * be its own. Afterwards forwards are alike, and nobody waits. */
static int settle(const ek_auto *automatic, ek_dev *const *devs)
{
    const mind *m = &automatic->mind;
    for (int i = 0; i < automatic->plans->devices; i++)
        if (automatic->goal == EK_GOAL_TIME && m->open && m->measured < EK_TILTS)
            EK_TRY(ek_dev_synchronize(devs[i]));
    return 0;
}

int ek_auto_begin(ek_auto *automatic, ek_dev *const *devs, int64_t forward, int64_t batch,
                  int64_t *sizes)
{
    mind *m = &automatic->mind;
    const int devices = automatic->plans->devices;
    reading now[EK_MAX_DEVICES];
    decision d;
    EK_TRY(settle(automatic, devs));
    think(automatic, m, devs, now);
    decide(automatic, m, forward, batch, &d);
    if (d.fresh) {
        EK_TRY(ek_plans_add(automatic->plans, forward, d.plan));
        ek_plan_log(automatic->what, forward, sum_of(d.plan, devices), devs, devices, d.plan,
                    d.modelled && d.tried < 0 ? &d.proposal : NULL);
        m->planned = d.modelled ? forward : m->planned;
    }
    if (d.tried >= 0) { /* what it was like then counts no more */
        memset(&m->known[d.tried].time, 0, sizeof m->known[d.tried].time);
        m->patience *= 2;
    }
    memcpy(sizes, d.sizes, (size_t)devices * sizeof *sizes);
    start(automatic, devs, batch, sizes, now);
    return 0;
}

int ek_auto_peek(const ek_auto *automatic, ek_dev *const *devs, int64_t forward, int64_t batch,
                 int64_t *sizes)
{
    mind *trial = ek_calloc(1, sizeof *trial);
    reading now[EK_MAX_DEVICES];
    decision d;
    if (!trial)
        return ek_error_pending();
    *trial = automatic->mind;
    think(automatic, trial, devs, now);
    decide(automatic, trial, forward, batch, &d);
    memcpy(sizes, d.sizes, (size_t)automatic->plans->devices * sizeof *sizes);
    free(trial);
    return 0;
}

void ek_auto_disturb(ek_auto *automatic)
{
    automatic->mind.disturbed = true;
}

int ek_auto_hold(ek_auto *automatic, ek_dev *const *devs, int64_t batch, int64_t *sizes)
{
    const int64_t *last = ek_plans_at(automatic->plans, INT64_MAX);
    ek_auto_disturb(automatic);
    if (!last)
        return ek_auto_peek(automatic, devs, 0, batch, sizes);
    ek_split_chunks(batch, automatic->plans->devices, last, sizes);
    return 0;
}
