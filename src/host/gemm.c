/* gemm.c: blocked matrix products.
 *
 * After Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008): panels
 * of a and b are packed so that the innermost kernel reads both in order, from level 2 and level 1
 * cache. The output is divided into tiles, each computed by one thread; an element's sum runs over
 * k in blocks of fixed length, so that it doesn't depend on the tiles or the number of threads. */
#include "host/gemm.h"

#include <stdatomic.h>
#include <string.h>

#include "host/dnn.h"
#include "host/parallel.h"

/* A packed block of a takes 96 or 192 KiB, in level 2. BLOCK_ROWS is a multiple of all kernels'
 * rows. */
enum {
    BLOCK_ROWS = 96,
    BLOCK_DEPTH = 256,
    TILE_ROWS = 4 * BLOCK_ROWS,
    TILE_COLUMNS = 512,
    PACKED_COLUMNS = 192
};

typedef struct tiles {
    const ek_gemm *gemm;
    const ek_gemm_kernel *kernel;
    int64_t tile_rows, tile_columns;
    int64_t row_tiles, column_tiles;
    void *workspace;
    size_t packed_a, workspace_stride; /* elements for each part */
    atomic_int next_part;
} tiles;

static int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t divide_up(int64_t a, int64_t unit)
{
    return (a + unit - 1) / unit;
}

#define REAL float
#define NAME(x) x##_f32
#include "host/gemm_real.h"

#define REAL double
#define NAME(x) x##_f64
#include "host/gemm_real.h"

/* Tiles as large as leaves each thread several. */
static void choose_tiles(tiles *t, int threads)
{
    const ek_gemm *g = t->gemm;
    t->tile_rows = TILE_ROWS;
    t->tile_columns = TILE_COLUMNS;
    for (;;) {
        t->row_tiles = divide_up(g->n, t->tile_rows);
        t->column_tiles = divide_up(g->m, t->tile_columns);
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

/* If packing is the caller's and slower than a copy: tiles of equal size, as many for each
 * thread. */
static void choose_equal_tiles(tiles *t, int threads)
{
    const ek_gemm *g = t->gemm;
    int64_t mr = t->kernel->rows, nr = t->kernel->columns;
    t->row_tiles = divide_up(g->n, TILE_ROWS);
    t->tile_rows = divide_up(divide_up(g->n, t->row_tiles), mr) * mr;
    t->column_tiles = divide_up(g->m, PACKED_COLUMNS);
    while (g->batch * t->row_tiles * t->column_tiles % threads != 0 && t->column_tiles * nr < g->m)
        t->column_tiles++;
    t->tile_columns = divide_up(divide_up(g->m, t->column_tiles), nr) * nr;
    t->row_tiles = divide_up(g->n, t->tile_rows);
    t->column_tiles = divide_up(g->m, t->tile_columns);
}

static int run_blocked(ek_dev *dev, const ek_gemm *gemm)
{
    tiles t = {.gemm = gemm, .kernel = ek_gemm_kernel_best(gemm->dtype)};
    int threads = ek_parallel_threads(dev);
    if (gemm->pack_a || gemm->pack_b)
        choose_equal_tiles(&t, threads);
    else
        choose_tiles(&t, threads);
    int64_t count = gemm->batch * t.row_tiles * t.column_tiles;
    int64_t depth = min_of(BLOCK_DEPTH, gemm->k);
    int64_t rows = min_of(BLOCK_ROWS, gemm->n), columns = min_of(t.tile_columns, gemm->m);
    int64_t mr = t.kernel->rows, nr = t.kernel->columns;
    t.packed_a = (size_t)(divide_up(rows, mr) * mr * depth);
    t.workspace_stride = t.packed_a + (size_t)(divide_up(columns, nr) * nr * depth);
    t.workspace_stride = (t.workspace_stride + 15) / 16 * 16;
    size_t nbytes =
        (size_t)min_of(threads, count) * t.workspace_stride * ek_dtype_size(gemm->dtype);
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &t.workspace));
    /* Starting a team costs some microseconds: about 100000 multiplications. */
    int64_t work = min_of(gemm->n, t.tile_rows) * columns * (gemm->k + 1);
    ek_parallel_for(dev, count, 1 + 50000 / work,
                    gemm->dtype == EK_F32 ? compute_tiles_f32 : compute_tiles_f64, &t);
    ek_dev_free(dev, t.workspace, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}

/* oneDNN's f32 product is the faster one, but for few rows against a wide b that is not transposed,
 * which it doesn't pack: 28 against 45 GFLOP/s for (256, 2048) x (2048, 2048) on a Zen 3 core. */
static bool blocked_is_faster(const ek_gemm *gemm)
{
    bool b_by_rows = gemm->b.column_stride == 1 && gemm->b.row_stride >= gemm->m;
    return b_by_rows && gemm->n >= 32 && gemm->n <= 512 && gemm->m >= 512;
}

int ek_gemm_run(ek_dev *dev, const ek_gemm *gemm)
{
    if (gemm->batch == 0 || gemm->n == 0 || gemm->m == 0)
        return 0;
    /* A batch of rows against one matrix is one product. */
    ek_gemm folded = *gemm;
    bool packs = gemm->pack_a || gemm->pack_b;
    if (gemm->batch > 1 && !packs && gemm->b.batch_stride == 0 &&
        gemm->a.batch_stride == gemm->n * gemm->a.row_stride &&
        gemm->c.batch_stride == gemm->n * gemm->c.row_stride) {
        folded.n *= gemm->batch;
        folded.batch = 1;
    }
    if (folded.dtype == EK_F32 && !packs && !blocked_is_faster(&folded))
        return ek_dnn_gemm(dev, &folded);
    return run_blocked(dev, &folded);
}
