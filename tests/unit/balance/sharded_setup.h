/* sharded_setup.h: the same training with whole and with sharded state. */
#ifndef EK_TESTS_SHARDED_SETUP_H
#define EK_TESTS_SHARDED_SETUP_H

#include <stdlib.h>
#include <string.h>

#include "kit/devices.h"
#include "kit/segmentation.h"

enum { DEVICES = 4, MOST_STEPS = 24 };

FIXTURE(four_devices, shut_down)

typedef enum algorithm { SGD, ADAM } algorithm;

typedef struct job {
    train_mode mode; /* CLASSIC or BALANCED */
    int mlp;         /* its width, in place of convolutions and batch norm */
    ek_dtype dtype;
    algorithm algorithm;
    int devices;
    int64_t batch;
    bool shard;
    const char *plan;
} job;

/* Logits of a quarter of the rows and columns from all pixels. */
typedef struct mlp {
    ek_module module;
    ek_module *hidden, *last;
} mlp;

static ek_value mlp_forward(ek_module *module, const ek_args *args)
{
    mlp *self = (mlp *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    x = ek_reshape(x, EK_SHAPE(ek_tensor_size(x, 0), PIXELS * PIXELS));
    x = ek_apply(self->last, ek_f_tanh(ek_apply(self->hidden, x)));
    return ek_value_of_tensor(
        ek_reshape(x, EK_SHAPE(ek_tensor_size(x, 0), CLASSES, PIXELS / 4, PIXELS / 4)));
}

static const ek_module_type mlp_type = {.name = "mlp", .size = sizeof(mlp), .forward = mlp_forward};

static inline ek_module *make_mlp(int width, ek_dtype dtype)
{
    ek_manual_seed(7);
    mlp *self = (mlp *)ek_module_new(&mlp_type);
    assert_made(self);
    assert_ok(ek_register_module(&self->module, "hidden", &self->hidden,
                                 ek_linear(PIXELS * PIXELS, width)));
    assert_ok(ek_register_module(&self->module, "last", &self->last,
                                 ek_linear(width, CLASSES * PIXELS * PIXELS / 16)));
    assert_ok(ek_module_to_dtype(&self->module, dtype));
    return &self->module;
}

static inline ek_optimizer *make_optimizer(ek_module *module, algorithm kind)
{
    ek_optimizer *optimizer =
        kind == SGD ? ek_sgd(module, .lr = 0.05, .momentum = 0.9, .weight_decay = 1e-3)
                    : ek_adam(module, .lr = 3e-3);
    assert_made(optimizer);
    return optimizer;
}

static inline trainer wrap(const job *j, ek_module *net)
{
    ek_device_list devices = ek_devices(test_kind(), j->devices);
    ek_shard_policy shard = j->shard ? EK_SHARD_OPTIMIZER : EK_SHARD_NONE;
    ek_module *loss = make_criterion(EK_MEAN);
    trainer t = {.loss = loss};
    if (j->mode == BALANCED) {
        t.model =
            ek_data_parallel_model(net, .device_ids = devices, .shard = shard, .plan = j->plan);
        t.loss = ek_data_parallel_criterion(loss, .device_ids = devices);
    } else {
        t.model = ek_data_parallel(net, .device_ids = devices, .shard = shard, .plan = j->plan);
    }
    assert_made(t.model);
    assert_made(t.loss);
    t.optimizer = make_optimizer(t.model, j->algorithm);
    return t;
}

static inline trainer make_job(const job *j)
{
    return wrap(j, j->mlp ? make_mlp(j->mlp, j->dtype) : make_net(true, j->dtype));
}

/* ---- parts of a step ---- */

static inline ek_tensor *loss_of(const trainer *t, ek_tensor *images, ek_tensor *target)
{
    if (!ek_module_child(t->loss, 0))
        target = ek_to_device(target, test_device(0));
    ek_tensor *loss = ek_loss(t->loss, ek_forward(t->model, images), target);
    assert_made(loss);
    return loss;
}

/* The batch of step `step`: release both. */
static inline void batch_of(const job *j, int step, ek_tensor **images, ek_tensor **target)
{
    make_batch(j->batch, 0, UNEVENLY_IGNORED, j->dtype, 100 + (uint64_t)(step % 5), images, target);
}

static inline double one_step(const job *j, const trainer *t, int step)
{
    ek_tensor *images, *target;
    double value;
    ek_scope scope = ek_scope_begin();
    batch_of(j, step, &images, &target);
    ek_tensor *loss = loss_of(t, images, target);
    ek_zero_grad(t->optimizer);
    assert_ok(ek_backward(loss));
    assert_ok(ek_step(t->optimizer));
    assert_ok(ek_item(loss, &value));
    ek_scope_end(&scope);
    ek_release(images);
    ek_release(target);
    return value;
}

/* ---- what is left of a training ---- */

/* Parameters, buffers and the optimizer's states in order of paths: to be compared to the bit. */
typedef struct outcome {
    double losses[MOST_STEPS];
    char digest[65];
    double *states;
    int64_t count, room;
    ek_optimizer *optimizer;
} outcome;

static inline int note_states(const char *path, ek_tensor *parameter, void *user)
{
    (void)path;
    outcome *o = (outcome *)user;
    for (int s = 0; ek_optimizer_state_name(o->optimizer, s); s++) {
        ek_tensor *state =
            ek_optimizer_state(o->optimizer, parameter, ek_optimizer_state_name(o->optimizer, s));
        if (!state)
            continue;
        int64_t n = ek_tensor_count(state);
        state = ek_contiguous(ek_to_dtype(ek_to_device(state, ek_cpu()), EK_F64), EK_CONTIGUOUS);
        assert_made(state);
        if (o->count + n > o->room) {
            o->room = 2 * (o->count + n);
            o->states = (double *)realloc(o->states, (size_t)o->room * sizeof(double));
        }
        memcpy(o->states + o->count, ek_tensor_data(state), (size_t)n * sizeof(double));
        o->count += n;
    }
    return 0;
}

static inline void note_outcome(const trainer *t, outcome *o)
{
    o->optimizer = t->optimizer;
    assert_ok(ek_module_sha256(t->model, o->digest));
    ek_scope scope = ek_scope_begin();
    assert_ok(ek_module_parameters(t->model, note_states, o));
    ek_scope_end(&scope);
}

/* Frees both. */
static inline void assert_same_outcome(outcome *a, outcome *b, int steps)
{
    for (int i = 0; i < steps; i++)
        ck_assert_msg(a->losses[i] == b->losses[i], "step %d: loss %.17g, wanted %.17g", i,
                      a->losses[i], b->losses[i]);
    ck_assert_str_eq(a->digest, b->digest);
    ck_assert_int_gt(a->count, 0);
    ck_assert_int_eq(a->count, b->count);
    for (int64_t i = 0; i < a->count; i++)
        ck_assert_msg(a->states[i] == b->states[i], "state %lld is %.17g, wanted %.17g",
                      (long long)i, a->states[i], b->states[i]);
    free(a->states);
    free(b->states);
}

/* `steps` steps of the job. */
static inline outcome run(const job *j, int steps)
{
    outcome o = {.count = 0};
    trainer t = make_job(j);
    for (int step = 0; step < steps; step++)
        o.losses[step] = one_step(j, &t, step);
    note_outcome(&t, &o);
    free_trainer(&t);
    return o;
}

static inline job whole(job j)
{
    j.shard = false;
    return j;
}

static inline job small_job(int devices)
{
    return (
        job){.mode = BALANCED, .algorithm = ADAM, .devices = devices, .batch = 7, .shard = true};
}

/* ---- checkpoints ---- */

enum { MOST_TENSORS = 32 };

typedef struct checkpoint {
    int count;
    char paths[MOST_TENSORS][64];
    ek_tensor *values[MOST_TENSORS], *states[MOST_TENSORS][2];
    int64_t steps[MOST_TENSORS];
    ek_optimizer *optimizer;
} checkpoint;

static const char *const state_names[] = {"exp_avg", "exp_avg_sq"};

static inline int save_tensor(const char *path, ek_tensor *tensor, void *user)
{
    checkpoint *c = (checkpoint *)user;
    ck_assert_int_lt(c->count, MOST_TENSORS);
    snprintf(c->paths[c->count], sizeof c->paths[0], "%s", path);
    c->values[c->count] = ek_clone(ek_to_device(ek_detach(tensor), ek_cpu()));
    assert_made(c->values[c->count]);
    if (c->optimizer && ek_tensor_requires_grad(tensor)) {
        c->steps[c->count] = ek_optimizer_steps(c->optimizer, tensor);
        for (int s = 0; s < 2; s++) {
            ek_tensor *state = ek_optimizer_state(c->optimizer, tensor, state_names[s]);
            assert_made(state);
            c->states[c->count][s] = ek_clone(ek_to_device(state, ek_cpu()));
        }
    }
    c->count++;
    return 0;
}

static inline void save(const trainer *t, checkpoint *c)
{
    c->count = 0;
    c->optimizer = t->optimizer;
    assert_ok(ek_module_parameters(t->model, save_tensor, c));
    assert_ok(ek_module_buffers(t->model, save_tensor, c));
}

static inline void load(const trainer *t, const checkpoint *c)
{
    bool before = ek_set_grad_enabled(false);
    for (int i = 0; i < c->count; i++) {
        ek_tensor *tensor = ek_module_tensor(t->model, c->paths[i]);
        assert_made(ek_copy_(tensor, c->values[i]));
        if (c->states[i][0])
            assert_ok(ek_optimizer_set_state(t->optimizer, tensor, c->steps[i], state_names,
                                             c->states[i], 2));
    }
    ek_set_grad_enabled(before);
}

#endif
