/* Broadcast: values, aliases, buckets, backward. */
#include "autograd/graph.h"
#include "comm/collectives.h"
#include "comm_setup.h"
#include "core/tensor.h"

TEST_LOOP(copies_reach_every_device, 0, EK_BOOL)
{
    ek_tensor *x = ramp(1, 1, EK_SHAPE(3, 5), (ek_dtype)_i, test_device(1));
    ek_device_list devices = EK_DEVICES(test_device(3), test_device(1), ek_cpu(), test_device(0));
    ek_tensor *out[4];
    assert_ok(ek_broadcast(x, &devices, out));
    for (int d = 0; d < 4; d++) {
        assert_on(out[d], devices.devices[d]);
        ck_assert_int_eq(ek_tensor_dtype(out[d]), _i);
        assert_ramp(out[d], 1, 1);
    }
    ck_assert_ptr_eq(ek_tensor_address(out[1]), ek_tensor_address(x));
    ck_assert_ptr_ne(out[1], x);
}

TEST(gradients_are_summed_root_first)
{
    /* 1e16 + 1 - 1e16 depends on the order: (root + d0) + d1 ... = ((-1e16 + 1e16) + 1) + 1. */
    ek_tensor *x = ramp(0, 1, EK_SHAPE(2), EK_F64, test_device(2));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_device_list devices =
        EK_DEVICES(test_device(1), test_device(3), test_device(2), test_device(0));
    double scale[4] = {1, 1, -1e16, 1e16};
    ek_tensor *out[4], *terms[4];
    assert_ok(ek_broadcast(x, &devices, out));
    for (int d = 0; d < 4; d++)
        terms[d] = ek_to_device(ek_sum(ek_mul_scalar(out[d], scale[d])), test_device(2));
    ek_tensor *loss = terms[0];
    for (int d = 1; d < 4; d++)
        loss = ek_add(loss, terms[d]);
    assert_ok(ek_backward(loss));
    assert_on(ek_tensor_grad(x), test_device(2));
    assert_ramp(ek_tensor_grad(x), 2, 0);
}

TEST(a_replica_that_sends_nothing_counts_as_zero)
{
    ek_tensor *x = ramp(1, 1, EK_SHAPE(3), EK_F64, test_device(0));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_device_list devices = ek_devices(test_kind(), 3);
    ek_tensor *out[3];
    assert_ok(ek_broadcast(x, &devices, out));
    assert_ok(ek_backward(ek_sum(ek_mul_scalar(out[2], 5))));
    assert_ramp(ek_tensor_grad(x), 5, 0);
}

TEST(no_nodes_without_gradient_mode)
{
    ek_tensor *x = ramp(1, 1, EK_SHAPE(3), EK_F64, test_device(0));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_device_list devices = ek_devices(test_kind(), 2);
    ek_tensor *out[2];
    bool before = ek_set_grad_enabled(false);
    assert_ok(ek_broadcast(x, &devices, out));
    ek_set_grad_enabled(before);
    ck_assert(!ek_tensor_requires_grad(out[0]) && !ek_tensor_requires_grad(out[1]));
}

static const size_t limits[] = {0, 1, 64, 100};

TEST_LOOP(coalesced_lists_keep_their_order, 0, 4)
{
    enum { COUNT = 6 };
    ek_tensor *tensors[COUNT], *out[3 * COUNT];
    for (int i = 0; i < COUNT; i++) {
        tensors[i] = ramp(10 * i, 1, EK_SHAPE(i + 1, 3), i % 2 ? EK_F32 : EK_F64, test_device(0));
        assert_ok(ek_tensor_set_requires_grad(tensors[i], i != 2));
    }
    ek_device_list devices = ek_devices(test_kind(), 3);
    assert_ok(ek_broadcast_coalesced(tensors, COUNT, &devices, limits[_i], out));
    ek_tensor *losses[3];
    for (int d = 0; d < 3; d++) {
        losses[d] = NULL;
        for (int i = 0; i < COUNT; i++) {
            ek_tensor *copy = out[d * COUNT + i];
            assert_on(copy, test_device(d));
            assert_ramp(copy, 10 * i, 1);
            ck_assert_int_eq(ek_tensor_requires_grad(copy), i != 2);
            ek_tensor *term = ek_sum(ek_mul_scalar(ek_to_dtype(copy, EK_F64), (d + 1) * (i + 1)));
            losses[d] = losses[d] ? ek_add(losses[d], term) : term;
        }
    }
    assert_ok(ek_backward(ek_reduce_add(losses, 3, ek_tensor_device(losses[0]))));
    for (int i = 0; i < COUNT; i++) {
        if (i == 2)
            ck_assert_ptr_null(ek_tensor_grad(tensors[i]));
        else
            assert_ramp(ek_tensor_grad(tensors[i]), 6 * (i + 1), 0);
    }
}

TEST(each_bucket_is_one_node)
{
    ek_tensor *tensors[3], *out[6];
    for (int i = 0; i < 3; i++) {
        tensors[i] = ramp(i, 1, EK_SHAPE(8), EK_F32, test_device(0));
        assert_ok(ek_tensor_set_requires_grad(tensors[i], true));
    }
    ek_device_list devices = ek_devices(test_kind(), 2);
    assert_ok(ek_broadcast_coalesced(tensors, 3, &devices, 64, out)); /* 32 bytes each */
    ck_assert_ptr_eq(out[0]->history, out[1]->history);
    ck_assert_ptr_eq(out[0]->history, out[3]->history);
    ck_assert_ptr_ne(out[0]->history, out[2]->history);
    ck_assert_ptr_eq(out[3]->storage, out[4]->storage); /* one buffer, two versions */
    ck_assert_ptr_ne(out[3]->version, out[4]->version);
}

/* ---- buckets ---- */

static void assert_buckets(ek_bucket_rule rule, ek_tensor *const *tensors, int count, size_t limit,
                           const char *expected)
{
    char seen[256] = "", *at = seen;
    int order[8], ends[8], buckets = ek_buckets(rule, tensors, count, limit, order, ends);
    for (int b = 0, i = 0; b < buckets; b++) {
        for (; i < ends[b]; i++)
            at += sprintf(at, "%d", order[i]);
        at += sprintf(at, "|");
    }
    ck_assert_str_eq(seen, expected);
}

TEST(buckets_close_as_in_pytorch)
{
    /* Bytes: f64 16, f32 8, f64 24, f32 40, f64 16, i64 8. */
    static const int64_t counts[] = {2, 2, 3, 10, 2, 1};
    static const ek_dtype dtypes[] = {EK_F64, EK_F32, EK_F64, EK_F32, EK_F64, EK_I64};
    ek_tensor *tensors[6];
    for (int i = 0; i < 6; i++)
        tensors[i] = ek_zeros(EK_SHAPE(counts[i]), .dtype = dtypes[i]);
    assert_buckets(EK_BUCKETS_OF_BROADCAST, tensors, 6, 40,
                   "02|13|4|5|"); /* overshoots; leftovers by dtype */
    assert_buckets(EK_BUCKETS_OF_REDUCE, tensors, 6, 40,
                   "1|02|4|3|5|"); /* never overshoots; leftovers as seen */
    assert_buckets(EK_BUCKETS_OF_BROADCAST, tensors, 6, 39, "02|13|4|5|");
    assert_buckets(EK_BUCKETS_OF_REDUCE, tensors, 6, 39, "0|1|2|4|3|5|");
    assert_buckets(EK_BUCKETS_OF_REDUCE, tensors, 0, 39, "");
}

TEST(wrong_calls_are_errors)
{
    ek_tensor *out[8];
    ek_device_list devices = ek_devices(test_kind(), 2), none = {0},
                   missing = EK_DEVICES(test_device(9));
    ek_tensor *tensors[2] = {ek_zeros(EK_SHAPE(2), .device = test_device(0)),
                             ek_zeros(EK_SHAPE(2), .device = test_device(1))};
    ck_assert_int_lt(ek_broadcast(NULL, &devices, out), 0);
    assert_error(EK_E_INVALID, "tensor is NULL");
    ck_assert_int_lt(ek_broadcast(tensors[0], &none, out), 0);
    assert_error(EK_E_INVALID, "list of 1 to");
    ck_assert_int_lt(ek_broadcast(tensors[0], &missing, out), 0);
    assert_error(EK_E_DEVICE, "host:9");
    ck_assert_int_lt(ek_broadcast_coalesced(tensors, 2, &devices, 0, out), 0);
    assert_error(EK_E_DEVICE, "must be on devices[0], which is host:0; tensor 1");
}

TEST(out_of_memory_leaves_everything_usable)
{
    ek_tensor *x = ek_zeros(EK_SHAPE(1 << 16), .device = test_device(0));
    ek_device_list devices = ek_devices(test_kind(), 3);
    ek_tensor *out[3];
    assert_ok(ek_memory_set_capacity(test_device(2), 1 << 16));
    ck_assert_int_eq(ek_broadcast(x, &devices, out), EK_E_OUT_OF_MEMORY);
    assert_error(EK_E_OUT_OF_MEMORY, "host:2");
    assert_ok(ek_memory_set_capacity(test_device(2), 0));
    assert_ok(ek_broadcast(x, &devices, out));
}
