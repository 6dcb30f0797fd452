/* html.c: the report as one page: reads the reports, writes the sections in their order. */
#include "report/html.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

#include "core/file.h"
#include "core/locale.h"
#include "core/thread.h"

/* ---- pieces ---- */

void ek_html_put(const ek_html *html, const char *format, ...)
{
    char text[1024];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ek_page_text(html->page, text);
}

static double known(double value)
{
    return isfinite(value) && value > 0 ? value : 0;
}

double ek_html_share(double part, double whole)
{
    double share = part / whole;

    return share > 0 ? fmin(share, 1) : 0; /* 0 of 0 is none */
}

char *ek_html_percent(double share, char text[32])
{
    int decimals = share > 0 && share < 0.00995 ? 1 : 0;

    snprintf(text, 32, "%.*f\302\240%%", decimals, 100 * share);
    return text;
}

bool ek_html_time_parts(const ek_html_run *run, int device, ek_page_part parts[EK_HTML_TIMES],
                        char texts[EK_HTML_TIMES][32])
{
    static const char *const names[EK_HTML_TIMES] = {"computing", "communicating", "waiting"};
    static const char *const styles[EK_HTML_TIMES] = {"k0", "k1", "k2"};
    double sums[EK_HTML_TIMES] = {0}, whole = 0;

    for (int d = 0; d < run->device_count; d++) {
        if (device >= 0 && d != device)
            continue;
        const ek_device_report *one = &run->devices[d];
        sums[0] += known(one->computing);
        sums[1] += known(one->communicating);
        sums[2] += known(one->waiting);
    }
    for (int t = 0; t < EK_HTML_TIMES; t++)
        whole += sums[t];
    for (int t = 0; t < EK_HTML_TIMES; t++) {
        double share = ek_html_share(sums[t], whole);
        ek_html_percent(share, texts[t]);
        parts[t] = (ek_page_part){names[t], styles[t], texts[t], share};
    }
    return whole > 0;
}

bool ek_html_shows_capacity(const ek_html *html, uint64_t capacity)
{
    return capacity > 0 && (double)capacity <= 3 * (double)html->most;
}

int ek_html_main_category(const ek_device_report *device)
{
    int largest = 0;

    for (int c = 1; c < EK_MEMORY_CATEGORIES; c++)
        if (device->peak.now[c] > device->peak.now[largest])
            largest = c;
    return largest;
}

/* ---- reading ---- */

static void free_runs(ek_html_run *runs, int count)
{
    for (int r = 0; r < count; r++) {
        free(runs[r].devices);
        free(runs[r].names);
    }
    free(runs);
}

static int read_devices(ek_html_run *run)
{
    run->devices = ek_calloc((size_t)run->device_count + 1, sizeof *run->devices);
    run->names = ek_calloc((size_t)run->device_count + 1, sizeof *run->names);
    if (!run->devices || !run->names)
        return EK_E_NO_MEMORY;
    run->fullest = -1;
    for (int d = 0; d < run->device_count; d++) {
        ek_device_report *device = &run->devices[d];
        EK_TRY(ek_report_device(run->report, d, device));
        ek_device_name(device->device, run->names[d]);
        device->peak.seconds = known(device->peak.seconds);
        if (device->peak.in_use > (run->fullest < 0 ? 0 : run->devices[run->fullest].peak.in_use))
            run->fullest = d;
    }
    return 0;
}

static int read_run(const ek_report *report, ek_html_run *run)
{
    run->report = report;
    run->name = ek_report_name(report);
    run->device_count = ek_report_device_count(report);
    run->steps = ek_report_step_count(report);
    run->largest_batch = ek_report_largest_batch(report);
    run->seconds = known(ek_report_seconds(report));
    run->step_seconds = known(ek_report_step_seconds(report));
    run->imbalance = known(ek_report_imbalance(report));
    run->spans = ek_report_spans(report, &run->span_count, &run->span_seconds);
    run->span_seconds = known(run->span_seconds);
    if (run->span_count < 0)
        return run->span_count;
    if (!run->spans || run->span_seconds <= 0)
        run->span_count = 0;
    return read_devices(run);
}

/* ---- the page ---- */

typedef struct page_job {
    ek_html html;
    const ek_report_page *page;
} page_job;

static int write_sections(const ek_html *html)
{
    if (html->count == 0) {
        fputs("<section>\n<p>No way of training was reported.</p>\n</section>\n", html->page);
        return 0;
    }
    ek_html_summary(html);
    ek_html_peaks(html);
    EK_TRY(ek_html_memory(html));
    ek_html_times(html);
    EK_TRY(ek_html_timeline(html));
    ek_html_numbers(html);
    return 0;
}

static int write_body(FILE *stream, page_job *job)
{
    const ek_report_page *page = job->page;

    job->html.page = stream;
    ek_page_begin(stream, page && page->title ? page->title : "Memory and time of training");
    if (page && page->subtitle) {
        fputs("<p class=\"faint\">", stream);
        ek_page_text(stream, page->subtitle);
        fputs("</p>\n", stream);
    }
    fputs("<main>\n", stream);
    EK_TRY(write_sections(&job->html));
    if (page && page->more)
        page->more(stream, page->user);
    fputs("</main>\n", stream);
    ek_page_end(stream);
    return 0;
}

/* Style sheets and drawings want decimal points whatever the program's language has. */
static int write_page(FILE *stream, void *user)
{
    locale_t before = ek_locale_begin();
    int status = write_body(stream, user);
    ek_locale_end(before);
    return status;
}

static int check(const char *path, ek_report *const *reports, int count)
{
    if (!path || !*path)
        return EK_FAIL(EK_E_INVALID, "report_html: there is no path");
    if (count < 0 || (count > 0 && !reports))
        return EK_FAIL(EK_E_INVALID, "report_html: %s: %d reports%s", path, count,
                       count < 0 ? "" : ", but no list of them");
    for (int r = 0; r < count; r++)
        if (!reports[r])
            return EK_FAIL(EK_E_INVALID, "report_html: %s: report %d of %d is NULL", path, r,
                           count);
    return 0;
}

int ek_report_html_with(const char *path, ek_report *const *reports, int count,
                        const ek_report_page *page)
{
    EK_TRY(check(path, reports, count));
    ek_html_run *runs = ek_calloc((size_t)count + 1, sizeof *runs);
    if (!runs)
        return EK_E_NO_MEMORY;
    page_job job = {.html = {.runs = runs, .count = count}, .page = page};
    int status = 0;
    for (int r = 0; r < count && status == 0; r++) {
        status = read_run(reports[r], &runs[r]);
        if (status == 0 && runs[r].fullest >= 0) {
            uint64_t peak = runs[r].devices[runs[r].fullest].peak.in_use;
            job.html.most = peak > job.html.most ? peak : job.html.most;
        }
    }
    if (status == 0)
        status = ek_file_replace_text("report_html", path, write_page, &job);
    free_runs(runs, count);
    return status;
}

int ek_report_html(const char *path, ek_report *const *reports, int count)
{
    return ek_report_html_with(path, reports, count, NULL);
}
