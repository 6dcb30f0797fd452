/* winograd.c: convolution and its input gradient by Winograd's forms.
 *
 * A thread transforms the inputs of a block of tiles, multiplies them point by point with the
 * transformed weights, and transforms the products to outputs, all in its level 2 cache. Blocks
 * go to whoever is free: an output depends on its tile alone, and its sums run over channels in
 * order, so that results depend neither on blocks nor on threads. */
#include "host/winograd.h"

#include <stdatomic.h>
#include <string.h>

#include "host/host.h"
#include "host/isa.h"
#include "host/parallel.h"

enum {
    WEIGHTS_NBYTES = 9 << 19, /* the most transformed weights at a time: a part of level 3 */
    INPUTS_NBYTES =
        384 << 10,         /* what a block's transformed inputs should take: a part of level 2 */
    KEPT_NBYTES = 8 << 20, /* inputs are kept from one part of the weights to the next up to here */
    LEAST_TILES = 24,
    MOST_TILES = 96,
    OUTPUTS_AT_ONCE = 64, /* a multiple of all processors' columns */
    PACKED_CHANNELS = 8,
    MOST_POINTS = EK_WINOGRAD_POINTS * EK_WINOGRAD_POINTS,
    MOST_TAPS = 9
};

/* ---- plans ---- */

/* The geometry of y = x * w in one dimension. */
static ek_winograd_line winograd_forward_line(int64_t in, int64_t out, int64_t stride,
                                              int64_t padding)
{
    return (ek_winograd_line){.in = in,
                              .stride = stride,
                              .shift = -padding,
                              .tap_step = stride,
                              .out = out,
                              .out_stride = 1,
                              .to = out};
}

/* The geometry of x's elements with i % stride == part, whose gradient is a convolution of y's with
 * stride 1 and every stride-th tap of the window, turned. */
static ek_winograd_line winograd_gradient_line(int64_t x, int64_t y, int64_t taps, int64_t stride,
                                               int64_t padding, int64_t part)
{
    int64_t first = (part + padding) % stride, shift = (part + padding) / stride;
    return (ek_winograd_line){.in = y,
                              .stride = 1,
                              .shift = shift - taps + 1,
                              .first_tap = first + (taps - 1) * stride,
                              .tap_step = -stride,
                              .out = ek_divide_up(x - part, stride),
                              .out_stride = stride,
                              .out_shift = part,
                              .to = x};
}

/* Vectors are as long as the processor has them, if channels are multiples of their length. */
static const ek_winograd_form *winograd_form_for(const ek_tensor *w)
{
    bool wide = ek_host_isa() == EK_ISA_AVX512 && w->shape[0] % 16 == 0 && w->shape[1] % 16 == 0;
    return ek_winograd_form_of(2, w->shape[2] == 4 ? 2 : 3, wide ? 16 : 8);
}

static ek_winograd winograd_plan_lines(const ek_tensor *w, const ek_tensor *from,
                                       const ek_tensor *to, int parts,
                                       const ek_winograd_line lines[2])
{
    ek_winograd plan = {.form = winograd_form_for(w),
                        .line = {lines[0], lines[1]},
                        .samples = from->shape[0],
                        .channels = from->shape[1],
                        .outputs = to->shape[1],
                        .window = {w->shape[2], w->shape[3]},
                        .parts = parts,
                        .from = ek_tensor_address(from)};
    for (int d = 0; d < 2; d++)
        plan.line[d].tiles = ek_divide_up(lines[d].out, plan.form->outputs);
    plan.depth = plan.channels * parts * parts;
    plan.tiles = plan.samples * plan.line[0].tiles * plan.line[1].tiles;
    return plan;
}

ek_winograd ek_winograd_plan(const ek_tensor *x, const ek_tensor *w, const ek_tensor *y,
                             const ek_conv_params *params)
{
    ek_winograd_line lines[2];
    for (int d = 0; d < 2; d++)
        lines[d] = winograd_forward_line(x->shape[2 + d], y->shape[2 + d], params->stride[d],
                                         params->padding[d]);
    return winograd_plan_lines(w, x, y, (int)params->stride[0], lines);
}

/* ---- geometry ---- */

static int64_t winograd_sample(const ek_winograd *w, int64_t tile, int64_t at[2])
{
    at[1] = tile % w->line[1].tiles;
    at[0] = tile / w->line[1].tiles % w->line[0].tiles;
    return tile / w->line[1].tiles / w->line[0].tiles;
}

void ek_winograd_inputs(const ek_winograd *w, int64_t tile, int p0, int p1, const float *zeros,
                        const float **from)
{
    int64_t at[2], index[2][EK_WINOGRAD_POINTS];
    int64_t sample = winograd_sample(w, tile, at);
    int points = w->form->points, part[2] = {p0, p1};
    for (int d = 0; d < 2; d++) {
        const ek_winograd_line *line = &w->line[d];
        int64_t next = at[d] * w->form->outputs * line->stride + line->shift + part[d];
        for (int i = 0; i < points; i++, next += line->stride)
            index[d][i] = next >= 0 && next < line->in ? next : -1;
    }
    for (int i = 0; i < points; i++) {
        const float *row =
            w->from + (sample * w->line[0].in + index[0][i]) * w->line[1].in * w->channels;
        for (int j = 0; j < points; j++)
            *from++ =
                index[0][i] >= 0 && index[1][j] >= 0 ? row + index[1][j] * w->channels : zeros;
    }
}

int64_t ek_winograd_output(const ek_winograd *w, int64_t tile, int i0, int i1)
{
    int64_t at[2], position = winograd_sample(w, tile, at);
    int i[2] = {i0, i1};
    for (int d = 0; d < 2; d++) {
        const ek_winograd_line *line = &w->line[d];
        int64_t o = at[d] * w->form->outputs + i[d];
        if (o >= line->out)
            return -1;
        position = position * line->to + o * line->out_stride + line->out_shift;
    }
    return position;
}

int64_t ek_winograd_tap(const ek_winograd *w, int p0, int p1, int j0, int j1)
{
    return (w->line[0].first_tap + j0 * w->line[0].tap_step + p0) * w->window[1] +
           w->line[1].first_tap + j1 * w->line[1].tap_step + p1;
}

/* ---- a call ---- */

typedef struct job {
    const ek_winograd *plan;
    const ek_block_products *products;
    bool by_inputs; /* w is (channels, window, outputs), else (outputs, window, channels) */
    const float *w;
    float *to;
    int64_t block, blocks;       /* tiles of a block, and blocks */
    int64_t columns;             /* outputs of a panel */
    int64_t first_panel, panels; /* the panels whose weights are at hand */
    bool keep, kept;             /* each block has inputs of its own, and they are there */
    /* (points, panels, depth, columns); (points, block, depth); (points, block, OUTPUTS_AT_ONCE) */
    float *weights, *inputs, *sums;
    int64_t weights_stride, inputs_stride, sums_stride; /* from point to point */
    const float *zeros, *start;
    float *unused; /* outputs beyond the result's end are written here */
    atomic_int next_part;
    _Atomic int64_t next_block;
} job;

/* Lists where the taps of `lanes` outputs of a panel are for one channel. With weights by outputs
 * they are brought together in `packed` for PACKED_CHANNELS channels at a time. */
static void winograd_pack_taps(const job *j, int64_t first, int64_t lanes, int64_t channel, int p0,
                               int p1,
                               float packed[MOST_TAPS][PACKED_CHANNELS][EK_BLOCK_MOST_COLUMNS])
{
    const ek_winograd *plan = j->plan;
    int taps = plan->form->taps;
    int64_t window = plan->window[0] * plan->window[1];
    for (int t = 0; t < taps * taps; t++) {
        int64_t tap = ek_winograd_tap(plan, p0, p1, t / taps, t % taps);
        for (int64_t o = 0; o < lanes; o++) {
            const float *from = j->w + ((first + o) * window + tap) * plan->channels + channel;
            for (int c = 0; c < PACKED_CHANNELS; c++)
                packed[t][c][o] = from[c];
        }
    }
}

/* Transforms the weights of a panel in one part. Its lanes beyond the last output are zero. */
static void winograd_transform_panel(const job *j, int64_t panel, int p0, int p1)
{
    const ek_winograd *plan = j->plan;
    int taps = plan->form->taps;
    int64_t first = (j->first_panel + panel) * j->columns,
            window = plan->window[0] * plan->window[1];
    int64_t lanes = ek_smaller(j->columns, plan->outputs - first);
    float *to =
        j->weights + (panel * plan->depth + (p0 * plan->parts + p1) * plan->channels) * j->columns;
    float packed[MOST_TAPS][PACKED_CHANNELS][EK_BLOCK_MOST_COLUMNS];
    const float *from[MOST_TAPS];
    for (int64_t c = 0; c < plan->channels; c++, to += j->columns) {
        int lane = (int)(c % PACKED_CHANNELS);
        if (!j->by_inputs && lane == 0)
            winograd_pack_taps(j, first, lanes, c, p0, p1, packed);
        for (int t = 0; t < taps * taps; t++) {
            int64_t tap = ek_winograd_tap(plan, p0, p1, t / taps, t % taps);
            from[t] =
                j->by_inputs ? j->w + (c * window + tap) * plan->outputs + first : packed[t][lane];
        }
        plan->form->weights(from, to, j->weights_stride, lanes);
        for (int i = 0; i < ek_winograd_area(plan) && lanes < j->columns; i++)
            memset(to + i * j->weights_stride + lanes, 0,
                   (size_t)(j->columns - lanes) * sizeof *to);
    }
}

static void winograd_transform_panels(void *context, int64_t begin, int64_t end)
{
    const job *j = context;
    int parts = j->plan->parts;
    for (int64_t i = begin; i < end; i++)
        winograd_transform_panel(j, i / (parts * parts), (int)(i / parts % parts),
                                 (int)(i % parts));
}

static void winograd_transform_inputs(const job *j, int64_t first, int64_t count, float *to)
{
    const ek_winograd *plan = j->plan;
    const float *from[MOST_POINTS];
    for (int64_t t = 0; t < count; t++)
        for (int p = 0; p < plan->parts * plan->parts; p++, to += plan->channels) {
            ek_winograd_inputs(plan, first + t, p / plan->parts, p % plan->parts, j->zeros, from);
            plan->form->inputs(from, to, j->inputs_stride, plan->channels);
        }
}

/* The products of a block with up to OUTPUTS_AT_ONCE / j->columns panels, at all points. */
static void winograd_multiply(const job *j, int64_t panel, int64_t panels, int64_t count,
                              const float *inputs, float *sums)
{
    int64_t depth = j->plan->depth;
    for (int i = 0; i < ek_winograd_area(j->plan); i++)
        for (int64_t p = 0; p < panels; p++) {
            const float *weights =
                j->weights + i * j->weights_stride + (panel + p) * depth * j->columns;
            for (int64_t t = 0; t < count; t += j->products->rows)
                j->products->by_rows[ek_smaller(j->products->rows, count - t) - 1](
                    depth, inputs + i * j->inputs_stride + t * depth, depth, weights,
                    sums + i * j->sums_stride + t * OUTPUTS_AT_ONCE + p * j->columns,
                    OUTPUTS_AT_ONCE, false);
        }
}

static void winograd_transform_sums(const job *j, int64_t panel, int64_t first, int64_t count,
                                    const float *sums)
{
    const ek_winograd *plan = j->plan;
    int side = plan->form->outputs;
    int64_t output = (j->first_panel + panel) * j->columns;
    int64_t end = ek_smaller((j->first_panel + j->panels) * j->columns, plan->outputs);
    int64_t n = ek_smaller(OUTPUTS_AT_ONCE, end - output);
    float *to[MOST_POINTS];
    for (int64_t t = 0; t < count; t++) {
        for (int i = 0; i < side * side; i++) {
            int64_t position = ek_winograd_output(plan, first + t, i / side, i % side);
            to[i] = position < 0 ? j->unused : j->to + position * plan->outputs + output;
        }
        plan->form->results(sums + t * OUTPUTS_AT_ONCE, j->sums_stride, j->start + output, to, n);
    }
}

static void winograd_compute_blocks(void *context, int64_t begin, int64_t end)
{
    job *j = context;
    int area = ek_winograd_area(j->plan);
    (void)begin, (void)end;
    int part = atomic_fetch_add(&j->next_part, 1);
    float *sums = j->sums + part * area * j->sums_stride;
    for (;;) {
        int64_t block = atomic_fetch_add(&j->next_block, 1);
        if (block >= j->blocks)
            return;
        int64_t first = block * j->block, count = ek_smaller(j->block, j->plan->tiles - first);
        float *inputs = j->inputs + (j->keep ? block : part) * area * j->inputs_stride;
        if (!j->kept)
            winograd_transform_inputs(j, first, count, inputs);
        for (int64_t panel = 0; panel < j->panels; panel += OUTPUTS_AT_ONCE / j->columns) {
            int64_t panels = ek_smaller(OUTPUTS_AT_ONCE / j->columns, j->panels - panel);
            winograd_multiply(j, panel, panels, count, inputs, sums);
            winograd_transform_sums(j, panel, first, count, sums);
        }
    }
}

/* Cuts the tiles into blocks and the outputs into parts. Returns how many panels a part has. */
static int64_t winograd_divide(job *j, int64_t all_panels)
{
    const ek_winograd *plan = j->plan;
    int area = ek_winograd_area(plan);
    int64_t point = (int64_t)sizeof(float) * plan->depth * area;
    int64_t at_once = ek_larger(WEIGHTS_NBYTES / (point * OUTPUTS_AT_ONCE), 1) * OUTPUTS_AT_ONCE;
    int64_t panels = ek_smaller(at_once / j->columns, all_panels);
    j->block = ek_smaller(ek_larger(INPUTS_NBYTES / point, LEAST_TILES), MOST_TILES);
    if (panels < all_panels)
        j->block = MOST_TILES; /* weights come from level 3 once for each block */
    j->blocks = ek_divide_up(plan->tiles, j->block);
    j->block =
        ek_divide_up(ek_divide_up(plan->tiles, j->blocks), j->products->rows) * j->products->rows;
    j->blocks = ek_divide_up(plan->tiles, j->block);
    j->keep = panels < all_panels && plan->tiles * point <= KEPT_NBYTES;
    return panels;
}

/* bias: NULL is none. */
static int winograd_run(ek_dev *dev, const ek_winograd *plan, bool by_inputs, const float *w,
                        const float *bias, float *to)
{
    job j = {.plan = plan,
             .products = ek_block_products_of_processor(),
             .by_inputs = by_inputs,
             .w = w,
             .to = to};
    int area = ek_winograd_area(plan);
    j.columns = j.products->columns;
    int64_t all_panels = ek_divide_up(plan->outputs, j.columns);
    int64_t panels = winograd_divide(&j, all_panels);
    int64_t parts = ek_smaller(ek_parallel_threads(dev), j.blocks);
    enum {
        APART = 16
    }; /* points don't lie whole pages apart, which a cache would keep in few places */
    j.weights_stride = panels * plan->depth * j.columns + APART;
    j.inputs_stride = j.block * plan->depth + APART;
    j.sums_stride = j.block * OUTPUTS_AT_ONCE + APART;
    size_t weights = (size_t)(area * j.weights_stride),
           sums = (size_t)(parts * area * j.sums_stride);
    size_t inputs = (size_t)((j.keep ? j.blocks : parts) * area * j.inputs_stride);
    size_t zeros = (size_t)plan->channels, start = (size_t)(all_panels * j.columns);
    size_t nbytes = (weights + inputs + sums + zeros + start + OUTPUTS_AT_ONCE) * sizeof(float);
    void *workspace;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &workspace));
    j.weights = workspace;
    j.inputs = j.weights + weights;
    j.sums = j.inputs + inputs;
    j.zeros = memset(j.sums + sums, 0, (zeros + start) * sizeof(float));
    float *first = j.sums + sums + zeros;
    if (bias)
        memcpy(first, bias, (size_t)plan->outputs * sizeof *bias);
    j.start = first;
    j.unused = first + start;
    for (; j.first_panel < all_panels; j.first_panel += panels) {
        j.panels = ek_smaller(panels, all_panels - j.first_panel);
        ek_parallel_for(dev, j.panels * plan->parts * plan->parts, 1 + 2048 / plan->depth,
                        winograd_transform_panels, &j);
        atomic_store(&j.next_part, 0);
        atomic_store(&j.next_block, 0);
        ek_parallel_for(dev, parts, 1, winograd_compute_blocks, &j);
        j.kept = j.keep;
    }
    ek_dev_free(dev, workspace, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}

/* Each part of x is a convolution of its own. */
static int winograd_input_gradient(ek_dev *dev, const ek_tensor *x, const ek_tensor *w,
                                   const ek_tensor *y, const ek_conv_params *params)
{
    int stride = (int)params->stride[0];
    for (int part = 0; part < stride * stride; part++) {
        ek_winograd_line lines[2];
        int p[2] = {part / stride, part % stride};
        for (int d = 0; d < 2; d++)
            lines[d] =
                winograd_gradient_line(x->shape[2 + d], y->shape[2 + d], w->shape[2 + d] / stride,
                                       stride, params->padding[d], p[d]);
        ek_winograd plan = winograd_plan_lines(w, y, x, 1, lines);
        if (plan.tiles > 0)
            EK_TRY(
                winograd_run(dev, &plan, true, ek_tensor_address(w), NULL, ek_tensor_address(x)));
    }
    return 0;
}

int ek_conv_winograd(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                     const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params)
{
    if (kind == EK_CONV_INPUT_GRADIENT)
        return winograd_input_gradient(dev, x, w, y, params);
    if (kind == EK_CONV_WEIGHT_GRADIENT)
        return ek_winograd_weight(dev, x, w, bias, y, params);
    ek_winograd plan = ek_winograd_plan(x, w, y, params);
    return winograd_run(dev, &plan, false, ek_tensor_address(w),
                        bias ? ek_tensor_address(bias) : NULL, ek_tensor_address(y));
}

/* ---- choice ---- */

bool ek_conv_winograd_can(const ek_tensor *x, const ek_tensor *w, const ek_tensor *y,
                          const ek_conv_params *params)
{
    bool real = x->dtype == EK_F32 || x->dtype == EK_BF16;
    if (!real || params->dims != 2 || params->groups != 1 || !ek_block_products_of_processor())
        return false;
    for (int d = 0; d < 2; d++) {
        int64_t window = w->shape[2 + d], stride = params->stride[d];
        bool form = (window == 3 && stride == 1) || (window == 4 && stride == 2);
        if (!form || window != w->shape[2] || params->dilation[d] != 1)
            return false;
    }
    return x->shape[1] % 8 == 0 && y->shape[1] % 8 == 0;
}

bool ek_conv_winograd_wins(ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                           const ek_tensor *y, const ek_conv_params *params)
{
    (void)kind;
    if (!ek_conv_winograd_can(x, w, y, params) || ek_host_without("winograd"))
        return false;
    int64_t tiles = ek_winograd_plan(x, w, y, params).tiles;
    return x->shape[1] >= 32 && y->shape[1] >= 32 && tiles >= 128;
}
