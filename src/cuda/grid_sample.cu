/* grid_sample.cu: images at places between their pixels, the adjoint and the slope. A thread
 * computes the taps of a place once for several channels. */
#include "cuda/image.cuh"
#include "cuda/launches.h"

enum { GRID_CHANNELS = 4 /* channels of a thread */ };

/* ---- places ---- */

/* Declares functions that aren't inlined, because compilers take minutes for a kernel that contains
 * the rules of a place three times. */
#define GRID_CALL static __device__ __attribute__((noinline))

GRID_CALL void grid_place_at(const ek_grid_params &params, int d, int64_t size, float coordinate,
                             bool slopes, ek_grid_place_f32 *place)
{
    ek_grid_place_at_f32(&params, d, size, coordinate, slopes, place);
}
GRID_CALL void grid_place_at(const ek_grid_params &params, int d, int64_t size, double coordinate,
                             bool slopes, ek_grid_place_f64 *place)
{
    ek_grid_place_at_f64(&params, d, size, coordinate, slopes, place);
}

/* A loop over the positions that a place reads. It isn't unrolled, because nvcc takes minutes to
 * unroll three nested loops. */
#define GRID_TAPS(i, count) _Pragma("unroll 1") for (int i = 0; i < (count); i++)

template <typename R> struct grid_place;
template <> struct grid_place<float> {
    typedef ek_grid_place_f32 type;
};
template <> struct grid_place<double> {
    typedef ek_grid_place_f64 type;
};

/* Finds the positions and weights of a place in all three directions. If images have no depth, the
 * only position in this direction gets the weight 1. */
template <typename R>
EK_DEVICE void grid_find(const ek_cuda_grid_job &job, const ek_index<int64_t> &index, bool slopes,
                         typename grid_place<R>::type (&place)[3])
{
    const R *at = (const R *)job.grid + index.sample * job.by_sample + index.at[0] * job.step[0] +
                  index.at[1] * job.step[1] + index.at[2] * job.step[2];
    int missing = 3 - job.params.dims;
    place[0].index[0] = 0;
    place[0].weight[0] = 1;
    place[0].slope[0] = 0;
    EK_EACH(d, 3)
        if (d >= missing)
            grid_place_at(job.params, d - missing, job.image.size[d],
                          at[(2 - d) * job.by_coordinate], slopes, &place[d]);
}

/* Returns how many positions are read along the depth. Along the other directions ek_grid_taps are
 * read. */
EK_DEVICE int grid_front(const ek_grid_params &params)
{
    return params.dims == 3 ? ek_grid_taps(params.mode) : 1;
}

EK_DEVICE int64_t grid_offset(const ek_cuda_image &image, int64_t a, int64_t b, int64_t c)
{
    return a * image.step[0] + b * image.step[1] + c * image.step[2];
}

/* Computes `result`. `groups` counts its places and its groups of GRID_CHANNELS channels. */
template <typename R> EK_KERNEL grid_sample(ek_cuda_grid_job job, ek_cuda_image groups)
{
    int front = grid_front(job.params), taps = ek_grid_taps(job.params.mode);
    EK_GRID_LOOP(i, groups.count) {
        ek_index<int64_t> index = ek_index_of(groups, i);
        typename grid_place<R>::type place[3];
        grid_find<R>(job, index, false, place);
        index.channel *= GRID_CHANNELS;
        int real = (int)(job.result.channels - index.channel);
        const R *x =
            (const R *)job.image.data + ek_plane_offset(job.image, index.sample, index.channel);
        R sum[GRID_CHANNELS] = {};
        GRID_TAPS(a, front)
            GRID_TAPS(b, taps)
                GRID_TAPS(c, taps) {
                    R weight = place[0].weight[a] * place[1].weight[b] * place[2].weight[c];
                    const R *from = x + grid_offset(job.image, place[0].index[a], place[1].index[b],
                                                    place[2].index[c]);
                    if (weight == 0)
                        continue;
                    EK_EACH(v, GRID_CHANNELS)
                        if (v < real)
                            sum[v] += weight * from[v * job.image.by_channel];
                }
        R *y = (R *)job.result.data + ek_offset_of(job.result, index);
        EK_EACH(v, GRID_CHANNELS)
            if (v < real)
                y[v * job.result.by_channel] = sum[v];
    }
}

/* Adds dy at the place `index`, times the weights, to `count` channels of dx. */
template <typename R>
EK_DEVICE void grid_scatter(const ek_cuda_grid_job &job, const ek_index<int64_t> &index, int count)
{
    int front = grid_front(job.params), taps = ek_grid_taps(job.params.mode);
    typename grid_place<R>::type place[3];
    grid_find<R>(job, index, false, place);
    R *dx = (R *)job.image.data + ek_plane_offset(job.image, index.sample, index.channel);
    const R *dy = (const R *)job.result.data + ek_offset_of(job.result, index);
    GRID_TAPS(a, front)
        GRID_TAPS(b, taps)
            GRID_TAPS(c, taps) {
                R weight = place[0].weight[a] * place[1].weight[b] * place[2].weight[c];
                R *to = dx + grid_offset(job.image, place[0].index[a], place[1].index[b],
                                         place[2].index[c]);
                if (weight == 0)
                    continue;
                EK_EACH(v, GRID_CHANNELS)
                    if (v < count)
                        atomicAdd(to + v * job.image.by_channel,
                                  weight * dy[v * job.result.by_channel]);
            }
}

/* Adds in the order in which threads arrive. */
template <typename R> EK_KERNEL grid_adjoint(ek_cuda_grid_job job, ek_cuda_image groups)
{
    EK_GRID_LOOP(i, groups.count) {
        ek_index<int64_t> index = ek_index_of(groups, i);
        index.channel *= GRID_CHANNELS;
        grid_scatter<R>(job, index, (int)(job.result.channels - index.channel));
    }
}

/* Adds in the order of places, because one thread has all places of a plane. */
template <typename R> EK_KERNEL grid_adjoint_in_order(ek_cuda_grid_job job)
{
    EK_GRID_LOOP(i, job.result.samples * job.result.channels) {
        ek_index<int64_t> index;
        index.sample = i / job.result.channels;
        index.channel = i % job.result.channels;
        for (int64_t p = 0; p < job.result.plane; p++) {
            ek_split_position(job.result, p, index.at);
            grid_scatter<R>(job, index, 1);
        }
    }
}

/* Computes the slope: sums whose products of a place's weights have one weight differentiated. A
 * thread has a place and all channels. */
template <typename R> EK_KERNEL grid_slope(ek_cuda_grid_job job)
{
    int front = grid_front(job.params), taps = ek_grid_taps(job.params.mode);
    int dims = job.params.dims;
    EK_GRID_LOOP(i, job.result.samples * job.result.plane) {
        ek_index<int64_t> index;
        index.channel = 0;
        index.sample = ek_split_position(job.result, i, index.at);
        typename grid_place<R>::type place[3];
        grid_find<R>(job, index, true, place);
        const R *x =
            (const R *)job.image.data + ek_plane_offset(job.image, index.sample, (int64_t)0);
        const R *dy = (const R *)job.result.data + ek_offset_of(job.result, index);
        R sum[3] = {};
        GRID_TAPS(a, front)
            GRID_TAPS(b, taps)
                GRID_TAPS(c, taps) {
                    R u = place[0].weight[a], v = place[1].weight[b], w = place[2].weight[c];
                    R slope[3] = {place[0].slope[a] * v * w, u * place[1].slope[b] * w,
                                  u * v * place[2].slope[c]};
                    if (slope[0] == 0 && slope[1] == 0 && slope[2] == 0)
                        continue;
                    const R *from = x + grid_offset(job.image, place[0].index[a], place[1].index[b],
                                                    place[2].index[c]);
                    R dot = 0;
                    for (int64_t k = 0; k < job.result.channels; k++)
                        dot += dy[k * job.result.by_channel] * from[k * job.image.by_channel];
                    EK_EACH(d, 3)
                        sum[d] += slope[d] != 0 ? slope[d] * dot : 0;
                }
        R *to = (R *)job.slope + i * dims;
        EK_EACH(d, 3)
            if (2 - d < dims)
                to[2 - d] = sum[d];
    }
}

/* ---- launches ---- */

#define GRID_REALS(dtype, R, ...)               \
    switch (dtype) {                            \
        EK_CASE(EK_F32, float, R, __VA_ARGS__)  \
        EK_CASE(EK_F64, double, R, __VA_ARGS__) \
    default:                                    \
        return (int)cudaErrorInvalidValue;      \
    }

static ek_cuda_image grid_groups(const ek_cuda_grid_job *job)
{
    ek_cuda_image groups = job->result;
    groups.channels = (groups.channels + GRID_CHANNELS - 1) / GRID_CHANNELS;
    groups.per_channels = ek_cuda_divider_of(groups.channels);
    groups.count = job->result.samples * job->result.plane * groups.channels;
    return groups;
}

int ek_cuda_launch_grid_sample(const ek_cuda_stream *stream, const ek_cuda_grid_job *job)
{
    ek_cuda_image groups = grid_groups(job);
    GRID_REALS(job->image.dtype, R,
               return ek_launch(stream, ek_grid(stream, groups.count), grid_sample<R>, *job,
                                groups))
}

int ek_cuda_launch_grid_adjoint(const ek_cuda_stream *stream, const ek_cuda_grid_job *job)
{
    ek_cuda_image groups = grid_groups(job);
    int64_t planes = job->result.samples * job->result.channels;
    if (stream->deterministic)
        GRID_REALS(job->image.dtype, R,
                   return ek_launch(stream, ek_grid(stream, planes), grid_adjoint_in_order<R>,
                                    *job))
    GRID_REALS(job->image.dtype, R,
               return ek_launch(stream, ek_grid(stream, groups.count), grid_adjoint<R>, *job,
                                groups))
}

int ek_cuda_launch_grid_slope(const ek_cuda_stream *stream, const ek_cuda_grid_job *job)
{
    int64_t places = job->result.samples * job->result.plane;
    GRID_REALS(job->image.dtype, R,
               return ek_launch(stream, ek_grid(stream, places), grid_slope<R>, *job))
}
