/* window.h: options of layers whose windows move over one to three dimensions. */
#ifndef EK_NN_WINDOW_H
#define EK_NN_WINDOW_H

#include "nn/nn.h"

/* One option of `layer`, as ek_spatial_option reads it. */
int ek_window_option(const char *layer, const char *name, int dims, int all, const int each[3],
                     const int fallback[3], int least, int result[3]);

static const int ek_window_ones[3] = {1, 1, 1}, ek_window_zeros[3] = {0, 0, 0};

#endif
