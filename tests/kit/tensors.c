/* tensors.c: see tensors.h. */
#include "tensors.h"

static ek_tensor *drawn(uint64_t seed, ek_shape shape, ek_device device)
{
    ek_generator *generator = ek_generator_new(seed);
    ek_tensor *x = ek_empty(shape, .dtype = EK_F64, .device = device);
    assert_made(x);
    assert_ok(ek_normal_(x, 0, 1, generator));
    ek_generator_free(generator);
    return x;
}

ek_tensor *normal(uint64_t seed, ek_shape shape, ek_dtype dtype, ek_device device)
{
    return ek_to_dtype(drawn(seed, shape, device), dtype);
}

ek_tensor *leaf_on(uint64_t seed, ek_shape shape, ek_device device)
{
    ek_tensor *x = drawn(seed, shape, device);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    return x;
}

ek_tensor *leaf(uint64_t seed, ek_shape shape)
{
    return leaf_on(seed, shape, test_home());
}

void check_gradients(ek_check_function *function, ek_tensor *const *inputs, int count, void *user)
{
    assert_ok(
        ek_gradcheck(.function = function, .inputs = inputs, .input_count = count, .user = user));
    assert_ok(ek_gradgradcheck(.function = function, .inputs = inputs, .input_count = count,
                               .user = user));
}
