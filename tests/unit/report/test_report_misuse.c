/* Calls of reports that are refused. */
#include "core/device.h"
#include "unit.h"

/* Allocates and frees memory of a host device. */
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

TEST(expectations_are_checked)
{
    assert_ok(ek_host_devices_configure("3"));
    ek_report *report = ek_report_start(.device_ids = EK_DEVICES(ek_host(0), ek_host(1)));
    assert_made(report);
    const ek_expectation good = {.device_count = 2,
                                 .devices = {{.device = ek_host(1)}, {.device = ek_host(0)}},
                                 .means_count = 1,
                                 .means = {{.name = "none"}}};
    ek_expectation bad = good;
    assert_refused(ek_report_expect(NULL, &good), EK_E_INVALID, "the report is NULL");
    assert_refused(ek_report_expect(report, NULL), EK_E_INVALID, "the expectation is NULL");
#define REFUSED(change, message)                                               \
    do {                                                                       \
        bad = good;                                                            \
        bad.change;                                                            \
        assert_refused(ek_report_expect(report, &bad), EK_E_INVALID, message); \
    } while (0)
    REFUSED(device_count = EK_MAX_DEVICES + 1, "65 devices and 1 means; at most 64 and 8");
    REFUSED(device_count = -1, "-1 devices");
    REFUSED(means_count = EK_EXPECTED_MEANS + 1, "9 means");
    REFUSED(means_count = -1, "-1 means");
    REFUSED(batch = -1, "a batch of -1");
    REFUSED(step_seconds = -1, "a step of -1 s");
    REFUSED(step_seconds = NAN, "a step of nan s");
    REFUSED(step_seconds = INFINITY, "a step of inf s");
    REFUSED(means[0].seconds = NAN, "means 0 has no number of seconds");
    memset(bad.means[0].name, 'x', sizeof bad.means[0].name);
    assert_refused((bad.means[0].seconds = 0, ek_report_expect(report, &bad)), EK_E_INVALID,
                   "means 0 has no end of its name");
    REFUSED(devices[1].device = ek_host(2), "host:2 is no device of the report");
    REFUSED(devices[1].device = ek_host(1), "host:1 is named twice");
    REFUSED(devices[1].now[EK_MEMORY_GRADIENT] = 5,
            "host:0: the categories add up to 5 bytes, the peak is 0");
#undef REFUSED
    ek_device_report device;
    assert_ok(ek_report_expect(report, &good));
    assert_ok(ek_report_get_device(report, 0, &device));
    ck_assert_uint_eq(device.expected.in_use, 0);
    ek_report_free(report);
}

/* Collected data stays. A device that is opened in a closed device's place isn't the report's. */
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

TEST(curves_and_live_pages_are_checked)
{
    assert_ok(ek_host_devices_configure("1"));
    ek_report *report = ek_report_start(.device_ids = ek_devices(EK_HOST, 0));
    assert_made(report);
    assert_refused(ek_report_scalar(report, NULL, 1, 0.5), EK_E_INVALID, "the name is NULL");
    assert_refused(ek_report_scalar(report, "", 1, 0.5), EK_E_INVALID, "the name is empty");
    assert_refused(ek_report_scalar(report, "\xff", 1, 0.5), EK_E_INVALID, "not UTF-8");
    assert_ok(ek_report_scalar(report, "loss", 5, 0.5));
    assert_refused(ek_report_scalar(report, "loss", 4, 0.5), EK_E_INVALID,
                   "loss: step 4 after step 5");
    assert_refused(ek_report_live(report, NULL, NULL), EK_E_INVALID, "there is no path");
    assert_refused(ek_report_live(report, "", NULL), EK_E_INVALID, "there is no path");
    assert_refused(ek_report_live(report, "page.html", &(ek_report_page){.every = -1}),
                   EK_E_INVALID, "every -1 seconds");
    assert_refused(ek_report_live(report, "page.html", &(ek_report_page){.every = NAN}),
                   EK_E_INVALID, "every nan seconds");
    ek_report_free(report);
}

TEST(no_report_has_collected_nothing)
{
    ek_device_report device;
    assert_refused(ek_report_step(NULL), EK_E_STATE, "NULL");
    assert_refused(ek_report_stop(NULL), EK_E_STATE, "NULL");
    assert_refused(ek_report_scalar(NULL, "loss", 1, 0.5), EK_E_INVALID, "NULL");
    assert_refused(ek_report_live(NULL, "page.html", NULL), EK_E_INVALID, "NULL");
    ck_assert_str_eq(ek_report_name(NULL), "");
    ck_assert_int_eq(ek_report_device_count(NULL), 0);
    ck_assert_int_eq(ek_report_step_count(NULL), 0);
    ck_assert(ek_report_seconds(NULL) == 0 && ek_report_step_seconds(NULL) == 0);
    ck_assert(ek_report_imbalance(NULL) == 1);
    ek_report_set_largest_batch(NULL, 5);
    assert_refused(ek_report_get_device(NULL, 0, &device), EK_E_INVALID, "NULL");
    assert_refused(ek_report_memory(NULL, 0, NULL, 0), EK_E_INVALID, "NULL");
}
