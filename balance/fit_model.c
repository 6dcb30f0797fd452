/* fit_model.c: see fit_model.h. The time of a step is that of the optimizer's update and, for each
 * part, that of the device whose samples take longest. */
#include "balance/fit_model.h"

#include <string.h>

#include "core/thread.h"
#include "plan/split.h"

/* A kind without trials may need this times less than is estimated. */
static const double DOUBT = 1.1;
/* A device that runs out of memory is taken to need what it has times this. */
static const double SHORT = 1.1;
/* A training without a trial is preferred to one that has run if it takes less than the other's
 * time divided by this. */
static const double PROMISE = 0.97;
/* Another cut of a training that has run is tried if it takes this share of the time, or less. */
static const double RECUT = 0.9;
/* Each means counts as if a step took this times longer, so that of equals the plainest is chosen.
 */
static const double PLAINNESS = 1.02;

/* ---- trials ---- */

static bool model_is_kind(const ek_fit_trial *trial, const int *levels)
{
    return memcmp(trial->training.levels, levels, sizeof trial->training.levels) == 0;
}

const ek_fit_trial *ek_fit_trial_of(const ek_fit_estimator *model, const ek_fit_training *training)
{
    for (int i = model->count - 1; i >= 0; i--) {
        const ek_fit_training *of = &model->trials[i].training;
        if (model_is_kind(&model->trials[i], training->levels) && of->parts == training->parts &&
            memcmp(of->sizes, training->sizes, (size_t)model->devices * sizeof *of->sizes) == 0)
            return &model->trials[i];
    }
    return NULL;
}

/* Adds what another trial of the training has measured to the first one's. */
static void model_merge(ek_fit_trial *trial, const ek_fit_trial *again)
{
    trial->ran = trial->ran && again->ran;
    trial->times++;
    if (again->need.seconds < trial->need.seconds)
        trial->need.seconds = again->need.seconds;
    if (again->update_seconds < trial->update_seconds)
        trial->update_seconds = again->update_seconds;
    for (int d = 0; d < EK_MAX_DEVICES; d++) {
        trial->short_of[d] = trial->short_of[d] || again->short_of[d];
        if (again->need.peaks[d] <= trial->need.peaks[d])
            continue;
        trial->need.peaks[d] = again->need.peaks[d];
        memcpy(trial->now[d], again->now[d], sizeof trial->now[d]);
    }
}

int ek_fit_add_trial(ek_fit_estimator *model, const ek_fit_trial *trial)
{
    const ek_fit_trial *before = ek_fit_trial_of(model, &trial->training);
    if (before) {
        model_merge(&model->trials[before - model->trials], trial);
        return 0;
    }
    EK_TRY(ek_grow(&model->trials, &model->room, model->count + 1));
    model->trials[model->count] = *trial;
    model->trials[model->count++].times = 1;
    return 0;
}

static double model_rating(const int *levels, double seconds)
{
    for (int f = 0; f < EK_FIT_FACTORS; f++)
        seconds *= levels[f] ? PLAINNESS : 1;
    return seconds;
}

double ek_fit_rating(const ek_fit_trial *trial)
{
    return model_rating(trial->training.levels, trial->need.seconds);
}

int ek_fit_trials_of_kind(const ek_fit_estimator *model, const int *levels)
{
    int count = 0;
    for (int i = 0; i < model->count; i++)
        count += model_is_kind(&model->trials[i], levels);
    return count;
}

/* ---- a kind that has trials: lines through neighbouring points ---- */

typedef struct model_point {
    double x, y;
} model_point;

/* Puts a point among `count` points in the order of x. Of points of one x, that of the largest y
 * stays, or with `mean` their mean. Returns the new count. */
static int model_insert(model_point *points, int count, model_point point, bool mean)
{
    int at = 0;
    while (at < count && points[at].x < point.x)
        at++;
    if (at < count && points[at].x == point.x) {
        if (mean)
            points[at].y = (points[at].y + point.y) / 2;
        else if (point.y > points[at].y)
            points[at].y = point.y;
        return count;
    }
    memmove(&points[at + 1], &points[at], (size_t)(count - at) * sizeof *points);
    points[at] = point;
    return count + 1;
}

/* Returns y at x, on the line through the two points around x, or through the outermost two. A line
 * doesn't fall, and before the first point y is at least in proportion to x. */
static double model_on_line(const model_point *points, int count, double x)
{
    int high = 1;
    while (high < count - 1 && points[high].x < x)
        high++;
    if (count == 1)
        return points[0].y;
    const model_point *a = &points[high - 1], *b = &points[high];
    double slope = (b->y - a->y) / (b->x - a->x);
    double y = slope > 0 ? a->y + slope * (x - a->x) : x > b->x ? b->y : a->y;
    double least = x < a->x ? a->y * x / a->x : 0;
    return y > least ? y : least;
}

/* Returns the samples of a part, weighted with their costs, on the device that takes longest. */
static double model_longest(const ek_fit_estimator *model, const ek_fit_training *training)
{
    double longest = 0;
    for (int d = 0; d < model->devices; d++) {
        double cost = model->costs[d] * (double)training->sizes[d];
        longest = cost > longest ? cost : longest;
    }
    return longest;
}

enum { MOST_POINTS = 64 }; /* A line is fitted to at most so many trials. */

/* Writes the bytes at the peak. A device that ran out of memory needs more than it has.
 * Returns false if no trial of the kind has run. */
static bool model_peak(const ek_fit_estimator *model, const int *levels, int device, double samples,
                       double *peak)
{
    model_point points[MOST_POINTS + 1];
    int count = 0;
    bool ran = false;
    for (int i = 0; i < model->count && count < MOST_POINTS; i++) {
        const ek_fit_trial *trial = &model->trials[i];
        if (!model_is_kind(trial, levels) || !(trial->ran || trial->short_of[device]))
            continue;
        double y =
            trial->ran ? (double)trial->need.peaks[device] : (double)model->limits[device] * SHORT;
        count = model_insert(points, count, (model_point){(double)trial->training.sizes[device], y},
                             false);
        ran = ran || trial->ran;
    }
    if (ran)
        *peak = model_on_line(points, count, samples);
    return ran;
}

/* Writes the seconds of a part and of the update. Returns false if no trial of the kind has run. */
static bool model_seconds(const ek_fit_estimator *model, const int *levels, double longest,
                          double *part, double *update)
{
    model_point points[MOST_POINTS + 1];
    int count = 0, ran = 0;
    *update = 0;
    for (int i = 0; i < model->count && count < MOST_POINTS; i++) {
        const ek_fit_trial *trial = &model->trials[i];
        if (!trial->ran || !model_is_kind(trial, levels))
            continue;
        double rest = trial->need.seconds - trial->update_seconds;
        model_point point = {model_longest(model, &trial->training),
                             (rest > 0 ? rest : 0) / trial->training.parts};
        count = model_insert(points, count, point, true);
        *update += trial->update_seconds;
        ran++;
    }
    if (count > 0) {
        *part = model_on_line(points, count, longest);
        *update /= ran;
    }
    return count > 0;
}

/* ---- any kind ---- */

/* Writes the base kind with one level taken from `levels`. Returns false if that is the base kind.
 */
static bool model_single(const ek_fit_estimator *model, const int *levels, int factor, int *single)
{
    memcpy(single, model->base, sizeof model->base);
    if (single[factor] == levels[factor])
        return false;
    single[factor] = levels[factor];
    return true;
}

static bool model_is_known(const ek_fit_estimator *model, const int *levels)
{
    double peak;
    return model_peak(model, levels, 0, 0, &peak);
}

/* Returns the bytes of a kind, which for a kind without trials is an estimate. If the estimate
 * would need a kind that ran out of memory with its first sample, a byte more than the device has
 * counts as what that kind needs. */
static double model_peak_of(const ek_fit_estimator *model, const int *levels, int device,
                            double samples)
{
    double peak = 0, base = 0, part;
    int single[EK_FIT_FACTORS];
    if (model_peak(model, levels, device, samples, &peak))
        return peak;
    if (!model_peak(model, model->base, device, samples, &base))
        base = 0;
    peak = base;
    for (int f = 0; f < EK_FIT_FACTORS; f++) {
        if (!model_single(model, levels, f, single))
            continue;
        if (model_peak(model, single, device, samples, &part))
            peak += part - base;
        else if (ek_fit_trials_of_kind(model, single) > 0 && model->limits[device] != UINT64_MAX)
            peak += (double)model->limits[device] + 1 > base
                        ? (double)model->limits[device] + 1 - base
                        : 0;
    }
    return peak > 0 ? peak : 0;
}

static void model_seconds_of(const ek_fit_estimator *model, const int *levels, double longest,
                             double *part, double *update)
{
    double base_part, base_update, other_part, other_update;
    int single[EK_FIT_FACTORS];
    if (model_seconds(model, levels, longest, part, update))
        return;
    *part = *update = 0;
    if (!model_seconds(model, model->base, longest, &base_part, &base_update))
        return;
    *part = base_part;
    *update = base_update;
    for (int f = 0; f < EK_FIT_FACTORS; f++) {
        if (!model_single(model, levels, f, single) ||
            !model_seconds(model, single, longest, &other_part, &other_update))
            continue;
        *part *= base_part > 0 ? other_part / base_part : 1;
        *update *= base_update > 0 ? other_update / base_update : 1;
    }
}

ek_fit_need ek_fit_estimate(const ek_fit_estimator *model, const ek_fit_training *training)
{
    const ek_fit_trial *trial = ek_fit_trial_of(model, training);
    double part, update;
    if (trial && trial->ran)
        return trial->need;
    ek_fit_need need;
    model_seconds_of(model, training->levels, model_longest(model, training), &part, &update);
    need.seconds = update + training->parts * part;
    for (int d = 0; d < model->devices; d++)
        need.peaks[d] =
            (uint64_t)model_peak_of(model, training->levels, d, (double)training->sizes[d]);
    return need;
}

uint64_t ek_fit_missing(const ek_fit_estimator *model, const ek_fit_need *need, int *device)
{
    uint64_t most = 0;
    *device = 0;
    for (int d = 0; d < model->devices; d++)
        if (need->peaks[d] > model->limits[d] && need->peaks[d] - model->limits[d] > most) {
            most = need->peaks[d] - model->limits[d];
            *device = d;
        }
    return most;
}

/* ---- choosing ---- */

/* Returns true if the kind, or one that differs from the base in a level of this kind, ran out
 * of memory with its smallest step. */
static bool model_never_ran(const ek_fit_estimator *model, const int *levels)
{
    int single[EK_FIT_FACTORS];
    bool never = ek_fit_trials_of_kind(model, levels) > 0 && !model_is_known(model, levels);
    for (int f = 0; f < EK_FIT_FACTORS && !never; f++)
        never = model_single(model, levels, f, single) &&
                ek_fit_trials_of_kind(model, single) > 0 && !model_is_known(model, single);
    return never;
}

/* Returns the most samples that the device can take, up to `most`. */
static int64_t model_room(const ek_fit_estimator *model, const int *levels, int device,
                          int64_t most)
{
    const bool known = model_is_known(model, levels);
    double limit = (double)model->limits[device] * (known ? 1 : DOUBT);
    int64_t low = 0, high = most;
    if (!known && model_never_ran(model, levels))
        return 0;
    while (low < high && model->limits[device] != UINT64_MAX) {
        int64_t middle = low + (high - low + 1) / 2;
        if (model_peak_of(model, levels, device, (double)middle) <= limit)
            low = middle;
        else
            high = middle - 1;
    }
    return high;
}

/* Cuts a part for the devices. Returns true if it fits. */
static bool model_cut(const ek_fit_estimator *model, int64_t batch, ek_fit_training *training)
{
    const int64_t part = (batch + training->parts - 1) / training->parts;
    ek_cost costs[EK_MAX_DEVICES];
    for (int d = 0; d < model->devices; d++)
        costs[d] = (ek_cost){0, model->costs[d], model_room(model, training->levels, d, part)};
    return ek_split_level(part, model->devices, costs, training->sizes);
}

/* The best training so far. */
typedef struct model_best {
    bool fits;
    double seconds;   /* The step of a training that fits. */
    uint64_t missing; /* The bytes that a training lacks. */
    ek_fit_training training;
} model_best;

/* Replaces the cut by one that has run with the whole batch, if the new one promises little. */
static void model_keep_cut(const ek_fit_estimator *model, int64_t batch, ek_fit_training *training)
{
    ek_fit_need need = ek_fit_estimate(model, training);
    for (int i = 0; i < model->count; i++) {
        const ek_fit_trial *trial = &model->trials[i];
        int64_t samples = 0;
        int device;
        for (int d = 0; d < model->devices; d++)
            samples += trial->training.sizes[d] * trial->training.parts;
        if (trial->ran && samples >= batch && trial->training.parts == training->parts &&
            model_is_kind(trial, training->levels) &&
            ek_fit_missing(model, &trial->need, &device) == 0 &&
            need.seconds > trial->need.seconds * RECUT)
            *training = trial->training;
    }
}

static void model_consider(const ek_fit_estimator *model, int64_t batch, ek_fit_training training,
                           model_best *best)
{
    int device;
    bool fits = model_cut(model, batch, &training);
    model_keep_cut(model, batch, &training);
    ek_fit_need need = ek_fit_estimate(model, &training);
    const ek_fit_trial *trial = ek_fit_trial_of(model, &training);
    uint64_t missing = ek_fit_missing(model, &need, &device);
    if (trial)
        fits = trial->ran && missing == 0;
    double seconds = model_rating(training.levels, need.seconds) * (trial ? 1 : PROMISE);
    bool better =
        fits ? !best->fits || seconds < best->seconds : !best->fits && missing < best->missing;
    if (better)
        *best = (model_best){fits, seconds, missing, training};
}

/* Writes the next kind. Returns false after the last one. */
static bool model_next_kind(const ek_fit_estimator *model, int *levels)
{
    for (int f = 0; f < EK_FIT_FACTORS; f++) {
        if (++levels[f] < model->levels[f])
            return true;
        levels[f] = 0;
    }
    return false;
}

/* Returns the next number of parts to try: 2, 3, 4, 6, 8, 12, 16, ... */
static int model_next_parts(int parts)
{
    return parts < 4 ? parts + 1 : (parts & (parts - 1)) == 0 ? parts / 2 * 3 : parts / 3 * 4;
}

bool ek_fit_choose(const ek_fit_estimator *model, int64_t batch, ek_fit_training *training)
{
    model_best best = {.missing = UINT64_MAX};
    ek_fit_training tried = {.parts = 1};
    do {
        const int *levels = tried.levels;
        /* Offloading implies sharding of the state. */
        if ((levels[EK_FIT_OFFLOAD] && model->levels[EK_FIT_SHARD] > 1 && !levels[EK_FIT_SHARD]) ||
            (model->only_known && !model_is_known(model, levels)))
            continue;
        bool parts = levels[EK_FIT_PARTS];
        int64_t most = !parts ? 1 : batch < model->most_parts ? batch : model->most_parts;
        for (tried.parts = parts ? 2 : 1; tried.parts <= most;
             tried.parts = model_next_parts(tried.parts))
            model_consider(model, batch, tried, &best);
    } while (model_next_kind(model, tried.levels));
    *training = best.training;
    return best.fits;
}

ek_fit_training ek_fit_without(const ek_fit_estimator *model, const ek_fit_training *training,
                               int64_t batch, ek_fit_factor factor)
{
    ek_fit_training without = *training;
    if (factor < EK_FIT_FACTORS)
        without.levels[factor] = 0;
    if (factor == EK_FIT_PARTS)
        without.parts = 1;
    if (factor == EK_FIT_SHARD && without.levels[EK_FIT_OFFLOAD]) /* the state stays sharded */
        without.levels[EK_FIT_SHARD] = training->levels[EK_FIT_SHARD] > EK_SHARD_NONE;
    if (factor == EK_FIT_PARTS || factor == EK_FIT_FACTORS)
        ek_split_even((batch + without.parts - 1) / without.parts, model->devices, without.sizes);
    return without;
}
