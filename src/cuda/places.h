/* places.h: where the i-th element of a walk lies in each of its operands, and which threads share
 * the work on a line. Plain C that C++ compiles too.
 *
 * Kernels that read several tensors at unrelated strides number the positions of a walk
 * (kernels/walk.h) and let each thread take its number apart. Divisors are known before the launch,
 * so that where positions fit 32 bits a division is a multiplication and a shift. */
#ifndef EK_CUDA_PLACES_H
#define EK_CUDA_PLACES_H

#include "cuda/queue.h"
#include "cuda/view.h"
#include "kernels/formulas.h"

EK_BEGIN_DECLARATIONS

/* n / by for n < 2^31: (high half of n factor + n) >> shift. */
typedef struct ek_cuda_divisor {
    uint32_t by, factor, shift;
} ek_cuda_divisor;

typedef struct ek_cuda_places {
    int ndim; /* at least 1 */
    int operands;
    bool narrow; /* positions fit 31 bits: `divisor` can be used */
    int64_t count;
    ek_cuda_divisor divisor[EK_MAX_DIMS];
    int64_t shape[EK_MAX_DIMS];
    int64_t stride[EK_CUDA_OPERANDS][EK_MAX_DIMS];
} ek_cuda_places;

/* Sorted and joined as ek_walk_init_raw does. */
void ek_cuda_places_init(ek_cuda_places *places, int operands, int ndim, const int64_t *shape,
                         const int64_t *const *strides);

/* All dimensions but `dim` (-1: all) of `operands` tensors. has_dim[k]: tensor k has the dimension,
 * else its dimensions are the others (NULL: all have it). */
void ek_cuda_places_without(ek_cuda_places *places, int operands, const ek_tensor *const *tensors,
                            const bool *has_dim, int dim);

/* How a block of EK_BLOCK threads works on lines (one position each, `size` elements long). */
typedef struct ek_cuda_team {
    int lanes;   /* threads of a line: a power of two up to 32, or all of a block */
    bool across; /* neighbouring threads have neighbouring lines, and the lanes of one line lie 32
                    apart: for lines whose elements do not follow each other in memory */
} ek_cuda_team;

/* `inner`: the elements of a line lie closer in memory than neighbouring lines do. */
ek_cuda_team ek_cuda_team_for(int multiprocessors, int64_t lines, int64_t size, bool inner);
/* The same, from the strides of `x` along the line and to the next line. */
ek_cuda_team ek_cuda_team_along(int multiprocessors, const ek_cuda_places *lines, int operand,
                                int64_t size, int64_t stride);

EK_FORMULA ek_cuda_divisor ek_cuda_divisor_of(uint32_t by)
{
    ek_cuda_divisor divisor = {by, 0, 0};
    while (divisor.shift < 31 && ((uint32_t)1 << divisor.shift) < by)
        divisor.shift++;
    uint64_t power = (uint64_t)1 << divisor.shift;
    divisor.factor = (uint32_t)((((power - by) << 32) / by) + 1);
    return divisor;
}

EK_FORMULA uint32_t ek_cuda_divide(ek_cuda_divisor divisor, uint32_t n)
{
    return ((uint32_t)(((uint64_t)n * divisor.factor) >> 32) + n) >> divisor.shift;
}

EK_END_DECLARATIONS
#endif
