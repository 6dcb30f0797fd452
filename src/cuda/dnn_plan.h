/* dnn_plan.h: who computes a graph of cuDNN's: an engine, chosen once and kept. */
#ifndef EK_CUDA_DNN_PLAN_H
#define EK_CUDA_DNN_PLAN_H

#include "cuda/dnn_graph.h"

#ifdef EK_HAVE_CUDNN

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

/* Addresses of what ek_dnn_problem names: bias NULL if the problem has none, workspace where the
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
