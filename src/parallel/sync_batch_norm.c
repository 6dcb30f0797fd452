/* sync_batch_norm.c: batch normalisation with the statistics of all replicas' chunks.
 *
 * Each replica computes the moments of its own chunk. The last replica to arrive at the rendezvous
 * copies all moments to every replica, and joins the replicas' graphs by one node, whose backward
 * sums the chunks' gradients by an allreduce. Each replica then merges the moments. So gradients of
 * any order reach every chunk through the statistics. */
#include <stdatomic.h>
#include <string.h>

#include "comm/collectives.h"
#include "core/object.h"
#include "core/rendezvous.h"
#include "evenkeel/autograd.h"
#include "evenkeel/comm.h"
#include "evenkeel/parallel.h"
#include "nn/batch_norm_module.h"
#include "nn/module_table.h"
#include "ops/norm.h"

static const char sync_name[] = "sync_batch_norm";

/* What a replica gives to the others and gets from them. */
typedef struct sync_share {
    ek_norm_chunk chunk;
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
    int64_t total = 0;
    for (int p = 0; p < parts; p++) {
        const ek_tensor *x = shares[p]->chunk.x;
        char text[200], expected[200];
        if (x->dtype != first->dtype || x->shape[1] != first->shape[1])
            return EK_FAIL(EK_E_SHAPE,
                           "channels and dtype must agree, but replica %d has %s "
                           "and replica 0 %s",
                           p, ek_tensor_text(x, text), ek_tensor_text(first, expected));
        total += shares[p]->count;
    }
    for (int p = 0; p < parts; p++) {
        shares[p]->total = total;
        if (shares[p]->count > 0)
            EK_TRY(ek_check_values_per_channel(shares[p]->chunk.x, total));
    }
    return 0;
}

/* Copies the moments of all chunks to every replica. */
static int sync_send_moments(sync_share *const *shares, int parts)
{
    ek_tensor *moments[EK_MAX_DEVICES], *out[EK_MAX_DEVICES];
    ek_dev *devs[EK_MAX_DEVICES];
    int64_t counts[EK_MAX_DEVICES];
    int chunks = 0;
    for (int p = 0; p < parts; p++) {
        devs[p] = ek_tensor_dev(shares[p]->chunk.x);
        if (shares[p]->count == 0)
            continue;
        moments[chunks] = ek_detach(shares[p]->chunk.moments);
        counts[chunks++] = shares[p]->count;
    }
    ek_tensor *all = ek_gather(moments, chunks, devs[0]->id, 0);
    all = ek_reshape(all, EK_SHAPE(chunks, 2, -1));
    if (!all)
        return ek_error_pending();
    ek_placement whole = ek_placement_whole(devs[0], devs, parts, 1);
    EK_TRY(ek_comm_all_gather(&whole, &all, NULL, out));
    for (int p = 0; p < parts; p++) {
        shares[p]->moments = ek_keep(out[p]);
        shares[p]->chunks = chunks;
        memcpy(shares[p]->counts, counts, (size_t)chunks * sizeof *counts);
    }
    return 0;
}

/* Input d is chunk d's moments, and output d the statistics of all chunks for replica d. Each
 * input's gradient is the sum of all outputs' gradients. */
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

static int sync_join(sync_share *const *shares, int parts)
{
    ek_tensor *inputs[EK_MAX_DEVICES], *outputs[EK_MAX_DEVICES];
    int chunks = 0;
    for (int p = 0; p < parts; p++) {
        ek_tensor *shared = ek_tensor_alias(shares[p]->chunk.statistics);
        if (!shared)
            return ek_error_pending();
        shares[p]->shared = ek_keep(shared);
        if (shares[p]->count == 0)
            continue;
        inputs[chunks] = shares[p]->chunk.moments;
        outputs[chunks++] = shared;
    }
    return ek_record_outputs(outputs, chunks, &sync_join_operation,
                             &(const ek_record_options){.inputs = inputs, .input_count = chunks});
}

/* Runs on the last replica's thread. Gradient mode is on whichever that is; replicas without
 * gradient mode give moments without history. */
static int sync_meet(void *const *brought, int parts)
{
    sync_share *const *shares = (sync_share *const *)brought;
    EK_TRY(sync_check(shares, parts));
    if (shares[0]->total == 0)
        return 0;
    bool before = ek_set_grad_enabled(true);
    int rc = sync_send_moments(shares, parts);
    if (rc >= 0)
        rc = sync_join(shares, parts);
    ek_set_grad_enabled(before);
    return rc;
}

static ek_tensor *sync_normalise(ek_batch_norm_module *self, ek_tensor *x)
{
    ek_batch_norm_options options = ek_batch_norm_module_options(self, x);
    if (ek_check_batch_norm(&options) < 0)
        return NULL;
    const ek_norm_tracking tracking = {.mean = self->running_mean,
                                       .var = self->running_var,
                                       .batches = self->num_batches_tracked,
                                       .momentum = self->momentum};
    sync_share mine = {.count = ek_count(x) > 0 ? ek_count(x) / x->shape[1] : 0};
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
    if (mine.count == 0)
        return ek_f_batch_norm_with(options); /* the result is as empty as x */
    return ek_norm_chunk_apply(&mine.chunk, mine.shared, mine.total, self->weight, self->bias);
}

static ek_value sync_batch_norm_forward(ek_module *module, const ek_args *args)
{
    ek_batch_norm_module *self = (ek_batch_norm_module *)module;
    ek_tensor *x = ek_only_input(module, args);
    if (ek_batch_norm_module_check(self, x) < 0)
        return ek_value_error();
    if (!module->training || ek_rendezvous_count() == 1)
        return ek_value_of_tensor(ek_batch_norm_tracked(ek_batch_norm_module_options(self, x),
                                                        false, self->num_batches_tracked));
    ek_scope scope = ek_scope_begin();
    return ek_value_of_tensor(ek_scope_return(&scope, sync_normalise(self, x)));
}

static const ek_module_type sync_batch_norm_type = {.name = sync_name,
                                                    .size = sizeof(ek_batch_norm_module),
                                                    .forward = sync_batch_norm_forward};

/* A new id for the rendezvous of a module's replicas, which copy the id with the module. */
static uint64_t sync_new_place(void)
{
    static atomic_uint_fast64_t last;
    return atomic_fetch_add(&last, 1) + 1;
}

ek_module *ek_sync_batch_norm_with(ek_norm_options options)
{
    ek_module *module = ek_batch_norm_module_new(&sync_batch_norm_type, &options, 2, 5);
    if (module)
        ((ek_batch_norm_module *)module)->place = sync_new_place();
    return module;
}

/* ---- converting ---- */

/* Turns every batch normalisation in the module into a synchronised one, in place, because parents,
 * an optimizer or a wrapper may point to it. */
static void sync_convert(ek_module *module)
{
    if (ek_module_is_batch_norm(module)) {
        module->type = &sync_batch_norm_type;
        ((ek_batch_norm_module *)module)->place = sync_new_place();
    }
    for (int i = 0; i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind == EK_MEMBER_MODULE && *member.slot.module)
            sync_convert(*member.slot.module);
    }
}

ek_module *ek_convert_sync_batch_norm(ek_module *module)
{
    if (!module)
        return EK_FAIL_NULL(EK_E_INVALID, "convert_sync_batch_norm: module is NULL");
    sync_convert(module);
    return module;
}
