/* sharding.c: see sharding.h. */
#include "parallel/sharding.h"

#include <stdlib.h>
#include <string.h>

#include "autograd/graph.h"
#include "core/slab.h"
#include "parallel/replica_copies.h"

/* ---- room ---- */

int ek_sharding_init(ek_sharding *s, int count, int buckets, ek_dev *const *devs, int devices)
{
    /* Every boundary between two owners may cut one leaf of a bucket in two. */
    int most = count + buckets * (devices + 1);
    size_t leaves = (size_t)count + 1;
    s->devices = devices;
    s->bucket_count = buckets;
    memcpy(s->devs, devs, (size_t)devices * sizeof *devs);
    s->leaves = ek_calloc(leaves, sizeof(ek_tensor *));
    s->bucket_of = ek_calloc(leaves, sizeof *s->bucket_of);
    s->at = ek_calloc(leaves, sizeof *s->at);
    s->buckets = ek_calloc((size_t)buckets + 1, sizeof *s->buckets);
    s->parts = ek_calloc((size_t)most + 1, sizeof *s->parts);
    EK_TRY(ek_shards_init(&s->shards, count, most));
    return s->leaves && s->bucket_of && s->at && s->buckets && s->parts ? 0 : ek_error_pending();
}

void ek_sharding_clear(ek_sharding *s)
{
    ek_gathering_free(s->gathering);
    ek_slices_clear(s);
    for (int k = 0; k < s->shards.count; k++)
        ek_object_release(s->parts[k].home);
    ek_tensors_release(s->there, s->targets * s->shards.count);
    ek_tensors_release(s->leaves, s->shards.leaf_count);
    ek_shards_clear(&s->shards);
    free(s->parts);
    free(s->buckets);
    free(s->bucket_of);
    free(s->at);
    free(s->moves);
}

/* ---- making shards ---- */

static bool shard_is_empty(const ek_shard *shard)
{
    return shard->end == shard->begin;
}

ek_dev *ek_sharding_dev(const ek_sharding *s, int d)
{
    return s->owner.host ? s->owner.host : s->devs[d];
}

/* Returns true if the shard lies on the host; with ranks, if the shard lies on another device than
 * its leaf. An empty shard of ranks needs memory on the host only. */
static bool sharding_needs_memory(const ek_sharding *s, int k)
{
    const ek_dev *dev = ek_sharding_dev(s, s->parts[k].device);
    if (!s->shards.ranks)
        return s->owner.host;
    if (!s->owner.host && shard_is_empty(&s->shards.all[k]))
        return false;
    return dev && dev != ek_tensor_dev(s->leaves[s->parts[k].leaf]);
}

/* Returns the shard's elements of tensors[leaf]. With ranks an empty shard lies where its bucket
 * begins, so that empty shards are neighbours and the optimizer steps them together. */
static ek_tensor *sharding_view(const ek_sharding *s, ek_tensor *const *tensors, int k)
{
    const ek_shard *shard = &s->shards.all[k];
    int leaf = s->parts[k].leaf;
    return s->shards.ranks && shard_is_empty(shard)
               ? ek_comm_flat(tensors[s->buckets[s->bucket_of[leaf]].first], 0, 0)
               : ek_comm_flat(tensors[leaf], shard->begin, shard->end);
}

/* Makes a slab for those shards of device d that `room` lists. */
static int sharding_make_slab(const ek_sharding *s, int d, ek_memory_category category,
                              ek_tensor *const *room, ek_tensor **members)
{
    ek_dev *dev = ek_sharding_dev(s, d);
    ek_dev *reader = s->owner.host ? s->devs[d] : NULL;
    return dev ? ek_copies_slabs_make(dev, reader, room, s->shards.count, category, members) : 0;
}

/* Makes memory for shards that need it, and writes it to `own`. `room` has room for a list of all
 * shards. */
static int sharding_make_memory(const ek_sharding *s, ek_tensor **room, ek_tensor **own)
{
    for (int d = 0; d < s->devices; d++) {
        for (int k = 0; k < s->shards.count; k++) {
            bool needs = s->parts[k].device == d && sharding_needs_memory(s, k);
            room[k] = needs ? sharding_view(s, s->leaves, k) : NULL;
            if (needs && !room[k])
                return ek_error_pending();
        }
        EK_TRY(sharding_make_slab(s, d, EK_MEMORY_PARAMETER, room, own));
    }
    return 0;
}

/* Sets the shard's tensor (`own` if it isn't NULL) and makes the handles on its targets. */
static int sharding_make_shard(ek_sharding *s, int k, ek_tensor *const *const *targets,
                               ek_tensor *own)
{
    ek_sharding_part *part = &s->parts[k];
    ek_shard *shard = &s->shards.all[k];
    bool in_leaves = own || s->shards.ranks || s->targets == 0;
    ek_tensor *const *lists = in_leaves ? s->leaves : targets[part->device];
    ek_tensor *home = sharding_view(s, lists, k);
    ek_scope scope = ek_scope_begin(); /* what another sharding gathers is held one by one */
    int rc = !home ? ek_error_pending() : own ? ek_comm_copy(own, home) : 0;
    ek_scope_end(&scope);
    EK_TRY(rc);
    part->home = own && s->targets > 0 ? ek_keep(home) : NULL;
    shard->tensor = own ? ek_object_retain(own) : ek_keep(home);
    shard->tensor->requires_grad = s->leaves[part->leaf]->requires_grad;
    part->seen = ek_tensor_version(s->leaves[part->leaf]);
    part->version = ek_tensor_version(shard->tensor);
    for (int t = 0; t < s->targets; t++) {
        ek_tensor **there = &s->there[t * s->shards.count + k];
        bool lies_there = targets[t] == lists && !own;
        *there = ek_keep(lies_there ? shard->tensor : sharding_view(s, targets[t], k));
        if (!*there)
            return ek_error_pending();
    }
    return 0;
}

/* Gives the shards their grad buffers. If gradients arrive at the leaf and the shard lies on its
 * device, the buffer is a range of the leaf's grad buffer; otherwise it lies in a slab, unless
 * `buffers` has it already. */
static int sharding_make_gradients(const ek_sharding *s, ek_tensor **room, ek_tensor **buffers)
{
    int rc = 0;
    for (int d = 0; d < s->devices && rc >= 0 && s->targets > 0; d++) {
        for (int k = 0; k < s->shards.count; k++) {
            bool in_slab = !s->shards.ranks || s->parts[k].home;
            ek_tensor *shard = s->shards.all[k].tensor;
            room[k] = in_slab && shard->requires_grad && s->parts[k].device == d ? shard : NULL;
        }
        rc = sharding_make_slab(s, d, EK_MEMORY_GRADIENT, room, buffers);
    }
    for (int i = 0; i < s->shards.leaf_count && s->shards.ranks && s->targets > 0; i++)
        room[i] = s->leaves[i]->grad_buffer;
    for (int k = 0; k < s->shards.count && rc >= 0; k++) {
        if (!s->shards.all[k].tensor->requires_grad)
            continue;
        ek_tensor *buffer = buffers[k] ? buffers[k] : sharding_view(s, room, k);
        rc = buffer ? ek_leaf_set_grad_buffer(s->shards.all[k].tensor, buffer) : ek_error_pending();
    }
    return rc;
}

static int sharding_make_all(ek_sharding *s, ek_tensor *const *const *targets, ek_tensor **room)
{
    const int count = s->shards.count;
    ek_tensor **own = room + count, **buffers = own + count;
    EK_TRY(s->targets > 0 ? sharding_make_memory(s, room, own) : ek_slices_make(s, own, buffers));
    for (int k = 0; k < count; k++)
        EK_TRY(sharding_make_shard(s, k, targets, own[k]));
    return sharding_make_gradients(s, room, buffers);
}

/* Shards a leaf; with NULL makes it whole. If gradients arrive at the leaf, the leaf keeps its grad
 * buffer and its gradient, which is this rank's and which the next pass averages. */
static int sharding_set(const ek_sharding *s, int leaf, ek_shards *shards)
{
    ek_tensor *tensor = s->leaves[leaf];
    if (!s->shards.ranks)
        return ek_leaf_set_shards(tensor, shards, leaf);
    ek_tensor *buffer = ek_object_retain(tensor->grad_buffer);
    ek_tensor *gradient = ek_object_retain(tensor->grad);
    int rc = ek_tensor_set_grad(tensor, NULL);
    rc = rc < 0 ? rc : ek_leaf_set_shards(tensor, shards, leaf);
    rc = rc < 0 ? rc : ek_leaf_set_grad_buffer(tensor, buffer);
    rc = rc < 0 ? rc : ek_tensor_set_grad(tensor, gradient);
    ek_object_release(gradient);
    ek_object_release(buffer);
    return rc;
}

/* ---- what the optimizer calls ---- */

static int sharding_enter(ek_shards *shards)
{
    return ek_call_guard_enter(((ek_sharding *)shards)->owner.guard, "the sharded model");
}

static void sharding_leave(ek_shards *shards)
{
    ek_call_guard_leave(((ek_sharding *)shards)->owner.guard);
}

static int sharding_refresh(ek_shards *shards)
{
    ek_sharding *s = (ek_sharding *)shards;
    if (!shards->ranks)
        EK_TRY(ek_sharding_publish(s));
    if (s->gathering)
        return ek_gathering_settle(s->gathering);
    if (!shards->ranks)
        EK_TRY(s->owner.refresh(s->owner.user));
    for (int k = 0; k < shards->count; k++) {
        ek_sharding_part *part = &s->parts[k];
        uint64_t now = ek_tensor_version(s->leaves[part->leaf]);
        if (part->home && part->seen != now)
            EK_TRY(ek_comm_copy(shards->all[k].tensor, part->home));
        part->seen = now;
    }
    return 0;
}

static int sharding_publish(ek_shards *shards, int status)
{
    (void)status;
    return ek_sharding_publish((ek_sharding *)shards);
}

int ek_sharding_make(ek_sharding *s, ek_tensor *const *const *targets, int count)
{
    ek_sharding_cut(s);
    s->targets = count;
    s->shards.enter = sharding_enter;
    s->shards.leave = sharding_leave;
    s->shards.refresh = sharding_refresh;
    s->shards.publish = sharding_publish;
    size_t shards = (size_t)s->shards.count + 1;
    s->there = ek_calloc((size_t)count * shards + 1, sizeof(ek_tensor *));
    s->moves = ek_calloc((size_t)count * shards + 1, sizeof *s->moves);
    ek_tensor **room = ek_calloc(3 * shards, sizeof(ek_tensor *));
    int rc =
        s->there && s->moves && room ? sharding_make_all(s, targets, room) : ek_error_pending();
    for (int k = s->shards.count; room && k < 3 * s->shards.count; k++)
        ek_object_release(room[k]);
    free(room);
    for (int i = 0; i < s->shards.leaf_count && rc >= 0; i++)
        if (s->leaves[i])
            rc = sharding_set(s, i, &s->shards);
    return rc;
}

bool ek_sharding_is_current(const ek_sharding *s)
{
    for (int i = 0; i < s->shards.leaf_count; i++)
        if (s->leaves[i] && s->leaves[i]->shards != &s->shards.object)
            return false;
    return true;
}

bool ek_sharding_has(const ek_sharding *s, int leaf)
{
    return s && leaf < s->shards.leaf_count && s->leaves[leaf];
}

/* ---- publishing ---- */

/* Returns true if the shard has elements that weren't sent yet. If the leaf was written since (by a
 * checkpoint), unsent elements are dropped. */
static bool sharding_is_changed(const ek_sharding *s, int k)
{
    ek_sharding_part *part = &s->parts[k];
    uint64_t now = ek_tensor_version(s->shards.all[k].tensor);
    if (s->shards.ranks)
        return s->shards.stepped[part->leaf];
    if (part->unsent && part->unsent != ek_tensor_version(s->leaves[part->leaf])) {
        part->version = now;
        part->unsent = 0;
    }
    return now != part->version;
}

/* Copies target by target. Each target begins with another device, so that not all read from one
 * device at once. */
int ek_sharding_send(const ek_sharding *s)
{
    int moves = 0, count = s->shards.count;
    for (int k = 0; k < count; k++)
        s->parts[k].changed = sharding_is_changed(s, k);
    for (int t = 0; t < s->targets; t++) {
        for (int d = 1; d <= s->devices; d++) {
            int device = (t + d) % s->devices;
            for (int k = 0; k < count; k++) {
                ek_tensor *to = s->there[t * count + k], *from = s->shards.all[k].tensor;
                if (s->parts[k].changed && s->parts[k].device == device &&
                    to->storage != from->storage)
                    s->moves[moves++] = (ek_move){to, from};
            }
        }
    }
    return ek_exchange("sharing the step", s->moves, moves);
}

int ek_sharding_publish(ek_sharding *s)
{
    const int before = ek_error_status();
    if (!s)
        return 0;
    int rc = ek_sharding_send(s), noted = -1;
    bool any = false;
    for (int k = 0; k < s->shards.count; k++)
        any = any || s->parts[k].changed;
    if (rc >= 0 && s->gathering && any)
        rc = ek_gathering_forget(s->gathering);
    /* Notes what was sent, or after an error may have been. */
    for (int k = 0; k < s->shards.count; k++) {
        ek_sharding_part *part = &s->parts[k];
        if (!part->changed)
            continue;
        if (rc >= 0)
            part->version = ek_tensor_version(s->shards.all[k].tensor);
        if (part->leaf != noted)
            s->owner.published(s->owner.user, part->leaf, rc);
        noted = part->leaf;
        part->seen = ek_tensor_version(s->leaves[noted]);
        if (s->gathering)
            ek_gathering_note(s->gathering, noted);
        part->unsent = rc < 0 ? part->seen : 0;
    }
    if (rc < 0)
        ek_error_prefix(before, "sharing the optimizer's step");
    return rc;
}

/* ---- the end of a sharding ---- */

/* Makes the leaf whole. If there is no memory for the whole gradient, or `whole` is false, drops
 * the gradient. */
static void sharding_make_whole(const ek_sharding *s, int leaf, bool whole)
{
    ek_tensor *tensor = s->leaves[leaf];
    int pending = ek_error_status();
    if (!whole)
        ek_tensor_set_grad(tensor, NULL);
    if (sharding_set(s, leaf, NULL) >= 0)
        return;
    ek_leaf_drop_shard_gradients(tensor);
    ek_tensor_set_grad(tensor, NULL);
    ek_leaf_set_shards(tensor, NULL, 0);
    ek_log_line(EK_LOG_WARNING,
                "the gradient of a parameter that is sharded no more was dropped: "
                "%s has no memory for it",
                ek_tensor_dev(tensor)->name);
    if (pending == 0)
        ek_error_clear();
}

/* Tries once more to share a step that could not be shared, because the shards are about to be
 * dropped. */
static void sharding_share_the_rest(ek_sharding *s)
{
    int pending = ek_error_status();
    if (s->shards.ranks || ek_sharding_publish(s) >= 0)
        return;
    ek_log_line(EK_LOG_WARNING, "parameters that are sharded no more miss a step of some devices: "
                                "it could not be shared");
    if (pending == 0)
        ek_error_clear();
}

/* Makes the leaves whole, if there is memory. Otherwise they are gathered as before, and the
 * sharding lives as long as their storages. */
static void sharding_make_units_whole(const ek_sharding *s)
{
    const int pending = ek_error_status();
    if (ek_gathering_settle(s->gathering) >= 0)
        ek_gathering_end(s->gathering);
    if (pending == 0)
        ek_error_clear();
}

void ek_sharding_end(ek_sharding *s, bool whole)
{
    if (s && s->there)
        sharding_share_the_rest(s);
    if (s && s->gathering && whole)
        sharding_make_units_whole(s);
    for (int i = 0; s && s->leaves && i < s->shards.leaf_count; i++)
        if (s->leaves[i] && s->leaves[i]->shards == &s->shards.object)
            sharding_make_whole(s, i, whole || !s->gathering);
    if (s && s->gathering) { /* leaves that stay gathered need the shards' elements alone */
        ek_slices_drop_gradients(s);
        ek_tensors_release(s->leaves, s->shards.leaf_count);
        s->leaves = NULL;
        s->owner = (ek_sharding_owner){.user = NULL};
    }
    ek_object_release(s);
}

/* ---- over the devices of this process ---- */

static void sharding_destroy(ek_object *object)
{
    ek_sharding_clear((ek_sharding *)object);
    free(object);
}

static int parameter_check_whole(const char *path, ek_tensor *tensor, void *user)
{
    (void)user;
    if (!tensor->shards)
        return 0;
    return EK_FAIL(EK_E_STATE,
                   "parameter \"%s\" is sharded by another wrapper, which must be freed before "
                   "this one can shard it",
                   path);
}

bool ek_sharding_can_have(const ek_tensor *tensor)
{
    return !tensor->history && ek_is_dense(tensor) && ek_dtype_is_floating(tensor->dtype);
}

void ek_sharding_list(ek_sharding *s, int i, int group, int64_t unit, ek_tensor *parameter)
{
    s->bucket_of[i] = group * EK_DTYPES + (int)parameter->dtype;
    ek_sharding_bucket *bucket = &s->buckets[s->bucket_of[i]];
    s->leaves[i] = ek_object_retain(parameter);
    s->at[i] = bucket->count;
    bucket->first = bucket->count > 0 ? bucket->first : i;
    bucket->unit = unit;
    bucket->dtype = parameter->dtype;
    bucket->count += ek_slab_pitch(parameter->dtype, ek_count(parameter));
}

ek_sharding *ek_sharding_new(ek_module *module, ek_dev *const *devs, int devices, int count,
                             ek_tensor *const *const *copies, const int *units, int unit_count,
                             ek_sharding_owner owner)
{
    if (ek_module_parameters(module, parameter_check_whole, NULL) < 0)
        return NULL;
    ek_sharding *s = ek_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    ek_object_init(&s->shards.object, sharding_destroy);
    s->owner = owner;
    int rc = ek_sharding_init(s, count, (units ? unit_count : 1) * EK_DTYPES, devs, devices);
    for (int i = 0; i < count && rc >= 0; i++)
        if (ek_sharding_can_have(copies[0][i]) && (units || copies[0][i]->requires_grad))
            ek_sharding_list(s, i, units ? units[i] : 0, ek_slab_pitch(copies[0][i]->dtype, 1),
                             copies[0][i]);
    ek_scope scope = ek_scope_begin();
    if (rc >= 0)
        rc = ek_sharding_make(s, copies, units ? 0 : devices);
    ek_scope_end(&scope);
    if (rc >= 0 && units) {
        s->gathering = ek_gathering_new(s);
        rc = s->gathering ? 0 : ek_error_pending();
    }
    if (rc >= 0)
        return s;
    ek_sharding_end(s, true);
    return NULL;
}
