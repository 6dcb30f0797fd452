/* find_batch.c: the largest batch that fits.
 *
 * Memory is nearly linear in the batch. The peaks of the last two batches that fitted give a line
 * for each device, and the lines a guess at the largest batch. The first batch that fails and the
 * last that fitted are a bracket, which is then halved.
 *
 * Each try starts from the state before the search and without cached blocks, so that the result
 * doesn't depend on earlier tries. A model with EK_SPLIT_AUTO is an exception: it keeps what its
 * plans have learnt, and the optimizer's state, which is part of the memory that it measures. */
#include <stdlib.h>
#include <string.h>

#include "balance/balance.h"
#include "core/device.h"
#include "core/thread.h"
#include "evenkeel/train.h"

enum {
    GROWTH = 4,
    RUNS = 2, /* the optimizer makes its state in the first step; the second one has it from the
                 start */
    PLAN_RUNS = 4,   /* EK_SPLIT_AUTO measures over some forwards */
    PLAN_CHANGES = 8 /* a batch that fails again after so many changes of the plan doesn't fit */
};

typedef struct search {
    const ek_find_batch_options *options;
    ek_device_list devices;
    ek_dev *devs[EK_MAX_DEVICES];
    ek_training_state *state;
    ek_ranks *ranks; /* the ranks that search together; NULL: this process alone */
    bool plans;      /* the model's split is EK_SPLIT_AUTO */
    size_t plan_nbytes;
    int64_t fits;    /* the largest batch that fitted; 0: none yet */
    int64_t smaller; /* the batch that fitted before `fits`; 0: none yet */
    int64_t failing; /* the smallest batch that failed; 0: none yet */
    int64_t most;    /* the largest batch to try */
    int64_t least_growth;
    uint64_t peaks[EK_MAX_DEVICES], smaller_peaks[EK_MAX_DEVICES]; /* peaks at `fits`, `smaller` */
} search;

/* ---- one try ---- */

static int find_begin_run(search *s)
{
    int rc = s->plans ? 0 : ek_training_state_restore(s->state);
    for (int d = 0; d < s->devices.count; d++) {
        ek_dev_trim(s->devs[d]);
        ek_memory_reset_peak(s->devices.devices[d]);
    }
    return rc;
}

/* Calls the user's function. Returns its status; if it is 0, the status of the work that it issued.
 */
static int find_run(search *s, int64_t batch)
{
    ek_thread *self = ek_thread_self();
    const ek_thread_modes modes = self->modes;
    ek_scope scope = ek_scope_begin();
    int rc = ek_error_outcome(s->options->function(batch, s->options->user));
    for (int d = 0; d < s->devices.count; d++) {
        int done = ek_dev_synchronize(s->devs[d]);
        rc = rc < 0 ? rc : done;
    }
    ek_scope_end(&scope);
    self->modes = modes;
    return rc;
}

/* ---- several ranks ---- */

/* Gathers the status `error->status` of each rank in *all, which the caller frees. If a gather
 * fails and *error has no error yet, *error becomes the gather's error. */
static int find_gather(ek_ranks *ranks, ek_error_record *error, int64_t **all)
{
    *all = ek_calloc((size_t)ranks->size, sizeof **all);
    if (!*all)
        return ek_error_pending();
    int rc = -1;
    for (int tries = 0; tries <= ranks->size && rc < 0; tries++) {
        const int64_t mine = error->status;
        rc = ranks->gather(ranks, &mine, 1, *all);
        if (rc < 0 && error->status == 0)
            ek_error_take(error);
        ek_error_clear();
    }
    return rc < 0 ? ek_error_raise(error) : 0;
}

int ek_agree_on_memory(const char *what, ek_ranks *ranks, int rc)
{
    ek_error_record error = {0};
    int64_t *all;
    if (rc < 0) {
        ranks->agree(ranks, rc);
        ek_error_take(&error);
    }
    int outcome = find_gather(ranks, &error, &all);
    bool memory = false, other = outcome < 0;
    for (int r = 0; r < ranks->size && outcome >= 0; r++) {
        memory = memory || all[r] == EK_E_OUT_OF_MEMORY;
        other = other || (all[r] < 0 && all[r] != EK_E_OUT_OF_MEMORY && all[r] != EK_E_ABORTED);
        rc = all[r] < rc ? (int)all[r] : rc;
    }
    free(all);
    if (outcome < 0)
        return outcome;
    if (memory && !other)
        return ek_ranks_alike(EK_FAIL(EK_E_OUT_OF_MEMORY, "%s: a rank is out of memory", what));
    if (error.status < 0)
        return ek_error_raise(&error);
    return rc < 0 ? ek_ranks_alike(EK_FAIL(EK_E_ABORTED, "%s: another rank has failed", what)) : 0;
}

/* Returns the smallest of the batches that the ranks have found for the memory of their devices. */
static int64_t find_smallest(ek_ranks *ranks, int64_t batch)
{
    int64_t *all = ek_calloc((size_t)ranks->size, sizeof *all);
    int rc = all ? ranks->gather(ranks, &batch, 1, all) : ek_error_pending();
    for (int r = 0; r < ranks->size && rc >= 0; r++)
        batch = all[r] < batch ? all[r] : batch;
    free(all);
    return rc < 0 ? rc : batch;
}

/* Returns 1 if the batch fits `runs` times in a row; 0 if memory runs out; negative for another
 * error. */
static int find_run_from_start(search *s, int64_t batch, int runs)
{
    int rc = 0;
    EK_TRY(find_begin_run(s));
    for (int k = 0; k < runs && rc >= 0; k++) {
        rc = find_run(s, batch);
        rc = s->ranks ? ek_agree_on_memory("find_batch", s->ranks, rc) : rc;
    }
    if (rc == EK_E_OUT_OF_MEMORY) {
        ek_error_clear();
        return 0;
    }
    return rc < 0 ? rc : 1;
}

/* Replaces find_run_from_start for EK_SPLIT_AUTO, for which a batch fits if PLAN_RUNS runs in a row
 * fit. If a failed run changes the plan, the count begins again. */
static int find_run_planned(search *s, int64_t batch)
{
    int64_t before[EK_MAX_DEVICES], after[EK_MAX_DEVICES];
    int changes = 0;
    for (int runs = 0; runs < PLAN_RUNS; runs++) {
        EK_TRY(ek_data_parallel_sizes(s->options->model, batch, before));
        int rc = find_run_from_start(s, batch, 1);
        EK_TRY(rc);
        if (rc == 1)
            continue;
        EK_TRY(ek_data_parallel_sizes(s->options->model, batch, after));
        if (memcmp(before, after, s->plan_nbytes) == 0 || changes++ == PLAN_CHANGES)
            return 0;
        runs = -1;
    }
    return 1;
}

/* Tries a batch, and stores its peaks if it fits. */
static int find_try_batch(search *s, int64_t batch)
{
    int rc = s->plans ? find_run_planned(s, batch) : find_run_from_start(s, batch, RUNS);
    EK_TRY(rc);
    if (rc == 0) {
        s->failing = batch;
        return 0;
    }
    s->smaller = s->fits;
    s->fits = batch;
    memcpy(s->smaller_peaks, s->peaks, sizeof s->peaks);
    for (int d = 0; d < s->devices.count; d++) {
        ek_memory_stats stats;
        EK_TRY(ek_memory_get_stats(s->devices.devices[d], &stats));
        s->peaks[d] = stats.peak;
    }
    return 0;
}

/* ---- which batch next ---- */

/* Returns how many more samples fit on device d by its line, at most `most`. If the device has no
 * capacity or no line, returns `most`. */
static double find_room_on(const search *s, int d, double most)
{
    ek_memory_stats stats;
    if (ek_memory_get_stats(s->devices.devices[d], &stats) < 0 || !stats.capacity ||
        s->peaks[d] <= s->smaller_peaks[d])
        return most;
    double per_sample =
        (double)(s->peaks[d] - s->smaller_peaks[d]) / (double)(s->fits - s->smaller);
    double room = stats.capacity > s->peaks[d] ? (double)(stats.capacity - s->peaks[d]) : 0;
    return room / per_sample < most ? room / per_sample : most;
}

static int64_t find_next_to_grow(search *s)
{
    int64_t multiple = s->options->multiple;
    double more = (double)(GROWTH - 1) * (double)s->fits;
    for (int d = 0; s->smaller > 0 && d < s->devices.count; d++)
        more = find_room_on(s, d, more);
    if (more >= (double)(s->most - s->fits)) /* also what int64_t doesn't hold */
        return s->most;
    int64_t growth = (int64_t)more / multiple * multiple;
    if (growth < s->least_growth) { /* the line may be too steep, so that least_growth doubles */
        growth = s->least_growth;
        s->least_growth *= 2;
    }
    return growth < s->most - s->fits ? s->fits + growth : s->most;
}

static int64_t find_next_batch(search *s)
{
    int64_t multiple = s->options->multiple;
    if (!s->fits)
        return s->options->first;
    if (!s->failing)
        return find_next_to_grow(s);
    return s->fits + (s->failing - s->fits) / multiple / 2 * multiple;
}

static int64_t find_search_largest(search *s)
{
    int64_t multiple = s->options->multiple;
    while (s->fits < s->most && !(s->failing && s->failing - s->fits <= multiple)) {
        int64_t batch = find_next_batch(s);
        if (s->ranks)
            batch = find_smallest(s->ranks, batch);
        if (batch < 0)
            return batch;
        EK_TRY(find_try_batch(s, batch));
        if (!s->fits)
            return 0; /* not even the first batch fits */
    }
    return s->fits;
}

/* ---- before and after the search ---- */

/* Checks the options, and rounds the batches. */
static int find_resolve(ek_find_batch_options *o)
{
    EK_TRY(ek_error_status());
    if (!o->function)
        return EK_FAIL(EK_E_INVALID, "find_batch: the function that runs a batch is missing");
    if (o->first < 1 || o->most < 1 || o->multiple < 1)
        return EK_FAIL(
            EK_E_INVALID,
            "find_batch: first %lld, most %lld, multiple %lld; they have to be at least 1",
            (long long)o->first, (long long)o->most, (long long)o->multiple);
    o->most = o->most / o->multiple * o->multiple;
    int64_t first = o->first;
    int64_t over = first % o->multiple;
    if (over && first > INT64_MAX - o->multiple)
        first = INT64_MAX;
    else
        first += over ? o->multiple - over : 0;
    if (first > o->most)
        return EK_FAIL(EK_E_INVALID,
                       "find_batch: the first batch, %lld, is more than the largest multiple of "
                       "%lld that may be tried, %lld",
                       (long long)first, (long long)o->multiple, (long long)o->most);
    o->first = first;
    if (o->device_ids.count == 0)
        o->device_ids = ek_devices(ek_default_device_kind(), 0);
    return ek_device_list_check("find_batch", &o->device_ids);
}

static int find_open_devices(search *s)
{
    s->devices = s->options->device_ids;
    for (int d = 0; d < s->devices.count; d++) {
        s->devs[d] = ek_dev_get(s->devices.devices[d]);
        if (!s->devs[d])
            return ek_error_pending();
    }
    return 0;
}

/* Restores state and peaks. An error that is pending stays. */
static int find_put_back(search *s, const ek_memory_stats *before)
{
    ek_error_record error;
    ek_error_take(&error);
    int rc = ek_training_state_restore(s->state);
    ek_training_state_free(s->state);
    for (int d = 0; d < s->devices.count; d++) {
        ek_dev_trim(s->devs[d]);
        ek_dev_restore_peak(s->devs[d], &before[d]);
    }
    if (error.status < 0)
        ek_error_raise(&error);
    return rc;
}

int64_t ek_find_batch_with(ek_find_batch_options options)
{
    ek_memory_stats before[EK_MAX_DEVICES];
    EK_TRY(find_resolve(&options));
    search s = {.options = &options, .most = options.most, .least_growth = options.multiple};
    ek_module *child;
    s.ranks = ek_ranks_around(options.model, &child);
    const ek_wrapper *wrapper = options.model ? ek_wrapper_of(options.model) : NULL;
    s.plans = wrapper && wrapper->measures && wrapper->devices.count > 1;
    s.plan_nbytes = s.plans ? (size_t)wrapper->devices.count * sizeof(int64_t) : 0;
    EK_TRY(find_open_devices(&s));
    for (int d = 0; d < s.devices.count; d++)
        EK_TRY(ek_memory_get_stats(s.devices.devices[d], &before[d]));
    s.state = ek_training_state_save(options.model, options.optimizer);
    if (!s.state)
        return ek_error_pending();
    int64_t batch = find_search_largest(&s);
    int rc = find_put_back(&s, before);
    return batch < 0 ? batch : rc < 0 ? rc : batch;
}
