/* inject.h: calls that fail on purpose.
 *
 * The linker sends the library's calls of the functions in wrapped.txt here (--wrap); what oneDNN,
 * libgomp, libc and others call by themselves is not seen. Each such call is a point of one or more
 * series. While armed, point number `point` of the plan's series fails (or all from it on), and the
 * stack of the first failure is remembered.
 *
 * Memory that the library's calls have got and not given back is counted, armed or not. */
#ifndef EVENKEEL_TESTS_FAULT_INJECT_H
#define EVENKEEL_TESTS_FAULT_INJECT_H

#include <stdbool.h>

/* Kinds of failure, each with points of its own. */
#define INJECT_SERIES_MAP(X)                                                                   \
    X(MEMORY, "memory", "")             /* NULL, ENOMEM */                                     \
    X(THREAD, "thread", "")             /* EAGAIN */                                           \
    X(MAP, "map", "")                   /* ENOMEM */                                           \
    X(LOCK, "lock", "")                 /* mutexes, conditions, keys: ENOMEM, EAGAIN */        \
    X(HELPER, "helper", "")             /* other libraries: their answer for want of memory */ \
    X(ERROR, "io", "error")             /* EIO */                                              \
    X(FULL, "io", "full")               /* ENOSPC */                                           \
    X(INTERRUPTED, "io", "interrupted") /* EINTR; for good: every second call */               \
    X(SHORT, "io", "short")             /* half of the bytes */                                \
    X(ZERO, "io", "zero")               /* no byte: the end of the file */

typedef enum inject_series {
#define INJECT_SERIES_ENUM(name, group, kind) INJECT_##name,
    INJECT_SERIES_MAP(INJECT_SERIES_ENUM)
#undef INJECT_SERIES_ENUM
        INJECT_SERIES
} inject_series;

/* "memory" or "io", and "" or "full". */
const char *inject_series_class(inject_series series);
const char *inject_series_kind(inject_series series);

typedef struct inject_plan {
    inject_series series;
    int point;    /* from 1; 0: none fails, calls are only counted */
    bool persist; /* all from `point` on fail */
} inject_plan;

enum { INJECT_DEPTH = 48 };

typedef struct inject_result {
    int points[INJECT_SERIES]; /* calls that were seen, of every series */
    int fired;                 /* how many failed */
    const char *function;      /* the first that failed */
    void *stack[INJECT_DEPTH];
    int depth;
} inject_result;

/* Between the two calls of the library's functions count. One thread arms and disarms; calls come
 * from any. */
void inject_arm(const inject_plan *plan);
const inject_result *inject_disarm(void);
/* The last result, also while armed. */
const inject_result *inject_last(void);

/* For wrappers: does this call fail? */
bool inject_hit(inject_series series, const char *function);

/* ---- memory that the library holds ---- */

/* Blocks that were allocated and not freed. */
long inject_live(void);
/* From now on blocks remember the stack that allocated them. */
void inject_remember_stacks(bool on);
/* Does the address sanitizer find a leak? Without that sanitizer: false. */
bool inject_sanitizer_leaks(void);
/* Prints the stacks of at most `most` blocks that were allocated since
 * inject_remember_stacks(true). */
void inject_print_live(int most);

/* One line per frame: function, file, line if the debug information has them. */
void inject_print_stack(void *const *stack, int depth);

#endif
