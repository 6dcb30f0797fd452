/* What other folders see of processes: joins, sums, counts and outcomes over a group. */
#include "core/ranks.h"

#include "evenkeel/ops.h"
#include "group/world.h"
#include "kit/ranks.h"

enum { RANKS = 3 };

static const char *has(ek_tensor *x, const double *wanted, int count)
{
    ek_tensor *row = x ? ek_contiguous(ek_to_device(ek_detach(x), ek_cpu()), EK_CONTIGUOUS) : NULL;
    LOOP_CHECK(row);
    LOOP_CHECK_EQ(ek_count(row), count);
    for (int i = 0; i < count; i++)
        LOOP_CHECK(((double *)ek_tensor_address(row))[i] == wanted[i]);
    return NULL;
}

/* Rank r has r rows of two columns, each with r + 1. */
static ek_tensor *rows_of(int rank)
{
    ek_tensor *x = ek_full(rank + 1, EK_SHAPE(rank, 2), EK_F64, .device = test_home());
    return x && ek_tensor_set_requires_grad(x, true) >= 0 ? x : NULL;
}

static const char *tensors(ek_ranks *ranks, const int64_t *sizes)
{
    const double joined[] = {2, 2, 3, 3, 3, 3}, sums[] = {6, 6};
    ek_tensor *x = rows_of(ranks->rank);
    ek_tensor *all = ranks->join(ranks, x, 0, sizes);
    LOOP_PASS(has(all, joined, 6));
    ek_tensor *one = ek_full(ranks->rank + 1, EK_SHAPE(2), EK_F64, .device = test_home());
    ek_tensor *sum = ranks->sum(ranks, one);
    LOOP_PASS(has(sum, sums, 2));
    RANKS_OK(ek_backward(ek_mul_scalar(ek_sum(ek_mul(all, sum)), ranks->rank + 1)));
    const double gradient[] = {36, 36, 36, 36}; /* 6 (1 + 2 + 3) */
    return has(ek_tensor_grad(x), gradient, 2 * ranks->rank);
}

RANKS_LOOP(tensors_and_counts_of_all_ranks, RANKS, 0, 3)
{
    ek_ranks *ranks = ek_ranks_of(world);
    LOOP_CHECK(ranks && ranks->rank == world->rank && ranks->size == world->size);
    int64_t mine[EK_RANKS_COUNTS], all[RANKS * EK_RANKS_COUNTS], sizes[RANKS];
    for (int count = 0; count <= EK_RANKS_COUNTS; count++) {
        for (int i = 0; i < count; i++)
            mine[i] = 1000 * world->rank - i;
        RANKS_OK(ranks->gather(ranks, mine, count, all));
        for (int r = 0; r < RANKS; r++)
            for (int i = 0; i < count; i++)
                LOOP_CHECK_EQ(all[r * count + i], 1000 * r - i);
    }
    mine[0] = world->rank;
    RANKS_OK(ranks->gather(ranks, mine, 1, sizes));
    LOOP_PASS(tensors(ranks, NULL));
    LOOP_PASS(tensors(ranks, sizes));
    RANKS_OK(ranks->agree(ranks, 0));
    ek_object_release(ranks);
    return NULL;
}

/* ---- errors ---- */

static int wrong_call(ek_ranks *ranks, int what)
{
    bool odd = ranks->rank == 1;
    int64_t numbers[RANKS * EK_RANKS_COUNTS + 1] = {0, 1, 2};
    switch (what) {
    case 0:
        if (odd)
            ek_error(EK_E_USER, "rank 1 has no data");
        return ranks->agree(ranks, odd ? EK_E_USER : 0);
    case 1:
        return ranks->gather(ranks, numbers, odd ? 2 : 1, numbers + 3);
    case 2:
        return ranks->gather(ranks, numbers, odd ? EK_RANKS_COUNTS + 1 : 1, numbers + 3);
    default:
        return ranks->join(ranks, rows_of(odd ? 2 : ranks->rank), 0, numbers) ? 0
                                                                              : ek_error_status();
    }
}

static const struct {
    int odd, others;
    const char *sentence;
} wrong[] = {
    {EK_E_USER, EK_E_ABORTED, "rank 1 has no data"},
    {EK_E_STATE, EK_E_STATE,
     "rank 0 calls the counts of all ranks of i64[1], rank 1 the counts of all ranks of i64[2]"},
    {EK_E_INVALID, EK_E_ABORTED, "17 of them; at most 16"},
    {EK_E_SHAPE, EK_E_ABORTED, "the size is 2 along dimension 0, but it was to be 1"},
};
enum { WRONG = sizeof wrong / sizeof *wrong };

RANKS_LOOP(wrong_calls_are_errors_of_all_ranks, RANKS, 0, WRONG)
{
    int what = *(const int *)user;
    ek_ranks *ranks = ek_ranks_of(world);
    LOOP_CHECK(ranks);
    RANKS_EXPECT(wrong_call(ranks, what), world->rank == 1 ? wrong[what].odd : wrong[what].others,
                 wrong[what].sentence);
    RANKS_OK(ranks->agree(ranks, 0));
    ek_object_release(ranks);
    return NULL;
}

/* ---- nobody else ---- */

static const char *pair(ek_process_group *world, void *user)
{
    int members[] = {0};
    ek_process_group *group = ek_communication_new_group(world->communication, members, 1, 60);
    LOOP_CHECK(group);
    LOOP_CHECK(!ek_ranks_of(group)); /* rank 1 is not in it */
    ek_communication_destroy_group(group);
    return NULL;
}

TEST(without_others_there_are_no_ranks)
{
    ck_assert_ptr_null(ek_ranks_of(NULL));
    assert_ok(ek_dist_init_process_group());
    ck_assert_ptr_null(ek_ranks_of(NULL));
    ck_assert_int_eq(ek_error_status(), 0);
    assert_ok(ek_dist_destroy_process_group(NULL));
    ranks_check(2, 0, pair, NULL);
}
