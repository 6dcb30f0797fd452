/* winograd_plan.c: which form computes a convolution, what its tiles read and write, and whether it
 * pays. */
#include "evenkeel/precision.h"
#include "host/host.h"
#include "host/isa.h"
#include "host/winograd.h"

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
static const ek_winograd_form *winograd_form_for(int side, const ek_tensor *w)
{
    bool wide = ek_host_isa() == EK_ISA_AVX512 && w->shape[0] % 16 == 0 && w->shape[1] % 16 == 0;
    return ek_winograd_form_of(side, w->shape[2] == 4 ? 2 : 3, wide ? 16 : 8);
}

int ek_winograd_problems(ek_conv_kind kind, const ek_conv_params *params)
{
    return kind == EK_CONV_INPUT_GRADIENT ? (int)(params->stride[0] * params->stride[0]) : 1;
}

ek_winograd ek_winograd_plan(ek_conv_kind kind, int side, int problem, const ek_tensor *x,
                             const ek_tensor *w, const ek_tensor *y, const ek_conv_params *params)
{
    bool turned = kind == EK_CONV_INPUT_GRADIENT;
    const ek_tensor *from = turned ? y : x, *to = turned ? x : y;
    int stride = (int)params->stride[0], part[2] = {problem / stride, problem % stride};
    ek_winograd plan = {.form = winograd_form_for(side, w),
                        .samples = from->shape[0],
                        .channels = from->shape[1],
                        .outputs = to->shape[1],
                        .window = {w->shape[2], w->shape[3]},
                        .parts = turned ? 1 : stride,
                        .from = ek_tensor_address(from)};
    plan.depth = plan.channels * plan.parts * plan.parts;
    plan.tiles = plan.samples;
    for (int d = 0; d < 2; d++) {
        ek_winograd_line *line = &plan.line[d];
        *line = turned ? winograd_gradient_line(x->shape[2 + d], y->shape[2 + d], plan.form->taps,
                                                stride, params->padding[d], part[d])
                       : winograd_forward_line(x->shape[2 + d], y->shape[2 + d], stride,
                                               params->padding[d]);
        line->tiles = ek_divide_up(line->out, plan.form->outputs);
        plan.tiles *= line->tiles;
    }
    return plan;
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

void ek_winograd_inputs_ahead(const ek_winograd *w, int64_t tile, int p0, int p1,
                              const float *zeros, const float **from)
{
    enum { LINE = 64 / sizeof(float) };
    int points = w->form->points;
    ek_winograd_inputs(w, tile, p0, p1, zeros, from);
    for (int i = 0; i < points; i++)
        for (int j = w->form->taps - 1; j < points; j++)
            for (int64_t c = 0; c < w->channels; c += LINE)
                __builtin_prefetch(from[i * points + j] + c);
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

/* ---- choice ---- */

bool ek_conv_winograd_can(const ek_tensor *x, const ek_tensor *w, const ek_tensor *y,
                          const ek_conv_params *params)
{
    bool real = x->dtype == EK_F32 || x->dtype == EK_BF16;
    if (!real || params->dims != 2 || params->groups != 1 || ek_host_isa() < EK_ISA_AVX2)
        return false;
    for (int d = 0; d < 2; d++) {
        int64_t window = w->shape[2 + d], stride = params->stride[d];
        bool form = (window == 3 && stride == 1) || (window == 4 && stride == 2);
        if (!form || window != w->shape[2] || params->dilation[d] != 1)
            return false;
    }
    return x->shape[1] % 8 == 0 && y->shape[1] % 8 == 0;
}

/* What a plan costs, in multiplications of a direct convolution. A transformed value of an input or
 * an output counts as some multiplications, and so does one of a weight. */
static double winograd_cost(const ek_winograd *plan)
{
    bool wide = ek_host_isa() == EK_ISA_AVX512;
    double value = wide ? 17 : 9, weight = wide ? 30 : 15;
    double points = ek_winograd_area(plan), depth = (double)plan->depth;
    double outputs = (double)plan->outputs, tiles = (double)plan->tiles;
    return points *
           (tiles * (depth * outputs + value * (depth + outputs)) + weight * depth * outputs);
}

static double winograd_cost_of_direct(const ek_winograd *plan)
{
    double taps = plan->form->taps * plan->form->taps;
    return taps * (double)(plan->samples * plan->line[0].out * plan->line[1].out) *
           (double)plan->depth * (double)plan->outputs;
}

int ek_conv_winograd_side(ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                          const ek_tensor *y, const ek_conv_params *params)
{
    if (!ek_conv_winograd_can(x, w, y, params) || ek_host_without("winograd"))
        return 0;
    ek_winograd small = ek_winograd_plan(kind, 2, 0, x, w, y, params);
    double cost = winograd_cost(&small), direct = winograd_cost_of_direct(&small);
    int side = cost < direct ? 2 : 0;
    if (ek_fast_convolution_allowed() && w->shape[2] == 3) {
        ek_winograd large = ek_winograd_plan(kind, 4, 0, x, w, y, params);
        double large_cost = winograd_cost(&large);
        if (large_cost < cost && large_cost < direct)
            side = 4;
    }
    return side;
}
