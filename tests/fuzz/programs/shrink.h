/* shrink.h: the smallest program that still shows what was found. */
#ifndef EK_TESTS_FUZZ_SHRINK_H
#define EK_TESTS_FUZZ_SHRINK_H

#include "supervise.h"

/* Tries at most `attempts` simpler programs, in child processes, and for at most `seconds`; puts
 * the simplest that shows the like of v->found, and what came of it, into *v. Returns how many it
 * tried. */
int shrink(verdict *v, int attempts, double seconds);

#endif
