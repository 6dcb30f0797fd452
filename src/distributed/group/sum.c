/* sum.c: see sum.h. */
#include "group/sum.h"

#include "core/slab.h"
#include "link/combine.h"

int64_t ek_sum_begin(int64_t count, int ranks, int rank)
{
    return ek_slab_cut(count, EK_SUM_UNIT, ranks, rank);
}

static int64_t sum_begin(const ek_sum *sum, int rank)
{
    return ek_sum_begin(sum->count, sum->group->size, rank);
}

/* Returns the bytes of a rank's slice. */
static size_t sum_nbytes(const ek_sum *sum, int rank)
{
    return (size_t)(sum_begin(sum, rank + 1) - sum_begin(sum, rank)) * ek_dtype_size(sum->dtype);
}

static char *sum_address(const ek_sum *sum, int rank)
{
    return sum->address + (size_t)sum_begin(sum, rank) * ek_dtype_size(sum->dtype);
}

/* Returns where in scratch the term of a rank lies. */
static char *sum_term(const ek_sum *sum, int rank)
{
    return sum->scratch + (size_t)rank * sum_nbytes(sum, 0); /* slice 0 is the largest */
}

size_t ek_sum_scratch_nbytes(ek_dtype dtype, int64_t count, int ranks)
{
    return (size_t)ek_sum_begin(count, ranks, 1) * (size_t)ranks * ek_dtype_size(dtype);
}

int ek_sum_spread(const ek_sum *sum, ek_request **request)
{
    const ek_process_group *group = sum->group;
    for (int r = 0; r < group->size; r++) {
        sum->out[r] = (ek_bytes){sum_address(sum, r), sum_nbytes(sum, r)};
        sum->in[r] = (ek_bytes){sum_term(sum, r), sum_nbytes(sum, group->rank)};
    }
    return group->communication->transport->all_to_all(group->communicator, sum->out, sum->in,
                                                       request);
}

char *ek_sum_slice(const ek_sum *sum)
{
    int rank = sum->group->rank;
    const void **terms = (const void **)(void *)sum->out; /* no transfer uses `out` now */
    for (int r = 0; r < sum->group->size; r++)
        terms[r] = sum_term(sum, r);
    char *mine = sum_address(sum, rank);
    terms[rank] = mine;
    /* On other ranks than the root, elements must not change. */
    char *out = sum->root < 0 || sum->root == rank ? mine : sum_term(sum, rank);
    ek_combine(sum->op, sum->dtype, terms, sum->group->size, (void *[]){out}, 1,
               sum_begin(sum, rank + 1) - sum_begin(sum, rank));
    return out;
}

int ek_sum_collect(const ek_sum *sum, char *slice, ek_request **request)
{
    const ek_process_group *group = sum->group;
    const ek_transport *transport = group->communication->transport;
    if (sum->root < 0) {
        for (int r = 0; r <= group->size; r++)
            group->bounds[r] = (size_t)(sum_address(sum, r) - sum->address);
        return transport->all_gather(group->communicator, sum->address, group->bounds, request);
    }
    bool root = sum->root == group->rank;
    for (int r = 0; r < group->size; r++) {
        sum->out[r] = (ek_bytes){slice, r == sum->root ? sum_nbytes(sum, group->rank) : 0};
        sum->in[r] = (ek_bytes){sum_address(sum, r), root ? sum_nbytes(sum, r) : 0};
    }
    return transport->all_to_all(group->communicator, sum->out, sum->in, request);
}

void ek_sum_in_place(const ek_sum *sum, char *const *addresses)
{
    int rank = sum->group->rank;
    void **terms = (void **)(void *)sum->out;
    size_t at = (size_t)(sum_address(sum, rank) - sum->address);
    for (int r = 0; r < sum->group->size; r++)
        terms[r] = addresses[r] + at;
    bool all = sum->root < 0;
    ek_combine(sum->op, sum->dtype, (const void *const *)terms, sum->group->size,
               all ? terms : &terms[sum->root], all ? sum->group->size : 1,
               sum_begin(sum, rank + 1) - sum_begin(sum, rank));
}
