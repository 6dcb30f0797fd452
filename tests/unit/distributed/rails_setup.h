/* rails_setup.h: what tests of rails share: GPUs, one for each rank, and numbers on them. */
#ifndef EK_TESTS_RAILS_SETUP_H
#define EK_TESTS_RAILS_SETUP_H

#include "core/tensor.h"
#include "group/rail.h"
#include "kit/ranks.h"
#include "unit.h"
#ifdef EK_CUDA_EMULATED
#include <emulator.h>
#endif

enum { GPUS = 4 };

BEFORE_ALL(skip_without_gpu)
OWN_PROCESSES /* libraries are opened once, and so is the emulator */

    static int gpus; /* that ranks can have */

static inline void open_gpus(void)
{
    char list[] = "0,1,2,3";
    setenv("EK_EMULATOR_DEVICES", "4", 1);
    for (gpus = GPUS; gpus > 0; gpus--) {
        list[2 * gpus - 1] = '\0';
        if (ek_cuda_devices_configure(list) >= 0)
            return;
        ek_error_clear();
    }
}

static inline void close_gpus(void)
{
    assert_ok(ek_shutdown());
#ifdef EK_CUDA_EMULATED
    ck_assert_uint_eq(ek_emulator_live_communicators(), 0);
    ck_assert_uint_eq(ek_emulator_live_streams(), 0);
    ck_assert_uint_eq(ek_emulator_live_events(), 0);
    ck_assert_uint_eq(ek_emulator_pinned_allocations(), 0);
#endif
}

FIXTURE(open_gpus, close_gpus)

/* ---- numbers ---- */

static inline ek_tensor *numbers(ek_dtype dtype, int seed, int64_t n)
{
    ek_tensor *x = ek_empty(EK_SHAPE(n), EK_F64, .device = ek_cpu());
    for (int64_t i = 0; x && i < n; i++)
        ((double *)ek_tensor_address(x))[i] = sin((double)(i * 7 + seed * 1013) * 0.77) * 100;
    return ek_to_dtype(x, dtype);
}

static inline ek_tensor *on_gpu(ek_tensor *x, const ek_process_group *world)
{
    return ek_to_device(x, ek_cuda(world->rank));
}

static inline bool same(ek_tensor *gpu, ek_tensor *host)
{
    ek_tensor *a = ek_contiguous(ek_to_device(gpu, ek_cpu()), EK_CONTIGUOUS);
    ek_tensor *b = ek_contiguous(host, EK_CONTIGUOUS);
    return a && b && ek_same_shape(a, b) && a->dtype == b->dtype &&
           memcmp(ek_tensor_address(a), ek_tensor_address(b),
                  (size_t)ek_count(a) * ek_dtype_size(a->dtype)) == 0;
}

/* A machine with one GPU has no tests for it. */
static inline bool enough(int ranks)
{
    return gpus >= ranks;
}

#endif
