/* scope_check.c: finds scopes that are ended wrongly or not at all, scopes that grow, and errors
 * that nobody reads. */
#include "core/scope_check.h"

#include <stdlib.h>

#include "core/tensor.h"

/* ---- ends ---- */

void ek_scope_check_begin(ek_thread *thread, ek_scope *scope)
{
    ek_thread_checks *checks = &thread->checks;
    const ek_releaser place = ek_release_take_place(NULL);
    scope->file = place.file;
    scope->line = place.line;
    if (scope->depth > checks->open_room) {
        const unsigned room = 2 * scope->depth + 16;
        ek_scope *open = realloc(checks->open, room * sizeof *open);
        if (!open)
            return; /* the scope is checked less */
        checks->open = open;
        checks->open_room = room;
    }
    checks->open[scope->depth - 1] = *scope;
}

/* Returns the open scope of the depth; NULL if its place is unknown. */
static const ek_scope *scope_open(const ek_thread *thread, unsigned depth)
{
    const ek_thread_checks *checks = &thread->checks;
    const bool known = depth > 0 && depth <= thread->scope_depth && depth <= checks->open_room;
    return known && checks->open[depth - 1].file ? &checks->open[depth - 1] : NULL;
}

/* Returns true if the thread has ended the scope already. */
static bool scope_has_ended(const ek_thread *thread, const ek_scope *scope)
{
    if (scope->depth == 0 || scope->depth > thread->scope_depth)
        return true;
    const ek_scope *open = scope_open(thread, scope->depth);
    return open && scope->file && (open->file != scope->file || open->line != scope->line);
}

static void scope_warn_open(const ek_thread *thread, unsigned depth, const char *before)
{
    for (; depth <= thread->scope_depth; depth++) {
        const ek_scope *open = scope_open(thread, depth);
        if (open)
            ek_check_warn("the scope that began at %s:%d was not ended before %s", open->file,
                          open->line, before);
    }
}

bool ek_scope_check_end(ek_thread *thread, const ek_scope *scope)
{
    const ek_releaser place = ek_release_take_place("the scope that ended");
    if (!scope)
        return false;
    const bool foreign = scope->depth > 0 && scope->thread != thread;
    if (foreign || scope_has_ended(thread, scope)) {
        if (place.file && scope->file)
            ek_check_warn("the scope that began at %s:%d %s, and is ended again at %s:%d",
                          scope->file, scope->line,
                          foreign ? "belongs to another thread" : "has ended", place.file,
                          place.line);
        return false;
    }
    scope_warn_open(thread, scope->depth + 1, "the scope around it");
    if (place.file)
        ek_release_set(place);
    else if (scope->file)
        ek_release_set((
            ek_releaser){.what = "the scope that began", .file = scope->file, .line = scope->line});
    return true;
}

/* ---- growth ---- */

void ek_scope_check_growth(const char *what)
{
    enum { STEPS = 100 };
    ek_thread *thread = ek_thread_self();
    ek_thread_checks *checks = &thread->checks;
    const size_t owned = thread->owned_count, before = checks->owned_before;
    checks->owned_before = owned;
    if (owned <= before) {
        checks->growing = 0;
        return;
    }
    if (checks->growing++ == 0)
        checks->owned_first = before;
    if (checks->growing != STEPS)
        return;
    size_t tensors = 0, nbytes = 0;
    for (size_t i = checks->owned_first; i < owned; i++) {
        const ek_tensor *tensor = ek_object_tensor(thread->owned[i]);
        tensors += tensor != NULL;
        nbytes += tensor && !tensor->is_view ? tensor->storage->nbytes : 0;
    }
    const ek_scope *open = NULL; /* the program's innermost; those of the library have no place */
    for (unsigned depth = thread->scope_depth; depth > 0 && !open; depth--)
        open = scope_open(thread, depth);
    char scope[200] = "the root scope";
    if (open)
        snprintf(scope, sizeof scope, "the scope that began at %s:%d", open->file, open->line);
    if (open && thread->scope_depth >= STEPS)
        ek_check_warn("%s: %s was begun, and not ended, at each of the last %d steps", what, scope,
                      STEPS);
    else
        ek_check_warn("%s: %s has grown at each of the last %d steps, by %zu tensors and %.1f MiB "
                      "in all; EK_SCOPE(step) at the beginning of a step releases what it makes",
                      what, scope, STEPS, tensors, (double)nbytes / (1 << 20));
}

/* ---- the end of a thread ---- */

void ek_scope_check_exit(ek_thread *thread)
{
    const bool is_shutdown = thread->checks.releaser.what != NULL;
    scope_warn_open(thread, 1, is_shutdown ? "ek_shutdown" : "its thread ended");
    free(thread->checks.open);
    thread->checks.open = NULL;
    thread->checks.open_room = 0;
    if (!is_shutdown && thread->error.status && !thread->checks.error_is_read)
        ek_check_warn("a thread ended with an error that nobody read: %s", thread->error.message);
}

/* At the end of the process the log's function may be gone. */
__attribute__((destructor)) static void scope_check_end_of_process(void)
{
    const ek_thread *thread = ek_thread_state;
    if (ek_checks_for(EK_CHECK_LIFETIMES) && thread && thread->error.status &&
        !thread->checks.error_is_read)
        fprintf(stderr, "evenkeel: the process ended with an error that nobody read: %s\n",
                thread->error.message);
}
