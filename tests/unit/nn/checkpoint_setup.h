/* checkpoint_setup.h: what the tests of ek_checkpoint share. */
#ifndef EK_TESTS_NN_CHECKPOINT_SETUP_H
#define EK_TESTS_NN_CHECKPOINT_SETUP_H

#include "core/tensor.h"
#include "core/thread.h"
#include "kit/tensors.h"

static inline void setup(void)
{
    assert_ok(test_devices_configure("2"));
    ek_manual_seed(5);
}

static inline ek_module *f64(ek_module *module)
{
    assert_made(module);
    assert_ok(ek_module_to_dtype(module, EK_F64));
    return module;
}

#endif
