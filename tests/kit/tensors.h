/* tensors.h: tensors of seeded numbers, and functions of tensors. */
#ifndef EK_TESTS_KIT_TENSORS_H
#define EK_TESTS_KIT_TENSORS_H

#include "unit.h"

/* Returns normal numbers, drawn in f64. */
ek_tensor *normal(uint64_t seed, ek_shape shape, ek_dtype dtype, ek_device device);

/* Return `normal` in f64, requiring a gradient: where tests run, or on a device. */
ek_tensor *leaf(uint64_t seed, ek_shape shape);
ek_tensor *leaf_on(uint64_t seed, ek_shape shape, ek_device device);

/* Checks that first and second derivatives agree with finite differences. */
void check_gradients(ek_check_function *function, ek_tensor *const *inputs, int count, void *user);

#endif
