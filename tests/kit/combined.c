/* combined.c: see combined.h. */
#include "kit/combined.h"

#include <math.h>

#include "core/bits.h"
#include "core/tensor.h"

double combined_number(ek_dtype dtype, int term, int64_t i)
{
    uint64_t bits =
        ((uint64_t)i * 2654435761u + (uint64_t)term * 40503u + 12345u) * 0x9e3779b97f4a7c15u;
    double unit = (double)(bits >> 40) / (double)(1 << 24);
    if (dtype == EK_U8)
        return floor(unit * 255);
    if (dtype == EK_BOOL)
        return unit > 0.7;
    return !ek_dtype_is_floating(dtype) ? floor(unit * 2000) - 1000 : unit * 4 - 2;
}

void combined_write(ek_dtype dtype, void *data, int64_t i, double x)
{
    switch (dtype) {
    case EK_F32:
        ((float *)data)[i] = (float)x;
        break;
    case EK_F64:
        ((double *)data)[i] = x;
        break;
    case EK_BF16:
        ((uint16_t *)data)[i] = ek_bf16_of((float)x);
        break;
    case EK_I64:
        ((int64_t *)data)[i] = (int64_t)x;
        break;
    case EK_F16:
        ((uint16_t *)data)[i] = ek_f16_of((float)x);
        break;
    case EK_I32:
        ((int32_t *)data)[i] = (int32_t)x;
        break;
    case EK_U8:
        ((uint8_t *)data)[i] = (uint8_t)x;
        break;
    case EK_BOOL:
        ((uint8_t *)data)[i] = x != 0;
        break;
    }
}

static int64_t combined_integers(ek_dist_op op, int64_t x, int64_t y)
{
    return op == EK_DIST_PRODUCT ? (int64_t)((uint64_t)x * (uint64_t)y)
           : op == EK_DIST_MIN   ? (x < y ? x : y)
           : op == EK_DIST_MAX   ? (x > y ? x : y)
           : op == EK_DIST_BAND  ? (x & y)
           : op == EK_DIST_BOR   ? (x | y)
           : op == EK_DIST_BXOR  ? (x ^ y)
                                 : (int64_t)((uint64_t)x + (uint64_t)y);
}

static double combined_floats(ek_dist_op op, double x, double y)
{
    return op == EK_DIST_PRODUCT ? x * y
           : op == EK_DIST_MIN   ? fmin(x, y)
           : op == EK_DIST_MAX   ? fmax(x, y)
                                 : x + y;
}

/* A number of an integer or of a floating dtype. */
typedef struct combined_value {
    bool absent;
    int64_t integer;
    double x;
} combined_value;

static combined_value combined_leaf(ek_dtype dtype, int term, int64_t i)
{
    double x = combined_number(dtype, term, i);
    return (combined_value){
        .integer = (int64_t)x,
        .x = dtype == EK_F64    ? x
             : dtype == EK_BF16 ? (double)ek_float_of_bf16(ek_bf16_of((float)x))
             : dtype == EK_F16  ? (double)ek_float_of_f16(ek_f16_of((float)x))
                                : (double)(float)x,
    };
}

/* Returns how many of `count` terms, at least two, are in the first of the two parts. */
static int combined_half(int count)
{
    int half = 1;
    while (2 * half < count)
        half *= 2;
    return half;
}

/* Combines the terms [low, high): s(low, middle) op s(middle, high). */
static combined_value combined_range(ek_dist_op op, ek_dtype dtype, int low, int high,
                                     const bool *absent, int64_t i)
{
    if (high - low == 1)
        return absent && absent[low] ? (combined_value){.absent = true}
                                     : combined_leaf(dtype, low, i);
    int middle = low + combined_half(high - low);
    combined_value x = combined_range(op, dtype, low, middle, absent, i);
    combined_value y = combined_range(op, dtype, middle, high, absent, i);
    if (x.absent || y.absent)
        return x.absent ? y : x;
    x.integer = combined_integers(op, x.integer, y.integer);
    x.x = combined_floats(op, x.x, y.x);
    if (dtype != EK_F64)
        x.x = (double)(float)x.x;
    return x;
}

void combined(ek_dist_op op, ek_dtype dtype, int terms, const bool *absent, int64_t i, void *out)
{
    combined_value all = combined_range(op, dtype, 0, terms, absent, i);
    if (op == EK_DIST_AVG)
        all.x = dtype == EK_F64 ? all.x / terms : (double)((float)all.x / (float)terms);
    if (dtype == EK_U8)
        *(uint8_t *)out = (uint8_t)all.integer;
    else if (dtype == EK_I32)
        *(int32_t *)out = (int32_t)all.integer;
    else if (dtype == EK_I64)
        *(int64_t *)out = all.integer;
    else
        combined_write(dtype, out, 0, dtype == EK_BOOL ? (double)all.integer : all.x);
}

float combined_f32(const float *terms, int count)
{
    if (count == 1)
        return terms[0];
    int half = combined_half(count);
    return combined_f32(terms, half) + combined_f32(terms + half, count - half);
}
