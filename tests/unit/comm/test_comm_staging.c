/* Memory that the CPU can't read: lists are packed, few copies are made, nothing is read in place.
 * The devices here are host devices whose backend says otherwise and counts. */
#include "comm/exchange.h"
#include "comm_setup.h"
#include "core/slab.h"
#include "kit/remote.h"

NAMES_DEVICES

enum { COUNT = 3 };

static void make_lists(ek_tensor **tensors, ek_device device, double first)
{
    for (int i = 0; i < COUNT; i++)
        tensors[i] = ramp(first + 10 * i, 1, EK_SHAPE(3 + i), EK_F32, device);
}

TEST(a_bucket_is_one_copy_a_device)
{
    ek_tensor *tensors[COUNT], *out[3 * COUNT];
    make_lists(tensors, ek_host(0), 0);
    make_remote(3, EK_COLLECTIVE_NONE);
    ek_device_list devices = ek_devices(test_kind(), 3);
    copies = 0;
    assert_ok(ek_broadcast_coalesced(tensors, COUNT, &devices, 0, out));
    ck_assert_int_eq(copies, 2);
    ck_assert_uint_eq(bytes_now(ek_host(0), EK_MEMORY_COMMUNICATION), 0); /* staging is gone */
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < COUNT; i++)
            assert_ramp(out[d * COUNT + i], 10 * i, 1);
}

TEST(a_slab_needs_no_packing)
{
    ek_tensor *tensors[COUNT];
    make_lists(tensors, ek_host(0), 0);
    ek_slab *source = ek_slab_new(ek_dev_get(ek_host(0)), tensors, COUNT);
    ek_slab *target = ek_slab_new(ek_dev_get(ek_host(1)), tensors, COUNT);
    assert_made(source);
    assert_made(target);
    for (int i = 0; i < COUNT; i++)
        assert_ok(ek_comm_copy(source->members[i], tensors[i]));
    make_remote(2, EK_COLLECTIVE_NONE);
    ek_move moves[COUNT];
    for (int i = 0; i < COUNT; i++)
        moves[i] = (ek_move){target->members[i], source->members[i]};
    copies = 0;
    assert_ok(ek_exchange("test", moves, COUNT));
    ck_assert_int_eq(copies, 1);
    for (int i = 0; i < COUNT; i++)
        assert_ramp(target->members[i], 10 * i, 1);
    /* Neighbours only: the first and the last are two runs. */
    moves[1] = moves[2];
    copies = 0;
    assert_ok(ek_exchange("test", moves, 2));
    ck_assert_int_eq(copies, 2);
    assert_ramp(target->members[1], 10, 1);
    ek_object_release(source);
    ek_object_release(target);
}

TEST(sums_are_staged)
{
    ek_tensor *x[3 * COUNT], *out[COUNT];
    for (int d = 0; d < 3; d++)
        make_lists(x + d * COUNT, ek_host(d), 100 * d);
    make_remote(3, EK_COLLECTIVE_NONE);
    assert_ok(ek_reduce_add_coalesced(x, 3, COUNT, ek_host(1), 0, out));
    ck_assert_int_eq(copies, 2);
    ck_assert_uint_eq(bytes_now(ek_host(1), EK_MEMORY_COMMUNICATION), 0);
    for (int i = 0; i < COUNT; i++)
        assert_ramp(out[i], 300 + 30 * i, 3);
}

TEST(chunks_are_packed_where_they_have_gaps)
{
    ek_tensor *x = ramp(0, 1, EK_SHAPE(3, 6), EK_F64, ek_host(0)), *out[3];
    make_remote(3, EK_COLLECTIVE_NONE);
    ek_device_list devices = ek_devices(test_kind(), 3);
    ck_assert_int_eq(ek_scatter(x, &devices, NULL, 1, out), 3);
    ck_assert_double_eq(element(out[2], 1), 5);
    ck_assert_double_eq(element(out[2], 2), 10);
    assert_ramp(ek_gather(out, 3, ek_host(2), 1), 0, 1);
}

TEST(gradients_are_the_same)
{
    ek_tensor *x = ramp(1, 1, EK_SHAPE(4, 2), EK_F64, ek_host(0));
    ek_tensor *w = ramp(1, 1, EK_SHAPE(2), EK_F64, ek_host(0));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    assert_ok(ek_tensor_set_requires_grad(w, true));
    make_remote(2, EK_COLLECTIVE_NONE);
    ek_device_list devices = ek_devices(test_kind(), 2);
    ek_tensor *chunks[2], *weights[2];
    ck_assert_int_eq(ek_scatter(x, &devices, NULL, 0, chunks), 2);
    assert_ok(ek_broadcast(w, &devices, weights));
    for (int d = 0; d < 2; d++)
        chunks[d] = ek_mul(chunks[d], weights[d]);
    assert_ok(ek_backward(ek_sum(ek_gather(chunks, 2, ek_host(1), 0))));
    ck_assert_double_eq(element(ek_tensor_grad(w), 0), 16);
    ck_assert_double_eq(element(ek_tensor_grad(w), 1), 20);
    for (int i = 0; i < 8; i++)
        ck_assert_double_eq(element(ek_tensor_grad(x), i), i % 2 + 1);
}
