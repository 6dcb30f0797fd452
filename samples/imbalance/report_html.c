/* report_html.c: the library's page of memory and time, and behind it what this job is about:
 * losses, accuracy, throughput. */
#include <inttypes.h>

#include "imbalance/result.h"
#include "report/page.h"

typedef struct mode_results {
    const mode_result *results;
    int count;
} mode_results;

/* ---- charts ---- */

typedef double measure(const mode_result *result);

static double rate_of(const mode_result *r)
{
    return r->samples_per_second;
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
                       const mode_results *all)
{
    ek_page_bar bars[MODES];
    char texts[MODES][32];

    for (int m = 0; m < all->count; m++) {
        double v = value(&all->results[m]);
        snprintf(texts[m], sizeof(texts[m]), format, v);
        bars[m] = (ek_page_bar){all->results[m].name, texts[m], v};
    }
    ek_page_bars(f, title, NULL, bars, all->count);
}

/* Losses of all modes over steps. */
static void loss_chart(FILE *f, const mode_results *all)
{
    ek_page_series series[MODES];

    for (int m = 0; m < all->count; m++)
        series[m] = (ek_page_series){all->results[m].name, all->results[m].losses,
                                     all->results[m].loss_count, NULL};
    ek_page_lines(f, "Loss", "step", series, all->count);
}

/* ---- the numbers ---- */

static void number_table(FILE *f, const mode_results *all)
{
    fputs("<section>\n<h2>Results</h2>\n<div class=\"wide\"><table>\n<tr><th>mode</th>"
          "<th>shares of the batch</th><th>samples/s</th><th>final loss</th>"
          "<th>pixel accuracy</th><th>mean IoU</th></tr>\n",
          f);
    for (int m = 0; m < all->count; m++) {
        const mode_result *r = &all->results[m];
        fprintf(f, "<tr><td>%s</td><td>", r->name);
        for (int d = 0; d < ek_report_device_count(r->report); d++)
            fprintf(f, "%s%" PRId64, d ? ", " : "", r->share[d]);
        fprintf(f, "</td><td>%.0f</td><td>%.4f</td><td>%.2f&nbsp;%%</td><td>%.4f</td></tr>\n",
                r->samples_per_second, r->losses[r->loss_count - 1], 100 * r->pixel_accuracy,
                r->mean_iou);
    }
    fputs("</table></div>\n</section>\n", f);
}

/* ---- the page ---- */

static void write_more(FILE *f, void *user)
{
    const mode_results *all = user;

    if (all->count == 0 || !all->results[0].sha256[0])
        return; /* only largest batches were looked for */
    fputs("<div class=\"grid\">\n", f);
    mode_chart(f, "Samples per second", rate_of, "%.0f", all);
    mode_chart(f, "Mean IoU on test scenes", iou_of, "%.4f", all);
    mode_chart(f, "Pixel accuracy on test scenes", accuracy_of, "%.4f", all);
    fputs("</div>\n", f);
    loss_chart(f, all);
    number_table(f, all);
}

static void write_subtitle(char *text, size_t nbytes, const run_settings *settings,
                           const mode_result *results, int count)
{
    char batch[48] = "each mode's largest batch";

    if (!settings->find_batch)
        snprintf(batch, sizeof(batch), "batch %" PRId64 ", %d steps", settings->batch,
                 settings_steps(settings));
    snprintf(text, nbytes,
             "Segmentation of Fashion-MNIST scenes of %" PRId64 " x %" PRId64 ", %" PRId64
             " parameters, %s, devices %s, %s, learning rate %g, seed %" PRId64 ".",
             settings->size, settings->size, count > 0 ? results[0].parameters : 0, batch,
             settings->device_text, settings->optimizer, settings->lr, settings->seed);
}

int report_html(const char *path, const run_settings *settings, const mode_result *results,
                int count)
{
    ek_report *reports[MODES];
    mode_results all = {results, count};
    char subtitle[512];
    int with_report = 0;

    for (int m = 0; m < count; m++)
        if (results[m].report)
            reports[with_report++] = results[m].report;
    write_subtitle(subtitle, sizeof(subtitle), settings, results, count);
    return ek_report_html_with(path, reports, with_report,
                               &(const ek_report_page){
                                   .title = "Memory and time of data-parallel training",
                                   .subtitle = subtitle,
                                   .more = write_more,
                                   .user = &all,
                               });
}
