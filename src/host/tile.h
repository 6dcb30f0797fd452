/* tile.h: operands of any dtype and stride as short contiguous runs of f32, f64 or i64.
 *
 * Kernels are written for contiguous memory of three types only. What lies otherwise passes through
 * a buffer that stays in the first-level cache. */
#ifndef EK_HOST_TILE_H
#define EK_HOST_TILE_H

#include "kernels/walk.h"

enum { EK_TILE = 512 }; /* elements of a buffer */

/* Before a loop whose iterations don't depend on each other, although its pointers may be equal. */
#if defined(__GNUC__) && !defined(__clang__)
#define EK_IVDEP _Pragma("GCC ivdep")
#else
#define EK_IVDEP
#endif

/* The type that a dtype is computed in: bf16 in f32, u8 in i64. */
typedef enum ek_class { EK_CLASS_F32, EK_CLASS_F64, EK_CLASS_I64 } ek_class;

typedef union ek_tile {
    float f32[EK_TILE];
    double f64[EK_TILE];
    int64_t i64[EK_TILE];
} ek_tile;

ek_class ek_class_of(ek_dtype dtype);
/* The memory of the dtype is of the class's type. */
bool ek_class_is_dtype(ek_class type, ek_dtype dtype);

/* `count` elements from `source`, `stride` apart, as class `type` in a row; and back. */
void ek_row_load(ek_class type, void *row, ek_dtype dtype, const void *source, int64_t stride,
                 int64_t count);
void ek_row_store(ek_class type, const void *row, ek_dtype dtype, void *target, int64_t stride,
                  int64_t count);

/* One operand of a walk. */
typedef struct ek_operand {
    int index; /* in the walk */
    ek_dtype dtype;
    void *data; /* address of the first element */
    bool constant;
    bool periodic; /* the same in every row */
} ek_operand;

ek_operand ek_operand_of(const ek_walk *walk, int index, const ek_tensor *tensor);

/* How many elements from the cursor one tile takes: at most the row where rows are long, several
 * rows if they are short. */
int64_t ek_tile_count(const ek_walk *walk, const ek_cursor *cursor, int64_t rest);

/* The address of `count` elements from the cursor as class `type`: in place where they lie so, else
 * loaded into `tile`. */
const void *ek_tile_load(const ek_walk *walk, const ek_cursor *cursor, const ek_operand *operand,
                         ek_class type, int64_t count, ek_tile *tile);

/* Where to compute the result: in place, or `tile`; then ek_tile_store puts the latter in its
 * place. */
void *ek_tile_target(const ek_walk *walk, const ek_cursor *cursor, const ek_operand *operand,
                     ek_class type, int64_t count, ek_tile *tile);
void ek_tile_store(const ek_walk *walk, const ek_cursor *cursor, const ek_operand *operand,
                   ek_class type, int64_t count, const void *target, const ek_tile *tile);

/* The cursor after `count` elements, over as many rows as that takes. */
void ek_tile_advance(const ek_walk *walk, ek_cursor *cursor, int64_t count);

#endif
