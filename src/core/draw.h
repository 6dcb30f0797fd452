/* draw.h: tensors of Philox numbers (philox.h), made where the tensor is. */
#ifndef EK_CORE_DRAW_H
#define EK_CORE_DRAW_H

#include "core/philox.h"
#include "evenkeel/random.h"
#include "evenkeel/tensor.h"

/* Takes a call of the generator (NULL: the calling thread's default one) for a tensor: writes seed,
 * call and the numbers of the elements. False if the generator is a Mersenne Twister. */
bool ek_draw_begin(ek_draw *draw, ek_generator *generator, const ek_tensor *tensor);

/* Writes the call's numbers to `out` by the backend's slot `draw`, or without one on the calling
 * thread. Elements are counted in row-major order, whatever the strides. x is NULL, or for
 * EK_DRAW_DROPOUT a tensor of out's shape, dtype and device. */
int ek_draw_run(ek_tensor *out, const ek_tensor *x, const ek_draw *draw);

/* Writes `count` blocks of words, from block `first` of the call on. */
typedef void ek_philox_blocks(uint64_t seed, uint64_t call, uint64_t first, int64_t count,
                              uint32_t *words);
ek_philox_blocks ek_philox_plain_blocks;

/* Writes the elements [begin, end) of a tensor in memory of the host, row-major from `out` on, as
 * ek_draw_run. They don't depend on how a tensor is cut. */
void ek_draw_fill(const ek_draw *draw, ek_philox_blocks *blocks, ek_dtype dtype, void *out,
                  const void *x, int64_t begin, int64_t end);

#endif
