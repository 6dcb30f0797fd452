/* job.c: see job.h. */
#include "job.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "evenkeel/status.h"

int job_rank, job_size;

/* Gives every EK_TEST_PER_MACHINE ranks in a row a machine of their own, before the library looks.
 */
__attribute__((constructor)) static void job_place(void)
{
    const char *per_machine = getenv("EK_TEST_PER_MACHINE"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    char host[32];
    rank = rank ? rank : getenv("PMI_RANK");
    if (!per_machine || !rank)
        return;
    snprintf(host, sizeof host, "machine%d", atoi(rank) / atoi(per_machine));
    setenv("EVENKEEL_DIST_HOST", host, 1);
}

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
