/* running_stats.c: averages of running statistics.
 *
 *     b = b_0 + sum_d (n_d / n) (b_d - b_0), d ascending
 *
 * on the first replica's device, for all buffers of a dtype at once. Written with differences,
 * buffers that are equal everywhere stay what they are to the bit. */
#include "parallel/running_stats.h"

#include <stdlib.h>

#include "comm/transport.h"
#include "kernels/kernels.h"

/* Buffers of one dtype: copies[i * devices + d] is buffer i on device d. */
typedef struct group {
    ek_tensor **copies;
    int count, devices;
    ek_tensor **list; /* room for one device's */
} group;

static ek_tensor *const *copies_on(const group *g, int d)
{
    for (int i = 0; i < g->count; i++)
        g->list[i] = g->copies[i * g->devices + d];
    return g->list;
}

static int copy_back(const group *g, const ek_slab *average)
{
    EK_TRY(ek_comm_copy_list(copies_on(g, 0), average->members, g->count));
    for (int i = 0; i < g->count; i++)
        ek_tensor_written(g->copies[i * g->devices], "the average of running statistics");
    return 0;
}

/* first: b_0; sum: of the weighted differences, zero at first; other: room for one b_d. */
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
    EK_TRY(ek_comm_copy_list(first->members, copies_on(g, 0), g->count));
    for (int d = 1; d < g->devices; d++) {
        EK_TRY(ek_comm_send(other->members, copies_on(g, d), g->count));
        EK_TRY(kernels->binary(dev, EK_BINARY_SUB, flat_other, flat_other, flat_first, 0));
        EK_TRY(kernels->binary(dev, EK_BINARY_ADD, flat_sum, flat_sum, flat_other, weights[d]));
    }
    EK_TRY(kernels->binary(dev, EK_BINARY_ADD, flat_sum, flat_sum, flat_first, 1));
    return copy_back(g, sum);
}

static int average_group(const group *g, const double *weights)
{
    ek_dev *dev = ek_tensor_dev(g->copies[0]);
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    ek_slab *first = ek_slab_new(dev, copies_on(g, 0), g->count);
    ek_slab *sum = first ? ek_slab_new(dev, copies_on(g, 0), g->count) : NULL;
    ek_slab *other = sum ? ek_slab_new(dev, copies_on(g, 0), g->count) : NULL;
    ek_memory_set_category(before);
    ek_scope scope = ek_scope_begin();
    int rc = other ? average(g, weights, first, sum, other) : ek_error_pending();
    ek_scope_end(&scope);
    ek_object_release(first);
    ek_object_release(sum);
    ek_object_release(other);
    return rc;
}

static int average_dtype(const ek_replica_set *set, const double *weights, int devices,
                         ek_dtype dtype)
{
    group g = {.count = ek_replica_set_written_buffers(set, devices, dtype, NULL),
               .devices = devices};
    if (g.count == 0)
        return 0;
    g.copies = ek_calloc((size_t)g.count * (size_t)(devices + 1), sizeof *g.copies);
    if (!g.copies)
        return ek_error_pending();
    g.list = g.copies + (ptrdiff_t)g.count * devices;
    ek_replica_set_written_buffers(set, devices, dtype, g.copies);
    int rc = average_group(&g, weights);
    free(g.copies);
    return rc;
}

int ek_running_stats_average(const ek_replica_set *set, const int64_t *samples, int count)
{
    double weights[EK_MAX_DEVICES], total = 0;
    for (int d = 0; d < count; d++)
        total += (double)samples[d];
    for (int d = 0; d < count; d++)
        weights[d] = (double)samples[d] / total;
    for (int dtype = 0; dtype < EK_DTYPES && total > 0; dtype++)
        if (ek_dtype_is_floating((ek_dtype)dtype))
            EK_TRY(average_dtype(set, weights, count, (ek_dtype)dtype));
    return 0;
}
