/* record.h: a module's numbers onto a tape. */
#ifndef EK_TESTS_FUZZ_RECORD_H
#define EK_TESTS_FUZZ_RECORD_H

#include <evenkeel/module.h>

#include "tape.h"

/* 0 or a negative status. A gradient that is not there is one number, 0; one that is there begins
 * with 1. */
int record_gradients(tape *t, int step, ek_module *module);
int record_parameters(tape *t, int step, ek_module *module);
int record_buffers(tape *t, int step, ek_module *module, bool open);

#endif
