/* cuda_cases.h: twins for programs that are skipped if there is no GPU. */
#ifndef EK_TESTS_CUDA_CASES_H
#define EK_TESTS_CUDA_CASES_H

#include "twin.h"

BEFORE_ALL(skip_without_gpu)

#endif
