/* parts.c: the parts of parameters in memory, and their state, which is laid out like the parts.
 *
 * The table has all parts by group and place. Parts that follow each other within one slab form a
 * block. Each kind of state has a slab that is laid out like the block, so that a step of a block
 * updates one range of each slab.
 *
 * A parameter's shards may change between two steps: a wrapper shards the parameters of an
 * optimizer that was made before, or makes parameters whole again. Then the state moves to new
 * parts. The old state is freed last, so that an error loses nothing. */
#include <stdlib.h>
#include <string.h>

#include "core/slab.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "optim/algorithm.h"

/* ---- the parts of a parameter ---- */

ek_slot *ek_slot_new(ek_tensor *parameter, int group)
{
    int count = ek_leaf_shard_count(parameter);
    ek_slot *slot = ek_calloc(1, sizeof *slot);
    ek_part *parts = slot ? ek_calloc((size_t)count, sizeof *parts) : NULL;
    if (!parts) {
        free(slot);
        return NULL;
    }
    *slot = (ek_slot){.parameter = ek_object_retain(parameter),
                      .group = group,
                      .shards = ek_leaf_shards_id(parameter),
                      .ranks = ek_object_retain(ek_leaf_ranks(parameter)),
                      .part_count = count,
                      .parts = parts};
    memcpy(slot->stride, parameter->stride, sizeof slot->stride);
    for (int i = 0; i < count; i++)
        parts[i] = (ek_part){.slot = slot, .shard = ek_leaf_shard(parameter, i)};
    return slot;
}

void ek_slot_free(ek_slot *slot)
{
    ek_slot_forget_state(slot);
    free(slot->parts);
    ek_object_release(slot->ranks);
    ek_object_release(slot->parameter);
    free(slot);
}

static bool slot_is_current(const ek_slot *slot)
{
    return ek_leaf_shards_id(slot->parameter) == slot->shards;
}

void ek_slot_forget_state(ek_slot *slot)
{
    for (int i = 0; i < slot->part_count; i++) {
        for (int s = 0; s < EK_STATES; s++) {
            ek_object_release(slot->parts[i].state[s]);
            slot->parts[i].state[s] = NULL;
        }
    }
    slot->step = 0;
    slot->carried = 0;
}

void ek_optimizer_forget_unused_state(ek_optimizer *optimizer)
{
    for (int i = 0; i < optimizer->slot_count; i++)
        if (optimizer->slots[i]->step == 0)
            ek_slot_forget_state(optimizer->slots[i]);
}

/* ---- the table ---- */

static int part_compare(const void *x, const void *y)
{
    const ek_part *a = *(ek_part *const *)x, *b = *(ek_part *const *)y;
    if (a->slot->group != b->slot->group)
        return a->slot->group < b->slot->group ? -1 : 1;
    if (!a->shard.tensor || !b->shard.tensor)
        return (a->shard.tensor != NULL) - (b->shard.tensor != NULL);
    if (a->shard.tensor->storage != b->shard.tensor->storage)
        return (uintptr_t)a->shard.tensor->storage < (uintptr_t)b->shard.tensor->storage ? -1 : 1;
    if (a->shard.tensor->offset != b->shard.tensor->offset)
        return a->shard.tensor->offset < b->shard.tensor->offset ? -1 : 1;
    /* An empty part begins where its neighbour begins, and is sorted before its neighbour. */
    int64_t p = a->shard.end - a->shard.begin, q = b->shard.end - b->shard.begin;
    return (p > q) - (p < q);
}

static int table_fill(ek_optimizer *optimizer)
{
    size_t count = 0;
    for (int i = 0; i < optimizer->slot_count; i++)
        count += (size_t)optimizer->slots[i]->part_count;
    ek_part **table = ek_realloc(optimizer->table, (count + 1) * sizeof(ek_part *));
    if (!table)
        return EK_E_NO_MEMORY;
    optimizer->table = table;
    optimizer->part_count = 0;
    for (int i = 0; i < optimizer->slot_count; i++)
        for (int k = 0; k < optimizer->slots[i]->part_count; k++)
            table[optimizer->part_count++] = &optimizer->slots[i]->parts[k];
    optimizer->table_is_current = true;
    return 0;
}

int ek_optimizer_sort(ek_optimizer *optimizer)
{
    bool sorted = true;
    if (!optimizer->table_is_current)
        EK_TRY(table_fill(optimizer));
    ek_part **table = optimizer->table;
    for (int i = 0; i < optimizer->slot_count; i++) {
        const ek_slot *slot = optimizer->slots[i];
        bool is_current = slot_is_current(slot);
        for (int k = 0; k < slot->part_count; k++)
            slot->parts[k].shard.tensor =
                is_current ? ek_leaf_shard(slot->parameter, k).tensor : NULL;
    }
    for (int i = 1; i < optimizer->part_count; i++)
        sorted = sorted && part_compare(&table[i - 1], &table[i]) <= 0;
    /* The order hardly ever changes between steps. */
    if (!sorted)
        qsort(table, (size_t)optimizer->part_count, sizeof *table, part_compare);
    return 0;
}

/* ---- neighbours ---- */

static bool part_follows(const ek_tensor *a, const ek_tensor *b, int64_t pitch)
{
    return a && b && a->storage == b->storage && b->offset - a->offset == pitch;
}

/* Returns true if a step leaves elements at 0 whose value and gradient are 0. Then padding may be
 * updated together with its neighbours. With eps 0, padding would become NaN by 0 / 0. */
static bool optimizer_keeps_zeros(const ek_optimizer *optimizer, int group)
{
    return optimizer->algorithm->options[EK_OPTION(eps)] == 0 || optimizer->groups[group].eps > 0;
}

/* The gap between a and b is padding if both gradients lie in their grad buffers and a's shard ends
 * its parameter. */
bool ek_parts_join(const ek_optimizer *optimizer, const ek_part *a, const ek_part *b,
                   unsigned states)
{
    const ek_tensor *p = a->shard.tensor, *q = b->shard.tensor;
    const ek_slot *slot = a->slot;
    if (!p || !q || slot->group != b->slot->group || p->dtype != q->dtype)
        return false;
    int64_t pitch = ek_slab_pitch(p->dtype, ek_count(p));
    bool is_padded = pitch != ek_count(p);
    bool joined = part_follows(p, q, pitch) && a->gradient == p->grad_buffer &&
                  b->gradient == q->grad_buffer && part_follows(a->gradient, b->gradient, pitch) &&
                  (!is_padded || (a->shard.end == ek_count(slot->parameter) &&
                                  optimizer_keeps_zeros(optimizer, slot->group)));
    for (int s = 0; s < EK_STATES && joined; s++)
        joined = !(states >> s & 1) || part_follows(a->state[s], b->state[s], pitch);
    return joined;
}

/* ---- where state lies ---- */

/* Makes a slab of state s for neighbours. Existing state is copied to the slab and keeps its
 * handle, because callers may hold the handle. */
static int state_lay_out(ek_part *const *parts, int count, int s)
{
    ek_tensor **tensors = ek_calloc((size_t)count, sizeof *tensors);
    if (!tensors)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < count; i++)
        tensors[i] = parts[i]->shard.tensor;
    ek_thread_modes *modes = &ek_thread_self()->modes, before = *modes;
    modes->category = EK_MEMORY_OPTIMIZER;
    modes->path = tensors[0]->storage->path;
    ek_slab *slab = ek_slab_new(ek_tensor_dev(tensors[0]), tensors, count);
    *modes = before;
    free(tensors);
    if (!slab)
        return ek_error_pending();
    int status = 0;
    bool grad_enabled = ek_set_grad_enabled(false);
    for (int i = 0; i < count && status == 0; i++) {
        ek_tensor **state = &parts[i]->state[s], *member = slab->members[i];
        if (!*state)
            *state = ek_object_retain(member);
        else if (ek_copy_(member, *state))
            ek_tensor_rebind(*state, member);
        else
            status = ek_error_pending();
    }
    ek_set_grad_enabled(grad_enabled);
    ek_object_release(slab); /* members that became state retain the storage */
    return status;
}

/* Returns true if state s of these neighbours is laid out like their parameters. */
static bool state_is_laid_out(ek_part *const *parts, int count, int s)
{
    for (int i = 0; i < count; i++) {
        const ek_tensor *tensor = parts[i]->shard.tensor, *state = parts[i]->state[s];
        if (!state || state->dtype != tensor->dtype || !ek_same_layout(state, tensor) ||
            ek_tensor_dev(state) != ek_tensor_dev(tensor))
            return false;
        const ek_tensor *last = i > 0 ? parts[i - 1]->shard.tensor : NULL;
        if (last && !part_follows(parts[i - 1]->state[s], state,
                                  ek_slab_pitch(last->dtype, ek_count(last))))
            return false;
    }
    return true;
}

int ek_optimizer_lay_out(ek_optimizer *optimizer, ek_part *const *parts, int count,
                         const ek_slot *slot)
{
    for (int begin = 0, end; begin < count; begin = end) {
        const ek_optimizer_options *options = &optimizer->groups[parts[begin]->slot->group];
        unsigned states = ek_states_of(optimizer->algorithm, options);
        bool wanted = !slot || parts[begin]->slot == slot;
        for (end = begin + 1;
             end < count && ek_parts_join(optimizer, parts[end - 1], parts[end], 0); end++)
            wanted = wanted || parts[end]->slot == slot;
        for (int s = 0; s < EK_STATES && wanted; s++)
            if (states >> s & 1 && !state_is_laid_out(parts + begin, end - begin, s))
                EK_TRY(state_lay_out(parts + begin, end - begin, s));
    }
    return 0;
}

/* ---- state as a whole ---- */

static ek_tensor *state_on_cpu(const ek_tensor *parameter, ek_dtype dtype, const int64_t *stride)
{
    ek_shape shape = ek_tensor_shape(parameter);
    ek_dev *cpu = ek_dev_get(ek_cpu());
    return cpu ? ek_tensor_new_strided(cpu, dtype, &shape, stride) : NULL;
}

/* A state of one parameter, in parts. */
typedef struct state_parts {
    ek_object object;
    ek_tensor *parameter; /* one reference */
    ek_ranks *ranks;      /* one reference, or NULL */
    ek_dtype dtype;
    int64_t stride[EK_MAX_DIMS];
    int count;
    ek_shard shards[]; /* their tensors are the state's; one reference each */
} state_parts;

static void state_parts_destroy(ek_object *object)
{
    state_parts *parts = (state_parts *)object;
    for (int i = 0; i < parts->count; i++)
        ek_object_release(parts->shards[i].tensor);
    ek_object_release(parts->ranks);
    ek_object_release(parts->parameter);
    free(parts);
}

ek_object *ek_slot_state_parts(const ek_slot *slot, int s)
{
    const ek_tensor *first = slot->parts[0].state[s];
    state_parts *parts =
        ek_calloc(1, sizeof *parts + (size_t)slot->part_count * sizeof *parts->shards);
    if (!parts)
        return NULL;
    ek_object_init(&parts->object, state_parts_destroy);
    parts->parameter = ek_object_retain(slot->parameter);
    parts->ranks = ek_object_retain(slot->ranks);
    parts->dtype = first ? first->dtype : slot->parameter->dtype;
    memcpy(parts->stride, slot->shards || !first ? slot->stride : first->stride,
           sizeof parts->stride);
    for (int i = 0; i < slot->part_count; i++) {
        parts->shards[i] = slot->parts[i].shard;
        parts->shards[i].tensor = ek_object_retain(slot->parts[i].state[s]);
        parts->count++;
    }
    return &parts->object;
}

bool ek_state_parts_have_ranks(const ek_object *object)
{
    return ((const state_parts *)object)->ranks;
}

ek_tensor *ek_state_parts_gather(ek_object *object)
{
    const state_parts *parts = (state_parts *)object;
    ek_tensor *whole = state_on_cpu(parts->parameter, parts->dtype, parts->stride);
    int rc = whole ? 0 : ek_error_pending();
    rc = ek_shards_gather(parts->shards, parts->count, parts->ranks, rc, whole);
    return rc < 0 ? NULL : whole;
}

ek_tensor *ek_slot_gather_state(const ek_slot *slot, int s)
{
    ek_object *parts = ek_slot_state_parts(slot, s);
    ek_tensor *whole = parts ? ek_state_parts_gather(parts) : NULL;
    ek_object_release(parts);
    return whole;
}

ek_tensor *ek_slot_own_state(const ek_slot *slot, int s)
{
    const ek_tensor *first = slot->parts[0].state[s];
    ek_tensor *whole = state_on_cpu(slot->parameter, first->dtype, slot->stride);
    if (whole && ek_shard_read(&(ek_shard){0, ek_count(whole), NULL}, NULL, whole) < 0)
        return NULL;
    for (int i = 0; i < slot->part_count && whole; i++)
        if (ek_shard_read(&slot->parts[i].shard, slot->parts[i].state[s], whole) < 0)
            return NULL;
    return whole;
}

/* Returns true if `tensor` shares memory with the slot's state. */
static bool slot_shares_memory(const ek_slot *slot, const ek_tensor *tensor)
{
    for (int i = 0; i < slot->part_count; i++)
        for (int s = 0; s < EK_STATES; s++) {
            const ek_tensor *state = slot->parts[i].state[s];
            if (state && state->storage == tensor->storage)
                return true;
        }
    return false;
}

ek_tensor *ek_slot_convert_state(const ek_slot *slot, ek_tensor *state)
{
    const ek_tensor *parameter = slot->parameter;
    if (ek_tensor_dev(state)->id.kind == EK_CPU && state->dtype == parameter->dtype &&
        ek_is_dense(state) && ek_same_layout(state, parameter) && !slot_shares_memory(slot, state))
        return state;
    bool grad_enabled = ek_set_grad_enabled(false);
    ek_tensor *copy = state_on_cpu(parameter, parameter->dtype, parameter->stride);
    bool made = copy && ek_copy_(copy, state);
    ek_set_grad_enabled(grad_enabled);
    return made ? copy : NULL;
}

int ek_slot_put_state(const ek_slot *slot, int s, ek_tensor *whole)
{
    for (int i = 0; i < slot->part_count; i++)
        EK_TRY(ek_shard_write(&slot->parts[i].shard, slot->parts[i].state[s], whole));
    return 0;
}

/* ---- new parts ---- */

/* Copies state s of the slot to the parts of `fresh`, for which it allocates memory. */
static int slot_copy_state(const ek_slot *slot, const ek_slot *fresh, int s)
{
    ek_tensor *whole = ek_slot_gather_state(slot, s);
    if (whole)
        whole = ek_slot_convert_state(slot, whole);
    if (!whole)
        return ek_error_pending();
    for (int i = 0; i < fresh->part_count; i++) {
        ek_part *part = &fresh->parts[i];
        ek_memory_category before = ek_memory_set_category(EK_MEMORY_OPTIMIZER);
        part->state[s] = ek_keep(ek_tensor_like(part->shard.tensor));
        ek_memory_set_category(before);
        if (!part->state[s])
            return ek_error_pending();
    }
    return ek_slot_put_state(fresh, s, whole);
}

/* Exchanges the contents of two slots of one parameter, except the step, the carried number and
 * takes_part, which stay in `slot`. */
static void slot_swap_parts(ek_slot *slot, ek_slot *fresh)
{
    const ek_slot old = *slot;
    *slot = *fresh;
    *fresh = old;
    slot->step = old.step;
    slot->carried = old.carried;
    slot->takes_part = old.takes_part;
    for (int i = 0; i < slot->part_count; i++)
        slot->parts[i].slot = slot;
}

int ek_slot_recut(ek_optimizer *optimizer, ek_slot *slot)
{
    if (slot_is_current(slot))
        return 0;
    ek_slot *fresh = ek_slot_new(slot->parameter, slot->group);
    int status = fresh ? 0 : EK_E_NO_MEMORY;
    for (int s = 0; s < EK_STATES && slot->step > 0 && status >= 0; s++) {
        ek_scope scope = ek_scope_begin();
        if (slot->parts[0].state[s])
            status = slot_copy_state(slot, fresh, s);
        ek_scope_end(&scope);
    }
    if (status >= 0) {
        slot_swap_parts(slot, fresh);
        optimizer->table_is_current = false;
    }
    if (fresh)
        ek_slot_free(fresh);
    /* The other ranks wait for this process, and must learn of the error. */
    return status < 0 && slot->ranks && slot->step > 0 ? slot->ranks->agree(slot->ranks, status)
                                                       : status;
}
