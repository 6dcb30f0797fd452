/* dnn_plan.c: see dnn_plan.h. */
#include "cuda/dnn_plan.h"

#ifdef EK_HAVE_CUDNN

/* ---- what engines say of themselves ---- */

bool ek_dnn_notes_allow(const ek_dnn_problem *p, const cudnnBackendNumericalNote_t *notes,
                        int64_t count)
{
    bool f32 = p->dtype == EK_F32;
    for (int64_t i = 0; i < count; i++) {
        switch (notes[i]) {
        case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
            if (p->deterministic)
                return false;
            break;
        case CUDNN_NUMERICAL_NOTE_TENSOR_CORE: /* for f32 this means TF32 */
            if (f32 && !p->tf32)
                return false;
            break;
        case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
            if (f32 && !p->tf32)
                return false;
            break;
        /* Sums are f32. */
        case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
            return false;
        /* Large tiles lose digits to cancellation; in bf16 even small ones do, whose transformed
         * inputs are rounded. */
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13:
            return false;
        case CUDNN_NUMERICAL_NOTE_WINOGRAD:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
        case CUDNN_NUMERICAL_NOTE_FFT:
            if (!f32)
                return false;
            break;
        default:
            break;
        }
    }
    return true;
}

static bool config_allowed(const ek_cudnn_api *api, const ek_dnn_problem *problem,
                           cudnnBackendDescriptor_t config)
{
    /* Room for notes that later versions may add. */
    cudnnBackendNumericalNote_t notes[4 * CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    const int64_t room = sizeof notes / sizeof *notes;
    cudnnBackendDescriptor_t engine = NULL;
    int64_t count = 0;
    if (api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) !=
        CUDNN_STATUS_SUCCESS)
        return false;
    cudnnStatus_t status =
        api->cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine);
    if (status == CUDNN_STATUS_SUCCESS) {
        count = 0;
        status = api->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                               CUDNN_TYPE_NUMERICAL_NOTE, room, &count, notes);
    }
    (void)api->cudnnBackendDestroyDescriptor(engine);
    return status == CUDNN_STATUS_SUCCESS && count <= room &&
           ek_dnn_notes_allow(problem, notes, count);
}

/* ---- plans ---- */

/* Says for which device; heuristics know it from the graph, if that has a handle. */
static bool aim(const ek_cudnn_api *api, const ek_dnn_target *target,
                cudnnBackendDescriptor_t descriptor, bool plan)
{
    if (target->handle)
        return !plan || ek_dnn_set(api, descriptor, CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
                                   CUDNN_TYPE_HANDLE, 1, &target->handle) == CUDNN_STATUS_SUCCESS;
#ifdef EK_DNN_WITH_PROPERTIES
    return ek_dnn_set(api, descriptor,
                      plan ? CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP
                           : CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
                      CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                      &target->properties) == CUDNN_STATUS_SUCCESS;
#else
    return false;
#endif
}

/* Takes over `config` on success. */
static bool plan_of(const ek_cudnn_api *api, const ek_dnn_target *target,
                    cudnnBackendDescriptor_t config, int64_t most, ek_dnn_plan *plan)
{
    cudnnBackendDescriptor_t made = NULL;
    int64_t workspace = 0, count = 0;
    if (api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &made) !=
        CUDNN_STATUS_SUCCESS)
        return false;
    bool good = ek_dnn_set(api, made, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                           CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config) == CUDNN_STATUS_SUCCESS &&
                aim(api, target, made, true) &&
                api->cudnnBackendFinalize(made) == CUDNN_STATUS_SUCCESS &&
                api->cudnnBackendGetAttribute(made, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                              CUDNN_TYPE_INT64, 1, &count,
                                              &workspace) == CUDNN_STATUS_SUCCESS &&
                workspace >= 0 && workspace <= most;
    if (!good) {
        (void)api->cudnnBackendDestroyDescriptor(made);
        return false;
    }
    plan->config = config;
    plan->plan = made;
    plan->workspace = workspace;
    return true;
}

/* Suggestions to look at, the best first: a plan is rarely the tenth. */
enum { SUGGESTIONS = 48 };

/* From the suggestions of one mode. */
static bool choose(const ek_cudnn_api *api, const ek_dnn_target *target,
                   const ek_dnn_problem *problem, cudnnBackendDescriptor_t heuristics, int64_t most,
                   ek_dnn_plan *plan)
{
    cudnnBackendDescriptor_t configs[SUGGESTIONS] = {0};
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
    bool found = false;
    if (status == CUDNN_STATUS_SUCCESS) {
        for (int64_t i = 0; i < count && i < made && !found; i++) {
            found = config_allowed(api, problem, configs[i]) &&
                    plan_of(api, target, configs[i], most, plan);
            if (found)
                configs[i] = NULL;
        }
    }
    for (int64_t i = 0; i < made; i++)
        if (configs[i])
            (void)api->cudnnBackendDestroyDescriptor(configs[i]);
    return found;
}

static bool ask(const ek_cudnn_api *api, const ek_dnn_target *target, const ek_dnn_problem *problem,
                cudnnBackendHeurMode_t mode, int64_t most, ek_dnn_plan *plan)
{
    cudnnBackendDescriptor_t heuristics = NULL;
    if (api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristics) !=
        CUDNN_STATUS_SUCCESS)
        return false;
    bool found =
        ek_dnn_set(api, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &plan->graph.graph) == CUDNN_STATUS_SUCCESS &&
        ek_dnn_set(api, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode) ==
            CUDNN_STATUS_SUCCESS &&
        aim(api, target, heuristics, false) &&
        api->cudnnBackendFinalize(heuristics) == CUDNN_STATUS_SUCCESS &&
        choose(api, target, problem, heuristics, most, plan);
    (void)api->cudnnBackendDestroyDescriptor(heuristics);
    return found;
}

bool ek_dnn_plan_make(const ek_cudnn_api *api, const ek_dnn_target *target,
                      const ek_dnn_problem *problem, int64_t most, ek_dnn_plan *plan)
{
    /* Mode B, slower and not for several threads at once, is no better for single convolutions. */
    const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    *plan = (ek_dnn_plan){0};
    if (ek_dnn_graph_describe(api, problem, &plan->graph) == CUDNN_STATUS_SUCCESS &&
        ek_dnn_graph_finish(api, target, &plan->graph) == CUDNN_STATUS_SUCCESS)
        for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
            if (ask(api, target, problem, modes[i], most, plan))
                return true;
    ek_dnn_plan_free(api, plan);
    return false;
}

void ek_dnn_plan_free(const ek_cudnn_api *api, ek_dnn_plan *plan)
{
    if (plan->plan)
        (void)api->cudnnBackendDestroyDescriptor(plan->plan);
    if (plan->config)
        (void)api->cudnnBackendDestroyDescriptor(plan->config);
    ek_dnn_graph_free(api, &plan->graph);
    *plan = (ek_dnn_plan){0};
}

/* ---- running ---- */

cudnnStatus_t ek_dnn_pack(const ek_cudnn_api *api, const ek_dnn_memory *memory,
                          cudnnBackendDescriptor_t *pack)
{
    const int64_t tensor_names[] = {EK_DNN_X, EK_DNN_W, EK_DNN_Y, EK_DNN_BIAS};
    void *pointers[] = {memory->x, memory->w, memory->y, memory->bias};
    int64_t count = memory->bias ? 4 : 3;
    EK_DNN_TRY(api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, pack));
    EK_DNN_TRY(ek_dnn_set(api, *pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count,
                          tensor_names));
    EK_DNN_TRY(ek_dnn_set(api, *pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                          count, pointers));
    EK_DNN_TRY(ek_dnn_set(api, *pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                          &memory->workspace));
    return api->cudnnBackendFinalize(*pack);
}

cudnnStatus_t ek_dnn_plan_run(const ek_cudnn_api *api, cudnnHandle_t handle,
                              const ek_dnn_plan *plan, const ek_dnn_memory *memory)
{
    cudnnBackendDescriptor_t pack = NULL;
    cudnnStatus_t status = ek_dnn_pack(api, memory, &pack);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendExecute(handle, plan->plan, pack);
    if (pack)
        (void)api->cudnnBackendDestroyDescriptor(pack);
    return status;
}

#endif
