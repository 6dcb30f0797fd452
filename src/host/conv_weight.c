/* conv_weight.c: convolution's weight gradient, with x and y's gradient read in place.
 *
 * The gradient of a window's tap is a matrix product of y's gradient (outputs, positions) and the
 * inputs that the tap reads (positions, channels), over the positions at which the tap reads no
 * padding. A block of this product stays in registers over a piece of the samples. The order of
 * pieces depends on shapes alone.
 *
 * In bf16 the kernels compute with words, which are the elements of a pair of samples at one
 * position: one instruction multiplies both elements of two words and adds the products to a sum in
 * f32. x and y are copied as words; with an odd number of samples the last words have zeros. */
#include "host/conv.h"

#include <stdatomic.h>
#include <string.h>

#include "host/host.h"
#include "host/isa.h"
#include "host/parallel.h"
#include "kernels/formulas.h"
#include "kernels/stage.h"

#if defined(__x86_64__)
#include "host/conv_rows.h"
#endif

/* ---- the innermost loop ---- */

/* Positions in three dimensions (samples, rows, columns), and how far apart their elements are. */
typedef struct positions {
    int64_t count[3], y_stride[3], x_stride[3];
} positions;

enum { MOST_ROWS = 12 };

/* How a kernel leaves its sums: it writes them, adds them, or writes them past the caches. */
typedef enum weight_store { WEIGHT_WRITE, WEIGHT_ADD, WEIGHT_STREAM } weight_store;

/* Computes out[r * out_stride + c] = the sum over all positions of y[r] x[c], for the kernel's rows
 * r and columns c. */
typedef void weight_kernel(const positions *p, const float *y, const float *x, float *out,
                           int64_t out_stride, weight_store store);

/* Entry n - 1 of `run` computes n rows. */
typedef struct weight_kernels {
    int rows, columns;
    weight_kernel *run[MOST_ROWS];
} weight_kernels;

#if defined(__x86_64__)

/* ROWS x 2 vectors of sums stay in registers. */
#define KERNEL(NAME, TARGET, ROWS, VECTOR, P, MULTIPLY)                                      \
    __attribute__((target(TARGET))) static void NAME(const positions *p, const float *y,     \
                                                     const float *x, float *out,             \
                                                     int64_t out_stride, weight_store store) \
    {                                                                                        \
        enum { WIDTH = sizeof(VECTOR) / sizeof(float) };                                     \
        int64_t y_step = p->y_stride[2], x_step = p->x_stride[2];                            \
        VECTOR sum[ROWS][2];                                                                 \
        _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] =      \
            P##_setzero_ps();                                                                \
        for (int64_t n = 0; n < p->count[0]; n++)                                            \
            for (int64_t i = 0; i < p->count[1]; i++) {                                      \
                const float *a = y + n * p->y_stride[0] + i * p->y_stride[1];                \
                const float *b = x + n * p->x_stride[0] + i * p->x_stride[1];                \
                for (int64_t j = p->count[2]; j > 0; j--, a += y_step, b += x_step) {        \
                    VECTOR b0 = P##_loadu_ps(b), b1 = P##_loadu_ps(b + WIDTH);               \
                    _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++)                  \
                    {                                                                        \
                        VECTOR s = P##_set1_ps(a[r]);                                        \
                        sum[r][0] = MULTIPLY(s, b0, sum[r][0]);                              \
                        sum[r][1] = MULTIPLY(s, b1, sum[r][1]);                              \
                    }                                                                        \
                }                                                                            \
            }                                                                                \
        _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++, out += out_stride)           \
        {                                                                                    \
            if (store == WEIGHT_ADD) {                                                       \
                sum[r][0] = P##_add_ps(sum[r][0], P##_loadu_ps(out));                        \
                sum[r][1] = P##_add_ps(sum[r][1], P##_loadu_ps(out + WIDTH));                \
            }                                                                                \
            if (store == WEIGHT_STREAM) {                                                    \
                P##_stream_ps(out, sum[r][0]);                                               \
                P##_stream_ps(out + WIDTH, sum[r][1]);                                       \
                continue;                                                                    \
            }                                                                                \
            P##_storeu_ps(out, sum[r][0]);                                                   \
            P##_storeu_ps(out + WIDTH, sum[r][1]);                                           \
        }                                                                                    \
    }
EK_ROWS_KERNELS(weight)

#endif

/* Returns the kernels for `channels` channels of f32 or bf16; NULL if there are none. */
static const weight_kernels *weight_kernels_for(ek_dtype dtype, int64_t channels)
{
#if defined(__x86_64__)
    static const weight_kernels avx2 = {6, 16, {EK_ROWS_TO_6(EK_ROWS_NAME, weight_avx2)}};
    static const weight_kernels avx512 = {12, 32, {EK_ROWS_TO_12(EK_ROWS_NAME, weight_avx512)}};
    static const weight_kernels bf16 = {12, 32, {EK_ROWS_TO_12(EK_ROWS_NAME, weight_bf16)}};
    if (dtype == EK_BF16)
        return ek_host_has_bf16() && channels % bf16.columns == 0 ? &bf16 : NULL;
    ek_isa isa = ek_host_isa();
    if (isa == EK_ISA_AVX512 && channels % avx512.columns == 0)
        return &avx512;
    return isa >= EK_ISA_AVX2 && channels % avx2.columns == 0 ? &avx2 : NULL;
#else
    (void)dtype, (void)channels;
    return NULL;
#endif
}

/* Makes words of `rows` runs of `count` elements of two samples. If the second sample is NULL, it
 * counts as zeros. The runs lie `stride` elements apart, their words `width` words apart. */
EK_MULTIVERSION
static void weight_pair_rows(float *to, int64_t width, const uint16_t *even, const uint16_t *odd,
                             int64_t stride, int64_t rows, int64_t count)
{
    typedef uint32_t __attribute__((may_alias)) word;
    for (int64_t r = 0; r < rows; r++, to += width, even += stride, odd += odd ? stride : 0) {
        word *restrict words = (word *)to;
        for (int64_t i = 0; i < count; i++)
            words[i] = even[i] | (odd ? (uint32_t)odd[i] << 16 : 0);
    }
}

/* ---- the gradient ---- */

/* A piece takes PIECE_NBYTES of x and y's gradient, a part of the level 2 cache, and at least
 * PIECE_POSITIONS positions, so that w is rarely read and written. Lines that lie
 * WEIGHT_FAR_NBYTES or more apart share few sets of the level 1 cache. They are copied if a copy is
 * read WEIGHT_OFTEN times or more. */
enum {
    PIECE_NBYTES = 256 << 10,
    PIECE_POSITIONS = 256,
    WEIGHT_FAR_NBYTES = 1024,
    WEIGHT_OFTEN = 8
};

/* A gradient of WEIGHT_STREAM_NBYTES or more whose positions are one piece is written past the
 * caches, because an ordinary store would first read each line. */
enum { WEIGHT_STREAM_NBYTES = 1 << 20, WEIGHT_LINE_NBYTES = 64 };

typedef struct job {
    const weight_kernels *kernels;
    const void *x, *y;
    float *w;
    int64_t all_samples;
    int64_t together; /* Samples with an element in a word: 2 if bf16, else 1. */
    int64_t samples;  /* Counted in words. */
    int64_t channels, outputs, in[2], out[2], taps;
    int64_t window[2], stride[2], padding[2], dilation[2];
    int64_t row_blocks, panels;        /* blocks of outputs, and panels of channels */
    int64_t piece_samples, piece_rows; /* a piece is some samples, or some rows of one */
    bool copies_x, copies_y, streams;
    float *copies;
    size_t copies_stride; /* elements of one part's copies */
    atomic_int next_part;
} job;

/* The piece that a thread computes, and its copies. A copy is NULL if x or y is read in place. */
typedef struct piece {
    int64_t sample, samples, row, rows;
    float *y;   /* (row_blocks, samples, rows, columns, the kernel's rows) */
    float *x;   /* one tap's inputs of a panel: (samples, rows, columns, the kernel's columns) */
    bool first; /* nothing has been written to w */
} piece;

/* Writes the range [*begin, *end) of output positions in dimension d at which tap k reads inside
 * the input. */
static void weight_range_of(const job *j, int d, int64_t k, int64_t *begin, int64_t *end)
{
    int64_t shift = k * j->dilation[d] - j->padding[d], stride = j->stride[d];
    *begin = shift >= 0 ? 0 : (-shift + stride - 1) / stride;
    *end = j->in[d] > shift ? (j->in[d] - shift + stride - 1) / stride : 0;
    *begin = ek_smaller(*begin, j->out[d]);
    *end = ek_larger(*begin, ek_smaller(*end, j->out[d]));
}

/* Copies `rows` runs of `count` elements, `stride` apart, to rows of `width` elements. The first
 * run begins at element `first` of `from`, which is x or y. For bf16 it writes words of this sample
 * and the next, which lies `apart` elements further. */
static void weight_copy_rows(const job *j, float *to, int64_t width, const void *from,
                             int64_t first, int64_t sample, int64_t apart, int64_t stride,
                             int64_t rows, int64_t count)
{
    if (j->together == 2) {
        const uint16_t *even = (const uint16_t *)from + first;
        const bool both = 2 * sample + 1 < j->all_samples;
        weight_pair_rows(to, width, even, both ? even + apart : NULL, stride, rows, count);
        return;
    }
    const float *row = (const float *)from + first;
    for (int64_t r = 0; r < rows; r++, row += stride, to += width)
        memcpy(to, row, (size_t)count * sizeof *to);
}

/* Copies the piece's positions of y. */
static void weight_copy_y(const job *j, const piece *p)
{
    const int64_t width = j->kernels->rows, count = p->rows * j->out[1],
                  apart = j->out[0] * j->out[1] * j->outputs;
    for (int64_t block = 0; block < j->row_blocks; block++)
        for (int64_t n = 0; n < p->samples; n++) {
            const int64_t sample = p->sample + n,
                          first = j->together * sample * apart + p->row * j->out[1] * j->outputs;
            weight_copy_rows(j, p->y + (block * p->samples + n) * count * width, width, j->y,
                             first + block * width, sample, apart, j->outputs, count,
                             ek_smaller(width, j->outputs - block * width));
        }
}

/* Copies the positions `at` of x and returns the copy's address. Changes `at` so that it describes
 * the copy. */
static const float *weight_copy_x(const job *j, const piece *p, positions *at, int64_t first)
{
    const int64_t width = j->kernels->columns;
    float *to = p->x;
    for (int64_t n = 0; n < at->count[0]; n++)
        for (int64_t i = 0; i < at->count[1]; i++, to += at->count[2] * width)
            weight_copy_rows(j, to, width, j->x,
                             first + j->together * n * at->x_stride[0] + i * at->x_stride[1],
                             p->sample + n, at->x_stride[0], at->x_stride[2], at->count[2], width);
    at->x_stride[2] = width;
    at->x_stride[1] = at->count[2] * width;
    at->x_stride[0] = at->count[1] * at->x_stride[1];
    return p->x;
}

/* Adds the piece's products to blocks [begin, end) of outputs, for one tap and panel. */
static void weight_add(const job *j, const piece *p, int64_t tap, int64_t panel, int64_t begin,
                       int64_t end)
{
    int64_t k[2] = {tap / j->window[1], tap % j->window[1]}, from[2], to[2], in[2];
    for (int d = 0; d < 2; d++)
        weight_range_of(j, d, k[d], &from[d], &to[d]);
    from[0] = ek_larger(from[0], p->row);
    to[0] = ek_larger(from[0], ek_smaller(to[0], p->row + p->rows));
    for (int d = 0; d < 2; d++)
        in[d] = from[d] * j->stride[d] + k[d] * j->dilation[d] - j->padding[d];
    int64_t y_width = p->y ? j->kernels->rows : j->outputs, y_rows = p->y ? p->rows : j->out[0];
    positions at = {.count = {p->samples, to[0] - from[0], to[1] - from[1]},
                    .y_stride = {y_rows * j->out[1] * y_width, j->out[1] * y_width, y_width},
                    .x_stride = {j->in[0] * j->in[1] * j->channels,
                                 j->stride[0] * j->in[1] * j->channels,
                                 j->stride[1] * j->channels}};
    bool none = at.count[1] == 0 || at.count[2] == 0; /* the tap reads padding only */
    if (none && !p->first)
        return;
    int64_t rows = j->kernels->rows, channel = panel * j->kernels->columns;
    int64_t y_row = from[0] - p->row + (p->y ? 0 : p->sample * j->out[0] + p->row);
    const float *x = j->x, *y = p->y ? p->y : j->y;
    if (none) {
        at.count[0] = 0;
    } else {
        int64_t first = j->together * p->sample * at.x_stride[0] +
                        (in[0] * j->in[1] + in[1]) * j->channels + channel;
        y += y_row * at.y_stride[1] + from[1] * y_width;
        x = p->x ? weight_copy_x(j, p, &at, first) : x + first;
    }
    const weight_store store = j->streams ? WEIGHT_STREAM : p->first ? WEIGHT_WRITE : WEIGHT_ADD;
    for (int64_t block = begin; block < end; block++) {
        int64_t count = ek_smaller(rows, j->outputs - block * rows);
        j->kernels->run[count - 1](&at, y + block * (p->y ? p->samples * at.y_stride[0] : rows), x,
                                   j->w + (block * rows * j->taps + tap) * j->channels + channel,
                                   j->taps * j->channels, store);
    }
}

/* Adds up blocks [begin, end), one piece after another. Blocks of outputs are counted through all
 * taps and panels. */
static void weight_compute(void *context, int64_t begin, int64_t end)
{
    job *j = context;
    float *copies = j->copies + (size_t)atomic_fetch_add(&j->next_part, 1) * j->copies_stride;
    for (int64_t sample = 0; sample < j->samples; sample += j->piece_samples)
        for (int64_t row = 0; row < j->out[0]; row += j->piece_rows) {
            piece p = {.sample = sample,
                       .samples = ek_smaller(j->piece_samples, j->samples - sample),
                       .row = row,
                       .rows = ek_smaller(j->piece_rows, j->out[0] - row),
                       .first = sample == 0 && row == 0,
                       .y = j->copies_y ? copies : NULL};
            if (p.y)
                weight_copy_y(j, &p);
            if (j->copies_x)
                p.x = copies +
                      (p.y ? j->row_blocks * j->kernels->rows * p.samples * p.rows * j->out[1] : 0);
            for (int64_t i = begin, next; i < end; i = next) {
                int64_t pair = i / j->row_blocks, block = i % j->row_blocks;
                next = ek_smaller((pair + 1) * j->row_blocks, end);
                weight_add(j, &p, pair / j->panels, pair % j->panels, block, block + next - i);
            }
        }
    atomic_thread_fence(memory_order_seq_cst); /* orders stores past the caches */
}

static job weight_job_of(const ek_tensor *x, const ek_tensor *w, const ek_tensor *y,
                         const ek_conv_params *params)
{
    const int64_t together = x->dtype == EK_BF16 ? 2 : 1;
    job j = {.kernels = weight_kernels_for(x->dtype, x->shape[1]),
             .x = ek_tensor_address(x),
             .y = ek_tensor_address(y),
             .w = ek_tensor_address(w),
             .together = together,
             .all_samples = x->shape[0],
             .samples = ek_divide_up(x->shape[0], together),
             .channels = x->shape[1],
             .outputs = y->shape[1],
             .taps = w->shape[2] * w->shape[3]};
    for (int d = 0; d < 2; d++) {
        j.in[d] = x->shape[2 + d];
        j.out[d] = y->shape[2 + d];
        j.window[d] = w->shape[2 + d];
        j.stride[d] = params->stride[d];
        j.padding[d] = params->padding[d];
        j.dilation[d] = params->dilation[d];
    }
    return j;
}

bool ek_conv_implicit_weight_can(ek_dtype dtype, const ek_tensor *x)
{
    return weight_kernels_for(dtype, x->shape[1]) != NULL;
}

/* Computes w, which is f32. */
static int weight_run(ek_dev *dev, const ek_tensor *x, const ek_tensor *w, const ek_tensor *y,
                      const ek_conv_params *params)
{
    job j = weight_job_of(x, w, y, params);
    int64_t size = sizeof(float), rows = j.kernels->rows, columns = j.kernels->columns;
    j.row_blocks = ek_divide_up(j.outputs, rows);
    j.panels = j.channels / columns;
    int64_t row = size * (j.out[1] * j.outputs + j.stride[0] * j.in[1] * j.channels);
    int64_t at_once = ek_larger(PIECE_NBYTES / row, ek_divide_up(PIECE_POSITIONS, j.out[1]));
    j.piece_rows = ek_smaller(at_once, j.out[0]);
    j.piece_samples = ek_smaller(ek_larger(at_once / j.out[0], 1), j.samples);
    j.copies_y = j.together > 1 ||
                 (j.outputs * size >= WEIGHT_FAR_NBYTES && j.taps * j.panels >= WEIGHT_OFTEN);
    j.copies_x = j.together > 1 || (j.stride[1] * j.channels * size >= WEIGHT_FAR_NBYTES &&
                                    j.row_blocks >= WEIGHT_OFTEN);
    j.streams = j.piece_samples == j.samples && j.piece_rows == j.out[0] &&
                ek_count(w) * size >= WEIGHT_STREAM_NBYTES &&
                (uintptr_t)j.w % WEIGHT_LINE_NBYTES == 0;
    int64_t blocks = j.taps * j.panels * j.row_blocks;
    int64_t parts = ek_smaller(ek_parallel_threads(dev), blocks);
    int64_t count = j.piece_samples * j.piece_rows * j.out[1];
    j.copies_stride =
        (size_t)(count * ((j.copies_y ? j.row_blocks * rows : 0) + (j.copies_x ? columns : 0)));
    size_t nbytes = (size_t)parts * j.copies_stride * sizeof(float);
    void *workspace;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &workspace));
    j.copies = workspace;
    ek_parallel_for(dev, blocks, 1, weight_compute, &j);
    ek_dev_free(dev, workspace, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}

int ek_conv_implicit_weight(ek_dev *dev, const ek_tensor *x, const ek_tensor *w,
                            const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params)
{
    ek_stage wide;
    if (bias)
        EK_TRY(ek_conv_bias_gradient(dev, bias, y));
    EK_TRY(ek_stage_begin(&wide, dev, w, EK_F32, 1, w->dtype == EK_F32, false));
    int rc = weight_run(dev, x, wide.tensor, y, params);
    return ek_stage_end(&wide, dev, true, rc);
}
