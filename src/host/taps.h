/* taps.h: weighted sums of few elements, for resampling and sampling on a grid. Files that use this
 * header are compiled once for each type (kernels/for_reals.h), and so is the header. An element
 * whose weight is 0 isn't added, because it may be infinite. */

/* Computes y = the sum of weight[t] x[t] over up to four vectors of n elements. With `more`, adds
 * the sum to y. */
static inline __attribute__((always_inline)) void
EK_NAME(taps_add_few)(int64_t n, EK_REAL *restrict y, int count, const EK_REAL *weight,
                      const EK_REAL *const *x, bool more)
{
    const EK_REAL a = weight[0], b = weight[1], c = weight[2], d = weight[3];
    const EK_REAL *restrict p = x[0], *restrict q = x[1], *restrict r = x[2], *restrict s = x[3];
    if (count == 4)
        for (int64_t i = 0; i < n; i++)
            y[i] = (more ? y[i] : 0) + ((a * p[i] + b * q[i]) + (c * r[i] + d * s[i]));
    else if (count == 3)
        for (int64_t i = 0; i < n; i++)
            y[i] = (more ? y[i] : 0) + ((a * p[i] + b * q[i]) + c * r[i]);
    else if (count == 2)
        for (int64_t i = 0; i < n; i++)
            y[i] = (more ? y[i] : 0) + (a * p[i] + b * q[i]);
    else if (count == 1)
        for (int64_t i = 0; i < n; i++)
            y[i] = (more ? y[i] : 0) + a * p[i];
}

/* Vectors to sum, four at a time. */
typedef struct EK_NAME(taps_sum) {
    int64_t n;
    EK_REAL *y;
    int count;
    bool more;
    EK_REAL weight[4];
    const EK_REAL *x[4];
} EK_NAME(taps_sum);

static inline __attribute__((always_inline)) void EK_NAME(taps_flush)(EK_NAME(taps_sum) * sum)
{
    for (int t = sum->count; t < 4; t++)
        sum->x[t] = sum->x[0];
    if (sum->more)
        EK_NAME(taps_add_few)(sum->n, sum->y, sum->count, sum->weight, sum->x, true);
    else
        EK_NAME(taps_add_few)(sum->n, sum->y, sum->count, sum->weight, sum->x, false);
    sum->more = true;
    sum->count = 0;
}

static inline __attribute__((always_inline)) void
EK_NAME(taps_push)(EK_NAME(taps_sum) * sum, EK_REAL weight, const EK_REAL *x)
{
    if (sum->count == 4)
        EK_NAME(taps_flush)(sum);
    sum->weight[sum->count] = weight;
    sum->x[sum->count++] = x;
}

/* Ends a sum. If there were no vectors, writes 0 unless `more` is true. */
static inline __attribute__((always_inline)) void EK_NAME(taps_end)(EK_NAME(taps_sum) * sum)
{
    if (sum->count > 0)
        EK_NAME(taps_flush)(sum);
    else if (!sum->more)
        memset(sum->y, 0, (size_t)sum->n * sizeof *sum->y);
}

/* Computes y[i] = the sum over t < count of weight[t * step + i] x[index[t * step + i]]. With
 * `more`, adds the sum to y[i]. Indices are valid even if the weight is 0. `count` is a constant at
 * each call. */
static inline __attribute__((always_inline)) void
EK_NAME(taps_gather_few)(int64_t n, int64_t step, int count, EK_REAL *restrict y,
                         const int32_t *restrict index, const EK_REAL *restrict weight,
                         const EK_REAL *restrict x, bool more)
{
    for (int64_t i = 0; i < n; i++) {
        EK_REAL sum = more ? y[i] : 0;
        for (int t = 0; t < count; t++) {
            EK_REAL w = weight[t * step + i], value = w * x[index[t * step + i]];
            sum += w != 0 ? value : 0;
        }
        y[i] = sum;
    }
}

/* Does what taps_gather_few does without `more`, for any count. */
static inline __attribute__((always_inline)) void
EK_NAME(taps_gather)(int64_t n, int64_t step, int64_t count, EK_REAL *restrict y,
                     const int32_t *restrict index, const EK_REAL *restrict weight,
                     const EK_REAL *restrict x)
{
    if (count == 1)
        EK_NAME(taps_gather_few)(n, step, 1, y, index, weight, x, false);
    else if (count == 2)
        EK_NAME(taps_gather_few)(n, step, 2, y, index, weight, x, false);
    else if (count == 3)
        EK_NAME(taps_gather_few)(n, step, 3, y, index, weight, x, false);
    else
        EK_NAME(taps_gather_few)(n, step, 4, y, index, weight, x, false);
    int64_t t = 4;
    for (; t + 4 <= count; t += 4)
        EK_NAME(taps_gather_few)(n, step, 4, y, index + t * step, weight + t * step, x, true);
    for (; t < count; t++)
        EK_NAME(taps_gather_few)(n, step, 1, y, index + t * step, weight + t * step, x, true);
}
