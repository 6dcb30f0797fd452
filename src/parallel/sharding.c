/* sharding.c: a module's parameters divided over the devices of its replicas. */
#include "parallel/sharding.h"

#include <stdlib.h>
#include <string.h>

#include "autograd/graph.h"
#include "comm/collectives.h"
#include "comm/sum.h"
#include "core/slab.h"

typedef struct part {
    int parameter;
    int owner;          /* index of its device */
    int64_t begin, end; /* elements of the parameter */
    uint64_t published; /* version when all devices had its elements */
    uint64_t unshared;  /* the parameter's version when sending them failed; 0: it didn't */
} part;

struct ek_sharding {
    ek_shard_group group;
    ek_sharding_owner owner; /* user NULL: the division has ended */
    int devices;
    ek_dev *devs[EK_MAX_DEVICES];
    int count;
    ek_tensor **parameters; /* references; NULL: not divided */
    ek_shards **shards;     /* references, by parameter */
    /* Ascending by dtype and parameter: a range is a run of them. */
    part *parts;
    int part_count;
    ek_tensor **there; /* [d * part_count + p]: part p on device d, a reference; on its owner it is
                          the piece */
    /* Room for publishing, which comes after an update and must not fail for want of it. */
    bool *changed;  /* by part */
    ek_move *moves; /* devices * part_count */
};

/* ---- releasing ---- */

static void release_all(ek_tensor **tensors, int count)
{
    for (int i = 0; tensors && i < count; i++)
        ek_object_release(tensors[i]);
    free(tensors);
}

static void sharding_destroy(ek_object *object)
{
    ek_sharding *s = (ek_sharding *)object;
    release_all(s->parameters, s->count);
    release_all(s->there, s->devices * s->part_count);
    free(s->changed);
    free(s->moves);
    free(s->shards);
    free(s->parts);
    free(s);
}

/* ---- dividing ---- */

static bool can_be_divided(const ek_tensor *tensor)
{
    return tensor->requires_grad && !tensor->history && ek_is_dense(tensor) &&
           ek_dtype_is_floating(tensor->dtype);
}

static size_t padded_nbytes(const ek_tensor *tensor)
{
    return (ek_comm_nbytes(tensor) + EK_COMM_ALIGNMENT - 1) / EK_COMM_ALIGNMENT * EK_COMM_ALIGNMENT;
}

/* Where range d begins, of `total` bytes. */
static size_t bound(const ek_sharding *s, size_t total, int d)
{
    return total / EK_COMM_ALIGNMENT * (size_t)d / (size_t)s->devices * EK_COMM_ALIGNMENT;
}

/* Cuts parameter i, which begins at byte `offset` of all of its dtype. */
static void cut(ek_sharding *s, int i, size_t offset, size_t total)
{
    const ek_tensor *parameter = s->parameters[i];
    size_t size = ek_dtype_size(parameter->dtype), end = offset + ek_comm_nbytes(parameter);
    int before = s->part_count, last = s->devices - 1;
    for (int d = 0; d < s->devices; d++) {
        size_t from = bound(s, total, d), to = bound(s, total, d + 1);
        from = from < offset ? offset : from;
        to = to > end ? end : to;
        if (from < to)
            s->parts[s->part_count++] = (part){.parameter = i,
                                               .owner = d,
                                               .begin = (int64_t)((from - offset) / size),
                                               .end = (int64_t)((to - offset) / size)};
    }
    while (last > 0 && bound(s, total, last) > offset)
        last--;
    if (s->part_count == before) /* nothing is somebody's too */
        s->parts[s->part_count++] = (part){.parameter = i, .owner = last};
}

static void cut_all(ek_sharding *s)
{
    for (int dtype = 0; dtype < EK_DTYPES; dtype++) {
        size_t total = 0, offset = 0;
        for (int i = 0; i < s->count; i++)
            if (s->parameters[i] && s->parameters[i]->dtype == (ek_dtype)dtype)
                total += padded_nbytes(s->parameters[i]);
        for (int i = 0; i < s->count; i++) {
            if (!s->parameters[i] || s->parameters[i]->dtype != (ek_dtype)dtype)
                continue;
            cut(s, i, offset, total);
            offset += padded_nbytes(s->parameters[i]);
        }
    }
}

static int make_handles(ek_sharding *s, ek_tensor *const *const *copies)
{
    s->there = ek_calloc((size_t)s->devices * (size_t)s->part_count + 1, sizeof(ek_tensor *));
    if (!s->there)
        return ek_error_pending();
    for (int d = 0; d < s->devices; d++) {
        for (int p = 0; p < s->part_count; p++) {
            const part *own = &s->parts[p];
            const ek_tensor *whole =
                d == 0 ? s->parameters[own->parameter] : copies[d][own->parameter];
            ek_shape shape = {1, {own->end - own->begin}};
            int64_t stride = 1;
            ek_tensor *handle = ek_keep(ek_tensor_member(whole->storage, whole->dtype, &shape,
                                                         &stride, whole->offset + own->begin));
            if (!handle)
                return ek_error_pending();
            handle->requires_grad = d == own->owner;
            s->there[d * s->part_count + p] = handle;
        }
    }
    return 0;
}

static ek_tensor *piece_of(const ek_sharding *s, int p)
{
    return s->there[s->parts[p].owner * s->part_count + p];
}

/* Slots for the gradients of one device's parts of one dtype: `list` has room for their handles. */
static int make_slots(ek_sharding *s, int d, ek_dtype dtype, ek_tensor **list)
{
    int count = 0;
    for (int p = 0; p < s->part_count; p++)
        if (s->parts[p].owner == d && piece_of(s, p)->dtype == dtype)
            list[count++] = piece_of(s, p);
    if (count == 0)
        return 0;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_GRADIENT);
    ek_slab *slab = ek_slab_new(s->devs[d], list, count);
    ek_memory_set_category(before);
    int rc = slab ? 0 : ek_error_pending();
    for (int k = 0; k < count && rc >= 0; k++)
        rc = ek_leaf_set_grad_slot(list[k], slab->members[k]);
    ek_object_release(slab);
    return rc;
}

static int make_all_slots(ek_sharding *s)
{
    ek_tensor **list = ek_calloc((size_t)s->part_count + 1, sizeof(ek_tensor *));
    int rc = list ? 0 : ek_error_pending();
    for (int d = 0; d < s->devices && rc >= 0; d++)
        for (int dtype = 0; dtype < EK_DTYPES && rc >= 0; dtype++)
            rc = make_slots(s, d, (ek_dtype)dtype, list);
    free(list);
    return rc;
}

static int make_shards(ek_sharding *s)
{
    for (int p = 0, count; p < s->part_count; p += count) {
        int i = s->parts[p].parameter;
        for (count = 1; p + count < s->part_count && s->parts[p + count].parameter == i;)
            count++;
        s->shards[i] = ek_shards_new(&s->group, count);
        if (!s->shards[i])
            return ek_error_pending();
        for (int k = 0; k < count; k++)
            s->shards[i]->shards[k] = (ek_shard){s->parts[p + k].begin, s->parts[p + k].end,
                                                 ek_object_retain(piece_of(s, p + k))};
    }
    return 0;
}

static int make_room(ek_sharding *s)
{
    size_t parts = (size_t)s->part_count + 1, devices = (size_t)s->devices;
    s->changed = ek_calloc(parts, sizeof *s->changed);
    s->moves = ek_calloc(devices * parts, sizeof *s->moves);
    return s->changed && s->moves ? 0 : ek_error_pending();
}

static int divide(ek_sharding *s, ek_tensor *const *const *copies)
{
    cut_all(s);
    EK_TRY(make_room(s));
    ek_scope scope = ek_scope_begin();
    int rc = make_handles(s, copies);
    ek_scope_end(&scope);
    if (rc >= 0)
        rc = make_all_slots(s);
    if (rc >= 0)
        rc = make_shards(s);
    for (int i = 0; i < s->count && rc >= 0; i++)
        if (s->shards[i])
            rc = ek_leaf_set_shards(s->parameters[i], s->shards[i]);
    for (int p = 0; p < s->part_count && rc >= 0; p++)
        s->parts[p].published = ek_tensor_version(piece_of(s, p));
    return rc;
}

static int check_whole(const char *path, ek_tensor *tensor, void *user)
{
    (void)user;
    if (!tensor->shards)
        return 0;
    return EK_FAIL(EK_E_STATE,
                   "parameter \"%s\" is divided by another wrapper, which must be freed before "
                   "this one can divide it",
                   path);
}

/* ---- the optimizer's ---- */

static int sharding_enter(ek_shard_group *group)
{
    ek_sharding *s = (ek_sharding *)group;
    return s->owner.user ? ek_call_guard_enter(s->owner.guard, "the sharded model") : 0;
}

static void sharding_leave(ek_shard_group *group)
{
    ek_sharding *s = (ek_sharding *)group;
    if (s->owner.user)
        ek_call_guard_leave(s->owner.guard);
}

static int sharding_refresh(ek_shard_group *group)
{
    ek_sharding *s = (ek_sharding *)group;
    if (!s->owner.user)
        return 0;
    EK_TRY(ek_sharding_publish(s));
    return s->owner.refresh(s->owner.user);
}

static int sharding_publish(ek_shard_group *group)
{
    return ek_sharding_publish((ek_sharding *)group);
}

ek_sharding *ek_sharding_new(ek_module *module, ek_dev *const *devs, int devices,
                             ek_tensor *const *parameters, int count,
                             ek_tensor *const *const *copies, ek_sharding_owner owner)
{
    if (ek_module_parameters(module, check_whole, NULL) < 0)
        return NULL;
    ek_sharding *s = ek_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    ek_object_init(&s->group.object, sharding_destroy);
    s->group.enter = sharding_enter;
    s->group.leave = sharding_leave;
    s->group.refresh = sharding_refresh;
    s->group.publish = sharding_publish;
    s->owner = owner;
    s->devices = devices;
    memcpy(s->devs, devs, (size_t)devices * sizeof *devs);
    s->parameters = ek_calloc((size_t)count + 1, sizeof(ek_tensor *));
    s->shards = ek_calloc((size_t)count + 1, sizeof *s->shards);
    /* A bound cuts one parameter of its dtype in two. */
    s->parts = ek_calloc((size_t)count + (size_t)devices * EK_DTYPES, sizeof *s->parts);
    int rc = s->parameters && s->shards && s->parts ? 0 : ek_error_pending();
    s->count = rc < 0 ? 0 : count;
    for (int i = 0; i < s->count; i++)
        if (can_be_divided(parameters[i]))
            s->parameters[i] = ek_object_retain(parameters[i]);
    if (rc >= 0)
        rc = divide(s, copies);
    if (rc >= 0)
        return s;
    ek_sharding_end(s);
    return NULL;
}

bool ek_sharding_is_current(const ek_sharding *s)
{
    for (int i = 0; i < s->count; i++)
        if (s->shards[i] && s->parameters[i]->shards != &s->shards[i]->object)
            return false;
    return true;
}

bool ek_sharding_has(const ek_sharding *s, int parameter)
{
    return s && parameter < s->count && s->shards[parameter];
}

/* ---- gradients: nodes that bring those of replicas to their owners ---- */

/* One forward while its nodes are recorded, and room for a bucket. */
typedef struct recording {
    const ek_sharding *sharding;
    const ek_sharding_forward *forward;
    ek_dev *devs[EK_MAX_DEVICES]; /* in order of summation */
    int order[EK_MAX_DEVICES];    /* their places in the forward's list of devices */
    int *indices;                 /* the bucket's parameters, descending */
    int count;
    ek_tensor **like, **out, **inputs;
    ek_piece *pieces;
} recording;

static int record_bucket(recording *r)
{
    const ek_sharding_forward *f = r->forward;
    int n = r->count, pieces = 0;
    for (int k = 0; k < n; k++) {
        int i = r->indices[n - 1 - k];
        const ek_shards *shards = ek_leaf_shards(f->parameters[i]);
        r->like[k] = f->parameters[i];
        for (int j = 0; j < shards->count; j++) {
            const ek_shard *shard = &shards->shards[j];
            shard->piece->requires_grad = true; /* as the parameter does */
            r->inputs[pieces] = shard->piece;
            r->pieces[pieces++] =
                (ek_piece){k, shard->begin, shard->end, ek_tensor_dev(shard->piece)};
        }
        for (int d = 0; d < f->devices; d++)
            r->out[d * n + k] = f->handles[r->order[d] * f->stride + i];
    }
    r->count = 0;
    ek_division division = {r->devs, f->devices, r->like, n, r->pieces, pieces};
    return n ? ek_comm_record_all_gather(&division, r->inputs, r->out) : 0;
}

/* The device that owns all of a parameter, or NULL. */
static const ek_dev *owner_of(const ek_tensor *parameter)
{
    const ek_shards *shards = ek_leaf_shards(parameter);
    return shards->count == 1 ? ek_tensor_dev(shards->shards[0].piece) : NULL;
}

static int record_dtype(recording *r, ek_dtype dtype)
{
    size_t nbytes = 0, limit = EK_FIRST_BUCKET_BYTES;
    const ek_dev *owner = NULL;
    for (int i = r->forward->parameter_count - 1; i >= 0; i--) {
        const ek_tensor *parameter = r->forward->parameters[i];
        if (!ek_sharding_has(r->sharding, i) || !parameter->requires_grad ||
            parameter->dtype != dtype)
            continue;
        const ek_dev *own = owner_of(parameter);
        if (r->count && (nbytes >= limit || !own || own != owner)) {
            EK_TRY(record_bucket(r));
            limit = EK_BUCKET_BYTES;
            nbytes = 0;
        }
        owner = own;
        r->indices[r->count++] = i;
        nbytes += ek_comm_nbytes(parameter);
    }
    return record_bucket(r);
}

int ek_sharding_record(const ek_sharding *sharding, const ek_sharding_forward *forward)
{
    size_t count = (size_t)forward->parameter_count + 1, pieces = 1;
    for (int i = 0; i < forward->parameter_count; i++)
        if (ek_sharding_has(sharding, i))
            pieces += (size_t)ek_leaf_shards(forward->parameters[i])->count;
    recording r = {.sharding = sharding, .forward = forward};
    ek_comm_sum_order(forward->devs, forward->devices, forward->home, r.order);
    for (int d = 0; d < forward->devices; d++)
        r.devs[d] = forward->devs[r.order[d]];
    r.indices = ek_calloc(count, sizeof *r.indices);
    r.like = ek_calloc(count, sizeof *r.like);
    r.out = ek_calloc(count * (size_t)forward->devices, sizeof *r.out);
    r.inputs = ek_calloc(pieces, sizeof *r.inputs);
    r.pieces = ek_calloc(pieces, sizeof *r.pieces);
    int rc = r.indices && r.like && r.out && r.inputs && r.pieces ? 0 : ek_error_pending();
    for (int dtype = 0; dtype < EK_DTYPES && rc >= 0; dtype++)
        rc = record_dtype(&r, (ek_dtype)dtype);
    free(r.indices);
    free(r.like);
    free(r.out);
    free(r.inputs);
    free(r.pieces);
    return rc;
}

/* ---- publishing ---- */

/* Each device gets what it lacks of the others, and not all from the same at once. */
static int deliver(const ek_sharding *s)
{
    int count = 0;
    for (int d = 0; d < s->devices; d++) {
        for (int k = 1; k < s->devices; k++) {
            int owner = (d + k) % s->devices;
            for (int p = 0; p < s->part_count; p++)
                if (s->changed[p] && s->parts[p].owner == owner)
                    s->moves[count++] = (ek_move){s->there[d * s->part_count + p], piece_of(s, p)};
        }
    }
    return ek_exchange("sharing the step", s->moves, count);
}

/* Notes what was delivered, or with status < 0 may have been. */
static void note(ek_sharding *s, int status)
{
    int noted = -1;
    for (int p = 0; p < s->part_count; p++) {
        if (!s->changed[p])
            continue;
        if (status >= 0)
            s->parts[p].published = ek_tensor_version(piece_of(s, p));
        if (s->parts[p].parameter != noted)
            s->owner.published(s->owner.user, s->parts[p].parameter, status);
        noted = s->parts[p].parameter;
        s->parts[p].unshared = status < 0 ? ek_tensor_version(s->parameters[noted]) : 0;
    }
}

/* True if the part has elements that others lack. Those that could not be sent are given up
 * where the parameter was written since (by a checkpoint). */
static bool is_changed(ek_sharding *s, int p)
{
    part *own = &s->parts[p];
    if (own->unshared && own->unshared != ek_tensor_version(s->parameters[own->parameter])) {
        own->published = ek_tensor_version(piece_of(s, p));
        own->unshared = 0;
    }
    return ek_tensor_version(piece_of(s, p)) != own->published;
}

int ek_sharding_publish(ek_sharding *s)
{
    const int before = ek_error_status();
    if (!s || !s->owner.user)
        return 0;
    for (int p = 0; p < s->part_count; p++)
        s->changed[p] = is_changed(s, p);
    int rc = deliver(s);
    note(s, rc);
    if (rc < 0)
        ek_error_prefix(before, "sharing the optimizer's step");
    return rc;
}

/* ---- the end ---- */

/* Without memory for the whole gradient there is none afterwards. */
static void make_whole(ek_tensor *leaf)
{
    int pending = ek_error_status();
    if (ek_leaf_set_shards(leaf, NULL) >= 0)
        return;
    ek_leaf_drop_piece_gradients(leaf);
    ek_tensor_set_grad(leaf, NULL);
    ek_leaf_set_shards(leaf, NULL);
    ek_log_line(EK_LOG_WARNING,
                "the gradient of a parameter that is divided no more was dropped: "
                "%s has no memory for it",
                ek_tensor_dev(leaf)->name);
    if (pending == 0)
        ek_error_clear();
}

/* A share that failed is tried once more: afterwards parameters are all that is left. */
static void share_the_rest(ek_sharding *s)
{
    int pending = ek_error_status();
    if (!s->there || ek_sharding_publish(s) >= 0)
        return;
    ek_log_line(EK_LOG_WARNING, "parameters that are divided no more miss a step of some devices: "
                                "it could not be shared");
    if (pending == 0)
        ek_error_clear();
}

void ek_sharding_end(ek_sharding *s)
{
    if (!s)
        return;
    share_the_rest(s);
    s->owner.user = NULL;
    for (int i = 0; i < s->count && s->shards; i++) {
        if (s->shards[i] && s->parameters[i]->shards == &s->shards[i]->object)
            make_whole(s->parameters[i]);
        ek_object_release(s->shards[i]); /* which has a reference to this */
        s->shards[i] = NULL;
    }
    ek_object_release(s);
}
