/* containers.c: modules that hold others and are not called themselves. */
#include "nn/containers.h"

#include <stdio.h>
#include <stdlib.h>

#include "nn/module_table.h"
#include "nn/nn.h"

static ek_value container_forward(ek_module *module, const ek_args *args)
{
    (void)args;
    EK_FAIL(EK_E_INVALID,
            "a %s has no forward; call the modules in it (ek_module_child, ek_module_at)",
            module->type->name);
    return ek_value_error();
}

/* No members in the struct: children are in the table only. */
static const ek_module_type list_type = {.name = "module_list",
                                         .size = sizeof(ek_module),
                                         .forward = container_forward};
static const ek_module_type dict_type = {.name = "module_dict",
                                         .size = sizeof(ek_module),
                                         .forward = container_forward};

/* True if modules[index] stands earlier in the list too. */
static bool container_is_repeated(const ek_named_module *modules, int index)
{
    for (int i = 0; i < index; i++)
        if (modules[i].module == modules[index].module)
            return true;
    return false;
}

ek_module *ek_container_named(const ek_module_type *type, const ek_named_module *modules, int count)
{
    if (count < 0 || (count > 0 && !modules)) {
        EK_FAIL(EK_E_INVALID, "%s: %d modules%s", type->name, count, modules ? "" : " at NULL");
        return NULL;
    }
    ek_module *self = ek_module_new(type);
    bool failed = !self;
    for (int i = 0; i < count; i++) {
        char number[16];
        const char *name = modules[i].name ? modules[i].name : number;
        ek_module *module = modules[i].module;
        snprintf(number, sizeof number, "%d", i);
        if (!module) {
            if (ek_error_status() == 0)
                EK_FAIL(EK_E_INVALID, "%s: module %s is NULL", type->name, name);
        } else if (!failed) {
            /* After a NULL the others are still registered, so that all are freed. */
            failed = ek_register_module(self, name, NULL, module) < 0;
        } else if (!container_is_repeated(modules, i)) {
            ek_module_free(module);
        }
    }
    return ek_module_finish(self);
}

/* Frees all modules of a list, each once. */
static void container_free_list(ek_module *const *modules, int count)
{
    for (int i = 0; i < count; i++) {
        bool repeated = false;
        for (int k = 0; k < i && !repeated; k++)
            repeated = modules[k] == modules[i];
        if (!repeated)
            ek_module_free(modules[i]);
    }
}

ek_module *ek_container_new(const ek_module_type *type, ek_module *const *modules, int count)
{
    ek_named_module *named = NULL;
    if (count > 0 && modules && !(named = ek_calloc((size_t)count, sizeof *named))) {
        container_free_list(modules, count);
        return NULL;
    }
    for (int i = 0; named && i < count; i++)
        named[i].module = modules[i];
    ek_module *self = ek_container_named(type, named, count);
    free(named);
    return self;
}

ek_module *ek_module_list_of(ek_module *const *modules, int count)
{
    return ek_container_new(&list_type, modules, count);
}

int ek_module_list_append(ek_module *list, ek_module *module)
{
    char name[16];
    if (!list || (list->type != &list_type && !ek_module_is_sequential(list))) {
        ek_module_free(module);
        return ek_error_status() < 0
                   ? ek_error_pending()
                   : EK_FAIL(EK_E_INVALID, "module_list_append: %s is no list or sequential",
                             list ? list->type->name : "NULL");
    }
    snprintf(name, sizeof name, "%d", ek_module_member_count(list));
    return ek_register_module(list, name, NULL, module);
}

ek_module *ek_module_dict_of(const ek_named_module *modules, int count)
{
    return ek_container_named(&dict_type, modules, count);
}
