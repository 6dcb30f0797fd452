/* optimizer.c: optimizer steps, one pass over memory; norms of gradients. */
#ifndef EK_REAL
#include "host/host.h"
#include "host/parallel.h"
#include "kernels/operations.h"
#include "kernels/steps.h"

enum { GRAIN = 8192 };

/* One parameter's step. */
typedef struct step_job {
    void *parameter;
    const void *gradient;
    void *state[EK_STEP_STATES]; /* NULL if the rule has fewer */
    const ek_step_numbers *numbers;
} step_job;

#define EK_FOR_REALS "host/optimizer.c"
#include "kernels/for_reals.h"

static ek_parallel_body *const step_bodies[][2] = {
#define STEP_BODIES(name, states) {step_##name##_f32, step_##name##_f64},
    EK_STEP_RULES(STEP_BODIES)
#undef STEP_BODIES
};

int ek_host_step_list(ek_dev *dev, ek_step_rule rule, int count, ek_tensor *const *parameters,
                      ek_tensor *const *gradients, ek_tensor *const *const states[EK_STEP_STATES],
                      const ek_step_numbers *numbers)
{
    EK_TRY(ek_step_check(rule, count, parameters, states));
    for (int i = 0; i < count; i++) {
        const ek_tensor *w = parameters[i];
        step_job job = {.parameter = ek_tensor_address(w),
                        .gradient = ek_tensor_address(gradients[i]),
                        .numbers = numbers};
        for (int k = 0; k < ek_step_states(rule); k++)
            job.state[k] = ek_tensor_address(states[k][i]);
        ek_parallel_for(dev, ek_count(w), GRAIN, step_bodies[rule][w->dtype != EK_F32], &job);
    }
    return 0;
}

/* ---- norms ---- */

/* Reduces all of x to *number, rounded to f32 unless x is f64. */
static int norm_reduce(ek_dev *dev, ek_reduce_kind kind, const ek_tensor *x, double *number)
{
    ek_shape ones = {.ndim = x->ndim};
    for (int i = 0; i < x->ndim; i++)
        ones.dims[i] = 1;
    ek_tensor *out = ek_tensor_new(dev, ek_dtype_wide(x->dtype), &ones, EK_CONTIGUOUS);
    if (!out)
        return ek_error_pending();
    EK_TRY(ek_host_reduce(dev, kind, out, x));
    *number = ek_element_double(ek_tensor_address(out), out->dtype);
    return 0;
}

/* Returns a new tensor of |x|^p. */
static ek_tensor *norm_powers(ek_dev *dev, const ek_tensor *x, double p)
{
    ek_tensor *y = ek_tensor_like_dtype(x, ek_dtype_wide(x->dtype));
    const ek_unary power = ek_unary_simplest(EK_UNARY_POW, p);
    bool made = y && ek_host_copy(dev, y, x) >= 0 &&
                ek_host_unary(dev, EK_UNARY_ABS, y, y, 0, 0) >= 0 &&
                (p == 1 || ek_host_unary(dev, power, y, y, p, 0) >= 0);
    return made ? y : NULL;
}

/* Writes the power sum of one tensor. Temporary tensors are in the scope. */
static int norm_power_sum(ek_dev *dev, const ek_tensor *x, double p, double *sum)
{
    double least = 0;
    if (isinf(p)) {
        EK_TRY(norm_reduce(dev, EK_REDUCE_MAX, x, sum));
        EK_TRY(norm_reduce(dev, EK_REDUCE_MIN, x, &least));
        *sum = ek_power_join(*sum, -least, p);
        return 0;
    }
    if (p == 2)
        return norm_reduce(dev, EK_REDUCE_SUM_SQUARES, x, sum);
    const ek_tensor *powers = norm_powers(dev, x, p);
    return powers ? norm_reduce(dev, EK_REDUCE_SUM, powers, sum) : ek_error_pending();
}

int ek_host_norm_list(ek_dev *dev, ek_tensor *out, int count, ek_tensor *const *x,
                      const ek_tensor *sums, double p, double max_norm)
{
    const double *terms = sums ? ek_tensor_address(sums) : NULL;
    double total = 0, sum;
    for (int64_t i = 0; sums && i < ek_count(sums); i++)
        total = ek_power_join(total, terms[i], p);
    for (int i = 0; i < count; i++) {
        ek_scope scope = ek_scope_begin();
        int rc = norm_power_sum(dev, x[i], p, &sum);
        ek_scope_end(&scope);
        EK_TRY(rc);
        total = ek_power_join(total, sum, p);
    }
    ek_norm_of_sum(ek_tensor_address(out), total, p, max_norm);
    return 0;
}

int ek_host_scale_list(ek_dev *dev, int count, ek_tensor *const *x, const ek_tensor *factor)
{
    const double by = *(const double *)ek_tensor_address(factor);
    for (int i = 0; i < count && by != 1; i++) /* Adding -0 keeps the sign of a zero. */
        EK_TRY(ek_host_unary(dev, EK_UNARY_AFFINE, x[i], x[i], by, -0.0));
    return 0;
}

#else /* for each EK_REAL */

/* The number of states is a constant, so that loops over them are unrolled. */
#define STEP_LOOP(name, states)                                                                   \
    EK_MULTIVERSION                                                                               \
    static void EK_NAME(step_##name)(void *context, int64_t begin, int64_t end)                   \
    {                                                                                             \
        const step_job *job = context;                                                            \
        const EK_NAME(ek_step_constants) constants = EK_NAME(ek_step_constants_of)(job->numbers); \
        EK_REAL *restrict w = job->parameter, *restrict s0 = job->state[0];                       \
        EK_REAL *restrict s1 = job->state[1], *restrict s2 = job->state[2];                       \
        const EK_REAL *restrict gradient = job->gradient;                                         \
        for (int64_t i = begin; i < end; i++) {                                                   \
            EK_REAL own[EK_STEP_STATES] = {(states) > 0 ? s0[i] : 0, (states) > 1 ? s1[i] : 0,    \
                                           (states) > 2 ? s2[i] : 0};                             \
            w[i] = EK_NAME(ek_step_##name)(&constants, w[i], gradient[i], own);                   \
            if ((states) > 0)                                                                     \
                s0[i] = own[0];                                                                   \
            if ((states) > 1)                                                                     \
                s1[i] = own[1];                                                                   \
            if ((states) > 2)                                                                     \
                s2[i] = own[2];                                                                   \
        }                                                                                         \
    }
EK_STEP_RULES(STEP_LOOP)
#undef STEP_LOOP

#endif
