/* faults.c: see faults.h. */
#include "faults.h"

#include <evenkeel/status.h>

#include "inject.h"

/* Written while no work runs, read by workers. */
static struct {
    int fault;
    ek_device device;
    int calls[INJECT_SERIES]; /* of the stretch that was counted */
} faults;

/* Between what is in use and the peak so far. */
static void limit_memory(ek_device device, int at)
{
    ek_memory_stats stats;
    ek_memory_trim(device);
    if (ek_memory_get_stats(device, &stats) < 0)
        return;
    uint64_t room = stats.peak > stats.in_use ? stats.peak - stats.in_use : 4096;
    ek_memory_set_capacity(device, stats.in_use + 64 + room * (uint64_t)(at % 997) / 997);
}

static bool is_call(int fault)
{
    return fault == FAULT_ALLOCATION || fault == FAULT_CALL || fault == FAULT_FILE;
}

static inject_series series_of(int fault, int at)
{
    static const inject_series calls[] = {INJECT_THREAD, INJECT_MAP, INJECT_LOCK, INJECT_HELPER};
    static const inject_series files[] = {INJECT_ERROR, INJECT_FULL, INJECT_INTERRUPTED,
                                          INJECT_SHORT, INJECT_ZERO};
    return fault == FAULT_CALL   ? calls[at % 4]
           : fault == FAULT_FILE ? files[at % 5]
                                 : INJECT_MEMORY;
}

static void arm_call(int fault, int at)
{
    inject_plan plan = {.series = series_of(fault, at), .persist = at % 10 == 7};
    int calls = faults.calls[plan.series];
    plan.point = 1 + (fault == FAULT_ALLOCATION ? at : at / 20) % (calls > 0 ? calls : 1000);
    inject_arm(&plan);
}

void fault_arm(int fault, ek_device device, int at)
{
    faults.fault = fault;
    faults.device = device;
    if (fault == FAULT_CAPACITY)
        limit_memory(device, at);
    if (is_call(fault))
        arm_call(fault, at);
}

void fault_disarm(void)
{
    if (is_call(faults.fault))
        inject_disarm();
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
        CASE_IS(FAULT_FORWARD, status == EK_E_USER);
        CASE_IS(FAULT_BACKWARD, status == EK_E_USER);
        CASE_IS(FAULT_SILENT, status == EK_E_STATE || status == EK_E_USER);
        CASE_IS(FAULT_CAPACITY, status == EK_E_OUT_OF_MEMORY);
        CASE_IS(FAULT_ALLOCATION,
                status == EK_E_NO_MEMORY || status == EK_E_OUT_OF_MEMORY || status == EK_E_IO);
        CASE_IS(FAULT_CALL, status == EK_E_NO_MEMORY || status == EK_E_OUT_OF_MEMORY ||
                                status == EK_E_BACKEND || status == EK_E_IO);
    default:
        return status == EK_E_IO || status == EK_E_FORMAT || status == EK_E_NO_MEMORY;
    }
}

void fault_count(void)
{
    inject_arm(&(const inject_plan){.series = INJECT_MEMORY});
}

void fault_counted(void)
{
    const inject_result *result = inject_disarm();
    for (int i = 0; i < INJECT_SERIES; i++)
        faults.calls[i] = result->points[i];
}
