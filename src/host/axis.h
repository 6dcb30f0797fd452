/* axis.h: kernels that work on one dimension of a tensor at a time: softmax and cross entropy.
 *
 * Positions are the walk over all other dimensions. A few positions at a time are computed on as
 * rows of contiguous f32 or f64, `size` long: operands that lie in memory
 * like that are used in place. Only the others get scratch memory, since a row may be all of the
 * data. */
#ifndef EK_HOST_AXIS_H
#define EK_HOST_AXIS_H

#include "host/tile.h"

typedef struct ek_axis {
    ek_walk walk; /* the positions; one operand per tensor */
    int64_t size; /* of the dimension */
    ek_class type;
    int64_t rows; /* of one block */
    int64_t parts;
    char *scratch; /* per part a slot for each operand that needs one */
    size_t slot_nbytes, scratch_nbytes;
    int slot_of[EK_WALK_OPERANDS]; /* -1: none */
    int slots;
} ek_axis;

/* `tensors` have the dimension where has_axis[k] is true; the first one's shape counts, without
 * `dim`. */
int ek_axis_begin(ek_axis *axis, ek_dev *dev, const ek_tensor *const *tensors, const bool *has_axis,
                  int count, int dim);
void ek_axis_end(ek_axis *axis, ek_dev *dev);

/* Runs body(context, part's slots by tensor, begin, end) for parts of the positions. */
typedef void ek_axis_body(void *context, void *const *slots, int64_t begin, int64_t end);
void ek_axis_for(const ek_axis *axis, ek_dev *dev, ek_axis_body *body, void *context);

/* An operand that has the dimension. */
typedef struct ek_axis_operand {
    ek_operand operand;
    int64_t stride; /* along the dimension */
} ek_axis_operand;

ek_axis_operand ek_axis_operand_of(const ek_axis *axis, int index, const ek_tensor *tensor,
                                   int dim);

/* `rows` rows from the cursor as the class's type, one after the other: in place or in `slot`. */
const void *ek_axis_load(const ek_axis *axis, const ek_cursor *cursor,
                         const ek_axis_operand *operand, int64_t rows, void *slot);
/* Where to compute `rows` rows; ek_axis_store puts them in their place if that was `slot`. */
void *ek_axis_target(const ek_axis *axis, const ek_cursor *cursor, const ek_axis_operand *operand,
                     int64_t rows, void *slot);
void ek_axis_store(const ek_axis *axis, const ek_cursor *cursor, const ek_axis_operand *operand,
                   int64_t rows, const void *target, const void *slot);

/* Rows of the next block: within one row of the walk, so that offsets grow by one stride. */
static inline int64_t ek_axis_rows(const ek_axis *axis, const ek_cursor *cursor, int64_t rest)
{
    int64_t rows = ek_cursor_row_rest(&axis->walk, cursor);
    rows = rows < axis->rows ? rows : axis->rows;
    return rows < rest ? rows : rest;
}

#endif
