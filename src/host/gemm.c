/* gemm.c: matrix products: which way each is computed. */
#ifndef EK_REAL
#include "host/gemm.h"

#include "host/dnn.h"
#include "host/gemm_blocked.h"
#include "host/gemm_kernel.h"
#include "host/isa.h"
#include "host/parallel.h"

#define EK_FOR_REALS "host/gemm.c"
#include "kernels/for_reals.h"

/* Returns the same product in the form c' = b' a'. */
static ek_gemm gemm_transposed(const ek_gemm *g)
{
    ek_gemm t = *g;
    t.n = g->m;
    t.m = g->n;
    t.a = (ek_matrices){g->b.data, g->b.batch_stride, g->b.column_stride, g->b.row_stride};
    t.b = (ek_matrices){g->a.data, g->a.batch_stride, g->a.column_stride, g->a.row_stride};
    t.c = (ek_matrices){g->c.data, g->c.batch_stride, g->c.column_stride, g->c.row_stride};
    return t;
}

/* Returns true if rows of so many columns are contiguous and don't overlap. */
static bool gemm_by_rows(const ek_matrices *matrices, int64_t columns)
{
    return matrices->column_stride == 1 && matrices->row_stride >= columns;
}

/* Returns true if oneDNN's f32 product is faster: with AVX-512, for a single product of row-major
 * matrices if k isn't short. For many rows it isn't with a bias, which takes it a further pass over
 * c. On an Emerald Rapids Xeon oneDNN and gemm_blocked.c reached 168 and 145 GFLOP/s for (64, 2048)
 * x (2048, 512), 170 and 154 for (392, 2048) x (2048, 512), 129 and 149 for 96 of (64, 64) x (64,
 * 64). With AVX2 they reached 42 and 46 on a Zen 5 core for (8, 2048) x (2048, 2048), 66 and 110
 * for (256, 2048) x (2048, 2048). */
static bool gemm_dnn_is_faster(const ek_gemm *g)
{
    enum { MANY_ROWS = 64 };
    bool by_rows =
        gemm_by_rows(&g->a, g->k) && gemm_by_rows(&g->b, g->m) && gemm_by_rows(&g->c, g->m);
    bool passes = g->n >= MANY_ROWS && g->bias;
    return g->dtype == EK_F32 && g->batch == 1 && by_rows && g->k >= 64 && !passes &&
           ek_host_isa() == EK_ISA_AVX512;
}

/* Returns true if the product is faster as c' = b' a'. c is then written transposed, which costs
 * too much for a short k. If b has contiguous columns and a has few rows, b then needs no packing.
 * If a's columns are contiguous and far apart and b is narrow, as for weight gradients, the first
 * rows pack a while they use it; packing it as panels of 12 rows took a third of the time of (768,
 * 4096) x (4096, 32). The limits on m were measured on an Emerald Rapids Xeon: from 256 columns on
 * it is slower. */
static bool gemm_exchanges(const ek_gemm *g)
{
    const int64_t size = (int64_t)ek_dtype_size(g->dtype), nbytes = g->k * size;
    const int columns = ek_gemm_kernel_best(g->dtype)->columns;
    if (g->b.row_stride == 1)
        return g->n <= 2 * columns && g->n < g->m && nbytes >= EK_GEMM_BLOCK_NBYTES / 2;
    return g->dtype == EK_F32 && g->a.row_stride == 1 &&
           g->a.column_stride * size > EK_GEMM_NEAR_NBYTES && g->b.column_stride == 1 &&
           g->m <= 6 * columns && g->n >= 3 * g->m && nbytes >= EK_GEMM_BLOCK_NBYTES;
}

static ek_matrices gemm_matrices_of(const ek_tensor *t)
{
    return (ek_matrices){ek_tensor_address(t), t->stride[0], t->stride[1], t->stride[2]};
}

ek_gemm ek_gemm_of(const ek_tensor *out, const ek_tensor *x, const ek_tensor *y)
{
    return (ek_gemm){.dtype = out->dtype,
                     .batch = out->shape[0],
                     .n = out->shape[1],
                     .m = out->shape[2],
                     .k = x->shape[2],
                     .a = gemm_matrices_of(x),
                     .b = gemm_matrices_of(y),
                     .c = gemm_matrices_of(out)};
}

int ek_gemm_run(ek_dev *dev, const ek_gemm *gemm)
{
    if (gemm->batch == 0 || gemm->n == 0 || gemm->m == 0)
        return 0;
    ek_gemm g = *gemm;
    /* Products of a batch with one shared matrix are one product. */
    if (g.batch > 1 && g.b.batch_stride == 0 && g.a.batch_stride == g.n * g.a.row_stride &&
        g.c.batch_stride == g.n * g.c.row_stride && !g.finish) {
        g.n *= g.batch;
        g.batch = 1;
    }
    const bool by_dnn = gemm_dnn_is_faster(&g);
    const bool transposed = !by_dnn && gemm_exchanges(&g);
    /* The innermost loop begins with a contiguous bias. Others are written to c before. */
    if (g.bias &&
        (by_dnn || transposed || g.accumulate || g.bias_stride != 1 || g.c.column_stride != 1)) {
        ek_parallel_for(dev, g.batch * g.n, 1 + 16384 / g.m,
                        g.dtype == EK_F32 ? gemm_write_bias_f32 : gemm_write_bias_f64, &g);
        g.accumulate = true;
        g.bias = NULL;
    }
    if (by_dnn)
        return ek_dnn_gemm(dev, &g);
    if (transposed)
        g = gemm_transposed(&g);
    return ek_gemm_run_blocked(dev, &g, transposed);
}

#else /* for each EK_REAL */

/* Writes bias to rows [begin, end) of c, counted through all products; if the product is to be
 * added to c, adds bias to them. */
static void EK_NAME(gemm_write_bias)(void *context, int64_t begin, int64_t end)
{
    const ek_gemm *g = context;
    const EK_REAL *bias = g->bias;
    for (int64_t i = begin; i < end; i++) {
        EK_REAL *row =
            (EK_REAL *)g->c.data + i / g->n * g->c.batch_stride + i % g->n * g->c.row_stride;
        for (int64_t j = 0; j < g->m; j++) {
            EK_REAL *at = row + j * g->c.column_stride;
            *at = (g->accumulate ? *at : 0) + bias[j * g->bias_stride];
        }
    }
}

#endif
