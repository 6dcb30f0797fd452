/* ek_checkpoint around functions whose backward meets other ranks: it has their place in the order
 * of backward, and runs as they do if no gradient arrives. */
#include "checkpoint_setup.h"
#include "kit/models.h"

FIXTURE(setup, NULL)

/* ---- x^2, whose backward meets ---- */

static struct {
    atomic_int count, inside, beside;
    int index[16];
} met;

static int meet_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    y[0] = ek_square(x[0]);
    return ek_function_save(call, x, 1);
}

static int meet_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    atomic_fetch_add(&met.beside, atomic_fetch_add(&met.inside, 1));
    int at = atomic_fetch_add(&met.count, 1);
    if (at < 16)
        met.index[at] = *(int *)ek_function_user(call);
    dx[0] = ek_mul(ek_mul_scalar(dy[0], 2), ek_function_saved(call, 0));
    atomic_fetch_sub(&met.inside, 1);
    return 0;
}

static const ek_function function = {.name = "meet",
                                     .forward = meet_forward,
                                     .backward = meet_backward,
                                     .meets = true};
static int indices[] = {0, 1, 2, 3, 4};

static ek_tensor *meet(ek_tensor *x, int index)
{
    ek_tensor *y;
    return ek_function_apply_user(&function, &x, 1, &y, &indices[index]) < 0 ? NULL : y;
}

typedef struct body {
    ek_module module;
    int first;
} body;

static ek_value body_forward(ek_module *module, const ek_args *args)
{
    int first = ((body *)module)->first;
    return ek_value_of_tensor(meet(meet(ek_arg_tensor(args, 0), first), first + 1));
}

MODULE_TYPE(body, body)

static ek_module *checkpoint_of(int first)
{
    body *self = (body *)ek_module_new(&body_type);
    ck_assert_ptr_nonnull(self);
    self->first = first;
    return ek_checkpoint(&self->module);
}

static void assert_met(int count)
{
    ck_assert_int_eq(atomic_load(&met.count), count);
    ck_assert_int_eq(atomic_load(&met.beside), 0);
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(met.index[i], count - 1 - i);
    atomic_store(&met.count, 0);
}

static ek_tensor *leaf_of(double value, int device)
{
    ek_tensor *x = tensor_of(&value, EK_SHAPE(1), EK_F64, test_device(device));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    return x;
}

/* ---- tests ---- */

/* One checkpoint per device and a plain function after them: one order on one device and on two. */
TEST_LOOP(the_order_is_one, 0, 2)
{
    ek_module *first = checkpoint_of(0), *second = checkpoint_of(2);
    for (int round = 0; round < 20; round++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *x = leaf_of(2, 0), *y = leaf_of(3, _i);
        ek_tensor *a = ek_apply(first, x), *b = ek_apply(second, y);
        ek_tensor *loss = ek_add(meet(a, 4), ek_to_device(b, test_device(0)));
        assert_ok(ek_backward(ek_sum(loss), .retain_graph = true));
        assert_met(5);
        ck_assert_double_eq(element(ek_tensor_grad(x), 0), 8 * 128); /* of x^8 */
        ck_assert_double_eq(element(ek_tensor_grad(y), 0), 4 * 27);  /* of y^4 */
        assert_ok(ek_backward(ek_sum(loss)));
        assert_met(5);
        ek_scope_end(&scope);
    }
    ek_module_free(first);
    ek_module_free(second);
}

static int lose_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    return 0;
}

TEST_LOOP(runs_without_a_gradient, 0, 2)
{
    const ek_function lose = {.name = "lose", .forward = meet_forward, .backward = lose_backward};
    ek_module *module = checkpoint_of(0);
    ek_tensor *x = leaf_of(2, 0), *y = ek_apply(module, x), *lost;
    assert_made(y);
    assert_ok(ek_function_apply(&lose, &y, 1, &lost));
    assert_ok(ek_backward(ek_sum(ek_to_device(lost, test_device(_i)))));
    assert_met(2);
    ck_assert_double_eq(element(ek_tensor_grad(x), 0), 0);
    ek_module_free(module);
}

TEST(second_order)
{
    ek_module *module = checkpoint_of(0);
    ek_tensor *x = leaf_of(2, 0), *y = ek_sum(ek_apply(module, x)), *gradient;
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &gradient, .create_graph = true));
    assert_met(2);
    assert_ok(ek_backward(ek_sum(gradient)));
    ck_assert_double_eq(element(ek_tensor_grad(x), 0), 12 * 4);
    ck_assert_int_eq(atomic_load(&met.beside), 0);
    ek_module_free(module);
}
