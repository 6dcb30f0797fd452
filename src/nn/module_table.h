/* module_table.h: what a module has registered, for folders that build on modules (replication,
 * optimizers), and walks over it.
 *
 * The table of a module is a layout (kinds, names, offsets of the members within the struct), which
 * replicas share, and the slots of entries that no member mirrors. The slot of an entry is the
 * struct's member, or such a slot of the table; it owns one reference to what it points to. */
#ifndef EK_NN_MODULE_TABLE_H
#define EK_NN_MODULE_TABLE_H

#include "core/object.h"
#include "evenkeel/module.h"

typedef enum ek_member_kind {
    EK_MEMBER_PARAMETER,
    EK_MEMBER_BUFFER,
    EK_MEMBER_MODULE
} ek_member_kind;

/* One registered entry. The slot may hold NULL (an absent bias). Whoever puts a tensor or module
 * there gives one reference with it (ek_object_retain, ek_module_retain). */
typedef struct ek_member {
    ek_member_kind kind;
    const char *name; /* valid as long as the module; "" for a wrapper's module, which paths skip */
    union {
        ek_tensor **tensor; /* parameters and buffers */
        ek_module **module;
    } slot;
} ek_member;

/* Entries in the order of their registration. Slots stay where they are until the next
 * registration. */
int ek_module_member_count(const ek_module *module);
ek_member ek_module_member(const ek_module *module, int index);

/* A replica without contents: a copy of the struct with a table of its own that shares the layout,
 * all slots empty and is_replica set. Owned by the caller; NULL with an error. */
ek_module *ek_module_replicate_struct(const ek_module *module);

/* Modules are counted, for those that several parents (or slots) share. ek_module_free gives one
 * reference back; with the last, the contents are released and the struct is freed (a replica's
 * type->destroy is not called). Retain returns its argument; NULL stays NULL. */
ek_module *ek_module_retain(ek_module *module);

/* ---- the table itself: for module.c and module_tree.c alone ---- */

/* Offset of entries that no member of the struct mirrors. */
#define EK_NO_MEMBER SIZE_MAX

typedef struct ek_layout_entry {
    ek_member_kind kind;
    char *name;
    size_t offset; /* of the member in the struct */
} ek_layout_entry;

typedef struct ek_layout {
    ek_object object;
    ek_layout_entry *entries;
    int count, capacity;
} ek_layout;

struct ek_module_members {
    atomic_int references; /* to the module */
    bool has_parent;
    char *name; /* in its first parent, for sentences; NULL for a root */
    ek_layout *layout;
    void **slots; /* of entries without a member; by index of the entry */
    int slot_capacity;
};

/* The slot of entry `index`: an ek_tensor * or ek_module *. */
void **ek_module_slot(const ek_module *module, int index);

/* ---- walks ---- */

/* Tensors without references of the list's own. All zero is an empty one. */
typedef struct ek_tensor_list {
    ek_tensor **tensors;
    int count, capacity;
} ek_tensor_list;

/* Appends the parameters, then the buffers, each once. If it fails the list is emptied. */
int ek_module_collect(ek_module *module, bool parameters, bool buffers, ek_tensor_list *list);
/* Appends one; 0 or EK_E_NO_MEMORY. */
int ek_tensor_list_append(ek_tensor_list *list, ek_tensor *tensor);
void ek_tensor_list_clear(ek_tensor_list *list);

/* A copy of `module` and all below it whose members show handles[i] where the module's show
 * sources[i]. What the module shares within itself the copy shares too. NULL with an error. */
ek_module *ek_module_copy_with(ek_module *module, ek_tensor *const *sources,
                               ek_tensor *const *handles, int count);

#endif
