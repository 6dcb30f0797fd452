/* First and second order, against finite differences, over three devices. Each device squares or
 * cubes its part with factors of its own, so that nothing cancels. */
#include "comm_setup.h"

enum { COUNT = 3 };

static ek_tensor *curve(ek_tensor *x, int d)
{
    return ek_mul(ek_mul_scalar(ek_square(x), d + 1), x);
}

/* The first input goes everywhere, and back as a sum. */
static ek_tensor *broadcast_and_reduce(ek_tensor *const *inputs, int count, void *user)
{
    ek_device_list devices = ek_devices(test_kind(), COUNT);
    ek_tensor *copies[COUNT], *terms[COUNT];
    if (ek_broadcast(inputs[0], &devices, copies) < 0)
        return NULL;
    for (int d = 0; d < COUNT; d++)
        terms[d] = ek_mul(curve(copies[d], d), inputs[1 + d]);
    return ek_reduce_add(terms, COUNT, test_device(1));
}

static ek_tensor *coalesced(ek_tensor *const *inputs, int count, void *user)
{
    ek_device_list devices = ek_devices(test_kind(), COUNT);
    ek_tensor *copies[COUNT * 4], *sums[4];
    if (ek_broadcast_coalesced(inputs, count, &devices, 20, copies) < 0)
        return NULL;
    for (int d = 0; d < COUNT; d++)
        for (int i = 0; i < count; i++)
            copies[d * count + i] = curve(copies[d * count + i], d + i);
    if (ek_reduce_add_coalesced(copies, COUNT, count, test_device(0), 20, sums) < 0)
        return NULL;
    ek_tensor *y = sums[0];
    for (int i = 1; i < count; i++)
        y = ek_mul(y, sums[i]);
    return y;
}

static ek_tensor *scatter_and_gather(ek_tensor *const *inputs, int count, void *user)
{
    int dim = *(int *)user;
    ek_device_list devices = ek_devices(test_kind(), COUNT);
    ek_tensor *chunks[COUNT];
    int parts = ek_scatter(inputs[0], &devices, NULL, dim, chunks);
    if (parts < 0)
        return NULL;
    for (int p = 0; p < parts; p++)
        chunks[p] = curve(chunks[p], p);
    ek_tensor *y = ek_gather(chunks, parts, test_device(2), dim);
    return ek_mul(y, ek_to_device(inputs[1], test_device(2)));
}

/* Only one chunk has a part in the result. */
static ek_tensor *one_chunk(ek_tensor *const *inputs, int count, void *user)
{
    ek_device_list devices = ek_devices(test_kind(), COUNT);
    ek_tensor *chunks[COUNT];
    return ek_scatter(inputs[0], &devices, NULL, 0, chunks) < 0 ? NULL : curve(chunks[1], 1);
}

static ek_tensor *gather_scalars(ek_tensor *const *inputs, int count, void *user)
{
    ek_tensor *terms[COUNT];
    for (int i = 0; i < count; i++)
        terms[i] = ek_sum(curve(inputs[i], i));
    return ek_square(ek_gather(terms, count, ek_cpu(), 0));
}

TEST_LOOP(broadcast_and_reduce_to_second_order, 0, 4)
{
    ek_tensor *inputs[4] = {leaf_on(1, EK_SHAPE(2, 2), test_device(_i))};
    for (int d = 0; d < COUNT; d++)
        inputs[1 + d] = leaf_on(2 + (uint64_t)d, EK_SHAPE(2, 2), test_device(d));
    check_gradients(broadcast_and_reduce, inputs, 4, NULL);
}

TEST(coalesced_to_second_order)
{
    ek_tensor *inputs[4];
    for (int i = 0; i < 4; i++)
        inputs[i] = leaf_on(10 + (uint64_t)i, EK_SHAPE(2), test_device(0));
    check_gradients(coalesced, inputs, 4, NULL);
}

TEST_LOOP(scatter_and_gather_to_second_order, 0, 2)
{
    ek_tensor *inputs[2] = {leaf_on(20, EK_SHAPE(4, 3), test_device(1)),
                            leaf_on(21, EK_SHAPE(4, 3), test_device(0))};
    int dim = _i;
    check_gradients(scatter_and_gather, inputs, 2, &dim);
}

TEST(one_chunk_to_second_order)
{
    ek_tensor *input = leaf_on(30, EK_SHAPE(5, 2), test_device(0));
    check_gradients(one_chunk, &input, 1, NULL);
}

TEST(scalars_to_second_order)
{
    ek_tensor *inputs[COUNT];
    for (int d = 0; d < COUNT; d++)
        inputs[d] = leaf_on(40 + (uint64_t)d, EK_SHAPE(2), test_device(d));
    check_gradients(gather_scalars, inputs, COUNT, NULL);
}

TEST(a_third_derivative)
{
    /* f = sum_d (d + 1) x^3 on three devices: f''' = 6 * 6. */
    ek_tensor *x = tensor_of((double[]){2}, EK_SHAPE(1), EK_F64, test_device(0));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_device_list devices = ek_devices(test_kind(), COUNT);
    ek_tensor *copies[COUNT], *terms[COUNT];
    assert_ok(ek_broadcast(x, &devices, copies));
    for (int d = 0; d < COUNT; d++)
        terms[d] = curve(copies[d], d);
    ek_tensor *y = ek_reduce_add(terms, COUNT, ek_tensor_device(terms[0]));
    static const double expected[] = {18 * 4, 36 * 2, 36};
    for (int order = 0; order < 3; order++) {
        ek_tensor *gradient;
        assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = &x, .input_count = 1,
                          .gradients = &gradient, .create_graph = true));
        ck_assert_double_eq(element(gradient, 0), expected[order]);
        y = gradient;
    }
}
