/* chart.h: how losses developed, as a page. */
#ifndef GAN_CHART_H
#define GAN_CHART_H

#include "gan/records.h"
#include "gan/settings.h"

/* Returns 0, or -1 with errno set. */
int chart_write(const char *path, const run_settings *settings, int devices,
                const run_records *records);

#endif
