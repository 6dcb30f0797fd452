/* cuda_setup.h: what tests of the CUDA backend share. They run on GPUs, and in emulated builds on
 * the emulator, which can also be made to fail. */
#ifndef EK_TESTS_CUDA_SETUP_H
#define EK_TESTS_CUDA_SETUP_H

#include <sys/wait.h>
#include <unistd.h>

#include "core/tensor.h"
#include "unit.h"
#ifdef EK_CUDA_EMULATED
#include <emulator.h>
#endif

BEFORE_ALL(skip_without_gpu)
#ifdef EK_CUDA_EMULATED
OWN_PROCESSES /* the emulator is set up once */
#endif

    /* How the emulator is to be, before it is first called: EK_EMULATOR_<name>. */
    static inline void
    emulator_set(const char *name, const char *value)
{
    char variable[64];
    snprintf(variable, sizeof variable, "EK_EMULATOR_%s", name);
    setenv(variable, value, 1);
}

/* Devices as a list for two GPUs says; on a machine with one, all of them there. */
static inline void open_cuda(const char *list)
{
    char text[64];
    emulator_set("DEVICES", "2");
    snprintf(text, sizeof text, "%s", list);
    if (ek_cuda_devices_configure(text) < 0) {
        ek_error_clear();
        for (char *at = text; *at; at++)
            if (*at == '1' && (at[1] == ',' || !at[1]))
                *at = '0';
        assert_ok(ek_cuda_devices_configure(text));
    }
}

static inline ek_dev *cuda_dev(int index)
{
    ek_dev *dev = ek_dev_get(ek_cuda(index));
    assert_made(dev);
    return dev;
}

static inline ek_dev *cpu_dev(void)
{
    ek_dev *dev = ek_dev_get(ek_cpu());
    assert_made(dev);
    return dev;
}

/* Shuts the library down; nothing of a GPU's is left. */
static inline void close_cuda(void)
{
    assert_ok(ek_shutdown());
    ck_assert_int_eq(ek_error_status(), 0);
#ifdef EK_CUDA_EMULATED
    for (int i = 0; i < 2; i++)
        ck_assert_uint_eq(ek_emulator_device_allocations(i), 0);
    ck_assert_uint_eq(ek_emulator_pinned_allocations(), 0);
    ck_assert_uint_eq(ek_emulator_live_streams(), 0);
    ck_assert_uint_eq(ek_emulator_live_events(), 0);
#endif
}

#endif
