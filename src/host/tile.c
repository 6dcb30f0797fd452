/* tile.c: see tile.h. */
#include "host/tile.h"

#include <string.h>

#include "core/dtypes.h"
#include "host/host.h"
#include "host/isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { SHORT_ROW = 128 }; /* shorter rows share a tile */

ek_class ek_class_of(ek_dtype dtype)
{
#define CLASS(label, text, type, class, ...) [EK_##label] = EK_CLASS_##class,
    static const ek_class classes[EK_DTYPES] = {EK_DTYPE_ROWS(CLASS)};
#undef CLASS
    return classes[dtype];
}

bool ek_class_is_dtype(ek_class type, ek_dtype dtype)
{
    return (type == EK_CLASS_F32 && dtype == EK_F32) || (type == EK_CLASS_F64 && dtype == EK_F64) ||
           (type == EK_CLASS_I64 && dtype == EK_I64);
}

size_t ek_class_size(ek_class type)
{
    return type == EK_CLASS_F32 ? sizeof(float) : sizeof(double);
}

/* ---- rows ---- */

/* Rows of memory, `row_stride` elements apart, of `count` elements each, `stride` apart. */
typedef struct tile_rows {
    int64_t rows, row_stride, count, stride;
} tile_rows;

/* Convert a loaded element to its class. */
#define TO_F32(v) ((float)(v))
#define TO_F64(v) ((double)(v))
#define TO_I64_OF_F32(v) ek_i64_of((double)(v))
#define TO_I64_OF_F64(v) ek_i64_of(v)
#define TO_I64_OF_I64(v) ((int64_t)(v))

#define KEY(type, dtype) ((int)(type)*EK_DTYPES + (int)(dtype))

/* A case of tile_rows_convert. */
#define LOAD(class, label, type, value)                                               \
    case KEY(EK_CLASS_##class, EK_##label): {                                         \
        EK_TYPE_OF_##class *restrict to = target;                                     \
        const type *restrict from = source;                                           \
        for (int64_t r = 0; r < of->rows; r++, to += count, from += of->row_stride) { \
            if (stride == 1) {                                                        \
                for (int64_t i = 0; i < count; i++)                                   \
                    to[i] = value(EK_LOAD_##label(from[i]));                          \
            } else if (stride == 0 && count > 0) {                                    \
                EK_TYPE_OF_##class constant = value(EK_LOAD_##label(from[0]));        \
                for (int64_t i = 0; i < count; i++)                                   \
                    to[i] = constant;                                                 \
            } else {                                                                  \
                for (int64_t i = 0; i < count; i++)                                   \
                    to[i] = value(EK_LOAD_##label(from[i * stride]));                 \
            }                                                                         \
        }                                                                             \
        break;                                                                        \
    }
#define LOAD_F32(label, text, type, ...) LOAD(F32, label, type, TO_F32)
#define LOAD_F64(label, text, type, ...) LOAD(F64, label, type, TO_F64)
#define LOAD_I64(label, text, type, class, ...) LOAD(I64, label, type, TO_I64_OF_##class)

/* ---- contiguous rows of 16 bits, by AVX-512's conversions: bits are those of core/bits.h ---- */

#if defined(__x86_64__)

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))

/* Compilers convert 8 elements at a time, and f16 by integer arithmetic. */
AVX512 static void tile_widen(float *to, const uint16_t *from, bool bf16, int64_t count)
{
    for (int64_t i = 0; i < count; i += 16) {
        const __mmask16 mask = (__mmask16)(count - i < 16 ? (1u << (count - i)) - 1 : 0xffff);
        const __m256i half = _mm256_maskz_loadu_epi16(mask, from + i);
        const __m512i words = _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
        _mm512_mask_storeu_ps(to + i, mask,
                              bf16 ? _mm512_castsi512_ps(words) : _mm512_cvtph_ps(half));
    }
}

AVX512 static void tile_narrow(uint16_t *to, const float *from, bool bf16, int64_t count)
{
    const __m512i half = _mm512_set1_epi32(0x7fff), one = _mm512_set1_epi32(1);
    for (int64_t i = 0; i < count; i += 16) {
        const __mmask16 mask = (__mmask16)(count - i < 16 ? (1u << (count - i)) - 1 : 0xffff);
        const __m512 x = _mm512_maskz_loadu_ps(mask, from + i);
        __m256i result = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
        if (bf16) {
            const __m512i bits = _mm512_castps_si512(x), upper = _mm512_srli_epi32(bits, 16);
            __m512i rounded = _mm512_add_epi32(bits, _mm512_and_si512(upper, one));
            rounded = _mm512_srli_epi32(_mm512_add_epi32(rounded, half), 16);
            rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), upper,
                                           _mm512_set1_epi32(0x7fc0));
            result = _mm512_cvtepi32_epi16(rounded);
        }
        _mm256_mask_storeu_epi16(to + i, mask, result);
    }
}

/* Returns true if ek_row_load and ek_row_store of such a row are tile_widen and tile_narrow. */
static bool tile_has_conversion(ek_class type, ek_dtype dtype, int64_t stride)
{
    return type == EK_CLASS_F32 && (dtype == EK_BF16 || dtype == EK_F16) && stride == 1 &&
           ek_host_isa() == EK_ISA_AVX512 && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl");
}

#endif

EK_MULTIVERSION
static void tile_rows_convert(ek_class type, void *target, ek_dtype dtype, const void *source,
                              const tile_rows *of)
{
    const int64_t count = of->count, stride = of->stride;
    switch (KEY(type, dtype)) {
        EK_DTYPE_ROWS(LOAD_F32)
        EK_DTYPE_ROWS(LOAD_F64)
        EK_DTYPE_ROWS(LOAD_I64)
    default:
        break;
    }
}

/* A case of ek_row_store. */
#define STORE(class, label, type, element)             \
    case KEY(EK_CLASS_##class, EK_##label): {          \
        const EK_TYPE_OF_##class *restrict from = row; \
        type *restrict to = target;                    \
        if (stride == 1) {                             \
            for (int64_t i = 0; i < count; i++)        \
                to[i] = element(from[i]);              \
        } else {                                       \
            for (int64_t i = 0; i < count; i++)        \
                to[i * stride] = element(from[i]);     \
        }                                              \
        break;                                         \
    }
#define STORE_F32(label, text, type, ...) STORE(F32, label, type, EK_##label##_OF_REAL)
#define STORE_F64(label, text, type, ...) STORE(F64, label, type, EK_##label##_OF_REAL)
#define STORE_I64(label, text, type, ...) STORE(I64, label, type, EK_##label##_OF_INTEGER)

EK_MULTIVERSION
static void tile_row_store(ek_class type, const void *row, ek_dtype dtype, void *target,
                           int64_t stride, int64_t count)
{
    switch (KEY(type, dtype)) {
        EK_DTYPE_ROWS(STORE_F32)
        EK_DTYPE_ROWS(STORE_F64)
        EK_DTYPE_ROWS(STORE_I64)
    default:
        break;
    }
}

/* A short row of whole cache lines is copied line by line, which compiles to moves of vectors. A
 * call of memcpy would take longer. */
EK_MULTIVERSION
void ek_rows_copy(char *to, int64_t to_stride, const char *from, int64_t from_stride, size_t nbytes,
                  int64_t rows)
{
    enum { LINE = 64, SHORT = 4096 };
    const bool lines = nbytes % LINE == 0 && nbytes <= SHORT;
    for (int64_t r = 0; r < rows; r++, to += to_stride, from += from_stride) {
        for (size_t i = 0; lines && i < nbytes; i += LINE)
            memcpy(to + i, from + i, LINE);
        if (!lines)
            memcpy(to, from, nbytes);
    }
}

/* Loads rows to contiguous memory. */
static void tile_rows_load(ek_class type, void *target, ek_dtype dtype, const void *source,
                           const tile_rows *of)
{
    if (of->stride == 1 && ek_class_is_dtype(type, dtype)) {
        const int64_t size = (int64_t)ek_class_size(type);
        ek_rows_copy(target, of->count * size, source, of->row_stride * size,
                     (size_t)(of->count * size), of->rows);
        return;
    }
#if defined(__x86_64__)
    if (tile_has_conversion(type, dtype, of->stride)) {
        for (int64_t r = 0; r < of->rows; r++)
            tile_widen((float *)target + r * of->count,
                       (const uint16_t *)source + r * of->row_stride, dtype == EK_BF16, of->count);
        return;
    }
#endif
    tile_rows_convert(type, target, dtype, source, of);
}

void ek_row_load(ek_class type, void *row, ek_dtype dtype, const void *source, int64_t stride,
                 int64_t count)
{
    tile_rows_load(type, row, dtype, source, &(tile_rows){1, 0, count, stride});
}

void ek_row_store(ek_class type, const void *row, ek_dtype dtype, void *target, int64_t stride,
                  int64_t count)
{
#if defined(__x86_64__)
    if (tile_has_conversion(type, dtype, stride)) {
        tile_narrow(target, row, dtype == EK_BF16, count);
        return;
    }
#endif
    tile_row_store(type, row, dtype, target, stride, count);
}

/* Stores rows of contiguous memory. */
static void tile_rows_store(ek_class type, const char *source, ek_dtype dtype, char *target,
                            const tile_rows *of)
{
    const int64_t size = (int64_t)ek_class_size(type);
    const int64_t pitch = of->row_stride * (int64_t)ek_dtype_size(dtype);
    if (of->stride == 1 && ek_class_is_dtype(type, dtype)) {
        ek_rows_copy(target, pitch, source, of->count * size, (size_t)(of->count * size), of->rows);
        return;
    }
    for (int64_t r = 0; r < of->rows; r++)
        ek_row_store(type, source + r * of->count * size, dtype, target + r * pitch, of->stride,
                     of->count);
}

/* ---- tiles of a walk ---- */

/* Returns the operand's elements from the cursor on, at most `rest`, that lie evenly apart: whole
 * rows of the innermost two dimensions, or part of a row. */
static tile_rows tile_rows_at(const ek_walk *walk, const ek_cursor *cursor, int operand,
                              int64_t rest)
{
    const int last = walk->ndim - 1;
    const int64_t *stride = walk->stride[operand], rows = ek_cursor_rows(walk, cursor, rest);
    if (rows > 0)
        return (tile_rows){rows, stride[last - 1], walk->shape[last], stride[last]};
    return (tile_rows){1, 0, ek_cursor_run(walk, cursor, rest), stride[last]};
}

static void tile_rows_advance(const ek_walk *walk, ek_cursor *cursor, const tile_rows *by)
{
    if (by->rows > 1)
        ek_cursor_step(walk, cursor, walk->ndim - 2, by->rows);
    else
        ek_cursor_advance(walk, cursor, by->count);
}

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

int64_t ek_tile_same(const ek_walk *walk, const ek_cursor *cursor, const ek_operand *operand)
{
    const int last = walk->ndim - 1;
    if (cursor->index[last] != 0)
        return 0;
    if (operand->periodic)
        return walk->count;
    return last == 0 || walk->stride[operand->index][last - 1] != 0
               ? 0
               : (walk->shape[last - 1] - cursor->index[last - 1]) * walk->shape[last];
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

static char *tile_place(const ek_operand *operand, int64_t offset)
{
    return (char *)operand->data + offset * (int64_t)ek_dtype_size(operand->dtype);
}

static bool is_in_tile_place(const ek_walk *walk, const ek_cursor *cursor,
                             const ek_operand *operand, ek_class type, int64_t count)
{
    return ek_class_is_dtype(type, operand->dtype) &&
           walk->stride[operand->index][walk->ndim - 1] == 1 &&
           (count <= ek_cursor_row_rest(walk, cursor) || ek_walk_is_flat(walk, operand->index));
}

/* Copies `count` elements between an operand's memory and `tile`: to the tile with `load`, else
 * from it. */
static void tile_move(const ek_walk *walk, const ek_cursor *cursor, const ek_operand *operand,
                      ek_class type, int64_t count, char *tile, bool load)
{
    ek_cursor at = *cursor;
    for (int64_t done = 0; done < count;) {
        const tile_rows rows = operand->constant
                                   ? (tile_rows){1, 0, count, 0}
                                   : tile_rows_at(walk, &at, operand->index, count - done);
        char *row = tile + (size_t)done * ek_class_size(type);
        char *memory = tile_place(operand, at.offset[operand->index]);
        if (load)
            tile_rows_load(type, row, operand->dtype, memory, &rows);
        else
            tile_rows_store(type, row, operand->dtype, memory, &rows);
        done += rows.rows * rows.count;
        if (done < count)
            tile_rows_advance(walk, &at, &rows);
    }
}

const void *ek_tile_load(const ek_walk *walk, const ek_cursor *cursor, const ek_operand *operand,
                         ek_class type, int64_t count, ek_tile *tile)
{
    if (is_in_tile_place(walk, cursor, operand, type, count))
        return tile_place(operand, cursor->offset[operand->index]);
    tile_move(walk, cursor, operand, type, count, (char *)tile, true);
    return tile;
}

void *ek_tile_target(const ek_walk *walk, const ek_cursor *cursor, const ek_operand *operand,
                     ek_class type, int64_t count, ek_tile *tile)
{
    if (is_in_tile_place(walk, cursor, operand, type, count))
        return tile_place(operand, cursor->offset[operand->index]);
    return tile;
}

void ek_tile_store(const ek_walk *walk, const ek_cursor *cursor, const ek_operand *operand,
                   ek_class type, int64_t count, const void *target, const ek_tile *tile)
{
    if (target == tile)
        tile_move(walk, cursor, operand, type, count, (char *)(uintptr_t)tile, false);
}

void ek_tile_advance(const ek_walk *walk, ek_cursor *cursor, int64_t count)
{
    while (count > 0) {
        const tile_rows rows = tile_rows_at(walk, cursor, 0, count);
        tile_rows_advance(walk, cursor, &rows);
        count -= rows.rows * rows.count;
    }
}
