/* dnn_plan.c: a bounded hash table of plans for all devices, least recently used out first.
 * Compiling a primitive takes milliseconds and is done outside the lock. */
#include "host/dnn_plan.h"

#include <stdlib.h>
#include <string.h>

#include "host/dnn.h"

enum { BUCKETS = 512, MAX_PLANS = 1024 };

/* All guarded by lock; plans themselves are constant once they are in the table. */
static struct {
    pthread_mutex_t lock;
    dnnl_engine_t engine;
    ek_dnn_plan *buckets[BUCKETS];
    int count;
    uint64_t clock;
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const char *status_text(dnnl_status_t status)
{
    switch (status) {
    case dnnl_out_of_memory:
        return "is out of memory";
    case dnnl_invalid_arguments:
        return "does not accept the arguments";
    case dnnl_unimplemented:
        return "does not implement this case";
    default:
        return "failed";
    }
}

int ek_dnn_check(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return 0;
    return EK_FAIL(status == dnnl_out_of_memory ? EK_E_NO_MEMORY : EK_E_BACKEND,
                   "%s: oneDNN %s (its status is %d)", what, status_text(status), (int)status);
}

dnnl_data_type_t ek_dnn_type(ek_dtype dtype)
{
    return dtype == EK_BF16 ? dnnl_bf16 : dnnl_f32;
}

bool ek_dnn_is_fast(const_dnnl_primitive_desc_t primitive)
{
    const char *implementation = "ref";
    dnnl_status_t status =
        dnnl_primitive_desc_query(primitive, dnnl_query_impl_info_str, 0, (void *)&implementation);
    return status == dnnl_success && strncmp(implementation, "ref", 3) != 0;
}

void ek_dnn_args_add(ek_dnn_args *args, int name, const dnnl_memory_desc_t *desc, void *data)
{
    if (desc->ndims == 0 || args->status != dnnl_success)
        return;
    dnnl_exec_arg_t *arg = &args->list[args->count];
    args->status = dnnl_memory_create(&arg->memory, desc, args->engine, data);
    if (args->status != dnnl_success)
        return;
    arg->arg = name;
    args->count++;
}

dnnl_status_t ek_dnn_run(dnnl_primitive_t primitive, ek_dnn_args *args, dnnl_stream_t stream)
{
    if (args->status == dnnl_success)
        args->status = dnnl_primitive_execute(primitive, stream, args->count, args->list);
    for (int i = 0; i < args->count; i++)
        dnnl_memory_destroy(args->list[i].memory);
    return args->status;
}

void ek_dnn_key_add(ek_dnn_key *key, int64_t word)
{
    key->words[key->count++] = word;
}

void ek_dnn_key_add_array(ek_dnn_key *key, const int64_t *words, int count)
{
    for (int i = 0; i < count; i++)
        ek_dnn_key_add(key, words[i]);
}

static unsigned bucket_of(const ek_dnn_key *key)
{
    uint64_t hash = 1469598103934665603u; /* FNV-1a over words */
    for (int i = 0; i < key->count; i++)
        hash = (hash ^ (uint64_t)key->words[i]) * 1099511628211u;
    return (unsigned)((hash ^ hash >> 32) % BUCKETS);
}

static void plan_free(ek_dnn_plan *plan)
{
    if (plan->primitive)
        dnnl_primitive_destroy(plan->primitive);
    if (plan->reorder)
        dnnl_primitive_destroy(plan->reorder);
    free(plan);
}

/* The functions below with `locked` in their names are called with the lock held. */

static ek_dnn_plan *find_locked(const ek_dnn_key *key, unsigned bucket)
{
    for (ek_dnn_plan *plan = cache.buckets[bucket]; plan; plan = plan->next) {
        if (plan->key.count == key->count &&
            memcmp(plan->key.words, key->words, (size_t)key->count * sizeof *key->words) == 0) {
            plan->users++;
            plan->last_use = ++cache.clock;
            return plan;
        }
    }
    return NULL;
}

static void evict_locked(void)
{
    ek_dnn_plan **oldest = NULL;
    for (int i = 0; i < BUCKETS; i++)
        for (ek_dnn_plan **link = &cache.buckets[i]; *link; link = &(*link)->next)
            if ((*link)->users == 0 && (!oldest || (*link)->last_use < (*oldest)->last_use))
                oldest = link;
    if (!oldest)
        return; /* all are running: the bound is exceeded for a moment */
    ek_dnn_plan *plan = *oldest;
    *oldest = plan->next;
    cache.count--;
    plan_free(plan);
}

dnnl_engine_t ek_dnn_engine(void)
{
    pthread_mutex_lock(&cache.lock);
    dnnl_status_t status = dnnl_success;
    if (!cache.engine)
        status = dnnl_engine_create(&cache.engine, dnnl_cpu, 0);
    dnnl_engine_t engine = cache.engine;
    pthread_mutex_unlock(&cache.lock);
    return ek_dnn_check(status, "starting the CPU engine") < 0 ? NULL : engine;
}

ek_dnn_plan *ek_dnn_plan_acquire(const ek_dnn_key *key, ek_dnn_plan_build *build,
                                 const void *arguments)
{
    unsigned bucket = bucket_of(key);
    pthread_mutex_lock(&cache.lock);
    ek_dnn_plan *plan = find_locked(key, bucket);
    pthread_mutex_unlock(&cache.lock);
    if (plan)
        return plan;

    dnnl_engine_t engine = ek_dnn_engine();
    ek_dnn_plan *made = engine ? ek_calloc(1, sizeof *made) : NULL;
    if (!made)
        return NULL;
    made->key = *key;
    made->users = 1;
    if (build(made, engine, arguments) < 0) {
        plan_free(made);
        return NULL;
    }
    pthread_mutex_lock(&cache.lock);
    plan = find_locked(key, bucket); /* another thread may have been faster */
    if (!plan) {
        if (cache.count >= MAX_PLANS)
            evict_locked();
        made->last_use = ++cache.clock;
        made->next = cache.buckets[bucket];
        cache.buckets[bucket] = made;
        cache.count++;
    }
    pthread_mutex_unlock(&cache.lock);
    if (!plan)
        return made;
    plan_free(made);
    return plan;
}

void ek_dnn_plan_release(ek_dnn_plan *plan)
{
    pthread_mutex_lock(&cache.lock);
    plan->users--;
    pthread_mutex_unlock(&cache.lock);
}

void ek_dnn_shutdown(void)
{
    pthread_mutex_lock(&cache.lock);
    for (int i = 0; i < BUCKETS; i++) {
        while (cache.buckets[i]) {
            ek_dnn_plan *plan = cache.buckets[i];
            cache.buckets[i] = plan->next;
            plan_free(plan);
        }
    }
    cache.count = 0;
    if (cache.engine)
        dnnl_engine_destroy(cache.engine);
    cache.engine = NULL;
    pthread_mutex_unlock(&cache.lock);
}
