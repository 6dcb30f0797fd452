/* print.h: a program for people. */
#ifndef EK_TESTS_FUZZ_PRINT_H
#define EK_TESTS_FUZZ_PRINT_H

#include <stdio.h>

#include "program.h"

/* Much like the C that would do the same. */
void program_print(const program *p, FILE *stream);

#endif
