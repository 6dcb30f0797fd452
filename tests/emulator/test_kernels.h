/* test_kernels.h: kernels for test_emulator.cpp. nvcc compiles test_kernels.cu, too. Functions
 * return a cudaError_t. */
#ifndef EK_EMULATOR_TEST_KERNELS_H
#define EK_EMULATOR_TEST_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

int launch_block_sums_f32(cudaStream_t stream, int blocks, int threads, const float *x,
                          int64_t count, float *sums);
int launch_block_sums_f64(cudaStream_t stream, int blocks, int threads, const double *x,
                          int64_t count, double *sums);
/* results: [shuffle, xor, down, up, down by 1 within 8, ballot, any, all][thread of 64] */
int launch_exchanges(cudaStream_t stream, int *results);
/* results: sum, maximum, minimum, winners of a swap, wrapped counter */
int launch_atomics(cudaStream_t stream, int threads, int *results, float *sum);
/* Each thread of the grid writes its linear number. */
int launch_places(cudaStream_t stream, dim3 grid, dim3 block, unsigned *numbers);
int launch_transpose(cudaStream_t stream, int size, const float *x, float *y);
int launch_add(cudaStream_t stream, int count, float *x, float value);
int launch_copy(cudaStream_t stream, int count, float *y, const float *x);
int launch_vote(cudaStream_t stream, int threads, int *results);

/* With faults: these must not pass. */
int launch_early_return(cudaStream_t stream, float *x);
int launch_two_barriers(cudaStream_t stream, float *x);
int launch_half_shuffle(cudaStream_t stream, float *x);
int launch_missing_barrier(cudaStream_t stream, float *x);

#ifdef __cplusplus
}
#endif

#endif
