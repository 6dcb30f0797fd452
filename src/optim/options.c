/* options.c: the options of optimizers by their names: which there are, what they may be, and what
 * a group uses. */
#include "optim/algorithm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/keywords.h"

/* Numbers between low and high; `open` ends are not allowed themselves. */
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

/* What the member is: a double, a bool, or an int or enum. */
typedef enum kind { NUMBER, SWITCH, WHOLE } kind;

/* `position` is that of the member, counted from 0 after `keywords`. */
static const struct option {
    const char *name, *what; /* `what` stands in sentences */
    size_t offset;
    int position;
    kind kind;
    const range *range;
} options[EK_OPTIMIZER_OPTION_COUNT] = {
#define OPTION(member, position, range)                                                   \
    {                                                                                     \
#member, #member, offsetof(ek_optimizer_options, member), position, NUMBER, range \
    }
#define OF_SWITCH(member, position)                                                      \
    {                                                                                    \
#member, #member, offsetof(ek_optimizer_options, member), position, SWITCH, NULL \
    }
#define OF_WHOLE(member, position, range)                                                \
    {                                                                                    \
#member, #member, offsetof(ek_optimizer_options, member), position, WHOLE, range \
    }
    {"lr", "learning rate", offsetof(ek_optimizer_options, lr), 1, NUMBER, &positive_or_0},
    OPTION(momentum, 2, &positive_or_0),
    OPTION(dampening, 3, &any),
    OPTION(weight_decay, 4, &positive_or_0),
    OF_SWITCH(nesterov, 5),
    OPTION(beta1, 6, &below_1),
    OPTION(beta2, 7, &below_1),
    OPTION(eps, 8, &positive_or_0),
    OF_SWITCH(amsgrad, 9),
    OF_SWITCH(maximize, 10),
    OPTION(alpha, 11, &positive_or_0),
    OF_SWITCH(centered, 12),
    OPTION(lr_decay, 13, &positive_or_0),
    OPTION(initial_accumulator_value, 14, &positive_or_0),
    OPTION(rho, 15, &up_to_1),
    OPTION(momentum_decay, 16, &positive_or_0),
    OPTION(eta_minus, 17, &between_0_and_1),
    OPTION(eta_plus, 18, &above_1),
    OPTION(step_min, 19, &any),
    OPTION(step_max, 20, &any),
    OPTION(lambd, 21, &any),
    OPTION(t0, 22, &any),
    OF_WHOLE(max_iter, 23, &counted),
    OF_WHOLE(max_eval, 24, &counted),
    OPTION(tolerance_grad, 25, &positive_or_0),
    OPTION(tolerance_change, 26, &positive_or_0),
    OF_WHOLE(history_size, 27, &counted_from_1),
    OF_WHOLE(line_search, 28, &line_searches),
#undef OPTION
#undef OF_SWITCH
#undef OF_WHOLE
};

double ek_option_get(const ek_optimizer_options *of, int option)
{
    const char *at = (const char *)of + options[option].offset;
    if (options[option].kind == WHOLE)
        return *(const int *)at;
    return options[option].kind == SWITCH ? *(const bool *)at : *(const double *)at;
}

static void option_put(ek_optimizer_options *of, int option, double value)
{
    char *at = (char *)of + options[option].offset;
    if (options[option].kind == SWITCH)
        *(bool *)at = value != 0;
    else if (options[option].kind == WHOLE)
        *(int *)at = (int)value;
    else
        *(double *)at = value;
}

/* As EK_GIVEN. */
static double option_given(const ek_optimizer_options *given, int option)
{
    double value = ek_option_get(given, option);
    return value == 0 && options[option].kind != SWITCH &&
                   ek_keyword_is_written(given->keywords, options[option].name,
                                         options[option].position)
               ? EK_ZERO
               : value;
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
        if (algorithm->options >> i & 1)
            length += (size_t)snprintf(list + length, sizeof list - length, "%s%s",
                                       length ? ", " : "", options[i].name);
    return EK_FAIL(EK_E_INVALID, "%s has no %.60s; its options are %s", algorithm->name, name,
                   list);
}

int ek_options_check(const ek_algorithm *algorithm, const ek_optimizer_options *of)
{
    for (int i = 0; i < EK_OPTIMIZER_OPTION_COUNT; i++)
        if (algorithm->options >> i & 1)
            EK_TRY(option_check(algorithm->name, i, ek_option_get(of, i)));
    return algorithm->check ? algorithm->check(of) : 0;
}

int ek_options_resolve(const ek_algorithm *algorithm, const ek_optimizer_options *given,
                       const ek_optimizer_options *defaults, ek_optimizer_options *resolved)
{
    ek_optimizer_options o = {0};
    for (int i = 0; i < EK_OPTIMIZER_OPTION_COUNT; i++) {
        double value = option_given(given, i),
               used = ek_number_or(value, ek_option_get(defaults, i));
        const bool exists = algorithm->options >> i & 1;
        if (value != 0 && !exists)
            return option_refuse(algorithm, options[i].name);
        if (value != 0) /* here, because `complete` takes what is out of range for left out */
            EK_TRY(option_check(algorithm->name, i, used));
        if (exists)
            option_put(&o, i, used);
    }
    if (algorithm->complete)
        algorithm->complete(&o);
    EK_TRY(ek_options_check(algorithm, &o));
    *resolved = o;
    return 0;
}

/* The option of this name, or an error. */
static int option_find(const ek_algorithm *algorithm, const char *name)
{
    for (int i = 0; i < EK_OPTIMIZER_OPTION_COUNT; i++)
        if (name && strcmp(options[i].name, name) == 0 && algorithm->options >> i & 1)
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
        *value = ek_option_get(&optimizer->groups[group], option);
    return option < 0 ? option : 0;
}

/* True if a parameter of the group has state. */
static bool group_has_state(const ek_optimizer *optimizer, int group)
{
    for (int i = 0; i < optimizer->slot_count; i++)
        if (optimizer->slots[i]->group == group && optimizer->slots[i]->step > 0)
            return true;
    return false;
}

/* With `commit` false only checks. */
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
    option_put(&changed, option, value);
    EK_TRY(ek_options_check(algorithm, &changed));
    if (ek_states_of(algorithm, &changed) != ek_states_of(algorithm, options_now) &&
        group_has_state(optimizer, group))
        return EK_FAIL(EK_E_STATE,
                       "%s: %s %g needs other state than the parameters of group %d have since "
                       "their first update; set it before, or make a new optimizer",
                       algorithm->name, name, value, group);
    if (!commit)
        return 0;
    if (option != EK_OPTION_LR && ek_option_get(options_now, option) != value)
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

/* The learning rate, which schedules change too, has an entry of its own. */
const char *ek_optimizer_changeable(const ek_optimizer *optimizer, int index, bool *changed)
{
    for (int i = 0; i < EK_OPTIMIZER_OPTION_COUNT; i++)
        if (i != EK_OPTION_LR && optimizer->algorithm->options >> i & 1 && index-- == 0) {
            *changed = optimizer->changed >> i & 1;
            return options[i].name;
        }
    return NULL;
}
