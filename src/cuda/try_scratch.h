/* try_scratch.h: scratch memory for callers that have another way if there is none. */
#ifndef EK_CUDA_TRY_SCRATCH_H
#define EK_CUDA_TRY_SCRATCH_H

#include "cuda/runtime.h"

/* 1 with memory (NULL for 0 bytes), 0 if there is too little (no error is pending for it),
 * negative on other errors. */
static inline int ek_cuda_try_scratch(ek_dev *dev, size_t nbytes, void **pointer)
{
    bool pending = ek_error_status() != 0; /* an older error, which stays */
    int rc = ek_cuda_scratch(dev, nbytes, pointer);
    if (rc != EK_E_OUT_OF_MEMORY)
        return rc < 0 ? rc : 1;
    if (!pending)
        ek_error_clear();
    return 0;
}

#endif
