/* containers.c: modules that hold other modules and can't be called. */
#include "nn/containers.h"

#include <stdio.h>
#include <stdlib.h>

#include "nn/module_table.h"
#include "nn/nn.h"

static ek_value container_forward(ek_module *module, const ek_args *args)
{
    (void)args;
    EK_FAIL(EK_E_INVALID,
            "a %s has no forward; use what is in it (ek_module_child, ek_module_tensor)",
            module->type->name);
    return ek_value_error();
}

/* This type's struct has no members, because children are in the table only. */
static const ek_module_type list_type = {.name = "module_list",
                                         .size = sizeof(ek_module),
                                         .forward = container_forward};
static const ek_module_type dict_type = {.name = "module_dict",
                                         .size = sizeof(ek_module),
                                         .forward = container_forward};

/* Returns true if modules[index] occurs earlier in the list, too. */
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
            else if (self) /* this module caused the error, not an earlier one */
                ek_register_module(self, name, NULL, NULL);
        } else if (!failed) {
            /* Modules after a NULL are registered, too, so that all are freed. */
            failed = ek_register_module(self, name, NULL, module) < 0;
        } else if (!container_is_repeated(modules, i)) {
            ek_module_discard(module);
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
            ek_module_discard(modules[i]);
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
    EK_TRY(ek_check_alive("module_list_append", "the list", list));
    if (!list || (list->type != &list_type && !ek_module_is_sequential(list))) {
        ek_module_discard(module);
        return ek_error_status() < 0
                   ? ek_error_pending()
                   : EK_FAIL(EK_E_INVALID, "module_list_append: %s is no list or sequential",
                             list ? list->type->name : "NULL");
    }
    snprintf(name, sizeof name, "%d", ek_module_member_count(list));
    return ek_register_module(list, name, NULL, module);
}

/* ---- parameters ---- */

static const ek_module_type parameter_list_type = {.name = "parameter_list",
                                                   .size = sizeof(ek_module),
                                                   .forward = container_forward};
static const ek_module_type parameter_dict_type = {.name = "parameter_dict",
                                                   .size = sizeof(ek_module),
                                                   .forward = container_forward};

static ek_module *container_of_parameters(const ek_module_type *type,
                                          const ek_named_parameter *parameters, int count)
{
    if (count < 0 || (count > 0 && !parameters)) {
        EK_FAIL(EK_E_INVALID, "%s: %d parameters%s", type->name, count,
                parameters ? "" : " at NULL");
        return NULL;
    }
    ek_module *self = ek_module_new(type);
    for (int i = 0; self && i < count; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        const char *name = parameters[i].name ? parameters[i].name : number;
        if (!parameters[i].parameter && ek_error_status() == 0)
            EK_FAIL(EK_E_INVALID, "%s: parameter %s is NULL", type->name, name);
        if (ek_register_parameter(self, name, NULL, parameters[i].parameter) < 0)
            break;
    }
    return ek_module_finish(self);
}

ek_module *ek_parameter_list_of(ek_tensor *const *parameters, int count)
{
    ek_named_parameter *named = NULL;
    if (count > 0 && parameters && !(named = ek_calloc((size_t)count, sizeof *named)))
        return NULL;
    for (int i = 0; named && i < count; i++)
        named[i].parameter = parameters[i];
    ek_module *self = container_of_parameters(&parameter_list_type, named, count);
    free(named);
    return self;
}

int ek_parameter_list_append(ek_module *list, ek_tensor *parameter)
{
    char name[16];
    EK_TRY(ek_check_alive("parameter_list_append", "the parameter", parameter));
    if (!list || list->type != &parameter_list_type || !parameter)
        return ek_error_status() < 0
                   ? ek_error_pending()
                   : EK_FAIL(EK_E_INVALID, "parameter_list_append: %s",
                             list && parameter ? "the module is no list of parameters"
                             : list            ? "the parameter is NULL"
                                               : "the list is NULL");
    snprintf(name, sizeof name, "%d", ek_module_member_count(list));
    return ek_register_parameter(list, name, NULL, parameter);
}

ek_module *ek_parameter_dict_of(const ek_named_parameter *parameters, int count)
{
    return container_of_parameters(&parameter_dict_type, parameters, count);
}

ek_module *ek_module_dict_of(const ek_named_module *modules, int count)
{
    return ek_container_named(&dict_type, modules, count);
}
