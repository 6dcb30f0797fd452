/* fill.cu: the same bytes in every element. */
#include "cuda/fill.h"
#include "cuda/strided.cuh"

/* ---- one run ---- */

/* `head` elements come before the first address that is a multiple of 16. */
template <typename T>
static __global__ __launch_bounds__(EK_BLOCK) void fill_flat(T *out, int64_t count, int64_t head,
                                                             ek_vector<T, 16 / sizeof(T)> pattern)
{
    enum { V = 16 / sizeof(T) };
    int64_t vectors = (count - head) / V;
    ek_vector<T, V> *body = (ek_vector<T, V> *)(out + head);
    EK_GRID_LOOP(i, vectors)
    {
        body[i] = pattern;
    }
    /* Less than a vector at either end. */
    int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t tail = head + vectors * V;
    if (thread < head)
        out[thread] = pattern.element[0];
    if (thread < count - tail)
        out[tail + thread] = pattern.element[0];
}

template <typename T>
static int launch_flat(const ek_cuda_queue *queue, const ek_cuda_walk *walk,
                       const ek_cuda_pattern *pattern)
{
    enum { V = 16 / sizeof(T) };
    ek_vector<T, V> vector;
    for (int j = 0; j < V; j++)
        vector.element[j] = ((const T *)pattern)[j];
    int64_t head = (int64_t)((16 - (uintptr_t)walk->data[0] % 16) % 16 / sizeof(T));
    head = head < walk->count ? head : walk->count;
    return ek_launch(queue, dim3(ek_grid(queue, walk->count, EK_BLOCK * V)), dim3(EK_BLOCK),
                     fill_flat<T>, (T *)walk->data[0], walk->count, head, vector);
}

/* ---- any strides, in the widest units that fit ---- */

template <typename T, typename Places>
static __global__ __launch_bounds__(EK_BLOCK) void fill_strided(T *out, Places places,
                                                                int64_t count, T value)
{
    EK_GRID_LOOP(i, count)
    {
        typename Places::offset at[1];
        places.find(i, at);
        out[at[0]] = value;
    }
}

template <typename T>
static int launch_strided(const ek_cuda_queue *queue, const ek_cuda_walk *walk,
                          const ek_cuda_pattern *pattern)
{
    T value = *(const T *)pattern;
    dim3 grid = dim3(ek_grid(queue, walk->count));
    if (ek_fits_32(walk))
        return ek_launch(queue, grid, dim3(EK_BLOCK), fill_strided<T, ek_strided32<1>>,
                         (T *)walk->data[0], ek_strided32_of<1>(walk), walk->count, value);
    return ek_launch(queue, grid, dim3(EK_BLOCK), fill_strided<T, ek_strided64<1>>,
                     (T *)walk->data[0], ek_strided64_of<1>(walk), walk->count, value);
}

int ek_cuda_launch_fill(const ek_cuda_queue *queue, const ek_cuda_walk *walk, size_t size,
                        const ek_cuda_pattern *pattern)
{
    ek_cuda_walk units = *walk;
    if (walk->flat) {
        EK_BY_SIZE(size, T, return launch_flat<T>(queue, walk, pattern))
    } else {
        size = ek_widen(&units, size);
        EK_BY_SIZE(size, T, return launch_strided<T>(queue, &units, pattern))
    }
    return (int)cudaErrorInvalidValue;
}
