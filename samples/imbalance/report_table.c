#include <inttypes.h>

#include "imbalance/result.h"

static const double mebibyte = 1 << 20;

/* The categories' names, short enough for a column of 7. */
static const char *const columns[EK_MEMORY_CATEGORIES] = {
    [EK_MEMORY_PARAMETER] = "params",     [EK_MEMORY_GRADIENT] = "grads",
    [EK_MEMORY_OPTIMIZER] = "optim",      [EK_MEMORY_ACTIVATION] = "activ",
    [EK_MEMORY_COMMUNICATION] = "commun", [EK_MEMORY_WORKSPACE] = "work",
};

/* Milliseconds of a step in which the device computed. */
static double busy_ms(const mode_result *r, const ek_device_report *device)
{
    int64_t steps = ek_report_step_count(r->report);

    return steps > 0 ? 1000 * device->computing / (double)steps : 0;
}

static void device_row(FILE *stream, const mode_result *r, int index)
{
    ek_device_report device;
    char name[16];

    if (ek_report_device(r->report, index, &device) < 0)
        return;
    fprintf(stream, "%-13s %-8s %6" PRId64 " %8.2f", r->name, ek_device_name(device.device, name),
            r->share[index], (double)device.peak.in_use / mebibyte);
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        fprintf(stream, " %7.2f", (double)device.peak.now[c] / mebibyte);
    fprintf(stream, " %8.1f", busy_ms(r, &device));
    if (index == 0)
        fprintf(stream, " %9.2f %8.1f %9.0f %8.4f %7.2f%% %8.4f", ek_report_imbalance(r->report),
                1000 * r->step_seconds, r->samples_per_second, r->losses[r->loss_count - 1],
                100 * r->pixel_accuracy, r->mean_iou);
    fputc('\n', stream);
}

void report_table(FILE *stream, const mode_result *results, int count)
{
    fputs(
        "\nPer device: its share of the batch; its peak in MiB and what that was for: parameters,\n"
        "gradients, optimizer state, activations, communication, workspace; milliseconds of a\n"
        "step in which it computed. Imbalance: the fullest device's peak over the mean of all.\n\n",
        stream);
    fprintf(stream, "%-13s %-8s %6s %8s", "mode", "device", "share", "peak");
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        fprintf(stream, " %7s", columns[c]);
    fprintf(stream, " %8s %9s %8s %9s %8s %8s %8s\n", "computes", "imbalance", "step ms",
            "samples/s", "loss", "pixels", "mean IoU");
    for (int m = 0; m < count; m++)
        for (int d = 0; d < ek_report_device_count(results[m].report); d++)
            device_row(stream, &results[m], d);
    fputc('\n', stream);
}

/* ---- largest batches ---- */

static int64_t batch_of_single(const mode_result *results, int count)
{
    for (int m = 0; m < count; m++)
        if (results[m].name == mode_names[MODE_SINGLE])
            return results[m].largest;
    return 0;
}

void report_batches(FILE *stream, const mode_result *results, int count)
{
    int64_t single = batch_of_single(results, count);

    fputs("\nThe largest batch of each mode, over that of a single device; each device's share of\n"
          "it, and how much of the device's capacity is in use at its peak then.\n\n",
          stream);
    fprintf(stream, "%-13s %8s %8s  %s\n", "mode", "largest", "ratio", "devices");
    for (int m = 0; m < count; m++) {
        const mode_result *r = &results[m];
        fprintf(stream, "%-13s %8" PRId64, r->name, r->largest);
        if (single > 0)
            fprintf(stream, " %8.2f ", (double)r->largest / (double)single);
        else
            fprintf(stream, " %8s ", "");
        for (int d = 0; r->report && d < ek_report_device_count(r->report); d++) {
            ek_device_report device;
            if (ek_report_device(r->report, d, &device) < 0)
                continue;
            fprintf(stream, " %" PRId64, r->share[d]);
            if (device.capacity > 0)
                fprintf(stream, " (%.1f%%)",
                        100 * (double)device.peak.in_use / (double)device.capacity);
        }
        fputc('\n', stream);
    }
    fputc('\n', stream);
}
