/* module_check.h: a check of modules that are replicated, for EVENKEEL_CHECK=1. */
#ifndef EK_NN_MODULE_CHECK_H
#define EK_NN_MODULE_CHECK_H

#include "evenkeel/module.h"

/* Warns of members of the module's structs, and of those below, that aren't registered and point to
 * a registered module or tensor: in a replica they point to the original's. */
void ek_module_check_members(ek_module *module);

#endif
