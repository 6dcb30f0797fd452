/* steps.c: see steps.h. */
#include "steps.h"

#include <string.h>

/* ---- batches ---- */

typedef struct batch {
    ek_tensor *first; /* of the inputs */
    ek_value input, target;
} batch;

static ek_tensor *make_labels(const program *p, ek_shape shape)
{
    int64_t samples = shape.dims[0];
    shape.dims[1] = shape.dims[0];
    shape.ndim--;
    memmove(shape.dims, shape.dims + 1, (size_t)shape.ndim * sizeof *shape.dims);
    ek_tensor *labels = ek_randint(0, p->classes, shape);
    int64_t *data = labels ? ek_tensor_data(labels) : NULL;
    int64_t count = data ? ek_tensor_count(labels) : 0, places = count / samples;
    /* 1: every third; 2: the first half, so that a device may be left with none. */
    for (int64_t i = 0; i < count - 1; i++)
        if (p->ignored == 1 ? i % 3 == 0 : p->ignored == 2 && i / places < samples / 2)
            data[i] = -100;
    if (labels)
        ek_tensor_touch(labels);
    return labels;
}

static ek_tensor *make_target(const program *p, ek_shape shape)
{
    if (p->task == TASK_CROSS_ENTROPY || p->task == TASK_NLL)
        return make_labels(p, shape);
    return ek_rand(shape, .dtype = program_dtype(p));
}

static ek_value nested(ek_tensor *x, ek_tensor *other)
{
    ek_value rest = EK_LIST(other, ek_value_of_int(7));
    if (!x || !other || rest.kind == EK_VALUE_ERROR)
        return ek_value_error();
    return ek_value_dict((ek_value_entry[]){{"x", ek_value_of_tensor(x)}, {"rest", rest}}, 2);
}

static void make_batch(const trainer *t, int samples, int number, batch *b)
{
    const program *p = t->p;
    const sample_shape *in = &t->net.layers[0].before;
    ek_manual_seed((uint64_t)p->seed + 1000u * (uint64_t)(number + 1));
    ek_tensor *x = ek_randn(batch_shape(in, samples), .dtype = program_dtype(p)), *other = NULL;
    if (p->input != INPUT_ONE)
        other = ek_randn(batch_shape(in, samples), .dtype = program_dtype(p));
    b->first = x;
    b->input = p->input == INPUT_ONE   ? ek_value_of_tensor(x)
               : p->input == INPUT_TWO ? EK_LIST(x, other)
                                       : nested(x, other);
    b->target = ek_value_of_tensor(
        p->task == TASK_CRITIC ? ek_randn(batch_shape(in, samples), .dtype = program_dtype(p))
                               : make_target(p, batch_shape(&t->net.out, samples)));
}

/* ---- by hand ---- */

/* A list is one argument per element. */
static ek_value call_model(trainer *t, ek_value input)
{
    ek_value arguments[2];
    if (trainer_is_plain(t))
        input = ek_value_to_device(input, t->home, 0);
    if (input.kind == EK_VALUE_ERROR)
        return input;
    if (input.kind != EK_VALUE_LIST || input.per_device)
        return ek_module_forward(t->model, &(const ek_args){&input, 1, ek_value_none()});
    for (int i = 0; i < 2; i++)
        arguments[i] = ek_value_at(input, i);
    return ek_module_forward(t->model, &(const ek_args){arguments, 2, ek_value_none()});
}

/* One number, also if the criterion reduces nothing. */
static ek_tensor *loss_of(trainer *t, const batch *b)
{
    ek_value output = call_model(t, b->input), target = b->target;
    if (output.kind == EK_VALUE_ERROR)
        return NULL;
    if (t->p->reduction != REDUCE_NONE)
        return ek_loss(t->criterion, output, target);
    if (trainer_is_plain(t) || t->w->wrapper == WRAPPER_CLASSIC)
        target = ek_value_to_device(target, t->home, 0);
    ek_value loss = ek_forward(t->criterion, output, target);
    return ek_mean(ek_value_tensor(ek_value_to_device(loss, t->home, 0)));
}

static int clip(trainer *t)
{
    double norm;
    if (t->p->clip == CLIP_NORM)
        return ek_clip_grad_norm(t->optimizer, 0.5, &norm);
    return t->p->clip == CLIP_VALUE ? ek_clip_grad_value(t->optimizer, 0.1) : 0;
}

static int finish(trainer *t, ek_tensor *loss, double *value)
{
    if (t->p->clip != CLIP_VALUE)
        return ek_minimize(t->optimizer, loss, .value = value,
                           .max_norm = t->p->clip == CLIP_NORM ? 0.5 : 0);
    ek_zero_grad(t->optimizer);
    int rc = ek_backward(loss);
    if (rc >= 0)
        rc = ek_item(loss, value);
    if (rc >= 0)
        rc = clip(t);
    return rc < 0 ? rc : ek_step(t->optimizer);
}

static int step_twice(trainer *t, const step *s, int number, double *value)
{
    batch one, other;
    make_batch(t, s->batch, number, &one);
    ek_tensor *first = loss_of(t, &one);
    make_batch(t, 1 + s->batch / 2, 50 + number, &other);
    ek_tensor *second = first ? loss_of(t, &other) : NULL;
    return finish(t, first ? ek_add_scaled(first, second, 0.5) : NULL, value);
}

/* The loss and a tenth of the squared gradient at the input. */
static int step_second(trainer *t, const batch *b, double *value)
{
    ek_tensor *gradient = NULL;
    if (!b->first || ek_tensor_set_requires_grad(b->first, true) < 0)
        return ek_error_status();
    ek_tensor *loss = loss_of(t, b);
    if (!loss)
        return ek_error_status();
    if (ek_grad(.outputs = &loss, .output_count = 1, .inputs = &b->first, .input_count = 1,
                .gradients = &gradient, .create_graph = true, .allow_unused = true) < 0)
        return ek_error_status();
    if (gradient) {
        ek_tensor *size = ek_sum(ek_square(ek_to_device(gradient, ek_tensor_device(loss))));
        loss = ek_add_scaled(loss, size, 0.1);
    }
    return finish(t, loss, value);
}

static int step_penalty(trainer *t, const batch *b, double *value)
{
    ek_tensor *real = b->first, *fake = ek_value_tensor(b->target);
    if (trainer_is_plain(t)) {
        real = ek_to_device(real, t->home);
        fake = ek_to_device(fake, t->home);
    }
    ek_tensor *on_real = ek_loss(t->criterion, ek_forward(t->model, real));
    ek_tensor *on_fake = on_real ? ek_loss(t->on_fake, ek_forward(t->model, fake)) : NULL;
    ek_tensor *penalty = on_fake ? ek_gradient_penalty(t->model, real, fake, .weight = 2,
                                                       .kind = (ek_penalty_kind)t->p->penalty)
                                 : NULL;
    return finish(t, on_fake ? ek_add(ek_add(on_real, on_fake), penalty) : NULL, value);
}

/* ---- by the library ---- */

static int train(trainer *t, ek_value input, ek_value target, int micro, bool only, double *value)
{
    return ek_train_step(value, .model = t->model, .criterion = t->criterion,
                         .optimizer = t->optimizer, .input = input, .target = target,
                         .micro_batches = micro, .accumulate_only = only,
                         .max_norm = t->p->clip == CLIP_NORM && !only ? 0.5 : 0);
}

static int step_accumulate(trainer *t, const step *s, int number, int micro, double *value)
{
    batch one, other;
    double second;
    ek_zero_grad(t->optimizer);
    make_batch(t, s->batch, number, &one);
    int rc = train(t, one.input, one.target, micro, true, value);
    if (rc < 0)
        return rc;
    make_batch(t, 1 + s->batch / 2, 50 + number, &other);
    rc = train(t, other.input, other.target, micro, true, &second);
    *value += second;
    if (rc >= 0)
        rc = clip(t);
    return rc < 0 ? rc : ek_step(t->optimizer);
}

/* Batches of a data set of exactly one. */
static int step_loader(trainer *t, const step *s, const batch *b, int micro, double *value)
{
    ek_tensor *target = ek_value_tensor(b->target);
    ek_batch made;
    if (!b->first || !target)
        return ek_error_status();
    ek_loader_options o =
        EK_OPTIONS(ek_loader_options, .dataset = ek_tensor_dataset(b->first, target),
                   .batch_size = s->batch, .workers = s->batch % 3);
    if (t->w->wrapper == WRAPPER_BALANCED && t->w->count > 1 && micro < 2) {
        o.device_ids.count = t->w->count;
        for (int i = 0; i < t->w->count; i++)
            o.device_ids.devices[i] = ek_host(t->w->on[i]);
        o.split = s->batch % 2 ? EK_SPLIT_EVEN : EK_SPLIT_CHUNK;
    }
    ek_loader *loader = ek_data_loader_with(o);
    int rc = loader ? ek_loader_next(loader, &made) : ek_error_status();
    if (rc == 1)
        rc = train(t, made.input, made.target, micro, false, value);
    ek_loader_free(loader);
    return rc;
}

static int do_step(trainer *t, const step *s, int number, int micro, double *loss)
{
    batch b;
    if (s->how == STEP_TWICE)
        return step_twice(t, s, number, loss);
    if (s->how == STEP_ACCUMULATE)
        return step_accumulate(t, s, number, micro, loss);
    make_batch(t, s->batch, number, &b);
    switch (s->how) {
    case STEP_TRAIN:
        return train(t, b.input, b.target, micro, false, loss);
    case STEP_LOADER:
        return step_loader(t, s, &b, micro, loss);
    case STEP_SECOND:
        return step_second(t, &b, loss);
    case STEP_PENALTY:
        return step_penalty(t, &b, loss);
    default:
        return finish(t, loss_of(t, &b), loss);
    }
}

int step_do(trainer *t, const step *s, int number, int micro, double *loss)
{
    ek_scope scope = ek_scope_begin();
    ek_autocast autocast = ek_autocast_begin(t->p->autocast ? EK_BF16 : EK_F32);
    int rc = do_step(t, s, number, micro, loss);
    ek_autocast_end(&autocast);
    ek_scope_end(&scope);
    return rc;
}

ek_value step_forward(trainer *t, const step *s, int number)
{
    batch b;
    make_batch(t, s->batch, number, &b);
    return b.target.kind == EK_VALUE_ERROR ? b.target : call_model(t, b.input);
}
