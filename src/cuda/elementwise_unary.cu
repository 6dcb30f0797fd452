/* elementwise_unary.cu: y = f(x; a, b).
 *
 * The formulas are the host's (kernels/formulas.h), in f32 its polynomials included, so that both
 * agree but for the last bits: either compiler fuses products and sums, where it sees fit; sqrt and
 * division are correctly rounded on both; powers, and in f64 exp, log and tanh, are CUDA's. */
#include "cuda/elementwise.cuh"
#include "cuda/elementwise.h"

/* ---- any operation, chosen when it runs ---- */

#define UNARY_CASE(suffix, name)                           \
    case EK_UNARY_##name:                                  \
        for (int j = 0; j < V; j++)                        \
            r[j] = ek_unary_##name##_##suffix(x[j], a, b); \
        break;
#define UNARY_F32(name, formula) UNARY_CASE(f32, name)
#define UNARY_F64(name, formula) UNARY_CASE(f64, name)
#define UNARY_I64(name, formula) UNARY_CASE(i64, name)

template <typename C> struct unary_any;

#define DEFINE_ANY(C, scalar, cases)                                                               \
    template <> struct unary_any<C> {                                                              \
        int op;                                                                                    \
        scalar a, b;                                                                               \
        unary_any(ek_unary op_, double a_, double b_) : op((int)op_), a((scalar)a_), b((scalar)b_) \
        {                                                                                          \
        }                                                                                          \
        template <int V> __device__ void operator()(C (&r)[V], const C (&x)[V]) const              \
        {                                                                                          \
            switch (op) {                                                                          \
                cases default : break;                                                             \
            }                                                                                      \
        }                                                                                          \
    };
DEFINE_ANY(float, float, EK_UNARY_REALS(UNARY_F32))
DEFINE_ANY(double, double, EK_UNARY_REALS(UNARY_F64))
DEFINE_ANY(int64_t, double, EK_UNARY_INTEGERS(UNARY_I64))

/* ---- one operation of f32 (and bf16), known when it is compiled: what training is made of ---- */

#define DEFINE_ONE(name, formula)                                                             \
    struct unary_##name {                                                                     \
        float a, b;                                                                           \
        template <int V> __device__ void operator()(float (&r)[V], const float (&x)[V]) const \
        {                                                                                     \
            for (int j = 0; j < V; j++)                                                       \
                r[j] = ek_unary_##name##_f32(x[j], a, b);                                     \
        }                                                                                     \
    };
EK_UNARY_REALS(DEFINE_ONE)

template <typename T>
static int launch_one(const ek_cuda_queue *queue, ek_unary op, const ek_cuda_walk *walk, double a,
                      double b)
{
    switch (op) {
#define LAUNCH_ONE(name, formula) \
    case EK_UNARY_##name:         \
        return ek_launch_flat<1, T, T, T>(queue, walk, unary_##name{(float)a, (float)b});
        EK_UNARY_REALS(LAUNCH_ONE)
    default:
        return (int)cudaErrorInvalidValue;
    }
}

/* ---- launching ---- */

template <typename T>
static int launch_vectors(const ek_cuda_queue *queue, ek_unary op, const ek_cuda_walk *walk,
                          double a, double b)
{
    unary_any<typename ek_compute<T>::type> f(op, a, b);
    if (walk->ndim > 1)
        return ek_launch_rows<1, T, T, T>(queue, walk, f);
    if constexpr (sizeof(typename ek_compute<T>::type) == sizeof(float))
        return launch_one<T>(queue, op, walk, a, b);
    else
        return ek_launch_flat<1, T, T, T>(queue, walk, f);
}

int ek_cuda_launch_unary(const ek_cuda_queue *queue, ek_unary op, const ek_cuda_walk *walk,
                         double a, double b)
{
    ek_dtype dtype = walk->dtype[1];
    if (dtype == walk->dtype[0]) {
        EK_ANY_DTYPE(dtype, T,
                     if (ek_elementwise_vectors<1, T, T, T>::fit(
                             walk)) return launch_vectors<T>(queue, op, walk, a, b))
    }
    EK_BY_CLASS(dtype, C, return ek_launch_strided<1, C, C, C>(queue, walk, unary_any<C>(op, a, b)))
}
