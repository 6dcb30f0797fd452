/* comm_setup.h: what the tests of comm share: four host devices, and closed-form tensors. */
#ifndef EK_TESTS_COMM_SETUP_H
#define EK_TESTS_COMM_SETUP_H

#include "kit/devices.h"
#include "kit/tensors.h"

enum { DEVICES = 4 };

FIXTURE(four_devices, NULL)

/* Element i is first + i step. */
static inline ek_tensor *ramp(double first, double step, ek_shape shape, ek_dtype dtype,
                              ek_device device)
{
    double values[4096];
    int64_t count = ek_shape_count(&shape);
    ck_assert_int_le(count, 4096);
    for (int64_t i = 0; i < count; i++)
        values[i] = first + (double)i * step;
    return tensor_of(values, shape, dtype, device);
}

static inline void assert_ramp(const ek_tensor *tensor, double first, double step)
{
    assert_made(tensor);
    for (int64_t i = 0; i < ek_tensor_count(tensor); i++)
        ck_assert_double_eq(element(tensor, i), first + (double)i * step);
}

#endif
