/* module_golden.h: a module against PyTorch's: its state, outputs, gradients, and the gradients of
 * a penalty on the input's gradient. */
#ifndef EK_TESTS_MODULE_GOLDEN_H
#define EK_TESTS_MODULE_GOLDEN_H

#include "unit.h"

typedef struct golden_state {
    const char *file, *prefix;
    double tolerance;
    bool load; /* copies the golden numbers to the module; else compares */
    int count;
} golden_state;

static inline ek_tensor *golden_of(const golden_state *state, const char *key)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", state->prefix, key);
    return golden(state->file, path);
}

static inline int golden_state_visit(const char *path, ek_tensor *tensor, void *user)
{
    golden_state *state = user;
    ek_tensor *wanted = golden_of(state, path);
    assert_made(wanted);
    state->count++;
    if (state->load) {
        bool enabled = ek_set_grad_enabled(false);
        assert_made(ek_copy_(tensor, ek_to_dtype(wanted, ek_tensor_dtype(tensor))));
        ek_set_grad_enabled(enabled);
    } else {
        assert_close(ek_detach(tensor), wanted, state->tolerance, state->tolerance);
    }
    return 0;
}

/* All parameters and buffers; returns how many there are. */
static inline int golden_visit(ek_module *module, golden_state state)
{
    assert_made(module);
    assert_ok(ek_module_parameters(module, golden_state_visit, &state));
    assert_ok(ek_module_buffers(module, golden_state_visit, &state));
    return state.count;
}

static inline int golden_gradient_visit(const char *path, ek_tensor *tensor, void *user)
{
    const golden_state *state = user;
    char key[96];
    snprintf(key, sizeof key, "d/%s", path);
    ek_tensor *wanted = golden_of(state, key), *found = ek_tensor_grad(tensor);
    double size;
    assert_ok(ek_item(ek_sum(ek_square(wanted)), &size));
    if (size == 0 && !found)
        return 0;
    assert_made(found);
    if (size < 1e-8) /* what cancels but for eps */
        assert_close(found, wanted, 0, state->tolerance);
    else
        assert_close_norm(found, wanted, state->tolerance);
    return 0;
}

/* The penalty's gradients; `x` and `loss` made them. */
static inline void golden_penalty(ek_module *module, golden_state state, ek_tensor *x,
                                  ek_tensor *loss)
{
    ek_tensor *dx = NULL;
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &dx, .create_graph = true));
    assert_close_norm(ek_detach(dx), golden_of(&state, "dx"), state.tolerance);
    assert_ok(ek_backward(ek_sum(ek_square(dx))));
    assert_ok(ek_module_parameters(module, golden_gradient_visit, &state));
    ek_module_zero_grad(module);
}

static inline ek_tensor *golden_leaf(const golden_state *state, const char *key)
{
    ek_tensor *x = ek_clone(golden_of(state, key));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    return x;
}

#endif
