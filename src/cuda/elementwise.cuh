/* elementwise.cuh: loops over one output and up to three inputs of one shape, for operations on
 * each element.
 *
 * A functor F computes V elements at once: f(r, x), f(r, x, y) or f(r, x, y, z), on arrays of the
 * types that elements are computed in. There are three loops:
 *
 *   flat     every operand is one run, or constant: vectors without index arithmetic;
 *   rows     every operand has runs along the innermost dimension, or is constant there: vectors,
 *            with offsets in 32-bit arithmetic;
 *   strided  any strides, and any dtype of each operand: element by element.
 *
 * The output may be one of the inputs: the thread that writes an element has read it before. */
#ifndef EK_CUDA_ELEMENTWISE_CUH
#define EK_CUDA_ELEMENTWISE_CUH

#include "cuda/launches.h"
#include "cuda/strides.cuh"

enum { INPUTS = 3 };

/* Memory of the output (0) and the inputs. */
struct loop_memory {
    void *data[1 + INPUTS];
    int dtype[1 + INPUTS];
    int stays[1 + INPUTS]; /* true if constant along the innermost dimension */
};

static inline loop_memory loop_memory_of(const ek_cuda_walk *walk)
{
    loop_memory memory = {};
    for (int k = 0; k < walk->operands; k++) {
        memory.data[k] = walk->data[k];
        memory.dtype[k] = (int)walk->dtype[k];
        memory.stays[k] = ek_stays(walk, k);
    }
    return memory;
}

/* ---- vectors ---- */

template <typename T, typename C, int V>
EK_DEVICE void loop_load_vector(C (&values)[V], const void *data, int64_t offset, int stays)
{
    const T *from = (const T *)data + offset;
    if (stays) {
        C value = ek_load(from);
        EK_EACH(j, V)
            values[j] = value;
    } else {
        ek_load_elements(values, from);
    }
}

/* Computes one vector. Out is the type of the output's elements; First and Rest are the inputs'.
 * `offset` counts elements. */
template <int Inputs, int V, typename Out, typename First, typename Rest, typename F>
EK_DEVICE void loop_vector_step(const F &f, const loop_memory &memory, const int64_t *offset)
{
    typename ek_compute<Out>::type r[V];
    typename ek_compute<First>::type x[V];
    loop_load_vector<First>(x, memory.data[1], offset[1], memory.stays[1]);
    if constexpr (Inputs == 1) {
        f(r, x);
    } else {
        typename ek_compute<Rest>::type y[V];
        loop_load_vector<Rest>(y, memory.data[2], offset[2], memory.stays[2]);
        if constexpr (Inputs == 2) {
            f(r, x, y);
        } else {
            typename ek_compute<Rest>::type z[V];
            loop_load_vector<Rest>(z, memory.data[3], offset[3], memory.stays[3]);
            f(r, x, y, z);
        }
    }
    ek_store_elements((Out *)memory.data[0] + offset[0], r);
}

template <int Inputs, int V, typename Out, typename First, typename Rest, typename F>
EK_KERNEL flat_loop(F f, loop_memory memory, int64_t count)
{
    int64_t offset[1 + Inputs];
    int64_t vectors = count / V;
    EK_GRID_LOOP(i, vectors) {
        for (int k = 0; k <= Inputs; k++)
            offset[k] = memory.stays[k] ? 0 : i * V;
        loop_vector_step<Inputs, V, Out, First, Rest>(f, memory, offset);
    }
    /* The elements that are left don't fill a vector. */
    int64_t last = vectors * V + (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (last < count) {
        for (int k = 0; k <= Inputs; k++)
            offset[k] = memory.stays[k] ? 0 : last;
        loop_vector_step<Inputs, 1, Out, First, Rest>(f, memory, offset);
    }
}

template <int Inputs, int V, typename Out, typename First, typename Rest, typename F>
EK_KERNEL rows_loop(F f, loop_memory memory, ek_strided32<1 + Inputs> strides, int64_t vectors)
{
    EK_GRID_LOOP(i, vectors) {
        int32_t found[1 + Inputs];
        int64_t offset[1 + Inputs];
        strides.find(i, found);
        for (int k = 0; k <= Inputs; k++)
            offset[k] = found[k];
        loop_vector_step<Inputs, V, Out, First, Rest>(f, memory, offset);
    }
}

/* ---- elements of any dtype ---- */

/* Out, First and Rest are the types that the operands are computed in. */
template <int Inputs, typename Out, typename First, typename Rest, typename F, typename Strides>
EK_KERNEL strided_loop(F f, loop_memory memory, Strides strides, int64_t count)
{
    EK_GRID_LOOP(i, count) {
        typename Strides::offset at[1 + Inputs];
        strides.find(i, at);
        Out r[1];
        First x[1] = {ek_load_as<First>(memory.data[1], memory.dtype[1], at[1])};
        if constexpr (Inputs == 1) {
            f(r, x);
        } else {
            Rest y[1] = {ek_load_as<Rest>(memory.data[2], memory.dtype[2], at[2])};
            if constexpr (Inputs == 2) {
                f(r, x, y);
            } else {
                Rest z[1] = {ek_load_as<Rest>(memory.data[3], memory.dtype[3], at[3])};
                f(r, x, y, z);
            }
        }
        ek_store_as(memory.data[0], memory.dtype[0], at[0], r[0]);
    }
}

/* ---- launching ---- */

/* The number of elements of a vector: 16 bytes of the largest type, at most 8 elements. */
template <int Inputs, typename Out, typename First, typename Rest> struct vectors_of {
    enum {
        first = sizeof(First) > sizeof(Out) ? sizeof(First) : sizeof(Out),
        largest = Inputs > 1 && sizeof(Rest) > first ? sizeof(Rest) : first,
        count = 16 / largest < 8 ? 16 / largest : 8
    };
    /* Returns true if the flat loop (one dimension) or the loop over rows can be used. */
    static bool fit(const ek_cuda_walk *walk)
    {
        const size_t sizes[] = {sizeof(Out), sizeof(First), sizeof(Rest), sizeof(Rest)};
        return ek_has_vectors(walk, sizes, count) && (walk->ndim == 1 || ek_fits_32(walk));
    }
};

template <int Inputs, typename Out, typename First, typename Rest, typename F>
static int launch_flat(const ek_cuda_stream *stream, const ek_cuda_walk *walk, F f)
{
    enum { V = vectors_of<Inputs, Out, First, Rest>::count };
    return ek_launch(stream, ek_grid(stream, walk->count, EK_BLOCK * V),
                     flat_loop<Inputs, V, Out, First, Rest, F>, f, loop_memory_of(walk),
                     walk->count);
}

template <int Inputs, typename Out, typename First, typename Rest, typename F>
static int launch_rows(const ek_cuda_stream *stream, const ek_cuda_walk *walk, F f)
{
    enum { V = vectors_of<Inputs, Out, First, Rest>::count };
    ek_cuda_walk steps = ek_by_vectors(walk, V);
    return ek_launch(stream, ek_grid(stream, steps.count),
                     rows_loop<Inputs, V, Out, First, Rest, F>, f, loop_memory_of(walk),
                     ek_strided32_of<1 + Inputs>(&steps), steps.count);
}

template <int Inputs, typename Out, typename First, typename Rest, typename F>
static int launch_vectors(const ek_cuda_stream *stream, const ek_cuda_walk *walk, F f)
{
    return walk->ndim > 1 ? launch_rows<Inputs, Out, First, Rest>(stream, walk, f)
                          : launch_flat<Inputs, Out, First, Rest>(stream, walk, f);
}

template <int Inputs, typename Out, typename First, typename Rest, typename F>
static int launch_strided(const ek_cuda_stream *stream, const ek_cuda_walk *walk, F f)
{
    return ek_with_strides<1 + Inputs>(walk, [&](auto strides) {
        return ek_launch(stream, ek_grid(stream, walk->count),
                         strided_loop<Inputs, Out, First, Rest, F, decltype(strides)>, f,
                         loop_memory_of(walk), strides, walk->count);
    });
}

/* ---- rows of kernels/elementwise.h as cases of a switch that computes V elements: y = f(x; a, b)
 * and z = f(x, y; a). x + a * y and its like may differ from the host's in the last bit. ---- */

#define FORMULA_CASE(KIND, kind, name, suffix, ...)                  \
    case EK_##KIND##_##name:                                         \
        for (int j = 0; j < V; j++)                                  \
            r[j] = ek_##kind##_##name##_##suffix(x[j], __VA_ARGS__); \
        break;
#define UNARY_F32(name, formula) FORMULA_CASE(UNARY, unary, name, f32, a, b)
#define UNARY_F64(name, formula) FORMULA_CASE(UNARY, unary, name, f64, a, b)
#define UNARY_I64(name, formula) FORMULA_CASE(UNARY, unary, name, i64, a, b)
#define BINARY_F32(name, formula) FORMULA_CASE(BINARY, binary, name, f32, y[j], a)
#define BINARY_F64(name, formula) FORMULA_CASE(BINARY, binary, name, f64, y[j], a)
#define BINARY_I64(name, formula) FORMULA_CASE(BINARY, binary, name, i64, y[j], a)

/* Launch a formula that needs mathematics, such as sin or pow (mathematics.cu). */
int ek_cuda_launch_mathematics(const ek_cuda_stream *stream, ek_unary op, const ek_cuda_walk *walk);
int ek_cuda_launch_mathematics(const ek_cuda_stream *stream, ek_binary op,
                               const ek_cuda_walk *walk);

#endif
