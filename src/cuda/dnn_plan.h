/* dnn_plan.h: a problem as a graph of cuDNN 9's backend interface, and the engine that computes the
 * graph, which is chosen once and kept. A convolution's graph has one operation; with a bias it has
 * two, and the sums between them are f32 and never in memory. dnn_attention.c has attention's.
 *
 * Descriptors of cuDNN are made, get attributes, and are finalised; then they are constant.
 * Tensors, kinds of operation (a convolution's kind: padding, stride, dilation; groups follow from
 * the shapes) and operations need no device. The graph is made for a device's handle. */
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

/* Returns cuDNN's type of a dtype, which is EK_F32, EK_BF16 or EK_F16. */
static inline cudnnDataType_t ek_dnn_type(int64_t dtype)
{
    return dtype == EK_BF16  ? CUDNN_DATA_BFLOAT16
           : dtype == EK_F16 ? CUDNN_DATA_HALF
                             : CUDNN_DATA_FLOAT;
}

/* A convolution's tensors. Sums have no address. The identifier of a tensor is its number here or
 * in dnn.h, plus 1. */
enum { EK_DNN_X, EK_DNN_W, EK_DNN_Y, EK_DNN_BIAS, EK_DNN_SUMS };

/* The most tensors and operations of a graph. */
enum { EK_DNN_TENSORS = 48, EK_DNN_OPERATIONS = 32 };

/* The descriptors of a graph, owned. All are NULL at first. */
typedef struct ek_dnn_graph {
    cudnnBackendDescriptor_t tensors[EK_DNN_TENSORS]; /* by number */
    /* the operations on the tensors, their kinds (NULL: an operation without), and the graph */
    cudnnBackendDescriptor_t operations[EK_DNN_OPERATIONS], kinds[EK_DNN_OPERATIONS], graph;
    int count; /* The number of operations. */
} ek_dnn_graph;

/* An attribute: an array of `count` values. With count 0 it isn't set. */
typedef struct ek_dnn_attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    const void *values;
} ek_dnn_attribute;
#define EK_DNN_PART(name, descriptor)                      \
    {                                                      \
        name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, descriptor \
    }

/* Makes, describes and finalises a descriptor. *made may be set even if this fails. */
cudnnStatus_t ek_dnn_make(const ek_cudnn_api *api, cudnnBackendDescriptorType_t kind,
                          const ek_dnn_attribute *attributes, size_t count,
                          cudnnBackendDescriptor_t *made);
#define EK_DNN_MAKE(api, kind, attributes, made) \
    ek_dnn_make(api, kind, attributes, sizeof attributes / sizeof *attributes, made)

/* The GPU that plans are made for: the handle of a device, or (since cuDNN 9.8) the finalised
 * description of a GPU, which needn't be present. The other member is NULL. */
#if CUDNN_VERSION >= 90800
#define EK_DNN_WITH_PROPERTIES
#endif
typedef struct ek_dnn_target {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t properties;
} ek_dnn_target;

/* Makes tensors, kinds and operations. The graph must be freed even if this fails. */
cudnnStatus_t ek_dnn_graph_describe(const ek_cudnn_api *api, const ek_dnn_problem *problem,
                                    ek_dnn_graph *graph);
/* Makes the descriptor of the graph. */
cudnnStatus_t ek_dnn_graph_finish(const ek_cudnn_api *api, const ek_dnn_target *target,
                                  ek_dnn_graph *graph);
/* Does what ek_dnn_graph_describe does for attention. */
cudnnStatus_t ek_dnn_attention_describe(const ek_cudnn_api *api, const ek_dnn_problem *problem,
                                        ek_dnn_graph *graph);
void ek_dnn_graph_free(const ek_cudnn_api *api, ek_dnn_graph *graph);

enum { EK_DNN_TIMED = 8 }; /* the most plans of a problem that are timed */

/* Why a suggestion is not taken. */
typedef enum ek_dnn_refusal {
    EK_DNN_ALLOWED,
    EK_DNN_TENSOR_CORES,     /* tensor cores would round f32 */
    EK_DNN_NONDETERMINISTIC, /* repeatable results are requested */
    EK_DNN_IMPRECISE,        /* sums or transforms lose digits */
    EK_DNN_NOT_SUPPORTED,    /* not supported by this GPU, or not for this problem */
    EK_DNN_WORKSPACE,        /* too much workspace */
    EK_DNN_REFUSALS
} ek_dnn_refusal;

/* How long an engine took. */
typedef struct ek_dnn_time {
    int64_t engine;
    float milliseconds; /* the best of a few runs; negative: the plan failed, or memory was short */
} ek_dnn_time;

/* A plan with all that it refers to, owned. Descriptors are NULL at first. */
typedef struct ek_dnn_plan {
    ek_dnn_graph graph;
    cudnnBackendDescriptor_t config, plan;
    int64_t workspace;            /* bytes */
    int64_t engine;               /* cuDNN's number of the engine */
    uint64_t notes;               /* bit n: the engine has cudnnBackendNumericalNote_t n */
    int refused[EK_DNN_REFUSALS]; /* refused suggestions, by reason */
    int timed;                    /* elements of `times` */
    ek_dnn_time times[EK_DNN_TIMED];
} ek_dnn_plan;

static inline bool ek_dnn_plan_has(const ek_dnn_plan *plan, cudnnBackendNumericalNote_t note)
{
    return plan->notes >> note & 1;
}

/* Makes a plan of the first of cuDNN's suggestions that is as exact and as repeatable as the
 * problem requires, works on this GPU, and needs at most `most` bytes of workspace. If tensor cores
 * may be used and there are enough channels, suggestions that use tensor cores are preferred among
 * the first few. Returns false if there is no plan; *plan then holds only the reasons of refusals.
 */
bool ek_dnn_plan_make(const ek_cudnn_api *api, const ek_dnn_target *target,
                      const ek_dnn_problem *problem, int64_t most, ek_dnn_plan *plan);

/* Makes up to `room` plans, of which the first is that of ek_dnn_plan_make. All refer to the first
 * plan's graph. Returns how many there are. */
int ek_dnn_plans_make(const ek_cudnn_api *api, const ek_dnn_target *target,
                      const ek_dnn_problem *problem, int64_t most, ek_dnn_plan *plans, int room);
/* Moves plan `kept` to *plan, together with the graph, and frees the other plans. */
void ek_dnn_plans_keep(const ek_cudnn_api *api, ek_dnn_plan *plans, int count, int kept,
                       ek_dnn_plan *plan);
void ek_dnn_plans_free(const ek_cudnn_api *api, ek_dnn_plan *plans, int count);

/* The addresses of a problem's tensors by number, NULL where the problem has none, and of
 * the workspace, NULL if the plan needs none. Values lie on the host. */
typedef struct ek_dnn_memory {
    void *tensors[EK_DNN_ADDRESSES];
    void *workspace;
} ek_dnn_memory;

/* Issues the plan to the handle's stream. */
cudnnStatus_t ek_dnn_plan_run(const ek_cudnn_api *api, cudnnHandle_t handle,
                              const ek_dnn_plan *plan, const ek_dnn_memory *memory);

/* Replaces *plan by the fastest of the first EK_DNN_TIMED plans that ek_dnn_plans_make makes. Each
 * plan reads the tensors in `memory` and writes to scratch memory. The scratch memory and the
 * plans' workspaces are freed before this returns. A plan that fails, or for which memory is short,
 * is skipped. Returns 1; 0 if no plan could be timed, with *plan unchanged; negative on errors of
 * the GPU. Waits for the GPU. The device's lock is held. */
int ek_dnn_plan_choose_fastest(ek_dev *dev, const ek_cudnn_api *api, cudnnHandle_t handle,
                               const ek_dnn_problem *problem, int64_t most,
                               const ek_dnn_memory *memory, ek_dnn_plan *plan);

/* Makes the descriptor of the addresses in `memory`. It must be freed even if this fails. */
cudnnStatus_t ek_dnn_pack(const ek_cudnn_api *api, const ek_dnn_memory *memory,
                          cudnnBackendDescriptor_t *pack);

void ek_dnn_plan_free(const ek_cudnn_api *api, ek_dnn_plan *plan);

/* Returns the reason why an engine with these notes may not compute the problem; EK_DNN_ALLOWED if
 * it may. */
ek_dnn_refusal ek_dnn_notes_refuse(const ek_dnn_problem *problem,
                                   const cudnnBackendNumericalNote_t *notes, int64_t count);

/* Writes the problem and its plan in a line: operation, sizes, engine, notes, workspace, refusals,
 * times. If the plan has no descriptor, the line says "no engine". Returns `text`. */
enum { EK_DNN_TEXT = 1200 };
const char *ek_dnn_plan_text(const ek_dnn_problem *problem, const ek_dnn_plan *plan,
                             char text[EK_DNN_TEXT]);
#endif

#endif
