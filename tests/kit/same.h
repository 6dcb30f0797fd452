/* same.h: one training in two ways: with a whole optimizer, and with a sharded one, whose shards
 * lie on the devices or on cpu. The results must be equal to the bit. A test is a setting (who owns
 * the shards, which module, how gradients are made) and a body, which trains the setting's pair of
 * models:
 *
 *     same_check(&(same_setting){.devices = 3, .algorithm = ADAM}, 0, same_trains);
 *     same_check(&(same_setting){.ranks = 2, .cap = 0.001}, seed, same_trains);
 *
 * Bodies run on threads of ranks, where Check must not be used: a body returns NULL or what
 * failed. */
#ifndef EK_TESTS_KIT_SAME_H
#define EK_TESTS_KIT_SAME_H

#include "core/tensor.h"
#include "kit/optimizers.h"
#include "kit/ranks.h"

enum { IN = 6, OUT = 3, MOST = 16 };

typedef enum same_net {
    TERMS,    /* y = main(x) + side(x); the bias of `side` is frozen */
    PICTURES, /* convolutions with batch normalisation; some targets are ignored */
    CRITIC,   /* its loss is a penalty on its gradient, whose backward is of second order */
    TIED      /* two layers have one weight, and a layer was replaced */
} same_net;

/* How the gradients of a step are made. */
typedef enum same_coming {
    ONCE,
    TWICE,          /* two backwards, without ek_zero_grad between */
    UNUSED,         /* in every other step a term is not used */
    HISTORY,        /* with create_graph */
    GIVEN,          /* set by hand, in place of those of backward */
    KEPT,           /* added to those of the steps before */
    CUT,            /* ek_clip_grad_value */
    NOWHERE,        /* in every other step there are no gradients */
    ANYWHERE,       /* no value: those above are for ranks and for devices */
    ONE_GRAPH,      /* one backward of two forwards */
    EACH_ITSELF,    /* each set by hand, of 1 or 2 backwards, of some shards only, or none */
    FROZEN,         /* some parameters are frozen, in some of the steps */
    THAWED,         /* the frozen parameter requires a gradient from the second step on */
    CONVERTED,      /* the modules are converted to f64 and back, and are moved */
    ON_DEVICES,     /* no value: those above are for devices without ranks */
    AFTER_NO_SYNC,  /* two backwards of each rank alone, then one of all ranks */
    NO_SYNC_AMIDST, /* a backward of all ranks, one of each rank alone, one of all */
    UNEVEN,         /* ranks have 1, 2, 3 samples */
    EMPTY,          /* rank 1 has no samples */
    HALF_UNUSED,    /* a term is not used on the last rank */
    COMINGS
} same_coming;

#define ALGORITHM_LIST(X)                                                                       \
    X(plain, "plain", 0, ek_sgd(module, .lr = 0.1, .weight_decay = 0.05))                       \
    X(momentum, "momentum", 1, ek_sgd(module, .lr = 0.1, .momentum = 0.9))                      \
    X(dampening, "dampening", 1, ek_sgd(module, .lr = 0.1, .momentum = 0.9, .dampening = 0.3))  \
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
enum { PLAIN, MOMENTUM, ADAM = 4, NO_EPS, AMSGRAD, ADAMW, ALGORITHMS = 16 };

typedef struct same_setting {
    int ranks;     /* 0: one process */
    int devices;   /* per rank; 0: cpu */
    bool balanced; /* without ranks: the balanced model and criterion, not the classic wrapper */
    ek_shard_policy policy; /* EK_SHARD_NONE: all in turn, with and without offloading; with ranks
                             EK_SHARD_OPTIMIZER */
    ek_offload_policy offload;
    bool stays; /* never offloaded, because the body looks at the devices' memory */
    same_net net;
    int inputs, hidden; /* of TERMS; 0: IN and 40 */
    ek_dtype dtype;
    int algorithm;
    bool groups;   /* the first parameter has a separate learning rate */
    int64_t batch; /* samples of a rank in a step; 0: 3 */
    const char *plan;
    double cap;  /* MiB of a bucket; 0: 25 */
    bool narrow; /* bf16_gradients */
    bool spans;  /* over two devices: each term is on one of them */
    same_coming how;
    int steps;   /* 0: 3 */
    int variant; /* for the body */
} same_setting;

enum { WHOLE, SHARDED, WAYS };

/* y = main(x) + side(x). */
typedef struct two_terms {
    ek_module module;
    ek_module *main, *side;
    bool alone; /* without the second term, whose parameters then get no gradient */
    bool fails;
} two_terms;

typedef struct same_pair {
    same_setting setting;
    ek_process_group *group; /* NULL: one process */
    ek_module *nets[WAYS];   /* a reference each */
    ek_module *models[WAYS]; /* the wrappers; NULL: the modules are used themselves */
    bool had_wrapper[WAYS];
    ek_module *criteria[WAYS];
    ek_optimizer *optimizers[WAYS];
    double losses[WAYS]; /* of the last backward */
} same_pair;

typedef const char *same_body(same_pair *pair);

/* Runs the body with a new pair: on the test's thread, or on ranks that are threads. */
void same_check(const same_setting *setting, uint64_t seed, same_body *body);

/* Defines tests, one for each seed `_i`, whose body gets a new `pair` of the setting. */
#define SAME_TEST(name, ...) SAME_LOOP(name, 0, 1, __VA_ARGS__)
#define SAME_LOOP(name, first, end, ...)                    \
    static same_body name##_of_pair;                        \
    TEST_LOOP(name, first, end)                             \
    {                                                       \
        const same_setting setting = {__VA_ARGS__};         \
        same_check(&setting, (uint64_t)_i, name##_of_pair); \
    }                                                       \
    static const char *name##_of_pair(same_pair *pair)

/* The body that trains both ways for `steps` steps and compares them after each. */
const char *same_trains(same_pair *pair);

/* Makes a pair, for a body that needs a second one. */
const char *same_make(same_pair *pair, ek_process_group *group, const same_setting *setting);
void same_free(same_pair *pair);

/* Puts the module of a way into the wrapper that the setting names, or takes it out. */
int same_wrap(same_pair *pair, int way);
void same_unwrap(same_pair *pair, int way);
ek_module *same_net_new(const same_setting *setting);
ek_optimizer *same_optimizer_new(const same_pair *pair, int way);
ek_device_list same_devices(const same_pair *pair);

/* A batch of TERMS: the same numbers each time. */
ek_tensor *same_rows(int64_t rows, int64_t columns, ek_dtype dtype, int64_t from);
/* Returns the loss of the samples that begin at `from` + 100 * rank. */
ek_tensor *same_loss(const same_pair *pair, int way, int64_t rows, int64_t from);
/* Runs backward of the loss, and notes its value in `losses`. */
int same_backward(same_pair *pair, int way, int64_t from);
/* Makes the gradients of a step as the setting says. */
int same_come(same_pair *pair, int way, int step);
/* ek_zero_grad, backward and step: of one way, or of both ways, which are then compared. */
int same_step(same_pair *pair, int way, int step);
const char *same_steps(same_pair *pair, int step);
/* Steps with gradients that are made from the parameters, equal on all ranks. */
int same_step_alike(same_pair *pair, int way, int step);

typedef struct tensor_list {
    ek_tensor *tensors[MOST];
    int count;
} tensor_list;

tensor_list parameters_of(ek_module *module);
tensor_list same_parameters(const same_pair *pair, int way);
bool same_bits(ek_tensor *a, ek_tensor *b);
/* Checks that parameters, gradients, buffers, states, step counts and losses are equal. */
const char *same_compare(const same_pair *pair, const char *when);

#endif
