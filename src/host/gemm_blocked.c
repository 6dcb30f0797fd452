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
#ifndef EK_REAL
#include "host/gemm_blocked.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "host/gemm_kernel.h"
#include "host/host.h"
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

/* ---- a product and its tiles ---- */

/* If threads share packed a, a job is one part of a product: rows [row, row + rows) and [first,
 * first + depth) of k. Otherwise a job is all products. */
typedef struct job {
    const ek_gemm *gemm;
    const ek_gemm_kernel *kernel;
    int64_t block;     /* the fixed length of a block of k */
    bool shares_a;     /* threads share packed a */
    bool packs_chunks; /* a thread packs chunks of rows of a for itself */
    bool far_a;        /* rows of a are read in place, and prefetched */
    bool direct_b;     /* b isn't packed, except columns that don't fill a vector */
    bool copies_b;     /* the first rows of a tile read b in place and pack it */
    bool streams_b;    /* b isn't packed, and is read by a few rows at a time */
    int64_t chunk_rows;
    bool transposed; /* rows and columns of c are exchanged */
    int64_t batch, row, rows, first, depth;
    int64_t panel_rows, panel_columns;  /* rows of a panel of a; columns of a panel of b */
    int64_t group_columns, group_depth; /* the most of b that a thread works with at a time */
    int64_t packed_columns;             /* the most columns of them that it packs */
    /* If c's columns aren't contiguous, sums are written to so many rows in the thread's workspace,
     * and from there to c; otherwise 0. */
    int64_t copied_rows;
    int64_t started_rows;      /* rows whose sums over a part of a block the workspace holds */
    int64_t row_tiles, groups; /* tiles of a product's part: row_tiles x groups */
    int64_t tiles, threads;    /* tiles of the part; threads that take tiles */
    void *packed_a;
    char *workspace; /* packed b of each thread */
    size_t workspace_stride;
    atomic_int next_thread;
    atomic_llong next_tile;
} job;

static int64_t gemm_round_up(int64_t value, int64_t step)
{
    return ek_divide_up(value, step) * step;
}

/* A tile of a part. Rows count from the part's first row; k is the part's depth. */
typedef struct gemm_tile {
    int64_t batch, row, row_end, column, columns, k;
} gemm_tile;

static gemm_tile gemm_tile_at(const job *j, int64_t tile)
{
    const ek_gemm *g = j->gemm;
    const int64_t nr = j->panel_columns, pr = j->panel_rows;
    const int64_t row_panels = ek_divide_up(j->rows, pr), panels = ek_divide_up(g->m, nr);
    const int64_t group = tile % j->groups, row_tile = tile / j->groups % j->row_tiles;
    gemm_tile t = {.batch = j->shares_a ? j->batch : tile / j->groups / j->row_tiles};
    t.column = group * panels / j->groups * nr;
    t.columns = ek_smaller((group + 1) * panels / j->groups * nr, g->m) - t.column;
    t.row = row_tile * row_panels / j->row_tiles * pr;
    t.row_end = ek_smaller((row_tile + 1) * row_panels / j->row_tiles * pr, j->rows);
    t.k = j->shares_a ? j->depth : g->k;
    return t;
}

/* The part of b that a thread has packed last. */
typedef struct gemm_packed {
    int64_t batch, column, first;
} gemm_packed;

/* Returns the pace at which all lines are prefetched within `steps` steps along k. */
static int64_t gemm_pace(const ek_gemm_ahead *ahead, int64_t steps)
{
    return steps > 0 ? ek_divide_up(ahead->runs * ahead->lines * EK_GEMM_STRETCH, steps) : 0;
}

/* Hands the rows [row, row + rows) of a tile, counted from the part's first row, to the
 * epilogue. */
static void gemm_finish(const job *j, const gemm_tile *t, void *c, int64_t row, int64_t rows)
{
    const ek_gemm *g = j->gemm;
    ek_gemm_area area = {c,    g->c.row_stride, g->c.column_stride, t->batch, j->row + row,
                         rows, t->column,       t->columns};
    if (j->transposed)
        area = (ek_gemm_area){c,         area.column_stride, area.row_stride, t->batch,
                              t->column, t->columns,         j->row + row,    rows};
    g->finish(g->finish_context, &area);
}

#define EK_FOR_REALS "host/gemm_blocked.c"
#include "kernels/for_reals.h"

/* Writes the bytes of the level 2 cache and the ways of the level 1 cache, if the system tells
 * them. It is asked once, because virtual machines answer slowly. */
static void gemm_caches(int64_t *level_2, int64_t *ways)
{
#if defined(_SC_LEVEL2_CACHE_SIZE) && defined(_SC_LEVEL1_DCACHE_ASSOC)
    static atomic_long known_level_2, known_ways;
    if (atomic_load(&known_ways) == 0) {
        atomic_store(&known_level_2, sysconf(_SC_LEVEL2_CACHE_SIZE));
        atomic_store(&known_ways, ek_larger(sysconf(_SC_LEVEL1_DCACHE_ASSOC), 1));
    }
    *level_2 = atomic_load(&known_level_2);
    *ways = atomic_load(&known_ways);
#else
    *level_2 = 0, *ways = 1;
#endif
}

/* Returns the most bytes of packed b that a thread works with at a time. All columns are one group
 * if they fit into half of level 2 cache and many rows pass by: a is then packed in that cache, by
 * the thread that reads it, rather than in memory for all threads. The groups of all threads are
 * not larger than a, which needs no shared copy then. */
static int64_t gemm_group_nbytes(const job *j, int64_t nbytes, int64_t size, int64_t level_2,
                                 int threads)
{
    const ek_gemm *g = j->gemm;
    const int64_t columns = g->m * j->block * size; /* of all columns, over a block */
    const int64_t half = ek_smaller(level_2 / 2, MOST_GROUP_NBYTES), most = half / 2;
    if (columns <= GROUP_NBYTES || g->c.column_stride != 1 || nbytes <= DIRECT_ROWS_NBYTES)
        return GROUP_NBYTES;
    if (columns <= half && g->n >= g->m && threads * columns <= ek_smaller(nbytes, SHARED_NBYTES))
        return half;
    return threads * most <= nbytes ? ek_larger(most, GROUP_NBYTES) : GROUP_NBYTES;
}

/* Chooses how much of a and b is packed at a time. a isn't packed if it is small, nor if its rows
 * are contiguous, nor if few groups of columns read it and it lies well in memory. b with
 * contiguous rows isn't packed if they are near each other or if few rows of a pass by. Otherwise a
 * tile's first rows pack such a b. */
static void gemm_choose_blocks(job *j, int threads)
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
    const int64_t group_nbytes = gemm_group_nbytes(j, nbytes, size, level_2, threads);
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
        const int64_t most_shared = gemm_round_up(ek_larger(1, shared / depth), j->panel_rows);
        j->rows = ek_divide_up(g->n, ek_divide_up(g->n, most_shared));
        j->rows = ek_smaller(gemm_round_up(j->rows, j->panel_rows), g->n);
        const int64_t blocks = shared / gemm_round_up(j->rows, j->panel_rows) / j->block;
        const int64_t parts = ek_divide_up(k, ek_larger(1, blocks) * j->block);
        j->depth = ek_smaller(k, gemm_round_up(ek_divide_up(k, parts), j->block));
    }
}

/* Chooses the number of tiles: several for each thread, or equally many for each. */
static void gemm_choose_tiles(job *j, int threads)
{
    const int64_t panels = ek_divide_up(j->gemm->m, j->panel_columns);
    const int64_t products = j->shares_a ? 1 : j->gemm->batch, count = products * j->groups;
    const int64_t equal = gemm_round_up(j->groups, threads);
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

static void gemm_run_part(ek_dev *dev, job *j)
{
    const bool f32 = j->gemm->dtype == EK_F32;
    if (j->shares_a)
        ek_parallel_for(dev, ek_divide_up(j->rows, j->panel_rows),
                        1 + 16384 / (j->panel_rows * (j->depth + 1)),
                        f32 ? gemm_pack_a_f32 : gemm_pack_a_f64, j);
    /* Starting a team costs some microseconds: about 100000 multiplications. */
    const int64_t tile_rows = ek_divide_up(j->rows, j->row_tiles);
    const int64_t work = tile_rows * ek_smaller(j->group_columns, j->gemm->m) * (j->depth + 1);
    atomic_store(&j->next_tile, 0);
    atomic_store(&j->next_thread, 0);
    ek_parallel_for(dev, j->tiles, 1 + 50000 / work,
                    f32 ? gemm_compute_tiles_f32 : gemm_compute_tiles_f64, j);
}

/* Runs the parts of each product one after another, with a packed for one part at a time. */
static void gemm_run_parts(ek_dev *dev, job *j)
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
    job j = {.gemm = gemm, .kernel = ek_gemm_kernel_best(gemm->dtype), .transposed = transposed};
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
        shared = ek_round_up((size_t)(gemm_round_up(j.rows, j.panel_rows) * j.depth) * size);
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

#else /* for each EK_REAL */

/* Packs `rows` rows of a, beginning at `a`, block by block, as rows `row` and following of `padded`
 * ones. */
static void EK_NAME(gemm_pack_rows)(const job *j, EK_REAL *to, int64_t padded, int64_t row,
                                    int64_t rows, const EK_REAL *a, int64_t depth)
{
    const int64_t row_stride = j->gemm->a.row_stride, column_stride = j->gemm->a.column_stride;
    for (int64_t d = 0; d < depth; d += j->block) {
        const int64_t length = ek_smaller(j->block, depth - d);
        EK_NAME(ek_gemm_pack)
        (to + d * padded + row * length, a + d * column_stride, rows, length, (int)j->panel_rows,
         row_stride, column_stride);
    }
}

/* Packs panels [begin, end) of a's rows. */
static void EK_NAME(gemm_pack_a)(void *context, int64_t begin, int64_t end)
{
    const job *j = context;
    const ek_gemm *g = j->gemm;
    const EK_REAL *a = (const EK_REAL *)g->a.data + j->batch * g->a.batch_stride;
    const int64_t padded = gemm_round_up(j->rows, j->panel_rows);
    const int64_t row = begin * j->panel_rows;
    const int64_t rows = ek_smaller(end * j->panel_rows, j->rows) - row;
    a += (j->row + row) * g->a.row_stride + j->first * g->a.column_stride;
    EK_NAME(gemm_pack_rows)(j, j->packed_a, padded, row, rows, a, j->depth);
}

/* Packs columns of b, block by block, behind `before` of `padded` ones. */
static void EK_NAME(gemm_pack_b)(const job *j, EK_REAL *to, int64_t padded, int64_t before,
                                 int64_t batch, int64_t column, int64_t columns, int64_t first,
                                 int64_t depth)
{
    const ek_gemm *g = j->gemm;
    const int nr = (int)j->panel_columns;
    const EK_REAL *b = (const EK_REAL *)g->b.data + batch * g->b.batch_stride;
    for (int64_t d = 0; d < depth; d += j->block) {
        const int64_t length = ek_smaller(j->block, depth - d);
        EK_NAME(ek_gemm_pack)
        (to + d * padded + before * length,
         b + (first + d) * g->b.row_stride + column * g->b.column_stride, columns, length, nr,
         g->b.column_stride, g->b.row_stride);
    }
}

/* Copies rows x columns elements between matrices of any strides. */
static void EK_NAME(gemm_copy)(EK_REAL *to, int64_t to_row, int64_t to_column, const EK_REAL *from,
                               int64_t from_row, int64_t from_column, int64_t rows, int64_t columns)
{
    enum { TRANSPOSED = 32 / sizeof(EK_REAL) };
    int64_t done = 0;
    for (int64_t i = 0; i < rows && rows >= TRANSPOSED && to_row == 1 && from_column == 1;
         i += TRANSPOSED) {
        const int64_t row = ek_smaller(i, rows - TRANSPOSED); /* the last ones may overlap */
        done = EK_NAME(ek_gemm_transpose)(to + row, to_column, from + row * from_row, TRANSPOSED,
                                          from_row, columns);
    }
    for (int64_t j = done; j < columns; j++)
        for (int64_t i = 0; i < rows; i++)
            to[i * to_row + j * to_column] = from[i * from_row + j * from_column];
}

static ek_gemm_ahead EK_NAME(gemm_ahead_of)(const EK_REAL *from, int64_t lines, int64_t depth,
                                            int64_t line_stride, int64_t depth_stride)
{
    const int64_t size = sizeof(EK_REAL);
    ek_gemm_ahead ahead = {.run = (const char *)from};
    if (line_stride == 1) {
        ahead.lines = ek_divide_up(lines * size, 64);
        ahead.runs = depth;
        ahead.stride = depth_stride * size;
    } else if (depth_stride == 1) {
        ahead.lines = ek_divide_up(depth * size, 64);
        ahead.runs = lines;
        ahead.stride = line_stride * size;
    }
    return ahead;
}

/* Multiplies a panel of rows by all columns of a group, over one block of k or a part of it. With
 * `padded`, rows of the results are whole panels long. `direct` is the group's part of b in place,
 * without its last columns; NULL if b is packed. */
static void EK_NAME(gemm_multiply_panel)(const job *j, ek_gemm_call *call, EK_REAL *c, bool padded,
                                         int64_t rows, int64_t columns, const EK_REAL *direct)
{
    const ek_gemm *g = j->gemm;
    const int nr = (int)j->panel_columns, vector = j->kernel->columns / 2;
    const bool add = call->add, copies = direct && j->copies_b, skips = direct && !copies;
    const EK_REAL *bias = call->addend, *start = call->start;
    const int64_t step = direct ? nr : nr * call->k, packed_step = skips ? 0 : nr * call->k;
    EK_REAL acc[EK_GEMM_ROWS * EK_GEMM_COLUMNS], *packed = call->packed;
    ek_gemm_inner *inner = j->kernel->inner[nr / vector - 1][rows - 1];
    const int64_t c_row = call->c_row;
    int64_t column = 0;
    call->b = direct ? direct : packed;
    call->b_depth = direct ? g->b.row_stride : nr;
    for (; column + nr <= columns; column += nr) { /* whole panels */
        call->c = c + column;
        call->packed = copies ? packed : NULL;
        inner(call);
        call->b = (const EK_REAL *)call->b + step;
        packed += packed_step;
        if (bias)
            call->addend = bias + column + nr;
        if (start)
            call->start = start + column + nr;
    }
    if (column == columns)
        return;
    const int64_t width = columns - column;
    const int vectors = width > vector ? 2 : 1;
    const bool whole = padded || width == vectors * vector;
    call->packed = NULL;
    if (!skips || width != vectors * vector) {
        call->b = packed;
        call->b_depth = nr;
    }
    call->c = whole ? c + column : acc;
    call->c_row = whole ? c_row : nr;
    call->add = whole && add;
    call->addend = whole ? call->addend : NULL;
    j->kernel->inner[vectors - 1][rows - 1](call);
    for (int64_t i = 0; i < rows && !whole; i++)
        for (int64_t at = 0; at < width; at++) {
            EK_REAL *to = c + i * c_row + column + at;
            *to = (add ? *to : bias ? bias[column + at] : 0) + acc[i * nr + at];
        }
}

/* Returns the columns of b from `first` on that the next tile will pack, for prefetching; nothing
 * if there is no next tile, or if the processor prefetches b. */
static ek_gemm_ahead EK_NAME(gemm_next_b)(const job *j, int64_t tile, int64_t first)
{
    const ek_matrices *b = &j->gemm->b;
    if (tile >= j->tiles || j->streams_b)
        return (ek_gemm_ahead){.runs = 0};
    const gemm_tile t = gemm_tile_at(j, tile);
    const int64_t depth = ek_smaller(j->group_depth, t.k - first);
    return EK_NAME(gemm_ahead_of)((const EK_REAL *)b->data + t.batch * b->batch_stride +
                                      (j->first + first) * b->row_stride +
                                      t.column * b->column_stride,
                                  t.columns, depth, b->column_stride, b->row_stride);
}

/* Returns the rows of an unpacked a that the next tile will read, for prefetching; nothing if there
 * is only one product, or no next tile. */
static ek_gemm_ahead EK_NAME(gemm_next_a)(const job *j, int64_t tile)
{
    const ek_matrices *a = &j->gemm->a;
    if (j->shares_a || j->gemm->batch == 1 || tile >= j->tiles)
        return (ek_gemm_ahead){.runs = 0};
    const gemm_tile t = gemm_tile_at(j, tile);
    return EK_NAME(gemm_ahead_of)((const EK_REAL *)a->data + t.batch * a->batch_stride +
                                      t.row * a->row_stride,
                                  t.row_end - t.row, t.k, a->row_stride, a->column_stride);
}

/* Packs what the tile needs of b from `first` on, unless it is packed already. Returns b if the
 * rest is read in place, else NULL. What the first rows will pack counts as packed. */
static const EK_REAL *EK_NAME(gemm_begin_group)(const job *j, const gemm_tile *t, int64_t first,
                                                int64_t depth, EK_REAL *packed_b,
                                                gemm_packed *packed)
{
    const ek_matrices *b = &j->gemm->b;
    const gemm_packed wanted = {b->batch_stride == 0 ? 0 : t->batch, t->column, first};
    const bool there = memcmp(packed, &wanted, sizeof wanted) == 0;
    const int64_t nr = j->panel_columns, vector = j->kernel->columns / 2;
    const int64_t tail = j->direct_b && t->columns % nr == vector ? 0 : t->columns % nr;
    const int64_t in_place = j->direct_b || j->copies_b ? t->columns - tail : 0;
    if (in_place < t->columns && !there)
        EK_NAME(gemm_pack_b)
    (j, packed_b, j->direct_b ? nr : gemm_round_up(t->columns, nr), j->copies_b ? in_place : 0,
     t->batch, t->column + in_place, t->columns - in_place, j->first + first, depth);
    *packed = wanted;
    return j->direct_b || (j->copies_b && !there)
               ? (const EK_REAL *)b->data + t->batch * b->batch_stride +
                     (j->first + first) * b->row_stride + t->column
               : NULL;
}

static void EK_NAME(gemm_compute_tile)(const job *j, int64_t tile, EK_REAL *packed_b,
                                       gemm_packed *packed)
{
    const ek_gemm *g = j->gemm;
    const int nr = (int)j->panel_columns;
    const gemm_tile t = gemm_tile_at(j, tile);
    if (t.row == t.row_end) /* the last part of a product has few rows */
        return;
    const int64_t padded_rows = gemm_round_up(j->rows, j->panel_rows);
    const int64_t padded_columns = gemm_round_up(t.columns, nr);
    const int64_t row_panels = ek_divide_up(t.row_end - t.row, j->panel_rows);
    const EK_REAL *a = j->packed_a;
    if (!j->shares_a)
        a = (const EK_REAL *)g->a.data + t.batch * g->a.batch_stride;
    EK_REAL *c = (EK_REAL *)g->c.data + t.batch * g->c.batch_stride + j->row * g->c.row_stride +
                 t.column * g->c.column_stride;
    const int64_t kernels = row_panels * padded_columns / nr;
    ek_gemm_ahead next_a = EK_NAME(gemm_next_a)(j, tile + j->threads);
    next_a.pace = gemm_pace(&next_a, kernels * t.k);
    EK_REAL *copies = packed_b + j->packed_columns * ek_smaller(j->group_depth, g->k);
    EK_REAL *started = copies + j->copied_rows * j->group_columns;
    EK_REAL *chunk = started + j->started_rows * j->group_columns;
    const bool padded = j->copied_rows > 0, keeps = j->copied_rows >= t.row_end - t.row;
    /* If k is 0, one empty iteration writes the zeros. */
    for (int64_t first = 0; first < t.k || first == 0; first += j->group_depth) {
        const int64_t depth = ek_smaller(j->group_depth, t.k - first);
        const EK_REAL *b = EK_NAME(gemm_begin_group)(j, &t, first, depth, packed_b, packed);
        ek_gemm_ahead next_b = first + depth < t.k ? EK_NAME(gemm_next_b)(j, tile, first + depth)
                                                   : EK_NAME(gemm_next_b)(j, tile + j->threads, 0);
        next_b.pace = gemm_pace(&next_b, kernels * depth);
        for (int64_t row = t.row, in_chunk = 0; row < t.row_end; row += j->panel_rows) {
            const int64_t rows = ek_smaller(j->panel_rows, t.row_end - row);
            if (j->packs_chunks && in_chunk == 0) {
                const EK_REAL *from = a + row * g->a.row_stride + first * g->a.column_stride;
                const int64_t count = ek_smaller(j->chunk_rows, t.row_end - row);
                EK_NAME(gemm_pack_rows)(j, chunk, j->chunk_rows, 0, count, from, depth);
                next_a = EK_NAME(gemm_ahead_of)(from + count * g->a.row_stride,
                                                ek_smaller(count, t.row_end - row - count), depth,
                                                g->a.row_stride, g->a.column_stride);
                next_a.pace =
                    gemm_pace(&next_a, count / j->panel_rows * (padded_columns / nr) * depth);
            }
            EK_REAL *at_c = c + row * g->c.row_stride, *out = at_c;
            if (padded) {
                out = copies + (keeps ? (row - t.row) * padded_columns : 0);
                if ((first == 0 || !keeps) && (g->accumulate || j->first + first > 0))
                    EK_NAME(gemm_copy)
                (out, 1, padded_columns, at_c, g->c.column_stride, g->c.row_stride, t.columns,
                 rows);
            }
            for (int64_t d = 0; d < depth || d == 0; d += j->block) {
                const int64_t k = ek_smaller(j->block, depth - d), at = first + d;
                const int64_t begin = at - at % j->block, end = at + k;
                const bool ends = end == t.k || end % j->block == 0;
                EK_REAL *sums = started + (row - t.row) * padded_columns;
                ek_gemm_call call = {.k = k,
                                     .a_row = 1,
                                     .a_depth = j->panel_rows,
                                     .packed = packed_b + d * (j->direct_b ? nr : padded_columns),
                                     .start = at > begin ? sums : NULL,
                                     .start_row = padded_columns,
                                     .c_row = padded || !ends ? padded_columns : g->c.row_stride,
                                     .next_a = &next_a,
                                     .next_b = &next_b,
                                     .add = ends && (g->accumulate || j->first + begin > 0)};
                if (j->shares_a) {
                    const int64_t length = ek_smaller(j->block, t.k - begin);
                    call.a = a + begin * padded_rows + row * length + (at - begin) * j->panel_rows;
                } else if (j->packs_chunks) {
                    call.a = chunk + d * j->chunk_rows + in_chunk * k;
                } else {
                    call.a = a + row * g->a.row_stride + at * g->a.column_stride;
                    call.a_row = g->a.row_stride;
                    call.a_depth = g->a.column_stride;
                }
                if (g->bias && ends && j->first + begin == 0)
                    call.addend = (const EK_REAL *)g->bias + t.column;
                if (j->far_a) { /* the rows' next block, or the first one of the next rows */
                    const int64_t next = d + k < depth ? k : rows * call.a_row - d;
                    next_a = EK_NAME(gemm_ahead_of)((const EK_REAL *)call.a + next, rows, k,
                                                    call.a_row, 1);
                    next_a.pace = gemm_pace(&next_a, padded_columns / nr * k);
                }
                EK_NAME(gemm_multiply_panel)
                (j, &call, ends ? out : sums, padded || !ends, rows, t.columns,
                 b && (j->direct_b || row == t.row) ? b + d * g->b.row_stride : NULL);
            }
            if (padded && (!keeps || first + depth >= t.k))
                EK_NAME(gemm_copy)
            (at_c, g->c.row_stride, g->c.column_stride, out, padded_columns, 1, rows, t.columns);
            in_chunk = (in_chunk + j->panel_rows) % j->chunk_rows;
            if (g->finish && j->first + first + depth == g->k)
                gemm_finish(j, &t, c + row * g->c.row_stride, row, rows);
        }
    }
}

/* Computes one tile after another until none is left. [begin, end) is ignored. */
static void EK_NAME(gemm_compute_tiles)(void *context, int64_t begin, int64_t end)
{
    job *j = context;
    (void)begin, (void)end;
    int thread = atomic_fetch_add(&j->next_thread, 1);
    EK_REAL *packed_b = (EK_REAL *)(j->workspace + (size_t)thread * j->workspace_stride);
    gemm_packed packed = {.batch = -1};
    int64_t tile;
    while ((tile = atomic_fetch_add(&j->next_tile, 1)) < j->tiles)
        EK_NAME(gemm_compute_tile)(j, tile, packed_b, &packed);
}

#endif
