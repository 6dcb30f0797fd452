/* gemm_tile.c: see gemm_tile.h. */
#ifndef EK_REAL
#include "host/gemm_tile.h"

#include <string.h>

#include "host/gemm_blocked.h"

/* A tile of a part. Rows count from the part's first row; k is the part's depth. */
typedef struct gemm_tile {
    int64_t batch, row, row_end, column, columns, k;
} gemm_tile;

static gemm_tile gemm_tile_at(const ek_gemm_job *j, int64_t tile)
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

/* Hands the rows [row, row + rows) of a tile, counted from the part's first row, to the
 * epilogue. */
static void gemm_finish(const ek_gemm_job *j, const gemm_tile *t, void *c, int64_t row,
                        int64_t rows)
{
    const ek_gemm *g = j->gemm;
    ek_gemm_area area = {c,    g->c.row_stride, g->c.column_stride, t->batch, j->row + row,
                         rows, t->column,       t->columns};
    if (j->transposed)
        area = (ek_gemm_area){c,         area.column_stride, area.row_stride, t->batch,
                              t->column, t->columns,         j->row + row,    rows};
    g->finish(g->finish_context, &area);
}

#define EK_FOR_REALS "host/gemm_tile.c"
#include "kernels/for_reals.h"

#else /* for each EK_REAL */

/* Packs `rows` rows of a, beginning at `a`, block by block, as rows `row` and following of `padded`
 * ones. */
static void EK_NAME(gemm_pack_rows)(const ek_gemm_job *j, EK_REAL *to, int64_t padded, int64_t row,
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
void EK_NAME(ek_gemm_pack_a)(void *context, int64_t begin, int64_t end)
{
    const ek_gemm_job *j = context;
    const ek_gemm *g = j->gemm;
    const EK_REAL *a = (const EK_REAL *)g->a.data + j->batch * g->a.batch_stride;
    const int64_t padded = ek_multiple_up(j->rows, j->panel_rows);
    const int64_t row = begin * j->panel_rows;
    const int64_t rows = ek_smaller(end * j->panel_rows, j->rows) - row;
    a += (j->row + row) * g->a.row_stride + j->first * g->a.column_stride;
    EK_NAME(gemm_pack_rows)(j, j->packed_a, padded, row, rows, a, j->depth);
}

/* Packs columns of b, block by block, behind `before` of `padded` ones. */
static void EK_NAME(gemm_pack_b)(const ek_gemm_job *j, EK_REAL *to, int64_t padded, int64_t before,
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

/* Returns what to prefetch within `steps` steps along k. */
static ek_gemm_ahead EK_NAME(gemm_ahead_of)(const EK_REAL *from, int64_t lines, int64_t depth,
                                            int64_t line_stride, int64_t depth_stride,
                                            int64_t steps)
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
    if (steps > 0)
        ahead.pace = ek_divide_up(ahead.runs * ahead.lines * EK_GEMM_STRETCH, steps);
    return ahead;
}

/* Multiplies a panel of rows by all columns of a group, over one block of k or a part of it. With
 * `padded`, rows of the results are whole panels long. `direct` is the group's part of b in place,
 * without its last columns; NULL if b is packed. */
static void EK_NAME(gemm_multiply_panel)(const ek_gemm_job *j, ek_gemm_call *call, EK_REAL *c,
                                         bool padded, int64_t rows, int64_t columns,
                                         const EK_REAL *direct)
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
static ek_gemm_ahead EK_NAME(gemm_next_b)(const ek_gemm_job *j, int64_t tile, int64_t first,
                                          int64_t steps)
{
    const ek_matrices *b = &j->gemm->b;
    if (tile >= j->tiles || j->streams_b)
        return (ek_gemm_ahead){.runs = 0};
    const gemm_tile t = gemm_tile_at(j, tile);
    const int64_t depth = ek_smaller(j->group_depth, t.k - first);
    return EK_NAME(gemm_ahead_of)((const EK_REAL *)b->data + t.batch * b->batch_stride +
                                      (j->first + first) * b->row_stride +
                                      t.column * b->column_stride,
                                  t.columns, depth, b->column_stride, b->row_stride, steps);
}

/* Returns the rows of an unpacked a that the next tile will read, for prefetching; nothing if there
 * is only one product, or no next tile. */
static ek_gemm_ahead EK_NAME(gemm_next_a)(const ek_gemm_job *j, int64_t tile, int64_t steps)
{
    const ek_matrices *a = &j->gemm->a;
    if (j->shares_a || j->gemm->batch == 1 || tile >= j->tiles)
        return (ek_gemm_ahead){.runs = 0};
    const gemm_tile t = gemm_tile_at(j, tile);
    return EK_NAME(gemm_ahead_of)((const EK_REAL *)a->data + t.batch * a->batch_stride +
                                      t.row * a->row_stride,
                                  t.row_end - t.row, t.k, a->row_stride, a->column_stride, steps);
}

/* Packs what the tile needs of b from `first` on, unless it is packed already. Returns b if the
 * rest is read in place, else NULL. What the first rows will pack counts as packed. */
static const EK_REAL *EK_NAME(gemm_begin_group)(const ek_gemm_job *j, const gemm_tile *t,
                                                int64_t first, int64_t depth, EK_REAL *packed_b,
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
    (j, packed_b, j->direct_b ? nr : ek_multiple_up(t->columns, nr), j->copies_b ? in_place : 0,
     t->batch, t->column + in_place, t->columns - in_place, j->first + first, depth);
    *packed = wanted;
    return j->direct_b || (j->copies_b && !there)
               ? (const EK_REAL *)b->data + t->batch * b->batch_stride +
                     (j->first + first) * b->row_stride + t->column
               : NULL;
}

/* A thread's operands and results of a tile. */
typedef struct EK_NAME(gemm_work) {
    const EK_REAL *a; /* Packed, or the product's. */
    EK_REAL *packed_b, *copies, *started, *chunk;
    int64_t padded_rows, padded_columns;
    bool padded; /* Sums are written to `copies`. */
    ek_gemm_ahead next_a, next_b;
} EK_NAME(gemm_work);

/* Packs the chunk of rows that begins at `row`. */
static void EK_NAME(gemm_begin_chunk)(const ek_gemm_job *j, const gemm_tile *t,
                                      EK_NAME(gemm_work) * w, int64_t row, int64_t first,
                                      int64_t depth)
{
    const ek_matrices *a = &j->gemm->a;
    const EK_REAL *from = w->a + row * a->row_stride + first * a->column_stride;
    const int64_t count = ek_smaller(j->chunk_rows, t->row_end - row);
    EK_NAME(gemm_pack_rows)(j, w->chunk, j->chunk_rows, 0, count, from, depth);
    w->next_a = EK_NAME(
        gemm_ahead_of)(from + count * a->row_stride, ek_smaller(count, t->row_end - row - count),
                       depth, a->row_stride, a->column_stride,
                       count / j->panel_rows * (w->padded_columns / j->panel_columns) * depth);
}

/* Multiplies a panel of rows, the chunk's from `in_chunk` on, by columns of b, which lie in place
 * at `b` or are packed, over [first, first + depth) of k. */
static void EK_NAME(gemm_multiply_rows)(const ek_gemm_job *j, const gemm_tile *t,
                                        EK_NAME(gemm_work) * w, int64_t row, int64_t in_chunk,
                                        int64_t first, int64_t depth, EK_REAL *out,
                                        const EK_REAL *b)
{
    const ek_gemm *g = j->gemm;
    const int64_t nr = j->panel_columns, rows = ek_smaller(j->panel_rows, t->row_end - row);
    EK_REAL *sums = w->started + (row - t->row) * w->padded_columns;
    for (int64_t d = 0; d < depth || d == 0; d += j->block) {
        const int64_t k = ek_smaller(j->block, depth - d), at = first + d;
        const int64_t begin = at - at % j->block, end = at + k;
        const bool ends = end == t->k || end % j->block == 0, padded = w->padded || !ends;
        ek_gemm_call call = {.k = k,
                             .a_row = 1,
                             .a_depth = j->panel_rows,
                             .packed = w->packed_b + d * (j->direct_b ? nr : w->padded_columns),
                             .start = at > begin ? sums : NULL,
                             .start_row = w->padded_columns,
                             .c_row = padded ? w->padded_columns : g->c.row_stride,
                             .next_a = &w->next_a,
                             .next_b = &w->next_b,
                             .add = ends && (g->accumulate || j->first + begin > 0)};
        if (j->shares_a) {
            const int64_t length = ek_smaller(j->block, t->k - begin);
            call.a = w->a + begin * w->padded_rows + row * length + (at - begin) * j->panel_rows;
        } else if (j->packs_chunks) {
            call.a = w->chunk + d * j->chunk_rows + in_chunk * k;
        } else {
            call.a = w->a + row * g->a.row_stride + at * g->a.column_stride;
            call.a_row = g->a.row_stride;
            call.a_depth = g->a.column_stride;
        }
        if (g->bias && ends && j->first + begin == 0)
            call.addend = (const EK_REAL *)g->bias + t->column;
        if (j->far_a) { /* the rows' next block, or the first one of the next rows */
            const int64_t next = d + k < depth ? k : rows * call.a_row - d;
            w->next_a = EK_NAME(gemm_ahead_of)((const EK_REAL *)call.a + next, rows, k, call.a_row,
                                               1, w->padded_columns / nr * k);
        }
        EK_NAME(gemm_multiply_panel)
        (j, &call, ends ? out : sums, padded, rows, t->columns, b ? b + d * g->b.row_stride : NULL);
    }
}

static void EK_NAME(gemm_compute_tile)(const ek_gemm_job *j, int64_t tile, EK_REAL *packed_b,
                                       gemm_packed *packed)
{
    const ek_gemm *g = j->gemm;
    const gemm_tile t = gemm_tile_at(j, tile);
    if (t.row == t.row_end) /* the last part of a product has few rows */
        return;
    EK_NAME(gemm_work) w = {.a = j->packed_a, .packed_b = packed_b, .padded = j->copied_rows > 0};
    w.padded_rows = ek_multiple_up(j->rows, j->panel_rows);
    w.padded_columns = ek_multiple_up(t.columns, j->panel_columns);
    w.copies = packed_b + j->packed_columns * ek_smaller(j->group_depth, g->k);
    w.started = w.copies + j->copied_rows * j->group_columns;
    w.chunk = w.started + j->started_rows * j->group_columns;
    if (!j->shares_a)
        w.a = (const EK_REAL *)g->a.data + t.batch * g->a.batch_stride;
    EK_REAL *c = (EK_REAL *)g->c.data + t.batch * g->c.batch_stride + j->row * g->c.row_stride +
                 t.column * g->c.column_stride;
    const int64_t kernels =
        ek_divide_up(t.row_end - t.row, j->panel_rows) * w.padded_columns / j->panel_columns;
    w.next_a = EK_NAME(gemm_next_a)(j, tile + j->threads, kernels * t.k);
    const bool keeps = j->copied_rows >= t.row_end - t.row;
    /* If k is 0, one empty iteration writes the zeros. */
    for (int64_t first = 0; first < t.k || first == 0; first += j->group_depth) {
        const int64_t depth = ek_smaller(j->group_depth, t.k - first);
        const EK_REAL *b = EK_NAME(gemm_begin_group)(j, &t, first, depth, packed_b, packed);
        const bool more = first + depth < t.k;
        w.next_b = EK_NAME(gemm_next_b)(j, more ? tile : tile + j->threads,
                                        more ? first + depth : 0, kernels * depth);
        for (int64_t row = t.row, in_chunk = 0; row < t.row_end; row += j->panel_rows) {
            const int64_t rows = ek_smaller(j->panel_rows, t.row_end - row);
            if (j->packs_chunks && in_chunk == 0)
                EK_NAME(gemm_begin_chunk)(j, &t, &w, row, first, depth);
            EK_REAL *at_c = c + row * g->c.row_stride, *out = at_c;
            if (w.padded) {
                out = w.copies + (keeps ? (row - t.row) * w.padded_columns : 0);
                if ((first == 0 || !keeps) && (g->accumulate || j->first + first > 0))
                    EK_NAME(gemm_copy)
                (out, 1, w.padded_columns, at_c, g->c.column_stride, g->c.row_stride, t.columns,
                 rows);
            }
            EK_NAME(gemm_multiply_rows)
            (j, &t, &w, row, in_chunk, first, depth, out, j->direct_b || row == t.row ? b : NULL);
            if (w.padded && (!keeps || first + depth >= t.k))
                EK_NAME(gemm_copy)
            (at_c, g->c.row_stride, g->c.column_stride, out, w.padded_columns, 1, rows, t.columns);
            in_chunk = (in_chunk + j->panel_rows) % j->chunk_rows;
            if (g->finish && j->first + first + depth == g->k)
                gemm_finish(j, &t, at_c, row, rows);
        }
    }
}

/* Computes one tile after another until none is left. [begin, end) is ignored. */
void EK_NAME(ek_gemm_compute_tiles)(void *context, int64_t begin, int64_t end)
{
    ek_gemm_job *j = context;
    (void)begin, (void)end;
    int thread = atomic_fetch_add(&j->next_thread, 1);
    EK_REAL *packed_b = (EK_REAL *)(j->workspace + (size_t)thread * j->workspace_stride);
    gemm_packed packed = {.batch = -1};
    int64_t tile;
    while ((tile = atomic_fetch_add(&j->next_tile, 1)) < j->tiles)
        EK_NAME(gemm_compute_tile)(j, tile, packed_b, &packed);
}

#endif
