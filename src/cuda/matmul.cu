/* matmul.cu: a block computes a tile of 64 x 64 results, a thread 4 x 4 of them. Both operands
 * go through shared memory in steps of 16 along k. Every result is one sum in the order of k, so
 * that results are the same from run to run. */
#include "cuda/launch.cuh"
#include "cuda/launches.h"

enum { TILE = 64, DEPTH = 16, SIDE = 16, PER_THREAD = TILE / SIDE };

/* Loads rows of one operand's tile, whose corner is (row0, k0). Neighbouring threads read along the
 * smaller stride, which is k's if `along_k`. */
template <typename T, typename C>
EK_DEVICE void gemm_load_tile(C (*tile)[TILE + 1], const T *data, int64_t row0, int64_t rows,
                              int64_t row_stride, int64_t k0, int64_t k, int64_t k_stride,
                              bool along_k)
{
    EK_EACH(i, TILE * DEPTH / EK_BLOCK) {
        int at = (int)threadIdx.x + i * EK_BLOCK;
        int row = along_k ? at / DEPTH : at % TILE;
        int depth = along_k ? at % DEPTH : at / TILE;
        C value = 0;
        if (row0 + row < rows && k0 + depth < k)
            value = ek_load(data + (row0 + row) * row_stride + (k0 + depth) * k_stride);
        tile[depth][row] = value;
    }
}

template <typename T> EK_KERNEL gemm_tiles(ek_cuda_gemm g, int64_t tiles_across)
{
    typedef typename ek_compute<T>::type C;
    __shared__ C xs[DEPTH][TILE + 1], ys[DEPTH][TILE + 1];
    int64_t row0 = (int64_t)blockIdx.x / tiles_across * TILE;
    int64_t column0 = (int64_t)blockIdx.x % tiles_across * TILE;
    int across = (int)threadIdx.x % SIDE, down = (int)threadIdx.x / SIDE;
    for (int64_t batch = blockIdx.y; batch < g.batch; batch += gridDim.y) {
        const T *x = (const T *)g.x.data + batch * g.x.batch;
        const T *y = (const T *)g.y.data + batch * g.y.batch;
        C sums[PER_THREAD][PER_THREAD] = {};
        for (int64_t k0 = 0; k0 < g.k; k0 += DEPTH) {
            gemm_load_tile(xs, x, row0, g.n, g.x.row, k0, g.k, g.x.column, g.x.column <= g.x.row);
            gemm_load_tile(ys, y, column0, g.m, g.y.column, k0, g.k, g.y.row, g.y.row < g.y.column);
            __syncthreads();
            EK_EACH(depth, DEPTH) {
                C left[PER_THREAD], right[PER_THREAD];
                EK_EACH(i, PER_THREAD) {
                    left[i] = xs[depth][down + i * SIDE];
                    right[i] = ys[depth][across + i * SIDE];
                }
                EK_EACH(i, PER_THREAD)
                    EK_EACH(j, PER_THREAD)
                        sums[i][j] += left[i] * right[j];
            }
            __syncthreads();
        }
        T *out = (T *)g.out.data + batch * g.out.batch;
        EK_EACH(i, PER_THREAD) {
            int64_t row = row0 + down + i * SIDE;
            EK_EACH(j, PER_THREAD) {
                int64_t column = column0 + across + j * SIDE;
                if (row >= g.n || column >= g.m)
                    continue;
                T *to = out + row * g.out.row + column * g.out.column;
                C value = sums[i][j];
                if (g.bias.data)
                    value += ek_load((const T *)g.bias.data + column * g.bias.column);
                if (g.accumulate)
                    value += ek_load(to);
                if (g.relu && value <= 0)
                    value = 0;
                ek_store(to, value);
            }
        }
    }
}

template <typename T> static int launch_gemm(const ek_cuda_stream *stream, const ek_cuda_gemm *gemm)
{
    int64_t down = (gemm->n + TILE - 1) / TILE, across = (gemm->m + TILE - 1) / TILE;
    int64_t batches = gemm->batch < 65535 ? gemm->batch : 65535;
    if (down * across > INT32_MAX)
        return (int)cudaErrorInvalidConfiguration;
    return ek_launch(stream, dim3((unsigned)(down * across), (unsigned)batches), gemm_tiles<T>,
                     *gemm, across);
}

int ek_cuda_launch_gemm(const ek_cuda_stream *stream, const ek_cuda_gemm *gemm)
{
    EK_FLOATING(gemm->dtype, T, return launch_gemm<T>(stream, gemm))
}
