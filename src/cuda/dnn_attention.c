/* dnn_attention.c: attention and its gradient as graphs of cuDNN, which computes a graph by one
 * kernel that holds a block of the scores at a time. cuDNN recognises a graph by its operations and
 * their order, which are those of NVIDIA's cudnn-frontend. Attention is
 *
 *     s = scale q k' + mask, -inf where a causal row sees nothing
 *     p = exp(s - max) / sum(exp(s - max)),  lse = max + log(sum),  out = (factor p z) v
 *
 * with dropout's zeros and ones z, and its gradient is
 *
 *     r = sum(dout out) / factor,  p = exp(s - lse),  dv = (factor p z)' dout
 *     ds = factor scale (dout v' z - r) p,  dk = ds' q,  dq = ds k */
#include "cuda/dnn_plan.h"

#ifdef EK_HAVE_CUDNN

typedef struct attention_graph {
    const ek_cudnn_api *api;
    const ek_dnn_problem *p;
    ek_dnn_graph *graph;
    cudnnDataType_t dtype; /* The heads' dtype. */
    int64_t next;          /* the number of the next tensor without an address */
    cudnnStatus_t status;  /* the first error */
} attention_graph;

/* ---- tensors ---- */

/* Describes tensor `at`. Tensors without an address lie between two operations. */
static void attention_tensor(attention_graph *g, int64_t at, cudnnDataType_t dtype,
                             const int64_t shape[4], const int64_t strides[4])
{
    const bool between = at >= EK_DNN_ADDRESSES, value = at >= EK_DNN_SCALE && !between;
    const int64_t name = at + 1;
    const ek_dnn_attribute attributes[] = {
        {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &dtype},
        {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape},
        {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides},
        {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &name},
        {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &g->p->alignment},
        {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, between, &between},
        {CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, value, &value}};
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = EK_DNN_MAKE(g->api, CUDNN_BACKEND_TENSOR_DESCRIPTOR, attributes,
                                &g->graph->tensors[at]);
}

/* Describes a contiguous tensor of the queries' heads, and returns its number. */
static int64_t attention_dense(attention_graph *g, int64_t at, cudnnDataType_t dtype, int64_t rows,
                               int64_t columns)
{
    const int64_t heads = g->p->heads;
    attention_tensor(g, at, dtype, (const int64_t[]){g->p->batch, heads, rows, columns},
                     (const int64_t[]){heads * rows * columns, rows * columns, columns, 1});
    return at;
}

/* Describe the next tensor between two operations, which has scores or one number for each row, and
 * return its number. */
static int64_t attention_scores(attention_graph *g, cudnnDataType_t dtype)
{
    return attention_dense(g, g->next++, dtype, g->p->rows, g->p->keys);
}
static int64_t attention_line(attention_graph *g)
{
    return attention_dense(g, g->next++, CUDNN_DATA_FLOAT, g->p->rows, 1);
}

/* Describes heads with the strides of heads `like`, and returns their number. `across` exchanges
 * rows and columns. */
static int64_t attention_heads(attention_graph *g, int64_t at, int like, int64_t columns,
                               bool across)
{
    const bool of_keys =
        like == EK_DNN_K || like == EK_DNN_V || like == EK_DNN_DK || like == EK_DNN_DV;
    const int64_t heads = of_keys ? g->p->groups : g->p->heads;
    const int64_t rows = of_keys ? g->p->keys : g->p->rows, *by = g->p->strides[like];
    const int64_t shape[] = {g->p->batch, heads, across ? columns : rows, across ? rows : columns};
    const int64_t strides[] = {by[0], by[1], across ? 1 : by[2], across ? by[2] : 1};
    attention_tensor(g, at, g->dtype, shape, strides);
    return at;
}

/* ---- operations ---- */

/* How operations name their parts. `kinds` and `modes` are 0 where an operation has none. */
typedef struct attention_names {
    cudnnBackendDescriptorType_t operation, kind;
    cudnnBackendAttributeName_t x, b, y, of_kind, type, mode;
    cudnnBackendAttributeType_t mode_type;
    int64_t kinds, modes;
} attention_names;
#define ATTENTION_NAMES(name, x, b, y, kind, type, mode, mode_type, modes)                     \
    {                                                                                          \
        CUDNN_BACKEND_OPERATION_##name##_DESCRIPTOR, CUDNN_BACKEND_##name##_DESCRIPTOR,        \
            CUDNN_ATTR_OPERATION_##name##_##x, CUDNN_ATTR_OPERATION_##name##_##b,              \
            CUDNN_ATTR_OPERATION_##name##_##y, CUDNN_ATTR_OPERATION_##name##_##kind,           \
            CUDNN_ATTR_##name##_##type, CUDNN_ATTR_##name##_##mode, CUDNN_TYPE_##mode_type, 1, \
            modes                                                                              \
    }

static const attention_names pointwise =
    ATTENTION_NAMES(POINTWISE, XDESC, BDESC, YDESC, PW_DESCRIPTOR, MATH_PREC, MODE, POINTWISE_MODE,
                    1);
static const attention_names reduction =
    ATTENTION_NAMES(REDUCTION, XDESC, XDESC, YDESC, DESC, COMP_TYPE, OPERATOR,
                    REDUCTION_OPERATOR_TYPE, 1);
static const attention_names product =
    ATTENTION_NAMES(MATMUL, ADESC, BDESC, CDESC, DESC, COMP_TYPE, COMP_TYPE, DATA_TYPE, 0);
static const attention_names reshape = {.operation = CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
                                        .x = CUDNN_ATTR_OPERATION_RESHAPE_XDESC,
                                        .y = CUDNN_ATTR_OPERATION_RESHAPE_YDESC};

enum { NONE = -1 };

/* Describes y = mode(x, b, t) and returns y. `axis` is the dimension of GEN_INDEX. */
static int64_t attention_operate(attention_graph *g, const attention_names *of, int mode, int64_t x,
                                 int64_t b, int64_t t, int64_t axis, int64_t y)
{
    cudnnBackendDescriptor_t *tensors = g->graph->tensors, *made = g->graph->operations;
    cudnnBackendDescriptor_t *kind = &g->graph->kinds[g->graph->count];
    const cudnnDataType_t type =
        of->modes && mode == (int)CUDNN_POINTWISE_CMP_GE ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT;
    const ek_dnn_attribute how[] = {{of->mode, of->mode_type, of->modes, &mode},
                                    {of->type, CUDNN_TYPE_DATA_TYPE, 1, &type},
                                    {CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis != NONE,
                                     &axis}};
    const ek_dnn_attribute parts[] = {{of->of_kind, CUDNN_TYPE_BACKEND_DESCRIPTOR, of->kinds, kind},
                                      EK_DNN_PART(of->x, &tensors[x]),
                                      {of->b, CUDNN_TYPE_BACKEND_DESCRIPTOR, b != NONE,
                                       b != NONE ? &tensors[b] : NULL},
                                      {CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, t != NONE,
                                       t != NONE ? &tensors[t] : NULL},
                                      EK_DNN_PART(of->y, &tensors[y])};
    if (g->status == CUDNN_STATUS_SUCCESS && of->kinds)
        g->status = EK_DNN_MAKE(g->api, of->kind, how, kind);
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = EK_DNN_MAKE(g->api, of->operation, parts, &made[g->graph->count++]);
    return y;
}

static int64_t attention_pointwise(attention_graph *g, cudnnPointwiseMode_t mode, int64_t x,
                                   int64_t b, int64_t y)
{
    return attention_operate(g, &pointwise, (int)mode, x, b, NONE, NONE, y);
}

/* Returns mode(x, b) for scores x. */
static int64_t attention_apply(attention_graph *g, cudnnPointwiseMode_t mode, int64_t x, int64_t b)
{
    return attention_pointwise(g, mode, x, b, attention_scores(g, CUDNN_DATA_FLOAT));
}

static int64_t attention_reduce(attention_graph *g, cudnnReduceTensorOp_t mode, int64_t x,
                                int64_t y)
{
    return attention_operate(g, &reduction, (int)mode, x, NONE, NONE, NONE, y);
}

static int64_t attention_multiply(attention_graph *g, int64_t a, int64_t b, int64_t c)
{
    return attention_operate(g, &product, 0, a, b, NONE, NONE, c);
}

/* ---- graphs ---- */

/* Describes all tensors with addresses. A graph holds those that its operations name. */
static void attention_describe_operands(attention_graph *g)
{
    const ek_dnn_problem *p = g->p;
    const bool gradient = p->operation == EK_DNN_ATTENTION_GRADIENT;
    const int64_t ones[] = {1, 1, 1, 1}, *by = p->strides[EK_DNN_MASK];
    for (int at = EK_DNN_Q; at <= (gradient ? EK_DNN_DV : EK_DNN_OUT); at++) {
        const bool wide =
            at == EK_DNN_V || at == EK_DNN_OUT || at == EK_DNN_DOUT || at == EK_DNN_DV;
        attention_heads(g, at, at, wide ? p->width : p->depth,
                        at == EK_DNN_K || (at == EK_DNN_V && gradient));
    }
    for (int at = EK_DNN_SCALE; at < EK_DNN_ADDRESSES; at++)
        attention_tensor(g, at, CUDNN_DATA_FLOAT, ones, ones);
    if (p->mask[0])
        attention_tensor(g, EK_DNN_MASK, ek_dnn_type(p->mask_dtype), p->mask,
                         (const int64_t[]){by[0], by[1], by[2], 1});
    attention_dense(g, EK_DNN_LSE, CUDNN_DATA_FLOAT, p->rows, 1);
    attention_dense(g, EK_DNN_DROPOUT, g->dtype, p->rows, p->keys);
    attention_dense(g, EK_DNN_ROW_SUMS, CUDNN_DATA_FLOAT, p->rows, 1);
    attention_dense(g, EK_DNN_DQ_SUMS, CUDNN_DATA_FLOAT, p->rows, p->depth);
}

/* Returns scale q k' + mask. */
static int64_t attention_describe_scores(attention_graph *g)
{
    int64_t s = attention_multiply(g, EK_DNN_Q, EK_DNN_K, attention_scores(g, CUDNN_DATA_FLOAT));
    s = attention_apply(g, CUDNN_POINTWISE_MUL, s, EK_DNN_SCALE);
    return g->p->mask[0] ? attention_apply(g, CUDNN_POINTWISE_ADD, s, EK_DNN_MASK) : s;
}

/* Returns s, with -inf where the key comes after the row if attention is causal. */
static int64_t attention_describe_causal(attention_graph *g, int64_t s)
{
    int64_t index[2]; /* The row's and the key's. */
    if (!g->p->causal)
        return s;
    for (int i = 0; i < 2; i++)
        index[i] = attention_operate(g, &pointwise, (int)CUDNN_POINTWISE_GEN_INDEX, s, NONE, NONE,
                                     2 + i, attention_scores(g, CUDNN_DATA_INT32));
    const int64_t sees = attention_pointwise(g, CUDNN_POINTWISE_CMP_GE, index[0], index[1],
                                             attention_scores(g, CUDNN_DATA_BOOLEAN));
    return attention_operate(g, &pointwise, (int)CUDNN_POINTWISE_BINARY_SELECT, s, EK_DNN_HIDDEN,
                             sees, NONE, attention_scores(g, CUDNN_DATA_FLOAT));
}

static void attention_describe_forward(attention_graph *g)
{
    const bool drops = g->p->drops;
    const int64_t s = attention_describe_causal(g, attention_describe_scores(g));
    const int64_t max = attention_reduce(g, CUDNN_REDUCE_TENSOR_MAX, s, attention_line(g));
    const int64_t away = attention_apply(g, CUDNN_POINTWISE_SUB, s, max);
    const int64_t e = attention_apply(g, CUDNN_POINTWISE_EXP, away, NONE);
    const int64_t sum = attention_reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, attention_line(g));
    const int64_t log = attention_pointwise(g, CUDNN_POINTWISE_LOG, sum, NONE, attention_line(g));
    attention_pointwise(g, CUDNN_POINTWISE_ADD, max, log, EK_DNN_LSE);
    int64_t p = attention_pointwise(g, CUDNN_POINTWISE_DIV, e, sum,
                                    attention_scores(g, drops ? CUDNN_DATA_FLOAT : g->dtype));
    if (drops) {
        p = attention_apply(g, CUDNN_POINTWISE_MUL, p, EK_DNN_FACTOR);
        p = attention_pointwise(g, CUDNN_POINTWISE_MUL, p, EK_DNN_DROPOUT,
                                attention_scores(g, g->dtype));
    }
    attention_multiply(g, p, EK_DNN_V, EK_DNN_OUT);
}

/* Describes dk or dv: the transposed scores times b, summed over the heads of a group. */
static void attention_describe_keys(attention_graph *g, int64_t scores, int64_t b, int64_t columns,
                                    int64_t to)
{
    const ek_dnn_problem *p = g->p;
    const int64_t all = p->rows * p->keys, across = g->next++;
    attention_tensor(g, across, g->dtype, (const int64_t[]){p->batch, p->heads, p->keys, p->rows},
                     (const int64_t[]){p->heads * all, all, 1, p->keys});
    attention_operate(g, &reshape, 0, scores, NONE, NONE, NONE, across);
    const bool sums = p->heads != p->groups;
    const int64_t y = sums ? attention_dense(g, g->next++, g->dtype, p->keys, columns) : to;
    attention_multiply(g, across, b, y);
    if (sums)
        attention_reduce(g, CUDNN_REDUCE_TENSOR_ADD, y, to);
}

static void attention_describe_gradient(attention_graph *g)
{
    const ek_dnn_problem *p = g->p;
    const int64_t both = attention_dense(g, g->next++, CUDNN_DATA_FLOAT, p->rows, p->width);
    attention_pointwise(g, CUDNN_POINTWISE_MUL, EK_DNN_DOUT, EK_DNN_OUT, both);
    const int64_t sum = attention_reduce(g, CUDNN_REDUCE_TENSOR_ADD, both, attention_line(g));
    attention_pointwise(g, CUDNN_POINTWISE_MUL, sum, EK_DNN_KEPT, EK_DNN_ROW_SUMS);
    int64_t s = attention_describe_scores(g);
    s = attention_describe_causal(g, attention_apply(g, CUDNN_POINTWISE_SUB, s, EK_DNN_LSE));
    const int64_t e = attention_apply(g, CUDNN_POINTWISE_EXP, s, NONE);
    int64_t dropped = e;
    if (p->drops) {
        dropped = attention_apply(g, CUDNN_POINTWISE_MUL, e, EK_DNN_DROPOUT);
        dropped = attention_apply(g, CUDNN_POINTWISE_MUL, dropped, EK_DNN_FACTOR);
    }
    attention_describe_keys(g, dropped, EK_DNN_DOUT, p->width, EK_DNN_DV);
    int64_t ds =
        attention_multiply(g, EK_DNN_DOUT, EK_DNN_V, attention_scores(g, CUDNN_DATA_FLOAT));
    if (p->drops)
        ds = attention_apply(g, CUDNN_POINTWISE_MUL, ds, EK_DNN_DROPOUT);
    ds = attention_apply(g, CUDNN_POINTWISE_SUB, ds, EK_DNN_ROW_SUMS);
    ds = attention_apply(g, CUDNN_POINTWISE_MUL, ds, e);
    if (p->drops)
        ds = attention_apply(g, CUDNN_POINTWISE_MUL, ds, EK_DNN_FACTOR);
    ds = attention_apply(g, CUDNN_POINTWISE_MUL, ds, EK_DNN_SCALE);
    attention_describe_keys(g, ds, EK_DNN_Q, p->depth, EK_DNN_DK);
    const int64_t k = attention_heads(g, g->next++, EK_DNN_K, p->depth, false);
    attention_operate(g, &reshape, 0, EK_DNN_K, NONE, NONE, NONE, k);
    attention_multiply(g, ds, k, p->deterministic ? EK_DNN_DQ : EK_DNN_DQ_SUMS);
    if (!p->deterministic)
        attention_pointwise(g, CUDNN_POINTWISE_IDENTITY, EK_DNN_DQ_SUMS, NONE, EK_DNN_DQ);
}

/* Older versions' gradients are wrong for some numbers of keys, which cudnn-frontend pads. */
enum { ATTENTION_VERSION = 91600 };

cudnnStatus_t ek_dnn_attention_describe(const ek_cudnn_api *api, const ek_dnn_problem *problem,
                                        ek_dnn_graph *graph)
{
    if (api->cudnnGetVersion() < ATTENTION_VERSION)
        return CUDNN_STATUS_NOT_SUPPORTED;
    attention_graph g = {.api = api,
                         .p = problem,
                         .graph = graph,
                         .dtype = ek_dnn_type(problem->dtype),
                         .next = EK_DNN_ADDRESSES};
    attention_describe_operands(&g);
    if (problem->operation == EK_DNN_ATTENTION)
        attention_describe_forward(&g);
    else
        attention_describe_gradient(&g);
    return g.status;
}

#endif
