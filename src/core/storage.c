/* storage.c: blocks of device memory, residences, and versions, which count the writes. */
#include <stdlib.h>
#include <string.h>

#include "core/cells.h"
#include "core/fork.h"
#include "core/tensor.h"

static void storage_free_memory(ek_storage *storage)
{
    if (storage->loan)
        ek_storage_forget_loan(storage);
    if (!storage->data) /* the residence has taken it, or it was left to borrowers */
        return;
    if (storage->owner) {
        ek_dev_count_foreign(storage->dev, storage->nbytes, storage->category, false);
        ek_object_release(storage->owner);
    } else if (storage->pinned_by) {
        if (!ek_forked()) { /* the list of pinned blocks belongs to the parent */
            storage->pinned_by->pinned_free(storage->data);
            ek_dev_count_foreign(storage->dev, storage->nbytes, storage->category, false);
        }
    } else {
        ek_storage_receive(storage);
        ek_dev_free_for(storage->dev, storage->stream, storage->data, storage->nbytes,
                        storage->category, storage->event);
    }
}

static void storage_destroy(ek_object *object)
{
    ek_storage *storage = (ek_storage *)object;
    ek_object_release(storage->residence); /* first, so that it no longer touches the storage */
    ek_object_release(atomic_load(&storage->derived));
    storage_free_memory(storage);
    ek_cell_free(storage, sizeof *storage);
}

void ek_storage_move(ek_storage *storage, ek_object *owner, void *data)
{
    memcpy(data, storage->data, storage->nbytes);
    storage_free_memory(storage);
    ek_dev_count_foreign(storage->dev, storage->nbytes, storage->category, true);
    storage->data = data;
    storage->owner = ek_object_retain(owner);
}

ek_derived *ek_storage_derive(ek_storage *storage, ek_derived *fresh)
{
    ek_derived *none = NULL;
    if (!fresh || !atomic_compare_exchange_strong(&storage->derived, &none, fresh))
        return fresh ? none : atomic_load(&storage->derived);
    return ek_object_retain(fresh);
}

void ek_storage_receive(ek_storage *storage)
{
    if (storage->arriving)
        ek_dev_wait_event(storage->dev, EK_STREAM_COMPUTE, storage->event);
    storage->arriving = false;
}

ek_storage *ek_storage_new(ek_dev *dev, size_t nbytes)
{
    return ek_storage_new_for(dev, (ek_stream)ek_thread_self()->modes.stream, nbytes);
}

/* Makes a storage without memory, counted under the thread's category. */
static ek_storage *storage_new_empty(ek_dev *dev, size_t nbytes)
{
    ek_storage *storage = ek_cell_new(sizeof *storage);
    if (!storage)
        return NULL;
    ek_object_init(&storage->object, storage_destroy);
    storage->dev = dev;
    storage->nbytes = nbytes;
    storage->category = ek_thread_self()->modes.category;
    storage->path = ek_thread_self()->modes.path;
    storage->stream = EK_STREAM_COMPUTE;
    return storage;
}

ek_storage *ek_storage_new_for(ek_dev *dev, ek_stream stream, size_t nbytes)
{
    ek_storage *storage = storage_new_empty(dev, nbytes);
    if (!storage)
        return NULL;
    storage->stream = ek_dev_has_streams(dev) ? stream : EK_STREAM_COMPUTE;
    if (ek_dev_alloc_for(dev, storage->stream, nbytes, storage->category, &storage->data,
                         &storage->event) < 0) {
        ek_cell_free(storage, sizeof *storage);
        return NULL;
    }
    return storage;
}

ek_storage *ek_storage_new_foreign(ek_dev *dev, size_t nbytes, ek_object *owner, void *data)
{
    ek_storage *storage = storage_new_empty(dev, nbytes);
    if (!storage)
        return NULL;
    ek_dev_count_foreign(dev, nbytes, storage->category, true);
    storage->data = data;
    storage->owner = ek_object_retain(owner);
    return storage;
}

ek_storage *ek_storage_new_pinned(ek_dev *reader, size_t nbytes)
{
    ek_dev *plain = ek_dev_get(ek_cpu());
    ek_storage *storage = plain ? storage_new_empty(plain, nbytes) : NULL;
    if (!storage)
        return NULL;
    storage->pinned_by = reader->backend;
    storage->pinned_for = reader;
    if (reader->backend->pinned_alloc(reader, nbytes, &storage->data) < 0) {
        ek_cell_free(storage, sizeof *storage);
        return NULL;
    }
    ek_dev_count_foreign(plain, nbytes, storage->category, true);
    return storage;
}

/* ---- residences ---- */

ek_storage *ek_storage_new_absent(ek_dev *dev, size_t nbytes, ek_memory_category category,
                                  ek_residence *residence)
{
    ek_storage *storage = storage_new_empty(dev, nbytes);
    if (!storage)
        return NULL;
    storage->category = category;
    storage->residence = ek_object_retain(residence);
    return storage;
}

int ek_storage_present(ek_storage *storage)
{
    return ek_dev_alloc(storage->dev, storage->nbytes, storage->category, &storage->data);
}

void ek_storage_absent(ek_storage *storage)
{
    ek_object_release(atomic_exchange(&storage->derived, NULL));
    ek_dev_free(storage->dev, storage->data, storage->nbytes, storage->category);
    storage->data = NULL;
}

/* An object of a scope, which holds a storage until the scope ends. */
typedef struct storage_hold {
    ek_object object;
    ek_storage *storage; /* one reference */
} storage_hold;

static void hold_destroy(ek_object *object)
{
    storage_hold *hold = (storage_hold *)object;
    ek_residence *residence =
        hold->storage->residence; /* NULL: the storage has its memory for good */
    const ek_thread *self = ek_thread_self();
    if (residence) {
        atomic_compare_exchange_strong(&residence->holder, &self, NULL);
        residence->release(residence);
    }
    ek_object_release(hold->storage);
    ek_cell_free(hold, sizeof *hold);
}

/* `holder` is the thread whose scope held the storage first. That scope is the thread's present one
 * or an outer one, so that its hold lasts long enough, and the thread needs no other. Holds of
 * other threads count without being noted there. */
int ek_storage_hold(ek_storage *storage)
{
    ek_residence *residence = storage->residence;
    const ek_thread *self = ek_thread_self(), *none = NULL;
    if (atomic_load(&residence->holder) == self)
        return 0;
    storage_hold *hold = ek_cell_new(sizeof *hold);
    int rc = hold ? residence->hold(residence) : ek_error_pending();
    if (rc < 0) {
        ek_cell_free(hold, sizeof *hold);
        return rc;
    }
    ek_object_init(&hold->object, hold_destroy);
    hold->storage = ek_object_retain(storage);
    atomic_compare_exchange_strong(&residence->holder, &none, self);
    return ek_scope_adopt(hold) ? 0 : ek_error_pending();
}

void ek_storage_assign(ek_storage *storage, ek_memory_category category, const char *path)
{
    if ((storage->category == category && storage->path == path) || storage->residence)
        return;
    const bool foreign = storage->owner || storage->pinned_by;
    if (storage->category != category)
        ek_object_release(atomic_exchange(&storage->derived, NULL));
    const void *own = storage->own ? storage->own : storage->data;
    ek_dev_assign(storage->dev, foreign ? NULL : own, storage->nbytes, storage->category, category,
                  path);
    storage->category = category;
    storage->path = path;
}

static void version_destroy(ek_object *object)
{
    ek_object_release(((ek_write_count *)object)->twins);
    ek_object_release(((ek_write_count *)object)->lender);
    ek_cell_free(object, sizeof(ek_write_count));
}

ek_write_count *ek_version_new(void)
{
    ek_write_count *version = ek_cell_new(sizeof *version);
    if (version) {
        ek_object_init(&version->object, version_destroy);
        atomic_init(&version->count, 0);
        atomic_init(&version->arrival, NULL);
        atomic_init(&version->writer, NULL);
        atomic_init(&version->recorded, 0);
        atomic_init(&version->lent, 0);
        version->lender = NULL;
        version->twins = NULL;
    }
    return version;
}

void ek_tensor_written(ek_tensor *tensor, const char *writer)
{
    atomic_store_explicit(&tensor->version->writer, writer, memory_order_relaxed);
    atomic_fetch_add_explicit(&tensor->version->count, 1, memory_order_release);
    if (tensor->storage->loan && !tensor->storage->own)
        atomic_fetch_add_explicit(&tensor->version->lent, 1, memory_order_release);
    ek_derived *derived = atomic_load(&tensor->storage->derived);
    if (derived)
        derived->outdated(derived);
}

void ek_tensor_touch(ek_tensor *tensor)
{
    if (tensor && ek_check_alive("tensor_touch", "the tensor", tensor) == 0)
        ek_tensor_written(tensor, "a direct write");
}

uint64_t ek_tensor_version(const ek_tensor *tensor)
{
    return tensor && ek_check_alive("tensor_version", "the tensor", tensor) == 0
               ? atomic_load_explicit(&tensor->version->count, memory_order_acquire)
               : 0;
}

/* ---- twins ---- */

static void twins_destroy(ek_object *object)
{
    ek_twins *twins = (ek_twins *)object;
    while (twins->values) {
        ek_twin_value *next = twins->values->next;
        ek_object_release(twins->values);
        twins->values = next;
    }
    free(twins);
}

/* Guards the twins of all versions, because threads that only read a tensor may look for its twins
 * while another copies it to further devices. */
static pthread_mutex_t twins_lock = PTHREAD_MUTEX_INITIALIZER;

/* Returns the version's twins, or NULL if its range was written since. The lock is held. */
static ek_twins *twins_of(const ek_write_count *version)
{
    const bool outdated = version->twins && ek_version_writes(version) != version->twins_count;
    return outdated ? NULL : version->twins;
}

/* Makes `offset` the start of the version's range among `twins`. Returns the twins that it had
 * before, with their reference. The lock is held. */
static ek_twins *twins_assign(ek_write_count *version, ek_twins *twins, int64_t offset)
{
    ek_twins *before = version->twins;
    version->twins = ek_object_retain(twins);
    version->twins_count = ek_version_writes(version);
    version->twins_offset = offset;
    return before;
}

void ek_tensor_make_twin(ek_tensor *copy, const ek_tensor *source, int places)
{
    ek_twins *fresh = ek_same_layout(copy, source) ? calloc(1, sizeof *fresh) : NULL;
    if (!fresh)
        return;
    ek_object_init(&fresh->object, twins_destroy);
    fresh->places = places;
    ek_write_count *version = source->version;
    ek_twins *before[2] = {NULL, NULL};
    ek_lock(&twins_lock);
    if (!twins_of(version))
        before[0] = twins_assign(version, fresh, source->offset);
    /* The source may be a part of its range. */
    const int64_t begin = source->offset - version->twins_offset;
    before[1] = twins_assign(copy->version, version->twins, copy->offset - begin);
    ek_unlock(&twins_lock);
    ek_object_release(fresh);
    ek_object_release(before[0]);
    ek_object_release(before[1]);
}

ek_twins *ek_tensor_twins(const ek_tensor *x, int64_t *offset)
{
    const ek_write_count *version = x->version;
    if (!version)
        return NULL;
    ek_lock(&twins_lock);
    ek_twins *twins = ek_object_retain(twins_of(version));
    *offset = twins ? x->offset - version->twins_offset : 0;
    ek_unlock(&twins_lock);
    return twins;
}
