/* Collectives over 1 to 5 ranks: against the same numbers computed in a loop. */
#include <pthread.h>

#include "core/tensor.h"
#include "kit/combined.h"
#include "kit/ranks.h"

COST(10)

enum { MOST = 5 };

static ek_tensor *numbers(ek_dtype dtype, int rank, int64_t n)
{
    ek_tensor *x = ek_empty(EK_SHAPE(n), dtype, .device = ek_cpu());
    for (int64_t i = 0; x && i < n; i++)
        combined_write(dtype, ek_tensor_address(x), i, combined_number(dtype, rank, i));
    return x ? ek_to_device(x, test_home()) : NULL;
}

static ek_tensor *zeros(int64_t n)
{
    return ek_zeros(EK_SHAPE(n), .device = test_home());
}

/* The elements, row-major, in the host's memory. */
static const void *elements(const ek_tensor *x)
{
    x = ek_contiguous(ek_to_device((ek_tensor *)x, ek_cpu()), EK_CONTIGUOUS);
    return x ? ek_tensor_address(x) : NULL;
}

/* All elements of a combination. Two are kept, because ranks are at most one call apart. Each is
 * made once for all ranks. */
typedef struct reference {
    ek_dist_op op;
    ek_dtype dtype;
    int ranks;
    int64_t count;
    char *bytes;
} reference;
static pthread_mutex_t reference_lock = PTHREAD_MUTEX_INITIALIZER;

static const char *reference_bytes(ek_dist_op op, ek_dtype dtype, int ranks, int64_t count)
{
    static reference reference_kept[2];
    static int reference_oldest;
    for (int k = 0; k < 2; k++)
        if (reference_kept[k].bytes && reference_kept[k].op == op &&
            reference_kept[k].dtype == dtype && reference_kept[k].ranks == ranks &&
            reference_kept[k].count == count)
            return reference_kept[k].bytes;
    const size_t size = ek_dtype_size(dtype);
    reference *made = &reference_kept[reference_oldest];
    reference_oldest = 1 - reference_oldest;
    free(made->bytes);
    *made = (reference){op, dtype, ranks, count, malloc((size_t)count * size + 1)};
    for (int64_t i = 0; i < count && made->bytes; i++)
        combined(op, dtype, ranks, NULL, i, made->bytes + (size_t)i * size);
    return made->bytes;
}

static bool same_as_combined(const ek_tensor *x, ek_dist_op op, int ranks)
{
    const char *found = elements(x);
    pthread_mutex_lock(&reference_lock);
    const char *wanted = reference_bytes(op, x->dtype, ranks, ek_count(x));
    const size_t nbytes = (size_t)ek_count(x) * ek_dtype_size(x->dtype);
    const bool same = found && wanted && memcmp(wanted, found, nbytes) == 0;
    pthread_mutex_unlock(&reference_lock);
    return same;
}

/* Sizes around the bounds of descriptors, slices, whole sums and parts of sums. */
static const int64_t sizes[] = {0, 1, 2, 3, 4, 5, 31, 33, 1000, 70000, 300001};
enum { SIZES = sizeof sizes / sizeof *sizes };

static bool op_fits(ek_dist_op op, ek_dtype dtype)
{
    return ek_dtype_is_floating(dtype) ? op < EK_DIST_BAND : op != EK_DIST_AVG;
}

RANKS_LOOP(all_reduce_is_the_sum_in_the_fixed_order, _i + 1, 0, MOST)
{
    for (int s = 0; s < SIZES; s += test_is_short() ? 3 : 1)
        for (int dtype = 0; dtype < EK_DTYPES; dtype++)
            for (ek_dist_op op = 0; op <= EK_DIST_BXOR; op++) {
                if (!op_fits(op, dtype) || (sizes[s] > 1000 && op > EK_DIST_AVG && dtype > 0))
                    continue;
                ek_scope scope = ek_scope_begin();
                ek_tensor *x = numbers(dtype, world->rank, sizes[s]);
                RANKS_OK(ek_dist_all_reduce(x, .op = op, .group = world));
                LOOP_CHECK(same_as_combined(x, op, world->size));
                ek_scope_end(&scope);
            }
    return NULL;
}

RANKS_LOOP(reduce_leaves_other_ranks_alone, _i + 1, 0, MOST)
{
    for (int s = 0; s < SIZES; s++)
        for (int dst = 0; dst < world->size; dst++) {
            ek_scope scope = ek_scope_begin();
            ek_tensor *x = numbers(EK_F32, world->rank, sizes[s]);
            RANKS_OK(ek_dist_reduce(x, dst, .group = world));
            if (world->rank == dst)
                LOOP_CHECK(same_as_combined(x, EK_DIST_SUM, world->size));
            else
                LOOP_CHECK(memcmp(elements(x), elements(numbers(EK_F32, world->rank, sizes[s])),
                                  (size_t)sizes[s] * 4) == 0);
            ek_scope_end(&scope);
        }
    return NULL;
}

static bool is_of_rank(const ek_tensor *x, int rank)
{
    ek_tensor *wanted = numbers(x->dtype, rank, ek_count(x));
    return memcmp(elements(x), elements(wanted), (size_t)ek_count(x) * ek_dtype_size(x->dtype)) ==
           0;
}

RANKS_LOOP(broadcast_is_the_roots, _i + 1, 0, MOST)
{
    for (int s = 0; s < SIZES; s++)
        for (int src = 0; src < world->size; src++) {
            ek_scope scope = ek_scope_begin();
            ek_tensor *x = numbers(EK_BF16, world->rank, sizes[s]);
            RANKS_OK(ek_dist_broadcast(x, src, .group = world));
            LOOP_CHECK(is_of_rank(x, src));
            ek_scope_end(&scope);
        }
    return NULL;
}

/* Rank r's tensors have r + extra elements. */
static const char *lists(ek_process_group *world, void *user)
{
    int64_t extra = *(const int64_t *)user;
    int size = world->size, rank = world->rank;
    ek_tensor *list[MOST], *inputs[MOST];
    ek_tensor *mine = numbers(EK_F32, rank, rank + extra);
    for (int r = 0; r < size; r++)
        list[r] = zeros(r + extra);
    RANKS_OK(ek_dist_all_gather(mine, list, .group = world));
    for (int r = 0; r < size; r++)
        LOOP_CHECK(is_of_rank(list[r], r));

    for (int root = 0; root < size; root++) {
        for (int r = 0; r < size; r++)
            list[r] = zeros(r + extra);
        RANKS_OK(ek_dist_gather(mine, rank == root ? list : NULL, root, .group = world));
        for (int r = 0; r < size && rank == root; r++)
            LOOP_CHECK(is_of_rank(list[r], r));
        ek_tensor *part = zeros(rank + extra);
        RANKS_OK(ek_dist_scatter(part, rank == root ? list : NULL, root, .group = world));
        LOOP_CHECK(is_of_rank(part, rank));
    }
    /* Rank r gives rank s r + s + extra elements. */
    for (int r = 0; r < size; r++) {
        inputs[r] = numbers(EK_F32, rank * size + r, rank + r + extra);
        list[r] = zeros(rank + r + extra);
    }
    RANKS_OK(ek_dist_all_to_all(.inputs = inputs, .list = list, .group = world));
    for (int r = 0; r < size; r++)
        LOOP_CHECK(is_of_rank(list[r], r * size + rank));
    return NULL;
}

static const char *reduce_scatter(ek_process_group *world, void *user)
{
    int64_t extra = *(const int64_t *)user;
    ek_tensor *list[MOST];
    for (int r = 0; r < world->size; r++)
        list[r] = numbers(EK_F32, world->rank, r + extra);
    ek_tensor *sum = zeros(world->rank + extra);
    RANKS_OK(ek_dist_reduce_scatter(sum, list, .group = world));
    LOOP_CHECK(same_as_combined(sum, EK_DIST_SUM, world->size));
    return NULL;
}

/* Transposed tensors and device memory travel by copies. */
RANKS_LOOP(strides_and_devices_are_the_caller_s_alone, _i + 1, 0, MOST)
{
    ek_tensor *x = ek_empty(EK_SHAPE(70, 50), .device = ek_cpu());
    for (int64_t i = 0; i < 3500; i++)
        ((float *)ek_tensor_address(x))[i] = (float)(i + 10000 * world->rank);
    x = ek_to_device(x, test_device(0));
    ek_tensor *t = ek_transpose(x, 0, 1);
    uint64_t before = atomic_load(&x->version->count);
    RANKS_OK(ek_dist_all_reduce(t, .group = world));
    LOOP_CHECK(world->size == 1 || atomic_load(&x->version->count) > before);
    int n = world->size;
    const float *sum = elements(x);
    for (int64_t i = 0; i < 3500; i++)
        LOOP_CHECK(sum[i] == (float)(i * n + 10000 * (n * (n - 1) / 2)));
    return NULL;
}

RANKS_LOOP(calls_that_are_only_started_end_in_any_order, _i + 1, 0, MOST)
{
    ek_dist_work *works[20];
    ek_tensor *x[20];
    for (int i = 0; i < 20; i++) {
        x[i] = numbers(EK_F32, world->rank, 40 + i * 1000);
        RANKS_OK(ek_dist_all_reduce(x[i], .group = world, .work = &works[i]));
        LOOP_CHECK(works[i] || world->size == 1);
    }
    for (int i = 19; i >= 0; i--) {
        RANKS_OK(ek_dist_wait(works[i]));
        LOOP_CHECK(same_as_combined(x[i], EK_DIST_SUM, world->size));
    }
    if (world->size == 1)
        return NULL;
    /* Nobody writes to a tensor that is under way. */
    RANKS_OK(ek_dist_all_reduce(x[0], .group = world, .work = &works[0]));
    ek_tensor_touch(x[0]);
    RANKS_EXPECT(ek_dist_wait(works[0]), EK_E_MODIFIED, "between the call and ek_dist_wait");
    return NULL;
}

/* ---- groups ---- */

RANKS_LOOP(groups_have_the_world_s_ranks, 3, 0, 4)
{
    int evens[] = {0, 2};
    ek_process_group *pair = ek_communication_new_group(world->communication, evens, 2, 60);
    ek_process_group *all =
        ek_communication_new_group(world->communication, (int[]){0, 1, 2}, 3, 60);
    LOOP_CHECK(pair && all);
    ek_tensor *x = ek_full(world->rank + 1, EK_SHAPE(300), .device = test_home());
    RANKS_OK(ek_dist_all_reduce(x, .group = pair));
    LOOP_CHECK(element(x, 0) == (world->rank == 1 ? 2 : 4));
    RANKS_OK(ek_dist_all_reduce(x, .group = all));
    LOOP_CHECK(element(x, 299) == 10);
    if (pair->rank >= 0) {
        RANKS_OK(ek_dist_broadcast(x, 2, .group = pair)); /* ranks are the world's */
        RANKS_EXPECT(ek_dist_broadcast(x, 1, .group = pair), EK_E_INVALID,
                     "rank 1 is not in group 1");
    } else { /* that was a failure of the job */
        RANKS_EXPECT(ek_dist_barrier(.group = world), EK_E_ABORTED, "rank 1 is not in group 1");
    }
    RANKS_OK(ek_dist_barrier(.group = world));
    ek_communication_destroy_group(pair);
    ek_communication_destroy_group(all);
    return NULL;
}

/* ---- tests: _i + 1 ranks, with other delays for each number ---- */

TEST_LOOP(each_rank_gets_its_tensor_of_each, 0, MOST)
{
    int64_t extras[] = {0, 7, 30000};
    for (int e = 0; e < 3; e++)
        ranks_check(_i + 1, (uint64_t)_i, lists, &extras[e]);
}

TEST_LOOP(reduce_scatter_gives_each_rank_its_sum, 0, MOST)
{
    int64_t extras[] = {0, 7, 30000};
    for (int e = 0; e < 3; e++)
        ranks_check(_i + 1, (uint64_t)_i, reduce_scatter, &extras[e]);
}
