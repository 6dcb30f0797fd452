/* page.h: self-contained HTML pages, readable in light and dark, narrow and wide, on paper and by
 * screen readers, and charts on them. No scripts, no other files, nothing of the library: plain C
 * and stdio. Texts are escaped; numbers are written as the thread's locale has them, so that a
 * program with another than "C" sets that one around a page (uselocale). */
#ifndef EK_REPORT_PAGE_H
#define EK_REPORT_PAGE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Everything up to the page's contents: style, and the title as a heading. */
void ek_page_begin(FILE *page, const char *title);
void ek_page_end(FILE *page);

/* Text as it is, also within attributes. */
void ek_page_text(FILE *page, const char *text);

/* A style's name for colour `index`, to be written as var(--name); it follows light and dark. */
const char *ek_page_colour(int index);

/* Numbers for people, three digits or four: "312 MiB", "12.4 ms". Return `text`. */
char *ek_page_bytes(double nbytes, char text[32]);
char *ek_page_seconds(double seconds, char text[32]);

/* ---- bars ---- */

typedef struct ek_page_bar {
    const char *name, *text; /* before and behind the bar */
    double value;
} ek_page_bar;

/* A section with a bar each, the longest as long as there is room; `note` under the title, or
 * NULL. */
void ek_page_bars(FILE *page, const char *title, const char *note, const ek_page_bar *bars,
                  int count);

typedef struct ek_page_part {
    const char *name;  /* "activation" */
    const char *style; /* of the list of classes: "c0", "k1" */
    const char *text;  /* "12 MiB" */
    double share;      /* of the bar, 0 to 1 */
} ek_page_part;

/* Parts of a whole side by side in a bar that is `width` (0 to 1) of the room there is. */
void ek_page_parts(FILE *page, double width, const ek_page_part *parts, int count);

/* ---- plots ---- */

typedef struct ek_page_series {
    const char *name;
    const double *values; /* what is not finite is left out */
    int count;
    const double *at; /* where each is, ascending; NULL: 1, 2, ... */
} ek_page_series;

/* Something to point at: a dot, or a line across where `at` is NaN. */
typedef struct ek_page_mark {
    const char *text;
    double at, value;
} ek_page_mark;

typedef struct ek_page_plot {
    const char *label;        /* for who can't see it */
    const char *left, *right; /* below the ends of the axis */
    const char *suffix;       /* of the numbers beside it: " MiB" */
    double high;              /* the axis reaches at least up to it */
    bool stacked;             /* areas on top of each other; all series have the same `at` */
    const ek_page_mark *marks;
    int mark_count;
} ek_page_plot;

/* Lines over a common axis, each with its own dashes, and a legend where there are several. */
void ek_page_plot_write(FILE *page, const ek_page_plot *plot, const ek_page_series *series,
                        int count);

/* A section with a line per series over a common axis of steps (`unit` names them). Long series
 * are drawn as means of neighbours. */
void ek_page_lines(FILE *page, const char *title, const char *unit, const ek_page_series *series,
                   int count);

#endif
