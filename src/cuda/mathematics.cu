/* mathematics.cu: sin, pow and other functions on each element. They have separate kernels, because
 * their many registers would slow the other formulas down. */
#include "cuda/elementwise.cuh"

#define MATHEMATICS_EVALUATE(C, unary_cases, binary_cases)                                      \
    template <int V> EK_DEVICE void mathematics_evaluate(ek_unary op, C(&r)[V], const C(&x)[V]) \
    {                                                                                           \
        const C a = 0, b = 0;                                                                   \
        switch (op) {                                                                           \
            unary_cases default : break;                                                        \
        }                                                                                       \
    }                                                                                           \
    template <int V>                                                                            \
    EK_DEVICE void mathematics_evaluate(ek_binary op, C(&r)[V], const C(&x)[V], const C(&y)[V]) \
    {                                                                                           \
        const C a = 0;                                                                          \
        switch (op) {                                                                           \
            binary_cases default : break;                                                       \
        }                                                                                       \
    }
MATHEMATICS_EVALUATE(float, EK_UNARY_MATHEMATICS(UNARY_F32), EK_BINARY_MATHEMATICS(BINARY_F32))
MATHEMATICS_EVALUATE(double, EK_UNARY_MATHEMATICS(UNARY_F64), EK_BINARY_MATHEMATICS(BINARY_F64))

/* Any row of mathematics, chosen at run time. */
template <typename Op> struct mathematics_any {
    Op op;
    template <int V, typename C, typename... Rest>
    __device__ void operator()(C (&r)[V], const C (&x)[V], const Rest &...y) const
    {
        mathematics_evaluate(op, r, x, y...);
    }
};

template <int Inputs, typename Op>
static int mathematics_launch(const ek_cuda_stream *stream, Op op, const ek_cuda_walk *walk)
{
    ek_dtype dtype = walk->dtype[1];
    mathematics_any<Op> any = {op};
    if (dtype == walk->dtype[0] && dtype == walk->dtype[Inputs]) {
        EK_FLOATING(dtype, T,
                    if (vectors_of<Inputs, T, T, T>::fit(
                            walk)) return launch_vectors<Inputs, T, T, T>(stream, walk, any))
    }
    if (dtype == EK_F64)
        return launch_strided<Inputs, double, double, double>(stream, walk, any);
    return launch_strided<Inputs, float, float, float>(stream, walk, any);
}

int ek_cuda_launch_mathematics(const ek_cuda_stream *stream, ek_unary op, const ek_cuda_walk *walk)
{
    return mathematics_launch<1>(stream, op, walk);
}

int ek_cuda_launch_mathematics(const ek_cuda_stream *stream, ek_binary op, const ek_cuda_walk *walk)
{
    return mathematics_launch<2>(stream, op, walk);
}
