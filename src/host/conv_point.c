/* conv_point.c: convolution with windows of one element (1 x 1), and its gradients.
 *
 * All three are matrix products of inputs (positions, channels), weights (outputs, channels) and
 * outputs (positions, outputs), whose rows are read and written in place. Forward and input
 * gradient pack a group of weights, which stays in level 2 cache while rows pass by. The weight
 * gradient keeps a block of weights there. What comes next is prefetched meanwhile. An element's
 * sum runs over blocks of fixed length, so that it doesn't depend on the number of threads. */
#include "host/conv.h"

#include <stdatomic.h>
#include <string.h>

#include "host/gemm_kernel.h"
#include "host/host.h"
#include "host/isa.h"
#include "host/parallel.h"

enum {
    DEPTH_AT_ONCE = 512,      /* of a sum: sums of sums are more exact than one long sum */
    GROUP_NBYTES = 256 << 10, /* packed weights: a part of the level 2 cache */
    POSITIONS_AT_ONCE = 256,  /* of a sum over positions: a panel stays in level 1 cache */
    BLOCK = 512,              /* the most channels, or outputs, of a block of weights */
    OFTEN = 8,                /* a copy pays if it is read so many times */
    FAR = 1024,               /* floats between rows that fall to one place of level 1 cache */
    SQUARE = 8,
    LINE = 16 /* floats in a cache line */
};

typedef struct job {
    const ek_gemm_kernel *kernel;
    bool gradient; /* the input gradient */
    float *x, *y, *w, *bias;
    int64_t channels, outputs, in[2], out[2], stride[2];
    int64_t positions; /* of all of y */
    bool dense;        /* position p of y is position p of x */
    int64_t panels;    /* as wide as the kernel */

    /* Forward and input gradient: to (positions, columns) = from (positions, depth) times weights.
     * A tile has a kernel's rows. A unit is a group of panels times a range of tiles. */
    const float *from;
    float *to;
    int64_t depth, columns, groups, group_depth, tiles, ranges;
    int64_t row_parts; /* tiles of a row of a plane, unless dense */

    /* Weight gradient: a tile has a kernel's outputs. A unit is a block of panels of channels times
     * a block of tiles. */
    int64_t row_tiles, row_blocks, panel_blocks, position_blocks;
    int64_t block_outputs; /* the most of a block */
    bool copies_x, copies_y;

    char *workspace; /* of each part */
    size_t workspace_stride;
    atomic_int next_part;
} job;

/* The position of x that belongs to a position of y. */
static int64_t point_of(const job *j, int64_t position)
{
    if (j->dense)
        return position;
    int64_t column = position % j->out[1], row = position / j->out[1];
    int64_t sample = row / j->out[0];
    row %= j->out[0];
    return (sample * j->in[0] + row * j->stride[0]) * j->in[1] + column * j->stride[1];
}

/* The memory of `count` positions: some channels of x, or some outputs of y. */
static ek_gemm_ahead point_ahead(const job *j, bool of_x, int64_t position, int64_t count,
                                 int64_t first, int64_t channels)
{
    const int64_t all = of_x ? j->channels : j->outputs, nbytes = all * (int64_t)sizeof(float);
    const float *from = of_x ? j->x + point_of(j, position) * all : j->y + position * all;
    ek_gemm_ahead ahead = {.run = (const char *)(from + first),
                           .runs = count,
                           .lines = ek_divide_up(channels, LINE),
                           .stride = nbytes};
    if (of_x && !j->dense) {
        ahead.stride = j->stride[1] * nbytes;
        ahead.row_runs = j->out[1];
        ahead.row_left = j->out[1] - position % j->out[1];
        ahead.row_skip = (j->stride[0] * j->in[1] - j->out[1] * j->stride[1]) * nbytes;
    }
    return ahead;
}

/* Spreads what is prefetched over so many steps along k. */
static void point_set_pace(ek_gemm_ahead *ahead, int64_t steps)
{
    ahead->pace = ek_divide_up(ahead->runs * ahead->lines * EK_GEMM_STRETCH, steps);
}

/* What the calling part of the work has to itself. */
static float *point_take_workspace(job *j)
{
    const int part = atomic_fetch_add(&j->next_part, 1);
    return (float *)(j->workspace + (size_t)part * j->workspace_stride);
}

/* Runs the units in parts, each with `count` floats of workspace. */
static int point_run(ek_dev *dev, job *j, int64_t units, int64_t work, int64_t count,
                     ek_parallel_body *body)
{
    const int64_t parts = ek_smaller(ek_parallel_threads(dev), units);
    j->workspace_stride = ek_round_up((size_t)count * sizeof(float));
    const size_t nbytes = (size_t)parts * j->workspace_stride;
    void *workspace;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &workspace));
    j->workspace = workspace;
    ek_parallel_for(dev, units, 1 + 50000 / (1 + work / units), body, j);
    ek_dev_free(dev, workspace, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}

/* ---- forward and input gradient ---- */

/* Weights that a thread packs, as deep as fits, and the tiles that pass by. */
typedef struct group {
    int64_t column, columns, first, depth;
    int64_t tile, tile_end;
    float *packed;
    float *out; /* a tile that cannot be computed in place; else NULL */
    int64_t out_stride;
} group;

static group point_group_at(const job *j, int64_t unit, int64_t first)
{
    const int64_t width = j->kernel->columns, index = unit / j->ranges, range = unit % j->ranges;
    group g = {.column = ek_part_of(j->panels, index, j->groups) * width,
               .first = first,
               .depth = ek_smaller(j->group_depth, j->depth - first),
               .tile = ek_part_of(j->tiles, range, j->ranges),
               .tile_end = ek_part_of(j->tiles, range + 1, j->ranges)};
    const int64_t end = ek_part_of(j->panels, index + 1, j->groups) * width;
    g.columns = ek_smaller(end, j->columns) - g.column;
    return g;
}

static ek_gemm_ahead point_ahead_of_group(const job *j, const group *g)
{
    const int64_t size = sizeof(float);
    if (j->gradient) /* w is (depth, columns) */
        return (ek_gemm_ahead){.run = (const char *)(j->w + g->first * j->columns + g->column),
                               .lines = ek_divide_up(g->columns, LINE),
                               .runs = g->depth,
                               .stride = j->columns * size};
    return (ek_gemm_ahead){.run = (const char *)(j->w + g->column * j->depth + g->first),
                           .lines = ek_divide_up(g->depth, LINE),
                           .runs = g->columns,
                           .stride = j->depth * size};
}

/* Packs panels (depth, the kernel's columns). */
static void point_pack(const job *j, const group *g)
{
    const int64_t width = j->kernel->columns, depth = g->depth;
    float *to = g->packed;
    for (int64_t column = 0; column < g->columns; column += width, to += depth * width) {
        const int64_t count = ek_smaller(width, g->columns - column);
        if (count < width)
            memset(to, 0, (size_t)(depth * width) * sizeof *to);
        if (j->gradient) { /* w is (depth, columns) */
            const float *from = j->w + g->first * j->columns + g->column + column;
            for (int64_t d = 0; d < depth; d++, from += j->columns)
                memcpy(to + d * width, from, (size_t)count * sizeof *to);
            continue;
        }
        const float *from = j->w + (g->column + column) * j->depth + g->first;
        const int64_t squares = count / SQUARE * SQUARE;
        int64_t done = 0; /* of the depth */
        for (int64_t c = 0; c < squares; c += SQUARE)
            done =
                ek_gemm_transpose_f32(to + c, width, from + c * j->depth, SQUARE, j->depth, depth);
        for (int64_t d = 0; d < depth; d++)
            for (int64_t c = d < done ? squares : 0; c < count; c++)
                to[d * width + c] = from[c * j->depth + d];
    }
}

/* Positions of y: any neighbours if dense, else neighbours in a row of a plane. */
typedef struct point_tile {
    int64_t position, count;
} point_tile;

static point_tile point_tile_at(const job *j, int64_t index)
{
    int64_t all = j->positions, parts = j->tiles, first = 0;
    if (!j->dense) {
        all = j->out[1];
        parts = j->row_parts;
        first = index / parts * all;
        index %= parts;
    }
    const int64_t begin = ek_part_of(all, index, parts);
    return (point_tile){first + begin, ek_part_of(all, index + 1, parts) - begin};
}

/* Writes zeros to the positions of x that lie between a tile's and the next one's. */
static void point_write_zeros(const job *j, const group *g, point_tile t)
{
    const int64_t end = t.position + t.count, plane = j->in[0] * j->in[1];
    int64_t at = point_of(j, t.position), next = at + t.count * j->stride[1];
    if (end % (j->out[0] * j->out[1]) == 0)
        next = (at / plane + 1) * plane;
    else if (end % j->out[1] == 0)
        next = point_of(j, end);
    const size_t nbytes = (size_t)g->columns * sizeof *j->to;
    for (int64_t r = 1, until; r <= t.count; r++, at = until) {
        until = r < t.count ? at + j->stride[1] : next;
        if (g->columns == j->columns)
            memset(j->to + (at + 1) * j->columns, 0, (size_t)(until - at - 1) * nbytes);
        else
            for (int64_t p = at + 1; p < until; p++)
                memset(j->to + p * j->columns + g->column, 0, nbytes);
    }
}

static void point_copy_rows(float *to, int64_t to_stride, const float *from, int64_t from_stride,
                            int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++, to += to_stride, from += from_stride)
        memcpy(to, from, (size_t)columns * sizeof *to);
}

/* Adds a group's products to a tile of its columns; its first ones to the bias or to nothing. */
static void point_compute_tile(const job *j, const group *g, ek_gemm_call *call, point_tile t)
{
    const int64_t width = j->kernel->columns, vector = width / 2;
    const int64_t x = point_of(j, t.position), x_step = j->dense ? 1 : j->stride[1];
    const int64_t from = j->gradient ? t.position : x, to = j->gradient ? x : t.position;
    const int64_t to_row = (j->gradient ? x_step : 1) * j->columns;
    const float *a = j->from + from * j->depth + g->first;
    float *c = j->to + to * j->columns + g->column, *out = g->out ? g->out : c;
    call->a_row = (j->gradient ? 1 : x_step) * j->depth;
    call->c_row = g->out ? g->out_stride : to_row;
    call->add = g->first > 0 || j->bias;
    if (g->first > 0 && g->out)
        point_copy_rows(out, call->c_row, c, to_row, t.count, g->columns);
    else if (g->first == 0 && j->bias)
        point_copy_rows(out, call->c_row, j->bias + g->column, 0, t.count, g->columns);
    for (int64_t d = 0; d < g->depth; d += DEPTH_AT_ONCE, call->add = true) {
        call->k = ek_smaller(DEPTH_AT_ONCE, g->depth - d);
        call->a = a + d;
        for (int64_t column = 0; column < g->columns; column += width) {
            const int vectors = g->columns - column > vector ? 2 : 1;
            call->b = g->packed + column * g->depth + d * width;
            call->c = out + column;
            j->kernel->inner[vectors - 1][t.count - 1](call);
        }
    }
    if (g->out)
        point_copy_rows(c, to_row, out, call->c_row, t.count, g->columns);
    if (j->gradient && !j->dense && g->first == 0)
        point_write_zeros(j, g, t);
}

static void point_compute_groups(void *context, int64_t begin, int64_t end)
{
    job *j = context;
    const int64_t width = j->kernel->columns, blocks = ek_divide_up(j->depth, j->group_depth);
    float *own = point_take_workspace(j);
    for (int64_t i = begin * blocks; i < end * blocks; i++) {
        group g = point_group_at(j, i / blocks, i % blocks * j->group_depth);
        const int64_t padded = ek_divide_up(g.columns, width) * width;
        const int64_t steps = padded / width * g.depth;
        g.packed = own;
        g.out = j->columns % (width / 2) != 0 ? own + padded * g.depth : NULL;
        g.out_stride = padded;
        point_pack(j, &g);
        ek_gemm_ahead weights = {.runs = 0};
        if (i + 1 < end * blocks) {
            const group next =
                point_group_at(j, (i + 1) / blocks, (i + 1) % blocks * j->group_depth);
            weights = point_ahead_of_group(j, &next);
            point_set_pace(&weights, steps * (g.tile_end - g.tile));
        }
        for (int64_t k = g.tile; k < g.tile_end; k++) {
            ek_gemm_ahead rows = {.runs = 0};
            if (k + 1 < g.tile_end) {
                const point_tile next = point_tile_at(j, k + 1);
                rows = point_ahead(j, !j->gradient, next.position, next.count, g.first, g.depth);
                point_set_pace(&rows, steps);
            }
            ek_gemm_call call = {.a_depth = 1,
                                 .b_depth = width,
                                 .next_a = &rows,
                                 .next_b = &weights};
            point_compute_tile(j, &g, &call, point_tile_at(j, k));
        }
    }
}

static int point_multiply(ek_dev *dev, job *j)
{
    const int64_t size = sizeof(float), width = j->kernel->columns, most = j->kernel->rows;
    const int threads = ek_parallel_threads(dev);
    j->from = j->gradient ? j->y : j->x;
    j->to = j->gradient ? j->x : j->y;
    j->depth = j->gradient ? j->outputs : j->channels;
    j->columns = j->gradient ? j->channels : j->outputs;
    j->panels = ek_divide_up(j->columns, width);
    j->row_parts = ek_divide_up(j->out[1], most);
    j->tiles =
        j->dense ? ek_divide_up(j->positions, most) : j->positions / j->out[1] * j->row_parts;
    const int64_t panel_nbytes = ek_smaller(j->depth, DEPTH_AT_ONCE) * width * size;
    j->groups = ek_divide_up(j->panels, ek_larger(GROUP_NBYTES / panel_nbytes, 1));
    j->ranges = j->groups % threads == 0 ? 1 : ek_smaller(threads, j->tiles);
    const int64_t columns = ek_divide_up(j->panels, j->groups) * width;
    const int64_t depths = ek_larger(GROUP_NBYTES / (columns * size * DEPTH_AT_ONCE), 1);
    j->group_depth = ek_smaller(depths * DEPTH_AT_ONCE, j->depth);
    return point_run(dev, j, j->groups * j->ranges, j->positions * j->depth * j->columns,
                     columns * (j->group_depth + most), point_compute_groups);
}

/* ---- weight gradient ---- */

typedef struct unit {
    int64_t panel, panels, tile, tiles;
    int64_t output, outputs;
} unit;

static unit point_unit_at(const job *j, int64_t index)
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

/* Copies a panel's channels of some positions of x. Inlined for each width, so that vectors are
 * copied. */
static inline __attribute__((always_inline)) void point_copy_width(const job *j, float *to,
                                                                   int64_t position, int64_t count,
                                                                   int64_t channel,
                                                                   int64_t channels, int64_t width)
{
    for (int64_t i = 0, next; i < count; i = next) { /* positions that lie equally far apart */
        next = j->dense ? count : ek_smaller(count, i + j->out[1] - (position + i) % j->out[1]);
        const float *from = j->x + point_of(j, position + i) * j->channels + channel;
        const int64_t step = (j->dense ? 1 : j->stride[1]) * j->channels;
        for (int64_t k = i; k < next; k++, to += width, from += step)
            memcpy(to, from, (size_t)channels * sizeof *to);
    }
}

static void point_copy_panel(const job *j, float *to, int64_t position, int64_t count,
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
static void point_copy_outputs(const job *j, const unit *u, float *to, int64_t position,
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

/* Sums the bias's gradient, in the units that have the first panel. */
static void point_sum_bias(const job *j, const unit *u, double *totals, int64_t block)
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

/* Adds what some positions give to a unit's part of a panel. `y` has the unit's outputs of the
 * positions, or is NULL if they are read in place. */
static void point_add_panel(const job *j, const unit *u, ek_gemm_call *call, int64_t position,
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
    job *j = context;
    const int64_t blocks = j->position_blocks, width = j->kernel->columns;
    float *own = point_take_workspace(j), *copy = own + POSITIONS_AT_ONCE * width;
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

static int point_multiply_weights(ek_dev *dev, job *j)
{
    const int64_t width = j->kernel->columns, rows = j->kernel->rows;
    const int threads = ek_parallel_threads(dev);
    j->panels = ek_divide_up(j->channels, width);
    j->row_tiles = ek_divide_up(j->outputs, rows);
    j->panel_blocks = ek_divide_up(j->panels * width, BLOCK);
    j->row_blocks = ek_divide_up(j->outputs, BLOCK);
    j->position_blocks = ek_divide_up(j->positions, POSITIONS_AT_ONCE);
    /* Tiles of many outputs read a line of y less often. */
    j->copies_y = rows < OFTEN && j->outputs >= FAR && j->panels / j->panel_blocks >= OFTEN;
    j->copies_x = !j->dense || j->row_tiles >= OFTEN || j->channels % (width / 2) != 0;
    if (j->panel_blocks * j->row_blocks % threads != 0)
        j->row_blocks = ek_smaller(ek_divide_up(j->row_blocks, threads) * threads, j->row_tiles);
    j->block_outputs = ek_divide_up(j->row_tiles, j->row_blocks) * rows;
    const int64_t copies = width + (j->copies_y ? j->block_outputs : 0);
    const int64_t totals = j->block_outputs * (int64_t)(sizeof(double) / sizeof(float));
    return point_run(dev, j, j->panel_blocks * j->row_blocks,
                     j->positions * j->channels * j->outputs, POSITIONS_AT_ONCE * copies + totals,
                     point_compute_units);
}

/* ---- a call ---- */

bool ek_conv_point_can(const ek_tensor *x, const ek_tensor *w, const ek_conv_params *params)
{
    bool can = (x->dtype == EK_F32 || x->dtype == EK_BF16) && params->dims == 2;
    for (int d = 0; d < 2 && can; d++)
        can = w->shape[2 + d] == 1 && params->padding[d] == 0;
    return can && params->groups == 1;
}

int ek_conv_point(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                  const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params)
{
    job j = {.kernel = ek_gemm_kernel_best(EK_F32),
             .gradient = kind == EK_CONV_INPUT_GRADIENT,
             .x = ek_tensor_address(x),
             .y = ek_tensor_address(y),
             .w = ek_tensor_address(w),
             .channels = x->shape[1],
             .outputs = y->shape[1],
             .positions = y->shape[0] * y->shape[2] * y->shape[3],
             .dense = true};
    for (int d = 0; d < 2; d++) {
        j.in[d] = x->shape[2 + d];
        j.out[d] = y->shape[2 + d];
        j.stride[d] = params->stride[d];
        j.dense = j.dense && j.in[d] == j.out[d];
    }
    if (bias && kind != EK_CONV_INPUT_GRADIENT)
        j.bias = ek_tensor_address(bias);
    return kind == EK_CONV_WEIGHT_GRADIENT ? point_multiply_weights(dev, &j)
                                           : point_multiply(dev, &j);
}

/* Measured against oneDNN 2.6 on a Zen 5 core, with AVX-512 and with AVX2. With fewer channels
 * panels are half empty, or sums too short: 64 to 64 forward reaches 82 % of the peak with AVX-512,
 * oneDNN 94 %. Strided planes' rows that fill few rows of a tile leave
 * units waiting. */
bool ek_conv_point_wins(ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                        const ek_tensor *y, const ek_conv_params *params)
{
    enum { LEAST_CHANNELS = 64, WHOLE = 16, LEAST_ROWS = 5 };
    if (!ek_conv_point_can(x, w, params) || ek_host_isa() < EK_ISA_AVX2)
        return false;
    const int64_t c = x->shape[1], o = y->shape[1];
    if (ek_smaller(c, o) < LEAST_CHANNELS || c % WHOLE != 0 || o % WHOLE != 0)
        return false;
    if (kind == EK_CONV_WEIGHT_GRADIENT)
        return true;
    if (kind == EK_CONV_FORWARD && ek_host_isa() == EK_ISA_AVX512 &&
        ek_larger(c, o) < 2 * LEAST_CHANNELS)
        return false;
    const bool dense = x->shape[2] == y->shape[2] && x->shape[3] == y->shape[3];
    const int64_t parts = ek_divide_up(y->shape[3], ek_gemm_kernel_best(EK_F32)->rows);
    return dense || y->shape[3] >= LEAST_ROWS * parts;
}
