/* combine.c: see combine.h. Terms are combined block by block, so that a block stays in cache while
 * all terms are added to the block. */
#include "link/combine.h"

#include <string.h>

#include "core/error.h"
#include "core/multiversion.h"
#include "core/tensor.h"

enum { COMBINE_BLOCK = 2048 }; /* elements */

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

/* Makes combine_NAME_DTYPE(out, in, n), which combines one more term `in` with `out`. Extrema are
 * NaN if either operand is NaN. */
#define COMBINE_LOOP(name, dtype, type, expression)                                      \
    EK_MULTIVERSION static void combine_##name##_##dtype(void *restrict out,             \
                                                         const void *restrict in, int n) \
    {                                                                                    \
        type *restrict to = out;                                                         \
        const type *restrict from = in;                                                  \
        for (int i = 0; i < n; i++) {                                                    \
            type a = to[i], b = from[i];                                                 \
            to[i] = (type)(expression);                                                  \
        }                                                                                \
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

typedef void combine_function(void *restrict out, const void *restrict in, int n);

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

static void combine_divide(ek_dtype dtype, void *block, int count, int n)
{
    if (dtype == EK_F64) {
        double *values = block;
        for (int i = 0; i < n; i++)
            values[i] /= count;
    } else {
        float *values = block, divisor = (float)count;
        for (int i = 0; i < n; i++)
            values[i] /= divisor;
    }
}

/* Writes a block of the combination to `sum`, in f32 for bf16 and f16. */
static void combine_block(ek_dist_op op, ek_dtype dtype, const void *const *terms, int count,
                          size_t at, int n, void *sum)
{
    float wide[COMBINE_BLOCK];
    combine_function *combine = combine_table[dtype][op];
    for (int t = 0; t < count; t++) {
        const void *term = (const char *)terms[t] + at;
        if (ek_dtype_is_narrow(dtype)) {
            combine_widen(dtype, t == 0 ? sum : wide, term, n);
            term = wide;
        } else if (t == 0) {
            memcpy(sum, term, (size_t)n * ek_dtype_size(dtype));
        }
        if (t > 0)
            combine(sum, term, n);
    }
    if (op == EK_DIST_AVG)
        combine_divide(dtype, sum, count, n);
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
        memcpy(out, sum, (size_t)n * ek_dtype_size(dtype));
}

void ek_combine(ek_dist_op op, ek_dtype dtype, const void *const *terms, int count,
                void *const *outs, int out_count, int64_t n)
{
    _Alignas(64) char sum[COMBINE_BLOCK * sizeof(double)];
    for (int64_t begin = 0; begin < n; begin += COMBINE_BLOCK) {
        size_t at = (size_t)begin * ek_dtype_size(dtype);
        int block = (int)(n - begin < COMBINE_BLOCK ? n - begin : COMBINE_BLOCK);
        combine_block(op, dtype, terms, count, at, block, sum);
        for (int i = 0; i < out_count; i++)
            combine_store(dtype, sum, (char *)outs[i] + at, block);
    }
}
