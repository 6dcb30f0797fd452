/* fit.c: the search for a training that fits. See fit.h for its road.
 *
 * Small steps of the base kind of training come first, and of each kind that differs from the base
 * in one means. The base has no means if it fits so, else it has all. From these all
 * other kinds are estimated. The most promising kind is measured in small steps, too, and its best
 * training in whole steps, until the best training by all that is known is one that has run. */
#include "balance/fit.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "balance/balance.h"
#include "comm/tree.h"
#include "core/generator.h"
#include "core/thread.h"
#include "evenkeel/ops.h"
#include "nn/batch_norm_module.h"
#include "plan/split.h"

enum {
    MOST_PARTS = 64,
    MOST_KINDS = 12, /* kinds that are measured because they promise most */
    MOST_WHOLE = 10  /* trials with the whole batch */
};

/* ---- before the search ---- */

static int fit_check(const ek_fit_result *result, const ek_fit_options *o)
{
    EK_TRY(ek_error_status());
    EK_TRY(ek_check_pointer("fit", "the result", result));
    if (!o->module || !o->criterion || !o->optimizer)
        return EK_FAIL(EK_E_INVALID, "fit: the %s missing",
                       !o->module      ? "module is"
                       : !o->criterion ? "criterion is"
                                       : "function that makes an optimizer is");
    if (o->input.kind == EK_VALUE_NONE)
        return EK_FAIL(EK_E_INVALID, "fit: the input is missing");
    if (!(o->headroom >= 0 && o->headroom < 1))
        return EK_FAIL(EK_E_INVALID, "fit: headroom is a share of the capacity, not %g",
                       o->headroom);
    if (o->micro_batches < 0 || o->shard < EK_SHARD_NONE || o->shard > EK_SHARD_PARAMETERS)
        return EK_FAIL(EK_E_INVALID, "fit: %d %s",
                       o->micro_batches < 0 ? o->micro_batches : (int)o->shard,
                       o->micro_batches < 0 ? "micro-batches; it has to be 0 or more"
                                            : "is no shard policy");
    return 0;
}

static int fit_check_on_cpu(const char *path, ek_tensor *tensor, void *user)
{
    char name[16];
    const ek_device device = ek_tensor_device(tensor);
    (void)user;
    if (device.kind == EK_CPU)
        return 0;
    return EK_FAIL(EK_E_INVALID, "fit: %s is on %s; the module has to be on cpu", path,
                   ek_device_name(device, name));
}

static bool fit_has_batch_norm(ek_module *module)
{
    bool has = module->type->family == ek_batch_norm_family;
    for (int i = 0; !has && ek_module_child_name(module, i); i++) {
        ek_module *child = ek_module_child(module, i);
        has = child && fit_has_batch_norm(child);
    }
    return has;
}

static int fit_open_devices(ek_fit_search *search)
{
    search->devices = search->options->device_ids;
    if (search->devices.count == 0)
        search->devices = ek_devices(ek_default_device_kind(), 0);
    EK_TRY(ek_device_list_check("fit", &search->devices));
    for (int d = 0; d < search->devices.count; d++) {
        ek_memory_stats stats;
        search->devs[d] = ek_dev_get(search->devices.devices[d]);
        if (!search->devs[d])
            return ek_error_pending();
        ek_ledger_read(search->devs[d], &stats);
        search->estimator.costs[d] = 1;
        search->estimator.limits[d] =
            stats.capacity ? (uint64_t)((double)stats.capacity * (1 - search->options->headroom))
                           : UINT64_MAX;
    }
    return 0;
}

/* Checks that the ranks are alike, and takes the smallest of their limits. */
static int fit_open_ranks(ek_fit_search *search, int rc)
{
    const double own[2] = {(double)search->batch, search->devices.count};
    double most[2] = {own[0], own[1]}, least[2] = {-own[0], -own[1]};
    if (!search->ranks)
        return rc;
    for (int i = 0; i < 2; i++) {
        EK_TRY(ek_ranks_combine(search->ranks, rc, &most[i], true));
        EK_TRY(ek_ranks_combine(search->ranks, 0, &least[i], true));
    }
    for (int i = 0; i < 2; i++)
        if (most[i] != -least[i])
            return ek_ranks_alike(EK_FAIL(EK_E_INVALID, "fit: ranks have from %g to %g %s",
                                          -least[i], most[i], i ? "devices" : "samples"));
    for (int d = 0; d < search->devices.count; d++) {
        double limit = -(double)search->estimator.limits[d];
        EK_TRY(ek_ranks_combine(search->ranks, 0, &limit, true));
        if (-limit < (double)UINT64_MAX)
            search->estimator.limits[d] = (uint64_t)-limit;
    }
    return 0;
}

static int fit_open_batch(ek_fit_search *search)
{
    const ek_fit_options *options = search->options;
    ek_tree_survey survey = {.size = -1};
    EK_TRY(ek_module_parameters(options->module, fit_check_on_cpu, NULL));
    EK_TRY(ek_module_buffers(options->module, fit_check_on_cpu, NULL));
    EK_TRY(ek_tree_look(options->input, options->dim, &survey));
    EK_TRY(ek_tree_look(options->target, options->dim, &survey));
    if (survey.parts > 0 || survey.size < 1)
        return EK_FAIL(EK_E_INVALID, "fit: the input has to be a whole batch that can be cut");
    search->batch = survey.size;
    return fit_open_devices(search);
}

static int fit_open(ek_fit_search *search)
{
    const ek_fit_options *options = search->options;
    ek_fit_estimator *estimator = &search->estimator;
    search->ranks = ek_ranks_of ? ek_ranks_of(options->process_group) : NULL;
    EK_TRY(ek_error_status());
    EK_TRY(fit_open_ranks(search, fit_open_batch(search)));
    estimator->devices = search->devices.count;
    estimator->most_parts = options->micro_batches                ? options->micro_batches
                            : fit_has_batch_norm(options->module) ? 1
                                                                  : MOST_PARTS;
    estimator->levels[EK_FIT_CHECKPOINTS] = 1;
    estimator->levels[EK_FIT_SHARD] =
        estimator->devices > 1 || search->ranks ? (int)options->shard + 1 : 1;
    estimator->levels[EK_FIT_OFFLOAD] = options->offload ? 2 : 1;
    estimator->levels[EK_FIT_AUTOCAST] = options->autocast ? 2 : 1;
    estimator->levels[EK_FIT_PARTS] = estimator->most_parts > 1 && search->batch > 1 ? 2 : 1;
    return options->checkpoint ? ek_fit_find_ladder(search) : 0;
}

/* ---- the search ---- */

static void fit_log(const ek_fit_search *search, const ek_fit_training *training, int rc)
{
    char text[200], bytes[24];
    const ek_fit_trial *trial = ek_fit_trial_of(&search->estimator, training);
    uint64_t peak = 0;
    if (!search->options->log || !trial)
        return;
    for (int d = 0; d < search->devices.count; d++)
        peak = trial->need.peaks[d] > peak ? trial->need.peaks[d] : peak;
    ek_fit_describe(search, training, text, sizeof text);
    if (rc > 0)
        fprintf(search->options->log, "fit: %s: %.4g s, %s\n", text, trial->need.seconds,
                ek_fit_bytes(peak, bytes));
    else
        fprintf(search->options->log, "fit: %s: out of memory\n", text);
}

static int fit_try(ek_fit_search *search, const ek_fit_training *training)
{
    int rc = ek_fit_try(search, training);
    if (rc >= 0)
        fit_log(search, training, rc);
    return rc;
}

/* Tries a kind with `samples` per device, or fewer if the batch has fewer. Returns as ek_fit_try.
 */
static int fit_try_small(ek_fit_search *search, const int *levels, int64_t samples)
{
    ek_fit_training training = {.parts = levels[EK_FIT_PARTS] ? 2 : 1};
    const int64_t most = search->batch / training.parts;
    memcpy(training.levels, levels, sizeof training.levels);
    samples *= search->devices.count;
    ek_split_even(samples < most ? samples : most, search->devices.count, training.sizes);
    return fit_try(search, &training);
}

/* Returns true if a kind was refused for another reason than memory. Clears the error. */
static bool fit_was_refused(int rc)
{
    if (rc >= 0 || rc == EK_E_NO_MEMORY || rc == EK_E_OUT_OF_MEMORY)
        return false;
    ek_error_clear();
    return true;
}

/* Measures a kind in steps of three sizes: a few samples per device, a quarter and half of the
 * batch. If memory runs out, smaller sizes take the place of the larger two. Activations determine
 * the peak in the larger steps alone. Returns 1 if a step ran, 0 if memory ran out. */
static int fit_measure_kind(ek_fit_search *search, const int *levels)
{
    enum { FEW = 2 };
    int64_t samples = search->batch / search->devices.count / 4;
    int rc = fit_try_small(search, levels, FEW), sizes = 0;
    if (rc == 0) {
        rc = fit_try_small(search, levels, 1);
        return fit_was_refused(rc) ? 0 : rc; /* batch norm refuses a single sample */
    }
    EK_TRY(rc);
    while (samples > FEW && sizes < 2) {
        rc = fit_try_small(search, levels, samples);
        EK_TRY(rc);
        sizes += rc;
        if (rc == 0 && sizes > 0)
            break;
        samples = rc ? samples * 2 : samples / 2;
    }
    return 1;
}

/* Makes the leanest kind the base, and measures it. If it is refused, means are given up. */
static int fit_measure_leanest(ek_fit_search *search)
{
    int *levels = search->estimator.levels, *base = search->estimator.base;
    for (int f = 0; f < EK_FIT_AUTOCAST; f++)
        base[f] = levels[f] - 1;
    int rc = fit_measure_kind(search, base);
    for (int f = 0; f < EK_FIT_AUTOCAST && fit_was_refused(rc); f += base[f] == 0) {
        base[f] -= base[f] > 0;
        levels[f] = base[f] + 1;
        rc = fit_measure_kind(search, base);
    }
    return rc;
}

/* Measures the kind without means, and its best training in whole steps. If that doesn't run, the
 * leanest kind becomes the base. Returns 1 if a step ran, 0 if memory ran out. */
static int fit_measure_base(ek_fit_search *search)
{
    ek_fit_estimator *estimator = &search->estimator;
    ek_fit_training plain;
    int rc = fit_measure_kind(search, estimator->base), ran = rc, means = 0;
    EK_TRY(rc);
    estimator->only_known = true;
    if (ran && ek_fit_choose(estimator, search->batch, &plain))
        rc = ek_fit_trial_of(estimator, &plain) ? 1 : fit_try(search, &plain);
    else
        rc = 0;
    estimator->only_known = false;
    for (int f = 0; f < EK_FIT_AUTOCAST; f++)
        means += estimator->levels[f] - 1;
    return rc != 0 ? rc : means > 0 ? fit_measure_leanest(search) : ran;
}

/* Measures a kind. If it is refused, a trial that didn't run excludes the kind. */
static int fit_measure_or_exclude(ek_fit_search *search, const int *levels)
{
    ek_fit_trial trial = {.ran = false};
    int rc = fit_measure_kind(search, levels);
    if (!fit_was_refused(rc))
        return rc;
    memcpy(trial.training.levels, levels, sizeof trial.training.levels);
    return ek_fit_add_trial(&search->estimator, &trial);
}

/* Measures the kinds that differ from the base in one level. */
static int fit_measure_singles(ek_fit_search *search)
{
    const ek_fit_estimator *estimator = &search->estimator;
    int levels[EK_FIT_FACTORS];
    for (int f = 0; f < EK_FIT_FACTORS; f++)
        for (int l = 0; l < estimator->levels[f]; l++) {
            memcpy(levels, estimator->base, sizeof levels);
            levels[f] = l;
            if (l != estimator->base[f])
                EK_TRY(fit_measure_or_exclude(search, levels));
        }
    return 0;
}

/* Sets the devices' costs to how long they worked per sample. Devices that differ by less than a
 * third from the mean count as equal, because times are noisy. */
static void fit_compare_devices(ek_fit_search *search)
{
    static const double EQUAL = 1. / 3;
    ek_fit_estimator *estimator = &search->estimator;
    double seconds[EK_MAX_DEVICES] = {0}, samples[EK_MAX_DEVICES] = {0}, mean = 0;
    for (int i = 0; i < estimator->count; i++)
        for (int d = 0; d < estimator->devices && estimator->trials[i].ran; d++) {
            const ek_fit_trial *trial = &estimator->trials[i];
            seconds[d] += trial->busy_seconds[d];
            samples[d] += (double)(trial->training.sizes[d] * trial->training.parts);
        }
    for (int d = 0; d < estimator->devices; d++) {
        seconds[d] /= samples[d] > 0 ? samples[d] : 1;
        mean += seconds[d] / estimator->devices;
    }
    for (int d = 0; d < estimator->devices && mean > 0; d++) {
        double cost = seconds[d] / mean;
        estimator->costs[d] = samples[d] > 0 && (cost < 1 - EQUAL || cost > 1 + EQUAL) ? cost : 1;
    }
}

/* Fails with what is missing for a training. */
static int fit_refuse(const ek_fit_search *search, const ek_fit_training *training, bool is_whole)
{
    char text[200], name[16], bytes[24], batch[64] = "not even a sample per device fits";
    int device;
    ek_fit_need need = ek_fit_estimate(&search->estimator, training);
    uint64_t missing = ek_fit_missing(&search->estimator, &need, &device);
    ek_fit_describe(search, training, text, sizeof text);
    if (is_whole)
        snprintf(batch, sizeof batch, "a batch of %lld doesn't fit", (long long)search->batch);
    if (missing == 0)
        return EK_FAIL(EK_E_OUT_OF_MEMORY,
                       "fit: %s: %s runs out of memory in some steps, not in others, even with %s",
                       batch, ek_device_name(search->devices.devices[device], name), text);
    return EK_FAIL(EK_E_OUT_OF_MEMORY, "fit: %s: %s lacks %llu bytes (%s) even with %s", batch,
                   ek_device_name(search->devices.devices[device], name),
                   (unsigned long long)missing, ek_fit_bytes(missing, bytes), text);
}

/* Called if not even a sample per device fits. Lifts the capacities for a small step of the leanest
 * kind, so that it is known what is missing. */
static int fit_refuse_all(ek_fit_search *search)
{
    int rc, back = 0;
    uint64_t capacities[EK_MAX_DEVICES];
    for (int d = 0; d < search->devices.count; d++) {
        ek_memory_stats stats;
        ek_ledger_read(search->devs[d], &stats);
        capacities[d] = stats.capacity;
        ek_memory_set_capacity(search->devices.devices[d], 0);
    }
    search->estimator.count = 0; /* The trials so far ran out of memory under these capacities. */
    rc = fit_try_small(search, search->estimator.base, 1);
    if (fit_was_refused(rc))
        rc = fit_try_small(search, search->estimator.base, 2);
    for (int d = 0; d < search->devices.count; d++) {
        int set = ek_memory_set_capacity(search->devices.devices[d], capacities[d]);
        back = back < 0 ? back : set;
    }
    EK_TRY(rc);
    EK_TRY(back);
    if (rc == 0)
        return EK_FAIL(EK_E_OUT_OF_MEMORY, "fit: not even one sample per device fits");
    return fit_refuse(search, &search->estimator.trials[search->estimator.count - 1].training,
                      false);
}

/* Returns the fastest training that has run with the whole batch and fits, of those that were tried
 * at most `most` times; NULL if there is none. */
static const ek_fit_trial *fit_best_that_ran(const ek_fit_search *search, int most)
{
    const ek_fit_estimator *estimator = &search->estimator;
    const ek_fit_trial *best = NULL;
    for (int i = 0; i < estimator->count; i++) {
        const ek_fit_trial *trial = &estimator->trials[i];
        int64_t samples = 0;
        int device;
        for (int d = 0; d < estimator->devices; d++)
            samples += trial->training.sizes[d] * trial->training.parts;
        if (trial->ran && samples >= search->batch && trial->times <= most &&
            ek_fit_missing(estimator, &trial->need, &device) == 0 &&
            (!best || ek_fit_rating(trial) < ek_fit_rating(best)))
            best = trial;
    }
    return best;
}

/* Chooses among the trainings that have run. The fastest ones run again before, because a trial may
 * have been disturbed. Returns 1, 0 if none has run, or a negative status. */
static int fit_choose_that_ran(ek_fit_search *search, ek_fit_training *chosen)
{
    enum { AGAIN = 4 };
    const ek_fit_trial *best;
    for (int i = 0; i < AGAIN && (best = fit_best_that_ran(search, 1)) != NULL; i++) {
        *chosen = best->training;
        EK_TRY(fit_try(search, chosen));
    }
    best = fit_best_that_ran(search, INT_MAX);
    if (best)
        *chosen = best->training;
    return best != NULL;
}

/* Returns true if a training that seems not to fit lacks so little that it is tried. */
static bool fit_is_near(const ek_fit_search *search, const ek_fit_training *training)
{
    enum { NEAR = 16 }; /* a share of the limit: 1/16 */
    int device;
    ek_fit_need need = ek_fit_estimate(&search->estimator, training);
    uint64_t missing = ek_fit_missing(&search->estimator, &need, &device);
    return missing < search->estimator.limits[device] / NEAR;
}

static int fit_search(ek_fit_search *search, ek_fit_training *chosen)
{
    enum { CHANCES = 3 }; /* peaks vary with the order of threads */
    ek_fit_estimator *estimator = &search->estimator;
    int rc = 0, kinds = 0;
    for (int i = 0; i < CHANCES && rc == 0; i++) {
        estimator->count = 0;
        rc = fit_measure_base(search);
    }
    EK_TRY(rc);
    if (rc == 0)
        return fit_refuse_all(search);
    EK_TRY(fit_measure_singles(search));
    fit_compare_devices(search);
    for (int whole = 0; whole < MOST_WHOLE;) {
        bool fits = ek_fit_choose(estimator, search->batch, chosen);
        bool tried = ek_fit_trial_of(estimator, chosen) != NULL;
        if (!ek_fit_trials_of_kind(estimator, chosen->levels)) {
            EK_TRY(fit_measure_or_exclude(search, chosen->levels));
            estimator->only_known = ++kinds == MOST_KINDS;
            continue;
        }
        if (tried || (!fits && !fit_is_near(search, chosen)))
            break;
        EK_TRY(fit_try(search, chosen));
        whole++;
    }
    ek_fit_training nearest = *chosen;
    rc = fit_choose_that_ran(search, chosen);
    return rc == 0 ? fit_refuse(search, &nearest, true) : rc;
}

/* ---- the call ---- */

/* Searches, and restores the devices' peaks. */
static int fit_run(ek_fit_search *search, ek_fit_result *result)
{
    ek_memory_stats before[EK_MAX_DEVICES];
    ek_fit_training training;
    EK_TRY(fit_open(search));
    for (int d = 0; d < search->devices.count; d++)
        ek_ledger_read(search->devs[d], &before[d]);
    int rc = fit_search(search, &training);
    for (int d = 0; d < search->devices.count; d++) {
        ek_dev_trim(search->devs[d]);
        ek_dev_restore_peak(search->devs[d], &before[d]);
    }
    EK_TRY(rc);
    ek_fit_fill(search, &training, result);
    return 0;
}

int ek_fit_with(ek_fit_result *result, ek_fit_options options)
{
    EK_TRY(fit_check(result, &options));
    ek_fit_search search = {.options = &options};
    *result = (ek_fit_result){0};
    ek_generators *generators = ek_generators_save();
    if (!generators)
        return ek_error_pending();
    ek_scope scope = ek_scope_begin();
    int rc = fit_run(&search, result);
    ek_scope_end(&scope);
    if (rc < 0 && search.ranks && rc != EK_E_OUT_OF_MEMORY)
        search.ranks->agree(search.ranks, rc); /* the others may wait for this rank */
    ek_object_release(search.ranks);
    ek_generators_restore(generators);
    free(generators);
    ek_fit_free_ladder(&search.ladder);
    free(search.estimator.trials);
    return rc < 0 ? rc : 0;
}
