/* grad_hook.c: which hooks a pass has, and their calls. */
#include "autograd/grad_hook.h"

#include <stdlib.h>

#include "autograd/run.h"

int ek_leaf_set_grad_hook(ek_tensor *leaf, ek_grad_hook *hook, int index)
{
    char text[200];
    if (hook && leaf->history)
        return EK_FAIL(EK_E_INVALID,
                       "%s is the result of an operation; only leaves have grad hooks",
                       ek_tensor_text(leaf, text));
    if (hook && leaf->grad_hook)
        return EK_FAIL(EK_E_STATE, "%s has a grad hook already, and a leaf has one at most",
                       ek_tensor_text(leaf, text));
    ek_grad_hook *before = leaf->grad_hook;
    leaf->grad_hook = ek_object_retain(hook);
    leaf->grad_hook_index = index;
    ek_object_release(before);
    return 0;
}

/* ---- the hooks of a pass ---- */

/* Returns the run's entry for the hook. A missing entry is made at the end of the list. */
static ek_run_hook *hook_entry(ek_run *run, ek_grad_hook *hook)
{
    ek_run_hook **at = &run->hooks;
    while (*at && (*at)->hook != hook)
        at = &(*at)->next;
    if (!*at) {
        *at = ek_run_alloc(run, sizeof **at);
        if (*at)
            (*at)->hook = ek_object_retain(hook);
    }
    return *at;
}

static int hook_compare(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

static int hook_list_leaves(ek_run *run, ek_run_hook *entry)
{
    int count = 0;
    entry->leaves = ek_run_alloc(run, (size_t)entry->count * sizeof *entry->leaves);
    if (!entry->leaves)
        return ek_error_pending();
    for (int t = 0; t < run->count && count < entry->count; t++)
        if (run->order[t]->hook == entry)
            entry->leaves[count++] = run->order[t]->hook_index;
    qsort(entry->leaves, (size_t)count, sizeof *entry->leaves, hook_compare);
    return 0;
}

int ek_run_collect_hook(ek_run *run, ek_task *task)
{
    task->hook = hook_entry(run, task->leaf->grad_hook);
    if (!task->hook)
        return ek_error_pending();
    task->hook_index = task->leaf->grad_hook_index;
    task->hook->count++;
    return 0;
}

int ek_run_list_hooked(ek_run *run)
{
    for (ek_run_hook *entry = run->hooks; entry; entry = entry->next)
        EK_TRY(hook_list_leaves(run, entry));
    return 0;
}

void ek_run_drop_hooks(ek_run *run)
{
    for (ek_run_hook *entry = run->hooks; entry; entry = entry->next)
        ek_object_release(entry->hook);
    run->hooks = NULL;
}

/* ---- calls ---- */

typedef struct ek_hook_call {
    ek_thread_modes before;
    ek_scope scope;
} ek_hook_call;

static ek_hook_call hook_call_begin(const ek_run *run)
{
    ek_thread *self = ek_thread_self();
    ek_hook_call call = {self->modes, ek_scope_begin()};
    self->modes = run->modes;
    return call;
}

/* Ends the call and returns its outcome (ek_error_outcome). */
static int hook_call_end(ek_hook_call *call, int status)
{
    status = ek_error_outcome(status);
    ek_scope_end(&call->scope);
    ek_thread_self()->modes = call->before;
    return status;
}

int ek_run_begin_hooks(ek_run *run)
{
    for (ek_run_hook *entry = run->hooks; entry; entry = entry->next) {
        ek_hook_call call = hook_call_begin(run);
        EK_TRY(hook_call_end(&call, entry->hook->begin(entry->hook, entry->leaves, entry->count,
                                                       run->create_graph, run->meeting_count > 0)));
        entry->begun = true;
    }
    return 0;
}

int ek_run_leaf_arrived(const ek_run *run, const ek_task *task, bool some)
{
    ek_hook_call call = hook_call_begin(run);
    ek_grad_hook *hook = task->hook->hook;
    return hook_call_end(&call, hook->arrived(hook, task->hook_index, some));
}

int ek_run_finish_hooks(ek_run *run, int status)
{
    for (ek_run_hook *entry = run->hooks; entry; entry = entry->next) {
        if (!entry->begun)
            continue;
        ek_hook_call call = hook_call_begin(run);
        int outcome = hook_call_end(&call, entry->hook->finish(entry->hook, status));
        status = status < 0 ? status : outcome;
    }
    return status;
}
