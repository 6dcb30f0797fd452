/* rows.h: elementwise kernels over contiguous runs; `out` may be an input. */
#ifndef EK_HOST_ROWS_H
#define EK_HOST_ROWS_H

#include "host/tile.h"
#include "kernels/kernels.h"

void ek_rows_unary_f32(ek_unary op, int64_t n, float *out, const float *x, float a, float b);
void ek_rows_unary_f64(ek_unary op, int64_t n, double *out, const double *x, double a, double b);
void ek_rows_unary_i64(ek_unary op, int64_t n, int64_t *out, const int64_t *x, double a, double b);

void ek_rows_binary_f32(ek_binary op, int64_t n, float *out, const float *x, const float *y,
                        float a);
void ek_rows_binary_f64(ek_binary op, int64_t n, double *out, const double *x, const double *y,
                        double a);
void ek_rows_binary_i64(ek_binary op, int64_t n, int64_t *out, const int64_t *x, const int64_t *y,
                        double a);

void ek_rows_compare(ek_compare op, ek_class type, int64_t n, uint8_t *out, const void *x,
                     const void *y);
/* condition: one byte per element */
void ek_rows_where(ek_class type, int64_t n, void *out, const uint8_t *condition, const void *x,
                   const void *y);

#endif
