/* elementwise_binary.cu: z = f(x, y; a). The formulas are the host's (kernels/formulas.h); x + a y
 * and its like may differ in the last bit, if only one of the compilers fuses them. */
#include "cuda/elementwise.cuh"
#include "cuda/elementwise.h"

/* ---- any operation, chosen when it runs ---- */

#define BINARY_CASE(suffix, name)                              \
    case EK_BINARY_##name:                                     \
        for (int j = 0; j < V; j++)                            \
            r[j] = ek_binary_##name##_##suffix(x[j], y[j], a); \
        break;
#define BINARY_F32(name, formula) BINARY_CASE(f32, name)
#define BINARY_F64(name, formula) BINARY_CASE(f64, name)
#define BINARY_I64(name, formula) BINARY_CASE(i64, name)

template <typename C> struct binary_any;

#define DEFINE_ANY(C, scalar, cases)                                                  \
    template <> struct binary_any<C> {                                                \
        int op;                                                                       \
        scalar a;                                                                     \
        binary_any(ek_binary op_, double a_) : op((int)op_), a((scalar)a_)            \
        {                                                                             \
        }                                                                             \
        template <int V>                                                              \
        __device__ void operator()(C (&r)[V], const C (&x)[V], const C (&y)[V]) const \
        {                                                                             \
            switch (op) {                                                             \
                cases default : break;                                                \
            }                                                                         \
        }                                                                             \
    };
DEFINE_ANY(float, float, EK_BINARY_REALS(BINARY_F32))
DEFINE_ANY(double, double, EK_BINARY_REALS(BINARY_F64))
DEFINE_ANY(int64_t, double, EK_BINARY_INTEGERS(BINARY_I64))

/* ---- one operation of f32 (and bf16), known when it is compiled ---- */

#define DEFINE_ONE(name, formula)                                                                 \
    struct binary_##name {                                                                        \
        float a;                                                                                  \
        template <int V>                                                                          \
        __device__ void operator()(float (&r)[V], const float (&x)[V], const float (&y)[V]) const \
        {                                                                                         \
            for (int j = 0; j < V; j++)                                                           \
                r[j] = ek_binary_##name##_f32(x[j], y[j], a);                                     \
        }                                                                                         \
    };
EK_BINARY_REALS(DEFINE_ONE)

template <typename T>
static int launch_one(const ek_cuda_queue *queue, ek_binary op, const ek_cuda_walk *walk, double a)
{
    switch (op) {
#define LAUNCH_ONE(name, formula) \
    case EK_BINARY_##name:        \
        return ek_launch_flat<2, T, T, T>(queue, walk, binary_##name{(float)a});
        EK_BINARY_REALS(LAUNCH_ONE)
    default:
        return (int)cudaErrorInvalidValue;
    }
}

/* ---- launching ---- */

template <typename T>
static int launch_vectors(const ek_cuda_queue *queue, ek_binary op, const ek_cuda_walk *walk,
                          double a)
{
    binary_any<typename ek_compute<T>::type> f(op, a);
    if (walk->ndim > 1)
        return ek_launch_rows<2, T, T, T>(queue, walk, f);
    if constexpr (sizeof(typename ek_compute<T>::type) == sizeof(float))
        return launch_one<T>(queue, op, walk, a);
    else
        return ek_launch_flat<2, T, T, T>(queue, walk, f);
}

int ek_cuda_launch_binary(const ek_cuda_queue *queue, ek_binary op, const ek_cuda_walk *walk,
                          double a)
{
    ek_dtype dtype = walk->dtype[1];
    if (dtype == walk->dtype[0] && dtype == walk->dtype[2]) {
        EK_ANY_DTYPE(dtype, T,
                     if (ek_elementwise_vectors<2, T, T, T>::fit(
                             walk)) return launch_vectors<T>(queue, op, walk, a))
    }
    EK_BY_CLASS(dtype, C, return ek_launch_strided<2, C, C, C>(queue, walk, binary_any<C>(op, a)))
}
