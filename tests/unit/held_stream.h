/* held_stream.h: a stream that stands still until it is told to go on. For tests of what runs
 * beside it. */
#ifndef EK_TESTS_HELD_STREAM_H
#define EK_TESTS_HELD_STREAM_H

#include <stdatomic.h>
#include <time.h>

#include "cuda/runtime.h"
#include "unit.h"

typedef struct hold {
    int patience; /* seconds */
    atomic_bool released;
    atomic_bool gave_up; /* nobody released it in time: the caller was waiting */
} hold;

/* Kernels are loaded when the GPU is opened, because loading one later may wait for streams, which
 * these tests hold. */
__attribute__((constructor)) static void hold_after_loading(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
}

static inline void wait_for_release(void *user)
{
    hold *h = user;
    const struct timespec moment = {0, 1000000};
    for (int i = 0; i < h->patience * 1000; i++) {
        if (atomic_load(&h->released))
            return;
        nanosleep(&moment, NULL);
    }
    atomic_store(&h->gave_up, true);
}

static inline void hold_stream(ek_dev *dev, cudaStream_t held, hold *h)
{
    ek_cuda_stream stream;
    assert_ok(ek_cuda_begin(dev, &stream));
    assert_ok(
        ek_cuda_end(dev, &stream, "hold", (int)cudaLaunchHostFunc(held, wait_for_release, h)));
}

static inline void hold_compute(ek_dev *dev, hold *h)
{
    hold_stream(dev, ek_cuda_of(dev)->compute, h);
}

#endif
