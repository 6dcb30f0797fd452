/* gemm_blocked.c: see gemm_blocked.h.
 *
 * After Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008): panels
 * of a and b are packed so that the innermost kernel reads both in order, from level 2 and level 1
 * cache. What lies well in memory is read in place. If many columns read a packed a, all threads
 * pack it together. Then each thread takes one tile of c after another. A tile is some rows of c,
 * or all, times a group of columns. The thread packs the group's part of b, or the first rows pack
 * it while they use it. It also packs rows of a that have not been packed for all. An element's sum
 * runs over k in blocks of fixed length, so that the sum doesn't depend on the tiles or the number
 * of threads. */
#include "host/gemm_blocked.h"

#include <unistd.h>

#include "host/gemm_tile.h"
#include "host/parallel.h"

enum {
    /* Packed b stays in level 2 cache while rows pass by: at least GROUP_NBYTES, and at most
     * MOST_GROUP_NBYTES if the cache is large. */
    GROUP_NBYTES = 256 << 10,
    MOST_GROUP_NBYTES = 1 << 20,
    CHUNK_NBYTES = 256 << 10,               /* rows of a that a thread packs at a time */
    COPIES_NBYTES = 128 << 10,              /* copies of rows of c */
    SHARED_NBYTES = 4 << 20,                /* packed a: stays in level 3 cache */
    DIRECT_NBYTES = 64 << 10,               /* a smaller a isn't packed */
    DIRECT_ROWS_NBYTES = 4 * DIRECT_NBYTES, /* a smaller a with contiguous rows isn't packed */
    PAGE = 4096,    /* lines so far apart, or several times as far, share a set of level 1 cache */
    FEW_GROUPS = 8, /* a whose rows aren't contiguous isn't packed if so many groups read it */
    /* A tile that packs b has at least MANY_ROWS rows. If b is read in place, or packed once for
     * all tiles of a thread, or if threads would have nothing to do, FEW_ROWS are enough. */
    MANY_ROWS = 192,
    FEW_ROWS = 48,
    /* At most STREAM_ROWS rows of a read b in place: STREAM_DEPTH rows of b at a time, of at most
     * STREAM_NBYTES each. The processor prefetches so many streams by itself. */
    STREAM_ROWS = 36,
    STREAM_DEPTH = 32,
    STREAM_NBYTES = 4096
};

/* Writes the bytes of the level 2 cache and the ways of the level 1 cache, or 0 if the system
 * doesn't tell them. The system is asked once, because virtual machines answer slowly. */
static void gemm_caches(int64_t *level_2, int64_t *ways)
{
    static atomic_long gemm_known_level_2, gemm_known_ways;
#if defined(_SC_LEVEL2_CACHE_SIZE) && defined(_SC_LEVEL1_DCACHE_ASSOC)
    if (atomic_load(&gemm_known_ways) == 0) {
        atomic_store(&gemm_known_level_2, sysconf(_SC_LEVEL2_CACHE_SIZE));
        atomic_store(&gemm_known_ways, ek_larger(sysconf(_SC_LEVEL1_DCACHE_ASSOC), 1));
    }
#endif
    *level_2 = atomic_load(&gemm_known_level_2);
    *ways = atomic_load(&gemm_known_ways);
}

/* Returns the most bytes of packed b that a thread works with at a time. If a level 2 cache is
 * large, more is allowed if that saves a copy of a for all threads, which is no smaller. All
 * columns are one group if they fit into half of that cache and many rows pass by: each thread then
 * packs a few rows of a at a time, in its cache rather than in memory. Contiguous rows are read in
 * place. */
static int64_t gemm_group_nbytes(const ek_gemm_job *j, int64_t depth, int64_t size, int64_t level_2,
                                 int threads)
{
    const ek_gemm *g = j->gemm;
    const int64_t nbytes = g->n * g->k * size, columns = g->m * depth * size;
    const int64_t half = ek_smaller(level_2 / 2, MOST_GROUP_NBYTES);
    const bool by_rows = g->a.column_stride == 1;
    if (g->c.column_stride != 1 || nbytes <= DIRECT_ROWS_NBYTES ||
        (by_rows ? columns <= 2 * GROUP_NBYTES
                 : columns <= GROUP_NBYTES || g->a.column_stride * size <= EK_GEMM_NEAR_NBYTES))
        return GROUP_NBYTES;
    if (columns <= half && g->n >= g->m && threads * columns <= ek_smaller(nbytes, SHARED_NBYTES))
        return half;
    const int64_t more = ek_larger(half / 2, GROUP_NBYTES);
    return by_rows && threads * more <= nbytes && threads * (more - GROUP_NBYTES) <= SHARED_NBYTES
               ? more
               : GROUP_NBYTES;
}

/* Chooses how much of a and b is packed at a time. a isn't packed if it is small, nor if its rows
 * are contiguous, nor if few groups of columns read it and it lies well in memory. b with
 * contiguous rows isn't packed if they are near each other or if few rows of a pass by. Otherwise a
 * tile's first rows pack such a b. */
static void gemm_choose_blocks(ek_gemm_job *j, int threads)
{
    const ek_gemm *g = j->gemm;
    const int64_t size = (int64_t)ek_dtype_size(g->dtype), k = ek_larger(g->k, 1);
    const int64_t nbytes = g->n * k * size;
    int64_t level_2, ways;
    gemm_caches(&level_2, &ways);
    const int64_t most_rows = j->kernel->rows, most_columns = j->kernel->columns;
    j->block = EK_GEMM_BLOCK_NBYTES / size;
    const int64_t depth = ek_smaller(k, j->block);
    j->panel_columns = 2 * g->m <= most_columns ? most_columns / 2 : most_columns;
    const int64_t panels = ek_divide_up(g->m, j->panel_columns);
    const bool near = g->b.row_stride * size <= EK_GEMM_NEAR_NBYTES;
    j->streams_b = g->b.column_stride == 1 && !near && g->n <= STREAM_ROWS;
    const int64_t group_nbytes = gemm_group_nbytes(j, depth, size, level_2, threads);
    j->groups = ek_divide_up(panels, ek_larger(1, group_nbytes / size / depth / j->panel_columns));
    j->group_columns = ek_divide_up(panels, j->groups) * j->panel_columns;
    j->group_depth = ek_larger(1, GROUP_NBYTES / size / j->group_columns / j->block) * j->block;
    if (j->streams_b) {
        j->groups = ek_divide_up(panels * j->panel_columns * size, STREAM_NBYTES);
        j->group_columns = ek_divide_up(panels, j->groups) * j->panel_columns;
        j->group_depth = STREAM_DEPTH;
    }
    j->panel_rows = ek_divide_up(g->n, ek_divide_up(g->n, most_rows));
    const bool by_rows = g->a.column_stride == 1;
    /* Rows of a panel that share a set of level 1 cache need a way each. */
    const bool collides =
        j->kernel->rows > ways && g->m >= most_columns && g->a.row_stride * size % PAGE == 0;
    const bool few = j->groups <= FEW_GROUPS && g->a.column_stride * size <= EK_GEMM_NEAR_NBYTES;
    const bool packs = nbytes > DIRECT_NBYTES && (by_rows ? collides : !few);
    j->packs_chunks = packs && j->groups == 1 && !j->streams_b;
    j->shares_a = packs && !j->packs_chunks;
    j->far_a = !packs && by_rows && g->batch == 1 && nbytes > DIRECT_ROWS_NBYTES && panels > 1 &&
               !j->streams_b;
    j->direct_b = j->streams_b || (g->b.column_stride == 1 && near);
    j->copies_b = g->b.column_stride == 1 && !j->direct_b;
    if (j->packs_chunks)
        j->group_depth = j->block;
    j->chunk_rows = ek_larger(1, CHUNK_NBYTES / size / depth / j->panel_rows) * j->panel_rows;
    j->rows = g->n;
    j->depth = k;
    if (j->shares_a) {
        const int64_t shared = SHARED_NBYTES / size;
        const int64_t most_shared = ek_multiple_up(ek_larger(1, shared / depth), j->panel_rows);
        j->rows = ek_divide_up(g->n, ek_divide_up(g->n, most_shared));
        j->rows = ek_smaller(ek_multiple_up(j->rows, j->panel_rows), g->n);
        const int64_t blocks = shared / ek_multiple_up(j->rows, j->panel_rows) / j->block;
        const int64_t parts = ek_divide_up(k, ek_larger(1, blocks) * j->block);
        j->depth = ek_smaller(k, ek_multiple_up(ek_divide_up(k, parts), j->block));
    }
}

/* Chooses the number of tiles: several for each thread, or equally many for each. */
static void gemm_choose_tiles(ek_gemm_job *j, int threads)
{
    const int64_t panels = ek_divide_up(j->gemm->m, j->panel_columns);
    const int64_t products = j->shares_a ? 1 : j->gemm->batch, count = products * j->groups;
    const int64_t equal = ek_multiple_up(j->groups, threads);
    const bool packs_once = j->groups == 1 && j->group_depth >= j->gemm->k;
    const int64_t many = j->rows / (j->direct_b || packs_once ? FEW_ROWS : MANY_ROWS);
    j->row_tiles = 1;
    /* Otherwise each thread would pack all of b for its rows. */
    const bool by_columns =
        j->groups > 1 || j->streams_b || (!j->direct_b && j->gemm->n <= j->gemm->m);
    if (threads > 1 && products == 1 && by_columns && equal <= panels && count < 8 * threads &&
        !j->packs_chunks)
        j->groups = equal, j->group_columns = ek_divide_up(panels, equal) * j->panel_columns;
    else if (j->packs_chunks && !j->direct_b && count == 1) /* each packs all of b */
        j->row_tiles = ek_larger(1, ek_smaller(threads, j->rows / FEW_ROWS));
    else if (threads > 1 && count < 8 * threads)
        j->row_tiles =
            ek_larger(1, ek_larger(ek_smaller(ek_divide_up(4 * threads, count), many),
                                   ek_smaller(ek_divide_up(threads, count), j->rows / FEW_ROWS)));
    if (j->row_tiles > threads)
        j->row_tiles -= j->row_tiles % threads;
    j->tiles = products * j->row_tiles * j->groups;
    j->threads = ek_smaller(threads, j->tiles);
}

static void gemm_run_part(ek_dev *dev, ek_gemm_job *j)
{
    const bool f32 = j->gemm->dtype == EK_F32;
    if (j->shares_a)
        ek_parallel_for(dev, ek_divide_up(j->rows, j->panel_rows),
                        1 + 16384 / (j->panel_rows * (j->depth + 1)),
                        f32 ? ek_gemm_pack_a_f32 : ek_gemm_pack_a_f64, j);
    /* Starting a team costs some microseconds: about 100000 multiplications. */
    const int64_t tile_rows = ek_divide_up(j->rows, j->row_tiles);
    const int64_t work = tile_rows * ek_smaller(j->group_columns, j->gemm->m) * (j->depth + 1);
    atomic_store(&j->next_tile, 0);
    atomic_store(&j->next_thread, 0);
    ek_parallel_for(dev, j->tiles, 1 + 50000 / work,
                    f32 ? ek_gemm_compute_tiles_f32 : ek_gemm_compute_tiles_f64, j);
}

/* Runs the parts of each product one after another, with a packed for one part at a time. */
static void gemm_run_parts(ek_dev *dev, ek_gemm_job *j)
{
    const int64_t n = j->gemm->n, rows = j->rows, depth = j->depth;
    for (j->batch = 0; j->batch < j->gemm->batch; j->batch++) {
        const int64_t k = j->gemm->k;
        for (j->first = 0; j->first < k || j->first == 0; j->first += depth) {
            j->depth = ek_smaller(depth, k - j->first);
            for (j->row = 0; j->row < n; j->row += rows) {
                j->rows = ek_smaller(rows, n - j->row);
                gemm_run_part(dev, j);
            }
        }
    }
}

int ek_gemm_run_blocked(ek_dev *dev, const ek_gemm *gemm, bool transposed)
{
    ek_gemm_job j = {.gemm = gemm,
                     .kernel = ek_gemm_kernel_best(gemm->dtype),
                     .transposed = transposed};
    const size_t size = ek_dtype_size(gemm->dtype);
    gemm_choose_blocks(&j, ek_parallel_threads(dev));
    gemm_choose_tiles(&j, ek_parallel_threads(dev));
    const int64_t depth = ek_smaller(j.group_depth, gemm->k);
    const int64_t tile_rows =
        ek_divide_up(ek_divide_up(j.rows, j.panel_rows), j.row_tiles) * j.panel_rows;
    if (gemm->c.column_stride != 1) { /* all of a tile's, so that c is written once */
        const bool fits = tile_rows * j.group_columns * (int64_t)size <= COPIES_NBYTES;
        const bool once = j.group_depth >= j.depth;
        j.copied_rows = !once && (fits || j.streams_b) ? tile_rows : j.panel_rows;
    }
    j.started_rows = j.streams_b && gemm->k > depth ? tile_rows : 0;
    size_t shared = 0;
    if (j.shares_a)
        shared = ek_round_up((size_t)(ek_multiple_up(j.rows, j.panel_rows) * j.depth) * size);
    const int64_t chunk = j.packs_chunks ? j.chunk_rows * depth : 0;
    j.packed_columns = j.direct_b ? j.panel_columns : j.group_columns;
    const int64_t sums = (j.copied_rows + j.started_rows) * j.group_columns;
    j.workspace_stride = ek_round_up((size_t)(j.packed_columns * depth + sums + chunk) * size);
    size_t nbytes = shared + (size_t)j.threads * j.workspace_stride;
    void *workspace;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &workspace));
    j.packed_a = workspace;
    j.workspace = (char *)workspace + shared;
    if (j.shares_a)
        gemm_run_parts(dev, &j);
    else
        gemm_run_part(dev, &j);
    ek_dev_free(dev, workspace, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}
