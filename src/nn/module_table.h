/* module_table.h: the table of registered members, for the files that keep it. */
#ifndef EK_NN_MODULE_TABLE_H
#define EK_NN_MODULE_TABLE_H

#include "nn/module_members.h"

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

#endif
