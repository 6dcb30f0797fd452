// product.h: a matrix product as cuBLAS defines it, columns first.
#ifndef EK_EMULATOR_PRODUCT_H
#define EK_EMULATOR_PRODUCT_H

#include <cstddef>
#include <cstdint>

#include <library_types.h>

namespace emulator
{

struct Matrix {
    char *data;
    cudaDataType type;
    int64_t leading, stride; // between columns and between matrices of a batch, in elements
    bool transposed;
};

struct Product {
    int64_t m, n, k, batch;
    Matrix a, b, c;
    double alpha, beta;
    bool in_double;
};

size_t element_size(cudaDataType type); // 0 for types it doesn't know

// c = alpha a b + beta c, with sums in f32 or f64. With beta 0, what c held is not read.
void multiply(const Product &product);

} // namespace emulator

#endif
