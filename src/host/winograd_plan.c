/* winograd_plan.c: chooses the form for a convolution, lays out what its tiles read and write, and
 * estimates whether the form is faster than other algorithms. */
#include "evenkeel/precision.h"
#include "host/host.h"
#include "host/isa.h"
#include "host/winograd.h"

/* ---- plans ---- */

/* Returns the geometry of y = x * w in one dimension. */
static ek_winograd_line winograd_forward_line(int64_t in, int64_t out, int64_t stride,
                                              int64_t padding)
{
    return (ek_winograd_line){.in = in,
                              .stride = stride,
                              .shift = -padding,
                              .tap_step = 1,
                              .out = out,
                              .out_stride = 1,
                              .to = out};
}

/* Returns the geometry of x's elements with i % stride == part. Their gradient is a convolution of
 * y's gradient with stride 1 and every stride-th tap of the reversed window. */
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

/* Returns the geometry of all of x's elements under a window of 3 with stride 2, by parts of the
 * window: part 0 has taps 2 and 0, part 1 has tap 1. The parts share inputs; the output of part 1
 * is the element before the output of part 0. */
static ek_winograd_line winograd_spread_line(int64_t x, int64_t y, int64_t padding)
{
    int64_t first = ek_divide_up(padding, 2), shift = 2 * first - padding;
    return (ek_winograd_line){.in = y,
                              .stride = 1,
                              .shift = first - 1,
                              .first_tap = 2,
                              .tap_step = -1,
                              .out = (x - shift) / 2 + 1,
                              .out_stride = 2,
                              .out_shift = shift,
                              .to = x};
}

/* Returns the form for tiles of this side, with the longest of the processor's vectors that
 * channels and outputs are a multiple of. */
static const ek_winograd_form *winograd_form_for(int side, const ek_tensor *w,
                                                 const ek_conv_params *params)
{
    bool wide = ek_host_isa() == EK_ISA_AVX512 && w->shape[0] % 16 == 0 && w->shape[1] % 16 == 0;
    return ek_winograd_form_of(side, params->stride[0] == 2 ? 2 : 3, wide ? 16 : 8);
}

/* Lists for each point the parts that have products at the point, and for each part the ends that
 * are left out. */
static void winograd_list_products(ek_winograd *plan)
{
    int points = plan->form->points, last = plan->form->taps - 1;
    for (int p = 0; p < plan->parts * plan->parts; p++) {
        int p0 = p / plan->parts, p1 = p % plan->parts;
        bool no_row = ek_winograd_tap(plan, p0, p1, last, 0) < 0;
        bool no_column = ek_winograd_tap(plan, p0, p1, 0, last) < 0;
        plan->ends[p] = 2 * no_row + no_column;
        for (int i = 0; i < points * points; i++) {
            bool out =
                (no_row && i / points == points - 1) || (no_column && i % points == points - 1);
            plan->slot[p][i] = out ? -1 : plan->slots[i]++;
            plan->products += !out;
        }
    }
}

int ek_winograd_problems(const ek_conv *conv)
{
    const int64_t stride = conv->params->stride[0];
    return conv->kind == EK_CONV_INPUT_GRADIENT && conv->w->shape[2] == 4 ? (int)(stride * stride)
                                                                          : 1;
}

ek_winograd ek_winograd_plan(const ek_conv *conv, int side, int problem)
{
    const ek_tensor *x = conv->x, *w = conv->w, *y = conv->y;
    const ek_conv_params *params = conv->params;
    bool turned = conv->kind == EK_CONV_INPUT_GRADIENT;
    const ek_tensor *from = turned ? y : x, *to = turned ? x : y;
    int stride = (int)params->stride[0], part[2] = {problem / stride, problem % stride};
    ek_winograd plan = {.form = winograd_form_for(side, w, params),
                        .samples = from->shape[0],
                        .channels = from->shape[1],
                        .outputs = to->shape[1],
                        .window = {w->shape[2], w->shape[3]},
                        .parts = turned && w->shape[2] == 4 ? 1 : stride,
                        .spread = turned,
                        .from = ek_tensor_address(from)};
    plan.tiles = plan.samples;
    for (int d = 0; d < 2; d++) {
        ek_winograd_line *line = &plan.line[d];
        int64_t in = x->shape[2 + d], out = y->shape[2 + d], padding = params->padding[d];
        if (!turned)
            *line = winograd_forward_line(in, out, stride, padding);
        else if (plan.parts == 2)
            *line = winograd_spread_line(in, out, padding);
        else
            *line = winograd_gradient_line(in, out, plan.form->taps, stride, padding, part[d]);
        line->tiles = ek_divide_up(line->out, plan.form->outputs);
        plan.tiles *= line->tiles;
    }
    winograd_list_products(&plan);
    return plan;
}

/* ---- geometry ---- */

ek_winograd_place ek_winograd_place_of(const ek_winograd *w, int64_t tile)
{
    const int64_t rows = w->line[0].tiles, columns = w->line[1].tiles;
    return (ek_winograd_place){tile / columns / rows, {tile / columns % rows, tile % columns}};
}

void ek_winograd_inputs_ahead(const ek_winograd *w, const ek_winograd_place *place, int p0, int p1,
                              const float *zeros, int64_t first, int64_t count, const float **from)
{
    enum { LINE = 64 / sizeof(float) };
    int64_t index[2][EK_WINOGRAD_POINTS];
    const int points = w->form->points, part[2] = {p0, p1};
    for (int d = 0; d < 2; d++) {
        const ek_winograd_line *line = &w->line[d];
        int64_t next = place->at[d] * w->form->outputs * line->stride + line->shift + part[d];
        for (int i = 0; i < points; i++, next += line->stride)
            index[d][i] = next >= 0 && next < line->in ? next : -1;
    }
    for (int i = 0; i < points; i++, from += points) {
        const float *row =
            w->from + (place->sample * w->line[0].in + index[0][i]) * w->line[1].in * w->channels;
        for (int j = 0; j < points; j++)
            from[j] =
                index[0][i] >= 0 && index[1][j] >= 0 ? row + index[1][j] * w->channels : zeros;
        for (int j = w->form->taps - 1; j < points; j++)
            for (int64_t c = first; c < first + count; c += LINE)
                __builtin_prefetch(from[j] + c);
    }
}

void ek_winograd_outputs(const ek_winograd *w, const ek_winograd_place *place, int p0, int p1,
                         int64_t *position)
{
    const int side = w->form->outputs, part[2] = {p0, p1};
    int64_t index[2][EK_WINOGRAD_POINTS];
    for (int d = 0; d < 2; d++) {
        const ek_winograd_line *line = &w->line[d];
        int64_t next = place->at[d] * side * line->out_stride + line->out_shift - part[d];
        for (int i = 0; i < side; i++, next += line->out_stride)
            index[d][i] = next >= 0 && next < line->to ? next : -1;
    }
    for (int i = 0; i < side; i++)
        for (int j = 0; j < side; j++)
            *position++ =
                index[0][i] < 0 || index[1][j] < 0
                    ? -1
                    : (place->sample * w->line[0].to + index[0][i]) * w->line[1].to + index[1][j];
}

int64_t ek_winograd_tap(const ek_winograd *w, int p0, int p1, int j0, int j1)
{
    int j[2] = {j0 * w->parts + p0, j1 * w->parts + p1};
    int64_t tap[2];
    for (int d = 0; d < 2; d++) {
        tap[d] = w->line[d].first_tap + j[d] * w->line[d].tap_step;
        if (tap[d] < 0 || tap[d] >= w->window[d])
            return -1;
    }
    return tap[0] * w->window[1] + tap[1];
}

/* ---- choice ---- */

bool ek_conv_winograd_can(const ek_conv *conv)
{
    const ek_conv_params *params = conv->params;
    const ek_tensor *w = conv->w;
    bool real = ek_dtype_wide(conv->x->dtype) == EK_F32;
    if (!real || params->dims != 2 || params->groups != 1 || ek_host_isa() < EK_ISA_AVX2)
        return false;
    for (int d = 0; d < 2; d++) {
        int64_t window = w->shape[2 + d], stride = params->stride[d];
        bool form = (window == 3 && (stride == 1 || stride == 2)) || (window == 4 && stride == 2);
        if (!form || window != w->shape[2] || stride != params->stride[0] ||
            params->dilation[d] != 1)
            return false;
    }
    return conv->x->shape[1] % 8 == 0 && conv->y->shape[1] % 8 == 0;
}

/* Returns a plan's cost in multiplications of a direct convolution. Each transformed value of an
 * input, an output or a weight counts as some multiplications. */
static double winograd_cost(const ek_winograd *plan)
{
    bool wide = ek_host_isa() == EK_ISA_AVX512;
    double value = EK_WINOGRAD_VALUE(ek_gemm_kernel_best(EK_F32)->columns), weight = wide ? 30 : 15;
    double area = ek_winograd_area(plan), products = plan->products, tiles = (double)plan->tiles;
    double channels = (double)plan->channels, outputs = (double)plan->outputs;
    double values =
        plan->spread ? area * channels + products * outputs : products * channels + area * outputs;
    return tiles * value * values + (tiles + weight) * products * channels * outputs;
}

static double winograd_cost_of_direct(const ek_winograd *plan)
{
    int side = plan->form->taps, taps = 0;
    for (int p = 0; p < plan->parts * plan->parts; p++)
        for (int t = 0; t < side * side; t++)
            taps +=
                ek_winograd_tap(plan, p / plan->parts, p % plan->parts, t / side, t % side) >= 0;
    return taps * (double)(plan->samples * plan->line[0].out * plan->line[1].out) *
           (double)plan->channels * (double)plan->outputs;
}

/* Returns true if the plan pays. A weight gradient of a strided 3 x 3 window gains less than its
 * cost suggests. An input gradient with a stride and few samples gains more. The limits were
 * measured on a Zen 5 core, with AVX-512 and with AVX2, those of tiles and samples on an Emerald
 * Rapids Xeon. */
static bool winograd_pays(ek_conv_kind kind, const ek_winograd *plan, double cost, double direct)
{
    enum { FEW_SAMPLES = 8 };
    const bool wide = ek_host_isa() == EK_ISA_AVX512;
    const bool strided = plan->line[0].out_stride > 1;
    if (kind == EK_CONV_INPUT_GRADIENT && strided && plan->samples < FEW_SAMPLES && wide)
        return cost < 2 * direct;
    if (kind != EK_CONV_WEIGHT_GRADIENT || ek_winograd_whole(plan))
        return cost < direct;
    return 1.15 * cost < direct && (!wide || plan->tiles >= 256);
}

int ek_conv_winograd_side(const ek_conv *conv)
{
    if (!ek_conv_winograd_can(conv) || ek_host_without("winograd"))
        return 0;
    ek_winograd small = ek_winograd_plan(conv, 2, 0);
    double cost = winograd_cost(&small), direct = winograd_cost_of_direct(&small);
    int side = winograd_pays(conv->kind, &small, cost, direct) ? 2 : 0;
    if (ek_fast_convolution_allowed() && conv->params->stride[0] == 1) {
        ek_winograd large = ek_winograd_plan(conv, 4, 0);
        double large_cost = winograd_cost(&large);
        if (large_cost < cost && large_cost < direct)
            side = 4;
    }
    return side;
}
