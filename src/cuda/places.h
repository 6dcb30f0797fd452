/* places.h: where the i-th element of a walk lies in each of its operands, and which threads share
 * the work on a line. Plain C that C++ compiles too.
 *
 * Kernels that read several tensors at unrelated strides number the positions of a walk
 * (kernels/walk.h) and let each thread take its number apart. Divisors are known before the launch,
 * so that a division is a multiplication and a shift: in 32 bits where positions fit them. */
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

/* The same for n < 2^63, with the high half of 128 bits. */
typedef struct ek_cuda_long_divisor {
    uint64_t factor;
    uint32_t shift;
} ek_cuda_long_divisor;

__extension__ typedef unsigned __int128 ek_cuda_uint128;

typedef struct ek_cuda_places {
    int ndim; /* at least 1 */
    int operands;
    bool narrow; /* positions fit 31 bits: `divisor` can be used */
    int64_t count;
    ek_cuda_divisor divisor[EK_MAX_DIMS];
    ek_cuda_long_divisor long_divisor[EK_MAX_DIMS];
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

/* Elements of a line whose neighbours in memory are in it too, that a lane has at least where lines
 * fill the device. What is written should lie side by side for the lanes; what is only read comes
 * from the caches, and joining lanes costs more. */
enum { EK_CUDA_TEAM_WRITES = 4, EK_CUDA_TEAM_READS = 16 };

/* `inner`: the elements of a line lie closer in memory than neighbouring lines do. `each`: of the
 * enumeration. */
ek_cuda_team ek_cuda_team_for(int multiprocessors, int64_t lines, int64_t size, bool inner,
                              int each);
/* The same, from the strides of `x` along the line and to the next line. */
ek_cuda_team ek_cuda_team_along(int multiprocessors, const ek_cuda_places *lines, int operand,
                                int64_t size, int64_t stride, int each);

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

/* 1 <= by < 2^63 */
EK_FORMULA ek_cuda_long_divisor ek_cuda_long_divisor_of(uint64_t by)
{
    ek_cuda_long_divisor divisor = {0, 0};
    while (divisor.shift < 63 && ((uint64_t)1 << divisor.shift) < by)
        divisor.shift++;
    uint64_t above = ((uint64_t)1 << divisor.shift) - by;
    divisor.factor = (uint64_t)(((ek_cuda_uint128)above << 64) / by) + 1;
    return divisor;
}

EK_FORMULA uint64_t ek_cuda_divide_long(ek_cuda_long_divisor divisor, uint64_t n)
{
    return ((uint64_t)(((ek_cuda_uint128)n * divisor.factor) >> 64) + n) >> divisor.shift;
}

EK_END_DECLARATIONS
#endif
