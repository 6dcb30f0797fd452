/* draw.h: tensors of Philox numbers (philox.h), made where the tensor is. */
#ifndef EK_CORE_DRAW_H
#define EK_CORE_DRAW_H

#include "core/philox.h"
#include "evenkeel/random.h"
#include "evenkeel/tensor.h"

/* Takes a call of the generator (NULL: the calling thread's default one) for a tensor: writes seed,
 * call and the numbers of the elements. False if the generator is a Mersenne Twister. */
bool ek_draw_begin(ek_draw *draw, ek_generator *generator, const ek_tensor *tensor);

/* What a call writes and reads: tensors of one shape, on one device. x and residual are NULL except
 * for EK_DRAW_DROPOUT, which writes x's products, or adds them to `residual`. Then x has out's
 * dtype, or one of the two is f32 and the other bf16 or f16; factors and products are rounded to
 * the narrower of both. `residual` may be NULL; it has out's dtype. */
typedef struct ek_drawn {
    ek_tensor *out;
    const ek_tensor *x, *residual;
} ek_drawn;

/* Writes the call's numbers by the backend's slot `draw`, or without one on the calling thread.
 * Elements are counted in row-major order, whatever the strides. */
int ek_draw_run(const ek_drawn *tensors, const ek_draw *draw);

/* Writes `count` blocks of words, from block `first` of the call on. */
typedef void ek_philox_blocks(uint64_t seed, uint64_t call, uint64_t first, int64_t count,
                              uint32_t *words);
ek_philox_blocks ek_philox_plain_blocks;

/* The elements of ek_drawn, row-major in memory of the host. */
typedef struct ek_drawn_rows {
    void *out;
    const void *x, *residual;
    ek_dtype dtype, x_dtype; /* the second is read if there is an x */
} ek_drawn_rows;

/* Writes the elements [begin, end) of a tensor, as ek_draw_run. They don't depend on how a tensor
 * is cut. */
void ek_draw_fill(const ek_draw *draw, ek_philox_blocks *blocks, const ek_drawn_rows *rows,
                  int64_t begin, int64_t end);

#endif
