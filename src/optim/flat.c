/* flat.c: parameters as segments of memory, and state that is laid out like them.
 *
 * The table has all segments by group and place. Segments that follow each other within one slab
 * form a block. Each kind of state has a slab that is laid out like the block, so that a step of a
 * block updates one range of each slab.
 *
 * A parameter may be cut otherwise between two steps, because a wrapper shards parameters whose
 * optimizer was made before, or makes them whole again. The state then moves to the new segments.
 * The old state is freed last, so that an error loses nothing. */
#include <stdlib.h>
#include <string.h>

#include "core/slab.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "optim/algorithm.h"

/* ---- the segments of a parameter ---- */

/* Makes the cut that the slot's parameter has now, without state. */
static int cut_make(ek_slot *slot, ek_cut *cut)
{
    int count = ek_leaf_shard_count(slot->parameter);
    *cut = (ek_cut){.id = ek_leaf_flat_id(slot->parameter),
                    .owners = ek_object_retain(ek_leaf_owners(slot->parameter)),
                    .count = count,
                    .segments = ek_calloc((size_t)count, sizeof(ek_segment))};
    if (!cut->segments) {
        cut->count = 0; /* for cut_clear */
        return EK_E_NO_MEMORY;
    }
    memcpy(cut->stride, slot->parameter->stride, sizeof cut->stride);
    for (int i = 0; i < count; i++)
        cut->segments[i] = (ek_segment){.slot = slot, .shard = ek_leaf_shard(slot->parameter, i)};
    return 0;
}

static void cut_clear(ek_cut *cut)
{
    for (int i = 0; i < cut->count; i++)
        for (int s = 0; s < EK_STATES; s++)
            ek_object_release(cut->segments[i].state[s]);
    free(cut->segments);
    ek_object_release(cut->owners);
    *cut = (ek_cut){0};
}

ek_slot *ek_slot_new(ek_tensor *parameter, int group)
{
    ek_slot *slot = ek_calloc(1, sizeof *slot);
    if (!slot)
        return NULL;
    slot->parameter = ek_object_retain(parameter);
    slot->group = group;
    if (cut_make(slot, &slot->cut) >= 0)
        return slot;
    ek_slot_free(slot);
    return NULL;
}

void ek_slot_free(ek_slot *slot)
{
    cut_clear(&slot->cut);
    ek_object_release(slot->parameter);
    free(slot);
}

static bool slot_is_current(const ek_slot *slot)
{
    return ek_leaf_flat_id(slot->parameter) == slot->cut.id;
}

void ek_slot_forget_state(ek_slot *slot)
{
    for (int i = 0; i < slot->cut.count; i++) {
        for (int s = 0; s < EK_STATES; s++) {
            ek_object_release(slot->cut.segments[i].state[s]);
            slot->cut.segments[i].state[s] = NULL;
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

static int segment_compare(const void *x, const void *y)
{
    const ek_segment *a = *(ek_segment *const *)x, *b = *(ek_segment *const *)y;
    if (a->slot->group != b->slot->group)
        return a->slot->group < b->slot->group ? -1 : 1;
    if (!a->shard.tensor || !b->shard.tensor)
        return (a->shard.tensor != NULL) - (b->shard.tensor != NULL);
    if (a->shard.tensor->storage != b->shard.tensor->storage)
        return (uintptr_t)a->shard.tensor->storage < (uintptr_t)b->shard.tensor->storage ? -1 : 1;
    if (a->shard.tensor->offset != b->shard.tensor->offset)
        return a->shard.tensor->offset < b->shard.tensor->offset ? -1 : 1;
    /* An empty segment begins where its neighbour does, and comes first. */
    int64_t p = a->shard.end - a->shard.begin, q = b->shard.end - b->shard.begin;
    return (p > q) - (p < q);
}

static int table_fill(ek_optimizer *optimizer)
{
    size_t count = 0;
    for (int i = 0; i < optimizer->slot_count; i++)
        count += (size_t)optimizer->slots[i]->cut.count;
    ek_segment **table = ek_realloc(optimizer->table, (count + 1) * sizeof(ek_segment *));
    if (!table)
        return EK_E_NO_MEMORY;
    optimizer->table = table;
    optimizer->segment_count = 0;
    for (int i = 0; i < optimizer->slot_count; i++)
        for (int k = 0; k < optimizer->slots[i]->cut.count; k++)
            table[optimizer->segment_count++] = &optimizer->slots[i]->cut.segments[k];
    optimizer->table_is_current = true;
    return 0;
}

int ek_optimizer_sort(ek_optimizer *optimizer)
{
    bool sorted = true;
    if (!optimizer->table_is_current)
        EK_TRY(table_fill(optimizer));
    ek_segment **table = optimizer->table;
    for (int i = 0; i < optimizer->slot_count; i++) {
        const ek_slot *slot = optimizer->slots[i];
        bool is_current = slot_is_current(slot);
        for (int k = 0; k < slot->cut.count; k++)
            slot->cut.segments[k].shard.tensor =
                is_current ? ek_leaf_shard(slot->parameter, k).tensor : NULL;
    }
    for (int i = 1; i < optimizer->segment_count; i++)
        sorted = sorted && segment_compare(&table[i - 1], &table[i]) <= 0;
    /* Sorting is rare, because the order hardly ever changes between steps. */
    if (!sorted)
        qsort(table, (size_t)optimizer->segment_count, sizeof *table, segment_compare);
    return 0;
}

/* ---- neighbours ---- */

static bool segment_follows(const ek_tensor *a, const ek_tensor *b, int64_t pitch)
{
    return a && b && a->storage == b->storage && b->offset - a->offset == pitch;
}

/* True if parameters of value and gradient 0 stay 0, as padding is, which is then updated together
 * with its neighbours. With eps 0 it would become NaN: 0 / 0. */
static bool optimizer_keeps_zeros(const ek_optimizer *optimizer, int group)
{
    return !(optimizer->algorithm->options >> EK_OPTION_EPS & 1) ||
           optimizer->groups[group].eps > 0;
}

/* What lies between a and b is padding if both gradients lie in their grad buffers and a's shard
 * ends its parameter. */
bool ek_segments_join(const ek_optimizer *optimizer, const ek_segment *a, const ek_segment *b,
                      unsigned states)
{
    const ek_tensor *p = a->shard.tensor, *q = b->shard.tensor;
    const ek_slot *slot = a->slot;
    if (!p || !q || slot->group != b->slot->group || p->dtype != q->dtype)
        return false;
    int64_t pitch = ek_slab_pitch(p->dtype, ek_count(p));
    bool is_padded = pitch != ek_count(p);
    bool joined = segment_follows(p, q, pitch) && a->gradient == p->grad_buffer &&
                  b->gradient == q->grad_buffer &&
                  segment_follows(a->gradient, b->gradient, pitch) &&
                  (!is_padded || (a->shard.end == ek_count(slot->parameter) &&
                                  optimizer_keeps_zeros(optimizer, slot->group)));
    for (int s = 0; s < EK_STATES && joined; s++)
        joined = !(states >> s & 1) || segment_follows(a->state[s], b->state[s], pitch);
    return joined;
}

/* ---- where state lies ---- */

/* Makes a slab of state s for neighbours. State that they have is copied there and keeps its
 * handle, which callers may hold. */
static int state_lay_out(ek_segment *const *segments, int count, int s)
{
    ek_tensor **tensors = ek_calloc((size_t)count, sizeof *tensors);
    if (!tensors)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < count; i++)
        tensors[i] = segments[i]->shard.tensor;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_OPTIMIZER);
    ek_slab *slab = ek_slab_new(ek_tensor_dev(tensors[0]), tensors, count);
    ek_memory_set_category(before);
    free(tensors);
    if (!slab)
        return ek_error_pending();
    int status = 0;
    bool grad_enabled = ek_set_grad_enabled(false);
    for (int i = 0; i < count && status == 0; i++) {
        ek_tensor **state = &segments[i]->state[s], *member = slab->members[i];
        if (!*state)
            *state = ek_object_retain(member);
        else if (ek_copy_(member, *state))
            ek_tensor_rebind(*state, member);
        else
            status = ek_error_pending();
    }
    ek_set_grad_enabled(grad_enabled);
    ek_object_release(slab); /* members that became state keep the storage */
    return status;
}

/* True if state s of these neighbours is laid out as they are. */
static bool state_is_laid_out(ek_segment *const *segments, int count, int s)
{
    for (int i = 0; i < count; i++) {
        const ek_tensor *tensor = segments[i]->shard.tensor, *state = segments[i]->state[s];
        if (!state || state->dtype != tensor->dtype || !ek_same_layout(state, tensor) ||
            ek_tensor_dev(state) != ek_tensor_dev(tensor))
            return false;
        const ek_tensor *last = i > 0 ? segments[i - 1]->shard.tensor : NULL;
        if (last && !segment_follows(segments[i - 1]->state[s], state,
                                     ek_slab_pitch(last->dtype, ek_count(last))))
            return false;
    }
    return true;
}

int ek_optimizer_lay_out(ek_optimizer *optimizer, ek_segment *const *segments, int count,
                         const ek_slot *slot)
{
    for (int begin = 0, end; begin < count; begin = end) {
        const ek_optimizer_options *options = &optimizer->groups[segments[begin]->slot->group];
        unsigned states = ek_states_of(optimizer->algorithm, options);
        bool wanted = !slot || segments[begin]->slot == slot;
        for (end = begin + 1;
             end < count && ek_segments_join(optimizer, segments[end - 1], segments[end], 0); end++)
            wanted = wanted || segments[end]->slot == slot;
        for (int s = 0; s < EK_STATES && wanted; s++)
            if (states >> s & 1 && !state_is_laid_out(segments + begin, end - begin, s))
                EK_TRY(state_lay_out(segments + begin, end - begin, s));
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

/* A state of one parameter, as a flat of one segment whose shards are the state's tensors. */
typedef struct state_parts {
    ek_flat flat;
    ek_tensor *parameter; /* one reference */
    ek_dtype dtype;
    int64_t stride[EK_MAX_DIMS];
} state_parts; /* flat.owners: those of the cut */

static void state_parts_destroy(ek_object *object)
{
    state_parts *parts = (state_parts *)object;
    ek_flat_clear(&parts->flat);
    ek_object_release(parts->parameter);
    free(parts);
}

ek_object *ek_slot_state_parts(const ek_slot *slot, int s)
{
    const ek_cut *cut = &slot->cut;
    const ek_tensor *first = cut->segments[0].state[s];
    state_parts *parts = ek_calloc(1, sizeof *parts);
    if (!parts)
        return NULL;
    ek_object_init(&parts->flat.object, state_parts_destroy);
    parts->parameter = ek_object_retain(slot->parameter);
    parts->dtype = first ? first->dtype : slot->parameter->dtype;
    memcpy(parts->stride, cut->id || !first ? cut->stride : first->stride, sizeof parts->stride);
    if (ek_flat_init(&parts->flat, 1, cut->count) < 0) {
        ek_object_release(parts);
        return NULL;
    }
    parts->flat.owners = ek_object_retain(cut->owners);
    for (int i = 0; i < cut->count; i++)
        ek_flat_add_range(&parts->flat, 0, cut->segments[i].shard.begin, cut->segments[i].shard.end,
                          cut->segments[i].state[s]);
    return &parts->flat.object;
}

bool ek_state_parts_are_divided(const ek_object *object)
{
    return ((const state_parts *)object)->flat.owners;
}

ek_tensor *ek_state_parts_gather(ek_object *object)
{
    const state_parts *parts = (state_parts *)object;
    ek_owners *owners = parts->flat.owners;
    ek_tensor *whole = state_on_cpu(parts->parameter, parts->dtype, parts->stride);
    if (!whole && owners) /* they wait for this process */
        owners->join(owners, NULL);
    if (!whole)
        return NULL;
    int rc = ek_shards_gather(parts->flat.shards, parts->flat.shard_count, owners, whole);
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
    const ek_cut *cut = &slot->cut;
    const ek_tensor *first = cut->segments[0].state[s];
    ek_tensor *whole = state_on_cpu(slot->parameter, first->dtype, cut->stride);
    if (whole && ek_shard_read(&(ek_shard){0, ek_count(whole), NULL}, NULL, whole) < 0)
        return NULL;
    for (int i = 0; i < cut->count && whole; i++)
        if (ek_shard_read(&cut->segments[i].shard, cut->segments[i].state[s], whole) < 0)
            return NULL;
    return whole;
}

/* True if writing the slot's state may overwrite `tensor`. */
static bool slot_shares_memory(const ek_slot *slot, const ek_tensor *tensor)
{
    for (int i = 0; i < slot->cut.count; i++)
        for (int s = 0; s < EK_STATES; s++) {
            const ek_tensor *state = slot->cut.segments[i].state[s];
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

static int cut_put_state(const ek_cut *cut, int s, ek_tensor *whole)
{
    for (int i = 0; i < cut->count; i++)
        EK_TRY(ek_shard_write(&cut->segments[i].shard, cut->segments[i].state[s], whole));
    return 0;
}

int ek_slot_put_state(const ek_slot *slot, int s, ek_tensor *whole)
{
    return cut_put_state(&slot->cut, s, whole);
}

/* ---- new cuts ---- */

/* Copies state s of the slot to new memory of each segment of the cut. */
static int cut_take_state(ek_cut *cut, const ek_slot *slot, int s)
{
    ek_tensor *whole = ek_slot_gather_state(slot, s);
    if (whole)
        whole = ek_slot_convert_state(slot, whole);
    if (!whole)
        return ek_error_pending();
    for (int i = 0; i < cut->count; i++) {
        ek_segment *segment = &cut->segments[i];
        ek_memory_category before = ek_memory_set_category(EK_MEMORY_OPTIMIZER);
        segment->state[s] = ek_keep(ek_tensor_like(segment->shard.tensor));
        ek_memory_set_category(before);
        if (!segment->state[s])
            return ek_error_pending();
    }
    return cut_put_state(cut, s, whole);
}

int ek_slot_recut(ek_optimizer *optimizer, ek_slot *slot)
{
    ek_cut cut;
    if (slot_is_current(slot))
        return 0;
    int status = cut_make(slot, &cut);
    for (int s = 0; s < EK_STATES && slot->step > 0 && status >= 0; s++) {
        ek_scope scope = ek_scope_begin();
        if (slot->cut.segments[0].state[s])
            status = cut_take_state(&cut, slot, s);
        ek_scope_end(&scope);
    }
    if (status < 0) {
        cut_clear(&cut);
        ek_owners *owners = slot->cut.owners; /* they wait for this process */
        return owners && slot->step > 0 ? owners->combine(owners, status, NULL, false) : status;
    }
    cut_clear(&slot->cut);
    slot->cut = cut;
    optimizer->table_is_current = false;
    return 0;
}
