/* penalty_setup.h: critics, samples, and every way to put a critic on devices. */
#ifndef EK_TESTS_PENALTY_SETUP_H
#define EK_TESTS_PENALTY_SETUP_H

#include "kit/devices.h"
#include "kit/held.h"
#include "kit/tensors.h"

enum { KINDS = 5, PARAMETERS = 16 };

FIXTURE(four_devices, free_held)

/* ---- critics of (N, 2, 4, 4): outputs (N, 1), (N, 1), (N, 1, 1, 1); the same numbers each time */

static inline ek_module *smooth_critic(void)
{
    return ek_sequential(ek_flatten(1, -1), ek_linear(32, 6), ek_tanh(), ek_linear(6, 1));
}

static inline ek_module *leaky_critic(void)
{
    return ek_sequential(ek_flatten(1, -1), ek_linear(32, 6), ek_leaky_relu(0.2), ek_linear(6, 1));
}

static inline ek_module *conv_critic(void)
{
    return ek_sequential(ek_conv2d(2, 5, 4, .stride = 2, .padding = 1), ek_leaky_relu(0.2),
                         ek_conv2d(5, 1, 2));
}

typedef ek_module *make_critic(void);

static inline ek_module *seeded(make_critic *make, ek_dtype dtype)
{
    ek_manual_seed(21);
    ek_module *critic = make();
    assert_made(critic);
    assert_ok(ek_module_to_dtype(critic, dtype));
    return critic;
}

static inline ek_shape sample_shape(int n)
{
    return EK_SHAPE(n, 2, 4, 4);
}

/* ---- ways ---- */

typedef enum way {
    PLAIN, /* on host:0, without a wrapper */
    CLASSIC,
    CLASSIC_TO_LAST, /* outputs meet on the last device */
    CLASSIC_TO_CPU,
    BALANCED,
    BALANCED_EVEN, /* split evenly */
    CLASSIC_IDLE,  /* the first of several devices gets no samples */
    BALANCED_IDLE,
    BALANCED_PLAIN,
    BALANCED_EVALUATION,
    WAYS
} way;

/* The critic on the first `devices` of host; owned by the result. */
static inline ek_module *on_devices(ek_module *critic, way how, int devices)
{
    ek_device_list list = ek_devices(test_kind(), devices);
    ek_module *module = critic;
    if (how == PLAIN)
        assert_ok(ek_module_to_device(critic, test_device(0)));
    else if (how == CLASSIC)
        module = ek_data_parallel(critic, list);
    else if (how == CLASSIC_TO_LAST)
        module = ek_data_parallel(critic, list, .output_device = test_device(devices - 1));
    else if (how == CLASSIC_TO_CPU)
        module = ek_data_parallel(critic, list, .output_on_cpu = true);
    else if (how == CLASSIC_IDLE)
        module = ek_data_parallel(critic, list, .first_device_batch = 0);
    else if (how == BALANCED_IDLE)
        module = ek_data_parallel_model(critic, list, .first_device_batch = 0);
    else
        module =
            ek_data_parallel_model(critic, list,
                                   .split = how == BALANCED_EVEN ? EK_SPLIT_EVEN : EK_SPLIT_CHUNK,
                                   .plain = how == BALANCED_PLAIN);
    assert_made(module);
    if (how == BALANCED_EVALUATION)
        ek_module_train(module, false);
    return module;
}

/* Where the penalty is to lie. */
static inline ek_device home_of(way how, int devices)
{
    if (how == CLASSIC_TO_CPU)
        return ek_cpu();
    return test_device(how == CLASSIC_TO_LAST ? devices - 1 : 0);
}

/* ---- results ---- */

/* The penalty, and the parameters' gradients on cpu (NULL if there is none). */
typedef struct outcome {
    ek_tensor *value;
    ek_tensor *gradients[PARAMETERS];
    int count;
    uint32_t next; /* what the generator gives afterwards */
} outcome;

static inline int note_gradient(const char *path, ek_tensor *parameter, void *user)
{
    outcome *o = (outcome *)user;
    ck_assert_int_lt(o->count, PARAMETERS);
    ek_tensor *gradient = ek_tensor_grad(parameter);
    o->gradients[o->count++] = gradient ? ek_clone(ek_to_device(gradient, ek_cpu())) : NULL;
    return 0;
}

/* One penalty and its backward; numbers are drawn from a generator of `seed`. */
static inline outcome run(ek_module *critic, ek_tensor *real, ek_tensor *fake, ek_penalty_kind kind,
                          uint64_t seed)
{
    outcome o = {0};
    ek_generator *generator = ek_generator_new(seed);
    ek_module_zero_grad(critic);
    o.value = ek_gradient_penalty(critic, real, fake, .kind = kind, .generator = generator);
    assert_made(o.value);
    ck_assert_int_eq(ek_tensor_ndim(o.value), 0);
    o.next = ek_random_u32(generator);
    ek_generator_free(generator);
    assert_ok(ek_backward(o.value));
    assert_ok(ek_module_parameters(critic, note_gradient, &o));
    return o;
}

static inline void assert_same_outcome(const outcome *a, const outcome *b, double relative)
{
    assert_close(ek_to_device(a->value, ek_cpu()), ek_to_device(b->value, ek_cpu()), relative, 0);
    ck_assert_uint_eq(a->next, b->next);
    ck_assert_int_eq(a->count, b->count);
    for (int i = 0; i < a->count; i++) {
        ck_assert_msg(!a->gradients[i] == !b->gradients[i], "gradient of parameter %d", i);
        if (a->gradients[i])
            assert_close_norm(a->gradients[i], b->gradients[i], relative);
    }
}

#endif
