/* scan.cu: linear recurrences h -> a h + b along a dimension.
 *
 * Neighbouring elements join to one map h -> a h + b. A block joins those of a tile by
 * cub::BlockScan. Tiles are cut from all lines as they follow each other, in three launches:
 *   scan_tiles   joins the elements of each tile
 *   scan_join    joins each tile with the tiles before it
 *   scan_tiles   computes the elements
 * So the order of a sum depends on shape, strides and device alone. cub::DeviceScan reads elements
 * once instead of twice, but its order depends on the schedule. If many lines lie side by side in
 * memory, a thread computes a line. */
#include <cub/block/block_scan.cuh>

#include "cuda/launches.h"
#include "cuda/strides.cuh"

enum {
    OPERANDS = 3,
    EACH = 4, /* elements of a tile that a thread holds */
    TILE = EACH * EK_BLOCK
};

/* ---- maps ---- */

/* Returns h * a + b. */
template <typename C> EK_DEVICE C scan_fused(C h, C a, C b)
{
    return ek_plus(ek_times(h, a), b);
}

/* The map of neighbouring elements. If `begins`, they include the first element of a line, and b is
 * h itself. */
template <typename C, bool Factors> struct scan_map {
    C b;
    bool begins;
};

/* A map with the factor a = fraction * 2^exponent: a product of factors alone could overflow where
 * the recurrence doesn't, and inf * 0 is NaN. Exponents of integers are 0. After an infinite factor
 * among addends, elements may be NaN that are infinite if computed one after the other. */
template <typename C> struct scan_map<C, true> : scan_map<C, false> {
    C fraction;
    int64_t exponent;
};

template <typename C> EK_DEVICE void scan_set_factor(scan_map<C, true> *map, C a)
{
    int exponent = 0;
    map->fraction = a;
    if constexpr (C(0.5) != C(0))
        map->fraction = frexp(a, &exponent);
    map->exponent = a - a == 0 ? exponent : 0; /* 0: infinite or NaN */
}

/* Joins the map `x` with that of the elements after it. */
template <typename C, bool Factors> struct scan_joining {
    typedef scan_map<C, Factors> M;
    __device__ __forceinline__ M operator()(const M &x, const M &next) const
    {
        if (next.begins)
            return next;
        M map = x;
        if constexpr (Factors) {
            const int64_t most = 5000; /* 2^most is infinite, 2^-most is 0 */
            const int64_t exponent = next.exponent < -most  ? -most
                                     : next.exponent > most ? most
                                                            : next.exponent;
            /* A factor 0 stays 0 when an infinite factor joins it: the map is then the constant b,
             * which infinite factors multiply. If b is 0, the result is NaN either way. */
            if (x.fraction != 0 || x.b == 0)
                map.fraction = scan_fused(x.fraction, next.fraction, C(0));
            map.exponent += next.exponent;
            /* Elements without a line's beginning and without addends have b = 0, which infinite
             * factors leave 0. */
            if (x.begins || x.b != 0)
                map.b = scan_fused(x.b, next.fraction, C(0));
            if constexpr (C(0.5) != C(0)) {
                const bool is_small = map.fraction < C(0.5) && map.fraction > C(-0.5);
                map.fraction *= is_small ? 2 : 1;
                map.exponent -= is_small;
                map.b = ldexp(map.b, (int)exponent);
            }
        }
        map.b = ek_plus(map.b, next.b);
        return map;
    }
};

/* ---- tiles ---- */

/* Computes the offsets of a line's first element. */
static __device__ __attribute__((noinline)) void
scan_begin(const ek_cuda_scan_job &job, int64_t line, int64_t (&offset)[OPERANDS])
{
    ek_offsets(job.lines, line, offset);
    EK_EACH(k, OPERANDS)
        offset[k] += job.reverse ? (job.size - 1) * job.stride[k] : 0;
}

/* If `joins`, writes the joined map of each tile to `tiles`. Otherwise computes the elements; tiles
 * after the first one continue from the maps in `tiles`. */
template <typename T, bool Factors, typename C>
EK_KERNEL scan_tiles(const __grid_constant__ ek_cuda_scan_job job, scan_map<C, Factors> *tiles,
                     bool joins)
{
    typedef scan_map<C, Factors> M;
    typedef cub::BlockScan<M, EK_BLOCK> scan;
    const scan_joining<C, Factors> join;
    __shared__ typename scan::TempStorage room;
    for (int64_t tile = blockIdx.x; tile * TILE < job.count; tile += gridDim.x) {
        const int64_t own = tile * TILE + threadIdx.x * EACH;
        int64_t line = (int64_t)ek_cuda_divide_long(job.by_size, own), i = own - line * job.size;
        int64_t begin[OPERANDS], at[EACH];
        M maps[EACH] = {}, whole;
        if (own < job.count)
            scan_begin(job, line, begin);
        EK_EACH(j, EACH) {
            if (own + j >= job.count)
                continue;
            if (i == job.size) {
                scan_begin(job, ++line, begin);
                i = 0;
            }
            const int64_t along = job.reverse ? -i : i;
            C a = 1, b = 0;
            if (job.b != NULL)
                b = ek_load((const T *)job.b + begin[2] + along * job.stride[2]);
            if constexpr (Factors) {
                a = ek_load((const T *)job.a + begin[1] + along * job.stride[1]);
                scan_set_factor(&maps[j], a);
            }
            maps[j].begins = i == 0;
            maps[j].b = i == 0 ? scan_fused(C(job.b == NULL), a, b) : b;
            at[j] = begin[0] + along * job.stride[0];
            i++;
        }
        scan(room).InclusiveScan(maps, maps, join, whole);
        if (joins && threadIdx.x == 0)
            tiles[tile] = whole;
        EK_EACH(j, EACH)
            if (!joins && own + j < job.count)
                ek_store((T *)job.out + at[j],
                         (tile > 0 ? join(tiles[tile - 1], maps[j]) : maps[j]).b);
        __syncthreads();
    }
}

/* Joins each tile with the tiles before it. Runs in one block. */
template <typename C, bool Factors> EK_KERNEL scan_join(scan_map<C, Factors> *tiles, int64_t count)
{
    typedef scan_map<C, Factors> M;
    typedef cub::BlockScan<M, EK_BLOCK> scan;
    const scan_joining<C, Factors> join;
    __shared__ typename scan::TempStorage room;
    M before = {}, maps[EACH];
    for (int64_t start = 0; start < count; start += TILE) {
        M *own = tiles + start + threadIdx.x * EACH, *end = tiles + count;
        EK_EACH(j, EACH)
            maps[j] = own + j < end ? own[j] : end[-1];
        if (start > 0 && threadIdx.x == 0)
            maps[0] = join(before, maps[0]);
        scan(room).InclusiveScan(maps, maps, join, before);
        EK_EACH(j, EACH)
            if (own + j < end)
                own[j] = maps[j];
        __syncthreads();
    }
}

template <typename T, bool Factors>
static int launch_tiles(const ek_cuda_stream *stream, const ek_cuda_scan_job *job, void *scratch)
{
    typedef typename ek_compute<T>::type C;
    scan_map<C, Factors> *maps = (scan_map<C, Factors> *)scratch;
    const int64_t tiles = (job->count + TILE - 1) / TILE;
    const unsigned grid = ek_grid(stream, tiles, 1);
    int rc = 0;
    if (tiles > 1)
        rc = ek_launch(stream, grid, scan_tiles<T, Factors, C>, *job, maps, true);
    if (rc == 0 && tiles > 1)
        rc = ek_launch(stream, 1, scan_join<C, Factors>, maps, tiles);
    if (rc == 0)
        rc = ek_launch(stream, grid, scan_tiles<T, Factors, C>, *job, maps, false);
    return rc;
}

/* ---- lines side by side ---- */

template <typename T> EK_KERNEL scan_lines(const __grid_constant__ ek_cuda_scan_job job)
{
    typedef typename ek_compute<T>::type C;
    EK_GRID_LOOP(line, job.lines.count) {
        C h = job.b == NULL, a = 1, b = 0;
        int64_t at[OPERANDS];
        scan_begin(job, line, at);
        for (int64_t i = 0; i < job.size; i++) {
            if (job.a != NULL)
                a = ek_load((const T *)job.a + at[1]);
            if (job.b != NULL)
                b = ek_load((const T *)job.b + at[2]);
            h = scan_fused(h, a, b);
            ek_store((T *)job.out + at[0], h);
            EK_EACH(k, OPERANDS)
                at[k] += job.reverse ? -job.stride[k] : job.stride[k];
        }
    }
}

/* Returns true if neighbouring lines are closer in memory than a line's elements, and each
 * multiprocessor has a warp's lines. */
static bool scan_is_by_lines(const ek_cuda_stream *stream, const ek_cuda_scan_job *job)
{
    const int64_t next = job->lines.stride[0][job->lines.ndim - 1], along = job->stride[0];
    return (next < 0 ? -next : next) < (along < 0 ? -along : along) &&
           job->lines.count >= (int64_t)stream->multiprocessors * EK_WARP;
}

size_t ek_cuda_scan_nbytes(const ek_cuda_stream *stream, const ek_cuda_scan_job *job)
{
    return job->count <= TILE || scan_is_by_lines(stream, job)
               ? 0
               : (size_t)(job->count / TILE + 1) * sizeof(scan_map<double, true>);
}

template <typename T>
static int launch_scan(const ek_cuda_stream *stream, const ek_cuda_scan_job *job, void *scratch)
{
    if (scan_is_by_lines(stream, job))
        return ek_launch(stream, ek_grid(stream, job->lines.count), scan_lines<T>, *job);
    return job->a != NULL ? launch_tiles<T, true>(stream, job, scratch)
                          : launch_tiles<T, false>(stream, job, scratch);
}

int ek_cuda_launch_scan(const ek_cuda_stream *stream, const ek_cuda_scan_job *job, void *scratch)
{
    if (job->dtype == EK_I64)
        return launch_scan<int64_t>(stream, job, scratch);
    EK_FLOATING(job->dtype, T, return launch_scan<T>(stream, job, scratch))
}
