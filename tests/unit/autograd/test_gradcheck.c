/* ek_gradcheck and ek_gradgradcheck: they accept what is right and find what is wrong. */
#include "kit/devices.h"
#include "toy.h"

FIXTURE(two_devices, NULL)

/* exp(x y) x, with several elements */
static ek_tensor *smooth(ek_tensor *const *inputs, int count, void *user)
{
    return toy_mul(toy_exp(toy_mul(inputs[0], inputs[1])), inputs[0]);
}

/* The first factor's gradient is what it should be, but not differentiable; or it is wrong. */
typedef enum mistake { DETACHED, WRONG } mistake;

static int mistaken_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const mistake *made = ek_node_attributes(node);
    ek_tensor *x = ek_node_saved(node, 0);
    results[0] = *made == WRONG ? toy_mul(gradients[0], toy_scale(x, 2.01))
                                : toy_mul(gradients[0], toy_scale(ek_detach(x), 2));
    return 0;
}

static ek_tensor *mistaken_square(ek_tensor *const *inputs, int count, void *user)
{
    static const ek_operation operation = {.name = "square", .backward = mistaken_backward};
    mistake made = *(mistake *)user;
    ek_tensor *y = toy_mul(ek_detach(inputs[0]), ek_detach(inputs[0]));
    return EK_RECORD(y, &operation, EK_INPUTS(inputs[0]), EK_SAVED(inputs[0]), EK_ATTRIBUTES(made));
}

static ek_tensor *failing(ek_tensor *const *inputs, int count, void *user)
{
    ek_error(EK_E_USER, "no function today");
    return NULL;
}

static const double values[3] = {0.5, -1.25, 2};

TEST(right_gradients_pass)
{
    ek_tensor *inputs[] = {toy_leaf(values, 3, test_device(0)),
                           tensor_of((double[]){0.3, 0.7, -0.2}, EK_SHAPE(3), EK_F64,
                                     test_device(0))};
    for (int both = 0; both < 2; both++) {
        assert_ok(ek_tensor_set_requires_grad(inputs[1], both));
        assert_ok(ek_gradcheck(smooth, .inputs = inputs, .input_count = 2));
        assert_ok(ek_gradgradcheck(smooth, .inputs = inputs, .input_count = 2));
    }
    /* Gradient mode and inputs are as before. */
    bool enabled = ek_set_grad_enabled(false);
    assert_ok(ek_gradcheck(smooth, .inputs = inputs, .input_count = 2));
    ck_assert(!ek_set_grad_enabled(enabled));
    for (int i = 0; i < 3; i++)
        ck_assert_double_eq(element(inputs[0], i), values[i]);
    ck_assert_ptr_null(ek_tensor_grad(inputs[0]));
}

TEST(wrong_gradients_are_found)
{
    ek_tensor *x = toy_leaf(values, 3, test_device(0));
    mistake made = WRONG;
    assert_refused(ek_gradcheck(mistaken_square, .inputs = &x, .input_count = 1, .user = &made),
                   EK_E_AUTOGRAD, "of input 0, f64[3] on host:0: backward says");
    made = DETACHED;
    assert_ok(ek_gradcheck(mistaken_square, .inputs = &x, .input_count = 1, .user = &made));
    assert_refused(ek_gradgradcheck(mistaken_square, .inputs = &x, .input_count = 1, .user = &made),
                   EK_E_AUTOGRAD, "ek_gradgradcheck: element");
}

TEST(what_cannot_be_checked_is_refused)
{
    ek_tensor *x = toy_leaf(values, 3, test_device(0));
    assert_refused(ek_gradcheck(failing, .inputs = &x, .input_count = 1), EK_E_USER,
                   "no function today");
    ek_tensor *constant = ek_detach(x);
    assert_refused(ek_gradcheck(smooth, .inputs = &constant, .input_count = 1), EK_E_INVALID,
                   "none of the 1 inputs");
    ek_tensor *single = tensor_of(values, EK_SHAPE(3), EK_F32, test_device(0));
    assert_ok(ek_tensor_set_requires_grad(single, true));
    assert_refused(ek_gradcheck(smooth, .inputs = &single, .input_count = 1), EK_E_DTYPE,
                   "f32[3] on host:0");
}
