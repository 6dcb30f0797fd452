/* combine.c: see combine.h. Terms are combined block by block, so that the partial results of a
 * block stay in level 1 cache. */
#include "link/combine.h"

#include <string.h>

#include "core/error.h"
#include "core/multiversion.h"
#include "core/sum_order.h"
#include "core/tensor.h"

enum { COMBINE_NBYTES = 4096 }; /* bytes of a block */

static const char *const combine_names[] = {"SUM", "AVG",  "PRODUCT", "MIN",
                                            "MAX", "BAND", "BOR",     "BXOR"};
enum { COMBINE_OPS = sizeof combine_names / sizeof *combine_names };

const char *ek_combine_name(ek_dist_op op)
{
    return (unsigned)op < COMBINE_OPS ? combine_names[op] : "unknown";
}

int ek_combine_check(const char *what, ek_dist_op op, ek_dtype dtype)
{
    if ((unsigned)op >= COMBINE_OPS)
        return EK_FAIL(EK_E_INVALID,
                       "%s: operation %d; EK_DIST_SUM (0) to EK_DIST_BXOR (%d) are "
                       "possible",
                       what, (int)op, EK_DIST_BXOR);
    if (op >= EK_DIST_BAND && ek_dtype_is_floating(dtype))
        return EK_FAIL(EK_E_DTYPE, "%s: %s is for integers, and the tensor is %s", what,
                       combine_names[op], ek_dtype_name(dtype));
    if (op == EK_DIST_AVG && !ek_dtype_is_floating(dtype))
        return EK_FAIL(EK_E_DTYPE, "%s: AVG is for floating dtypes, and the tensor is %s", what,
                       ek_dtype_name(dtype));
    return 0;
}

/* Makes combine_NAME_DTYPE(out, x, y, n), which combines x and y; `out` may be x. Extrema are NaN
 * if either operand is NaN. */
#define COMBINE_LOOP(name, dtype, type, expression)                                               \
    EK_MULTIVERSION static void combine_##name##_##dtype(void *out, const void *x, const void *y, \
                                                         int n)                                   \
    {                                                                                             \
        type *to = out;                                                                           \
        const type *left = x, *right = y;                                                         \
        EK_IVDEP                                                                                  \
        for (int i = 0; i < n; i++) {                                                             \
            type a = left[i], b = right[i];                                                       \
            to[i] = (type)(expression);                                                           \
        }                                                                                         \
    }
#define COMBINE_FLOATING(dtype, type)                       \
    COMBINE_LOOP(sum, dtype, type, a + b)                   \
    COMBINE_LOOP(product, dtype, type, a *b)                \
    COMBINE_LOOP(min, dtype, type, a != a || a < b ? a : b) \
    COMBINE_LOOP(max, dtype, type, a != a || a > b ? a : b)
/* Integers are combined as unsigned numbers, which wrap. Signed sums and products have the same
 * bits. */
#define COMBINE_INTEGER(dtype, type, wrapping)                   \
    COMBINE_LOOP(sum, dtype, type, (wrapping)a + (wrapping)b)    \
    COMBINE_LOOP(product, dtype, type, (wrapping)a *(wrapping)b) \
    COMBINE_LOOP(min, dtype, type, a < b ? a : b)                \
    COMBINE_LOOP(max, dtype, type, a > b ? a : b)                \
    COMBINE_LOOP(band, dtype, type, a &b)                        \
    COMBINE_LOOP(bor, dtype, type, a | b)                        \
    COMBINE_LOOP(bxor, dtype, type, a ^ b)
COMBINE_FLOATING(f32, float)
COMBINE_FLOATING(f64, double)
COMBINE_INTEGER(i64, int64_t, uint64_t)
COMBINE_INTEGER(u8, uint8_t, unsigned)
COMBINE_INTEGER(i32, int32_t, uint32_t)

typedef void combine_function(void *out, const void *x, const void *y, int n);

/* The loops by dtype and by ek_dist_op. An average is a sum that is divided at the end. Sums of
 * bool are "or" and products "and", which leaves results 0 and 1. bf16 and f16 are widened to
 * f32. */
#define COMBINE_FLOATINGS(dtype)                                                            \
    combine_sum_##dtype, combine_sum_##dtype, combine_product_##dtype, combine_min_##dtype, \
        combine_max_##dtype
#define COMBINE_INTEGERS(dtype)                                                                   \
    combine_sum_##dtype, NULL, combine_product_##dtype, combine_min_##dtype, combine_max_##dtype, \
        combine_band_##dtype, combine_bor_##dtype, combine_bxor_##dtype
static combine_function *const combine_table[EK_DTYPES][COMBINE_OPS] = {
    [EK_F32] = {COMBINE_FLOATINGS(f32)},
    [EK_BF16] = {COMBINE_FLOATINGS(f32)},
    [EK_F16] = {COMBINE_FLOATINGS(f32)},
    [EK_F64] = {COMBINE_FLOATINGS(f64)},
    [EK_I64] = {COMBINE_INTEGERS(i64)},
    [EK_I32] = {COMBINE_INTEGERS(i32)},
    [EK_U8] = {COMBINE_INTEGERS(u8)},
    [EK_BOOL] = {combine_bor_u8, NULL, combine_band_u8, combine_min_u8, combine_max_u8,
                 combine_band_u8, combine_bor_u8, combine_bxor_u8}};

EK_MULTIVERSION static void combine_widen(ek_dtype dtype, float *restrict out,
                                          const uint16_t *restrict in, int n)
{
    if (dtype == EK_F16)
        for (int i = 0; i < n; i++)
            out[i] = ek_float_of_f16(in[i]);
    else
        for (int i = 0; i < n; i++)
            out[i] = ek_float_of_bf16(in[i]);
}

/* Divides x by the number of terms; `out` may be x. */
static void combine_divide(ek_dtype dtype, void *out, const void *x, int count, int n)
{
    if (dtype == EK_F64) {
        double *values = out;
        const double *from = x;
        EK_IVDEP
        for (int i = 0; i < n; i++)
            values[i] = from[i] / count;
    } else {
        float *values = out, divisor = (float)count;
        const float *from = x;
        EK_IVDEP
        for (int i = 0; i < n; i++)
            values[i] = from[i] / divisor;
    }
}

/* Returns n elements of a term: NULL if the term is absent, in f32 in `block` if their dtype is
 * bf16 or f16, else the term's memory. */
static const void *combine_leaf(ek_dtype dtype, const void *term, size_t at, int n, void *block)
{
    const void *from = term ? (const char *)term + at : NULL;
    if (!from || !ek_dtype_is_narrow(dtype))
        return from;
    combine_widen(dtype, block, from, n);
    return block;
}

/* Returns x op y, of which each may be NULL (absent), in `block` or in the memory of x. */
static const void *combine_pair(ek_dist_op op, ek_dtype dtype, const void *x, const void *y, int n,
                                void *block)
{
    if (!y)
        return x;
    if (!x)
        return memcpy(block, y, (size_t)n * ek_dtype_size(ek_dtype_wide(dtype)));
    combine_table[dtype][op](block, x, y, n);
    return block;
}

/* Returns n elements of the combination, in f32 for bf16 and f16. They lie in blocks[0], or in the
 * memory of the only term that is present. */
static const void *combine_terms(ek_dist_op op, ek_dtype dtype, const void *const *terms, int count,
                                 size_t at, int n, char (*blocks)[COMBINE_NBYTES])
{
    const void *stack[EK_SUM_DEPTH];
    for (int t = 0, top = 0; t < count; t++, top++) {
        stack[top] = combine_leaf(dtype, terms[t], at, n, blocks[top]);
        for (int joins = ek_sum_joins(t, count); joins > 0; joins--, top--)
            stack[top - 1] =
                combine_pair(op, dtype, stack[top - 1], stack[top], n, blocks[top - 1]);
    }
    if (op != EK_DIST_AVG)
        return stack[0];
    combine_divide(dtype, blocks[0], stack[0], count, n);
    return blocks[0];
}

EK_MULTIVERSION static void combine_narrow(ek_dtype dtype, uint16_t *restrict out,
                                           const float *restrict in, int n)
{
    if (dtype == EK_F16)
        for (int i = 0; i < n; i++)
            out[i] = ek_f16_of(in[i]);
    else
        for (int i = 0; i < n; i++)
            out[i] = ek_bf16_of(in[i]);
}

static void combine_store(ek_dtype dtype, const void *sum, void *out, int n)
{
    if (ek_dtype_is_narrow(dtype))
        combine_narrow(dtype, out, sum, n);
    else
        memmove(out, sum, (size_t)n * ek_dtype_size(dtype));
}

void ek_combine(ek_dist_op op, ek_dtype dtype, const void *const *terms, int count,
                void *const *outs, int out_count, int64_t n)
{
    _Alignas(64) char blocks[EK_SUM_DEPTH][COMBINE_NBYTES];
    const int most = COMBINE_NBYTES / (int)ek_dtype_size(ek_dtype_wide(dtype));
    for (int64_t begin = 0; begin < n; begin += most) {
        size_t at = (size_t)begin * ek_dtype_size(dtype);
        int block = (int)(n - begin < most ? n - begin : most);
        const void *sum = combine_terms(op, dtype, terms, count, at, block, blocks);
        for (int i = 0; i < out_count; i++)
            combine_store(dtype, sum, (char *)outs[i] + at, block);
    }
}
