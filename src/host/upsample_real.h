/* upsample_real.h: interpolation of dense planes (P, H, W, K) of EK_REAL, included by upsample.c
 * for f32 and f64. */

/* Where each of `out` positions reads `in` ones: PyTorch's source index, computed in EK_REAL for
 * bilinear and in float for nearest. */
static void EK_NAME(fill_taps)(taps *t, int64_t in, int64_t out, bool bilinear, bool align_corners)
{
    EK_REAL scale = align_corners ? (out > 1 ? (EK_REAL)(in - 1) / (EK_REAL)(out - 1) : 0)
                                  : (EK_REAL)in / (EK_REAL)out;
    for (int64_t i = 0; i < out; i++) {
        int64_t at = i;
        EK_REAL upper = 0;
        if (bilinear && in != out) {
            EK_REAL source = align_corners ? scale * (EK_REAL)i
                                           : scale * ((EK_REAL)i + (EK_REAL)0.5) - (EK_REAL)0.5;
            source = source < 0 ? 0 : source;
            at = (int64_t)source;
            at = at < in - 1 ? at : in - 1;
            upper = source - (EK_REAL)at;
            upper = upper > 1 ? 1 : upper;
        } else if (in != out) {
            at = out == 2 * in ? i / 2 : (int64_t)((float)i * ((float)in / (float)out));
            at = at < in - 1 ? at : in - 1;
        }
        t->lower[i] = at;
        t->upper[i] = bilinear && at < in - 1 ? at + 1 : at;
        t->upper_share[i] = (double)upper;
        t->lower_share[i] = (double)(1 - upper);
    }
}

/* row = a u + b v */
EK_MULTIVERSION
static void EK_NAME(blend)(int64_t n, EK_REAL *restrict row, EK_REAL a, const EK_REAL *restrict u,
                           EK_REAL b, const EK_REAL *restrict v)
{
    for (int64_t i = 0; i < n; i++)
        row[i] = a * u[i] + b * v[i];
}

/* row += a u */
EK_MULTIVERSION
static void EK_NAME(accumulate)(int64_t n, EK_REAL *restrict row, EK_REAL a,
                                const EK_REAL *restrict u)
{
    for (int64_t i = 0; i < n; i++)
        row[i] += a * u[i];
}

/* One row of y from one row of x, each of pixels of k elements. Elements without a share don't
 * count, not even if they are infinite. */
EK_MULTIVERSION
static void EK_NAME(spread)(const taps *t, int64_t k, EK_REAL *restrict y,
                            const EK_REAL *restrict x)
{
    for (int64_t i = 0; i < t->out; i++) {
        const EK_REAL *u = x + t->lower[i] * k, *v = x + t->upper[i] * k;
        EK_REAL a = (EK_REAL)t->lower_share[i], b = (EK_REAL)t->upper_share[i];
        if (b == 0) {
            for (int64_t c = 0; c < k; c++)
                y[i * k + c] = u[c];
            continue;
        }
        for (int64_t c = 0; c < k; c++)
            y[i * k + c] = a * u[c] + b * v[c];
    }
}

/* The adjoint: dx += from dy. */
EK_MULTIVERSION
static void EK_NAME(collect)(const taps *t, int64_t k, EK_REAL *restrict dx,
                             const EK_REAL *restrict dy)
{
    for (int64_t i = 0; i < t->out; i++) {
        EK_REAL *u = dx + t->lower[i] * k, *v = dx + t->upper[i] * k;
        EK_REAL a = (EK_REAL)t->lower_share[i], b = (EK_REAL)t->upper_share[i];
        for (int64_t c = 0; c < k; c++)
            u[c] += a * dy[i * k + c];
        if (b != 0)
            for (int64_t c = 0; c < k; c++)
                v[c] += b * dy[i * k + c];
    }
}

static void EK_NAME(forward_part)(void *context, int64_t begin, int64_t end)
{
    const upsample_job *job = context;
    const taps *h = &job->height, *w = &job->width;
    int64_t x_row = w->in * job->k, y_row = w->out * job->k;
    for (int64_t part = begin; part < end; part++) {
        EK_REAL *blended = (EK_REAL *)job->scratch + part * job->scratch_row;
        int64_t last = job->planes * h->out * (part + 1) / job->parts;
        for (int64_t r = job->planes * h->out * part / job->parts; r < last; r++) {
            int64_t i = r % h->out;
            const EK_REAL *plane = (const EK_REAL *)job->x + r / h->out * h->in * x_row;
            const EK_REAL *row = plane + h->lower[i] * x_row;
            if (h->upper_share[i] != 0) {
                EK_NAME(blend)
                (x_row, blended, (EK_REAL)h->lower_share[i], row, (EK_REAL)h->upper_share[i],
                 plane + h->upper[i] * x_row);
                row = blended;
            }
            EK_NAME(spread)(w, job->k, (EK_REAL *)job->y + r * y_row, row);
        }
    }
}

/* Each row of dx gathers the rows of dy that read it, then their pixels. */
static void EK_NAME(gradient_part)(void *context, int64_t begin, int64_t end)
{
    const upsample_job *job = context;
    const taps *h = &job->height, *w = &job->width;
    int64_t x_row = w->in * job->k, y_row = w->out * job->k;
    for (int64_t part = begin; part < end; part++) {
        EK_REAL *sum = (EK_REAL *)job->scratch + part * job->scratch_row;
        int64_t last = job->planes * h->in * (part + 1) / job->parts;
        for (int64_t r = job->planes * h->in * part / job->parts; r < last; r++) {
            int64_t i = r % h->in;
            const EK_REAL *plane = (const EK_REAL *)job->x + r / h->in * h->out * y_row;
            EK_REAL *dx = (EK_REAL *)job->y + r * x_row;
            memset(dx, 0, (size_t)x_row * sizeof(EK_REAL));
            memset(sum, 0, (size_t)y_row * sizeof(EK_REAL));
            for (int64_t o = h->first[i]; o < h->out && h->lower[o] <= i; o++) {
                double share = (h->lower[o] == i ? h->lower_share[o] : 0) +
                               (h->upper[o] == i ? h->upper_share[o] : 0);
                if (share != 0)
                    EK_NAME(accumulate)(y_row, sum, (EK_REAL)share, plane + o * y_row);
            }
            EK_NAME(collect)(w, job->k, dx, sum);
        }
    }
}
