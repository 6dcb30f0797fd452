/* html_numbers.c: what the charts show of devices and ways of training, as tables. */
#include "report/html.h"

#include <inttypes.h>

static const double mebibyte = 1 << 20;

static void begin_table(const ek_html *html, const char *title, const char *caption)
{
    fprintf(html->page,
            "<h3>%s</h3>\n<div class=\"wide\" tabindex=\"0\" role=\"region\" "
            "aria-label=\"%s\">\n<table>\n<caption>%s</caption>\n<tr>",
            title, title, caption);
}

static void end_table(const ek_html *html)
{
    fputs("</table>\n</div>\n", html->page);
}

static void write_heads(const ek_html *html, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        fprintf(html->page, "<th scope=\"col\">%s</th>", names[i]);
}

static void begin_row(const ek_html *html, const ek_html_run *run, const char *device)
{
    fputs("<tr><th scope=\"row\">", html->page);
    ek_page_text(html->page, run->name);
    fputs("</th>", html->page);
    if (device)
        fprintf(html->page, "<td>%s</td>", device);
}

/* ---- the tables ---- */

static void write_ways(const ek_html *html)
{
    static const char *const heads[] = {"name",        "devices",      "steps",
                                        "imbalance",   "fullest MiB",  "median step ms",
                                        "all steps s", "largest batch"};

    begin_table(html, "Ways of training", "Fullest: the peak of the fullest device.");
    write_heads(html, heads, (int)(sizeof heads / sizeof *heads));
    fputs("</tr>\n", html->page);
    for (int r = 0; r < html->count; r++) {
        const ek_html_run *run = &html->runs[r];
        double peak = run->fullest < 0 ? 0 : (double)run->devices[run->fullest].peak.in_use;
        begin_row(html, run, NULL);
        fprintf(html->page,
                "<td>%d</td><td>%" PRId64
                "</td><td>%.3f</td><td>%.2f</td><td>%.3f</td><td>%.3f</td><td>",
                run->device_count, run->steps, run->imbalance, peak / mebibyte,
                1000 * run->step_seconds, run->seconds);
        if (run->largest_batch > 0)
            fprintf(html->page, "%" PRId64, run->largest_batch);
        fputs("</td></tr>\n", html->page);
    }
    end_table(html);
}

static void write_memory_row(const ek_html *html, const ek_html_run *run, int d)
{
    const ek_device_report *device = &run->devices[d];

    begin_row(html, run, run->names[d]);
    fprintf(html->page, "<td>%.2f</td>", (double)device->peak.in_use / mebibyte);
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        fprintf(html->page, "<td>%.2f</td>", (double)device->peak.now[c] / mebibyte);
    fprintf(html->page, "<td>%.2f</td><td>", (double)device->reserved_peak / mebibyte);
    if (device->capacity > 0)
        fprintf(html->page, "%.2f", (double)device->capacity / mebibyte);
    if (device->peak.in_use > 0)
        fprintf(html->page, "</td><td>%" PRId64 "</td><td>%.3f</td><td class=\"text\">",
                device->peak.step, device->peak.seconds);
    else
        fputs("</td><td></td><td></td><td class=\"text\">", html->page);
    ek_page_text(html->page, device->peak_operation);
    fputs("</td></tr>\n", html->page);
}

static void write_memory(const ek_html *html)
{
    static const char *const before[] = {"name", "device", "peak"};
    static const char *const behind[] = {"reserved", "capacity", "step", "seconds"};

    begin_table(html, "Memory at each device's peak",
                "In MiB; the categories add up to the peak; reserved counts cached blocks too.");
    write_heads(html, before, (int)(sizeof before / sizeof *before));
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        fprintf(html->page, "<th scope=\"col\">%s</th>",
                ek_memory_category_name((ek_memory_category)c));
    write_heads(html, behind, (int)(sizeof behind / sizeof *behind));
    fputs("<th scope=\"col\" class=\"text\">during</th></tr>\n", html->page);
    for (int r = 0; r < html->count; r++)
        for (int d = 0; d < html->runs[r].device_count; d++)
            write_memory_row(html, &html->runs[r], d);
    end_table(html);
}

static void write_time(const ek_html *html)
{
    static const char *const heads[] = {"name", "device", "computing", "communicating", "waiting"};

    begin_table(html, "Time of each device", "In seconds, over all finished steps.");
    write_heads(html, heads, (int)(sizeof heads / sizeof *heads));
    fputs("</tr>\n", html->page);
    for (int r = 0; r < html->count; r++) {
        const ek_html_run *run = &html->runs[r];
        for (int d = 0; d < run->device_count; d++) {
            const ek_device_report *device = &run->devices[d];
            const double times[] = {device->computing, device->communicating, device->waiting};
            begin_row(html, run, run->names[d]);
            for (int t = 0; t < 3; t++)
                fprintf(html->page, "<td>%.3f</td>", times[t] > 0 ? times[t] : 0);
            fputs("</tr>\n", html->page);
        }
    }
    end_table(html);
}

void ek_html_numbers(const ek_html *html)
{
    fputs("<section>\n<h2>The numbers</h2>\n", html->page);
    write_ways(html);
    write_memory(html);
    write_time(html);
    fputs("</section>\n", html->page);
}
