/* optimizer.c: optimizer steps, one pass over memory. */
#ifndef EK_REAL
#include "host/host.h"
#include "host/parallel.h"
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
