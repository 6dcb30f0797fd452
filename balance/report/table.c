/* table.c: a report for a terminal. */
#include "core/locale.h"
#include "core/thread.h"
#include "report/report.h"

static const double mebibyte = 1 << 20;

/* The categories' names, short enough for a column of 7. */
static const char *const columns[EK_MEMORY_CATEGORIES] = {
    [EK_MEMORY_PARAMETER] = "params",     [EK_MEMORY_GRADIENT] = "grads",
    [EK_MEMORY_OPTIMIZER] = "optim",      [EK_MEMORY_ACTIVATION] = "activ",
    [EK_MEMORY_COMMUNICATION] = "commun", [EK_MEMORY_WORKSPACE] = "work",
};

static void table_write_head(const ek_report *report, FILE *stream)
{
    const int64_t largest = ek_report_largest_batch(report);
    fprintf(stream, "%s: %lld steps, median %.2f ms; imbalance %.2f", ek_report_name(report),
            (long long)ek_report_step_count(report), 1e3 * ek_report_step_seconds(report),
            ek_report_imbalance(report));
    if (largest > 0)
        fprintf(stream, "; largest batch %lld", (long long)largest);
    fputs("\n\nPeak memory in MiB, what it was for at that moment, and what asked for it\n\n",
          stream);
    fprintf(stream, "%-8s %9s %8s", "device", "peak", "capacity");
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        fprintf(stream, " %8s", columns[c]);
    fputs("  at\n", stream);
}

static void table_write_memory(const ek_device_report *device, FILE *stream)
{
    const ek_memory_sample *peak = &device->peak;
    char name[16], share[16] = "-";
    if (device->capacity)
        snprintf(share, sizeof share, "%.0f %%",
                 100 * (double)peak->in_use / (double)device->capacity);
    fprintf(stream, "%-8s %9.2f %8s", ek_device_name(device->device, name),
            (double)peak->in_use / mebibyte, share);
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        fprintf(stream, " %8.2f", (double)peak->now[c] / mebibyte);
    fprintf(stream, "  %s\n", device->peak_operation[0] ? device->peak_operation : "-");
}

/* One kind of time in the mean step: milliseconds and percent. */
static void table_write_share(double seconds, double all, int64_t steps, FILE *stream)
{
    fprintf(stream, " %9.2f %3.0f %%", 1e3 * seconds / (double)steps,
            all > 0 ? 100 * seconds / all : 0);
}

static void table_write_time(const ek_report *report, const ek_device_report *device, FILE *stream)
{
    const int64_t steps = ek_report_step_count(report);
    const double all = ek_report_seconds(report);
    char name[16];
    fprintf(stream, "%-8s", ek_device_name(device->device, name));
    table_write_share(device->computing, all, steps, stream);
    table_write_share(device->communicating, all, steps, stream);
    table_write_share(device->waiting, all, steps, stream);
    fputc('\n', stream);
}

static int table_write(const ek_report *report, FILE *stream)
{
    ek_device_report device;
    table_write_head(report, stream);
    for (int d = 0; d < ek_report_device_count(report); d++) {
        EK_TRY(ek_report_get_device(report, d, &device));
        table_write_memory(&device, stream);
    }
    if (ek_report_step_count(report) > 0)
        fprintf(stream, "\nMilliseconds of the mean step\n\n%-8s %15s %15s %15s\n", "device",
                "computing", "communicating", "waiting");
    for (int d = 0; d < ek_report_device_count(report) && ek_report_step_count(report) > 0; d++) {
        EK_TRY(ek_report_get_device(report, d, &device));
        table_write_time(report, &device, stream);
    }
    fputc('\n', stream);
    return 0;
}

int ek_report_table(const ek_report *report, FILE *stream)
{
    if (!report || !stream)
        return EK_FAIL(EK_E_INVALID, "report_table: the %s is NULL", report ? "stream" : "report");
    locale_t before = ek_locale_begin();
    int rc = table_write(report, stream);
    ek_locale_end(before);
    EK_TRY(rc);
    if (fflush(stream) != 0 || ferror(stream))
        return EK_FAIL(EK_E_IO, "report_table: the stream does not take what is written");
    return 0;
}
