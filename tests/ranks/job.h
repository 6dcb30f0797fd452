/* job.h: programs of several ranks, which ctest starts by samples/mpirun. The first check that
 * fails on a rank says where, and ends the rank with status 1; the launcher ends the others. */
#ifndef EK_TESTS_JOB_H
#define EK_TESTS_JOB_H

#include <stdbool.h>

extern int job_rank, job_size; /* set by the program, for messages */

/* The condition holds, else the formatted sentence is written: CHECK(n == 3, "n is %d", n). */
#define CHECK(condition, ...)                                      \
    do {                                                           \
        if (!(condition))                                          \
            job_fail(__FILE__, __LINE__, #condition, __VA_ARGS__); \
    } while (0)

/* A call of the library succeeds, else its error is written. */
#define CHECK_OK(call) job_ok((call), __FILE__, __LINE__, #call)

_Noreturn void job_fail(const char *file, int line, const char *condition, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
int job_ok(int status, const char *file, int line, const char *call);

#endif
