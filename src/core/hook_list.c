/* hook_list.c: hooks, and the changes of shared lists. */
#include "core/hook_list.h"

#include <stdlib.h>

#include "core/error.h"

static atomic_int_least64_t next_id;

static void hook_list_destroy(ek_object *object)
{
    ek_hook_list *list = (ek_hook_list *)object;
    free(list->hooks);
    free(list);
}

/* Makes *place a list that has no other owner, with the hooks of the old list and room for one
 * more. Returns the list, or NULL with an error. */
static ek_hook_list *hook_list_own(ek_hook_list **place)
{
    ek_hook_list *shared = *place;
    if (shared && atomic_load(&shared->object.references) == 1)
        return ek_grow(&shared->hooks, &shared->room, shared->count + 1) < 0 ? NULL : shared;
    ek_hook_list *list = ek_calloc(1, sizeof *list);
    if (!list)
        return NULL;
    ek_object_init(&list->object, hook_list_destroy);
    if (ek_grow(&list->hooks, &list->room, (shared ? shared->count : 0) + 1) < 0) {
        ek_object_release(list);
        return NULL;
    }
    for (int i = 0; shared && i < shared->count; i++)
        list->hooks[list->count++] = shared->hooks[i];
    ek_object_release(shared);
    *place = list;
    return list;
}

int64_t ek_hook_list_add(ek_hook_list **place, int kind, ek_any_function *function, void *user)
{
    ek_hook_list *list = hook_list_own(place);
    if (!list)
        return ek_error_pending();
    int64_t id = atomic_fetch_add_explicit(&next_id, 1, memory_order_relaxed) + 1;
    list->hooks[list->count++] = (ek_hook){id, kind, function, user};
    return id;
}

int ek_hook_list_remove(ek_hook_list **place, int64_t id)
{
    ek_hook_list *list = *place;
    int at = 0;
    while (list && at < list->count && list->hooks[at].id != id)
        at++;
    if (!list || at == list->count)
        return 0;
    if (list->count == 1) {
        *place = NULL;
        ek_object_release(list);
        return 1;
    }
    list = hook_list_own(place);
    if (!list)
        return ek_error_pending();
    for (list->count--; at < list->count; at++)
        list->hooks[at] = list->hooks[at + 1];
    return 1;
}
