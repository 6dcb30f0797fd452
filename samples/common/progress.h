/* progress.h: how far a loop is: one line that is redrawn on a terminal, plain lines elsewhere. */
#ifndef COMMON_PROGRESS_H
#define COMMON_PROGRESS_H

#include <stdbool.h>

typedef struct progress_bar {
    const char *name;
    int total;    /* steps */
    int per_step; /* samples */
    bool terminal;
    double start;   /* seconds, monotonic */
    double redrawn; /* when */
    int first;      /* steps that were finished before the start */
} progress_bar;

double seconds_now(void);

progress_bar progress_begin(const char *name, int total, int per_step);
/* `done` steps are finished; `note` is short text behind the numbers. */
void progress_show(progress_bar *progress, int done, const char *note);
/* Removes the line from a terminal, so that a message can follow. */
void progress_end(progress_bar *progress);

#endif
