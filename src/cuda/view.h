/* view.h: the arguments of a kernel's launch: its stream, and tensors as small structs that are
 * passed by value. This header is C that also compiles as C++. Sizes and strides count elements.
 *
 * Families of kernels come in pairs: x.c takes tensors apart (the slots of kernels/kernels.h), x.cu
 * holds the kernels and the functions that launch them. launches.h, norm.h, conv.h and attention.h
 * declare these functions. They have C linkage, take a stream and plain structs, and return 0 or a
 * cudaError_t. A launch returns before the kernel has run. */
#ifndef EK_CUDA_VIEW_H
#define EK_CUDA_VIEW_H

#include <cuda_runtime_api.h>

#include "evenkeel/tensor.h"
#include "kernels/formulas.h"

EK_BEGIN_DECLARATIONS

/* ---- faults: bad values that only a kernel can see, an index out of range for example ----
 *
 * A kernel that finds a bad value records it in its device's record, which keeps the first bad
 * value, and continues with a harmless value. The record lies in memory that the host reads without
 * waiting. The next call that issues work to the device, waits for it or reads from it returns the
 * error. The device stays usable. */

enum {
    EK_CUDA_FAULT_NONE,
    EK_CUDA_FAULT_INDEX,       /* index `value` along a dimension of `bound` */
    EK_CUDA_FAULT_TARGET,      /* target `value` with `bound` classes */
    EK_CUDA_FAULT_POSITION,    /* max pooling's position `value` in a plane of `bound` */
    EK_CUDA_FAULT_FILLING = 64 /* another thread is writing the record */
};

typedef struct ek_cuda_fault {
    int kind; /* one of the enumeration; written last */
    int64_t value, bound;
    const char *operation; /* a static string of the host's */
} ek_cuda_fault;

/* ---- the stream ---- */

typedef struct ek_cuda_stream {
    cudaStream_t handle;
    ek_cuda_fault *fault; /* the device's address of its fault record */
    int multiprocessors;
    bool deterministic; /* sums don't depend on the order of arrival */
    int restore;        /* the thread's GPU before ek_cuda_begin, for ek_cuda_end */
} ek_cuda_stream;

/* ---- divisions by numbers that are known before a launch ----
 *
 * A multiplication and a shift replace a division, which takes some 20 instructions. */

/* n / by for n < 2^31: (high half of n * factor, plus n) >> shift, with factor = floor(2^32 *
 * (2^shift - by) / by) + 1 and 2^shift the first power of 2 that is not smaller than `by`. */
typedef struct ek_cuda_divisor {
    uint32_t by, factor, shift;
} ek_cuda_divisor;

/* An ek_cuda_divisor for n < 2^63, with the high half of 128 bits. */
typedef struct ek_cuda_long_divisor {
    uint64_t factor;
    uint32_t shift;
} ek_cuda_long_divisor;

__extension__ typedef unsigned __int128 ek_cuda_uint128;

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

/* Returns the divisor for 1 <= by < 2^63. */
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

/* Divides positions by `by`, which is at least 1. `narrow` is for positions below 2^31. */
typedef struct ek_cuda_divider {
    int64_t by;
    ek_cuda_divisor narrow; /* set if `by` is below 2^31 itself */
} ek_cuda_divider;

EK_FORMULA ek_cuda_divider ek_cuda_divider_of(int64_t by)
{
    ek_cuda_divider divider = {by < 1 ? 1 : by, {0, 0, 0}};
    if (divider.by <= INT32_MAX)
        divider.narrow = ek_cuda_divisor_of((uint32_t)divider.by);
    return divider;
}

/* ---- walks: several tensors of one shape ---- */

enum { EK_CUDA_OPERANDS = 6 };

/* Several tensors of one shape, visited together: dimensions sorted and joined as kernels/walk.h
 * says; the last is the innermost. */
typedef struct ek_cuda_walk {
    int ndim, operands;
    int64_t count;
    int64_t shape[EK_MAX_DIMS];
    int64_t stride[EK_CUDA_OPERANDS][EK_MAX_DIMS];
    void *data[EK_CUDA_OPERANDS];
    ek_dtype dtype[EK_CUDA_OPERANDS];
    bool flat; /* every operand is one run of stride 1 */
} ek_cuda_walk;

/* ---- strides: the offsets of the i-th element of a walk in each of its operands ----
 *
 * Kernels that read several tensors at unrelated strides number the positions of a walk
 * (kernels/walk.h) and let each thread take its number apart, by divisors that are known before the
 * launch. */

typedef struct ek_cuda_strides {
    int ndim; /* at least 1 */
    int operands;
    bool narrow; /* positions fit 31 bits, so `divisor` can be used */
    int64_t count;
    ek_cuda_divisor divisor[EK_MAX_DIMS];
    ek_cuda_long_divisor long_divisor[EK_MAX_DIMS];
    int64_t shape[EK_MAX_DIMS];
    int64_t stride[EK_CUDA_OPERANDS][EK_MAX_DIMS];
} ek_cuda_strides;

/* Sorts and joins dimensions as ek_walk_init_raw does. */
void ek_cuda_strides_init(ek_cuda_strides *into, int operands, int ndim, const int64_t *shape,
                          const int64_t *const *strides);

/* Takes all dimensions except `dim` (-1: all) of `operands` tensors. If has_dim[k] is false, tensor
 * k has only the other dimensions. If has_dim is NULL, all tensors have dimension `dim`. */
void ek_cuda_strides_without(ek_cuda_strides *into, int operands, const ek_tensor *const *tensors,
                             const bool *has_dim, int dim);

/* How a block of EK_BLOCK threads works on lines. A line is the `size` elements along one dimension
 * (which are summed, for example) at one position of the other dimensions. */
typedef struct ek_cuda_team {
    int lanes; /* threads of a line: a power of two */
    /* Neighbouring threads have neighbouring lines, and the lanes of one line lie 32 apart. This is
     * for lines whose elements do not follow each other in memory. */
    bool across;
} ek_cuda_team;

/* The fewest elements that a lane gets if there are enough lines to keep the device busy, for lines
 * whose elements follow each other in memory. With few elements per lane, lanes write to
 * neighbouring addresses. Reads come from the caches; for them fewer lanes are better, because
 * joining the lanes' results costs more. */
enum { EK_CUDA_TEAM_WRITES = 4, EK_CUDA_TEAM_READS = 16 };

/* Returns the team for `lines`. If `inner`, the elements of a line lie closer in memory than
 * neighbouring lines do. `each` is EK_CUDA_TEAM_WRITES or EK_CUDA_TEAM_READS. */
ek_cuda_team ek_cuda_team_for(int multiprocessors, int64_t lines, int64_t size, bool inner,
                              int each);
/* Calls ek_cuda_team_for with `inner` by the strides of `operand` along the line and to the next
 * line. */
ek_cuda_team ek_cuda_team_along(int multiprocessors, const ek_cuda_strides *lines, int operand,
                                int64_t size, int64_t stride, int each);

/* ---- images: tensors (N, C, ...) with one to three dimensions in space ---- */

typedef struct ek_cuda_image {
    void *data;
    ek_dtype dtype;
    int64_t count, plane; /* elements of all planes, positions of one plane */
    int64_t samples, channels;
    int64_t size[3];                        /* missing dimensions come first, with size 1 */
    int64_t by_sample, by_channel, step[3]; /* strides */
    ek_cuda_divider per_channels, per_size[3];
    bool last; /* channels are innermost in memory */
    bool even; /* position p of a plane lies at p * step[2] */
    bool wide; /* elements or distances don't fit 31 bits */
} ek_cuda_image;

ek_cuda_image ek_cuda_image_of(const ek_tensor *tensor);

/* ---- lists: several tensors in one launch, each cut into chunks, one for a block ---- */

enum {
    EK_CUDA_LIST_TENSORS = 64, /* most entries of one launch, which passes the list by value */
    EK_CUDA_LIST_DATA = 320,   /* most operands of all entries together */
    EK_CUDA_LIST_CHUNK = 4096  /* elements of a chunk */
};

/* `operands` dense tensors of one layout for each of `count` entries; operand k of entry t is
 * data[t * operands + k]. Blocks [first[t], first[t + 1]) work on entry t. */
typedef struct ek_cuda_list {
    int count, operands;
    uint32_t first[EK_CUDA_LIST_TENSORS + 1];
    int64_t elements[EK_CUDA_LIST_TENSORS];
    void *data[EK_CUDA_LIST_DATA];
} ek_cuda_list;

/* Adds an entry of `elements` elements per operand. Returns the place for its `operands` addresses.
 * Returns NULL if the list is full; the caller then launches the list and begins the next one. */
static inline void **ek_cuda_list_add(ek_cuda_list *list, int64_t elements)
{
    int at = list->count;
    int64_t blocks = (elements + EK_CUDA_LIST_CHUNK - 1) / EK_CUDA_LIST_CHUNK;
    bool room = at < EK_CUDA_LIST_TENSORS && (at + 1) * list->operands <= EK_CUDA_LIST_DATA;
    if (!room || (at > 0 && list->first[at] + blocks > INT32_MAX))
        return NULL;
    list->elements[at] = elements;
    list->first[at + 1] = list->first[at] + (uint32_t)blocks;
    list->count++;
    return list->data + at * list->operands;
}

EK_END_DECLARATIONS
#endif
