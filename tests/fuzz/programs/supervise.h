/* supervise.h: programs in child processes, so that one that dies or hangs is a finding too. The
 * parent never calls the library. */
#ifndef EK_TESTS_FUZZ_SUPERVISE_H
#define EK_TESTS_FUZZ_SUPERVISE_H

#include "finding.h"
#include "program.h"
#include "run.h"

enum { MOST_OUTPUT = 20000 };

typedef struct fuzz_counts {
    long programs, none, ill;
    run_counts runs;
} fuzz_counts;

typedef struct supervision {
    uint64_t seed;  /* of the first program */
    uint64_t end;   /* the seed behind the last; UINT64_MAX: none */
    double seconds; /* <= 0: no limit */
    draw_options draw;
    bool verbose;
} supervision;

/* What came of them. */
typedef struct verdict {
    finding found;
    uint64_t seed; /* of the finding, or the next that was not run */
    program program;
    char output[MOST_OUTPUT]; /* what the child wrote to stderr, its end */
} verdict;

/* Seconds of a clock that only goes forward. */
double supervise_now(void);

/* Runs programs from seed to seed until there is a finding or nothing is left. Counts are added. */
void supervise_seeds(const supervision *s, fuzz_counts *counts, verdict *v);

/* Runs one program; a leak of it is a finding. */
void supervise_program(const program *p, verdict *v);

#endif
