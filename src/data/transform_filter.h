/* transform_filter.h: resizes by filters of more than two pixels a side. */
#ifndef EK_DATA_TRANSFORM_FILTER_H
#define EK_DATA_TRANSFORM_FILTER_H

#include "data/transform_picture.h"

/* ek_picture_resize for bicubic or antialiased filters; u8, f32 or f64. */
int ek_picture_filter(const ek_array *in, const ek_window *window, ek_array *out,
                      const ek_resampling *how);

#endif
