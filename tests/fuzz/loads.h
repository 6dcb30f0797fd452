/* loads.h: what archives are opened for. */
#ifndef EK_TESTS_FUZZ_LOADS_H
#define EK_TESTS_FUZZ_LOADS_H

#include "data/safetensors.h"

/* Loads everything from a file that could be opened, which is at `path`: generators, a module, an
 * optimizer, averages. Each load ends well or with a sentence. What was loaded takes a step. */
void fuzz_load_all(const ek_safetensors *file, const char *path);

#endif
