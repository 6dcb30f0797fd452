/* host.h: the kernels of the host backend, ek_host_<slot> for each slot of kernels/kernels.h, which
 * has the contract; and helpers of many kernels. */
#ifndef EK_HOST_HOST_H
#define EK_HOST_HOST_H

#include "core/draw.h"
#include "kernels/kernels.h"

#define EK_HOST_KERNEL(slot) ek_##slot##_kernel ek_host_##slot;
EK_KERNELS(EK_HOST_KERNEL)
#undef EK_HOST_KERNEL

/* The backend's slot `draw` (core/backend.h). */
int ek_host_draw(ek_dev *dev, const struct ek_drawn *tensors, const struct ek_draw *draw);
/* Returns the function that makes Philox's words fastest on this processor. */
ek_philox_blocks *ek_host_philox_blocks(void);

static inline int64_t ek_smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t ek_larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Returns how many pieces of `unit` cover n; the last piece may be shorter. */
static inline int64_t ek_divide_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit;
}

/* Returns the least multiple of `unit` that is not less than n. */
static inline int64_t ek_multiple_up(int64_t n, int64_t unit)
{
    return ek_divide_up(n, unit) * unit;
}

/* Returns where part i begins if `count` is cut into n parts, as equal as possible. */
static inline int64_t ek_part_of(int64_t count, int64_t i, int64_t n)
{
    return count * i / n;
}

/* Returns nbytes rounded up to a multiple of 64, so that memory after them is aligned. */
static inline size_t ek_round_up(size_t nbytes)
{
    return (nbytes + 63) / 64 * 64;
}

/* Finds the first value of `index` (i64, any strides) outside of [0, size), and its position in
 * row-major order. Returns false if there is none. Values equal to *ignored don't count; if
 * `ignored` is NULL, all values count. */
bool ek_find_outside(const ek_tensor *index, int64_t size, const int64_t *ignored,
                     int64_t *position, int64_t *value);

/* Both compute, for each of `rows` rows of `size` elements, the largest element and the sum of
 * exp(x - largest). */
void ek_exp_sums_f32(int64_t rows, int64_t size, const float *x, float *largest, float *sum);
void ek_exp_sums_f64(int64_t rows, int64_t size, const double *x, double *largest, double *sum);

#endif
