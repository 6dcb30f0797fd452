/* gathering.c: see gathering.h. */
#include "parallel/gathering.h"

#include <stdlib.h>

#include "comm/exchange.h"
#include "core/trace.h"
#include "parallel/sharding.h"

/* A unit on a device. Its storage owns it. */
typedef struct gathered {
    ek_residence residence;
    ek_sharding *sharding; /* one reference */
    ek_storage *storage;   /* borrowed */
    int unit, device;
    int holds;     /* calls of `hold` without their `release` */
    uint64_t used; /* the cache's time of the last hold */
} gathered;

/* The units of a device. The lock guards them and their storages' memory. */
typedef struct gathered_cache {
    pthread_mutex_t lock;
    gathered **units; /* by unit; borrowed. NULL: the unit is empty, or its storage is gone */
    ek_storage *open; /* a few bytes, so that the device isn't closed while no unit has memory */
    size_t in_use;    /* bytes of units with memory */
    uint64_t time;    /* how often units were held */
} gathered_cache;

/* What a leaf's version was when leaf and shards were last equal. */
typedef struct gathering_leaf {
    ek_write_count *version; /* one reference; NULL: the leaf is not bound */
    uint64_t count;
} gathering_leaf;

struct ek_gathering {
    ek_sharding *sharding;
    int units;
    size_t budget;      /* bytes of the two largest units */
    bool unshared;      /* written elements went to shards since ek_gathering_shared */
    int *order, *first; /* unit u has the leaves order[first[u]] to order[first[u + 1] - 1] */
    gathering_leaf *leaves;
    gathered_cache caches[EK_MAX_DEVICES];
    atomic_uint_fast64_t nbytes;
};

/* ---- copies between shards and whole units ---- */

/* Copies all shards of the unit to its memory: this rank's slice by slice, the others by `pull`. */
static int gathered_read(gathered *unit)
{
    ek_sharding *s = unit->sharding;
    ek_storage *storage = unit->storage;
    const size_t size = ek_dtype_size(s->buckets[unit->unit].dtype);
    int rc = 0;
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMMUNICATE, "all_gather", NULL, storage->dev);
    for (int d = 0; d < s->devices && rc >= 0; d++) {
        const ek_shard_slice *slice = &s->slices[unit->unit * s->devices + d];
        if (slice->end > slice->begin)
            rc = ek_dev_copy(storage->dev, (char *)storage->data + (size_t)slice->begin * size,
                             ek_tensor_dev(slice->elements), ek_tensor_address(slice->elements),
                             (size_t)(slice->end - slice->begin) * size);
    }
    if (s->shards.ranks && rc >= 0)
        rc = s->owner.pull ? s->owner.pull(s->owner.user, unit->unit, storage)
                           : EK_FAIL(EK_E_STATE, "the parameter is sharded over ranks, and its "
                                                 "ek_distributed_data_parallel was freed");
    ek_span_end(&span);
    atomic_fetch_add_explicit(&s->gathering->nbytes, storage->nbytes, memory_order_relaxed);
    return rc;
}

static uint64_t leaf_writes(const gathering_leaf *leaf)
{
    return leaf->version ? atomic_load_explicit(&leaf->version->count, memory_order_acquire) : 0;
}

/* Returns true if leaf i was written since leaf and shards were last equal. A checkpoint
 * that is loaded gives leaves other version objects. */
static bool leaf_is_written(const ek_gathering *g, int i)
{
    const ek_sharding *s = g->sharding;
    return leaf_writes(&g->leaves[i]) != g->leaves[i].count ||
           (s->leaves && s->leaves[i]->version != g->leaves[i].version);
}

/* Copies the leaf's elements in the unit's memory to the leaf's shards on this rank. */
static int gathered_write_leaf(const gathered *unit, int i)
{
    const ek_sharding *s = unit->sharding;
    const size_t size = ek_dtype_size(s->buckets[unit->unit].dtype);
    for (int k = s->shards.first[i]; k < s->shards.first[i] + s->shards.counts[i]; k++) {
        const ek_shard *shard = &s->shards.all[k];
        const char *source = (char *)unit->storage->data + (size_t)(s->at[i] + shard->begin) * size;
        if (shard->end > shard->begin)
            EK_TRY(ek_dev_copy(ek_tensor_dev(shard->tensor), ek_tensor_address(shard->tensor),
                               unit->storage->dev, source,
                               (size_t)(shard->end - shard->begin) * size));
    }
    if (s->owner.written)
        s->owner.written(s->owner.user, i);
    return 0;
}

/* Copies written leaves of a unit of the first device to their shards. Returns whether there were
 * any, or a negative status. The cache's lock is held. */
static int gathered_write(const gathered *unit)
{
    ek_gathering *g = unit->sharding->gathering;
    int any = 0;
    for (int n = g->first[unit->unit]; n < g->first[unit->unit + 1] && unit->device == 0; n++) {
        if (unit->storage->data && leaf_is_written(g, g->order[n])) {
            EK_TRY(gathered_write_leaf(unit, g->order[n]));
            g->unshared = true;
            any = 1;
        }
    }
    for (int n = g->first[unit->unit]; n < g->first[unit->unit + 1] && unit->device == 0; n++)
        ek_gathering_note(g, g->order[n]);
    return any;
}

/* ---- memory of units; the cache's lock is held ---- */

static void gathered_take_memory(gathered_cache *cache, gathered *unit)
{
    cache->in_use -= unit->storage->nbytes;
    ek_storage_absent(unit->storage);
}

/* Called after the unit's shards were written. If the unit is held, copies the shards to it again;
 * otherwise takes its memory. */
static int gathered_outdate(gathered_cache *cache, gathered *unit)
{
    if (!unit || !unit->storage->data)
        return 0;
    if (unit->holds > 0)
        return gathered_read(unit);
    gathered_take_memory(cache, unit);
    return 0;
}

/* Calls gathered_outdate for the unit on all devices but the first. */
static int gathering_outdate_copies(ek_gathering *g, int unit)
{
    int rc = 0;
    for (int d = 1; d < g->sharding->devices && rc >= 0; d++) {
        gathered_cache *cache = &g->caches[d];
        pthread_mutex_lock(&cache->lock);
        rc = gathered_outdate(cache, cache->units[unit]);
        pthread_mutex_unlock(&cache->lock);
    }
    return rc;
}

/* Returns true if a leaf of the unit was written on the first device. */
static bool gathered_is_written(const gathered *unit)
{
    const ek_gathering *g = unit->sharding->gathering;
    bool any = false;
    for (int n = g->first[unit->unit]; n < g->first[unit->unit + 1] && unit->device == 0; n++)
        any = any || leaf_is_written(g, g->order[n]);
    return any;
}

/* Takes the memory of the unit that was used least recently among those that are not held. In jobs
 * of a group, other devices may read the shards, so that written units stay. Returns 1 if there was
 * one, else 0, or a negative status. */
static int gathered_evict(ek_gathering *g, int device)
{
    gathered_cache *cache = &g->caches[device];
    gathered *oldest = NULL;
    const bool in_job = ek_thread_in_job();
    for (int u = 0; u < g->units; u++) {
        gathered *unit = cache->units[u];
        if (unit && unit->storage->data && unit->holds == 0 &&
            (!oldest || unit->used < oldest->used) && !(in_job && gathered_is_written(unit)))
            oldest = unit;
    }
    if (!oldest)
        return 0;
    int written = gathered_write(oldest);
    EK_TRY(written);
    if (written > 0)
        EK_TRY(gathering_outdate_copies(g, oldest->unit));
    gathered_take_memory(cache, oldest);
    return 1;
}

/* Gives the unit memory. While the device has none left, takes the memory of units that are not
 * held, one after the other. */
static int gathered_make_memory(ek_gathering *g, gathered *unit)
{
    gathered_cache *cache = &g->caches[unit->device];
    const int before = ek_error_status();
    int evicted = 1;
    while (evicted > 0 && cache->in_use + unit->storage->nbytes > g->budget)
        evicted = gathered_evict(g, unit->device);
    EK_TRY(evicted);
    int rc = ek_storage_present(unit->storage);
    while (rc == EK_E_OUT_OF_MEMORY && (evicted = gathered_evict(g, unit->device)) > 0) {
        if (before == 0)
            ek_error_clear();
        rc = ek_storage_present(unit->storage);
    }
    if (rc >= 0)
        cache->in_use += unit->storage->nbytes;
    return rc;
}

static int gathered_gather(ek_gathering *g, gathered *unit)
{
    if (unit->storage->data)
        return 0;
    EK_TRY(gathered_make_memory(g, unit));
    int rc = gathered_read(unit);
    if (rc < 0)
        gathered_take_memory(&g->caches[unit->device], unit);
    return rc;
}

/* ---- residences ---- */

static int gathered_hold(ek_residence *residence)
{
    gathered *unit = (gathered *)residence;
    ek_gathering *g = unit->sharding->gathering;
    gathered_cache *cache = &g->caches[unit->device];
    pthread_mutex_lock(&cache->lock);
    unit->used = ++cache->time;
    int rc = gathered_gather(g, unit);
    unit->holds += rc >= 0;
    pthread_mutex_unlock(&cache->lock);
    return rc;
}

static void gathered_release(ek_residence *residence)
{
    gathered *unit = (gathered *)residence;
    gathered_cache *cache = &unit->sharding->gathering->caches[unit->device];
    pthread_mutex_lock(&cache->lock);
    unit->holds--;
    /* If writing back fails, the unit stays until its memory is needed, when it fails again. */
    const int pending = ek_error_status();
    while (cache->in_use > unit->sharding->gathering->budget &&
           gathered_evict(unit->sharding->gathering, unit->device) > 0)
        continue;
    if (pending == 0)
        ek_error_clear();
    pthread_mutex_unlock(&cache->lock);
}

/* Called by the storage, before it frees the memory that it has. */
static void gathered_destroy(ek_object *object)
{
    gathered *unit = (gathered *)object;
    gathered_cache *cache = &unit->sharding->gathering->caches[unit->device];
    pthread_mutex_lock(&cache->lock);
    cache->units[unit->unit] = NULL;
    if (unit->storage && unit->storage->data)
        cache->in_use -= unit->storage->nbytes;
    pthread_mutex_unlock(&cache->lock);
    ek_object_release(unit->sharding);
    free(unit);
}

/* ---- making ---- */

/* Lists the leaves by their units. */
static int gathering_list_leaves(ek_gathering *g)
{
    const ek_sharding *s = g->sharding;
    g->order = ek_calloc((size_t)s->shards.leaf_count + 1, sizeof *g->order);
    g->first = ek_calloc((size_t)g->units + 1, sizeof *g->first);
    if (!g->order || !g->first)
        return ek_error_pending();
    for (int u = 0, n = 0; u < g->units; u++) {
        g->first[u] = n;
        for (int i = 0; i < s->shards.leaf_count; i++)
            if (s->leaves[i] && s->bucket_of[i] == u)
                g->order[n++] = i;
        g->first[u + 1] = n;
    }
    return 0;
}

static size_t gathering_unit_nbytes(const ek_gathering *g, int unit)
{
    const ek_sharding_bucket *bucket = &g->sharding->buckets[unit];
    return (size_t)bucket->count * ek_dtype_size(bucket->dtype);
}

static void gathering_set_budget(ek_gathering *g)
{
    size_t largest = 0, second = 0;
    for (int u = 0; u < g->units; u++) {
        size_t nbytes = gathering_unit_nbytes(g, u);
        if (nbytes > largest) {
            second = largest;
            largest = nbytes;
        } else if (nbytes > second) {
            second = nbytes;
        }
    }
    g->budget = largest + second;
}

/* Makes the unit's storage on a device. Returns one reference, or NULL with an error. */
static ek_storage *gathered_new(ek_gathering *g, int unit, int device)
{
    gathered *made = ek_calloc(1, sizeof *made);
    if (!made)
        return NULL;
    ek_object_init(&made->residence.object, gathered_destroy);
    made->residence.hold = gathered_hold;
    made->residence.release = gathered_release;
    made->sharding = ek_object_retain(g->sharding);
    made->unit = unit;
    made->device = device;
    g->caches[device].units[unit] = made;
    made->storage = ek_storage_new_absent(g->sharding->devs[device], gathering_unit_nbytes(g, unit),
                                          EK_MEMORY_GATHERED, &made->residence);
    ek_storage *storage = made->storage;
    ek_object_release(made);
    return storage;
}

ek_gathering *ek_gathering_new(ek_sharding *s)
{
    ek_gathering *g = ek_calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->sharding = s;
    g->units = s->bucket_count;
    g->leaves = ek_calloc((size_t)s->shards.leaf_count + 1, sizeof *g->leaves);
    int rc = g->leaves ? gathering_list_leaves(g) : ek_error_pending();
    for (int d = 0; d < s->devices; d++) {
        pthread_mutex_init(&g->caches[d].lock, NULL);
        g->caches[d].units = ek_calloc((size_t)g->units + 1, sizeof(gathered *));
        ek_memory_category before = ek_memory_set_category(EK_MEMORY_PARAMETER);
        g->caches[d].open = ek_storage_new(s->devs[d], sizeof(double));
        ek_memory_set_category(before);
        rc = rc < 0 || !g->caches[d].units || !g->caches[d].open ? ek_error_pending() : 0;
    }
    if (rc < 0) {
        ek_gathering_free(g);
        return NULL;
    }
    gathering_set_budget(g);
    return g;
}

void ek_gathering_free(ek_gathering *g)
{
    if (!g)
        return;
    for (int d = 0; d < g->sharding->devices; d++) {
        pthread_mutex_destroy(&g->caches[d].lock);
        free(g->caches[d].units);
        ek_object_release(g->caches[d].open);
    }
    for (int i = 0; g->leaves && i < g->sharding->shards.leaf_count; i++)
        ek_object_release(g->leaves[i].version);
    free(g->leaves);
    free(g->order);
    free(g->first);
    free(g);
}

ek_tensor *ek_gathering_member(ek_gathering *g, int d, int i)
{
    const ek_sharding *s = g->sharding;
    const ek_tensor *leaf = s->leaves[i];
    const int unit = s->bucket_of[i];
    gathered *there = g->caches[d].units[unit];
    ek_storage *storage = there ? ek_object_retain(there->storage) : gathered_new(g, unit, d);
    ek_shape shape = ek_tensor_shape(leaf);
    ek_tensor *member =
        storage ? ek_tensor_member(storage, leaf->dtype, &shape, leaf->stride, s->at[i]) : NULL;
    ek_object_release(storage);
    return member;
}

/* Gives leaf i the member's storage. Can't fail. */
static void gathering_bind_leaf(ek_gathering *g, int i, const ek_tensor *member)
{
    ek_tensor_rebind(g->sharding->leaves[i], member);
    g->sharding->leaves[i]->is_view = false;
    g->leaves[i].version = ek_object_retain(member->version);
    ek_gathering_note(g, i);
}

int ek_gathering_bind(ek_gathering *g)
{
    const ek_sharding *s = g->sharding;
    ek_tensor **members = ek_calloc((size_t)s->shards.leaf_count + 1, sizeof *members);
    int rc = members ? 0 : ek_error_pending();
    for (int i = 0; i < s->shards.leaf_count && rc >= 0; i++) {
        members[i] = s->leaves[i] ? ek_gathering_member(g, 0, i) : NULL;
        rc = members[i] || !s->leaves[i] ? 0 : ek_error_pending();
    }
    for (int i = 0; i < s->shards.leaf_count && rc >= 0; i++)
        if (members[i])
            gathering_bind_leaf(g, i, members[i]);
    free(members);
    return rc;
}

/* ---- changes ---- */

void ek_gathering_note(ek_gathering *g, int i)
{
    gathering_leaf *leaf = &g->leaves[i];
    if (g->sharding->leaves && g->sharding->leaves[i]->version != leaf->version) {
        ek_object_release(leaf->version);
        leaf->version = ek_object_retain(g->sharding->leaves[i]->version);
    }
    leaf->count = leaf_writes(leaf);
}

bool ek_gathering_is_written(const ek_gathering *g)
{
    bool any = g->unshared;
    for (int i = 0; i < g->sharding->shards.leaf_count && !any; i++)
        any = g->sharding->leaves[i] && leaf_is_written(g, i);
    return any;
}

void ek_gathering_shared(ek_gathering *g)
{
    g->unshared = false;
}

int ek_gathering_settle(ek_gathering *g)
{
    gathered_cache *home = &g->caches[0];
    int rc = 0;
    for (int u = 0; u < g->units && rc >= 0; u++) {
        pthread_mutex_lock(&home->lock);
        rc = home->units[u] ? gathered_write(home->units[u]) : 0;
        pthread_mutex_unlock(&home->lock);
        if (rc > 0)
            rc = gathering_outdate_copies(g, u);
    }
    return rc < 0 ? rc : 0;
}

int ek_gathering_forget(ek_gathering *g)
{
    int rc = 0;
    for (int d = 0; d < g->sharding->devices; d++) {
        gathered_cache *cache = &g->caches[d];
        pthread_mutex_lock(&cache->lock);
        for (int u = 0; u < g->units; u++)
            rc = gathered_outdate(cache, cache->units[u]) < 0 ? ek_error_pending() : rc;
        pthread_mutex_unlock(&cache->lock);
    }
    return rc;
}

int ek_gathering_drop(ek_gathering *g, int d, int i)
{
    gathered_cache *cache = &g->caches[d];
    pthread_mutex_lock(&cache->lock);
    int rc = gathered_outdate(cache, cache->units[g->sharding->bucket_of[i]]);
    pthread_mutex_unlock(&cache->lock);
    return rc;
}

int ek_gathering_end(ek_gathering *g)
{
    gathered_cache *home = &g->caches[0];
    int rc = 0, held = 0;
    while (held < g->units && rc >= 0) {
        gathered *unit = home->units[held];
        rc = unit ? gathered_hold(&unit->residence) : 0;
        held += rc >= 0;
    }
    for (int u = 0; u < held; u++) {
        gathered *unit = home->units[u];
        if (unit && rc < 0) {
            gathered_release(&unit->residence);
        } else if (unit) {
            unit->storage->residence = NULL;
            ek_storage_assign(unit->storage, EK_MEMORY_PARAMETER, unit->storage->path);
            ek_object_release(unit);
        }
    }
    return rc;
}

uint64_t ek_gathering_nbytes(const ek_gathering *g)
{
    return g ? atomic_load_explicit(&g->nbytes, memory_order_relaxed) : 0;
}
