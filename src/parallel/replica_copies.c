/* replica_copies.c: a replica set's copies on other devices. */
#include "parallel/replica_copies.h"

#include <stdlib.h>
#include <string.h>

#include "comm/collective.h"
#include "core/slab.h"
#include "core/trace.h"
#include "core/worker.h"

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

/* What of the first `end` entries is stale on device d: to[] there, from[] the sources. Returns how
 * many. */
static int list_stale(const ek_replica_set *set, int d, int end, ek_tensor **to, ek_tensor **from)
{
    int count = 0;
    for (int i = 0; i < end; i++) {
        if (!is_stale(set, d, i))
            continue;
        to[count] = set->copies[d].tensors[i];
        from[count++] = set->sources[i];
    }
    return count;
}

/* Notes that to[], as list_stale gives them, were sent, or with rc < 0 may have been overwritten.
 * Older graphs that saved the replica's tensors err from now on. */
static void note_sent(ek_replica_set *set, int d, ek_tensor *const *to, int count, int rc)
{
    ek_copies *c = &set->copies[d];
    for (int i = 0, next = 0; i < set->count && next < count; i++) {
        if (c->tensors[i] != to[next])
            continue;
        ek_sent *s = &c->sent[i];
        ek_tensor_written(to[next++], "the broadcast to replicas");
        ek_object_release(s->version);
        s->version = rc < 0 ? NULL : ek_object_retain(set->sources[i]->version);
        s->source = ek_tensor_version(set->sources[i]);
        s->replica = ek_tensor_version(c->tensors[i]);
    }
}

/* Sends what of the first `end` entries is stale to device d. */
static int refresh(ek_replica_set *set, int d, int end)
{
    const int before = ek_error_status();
    ek_tensor **to = ek_calloc(2 * (size_t)set->count + 1, sizeof(ek_tensor *));
    if (!to)
        return ek_error_pending();
    ek_tensor **from = to + set->count;
    int count = list_stale(set, d, end, to, from);
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMMUNICATE, "refreshing replicas", NULL, set->devs[d]);
    int rc = ek_comm_copy_list(to, from, count);
    ek_span_end(&span);
    note_sent(set, d, to, count, rc);
    free(to);
    if (rc < 0)
        ek_error_prefix(before, "sending parameters to %s", set->devs[d]->name);
    return rc;
}

/* Those of a forward that are sent to: the module's own device, then the others that take part. */
typedef struct receivers {
    ek_replica_set *set;
    int end;   /* entries from here on are left */
    int count; /* without the first */
    int places[EK_MAX_DEVICES];
    ek_dev *devs[EK_MAX_DEVICES];
} receivers;

static receivers receivers_of(ek_replica_set *set, const ek_places *places, int end)
{
    receivers r = {.set = set, .end = end, .devs = {set->devs[0]}};
    for (int i = 0; i < places->count; i++) {
        if (places->at[i] == 0)
            continue;
        r.places[++r.count] = places->at[i];
        r.devs[r.count] = set->devs[places->at[i]];
    }
    return r;
}

/* Sends it to all devices in one go, where the same is stale on all; else returns 1. */
static int refresh_at_once(const receivers *r)
{
    const int before = ek_error_status();
    ek_replica_set *set = r->set;
    ek_tensor **lists[EK_MAX_DEVICES];
    size_t room = (size_t)set->count + 1;
    ek_tensor **work = ek_calloc(room * (size_t)(r->count + 2), sizeof(ek_tensor *));
    if (!work)
        return ek_error_pending();
    ek_tensor **first = work, **from = work + room;
    int count = 0, rc = 0;
    for (int d = 1; d <= r->count && rc == 0; d++) {
        lists[d] = work + room * (size_t)(d + 1);
        int stale = list_stale(set, r->places[d], r->end, lists[d], d == 1 ? first : from);
        if (d == 1)
            count = stale;
        else if (stale != count || memcmp(first, from, (size_t)count * sizeof *from) != 0)
            rc = 1;
    }
    if (rc == 0) {
        ek_span span;
        ek_span_begin(&span, EK_SPAN_COMMUNICATE, "refreshing replicas", NULL, set->devs[0]);
        rc = ek_comm_spread(r->devs, r->count + 1, (ek_tensor *const *const *)lists, first, count);
        ek_span_end(&span);
        for (int d = 1; d <= r->count; d++)
            note_sent(set, r->places[d], lists[d], count, rc);
        if (rc < 0)
            ek_error_prefix(before, "sending parameters from %s", set->devs[0]->name);
    }
    free(work);
    return rc;
}

static int refresh_part(void *user, int index)
{
    const receivers *r = user;
    return refresh(r->set, r->places[index + 1], r->end);
}

static int send(receivers *r, size_t nbytes)
{
    int rc;
    if (nbytes == 0)
        return 0;
    if (ek_comm_has_collective(r->devs, r->count + 1, &rc))
        rc = refresh_at_once(r);
    else if (rc == 0)
        rc = 1;
    if (rc <= 0)
        return rc;
    if (nbytes >= EK_WORKER_BYTES)
        return ek_gang_run(r->devs + 1, r->count, refresh_part, r, NULL);
    for (int d = 1; d <= r->count; d++)
        EK_TRY(refresh(r->set, r->places[d], r->end));
    return 0;
}

int ek_copies_refresh(ek_replica_set *set, const ek_places *places, int end)
{
    size_t parameters = 0, buffers = 0;
    receivers r = receivers_of(set, places, end);
    for (int d = 1; d <= r.count; d++) {
        EK_TRY(ek_copies_allocate(set, r.places[d]));
        for (int i = 0; i < end; i++)
            if (is_stale(set, r.places[d], i))
                *(i < set->parameters ? &parameters : &buffers) += ek_comm_nbytes(set->sources[i]);
    }
    EK_TRY(send(&r, parameters + buffers));
    set->stats.parameter_broadcasts += parameters > 0;
    set->stats.parameter_nbytes += parameters;
    set->stats.buffer_nbytes += buffers;
    return 0;
}
