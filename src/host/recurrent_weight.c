/* recurrent_weight.c: the gradients of a recurrent layer's weights and biases, from those of the
 * sums of gates of all steps.
 *
 * Both weights are multiplied by rows of the same matrix, so that its panels are packed once, and
 * biases are summed from the panels. A panel is multiplied by a block of rows of x and of h, which
 * are read in place. All panels of a thread use the block while it stays in level 2 cache. An
 * element's sum runs over the samples of all steps in blocks, as those of gemm_blocked.c. Biases
 * are summed in f64. */
#include "core/multiversion.h"
#include "host/gemm_blocked.h"
#include "host/gemm_kernel.h"
#include "host/host.h"
#include "host/parallel.h"

enum {
    WEIGHT_CHUNK = 4,             /* Panels that are packed together. */
    WEIGHT_SIDE_NBYTES = 1 << 20, /* The most of a block of x and h. */
    WEIGHT_TILES = 2              /* For each thread. */
};

/* One of the products. Element (r, c) of dw is the sum over samples s of sums (s, r) times
 * x (s, c). */
typedef struct weight_side {
    const char *x;
    int64_t columns; /* 0: the product isn't wanted. */
    char *dw;
    int64_t dw_row;
    const ek_tensor *bias; /* NULL: its gradient isn't wanted. */
} weight_side;

/* Columns of the sums' gradient from `column` on, whose products are rows of dw from `row` on. */
typedef struct weight_range {
    int64_t column, row, count;
    bool has[2]; /* By side: x, h. */
} weight_range;

typedef struct weight_job {
    const ek_gemm_kernel *kernel;
    int64_t size, samples, block;
    const char *sums;
    int64_t sums_row;
    weight_side sides[2];
    weight_range ranges[3];
    int range_count;
    int64_t panels, tiles;
    char *packed;
    int64_t chunk_nbytes;
    double *totals; /* A sum of each column. */
} weight_job;

static int64_t weight_panels(const weight_job *j, const weight_range *range)
{
    return ek_divide_up(range->count, j->kernel->rows);
}

/* Adds the columns of a panel of f32 to sums. A few rows are added in f32 first. */
static inline __attribute__((always_inline)) void weight_add_width(double *sums, const float *panel,
                                                                   int64_t depth, int width)
{
    enum { FEW = 8 };
    for (int64_t d = 0; d < depth; d += FEW) {
        const int64_t rows = ek_smaller(FEW, depth - d);
        float own[2][EK_GEMM_ROWS] = {{0}};
        for (int64_t e = 0; e < rows; e++)
            for (int r = 0; r < width; r++)
                own[e % 2][r] += panel[(d + e) * width + r];
        for (int r = 0; r < width; r++)
            sums[r] += own[0][r] + own[1][r];
    }
}

EK_MULTIVERSION
static void weight_add_f32(double *sums, const float *panel, int64_t depth, int width)
{
    if (width == 12)
        weight_add_width(sums, panel, depth, 12);
    else if (width == 6)
        weight_add_width(sums, panel, depth, 6);
    else
        weight_add_width(sums, panel, depth, width);
}

/* Adds the columns of a packed panel to their totals, and writes biases of these totals. */
static void weight_sum(const weight_job *j, const weight_range *range, const char *packed,
                       int64_t row, int64_t rows, int64_t first, int64_t depth)
{
    double *total = j->totals + range->column + row, sums[EK_GEMM_ROWS] = {0};
    const int64_t width = j->kernel->rows;
    if (j->size == sizeof(float))
        weight_add_f32(sums, (const float *)packed, depth, (int)width);
    for (int64_t i = 0; i < depth * width && j->size == sizeof(double); i++)
        sums[i % width] += ((const double *)packed)[i];
    for (int64_t r = 0; r < rows; r++)
        total[r] = (first > 0 ? total[r] : 0) + sums[r];
    for (int side = 0; side < 2; side++) {
        const ek_tensor *bias = range->has[side] ? j->sides[side].bias : NULL;
        for (int64_t r = 0; bias && r < rows; r++) {
            const int64_t at = (range->row + row + r) * bias->stride[0];
            if (j->size == sizeof(float))
                ((float *)ek_tensor_address(bias))[at] = (float)total[r];
            else
                ((double *)ek_tensor_address(bias))[at] = total[r];
        }
    }
}

/* Multiplies a packed panel by a block of a side's rows from `first` on. */
static void weight_multiply(const weight_job *j, const weight_side *side, const char *packed,
                            int64_t row, int64_t rows, int64_t first, int64_t depth,
                            ek_gemm_ahead *ahead)
{
    const int64_t width = j->kernel->columns, vector = width / 2, size = j->size;
    ek_gemm_ahead none = {.runs = 0};
    for (int64_t column = 0; column < side->columns; column += width) {
        const ek_gemm_call call = {.k = depth,
                                   .a = packed,
                                   .a_row = 1,
                                   .a_depth = j->kernel->rows,
                                   .b = side->x + (first * side->columns + column) * size,
                                   .b_depth = side->columns,
                                   .c = side->dw + (row * side->dw_row + column) * size,
                                   .c_row = side->dw_row,
                                   .add = first > 0,
                                   .next_a = &none,
                                   .next_b = ahead};
        j->kernel->inner[side->columns - column > vector][rows - 1](&call);
    }
}

/* Multiplies panels [begin, end) of a range by a block. Meanwhile the next block is prefetched. */
static void weight_range_block(const weight_job *j, const weight_range *range, int64_t begin,
                               int64_t end, int64_t first, char *packed, ek_gemm_ahead *ahead)
{
    const int64_t most = j->kernel->rows, depth = ek_smaller(j->block, j->samples - first);
    for (int64_t panel = begin; panel < end; panel += WEIGHT_CHUNK) {
        const int64_t row = panel * most,
                      rows =
                          ek_smaller(ek_smaller(end, panel + WEIGHT_CHUNK) * most, range->count) -
                          row;
        const char *from = j->sums + (first * j->sums_row + range->column + row) * j->size;
        if (j->size == sizeof(float))
            ek_gemm_pack_f32((float *)packed, (const float *)from, rows, depth, (int)most, 1,
                             j->sums_row);
        else
            ek_gemm_pack_f64((double *)packed, (const double *)from, rows, depth, (int)most, 1,
                             j->sums_row);
        for (int64_t r = 0; r < rows; r += most) {
            const char *panel_of = packed + r * depth * j->size;
            const int64_t lines = ek_smaller(most, rows - r);
            for (int side = 0; side < 2; side++)
                if (range->has[side])
                    weight_multiply(j, &j->sides[side], panel_of, range->row + row + r, lines,
                                    first, depth, &ahead[side]);
            if (j->sides[0].bias || j->sides[1].bias)
                weight_sum(j, range, panel_of, row + r, lines, first, depth);
        }
    }
}

static void weight_run(void *context, int64_t begin, int64_t end)
{
    const weight_job *j = context;
    const int64_t first_panel = ek_part_of(j->panels, begin, j->tiles),
                  last_panel = ek_part_of(j->panels, end, j->tiles);
    char *packed = j->packed + begin * j->chunk_nbytes;
    for (int64_t first = 0; first < j->samples; first += j->block) {
        ek_gemm_ahead ahead[2];
        for (int side = 0; side < 2; side++) {
            const weight_side *s = &j->sides[side];
            const int64_t next = ek_smaller(first + j->block, j->samples),
                          rows = ek_smaller(j->block, j->samples - next);
            ahead[side] = (ek_gemm_ahead){.run = s->x + next * s->columns * j->size,
                                          .lines = rows * s->columns * j->size / 64,
                                          .runs = rows > 0 && s->columns > 0};
            /* Each of the panels passes by `columns` / `width` panels of columns. */
            ahead[side].pace = 1 + ahead[side].lines * EK_GEMM_STRETCH * j->kernel->columns /
                                       (1 + (last_panel - first_panel) * j->block * s->columns);
        }
        int64_t at = 0;
        for (int i = 0; i < j->range_count; i++) {
            const int64_t panels = weight_panels(j, &j->ranges[i]);
            const int64_t from = ek_larger(0, ek_smaller(first_panel - at, panels)),
                          to = ek_larger(0, ek_smaller(last_panel - at, panels));
            weight_range_block(j, &j->ranges[i], from, to, first, packed, ahead);
            at += panels;
        }
    }
}

/* Returns true if the products of a side's columns fill vectors. */
static bool weight_fills(const weight_job *j, const ek_tensor *dw)
{
    return !dw || (dw->shape[1] % (j->kernel->columns / 2) == 0 && dw->stride[1] == 1);
}

/* Lists which columns are multiplied by what. */
static void weight_list(weight_job *j, ek_recurrent_cell cell, int64_t hidden)
{
    bool has[2];
    for (int i = 0; i < 2; i++)
        has[i] = j->sides[i].columns > 0 || j->sides[i].bias;
    if (cell != EK_CELL_GRU) {
        j->ranges[j->range_count++] = (weight_range){0, 0, j->sums_row, {has[0], has[1]}};
    } else { /* The n of x and that of the product have sums of their own. */
        j->ranges[j->range_count++] = (weight_range){0, 0, 2 * hidden, {has[0], has[1]}};
        for (int i = 0; i < 2; i++)
            if (has[i])
                j->ranges[j->range_count++] =
                    (weight_range){(2 + i) * hidden, 2 * hidden, hidden, {i == 0, i == 1}};
    }
    for (int i = 0; i < j->range_count; i++)
        j->panels += weight_panels(j, &j->ranges[i]);
}

int ek_host_recurrent_parameters_gradient(ek_dev *dev, const ek_recurrent_steps *steps,
                                          const ek_tensor *dsums,
                                          const ek_recurrent_parameters *gradients)
{
    const ek_dtype dtype = dsums->dtype;
    const int64_t size = (int64_t)ek_dtype_size(dtype);
    weight_job j = {.size = size,
                    .samples = dsums->shape[0] * dsums->shape[1],
                    .block = EK_GEMM_BLOCK_NBYTES / size,
                    .sums = ek_tensor_address(dsums),
                    .sums_row = dsums->shape[2]};
    if ((dtype != EK_F32 && dtype != EK_F64) || j.samples == 0)
        return 0;
    j.kernel = ek_gemm_kernel_best(dtype);
    const char *states = (const char *)ek_tensor_address(steps->h) +
                         (steps->reverse ? steps->h->stride[0] * size : 0);
    int64_t columns = 0;
    for (int i = 0; i < 2; i++) {
        const ek_tensor *dw = gradients->weight[i];
        if (!weight_fills(&j, dw))
            return 0;
        j.sides[i].bias = gradients->bias[i];
        if (dw)
            j.sides[i] = (weight_side){.x = i ? states : ek_tensor_address(steps->x),
                                       .columns = dw->shape[1],
                                       .dw = ek_tensor_address(dw),
                                       .dw_row = dw->stride[0],
                                       .bias = gradients->bias[i]};
        columns += j.sides[i].columns;
    }
    if (columns == 0 || columns * EK_GEMM_BLOCK_NBYTES > WEIGHT_SIDE_NBYTES)
        return 0;
    weight_list(&j, steps->cell, steps->h->shape[2]);
    j.tiles = ek_smaller(WEIGHT_TILES * ek_parallel_threads(dev), j.panels);
    j.chunk_nbytes = WEIGHT_CHUNK * j.kernel->rows * j.block * size;
    const size_t chunks = (size_t)(j.tiles * j.chunk_nbytes),
                 nbytes = chunks + (size_t)j.sums_row * sizeof *j.totals;
    void *packed;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &packed));
    j.packed = packed;
    j.totals = (double *)(void *)(j.packed + chunks);
    ek_parallel_for(dev, j.tiles, 1, weight_run, &j);
    ek_dev_free(dev, packed, nbytes, EK_MEMORY_WORKSPACE);
    return 1;
}
