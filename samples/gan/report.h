/* report.h: the results of a run as JSON. */
#ifndef GAN_REPORT_H
#define GAN_REPORT_H

#include "gan/train.h"

/* Returns 0 or a negative status. */
int report_json(const char *path, train_run *run);

#endif
