/* module_members.h: what a module has registered, for folders that build on modules (replication,
 * optimizers).
 *
 * The table of a module is a layout (kinds, names, offsets of the members within the struct), which
 * replicas share, and the slots of entries that no member mirrors. The slot of an entry is the
 * struct's member, or such a slot of the table; it owns one reference to what it points to. */
#ifndef EK_NN_MODULE_MEMBERS_H
#define EK_NN_MODULE_MEMBERS_H

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

#endif
