/* autocast_setup.h: operands and comparisons of the tests of autocast. */
#ifndef EK_TESTS_AUTOCAST_SETUP_H
#define EK_TESTS_AUTOCAST_SETUP_H

#include "core/tensor.h"
#include "unit.h"

/* Uniform in [low, high), f32, the same in each call. */
static inline ek_tensor *uniform(ek_shape shape, double low, double high)
{
    ek_tensor *x = ek_empty(shape, EK_F32, .device = test_home());
    ek_manual_seed((uint64_t)shape.ndim + (low < 0 ? 5 : 0));
    assert_ok(ek_uniform_(x, low, high, NULL));
    return x;
}

/* A parameter of its own, as a module's. */
static inline ek_tensor *parameter(ek_shape shape)
{
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_PARAMETER);
    ek_tensor *w = uniform(shape, -0.5, 0.5);
    ek_memory_set_category(before);
    assert_ok(ek_tensor_set_requires_grad(w, true));
    return w;
}

static inline bool close_in_norm(ek_tensor *a, ek_tensor *b, double relative)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < ek_count(b); i++) {
        difference += pow(element(a, i) - element(b, i), 2);
        size += pow(element(b, i), 2);
    }
    return sqrt(difference) <= relative * sqrt(size);
}

#endif
