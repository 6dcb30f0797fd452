/* models.h: modules of a test's own. */
#ifndef EK_TESTS_KIT_MODELS_H
#define EK_TESTS_KIT_MODELS_H

#include "unit.h"

/* `name`_type: modules that are a `structure` each, whose forward is `name`_forward. */
#define MODULE_TYPE(name, structure) MODULE_TYPE_WITH(name, structure, .destroy = NULL)
/* With further slots. */
#define MODULE_TYPE_WITH(name_, structure, ...)                             \
    static const ek_module_type name_##_type = {.name = #name_,             \
                                                .size = sizeof(structure),  \
                                                .forward = name_##_forward, \
                                                __VA_ARGS__};

/* ek_module_new, which must not fail. */
void *new_module(const ek_module_type *type);

/* What a forward returns that fails: with EK_E_USER and this sentence. */
ek_value fail_with(const char *sentence);

#endif
