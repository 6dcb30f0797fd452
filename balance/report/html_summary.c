/* html_summary.c: the answers first: a card per way of training that says in a sentence what is
 * full, of what and when, and bars that compare them. */
#include "report/html.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- cards ---- */

/* Where capacities differ, another device than the one that holds most may be the first to run out
 * of memory. */
static void write_nearest(const ek_html *html, const ek_html_run *run)
{
    char percent[32], capacity[32];
    double fullest = 0, most = 0;
    int nearest = -1;

    for (int d = 0; d < run->device_count; d++) {
        const ek_device_report *device = &run->devices[d];
        double share = device->capacity == 0
                           ? 0
                           : ek_html_share((double)device->peak.in_use, (double)device->capacity);
        if (d == run->fullest)
            fullest = share;
        if (share > most) {
            most = share;
            nearest = d;
        }
    }
    if (most > fullest + 0.01)
        fprintf(html->page, " <b>%s</b> is nearest to its capacity: %s of %s.", run->names[nearest],
                ek_html_percent(most, percent),
                ek_page_bytes((double)run->devices[nearest].capacity, capacity));
}

static void write_verdict(const ek_html *html, const ek_html_run *run)
{
    const ek_device_report *device = run->fullest < 0 ? NULL : &run->devices[run->fullest];
    char bytes[32], percent[32];

    if (!device) {
        fputs("<p>Its devices held no memory while it was collected.</p>\n", html->page);
        return;
    }
    int category = ek_html_main_category(device);
    double peak = (double)device->peak.in_use;
    double share = ek_html_share((double)device->peak.now[category], peak);
    bool level = run->device_count > 1 && run->imbalance <= 1.02;
    fprintf(html->page,
            level ? "<p>All are about as full; <b>%s</b> holds most: <b>%s</b>"
                  : "<p><b>%s</b> is the fullest: <b>%s</b>",
            run->names[run->fullest], ek_page_bytes(peak, bytes));
    if (device->capacity > 0)
        fprintf(html->page, ", %s of its %s",
                ek_html_percent(ek_html_share(peak, (double)device->capacity), percent),
                ek_page_bytes((double)device->capacity, bytes));
    fprintf(html->page, ". %s, %s, is <b>%s</b>. That was in step %" PRId64 ", after %s",
            share > 0.5 ? "Most of it" : "The largest part", ek_html_percent(share, percent),
            ek_memory_category_name((ek_memory_category)category), device->peak.step,
            ek_page_seconds(device->peak.seconds, bytes));
    if (device->peak_operation[0]) {
        fputs(", during <b>", html->page);
        ek_page_text(html->page, device->peak_operation);
        fputs("</b>", html->page);
    }
    fputc('.', html->page);
    write_nearest(html, run);
    fputs("</p>\n", html->page);
}

static const char *judgement(double imbalance)
{
    return imbalance <= 1.05 ? "level" : imbalance <= 1.25 ? "somewhat uneven" : "uneven";
}

static void write_fact(const ek_html *html, const char *value, const char *name)
{
    fprintf(html->page, "<div><dt>%s</dt><dd>%s</dd></div>\n", name, value);
}

static void write_facts(const ek_html *html, const ek_html_run *run)
{
    char text[32], name[64];

    fputs("<dl class=\"facts\">\n", html->page);
    snprintf(text, sizeof text, "%.2f", run->imbalance);
    snprintf(name, sizeof name, "imbalance: %s", judgement(run->imbalance));
    write_fact(html, text, name);
    write_fact(html, run->steps > 0 ? ek_page_seconds(run->step_seconds, text) : "\342\200\223",
               "median step");
    if (run->largest_batch > 0) {
        snprintf(text, sizeof text, "%" PRId64, run->largest_batch);
        write_fact(html, text, "largest batch");
    }
    fputs("</dl>\n", html->page);
}

static void write_time(const ek_html *html, const ek_html_run *run)
{
    char texts[EK_HTML_TIMES][32];
    ek_page_part parts[EK_HTML_TIMES];

    if (!ek_html_time_parts(run, -1, parts, texts)) {
        fputs("<p class=\"faint small\">No step has been finished: nothing is known of its time."
              "</p>\n",
              html->page);
        return;
    }
    fputs("<div class=\"track\" aria-hidden=\"true\">", html->page);
    ek_page_parts(html->page, 1, parts, EK_HTML_TIMES);
    fputs("</div>\n<div class=\"legend\">", html->page);
    for (int t = 0; t < EK_HTML_TIMES; t++)
        fprintf(html->page, "<span><i class=\"%s\"></i>%s %s</span>\n", parts[t].style,
                parts[t].name, texts[t]);
    fputs("</div>\n", html->page);
}

static void write_card(const ek_html *html, const ek_html_run *run)
{
    char text[32];

    fputs("<section>\n<h2>", html->page);
    ek_page_text(html->page, run->name);
    fputs("</h2>\n", html->page);
    write_verdict(html, run);
    write_facts(html, run);
    write_time(html, run);
    fprintf(html->page, "<p class=\"faint small last\">%d device%s, %" PRId64 " step%s in %s</p>\n",
            run->device_count, run->device_count == 1 ? "" : "s", run->steps,
            run->steps == 1 ? "" : "s", ek_page_seconds(run->seconds, text));
    fputs("</section>\n", html->page);
}

/* ---- bars ---- */

typedef double measure(const ek_html_run *run, char text[32]);

static double imbalance_of(const ek_html_run *run, char text[32])
{
    snprintf(text, 32, "%.2f", run->imbalance);
    return run->imbalance;
}

static double peak_of(const ek_html_run *run, char text[32])
{
    double peak = run->fullest < 0 ? 0 : (double)run->devices[run->fullest].peak.in_use;

    ek_page_bytes(peak, text);
    return peak;
}

static double step_of(const ek_html_run *run, char text[32])
{
    ek_page_seconds(run->step_seconds, text);
    return run->step_seconds;
}

static double batch_of(const ek_html_run *run, char text[32])
{
    snprintf(text, 32, run->largest_batch > 0 ? "%" PRId64 : "not known", run->largest_batch);
    return (double)run->largest_batch;
}

static void write_bars(const ek_html *html, const char *title, const char *note, measure *value)
{
    enum { MOST = 64 };
    ek_page_bar bars[MOST];
    char texts[MOST][32];
    int count = html->count < MOST ? html->count : MOST;

    for (int r = 0; r < count; r++) {
        double length = value(&html->runs[r], texts[r]);
        bars[r] = (ek_page_bar){html->runs[r].name, texts[r], length};
    }
    ek_page_bars(html->page, title, note, bars, count);
}

void ek_html_summary(const ek_html *html)
{
    bool batches = false, steps = false;

    fputs("<div class=\"grid cards\">\n", html->page);
    for (int r = 0; r < html->count; r++) {
        write_card(html, &html->runs[r]);
        batches = batches || html->runs[r].largest_batch > 0;
        steps = steps || html->runs[r].steps > 0;
    }
    fputs("</div>\n", html->page);
    if (html->count < 2)
        return; /* the card says it all */
    fputs("<div class=\"grid bars\">\n", html->page);
    write_bars(html, "Fullest device", "Its peak; shorter is better.", peak_of);
    write_bars(html, "Imbalance", "Fullest over mean; 1 is level.", imbalance_of);
    if (steps)
        write_bars(html, "Median step", "Shorter is better.", step_of);
    if (batches)
        write_bars(html, "Largest batch", "Longer is better.", batch_of);
    fputs("</div>\n", html->page);
}
