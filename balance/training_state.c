/* training_state.c: copies, on cpu, of everything that training steps change. */
#include <stdlib.h>

#include "balance/balance.h"
#include "core/generator.h"
#include "core/object.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "nn/module_table.h"
#include "optim/optimizer.h"

/* The copy of a parameter, a buffer or a gradient. */
typedef struct saved_tensor {
    ek_tensor *tensor;           /* one reference; for a gradient, the tensor that holds it */
    ek_tensor *copy;             /* one reference, on cpu; NULL for an unset gradient */
    ek_memory_category category; /* the memory category of the gradient */
    uint64_t version;            /* the tensor's version when it last equalled the copy */
} saved_tensor;

typedef struct saved_slot {
    ek_tensor *parameter; /* one reference */
    int64_t steps;
    ek_tensor **states; /* in the order of the optimizer's names; references, on cpu */
} saved_slot;

struct ek_training_state {
    ek_optimizer *optimizer;
    saved_tensor *tensors, *gradients;
    int tensor_count, gradient_count;
    saved_slot *slots;
    int slot_count, state_names;
    double *rates; /* one learning rate per group */
    ek_generators *generators;
};

static uint64_t state_version_of(const ek_tensor *tensor)
{
    return atomic_load(&tensor->version->count);
}

/* Returns the first of two errors, or 0. Callers continue after an error to restore the rest. */
static int state_first_of(int status, int next)
{
    return status < 0 ? status : next;
}

/* Copies a tensor to cpu, even if it lies there already. Returns one reference. */
static ek_tensor *state_copy_of(ek_tensor *tensor)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *copy = ek_tensor_dev(tensor)->id.kind == EK_CPU ? ek_clone(tensor)
                                                               : ek_to_device(tensor, ek_cpu());
    ek_keep(copy);
    ek_scope_end(&scope);
    return copy;
}

/* ---- parameters and buffers ---- */

static int state_save_tensors(const ek_tensor_list *list, ek_training_state *state)
{
    state->tensors = ek_calloc((size_t)list->count + 1, sizeof *state->tensors);
    if (!state->tensors)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < list->count; i++) {
        saved_tensor *saved = &state->tensors[state->tensor_count++];
        *saved = (saved_tensor){.tensor = ek_object_retain(list->tensors[i]),
                                .version = state_version_of(list->tensors[i])};
        saved->copy = state_copy_of(list->tensors[i]);
        if (!saved->copy)
            return ek_error_pending();
    }
    return 0;
}

static int state_restore_tensor(saved_tensor *saved)
{
    if (state_version_of(saved->tensor) == saved->version)
        return 0;
    ek_scope scope = ek_scope_begin(); /* parameters that are gathered are held one by one */
    int rc = ek_copy_(saved->tensor, saved->copy) ? 0 : ek_error_pending();
    ek_scope_end(&scope);
    if (rc >= 0)
        saved->version = state_version_of(saved->tensor);
    return rc;
}

/* ---- gradients ---- */

static int state_save_gradient(ek_tensor *holder, ek_training_state *state)
{
    saved_tensor *saved = &state->gradients[state->gradient_count++];
    *saved = (saved_tensor){.tensor = ek_object_retain(holder)};
    ek_tensor *gradient = ek_tensor_grad(holder);
    if (!gradient)
        return 0;
    saved->category = gradient->storage->category;
    saved->copy = state_copy_of(gradient);
    return saved->copy ? 0 : ek_error_pending();
}

/* Saves the gradients of all parameters and of their shards. */
static int state_save_gradients(ek_tensor *const *parameters, int count, ek_training_state *state)
{
    ek_tensor **holders;
    int rc = 0, found = ek_gradient_holders(parameters, count, &holders);
    EK_TRY(found);
    state->gradients = ek_calloc((size_t)found + 1, sizeof *state->gradients);
    if (!state->gradients)
        rc = EK_E_NO_MEMORY;
    for (int i = 0; i < found && rc >= 0; i++)
        rc = state_save_gradient(holders[i], state);
    ek_tensors_release(holders, found);
    return rc;
}

/* Puts the gradient into the holder's grad buffer, or into new memory of the same category. */
static int state_restore_gradient(const saved_tensor *saved)
{
    ek_tensor *holder = saved->tensor;
    EK_TRY(ek_tensor_set_grad(holder, NULL));
    if (!saved->copy)
        return 0;
    if (holder->grad_buffer) {
        if (!ek_copy_(holder->grad_buffer, saved->copy))
            return ek_error_pending();
        return ek_tensor_set_grad(holder, holder->grad_buffer);
    }
    ek_memory_category before = ek_memory_set_category(saved->category);
    ek_tensor *gradient = ek_tensor_dev(holder)->id.kind == EK_CPU
                              ? ek_clone(saved->copy)
                              : ek_to_device(saved->copy, ek_tensor_device(holder));
    ek_memory_set_category(before);
    return gradient ? ek_tensor_set_grad(holder, gradient) : ek_error_pending();
}

/* Removes gradients that training steps have left, because restoring states needs their memory. */
static void state_drop_gradients(const ek_training_state *state)
{
    for (int i = 0; i < state->gradient_count; i++)
        ek_tensor_set_grad(state->gradients[i].tensor, NULL);
}

/* ---- the optimizer ---- */

static int state_save_slot(ek_training_state *state, ek_tensor *parameter, saved_slot *saved)
{
    ek_optimizer *optimizer = state->optimizer;
    *saved = (saved_slot){.parameter = ek_object_retain(parameter),
                          .steps = ek_optimizer_steps(optimizer, parameter)};
    if (saved->steps <= 0)
        return (int)saved->steps;
    saved->states = ek_calloc((size_t)state->state_names + 1, sizeof *saved->states);
    if (!saved->states)
        return EK_E_NO_MEMORY;
    for (int s = 0; s < state->state_names; s++) {
        const char *name = ek_optimizer_state_name(optimizer, s);
        ek_tensor *of_slot = ek_optimizer_own_state(optimizer, parameter, name);
        if (of_slot)
            saved->states[s] = state_copy_of(of_slot);
        if (!saved->states[s] && (of_slot || ek_error_status() < 0))
            return ek_error_pending();
    }
    return 0;
}

static int state_save_optimizer(ek_training_state *state)
{
    const ek_optimizer *optimizer = state->optimizer;
    state->slots = ek_calloc((size_t)optimizer->slot_count + 1, sizeof *state->slots);
    state->rates = ek_calloc((size_t)optimizer->group_count + 1, sizeof *state->rates);
    if (!state->slots || !state->rates)
        return EK_E_NO_MEMORY;
    for (int g = 0; g < optimizer->group_count; g++)
        state->rates[g] = optimizer->groups[g].lr;
    while (ek_optimizer_state_name(optimizer, state->state_names))
        state->state_names++;
    int rc = 0;
    for (int i = 0; i < optimizer->slot_count && rc >= 0; i++) {
        ek_scope scope = ek_scope_begin();
        rc = state_save_slot(state, optimizer->slots[i]->parameter,
                             &state->slots[state->slot_count++]);
        ek_scope_end(&scope);
    }
    return rc;
}

static int state_restore_slot(const ek_training_state *state, const saved_slot *saved)
{
    const char *names[EK_STATES];
    ek_tensor *states[EK_STATES];
    int count = 0;
    if (ek_optimizer_steps(state->optimizer, saved->parameter) == saved->steps)
        return 0; /* no step was taken since saving */
    for (int s = 0; saved->states && s < state->state_names; s++) {
        if (!saved->states[s])
            continue;
        names[count] = ek_optimizer_state_name(state->optimizer, s);
        states[count++] = saved->states[s];
    }
    return ek_optimizer_set_state(state->optimizer, saved->parameter, saved->steps, names, states,
                                  count);
}

static int state_restore_optimizer(const ek_training_state *state)
{
    int rc = 0;
    for (int g = 0; g < state->optimizer->group_count; g++)
        state->optimizer->groups[g].lr = state->rates[g];
    for (int i = 0; i < state->slot_count; i++) {
        ek_scope scope = ek_scope_begin();
        rc = state_first_of(rc, state_restore_slot(state, &state->slots[i]));
        ek_scope_end(&scope);
    }
    return rc;
}

/* ---- the whole state ---- */

static int state_save(ek_module *model, ek_training_state *state)
{
    ek_tensor_list list = {0};
    int rc = ek_collect_trained(model, state->optimizer, &list);
    int parameters = list.count;
    if (rc >= 0 && model)
        rc = ek_module_collect(model, false, true, &list);
    if (rc >= 0)
        rc = state_save_tensors(&list, state);
    if (rc >= 0)
        rc = state_save_gradients(list.tensors, parameters, state);
    ek_tensor_list_clear(&list);
    if (rc >= 0 && state->optimizer)
        rc = state_save_optimizer(state);
    EK_TRY(rc);
    state->generators = ek_generators_save();
    return state->generators ? 0 : ek_error_pending();
}

ek_training_state *ek_training_state_save(ek_module *model, ek_optimizer *optimizer)
{
    ek_training_state *state = ek_calloc(1, sizeof *state);
    if (!state)
        return NULL;
    state->optimizer = optimizer;
    ek_scope scope = ek_scope_begin();
    bool enabled = ek_set_grad_enabled(false);
    int rc = state_save(model, state);
    ek_set_grad_enabled(enabled);
    ek_scope_end(&scope);
    if (rc >= 0)
        return state;
    ek_training_state_free(state);
    return NULL;
}

static int state_restore(ek_training_state *state)
{
    int rc = 0;
    state_drop_gradients(state);
    for (int i = 0; i < state->tensor_count; i++)
        rc = state_first_of(rc, state_restore_tensor(&state->tensors[i]));
    if (state->optimizer)
        rc = state_first_of(rc, state_restore_optimizer(state));
    for (int i = 0; i < state->gradient_count; i++)
        rc = state_first_of(rc, state_restore_gradient(&state->gradients[i]));
    return rc;
}

int ek_training_state_restore(ek_training_state *state)
{
    ek_scope scope = ek_scope_begin();
    bool enabled = ek_set_grad_enabled(false);
    int rc = state_restore(state);
    ek_set_grad_enabled(enabled);
    ek_scope_end(&scope);
    ek_generators_restore(state->generators);
    return rc < 0 ? rc : 0;
}

static void state_release_saved(saved_tensor *saved, int count)
{
    for (int i = 0; i < count; i++) {
        ek_object_release(saved[i].tensor);
        ek_object_release(saved[i].copy);
    }
    free(saved);
}

void ek_training_state_free(ek_training_state *state)
{
    state_release_saved(state->tensors, state->tensor_count);
    state_release_saved(state->gradients, state->gradient_count);
    for (int i = 0; i < state->slot_count; i++) {
        ek_object_release(state->slots[i].parameter);
        ek_tensors_release(state->slots[i].states, state->state_names);
    }
    free(state->slots);
    free(state->rates);
    free(state->generators);
    free(state);
}
