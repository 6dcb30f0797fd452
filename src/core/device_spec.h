/* device_spec.h: the grammar of EVENKEEL_HOST_DEVICES and EVENKEEL_CUDA_DEVICES' capacities. */
#ifndef EK_CORE_DEVICE_SPEC_H
#define EK_CORE_DEVICE_SPEC_H

#include "evenkeel/device.h"

typedef struct ek_device_spec {
    int count;
    struct {
        uint64_t capacity; /* bytes, 0: none */
        double speed;      /* (0, 1] */
    } devices[EK_MAX_DEVICES];
} ek_device_spec;

/* A bare count, or a comma-separated list of `[count x] capacity [@speed]`. Returns 0, or
 * EK_E_INVALID with the position and what would be right. */
int ek_device_spec_parse(const char *text, ek_device_spec *spec);

/* What the host devices are to be: configured, from the environment, or the default; `spec` is
 * filled on success. Any thread. */
int ek_host_spec(ek_device_spec *spec);

/* Makes `spec` the answer of ek_host_spec from now on. */
void ek_host_spec_set(const ek_device_spec *spec);

#endif
