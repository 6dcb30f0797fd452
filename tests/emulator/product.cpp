// product.cpp: see product.h. Operands are packed into panels, so that the innermost loop reads
// both of them in order and the compiler makes vectors of it.
#include "product.h"

#include <cstring>
#include <vector>

#include "fiber.h"

namespace emulator
{

size_t element_size(cudaDataType type)
{
    switch (type) {
    case CUDA_R_32F:
        return 4;
    case CUDA_R_64F:
        return 8;
    case CUDA_R_16BF:
        return 2;
    default:
        return 0;
    }
}

namespace
{

enum { ROWS = 16, COLUMNS = 4 };

// clang has no function with both attributes; ThreadSanitizer fails where clones are chosen.
#if defined(__x86_64__) && !defined(__clang__) && !defined(EK_EMULATOR_TSAN)
#define EK_EMULATOR_FAST __attribute__((target_clones("avx2", "default")))
#else
#define EK_EMULATOR_FAST
#endif

// sum[column][row] += a[row] b[column] over k steps. Private memory only: nothing to check here.
#define EK_EMULATOR_TILE(T)                                                                    \
    EK_EMULATOR_FAST __attribute__((no_sanitize("address", "thread", "undefined"))) void tile( \
        const T *__restrict__ a, const T *__restrict__ b, int64_t k, T *__restrict__ sum)      \
    {                                                                                          \
        T s0[ROWS] = {0}, s1[ROWS] = {0}, s2[ROWS] = {0}, s3[ROWS] = {0};                      \
        for (int64_t step = 0; step < k; step++, a += ROWS, b += COLUMNS) {                    \
            for (int row = 0; row < ROWS; row++) {                                             \
                s0[row] += a[row] * b[0];                                                      \
                s1[row] += a[row] * b[1];                                                      \
                s2[row] += a[row] * b[2];                                                      \
                s3[row] += a[row] * b[3];                                                      \
            }                                                                                  \
        }                                                                                      \
        for (int row = 0; row < ROWS; row++) {                                                 \
            sum[row] = s0[row];                                                                \
            sum[ROWS + row] = s1[row];                                                         \
            sum[2 * ROWS + row] = s2[row];                                                     \
            sum[3 * ROWS + row] = s3[row];                                                     \
        }                                                                                      \
    }
EK_EMULATOR_TILE(float)
EK_EMULATOR_TILE(double)

template <typename T> T load(const char *data, cudaDataType type, int64_t index)
{
    if (type == CUDA_R_32F)
        return (T) reinterpret_cast<const float *>(data)[index];
    if (type == CUDA_R_64F)
        return (T) reinterpret_cast<const double *>(data)[index];
    uint32_t bits = (uint32_t) reinterpret_cast<const uint16_t *>(data)[index] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (T)value;
}

template <typename T> void store(char *data, cudaDataType type, int64_t index, T value)
{
    if (type == CUDA_R_32F) {
        reinterpret_cast<float *>(data)[index] = (float)value;
        return;
    }
    if (type == CUDA_R_64F) {
        reinterpret_cast<double *>(data)[index] = (double)value;
        return;
    }
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    reinterpret_cast<uint16_t *>(data)[index] = (uint16_t)(nan ? 0x7fc0u | (bits >> 16) : rounded);
}

// Panels of `width` lines each, zeros beyond the last: panel[step][line].
template <typename T>
std::vector<T> pack(const Matrix &x, int64_t offset, int64_t lines, int64_t k, int width,
                    bool lines_are_columns)
{
    std::vector<T> packed((size_t)((lines + width - 1) / width * width * k));
    int64_t line_step = x.transposed != lines_are_columns ? x.leading : 1;
    int64_t inner_step = x.transposed != lines_are_columns ? 1 : x.leading;
    for (int64_t line = 0; line < lines; line++) {
        T *to = packed.data() + line / width * width * k + line % width;
        for (int64_t step = 0; step < k; step++)
            to[step * width] =
                load<T>(x.data, x.type, offset + line * line_step + step * inner_step);
    }
    return packed;
}

template <typename T> void multiply_one(const Product &p, int64_t index)
{
    std::vector<T> a = pack<T>(p.a, index * p.a.stride, p.m, p.k, ROWS, false);
    std::vector<T> b = pack<T>(p.b, index * p.b.stride, p.n, p.k, COLUMNS, true);
    T sum[ROWS * COLUMNS];
    for (int64_t column = 0; column < p.n; column += COLUMNS) {
        for (int64_t row = 0; row < p.m; row += ROWS) {
            tile(a.data() + row * p.k, b.data() + column * p.k, p.k, sum);
            for (int64_t j = column; j < p.n && j < column + COLUMNS; j++) {
                for (int64_t i = row; i < p.m && i < row + ROWS; i++) {
                    int64_t at = index * p.c.stride + j * p.c.leading + i;
                    T value = (T)p.alpha * sum[(j - column) * ROWS + i - row];
                    if (p.beta != 0)
                        value += (T)p.beta * load<T>(p.c.data, p.c.type, at);
                    store<T>(p.c.data, p.c.type, at, value);
                }
            }
        }
    }
}

} // namespace

void multiply(const Product &product)
{
    for (int64_t index = 0; index < product.batch; index++) {
        if (product.in_double)
            multiply_one<double>(product, index);
        else
            multiply_one<float>(product, index);
    }
}

} // namespace emulator
