/* optimizer.cu: optimizer steps over a list of flat ranges, one pass over memory.
 *
 * The arithmetic is the host's (kernels/steps.h). In f32 last bits may differ from the host's,
 * if one of the compilers fuses another product with a sum. */
#include "cuda/optimizer.h"

#include "cuda/list.cuh"
#include "cuda/strided.cuh"
#include "kernels/steps.h"

static_assert(sizeof(ek_cuda_list) + sizeof(ek_adam_constants_f64) + 64 <= 4096,
              "parameters of a kernel have 4 KiB");

/* ---- what is done to one element: w with its gradient and `count` states ---- */

template <typename real> struct constants_of;
template <> struct constants_of<float> {
    typedef ek_sgd_constants_f32 sgd;
    typedef ek_adam_constants_f32 adam;
};
template <> struct constants_of<double> {
    typedef ek_sgd_constants_f64 sgd;
    typedef ek_adam_constants_f64 adam;
};

template <typename real, int Kind> struct sgd_step {
    enum { states = Kind == EK_SGD_PLAIN ? 0 : 1 };
    typename constants_of<real>::sgd constants;

    __device__ __forceinline__ real operator()(real w, real gradient, real *state) const
    {
        if constexpr (sizeof(real) == sizeof(float))
            return ek_sgd_f32((ek_sgd_kind)Kind, constants, w, gradient, state);
        else
            return ek_sgd_f64((ek_sgd_kind)Kind, constants, w, gradient, state);
    }
};

template <typename real, int Largest> struct adam_step {
    enum { states = 2 + Largest };
    typename constants_of<real>::adam constants;

    __device__ __forceinline__ real operator()(real w, real gradient, real *state) const
    {
        real *largest = Largest ? &state[states - 1] : nullptr;
        if constexpr (sizeof(real) == sizeof(float))
            return ek_adam_f32(constants, w, gradient, &state[0], &state[1], largest);
        else
            return ek_adam_f64(constants, w, gradient, &state[0], &state[1], largest);
    }
};

/* ---- a chunk by a block ---- */

template <int V, typename real, typename Step>
static __device__ __forceinline__ void step_range(const Step &step, const ek_list_part &part,
                                                  int64_t begin, int64_t end)
{
    typedef ek_vector<real, V> vector;
    real *parameter = (real *)part.data[0], *states[Step::states + 1];
    const real *gradient = (const real *)part.data[1];
#pragma unroll
    for (int k = 0; k < Step::states; k++)
        states[k] = (real *)part.data[2 + k];
    for (int64_t i = begin + (int64_t)threadIdx.x * V; i < end; i += EK_BLOCK * V) {
        vector w = *(const vector *)(parameter + i), g = *(const vector *)(gradient + i);
        vector state[Step::states + 1];
#pragma unroll
        for (int k = 0; k < Step::states; k++)
            state[k] = *(const vector *)(states[k] + i);
#pragma unroll
        for (int j = 0; j < V; j++) {
            real own[Step::states + 1];
#pragma unroll
            for (int k = 0; k < Step::states; k++)
                own[k] = state[k].element[j];
            w.element[j] = step(w.element[j], g.element[j], own);
#pragma unroll
            for (int k = 0; k < Step::states; k++)
                state[k].element[j] = own[k];
        }
        *(vector *)(parameter + i) = w;
#pragma unroll
        for (int k = 0; k < Step::states; k++)
            *(vector *)(states[k] + i) = state[k];
    }
}

template <typename real, typename Step>
static __global__ void __launch_bounds__(EK_BLOCK)
    step_list(Step step, const __grid_constant__ ek_cuda_list list)
{
    ek_list_part part = ek_list_part_of(list, sizeof(real));
    step_range<16 / sizeof(real), real>(step, part, part.begin, part.vectors_end);
    step_range<1, real>(step, part, part.vectors_end, part.end);
}

template <typename real, typename Step>
static int launch(const ek_cuda_queue *queue, const ek_cuda_list *list, const Step &step)
{
    return ek_launch(queue, dim3(list->first[list->count]), dim3(EK_BLOCK), step_list<real, Step>,
                     step, *list);
}

/* ---- which step ---- */

template <typename real>
static int launch_sgd(const ek_cuda_queue *queue, const ek_cuda_list *list, ek_sgd_kind kind,
                      const typename constants_of<real>::sgd &constants)
{
    switch (kind) {
    case EK_SGD_FIRST:
        return launch<real>(queue, list, sgd_step<real, EK_SGD_FIRST>{constants});
    case EK_SGD_NESTEROV:
        return launch<real>(queue, list, sgd_step<real, EK_SGD_NESTEROV>{constants});
    case EK_SGD_HEAVY:
        return launch<real>(queue, list, sgd_step<real, EK_SGD_HEAVY>{constants});
    default:
        return launch<real>(queue, list, sgd_step<real, EK_SGD_PLAIN>{constants});
    }
}

int ek_cuda_launch_sgd(const ek_cuda_queue *queue, ek_dtype dtype, const ek_cuda_list *list,
                       const ek_sgd_params *params)
{
    ek_sgd_kind kind = ek_sgd_kind_of(params);
    if (dtype == EK_F64)
        return launch_sgd<double>(queue, list, kind, ek_sgd_constants_of_f64(params));
    return launch_sgd<float>(queue, list, kind, ek_sgd_constants_of_f32(params));
}

template <typename real>
static int launch_adam(const ek_cuda_queue *queue, const ek_cuda_list *list,
                       const typename constants_of<real>::adam &constants)
{
    if (list->operands > 4)
        return launch<real>(queue, list, adam_step<real, 1>{constants});
    return launch<real>(queue, list, adam_step<real, 0>{constants});
}

int ek_cuda_launch_adam(const ek_cuda_queue *queue, ek_dtype dtype, const ek_cuda_list *list,
                        const ek_adam_params *params)
{
    if (dtype == EK_F64)
        return launch_adam<double>(queue, list, ek_adam_constants_of_f64(params));
    return launch_adam<float>(queue, list, ek_adam_constants_of_f32(params));
}
