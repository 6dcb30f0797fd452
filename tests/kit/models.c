/* models.c: see models.h. */
#include "models.h"

void *new_module(const ek_module_type *type)
{
    ek_module *module = ek_module_new(type);
    assert_made(module);
    return module;
}

ek_value fail_with(const char *sentence)
{
    ek_error(EK_E_USER, "%s", sentence);
    return ek_value_error();
}
