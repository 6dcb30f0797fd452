/* backend.c: the CPU as two backends: `cpu` for ordinary memory, and `host` for logical
 * accelerators that share the cores. */
#include "core/backend.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/device_spec.h"
#include "core/thread.h"
#include "core/world.h"
#include "host/dnn.h"
#include "host/host.h"
#include "host/isa.h"

/* The number of open devices. The device that closes last frees oneDNN's cache, which all devices
 * share. */
static atomic_int open_devices;

static int cpu_count(void)
{
    EK_TRY(ek_world_check_cores());
    EK_TRY(ek_host_read_settings());
    return 1;
}

static int cpu_open(ek_dev *dev)
{
    dev->threads = ek_world_cores();
    atomic_fetch_add(&open_devices, 1);
    return 0;
}

static int host_count(void)
{
    ek_device_spec spec;
    EK_TRY(ek_world_check_cores());
    EK_TRY(ek_host_spec(&spec));
    EK_TRY(ek_host_read_settings());
    return spec.count;
}

static int host_open(ek_dev *dev)
{
    ek_device_spec spec;
    EK_TRY(ek_host_spec(&spec));
    int share = ek_world_cores() / spec.count;
    dev->threads = share > 1 ? share : 1;
    dev->speed = spec.devices[dev->id.index].speed;
    uint64_t none;
    ek_ledger_set_capacity(dev, spec.devices[dev->id.index].capacity, &none);
    atomic_fetch_add(&open_devices, 1);
    return 0;
}

static void host_device_close(ek_dev *dev)
{
    (void)dev;
    if (atomic_fetch_sub(&open_devices, 1) == 1)
        ek_dnn_shutdown();
}

/* Allocates memory. Large blocks are aligned to huge pages, and huge pages are requested for them,
 * because passes over large tensors otherwise wait for the translation of addresses. None is
 * requested for the rest of a block after its last whole huge page, so that no memory is wasted. */
static int host_memory_alloc(ek_dev *dev, size_t nbytes, void **pointer)
{
    (void)dev;
    enum { LINE = 64, HUGE_PAGE = 2 << 20 };
#ifdef EK_SANITIZED /* not rounded to huge pages, so that writes past the end are found */
    bool huge = false;
#else
    bool huge = nbytes >= HUGE_PAGE;
#endif
    size_t alignment = huge ? HUGE_PAGE : LINE;
    *pointer = NULL;
    if (nbytes <= (size_t)PTRDIFF_MAX - alignment)
        *pointer = aligned_alloc(alignment, (nbytes + alignment - 1) / alignment * alignment);
    if (*pointer && huge)
        madvise(*pointer, nbytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    return 0;
}

static void host_memory_free(ek_dev *dev, void *pointer, size_t nbytes)
{
    (void)dev, (void)nbytes;
    free(pointer);
}

static int host_copy(ek_dev *to, void *to_data, ek_dev *from, const void *from_data, size_t nbytes)
{
    (void)to, (void)from;
    if (nbytes)
        memcpy(to_data, from_data, nbytes);
    return 0;
}

#define FILLED(slot) .slot = ek_host_##slot,
static const ek_kernels host_kernels = {EK_KERNELS(FILLED)};

/* The members that are the same in both backends. */
#define SHARED                                                                                     \
    .device_close = host_device_close, .memory_alloc = host_memory_alloc,                          \
    .memory_free = host_memory_free, .copy = host_copy, .draw = ek_host_draw, .host_memory = true, \
    .kernels = &host_kernels

const ek_backend ek_cpu_backend = {
    .name = "cpu",
    .kind = EK_CPU,
    .device_count = cpu_count,
    .device_open = cpu_open,
    SHARED,
};

const ek_backend ek_host_backend = {
    .name = "host",
    .kind = EK_HOST,
    .device_count = host_count,
    .device_open = host_open,
    SHARED,
};
