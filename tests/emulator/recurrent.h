// recurrent.h: a recurrent network as cuDNN defines it, and its gradients.
#ifndef EK_EMULATOR_RECURRENT_H
#define EK_EMULATOR_RECURRENT_H

#include <cudnn.h>
#include <library_types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace emulator
{

struct Network {
    cudnnRNNMode_t cell = CUDNN_LSTM;
    bool bias = false;
    cudaDataType type = CUDA_R_32F;
    int64_t input = 0, hidden = 0, size = 0; // size: of h, which an LSTM may project
    int layers = 0, directions = 1;

    int rows() const
    {
        return layers * directions;
    }
    int64_t gates() const
    {
        return cell == CUDNN_LSTM ? 4 : cell == CUDNN_GRU ? 3 : 1;
    }
    bool projects() const
    {
        return size != hidden;
    }
    int64_t columns(int row) const // of a row's input
    {
        return row < directions ? input : directions * size;
    }
    // Where a row's weights begin in the weight space, in elements: of the input, of h and of the
    // projection. All biases follow the weights, after a gap.
    int64_t weights_at(int row) const;
    int64_t recurrent_at(int row) const
    {
        return weights_at(row) + gates() * hidden * columns(row);
    }
    int64_t projection_at(int row) const
    {
        return recurrent_at(row) + gates() * hidden * size;
    }
    int64_t biases_at(int row) const; // those of the input, then those of h
    int64_t elements() const
    {
        return biases_at(rows());
    }
};

// A call. Addresses that a call doesn't have are NULL.
struct RecurrentCall {
    Network network;
    int64_t steps = 0, samples = 0;
    std::vector<int> lengths;
    const char *x = nullptr, *hx = nullptr, *cx = nullptr, *weights = nullptr;
    char *y = nullptr, *hy = nullptr, *cy = nullptr;
    const char *dy = nullptr, *dhy = nullptr, *dcy = nullptr;
    char *dx = nullptr, *dhx = nullptr, *dcx = nullptr, *dweights = nullptr;
    bool pads = false; // y beyond a sample's length becomes 0, not undefined
    char *reserve = nullptr;

    size_t reserve_bytes() const;
};

// Compute outputs, and gradients of data and of weights. Data need the reserve that the forward has
// written, and weights the reserve that data have written. With another reserve they return false.
void recurrent_forward(const RecurrentCall &call);
bool recurrent_data(const RecurrentCall &call);
bool recurrent_weights(const RecurrentCall &call);

} // namespace emulator

#endif
