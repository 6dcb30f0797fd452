#include "host/tile.h"

#include "host/parallel.h"
#include "kernels/formulas.h"

enum { SHORT_ROW = 128 }; /* shorter rows share a tile */

ek_class ek_class_of(ek_dtype dtype)
{
    switch (dtype) {
    case EK_F64:
        return EK_CLASS_F64;
    case EK_I64:
    case EK_U8:
        return EK_CLASS_I64;
    default:
        return EK_CLASS_F32;
    }
}

bool ek_class_is_dtype(ek_class type, ek_dtype dtype)
{
    return (type == EK_CLASS_F32 && dtype == EK_F32) || (type == EK_CLASS_F64 && dtype == EK_F64) ||
           (type == EK_CLASS_I64 && dtype == EK_I64);
}

/* ---- rows ---- */

/* Conversions by way of a value's natural type: X_of_Y where X is an element and Y a class, or the
 * other way round. */
#define SAME(v) (v)
#define TO_FLOAT(v) ((float)(v))
#define TO_DOUBLE(v) ((double)(v))
#define TO_I64(v) ((int64_t)(v))
#define TO_U8(v) ((uint8_t)(v))
#define DOUBLE_OF_BF16(v) ((double)ek_float_of_bf16(v))
#define I64_OF_BF16(v) ek_i64_of((double)ek_float_of_bf16(v))
#define I64_OF_REAL(v) ek_i64_of((double)(v))
#define U8_OF_REAL(v) ((uint8_t)ek_i64_of((double)(v)))
#define BF16_OF(v) ek_bf16_of((float)(v))

/* X(class, class type, dtype, element type, to class, to element) */
#define CONVERSIONS(X)                                       \
    X(F32, float, F32, float, SAME, SAME)                    \
    X(F32, float, F64, double, TO_FLOAT, TO_DOUBLE)          \
    X(F32, float, BF16, uint16_t, ek_float_of_bf16, BF16_OF) \
    X(F32, float, I64, int64_t, TO_FLOAT, I64_OF_REAL)       \
    X(F32, float, U8, uint8_t, TO_FLOAT, U8_OF_REAL)         \
    X(F64, double, F32, float, TO_DOUBLE, TO_FLOAT)          \
    X(F64, double, F64, double, SAME, SAME)                  \
    X(F64, double, BF16, uint16_t, DOUBLE_OF_BF16, BF16_OF)  \
    X(F64, double, I64, int64_t, TO_DOUBLE, I64_OF_REAL)     \
    X(F64, double, U8, uint8_t, TO_DOUBLE, U8_OF_REAL)       \
    X(I64, int64_t, F32, float, I64_OF_REAL, TO_FLOAT)       \
    X(I64, int64_t, F64, double, I64_OF_REAL, TO_DOUBLE)     \
    X(I64, int64_t, BF16, uint16_t, I64_OF_BF16, BF16_OF)    \
    X(I64, int64_t, I64, int64_t, SAME, SAME)                \
    X(I64, int64_t, U8, uint8_t, TO_I64, TO_U8)

#define KEY(type, dtype) ((int)(type)*EK_DTYPES + (int)(dtype))

EK_MULTIVERSION
void ek_row_load(ek_class type, void *row, ek_dtype dtype, const void *source, int64_t stride,
                 int64_t count)
{
    switch (KEY(type, dtype)) {
#define LOAD(c, ctype, d, etype, to_class, to_element) \
    case KEY(EK_CLASS_##c, EK_##d): {                  \
        ctype *restrict to = row;                      \
        const etype *restrict from = source;           \
        if (stride == 1) {                             \
            for (int64_t i = 0; i < count; i++)        \
                to[i] = to_class(from[i]);             \
        } else if (stride == 0 && count > 0) {         \
            ctype value = to_class(from[0]);           \
            for (int64_t i = 0; i < count; i++)        \
                to[i] = value;                         \
        } else {                                       \
            for (int64_t i = 0; i < count; i++)        \
                to[i] = to_class(from[i * stride]);    \
        }                                              \
        break;                                         \
    }
        CONVERSIONS(LOAD)
#undef LOAD
    default:
        break;
    }
}

EK_MULTIVERSION
void ek_row_store(ek_class type, const void *row, ek_dtype dtype, void *target, int64_t stride,
                  int64_t count)
{
    switch (KEY(type, dtype)) {
#define STORE(c, ctype, d, etype, to_class, to_element) \
    case KEY(EK_CLASS_##c, EK_##d): {                   \
        const ctype *restrict from = row;               \
        etype *restrict to = target;                    \
        if (stride == 1) {                              \
            for (int64_t i = 0; i < count; i++)         \
                to[i] = to_element(from[i]);            \
        } else {                                        \
            for (int64_t i = 0; i < count; i++)         \
                to[i * stride] = to_element(from[i]);   \
        }                                               \
        break;                                          \
    }
        CONVERSIONS(STORE)
#undef STORE
    default:
        break;
    }
}

/* ---- tiles of a walk ---- */

ek_operand ek_operand_of(const ek_walk *walk, int index, const ek_tensor *tensor)
{
    bool periodic = true;
    for (int d = 0; d < walk->ndim - 1; d++)
        periodic = periodic && walk->stride[index][d] == 0;
    return (ek_operand){.periodic = periodic,
                        .index = index,
                        .dtype = tensor->dtype,
                        .data = ek_tensor_address(tensor),
                        .constant = ek_walk_is_constant(walk, index)};
}

int64_t ek_tile_count(const ek_walk *walk, const ek_cursor *cursor, int64_t rest)
{
    int64_t row = walk->shape[walk->ndim - 1];
    bool whole = row > 0 && row < SHORT_ROW && cursor->index[walk->ndim - 1] == 0;
    int64_t count = whole ? EK_TILE / row * row : ek_cursor_row_rest(walk, cursor);
    if (count > EK_TILE)
        count = EK_TILE;
    return count < rest ? count : rest;
}

static char *place(const ek_operand *operand, int64_t offset)
{
    return (char *)operand->data + offset * (int64_t)ek_dtype_size(operand->dtype);
}

static bool is_in_place(const ek_walk *walk, const ek_cursor *cursor, const ek_operand *operand,
                        ek_class type, int64_t count)
{
    return ek_class_is_dtype(type, operand->dtype) &&
           walk->stride[operand->index][walk->ndim - 1] == 1 &&
           (count <= ek_cursor_row_rest(walk, cursor) || ek_walk_is_flat(walk, operand->index));
}

static size_t class_size(ek_class type)
{
    return type == EK_CLASS_F32 ? sizeof(float) : sizeof(double);
}

const void *ek_tile_load(const ek_walk *walk, const ek_cursor *cursor, const ek_operand *operand,
                         ek_class type, int64_t count, ek_tile *tile)
{
    int k = operand->index;
    if (is_in_place(walk, cursor, operand, type, count))
        return place(operand, cursor->offset[k]);
    int64_t stride = walk->stride[k][walk->ndim - 1];
    if (operand->constant || count <= ek_cursor_row_rest(walk, cursor)) {
        ek_row_load(type, tile, operand->dtype, place(operand, cursor->offset[k]),
                    operand->constant ? 0 : stride, count);
        return tile;
    }
    ek_cursor at = *cursor;
    for (int64_t done = 0; done < count;) {
        int64_t run = ek_cursor_row_rest(walk, &at);
        run = run < count - done ? run : count - done;
        ek_row_load(type, (char *)tile + (size_t)done * class_size(type), operand->dtype,
                    place(operand, at.offset[k]), stride, run);
        ek_cursor_advance(walk, &at, run);
        done += run;
    }
    return tile;
}

void *ek_tile_target(const ek_walk *walk, const ek_cursor *cursor, const ek_operand *operand,
                     ek_class type, int64_t count, ek_tile *tile)
{
    if (is_in_place(walk, cursor, operand, type, count))
        return place(operand, cursor->offset[operand->index]);
    return tile;
}

void ek_tile_store(const ek_walk *walk, const ek_cursor *cursor, const ek_operand *operand,
                   ek_class type, int64_t count, const void *target, const ek_tile *tile)
{
    if (target != tile)
        return;
    int k = operand->index;
    int64_t stride = walk->stride[k][walk->ndim - 1];
    ek_cursor at = *cursor;
    for (int64_t done = 0; done < count;) {
        int64_t run = ek_cursor_row_rest(walk, &at);
        run = run < count - done ? run : count - done;
        ek_row_store(type, (const char *)tile + (size_t)done * class_size(type), operand->dtype,
                     place(operand, at.offset[k]), stride, run);
        ek_cursor_advance(walk, &at, run);
        done += run;
    }
}

void ek_tile_advance(const ek_walk *walk, ek_cursor *cursor, int64_t count)
{
    while (count > 0) {
        int64_t run = ek_cursor_row_rest(walk, cursor);
        run = run < count ? run : count;
        ek_cursor_advance(walk, cursor, run);
        count -= run;
    }
}
