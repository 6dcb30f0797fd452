/* Functions of the user's own made of the library's operations, and of plain loops over memory. */
#include "kit/tensors.h"

#include "home.h"

NAMES_DEVICES

static ek_tensor *gradient_of(ek_tensor *y, ek_tensor *x)
{
    ek_tensor *gradient = NULL;
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &gradient, .create_graph = true));
    return gradient;
}

/* ---- the header's example ---- */

static int cube_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    y[0] = ek_mul(x[0], ek_square(x[0]));
    return ek_function_save(call, x, 1);
}

static int cube_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    dx[0] = ek_mul(dy[0], ek_mul_scalar(ek_square(ek_function_saved(call, 0)), 3));
    return 0;
}

static const ek_function cube = {.name = "cube",
                                 .forward = cube_forward,
                                 .backward = cube_backward};

static ek_tensor *cube_of(ek_tensor *const *x, int count, void *user)
{
    ek_tensor *y;
    return ek_function_apply(&cube, x, 1, &y) < 0 ? NULL : y;
}

TEST(the_example_of_the_header)
{
    ek_tensor *x = leaf(1, EK_SHAPE(2, 3));
    check_gradients(cube_of, &x, 1, NULL);
    ek_tensor *y = ek_sum(cube_of(&x, 1, NULL));
    for (int order = 0; order < 2; order++)
        y = ek_sum(gradient_of(y, x));
    assert_close(gradient_of(y, x), ek_full(6, EK_SHAPE(2, 3), EK_F64), 1e-14, 0);
}

/* ---- sine and cosine by plain loops: each the other's backward ---- */

static int wave_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    const double *phase = ek_function_user(call);
    ek_tensor *in = ek_contiguous(x[0], EK_CONTIGUOUS);
    y[0] = ek_empty(ek_tensor_shape(x[0]), EK_F64);
    double *to = ek_tensor_data(y[0]);
    const double *from = ek_tensor_data(in);
    for (int64_t i = 0; to && i < ek_tensor_count(in); i++)
        to[i] = sin(from[i] + *phase);
    return ek_function_save(call, x, 1);
}

static int wave_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx);

static void release_phase(void *user)
{
    free(user);
}

static const ek_function wave_function = {.name = "wave",
                                          .forward = wave_forward,
                                          .backward = wave_backward,
                                          .destroy = release_phase};

static ek_tensor *wave(ek_tensor *x, double phase)
{
    double *user = malloc(sizeof *user);
    ek_tensor *y;
    ck_assert_ptr_nonnull(user);
    *user = phase;
    return ek_function_apply_user(&wave_function, &x, 1, &y, user) < 0 ? NULL : y;
}

static int wave_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    const double *phase = ek_function_user(call);
    dx[0] = ek_mul(dy[0], wave(ek_function_saved(call, 0), *phase + acos(0)));
    return 0;
}

static ek_tensor *wave_of(ek_tensor *const *x, int count, void *user)
{
    return wave(ek_transpose(x[0], 0, 1), 0.3);
}

TEST(functions_of_functions_to_any_order)
{
    ek_tensor *x = leaf(2, EK_SHAPE(2, 3));
    check_gradients(wave_of, &x, 1, NULL);
    ek_tensor *y = wave(x, 0);
    for (int order = 1; order <= 5; order++) {
        y = gradient_of(ek_sum(y), x);
        for (int i = 0; i < 6; i++)
            ck_assert_double_eq_tol(element(y, i), sin(element(x, i) + order * acos(0)), 1e-12);
    }
}

/* ---- several in, several out: the mean and the deviation that is left ---- */

static int parts_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    y[0] = ek_mul(x[0], x[1]);
    y[1] = ek_exp(ek_sub(x[0], x[1]));
    y[2] = ek_argmax(x[0], 0, false); /* carries no gradient */
    return ek_function_save(call, (ek_tensor *const[]){x[0], x[1], y[1]}, 3);
}

static int parts_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    ek_tensor *through = dy[1] ? ek_mul(dy[1], ek_function_saved(call, 2)) : NULL;
    ck_assert_ptr_null(dy[2]);
    for (int i = 0; i < 2; i++) {
        if (!ek_function_needs(call, i))
            continue;
        ek_tensor *product = dy[0] ? ek_mul(dy[0], ek_function_saved(call, 1 - i)) : NULL;
        dx[i] = product && through ? ek_add_scaled(product, through, 1 - 2 * i)
                : product          ? product
                                   : ek_mul_scalar(through, 1 - 2 * i);
    }
    return 0;
}

static const ek_function parts = {.name = "parts",
                                  .outputs = 3,
                                  .forward = parts_forward,
                                  .backward = parts_backward};

/* user: which outputs are used, as bits */
static ek_tensor *parts_of(ek_tensor *const *x, int count, void *user)
{
    ek_tensor *y[3];
    const int *used = user;
    if (ek_function_apply(&parts, x, 2, y) < 0)
        return NULL;
    ck_assert(!ek_tensor_requires_grad(y[2]));
    if (*used == 3)
        return ek_mul(y[0], y[1]);
    return ek_square(y[*used - 1]);
}

TEST_LOOP(several_outputs_of_which_some_are_used, 1, 4)
{
    ek_tensor *inputs[] = {leaf(3, EK_SHAPE(4)), leaf(4, EK_SHAPE(4))};
    int used = _i;
    check_gradients(parts_of, inputs, 2, &used);
    assert_ok(ek_tensor_set_requires_grad(inputs[0], false));
    check_gradients(parts_of, inputs, 2, &used);
}

TEST(results_in_memory_of_every_order)
{
    ek_tensor *x = leaf(5, EK_SHAPE(1, 2, 2, 2));
    ek_tensor *y, *last = ek_contiguous(x, EK_CHANNELS_LAST);
    assert_ok(ek_function_apply(&cube, &last, 1, &y));
    /* Its own memory: writing there is nobody else's business. */
    assert_made(ek_mul_scalar_(y, 2));
    assert_ok(ek_backward(ek_sum(y)));
    assert_close(ek_tensor_grad(x), ek_mul_scalar(ek_square(ek_detach(x)), 6), 1e-14, 0);
}
