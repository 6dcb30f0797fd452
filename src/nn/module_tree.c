/* module_tree.c: walks over a module and its descendants: lists tensors, moves them to another
 * device or dtype, and copies structs. */
#include <stdlib.h>
#include <string.h>

#include "autograd/graph.h"
#include "autograd/shards.h"
#include "core/map.h"
#include "core/tensor.h"
#include "evenkeel/autograd.h"
#include "evenkeel/module.h"
#include "evenkeel/ops.h"
#include "nn/module_check.h"
#include "nn/module_table.h"

typedef struct walk {
    ek_member_kind kind;
    ek_tensor_visitor *visit;
    ek_module_visitor *visit_module; /* if set, modules are visited and not tensors */
    void *user;
    bool all_paths; /* shared tensors are visited by each of their paths */
    ek_map seen;    /* tensors and modules; empty with all_paths */
} walk;

/* Visits a module and its descendants. A module's tensors precede its children's, as in PyTorch.
 * `top` is the outermost of the wrappers around the module. */
static int walk_module(walk *w, ek_module *module, const ek_module *top, const char *path)
{
    int status = 0;
    if (!w->all_paths && !ek_map_add(&w->seen, module, &status))
        return status;
    int count = ek_module_member_count(module);
    if (w->visit_module)
        status = w->visit_module(path, module, w->user);
    if (status != 0)
        return status;
    for (int i = 0; i < count && !w->visit_module; i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind != w->kind || !*member.slot.tensor)
            continue;
        if (w->all_paths ? ek_module_origin(top, module, *member.slot.tensor) != NULL
                         : !ek_map_add(&w->seen, *member.slot.tensor, &status)) {
            EK_TRY(status);
            continue;
        }
        const char *own = ek_path_join(path, member.name);
        if (!own)
            return EK_E_NO_MEMORY;
        status = w->visit(own, *member.slot.tensor, w->user);
        if (status != 0)
            return status;
    }
    for (int i = 0; i < count; i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind != EK_MEMBER_MODULE || !*member.slot.module)
            continue;
        const char *longer = ek_path_join(path, member.name);
        if (!longer)
            return EK_E_NO_MEMORY;
        ek_module *child = *member.slot.module;
        status = walk_module(w, child, member.name[0] ? child : top, longer);
        if (status != 0)
            return status;
    }
    return 0;
}

/* Returns true if an earlier entry has the child of entry `index`, too. */
static bool walk_has_seen(const ek_module *module, int index)
{
    const ek_module *child = *ek_module_member(module, index).slot.module;
    for (int i = 0; i < index; i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind == EK_MEMBER_MODULE && *member.slot.module == child)
            return true;
    }
    return false;
}

/* Visits children, then the module, which `visit` may replace: the walk has a reference. */
static int walk_children_first(walk *w, ek_module *module, const char *path)
{
    int status = 0;
    ek_module_retain(module);
    for (int i = 0; i < ek_module_member_count(module) && status == 0; i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind != EK_MEMBER_MODULE || !*member.slot.module || walk_has_seen(module, i))
            continue;
        const char *longer = ek_path_join(path, member.name);
        status = longer ? walk_children_first(w, *member.slot.module, longer) : EK_E_NO_MEMORY;
    }
    if (status == 0)
        status = w->visit_module(path, module, w->user);
    ek_module_free(module);
    return status;
}

static int walk_check(const ek_module *module, bool has_visitor)
{
    if (!module || !has_visitor)
        return ek_error_status() < 0
                   ? ek_error_pending()
                   : EK_FAIL(EK_E_INVALID, "the %s is NULL", !module ? "module" : "visitor");
    return ek_check_alive("a walk", "the module", module);
}

static int walk_tensors(ek_module *module, ek_member_kind kind, bool all_paths,
                        ek_tensor_visitor *visit, void *user)
{
    EK_TRY(walk_check(module, visit != NULL));
    walk w = {.kind = kind, .visit = visit, .user = user, .all_paths = all_paths};
    int status = walk_module(&w, module, module, ek_path_root);
    ek_map_clear(&w.seen);
    return status;
}

int ek_module_tensor_paths(ek_module *module, ek_member_kind kind, ek_tensor_visitor *visit,
                           void *user)
{
    return walk_tensors(module, kind, true, visit, user);
}

int ek_module_parameters(ek_module *module, ek_tensor_visitor *visit, void *user)
{
    return walk_tensors(module, EK_MEMBER_PARAMETER, false, visit, user);
}

int ek_module_buffers(ek_module *module, ek_tensor_visitor *visit, void *user)
{
    return walk_tensors(module, EK_MEMBER_BUFFER, false, visit, user);
}

static int walk_modules(ek_module *module, bool children_first, ek_module_visitor *visit,
                        void *user)
{
    EK_TRY(walk_check(module, visit != NULL));
    walk w = {.visit_module = visit, .user = user};
    int status = children_first ? walk_children_first(&w, module, ek_path_root)
                                : walk_module(&w, module, module, ek_path_root);
    ek_map_clear(&w.seen);
    return status;
}

int ek_module_modules(ek_module *module, ek_module_visitor *visit, void *user)
{
    return walk_modules(module, false, visit, user);
}

int ek_module_apply(ek_module *module, ek_module_visitor *visit, void *user)
{
    return walk_modules(module, true, visit, user);
}

bool ek_module_is(const ek_module *module, const char *type)
{
    return ek_check_alive("module_is", "the module", module) == 0 && module && type &&
           strcmp(module->type->name, type) == 0;
}

/* ---- lists ---- */

int ek_tensor_list_append(ek_tensor_list *list, ek_tensor *tensor)
{
    EK_TRY(ek_grow(&list->tensors, &list->capacity, list->count + 1));
    list->tensors[list->count++] = tensor;
    return 0;
}

static int collect(const char *path, ek_tensor *tensor, void *user)
{
    (void)path;
    return ek_tensor_list_append(user, tensor);
}

int ek_module_collect(ek_module *module, bool parameters, bool buffers, ek_tensor_list *list)
{
    int status = 0;
    if (parameters)
        status = ek_module_parameters(module, collect, list);
    if (status == 0 && buffers)
        status = ek_module_buffers(module, collect, list);
    if (status < 0)
        ek_tensor_list_clear(list);
    return status;
}

void ek_tensor_list_clear(ek_tensor_list *list)
{
    free(list->tensors);
    *list = (ek_tensor_list){0};
}

/* ---- what visits all parameters ---- */

static int add_count(const char *path, ek_tensor *tensor, void *user)
{
    (void)path;
    *(int64_t *)user += ek_count(tensor);
    return 0;
}

int64_t ek_module_numel(ek_module *module)
{
    int64_t count = 0;
    int status = ek_module_parameters(module, add_count, &count);
    return status < 0 ? status : count;
}

static int drop_gradient(const char *path, ek_tensor *tensor, void *user)
{
    (void)path;
    (void)user;
    return ek_tensor_set_grad(tensor, NULL);
}

void ek_module_zero_grad(ek_module *module)
{
    if (module)
        ek_module_parameters(module, drop_gradient, NULL);
}

static int set_requires_grad(const char *path, ek_tensor *tensor, void *user)
{
    (void)path;
    return ek_tensor_set_requires_grad(tensor, *(bool *)user);
}

void ek_module_set_requires_grad(ek_module *module, bool requires_grad)
{
    if (module)
        ek_module_parameters(module, set_requires_grad, &requires_grad);
}

void ek_module_train(ek_module *module, bool training)
{
    if (!module || ek_check_alive("module_train", "the module", module) < 0)
        return;
    module->training = training;
    for (int i = 0; i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind == EK_MEMBER_MODULE)
            ek_module_train(*member.slot.module, training);
    }
}

/* ---- moves to another device or dtype, which keep the handles ---- */

/* Drops the tensor's gradient, shards and grad buffer, which have the old device and dtype. The
 * gradient is dropped first, because without a gradient the other calls can't fail. */
static void forget_gradient(ek_tensor *tensor)
{
    ek_tensor_set_grad(tensor, NULL);
    ek_leaf_set_shards(tensor, NULL, 0);
    ek_leaf_set_grad_buffer(tensor, NULL);
}

typedef ek_tensor *convert_function(ek_tensor *tensor, const void *user);

/* Converts all tensors before any tensor changes, so that a failed conversion changes none. */
static int convert_all(ek_module *module, convert_function *convert, const void *user)
{
    ek_tensor_list list = {0};
    EK_TRY(ek_module_collect(module, true, true, &list));
    int status = 0;
    ek_scope scope = ek_scope_begin();
    bool grad_enabled = ek_set_grad_enabled(false);
    ek_thread_modes *modes = &ek_thread_self()->modes, before = *modes;
    modes->category = EK_MEMORY_PARAMETER;
    ek_tensor **converted = ek_calloc((size_t)list.count, sizeof *converted);
    if (!converted)
        status = EK_E_NO_MEMORY;
    for (int i = 0; i < list.count && status == 0; i++) {
        modes->path = list.tensors[i]->storage->path;
        ek_scope own = ek_scope_begin(); /* parameters that are gathered are held one by one */
        converted[i] = ek_scope_return(&own, convert(list.tensors[i], user));
        if (!converted[i])
            status = ek_error_pending();
    }
    for (int i = 0; i < list.count && status == 0; i++) {
        ek_tensor *tensor = list.tensors[i];
        if (converted[i] == tensor)
            continue;
        forget_gradient(tensor);
        ek_tensor_rebind(tensor, converted[i]);
    }
    free(converted);
    *modes = before;
    ek_set_grad_enabled(grad_enabled);
    ek_scope_end(&scope);
    ek_tensor_list_clear(&list);
    return status;
}

static ek_tensor *convert_device(ek_tensor *tensor, const void *user)
{
    const ek_device *device = user;
    return ek_device_equal(ek_tensor_device(tensor), *device) ? tensor
                                                              : ek_to_device(tensor, *device);
}

int ek_module_to_device(ek_module *module, ek_device device)
{
    EK_TRY(convert_all(module, convert_device, &device));
    /* The model's old memory is now cached on cpu, where blocks of its sizes are rarely needed
     * again. cpu has no capacity, so that nothing else would give them back. */
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

/* ---- copies of structs with other tensors ---- */

/* `map` maps the module's tensors to handles, and modules to their copies. */
static ek_module *copy_module(ek_module *module, ek_map *map)
{
    void **known = ek_map_at(map, module);
    if (!known)
        return NULL;
    if (*known)
        return ek_module_retain(*known);
    ek_module *copy = ek_module_replicate_struct(module);
    if (!copy)
        return NULL;
    *known = copy;
    int count = ek_module_member_count(module);
    for (int i = 0; i < count; i++) {
        ek_member from = ek_module_member(module, i), to = ek_module_member(copy, i);
        if (from.kind == EK_MEMBER_MODULE) {
            if (!*from.slot.module)
                continue;
            *to.slot.module = copy_module(*from.slot.module, map);
            if (!*to.slot.module)
                goto fail;
        } else if (*from.slot.tensor) {
            ek_tensor *handle = ek_map_find(map, *from.slot.tensor);
            *to.slot.tensor = ek_object_retain(handle ? handle : *from.slot.tensor);
        }
    }
    return copy;

fail:
    ek_module_free(copy);
    return NULL;
}

ek_module *ek_module_copy_with(ek_module *module, ek_tensor *const *sources,
                               ek_tensor *const *handles, int count)
{
    ek_map map = {0};
    ek_module *copy = NULL;
    for (int i = 0; i < count; i++) {
        void **handle = ek_map_at(&map, sources[i]);
        if (!handle)
            goto done;
        *handle = handles[i];
    }
    if (ek_checks_for(EK_CHECK_LIFETIMES))
        ek_module_check_members(module);
    copy = copy_module(module, &map);
done:
    ek_map_clear(&map);
    return copy;
}
