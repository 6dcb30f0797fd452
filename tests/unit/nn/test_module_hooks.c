/* Hooks of modules: PyTorch's numbers; copies, fused layers, refusals. */
#include "module_golden.h"

static const golden_state expected = {.file = "functional.golden",
                                      .prefix = "module",
                                      .tolerance = 1e-12};

static ek_value scaled(ek_module *module, const ek_args *args, void *user)
{
    ++*(int *)user;
    ck_assert_str_eq(module->type->name, "linear");
    return ek_value_of_tensor(ek_mul_scalar(ek_arg_tensor(args, 0), 2));
}

static ek_value scaled_list(ek_module *module, const ek_args *args, void *user)
{
    return EK_LIST(scaled(module, args, user));
}

static ek_value shifted(ek_module *module, const ek_args *args, ek_value output, void *user)
{
    ++*(int *)user;
    return ek_value_of_tensor(ek_add_scalar(ek_value_tensor(output), 1));
}

static ek_value looked(ek_module *module, const ek_args *args, ek_value output, void *user)
{
    ++*(int *)user;
    return ek_value_none();
}

static ek_value negated(ek_value grad_inputs, ek_value grad_outputs, void *user)
{
    ck_assert_int_eq(ek_value_length(grad_inputs), 1);
    ck_assert_int_eq(ek_value_length(grad_outputs), 1);
    ek_tensor *g = ek_value_tensor(ek_value_at(grad_inputs, 0));
    if (user) {
        assert_close(g, golden_of(&expected, "grad_input"), 1e-12, 1e-12);
        assert_close(ek_value_tensor(ek_value_at(grad_outputs, 0)),
                     golden_of(&expected, "grad_output"), 1e-12, 1e-12);
        ++*(int *)user;
    }
    return EK_LIST(ek_mul_scalar(g, -3));
}

static ek_module *net(void)
{
    ek_module *module = ek_sequential(ek_linear(3, 4), ek_tanh(), ek_linear(4, 2));
    assert_made(module);
    assert_ok(ek_module_to_dtype(module, EK_F64));
    golden_visit(module, (golden_state){.file = "functional.golden",
                                        .prefix = "module/state",
                                        .load = true});
    return module;
}

TEST_LOOP(pytorchs_numbers, 0, 2)
{
    int pre = 0, after = 0, backward = 0;
    ek_module *module = net(), *first = ek_module_child(module, 0);
    ck_assert_int_gt(ek_module_register_forward_pre_hook(first, _i ? scaled_list : scaled, &pre),
                     0);
    ck_assert_int_gt(ek_module_register_forward_hook(first, shifted, &after), 0);
    ck_assert_int_gt(ek_module_register_full_backward_hook(ek_module_child(module, 2), negated,
                                                           &backward),
                     0);
    ek_module *copy = ek_module_copy(module);
    ek_tensor *x = ek_clone(golden("functional.golden", "input/a"));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *y = ek_apply(module, x);
    assert_made(y);
    assert_close(ek_detach(y), golden_of(&expected, "y"), 1e-12, 1e-12);
    assert_ok(ek_backward(ek_sum(ek_square(y))));
    ck_assert_int_eq(pre, 1);
    ck_assert_int_eq(after, 1);
    ck_assert_int_eq(backward, 1);
    assert_close(ek_tensor_grad(x), golden_of(&expected, "d"), 1e-12, 1e-12);
    golden_state state = expected;
    assert_ok(ek_module_parameters(module, golden_gradient_visit, &state));
    /* The copy has them too, and its own. */
    assert_ok(ek_module_remove_hook(first, ek_module_register_forward_hook(first, looked, &after)));
    assert_close(ek_detach(ek_apply(copy, x)), golden_of(&expected, "y"), 1e-12, 1e-12);
    ck_assert_int_eq(pre, 2);
    ek_module_free(module);
    ek_module_free(copy);
}

TEST(removed_hooks_are_not_called)
{
    int calls = 0;
    ek_module *module = net(), *first = ek_module_child(module, 0);
    int64_t a = ek_module_register_forward_hook(first, shifted, &calls);
    int64_t b = ek_module_register_forward_hook(first, looked, &calls);
    ck_assert_int_ne(a, b);
    ek_tensor *x = golden("functional.golden", "input/a"), *y = ek_apply(module, x);
    ck_assert_int_eq(calls, 2);
    assert_ok(ek_module_remove_hook(first, a));
    assert_made(ek_apply(module, x));
    ck_assert_int_eq(calls, 3);
    assert_ok(ek_module_remove_hook(first, b));
    ek_tensor *plain = ek_apply(module, x);
    ck_assert_int_eq(calls, 3);
    ck_assert_double_ne(element(plain, 0), element(y, 0));
    assert_refused(ek_module_remove_hook(first, b), EK_E_INVALID, "the linear has no hook");
    ek_module_free(module);
}

typedef struct leaving {
    int64_t id;
    int calls;
} leaving;

static ek_value leaves_before(ek_module *module, const ek_args *args, void *user)
{
    leaving *self = user;
    self->calls++;
    assert_ok(ek_module_remove_hook(module, self->id));
    return ek_value_none();
}

static ek_value leaves_after(ek_module *module, const ek_args *args, ek_value output, void *user)
{
    return leaves_before(module, args, user);
}

/* A hook that removes itself is called once, and those after it are called too. */
TEST(hooks_that_remove_themselves)
{
    leaving before = {0}, after = {0};
    int calls = 0;
    ek_module *module = net(), *first = ek_module_child(module, 0);
    ek_tensor *x = golden("functional.golden", "input/a");
    for (int others = 0; others < 2; others++) {
        before = after = (leaving){0};
        before.id = ek_module_register_forward_pre_hook(first, leaves_before, &before);
        if (others) {
            after.id = ek_module_register_forward_hook(first, leaves_after, &after);
            ck_assert_int_gt(ek_module_register_forward_hook(first, looked, &calls), 0);
        }
        assert_made(ek_apply(module, x));
        assert_made(ek_apply(module, x));
        ck_assert_int_eq(before.calls, 1);
        ck_assert_int_eq(after.calls, others);
        ck_assert_int_eq(calls, 2 * others);
    }
    ek_module_free(module);
}

/* A layer and its activation are one operation, but not if a hook looks in between. */
TEST_LOOP(fused_layers_are_called_one_by_one, 0, 2)
{
    int calls = 0;
    ek_module *module = ek_sequential(ek_linear(3, 4), _i ? ek_gelu(EK_GELU_TANH) : ek_relu());
    ek_tensor *x = ek_randn(EK_SHAPE(5, 3)), *y = ek_apply(module, x);
    ek_module_register_forward_hook(ek_module_child(module, 0), looked, &calls);
    ek_module_register_forward_hook(ek_module_child(module, 1), looked, &calls);
    assert_close(ek_apply(module, x), y, 1e-6, 1e-6);
    ck_assert_int_eq(calls, 2);
    ek_module_free(module);
}

/* So are the first linear layer of a transformer's layer and the activation behind it. */
TEST_LOOP(transformers_call_layers_with_hooks, 0, 2)
{
    int calls = 0;
    ek_module *module =
        ek_transformer_encoder_layer(8, 2, .dropout = 0,
                                     .activation = _i ? EK_TRANSFORMER_GELU : EK_TRANSFORMER_RELU);
    ek_tensor *x = ek_randn(EK_SHAPE(5, 3, 8)), *y = ek_apply(module, x);
    ck_assert_int_gt(ek_module_register_forward_hook(ek_module_at(module, "linear1"), looked,
                                                     &calls),
                     0);
    assert_close(ek_apply(module, x), y, 0, 0);
    ck_assert_int_eq(calls, 1);
    ek_module_free(module);
}

static ek_value counted(ek_value grad_inputs, ek_value grad_outputs, void *user)
{
    ck_assert_int_eq(ek_value_length(grad_inputs), 1);
    ck_assert_int_eq(ek_value_at(grad_inputs, 0).kind, EK_VALUE_NONE);
    ck_assert_int_eq(ek_value_at(grad_outputs, 0).kind, EK_VALUE_TENSOR);
    ++*(int *)user;
    return ek_value_none();
}

/* Without an input that requires a gradient; without a graph; after the module is gone. */
TEST(backward_hooks_without_inputs)
{
    int calls = 0;
    ek_module *module = ek_linear(3, 4);
    ek_module_register_full_backward_hook(module, counted, &calls);
    ek_tensor *x = ek_randn(EK_SHAPE(5, 3)), *y = ek_apply(module, x);
    bool before = ek_set_grad_enabled(false);
    assert_made(ek_apply(module, x));
    ek_set_grad_enabled(before);
    ek_module_free(module);
    assert_ok(ek_backward(ek_sum(y)));
    ck_assert_int_eq(calls, 1);
}

static uint64_t bytes_in_use(void)
{
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(ek_cpu(), &stats));
    return stats.in_use;
}

/* The graph of a retained pass keeps no gradient. */
TEST(backward_hooks_keep_no_gradients)
{
    int calls = 0;
    ek_module *module = ek_linear(3, 4);
    assert_ok(ek_module_to_dtype(module, EK_F64));
    ek_module_register_full_backward_hook(module, counted, &calls);
    ek_tensor *loss = ek_sum(ek_square(ek_apply(module, ek_randn(EK_SHAPE(5, 3), EK_F64))));
    uint64_t before = bytes_in_use();
    ek_scope scope = ek_scope_begin();
    assert_ok(ek_backward(loss, .retain_graph = true));
    ek_scope_end(&scope);
    ek_module_zero_grad(module);
    ck_assert_int_eq(calls, 1);
    ck_assert_uint_eq(bytes_in_use(), before);
    ek_module_free(module);
}

static ek_value stashed(ek_module *module, const ek_args *args, ek_value output, void *user)
{
    *(ek_tensor **)user = ek_keep(ek_value_tensor(output)); /* calls have scopes */
    return ek_value_none();
}

static ek_value doubled(ek_value grad_inputs, ek_value grad_outputs, void *user)
{
    ck_assert_int_eq(ek_value_at(grad_outputs, 0).kind, EK_VALUE_TENSOR);
    ++*(int *)user;
    return EK_LIST(ek_mul_scalar(ek_value_tensor(ek_value_at(grad_inputs, 0)), 2));
}

/* A pass to the parameters only, then one from the inside, which has no gradient of the output: the
 * hook is not called, and the gradient stays. */
TEST(backward_hooks_see_one_pass)
{
    int calls = 0;
    ek_tensor *inside = NULL, *dw = NULL, *dx = NULL;
    ek_module *module = ek_sequential(ek_linear(3, 4), ek_linear(4, 2));
    ek_module_register_forward_hook(ek_module_child(module, 0), stashed, &inside);
    ek_module_register_full_backward_hook(module, doubled, &calls);
    ek_tensor *x = ek_randn(EK_SHAPE(5, 3)), *w = ek_module_tensor(module, "1.weight");
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *loss = ek_sum(ek_apply(module, x)), *part = ek_sum(inside);
    ek_tensor *wanted = ek_matmul(ek_ones(EK_SHAPE(5, 4)), ek_module_tensor(module, "0.weight"));
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &w, .input_count = 1,
                      .gradients = &dw, .retain_graph = true));
    ck_assert_int_eq(calls, 0);
    assert_ok(ek_grad(.outputs = &part, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &dx));
    ck_assert_int_eq(calls, 0);
    assert_close(dx, ek_detach(wanted), 1e-6, 1e-6);
    ek_release(inside);
    ek_module_free(module);
}

/* The backward of a gradient comes to the input, but not through the output. */
TEST(backward_hooks_are_not_called_for_gradients)
{
    int calls = 0;
    ek_module *module = ek_linear(3, 1, .bias = false);
    ek_module_register_full_backward_hook(module, doubled, &calls);
    ek_tensor *x = ek_randn(EK_SHAPE(1, 3)), *w = ek_module_tensor(module, "weight"), *first[2],
              *second = NULL, *three = ek_full(3, EK_SHAPE(1, 1));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *y = ek_apply(module, x);
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = (ek_tensor *[]){w, x},
                      .input_count = 2, .gradients = first, .grad_outputs = &three,
                      .create_graph = true));
    assert_close(ek_detach(first[1]), ek_mul_scalar(ek_detach(w), 6), 1e-6, 1e-6);
    ek_tensor *sum = ek_sum(first[0]);
    assert_ok(ek_grad(.outputs = &sum, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &second));
    ck_assert_int_eq(calls, 1);
    assert_close(second, ek_full(3, EK_SHAPE(1, 3)), 0, 0);
    ek_module_free(module);
}

static ek_value tripled(ek_module *module, const ek_args *args, ek_value output, void *user)
{
    return ek_value_of_tensor(ek_mul_scalar(ek_value_tensor(output), 3));
}

static ek_value with_ones(ek_value grad_inputs, ek_value grad_outputs, void *user)
{
    assert_close(ek_value_tensor(ek_value_at(grad_outputs, 0)), ek_ones(EK_SHAPE(5, 2)), 0, 0);
    ++*(int *)user;
    return ek_value_none();
}

/* grad_outputs are those of what the caller got, whichever hook was registered first. */
TEST_LOOP(backward_hooks_beside_forward_hooks, 0, 2)
{
    int calls = 0;
    ek_module *module = ek_linear(3, 2);
    ek_tensor *x = ek_randn(EK_SHAPE(5, 3));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    for (int i = 0; i < 2; i++)
        ck_assert_int_gt(i == _i ? ek_module_register_full_backward_hook(module, with_ones, &calls)
                                 : ek_module_register_forward_hook(module, tripled, NULL),
                         0);
    assert_ok(ek_backward(ek_sum(ek_apply(module, x))));
    ck_assert_int_eq(calls, 1);
    ek_tensor *wanted = ek_matmul(ek_full(3, EK_SHAPE(5, 2)), ek_module_tensor(module, "weight"));
    assert_close(ek_tensor_grad(x), ek_detach(wanted), 1e-6, 1e-6);
    ek_module_free(module);
}

/* Gradients of gradients go through the hooks' operations. */
TEST(twice)
{
    ek_module *module = ek_linear(3, 1, .bias = false);
    assert_ok(ek_module_to_dtype(module, EK_F64));
    ek_module_register_full_backward_hook(module, negated, NULL);
    ek_tensor *x = ek_randn(EK_SHAPE(2, 3), EK_F64), *dx = NULL;
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *y = ek_sum(ek_square(ek_apply(module, x)));
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &dx, .create_graph = true));
    ek_tensor *w = ek_module_tensor(module, "weight");
    ek_tensor *wanted =
        ek_mul_scalar(ek_matmul(ek_matmul(ek_detach(x), ek_transpose(w, 0, 1)), w), -6);
    assert_close(ek_detach(dx), ek_detach(wanted), 1e-12, 1e-12);
    ek_tensor *found = NULL, *loss = ek_sum(ek_square(dx)), *same = NULL;
    ek_tensor *by_hand = ek_sum(ek_square(wanted));
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &w, .input_count = 1,
                      .gradients = &found));
    assert_ok(ek_grad(.outputs = &by_hand, .output_count = 1, .inputs = &w, .input_count = 1,
                      .gradients = &same));
    assert_close(found, same, 1e-11, 1e-11);
    ek_module_free(module);
}

static ek_value failing(ek_module *module, const ek_args *args, void *user)
{
    return ek_value_of_tensor(ek_matmul(ek_arg_tensor(args, 0), NULL));
}

static ek_value too_many(ek_value grad_inputs, ek_value grad_outputs, void *user)
{
    return EK_LIST(grad_inputs, grad_inputs);
}

TEST(refusals)
{
    ek_module *module = ek_linear(3, 1);
    ek_tensor *x = ek_randn(EK_SHAPE(2, 3));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    assert_refused(ek_module_register_forward_hook(NULL, looked, NULL), EK_E_INVALID,
                   "the module is NULL");
    assert_refused(ek_module_register_forward_hook(module, NULL, NULL), EK_E_INVALID,
                   "the hook is NULL");
    int64_t id = ek_module_register_forward_pre_hook(module, failing, NULL);
    assert_refused(ek_apply(module, x), EK_E_INVALID, "linear: matmul: y is NULL");
    assert_ok(ek_module_remove_hook(module, id));
    ek_module_register_full_backward_hook(module, too_many, NULL);
    assert_refused(ek_backward(ek_sum(ek_apply(module, x))), EK_E_INVALID,
                   "a full backward hook of linear must return none or a list of 1 gradients");
    ek_module_free(module);
}
