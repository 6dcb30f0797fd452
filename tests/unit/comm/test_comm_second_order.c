/* First and second order for what other tests of communication leave out: given chunk sizes, nests,
 * sums named by their first tensor, a device's tensor that is used twice. */
#include "comm_setup.h"

enum { COUNT = 3 };

static ek_tensor *curve(ek_tensor *x, int d)
{
    return ek_mul(ek_mul_scalar(ek_square(x), d + 1), x);
}

/* Device 1's tensor counts twice. */
static ek_tensor *reduced(ek_tensor *const *inputs, int count, void *user)
{
    ek_tensor *terms[COUNT];
    for (int d = 0; d < count; d++)
        terms[d] = curve(inputs[d], d);
    ek_tensor *sum = ek_reduce_add(terms, count, ek_tensor_device(terms[0]));
    return ek_mul(sum, ek_to_device(terms[1], test_device(0)));
}

TEST(sums_of_what_is_used_elsewhere_too)
{
    ek_tensor *inputs[COUNT];
    for (int d = 0; d < COUNT; d++)
        inputs[d] = leaf_on(1 + (uint64_t)d, EK_SHAPE(2), test_device(d));
    check_gradients(reduced, inputs, COUNT, NULL);
    check_gradients(reduced, inputs, 2, NULL);
}

static ek_tensor *scattered(ek_tensor *const *inputs, int count, void *user)
{
    const int64_t *sizes = user;
    ek_device_list devices = ek_devices(test_kind(), COUNT);
    ek_tensor *chunks[COUNT];
    if (ek_scatter(inputs[0], &devices, sizes, 1, chunks) < 0)
        return NULL;
    for (int d = 0; d < COUNT; d++)
        chunks[d] = curve(chunks[d], d);
    return ek_gather(chunks, COUNT, test_device(1), 1);
}

TEST(chunks_of_given_sizes)
{
    int64_t sizes[COUNT] = {1, 3, 1};
    ek_tensor *x = leaf_on(4, EK_SHAPE(2, 5), test_device(0));
    check_gradients(scattered, &x, 1, sizes);
}

/* {a: x, rest: [y, 2]} is cut, each part computes [a^3, sum of rest], and both are joined. */
static ek_tensor *nested(ek_tensor *const *inputs, int count, void *user)
{
    ek_device_list devices = ek_devices(test_kind(), COUNT);
    ek_value rest = EK_LIST(inputs[1], ek_value_of_int(2)), parts[COUNT], results[COUNT];
    ek_value nest =
        ek_value_dict((const ek_value_entry[]){{"a", EK_VALUE(inputs[0])}, {"rest", rest}}, 2);
    int n = ek_scatter_value(nest, &devices, NULL, 0, parts);
    for (int p = 0; p < n; p++) {
        ek_tensor *a = ek_value_tensor(ek_value_get(parts[p], "a"));
        ek_tensor *b = ek_value_tensor(ek_value_at(ek_value_get(parts[p], "rest"), 0));
        results[p] = EK_LIST(ek_mul(curve(a, p), b), ek_sum(ek_square(b)));
    }
    ek_value joined = n < 0 ? ek_value_error() : ek_gather_value(results, n, test_device(0), 0);
    return ek_mul(ek_sum(ek_value_tensor(ek_value_at(joined, 0))),
                  ek_value_tensor(ek_value_at(joined, 1)));
}

TEST(nests)
{
    ek_tensor *inputs[] = {leaf_on(5, EK_SHAPE(4, 2), test_device(1)),
                           leaf_on(6, EK_SHAPE(4, 2), ek_cpu())};
    check_gradients(nested, inputs, 2, NULL);
}
