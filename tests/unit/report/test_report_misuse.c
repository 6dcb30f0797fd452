/* Reports that are asked for what cannot be. */
#include "core/device.h"
#include "unit.h"

/* Memory of a host device comes and goes. */
static void use(int index)
{
    void *memory;
    ek_dev *dev = ek_dev_get(ek_host(index));
    assert_made(dev);
    assert_ok(ek_dev_alloc(dev, 4096, EK_MEMORY_GRADIENT, &memory));
    ek_dev_free(dev, memory, 4096, EK_MEMORY_GRADIENT);
}

TEST(one_report_collects_at_a_time)
{
    assert_ok(ek_host_devices_configure("1"));
    ek_report *report = ek_report_start(.device_ids = ek_devices(EK_HOST, 0));
    assert_made(report);
    assert_refused(ek_report_start(.device_ids = ek_devices(EK_HOST, 0)), EK_E_STATE,
                   "report_start");
    assert_ok(ek_report_step(report));
    assert_ok(ek_report_stop(report));
    assert_ok(ek_report_stop(report));
    assert_refused(ek_report_step(report), EK_E_STATE, "stopped");
    for (int i = 0; i < 100; i++) {
        ek_report *other = ek_report_start(.device_ids = ek_devices(EK_HOST, 0));
        assert_made(other);
        ek_report_free(other);
    }
    ek_report_free(report);
    ek_report_free(NULL);
}

TEST(devices_are_checked)
{
    assert_ok(ek_host_devices_configure("2"));
    assert_refused(ek_report_start(.device_ids = EK_DEVICES(ek_host(5))), EK_E_DEVICE, "host:5");
    assert_refused(ek_report_start(.device_ids = EK_DEVICES(ek_host(1), ek_host(1))), EK_E_INVALID,
                   "host:1 is named twice");
    ek_report *report = ek_report_start(.device_ids = EK_DEVICES(ek_host(1)));
    assert_made(report);
    ek_device_report device;
    use(0); /* not in the report */
    assert_ok(ek_report_get_device(report, 0, &device));
    ck_assert_uint_eq(device.peak.in_use, 0);
    ck_assert(ek_report_imbalance(report) == 1);
    assert_refused(ek_report_get_device(report, 1, &device), EK_E_INVALID, "no device 1");
    assert_refused(ek_report_memory(report, -1, NULL, 0), EK_E_INVALID, "no device -1");
    ek_report_free(report);
}

/* What was collected stays, and what is opened in a device's place is none of the report's. */
TEST(devices_may_close_before_the_report)
{
    assert_ok(ek_host_devices_configure("2"));
    ek_report *report = ek_report_start(.device_ids = ek_devices(EK_HOST, 0));
    assert_made(report);
    use(1);
    assert_ok(ek_report_step(report));
    for (int round = 0; round < 2; round++) {
        assert_ok(round ? ek_host_devices_configure("3") : ek_shutdown());
        use(0);
        ek_device_report device;
        assert_ok(ek_report_get_device(report, 0, &device));
        ck_assert_uint_eq(device.peak.in_use, 0);
        assert_ok(ek_report_get_device(report, 1, &device));
        ck_assert_uint_eq(device.peak.in_use, 4096);
        ck_assert_int_ge(ek_report_memory(report, 1, NULL, 0), 1);
        ck_assert(ek_report_imbalance(report) == 2);
        assert_refused(ek_report_step(report), EK_E_STATE, "host:0 has been closed");
    }
    assert_ok(ek_report_stop(report));
    ck_assert_int_eq(ek_report_step_count(report), 1);
    ek_report_free(report);
    report = ek_report_start(.device_ids = ek_devices(EK_HOST, 0));
    assert_made(report);
    assert_ok(ek_shutdown());
    ek_report_free(report);
}

TEST(no_report_has_collected_nothing)
{
    ek_device_report device;
    assert_refused(ek_report_step(NULL), EK_E_STATE, "NULL");
    assert_refused(ek_report_stop(NULL), EK_E_STATE, "NULL");
    ck_assert_str_eq(ek_report_name(NULL), "");
    ck_assert_int_eq(ek_report_device_count(NULL), 0);
    ck_assert_int_eq(ek_report_step_count(NULL), 0);
    ck_assert(ek_report_seconds(NULL) == 0 && ek_report_step_seconds(NULL) == 0);
    ck_assert(ek_report_imbalance(NULL) == 1);
    ek_report_set_largest_batch(NULL, 5);
    assert_refused(ek_report_get_device(NULL, 0, &device), EK_E_INVALID, "NULL");
    assert_refused(ek_report_memory(NULL, 0, NULL, 0), EK_E_INVALID, "NULL");
}
