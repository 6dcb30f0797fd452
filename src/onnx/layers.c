/* layers.c: how products, reductions, normalisation and attention are written. */
#include <math.h>
#include <string.h>

#include "onnx/graph.h"
#include "ops/attention_second.h"
#include "ops/attributes.h"
#include "ops/norm.h"

/* ---- products ---- */

ROW(layer_matmul)
{
    return NODE(TYPE, IN(X, ek_onnx_input(g, r, 1)));
}

ROW(layer_linear)
{
    const char *y =
        NODE("Gemm", IN(X, ek_onnx_input(g, r, 1), ek_onnx_input(g, r, 2)), INT("transB", 1));
    return TYPE ? NODE(TYPE, IN(y)) : y;
}

ROW(layer_softmax)
{
    return NODE(TYPE, IN(X), INT("axis", ((const ek_softmax_attributes *)r->attributes)->dim));
}

/* ---- reductions ---- */

/* Reduces the dimensions in a mask to size 1. Dimensions are an input of ReduceSum and, from opset
 * 18 on, of all reductions; else an attribute. */
static const char *layer_reduce_mask(ek_onnx_graph *g, const char *type, const char *x,
                                     unsigned mask)
{
    int64_t axes[EK_MAX_DIMS];
    int count = 0;
    for (int d = 0; d < EK_MAX_DIMS; d++)
        if (mask >> d & 1)
            axes[count++] = d;
    if (count == 0)
        return NODE("Identity", IN(x));
    if (g->opset >= 18 || strcmp(type, "ReduceSum") == 0)
        return NODE(type, IN(x, ek_onnx_integers(g, axes, count)), INT("keepdims", 1));
    return NODE(type, IN(x), INTS("axes", axes, count), INT("keepdims", 1));
}

/* Returns the mask of the dimensions that have another size in the shape `reduced`. */
static unsigned layer_reduced(const ek_tensor *x, const int64_t *reduced)
{
    unsigned mask = 0;
    for (int d = 0; d < x->ndim && d < EK_MAX_DIMS; d++)
        mask |= (unsigned)(x->shape[d] != reduced[d]) << d;
    return mask;
}

ROW(layer_reduce)
{
    const ek_tensor *x = ek_onnx_input_tensor(g, r, 0);
    return layer_reduce_mask(g, TYPE, X, layer_reduced(x, ek_onnx_output_tensor(g, r, 0)->shape));
}

/* Sums of integers are i64. */
ROW(layer_sum)
{
    const ek_tensor *x = ek_onnx_input_tensor(g, r, 0), *y = ek_onnx_output_tensor(g, r, 0);
    const char *from =
        x->dtype == y->dtype ? X : NODE("Cast", IN(X), INT("to", ek_onnx_dtype(y->dtype)));
    const unsigned mask = layer_reduced(x, ((const ek_sum_attributes *)r->attributes)->kept.dims);
    const char *sum = layer_reduce_mask(g, TYPE, from, mask);
    return x->ndim == y->ndim ? sum : NODE("Reshape", IN(sum, ek_onnx_target(g, r->outputs[0])));
}

ROW(layer_variance)
{
    const ek_variance_attributes *a = r->attributes;
    const char *mean = layer_reduce_mask(g, "ReduceMean", X, a->mask);
    const char *away = NODE("Sub", IN(X, mean));
    return NODE("Mul",
                IN(layer_reduce_mask(g, "ReduceSumSquare", away, a->mask), NUMBER(a->share)));
}

/* ---- normalisation ---- */

/* Returns the weight (input 1) or bias (input 2). Without one, returns a tensor of `otherwise`. */
static const char *layer_affine(ek_onnx_graph *g, const ek_onnx_record *r, int i, ek_shape shape,
                                double otherwise)
{
    return r->inputs[i] >= 0
               ? ek_onnx_input(g, r, i)
               : ek_onnx_filled(g, ek_dtype_wide(ek_onnx_input_tensor(g, r, 0)->dtype), shape,
                                otherwise);
}

/* The saved mean is the output of a record whose operands are the running statistics. */
ROW(layer_batch_norm)
{
    const ek_norm_attributes *a = r->attributes;
    const ek_shape channels = EK_SHAPE(ek_onnx_input_tensor(g, r, 0)->shape[1]);
    const int maker = g->trace->values[r->saved[2]].record;
    if (!a->constant || maker < 0)
        return ek_onnx_refuse(g, r,
                              "normalises by the statistics of its batch, or by constants, "
                              "for which ONNX has no operation in evaluation");
    const ek_onnx_record *running = &g->trace->records[maker];
    const char *y =
        NODE("BatchNormalization",
             IN(X, layer_affine(g, r, 1, channels, 1), layer_affine(g, r, 2, channels, 0),
                ek_onnx_input(g, running, 0), ek_onnx_input(g, running, 1)),
             FLOAT("epsilon", a->eps));
    return TYPE ? NODE(TYPE, IN(y)) : y;
}

/* Writes nothing: layer_batch_norm reads the operands. */
ROW(layer_statistics)
{
    (void)g, (void)r;
    return "";
}

/* Normalises groups as if they were channels, then applies weight and bias. */
static const char *layer_grouped(ek_onnx_graph *g, const ek_onnx_record *r)
{
    const ek_norm_attributes *a = r->attributes;
    const ek_tensor *x = ek_onnx_input_tensor(g, r, 0);
    int64_t channels[EK_MAX_DIMS] = {x->shape[1]};
    for (int d = 1; d < x->ndim - 1; d++)
        channels[d] = 1;
    const char *groups =
        NODE("Reshape", IN(X, ek_onnx_integers(g, (const int64_t[]){0, a->groups, -1}, 3)));
    const char *y = NODE("InstanceNormalization",
                         IN(groups, ek_onnx_filled(g, x->dtype, EK_SHAPE(a->groups), 1),
                            ek_onnx_filled(g, x->dtype, EK_SHAPE(a->groups), 0)),
                         FLOAT("epsilon", a->eps));
    y = NODE("Reshape", IN(y, ek_onnx_target(g, r->outputs[0])));
    for (int i = 1; i < 3; i++)
        if (r->inputs[i] >= 0)
            y = NODE(i == 1 ? "Mul" : "Add",
                     IN(y, NODE("Reshape", IN(ek_onnx_input(g, r, i),
                                              ek_onnx_integers(g, channels, x->ndim - 1)))));
    return y;
}

/* Layer norm is over all dimensions after the first; group norm with a group for each channel is
 * instance norm. */
ROW(layer_group_norm)
{
    const ek_norm_attributes *a = r->attributes;
    const ek_tensor *x = ek_onnx_input_tensor(g, r, 0);
    ek_shape shape = {.ndim = a->element ? x->ndim - 1 : 1};
    memcpy(shape.dims, x->shape + 1, sizeof shape.dims - sizeof *shape.dims);
    if (!a->element && (a->groups != x->shape[1] || x->ndim < 3))
        return layer_grouped(g, r);
    return NODE(a->element ? "LayerNormalization" : "InstanceNormalization",
                IN(X, layer_affine(g, r, 1, shape, 1), layer_affine(g, r, 2, shape, 0)),
                FLOAT("epsilon", a->eps), a->element ? INT("axis", 1) : (ek_onnx_attribute){0});
}

/* Returns x / sqrt(mean(x^2) + eps), times the weight if there is one. */
ROW(layer_rms_norm)
{
    const char *mean = layer_reduce_mask(g, "ReduceMean", NODE("Mul", IN(X, X)), 2);
    const char *root =
        NODE("Sqrt", IN(NODE("Add", IN(mean, NUMBER(*(const double *)r->attributes)))));
    const char *y = NODE("Div", IN(X, root));
    return r->inputs[1] < 0 ? y : NODE("Mul", IN(y, ek_onnx_input(g, r, 1)));
}

/* ---- attention ---- */

/* Returns a mask (rows, keys) that is added to scores: -inf for keys after the row, else 0. */
static const char *layer_causal_mask(ek_onnx_graph *g, ek_dtype dtype, int64_t rows, int64_t keys)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *mask = ek_zeros(EK_SHAPE(rows, keys));
    float *number = mask ? ek_tensor_address(mask) : NULL;
    for (int64_t i = 0; mask && i < rows; i++)
        for (int64_t k = i + 1; k < keys; k++)
            number[i * keys + k] = -INFINITY;
    const char *name = ek_onnx_constant(g, ek_onnx_text(g, "causal_%d", g->text_count),
                                        mask ? ek_to_dtype(mask, dtype) : NULL);
    ek_scope_end(&scope);
    return name;
}

/* Repeats each group of keys or values for the heads of the group. */
static const char *layer_repeated(ek_onnx_graph *g, const ek_onnx_record *r, int i, int64_t heads)
{
    const ek_tensor *x = ek_onnx_input_tensor(g, r, i);
    const int64_t times[] = {1, 1, heads / x->shape[1], 1, 1};
    const int64_t joined[] = {0, heads, x->shape[2], x->shape[3]};
    if (x->shape[1] == heads)
        return ek_onnx_input(g, r, i);
    const char *wide = NODE("Unsqueeze", IN(ek_onnx_input(g, r, i), ONE(2)));
    wide = NODE("Expand", IN(wide, ek_onnx_integers(g, times, 5)));
    return NODE("Reshape", IN(wide, ek_onnx_integers(g, joined, 4)));
}

/* Rows whose keys are all masked give 0, where softmax gives NaN. */
ROW(layer_attention)
{
    const ek_attention_attributes *a = r->attributes;
    const ek_tensor *q = ek_onnx_input_tensor(g, r, 0), *k = ek_onnx_input_tensor(g, r, 1);
    const char *mask = ek_onnx_saved(g, r, 3), *keys = layer_repeated(g, r, 1, q->shape[1]);
    keys = NODE("Transpose", IN(keys), INTS("perm", ((const int64_t[]){0, 1, 3, 2}), 4));
    const char *scores = NODE("MatMul", IN(NODE("Mul", IN(X, NUMBER(a->scale))), keys));
    if (a->causal)
        scores = NODE("Add", IN(scores, layer_causal_mask(g, q->dtype, q->shape[2], k->shape[2])));
    if (mask[0])
        scores = NODE("Add", IN(scores, mask));
    const char *p = NODE("Softmax", IN(scores), INT("axis", 3));
    if (mask[0])
        p = NODE("Where", IN(NODE("IsNaN", IN(p)), NUMBER(0), p));
    return NODE("MatMul", IN(p, layer_repeated(g, r, 2, q->shape[1])));
}

/* Returns every second element of the last dimension, or one half. */
static const char *layer_rotary_half(ek_onnx_graph *g, const ek_onnx_record *r, int64_t which)
{
    const bool halves = ((const ek_rotary_attributes *)r->attributes)->pairs == EK_ROTARY_HALVES;
    const int64_t size =
        ek_onnx_input_tensor(g, r, 0)->shape[ek_onnx_input_tensor(g, r, 0)->ndim - 1];
    const int64_t start = halves ? which * size / 2 : which, end = halves ? start + size / 2 : size;
    return NODE("Slice", IN(X, ONE(start), ONE(end), ONE(-1), ONE(halves ? 1 : 2)));
}

/* Cosine and sine are saved. */
ROW(layer_rotary)
{
    const bool halves = ((const ek_rotary_attributes *)r->attributes)->pairs == EK_ROTARY_HALVES;
    const char *cosine = ek_onnx_saved(g, r, 0), *sine = ek_onnx_saved(g, r, 1);
    const char *a = layer_rotary_half(g, r, 0), *b = layer_rotary_half(g, r, 1);
    const char *first = NODE("Sub", IN(NODE("Mul", IN(a, cosine)), NODE("Mul", IN(b, sine))));
    const char *second = NODE("Add", IN(NODE("Mul", IN(b, cosine)), NODE("Mul", IN(a, sine))));
    if (halves)
        return NODE("Concat", IN(first, second), INT("axis", -1));
    first = NODE("Unsqueeze", IN(first, ONE(-1)));
    second = NODE("Unsqueeze", IN(second, ONE(-1)));
    return NODE("Reshape", IN(NODE("Concat", IN(first, second), INT("axis", -1)),
                              ek_onnx_target(g, r->outputs[0])));
}

/* ---- the table ---- */

const ek_onnx_row ek_onnx_layers[] = {{"matmul", layer_matmul, "MatMul", 0, false},
                                      {"linear", layer_linear, NULL, 0, false},
                                      {"linear_relu", layer_linear, "Relu", 0, false},
                                      {"softmax", layer_softmax, "Softmax", 0, false},
                                      {"log_softmax", layer_softmax, "LogSoftmax", 0, false},
                                      {"sum", layer_sum, "ReduceSum", 0, false},
                                      {"amax", layer_reduce, "ReduceMax", 0, false},
                                      {"amin", layer_reduce, "ReduceMin", 0, false},
                                      {"max", layer_reduce, "ReduceMax", 0, false},
                                      {"min", layer_reduce, "ReduceMin", 0, false},
                                      {"logsumexp", layer_reduce, "ReduceLogSumExp", 0, false},
                                      {"sum_squares", layer_reduce, "ReduceSumSquare", 0, false},
                                      {"var", layer_variance, NULL, 0, false},
                                      {"batch_norm", layer_batch_norm, NULL, 1U << 2, false},
                                      {"batch_norm_relu", layer_batch_norm, "Relu", 1U << 2, false},
                                      {"running_statistics", layer_statistics, NULL, 0, false},
                                      {"group_norm", layer_group_norm, NULL, 0, false},
                                      {"rms_norm", layer_rms_norm, NULL, 0, false},
                                      {"attention", layer_attention, NULL, 1U << 3, false},
                                      {"rotary", layer_rotary, NULL, 3, false},
                                      {0}};
