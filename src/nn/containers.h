/* containers.h: modules whose children are named by their numbers. */
#ifndef EK_NN_CONTAINERS_H
#define EK_NN_CONTAINERS_H

#include "evenkeel/nn.h"

/* Makes a module of this type with these children, which it owns, even after an error. NULL with an
 * error. */
ek_module *ek_container_named(const ek_module_type *type, const ek_named_module *modules,
                              int count);
ek_module *ek_container_new(const ek_module_type *type, ek_module *const *modules, int count);

bool ek_module_is_sequential(const ek_module *module);

#endif
