/* collect_setup.h: memory that tests take and give back while a report collects. */
#ifndef EK_TESTS_COLLECT_SETUP_H
#define EK_TESTS_COLLECT_SETUP_H

#include "core/device.h"
#include "unit.h"

static inline ek_device_report device_of(const ek_report *report, int index)
{
    ek_device_report device;
    assert_ok(ek_report_get_device(report, index, &device));
    return device;
}

static inline void *take(int index, size_t nbytes, ek_memory_category category)
{
    void *pointer;
    assert_ok(ek_dev_alloc(ek_dev_get(ek_host(index)), nbytes, category, &pointer));
    return pointer;
}

static inline void give(int index, void *pointer, size_t nbytes, ek_memory_category category)
{
    ek_dev_free(ek_dev_get(ek_host(index)), pointer, nbytes, category);
}

static inline ek_dev *host(int index)
{
    return ek_dev_get(ek_host(index));
}

#endif
