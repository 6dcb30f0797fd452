/* page.h: charts on a page, for the samples. They are JSON that the page's script draws in their
 * place. Numbers are written as the thread's locale has them: programs whose locale isn't "C" set
 * that one around a page (uselocale). */
#ifndef EK_REPORT_PAGE_H
#define EK_REPORT_PAGE_H

#include <stdio.h>

/* A page without a report: everything up to its contents, and what follows them. */
void ek_page_begin(FILE *page, const char *title);
void ek_page_end(FILE *page);

typedef struct ek_page_bar {
    const char *name, *text; /* before and behind the bar */
    double value;
} ek_page_bar;

/* A section with a bar each, the longest as long as there is room; `note` under the title, or
 * NULL. */
void ek_page_bars(FILE *page, const char *title, const char *note, const ek_page_bar *bars,
                  int count);

typedef struct ek_page_series {
    const char *name;
    const double *values; /* what is not finite is left out */
    int count;
    const double *at; /* NULL: values are counted from 1 */
} ek_page_series;

/* A section with a line per series over a common axis of steps (`unit` names them). */
void ek_page_lines(FILE *page, const char *title, const char *unit, const ek_page_series *series,
                   int count);

#endif
