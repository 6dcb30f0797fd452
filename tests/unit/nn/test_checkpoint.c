/* ek_checkpoint: gradients of every order are the module's own, the forward's state is found again,
 * and the inside is not kept. */
#include "checkpoint_setup.h"
#include "kit/models.h"

FIXTURE(setup, NULL)

/* Batch norm, dropout, two layers: all kinds of state. Paths 0 to 5. */
static ek_module *make_body(void)
{
    ek_manual_seed(3);
    return ek_sequential(ek_linear(4, 6), ek_batch_norm1d(6), ek_tanh(), ek_dropout(0.4),
                         ek_linear(6, 3), ek_sigmoid());
}

static void assert_equal(ek_tensor *a, ek_tensor *b)
{
    assert_made(a);
    assert_made(b);
    assert_close(a, b, 0, 0);
}

static const char *const parameters[] = {"0.weight", "0.bias",   "1.weight",
                                         "1.bias",   "4.weight", "4.bias"};
static const char *const buffers[] = {"1.running_mean", "1.running_var", "1.num_batches_tracked"};

static void assert_same_state(ek_module *a, ek_module *b)
{
    for (int i = 0; i < 6; i++)
        assert_equal(ek_tensor_grad(ek_module_tensor(a, parameters[i])),
                     ek_tensor_grad(ek_module_tensor(b, parameters[i])));
    for (int i = 0; i < 3; i++)
        assert_equal(ek_module_tensor(a, buffers[i]), ek_module_tensor(b, buffers[i]));
}

/* Two forwards, one backward after both; returns the next number of the generator. */
static uint32_t two_steps(ek_module *module, ek_tensor *x, ek_tensor **outputs)
{
    ek_manual_seed(9);
    outputs[0] = ek_apply(module, x);
    outputs[1] = ek_apply(module, ek_mul_scalar(x, 0.5));
    ek_tensor *loss = ek_sum(ek_mul(outputs[0], ek_square(outputs[1])));
    assert_ok(ek_backward(loss));
    return ek_random_u32(NULL);
}

TEST(a_step_is_the_same_to_the_bit)
{
    ek_module *plain = f64(make_body()), *checkpoint = f64(ek_checkpoint(make_body()));
    ek_tensor *x = leaf_on(1, EK_SHAPE(5, 4), ek_cpu()), *y = ek_detach(x);
    assert_ok(ek_tensor_set_requires_grad(y, true));
    ek_tensor *of_plain[2], *of_checkpoint[2];
    uint32_t next = two_steps(plain, x, of_plain);
    ck_assert_uint_eq(two_steps(checkpoint, y, of_checkpoint), next);
    for (int i = 0; i < 2; i++)
        assert_equal(of_checkpoint[i], of_plain[i]);
    assert_same_state(plain, checkpoint);
    assert_equal(ek_tensor_grad(y), ek_tensor_grad(x));
    ck_assert_double_eq(element(ek_module_tensor(checkpoint, buffers[2]), 0), 2);
    /* Evaluation: running statistics, no mask. */
    ek_module_train(plain, false);
    ek_module_train(checkpoint, false);
    two_steps(plain, x, of_plain);
    two_steps(checkpoint, y, of_checkpoint);
    assert_equal(of_checkpoint[1], of_plain[1]);
    assert_same_state(plain, checkpoint);
    ek_module_free(plain);
    ek_module_free(checkpoint);
}

/* The mode of the forward counts, not that of the backward. */
TEST(plain_members_are_found_again)
{
    ek_module *plain = f64(make_body()), *checkpoint = f64(ek_checkpoint(make_body()));
    ek_tensor *x = normal(1, EK_SHAPE(5, 4), EK_F64, ek_cpu());
    for (int i = 0; i < 2; i++) {
        ek_module *module = i ? checkpoint : plain;
        ek_manual_seed(9);
        ek_tensor *y = ek_apply(module, x);
        ek_module_train(module, false);
        assert_ok(ek_backward(ek_sum(ek_square(y))));
    }
    assert_same_state(plain, checkpoint);
    ek_module_free(plain);
    ek_module_free(checkpoint);
}

/* ek_module_checkpoint marks modules of a tree, which stays; ReLUs are not fused into them. */
TEST(marked_modules_compute_alike)
{
    ek_module *bodies[3];
    ek_tensor *x = normal(1, EK_SHAPE(5, 4), EK_F64, ek_cpu()), *outputs[3][2];
    for (int i = 0; i < 3; i++) {
        bodies[i] = f64(ek_sequential(make_body(), ek_linear(3, 4), ek_relu()));
        ek_module *marked[] = {ek_module_at(bodies[i], "0"), ek_module_at(bodies[i], "1"),
                               ek_module_at(bodies[i], "0.1")};
        for (int m = 0; m < 3; m++)
            assert_ok(ek_module_checkpoint(marked[m], i > 0));
        if (i == 2) { /* copies are marked, too */
            ek_module *copy = ek_module_copy(bodies[i]);
            ek_module_free(bodies[i]);
            bodies[i] = copy;
        }
        two_steps(bodies[i], x, outputs[i]);
        assert_equal(outputs[i][1], outputs[0][1]);
        assert_equal(ek_tensor_grad(ek_module_tensor(bodies[i], "0.0.weight")),
                     ek_tensor_grad(ek_module_tensor(bodies[0], "0.0.weight")));
        assert_equal(ek_module_tensor(bodies[i], "0.1.running_var"),
                     ek_module_tensor(bodies[0], "0.1.running_var"));
    }
    for (int i = 0; i < 3; i++)
        ek_module_free(bodies[i]);
    assert_refused(ek_module_checkpoint(NULL, true), EK_E_INVALID, "module is NULL");
}

/* ---- higher orders ---- */

typedef struct net_case {
    ek_module *module;
    bool reseed;
} net_case;

static ek_tensor *net_of(ek_tensor *const *x, int count, void *user)
{
    const net_case *net = user;
    if (net->reseed)
        ek_manual_seed(11);
    return ek_apply(net->module, x[0]);
}

static ek_tensor *gradient_of_net(ek_tensor *const *x, int count, void *user)
{
    ek_tensor *y = net_of(x, count, user), *gradient = NULL;
    y = ek_sum(ek_mul(y, ek_square(y)));
    if (ek_grad(.outputs = &y, .output_count = 1, .inputs = x, .input_count = 1,
                .gradients = &gradient, .create_graph = true) < 0)
        return NULL;
    return gradient;
}

TEST(differences_agree)
{
    net_case net = {f64(ek_checkpoint(make_body())), true};
    ek_tensor *inputs[] = {leaf_on(2, EK_SHAPE(3, 4), ek_cpu()),
                           ek_module_tensor(net.module, "4.weight"),
                           ek_module_tensor(net.module, "1.weight")};
    assert_ok(ek_gradcheck(.function = net_of, .inputs = inputs, .input_count = 3, .user = &net));
    assert_ok(
        ek_gradgradcheck(.function = net_of, .inputs = inputs, .input_count = 3, .user = &net));
    /* One order more. */
    ek_tensor *few[] = {leaf_on(2, EK_SHAPE(2, 4), ek_cpu()), inputs[2]};
    assert_ok(ek_gradgradcheck(.function = gradient_of_net, .inputs = few, .input_count = 2,
                               .user = &net));
    ek_module_free(net.module);
}

/* Outputs that are the inputs, and gradients that are the gradients of the output, or views. */
TEST(linear_modules)
{
    ek_module *modules[] = {ek_identity(), ek_flatten(0, -1), ek_linear(3, 2)};
    for (int i = 0; i < 3; i++) {
        net_case net = {f64(ek_checkpoint(ek_checkpoint(modules[i]))), false};
        ek_tensor *x = leaf_on(6, EK_SHAPE(2, 3), ek_cpu());
        assert_ok(ek_gradcheck(.function = net_of, .inputs = &x, .input_count = 1, .user = &net));
        assert_ok(
            ek_gradgradcheck(.function = net_of, .inputs = &x, .input_count = 1, .user = &net));
        ck_assert_int_eq(ek_apply(net.module, x) == x, i == 0);
        ek_module_free(net.module);
    }
}

/* A critic's penalty. */
static double penalty(ek_module *critic, uint64_t seed)
{
    ek_tensor *x = leaf_on(seed, EK_SHAPE(5, 4), ek_cpu()), *gradient;
    ek_tensor *score = ek_sum(ek_apply(critic, x));
    assert_ok(ek_grad(.outputs = &score, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &gradient, .create_graph = true));
    ek_tensor *norm = ek_norm(gradient, EK_DIMS(1));
    ek_tensor *loss = ek_mean(ek_square(ek_add_scalar(norm, -1)));
    double value;
    assert_ok(ek_item(loss, &value));
    assert_ok(ek_backward(loss));
    return value;
}

static ek_module *make_critic(bool checkpoints)
{
    ek_manual_seed(3);
    ek_module *first = ek_sequential(ek_linear(4, 6), ek_leaky_relu(0.2));
    ek_module *second = ek_sequential(ek_linear(6, 6), ek_tanh());
    if (checkpoints) {
        first = ek_checkpoint(first);
        second = ek_checkpoint(second);
    }
    return f64(ek_sequential(first, second, ek_linear(6, 1)));
}

TEST(a_gradient_penalty)
{
    ek_module *plain = make_critic(false), *checkpoint = make_critic(true);
    ck_assert_double_eq(penalty(checkpoint, 4), penalty(plain, 4));
    static const char *const paths[] = {"0.0.weight", "1.0.weight", "1.0.bias", "2.weight"};
    for (int i = 0; i < 4; i++)
        assert_close(ek_tensor_grad(ek_module_tensor(checkpoint, paths[i])),
                     ek_tensor_grad(ek_module_tensor(plain, paths[i])), 1e-13, 1e-15);
    ek_module_free(plain);
    ek_module_free(checkpoint);
}

TEST(nested_checkpoints)
{
    ek_manual_seed(3);
    ek_module *plain = f64(make_body());
    ek_manual_seed(3);
    ek_module *inner = ek_sequential(ek_linear(4, 6), ek_batch_norm1d(6), ek_checkpoint(ek_tanh()));
    ek_module *nested =
        f64(ek_checkpoint(ek_sequential(ek_checkpoint(inner), ek_checkpoint(ek_dropout(0.4)),
                                        ek_linear(6, 3), ek_sigmoid())));
    ek_tensor *x = leaf_on(1, EK_SHAPE(5, 4), ek_cpu()), *y = ek_detach(x);
    assert_ok(ek_tensor_set_requires_grad(y, true));
    ek_tensor *of_plain[2], *of_nested[2];
    uint32_t next = two_steps(plain, x, of_plain);
    ck_assert_uint_eq(two_steps(nested, y, of_nested), next);
    assert_equal(of_nested[1], of_plain[1]);
    assert_equal(ek_tensor_grad(y), ek_tensor_grad(x));
    assert_equal(ek_tensor_grad(ek_module_tensor(nested, "0.0.weight")),
                 ek_tensor_grad(ek_module_tensor(plain, "0.weight")));
    assert_equal(ek_module_tensor(nested, "0.1.running_var"),
                 ek_module_tensor(plain, "1.running_var"));
    net_case net = {nested, true};
    ek_tensor *few = leaf_on(2, EK_SHAPE(2, 4), ek_cpu());
    assert_ok(ek_gradgradcheck(.function = net_of, .inputs = &few, .input_count = 1, .user = &net));
    ek_module_free(plain);
    ek_module_free(nested);
}

/* ---- nests ---- */

typedef struct mixer {
    ek_module module;
    ek_tensor *scale, *offset;
    int calls;
} mixer;

static bool is_alone; /* what the thread's modes said in the last call */

/* ({a, [b, number]}, index; factor) gives {product, [index, b itself]}. */
static ek_value mixer_forward(ek_module *module, const ek_args *args)
{
    mixer *self = (mixer *)module;
    self->calls++;
    is_alone = ek_thread_self()->modes.flags & EK_MODE_ALONE;
    ek_value nest = ek_arg(args, 0), pair = ek_value_get(nest, "b");
    ek_tensor *a = ek_value_tensor(ek_value_get(nest, "a"));
    ek_tensor *b = ek_value_tensor(ek_value_at(pair, 0));
    ek_tensor *factor = ek_value_tensor(ek_value_get(args->keywords, "factor"));
    ek_tensor *product = ek_mul(ek_mul(a, ek_exp(b)), ek_mul(factor, self->scale));
    product = ek_add_scalar(product, (double)ek_value_at(pair, 1).as.integer);
    ek_add_(self->offset, ek_ones(EK_SHAPE(1), .dtype = EK_F64)); /* a plain buffer */
    product = ek_add(product, ek_mul(self->offset, a));
    ek_value rest = EK_LIST(ek_arg(args, 1), b, product);
    return ek_value_dict((const ek_value_entry[]){{"product", ek_value_of_tensor(product)},
                                                  {"rest", rest}},
                         2);
}

MODULE_TYPE(mixer, mixer)

static ek_module *make_mixer(void)
{
    mixer *self = (mixer *)ek_module_new(&mixer_type);
    assert_ok(ek_register_parameter(&self->module, "scale", &self->scale,
                                    normal(20, EK_SHAPE(3), EK_F64, ek_cpu())));
    assert_ok(ek_register_buffer(&self->module, "offset", &self->offset,
                                 ek_zeros(EK_SHAPE(1), .dtype = EK_F64)));
    return &self->module;
}

static ek_value mix(ek_module *module, ek_tensor *const *x)
{
    ek_tensor *index = ek_arange(3, EK_I64, ek_cpu());
    ek_value pair = EK_LIST(x[1], ek_value_of_int(2));
    ek_value nest =
        ek_value_dict((const ek_value_entry[]){{"a", ek_value_of_tensor(x[0])}, {"b", pair}}, 2);
    ek_value keywords =
        ek_value_dict((const ek_value_entry[]){{"factor", ek_value_of_tensor(x[2])}}, 1);
    return ek_forward_kw(module, keywords, nest, index);
}

static ek_tensor *mixed(ek_tensor *const *x, int count, void *user)
{
    ek_module *module = user;
    assert_made(ek_fill_(ek_module_tensor(module, "offset"), 0));
    ek_value value = mix(module, x), rest = ek_value_get(value, "rest");
    ek_tensor *product = ek_value_tensor(ek_value_get(value, "product"));
    ek_tensor *again = ek_value_tensor(ek_value_at(rest, 2));
    ck_assert_ptr_eq(again, product);
    ck_assert_ptr_eq(ek_value_tensor(ek_value_at(rest, 1)), x[1]); /* itself */
    return ek_add(ek_square(product), ek_value_tensor(ek_value_at(rest, 1)));
}

TEST(nests_and_keywords)
{
    ek_module *plain = make_mixer(), *checkpoint = ek_checkpoint(make_mixer());
    ek_tensor *inputs[] = {leaf_on(21, EK_SHAPE(3), ek_cpu()), leaf_on(22, EK_SHAPE(3), ek_cpu()),
                           leaf_on(23, EK_SHAPE(1), ek_cpu()),
                           ek_module_tensor(checkpoint, "scale")};
    ek_tensor *y = mixed(inputs, 3, checkpoint), *wanted = mixed(inputs, 3, plain);
    assert_equal(y, wanted);
    assert_ok(
        ek_gradcheck(.function = mixed, .inputs = inputs, .input_count = 4, .user = checkpoint));
    assert_ok(ek_gradgradcheck(.function = mixed, .inputs = inputs, .input_count = 4,
                               .user = checkpoint));
    /* The snapshot of the buffer is what counts, and it is not updated twice. */
    ek_value value = mix(checkpoint, inputs);
    ek_tensor *offset = ek_module_tensor(checkpoint, "offset"), *gradient;
    double before = element(offset, 0);
    assert_made(ek_fill_(offset, 100));
    y = ek_sum(ek_value_tensor(ek_value_get(value, "product")));
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = &inputs[0], .input_count = 1,
                      .gradients = &gradient));
    double slope = exp(element(inputs[1], 0)) * element(inputs[2], 0) * element(inputs[3], 0);
    ck_assert_double_eq_tol(element(gradient, 0), slope + before, 1e-12);
    ck_assert_double_eq(element(offset, 0), 100);
    ck_assert(is_alone); /* when it was computed again, too */
    /* An input without a gradient stays as it is. */
    assert_ok(ek_tensor_set_requires_grad(inputs[1], false));
    mixed(inputs, 3, checkpoint);
    ck_assert(ek_tensor_is_leaf(inputs[1]) && !ek_tensor_requires_grad(inputs[1]));
    ek_module_free(plain);
    ek_module_free(checkpoint);
}

TEST(plain_calls)
{
    ek_module *checkpoint = ek_checkpoint(make_mixer());
    mixer *body = (mixer *)ek_module_child(checkpoint, 0);
    ek_tensor *x[] = {leaf_on(21, EK_SHAPE(3), ek_cpu()), leaf_on(22, EK_SHAPE(3), ek_cpu()),
                      leaf_on(23, EK_SHAPE(1), ek_cpu())};
    ek_value value = mix(checkpoint, x);
    ck_assert(is_alone);
    ck_assert(!(ek_thread_self()->modes.flags & EK_MODE_ALONE) && ek_grad_enabled());
    ck_assert(ek_tensor_requires_grad(ek_value_tensor(ek_value_get(value, "product"))));

    bool before = ek_set_grad_enabled(false);
    value = mix(checkpoint, x);
    ek_set_grad_enabled(before);
    ck_assert(!is_alone);
    ck_assert(!ek_tensor_requires_grad(ek_value_tensor(ek_value_get(value, "product"))));

    /* Nothing requires a gradient. */
    ek_module_set_requires_grad(checkpoint, false);
    for (int i = 0; i < 3; i++)
        x[i] = ek_detach(x[i]);
    value = mix(checkpoint, x);
    ck_assert(!is_alone);
    ck_assert(!ek_tensor_requires_grad(ek_value_tensor(ek_value_get(value, "product"))));
    ck_assert_int_eq(body->calls, 3);
    ek_module_free(checkpoint);
}

TEST(parameters_without_a_gradient)
{
    ek_module *plain = f64(make_body()), *checkpoint = f64(ek_checkpoint(make_body()));
    ek_tensor *x = leaf_on(1, EK_SHAPE(5, 4), ek_cpu()), *of[2];
    for (int i = 0; i < 2; i++) {
        ek_module *module = i ? checkpoint : plain;
        assert_ok(ek_tensor_set_requires_grad(ek_module_tensor(module, "0.weight"), false));
        two_steps(module, x, of);
        ck_assert_ptr_null(ek_tensor_grad(ek_module_tensor(module, "0.weight")));
    }
    assert_equal(ek_tensor_grad(ek_module_tensor(checkpoint, "4.weight")),
                 ek_tensor_grad(ek_module_tensor(plain, "4.weight")));
    /* Only an input requires one; then only a parameter. */
    ek_module_set_requires_grad(checkpoint, false);
    assert_ok(ek_backward(ek_sum(ek_apply(checkpoint, x))));
    ek_module_set_requires_grad(checkpoint, true);
    ek_module_zero_grad(checkpoint);
    assert_ok(ek_backward(ek_sum(ek_apply(checkpoint, ek_detach(x)))));
    assert_made(ek_tensor_grad(ek_module_tensor(checkpoint, "0.bias")));
    ek_module_free(plain);
    ek_module_free(checkpoint);
}

TEST(the_graph_outlives_the_module)
{
    ek_module *checkpoint = f64(ek_checkpoint(make_body()));
    ek_tensor *x = leaf_on(1, EK_SHAPE(5, 4), ek_cpu());
    ek_tensor *weight = ek_keep(ek_module_tensor(checkpoint, "0.weight"));
    ek_tensor *y = ek_apply(checkpoint, x);
    ek_module_free(checkpoint);
    assert_ok(ek_backward(ek_sum(y)));
    assert_made(ek_tensor_grad(weight));
    assert_made(ek_tensor_grad(x));
    ek_release(weight);
}
/* ---- memory ---- */

enum { BATCH = 64, WIDTH = 64, DEPTH = 6, BLOCKS = 4 };

typedef enum keeping { KEPT, CHECKPOINTS, MARKED } keeping;

static ek_module *deep(keeping how)
{
    ek_module *blocks[BLOCKS];
    for (int b = 0; b < BLOCKS; b++) {
        ek_module *layers[2 * DEPTH];
        for (int i = 0; i < DEPTH; i++) {
            layers[2 * i] = ek_linear(WIDTH, WIDTH);
            layers[2 * i + 1] = ek_tanh();
        }
        blocks[b] = ek_sequential_of(layers, 2 * DEPTH);
        if (how == CHECKPOINTS)
            blocks[b] = ek_checkpoint(blocks[b]);
        if (how == MARKED)
            assert_ok(ek_module_checkpoint(blocks[b], true));
    }
    ek_module *net = ek_sequential_of(blocks, BLOCKS);
    assert_made(net);
    assert_ok(ek_module_to_device(net, test_device(0)));
    return net;
}

/* Bytes after the forward, and the peak of the backward, beyond what was there. */
static void measure(keeping how, uint64_t *forward, uint64_t *peak)
{
    ek_module *net = deep(how);
    ek_tensor *x = ek_ones(EK_SHAPE(BATCH, WIDTH), .device = test_device(0));
    assert_ok(ek_backward(ek_sum(ek_apply(net, x)))); /* gradients are there from now on */
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(test_device(0), &stats));
    uint64_t before = stats.in_use;
    ek_tensor *y = ek_sum(ek_apply(net, x));
    assert_ok(ek_memory_get_stats(test_device(0), &stats));
    *forward = stats.in_use - before;
    assert_ok(ek_memory_reset_peak(test_device(0)));
    assert_ok(ek_backward(y));
    assert_ok(ek_memory_get_stats(test_device(0), &stats));
    *peak = stats.peak - before;
    ek_module_free(net);
}

TEST_LOOP(the_inside_is_not_kept, CHECKPOINTS, MARKED + 1)
{
    const uint64_t activation = BATCH * WIDTH * 4;
    uint64_t plain, plain_peak, checkpoint, checkpoint_peak;
    ek_scope scope = ek_scope_begin();
    measure(KEPT, &plain, &plain_peak);
    ek_scope_end(&scope);
    scope = ek_scope_begin();
    measure((keeping)_i, &checkpoint, &checkpoint_peak);
    ek_scope_end(&scope);
    /* The output of each tanh, against each block's output. */
    ck_assert_uint_ge(plain, BLOCKS * DEPTH * activation);
    ck_assert_uint_le(checkpoint, (BLOCKS + 1) * activation);
    ck_assert_uint_ge(plain_peak, BLOCKS * DEPTH * activation);
    ck_assert_uint_le(checkpoint_peak, (BLOCKS + DEPTH + 8) * activation);
}
