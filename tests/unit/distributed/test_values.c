/* Values between ranks: nests of tensors and numbers come out as they went in. */
#include "core/tensor.h"
#include "kit/ranks.h"

enum { RANKS = 3 };

/* ---- nests that every rank can make of every rank ---- */

static ek_tensor *numbers(int rank, int64_t n, ek_dtype dtype)
{
    ek_tensor *x = ek_empty(EK_SHAPE(n), EK_F64, .device = ek_cpu());
    for (int64_t i = 0; x && i < n; i++)
        ((double *)ek_tensor_address(x))[i] = (double)((i * 37 + rank * 11) % 120);
    return ek_to_device(ek_to_dtype(x, dtype), test_home());
}

/* Tensors of all dtypes, of no elements and of no dimensions, views, and a leaf. */
static ek_value tensors_of(int rank)
{
    ek_value items[EK_DTYPES + 6];
    int count = 0;
    for (int dtype = 0; dtype < EK_DTYPES; dtype++)
        items[count++] = EK_VALUE(numbers(rank, 3 + dtype + rank, (ek_dtype)dtype));
    ek_tensor *x = ek_reshape(numbers(rank, 2 * 3 * 4 * 5, EK_F32), EK_SHAPE(2, 3, 4, 5));
    ek_tensor *leaf = ek_clone(x);
    if (leaf)
        ek_tensor_set_requires_grad(leaf, true);
    items[count++] = EK_VALUE(ek_contiguous(x, EK_CHANNELS_LAST));
    items[count++] = EK_VALUE(ek_transpose(x, 1, 3));
    items[count++] =
        EK_VALUE(ek_expand(ek_reshape(numbers(rank, 1, EK_BF16), EK_SHAPE(1, 1)), EK_SHAPE(3, 2)));
    items[count++] = EK_VALUE(leaf);
    items[count++] = EK_VALUE(numbers(rank, 0, EK_I64));
    items[count++] = EK_VALUE(ek_sum(numbers(rank, 5, EK_F64)));
    return ek_value_list(items, count);
}

static ek_value nest_of(int rank)
{
    if (rank == 2)
        return ek_value_of_int(-7);
    ek_value batched = ek_value_batched(EK_VALUE(ek_ones(EK_SHAPE(2, 3))), rank == 0 ? 1 : 0);
    ek_value marked = EK_SCATTERED(ek_value_of_int(1), ek_value_of_float(-0.0), batched);
    ek_value empty = ek_value_list(NULL, 0), nothing = ek_value_dict(NULL, 0);
    ek_value deep = ek_value_none();
    for (int i = 0; i < 40; i++)
        deep = EK_LIST(deep);
    ek_value_entry entries[] = {{"", ek_value_of_float(NAN)},
                                {"tensors", tensors_of(rank)},
                                {"a longer key, of \xc3\xa9", ek_value_of_int(INT64_MIN)},
                                {"marked", marked},
                                {"empty", empty},
                                {"nothing", nothing},
                                {"deep", deep}};
    return ek_value_dict(entries, sizeof entries / sizeof *entries);
}

static const char *same_tensor(ek_tensor *x, ek_tensor *wanted)
{
    LOOP_CHECK(x->dtype == wanted->dtype && ek_same_shape(x, wanted));
    LOOP_CHECK(ek_tensor_dev(x)->id.kind == EK_CPU && !ek_tensor_requires_grad(x));
    wanted = ek_contiguous(ek_to_device(ek_detach(wanted), ek_cpu()), EK_CONTIGUOUS);
    LOOP_CHECK(wanted && ek_tensor_is_contiguous(x, EK_CONTIGUOUS));
    size_t nbytes = (size_t)ek_count(x) * ek_dtype_size(x->dtype);
    LOOP_CHECK(nbytes == 0 || memcmp(ek_tensor_address(x), ek_tensor_address(wanted), nbytes) == 0);
    return NULL;
}

static const char *same_value(ek_value x, ek_value wanted)
{
    LOOP_CHECK_EQ(x.kind, wanted.kind);
    LOOP_CHECK_EQ(x.per_device, wanted.per_device);
    LOOP_CHECK_EQ(x.batch, wanted.batch);
    if (x.kind == EK_VALUE_TENSOR)
        return same_tensor(x.as.tensor, wanted.as.tensor);
    if (x.kind == EK_VALUE_INT)
        LOOP_CHECK_EQ(x.as.integer, wanted.as.integer);
    if (x.kind == EK_VALUE_FLOAT)
        LOOP_CHECK(memcmp(&x.as.floating, &wanted.as.floating, sizeof(double)) == 0);
    LOOP_CHECK_EQ(ek_value_length(x), ek_value_length(wanted));
    for (int i = 0; i < ek_value_length(x); i++) {
        if (x.kind == EK_VALUE_DICT)
            LOOP_CHECK(strcmp(ek_value_key(x, i), ek_value_key(wanted, i)) == 0);
        LOOP_PASS(same_value(ek_value_at(x, i), ek_value_at(wanted, i)));
    }
    return NULL;
}

RANKS_LOOP(nests_come_out_as_they_went_in, _i, 1, RANKS + 1)
{
    for (int src = 0; src < world->size; src++) {
        ek_scope scope = ek_scope_begin();
        ek_value own = src == world->rank ? nest_of(src) : ek_value_of_pointer(world);
        ek_value got = ek_scope_return_value(&scope, ek_dist_broadcast_value(own, src, world));
        LOOP_CHECK(got.kind != EK_VALUE_ERROR);
        LOOP_PASS(same_value(got, nest_of(src)));
    }
    ek_value all[RANKS];
    ek_scope scope = ek_scope_begin();
    RANKS_OK(ek_dist_all_gather_value(nest_of(world->rank), all, world));
    for (int r = 0; r < world->size; r++)
        LOOP_PASS(same_value(all[r], nest_of(r)));
    ek_scope_end(&scope);
    return NULL;
}

RANKS_LOOP(a_number_of_one_rank_or_of_all, _i, 1, RANKS + 1)
{
    for (int src = 0; src < world->size; src++) {
        double number = world->rank == src ? 0.1 : NAN;
        RANKS_OK(ek_dist_broadcast_number(&number, src, world));
        LOOP_CHECK(number == 0.1);
    }
    double sum = 0.1 * world->rank, least = world->rank + 1, wanted = 0;
    for (int r = 0; r < world->size; r++)
        wanted += 0.1 * r;
    RANKS_OK(ek_dist_all_reduce_number(&sum, EK_DIST_SUM, world));
    RANKS_OK(ek_dist_all_reduce_number(&least, EK_DIST_MIN, world));
    LOOP_CHECK(fabs(sum - wanted) < 1e-15 && least == 1);
    if (world->size > 1) { /* the other ranks learn of one rank's mistake */
        int rc = ek_dist_broadcast_number(world->rank == 1 ? NULL : &sum, 0, world);
        RANKS_EXPECT(rc, world->rank == 1 ? EK_E_INVALID : EK_E_ABORTED, "number is NULL");
    }
    return NULL;
}

RANKS_TEST(large_tensors, RANKS, 1)
{
    ek_value all[RANKS];
    ek_tensor *x = world->rank == 1 ? numbers(1, 500001, EK_F64) : numbers(0, 1, EK_U8);
    RANKS_OK(ek_dist_all_gather_value(EK_VALUE(x), all, world));
    LOOP_PASS(same_value(all[1], EK_VALUE(numbers(1, 500001, EK_F64))));
    ek_value got = ek_dist_broadcast_value(all[1], 2, world);
    return same_value(got, all[1]);
}

/* src is a rank of the world, also in groups. */
RANKS_TEST(groups_have_ranks_of_the_world, RANKS, 2)
{
    int pair[] = {0, 2};
    ek_process_group *group = ek_communication_new_group(world->communication, pair, 2, 60);
    LOOP_CHECK(group);
    ek_value all[2] = {ek_value_of_int(-1), ek_value_of_int(-1)};
    ek_value own = ek_value_of_int(world->rank), got = ek_dist_broadcast_value(own, 2, group);
    RANKS_OK(ek_dist_all_gather_value(own, all, group));
    if (world->rank == 1) {
        LOOP_CHECK(got.kind == EK_VALUE_NONE);
        LOOP_CHECK_EQ(all[0].as.integer, -1);
    } else {
        LOOP_CHECK_EQ(got.as.integer, 2);
        LOOP_CHECK_EQ(all[0].as.integer, 0);
        LOOP_CHECK_EQ(all[1].as.integer, 2);
    }
    ek_communication_destroy_group(group);
    return NULL;
}

/* ---- errors ---- */

static int wrong_call(ek_process_group *world, int what)
{
    bool odd = world->rank == 1;
    ek_value all[RANKS], value = EK_LIST(ek_value_of_int(1), ek_value_none());
    if (odd && (what == 0 || what == 1))
        value = EK_LIST(value, ek_value_of_pointer(world));
    if (odd && what == 2) {
        ek_error(EK_E_USER, "no data is left");
        value = ek_value_error();
    }
    switch (what) {
    case 0:
    case 2:
        return ek_dist_all_gather_value(value, all, world);
    case 1:
        return ek_dist_broadcast_value(value, 1, world).kind == EK_VALUE_ERROR ? ek_error_status()
                                                                               : 0;
    case 3:
        return ek_dist_all_gather_value(value, odd ? NULL : all, world);
    case 4:
        return ek_dist_broadcast_value(value, odd ? 7 : 0, world).kind == EK_VALUE_ERROR
                   ? ek_error_status()
                   : 0;
    default:
        return odd ? ek_dist_all_reduce(numbers(1, 2, EK_F32), .group = world)
                   : ek_dist_all_gather_value(value, all, world);
    }
}

static const struct {
    int odd, others;
    const char *sentence;
} wrong[] = {
    {EK_E_INVALID, EK_E_ABORTED, "all_gather_value: the value has a pointer, which means nothing"},
    {EK_E_INVALID, EK_E_ABORTED, "broadcast_value: the value has a pointer, which means nothing"},
    {EK_E_USER, EK_E_ABORTED, "no data is left"},
    {EK_E_INVALID, EK_E_ABORTED, "all_gather_value: the array for the values is NULL"},
    {EK_E_INVALID, EK_E_ABORTED, "broadcast_value: rank 7 is not in the world"},
    {EK_E_STATE, EK_E_STATE, "rank 0 calls all_gather_value, rank 1 all_reduce of f32[2] by SUM"},
};
enum { WRONG = sizeof wrong / sizeof *wrong };

RANKS_LOOP(wrong_calls_are_errors_of_all_ranks, RANKS, 0, WRONG)
{
    int what = *(const int *)user;
    RANKS_EXPECT(wrong_call(world, what), world->rank == 1 ? wrong[what].odd : wrong[what].others,
                 wrong[what].sentence);
    ek_value got = ek_dist_broadcast_value(ek_value_of_int(world->rank), 2, world);
    LOOP_CHECK_EQ(got.as.integer, 2);
    return NULL;
}

/* Rank 0 sends the bytes of a value with some of them changed or missing, as another program might.
 * Rank 1 gets a value or an error. */
static const char *send_damaged(ek_process_group *world, const ek_tensor *bytes, uint64_t seed)
{
    ek_tensor *copy = ek_clone((ek_tensor *)bytes);
    unsigned char *data = ek_tensor_address(copy);
    for (int k = 0; k < 1 + (int)(seed % 3); k++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        data[(seed >> 33) % (uint64_t)copy->shape[0]] = (unsigned char)(seed >> 24);
    }
    if (seed % 5 == 0)
        copy = ek_narrow(copy, 0, 0, (int64_t)((seed >> 20) % (uint64_t)copy->shape[0]));
    ek_tensor *size = ek_full((double)copy->shape[0], EK_SHAPE(1), EK_I64, .device = ek_cpu());
    RANKS_OK(ek_dist_broadcast(size, 0, .group = world));
    RANKS_OK(ek_dist_broadcast(copy, 0, .group = world));
    if (ek_dist_barrier(.group = world) < 0)
        RANKS_EXPECT(ek_error_status(), EK_E_ABORTED, "rank 1 on ");
    return NULL;
}

static const char *damaged(ek_process_group *world, void *user)
{
    int *refusals = user;
    /* The bytes of the value, as they are sent. */
    ek_tensor *size = ek_zeros(EK_SHAPE(1), EK_I64, .device = ek_cpu()), *bytes = NULL;
    if (world->rank == 1) {
        ek_dist_broadcast_value(nest_of(1), 1, world);
    } else {
        RANKS_OK(ek_dist_broadcast(size, 1, .group = world));
        bytes = ek_empty(EK_SHAPE(*(int64_t *)ek_tensor_address(size)), EK_U8, .device = ek_cpu());
        RANKS_OK(ek_dist_broadcast(bytes, 1, .group = world));
    }
    for (uint64_t seed = 0; seed < 200; seed++) {
        ek_scope scope = ek_scope_begin();
        if (world->rank == 0)
            LOOP_PASS(send_damaged(world, bytes, seed));
        else if (ek_dist_broadcast_value(ek_value_none(), 0, world).kind == EK_VALUE_ERROR) {
            int status = ek_error_status(); /* no memory is asked for that the bytes don't fill */
            LOOP_CHECK(status == EK_E_FORMAT || status == EK_E_INVALID);
            ek_error_clear();
            ++*refusals;
        } else {
            RANKS_OK(ek_dist_barrier(.group = world));
        }
        ek_scope_end(&scope);
    }
    return NULL;
}

TEST(bytes_of_no_value_are_refused)
{
    int refusals = 0;
    ranks_check(2, 0, damaged, &refusals);
    ck_assert_int_gt(refusals, 20);
    ck_assert_int_lt(refusals, 200);
}
