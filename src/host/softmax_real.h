/* softmax_real.h: blocks of rows of EK_REAL, included by softmax.c for f32 and f64. */

#include "host/soften_real.h"

EK_MULTIVERSION
static double EK_NAME(sum_of)(int64_t size, const EK_REAL *x)
{
    double lane[8] = {0}, total = 0;
    int64_t c = 0;
    for (; c + 8 <= size; c += 8)
        for (int j = 0; j < 8; j++)
            lane[j] += (double)x[c + j];
    for (int j = 0; j < 8; j++)
        total += lane[j];
    for (; c < size; c++)
        total += (double)x[c];
    return total;
}

EK_MULTIVERSION
static double EK_NAME(dot_of)(int64_t size, const EK_REAL *x, const EK_REAL *y)
{
    double lane[8] = {0}, total = 0;
    int64_t c = 0;
    for (; c + 8 <= size; c += 8)
        for (int j = 0; j < 8; j++)
            lane[j] += (double)x[c + j] * (double)y[c + j];
    for (int j = 0; j < 8; j++)
        total += lane[j];
    for (; c < size; c++)
        total += (double)x[c] * (double)y[c];
    return total;
}

/* y = e / sum, e = exp(x - largest), or x - largest - log(sum) */
EK_MULTIVERSION
static void EK_NAME(softmax_block)(int64_t rows, int64_t size, EK_REAL *restrict y,
                                   const EK_REAL *restrict x, bool logarithm)
{
    EK_REAL largest[ROWS], sum[ROWS];
    EK_NAME(soften)(rows, size, x, y, largest, sum);
    for (int64_t r = 0; r < rows; r++)
        sum[r] = logarithm ? EK_NAME(ek_log)(sum[r]) : 1 / sum[r];
    if (logarithm) {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < size; c++)
                y[r * size + c] = x[r * size + c] - largest[r] - sum[r];
    } else {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < size; c++)
                y[r * size + c] *= sum[r];
    }
}

EK_MULTIVERSION
static void EK_NAME(gradient_row)(int64_t size, EK_REAL *restrict dx, const EK_REAL *restrict dy,
                                  const EK_REAL *restrict y, EK_REAL sum, bool logarithm)
{
    if (logarithm)
        for (int64_t c = 0; c < size; c++)
            dx[c] = dy[c] - EK_NAME(ek_exp)(y[c]) * sum;
    else
        for (int64_t c = 0; c < size; c++)
            dx[c] = y[c] * (dy[c] - sum);
}

static void EK_NAME(gradient_block)(int64_t rows, int64_t size, EK_REAL *dx, const EK_REAL *dy,
                                    const EK_REAL *y, bool logarithm)
{
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = r * size;
        double sum =
            logarithm ? EK_NAME(sum_of)(size, dy + at) : EK_NAME(dot_of)(size, dy + at, y + at);
        EK_NAME(gradient_row)(size, dx + at, dy + at, y + at, (EK_REAL)sum, logarithm);
    }
}
