/* autocast.c: see autocast.h. The public regions, ek_autocast_begin and its end, are here, too. */
#include "ops/autocast.h"

#include <pthread.h>
#include <stdlib.h>

#include "evenkeel/autograd.h"
#include "ops/ops.h"

static bool autocast_is_on(void)
{
    return ek_thread_self()->modes.flags & EK_MODE_AUTOCAST;
}

/* The dtype that operands are cast to while autocast is on. */
static ek_dtype autocast_narrow_dtype(void)
{
    return ek_thread_self()->modes.flags & EK_MODE_AUTOCAST_F16 ? EK_F16 : EK_BF16;
}

static bool autocast_is_parameter(const ek_tensor *x)
{
    const ek_memory_category category = x->storage->category;
    return !x->is_view && ek_is_dense(x) &&
           (category == EK_MEMORY_PARAMETER || category == EK_MEMORY_GATHERED);
}

/* Returns a flat tensor, by value, that shows a whole storage. */
static ek_tensor autocast_whole(ek_storage *storage, ek_dtype dtype)
{
    return (ek_tensor){.dtype = dtype,
                       .ndim = 1,
                       .shape = {(int64_t)(storage->nbytes / ek_dtype_size(dtype))},
                       .stride = {1},
                       .storage = storage};
}

/* Casts all elements of a storage to `dtype`, by one launch. The result has the storage's category
 * and is owned by the caller. */
static ek_storage *autocast_cast_storage(ek_storage *from, ek_dtype dtype)
{
    ek_tensor wide = autocast_whole(from, EK_F32);
    ek_memory_category before = ek_memory_set_category(from->category);
    ek_storage *to = ek_storage_new(from->dev, (size_t)wide.shape[0] * ek_dtype_size(dtype));
    ek_memory_set_category(before);
    if (!to)
        return NULL;
    ek_tensor narrow = autocast_whole(to, dtype);
    if (from->dev->backend->kernels->copy(from->dev, &narrow, &wide) >= 0)
        return to;
    ek_object_release(to);
    return NULL;
}

/* Makes a tensor of `dtype` with x's geometry in `storage`, recorded as a cast of x. */
static ek_tensor *autocast_shown_in(ek_storage *storage, ek_dtype dtype, ek_tensor *x)
{
    ek_shape shape = ek_tensor_shape(x);
    ek_tensor *y = ek_tensor_member(storage, dtype, &shape, x->stride, x->offset);
    return y ? ek_record_cast(y, x) : NULL;
}

/* Casts a parameter's whole storage, which keeps the cast. If few elements of the storage's last
 * cast were read, casts x alone. */
static ek_tensor *autocast_cast_parameter(ek_tensor *x)
{
    ek_narrow_found found;
    const ek_dtype dtype = autocast_narrow_dtype();
    int64_t count = ek_count(x);
    if (ek_narrow_find(x->storage, dtype, count, &found) < 0)
        return NULL;
    ek_storage *narrow = found.elements;
    if (!narrow && found.wastes)
        return ek_to_dtype(x, dtype);
    if (!narrow) {
        narrow = autocast_cast_storage(x->storage, dtype);
        if (!narrow)
            return NULL;
        ek_narrow_keep(x->storage, narrow, dtype, count, found.writes);
    }
    ek_tensor *y = autocast_shown_in(narrow, dtype, x);
    ek_object_release(narrow);
    return y;
}

/* Returns true if the thread remembers casts of x: x has no history, and EK_MODE_ALONE is off. In
 * that mode (a checkpoint's forward, recomputations, composed gradients) tensors are new. */
static bool autocast_is_remembered(const ek_tensor *x)
{
    return !x->history && !(ek_thread_self()->modes.flags & EK_MODE_ALONE);
}

ek_tensor *ek_autocast_narrow(ek_tensor *x)
{
    if (!x || ek_dtype_wide(x->dtype) != EK_F32 || !autocast_is_on())
        return x;
    /* Inputs and views live too short to be remembered. */
    if (x->dtype != EK_F32 || !autocast_is_parameter(x))
        return ek_to_dtype(x, autocast_narrow_dtype());
    if (ek_tensor_hold(x) < 0)
        return NULL;
    if (!autocast_is_remembered(x))
        return autocast_cast_parameter(x);
    /* A cast without history would cut a graph; a cast with history would start one. */
    const bool graph = x->requires_grad && ek_grad_enabled();
    const int pending = ek_error_status();
    ek_tensor *known = ek_cast_find(x, graph);
    if (known || ek_error_status() != pending)
        return known;
    ek_tensor *y = autocast_cast_parameter(x);
    return y && ek_cast_remember(x, graph, y) >= 0 ? y : NULL;
}

ek_tensor *ek_autocast_image(ek_tensor *x)
{
    if (!x || x->dtype != EK_F32 || !autocast_is_on() || x->ndim != 4 || autocast_is_parameter(x) ||
        ek_tensor_is_contiguous(x, EK_CHANNELS_LAST))
        return ek_autocast_narrow(x);
    ek_shape shape = ek_tensor_shape(x);
    ek_tensor *y =
        ek_tensor_new(ek_tensor_dev(x), autocast_narrow_dtype(), &shape, EK_CHANNELS_LAST);
    return y && ek_transfer(y, x) >= 0 ? ek_record_cast(y, x) : NULL;
}

ek_tensor *ek_autocast_wide(ek_tensor *x)
{
    return ek_autocast_widens(x) ? ek_to_dtype(x, EK_F32) : x;
}

void ek_autocast_promote(ek_tensor **x, ek_tensor **y)
{
    if (!*x || !*y)
        return;
    if ((*x)->dtype == (*y)->dtype || ek_dtype_wide((*x)->dtype) != ek_dtype_wide((*y)->dtype))
        return;
    *x = ek_autocast_wide(*x);
    *y = ek_autocast_wide(*y);
}

bool ek_autocast_mixes(ek_tensor *const *tensors, int count)
{
    const ek_tensor *first = NULL;
    bool mixes = false;
    for (int i = 0; i < count && autocast_is_on(); i++) {
        if (!tensors[i] || ek_dtype_wide(tensors[i]->dtype) != EK_F32)
            continue;
        first = first ? first : tensors[i];
        mixes = mixes || tensors[i]->dtype != first->dtype;
    }
    return mixes;
}

ek_tensor *ek_autocast_like(ek_tensor *y, const ek_tensor *x)
{
    bool casts = x && y && autocast_is_on() && ek_dtype_wide(x->dtype) == EK_F32 &&
                 ek_dtype_wide(y->dtype) == EK_F32;
    return casts ? ek_to_dtype(y, x->dtype) : y;
}

/* ---- casts that a thread remembers ---- */

/* A remembered cast. There is one per version, offset, dtype and `graph`, so that the casts of
 * short-lived aliases of a leaf replace each other. All references are owned: an address in an
 * entry can't belong to a new object. */
typedef struct ek_cast ek_cast;
struct ek_cast {
    ek_cast *next;
    ek_tensor *leaf, *cast;
    ek_write_count *version; /* the leaf's version, to which `count` belongs */
    int64_t offset;
    uint64_t count;
    bool graph;
};

static ek_cast *autocast_entry_of(const ek_tensor *leaf, ek_dtype dtype, bool graph)
{
    ek_cast *entry = ek_thread_self()->casts;
    while (entry && (entry->version != leaf->version || entry->offset != leaf->offset ||
                     entry->cast->dtype != dtype || entry->graph != graph))
        entry = entry->next;
    return entry;
}

static void autocast_release_parts(ek_cast *entry)
{
    ek_release(entry->leaf);
    ek_release(entry->cast);
    ek_object_release(entry->version);
}

static bool autocast_is_stale(const ek_cast *entry)
{
    return entry->count != ek_version_writes(entry->version);
}

/* Forgets all casts, or without `all` only stale casts. */
static void autocast_forget(ek_thread *thread, bool all)
{
    for (ek_cast **at = &thread->casts; *at;) {
        ek_cast *entry = *at;
        if (!all && !autocast_is_stale(entry)) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        autocast_release_parts(entry);
        free(entry);
    }
}

ek_tensor *ek_cast_find(const ek_tensor *leaf, bool graph)
{
    const ek_cast *entry = autocast_entry_of(leaf, autocast_narrow_dtype(), graph);
    if (!entry || !ek_same_layout(entry->cast, leaf))
        return NULL;
    if (autocast_is_stale(
            entry)) { /* a step makes all casts stale, and each keeps a slab's cast alive */
        autocast_forget(ek_thread_self(), false);
        return NULL;
    }
    /* Gradients of the cast go to the alias of the leaf that was cast, not to another alias. */
    if (graph && entry->leaf != leaf)
        return NULL;
    return ek_scope_adopt(ek_keep(entry->cast));
}

int ek_cast_remember(ek_tensor *leaf, bool graph, ek_tensor *cast)
{
    ek_thread *thread = ek_thread_self();
    if (!thread->autocast_depth)
        return 0;
    ek_cast *entry = autocast_entry_of(leaf, cast->dtype, graph);
    if (entry) {
        autocast_release_parts(entry);
    } else {
        entry = ek_calloc(1, sizeof *entry);
        if (!entry)
            return ek_error_status();
        entry->next = thread->casts;
        thread->casts = entry;
    }
    entry->leaf = ek_keep(leaf);
    entry->cast = ek_keep(cast);
    entry->version = ek_object_retain(leaf->version);
    entry->offset = leaf->offset;
    entry->count = ek_version_writes(leaf->version);
    entry->graph = graph;
    return 0;
}

static void autocast_thread_exit(ek_thread *thread)
{
    autocast_forget(thread, true);
}

__attribute__((constructor)) static void autocast_watch_threads(void)
{
    ek_thread_at_exit(autocast_thread_exit);
}

/* ---- narrow copies of storages: bf16 or f16 ---- */

/* A narrow copy of an f32 storage. */
typedef struct narrow {
    ek_derived derived;
    pthread_mutex_t lock;
    _Atomic(ek_storage *) elements; /* owned, or NULL; written under `lock` */
    ek_dtype dtype;                 /* guarded by `lock`: of the elements */
    int64_t used;                   /* guarded by `lock`: elements that were read */
    bool wastes;                    /* guarded by `lock` */
    _Atomic uint64_t writes;
} narrow;

static void narrow_replace(narrow *self, ek_storage *elements, ek_dtype dtype, int64_t used)
{
    ek_lock(&self->lock);
    self->dtype = dtype;
    ek_storage *before = atomic_exchange(&self->elements, elements);
    if (before)
        self->wastes = self->used < (int64_t)(before->nbytes / 4);
    self->used = used;
    ek_unlock(&self->lock);
    ek_object_release(before);
}

/* Drops a storage's narrow elements after a write. A write is counted before this looks for
 * elements, and ek_narrow_keep stores elements before it reads the count. So one of the two sees
 * what the other did, and a write that finds no elements takes no lock. */
static void narrow_outdated(ek_derived *derived)
{
    narrow *self = (narrow *)derived;
    atomic_fetch_add(&self->writes, 1);
    if (atomic_load(&self->elements))
        narrow_replace(self, NULL, EK_BF16, 0);
}

static void narrow_destroy(ek_object *object)
{
    narrow *self = (narrow *)object;
    ek_object_release(atomic_load(&self->elements));
    pthread_mutex_destroy(&self->lock);
    free(self);
}

/* Returns the struct `narrow` of a storage (borrowed), which the first call makes. NULL with an
 * error. */
static narrow *narrow_of(ek_storage *storage)
{
    narrow *known = (narrow *)ek_storage_derive(storage, NULL);
    if (known)
        return known;
    narrow *fresh = ek_calloc(1, sizeof *fresh);
    if (!fresh)
        return NULL;
    ek_object_init(&fresh->derived.object, narrow_destroy);
    fresh->derived.outdated = narrow_outdated;
    if (pthread_mutex_init(&fresh->lock, NULL) != 0) {
        free(fresh);
        return EK_REFUSE(EK_E_NO_MEMORY, "no mutex for narrow weights can be had");
    }
    known = (narrow *)ek_storage_derive(storage, &fresh->derived);
    ek_object_release(fresh);
    return known;
}

int ek_narrow_find(ek_storage *storage, ek_dtype dtype, int64_t count, ek_narrow_found *found)
{
    narrow *self = narrow_of(storage);
    if (!self)
        return ek_error_pending();
    found->writes = atomic_load(&self->writes);
    ek_lock(&self->lock);
    found->elements = self->dtype == dtype ? ek_object_retain(atomic_load(&self->elements)) : NULL;
    if (found->elements)
        self->used += count;
    found->wastes = self->wastes;
    ek_unlock(&self->lock);
    return 0;
}

void ek_narrow_keep(ek_storage *storage, ek_storage *elements, ek_dtype dtype, int64_t count,
                    uint64_t writes)
{
    narrow *self = (narrow *)ek_storage_derive(storage, NULL);
    narrow_replace(self, ek_object_retain(elements), dtype, count);
    if (atomic_load(&self->writes) != writes)
        narrow_replace(self, NULL, EK_BF16, 0);
}

/* ---- regions ---- */

ek_autocast ek_autocast_begin(ek_dtype dtype)
{
    ek_thread *thread = ek_thread_self();
    ek_thread_modes *modes = &thread->modes;
    thread->autocast_depth++;
    ek_autocast autocast = {modes->flags & EK_MODE_AUTOCASTS};
    unsigned others = modes->flags & ~(unsigned)EK_MODE_AUTOCASTS;
    if (dtype == EK_BF16)
        modes->flags = others | EK_MODE_AUTOCAST;
    else if (dtype == EK_F16)
        modes->flags = others | EK_MODE_AUTOCASTS;
    else if (dtype == EK_F32)
        modes->flags = others;
    else
        EK_FAIL(EK_E_DTYPE,
                "autocast to %s; bf16 and f16 are possible, and f32, which switches it off",
                ek_dtype_name(dtype));
    return autocast;
}

void ek_autocast_end(const ek_autocast *autocast)
{
    if (!autocast)
        return;
    ek_thread *thread = ek_thread_self();
    ek_thread_modes *modes = &thread->modes;
    modes->flags = (modes->flags & ~(unsigned)EK_MODE_AUTOCASTS) | autocast->before;
    if (thread->autocast_depth && --thread->autocast_depth == 0)
        autocast_forget(thread, true);
}

ek_dtype ek_autocast_dtype(void)
{
    return autocast_is_on() ? autocast_narrow_dtype() : EK_F32;
}
