/* error.h: sets the calling thread's pending error and passes it on; allocates memory for the
 * library's bookkeeping, with an error if memory is short. */
#ifndef EK_CORE_ERROR_H
#define EK_CORE_ERROR_H

#include <stddef.h>

#include "evenkeel/status.h"

/* Sets an error of the library itself, with the place in its source. Returns the status. */
#define EK_FAIL(status, ...) ek_error_set((status), __FILE__, __LINE__, __VA_ARGS__)

/* Does what EK_FAIL does, in functions that return a pointer: the macro's value is NULL. */
#define EK_FAIL_NULL(status, ...) (EK_FAIL((status), __VA_ARGS__), NULL)

/* Sets the error "<what>: <path>: sentence" of a file. `source` points to a struct that has these
 * two texts as members. */
#define EK_FAIL_IN(status, source, ...) \
    ek_error_set_in((status), (source)->what, (source)->path, __FILE__, __LINE__, __VA_ARGS__)
int ek_error_set_in(int status, const char *what, const char *path, const char *file, int line,
                    const char *format, ...) EK_PRINTF(6, 7);

/* EK_TRY returns a negative status from the calling function; EK_TRY_GOTO jumps to a label. */
#define EK_TRY(call)             \
    do {                         \
        int try_status = (call); \
        if (try_status < 0)      \
            return try_status;   \
    } while (0)
#define EK_TRY_GOTO(call, rc, label) \
    do {                             \
        (rc) = (call);               \
        if ((rc) < 0)                \
            goto label;              \
    } while (0)

/* Fails with EK_E_INVALID "<what>: <operand> is NULL" if the pointer is NULL. */
int ek_check_pointer(const char *what, const char *operand, const void *pointer);

/* Does what ek_check_pointer does, for an operand that a failed call may have left NULL: if an
 * error is pending, it stays and its status is returned. */
int ek_check_given(const char *what, const char *operand, const void *pointer);

/* Returns the pending error's status. If a callee failed without setting an error, sets an error
 * and returns EK_E_STATE. */
int ek_error_pending(void);

/* Returns the status of a call into user code that returned rc. If an error is pending, returns its
 * status, even if rc says success. If rc is negative and no error is pending, sets an error with
 * status rc. Otherwise returns 0. */
int ek_error_outcome(int rc);

/* Adds to the pending sentence, once, that `what` was refused because the error was pending.
 * Returns the pending status. */
int ek_error_refused(const char *what);

/* Puts the operation and ": " before the pending sentence, if the sentence doesn't begin with the
 * operation. `before` is ek_error_status() when the operation began; if an error was pending then,
 * the sentence stays unchanged. */
void ek_error_prefix(int before, const char *format, ...) EK_PRINTF(2, 3);

/* Appends "; " and a remark to the pending sentence, if there is room. `before` is that of
 * ek_error_prefix. */
void ek_error_remark(int before, const char *format, ...) EK_PRINTF(2, 3);

/* Writes one log line (ek_set_log). Returns false if no function is set. */
bool ek_log_line(ek_log_level level, const char *format, ...) EK_PRINTF(2, 3);

/* ---- memory ---- */

/* Do what calloc, realloc and strdup do, and set EK_E_NO_MEMORY with the caller's place if memory
 * is short. Free with free(). */
void *ek_calloc_at(size_t count, size_t size, const char *file, int line);
void *ek_realloc_at(void *pointer, size_t nbytes, const char *file, int line);
char *ek_strdup_at(const char *text, const char *file, int line);
/* Makes room for `count` items in an array that has room for *room items. If the array grows, the
 * new *room is at least twice the old *room and at least 8. `array` is the address of the pointer
 * to the items. Returns 0, or EK_E_NO_MEMORY with the array and *room unchanged. */
int ek_grow_at(void *array, size_t item_nbytes, int *room, int count, const char *file, int line);
#define ek_grow(array, room, count) \
    ek_grow_at((array), sizeof **(array), (room), (count), __FILE__, __LINE__)
#define ek_calloc(count, size) ek_calloc_at((count), (size), __FILE__, __LINE__)
#define ek_realloc(pointer, nbytes) ek_realloc_at((pointer), (nbytes), __FILE__, __LINE__)
#define ek_strdup(text) ek_strdup_at((text), __FILE__, __LINE__)

#endif
