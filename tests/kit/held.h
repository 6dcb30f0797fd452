/* held.h: modules and optimizers that a test leaves to its fixture, as in
 * FIXTURE(four_devices, free_held). */
#ifndef EK_TESTS_KIT_HELD_H
#define EK_TESTS_KIT_HELD_H

#include "unit.h"

/* Notes an object for free_held. */
void held_add(void *object, void (*release)(void *object));

/* Frees the objects that are held, the last first. */
void free_held(void);

static inline void held_free_module(void *module)
{
    ek_module_free(module);
}

static inline ek_module *held_module(ek_module *module)
{
    assert_made(module);
    held_add(module, held_free_module);
    return module;
}

static inline void held_free_optimizer(void *optimizer)
{
    ek_optimizer_free(optimizer);
}

static inline ek_optimizer *held_optimizer(ek_optimizer *optimizer)
{
    assert_made(optimizer);
    held_add(optimizer, held_free_optimizer);
    return optimizer;
}

/* Returns its argument, which must not be NULL and is freed when the test ends. */
#define held(made) \
    _Generic((made), ek_module * : held_module, ek_optimizer * : held_optimizer)((made))

#endif
