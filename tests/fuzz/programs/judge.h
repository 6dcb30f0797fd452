/* judge.h: a program's numbers against those of one device, or of a second run. */
#ifndef EK_TESTS_FUZZ_JUDGE_H
#define EK_TESTS_FUZZ_JUDGE_H

#include "run.h"

/* Runs the program and its reference, compares, shuts the library down and looks for what is left.
 * Returns 0, or -1 with what was found. */
int program_judge(const program *p, finding *f, run_counts *counts);

#endif
