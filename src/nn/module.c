/* module.c: makes modules, registers their members, and frees modules. */
#include "evenkeel/module.h"

#include <stdlib.h>
#include <string.h>

#include "core/tensor.h"
#include "evenkeel/autograd.h"
#include "nn/module_table.h"

/* ---- the layout, which replicas share, and which is copied before a change ---- */

static void layout_destroy(ek_object *object)
{
    ek_layout *layout = (ek_layout *)object;
    for (int i = 0; i < layout->count; i++)
        free(layout->entries[i].name);
    free(layout->entries);
    free(layout);
}

static ek_layout *layout_copy(const ek_layout *source)
{
    ek_layout *layout = ek_calloc(1, sizeof *layout);
    if (!layout)
        return NULL;
    ek_object_init(&layout->object, layout_destroy);
    if (!source || source->count == 0)
        return layout;
    layout->entries = ek_calloc((size_t)source->count, sizeof *layout->entries);
    if (!layout->entries)
        goto failed;
    layout->capacity = source->count;
    for (; layout->count < source->count; layout->count++) {
        ek_layout_entry *entry = &layout->entries[layout->count];
        *entry = source->entries[layout->count];
        entry->name = ek_strdup(entry->name);
        if (!entry->name)
            goto failed;
    }
    return layout;

failed:
    ek_object_release(layout);
    return NULL;
}

/* Makes room for one more entry in the layout and in the slots. A shared layout is copied first. */
static int table_grow(struct ek_module_members *members)
{
    if (atomic_load(&members->layout->object.references) > 1) {
        ek_layout *own = layout_copy(members->layout);
        if (!own)
            return EK_E_NO_MEMORY;
        ek_object_release(members->layout);
        members->layout = own;
    }
    ek_layout *layout = members->layout;
    int count = layout->count;
    EK_TRY(ek_grow(&layout->entries, &layout->capacity, count + 1));
    EK_TRY(ek_grow(&members->slots, &members->slot_capacity, count + 1));
    members->slots[count] = NULL;
    return 0;
}

/* ---- making ---- */

static ek_module *module_with_layout(const ek_module_type *type, ek_layout *layout)
{
    struct ek_module_members *members = ek_calloc(1, sizeof *members);
    ek_module *module = members ? ek_calloc(1, EK_RETIRABLE(type->size)) : NULL;
    if (layout && layout->count > 0 && module) {
        members->slots = ek_calloc((size_t)layout->count, sizeof *members->slots);
        members->slot_capacity = members->slots ? layout->count : 0;
    }
    if (!module || !layout || (layout->count > 0 && !members->slots)) {
        free(members);
        free(module);
        ek_object_release(layout);
        return NULL;
    }
    atomic_init(&members->references, 1);
    members->layout = layout;
    members->name = members->path = ek_path_root;
    module->type = type;
    module->members = members;
    module->training = true;
    return module;
}

ek_module *ek_module_new(const ek_module_type *type)
{
    if (!type || !type->name || type->size < sizeof(ek_module) || !type->forward) {
        EK_FAIL(EK_E_INVALID, "a module's type needs a name, a forward, and the size of a struct "
                              "that begins with ek_module");
        return NULL;
    }
    ek_module *module = module_with_layout(type, layout_copy(NULL));
    if (module)
        module->members->after_error = ek_error_status() < 0;
    return module;
}

ek_module *ek_module_replicate_struct(const ek_module *module)
{
    ek_layout *layout = ek_object_retain(module->members->layout);
    ek_module *replica = module_with_layout(module->type, layout);
    if (!replica)
        return NULL;
    struct ek_module_members *members = replica->members;
    memcpy(replica, module, module->type->size);
    replica->members = members;
    members->hooks = ek_object_retain(module->members->hooks);
    members->is_shard_unit = module->members->is_shard_unit;
    members->is_checkpointed = module->members->is_checkpointed;
    members->path = module->members->path;
    replica->is_replica = true;
    for (int i = 0; i < layout->count; i++)
        *ek_module_slot(replica, i) = NULL;
    return replica;
}

ek_module *ek_module_retain(ek_module *module)
{
    if (module)
        atomic_fetch_add_explicit(&module->members->references, 1, memory_order_relaxed);
    return module;
}

/* Detaches a gradient that has a history (create_graph). Otherwise the leaf would hold the
 * gradient, the gradient its graph, and the graph the leaf, and none would ever be freed. If memory
 * is short, removes the gradient. */
void ek_module_cut_gradient(ek_tensor *leaf)
{
    ek_tensor *gradient = ek_tensor_grad(leaf);
    if (!gradient || !gradient->history)
        return;
    const int pending = ek_error_status();
    ek_scope scope = ek_scope_begin();
    ek_tensor_set_grad(leaf, ek_detach(gradient));
    ek_scope_end(&scope);
    if (pending == 0)
        ek_error_clear();
}

void ek_module_free(ek_module *module)
{
    EK_RELEASES("ek_module_free", module);
    struct ek_module_members *members = module->members;
    if (atomic_fetch_sub_explicit(&members->references, 1, memory_order_acq_rel) != 1)
        return;
    /* The type's destroy comes first, because it may use the registered members. */
    if (module->type->destroy && !module->is_replica)
        module->type->destroy(module);
    for (int i = 0; i < members->layout->count; i++) {
        void **slot = ek_module_slot(module, i);
        if (members->layout->entries[i].kind == EK_MEMBER_MODULE) {
            ek_module_free(*slot);
            continue;
        }
        if (!module->is_replica) /* a replica's tensors are handles on the module's tensors */
            ek_module_cut_gradient(*slot);
        ek_object_release(*slot);
    }
    ek_object_release(members->layout);
    ek_object_release(members->hooks);
    free(members->slots);
    free(members);
    ek_retire(module, EK_RETIRABLE(module->type->size), "module", module);
}

ek_module *ek_module_finish(ek_module *module)
{
    if (ek_check_alive("module_finish", "the module", module) < 0)
        return NULL;
    if (module && ek_error_status() == 0)
        return module;
    if (module && module->members->after_error)
        ek_error_refused(module->type->name);
    ek_module_free(module);
    return NULL;
}

/* ---- registering ---- */

void **ek_module_slot(const ek_module *module, int index)
{
    const struct ek_module_members *members = module->members;
    size_t offset = members->layout->entries[index].offset;
    if (offset == EK_NO_MEMBER)
        return &members->slots[index];
    return (void **)(void *)((char *)module + offset);
}

int ek_module_member_count(const ek_module *module)
{
    return module->members->layout->count;
}

ek_member ek_module_member(const ek_module *module, int index)
{
    const ek_layout_entry *entry = &module->members->layout->entries[index];
    ek_member member = {.kind = entry->kind, .name = entry->name, .is_origin = entry->is_origin};
    void *slot = ek_module_slot(module, index);
    if (entry->kind == EK_MEMBER_MODULE)
        member.slot.module = slot;
    else
        member.slot.tensor = slot;
    return member;
}

void ek_module_set_origin(ek_module *module)
{
    const ek_layout *layout = module->members->layout;
    layout->entries[layout->count - 1].is_origin = true;
}

/* Adds an entry and stores `content` in its slot. Takes the reference if it returns 0. */
static int module_enter(ek_module *module, ek_member_kind kind, const char *name, void *member,
                        void *content)
{
    /* A child may have an empty name: paths then skip it. */
    if (!name || (!name[0] && kind != EK_MEMBER_MODULE) || strchr(name, '.'))
        return EK_FAIL(EK_E_INVALID,
                       "%s: \"%s\" is no name for a member: it must not be empty or have a dot",
                       module->type->name, name ? name : "");
    if (module->is_replica)
        return EK_FAIL(EK_E_STATE,
                       "%s: \"%s\" cannot be registered with a replica; register it "
                       "with the module before it is replicated",
                       module->type->name, name);
    struct ek_module_members *members = module->members;
    size_t offset = EK_NO_MEMBER;
    if (member) {
        uintptr_t base = (uintptr_t)module, at = (uintptr_t)member;
        if (at < base + sizeof(ek_module) || at + sizeof(void *) > base + module->type->size)
            return EK_FAIL(EK_E_INVALID,
                           "%s: the member of \"%s\" lies outside of the module's struct; register "
                           "it with member NULL to have the module hold it",
                           module->type->name, name);
        offset = (size_t)(at - base);
    }
    for (int i = 0; i < members->layout->count; i++) {
        const ek_layout_entry *entry = &members->layout->entries[i];
        if (strcmp(entry->name, name) == 0)
            return EK_FAIL(EK_E_INVALID, "%s: \"%s\" is registered already", module->type->name,
                           name);
        if (member && entry->offset == offset)
            return EK_FAIL(EK_E_INVALID, "%s: \"%s\" and \"%s\" share one member",
                           module->type->name, entry->name, name);
    }
    char *copy = ek_strdup(name);
    if (!copy || table_grow(members) < 0) {
        free(copy);
        return EK_E_NO_MEMORY;
    }
    ek_layout *layout = members->layout;
    layout->entries[layout->count++] = (ek_layout_entry){kind, copy, offset, false};
    *ek_module_slot(module, layout->count - 1) = content;
    return 0;
}

int ek_module_admit(const ek_module *module, ek_member_kind kind, const char *name,
                    ek_tensor *tensor)
{
    if (!tensor || kind != EK_MEMBER_PARAMETER)
        return 0;
    if (tensor->history)
        return EK_FAIL(EK_E_AUTOGRAD,
                       "%s: parameter \"%s\" is the result of an operation; pass ek_detach of it",
                       module->type->name, name ? name : "");
    if (!tensor->is_parameter && !tensor->requires_grad)
        EK_TRY(ek_tensor_set_requires_grad(tensor, true));
    tensor->is_parameter = true;
    return 0;
}

/* The memory may have been allocated under another category. What another module has, too, keeps
 * that module's path. */
void ek_module_count_memory(const ek_module *module, ek_tensor *tensor)
{
    const char *path = tensor->storage->path;
    ek_storage_assign(tensor->storage, EK_MEMORY_PARAMETER,
                      path == ek_path_root ? module->members->path : path);
}

static int module_register_tensor(ek_module *module, ek_member_kind kind, const char *name,
                                  ek_tensor **member, ek_tensor *tensor)
{
    if (!module)
        return EK_FAIL(EK_E_INVALID, "module is NULL where \"%s\" is registered", name ? name : "");
    EK_TRY(ek_check_alive("register", "the module", module));
    EK_TRY(ek_check_alive(module->type->name, name ? name : "the tensor", tensor));
    if (!tensor && ek_error_status() < 0) {
        module->members->after_error = false;
        return ek_error_pending();
    }
    EK_TRY(ek_module_admit(module, kind, name, tensor));
    EK_TRY(module_enter(module, kind, name, member, tensor));
    ek_object_retain(tensor);
    if (tensor)
        ek_module_count_memory(module, tensor);
    return 0;
}

int ek_register_parameter(ek_module *module, const char *name, ek_tensor **member,
                          ek_tensor *tensor)
{
    return module_register_tensor(module, EK_MEMBER_PARAMETER, name, member, tensor);
}

int ek_register_buffer(ek_module *module, const char *name, ek_tensor **member, ek_tensor *tensor)
{
    return module_register_tensor(module, EK_MEMBER_BUFFER, name, member, tensor);
}

bool ek_module_contains(const ek_module *module, const ek_module *part)
{
    if (module == part)
        return true;
    for (int i = 0; i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind == EK_MEMBER_MODULE && *member.slot.module &&
            ek_module_contains(*member.slot.module, part))
            return true;
    }
    return false;
}

void ek_module_discard(ek_module *module)
{
    const bool retired = module && ek_checks_for(EK_CHECK_LIFETIMES) && ek_is_retired(module);
    if (module && !retired && !module->members->has_parent)
        ek_module_free(module);
}

int ek_module_set_path(ek_module *module, const char *path)
{
    const char *before = module->members->path;
    module->members->path = path;
    for (int i = 0; i < ek_module_member_count(module) && path != before; i++) {
        const ek_member member = ek_module_member(module, i);
        ek_module *child = member.kind == EK_MEMBER_MODULE ? *member.slot.module : NULL;
        ek_tensor *tensor = member.kind != EK_MEMBER_MODULE ? *member.slot.tensor : NULL;
        if (tensor && tensor->storage->path == before)
            ek_storage_assign(tensor->storage, tensor->storage->category, path);
        if (!child)
            continue;
        const char *old = ek_path_join(before, member.name), *new = ek_path_join(path, member.name);
        if (!old || !new)
            return EK_E_NO_MEMORY;
        if (child->members->path == old)
            EK_TRY(ek_module_set_path(child, new));
    }
    return 0;
}

int ek_module_adopt(ek_module *parent, const char *name, ek_module *child)
{
    struct ek_module_members *members = child->members;
    if (members->has_parent) {
        ek_module_retain(child);
        return 0;
    }
    const char *path = ek_path_join(parent->members->path, name);
    const char *own = ek_path_join(ek_path_root, name);
    if (!path || !own)
        return EK_E_NO_MEMORY;
    EK_TRY(ek_module_set_path(child, path));
    members->has_parent = true;
    members->name = own;
    return 0;
}

const char *ek_module_path(const ek_module *module)
{
    return ek_check_alive("module_path", "the module", module) == 0 && module
               ? module->members->path
               : NULL;
}

const char *ek_current_module_path(void)
{
    return ek_thread_self()->modes.path;
}

int ek_register_module(ek_module *module, const char *name, ek_module **member, ek_module *child)
{
    if (ek_check_alive("register_module", "the child", child) < 0)
        return ek_error_pending();
    if (ek_check_alive("register_module", "the module", module) < 0) {
        ek_module_discard(child);
        return ek_error_pending();
    }
    bool cycle = child && module && ek_module_contains(child, module);
    int rc = 0;
    if (!module)
        rc = EK_FAIL(EK_E_INVALID, "module is NULL where \"%s\" is registered", name ? name : "");
    else if (!child && ek_error_status() < 0) {
        module->members->after_error = false;
        rc = ek_error_pending();
    } else if (cycle)
        rc = EK_FAIL(EK_E_INVALID, "%s: \"%s\" cannot be a part of itself", module->type->name,
                     name ? name : "");
    else
        rc = module_enter(module, EK_MEMBER_MODULE, name, member, child);
    if (rc < 0) {
        if (!cycle)
            ek_module_discard(child);
        return rc;
    }
    return child ? ek_module_adopt(module, name, child) : 0;
}
