/* dnn_graph.h: a convolution as a graph of cuDNN's (version 9, its backend interface): one
 * operation, or with a bias two, whose sums in between are f32 and never in memory.
 *
 * cuDNN's descriptors are made, get attributes, and are finalised; then they are constant. Tensors,
 * the convolution (padding, stride, dilation; groups follow from the shapes) and the operations
 * need no device; the graph around them is for a device's handle. */
#ifndef EK_CUDA_DNN_GRAPH_H
#define EK_CUDA_DNN_GRAPH_H

#include "cuda/dnn_api.h"
#include "cuda/dnn_problem.h"

#ifdef EK_HAVE_CUDNN

#define EK_DNN_TRY(call)                        \
    do {                                        \
        cudnnStatus_t dnn_status = (call);      \
        if (dnn_status != CUDNN_STATUS_SUCCESS) \
            return dnn_status;                  \
    } while (0)

/* The tensors' names in a graph and in what it is run with; the sums are only in the graph. */
enum { EK_DNN_X = 1, EK_DNN_W, EK_DNN_Y, EK_DNN_BIAS, EK_DNN_SUMS, EK_DNN_TENSORS = 5 };

/* All NULL before. */
typedef struct ek_dnn_graph {
    cudnnBackendDescriptor_t tensors[EK_DNN_TENSORS]; /* by name - 1 */
    cudnnBackendDescriptor_t convolution, addition;   /* what is computed */
    cudnnBackendDescriptor_t operations[2], graph;    /* with which tensors */
} ek_dnn_graph;

/* What plans are made for: the handle of a device, or, without a GPU, the finalised description of
 * one, which cuDNN has since 9.8. The other is NULL. */
#if CUDNN_VERSION >= 90800
#define EK_DNN_WITH_PROPERTIES
#endif
typedef struct ek_dnn_target {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t properties;
} ek_dnn_target;

/* Sets an attribute to an array of `count` values. */
cudnnStatus_t ek_dnn_set(const ek_cudnn_api *api, cudnnBackendDescriptor_t descriptor,
                         cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                         int64_t count, const void *values);

/* Tensors, convolution and operations. What a failing call has made is there still: free it. */
cudnnStatus_t ek_dnn_graph_describe(const ek_cudnn_api *api, const ek_dnn_problem *problem,
                                    ek_dnn_graph *graph);
/* The graph itself. */
cudnnStatus_t ek_dnn_graph_finish(const ek_cudnn_api *api, const ek_dnn_target *target,
                                  ek_dnn_graph *graph);
void ek_dnn_graph_free(const ek_cudnn_api *api, ek_dnn_graph *graph);
#endif

#endif
