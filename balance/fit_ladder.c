/* fit_ladder.c: which modules are worth checkpointing. Hooks see how much memory each module's call
 * keeps for backward, and how long it takes. */
#include <stdlib.h>
#include <string.h>

#include "balance/balance.h"
#include "balance/fit.h"
#include "core/clock.h"
#include "core/value.h"
#include "evenkeel/autograd.h"

/* What a module's calls in one forward have kept and taken. */
typedef struct ladder_module {
    ek_module *module; /* borrowed */
    char *path;        /* owned */
    int parent;        /* index of the module that called it first; -1: none */
    bool may;          /* the module can be checkpointed */
    uint64_t before;   /* bytes in use when its call began */
    uint64_t begin;    /* when that was */
    double kept, saved, seconds;
} ladder_module;

typedef struct ladder_profile {
    const ek_fit_search *search;
    ek_dev *cpu;
    ladder_module *modules; /* owned; in the order of the tree */
    int count, room;
    int inside; /* the module whose call is open; -1: none */
    int chosen[EK_FIT_MODULES], chosen_count;
} ladder_profile;

static uint64_t ladder_in_use(const ladder_profile *profile)
{
    ek_memory_stats stats;
    ek_ledger_read(profile->cpu, &stats);
    return stats.in_use;
}

/* Returns NULL for a module that a forward has made. */
static ladder_module *ladder_find(ladder_profile *profile, const ek_module *module)
{
    for (int i = 0; i < profile->count; i++)
        if (profile->modules[i].module == module)
            return &profile->modules[i];
    return NULL;
}

static ek_value ladder_before(ek_module *module, const ek_args *args, void *user)
{
    ladder_profile *profile = user;
    ladder_module *of = ladder_find(profile, module);
    (void)args;
    if (!of)
        return ek_value_none();
    if (of->parent < 0)
        of->parent = profile->inside;
    profile->inside = (int)(of - profile->modules);
    of->before = ladder_in_use(profile);
    of->begin = ek_clock_ns();
    return ek_value_none();
}

static double ladder_nbytes(ek_value value)
{
    double nbytes = 0;
    if (value.kind == EK_VALUE_TENSOR)
        return (double)(ek_tensor_count(value.as.tensor) *
                        (int64_t)ek_dtype_size(ek_tensor_dtype(value.as.tensor)));
    for (int i = 0; i < ek_value_length(value); i++)
        nbytes += ladder_nbytes(ek_value_at(value, i));
    return nbytes;
}

static ek_value ladder_after(ek_module *module, const ek_args *args, ek_value output, void *user)
{
    ladder_profile *profile = user;
    ladder_module *of = ladder_find(profile, module);
    const uint64_t in_use = ladder_in_use(profile);
    (void)args;
    if (!of)
        return ek_value_none();
    const double kept = in_use > of->before ? (double)(in_use - of->before) : 0;
    of->seconds += (double)(ek_clock_ns() - of->begin) * 1e-9;
    of->kept += kept;
    of->saved += kept - ladder_nbytes(output);
    profile->inside = of->parent;
    return ek_value_none();
}

/* Returns true if a part of the module waits for other replicas, which a checkpoint refuses. */
static bool ladder_waits(ek_module *module)
{
    if (ek_module_is(module, "sync_batch_norm"))
        return true;
    for (int i = 0; ek_module_child_name(module, i); i++) {
        ek_module *child = ek_module_child(module, i);
        if (child && ladder_waits(child))
            return true;
    }
    return false;
}

static int ladder_visit(const char *path, ek_module *module, void *user)
{
    ladder_profile *profile = user;
    EK_TRY(ek_grow(&profile->modules, &profile->room, profile->count + 1));
    ladder_module *of = &profile->modules[profile->count];
    *of = (ladder_module){.module = module,
                          .path = ek_strdup(path),
                          .parent = -1,
                          .may = path[0] && !strchr(path, ',') && !ladder_waits(module)};
    if (!of->path)
        return ek_error_pending();
    profile->count++;
    int64_t hook = ek_module_register_forward_pre_hook(module, ladder_before, profile);
    if (hook >= 0)
        hook = ek_module_register_forward_hook(module, ladder_after, profile);
    return hook < 0 ? (int)hook : 0;
}

/* Runs a forward of a copy of the module on cpu. */
static int ladder_forward(ladder_profile *profile, ek_module *copy)
{
    enum { FEW = 2 };
    const ek_fit_search *search = profile->search;
    EK_TRY(ek_module_modules(copy, ladder_visit, profile));
    ek_value input =
        ek_fit_first(search, search->options->input, search->batch < FEW ? search->batch : FEW);
    input = ek_value_to_device(input, ek_cpu(), search->options->dim);
    input = ek_spread(&input, 1);
    if (input.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    const ek_args args = {ek_value_items(input), ek_value_length(input), ek_value_none()};
    ek_value output = ek_module_forward(copy, &args);
    return output.kind == EK_VALUE_ERROR ? ek_error_pending() : 0;
}

/* Chooses the module if it keeps little or if nothing within it can be chosen; else parts of it. */
static void ladder_choose(ladder_profile *profile, int at, double total)
{
    enum { LARGE = 3, SMALL = 64 }; /* shares of what the whole model keeps: 1/3, 1/64 */
    const ladder_module *of = &profile->modules[at];
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
            ladder_choose(profile, i, total);
}

/* Sorts the chosen modules by the bytes that they save per second. */
static void ladder_sort(ladder_profile *profile)
{
    const ladder_module *all = profile->modules;
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
static void ladder_fill(ladder_profile *profile, ek_fit_ladder *ladder, int *levels)
{
    size_t length = 0;
    int count = 0;
    for (; count < profile->chosen_count; count++) {
        ladder_module *of = &profile->modules[profile->chosen[count]];
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
static int ladder_share(ladder_profile *profile)
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
    ladder_profile profile = {.search = search, .cpu = ek_dev_get(ek_cpu()), .inside = -1};
    ek_scope scope = ek_scope_begin();
    bool enabled = ek_set_grad_enabled(true);
    ek_module *copy = profile.cpu ? ek_module_copy(search->options->module) : NULL;
    int rc = copy ? ladder_forward(&profile, copy) : ek_error_pending();
    if (rc >= 0) {
        ladder_choose(&profile, 0, profile.modules[0].kept);
        ladder_sort(&profile);
    }
    if (search->ranks)
        rc = ek_agree_on_memory("fit", search->ranks, rc);
    if (rc >= 0 && search->ranks)
        rc = ladder_share(&profile);
    if (rc >= 0)
        ladder_fill(&profile, &search->ladder, &search->estimator.levels[EK_FIT_CHECKPOINTS]);
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
