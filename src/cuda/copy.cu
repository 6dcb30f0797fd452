/* copy.cu: copies between layouts (any strides, and transpositions by tiles of shared memory), and
 * fills memory with one value. */
#include "cuda/launches.h"
#include "cuda/strides.cuh"

/* ---- any strides, in the widest units that fit ---- */

template <typename T, typename Strides>
EK_KERNEL copy_strided(T *out, const T *x, Strides strides, int64_t count)
{
    EK_GRID_LOOP(i, count) {
        typename Strides::offset at[2];
        strides.find(i, at);
        out[at[0]] = x[at[1]];
    }
}

template <typename T>
static int launch_copy_strided(const ek_cuda_stream *stream, const ek_cuda_walk *walk)
{
    return ek_with_strides<2>(walk, [&](auto strides) {
        return ek_launch(stream, ek_grid(stream, walk->count), copy_strided<T, decltype(strides)>,
                         (T *)walk->data[0], (const T *)walk->data[1], strides, walk->count);
    });
}

/* ---- transpositions: out is contiguous along the innermost dimension, x along another ---- */

enum { TILE = 32, TILE_ROWS = EK_BLOCK / TILE, WORTH_A_TILE = 9 };

struct transposition {
    int64_t inner, across; /* sizes of the two dimensions */
    /* out's stride along `across`, and x's stride along the innermost dimension */
    int64_t out_step, x_step;
    ek_cuda_divisor inner_tiles, across_tiles;
    int outer; /* how many other dimensions there are */
    ek_cuda_divisor shape[EK_MAX_DIMS];
    int64_t out_stride[EK_MAX_DIMS], x_stride[EK_MAX_DIMS];
};

/* Transposes tiles, which are numbered fastest along the innermost dimension. */
template <typename T>
EK_KERNEL copy_transposed(T *out, const T *x, transposition plan, int64_t tiles)
{
    __shared__ T tile[TILE][TILE + 1]; /* [innermost][across]; rows in different banks */
    int lane = (int)threadIdx.x % TILE, row = (int)threadIdx.x / TILE;
    for (int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
        uint32_t rest = (uint32_t)number, quotient = ek_cuda_divide(plan.inner_tiles, rest);
        int64_t inner = (int64_t)(rest - quotient * plan.inner_tiles.by) * TILE;
        rest = quotient;
        quotient = ek_cuda_divide(plan.across_tiles, rest);
        int64_t across = (int64_t)(rest - quotient * plan.across_tiles.by) * TILE;
        rest = quotient;
        int64_t out_start = 0, x_start = 0;
        for (int d = plan.outer - 1; d >= 0; d--) {
            quotient = ek_cuda_divide(plan.shape[d], rest);
            int64_t index = rest - quotient * plan.shape[d].by;
            out_start += index * plan.out_stride[d];
            x_start += index * plan.x_stride[d];
            rest = quotient;
        }
        for (int j = row; j < TILE; j += TILE_ROWS)
            if (inner + j < plan.inner && across + lane < plan.across)
                tile[j][lane] = x[x_start + (inner + j) * plan.x_step + across + lane];
        __syncthreads();
        for (int i = row; i < TILE; i += TILE_ROWS)
            if (across + i < plan.across && inner + lane < plan.inner)
                out[out_start + (across + i) * plan.out_step + inner + lane] = tile[lane][i];
        __syncthreads();
    }
}

/* Returns the dimension along which x is contiguous, if out is contiguous along another dimension
 * and both are long enough for tiles; else -1. */
static int copy_find_across(const ek_cuda_walk *walk)
{
    int inner = walk->ndim - 1;
    if (walk->stride[0][inner] != 1 || walk->stride[1][inner] <= 1 ||
        walk->shape[inner] < WORTH_A_TILE)
        return -1;
    for (int d = 0; d < inner; d++)
        if (walk->stride[1][d] == 1 && walk->shape[d] >= WORTH_A_TILE)
            return d;
    return -1;
}

/* Fills *plan. Returns the number of tiles. From 2^31 tiles on, the plan can't be used. */
static int64_t copy_make_plan(const ek_cuda_walk *walk, int across, transposition *plan)
{
    int inner = walk->ndim - 1;
    *plan = {};
    plan->inner = walk->shape[inner];
    plan->across = walk->shape[across];
    plan->out_step = walk->stride[0][across];
    plan->x_step = walk->stride[1][inner];
    int64_t inner_tiles = (plan->inner + TILE - 1) / TILE;
    int64_t across_tiles = (plan->across + TILE - 1) / TILE;
    int64_t tiles = inner_tiles * across_tiles * (walk->count / plan->inner / plan->across);
    if (tiles >= (int64_t)1 << 31)
        return tiles;
    plan->inner_tiles = ek_cuda_divisor_of((uint32_t)inner_tiles);
    plan->across_tiles = ek_cuda_divisor_of((uint32_t)across_tiles);
    for (int d = 0; d < inner; d++) {
        if (d == across)
            continue;
        plan->shape[plan->outer] = ek_cuda_divisor_of((uint32_t)walk->shape[d]);
        plan->out_stride[plan->outer] = walk->stride[0][d];
        plan->x_stride[plan->outer] = walk->stride[1][d];
        plan->outer++;
    }
    return tiles;
}

template <typename T>
static int launch_copy_transposed(const ek_cuda_stream *stream, const ek_cuda_walk *walk,
                                  const transposition *plan, int64_t tiles)
{
    return ek_launch(stream, ek_grid(stream, tiles, 1), copy_transposed<T>, (T *)walk->data[0],
                     (const T *)walk->data[1], *plan, tiles);
}

int ek_cuda_launch_copy(const ek_cuda_stream *stream, const ek_cuda_walk *walk, size_t size)
{
    int across = copy_find_across(walk);
    if (across >= 0) {
        transposition plan;
        int64_t tiles = copy_make_plan(walk, across, &plan);
        if (tiles < (int64_t)1 << 31) {
            EK_BY_SIZE(size, T, return launch_copy_transposed<T>(stream, walk, &plan, tiles))
        }
    }
    ek_cuda_walk units = *walk;
    size = ek_widen(&units, size);
    EK_BY_SIZE(size, T, return launch_copy_strided<T>(stream, &units))
}

/* ---- fills, in the widest units that fit ---- */

template <typename T, typename Strides>
EK_KERNEL fill_strided(T *out, Strides strides, int64_t count, T value)
{
    EK_GRID_LOOP(i, count) {
        typename Strides::offset at[1];
        strides.find(i, at);
        out[at[0]] = value;
    }
}

template <typename T>
static int launch_fill_strided(const ek_cuda_stream *stream, const ek_cuda_walk *walk,
                               const ek_cuda_pattern *pattern)
{
    return ek_with_strides<1>(walk, [&](auto strides) {
        return ek_launch(stream, ek_grid(stream, walk->count), fill_strided<T, decltype(strides)>,
                         (T *)walk->data[0], strides, walk->count, *(const T *)pattern);
    });
}

int ek_cuda_have_kernels(void)
{
    cudaFuncAttributes attributes;
    return (int)cudaFuncGetAttributes(&attributes, copy_transposed<uint32_t>);
}

int ek_cuda_launch_fill(const ek_cuda_stream *stream, const ek_cuda_walk *walk, size_t size,
                        const ek_cuda_pattern *pattern)
{
    ek_cuda_walk units = *walk;
    size = ek_widen(&units, size);
    EK_BY_SIZE(size, T, return launch_fill_strided<T>(stream, &units, pattern))
}
