/* report.h: the results of a run, to read and as JSON. */
#ifndef CLASSIFY_REPORT_H
#define CLASSIFY_REPORT_H

#include "classify/train.h"

void report_table(FILE *stream, const train_run *run);
/* Returns 0 or a negative status. */
int report_json(const char *path, const train_run *run);

#endif
