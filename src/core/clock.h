/* clock.h: the host's monotonic clock. */
#ifndef EK_CORE_CLOCK_H
#define EK_CORE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t ek_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

#endif
