/* gemm_narrow.c: products of bf16 and f16, with sums in f32.
 *
 * Steps along k are words of 32 bits. Where the processor multiplies bf16 fast, a word is a pair of
 * neighbouring elements: one instruction multiplies both elements of two words and adds the
 * products to a sum in f32. Otherwise a word is an element that packing converts to f32.
 *
 * Threads take one tile of the output after another. A tile is some rows times a group of columns,
 * whose part of the right factor the thread packs as panels, for one block of steps after another.
 * The rows of the left factor are read in place if they are words already, else they are packed,
 * too. Sums stay in f32 until the last block, and are rounded once. A sum runs over blocks of fixed
 * length, so that it doesn't depend on the tiles or the number of threads. */
#include <stdatomic.h>
#include <string.h>

#include "core/multiversion.h"
#include "host/gemm.h"
#include "host/gemm_kernel.h"
#include "host/host.h"
#include "host/isa.h"
#include "host/parallel.h"
#include "host/tile.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    BLOCK_STEPS = 512,
    GROUP_NBYTES = 512 << 10, /* packed columns: stay in level 2 cache while rows pass by */
    TILE_ROWS = 512,          /* the most rows whose sums are kept over several blocks */
    SIDE_PANELS = 8,          /* panels of rows that are packed together */
    WIDE_STEPS = 128,         /* steps of a line that are converted together */
    WIDE_LINES = 384,         /* lines of a step that are converted together */
    LINE = 16                 /* floats in a cache line */
};

/* A factor as lines, which are rows of the left one and columns of the right one, along k. */
typedef struct narrow_factor {
    ek_dtype dtype;
    const char *data;
    int64_t batch_stride, line_stride, depth_stride;
} narrow_factor;

/* Workspaces of a thread: packed columns, packed rows, sums. */
typedef struct narrow_job {
    const ek_gemm_kernel *kernel;
    bool pairs;        /* words are pairs of bf16 */
    bool packs_rows;   /* rows can't be read in place */
    bool bias_of_rows; /* the bias belongs to rows, because factors were exchanged */
    bool accumulate, relu;
    int64_t n, m, k, steps;
    narrow_factor left, right;
    ek_dtype dtype; /* The output's. */
    char *out;
    int64_t out_batch, out_row, out_column;
    const float *bias; /* NULL: none */
    int64_t panel_rows, tile_rows, group_columns, row_tiles, groups, tiles;
    int64_t columns_at, rows_at, sums_at, sums_row; /* in floats */
    float *workspace;
    int64_t workspace_stride;
    atomic_int next_thread;
    atomic_llong next_tile;
} narrow_job;

/* ---- packing: a panel is (steps, width) words; words beyond the last line are 0 ---- */

static uint16_t narrow_bits_at(const narrow_factor *f, int64_t at)
{
    return ((const uint16_t *)f->data)[at];
}

/* Returns step `step` of the line that begins at element `at`. */
static uint32_t narrow_word(const narrow_factor *f, int64_t at, int64_t step, int64_t k)
{
    const int64_t odd = 2 * step + 1;
    const uint32_t high = odd < k ? narrow_bits_at(f, at + odd * f->depth_stride) : 0;
    return high << 16 | narrow_bits_at(f, at + (odd - 1) * f->depth_stride);
}

#if defined(__x86_64__)

/* Makes `count` words of two neighbouring elements of k and fills up to `width` words with zeros.
 * Without `odd` the second elements are 0. */
__attribute__((target(EK_TARGET_BF16))) static inline void
narrow_pair(float *to, const uint16_t *even, const uint16_t *odd, int64_t count, int64_t width)
{
    for (int64_t i = 0; i < width; i += 16) {
        const int64_t left = ek_larger(count - i, 0);
        const __mmask16 some = (__mmask16)(left < 16 ? (1u << left) - 1 : 0xffff);
        const __mmask16 all = (__mmask16)(width - i < 16 ? (1u << (width - i)) - 1 : 0xffff);
        __m512i words = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, even + i));
        if (odd) {
            const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, odd + i));
            words = _mm512_or_si512(words, _mm512_slli_epi32(high, 16));
        }
        _mm512_mask_storeu_epi32(to + i, all, words);
    }
}

/* Packs pairs of lines that are neighbours in memory, so that panels grow side by side. */
__attribute__((target(EK_TARGET_BF16))) static void
narrow_pack_pair_rows(const narrow_factor *f, int64_t at, int64_t lines, int64_t first,
                      int64_t steps, int64_t k, int width, float *to)
{
    enum { AHEAD = 8 };
    const uint16_t *even = (const uint16_t *)f->data + at + 2 * first * f->depth_stride;
    for (int64_t s = 0; s < steps; s++, to += width, even += 2 * f->depth_stride) {
        const uint16_t *odd = 2 * (first + s) + 1 < k ? even + f->depth_stride : NULL;
        float *panel = to;
        for (int64_t l = 0; l < lines; l += width, panel += width * steps) {
            __builtin_prefetch(even + l + 2 * AHEAD * f->depth_stride);
            __builtin_prefetch(even + l + (2 * AHEAD + 1) * f->depth_stride);
            narrow_pair(panel, even + l, odd ? odd + l : NULL, lines - l, width);
        }
    }
}

#else

static void narrow_pack_pair_rows(const narrow_factor *f, int64_t at, int64_t lines, int64_t first,
                                  int64_t steps, int64_t k, int width, float *to)
{
    (void)f, (void)at, (void)lines, (void)first, (void)steps, (void)k, (void)width, (void)to;
}

#endif

/* Packs words of up to `width` lines: word d of line l lies at from[l * stride + d]. Returns how
 * many words of each line were packed. Squares of lines overlap where the lines fill no whole one.
 */
static int64_t narrow_transpose(float *to, int width, const float *from, int64_t lines,
                                int64_t stride, int64_t steps)
{
    enum { SQUARE = 8 };
    int64_t done = 0, l = 0;
    for (; l + 2 * SQUARE <= lines; l += 2 * SQUARE)
        done = ek_gemm_transpose_16_f32(to + l, width, from + l * stride, stride, steps);
    for (; l < lines; l += SQUARE) {
        const int64_t at = ek_smaller(l, ek_larger(lines - SQUARE, 0));
        /* In a panel that is narrower than a square, each step overwrites what the step before it
         * wrote too much. */
        done =
            ek_gemm_transpose_f32(to + at, width, from + at * stride,
                                  ek_smaller(SQUARE, lines - at), stride, steps - (width < SQUARE));
    }
    return done;
}

/* Packs one panel of pairs whose lines are no neighbours. */
static void narrow_pack_pairs(const narrow_factor *f, int64_t at, int64_t lines, int64_t first,
                              int64_t steps, int64_t k, int width, float *to)
{
    const int64_t whole = ek_smaller(steps, k / 2 - first);
    int64_t done = 0;
    if (lines < width)
        memset(to, 0, (size_t)(steps * width) * sizeof *to);
    if (f->depth_stride == 1 && f->line_stride % 2 == 0)
        done = narrow_transpose(to, width, (const float *)(f->data + 2 * (at + 2 * first)), lines,
                                f->line_stride / 2, whole);
    for (int64_t s = done; s < steps; s++)
        for (int64_t l = 0; l < lines; l++) {
            const uint32_t word = narrow_word(f, at + l * f->line_stride, first + s, k);
            memcpy(to + s * width + l, &word, sizeof word);
        }
}

/* Copies one step of a panel, of which `left` elements are left to write. A whole cache line is
 * copied if later steps overwrite what is too much. */
static inline void narrow_copy(float *to, const float *from, int width, int64_t left)
{
    if (width == 2 * LINE)
        memcpy(to, from, 2 * LINE * sizeof *to);
    else if (width <= LINE && left >= LINE)
        memcpy(to, from, LINE * sizeof *to);
    else
        memcpy(to, from, (size_t)width * sizeof *to);
}

/* Packs elements of neighbouring lines, which are converted to f32, so that panels grow side by
 * side. */
static void narrow_pack_wide_rows(const narrow_factor *f, int64_t at, int64_t lines, int64_t first,
                                  int64_t steps, int width, float *to)
{
    enum { AHEAD = 8 };
    const int64_t size = (int64_t)ek_dtype_size(f->dtype), most = WIDE_LINES / width * width;
    for (int64_t l = 0; l < lines; l += most) {
        const int64_t count = ek_smaller(most, lines - l);
        float row[WIDE_LINES + LINE] = {0}, *panels = to + l * steps;
        const char *from = f->data + (at + l + first * f->depth_stride) * size;
        for (int64_t s = 0; s < steps; s++, from += f->depth_stride * size, panels += width) {
            for (int64_t c = 0; c < count * size; c += 64)
                __builtin_prefetch(from + AHEAD * f->depth_stride * size + c);
            ek_row_load(EK_CLASS_F32, row, f->dtype, from, 1, count);
            for (int64_t c = 0; c < count; c += width)
                narrow_copy(panels + c * steps, row + c, width, (steps - s) * width);
        }
    }
}

/* Packs one panel of elements that are converted to f32. */
static void narrow_pack_wide(const narrow_factor *f, int64_t at, int64_t lines, int64_t first,
                             int64_t steps, int width, float *to)
{
    const int64_t size = (int64_t)ek_dtype_size(f->dtype);
    const char *from = f->data + (at + first * f->depth_stride) * size;
    float rows[EK_GEMM_COLUMNS * WIDE_STEPS];
    if (lines < width)
        memset(to, 0, (size_t)(steps * width) * sizeof *to);
    for (int64_t s = 0; s < steps; s += WIDE_STEPS, to += WIDE_STEPS * width) {
        const int64_t count = ek_smaller(WIDE_STEPS, steps - s);
        for (int64_t l = 0; l < lines; l++)
            ek_row_load(EK_CLASS_F32, rows + l * count, f->dtype,
                        from + (l * f->line_stride + s * f->depth_stride) * size, f->depth_stride,
                        count);
        for (int64_t d = narrow_transpose(to, width, rows, lines, count, count); d < count; d++)
            for (int64_t l = 0; l < lines; l++)
                to[d * width + l] = rows[l * count + d];
    }
}

static void narrow_pack(const narrow_job *j, const narrow_factor *f, int64_t batch, int64_t line,
                        int64_t lines, int64_t first, int64_t steps, int width, float *to)
{
    const int64_t at = batch * f->batch_stride + line * f->line_stride;
    if (f->line_stride == 1 && j->pairs) {
        narrow_pack_pair_rows(f, at, lines, first, steps, j->k, width, to);
        return;
    }
    if (f->line_stride == 1) {
        narrow_pack_wide_rows(f, at, lines, first, steps, width, to);
        return;
    }
    for (int64_t l = 0; l < lines; l += width, to += width * steps) {
        const int64_t from = at + l * f->line_stride, count = ek_smaller(width, lines - l);
        if (j->pairs)
            narrow_pack_pairs(f, from, count, first, steps, j->k, width, to);
        else
            narrow_pack_wide(f, from, count, first, steps, width, to);
    }
}

/* ---- tiles ---- */

/* Some rows and a group of columns of one product. */
typedef struct narrow_tile {
    int64_t batch, row, rows, column, columns;
} narrow_tile;

static narrow_tile narrow_tile_at(const narrow_job *j, int64_t index)
{
    const int64_t wide = j->kernel->columns, panels = ek_divide_up(j->m, wide);
    const int64_t row_panels = ek_divide_up(j->n, j->panel_rows);
    const int64_t group = index % j->groups, row_tile = index / j->groups % j->row_tiles;
    narrow_tile t = {.batch = index / j->groups / j->row_tiles,
                     .row = ek_part_of(row_panels, row_tile, j->row_tiles) * j->panel_rows,
                     .column = ek_part_of(panels, group, j->groups) * wide};
    t.rows = ek_smaller(ek_part_of(row_panels, row_tile + 1, j->row_tiles) * j->panel_rows, j->n) -
             t.row;
    t.columns = ek_smaller(ek_part_of(panels, group + 1, j->groups) * wide, j->m) - t.column;
    return t;
}

/* Adds terms to a row of sums, with steps of 0 or 1 between terms. */
EK_MULTIVERSION static void narrow_add(float *restrict sums, const float *restrict terms, int step,
                                       int64_t count)
{
    if (step == 0)
        for (int64_t c = 0; c < count; c++)
            sums[c] += terms[0];
    else
        for (int64_t c = 0; c < count; c++)
            sums[c] += terms[c];
}

EK_MULTIVERSION static void narrow_relu(float *sums, int64_t count)
{
    for (int64_t c = 0; c < count; c++)
        sums[c] = sums[c] <= 0 ? 0 : sums[c]; /* a NaN stays NaN */
}

/* Writes rows of sums to the output, with the bias. */
static void narrow_finish(const narrow_job *j, const narrow_tile *t, int64_t row, int64_t rows,
                          float *sums)
{
    const int64_t size = (int64_t)ek_dtype_size(j->dtype);
    for (int64_t r = row; r < row + rows; r++, sums += j->sums_row) {
        char *to =
            j->out + (t->batch * j->out_batch + r * j->out_row + t->column * j->out_column) * size;
        if (j->bias)
            narrow_add(sums, j->bias + (j->bias_of_rows ? r : t->column), !j->bias_of_rows,
                       t->columns);
        for (int64_t c = 0; c < t->columns && j->accumulate; c += WIDE_LINES) {
            const int64_t count = ek_smaller(WIDE_LINES, t->columns - c);
            float old[WIDE_LINES];
            ek_row_load(EK_CLASS_F32, old, j->dtype, to + c * j->out_column * size, j->out_column,
                        count);
            narrow_add(sums + c, old, 1, count);
        }
        if (j->relu)
            narrow_relu(sums, t->columns);
        ek_row_store(EK_CLASS_F32, sums, j->dtype, to, j->out_column, t->columns);
    }
}

/* Multiplies a panel of rows by all columns of the tile, over one block. */
static void narrow_multiply(const narrow_job *j, const narrow_tile *t, const ek_gemm_call *panel,
                            int64_t rows, const float *columns, float *sums)
{
    const int64_t wide = j->kernel->columns;
    ek_gemm_call call = *panel;
    call.c_row = j->sums_row;
    call.b_depth = wide;
    for (int64_t c = 0; c < t->columns; c += wide, columns += wide * call.k) {
        const int vectors = t->columns - c > wide / 2 ? 2 : 1;
        call.b = columns;
        call.c = sums + c;
        j->kernel->inner[vectors - 1][rows - 1](&call);
    }
}

static void narrow_compute_tile(const narrow_job *j, const narrow_tile *t, float *workspace)
{
    const int width = (int)j->panel_rows;
    float *columns = workspace + j->columns_at, *packed = workspace + j->rows_at;
    ek_gemm_ahead none = {.runs = 0};
    ek_gemm_call call = {.next_a = &none, .next_b = &none};
    /* Without steps, one empty block writes the zeros. */
    for (int64_t first = 0; first < j->steps || first == 0; first += BLOCK_STEPS) {
        call.k = ek_smaller(BLOCK_STEPS, j->steps - first);
        call.add = first > 0;
        narrow_pack(j, &j->right, t->batch, t->column, t->columns, first, call.k,
                    j->kernel->columns, columns);
        for (int64_t r = 0; r < t->rows; r += width) {
            const int64_t rows = ek_smaller(width, t->rows - r), row = t->row + r;
            const int64_t side = r / width % SIDE_PANELS;
            float *sums = workspace + j->sums_at;
            if (j->steps > BLOCK_STEPS)
                sums += r * j->sums_row;
            if (j->packs_rows) {
                if (side == 0)
                    narrow_pack(j, &j->left, t->batch, row,
                                ek_smaller(SIDE_PANELS * width, t->rows - r), first, call.k, width,
                                packed);
                call.a = packed + side * width * call.k;
                call.a_row = 1;
                call.a_depth = width;
            } else { /* neighbouring pairs */
                call.a = (const uint16_t *)j->left.data + t->batch * j->left.batch_stride +
                         row * j->left.line_stride + 2 * first;
                call.a_row = j->left.line_stride / 2;
                call.a_depth = 1;
            }
            narrow_multiply(j, t, &call, rows, columns, sums);
            if (first + call.k == j->steps)
                narrow_finish(j, t, row, rows, sums);
        }
    }
}

/* Computes one tile after another until none is left. [begin, end) is ignored. */
static void narrow_compute_tiles(void *context, int64_t begin, int64_t end)
{
    narrow_job *j = context;
    (void)begin, (void)end;
    const int thread = atomic_fetch_add(&j->next_thread, 1);
    float *workspace = j->workspace + thread * j->workspace_stride;
    int64_t tile;
    while ((tile = atomic_fetch_add(&j->next_tile, 1)) < j->tiles) {
        const narrow_tile t = narrow_tile_at(j, tile);
        narrow_compute_tile(j, &t, workspace);
    }
}

/* ---- a call ---- */

static narrow_factor narrow_factor_of(const ek_tensor *t, int line, int depth)
{
    return (narrow_factor){.dtype = t->dtype,
                           .data = ek_tensor_address(t),
                           .batch_stride = t->stride[0],
                           .line_stride = t->stride[line],
                           .depth_stride = t->stride[depth]};
}

/* Exchanges the factors: out' = right' left'. */
static void narrow_exchange(narrow_job *j)
{
    const narrow_factor left = j->left;
    const int64_t n = j->n, row = j->out_row;
    j->left = j->right;
    j->right = left;
    j->n = j->m;
    j->m = n;
    j->out_row = j->out_column;
    j->out_column = row;
    j->bias_of_rows = true;
}

/* Returns true if words of the factor's lines lie in memory as the kernels read them. */
static bool narrow_is_in_place(const narrow_job *j, const narrow_factor *f)
{
    return j->pairs && f->depth_stride == 1 && f->line_stride % 2 == 0 && j->k % 2 == 0;
}

/* Cuts the output into tiles: each thread gets equally many, if there are so many panels. */
static void narrow_choose_tiles(narrow_job *j, int64_t batch, int threads)
{
    const int64_t wide = j->kernel->columns;
    const int64_t depth = ek_larger(ek_smaller(j->steps, BLOCK_STEPS), 1);
    const int64_t panels = ek_divide_up(j->m, wide);
    const int64_t most = GROUP_NBYTES / (int64_t)sizeof(float) / (wide * depth);
    j->panel_rows = ek_divide_up(j->n, ek_divide_up(j->n, j->kernel->rows));
    j->groups = ek_divide_up(panels, ek_larger(most, 1));
    j->row_tiles = j->steps > BLOCK_STEPS ? ek_divide_up(j->n, TILE_ROWS) : 1;
    const int64_t count = batch * j->row_tiles, row_panels = ek_divide_up(j->n, j->panel_rows);
    if (count * j->groups < 8 * threads && count % threads != 0) {
        const int64_t equal = ek_divide_up(j->groups, threads) * threads;
        if (equal <= panels)
            j->groups = equal;
        else
            j->row_tiles = ek_smaller(ek_divide_up(j->row_tiles, threads) * threads, row_panels);
    }
    j->tiles = batch * j->row_tiles * j->groups;
    j->tile_rows = ek_divide_up(row_panels, j->row_tiles) * j->panel_rows;
    j->group_columns = ek_divide_up(panels, j->groups) * wide;
}

static int narrow_run(ek_dev *dev, narrow_job *j, int64_t batch, const ek_tensor *bias)
{
    const int64_t depth = ek_smaller(j->steps, BLOCK_STEPS);
    const int64_t count = bias ? bias->shape[0] : 0;
    narrow_choose_tiles(j, batch, ek_parallel_threads(dev));
    const int64_t threads = ek_smaller(ek_parallel_threads(dev), j->tiles);
    const int64_t kept = j->steps > BLOCK_STEPS ? j->tile_rows : j->panel_rows;
    j->sums_row = j->group_columns;
    j->rows_at = j->group_columns * depth;
    j->sums_at = j->rows_at;
    if (j->packs_rows)
        j->sums_at += ek_smaller(SIDE_PANELS * j->panel_rows, j->tile_rows) * depth + 16;
    j->workspace_stride = (j->sums_at + kept * j->sums_row + 15) / 16 * 16;
    const size_t nbytes = (size_t)(threads * j->workspace_stride + count) * sizeof(float);
    void *workspace;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &workspace));
    j->workspace = workspace;
    if (bias) {
        float *wide = j->workspace + threads * j->workspace_stride;
        ek_row_load(EK_CLASS_F32, wide, bias->dtype, ek_tensor_address(bias), bias->stride[0],
                    count);
        j->bias = wide;
    }
    /* Starting a team costs some microseconds: about 100000 multiplications. */
    const int64_t work = j->tile_rows * j->group_columns * (j->steps + 1);
    ek_parallel_for(dev, j->tiles, 1 + 50000 / work, narrow_compute_tiles, j);
    ek_dev_free(dev, workspace, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}

int ek_gemm_narrow(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                   const ek_tensor *bias, bool accumulate, bool relu, bool pairs)
{
    int64_t batch = out->shape[0];
    narrow_job j = {.pairs = pairs,
                    .accumulate = accumulate,
                    .relu = relu,
                    .n = out->shape[1],
                    .m = out->shape[2],
                    .k = x->shape[2],
                    .left = narrow_factor_of(x, 1, 2),
                    .right = narrow_factor_of(y, 2, 1),
                    .dtype = out->dtype,
                    .out = ek_tensor_address(out),
                    .out_batch = out->stride[0],
                    .out_row = out->stride[1],
                    .out_column = out->stride[2]};
    j.kernel = ek_gemm_kernel_best(j.pairs ? EK_BF16 : EK_F32);
    j.steps = j.pairs ? ek_divide_up(j.k, 2) : j.k;
    /* Products of a batch with one shared matrix are one product. */
    if (batch > 1 && j.right.batch_stride == 0 && j.left.batch_stride == j.n * j.left.line_stride &&
        j.out_batch == j.n * j.out_row) {
        j.n *= batch;
        batch = 1;
    }
    /* Few rows of pairs whose other factor needs no packing, columns that fill no vectors, or
     * outputs that lie column by column. */
    const bool few = j.n <= j.kernel->rows && j.n < j.m && narrow_is_in_place(&j, &j.right);
    const bool thin = j.m <= j.kernel->rows && j.m < j.n && !narrow_is_in_place(&j, &j.left);
    if (few || thin || (j.out_row == 1 && j.out_column != 1 && j.m > j.kernel->rows))
        narrow_exchange(&j);
    j.packs_rows = !narrow_is_in_place(&j, &j.left);
    return narrow_run(dev, &j, batch, bias);
}
