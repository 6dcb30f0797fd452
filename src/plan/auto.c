/* auto.c: makes plans from the measurements of earlier forwards.
 *
 * Note [What a forward counts for]
 *
 * What a forward needs is known when the next forward begins, because backward and the optimizer's
 * step have ended by then. The first forward is not measured: memory is touched for the first time,
 * caches are empty, and optimizers make their state. The next three forwards are probes around the
 * first guess, or around the plan from which a run continues. Later plans come from models, to
 * which every later forward adds its measurements. A forward that was followed by other work, such
 * as an evaluation, is left out. Other work that follows every forward counts as part of a step. */
#include "plan/auto.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "plan/split.h"

/* While batches keep their size, a plan from models stays for at least this many forwards, unless a
 * device runs out of memory or the plan exceeds the proposal's limits. */
static const int64_t least_stay = 8;
/* After this many forwards, a device that gets no samples because it was slow gets a sample again.
 * The number doubles with each such retry. */
static const int64_t first_retry = 64;

/* One device's counters at one time: bytes, failed allocations, and how long the device has
 * worked. */
typedef struct auto_counters {
    uint64_t peak, state, optimizer, capacity, failures, busy_ns;
} auto_counters;

/* All that is known, and the forward under way. ek_auto_peek works on a copy of this struct. */
typedef struct auto_state {
    ek_plan_device known[EK_MAX_DEVICES];
    bool open;                    /* a forward is under way */
    bool disturbed;               /* other work came after the forward under way */
    bool before_disturbed;        /* other work came after the forward before that one */
    bool begun;                   /* the first forward, which is not measured, has ended */
    int measured;                 /* how many forwards were measured, up to EK_SPLIT_PROBES */
    double first[EK_MAX_DEVICES]; /* the first forward's bytes per sample, without state */
    int64_t batch, sizes[EK_MAX_DEVICES];
    int64_t changing; /* how many forwards in a row had another batch size than the forward before
                         them */
    auto_counters before[EK_MAX_DEVICES];
    int64_t planned;     /* the forward of the last plan that came from models; -1: none yet */
    bool failed;         /* a device ran out of memory in the last forward */
    int64_t retry_after; /* after how many forwards an idle device gets a sample */
    int64_t idle[EK_MAX_DEVICES]; /* forwards since the device last had samples */
} auto_state;

struct ek_auto {
    const char *what;
    ek_plan_goal goal;
    ek_plans *plans;
    bool goes_on;                  /* there was a plan before the first forward */
    int64_t start[EK_MAX_DEVICES]; /* the sizes of the plan before the first forward */
    ek_memory_watch watches[EK_MAX_DEVICES];
    auto_state state;
};

ek_auto *ek_auto_new(const char *what, ek_plan_goal goal, ek_plans *plans)
{
    ek_auto *automatic = ek_calloc(1, sizeof *automatic);
    if (!automatic)
        return NULL;
    automatic->what = what;
    automatic->goal = goal;
    automatic->plans = plans;
    automatic->state.planned = -1;
    automatic->state.retry_after = first_retry;
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

/* Reads the counters. `state` is what a forward finds and leaves in memory. Gathered parameters are
 * no state, because they come and go within a forward: the models of memory count them as what a
 * forward needs for any number of samples. */
static void auto_read(const ek_auto *automatic, ek_dev *const *devs, auto_counters *now)
{
    for (int i = 0; i < automatic->plans->devices; i++) {
        const ek_memory_stats *stats = ek_ledger_hold(devs[i]);
        now[i] = (auto_counters){.peak = automatic->watches[i].peak,
                                 .state = stats->now[EK_MEMORY_PARAMETER] +
                                          stats->now[EK_MEMORY_OPTIMIZER],
                                 .optimizer = stats->now[EK_MEMORY_OPTIMIZER],
                                 .capacity = stats->capacity,
                                 .failures = stats->failures};
        ek_ledger_release(devs[i]);
        now[i].busy_ns = ek_dev_busy_ns(devs[i]);
    }
}

/* Returns true if a device ran out of memory in the forward under way. Adds a bound for each such
 * device. */
static bool auto_note_failures(auto_state *s, int devices, const auto_counters *now)
{
    bool failed = false;
    for (int i = 0; i < devices; i++) {
        if (now[i].failures == s->before[i].failures)
            continue;
        failed = true;
        ek_plan_bound_add(&s->known[i], s->batch, s->sizes[i]);
    }
    return failed;
}

static void auto_note_memory(ek_plan_device *known, int64_t batch, int64_t n,
                             const auto_counters *before, const auto_counters *now)
{
    if (now->state != before->state) { /* the step made or freed state, so the peak says little */
        ek_memory_model_outdate(&known->memory);
        return;
    }
    if (n > 0)
        ek_memory_model_add(&known->memory, batch, n,
                            now->peak > now->state ? (double)(now->peak - now->state) : 0);
}

/* Notes roughly how much memory a sample of the first forward took. The figure is rough, because it
 * assumes that the peak came before the optimizer made its state. */
static void auto_note_first(auto_state *s, int devices, const auto_counters *now)
{
    for (int i = 0; i < devices; i++) {
        uint64_t state = now[i].state - now[i].optimizer + s->before[i].optimizer;
        if (s->sizes[i] > 0 && now[i].peak > state)
            s->first[i] = (double)(now[i].peak - state) / (double)s->sizes[i];
    }
    s->begun = true;
}

/* Returns true if the forward under way is measured: if no other work followed it, or if other work
 * also followed the forward before (Note [What a forward counts for]). */
static bool auto_counts(const auto_state *s)
{
    return !s->disturbed || s->before_disturbed;
}

/* Learns from the forward that ends, if one is under way: its failures or its memory and time. */
static void auto_learn(auto_state *s, ek_dev *const *devs, int devices, const auto_counters *now)
{
    s->failed = s->open && auto_note_failures(s, devices, now);
    for (int i = 0; i < devices; i++) {
        s->known[i].state = (double)now[i].state;
        s->known[i].capacity = (double)now[i].capacity;
        s->known[i].speed = devs[i]->speed;
    }
    if (!s->open || s->failed)
        return;
    for (int i = 0; i < devices; i++)
        s->known[i].failures = s->sizes[i] > 0 ? 0 : s->known[i].failures;
    if (s->begun && auto_counts(s)) {
        for (int i = 0; i < devices; i++) {
            auto_note_memory(&s->known[i], s->batch, s->sizes[i], &s->before[i], &now[i]);
            if (s->sizes[i] > 0 && now[i].busy_ns > s->before[i].busy_ns)
                ek_time_model_add(&s->known[i].time, s->sizes[i],
                                  (double)(now[i].busy_ns - s->before[i].busy_ns));
        }
        s->measured += s->measured < EK_SPLIT_PROBES;
    }
    if (!s->begun)
        auto_note_first(s, devices, now);
}

/* ---- first plans ---- */

/* Splits in the proportions of the plan from which the run continues, within the bounds from
 * failures. Devices to which that plan gives no sample get what the other devices can't take. */
static void auto_resume(const ek_auto *automatic, const auto_state *s, int64_t batch,
                        int64_t *sizes)
{
    const int devices = automatic->plans->devices;
    ek_cost costs[EK_MAX_DEVICES];
    bool within = true;
    ek_split_chunks(batch, devices, automatic->start, sizes);
    for (int i = 0; i < devices; i++) {
        double share = (double)automatic->start[i];
        costs[i] =
            (ek_cost){0, share > 0 ? 1 / share : 1e100, ek_plan_bound_of(&s->known[i], batch)};
        within = within && sizes[i] <= costs[i].most;
    }
    if (!within)
        ek_split_level(batch, devices, costs, sizes);
}

/* Writes the plan to use before any measurement. If the run continues from a plan, splits in the
 * proportions of `start`; else, if all devices have a capacity, by capacity; else, if time is the
 * goal, by speed; else evenly. Keeps within the bounds from failures if they allow the batch. */
static void auto_guess(const ek_auto *automatic, const auto_state *s, int64_t batch, int64_t *sizes)
{
    const int devices = automatic->plans->devices;
    ek_cost costs[EK_MAX_DEVICES];
    bool limited = true;
    if (automatic->goes_on) {
        auto_resume(automatic, s, batch, sizes);
        return;
    }
    for (int i = 0; i < devices; i++)
        limited = limited && s->known[i].capacity > 0;
    for (int i = 0; i < devices; i++) {
        double weight = limited                           ? s->known[i].capacity
                        : automatic->goal == EK_GOAL_TIME ? s->known[i].speed
                                                          : 1;
        costs[i] = (ek_cost){0, 1 / weight, ek_plan_bound_of(&s->known[i], batch)};
    }
    ek_split_level(batch, devices, costs, sizes);
}

/* Returns for how many samples a device has room within its bounds, assuming that all its memory
 * except the state grows with the samples. */
static int64_t auto_room(const ek_plan_device *known, double per_sample, int64_t batch)
{
    int64_t bound = ek_plan_bound_of(known, batch);
    double room = known->capacity - known->state;
    if (known->capacity > 0 && per_sample > 0 && room < per_sample * 0x1p60) {
        int64_t fits = room > 0 ? (int64_t)(room / per_sample) : 0;
        return fits < bound ? fits : bound;
    }
    return bound;
}

static void auto_probe(const ek_auto *automatic, const auto_state *s, int64_t batch, int64_t *sizes)
{
    const int devices = automatic->plans->devices;
    int64_t room[EK_MAX_DEVICES];
    auto_guess(automatic, s, batch, sizes);
    if (!s->begun)
        return;
    for (int i = 0; i < devices; i++)
        room[i] = auto_room(&s->known[i], s->first[i], batch);
    ek_split_probe(s->measured, automatic->goal == EK_GOAL_TIME ? 0.25 : 0.125, devices, room,
                   sizes);
}

/* ---- plans ---- */

/* What is decided about one forward. */
typedef struct decision {
    int64_t sizes[EK_MAX_DEVICES];
    int64_t plan[EK_MAX_DEVICES]; /* `sizes`, or the plan for another batch that gives `sizes` */
    bool fresh;                   /* `plan` is a new plan, to be noted and logged */
    int tried;                    /* an idle device that gets a sample to be measured; -1: none */
    bool modelled;                /* `plan` comes from `proposal` */
    ek_proposal proposal;
} decision;

static bool auto_equal(const int64_t *a, const int64_t *b, int devices)
{
    return memcmp(a, b, (size_t)devices * sizeof *a) == 0;
}

static int64_t auto_sum(const int64_t *sizes, int devices)
{
    int64_t sum = 0;
    for (int i = 0; i < devices; i++)
        sum += sizes[i];
    return sum;
}

static bool auto_gains(const ek_auto *automatic, const ek_proposal *proposal, const int64_t *held)
{
    const int devices = automatic->plans->devices;
    const double least_gain = automatic->goal == EK_GOAL_TIME ? 0.03 : 0.02;
    double now = ek_proposal_cost(proposal, devices, held);
    double then = ek_proposal_cost(proposal, devices, proposal->sizes);
    return now - then >= least_gain * now;
}

/* Returns true if the proposal should replace the last plan, which gives `held` for this batch. It
 * should if no plan came from models yet, if a device ran out of memory, or if only `held` exceeds
 * the proposal's limits. Otherwise it must gain enough, and a second condition must hold. If the
 * batch has the size of the batch before, the last plan must be least_stay forwards old. If not,
 * the batch must be larger than the batch for which the last plan was made. So the small last batch
 * of an epoch replaces no plan. */
static bool auto_worth_it(const ek_auto *automatic, const auto_state *s, int64_t forward,
                          int64_t batch, int64_t planned_batch, const int64_t *held,
                          const ek_proposal *proposal)
{
    const int devices = automatic->plans->devices;
    if (s->planned < 0 || s->failed ||
        (!ek_proposal_allows(proposal, devices, held) &&
         ek_proposal_allows(proposal, devices, proposal->sizes)))
        return true;
    bool due = batch == s->batch ? forward - s->planned >= least_stay : batch > planned_batch;
    return due && auto_gains(automatic, proposal, held);
}

/* Returns true if the last plan is worth replacing although batch sizes keep changing. Compares
 * both plans for the batch size for which the last plan was made. */
static bool auto_look_again(const ek_auto *automatic, const auto_state *s, int64_t forward,
                            const int64_t *last, ek_proposal *proposal)
{
    const int devices = automatic->plans->devices;
    return s->changing >= least_stay && forward - s->planned >= least_stay &&
           ek_propose(s->known, devices, automatic->goal, auto_sum(last, devices), proposal) &&
           auto_gains(automatic, proposal, last);
}

/* Moves a sample to the first device that has been idle long enough and has room for it, if time is
 * the goal. Without this, a device that was slow once would stay idle for good, because only
 * devices with samples are measured. Returns the device that got the sample, or -1 if no sample was
 * moved. */
static int auto_try_idle(const ek_auto *automatic, const auto_state *s, decision *d)
{
    int largest = 0, waiting = -1;
    for (int i = 0; i < automatic->plans->devices; i++) {
        largest = d->sizes[i] > d->sizes[largest] ? i : largest;
        if (waiting < 0 && d->sizes[i] == 0 && s->idle[i] >= s->retry_after &&
            d->proposal.most[i] > 0)
            waiting = i;
    }
    if (automatic->goal != EK_GOAL_TIME || waiting < 0 || d->sizes[largest] < 2)
        return -1;
    d->sizes[largest]--;
    d->sizes[waiting]++;
    return waiting;
}

static void auto_decide(const ek_auto *automatic, const auto_state *s, int64_t forward,
                        int64_t batch, decision *d)
{
    const ek_plans *plans = automatic->plans;
    const int devices = plans->devices;
    const int64_t *last = ek_plans_at(plans, forward);
    int64_t held[EK_MAX_DEVICES];
    if (last)
        ek_split_chunks(batch, devices, last, held);
    d->tried = -1;
    d->modelled = s->measured >= EK_SPLIT_PROBES &&
                  ek_propose(s->known, devices, automatic->goal, batch, &d->proposal);
    bool first = d->modelled && s->planned < 0, again = false;
    if (!d->modelled) {
        auto_probe(automatic, s, batch, d->sizes);
    } else if (!last || auto_worth_it(automatic, s, forward, batch, auto_sum(last, devices), held,
                                      &d->proposal)) {
        memcpy(d->sizes, d->proposal.sizes, sizeof d->sizes);
    } else {
        again = auto_look_again(automatic, s, forward, last, &d->proposal);
        memcpy(d->plan, d->proposal.sizes, sizeof d->plan);
        ek_split_chunks(batch, devices, again ? d->plan : last, d->sizes);
    }
    if (d->modelled)
        d->tried = auto_try_idle(automatic, s, d);
    if (!again || d->tried >= 0)
        memcpy(d->plan, d->sizes, sizeof d->plan);
    d->fresh = !last || !auto_equal(d->sizes, held, devices) || first || again;
}

/* ---- forwards ---- */

/* Returns false if a device was closed since the forward began, which ended the device's watch. */
static bool auto_watched(const ek_auto *automatic, ek_dev *const *devs)
{
    for (int i = 0; i < automatic->plans->devices; i++)
        if (automatic->watches[i].dev != devs[i])
            return false;
    return true;
}

/* Ends the forward under way and learns from it. *now becomes the devices' counters. */
static void auto_conclude(const ek_auto *automatic, auto_state *s, ek_dev *const *devs,
                          auto_counters *now)
{
    s->open = s->open && auto_watched(automatic, devs);
    auto_read(automatic, devs, now);
    auto_learn(s, devs, automatic->plans->devices, now);
    s->open = false;
}

static void auto_start(ek_auto *automatic, ek_dev *const *devs, int64_t batch, const int64_t *sizes,
                       const auto_counters *now)
{
    auto_state *s = &automatic->state;
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
    s->open = true;
    s->before_disturbed = s->disturbed;
    s->disturbed = false;
    s->changing = batch == s->batch ? 0 : s->changing + 1;
    s->batch = batch;
    for (int i = 0; i < devices; i++)
        s->idle[i] = sizes[i] > 0 ? 0 : s->idle[i] + 1;
    memcpy(s->sizes, sizes, (size_t)devices * sizeof *sizes);
    memcpy(s->before, now, (size_t)devices * sizeof *now);
}

/* While probes are timed, waits until the devices have finished the forward before, so that no
 * forward's time contains work of another. Later forwards resemble each other, so that no wait is
 * needed. */
static int auto_synchronize(const ek_auto *automatic, ek_dev *const *devs)
{
    const auto_state *s = &automatic->state;
    for (int i = 0; i < automatic->plans->devices; i++)
        if (automatic->goal == EK_GOAL_TIME && s->open && s->measured < EK_SPLIT_PROBES)
            EK_TRY(ek_dev_synchronize(devs[i]));
    return 0;
}

int ek_auto_begin(ek_auto *automatic, ek_dev *const *devs, int64_t forward, int64_t batch,
                  int64_t *sizes)
{
    auto_state *s = &automatic->state;
    const int devices = automatic->plans->devices;
    auto_counters now[EK_MAX_DEVICES];
    decision d;
    EK_TRY(auto_synchronize(automatic, devs));
    auto_conclude(automatic, s, devs, now);
    auto_decide(automatic, s, forward, batch, &d);
    if (d.fresh) {
        EK_TRY(ek_plans_add(automatic->plans, forward, d.plan));
        ek_plan_log(automatic->what, forward, auto_sum(d.plan, devices), devs, devices, d.plan,
                    d.modelled && d.tried < 0 ? &d.proposal : NULL);
        s->planned = d.modelled ? forward : s->planned;
    }
    if (d.tried >= 0) { /* times from before the device was idle are forgotten */
        memset(&s->known[d.tried].time, 0, sizeof s->known[d.tried].time);
        s->retry_after *= 2;
    }
    memcpy(sizes, d.sizes, (size_t)devices * sizeof *sizes);
    auto_start(automatic, devs, batch, sizes, now);
    return 0;
}

int ek_auto_peek(const ek_auto *automatic, ek_dev *const *devs, int64_t forward, int64_t batch,
                 int64_t *sizes)
{
    auto_state *trial = ek_calloc(1, sizeof *trial);
    auto_counters now[EK_MAX_DEVICES];
    decision d;
    if (!trial)
        return ek_error_pending();
    *trial = automatic->state;
    auto_conclude(automatic, trial, devs, now);
    auto_decide(automatic, trial, forward, batch, &d);
    memcpy(sizes, d.sizes, (size_t)automatic->plans->devices * sizeof *sizes);
    free(trial);
    return 0;
}

void ek_auto_disturb(ek_auto *automatic)
{
    automatic->state.disturbed = true;
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
