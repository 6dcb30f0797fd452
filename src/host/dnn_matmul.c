/* dnn_matmul.c: matrix products by oneDNN. f32 is computed by sgemm, which needs no primitive and
 * no descriptor, so that a small product has less than a microsecond of overhead. bf16 is computed
 * by the matmul primitive, with sums in f32. */
#include "host/dnn_plan.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/dnn.h"
#include "host/host.h"
#include "host/parallel.h"
#include "kernels/stage.h"

/* If a batch has few products, each is divided among threads into row_parts x column_parts. */
typedef struct division {
    int64_t n, m;
    int64_t row_parts, column_parts;
} division;

/* Returns the division of each product into the most parts: at most so many that each of `threads`
 * has a part, and that each part is worth a thread. Of divisions into equally many parts, the parts
 * of this one read least. */
static division matmul_divide(int64_t batch, int64_t n, int64_t m, int64_t k, int threads)
{
    enum { ROWS = 8, COLUMNS = 16, WORTH = 100000 };
    division d = {n, m, 1, 1};
    double worth = (double)n * (double)m * (double)k / WORTH;
    int64_t parts = ek_divide_up(threads, batch), least = n + m;
    if (worth < (double)parts)
        parts = (int64_t)worth;
    for (int64_t rows = 1; rows <= parts; rows++) {
        int64_t columns = parts / rows, each = ek_divide_up(n, rows) + ek_divide_up(m, columns);
        if (rows * columns < d.row_parts * d.column_parts || n < rows * ROWS ||
            m < columns * COLUMNS ||
            (rows * columns == d.row_parts * d.column_parts && each >= least))
            continue;
        least = each;
        d.row_parts = rows;
        d.column_parts = columns;
    }
    return d;
}

/* A part of a product. Its columns begin at a whole vector. */
typedef struct area {
    int64_t row, column, n, m;
} area;

static area matmul_area(const division *d, int64_t i)
{
    enum { COLUMNS = 16 };
    const int64_t r = i / d->column_parts, c = i % d->column_parts;
    const int64_t blocks = ek_divide_up(d->m, COLUMNS);
    area a = {.row = ek_part_of(d->n, r, d->row_parts),
              .column = COLUMNS * ek_part_of(blocks, c, d->column_parts)};
    a.n = ek_part_of(d->n, r + 1, d->row_parts) - a.row;
    a.m = ek_smaller(COLUMNS * ek_part_of(blocks, c + 1, d->column_parts), d->m) - a.column;
    return a;
}

/* ---- sgemm ---- */

typedef struct sgemm_job {
    const ek_gemm *gemm;
    division division;
    atomic_int status; /* the first failure */
} sgemm_job;

static float *sgemm_at(const ek_matrices *m, int64_t batch, int64_t row, int64_t column)
{
    return (float *)m->data + batch * m->batch_stride + row * m->row_stride + column;
}

/* Computes the parts [begin, end), which are counted through all products. */
static void sgemm_parts(void *context, int64_t begin, int64_t end)
{
    sgemm_job *job = context;
    const ek_gemm *g = job->gemm;
    const int64_t parts = job->division.row_parts * job->division.column_parts;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t batch = unit / parts;
        const area at = matmul_area(&job->division, unit % parts);
        int none = dnnl_success;
        const dnnl_status_t status =
            dnnl_sgemm('N', 'N', at.n, at.m, g->k, 1.0f, sgemm_at(&g->a, batch, at.row, 0),
                       g->a.row_stride, sgemm_at(&g->b, batch, 0, at.column), g->b.row_stride,
                       g->accumulate ? 1.0f : 0.0f, sgemm_at(&g->c, batch, at.row, at.column),
                       g->c.row_stride);
        if (status != dnnl_success)
            atomic_compare_exchange_strong(&job->status, &none, (int)status);
        else if (g->finish)
            g->finish(g->finish_context,
                      &(ek_gemm_area){sgemm_at(&g->c, batch, at.row, at.column), g->c.row_stride, 1,
                                      batch, at.row, at.n, at.column, at.m});
    }
}

int ek_dnn_gemm(ek_dev *dev, const ek_gemm *gemm)
{
    sgemm_job job = {.gemm = gemm,
                     .division = matmul_divide(gemm->batch, gemm->n, gemm->m, gemm->k,
                                               ek_parallel_threads(dev))};
    const int64_t parts = job.division.row_parts * job.division.column_parts;
    const double work = (double)gemm->n * (double)gemm->m * (double)gemm->k / (double)parts;
    int before = ek_parallel_alone_begin();
    ek_parallel_for(dev, gemm->batch * parts, 1 + (int64_t)(100000 / work), sgemm_parts, &job);
    ek_parallel_alone_end(before);
    int status = atomic_load(&job.status);
    if (status == dnnl_success)
        return 0;
    char what[160];
    snprintf(what, sizeof what, "%lld matrix products (%lld, %lld) x (%lld, %lld)",
             (long long)gemm->batch, (long long)gemm->n, (long long)gemm->k, (long long)gemm->k,
             (long long)gemm->m);
    return ek_dnn_check((dnnl_status_t)status, what);
}

/* ---- the primitive ---- */

/* Returns true if the processor has `isa`. An instruction set's bits contain the bits of the sets
 * that it extends. */
static bool matmul_has(dnnl_cpu_isa_t isa)
{
    return (dnnl_get_effective_cpu_isa() & isa) == isa;
}

bool ek_dnn_has_bf16(void)
{
    return matmul_has(dnnl_cpu_isa_avx512_core_bf16);
}

bool ek_dnn_has_amx(void)
{
    return matmul_has(dnnl_cpu_isa_avx512_core_amx);
}

/* A batch of matrices in the form that the primitive takes. */
typedef struct operand {
    ek_dtype dtype;
    int64_t shape[3], stride[3]; /* batch, rows, columns */
    void *data;                  /* NULL: there is none */
} operand;

typedef struct arguments {
    operand out, x, y, bias;
    bool accumulate;
} arguments;

static void dnn_matmul_describe(const void *user, char what[EK_DNN_TEXT])
{
    const arguments *a = user;
    snprintf(what, EK_DNN_TEXT, "%lld matrix products (%lld, %lld) x (%lld, %lld) of %s",
             (long long)a->out.shape[0], (long long)a->x.shape[1], (long long)a->x.shape[2],
             (long long)a->y.shape[1], (long long)a->y.shape[2], ek_dtype_name(a->x.dtype));
}

/* ---- the plan ---- */

/* Describes the last `ndim` dimensions of an operand. A single product has two dimensions, because
 * not all implementations take three. */
static dnnl_status_t dnn_matmul_describe_operand(dnnl_memory_desc_t *desc, const operand *o,
                                                 int ndim)
{
    dnnl_dims_t shape = {0}, stride = {0};
    for (int i = 0; i < ndim; i++) {
        shape[i] = o->shape[3 - ndim + i];
        stride[i] = o->stride[3 - ndim + i];
    }
    return dnnl_memory_desc_init_by_strides(desc, ndim, shape, ek_dnn_type(o->dtype), stride);
}

static dnnl_status_t dnn_matmul_describe_product(dnnl_matmul_desc_t *operation, ek_dnn_plan *plan,
                                                 const arguments *a)
{
    int ndim = a->out.shape[0] == 1 ? 2 : 3;
    EK_DNN_TRY(dnn_matmul_describe_operand(&plan->x, &a->x, ndim));
    EK_DNN_TRY(dnn_matmul_describe_operand(&plan->w, &a->y, ndim));
    EK_DNN_TRY(dnn_matmul_describe_operand(&plan->y, &a->out, ndim));
    if (a->bias.data)
        EK_DNN_TRY(dnn_matmul_describe_operand(&plan->bias, &a->bias, ndim));
    return dnnl_matmul_desc_init(operation, &plan->x, &plan->w, a->bias.data ? &plan->bias : NULL,
                                 &plan->y);
}

/* Makes plan->primitive, or leaves it NULL if oneDNN has only slow reference code. */
static dnnl_status_t dnn_matmul_build_primitive(ek_dnn_plan *plan, dnnl_engine_t engine,
                                                const_dnnl_primitive_attr_t attributes,
                                                const arguments *a)
{
    dnnl_matmul_desc_t operation;
    dnnl_primitive_desc_t chosen;
    dnnl_status_t status = dnn_matmul_describe_product(&operation, plan, a);
    if (status == dnnl_success)
        status = dnnl_primitive_desc_create(&chosen, &operation, attributes, engine, NULL);
    if (status != dnnl_success)
        return status == dnnl_unimplemented ? dnnl_success : status;
    if (ek_dnn_is_fast(chosen)) {
        plan->scratch = *dnnl_primitive_desc_query_md(chosen, dnnl_query_scratchpad_md, 0);
        status = dnnl_primitive_create(&plan->primitive, chosen);
    }
    dnnl_primitive_desc_destroy(chosen);
    return status;
}

static dnnl_status_t dnn_matmul_add_to_output(dnnl_primitive_attr_t attributes)
{
    dnnl_post_ops_t operations;
    EK_DNN_TRY(dnnl_post_ops_create(&operations));
    dnnl_status_t status = dnnl_post_ops_append_sum(operations, 1.0f);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_post_ops(attributes, operations);
    dnnl_post_ops_destroy(operations);
    return status;
}

static dnnl_status_t dnn_matmul_build(ek_dnn_plan *plan, dnnl_engine_t engine,
                                      dnnl_primitive_attr_t attributes, const void *user)
{
    const arguments *a = user;
    if (a->accumulate)
        EK_DNN_TRY(dnn_matmul_add_to_output(attributes));
    return dnn_matmul_build_primitive(plan, engine, attributes, a);
}

static dnnl_status_t dnn_matmul_run(const ek_dnn_plan *plan, const void *user, char *scratch,
                                    dnnl_engine_t engine, dnnl_stream_t stream)
{
    const arguments *a = user;
    ek_dnn_args args = {.engine = engine};
    ek_dnn_args_add(&args, DNNL_ARG_SRC, &plan->x, a->x.data);
    ek_dnn_args_add(&args, DNNL_ARG_WEIGHTS, &plan->w, a->y.data);
    ek_dnn_args_add(&args, DNNL_ARG_BIAS, &plan->bias, a->bias.data);
    ek_dnn_args_add(&args, DNNL_ARG_DST, &plan->y, a->out.data);
    ek_dnn_args_add(&args, DNNL_ARG_SCRATCHPAD, &plan->scratch, scratch);
    return ek_dnn_run(plan->primitive, &args, stream);
}

static void dnn_matmul_make_key(ek_dnn_key *key, const arguments *a)
{
    const operand *const operands[] = {&a->out, &a->x, &a->y, &a->bias};
    key->count = 0;
    ek_dnn_key_add(key, (const int64_t[]){EK_DNN_MATMUL, a->accumulate, a->bias.data != NULL}, 3);
    for (int i = 0; i < 4; i++) {
        ek_dnn_key_add(key, (const int64_t[]){operands[i]->dtype}, 1);
        ek_dnn_key_add(key, operands[i]->shape, 3);
        ek_dnn_key_add(key, operands[i]->stride, 3);
    }
}

/* Narrows dimension `dim` of an operand. A batch dimension of size 1, which all products share,
 * stays whole. */
static void dnn_matmul_narrow(operand *o, int dim, int64_t start, int64_t length)
{
    if (!o->data || (dim == 0 && o->shape[0] == 1))
        return;
    o->data = (char *)o->data + start * o->stride[dim] * (int64_t)ek_dtype_size(o->dtype);
    o->shape[dim] = length;
}

/* Returns the arguments for the area `at` of the products [first, first + count) of a batch. */
static arguments dnn_matmul_part(const arguments *a, int64_t first, int64_t count, const area *at)
{
    arguments part = *a;
    operand *batched[] = {&part.out, &part.x, &part.y};
    for (int i = 0; i < 3; i++)
        dnn_matmul_narrow(batched[i], 0, first, count);
    dnn_matmul_narrow(&part.out, 1, at->row, at->n);
    dnn_matmul_narrow(&part.out, 2, at->column, at->m);
    dnn_matmul_narrow(&part.x, 1, at->row, at->n);
    dnn_matmul_narrow(&part.y, 2, at->column, at->m);
    dnn_matmul_narrow(&part.bias, 2, at->column, at->m);
    return part;
}

/* Computes the products. Returns 1 when done, 0 if oneDNN has no fast code, negative on error. */
static int dnn_matmul_multiply(ek_dev *dev, const arguments *a)
{
    static const ek_dnn_kind matmul = {dnn_matmul_build, dnn_matmul_run, dnn_matmul_describe};
    const int64_t batch = a->out.shape[0], threads = ek_parallel_threads(dev);
    const division d =
        matmul_divide(batch, a->out.shape[1], a->out.shape[2], a->x.shape[2], (int)threads);
    const int64_t areas = d.row_parts * d.column_parts;
    const int64_t groups = ek_smaller(batch, areas > 1 ? batch : threads), count = groups * areas;
    arguments *made = ek_calloc((size_t)count, sizeof *made);
    ek_dnn_part *parts = ek_calloc((size_t)count, sizeof *parts);
    int rc = made && parts ? 0 : ek_error_pending();
    for (int64_t i = 0; i < count && rc >= 0; i++) {
        const int64_t first = ek_part_of(batch, i / areas, groups);
        const area at = matmul_area(&d, i % areas);
        made[i] = dnn_matmul_part(a, first, ek_part_of(batch, i / areas + 1, groups) - first, &at);
        parts[i].arguments = &made[i];
        dnn_matmul_make_key(&parts[i].key, &made[i]);
    }
    if (rc >= 0)
        rc = ek_dnn_compute(dev, &matmul, parts, (int)count);
    free(parts);
    free(made);
    return rc;
}

/* ---- operands that the primitive can address ---- */

/* Returns true if a batch's matrices don't overlap, and each of them is row-major or, in an input,
 * column-major. */
static bool dnn_matmul_addressable(const ek_tensor *t, bool output)
{
    int64_t rows = t->shape[1], columns = t->shape[2];
    bool by_rows = t->stride[2] == 1 && t->stride[1] >= columns;
    bool by_columns = !output && t->stride[1] == 1 && t->stride[2] >= rows;
    int64_t nelements = by_rows ? rows * t->stride[1] : columns * t->stride[2];
    return (by_rows || by_columns) && (t->shape[0] == 1 || t->stride[0] >= nelements);
}

static operand dnn_matmul_operand_of(const ek_tensor *t)
{
    operand o = {.dtype = t->dtype, .data = ek_tensor_address(t)};
    memcpy(o.shape, t->shape, sizeof o.shape);
    memcpy(o.stride, t->stride, sizeof o.stride);
    if (o.shape[0] == 1) /* the batch stride doesn't matter: a fixed value makes keys equal */
        o.stride[0] = o.shape[1] * o.shape[2];
    return o;
}

static operand dnn_matmul_bias_of(const ek_tensor *bias)
{
    if (!bias)
        return (operand){.data = NULL};
    int64_t columns = bias->shape[0];
    return (operand){bias->dtype, {1, 1, columns}, {columns, columns, 1}, ek_tensor_address(bias)};
}

/* Joins a batch of matrices to one matrix with all their rows, for products by one shared
 * matrix. */
static void dnn_matmul_fold(operand *o)
{
    o->shape[1] *= o->shape[0];
    o->shape[0] = 1;
    o->stride[0] = o->shape[1] * o->shape[2];
}

static bool dnn_matmul_foldable(const ek_tensor *t)
{
    return t->stride[2] == 1 && t->stride[0] == t->shape[1] * t->stride[1];
}

int ek_dnn_matmul(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                  const ek_tensor *bias, bool accumulate)
{
    ek_tensor one = *y; /* a matrix that the whole batch shares is described once */
    bool shared = y->stride[0] == 0 && y->shape[0] > 1;
    if (shared)
        one.shape[0] = 1;
    bool keep_bias = !bias || bias->stride[0] == 1;
    ek_stage stages[4] = {{.nbytes = 0}};
    ek_stage *so = &stages[0], *sx = &stages[1], *sy = &stages[2], *sb = &stages[3];
    int done = 0, rc;
    bool keep_out = dnn_matmul_addressable(out, true) && (!shared || dnn_matmul_foldable(out));
    bool keep_x = dnn_matmul_addressable(x, false) && (!shared || dnn_matmul_foldable(x));
    EK_TRY_GOTO(ek_stage_begin(so, dev, out, out->dtype, 2, keep_out, accumulate), rc, end);
    EK_TRY_GOTO(ek_stage_begin(sx, dev, x, x->dtype, 2, keep_x, true), rc, end);
    EK_TRY_GOTO(ek_stage_begin(sy, dev, &one, y->dtype, 2, dnn_matmul_addressable(&one, false),
                               true),
                rc, end);
    if (bias)
        EK_TRY_GOTO(ek_stage_begin(sb, dev, bias, bias->dtype, 0, keep_bias, true), rc, end);
    arguments a = {dnn_matmul_operand_of(so->tensor), dnn_matmul_operand_of(sx->tensor),
                   dnn_matmul_operand_of(sy->tensor), dnn_matmul_bias_of(sb->tensor), accumulate};
    if (shared) {
        dnn_matmul_fold(&a.out);
        dnn_matmul_fold(&a.x);
    }
    rc = done = dnn_matmul_multiply(dev, &a);
end:
    rc = ek_stage_end(sb, dev, false, rc);
    rc = ek_stage_end(sy, dev, false, rc);
    rc = ek_stage_end(sx, dev, false, rc);
    rc = ek_stage_end(so, dev, done > 0, rc);
    return rc < 0 ? rc : done;
}
