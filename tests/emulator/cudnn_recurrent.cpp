// cudnn_recurrent.cpp: cuDNN's interface of recurrent networks, in streams. Calls are refused if
// cuDNN 9 refuses them, or if cuDNN's documentation doesn't promise them: blocks of memory that are
// aligned worse than an allocation, for example.
#include <cudnn.h>

#include <cstdio>
#include <cstring>

#include "cudnn_graph.h"
#include "machine.h"
#include "product.h"
#include "recurrent.h"

using namespace emulator;

struct cudnnTensorStruct {
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    std::vector<int> sizes, strides;
};

struct cudnnDropoutStruct {
    bool set = false;
};

struct cudnnRNNStruct {
    Network network;
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnDropoutDescriptor_t dropout = nullptr;
    bool set = false, padded = false;
};

struct cudnnRNNDataStruct {
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    int steps = 0, samples = 0, columns = 0;
    std::vector<int> lengths;
    bool pads = false;
};

namespace
{

size_t size_of(cudnnDataType_t type)
{
    return type == CUDNN_DATA_FLOAT ? 4 : 2;
}

bool is_known(cudnnDataType_t type)
{
    return type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16;
}

template <typename T> cudnnStatus_t make(T **descriptor)
{
    if (!descriptor)
        return CUDNN_STATUS_BAD_PARAM;
    *descriptor = new T;
    return CUDNN_STATUS_SUCCESS;
}

template <typename T> cudnnStatus_t destroy(T *descriptor)
{
    delete descriptor;
    return CUDNN_STATUS_SUCCESS;
}

size_t workspace_of(const cudnnRNNDataStruct *x)
{
    return 256 * (size_t)x->steps;
}

bool is_ready(cudnnHandle_t handle, const cudnnRNNStruct *network)
{
    return handle && network && network->set;
}

// Returns true for a packed state of the network's rows and samples.
bool is_state(const cudnnTensorStruct *state, const cudnnRNNStruct *network, int samples,
              int64_t columns)
{
    const int rows = network->network.rows(), last = (int)columns;
    return state && state->type == network->type &&
           state->sizes == std::vector<int>{rows, samples, last} &&
           state->strides == std::vector<int>{samples * last, last, 1};
}

bool is_data(const cudnnRNNDataStruct *data, const cudnnRNNStruct *network, int64_t columns)
{
    return data && data->type == network->type && data->columns == columns && network->padded;
}

// What the three calls share.
struct Call {
    cudnnHandle_t handle;
    cudnnRNNDescriptor_t network;
    cudnnRNNDataDescriptor_t x, y;
    cudnnTensorDescriptor_t h, c;
    bool needs_c; // false for gradients of weights
    size_t weights_size, workspace_size, reserve_size;
    void *workspace;
    RecurrentCall run;
};

// An operand that a call reads or writes whole.
struct Operand {
    const void *data;
    int64_t elements;
    bool wanted; // must not be NULL
};

cudnnStatus_t check(Machine &m, Call &call, const std::vector<Operand> &operands)
{
    const cudnnRNNStruct *network = call.network;
    if (!is_ready(call.handle, network) || !call.x || !call.y)
        return CUDNN_STATUS_BAD_PARAM;
    const Network &n = network->network;
    const bool lstm = n.cell == CUDNN_LSTM;
    if (!is_data(call.x, network, n.input) || !is_data(call.y, network, n.directions * n.size) ||
        call.x->steps != call.y->steps || call.x->samples != call.y->samples ||
        call.x->lengths != call.y->lengths || !is_state(call.h, network, call.x->samples, n.size) ||
        (lstm && call.needs_c && !is_state(call.c, network, call.x->samples, n.hidden)))
        return CUDNN_STATUS_BAD_PARAM;
    call.run.network = n;
    call.run.steps = call.x->steps;
    call.run.samples = call.x->samples;
    call.run.lengths = call.x->lengths;
    call.run.pads = call.y->pads;
    const size_t size = size_of(network->type);
    const int device = call.handle->device;
    for (const void *block : {(const void *)call.run.weights, (const void *)call.run.dweights,
                              (const void *)call.run.reserve, (const void *)call.workspace})
        if ((uintptr_t)block % 256 != 0)
            return CUDNN_STATUS_BAD_PARAM;
    if (call.weights_size < (size_t)n.elements() * size ||
        call.workspace_size < workspace_of(call.x) ||
        !lies_in(m, call.workspace, workspace_of(call.x), device))
        return CUDNN_STATUS_BAD_PARAM;
    if (call.run.reserve && (call.reserve_size < call.run.reserve_bytes() ||
                             !lies_in(m, call.run.reserve, call.run.reserve_bytes(), device)))
        return CUDNN_STATUS_BAD_PARAM;
    for (const Operand &operand : operands)
        if (operand.data ? !lies_in(m, operand.data, (size_t)operand.elements * size, device)
                         : operand.wanted)
            return CUDNN_STATUS_BAD_PARAM;
    return CUDNN_STATUS_SUCCESS;
}

int64_t state_elements(const Call &call, bool of_c)
{
    const Network &n = call.network->network;
    return n.rows() * call.x->samples * (of_c ? n.hidden : n.size);
}

int64_t data_elements(const cudnnRNNDataStruct *data)
{
    return (int64_t)data->steps * data->samples * data->columns;
}

cudnnStatus_t enqueue(Machine &m, Lock &lock, const Call &call, bool (*run)(const RecurrentCall &))
{
    Stream stream = stream_of(m, call.handle->stream);
    if (call.handle->device != current_device() || !stream || stream->device != call.handle->device)
        return CUDNN_STATUS_EXECUTION_FAILED;
    Operation operation;
    operation.name = "a recurrent network";
    char *workspace = static_cast<char *>(call.workspace);
    const size_t size = workspace_of(call.x);
    const RecurrentCall what = call.run;
    operation.run = [what, workspace, size, run] {
        spoil(workspace, size);
        if (!run(what)) {
            fprintf(stderr,
                    "emulator: a recurrent network's reserve is not that of its forward, or "
                    "was used before\n");
            abort();
        }
        Machine &now = machine();
        Lock counting(now.lock);
        now.counters.networks++;
    };
    after_issue(m, lock, issue(m, stream, std::move(operation))->self);
    return CUDNN_STATUS_SUCCESS;
}

bool run_forward(const RecurrentCall &call)
{
    recurrent_forward(call);
    return true;
}

char *bytes(const void *data)
{
    return static_cast<char *>(const_cast<void *>(data));
}

} // namespace

// ---- descriptors ----

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *descriptor)
{
    return make(descriptor);
}

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t descriptor, cudnnDataType_t type,
                                         int ndim, const int sizes[], const int strides[])
{
    if (!descriptor || ndim < 1 || ndim > 8)
        return CUDNN_STATUS_BAD_PARAM;
    for (int i = 0; i < ndim; i++)
        if (sizes[i] < 1)
            return CUDNN_STATUS_BAD_PARAM;
    descriptor->type = type;
    descriptor->sizes.assign(sizes, sizes + ndim);
    descriptor->strides.assign(strides, strides + ndim);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t descriptor, int room,
                                         cudnnDataType_t *type, int *ndim, int sizes[],
                                         int strides[])
{
    if (!descriptor || room < 1)
        return CUDNN_STATUS_BAD_PARAM;
    *type = descriptor->type;
    *ndim = (int)descriptor->sizes.size();
    for (int i = 0; i < room && i < *ndim; i++) {
        sizes[i] = descriptor->sizes[(size_t)i];
        strides[i] = descriptor->strides[(size_t)i];
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t descriptor)
{
    return destroy(descriptor);
}

cudnnStatus_t cudnnCreateDropoutDescriptor(cudnnDropoutDescriptor_t *descriptor)
{
    return make(descriptor);
}

cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t descriptor, cudnnHandle_t handle,
                                        float dropout, void *, size_t, unsigned long long)
{
    if (!descriptor || !handle || !(dropout >= 0 && dropout <= 1))
        return CUDNN_STATUS_BAD_PARAM;
    if (dropout > 0)
        return CUDNN_STATUS_NOT_SUPPORTED; // by the emulator
    descriptor->set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyDropoutDescriptor(cudnnDropoutDescriptor_t descriptor)
{
    return destroy(descriptor);
}

cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t *network)
{
    return make(network);
}

cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t network, cudnnRNNAlgo_t algo,
                                       cudnnRNNMode_t cell, cudnnRNNBiasMode_t bias,
                                       cudnnDirectionMode_t direction, cudnnRNNInputMode_t input,
                                       cudnnDataType_t type, cudnnDataType_t precision,
                                       cudnnMathType_t math, int32_t input_size,
                                       int32_t hidden_size, int32_t projected_size, int32_t layers,
                                       cudnnDropoutDescriptor_t dropout, uint32_t flags)
{
    if (!network || input_size < 1 || hidden_size < 1 || layers < 1 || projected_size < 1 ||
        !dropout || !dropout->set)
        return CUDNN_STATUS_BAD_PARAM;
    if (algo != CUDNN_RNN_ALGO_STANDARD || input != CUDNN_LINEAR_INPUT || !is_known(type) ||
        precision != CUDNN_DATA_FLOAT || projected_size > hidden_size ||
        (projected_size != hidden_size && cell != CUDNN_LSTM) ||
        (bias != CUDNN_RNN_DOUBLE_BIAS && bias != CUDNN_RNN_NO_BIAS) ||
        math == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION)
        return CUDNN_STATUS_NOT_SUPPORTED;
    Network &n = network->network;
    n.cell = cell;
    n.bias = bias == CUDNN_RNN_DOUBLE_BIAS;
    n.type = type == CUDNN_DATA_FLOAT  ? CUDA_R_32F
             : type == CUDNN_DATA_HALF ? CUDA_R_16F
                                       : CUDA_R_16BF;
    n.input = input_size;
    n.hidden = hidden_size;
    n.size = projected_size;
    n.layers = layers;
    n.directions = direction == CUDNN_BIDIRECTIONAL ? 2 : 1;
    network->type = type;
    network->dropout = dropout;
    network->padded = flags & CUDNN_RNN_PADDED_IO_ENABLED;
    network->set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t network)
{
    return destroy(network);
}

cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t *data)
{
    return make(data);
}

cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t data, cudnnDataType_t type,
                                        cudnnRNNDataLayout_t layout, int steps, int samples,
                                        int columns, const int lengths[], void *padding)
{
    if (!data || steps < 1 || samples < 1 || columns < 1 || !lengths)
        return CUDNN_STATUS_BAD_PARAM;
    for (int i = 0; i < samples; i++)
        if (lengths[i] < 0 || lengths[i] > steps)
            return CUDNN_STATUS_BAD_PARAM;
    if (!is_known(type) || layout != CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED)
        return CUDNN_STATUS_NOT_SUPPORTED;
    static const char zero[4] = {0};
    if (padding && memcmp(padding, zero, size_of(type)) != 0)
        return CUDNN_STATUS_NOT_SUPPORTED; // by the emulator
    *data = {type,
             steps,
             samples,
             columns,
             std::vector<int>(lengths, lengths + samples),
             padding != nullptr};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t data)
{
    return destroy(data);
}

// ---- sizes and places ----

cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t network,
                                        cudnnForwardMode_t mode, cudnnRNNDataDescriptor_t x,
                                        size_t *workspace, size_t *reserve)
{
    if (!is_ready(handle, network) || !x || !workspace || !is_data(x, network, x->columns))
        return CUDNN_STATUS_BAD_PARAM;
    RecurrentCall call;
    call.network = network->network;
    call.steps = x->steps;
    call.samples = x->samples;
    *workspace = workspace_of(x);
    if (reserve)
        *reserve = mode == CUDNN_FWD_MODE_TRAINING ? call.reserve_bytes() : 0;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t network,
                                         size_t *size)
{
    if (!is_ready(handle, network) || !size)
        return CUDNN_STATUS_BAD_PARAM;
    *size = (size_t)network->network.elements() * size_of(network->type);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t network,
                                      int32_t row, size_t size, const void *weights, int32_t layer,
                                      cudnnTensorDescriptor_t matrix, void **matrix_address,
                                      cudnnTensorDescriptor_t bias, void **bias_address)
{
    if (!is_ready(handle, network) || !weights || !matrix || !matrix_address || !bias ||
        !bias_address)
        return CUDNN_STATUS_BAD_PARAM;
    const Network &n = network->network;
    const int gates = (int)n.gates(), hidden = (int)n.hidden, last = (int)n.size;
    const size_t each = size_of(network->type);
    if (row < 0 || row >= n.rows() || layer < 0 || layer >= 2 * gates + n.projects() ||
        size < (size_t)n.elements() * each)
        return CUDNN_STATUS_BAD_PARAM;
    const bool projects = layer == 2 * gates, recurrent = !projects && layer >= gates;
    const int rows = projects ? last : hidden;
    const int columns = projects ? hidden : recurrent ? last : (int)n.columns(row);
    const int64_t first = projects    ? n.projection_at(row)
                          : recurrent ? n.recurrent_at(row)
                                      : n.weights_at(row);
    char *base = bytes(weights);
    *matrix = {network->type, {1, rows, columns}, {rows * columns, columns, 1}};
    *matrix_address =
        base + (size_t)(first + (projects ? 0 : (int64_t)(layer % gates) * rows * columns)) * each;
    *bias = {network->type, {1, hidden, 1}, {hidden, 1, 1}};
    *bias_address = n.bias && !projects
                        ? base + (size_t)(n.biases_at(row) + (int64_t)layer * hidden) * each
                        : nullptr;
    return CUDNN_STATUS_SUCCESS;
}

// ---- calls ----

cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t network,
                              cudnnForwardMode_t mode, const int32_t[],
                              cudnnRNNDataDescriptor_t x_data, const void *x,
                              cudnnRNNDataDescriptor_t y_data, void *y,
                              cudnnTensorDescriptor_t h_state, const void *hx, void *hy,
                              cudnnTensorDescriptor_t c_state, const void *cx, void *cy,
                              size_t weights_size, const void *weights, size_t workspace_size,
                              void *workspace, size_t reserve_size, void *reserve)
{
    return library_call(
        "cudnnRNNForward", CUDNN_STATUS_EXECUTION_FAILED, [&](Machine &m, Lock &lock) {
            if (!network || !x_data || !y_data || (mode == CUDNN_FWD_MODE_TRAINING && !reserve))
                return CUDNN_STATUS_BAD_PARAM;
            Call call = {handle, network,      x_data,         y_data,       h_state,   c_state,
                         true,   weights_size, workspace_size, reserve_size, workspace, {}};
            call.run.x = bytes(x), call.run.hx = bytes(hx), call.run.cx = bytes(cx);
            call.run.y = bytes(y), call.run.hy = bytes(hy), call.run.cy = bytes(cy);
            call.run.weights = bytes(weights);
            call.run.reserve = mode == CUDNN_FWD_MODE_TRAINING ? bytes(reserve) : nullptr;
            const int64_t h = state_elements(call, false), c = state_elements(call, true);
            cudnnStatus_t status = check(m, call,
                                         {{x, data_elements(x_data), true},
                                          {y, data_elements(y_data), true},
                                          {hx, h, false},
                                          {hy, h, false},
                                          {cx, c, false},
                                          {cy, c, false},
                                          {weights, network->network.elements(), true}});
            return status != CUDNN_STATUS_SUCCESS ? status : enqueue(m, lock, call, run_forward);
        });
}

cudnnStatus_t
cudnnRNNBackwardData_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t network, const int32_t[],
                        cudnnRNNDataDescriptor_t y_data, const void *y, const void *dy,
                        cudnnRNNDataDescriptor_t x_data, void *dx, cudnnTensorDescriptor_t h_state,
                        const void *hx, const void *dhy, void *dhx, cudnnTensorDescriptor_t c_state,
                        const void *cx, const void *dcy, void *dcx, size_t weights_size,
                        const void *weights, size_t workspace_size, void *workspace,
                        size_t reserve_size, void *reserve)
{
    return library_call(
        "cudnnRNNBackwardData_v8", CUDNN_STATUS_EXECUTION_FAILED, [&](Machine &m, Lock &lock) {
            if (!network || !x_data || !y_data || !reserve)
                return CUDNN_STATUS_BAD_PARAM;
            Call call = {handle, network,      x_data,         y_data,       h_state,   c_state,
                         true,   weights_size, workspace_size, reserve_size, workspace, {}};
            call.run.hx = bytes(hx), call.run.cx = bytes(cx);
            call.run.dy = bytes(dy), call.run.dhy = bytes(dhy), call.run.dcy = bytes(dcy);
            call.run.dx = bytes(dx), call.run.dhx = bytes(dhx), call.run.dcx = bytes(dcx);
            call.run.weights = bytes(weights);
            call.run.reserve = bytes(reserve);
            const int64_t h = state_elements(call, false), c = state_elements(call, true);
            cudnnStatus_t status = check(m, call,
                                         {{y, data_elements(y_data), true},
                                          {dy, data_elements(y_data), true},
                                          {dx, data_elements(x_data), true},
                                          {hx, h, false},
                                          {dhy, h, false},
                                          {dhx, h, false},
                                          {cx, c, false},
                                          {dcy, c, false},
                                          {dcx, c, false},
                                          {weights, network->network.elements(), true}});
            return status != CUDNN_STATUS_SUCCESS ? status : enqueue(m, lock, call, recurrent_data);
        });
}

cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t network,
                                         cudnnWgradMode_t mode, const int32_t[],
                                         cudnnRNNDataDescriptor_t x_data, const void *x,
                                         cudnnTensorDescriptor_t h_state, const void *hx,
                                         cudnnRNNDataDescriptor_t y_data, const void *y,
                                         size_t weights_size, void *dweights, size_t workspace_size,
                                         void *workspace, size_t reserve_size, void *reserve)
{
    return library_call(
        "cudnnRNNBackwardWeights_v8", CUDNN_STATUS_EXECUTION_FAILED, [&](Machine &m, Lock &lock) {
            if (!network || !x_data || !y_data || !reserve)
                return CUDNN_STATUS_BAD_PARAM;
            if (mode != CUDNN_WGRAD_MODE_ADD)
                return CUDNN_STATUS_NOT_SUPPORTED;
            Call call = {handle, network,      x_data,         y_data,       h_state,   nullptr,
                         false,  weights_size, workspace_size, reserve_size, workspace, {}};
            call.run.x = bytes(x), call.run.hx = bytes(hx);
            call.run.dweights = bytes(dweights);
            call.run.reserve = bytes(reserve);
            const int64_t h = state_elements(call, false);
            cudnnStatus_t status = check(m, call,
                                         {{x, data_elements(x_data), true},
                                          {y, data_elements(y_data), true},
                                          {hx, h, false},
                                          {dweights, network->network.elements(), true}});
            return status != CUDNN_STATUS_SUCCESS ? status
                                                  : enqueue(m, lock, call, recurrent_weights);
        });
}
