/* upsample.cu: nearest and bilinear upsampling, a linear map and its adjoint. Forward reads up to
 * four elements, which neighbours share through the caches, for each it writes. The adjoint gathers
 * in a fixed order: positions near a place's own are asked whether they read it, by the very
 * function that forward uses. */
#include "cuda/image.cuh"
#include "cuda/upsample.h"

/* What one position reads in one dimension: (1 - share) lower + share upper. */
template <typename R, typename I> struct tap {
    I lower, upper;
    R share;
};

/* d: 0 for height, 1 for width. */
template <typename R, typename I>
static __device__ __forceinline__ tap<R, I> tap_of(const ek_cuda_upsample &job, int d, I i)
{
    I in = (I)job.small.size[1 + d], out = (I)job.large.size[1 + d], at = i;
    R share = 0;
    if (job.bilinear && in != out) {
        R scale = (R)job.scale[d];
        R source = job.align_corners ? scale * (R)i : scale * ((R)i + (R)0.5) - (R)0.5;
        source = source < 0 ? 0 : source;
        at = (I)source;
        at = at < in - 1 ? at : in - 1;
        share = source - (R)at;
        share = share > 1 ? 1 : share;
    } else if (in != out) {
        at = out == 2 * in ? i / 2 : (I)((float)i * (float)job.scale[d]);
        at = at < in - 1 ? at : in - 1;
    }
    tap<R, I> t = {at, job.bilinear && at < in - 1 ? at + 1 : at, share};
    return t;
}

/* The positions [first, last] of `large` that may read position p of `small`, and up to two more.
 */
template <typename R, typename I> struct reach {
    I first, last;
};

template <typename R, typename I>
static __device__ __forceinline__ reach<R, I> reach_of(const ek_cuda_upsample &job, int d, I p)
{
    I in = (I)job.small.size[1 + d], out = (I)job.large.size[1 + d];
    I margin = out >> 20; /* the rounding of large positions */
    R inverse = (R)job.inverse[d], half = job.align_corners ? (R)0 : (R)0.5;
    /* Sources between p - 1 and p + 1 share in p; nearest reads from p to p + 1. */
    R low = job.bilinear ? ((R)(p - 1) + half) * inverse - half : (R)p * inverse;
    R high = job.bilinear ? ((R)(p + 1) + half) * inverse - half : (R)(p + 1) * inverse;
    reach<R, I> r = {0, out - 1};
    if (low > 0 && p > 0)
        r.first = (I)low > margin ? (I)low - margin : 0;
    if (high < (R)(out - 1) && p < in - 1)
        r.last = (I)high + 1 + margin;
    r.last = r.last < out - 1 ? r.last : out - 1;
    return r;
}

template <typename R, typename I>
static __device__ __forceinline__ R share_of(const tap<R, I> &t, I p)
{
    return (t.lower == p ? 1 - t.share : (R)0) + (t.upper == p ? t.share : (R)0);
}

/* Elements without a share don't count, not even where they are infinite. */
template <typename T, typename I>
static __device__ __forceinline__ typename ek_compute<T>::type
blend(const tap<typename ek_compute<T>::type, I> &t, const T *row, I step)
{
    typename ek_compute<T>::type value = ek_load(row + t.lower * step);
    if (t.share != 0)
        value = (1 - t.share) * value + t.share * ek_load(row + t.upper * step);
    return value;
}

template <typename T, typename I>
static __global__ void __launch_bounds__(EK_BLOCK) upsample_forward(ek_cuda_upsample job)
{
    typedef typename ek_compute<T>::type R;
    I row_step = (I)job.small.step[1], step = (I)job.small.step[2];
    EK_GRID_LOOP(i, job.large.count)
    {
        ek_place<I> place = ek_place_of(job.large, (I)i);
        tap<R, I> h = tap_of<R>(job, 0, place.at[1]), w = tap_of<R>(job, 1, place.at[2]);
        const T *plane =
            (const T *)job.small.data + ek_plane_offset(job.small, place.sample, place.channel);
        R value = blend(w, plane + h.lower * row_step, step);
        if (h.share != 0)
            value = (1 - h.share) * value + h.share * blend(w, plane + h.upper * row_step, step);
        ek_store((T *)job.large.data + ek_offset_of(job.large, place), value);
    }
}

template <typename T, typename I>
static __global__ void __launch_bounds__(EK_BLOCK) upsample_gradient(ek_cuda_upsample job)
{
    typedef typename ek_compute<T>::type R;
    I row_step = (I)job.large.step[1], step = (I)job.large.step[2];
    EK_GRID_LOOP(i, job.small.count)
    {
        ek_place<I> place = ek_place_of(job.small, (I)i);
        reach<R, I> h = reach_of<R>(job, 0, place.at[1]), w = reach_of<R>(job, 1, place.at[2]);
        const T *plane =
            (const T *)job.large.data + ek_plane_offset(job.large, place.sample, place.channel);
        R sum = 0;
        for (I j = h.first; j <= h.last; j++) {
            R share = share_of(tap_of<R>(job, 0, j), place.at[1]), row = 0;
            if (share == 0)
                continue;
            for (I k = w.first; k <= w.last; k++) {
                R part = share_of(tap_of<R>(job, 1, k), place.at[2]);
                if (part != 0)
                    row += part * ek_load(plane + j * row_step + k * step);
            }
            sum += share * row;
        }
        ek_store((T *)job.small.data + ek_offset_of(job.small, place), sum);
    }
}

/* ---- launching ---- */

template <typename T>
static int launch_forward(const ek_cuda_queue *queue, const ek_cuda_upsample *job)
{
    return ek_launch(queue, dim3(ek_grid(queue, job->large.count)), dim3(EK_BLOCK),
                     job->wide ? upsample_forward<T, int64_t> : upsample_forward<T, int32_t>, *job);
}

int ek_cuda_launch_upsample_forward(const ek_cuda_queue *queue, const ek_cuda_upsample *job)
{
    EK_FLOATING(job->large.dtype, T, return launch_forward<T>(queue, job))
    return (int)cudaErrorInvalidValue;
}

template <typename T>
static int launch_gradient(const ek_cuda_queue *queue, const ek_cuda_upsample *job)
{
    return ek_launch(queue, dim3(ek_grid(queue, job->small.count)), dim3(EK_BLOCK),
                     job->wide ? upsample_gradient<T, int64_t> : upsample_gradient<T, int32_t>,
                     *job);
}

int ek_cuda_launch_upsample_gradient(const ek_cuda_queue *queue, const ek_cuda_upsample *job)
{
    EK_FLOATING(job->small.dtype, T, return launch_gradient<T>(queue, job))
    return (int)cudaErrorInvalidValue;
}
