/* fit_result.c: the result of ek_fit: what is chosen and expected; and its use. */
#include <stdio.h>
#include <string.h>

#include "balance/fit.h"
#include "core/error.h"
#include "evenkeel/nn.h"
#include "nn/module_table.h"

/* ---- filling ---- */

void ek_fit_apply(const ek_fit_search *search, const ek_fit_training *training,
                  ek_fit_result *result)
{
    const int *levels = training->levels;
    *result =
        (ek_fit_result){.wrapper = EK_DEFAULTS(ek_data_parallel_options),
                        .process_group = search->options->process_group,
                        .ranks = search->ranks ? search->ranks->size : 1,
                        .micro_batches = training->parts,
                        .autocast = levels[EK_FIT_AUTOCAST] ? EK_BF16 : EK_F32,
                        .checkpointed_count = search->ladder.counts[levels[EK_FIT_CHECKPOINTS]]};
    result->wrapper.device_ids = search->devices;
    result->wrapper.dim = search->options->dim;
    result->wrapper.shard = (ek_shard_policy)levels[EK_FIT_SHARD];
    result->wrapper.offload = (ek_offload_policy)levels[EK_FIT_OFFLOAD];
    memcpy(result->wrapper.chunks, training->sizes, sizeof training->sizes);
    size_t length = 0;
    for (int i = 0; i < result->checkpointed_count; i++)
        length +=
            (size_t)snprintf(result->checkpointed + length, sizeof result->checkpointed - length,
                             "%s%s", i ? "," : "", search->ladder.paths[i]);
}

/* Adds what a means saves and costs, if the training has it. */
static void result_expect_means(const ek_fit_search *search, const ek_fit_training *training,
                                ek_fit_factor factor, ek_expectation *expected)
{
    const ek_fit_estimator *estimator = &search->estimator;
    ek_fit_training without = ek_fit_without(estimator, training, search->batch, factor);
    if (expected->means_count == EK_EXPECTED_MEANS ||
        memcmp(&without, training, sizeof without) == 0)
        return;
    ek_fit_need with_it = ek_fit_estimate(estimator, training);
    ek_fit_need without_it = ek_fit_estimate(estimator, &without);
    ek_expected_means *means = &expected->means[expected->means_count++];
    int fullest = 0;
    for (int d = 0; d < estimator->devices; d++)
        if (without_it.peaks[d] > without_it.peaks[fullest])
            fullest = d;
    ek_fit_name_means(search, training, factor, means->name, sizeof means->name);
    means->saved = (int64_t)(without_it.peaks[fullest] - with_it.peaks[fullest]);
    means->seconds = with_it.seconds - without_it.seconds;
}

static void result_expect(const ek_fit_search *search, const ek_fit_training *training,
                          ek_expectation *expected)
{
    const ek_fit_trial *trial = ek_fit_trial_of(&search->estimator, training);
    expected->batch = search->batch;
    expected->step_seconds = trial->need.seconds;
    expected->device_count = search->devices.count;
    for (int d = 0; d < search->devices.count; d++) {
        ek_expected_device *device = &expected->devices[d];
        device->device = search->devices.devices[d];
        memcpy(device->now, trial->now[d], sizeof device->now);
        for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
            device->peak += device->now[c];
    }
    for (int f = 0; f <= EK_FIT_FACTORS; f++)
        result_expect_means(search, training, (ek_fit_factor)f, expected);
}

static void result_look_larger(const ek_fit_search *search, int64_t batch, ek_fit_larger *larger)
{
    const ek_fit_estimator *estimator = &search->estimator;
    ek_fit_training training;
    int device = 0;
    bool fits = ek_fit_choose(estimator, batch, &training);
    ek_fit_need need = ek_fit_estimate(estimator, &training);
    uint64_t missing = ek_fit_missing(estimator, &need, &device);
    for (int d = 0; d < estimator->devices && missing == 0; d++)
        if (need.peaks[d] > need.peaks[device])
            device = d;
    *larger = (ek_fit_larger){.batch = batch,
                              .fits = fits,
                              .step_seconds = need.seconds,
                              .micro_batches = training.parts,
                              .device = search->devices.devices[device],
                              .peak = need.peaks[device],
                              .missing = fits ? 0 : missing};
}

void ek_fit_fill(const ek_fit_search *search, const ek_fit_training *training,
                 ek_fit_result *result)
{
    ek_fit_apply(search, training, result);
    result_expect(search, training, &result->expected);
    result_look_larger(search, (search->batch * 5 + 3) / 4, &result->larger[0]);
    result_look_larger(search, search->batch * 2, &result->larger[1]);
}

/* ---- using ---- */

static int result_checkpoint(const ek_fit_result *result, ek_module *module)
{
    char path[EK_FIT_PATHS];
    for (const char *at = result->checkpointed; *at; at += *at == ',') {
        size_t length = strcspn(at, ",");
        memcpy(path, at, length);
        path[length] = 0;
        ek_module *part = ek_module_at(module, path);
        EK_TRY(part ? ek_module_checkpoint(part, true) : ek_error_pending());
        at += length;
    }
    return 0;
}

ek_module *ek_fit_model(const ek_fit_result *result, ek_module *module)
{
    if (!module || !result || result_checkpoint(result, module) < 0) {
        if (ek_error_status() == 0)
            EK_FAIL(EK_E_INVALID, "fit_model: the %s is NULL", module ? "result" : "module");
        ek_module_discard(module);
        return NULL;
    }
    ek_data_parallel_options options = result->wrapper;
    options.module = module;
    if (result->ranks <= 1 || !ek_ranks_wrap_model)
        return ek_data_parallel_model_with(options);
    options.shard = EK_SHARD_NONE;
    options.offload = EK_OFFLOAD_NONE;
    module = ek_data_parallel_model_with(options);
    return module ? ek_ranks_wrap_model(module, result->process_group, (int)result->wrapper.shard,
                                        (int)result->wrapper.offload)
                  : NULL;
}

ek_module *ek_fit_criterion(const ek_fit_result *result, ek_module *criterion)
{
    if (!criterion || !result) {
        if (ek_error_status() == 0)
            EK_FAIL(EK_E_INVALID, "fit_criterion: the %s is NULL",
                    criterion ? "result" : "criterion");
        ek_module_discard(criterion);
        return NULL;
    }
    criterion = ek_data_parallel_criterion(criterion, .device_ids = result->wrapper.device_ids,
                                           .dim = result->wrapper.dim);
    if (!criterion || result->ranks <= 1 || !ek_ranks_wrap_criterion)
        return criterion;
    return ek_ranks_wrap_criterion(criterion, result->process_group);
}
