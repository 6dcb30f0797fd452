/* conv_columns.c: convolution as matrix products over columns (im2col), channels-last.
 *
 * A row holds the inputs under the window of one output position: K = taps * C / groups values,
 * channels innermost, as in the weights (O, K). Rows are made, multiplied and dropped in chunks of
 * a fixed size. */
#include "host/conv.h"

#include <string.h>

#include "host/host.h"
#include "host/parallel.h"

enum { CHUNK_NBYTES = 2 << 20 };

typedef struct geometry {
    int64_t in[3], out[3], window[3], stride[3], padding[3], dilation[3];
    int64_t samples, channels, outputs, groups;
    int64_t group_channels, group_outputs;
    int64_t taps, k, positions; /* positions: of one output plane */
    ek_dtype dtype;
    size_t size;    /* bytes of an element */
    bool pointwise; /* windows of one element without stride and padding: the rows are those of x */
} geometry;

static geometry columns_geometry_of(const ek_tensor *x, const ek_tensor *w, const ek_tensor *y,
                                    const ek_conv_params *params)
{
    geometry g = {.samples = x->shape[0],
                  .channels = x->shape[1],
                  .outputs = w->shape[0],
                  .groups = params->groups,
                  .group_channels = w->shape[1],
                  .group_outputs = w->shape[0] / params->groups,
                  .taps = 1,
                  .positions = 1,
                  .dtype = x->dtype,
                  .size = ek_dtype_size(x->dtype),
                  .pointwise = true};
    for (int i = 0; i < 3; i++) {
        int d = i - (3 - params->dims); /* missing dimensions come first, with size 1 */
        g.in[i] = d < 0 ? 1 : x->shape[2 + d];
        g.out[i] = d < 0 ? 1 : y->shape[2 + d];
        g.window[i] = d < 0 ? 1 : w->shape[2 + d];
        g.stride[i] = d < 0 ? 1 : params->stride[d];
        g.padding[i] = d < 0 ? 0 : params->padding[d];
        g.dilation[i] = d < 0 ? 1 : params->dilation[d];
        g.taps *= g.window[i];
        g.positions *= g.out[i];
        g.pointwise = g.pointwise && g.window[i] == 1 && g.stride[i] == 1 && g.padding[i] == 0 &&
                      g.in[i] == g.out[i];
    }
    g.k = g.taps * g.group_channels;
    return g;
}

/* A chunk of rows of one group. */
typedef struct chunk {
    const geometry *g;
    char *x; /* (samples, in, channels), from the group's first channel on */
    char *columns;
    int64_t first; /* the chunk's first row */
    int64_t count;
} chunk;

/* Returns the position in the input plane that a tap of the window reads for the output position
 * `at`; -1 for padding. */
static int64_t columns_tap_position(const geometry *g, const int64_t at[3], int64_t tap)
{
    int64_t index[3] = {tap / (g->window[1] * g->window[2]), tap / g->window[2] % g->window[1],
                        tap % g->window[2]};
    int64_t position = 0;
    for (int i = 0; i < 3; i++) {
        int64_t p = at[i] * g->stride[i] - g->padding[i] + index[i] * g->dilation[i];
        if (p < 0 || p >= g->in[i])
            return -1;
        position = position * g->in[i] + p;
    }
    return position;
}

static int64_t columns_row_at(const geometry *g, int64_t row, int64_t at[3])
{
    int64_t position = row % g->positions;
    at[2] = position % g->out[2];
    at[1] = position / g->out[2] % g->out[1];
    at[0] = position / g->out[2] / g->out[1];
    return row / g->positions;
}

static void columns_gather_rows(void *context, int64_t begin, int64_t end)
{
    const chunk *c = context;
    const geometry *g = c->g;
    size_t nbytes = (size_t)g->group_channels * g->size;
    int64_t plane = g->in[0] * g->in[1] * g->in[2];
    if (nbytes == 0) /* without channels there are no columns */
        return;
    char *to = c->columns + (size_t)(begin * g->k) * g->size;
    for (int64_t i = begin; i < end; i++) {
        int64_t at[3], sample = columns_row_at(g, c->first + i, at);
        for (int64_t tap = 0; tap < g->taps; tap++, to += nbytes) {
            int64_t position = columns_tap_position(g, at, tap);
            if (position < 0)
                memset(to, 0, nbytes);
            else
                memcpy(to, c->x + (size_t)((sample * plane + position) * g->channels) * g->size,
                       nbytes);
        }
    }
}

/* columns_scatter_rows is the adjoint of columns_gather_rows: it adds columns to x. Threads compute
 * different blocks of SCATTER_CHANNELS channels, so that no two threads write to one element. */
enum { SCATTER_CHANNELS = 16 };

#define SCATTER(NAME, TYPE)                                                                    \
    static void NAME(const chunk *c, int64_t channel, int64_t count)                           \
    {                                                                                          \
        const geometry *g = c->g;                                                              \
        int64_t plane = g->in[0] * g->in[1] * g->in[2];                                        \
        const TYPE *from = (const TYPE *)c->columns + channel;                                 \
        for (int64_t i = 0; i < c->count; i++) {                                               \
            int64_t at[3], sample = columns_row_at(g, c->first + i, at);                       \
            for (int64_t tap = 0; tap < g->taps; tap++, from += g->group_channels) {           \
                int64_t position = columns_tap_position(g, at, tap);                           \
                if (position < 0)                                                              \
                    continue;                                                                  \
                TYPE *to = (TYPE *)c->x + (sample * plane + position) * g->channels + channel; \
                for (int64_t j = 0; j < count; j++)                                            \
                    to[j] += from[j];                                                          \
            }                                                                                  \
        }                                                                                      \
    }
SCATTER(columns_scatter_f32, float)
SCATTER(columns_scatter_f64, double)

static void columns_scatter_rows(void *context, int64_t begin, int64_t end)
{
    const chunk *c = context;
    int64_t first = begin * SCATTER_CHANNELS, last = end * SCATTER_CHANNELS;
    if (last > c->g->group_channels)
        last = c->g->group_channels;
    if (c->g->dtype == EK_F32)
        columns_scatter_f32(c, first, last - first);
    else
        columns_scatter_f64(c, first, last - first);
}

/* ---- the three products ---- */

/* In forward, `bias` (NULL: none) is added. Weight gradients are added to w. */
static int columns_multiply(ek_dev *dev, const geometry *g, ek_conv_kind kind, int64_t rows,
                            ek_matrices x, ek_matrices w, ek_matrices y, const void *bias)
{
    ek_gemm gemm = {.dtype = g->dtype,
                    .batch = 1,
                    .accumulate = kind == EK_CONV_WEIGHT_GRADIENT,
                    .bias = bias,
                    .bias_stride = 1};
    ek_matrices w_transposed = {w.data, 0, w.column_stride, w.row_stride};
    ek_matrices y_transposed = {y.data, 0, y.column_stride, y.row_stride};
    if (kind == EK_CONV_FORWARD) { /* y (rows, O) = x (rows, K) w' (K, O) */
        gemm.n = rows, gemm.m = g->group_outputs, gemm.k = g->k;
        gemm.a = x, gemm.b = w_transposed, gemm.c = y;
    } else if (kind == EK_CONV_INPUT_GRADIENT) { /* x (rows, K) = y (rows, O) w (O, K) */
        gemm.n = rows, gemm.m = g->k, gemm.k = g->group_outputs;
        gemm.a = y, gemm.b = w, gemm.c = x;
    } else { /* w (O, K) += y' (O, rows) x (rows, K) */
        gemm.n = g->group_outputs, gemm.m = g->k, gemm.k = rows;
        gemm.a = y_transposed, gemm.b = x, gemm.c = w;
    }
    if (gemm.n == 0 || gemm.m == 0)
        return 0;
    return ek_gemm_run(dev, &gemm);
}

static int columns_run_chunk(ek_dev *dev, chunk *c, ek_conv_kind kind, char *w, char *y,
                             const char *bias)
{
    const geometry *g = c->g;
    int64_t k = g->k > 1 ? g->k : 1;
    ek_matrices x = {c->columns, 0, k, 1};
    if (g->pointwise)
        x = (ek_matrices){c->x + (size_t)(c->first * g->channels) * g->size, 0, g->channels, 1};
    else if (kind != EK_CONV_INPUT_GRADIENT)
        ek_parallel_for(dev, c->count, 1 + 8192 / k, columns_gather_rows, c);
    ek_matrices mw = {w, 0, k, 1};
    ek_matrices my = {y + (size_t)(c->first * g->outputs) * g->size, 0, g->outputs, 1};
    EK_TRY(columns_multiply(dev, g, kind, c->count, x, mw, my, bias));
    if (kind == EK_CONV_INPUT_GRADIENT && !g->pointwise)
        ek_parallel_for(dev, (g->group_channels + SCATTER_CHANNELS - 1) / SCATTER_CHANNELS, 1,
                        columns_scatter_rows, c);
    return 0;
}

int ek_conv_columns(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                    const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params)
{
    geometry g = columns_geometry_of(x, w, y, params);
    char *px = ek_tensor_address(x), *pw = ek_tensor_address(w), *py = ek_tensor_address(y);
    int64_t rows = g.samples * g.positions;
    const char *forward_bias = bias && kind == EK_CONV_FORWARD ? ek_tensor_address(bias) : NULL;
    if (bias && !forward_bias)
        EK_TRY(ek_conv_bias_gradient(dev, bias, y));
    if (kind == EK_CONV_INPUT_GRADIENT)
        memset(px, 0, (size_t)ek_count(x) * g.size);
    if (kind == EK_CONV_WEIGHT_GRADIENT)
        memset(pw, 0, (size_t)ek_count(w) * g.size);

    int64_t step = rows;
    size_t row_nbytes = (size_t)g.k * g.size, nbytes = 0;
    void *columns = NULL;
    if (!g.pointwise && g.k > 0) {
        step = 1 + CHUNK_NBYTES / (int64_t)row_nbytes;
        step = ek_smaller(step, rows);
        nbytes = (size_t)step * row_nbytes;
        EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &columns));
    }
    int rc = 0;
    for (int64_t first = 0; first < rows && rc >= 0; first += step) {
        for (int64_t i = 0; i < g.groups && rc >= 0; i++) {
            chunk c = {&g, px + (size_t)(i * g.group_channels) * g.size, columns, first,
                       step < rows - first ? step : rows - first};
            rc = columns_run_chunk(dev, &c, kind, pw + (size_t)(i * g.group_outputs * g.k) * g.size,
                                   py + (size_t)(i * g.group_outputs) * g.size,
                                   forward_bias
                                       ? forward_bias + (size_t)(i * g.group_outputs) * g.size
                                       : NULL);
        }
    }
    if (columns)
        ek_dev_free(dev, columns, nbytes, EK_MEMORY_WORKSPACE);
    return rc;
}
