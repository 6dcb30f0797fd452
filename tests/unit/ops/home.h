/* home.h: tensors that a test puts nowhere are made where the tests run (devices.h): on cpu, or on
 * the first GPU. To be included last. */
#ifndef EK_TESTS_OPS_HOME_H
#define EK_TESTS_OPS_HOME_H

#include "unit.h"

static inline ek_tensor_options at_home(ek_tensor_options options)
{
    if (options.device.kind == EK_CPU)
        options.device = test_home();
    return options;
}

#define ek_empty_with(...) ek_empty_with(at_home(__VA_ARGS__))
#define ek_zeros_with(...) ek_zeros_with(at_home(__VA_ARGS__))
#define ek_ones_with(...) ek_ones_with(at_home(__VA_ARGS__))
#define ek_rand_with(...) ek_rand_with(at_home(__VA_ARGS__))
#define ek_randn_with(...) ek_randn_with(at_home(__VA_ARGS__))
#define ek_full_with(value, ...) ek_full_with(value, at_home(__VA_ARGS__))
#define ek_from_data_with(data, ...) ek_from_data_with(data, at_home(__VA_ARGS__))
#define ek_randint_with(low, high, ...) ek_randint_with(low, high, at_home(__VA_ARGS__))
#define golden(file, name) ek_to_device(golden(file, name), test_home())

#endif
