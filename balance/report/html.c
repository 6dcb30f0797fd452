/* html.c: the report as one page: page.html with its {{marks}} replaced by texts and by the
 * reports' JSON, which its script draws. */
#include <string.h>
#include <time.h>

#include "core/file.h"
#include "core/locale.h"
#include "core/thread.h"
#include "report/report.h"

extern const unsigned char ek_page_html[]; /* page.html as it is, and a NUL */

/* ---- the page ---- */

static void page_text(FILE *page, const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (strchr("<>&\"'", *c))
            fprintf(page, "&#%d;", *c);
        else /* pages may not hold control characters */
            fputc((*c < 0x20 && *c != '\n') || *c == 0x7f ? ' ' : *c, page);
    }
}

/* Writes page.html from `from` to the next `mark`, which exists. Returns the text after the mark.
 */
static const char *page_write_until(FILE *page, const char *from, const char *mark)
{
    const char *end = strstr(from, mark);
    fwrite(from, 1, (size_t)(end - from), page);
    return end + strlen(mark);
}

static void page_begin(FILE *page, const char *title, const char *subtitle)
{
    const char *rest = (const char *)ek_page_html;
    for (int i = 0; i < 2; i++) { /* the title occurs in the head and in the heading */
        rest = page_write_until(page, rest, "{{title}}");
        page_text(page, title);
    }
    rest = page_write_until(page, rest, "{{subtitle}}");
    if (subtitle) {
        fputs("<p class=\"faint\">", page);
        page_text(page, subtitle);
        fputs("</p>\n", page);
    }
    page_write_until(page, rest, "{{more}}");
}

/* ---- the file ---- */

typedef struct page_job {
    ek_report *const *reports;
    int count;
    ek_report_page page;
    bool live; /* the page tells when it was written */
} page_job;

static int page_end(FILE *page, const page_job *job)
{
    const char *more = "{{more}}", *rest = strstr((const char *)ek_page_html, more) + strlen(more);
    rest = page_write_until(page, rest, "{{written}}");
    if (job->live) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        fprintf(page, "%lld", (long long)now.tv_sec);
    }
    rest = page_write_until(page, rest, "{{every}}");
    if (job->page.every > 0)
        fprintf(page, "%.0f", job->page.every < 1 ? 1 : job->page.every);
    rest = page_write_until(page, rest, "{{report}}");
    EK_TRY(ek_report_put(page, true, job->reports, job->count));
    fputs(rest, page);
    return 0;
}

static int page_write(FILE *stream, void *user)
{
    const page_job *job = user;
    const ek_report_page *page = &job->page;
    page_begin(stream, page->title ? page->title : "Memory and time of training", page->subtitle);
    if (page->more) {
        /* Style sheets and drawings need decimal points in any locale. */
        locale_t before = ek_locale_begin();
        page->more(stream, page->user);
        ek_locale_end(before);
    }
    return page_end(stream, job);
}

static int page_check(const char *what, const char *path, ek_report *const *reports, int count)
{
    if (!path || !*path)
        return EK_FAIL(EK_E_INVALID, "%s: there is no path", what);
    if (count < 0 || (count > 0 && !reports))
        return EK_FAIL(EK_E_INVALID, "%s: %s: %d reports%s", what, path, count,
                       count < 0 ? "" : ", but no list of them");
    for (int r = 0; r < count; r++)
        if (!reports[r])
            return EK_FAIL(EK_E_INVALID, "%s: %s: report %d of %d is NULL", what, path, r, count);
        else
            EK_TRY(ek_check_alive(what, "a report", reports[r]));
    return 0;
}

static int page_make(const char *what, const char *path, ek_report *const *reports, int count,
                     const ek_report_page *page)
{
    page_job job = {.reports = reports, .count = count, .page = page ? *page : (ek_report_page){0}};
    job.live = job.page.every > 0;
    int writes = ek_report_begin_writing(reports, count, page_check(what, path, reports, count));
    if (writes < 0)
        return writes;
    return ek_report_end_writing(reports, count,
                                 writes ? ek_file_replace_text(what, path, page_write, &job) : 0);
}

int ek_report_write_page(const char *what, const char *path, ek_report *report,
                         const ek_report_page *page, bool live)
{
    page_job job = {.reports = &report, .count = 1, .page = *page, .live = live};
    return ek_file_replace_text(what, path, page_write, &job);
}

int ek_report_html_page(const char *path, ek_report *const *reports, int count,
                        const ek_report_page *page)
{
    return page_make("report_html_page", path, reports, count, page);
}

int ek_report_html(const char *path, ek_report *const *reports, int count)
{
    return page_make("report_html", path, reports, count, NULL);
}
