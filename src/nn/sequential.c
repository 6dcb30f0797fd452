/* sequential.c: modules one after the other. */
#include "core/object.h"
#include "nn/containers.h"
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

/* Returns a forward of `layer` and the activation `next` as one operation. NULL if there is no such
 * forward, or if one of the modules has hooks or is checkpointed. */
static ek_forward_function *sequential_fused(const ek_module *layer, const ek_module *next)
{
    ek_gelu_approximate approximate;
    if (!next || !ek_module_is_fusible(layer) || !ek_module_is_fusible(next))
        return NULL;
    if (ek_module_is_gelu(next, &approximate))
        return ek_linear_with_gelu(layer, approximate);
    if (!ek_module_is_relu(next))
        return NULL;
    ek_forward_function *fused = ek_batch_norm_with_relu(layer);
    return fused ? fused : ek_linear_with_relu(layer);
}

/* Returns true if `layer` is a ReLU and `next` takes maxima. A maximum of ReLUs is the ReLU of the
 * maximum, with equal gradients, so that the maxima are taken first. The ReLU then reads fewer
 * elements. */
static bool sequential_swaps(const ek_module *layer, const ek_module *next)
{
    return next && ek_module_is_relu(layer) && ek_module_takes_maxima(next) &&
           ek_module_is_fusible(layer) && ek_module_is_fusible(next);
}

/* Returns the first child from member *at on, and moves *at behind it; NULL at the end. Parameters
 * and buffers that users register are no layers. */
static ek_module *sequential_next(const ek_module *module, int *at)
{
    while (*at < ek_module_member_count(module)) {
        ek_member member = ek_module_member(module, (*at)++);
        if (member.kind == EK_MEMBER_MODULE)
            return *member.slot.module;
    }
    return NULL;
}

static ek_value sequential_forward(ek_module *module, const ek_args *args)
{
    if (ek_check_inputs(module, args, 1) < 0)
        return ek_value_error();
    int at = 0;
    /* This function holds one reference to x, and releases it once the next layer has read x. If no
     * graph holds x, its memory is then free for later layers. */
    ek_value x = ek_value_keep(ek_arg(args, 0));
    for (ek_module *child = sequential_next(module, &at), *next; child; child = next) {
        next = sequential_next(module, &at);
        const ek_args input = {&x, 1, ek_value_none()};
        if (sequential_swaps(child, next)) {
            ek_module *relu = child;
            child = next;
            next = relu;
        }
        ek_forward_function *fused = sequential_fused(child, next);
        ek_scope scope = ek_scope_begin();
        ek_value y = ek_value_keep(fused ? ek_module_call(child, &input, fused)
                                         : ek_module_forward(child, &input));
        ek_scope_end(&scope);
        ek_value_release(x);
        x = y;
        if (fused)
            next = sequential_next(module, &at);
        if (x.kind == EK_VALUE_ERROR)
            return x;
    }
    return sequential_adopt(x);
}

static const ek_module_type sequential_type = {.name = "sequential",
                                               .size = sizeof(sequential),
                                               .forward = sequential_forward};

bool ek_module_is_sequential(const ek_module *module)
{
    return module->type == &sequential_type;
}

ek_module *ek_sequential_named_of(const ek_named_module *modules, int count)
{
    return ek_container_named(&sequential_type, modules, count);
}

ek_module *ek_sequential_of(ek_module *const *modules, int count)
{
    return ek_container_new(&sequential_type, modules, count);
}
