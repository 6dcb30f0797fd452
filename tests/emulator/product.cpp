// product.cpp: see product.h. Operands are packed into panels, so that the innermost loop reads
// both of them in order and the compiler makes vectors of it.
#include "product.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "fiber.h"
#include "half.h"

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
    case CUDA_R_16F:
        return 2;
    default:
        return 0;
    }
}

uint64_t mix(std::initializer_list<int64_t> sizes)
{
    uint64_t mixed = 0x9e3779b97f4a7c15u;
    for (int64_t size : sizes) {
        mixed = (mixed ^ (uint64_t)size) * 0xbf58476d1ce4e5b9u;
        mixed ^= mixed >> 31;
    }
    return mixed;
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
    uint16_t bits = reinterpret_cast<const uint16_t *>(data)[index];
    return (T)(type == CUDA_R_16F ? half_value(bits) : bf16_value(bits));
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
    reinterpret_cast<uint16_t *>(data)[index] =
        type == CUDA_R_16F ? half_of(narrow) : bf16_of(narrow);
}

// Panels of `width` lines each, zeros beyond the last: panel[step][line].
template <typename T>
std::vector<T> pack(const Matrix &x, int64_t offset, int64_t lines, int64_t k, int width,
                    bool lines_are_columns, bool tf32)
{
    std::vector<T> packed((size_t)((lines + width - 1) / width * width * k));
    int64_t line_step = x.transposed != lines_are_columns ? x.leading : 1;
    int64_t inner_step = x.transposed != lines_are_columns ? 1 : x.leading;
    for (int64_t line = 0; line < lines; line++) {
        T *to = packed.data() + line / width * width * k + line % width;
        for (int64_t step = 0; step < k; step++) {
            T value = load<T>(x.data, x.type, offset + line * line_step + step * inner_step);
            to[step * width] = tf32 ? (T)tf32_of((float)value) : value;
        }
    }
    return packed;
}

template <typename T> T finished(const Product &p, int64_t row, T value)
{
    const Epilogue &epilogue = p.epilogue;
    if (epilogue.bias)
        value += load<T>(epilogue.vector, p.c.type, row);
    bool nan = value != value;
    if (epilogue.relu && (nan ? epilogue.relu_eats_nan : value <= 0))
        return 0;
    return value;
}

// Calls add(begin, end) for each part of k, in the product's order.
template <typename Add> void for_parts(const Product &p, Add add)
{
    for (int i = 0; i < p.order.parts; i++) {
        int part = (p.order.first + i) % p.order.parts;
        add(p.k * part / p.order.parts, p.k * (part + 1) / p.order.parts);
    }
}

// Writes the sums over k of the panels' lines to the epilogue's vector.
template <typename T>
void sum_lines(const Product &p, const std::vector<T> &panels, int64_t lines, int width)
{
    for (int64_t line = 0; line < lines; line++) {
        const T *at = panels.data() + line / width * width * p.k + line % width;
        T sum = 0;
        for_parts(p, [&](int64_t begin, int64_t end) {
            T part = 0;
            for (int64_t step = begin; step < end; step++)
                part += at[step * width];
            sum += part;
        });
        store<T>(p.epilogue.vector, p.c.type, line, sum);
    }
}

// Writes a tile of sums over all of k.
template <typename T> void sum_tile(const Product &p, const T *a, const T *b, T *sum)
{
    T part[ROWS * COLUMNS];
    std::fill(sum, sum + ROWS * COLUMNS, (T)0);
    for_parts(p, [&](int64_t begin, int64_t end) {
        tile(a + begin * ROWS, b + begin * COLUMNS, end - begin, part);
        for (int i = 0; i < ROWS * COLUMNS; i++)
            sum[i] += part[i];
    });
}

template <typename T> void multiply_one(const Product &p, int64_t index)
{
    std::vector<T> a = pack<T>(p.a, index * p.a.stride, p.m, p.k, ROWS, false, p.tf32);
    std::vector<T> b = pack<T>(p.b, index * p.b.stride, p.n, p.k, COLUMNS, true, p.tf32);
    T sum[ROWS * COLUMNS];
    if (p.epilogue.sum_a)
        sum_lines(p, a, p.m, ROWS);
    if (p.epilogue.sum_b)
        sum_lines(p, b, p.n, COLUMNS);
    for (int64_t column = 0; column < p.n; column += COLUMNS) {
        for (int64_t row = 0; row < p.m; row += ROWS) {
            sum_tile(p, a.data() + row * p.k, b.data() + column * p.k, sum);
            for (int64_t j = column; j < p.n && j < column + COLUMNS; j++) {
                for (int64_t i = row; i < p.m && i < row + ROWS; i++) {
                    int64_t at = index * p.c.stride + j * p.c.leading + i;
                    T value = (T)p.alpha * sum[(j - column) * ROWS + i - row];
                    if (p.beta != 0)
                        value += (T)p.beta * load<T>(p.c.data, p.c.type, at);
                    store<T>(p.c.data, p.c.type, at, finished(p, i, value));
                }
            }
        }
    }
}

} // namespace

float tf32_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits &= ~(uint32_t)0x1fff;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

float load_float(const char *data, cudaDataType type, int64_t index)
{
    return load<float>(data, type, index);
}

void store_float(char *data, cudaDataType type, int64_t index, float value)
{
    store<float>(data, type, index, value);
}

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
