/* Spectral norm and weight norm: PyTorch's initial state, outputs, buffers after several forwards,
 * and gradients of a penalty on the input's gradient; copies, moves, checkpoints, refusals. */
#include "module_golden.h"

static ek_module *layer(const char *name)
{
    return strcmp(name, "linear") == 0      ? ek_linear(4, 3)
           : strcmp(name, "conv") == 0      ? ek_conv2d(3, 4, 3, .bias = false)
           : strcmp(name, "embedding") == 0 ? ek_embedding(5, 4)
                                            : ek_conv_transpose2d(3, 4, 3);
}

static golden_state state_of(char path[96], const char *prefix, const char *key, double tolerance)
{
    snprintf(path, 96, "%s%s%s", prefix, key[0] ? "/" : "", key);
    return (golden_state){.file = "spatial.golden", .prefix = path, .tolerance = tolerance};
}

TEST(spectral_norm)
{
    static const char *const names[] = {"linear", "conv", "transposed"};
    for (int n = 0; n < 3; n++) {
        char prefix[64], path[96];
        ek_scope scope = ek_scope_begin();
        snprintf(prefix, sizeof prefix, "spectral/%s", names[n]);
        ek_manual_seed(8);
        ek_module *module = ek_spectral_norm(layer(names[n]));
        ck_assert_int_eq(golden_visit(module, state_of(path, prefix, "initial", 2e-6)),
                         n == 1 ? 3 : 4);
        assert_ok(ek_module_to_dtype(module, EK_F64));
        golden_state state = state_of(path, prefix, "initial", 0);
        state.load = true;
        golden_visit(module, state);
        state = state_of(path, prefix, "", 1e-11);
        ek_tensor *x = golden_leaf(&state, "x"), *loss = NULL;
        for (int i = 0; i < 3; i++) {
            char key[8];
            snprintf(key, sizeof key, "y%d", i);
            ek_tensor *y = ek_apply(module, x);
            assert_made(y);
            assert_close(ek_detach(y), golden_of(&state, key), 1e-12, 1e-12);
            loss = loss ? ek_add(loss, ek_sum(ek_square(y))) : ek_sum(ek_square(y));
        }
        golden_penalty(module, state, x, loss);
        golden_visit(module, state_of(path, prefix, "after", 1e-12));
        ek_module_train(module, false);
        state = state_of(path, prefix, "", 0);
        assert_close(ek_detach(ek_apply(module, x)), golden_of(&state, "evaluated"), 1e-12, 1e-12);
        golden_visit(module, state_of(path, prefix, "after", 1e-12)); /* evaluation moves nothing */
        ek_module_free(module);
        ek_scope_end(&scope);
    }
}

TEST(options_of_spectral_norm)
{
    char path[96];
    ek_manual_seed(9);
    ek_module *module = ek_spectral_norm(ek_linear(6, 4), .n_power_iterations = 3, .dim = 1);
    golden_visit(module, state_of(path, "spectral/options", "initial", 2e-6));
    assert_ok(ek_module_to_dtype(module, EK_F64));
    golden_state state = state_of(path, "spectral/options", "initial", 0);
    state.load = true;
    golden_visit(module, state);
    state = state_of(path, "spectral/options", "", 0);
    assert_close(ek_detach(ek_apply(module, golden_of(&state, "x"))), golden_of(&state, "y"), 1e-12,
                 1e-12);
    golden_visit(module, state_of(path, "spectral/options", "after", 1e-12));
    ek_module_free(module);
}

/* After many forwards the weight's largest singular value is 1; a vector's norm is at once. */
TEST(the_norm_is_one)
{
    ek_module *module = ek_spectral_norm(ek_linear(3, 3, .bias = false));
    ek_tensor *eye = ek_eye(3, 3, EK_F32, ek_cpu()), *weight = NULL;
    for (int i = 0; i < 100; i++)
        weight = ek_apply(module, eye);
    ek_tensor *power = ek_matmul(weight, ek_transpose(weight, 0, 1)); /* of singular value 1 */
    for (int i = 0; i < 5; i++)
        power = ek_matmul(power, power);
    for (int i = 0; i < 100; i++)
        assert_made(power);
    double norm;
    assert_ok(ek_item(ek_norm(power), &norm));
    ck_assert_double_eq_tol(norm, 1, 1e-3);
    ek_module_free(module);
    module = ek_spectral_norm(ek_batch_norm1d(4, .track_running_stats = false));
    assert_made(module);
    ck_assert_ptr_null(ek_module_tensor(module, "weight_u"));
    ek_error_clear();
    ek_tensor *x = ek_randn(EK_SHAPE(6, 4));
    assert_close(ek_apply(module, x), ek_mul_scalar(ek_f_batch_norm(x, .training = true), 0.5),
                 1e-5, 1e-6);
    ek_module_free(module);
}

TEST(weight_norm)
{
    static const char *const names[] = {"linear", "conv", "transposed", "embedding"};
    for (int n = 0; n < 4; n++)
        for (int dim = -1; dim < 2; dim++) {
            char prefix[64], path[96];
            ek_scope scope = ek_scope_begin();
            snprintf(prefix, sizeof prefix, "weight/%s/%d", names[n], dim);
            ek_manual_seed(8);
            ek_module *module = ek_weight_norm(layer(names[n]), .dim = dim);
            golden_visit(module, state_of(path, prefix, "initial", 2e-6));
            golden_state state = state_of(path, prefix, "initial", 0);
            state.load = true;
            assert_ok(ek_module_to_dtype(module, EK_F64));
            golden_visit(module, state);
            state = state_of(path, prefix, "", 1e-11);
            if (n < 3) {
                bool enabled = ek_set_grad_enabled(false);
                assert_made(ek_mul_scalar_(ek_module_tensor(module, "weight_g"), 1.5));
                ek_set_grad_enabled(enabled);
                ek_tensor *x = golden_leaf(&state, "x"), *y = ek_apply(module, x);
                assert_made(y);
                assert_close(ek_detach(y), golden_of(&state, "y"), 1e-12, 1e-12);
                golden_penalty(module, state, x, ek_sum(ek_square(y)));
            }
            ek_module_free(module);
            ek_scope_end(&scope);
        }
}

/* ---- as other modules ---- */

TEST(two_parameters_of_one_module)
{
    ek_module *plain = ek_lstm(3, 2);
    ek_module *module =
        ek_weight_norm(ek_weight_norm(ek_module_copy(plain), "weight_ih_l0"), "weight_hh_l0");
    assert_made(module);
    ck_assert_int_eq(ek_tensor_size(ek_module_tensor(module, "weight_ih_l0_g"), 0), 8);
    ck_assert_int_eq(ek_tensor_size(ek_module_tensor(module, "weight_hh_l0_v"), 1), 2);
    ek_tensor *x = ek_randn(EK_SHAPE(4, 2, 3));
    ek_tensor *y = ek_value_tensor(ek_value_at(ek_forward(module, x), 0));
    assert_made(y);
    assert_close(y, ek_value_tensor(ek_value_at(ek_forward(plain, x), 0)), 1e-5, 1e-6);
    assert_ok(ek_backward(ek_sum(y)));
    ck_assert_ptr_nonnull(ek_tensor_grad(ek_module_tensor(module, "weight_ih_l0_g")));
    ck_assert_ptr_nonnull(ek_tensor_grad(ek_module_tensor(module, "weight_hh_l0_v")));
    ek_module_free(module);
    ek_module_free(plain);
}

TEST(copies_and_checkpoints)
{
    ek_module *module = ek_sequential(ek_spectral_norm(ek_linear(3, 4)), ek_tanh(),
                                      ek_weight_norm(ek_linear(4, 2)));
    ek_module *copy = ek_module_copy(module), *again = ek_checkpoint(ek_module_copy(module));
    ek_tensor *x = ek_randn(EK_SHAPE(5, 3)), *y = ek_apply(module, x), *z = ek_apply(copy, x);
    assert_close(z, y, 0, 0);
    ek_tensor *w = ek_apply(again, x);
    assert_close(w, y, 0, 0);
    assert_ok(ek_backward(ek_sum(y)));
    assert_ok(ek_backward(ek_sum(w)));
    static const char *const paths[] = {"0.weight_orig", "0.bias", "2.weight_g", "2.weight_v"};
    for (int i = 0; i < 4; i++)
        assert_close(ek_tensor_grad(ek_module_tensor(again, paths[i])),
                     ek_tensor_grad(ek_module_tensor(module, paths[i])), 1e-6, 1e-7);
    assert_close(ek_module_tensor(again, "0.weight_u"), ek_module_tensor(module, "0.weight_u"), 0,
                 0);
    ek_module_free(module);
    ek_module_free(again);
    assert_made(ek_apply(copy, x)); /* lives on */
    ek_module_free(copy);
}

/* The numbers of a graph stay although the next forward moves the vectors. */
TEST(threads_of_evaluation_do_not_meet)
{
    ek_module *module = ek_spectral_norm(ek_linear(3, 4));
    ek_module_train(module, false);
    ek_tensor *weight = ek_module_tensor(module, "weight_orig");
    ck_assert_ptr_eq(ek_module_tensor(ek_module_child(module, 0), "weight"), weight);
    assert_made(ek_apply(module, ek_randn(EK_SHAPE(2, 3))));
    ck_assert_ptr_eq(ek_module_tensor(ek_module_child(module, 0), "weight"), weight);
    ek_module_free(module);
}

TEST(refusals)
{
    assert_refused(ek_spectral_norm(NULL), EK_E_INVALID, "spectral_norm: the module is NULL");
    assert_refused(ek_spectral_norm(ek_relu()), EK_E_INVALID,
                   "spectral_norm: relu has no parameter \"weight\"");
    assert_refused(ek_spectral_norm(ek_linear(2, 2), "bias_of"), EK_E_INVALID,
                   "spectral_norm: linear has no parameter \"bias_of\"");
    assert_refused(ek_spectral_norm(ek_linear(2, 2), .n_power_iterations = 0), EK_E_INVALID,
                   "spectral_norm: n_power_iterations is 0");
    assert_refused(ek_spectral_norm(ek_linear(2, 2), .dim = 2), EK_E_INVALID,
                   "spectral_norm: dim is 2; the parameter has the dimensions 0 to 1");
    assert_refused(ek_spectral_norm(ek_linear(2, 2), .eps = -1), EK_E_INVALID,
                   "spectral_norm: eps is -1");
    assert_refused(ek_spectral_norm(ek_spectral_norm(ek_linear(2, 2))), EK_E_INVALID,
                   "spectral_norm: the parameter \"weight\" of linear has a spectral_norm already");
    assert_refused(ek_weight_norm(ek_spectral_norm(ek_weight_norm(ek_linear(2, 2)))), EK_E_INVALID,
                   "weight_norm: the parameter \"weight\" of linear has a weight_norm already");
    assert_refused(ek_weight_norm(ek_linear(2, 2), .dim = -2), EK_E_INVALID,
                   "weight_norm: dim is -2");
    ek_module *module = ek_spectral_norm(ek_linear(3, 4));
    assert_refused(ek_apply(module, ek_ones(EK_SHAPE(2, 5))), EK_E_SHAPE, "spectral_norm: ");
    ek_module_free(module);
}
