/* check.h: finds mistakes with lifetimes, and where NaN begins, if EVENKEEL_CHECK asks for it.
 *
 * A tensor or handle that is released is retired: its contents are freed, and its memory becomes a
 * tombstone, which tells what released the handle. Tombstones wait in rings of bounded length
 * (check.c), and then their memory is freed. So a stale handle is found to be one, unless very many
 * handles were retired since.
 *
 * A public function that releases begins with EK_RELEASES, which notes its name and the caller's
 * place in ek_thread. A function that uses a handle calls ek_check_alive. Operands of operations
 * need no call if they are checked by ek_tensor_hold: a retired tensor has a storage with a
 * residence. Without EVENKEEL_CHECK each of these costs a relaxed load or less. */
#ifndef EK_CORE_CHECK_H
#define EK_CORE_CHECK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/error.h"

typedef struct ek_thread ek_thread;

enum { EK_CHECK_LIFETIMES = 1, EK_CHECK_ANOMALY = 2 };

/* The sum of EK_CHECK_x that EVENKEEL_CHECK asks for. Set by a constructor. */
extern atomic_uint ek_checks;

static inline bool ek_checks_for(unsigned check)
{
    return atomic_load_explicit(&ek_checks, memory_order_relaxed) & check;
}

/* Sets ek_checks from the environment. For tests after the start of the process. */
void ek_checks_read(void);
/* Fails if EVENKEEL_CHECK has a word that it doesn't know. */
int ek_checks_validate(void);

/* Writes a warning to the log's function or, if none is set, to stderr. A sentence that was written
 * before is not repeated. */
void ek_check_warn(const char *format, ...) EK_PRINTF(1, 2);

/* ---- what releases ---- */

/* What releases handles on this thread: "ek_release", "the scope that ended", "the forward of". All
 * zero: unknown. Texts are borrowed. */
typedef struct ek_releaser {
    const char *what;
    const char *name; /* follows `what`; NULL: the place follows */
    const char *file; /* NULL: unknown */
    int line;
} ek_releaser;

/* Begins a public function that releases `handle`, and returns from it if the handle is NULL or was
 * released already, which a warning tells. */
#define EK_RELEASES(function, handle)                                                  \
    __attribute__((unused, cleanup(ek_release_end))) ek_releaser outer_releaser = {0}; \
    if (ek_checks_for(EK_CHECK_LIFETIMES)                                              \
            ? !ek_release_begin(&outer_releaser, (function), (handle))                 \
            : !(handle))                                                               \
    return
bool ek_release_begin(ek_releaser *outer, const char *function, const void *handle);
/* Sets the thread's releaser. Returns the one before. */
ek_releaser ek_release_set(ek_releaser releaser);
/* Names what the library is about to release for, as "the forward of" and a module's name.
 * ek_release_end takes the result. */
static inline ek_releaser ek_release_named(const char *what, const char *name)
{
    ek_releaser releaser = {.what = what, .name = name};
    return ek_checks_for(EK_CHECK_LIFETIMES) ? ek_release_set(releaser) : releaser;
}
/* Makes *outer the thread's releaser again. */
static inline void ek_release_end(const ek_releaser *outer)
{
    if (ek_checks_for(EK_CHECK_LIFETIMES))
        ek_release_set(*outer);
}
/* Returns `what` at the place that ek_placed has noted, and forgets the place. */
ek_releaser ek_release_take_place(const char *what);

/* ---- what was released ---- */

/* Handles of less memory are not retired, so that they are allocated with EK_RETIRABLE(nbytes). */
enum { EK_TOMBSTONE_NBYTES = 80 };
#define EK_RETIRABLE(nbytes) ((nbytes) < EK_TOMBSTONE_NBYTES ? EK_TOMBSTONE_NBYTES : (nbytes))
/* Frees `memory`, in which a handle of `nbytes` and this kind begins or lies. The handle begins
 * with a pointer or an ek_object. ek_retire_cell frees a handle that is a cell of ek_cell_new. */
void ek_retire(void *handle, size_t nbytes, const char *kind, void *memory);
void ek_retire_cell(void *handle, size_t nbytes, const char *kind);
/* Hands the thread's tombstones over to those of the process. */
void ek_retired_hand_over(ek_thread *thread);
/* Returns true if the handle, which isn't NULL, was retired. */
bool ek_is_retired(const void *handle);
/* Fails with "<what>: <operand> was released by ...". */
int ek_retired_fail(const char *what, const char *operand, const void *handle);
/* Warns that the function was given the retired handle. */
void ek_retired_warn(const char *function, const void *handle);

/* Fails with EK_E_STATE if the handle (may be NULL) was retired. */
static inline int ek_check_alive(const char *what, const char *operand, const void *handle)
{
    return ek_checks_for(EK_CHECK_LIFETIMES) && handle && ek_is_retired(handle)
               ? ek_retired_fail(what, operand, handle)
               : 0;
}

/* Does what ek_check_given does for a handle, and fails if it was retired. */
int ek_check_handle(const char *what, const char *operand, const void *handle);

#endif
