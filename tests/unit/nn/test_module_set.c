/* Children, parameters and buffers that are replaced by path: where they are found afterwards, who
 * frees them, what is refused; walks in which modules are replaced. */
#include "kit/models.h"

/* ---- a user's module, with members ---- */

typedef struct twice {
    ek_module module;
    ek_module *body;
    ek_tensor *scale, *offset; /* offset: a buffer, absent at first */
} twice;

static ek_value twice_forward(ek_module *module, const ek_args *args)
{
    const twice *self = (twice *)module;
    ek_tensor *y = ek_mul(ek_apply(self->body, ek_arg_tensor(args, 0)), self->scale);
    return ek_value_of_tensor(self->offset ? ek_add(y, self->offset) : y);
}

MODULE_TYPE(twice, twice)

static ek_module *twice_new(ek_module *body)
{
    ek_scope scope = ek_scope_begin();
    twice *self = new_module(&twice_type);
    assert_ok(ek_register_module(&self->module, "body", &self->body, body));
    assert_ok(ek_register_parameter(&self->module, "scale", &self->scale, ek_ones(EK_SHAPE(1))));
    assert_ok(ek_register_buffer(&self->module, "offset", &self->offset, NULL));
    ek_scope_end(&scope);
    return &self->module;
}

/* Counts how often it was freed. */
static int freed;

static void guest_destroy(ek_module *module)
{
    freed++;
}

static ek_value guest_forward(ek_module *module, const ek_args *args)
{
    return ek_arg(args, 0);
}

MODULE_TYPE_WITH(guest, ek_module, .destroy = guest_destroy)

static double value_of(ek_module *module, ek_tensor *x)
{
    ek_tensor *y = ek_apply(module, x);
    assert_made(y);
    return element(y, 0);
}

static int count_one(const char *path, ek_tensor *tensor, void *user)
{
    ++*(int *)user;
    return 0;
}

static int parameters_of(ek_module *module)
{
    int count = 0;
    assert_ok(ek_module_parameters(module, count_one, &count));
    return count;
}

/* ---- children ---- */

TEST(a_child_is_replaced_where_it_was)
{
    freed = 0;
    ek_module *net = twice_new(new_module(&guest_type)), *body = ek_tanh();
    ek_tensor *x = ek_full(2, EK_SHAPE(1));
    assert_ok(ek_module_set(net, "body", body));
    ck_assert_int_eq(freed, 1);
    ck_assert_ptr_eq(((twice *)net)->body, body);
    ck_assert_double_eq_tol(value_of(net, x), tanh(2), 1e-6);
    ek_module *list = ek_sequential(net, ek_sequential(ek_relu(), new_module(&guest_type)));
    assert_ok(ek_module_set(list, "1.1", ek_linear(1, 3)));
    ck_assert_int_eq(freed, 2);
    ck_assert(ek_module_is(ek_module_at(list, "1.1"), "linear"));
    ck_assert_ptr_null(ek_apply(list, ek_ones(EK_SHAPE(2, 2, 4))));
    assert_error(EK_E_SHAPE, "1 (linear)");         /* its name in sentences */
    assert_ok(ek_module_set(list, "0.body", body)); /* itself */
    ck_assert_ptr_eq(((twice *)net)->body, body);
    ek_module_free(list);
}

TEST(shared_children_stay_with_their_other_parents)
{
    freed = 0;
    ek_module *guest = new_module(&guest_type), *net = ek_sequential(guest, ek_relu(), guest);
    assert_ok(ek_module_set(net, "0", ek_tanh()));
    ck_assert_int_eq(freed, 0);
    assert_ok(ek_module_set(net, "1", guest)); /* back again, shared */
    assert_ok(ek_module_set(net, "2", ek_tanh()));
    ck_assert_ptr_eq(ek_module_at(net, "1"), guest);
    ek_module_free(net);
    ck_assert_int_eq(freed, 1);
}

/* A wrapper around the old child takes its place; if it cannot be made, the old child stays. */
TEST(a_new_parent_takes_the_place_of_its_child)
{
    ek_module *net = ek_sequential(ek_linear(3, 2), ek_relu()), *old = ek_module_at(net, "0");
    assert_ok(ek_module_set(net, "0", ek_weight_norm(old)));
    ck_assert_ptr_eq(ek_module_child(ek_module_at(net, "0"), 0), old);
    assert_made(ek_module_tensor(net, "0.weight_g"));
    assert_refused(ek_module_set(net, "1", ek_spectral_norm(ek_module_at(net, "1"))), EK_E_INVALID,
                   "relu has no parameter \"weight\"");
    assert_refused(ek_module_set(net, "1", ek_sequential(ek_module_at(net, "1"), NULL)),
                   EK_E_INVALID, "NULL");
    ck_assert(ek_module_is(ek_module_at(net, "1"), "relu"));
    assert_ok(ek_module_set(net, "1", ek_checkpoint(ek_module_at(net, "1"))));
    assert_made(ek_apply(net, ek_ones(EK_SHAPE(1, 3))));
    ek_module_free(net);
}

TEST(what_cannot_be_replaced)
{
    freed = 0;
    ek_module *net =
        ek_sequential_named({"first", ek_linear(3, 2)}, {"rest", ek_sequential(ek_relu())});
    assert_refused(ek_module_set(net, "last", new_module(&guest_type)), EK_E_INVALID,
                   "sequential has no module \"last\"; sequential has \"first\", \"rest\"");
    assert_refused(ek_module_set(net, "rest.1", new_module(&guest_type)), EK_E_INVALID,
                   "has \"0\"");
    assert_refused(ek_module_set(net, "first.weight", new_module(&guest_type)), EK_E_INVALID,
                   "linear has none");
    assert_refused(ek_module_set(net, "", new_module(&guest_type)), EK_E_INVALID, "no module \"\"");
    assert_refused(ek_module_set(net, NULL, new_module(&guest_type)), EK_E_INVALID, "path is NULL");
    assert_refused(ek_module_set(NULL, "first", new_module(&guest_type)), EK_E_INVALID,
                   "module is NULL");
    ck_assert_int_eq(freed, 6); /* ownership passes on errors, too */
    assert_refused(ek_module_set(net, "first", NULL), EK_E_INVALID, "ek_identity()");
    assert_refused(ek_module_set(net, "first", ek_linear(0, 2)), EK_E_INVALID, "in_features 0");
    assert_refused(ek_module_set(net, "rest.0", net), EK_E_INVALID, "a part of itself");
    assert_refused(ek_module_set(net, "rest.0", ek_module_at(net, "rest")), EK_E_INVALID,
                   "a part of itself");
    assert_refused(ek_module_set_tensor(net, "first.weights", NULL), EK_E_INVALID,
                   "no parameter or buffer \"first.weights\"; linear has \"weight\", \"bias\"");
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3), .requires_grad = true);
    assert_refused(ek_module_set_tensor(net, "first.weight", ek_mul_scalar(x, 2)), EK_E_AUTOGRAD,
                   "ek_detach");
    assert_refused(ek_module_set_tensor(net, "first.weight", ek_ones(EK_SHAPE(2, 3), EK_I64)),
                   EK_E_DTYPE, "");
    assert_refused(ek_module_set_tensor(net, "first.weight", ek_add(x, NULL)), EK_E_INVALID, "");
    ck_assert_int_eq(parameters_of(net), 2);
    ek_module_free(net);
}

/* ---- parameters and buffers ---- */

TEST(a_tensor_is_replaced_where_it_was)
{
    ek_module *net = twice_new(ek_identity());
    ek_tensor *x = ek_full(5, EK_SHAPE(1)), *scale = ek_full(3, EK_SHAPE(1));
    assert_ok(ek_module_set_tensor(net, "scale", scale));
    assert_ok(ek_module_set_tensor(net, "offset", ek_full(1, EK_SHAPE(1)))); /* was absent */
    ck_assert(value_of(net, x) == 16);
    ck_assert(ek_tensor_requires_grad(scale));
    ck_assert(!ek_tensor_requires_grad(ek_module_tensor(net, "offset")));
    ck_assert_int_eq(parameters_of(net), 1); /* a buffer stays a buffer */
    assert_ok(ek_module_set_tensor(net, "offset", NULL));
    assert_refused(ek_module_tensor(net, "offset"), EK_E_INVALID, "\"offset\" (absent)");
    ck_assert(value_of(net, x) == 15);
    ek_module_free(net);
    ek_module *conv = ek_conv2d(3, 2, 3);
    assert_ok(ek_module_set_tensor(conv, "weight", ek_ones(EK_SHAPE(2, 1, 3, 3))));
    assert_ok(ek_module_set_tensor(conv, "bias", NULL));
    ck_assert(value_of(conv, ek_ones(EK_SHAPE(1, 1, 3, 3))) == 9);
    ek_module_free(conv);
}

TEST(tied_weights_are_one_parameter)
{
    ek_module *encoder = ek_linear(3, 3), *net = ek_sequential(encoder, ek_tanh(), ek_linear(3, 3));
    ek_tensor *shared = ek_module_tensor(encoder, "weight");
    assert_ok(ek_module_set_tensor(net, "2.weight", shared));
    ck_assert_int_eq(parameters_of(net), 3);
    ck_assert_int_eq(ek_module_numel(net), 15);
    ek_tensor *x = ek_randn(EK_SHAPE(4, 3));
    assert_ok(ek_backward(ek_sum(ek_square(ek_apply(net, x)))));
    ek_tensor *bias[] = {ek_module_tensor(net, "0.bias"), ek_module_tensor(net, "2.bias")};
    ek_tensor *one = ek_clone(ek_detach(shared)), *two = ek_clone(ek_detach(shared));
    ek_tensor *both[] = {one, two}, *gradients[2];
    for (int i = 0; i < 2; i++)
        assert_ok(ek_tensor_set_requires_grad(both[i], true));
    ek_tensor *loss =
        ek_sum(ek_square(ek_f_linear(ek_f_tanh(ek_f_linear(x, one, bias[0])), two, bias[1])));
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = both, .input_count = 2,
                      .gradients = gradients));
    assert_close(ek_tensor_grad(shared), ek_add(gradients[0], gradients[1]), 1e-5, 1e-6);
    ek_module *copy = ek_module_copy(net);
    ck_assert_ptr_eq(ek_module_tensor(copy, "0.weight"), ek_module_tensor(copy, "2.weight"));
    ek_module_free(copy);
    /* Untied again: the first keeps the tensor. */
    assert_ok(ek_module_set_tensor(net, "2.weight", ek_clone(ek_detach(shared))));
    ck_assert_int_eq(parameters_of(net), 4);
    ck_assert_ptr_eq(ek_module_tensor(net, "0.weight"), shared);
    ek_module_free(net);
}

/* A tensor begins to require a gradient when it becomes a parameter, and not again. */
TEST(a_frozen_parameter_stays_frozen)
{
    ek_module *encoder = ek_embedding(5, 3), *decoder = ek_linear(3, 5);
    ek_module_set_requires_grad(encoder, false);
    ek_module *copy = ek_module_copy(encoder);
    ek_module *const from[] = {encoder, copy};
    for (int i = 0; i < 2; i++) {
        ek_tensor *shared = ek_module_tensor(from[i], "weight");
        assert_ok(ek_module_set_tensor(decoder, "weight", shared));
        ck_assert(!ek_tensor_requires_grad(shared));
    }
    ek_module_free(encoder);
    ek_module_free(copy);
    ek_module_free(decoder);
}

/* ---- weights that are computed ---- */

TEST(the_origin_of_a_computed_weight_is_replaced)
{
    ek_module *net =
        ek_sequential(ek_weight_norm(ek_linear(2, 2)), ek_spectral_norm(ek_linear(2, 2)));
    const float values[] = {3, 4, 0, 2};
    ek_tensor *v = ek_from_data(values, EK_SHAPE(2, 2), EK_F32);
    assert_refused(ek_module_set_tensor(net, "0.weight", v), EK_E_INVALID,
                   "computed from \"weight_v\"");
    assert_refused(ek_module_set_tensor(net, "0.weight_v", NULL), EK_E_INVALID, "cannot be absent");
    assert_ok(ek_module_set_tensor(net, "0.weight_v", v));
    assert_ok(ek_module_set_tensor(net, "0.weight_g", ek_full(10, EK_SHAPE(2, 1))));
    assert_ok(ek_module_set_tensor(net, "0.bias", NULL));
    ck_assert_int_eq(parameters_of(net), 4);
    ck_assert_double_eq_tol(value_of(ek_module_at(net, "0"), ek_ones(EK_SHAPE(1, 2))), 14, 1e-4);
    /* Both factors may be one tensor for a while. */
    ek_tensor *g = ek_full(10, EK_SHAPE(2, 1));
    assert_ok(ek_module_set_tensor(net, "0.weight_g", v));
    assert_ok(ek_module_set_tensor(net, "0.weight_g", g));
    assert_made(ek_apply(net, ek_ones(EK_SHAPE(1, 2))));
    /* Tied: the raw tensor is shared, and each use computes its own weight. */
    assert_ok(ek_module_set_tensor(net, "1.weight_orig", v));
    ck_assert_int_eq(parameters_of(net), 3);
    assert_ok(ek_backward(ek_sum(ek_apply(net, ek_ones(EK_SHAPE(1, 2))))));
    assert_made(ek_tensor_grad(v));
    ek_module_free(net);
    /* Around one another, each knows the origin. */
    net = ek_spectral_norm(ek_weight_norm(ek_linear(2, 2)), .name = "weight_v");
    assert_refused(ek_module_set_tensor(net, "weight", v), EK_E_INVALID, "\"weight_v_orig\"");
    assert_refused(ek_module_set_tensor(net, "weight_v", v), EK_E_INVALID, "\"weight_v_orig\"");
    assert_ok(ek_module_set_tensor(net, "weight_v_orig", v));
    ck_assert_int_eq(parameters_of(net), 3);
    assert_made(ek_apply(net, ek_ones(EK_SHAPE(1, 2))));
    ek_module_free(net);
}

/* A module with two parents may lose the origin by the path that does not know of it. */
TEST(an_origin_that_is_replaced_behind_its_back_is_told)
{
    ek_module *linear = ek_linear(2, 2);
    ek_module *net = ek_sequential(linear, ek_weight_norm(linear));
    ek_tensor *x = ek_ones(EK_SHAPE(1, 2));
    assert_made(ek_apply(net, x));
    assert_ok(ek_module_set_tensor(net, "0.weight", ek_ones(EK_SHAPE(2, 2))));
    assert_refused(ek_apply(net, x), EK_E_STATE, "1 (weight_norm): the parameter from which");
    ek_module_free(net);
}

/* ---- layers with tensors that do not fit: errors, no more ---- */

typedef struct misfit {
    ek_module *module;
    ek_value input;
    ek_tensor *other; /* NULL: absent */
    FILE *printed;
} misfit;

static int misfit_try(misfit *m, const char *path, ek_tensor *tensor)
{
    ek_tensor *before = ek_keep(tensor);
    ek_scope scope = ek_scope_begin();
    if (ek_module_set_tensor(m->module, path, m->other) >= 0) {
        assert_ok(ek_module_print(m->module, m->printed));
        for (int training = 0; training < 2; training++) {
            ek_module_train(m->module, training);
            if (ek_forward(m->module, m->input).kind == EK_VALUE_ERROR)
                ck_assert_str_ne(ek_error_message(), "");
            ek_error_clear();
        }
    }
    ek_error_clear();
    ek_scope_end(&scope);
    assert_ok(ek_module_set_tensor(m->module, path, before));
    ek_release(before);
    return 0;
}

static int misfit_visit(const char *path, ek_tensor *tensor, void *user)
{
    return misfit_try(user, path, tensor);
}

TEST_LOOP(layers_say_what_does_not_fit, 0, 7)
{
    const ek_value line = EK_VALUE(ek_ones(EK_SHAPE(2, 4))),
                   rows = EK_VALUE(ek_ones(EK_SHAPE(2, 3, 4))),
                   picture = EK_VALUE(ek_ones(EK_SHAPE(2, 4, 5, 5)));
    const struct {
        ek_module *module;
        ek_value input;
    } layers[] = {{ek_linear(4, 4), line},
                  {ek_batch_norm1d(4), line},
                  {ek_prelu(4), line},
                  {ek_layer_norm(EK_SHAPE(4)), line},
                  {ek_rms_norm(EK_SHAPE(4)), line},
                  {ek_sequential(ek_linear(4, 4), ek_relu()), line},
                  {ek_sequential(ek_batch_norm1d(4), ek_relu()), line},
                  {ek_spectral_norm(ek_linear(4, 4)), line},
                  {ek_weight_norm(ek_linear(4, 4)), line},
                  {ek_conv1d(3, 4, 3), rows},
                  {ek_lstm(4, 3, .proj_size = 2), rows},
                  {ek_gru(4, 3), rows},
                  {ek_gru_cell(4, 3), line},
                  {ek_lstm_cell(4, 3), line},
                  {ek_transformer_encoder(ek_transformer_encoder_layer(4, 2), 1), rows},
                  {ek_conv2d(4, 4, 3, .groups = 2), picture},
                  {ek_conv_transpose2d(4, 4, 3), picture},
                  {ek_spectral_norm(ek_conv_transpose2d(4, 4, 3)), picture},
                  {ek_batch_norm2d(4), picture},
                  {ek_group_norm(2, 4), picture},
                  {ek_instance_norm2d(4, .affine = true, .track_running_stats = true), picture},
                  {ek_embedding(3, 4), EK_VALUE(ek_zeros(EK_SHAPE(2), EK_I64))},
                  {ek_bilinear(4, 4, 2), line}};
    ek_tensor *const others[] = {NULL,
                                 ek_scalar(1, EK_F32, ek_cpu()),
                                 ek_ones(EK_SHAPE(3)),
                                 ek_zeros(EK_SHAPE(0)),
                                 ek_ones(EK_SHAPE(5, 5)),
                                 ek_ones(EK_SHAPE(1, 2, 3, 4, 5)),
                                 ek_ones(EK_SHAPE(4, 4), EK_F64)};
    FILE *nowhere = fopen("/dev/null", "w");
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        misfit m = {layers[i].module, layers[i].input, others[_i], nowhere};
        assert_made(m.module);
        assert_ok(ek_module_parameters(m.module, misfit_visit, &m));
        assert_ok(ek_module_buffers(m.module, misfit_visit, &m));
        ek_module_free(m.module);
    }
    fclose(nowhere);
}

/* ---- parents with children that do not fit ---- */

typedef struct walk {
    char paths[60][80];
    int count;
} walk;

static int list_child(const char *path, ek_module *module, void *user)
{
    walk *w = user;
    if (*path)
        snprintf(w->paths[w->count++], sizeof w->paths[0], "%s", path);
    return 0;
}

static ek_module *stranger(int which)
{
    return which == 0   ? ek_linear(4, 4)
           : which == 1 ? ek_embedding(4, 4)
           : which == 2 ? ek_module_list(ek_relu(), ek_linear(4, 3))
                        : ek_lstm(4, 4);
}

TEST_LOOP(parents_say_which_child_does_not_fit, 0, 4)
{
    static walk w;
    ek_module *nets[] = {ek_transformer(4, 2, .num_encoder_layers = 1, .num_decoder_layers = 1,
                                        .dim_feedforward = 4),
                         ek_sequential(ek_batch_norm1d(4), ek_relu(), ek_linear(4, 4), ek_relu(),
                                       ek_dropout(0.5))};
    ek_tensor *x = ek_ones(EK_SHAPE(2, 4));
    for (int n = 0; n < 2; n++) {
        w.count = 0;
        assert_ok(ek_module_modules(nets[n], list_child, &w));
        for (int i = 0; i < w.count; i++) {
            ek_module *copy = ek_module_copy(nets[n]);
            ek_scope scope = ek_scope_begin();
            assert_ok(ek_module_set(copy, w.paths[i], stranger(_i)));
            ek_value y = n ? ek_forward(copy, x) : ek_forward(copy, x, x);
            ck_assert(y.kind != EK_VALUE_ERROR || *ek_error_message());
            ek_error_clear();
            ek_scope_end(&scope);
            ek_module_free(copy);
        }
        ek_module_free(nets[n]);
    }
}

/* ---- replacing in a walk ---- */

typedef struct visit {
    ek_module *net;
    char paths[200];
    ek_module *(*make)(void);
    const char *type; /* of what is replaced; NULL: nothing */
} visit;

static int visit_module(const char *path, ek_module *module, void *user)
{
    visit *v = user;
    strcat(strcat(v->paths, path), "|");
    return ek_module_is(module, v->type) ? ek_module_set(v->net, path, v->make()) : 0;
}

TEST(children_are_visited_before_their_parents)
{
    ek_module *shared = ek_relu();
    visit v = {
        .net = ek_sequential(shared, twice_new(ek_sequential(shared, ek_linear(1, 1))), shared)};
    assert_ok(ek_module_apply(v.net, visit_module, &v));
    ck_assert_str_eq(v.paths, "0|1.body.0|1.body.1|1.body|1||"); /* as torch's apply */
    v = (visit){.net = v.net, .type = "relu", .make = ek_tanh};
    assert_ok(ek_module_apply(v.net, visit_module, &v));
    ck_assert(ek_module_is(ek_module_at(v.net, "0"), "tanh") &&
              ek_module_is(ek_module_at(v.net, "1.body.0"), "tanh") &&
              ek_module_is(ek_module_at(v.net, "2"), "tanh"));
    v = (visit){.net = v.net, .type = "twice", .make = ek_relu};
    assert_ok(ek_module_apply(v.net, visit_module, &v));
    assert_made(ek_apply(v.net, ek_ones(EK_SHAPE(1))));
    v.type = "sequential"; /* the root has no place */
    assert_refused(ek_module_apply(v.net, visit_module, &v), EK_E_INVALID, "no module \"\"");
    assert_refused(ek_module_apply(v.net, NULL, &v), EK_E_INVALID, "visitor is NULL");
    assert_refused(ek_module_apply(NULL, visit_module, &v), EK_E_INVALID, "module is NULL");
    ek_module_free(v.net);
}

TEST(types_have_names)
{
    ek_module *conv = ek_conv2d(1, 1, 1);
    ck_assert(ek_module_is(conv, "conv2d"));
    ck_assert(!ek_module_is(conv, "conv") && !ek_module_is(conv, NULL));
    ck_assert(!ek_module_is(NULL, "conv2d"));
    ek_module_free(conv);
}
