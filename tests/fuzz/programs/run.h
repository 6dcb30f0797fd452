/* run.h: a program from beginning to end, on its own devices or on one. */
#ifndef EK_TESTS_FUZZ_RUN_H
#define EK_TESTS_FUZZ_RUN_H

#include "finding.h"
#include "program.h"
#include "tape.h"

typedef struct run_options {
    bool one_device; /* the plain modules on host:0 instead of the program's ways */
    bool faults;
    double
        perturbation; /* parameters are multiplied by up to 1 + this, to see what rounding does */
} run_options;

typedef struct run_counts {
    long steps, faults, faults_hit;
} run_counts;

/* Where checkpoints go. */
void run_set_file(const char *path);

/* Records all numbers. Returns 0, or -1 with what was found. */
int program_run(const program *p, const run_options *options, tape *numbers, finding *f,
                run_counts *counts);

#endif
