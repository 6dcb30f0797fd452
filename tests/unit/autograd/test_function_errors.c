/* Functions of the user's own: every way to get them wrong. */
#include "function_setup.h"

FIXTURE(four_devices, NULL)

/* ---- wrong forwards ---- */

typedef enum mistake {
    GIVES_INPUT,
    GIVES_VIEW,
    GIVES_LEAF,
    GIVES_NOTHING,
    GIVES_ERROR,
    WRITES_INPUT,
    SAVES_TWICE,
    SAVES_MANY,
    READS_SAVED,
    RETURNS_ERROR,
    MISTAKES
} mistake;

static ek_tensor *elsewhere;

static int wrong_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    const mistake *what = ek_function_user(call);
    y[0] = toy_scale(x[0], 1);
    switch (*what) {
    case GIVES_INPUT:
        y[0] = x[0];
        break;
    case GIVES_VIEW:
        y[0] = toy_spread(ek_detach(x[0]), EK_SHAPE(1));
        break;
    case GIVES_LEAF:
        y[0] = elsewhere;
        break;
    case GIVES_NOTHING:
        y[0] = NULL;
        break;
    case GIVES_ERROR:
        y[0] = NULL;
        ek_error(EK_E_USER, "no output");
        break;
    case WRITES_INPUT:
        toy_scale_(x[0], 2);
        break;
    case SAVES_TWICE:
        assert_ok(ek_function_save(call, x, 1));
        return ek_function_save(call, x, 1);
    case SAVES_MANY:
        return ek_function_save(call, x, EK_FUNCTION_TENSORS + 1);
    case READS_SAVED:
        ck_assert_ptr_null(ek_function_saved(call, 0));
        break;
    case RETURNS_ERROR:
    case MISTAKES:
        return ek_error(EK_E_USER, "would not");
    }
    return 0;
}

TEST_LOOP(wrong_forwards_are_told, 0, MISTAKES)
{
    static const struct {
        int status;
        const char *part;
    } wanted[MISTAKES] = {
        {EK_E_AUTOGRAD, "wrong: output 0, f64[1] on cpu, is input 0 or a view"},
        {EK_E_AUTOGRAD, "wrong: output 0, f64[1] on cpu, is input 0 or a view"},
        {EK_E_AUTOGRAD, "wrong: output 0, f64[1] on cpu, was there before"},
        {EK_E_AUTOGRAD, "wrong: forward left output 0 NULL"},
        {EK_E_USER, "in forward of wrong: no output"},
        {EK_E_AUTOGRAD, "wrong: forward modified input 0, f64[1] on cpu, in place"},
        {EK_E_STATE, "wrong: ek_function_save was called before"},
        {EK_E_INVALID, "wrong: 65 tensors cannot be saved"},
        {EK_E_STATE, "wrong: ek_function_saved is for the backward"},
        {EK_E_USER, "in forward of wrong: would not"},
    };
    static const ek_function wrong = {.name = "wrong",
                                      .forward = wrong_forward,
                                      .backward = cube_backward};
    mistake what = (mistake)_i;
    ek_tensor *y, *x = toy_leaf((double[]){2}, 1, ek_cpu());
    elsewhere = toy_leaf((double[]){2}, 1, ek_cpu());
    assert_refused(ek_function_apply_user(&wrong, &x, 1, &y, &what), wanted[_i].status,
                   wanted[_i].part);
    ck_assert_ptr_null(y);
    ck_assert(ek_tensor_is_leaf(x) && ek_grad_enabled());
}

TEST(wrong_calls_are_told)
{
    ek_tensor *y, *x = toy_leaf((double[]){2}, 1, ek_cpu());
    ek_function wrong = cube;
    assert_refused(ek_function_apply(NULL, &x, 1, &y), EK_E_INVALID, "needs a name and a forward");
    wrong.forward = NULL;
    assert_refused(ek_function_apply(&wrong, &x, 1, &y), EK_E_INVALID,
                   "needs a name and a forward");
    wrong = cube;
    wrong.outputs = 65;
    assert_refused(ek_function_apply(&wrong, &x, 1, &y), EK_E_INVALID,
                   "cube: 65 outputs; there can be 1 to 64");
    assert_refused(ek_function_apply(&cube, NULL, 1, &y), EK_E_INVALID, "cube: 1 inputs at NULL");
    assert_refused(ek_function_apply(&cube, &x, 1, NULL), EK_E_INVALID, "cube: 1 outputs at NULL");
}

/* The forward's tensor was there before, and is not touched. */
static int constant_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    y[0] = y[1] = ek_function_user(call);
    return 0;
}

static int constant_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    dx[0] = ek_fold_add(dy[0], dy[1]);
    return 0;
}

TEST(somebody_elses_tensor_stays_as_it_is)
{
    static const ek_function constant = {.name = "constant",
                                         .outputs = 2,
                                         .forward = constant_forward,
                                         .backward = constant_backward};
    ek_tensor *y[2], *x = toy_leaf((double[]){2}, 1, ek_cpu());
    ek_tensor *plain = toy_full(3, EK_SHAPE(1), ek_cpu());
    assert_ok(ek_function_apply_user(&constant, &x, 1, y, plain));
    ck_assert(ek_tensor_is_leaf(plain) && !ek_tensor_requires_grad(plain));
    ck_assert(ek_tensor_requires_grad(y[0]) && ek_tensor_requires_grad(y[1]));
    ck_assert_double_eq(element(toy_grad(ek_fold_add(y[0], toy_scale(y[1], 4)), x, false), 0), 5);
}

/* ---- wrong backwards ---- */

static int wrong_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    switch (*(const toy_failure *)ek_function_user(call)) {
    case TOY_FAIL_STATUS:
        return ek_error(EK_E_USER, "the user is broken");
    case TOY_FAIL_SILENT:
        return EK_E_BACKEND;
    case TOY_FAIL_NULL:
        ek_function_saved(call, 7);
        return 0;
    case TOY_FAIL_SHAPE:
        break;
    }
    dx[0] = toy_spread(toy_sum(dy[0]), EK_SHAPE(7, 7));
    return ek_function_save(call, dx, 0) == EK_E_STATE ? 0 : EK_E_STATE;
}

TEST_LOOP(wrong_backwards_are_told, 0, 4)
{
    static const struct {
        int status;
        const char *part;
    } wanted[] = {
        {EK_E_USER, "in backward of wrong on host:1: the user is broken"},
        {EK_E_BACKEND, "in backward of wrong on host:1: it failed with"},
        {EK_E_INVALID, "in backward of wrong on host:1: wrong has saved 1 tensors"},
        {EK_E_STATE, "in backward of wrong on host:1: wrong: ek_function_save is for the forward"},
    };
    static const ek_function wrong = {.name = "wrong",
                                      .forward = cube_forward,
                                      .backward = wrong_backward};
    toy_failure how = (toy_failure)_i;
    ek_tensor *y, *x = toy_leaf((double[]){2}, 1, test_device(1));
    assert_ok(ek_function_apply_user(&wrong, &x, 1, &y, &how));
    assert_refused(ek_backward(y), wanted[_i].status, wanted[_i].part);
}

static int wide_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    dx[0] = toy_spread(toy_sum(dy[0]), EK_SHAPE(7, 7));
    return 0;
}

TEST(gradients_have_to_fit)
{
    static const ek_function wide = {.name = "wide",
                                     .forward = cube_forward,
                                     .backward = wide_backward};
    ek_tensor *x = toy_leaf((double[]){2}, 1, test_device(1));
    assert_refused(ek_backward(apply(&wide, x)), EK_E_AUTOGRAD,
                   "in backward of wide on host:1: the gradient of input 0 is "
                   "f64[7, 7] on host:1, but the input is f64[1] on host:1");
}

TEST(saved_tensors_are_watched)
{
    ek_tensor *x = toy_leaf((double[]){2}, 1, ek_cpu());
    ek_tensor *y = apply(&cube, x);
    assert_ok(ek_backward(y));
    assert_refused(ek_backward(y), EK_E_STATE, "the saved tensors of cube were freed");
    ek_tensor *between = toy_scale(x, 1);
    y = apply(&cube, between);
    assert_made(toy_scale_(between, 3));
    assert_refused(ek_backward(y), EK_E_MODIFIED, "cube saved f64[1] on cpu for its backward");
}
