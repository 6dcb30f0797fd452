/* dnn_plan.h: a convolution as a graph of cuDNN's (version 9, its backend interface): one
 * operation, or with a bias two, whose sums in between are f32 and never in memory; and who
 * computes it: an engine, chosen once and kept.
 *
 * cuDNN's descriptors are made, get attributes, and are finalised; then they are constant. Tensors,
 * the convolution (padding, stride, dilation; groups follow from the shapes) and the operations
 * need no device; the graph around them is for a device's handle. */
#ifndef EK_CUDA_DNN_PLAN_H
#define EK_CUDA_DNN_PLAN_H

#include "cuda/dnn.h"
#include "cuda/library.h"

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

/* All NULL before. The plan refers to what it was made from, which is kept. */
typedef struct ek_dnn_plan {
    ek_dnn_graph graph;
    cudnnBackendDescriptor_t config, plan;
    int64_t workspace; /* bytes */
} ek_dnn_plan;

/* The first of cuDNN's suggestions that computes as exactly and as repeatably as the problem asks
 * for, works on this device, and needs at most `most` bytes of workspace. False if there is none
 * (the plan is empty). */
bool ek_dnn_plan_make(const ek_cudnn_api *api, const ek_dnn_target *target,
                      const ek_dnn_problem *problem, int64_t most, ek_dnn_plan *plan);

/* Addresses of what ek_dnn_problem names: bias NULL if the problem has none, workspace if the
 * plan needs none. */
typedef struct ek_dnn_memory {
    void *x, *w, *y, *bias, *workspace;
} ek_dnn_memory;

/* Issues the work to the handle's stream. */
cudnnStatus_t ek_dnn_plan_run(const ek_cudnn_api *api, cudnnHandle_t handle,
                              const ek_dnn_plan *plan, const ek_dnn_memory *memory);

/* What a plan is run with. Free it, also if it failed. */
cudnnStatus_t ek_dnn_pack(const ek_cudnn_api *api, const ek_dnn_memory *memory,
                          cudnnBackendDescriptor_t *pack);

void ek_dnn_plan_free(const ek_cudnn_api *api, ek_dnn_plan *plan);

/* Whether an engine with these notes may compute the problem. */
bool ek_dnn_notes_allow(const ek_dnn_problem *problem, const cudnnBackendNumericalNote_t *notes,
                        int64_t count);
#endif

#endif
