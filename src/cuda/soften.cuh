/* soften.cuh: largest of a line and sum of exp(x - largest), in one pass over it, as softmax and
 * cross entropy need them. */
#ifndef EK_CUDA_SOFTEN_CUH
#define EK_CUDA_SOFTEN_CUH

#include "cuda/places.cuh"

static __device__ __forceinline__ float ek_exp(float x)
{
    return expf(x);
}
static __device__ __forceinline__ double ek_exp(double x)
{
    return exp(x);
}
static __device__ __forceinline__ float ek_log(float x)
{
    return logf(x);
}
static __device__ __forceinline__ double ek_log(double x)
{
    return log(x);
}

template <typename R> struct ek_softened {
    R largest, sum;
};

template <typename R>
static __device__ __forceinline__ ek_softened<R> ek_exchange(ek_softened<R> own, int step)
{
    ek_softened<R> other;
    other.largest = ek_exchange(own.largest, step);
    other.sum = ek_exchange(own.sum, step);
    return other;
}

/* NaN wins. */
template <typename R> static __device__ __forceinline__ R ek_larger(R a, R b)
{
    return b > a || b != b ? b : a;
}

/* What exponents are taken from: if all are -inf so far, -inf - -inf must not be NaN. */
template <typename R> static __device__ __forceinline__ R ek_shift_of(R largest)
{
    return largest == -(R)INFINITY ? (R)0 : largest;
}

template <typename R> struct ek_softening {
    __device__ __forceinline__ ek_softened<R> operator()(ek_softened<R> a, ek_softened<R> b) const
    {
        ek_softened<R> both;
        both.largest = ek_larger(a.largest, b.largest);
        R shift = ek_shift_of(both.largest);
        both.sum = a.sum * ek_exp(a.largest - shift) + b.sum * ek_exp(b.largest - shift);
        return both;
    }
};

/* The line's, for all of its lanes. A line of nothing but -inf has the sum NaN, as has one with
 * +inf or NaN in it. All threads of the block call it; `valid` is false for those without a line.
 */
template <typename T>
static __device__ __forceinline__ ek_softened<typename ek_compute<T>::type>
ek_soften(const ek_team &team, bool valid, const T *x, int64_t stride, int64_t size)
{
    typedef typename ek_compute<T>::type R;
    enum { BATCH = 4 };
    ek_softened<R> line = {-(R)INFINITY, 0};
    for (int64_t c = team.lane; valid && c < size; c += BATCH * team.lanes) {
        R v[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            int64_t at = c + k * team.lanes;
            v[k] = at < size ? ek_load(x + at * stride) : -(R)INFINITY;
        }
        R largest = ek_larger(ek_larger(v[0], v[1]), ek_larger(v[2], v[3]));
        largest = ek_larger(line.largest, largest);
        R shift = ek_shift_of(largest), sum = 0;
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            sum += ek_exp(v[k] - shift);
        line.sum = line.sum * ek_exp(line.largest - shift) + sum;
        line.largest = largest;
    }
    line = ek_team_join(team, line, ek_softening<R>());
    if (line.largest == -(R)INFINITY)
        line.sum = (R)NAN;
    return line;
}

#endif
