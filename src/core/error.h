/* error.h: setting the calling thread's pending error, and passing it on. */
#ifndef EK_CORE_ERROR_H
#define EK_CORE_ERROR_H

#include "evenkeel/status.h"

/* A library-internal error that names no call site of the user: status, sentence. */
#define EK_FAIL(status, ...) ek_error_set((status), __FILE__, __LINE__, __VA_ARGS__)

/* The same in a function that returns a pointer: NULL. */
#define EK_FAIL_NULL(status, ...) (EK_FAIL((status), __VA_ARGS__), NULL)

/* Returns from an int function when a call fails; jumps to a label; keeps the first of two errors.
 */
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

/* EK_E_INVALID "what: operand is NULL" where it is. */
int ek_check_pointer(const char *what, const char *operand, const void *pointer);

/* The same for what an earlier call may have failed to make: NULL is the pending error, if one is. */
int ek_check_given(const char *what, const char *operand, const void *pointer);

/* The pending error's status, or EK_E_STATE if a callee failed without setting one. */
int ek_error_pending(void);

/* What became of a function of the user's that returned rc: the pending error's status, also if
 * rc hides it; if rc is negative and nothing was said, a sentence is made up; else 0. */
int ek_error_outcome(int rc);

/* Puts the operation and ": " before the pending sentence. `before` is ek_error_status() from when
 * the operation began: if that was an error, nothing changes. Nor does a sentence that begins with
 * the operation already. */
void ek_error_prefix(int before, const char *format, ...) EK_PRINTF(2, 3);

/* One log line. */
void ek_log_line(ek_log_level level, const char *format, ...) EK_PRINTF(2, 3);

#endif
