/* allocations.h: allocations of the process that fail. They can where the program is linked with
 * --wrap for the functions in allocations.c, which then count the calls of the library. */
#ifndef EK_TESTS_FUZZ_ALLOCATIONS_H
#define EK_TESTS_FUZZ_ALLOCATIONS_H

#include <stdbool.h>

bool allocations_can_fail(void);

/* Allocation number `which` from now on (the first is 1) fails, and if `persist` all that follow.
 */
void allocations_fail(long which, bool persist);
/* None fails, all are counted. */
void allocations_count(void);
/* Ends both; returns how many allocations there were. */
long allocations_succeed(void);

#endif
