/* hook_list.h: the user's functions that a tensor or a module calls, in order of registration.
 *
 * A list may have several owners: copies of a module share a list, and a caller of the hooks holds
 * the list during the calls. Adding or removing a hook copies a shared list first, so that hooks
 * may add and remove hooks during a call. */
#ifndef EK_CORE_HOOK_LIST_H
#define EK_CORE_HOOK_LIST_H

#include "core/object.h"

/* A function of any type. It is cast back to its type before it is called. */
typedef void ek_any_function(void);

typedef struct ek_hook {
    int64_t id; /* positive; no other hook of the process has it */
    int kind;   /* the type of the function, if the owner's hooks have several types */
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

/* Removes the hook with this id, replacing the list if it has other owners; *list becomes NULL if
 * the list becomes empty. Returns 1, 0 if no hook has this id, or EK_E_NO_MEMORY. */
int ek_hook_list_remove(ek_hook_list **list, int64_t id);

#endif
