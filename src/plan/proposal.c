/* proposal.c: makes a plan from the models, and logs it. */

#include "plan/auto.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/locale.h"
#include "core/thread.h"

/* ---- bounds after failures ---- */

int64_t ek_plan_bound_of(const ek_plan_device *known, int64_t batch)
{
    int64_t most = INT64_MAX;
    for (int i = 0; i < known->bounded; i++)
        if (batch >= known->bounds[i].batch && known->bounds[i].most < most)
            most = known->bounds[i].most;
    bool holds = batch == known->retry.batch || (known->failures > 0 && batch > known->retry.batch);
    if (holds && known->retry.batch > 0 && known->retry.most < most)
        most = known->retry.most;
    return most;
}

/* Returns by how many samples the next try is smaller: 1 after the first failure, and twice as many
 * after each further failure in a row; if no memory was measured, at least half of n. Never returns
 * more than n. */
static int64_t bound_step(const ek_plan_device *known, int64_t n)
{
    int64_t less = known->failures < 40 ? INT64_C(1) << known->failures : n;
    if (!known->memory.count && less < n - n / 2)
        less = n - n / 2;
    return less < n ? less : n;
}

void ek_plan_bound_add(ek_plan_device *known, int64_t batch, int64_t n)
{
    enum { BOUNDS = sizeof known->bounds / sizeof *known->bounds };
    known->retry = (struct ek_plan_bound){batch, n - bound_step(known, n)};
    known->failures++;
    int kept = 0; /* how many old bounds stay, which are those that the new bound doesn't imply */
    for (int i = 0; i < known->bounded; i++)
        if (known->bounds[i].batch < batch || known->bounds[i].most < n - 1)
            known->bounds[kept++] = known->bounds[i];
    if (kept == BOUNDS) {
        memmove(known->bounds, known->bounds + 1, (BOUNDS - 1) * sizeof *known->bounds);
        kept--;
    }
    known->bounds[kept++] = (struct ek_plan_bound){batch, n - 1};
    known->bounded = kept;
}

/* ---- each device's line ---- */

/* Writes the memory lines. A device that was not measured gets the steepest slope of all measured
 * devices and their least fixed memory, but at least its own state. Returns false if no device was
 * measured. */
static bool proposal_memory_lines(const ek_plan_device *known, int devices, int64_t batch,
                                  ek_cost *costs)
{
    bool shown[EK_MAX_DEVICES], any = false;
    ek_line other = {INFINITY, 0};
    for (int i = 0; i < devices; i++) {
        ek_line line;
        shown[i] = ek_memory_model_line(&known[i].memory, batch, &line);
        if (!shown[i])
            continue;
        any = true;
        costs[i] = (ek_cost){known[i].state + line.fixed, line.per_sample, INT64_MAX};
        other.fixed = costs[i].fixed < other.fixed ? costs[i].fixed : other.fixed;
        other.per_sample = line.per_sample > other.per_sample ? line.per_sample : other.per_sample;
    }
    for (int i = 0; i < devices && !any; i++)
        costs[i] = (ek_cost){known[i].state, 0, INT64_MAX};
    for (int i = 0; i < devices && any; i++)
        if (!shown[i])
            costs[i] = (ek_cost){fmax(other.fixed, known[i].state), other.per_sample, INT64_MAX};
    return any;
}

/* Writes the time lines. A device that was not measured gets the mean of the other devices' lines,
 * scaled to its speed. Returns false if no device was measured. */
static bool proposal_time_lines(const ek_plan_device *known, int devices, ek_cost *costs)
{
    bool shown[EK_MAX_DEVICES];
    double fixed = 0, work = 0;
    int count = 0;
    for (int i = 0; i < devices; i++) {
        ek_line line;
        shown[i] = ek_time_model_line(&known[i].time, &line);
        if (!shown[i])
            continue;
        costs[i] = (ek_cost){line.fixed, line.per_sample, INT64_MAX};
        fixed += line.fixed * known[i].speed;
        work += line.per_sample * known[i].speed;
        count++;
    }
    for (int i = 0; i < devices && count; i++)
        if (!shown[i])
            costs[i] =
                (ek_cost){fixed / count / known[i].speed, work / count / known[i].speed, INT64_MAX};
    return count > 0;
}

/* Writes the capacities. A device without a capacity gets the largest capacity of all devices, or 1
 * if no device has a capacity. */
static void proposal_capacities(const ek_plan_device *known, int devices, double *result)
{
    double largest = 0;
    for (int i = 0; i < devices; i++)
        largest = known[i].capacity > largest ? known[i].capacity : largest;
    for (int i = 0; i < devices; i++)
        result[i] = known[i].capacity > 0 ? known[i].capacity : largest > 0 ? largest : 1;
}

static int64_t proposal_most_within(const ek_cost *memory, double capacity)
{
    double room = capacity - memory->fixed;
    if (room < 0)
        return 0;
    if (room >= memory->per_sample * 0x1p60)
        return INT64_MAX;
    return (int64_t)floor(room / memory->per_sample + 1e-3); /* 1e-3 tolerates rounding */
}

/* ---- the plan ---- */

static ek_cost proposal_memory_cost(const ek_proposal *p, int i, int64_t most)
{
    return (ek_cost){p->memory[i].fixed / p->capacity[i], p->memory[i].per_sample / p->capacity[i],
                     most};
}

/* Levels the costs of the goal within `most`. If no plan stays within `most`, levels memory within
 * the bounds from failures. If no plan stays within these bounds either, levels memory without
 * limits. */
static void proposal_level(const ek_plan_device *known, int devices, int64_t batch, ek_proposal *p)
{
    ek_cost costs[EK_MAX_DEVICES] = {{0}};
    for (int i = 0; i < devices; i++) {
        costs[i] = p->goal == EK_GOAL_TIME ? p->time[i] : proposal_memory_cost(p, i, 0);
        costs[i].most = p->most[i];
    }
    if (ek_split_level(batch, devices, costs, p->sizes))
        return;
    p->goal = EK_GOAL_MEMORY;
    for (int i = 0; i < devices; i++)
        costs[i] = proposal_memory_cost(p, i, ek_plan_bound_of(&known[i], batch));
    ek_split_level(batch, devices, costs, p->sizes);
}

bool ek_propose(const ek_plan_device *known, int devices, ek_plan_goal goal, int64_t batch,
                ek_proposal *proposal)
{
    memset(proposal, 0, sizeof *proposal);
    proposal->goal = goal;
    bool memory = proposal_memory_lines(known, devices, batch, proposal->memory);
    if (goal == EK_GOAL_TIME ? !proposal_time_lines(known, devices, proposal->time) : !memory)
        return false;
    proposal_capacities(known, devices, proposal->capacity);
    for (int i = 0; i < devices; i++) {
        int64_t bound = ek_plan_bound_of(&known[i], batch), room = INT64_MAX;
        if (known[i].capacity > 0)
            room = proposal_most_within(&proposal->memory[i], known[i].capacity);
        proposal->most[i] = bound < room ? bound : room;
    }
    proposal_level(known, devices, batch, proposal);
    return true;
}

double ek_proposal_cost(const ek_proposal *proposal, int devices, const int64_t *sizes)
{
    double largest = 0;
    for (int i = 0; i < devices; i++) {
        const ek_cost *line =
            proposal->goal == EK_GOAL_TIME ? &proposal->time[i] : &proposal->memory[i];
        double cost = line->fixed + line->per_sample * (double)sizes[i];
        if (proposal->goal == EK_GOAL_MEMORY)
            cost /= proposal->capacity[i];
        if (sizes[i] > 0 && cost > largest)
            largest = cost;
    }
    return largest;
}

bool ek_proposal_allows(const ek_proposal *proposal, int devices, const int64_t *sizes)
{
    for (int i = 0; i < devices; i++)
        if (sizes[i] > proposal->most[i])
            return false;
    return true;
}

/* ---- log ---- */

/* A log line. If the devices' numbers exceed its room, it is cut off. */
typedef struct log_line {
    char text[900];
    size_t used;
} log_line;

static void log_put(log_line *l, const char *format, ...) EK_PRINTF(2, 3);

static void log_put(log_line *l, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t room = sizeof l->text - l->used - 1;
    size_t wanted = ek_format_list(l->text + l->used, room + 1, format, arguments);
    va_end(arguments);
    l->used += wanted < room ? wanted : room;
}

static void log_cost(log_line *l, const ek_proposal *proposal, int i, bool share)
{
    const ek_cost *cost =
        proposal->goal == EK_GOAL_TIME ? &proposal->time[i] : &proposal->memory[i];
    double amount = cost->fixed + cost->per_sample * (double)proposal->sizes[i];
    if (proposal->sizes[i] == 0)
        log_put(l, "nothing");
    else if (proposal->goal == EK_GOAL_TIME)
        log_put(l, "%.3g ms", amount * 1e-6);
    else if (share)
        log_put(l, "%.1f %%", 100 * amount / proposal->capacity[i]);
    else
        log_put(l, "%.1f MiB", amount * 0x1p-20);
}

void ek_plan_log(const char *what, int64_t forward, int64_t batch, ek_dev *const *devs, int devices,
                 const int64_t *sizes, const ek_proposal *proposal)
{
    log_line l = {.used = 0};
    log_put(&l, "%s: plan of forward %" PRId64 ", batch %" PRId64 ": ", what, forward, batch);
    for (int i = 0; i < devices; i++)
        log_put(&l, "%s%s %" PRId64, i ? ", " : "", devs[i]->name, sizes[i]);
    if (proposal) {
        bool share = proposal->goal == EK_GOAL_MEMORY && proposal->capacity[0] > 1;
        log_put(&l, " (levels %s: ", proposal->goal == EK_GOAL_TIME ? "time" : "memory");
        for (int i = 0; i < devices; i++) {
            log_put(&l, "%s", i ? ", " : "");
            log_cost(&l, proposal, i, share);
        }
        log_put(&l, "%s)", share ? " of capacity" : "");
    } else {
        log_put(&l, " (to measure)");
    }
    ek_log_line(proposal ? EK_LOG_INFO : EK_LOG_DEBUG, "%s", l.text);
}
