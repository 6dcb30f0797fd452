/* running_stats.c: averages of running statistics.
 *
 *     b = b_0 + sum_r (n_r / n) (b_r - b_0), r ascending
 *
 * on the module's device, which has b_0, for all buffers of a dtype at once. Written with
 * differences, buffers that are equal everywhere stay what they are to the bit. */
#include "parallel/running_stats.h"

#include <stdlib.h>

#include "comm/exchange.h"
#include "core/slab.h"
#include "kernels/kernels.h"

/* Buffers of one dtype: copies[i * replicas + r] is buffer i of replica r. */
typedef struct group {
    ek_tensor **copies;
    int count, replicas;
    ek_tensor **list; /* room for one replica's */
    ek_move *moves;   /* room for one replica's */
} group;

static ek_tensor *const *copies_of(const group *g, int r)
{
    for (int i = 0; i < g->count; i++)
        g->list[i] = g->copies[i * g->replicas + r];
    return g->list;
}

/* Replica r's buffers to a slab. */
static int fetch(const group *g, int r, const ek_slab *slab)
{
    for (int i = 0; i < g->count; i++)
        g->moves[i] = (ek_move){slab->members[i], g->copies[i * g->replicas + r]};
    return ek_exchange("running statistics", g->moves, g->count);
}

static int copy_back(const group *g, const ek_slab *average)
{
    for (int i = 0; i < g->count; i++)
        g->moves[i] = (ek_move){g->copies[i * g->replicas], average->members[i]};
    EK_TRY(ek_exchange("running statistics", g->moves, g->count));
    for (int i = 0; i < g->count; i++)
        ek_tensor_written(g->copies[i * g->replicas], "the average of running statistics");
    return 0;
}

/* first: b_0; sum: of the weighted differences, zero at first; other: room for one b_r. */
static int average(const group *g, const double *weights, const ek_slab *first, const ek_slab *sum,
                   const ek_slab *other)
{
    ek_tensor *flat_first = ek_slab_range(first, 0, first->elements);
    ek_tensor *flat_sum = ek_slab_range(sum, 0, sum->elements);
    ek_tensor *flat_other = ek_slab_range(other, 0, other->elements);
    if (!flat_first || !flat_sum || !flat_other)
        return ek_error_pending();
    ek_dev *dev = ek_tensor_dev(flat_sum);
    const ek_kernels *kernels = ek_kernels_of(flat_sum);
    EK_TRY(fetch(g, 0, first));
    for (int r = 1; r < g->replicas; r++) {
        EK_TRY(fetch(g, r, other));
        EK_TRY(kernels->binary(dev, EK_BINARY_SUB, flat_other, flat_other, flat_first, 0));
        EK_TRY(kernels->binary(dev, EK_BINARY_ADD, flat_sum, flat_sum, flat_other, weights[r]));
    }
    EK_TRY(kernels->binary(dev, EK_BINARY_ADD, flat_sum, flat_sum, flat_first, 1));
    return copy_back(g, sum);
}

static int average_group(const group *g, const double *weights)
{
    ek_dev *dev = ek_tensor_dev(g->copies[0]);
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    ek_slab *first = ek_slab_new(dev, copies_of(g, 0), g->count);
    ek_slab *sum = first ? ek_slab_new(dev, copies_of(g, 0), g->count) : NULL;
    ek_slab *other = sum ? ek_slab_new(dev, copies_of(g, 0), g->count) : NULL;
    ek_memory_set_category(before);
    ek_scope scope = ek_scope_begin();
    int rc = other ? average(g, weights, first, sum, other) : ek_error_pending();
    ek_scope_end(&scope);
    ek_object_release(first);
    ek_object_release(sum);
    ek_object_release(other);
    return rc;
}

static int average_dtype(const ek_replica_set *set, const ek_places *places, const double *weights,
                         ek_dtype dtype)
{
    group g = {.count = ek_replica_set_written_buffers(set, places, dtype, NULL),
               .replicas = places->count};
    if (g.count == 0)
        return 0;
    g.copies = ek_calloc((size_t)g.count * (size_t)(g.replicas + 1), sizeof *g.copies);
    g.moves = ek_calloc((size_t)g.count, sizeof *g.moves);
    int rc = g.copies && g.moves ? 0 : ek_error_pending();
    if (rc >= 0) {
        g.list = g.copies + (ptrdiff_t)g.count * g.replicas;
        ek_replica_set_written_buffers(set, places, dtype, g.copies);
        rc = average_group(&g, weights);
    }
    free(g.copies);
    free(g.moves);
    return rc;
}

int ek_running_stats_average(const ek_replica_set *set, const ek_places *places,
                             const int64_t *samples)
{
    double weights[EK_MAX_DEVICES], total = 0;
    for (int r = 0; r < places->count; r++)
        total += (double)samples[r];
    for (int r = 0; r < places->count; r++)
        weights[r] = (double)samples[r] / total;
    for (int dtype = 0; dtype < EK_DTYPES && total > 0; dtype++)
        if (ek_dtype_is_floating((ek_dtype)dtype))
            EK_TRY(average_dtype(set, places, weights, (ek_dtype)dtype));
    return 0;
}
