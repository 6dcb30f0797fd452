/* Scatter and gather of tensors: torch.chunk's sizes, views, layouts, backward. */
#include "comm_setup.h"
#include "core/tensor.h"

/* n elements, k devices, sizes as torch.chunk. */
static const struct {
    int64_t n;
    int k;
    int64_t sizes[9]; /* 0 ends */
} table[] = {{1, 4, {1}},
             {2, 4, {1, 1}},
             {3, 4, {1, 1, 1}},
             {5, 4, {2, 2, 1}},
             {6, 4, {2, 2, 2}},
             {7, 4, {2, 2, 2, 1}},
             {9, 4, {3, 3, 3}},
             {10, 4, {3, 3, 3, 1}},
             {9, 8, {2, 2, 2, 2, 1}},
             {10, 8, {2, 2, 2, 2, 2}},
             {12, 8, {2, 2, 2, 2, 2, 2}},
             {17, 8, {3, 3, 3, 3, 3, 2}},
             {33, 8, {5, 5, 5, 5, 5, 5, 3}},
             {36, 7, {6, 6, 6, 6, 6, 6}},
             {100, 8, {13, 13, 13, 13, 13, 13, 13, 9}}};
enum { TABLE = sizeof table / sizeof *table };

TEST_LOOP(chunks_are_those_of_torch, 0, TABLE)
{
    assert_ok(test_devices_configure("8"));
    ek_tensor *x = ramp(0, 1, EK_SHAPE(table[_i].n, 2), EK_F64, ek_cpu());
    ek_device_list devices = ek_devices(test_kind(), table[_i].k);
    ek_tensor *out[8];
    int count = ek_scatter(x, &devices, NULL, 0, out);
    assert_ok(count);
    double first = 0;
    for (int i = 0; i < count; i++) {
        ck_assert_int_eq(ek_tensor_size(out[i], 0), table[_i].sizes[i]);
        assert_on(out[i], test_device(i));
        assert_ramp(out[i], first, 1);
        first += 2 * (double)table[_i].sizes[i];
    }
    ck_assert_int_eq(table[_i].sizes[count], 0);
    assert_ramp(ek_gather(out, count, test_device(1), 0), 0, 1);
}

TEST(an_empty_batch_gives_everyone_an_empty_chunk)
{
    ek_tensor *x = ek_zeros(EK_SHAPE(0, 3));
    ek_device_list devices = ek_devices(test_kind(), 3);
    ek_tensor *out[3];
    ck_assert_int_eq(ek_scatter(x, &devices, NULL, 0, out), 3);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(ek_tensor_size(out[i], 0), 0);
    ck_assert_int_eq(ek_tensor_size(ek_gather(out, 3, test_device(0), 0), 0), 0);
}

TEST(given_sizes_along_any_dimension)
{
    static const int64_t sizes[] = {1, 4, 2};
    ek_device_list devices = EK_DEVICES(test_device(2), test_device(0), test_device(1));
    for (int dim = -2; dim < 2; dim++) {
        bool rows = dim == 0 || dim == -2;
        ek_tensor *x = ramp(0, 1, rows ? EK_SHAPE(7, 3) : EK_SHAPE(3, 7), EK_F32, test_device(0));
        ek_tensor *out[3];
        ck_assert_int_eq(ek_scatter(x, &devices, sizes, dim, out), 3);
        int64_t start = 0;
        for (int i = 0; i < 3; i++) {
            assert_on(out[i], devices.devices[i]);
            ek_tensor *part = ek_narrow(x, dim, start, sizes[i]);
            assert_close(ek_to_device(out[i], ek_cpu()), ek_to_device(part, ek_cpu()), 0, 0);
            start += sizes[i];
        }
        assert_ramp(ek_gather(out, 3, ek_cpu(), dim), 0, 1);
    }
}

TEST(the_chunk_that_is_there_already_is_a_view)
{
    ek_tensor *x = ramp(0, 1, EK_SHAPE(5, 2), EK_F32, test_device(0));
    ek_device_list devices = ek_devices(test_kind(), 2);
    ek_tensor *out[2];
    uint64_t before = bytes_now(test_device(0), EK_MEMORY_ACTIVATION);
    ck_assert_int_eq(ek_scatter(x, &devices, NULL, 0, out), 2);
    ck_assert_ptr_eq(ek_tensor_address(out[0]), ek_tensor_address(x));
    ck_assert_uint_eq(bytes_now(test_device(0), EK_MEMORY_ACTIVATION), before);
    ck_assert_uint_gt(bytes_now(test_device(1), EK_MEMORY_ACTIVATION), 0);
    assert_made(ek_fill_(out[0], 7));
    ck_assert_double_eq(element(x, 0), 7);
}

TEST(channels_last_stays)
{
    ek_tensor *x =
        ek_contiguous(ramp(0, 1, EK_SHAPE(4, 3, 2, 5), EK_F32, test_device(0)), EK_CHANNELS_LAST);
    ek_device_list devices = ek_devices(test_kind(), 3);
    ek_tensor *out[3];
    for (int dim = 0; dim < 4; dim++) {
        int count = ek_scatter(x, &devices, NULL, dim, out);
        assert_ok(count);
        ck_assert(ek_tensor_is_contiguous(out[1], EK_CHANNELS_LAST));
        ek_tensor *joined = ek_gather(out, count, test_device(1), dim);
        assert_ramp(joined, 0, 1);
        if (dim == 0)
            ck_assert(ek_tensor_is_contiguous(joined, EK_CHANNELS_LAST));
    }
    assert_ok(ek_scatter(x, &devices, NULL, 0, out));
    out[1] = ek_contiguous(out[1], EK_CONTIGUOUS);
    ek_tensor *mixed = ek_gather(out, 2, test_device(1), 0);
    ck_assert(ek_tensor_is_contiguous(mixed, EK_CONTIGUOUS));
    assert_ramp(mixed, 0, 1);
}

TEST(gathered_outputs_count_as_communication)
{
    ek_tensor *parts[2] = {ramp(0, 1, EK_SHAPE(16), EK_F32, test_device(0)),
                           ramp(16, 1, EK_SHAPE(48), EK_F32, test_device(1))};
    assert_ramp(ek_gather(parts, 2, test_device(0), 0), 0, 1);
    ck_assert_uint_eq(bytes_now(test_device(0), EK_MEMORY_COMMUNICATION), 64 * 4);
    ck_assert_ptr_eq(ek_gather(parts, 1, test_device(0), 0), parts[0]); /* nothing to join */
}

TEST(scalars_become_a_vector)
{
    ek_tensor *parts[3];
    for (int i = 0; i < 3; i++) {
        parts[i] = ek_scalar(i + 1, EK_F64, test_device(i));
        assert_ok(ek_tensor_set_requires_grad(parts[i], true));
    }
    ek_tensor *joined = ek_gather(parts, 3, test_device(2), 0);
    ck_assert_int_eq(ek_tensor_ndim(joined), 1);
    assert_ramp(joined, 1, 1);
    ck_assert_int_eq(ek_tensor_ndim(ek_gather(parts, 1, test_device(0), 0)), 1);
    assert_ok(ek_backward(ek_sum(ek_square(joined))));
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(ek_tensor_ndim(ek_tensor_grad(parts[i])), 0);
        ck_assert_double_eq(element(ek_tensor_grad(parts[i]), 0), 2 * (i + 1));
    }
}

TEST(gradients_come_back_together)
{
    ek_tensor *x = ramp(0, 1, EK_SHAPE(7, 2), EK_F64, test_device(1));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_device_list devices = ek_devices(test_kind(), 3);
    ek_tensor *out[3];
    ck_assert_int_eq(ek_scatter(x, &devices, NULL, 0, out), 3);
    /* The middle chunk has no part in the loss: zeros. */
    ek_tensor *terms[2] = {ek_sum(ek_mul_scalar(out[0], 2)), ek_sum(ek_mul_scalar(out[2], 3))};
    ek_scope dirt = ek_scope_begin(); /* blocks that come back are not zero */
    for (int i = 0; i < 4; i++)
        assert_made(ek_full(NAN, EK_SHAPE(7, 2), .dtype = EK_F64, .device = test_device(1)));
    ek_scope_end(&dirt);
    assert_ok(ek_backward(ek_reduce_add(terms, 2, ek_tensor_device(terms[0]))));
    static const double rows[] = {2, 2, 2, 0, 0, 0, 3};
    assert_on(ek_tensor_grad(x), test_device(1));
    for (int i = 0; i < 14; i++)
        ck_assert_double_eq(element(ek_tensor_grad(x), i), rows[i / 2]);
}

TEST(wrong_calls_are_errors)
{
    ek_device_list devices = ek_devices(test_kind(), 2);
    ek_tensor *x = ek_zeros(EK_SHAPE(4, 2)), *out[2];
    ck_assert_int_lt(ek_scatter(NULL, &devices, NULL, 0, out), 0);
    assert_error(EK_E_INVALID, "scatter: tensor is NULL");
    ck_assert_int_lt(ek_scatter(x, &devices, NULL, 2, out), 0);
    assert_error(EK_E_SHAPE, "dimension 2 is not in");
    ck_assert_int_lt(ek_scatter(x, &devices, (int64_t[]){4, 0}, 0, out), 0);
    assert_error(EK_E_SHAPE, "chunk size 1 must be positive, not 0");
    ck_assert_int_lt(ek_scatter(x, &devices, (int64_t[]){2, 1}, 0, out), 0);
    assert_error(EK_E_SHAPE, "their sum is 3, expected is 4");
    ek_device_list three = ek_devices(test_kind(), 3); /* a sum of 4 modulo 2^64 */
    ek_tensor *parts[3];
    ck_assert_int_lt(ek_scatter(x, &three, (int64_t[]){INT64_MAX, INT64_MAX, 6}, 0, parts), 0);
    assert_error(EK_E_SHAPE, "expected is 4");
    ck_assert_int_lt(ek_scatter(ek_zeros(EK_SHAPE(0, 2)), &devices, (int64_t[]){3, 2}, 0, out), 0);
    assert_error(EK_E_SHAPE, "their sum is 5, expected is 0");
    ek_error(EK_E_OUT_OF_MEMORY, "of what made the tensor"); /* that error is what is returned */
    ck_assert_int_eq(ek_scatter(NULL, &devices, NULL, 0, out), EK_E_OUT_OF_MEMORY);
    ck_assert_int_eq(ek_broadcast(NULL, &devices, out), EK_E_OUT_OF_MEMORY);
    assert_error(EK_E_OUT_OF_MEMORY, "of what made the tensor");
    ck_assert_ptr_null(ek_gather(NULL, 0, test_device(0), 0));
    assert_error(EK_E_INVALID, "not 0");
    out[0] = x;
    out[1] = ek_zeros(EK_SHAPE(4, 3));
    ck_assert_ptr_null(ek_gather(out, 2, test_device(0), 0));
    assert_error(EK_E_SHAPE, "index 1 has an invalid shape: it is f32[4, 3]");
    out[1] = ek_zeros(EK_SHAPE(4, 2), .dtype = EK_F64);
    ck_assert_ptr_null(ek_gather(out, 2, test_device(0), 0));
    assert_error(EK_E_DTYPE, "index 1");
    out[1] = NULL;
    ck_assert_ptr_null(ek_gather(out, 2, test_device(0), 0));
    assert_error(EK_E_INVALID, "index 1 is NULL");
}
