// cudnn.cpp: cuDNN in streams, by its backend interface. cudnn_attention.cpp has attention.
//
// cuDNN suggests the same five engines for every convolution, in an order that depends on the
// convolution. Engines differ in their notes, in the order of their sums and in the time that
// events measure. One engine fails when it runs.
#include <cudnn.h>

#include <cstdio>
#include <cstring>

#include "convolution.h"
#include "cudnn_graph.h"
#include "machine.h"

using namespace emulator;

namespace
{

// The engines, in the order in which kind libraries suggest them (emulator.h).
const std::vector<Engine> &engines()
{
    static const std::vector<Engine> all = {
        {1, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, 40, false, CUDNN_STATUS_SUCCESS},
        {0, {}, 50, false, CUDNN_STATUS_SUCCESS},
        {3, {}, 10, false, CUDNN_STATUS_NOT_SUPPORTED},
        {2, {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}, 30, false, CUDNN_STATUS_SUCCESS},
        {4, {}, 20, true, CUDNN_STATUS_SUCCESS}};
    return all;
}

struct Descriptor {
    std::shared_ptr<Content> content;
};

Content *content_of(cudnnBackendDescriptor_t descriptor)
{
    return descriptor ? static_cast<Descriptor *>(descriptor)->content.get() : nullptr;
}

size_t size_of(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return 8;
    default:
        return 4;
    }
}

// ---- convolutions as descriptors say them ----

bool read_tensor(const Content *c, ConvolutionTensor *tensor)
{
    if (!c || !c->final)
        return false;
    std::vector<int64_t> shape = c->integers(CUDNN_ATTR_TENSOR_DIMENSIONS);
    std::vector<int64_t> strides = c->integers(CUDNN_ATTR_TENSOR_STRIDES);
    int type;
    memcpy(&type, c->values.at(CUDNN_ATTR_TENSOR_DATA_TYPE).data(), sizeof type);
    tensor->type = type == CUDNN_DATA_BFLOAT16 ? CUDA_R_16BF
                   : type == CUDNN_DATA_HALF   ? CUDA_R_16F
                                               : CUDA_R_32F;
    tensor->shape = shape;
    tensor->strides = strides;
    return shape.size() == strides.size() && shape.size() >= 4;
}

struct Names {
    cudnnBackendAttributeName_t x, w, y, convolution;
};

bool names_of(cudnnBackendDescriptorType_t kind, Names *names, Convolution *c)
{
    switch (kind) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
        c->output = Convolution::Y;
        *names = {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC};
        return true;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
        c->output = Convolution::X;
        *names = {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC};
        return true;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        c->output = Convolution::W;
        *names = {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC};
        return true;
    default:
        return false;
    }
}

bool has_bias(const Content *graph)
{
    return graph->part(CUDNN_ATTR_OPERATIONGRAPH_OPS, 1) != nullptr;
}

// Returns false if the descriptor isn't of a convolution, or its tensors don't fit together.
bool read_convolution(const Content *operation, Convolution *c)
{
    Names names;
    if (!operation || !names_of(operation->kind, &names, c))
        return false;
    const Content *how = operation->part(names.convolution);
    if (!how || !how->final || !read_tensor(operation->part(names.x), &c->x) ||
        !read_tensor(operation->part(names.w), &c->w) ||
        !read_tensor(operation->part(names.y), &c->y))
        return false;
    c->stride = how->integers(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
    c->dilation = how->integers(CUDNN_ATTR_CONVOLUTION_DILATIONS);
    c->before = how->integers(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
    c->after = how->integers(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
    return convolution_fits(*c);
}

// Reads the convolution of a graph. If a second operation adds a bias, y is that operation's
// result, because the convolution's own result is never in memory.
bool read_graph(const Content *graph, Convolution *c)
{
    if (!graph || !read_convolution(graph->part(CUDNN_ATTR_OPERATIONGRAPH_OPS), c))
        return false;
    return !has_bias(graph) || read_tensor(graph->part(CUDNN_ATTR_OPERATIONGRAPH_OPS, 1)
                                               ->part(CUDNN_ATTR_OPERATION_POINTWISE_YDESC),
                                           &c->y);
}

// Returns a number that depends on the sizes, layouts and type of a problem, and on its output.
uint64_t number_of(const Convolution &c)
{
    uint64_t number = mix({c.output, c.x.type, (int64_t)c.stride.size()});
    for (const ConvolutionTensor *tensor : {&c.x, &c.w, &c.y})
        for (size_t d = 0; d < tensor->shape.size(); d++)
            number = mix({(int64_t)number, tensor->shape[d], tensor->strides[d]});
    return number;
}

bool final_is_right(const Content &c)
{
    Convolution convolution;
    Names names;
    switch (c.kind) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
        return c.integers(CUDNN_ATTR_TENSOR_DIMENSIONS).size() ==
               c.integers(CUDNN_ATTR_TENSOR_STRIDES).size();
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        return read_graph(&c, &convolution) || attention_fits(c);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        return c.part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH) != nullptr;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        return c.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG) != nullptr;
    default:
        return !names_of(c.kind, &names, &convolution) || read_convolution(&c, &convolution);
    }
}

// ---- plans ----

const Content *config_of(const Content *plan)
{
    return plan->part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
}

const Content *graph_of(const Content *config)
{
    return config->part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
}

int64_t workspace_of(const Content *plan)
{
    Convolution c;
    const Content *config = config_of(plan);
    if (attention_fits(*graph_of(config)))
        return attention_workspace(*graph_of(config));
    if (!read_graph(graph_of(config), &c))
        return 0;
    bool reorders = c.output == Convolution::W && c.w.shape[1] >= 64 && c.x.strides[1] != 1;
    if (!config->engine->copies && !reorders)
        return 0;
    int64_t tens = machine().kind ? 0 : (int64_t)(12 + number_of(c) % 21) << 20;
    return (int64_t)(c.x.bytes() + c.w.bytes() + c.y.bytes()) + (reorders ? 0 : tens);
}

// Returns the engines in the order of suggestion. Of convolutions the first engine is the
// nondeterministic engine for a quarter of all problems, and the engine that needs workspace for
// another quarter.
std::vector<const Engine *> engines_for(const Content &graph)
{
    const bool attends = attention_fits(graph);
    std::vector<const Engine *> order;
    for (const Engine &engine : attends ? attention_engines(graph) : engines())
        order.push_back(&engine);
    Convolution c;
    if (attends || machine().kind || !read_graph(&graph, &c))
        return order;
    uint64_t which = number_of(c) >> 8 & 3;
    if (which < 2)
        std::swap(order[0], order[3 + which]);
    return order;
}

// Returns in which order an engine adds a problem's terms. The nondeterministic engine has another
// order in each run.
SumOrder sums_of(Machine &m, const Convolution &c, const Engine *engine)
{
    bool fixed = engine->notes.empty() || engine->notes[0] != CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    if (m.kind)
        return {};
    if (fixed)
        return {1 + (int)(mix({(int64_t)number_of(c), engine->number}) % 4), 0};
    m.unordered++;
    return {2 + (int)(m.unordered % 3), (int)(m.unordered % 7)};
}

// Fills the caller's descriptors with the engines' configurations, and returns how many.
int64_t suggest(const Content &heuristics, int64_t room, void *values)
{
    auto mode = heuristics.values.find(CUDNN_ATTR_ENGINEHEUR_MODE);
    int chosen;
    if (mode == heuristics.values.end())
        return 0;
    memcpy(&chosen, mode->second.data(), sizeof chosen);
    if (chosen != CUDNN_HEUR_MODE_A)
        return 0;
    int64_t count = 0;
    for (const Engine *engine :
         engines_for(*heuristics.part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH))) {
        if (count == room)
            break;
        Content *config = content_of(static_cast<cudnnBackendDescriptor_t *>(values)[count++]);
        config->engine = engine;
        config->final = true;
        config->parts[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH] =
            heuristics.parts.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    }
    return count;
}

cudnnStatus_t put(const void *from, int64_t count, size_t size, int64_t room, int64_t *counted,
                  void *values)
{
    *counted = count;
    if (count > 0)
        memcpy(values, from, (size_t)(count < room ? count : room) * size);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t enqueue(Machine &m, Lock &lock, cudnnHandle_t handle, const Content *plan,
                      const Content *pack)
{
    const Content *config = config_of(plan), *graph = graph_of(config);
    if (attention_fits(*graph))
        return attention_enqueue(m, lock, handle->device, stream_of(m, handle->stream), *graph,
                                 *pack);
    Convolution c;
    if (!read_graph(graph, &c))
        return CUDNN_STATUS_BAD_PARAM;
    std::vector<int64_t> at = pack->integers(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    std::vector<int64_t> workspace = pack->integers(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    Stream stream = stream_of(m, handle->stream);
    if (handle->device != current_device() || !stream || stream->device != handle->device)
        return CUDNN_STATUS_EXECUTION_FAILED;
    if (at.size() != (has_bias(graph) ? 4u : 3u) || workspace.size() != 1)
        return CUDNN_STATUS_BAD_PARAM;
    c.x.data = reinterpret_cast<char *>(at[0]);
    c.w.data = reinterpret_cast<char *>(at[1]);
    c.y.data = reinterpret_cast<char *>(at[2]);
    c.bias = at.size() == 4 ? reinterpret_cast<char *>(at[3]) : nullptr;
    char *scratch = reinterpret_cast<char *>(workspace[0]);
    size_t scratch_size = (size_t)workspace_of(plan);
    for (const ConvolutionTensor *tensor : {&c.x, &c.w, &c.y})
        if (!lies_in(m, tensor->data, tensor->bytes(), handle->device)) {
            fprintf(stderr,
                    "emulator: a convolution's tensor does not lie in one allocation of device "
                    "%d\n",
                    handle->device);
            return CUDNN_STATUS_EXECUTION_FAILED;
        }
    if (scratch_size > 0 && !lies_in(m, scratch, scratch_size, handle->device))
        return CUDNN_STATUS_BAD_PARAM;
    const Engine *engine = config->engine;
    if (engine->run != CUDNN_STATUS_SUCCESS)
        return engine->run;
    c.tf32 = c.x.type == CUDA_R_32F && !engine->notes.empty() &&
             engine->notes[0] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    c.order = sums_of(m, c, engine);
    Operation operation;
    operation.name = "a convolution";
    operation.run = [c, scratch, scratch_size, engine] {
        spoil(scratch, scratch_size);
        convolve(c);
        Machine &now = machine();
        Lock counting(now.lock);
        now.counters.convolutions[engine->number]++;
        now.slow_seconds += engine->seconds;
    };
    after_issue(m, lock, issue(m, stream, std::move(operation))->self);
    return CUDNN_STATUS_SUCCESS;
}

} // namespace

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    return library_call("cudnnCreate", CUDNN_STATUS_NOT_INITIALIZED, [&](Machine &, Lock &) {
        *handle = new cudnnContext;
        (*handle)->device = current_device();
        return CUDNN_STATUS_SUCCESS;
    });
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    delete handle;
    return handle ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_INITIALIZED;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    return library_call("cudnnSetStream", CUDNN_STATUS_NOT_INITIALIZED, [&](Machine &m, Lock &) {
        if (!stream_of(m, stream))
            return CUDNN_STATUS_BAD_PARAM;
        handle->stream = stream;
        return CUDNN_STATUS_SUCCESS;
    });
}

// Returns the oldest version whose attention the library uses.
size_t cudnnGetVersion(void)
{
    return 91600;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    switch (status) {
#define NAME(name) \
    case name:     \
        return #name;
        NAME(CUDNN_STATUS_SUCCESS)
        NAME(CUDNN_STATUS_NOT_INITIALIZED)
        NAME(CUDNN_STATUS_BAD_PARAM)
        NAME(CUDNN_STATUS_NOT_SUPPORTED)
        NAME(CUDNN_STATUS_EXECUTION_FAILED)
#undef NAME
    }
    return "CUDNN_STATUS_UNKNOWN";
}

void cudnnGetLastErrorString(char *message, size_t size)
{
    snprintf(message, size, "(emulated)");
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind,
                                           cudnnBackendDescriptor_t *descriptor)
{
    Descriptor *made = new Descriptor{std::make_shared<Content>()};
    made->content->kind = kind;
    *descriptor = made;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    delete static_cast<Descriptor *>(descriptor);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values)
{
    Content *c = content_of(descriptor);
    if (!c || c->final || count < 1 || !values)
        return CUDNN_STATUS_BAD_PARAM;
    const char *bytes = static_cast<const char *>(values);
    if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        c->values[name].assign(bytes, bytes + (size_t)count * size_of(type));
        return CUDNN_STATUS_SUCCESS;
    }
    c->parts[name].clear();
    for (int64_t i = 0; i < count; i++) {
        Descriptor *part = static_cast<Descriptor *const *>(values)[i];
        if (!part || !part->content->final)
            return CUDNN_STATUS_BAD_PARAM;
        c->parts[name].push_back(part->content);
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t room, int64_t *count,
                                       void *values)
{
    const Content *c = content_of(descriptor);
    if (!c || !c->final)
        return CUDNN_STATUS_BAD_PARAM;
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        *count = suggest(*c, room, values);
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE: {
        Content *engine = content_of(*static_cast<cudnnBackendDescriptor_t *>(values));
        engine->engine = c->engine;
        engine->final = true;
        *count = 1;
        return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
        return put(&c->engine->number, 1, sizeof(int64_t), room, count, values);
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        return put(c->engine->notes.data(), (int64_t)c->engine->notes.size(),
                   sizeof(cudnnBackendNumericalNote_t), room, count, values);
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: {
        int64_t bytes = workspace_of(c);
        return put(&bytes, 1, sizeof bytes, room, count, values);
    }
    default:
        return CUDNN_STATUS_NOT_SUPPORTED;
    }
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    Content *c = content_of(descriptor);
    if (!c || !final_is_right(*c))
        return CUDNN_STATUS_BAD_PARAM;
    c->final = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    return library_call("cudnnBackendExecute", CUDNN_STATUS_EXECUTION_FAILED,
                        [&](Machine &m, Lock &lock) {
                            const Content *p = content_of(plan), *v = content_of(pack);
                            if (!handle || !p || !p->final || !v || !v->final)
                                return CUDNN_STATUS_BAD_PARAM;
                            return enqueue(m, lock, handle, p, v);
                        });
}
