/* live.c: what a report shows while the run goes on: curves of scalars, and the page that is
 * rewritten. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/json.h"
#include "core/thread.h"
#include "report/collect.h"

/* ---- curves ---- */

const ek_curve *ek_report_curves(const ek_report *report)
{
    return report->curves;
}

/* Returns the place of the curve of this name in the list, or the list's end. */
static ek_curve **live_find_curve(ek_report *report, const char *name)
{
    ek_curve **curve = &report->curves;
    while (*curve && strcmp((*curve)->name, name) != 0)
        curve = &(*curve)->next;
    return curve;
}

int ek_report_scalar(ek_report *report, const char *name, int64_t step, double value)
{
    EK_TRY(ek_check_handle("report_scalar", "the report", report));
    if (!name || !*name || !ek_utf8_is_valid(name))
        return EK_FAIL(EK_E_INVALID, "report_scalar: the name is %s",
                       !name    ? "NULL"
                       : !*name ? "empty"
                                : "not UTF-8");
    ek_curve **curve = live_find_curve(report, name);
    if (!*curve && !(*curve = ek_curve_new(name)))
        return ek_error_pending();
    const int64_t last = (*curve)->count ? (*curve)->points[(*curve)->count - 1].step : step;
    if (step < last)
        return EK_FAIL(EK_E_INVALID, "report_scalar: %s: step %lld after step %lld", name,
                       (long long)step, (long long)last);
    ek_curve_add(*curve, step, value);
    return 0;
}

/* ---- the page ---- */

static void live_clear(ek_live *live)
{
    free(live->path);
    free(live->title);
    free(live->subtitle);
    *live = (ek_live){0};
}

/* Copies the description of a page. */
static int live_set(ek_live *live, const char *path, const ek_report_page *page)
{
    if (page)
        live->page = *page;
    if (!(live->page.every > 0))
        live->page.every = 30;
    live->path = ek_strdup(path);
    live->title = live->page.title ? ek_strdup(live->page.title) : NULL;
    live->subtitle = live->page.subtitle ? ek_strdup(live->page.subtitle) : NULL;
    if (!live->path || !live->title != !live->page.title || !live->subtitle != !live->page.subtitle)
        return ek_error_pending();
    live->page.title = live->title;
    live->page.subtitle = live->subtitle;
    return 0;
}

/* Writes the page. The time of writing belongs to no step. */
static int live_write(ek_report *report)
{
    ek_live *live = &report->live;
    int rc = ek_report_write_page("report_live", live->path, report, &live->page, true);
    live->written = ek_clock_ns();
    if (report->collecting)
        ek_report_restart_step(report);
    return rc;
}

int ek_live_step(ek_report *report)
{
    const ek_live *live = &report->live;
    const double seconds = 1e-9 * (double)(ek_clock_ns() - live->written);
    return live->path && seconds >= live->page.every ? live_write(report) : 0;
}

int ek_live_end(ek_report *report)
{
    report->live.page.every = 0;
    int rc = report->live.path && !ek_forked() ? live_write(report) : 0;
    live_clear(&report->live);
    return rc;
}

int ek_report_live(ek_report *report, const char *path, const ek_report_page *page)
{
    EK_TRY(ek_check_handle("report_live", "the report", report));
    if (!path || !*path)
        return EK_FAIL(EK_E_INVALID, "report_live: there is no path");
    if (page && !(page->every >= 0 && isfinite(page->every)))
        return EK_FAIL(EK_E_INVALID, "report_live: every %g seconds", page->every);
    if (!report->collecting)
        return EK_FAIL(EK_E_STATE, "report_live: the report has been stopped");
    EK_TRY(ek_fork_check());
    if (report->rank != 0)
        return 0;
    ek_live live = {0};
    int rc = live_set(&live, path, page);
    if (rc < 0) {
        live_clear(&live);
        return rc;
    }
    live_clear(&report->live);
    report->live = live;
    return live_write(report);
}
