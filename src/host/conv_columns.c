/* conv_columns.c: convolution and its gradients as matrix products over columns (im2col), in f32,
 * f64, or bf16 with sums in f32.
 *
 * A row of columns holds the inputs under the window of one output position: the channels of one
 * tap after another. A thread makes the columns of a block of rows in its level 2 cache, multiplies
 * them, and drops them. In the input gradient x and y are exchanged, and rows are cut into classes
 * by their remainders modulo the stride, because the same taps reach all rows of a class. In the
 * weight gradient a thread makes some of the columns of all rows, one block after another. An
 * element's sum runs over blocks of fixed length, so that it depends on neither the blocks nor the
 * number of threads.
 *
 * In bf16 the kernels multiply words, which are pairs of elements: of neighbouring channels, or in
 * a weight gradient of a pair of samples at one position. */
#include "host/conv.h"

#include <stdatomic.h>
#include <string.h>

#include "core/multiversion.h"
#include "host/gemm_blocked.h"
#include "host/gemm_kernel.h"
#include "host/host.h"
#include "host/isa.h"
#include "host/parallel.h"
#include "host/tile.h"
#include "kernels/stage.h"

enum {
    COLUMNS_NBYTES = 512 << 10, /* A block's columns, or a thread's part of a weight gradient. */
    COLUMNS_PACKED = 4 << 20,   /* The most bytes of weights that are packed at a time. */
    LEAST_ROWS = 48,            /* Fewer if they would take more than LEAST_NBYTES. */
    LEAST_NBYTES = 1 << 20,
    MOST_ROWS = 96,
    POSITIONS = 256, /* Rows of a block of a weight gradient. */
    APART = 16       /* Words between rows, which otherwise may share sets of level 1 cache. */
};

/* One dimension of the rows of a class. Tap t of row i reads element i * step + offset + t * spread
 * of the input, if there is such an element. */
typedef struct columns_line {
    int64_t in, rows, step, offset, spread, window;
    int64_t taps, tap, tap_step;   /* Tap t of the class is tap + t * tap_step of the window. */
    int64_t to, to_first, to_step; /* Row i is element to_first + i * to_step of `to`. */
} columns_line;

typedef struct columns_job {
    const ek_gemm_kernel *kernel;
    ek_conv_kind kind;
    ek_dtype dtype;
    int64_t nbytes, size; /* Bytes of an element; bytes of a word. */
    int64_t together;     /* Samples with an element in a word: 2 or 1. */
    columns_line line[3];
    const char *from, *y, *w, *bias; /* Addresses of the group. y is for weight gradients only. */
    char *to;
    int64_t samples, from_channels, to_channels;
    int64_t channels, outputs; /* Numbers of a group. */
    int64_t taps;              /* Taps of the whole window. */
    int64_t rows, depth, row;  /* Rows; words of a row; words from one row to the next. */
    int64_t panel, panels;     /* Panels of outputs from `panel` on; in a weight gradient, panels of
                                  all columns. */
    int64_t units;             /* Blocks of rows, or parts of the columns. */
    char *packed;
    int64_t panel_nbytes;
    char *workspace;
    int64_t workspace_nbytes; /* Each thread has so many bytes. */
    atomic_int next_part;
} columns_job;

/* ---- rows and taps ---- */

/* Returns the largest number that divides both. */
static int64_t columns_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Returns a dimension of class `part` of the input gradient: the elements of x with this remainder,
 * and the taps by which y reaches them. Taps `tap_step` apart reach the same class. */
static columns_line columns_gradient_line(int64_t x, int64_t y, int64_t window, int64_t stride,
                                          int64_t padding, int64_t dilation, int64_t part)
{
    const int64_t step = stride / columns_divisor(stride, dilation);
    int64_t tap = 0;
    while (tap < ek_smaller(window, step) && (part + padding - tap * dilation) % stride != 0)
        tap++;
    if (tap == step)
        tap = window;
    const int64_t rows = part < x ? ek_divide_up(x - part, stride) : 0;
    return (columns_line){.in = y,
                          .rows = rows,
                          .step = 1,
                          .offset = (part + padding - tap * dilation) / stride,
                          .spread = -step * dilation / stride,
                          .window = window,
                          .taps = ek_divide_up(window - tap, step),
                          .tap = tap,
                          .tap_step = step,
                          .to = x,
                          .to_first = part,
                          .to_step = stride};
}

/* Sets the lines of class `part`. Returns how many classes there are. */
static int64_t columns_set_lines(columns_job *j, const ek_conv *c, int64_t part)
{
    const ek_conv_params *p = c->params;
    int64_t classes = 1;
    j->rows = ek_divide_up(j->samples, j->together);
    j->depth = j->together == 2 ? j->channels : j->channels * j->nbytes / j->size;
    for (int i = 2; i >= 0; i--) {
        const int d = i - (3 - p->dims); /* missing dimensions come first, with size 1 */
        const int64_t x = d < 0 ? 1 : c->x->shape[2 + d], y = d < 0 ? 1 : c->y->shape[2 + d];
        const int64_t window = d < 0 ? 1 : c->w->shape[2 + d], stride = d < 0 ? 1 : p->stride[d];
        const int64_t padding = d < 0 ? 0 : p->padding[d], dilation = d < 0 ? 1 : p->dilation[d];
        columns_line *l = &j->line[i];
        if (c->kind == EK_CONV_INPUT_GRADIENT) {
            const int64_t parts = ek_larger(1, ek_smaller(stride, x)); /* Others have no rows. */
            *l = columns_gradient_line(x, y, window, stride, padding, dilation,
                                       part / classes % parts);
            classes *= parts;
        } else {
            *l = (columns_line){.in = x,
                                .rows = y,
                                .step = stride,
                                .offset = -padding,
                                .spread = dilation,
                                .window = window,
                                .taps = window,
                                .tap_step = 1,
                                .to = y,
                                .to_step = 1};
        }
        j->rows *= l->rows;
        j->depth *= l->taps;
    }
    j->row = j->depth + APART;
    return classes;
}

/* Writes the place of a row in the plane to `at`, and returns its sample. */
static int64_t columns_at(const columns_job *j, int64_t row, int64_t at[3])
{
    for (int d = 2; d >= 0; d--) {
        at[d] = row % j->line[d].rows;
        row /= j->line[d].rows;
    }
    return row;
}

/* Writes the place of tap t of the class in the window of the class to `at`. */
static void columns_tap(const columns_job *j, int64_t t, int64_t at[3])
{
    for (int d = 2; d >= 0; d--) {
        at[d] = t % j->line[d].taps;
        t /= j->line[d].taps;
    }
}

static int64_t columns_taps(const columns_job *j)
{
    return j->line[0].taps * j->line[1].taps * j->line[2].taps;
}

/* Returns the position in `to` of a row. */
static int64_t columns_position(const columns_job *j, int64_t row)
{
    int64_t at[3], position = columns_at(j, row, at);
    for (int d = 0; d < 3; d++) {
        const columns_line *l = &j->line[d];
        position = position * l->to + l->to_first + at[d] * l->to_step;
    }
    return position;
}

/* ---- copies ---- */

/* Copies runs of nbytes; from NULL they are zeros. */
static void columns_copy(char *to, int64_t to_row, const char *from, int64_t from_row, int64_t rows,
                         size_t nbytes)
{
    if (from)
        ek_rows_copy(to, to_row, from, from_row, nbytes, rows);
    else
        for (int64_t r = 0; r < rows; r++)
            memset(to + r * to_row, 0, nbytes);
}

/* Makes words of `rows` runs of `count` elements, which lie `stride` elements apart. If `odd` is
 * NULL, it counts as zeros. The runs of words lie `width` words apart. */
EK_MULTIVERSION
static void columns_pair(char *to, int64_t width, const char *even, const char *odd, int64_t stride,
                         int64_t rows, int64_t count)
{
    const uint16_t *low = (const uint16_t *)even, *high = (const uint16_t *)odd;
    for (int64_t r = 0; r < rows; r++, to += width * 4, low += stride, high += odd ? stride : 0) {
        uint32_t *restrict words = (uint32_t *)to;
        for (int64_t i = 0; i < count; i++)
            words[i] = low[i] | (odd ? (uint32_t)high[i] << 16 : 0);
    }
}

/* Copies n elements of `rows` positions, which lie `stride` elements apart, of a sample of `image`
 * elements; or of two samples, if both have an element in a word. */
static void columns_take(const columns_job *j, char *to, int64_t width, const char *from,
                         int64_t sample, int64_t image, int64_t stride, int64_t rows, int64_t n)
{
    const bool both = j->together * (sample + 1) <= j->samples;
    if (j->together == 2 && from)
        columns_pair(to, width, from, both ? from + image * j->nbytes : NULL, stride, rows, n);
    else
        columns_copy(to, width * j->size, from, stride * j->nbytes, rows,
                     (size_t)(n * (from ? j->nbytes : j->together * j->nbytes)));
}

/* Copies n channels from `channel` on of what a tap reads, for rows [first, first + count), to rows
 * that lie `width` words apart. Padding is zeros. */
static void columns_gather(const columns_job *j, int64_t first, int64_t count, const int64_t tap[3],
                           int64_t channel, int64_t n, char *to, int64_t width)
{
    const columns_line *last = &j->line[2];
    const int64_t image = j->line[0].in * j->line[1].in * last->in * j->from_channels;
    for (int64_t row = first, run; row < first + count; row += run, to += run * width * j->size) {
        int64_t at[3], sample = columns_at(j, row, at), position = sample * j->together;
        bool inside = true;
        run = ek_smaller(first + count - row, last->rows - at[2]);
        for (int d = 0; d < 3; d++) {
            const columns_line *l = &j->line[d];
            at[d] = at[d] * l->step + l->offset + tap[d] * l->spread;
            inside = inside && (d == 2 || (at[d] >= 0 && at[d] < l->in));
            position = position * l->in + at[d];
        }
        /* Rows [begin, end) of the run read no padding. */
        const int64_t begin = at[2] >= 0 ? 0 : ek_smaller(ek_divide_up(-at[2], last->step), run);
        const int64_t reach = at[2] < last->in ? ek_divide_up(last->in - at[2], last->step) : 0;
        const int64_t end = inside ? ek_larger(ek_smaller(reach, run), begin) : begin;
        const int64_t stride = last->step * j->from_channels;
        const char *from =
            j->from + (position * j->from_channels + begin * stride + channel) * j->nbytes;
        columns_take(j, to, width, NULL, sample, 0, 0, begin, n);
        columns_take(j, to + begin * width * j->size, width, from, sample, image, stride,
                     end - begin, n);
        columns_take(j, to + end * width * j->size, width, NULL, sample, 0, 0, run - end, n);
    }
}

/* ---- forward and input gradient ---- */

/* Packs a panel of weights: a row of the bias, then rows in the order of columns. */
static void columns_pack_panel(const columns_job *j, int64_t panel, char *to)
{
    const bool gradient = j->kind == EK_CONV_INPUT_GRADIENT, is_bf16 = j->dtype == EK_BF16;
    const int64_t width = j->kernel->columns, first = panel * width,
                  count = ek_smaller(width, j->outputs - first), each = j->size / j->nbytes,
                  depth = j->channels / each, run = j->taps * (gradient ? j->outputs : j->channels);
    memset(to, 0, (size_t)(width * j->size));
    if (j->bias)
        ek_row_load(j->dtype == EK_F64 ? EK_CLASS_F64 : EK_CLASS_F32, to, j->dtype,
                    j->bias + first * j->nbytes, 1, count);
    to += width * j->size;
    if (gradient && is_bf16 && count < width)
        memset(to, 0, (size_t)(j->depth * width * j->size));
    for (int64_t t = 0; t < columns_taps(j); t++, to += depth * width * j->size) {
        int64_t at[3], tap = 0;
        columns_tap(j, t, at);
        for (int d = 0; d < 3; d++)
            tap = tap * j->line[d].window + j->line[d].tap + at[d] * j->line[d].tap_step;
        const char *from =
            j->w +
            (gradient ? tap * j->outputs + first : first * run + tap * j->channels) * j->nbytes;
        const int64_t line = gradient ? 1 : run / each, along = gradient ? run : 1;
        if (gradient && is_bf16)
            columns_pair(to, width, from, from + run * j->nbytes, 2 * run, depth, count);
        else if (j->dtype == EK_F64)
            ek_gemm_pack_f64((double *)to, (const double *)from, count, depth, (int)width, line,
                             along);
        else
            ek_gemm_pack_f32((float *)to, (const float *)from, count, depth, (int)width, line,
                             along);
    }
}

static void columns_pack_panels(void *context, int64_t begin, int64_t end)
{
    const columns_job *j = context;
    for (int64_t i = begin; i < end; i++)
        columns_pack_panel(j, j->panel + i, j->packed + i * j->panel_nbytes);
}

/* Multiplies a block's columns by a panel, in blocks of the depth, and writes the sums. */
static void columns_multiply(const columns_job *j, const char *columns, const int64_t *position,
                             int64_t count, int64_t panel)
{
    const int64_t width = j->kernel->columns, column = (j->panel + panel) * width,
                  n = ek_smaller(width, j->outputs - column),
                  tiles = ek_divide_up(count, j->kernel->rows),
                  block = EK_GEMM_BLOCK_NBYTES / j->size;
    const char *packed = j->packed + panel * j->panel_nbytes;
    _Alignas(64) char sums[MOST_ROWS * EK_GEMM_COLUMNS * sizeof(float)];
    ek_gemm_ahead none = {.runs = 0};
    for (int64_t k = 0; k == 0 || k < j->depth; k += block)
        for (int64_t tile = 0; tile < tiles; tile++) {
            const int64_t row = ek_part_of(count, tile, tiles),
                          rows = ek_part_of(count, tile + 1, tiles) - row;
            const ek_gemm_call call = {.k = ek_smaller(block, j->depth - k),
                                       .a = columns + (row * j->row + k) * j->size,
                                       .a_row = j->row,
                                       .a_depth = 1,
                                       .b = packed + (1 + k) * width * j->size,
                                       .b_depth = width,
                                       .c = sums + row * width * j->size,
                                       .c_row = width,
                                       .add = k > 0,
                                       .addend = k > 0 ? NULL : packed,
                                       .next_a = &none,
                                       .next_b = &none};
            j->kernel->inner[2 * n > width][rows - 1](&call);
        }
    for (int64_t r = 0; r < count; r++) {
        char *to = j->to + (position[r] * j->to_channels + column) * j->nbytes;
        const char *sum = sums + r * width * j->size;
        if (j->dtype == EK_BF16)
            ek_row_store(EK_CLASS_F32, sum, EK_BF16, to, 1, n);
        else
            memcpy(to, sum, (size_t)(n * j->size));
    }
}

/* Computes blocks of rows [begin, end). */
static void columns_compute(void *context, int64_t begin, int64_t end)
{
    columns_job *j = context;
    char *columns = j->workspace + atomic_fetch_add(&j->next_part, 1) * j->workspace_nbytes;
    int64_t position[MOST_ROWS];
    for (int64_t block = begin; block < end; block++) {
        const int64_t first = ek_part_of(j->rows, block, j->units),
                      count = ek_part_of(j->rows, block + 1, j->units) - first;
        char *to = columns;
        for (int64_t t = 0; t < columns_taps(j); t++) {
            int64_t tap[3];
            columns_tap(j, t, tap);
            columns_gather(j, first, count, tap, 0, j->channels, to, j->row);
            to += j->channels * j->nbytes;
        }
        for (int64_t r = 0; r < count; r++)
            position[r] = columns_position(j, first + r);
        for (int64_t panel = 0; panel < j->panels; panel++)
            columns_multiply(j, columns, position, count, panel);
    }
}

/* Computes a class of a group. The weights are packed in turns. */
static int columns_run(ek_dev *dev, columns_job *j)
{
    const int64_t width = j->kernel->columns, panels = ek_divide_up(j->outputs, width),
                  threads = ek_parallel_threads(dev), row = j->row * j->size,
                  least = LEAST_ROWS * row <= LEAST_NBYTES ? LEAST_ROWS : j->kernel->rows,
                  at_once = ek_larger(least, ek_smaller(COLUMNS_NBYTES / row, MOST_ROWS)),
                  blocks = ek_divide_up(ek_divide_up(j->rows, at_once), threads) * threads;
    if (j->rows == 0 || panels == 0)
        return 0;
    j->panel_nbytes = (1 + j->depth) * width * j->size;
    const int64_t turns =
        ek_divide_up(panels, ek_larger(1, ek_smaller(COLUMNS_PACKED / j->panel_nbytes, panels)));
    const int64_t most = ek_divide_up(panels, turns);
    j->units = ek_smaller(blocks, j->rows);
    j->workspace_nbytes = ek_divide_up(j->rows, j->units) * row;
    const int64_t parts = ek_smaller(threads, j->units), packed = most * j->panel_nbytes;
    const size_t nbytes = (size_t)(packed + parts * j->workspace_nbytes);
    void *workspace;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &workspace));
    j->packed = workspace;
    j->workspace = j->packed + packed;
    for (j->panel = 0; j->panel < panels; j->panel += most) {
        j->panels = ek_smaller(most, panels - j->panel);
        const int64_t work = j->rows / j->units * j->panels * j->depth;
        atomic_store(&j->next_part, 0);
        ek_parallel_for(dev, j->panels, 1 + 2048 / (1 + j->depth), columns_pack_panels, j);
        ek_parallel_for(dev, j->units, 1 + 100000 / (1 + work), columns_compute, j);
    }
    ek_dev_free(dev, workspace, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}

/* ---- weight gradient ---- */

/* Copies rows [first, first + count) of y as rows of words. */
static void columns_copy_y(const columns_job *j, int64_t first, int64_t count, char *to)
{
    const int64_t plane = j->line[0].rows * j->line[1].rows * j->line[2].rows,
                  image = plane * j->to_channels, width = j->outputs + APART;
    for (int64_t row = first, run; row < first + count; row += run, to += run * width * j->size) {
        const int64_t sample = row / plane, at = row % plane;
        const int64_t from = sample * j->together * image + at * j->to_channels;
        run = ek_smaller(first + count - row, plane - at);
        columns_take(j, to, width, j->y + from * j->nbytes, sample, image, j->to_channels, run,
                     j->outputs);
    }
}

/* Copies columns [column, end) of rows [first, first + count), as panels. */
static void columns_copy_x(const columns_job *j, int64_t first, int64_t count, int64_t column,
                           int64_t end, char *to)
{
    const int64_t width = j->kernel->columns, begin = column;
    for (int64_t n; column < end; column += n) {
        const int64_t channel = column % j->channels, at = (column - begin) % width;
        int64_t tap[3];
        columns_tap(j, column / j->channels, tap);
        n = ek_smaller(ek_smaller(j->channels - channel, width - at), end - column);
        columns_gather(j, first, count, tap, channel, n,
                       to + ((column - begin - at) * count + at) * j->size, width);
    }
}

/* Adds the products of a block of rows to the weights of a panel, whose first column is
 * `column`. Sums that don't fill vectors go through a tile. */
static void columns_add(const columns_job *j, int64_t column, int64_t count, const char *y,
                        const char *x, bool add)
{
    const int64_t width = j->kernel->columns, size = j->size, half = width / 2,
                  n = ek_smaller(width, j->depth - column),
                  tiles = ek_divide_up(j->outputs, j->kernel->rows);
    const bool whole = n % half == 0;
    _Alignas(64) char sums[EK_GEMM_ROWS * EK_GEMM_COLUMNS * sizeof(float)] = {0};
    ek_gemm_ahead none = {.runs = 0};
    for (int64_t tile = 0; tile < tiles; tile++) {
        const int64_t output = ek_part_of(j->outputs, tile, tiles),
                      rows = ek_part_of(j->outputs, tile + 1, tiles) - output;
        char *to = j->to + (output * j->depth + column) * size;
        const ek_gemm_call call = {.k = count,
                                   .a = y + output * size,
                                   .a_row = 1,
                                   .a_depth = j->outputs + APART,
                                   .b = x,
                                   .b_depth = width,
                                   .c = whole ? to : sums,
                                   .c_row = whole ? j->depth : width,
                                   .add = add,
                                   .next_a = &none,
                                   .next_b = &none};
        if (!whole && add)
            columns_copy(sums, width * size, to, j->depth * size, rows, (size_t)(n * size));
        j->kernel->inner[n > half][rows - 1](&call);
        if (!whole)
            columns_copy(to, j->depth * size, sums, width * size, rows, (size_t)(n * size));
    }
}

/* Computes parts [begin, end) of the panels. */
static void columns_compute_weight(void *context, int64_t begin, int64_t end)
{
    columns_job *j = context;
    const int64_t width = j->kernel->columns, blocks = ek_divide_up(j->rows, POSITIONS);
    char *y = j->workspace + atomic_fetch_add(&j->next_part, 1) * j->workspace_nbytes,
         *x = y + POSITIONS * (j->outputs + APART) * j->size;
    for (int64_t i = begin * blocks; i < end * blocks; i++) {
        const int64_t unit = i / blocks, block = i % blocks;
        const int64_t first = ek_part_of(j->rows, block, blocks),
                      count = ek_part_of(j->rows, block + 1, blocks) - first,
                      column = ek_part_of(j->panels, unit, j->units) * width,
                      last = ek_part_of(j->panels, unit + 1, j->units) * width;
        columns_copy_y(j, first, count, y);
        columns_copy_x(j, first, count, column, ek_smaller(last, j->depth), x);
        for (int64_t c = column; c < last; c += width)
            columns_add(j, c, count, y, x + (c - column) * count * j->size, block > 0);
    }
}

static int columns_run_weight(ek_dev *dev, columns_job *j)
{
    const int64_t width = j->kernel->columns, threads = ek_parallel_threads(dev),
                  panel = ek_larger(POSITIONS, j->outputs) * width * j->size,
                  most = ek_larger(1, COLUMNS_NBYTES / panel);
    j->panels = ek_divide_up(j->depth, width);
    if (j->panels == 0 || j->outputs == 0)
        return 0;
    if (j->rows == 0) {
        memset(j->to, 0, (size_t)(j->outputs * j->depth * j->size));
        return 0;
    }
    j->units = ek_divide_up(ek_divide_up(j->panels, most), threads) * threads;
    j->units = ek_smaller(j->units, j->panels);
    j->workspace_nbytes =
        POSITIONS * (j->outputs + APART + ek_divide_up(j->panels, j->units) * width) * j->size;
    const size_t nbytes = (size_t)(ek_smaller(threads, j->units) * j->workspace_nbytes);
    void *workspace;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &workspace));
    j->workspace = workspace;
    atomic_store(&j->next_part, 0);
    const int64_t work = j->rows * j->panels / j->units * j->outputs;
    ek_parallel_for(dev, j->units, 1 + 5000 / (1 + work), columns_compute_weight, j);
    ek_dev_free(dev, workspace, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}

/* ---- a call ---- */

/* Returns true if some inputs may be read by no window, so that their gradients are 0. */
static bool columns_has_unread(const ek_conv *c)
{
    const ek_conv_params *p = c->params;
    bool unread = false;
    for (int d = 0; d < p->dims; d++)
        unread = unread || c->w->shape[2 + d] < p->stride[d] ||
                 columns_divisor(p->stride[d], p->dilation[d]) > 1;
    return unread;
}

static int columns_run_groups(ek_dev *dev, const ek_conv *c)
{
    const bool gradient = c->kind == EK_CONV_INPUT_GRADIENT,
               weight = c->kind == EK_CONV_WEIGHT_GRADIENT, is_bf16 = c->x->dtype == EK_BF16;
    const ek_tensor *from = gradient ? c->y : c->x, *to = gradient ? c->x : c->y;
    const int64_t groups = c->params->groups, nbytes = (int64_t)ek_dtype_size(c->x->dtype),
                  each = ek_count(c->w) / groups * (int64_t)ek_dtype_size(c->w->dtype);
    columns_job j = {.kernel = ek_gemm_kernel_best(c->x->dtype),
                     .kind = c->kind,
                     .dtype = c->x->dtype,
                     .nbytes = nbytes,
                     .size = is_bf16 ? (int64_t)sizeof(float) : nbytes,
                     .together = is_bf16 && weight ? 2 : 1,
                     .samples = c->x->shape[0],
                     .from_channels = from->shape[1],
                     .to_channels = to->shape[1],
                     .channels = from->shape[1] / groups,
                     .outputs = to->shape[1] / groups};
    const int64_t classes = columns_set_lines(&j, c, 0);
    j.taps = j.line[0].window * j.line[1].window * j.line[2].window;
    const bool clear = gradient && columns_has_unread(c);
    ek_tensor all = *c->x;
    if (clear)
        EK_TRY(ek_host_fill(dev, &all, 0));
    for (int64_t i = 0; i < groups * classes; i++) {
        const int64_t group = i / classes;
        char *w = (char *)ek_tensor_address(c->w) + group * each;
        columns_set_lines(&j, c, i % classes);
        if (clear && columns_taps(&j) == 0)
            continue;
        j.from = (const char *)ek_tensor_address(from) + group * j.channels * nbytes;
        j.y = (const char *)ek_tensor_address(to) + group * j.outputs * nbytes;
        j.to = weight ? w : (char *)ek_tensor_address(to) + group * j.outputs * nbytes;
        j.w = w;
        j.bias = c->bias && c->kind == EK_CONV_FORWARD
                     ? (const char *)ek_tensor_address(c->bias) + group * j.outputs * nbytes
                     : NULL;
        EK_TRY(weight ? columns_run_weight(dev, &j) : columns_run(dev, &j));
    }
    return 0;
}

int ek_conv_columns(ek_dev *dev, const ek_conv *conv)
{
    const bool weight = conv->kind == EK_CONV_WEIGHT_GRADIENT;
    const bool keep = conv->w->dtype != EK_BF16 ||
                      (!weight && (uintptr_t)ek_tensor_address(conv->w) % sizeof(float) == 0);
    ek_conv c = *conv;
    ek_stage stage; /* Sums of bf16 are f32; words of weights are aligned. */
    if (c.bias && weight)
        EK_TRY(ek_conv_bias_gradient(dev, c.bias, c.y));
    EK_TRY(
        ek_stage_begin(&stage, dev, c.w, weight && !keep ? EK_F32 : c.w->dtype, 1, keep, !weight));
    c.w = stage.tensor;
    return ek_stage_end(&stage, dev, weight, columns_run_groups(dev, &c));
}

bool ek_conv_columns_can(const ek_conv *c, ek_dtype dtype)
{
    const ek_tensor *from = c->kind == EK_CONV_INPUT_GRADIENT ? c->y : c->x;
    return dtype != EK_BF16 ||
           (ek_host_has_bf16() &&
            (c->kind == EK_CONV_WEIGHT_GRADIENT || from->shape[1] / c->params->groups % 2 == 0));
}
