/* optimizer.c: optimizer steps, one pass over memory. */
#include "host/host.h"
#include "host/parallel.h"
#include "host/tile.h"
#include "kernels/steps.h"

enum { GRAIN = 8192 };

/* ---- SGD ---- */

typedef struct sgd_job {
    void *parameter, *momentum_buffer;
    const void *gradient;
    const ek_sgd_params *params;
} sgd_job;

#define SGD_LOOP(suffix, kind)                                                  \
    for (int64_t i = begin; i < end; i++)                                       \
        w[i] = ek_sgd_##suffix(kind, constants, w[i], gradient[i], &buffer[i]); \
    break;

#define SGD_LOOPS(real, suffix)                                                                \
    do {                                                                                       \
        const ek_sgd_constants_##suffix constants = ek_sgd_constants_of_##suffix(job->params); \
        real *restrict w = (real *)job->parameter;                                             \
        real *restrict buffer = (real *)job->momentum_buffer;                                  \
        const real *restrict gradient = (const real *)job->gradient;                           \
        switch (ek_sgd_kind_of(job->params)) {                                                 \
        case EK_SGD_FIRST:                                                                     \
            SGD_LOOP(suffix, EK_SGD_FIRST)                                                     \
        case EK_SGD_NESTEROV:                                                                  \
            SGD_LOOP(suffix, EK_SGD_NESTEROV)                                                  \
        case EK_SGD_HEAVY:                                                                     \
            SGD_LOOP(suffix, EK_SGD_HEAVY)                                                     \
        default:                                                                               \
            for (int64_t i = begin; i < end; i++)                                              \
                w[i] = ek_sgd_##suffix(EK_SGD_PLAIN, constants, w[i], gradient[i], NULL);      \
        }                                                                                      \
    } while (0)

EK_MULTIVERSION
static void sgd_f32(const sgd_job *job, int64_t begin, int64_t end)
{
    SGD_LOOPS(float, f32);
}

EK_MULTIVERSION
static void sgd_f64(const sgd_job *job, int64_t begin, int64_t end)
{
    SGD_LOOPS(double, f64);
}

static void sgd_part_f32(void *context, int64_t begin, int64_t end)
{
    sgd_f32(context, begin, end);
}

static void sgd_part_f64(void *context, int64_t begin, int64_t end)
{
    sgd_f64(context, begin, end);
}

static int check_dtype(const ek_tensor *parameter, const char *name)
{
    if (parameter->dtype == EK_F32 || parameter->dtype == EK_F64)
        return 0;
    return EK_FAIL(EK_E_DTYPE, "%s steps parameters of f32 or f64, not %s", name,
                   ek_dtype_name(parameter->dtype));
}

static int sgd_step(ek_dev *dev, ek_tensor *parameter, const ek_tensor *gradient,
                    ek_tensor *momentum_buffer, const ek_sgd_params *params)
{
    EK_TRY(check_dtype(parameter, "SGD"));
    if (params->momentum != 0 && momentum_buffer == NULL)
        return EK_FAIL(EK_E_INVALID, "SGD with momentum %g needs a momentum buffer",
                       params->momentum);
    sgd_job job = {.parameter = ek_tensor_address(parameter),
                   .momentum_buffer =
                       momentum_buffer != NULL ? ek_tensor_address(momentum_buffer) : NULL,
                   .gradient = ek_tensor_address(gradient),
                   .params = params};
    ek_parallel_for(dev, ek_count(parameter), GRAIN,
                    parameter->dtype == EK_F32 ? sgd_part_f32 : sgd_part_f64, &job);
    return 0;
}

int ek_host_sgd_step_list(ek_dev *dev, int count, ek_tensor *const *parameters,
                          ek_tensor *const *gradients, ek_tensor *const *momentum_buffers,
                          const ek_sgd_params *params)
{
    for (int i = 0; i < count; i++)
        EK_TRY(sgd_step(dev, parameters[i], gradients[i],
                        momentum_buffers ? momentum_buffers[i] : NULL, params));
    return 0;
}

/* ---- Adam ---- */

typedef struct adam_job {
    void *parameter, *exp_avg, *exp_avg_sq, *max_exp_avg_sq;
    const void *gradient;
    const ek_adam_params *params;
} adam_job;

#define ADAM_LOOPS(real, suffix)                                                                  \
    do {                                                                                          \
        const ek_adam_constants_##suffix constants = ek_adam_constants_of_##suffix(job->params);  \
        real *restrict w = (real *)job->parameter;                                                \
        real *restrict m = (real *)job->exp_avg;                                                  \
        real *restrict v = (real *)job->exp_avg_sq;                                               \
        real *restrict largest = (real *)job->max_exp_avg_sq;                                     \
        const real *restrict gradient = (const real *)job->gradient;                              \
        if (largest == NULL) {                                                                    \
            for (int64_t i = begin; i < end; i++)                                                 \
                w[i] = ek_adam_##suffix(constants, w[i], gradient[i], &m[i], &v[i], NULL);        \
        } else {                                                                                  \
            for (int64_t i = begin; i < end; i++)                                                 \
                w[i] = ek_adam_##suffix(constants, w[i], gradient[i], &m[i], &v[i], &largest[i]); \
        }                                                                                         \
    } while (0)

EK_MULTIVERSION
static void adam_f32(const adam_job *job, int64_t begin, int64_t end)
{
    ADAM_LOOPS(float, f32);
}

EK_MULTIVERSION
static void adam_f64(const adam_job *job, int64_t begin, int64_t end)
{
    ADAM_LOOPS(double, f64);
}

static void adam_part_f32(void *context, int64_t begin, int64_t end)
{
    adam_f32(context, begin, end);
}

static void adam_part_f64(void *context, int64_t begin, int64_t end)
{
    adam_f64(context, begin, end);
}

static int adam_step(ek_dev *dev, ek_tensor *parameter, const ek_tensor *gradient,
                     ek_tensor *exp_avg, ek_tensor *exp_avg_sq, ek_tensor *max_exp_avg_sq,
                     const ek_adam_params *params)
{
    EK_TRY(check_dtype(parameter, "Adam"));
    if (params->step < 1)
        return EK_FAIL(EK_E_INVALID, "Adam's first step has number 1, not %lld",
                       (long long)params->step);
    adam_job job = {.parameter = ek_tensor_address(parameter),
                    .exp_avg = ek_tensor_address(exp_avg),
                    .exp_avg_sq = ek_tensor_address(exp_avg_sq),
                    .max_exp_avg_sq =
                        max_exp_avg_sq != NULL ? ek_tensor_address(max_exp_avg_sq) : NULL,
                    .gradient = ek_tensor_address(gradient),
                    .params = params};
    ek_parallel_for(dev, ek_count(parameter), GRAIN,
                    parameter->dtype == EK_F32 ? adam_part_f32 : adam_part_f64, &job);
    return 0;
}

int ek_host_adam_step_list(ek_dev *dev, int count, ek_tensor *const *parameters,
                           ek_tensor *const *gradients, ek_tensor *const *exp_avgs,
                           ek_tensor *const *exp_avg_sqs, ek_tensor *const *max_exp_avg_sqs,
                           const ek_adam_params *params)
{
    for (int i = 0; i < count; i++)
        EK_TRY(adam_step(dev, parameters[i], gradients[i], exp_avgs[i], exp_avg_sqs[i],
                         max_exp_avg_sqs ? max_exp_avg_sqs[i] : NULL, params));
    return 0;
}
