/* checkpoint_setup.h: what the tests of ek_checkpoint share. */
#ifndef EK_TESTS_NN_CHECKPOINT_SETUP_H
#define EK_TESTS_NN_CHECKPOINT_SETUP_H

#include "core/tensor.h"
#include "core/thread.h"
#include "evenkeel/autograd.h"
#include "evenkeel/nn.h"
#include "unit.h"

static inline void setup(void)
{
    assert_ok(test_devices_configure("2"));
    ek_manual_seed(5);
}

/* Every ledger must be at zero. */
static inline void teardown(void)
{
    assert_ok(ek_shutdown());
}

static inline ek_tensor *normal(uint64_t seed, ek_shape shape, ek_device device)
{
    ek_generator *generator = ek_generator_new(seed);
    ek_tensor *x = ek_empty(shape, .dtype = EK_F64, .device = device);
    assert_made(x);
    assert_ok(ek_normal_(x, 0, 1, generator));
    ek_generator_free(generator);
    return x;
}

static inline ek_tensor *leaf(uint64_t seed, ek_shape shape)
{
    ek_tensor *x = normal(seed, shape, ek_cpu());
    assert_ok(ek_tensor_set_requires_grad(x, true));
    return x;
}

static inline ek_module *f64(ek_module *module)
{
    assert_made(module);
    assert_ok(ek_module_to_dtype(module, EK_F64));
    return module;
}

#endif
