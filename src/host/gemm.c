/* gemm.c: the blocked matrix product (f64), and the choice between it and oneDNN's (f32).
 *
 * After Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008): panels
 * of a and b are packed so that the innermost kernel reads both in order, from level 2 and level 1
 * cache. The output is divided into tiles by shape alone, each computed by one thread, so that sums
 * don't depend on the number of threads. */
#include "host/gemm.h"

#include <stdatomic.h>

#include "host/dnn.h"
#include "host/parallel.h"

/* A packed block of a is 96 x 256 (192 KiB, level 2), of b 256 x 256 (512 KiB). */
enum { BLOCK_ROWS = 96, BLOCK_COLUMNS = 256, BLOCK_DEPTH = 256 };

typedef struct tiles {
    const ek_gemm *gemm;
    const ek_gemm_kernel *kernel;
    int64_t row_blocks, column_blocks;
    double *workspace;
    size_t workspace_stride; /* elements for each part */
    atomic_int next_part;
} tiles;

static int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t a, int64_t unit)
{
    return (a + unit - 1) / unit * unit;
}

/* Packs `lines` x `depth` into panels of `width` lines: element (line, d) of a panel at d * width +
 * line. Lines beyond the end are zero. */
static void pack(double *restrict to, const double *from, int64_t lines, int64_t depth, int width,
                 int64_t line_stride, int64_t depth_stride)
{
    for (int64_t first = 0; first < lines; first += width) {
        int64_t count = min_of(width, lines - first);
        const double *panel = from + first * line_stride;
        if (line_stride == 1 && count == width) {
            for (int64_t d = 0; d < depth; d++)
                for (int l = 0; l < width; l++)
                    to[d * width + l] = panel[d * depth_stride + l];
        } else {
            for (int64_t l = 0; l < count; l++)
                for (int64_t d = 0; d < depth; d++)
                    to[d * width + l] = panel[l * line_stride + d * depth_stride];
            for (int64_t l = count; l < width; l++)
                for (int64_t d = 0; d < depth; d++)
                    to[d * width + l] = 0;
        }
        to += width * depth;
    }
}

static void store(double *c, int64_t row_stride, int64_t column_stride, const double *acc,
                  int64_t acc_stride, int64_t rows, int64_t columns, bool add)
{
    for (int64_t i = 0; i < rows; i++) {
        double *row = c + i * row_stride;
        const double *sum = acc + i * acc_stride;
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

static void compute_tile(const tiles *t, int64_t tile, double *packed_a, double *packed_b)
{
    const ek_gemm *g = t->gemm;
    int64_t column0 = tile % t->column_blocks * BLOCK_COLUMNS;
    int64_t row0 = tile / t->column_blocks % t->row_blocks * BLOCK_ROWS;
    int64_t batch = tile / t->column_blocks / t->row_blocks;
    int64_t rows = min_of(BLOCK_ROWS, g->n - row0), columns = min_of(BLOCK_COLUMNS, g->m - column0);
    const double *a =
        (const double *)g->a.data + batch * g->a.batch_stride + row0 * g->a.row_stride;
    const double *b =
        (const double *)g->b.data + batch * g->b.batch_stride + column0 * g->b.column_stride;
    double *c = (double *)g->c.data + batch * g->c.batch_stride + row0 * g->c.row_stride +
                column0 * g->c.column_stride;
    int mr = t->kernel->rows, nr = t->kernel->columns;
    double acc[EK_GEMM_MAX_ROWS * EK_GEMM_MAX_COLUMNS];

    /* With k = 0 one empty round writes the zeros. */
    for (int64_t k0 = 0; k0 < g->k || k0 == 0; k0 += BLOCK_DEPTH) {
        int64_t depth = min_of(BLOCK_DEPTH, g->k - k0);
        bool add = g->accumulate || k0 > 0;
        pack(packed_a, a + k0 * g->a.column_stride, rows, depth, mr, g->a.row_stride,
             g->a.column_stride);
        pack(packed_b, b + k0 * g->b.row_stride, columns, depth, nr, g->b.column_stride,
             g->b.row_stride);
        for (int64_t j = 0; j < columns; j += nr) {
            for (int64_t i = 0; i < rows; i += mr) {
                t->kernel->run(depth, packed_a + i * depth, packed_b + j * depth, acc);
                store(c + i * g->c.row_stride + j * g->c.column_stride, g->c.row_stride,
                      g->c.column_stride, acc, nr, min_of(mr, rows - i), min_of(nr, columns - j),
                      add);
            }
        }
    }
}

static void compute_tiles(void *context, int64_t begin, int64_t end)
{
    tiles *t = context;
    int part = atomic_fetch_add(&t->next_part, 1);
    double *packed_a = t->workspace + (size_t)part * t->workspace_stride;
    double *packed_b = packed_a + (size_t)round_up(BLOCK_ROWS, t->kernel->rows) *
                                      (size_t)min_of(BLOCK_DEPTH, t->gemm->k);
    for (int64_t tile = begin; tile < end; tile++)
        compute_tile(t, tile, packed_a, packed_b);
}

int ek_gemm_blocked(ek_dev *dev, const ek_gemm *gemm)
{
    tiles t = {.gemm = gemm, .kernel = ek_gemm_kernel_best()};
    t.row_blocks = (gemm->n + BLOCK_ROWS - 1) / BLOCK_ROWS;
    t.column_blocks = (gemm->m + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
    int64_t count = gemm->batch * t.row_blocks * t.column_blocks;
    if (count == 0)
        return 0;
    int64_t depth = min_of(BLOCK_DEPTH, gemm->k);
    t.workspace_stride =
        (size_t)(depth * (round_up(BLOCK_ROWS, t.kernel->rows) +
                          round_up(min_of(BLOCK_COLUMNS, gemm->m), t.kernel->columns)));
    size_t parts = (size_t)min_of(ek_parallel_threads(dev), count);
    size_t nbytes = parts * t.workspace_stride * sizeof(double);
    void *workspace;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &workspace));
    t.workspace = workspace;
    /* Starting a team costs some microseconds: about 30000 multiplications. */
    int64_t work = min_of(gemm->n, BLOCK_ROWS) * min_of(gemm->m, BLOCK_COLUMNS) * (gemm->k + 1);
    ek_parallel_for(dev, count, 1 + 30000 / work, compute_tiles, &t);
    ek_dev_free(dev, workspace, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}

int ek_gemm_run(ek_dev *dev, const ek_gemm *gemm)
{
    return gemm->dtype == EK_F32 ? ek_dnn_gemm(dev, gemm) : ek_gemm_blocked(dev, gemm);
}
