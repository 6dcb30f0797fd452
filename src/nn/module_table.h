/* module_table.h: the table of a module's registered parameters, buffers and children, and walks
 * over the table. For folders that build on modules (replication, optimizers).
 *
 * A table is a layout (kinds, names, and offsets of members within the struct), which replicas
 * share, and an array of slots. The slot of an entry is the struct's member; for an entry that was
 * registered without a member, an element of the array. A slot owns one reference. */
#ifndef EK_NN_MODULE_TABLE_H
#define EK_NN_MODULE_TABLE_H

#include "core/object.h"
#include "evenkeel/module.h"

typedef enum ek_member_kind {
    EK_MEMBER_PARAMETER,
    EK_MEMBER_BUFFER,
    EK_MEMBER_MODULE
} ek_member_kind;

/* One registered entry. Its slot may hold NULL (a bias that is off). Whoever stores a tensor or
 * module in the slot gives it one reference (ek_object_retain, ek_module_retain). */
typedef struct ek_member {
    ek_member_kind kind;
    const char *name; /* valid as long as the module; "" for a wrapper's child, which paths skip */
    bool is_origin; /* a weight of the wrapped module is computed from it (ek_module_set_origin) */
    union {
        ek_tensor **tensor; /* parameters and buffers */
        ek_module **module;
    } slot;
} ek_member;

/* Return the number of entries, and entry `index` in the order of registration. Slots stay valid
 * until the next registration. */
int ek_module_member_count(const ek_module *module);
ek_member ek_module_member(const ek_module *module, int index);

/* Makes an empty replica: a copy of the struct whose table shares the layout, with all slots NULL
 * and is_replica set. Owned by the caller; NULL with an error. */
ek_module *ek_module_replicate_struct(const ek_module *module);

/* Where a path leads. */
typedef struct ek_member_place {
    ek_module *parent; /* the module that has the member */
    int index;         /* among the parent's members */
    ek_module *top;    /* the outermost of the wrappers around `parent`, or `parent` */
} ek_member_place;

/* Finds the child of a path, or with `tensor` the parameter or buffer. It may be absent.
 * EK_E_INVALID if there is none; the sentence lists what there is instead. */
int ek_module_find(ek_module *module, const char *path, bool tensor, ek_member_place *place);
/* Returns the module that this one wraps (its child without a name), or NULL. */
ek_module *ek_module_wrapped(const ek_module *module);
/* Returns the module's first slot that has the tensor; NULL if none has, and for NULL. */
ek_tensor **ek_module_slot_of(const ek_module *module, const ek_tensor *tensor);
/* Tells that the parameter which was registered last also lies in a slot of the wrapped module, in
 * whose place forwards use what is computed from it. */
void ek_module_set_origin(ek_module *module);
/* Returns the name under which a wrapper around `module`, from `top` on, has the tensor as an
 * origin; NULL if none has. */
const char *ek_module_origin(const ek_module *top, const ek_module *module,
                             const ek_tensor *tensor);

/* Returns true if `part` is `module` or below it. */
bool ek_module_contains(const ek_module *module, const ek_module *part);

/* Frees a module that could not get a parent, unless another module is its parent. */
void ek_module_discard(ek_module *module);

/* Prepares a tensor (NULL: absent) to be the parameter or buffer `name` of a module. */
int ek_module_admit(const ek_module *module, ek_member_kind kind, const char *name,
                    ek_tensor *tensor);
/* Detaches a gradient that has a history from a leaf (or NULL) that leaves its module. */
void ek_module_cut_gradient(ek_tensor *leaf);

/* Calls `visit` for every path of every parameter or buffer, except for weights that are computed
 * (ek_module_origin). */
int ek_module_tensor_paths(ek_module *module, ek_member_kind kind, ek_tensor_visitor *visit,
                           void *user);

/* Adds a reference and returns its argument; NULL stays NULL. Several parents or slots may share a
 * module. ek_module_free drops one reference; with the last reference it releases the members and
 * frees the struct. type->destroy isn't called for replicas. */
ek_module *ek_module_retain(ek_module *module);

/* ---- the table, for the files module*.c only ---- */

/* The offset of entries that have no member in the struct. */
#define EK_NO_MEMBER SIZE_MAX

typedef struct ek_layout_entry {
    ek_member_kind kind;
    char *name;
    size_t offset; /* offset of the member in the struct, or EK_NO_MEMBER */
    bool is_origin;
} ek_layout_entry;

typedef struct ek_layout {
    ek_object object;
    ek_layout_entry *entries;
    int count, capacity;
} ek_layout;

struct ek_module_members {
    atomic_int references; /* references to the module */
    bool has_parent;
    bool is_shard_unit;   /* marked by ek_shard_unit (parallel/units.c) */
    bool is_checkpointed; /* marked by ek_module_checkpoint (checkpoint.c) */
    bool after_error;     /* an unrelated error was pending when the module was made */
    const char *name;     /* the module's name in its first parent, for sentences (core/path.h); "":
                           none */
    const char *path;     /* from its outermost parent, along first parents (core/path.h) */
    ek_layout *layout;
    /* One reference to its hooks (module_hook.c), shared with copies; or NULL. */
    struct ek_hook_list *hooks;
    void **slots; /* slots of entries without a member, by index of the entry */
    int slot_capacity;
};

/* Returns the slot of entry `index`: the address of an ek_tensor * or ek_module *. */
void **ek_module_slot(const ek_module *module, int index);

/* Gives `child` one more parent, which has it under `name`. The first parent takes the caller's
 * reference, and gives the child its path; each further parent adds a reference. */
int ek_module_adopt(ek_module *parent, const char *name, ek_module *child);

/* Counts a tensor's memory as the module's parameter. */
void ek_module_count_memory(const ek_module *module, ek_tensor *tensor);

/* Gives the module, what is below it, and the memory of its tensors the paths that begin with
 * `path`. What belongs to another parent, too, and has its path from there, keeps that path. */
int ek_module_set_path(ek_module *module, const char *path);

/* Returns true if a call of the module runs the forward of its type and nothing else, so that the
 * caller may run another forward instead. */
static inline bool ek_module_is_fusible(const ek_module *module)
{
    return !module->members->hooks && !module->members->is_checkpointed;
}

/* Runs the forward of the module's type without keeping its inner activations for backward
 * (checkpoint.c). */
ek_value ek_module_call_checkpointed(ek_module *module, const ek_args *args);

/* ---- hooks (module_hook.c) ---- */

/* Calls `forward` between the module's hooks. members->hooks isn't NULL. */
ek_value ek_module_call_hooked(ek_module *module, const ek_args *args,
                               ek_value (*forward)(ek_module *self, const ek_args *args));

/* ---- walks ---- */

/* A list of borrowed tensors. All zero is an empty list. */
typedef struct ek_tensor_list {
    ek_tensor **tensors;
    int count, capacity;
} ek_tensor_list;

/* Appends the module's parameters, then its buffers, each once. Empties the list on an error. */
int ek_module_collect(ek_module *module, bool parameters, bool buffers, ek_tensor_list *list);
/* Appends one tensor. Returns 0 or EK_E_NO_MEMORY. */
int ek_tensor_list_append(ek_tensor_list *list, ek_tensor *tensor);
void ek_tensor_list_clear(ek_tensor_list *list);

/* Copies `module` and all its descendants, with handles[i] in place of tensor sources[i]; the copy
 * shares all other tensors. A module that occurs twice is copied once. Owned by the caller; NULL
 * with an error. */
ek_module *ek_module_copy_with(ek_module *module, ek_tensor *const *sources,
                               ek_tensor *const *handles, int count);

#endif
