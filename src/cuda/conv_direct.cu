/* conv_direct.cu: convolution without cuDNN (conv_direct.c).
 *
 * gather_each sums each element by one thread, or by a warp if channels of a group are neighbours
 * in memory. weights_each sums one column of some outputs by a block: it is bound by memory,
 * because each element of dy and x is read from memory once, and from the caches for every further
 * tap. Both are for groups of few channels (a depthwise convolution is bound by memory), and for
 * small problems. Others are products of the matrix that gather_columns writes. */
#include "cuda/conv.h"
#include "cuda/image.cuh"

/* ---- one element by one thread or warp ---- */

/* Sets *source to the position that tap t of position i reads. Returns false if there is none. */
template <typename I>
EK_DEVICE bool gather_source_of(const ek_cuda_conv_gather &conv, int d, I i, I t, I *source)
{
    I q = (I)conv.origin[d] + i * (I)conv.row_step[d] + t * (I)conv.tap_step[d];
    I divide = (I)conv.divide[d];
    if (q < 0)
        return false;
    if (divide > 1) {
        I rest = q % divide;
        if (rest != 0)
            return false;
        q /= divide;
    }
    *source = q;
    return q < (I)conv.from.size[d];
}

template <typename T, typename I, int LANES>
EK_DEVICE typename ek_compute<T>::type gather_sum_of_taps(const ek_cuda_conv_gather &conv,
                                                          const I at[3], const T *from, const T *w,
                                                          int lane)
{
    typename ek_compute<T>::type sum = 0;
    I p[3], by_channel = (I)conv.from.by_channel;
    int64_t w_from = conv.w_from;
    for (I a = 0; a < (I)conv.taps[0]; a++) {
        if (!gather_source_of(conv, 0, at[0], a, &p[0]))
            continue;
        for (I b = 0; b < (I)conv.taps[1]; b++) {
            if (!gather_source_of(conv, 1, at[1], b, &p[1]))
                continue;
            for (I c = 0; c < (I)conv.taps[2]; c++) {
                if (!gather_source_of(conv, 2, at[2], c, &p[2]))
                    continue;
                const T *u = from + ek_offset_within(conv.from, p);
                const T *v = w + a * conv.w_tap[0] + b * conv.w_tap[1] + c * conv.w_tap[2];
                for (I k = lane; k < (I)conv.from_channels; k += LANES)
                    sum += ek_load(u + k * by_channel) * ek_load(v + k * w_from);
            }
        }
    }
    return sum;
}

template <typename T, typename I, int LANES> EK_KERNEL gather_each(ek_cuda_conv_gather conv)
{
    typedef typename ek_compute<T>::type R;
    int lane = (int)threadIdx.x % LANES;
    int64_t first = ((int64_t)blockIdx.x * EK_BLOCK + threadIdx.x) / LANES;
    int64_t step = (int64_t)gridDim.x * EK_BLOCK / LANES;
    for (int64_t i = first; i < conv.to.count; i += step) {
        ek_index<I> index = ek_index_of(conv.to, (I)i);
        I group = ek_divide(index.channel, conv.per_to);
        I column = index.channel - group * (I)conv.to_channels;
        const T *from = (const T *)conv.from.data +
                        ek_plane_offset(conv.from, index.sample, group * (I)conv.from_channels);
        const T *w = (const T *)conv.w + group * conv.w_group + column * conv.w_to;
        R sum = gather_sum_of_taps<T, I, LANES>(conv, index.at, from, w, lane);
        if (LANES > 1)
            sum = ek_warp_sum(sum);
        if (conv.bias)
            sum += ek_load((const T *)conv.bias + index.channel * conv.by_bias);
        if (lane == 0)
            ek_store((T *)conv.to.data + ek_offset_of(conv.to, index), sum);
    }
}

/* ---- the matrix of what each position reads ---- */

template <typename T>
EK_KERNEL gather_columns(ek_cuda_conv_gather conv, int first, int count,
                         typename ek_compute<T>::type *columns)
{
    const int taps = (int)(conv.taps[0] * conv.taps[1] * conv.taps[2]);
    EK_GRID_LOOP(i, count) {
        int row = ek_divide((int)i, conv.per_row), k = (int)i - row * (int)conv.per_row.by;
        int tap, channel, at[3], source[3] = {};
        if (conv.taps_inside) {
            channel = k / taps;
            tap = k - channel * taps;
        } else {
            int outer = ek_divide(k, conv.per_from), group = outer / taps;
            channel = k - (outer - group) * (int)conv.from_channels;
            tap = outer - group * taps;
        }
        int sample = ek_split_position(conv.to, first + row, at);
        bool inside = true;
#pragma unroll
        for (int d = 2; d >= 0; d--) {
            int rest = ek_divide(tap, conv.per_taps[d]);
            inside = gather_source_of(conv, d, at[d], tap - rest * (int)conv.taps[d], &source[d]) &&
                     inside;
            tap = rest;
        }
        const T *from = (const T *)conv.from.data + ek_plane_offset(conv.from, sample, channel);
        columns[i] = inside ? ek_load(from + ek_offset_within(conv.from, source)) : 0;
    }
}

int ek_cuda_launch_conv_columns(const ek_cuda_stream *stream, const ek_cuda_conv_gather *conv,
                                int64_t first, int64_t rows, void *columns)
{
    const int64_t count = rows * conv->per_row.by;
    EK_FLOATING(conv->from.dtype, T,
                return ek_launch(stream, ek_grid(stream, count), gather_columns<T>, *conv, first,
                                 count, (typename ek_compute<T>::type *)columns))
}

/* ---- the gradient of weights ---- */

/* The group's channel and the taps of a column, channels innermost. */
template <typename I> struct column_index {
    I tap[3], channel;
};

template <typename I>
EK_DEVICE column_index<I> column_index_of(const ek_cuda_conv_gather &conv, I column)
{
    column_index<I> index;
    I tap = ek_divide(column, conv.per_from);
    index.channel = column - tap * (I)conv.from_channels;
#pragma unroll
    for (int d = 2; d >= 0; d--) {
        I rest = ek_divide(tap, conv.per_taps[d]);
        index.tap[d] = tap - rest * (I)conv.taps[d];
        tap = rest;
    }
    return index;
}

template <typename T, typename I, typename R>
EK_DEVICE void weights_store(const ek_cuda_conv_gather &conv, int64_t output, int64_t column, R sum)
{
    column_index<I> index = column_index_of(conv, (I)column);
    ek_store((T *)conv.w + output * conv.w_to + index.channel * conv.w_from +
                 index.tap[0] * conv.w_tap[0] + index.tap[1] * conv.w_tap[1] +
                 index.tap[2] * conv.w_tap[2],
             sum);
}

/* A block sums one column of `lanes` neighbouring outputs in one part. Its threads form rows of
 * `lanes` threads, which share the part's rows. Then the thread rows' sums are added pairwise. */
template <typename T, typename I>
EK_KERNEL weights_each(ek_cuda_conv_gather conv, int lanes, int64_t output_blocks)
{
    typedef typename ek_compute<T>::type R;
    __shared__ R parts[EK_BLOCK];
    int thread = (int)threadIdx.x, threads_down = EK_BLOCK / lanes;
    int64_t channels = conv.groups * conv.to_channels, block = blockIdx.x;
    int64_t output = block % output_blocks * lanes + thread % lanes;
    block /= output_blocks;
    I column = (I)(block % conv.depth);
    int64_t part = block / conv.depth, end = (part + 1) * conv.part_rows;
    end = end < conv.rows ? end : conv.rows;
    if (output >= channels)
        end = 0;
    I group = ek_divide((I)(output < channels ? output : 0), conv.per_to);
    column_index<I> index = column_index_of(conv, column);
    const T *x = (const T *)conv.from.data +
                 (group * (I)conv.from_channels + index.channel) * conv.from.by_channel;
    const T *y = (const T *)conv.to.data + output * conv.to.by_channel;
    R sum = 0;
    for (int64_t row = part * conv.part_rows + thread / lanes; row < end; row += threads_down) {
        I at[3], source[3], sample = ek_split_position(conv.to, (I)row, at);
        bool inside = true;
        EK_EACH(d, 3)
            inside = inside && gather_source_of(conv, d, at[d], index.tap[d], &source[d]);
        if (inside)
            sum +=
                ek_load(y + sample * (I)conv.to.by_sample + ek_offset_within(conv.to, at)) *
                ek_load(x + sample * (I)conv.from.by_sample + ek_offset_within(conv.from, source));
    }
    parts[thread] = sum;
    for (int half = threads_down / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half * lanes)
            parts[thread] += parts[thread + half * lanes];
    }
    if (thread >= lanes || output >= channels)
        return;
    if (conv.parts == 1)
        weights_store<T, I>(conv, output, column, parts[thread]);
    else
        ((R *)conv.partials)[(part * channels + output) * conv.depth + column] = parts[thread];
}

/* Adds the parts in order. */
template <typename T, typename I> EK_KERNEL weights_join(ek_cuda_conv_gather conv)
{
    typedef typename ek_compute<T>::type R;
    int64_t count = conv.groups * conv.to_channels * conv.depth;
    EK_GRID_LOOP(i, count) {
        const R *from = (const R *)conv.partials + i;
        int64_t output = i / conv.depth, column = i - output * conv.depth;
        R sum = 0;
        for (int64_t part = 0; part < conv.parts; part++)
            sum += from[part * count];
        weights_store<T, I>(conv, output, column, sum);
    }
}

/* ---- launching ---- */

template <typename T, int LANES>
static int launch_gather_each(const ek_cuda_stream *stream, const ek_cuda_conv_gather *conv)
{
    return ek_launch(stream, ek_grid(stream, conv->to.count, EK_BLOCK / LANES),
                     conv->wide ? gather_each<T, int64_t, LANES> : gather_each<T, int32_t, LANES>,
                     *conv);
}

template <typename T>
static int launch_gather(const ek_cuda_stream *stream, const ek_cuda_conv_gather *conv)
{
    bool idle = conv->to.count < (int64_t)stream->multiprocessors * EK_BLOCK;
    if (conv->from_channels >= EK_WARP && (conv->from.last || idle))
        return launch_gather_each<T, EK_WARP>(stream, conv);
    return launch_gather_each<T, 1>(stream, conv);
}

int ek_cuda_launch_conv_gather(const ek_cuda_stream *stream, const ek_cuda_conv_gather *conv)
{
    if (conv->to.count == 0)
        return 0;
    EK_FLOATING(conv->to.dtype, T, return launch_gather<T>(stream, conv))
}

static int64_t weights_lanes_of(const ek_cuda_conv_gather *conv)
{
    return conv->to.last ? EK_WARP : 1;
}

/* Returns how many blocks have the outputs of one column. */
static int64_t weights_blocks_of(const ek_cuda_conv_gather *conv)
{
    const int64_t lanes = weights_lanes_of(conv);
    return (conv->groups * conv->to_channels + lanes - 1) / lanes;
}

size_t ek_cuda_conv_weights_plan(const ek_cuda_stream *stream, ek_cuda_conv_gather *conv)
{
    const int64_t blocks = weights_blocks_of(conv) * conv->depth;
    conv->rows = conv->to.samples * conv->to.plane;
    const int64_t most = (conv->rows + EK_BLOCK - 1) / EK_BLOCK;
    int64_t parts = ((int64_t)stream->multiprocessors * 8 + blocks - 1) / blocks;
    parts = parts < most ? parts : most;
    parts = parts > 1 ? parts : 1;
    conv->part_rows = (most + parts - 1) / parts * EK_BLOCK;
    conv->parts = conv->rows > 0 ? (conv->rows + conv->part_rows - 1) / conv->part_rows : 1;
    size_t size = conv->to.dtype == EK_F64 ? sizeof(double) : sizeof(float);
    if (conv->parts == 1)
        return 0;
    return (size_t)(conv->parts * conv->groups * conv->to_channels * conv->depth) * size;
}

template <typename T>
static int launch_weights(const ek_cuda_stream *stream, const ek_cuda_conv_gather *conv)
{
    const int64_t blocks = weights_blocks_of(conv);
    int rc = ek_launch(stream, (unsigned)(blocks * conv->depth * conv->parts),
                       conv->wide ? weights_each<T, int64_t> : weights_each<T, int32_t>, *conv,
                       weights_lanes_of(conv), blocks);
    if (rc != 0 || conv->parts == 1)
        return rc;
    return ek_launch(stream, ek_grid(stream, conv->groups * conv->to_channels * conv->depth),
                     conv->wide ? weights_join<T, int64_t> : weights_join<T, int32_t>, *conv);
}

int ek_cuda_launch_conv_weights(const ek_cuda_stream *stream, const ek_cuda_conv_gather *conv)
{
    EK_FLOATING(conv->to.dtype, T, return launch_weights<T>(stream, conv))
}

/* ---- a bias on the channels: bounded by memory, 16 bytes at a time if sizes and address allow it
 * ---- */

/* Adds the bias to y. If `same`, all elements of a vector have one channel, else neighbouring
 * channels. I is the type of indices. */
template <typename T, int COUNT, typename I>
static __global__ void add_bias(T *y, const T *bias, int64_t bias_stride, I packs, I inner,
                                I channels)
{
    typedef typename ek_compute<T>::type C;
    typedef ek_vector<T, COUNT> P;
    bool same = COUNT == 1 || inner > 1;
    EK_GRID_LOOP(i, (int64_t)packs) {
        P values = ((const P *)y)[i];
        I channel = (I)i * COUNT / inner % channels;
        EK_EACH(j, COUNT) {
            int64_t from = (int64_t)channel + (same ? 0 : j);
            C sum = ek_load(&values.element[j]) + ek_load(bias + from * bias_stride);
            ek_store(&values.element[j], sum);
        }
        ((P *)y)[i] = values;
    }
}

template <typename T, int COUNT>
static int bias_packs(const ek_cuda_stream *stream, T *y, const T *bias, int64_t bias_stride,
                      int64_t count, int64_t inner, int64_t channels)
{
    int64_t packs = count / COUNT;
    if (count < INT32_MAX)
        return ek_launch(stream, ek_grid(stream, packs), add_bias<T, COUNT, uint32_t>, y, bias,
                         bias_stride, packs, inner, channels);
    return ek_launch(stream, ek_grid(stream, packs), add_bias<T, COUNT, int64_t>, y, bias,
                     bias_stride, packs, inner, channels);
}

template <typename T>
static int launch_bias(const ek_cuda_stream *stream, T *y, const T *bias, int64_t bias_stride,
                       int64_t count, int64_t inner, int64_t channels)
{
    enum { COUNT = 16 / sizeof(T) };
    int64_t run = inner > 1 ? inner : channels;
    if (run % COUNT == 0 && (uintptr_t)y % 16 == 0)
        return bias_packs<T, COUNT>(stream, y, bias, bias_stride, count, inner, channels);
    return bias_packs<T, 1>(stream, y, bias, bias_stride, count, inner, channels);
}

int ek_cuda_launch_bias(const ek_cuda_stream *stream, ek_dtype dtype, void *y, const void *bias,
                        int64_t bias_stride, int64_t count, int64_t inner, int64_t channels)
{
    EK_FLOATING(dtype, T,
                return launch_bias<T>(stream, (T *)y, (const T *)bias, bias_stride, count, inner,
                                      channels))
}
