/* optimizer.c: makes optimizers, and adds groups of parameters. */
#include "optim/optimizer.h"

#include <math.h>
#include <stdlib.h>

#include "evenkeel/autograd.h"
#include "nn/module_table.h"
#include "optim/algorithm.h"

unsigned ek_states_of(const ek_algorithm *algorithm, const ek_optimizer_options *options)
{
    unsigned all = 0;
    for (int s = 0; s < EK_STATES && algorithm->state_names[s]; s++)
        all |= 1u << s;
    return algorithm->states ? algorithm->states(options) : all;
}

int ek_optimizer_check(const ek_optimizer *optimizer)
{
    if (optimizer)
        return ek_check_alive("optimizer", "the optimizer", optimizer);
    return ek_error_status() < 0 ? ek_error_pending()
                                 : EK_FAIL(EK_E_INVALID, "the optimizer is NULL");
}

/* ---- groups ---- */

static int optimizer_parameter_check(ek_optimizer *optimizer, ek_tensor *parameter, int position)
{
    const char *name = optimizer->algorithm->name;
    char text[200];
    if (!parameter)
        return ek_error_status() < 0
                   ? ek_error_pending()
                   : EK_FAIL(EK_E_INVALID, "%s: parameter %d of the group is NULL", name, position);
    EK_TRY(ek_check_alive(name, "a parameter of the group", parameter));
    if (parameter->history)
        return EK_FAIL(EK_E_INVALID,
                       "%s: parameter %d of the group, %s, is the result of an operation; only "
                       "leaves can be optimized",
                       name, position, ek_tensor_text(parameter, text));
    if (parameter->dtype != EK_F32 && parameter->dtype != EK_F64)
        return EK_FAIL(EK_E_DTYPE, "%s: parameter %d of the group is %s; it has to be f32 or f64",
                       name, position, ek_tensor_text(parameter, text));
    if (!ek_is_dense(parameter))
        return EK_FAIL(EK_E_INVALID,
                       "%s: parameter %d of the group, %s, is a view with gaps; optimize the "
                       "tensor that it looks at",
                       name, position, ek_tensor_text(parameter, text));
    return 0;
}

/* Appends a slot for a parameter that is in no group yet. */
static int optimizer_append(ek_optimizer *optimizer, ek_tensor *parameter, int position)
{
    void **entry = ek_map_at(&optimizer->index, parameter);
    if (!entry)
        return EK_E_NO_MEMORY;
    if (*entry) {
        char text[200];
        return EK_FAIL(EK_E_INVALID, "%s: parameter %d of the group, %s, is in a group already",
                       optimizer->algorithm->name, position, ek_tensor_text(parameter, text));
    }
    ek_slot *slot = ek_slot_new(parameter, optimizer->group_count);
    if (!slot)
        return EK_E_NO_MEMORY;
    *entry = slot;
    optimizer->slots[optimizer->slot_count++] = slot;
    return 0;
}

/* Appends `count` parameters to slots and index. On an error nothing has changed. */
static int optimizer_append_all(ek_optimizer *optimizer, ek_tensor *const *parameters, int count)
{
    int before = optimizer->slot_count, status = 0;
    size_t total = (size_t)before + (size_t)count;
    ek_slot **slots = ek_realloc(optimizer->slots, total * sizeof *slots);
    if (!slots)
        return EK_E_NO_MEMORY;
    optimizer->slots = slots;
    for (int i = 0; i < count && status == 0; i++)
        status = optimizer_append(optimizer, parameters[i], i);
    while (status < 0 && optimizer->slot_count > before) {
        ek_slot *slot = slots[--optimizer->slot_count];
        *ek_map_at(&optimizer->index, slot->parameter) = NULL;
        ek_slot_free(slot);
    }
    optimizer->table_is_current = false;
    return status;
}

int ek_optimizer_add_group(ek_optimizer *optimizer, ek_tensor *const *parameters, int count)
{
    EK_TRY(ek_optimizer_check(optimizer));
    const ek_algorithm *algorithm = optimizer->algorithm;
    if (count < 1 || !parameters)
        return EK_FAIL(EK_E_INVALID, "%s: a group needs at least one parameter", algorithm->name);
    if (algorithm->vector && optimizer->group_count > 0)
        return EK_FAIL(EK_E_INVALID, "%s steps all parameters as one group; there is one already",
                       algorithm->name);
    for (int i = 0; i < count; i++)
        EK_TRY(optimizer_parameter_check(optimizer, parameters[i], i));
    ek_optimizer_options *groups =
        ek_realloc(optimizer->groups, ((size_t)optimizer->group_count + 1) * sizeof *groups);
    if (!groups)
        return EK_E_NO_MEMORY;
    optimizer->groups = groups;
    double *initial_lr =
        ek_realloc(optimizer->initial_lr, ((size_t)optimizer->group_count + 1) * sizeof(double));
    if (!initial_lr)
        return EK_E_NO_MEMORY;
    optimizer->initial_lr = initial_lr;
    initial_lr[optimizer->group_count] = NAN;
    EK_TRY(optimizer_append_all(optimizer, parameters, count));
    groups[optimizer->group_count] = optimizer->defaults;
    return optimizer->group_count++;
}

int ek_optimizer_group_count(const ek_optimizer *optimizer)
{
    return optimizer && ek_optimizer_check(optimizer) == 0 ? optimizer->group_count : 0;
}

int ek_optimizer_check_group(const ek_optimizer *optimizer, int group)
{
    EK_TRY(ek_optimizer_check(optimizer));
    if (group < 0 || group >= optimizer->group_count)
        return EK_FAIL(EK_E_INVALID, "%s has %d group%s, there is none with index %d",
                       optimizer->algorithm->name, optimizer->group_count,
                       optimizer->group_count == 1 ? "" : "s", group);
    return 0;
}

double ek_optimizer_lr(const ek_optimizer *optimizer, int group)
{
    int status = ek_optimizer_check_group(optimizer, group);
    return status < 0 ? status : optimizer->groups[group].lr;
}

/* ---- making and freeing ---- */

ek_optimizer *ek_optimizer_new(const ek_algorithm *algorithm, const void *given, ek_module *module)
{
    if (ek_check_alive(algorithm->name, "the module", module) < 0)
        return NULL;
    if (!module && ek_error_status() < 0)
        return NULL; /* the module could not be made */
    ek_optimizer *optimizer = ek_calloc(1, sizeof *optimizer);
    if (!optimizer)
        return NULL;
    optimizer->algorithm = algorithm;
    int status = ek_options_read(algorithm, given, &optimizer->defaults);
    if (status == 0 && algorithm->vector) {
        optimizer->memory = ek_calloc(1, algorithm->vector->memory);
        status = optimizer->memory ? 0 : EK_E_NO_MEMORY;
    }
    if (status == 0 && module) {
        ek_tensor_list list = {0};
        status = ek_module_collect(module, true, false, &list);
        if (status == 0)
            status = ek_optimizer_add_group(optimizer, list.tensors, list.count);
        ek_tensor_list_clear(&list);
    }
    if (status < 0) {
        ek_optimizer_free(optimizer);
        return NULL;
    }
    return optimizer;
}

void ek_optimizer_free(ek_optimizer *optimizer)
{
    EK_RELEASES("ek_optimizer_free", optimizer);
    for (int i = 0; i < optimizer->slot_count; i++)
        ek_slot_free(optimizer->slots[i]);
    if (optimizer->memory)
        optimizer->algorithm->vector->clear(optimizer->memory);
    free(optimizer->memory);
    ek_map_clear(&optimizer->index);
    free(optimizer->slots);
    free(optimizer->groups);
    free(optimizer->initial_lr);
    free(optimizer->table);
    ek_retire(optimizer, sizeof *optimizer, "optimizer", optimizer);
}

/* ---- gradients ---- */

void ek_zero_grad(ek_optimizer *optimizer)
{
    if (ek_check_alive("zero_grad", "the optimizer", optimizer) < 0)
        return;
    for (int i = 0; optimizer && i < optimizer->slot_count; i++)
        ek_tensor_set_grad(optimizer->slots[i]->parameter, NULL);
}
