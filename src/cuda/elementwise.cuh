/* elementwise.cuh: loops over one output and up to three inputs of one shape. Only .cu files
 * include it.
 *
 * A functor F computes V elements at once: f(r, x), f(r, x, y) or f(r, x, y, z), on arrays of the
 * types that elements are computed in. There are three loops:
 *
 *   flat     all in one run, or constant: vectors, no index arithmetic;
 *   rows     runs along the innermost dimension, or constant there (a bias over the channels):
 *            vectors, whose place is found by 32-bit arithmetic;
 *   strided  anything, any dtype of each operand: element by element.
 *
 * An output that is also an input is fine: an element is read by the thread that writes it, before
 * that. */
#ifndef EK_CUDA_ELEMENTWISE_CUH
#define EK_CUDA_ELEMENTWISE_CUH

#include "cuda/convert.cuh"
#include "cuda/strided.cuh"

enum { EK_ELEMENTWISE_INPUTS = 3 };

/* Memory of the output (0) and the inputs. */
struct ek_elementwise_memory {
    void *data[1 + EK_ELEMENTWISE_INPUTS];
    int dtype[1 + EK_ELEMENTWISE_INPUTS];
    int stays[1 + EK_ELEMENTWISE_INPUTS]; /* along the innermost dimension */
};

static inline ek_elementwise_memory ek_elementwise_memory_of(const ek_cuda_walk *walk)
{
    ek_elementwise_memory memory = {};
    for (int k = 0; k < walk->operands; k++) {
        memory.data[k] = walk->data[k];
        memory.dtype[k] = (int)walk->dtype[k];
        memory.stays[k] = ek_stays(walk, k);
    }
    return memory;
}

/* ---- vectors ---- */

template <typename T, int V>
static __device__ __forceinline__ void ek_load_vector(typename ek_compute<T>::type (&values)[V],
                                                      const void *data, int64_t offset, int stays)
{
    const T *from = (const T *)data + offset;
    if (stays) {
        typename ek_compute<T>::type value = ek_load(from);
#pragma unroll
        for (int j = 0; j < V; j++)
            values[j] = value;
    } else {
        ek_vector<T, V> vector = *(const ek_vector<T, V> *)from;
#pragma unroll
        for (int j = 0; j < V; j++)
            values[j] = ek_load(&vector.element[j]);
    }
}

/* Out: the output's element; First, Rest: the inputs'. `offset` in elements. */
template <int Inputs, int V, typename Out, typename First, typename Rest, typename F>
static __device__ __forceinline__ void
ek_vector_step(const F &f, const ek_elementwise_memory &memory, const int64_t *offset)
{
    typename ek_compute<Out>::type r[V];
    typename ek_compute<First>::type x[V];
    ek_load_vector<First, V>(x, memory.data[1], offset[1], memory.stays[1]);
    if constexpr (Inputs == 1) {
        f(r, x);
    } else {
        typename ek_compute<Rest>::type y[V];
        ek_load_vector<Rest, V>(y, memory.data[2], offset[2], memory.stays[2]);
        if constexpr (Inputs == 2) {
            f(r, x, y);
        } else {
            typename ek_compute<Rest>::type z[V];
            ek_load_vector<Rest, V>(z, memory.data[3], offset[3], memory.stays[3]);
            f(r, x, y, z);
        }
    }
    ek_vector<Out, V> vector;
#pragma unroll
    for (int j = 0; j < V; j++)
        ek_store(&vector.element[j], r[j]);
    *(ek_vector<Out, V> *)((Out *)memory.data[0] + offset[0]) = vector;
}

template <int Inputs, int V, typename Out, typename First, typename Rest, typename F>
static __global__ __launch_bounds__(EK_BLOCK) void ek_flat_loop(F f, ek_elementwise_memory memory,
                                                                int64_t count)
{
    int64_t offset[1 + Inputs];
    int64_t vectors = count / V;
    EK_GRID_LOOP(i, vectors)
    {
        for (int k = 0; k <= Inputs; k++)
            offset[k] = memory.stays[k] ? 0 : i * V;
        ek_vector_step<Inputs, V, Out, First, Rest>(f, memory, offset);
    }
    /* What is left: less than a vector. */
    int64_t last = vectors * V + (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (last < count) {
        for (int k = 0; k <= Inputs; k++)
            offset[k] = memory.stays[k] ? 0 : last;
        ek_vector_step<Inputs, 1, Out, First, Rest>(f, memory, offset);
    }
}

template <int Inputs, int V, typename Out, typename First, typename Rest, typename F>
static __global__ __launch_bounds__(EK_BLOCK) void ek_rows_loop(F f, ek_elementwise_memory memory,
                                                                ek_strided32<1 + Inputs> places,
                                                                int64_t vectors)
{
    EK_GRID_LOOP(i, vectors)
    {
        int32_t found[1 + Inputs];
        int64_t offset[1 + Inputs];
        places.find(i, found);
        for (int k = 0; k <= Inputs; k++)
            offset[k] = found[k];
        ek_vector_step<Inputs, V, Out, First, Rest>(f, memory, offset);
    }
}

/* ---- elements of any dtype ---- */

template <typename C>
static __device__ __forceinline__ C ek_load_any(const void *data, int dtype, int64_t offset)
{
    switch (dtype) {
    case EK_F32:
        return ek_convert<C>(((const float *)data)[offset]);
    case EK_F64:
        return ek_convert<C>(((const double *)data)[offset]);
    case EK_BF16:
        return ek_convert<C>(ek_load((const ek_bf16 *)data + offset));
    case EK_I64:
        return ek_convert<C>(((const int64_t *)data)[offset]);
    default:
        return ek_convert<C>(ek_load((const uint8_t *)data + offset));
    }
}

template <typename C>
static __device__ __forceinline__ void ek_store_any(void *data, int dtype, int64_t offset, C value)
{
    switch (dtype) {
    case EK_F32:
        ((float *)data)[offset] = ek_convert<float>(value);
        break;
    case EK_F64:
        ((double *)data)[offset] = ek_convert<double>(value);
        break;
    case EK_BF16:
        ek_store((ek_bf16 *)data + offset, ek_convert<float>(value));
        break;
    case EK_I64:
        ((int64_t *)data)[offset] = ek_convert<int64_t>(value);
        break;
    default:
        ek_store((uint8_t *)data + offset, ek_convert<int64_t>(value));
        break;
    }
}

/* Out, First, Rest: the types that they are computed in. */
template <int Inputs, typename Out, typename First, typename Rest, typename F, typename Places>
static __global__ __launch_bounds__(EK_BLOCK) void ek_strided_loop(F f,
                                                                   ek_elementwise_memory memory,
                                                                   Places places, int64_t count)
{
    EK_GRID_LOOP(i, count)
    {
        typename Places::offset at[1 + Inputs];
        places.find(i, at);
        Out r[1];
        First x[1] = {ek_load_any<First>(memory.data[1], memory.dtype[1], at[1])};
        if constexpr (Inputs == 1) {
            f(r, x);
        } else {
            Rest y[1] = {ek_load_any<Rest>(memory.data[2], memory.dtype[2], at[2])};
            if constexpr (Inputs == 2) {
                f(r, x, y);
            } else {
                Rest z[1] = {ek_load_any<Rest>(memory.data[3], memory.dtype[3], at[3])};
                f(r, x, y, z);
            }
        }
        ek_store_any(memory.data[0], memory.dtype[0], at[0], r[0]);
    }
}

/* ---- launching: walks have at least one element ---- */

/* How many elements a vector has: 16 bytes of the largest type, at most 8. */
template <int Inputs, typename Out, typename First, typename Rest> struct ek_elementwise_vectors {
    enum {
        first = sizeof(First) > sizeof(Out) ? sizeof(First) : sizeof(Out),
        largest = Inputs > 1 && sizeof(Rest) > first ? sizeof(Rest) : first,
        count = 16 / largest < 8 ? 16 / largest : 8
    };
    /* The flat loop (one dimension) or that over rows can be used. */
    static bool fit(const ek_cuda_walk *walk)
    {
        const size_t sizes[] = {sizeof(Out), sizeof(First), sizeof(Rest), sizeof(Rest)};
        return ek_has_vectors(walk, sizes, count) && (walk->ndim == 1 || ek_fits_32(walk));
    }
};

template <int Inputs, typename Out, typename First, typename Rest, typename F>
static int ek_launch_flat(const ek_cuda_queue *queue, const ek_cuda_walk *walk, F f)
{
    enum { V = ek_elementwise_vectors<Inputs, Out, First, Rest>::count };
    return ek_launch(queue, dim3(ek_grid(queue, walk->count, EK_BLOCK * V)), dim3(EK_BLOCK),
                     ek_flat_loop<Inputs, V, Out, First, Rest, F>, f,
                     ek_elementwise_memory_of(walk), walk->count);
}

template <int Inputs, typename Out, typename First, typename Rest, typename F>
static int ek_launch_rows(const ek_cuda_queue *queue, const ek_cuda_walk *walk, F f)
{
    enum { V = ek_elementwise_vectors<Inputs, Out, First, Rest>::count };
    ek_cuda_walk steps = ek_by_vectors(walk, V);
    return ek_launch(queue, dim3(ek_grid(queue, steps.count)), dim3(EK_BLOCK),
                     ek_rows_loop<Inputs, V, Out, First, Rest, F>, f,
                     ek_elementwise_memory_of(walk), ek_strided32_of<1 + Inputs>(&steps),
                     steps.count);
}

template <int Inputs, typename Out, typename First, typename Rest, typename F>
static int ek_launch_strided(const ek_cuda_queue *queue, const ek_cuda_walk *walk, F f)
{
    dim3 grid = dim3(ek_grid(queue, walk->count));
    ek_elementwise_memory memory = ek_elementwise_memory_of(walk);
    if (ek_fits_32(walk))
        return ek_launch(queue, grid, dim3(EK_BLOCK),
                         ek_strided_loop<Inputs, Out, First, Rest, F, ek_strided32<1 + Inputs>>, f,
                         memory, ek_strided32_of<1 + Inputs>(walk), walk->count);
    return ek_launch(queue, grid, dim3(EK_BLOCK),
                     ek_strided_loop<Inputs, Out, First, Rest, F, ek_strided64<1 + Inputs>>, f,
                     memory, ek_strided64_of<1 + Inputs>(walk), walk->count);
}

#endif
