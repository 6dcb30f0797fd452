/* replica_copies.c: slabs of a module's tensors, on the module's device and on other devices. */
#include "parallel/replica_copies.h"

#include <stdlib.h>

#include "autograd/graph.h"
#include "comm/exchange.h"
#include "core/lane.h"
#include "core/slab.h"
#include "nn/module_table.h"

int ek_copies_slabs_make(ek_dev *dev, ek_dev *reader, ek_tensor *const *tensors, int count,
                         ek_memory_category category, ek_tensor **members)
{
    ek_tensor **chosen = ek_calloc((size_t)count + 1, sizeof *chosen);
    int rc = chosen ? 0 : ek_error_pending();
    ek_memory_category before = ek_memory_set_category(category);
    for (int dtype = 0; dtype < EK_DTYPES && rc >= 0; dtype++) {
        int n = 0;
        for (int i = 0; i < count; i++)
            if (tensors[i] && (int)tensors[i]->dtype == dtype)
                chosen[n++] = tensors[i];
        ek_slab *slab = n > 0 ? ek_slab_new_for(dev, reader, chosen, n) : NULL;
        rc = n > 0 && !slab ? ek_error_pending() : 0;
        for (int i = 0, member = 0; i < count && slab; i++)
            if (tensors[i] && (int)tensors[i]->dtype == dtype)
                members[i] = ek_object_retain(slab->members[member++]);
        ek_object_release(slab);
    }
    ek_memory_set_category(before);
    free(chosen);
    return rc;
}

/* ---- the module's own ---- */

/* Returns true if the tensor must not move: it lies in a slab (it has a grad buffer, or is no view
 * and smaller than its storage), or it is sharded and lies where its shards are. Leaves of units
 * whose wrapper was freed must move. */
static bool copies_is_flat(const ek_tensor *tensor)
{
    return tensor->shards ||
           (!tensor->is_view && !tensor->storage->residence &&
            (tensor->grad_buffer || tensor->storage->nbytes > ek_comm_nbytes(tensor)));
}

/* Moves the listed parameters into slabs. `room` is for three lists of `list->count`: parameters
 * that move or get a grad buffer, the slab members that they move to, and their grad buffers. */
static int copies_flatten(const ek_tensor_list *list, bool gradients, ek_tensor **room)
{
    int count = list->count;
    ek_tensor **chosen = room, **homes = room + count, **slots = homes + count;
    ek_dev *dev = count ? ek_tensor_dev(list->tensors[0]) : NULL;
    for (int i = 0; i < count; i++) {
        ek_tensor *tensor = list->tensors[i];
        if (ek_tensor_dev(tensor) != dev)
            return EK_FAIL(EK_E_DEVICE, "parameters of one module lie on %s and on %s", dev->name,
                           ek_tensor_dev(tensor)->name);
        chosen[i] = copies_is_flat(tensor) ? NULL : tensor;
    }
    EK_TRY(ek_copies_slabs_make(dev, NULL, chosen, count, EK_MEMORY_PARAMETER, homes));
    for (int i = 0; i < count; i++) {
        ek_tensor *tensor = list->tensors[i];
        bool needs = tensor->requires_grad && !tensor->grad_buffer && !tensor->shards;
        chosen[i] = gradients && needs ? tensor : NULL;
    }
    EK_TRY(ek_copies_slabs_make(dev, NULL, chosen, count, EK_MEMORY_GRADIENT, slots));
    for (int i = 0; i < count; i++)
        if (homes[i])
            EK_TRY(ek_comm_copy(homes[i], list->tensors[i]));
    for (int i = 0; i < count; i++)
        if (slots[i])
            EK_TRY(ek_leaf_set_grad_buffer(list->tensors[i], slots[i]));
    for (int i = 0; i < count; i++) {
        if (!homes[i])
            continue;
        ek_tensor_rebind(list->tensors[i], homes[i]);
        list->tensors[i]->is_view = false;
    }
    return 0;
}

int ek_flatten_parameters(ek_module *module, bool gradients)
{
    ek_tensor_list list = {0};
    EK_TRY(ek_module_collect(module, true, false, &list));
    ek_tensor **room = ek_calloc(3 * (size_t)list.count + 1, sizeof *room);
    ek_scope scope = ek_scope_begin();
    int rc = room ? copies_flatten(&list, gradients, room) : ek_error_pending();
    ek_scope_end(&scope);
    for (int i = list.count; room && i < 3 * list.count; i++)
        ek_object_release(room[i]);
    free(room);
    ek_tensor_list_clear(&list);
    return rc;
}

/* ---- copies on other devices ---- */

static void copies_free(const ek_replica_set *set, ek_copies *copies)
{
    for (int i = 0; i < set->count; i++) {
        if (copies->tensors)
            ek_object_release(copies->tensors[i]);
        if (copies->sent)
            ek_object_release(copies->sent[i].version);
    }
    free(copies->tensors);
    free(copies->sent);
    *copies = (ek_copies){0};
}

void ek_copies_forget(ek_replica_set *set)
{
    for (int d = 0; d < set->devices; d++)
        copies_free(set, &set->copies[d]);
}

bool ek_copies_gathers(const ek_replica_set *set, int i)
{
    return set->gatherer && i < set->parameters && ek_sharding_has(set->gatherer, i) &&
           set->gatherer->leaves[i] == set->sources[i];
}

/* Makes the copies of parameters; `room` has room for a list of them. */
static int copies_make_parameters(const ek_replica_set *set, int d, ek_tensor **tensors,
                                  ek_tensor **room)
{
    for (int i = 0; i < set->parameters; i++) {
        if (!ek_copies_gathers(set, i))
            room[i] = set->sources[i];
        else if (!(tensors[i] = ek_keep(ek_gathering_member(set->gatherer->gathering, d, i))))
            return ek_error_pending();
    }
    return ek_copies_slabs_make(set->devs[d], NULL, room, set->parameters, EK_MEMORY_PARAMETER,
                                tensors);
}

int ek_copies_allocate(ek_replica_set *set, int d)
{
    ek_copies *copies = &set->copies[d];
    int parameters = set->parameters;
    if (copies->tensors)
        return 0;
    ek_tensor **room = ek_calloc((size_t)set->count + 1, sizeof *room);
    *copies = (ek_copies){ek_calloc((size_t)set->count + 1, sizeof *copies->tensors),
                          ek_calloc((size_t)set->count + 1, sizeof *copies->sent)};
    ek_scope scope = ek_scope_begin();
    int rc = copies->tensors && copies->sent && room ? 0 : ek_error_pending();
    if (rc >= 0)
        rc = copies_make_parameters(set, d, copies->tensors, room);
    ek_scope_end(&scope);
    free(room);
    if (rc >= 0)
        rc = ek_copies_slabs_make(set->devs[d], NULL, set->sources + parameters,
                                  set->count - parameters, EK_MEMORY_PARAMETER,
                                  copies->tensors + parameters);
    for (int i = 0; i < parameters && rc >= 0; i++)
        if (ek_copies_gathers(set, i))
            ek_copies_note(set, d, i, true);
    if (rc < 0)
        copies_free(set, copies);
    return rc;
}

/* ---- sending ---- */

void ek_copies_note(ek_replica_set *set, int d, int i, bool known)
{
    ek_tensor *source = set->sources[i], *copy = set->copies[d].tensors[i];
    ek_sent *sent = &set->copies[d].sent[i];
    ek_object_release(sent->version);
    sent->version = known ? ek_object_retain(source->version) : NULL;
    sent->source = ek_tensor_version(source);
    sent->replica = ek_tensor_version(copy);
    if (known && i < set->parameters && !ek_copies_gathers(set, i) &&
        ek_dev_is_host(ek_tensor_dev(source)))
        ek_tensor_make_twin(copy, source, set->devices);
}

static bool copies_is_stale(const ek_replica_set *set, int d, int i)
{
    const ek_tensor *source = set->sources[i];
    const ek_sent *sent = &set->copies[d].sent[i];
    bool own_buffer = i >= set->parameters && !set->broadcast_buffers && !source->requires_grad;
    if (ek_copies_gathers(set, i))
        return false;
    if (sent->version != source->version)
        return true;
    /* A buffer that the replica keeps is stale only if the source got another version object, as
     * happens when a state is loaded. */
    return !own_buffer && (sent->source != ek_tensor_version(source) ||
                           sent->replica != ek_tensor_version(set->copies[d].tensors[i]));
}

void ek_replica_set_join(ek_replica_set *set)
{
    if (!set || !set->arrivals)
        return;
    for (int d = 0; d < set->devices; d++)
        ek_lane_join(set->devs[d]);
    for (int d = 0; d < set->devices; d++)
        for (int i = 0; i < set->count && set->copies[d].tensors; i++)
            atomic_store(&set->copies[d].tensors[i]->version->arrival, NULL);
    for (int k = 0; k < set->arrival_room; k++)
        if (set->arrivals[k].dev)
            ek_dev_free_event(set->arrivals[k].dev, set->arrivals[k].event);
    free(set->arrivals);
    set->arrivals = NULL;
}

/* Notes that device d's copy of entry i was written, and has its source's elements if `known`. */
static void copies_note_sent(ek_replica_set *set, int d, int i, bool known)
{
    ek_tensor_written(set->copies[d].tensors[i], "the broadcast to replicas");
    ek_copies_note(set, d, i, known);
}

/* Does the moves; moves[first[k] .. first[k + 1]) go to the device ranks->at[k]. The copies count
 * as written even after an error, so that older graphs which saved them report the modification. */
static int copies_send_stale(ek_replica_set *set, const ek_rank_list *ranks, const ek_move *moves,
                             const int *first, bool ahead)
{
    static const char what[] = "refreshing replicas";
    const int before = ek_error_status(), count = first[ranks->count];
    ek_replica_set_join(set);
    if (ahead && !(set->arrivals = ek_calloc(2 * (size_t)count, sizeof *set->arrivals)))
        return ek_error_pending();
    set->arrival_room = 2 * count;
    int rc = ahead ? ek_exchange_ahead(what, moves, count, set->arrivals)
                   : ek_exchange(what, moves, count);
    for (int k = 0; k < ranks->count; k++) {
        int d = ranks->at[k], next = first[k];
        for (int i = 0; i < set->count && next < first[k + 1]; i++) {
            if (set->copies[d].tensors[i] != moves[next].to)
                continue;
            copies_note_sent(set, d, i, rc >= 0);
            next++;
        }
    }
    if (rc < 0)
        ek_error_prefix(before, "sending parameters from %s", set->devs[0]->name);
    return rc;
}

/* ---- loans ---- */

/* Returns true if device d's copy of entry i uses its source's memory. */
static bool copies_is_shared(const ek_replica_set *set, int d, int i)
{
    const ek_tensor *source = set->sources[i], *copy = set->copies[d].tensors[i];
    return copy->storage->own && source->storage->data &&
           !atomic_load(&source->storage->shares_never) && ek_same_layout(copy, source) &&
           ek_tensor_address(copy) == ek_tensor_address(source);
}

/* Returns true if device d's copies in the slab of copy i lie there as their sources do in one of
 * the module's slabs, from byte *at on. */
static bool copies_lie_alike(const ek_replica_set *set, int d, int i, size_t *at)
{
    ek_tensor *const *copies = set->copies[d].tensors, *const *sources = set->sources;
    const int64_t offset = sources[i]->offset - copies[i]->offset;
    *at = (size_t)offset * ek_dtype_size(copies[i]->dtype);
    for (int k = 0; k < set->parameters; k++)
        if (copies[k]->storage == copies[i]->storage &&
            (sources[k]->storage != sources[i]->storage ||
             sources[k]->offset - copies[k]->offset != offset ||
             !ek_same_layout(copies[k], sources[k])))
            return false;
    return offset >= 0;
}

/* Returns true if an earlier forward sent parameters to device d, and no replica there has written
 * to them. */
static bool copies_are_read_only(const ek_replica_set *set, int d)
{
    const ek_copies *copies = &set->copies[d];
    for (int i = 0; i < set->parameters; i++)
        if (!copies->sent[i].version ||
            copies->sent[i].replica != ek_tensor_version(copies->tensors[i]))
            return false;
    return true;
}

/* Lets device d's copies use the parameters' memory (Note [Loans]), and ends loans of other memory.
 * Shards' owners write to copies of sharded parameters, which are never lent. */
static void copies_lend(ek_replica_set *set, int d)
{
    const ek_copies *copies = &set->copies[d];
    size_t at;
    if (set->shards || set->gatherer || !ek_dev_is_host(set->devs[d]))
        return;
    for (int i = 0; i < set->parameters; i++)
        if (copies->tensors[i]->storage->own && !copies_is_shared(set, d, i))
            ek_storage_repay(copies->tensors[i]->storage);
    const bool lends = copies_are_read_only(set, d);
    for (int i = 0; i < set->parameters; i++) {
        ek_tensor *copy = copies->tensors[i], *source = set->sources[i];
        const bool begins = i == 0 || copy->storage != copies->tensors[i - 1]->storage;
        if (lends && begins && !copy->storage->loan && copies_lie_alike(set, d, i, &at))
            ek_storage_lend(source->storage, at, copy->storage);
        if (copies_is_shared(set, d, i) != (copy->version->lender != NULL))
            ek_tensor_follow(copy, copy->version->lender ? NULL : source);
    }
}

/* Sends the stale tensors among entries [begin, end). */
static int copies_refresh(ek_replica_set *set, const ek_rank_list *ranks, int begin, int end,
                          bool ahead)
{
    size_t parameters = 0, buffers = 0;
    int first[EK_MAX_DEVICES + 1] = {0}, n = 0, rc = 0;
    ek_move *moves = ek_calloc((size_t)ranks->count * (size_t)end + 1, sizeof *moves);
    if (!moves)
        return ek_error_pending();
    for (int k = 0; k < ranks->count && rc >= 0; first[++k] = n) {
        int d = ranks->at[k];
        rc = d > 0 ? ek_copies_allocate(set, d) : 0;
        if (begin == 0 && d > 0 && rc >= 0)
            copies_lend(set, d);
        for (int i = begin; i < end && d > 0 && rc >= 0; i++) {
            if (!copies_is_stale(set, d, i))
                continue;
            if ((rc = ek_tensor_hold(set->sources[i])) < 0) /* sharded by a wrapper inside */
                break;
            ek_tensor *copy = set->copies[d].tensors[i];
            if (copies_is_shared(set, d, i)) {
                ek_tensor_follow(copy, set->sources[i]);
                copies_note_sent(set, d, i, true);
            } else {
                moves[n++] = (ek_move){copy, set->sources[i]};
            }
            *(i < set->parameters ? &parameters : &buffers) += ek_comm_nbytes(set->sources[i]);
        }
    }
    if (rc >= 0 && n > 0)
        rc = copies_send_stale(set, ranks, moves, first, ahead);
    free(moves);
    EK_TRY(rc);
    set->stats.parameter_broadcasts += parameters > 0;
    set->stats.parameter_nbytes += parameters;
    set->stats.buffer_nbytes += buffers;
    return 0;
}

int ek_copies_refresh(ek_replica_set *set, const ek_rank_list *ranks, int end, bool ahead)
{
    ek_scope scope = ek_scope_begin();
    const int parameters = set->parameters;
    int rc = copies_refresh(set, ranks, parameters, end, false);
    if (rc >= 0)
        rc = copies_refresh(set, ranks, 0, parameters, ahead);
    ek_scope_end(&scope);
    return rc;
}
