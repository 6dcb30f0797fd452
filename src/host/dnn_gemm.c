/* dnn_gemm.c: f32 matrix products by oneDNN's sgemm, which needs no primitive and no descriptor:
 * the overhead of a small product is below a microsecond. */
#include <oneapi/dnnl/dnnl.h>
#include <stdatomic.h>

#include "host/dnn.h"
#include "host/dnn_plan.h"
#include "host/parallel.h"

/* One matrix as sgemm takes it: rows with unit stride, or transposed. */
typedef struct operand {
    const float *data;
    char transposed; /* 'N' or 'T' */
    int64_t leading;
} operand;

/* Dimensions of size 1 fit any stride. False if neither direction has unit stride. */
static bool describe(operand *o, const ek_matrices *m, int64_t rows, int64_t columns, int64_t batch)
{
    o->data = (const float *)m->data + batch * m->batch_stride;
    if ((m->column_stride == 1 || columns == 1) && (m->row_stride >= columns || rows == 1)) {
        o->transposed = 'N';
        o->leading = rows == 1 ? columns : m->row_stride;
        return columns == 1 ? o->leading >= 1 : true;
    }
    if ((m->row_stride == 1 || rows == 1) && (m->column_stride >= rows || columns == 1)) {
        o->transposed = 'T';
        o->leading = columns == 1 ? rows : m->column_stride;
        return true;
    }
    return false;
}

static void gather_matrix(float *to, const ek_matrices *m, int64_t rows, int64_t columns,
                          int64_t batch)
{
    const float *from = (const float *)m->data + batch * m->batch_stride;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            *to++ = from[i * m->row_stride + j * m->column_stride];
}

static void scatter_matrix(const float *from, const ek_matrices *m, int64_t rows, int64_t columns,
                           int64_t batch)
{
    float *to = (float *)m->data + batch * m->batch_stride;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            to[i * m->row_stride + j * m->column_stride] = *from++;
}

typedef struct products {
    const ek_gemm *gemm;
    float *workspace; /* for each part: copies of those of a, b, c that sgemm can't address */
    int64_t workspace_stride, b_at, c_at;
    bool copy_a, copy_b, copy_c, transpose_c;
    atomic_int next_part;
    atomic_int status; /* the first failure */
} products;

static dnnl_status_t product(const products *p, int64_t batch, float *workspace)
{
    const ek_gemm *g = p->gemm;
    operand a = {workspace, 'N', g->k}, b = {workspace + p->b_at, 'N', g->m};
    if (p->copy_a)
        gather_matrix(workspace, &g->a, g->n, g->k, batch);
    else
        describe(&a, &g->a, g->n, g->k, batch);
    if (p->copy_b)
        gather_matrix(workspace + p->b_at, &g->b, g->k, g->m, batch);
    else
        describe(&b, &g->b, g->k, g->m, batch);
    operand c = {workspace + p->c_at, 'N', g->m};
    if (!p->copy_c)
        describe(&c, &g->c, g->n, g->m, batch);
    else if (g->accumulate)
        gather_matrix(workspace + p->c_at, &g->c, g->n, g->m, batch);

    float beta = g->accumulate ? 1.0f : 0.0f, *out = (float *)(uintptr_t)c.data;
    dnnl_status_t status;
    if (c.transposed == 'T') /* c' = b' a' */
        status =
            dnnl_sgemm(b.transposed == 'N' ? 'T' : 'N', a.transposed == 'N' ? 'T' : 'N', g->m, g->n,
                       g->k, 1.0f, b.data, b.leading, a.data, a.leading, beta, out, c.leading);
    else
        status = dnnl_sgemm(a.transposed, b.transposed, g->n, g->m, g->k, 1.0f, a.data, a.leading,
                            b.data, b.leading, beta, out, c.leading);
    if (status == dnnl_success && p->copy_c)
        scatter_matrix(workspace + p->c_at, &g->c, g->n, g->m, batch);
    return status;
}

static void products_part(void *context, int64_t begin, int64_t end)
{
    products *p = context;
    int part = atomic_fetch_add(&p->next_part, 1);
    for (int64_t batch = begin; batch < end; batch++) {
        dnnl_status_t status = product(p, batch, p->workspace + part * p->workspace_stride);
        int none = dnnl_success;
        if (status != dnnl_success)
            atomic_compare_exchange_strong(&p->status, &none, (int)status);
    }
}

static void zero(const ek_gemm *g)
{
    for (int64_t batch = 0; batch < g->batch; batch++)
        for (int64_t i = 0; i < g->n; i++)
            for (int64_t j = 0; j < g->m; j++)
                ((float *)g->c.data)[batch * g->c.batch_stride + i * g->c.row_stride +
                                     j * g->c.column_stride] = 0;
}

int ek_dnn_gemm(ek_dev *dev, const ek_gemm *gemm)
{
    if (gemm->k == 0) {
        if (!gemm->accumulate)
            zero(gemm);
        return 0;
    }
    products p = {.gemm = gemm};
    operand probe;
    p.copy_a = !describe(&probe, &gemm->a, gemm->n, gemm->k, 0);
    p.copy_b = !describe(&probe, &gemm->b, gemm->k, gemm->m, 0);
    p.copy_c = !describe(&probe, &gemm->c, gemm->n, gemm->m, 0);
    p.b_at = p.copy_a ? gemm->n * gemm->k : 0;
    p.c_at = p.b_at + (p.copy_b ? gemm->k * gemm->m : 0);
    p.workspace_stride = p.c_at + (p.copy_c ? gemm->n * gemm->m : 0);

    /* Many products: side by side, each on one thread. Few: one after the other, each by the team.
     */
    ek_parallel_enter(dev);
    int threads = ek_parallel_threads(dev);
    bool side_by_side = gemm->batch >= threads;
    size_t nbytes = (size_t)((side_by_side ? threads : 1) * p.workspace_stride) * sizeof(float);
    void *workspace = NULL;
    if (nbytes)
        EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &workspace));
    p.workspace = workspace;
    double work = (double)gemm->n * (double)gemm->m * (double)gemm->k;
    if (side_by_side && gemm->batch > 1)
        ek_parallel_for(dev, gemm->batch, work < 100000 ? 1 + (int64_t)(100000 / work) : 1,
                        products_part, &p);
    else
        products_part(&p, 0, gemm->batch);
    if (nbytes)
        ek_dev_free(dev, workspace, nbytes, EK_MEMORY_WORKSPACE);
    int status = atomic_load(&p.status);
    if (status == dnnl_success)
        return 0;
    char what[160];
    snprintf(what, sizeof what, "%lld matrix products (%lld, %lld) x (%lld, %lld)",
             (long long)gemm->batch, (long long)gemm->n, (long long)gemm->k, (long long)gemm->k,
             (long long)gemm->m);
    return ek_dnn_check((dnnl_status_t)status, what);
}

bool ek_dnn_has_bf16(void)
{
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) ==
           dnnl_cpu_isa_avx512_core_bf16;
}
