/* html_timeline.c: the last step: a lane per device, its spans as boxes, inner ones below. */
#include "report/html.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A box at least this much of the common scale has room for its label; the style cuts it. */
static const double room_for_text = 0.025;

enum { SUMS = 15 }; /* rows of the table of operations */

static double longest_step(const ek_html *html)
{
    double longest = 0;

    for (int r = 0; r < html->count; r++)
        longest = fmax(longest, html->runs[r].span_count > 0 ? html->runs[r].span_seconds : 0);
    return longest;
}

/* Where "backward of conv2d" would be cut at 1400 pixels, what it was the backward of. */
static const char *short_label(const char *label, double width)
{
    const double letter = 6.5 / 1150; /* of the width */
    const char *of = strstr(label, " of ");

    return of && (double)strlen(label) * letter > width ? of + strlen(" of ") : label;
}

static void write_box(const ek_html *html, const ek_html_box *box, double seconds, double scale)
{
    char text[32];
    double left = ek_html_share(box->begin, seconds);
    double width = fmin(ek_html_share(box->end - box->begin, seconds), 1 - left);

    fprintf(html->page, "<i class=\"%s%d d%d\" style=\"left:%.3f%%;width:%.3f%%\" title=\"",
            box->frame ? "f k" : "k", (int)box->kind, box->depth, 100 * left, 100 * width);
    if (box->spans > 1)
        ek_html_put(html, "%d short spans, the longest %s; ", box->spans, box->label);
    else
        ek_html_put(html, "%s: ", box->label);
    fprintf(html->page, "%s\">", ek_page_seconds(box->end - box->begin, text));
    if (width * seconds >= room_for_text * scale && box->spans == 1) {
        fputs("<em>", html->page);
        ek_page_text(html->page, short_label(box->label, width * seconds / scale));
        fputs("</em>", html->page);
    }
    fputs("</i>\n", html->page);
}

static void write_lane(const ek_html *html, const ek_html_run *run, const ek_html_layout *layout,
                       int index, int *box, double seconds)
{
    const ek_html_lane *lane = &layout->lanes[index];
    bool known = lane->device >= 0 && lane->device < run->device_count;

    fprintf(html->page, "<div class=\"of\"><b>%s", known ? run->names[lane->device] : "host");
    if (!lane->alone)
        fprintf(html->page, " <span class=\"faint\">thread %d</span>", lane->thread);
    fprintf(html->page, "</b><div class=\"lane\" style=\"height:%.2frem;width:%.3f%%\">\n",
            0.2 + 1.2 * lane->depth, 100 * ek_html_share(run->span_seconds, seconds));
    for (; *box < layout->box_count && layout->boxes[*box].lane == index; ++*box)
        write_box(html, &layout->boxes[*box], run->span_seconds, seconds);
    fputs("</div></div>\n", html->page);
}

/* Times below the lanes: at each, how much of the common scale has passed. */
static void write_times(const ek_html *html, double seconds)
{
    enum { TICKS = 4 };
    char text[32];

    fputs("<div class=\"times\">", html->page);
    for (int t = 0; t <= TICKS; t++)
        fprintf(html->page, "<span>%s</span>", ek_page_seconds(seconds * t / TICKS, text));
    fputs("</div>\n", html->page);
}

static void write_what_is_left_out(const ek_html *html, const ek_html_layout *layout)
{
    if (layout->merged > 0)
        fprintf(html->page,
                "<p class=\"faint small last\">%d spans are too short to be seen alone and are "
                "drawn with their neighbours.</p>\n",
                layout->merged);
    if (layout->hidden > 0)
        fprintf(html->page,
                "<p class=\"faint small last\">%d spans are nested too deeply, or in threads too "
                "many, to be drawn.</p>\n",
                layout->hidden);
}

/* ---- operations ---- */

static void write_sum(const ek_html *html, const char *label, const char *kind, int64_t count,
                      double seconds, double whole)
{
    char text[32];

    fputs("<tr><th scope=\"row\">", html->page);
    ek_page_text(html->page, label);
    fprintf(html->page,
            "</th><td>%s</td><td>%" PRId64 "</td><td>%s</td><td>%.1f&nbsp;%%</td></tr>\n", kind,
            count, ek_page_seconds(seconds, text), 100 * ek_html_share(seconds, whole));
}

static int write_sums(const ek_html *html, const ek_html_run *run)
{
    static const char *const kinds[EK_SPAN_KINDS] = {"computing", "communicating", "waiting"};
    ek_html_sum *sums;
    int count, rc = ek_html_sums(run, &sums, &count), others = 0;
    int64_t spans = 0;
    double whole = 0, seconds = 0;

    if (rc < 0)
        return rc;
    for (int i = 0; i < count; i++)
        whole += sums[i].seconds;
    fputs("<details>\n<summary>The same in numbers</summary>\n<div class=\"wide\" tabindex=\"0\" "
          "role=\"region\" aria-label=\"Operations of the last step\">\n<table>\n<caption>",
          html->page);
    ek_html_put(html,
                "%s: time of the last step's operations on all devices, less what others "
                "within them took.",
                run->name);
    fputs("</caption>\n<tr><th scope=\"col\">operation</th><th scope=\"col\">kind</th>"
          "<th scope=\"col\">times</th><th scope=\"col\">time</th><th scope=\"col\">share</th>"
          "</tr>\n",
          html->page);
    for (int i = 0; i < count; i++) {
        if (i < SUMS) {
            write_sum(html, sums[i].label, kinds[sums[i].kind], sums[i].count, sums[i].seconds,
                      whole);
        } else {
            others++;
            spans += sums[i].count;
            seconds += sums[i].seconds;
        }
    }
    if (others > 0)
        write_sum(html, "others", "", spans, seconds, whole);
    fputs("</table>\n</div>\n</details>\n", html->page);
    free(sums);
    return 0;
}

/* ---- the section ---- */

static int write_run(const ek_html *html, const ek_html_run *run, double seconds)
{
    ek_html_layout layout;
    char text[32];
    int box = 0, rc;

    fputs("<h3>", html->page);
    ek_page_text(html->page, run->name);
    if (run->span_count == 0) {
        fprintf(html->page, "</h3>\n<p class=\"faint\">%s</p>\n",
                run->steps == 0 ? "No step has been finished."
                                : "Nothing is known of what its last step did.");
        return 0;
    }
    fprintf(html->page, ": %s</h3>\n", ek_page_seconds(run->span_seconds, text));
    rc = ek_html_lay_out(run, seconds, &layout);
    if (rc < 0)
        return rc;
    fputs("<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"", html->page);
    ek_html_put(html, "Timeline of %s", run->name);
    fputs("\">\n<div class=\"lanes\" role=\"img\" aria-label=\"", html->page);
    ek_html_put(html, "%d spans of the last step of %s in %d lanes; the table below sums them up",
                run->span_count, run->name, layout.lane_count);
    fputs("\">\n", html->page);
    for (int l = 0; l < layout.lane_count; l++)
        write_lane(html, run, &layout, l, &box, seconds);
    write_times(html, seconds);
    fputs("</div>\n</div>\n", html->page);
    write_what_is_left_out(html, &layout);
    ek_html_layout_free(&layout);
    return write_sums(html, run);
}

int ek_html_timeline(const ek_html *html)
{
    double seconds = longest_step(html);

    fputs("<section>\n<h2>The last step</h2>\n", html->page);
    if (seconds > 0) {
        fprintf(
            html->page,
            "<p class=\"faint small\">A lane per device. What happened within an operation lies "
            "below it, under a frame where that was most of it; where nothing is drawn the "
            "device waited.%s</p>\n",
            html->count > 1 ? " All with one scale of time." : "");
        ek_html_kinds(html);
        for (int r = 0; r < html->count; r++) {
            int rc = write_run(html, &html->runs[r], seconds);
            if (rc < 0)
                return rc;
        }
    } else {
        fputs("<p class=\"faint\">Nothing is known of what a step did.</p>\n", html->page);
    }
    fputs("</section>\n", html->page);
    return 0;
}
