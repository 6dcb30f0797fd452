/* tile.h: operands of any dtype and stride as short contiguous runs of f32, f64 or i64.
 *
 * Kernels are written for contiguous memory of these three types. Other memory is copied through a
 * tile, a buffer that stays in level 1 cache. */
#ifndef EK_HOST_TILE_H
#define EK_HOST_TILE_H

#include "core/multiversion.h"
#include "kernels/walk.h"

enum { EK_TILE = 512 }; /* elements of a buffer */

/* The type that a dtype is computed in: bf16 and f16 in f32, i32, u8 and bool in i64. */
typedef enum ek_class { EK_CLASS_F32, EK_CLASS_F64, EK_CLASS_I64 } ek_class;

typedef union ek_tile {
    float f32[EK_TILE];
    double f64[EK_TILE];
    int64_t i64[EK_TILE];
} ek_tile;

ek_class ek_class_of(ek_dtype dtype);
size_t ek_class_size(ek_class type); /* bytes of an element */
/* Returns true if elements of `dtype` are stored as the class's type, so that nothing is
 * converted. */
bool ek_class_is_dtype(ek_class type, ek_dtype dtype);

/* ek_row_load converts `count` elements from `source`, `stride` apart, to a row of class `type`;
 * ek_row_store converts a row back. */
void ek_row_load(ek_class type, void *row, ek_dtype dtype, const void *source, int64_t stride,
                 int64_t count);
void ek_row_store(ek_class type, const void *row, ek_dtype dtype, void *target, int64_t stride,
                  int64_t count);

/* Copies `rows` rows of nbytes. Strides are counted in bytes. */
void ek_rows_copy(char *to, int64_t to_stride, const char *from, int64_t from_stride, size_t nbytes,
                  int64_t rows);

/* One operand of a walk. */
typedef struct ek_operand {
    int index; /* the operand's number in the walk */
    ek_dtype dtype;
    void *data; /* address of the first element */
    bool constant;
    bool periodic; /* every row has the same elements */
} ek_operand;

ek_operand ek_operand_of(const ek_walk *walk, int index, const ek_tensor *tensor);

/* Returns how many elements from the cursor on fit one tile: part of a long row, or several short
 * rows. */
int64_t ek_tile_count(const ek_walk *walk, const ek_cursor *cursor, int64_t rest);

/* Returns how many elements from the cursor on are rows that equal the row that begins at the
 * cursor; 0 if none begins there, or the next one is another. */
int64_t ek_tile_same(const ek_walk *walk, const ek_cursor *cursor, const ek_operand *operand);

/* Returns the address of `count` elements from the cursor on, as contiguous numbers of class
 * `type`: the operand's memory if it has that form, else `tile`, to which they are loaded. */
const void *ek_tile_load(const ek_walk *walk, const ek_cursor *cursor, const ek_operand *operand,
                         ek_class type, int64_t count, ek_tile *tile);

/* Returns the address at which a result is computed: the operand's memory, or `tile`, which
 * ek_tile_store then copies to the operand's memory. */
void *ek_tile_target(const ek_walk *walk, const ek_cursor *cursor, const ek_operand *operand,
                     ek_class type, int64_t count, ek_tile *tile);
void ek_tile_store(const ek_walk *walk, const ek_cursor *cursor, const ek_operand *operand,
                   ek_class type, int64_t count, const void *target, const ek_tile *tile);

/* Advances the cursor by `count` elements, over any number of rows. */
void ek_tile_advance(const ek_walk *walk, ek_cursor *cursor, int64_t count);

#endif
