/* conv_tile.cuh: products of tiles, as convolutions compute them. A block of 256 threads multiplies
 * 16 x 64 by 16 x 64 numbers in shared memory, and adds the products to 64 x 64 sums. Each thread
 * has 4 x 4 of the sums.
 *
 * For 16 multiply-adds a thread reads 8 numbers of shared memory in two instructions. In the first,
 * each half of a warp reads one group of 4 numbers. In the second, it reads 16 neighbouring groups.
 */
#ifndef EK_CUDA_CONV_TILE_CUH
#define EK_CUDA_CONV_TILE_CUH

#include "cuda/image.cuh"

enum { TILE = 64, DEPTH = 16, SIDE = 4 };

template <typename T> struct alignas(sizeof(T) < 4 ? 8 : 16) quad {
    T v[SIDE];
};

/* A tile of DEPTH x 64 numbers. At least 16 bytes of padding per row put a column's elements into
 * different banks. */
template <typename R> struct tile {
    quad<R> q[DEPTH][TILE / SIDE + 1];
};

template <typename R> EK_DEVICE void tile_put(tile<R> *t, int depth, int i, R value)
{
    t->q[depth][i / SIDE].v[i % SIDE] = value;
}

/* sum[i][j] += the sum over depth of a[depth][4 * down + i] * b[depth][4 * across + j] */
template <typename R>
EK_DEVICE void tile_multiply(R sum[SIDE][SIDE], const tile<R> *a, const tile<R> *b, int down,
                             int across)
{
    EK_EACH(k, DEPTH) {
        quad<R> u = a->q[k][down], v = b->q[k][across];
        EK_EACH(i, SIDE)
            EK_EACH(j, SIDE)
                sum[i][j] += u.v[i] * v.v[j];
    }
}

/* The element of a tile that a thread loads in step j of 4. Neighbouring threads run along the
 * depth if `along_depth`, else along the tile. */
struct tile_index {
    int depth, i;
};

EK_DEVICE tile_index tile_index_of(bool along_depth, int thread, int j)
{
    if (along_depth)
        return {thread % DEPTH, thread / DEPTH + j * (EK_BLOCK / DEPTH)};
    return {thread / TILE + j * (EK_BLOCK / TILE), thread % TILE};
}

#endif
