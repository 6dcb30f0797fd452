/* sharding.c: shards a module's parameters over the devices of its replicas. */
#include "parallel/sharding.h"

#include <stdlib.h>
#include <string.h>

#include "autograd/graph.h"
#include "comm/exchange.h"
#include "core/slab.h"
#include "parallel/replica_copies.h"

/* What a sharding knows of a shard. */
typedef struct part {
    int parameter;
    int owner;          /* index of the device that owns the shard */
    uint64_t published; /* version of the shard when all devices had its elements */
    uint64_t unshared;  /* version of the parameter when sending the shard failed; 0: sent */
    bool changed;       /* true, while publishing, if other devices lack elements */
} part;

struct ek_sharding {
    /* Shards are sorted by dtype and parameter: a device's range of a dtype is a run of them. */
    ek_flat flat;
    ek_sharding_owner owner;
    int devices;
    ek_dev *devs[EK_MAX_DEVICES];
    ek_tensor **parameters; /* one reference each; NULL if not sharded */
    part *parts;            /* owned; one per shard */
    /* there[d * shards + p] is shard p on device d, one reference; on the owner it is the leaf. */
    ek_tensor **there;
    /* Room for devices * shards moves, because publishing must not fail for want of memory. */
    ek_move *moves;
};

/* ---- releasing ---- */

static void sharding_destroy(ek_object *object)
{
    ek_sharding *s = (ek_sharding *)object;
    ek_tensors_release(s->parameters, s->flat.count);
    ek_tensors_release(s->there, s->devices * s->flat.shard_count);
    ek_flat_clear(&s->flat);
    free(s->moves);
    free(s->parts);
    free(s);
}

/* ---- cutting ---- */

static bool parameter_can_be_sharded(const ek_tensor *tensor)
{
    return tensor->requires_grad && !tensor->history && ek_is_dense(tensor) &&
           ek_dtype_is_floating(tensor->dtype);
}

/* The begin of device d's range, in elements of `total`: a multiple of a slab's alignment. */
static int64_t sharding_begin_of(const ek_sharding *s, ek_dtype dtype, int64_t total, int d)
{
    int64_t unit = ek_slab_pitch(dtype, 1);
    return total / unit * d / s->devices * unit;
}

static void sharding_add(ek_sharding *s, int i, int owner, int64_t end)
{
    s->parts[s->flat.shard_count] = (part){.parameter = i, .owner = owner};
    ek_flat_add(&s->flat, i, end, NULL);
}

/* Cuts parameter i, which begins at element `offset` of all `total` elements of its dtype. */
static void sharding_cut_parameter(ek_sharding *s, int i, int64_t offset, int64_t total)
{
    ek_dtype dtype = s->parameters[i]->dtype;
    int64_t count = ek_count(s->parameters[i]), covered = 0;
    int first = 0;
    for (int d = 0; d < s->devices; d++) {
        int64_t end = sharding_begin_of(s, dtype, total, d + 1) - offset;
        end = end > count ? count : end;
        if (sharding_begin_of(s, dtype, total, d) <= offset)
            first = d;
        if (end > covered)
            sharding_add(s, i, d, covered = end);
    }
    if (count == 0) /* an empty parameter has an owner too */
        sharding_add(s, i, first, 0);
}

static void sharding_cut(ek_sharding *s)
{
    for (int k = 0; k < EK_DTYPES; k++) {
        ek_dtype dtype = (ek_dtype)k;
        int64_t total = 0, offset = 0;
        for (int pass = 0; pass < 2; pass++) {
            for (int i = 0; i < s->flat.count; i++) {
                if (!s->parameters[i] || s->parameters[i]->dtype != dtype)
                    continue;
                int64_t pitch = ek_slab_pitch(dtype, ek_count(s->parameters[i]));
                if (pass == 1)
                    sharding_cut_parameter(s, i, offset, total);
                *(pass == 0 ? &total : &offset) += pitch;
            }
        }
    }
}

/* Makes a handle for every shard on every device: there[d * shard_count + k] is shard k on devs[d].
 * copies[d][i] is the replica of parameter i on devs[d], for d > 0. */
static int sharding_make_handles(ek_sharding *s, ek_tensor *const *const *copies)
{
    int count = s->flat.shard_count;
    s->there = ek_calloc((size_t)s->devices * (size_t)count + 1, sizeof(ek_tensor *));
    s->moves = ek_calloc((size_t)s->devices * (size_t)count + 1, sizeof *s->moves);
    if (!s->there || !s->moves)
        return ek_error_pending();
    for (int k = 0; k < s->devices * count; k++) {
        int d = k / count, i = s->parts[k % count].parameter;
        const ek_tensor *whole = d == 0 ? s->parameters[i] : copies[d][i];
        ek_shard *shard = &s->flat.shards[k % count];
        s->there[k] = ek_keep(ek_comm_flat(whole, shard->begin, shard->end));
        if (!s->there[k])
            return ek_error_pending();
        if (d != s->parts[k % count].owner)
            continue;
        s->there[k]->requires_grad = true;
        shard->tensor = ek_object_retain(s->there[k]);
        s->parts[k % count].published = ek_tensor_version(shard->tensor);
    }
    return 0;
}

/* Gives the shards of each device room for their gradients, in slabs. `list` is room for a list of
 * shards and a list of gradients. */
static int sharding_make_gradients(const ek_sharding *s, ek_tensor **list)
{
    int count = s->flat.shard_count, rc = 0;
    ek_tensor **own = list, **gradients = list + count;
    for (int d = 0; d < s->devices && rc >= 0; d++) {
        for (int p = 0; p < count; p++)
            own[p] = s->parts[p].owner == d ? s->flat.shards[p].tensor : NULL;
        rc = ek_copies_slabs_make(s->devs[d], own, count, EK_MEMORY_GRADIENT, gradients);
        for (int p = 0; p < count && rc >= 0; p++)
            if (own[p])
                rc = ek_leaf_set_grad_buffer(own[p], gradients[p]);
    }
    for (int p = 0; p < count; p++)
        ek_object_release(gradients[p]);
    return rc;
}

static int sharding_make(ek_sharding *s, ek_tensor *const *const *copies)
{
    sharding_cut(s);
    ek_scope scope = ek_scope_begin();
    int rc = sharding_make_handles(s, copies);
    ek_scope_end(&scope);
    ek_tensor **list = ek_calloc(2 * (size_t)s->flat.shard_count + 1, sizeof(ek_tensor *));
    if (rc >= 0)
        rc = list ? sharding_make_gradients(s, list) : ek_error_pending();
    free(list);
    for (int i = 0; i < s->flat.count && rc >= 0; i++)
        if (s->parameters[i])
            rc = ek_leaf_set_shards(s->parameters[i], &s->flat, i);
    return rc;
}

static int parameter_check_whole(const char *path, ek_tensor *tensor, void *user)
{
    (void)user;
    if (!tensor->flat)
        return 0;
    return EK_FAIL(EK_E_STATE,
                   "parameter \"%s\" is sharded by another wrapper, which must be freed before "
                   "this one can shard it",
                   path);
}

/* ---- what the optimizer calls ---- */

static int sharding_enter(ek_flat *flat)
{
    return ek_call_guard_enter(((ek_sharding *)flat)->owner.guard, "the sharded model");
}

static void sharding_leave(ek_flat *flat)
{
    ek_call_guard_leave(((ek_sharding *)flat)->owner.guard);
}

static int sharding_refresh(ek_flat *flat)
{
    const ek_sharding *s = (ek_sharding *)flat;
    EK_TRY(ek_sharding_publish((ek_sharding *)flat));
    return s->owner.refresh(s->owner.user);
}

static int sharding_publish(ek_flat *flat, int status)
{
    (void)status;
    return ek_sharding_publish((ek_sharding *)flat);
}

ek_sharding *ek_sharding_new(ek_module *module, ek_dev *const *devs, int devices,
                             ek_tensor *const *parameters, int count,
                             ek_tensor *const *const *copies, ek_sharding_owner owner)
{
    if (ek_module_parameters(module, parameter_check_whole, NULL) < 0)
        return NULL;
    ek_sharding *s = ek_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    /* Each bound between two devices may cut one parameter per dtype. */
    int most = count + devices * EK_DTYPES;
    ek_object_init(&s->flat.object, sharding_destroy);
    s->flat.enter = sharding_enter;
    s->flat.leave = sharding_leave;
    s->flat.refresh = sharding_refresh;
    s->flat.publish = sharding_publish;
    s->owner = owner;
    s->devices = devices;
    memcpy(s->devs, devs, (size_t)devices * sizeof *devs);
    s->parameters = ek_calloc((size_t)count + 1, sizeof(ek_tensor *));
    s->parts = ek_calloc((size_t)most, sizeof *s->parts);
    int rc = s->parameters && s->parts ? ek_flat_init(&s->flat, count, most) : ek_error_pending();
    for (int i = 0; i < count && rc >= 0; i++)
        if (parameter_can_be_sharded(parameters[i]))
            s->parameters[i] = ek_object_retain(parameters[i]);
    if (rc >= 0)
        rc = sharding_make(s, copies);
    if (rc >= 0)
        return s;
    ek_sharding_end(s);
    return NULL;
}

bool ek_sharding_is_current(const ek_sharding *s)
{
    for (int i = 0; i < s->flat.count; i++)
        if (s->parameters[i] && s->parameters[i]->flat != &s->flat.object)
            return false;
    return true;
}

bool ek_sharding_has(const ek_sharding *s, int parameter)
{
    return s && parameter < s->flat.count && s->parameters[parameter];
}

/* ---- publishing ---- */

/* Sends every device the changed shards that it lacks. Each device begins with another owner, so
 * that not all read from the same device at once. */
static int sharding_deliver(const ek_sharding *s)
{
    int count = 0, shards = s->flat.shard_count;
    for (int d = 0; d < s->devices; d++) {
        for (int k = 1; k < s->devices; k++) {
            int owner = (d + k) % s->devices;
            for (int p = 0; p < shards; p++)
                if (s->parts[p].changed && s->parts[p].owner == owner)
                    s->moves[count++] =
                        (ek_move){s->there[d * shards + p], s->flat.shards[p].tensor};
        }
    }
    return ek_exchange("sharing the step", s->moves, count);
}

/* True if the shard has elements that other devices lack. Elements that could not be sent are given
 * up if the parameter was written since (by a checkpoint). */
static bool part_is_changed(const ek_sharding *s, int p)
{
    part *own = &s->parts[p];
    uint64_t now = ek_tensor_version(s->flat.shards[p].tensor);
    if (own->unshared && own->unshared != ek_tensor_version(s->parameters[own->parameter])) {
        own->published = now;
        own->unshared = 0;
    }
    return now != own->published;
}

int ek_sharding_publish(ek_sharding *s)
{
    const int before = ek_error_status();
    if (!s)
        return 0;
    for (int p = 0; p < s->flat.shard_count; p++)
        s->parts[p].changed = part_is_changed(s, p);
    int rc = sharding_deliver(s), noted = -1;
    /* Notes what was delivered, or after an error may have been. */
    for (int p = 0; p < s->flat.shard_count; p++) {
        part *own = &s->parts[p];
        if (!own->changed)
            continue;
        if (rc >= 0)
            own->published = ek_tensor_version(s->flat.shards[p].tensor);
        if (own->parameter != noted)
            s->owner.published(s->owner.user, own->parameter, rc);
        noted = own->parameter;
        own->unshared = rc < 0 ? ek_tensor_version(s->parameters[noted]) : 0;
    }
    if (rc < 0)
        ek_error_prefix(before, "sharing the optimizer's step");
    return rc;
}

/* ---- the end of a sharding ---- */

/* Makes the parameter whole. Drops its gradient if there is no memory for the whole one. */
static void parameter_make_whole(ek_tensor *leaf)
{
    int pending = ek_error_status();
    if (ek_leaf_set_shards(leaf, NULL, 0) >= 0)
        return;
    ek_leaf_drop_shard_gradients(leaf);
    ek_tensor_set_grad(leaf, NULL);
    ek_leaf_set_shards(leaf, NULL, 0);
    ek_log_line(EK_LOG_WARNING,
                "the gradient of a parameter that is sharded no more was dropped: "
                "%s has no memory for it",
                ek_tensor_dev(leaf)->name);
    if (pending == 0)
        ek_error_clear();
}

/* Tries once more to share a step that could not be shared: the shards are about to be dropped. */
static void sharding_share_the_rest(ek_sharding *s)
{
    int pending = ek_error_status();
    if (!s->there || ek_sharding_publish(s) >= 0)
        return;
    ek_log_line(EK_LOG_WARNING, "parameters that are sharded no more miss a step of some devices: "
                                "it could not be shared");
    if (pending == 0)
        ek_error_clear();
}

void ek_sharding_end(ek_sharding *s)
{
    if (!s)
        return;
    sharding_share_the_rest(s);
    for (int i = 0; i < s->flat.count; i++)
        if (s->parameters[i] && s->parameters[i]->flat == &s->flat.object)
            parameter_make_whole(s->parameters[i]);
    ek_object_release(s);
}
