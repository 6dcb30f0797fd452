/* thread.h: what every thread carries. Jobs on workers start from a copy of the submitter's modes.
 */
#ifndef EK_CORE_THREAD_H
#define EK_CORE_THREAD_H

#include "core/device.h"
#include "core/fork.h"
#include "evenkeel/status.h"

/* Inherited by jobs. Core only carries `flags`; autograd gives them meaning. */
typedef struct ek_thread_modes {
    unsigned flags;
    ek_memory_category category;
} ek_thread_modes;

enum {
    EK_MODE_NO_GRAD = 1u << 0,
    EK_MODE_ALONE = 1u << 1,    /* within what is computed again in backward: no rendezvous */
    EK_MODE_BACKWARD = 1u << 2, /* within backward: no rendezvous */
    EK_MODE_AUTOCAST = 1u << 3  /* evenkeel/precision.h */
};

typedef struct ek_cast ek_cast; /* casts.h */

/* Which part of which gang a thread runs; see rendezvous.h. */
typedef struct ek_seat {
    struct ek_meeting *meeting; /* NULL: of none with several parts */
    int part;
} ek_seat;

typedef struct ek_thread {
    ek_thread_modes modes;
    ek_error_record error;
    void **owned; /* the scope list */
    size_t owned_count, owned_capacity;
    unsigned scope_depth;
    ek_dev *worker_of; /* the device whose worker this thread is; NULL elsewhere */
    ek_seat seat;
    ek_dev *part_of;         /* whose work this thread does (part.h); NULL: nobody's */
    uint64_t waited_ns;      /* for others, in all */
    uint64_t cpu_ns;         /* of this thread, when a slow device's part last rested */
    unsigned autocast_depth; /* regions that this thread began and has not ended */
    ek_cast *casts;
    struct ek_span *span;  /* the innermost one; see trace.h */
    unsigned trace_number; /* trace.c's */
} ek_thread;

ek_thread *ek_thread_self(void);

/* True on workers and in parts of gangs: a gang that is started there runs inline, since the
 * workers may be waiting for the calling thread. */
static inline bool ek_thread_in_gang(void)
{
    const ek_thread *self = ek_thread_self();
    return self->worker_of || self->seat.meeting;
}

/* A library-internal error that names no call site of the user: status, sentence. */
#define EK_FAIL(status, ...) ek_error_set((status), __FILE__, __LINE__, __VA_ARGS__)

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

/* The pending error's status, or EK_E_STATE where a callee failed without setting one. */
int ek_error_pending(void);

/* What became of a function of the user's that returned rc: the pending error's status, also where
 * rc hides it; where rc is negative and nothing was said, a sentence is made up; else 0. */
int ek_error_outcome(int rc);

/* Puts the operation and ": " before the pending sentence. `before` is ek_error_status() from when
 * the operation began: if that was an error, nothing changes. Nor does a sentence that begins with
 * the operation already. */
void ek_error_prefix(int before, const char *format, ...) EK_PRINTF(2, 3);

/* One log line. */
void ek_log_line(ek_log_level level, const char *format, ...) EK_PRINTF(2, 3);

/* Memory for the library's own bookkeeping; NULL sets EK_E_NO_MEMORY, with the place of the call.
 * Freed with free(). */
void *ek_calloc_at(size_t count, size_t size, const char *file, int line);
void *ek_realloc_at(void *pointer, size_t nbytes, const char *file, int line);
char *ek_strdup_at(const char *text, const char *file, int line);
/* Room for `count` items in an array that has room for *room: twice as many when it grows, at least
 * 8. array: the address of the pointer to it. 0, or EK_E_NO_MEMORY with both as they were. */
int ek_grow_at(void *array, size_t item_nbytes, int *room, int count, const char *file, int line);
#define ek_grow(array, room, count) \
    ek_grow_at((array), sizeof **(array), (room), (count), __FILE__, __LINE__)
#define ek_calloc(count, size) ek_calloc_at((count), (size), __FILE__, __LINE__)
#define ek_realloc(pointer, nbytes) ek_realloc_at((pointer), (nbytes), __FILE__, __LINE__)
#define ek_strdup(text) ek_strdup_at((text), __FILE__, __LINE__)

#endif
