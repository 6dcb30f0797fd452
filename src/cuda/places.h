/* places.h: where the i-th element of a walk lies in each of its operands, and which threads share
 * the work on a line. Plain C that C++ compiles too.
 *
 * Kernels that read several tensors at unrelated strides number the positions of a walk
 * (kernels/walk.h) and let each thread take its number apart, by divisors that are known before the
 * launch. */
#ifndef EK_CUDA_PLACES_H
#define EK_CUDA_PLACES_H

#include "cuda/divide.h"
#include "cuda/queue.h"
#include "cuda/view.h"

EK_BEGIN_DECLARATIONS

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

EK_END_DECLARATIONS
#endif
