/* hook_list.h: functions of the user's that a tensor or a module holds, in order of registration.
 *
 * A list may have several owners: copies of a module share one, and who calls the hooks holds the
 * list meanwhile. A change is made in a list of the changer's own, so that hooks may add and remove
 * hooks while they are called. */
#ifndef EK_CORE_HOOK_LIST_H
#define EK_CORE_HOOK_LIST_H

#include "core/object.h"

/* Stands for a function of any type. It is called as what it was registered as. */
typedef void ek_any_function(void);

typedef struct ek_hook {
    int64_t id; /* positive; no other hook of the process has it */
    int kind;   /* of what type the function is, if the owner has several */
    ek_any_function *function;
    void *user; /* borrowed */
} ek_hook;

typedef struct ek_hook_list {
    ek_object object;
    ek_hook *hooks;
    int count, room;
} ek_hook_list;

/* Adds a hook to *list, where NULL is an empty list, and replaces the list if it has other owners.
 * Returns the hook's id, or EK_E_NO_MEMORY. */
int64_t ek_hook_list_add(ek_hook_list **list, int kind, ek_any_function *function, void *user);

/* Removes the hook of this id in the same way; *list becomes NULL with the last. Returns 1, 0 if
 * there is none of this id, or EK_E_NO_MEMORY. */
int ek_hook_list_remove(ek_hook_list **list, int64_t id);

#endif
