/* clock.h: the time of replicas' forwards by the device's own clock: the backend's clock slots. */
#ifndef EK_CUDA_CLOCK_H
#define EK_CUDA_CLOCK_H

#include <cuda_runtime_api.h>

#include "core/device.h"

enum { EK_CUDA_LAPS = 8 }; /* that are not read yet; more are not timed */

typedef struct ek_cuda_lap {
    cudaEvent_t begin, end; /* made with first use */
} ek_cuda_lap;

/* Guarded by the device's lock. */
typedef struct ek_cuda_clock {
    ek_cuda_lap laps[EK_CUDA_LAPS];
    unsigned next;    /* the lap that begins next, or is open */
    unsigned pending; /* laps before it that were not over when last looked at */
    bool open;
    bool asked; /* somebody reads it: laps are timed */
} ek_cuda_clock;

void ek_cuda_clock_begin(ek_dev *dev);
void ek_cuda_clock_end(ek_dev *dev);
void ek_cuda_clock_read(ek_dev *dev);
void ek_cuda_clock_close(ek_cuda_clock *clock);

#endif
