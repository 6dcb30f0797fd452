/* reduce_add: order, roots, buckets, backward, errors. */
#include "comm_setup.h"
#include "core/tensor.h"

TEST_LOOP(sums_end_on_the_destination, 0, 6)
{
    static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16, EK_I64, EK_F16, EK_I32};
    ek_tensor *x[3];
    for (int d = 0; d < 3; d++)
        x[d] = ramp(d, d + 1, EK_SHAPE(2, 3), dtypes[_i], test_device(d));
    ek_tensor *sum = ek_reduce_add(x, 3, test_device(1));
    assert_on(sum, test_device(1));
    assert_ramp(sum, 3, 6);
    assert_ramp(x[1], 1, 2); /* inputs stay */
}

/* Sums of bool are "or", and stay 0 and 1. */
TEST(sums_of_bool)
{
    const double values[3][4] = {{0, 1, 0, 1}, {0, 0, 1, 1}, {0, 0, 0, 1}};
    ek_tensor *x[3];
    for (int d = 0; d < 3; d++)
        x[d] = tensor_of(values[d], EK_SHAPE(4), EK_BOOL, test_device(d));
    ek_tensor *sum = ek_reduce_add(x, 3, test_device(1));
    assert_close(sum, tensor_of((const double[]){0, 1, 1, 1}, EK_SHAPE(4), EK_BOOL, test_device(1)),
                 0, 0);
}

TEST(the_root_comes_first_then_ascending_devices)
{
    /* Terms are added in pairs, and 1e16 swallows a 1. Two inputs on the destination: the first is
     * the root. */
    static const double values[] = {1, 1, 1e16, -1e16};
    ek_device places[] = {test_device(3), test_device(2), test_device(0), test_device(0)};
    ek_tensor *x[4];
    for (int i = 0; i < 4; i++)
        x[i] = tensor_of(&values[i], EK_SHAPE(1), EK_F64, places[i]);
    ck_assert_double_eq(element(ek_reduce_add(x, 4, test_device(0)), 0), 2);
    ck_assert_double_eq(element(ek_reduce_add(x, 4, test_device(2)), 0), (1 + 1e16) + (-1e16 + 1));
}

TEST(one_input_is_returned_unchanged)
{
    ek_tensor *x = ramp(0, 1, EK_SHAPE(2), EK_F32, test_device(1));
    ck_assert_ptr_eq(ek_reduce_add(&x, 1, test_device(1)), x);
    ck_assert_ptr_eq(ek_reduce_add(&x, 1, ek_tensor_device(x)), x);
}

TEST(layouts_may_differ)
{
    ek_tensor *a = ramp(0, 1, EK_SHAPE(2, 3), EK_F64, test_device(0));
    ek_tensor *b = ek_permute(ramp(0, 1, EK_SHAPE(3, 2), EK_F64, test_device(1)), EK_SHAPE(1, 0));
    ek_tensor *c =
        ek_expand(ramp(100, 100, EK_SHAPE(2, 1), EK_F64, test_device(2)), EK_SHAPE(2, 3));
    ek_tensor *sum = ek_reduce_add((ek_tensor *[]){a, b, c}, 3, ek_tensor_device(a));
    static const double expected[] = {100, 103, 106, 204, 207, 210};
    for (int i = 0; i < 6; i++)
        ck_assert_double_eq(element(sum, i), expected[i]);
}

TEST(every_input_gets_the_gradient)
{
    ek_tensor *x[3];
    for (int d = 0; d < 3; d++) {
        x[d] = ramp(d, 1, EK_SHAPE(4), EK_F64, test_device(d));
        assert_ok(ek_tensor_set_requires_grad(x[d], d != 1));
    }
    ek_tensor *sum = ek_reduce_add(x, 3, test_device(2));
    assert_ok(ek_backward(ek_sum(ek_mul(sum, ramp(1, 1, EK_SHAPE(4), EK_F64, test_device(2))))));
    for (int d = 0; d < 3; d += 2) {
        assert_on(ek_tensor_grad(x[d]), test_device(d));
        assert_ramp(ek_tensor_grad(x[d]), 1, 1);
    }
    ck_assert_ptr_null(ek_tensor_grad(x[1]));
}

static const size_t limits[] = {0, 1, 50, 100};

TEST_LOOP(coalesced_sums_keep_their_order, 0, 4)
{
    enum { COUNT = 5 };
    ek_tensor *x[3 * COUNT], *out[COUNT];
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < COUNT; i++)
            x[d * COUNT + i] =
                ramp(d + i, 1, EK_SHAPE(i + 1, 2), i % 2 ? EK_F32 : EK_F64, test_device(d));
    assert_ok(ek_reduce_add_coalesced(x, 3, COUNT, test_device(1), limits[_i], out));
    for (int i = 0; i < COUNT; i++) {
        assert_on(out[i], test_device(1));
        assert_ramp(out[i], 3 + 3 * i, 3);
    }
    assert_ok(ek_reduce_add_coalesced(x, 1, COUNT, test_device(0), limits[_i], out));
    for (int i = 0; i < COUNT; i++)
        ck_assert_ptr_eq(out[i], x[i]);
}

TEST(wrong_calls_are_errors)
{
    ek_tensor *x[2] = {ek_zeros(EK_SHAPE(2), .device = test_device(0)),
                       ek_zeros(EK_SHAPE(3), .device = test_device(1))};
    assert_refused(ek_reduce_add(x, 2, test_device(0)), EK_E_SHAPE,
                   "input 1 has an invalid size: it is f32[3] on host:1, expected is "
                   "f32[2] on host:0");
    x[1] = ek_zeros(EK_SHAPE(2), .dtype = EK_F64, .device = test_device(1));
    assert_refused(ek_reduce_add(x, 2, test_device(0)), EK_E_DTYPE, "input 1 is f64");
    x[1] = ek_zeros(EK_SHAPE(2), .device = test_device(1));
    assert_refused(ek_reduce_add(x, 2, test_device(2)), EK_E_DEVICE,
                   "the destination host:2 must hold one of the inputs");
    assert_refused(ek_reduce_add(x, 0, test_device(0)), EK_E_INVALID, "not 0");
    x[1] = NULL;
    assert_refused(ek_reduce_add(x, 2, ek_tensor_device(x[0])), EK_E_INVALID, "input 1 is NULL");
}
