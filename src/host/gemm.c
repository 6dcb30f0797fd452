/* gemm.c: blocked matrix products.
 *
 * After Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008): panels
 * of a and b are packed so that the innermost kernel reads both in order, from level 2 and level 1
 * cache. The output is divided into tiles, each computed by one thread; an element's sum runs over
 * k in blocks of fixed length, so that it doesn't depend on the tiles or the number of threads. */
#ifndef EK_REAL
#include "host/gemm.h"

#include <stdatomic.h>
#include <string.h>

#include "host/dnn.h"
#include "host/host.h"
#include "host/parallel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* A packed block of a takes 96 KiB in f32 and 192 KiB in f64, for the level 2 cache. BLOCK_ROWS is
 * a multiple of the rows of every kernel. */
enum {
    BLOCK_ROWS = 96,
    BLOCK_DEPTH = 256,
    TILE_ROWS = 4 * BLOCK_ROWS,
    TILE_COLUMNS = 512,
    PACKED_COLUMNS = 192
};

/* ---- the innermost loop, for AVX-512, AVX2 with FMA, and anything ---- */

/* The innermost product: acc (rows, columns), row-major, = a' b for packed a (k, rows) and b (k,
 * columns). */
typedef struct gemm_kernel {
    int rows, columns;
    void (*run)(int64_t k, const void *a, const void *b, void *acc);
} gemm_kernel;

enum { MAX_ROWS = 12, MAX_COLUMNS = 32 };

#define PLAIN(NAME, REAL)                                                              \
    static void NAME(int64_t k, const void *packed_a, const void *packed_b, void *out) \
    {                                                                                  \
        const REAL *restrict a = packed_a, *restrict b = packed_b;                     \
        REAL *restrict acc = out, sum[4][8] = {{0}};                                   \
        for (int64_t i = 0; i < k; i++) {                                              \
            for (int r = 0; r < 4; r++)                                                \
                for (int c = 0; c < 8; c++)                                            \
                    sum[r][c] += a[r] * b[c];                                          \
            a += 4;                                                                    \
            b += 8;                                                                    \
        }                                                                              \
        for (int r = 0; r < 4; r++)                                                    \
            for (int c = 0; c < 8; c++)                                                \
                acc[r * 8 + c] = sum[r][c];                                            \
    }
PLAIN(gemm_plain_f32, float)
PLAIN(gemm_plain_f64, double)

#if defined(__x86_64__)

/* ROWS x 2 vectors of sums stay in registers: 6 x 2 of 16 with AVX2, 12 x 2 of 32 with AVX-512. */
#define VECTORISED(NAME, TARGET, ROWS, REAL, VECTOR, ZERO, LOAD, STORE, SPLAT, FMA)             \
    __attribute__((target(TARGET))) static void NAME(int64_t k, const void *packed_a,           \
                                                     const void *packed_b, void *out)           \
    {                                                                                           \
        enum { WIDTH = sizeof(VECTOR) / sizeof(REAL) };                                         \
        const REAL *a = packed_a, *b = packed_b;                                                \
        REAL *acc = out;                                                                        \
        VECTOR sum[ROWS][2];                                                                    \
        _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] = ZERO(); \
        for (int64_t i = 0; i < k; i++) {                                                       \
            VECTOR b0 = LOAD(b), b1 = LOAD(b + WIDTH);                                          \
            _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++)                             \
            {                                                                                   \
                VECTOR x = SPLAT(a[r]);                                                         \
                sum[r][0] = FMA(x, b0, sum[r][0]);                                              \
                sum[r][1] = FMA(x, b1, sum[r][1]);                                              \
            }                                                                                   \
            a += ROWS;                                                                          \
            b += 2 * WIDTH;                                                                     \
        }                                                                                       \
        _Pragma("GCC unroll 12") for (int r = 0; r < ROWS; r++)                                 \
        {                                                                                       \
            STORE(acc + 2 * WIDTH * r, sum[r][0]);                                              \
            STORE(acc + 2 * WIDTH * r + WIDTH, sum[r][1]);                                      \
        }                                                                                       \
    }

VECTORISED(gemm_avx2_f32, "avx2,fma", 6, float, __m256, _mm256_setzero_ps, _mm256_loadu_ps,
           _mm256_storeu_ps, _mm256_set1_ps, _mm256_fmadd_ps)
VECTORISED(gemm_avx2_f64, "avx2,fma", 6, double, __m256d, _mm256_setzero_pd, _mm256_loadu_pd,
           _mm256_storeu_pd, _mm256_set1_pd, _mm256_fmadd_pd)
VECTORISED(gemm_avx512_f32, "avx512f", 12, float, __m512, _mm512_setzero_ps, _mm512_loadu_ps,
           _mm512_storeu_ps, _mm512_set1_ps, _mm512_fmadd_ps)
VECTORISED(gemm_avx512_f64, "avx512f", 12, double, __m512d, _mm512_setzero_pd, _mm512_loadu_pd,
           _mm512_storeu_pd, _mm512_set1_pd, _mm512_fmadd_pd)

#endif

/* The best kernel for this processor. */
static const gemm_kernel *gemm_kernel_best(ek_dtype dtype)
{
    bool wide = dtype == EK_F64;
#if defined(__x86_64__)
    static const gemm_kernel avx512[2] = {{12, 32, gemm_avx512_f32}, {12, 16, gemm_avx512_f64}};
    static const gemm_kernel avx2[2] = {{6, 16, gemm_avx2_f32}, {6, 8, gemm_avx2_f64}};
    if (__builtin_cpu_supports("avx512f"))
        return &avx512[wide];
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &avx2[wide];
#endif
    static const gemm_kernel plain[2] = {{4, 8, gemm_plain_f32}, {4, 8, gemm_plain_f64}};
    return &plain[wide];
}

/* ---- tiles ---- */

typedef struct tiles {
    const ek_gemm *gemm;
    const gemm_kernel *kernel;
    int64_t tile_rows, tile_columns;
    int64_t row_tiles, column_tiles;
    void *workspace;
    size_t packed_a, workspace_stride; /* elements of one part: its packed a, and all */
    atomic_int next_part;
} tiles;

#define EK_FOR_REALS "host/gemm.c"
#include "kernels/for_reals.h"

/* Chooses tiles as large as possible, but several for each thread. */
static void gemm_choose_tiles(tiles *t, int threads)
{
    const ek_gemm *g = t->gemm;
    t->tile_rows = TILE_ROWS;
    t->tile_columns = TILE_COLUMNS;
    for (;;) {
        t->row_tiles = ek_divide_up(g->n, t->tile_rows);
        t->column_tiles = ek_divide_up(g->m, t->tile_columns);
        int64_t count = g->batch * t->row_tiles * t->column_tiles;
        bool many = threads == 1 || count >= 4 * threads || count % threads == 0;
        if (many || (t->tile_columns <= 64 && t->tile_rows <= BLOCK_ROWS))
            return;
        if (t->tile_columns > 64 && (g->m > t->tile_columns / 2 || t->tile_rows <= BLOCK_ROWS))
            t->tile_columns /= 2;
        else
            t->tile_rows /= 2;
    }
}

/* Packing by the caller is slow, so tiles are few: of equal size and, if possible, as many for each
 * thread. */
static void gemm_choose_equal_tiles(tiles *t, int threads)
{
    const ek_gemm *g = t->gemm;
    int64_t mr = t->kernel->rows, nr = t->kernel->columns;
    t->row_tiles = ek_divide_up(g->n, TILE_ROWS);
    t->tile_rows = ek_divide_up(ek_divide_up(g->n, t->row_tiles), mr) * mr;
    t->column_tiles = ek_divide_up(g->m, PACKED_COLUMNS);
    while (g->batch * t->row_tiles * t->column_tiles % threads != 0 && t->column_tiles * nr < g->m)
        t->column_tiles++;
    t->tile_columns = ek_divide_up(ek_divide_up(g->m, t->column_tiles), nr) * nr;
    t->row_tiles = ek_divide_up(g->n, t->tile_rows);
    t->column_tiles = ek_divide_up(g->m, t->tile_columns);
}

static int gemm_run_blocked(ek_dev *dev, const ek_gemm *gemm)
{
    tiles t = {.gemm = gemm, .kernel = gemm_kernel_best(gemm->dtype)};
    int threads = ek_parallel_threads(dev);
    if (gemm->pack_a || gemm->pack_b)
        gemm_choose_equal_tiles(&t, threads);
    else
        gemm_choose_tiles(&t, threads);
    int64_t count = gemm->batch * t.row_tiles * t.column_tiles;
    int64_t depth = ek_smaller(BLOCK_DEPTH, gemm->k);
    int64_t rows = ek_smaller(BLOCK_ROWS, gemm->n), columns = ek_smaller(t.tile_columns, gemm->m);
    int64_t mr = t.kernel->rows, nr = t.kernel->columns;
    t.packed_a = (size_t)(ek_divide_up(rows, mr) * mr * depth);
    t.workspace_stride = t.packed_a + (size_t)(ek_divide_up(columns, nr) * nr * depth);
    t.workspace_stride = (t.workspace_stride + 15) / 16 * 16;
    size_t nbytes =
        (size_t)ek_smaller(threads, count) * t.workspace_stride * ek_dtype_size(gemm->dtype);
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &t.workspace));
    /* Starting a team costs some microseconds: about 100000 multiplications. */
    int64_t work = ek_smaller(gemm->n, t.tile_rows) * columns * (gemm->k + 1);
    ek_parallel_for(dev, count, 1 + 50000 / work,
                    gemm->dtype == EK_F32 ? gemm_compute_tiles_f32 : gemm_compute_tiles_f64, &t);
    ek_dev_free(dev, t.workspace, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}

/* oneDNN's f32 product is faster, except for few rows times a wide b that is not transposed,
 * because oneDNN doesn't pack such a b. For (256, 2048) x (2048, 2048) on a Zen 3 core oneDNN does
 * 28 GFLOP/s, this file 45. */
static bool gemm_blocked_is_faster(const ek_gemm *gemm)
{
    bool b_by_rows = gemm->b.column_stride == 1 && gemm->b.row_stride >= gemm->m;
    return b_by_rows && gemm->n >= 32 && gemm->n <= 512 && gemm->m >= 512;
}

int ek_gemm_run(ek_dev *dev, const ek_gemm *gemm)
{
    if (gemm->batch == 0 || gemm->n == 0 || gemm->m == 0)
        return 0;
    /* Products of a batch with one shared matrix are one product. */
    ek_gemm folded = *gemm;
    bool packs = gemm->pack_a || gemm->pack_b;
    if (gemm->batch > 1 && !packs && gemm->b.batch_stride == 0 &&
        gemm->a.batch_stride == gemm->n * gemm->a.row_stride &&
        gemm->c.batch_stride == gemm->n * gemm->c.row_stride) {
        folded.n *= gemm->batch;
        folded.batch = 1;
    }
    if (folded.dtype == EK_F32 && !packs && !gemm_blocked_is_faster(&folded))
        return ek_dnn_gemm(dev, &folded);
    return gemm_run_blocked(dev, &folded);
}

#else /* for each EK_REAL */

/* Packs `lines` x `depth` into panels of `width` lines: element (line, d) of a panel at d * width +
 * line. Lines beyond the end are zero. Inlined for each width, so that the inner loops unroll. */
static inline __attribute__((always_inline)) void
EK_NAME(gemm_pack_width)(EK_REAL *restrict to, const EK_REAL *from, int64_t lines, int64_t depth,
                         int width, int64_t line_stride, int64_t depth_stride)
{
    for (int64_t first = 0; first < lines; first += width, to += width * depth) {
        const EK_REAL *panel = from + first * line_stride;
        if (lines - first < width) {
            for (int64_t l = 0; l < width; l++)
                for (int64_t d = 0; d < depth; d++)
                    to[d * width + l] =
                        l < lines - first ? panel[l * line_stride + d * depth_stride] : 0;
        } else if (line_stride == 1) {
            for (int64_t d = 0; d < depth; d++)
                memcpy(to + d * width, panel + d * depth_stride, (size_t)width * sizeof(EK_REAL));
        } else {
            for (int64_t d = 0; d < depth; d++)
                for (int l = 0; l < width; l++)
                    to[d * width + l] = panel[l * line_stride + d * depth_stride];
        }
    }
}

static void EK_NAME(gemm_pack)(EK_REAL *to, const EK_REAL *from, int64_t lines, int64_t depth,
                               int width, int64_t line_stride, int64_t depth_stride)
{
#define PACK(known)                                                                         \
    if (width == (known)) {                                                                 \
        EK_NAME(gemm_pack_width)(to, from, lines, depth, known, line_stride, depth_stride); \
        return;                                                                             \
    }
    PACK(4)
    PACK(6)
    PACK(8)
    PACK(12)
    PACK(16) EK_NAME(gemm_pack_width)(to, from, lines, depth, width, line_stride, depth_stride);
#undef PACK
}

static void EK_NAME(gemm_store)(EK_REAL *c, int64_t row_stride, int64_t column_stride,
                                const EK_REAL *acc, int64_t acc_stride, int64_t rows,
                                int64_t columns, bool add)
{
    for (int64_t i = 0; i < rows; i++) {
        EK_REAL *restrict row = c + i * row_stride;
        const EK_REAL *restrict sum = acc + i * acc_stride;
        if (column_stride == 1 && add)
            for (int64_t j = 0; j < columns; j++)
                row[j] += sum[j];
        else if (column_stride == 1)
            for (int64_t j = 0; j < columns; j++)
                row[j] = sum[j];
        else
            for (int64_t j = 0; j < columns; j++)
                row[j * column_stride] = (add ? row[j * column_stride] : 0) + sum[j];
    }
}

static void EK_NAME(gemm_compute_tile)(const tiles *t, int64_t tile, EK_REAL *packed_a,
                                       EK_REAL *packed_b)
{
    const ek_gemm *g = t->gemm;
    int64_t column0 = tile % t->column_tiles * t->tile_columns;
    int64_t row0 = tile / t->column_tiles % t->row_tiles * t->tile_rows;
    int64_t batch = tile / t->column_tiles / t->row_tiles;
    int64_t row_end = ek_smaller(row0 + t->tile_rows, g->n);
    int64_t columns = ek_smaller(t->tile_columns, g->m - column0);
    const EK_REAL *a = (const EK_REAL *)g->a.data + batch * g->a.batch_stride;
    const EK_REAL *b =
        (const EK_REAL *)g->b.data + batch * g->b.batch_stride + column0 * g->b.column_stride;
    EK_REAL *c = (EK_REAL *)g->c.data + batch * g->c.batch_stride + column0 * g->c.column_stride;
    int64_t k = g->batch_k ? g->batch_k[batch] : g->k;
    int mr = t->kernel->rows, nr = t->kernel->columns;
    EK_REAL acc[MAX_ROWS * MAX_COLUMNS];
    /* If k is 0, one empty round writes the zeros. */
    for (int64_t k0 = 0; k0 < k || k0 == 0; k0 += BLOCK_DEPTH) {
        int64_t depth = ek_smaller(BLOCK_DEPTH, k - k0);
        bool add = g->accumulate || k0 > 0;
        if (g->pack_b)
            g->pack_b(g->pack_context, batch, (float *)packed_b, column0, columns, k0, depth, nr);
        else
            EK_NAME(gemm_pack)
        (packed_b, b + k0 * g->b.row_stride, columns, depth, nr, g->b.column_stride,
         g->b.row_stride);
        for (int64_t row = row0; row < row_end; row += BLOCK_ROWS) {
            int64_t rows = ek_smaller(BLOCK_ROWS, row_end - row);
            if (g->pack_a)
                g->pack_a(g->pack_context, batch, (float *)packed_a, row, rows, k0, depth, mr);
            else
                EK_NAME(gemm_pack)
            (packed_a, a + row * g->a.row_stride + k0 * g->a.column_stride, rows, depth, mr,
             g->a.row_stride, g->a.column_stride);
            for (int64_t j = 0; j < columns; j += nr) {
                for (int64_t i = 0; i < rows; i += mr) {
                    t->kernel->run(depth, packed_a + i * depth, packed_b + j * depth, acc);
                    EK_NAME(gemm_store)
                    (c + (row + i) * g->c.row_stride + j * g->c.column_stride, g->c.row_stride,
                     g->c.column_stride, acc, nr, ek_smaller(mr, rows - i),
                     ek_smaller(nr, columns - j), add);
                }
            }
        }
    }
}

static void EK_NAME(gemm_compute_tiles)(void *context, int64_t begin, int64_t end)
{
    tiles *t = context;
    int part = atomic_fetch_add(&t->next_part, 1);
    EK_REAL *packed_a = (EK_REAL *)t->workspace + (size_t)part * t->workspace_stride;
    EK_REAL *packed_b = packed_a + t->packed_a;
    for (int64_t tile = begin; tile < end; tile++)
        EK_NAME(gemm_compute_tile)(t, tile, packed_a, packed_b);
}

#endif
