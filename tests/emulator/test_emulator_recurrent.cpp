// test_emulator_recurrent.cpp: cuDNN's recurrent networks: what is refused, and one step by hand.
#include <cudnn.h>

#include "test_emulator.h"

static const int STEPS = 2, SAMPLES = 1;

#define GOOD(call) ck_assert_int_eq((int)(call), (int)CUDNN_STATUS_SUCCESS)
#define BAD(call) ck_assert_int_eq((int)(call), (int)CUDNN_STATUS_BAD_PARAM)
#define UNSUPPORTED(call) ck_assert_int_eq((int)(call), (int)CUDNN_STATUS_NOT_SUPPORTED)

// A tanh network of one unit, with the memory of its calls.
struct Net {
    cudnnHandle_t handle;
    cudaStream_t stream;
    cudnnDropoutDescriptor_t dropout;
    cudnnRNNDescriptor_t network;
    cudnnRNNDataDescriptor_t data;
    cudnnTensorDescriptor_t state;
    size_t weights_size, workspace_size, reserve_size;
    float *x, *y, *h, *weights, *dweights, *dx;
    char *workspace, *reserve;
};

static cudnnStatus_t set_network(Net &n, cudnnRNNMode_t cell, int hidden, int projected,
                                 cudnnDataType_t type, cudnnDataType_t precision, uint32_t flags)
{
    return cudnnSetRNNDescriptor_v8(n.network, CUDNN_RNN_ALGO_STANDARD, cell, CUDNN_RNN_NO_BIAS,
                                    CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, type, precision,
                                    CUDNN_DEFAULT_MATH, 1, hidden, projected, 1, n.dropout, flags);
}

// Sets the addresses of a linear layer's matrix and bias.
static cudnnStatus_t locate(const Net &n, int row, int layer, void *at[2])
{
    cudnnTensorDescriptor_t bias;
    GOOD(cudnnCreateTensorDescriptor(&bias));
    const cudnnStatus_t status =
        cudnnGetRNNWeightParams(n.handle, n.network, row, n.weights_size, n.weights, layer, n.state,
                                &at[0], bias, &at[1]);
    GOOD(cudnnDestroyTensorDescriptor(bias));
    return status;
}

static cudnnStatus_t set_data(Net &n, int length, cudnnRNNDataLayout_t layout)
{
    float zero = 0;
    return cudnnSetRNNDataDescriptor(n.data, CUDNN_DATA_FLOAT, layout, STEPS, SAMPLES, 1, &length,
                                     &zero);
}

// Memory of zeros at a multiple of 256.
static char *aligned_array(size_t size, cudaStream_t stream)
{
    char *array = device_array<char>(size + 256);
    OK(cudaMemsetAsync(array, 0, size + 256, stream));
    return array + (256 - (uintptr_t)array % 256) % 256;
}

static Net make_net(int length)
{
    Net n = {};
    const int sizes[] = {1, SAMPLES, 1}, strides[] = {SAMPLES, 1, 1};
    n.stream = new_stream();
    GOOD(cudnnCreate(&n.handle));
    GOOD(cudnnSetStream(n.handle, n.stream));
    GOOD(cudnnCreateDropoutDescriptor(&n.dropout));
    GOOD(cudnnCreateRNNDescriptor(&n.network));
    BAD(set_network(n, CUDNN_RNN_TANH, 1, 1, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 1));
    GOOD(cudnnSetDropoutDescriptor(n.dropout, n.handle, 0, nullptr, 0, 0));
    GOOD(set_network(n, CUDNN_RNN_TANH, 1, 1, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT,
                     CUDNN_RNN_PADDED_IO_ENABLED));
    GOOD(cudnnCreateRNNDataDescriptor(&n.data));
    GOOD(set_data(n, length, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED));
    GOOD(cudnnCreateTensorDescriptor(&n.state));
    GOOD(cudnnSetTensorNdDescriptor(n.state, CUDNN_DATA_FLOAT, 3, sizes, strides));
    GOOD(cudnnGetRNNWeightSpaceSize(n.handle, n.network, &n.weights_size));
    GOOD(cudnnGetRNNTempSpaceSizes(n.handle, n.network, CUDNN_FWD_MODE_TRAINING, n.data,
                                   &n.workspace_size, &n.reserve_size));
    n.x = device_copy<float>({0.5f, 0.25f}, n.stream);
    n.y = device_array<float>(STEPS);
    n.dx = device_array<float>(STEPS);
    n.h = device_copy<float>({0.125f}, n.stream);
    n.dweights = (float *)aligned_array(n.weights_size, n.stream);
    n.workspace = aligned_array(n.workspace_size, n.stream);
    n.reserve = aligned_array(n.reserve_size, n.stream);
    std::vector<float> weights(n.weights_size / 4);
    n.weights = (float *)aligned_array(n.weights_size, n.stream);
    for (int layer = 0; layer < 2; layer++) { // of the input 2, of h 3
        void *at[2];
        GOOD(locate(n, 0, layer, at));
        weights[(size_t)((float *)at[0] - n.weights)] = 2 + (float)layer;
    }
    GOOD(cudnnSetTensorNdDescriptor(n.state, CUDNN_DATA_FLOAT, 3, sizes, strides));
    OK(cudaMemcpyAsync(n.weights, weights.data(), n.weights_size, cudaMemcpyHostToDevice,
                       n.stream));
    return n;
}

static cudnnStatus_t forward(Net &n, size_t reserve_size)
{
    return cudnnRNNForward(n.handle, n.network, CUDNN_FWD_MODE_TRAINING, nullptr, n.data, n.x,
                           n.data, n.y, n.state, n.h, nullptr, nullptr, nullptr, nullptr,
                           n.weights_size, n.weights, n.workspace_size, n.workspace, reserve_size,
                           n.reserve);
}

static cudnnStatus_t data(Net &n)
{
    return cudnnRNNBackwardData_v8(n.handle, n.network, nullptr, n.data, n.y, n.y, n.data, n.dx,
                                   n.state, n.h, nullptr, nullptr, nullptr, nullptr, nullptr,
                                   nullptr, n.weights_size, n.weights, n.workspace_size,
                                   n.workspace, n.reserve_size, n.reserve);
}

static cudnnStatus_t weights(Net &n, cudnnWgradMode_t mode)
{
    return cudnnRNNBackwardWeights_v8(n.handle, n.network, mode, nullptr, n.data, n.x, n.state, n.h,
                                      n.data, n.y, n.weights_size, n.dweights, n.workspace_size,
                                      n.workspace, n.reserve_size, n.reserve);
}

TEST(one_step_by_hand)
{
    Net n = make_net(1);
    GOOD(forward(n, n.reserve_size));
    GOOD(data(n)); // dy = y
    GOOD(weights(n, CUDNN_WGRAD_MODE_ADD));
    const std::vector<float> y = host_copy(n.y, STEPS, n.stream),
                             dx = host_copy(n.dx, STEPS, n.stream),
                             dw = host_copy(n.dweights, 2, n.stream);
    OK(cudaStreamSynchronize(n.stream));
    const float wanted = tanhf(2 * 0.5f + 3 * 0.125f), slope = wanted * (1 - wanted * wanted);
    ck_assert_float_eq_tol(y[0], wanted, 1e-6f);
    ck_assert_float_eq(y[1], 0); // beyond the sample's length
    ck_assert_float_eq_tol(dx[0], 2 * slope, 1e-6f);
    ck_assert(isnan(dx[1]));
    ck_assert_float_eq_tol(dw[0], slope * 0.5f, 1e-6f);
    ck_assert_float_eq_tol(dw[1], slope * 0.125f, 1e-6f);
}

TEST(refused_descriptors)
{
    Net n = make_net(STEPS);
    UNSUPPORTED(set_network(n, CUDNN_GRU, 2, 1, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 1));
    UNSUPPORTED(set_network(n, CUDNN_LSTM, 1, 2, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 1));
    BAD(set_network(n, CUDNN_LSTM, 1, 0, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 1));
    UNSUPPORTED(set_network(n, CUDNN_LSTM, 1, 1, CUDNN_DATA_BFLOAT16, CUDNN_DATA_BFLOAT16, 1));
    BAD(set_data(n, STEPS + 1, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED));
    BAD(set_data(n, -1, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED));
    void *at[2];
    BAD(locate(n, 1, 0, at));
    BAD(locate(n, 0, 2, at));
    BAD(cudnnGetRNNWeightParams(n.handle, n.network, 0, n.weights_size, n.weights, 0, n.state, at,
                                nullptr, nullptr));
    GOOD(locate(n, 0, 0, at));
    ck_assert_ptr_null(at[1]); // there are no biases
}

TEST(refused_calls)
{
    Net n = make_net(STEPS);
    BAD(forward(n, n.reserve_size - 1));
    UNSUPPORTED(weights(n, CUDNN_WGRAD_MODE_SET));
    n.workspace_size--;
    BAD(forward(n, n.reserve_size));
    n.workspace_size++;
    n.reserve += 128;
    BAD(forward(n, n.reserve_size)); // aligned to less than 256
    n.reserve -= 128;
    n.x++; // reaches beyond its allocation
    BAD(forward(n, n.reserve_size));
    n.x--;
    GOOD(set_network(n, CUDNN_RNN_TANH, 1, 1, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT,
                     CUDNN_RNN_PADDED_IO_DISABLED));
    BAD(forward(n, n.reserve_size)); // padded steps
    GOOD(set_network(n, CUDNN_LSTM, 1, 1, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 1));
    BAD(forward(n, n.reserve_size)); // no description of c
}
