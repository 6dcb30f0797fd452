/* dnn_plan.c: a bounded hash table of plans, shared by all devices. If the table is full, the least
 * recently used plan that isn't running is dropped. Compiling a primitive takes milliseconds and is
 * done outside of the lock. */
#include "host/dnn_plan.h"

#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "host/dnn.h"
#include "host/host.h"
#include "host/parallel.h"

enum { BUCKETS = 512, MAX_PLANS = 1024 };

/* `lock` guards the cache's members, and next, users and last_use of its plans. The rest of a plan
 * is constant once the plan is in the table. */
static struct {
    pthread_mutex_t lock;
    dnnl_engine_t engine;
    ek_dnn_plan *buckets[BUCKETS];
    int count;
    uint64_t clock;
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const char *dnn_status_text(dnnl_status_t status)
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
                   "%s: oneDNN %s (its status is %d)", what, dnn_status_text(status), (int)status);
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

void ek_dnn_key_add(ek_dnn_key *key, const int64_t *words, int count)
{
    memcpy(key->words + key->count, words, (size_t)count * sizeof *words);
    key->count += count;
}

static unsigned dnn_plan_bucket_of(const ek_dnn_key *key)
{
    uint64_t hash = EK_DIGEST;
    for (int i = 0; i < key->count; i++)
        hash = ek_digest_word(hash, (uint64_t)key->words[i]);
    return (unsigned)((hash ^ hash >> 32) % BUCKETS);
}

static void dnn_plan_free(ek_dnn_plan *plan)
{
    if (plan->primitive)
        dnnl_primitive_destroy(plan->primitive);
    if (plan->reorder)
        dnnl_primitive_destroy(plan->reorder);
    free(plan);
}

/* The functions below with `locked` in their names are called with the lock held. */

static ek_dnn_plan *dnn_plan_find_locked(const ek_dnn_key *key, unsigned bucket)
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

static void dnn_plan_evict_locked(void)
{
    ek_dnn_plan **oldest = NULL;
    for (int i = 0; i < BUCKETS; i++)
        for (ek_dnn_plan **link = &cache.buckets[i]; *link; link = &(*link)->next)
            if ((*link)->users == 0 && (!oldest || (*link)->last_use < (*oldest)->last_use))
                oldest = link;
    if (!oldest)
        return; /* all plans are running: the table exceeds its bound for a moment */
    ek_dnn_plan *plan = *oldest;
    *oldest = plan->next;
    cache.count--;
    dnn_plan_free(plan);
}

/* Returns the engine of all plans; NULL on error. */
static dnnl_engine_t dnn_cache_engine(void)
{
    pthread_mutex_lock(&cache.lock);
    dnnl_status_t status = dnnl_success;
    if (!cache.engine)
        status = dnnl_engine_create(&cache.engine, dnnl_cpu, 0);
    dnnl_engine_t engine = cache.engine;
    pthread_mutex_unlock(&cache.lock);
    return ek_dnn_check(status, "starting the CPU engine") < 0 ? NULL : engine;
}

static int dnn_kind_check(const ek_dnn_kind *kind, const void *arguments, dnnl_status_t status)
{
    char what[EK_DNN_TEXT];
    if (status == dnnl_success)
        return 0;
    kind->describe(arguments, what);
    return ek_dnn_check(status, what);
}

static dnnl_status_t dnn_plan_build(ek_dnn_plan *plan, const ek_dnn_kind *kind,
                                    const void *arguments, dnnl_engine_t engine)
{
    dnnl_primitive_attr_t attributes;
    EK_DNN_TRY(dnnl_primitive_attr_create(&attributes));
    dnnl_status_t status =
        dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    if (status == dnnl_success)
        status = kind->build(plan, engine, attributes, arguments);
    dnnl_primitive_attr_destroy(attributes);
    return status;
}

/* Returns the plan of a key, which is built on first use; NULL on error. The caller passes the plan
 * to dnn_plan_release when it has run. */
static ek_dnn_plan *dnn_plan_acquire(const ek_dnn_kind *kind, const ek_dnn_key *key,
                                     const void *arguments, dnnl_engine_t engine)
{
    unsigned bucket = dnn_plan_bucket_of(key);
    pthread_mutex_lock(&cache.lock);
    ek_dnn_plan *plan = dnn_plan_find_locked(key, bucket);
    pthread_mutex_unlock(&cache.lock);
    if (plan)
        return plan;

    ek_dnn_plan *made = ek_calloc(1, sizeof *made);
    if (!made)
        return NULL;
    made->key = *key;
    made->users = 1;
    if (dnn_kind_check(kind, arguments, dnn_plan_build(made, kind, arguments, engine)) < 0) {
        dnn_plan_free(made);
        return NULL;
    }
    pthread_mutex_lock(&cache.lock);
    plan = dnn_plan_find_locked(key, bucket); /* another thread may have added the plan */
    if (!plan) {
        if (cache.count >= MAX_PLANS)
            dnn_plan_evict_locked();
        made->last_use = ++cache.clock;
        made->next = cache.buckets[bucket];
        cache.buckets[bucket] = made;
        cache.count++;
    }
    pthread_mutex_unlock(&cache.lock);
    if (!plan)
        return made;
    dnn_plan_free(made);
    return plan;
}

static void dnn_plan_release(ek_dnn_plan *plan)
{
    pthread_mutex_lock(&cache.lock);
    plan->users--;
    pthread_mutex_unlock(&cache.lock);
}

size_t ek_dnn_weight_bytes(const ek_dnn_plan *plan)
{
    return plan->reorder ? ek_round_up(dnnl_memory_desc_get_size(&plan->w)) : 0;
}

static size_t dnn_plan_workspace(const ek_dnn_plan *plan)
{
    /* Primitive and reorder use the same scratch, one after the other. */
    size_t scratch_nbytes = dnnl_memory_desc_get_size(&plan->scratch);
    size_t reorder_nbytes = dnnl_memory_desc_get_size(&plan->reorder_scratch);
    return ek_dnn_weight_bytes(plan) +
           ek_round_up(scratch_nbytes > reorder_nbytes ? scratch_nbytes : reorder_nbytes);
}

typedef struct plan_job {
    const ek_dnn_kind *kind;
    ek_dnn_part *parts;
    char *workspace; /* the parts' workspaces, one after the other */
    dnnl_engine_t engine;
} plan_job;

static void dnn_plan_run_parts(void *context, int64_t begin, int64_t end)
{
    const plan_job *job = context;
    char *workspace = job->workspace;
    for (int64_t i = 0; i < end; workspace += job->parts[i].nbytes, i++) {
        ek_dnn_part *part = &job->parts[i];
        dnnl_stream_t stream;
        if (i < begin)
            continue;
        part->status = dnnl_stream_create(&stream, job->engine, dnnl_stream_default_flags);
        if (part->status != dnnl_success)
            continue;
        part->status = job->kind->run(part->plan, part->arguments, workspace, job->engine, stream);
        dnnl_stream_destroy(stream);
    }
}

/* Acquires the plans of all parts. Returns 1 if all have primitives, 0 if one has none, negative on
 * error. */
static int dnn_plan_acquire_parts(plan_job *job, int count)
{
    job->engine = dnn_cache_engine();
    if (!job->engine)
        return ek_error_pending();
    for (int i = 0; i < count; i++) {
        ek_dnn_part *part = &job->parts[i];
        part->plan = dnn_plan_acquire(job->kind, &part->key, part->arguments, job->engine);
        if (!part->plan)
            return ek_error_pending();
        if (!part->plan->primitive)
            return 0;
        part->nbytes = dnn_plan_workspace(part->plan);
    }
    return 1;
}

/* Returns true if `nbytes` more bytes fit into the device's capacity. */
static bool dnn_plan_has_room(ek_dev *dev, size_t nbytes)
{
    ek_memory_stats stats;
    ek_ledger_read(dev, &stats);
    return !stats.capacity || stats.in_use + nbytes <= stats.capacity;
}

static int dnn_plan_run(ek_dev *dev, plan_job *job, int count)
{
    size_t nbytes = 0;
    void *workspace = NULL;
    for (int i = 0; i < count; i++)
        nbytes += job->parts[i].nbytes;
    if (count > 1 && nbytes && !dnn_plan_has_room(dev, nbytes))
        return 0; /* a single part needs less memory */
    if (nbytes)
        EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &workspace));
    job->workspace = workspace;
    ek_parallel_parts(dev, count, dnn_plan_run_parts, job);
    if (nbytes)
        ek_dev_free(dev, workspace, nbytes, EK_MEMORY_WORKSPACE);
    for (int i = 0; i < count; i++)
        EK_TRY(dnn_kind_check(job->kind, job->parts[i].arguments, job->parts[i].status));
    return 1;
}

int ek_dnn_compute(ek_dev *dev, const ek_dnn_kind *kind, ek_dnn_part *parts, int count)
{
    plan_job job = {.kind = kind, .parts = parts};
    int before = ek_parallel_alone_begin();
    int rc = dnn_plan_acquire_parts(&job, count);
    if (rc > 0)
        rc = dnn_plan_run(dev, &job, count);
    ek_parallel_alone_end(before);
    for (int i = 0; i < count && parts[i].plan; i++)
        dnn_plan_release(parts[i].plan);
    return rc;
}

void ek_dnn_shutdown(void)
{
    pthread_mutex_lock(&cache.lock);
    for (int i = 0; i < BUCKETS; i++) {
        while (cache.buckets[i]) {
            ek_dnn_plan *plan = cache.buckets[i];
            cache.buckets[i] = plan->next;
            dnn_plan_free(plan);
        }
    }
    cache.count = 0;
    if (cache.engine)
        dnnl_engine_destroy(cache.engine);
    cache.engine = NULL;
    pthread_mutex_unlock(&cache.lock);
}
