/* draw.h: tensors of Philox numbers (philox.h), made where the tensor is. */
#ifndef EK_CORE_DRAW_H
#define EK_CORE_DRAW_H

#include "core/philox.h"
#include "evenkeel/random.h"
#include "evenkeel/tensor.h"

/* Begins a call of the generator (NULL: the calling thread's default) for a tensor: fills in seed,
 * call and the elements' numbers. Returns false if the generator is a Mersenne Twister. */
bool ek_draw_begin(ek_draw *draw, ek_generator *generator, const ek_tensor *tensor);

/* The tensors of a call, which have one shape and one device. `out` is written. x and residual are
 * read by EK_DRAW_DROPOUT and NULL otherwise: it writes x's products, or their sum with `residual`.
 * x has out's dtype, or one of the two is f32 and the other bf16 or f16; factors and products are
 * rounded to the narrower dtype. `residual` may be NULL; it has out's dtype. */
typedef struct ek_drawn {
    ek_tensor *out;
    const ek_tensor *x, *residual;
} ek_drawn;

/* Writes the call's numbers by the backend's `draw`; on the calling thread if the backend has none.
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

/* Writes the elements [begin, end) that ek_draw_run would write. They don't depend on how the
 * tensor is cut into ranges. */
void ek_draw_fill(const ek_draw *draw, ek_philox_blocks *blocks, const ek_drawn_rows *rows,
                  int64_t begin, int64_t end);

#endif
