/* conv_implicit.c: convolution and its input gradient as a matrix product whose left factor, the
 * inputs under each window, is never stored.
 *
 * After Dukhan, "The indirect convolution algorithm" (2019): the innermost kernel computes a tile
 * of output positions. It gets, for each tap of the window, the address of each position's
 * channels. Only the weights are packed. In the input gradient x and y are exchanged; the taps of a
 * position of x are the taps that reach a position of y. An element's sum runs over taps and
 * channels in one fixed order, so that the sum doesn't depend on the number of threads.
 *
 * In bf16 the kernels compute with words, which are pairs of neighbouring channels: one instruction
 * multiplies both elements of two words and adds the products to a sum in f32. */
#include "host/conv.h"

#include <stdatomic.h>
#include <string.h>

#include "host/gemm_kernel.h"
#include "host/host.h"
#include "host/isa.h"
#include "host/parallel.h"
#include "host/tile.h"

#if defined(__x86_64__)
#include "host/conv_rows.h"
#endif

/* ---- the innermost loop, for AVX-512, and AVX2 with FMA ---- */

enum { MOST_ROWS = 12, MOST_COLUMNS = 32 };

/* A word in memory: an f32, or a pair of bf16, which may begin at any element. */
typedef float conv_word __attribute__((aligned(2), may_alias));

/* One tap of the window: the address of the channels that it reads, for each position of a tile. */
typedef struct conv_tap {
    const conv_word *row[MOST_ROWS];
    int64_t tap;
} conv_tap;

/* Computes some rows: out[r] (columns) = start (columns) + the sum over the taps of row[r]
 * (channels) times b[tap] (channels, columns). If start is NULL, the sum is added to out[r]. */
typedef void conv_kernel(const conv_tap *taps, int64_t count, int64_t channels, const float *b,
                         const float *start, float *out);

/* Entry n - 1 of `run` computes n rows. */
typedef struct conv_kernels {
    int rows, columns;
    conv_kernel *run[MOST_ROWS];
} conv_kernels;

#if defined(__x86_64__)

/* ROWS x 2 vectors of sums stay in registers over the taps. */
#define KERNEL(NAME, TARGET, ROWS, VECTOR, P, MULTIPLY)                                     \
    __attribute__((target(TARGET))) static void NAME(const conv_tap *taps, int64_t count,   \
                                                     int64_t channels, const float *packed, \
                                                     const float *start, float *out)        \
    {                                                                                       \
        enum { WIDTH = sizeof(VECTOR) / sizeof(float) };                                    \
        VECTOR sum[ROWS][2];                                                                \
        _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] =     \
            P##_setzero_ps();                                                               \
        for (int64_t i = 0; i < count; i++) {                                               \
            const float *b = packed + taps[i].tap * channels * 2 * WIDTH;                   \
            const conv_word *x[ROWS];                                                       \
            _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++) x[r] = taps[i].row[r];  \
            for (int64_t c = 0; c < channels; c++) {                                        \
                VECTOR b0 = P##_loadu_ps(b), b1 = P##_loadu_ps(b + WIDTH);                  \
                _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++)                     \
                {                                                                           \
                    VECTOR a = P##_set1_ps(x[r][c]);                                        \
                    sum[r][0] = MULTIPLY(a, b0, sum[r][0]);                                 \
                    sum[r][1] = MULTIPLY(a, b1, sum[r][1]);                                 \
                }                                                                           \
                b += 2 * WIDTH;                                                             \
            }                                                                               \
        }                                                                                   \
        _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++, out += 2 * WIDTH)           \
        {                                                                                   \
            const float *other = start ? start : out;                                       \
            P##_storeu_ps(out, P##_add_ps(sum[r][0], P##_loadu_ps(other)));                 \
            P##_storeu_ps(out + WIDTH, P##_add_ps(sum[r][1], P##_loadu_ps(other + WIDTH))); \
        }                                                                                   \
    }
EK_ROWS_KERNELS(implicit)

#endif

/* Returns the processor's kernels for f32 or bf16; NULL if it has none. */
static const conv_kernels *implicit_kernels_of(ek_dtype dtype)
{
#if defined(__x86_64__)
    static const conv_kernels avx2 = {6, 16, {EK_ROWS_TO_6(EK_ROWS_NAME, implicit_avx2)}};
    static const conv_kernels avx512 = {12, 32, {EK_ROWS_TO_12(EK_ROWS_NAME, implicit_avx512)}};
    static const conv_kernels bf16 = {12, 32, {EK_ROWS_TO_12(EK_ROWS_NAME, implicit_bf16)}};
    if (dtype == EK_BF16)
        return ek_host_has_bf16() ? &bf16 : NULL;
    ek_isa isa = ek_host_isa();
    return isa == EK_ISA_AVX512 ? &avx512 : isa == EK_ISA_AVX2 ? &avx2 : NULL;
#else
    (void)dtype;
    return NULL;
#endif
}

/* ---- a call ---- */

/* BLOCK_TILES: how many tiles are computed with one panel of weights before the next panel.
 * DEPTH_AT_ONCE: about the length of a sum; sums of sums are more exact than one long sum. STRETCH:
 * how much of a line is packed at once. */
enum { BLOCK_TILES = 32, DEPTH_AT_ONCE = 512, STRETCH = 64 };

typedef struct job {
    const conv_kernels *kernels;
    bool gradient, is_bf16; /* if bf16: `channels` counts pairs, and `from` is words */
    const conv_word *from;  /* (samples, in, channels): x, or y's gradient */
    void *to;               /* (samples, out, outputs): y, or x's gradient */
    const void *w, *bias;
    int64_t samples, in[2], out[2], channels, outputs;
    int64_t window[2], stride[2], padding[2], dilation[2], taps;
    /* image_tiles: the number of groups of images, if a tile is one position of a group of images;
     * else 0 */
    int64_t tiles, image_tiles;
    int64_t panels, panel_size;
    float *packed, *starts;
    const conv_word *zeros; /* `channels` zeros, which taps in the padding read */
    conv_tap *tables;
    atomic_int next_part;
} job;

/* ---- packing of weights: a panel is (taps, channels, columns), for `columns` outputs ---- */

/* Packs a panel of the input gradient's bf16 weights, (channels, taps, outputs), as words. */
EK_MULTIVERSION static void implicit_pack_pairs(const job *j, int64_t first, int64_t count,
                                                float *panel)
{
    int64_t columns = j->kernels->columns, row = j->taps * j->outputs;
    const uint16_t *w = (const uint16_t *)j->w + first;
    uint32_t words[MOST_COLUMNS];
    for (int64_t tap = 0; tap < j->taps; tap++, w += j->outputs)
        for (int64_t c = 0; c < j->channels; c++, panel += columns) {
            const uint16_t *even = w + 2 * c * row, *odd = even + row;
            for (int64_t o = 0; o < count; o++)
                words[o] = even[o] | (uint32_t)odd[o] << 16;
            memcpy(panel, words, (size_t)count * sizeof *words);
        }
}

static void implicit_pack_panel(const job *j, int64_t panel, float *to)
{
    enum { LINE = 64 / sizeof(float), AHEAD = 8 };
    int64_t columns = j->kernels->columns;
    int64_t first = panel * columns, left = j->outputs - first;
    int64_t count = ek_smaller(left, columns);
    float *start = j->starts + first;
    memset(start, 0, columns * sizeof *start);
    if (j->bias)
        ek_row_load(EK_CLASS_F32, start, j->is_bf16 ? EK_BF16 : EK_F32,
                    (const char *)j->bias + first * (j->is_bf16 ? 2 : 4), 1, count);
    if (count < columns)
        memset(to, 0, (size_t)(j->taps * j->channels) * columns * sizeof *to);
    if (j->gradient && j->is_bf16) {
        implicit_pack_pairs(j, first, count, to);
        return;
    }
    const conv_word *w = j->w;
    if (j->gradient) { /* w is (channels, taps, outputs) */
        for (int64_t tap = 0; tap < j->taps; tap++)
            for (int64_t c = 0; c < j->channels; c++, to += columns) {
                const conv_word *from = w + (c * j->taps + tap) * j->outputs + first;
                for (int64_t o = 0; o < count; o += LINE)
                    __builtin_prefetch(from + AHEAD * j->taps * j->outputs + o);
                memcpy(to, from, (size_t)count * sizeof *to);
            }
        return;
    }
    int64_t depth = j->taps * j->channels; /* w is (outputs, taps, channels) */
    const conv_word *from = w + first * depth;
    int64_t whole = count == columns ? depth / 4 * 4 : 0;
    for (int64_t d = 0; d < whole; d += STRETCH)
        for (int64_t o = 0; o < columns; o += 16) { /* the lines may begin at any address */
            const float *lines = (const float *)(from + o * depth + d);
            ek_gemm_transpose_16_f32(to + d * columns + o, columns, lines, depth,
                                     ek_smaller(STRETCH, whole - d));
        }
    for (int64_t d = whole; d < depth; d++)
        for (int64_t o = 0; o < count; o++)
            to[d * columns + o] = from[o * depth + d];
}

static void implicit_pack_panels(void *context, int64_t begin, int64_t end)
{
    const job *j = context;
    for (int64_t panel = begin; panel < end; panel++)
        implicit_pack_panel(j, panel, j->packed + panel * j->panel_size);
}

/* ---- tiles ---- */

/* Output positions that a kernel computes together: at most as many as the kernel has rows. */
typedef struct tile {
    int rows;
    int64_t taps;
    int64_t position[MOST_ROWS]; /* counted through all samples */
} tile;

static void implicit_place_tile(const job *j, int64_t index, tile *t)
{
    int64_t plane = j->out[0] * j->out[1];
    if (j->image_tiles) {
        int64_t group = index / plane, at = index % plane;
        int64_t first = ek_part_of(j->samples, group, j->image_tiles);
        t->rows = (int)(ek_part_of(j->samples, group + 1, j->image_tiles) - first);
        for (int r = 0; r < t->rows; r++)
            t->position[r] = (first + r) * plane + at;
    } else {
        int64_t first = ek_part_of(j->samples * plane, index, j->tiles);
        t->rows = (int)(ek_part_of(j->samples * plane, index + 1, j->tiles) - first);
        for (int r = 0; r < t->rows; r++)
            t->position[r] = first + r;
    }
}

/* Returns the index that tap k of an output position reads in dimension d; -1 outside of the input.
 */
static inline int64_t implicit_reach(const job *j, int d, int64_t position, int64_t k)
{
    int64_t at;
    if (j->gradient) {
        at = position + j->padding[d] - k * j->dilation[d];
        if (j->stride[d] != 1) {
            if (at % j->stride[d] != 0)
                return -1;
            at /= j->stride[d];
        }
    } else {
        at = position * j->stride[d] - j->padding[d] + k * j->dilation[d];
    }
    return at >= 0 && at < j->in[d] ? at : -1;
}

/* Lists the taps of a tile. A tap is left out if it reads padding in all rows. */
static void implicit_fill_table(const job *j, tile *t, conv_tap *table)
{
    const conv_word *image[MOST_ROWS];
    int64_t at[MOST_ROWS][2], plane = j->out[0] * j->out[1];
    for (int r = 0; r < t->rows; r++) {
        int64_t position = t->position[r] % plane;
        image[r] = j->from + t->position[r] / plane * j->in[0] * j->in[1] * j->channels;
        at[r][0] = position / j->out[1];
        at[r][1] = position % j->out[1];
    }
    t->taps = 0;
    for (int64_t k = 0; k < j->taps; k++) {
        conv_tap *tap = &table[t->taps];
        int64_t k0 = k / j->window[1], k1 = k % j->window[1];
        bool any = false;
        for (int r = 0; r < t->rows; r++) {
            int64_t i0 = implicit_reach(j, 0, at[r][0], k0),
                    i1 = implicit_reach(j, 1, at[r][1], k1);
            bool inside = i0 >= 0 && i1 >= 0;
            tap->row[r] = inside ? image[r] + (i0 * j->in[1] + i1) * j->channels : j->zeros;
            any = any || inside;
        }
        tap->tap = k;
        t->taps += any;
    }
}

static void implicit_place_tiles(const job *j, int64_t first, int count, tile *tiles,
                                 conv_tap *tables)
{
    for (int i = 0; i < count; i++) {
        implicit_place_tile(j, first + i, &tiles[i]);
        implicit_fill_table(j, &tiles[i], tables + i * j->taps);
    }
}

/* Computes a panel's outputs of `count` tiles. b is the panel's packed weights. */
static void implicit_multiply(const job *j, const tile *tiles, int count, const conv_tap *tables,
                              int64_t panel, const float *b)
{
    int64_t columns = j->kernels->columns;
    int64_t taps_at_once = ek_larger(DEPTH_AT_ONCE / j->channels, 1);
    int64_t column = panel * columns, left = j->outputs - column;
    float sums[MOST_ROWS * MOST_COLUMNS];
    for (int i = 0; i < count; i++) {
        const tile *t = &tiles[i];
        const conv_tap *table = tables + i * j->taps;
        for (int64_t tap = 0; tap == 0 || tap < t->taps; tap += taps_at_once)
            j->kernels->run[t->rows - 1](table + tap, ek_smaller(taps_at_once, t->taps - tap),
                                         j->channels, b, tap == 0 ? j->starts + column : NULL,
                                         sums);
        for (int r = 0; r < t->rows; r++) {
            int64_t at = t->position[r] * j->outputs + column;
            const float *sum = sums + r * columns;
            if (j->is_bf16)
                ek_row_store(EK_CLASS_F32, sum, EK_BF16, (uint16_t *)j->to + at, 1,
                             ek_smaller(left, columns));
            else if (left >= columns)
                memcpy((float *)j->to + at, sum, columns * sizeof *sum);
            else
                memcpy((float *)j->to + at, sum, (size_t)left * sizeof *sum);
        }
    }
}

static void implicit_compute_tiles(void *context, int64_t begin, int64_t end)
{
    job *j = context;
    conv_tap *tables = j->tables + atomic_fetch_add(&j->next_part, 1) * BLOCK_TILES * j->taps;
    tile tiles[BLOCK_TILES];
    for (int64_t first = begin; first < end; first += BLOCK_TILES) {
        int count = (int)ek_smaller(end - first, BLOCK_TILES);
        implicit_place_tiles(j, first, count, tiles, tables);
        for (int64_t panel = 0; panel < j->panels; panel++)
            implicit_multiply(j, tiles, count, tables, panel, j->packed + panel * j->panel_size);
    }
}

/* Computes panels of all tiles, which are few: a panel of weights is packed, used and dropped while
 * it is in level 2 cache. */
static void implicit_compute_panels(void *context, int64_t begin, int64_t end)
{
    job *j = context;
    int part = atomic_fetch_add(&j->next_part, 1), count = (int)j->tiles;
    conv_tap *tables = j->tables + part * BLOCK_TILES * j->taps;
    float *packed = j->packed + part * j->panel_size;
    tile tiles[BLOCK_TILES];
    implicit_place_tiles(j, 0, count, tiles, tables);
    for (int64_t panel = begin; panel < end; panel++) {
        implicit_pack_panel(j, panel, packed);
        implicit_multiply(j, tiles, count, tables, panel, packed);
    }
}

/* Returns the fraction of all taps of all positions that don't read padding. */
static double implicit_useful(const job *j)
{
    double part = 1;
    for (int d = 0; d < 2; d++) {
        int64_t count = 0;
        for (int64_t i = 0; i < j->out[d]; i++)
            for (int64_t k = 0; k < j->window[d]; k++)
                count += implicit_reach(j, d, i, k) >= 0;
        part *= (double)count / (double)(j->out[d] * j->window[d]);
    }
    return part;
}

/* Chooses the kind of tiles. If the rows of a tile are one position of several images, they have
 * equal taps, and padding costs nothing. If the rows are neighbouring positions, all tiles are
 * full. */
static void implicit_choose_tiles(job *j)
{
    /* The relative speed of a kernel by its number of rows. With 6 rows or more, no execution unit
     * waits. */
    static const double speed[] = {0, 0.2, 0.4, 0.6, 0.8, 0.95, 1};
    int64_t plane = j->out[0] * j->out[1];
    int64_t groups = ek_divide_up(j->samples, j->kernels->rows),
            rows = ek_divide_up(j->samples, groups);
    if (implicit_useful(j) < speed[ek_smaller(rows, 6)]) {
        j->image_tiles = groups;
        j->tiles = groups * plane;
    } else {
        j->tiles = ek_divide_up(j->samples * plane, j->kernels->rows);
    }
}

static int implicit_run(ek_dev *dev, job *j)
{
    implicit_choose_tiles(j);
    j->panels = ek_divide_up(j->outputs, j->kernels->columns);
    int64_t padded = j->panels * j->kernels->columns;
    int64_t depth = j->taps * j->channels, threads = ek_parallel_threads(dev);
    bool by_panels = j->tiles <= BLOCK_TILES && j->panels % threads == 0;
    int64_t parts = by_panels ? threads : ek_smaller(threads, j->tiles);
    j->panel_size = depth * j->kernels->columns;
    size_t packed =
        ek_round_up((size_t)((by_panels ? parts : j->panels) * j->panel_size) * sizeof(float));
    size_t starts = ek_round_up((size_t)padded * sizeof(float));
    size_t zeros = ek_round_up((size_t)j->channels * sizeof(float));
    size_t tables = (size_t)(parts * BLOCK_TILES * j->taps) * sizeof(conv_tap);
    size_t nbytes = packed + starts + zeros + tables;
    void *workspace;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &workspace));
    char *at = workspace;
    j->packed = (float *)at;
    j->starts = (float *)(at + packed);
    j->zeros = memset(at + packed + starts, 0, zeros);
    j->tables = (conv_tap *)(at + packed + starts + zeros);
    if (by_panels) {
        ek_parallel_for(dev, j->panels, 1 + 10000 / (depth * j->tiles), implicit_compute_panels, j);
    } else {
        ek_parallel_for(dev, j->panels, 1 + 2048 / depth, implicit_pack_panels, j);
        ek_parallel_for(dev, j->tiles, 1 + 10000 / (depth * j->panels), implicit_compute_tiles, j);
    }
    ek_dev_free(dev, workspace, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}

int ek_conv_implicit(ek_dev *dev, ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                     const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params)
{
    if (kind == EK_CONV_WEIGHT_GRADIENT)
        return ek_conv_implicit_weight(dev, x, w, bias, y, params);
    bool gradient = kind == EK_CONV_INPUT_GRADIENT, is_bf16 = x->dtype == EK_BF16;
    const ek_tensor *from = gradient ? y : x, *to = gradient ? x : y;
    job j = {.kernels = implicit_kernels_of(x->dtype),
             .gradient = gradient,
             .is_bf16 = is_bf16,
             .from = ek_tensor_address(from),
             .to = ek_tensor_address(to),
             .w = ek_tensor_address(w),
             .bias = bias && !gradient ? ek_tensor_address(bias) : NULL,
             .samples = x->shape[0],
             .channels = from->shape[1] / (is_bf16 ? 2 : 1),
             .outputs = to->shape[1],
             .taps = w->shape[2] * w->shape[3]};
    for (int d = 0; d < 2; d++) {
        j.in[d] = from->shape[2 + d];
        j.out[d] = to->shape[2 + d];
        j.window[d] = w->shape[2 + d];
        j.stride[d] = params->stride[d];
        j.padding[d] = params->padding[d];
        j.dilation[d] = params->dilation[d];
    }
    return implicit_run(dev, &j);
}

bool ek_conv_implicit_can(ek_conv_kind kind, ek_dtype dtype, const ek_tensor *x, const ek_tensor *y,
                          const ek_conv_params *params)
{
    const ek_tensor *from = kind == EK_CONV_INPUT_GRADIENT ? y : x;
    if (ek_dtype_wide(x->dtype) != EK_F32 || params->dims != 2 || params->groups != 1 ||
        !implicit_kernels_of(dtype))
        return false;
    return kind == EK_CONV_WEIGHT_GRADIENT ? ek_conv_implicit_weight_can(dtype, x)
                                           : dtype == EK_F32 || from->shape[1] % 2 == 0;
}

/* The fewest samples for which a strided input gradient is fast: neighbouring positions have
 * different taps, so that a tile has to be one position of several samples. */
enum { LEAST_SAMPLES = 8 };

/* The limits were measured on Zen 3 (AVX2) and Zen 5 (AVX-512) cores against oneDNN 2.6. With fewer
 * channels, panels are half empty or taps are too short. Windows of one tap have faster algorithms
 * (conv.c). Windows of 2, 3, 4, 5 and 7 gain alike. For weight gradients, oneDNN took 1.1 to 1.9
 * times as long on Zen 5. */
bool ek_conv_implicit_wins(ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                           const ek_tensor *y, const ek_conv_params *params)
{
    if (!ek_conv_implicit_can(kind, EK_F32, x, y, params))
        return false;
    int64_t c = x->shape[1], o = y->shape[1], least = c < o ? c : o, most = c < o ? o : c;
    bool strided = false, wide = ek_host_isa() == EK_ISA_AVX512;
    for (int d = 0; d < 2; d++) {
        if (w->shape[2 + d] < 2 || params->stride[d] > 2 || params->dilation[d] != 1)
            return false;
        strided = strided || params->stride[d] != 1;
    }
    if (kind == EK_CONV_WEIGHT_GRADIENT)
        return c >= 32 && o >= 16;
    if (kind == EK_CONV_INPUT_GRADIENT && strided)
        return least >= (wide ? 128 : 64) && x->shape[0] >= LEAST_SAMPLES;
    return least >= (wide ? 64 : 32) && most >= 64;
}

/* The limits were measured on Zen 5 cores against oneDNN 2.6. If windows aren't strided and many
 * positions share the weights that oneDNN reorders, oneDNN is near the processor's peak, except in
 * weight gradients. With AMX oneDNN reaches several times that peak. */
bool ek_conv_implicit_bf16_wins(ek_conv_kind kind, const ek_tensor *x, const ek_tensor *w,
                                const ek_tensor *y, const ek_conv_params *params)
{
    const ek_tensor *to = kind == EK_CONV_FORWARD ? y : x;
    int64_t least = ek_smaller(x->shape[1], y->shape[1]);
    int64_t positions = to->shape[0] * to->shape[2] * to->shape[3];
    bool one_tap = w->shape[2] * w->shape[3] == 1;
    bool strided = params->stride[0] > 1 || params->stride[1] > 1;
    if (!ek_conv_implicit_can(kind, EK_BF16, x, y, params) || !ek_host_bf16_is_fast() ||
        ek_dnn_has_amx())
        return false;
    if (kind == EK_CONV_INPUT_GRADIENT && strided && x->shape[0] < LEAST_SAMPLES)
        return false;
    if (kind == EK_CONV_WEIGHT_GRADIENT)
        return x->shape[0] > 1 && least >= (one_tap ? 128 : 64);
    if (kind == EK_CONV_FORWARD && strided)
        return least >= 64;
    return least >= 64 && positions <= (one_tap && !strided ? 512 : 2048);
}
