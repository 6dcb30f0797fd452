/* state.c: reads and writes the state that an optimizer has of a parameter, for checkpoints. */
#include <string.h>

#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "kernels/kernels.h"
#include "optim/algorithm.h"

/* ---- names ---- */

/* Indices after those of states. The number that a parameter carries (slot->carried) counts as the
 * last state. */
enum { STATE_CARRIED = EK_STATES, STATE_NONE };

static const char *state_name(const ek_algorithm *algorithm, int s)
{
    return s == STATE_CARRIED ? algorithm->carried : algorithm->state_names[s];
}

/* Returns the index of the state of this name, or STATE_NONE. */
static int state_index(const ek_algorithm *algorithm, const char *name)
{
    for (int s = 0; s < STATE_NONE; s++)
        if (state_name(algorithm, s) && strcmp(state_name(algorithm, s), name) == 0)
            return s;
    return STATE_NONE;
}

/* Returns a bit per state that these options need, and a bit for the carried number if the
 * algorithm has one. */
static unsigned state_bits(const ek_algorithm *algorithm, const ek_optimizer_options *options)
{
    return ek_states_of(algorithm, options) | (algorithm->carried ? 1u << STATE_CARRIED : 0);
}

/* ---- reading state ---- */

/* Returns the parameter's slot; NULL, without an error, if the optimizer doesn't have the
 * parameter. */
static ek_slot *state_slot_of(const ek_optimizer *optimizer, const ek_tensor *parameter)
{
    return parameter ? ek_map_find(&optimizer->index, parameter) : NULL;
}

ek_tensor *ek_optimizer_state(ek_optimizer *optimizer, ek_tensor *parameter, const char *name)
{
    if (!optimizer || !name || ek_optimizer_check(optimizer) < 0 ||
        ek_check_alive("optimizer_state", "the parameter", parameter) < 0)
        return NULL;
    const ek_slot *slot = state_slot_of(optimizer, parameter);
    const ek_vector_algorithm *vector = optimizer->algorithm->vector;
    if (vector)
        return slot && slot == optimizer->slots[0] ? vector->state(optimizer, name) : NULL;
    int s = state_index(optimizer->algorithm, name);
    if (!slot || slot->step == 0 || s == STATE_NONE)
        return NULL;
    if (s == STATE_CARRIED)
        return ek_full(slot->carried, ek_scalar_shape(), .dtype = EK_F64);
    ek_tensor *state = slot->parts[0].state[s];
    return state && slot->shards ? ek_slot_gather_state(slot, s) : state;
}

ek_tensor *ek_optimizer_own_state(ek_optimizer *optimizer, ek_tensor *parameter, const char *name)
{
    const ek_slot *slot = state_slot_of(optimizer, parameter);
    int s = state_index(optimizer->algorithm, name);
    bool elsewhere = slot && slot->step > 0 && slot->ranks && s < EK_STATES;
    if (!elsewhere)
        return ek_optimizer_state(optimizer, parameter, name);
    return slot->parts[0].state[s] ? ek_slot_own_state(slot, s) : NULL;
}

int ek_optimizer_state_parts(const ek_optimizer *optimizer, const ek_tensor *parameter,
                             const char *name, ek_object **parts, ek_dtype *dtype)
{
    const ek_slot *slot = state_slot_of(optimizer, parameter);
    int s = state_index(optimizer->algorithm, name);
    *parts = NULL;
    if (!slot || slot->step == 0 || !slot->shards || s >= EK_STATES || !slot->parts[0].state[s])
        return 0;
    *dtype = slot->parts[0].state[s]->dtype;
    *parts = ek_slot_state_parts(slot, s);
    return *parts ? 0 : EK_E_NO_MEMORY;
}

static int state_slot_find(ek_optimizer *optimizer, const ek_tensor *parameter, ek_slot **slot)
{
    char text[200];
    EK_TRY(ek_optimizer_check(optimizer));
    *slot = state_slot_of(optimizer, parameter);
    if (*slot)
        return 0;
    return ek_error_status() < 0
               ? ek_error_pending()
               : EK_FAIL(EK_E_INVALID, "%s: %s is none of the optimizer's %d parameters",
                         optimizer->algorithm->name, ek_tensor_text(parameter, text),
                         optimizer->slot_count);
}

bool ek_optimizer_has(ek_optimizer *optimizer, const ek_tensor *parameter)
{
    return optimizer && ek_optimizer_check(optimizer) == 0 &&
           ek_check_alive("optimizer_has", "the parameter", parameter) == 0 &&
           state_slot_of(optimizer, parameter);
}

int ek_optimizer_parameter_count(const ek_optimizer *optimizer)
{
    return optimizer && ek_optimizer_check(optimizer) == 0 ? optimizer->slot_count : 0;
}

int64_t ek_optimizer_steps(ek_optimizer *optimizer, ek_tensor *parameter)
{
    ek_slot *slot;
    EK_TRY(state_slot_find(optimizer, parameter, &slot));
    return slot->step;
}

const char *ek_optimizer_state_name(const ek_optimizer *optimizer, int index)
{
    if (!optimizer || index < 0 || ek_optimizer_check(optimizer) < 0)
        return NULL;
    const ek_algorithm *algorithm = optimizer->algorithm;
    if (algorithm->vector)
        return algorithm->vector->state_name(index);
    unsigned states = state_bits(algorithm, &optimizer->defaults);
    for (int i = 0; i < optimizer->group_count; i++)
        states |= state_bits(algorithm, &optimizer->groups[i]);
    for (int s = 0; s < STATE_NONE; s++)
        if (states >> s & 1 && index-- == 0)
            return state_name(algorithm, s);
    return NULL;
}

/* ---- writing state: checks ---- */

int ek_state_take(const ek_algorithm *algorithm, const char *name, ek_tensor *state,
                  ek_tensor **place)
{
    if (!state)
        return ek_error_status() < 0
                   ? ek_error_pending()
                   : EK_FAIL(EK_E_INVALID, "%s: state \"%s\" is NULL", algorithm->name, name);
    if (*place)
        return EK_FAIL(EK_E_INVALID, "%s: state \"%s\" is given twice", algorithm->name, name);
    *place = state;
    return 0;
}

static int state_check(const char *algorithm, const char *name, int s, const ek_tensor *parameter,
                       const ek_tensor *state)
{
    char texts[2][200];
    const bool is_floating = ek_dtype_is_floating(state->dtype);
    ek_tensor_text(state, texts[0]);
    if (s == STATE_CARRIED)
        return ek_count(state) == 1 && is_floating
                   ? 0
                   : EK_FAIL(EK_E_SHAPE, "%s: state \"%s\" is %s; it has to be one floating number",
                             algorithm, name, texts[0]);
    if (!is_floating)
        return EK_FAIL(EK_E_DTYPE, "%s: state \"%s\" is %s; it has to be floating", algorithm, name,
                       texts[0]);
    if (!ek_same_shape(state, parameter))
        return EK_FAIL(EK_E_SHAPE, "%s: state \"%s\" is %s, its parameter %s", algorithm, name,
                       texts[0], ek_tensor_text(parameter, texts[1]));
    return 0;
}

/* Puts the given states at their indices in `sorted`. The states must be exactly those that a
 * parameter has after `steps` updates. All of `sorted` is NULL before the call, and elements of
 * states that a parameter does not have stay NULL. */
static int state_sort(const ek_optimizer *optimizer, const ek_slot *slot, int64_t steps,
                      const char *const *names, ek_tensor *const *states, int count,
                      ek_tensor *sorted[STATE_NONE])
{
    const ek_algorithm *algorithm = optimizer->algorithm;
    unsigned wanted = steps > 0 ? state_bits(algorithm, &optimizer->groups[slot->group]) : 0;
    for (int i = 0; i < count; i++) {
        if (!names[i])
            return EK_FAIL(EK_E_INVALID, "%s: state %d has no name", algorithm->name, i);
        int s = state_index(algorithm, names[i]);
        if (s == STATE_NONE || !(wanted >> s & 1))
            return EK_FAIL(EK_E_INVALID,
                           "%s: with these options and after %lld updates a parameter has no state "
                           "\"%.200s\"",
                           algorithm->name, (long long)steps, names[i]);
        EK_TRY(ek_state_take(algorithm, names[i], states[i], &sorted[s]));
        EK_TRY(state_check(algorithm->name, names[i], s, slot->parameter, states[i]));
    }
    for (int s = 0; s < STATE_NONE; s++)
        if (wanted >> s & 1 && !sorted[s])
            return EK_FAIL(EK_E_INVALID, "%s: state \"%s\" is missing", algorithm->name,
                           state_name(algorithm, s));
    return 0;
}

static int state_check_call(const ek_optimizer *optimizer, const ek_slot *slot, int64_t steps,
                            const char *const *names, ek_tensor *const *states, int count)
{
    const char *name = optimizer->algorithm->name;
    char text[200];
    if (steps < 0 || steps == INT64_MAX)
        return EK_FAIL(EK_E_INVALID, "%s: a parameter after %lld updates", name, (long long)steps);
    if (count < 0 || (count > 0 && (!names || !states)))
        return EK_FAIL(EK_E_INVALID, "%s: %d states, but a list is missing or the count negative",
                       name, count);
    if (slot->parameter->dtype != EK_F32 && slot->parameter->dtype != EK_F64)
        return EK_FAIL(EK_E_DTYPE, "%s: a parameter has become %s; it has to be f32 or f64", name,
                       ek_tensor_text(slot->parameter, text));
    return 0;
}

/* ---- writing state ---- */

/* Gives the slot memory for its states beside its neighbours' state, where the next step expects
 * them. Assumes that all parameters have gradients in their grad buffers. Slots without updates are
 * recut, too, so that a program that sets many parameters in turn lays out state once. */
static int state_reserve(ek_optimizer *optimizer, ek_slot *slot)
{
    for (int i = 0; i < optimizer->slot_count; i++)
        if (optimizer->slots[i] == slot || optimizer->slots[i]->step == 0)
            EK_TRY(ek_slot_recut(optimizer, optimizer->slots[i]));
    EK_TRY(ek_optimizer_sort(optimizer));
    for (int i = 0; i < optimizer->part_count; i++) {
        ek_part *part = optimizer->table[i];
        part->gradient = part->shard.tensor ? part->shard.tensor->grad_buffer : NULL;
    }
    return ek_optimizer_lay_out(optimizer, optimizer->table, optimizer->part_count, slot);
}

static int state_write(ek_slot *slot, int64_t steps, ek_tensor *const *states)
{
    double carried = 0;
    if (states[STATE_CARRIED])
        EK_TRY(ek_item(states[STATE_CARRIED], &carried));
    for (int s = 0; s < EK_STATES; s++)
        if (states[s])
            EK_TRY(ek_slot_put_state(slot, s, states[s]));
    for (int i = 0; i < slot->part_count; i++)
        for (int s = 0; s < EK_STATES; s++)
            if (states[s])
                ek_tensor_written(slot->parts[i].state[s], "ek_optimizer_set_state");
    slot->step = steps;
    slot->carried = carried;
    return 0;
}

/* Sets the slot's states. All memory is allocated before the first write. */
static int state_put(ek_optimizer *optimizer, ek_slot *slot, int64_t steps, ek_tensor **states)
{
    for (int s = 0; s < EK_STATES; s++) {
        if (!states[s])
            continue;
        states[s] = ek_slot_convert_state(slot, states[s]);
        if (!states[s])
            return ek_error_pending();
    }
    int status = state_reserve(optimizer, slot);
    if (status < 0)
        ek_optimizer_forget_unused_state(optimizer);
    return status < 0 ? status : state_write(slot, steps, states);
}

/* Sets the state of all parameters together, which callers give with the first parameter. */
static int state_put_vector(ek_optimizer *optimizer, ek_slot *slot, int64_t steps,
                            const char *const *names, ek_tensor *const *states, int count)
{
    const ek_algorithm *algorithm = optimizer->algorithm;
    const bool is_first = slot == optimizer->slots[0];
    if (!is_first && count > 0)
        return EK_FAIL(EK_E_INVALID,
                       "%s: after %lld updates this parameter has no state \"%.200s\"; that of all "
                       "parameters is the first one's",
                       algorithm->name, (long long)steps, names[0] ? names[0] : "NULL");
    ek_scope scope = ek_scope_begin();
    bool enabled = ek_set_grad_enabled(false);
    int status =
        is_first ? algorithm->vector->set_state(optimizer, steps, names, states, count) : 0;
    ek_set_grad_enabled(enabled);
    ek_scope_end(&scope);
    if (status >= 0)
        slot->step = steps;
    return status;
}

int ek_optimizer_set_state(ek_optimizer *optimizer, ek_tensor *parameter, int64_t steps,
                           const char *const *names, ek_tensor *const *states, int count)
{
    ek_tensor *sorted[STATE_NONE] = {NULL};
    ek_slot *slot;
    EK_TRY(state_slot_find(optimizer, parameter, &slot));
    EK_TRY(state_check_call(optimizer, slot, steps, names, states, count));
    if (optimizer->algorithm->vector)
        return state_put_vector(optimizer, slot, steps, names, states, count);
    EK_TRY(state_sort(optimizer, slot, steps, names, states, count, sorted));
    if (steps == 0) {
        ek_slot_forget_state(slot);
        return 0;
    }
    ek_scope scope = ek_scope_begin();
    int status = state_put(optimizer, slot, steps, sorted);
    ek_scope_end(&scope);
    return status;
}
