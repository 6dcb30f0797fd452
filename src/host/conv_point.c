/* conv_point.c: convolution with windows of one element (1 x 1), and its gradients.
 *
 * All three are matrix products of inputs (positions, channels), weights (outputs, channels) and
 * outputs (positions, outputs), whose rows are read and written in place. Forward and input
 * gradient pack a group of weights, which stays in level 2 cache while one row after another is
 * computed, and prefetch the next rows. An element's sum runs over blocks of fixed length, so
 * that the sum doesn't depend on the number of threads. The weight gradient is in
 * conv_point_weight.c. */
#include "host/conv_point.h"

#include <string.h>

#include "host/host.h"
#include "host/isa.h"

enum {
    DEPTH_AT_ONCE = 512,      /* the longest sum: sums of sums are more exact */
    GROUP_NBYTES = 256 << 10, /* packed weights: a part of the level 2 cache */
    SQUARE = 8,
    LINE = 16 /* floats in a cache line */
};

ek_gemm_ahead ek_point_ahead(const ek_point *j, bool of_x, int64_t position, int64_t count,
                             int64_t first, int64_t channels)
{
    const int64_t all = of_x ? j->channels : j->outputs, nbytes = all * (int64_t)sizeof(float);
    const float *from = of_x ? j->x + ek_point_of(j, position) * all : j->y + position * all;
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

void ek_point_set_pace(ek_gemm_ahead *ahead, int64_t steps)
{
    ahead->pace = ek_divide_up(ahead->runs * ahead->lines * EK_GEMM_STRETCH, steps);
}

float *ek_point_take_workspace(ek_point *j)
{
    const int part = atomic_fetch_add(&j->next_part, 1);
    return (float *)(j->workspace + (size_t)part * j->workspace_stride);
}

int ek_point_run(ek_dev *dev, ek_point *j, int64_t units, int64_t work, int64_t count,
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

/* A group of weights that a thread packs, as deep as fits into the cache, and the tiles that the
 * thread computes with the group. */
typedef struct group {
    int64_t column, columns, first, depth;
    int64_t tile, tile_end;
    float *packed;
    float *out; /* memory for a tile that cannot be computed in place; else NULL */
    int64_t out_stride;
} group;

static group point_group_at(const ek_point *j, int64_t unit, int64_t first)
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

static ek_gemm_ahead point_ahead_of_group(const ek_point *j, const group *g)
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

/* Packs a group's weights as panels (depth, the kernel's columns). */
static void point_pack(const ek_point *j, const group *g)
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

/* Neighbouring positions of y; if x is strided, all in one row of a plane. */
typedef struct point_tile {
    int64_t position, count;
} point_tile;

static point_tile point_tile_at(const ek_point *j, int64_t index)
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

/* Writes zeros to the positions of x between those of a tile and the next tile. */
static void point_write_zeros(const ek_point *j, const group *g, point_tile t)
{
    const int64_t end = t.position + t.count, plane = j->in[0] * j->in[1];
    int64_t at = ek_point_of(j, t.position), next = at + t.count * j->stride[1];
    if (end % (j->out[0] * j->out[1]) == 0)
        next = (at / plane + 1) * plane;
    else if (end % j->out[1] == 0)
        next = ek_point_of(j, end);
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

/* Adds a group's products to a tile of the group's columns. The first products are added to the
 * bias or to 0. */
static void point_compute_tile(const ek_point *j, const group *g, ek_gemm_call *call, point_tile t)
{
    const int64_t width = j->kernel->columns, vector = width / 2;
    const int64_t x = ek_point_of(j, t.position), x_step = j->dense ? 1 : j->stride[1];
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
    ek_point *j = context;
    const int64_t width = j->kernel->columns, blocks = ek_divide_up(j->depth, j->group_depth);
    float *own = ek_point_take_workspace(j);
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
            ek_point_set_pace(&weights, steps * (g.tile_end - g.tile));
        }
        for (int64_t k = g.tile; k < g.tile_end; k++) {
            ek_gemm_ahead rows = {.runs = 0};
            if (k + 1 < g.tile_end) {
                const point_tile next = point_tile_at(j, k + 1);
                rows = ek_point_ahead(j, !j->gradient, next.position, next.count, g.first, g.depth);
                ek_point_set_pace(&rows, steps);
            }
            ek_gemm_call call = {.a_depth = 1,
                                 .b_depth = width,
                                 .next_a = &rows,
                                 .next_b = &weights};
            point_compute_tile(j, &g, &call, point_tile_at(j, k));
        }
    }
}

static int point_multiply(ek_dev *dev, ek_point *j)
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
    return ek_point_run(dev, j, j->groups * j->ranges, j->positions * j->depth * j->columns,
                        columns * (j->group_depth + most), point_compute_groups);
}

/* ---- a call ---- */

bool ek_conv_point_can(const ek_tensor *x, const ek_tensor *w, const ek_conv_params *params)
{
    bool can = ek_dtype_wide(x->dtype) == EK_F32 && params->dims == 2;
    for (int d = 0; d < 2 && can; d++)
        can = w->shape[2 + d] == 1 && params->padding[d] == 0;
    return can && params->groups == 1;
}

int ek_conv_point(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                  const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params)
{
    ek_point j = {.kernel = ek_gemm_kernel_best(EK_F32),
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
    return kind == EK_CONV_WEIGHT_GRADIENT ? ek_point_weight(dev, &j) : point_multiply(dev, &j);
}

/* The limits were measured against oneDNN 2.6 on a Zen 5 core, with AVX-512 and with AVX2. With
 * fewer channels, panels are half empty, or sums are too short: from 64 to 64 channels, forward
 * reaches 82 % of the peak with AVX-512, oneDNN 94 %. If the rows of strided planes fill few rows
 * of a tile, execution units wait. */
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
