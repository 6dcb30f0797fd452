/* html_peaks.c: a bar per device: what its peak was made of, and what its time went into. */
#include "report/html.h"

#include <inttypes.h>
#include <math.h>

/* The longest that bars reach: the largest peak, or capacity that is shown. */
static double scale_of(const ek_html *html)
{
    double scale = (double)html->most;

    for (int r = 0; r < html->count; r++) {
        for (int d = 0; d < html->runs[r].device_count; d++) {
            uint64_t capacity = html->runs[r].devices[d].capacity;
            if (ek_html_shows_capacity(html, capacity))
                scale = fmax(scale, (double)capacity);
        }
    }
    return scale;
}

/* ---- memory ---- */

static void write_legend(const ek_html *html)
{
    bool limits = false;

    fputs("<div class=\"legend\">\n", html->page);
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        fprintf(html->page, "<span><i class=\"%s\"></i>%s</span>\n", ek_page_colour(c),
                ek_memory_category_name((ek_memory_category)c));
    for (int r = 0; r < html->count; r++)
        for (int d = 0; d < html->runs[r].device_count; d++)
            limits = limits || ek_html_shows_capacity(html, html->runs[r].devices[d].capacity);
    if (limits)
        fputs("<span><i class=\"edge\"></i>up to the device's capacity</span>\n", html->page);
    fputs("</div>\n", html->page);
}

/* For who can't see the bar: all that it shows. */
static void write_label(const ek_html *html, const ek_device_report *device, const char *name)
{
    char text[32];

    ek_html_put(html, "%s at its peak: %s", name, ek_page_bytes((double)device->peak.in_use, text));
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        if (device->peak.now[c] > 0)
            ek_html_put(html, ", %s %s", ek_memory_category_name((ek_memory_category)c),
                        ek_page_bytes((double)device->peak.now[c], text));
}

static void write_bar(const ek_html *html, const ek_device_report *device, double scale)
{
    ek_page_part parts[EK_MEMORY_CATEGORIES];
    char texts[EK_MEMORY_CATEGORIES][32];
    double peak = (double)device->peak.in_use;

    if (ek_html_shows_capacity(html, device->capacity))
        fprintf(html->page, "<div class=\"room edge\" style=\"width:%.2f%%\"></div>",
                100 * ek_html_share((double)device->capacity, scale));
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        parts[c] = (ek_page_part){ek_memory_category_name((ek_memory_category)c), ek_page_colour(c),
                                  ek_page_bytes((double)device->peak.now[c], texts[c]),
                                  ek_html_share((double)device->peak.now[c], peak)};
    ek_page_parts(html->page, ek_html_share(peak, scale), parts, EK_MEMORY_CATEGORIES);
}

static void write_moment(const ek_html *html, const ek_device_report *device)
{
    char text[32];

    if (device->peak.in_use == 0) {
        fputs("held nothing", html->page);
        return;
    }
    if (device->capacity > 0)
        ek_html_put(html, "%s full; ",
                    ek_html_percent(ek_html_share((double)device->peak.in_use,
                                                  (double)device->capacity),
                                    text));
    ek_html_put(html, "step %" PRId64 ", %s", device->peak.step,
                ek_page_seconds(device->peak.seconds, text));
    if (device->peak_operation[0])
        ek_html_put(html, ", during %s", device->peak_operation);
}

static void write_amount(const ek_html *html, const ek_device_report *device)
{
    char text[32];

    fprintf(html->page, "%s", ek_page_bytes((double)device->peak.in_use, text));
    if (device->capacity > 0)
        fprintf(html->page, " <span class=\"faint\">of&nbsp;%s</span>",
                ek_page_bytes((double)device->capacity, text));
}

static void write_device(const ek_html *html, const ek_html_run *run, int d, double scale)
{
    const ek_device_report *device = &run->devices[d];

    fprintf(html->page,
            "<div class=\"row\"><span%s>%s</span><div class=\"track open\" role=\"img\" "
            "aria-label=\"",
            d == run->fullest ? " class=\"full\"" : "", run->names[d]);
    write_label(html, device, run->names[d]);
    fputs("\">", html->page);
    write_bar(html, device, scale);
    fputs("</div><span>", html->page);
    write_amount(html, device);
    fputs("</span><span class=\"note\">", html->page);
    write_moment(html, device);
    fputs("</span></div>\n", html->page);
}

void ek_html_peaks(const ek_html *html)
{
    double scale = scale_of(html);

    fputs("<section>\n<h2>Peak memory per device</h2>\n", html->page);
    if (html->most == 0) {
        fputs("<p class=\"faint\">No device held memory.</p>\n</section>\n", html->page);
        return;
    }
    fputs("<p class=\"faint small\">What each device held when it was fullest, and when "
          "that was.</p>\n",
          html->page);
    write_legend(html);
    for (int r = 0; r < html->count; r++) {
        fputs("<h3>", html->page);
        ek_html_put(html, "%s: imbalance %.2f", html->runs[r].name, html->runs[r].imbalance);
        fputs("</h3>\n", html->page);
        for (int d = 0; d < html->runs[r].device_count; d++)
            write_device(html, &html->runs[r], d, scale);
    }
    fputs("</section>\n", html->page);
}

/* ---- time ---- */

void ek_html_kinds(const ek_html *html)
{
    fputs("<div class=\"legend\">\n<span><i class=\"k0\"></i>computing</span>\n"
          "<span><i class=\"k1\"></i>communicating</span>\n"
          "<span><i class=\"k2\"></i>waiting</span>\n</div>\n",
          html->page);
}

static void write_time_row(const ek_html *html, const ek_html_run *run, int d)
{
    char texts[EK_HTML_TIMES][32];
    ek_page_part parts[EK_HTML_TIMES];

    if (!ek_html_time_parts(run, d, parts, texts))
        return;
    fprintf(html->page,
            "<div class=\"row\"><span>%s</span><div class=\"track\" role=\"img\" "
            "aria-label=\"%s: computing %s, communicating %s, waiting %s\">",
            run->names[d], run->names[d], texts[0], texts[1], texts[2]);
    ek_page_parts(html->page, 1, parts, EK_HTML_TIMES);
    fprintf(html->page, "</div><span>%s busy</span></div>\n",
            ek_html_percent(1 - parts[2].share, texts[0]));
}

void ek_html_times(const ek_html *html)
{
    char texts[EK_HTML_TIMES][32];
    ek_page_part parts[EK_HTML_TIMES];
    bool any = false;

    for (int r = 0; r < html->count; r++)
        any = any || ek_html_time_parts(&html->runs[r], -1, parts, texts);
    fputs("<section>\n<h2>Time per device</h2>\n", html->page);
    if (!any) {
        fputs("<p class=\"faint\">No step has been finished.</p>\n</section>\n", html->page);
        return;
    }
    fputs("<p class=\"faint small\">Of all finished steps. A device that waits could have taken "
          "more of the batch.</p>\n",
          html->page);
    ek_html_kinds(html);
    fputs("<div class=\"pair\">\n", html->page);
    for (int r = 0; r < html->count; r++) {
        if (!ek_html_time_parts(&html->runs[r], -1, parts, texts))
            continue;
        fputs("<div><h3>", html->page);
        ek_page_text(html->page, html->runs[r].name);
        fputs("</h3>\n", html->page);
        for (int d = 0; d < html->runs[r].device_count; d++)
            write_time_row(html, &html->runs[r], d);
        fputs("</div>\n", html->page);
    }
    fputs("</div>\n</section>\n", html->page);
}
