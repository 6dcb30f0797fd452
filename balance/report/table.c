/* table.c: a report for a terminal. */
#include "core/locale.h"
#include "core/thread.h"
#include "report/report.h"

static const double mebibyte = 1 << 20;

/* The categories' names, short enough for a column of 7. */
static const char *const columns[EK_MEMORY_CATEGORIES] = {
    [EK_MEMORY_PARAMETER] = "params", [EK_MEMORY_GATHERED] = "gather",
    [EK_MEMORY_GRADIENT] = "grads",   [EK_MEMORY_OPTIMIZER] = "optim",
    [EK_MEMORY_ACTIVATION] = "activ", [EK_MEMORY_COMMUNICATION] = "commun",
    [EK_MEMORY_WORKSPACE] = "work",
};

/* Columns of a device's name. */
static int table_width(const ek_report *report)
{
    return ek_report_rank_count(report) > 1 ? 15 : 8;
}

static void table_write_head(const ek_report *report, FILE *stream)
{
    const int64_t largest = ek_report_largest_batch(report);
    const ek_expectation *expected = ek_report_expected(report);
    fprintf(stream, "%s: %lld steps, median %.2f ms", ek_report_name(report),
            (long long)ek_report_step_count(report), 1e3 * ek_report_step_seconds(report));
    if (expected && expected->step_seconds > 0)
        fprintf(stream, " (%.2f expected)", 1e3 * expected->step_seconds);
    fprintf(stream, "; imbalance %.2f", ek_report_imbalance(report));
    if (ek_report_rank_count(report) > 1)
        fprintf(stream, "; %d ranks", ek_report_rank_count(report));
    if (expected && expected->batch > 0)
        fprintf(stream, "; planned for batch %lld", (long long)expected->batch);
    if (largest > 0)
        fprintf(stream, "; largest batch %lld", (long long)largest);
    fputs("\n\nPeak memory in MiB, what it was for at that moment, and what asked for it\n\n",
          stream);
    fprintf(stream, "%-*s %9s%s %8s", table_width(report), "device", "peak",
            expected ? "  expected" : "", "capacity");
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        fprintf(stream, " %8s", columns[c]);
    fputs("  at\n", stream);
}

static void table_write_memory(const ek_report *report, const ek_device_report *device,
                               FILE *stream)
{
    const ek_memory_sample *peak = &device->peak;
    char name[40], expected[32] = "", share[16] = "-";
    if (ek_report_expected(report))
        snprintf(expected, sizeof expected, " %9.2f", (double)device->expected.in_use / mebibyte);
    if (device->capacity)
        snprintf(share, sizeof share, "%.0f %%",
                 100 * (double)peak->in_use / (double)device->capacity);
    fprintf(stream, "%-*s %9.2f%s %8s", table_width(report),
            ek_report_device_text(report, device, name), (double)peak->in_use / mebibyte, expected,
            share);
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        fprintf(stream, " %8.2f", (double)peak->now[c] / mebibyte);
    fprintf(stream, "  %s\n", device->peak_operation[0] ? device->peak_operation : "-");
}

/* Writes what each means of the plan saves and costs. */
static void table_write_means(const ek_expectation *expected, FILE *stream)
{
    if (!expected || expected->means_count == 0)
        return;
    fprintf(stream, "\nMiB that each means of the plan saves on the fullest device, and "
                    "milliseconds that it adds to a step\n\n");
    for (int m = 0; m < expected->means_count; m++)
        fprintf(stream, "%-32s %9.2f %9.2f\n", expected->means[m].name,
                (double)expected->means[m].saved / mebibyte, 1e3 * expected->means[m].seconds);
}

/* Writes the largest holders of the device's memory at its peak. */
static void table_write_holders(const ek_report *report, const ek_device_report *device,
                                FILE *stream)
{
    enum { TOLD = 3 };
    char name[40];
    fprintf(stream, "%-*s", table_width(report), ek_report_device_text(report, device, name));
    for (int i = 0; i < device->holder_count && i < TOLD; i++) {
        const ek_memory_holder *holder = &device->holders[i];
        fprintf(stream, "%s %s (%s) %.2f", i ? "," : "",
                holder->path[0] ? holder->path : "no module",
                ek_memory_category_name(holder->category), (double)holder->nbytes / mebibyte);
    }
    fputc('\n', stream);
}

/* Writes how much memory the device had from the system, and which part of it was in use. */
static void table_write_reserved(const ek_report *report, const ek_device_report *device,
                                 FILE *stream)
{
    char name[40], share[16] = "-";
    if (device->reserved_at_peak)
        snprintf(share, sizeof share, "%.0f %%",
                 100 * (double)device->peak.in_use / (double)device->reserved_at_peak);
    fprintf(stream, "%-*s %9.2f %9.2f %8s %9.2f %9.2f %8llu\n", table_width(report),
            ek_report_device_text(report, device, name), (double)device->reserved_peak / mebibyte,
            (double)device->reserved_at_peak / mebibyte, share,
            (double)device->largest_free / mebibyte, (double)device->system / mebibyte,
            (unsigned long long)device->dropped);
}

/* Writes one kind of time in milliseconds and percent, as a mean of `steps` > 0 steps. */
static void table_write_share(double seconds, double all, int64_t steps, FILE *stream)
{
    fprintf(stream, " %9.2f %3.0f %%", 1e3 * seconds / (double)steps,
            all > 0 ? 100 * seconds / all : 0);
}

/* Writes a device's times as means per step of the device's rank; nothing if the rank has finished
 * no step. */
static int table_write_time(const ek_report *report, int index, FILE *stream)
{
    ek_device_report device;
    ek_rank_report rank;
    char name[40];
    EK_TRY(ek_report_get_device(report, index, &device));
    EK_TRY(ek_report_get_rank(report, device.rank, &rank));
    if (rank.steps == 0)
        return 0;
    fprintf(stream, "%-*s", table_width(report), ek_report_device_text(report, &device, name));
    table_write_share(device.computing, rank.seconds, rank.steps, stream);
    table_write_share(device.communicating, rank.seconds, rank.steps, stream);
    table_write_share(device.waiting, rank.seconds, rank.steps, stream);
    fputc('\n', stream);
    return 0;
}

static int table_write_ranks(const ek_report *report, FILE *stream)
{
    fputs(
        "\nMilliseconds of the mean step in which a rank's calls waited for communication, and for "
        "ranks that\ncame later; of the calls of all ranks, those to which it came last\n\n",
        stream);
    fprintf(stream, "%-8s %15s %15s %8s %13s  %s\n", "rank", "exposed", "for ranks", "mostly",
            "last", "on");
    for (int r = 0; r < ek_report_rank_count(report); r++) {
        ek_rank_report rank;
        char mostly[16] = "-", last[32];
        EK_TRY(ek_report_get_rank(report, r, &rank));
        if (rank.steps == 0)
            continue;
        if (rank.waited_for >= 0)
            snprintf(mostly, sizeof mostly, "%d", rank.waited_for);
        snprintf(last, sizeof last, "%lld of %lld", (long long)rank.last, (long long)rank.calls);
        fprintf(stream, "%-8d", rank.rank);
        table_write_share(rank.exposed, rank.seconds, rank.steps, stream);
        table_write_share(rank.waited, rank.seconds, rank.steps, stream);
        fprintf(stream, " %8s %13s  %s\n", mostly, last, rank.host);
    }
    return 0;
}

static int table_write(const ek_report *report, FILE *stream)
{
    ek_device_report device;
    table_write_head(report, stream);
    for (int d = 0; d < ek_report_device_count(report); d++) {
        EK_TRY(ek_report_get_device(report, d, &device));
        table_write_memory(report, &device, stream);
    }
    fputs("\nThe largest holders of memory at the peak, in MiB\n\n", stream);
    for (int d = 0; d < ek_report_device_count(report); d++) {
        EK_TRY(ek_report_get_device(report, d, &device));
        table_write_holders(report, &device, stream);
    }
    table_write_means(ek_report_expected(report), stream);
    fprintf(
        stream,
        "\nMiB reserved at most, and at the peak; of this, the share in use, and the largest free "
        "block; beside it,\nin the system's hands; and caches dropped for want of room\n\n"
        "%-*s %9s %9s %8s %9s %9s %8s\n",
        table_width(report), "device", "reserved", "at peak", "in use", "free", "system",
        "dropped");
    for (int d = 0; d < ek_report_device_count(report); d++) {
        EK_TRY(ek_report_get_device(report, d, &device));
        table_write_reserved(report, &device, stream);
    }
    if (ek_report_step_count(report) > 0)
        fprintf(stream, "\nMilliseconds of the mean step\n\n%-*s %15s %15s %15s\n",
                table_width(report), "device", "computing", "communicating", "waiting");
    for (int d = 0; d < ek_report_device_count(report) && ek_report_step_count(report) > 0; d++)
        EK_TRY(table_write_time(report, d, stream));
    if (ek_report_step_count(report) > 0 && ek_report_rank_count(report) > 1)
        EK_TRY(table_write_ranks(report, stream));
    fputc('\n', stream);
    return 0;
}

static int table_write_whole(const ek_report *report, FILE *stream)
{
    locale_t before = ek_locale_begin();
    int rc = table_write(report, stream);
    ek_locale_end(before);
    EK_TRY(rc);
    if (fflush(stream) != 0 || ferror(stream))
        return EK_FAIL(EK_E_IO, "report_table: the stream does not take what is written");
    return 0;
}

int ek_report_table(const ek_report *report, FILE *stream)
{
    /* Data received from other ranks is freed through a pointer without const. */
    ek_report *written = (ek_report *)report;
    int rc = report && stream ? 0
                              : EK_FAIL(EK_E_INVALID, "report_table: the %s is NULL",
                                        report ? "stream" : "report");
    if (rc >= 0)
        rc = ek_check_alive("report_table", "the report", report);
    int writes = ek_report_begin_writing(&written, 1, rc);
    if (writes < 0)
        return writes;
    return ek_report_end_writing(&written, 1, writes ? table_write_whole(report, stream) : 0);
}
