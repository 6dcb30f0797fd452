/* planner.c: checks the plan options of a wrapper, and computes the sizes of each forward. */
#include "plan/planner.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "plan/auto.h"
#include "plan/plan_text.h"
#include "plan/split.h"

struct ek_planner {
    const char *what;
    int devices;
    enum { BY_CHUNK, BY_FIRST, BY_PLANS, BY_MEASURE } way;
    int64_t first;      /* BY_FIRST: how many samples the first device gets */
    ek_plans plans;     /* BY_PLANS: all plans; BY_MEASURE: the plans so far */
    ek_auto *automatic; /* BY_MEASURE; owned */
    int64_t forward;    /* the number of the next forward */
};

/* ---- options ---- */

/* Which of the options that exclude each other were given. The error names these options. */
typedef struct wishes {
    bool chunks, weights, first, plan;
} wishes;

static wishes wishes_of(const ek_split_options *options)
{
    return (wishes){options->chunks != NULL, options->weights != NULL,
                    options->first_device_batch != NULL, options->plan != NULL};
}

static int planner_check_policy(const char *what, const ek_split_options *options)
{
    if ((unsigned)options->policy > EK_SPLIT_AUTO)
        return EK_FAIL(EK_E_INVALID,
                       "%s: %d is no way to split; write EK_SPLIT_CHUNK, EK_SPLIT_EVEN or "
                       "EK_SPLIT_AUTO",
                       what, (int)options->policy);
    if ((unsigned)options->goal > EK_GOAL_TIME)
        return EK_FAIL(EK_E_INVALID,
                       "%s: %d is no goal of plans; write EK_GOAL_MEMORY or EK_GOAL_TIME", what,
                       (int)options->goal);
    if (options->goal != EK_GOAL_MEMORY && options->policy != EK_SPLIT_AUTO)
        return EK_FAIL(EK_E_INVALID,
                       "%s: a goal is for plans that are measured; add "
                       ".split = EK_SPLIT_AUTO, or leave .goal out",
                       what);
    return 0;
}

static int planner_check_one(const char *what, const ek_split_options *options, wishes given)
{
    int count = given.chunks + given.weights + given.first + given.plan;
    bool goes_on = given.plan && options->policy == EK_SPLIT_AUTO;
    if (count > 1 || (count == 1 && options->policy != EK_SPLIT_CHUNK && !goes_on))
        return EK_FAIL(EK_E_INVALID, "%s: one way to split is possible, not%s%s%s%s%s%s", what,
                       options->policy == EK_SPLIT_EVEN ? " EK_SPLIT_EVEN" : "",
                       options->policy == EK_SPLIT_AUTO ? " EK_SPLIT_AUTO" : "",
                       given.chunks ? " .chunks" : "", given.weights ? " .weights" : "",
                       given.first ? " .first_device_batch" : "", given.plan ? " .plan" : "");
    return 0;
}

/* Fails if shares are negative, not finite, all zero, or given for devices that do not exist. */
static int planner_check_shares(const char *what, const char *name, const double *shares,
                                int devices)
{
    bool any = false;
    for (int i = 0; i < EK_MAX_DEVICES; i++) {
        if (!(shares[i] >= 0 && isfinite(shares[i])))
            return EK_FAIL(EK_E_INVALID, "%s: .%s[%d] is %g; write a finite number from 0 on", what,
                           name, i, shares[i]);
        if (i >= devices && shares[i] > 0)
            return EK_FAIL(EK_E_INVALID, "%s: .%s[%d] is %g, but there are %d devices", what, name,
                           i, shares[i], devices);
        any = any || shares[i] > 0;
    }
    if (!any)
        return EK_FAIL(EK_E_INVALID, "%s: .%s gives no device a sample", what, name);
    return 0;
}

/* ---- making ---- */

static int planner_use_chunks(ek_planner *planner, const int64_t *chunks)
{
    double shares[EK_MAX_DEVICES];
    for (int i = 0; i < EK_MAX_DEVICES; i++) {
        shares[i] = (double)chunks[i];
        if (chunks[i] > INT64_C(1000000000000000))
            return EK_FAIL(EK_E_INVALID, "%s: .chunks[%d] is %" PRId64 "; at most 1e15 is possible",
                           planner->what, i, chunks[i]);
    }
    EK_TRY(planner_check_shares(planner->what, "chunks", shares, planner->devices));
    planner->way = BY_PLANS;
    return ek_plans_add(&planner->plans, 0, chunks);
}

static int planner_use_weights(ek_planner *planner, const double *weights)
{
    int64_t whole[EK_MAX_DEVICES];
    EK_TRY(planner_check_shares(planner->what, "weights", weights, planner->devices));
    ek_split_whole(planner->devices, weights, whole);
    planner->way = BY_PLANS;
    return ek_plans_add(&planner->plans, 0, whole);
}

static int planner_use_first(ek_planner *planner, int64_t given)
{
    planner->first = given;
    planner->way = BY_FIRST;
    if (planner->first < 0)
        return EK_FAIL(EK_E_INVALID,
                       "%s: .first_device_batch is %" PRId64 "; write a number from 0 on",
                       planner->what, given);
    return 0;
}

static int planner_use_plan(ek_planner *planner, const char *text)
{
    const int before = ek_error_status();
    planner->way = BY_PLANS;
    int rc = ek_plans_parse(&planner->plans, text, planner->devices);
    if (rc < 0)
        ek_error_prefix(before, "%s: .plan", planner->what);
    return rc;
}

/* Splits by equal chunks, which is an even split. */
static int planner_use_even(ek_planner *planner)
{
    int64_t ones[EK_MAX_DEVICES];
    for (int i = 0; i < EK_MAX_DEVICES; i++)
        ones[i] = 1;
    planner->way = BY_PLANS;
    return ek_plans_add(&planner->plans, 0, ones);
}

/* Reads the text's plans and drops all but the last, which then holds from forward 0 on. */
static int planner_go_on_from(ek_planner *planner, const char *text)
{
    int64_t sizes[EK_MAX_DEVICES];
    EK_TRY(planner_use_plan(planner, text));
    memcpy(sizes, ek_plans_at(&planner->plans, INT64_MAX),
           (size_t)planner->devices * sizeof *sizes);
    ek_plans_free(&planner->plans);
    return ek_plans_add(&planner->plans, 0, sizes);
}

static int planner_use_measure(ek_planner *planner, ek_plan_goal goal, const char *plan)
{
    if (plan)
        EK_TRY(planner_go_on_from(planner, plan));
    planner->way = BY_MEASURE;
    planner->automatic = ek_auto_new(planner->what, goal, &planner->plans);
    return planner->automatic ? 0 : ek_error_pending();
}

static int planner_use(ek_planner *planner, const ek_split_options *options)
{
    const wishes given = wishes_of(options);
    EK_TRY(planner_check_policy(planner->what, options));
    EK_TRY(planner_check_one(planner->what, options, given));
    if (given.chunks)
        return planner_use_chunks(planner, options->chunks);
    if (given.weights)
        return planner_use_weights(planner, options->weights);
    if (given.first)
        return planner_use_first(planner, *options->first_device_batch);
    if (options->policy == EK_SPLIT_EVEN)
        return planner_use_even(planner);
    if (options->policy == EK_SPLIT_AUTO)
        return planner_use_measure(planner, options->goal, options->plan);
    if (given.plan)
        return planner_use_plan(planner, options->plan);
    return 0;
}

ek_planner *ek_planner_new(const char *what, const ek_split_options *options, int devices)
{
    if (devices < 1 || devices > EK_MAX_DEVICES)
        return EK_FAIL_NULL(EK_E_INVALID, "%s: plans are for between 1 and %d devices, not for %d",
                            what, EK_MAX_DEVICES, devices);
    ek_planner *planner = ek_calloc(1, sizeof *planner);
    if (!planner)
        return NULL;
    planner->what = what;
    planner->devices = devices;
    planner->plans.devices = devices;
    if (planner_use(planner, options) < 0) {
        ek_planner_free(planner);
        return NULL;
    }
    return planner;
}

void ek_planner_free(ek_planner *planner)
{
    if (!planner)
        return;
    ek_auto_free(planner->automatic);
    ek_plans_free(&planner->plans);
    free(planner);
}

/* ---- using ---- */

bool ek_planner_is_chunk(const ek_planner *planner)
{
    return planner->way == BY_CHUNK;
}

static int planner_check_batch(const ek_planner *planner, int64_t batch)
{
    if (batch >= 1 && batch <= INT64_MAX / 2)
        return 0;
    return EK_FAIL(EK_E_INVALID, "%s: a batch of %" PRId64 " samples cannot be planned for",
                   planner->what, batch);
}

static void planner_split(const ek_planner *planner, int64_t forward, int64_t batch, int64_t *sizes)
{
    if (planner->way == BY_PLANS)
        ek_split_chunks(batch, planner->devices, ek_plans_at(&planner->plans, forward), sizes);
    else if (planner->way == BY_FIRST)
        ek_split_first(batch, planner->devices, planner->first, sizes);
    else
        ek_split_chunk(batch, planner->devices, sizes);
}

int ek_planner_begin(ek_planner *planner, ek_dev *const *devs, int64_t batch, int64_t *sizes)
{
    EK_TRY(planner_check_batch(planner, batch));
    if (planner->way == BY_MEASURE)
        EK_TRY(ek_auto_begin(planner->automatic, devs, planner->forward, batch, sizes));
    else
        planner_split(planner, planner->forward, batch, sizes);
    planner->forward++;
    return 0;
}

int ek_planner_peek(ek_planner *planner, ek_dev *const *devs, int64_t batch, int64_t *sizes)
{
    EK_TRY(planner_check_batch(planner, batch));
    if (planner->way == BY_MEASURE)
        return ek_auto_peek(planner->automatic, devs, planner->forward, batch, sizes);
    planner_split(planner, planner->forward, batch, sizes);
    return 0;
}

int ek_planner_hold(ek_planner *planner, ek_dev *const *devs, int64_t batch, int64_t *sizes)
{
    EK_TRY(planner_check_batch(planner, batch));
    if (planner->way == BY_MEASURE)
        return ek_auto_hold(planner->automatic, devs, batch, sizes);
    planner_split(planner, planner->forward ? planner->forward - 1 : 0, batch, sizes);
    return 0;
}

void ek_planner_disturb(ek_planner *planner)
{
    if (planner->way == BY_MEASURE)
        ek_auto_disturb(planner->automatic);
}

size_t ek_planner_text(const ek_planner *planner, char *text, size_t room)
{
    return ek_plans_write(&planner->plans, text, room);
}
