/* device_spec.h: the grammar of EVENKEEL_HOST_DEVICES, and its parts, which the grammar of
 * EVENKEEL_CUDA_DEVICES uses too. */
#ifndef EK_CORE_DEVICE_SPEC_H
#define EK_CORE_DEVICE_SPEC_H

#include "evenkeel/device.h"

/* The lowest speed that a device may have. With a lower speed a device would sleep for hours while
 * a fast one works for seconds. */
#define EK_LEAST_SPEED 0.001

typedef struct ek_device_spec {
    int count;
    struct {
        uint64_t capacity; /* bytes, 0: none */
        double speed;      /* EK_LEAST_SPEED to 1 */
    } devices[EK_MAX_DEVICES];
} ek_device_spec;

/* Parses a count, or a comma-separated list of `[count x] capacity [@speed]`. Returns 0, or
 * EK_E_INVALID with a sentence that tells the position and what is wanted there. */
int ek_device_spec_parse(const char *text, ek_device_spec *spec);

/* ---- parts of the grammar: `at` points into the list `text` ---- */

const char *ek_spec_skip_space(const char *at);
/* Reads a repeat count such as "3 x" and moves *at past it. Returns 1 if there is no repeat
 * count. */
long ek_spec_repeat(const char **at);
/* Reads a size with an optional K, M, G or T, and an optional B or iB after that letter; moves *at
 * past the size. Returns false if there is no size. */
bool ek_spec_size(const char **at, uint64_t *nbytes);
/* Sets EK_E_INVALID with a sentence that says what is wanted at this position, and the grammar of
 * the list. */
int ek_spec_fault(const char *text, const char *at, const char *wanted, const char *grammar);
/* Fails with EK_E_INVALID if `count` is below 1, or if before + count exceeds EK_MAX_DEVICES. */
int ek_spec_check_count(const char *text, const char *at, long count, int before);

/* ---- the configuration of host devices ---- */

/* Fills `spec` with the host devices: those that were configured, else those of
 * EVENKEEL_HOST_DEVICES, else the default ones. Any thread. */
int ek_host_spec(ek_device_spec *spec);

/* Makes `spec` the answer of ek_host_spec from now on. */
void ek_host_spec_set(const ek_device_spec *spec);

#endif
