/* sync_setup.h: networks with batch normalisation, and all that a step of training gives. */
#ifndef EK_TESTS_SYNC_SETUP_H
#define EK_TESTS_SYNC_SETUP_H

#include "parallel_setup.h"

enum { CHANNELS = 3, PARAMETERS = 4, BUFFERS = 6 };

/* How x looks: (n, C), (n, C, 4), (n, C, 2, 3), (n, C, 2, 2, 2). */
static inline ek_shape shape_of(int form, int n)
{
    static const int ndim[] = {2, 3, 4, 5};
    static const int64_t space[][3] = {{0}, {4}, {2, 3}, {2, 2, 2}};
    ek_shape shape = {.ndim = ndim[form], .dims = {n, CHANNELS}};
    for (int i = 2; i < shape.ndim; i++)
        shape.dims[i] = space[form][i - 2];
    return shape;
}

/* A plain batch norm for such inputs. */
static inline ek_module *plain_norm(int form)
{
    return form < 2    ? ek_batch_norm1d(CHANNELS)
           : form == 2 ? ek_batch_norm2d(CHANNELS)
                       : ek_batch_norm3d(CHANNELS);
}

static inline void randomise(ek_module *module, uint64_t seed)
{
    static const char *const names[] = {"weight", "bias"};
    ek_generator *generator = ek_generator_new(seed);
    bool before = ek_set_grad_enabled(false);
    for (int i = 0; i < 2; i++)
        assert_ok(ek_normal_(ek_module_tensor(module, names[i]), 1 - i, 0.5, generator));
    ek_set_grad_enabled(before);
    ek_generator_free(generator);
}

/* norm, tanh, norm; the same numbers each time. */
static inline ek_module *make_norms(ek_module *first, ek_module *last, ek_dtype dtype)
{
    assert_made(first);
    assert_made(last);
    randomise(first, 11);
    randomise(last, 12);
    ek_module *net = ek_sequential(first, ek_tanh(), last);
    assert_made(net);
    assert_ok(ek_module_to_dtype(net, dtype));
    return net;
}

static inline ek_module *plain_net(int form, ek_dtype dtype)
{
    return make_norms(plain_norm(form), plain_norm(form), dtype);
}

static inline ek_module *sync_net(ek_dtype dtype)
{
    return make_norms(ek_sync_batch_norm(CHANNELS), ek_sync_batch_norm(CHANNELS), dtype);
}

static const char *const parameter_names[PARAMETERS] = {"0.weight", "0.bias", "2.weight", "2.bias"};
static const char *const buffer_names[BUFFERS] = {"0.running_mean",        "0.running_var",
                                                  "0.num_batches_tracked", "2.running_mean",
                                                  "2.running_var",         "2.num_batches_tracked"};

/* What one step gives, on cpu. */
typedef struct step {
    ek_tensor *output, *input_gradient;
    ek_tensor *gradients[PARAMETERS], *second[PARAMETERS];
    ek_tensor *buffers[BUFFERS];
} step;

static inline ek_tensor *here(ek_tensor *x)
{
    assert_made(x);
    return ek_to_device(ek_detach(x), ek_cpu());
}

static inline void take_gradients(ek_module *model, ek_tensor **gradients)
{
    for (int i = 0; i < PARAMETERS; i++)
        gradients[i] = ek_clone(here(ek_tensor_grad(ek_module_tensor(model, parameter_names[i]))));
    ek_module_zero_grad(model);
}

/* A forward in the model's mode; with `gradients`, also first order, and second order through the
 * squared norm of the input's gradient, taken at top level. */
static inline step take_step(ek_module *model, ek_tensor *x, bool gradients)
{
    step s = {0};
    x = ek_detach(x);
    if (gradients)
        assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *out = ek_apply(model, x);
    s.output = here(out);
    for (int i = 0; i < BUFFERS; i++)
        s.buffers[i] = ek_clone(here(ek_module_tensor(model, buffer_names[i])));
    if (!gradients)
        return s;
    ek_tensor *g = ek_to_device(ek_to_dtype(normal(99, ek_tensor_shape(out), EK_F64, ek_cpu()),
                                            ek_tensor_dtype(out)),
                                ek_tensor_device(out));
    ek_tensor *loss = ek_sum(ek_mul(out, g)), *dx;
    assert_ok(ek_backward(loss, .retain_graph = true));
    take_gradients(model, s.gradients);
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &dx, .create_graph = true));
    s.input_gradient = here(dx);
    assert_ok(ek_backward(ek_add(ek_sum(ek_square(dx)), ek_to_device(loss, ek_tensor_device(dx)))));
    take_gradients(model, s.second);
    return s;
}

static inline void assert_same_step(const step *a, const step *b, double relative)
{
    assert_close_norm(a->output, b->output, relative);
    for (int i = 0; i < BUFFERS; i++)
        assert_close_norm(a->buffers[i], b->buffers[i], relative);
    if (!b->input_gradient)
        return;
    assert_close_norm(a->input_gradient, b->input_gradient, relative);
    for (int i = 0; i < PARAMETERS; i++) {
        assert_close_norm(a->gradients[i], b->gradients[i], relative);
        assert_close_norm(a->second[i], b->second[i], relative);
    }
}

#endif
