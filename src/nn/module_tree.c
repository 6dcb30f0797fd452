/* module_tree.c: walks over a module and its descendants: lists tensors, finds them by path, moves
 * them to another device or dtype, and copies structs. */

#include <stdio.h>
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
    ek_map seen; /* tensors and modules */
    char *path;
    size_t path_capacity;
} walk;

/* Writes ".name" (or "name" at the start) at `length` of the path. Returns the new length; SIZE_MAX
 * if memory is short. An empty name (a wrapper's child) doesn't change the path. */
static size_t path_append(walk *w, size_t length, const char *name)
{
    size_t name_length = strlen(name);
    if (name_length == 0)
        return length;
    size_t need = length + name_length + 2;
    if (need > w->path_capacity) {
        char *grown = ek_realloc(w->path, 2 * need);
        if (!grown)
            return SIZE_MAX;
        w->path = grown;
        w->path_capacity = 2 * need;
    }
    if (length > 0)
        w->path[length++] = '.';
    memcpy(w->path + length, name, name_length + 1);
    return length + name_length;
}

/* Visits a module and its descendants. A module's tensors precede its children's, as in PyTorch. */
static int walk_module(walk *w, ek_module *module, size_t length)
{
    int status = 0;
    if (!ek_map_add(&w->seen, module, &status))
        return status;
    int count = ek_module_member_count(module);
    if (w->visit_module)
        status = w->visit_module(w->path, module, w->user);
    if (status != 0)
        return status;
    for (int i = 0; i < count && !w->visit_module; i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind != w->kind || !*member.slot.tensor)
            continue;
        if (!ek_map_add(&w->seen, *member.slot.tensor, &status)) {
            EK_TRY(status);
            continue;
        }
        if (path_append(w, length, member.name) == SIZE_MAX)
            return EK_E_NO_MEMORY;
        status = w->visit(w->path, *member.slot.tensor, w->user);
        if (status != 0)
            return status;
    }
    for (int i = 0; i < count; i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind != EK_MEMBER_MODULE || !*member.slot.module)
            continue;
        size_t longer = path_append(w, length, member.name);
        if (longer == SIZE_MAX)
            return EK_E_NO_MEMORY;
        status = walk_module(w, *member.slot.module, longer);
        if (status != 0)
            return status;
    }
    return 0;
}

static int walk_tensors(ek_module *module, ek_member_kind kind, ek_tensor_visitor *visit,
                        void *user)
{
    if (!module || !visit)
        return ek_error_status() < 0
                   ? ek_error_pending()
                   : EK_FAIL(EK_E_INVALID, "the %s is NULL", !module ? "module" : "visitor");
    EK_TRY(ek_check_alive("module_parameters", "the module", module));
    walk w = {.kind = kind, .visit = visit, .user = user};
    int status = walk_module(&w, module, 0);
    ek_map_clear(&w.seen);
    free(w.path);
    return status;
}

int ek_module_parameters(ek_module *module, ek_tensor_visitor *visit, void *user)
{
    return walk_tensors(module, EK_MEMBER_PARAMETER, visit, user);
}

int ek_module_buffers(ek_module *module, ek_tensor_visitor *visit, void *user)
{
    return walk_tensors(module, EK_MEMBER_BUFFER, visit, user);
}

int ek_module_modules(ek_module *module, ek_module_visitor *visit, void *user)
{
    if (!module || !visit)
        return ek_error_status() < 0
                   ? ek_error_pending()
                   : EK_FAIL(EK_E_INVALID, "the %s is NULL", !module ? "module" : "visitor");
    EK_TRY(ek_check_alive("module_modules", "the module", module));
    walk w = {.visit_module = visit, .user = user, .path = ek_strdup(""), .path_capacity = 1};
    int status = w.path ? walk_module(&w, module, 0) : EK_E_NO_MEMORY;
    ek_map_clear(&w.seen);
    free(w.path);
    return status;
}

/* ---- one of them ---- */

const char *ek_module_child_name(const ek_module *module, int index)
{
    if (ek_check_alive("module_child_name", "the module", module) < 0)
        return NULL;
    for (int i = 0; module && index >= 0 && i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind == EK_MEMBER_MODULE && index-- == 0)
            return member.name;
    }
    return NULL;
}

/* Returns the child of this name of `length` bytes. *transparent becomes the child without a name.
 */
static ek_module *tree_child(const ek_module *module, const char *name, size_t length,
                             ek_module **transparent)
{
    ek_module *found = NULL;
    *transparent = NULL;
    for (int i = 0; i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind != EK_MEMBER_MODULE)
            continue;
        if (!member.name[0])
            *transparent = *member.slot.module;
        else if (strlen(member.name) == length && memcmp(member.name, name, length) == 0)
            found = *member.slot.module;
    }
    return found;
}

ek_module *ek_module_at(ek_module *module, const char *path)
{
    if (!module || !path) {
        if (ek_error_status() == 0)
            EK_FAIL(EK_E_INVALID, "the %s is NULL", !module ? "module" : "path");
        return NULL;
    }
    if (ek_check_alive("module_at", "the module", module) < 0)
        return NULL;
    const char *rest = path;
    for (ek_module *at = module; at;) {
        if (!*rest)
            return at;
        size_t length = strcspn(rest, ".");
        ek_module *transparent, *below = tree_child(at, rest, length, &transparent);
        if (below)
            rest += length + (rest[length] == '.');
        at = below ? below : transparent;
    }
    EK_FAIL(EK_E_INVALID, "%s has no module \"%.200s\"", module->type->name, path);
    return NULL;
}

ek_module *ek_module_child(ek_module *module, int index)
{
    if (!module || index < 0 || ek_check_alive("module_child", "the module", module) < 0)
        return NULL;
    for (int i = 0; i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind == EK_MEMBER_MODULE && index-- == 0)
            return *member.slot.module;
    }
    return NULL;
}

ek_tensor *ek_module_tensor(ek_module *module, const char *path)
{
    if (!module || !path) {
        if (ek_error_status() == 0)
            EK_FAIL(EK_E_INVALID, "the %s is NULL", !module ? "module" : "path");
        return NULL;
    }
    if (ek_check_alive("module_tensor", "the module", module) < 0)
        return NULL;
    const char *rest = path;
    for (const ek_module *at = module; at;) {
        size_t length = strcspn(rest, ".");
        bool last = rest[length] == '\0';
        const ek_module *below = NULL, *transparent = NULL;
        for (int i = 0; i < ek_module_member_count(at); i++) {
            ek_member member = ek_module_member(at, i);
            if (member.kind == EK_MEMBER_MODULE && !member.name[0])
                transparent = *member.slot.module;
            if (strlen(member.name) != length || memcmp(member.name, rest, length) != 0)
                continue;
            if (last && member.kind != EK_MEMBER_MODULE && *member.slot.tensor)
                return *member.slot.tensor;
            if (!last && member.kind == EK_MEMBER_MODULE)
                below = *member.slot.module;
        }
        at = below ? below : transparent;
        if (below)
            rest += length + 1;
    }
    EK_FAIL(EK_E_INVALID, "%s has no parameter or buffer \"%s\"", module->type->name, path);
    return NULL;
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
    ek_memory_category category = ek_memory_set_category(EK_MEMORY_PARAMETER);
    ek_tensor **converted = ek_calloc((size_t)list.count, sizeof *converted);
    if (!converted)
        status = EK_E_NO_MEMORY;
    for (int i = 0; i < list.count && status == 0; i++) {
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
    ek_memory_set_category(category);
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
