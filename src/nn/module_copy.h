/* module_copy.h: copies of module structs: replicas, and modules that are computed again. */
#ifndef EK_NN_MODULE_COPY_H
#define EK_NN_MODULE_COPY_H

#include "nn/module_members.h"

/* A copy of `module` and all below it whose members show handles[i] where the module's show
 * sources[i]. What the module shares within itself the copy shares too. NULL with an error. */
ek_module *ek_module_copy_with(ek_module *module, ek_tensor *const *sources,
                               ek_tensor *const *handles, int count);

#endif
