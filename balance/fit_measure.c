/* fit_measure.c: trials of trainings, and which modules are worth checkpointing. */
#include <stdlib.h>
#include <string.h>

#include "balance/balance.h"
#include "balance/fit.h"
#include "comm/tree.h"
#include "core/clock.h"
#include "core/thread.h"
#include "core/value.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "evenkeel/precision.h"
#include "nn/nn.h"

/* ---- the first samples of the batch ---- */

typedef struct measure_cut {
    int dim;
    int64_t samples;
} measure_cut;

static bool measure_cut_tensor(ek_value *value, void *user)
{
    const measure_cut *cut = user;
    if (value->kind != EK_VALUE_TENSOR)
        return false;
    const int dim = ek_value_batch_dim(*value, cut->dim);
    ek_tensor *first = ek_narrow(value->as.tensor, dim, 0, cut->samples);
    *value = ek_value_batched(ek_value_with_tensor(*value, first), dim);
    return true;
}

static ek_value measure_first(const ek_fit_search *search, ek_value value, int64_t samples)
{
    if (samples == search->batch)
        return value;
    return ek_value_map(value, measure_cut_tensor, &(measure_cut){search->options->dim, samples});
}

/* ---- a training ---- */

enum { STEPS = 3, MOST_STEPS = 12 };
static const double ENOUGH_SECONDS = 0.15; /* measured for so long, a training has its last step */

typedef struct measure_job {
    ek_module *model, *criterion;
    ek_optimizer *optimizer;
    ek_value input, target;
} measure_job;

static int measure_open(const ek_fit_search *search, const ek_fit_training *training,
                        measure_job *job)
{
    const ek_fit_options *options = search->options;
    ek_fit_result result;
    int64_t samples = 0;
    for (int d = 0; d < search->devices.count; d++)
        samples += training->sizes[d];
    samples *= training->parts;
    samples = samples < search->batch ? samples : search->batch;
    job->input = measure_first(search, options->input, samples);
    job->target = measure_first(search, options->target, samples);
    if (job->input.kind == EK_VALUE_ERROR || job->target.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    ek_fit_apply(search, training, &result);
    ek_module *module = ek_module_copy(options->module);
    job->model = module ? ek_fit_model(&result, module) : NULL;
    ek_module *criterion = job->model ? ek_module_copy(options->criterion) : NULL;
    job->criterion = criterion ? ek_fit_criterion(&result, criterion) : NULL;
    if (!job->criterion)
        return ek_error_pending();
    job->optimizer = options->optimizer(job->model, options->user);
    return ek_error_outcome(job->optimizer ? 0 : EK_E_STATE);
}

static int measure_synchronize(const ek_fit_search *search)
{
    int rc = 0;
    for (int d = 0; d < search->devices.count; d++) {
        int done = ek_dev_synchronize(search->devs[d]);
        rc = rc < 0 ? rc : done;
    }
    return rc;
}

static int measure_step(const ek_fit_search *search, const measure_job *job, int parts)
{
    double loss;
    ek_scope scope = ek_scope_begin();
    int rc = ek_train_step(&loss, .model = job->model, .criterion = job->criterion,
                           .optimizer = job->optimizer, .input = job->input, .target = job->target,
                           .dim = search->options->dim, .micro_batches = parts,
                           .max_norm = search->options->max_norm);
    ek_scope_end(&scope);
    int done = measure_synchronize(search);
    return rc < 0 ? rc : done;
}

static void measure_least(double *least, double seconds, bool first)
{
    if (first || seconds < *least)
        *least = seconds;
}

static double measure_seconds(uint64_t begin, uint64_t end)
{
    return (double)(end - begin) * 1e-9;
}

/* Takes a step and times it. */
static int measure_timed_step(const ek_fit_search *search, const measure_job *job,
                              ek_fit_trial *trial, bool first, double *sum)
{
    uint64_t busy[EK_MAX_DEVICES], begin;
    for (int d = 0; d < search->devices.count; d++)
        busy[d] = ek_dev_busy_ns(search->devs[d]);
    begin = ek_clock_ns();
    EK_TRY(measure_step(search, job, trial->training.parts));
    double seconds = measure_seconds(begin, ek_clock_ns());
    measure_least(&trial->need.seconds, seconds, first);
    for (int d = 0; d < search->devices.count; d++)
        measure_least(&trial->busy_seconds[d],
                      measure_seconds(busy[d], ek_dev_busy_ns(search->devs[d])), first);
    *sum += seconds;
    return 0;
}

/* Takes steps. The first step is not timed, but its memory counts. Of the others the least times
 * count, which other work of the machine has disturbed least. */
static int measure_steps(ek_fit_search *search, const measure_job *job, ek_fit_trial *trial)
{
    const int most = search->ranks ? STEPS : MOST_STEPS; /* all ranks take as many steps */
    double sum = 0;
    for (int d = 0; d < search->devices.count; d++)
        EK_TRY(ek_memory_reset_peak(search->devices.devices[d]));
    EK_TRY(measure_step(search, job, trial->training.parts));
    for (int i = 0; i < STEPS || (i < most && sum < ENOUGH_SECONDS); i++)
        EK_TRY(measure_timed_step(search, job, trial, i == 0, &sum));
    for (int d = 0; d < search->devices.count; d++) {
        ek_memory_stats stats;
        EK_TRY(ek_memory_get_stats(search->devices.devices[d], &stats));
        trial->need.peaks[d] = stats.peak;
        memcpy(trial->now[d], stats.at_peak, sizeof trial->now[d]);
    }
    for (int i = 0; i < STEPS; i++) { /* the gradients of the last step are still there */
        uint64_t begin = ek_clock_ns();
        EK_TRY(ek_step(job->optimizer));
        EK_TRY(measure_synchronize(search));
        measure_least(&trial->update_seconds, measure_seconds(begin, ek_clock_ns()), i == 0);
    }
    return 0;
}

/* Returns how often the device has found no memory so far. */
static uint64_t measure_failures(const ek_fit_search *search, int d)
{
    ek_memory_stats stats;
    ek_ledger_read(search->devs[d], &stats);
    return stats.failures;
}

static int measure_run(ek_fit_search *search, ek_fit_trial *trial)
{
    measure_job job = {0};
    ek_thread *self = ek_thread_self();
    const ek_thread_modes modes = self->modes;
    ek_scope scope = ek_scope_begin();
    ek_set_grad_enabled(true);
    ek_autocast autocast =
        ek_autocast_begin(trial->training.levels[EK_FIT_AUTOCAST] ? EK_BF16 : EK_F32);
    int rc = measure_open(search, &trial->training, &job);
    if (rc >= 0)
        rc = measure_steps(search, &job, trial);
    ek_autocast_end(&autocast);
    ek_optimizer_free(job.optimizer);
    ek_module_free(job.model);
    ek_module_free(job.criterion);
    ek_scope_end(&scope);
    self->modes = modes;
    return rc;
}

/* Replaces what the ranks have measured by the largest of it. */
static int measure_combine(const ek_fit_search *search, ek_fit_trial *trial)
{
    EK_TRY(ek_ranks_combine(search->ranks, 0, &trial->need.seconds, true));
    EK_TRY(ek_ranks_combine(search->ranks, 0, &trial->update_seconds, true));
    for (int d = 0; d < search->devices.count; d++) {
        double peak = (double)trial->need.peaks[d], short_of = trial->short_of[d];
        EK_TRY(ek_ranks_combine(search->ranks, 0, &peak, true));
        EK_TRY(ek_ranks_combine(search->ranks, 0, &short_of, true));
        EK_TRY(ek_ranks_combine(search->ranks, 0, &trial->busy_seconds[d], true));
        trial->need.peaks[d] = (uint64_t)peak;
        trial->short_of[d] = short_of > 0;
    }
    return 0;
}

int ek_fit_try(ek_fit_search *search, const ek_fit_training *training)
{
    uint64_t failures[EK_MAX_DEVICES];
    ek_fit_trial trial = {.training = *training};
    for (int d = 0; d < search->devices.count; d++) {
        ek_dev_trim(search->devs[d]);
        failures[d] = measure_failures(search, d);
    }
    bool short_of_any = false;
    int rc = measure_run(search, &trial);
    if (search->ranks)
        rc = ek_agree_on_memory("fit", search->ranks, rc);
    for (int d = 0; d < search->devices.count; d++) {
        trial.short_of[d] = rc == EK_E_OUT_OF_MEMORY && measure_failures(search, d) > failures[d];
        ek_dev_trim(search->devs[d]);
    }
    if (rc == EK_E_OUT_OF_MEMORY) {
        ek_error_record error;
        ek_error_take(&error);
        if (search->ranks)
            EK_TRY(measure_combine(search, &trial));
        for (int d = 0; d < search->devices.count; d++)
            short_of_any = short_of_any || trial.short_of[d];
        if (!short_of_any)
            return ek_error_raise(&error);
    } else {
        EK_TRY(rc);
        if (search->ranks)
            EK_TRY(measure_combine(search, &trial));
    }
    trial.ran = rc >= 0;
    EK_TRY(ek_fit_add_trial(&search->estimator, &trial));
    return trial.ran;
}

/* ---- which modules are worth checkpointing ---- */

/* What a module's calls in one forward have kept and taken. */
typedef struct measure_module {
    ek_module *module; /* borrowed */
    char *path;        /* owned */
    int parent;        /* index of the module that called it; -1: none */
    bool may;          /* the module can be checkpointed */
    uint64_t before;   /* bytes in use when its call began */
    uint64_t begin;    /* when that was */
    double kept, saved, seconds;
} measure_module;

typedef struct measure_profile {
    const ek_fit_search *search;
    ek_dev *cpu;
    measure_module *modules; /* owned; in the order of the tree */
    int count, room;
    int inside; /* the module whose call is open; -1: none */
    int chosen[EK_FIT_MODULES], chosen_count;
} measure_profile;

static uint64_t measure_in_use(const measure_profile *profile)
{
    ek_memory_stats stats;
    ek_ledger_read(profile->cpu, &stats);
    return stats.in_use;
}

/* Returns NULL for a module that a forward has made. */
static measure_module *measure_find(measure_profile *profile, const ek_module *module)
{
    for (int i = 0; i < profile->count; i++)
        if (profile->modules[i].module == module)
            return &profile->modules[i];
    return NULL;
}

static ek_value measure_before(ek_module *module, const ek_args *args, void *user)
{
    measure_profile *profile = user;
    measure_module *of = measure_find(profile, module);
    (void)args;
    if (!of)
        return ek_value_none();
    of->parent = profile->inside;
    profile->inside = (int)(of - profile->modules);
    of->before = measure_in_use(profile);
    of->begin = ek_clock_ns();
    return ek_value_none();
}

static double measure_nbytes(ek_value value)
{
    double nbytes = 0;
    if (value.kind == EK_VALUE_TENSOR)
        return (double)(ek_tensor_count(value.as.tensor) *
                        (int64_t)ek_dtype_size(ek_tensor_dtype(value.as.tensor)));
    for (int i = 0; i < ek_value_length(value); i++)
        nbytes += measure_nbytes(ek_value_at(value, i));
    return nbytes;
}

static ek_value measure_after(ek_module *module, const ek_args *args, ek_value output, void *user)
{
    measure_profile *profile = user;
    measure_module *of = measure_find(profile, module);
    const uint64_t in_use = measure_in_use(profile);
    (void)args;
    if (!of)
        return ek_value_none();
    const double kept = in_use > of->before ? (double)(in_use - of->before) : 0;
    of->seconds += (double)(ek_clock_ns() - of->begin) * 1e-9;
    of->kept += kept;
    of->saved += kept - measure_nbytes(output);
    profile->inside = of->parent;
    return ek_value_none();
}

/* Returns true if a part of the module waits for other replicas, which a checkpoint refuses. */
static bool measure_waits(ek_module *module)
{
    if (module->type->name && strcmp(module->type->name, "sync_batch_norm") == 0)
        return true;
    for (int i = 0; ek_module_child_name(module, i); i++) {
        ek_module *child = ek_module_child(module, i);
        if (child && measure_waits(child))
            return true;
    }
    return false;
}

static int measure_visit(const char *path, ek_module *module, void *user)
{
    measure_profile *profile = user;
    EK_TRY(ek_grow(&profile->modules, &profile->room, profile->count + 1));
    measure_module *of = &profile->modules[profile->count];
    *of = (measure_module){.module = module,
                           .path = ek_strdup(path),
                           .parent = -1,
                           .may = path[0] && !strchr(path, ',') && !measure_waits(module)};
    if (!of->path)
        return ek_error_pending();
    profile->count++;
    int64_t hook = ek_module_register_forward_pre_hook(module, measure_before, profile);
    if (hook >= 0)
        hook = ek_module_register_forward_hook(module, measure_after, profile);
    return hook < 0 ? (int)hook : 0;
}

/* Runs a forward of a copy of the module on cpu. */
static int measure_forward(measure_profile *profile, ek_module *copy)
{
    enum { FEW = 2 };
    const ek_fit_search *search = profile->search;
    int count;
    EK_TRY(ek_module_modules(copy, measure_visit, profile));
    ek_value input =
        measure_first(search, search->options->input, search->batch < FEW ? search->batch : FEW);
    input = ek_value_to_device(input, ek_cpu(), search->options->dim);
    ek_value *inputs = input.kind == EK_VALUE_ERROR ? NULL : ek_spread(input, NULL, 0, &count);
    if (!inputs)
        return ek_error_pending();
    ek_value output = ek_module_forward(copy, &(const ek_args){inputs, count, ek_value_none()});
    free(inputs);
    return output.kind == EK_VALUE_ERROR ? ek_error_pending() : 0;
}

/* Chooses the module if it keeps little or if nothing within it can be chosen; else parts of it. */
static void measure_choose(measure_profile *profile, int at, double total)
{
    enum { LARGE = 3, SMALL = 64 }; /* shares of what the whole model keeps: 1/3, 1/64 */
    const measure_module *of = &profile->modules[at];
    bool within = false;
    for (int i = 0; i < profile->count; i++)
        within = within || (profile->modules[i].parent == at && profile->modules[i].may &&
                            profile->modules[i].saved > total / SMALL);
    if (of->may && (of->saved <= total / LARGE || !within)) {
        if (of->saved > total / SMALL && profile->chosen_count < EK_FIT_MODULES)
            profile->chosen[profile->chosen_count++] = at;
        return;
    }
    for (int i = 0; i < profile->count; i++)
        if (profile->modules[i].parent == at)
            measure_choose(profile, i, total);
}

/* Sorts the chosen modules by the bytes that they save per second. */
static void measure_sort(measure_profile *profile)
{
    const measure_module *all = profile->modules;
    for (int i = 1; i < profile->chosen_count; i++)
        for (int k = i; k > 0; k--) {
            int *a = &profile->chosen[k - 1], *b = &profile->chosen[k], other = *a;
            if (all[*a].saved * all[*b].seconds >= all[*b].saved * all[*a].seconds)
                break;
            *a = *b;
            *b = other;
        }
}

/* Moves the paths of the chosen modules to the ladder, as far as a result has room for them. */
static void measure_fill(measure_profile *profile, ek_fit_ladder *ladder, int *levels)
{
    size_t length = 0;
    int count = 0;
    for (; count < profile->chosen_count; count++) {
        measure_module *of = &profile->modules[profile->chosen[count]];
        length += strlen(of->path) + 1;
        if (length >= EK_FIT_PATHS)
            break;
        ladder->paths[count] = of->path;
        of->path = NULL;
    }
    *levels = count < EK_FIT_LEVELS ? count + 1 : EK_FIT_LEVELS;
    for (int l = 1; l < *levels; l++)
        ladder->counts[l] = (count * l + *levels - 2) / (*levels - 1);
}

/* Replaces the chosen modules and their order by those of the first rank. */
static int measure_share(measure_profile *profile)
{
    ek_ranks *ranks = profile->search->ranks;
    double count = ranks->rank == 0 ? profile->chosen_count : -1;
    EK_TRY(ek_ranks_combine(ranks, 0, &count, true));
    profile->chosen_count = (int)count;
    for (int i = 0; i < profile->chosen_count; i++) {
        double at = ranks->rank == 0 ? profile->chosen[i] : -1;
        EK_TRY(ek_ranks_combine(ranks, 0, &at, true));
        profile->chosen[i] = (int)at;
    }
    return 0;
}

int ek_fit_find_ladder(ek_fit_search *search)
{
    measure_profile profile = {.search = search,
                               .cpu = ek_dev_get(ek_cpu()),
                               .inside = -1,
                               .modules = NULL};
    ek_scope scope = ek_scope_begin();
    bool enabled = ek_set_grad_enabled(true);
    ek_module *copy = profile.cpu ? ek_module_copy(search->options->module) : NULL;
    int rc = copy ? measure_forward(&profile, copy) : ek_error_pending();
    if (rc >= 0) {
        measure_choose(&profile, 0, profile.modules[0].kept);
        measure_sort(&profile);
    }
    if (search->ranks)
        rc = ek_agree_on_memory("fit", search->ranks, rc);
    if (rc >= 0 && search->ranks)
        rc = measure_share(&profile);
    if (rc >= 0) {
        measure_fill(&profile, &search->ladder, &search->estimator.levels[EK_FIT_CHECKPOINTS]);
    }
    ek_set_grad_enabled(enabled);
    ek_scope_end(&scope);
    ek_module_free(copy);
    for (int i = 0; i < profile.count; i++)
        free(profile.modules[i].path);
    free(profile.modules);
    return rc;
}

void ek_fit_free_ladder(ek_fit_ladder *ladder)
{
    for (int i = 0; i < EK_FIT_MODULES; i++)
        free(ladder->paths[i]);
}
