// product.h: a matrix product as cuBLAS defines it, columns first.
#ifndef EK_EMULATOR_PRODUCT_H
#define EK_EMULATOR_PRODUCT_H

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include <library_types.h>

namespace emulator
{

struct Matrix {
    char *data;
    cudaDataType type;
    int64_t leading, stride; // between columns and between matrices of a batch, in elements
    bool transposed;
};

// What is done before a result is rounded, and to operands beside.
struct Epilogue {
    char *vector;       // of c's type, elements side by side; NULL for nothing
    bool bias;          // the vector, one element for each row of c, is added
    bool relu;          // negative results become 0
    bool relu_eats_nan; // as fmaxf(x, 0) does
    bool sum_a, sum_b;  // the vector gets sums over k, of a's rows or of b's columns
};

// The order of a sum: its terms are cut into `parts` parts, and the parts' sums are added one after
// another, beginning with part `first`.
struct SumOrder {
    int parts = 1, first = 0;
};

// Returns a number that depends on all sizes of a problem.
uint64_t mix(std::initializer_list<int64_t> sizes);

struct Product {
    int64_t m, n, k, batch;
    Matrix a, b, c;
    double alpha, beta;
    bool in_double;
    Epilogue epilogue;
    bool tf32;      // operands lose the bits of mantissa that TF32 lacks
    SumOrder order; // of sums over k
};

size_t element_size(cudaDataType type); // 0 for types it doesn't know

// Read an element as f32, and write it with one rounding.
float load_float(const char *data, cudaDataType type, int64_t index);
void store_float(char *data, cudaDataType type, int64_t index, float value);

// Cuts a number to TF32's 10 bits of mantissa. The error is twice as large as that of rounding.
float tf32_of(float value);

// c = alpha a b + beta c, with sums in f32 or f64. With beta 0, what c held is not read.
void multiply(const Product &product);

} // namespace emulator

#endif
