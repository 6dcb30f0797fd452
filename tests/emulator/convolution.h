// convolution.h: a convolution as cuDNN defines it, or one of its gradients.
#ifndef EK_EMULATOR_CONVOLUTION_H
#define EK_EMULATOR_CONVOLUTION_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include <library_types.h>

#include "product.h"

namespace emulator
{

struct ConvolutionTensor {
    char *data = nullptr;
    cudaDataType type = CUDA_R_32F;
    std::vector<int64_t> shape, strides; // in elements

    size_t bytes() const; // from the first element to the end of the last
};

struct Convolution {
    ConvolutionTensor x, w, y; // (N, C, ...), (O, C / groups, ...), (N, O, ...)
    char *bias = nullptr;      // O elements of y's type, or NULL
    std::vector<int64_t> stride, dilation, before, after;
    enum { X, W, Y } output = Y; // the tensor that is computed
    bool tf32 = false;           // operands lose the bits of mantissa that TF32 lacks
    SumOrder order;              // of sums of products; sums over samples begin with sample `first`
};

// Returns true if the shapes fit together.
bool convolution_fits(const Convolution &c);

void convolve(const Convolution &c);

} // namespace emulator

#endif
