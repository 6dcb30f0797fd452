/* conv_weight.c: convolution's weight gradient as a blocked matrix product of y's gradient
 * (outputs, positions) and the inputs under each window (positions, taps * channels). The inputs'
 * panels are packed straight from x. */
#include <string.h>

#include "host/conv.h"
#include "host/host.h"
#include "host/parallel.h"

/* The positions of each sample that a product sums over. */
typedef struct rectangle {
    int64_t first[2], count[2];
} rectangle;

enum { MAX_RECTANGLES = 25 };

typedef struct product {
    const float *x, *y;
    int64_t channels, outputs, in[2], out[2];
    int64_t window[2], stride[2], padding[2], dilation[2];
    /* If by_tap, each tap is a product over the positions at which it reads inside the input. Else
     * all taps are one product. */
    bool by_tap;
    rectangle rectangles[MAX_RECTANGLES];
} product;

/* [*begin, *end) are the output positions in dimension d at which tap k reads inside the input. */
static inline void weight_range_of(const product *p, int d, int64_t k, int64_t *begin, int64_t *end)
{
    int64_t shift = k * p->dilation[d] - p->padding[d], stride = p->stride[d];
    *begin = shift >= 0 ? 0 : (-shift + stride - 1) / stride;
    *end = p->in[d] > shift ? (p->in[d] - shift + stride - 1) / stride : 0;
    *begin = ek_smaller(*begin, p->out[d]);
    *end = ek_larger(*begin, ek_smaller(*end, p->out[d]));
}

/* Neighbouring positions of a rectangle in one row of one sample. */
typedef struct run {
    int64_t sample, row, column, count;
} run;

static inline run weight_run_at(const rectangle *r, int64_t position, int64_t left)
{
    int64_t column = position % r->count[1], rest = position / r->count[1];
    return (run){rest / r->count[0], r->first[0] + rest % r->count[0], r->first[1] + column,
                 ek_smaller(left, r->count[1] - column)};
}

/* Copies `count` rows of `length` floats from one stride to another. */
static inline void weight_copy_rows(float *to, int64_t to_stride, const float *from,
                                    int64_t from_stride, int64_t length, int64_t count)
{
    for (; count > 0; count--, to += to_stride, from += from_stride)
        for (int64_t i = 0; i < length; i++)
            to[i] = from[i];
}

static inline void weight_zero_rows(float *to, int64_t to_stride, int64_t length, int64_t count)
{
    for (; count > 0; count--, to += to_stride)
        for (int64_t i = 0; i < length; i++)
            to[i] = 0;
}

/* weight_copy_rows, with usual lengths known to the compiler. */
static inline void weight_copy(float *to, int64_t to_stride, const float *from, int64_t from_stride,
                               int64_t length, int64_t count)
{
    if (length == 16)
        weight_copy_rows(to, to_stride, from, from_stride, 16, count);
    else if (length == 6)
        weight_copy_rows(to, to_stride, from, from_stride, 6, count);
    else
        weight_copy_rows(to, to_stride, from, from_stride, length, count);
}

EK_MULTIVERSION static void weight_pack_y(const void *context, int64_t batch, float *to,
                                          int64_t line, int64_t lines, int64_t first, int64_t depth,
                                          int width)
{
    const product *p = context;
    const rectangle *area = &p->rectangles[batch];
    for (int64_t l = 0; l < lines; l += width, to += width * depth) {
        int64_t length = ek_smaller(width, lines - l);
        if (length < width)
            memset(to, 0, (size_t)(width * depth) * sizeof *to);
        run r;
        for (int64_t d = 0; d < depth; d += r.count) {
            r = weight_run_at(area, first + d, depth - d);
            const float *from =
                p->y + ((r.sample * p->out[0] + r.row) * p->out[1] + r.column) * p->outputs;
            weight_copy(to + d * width, width, from + line + l, p->outputs, length, r.count);
        }
    }
}

/* Packs `length` channels, from `channel` on, that one tap reads at positions [first, first +
 * depth) of an area. */
static inline void weight_pack_tap(const product *p, const rectangle *area, float *to, int64_t tap,
                                   int64_t channel, int64_t length, int64_t first, int64_t depth,
                                   int width)
{
    int64_t k0 = tap / p->window[1], k1 = tap % p->window[1], begin, end;
    weight_range_of(p, 1, k1, &begin, &end);
    run r;
    for (int64_t d = 0; d < depth; d += r.count, to += r.count * width) {
        r = weight_run_at(area, first + d, depth - d);
        int64_t i0 = r.row * p->stride[0] - p->padding[0] + k0 * p->dilation[0];
        int64_t stop = r.column + r.count;
        int64_t left =
            i0 < 0 || i0 >= p->in[0] ? stop : ek_smaller(ek_larger(begin, r.column), stop);
        int64_t right = ek_larger(left, ek_smaller(end, stop));
        int64_t i1 = left * p->stride[1] - p->padding[1] + k1 * p->dilation[1];
        weight_zero_rows(to, width, length, left - r.column);
        if (right > left)
            weight_copy(to + (left - r.column) * width, width,
                        p->x + ((r.sample * p->in[0] + i0) * p->in[1] + i1) * p->channels + channel,
                        p->stride[1] * p->channels, length, right - left);
        weight_zero_rows(to + (right - r.column) * width, width, length, stop - right);
    }
}

EK_MULTIVERSION static void weight_pack_x(const void *context, int64_t batch, float *to,
                                          int64_t line, int64_t lines, int64_t first, int64_t depth,
                                          int width)
{
    const product *p = context;
    const rectangle *area = &p->rectangles[batch];
    for (int64_t l = 0; l < lines; l += width, to += width * depth) {
        int64_t count = ek_smaller(width, lines - l), length;
        if (count < width)
            memset(to, 0, (size_t)(width * depth) * sizeof *to);
        for (int64_t done = 0; done < count; done += length) {
            int64_t at = line + l + done, channel = at % p->channels;
            length = ek_smaller(count - done, p->channels - channel);
            weight_pack_tap(p, area, to + done, batch + at / p->channels, channel, length, first,
                            depth, width);
        }
    }
}

/* ---- bias ---- */

enum { BIAS_COLUMNS = 16, BIAS_ROWS = 256 };

typedef struct bias_sum {
    const float *y;
    float *bias;
    int64_t rows, outputs;
} bias_sum;

EK_MULTIVERSION static void weight_sum_bias(void *context, int64_t begin, int64_t end)
{
    const bias_sum *b = context;
    for (int64_t first = begin * BIAS_COLUMNS; first < ek_smaller(end * BIAS_COLUMNS, b->outputs);
         first += BIAS_COLUMNS) {
        int64_t columns = ek_smaller(BIAS_COLUMNS, b->outputs - first);
        double total[BIAS_COLUMNS] = {0};
        for (int64_t row = 0; row < b->rows; row += BIAS_ROWS) {
            float sum[BIAS_COLUMNS] = {0};
            const float *y = b->y + row * b->outputs + first;
            for (int64_t i = ek_smaller(BIAS_ROWS, b->rows - row); i > 0; i--, y += b->outputs) {
                if (columns == BIAS_COLUMNS)
                    for (int c = 0; c < BIAS_COLUMNS; c++)
                        sum[c] += y[c];
                else
                    for (int64_t c = 0; c < columns; c++)
                        sum[c] += y[c];
            }
            for (int c = 0; c < BIAS_COLUMNS; c++)
                total[c] += sum[c];
        }
        for (int64_t c = 0; c < columns; c++)
            b->bias[first + c] = (float)total[c];
    }
}

void ek_conv_bias_gradient(ek_dev *dev, const ek_tensor *bias, const ek_tensor *y)
{
    bias_sum sum = {ek_tensor_address(y), ek_tensor_address(bias),
                    y->shape[0] * y->shape[2] * y->shape[3], y->shape[1]};
    ek_parallel_for(dev, ek_divide_up(sum.outputs, BIAS_COLUMNS), 1, weight_sum_bias, &sum);
}

/* ---- the gradient ---- */

static product weight_product_of(const ek_tensor *x, const ek_tensor *w, const ek_tensor *y,
                                 const ek_conv_params *params)
{
    product p = {.x = ek_tensor_address(x),
                 .y = ek_tensor_address(y),
                 .channels = x->shape[1],
                 .outputs = y->shape[1]};
    double useful = 1; /* the fraction of taps that don't read padding */
    for (int d = 0; d < 2; d++) {
        p.in[d] = x->shape[2 + d];
        p.out[d] = y->shape[2 + d];
        p.window[d] = w->shape[2 + d];
        p.stride[d] = params->stride[d];
        p.padding[d] = params->padding[d];
        p.dilation[d] = params->dilation[d];
        int64_t inside = 0, begin, end;
        for (int64_t k = 0; k < p.window[d]; k++) {
            weight_range_of(&p, d, k, &begin, &end);
            inside += end - begin;
        }
        useful *= (double)inside / (double)(p.window[d] * p.out[d]);
    }
    /* Products tap by tap pack y more often, but multiply no padding. */
    p.by_tap = useful < 0.9 && p.channels >= 64 && p.window[0] * p.window[1] <= MAX_RECTANGLES;
    return p;
}

/* Products tap by tap win if much is padding. Otherwise oneDNN is as fast, within the noise. */
bool ek_conv_implicit_weight_wins(const ek_tensor *x, const ek_tensor *w, const ek_tensor *y,
                                  const ek_conv_params *params)
{
    return weight_product_of(x, w, y, params).by_tap && x->shape[1] >= 256 && y->shape[1] >= 256;
}

int ek_conv_implicit_weight(ek_dev *dev, const ek_tensor *x, const ek_tensor *w,
                            const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params)
{
    product p = weight_product_of(x, w, y, params);
    if (bias)
        ek_conv_bias_gradient(dev, bias, y);
    int64_t taps = p.window[0] * p.window[1], k[MAX_RECTANGLES];
    int64_t products = p.by_tap ? taps : 1;
    for (int64_t i = 0; i < products; i++) {
        rectangle *r = &p.rectangles[i];
        int64_t at[2] = {i / p.window[1], i % p.window[1]}, end;
        for (int d = 0; d < 2; d++) {
            end = p.out[d];
            if (p.by_tap)
                weight_range_of(&p, d, at[d], &r->first[d], &end);
            r->count[d] = end - r->first[d];
        }
        k[i] = x->shape[0] * r->count[0] * r->count[1];
    }
    ek_gemm gemm = {.dtype = EK_F32,
                    .batch = products,
                    .n = p.outputs,
                    .m = taps / products * p.channels,
                    .k = x->shape[0] * p.out[0] * p.out[1],
                    .c = {ek_tensor_address(w), p.channels, taps * p.channels, 1},
                    .pack_a = weight_pack_y,
                    .pack_b = weight_pack_x,
                    .pack_context = &p,
                    .batch_k = k};
    return ek_gemm_run(dev, &gemm);
}
