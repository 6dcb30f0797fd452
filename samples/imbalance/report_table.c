#include "imbalance/result.h"

static const double mebibyte = 1 << 20;

/* The categories' names, short enough for a column of 7. */
static const char *const columns[EK_MEMORY_CATEGORIES] = {
    [EK_MEMORY_PARAMETER] = "params",     [EK_MEMORY_GRADIENT] = "grads",
    [EK_MEMORY_OPTIMIZER] = "optim",      [EK_MEMORY_ACTIVATION] = "activ",
    [EK_MEMORY_COMMUNICATION] = "commun", [EK_MEMORY_WORKSPACE] = "work",
};

void report_table(FILE *stream, const mode_result *results, int count)
{
    fputs(
        "\nPeak memory in MiB; what it was for at that moment: parameters, gradients, optimizer\n"
        "state, activations, communication, workspace; imbalance: the fullest device's peak over\n"
        "the mean of all\n\n",
        stream);
    fprintf(stream, "%-9s %-8s %8s", "mode", "device", "peak");
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        fprintf(stream, " %7s", columns[c]);
    fprintf(stream, " %9s %8s %9s %8s %8s %8s\n", "imbalance", "step ms", "samples/s", "loss",
            "pixels", "mean IoU");
    for (int m = 0; m < count; m++) {
        const mode_result *r = &results[m];
        for (int d = 0; d < r->device_count; d++) {
            const device_result *device = &r->devices[d];
            fprintf(stream, "%-9s %-8s %8.2f", r->name, device->name,
                    (double)device->peak / mebibyte);
            for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
                fprintf(stream, " %7.2f", (double)device->categories[c] / mebibyte);
            if (d == 0)
                fprintf(stream, " %9.2f %8.1f %9.0f %8.4f %7.2f%% %8.4f", r->imbalance,
                        1000 * r->step_seconds, r->samples_per_second, r->losses[r->loss_count - 1],
                        100 * r->pixel_accuracy, r->mean_iou);
            fputc('\n', stream);
        }
    }
    fputc('\n', stream);
}
