/* draw.h: fills tensors with Philox numbers (philox.h) on the tensors' own device. */
#ifndef EK_CORE_DRAW_H
#define EK_CORE_DRAW_H

#include "core/philox.h"
#include "evenkeel/random.h"
#include "evenkeel/tensor.h"

/* Begins a call of the generator (NULL: the calling thread's default generator) for a tensor. Fills
 * in seed, call, and the numbers of the elements. Returns false if the generator is a Mersenne
 * Twister. */
bool ek_draw_begin(ek_draw *draw, ek_generator *generator, const ek_tensor *tensor);

/* The tensors of a call, which have one shape and one device. `out` is written. x and `residual`
 * are for EK_DRAW_DROPOUT, which writes x's products, or their sum with `residual`; for other kinds
 * both are NULL. x has out's dtype, or one of the two is f32 and the other bf16 or f16; factors and
 * products are rounded to the narrower dtype. `residual` has out's dtype, or is NULL. */
typedef struct ek_drawn {
    ek_tensor *out;
    const ek_tensor *x, *residual;
} ek_drawn;

/* Writes the call's numbers by the backend's `draw`; if the backend has none, makes them on the
 * calling thread. Elements are counted in row-major order, whatever the strides. */
int ek_draw_run(const ek_drawn *tensors, const ek_draw *draw);

/* Writes `count` blocks of words, from block `first` of the call on. */
typedef void ek_philox_blocks(uint64_t seed, uint64_t call, uint64_t first, int64_t count,
                              uint32_t *words);
ek_philox_blocks ek_philox_plain_blocks;

/* The elements of ek_drawn, row-major in memory of the host. */
typedef struct ek_drawn_rows {
    void *out;
    const void *x, *residual;
    ek_dtype dtype, x_dtype; /* dtypes of `out` and of x; x_dtype is read only if x isn't NULL */
} ek_drawn_rows;

/* Writes elements [begin, end) of what ek_draw_run would write. The numbers don't depend on how the
 * tensor is cut into ranges. */
void ek_draw_fill(const ek_draw *draw, ek_philox_blocks *blocks, const ek_drawn_rows *rows,
                  int64_t begin, int64_t end);

#endif
