/* devices.h: the list of logical CUDA devices: the GPU and the capacity of each. */
#ifndef EK_CUDA_DEVICES_H
#define EK_CUDA_DEVICES_H

#include "evenkeel/device.h"

/* GPUs beyond this number are not used. */
enum { EK_CUDA_GPUS = 64 };

typedef struct ek_cuda_spec {
    int count;
    struct {
        int physical;      /* the GPU's number in the CUDA runtime */
        uint64_t capacity; /* the limit in bytes; 0: none */
    } devices[EK_MAX_DEVICES];
} ek_cuda_spec;

/* Parses a comma-separated list of `[count x] number [: capacity]`, on a machine with `gpus` GPUs.
 * Returns 0, EK_E_INVALID with the position of the mistake and what is expected there, or
 * EK_E_DEVICE if a GPU doesn't exist. */
int ek_cuda_spec_parse(const char *text, int gpus, ek_cuda_spec *spec);

/* Fills `spec` with the configured devices, else those of EVENKEEL_CUDA_DEVICES, else one for each
 * GPU. Any thread. */
int ek_cuda_spec_now(int gpus, ek_cuda_spec *spec);

/* Makes `spec` the configured devices. */
void ek_cuda_spec_set(const ek_cuda_spec *spec);

#endif
