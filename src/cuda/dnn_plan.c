/* dnn_plan.c: see dnn_plan.h. */
#include "cuda/dnn_plan.h"

#include <string.h>

#include "kernels/stage.h"

#ifdef EK_HAVE_CUDNN

/* ---- the graph: its descriptors ---- */

cudnnStatus_t ek_dnn_make(const ek_cudnn_api *api, cudnnBackendDescriptorType_t kind,
                          const ek_dnn_attribute *attributes, size_t count,
                          cudnnBackendDescriptor_t *made)
{
    EK_DNN_TRY(api->cudnnBackendCreateDescriptor(kind, made));
    for (size_t i = 0; i < count; i++)
        if (attributes[i].count > 0)
            EK_DNN_TRY(api->cudnnBackendSetAttribute(*made, attributes[i].name, attributes[i].type,
                                                     attributes[i].count, attributes[i].values));
    return api->cudnnBackendFinalize(*made);
}

static cudnnStatus_t graph_make_tensor(const ek_cudnn_api *api, const ek_dnn_problem *p, int64_t at,
                                       const int64_t *shape, ek_dnn_graph *graph)
{
    bool between = at == EK_DNN_SUMS;
    const cudnnDataType_t dtype = ek_dnn_type(between ? EK_F32 : p->dtype);
    int64_t name = at + 1, ndim = 2 + p->dims, strides[5];
    ek_strides_along((int)ndim, shape, ek_axis_of((ek_memory_format)p->format, (int)ndim), strides);
    const ek_dnn_attribute attributes[] = {
        {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &dtype},
        {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, ndim, shape},
        {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, ndim, strides},
        {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &name},
        {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &p->alignment},
        {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, between, &between}};
    return EK_DNN_MAKE(api, CUDNN_BACKEND_TENSOR_DESCRIPTOR, attributes, &graph->tensors[at]);
}

static cudnnStatus_t graph_make_tensors(const ek_cudnn_api *api, const ek_dnn_problem *p,
                                        ek_dnn_graph *graph)
{
    const int64_t bias[5] = {1, p->w[0], 1, 1, 1};
    EK_DNN_TRY(graph_make_tensor(api, p, EK_DNN_X, p->x, graph));
    EK_DNN_TRY(graph_make_tensor(api, p, EK_DNN_W, p->w, graph));
    EK_DNN_TRY(graph_make_tensor(api, p, EK_DNN_Y, p->y, graph));
    if (!p->bias)
        return CUDNN_STATUS_SUCCESS;
    EK_DNN_TRY(graph_make_tensor(api, p, EK_DNN_BIAS, bias, graph));
    return graph_make_tensor(api, p, EK_DNN_SUMS, p->y, graph);
}

static cudnnStatus_t graph_make_convolution(const ek_cudnn_api *api, const ek_dnn_problem *p,
                                            cudnnBackendDescriptor_t *convolution)
{
    cudnnDataType_t computed = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const ek_dnn_attribute attributes[] = {
        {CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &p->dims},
        {CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &computed},
        {CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode},
        {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, p->dims, p->dilation},
        {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, p->dims, p->stride},
        {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, p->dims, p->before},
        {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, p->dims, p->after}};
    return EK_DNN_MAKE(api, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, attributes, convolution);
}

/* How the three operations name their parts. */
typedef struct operation_names {
    cudnnBackendDescriptorType_t descriptor;
    cudnnBackendAttributeName_t x, w, y, convolution, alpha, beta;
} operation_names;

static const operation_names operations[] = {
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

/* Makes the convolution's operation. It computes y; with a bias, the sums to which the bias is
 * added. */
static cudnnStatus_t graph_make_operation(const ek_cudnn_api *api, const ek_dnn_problem *p,
                                          ek_dnn_graph *graph)
{
    /* The factors have the type in which values are computed, which is f32 for bf16 and f16, too.
     */
    const float alpha = 1, beta = 0;
    const operation_names *of = &operations[p->operation];
    const cudnnBackendDescriptor_t *tensors = graph->tensors;
    const ek_dnn_attribute attributes[] = {EK_DNN_PART(of->convolution, &graph->kinds[0]),
                                           EK_DNN_PART(of->x, &tensors[EK_DNN_X]),
                                           EK_DNN_PART(of->w, &tensors[EK_DNN_W]),
                                           EK_DNN_PART(of->y,
                                                       &tensors[p->bias ? EK_DNN_SUMS : EK_DNN_Y]),
                                           {of->alpha, CUDNN_TYPE_FLOAT, 1, &alpha},
                                           {of->beta, CUDNN_TYPE_FLOAT, 1, &beta}};
    return EK_DNN_MAKE(api, of->descriptor, attributes, &graph->operations[0]);
}

/* Makes the operation y = sums + bias, which only forward has, because no engine adds a bias to an
 * input gradient. */
static cudnnStatus_t graph_make_addition(const ek_cudnn_api *api, ek_dnn_graph *graph)
{
    const cudnnPointwiseMode_t mode = CUDNN_POINTWISE_ADD;
    const cudnnDataType_t computed = CUDNN_DATA_FLOAT;
    const cudnnBackendDescriptor_t *tensors = graph->tensors;
    const ek_dnn_attribute addition[] = {{CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1,
                                          &mode},
                                         {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1,
                                          &computed}};
    const ek_dnn_attribute operation[] = {
        EK_DNN_PART(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &graph->kinds[1]),
        EK_DNN_PART(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &tensors[EK_DNN_SUMS]),
        EK_DNN_PART(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &tensors[EK_DNN_BIAS]),
        EK_DNN_PART(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &tensors[EK_DNN_Y])};
    EK_DNN_TRY(EK_DNN_MAKE(api, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, addition, &graph->kinds[1]));
    return EK_DNN_MAKE(api, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, operation,
                       &graph->operations[1]);
}

cudnnStatus_t ek_dnn_graph_describe(const ek_cudnn_api *api, const ek_dnn_problem *problem,
                                    ek_dnn_graph *graph)
{
    if (problem->operation >= EK_DNN_ATTENTION)
        return ek_dnn_attention_describe(api, problem, graph);
    graph->count = problem->bias ? 2 : 1;
    EK_DNN_TRY(graph_make_tensors(api, problem, graph));
    EK_DNN_TRY(graph_make_convolution(api, problem, &graph->kinds[0]));
    EK_DNN_TRY(graph_make_operation(api, problem, graph));
    return problem->bias ? graph_make_addition(api, graph) : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t ek_dnn_graph_finish(const ek_cudnn_api *api, const ek_dnn_target *target,
                                  ek_dnn_graph *graph)
{
    const ek_dnn_attribute attributes[] = {{CUDNN_ATTR_OPERATIONGRAPH_OPS,
                                            CUDNN_TYPE_BACKEND_DESCRIPTOR, graph->count,
                                            graph->operations},
                                           {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE,
                                            target->handle ? 1 : 0, &target->handle}};
    return EK_DNN_MAKE(api, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, attributes, &graph->graph);
}

static void graph_free_all(const ek_cudnn_api *api, const cudnnBackendDescriptor_t *all, int count)
{
    for (int i = 0; i < count; i++)
        if (all[i])
            (void)api->cudnnBackendDestroyDescriptor(all[i]);
}

void ek_dnn_graph_free(const ek_cudnn_api *api, ek_dnn_graph *graph)
{
    graph_free_all(api, &graph->graph, 1);
    graph_free_all(api, graph->operations, EK_DNN_OPERATIONS);
    graph_free_all(api, graph->kinds, EK_DNN_OPERATIONS);
    graph_free_all(api, graph->tensors, EK_DNN_TENSORS);
    *graph = (ek_dnn_graph){0};
}

/* ---- what engines say of themselves ---- */

ek_dnn_refusal ek_dnn_notes_refuse(const ek_dnn_problem *p,
                                   const cudnnBackendNumericalNote_t *notes, int64_t count)
{
    bool f32 = p->dtype == EK_F32, tf32 = f32 && p->tf32;
    for (int64_t i = 0; i < count; i++) {
        switch (notes[i]) {
        case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
            if (p->deterministic)
                return EK_DNN_NONDETERMINISTIC;
            break;
        case CUDNN_NUMERICAL_NOTE_TENSOR_CORE: /* for f32 this means TF32 */
            if (f32 && !tf32)
                return EK_DNN_TENSOR_CORES;
            break;
        /* Operands must keep their digits, and sums must be f32. */
        case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
        case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
            return EK_DNN_IMPRECISE;
        /* Large tiles lose digits to cancellation. In bf16 and f16 small tiles do so, too, because
         * their transformed inputs are rounded. */
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13:
            return EK_DNN_IMPRECISE;
        case CUDNN_NUMERICAL_NOTE_WINOGRAD:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
        case CUDNN_NUMERICAL_NOTE_FFT:
            if (!f32)
                return EK_DNN_IMPRECISE;
            break;
        default:
            break;
        }
    }
    return EK_DNN_ALLOWED;
}

/* One of cuDNN's suggestions. */
typedef struct plan_suggestion {
    cudnnBackendDescriptor_t config;
    int64_t engine;
    uint64_t notes;
    ek_dnn_refusal refusal;
} plan_suggestion;

static cudnnStatus_t plan_read_engine(const ek_cudnn_api *api, const ek_dnn_problem *problem,
                                      cudnnBackendDescriptor_t engine, plan_suggestion *suggestion)
{
    /* Room for notes that later versions may add. */
    cudnnBackendNumericalNote_t notes[4 * CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    const int64_t room = sizeof notes / sizeof *notes;
    int64_t count = 0;
    EK_DNN_TRY(api->cudnnBackendGetAttribute(suggestion->config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                             CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine));
    EK_DNN_TRY(api->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
                                             CUDNN_TYPE_INT64, 1, &count, &suggestion->engine));
    EK_DNN_TRY(api->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                             CUDNN_TYPE_NUMERICAL_NOTE, room, &count, notes));
    for (int64_t i = 0; i < count && i < room; i++)
        if (notes[i] >= 0 && notes[i] < 64)
            suggestion->notes |= (uint64_t)1 << notes[i];
    suggestion->refusal =
        count <= room ? ek_dnn_notes_refuse(problem, notes, count) : EK_DNN_NOT_SUPPORTED;
    return CUDNN_STATUS_SUCCESS;
}

static void plan_read(const ek_cudnn_api *api, const ek_dnn_problem *problem,
                      plan_suggestion *suggestion)
{
    cudnnBackendDescriptor_t engine = NULL;
    suggestion->refusal = EK_DNN_NOT_SUPPORTED;
    if (api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) !=
        CUDNN_STATUS_SUCCESS)
        return;
    if (plan_read_engine(api, problem, engine, suggestion) != CUDNN_STATUS_SUCCESS)
        suggestion->refusal = EK_DNN_NOT_SUPPORTED;
    (void)api->cudnnBackendDestroyDescriptor(engine);
}

/* ---- plans ---- */

/* Returns the attribute that names the GPU of a plan or of heuristics. If the target has a handle,
 * heuristics get the GPU from the graph. */
static ek_dnn_attribute plan_aim(const ek_dnn_target *target, bool plan)
{
#ifdef EK_DNN_WITH_PROPERTIES
    if (!target->handle)
        return (ek_dnn_attribute){plan ? CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP
                                       : CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &target->properties};
#endif
    return (ek_dnn_attribute){CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, plan,
                              &target->handle};
}

/* Makes a plan of a suggestion and takes its config over. Returns false on failure and records the
 * reason. */
static bool plan_of(const ek_cudnn_api *api, const ek_dnn_target *target,
                    plan_suggestion *suggestion, int64_t most, ek_dnn_plan *plan)
{
    cudnnBackendDescriptor_t made = NULL;
    int64_t workspace = 0, count = 0;
    const ek_dnn_attribute attributes[] = {EK_DNN_PART(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                                       &suggestion->config),
                                           plan_aim(target, true)};
    bool good = EK_DNN_MAKE(api, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, attributes, &made) ==
                    CUDNN_STATUS_SUCCESS &&
                api->cudnnBackendGetAttribute(made, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                              CUDNN_TYPE_INT64, 1, &count,
                                              &workspace) == CUDNN_STATUS_SUCCESS &&
                workspace >= 0;
    if (!good || workspace > most) {
        suggestion->refusal = good ? EK_DNN_WORKSPACE : EK_DNN_NOT_SUPPORTED;
        graph_free_all(api, &made, 1);
        return false;
    }
    plan->config = suggestion->config;
    plan->plan = made;
    plan->workspace = workspace;
    plan->engine = suggestion->engine;
    plan->notes = suggestion->notes;
    suggestion->config = NULL;
    suggestion->refusal = EK_DNN_ALLOWED;
    return true;
}

/* SUGGESTIONS is the most suggestions to try, best first; the plan is rarely beyond the tenth.
 * Among the first NEAR, engines with tensor cores are preferred, because for strided 1 x 1 windows
 * in bf16 and f16 cuDNN suggests an engine without them first. */
enum { SUGGESTIONS = 48, NEAR = 6 };

/* Returns true if engines with tensor cores are preferred. With several groups, or few channels of
 * x or y, tensor cores would be idle, and cuDNN's order is kept. */
static bool plan_prefers_tensor_cores(const ek_dnn_problem *p)
{
    return p->operation < EK_DNN_ATTENTION && (p->dtype != EK_F32 || p->tf32) &&
           p->x[1] == p->w[1] && p->x[1] >= 8 && p->y[1] >= 8;
}

/* Makes up to `room` plans of the best suggestions that can be used. Returns how many. */
static int plan_take(const ek_cudnn_api *api, const ek_dnn_target *target,
                     const ek_dnn_problem *problem, plan_suggestion *suggestions, int64_t count,
                     int64_t most, ek_dnn_plan *plans, int room)
{
    const uint64_t tensor_core = (uint64_t)1 << CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    int taken = 0;
    for (int64_t i = 0; i < count; i++)
        plan_read(api, problem, &suggestions[i]);
    if (plan_prefers_tensor_cores(problem))
        for (int64_t i = 0; i < count && i < NEAR && taken < room; i++)
            if (!suggestions[i].refusal && suggestions[i].notes & tensor_core)
                taken += plan_of(api, target, &suggestions[i], most, &plans[taken]);
    for (int64_t i = 0; i < count && taken < room; i++) {
        if (!suggestions[i].config) /* the config belongs to a plan already */
            continue;
        if (!suggestions[i].refusal)
            taken += plan_of(api, target, &suggestions[i], most, &plans[taken]);
        if (suggestions[i].refusal)
            plans[0].refused[suggestions[i].refusal]++;
    }
    return taken;
}

static int plan_choose(const ek_cudnn_api *api, const ek_dnn_target *target,
                       const ek_dnn_problem *problem, cudnnBackendDescriptor_t heuristics,
                       int64_t most, ek_dnn_plan *plans, int room)
{
    cudnnBackendDescriptor_t configs[SUGGESTIONS] = {0};
    plan_suggestion suggestions[SUGGESTIONS] = {0};
    int64_t made = 0, count = 0;
    while (made < SUGGESTIONS &&
           api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configs[made]) ==
               CUDNN_STATUS_SUCCESS)
        made++;
    cudnnStatus_t status =
        made == 0
            ? CUDNN_STATUS_BAD_PARAM
            : api->cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                            CUDNN_TYPE_BACKEND_DESCRIPTOR, made, &count, configs);
    for (int64_t i = 0; i < made; i++)
        suggestions[i].config = configs[i];
    int taken = status != CUDNN_STATUS_SUCCESS
                    ? 0
                    : plan_take(api, target, problem, suggestions, count < made ? count : made,
                                most, plans, room);
    for (int64_t i = 0; i < made; i++)
        if (suggestions[i].config)
            (void)api->cudnnBackendDestroyDescriptor(suggestions[i].config);
    return taken;
}

static int plan_ask(const ek_cudnn_api *api, const ek_dnn_target *target,
                    const ek_dnn_problem *problem, cudnnBackendHeurMode_t mode, int64_t most,
                    ek_dnn_plan *plans, int room)
{
    cudnnBackendDescriptor_t heuristics = NULL;
    const ek_dnn_attribute attributes[] = {EK_DNN_PART(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                                                       &plans->graph.graph),
                                           {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1,
                                            &mode},
                                           plan_aim(target, false)};
    int taken = EK_DNN_MAKE(api, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, attributes, &heuristics) ==
                        CUDNN_STATUS_SUCCESS
                    ? plan_choose(api, target, problem, heuristics, most, plans, room)
                    : 0;
    graph_free_all(api, &heuristics, 1);
    return taken;
}

int ek_dnn_plans_make(const ek_cudnn_api *api, const ek_dnn_target *target,
                      const ek_dnn_problem *problem, int64_t most, ek_dnn_plan *plans, int room)
{
    /* Mode B is slower, doesn't allow concurrent threads, and isn't better for one convolution. */
    const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    int taken = 0;
    for (int i = 0; i < room; i++)
        plans[i] = (ek_dnn_plan){0};
    if (ek_dnn_graph_describe(api, problem, &plans->graph) == CUDNN_STATUS_SUCCESS &&
        ek_dnn_graph_finish(api, target, &plans->graph) == CUDNN_STATUS_SUCCESS)
        for (size_t i = 0; i < sizeof modes / sizeof *modes && taken == 0; i++)
            taken = plan_ask(api, target, problem, modes[i], most, plans, room);
    if (taken == 0)
        ek_dnn_graph_free(api, &plans->graph);
    return taken;
}

bool ek_dnn_plan_make(const ek_cudnn_api *api, const ek_dnn_target *target,
                      const ek_dnn_problem *problem, int64_t most, ek_dnn_plan *plan)
{
    return ek_dnn_plans_make(api, target, problem, most, plan, 1) == 1;
}

void ek_dnn_plans_keep(const ek_cudnn_api *api, ek_dnn_plan *plans, int count, int kept,
                       ek_dnn_plan *plan)
{
    ek_dnn_plan only = plans[kept];
    only.graph = plans[0].graph;
    memcpy(only.refused, plans[0].refused, sizeof only.refused);
    plans[0].graph = (ek_dnn_graph){0};
    plans[kept] = (ek_dnn_plan){0};
    ek_dnn_plans_free(api, plans, count);
    *plan = only;
}

/* The graph belongs to the first plan, which is freed last. */
void ek_dnn_plans_free(const ek_cudnn_api *api, ek_dnn_plan *plans, int count)
{
    for (int i = count - 1; i >= 0; i--)
        ek_dnn_plan_free(api, &plans[i]);
}

void ek_dnn_plan_free(const ek_cudnn_api *api, ek_dnn_plan *plan)
{
    graph_free_all(api, &plan->plan, 1);
    graph_free_all(api, &plan->config, 1);
    ek_dnn_graph_free(api, &plan->graph);
    *plan = (ek_dnn_plan){0};
}

/* ---- running ---- */

cudnnStatus_t ek_dnn_pack(const ek_cudnn_api *api, const ek_dnn_memory *memory,
                          cudnnBackendDescriptor_t *pack)
{
    int64_t names[EK_DNN_ADDRESSES], count = 0;
    void *pointers[EK_DNN_ADDRESSES];
    for (int64_t i = 0; i < EK_DNN_ADDRESSES; i++)
        if (memory->tensors[i]) {
            names[count] = i + 1;
            pointers[count++] = memory->tensors[i];
        }
    const ek_dnn_attribute attributes[] = {
        {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, names},
        {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers},
        {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &memory->workspace}};
    return EK_DNN_MAKE(api, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, attributes, pack);
}

cudnnStatus_t ek_dnn_plan_run(const ek_cudnn_api *api, cudnnHandle_t handle,
                              const ek_dnn_plan *plan, const ek_dnn_memory *memory)
{
    cudnnBackendDescriptor_t pack = NULL;
    cudnnStatus_t status = ek_dnn_pack(api, memory, &pack);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendExecute(handle, plan->plan, pack);
    graph_free_all(api, &pack, 1);
    return status;
}

#endif
