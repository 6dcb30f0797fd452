/* norm_rows_real.h: passes over rows with parameters per element of EK_REAL, included by
 * norm_rows.c for f32 and f64. Tasks are parts of rows; see rows_job. */

/* ---- y = (x - center) scale weight + bias ---- */

EK_MULTIVERSION
static void EK_NAME(apply_part)(EK_REAL *restrict y, const EK_REAL *restrict x, int64_t n,
                                EK_REAL center, EK_REAL scale, const EK_REAL *restrict weight,
                                const EK_REAL *restrict bias)
{
    if (weight != NULL) {
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - center) * scale * weight[i] + bias[i];
    } else {
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - center) * scale;
    }
}

/* ---- sums ---- */

/* Over a part of a row: of weight dy, and of weight dy (x - center). A lane adds few values in the
 * tensor's own type. */
EK_MULTIVERSION
static void EK_NAME(row_sums)(const EK_REAL *dy, const EK_REAL *x, int64_t n, EK_REAL center,
                              const EK_REAL *weight, double *first, double *second)
{
    EK_REAL sum[LANES] = {0}, product[LANES] = {0};
    int64_t i = 0;
    if (weight != NULL) {
        for (; i + LANES <= n; i += LANES)
            for (int j = 0; j < LANES; j++) {
                EK_REAL g = weight[i + j] * dy[i + j];
                sum[j] += g;
                product[j] += g * (x[i + j] - center);
            }
    } else {
        for (; i + LANES <= n; i += LANES)
            for (int j = 0; j < LANES; j++) {
                sum[j] += dy[i + j];
                product[j] += dy[i + j] * (x[i + j] - center);
            }
    }
    for (int j = 0; i + j < n; j++) {
        EK_REAL g = weight != NULL ? weight[i + j] * dy[i + j] : dy[i + j];
        sum[j] += g;
        product[j] += g * (x[i + j] - center);
    }
    *first = *second = 0;
    for (int j = 0; j < LANES; j++) {
        *first += (double)sum[j];
        *second += (double)product[j];
    }
}

EK_MULTIVERSION
static void EK_NAME(add_row)(EK_REAL *restrict sum, EK_REAL *restrict product,
                             const EK_REAL *restrict dy, const EK_REAL *restrict x, int64_t n,
                             EK_REAL center, EK_REAL scale)
{
    for (int64_t i = 0; i < n; i++) {
        sum[i] += dy[i];
        product[i] += dy[i] * ((x[i] - center) * scale);
    }
}

/* Rows of a block and group, over one part: their own sums, and those of every element over the
 * rows. */
static void EK_NAME(reduce_block)(const rows_job *job, int64_t block, int64_t group, int64_t part)
{
    EK_REAL sum[PART], product[PART];
    const int64_t i = part * PART, n = rows_part_length(job, i);
    const int64_t own = group * job->length + i, at = block * job->groups * job->length + own;
    const int64_t samples = job->rows / job->groups, first = block * job->block_samples;
    const int64_t last =
        first + job->block_samples < samples ? first + job->block_samples : samples;
    const EK_REAL *weight = job->weight != NULL ? (const EK_REAL *)job->weight + own : NULL;
    double *dbias = job->dbias != NULL ? job->dbias + at : NULL;
    double *dweight = job->dweight != NULL ? job->dweight + at : NULL;
    for (int64_t k = 0; k < n && dbias != NULL; k++)
        dbias[k] = dweight[k] = 0;
    for (int64_t begin = first; begin < last; begin += SHORT_ROWS) {
        int64_t end = begin + SHORT_ROWS < last ? begin + SHORT_ROWS : last;
        for (int64_t k = 0; k < n; k++)
            sum[k] = product[k] = 0;
        for (int64_t sample = begin; sample < end; sample++) {
            const int64_t row = sample * job->groups + group, place = sample * job->stride + own;
            const EK_REAL *dy = (const EK_REAL *)job->dy + place;
            const EK_REAL *x = (const EK_REAL *)job->x + place;
            EK_REAL center = (EK_REAL)job->center[row];
            if (job->first != NULL) {
                const int64_t into = row * job->parts + part;
                EK_NAME(row_sums)
                (dy, x, n, center, weight, &job->first[into], &job->second[into]);
            }
            if (dbias != NULL)
                EK_NAME(add_row)(sum, product, dy, x, n, center, (EK_REAL)job->scale[row]);
        }
        for (int64_t k = 0; k < n && dbias != NULL; k++) {
            dbias[k] += (double)sum[k];
            dweight[k] += (double)product[k];
        }
    }
}

static void EK_NAME(reduce_parts)(void *context, int64_t begin, int64_t end)
{
    const rows_job *job = context;
    for (int64_t task = begin; task < end; task++)
        EK_NAME(reduce_block)
    (job, task / job->parts / job->groups, task / job->parts % job->groups, task % job->parts);
}

/* ---- y = scale weight dy - shift - (x - center) slope ---- */

EK_MULTIVERSION
static void EK_NAME(gradient_part)(EK_REAL *restrict y, const EK_REAL *restrict dy,
                                   const EK_REAL *restrict x, int64_t n, EK_REAL center,
                                   EK_REAL scale, EK_REAL shift, EK_REAL slope,
                                   const EK_REAL *restrict weight)
{
    if (weight != NULL) {
        for (int64_t i = 0; i < n; i++)
            y[i] = scale * weight[i] * dy[i] - shift - (x[i] - center) * slope;
    } else {
        for (int64_t i = 0; i < n; i++)
            y[i] = scale * dy[i] - shift - (x[i] - center) * slope;
    }
}

/* With dy the gradient, else x normalised. */
static void EK_NAME(line_parts)(void *context, int64_t begin, int64_t end)
{
    const rows_job *job = context;
    for (int64_t task = begin; task < end; task++) {
        int64_t row = task / job->parts, i = task % job->parts * PART;
        int64_t at = rows_offset(job, row) + i, own = rows_own_offset(job, row) + i;
        int64_t n = rows_part_length(job, i);
        const EK_REAL *x = (const EK_REAL *)job->x + at;
        const EK_REAL *weight = job->weight != NULL ? (const EK_REAL *)job->weight + own : NULL;
        const EK_REAL *bias = job->bias != NULL ? (const EK_REAL *)job->bias + own : NULL;
        EK_REAL *y = (EK_REAL *)job->y + at, center = (EK_REAL)job->center[row];
        EK_REAL scale = (EK_REAL)job->scale[row];
        if (job->dy == NULL) {
            EK_NAME(apply_part)(y, x, n, center, scale, weight, bias);
        } else {
            EK_NAME(gradient_part)
            (y, (const EK_REAL *)job->dy + at, x, n, center, scale, (EK_REAL)job->shift[row],
             (EK_REAL)job->slope[row], weight);
        }
    }
}
