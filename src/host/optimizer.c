/* optimizer.c: optimizer steps, one pass over memory. */
#ifndef EK_REAL
#include "host/host.h"
#include "host/parallel.h"
#include "kernels/steps.h"

enum { GRAIN = 8192, STATES = 3 };

/* One parameter's step. */
typedef struct step_job {
    void *parameter;
    const void *gradient;
    void *state[STATES]; /* NULL if the options don't need it */
    const void *params;
} step_job;

#define EK_FOR_REALS "host/optimizer.c"
#include "kernels/for_reals.h"

static int optimizer_check_dtypes(const char *name, int count, ek_tensor *const *parameters)
{
    for (int i = 0; i < count; i++)
        if (parameters[i]->dtype != EK_F32 && parameters[i]->dtype != EK_F64)
            return EK_FAIL(EK_E_DTYPE, "%s steps parameters of f32 or f64, not %s", name,
                           ek_dtype_name(parameters[i]->dtype));
    return 0;
}

/* Steps `count` parameters. State k of parameter i is states[k][i]; states[k] may be NULL. */
static int optimizer_step_list(ek_dev *dev, int count, ek_tensor *const *parameters,
                               ek_tensor *const *gradients, ek_tensor *const *const states[STATES],
                               const void *params, ek_parallel_body *f32, ek_parallel_body *f64)
{
    for (int i = 0; i < count; i++) {
        const ek_tensor *w = parameters[i];
        step_job job = {.parameter = ek_tensor_address(w),
                        .gradient = ek_tensor_address(gradients[i]),
                        .params = params};
        for (int k = 0; k < STATES; k++)
            if (states[k] && states[k][i])
                job.state[k] = ek_tensor_address(states[k][i]);
        ek_parallel_for(dev, ek_count(w), GRAIN, w->dtype == EK_F32 ? f32 : f64, &job);
    }
    return 0;
}

int ek_host_sgd_step_list(ek_dev *dev, int count, ek_tensor *const *parameters,
                          ek_tensor *const *gradients, ek_tensor *const *momentum_buffers,
                          const ek_sgd_params *params)
{
    EK_TRY(optimizer_check_dtypes("SGD", count, parameters));
    for (int i = 0; i < count; i++)
        if (params->momentum != 0 && !(momentum_buffers && momentum_buffers[i]))
            return EK_FAIL(EK_E_INVALID, "SGD with momentum %g needs a momentum buffer",
                           params->momentum);
    return optimizer_step_list(dev, count, parameters, gradients,
                               (ek_tensor *const *const[STATES]){momentum_buffers}, params,
                               optimizer_sgd_steps_f32, optimizer_sgd_steps_f64);
}

int ek_host_adam_step_list(ek_dev *dev, int count, ek_tensor *const *parameters,
                           ek_tensor *const *gradients, ek_tensor *const *exp_avgs,
                           ek_tensor *const *exp_avg_sqs, ek_tensor *const *max_exp_avg_sqs,
                           const ek_adam_params *params)
{
    EK_TRY(optimizer_check_dtypes("Adam", count, parameters));
    if (count > 0 && params->step < 1)
        return EK_FAIL(EK_E_INVALID, "Adam's first step has number 1, not %lld",
                       (long long)params->step);
    return optimizer_step_list(dev, count, parameters, gradients,
                               (ek_tensor *const *const[STATES]){exp_avgs, exp_avg_sqs,
                                                                 max_exp_avg_sqs},
                               params, optimizer_adam_steps_f32, optimizer_adam_steps_f64);
}

#else /* for each EK_REAL */

#define SGD_LOOP(kind)                    \
    for (int64_t i = begin; i < end; i++) \
        w[i] = EK_NAME(ek_sgd)(kind, constants, w[i], gradient[i], &buffer[i]);

EK_MULTIVERSION
static void EK_NAME(optimizer_sgd_steps)(void *context, int64_t begin, int64_t end)
{
    const step_job *job = context;
    const EK_NAME(ek_sgd_constants) constants = EK_NAME(ek_sgd_constants_of)(job->params);
    EK_REAL *restrict w = job->parameter, *restrict buffer = job->state[0];
    const EK_REAL *restrict gradient = job->gradient;
    switch (ek_sgd_kind_of(job->params)) {
    case EK_SGD_FIRST:
        SGD_LOOP(EK_SGD_FIRST)
        break;
    case EK_SGD_NESTEROV:
        SGD_LOOP(EK_SGD_NESTEROV)
        break;
    case EK_SGD_HEAVY:
        SGD_LOOP(EK_SGD_HEAVY)
        break;
    default:
        for (int64_t i = begin; i < end; i++)
            w[i] = EK_NAME(ek_sgd)(EK_SGD_PLAIN, constants, w[i], gradient[i], NULL);
    }
}
#undef SGD_LOOP

EK_MULTIVERSION
static void EK_NAME(optimizer_adam_steps)(void *context, int64_t begin, int64_t end)
{
    const step_job *job = context;
    const EK_NAME(ek_adam_constants) constants = EK_NAME(ek_adam_constants_of)(job->params);
    EK_REAL *restrict w = job->parameter, *restrict m = job->state[0], *restrict v = job->state[1];
    EK_REAL *restrict largest = job->state[2];
    const EK_REAL *restrict gradient = job->gradient;
    if (largest)
        for (int64_t i = begin; i < end; i++)
            w[i] = EK_NAME(ek_adam)(constants, w[i], gradient[i], &m[i], &v[i], &largest[i]);
    else
        for (int64_t i = begin; i < end; i++)
            w[i] = EK_NAME(ek_adam)(constants, w[i], gradient[i], &m[i], &v[i], NULL);
}

#endif
