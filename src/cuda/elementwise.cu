/* elementwise.cu: unary and binary formulas on each element.
 *
 * The formulas are the host's (kernels/formulas.h), for f32 with the host's polynomials, so that
 * results differ in the last bits only. Each compiler fuses products and sums where it likes; sqrt
 * and division are correctly rounded by both. The functions of mathematics.cu, and in f64 exp, log
 * and tanh, are CUDA's. */
#include "cuda/elementwise.cuh"

/* Defines formula_evaluate for the type C, which computes V elements by row `op`. a and b have type
 * `scalar`. */
#define FORMULA_EVALUATE(C, scalar, unary_cases, binary_cases)                                 \
    template <int V>                                                                           \
    EK_DEVICE void formula_evaluate(ek_unary op, scalar a, scalar b, C(&r)[V], const C(&x)[V]) \
    {                                                                                          \
        switch (op) {                                                                          \
            unary_cases default : break;                                                       \
        }                                                                                      \
    }                                                                                          \
    template <int V>                                                                           \
    EK_DEVICE void formula_evaluate(ek_binary op, scalar a, scalar, C(&r)[V], const C(&x)[V],  \
                                    const C(&y)[V])                                            \
    {                                                                                          \
        switch (op) {                                                                          \
            binary_cases default : break;                                                      \
        }                                                                                      \
    }
FORMULA_EVALUATE(float, float, EK_UNARY_REALS(UNARY_F32), EK_BINARY_REALS(BINARY_F32))
FORMULA_EVALUATE(double, double, EK_UNARY_REALS(UNARY_F64), EK_BINARY_REALS(BINARY_F64))
FORMULA_EVALUATE(int64_t, double, EK_UNARY_INTEGERS(UNARY_I64), EK_BINARY_INTEGERS(BINARY_I64))

static inline bool formula_is_mathematics(ek_unary op)
{
    return op >= EK_UNARY_SIN;
}
static inline bool formula_is_mathematics(ek_binary op)
{
    return op >= EK_BINARY_POW;
}

/* The type of a and b for elements of type C. */
template <typename C> struct formula_scalar {
    typedef double type;
};
template <> struct formula_scalar<float> {
    typedef float type;
};

/* Any operation, chosen at run time. */
template <typename Op, typename scalar> struct formula_any {
    Op op;
    scalar a, b;
    template <int V, typename C, typename... Rest>
    __device__ void operator()(C (&r)[V], const C (&x)[V], const Rest &...y) const
    {
        formula_evaluate(op, a, b, r, x, y...);
    }
};

/* One operation of f32 (and bf16 and f16), chosen at compile time; for the lists of reals
 * (kernels/elementwise.h), which training uses. */
template <typename Op, Op op> struct formula_one {
    float a, b;
    template <int V, typename... Rest>
    __device__ void operator()(float (&r)[V], const float (&x)[V], const Rest &...y) const
    {
        formula_evaluate(op, a, b, r, x, y...);
    }
};

#define FORMULA_LAUNCH(Op, name, inputs) \
    case name:                           \
        return launch_flat<inputs, T, T, T>(stream, walk, formula_one<Op, name>{a, b});
#define UNARY_LAUNCH(name, formula) FORMULA_LAUNCH(ek_unary, EK_UNARY_##name, 1)
#define BINARY_LAUNCH(name, formula) FORMULA_LAUNCH(ek_binary, EK_BINARY_##name, 2)
#define FORMULA_LAUNCH_ONE(Op, cases)                                                            \
    template <typename T>                                                                        \
    static int formula_launch_one(const ek_cuda_stream *stream, Op op, const ek_cuda_walk *walk, \
                                  float a, float b)                                              \
    {                                                                                            \
        switch (op) {                                                                            \
            cases default : return (int)cudaErrorInvalidValue;                                   \
        }                                                                                        \
    }
FORMULA_LAUNCH_ONE(ek_unary, EK_UNARY_REALS(UNARY_LAUNCH))
FORMULA_LAUNCH_ONE(ek_binary, EK_BINARY_REALS(BINARY_LAUNCH))

template <int Inputs, typename T, typename Op>
static int formula_vectors(const ek_cuda_stream *stream, Op op, const ek_cuda_walk *walk, double a,
                           double b)
{
    typedef typename formula_scalar<typename ek_compute<T>::type>::type scalar;
    formula_any<Op, scalar> any = {op, (scalar)a, (scalar)b};
    if (walk->ndim > 1)
        return launch_rows<Inputs, T, T, T>(stream, walk, any);
    if constexpr (sizeof(scalar) == sizeof(float))
        return formula_launch_one<T>(stream, op, walk, any.a, any.b);
    else
        return launch_flat<Inputs, T, T, T>(stream, walk, any);
}

template <int Inputs, typename Op>
static int formula_launch(const ek_cuda_stream *stream, Op op, const ek_cuda_walk *walk, double a,
                          double b)
{
    ek_dtype dtype = walk->dtype[1];
    if (formula_is_mathematics(op) && ek_dtype_is_floating(dtype))
        return ek_cuda_launch_mathematics(stream, op, walk);
    if (dtype == walk->dtype[0] && dtype == walk->dtype[Inputs]) {
        EK_FAST_DTYPE(dtype, T,
                      if (vectors_of<Inputs, T, T, T>::fit(
                              walk)) return formula_vectors<Inputs, T>(stream, op, walk, a, b))
    }
    EK_BY_CLASS(dtype, C, {
        typedef typename formula_scalar<C>::type scalar;
        return launch_strided<Inputs, C, C, C>(stream, walk,
                                               formula_any<Op, scalar>{op, (scalar)a, (scalar)b});
    })
}

int ek_cuda_launch_unary(const ek_cuda_stream *stream, ek_unary op, const ek_cuda_walk *walk,
                         double a, double b)
{
    return formula_launch<1>(stream, op, walk, a, b);
}

int ek_cuda_launch_binary(const ek_cuda_stream *stream, ek_binary op, const ek_cuda_walk *walk,
                          double a)
{
    return formula_launch<2>(stream, op, walk, a, 0);
}
