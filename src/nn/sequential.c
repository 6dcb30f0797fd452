/* sequential.c: modules one after the other. */
#include <stdio.h>

#include "core/object.h"
#include "nn/module_table.h"
#include "nn/nn.h"

/* A module without members: its children are in the table only, in order. */
typedef ek_module sequential;

/* Hands one reference to the value's object over to the innermost scope. */
static ek_value sequential_adopt(ek_value value)
{
    void *object = NULL;
    switch (value.kind) {
    case EK_VALUE_TENSOR:
        object = value.as.tensor;
        break;
    case EK_VALUE_LIST:
        object = value.as.list;
        break;
    case EK_VALUE_DICT:
        object = value.as.dict;
        break;
    default:
        return value;
    }
    return ek_scope_adopt(object) ? value : ek_value_error();
}

static ek_value sequential_forward(ek_module *module, const ek_args *args)
{
    if (ek_check_inputs(module, args, 1) < 0)
        return ek_value_error();
    int count = ek_module_member_count(module);
    /* x is one reference of this function. It is released as soon as the next layer has read it. If
     * no graph holds it, its memory is then free for the layer after that. */
    ek_value x = ek_value_keep(ek_arg(args, 0));
    for (int i = 0; i < count; i++) {
        ek_module *child = *ek_module_member(module, i).slot.module;
        ek_module *next = i + 1 < count ? *ek_module_member(module, i + 1).slot.module : NULL;
        const ek_args input = {&x, 1, ek_value_none()};
        bool fused = next && ek_module_is_batch_norm(child) && ek_module_is_relu(next);
        ek_scope scope = ek_scope_begin();
        ek_value y = ek_value_keep(fused ? ek_batch_norm_relu_call(child, &input)
                                         : ek_module_forward(child, &input));
        ek_scope_end(&scope);
        ek_value_release(x);
        x = y;
        i += fused;
        if (x.kind == EK_VALUE_ERROR)
            return x;
    }
    return sequential_adopt(x);
}

static const ek_module_type sequential_type = {.name = "sequential",
                                               .size = sizeof(sequential),
                                               .forward = sequential_forward};

/* True if modules[index] stands earlier in the list too. */
static bool sequential_is_repeated(ek_module *const *modules, int index)
{
    for (int i = 0; i < index; i++)
        if (modules[i] == modules[index])
            return true;
    return false;
}

ek_module *ek_sequential_of(ek_module *const *modules, int count)
{
    if (count < 0 || (count > 0 && !modules)) {
        EK_FAIL(EK_E_INVALID, "sequential: %d modules%s", count, modules ? "" : " at NULL");
        return NULL;
    }
    ek_module *self = ek_module_new(&sequential_type);
    bool failed = !self;
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        if (!modules[i]) {
            if (ek_error_status() == 0)
                EK_FAIL(EK_E_INVALID, "sequential: module %d is NULL", i);
        } else if (!failed) {
            /* After a NULL the others are still registered, so that all are freed. */
            failed = ek_register_module(self, name, NULL, modules[i]) < 0;
        } else if (!sequential_is_repeated(modules, i)) {
            ek_module_free(modules[i]);
        }
    }
    return ek_module_finish(self);
}
