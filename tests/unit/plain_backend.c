/* plain_backend.c: backends of plain malloc, for the tests of folders below the host backend; the
 * tests of cuda have their own beside these. */
#include <stdlib.h>
#include <string.h>

#include "core/backend.h"
#include "core/device.h"
#include "core/device_spec.h"
#include "core/thread.h"

static int one(void)
{
    return 1;
}

static int host_count(void)
{
    ek_device_spec spec;
    int rc = ek_host_spec(&spec);
    return rc < 0 ? rc : spec.count;
}

static int host_open(ek_dev *dev)
{
    ek_device_spec spec;
    EK_TRY(ek_host_spec(&spec));
    uint64_t none;
    ek_ledger_set_capacity(dev, spec.devices[dev->id.index].capacity, &none);
    dev->speed = spec.devices[dev->id.index].speed;
    return 0;
}

static int plain_alloc(ek_dev *dev, size_t nbytes, void **pointer)
{
    (void)dev;
    *pointer = aligned_alloc(64, (nbytes + 63) / 64 * 64);
    return 0;
}

static void plain_free(ek_dev *dev, void *pointer, size_t nbytes)
{
    (void)dev;
    (void)nbytes;
    free(pointer);
}

static int plain_copy(ek_dev *to, void *to_data, ek_dev *from, const void *from_data, size_t nbytes)
{
    (void)to;
    (void)from;
    memcpy(to_data, from_data, nbytes);
    return 0;
}

static const ek_backend plain_cpu = {.name = "plain cpu",
                                     .kind = EK_CPU,
                                     .device_count = one,
                                     .memory_alloc = plain_alloc,
                                     .memory_free = plain_free,
                                     .copy = plain_copy,
                                     .host_memory = true};
static const ek_backend plain_host = {.name = "plain host",
                                      .kind = EK_HOST,
                                      .device_count = host_count,
                                      .device_open = host_open,
                                      .memory_alloc = plain_alloc,
                                      .memory_free = plain_free,
                                      .copy = plain_copy,
                                      .host_memory = true};

#ifdef EK_WITH_CUDA
extern const ek_backend ek_cuda_backend;
#endif

const ek_backend *const ek_backend_table[] = {&plain_cpu, &plain_host,
#ifdef EK_WITH_CUDA
                                              &ek_cuda_backend,
#endif
                                              NULL};
