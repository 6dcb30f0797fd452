/* conv_direct_gradient.cu: the gradients of a convolution's weights and bias. For each group, the
 * weights' gradient is the product of dy transposed (outputs, rows) by the matrix (rows, columns)
 * of forward. Rows are many and results few, so rows are cut into parts, whose sums are added up in
 * order.
 *
 * weights_tiles computes tiles of 64 outputs by 64 columns (conv_tile.cuh), and the bias's gradient
 * from the dy that it loads. It sums 256 rows at a time. In weights_each, for groups of few
 * channels, a block computes one column of some outputs. It is bound by memory: each element of dy
 * and x is read from memory once, and from the caches for every further tap. */
#include "cuda/conv.h"
#include "cuda/conv_tile.cuh"

/* The tap and channel of a column. */
template <typename I> struct column_index {
    I tap[3], channel;
};

template <typename I>
EK_DEVICE column_index<I> column_index_of(const ek_cuda_conv_weights &conv, I column)
{
    column_index<I> index;
    I tap = ek_divide(column, conv.per_channels);
    index.channel = column - tap * (I)conv.channels;
#pragma unroll
    for (int d = 2; d >= 0; d--) {
        I rest = ek_divide(tap, conv.per_taps[d]);
        index.tap[d] = tap - rest * (I)conv.taps[d];
        tap = rest;
    }
    return index;
}

/* Returns the sample and position of a row. */
template <typename I> EK_DEVICE ek_index<I> row_index_of(const ek_cuda_conv_weights &conv, I row)
{
    ek_index<I> index;
    index.sample = ek_split_position(conv.y, row, index.at);
    index.channel = 0;
    return index;
}

static __host__ __device__ __forceinline__ int64_t
weights_width_of(const ek_cuda_conv_weights &conv)
{
    return conv.columns + (conv.bias ? 1 : 0);
}

/* ---- tiles ---- */

/* The rows of a round and the columns of a tile: positions in x (a row's position is without the
 * tap) and offsets. */
struct weight_indices {
    int row[EK_BLOCK][3], column[TILE][3];
    int64_t row_x[EK_BLOCK], row_y[EK_BLOCK]; /* offsets; row_y is negative if there is no row */
    int64_t column_x[TILE];
};

static __device__ void weights_fill_row(weight_indices *indices, const ek_cuda_conv_weights &conv,
                                        int i, int64_t row, int64_t end)
{
    if (row >= end) {
        indices->row[i][0] = INT32_MIN / 2; /* outside of x with every tap */
        indices->row_y[i] = -1;
        return;
    }
    ek_index<int> index = row_index_of(conv, (int)row);
    indices->row_x[i] = index.sample * conv.x.by_sample;
    indices->row_y[i] = index.sample * conv.y.by_sample;
    EK_EACH(d, 3) {
        int at = index.at[d] * (int)conv.stride[d] - (int)conv.padding[d];
        indices->row[i][d] = at;
        indices->row_x[i] += at * conv.x.step[d];
        indices->row_y[i] += index.at[d] * conv.y.step[d];
    }
}

static __device__ void weights_fill_column(weight_indices *indices,
                                           const ek_cuda_conv_weights &conv, int i, int64_t column)
{
    if (column >= conv.columns) {
        indices->column[i][0] = INT32_MIN / 4;
        indices->column[i][1] = indices->column[i][2] = 0;
        return;
    }
    column_index<int> index = column_index_of(conv, (int)column);
    indices->column_x[i] = index.channel * conv.x.by_channel;
    EK_EACH(d, 3) {
        int at = index.tap[d] * (int)conv.dilation[d];
        indices->column[i][d] = at;
        indices->column_x[i] += at * conv.x.step[d];
    }
}

EK_DEVICE bool weights_is_inside(const ek_cuda_conv_weights &conv, const int row[3],
                                 const int column[3])
{
    return (unsigned)(row[0] + column[0]) < (unsigned)conv.x.size[0] &&
           (unsigned)(row[1] + column[1]) < (unsigned)conv.x.size[1] &&
           (unsigned)(row[2] + column[2]) < (unsigned)conv.x.size[2];
}

/* Loads 16 rows from `first` on: dy of the tile's `outputs` outputs, and x of its columns. */
template <typename T>
EK_DEVICE void weights_load_tiles(tile<typename ek_compute<T>::type> *a,
                                  tile<typename ek_compute<T>::type> *b,
                                  const ek_cuda_conv_weights &conv, const weight_indices &indices,
                                  const T *x, const T *y, int64_t outputs, int first)
{
    typedef typename ek_compute<T>::type R;
    EK_EACH(j, SIDE) {
        tile_index at = tile_index_of(!conv.y.last, (int)threadIdx.x, j);
        int row = first + at.depth;
        R value = 0;
        if (indices.row_y[row] >= 0 && at.i < outputs)
            value = ek_load(y + indices.row_y[row] + at.i * conv.y.by_channel);
        tile_put(a, at.depth, at.i, value);
        at = tile_index_of(!conv.x.last, (int)threadIdx.x, j);
        row = first + at.depth;
        value = 0;
        if (weights_is_inside(conv, indices.row[row], indices.column[at.i]))
            value = ek_load(x + indices.row_x[row] + indices.column_x[at.i]);
        tile_put(b, at.depth, at.i, value);
    }
}

template <typename R> EK_DEVICE void weights_add_and_clear(R total[SIDE][SIDE], R sum[SIDE][SIDE])
{
    EK_EACH(i, SIDE)
        EK_EACH(j, SIDE) {
            total[i][j] += sum[i][j];
            sum[i][j] = 0;
        }
}

/* Stores a sum over all rows: the bias's gradient in the column after the last, else a weight's. */
template <typename T, typename I, typename R>
EK_DEVICE void weights_store(const ek_cuda_conv_weights &conv, int64_t output, int64_t column,
                             R sum)
{
    if (column == conv.columns) {
        ek_store((T *)conv.bias + output * conv.by_bias, sum);
        return;
    }
    column_index<I> index = column_index_of(conv, (I)column);
    ek_store((T *)conv.w + output * conv.w_output + index.channel * conv.w_channel +
                 index.tap[0] * conv.w_tap[0] + index.tap[1] * conv.w_tap[1] +
                 index.tap[2] * conv.w_tap[2],
             sum);
}

/* Stores a part's sum in `partials`, or as the result if there is one part. */
template <typename T, typename I, typename R>
EK_DEVICE void weights_put(const ek_cuda_conv_weights &conv, int64_t part, int64_t output,
                           int64_t column, R sum)
{
    if (conv.parts == 1)
        weights_store<T, I>(conv, output, column, R(0) + sum);
    else
        ((R *)conv.partials)[(part * conv.groups * conv.outputs + output) * weights_width_of(conv) +
                             column] = sum;
}

template <typename T>
EK_KERNEL weights_tiles(ek_cuda_conv_weights conv, int column_tiles, int output_tiles)
{
    typedef typename ek_compute<T>::type R;
    __shared__ tile<R> a, b;
    __shared__ weight_indices indices;
    int thread = (int)threadIdx.x, block = (int)blockIdx.x;
    int column_tile = block % column_tiles;
    block /= column_tiles;
    int output_tile = block % output_tiles;
    block /= output_tiles;
    int64_t group = block % conv.groups, part = block / conv.groups;
    int64_t output = output_tile * TILE, outputs = conv.outputs - output;
    int64_t channel = group * conv.outputs + output;
    const T *x = (const T *)conv.x.data + group * conv.channels * conv.x.by_channel;
    const T *y = (const T *)conv.y.data + channel * conv.y.by_channel;
    int64_t row = part * conv.part_rows, end = row + conv.part_rows;
    end = end < conv.rows ? end : conv.rows;
    R total[SIDE][SIDE] = {}, sum[SIDE][SIDE] = {}, bias = 0;
    if (thread < TILE)
        weights_fill_column(&indices, conv, thread, (int64_t)column_tile * TILE + thread);
    for (; row < end; row += EK_BLOCK) {
        weights_fill_row(&indices, conv, thread, row + thread, end);
        __syncthreads();
        int count = end - row < EK_BLOCK ? (int)(end - row) : EK_BLOCK;
        R round_bias = 0;
        for (int first = 0; first < count; first += DEPTH) {
            weights_load_tiles(&a, &b, conv, indices, x, y, outputs, first);
            __syncthreads();
            tile_multiply(sum, &a, &b, thread / (TILE / SIDE), thread % (TILE / SIDE));
            if (conv.bias && column_tile == 0 && thread < TILE)
                for (int k = 0; k < DEPTH; k++)
                    round_bias += a.q[k][thread / SIDE].v[thread % SIDE];
            __syncthreads();
        }
        weights_add_and_clear(total, sum);
        bias += round_bias;
    }
    for (int i = 0; i < SIDE; i++) {
        for (int j = 0; j < SIDE; j++) {
            int down = thread / (TILE / SIDE) * SIDE + i;
            int64_t column = (int64_t)column_tile * TILE + thread % (TILE / SIDE) * SIDE + j;
            if (down < outputs && column < conv.columns)
                weights_put<T, int32_t>(conv, part, channel + down, column, total[i][j]);
        }
    }
    if (conv.bias && column_tile == 0 && thread < TILE && thread < outputs)
        weights_put<T, int32_t>(conv, part, channel + thread, conv.columns, bias);
}

/* ---- single sums ---- */

/* Returns x at a row's position and a column's tap; 0 outside of x. */
template <typename T, typename I>
EK_DEVICE typename ek_compute<T>::type weights_input_at(const ek_cuda_conv_weights &conv,
                                                        const T *x, const ek_index<I> &row,
                                                        const I tap[3])
{
    I p[3];
    EK_EACH(d, 3) {
        p[d] = row.at[d] * (I)conv.stride[d] - (I)conv.padding[d] + tap[d] * (I)conv.dilation[d];
        if (p[d] < 0 || p[d] >= (I)conv.x.size[d])
            return 0;
    }
    return ek_load(x + row.sample * (I)conv.x.by_sample + ek_offset_within(conv.x, p));
}

/* A block sums one column of `lanes` neighbouring outputs in one part. Its threads form rows of
 * `lanes` threads, which share the part's rows. Then the thread rows' sums are added pairwise. */
template <typename T, typename I>
EK_KERNEL weights_each(ek_cuda_conv_weights conv, int lanes, int64_t output_blocks)
{
    typedef typename ek_compute<T>::type R;
    __shared__ R parts[EK_BLOCK];
    int thread = (int)threadIdx.x, threads_down = EK_BLOCK / lanes;
    int64_t width = weights_width_of(conv), channels = conv.groups * conv.outputs;
    int64_t block = blockIdx.x;
    int64_t output = block % output_blocks * lanes + thread % lanes;
    block /= output_blocks;
    I column = (I)(block % width);
    int64_t part = block / width, end = (part + 1) * conv.part_rows;
    end = end < conv.rows ? end : conv.rows;
    if (output >= channels)
        end = 0;
    I group = ek_divide((I)(output < channels ? output : 0), conv.per_outputs);
    column_index<I> index = column_index_of(conv, column < (I)conv.columns ? column : 0);
    const T *x =
        (const T *)conv.x.data + (group * (I)conv.channels + index.channel) * conv.x.by_channel;
    const T *y = (const T *)conv.y.data + output * conv.y.by_channel;
    R sum = 0;
    for (int64_t row = part * conv.part_rows + thread / lanes; row < end; row += threads_down) {
        ek_index<I> at = row_index_of(conv, (I)row);
        R dy = ek_load(y + ek_offset_of(conv.y, at));
        sum += column < (I)conv.columns ? dy * weights_input_at(conv, x, at, index.tap) : dy;
    }
    parts[thread] = sum;
    for (int half = threads_down / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half * lanes)
            parts[thread] += parts[thread + half * lanes];
    }
    if (thread < lanes && output < channels)
        weights_put<T, I>(conv, part, output, column, parts[thread]);
}

/* ---- the sum of the parts ---- */

template <typename T, typename I> EK_KERNEL weights_join(ek_cuda_conv_weights conv)
{
    typedef typename ek_compute<T>::type R;
    int64_t width = weights_width_of(conv), count = conv.groups * conv.outputs * width;
    EK_GRID_LOOP(i, count) {
        const R *from = (const R *)conv.partials + i;
        int64_t output = i / width, column = i - output * width;
        R sum = 0;
        for (int64_t part = 0; part < conv.parts; part++)
            sum += from[part * count];
        weights_store<T, I>(conv, output, column, sum);
    }
}

/* ---- launching ---- */

static int64_t weights_parts_of(int64_t size, int64_t part)
{
    return (size + part - 1) / part;
}

static int weights_lanes_of(const ek_cuda_conv_weights *conv)
{
    return conv->y.last ? EK_WARP : 1;
}

/* Returns the number of blocks of one part. */
static int64_t weights_blocks_of(const ek_cuda_conv_weights *conv)
{
    if (!conv->tiles)
        return weights_parts_of(conv->groups * conv->outputs, weights_lanes_of(conv)) *
               weights_width_of(*conv);
    return conv->groups * weights_parts_of(conv->outputs, TILE) *
           weights_parts_of(conv->columns, TILE);
}

size_t ek_cuda_conv_weights_plan(const ek_cuda_stream *stream, ek_cuda_conv_weights *conv)
{
    double products =
        (double)conv->rows * (double)conv->groups * (double)conv->outputs * (double)conv->columns;
    conv->tiles = !conv->wide && conv->outputs >= TILE / 4 && conv->columns >= TILE / 4 &&
                  products >= 1 << 18;
    int64_t blocks = weights_blocks_of(conv), wanted = (int64_t)stream->multiprocessors * 8;
    int64_t most = weights_parts_of(conv->rows, EK_BLOCK);
    int64_t parts = blocks > 0 ? weights_parts_of(wanted, blocks) : 1;
    parts = parts < most ? parts : most;
    parts = parts > 1 ? parts : 1;
    conv->part_rows = weights_parts_of(weights_parts_of(conv->rows, parts), EK_BLOCK) * EK_BLOCK;
    conv->parts = conv->rows > 0 ? weights_parts_of(conv->rows, conv->part_rows) : 1;
    size_t size = conv->y.dtype == EK_F64 ? sizeof(double) : sizeof(float);
    if (conv->parts == 1)
        return 0;
    return (size_t)(conv->parts * conv->groups * conv->outputs * weights_width_of(*conv)) * size;
}

template <typename T>
static int launch_weights(const ek_cuda_stream *stream, const ek_cuda_conv_weights *conv)
{
    int64_t blocks = weights_blocks_of(conv) * conv->parts;
    int64_t count = conv->groups * conv->outputs * weights_width_of(*conv);
    int rc;
    if (conv->tiles)
        rc =
            ek_launch(stream, (unsigned)blocks, weights_tiles<T>, *conv,
                      weights_parts_of(conv->columns, TILE), weights_parts_of(conv->outputs, TILE));
    else
        rc = ek_launch(stream, (unsigned)blocks,
                       conv->wide ? weights_each<T, int64_t> : weights_each<T, int32_t>, *conv,
                       weights_lanes_of(conv),
                       weights_parts_of(conv->groups * conv->outputs, weights_lanes_of(conv)));
    if (rc != 0 || conv->parts == 1)
        return rc;
    return ek_launch(stream, ek_grid(stream, count),
                     conv->wide ? weights_join<T, int64_t> : weights_join<T, int32_t>, *conv);
}

int ek_cuda_launch_conv_weights(const ek_cuda_stream *stream, const ek_cuda_conv_weights *conv)
{
    EK_FLOATING(conv->y.dtype, T, return launch_weights<T>(stream, conv))
}
