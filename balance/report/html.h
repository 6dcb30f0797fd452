/* html.h: the sections of the report's page. Each writes to html->page; those that need memory of
 * their own return a status. */
#ifndef EK_REPORT_HTML_H
#define EK_REPORT_HTML_H

#include "report/page.h"
#include "report/report.h"

/* One report, read once. */
typedef struct ek_html_run {
    const ek_report *report;
    const char *name;
    ek_device_report *devices; /* owned */
    char (*names)[16];         /* theirs; owned */
    int device_count;
    int fullest; /* device; -1 where none holds anything */
    int64_t steps, largest_batch;
    double seconds, step_seconds, imbalance;
    const ek_report_span *spans; /* of the last step */
    int span_count;
    double span_seconds;
} ek_html_run;

typedef struct ek_html {
    FILE *page;
    const ek_html_run *runs;
    int count;
    uint64_t most; /* peak of the fullest device of all runs */
} ek_html;

/* What is full, of what, and when; and how the ways of training compare. */
void ek_html_summary(const ek_html *html);
/* A bar per device: what it held at its peak; and what it did with its time. */
void ek_html_peaks(const ek_html *html);
void ek_html_times(const ek_html *html);
/* Memory over time: lines, and what the fullest device holds. */
int ek_html_memory(const ek_html *html);
/* The last step, operation by operation. */
int ek_html_timeline(const ek_html *html);
/* The same in numbers. */
void ek_html_numbers(const ek_html *html);

/* ---- pieces ---- */

/* Text of a format, escaped. */
void ek_html_put(const ek_html *html, const char *format, ...) EK_PRINTF(2, 3);

/* The legend of what time goes into. */
void ek_html_kinds(const ek_html *html);

/* Capacities that are many times what was used would leave no room for what was; they are said in
 * words then. */
bool ek_html_shows_capacity(const ek_html *html, uint64_t capacity);

/* What became of the time of one device, or of all of a run (device < 0): computing, communicating,
 * waiting, as parts of a bar; false where there is none. */
enum { EK_HTML_TIMES = 3 };
bool ek_html_time_parts(const ek_html_run *run, int device, ek_page_part parts[EK_HTML_TIMES],
                        char texts[EK_HTML_TIMES][32]);

/* `part` of `whole`, 0 where that is nothing. */
double ek_html_share(double part, double whole);

/* "94 %" with a space that doesn't break, "0.3 %" of little. */
char *ek_html_percent(double share, char text[32]);

/* The category that takes most of a device's peak. */
int ek_html_main_category(const ek_device_report *device);

/* ---- what of a step is drawn (html_layout.c) ---- */

/* One box: a span, or several that are too narrow to be drawn alone. */
typedef struct ek_html_box {
    int lane, depth, spans;
    ek_span_kind kind; /* of most of its time */
    bool frame;        /* most of its time is that of spans within it */
    double begin, end;
    const char *label; /* of the longest */
} ek_html_box;

typedef struct ek_html_lane {
    int device, thread;
    int depth;  /* rows that it needs */
    bool alone; /* the only thread of its device */
} ek_html_lane;

typedef struct ek_html_layout {
    ek_html_box *boxes;
    ek_html_lane *lanes;
    int box_count, lane_count;
    int merged; /* spans that are drawn with others */
    int hidden; /* spans in lanes and depths beyond those that are drawn */
} ek_html_layout;

/* Boxes at least about 1.5 of 1400 pixels apart where the width stands for `seconds`. */
int ek_html_lay_out(const ek_html_run *run, double seconds, ek_html_layout *layout);
void ek_html_layout_free(ek_html_layout *layout);

/* All spans of one label and kind. */
typedef struct ek_html_sum {
    const char *label;
    ek_span_kind kind;
    int count;
    double seconds; /* less what spans within them took */
} ek_html_sum;

/* Longest first; the caller frees *sums. */
int ek_html_sums(const ek_html_run *run, ek_html_sum **sums, int *count);

#endif
