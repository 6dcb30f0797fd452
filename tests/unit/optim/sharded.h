/* sharded.h: the same training twice: with whole parameters, and with sharded ones. */
#ifndef EK_TESTS_SHARDED_H
#define EK_TESTS_SHARDED_H

#include "kit/optimizers.h"
#include "shard_setup.h"

#define CASE_LIST(X)                                                                            \
    X(plain, "plain", 0, ek_sgd(module, .lr = 0.1, .weight_decay = 0.05))                       \
    X(momentum, "momentum", 1, ek_sgd(module, .lr = 0.1, .momentum = 0.9, .dampening = 0.3))    \
    X(nesterov, "nesterov", 1, ek_sgd(module, .lr = 0.1, .momentum = 0.8, .nesterov = true))    \
    X(adam, "adam", 2, ek_adam(module, .lr = 0.01, .weight_decay = 0.1))                        \
    X(no_eps, "no eps", 2, ek_adam(module, .lr = 0.01, .eps = 0))                               \
    X(amsgrad, "amsgrad", 3, ek_adam(module, .lr = 0.01, .amsgrad = true))                      \
    X(adamw, "adamw", 2, ek_adamw(module, .lr = 0.01))                                          \
    X(adamax, "adamax", 2, ek_adamax(module, .lr = 0.01))                                       \
    X(nadam, "nadam", 2, ek_nadam(module, .lr = 0.01))                                          \
    X(radam, "radam", 2, ek_radam(module, .lr = 0.01, .beta2 = 0.9))                            \
    X(rmsprop, "rmsprop", 3, ek_rmsprop(module, .lr = 0.01, .centered = true, .momentum = 0.9)) \
    X(adagrad, "adagrad", 1,                                                                    \
      ek_adagrad(module, .initial_accumulator_value = 0.1, .lr_decay = 0.1))                    \
    X(adadelta, "adadelta", 2, ek_adadelta(module, .rho = 0.8))                                 \
    X(rprop, "rprop", 2, ek_rprop(module, .lr = 0.01))                                          \
    X(asgd, "asgd", 1, ek_asgd(module, .lr = 0.1, .lambd = 0.1, .t0 = 1))
CASE_LIST(OPTIMIZER_MAKER)
static const optimizer_row cases[] = {CASE_LIST(OPTIMIZER_ROW)};
enum { CASES = sizeof cases / sizeof *cases, ADAM = 3, NO_EPS = 4, AMSGRAD = 5 };

/* How the sharded parameter gets it: as a whole, in its shards' slots, half there and half through
 * the parameter itself, or in some of the shards only (the rest is zeros). */
typedef enum arrival { AS_A_WHOLE, IN_PIECES, BOTH_WAYS, IN_SOME_PIECES, ARRIVALS } arrival;
static int arrivals = ARRIVALS; /* that are in use */

/* Two groups with rates of their own. */
static inline ek_optimizer *make(int i, ek_tensor **p)
{
    /* Without eps a zero gradient of a zero moment gives no number. */
    arrivals = i == NO_EPS ? IN_SOME_PIECES : ARRIVALS;
    ek_optimizer *optimizer = cases[i].make(NULL);
    assert_made(optimizer);
    assert_ok(ek_optimizer_add_group(optimizer, p, 3));
    assert_ok(add_group_with(optimizer, p + 3, PARAMETERS - 3, "lr", 0.02));
    return optimizer;
}

/* ---- gradients ---- */

static inline ek_tensor *random_gradient(ek_tensor *p)
{
    ek_tensor *gradient = ek_tensor_like(p);
    ek_tensor *drawn = ek_randn(ek_tensor_shape(p), .dtype = ek_tensor_dtype(p));
    assert_made(gradient);
    assert_made(ek_copy_(gradient, drawn));
    return gradient;
}

static inline void give_to_shards(ek_tensor *q, ek_tensor *gradient, bool some)
{
    for (int k = 0; k < ek_leaf_shard_count(q); k++) {
        const ek_shard own = ek_leaf_shard(q, k), *shard = &own;
        if (some && k % 2 == 1) {
            assert_ok(
                ek_dev_zero(ek_tensor_dev(gradient), address_of(gradient, shard->begin),
                            (size_t)(shard->end - shard->begin) * ek_dtype_size(gradient->dtype)));
            continue;
        }
        ek_tensor *slot = shard->tensor->grad_buffer;
        assert_ok(ek_dev_copy(ek_tensor_dev(slot), ek_tensor_address(slot), ek_tensor_dev(gradient),
                              address_of(gradient, shard->begin),
                              (size_t)(shard->end - shard->begin) * ek_dtype_size(slot->dtype)));
        assert_ok(ek_tensor_set_grad(shard->tensor, slot));
    }
}

static inline void add_through(ek_tensor *p, ek_tensor *gradient)
{
    assert_ok(ek_backward(ek_sum(ek_mul(p, gradient))));
}

static inline void give(ek_tensor *p, ek_tensor *q, arrival how)
{
    ek_tensor *gradient = random_gradient(p);
    if (!ek_leaf_shards(q))
        how = AS_A_WHOLE;
    if (how == AS_A_WHOLE)
        assert_ok(ek_tensor_set_grad(q, gradient));
    else
        give_to_shards(q, gradient, how == IN_SOME_PIECES);
    assert_ok(ek_tensor_set_grad(p, ek_clone(gradient)));
    if (how != BOTH_WAYS)
        return;
    ek_tensor *more = random_gradient(p);
    add_through(p, more);
    add_through(q, more);
}

/* A bit of `absent` leaves a parameter out. */
static inline void give_all(ek_tensor **p, ek_tensor **q, unsigned absent, int how)
{
    for (int i = 0; i < PARAMETERS; i++) {
        ek_tensor_set_grad(p[i], NULL);
        ek_tensor_set_grad(q[i], NULL);
        if (!(absent >> i & 1))
            give(p[i], q[i], (arrival)((how + i) % arrivals));
    }
}

static inline void step_both(ek_optimizer *whole, ek_optimizer *sharded)
{
    assert_ok(settled(ek_step(whole)));
    assert_ok(settled(ek_step(sharded)));
}

/* The last parameter is frozen throughout. */
static const unsigned absent[] = {0x80, 0x81, 0x86, 0x80, 0xf8, 0x80};
enum { STEPS = sizeof absent / sizeof *absent };

/* Every test has four devices, seeded numbers and a scope of its own. */
static ek_scope test_scope;

static inline void begin_test(void)
{
    test_scope = ek_scope_begin();
    ek_manual_seed(12);
    assert_ok(test_devices_configure("4"));
}

static inline void end_test(void)
{
    ek_scope_end(&test_scope);
    assert_ok(ek_shutdown());
}

FIXTURE(begin_test, end_test)

#endif
