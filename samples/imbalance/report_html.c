/* report_html.c: one page without scripts or other files: bars are boxes, the curves are SVG. */
#include <inttypes.h>
#include <math.h>

#include "common/page.h"
#include "imbalance/result.h"

static const double mebibyte = 1 << 20;

/* ---- charts ---- */

static void memory_chart(FILE *f, const mode_result *results, int count)
{
    uint64_t largest = 1;

    for (int m = 0; m < count; m++)
        for (int d = 0; d < results[m].device_count; d++)
            if (results[m].devices[d].peak > largest)
                largest = results[m].devices[d].peak;
    fputs("<section>\n<h2>Peak memory per device</h2>\n<div class=\"legend\">\n", f);
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        fprintf(f, "<span><i style=\"background:var(--%s)\"></i>%s</span>\n", page_colour(c),
                ek_memory_category_name((ek_memory_category)c));
    fputs("</div>\n", f);
    for (int m = 0; m < count; m++) {
        fprintf(f, "<h3>%s: imbalance %.2f</h3>\n", results[m].name, results[m].imbalance);
        for (int d = 0; d < results[m].device_count; d++) {
            const device_result *device = &results[m].devices[d];
            double peak = device->peak ? (double)device->peak : 1;
            fprintf(f,
                    "<div class=\"row\"><span>%s</span><div class=\"track\"><div class=\"bar\" "
                    "style=\"width:%.2f%%\">",
                    device->name, 100 * peak / (double)largest);
            for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
                if (device->categories[c])
                    fprintf(f,
                            "<span style=\"width:%.2f%%;background:var(--%s)\" title=\"%s %.2f "
                            "MiB\"></span>",
                            100 * (double)device->categories[c] / peak, page_colour(c),
                            ek_memory_category_name((ek_memory_category)c),
                            (double)device->categories[c] / mebibyte);
            fprintf(f, "</div></div><span>%.2f MiB</span></div>\n", peak / mebibyte);
        }
    }
    fputs("</section>\n", f);
}

typedef double measure(const mode_result *result);

static double imbalance_of(const mode_result *r)
{
    return r->imbalance;
}
static double rate_of(const mode_result *r)
{
    return r->samples_per_second;
}
static double step_of(const mode_result *r)
{
    return 1000 * r->step_seconds;
}
static double iou_of(const mode_result *r)
{
    return r->mean_iou;
}
static double accuracy_of(const mode_result *r)
{
    return r->pixel_accuracy;
}

/* A bar per mode. */
static void mode_chart(FILE *f, const char *title, measure *value, const char *format,
                       const mode_result *results, int count)
{
    double largest = 0;

    for (int m = 0; m < count; m++)
        largest = fmax(largest, value(&results[m]));
    fprintf(f, "<section>\n<h2>%s</h2>\n", title);
    for (int m = 0; m < count; m++) {
        double v = value(&results[m]);
        char text[32];
        snprintf(text, sizeof(text), format, v);
        fprintf(f,
                "<div class=\"row\"><span>%s</span><div class=\"track\"><div class=\"bar\" "
                "style=\"width:%.2f%%;background:var(--%s)\"></div></div><span>%s</span></div>\n",
                results[m].name, largest > 0 ? 100 * v / largest : 0, page_colour(m), text);
    }
    fputs("</section>\n", f);
}

/* Losses of all modes over steps. */
static void loss_chart(FILE *f, const mode_result *results, int count)
{
    page_series series[MODES];

    for (int m = 0; m < count; m++)
        series[m] = (page_series){results[m].name, results[m].losses, results[m].loss_count};
    page_lines(f, "Loss", "step", series, count);
}

/* ---- the numbers ---- */

static void number_table(FILE *f, const mode_result *results, int count)
{
    fputs("<section>\n<h2>The numbers</h2>\n<p class=\"faint\">Memory in MiB at the device's peak."
          "</p>\n<div class=\"wide\"><table>\n<tr><th>mode</th><th>device</th><th>peak</th>",
          f);
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        fprintf(f, "<th>%s</th>", ek_memory_category_name((ek_memory_category)c));
    fputs("<th>imbalance</th><th>step ms</th><th>samples/s</th><th>final loss</th>"
          "<th>pixel accuracy</th><th>mean IoU</th></tr>\n",
          f);
    for (int m = 0; m < count; m++) {
        const mode_result *r = &results[m];
        for (int d = 0; d < r->device_count; d++) {
            fprintf(f, "<tr><td>%s</td><td>%s</td><td>%.2f</td>", r->name, r->devices[d].name,
                    (double)r->devices[d].peak / mebibyte);
            for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
                fprintf(f, "<td>%.2f</td>", (double)r->devices[d].categories[c] / mebibyte);
            if (d == 0)
                fprintf(f,
                        "<td>%.2f</td><td>%.1f</td><td>%.0f</td><td>%.4f</td><td>%.2f %%</td>"
                        "<td>%.4f</td>",
                        r->imbalance, 1000 * r->step_seconds, r->samples_per_second,
                        r->losses[r->loss_count - 1], 100 * r->pixel_accuracy, r->mean_iou);
            else
                fputs("<td></td><td></td><td></td><td></td><td></td><td></td>", f);
            fputs("</tr>\n", f);
        }
    }
    fputs("</table></div>\n</section>\n", f);
}

int report_html(const char *path, const run_settings *settings, const mode_result *results,
                int count)
{
    FILE *f = fopen(path, "w");

    if (!f)
        return -1;
    page_begin(f, "Memory imbalance of data-parallel training");
    fprintf(f,
            "<p class=\"faint\">Segmentation "
            "of Fashion-MNIST scenes of %" PRId64 " x %" PRId64 ", %" PRId64
            " parameters, batch %" PRId64 ", %d steps, %" PRId64 " devices, %s, learning rate %g, "
            "seed %" PRId64 ".</p>\n",
            settings->size, settings->size, results[0].parameters, settings->batch,
            settings_steps(settings), settings->devices, settings->optimizer, settings->lr,
            settings->seed);
    memory_chart(f, results, count);
    fputs("<div class=\"grid\">\n", f);
    mode_chart(f, "Imbalance (fullest device over the mean)", imbalance_of, "%.2f", results, count);
    mode_chart(f, "Median step (ms)", step_of, "%.1f", results, count);
    mode_chart(f, "Samples per second", rate_of, "%.0f", results, count);
    mode_chart(f, "Mean IoU on test scenes", iou_of, "%.4f", results, count);
    mode_chart(f, "Pixel accuracy on test scenes", accuracy_of, "%.4f", results, count);
    fputs("</div>\n", f);
    loss_chart(f, results, count);
    number_table(f, results, count);
    page_end(f);
    int failed = ferror(f);
    return fclose(f) != 0 || failed ? -1 : 0;
}
