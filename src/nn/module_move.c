/* module_move.c: parameters and buffers on another device or of another dtype, under the same
 * handles. */
#include <stdlib.h>

#include "autograd/graph.h"
#include "autograd/shards.h"
#include "evenkeel/module.h"
#include "evenkeel/ops.h"
#include "nn/module_walk.h"

/* A gradient lies where its parameter was: it goes, and a slab's slot with it. So do the pieces of
 * a divided parameter. Without a gradient nothing of this can fail. */
static void forget_gradient(ek_tensor *tensor)
{
    ek_tensor_set_grad(tensor, NULL);
    ek_leaf_set_shards(tensor, NULL);
    ek_leaf_set_grad_slot(tensor, NULL);
}

typedef ek_tensor *convert_function(ek_tensor *tensor, const void *user);

/* Converts all tensors first, so that none has moved when one fails. */
static int convert_all(ek_module *module, convert_function *convert, const void *user)
{
    ek_tensor_list list = {0};
    EK_TRY(ek_module_collect(module, true, true, &list));
    int status = 0;
    ek_scope scope = ek_scope_begin();
    bool grad_enabled = ek_set_grad_enabled(false);
    ek_memory_category category = ek_memory_set_category(EK_MEMORY_PARAMETER);
    ek_tensor **converted = ek_calloc((size_t)list.count, sizeof *converted);
    if (!converted)
        status = EK_E_NO_MEMORY;
    for (int i = 0; i < list.count && status == 0; i++) {
        converted[i] = convert(list.tensors[i], user);
        if (!converted[i])
            status = ek_error_pending();
    }
    for (int i = 0; i < list.count && status == 0; i++) {
        ek_tensor *tensor = list.tensors[i];
        if (converted[i] == tensor)
            continue;
        forget_gradient(tensor);
        ek_tensor_rehome(tensor, converted[i]);
    }
    free(converted);
    ek_memory_set_category(category);
    ek_set_grad_enabled(grad_enabled);
    ek_scope_end(&scope);
    ek_tensor_list_clear(&list);
    return status;
}

static ek_tensor *convert_device(ek_tensor *tensor, const void *user)
{
    return ek_to_device(tensor, *(const ek_device *)user);
}

int ek_module_to_device(ek_module *module, ek_device device)
{
    EK_TRY(convert_all(module, convert_device, &device));
    /* Blocks of a model's size are not asked for again where it was made: plain memory has no
     * capacity that would ever make it give them back. */
    return device.kind == EK_CPU ? 0 : ek_memory_trim(ek_cpu());
}

/* Counters stay the integers that they are. */
static ek_tensor *convert_dtype(ek_tensor *tensor, const void *user)
{
    return ek_dtype_is_floating(tensor->dtype) ? ek_to_dtype(tensor, *(const ek_dtype *)user)
                                               : tensor;
}

int ek_module_to_dtype(ek_module *module, ek_dtype dtype)
{
    if ((unsigned)dtype >= EK_DTYPES || !ek_dtype_is_floating(dtype))
        return EK_FAIL(EK_E_DTYPE, "a module's parameters have to be f32, f64 or bf16, not %s",
                       (unsigned)dtype < EK_DTYPES ? ek_dtype_name(dtype) : "an unknown dtype");
    return convert_all(module, convert_dtype, &dtype);
}
