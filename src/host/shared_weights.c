/* shared_weights.c: see shared_weights.h. */
#include "host/shared_weights.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/fork.h"
#include "host/host.h"

/* Guards the twins' lists of values, and `shared_nbytes`, the bytes of all shared values. */
static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;
static size_t shared_nbytes;

static void shared_destroy(ek_object *object)
{
    ek_shared_weights *shared = (ek_shared_weights *)object;
    if (shared->data) {
        ek_lock(&shared_lock);
        shared_nbytes -= shared->nbytes;
        ek_unlock(&shared_lock);
        ek_dev_free(shared->dev, shared->data, shared->nbytes, EK_MEMORY_WORKSPACE);
    }
    free(shared);
}

/* Makes an entry without values, for the device that asks first. The lock is held. */
static ek_shared_weights *shared_new(const ek_shared_key *key)
{
    ek_dev *dev = ek_dev_get(ek_cpu());
    ek_shared_weights *shared = dev ? calloc(1, sizeof *shared) : NULL;
    if (!shared)
        return NULL;
    ek_object_init(&shared->value.object, shared_destroy);
    shared->key = *key;
    shared->dev = dev;
    return shared;
}

/* Gives the entry memory for its values, if all entries together then take at most `most` bytes.
 * The lock is held. */
static void shared_allocate(ek_shared_weights *shared, size_t nbytes, size_t most)
{
    ek_event *none;
    if (shared_nbytes + nbytes <= most &&
        ek_dev_try_alloc_for(shared->dev, EK_STREAM_COMPUTE, nbytes, EK_MEMORY_WORKSPACE,
                             &shared->data, &none) == 1)
        shared_nbytes += shared->nbytes = nbytes;
}

/* A call for which there was no room counts as a use, too. Otherwise values that others share would
 * stay until the twins go, and leave no room. */
ek_shared_weights *ek_shared_weights_take(const ek_tensor *w, ek_shared_key key, size_t nbytes,
                                          size_t each)
{
    ek_twins *twins = ek_tensor_twins(w, &key.offset);
    if (!twins)
        return NULL;
    ek_lock(&shared_lock);
    ek_twin_value **at = &twins->values;
    while (*at && memcmp(&((ek_shared_weights *)*at)->key, &key, sizeof key) != 0)
        at = &(*at)->next;
    if (!*at)
        *at = (ek_twin_value *)shared_new(&key);
    ek_shared_weights *shared = (ek_shared_weights *)*at, *ended = NULL;
    if (shared && ++shared->uses == twins->places) {
        *at = shared->value.next;
        ended = shared;
    }
    if (shared && !shared->data && !ended) /* nobody would share the last one's */
        shared_allocate(shared, nbytes, (size_t)twins->places * each);
    shared = shared && shared->data ? ek_object_retain(shared) : NULL;
    ek_unlock(&shared_lock);
    ek_object_release(ended);
    ek_object_release(twins);
    return shared;
}

/* What a thread computes of the values. */
typedef struct shared_making {
    ek_shared_weights *shared;
    int64_t count, grain;
    ek_parallel_body *make;
    void *context;
} shared_making;

/* Takes pieces until none is left. */
static void shared_make_some(void *user, int64_t begin, int64_t end)
{
    const shared_making *m = user;
    (void)begin, (void)end;
    for (int64_t at; (at = atomic_fetch_add(&m->shared->next, m->grain)) < m->count;) {
        const int64_t n = ek_smaller(m->grain, m->count - at);
        m->make(m->context, at, at + n);
        atomic_fetch_add(&m->shared->made, n);
    }
}

void ek_shared_weights_make(ek_dev *dev, ek_shared_weights *shared, int64_t count, int64_t grain,
                            ek_parallel_body *make, void *context)
{
    shared_making m = {shared, count, ek_larger(grain, 1), make, context};
    if (atomic_load(&shared->made) < count)
        ek_parallel_for(dev, ek_parallel_threads(dev), 1, shared_make_some, &m);
    ek_parallel_wait(&shared->made, count);
}
