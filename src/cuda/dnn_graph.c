/* dnn_graph.c: see dnn_graph.h. */
#include "cuda/dnn_graph.h"

#ifdef EK_HAVE_CUDNN

cudnnStatus_t ek_dnn_set(const ek_cudnn_api *api, cudnnBackendDescriptor_t descriptor,
                         cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                         int64_t count, const void *values)
{
    return api->cudnnBackendSetAttribute(descriptor, name, type, count, values);
}

/* ---- tensors ---- */

static cudnnStatus_t make_tensor(const ek_cudnn_api *api, const ek_dnn_problem *p, int64_t name,
                                 const int64_t *shape, ek_dnn_graph *graph)
{
    cudnnBackendDescriptor_t *tensor = &graph->tensors[name - 1];
    bool between = name == EK_DNN_SUMS, narrow = p->dtype == EK_BF16 && !between;
    cudnnDataType_t dtype = narrow ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    int64_t ndim = 2 + p->dims, strides[5];
    ek_dnn_strides((int)ndim, shape, (ek_memory_format)p->format, strides);
    EK_DNN_TRY(api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, tensor));
    EK_DNN_TRY(
        ek_dnn_set(api, *tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &dtype));
    EK_DNN_TRY(
        ek_dnn_set(api, *tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, ndim, shape));
    EK_DNN_TRY(
        ek_dnn_set(api, *tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, ndim, strides));
    EK_DNN_TRY(ek_dnn_set(api, *tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &name));
    EK_DNN_TRY(ek_dnn_set(api, *tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1,
                          &p->alignment));
    if (between)
        EK_DNN_TRY(ek_dnn_set(api, *tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1,
                              &between));
    return api->cudnnBackendFinalize(*tensor);
}

static cudnnStatus_t make_tensors(const ek_cudnn_api *api, const ek_dnn_problem *p,
                                  ek_dnn_graph *graph)
{
    const int64_t bias[5] = {1, p->w[0], 1, 1, 1};
    EK_DNN_TRY(make_tensor(api, p, EK_DNN_X, p->x, graph));
    EK_DNN_TRY(make_tensor(api, p, EK_DNN_W, p->w, graph));
    EK_DNN_TRY(make_tensor(api, p, EK_DNN_Y, p->y, graph));
    if (!p->bias)
        return CUDNN_STATUS_SUCCESS;
    EK_DNN_TRY(make_tensor(api, p, EK_DNN_BIAS, bias, graph));
    return make_tensor(api, p, EK_DNN_SUMS, p->y, graph);
}

/* ---- the convolution ---- */

static cudnnStatus_t make_convolution(const ek_cudnn_api *api, const ek_dnn_problem *p,
                                      cudnnBackendDescriptor_t *convolution)
{
    cudnnDataType_t computed = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const struct {
        cudnnBackendAttributeName_t name;
        const int64_t *values;
    } sizes[] = {
        {CUDNN_ATTR_CONVOLUTION_DILATIONS, p->dilation},
        {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, p->stride},
        {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, p->before},
        {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, p->after},
    };
    EK_DNN_TRY(
        api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, convolution));
    EK_DNN_TRY(ek_dnn_set(api, *convolution, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64,
                          1, &p->dims));
    EK_DNN_TRY(ek_dnn_set(api, *convolution, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE,
                          1, &computed));
    EK_DNN_TRY(ek_dnn_set(api, *convolution, CUDNN_ATTR_CONVOLUTION_CONV_MODE,
                          CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        EK_DNN_TRY(ek_dnn_set(api, *convolution, sizes[i].name, CUDNN_TYPE_INT64, p->dims,
                              sizes[i].values));
    return api->cudnnBackendFinalize(*convolution);
}

/* ---- the operations ---- */

/* What the three operations call their parts. */
typedef struct names {
    cudnnBackendDescriptorType_t descriptor;
    cudnnBackendAttributeName_t x, w, y, convolution, alpha, beta;
} names;

static const names operations[] = {
    [EK_DNN_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [EK_DNN_INPUT_GRADIENT] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [EK_DNN_WEIGHT_GRADIENT] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

typedef struct part {
    cudnnBackendAttributeName_t name;
    const cudnnBackendDescriptor_t *descriptor;
} part;

static cudnnStatus_t set_parts(const ek_cudnn_api *api, cudnnBackendDescriptor_t operation,
                               const part *parts, int count)
{
    for (int i = 0; i < count; i++)
        EK_DNN_TRY(ek_dnn_set(api, operation, parts[i].name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                              parts[i].descriptor));
    return CUDNN_STATUS_SUCCESS;
}

/* To y, or to the sums that the bias is added to. */
static cudnnStatus_t make_operation(const ek_cudnn_api *api, const ek_dnn_problem *p,
                                    ek_dnn_graph *graph)
{
    /* Factors are of the type that is computed in, f32 for bf16 too. */
    const float alpha = 1, beta = 0;
    const names *of = &operations[p->operation];
    const cudnnBackendDescriptor_t *tensors = graph->tensors;
    const part parts[] = {{of->convolution, &graph->convolution},
                          {of->x, &tensors[EK_DNN_X - 1]},
                          {of->w, &tensors[EK_DNN_W - 1]},
                          {of->y, &tensors[(p->bias ? EK_DNN_SUMS : EK_DNN_Y) - 1]}};
    cudnnBackendDescriptor_t *operation = &graph->operations[0];
    EK_DNN_TRY(api->cudnnBackendCreateDescriptor(of->descriptor, operation));
    EK_DNN_TRY(set_parts(api, *operation, parts, sizeof parts / sizeof *parts));
    EK_DNN_TRY(ek_dnn_set(api, *operation, of->alpha, CUDNN_TYPE_FLOAT, 1, &alpha));
    EK_DNN_TRY(ek_dnn_set(api, *operation, of->beta, CUDNN_TYPE_FLOAT, 1, &beta));
    return api->cudnnBackendFinalize(*operation);
}

/* y = sums + bias. (Of an input gradient no engine adds a bias.) */
static cudnnStatus_t make_addition(const ek_cudnn_api *api, ek_dnn_graph *graph)
{
    const cudnnPointwiseMode_t mode = CUDNN_POINTWISE_ADD;
    const cudnnDataType_t computed = CUDNN_DATA_FLOAT;
    const cudnnBackendDescriptor_t *tensors = graph->tensors;
    const part parts[] = {
        {CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &graph->addition},
        {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &tensors[EK_DNN_SUMS - 1]},
        {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &tensors[EK_DNN_BIAS - 1]},
        {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &tensors[EK_DNN_Y - 1]},
    };
    cudnnBackendDescriptor_t *addition = &graph->addition, *operation = &graph->operations[1];
    EK_DNN_TRY(api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, addition));
    EK_DNN_TRY(
        ek_dnn_set(api, *addition, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode));
    EK_DNN_TRY(ek_dnn_set(api, *addition, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1,
                          &computed));
    EK_DNN_TRY(api->cudnnBackendFinalize(*addition));
    EK_DNN_TRY(
        api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, operation));
    EK_DNN_TRY(set_parts(api, *operation, parts, sizeof parts / sizeof *parts));
    return api->cudnnBackendFinalize(*operation);
}

cudnnStatus_t ek_dnn_graph_describe(const ek_cudnn_api *api, const ek_dnn_problem *problem,
                                    ek_dnn_graph *graph)
{
    EK_DNN_TRY(make_tensors(api, problem, graph));
    EK_DNN_TRY(make_convolution(api, problem, &graph->convolution));
    EK_DNN_TRY(make_operation(api, problem, graph));
    return problem->bias ? make_addition(api, graph) : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t ek_dnn_graph_finish(const ek_cudnn_api *api, const ek_dnn_target *target,
                                  ek_dnn_graph *graph)
{
    EK_DNN_TRY(
        api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &graph->graph));
    EK_DNN_TRY(ek_dnn_set(api, graph->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS,
                          CUDNN_TYPE_BACKEND_DESCRIPTOR, graph->operations[1] ? 2 : 1,
                          graph->operations));
    if (target->handle)
        EK_DNN_TRY(ek_dnn_set(api, graph->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE,
                              CUDNN_TYPE_HANDLE, 1, &target->handle));
    return api->cudnnBackendFinalize(graph->graph);
}

void ek_dnn_graph_free(const ek_cudnn_api *api, ek_dnn_graph *graph)
{
    cudnnBackendDescriptor_t all[] = {graph->graph,      graph->operations[1], graph->operations[0],
                                      graph->addition,   graph->convolution,   graph->tensors[0],
                                      graph->tensors[1], graph->tensors[2],    graph->tensors[3],
                                      graph->tensors[4]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i])
            (void)api->cudnnBackendDestroyDescriptor(all[i]);
    *graph = (ek_dnn_graph){0};
}

#endif
