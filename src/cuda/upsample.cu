/* upsample.cu: nearest and bilinear upsampling, a linear map and its adjoint. For each element that
 * it writes, forward reads up to four, which neighbours share through the caches. The adjoint
 * gathers in a fixed order: it asks the positions near an element whether they read it, by the
 * function that forward uses. Finding shares costs more than using them, so a thread uses them for
 * several rows or channels. */
#include "cuda/image.cuh"
#include "cuda/launches.h"

enum { ROWS = 4, GROUP = 4 };

/* What one position reads in one dimension: (1 - share) * lower + share * upper. */
template <typename R, typename I> struct tap {
    I lower, upper;
    R share;
};

/* The tap of position i. d is 0 for height, 1 for width. */
template <typename R, typename I>
EK_DEVICE tap<R, I> tap_of(const ek_cuda_upsample &job, int d, I i)
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

/* The positions [first, last] of `large` that may read position p of `small`, or a few more. */
template <typename R, typename I> struct reach {
    I first, last;
};

template <typename R, typename I>
EK_DEVICE reach<R, I> reach_of(const ek_cuda_upsample &job, int d, I p)
{
    I in = (I)job.small.size[1 + d], out = (I)job.large.size[1 + d];
    I margin = out >> 20; /* covers the rounding of large positions */
    R inverse = (R)job.inverse[d], half = job.align_corners ? (R)0 : (R)0.5;
    /* Bilinear sources from p - 1 to p + 1 share in p. Nearest reads sources from p to p + 1. */
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

template <typename R, typename I> EK_DEVICE R share_of(const tap<R, I> &t, I p)
{
    return (t.lower == p ? 1 - t.share : (R)0) + (t.upper == p ? t.share : (R)0);
}

/* values += share times the V elements at `from`. Elements whose share is 0 don't count, even if
 * they are infinite. */
template <typename T, int V>
EK_DEVICE void upsample_blend(typename ek_compute<T>::type (&values)[V],
                              typename ek_compute<T>::type share, const T *from)
{
    typename ek_compute<T>::type more[V];
    if (share == 0)
        return;
    ek_load_elements<T, V>(more, from);
    EK_EACH(v, V)
        values[v] = (1 - share) * values[v] + share * more[v];
}

/* A thread has V channels of ROWS positions below each other: `bands` counts them. */
template <typename T, typename I, int V>
EK_KERNEL upsample_forward(ek_cuda_upsample job, ek_cuda_image bands)
{
    typedef typename ek_compute<T>::type R;
    I row_step = (I)job.small.step[1], step = (I)job.small.step[2], height = (I)job.large.size[1];
    EK_GRID_LOOP(i, bands.count) {
        ek_index<I> index = ek_index_of(bands, (I)i);
        tap<R, I> w = tap_of<R>(job, 1, index.at[2]);
        const T *plane =
            (const T *)job.small.data + ek_plane_offset(job.small, index.sample, index.channel);
        I first = index.at[1] * ROWS;
        EK_EACH(row, ROWS) {
            if (first + row >= height)
                break;
            index.at[1] = first + row;
            tap<R, I> h = tap_of<R>(job, 0, index.at[1]);
            const T *lower = plane + h.lower * row_step, *upper = plane + h.upper * row_step;
            R values[V], below[V];
            ek_load_elements<T, V>(values, lower + w.lower * step);
            upsample_blend<T, V>(values, w.share, lower + w.upper * step);
            if (h.share != 0) {
                ek_load_elements<T, V>(below, upper + w.lower * step);
                upsample_blend<T, V>(below, w.share, upper + w.upper * step);
                EK_EACH(v, V)
                    values[v] = (1 - h.share) * values[v] + h.share * below[v];
            }
            ek_store_elements<T, V>((T *)job.large.data + ek_offset_of(job.large, index), values);
        }
    }
}

/* Adds `real` channels of an index, `step` apart. PACKED: these are V, next to each other. */
template <typename T, int V, bool PACKED>
EK_DEVICE void upsample_add_channels(typename ek_compute<T>::type (&row)[V],
                                     typename ek_compute<T>::type share, const T *from,
                                     int64_t step, int real)
{
    typename ek_compute<T>::type values[V];
    if constexpr (PACKED) {
        ek_load_elements<T, V>(values, from);
    } else {
        EK_EACH(v, V)
            values[v] = v < real ? ek_load(from + v * step) : 0;
    }
    EK_EACH(v, V)
        row[v] += share * values[v];
}

/* A thread has a group of V channels of one position: `groups` counts them. */
template <typename T, typename I, int V, bool PACKED>
EK_KERNEL upsample_gradient(ek_cuda_upsample job, ek_cuda_image groups)
{
    typedef typename ek_compute<T>::type R;
    I row_step = (I)job.large.step[1], step = (I)job.large.step[2];
    EK_GRID_LOOP(i, groups.count) {
        ek_index<I> index = ek_index_of(groups, (I)i);
        reach<R, I> h = reach_of<R>(job, 0, index.at[1]), w = reach_of<R>(job, 1, index.at[2]);
        index.channel *= V;
        int real = (int)((I)job.small.channels - index.channel);
        const T *plane =
            (const T *)job.large.data + ek_plane_offset(job.large, index.sample, index.channel);
        R sum[V] = {};
        for (I j = h.first; j <= h.last; j++) {
            R share = share_of(tap_of<R>(job, 0, j), index.at[1]), row[V] = {};
            if (share == 0)
                continue;
            for (I k = w.first; k <= w.last; k++) {
                R part = share_of(tap_of<R>(job, 1, k), index.at[2]);
                if (part != 0)
                    upsample_add_channels<T, V, PACKED>(row, part, plane + j * row_step + k * step,
                                                        job.large.by_channel, real);
            }
            EK_EACH(v, V)
                sum[v] += share * row[v];
        }
        T *to = (T *)job.small.data + ek_offset_of(job.small, index);
        if constexpr (PACKED) {
            ek_store_elements<T, V>(to, sum);
        } else {
            EK_EACH(v, V)
                if (v < real)
                    ek_store(to + v * job.small.by_channel, sum[v]);
        }
    }
}

static bool upsample_has_vectors(const ek_cuda_upsample &job, int count, size_t size)
{
    return !job.wide && ek_image_has_vectors(job.small, count, size) &&
           ek_image_has_vectors(job.large, count, size);
}

template <typename T, typename I, int V>
static int launch_upsample_forward(const ek_cuda_stream *stream, const ek_cuda_upsample *job)
{
    ek_cuda_upsample vectors = *job;
    if (V > 1) {
        vectors.small = ek_image_by_vectors(job->small, V);
        vectors.large = ek_image_by_vectors(job->large, V);
    }
    ek_cuda_image bands = vectors.large;
    int64_t height = bands.size[1];
    bands.size[1] = (height + ROWS - 1) / ROWS;
    bands.per_size[1] = ek_cuda_divider_of(bands.size[1]);
    bands.count = bands.count / height * bands.size[1];
    return ek_launch(stream, ek_grid(stream, bands.count), upsample_forward<T, I, V>, vectors,
                     bands);
}

template <typename T>
static int launch_upsample_forward_of(const ek_cuda_stream *stream, const ek_cuda_upsample *job)
{
    enum { V = 16 / sizeof(T) };
    if (job->wide)
        return launch_upsample_forward<T, int64_t, 1>(stream, job);
    if (!upsample_has_vectors(*job, V, sizeof(T)))
        return launch_upsample_forward<T, int32_t, 1>(stream, job);
    return launch_upsample_forward<T, int32_t, V>(stream, job);
}

int ek_cuda_launch_upsample_forward(const ek_cuda_stream *stream, const ek_cuda_upsample *job)
{
    EK_FLOATING(job->large.dtype, T, return launch_upsample_forward_of<T>(stream, job))
}

template <typename T, typename I, int V, bool PACKED>
static int launch_upsample_gradient(const ek_cuda_stream *stream, const ek_cuda_upsample *job)
{
    ek_cuda_image groups = job->small;
    groups.channels = (groups.channels + V - 1) / V;
    groups.per_channels = ek_cuda_divider_of(groups.channels);
    groups.count = groups.count / job->small.channels * groups.channels;
    return ek_launch(stream, ek_grid(stream, groups.count), upsample_gradient<T, I, V, PACKED>,
                     *job, groups);
}

template <typename T>
static int launch_upsample_gradient_of(const ek_cuda_stream *stream, const ek_cuda_upsample *job)
{
    enum { V = 16 / sizeof(T) };
    if (job->wide)
        return launch_upsample_gradient<T, int64_t, 1, false>(stream, job);
    if (upsample_has_vectors(*job, V, sizeof(T)))
        return launch_upsample_gradient<T, int32_t, V, true>(stream, job);
    if (job->small.count / GROUP < (int64_t)stream->multiprocessors * 1024)
        return launch_upsample_gradient<T, int32_t, 1, false>(stream, job);
    return launch_upsample_gradient<T, int32_t, GROUP, false>(stream, job);
}

int ek_cuda_launch_upsample_gradient(const ek_cuda_stream *stream, const ek_cuda_upsample *job)
{
    EK_FLOATING(job->small.dtype, T, return launch_upsample_gradient_of<T>(stream, job))
}
