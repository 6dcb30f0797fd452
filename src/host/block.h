/* block.h: the innermost loops on small blocks that fit registers. */
#ifndef EK_HOST_BLOCK_H
#define EK_HOST_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

enum { EK_BLOCK_MOST_ROWS = 12, EK_BLOCK_MOST_COLUMNS = 32 };

/* out[r * out_stride + c] = the sum over d < depth of a(r, d) b[d * columns + c], in the order of
 * d, for all of the processor's columns c. If `add`, the sum is added to what is there. */
typedef void ek_block_product(int64_t depth, const float *a, int64_t stride, const float *b,
                              float *out, int64_t out_stride, bool add);

/* The products of 1 to `rows` rows: entry n - 1 computes n. */
typedef struct ek_block_products {
    int rows, columns;                                /* as many as registers hold */
    ek_block_product *by_rows[EK_BLOCK_MOST_ROWS];    /* a(r, d) = a[r * stride + d] */
    ek_block_product *by_columns[EK_BLOCK_MOST_ROWS]; /* a(r, d) = a[d * stride + r] */
} ek_block_products;

/* Those of AVX-512 or of AVX2 with FMA; NULL if the processor has neither. */
const ek_block_products *ek_block_products_of_processor(void);

/* to[c * to_stride + r] = from[r * from_stride + c] for r and c below EK_BLOCK_SQUARE. Only where
 * there are products. */
enum { EK_BLOCK_SQUARE = 8 };
void ek_block_transpose(const float *from, int64_t from_stride, float *to, int64_t to_stride);

#endif
