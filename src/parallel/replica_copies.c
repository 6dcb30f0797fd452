/* replica_copies.c: a replica set's copies on other devices. */
#include "parallel/replica_copies.h"

#include <stdlib.h>
#include <string.h>

#include "comm/exchange.h"
#include "core/slab.h"

/* ---- memory ---- */

void ek_copies_forget(ek_replica_set *set)
{
    for (int d = 0; d < set->devices; d++) {
        ek_copies *c = &set->copies[d];
        for (int i = 0; i < set->count; i++) {
            if (c->tensors)
                ek_object_release(c->tensors[i]);
            if (c->sent)
                ek_object_release(c->sent[i].version);
        }
        free(c->tensors);
        free(c->sent);
        *c = (ek_copies){0};
    }
}

/* A slab on `dev` for the sources [begin, end) of one dtype; its members go to tensors[]. */
static int allocate_group(ek_replica_set *set, ek_dev *dev, int begin, int end, ek_dtype dtype,
                          ek_tensor **tensors)
{
    ek_tensor **group = ek_calloc((size_t)(end - begin) + 1, sizeof(ek_tensor *));
    if (!group)
        return ek_error_pending();
    int count = 0;
    for (int i = begin; i < end; i++)
        if (set->sources[i]->dtype == dtype)
            group[count++] = set->sources[i];
    ek_slab *slab = count ? ek_slab_new(dev, group, count) : NULL;
    int rc = count && !slab ? ek_error_pending() : 0;
    for (int i = begin, member = 0; i < end && slab; i++)
        if (set->sources[i]->dtype == dtype)
            tensors[i] = ek_object_retain(slab->members[member++]);
    ek_object_release(slab);
    free(group);
    return rc;
}

int ek_copies_allocate(ek_replica_set *set, int d)
{
    if (set->copies[d].tensors)
        return 0;
    ek_copies c = {ek_calloc((size_t)set->count + 1, sizeof *c.tensors),
                   ek_calloc((size_t)set->count + 1, sizeof *c.sent)};
    int rc = c.tensors && c.sent ? 0 : ek_error_pending();
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_PARAMETER);
    for (int dtype = 0; dtype < EK_DTYPES && rc >= 0; dtype++) {
        rc = allocate_group(set, set->devs[d], 0, set->parameters, (ek_dtype)dtype, c.tensors);
        if (rc >= 0)
            rc = allocate_group(set, set->devs[d], set->parameters, set->count, (ek_dtype)dtype,
                                c.tensors);
    }
    ek_memory_set_category(before);
    if (rc >= 0) {
        set->copies[d] = c;
        return 0;
    }
    for (int i = 0; c.tensors && i < set->count; i++)
        ek_object_release(c.tensors[i]);
    free(c.tensors);
    free(c.sent);
    return rc;
}

/* ---- sending ---- */

static bool is_stale(const ek_replica_set *set, int d, int i)
{
    const ek_tensor *source = set->sources[i];
    const ek_sent *s = &set->copies[d].sent[i];
    bool own_buffer = i >= set->parameters && !set->broadcast_buffers && !source->requires_grad;
    if (own_buffer) /* what was loaded has begun another count of writes */
        return s->version != source->version;
    return s->version != source->version || s->source != ek_tensor_version(source) ||
           s->replica != ek_tensor_version(set->copies[d].tensors[i]);
}

/* Adds the moves that bring what of the first `end` entries is stale to device d. Returns how many
 * moves there are by now. */
static int list_stale(const ek_replica_set *set, int d, int end, ek_move *moves, int count)
{
    for (int i = 0; i < end; i++)
        if (is_stale(set, d, i))
            moves[count++] = (ek_move){set->copies[d].tensors[i], set->sources[i]};
    return count;
}

/* Notes that device d's moves, as list_stale gives them, were made, or with rc < 0 may have been.
 * Older graphs that saved the replica's tensors err from now on. */
static void note_sent(ek_replica_set *set, int d, const ek_move *moves, int count, int rc)
{
    ek_copies *c = &set->copies[d];
    for (int i = 0, next = 0; i < set->count && next < count; i++) {
        if (c->tensors[i] != moves[next].to)
            continue;
        ek_sent *s = &c->sent[i];
        ek_tensor_written(moves[next++].to, "the broadcast to replicas");
        ek_object_release(s->version);
        s->version = rc < 0 ? NULL : ek_object_retain(set->sources[i]->version);
        s->source = ek_tensor_version(set->sources[i]);
        s->replica = ek_tensor_version(c->tensors[i]);
    }
}

/* Sends what moves[] says, those of the k-th place from first[k] on. */
static int send_stale(ek_replica_set *set, const ek_places *places, const ek_move *moves,
                      const int *first)
{
    const int before = ek_error_status();
    int rc = ek_exchange("refreshing replicas", moves, first[places->count]);
    for (int k = 0; k < places->count; k++)
        note_sent(set, places->at[k], moves + first[k], first[k + 1] - first[k], rc);
    if (rc < 0)
        ek_error_prefix(before, "sending parameters from %s", set->devs[0]->name);
    return rc;
}

int ek_copies_refresh(ek_replica_set *set, const ek_places *places, int end)
{
    size_t parameters = 0, buffers = 0;
    int first[EK_MAX_DEVICES + 1] = {0}, rc = 0;
    ek_move *moves = ek_calloc((size_t)places->count * (size_t)end + 1, sizeof *moves);
    if (!moves)
        return ek_error_pending();
    for (int k = 0; k < places->count && rc >= 0; k++) {
        int d = places->at[k];
        rc = d > 0 ? ek_copies_allocate(set, d) : 0;
        first[k + 1] = d > 0 && rc >= 0 ? list_stale(set, d, end, moves, first[k]) : first[k];
        for (int i = 0; i < end && d > 0 && rc >= 0; i++)
            if (is_stale(set, d, i))
                *(i < set->parameters ? &parameters : &buffers) += ek_comm_nbytes(set->sources[i]);
    }
    if (rc >= 0 && parameters + buffers > 0)
        rc = send_stale(set, places, moves, first);
    free(moves);
    EK_TRY(rc);
    set->stats.parameter_broadcasts += parameters > 0;
    set->stats.parameter_nbytes += parameters;
    set->stats.buffer_nbytes += buffers;
    return 0;
}
