/* Modules: registering, sharing, walking, calling, replicas without contents. */
#include "kit/models.h"
#include "nn/module_table.h"

/* The example of module.h. */
typedef struct {
    ek_module module;
    ek_tensor *scale;
    ek_module *body;
    int *destroyed;
} scaled;

static ek_value scaled_forward(ek_module *module, const ek_args *args)
{
    scaled *self = (scaled *)module;
    ek_tensor *y = ek_apply(self->body, ek_arg_tensor(args, 0));
    return ek_value_of_tensor(ek_mul(y, self->scale));
}

static void scaled_destroy(ek_module *module)
{
    scaled *self = (scaled *)module;
    if (self->destroyed)
        ++*self->destroyed;
}

MODULE_TYPE_WITH(scaled, scaled, .destroy = scaled_destroy)

static scaled *make_scaled(void)
{
    scaled *self = new_module(&scaled_type);
    assert_ok(ek_register_parameter(&self->module, "scale", &self->scale, ek_ones(EK_SHAPE(1))));
    assert_ok(ek_register_module(&self->module, "body", &self->body, ek_linear(4, 3)));
    return self;
}

TEST(user_module_runs)
{
    scaled *self = make_scaled();
    assert_ok(ek_init_constant(self->scale, 2));
    ek_tensor *x = ek_ones(EK_SHAPE(2, 4));
    ek_tensor *plain = ek_apply(self->body, x);
    ek_tensor *y = ek_apply(&self->module, x);
    assert_close(y, ek_mul_scalar(plain, 2), 1e-6, 0);
    assert_ok(ek_backward(ek_sum(y)));
    ck_assert_ptr_nonnull(ek_tensor_grad(self->scale));
    ck_assert_ptr_nonnull(ek_tensor_grad(ek_module_tensor(self->body, "weight")));
    ek_module_zero_grad(&self->module);
    ck_assert_ptr_null(ek_tensor_grad(self->scale));
    ck_assert_int_eq(ek_module_numel(&self->module), 1 + 12 + 3);
    ek_module_free(&self->module);
}

static int append_path(const char *path, ek_tensor *tensor, void *user)
{
    strcat(user, path);
    strcat(user, " ");
    return 0;
}

TEST(walks_own_tensors_first_and_shared_ones_once)
{
    scaled *self = (scaled *)ek_module_new(&scaled_type);
    ek_module *m = &self->module;
    ek_module *shared = ek_linear(2, 2);
    assert_ok(ek_register_module(m, "first", &self->body, shared));
    assert_ok(ek_register_module(m, "again", NULL, shared));
    assert_ok(ek_register_module(m, "norm", NULL, ek_sequential(ek_relu(), ek_batch_norm1d(2))));
    assert_ok(ek_register_parameter(m, "tied", NULL, ek_module_tensor(shared, "weight")));
    assert_ok(ek_register_parameter(m, "absent", &self->scale, NULL));
    char paths[256] = "";
    assert_ok(ek_module_parameters(m, append_path, paths));
    ck_assert_str_eq(paths, "tied first.bias norm.1.weight norm.1.bias ");
    paths[0] = '\0';
    assert_ok(ek_module_buffers(m, append_path, paths));
    ck_assert_str_eq(paths, "norm.1.running_mean norm.1.running_var norm.1.num_batches_tracked ");
    ck_assert_ptr_eq(ek_module_tensor(m, "again.weight"), ek_module_tensor(m, "tied"));
    ck_assert_ptr_eq(ek_module_child(m, 1), shared);
    ck_assert_ptr_null(ek_module_child(m, 3));
    ck_assert_int_eq(ek_error_status(), 0);
    static const char *const wrong[] = {"absent",        "first",  "",
                                        "first.weight.", "norm.2", "norm..1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_refused(ek_module_tensor(m, wrong[i]), EK_E_INVALID, "no parameter or buffer");
    }
    ek_module_free(m);
}

static int stop(const char *path, ek_tensor *tensor, void *user)
{
    return ++*(int *)user == 2 ? 7 : 0;
}

TEST(walk_stops_where_told)
{
    ek_module *net = ek_sequential(ek_linear(2, 2), ek_linear(2, 2));
    int count = 0;
    ck_assert_int_eq(ek_module_parameters(net, stop, &count), 7);
    ck_assert_int_eq(count, 2);
    assert_refused(ek_module_parameters(NULL, stop, &count), EK_E_INVALID, "NULL");
    assert_refused(ek_module_parameters(net, NULL, NULL), EK_E_INVALID, "visitor is NULL");
    assert_refused(ek_module_tensor(net, NULL), EK_E_INVALID, "path is NULL");
    assert_refused(ek_module_sha256(net, NULL), EK_E_INVALID, "text is NULL");
    ek_module_free(net);
}

TEST(registering_refuses)
{
    scaled *self = make_scaled();
    ek_module *m = &self->module;
    ek_tensor *one = ek_ones(EK_SHAPE(1)), *outside = NULL;
    assert_refused(ek_register_buffer(m, "scale", NULL, one), EK_E_INVALID, "registered already");
    assert_refused(ek_register_buffer(m, "a.b", NULL, one), EK_E_INVALID, "\"a.b\"");
    assert_refused(ek_register_buffer(m, "", NULL, one), EK_E_INVALID, "no name");
    assert_refused(ek_register_buffer(m, "far", &outside, one), EK_E_INVALID, "outside");
    assert_refused(ek_register_buffer(m, "same", &self->scale, one), EK_E_INVALID,
                   "share one member");
    assert_refused(ek_register_parameter(m, "counter", NULL,
                                         ek_zeros(EK_SHAPE(1), .dtype = EK_I64)),
                   EK_E_DTYPE, "");
    assert_refused(ek_register_parameter(m, "result", NULL, ek_mul_scalar(self->scale, 2)),
                   EK_E_AUTOGRAD, "result of an operation");
    assert_refused(ek_register_module(m, "self", NULL, m), EK_E_INVALID, "part of itself");
    /* The pending error of what could not be made. */
    assert_refused(ek_register_module(m, "linear", NULL, ek_linear(0, 4)), EK_E_INVALID,
                   "in_features 0");
    ck_assert_int_eq(ek_module_member_count(m), 2);
    ek_module_free(m);

    static const ek_module_type nameless = {.size = sizeof(scaled), .forward = scaled_forward};
    assert_refused(ek_module_new(&nameless), EK_E_INVALID, "name");
}

TEST(contents_are_owned)
{
    int destroyed = 0;
    scaled *self = make_scaled();
    self->destroyed = &destroyed;
    ek_module *outer = ek_sequential(&self->module, ek_identity());
    assert_made(outer);
    ek_tensor *weight = ek_keep(ek_module_tensor(outer, "0.body.weight"));
    ek_module_free(outer);
    ck_assert_int_eq(destroyed, 1);
    ck_assert_int_eq(ek_tensor_count(weight), 12);
    ek_release(weight);
    ek_module_free(NULL);
}

static int backward_with_graph(ek_module *net)
{
    ek_tensor *y = ek_apply(net, ek_ones(EK_SHAPE(3, 4), .device = test_device(0)));
    return ek_backward(ek_sum(ek_square(y)), .create_graph = true);
}

/* Gradients that hold the graph that holds their parameters, which hold them. */
TEST(gradients_with_a_history_go_with_the_module)
{
    assert_ok(test_devices_configure("1"));
    ek_module *net = ek_sequential(ek_linear(4, 5), ek_tanh(), ek_linear(5, 1));
    assert_made(net);
    assert_ok(ek_module_to_device(net, test_device(0)));
    assert_ok(backward_with_graph(net));
    ck_assert(!ek_tensor_is_leaf(ek_tensor_grad(ek_module_tensor(net, "0.weight"))));
    ek_module_free(net);
}

/* Whoever holds a parameter too has its gradient as before, but for a history. */
TEST(held_parameters_keep_their_gradients)
{
    assert_ok(test_devices_configure("1"));
    ek_module *net = ek_sequential(ek_linear(4, 5), ek_tanh(), ek_linear(5, 1));
    assert_made(net);
    assert_ok(ek_module_to_device(net, test_device(0)));
    ek_tensor *plain = ek_keep(ek_module_tensor(net, "0.weight"));
    ek_tensor *with_history = ek_keep(ek_module_tensor(net, "2.weight"));
    assert_ok(backward_with_graph(net));
    ek_tensor *before = ek_clone(ek_tensor_grad(with_history));
    assert_ok(ek_tensor_set_grad(plain, ek_detach(ek_tensor_grad(plain))));
    const ek_tensor *handle = ek_tensor_grad(plain);
    ek_module_free(net);
    ck_assert_ptr_eq(ek_tensor_grad(plain), handle);
    ek_tensor *after = ek_tensor_grad(with_history);
    ck_assert_ptr_nonnull(after);
    ck_assert(ek_tensor_is_leaf(after));
    assert_close(ek_to_device(after, ek_cpu()), ek_to_device(before, ek_cpu()), 0, 0);
    ek_release(plain);
    ek_release(with_history);
}

TEST(memory_is_counted_as_parameters)
{
    ek_memory_stats stats;
    ek_module *net = ek_sequential(ek_linear(16, 16), ek_batch_norm1d(16));
    assert_made(net);
    assert_ok(ek_memory_get_stats(ek_cpu(), &stats));
    ck_assert_uint_eq(stats.now[EK_MEMORY_ACTIVATION], 0);
    ck_assert_uint_eq(stats.now[EK_MEMORY_PARAMETER], 1024 + 5 * 64 + 64);
    ek_module_free(net);
}

TEST(replica_is_an_empty_copy)
{
    int destroyed = 0;
    scaled *self = make_scaled();
    self->destroyed = &destroyed;
    ek_module_train(&self->module, false);
    scaled *replica = (scaled *)ek_module_replicate_struct(&self->module);
    assert_made(replica);
    ck_assert(replica->module.is_replica && !replica->module.training);
    ck_assert_ptr_eq(replica->destroyed, &destroyed);
    ck_assert_ptr_null(replica->scale);
    ck_assert_ptr_null(replica->body);
    ck_assert_ptr_nonnull(self->scale);
    ck_assert_int_eq(ek_module_member_count(&replica->module), 2);
    ek_member scale = ek_module_member(&replica->module, 0);
    ek_member body = ek_module_member(&replica->module, 1);
    ck_assert_int_eq(scale.kind, EK_MEMBER_PARAMETER);
    ck_assert_int_eq(body.kind, EK_MEMBER_MODULE);
    ck_assert_str_eq(scale.name, "scale");
    ck_assert_ptr_eq(scale.slot.tensor, &replica->scale);
    ck_assert_ptr_eq(body.slot.module, &replica->body);
    *scale.slot.tensor = ek_keep(self->scale);
    *body.slot.module = ek_module_retain(self->body);
    assert_made(ek_apply(&replica->module, ek_ones(EK_SHAPE(1, 4))));
    assert_refused(ek_register_buffer(&replica->module, "late", NULL, NULL), EK_E_STATE, "replica");

    /* The layout is shared, until the module registers more. */
    assert_ok(ek_register_buffer(&self->module, "more", NULL, ek_ones(EK_SHAPE(1))));
    ck_assert_int_eq(ek_module_member_count(&self->module), 3);
    ck_assert_int_eq(ek_module_member_count(&replica->module), 2);
    ek_module_free(&self->module);
    ck_assert_int_eq(destroyed, 1);
    ck_assert_str_eq(ek_module_member(&replica->module, 1).name, "body");
    assert_made(ek_apply(&replica->module, ek_ones(EK_SHAPE(1, 4))));
    ek_module_free(&replica->module);
    ck_assert_int_eq(destroyed, 1);
}

TEST(calls_check_their_arguments)
{
    ek_module *net = ek_sequential(ek_linear(4, 3), ek_relu());
    ek_tensor *x = ek_ones(EK_SHAPE(2, 4));
    assert_refused(ek_forward(net, x, x), EK_E_INVALID, "takes 1 input");
    ek_value keywords = ek_value_dict(&(const ek_value_entry){"mask", EK_VALUE(x)}, 1);
    assert_refused(ek_forward_kw(net, keywords, x), EK_E_INVALID, "\"mask\"");
    assert_refused(ek_forward(net, ek_value_of_int(3)), EK_E_INVALID,
                   "argument 0 has to be a tensor, not an integer");
    assert_refused(ek_forward(NULL, x), EK_E_INVALID, "module is NULL");
    assert_refused(ek_module_forward(net, NULL), EK_E_INVALID, "arguments are NULL");
    assert_refused(ek_forward_kw(net, EK_VALUE(x), x), EK_E_INVALID,
                   "keyword arguments have to be a dictionary");
    assert_refused(ek_apply(net, NULL), EK_E_INVALID, "x is NULL");

    /* Where it went wrong; and the first error stays, without a second prefix. */
    ck_assert_ptr_null(ek_apply(net, ek_ones(EK_SHAPE(2, 5))));
    ck_assert_ptr_null(ek_apply(net, ek_value_tensor(ek_value_error())));
    ck_assert_msg(strncmp(ek_error_message(), "sequential: 0 (linear): ", 24) == 0, "%s",
                  ek_error_message());
    ek_error_clear();
    ek_module_free(net);
}

TEST(training_flag_reaches_all)
{
    ek_module *net = ek_sequential(ek_sequential(ek_dropout(0.5)), ek_relu());
    ek_module *dropout = ek_module_child(ek_module_child(net, 0), 0);
    ck_assert(net->training && dropout->training);
    ek_tensor *x = ek_ones(EK_SHAPE(64));
    double sum;
    ek_module_train(net, false);
    ck_assert(!net->training && !dropout->training);
    assert_ok(ek_item(ek_sum(ek_apply(net, x)), &sum));
    ck_assert_double_eq(sum, 64);
    ek_module_train(net, true);
    assert_ok(ek_item(ek_sum(ek_eq(ek_apply(net, x), ek_zeros(EK_SHAPE(1)))), &sum));
    ck_assert(sum > 10 && sum < 54);
    ek_module_free(net);
}
