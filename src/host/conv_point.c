/* conv_point.c: the weight gradient of convolutions with windows of one element (1 x 1). Rows of
 * inputs (positions, channels) and of outputs' gradients (positions, outputs) are read in place.
 *
 * A block of weights stays in level 2 cache while a thread goes over inputs and outputs, one block
 * of positions after another, and prefetches the next rows. An element's sum runs over blocks of
 * fixed length, so that the sum doesn't depend on the number of threads. */
#include <stdatomic.h>
#include <string.h>

#include "core/multiversion.h"
#include "host/conv.h"
#include "host/gemm_blocked.h"
#include "host/gemm_kernel.h"
#include "host/host.h"
#include "host/parallel.h"

enum {
    POINT_POSITIONS = 256, /* Positions of one sum: their panel stays in level 1 cache. */
    POINT_BLOCK = 512,     /* The most channels, or outputs, of a block of weights. */
    POINT_OFTEN = 8,       /* A copy pays if it is read at least so many times. */
    POINT_FAR = 1024,      /* Floats between rows that share one set of level 1 cache. */
    POINT_LINE = 16        /* Floats in a cache line. */
};

typedef struct point_job {
    const ek_gemm_kernel *kernel;
    float *x, *y, *w, *bias;
    int64_t channels, outputs, in[2], out[2], stride[2];
    int64_t positions; /* All positions of y. */
    bool dense;        /* Position p of y is position p of x. */
    int64_t panels;    /* Their width is the kernel's. */
    /* A tile has a kernel's outputs. A unit is a block of panels of channels times a block of
     * tiles. */
    int64_t row_tiles, row_blocks, panel_blocks, position_blocks;
    int64_t block_outputs; /* The most outputs of a block. */
    bool copies_x, copies_y;
    char *workspace; /* Parts lie workspace_stride bytes apart. */
    size_t workspace_stride;
    atomic_int next_part;
} point_job;

/* Returns the position of x that belongs to a position of y. */
static int64_t point_of(const point_job *j, int64_t position)
{
    if (j->dense)
        return position;
    int64_t column = position % j->out[1], row = position / j->out[1];
    int64_t sample = row / j->out[0];
    row %= j->out[0];
    return (sample * j->in[0] + row * j->stride[0]) * j->in[1] + column * j->stride[1];
}

/* Returns what to prefetch of `count` positions of y from `position` on: `channels` outputs of y
 * from `first` on, or with `of_x` channels of x. */
static ek_gemm_ahead point_ahead(const point_job *j, bool of_x, int64_t position, int64_t count,
                                 int64_t first, int64_t channels)
{
    const int64_t all = of_x ? j->channels : j->outputs, nbytes = all * (int64_t)sizeof(float);
    const float *from = of_x ? j->x + point_of(j, position) * all : j->y + position * all;
    ek_gemm_ahead ahead = {.run = (const char *)(from + first),
                           .runs = count,
                           .lines = ek_divide_up(channels, POINT_LINE),
                           .stride = nbytes};
    if (of_x && !j->dense) {
        ahead.stride = j->stride[1] * nbytes;
        ahead.row_runs = j->out[1];
        ahead.row_left = j->out[1] - position % j->out[1];
        ahead.row_skip = (j->stride[0] * j->in[1] - j->out[1] * j->stride[1]) * nbytes;
    }
    return ahead;
}

/* Spreads the prefetching over `steps` steps along k. */
static void point_set_pace(ek_gemm_ahead *ahead, int64_t steps)
{
    ahead->pace = ek_divide_up(ahead->runs * ahead->lines * EK_GEMM_STRETCH, steps);
}

typedef struct unit {
    int64_t panel, panels, tile, tiles;
    int64_t output, outputs;
} unit;

static unit point_unit_at(const point_job *j, int64_t index)
{
    const int64_t row = index % j->row_blocks, column = index / j->row_blocks;
    unit u = {.panel = ek_part_of(j->panels, column, j->panel_blocks),
              .tile = ek_part_of(j->row_tiles, row, j->row_blocks)};
    u.panels = ek_part_of(j->panels, column + 1, j->panel_blocks) - u.panel;
    u.tiles = ek_part_of(j->row_tiles, row + 1, j->row_blocks) - u.tile;
    u.output = ek_part_of(j->outputs, u.tile, j->row_tiles);
    u.outputs = ek_part_of(j->outputs, u.tile + u.tiles, j->row_tiles) - u.output;
    return u;
}

/* Copies a panel's channels of some positions of x. */
static void point_copy_panel(const point_job *j, float *to, int64_t position, int64_t count,
                             int64_t panel)
{
    const int width = j->kernel->columns;
    const int64_t channel = panel * width, channels = ek_smaller(width, j->channels - channel);
    for (int64_t i = 0, next; i < count; i = next) { /* positions that lie equally far apart */
        next = j->dense ? count : ek_smaller(count, i + j->out[1] - (position + i) % j->out[1]);
        ek_gemm_pack_f32(to + i * width, j->x + point_of(j, position + i) * j->channels + channel,
                         channels, next - i, width, 1, (j->dense ? 1 : j->stride[1]) * j->channels);
    }
}

/* Copies a unit's outputs of some positions of y, tile by tile. */
static void point_copy_outputs(const point_job *j, const unit *u, float *to, int64_t position,
                               int64_t count)
{
    for (int64_t tile = u->tile; tile < u->tile + u->tiles; tile++) {
        const int64_t output = ek_part_of(j->outputs, tile, j->row_tiles);
        const int64_t rows = ek_part_of(j->outputs, tile + 1, j->row_tiles) - output;
        ek_gemm_pack_f32(to, j->y + position * j->outputs + output, rows, count, (int)rows, 1,
                         j->outputs);
        to += rows * count;
    }
}

/* Columns that are summed together. */
typedef float point_lanes __attribute__((vector_size(64), aligned(4), may_alias));

/* Adds `count` rows, which lie `stride` elements apart, to one total per column. */
EK_MULTIVERSION static void point_add_rows(double *totals, const float *rows, int64_t count,
                                           int64_t stride, int64_t columns)
{
    for (; columns >= POINT_LINE; columns -= POINT_LINE) {
        point_lanes sum = {0};
        for (int64_t i = 0; i < count; i++)
            sum += *(const point_lanes *)(rows + i * stride);
        for (int c = 0; c < POINT_LINE; c++)
            totals[c] += sum[c];
        rows += POINT_LINE;
        totals += POINT_LINE;
    }
    for (int64_t c = 0; c < columns; c++) {
        float sum = 0;
        for (int64_t i = 0; i < count; i++)
            sum += rows[i * stride + c];
        totals[c] += sum;
    }
}

/* Adds a block of positions to the bias's gradient of a unit. Only units with the first panel do
 * this. */
static void point_sum_bias(const point_job *j, const unit *u, double *totals, int64_t block)
{
    const int64_t position = ek_part_of(j->positions, block, j->position_blocks);
    const int64_t next = ek_part_of(j->positions, block + 1, j->position_blocks);
    if (!j->bias || u->panel > 0)
        return;
    if (block == 0)
        memset(totals, 0, (size_t)u->outputs * sizeof *totals);
    point_add_rows(totals, j->y + position * j->outputs + u->output, next - position, j->outputs,
                   u->outputs);
    for (int64_t o = 0; o < u->outputs && block == j->position_blocks - 1; o++)
        j->bias[u->output + o] = (float)totals[o];
}

/* Adds the products of some positions to a unit's part of a panel. `y` has copies of the unit's
 * outputs of the positions. If `y` is NULL, the outputs are read in place. */
static void point_add_panel(const point_job *j, const unit *u, ek_gemm_call *call, int64_t position,
                            int64_t panel, const float *y)
{
    const int64_t width = j->kernel->columns, vector = width / 2, channel = panel * width;
    const int64_t channels = ek_smaller(width, j->channels - channel);
    const int vectors = channels > vector ? 2 : 1;
    const bool whole = channels == vectors * vector, add = call->add;
    float sums[EK_GEMM_ROWS * EK_GEMM_COLUMNS];
    for (int64_t tile = u->tile; tile < u->tile + u->tiles; tile++) {
        const int64_t output = ek_part_of(j->outputs, tile, j->row_tiles);
        const int64_t rows = ek_part_of(j->outputs, tile + 1, j->row_tiles) - output;
        float *w = j->w + output * j->channels + channel;
        call->a = y ? y + (output - u->output) * call->k : j->y + position * j->outputs + output;
        call->a_depth = y ? rows : j->outputs;
        call->c = whole ? w : sums;
        call->c_row = whole ? j->channels : width;
        call->add = whole && add;
        j->kernel->inner[vectors - 1][rows - 1](call);
        for (int64_t r = 0; r < rows && !whole; r++, w += j->channels)
            for (int64_t c = 0; c < channels; c++)
                w[c] = (add ? w[c] : 0) + sums[r * width + c];
    }
    call->add = add;
}

static void point_compute_units(void *context, int64_t begin, int64_t end)
{
    point_job *j = context;
    const int64_t blocks = j->position_blocks, width = j->kernel->columns;
    float *own = (float *)(void *)(j->workspace + (size_t)atomic_fetch_add(&j->next_part, 1) *
                                                      j->workspace_stride),
          *copy = own + POINT_POSITIONS * width;
    double *totals = (double *)(copy + (j->copies_y ? POINT_POSITIONS * j->block_outputs : 0));
    for (int64_t i = begin * blocks; i < end * blocks; i++) {
        const int64_t position = ek_part_of(j->positions, i % blocks, blocks);
        const int64_t count = ek_part_of(j->positions, i % blocks + 1, blocks) - position;
        const unit u = point_unit_at(j, i / blocks);
        ek_gemm_ahead y = {.runs = 0}, next_x = {.runs = 0};
        if (i + 1 < end * blocks) {
            const int64_t block = (i + 1) % blocks, from = ek_part_of(j->positions, block, blocks);
            const int64_t length = ek_part_of(j->positions, block + 1, blocks) - from;
            const unit next = point_unit_at(j, (i + 1) / blocks);
            y = point_ahead(j, false, from, length, next.output, next.outputs);
            next_x = point_ahead(j, true, from, length, next.panel * width, width);
        }
        point_set_pace(&y, u.panels * u.tiles * count);
        point_sum_bias(j, &u, totals, i % blocks);
        if (j->copies_y)
            point_copy_outputs(j, &u, copy, position, count);
        for (int64_t panel = u.panel; panel < u.panel + u.panels; panel++) {
            ek_gemm_ahead x = next_x;
            if (panel + 1 < u.panel + u.panels)
                x = point_ahead(j, true, position, count, (panel + 1) * width, width);
            point_set_pace(&x, u.tiles * count);
            ek_gemm_call call = {.k = count,
                                 .a_row = 1,
                                 .b = j->x + position * j->channels + panel * width,
                                 .b_depth = j->channels,
                                 .add = i % blocks > 0,
                                 .next_a = &y,
                                 .next_b = &x};
            if (j->copies_x) {
                point_copy_panel(j, own, position, count, panel);
                call.b = own;
                call.b_depth = width;
            }
            point_add_panel(j, &u, &call, position, panel, j->copies_y ? copy : NULL);
        }
    }
}

bool ek_conv_point_can(const ek_conv *conv)
{
    const ek_conv_params *params = conv->params;
    bool can = ek_dtype_wide(conv->x->dtype) == EK_F32 && params->dims == 2;
    for (int d = 0; d < 2 && can; d++)
        can = conv->w->shape[2 + d] == 1 && params->padding[d] == 0;
    return can && params->groups == 1;
}

int ek_conv_point_weight(ek_dev *dev, const ek_conv *conv)
{
    const ek_tensor *x = conv->x, *y = conv->y;
    point_job j = {.kernel = ek_gemm_kernel_best(EK_F32),
                   .x = ek_tensor_address(x),
                   .y = ek_tensor_address(y),
                   .w = ek_tensor_address(conv->w),
                   .bias = conv->bias ? ek_tensor_address(conv->bias) : NULL,
                   .channels = x->shape[1],
                   .outputs = y->shape[1],
                   .positions = y->shape[0] * y->shape[2] * y->shape[3],
                   .dense = true};
    for (int d = 0; d < 2; d++) {
        j.in[d] = x->shape[2 + d];
        j.out[d] = y->shape[2 + d];
        j.stride[d] = conv->params->stride[d];
        j.dense = j.dense && j.in[d] == j.out[d];
    }
    const int64_t width = j.kernel->columns, rows = j.kernel->rows;
    const int threads = ek_parallel_threads(dev);
    j.panels = ek_divide_up(j.channels, width);
    j.row_tiles = ek_divide_up(j.outputs, rows);
    j.panel_blocks = ek_divide_up(j.panels * width, POINT_BLOCK);
    j.row_blocks = ek_divide_up(j.outputs, POINT_BLOCK);
    j.position_blocks = ek_divide_up(j.positions, POINT_POSITIONS);
    j.copies_y = j.outputs >= POINT_FAR && j.panels / j.panel_blocks >= POINT_OFTEN;
    j.copies_x = !j.dense || j.row_tiles >= POINT_OFTEN || j.channels % (width / 2) != 0;
    if (j.panel_blocks * j.row_blocks % threads != 0)
        j.row_blocks = ek_smaller(ek_divide_up(j.row_blocks, threads) * threads, j.row_tiles);
    j.block_outputs = ek_divide_up(j.row_tiles, j.row_blocks) * rows;
    const int64_t copies = width + (j.copies_y ? j.block_outputs : 0),
                  units = j.panel_blocks * j.row_blocks, parts = ek_smaller(threads, units),
                  work = j.positions * j.channels * j.outputs;
    j.workspace_stride = ek_round_up((size_t)(POINT_POSITIONS * copies) * sizeof(float) +
                                     (size_t)j.block_outputs * sizeof(double));
    const size_t nbytes = (size_t)parts * j.workspace_stride;
    void *workspace;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &workspace));
    j.workspace = workspace;
    ek_parallel_for(dev, units, 1 + 50000 / (1 + work / units), point_compute_units, &j);
    ek_dev_free(dev, workspace, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}
