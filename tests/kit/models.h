/* models.h: modules that a test defines. */
#ifndef EK_TESTS_KIT_MODELS_H
#define EK_TESTS_KIT_MODELS_H

#include "unit.h"

/* Defines `name`_type, the type of modules that are a `structure`, whose forward is `name`_forward.
 */
#define MODULE_TYPE(name, structure) MODULE_TYPE_WITH(name, structure, .destroy = NULL)
/* Defines such a type with further slots. */
#define MODULE_TYPE_WITH(name_, structure, ...)                             \
    static const ek_module_type name_##_type = {.name = #name_,             \
                                                .size = sizeof(structure),  \
                                                .forward = name_##_forward, \
                                                __VA_ARGS__};

/* Calls ek_module_new, which must not fail. */
void *new_module(const ek_module_type *type);

/* Sets EK_E_USER with this sentence. Returns what a forward that fails returns. */
ek_value fail_with(const char *sentence);

#endif
