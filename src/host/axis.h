/* axis.h: loops over one dimension of tensors at a time, for softmax and cross entropy.
 *
 * Positions are the elements of a walk over all other dimensions. A few positions at a time are
 * computed as rows of `size` contiguous f32 or f64. Operands whose memory has this form are used in
 * place. Only other operands get scratch memory, because a row may be all of the data. */
#ifndef EK_HOST_AXIS_H
#define EK_HOST_AXIS_H

#include "host/tile.h"

typedef struct ek_axis {
    ek_walk walk; /* the positions; one operand per tensor */
    int64_t size; /* size of the dimension */
    ek_class type;
    int64_t rows; /* rows of one block */
    int64_t parts;
    char *scratch; /* per part a slot for each operand that needs one */
    size_t slot_nbytes, scratch_nbytes;
    int slot_of[EK_WALK_OPERANDS]; /* -1 if the operand needs no slot */
    int slots;
} ek_axis;

/* Begins a loop over the positions, and allocates scratch memory. Tensor k has the dimension `dim`
 * if has_axis[k]. Positions are the first tensor's shape without `dim`. */
int ek_axis_begin(ek_axis *axis, ek_dev *dev, const ek_tensor *const *tensors, const bool *has_axis,
                  int count, int dim);
void ek_axis_end(ek_axis *axis, ek_dev *dev);

/* A body computes the positions [begin, end). slots[k] is its slot for tensor k, or NULL.
 * ek_axis_for runs a body on all positions, in parts. */
typedef void ek_axis_body(void *context, void *const *slots, int64_t begin, int64_t end);
void ek_axis_for(const ek_axis *axis, ek_dev *dev, ek_axis_body *body, void *context);

/* An operand that has the dimension. */
typedef struct ek_axis_operand {
    ek_operand operand;
    int64_t stride; /* along the dimension */
} ek_axis_operand;

ek_axis_operand ek_axis_operand_of(const ek_axis *axis, int index, const ek_tensor *tensor,
                                   int dim);

/* Returns the address of `rows` rows from the cursor on, one after another, as the class's type:
 * the operand's memory, or `slot`, to which they are loaded. */
const void *ek_axis_load(const ek_axis *axis, const ek_cursor *cursor,
                         const ek_axis_operand *operand, int64_t rows, void *slot);
/* Returns the address at which `rows` rows are computed: the operand's memory, or `slot`, which
 * ek_axis_store then copies to the operand's memory. */
void *ek_axis_target(const ek_axis *axis, const ek_cursor *cursor, const ek_axis_operand *operand,
                     int64_t rows, void *slot);
void ek_axis_store(const ek_axis *axis, const ek_cursor *cursor, const ek_axis_operand *operand,
                   int64_t rows, const void *target, void *slot);

/* Returns the number of rows of the next block. A block stays within one row of the walk, so that
 * offsets grow by one stride. */
static inline int64_t ek_axis_rows(const ek_axis *axis, const ek_cursor *cursor, int64_t rest)
{
    int64_t rows = ek_cursor_row_rest(&axis->walk, cursor);
    rows = rows < axis->rows ? rows : axis->rows;
    return rows < rest ? rows : rest;
}

#endif
