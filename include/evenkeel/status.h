/** @file
 * status.h: how errors travel.
 *
 * A function that returns int returns 0 or a non-negative result on success, and a negative status
 * of the table below on error. A function that returns a pointer returns NULL on error. The full
 * sentence (operation, shapes, device, file and line) is kept per thread. The first error stays
 * pending until it is printed, taken or cleared; later ones are dropped. Every operation on a NULL
 * tensor returns NULL, so that a chain of operations needs one check, at its end.
 *
 * A pending error does not make other calls fail, with one exception: functions that make modules
 * (constructors, ek_module_finish) and loaders take it for an error of their parts. They return
 * NULL, and the sentence gets the addition, once, that the call "was refused, because this error
 * was not cleared". So handle or clear an error before you make the next module.
 *
 * The library never exits, aborts or prints. Worker threads hand their errors to the caller. */
#ifndef EVENKEEL_STATUS_H
#define EVENKEEL_STATUS_H
#pragma GCC system_header /* see base.h */

#include <stdio.h>

#include "evenkeel/base.h"

EK_BEGIN_DECLARATIONS

#define EK_STATUS_MAP(X)                                                 \
    X(E_INVALID, -1, "invalid argument")                                 \
    X(E_SHAPE, -2, "shapes do not fit")                                  \
    X(E_DTYPE, -3, "wrong dtype")                                        \
    X(E_DEVICE, -4, "wrong or unknown device")                           \
    X(E_OUT_OF_MEMORY, -5, "device out of memory")                       \
    X(E_NO_MEMORY, -6, "process out of memory")                          \
    X(E_IO, -7, "input or output failed")                                \
    X(E_FORMAT, -8, "malformed data")                                    \
    X(E_STATE, -9, "call not allowed in this state")                     \
    X(E_AUTOGRAD, -10, "gradient cannot be computed")                    \
    X(E_MODIFIED, -11, "saved tensor was modified in place")             \
    X(E_ABORTED, -12, "given up because another replica or rank failed") \
    X(E_BACKEND, -13, "a backend library failed")                        \
    X(E_USER, -14, "error in user code")                                 \
    X(E_TIMEOUT, -15, "another rank did not come in time")

typedef enum ek_status {
    EK_OK = 0,
#define EK_STATUS_ENUM(name, value, text) EK_##name = value,
    EK_STATUS_MAP(EK_STATUS_ENUM)
#undef EK_STATUS_ENUM
} ek_status;

/** The name and the meaning of a status: "EK_E_SHAPE" and "shapes do not fit". "EK_E_UNKNOWN" and
 * "unknown status" for other numbers. Static strings. Any thread. */
EK_API const char *ek_status_name(int status);
EK_API const char *ek_status_message(int status);

/** One error by value, as ek_error_take fills it. `message` is always terminated. */
typedef struct ek_error_record {
    int status;
    bool told;  /**< the other ranks have got this error too (dist.h) */
    int origin; /**< 1 + the rank on which the error began; 0: this rank. An error that all ranks
                   find themselves begins on the first */
    char message[1024];
} ek_error_record;

/** The calling thread's pending error: its status (0: none) and its sentence ("": none). The string
 * is valid until the error is cleared or taken. */
EK_API int ek_error_status(void);
EK_API const char *ek_error_message(void);

/** Clears the pending error. */
EK_API void ek_error_clear(void);

/** Moves the pending error into *record and clears it; returns its status (0: none was pending). */
EK_API int ek_error_take(ek_error_record *record);

/** Makes *record the pending error of the calling thread, unless one is pending. Returns the status
 * of *record. */
EK_API int ek_error_raise(const ek_error_record *record);

/** Writes "evenkeel: <sentence>\n" to `stream` and clears the error. If no error is pending, does
 * nothing. */
EK_API void ek_print_error(FILE *stream);

EK_API int ek_error_set(int status, const char *file, int line, const char *format, ...)
    EK_PRINTF(4, 5);
/** Sets the pending error, unless one is pending, and returns `status`. For modules and operations
 * of the user; the macro ek_error adds file and line. */
#define ek_error(status, ...) ek_error_set(status, __FILE__, __LINE__, __VA_ARGS__)

/** Sets the function that log lines (plans, fall-backs, warnings) go to; NULL (default): nowhere.
 * It is called on any thread, one call at a time, and must not call the library. */
typedef enum ek_log_level { EK_LOG_DEBUG, EK_LOG_INFO, EK_LOG_WARNING } ek_log_level;
typedef void ek_log_function(ek_log_level level, const char *line, void *user);
EK_API void ek_set_log(ek_log_function *function, void *user);

EK_END_DECLARATIONS
#endif
