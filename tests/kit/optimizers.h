/* optimizers.h: tables of optimizers with their options. A table is a macro that lists its rows.
 * With OPTIMIZER_MAKER it defines a function per row, with OPTIMIZER_ROW the rows:
 *
 *     #define CASES(X) X(plain, "plain", 0, ek_sgd(module, .lr = 0.1))
 *     CASES(OPTIMIZER_MAKER)
 *     static const optimizer_row cases[] = {CASES(OPTIMIZER_ROW)};
 */
#ifndef EK_KIT_OPTIMIZERS_H
#define EK_KIT_OPTIMIZERS_H

#include "evenkeel/optim.h"

typedef struct optimizer_row {
    const char *name;
    ek_optimizer *(*make)(ek_module *module); /* NULL: without a group */
    int states;                               /* states of a parameter */
} optimizer_row;

#define OPTIMIZER_MAKER(id, name, states, ...)        \
    static ek_optimizer *make_##id(ek_module *module) \
    {                                                 \
        return __VA_ARGS__;                           \
    }
#define OPTIMIZER_ROW(id, name, states, ...) {name, make_##id, states},

/* Adds a group for which one option has a separate value. Returns its index, or a negative status.
 */
static inline int add_group_with(ek_optimizer *optimizer, ek_tensor *const *parameters, int count,
                                 const char *option, double value)
{
    const int group = ek_optimizer_add_group(optimizer, parameters, count);
    if (group < 0)
        return group;
    const int rc = ek_optimizer_set(optimizer, group, option, value);
    return rc < 0 ? rc : group;
}

#endif
