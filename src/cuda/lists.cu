/* lists.cu: kernels over lists of tensors: sums of many, optimizer steps, norms and scaling of
 * gradients. Each tensor is cut into chunks, one for a block, in one pass over memory.
 *
 * Sums: each thread adds up its elements; the output may be the first addend. Steps: the arithmetic
 * is the host's (kernels/steps.h); last bits of f32 may differ where compilers fuse products. */
#include "cuda/launches.h"
#include "cuda/strides.cuh"
#include "kernels/steps.h"

static_assert(sizeof(ek_cuda_list) + sizeof(ek_step_constants_f64) + 64 <= 4096,
              "parameters of a kernel have 4 KiB");

/* ---- a block's part of a list ---- */

struct list_part {
    void *const *data; /* the operands, one after the other */
    int64_t begin, end;
    int64_t vectors_end; /* all operands can be read in vectors of 16 bytes from begin to here */
};

/* Returns the part of a list that this block works on. The elements of the widest operand have
 * `size` bytes. */
EK_DEVICE list_part list_part_of(const ek_cuda_list &list, int size)
{
    int at = 0; /* becomes the last entry whose first block isn't after this block */
    for (int above = list.count; above - at > 1;) {
        int middle = (at + above) / 2;
        if (list.first[middle] <= blockIdx.x)
            at = middle;
        else
            above = middle;
    }
    list_part part;
    part.data = list.data + at * list.operands;
    part.begin = (int64_t)(blockIdx.x - list.first[at]) * EK_CUDA_LIST_CHUNK;
    part.end = list.elements[at];
    if (part.end - part.begin > EK_CUDA_LIST_CHUNK)
        part.end = part.begin + EK_CUDA_LIST_CHUNK;
    uintptr_t addresses = 0;
    for (int k = 0; k < list.operands; k++)
        addresses |= (uintptr_t)part.data[k];
    int64_t vector = 16 / size;
    part.vectors_end =
        addresses % 16 == 0 ? part.begin + (part.end - part.begin) / vector * vector : part.begin;
    return part;
}

/* ---- sums ---- */

/* V elements, from element i on, of the addends of a list's entry. */
template <typename T, typename From, int V> struct add_elements {
    typedef typename ek_compute<T>::type real;
    void *const *addends;
    int64_t i;

    __device__ __forceinline__ bool load(int k, real (&values)[V]) const
    {
        if (addends[k])
            ek_load_elements<From>(values, (const From *)addends[k] + i);
        return addends[k] != nullptr;
    }
    __device__ __forceinline__ real pair(real a, real b) const
    {
        return ek_plus(a, b);
    }
};

template <typename T, typename From, int V, int Levels>
EK_DEVICE void add_range(const ek_cuda_list &list, const list_part &part, int64_t begin,
                         int64_t end)
{
    for (int64_t i = begin + (int64_t)threadIdx.x * V; i < end; i += EK_BLOCK * V) {
        typename ek_compute<T>::type sum[V];
        ek_combine_terms<Levels>(add_elements<T, From, V>{part.data + 1, i}, list.operands - 1,
                                 sum);
        ek_store_elements((T *)part.data[0] + i, sum);
    }
}

/* T is no smaller than From. There are less than 2^Levels addends. */
template <typename T, typename From, int Levels>
EK_KERNEL add_n(const __grid_constant__ ek_cuda_list list)
{
    list_part part = list_part_of(list, sizeof(T));
    add_range<T, From, 16 / sizeof(T), Levels>(list, part, part.begin, part.vectors_end);
    add_range<T, From, 1, Levels>(list, part, part.vectors_end, part.end);
}

template <typename T, typename From>
static int launch_add_n(const ek_cuda_stream *stream, const ek_cuda_list *list)
{
    static_assert(EK_MAX_DEVICES < 1 << 7, "there are kernels for less than 2^7 addends");
    unsigned grid = list->first[list->count];
    return list->operands - 1 < 1 << 4 ? ek_launch(stream, grid, add_n<T, From, 4>, *list)
                                       : ek_launch(stream, grid, add_n<T, From, 7>, *list);
}

int ek_cuda_launch_add_n(const ek_cuda_stream *stream, ek_dtype dtype, ek_dtype from,
                         const ek_cuda_list *list)
{
    if (dtype == EK_F32 && from == EK_BF16)
        return launch_add_n<float, ek_bf16>(stream, list);
    if (dtype == EK_F32 && from == EK_F16)
        return launch_add_n<float, ek_f16>(stream, list);
    EK_ANY_DTYPE(dtype, T, return launch_add_n<T, T>(stream, list))
}

/* ---- steps: the update of one element w, with its gradient and `count` states ---- */

template <typename real, ek_step_rule Rule> struct step_of;

#define STEP_OF(name, count)                                                                     \
    template <> struct step_of<float, EK_STEP_##name> {                                          \
        enum { states = count };                                                                 \
        ek_step_constants_f32 constants;                                                         \
        __device__ __forceinline__ float operator()(float w, float gradient, float *state) const \
        {                                                                                        \
            return ek_step_##name##_f32(&constants, w, gradient, state);                         \
        }                                                                                        \
    };                                                                                           \
    template <> struct step_of<double, EK_STEP_##name> {                                         \
        enum { states = count };                                                                 \
        ek_step_constants_f64 constants;                                                         \
        __device__ __forceinline__ double operator()(double w, double gradient,                  \
                                                     double *state) const                        \
        {                                                                                        \
            return ek_step_##name##_f64(&constants, w, gradient, state);                         \
        }                                                                                        \
    };
EK_STEP_RULES(STEP_OF)
#undef STEP_OF

template <int V, typename real, typename Step>
EK_DEVICE void step_range(const Step &step, const list_part &part, int64_t begin, int64_t end)
{
    typedef ek_vector<real, V> vector;
    real *parameter = (real *)part.data[0], *states[Step::states + 1];
    const real *gradient = (const real *)part.data[1];
    EK_EACH(k, Step::states)
        states[k] = (real *)part.data[2 + k];
    for (int64_t i = begin + (int64_t)threadIdx.x * V; i < end; i += EK_BLOCK * V) {
        vector w = *(const vector *)(parameter + i), g = *(const vector *)(gradient + i);
        vector state[Step::states + 1];
        EK_EACH(k, Step::states)
            state[k] = *(const vector *)(states[k] + i);
        EK_EACH(j, V) {
            real own[Step::states + 1];
            EK_EACH(k, Step::states)
                own[k] = state[k].element[j];
            w.element[j] = step(w.element[j], g.element[j], own);
            EK_EACH(k, Step::states)
                state[k].element[j] = own[k];
        }
        *(vector *)(parameter + i) = w;
        EK_EACH(k, Step::states)
            *(vector *)(states[k] + i) = state[k];
    }
}

template <typename real, typename Step>
EK_KERNEL step_list(Step step, const __grid_constant__ ek_cuda_list list)
{
    list_part part = list_part_of(list, sizeof(real));
    step_range<16 / sizeof(real), real>(step, part, part.begin, part.vectors_end);
    step_range<1, real>(step, part, part.vectors_end, part.end);
}

template <typename real, typename Step>
static int launch_step(const ek_cuda_stream *stream, const ek_cuda_list *list, const Step &step)
{
    return ek_launch(stream, list->first[list->count], step_list<real, Step>, step, *list);
}

template <typename real, typename Constants>
static int launch_rule(const ek_cuda_stream *stream, ek_step_rule rule, const ek_cuda_list *list,
                       const Constants &constants)
{
    switch (rule) {
#define STEP_CASE(name, states) \
    case EK_STEP_##name:        \
        return launch_step<real>(stream, list, step_of<real, EK_STEP_##name>{constants});
        EK_STEP_RULES(STEP_CASE)
#undef STEP_CASE
    default:
        return 0;
    }
}

int ek_cuda_launch_step(const ek_cuda_stream *stream, ek_dtype dtype, ek_step_rule rule,
                        const ek_cuda_list *list, const ek_step_numbers *numbers)
{
    if (dtype == EK_F64)
        return launch_rule<double>(stream, rule, list, ek_step_constants_of_f64(numbers));
    return launch_rule<float>(stream, rule, list, ek_step_constants_of_f32(numbers));
}

/* ---- norms and scaling ---- */

struct power_join {
    double p;
    __device__ __forceinline__ double operator()(double a, double b) const
    {
        return ek_power_join(a, b, p);
    }
};

/* A thread has whole groups of V elements, whatever their alignment, so that the order of sums
 * depends on sizes alone. */
template <typename T, int V = 16 / sizeof(T)>
EK_KERNEL norm_list(const __grid_constant__ ek_cuda_list list, double p, double *partial,
                    const double *factor)
{
    const bool sums = !factor;
    if (!sums && *factor == 1)
        return;
    typename ek_compute<T>::type values[V], by = sums ? 1 : *factor;
    list_part part = list_part_of(list, sizeof(T));
    T *x = (T *)part.data[0];
    double total = 0;
    for (int64_t i = part.begin + (int64_t)threadIdx.x * V; i < part.end; i += EK_BLOCK * V) {
        const bool whole = i + V <= part.vectors_end;
        if (whole)
            ek_load_elements<T>(values, x + i);
        EK_EACH(j, V) {
            if (!whole)
                values[j] = i + j < part.end ? ek_load(x + i + j) : 0;
            if (sums)
                total = ek_power_join(total, ek_power_of(values[j], p), p);
            values[j] *= by;
            if (!sums && !whole && i + j < part.end)
                ek_store(x + i + j, values[j]);
        }
        if (!sums && whole)
            ek_store_elements(x + i, values);
    }
    total = ek_team_join(ek_team_of({EK_BLOCK, false}), total, power_join{p});
    if (threadIdx.x == 0 && sums)
        partial[blockIdx.x] = total;
}

int ek_cuda_launch_norm(const ek_cuda_stream *stream, ek_dtype dtype, const ek_cuda_list *list,
                        double p, double *partial, const double *factor)
{
    const unsigned grid = list->first[list->count];
    EK_FLOATING(dtype, T, return ek_launch(stream, grid, norm_list<T>, *list, p, partial, factor))
}

EK_KERNEL norm_join(const double *sums, int64_t count, double p, double max_norm, double *out)
{
    double total = 0;
    for (int64_t i = threadIdx.x; i < count; i += EK_BLOCK)
        total = ek_power_join(total, sums[i], p);
    total = ek_team_join(ek_team_of({EK_BLOCK, false}), total, power_join{p});
    if (threadIdx.x == 0)
        ek_norm_of_sum(out, total, p, max_norm);
}

int ek_cuda_launch_norm_join(const ek_cuda_stream *stream, const double *sums, int64_t count,
                             double p, double max_norm, double *out)
{
    return ek_launch(stream, 1, norm_join, sums, count, p, max_norm, out);
}
