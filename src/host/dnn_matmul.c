/* dnn_matmul.c: matrix products by oneDNN's primitive, for what sgemm can't: bf16 operands, whose
 * products are summed in f32. */
#include "host/dnn_plan.h"

#include <stdio.h>
#include <string.h>

#include "host/dnn.h"
#include "host/parallel.h"
#include "host/stage.h"

/* A batch of matrices as the primitive sees it. */
typedef struct operand {
    ek_dtype dtype;
    int64_t shape[3], stride[3]; /* batch, rows, columns */
    void *data;                  /* NULL: there is none */
} operand;

typedef struct arguments {
    operand out, x, y, bias;
    bool accumulate;
} arguments;

static int check(dnnl_status_t status, const arguments *a)
{
    if (status == dnnl_success)
        return 0;
    char what[160];
    snprintf(what, sizeof what, "%lld matrix products (%lld, %lld) x (%lld, %lld) of %s",
             (long long)a->out.shape[0], (long long)a->x.shape[1], (long long)a->x.shape[2],
             (long long)a->y.shape[1], (long long)a->y.shape[2], ek_dtype_name(a->x.dtype));
    return ek_dnn_check(status, what);
}

/* ---- the plan ---- */

/* One product has matrices of two dimensions: not all implementations take three. */
static dnnl_status_t describe(dnnl_memory_desc_t *desc, const operand *o, int ndim)
{
    dnnl_dims_t shape = {0}, stride = {0};
    for (int i = 0; i < ndim; i++) {
        shape[i] = o->shape[3 - ndim + i];
        stride[i] = o->stride[3 - ndim + i];
    }
    return dnnl_memory_desc_init_by_strides(desc, ndim, shape, ek_dnn_type(o->dtype), stride);
}

static dnnl_status_t describe_operation(dnnl_matmul_desc_t *operation, ek_dnn_plan *plan,
                                        const arguments *a)
{
    int ndim = a->out.shape[0] == 1 ? 2 : 3;
    dnnl_status_t status = describe(&plan->x, &a->x, ndim);
    if (status == dnnl_success)
        status = describe(&plan->w, &a->y, ndim);
    if (status == dnnl_success)
        status = describe(&plan->y, &a->out, ndim);
    if (status == dnnl_success && a->bias.data)
        status = describe(&plan->bias, &a->bias, ndim);
    if (status == dnnl_success)
        status = dnnl_matmul_desc_init(operation, &plan->x, &plan->w,
                                       a->bias.data ? &plan->bias : NULL, &plan->y);
    return status;
}

/* Makes plan->primitive, or leaves it NULL if only the slow reference code is there. */
static dnnl_status_t build_primitive(ek_dnn_plan *plan, dnnl_engine_t engine,
                                     const_dnnl_primitive_attr_t attributes, const arguments *a)
{
    dnnl_matmul_desc_t operation;
    dnnl_primitive_desc_t chosen;
    dnnl_status_t status = describe_operation(&operation, plan, a);
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

static dnnl_status_t add_to_output(dnnl_primitive_attr_t attributes)
{
    dnnl_post_ops_t operations;
    dnnl_status_t status = dnnl_post_ops_create(&operations);
    if (status != dnnl_success)
        return status;
    status = dnnl_post_ops_append_sum(operations, 1.0f);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_post_ops(attributes, operations);
    dnnl_post_ops_destroy(operations);
    return status;
}

static int build(ek_dnn_plan *plan, dnnl_engine_t engine, const void *user)
{
    const arguments *a = user;
    dnnl_primitive_attr_t attributes;
    EK_TRY(check(dnnl_primitive_attr_create(&attributes), a));
    dnnl_status_t status =
        dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    if (status == dnnl_success && a->accumulate)
        status = add_to_output(attributes);
    if (status == dnnl_success)
        status = build_primitive(plan, engine, attributes, a);
    dnnl_primitive_attr_destroy(attributes);
    return check(status, a);
}

static void add_operand(ek_dnn_key *key, const operand *o)
{
    ek_dnn_key_add(key, o->dtype);
    ek_dnn_key_add_array(key, o->shape, 3);
    ek_dnn_key_add_array(key, o->stride, 3);
}

static ek_dnn_plan *plan_of(ek_dev *dev, const arguments *a)
{
    ek_dnn_key key = {.count = 0};
    ek_dnn_key_add(&key, EK_DNN_MATMUL);
    ek_dnn_key_add(&key, ek_parallel_threads(dev));
    ek_dnn_key_add(&key, a->accumulate);
    ek_dnn_key_add(&key, a->bias.data != NULL);
    add_operand(&key, &a->out);
    add_operand(&key, &a->x);
    add_operand(&key, &a->y);
    add_operand(&key, &a->bias);
    return ek_dnn_plan_acquire(&key, build, a);
}

/* ---- running ---- */

static dnnl_status_t execute(const ek_dnn_plan *plan, const arguments *a, void *scratch,
                             dnnl_engine_t engine)
{
    ek_dnn_args args = {.count = 0};
    dnnl_stream_t stream;
    dnnl_status_t status = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
    if (status != dnnl_success)
        return status;
    status = ek_dnn_args_add(&args, DNNL_ARG_SRC, &plan->x, a->x.data, engine);
    if (status == dnnl_success)
        status = ek_dnn_args_add(&args, DNNL_ARG_WEIGHTS, &plan->w, a->y.data, engine);
    if (status == dnnl_success)
        status = ek_dnn_args_add(&args, DNNL_ARG_BIAS, &plan->bias, a->bias.data, engine);
    if (status == dnnl_success)
        status = ek_dnn_args_add(&args, DNNL_ARG_DST, &plan->y, a->out.data, engine);
    if (status == dnnl_success)
        status = ek_dnn_args_add(&args, DNNL_ARG_SCRATCHPAD, &plan->scratch, scratch, engine);
    if (status == dnnl_success)
        status = dnnl_primitive_execute(plan->primitive, stream, args.count, args.list);
    ek_dnn_args_free(&args);
    dnnl_stream_destroy(stream);
    return status;
}

static int run(ek_dev *dev, const ek_dnn_plan *plan, const arguments *a)
{
    size_t nbytes = dnnl_memory_desc_get_size(&plan->scratch);
    dnnl_engine_t engine = ek_dnn_engine();
    void *scratch = NULL;
    if (!engine)
        return ek_error_pending();
    if (nbytes)
        EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &scratch));
    dnnl_status_t status = execute(plan, a, scratch, engine);
    if (nbytes)
        ek_dev_free(dev, scratch, nbytes, EK_MEMORY_WORKSPACE);
    return check(status, a);
}

/* 1 when done, 0 if there is nothing fast, negative on error. */
static int multiply(ek_dev *dev, const arguments *a)
{
    ek_parallel_enter(dev);
    ek_dnn_plan *plan = plan_of(dev, a);
    if (!plan)
        return ek_error_pending();
    int rc = plan->primitive ? run(dev, plan, a) : 0;
    bool done = plan->primitive != NULL;
    ek_dnn_plan_release(plan);
    return rc < 0 ? rc : done;
}

/* ---- operands that the primitive can address ---- */

/* Matrices after each other, each row by row; those that are only read may also lie column by
 * column. */
static bool addressable(const ek_tensor *t, bool output)
{
    int64_t rows = t->shape[1], columns = t->shape[2];
    bool by_rows = t->stride[2] == 1 && t->stride[1] >= columns;
    bool by_columns = !output && t->stride[1] == 1 && t->stride[2] >= rows;
    int64_t nelements = by_rows ? rows * t->stride[1] : columns * t->stride[2];
    return (by_rows || by_columns) && (t->shape[0] == 1 || t->stride[0] >= nelements);
}

static operand operand_of(const ek_tensor *t)
{
    operand o = {.dtype = t->dtype, .data = ek_tensor_address(t)};
    memcpy(o.shape, t->shape, sizeof o.shape);
    memcpy(o.stride, t->stride, sizeof o.stride);
    if (o.shape[0] == 1) /* then any value will do: one, that equal plans are found */
        o.stride[0] = o.shape[1] * o.shape[2];
    return o;
}

static operand bias_of(const ek_tensor *bias)
{
    if (!bias)
        return (operand){.data = NULL};
    int64_t columns = bias->shape[0];
    return (operand){bias->dtype, {1, 1, columns}, {columns, columns, 1}, ek_tensor_address(bias)};
}

/* The rows of a batch against one matrix are one matrix. */
static void fold(operand *o)
{
    o->shape[1] *= o->shape[0];
    o->shape[0] = 1;
    o->stride[0] = o->shape[1] * o->shape[2];
}

static bool foldable(const ek_tensor *t)
{
    return t->stride[2] == 1 && t->stride[0] == t->shape[1] * t->stride[1];
}

int ek_dnn_matmul(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                  const ek_tensor *bias, bool accumulate)
{
    ek_tensor one = *y; /* of a batch that is one matrix */
    bool shared = y->stride[0] == 0 && y->shape[0] > 1;
    if (shared)
        one.shape[0] = 1;
    bool keep_bias = !bias || bias->stride[0] == 1;
    ek_stage stages[4] = {{.nbytes = 0}};
    ek_stage *so = &stages[0], *sx = &stages[1], *sy = &stages[2], *sb = &stages[3];
    int done = 0, rc;
    bool keep_out = addressable(out, true) && (!shared || foldable(out));
    bool keep_x = addressable(x, false) && (!shared || foldable(x));
    EK_TRY_GOTO(ek_stage_begin(so, dev, out, out->dtype, 2, keep_out, accumulate), rc, end);
    EK_TRY_GOTO(ek_stage_begin(sx, dev, x, x->dtype, 2, keep_x, true), rc, end);
    EK_TRY_GOTO(ek_stage_begin(sy, dev, &one, y->dtype, 2, addressable(&one, false), true), rc,
                end);
    if (bias)
        EK_TRY_GOTO(ek_stage_begin(sb, dev, bias, bias->dtype, 0, keep_bias, true), rc, end);
    arguments a = {operand_of(so->tensor), operand_of(sx->tensor), operand_of(sy->tensor),
                   bias_of(sb->tensor), accumulate};
    if (shared) {
        fold(&a.out);
        fold(&a.x);
    }
    rc = done = multiply(dev, &a);
end:
    rc = ek_stage_end(sb, dev, false, rc);
    rc = ek_stage_end(sy, dev, false, rc);
    rc = ek_stage_end(sx, dev, false, rc);
    rc = ek_stage_end(so, dev, done > 0, rc);
    return rc < 0 ? rc : done;
}
