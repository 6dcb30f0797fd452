/* pieces.c: the pieces of a parameter, and its state over them.
 *
 * A division may change between two steps: a wrapper divides parameters whose optimizer was made
 * before, or gives them back. The state then moves to the new pieces. Until all memory for that is
 * there, a slot has both divisions, so that an error takes nothing away. */
#include <stdlib.h>
#include <string.h>

#include "autograd/shards.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "optim/optimizer.h"

/* ---- divisions ---- */

static uint64_t serial_of(const ek_tensor *parameter)
{
    const ek_shards *shards = ek_leaf_shards(parameter);
    return shards ? shards->serial : 0;
}

bool ek_slot_is_current(const ek_slot *slot)
{
    return serial_of(slot->parameter) == slot->division.serial;
}

ek_tensor *ek_piece_tensor(const ek_slot_piece *piece)
{
    const ek_slot *slot = piece->slot;
    if (!ek_slot_is_current(slot))
        return NULL;
    const ek_shards *shards = ek_leaf_shards(slot->parameter);
    return shards ? shards->shards[piece - slot->division.pieces].piece : slot->parameter;
}

/* The division that the slot's parameter has now, without state. */
static int divide(ek_slot *slot, ek_slot_division *division)
{
    const ek_shards *shards = ek_leaf_shards(slot->parameter);
    int count = shards ? shards->count : 1;
    *division = (ek_slot_division){.serial = serial_of(slot->parameter),
                                   .count = count,
                                   .pieces = ek_calloc((size_t)count, sizeof(ek_slot_piece))};
    if (!division->pieces)
        return EK_E_NO_MEMORY;
    memcpy(division->stride, slot->parameter->stride, sizeof division->stride);
    for (int i = 0; i < count; i++)
        division->pieces[i] =
            (ek_slot_piece){.slot = slot,
                            .begin = shards ? shards->shards[i].begin : 0,
                            .end = shards ? shards->shards[i].end : ek_count(slot->parameter)};
    return 0;
}

static void clear(ek_slot_division *division)
{
    for (int i = 0; i < division->count; i++) {
        for (int s = 0; s < EK_STATES; s++) {
            ek_object_release(division->pieces[i].state[s]);
            ek_object_release(division->pieces[i].fresh[s]);
        }
    }
    free(division->pieces);
    *division = (ek_slot_division){0};
}

ek_slot *ek_slot_new(ek_tensor *parameter, int group)
{
    ek_slot *slot = ek_calloc(1, sizeof *slot);
    if (!slot)
        return NULL;
    slot->parameter = parameter;
    slot->group = group;
    if (divide(slot, &slot->division) < 0) {
        free(slot);
        return NULL;
    }
    ek_object_retain(parameter);
    return slot;
}

void ek_slot_free(ek_slot *slot)
{
    clear(&slot->division);
    clear(&slot->before);
    ek_object_release(slot->parameter);
    free(slot);
}

int ek_slot_divide(ek_optimizer *optimizer, ek_slot *slot)
{
    ek_slot_division division;
    EK_TRY(divide(slot, &division));
    if (slot->step > 0) {
        slot->before = slot->division;
        optimizer->changing = true;
    } else {
        clear(&slot->division);
    }
    slot->division = division;
    optimizer->table_is_current = false;
    return 0;
}

/* The handle of state stays that which was given out. */
static void end_piece(ek_slot_piece *piece, bool keep)
{
    for (int s = 0; s < EK_STATES; s++) {
        if (keep && piece->fresh[s] && !piece->state[s]) {
            piece->state[s] = piece->fresh[s];
            piece->fresh[s] = NULL;
            continue;
        }
        if (keep && piece->fresh[s])
            ek_tensor_rehome(piece->state[s], piece->fresh[s]);
        ek_object_release(piece->fresh[s]);
        piece->fresh[s] = NULL;
    }
}

void ek_optimizer_end_change(ek_optimizer *optimizer, bool keep)
{
    for (int i = 0; i < optimizer->slot_count && optimizer->changing; i++) {
        ek_slot *slot = optimizer->slots[i];
        for (int p = 0; p < slot->division.count; p++)
            end_piece(&slot->division.pieces[p], keep);
        if (!slot->before.pieces)
            continue;
        if (keep) {
            clear(&slot->before);
            continue;
        }
        clear(&slot->division);
        slot->division = slot->before;
        slot->before = (ek_slot_division){0};
        optimizer->table_is_current = false;
    }
    optimizer->changing = false;
}

/* ---- state ---- */

static ek_tensor *on_cpu(const ek_tensor *parameter, ek_dtype dtype, const int64_t *stride)
{
    ek_shape shape = ek_tensor_shape(parameter);
    ek_dev *cpu = ek_dev_get(ek_cpu());
    return cpu ? ek_tensor_new_strided(cpu, dtype, &shape, stride) : NULL;
}

/* Copies the elements of a piece between its state and a dense tensor on cpu. */
static int copy_piece(ek_tensor *state, ek_tensor *whole, const ek_slot_piece *piece, bool out)
{
    size_t size = ek_dtype_size(whole->dtype), nbytes = (size_t)(piece->end - piece->begin) * size;
    char *at = (char *)ek_tensor_address(whole) + (size_t)piece->begin * size;
    ek_dev *cpu = ek_tensor_dev(whole);
    if (nbytes == 0)
        return 0;
    if (!out)
        return ek_dev_copy(ek_tensor_dev(state), ek_tensor_address(state), cpu, at, nbytes);
    if (state)
        return ek_dev_copy(cpu, at, ek_tensor_dev(state), ek_tensor_address(state), nbytes);
    memset(at, 0, nbytes);
    return 0;
}

ek_tensor *ek_slot_gather_state(const ek_slot *slot, const ek_slot_division *division, int s)
{
    const ek_tensor *first = division->pieces[0].state[s];
    const ek_tensor *like = first ? first : slot->parameter;
    const int64_t *stride = division->serial || !first ? division->stride : first->stride;
    ek_tensor *whole = on_cpu(slot->parameter, like->dtype, stride);
    for (int i = 0; i < division->count && whole; i++)
        if (copy_piece(division->pieces[i].state[s], whole, &division->pieces[i], true) < 0)
            return NULL;
    return whole;
}

/* True if writing the slot's state may write `tensor`. */
static bool shares_memory(const ek_slot *slot, const ek_tensor *tensor)
{
    for (int i = 0; i < slot->division.count; i++)
        for (int s = 0; s < EK_STATES; s++) {
            const ek_tensor *state = ek_piece_state(&slot->division.pieces[i], s);
            if (state && state->storage == tensor->storage)
                return true;
        }
    return false;
}

ek_tensor *ek_slot_convert_state(const ek_slot *slot, ek_tensor *state)
{
    const ek_tensor *parameter = slot->parameter;
    if (ek_tensor_dev(state)->id.kind == EK_CPU && state->dtype == parameter->dtype &&
        ek_is_dense(state) && ek_same_layout(state, parameter) && !shares_memory(slot, state))
        return state;
    bool grad_enabled = ek_set_grad_enabled(false);
    ek_tensor *copy = on_cpu(parameter, parameter->dtype, parameter->stride);
    bool made = copy && ek_copy_(copy, state);
    ek_set_grad_enabled(grad_enabled);
    return made ? copy : NULL;
}

int ek_slot_put_state(const ek_slot *slot, int s, ek_tensor *whole)
{
    for (int i = 0; i < slot->division.count; i++) {
        const ek_slot_piece *piece = &slot->division.pieces[i];
        EK_TRY(copy_piece(ek_piece_state(piece, s), whole, piece, false));
    }
    return 0;
}

int ek_slot_carry_state(ek_slot *slot)
{
    int status = 0;
    for (int s = 0; s < EK_STATES && slot->before.pieces && status >= 0; s++) {
        if (!slot->before.pieces[0].state[s])
            continue;
        ek_scope scope = ek_scope_begin();
        ek_tensor *whole = ek_slot_gather_state(slot, &slot->before, s);
        if (whole)
            whole = ek_slot_convert_state(slot, whole);
        status = whole ? ek_slot_put_state(slot, s, whole) : ek_error_pending();
        ek_scope_end(&scope);
    }
    return status;
}
