/* conv_point_weight.c: the weight gradient of convolutions with windows of one element.
 *
 * A block of weights stays in level 2 cache while a thread goes over inputs and outputs, one block
 * of positions after another. */
#include <string.h>

#include "host/conv_point.h"
#include "host/host.h"

enum {
    POSITIONS_AT_ONCE = 256, /* positions of one sum: their panel stays in level 1 cache */
    BLOCK = 512,             /* the most channels, or outputs, of a block of weights */
    OFTEN = 8,               /* a copy pays if it is read at least so many times */
    FAR = 1024               /* floats between rows that share one set of level 1 cache */
};

typedef struct unit {
    int64_t panel, panels, tile, tiles;
    int64_t output, outputs;
} unit;

static unit point_unit_at(const ek_point *j, int64_t index)
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

/* Copies a panel's channels of some positions of x. It is inlined for each width, so that it copies
 * vectors. */
static inline __attribute__((always_inline)) void point_copy_width(const ek_point *j, float *to,
                                                                   int64_t position, int64_t count,
                                                                   int64_t channel,
                                                                   int64_t channels, int64_t width)
{
    for (int64_t i = 0, next; i < count; i = next) { /* positions that lie equally far apart */
        next = j->dense ? count : ek_smaller(count, i + j->out[1] - (position + i) % j->out[1]);
        const float *from = j->x + ek_point_of(j, position + i) * j->channels + channel;
        const int64_t step = (j->dense ? 1 : j->stride[1]) * j->channels;
        for (int64_t k = i; k < next; k++, to += width, from += step)
            memcpy(to, from, (size_t)channels * sizeof *to);
    }
}

static void point_copy_panel(const ek_point *j, float *to, int64_t position, int64_t count,
                             int64_t panel)
{
    const int64_t width = j->kernel->columns, channel = panel * width;
    const int64_t channels = ek_smaller(width, j->channels - channel);
    if (channels < width) {
        memset(to, 0, (size_t)(count * width) * sizeof *to);
        point_copy_width(j, to, position, count, channel, channels, width);
    } else if (width == 32) {
        point_copy_width(j, to, position, count, channel, 32, 32);
    } else if (width == 16) {
        point_copy_width(j, to, position, count, channel, 16, 16);
    } else {
        point_copy_width(j, to, position, count, channel, width, width);
    }
}

/* Copies a unit's outputs of some positions of y, tile by tile. */
static void point_copy_outputs(const ek_point *j, const unit *u, float *to, int64_t position,
                               int64_t count)
{
    for (int64_t tile = u->tile; tile < u->tile + u->tiles; tile++) {
        const int64_t output = ek_part_of(j->outputs, tile, j->row_tiles);
        const int64_t rows = ek_part_of(j->outputs, tile + 1, j->row_tiles) - output;
        const float *from = j->y + position * j->outputs + output;
        for (int64_t i = 0; i < count; i++, to += rows, from += j->outputs)
            for (int64_t r = 0; r < rows; r++)
                to[r] = from[r];
    }
}

/* Adds a block of positions to the bias's gradient of a unit. Only units with the first panel do
 * this. */
static void point_sum_bias(const ek_point *j, const unit *u, double *totals, int64_t block)
{
    const int64_t position = ek_part_of(j->positions, block, j->position_blocks);
    const int64_t next = ek_part_of(j->positions, block + 1, j->position_blocks);
    if (!j->bias || u->panel > 0)
        return;
    if (block == 0)
        memset(totals, 0, (size_t)u->outputs * sizeof *totals);
    ek_conv_add_rows(totals, j->y + position * j->outputs + u->output, next - position, j->outputs,
                     u->outputs);
    for (int64_t o = 0; o < u->outputs && block == j->position_blocks - 1; o++)
        j->bias[u->output + o] = (float)totals[o];
}

/* Adds the products of some positions to a unit's part of a panel. `y` has copies of the unit's
 * outputs of the positions. If `y` is NULL, the outputs are read in place. */
static void point_add_panel(const ek_point *j, const unit *u, ek_gemm_call *call, int64_t position,
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
    ek_point *j = context;
    const int64_t blocks = j->position_blocks, width = j->kernel->columns;
    float *own = ek_point_take_workspace(j), *copy = own + POSITIONS_AT_ONCE * width;
    double *totals = (double *)(copy + (j->copies_y ? POSITIONS_AT_ONCE * j->block_outputs : 0));
    for (int64_t i = begin * blocks; i < end * blocks; i++) {
        const int64_t position = ek_part_of(j->positions, i % blocks, blocks);
        const int64_t count = ek_part_of(j->positions, i % blocks + 1, blocks) - position;
        const unit u = point_unit_at(j, i / blocks);
        ek_gemm_ahead y = {.runs = 0}, next_x = {.runs = 0};
        if (i + 1 < end * blocks) {
            const int64_t block = (i + 1) % blocks, from = ek_part_of(j->positions, block, blocks);
            const int64_t length = ek_part_of(j->positions, block + 1, blocks) - from;
            const unit next = point_unit_at(j, (i + 1) / blocks);
            y = ek_point_ahead(j, false, from, length, next.output, next.outputs);
            next_x = ek_point_ahead(j, true, from, length, next.panel * width, width);
        }
        ek_point_set_pace(&y, u.panels * u.tiles * count);
        point_sum_bias(j, &u, totals, i % blocks);
        if (j->copies_y)
            point_copy_outputs(j, &u, copy, position, count);
        for (int64_t panel = u.panel; panel < u.panel + u.panels; panel++) {
            ek_gemm_ahead x = next_x;
            if (panel + 1 < u.panel + u.panels)
                x = ek_point_ahead(j, true, position, count, (panel + 1) * width, width);
            ek_point_set_pace(&x, u.tiles * count);
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

int ek_point_weight(ek_dev *dev, ek_point *j)
{
    const int64_t width = j->kernel->columns, rows = j->kernel->rows;
    const int threads = ek_parallel_threads(dev);
    j->panels = ek_divide_up(j->channels, width);
    j->row_tiles = ek_divide_up(j->outputs, rows);
    j->panel_blocks = ek_divide_up(j->panels * width, BLOCK);
    j->row_blocks = ek_divide_up(j->outputs, BLOCK);
    j->position_blocks = ek_divide_up(j->positions, POSITIONS_AT_ONCE);
    j->copies_y = j->outputs >= FAR && j->panels / j->panel_blocks >= OFTEN;
    j->copies_x = !j->dense || j->row_tiles >= OFTEN || j->channels % (width / 2) != 0;
    if (j->panel_blocks * j->row_blocks % threads != 0)
        j->row_blocks = ek_smaller(ek_divide_up(j->row_blocks, threads) * threads, j->row_tiles);
    j->block_outputs = ek_divide_up(j->row_tiles, j->row_blocks) * rows;
    const int64_t copies = width + (j->copies_y ? j->block_outputs : 0);
    const int64_t totals = j->block_outputs * (int64_t)(sizeof(double) / sizeof(float));
    return ek_point_run(dev, j, j->panel_blocks * j->row_blocks,
                        j->positions * j->channels * j->outputs,
                        POSITIONS_AT_ONCE * copies + totals, point_compute_units);
}
