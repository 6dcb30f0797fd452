/* conv_direct.cu: convolution forward and its input gradient. Each element of the result gathers a
 * sum (conv.h).
 *
 * gather_tiles computes a convolution as a product of (rows, K) by (K, columns) for each group.
 * Rows are positions of `to`, K the taps and channels of `from`, columns the channels of `to`. The
 * matrix of rows is never stored: its elements are read from `from`. If `divide` is above 1, the
 * positions of `to` form phases by their remainder. The positions of a phase use only the taps for
 * which the division is exact, so that no product is wasted. A block loads 2 * 64 * 16 numbers for
 * 64 * 64 * 16 multiply-adds, which is 16 operations per byte for f32. Computing indices takes
 * about as many instructions as multiplying.
 *
 * gather_each sums each element by one thread, or by a warp if channels of a group are neighbours
 * in memory. It is for groups of few channels (a depthwise convolution is bound by memory), and for
 * small problems, whose tiles would be mostly empty. */
#include "cuda/conv.h"
#include "cuda/conv_tile.cuh"

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

/* ---- tiles ---- */

/* One dimension of a phase. Its positions of `to` are first_row + i * row_stride for `rows` values
 * of i. Its taps are first_tap + t * tap_stride for `taps` values of t. Position i and tap t of the
 * phase read position origin + i * step + t * tap_step of `from`. */
struct phase {
    int rows, first_row, row_stride;
    int taps, first_tap, tap_stride;
    int origin, step, tap_step;
    ek_cuda_divider per_taps;
};

struct phases {
    int count[3];
    int tap_stride[3]; /* divide / gcd(divide, tap_step) */
};

/* Returns phase `index`, which starts with row `index`, because row_step is 1 if divide isn't. Only
 * taps that lead to a multiple of divide belong to the phase; they are tap_stride apart. */
static __device__ phase phase_of(const ek_cuda_conv_gather &conv, const phases &all, int d,
                                 int index)
{
    phase p;
    int divide = (int)conv.divide[d], tap_step = (int)conv.tap_step[d], taps = (int)conv.taps[d];
    int rows = (int)conv.to.size[d], origin = (int)conv.origin[d] + index * (int)conv.row_step[d];
    int first = 0, stride = all.tap_stride[d];
    while (first < stride && first < taps && (origin + first * tap_step) % divide != 0)
        first++;
    bool meets = first < stride && first < taps;
    p.rows = (rows - index + divide - 1) / divide;
    p.first_row = index;
    p.row_stride = divide;
    p.taps = meets ? (taps - first + stride - 1) / stride : 0;
    p.first_tap = first;
    p.tap_stride = stride;
    p.origin = (origin + first * tap_step) / divide;
    p.step = (int)conv.row_step[d];
    p.tap_step = stride * tap_step / divide;
    p.per_taps = ek_cuda_divider_of(p.taps);
    return p;
}

/* An index along K, which is a tap and a channel: its offsets in `from` and w, and in `at` what it
 * adds to a row's position. */
struct depth_index {
    int at[3];
    int64_t from, w;
};

EK_DEVICE depth_index depth_index_of(const ek_cuda_conv_gather &conv, const phase p[3], int k)
{
    depth_index index;
    int tap = ek_divide(k, conv.per_from), channel = k - tap * (int)conv.from_channels;
    index.from = channel * conv.from.by_channel;
    index.w = channel * conv.w_from;
#pragma unroll
    for (int d = 2; d >= 0; d--) {
        int rest = ek_divide(tap, p[d].per_taps);
        int t = tap - rest * p[d].taps;
        index.at[d] = t * p[d].tap_step;
        index.from += index.at[d] * conv.from.step[d];
        index.w += (p[d].first_tap + t * p[d].tap_stride) * conv.w_tap[d];
        tap = rest;
    }
    return index;
}

/* Positions and offsets of a tile's rows. */
struct row_indices {
    int at[TILE][3];
    int64_t from[TILE], to[TILE]; /* offsets; `to` is negative if there is no row */
};

static __device__ void row_indices_fill(row_indices *rows, const ek_cuda_conv_gather &conv,
                                        const phase p[3], int64_t row, int i)
{
    int64_t plane = (int64_t)p[0].rows * p[1].rows * p[2].rows, sample = row / plane;
    int64_t position = row - sample * plane;
    rows->from[i] = sample * conv.from.by_sample;
    rows->to[i] = sample * conv.to.by_sample;
#pragma unroll
    for (int d = 2; d >= 0; d--) {
        int64_t rest = position / p[d].rows;
        int u = (int)(position - rest * p[d].rows);
        position = rest;
        rows->at[i][d] = p[d].origin + u * p[d].step;
        rows->from[i] += rows->at[i][d] * conv.from.step[d];
        rows->to[i] += (p[d].first_row + u * p[d].row_stride) * conv.to.step[d];
    }
    if (sample >= conv.to.samples) {
        rows->at[i][0] = INT32_MIN / 2; /* outside of `from` with every tap */
        rows->to[i] = -1;
    }
}

EK_DEVICE bool gather_is_inside(const ek_cuda_conv_gather &conv, const int row[3], const int k[3])
{
    return (unsigned)(row[0] + k[0]) < (unsigned)conv.from.size[0] &&
           (unsigned)(row[1] + k[1]) < (unsigned)conv.from.size[1] &&
           (unsigned)(row[2] + k[2]) < (unsigned)conv.from.size[2];
}

/* How a launch of gather_tiles is cut, and along which dimension it reads memory. */
struct gather_job {
    phases all;
    int64_t row_tiles;
    int column_tiles;
    bool from_along_depth, w_along_depth;
};

template <typename T>
EK_DEVICE void gather_load_rows(tile<typename ek_compute<T>::type> *a,
                                const ek_cuda_conv_gather &conv, const phase p[3],
                                const row_indices &rows, const T *from, bool along_depth, int k0,
                                int depth)
{
    typedef typename ek_compute<T>::type R;
    int k = -1;
    depth_index index;
    EK_EACH(j, SIDE) {
        tile_index at = tile_index_of(along_depth, (int)threadIdx.x, j);
        if (k != k0 + at.depth) {
            k = k0 + at.depth;
            index = depth_index_of(conv, p, k);
        }
        R value = 0;
        if (k < depth && gather_is_inside(conv, rows.at[at.i], index.at))
            value = ek_load(from + rows.from[at.i] + index.from);
        tile_put(a, at.depth, at.i, value);
    }
}

template <typename T>
EK_DEVICE void gather_load_weights(tile<typename ek_compute<T>::type> *b,
                                   const ek_cuda_conv_gather &conv, const phase p[3], const T *w,
                                   int first, bool along_depth, int k0, int depth)
{
    typedef typename ek_compute<T>::type R;
    int k = -1;
    depth_index index;
    EK_EACH(j, SIDE) {
        tile_index at = tile_index_of(along_depth, (int)threadIdx.x, j);
        if (k != k0 + at.depth) {
            k = k0 + at.depth;
            index = depth_index_of(conv, p, k);
        }
        R value = 0;
        if (k < depth && first + at.i < (int)conv.to_channels)
            value = ek_load(w + index.w + (first + at.i) * conv.w_to);
        tile_put(b, at.depth, at.i, value);
    }
}

template <typename T>
static __device__ void gather_store_sums(const typename ek_compute<T>::type sum[SIDE][SIDE],
                                         const ek_cuda_conv_gather &conv, const row_indices &rows,
                                         T *to, int64_t first, const T *bias)
{
    typedef typename ek_compute<T>::type R;
    int down = (int)threadIdx.x / (TILE / SIDE) * SIDE;
    R add[SIDE];
    EK_EACH(j, SIDE)
        add[j] = bias && first + j < conv.to_channels ? ek_load(bias + (first + j) * conv.by_bias)
                                                      : (R)0;
    EK_EACH(i, SIDE) {
        if (rows.to[down + i] < 0)
            continue;
        T *at = to + rows.to[down + i] + first * conv.to.by_channel;
        quad<T> values;
        EK_EACH(j, SIDE)
            ek_store(&values.v[j], sum[i][j] + add[j]);
        if (conv.to.by_channel == 1 && first + SIDE <= conv.to_channels &&
            (uintptr_t)at % sizeof values == 0) {
            *(quad<T> *)at = values;
            continue;
        }
        EK_EACH(j, SIDE)
            if (first + j < conv.to_channels)
                at[j * conv.to.by_channel] = values.v[j];
    }
}

template <typename T> EK_KERNEL gather_tiles(ek_cuda_conv_gather conv, gather_job job)
{
    typedef typename ek_compute<T>::type R;
    __shared__ tile<R> a, b;
    __shared__ row_indices rows;
    __shared__ phase p[3];
    int thread = (int)threadIdx.x;
    int64_t block = blockIdx.x, column_tile = block % job.column_tiles;
    int64_t row_tile = block / job.column_tiles % job.row_tiles;
    int64_t group = block / job.column_tiles / job.row_tiles;
    int64_t index = group / conv.groups;
    group -= index * conv.groups;
    if (thread < 3) {
        int64_t below = thread == 2   ? 1
                        : thread == 1 ? job.all.count[2]
                                      : (int64_t)job.all.count[2] * job.all.count[1];
        p[thread] = phase_of(conv, job.all, thread, (int)(index / below % job.all.count[thread]));
    }
    __syncthreads();
    if (thread < TILE)
        row_indices_fill(&rows, conv, p, row_tile * TILE + thread, thread);
    __syncthreads();
    int depth = p[0].taps * p[1].taps * p[2].taps * (int)conv.from_channels;
    const T *from = (const T *)conv.from.data + group * conv.from_channels * conv.from.by_channel;
    const T *w = (const T *)conv.w + group * conv.w_group;
    R sum[SIDE][SIDE] = {};
    for (int k0 = 0; k0 < depth; k0 += DEPTH) {
        gather_load_rows(&a, conv, p, rows, from, job.from_along_depth, k0, depth);
        gather_load_weights(&b, conv, p, w, (int)column_tile * TILE, job.w_along_depth, k0, depth);
        __syncthreads();
        tile_multiply(sum, &a, &b, thread / (TILE / SIDE), thread % (TILE / SIDE));
        __syncthreads();
    }
    int64_t channel = group * conv.to_channels;
    const T *bias = conv.bias ? (const T *)conv.bias + channel * conv.by_bias : (const T *)0;
    gather_store_sums(sum, conv, rows, (T *)conv.to.data + channel * conv.to.by_channel,
                      column_tile * TILE + thread % (TILE / SIDE) * SIDE, bias);
}

/* ---- launching ---- */

static int64_t gcd(int64_t a, int64_t b)
{
    a = a < 0 ? -a : a;
    b = b < 0 ? -b : b;
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

template <typename T>
static int launch_gather_tiles(const ek_cuda_stream *stream, const ek_cuda_conv_gather *conv)
{
    gather_job job;
    int64_t rows = conv->to.samples, count = 1;
    for (int d = 0; d < 3; d++) {
        int64_t divide = conv->divide[d], size = conv->to.size[d];
        job.all.count[d] = (int)(divide < size ? divide : size);
        job.all.tap_stride[d] = (int)(divide / gcd(divide, conv->tap_step[d]));
        rows *= (size + divide - 1) / divide; /* rows of the first phase, which has most */
        count *= job.all.count[d];
    }
    job.row_tiles = (rows + TILE - 1) / TILE;
    job.column_tiles = (int)((conv->to_channels + TILE - 1) / TILE);
    job.from_along_depth = conv->from.last;
    job.w_along_depth = conv->w_from < conv->w_to;
    int64_t blocks = job.row_tiles * job.column_tiles * conv->groups * count;
    return ek_launch(stream, (unsigned)blocks, gather_tiles<T>, *conv, job);
}

template <typename T, int LANES>
static int launch_gather_each(const ek_cuda_stream *stream, const ek_cuda_conv_gather *conv)
{
    bool wide = conv->wide || conv->from.wide || conv->to.wide;
    return ek_launch(stream, ek_grid(stream, conv->to.count, EK_BLOCK / LANES),
                     wide ? gather_each<T, int64_t, LANES> : gather_each<T, int32_t, LANES>, *conv);
}

/* Chooses the kernel: gather_each if indices need 64 bits, if few columns would leave tiles empty,
 * or if there are too few products to fill the device with tiles. */
template <typename T>
static int launch_gather(const ek_cuda_stream *stream, const ek_cuda_conv_gather *conv)
{
    double terms = (double)conv->from_channels;
    for (int d = 0; d < 3; d++)
        terms *= (double)conv->taps[d] / (double)conv->divide[d];
    bool few = conv->to_channels < TILE / 4 || terms * (double)conv->to.count < 1 << 18;
    if (!conv->wide && !few)
        return launch_gather_tiles<T>(stream, conv);
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
