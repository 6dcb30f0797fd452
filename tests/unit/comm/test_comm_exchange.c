/* Moves and sums below the graph, on host devices whose backend says that they don't reach each
 * other but have collectives, and counts these. */
#include "comm/exchange.h"
#include "comm_setup.h"
#include "kit/combined.h"
#include "kit/remote.h"

NAMES_DEVICES

enum { COUNT = 3 };

static ek_tensor *apart(int device, int i, double first)
{
    return ramp(first + 10 * i, 1, EK_SHAPE(3 + i), EK_F32, ek_host(device));
}

/* Room on each device but the first for the tensors, and the moves that bring them there. */
static void plan_broadcast(ek_tensor *const *from, ek_move *moves)
{
    for (int d = 1; d < DEVICES; d++) {
        ek_tensor *to[COUNT];
        assert_ok(ek_comm_room(ek_dev_get(ek_host(d)), from, COUNT, to));
        for (int i = 0; i < COUNT; i++)
            moves[(d - 1) * COUNT + i] = (ek_move){to[i], from[i]};
    }
}

static void assert_moved(const ek_move *moves, int count)
{
    for (int k = 0; k < count; k++)
        assert_ramp(moves[k].to, 10 * (k % COUNT), 1);
}

/* Tensors that lie apart are packed once, neighbours (_i) go as they are. */
TEST_LOOP(one_list_for_all_is_a_broadcast, 0, 2)
{
    ek_tensor *from[COUNT], *room[COUNT];
    ek_move moves[(DEVICES - 1) * COUNT];
    for (int i = 0; i < COUNT; i++)
        from[i] = apart(0, i, 0);
    assert_ok(ek_comm_room(ek_dev_get(ek_host(0)), from, COUNT, room));
    for (int i = 0; i < COUNT && _i; i++) {
        assert_ok(ek_comm_copy(room[i], from[i]));
        from[i] = room[i];
    }
    plan_broadcast(from, moves);
    make_remote(DEVICES, EK_COLLECTIVE_MOVES);
    assert_ok(ek_exchange("test", moves, (DEVICES - 1) * COUNT));
    ck_assert_int_eq(broadcasts, 1);
    ck_assert_int_eq(copies + exchanges, 0);
    ck_assert_uint_eq(bytes_now(ek_host(0), EK_MEMORY_COMMUNICATION), 0);
    assert_moved(moves, (DEVICES - 1) * COUNT);
}

/* A backend that offers moves and has no functions for them: lists for all (_i), and others. */
TEST_LOOP(what_a_backend_lacks_is_copied, 0, 2)
{
    ek_tensor *from[COUNT];
    ek_move moves[(DEVICES - 1) * COUNT];
    int count = (DEVICES - 1) * COUNT - !_i;
    for (int i = 0; i < COUNT; i++)
        from[i] = apart(0, i, 0);
    plan_broadcast(from, moves);
    make_remote(DEVICES, EK_COLLECTIVE_MOVES);
    remote.exchange = NULL;
    assert_ok(ek_exchange("test", moves, count));
    ck_assert_int_eq(copies, DEVICES - 1);
    assert_moved(moves, count);
}

/* A receiver gets less than the others. */
TEST(other_lists_are_exchanges)
{
    ek_tensor *from[COUNT];
    ek_move moves[(DEVICES - 1) * COUNT];
    for (int i = 0; i < COUNT; i++)
        from[i] = apart(0, i, 0);
    plan_broadcast(from, moves);
    make_remote(DEVICES, EK_COLLECTIVE_MOVES);
    assert_ok(ek_exchange("test", moves, (DEVICES - 1) * COUNT - 1));
    ck_assert_int_eq(broadcasts + copies, 0);
    ck_assert_int_eq(exchanges, 1);
    assert_moved(moves, (DEVICES - 1) * COUNT - 1);
}

/* Both to one device, packed once; with gaps at the receiver it is copied. */
TEST_LOOP(layouts_may_differ, 0, 2)
{
    ek_tensor *x = ramp(0, 1, EK_SHAPE(4, 5), EK_F64, ek_host(1));
    ek_tensor *turned = ek_permute(x, EK_SHAPE(1, 0));
    ek_tensor *dense = ek_zeros(EK_SHAPE(5, 4), .dtype = EK_F64, .device = ek_host(0));
    ek_tensor *wide = ek_zeros(EK_SHAPE(4, 7), .dtype = EK_F64, .device = ek_host(0));
    ek_tensor *gaps = ek_narrow(wide, 1, 1, 5);
    make_remote(DEVICES, _i ? EK_COLLECTIVE_MOVES : EK_COLLECTIVE_NONE);
    assert_ok(ek_exchange("test", (ek_move[]){{dense, turned}, {gaps, x}}, 2));
    for (int i = 0; i < 20; i++) {
        ck_assert_double_eq(element(dense, i), i % 4 * 5 + i / 4);
        ck_assert_double_eq(element(gaps, i), i);
    }
    ck_assert_double_eq(element(wide, 0), 0);
    ck_assert_double_eq(element(wide, 6), 0);
}

/* ---- sums ---- */

enum { LARGE = 1500007 }; /* 6 MB of f32: two chunks */

static ek_tensor *noise(int device, int64_t count)
{
    ek_generator *generator = ek_generator_new(23 + (uint64_t)device);
    ek_tensor *x = ek_empty(EK_SHAPE(count), .device = ek_host(device));
    assert_ok(ek_uniform_(x, -1, 1, generator));
    ek_generator_free(generator);
    return x;
}

/* The library of these tests adds in descending order of devices. */
static void assert_sum(const ek_tensor *out, ek_tensor *const *terms, bool by_library)
{
    const float *values = ek_tensor_address(out);
    for (int64_t i = 0; i < ek_tensor_count(out); i++) {
        float of[DEVICES], sum = 0;
        for (int d = DEVICES - 1; d >= 0; d--)
            sum += of[d] = ((const float *)ek_tensor_address(terms[d]))[i];
        sum = by_library ? sum : combined_f32(of, DEVICES);
        if (!(values[i] == sum))
            ck_abort_msg("element %lld is %.9g, not %.9g", (long long)i, (double)values[i],
                         (double)sum);
    }
}

/* A large tensor, a small one, nothing, and one that isn't there on all devices (_i). */
TEST_LOOP(every_device_adds_a_slice, 0, 2)
{
    static const int64_t sizes[] = {LARGE, 5, 0, 7000};
    ek_tensor *terms[4][DEVICES];
    ek_addition list[4];
    for (int i = 0; i < 4; i++) {
        for (int d = 0; d < DEVICES; d++)
            terms[i][d] = noise(d, sizes[i]);
        ek_tensor *out = ek_empty(EK_SHAPE(sizes[i]), .device = ek_host(0));
        list[i] = (ek_addition){out, terms[i], i == 3 && _i ? DEVICES - 1 : DEVICES, NULL};
    }
    make_remote(DEVICES, EK_COLLECTIVE_MOVES);
    uint64_t before[DEVICES];
    ek_memory_stats stats;
    for (int d = 0; d < DEVICES; d++) {
        assert_ok(ek_memory_reset_peak(ek_host(d)));
        assert_ok(ek_memory_get_stats(ek_host(d), &stats));
        before[d] = stats.in_use;
    }
    assert_ok(ek_add_all("test", list, 4));
    ck_assert_int_eq(copies, 0);
    if (!_i)
        ck_assert_int_eq(exchanges, 4); /* two stretches: what is added, and what comes of it */
    for (int d = 0; d < DEVICES; d++) {
        assert_ok(ek_memory_get_stats(ek_host(d), &stats));
        ck_assert_uint_eq(stats.in_use, before[d]);
        ck_assert_uint_le(stats.peak - before[d], EK_COMM_BUFFER_BYTES);
        if (!_i && d > 0)
            ck_assert_uint_gt(stats.peak - before[d], 1 << 20);
    }
    for (int i = 0; i < 3 + !_i; i++)
        assert_sum(list[i].out, terms[i], false);
}

TEST(the_library_adds_if_it_is_asked_for)
{
    ek_tensor *terms[DEVICES];
    for (int d = 0; d < DEVICES; d++)
        terms[d] = noise(d, 777);
    ek_tensor *out = ek_empty(EK_SHAPE(777), .device = ek_host(0));
    make_remote(DEVICES, EK_COLLECTIVE_SUMS);
    assert_ok(ek_add_all("test", &(ek_addition){out, terms, DEVICES, NULL}, 1));
    ck_assert_int_eq(library_sums, 1);
    ck_assert_int_eq(copies + exchanges, 0);
    assert_sum(out, terms, true);
}

/* Sums of several dtypes, on several devices, of one term or more. */
TEST_LOOP(one_list_of_all_kinds, 0, 2)
{
    static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_I64, EK_F32, EK_BF16, EK_F64};
    ek_tensor *terms[6][DEVICES];
    ek_addition list[6];
    for (int i = 0; i < 6; i++) {
        for (int d = 0; d < DEVICES; d++)
            terms[i][d] = ramp(d + i, 1, EK_SHAPE(6), dtypes[i], ek_host(d));
        list[i] =
            (ek_addition){ek_zeros(EK_SHAPE(6), .dtype = dtypes[i], .device = ek_host(i % DEVICES)),
                          terms[i], i == 3 ? 1 : DEVICES, NULL};
    }
    make_remote(DEVICES, _i ? EK_COLLECTIVE_MOVES : EK_COLLECTIVE_NONE);
    assert_ok(ek_add_all("test", list, 6));
    for (int i = 0; i < 6; i++)
        assert_ramp(list[i].out, i == 3 ? 3 : DEVICES * i + 6, i == 3 ? 1 : DEVICES);
}
