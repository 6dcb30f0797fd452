/* home.h: parameters in slabs. */
#ifndef EK_PARALLEL_HOME_H
#define EK_PARALLEL_HOME_H

#include "evenkeel/module.h"

/* Moves the parameters of `module` into one slab per dtype, in the order of their registration, and
 * with `gradients` reserves a slab for the gradients of those that require one and aren't divided.
 * Handles stay valid, and so do
 * optimizers and graphs made before. Parameters that are in a slab already stay there: modules that
 * share parameters share their slab. All must lie on one device. If it fails nothing has
 * changed. */
int ek_home_parameters(ek_module *module, bool gradients);

#endif
