/* units.h: which parameters are gathered together. */
#ifndef EK_PARALLEL_UNITS_H
#define EK_PARALLEL_UNITS_H

#include "core/tensor.h"
#include "evenkeel/module.h"

/* Writes the unit of each of the module's `count` parameters, which are in order of registration.
 * Returns how many units there are, or a negative status.
 *
 * A module that ek_shard_unit has marked is a unit, without the units inside of it. Other modules
 * are cut by size: a module is a unit, with its neighbours, if all of them together have at most
 * 1/16 of the parameters' bytes; larger modules are cut into their children. A parameter of several
 * modules is in the unit of the first. */
int ek_units_assign(ek_module *module, ek_tensor *const *parameters, int count, int *units);

#endif
