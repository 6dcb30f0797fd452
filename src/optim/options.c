/* options.c: reads, checks and sets the options of optimizers by their names. */
#include "optim/algorithm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The numbers from low to high. An end that is open isn't in the range. */
typedef struct range {
    double low, high;
    bool low_is_open, high_is_open;
    const char *text;
} range;

static const range positive_or_0 = {0, INFINITY, false, false, "0 or more"};
static const range below_1 = {0, 1, false, true, "in [0, 1)"};
static const range up_to_1 = {0, 1, false, false, "in [0, 1]"};
static const range between_0_and_1 = {0, 1, true, true, "between 0 and 1"};
static const range above_1 = {1, INFINITY, true, false, "more than 1"};
static const range counted = {0, INT32_MAX / 2, false, false, "0 or more"};
static const range counted_from_1 = {1, INT32_MAX / 2, false, false, "1 or more"};
static const range line_searches = {EK_FIXED_STEP, EK_STRONG_WOLFE, false, false,
                                    "EK_FIXED_STEP or EK_STRONG_WOLFE"};
static const range any = {-INFINITY, INFINITY, false, false, "a number"};

/* The type of the member in the algorithm's own struct: double, bool, or int and enum. */
typedef enum kind { NUMBER, SWITCH, WHOLE } kind;

/* A row for an option whose name is also the word in errors. */
#define OPTION(member, kind, range) [EK_OPTION(member)] = {#member, #member, kind, range}

static const struct option {
    const char *name, *what; /* `what` is the option's name in errors about its range */
    kind kind;
    const range *range;
} options[EK_OPTIMIZER_OPTION_COUNT] = {
    [EK_OPTION(lr)] = {"lr", "learning rate", NUMBER, &positive_or_0},
    OPTION(momentum, NUMBER, &positive_or_0),
    OPTION(dampening, NUMBER, &any),
    OPTION(weight_decay, NUMBER, &positive_or_0),
    OPTION(nesterov, SWITCH, NULL),
    OPTION(beta1, NUMBER, &below_1),
    OPTION(beta2, NUMBER, &below_1),
    OPTION(eps, NUMBER, &positive_or_0),
    OPTION(amsgrad, SWITCH, NULL),
    OPTION(maximize, SWITCH, NULL),
    OPTION(alpha, NUMBER, &positive_or_0),
    OPTION(centered, SWITCH, NULL),
    OPTION(lr_decay, NUMBER, &positive_or_0),
    OPTION(initial_accumulator_value, NUMBER, &positive_or_0),
    OPTION(rho, NUMBER, &up_to_1),
    OPTION(momentum_decay, NUMBER, &positive_or_0),
    OPTION(eta_minus, NUMBER, &between_0_and_1),
    OPTION(eta_plus, NUMBER, &above_1),
    OPTION(step_min, NUMBER, &any),
    OPTION(step_max, NUMBER, &any),
    OPTION(lambd, NUMBER, &any),
    OPTION(t0, NUMBER, &any),
    OPTION(max_iter, WHOLE, &counted),
    OPTION(max_eval, WHOLE, &counted),
    OPTION(tolerance_grad, NUMBER, &positive_or_0),
    OPTION(tolerance_change, NUMBER, &positive_or_0),
    OPTION(history_size, WHOLE, &counted_from_1),
    OPTION(line_search, WHOLE, &line_searches),
};

/* Returns the address of an option's number. */
static double *option_at(ek_optimizer_options *of, int option)
{
    return (double *)of + option;
}

static double option_get(const ek_optimizer_options *of, int option)
{
    return ((const double *)of)[option];
}

/* Returns a member of the algorithm's own struct as a number. */
static double option_read(const void *member, kind of)
{
    if (of == WHOLE)
        return *(const int *)member;
    return of == SWITCH ? *(const bool *)member : *(const double *)member;
}

static int option_check(const char *algorithm, int option, double value)
{
    const struct option *o = &options[option];
    if (o->kind == SWITCH)
        return value == 0 || value == 1
                   ? 0
                   : EK_FAIL(EK_E_INVALID, "%s: %s is a switch, 0 or 1, not %g", algorithm, o->name,
                             value);
    bool in_range = (o->range->low_is_open ? value > o->range->low : value >= o->range->low) &&
                    (o->range->high_is_open ? value < o->range->high : value <= o->range->high);
    in_range = in_range && (o->kind != WHOLE || value == floor(value));
    return in_range ? 0
                    : EK_FAIL(EK_E_INVALID, "%s: invalid %s %g, it has to be %s", algorithm,
                              o->what, value, o->range->text);
}

static int option_refuse(const ek_algorithm *algorithm, const char *name)
{
    char list[400] = "";
    size_t length = 0;
    for (int i = 0; i < EK_OPTIMIZER_OPTION_COUNT && length < sizeof list; i++)
        if (algorithm->options[i])
            length += (size_t)snprintf(list + length, sizeof list - length, "%s%s",
                                       length ? ", " : "", options[i].name);
    return EK_FAIL(EK_E_INVALID, "%s has no %.60s; its options are %s", algorithm->name, name,
                   list);
}

static int options_check(const ek_algorithm *algorithm, const ek_optimizer_options *of)
{
    for (int i = 0; i < EK_OPTIMIZER_OPTION_COUNT; i++)
        if (algorithm->options[i])
            EK_TRY(option_check(algorithm->name, i, option_get(of, i)));
    return algorithm->check ? algorithm->check(of) : 0;
}

int ek_options_read(const ek_algorithm *algorithm, const void *given, ek_optimizer_options *read)
{
    *read = (ek_optimizer_options){0};
    for (int i = 0; i < EK_OPTIMIZER_OPTION_COUNT; i++)
        if (algorithm->options[i])
            *option_at(read, i) =
                option_read((const char *)given + algorithm->options[i], options[i].kind);
    if (algorithm->complete)
        algorithm->complete(read);
    return options_check(algorithm, read);
}

/* Returns the index of the option of this name, or a negative status. */
static int option_find(const ek_algorithm *algorithm, const char *name)
{
    for (int i = 0; i < EK_OPTIMIZER_OPTION_COUNT; i++)
        if (name && strcmp(options[i].name, name) == 0 && algorithm->options[i])
            return i;
    return option_refuse(algorithm, name ? name : "option NULL");
}

int ek_optimizer_get(const ek_optimizer *optimizer, int group, const char *name, double *value)
{
    EK_TRY(ek_optimizer_check_group(optimizer, group));
    int option = option_find(optimizer->algorithm, name);
    if (option >= 0 && !value)
        return EK_FAIL(EK_E_INVALID, "%s: the result of %s is NULL", optimizer->algorithm->name,
                       name);
    if (option >= 0)
        *value = option_get(&optimizer->groups[group], option);
    return option < 0 ? option : 0;
}

/* Returns true if a parameter of the group has been updated. */
static bool group_has_state(const ek_optimizer *optimizer, int group)
{
    for (int i = 0; i < optimizer->slot_count; i++)
        if (optimizer->slots[i]->group == group && optimizer->slots[i]->step > 0)
            return true;
    return false;
}

/* Checks the value and, if `commit` is true, sets the option. */
static int option_set(ek_optimizer *optimizer, int group, const char *name, double value,
                      bool commit)
{
    EK_TRY(ek_optimizer_check_group(optimizer, group));
    const ek_algorithm *algorithm = optimizer->algorithm;
    ek_optimizer_options *options_now = &optimizer->groups[group], changed = *options_now;
    int option = option_find(algorithm, name);
    if (option < 0)
        return option;
    EK_TRY(option_check(algorithm->name, option, value));
    *option_at(&changed, option) = value;
    EK_TRY(options_check(algorithm, &changed));
    if (ek_states_of(algorithm, &changed) != ek_states_of(algorithm, options_now) &&
        group_has_state(optimizer, group))
        return EK_FAIL(EK_E_STATE,
                       "%s: %s %g needs other state than the parameters of group %d have since "
                       "their first update; set it before, or make a new optimizer",
                       algorithm->name, name, value, group);
    if (!commit)
        return 0;
    if (option != EK_OPTION(lr) && option_get(options_now, option) != value)
        optimizer->changed |= 1u << option;
    *options_now = changed;
    return 0;
}

int ek_optimizer_set(ek_optimizer *optimizer, int group, const char *name, double value)
{
    return option_set(optimizer, group, name, value, true);
}

int ek_optimizer_set_all(ek_optimizer *optimizer, const char *name, const double *values)
{
    for (int commit = 0; commit < 2; commit++)
        for (int i = 0; i < optimizer->group_count; i++)
            EK_TRY(option_set(optimizer, i, name, values[i], commit));
    return 0;
}

/* ---- for checkpoints ---- */

/* Checkpoints have a separate entry for the learning rate, because schedules change it, too. */
const char *ek_optimizer_changeable(const ek_optimizer *optimizer, int index, bool *changed)
{
    for (int i = 0; i < EK_OPTIMIZER_OPTION_COUNT; i++)
        if (i != EK_OPTION(lr) && optimizer->algorithm->options[i] && index-- == 0) {
            *changed = optimizer->changed >> i & 1;
            return options[i].name;
        }
    return NULL;
}
