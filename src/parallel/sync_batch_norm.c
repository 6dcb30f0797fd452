/* sync_batch_norm.c: batch normalisation with the statistics of all replicas' chunks.
 *
 * Each replica computes the moments of its own chunk. The last to arrive at the rendezvous gathers
 * them, merges them and broadcasts the result: few nodes over vectors, which join the replicas'
 * graphs. So gradients of any order reach every chunk through the statistics. */
#include <stdatomic.h>

#include "comm/lists.h"
#include "core/object.h"
#include "core/rendezvous.h"
#include "evenkeel/autograd.h"
#include "evenkeel/parallel.h"
#include "nn/batch_norm_module.h"
#include "nn/module_table.h"
#include "ops/batch_norm.h"

static const char what[] = "sync_batch_norm";

/* What a replica brings to the others, and what it gets. */
typedef struct share {
    ek_tensor *x;           /* for its shape and device */
    ek_channel_chunk chunk; /* nothing where it is empty */
    int64_t count;          /* values per channel in the chunk */
    double eps;
    int64_t total;             /* in all chunks */
    ek_merged_moments results; /* of all chunks, on the replica's device, references; NULL where all
                                  are empty */
} share;

static int check_alike(share *const *shares, int parts)
{
    const ek_tensor *first = shares[0]->x;
    for (int p = 1; p < parts; p++) {
        const ek_tensor *x = shares[p]->x;
        char text[200], expected[200];
        if (x->dtype != first->dtype || x->shape[1] != first->shape[1])
            return EK_FAIL(EK_E_SHAPE,
                           "channels and dtype must agree, but replica %d has %s "
                           "and replica 0 %s",
                           p, ek_tensor_text(x, text), ek_tensor_text(first, expected));
    }
    return 0;
}

/* The moments of all chunks, merged on the first replica's device. */
static int merge(share *const *shares, int parts, ek_merged_moments *merged)
{
    ek_tensor *moments[EK_MAX_DEVICES];
    int64_t counts[EK_MAX_DEVICES];
    int chunks = 0;
    for (int p = 0; p < parts; p++) {
        if (shares[p]->count == 0)
            continue;
        moments[chunks] = shares[p]->chunk.moments;
        counts[chunks++] = shares[p]->count;
    }
    ek_tensor *all = ek_gather(moments, chunks, ek_tensor_device(shares[0]->x), 0);
    return ek_merge_moments(all, counts, chunks, shares[0]->eps, merged);
}

static int share_out(const ek_merged_moments *merged, share *const *shares, int parts)
{
    enum { COUNT = 3 };
    /* The running statistics alone read the variance. */
    ek_tensor *sent[COUNT] = {merged->mean, merged->invstd, ek_detach(merged->var)};
    ek_tensor *out[COUNT * EK_MAX_DEVICES];
    ek_dev *devs[EK_MAX_DEVICES];
    for (int p = 0; p < parts; p++)
        devs[p] = ek_tensor_dev(shares[p]->x);
    if (!sent[2])
        return ek_error_pending();
    EK_TRY(ek_comm_broadcast(devs[0], sent, COUNT, devs, parts, NULL, out));
    for (int p = 0; p < parts; p++)
        shares[p]->results = (ek_merged_moments){.mean = ek_keep(out[p * COUNT]),
                                                 .invstd = ek_keep(out[p * COUNT + 1]),
                                                 .var = ek_keep(out[p * COUNT + 2])};
    return 0;
}

/* In gradient mode whoever does it: replicas without bring moments without history. */
static int merge_shares(void *const *brought, int parts)
{
    share *const *shares = (share *const *)brought;
    int64_t total = 0;
    EK_TRY(check_alike(shares, parts));
    for (int p = 0; p < parts; p++)
        total += shares[p]->count;
    for (int p = 0; p < parts; p++) {
        shares[p]->total = total;
        if (shares[p]->count > 0)
            EK_TRY(ek_check_values_per_channel(shares[p]->x, total));
    }
    if (total == 0)
        return 0;
    bool before = ek_set_grad_enabled(true);
    ek_merged_moments merged;
    int rc = merge(shares, parts, &merged);
    if (rc >= 0)
        rc = share_out(&merged, shares, parts);
    ek_set_grad_enabled(before);
    return rc;
}

/* The results come into the scope, without history where gradient mode is off. */
static int adopt(ek_merged_moments *results)
{
    ek_tensor **tensors[] = {&results->mean, &results->invstd, &results->var};
    for (int i = 0; i < 3; i++) {
        *tensors[i] = ek_scope_adopt(*tensors[i]);
        if (!ek_grad_enabled())
            *tensors[i] = ek_detach(*tensors[i]);
    }
    return results->mean && results->invstd && results->var ? 0 : ek_error_pending();
}

static ek_tensor *normalise(ek_batch_norm_module *self, ek_tensor *x)
{
    ek_batch_norm_options options = ek_batch_norm_module_options(self, x);
    if (ek_check_batch_norm(&options) < 0)
        return NULL;
    const ek_norm_tracking tracking = {.mean = self->running_mean,
                                       .var = self->running_var,
                                       .batches = self->num_batches_tracked,
                                       .momentum = self->momentum};
    share mine = {.x = x,
                  .eps = self->eps,
                  .count = ek_count(x) > 0 ? ek_count(x) / x->shape[1] : 0};
    if (mine.count > 0 && ek_channel_moments(x, &mine.chunk) < 0)
        return NULL;
    if (mine.count > 0 && !ek_grad_enabled())
        mine.chunk.moments = ek_detach(mine.chunk.moments);
    if (ek_rendezvous(what, self->place, &mine, merge_shares) < 0)
        return NULL;
    if ((mine.total > 0 && adopt(&mine.results) < 0) ||
        ek_move_tracked(&tracking, mine.results.mean, mine.results.var, mine.total) < 0)
        return NULL;
    if (mine.count == 0)
        return ek_f_batch_norm_with(options); /* as empty as x */
    return ek_normalise_chunk(&mine.chunk, mine.results.mean, mine.results.invstd, self->weight,
                              self->bias);
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
    return ek_value_of_tensor(ek_scope_end_with(&scope, normalise(self, x)));
}

static const ek_module_type sync_batch_norm_type = {.name = what,
                                                    .size = sizeof(ek_batch_norm_module),
                                                    .forward = sync_batch_norm_forward};

/* Replicas copy their module's, so that they meet each other and nobody else. */
static uint64_t new_place(void)
{
    static atomic_uint_fast64_t last;
    return atomic_fetch_add(&last, 1) + 1;
}

ek_module *ek_sync_batch_norm_with(ek_norm_options options)
{
    ek_module *module = ek_batch_norm_module_new(&sync_batch_norm_type, &options, 2, 5);
    if (module)
        ((ek_batch_norm_module *)module)->place = new_place();
    return module;
}

/* ---- converting ---- */

/* A batch normalisation turns into a synchronised one where it is: whoever points to it, a parent,
 * another parent, an optimizer, a wrapper, goes on doing so. */
static void convert(ek_module *module)
{
    if (ek_module_is_batch_norm(module)) {
        module->type = &sync_batch_norm_type;
        ((ek_batch_norm_module *)module)->place = new_place();
    }
    for (int i = 0; i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind == EK_MEMBER_MODULE && *member.slot.module)
            convert(*member.slot.module);
    }
}

ek_module *ek_convert_sync_batch_norm(ek_module *module)
{
    if (!module) {
        EK_FAIL(EK_E_INVALID, "convert_sync_batch_norm: module is NULL");
        return NULL;
    }
    convert(module);
    return module;
}
