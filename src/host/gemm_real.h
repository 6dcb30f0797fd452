/* gemm_real.h: packing and tiles of gemm.c for one dtype: REAL and NAME(x) are defined by the
 * includer. */

/* Packs `lines` x `depth` into panels of `width` lines: element (line, d) of a panel at d * width +
 * line. Lines beyond the end are zero. Inlined for each width, so that the inner loops unroll. */
static inline __attribute__((always_inline)) void
NAME(pack_width)(REAL *restrict to, const REAL *from, int64_t lines, int64_t depth, int width,
                 int64_t line_stride, int64_t depth_stride)
{
    for (int64_t first = 0; first < lines; first += width, to += width * depth) {
        const REAL *panel = from + first * line_stride;
        if (lines - first < width) {
            for (int64_t l = 0; l < width; l++)
                for (int64_t d = 0; d < depth; d++)
                    to[d * width + l] =
                        l < lines - first ? panel[l * line_stride + d * depth_stride] : 0;
        } else if (line_stride == 1) {
            for (int64_t d = 0; d < depth; d++)
                memcpy(to + d * width, panel + d * depth_stride, (size_t)width * sizeof(REAL));
        } else {
            for (int64_t d = 0; d < depth; d++)
                for (int l = 0; l < width; l++)
                    to[d * width + l] = panel[l * line_stride + d * depth_stride];
        }
    }
}

static void NAME(pack)(REAL *to, const REAL *from, int64_t lines, int64_t depth, int width,
                       int64_t line_stride, int64_t depth_stride)
{
    switch (width) {
    case 4:
        NAME(pack_width)(to, from, lines, depth, 4, line_stride, depth_stride);
        break;
    case 6:
        NAME(pack_width)(to, from, lines, depth, 6, line_stride, depth_stride);
        break;
    case 8:
        NAME(pack_width)(to, from, lines, depth, 8, line_stride, depth_stride);
        break;
    case 12:
        NAME(pack_width)(to, from, lines, depth, 12, line_stride, depth_stride);
        break;
    case 16:
        NAME(pack_width)(to, from, lines, depth, 16, line_stride, depth_stride);
        break;
    default:
        NAME(pack_width)(to, from, lines, depth, width, line_stride, depth_stride);
    }
}

static void NAME(store)(REAL *c, int64_t row_stride, int64_t column_stride, const REAL *acc,
                        int64_t acc_stride, int64_t rows, int64_t columns, bool add)
{
    for (int64_t i = 0; i < rows; i++) {
        REAL *restrict row = c + i * row_stride;
        const REAL *restrict sum = acc + i * acc_stride;
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

static void NAME(compute_tile)(const tiles *t, int64_t tile, REAL *packed_a, REAL *packed_b)
{
    const ek_gemm *g = t->gemm;
    int64_t column0 = tile % t->column_tiles * t->tile_columns;
    int64_t row0 = tile / t->column_tiles % t->row_tiles * t->tile_rows;
    int64_t batch = tile / t->column_tiles / t->row_tiles;
    int64_t row_end = min_of(row0 + t->tile_rows, g->n);
    int64_t columns = min_of(t->tile_columns, g->m - column0);
    const REAL *a = (const REAL *)g->a.data + batch * g->a.batch_stride;
    const REAL *b =
        (const REAL *)g->b.data + batch * g->b.batch_stride + column0 * g->b.column_stride;
    REAL *c = (REAL *)g->c.data + batch * g->c.batch_stride + column0 * g->c.column_stride;
    int64_t k = g->batch_k ? g->batch_k[batch] : g->k;
    int mr = t->kernel->rows, nr = t->kernel->columns;
    REAL acc[EK_GEMM_MAX_ROWS * EK_GEMM_MAX_COLUMNS];

    /* With k = 0 one empty round writes the zeros. */
    for (int64_t k0 = 0; k0 < k || k0 == 0; k0 += BLOCK_DEPTH) {
        int64_t depth = min_of(BLOCK_DEPTH, k - k0);
        bool add = g->accumulate || k0 > 0;
        if (g->pack_b)
            g->pack_b(g->pack_context, batch, (float *)packed_b, column0, columns, k0, depth, nr);
        else
            NAME(pack)
        (packed_b, b + k0 * g->b.row_stride, columns, depth, nr, g->b.column_stride,
         g->b.row_stride);
        for (int64_t row = row0; row < row_end; row += BLOCK_ROWS) {
            int64_t rows = min_of(BLOCK_ROWS, row_end - row);
            if (g->pack_a)
                g->pack_a(g->pack_context, batch, (float *)packed_a, row, rows, k0, depth, mr);
            else
                NAME(pack)
            (packed_a, a + row * g->a.row_stride + k0 * g->a.column_stride, rows, depth, mr,
             g->a.row_stride, g->a.column_stride);
            for (int64_t j = 0; j < columns; j += nr) {
                for (int64_t i = 0; i < rows; i += mr) {
                    t->kernel->run(depth, packed_a + i * depth, packed_b + j * depth, acc);
                    NAME(store)
                    (c + (row + i) * g->c.row_stride + j * g->c.column_stride, g->c.row_stride,
                     g->c.column_stride, acc, nr, min_of(mr, rows - i), min_of(nr, columns - j),
                     add);
                }
            }
        }
    }
}

static void NAME(compute_tiles)(void *context, int64_t begin, int64_t end)
{
    tiles *t = context;
    int part = atomic_fetch_add(&t->next_part, 1);
    REAL *packed_a = (REAL *)t->workspace + (size_t)part * t->workspace_stride;
    REAL *packed_b = packed_a + t->packed_a;
    for (int64_t tile = begin; tile < end; tile++)
        NAME(compute_tile)(t, tile, packed_a, packed_b);
}

#undef REAL
#undef NAME
