/* job.c: see job.h. */
#include "job.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "evenkeel/status.h"

int job_rank, job_size;

void job_fail(const char *file, int line, const char *condition, const char *format, ...)
{
    char sentence[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(sentence, sizeof sentence, format, list);
    va_end(list);
    fprintf(stderr, "rank %d of %d: %s:%d: %s: %s\n", job_rank, job_size, file, line, condition,
            sentence);
    fflush(NULL);
    _exit(1); /* MPI's own functions at exit might wait for the others */
}

int job_ok(int status, const char *file, int line, const char *call)
{
    if (status < 0)
        job_fail(file, line, call, "%s: %s", ek_status_name(status), ek_error_message());
    return status;
}
