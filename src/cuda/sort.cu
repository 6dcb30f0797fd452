/* sort.cu: positions in sorted order along one dimension, and searches in sorted lines.
 *
 * Elements are pairs of a key (kernels/sort_key.h) and a position in the line. No two pairs are
 * equal, so that the order doesn't depend on the schedule. Blocks sort tiles in shared memory
 * (Batcher's bitonic sort, 1968). Longer lines are merged from tiles: a pair's place in the merged
 * tile is its place in its own tile plus the number of smaller pairs in the other. */
#include "cuda/launches.h"
#include "cuda/strides.cuh"
#include "kernels/sort_key.h"

EK_DEVICE uint64_t sort_key_of(float x)
{
    return ek_sort_key_f32(x);
}
EK_DEVICE uint64_t sort_key_of(double x)
{
    return ek_sort_key_f64(x);
}
EK_DEVICE uint64_t sort_key_of(int64_t x)
{
    return ek_sort_key_i64(x);
}
template <typename T> EK_DEVICE uint64_t sort_key(const T *x)
{
    return sort_key_of(ek_load(x));
}

EK_DEVICE bool sort_is_less(uint64_t key, uint32_t place, uint64_t other_key, uint32_t other_place)
{
    return key < other_key || (key == other_key && place < other_place);
}

/* ---- tiles ---- */

/* Sorts tiles. A tile is `width` elements of a line, a power of two up to EK_CUDA_SORT_TILE; a
 * block sorts as many tiles at once as fit its memory. Places beyond the line's end get the largest
 * pair. */
template <typename T> EK_KERNEL sort_tiles(ek_cuda_sort_job job, int width, int64_t per_line)
{
    __shared__ uint64_t keys[EK_CUDA_SORT_TILE];
    __shared__ uint32_t places[EK_CUDA_SORT_TILE];
    const int64_t at_once = EK_CUDA_SORT_TILE / width, tiles = job.lines.count * per_line;
    for (int64_t first = blockIdx.x * at_once; first < tiles; first += gridDim.x * at_once) {
        __syncthreads(); /* the tiles before may still be read */
        for (int i = (int)threadIdx.x; i < EK_CUDA_SORT_TILE; i += EK_BLOCK) {
            int64_t tile = first + i / width, line = tile / per_line;
            int64_t place = tile % per_line * width + i % width, offset[2];
            keys[i] = UINT64_MAX;
            places[i] = UINT32_MAX;
            if (tile >= tiles || place >= job.size)
                continue;
            ek_offsets(job.lines, line, offset);
            uint64_t key = sort_key((const T *)job.x + offset[1] + place * job.x_stride);
            keys[i] = job.descending ? ~key : key;
            places[i] = (uint32_t)place;
        }
        for (int run = 2; run <= width; run *= 2)
            for (int step = run / 2; step > 0; step /= 2) {
                __syncthreads();
                for (int pair = (int)threadIdx.x; pair < EK_CUDA_SORT_TILE / 2; pair += EK_BLOCK) {
                    int low = 2 * pair - (pair & (step - 1)), high = low + step;
                    bool up = (low & (width - 1) & run) == 0;
                    if (sort_is_less(keys[high], places[high], keys[low], places[low]) == up) {
                        uint64_t key = keys[low];
                        uint32_t place = places[low];
                        keys[low] = keys[high];
                        places[low] = places[high];
                        keys[high] = key;
                        places[high] = place;
                    }
                }
            }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < EK_CUDA_SORT_TILE; i += EK_BLOCK) {
            int64_t tile = first + i / width, line = tile / per_line, offset[2];
            int64_t place = tile % per_line * width + i % width;
            if (tile >= tiles || place >= job.size)
                continue;
            if (per_line > 1) {
                job.keys[0][line * job.size + place] = keys[i];
                job.places[0][line * job.size + place] = places[i];
            } else if (place < job.count) {
                ek_offsets(job.lines, line, offset);
                job.index[offset[0] + place * job.index_stride] = places[i];
            }
        }
    }
}

/* ---- merging ---- */

/* Returns how many of the `count` pairs from `begin` on are smaller than the pair (key, place). */
EK_DEVICE int64_t sort_count_less(const uint64_t *keys, const uint32_t *places, int64_t begin,
                                  int64_t count, uint64_t key, uint32_t place)
{
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (sort_is_less(keys[begin + middle], places[begin + middle], key, place))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Merges pairs of sorted runs of `run` elements from list `from` to the other list. Only the first
 * job.count pairs of each run count. If `last`, the positions are written to the index. */
EK_KERNEL sort_merge(ek_cuda_sort_job job, int64_t run, int from, bool last)
{
    EK_GRID_LOOP(i, job.lines.count * job.size) {
        int64_t line = i / job.size, place = i - line * job.size, begin = line * job.size;
        int64_t own = place / run * run, in_run = place - own;
        if (in_run >= job.count)
            continue;
        bool is_second = place / run % 2 != 0;
        int64_t other = is_second ? own - run : own + run, to = is_second ? other : own;
        int64_t others = other >= job.size ? 0 : job.size - other < run ? job.size - other : run;
        others = others < job.count ? others : job.count;
        uint64_t key = job.keys[from][i];
        uint32_t at = job.places[from][i];
        int64_t rank = in_run + sort_count_less(job.keys[from], job.places[from], begin + other,
                                                others, key, at);
        if (rank >= job.count)
            continue;
        if (last) {
            int64_t offset[2];
            ek_offsets(job.lines, line, offset);
            job.index[offset[0] + rank * job.index_stride] = at;
        } else {
            job.keys[1 - from][begin + to + rank] = key;
            job.places[1 - from][begin + to + rank] = at;
        }
    }
}

template <typename T>
static int launch_argsort(const ek_cuda_stream *stream, const ek_cuda_sort_job *job)
{
    int width = 1;
    while (width < job->size && width < EK_CUDA_SORT_TILE)
        width *= 2;
    int64_t per_line = (job->size + width - 1) / width;
    int rc =
        ek_launch(stream, ek_grid(stream, job->lines.count * per_line, EK_CUDA_SORT_TILE / width),
                  sort_tiles<T>, *job, width, per_line);
    int from = 0;
    for (int64_t run = width; rc == 0 && run < job->size; run *= 2, from = 1 - from)
        rc = ek_launch(stream, ek_grid(stream, job->lines.count * job->size), sort_merge, *job, run,
                       from, 2 * run >= job->size);
    return rc;
}

int ek_cuda_launch_argsort(const ek_cuda_stream *stream, const ek_cuda_sort_job *job)
{
    EK_ANY_DTYPE(job->dtype, T, return launch_argsort<T>(stream, job))
}

/* ---- searchsorted ---- */

template <typename T> EK_KERNEL search(ek_cuda_search_job job)
{
    typedef typename ek_compute<T>::type A;
    EK_GRID_LOOP(i, job.strides.count) {
        int64_t offset[3], low = 0, high = job.size;
        ek_offsets(job.strides, i, offset);
        A value = ek_load((const T *)job.values + offset[1]);
        const T *sorted = (const T *)job.sorted + offset[2];
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            A there = ek_load(sorted + middle * job.stride);
            if (job.right ? !(there > value) : !(there >= value))
                low = middle + 1;
            else
                high = middle;
        }
        job.out[offset[0]] = low;
    }
}

int ek_cuda_launch_searchsorted(const ek_cuda_stream *stream, const ek_cuda_search_job *job)
{
    EK_ANY_DTYPE(job->dtype, T,
                 return ek_launch(stream, ek_grid(stream, job->strides.count), search<T>, *job))
}
