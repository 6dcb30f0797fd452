/* html_memory.c: memory over time. Per way of training a line per device, and what the fullest
 * device was filled with; all with one vertical scale, so that they compare. */
#include "report/html.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "core/thread.h"

/* Points of a line at most, and of all lines of one plot. */
enum { POINTS = 400, ALL_POINTS = 8000, ROWS = 40 };

/* ---- reading ---- */

/* A device's samples, thinned: the fullest of each stretch of time. */
typedef struct memory_line {
    ek_memory_sample *samples; /* owned */
    double *at, *bytes;        /* seconds and units; owned */
    int count;
} memory_line;

typedef struct memory_lines {
    const ek_html_run *run;
    memory_line *lines; /* by device; owned */
    double end;         /* seconds */
} memory_lines;

/* In place; returns how many are left. */
static int thin(ek_memory_sample *samples, int count, int room)
{
    double begin = samples[0].seconds, span = samples[count - 1].seconds - begin;
    int kept = 0, last = -1;

    if (count <= room || !(span > 0))
        return count < room ? count : room;
    for (int i = 0; i < count; i++) {
        int stretch = (int)fmin((samples[i].seconds - begin) / span * room, room - 1);
        if (stretch != last)
            samples[kept++] = samples[i];
        else if (samples[i].in_use > samples[kept - 1].in_use)
            samples[kept - 1] = samples[i];
        last = stretch;
    }
    return kept;
}

static int read_line(const ek_html_run *run, int d, int room, double unit, memory_line *line)
{
    int count = ek_report_memory(run->report, d, NULL, 0);

    if (count <= 0)
        return count;
    line->samples = ek_calloc((size_t)count, sizeof *line->samples);
    line->at = ek_calloc((size_t)count, sizeof *line->at);
    line->bytes = ek_calloc((size_t)count, sizeof *line->bytes);
    if (!line->samples || !line->at || !line->bytes)
        return EK_E_NO_MEMORY;
    int there = ek_report_memory(run->report, d, line->samples, count);
    if (there < 0)
        return there;
    line->count = thin(line->samples, there < count ? there : count, room);
    for (int i = 0; i < line->count; i++) {
        line->at[i] = isfinite(line->samples[i].seconds) ? line->samples[i].seconds : 0;
        line->bytes[i] = (double)line->samples[i].in_use / unit;
    }
    return 0;
}

static void free_lines(memory_lines *all)
{
    for (int d = 0; all->lines && d < all->run->device_count; d++) {
        free(all->lines[d].samples);
        free(all->lines[d].at);
        free(all->lines[d].bytes);
    }
    free(all->lines);
}

static int read_lines(const ek_html_run *run, double unit, memory_lines *all)
{
    int devices = run->device_count, room = devices > 0 ? ALL_POINTS / devices : POINTS;

    *all = (memory_lines){.run = run, .lines = ek_calloc((size_t)devices + 1, sizeof *all->lines)};
    if (!all->lines)
        return EK_E_NO_MEMORY;
    room = room < POINTS ? room : POINTS;
    for (int d = 0; d < devices; d++) {
        memory_line *line = &all->lines[d];
        EK_TRY(read_line(run, d, room, unit, line));
        if (line->count > 0)
            all->end = fmax(all->end, line->at[line->count - 1]);
    }
    return 0;
}

/* ---- plots ---- */

typedef struct y_scale {
    double unit, high; /* bytes; units */
    const char *suffix;
} y_scale;

static y_scale scale_of(const ek_html *html)
{
    static const char *const suffixes[] = {" B", " KiB", " MiB", " GiB", " TiB"};
    double high = (double)html->most, unit = 1;
    int power = 0;

    for (int r = 0; r < html->count; r++) {
        for (int d = 0; d < html->runs[r].device_count; d++) {
            uint64_t capacity = html->runs[r].devices[d].capacity;
            if (ek_html_shows_capacity(html, capacity))
                high = fmax(high, (double)capacity);
        }
    }
    for (; high / unit >= 1024 && power < 4; power++)
        unit *= 1024;
    return (y_scale){unit, high / unit, suffixes[power]};
}

/* A line across for each capacity that devices of the run have. */
static int mark_capacities(const ek_html *html, const ek_html_run *run, int from, int to,
                           const y_scale *scale, ek_page_mark *marks, char texts[][64], int room)
{
    int count = 0;

    for (int d = from; d < to && count < room; d++) {
        uint64_t capacity = run->devices[d].capacity;
        char bytes[32];
        bool known = !ek_html_shows_capacity(html, capacity);
        for (int before = from; before < d && !known; before++)
            known = run->devices[before].capacity == capacity;
        if (known)
            continue;
        snprintf(texts[count], 64, "capacity %s", ek_page_bytes((double)capacity, bytes));
        marks[count] = (ek_page_mark){texts[count], NAN, (double)capacity / scale->unit};
        count++;
    }
    return count;
}

static ek_page_mark mark_peak(const ek_html_run *run, const y_scale *scale, char text[64])
{
    const ek_memory_sample *peak = &run->devices[run->fullest].peak;
    char bytes[32];

    snprintf(text, 64, "peak of %s: %s", run->names[run->fullest],
             ek_page_bytes((double)peak->in_use, bytes));
    return (ek_page_mark){text, peak->seconds, (double)peak->in_use / scale->unit};
}

static int plot_devices(const ek_html *html, const memory_lines *all, const y_scale *scale,
                        const char *right)
{
    enum { MARKS = 5 };
    const ek_html_run *run = all->run;
    ek_page_mark marks[MARKS];
    char texts[MARKS][64], label[256];
    ek_page_series *series = ek_calloc((size_t)run->device_count + 1, sizeof *series);

    if (!series)
        return EK_E_NO_MEMORY;
    int count = mark_capacities(html, run, 0, run->device_count, scale, marks, texts, MARKS - 1);
    marks[count] = mark_peak(run, scale, texts[count]);
    count++;
    for (int d = 0; d < run->device_count; d++)
        series[d] = (ek_page_series){run->names[d], all->lines[d].bytes, all->lines[d].count,
                                     all->lines[d].at};
    snprintf(label, sizeof label, "%s: memory of each device over time, %s at most", run->name,
             texts[count - 1]);
    fputs("<div>\n<h4>All devices</h4>\n", html->page);
    ek_page_plot_write(html->page,
                       &(const ek_page_plot){.label = label,
                                             .left = "start",
                                             .right = right,
                                             .suffix = scale->suffix,
                                             .high = scale->high,
                                             .marks = marks,
                                             .mark_count = count},
                       series, run->device_count);
    fputs("</div>\n", html->page);
    free(series);
    return 0;
}

static int plot_categories(const ek_html *html, const memory_lines *all, const y_scale *scale,
                           const char *right)
{
    enum { MARKS = 2 };
    const ek_html_run *run = all->run;
    const memory_line *line = &all->lines[run->fullest];
    ek_page_series series[EK_MEMORY_CATEGORIES];
    ek_page_mark marks[MARKS];
    char texts[MARKS][64], label[256];
    size_t points = (size_t)line->count;
    double *values = ek_calloc(points * EK_MEMORY_CATEGORIES + 1, sizeof *values);

    if (!values)
        return EK_E_NO_MEMORY;
    for (size_t c = 0; c < EK_MEMORY_CATEGORIES; c++) {
        for (size_t i = 0; i < points; i++)
            values[c * points + i] = (double)line->samples[i].now[c] / scale->unit;
        series[c] = (ek_page_series){ek_memory_category_name((ek_memory_category)c),
                                     values + c * points, line->count, line->at};
    }
    int count =
        mark_capacities(html, run, run->fullest, run->fullest + 1, scale, marks, texts, MARKS - 1);
    marks[count] = mark_peak(run, scale, texts[count]);
    count++;
    snprintf(label, sizeof label, "%s: what %s was filled with over time", run->name,
             run->names[run->fullest]);
    fprintf(html->page, "<div>\n<h4>What fills %s</h4>\n", run->names[run->fullest]);
    ek_page_plot_write(html->page,
                       &(const ek_page_plot){.label = label,
                                             .left = "start",
                                             .right = right,
                                             .suffix = scale->suffix,
                                             .high = scale->high,
                                             .stacked = true,
                                             .marks = marks,
                                             .mark_count = count},
                       series, EK_MEMORY_CATEGORIES);
    fputs("</div>\n", html->page);
    free(values);
    return 0;
}

/* ---- the same in numbers ---- */

/* The fullest moment of a device in [from, to) seconds; the level before where there is none. */
static const ek_memory_sample *fullest_within(const memory_line *line, double from, double to)
{
    const ek_memory_sample *found = NULL, *before = NULL;

    for (int i = 0; i < line->count && line->at[i] < to; i++) {
        const ek_memory_sample *sample = &line->samples[i];
        if (line->at[i] < from)
            before = sample;
        else if (!found || sample->in_use > found->in_use)
            found = sample;
    }
    return found ? found : before;
}

static void write_row(const ek_html *html, const memory_lines *all, const y_scale *scale,
                      double from, double to)
{
    const ek_html_run *run = all->run;
    char text[32];
    const ek_memory_sample *fullest = fullest_within(&all->lines[run->fullest], from, to);

    fprintf(html->page, "<tr><th scope=\"row\">%s</th>", ek_page_seconds(from, text));
    fprintf(html->page, "<td>%" PRId64 "</td>", fullest ? fullest->step : 0);
    for (int d = 0; d < run->device_count; d++) {
        const ek_memory_sample *sample = fullest_within(&all->lines[d], from, to);
        fprintf(html->page, "<td>%.2f</td>", sample ? (double)sample->in_use / scale->unit : 0);
    }
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        fprintf(html->page, "<td>%.2f</td>", fullest ? (double)fullest->now[c] / scale->unit : 0);
    fputs("</tr>\n", html->page);
}

static void write_table(const ek_html *html, const memory_lines *all, const y_scale *scale)
{
    const ek_html_run *run = all->run;
    int rows = all->lines[run->fullest].count < ROWS ? all->lines[run->fullest].count : ROWS;

    fputs("<details>\n<summary>The same in numbers</summary>\n<div class=\"wide\" tabindex=\"0\" "
          "role=\"region\" aria-label=\"Memory over time\">\n<table>\n<caption>",
          html->page);
    ek_html_put(html, "%s: the fullest moment of each stretch of time that begins then, in%s; ",
                run->name, scale->suffix);
    ek_html_put(html, "categories are those of %s.", run->names[run->fullest]);
    fputs("</caption>\n<tr><th scope=\"col\">from</th><th scope=\"col\">step</th>", html->page);
    for (int d = 0; d < run->device_count; d++)
        fprintf(html->page, "<th scope=\"col\">%s</th>", run->names[d]);
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        fprintf(html->page, "<th scope=\"col\">%s</th>",
                ek_memory_category_name((ek_memory_category)c));
    fputs("</tr>\n", html->page);
    for (int i = 0; i < rows; i++)
        write_row(html, all, scale, all->end * i / rows,
                  i + 1 < rows ? all->end * (i + 1) / rows : INFINITY);
    fputs("</table>\n</div>\n</details>\n", html->page);
}

/* ---- the section ---- */

static int write_run(const ek_html *html, const ek_html_run *run, const y_scale *scale)
{
    memory_lines all;
    char right[32];
    int rc = read_lines(run, scale->unit, &all);

    fputs("<h3>", html->page);
    ek_page_text(html->page, run->name);
    fputs("</h3>\n", html->page);
    if (rc == 0 && (run->fullest < 0 || all.lines[run->fullest].count == 0)) {
        fputs("<p class=\"faint\">Its devices held no memory.</p>\n", html->page);
    } else if (rc == 0) {
        ek_page_seconds(all.end, right);
        fputs("<div class=\"pair\">\n", html->page);
        rc = plot_devices(html, &all, scale, right);
        if (rc == 0)
            rc = plot_categories(html, &all, scale, right);
        fputs("</div>\n", html->page);
        if (rc == 0)
            write_table(html, &all, scale);
    }
    free_lines(&all);
    return rc;
}

int ek_html_memory(const ek_html *html)
{
    y_scale scale = scale_of(html);

    if (html->most == 0)
        return 0; /* the section before has said so */
    fputs("<section>\n<h2>Memory over time</h2>\n", html->page);
    if (html->count > 1)
        fputs("<p class=\"faint small\">All with one vertical scale.</p>\n", html->page);
    for (int r = 0; r < html->count; r++)
        EK_TRY(write_run(html, &html->runs[r], &scale));
    fputs("</section>\n", html->page);
    return 0;
}
