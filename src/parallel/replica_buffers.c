/* replica_buffers.c: gives the buffers that a forward's replicas wrote to the module. */
#include <stdlib.h>

#include "comm/exchange.h"
#include "core/slab.h"
#include "kernels/kernels.h"
#include "parallel/replica_copies.h"

static bool buffer_was_written_at(const ek_replica_set *set, int rank, int i)
{
    const ek_copies *copies = &set->copies[rank];
    return !set->sources[i]->requires_grad &&
           ek_tensor_version(copies->tensors[i]) != copies->sent[i].begun;
}

int ek_replica_set_settle_buffers(ek_replica_set *set, const ek_rank_list *ranks)
{
    const int before = ek_error_status();
    int first = ranks->at[0], count = 0;
    if (first == 0 || set->parameters == set->count)
        return 0;
    ek_move *moves = ek_calloc((size_t)set->count, sizeof *moves);
    if (!moves)
        return ek_error_pending();
    for (int i = set->parameters; i < set->count; i++)
        if (buffer_was_written_at(set, first, i))
            moves[count++] = (ek_move){set->sources[i], set->copies[first].tensors[i]};
    int rc = ek_exchange("fetching buffers", moves, count);
    for (int i = set->parameters; i < set->count; i++) {
        if (!buffer_was_written_at(set, first, i))
            continue;
        ek_tensor_written(set->sources[i], "the first replica, in its buffers");
        if (rc >= 0) /* the first replica's buffer is up to date */
            ek_copies_note(set, first, i, true);
    }
    free(moves);
    if (rc < 0)
        ek_error_prefix(before, "fetching buffers from %s", set->devs[first]->name);
    return rc;
}

/* ---- averages ----
 *
 * Replica r has the buffer b_r and n_r of the n samples. The average
 *
 *     b = b_0 + sum_r (n_r / n) (b_r - b_0)
 *
 * is computed on the module's device, which has b_0, for all buffers of a dtype at once, in the
 * order of r. A buffer that is equal on all replicas keeps its bits, because only differences are
 * weighted. */

/* Buffers of one dtype that a replica wrote. */
typedef struct buffer_group {
    const ek_replica_set *set;
    int *entries, count;
    ek_tensor **sources; /* the module's buffers: b_0 */
    ek_move *moves;      /* room for one replica's moves */
} buffer_group;

/* Copies the buffers of replica `rank` to the slab's members; without `fetch`, the members to the
 * buffers. */
static int group_move(const buffer_group *g, int rank, const ek_slab *slab, bool fetch)
{
    for (int k = 0; k < g->count; k++) {
        ek_tensor *buffer = g->set->copies[rank].tensors[g->entries[k]];
        g->moves[k] =
            fetch ? (ek_move){slab->members[k], buffer} : (ek_move){buffer, slab->members[k]};
    }
    return ek_exchange("running statistics", g->moves, g->count);
}

/* Averages a group. slabs[0] gets b_0, slabs[1] (zeros) the weighted sum, slabs[2] one b_r. */
static int group_add(const buffer_group *g, const ek_rank_list *ranks, const double *weights,
                     ek_slab *const *slabs)
{
    ek_tensor *flat[3];
    for (int k = 0; k < 3; k++) {
        flat[k] = ek_slab_range(slabs[k], 0, slabs[k]->elements);
        if (!flat[k])
            return ek_error_pending();
    }
    ek_tensor *first = flat[0], *sum = flat[1], *other = flat[2];
    ek_dev *dev = ek_tensor_dev(sum);
    const ek_kernels *kernels = ek_kernels_of(sum);
    EK_TRY(group_move(g, 0, slabs[0], true));
    for (int r = 1; r < ranks->count; r++) {
        EK_TRY(group_move(g, ranks->at[r], slabs[2], true));
        EK_TRY(kernels->binary(dev, EK_BINARY_SUB, other, other, first, 0));
        EK_TRY(kernels->binary(dev, EK_BINARY_ADD, sum, sum, other, weights[r]));
    }
    EK_TRY(kernels->binary(dev, EK_BINARY_ADD, sum, sum, first, 1));
    EK_TRY(group_move(g, 0, slabs[1], false));
    for (int k = 0; k < g->count; k++)
        ek_tensor_written(g->sources[k], "the average of running statistics");
    return 0;
}

static int group_average(const buffer_group *g, const ek_rank_list *ranks, const double *weights)
{
    ek_slab *slabs[3] = {0};
    int rc = 0;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    for (int k = 0; k < 3 && rc >= 0; k++) {
        slabs[k] = ek_slab_new(g->set->devs[0], g->sources, g->count);
        rc = slabs[k] ? 0 : ek_error_pending();
    }
    ek_memory_set_category(before);
    ek_scope scope = ek_scope_begin();
    if (rc >= 0)
        rc = group_add(g, ranks, weights, slabs);
    ek_scope_end(&scope);
    for (int k = 0; k < 3; k++)
        ek_object_release(slabs[k]);
    return rc;
}

/* Finds the buffers of a dtype that any of the replicas wrote. */
static void group_find(buffer_group *g, const ek_rank_list *ranks, ek_dtype dtype)
{
    g->count = 0;
    for (int i = g->set->parameters; i < g->set->count; i++) {
        bool written = false;
        for (int r = 0; r < ranks->count; r++)
            written = written || buffer_was_written_at(g->set, ranks->at[r], i);
        if (!written || g->set->sources[i]->dtype != dtype)
            continue;
        g->sources[g->count] = g->set->sources[i];
        g->entries[g->count++] = i;
    }
}

int ek_replica_set_average_buffers(const ek_replica_set *set, const ek_rank_list *ranks,
                                   const int64_t *samples)
{
    size_t room = (size_t)set->count + 1;
    double weights[EK_MAX_DEVICES], total = 0;
    for (int r = 0; r < ranks->count; r++)
        total += (double)samples[r];
    for (int r = 0; r < ranks->count; r++)
        weights[r] = (double)samples[r] / total;
    buffer_group g = {.set = set,
                      .entries = ek_calloc(room, sizeof *g.entries),
                      .sources = ek_calloc(room, sizeof *g.sources),
                      .moves = ek_calloc(room, sizeof *g.moves)};
    int rc = g.entries && g.sources && g.moves ? 0 : ek_error_pending();
    for (int dtype = 0; dtype < EK_DTYPES && total > 0 && rc >= 0; dtype++) {
        group_find(&g, ranks, (ek_dtype)dtype);
        if (g.count > 0 && ek_dtype_is_floating((ek_dtype)dtype))
            rc = group_average(&g, ranks, weights);
    }
    free(g.entries);
    free(g.sources);
    free(g.moves);
    return rc;
}
