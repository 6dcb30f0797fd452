/* devices.c: see devices.h. */
#include "devices.h"

void one_device(void)
{
    assert_ok(test_devices_configure("1"));
}

void two_devices(void)
{
    assert_ok(test_devices_configure("2"));
}

void four_devices(void)
{
    assert_ok(test_devices_configure("4"));
}

void shut_down(void)
{
    assert_ok(ek_shutdown());
}

static ek_memory_stats device_stats(ek_device device)
{
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(device, &stats));
    return stats;
}

uint64_t bytes_in_use(ek_device device)
{
    return device_stats(device).in_use;
}

uint64_t bytes_now(ek_device device, ek_memory_category category)
{
    return device_stats(device).now[category];
}
