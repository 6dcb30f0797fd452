/* sort.cu: positions in sorted order along one dimension, and searches in sorted lines.
 *
 * Elements are sorted by keys (kernels/sort_key.h). Equal keys stay in the order of their
 * positions, so that the order doesn't depend on the schedule. A block merges short lines in shared
 * memory, several at once. Elements of longer lines become pairs of a key and a position in scratch
 * memory. CUB sorts the pairs of several lines at once by radix, with the line's number above the
 * key. If key and number have more than 64 bits, CUB sorts by keys, then by numbers. */
#define CCCL_DISABLE_NVTX
#define _GLIBCXX_IOSTREAM /* CUB includes <iostream>, which would need the C++ library */
#include <cub/block/block_merge_sort.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <pthread.h>

#include "cuda/launches.h"
#include "cuda/strides.cuh"
#include "kernels/sort_key.h"

enum { EACH = EK_CUDA_SORT_TILE / EK_BLOCK /* elements of a tile that a thread holds */ };

/* ---- keys ---- */

/* Returns how many bits numbers up to `most` have. */
static int sort_bits(uint64_t most)
{
    int bits = 0;
    while (bits < 64 && most >> bits > 0)
        bits++;
    return bits;
}

/* Returns the key of the element at an offset. `flip` has all of a key's bits if the order is
 * descending, else none. */
EK_DEVICE uint64_t sort_key(const ek_cuda_sort_job &job, int64_t at, uint64_t flip)
{
    switch (job.dtype) {
    case EK_F32:
        return ek_sort_key_f32(((const float *)job.x)[at]) ^ flip;
    case EK_F64:
        return ek_sort_key_f64(((const double *)job.x)[at]) ^ flip;
    case EK_BF16:
        return ek_sort_key_16(ek_load((const ek_bf16 *)job.x + at), ((const uint16_t *)job.x)[at]) ^
               flip;
    case EK_F16:
        return ek_sort_key_16(ek_load((const ek_f16 *)job.x + at), ((const uint16_t *)job.x)[at]) ^
               flip;
    case EK_I32:
        return (((const uint32_t *)job.x)[at] ^ 0x80000000u) ^ flip;
    case EK_U8:
        return ((const uint8_t *)job.x)[at] ^ flip;
    case EK_BOOL:
        return (uint64_t)ek_load((const ek_bool *)job.x + at) ^ flip;
    default:
        break;
    }
    const int64_t value = ((const int64_t *)job.x)[at];
    if (job.bound == 0)
        return ek_sort_key_i64(value) ^ flip;
    return (uint64_t)(value < 0 || value > job.bound ? job.bound : value) ^ flip;
}

/* ---- lines that fit a tile ---- */

struct sort_element {
    uint64_t key;
    uint32_t seat, place; /* number of the line in the tile, and position in the line */
};

struct sort_is_less {
    __device__ __forceinline__ bool operator()(const sort_element &a, const sort_element &b) const
    {
        if (a.seat != b.seat)
            return a.seat < b.seat;
        return a.key < b.key || (a.key == b.key && a.place < b.place);
    }
};

/* Sorts tiles of whole lines, of which a tile holds `seats`. by_size divides by a line's size. */
EK_KERNEL sort_tiles(ek_cuda_sort_job job, uint64_t flip, uint32_t seats, ek_cuda_divisor by_size)
{
    typedef cub::BlockMergeSort<sort_element, EK_BLOCK, EACH> sorter;
    __shared__ typename sorter::TempStorage room;
    for (int64_t first = (int64_t)blockIdx.x * seats; first < job.lines.count;
         first += (int64_t)gridDim.x * seats) {
        sort_element elements[EACH];
        int64_t offset[2];
        EK_EACH(j, EACH) {
            uint32_t at = (uint32_t)j * EK_BLOCK + threadIdx.x;
            uint32_t seat = ek_cuda_divide(by_size, at), place = at - seat * by_size.by;
            elements[j] = {UINT64_MAX, UINT32_MAX, place}; /* if there is no such element */
            if (seat >= seats || first + seat >= job.lines.count)
                continue;
            ek_offsets(job.lines, first + seat, offset);
            elements[j] = {sort_key(job, offset[1] + place * job.x_stride, flip), seat, place};
        }
        sorter(room).Sort(elements, sort_is_less());
        EK_EACH(j, EACH) {
            uint32_t seat = elements[j].seat, rank = threadIdx.x * EACH + j - seat * by_size.by;
            if (seat == UINT32_MAX || rank >= job.count)
                continue;
            ek_offsets(job.lines, first + seat, offset);
            job.index[offset[0] + rank * job.index_stride] = elements[j].place;
        }
        __syncthreads();
    }
}

/* ---- longer lines ---- */

/* Writes the pairs of `group` lines. A position counts from the begin of the first line. If `above`
 * isn't 0, the line's number is written above this many bits of the key. */
EK_KERNEL sort_read(ek_cuda_sort_job job, uint64_t flip, int above, uint64_t *keys,
                    uint32_t *positions)
{
    EK_GRID_LOOP(i, job.group * job.size) {
        int64_t line = i / job.size, offset[2];
        ek_offsets(job.lines, job.first + line, offset);
        uint64_t key = sort_key(job, offset[1] + (i - line * job.size) * job.x_stride, flip);
        keys[i] = above != 0 ? key | (uint64_t)line << above : key;
        positions[i] = (uint32_t)i;
    }
}

/* Replaces the keys by the numbers of the positions' lines. */
EK_KERNEL sort_number(ek_cuda_sort_job job, uint64_t *keys, const uint32_t *positions)
{
    EK_GRID_LOOP(i, job.group * job.size)
        keys[i] = positions[i] / (uint64_t)job.size;
}

EK_KERNEL sort_write(ek_cuda_sort_job job, const uint32_t *positions)
{
    EK_GRID_LOOP(i, job.group * job.count) {
        int64_t line = i / job.count, rank = i - line * job.count, offset[2];
        ek_offsets(job.lines, job.first + line, offset);
        job.index[offset[0] + rank * job.index_stride] =
            positions[line * job.size + rank] - line * job.size;
    }
}

typedef cub::DoubleBuffer<uint64_t> sort_keys;
typedef cub::DoubleBuffer<uint32_t> sort_positions;

/* Calls CUB, whose static variables would need guards that C++ code has from the C++ library. */
static int sort_by_radix(const ek_cuda_stream *stream, void *room, size_t *nbytes, sort_keys *keys,
                         sort_positions *positions, int64_t count, int bits)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    int rc = (int)cub::DeviceRadixSort::SortPairs(room, *nbytes, *keys, *positions, count, 0, bits,
                                                  stream ? stream->handle : NULL);
    pthread_mutex_unlock(&lock);
    return rc;
}

static size_t sort_pairs_nbytes(const ek_cuda_sort_job *job)
{
    return (size_t)(job->group * job->size) * 2 * (sizeof(uint64_t) + sizeof(uint32_t));
}

int ek_cuda_argsort_nbytes(ek_cuda_sort_job *job, size_t *nbytes)
{
    *nbytes = 0;
    if (job->size <= EK_CUDA_SORT_TILE)
        return 0;
    sort_keys keys(NULL, NULL);
    sort_positions positions(NULL, NULL);
    int rc = sort_by_radix(NULL, NULL, &job->room, &keys, &positions, job->group * job->size, 64);
    *nbytes = sort_pairs_nbytes(job) + job->room;
    return rc;
}

static int launch_long(const ek_cuda_stream *stream, const ek_cuda_sort_job *job, uint64_t flip,
                       int bits, void *scratch)
{
    const int64_t count = job->group * job->size;
    const int line_bits = sort_bits((uint64_t)job->group - 1);
    const bool joined = bits + line_bits <= 64;
    uint64_t *memory = (uint64_t *)scratch;
    uint32_t *rest = (uint32_t *)(memory + 2 * count);
    void *room = (char *)scratch + sort_pairs_nbytes(job);
    size_t nbytes = job->room;
    sort_keys keys(memory, memory + count);
    sort_positions positions(rest, rest + count);
    int rc = ek_launch(stream, ek_grid(stream, count), sort_read, *job, flip,
                       joined && line_bits > 0 ? bits : 0, keys.Current(), positions.Current());
    if (rc == 0)
        rc = sort_by_radix(stream, room, &nbytes, &keys, &positions, count,
                           joined ? bits + line_bits : bits);
    if (rc == 0 && !joined)
        rc = ek_launch(stream, ek_grid(stream, count), sort_number, *job, keys.Current(),
                       positions.Current());
    if (rc == 0 && !joined)
        rc = sort_by_radix(stream, room, &nbytes, &keys, &positions, count, line_bits);
    if (rc == 0)
        rc = ek_launch(stream, ek_grid(stream, job->group * job->count), sort_write, *job,
                       positions.Current());
    return rc;
}

int ek_cuda_launch_argsort(const ek_cuda_stream *stream, const ek_cuda_sort_job *job, void *scratch)
{
    const int bits = job->bound ? sort_bits((uint64_t)job->bound) : job->bits;
    const int seats = (int)(EK_CUDA_SORT_TILE / job->size);
    const uint64_t flip = job->descending ? UINT64_MAX >> (64 - bits) : 0;
    if (seats == 0)
        return launch_long(stream, job, flip, bits, scratch);
    return ek_launch(stream, ek_grid(stream, job->lines.count, seats), sort_tiles, *job, flip,
                     seats, ek_cuda_divisor_of((uint32_t)job->size));
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
