/* attention_block.c: blocks of attention's operands, and products of blocks. */
#ifndef EK_REAL
#include "host/attention.h"

/* Bytes of a result that are fetched, and cache lines that are fetched at a time. */
enum { AHEAD_NBYTES = 64 << 10, AHEAD_PACE = 8 };

void ek_attention_look_ahead(ek_attention_ahead *ahead, const ek_attention_operand *x,
                             const char *from, int64_t rows, int64_t columns)
{
    const int64_t nbytes = columns * x->size;
    if (x->column == 1 && nbytes > 0)
        ahead->rows[ahead->count++] =
            (ek_gemm_ahead){.run = from,
                            .lines = ek_divide_up(nbytes, 64),
                            .runs = ek_smaller(rows, AHEAD_NBYTES / nbytes),
                            .stride = x->row * x->size,
                            .pace = AHEAD_PACE};
}

/* Returns the first rows that aren't fetched yet, or `none`. */
static ek_gemm_ahead *attention_rows_ahead(ek_attention_ahead *ahead, ek_gemm_ahead *none)
{
    while (ahead && ahead->at < ahead->count && ahead->rows[ahead->at].runs <= 0)
        ahead->at++;
    return ahead && ahead->at < ahead->count ? &ahead->rows[ahead->at] : none;
}

#define EK_FOR_REALS "host/attention_block.c"
#include "kernels/for_reals.h"

#else /* for each EK_REAL */

/* Narrow heads inline it, because a loop over so few elements takes less than its setup. */
EK_FORMULA void EK_NAME(attention_copy_rows)(EK_REAL *to, int64_t stride, int64_t filled,
                                             const EK_REAL *from, int64_t from_stride, int64_t rows,
                                             int64_t columns, EK_REAL scale)
{
    for (int64_t r = 0; r < rows; r++, to += stride, from += from_stride) {
        EK_IVDEP
        for (int64_t c = 0; c < columns; c++)
            to[c] = from[c] * scale;
        for (int64_t c = columns; c < filled; c++)
            to[c] = 0;
    }
}

/* Copies rows of the computation's type, times `scale`. The elements of `to` between `columns` and
 * `filled` become 0. `to` may be `from`. */
EK_MULTIVERSION
static void EK_NAME(attention_copy)(EK_REAL *to, int64_t stride, int64_t filled,
                                    const EK_REAL *from, int64_t from_stride, int64_t rows,
                                    int64_t columns, EK_REAL scale)
{
    if (columns == 32 && filled == 32)
        EK_NAME(attention_copy_rows)(to, stride, 32, from, from_stride, rows, 32, scale);
    else
        EK_NAME(attention_copy_rows)(to, stride, filled, from, from_stride, rows, columns, scale);
}

/* Returns true if the operand's rows can be read and written as they are. */
static bool EK_NAME(attention_is_direct)(const ek_attention_job *job, const ek_attention_operand *x)
{
    return ek_class_is_dtype(job->type, x->dtype) && x->column == 1;
}

void EK_NAME(ek_attention_load)(const ek_attention_job *job, EK_REAL *to, int64_t stride,
                                const ek_attention_operand *x, const char *from, int64_t rows,
                                int64_t columns, EK_REAL scale)
{
    if (EK_NAME(attention_is_direct)(job, x)) {
        EK_NAME(attention_copy)
        (to, stride, stride, (const EK_REAL *)(const void *)from, x->row, rows, columns, scale);
        return;
    }
    for (int64_t r = 0; r < rows; r++, from += x->size * x->row)
        ek_row_load(job->type, to + r * stride, x->dtype, from, x->column, columns);
    EK_NAME(attention_copy)(to, stride, stride, to, stride, rows, columns, scale);
}

void EK_NAME(ek_attention_store)(const ek_attention_job *job, const ek_attention_operand *x,
                                 char *to, EK_REAL *from, int64_t stride, int64_t rows,
                                 int64_t columns, EK_REAL scale)
{
    if (EK_NAME(attention_is_direct)(job, x)) {
        EK_NAME(attention_copy)
        ((EK_REAL *)(void *)to, x->row, columns, from, stride, rows, columns, scale);
        return;
    }
    EK_NAME(attention_copy)(from, stride, columns, from, stride, rows, columns, scale);
    for (int64_t r = 0; r < rows; r++, from += stride, to += x->size * x->row)
        ek_row_store(job->type, from, x->dtype, to, x->column, columns);
}

void EK_NAME(ek_attention_pack_transposed)(const ek_attention_job *job, EK_REAL *to,
                                           const ek_attention_operand *x, const char *from,
                                           int64_t keys, int64_t depth, EK_REAL *lines)
{
    enum { TOGETHER = 32 / sizeof(EK_REAL) };
    const int64_t width = job->panel;
    const bool direct = EK_NAME(attention_is_direct)(job, x);
    for (; keys > 0; keys -= width, to += width * depth, from += x->size * x->row * width) {
        const int64_t count = ek_smaller(keys, width);
        const EK_REAL *line = direct ? (const EK_REAL *)(const void *)from : lines;
        const int64_t stride = direct ? x->row : depth;
        int64_t done = 0;
        if (!direct)
            EK_NAME(ek_attention_load)(job, lines, depth, x, from, count, depth, 1);
        if (width % TOGETHER == 0)
            for (int64_t l = 0; l < count; l += TOGETHER)
                done = EK_NAME(ek_gemm_transpose)(to + l, width, line + l * stride,
                                                  ek_smaller(TOGETHER, count - l), stride, depth);
        for (int64_t d = done; d < depth; d++)
            for (int64_t l = 0; l < width; l++)
                to[d * width + l] = l < count ? line[l * stride + d] : 0;
    }
}

void EK_NAME(ek_attention_multiply)(const ek_attention_job *job, const ek_attention_product *p)
{
    const ek_gemm_kernel *kernel = job->kernel;
    ek_gemm_ahead none = {.runs = 0};
    ek_gemm_call call = {.a_row = p->a_row,
                         .a_depth = p->a_depth,
                         .b_depth = p->b_depth,
                         .c_row = p->c_row,
                         .add = p->add,
                         .next_b = &none};
    for (int64_t column = 0; column < p->columns; column += job->panel) {
        const EK_REAL *b = (const EK_REAL *)p->b + column / job->panel * p->b_panel;
        for (int64_t row = 0; row < p->rows; row += kernel->rows) {
            const int64_t rows = ek_smaller(kernel->rows, p->rows - row);
            const int64_t last = p->seen + row + rows - 1; /* keys that the last row sees */
            const int64_t first = p->sight == SIGHT_BEGIN ? ek_larger(0, row + 1 - p->seen) : 0;
            const int64_t end = p->sight == SIGHT_END ? ek_smaller(p->k, last) : p->k;
            const int64_t columns =
                p->sight == SIGHT_COLUMNS ? ek_smaller(p->columns, last) : p->columns;
            if (first >= end || columns <= column)
                continue;
            call.k = end - first;
            call.a = (const EK_REAL *)p->a + row * p->a_row + first * p->a_depth;
            call.b = b + first * p->b_depth;
            call.c = (EK_REAL *)p->c + row * p->c_row + column;
            call.next_a = attention_rows_ahead(p->ahead, &none);
            kernel->inner[columns - column > job->vector][rows - 1](&call);
        }
    }
}

const EK_REAL *EK_NAME(ek_attention_mask)(const ek_attention_job *job, int64_t batch, int64_t head,
                                          int64_t row, int64_t rows, int64_t key, int64_t keys,
                                          EK_REAL *room, int64_t *stride)
{
    const ek_attention_operand *mask = &job->mask;
    *stride = 0;
    if (!mask->data)
        return NULL;
    const char *from = ek_attention_at(mask, batch, head, row, key);
    if (ek_class_is_dtype(job->type, mask->dtype) && mask->column == 1) {
        *stride = mask->row;
        return (const EK_REAL *)(const void *)from;
    }
    if (mask->row != 0)
        *stride = job->block_keys;
    EK_NAME(ek_attention_load)
    (job, room, job->block_keys, mask, from, mask->row != 0 ? rows : 1, keys, 1);
    return room;
}

#endif
