/* imbalance_report.c: results of the modes as tables, as JSON, and as a page. The page is the
 * library's, of memory, time and losses, with accuracy and throughput below. */
#include <inttypes.h>

#include "imbalance.h"

static const double mebibyte = 1 << 20;

/* ---- tables ---- */

/* The categories' names, short enough for a column of 7. */
static const char *const table_columns[EK_MEMORY_CATEGORIES] = {
    [EK_MEMORY_PARAMETER] = "params", [EK_MEMORY_GATHERED] = "gather",
    [EK_MEMORY_GRADIENT] = "grads",   [EK_MEMORY_OPTIMIZER] = "optim",
    [EK_MEMORY_ACTIVATION] = "activ", [EK_MEMORY_COMMUNICATION] = "commun",
    [EK_MEMORY_WORKSPACE] = "work",
};

/* Columns of a device's name. */
static int table_width(void)
{
    return world_size() > 1 ? 15 : 8;
}

static void table_row(const mode_result *r, int index)
{
    ek_device_report device;
    char name[40];
    int64_t steps = ek_report_step_count(r->report);
    if (ek_report_get_device(r->report, index, &device) < 0)
        return;
    printf("%-13s %-*s %6" PRId64 " %8.2f", r->name, table_width(),
           device_label(device.rank, device.device, name), r->share[index],
           (double)device.peak.in_use / mebibyte);
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        printf(" %7.2f", (double)device.peak.now[c] / mebibyte);
    printf(" %8.1f", steps > 0 ? 1000 * device.computing / (double)steps : 0);
    if (index == 0)
        printf(" %9.2f %8.1f %9.0f %8.4f %7.2f%% %8.4f", ek_report_imbalance(r->report),
               1000 * r->step_seconds, r->samples_per_second, r->losses.values[r->losses.count - 1],
               100 * r->pixel_accuracy, r->mean_iou);
    putchar('\n');
}

void report_table(const mode_result *results, int count)
{
    puts(
        "\nPer device: its share of the batch; its peak in MiB and what that was for: parameters,\n"
        "gathered parameters, gradients, optimizer state, activations, communication, workspace;\n"
        "milliseconds of a step in which it computed. Imbalance: the fullest device's peak over\n"
        "the mean of all.\n");
    printf("%-13s %-*s %6s %8s", "mode", table_width(), "device", "share", "peak");
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        printf(" %7s", table_columns[c]);
    printf(" %8s %9s %8s %9s %8s %8s %8s\n", "computes", "imbalance", "step ms", "samples/s",
           "loss", "pixels", "mean IoU");
    for (int m = 0; m < count; m++)
        for (int d = 0; d < ek_report_device_count(results[m].report); d++)
            table_row(&results[m], d);
    putchar('\n');
}

void report_batches(const mode_result *results, int count)
{
    int64_t single = 0;
    for (int m = 0; m < count; m++)
        if (results[m].name == mode_names[MODE_SINGLE])
            single = results[m].largest;
    puts("\nThe largest batch of each mode, over that of a single device; each device's share of\n"
         "it, and how much of the device's capacity is in use at its peak then.\n");
    printf("%-13s %8s %8s  %s\n", "mode", "largest", "ratio", "devices");
    for (int m = 0; m < count; m++) {
        const mode_result *r = &results[m];
        printf("%-13s %8" PRId64, r->name, r->largest);
        if (single > 0)
            printf(" %8.2f ", (double)r->largest / (double)single);
        else
            printf(" %8s ", "");
        for (int d = 0; r->report && d < ek_report_device_count(r->report); d++) {
            ek_device_report device;
            if (ek_report_get_device(r->report, d, &device) < 0)
                continue;
            printf(" %" PRId64, r->share[d]);
            if (device.capacity > 0)
                printf(" (%.1f%%)", 100 * (double)device.peak.in_use / (double)device.capacity);
        }
        putchar('\n');
    }
    putchar('\n');
}

/* ---- JSON ---- */

static void json_device(json_writer *json, const mode_result *r, int index)
{
    ek_device_report device;
    char name[40];
    if (ek_report_get_device(r->report, index, &device) < 0)
        return;
    json_write(json,
               "{ name %s share %jd capacity_bytes %jd peak_bytes %jd peak_step %jd "
               "peak_operation %s",
               device_label(device.rank, device.device, name), r->share[index],
               (int64_t)device.capacity, (int64_t)device.peak.in_use, device.peak.step,
               device.peak_operation);
    json_categories(json, device.peak.now);
    json_write(json, "computing_seconds %g communicating_seconds %g waiting_seconds %g }",
               device.computing, device.communicating, device.waiting);
}

static void json_mode(json_writer *json, const mode_result *r)
{
    json_write(json, "{ name %s batch %jd", r->name, r->batch);
    if (r->largest >= 0)
        json_write(json, "largest_batch %jd", r->largest);
    if (r->plan[0])
        json_write(json, "plan %s", r->plan);
    json_write(json, "devices [");
    for (int d = 0; r->report && d < ek_report_device_count(r->report); d++)
        json_device(json, r, d);
    json_write(json, "] imbalance %g step_seconds %g samples_per_second %g",
               r->report ? ek_report_imbalance(r->report) : 0.0, r->step_seconds,
               r->samples_per_second);
    json_series(json, "losses", &r->losses);
    if (r->sha256[0])
        json_write(json, "pixel_accuracy %g mean_iou %g parameters_sha256 %s", r->pixel_accuracy,
                   r->mean_iou, r->sha256);
    json_write(json, "}");
}

int report_json(const char *path, const run_settings *settings, const mode_result *results,
                int count)
{
    json_writer json;
    int rc = json_open(&json, path);
    if (rc < 0)
        return rc;
    json_write(&json, "workload { name %s devices %jd device_list %s batch %jd steps %jd seed %jd",
               "segmentation of Fashion-MNIST scenes", settings->device_count, settings->devices,
               settings->batch, (int64_t)settings_steps(settings), settings->seed);
    json_write(&json, "optimizer %s lr %g size %jd width %jd parameters %jd", settings->optimizer,
               settings->lr, settings->size, settings->width, results[0].parameters);
    json_write(&json, "training_scenes %jd test_scenes %jd capacity_bytes %jd } modes [",
               settings->scenes, settings->test_scenes, (int64_t)settings->cap);
    for (int m = 0; m < count; m++)
        json_mode(&json, &results[m]);
    json_write(&json, "]");
    return json_close(&json, path, 0);
}

/* ---- the page ---- */

typedef struct page_modes {
    const mode_result *results;
    int count;
} page_modes;

static void page_results(FILE *page, void *user)
{
    const page_modes *modes = user;
    if (modes->count == 0 || !modes->results[0].sha256[0])
        return; /* the job searched the largest batches only */
    fputs("<section>\n<h2>Results</h2>\n<table>\n<tr><th>mode</th><th>shares of the batch</th>"
          "<th>samples/s</th><th>final loss</th><th>pixel accuracy</th><th>mean IoU</th></tr>\n",
          page);
    for (int m = 0; m < modes->count; m++) {
        const mode_result *r = &modes->results[m];
        fprintf(page, "<tr><td>%s</td><td>", r->name);
        for (int d = 0; d < ek_report_device_count(r->report); d++)
            fprintf(page, "%s%" PRId64, d ? ", " : "", r->share[d]);
        fprintf(page, "</td><td>%.0f</td><td>%.4f</td><td>%.2f&nbsp;%%</td><td>%.4f</td></tr>\n",
                r->samples_per_second, r->losses.values[r->losses.count - 1],
                100 * r->pixel_accuracy, r->mean_iou);
    }
    fputs("</table>\n</section>\n", page);
}

int report_html(const char *path, const run_settings *settings, const mode_result *results,
                int count)
{
    ek_report *reports[MODES];
    page_modes modes = {results, count};
    char subtitle[512], batch[48] = "each mode's largest batch";
    int with_report = 0;
    for (int m = 0; m < count; m++)
        if (results[m].report)
            reports[with_report++] = results[m].report;
    if (!settings->find_batch)
        snprintf(batch, sizeof batch, "batch %" PRId64 ", %d steps", settings->batch,
                 settings_steps(settings));
    snprintf(subtitle, sizeof subtitle,
             "Segmentation of Fashion-MNIST scenes of %" PRId64 " x %" PRId64 ", %" PRId64
             " parameters, %s, devices %s, %s, learning rate %g, seed %" PRId64 ".",
             settings->size, settings->size, count > 0 ? results[0].parameters : 0, batch,
             settings->devices, settings->optimizer, settings->lr, settings->seed);
    return ek_report_html_page(path, reports, with_report,
                               &(const ek_report_page){
                                   .title = "Memory and time of data-parallel training",
                                   .subtitle = subtitle,
                                   .more = page_results,
                                   .user = &modes,
                               });
}
