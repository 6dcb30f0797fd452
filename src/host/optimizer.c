/* Optimizer steps, one pass over memory. Order of operations as in PyTorch 1.13's single-tensor
 * path; scalars that it keeps in double are computed in double and rounded once. */
#include <math.h>

#include "host/host.h"
#include "host/parallel.h"
#include "host/tile.h"

enum { GRAIN = 8192 };

/* ---- SGD ---- */

typedef struct sgd_job {
    void *parameter, *momentum_buffer;
    const void *gradient;
    const ek_sgd_params *params;
} sgd_job;

#define SGD_LOOPS(real)                                                           \
    do {                                                                          \
        const ek_sgd_params *p = job->params;                                     \
        const real lr = (real)p->lr, decay = (real)p->weight_decay;               \
        const real momentum = (real)p->momentum, kept = (real)(1 - p->dampening); \
        const real sign = p->maximize ? -1 : 1;                                   \
        real *restrict w = (real *)job->parameter;                                \
        real *restrict buffer = (real *)job->momentum_buffer;                     \
        const real *restrict gradient = (const real *)job->gradient;              \
        if (p->momentum == 0) {                                                   \
            for (int64_t i = begin; i < end; i++) {                               \
                real g = sign * gradient[i] + decay * w[i];                       \
                w[i] = w[i] - lr * g;                                             \
            }                                                                     \
        } else if (p->first) {                                                    \
            const real own = p->nesterov ? momentum : 0;                          \
            for (int64_t i = begin; i < end; i++) {                               \
                real g = sign * gradient[i] + decay * w[i];                       \
                buffer[i] = g;                                                    \
                w[i] = w[i] - lr * (g + own * g);                                 \
            }                                                                     \
        } else if (p->nesterov) {                                                 \
            for (int64_t i = begin; i < end; i++) {                               \
                real g = sign * gradient[i] + decay * w[i];                       \
                real v = momentum * buffer[i] + kept * g;                         \
                buffer[i] = v;                                                    \
                w[i] = w[i] - lr * (g + momentum * v);                            \
            }                                                                     \
        } else {                                                                  \
            for (int64_t i = begin; i < end; i++) {                               \
                real g = sign * gradient[i] + decay * w[i];                       \
                real v = momentum * buffer[i] + kept * g;                         \
                buffer[i] = v;                                                    \
                w[i] = w[i] - lr * v;                                             \
            }                                                                     \
        }                                                                         \
    } while (0)

EK_MULTIVERSION
static void sgd_f32(const sgd_job *job, int64_t begin, int64_t end)
{
    SGD_LOOPS(float);
}

EK_MULTIVERSION
static void sgd_f64(const sgd_job *job, int64_t begin, int64_t end)
{
    SGD_LOOPS(double);
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

int ek_host_sgd_step(ek_dev *dev, ek_tensor *parameter, const ek_tensor *gradient,
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

/* ---- Adam ---- */

typedef struct adam_job {
    void *parameter, *exp_avg, *exp_avg_sq, *max_exp_avg_sq;
    const void *gradient;
    const ek_adam_params *params;
    double step_size, root_correction;
} adam_job;

/* exp_avg as PyTorch 1.13 has it: multiplied, then added to. */
#define ADAM_LOOPS(real, root)                                                           \
    do {                                                                                 \
        const ek_adam_params *p = job->params;                                           \
        const real beta1 = (real)p->beta1, beta2 = (real)p->beta2, eps = (real)p->eps;   \
        const real rest1 = (real)(1 - p->beta1), rest2 = (real)(1 - p->beta2);           \
        const real step = (real)job->step_size, correction = (real)job->root_correction; \
        const real shrink = p->decoupled ? (real)(1 - p->lr * p->weight_decay) : 1;      \
        const real decay = p->decoupled ? 0 : (real)p->weight_decay;                     \
        const real sign = p->maximize ? -1 : 1;                                          \
        real *restrict w = (real *)job->parameter;                                       \
        real *restrict m = (real *)job->exp_avg;                                         \
        real *restrict v = (real *)job->exp_avg_sq;                                      \
        real *restrict largest = (real *)job->max_exp_avg_sq;                            \
        const real *restrict gradient = (const real *)job->gradient;                     \
        if (largest == NULL) {                                                           \
            for (int64_t i = begin; i < end; i++) {                                      \
                real u = shrink * w[i];                                                  \
                real g = sign * gradient[i] + decay * u;                                 \
                m[i] = m[i] * beta1 + rest1 * g;                                         \
                v[i] = v[i] * beta2 + rest2 * g * g;                                     \
                w[i] = u - step * m[i] / (root(v[i]) / correction + eps);                \
            }                                                                            \
        } else {                                                                         \
            for (int64_t i = begin; i < end; i++) {                                      \
                real u = shrink * w[i];                                                  \
                real g = sign * gradient[i] + decay * u;                                 \
                m[i] = m[i] * beta1 + rest1 * g;                                         \
                v[i] = v[i] * beta2 + rest2 * g * g;                                     \
                largest[i] = ((v[i] > largest[i]) | (v[i] != v[i])) ? v[i] : largest[i]; \
                w[i] = u - step * m[i] / (root(largest[i]) / correction + eps);          \
            }                                                                            \
        }                                                                                \
    } while (0)

EK_MULTIVERSION
static void adam_f32(const adam_job *job, int64_t begin, int64_t end)
{
    ADAM_LOOPS(float, sqrtf);
}

EK_MULTIVERSION
static void adam_f64(const adam_job *job, int64_t begin, int64_t end)
{
    ADAM_LOOPS(double, sqrt);
}

static void adam_part_f32(void *context, int64_t begin, int64_t end)
{
    adam_f32(context, begin, end);
}

static void adam_part_f64(void *context, int64_t begin, int64_t end)
{
    adam_f64(context, begin, end);
}

int ek_host_adam_step(ek_dev *dev, ek_tensor *parameter, const ek_tensor *gradient,
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
                    .params = params,
                    .step_size = params->lr / (1 - pow(params->beta1, (double)params->step)),
                    .root_correction = sqrt(1 - pow(params->beta2, (double)params->step))};
    ek_parallel_for(dev, ek_count(parameter), GRAIN,
                    parameter->dtype == EK_F32 ? adam_part_f32 : adam_part_f64, &job);
    return 0;
}
