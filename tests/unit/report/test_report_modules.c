/* The modules of spans and of memory: labels, who held memory at the peak, and a lack of memory. */
#include "collect_setup.h"
#include "core/thread.h"
#include "core/trace.h"
#include "report/history.h"
#include "report/report.h"

/* Sets the path of the module for which the thread works. */
static const char *enter(const char *path)
{
    return ek_thread_self()->modes.path = ek_path_join(ek_path_root, path);
}

TEST(labels_begin_with_the_module)
{
    char name[400];
    assert_ok(ek_host_devices_configure("1"));
    ek_report *report = ek_report_start(.device_ids = ek_devices(EK_HOST, 0));
    assert_made(report);
    ek_span outer, inner;
    enter("conv1");
    ek_span_begin(&outer, EK_SPAN_COMPUTE, "forward of", "conv2d", host(0));
    memset(name, 'x', sizeof name);
    strcpy(name + 200, "end");
    enter(name);
    ek_span_begin(&inner, EK_SPAN_COMPUTE, "forward of", "net", NULL);
    void *memory = take(0, 64, EK_MEMORY_ACTIVATION);
    enter("");
    ek_span_end(&inner);
    ek_span_end(&outer);
    assert_ok(ek_report_step(report));
    int count;
    double seconds;
    const ek_report_span *spans = ek_report_spans(report, &count, &seconds);
    ck_assert_int_eq(count, 2);
    ck_assert_str_eq(spans[0].label, "conv1: forward of conv2d");
    const char *label = spans[1].label; /* its begin is left out */
    ck_assert(strncmp(label, "xxx", 3) == 0 && strstr(label, "xxxend: forward of net"));
    ck_assert_str_eq(device_of(report, 0).peak_operation, label);
    give(0, memory, 64, EK_MEMORY_ACTIVATION);
    ek_report_free(report);
}

static void assert_holder(const ek_memory_holder *holder, const char *path,
                          ek_memory_category category, uint64_t nbytes)
{
    ck_assert_str_eq(holder->path, path);
    ck_assert_int_eq(holder->category, category);
    ck_assert_uint_eq(holder->nbytes, nbytes);
}

static void assert_peak_holders(const ek_report *report)
{
    const ek_device_report device = device_of(report, 0);
    ck_assert_uint_eq(device.peak.in_use, 4096 + 2048 + 1024);
    ck_assert_int_eq(device.holder_count, 3);
    assert_holder(&device.holders[0], "a", EK_MEMORY_ACTIVATION, 4096);
    assert_holder(&device.holders[1], "b", EK_MEMORY_PARAMETER, 2048);
    assert_holder(&device.holders[2], "b", EK_MEMORY_ACTIVATION, 1024);
}

/* Whatever happens to the memory after the peak, its holders are those of the peak. */
TEST(the_peak_has_its_holders)
{
    assert_ok(ek_host_devices_configure("1"));
    enter("b");
    void *parameter = take(0, 2048, EK_MEMORY_PARAMETER);
    ek_report *report = ek_report_start(.device_ids = ek_devices(EK_HOST, 0));
    assert_made(report);
    ck_assert_int_eq(device_of(report, 0).holder_count, 1);
    void *early = take(0, 128, EK_MEMORY_ACTIVATION); /* a peak that another one follows */
    give(0, early, 128, EK_MEMORY_ACTIVATION);
    const char *a = enter("a");
    void *moved = take(0, 4096, EK_MEMORY_ACTIVATION);
    enter("b");
    void *freed = take(0, 1024, EK_MEMORY_ACTIVATION);
    assert_peak_holders(report);

    ek_dev_assign(host(0), moved, 4096, EK_MEMORY_ACTIVATION, EK_MEMORY_GRADIENT, a);
    assert_peak_holders(report);
    give(0, freed, 1024, EK_MEMORY_ACTIVATION);
    enter("late");
    void *late = take(0, 512, EK_MEMORY_ACTIVATION);
    enter("");
    assert_ok(ek_report_step(report));
    assert_peak_holders(report);
    give(0, moved, 4096, EK_MEMORY_GRADIENT);
    assert_ok(ek_report_stop(report));
    give(0, late, 512, EK_MEMORY_ACTIVATION);
    give(0, parameter, 2048, EK_MEMORY_PARAMETER);
    assert_peak_holders(report);
    assert_ok(ek_shutdown());
    assert_peak_holders(report);
    ek_report_free(report);
}

TEST(a_lack_of_memory_is_noted)
{
    void *none;
    assert_ok(ek_host_devices_configure("1M"));
    ek_report *report = ek_report_start(.device_ids = ek_devices(EK_HOST, 0));
    assert_made(report);
    ck_assert_uint_eq(device_of(report, 0).out_of_memory.requested, 0);
    enter("a");
    void *held = take(0, 4096, EK_MEMORY_PARAMETER);
    assert_ok(ek_report_step(report));
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMPUTE, "forward of", "linear", host(0));
    assert_refused(ek_dev_alloc(host(0), 1 << 20, EK_MEMORY_ACTIVATION, &none), EK_E_OUT_OF_MEMORY,
                   "host:0");
    ek_span_end(&span);
    enter("");
    give(0, held, 4096, EK_MEMORY_PARAMETER);
    const ek_device_report device = device_of(report, 0);
    const ek_out_of_memory *lack = &device.out_of_memory;
    ck_assert_uint_eq(lack->requested, 1 << 20);
    ck_assert_int_eq(lack->category, EK_MEMORY_ACTIVATION);
    ck_assert_str_eq(lack->operation, "a: forward of linear");
    ck_assert_uint_eq(lack->at.in_use, 4096);
    ck_assert_int_eq(lack->at.step, 1);
    ck_assert_int_eq(lack->holder_count, 1);
    assert_holder(&lack->holders[0], "a", EK_MEMORY_PARAMETER, 4096);
    ek_report_free(report);
}
