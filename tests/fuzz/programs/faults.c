/* faults.c: see faults.h. */
#include "faults.h"

#include <evenkeel/status.h>

#include "allocations.h"

/* Written while no work runs, read by workers. */
static struct {
    int fault;
    ek_device device;
    long allocations; /* of the stretch that was counted; 0: none was */
} faults;

bool faults_have_allocations(void)
{
    return allocations_can_fail();
}

/* Between what is in use and the peak so far. */
static void limit_memory(ek_device device, int at)
{
    ek_memory_stats stats;
    ek_memory_trim(device);
    if (ek_memory_get(device, &stats) < 0)
        return;
    uint64_t room = stats.peak > stats.in_use ? stats.peak - stats.in_use : 4096;
    ek_memory_set_capacity(device, stats.in_use + 64 + room * (uint64_t)(at % 997) / 997);
}

void fault_arm(int fault, ek_device device, int at)
{
    faults.fault = fault;
    faults.device = device;
    if (fault == FAULT_CAPACITY)
        limit_memory(device, at);
    if (fault == FAULT_ALLOCATION)
        allocations_fail(1 + at % (faults.allocations > 0 ? faults.allocations : 1000),
                         at % 10 == 7);
}

void fault_disarm(void)
{
    if (faults.fault == FAULT_ALLOCATION)
        allocations_succeed();
    if (faults.fault == FAULT_CAPACITY)
        ek_memory_set_capacity(faults.device, 0);
    faults.fault = FAULT_NONE;
}

bool fault_strikes(int fault, ek_device device)
{
    return faults.fault == fault && ek_device_equal(faults.device, device);
}

bool fault_explains(int fault, int status)
{
    switch (fault) {
    case FAULT_FORWARD:
    case FAULT_BACKWARD:
        return status == EK_E_USER;
    case FAULT_SILENT:
        return status == EK_E_STATE || status == EK_E_USER;
    case FAULT_CAPACITY:
        return status == EK_E_OUT_OF_MEMORY;
    case FAULT_ALLOCATION:
        return status == EK_E_NO_MEMORY || status == EK_E_OUT_OF_MEMORY || status == EK_E_IO;
    default:
        return false;
    }
}

void fault_count(void)
{
    if (faults_have_allocations())
        allocations_count();
}

void fault_counted(void)
{
    if (faults_have_allocations())
        faults.allocations = allocations_succeed();
}
