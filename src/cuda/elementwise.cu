/* elementwise.cu: operations on each element: unary and binary formulas, comparisons, choices, and
 * conversions, by loops over one output and up to three inputs of one shape.
 *
 * A functor F computes V elements at once: f(r, x), f(r, x, y) or f(r, x, y, z), on arrays of the
 * types that elements are computed in. There are three loops:
 *
 *   flat     all in one run, or constant: vectors, no index arithmetic;
 *   rows     runs along the innermost dimension, or constant there (a bias over the channels):
 *            vectors, whose offsets are found by 32-bit arithmetic;
 *   strided  anything, any dtype of each operand: element by element.
 *
 * An output that is also an input is fine: an element is read by the thread that writes it, before
 * that.
 *
 * The formulas are the host's (kernels/formulas.h), in f32 its polynomials included, so that both
 * agree but for the last bits: either compiler fuses products and sums, where it sees fit; sqrt and
 * division are correctly rounded on both; mathematics, and in f64 exp, log and tanh, are CUDA's. */
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
    /* Elements that are left don't fill a vector. */
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
    /* True if the flat loop (one dimension) or the loop over rows can be used. */
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

/* ---- y = f(x; a, b) and z = f(x, y; a): x + a * y and its like may differ from the host's in the
 * last bit ---- */

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

/* Defines formula_evaluate, which computes V elements by the row `op`, for the type C. a and b are
 * read as `scalar`. */
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

/* Mathematics has a switch of its own, because its many registers would slow the others down. */
#define FORMULA_MATHEMATICS(C, unary_cases, binary_cases)                                      \
    template <int V> EK_DEVICE void formula_mathematics(ek_unary op, C(&r)[V], const C(&x)[V]) \
    {                                                                                          \
        const C a = 0, b = 0;                                                                  \
        switch (op) {                                                                          \
            unary_cases default : break;                                                       \
        }                                                                                      \
    }                                                                                          \
    template <int V>                                                                           \
    EK_DEVICE void formula_mathematics(ek_binary op, C(&r)[V], const C(&x)[V], const C(&y)[V]) \
    {                                                                                          \
        const C a = 0;                                                                         \
        switch (op) {                                                                          \
            binary_cases default : break;                                                      \
        }                                                                                      \
    }
FORMULA_MATHEMATICS(float, EK_UNARY_MATHEMATICS(UNARY_F32), EK_BINARY_MATHEMATICS(BINARY_F32))
FORMULA_MATHEMATICS(double, EK_UNARY_MATHEMATICS(UNARY_F64), EK_BINARY_MATHEMATICS(BINARY_F64))

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

/* One operation of f32 (and bf16 and f16), chosen at compile time: training consists of these. */
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

/* Any of mathematics, chosen at run time. */
template <typename Op> struct formula_any_mathematics {
    Op op;
    template <int V, typename C, typename... Rest>
    __device__ void operator()(C (&r)[V], const C (&x)[V], const Rest &...y) const
    {
        formula_mathematics(op, r, x, y...);
    }
};

template <int Inputs, typename Op>
static int formula_launch_mathematics(const ek_cuda_stream *stream, Op op, const ek_cuda_walk *walk)
{
    ek_dtype dtype = walk->dtype[1];
    formula_any_mathematics<Op> any = {op};
    if (dtype == walk->dtype[0] && dtype == walk->dtype[Inputs]) {
        EK_FLOATING(dtype, T,
                    if (vectors_of<Inputs, T, T, T>::fit(
                            walk)) return launch_vectors<Inputs, T, T, T>(stream, walk, any))
    }
    if (dtype == EK_F64)
        return launch_strided<Inputs, double, double, double>(stream, walk, any);
    return launch_strided<Inputs, float, float, float>(stream, walk, any);
}

template <int Inputs, typename Op>
static int formula_launch(const ek_cuda_stream *stream, Op op, const ek_cuda_walk *walk, double a,
                          double b)
{
    ek_dtype dtype = walk->dtype[1];
    if (formula_is_mathematics(op) && ek_dtype_is_floating(dtype))
        return formula_launch_mathematics<Inputs>(stream, op, walk);
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

/* ---- comparisons, whose results are bytes, and choices by such bytes ---- */

template <typename C> struct compare_any {
    int op;

    template <int V>
    __device__ void operator()(int64_t (&r)[V], const C (&x)[V], const C (&y)[V]) const
    {
        switch (op) {
#define COMPARE_CASE(name, operator)   \
    case EK_COMPARE_##name:            \
        for (int j = 0; j < V; j++)    \
            r[j] = x[j] operator y[j]; \
        break;
            EK_COMPARISONS(COMPARE_CASE)
        default:
            break;
        }
    }
};

int ek_cuda_launch_compare(const ek_cuda_stream *stream, ek_compare op, const ek_cuda_walk *walk)
{
    ek_dtype dtype = walk->dtype[1];
    if (walk->dtype[0] == EK_BOOL && dtype == walk->dtype[2]) {
        EK_FAST_DTYPE(
            dtype, T,
            if (vectors_of<2, uint8_t, T, T>::fit(walk)) return launch_vectors<2, uint8_t, T, T>(
                stream, walk, compare_any<typename ek_compute<T>::type>{(int)op}))
    }
    EK_BY_CLASS(dtype, C,
                return launch_strided<2, int64_t, C, C>(stream, walk, compare_any<C>{(int)op}))
}

template <typename C> struct where_any {
    template <int V>
    __device__ void operator()(C (&r)[V], const int64_t (&condition)[V], const C (&x)[V],
                               const C (&y)[V]) const
    {
        for (int j = 0; j < V; j++)
            r[j] = condition[j] ? x[j] : y[j];
    }
};

int ek_cuda_launch_where(const ek_cuda_stream *stream, const ek_cuda_walk *walk)
{
    ek_dtype dtype = walk->dtype[0];
    bool bytes = walk->dtype[1] == EK_BOOL || walk->dtype[1] == EK_U8;
    if (bytes && dtype == walk->dtype[2] && dtype == walk->dtype[3]) {
        EK_FAST_DTYPE(
            dtype, T,
            if (vectors_of<3, T, uint8_t, T>::fit(walk)) return launch_vectors<3, T, uint8_t, T>(
                stream, walk, where_any<typename ek_compute<T>::type>{}))
    }
    EK_BY_CLASS(dtype, C, return launch_strided<3, C, int64_t, C>(stream, walk, where_any<C>{}))
}

/* ---- conversions ---- */

/* Loads are of the type that the input's dtype is computed in, stores of the output's. */
struct convert {
    template <int V, typename To, typename From>
    __device__ void operator()(To (&r)[V], const From (&x)[V]) const
    {
        for (int j = 0; j < V; j++)
            r[j] = ek_convert<To>(x[j]);
    }
};

/* The conversions that training makes, in vectors. */
#define TRY_PAIR(to_dtype, To, from_dtype, From)                      \
    if (walk->dtype[0] == to_dtype && walk->dtype[1] == from_dtype && \
        vectors_of<1, To, From, From>::fit(walk))                     \
    return launch_vectors<1, To, From, From>(stream, walk, convert())

int ek_cuda_launch_convert(const ek_cuda_stream *stream, const ek_cuda_walk *walk)
{
    TRY_PAIR(EK_BF16, ek_bf16, EK_F32, float);
    TRY_PAIR(EK_F32, float, EK_BF16, ek_bf16);
    TRY_PAIR(EK_F16, ek_f16, EK_F32, float);
    TRY_PAIR(EK_F32, float, EK_F16, ek_f16);
    TRY_PAIR(EK_F64, double, EK_F32, float);
    TRY_PAIR(EK_F32, float, EK_F64, double);
    TRY_PAIR(EK_F32, float, EK_U8, uint8_t);
    TRY_PAIR(EK_F32, float, EK_BOOL, ek_bool);
    TRY_PAIR(EK_F32, float, EK_I64, int64_t);
    TRY_PAIR(EK_I64, int64_t, EK_U8, uint8_t);
    TRY_PAIR(EK_I64, int64_t, EK_I32, int32_t);
    EK_BY_CLASS(walk->dtype[1], C, return launch_strided<1, C, C, C>(stream, walk, convert()))
}
