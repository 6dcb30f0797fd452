/* sync_batch_norm.c: batch normalisation with the statistics of the chunks of all replicas, and of
 * other processes.
 *
 * Each replica computes the moments of its chunk. The last replica to arrive at the rendezvous
 * gathers all replicas' moments, joins them with the moments of the other ranks, and copies the
 * result to every replica. Each replica then merges the moments. One node joins the replicas'
 * graphs; its backward sums the chunks' gradients over replicas and ranks. So gradients of any
 * order reach every chunk through the statistics.
 *
 * Note [Every rank takes part]
 *
 * The node's backward waits for the node's backward on the other ranks. If one rank records the
 * node, all do. The node's inputs are all chunks of the rank, empty ones included, so that even the
 * backward of an empty batch reaches the node. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "comm/collectives.h"
#include "core/object.h"
#include "core/ranks.h"
#include "core/rendezvous.h"
#include "evenkeel/autograd.h"
#include "evenkeel/comm.h"
#include "evenkeel/parallel.h"
#include "nn/module_table.h"
#include "ops/norm.h"
#include "parallel/sync_batch_norm.h"
#include "parallel/sync_chunks.h"

static const char sync_name[] = "sync_batch_norm";

/* A replica's part of the rendezvous: what it brings, and what it gets. */
typedef struct sync_share {
    ek_norm_chunk chunk;
    ek_ranks *ranks;                /* NULL: this process is alone */
    int64_t count;                  /* values per channel in this replica's chunk */
    int64_t total;                  /* values per channel in all chunks */
    int chunks;                     /* count of the chunks that have values */
    int64_t counts[EK_MAX_DEVICES]; /* values per channel in each of these chunks */
    ek_tensor *moments; /* (chunks, 2, C), of all chunks; one reference, on the replica's device */
    ek_tensor *shared;  /* the chunk's statistics in the graph; one reference */
} sync_share;

static int sync_check(sync_share *const *shares, int parts)
{
    const ek_tensor *first = shares[0]->chunk.x;
    for (int p = 0; p < parts; p++) {
        const ek_tensor *x = shares[p]->chunk.x;
        char text[200], expected[200];
        if (x->dtype != first->dtype || x->shape[1] != first->shape[1])
            return EK_FAIL(EK_E_SHAPE,
                           "channels and dtype must agree, but replica %d has %s "
                           "and replica 0 %s",
                           p, ek_tensor_text(x, text), ek_tensor_text(first, expected));
    }
    return 0;
}

static int sync_own_chunks(sync_share *const *shares, int parts, ek_sync_chunks *chunks)
{
    ek_tensor *moments[EK_MAX_DEVICES], *first = shares[0]->chunk.moments;
    chunks->counts = ek_calloc((size_t)parts, sizeof *chunks->counts);
    if (!chunks->counts)
        return ek_error_pending();
    for (int p = 0; p < parts; p++) {
        chunks->records = chunks->records || shares[p]->chunk.moments->requires_grad;
        if (shares[p]->count == 0)
            continue;
        moments[chunks->count] = ek_detach(shares[p]->chunk.moments);
        chunks->counts[chunks->count++] = shares[p]->count;
    }
    ek_device device = ek_tensor_device(first);
    ek_tensor *all = chunks->count ? ek_gather(moments, chunks->count, device, 0)
                                   : ek_empty(EK_SHAPE(0, 2, first->shape[1]),
                                              .dtype = first->dtype, .device = device);
    chunks->moments = all ? ek_reshape(all, EK_SHAPE(chunks->count, 2, first->shape[1])) : NULL;
    return chunks->moments ? 0 : ek_error_pending();
}

/* ---- the replicas' shares ---- */

static int64_t sync_total(const ek_sync_chunks *chunks)
{
    int64_t total = 0;
    for (int k = 0; k < chunks->count; k++)
        total += chunks->counts[k];
    return total;
}

/* Copies the moments of all chunks to every replica. */
static int sync_send_moments(sync_share *const *shares, int parts, ek_sync_chunks *chunks)
{
    ek_tensor *out[EK_MAX_DEVICES];
    ek_dev *devs[EK_MAX_DEVICES];
    for (int p = 0; p < parts; p++)
        devs[p] = ek_tensor_dev(shares[p]->chunk.x);
    out[0] = chunks->moments;
    if (parts > 1) {
        ek_placement whole = ek_placement_whole(devs[0], devs, parts, 1);
        EK_TRY(ek_comm_all_gather(&whole, &chunks->moments, NULL, out));
    }
    for (int p = 0; p < parts; p++) {
        shares[p]->moments = ek_keep(out[p]);
        shares[p]->chunks = chunks->count;
        memcpy(shares[p]->counts, chunks->counts, (size_t)chunks->count * sizeof *chunks->counts);
    }
    return 0;
}

/* ---- the graph ---- */

/* Input d of the node is chunk d's moments, output d the statistics of all chunks for replica d.
 * Each input's gradient is the sum of all outputs' gradients. */
static int sync_join_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const int chunks = ek_node_input_count(node);
    ek_tensor *given[EK_MAX_DEVICES];
    for (int d = 0; d < chunks; d++)
        given[d] = gradients[d] ? gradients[d] : ek_node_zeros(node, d);
    if (chunks == 1)
        results[0] = given[0];
    else
        EK_TRY(ek_allreduce(given, 1, chunks, results));
    for (int d = 0; d < chunks; d++)
        if (!ek_node_needs(node, d))
            results[d] = NULL;
    return ek_error_status();
}

static const ek_operation sync_join_operation = {.name = "sync_batch_norm_join",
                                                 .backward = sync_join_backward};

typedef struct sync_meeting {
    ek_ranks *ranks; /* as long as the group */
    bool wanted; /* the node's backward uses the gradients; false: the inputs serve only to record
                    the node */
} sync_meeting;

/* sync_join_backward with the sum over all ranks. */
static int sync_ranks_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const sync_meeting *meeting = ek_node_attributes(node);
    const int chunks = ek_node_input_count(node);
    ek_tensor *given[EK_MAX_DEVICES];
    ek_dev *devs[EK_MAX_DEVICES];
    bool wanted[EK_MAX_DEVICES];
    for (int d = 0; d < chunks; d++) {
        given[d] = gradients[d] ? gradients[d] : ek_node_zeros(node, d);
        if (!given[d])
            return ek_error_pending();
        devs[d] = ek_tensor_dev(given[d]);
        wanted[d] = meeting->wanted && ek_node_needs(node, d);
    }
    ek_tensor *sum = ek_reduce_add(given, chunks, ek_tensor_device(given[0]));
    sum = meeting->ranks->sum(meeting->ranks, sum);
    ek_placement whole = ek_placement_whole(devs[0], devs, chunks, 1);
    return sum ? ek_comm_all_gather(&whole, &sum, wanted, results) : ek_error_pending();
}

static const ek_operation sync_ranks_operation = {.name = "sync_batch_norm_ranks",
                                                  .backward = sync_ranks_backward,
                                                  .meets = true};

static int sync_record(sync_share *const *shares, int parts, const ek_sync_chunks *all)
{
    ek_tensor *inputs[EK_MAX_DEVICES], *outputs[EK_MAX_DEVICES];
    sync_meeting meeting = {.ranks = shares[0]->ranks};
    int chunks = 0;
    for (int p = 0; p < parts; p++) {
        ek_tensor *shared = ek_tensor_alias(shares[p]->chunk.statistics);
        if (!shared)
            return ek_error_pending();
        shares[p]->shared = ek_keep(shared);
        if (shares[p]->count == 0 && !meeting.ranks)
            continue;
        meeting.wanted = meeting.wanted || shares[p]->chunk.moments->requires_grad;
        inputs[chunks] = shares[p]->chunk.moments;
        outputs[chunks++] = shared;
    }
    if (meeting.ranks && all->records && !meeting.wanted) {
        inputs[0] = ek_tensor_alias(inputs[0]);
        if (!inputs[0] || ek_tensor_set_requires_grad(inputs[0], true) < 0)
            return ek_error_pending();
    }
    return ek_record_outputs(outputs, chunks,
                             meeting.ranks ? &sync_ranks_operation : &sync_join_operation,
                             &(const ek_record_options){.inputs = inputs,
                                                        .input_count = chunks,
                                                        EK_ATTRIBUTES(meeting)});
}

/* ---- a forward ---- */

static int sync_meet_in(sync_share *const *shares, int parts, bool enabled, ek_sync_chunks *chunks)
{
    const ek_tensor *x = shares[0]->chunk.x;
    ek_ranks *ranks = shares[0]->ranks;
    EK_TRY(sync_own_chunks(shares, parts, chunks));
    if (ranks)
        EK_TRY(ek_sync_chunks_join(ranks, x, enabled, chunks));
    int64_t total = sync_total(chunks);
    for (int p = 0; p < parts; p++) {
        shares[p]->total = total;
        if (shares[p]->count > 0 || ranks) /* all ranks refuse a single value */
            EK_TRY(ek_ranks_alike(ek_check_values_per_channel(shares[p]->chunk.x, total)));
    }
    return total > 0 ? sync_send_moments(shares, parts, chunks) : 0;
}

/* Does the common work of the rendezvous, on the thread of the replica that arrives last, with
 * gradient mode on. Replicas without gradient mode bring moments without history. */
static int sync_meet(void *const *brought, int parts)
{
    sync_share *const *shares = (sync_share *const *)brought;
    ek_sync_chunks chunks = {0};
    int rc = sync_check(shares, parts);
    bool before = ek_set_grad_enabled(false);
    if (rc >= 0)
        rc = sync_meet_in(shares, parts, before, &chunks);
    ek_set_grad_enabled(true);
    if (rc >= 0 && shares[0]->total > 0)
        rc = sync_record(shares, parts, &chunks);
    ek_set_grad_enabled(before);
    free(chunks.counts);
    return rc;
}

static ek_tensor *sync_normalise(ek_batch_norm_module *self, ek_tensor *x)
{
    ek_batch_norm_options options = ek_batch_norm_module_operation(self, x);
    if (ek_check_batch_norm(&options) < 0)
        return NULL;
    const ek_norm_tracking tracking = {.mean = self->running_mean,
                                       .var = self->running_var,
                                       .batches = self->num_batches_tracked,
                                       .momentum = self->momentum};
    sync_share mine = {.ranks = self->ranks,
                       .count = ek_count(x) > 0 ? ek_count(x) / x->shape[1] : 0};
    if (ek_norm_chunk_begin(x, &mine.chunk) < 0)
        return NULL;
    int rc = ek_rendezvous(sync_name, self->place, &mine, sync_meet);
    mine.moments = ek_scope_adopt(mine.moments);
    mine.shared = ek_scope_adopt(mine.shared);
    if (rc < 0 ||
        (mine.total > 0 ? ek_norm_chunks_merge(mine.chunk.statistics, mine.moments, mine.counts,
                                               mine.chunks, self->eps, &tracking)
                        : ek_norm_count_batch(&tracking)) < 0)
        return NULL;
    if (mine.count == 0 && !(mine.ranks && mine.total > 0))
        return ek_f_batch_norm_with(options); /* the result is as empty as x */
    return ek_norm_chunk_apply(&mine.chunk, mine.shared, mine.total, self->weight, self->bias);
}

static ek_tensor *sync_forward(ek_batch_norm_module *self, ek_tensor *x)
{
    if (ek_batch_norm_module_check(self, x) < 0)
        return NULL;
    if (!self->module.training || (ek_rendezvous_count() == 1 && !self->ranks))
        return ek_batch_norm_tracked(ek_batch_norm_module_operation(self, x), false,
                                     self->num_batches_tracked);
    ek_scope scope = ek_scope_begin();
    return ek_scope_return(&scope, sync_normalise(self, x));
}

static ek_value sync_batch_norm_forward(ek_module *module, const ek_args *args)
{
    ek_batch_norm_module *self = (ek_batch_norm_module *)module;
    ek_tensor *y = sync_forward(self, ek_only_input(module, args));
    /* Tells the other ranks, which wait for this rank. If there are replicas, the wrapper tells
     * them. */
    if (!y && module->training && self->ranks && ek_rendezvous_count() == 1)
        self->ranks->agree(self->ranks, ek_error_pending());
    return ek_value_of_tensor(y);
}

static void sync_batch_norm_destroy(ek_module *module)
{
    ek_object_release(((ek_batch_norm_module *)module)->ranks);
}

/* Returns a new id for the rendezvous of a module's replicas. Copies of the module have the same
 * id. */
static uint64_t sync_new_place(void)
{
    static atomic_uint_fast64_t last;
    return atomic_fetch_add(&last, 1) + 1;
}

/* A copy has a rendezvous of its own. */
static int sync_batch_norm_copy(ek_module *copy, const ek_module *original)
{
    (void)original;
    ((ek_batch_norm_module *)copy)->place = sync_new_place();
    ek_object_retain(((ek_batch_norm_module *)copy)->ranks);
    return 0;
}

static const ek_module_type sync_batch_norm_type = {.name = sync_name,
                                                    .size = sizeof(ek_batch_norm_module),
                                                    .forward = sync_batch_norm_forward,
                                                    .destroy = sync_batch_norm_destroy,
                                                    .copy = sync_batch_norm_copy,
                                                    .describe = ek_batch_norm_module_describe,
                                                    .family = ek_batch_norm_family};

/* Writes the ranks of the group to *ranks: NULL if no group is given or the group has one rank. */
static int sync_ranks_of(ek_process_group *group, ek_ranks **ranks)
{
    *ranks = group && ek_ranks_of ? ek_ranks_of(group) : NULL;
    return *ranks ? 0 : ek_error_status();
}

/* Drops the reference to the ranks before. */
static void sync_set_ranks(ek_batch_norm_module *self, ek_ranks *ranks, bool given)
{
    ek_object_release(self->ranks);
    self->ranks = ek_object_retain(ranks);
    self->ranks_are_given = given;
}

ek_module *ek_sync_batch_norm_with(ek_sync_batch_norm_options options)
{
    ek_ranks *ranks;
    ek_process_group *group = options.process_group;
    if (sync_ranks_of(group, &ranks) < 0)
        return NULL;
    const ek_batch_norm_module_options same = {.features = options.features,
                                               .eps = options.eps,
                                               .momentum = options.momentum,
                                               .affine = options.affine,
                                               .track_running_stats = options.track_running_stats};
    ek_module *module = ek_batch_norm_module_new(&sync_batch_norm_type, &same, 2, 5);
    if (module) {
        ek_batch_norm_module *self = (ek_batch_norm_module *)module;
        self->place = sync_new_place();
        sync_set_ranks(self, ranks, group != NULL);
    }
    ek_object_release(ranks);
    return module;
}

/* ---- converting ---- */

typedef void sync_visitor(ek_batch_norm_module *self, void *user);

/* Visits all synchronised batch normalisations in the module. With `convert` first makes every
 * batch normalisation synchronised, in place, because parents, an optimizer or a wrapper may point
 * to it. */
static void sync_visit(ek_module *module, bool convert, sync_visitor *visit, void *user)
{
    if (convert && ek_module_is_batch_norm(module)) {
        module->type = &sync_batch_norm_type;
        ((ek_batch_norm_module *)module)->place = sync_new_place();
    }
    if (module->type == &sync_batch_norm_type)
        visit((ek_batch_norm_module *)module, user);
    for (int i = 0; i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind == EK_MEMBER_MODULE && *member.slot.module)
            sync_visit(*member.slot.module, convert, visit, user);
    }
}

typedef struct sync_conversion {
    ek_process_group *group;
    ek_ranks *ranks;
} sync_conversion;

static void sync_converted(ek_batch_norm_module *self, void *user)
{
    const sync_conversion *conversion = user;
    if (conversion->group)
        sync_set_ranks(self, conversion->ranks, true);
}

ek_module *ek_convert_sync_batch_norm_over(ek_module *module, ek_process_group *group)
{
    sync_conversion conversion = {.group = group};
    if (!module)
        return EK_FAIL_NULL(EK_E_INVALID, "convert_sync_batch_norm: module is NULL");
    if (ek_check_alive("convert_sync_batch_norm", "the module", module) < 0 ||
        sync_ranks_of(group, &conversion.ranks) < 0)
        return NULL;
    sync_visit(module, true, sync_converted, &conversion);
    ek_object_release(conversion.ranks);
    return module;
}

ek_module *ek_convert_sync_batch_norm(ek_module *module)
{
    return ek_convert_sync_batch_norm_over(module, NULL);
}

/* ---- for wrappers ---- */

static void sync_inherit(ek_batch_norm_module *self, void *user)
{
    if (!self->ranks_are_given)
        sync_set_ranks(self, user, false);
}

void ek_sync_batch_norm_inherit(ek_module *module, ek_ranks *ranks)
{
    sync_visit(module, false, sync_inherit, ranks);
}
