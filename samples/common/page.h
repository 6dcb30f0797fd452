/* page.h: self-contained HTML pages, readable in light and dark, narrow and wide, and charts of
 * lines on them. No scripts, no other files. */
#ifndef COMMON_PAGE_H
#define COMMON_PAGE_H

#include <stdio.h>

/* Everything up to the page's contents: style, and the title as a heading. */
void page_begin(FILE *page, const char *title);
void page_end(FILE *page);

/* A style's name for colour `index`, to be written as var(--name); it follows light and dark. */
const char *page_colour(int index);

typedef struct page_series {
    const char *name;
    const double *values; /* at 1, 2, ...; what is not finite is left out */
    int count;
} page_series;

/* A section with a line per series over a common axis of steps (`unit` names them), and a legend
 * where there are several. Long series are drawn as means of neighbours. */
void page_lines(FILE *page, const char *title, const char *unit, const page_series *series,
                int count);

#endif
