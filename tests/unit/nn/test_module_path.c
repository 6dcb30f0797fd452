/* Paths of modules: in visitors, hooks, copies and replicas, in backward, and with their memory. */
#include "autograd/graph.h"
#include "kit/models.h"
#include "nn/module_table.h"

typedef struct body_of {
    ek_module module;
    ek_module *first, *second;
    ek_module *loose; /* not registered */
} body_of;

static ek_value body_forward(ek_module *module, const ek_args *args)
{
    body_of *self = (body_of *)module;
    ek_tensor *y = ek_apply(self->first, ek_arg_tensor(args, 0));
    if (self->loose)
        y = ek_apply(self->loose, y);
    return ek_forward(self->second, y);
}

MODULE_TYPE(body, body_of)

static ek_module *body_new(ek_module *first, ek_module *second)
{
    body_of *self = new_module(&body_type);
    assert_ok(ek_register_module(&self->module, "first", &self->first, first));
    assert_ok(ek_register_module(&self->module, "second", &self->second, second));
    return &self->module;
}

static ek_module *net(void)
{
    ek_module *inner = ek_sequential(ek_linear(4, 4), ek_tanh());
    return ek_sequential(body_new(inner, ek_linear(4, 4)), ek_linear(4, 2));
}

static const char *path_at(ek_module *module, const char *path)
{
    ek_module *found = ek_module_at(module, path);
    assert_made(found);
    return ek_module_path(found);
}

static const char *memory_at(ek_module *module, const char *path)
{
    ek_tensor *tensor = ek_module_tensor(module, path);
    assert_made(tensor);
    return tensor->storage->path;
}

TEST(modules_have_paths_from_their_outermost_parent)
{
    ek_module *module = net();
    ck_assert_str_eq(ek_module_path(module), "");
    ck_assert_str_eq(path_at(module, "0.first.1"), "0.first.1");
    ck_assert_str_eq(memory_at(module, "0.first.0.weight"), "0.first.0");
    ck_assert_str_eq(memory_at(module, "1.bias"), "1");
    body_of *outer = (body_of *)body_new(module, ek_tanh());
    ck_assert_str_eq(ek_module_path(module), "first");
    ck_assert_str_eq(path_at(module, "0.first.1"), "first.0.first.1");
    ck_assert_str_eq(memory_at(module, "0.first.0.weight"), "first.0.first.0");
    ck_assert_str_eq(ek_module_path(outer->second), "second");
    ck_assert_ptr_null(ek_module_path(NULL));
    ck_assert_int_eq(ek_error_status(), 0);
    ek_module_free(&outer->module);
}

/* The path of a module with two parents goes through the first parent. */
TEST(shared_modules_keep_their_first_path)
{
    ek_module *shared = ek_linear(4, 4);
    ek_module *one = ek_sequential(shared), *two = ek_sequential(ek_tanh(), shared);
    ek_module *both = body_new(two, one);
    ck_assert_str_eq(ek_module_path(shared), "second.0");
    ck_assert_str_eq(memory_at(both, "second.0.weight"), "second.0");
    ek_module_free(both);
}

TEST(tied_tensors_keep_their_first_path)
{
    ek_module *wte = ek_linear(4, 4), *head = ek_sequential();
    ek_tensor *weight = ek_module_tensor(wte, "weight");
    ek_module *first = ek_sequential(wte);
    assert_ok(ek_register_parameter(head, "weight", NULL, weight));
    ek_module *both = body_new(first, head);
    ck_assert_str_eq(weight->storage->path, "first.0");
    ek_module_free(both);
}

static int note_path(const char *path, ek_tensor *tensor, void *user)
{
    const char ***next = user;
    *(*next)++ = path;
    return 0;
}

static int note_module_path(const char *path, ek_module *module, void *user)
{
    return note_path(path, NULL, user);
}

TEST(paths_of_visitors_outlive_the_module)
{
    const char *paths[16], **next = paths;
    ek_module *module = net();
    assert_ok(ek_module_parameters(module, note_path, &next));
    assert_ok(ek_module_modules(ek_module_at(module, "0"), note_module_path, &next));
    ek_module_free(module);
    ck_assert_int_eq(next - paths, 6 + 5);
    ck_assert_str_eq(paths[1], "0.first.0.bias");
    ck_assert_str_eq(paths[6], "");
    ck_assert_str_eq(paths[9], "first.1"); /* below the module that is visited */
}

/* ---- calls ---- */

static char said[400];

static void say(const char *what)
{
    snprintf(said + strlen(said), sizeof said - strlen(said), "%s %s;", what,
             ek_current_module_path());
}

static ek_value before_forward(ek_module *module, const ek_args *args, void *user)
{
    ck_assert_ptr_eq(ek_module_path(module), ek_current_module_path());
    say("pre");
    return ek_value_none();
}

static ek_value after_forward(ek_module *module, const ek_args *args, ek_value output, void *user)
{
    say("post");
    return ek_value_none();
}

static ek_value in_backward(ek_value grad_inputs, ek_value grad_outputs, void *user)
{
    say("backward");
    return ek_value_none();
}

static ek_tensor *at_gradient(ek_tensor *gradient, void *user)
{
    say("gradient");
    return gradient;
}

static ek_value loose_forward(ek_module *module, const ek_args *args)
{
    say("loose");
    return ek_value_of_tensor(ek_add_scalar(ek_arg_tensor(args, 0), 1));
}

MODULE_TYPE(loose, ek_module)

static const char *path_of(const ek_tensor *y)
{
    return ((const ek_node *)y->history)->path;
}

TEST(hooks_know_their_path)
{
    ek_module *module = net(), *linear = ek_module_at(module, "0.first.0");
    body_of *body = (body_of *)ek_module_at(module, "0");
    body->loose = new_module(&loose_type);
    ck_assert_int_gt(ek_module_register_forward_pre_hook(linear, before_forward, NULL), 0);
    ck_assert_int_gt(ek_module_register_forward_hook(linear, after_forward, NULL), 0);
    ck_assert_int_gt(ek_module_register_full_backward_hook(linear, in_backward, NULL), 0);
    ek_tensor *y = ek_apply(module, ek_ones(EK_SHAPE(2, 4)));
    assert_made(y);
    ck_assert_str_eq(said, "pre 0.first.0;post 0.first.0;loose 0;");
    ck_assert_str_eq(path_of(y), "1");
    ck_assert_int_gt(ek_tensor_register_hook(y, at_gradient, NULL), 0);
    ek_tensor *loss = ek_sum(y);
    ck_assert_str_eq(path_of(loss), "");
    said[0] = '\0';
    assert_ok(ek_backward(loss));
    ck_assert_str_eq(said, "gradient 1;backward 0.first.0;");
    ck_assert_ptr_eq(ek_current_module_path(), ek_path_root);
    ck_assert_str_eq(ek_tensor_grad(ek_module_tensor(module, "1.weight"))->storage->path, "1");
    ek_module_free(body->loose);
    ek_module_free(module);
}

/* The forward of a checkpointed module runs again in backward. */
TEST(checkpoints_recompute_under_their_paths)
{
    ek_module *module = net();
    assert_ok(ek_module_checkpoint(ek_module_at(module, "0"), true));
    ek_module *linear = ek_module_at(module, "0.first.0");
    ck_assert_int_gt(ek_module_register_forward_hook(linear, after_forward, NULL), 0);
    said[0] = '\0';
    ek_tensor *y = ek_apply(module, ek_ones(EK_SHAPE(2, 4)));
    assert_ok(ek_backward(ek_sum(y)));
    ck_assert_str_eq(said, "post 0.first.0;post 0.first.0;");
    ek_tensor *gradient = ek_tensor_grad(ek_module_tensor(module, "0.first.0.weight"));
    ck_assert_str_eq(gradient->storage->path, "0.first.0");
    ek_module_free(module);
}

TEST(a_failed_call_leaves_no_path)
{
    ek_module *module = net();
    assert_refused(ek_apply(module, ek_ones(EK_SHAPE(2, 3))), EK_E_SHAPE, "0 (body): first");
    ck_assert_ptr_eq(ek_current_module_path(), ek_path_root);
    ek_module_free(module);
}

/* Nodes that a backward records belong to the module of the node that it differentiates. */
TEST(gradients_of_gradients_keep_their_path)
{
    ek_module *module = net();
    ek_tensor *x = ek_ones(EK_SHAPE(2, 4));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *y = ek_sum(ek_apply(module, x)), *g = NULL;
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &g, .create_graph = true));
    ck_assert_str_eq(path_of(g), "0.first.0");
    ek_module_free(module);
}

/* ---- copies ---- */

TEST(a_copy_is_the_root_of_its_paths)
{
    ek_module *module = net(), *copy = ek_module_copy(ek_module_at(module, "0"));
    assert_made(copy);
    ck_assert_str_eq(ek_module_path(copy), "");
    ck_assert_str_eq(path_at(copy, "first.0"), "first.0");
    ck_assert_str_eq(memory_at(copy, "first.0.weight"), "first.0");
    ck_assert_str_eq(path_at(module, "0.first.0"), "0.first.0");
    ck_assert_str_eq(memory_at(module, "0.first.0.weight"), "0.first.0");
    ek_module_free(copy);
    ek_module_free(module);
}

TEST(replicas_and_moved_tensors_keep_paths)
{
    ek_module *module = net(), *replica = ek_module_copy_with(module, NULL, NULL, 0);
    assert_made(replica);
    ck_assert_str_eq(path_at(replica, "0.first.0"), "0.first.0");
    ek_module_free(replica);
    assert_ok(ek_module_to_device(module, ek_host(0)));
    ck_assert_str_eq(memory_at(module, "0.first.0.weight"), "0.first.0");
    ck_assert_ptr_eq(ek_current_module_path(), ek_path_root);
    ek_module_free(module);
}
