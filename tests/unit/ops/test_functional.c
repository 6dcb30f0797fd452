/* Products with Jacobians, Jacobians and Hessians, and hooks of tensors: PyTorch's numbers. */
#include "autograd/graph.h"
#include "core/tensor.h"
#include "kit/devices.h"

#include "home.h"

FIXTURE(two_devices, NULL)

static ek_tensor *input(const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "input/%s", name);
    return golden("functional.golden", path);
}

static void assert_golden(ek_tensor *x, const char *prefix, int index)
{
    char path[64];
    snprintf(path, sizeof path, "%s/r%d", prefix, index);
    assert_made(x);
    ck_assert(!ek_tensor_requires_grad(x));
    assert_close(x, golden("functional.golden", path), 1e-12, 1e-12);
}

static int two_outputs(ek_tensor *const *x, ek_tensor **y, void *user)
{
    y[0] = ek_sin(ek_matmul(x[0], x[1]));
    y[1] = ek_sum(ek_exp(x[1]), EK_DIMS(0));
    return 0;
}

static int energy(ek_tensor *const *x, ek_tensor **y, void *user)
{
    y[0] = ek_add(ek_sum(ek_square(ek_sin(ek_matmul(x[0], x[1])))), ek_sum(ek_pow_scalar(x[1], 3)));
    return 0;
}

TEST(products)
{
    ek_tensor *x[] = {input("a"), input("b")}, *v[] = {input("v0"), input("v1")},
              *w[] = {input("w0"), input("w1")}, *y[2], *r[2];
    bool before = ek_set_grad_enabled(false); /* the functions switch it on for themselves */
    assert_ok(ek_vjp(.function = two_outputs, .inputs = x, .input_count = 2, .output_count = 2,
                     .v = v, .results = r, .outputs = y));
    ck_assert(!ek_set_grad_enabled(before));
    assert_golden(r[0], "vjp", 0);
    assert_golden(r[1], "vjp", 1);
    assert_close(y[0], golden("functional.golden", "vjp/y0"), 1e-12, 1e-12);
    assert_close(y[1], golden("functional.golden", "vjp/y1"), 1e-12, 1e-12);
    ck_assert(!ek_tensor_requires_grad(y[0]) && !ek_tensor_requires_grad(x[0]));
    assert_ok(ek_jvp(.function = two_outputs, .inputs = x, .input_count = 2, .output_count = 2,
                     .v = w, .results = r));
    assert_golden(r[0], "jvp", 0);
    assert_golden(r[1], "jvp", 1);
}

TEST(matrices)
{
    ek_tensor *x[] = {input("a"), input("b")}, *r[4];
    assert_ok(ek_jacobian(.function = two_outputs, .inputs = x, .input_count = 2, .output_count = 2,
                          .results = r));
    for (int i = 0; i < 4; i++)
        assert_golden(r[i], "jacobian", i);
    assert_ok(ek_hessian(.function = energy, .inputs = x, .input_count = 2, .results = r));
    for (int i = 0; i < 4; i++)
        assert_golden(r[i], "hessian", i);
}

static int sine_of_product(ek_tensor *const *x, ek_tensor **y, void *user)
{
    y[0] = ek_sin(ek_matmul(x[0], user));
    return 0;
}

static int constant(ek_tensor *const *x, ek_tensor **y, void *user)
{
    y[0] = user;
    return 0;
}

TEST(a_jacobian_in_a_graph)
{
    ek_tensor *x = ek_clone(input("a")), *j, *b = input("b");
    assert_ok(ek_tensor_set_requires_grad(x, true));
    assert_ok(ek_jacobian(.function = sine_of_product, .inputs = &x, .input_count = 1, .user = b,
                          .results = &j, .create_graph = true));
    assert_ok(ek_backward(ek_sum(ek_square(j))));
    assert_close(ek_tensor_grad(x), golden("functional.golden", "graph/d"), 1e-12, 1e-12);
    /* What depends on nothing. */
    assert_ok(ek_jacobian(.function = constant, .inputs = &b, .input_count = 1,
                          .user = ek_ones(EK_SHAPE(2), EK_F64), .results = &j));
    assert_close(j, ek_zeros(EK_SHAPE(2, 3, 2), EK_F64), 0, 0);
    assert_ok(ek_hessian(.function = constant, .inputs = &b, .input_count = 1,
                         .user = ek_ones(EK_SHAPE(1), EK_F64), .results = &j));
    assert_close(j, ek_zeros(EK_SHAPE(3, 2, 3, 2), EK_F64), 0, 0);
}

static int fails(ek_tensor *const *x, ek_tensor **y, void *user)
{
    y[0] = ek_reshape(x[0], EK_SHAPE(7));
    return 0;
}

TEST(refusals_of_functions)
{
    ek_tensor *x = input("a"), *r[4], *whole = ek_zeros(EK_SHAPE(2), EK_I64), *b = input("b");
    assert_refused(ek_vjp(.inputs = &x, .input_count = 1, .results = r), EK_E_INVALID,
                   "vjp: the function is NULL");
    assert_refused(ek_jvp(.function = energy, .inputs = &x, .results = r), EK_E_INVALID,
                   "jvp: 0 inputs and 1 outputs");
    assert_refused(ek_vjp(.function = sine_of_product, .inputs = &x, .input_count = 1, .user = b,
                          .results = r),
                   EK_E_SHAPE, "vjp: v is needed, because output 0 has 4 elements");
    assert_refused(ek_vjp(.function = sine_of_product, .inputs = &x, .input_count = 1, .user = b,
                          .v = &x, .results = r),
                   EK_E_SHAPE, "vjp: v has shape [2, 3] and must have [2, 2]");
    assert_refused(ek_hessian(.function = sine_of_product, .inputs = &x, .input_count = 1,
                              .user = b, .results = r),
                   EK_E_SHAPE, "hessian: the function must have one output of one element");
    assert_refused(ek_jacobian(.function = energy, .inputs = &whole, .input_count = 1,
                               .results = r),
                   EK_E_DTYPE, "jacobian: an input has dtype i64");
    assert_refused(ek_jacobian(.function = fails, .inputs = &x, .input_count = 1, .results = r),
                   EK_E_SHAPE, "reshape");
    ck_assert_ptr_null(r[0]);
}

/* ---- hooks of tensors ---- */

static ek_tensor *times(ek_tensor *gradient, void *user)
{
    return ek_mul_scalar(gradient, *(const double *)user);
}

static ek_tensor *clipped(ek_tensor *gradient, void *user)
{
    ++*(int *)user;
    return ek_clamp(gradient, -1, 1);
}

static ek_tensor *seen(ek_tensor *gradient, void *user)
{
    ++*(int *)user;
    return NULL;
}

TEST(hooks_of_tensors)
{
    const double two = 2, minus = -1;
    int calls = 0;
    ek_tensor *x = ek_clone(input("a")), *b = ek_transpose(input("b"), 0, 1);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *middle = ek_sin(x);
    ck_assert_int_gt(ek_tensor_register_hook(middle, times, (void *)(uintptr_t)&two), 0);
    ck_assert_int_gt(ek_tensor_register_hook(middle, clipped, &calls), 0);
    int64_t id = ek_tensor_register_hook(x, times, (void *)(uintptr_t)&minus);
    ck_assert_int_gt(id, 0);
    ek_tensor *loss = ek_add(ek_sum(ek_mul(middle, b)), ek_sum(ek_square(x)));
    assert_ok(ek_backward(loss, .retain_graph = true));
    assert_close(ek_tensor_grad(x), golden("functional.golden", "hook/d"), 1e-12, 1e-12);
    ck_assert_int_eq(calls, 1);
    /* The leaf's own gradient is added to, not shown to the hook again. */
    assert_ok(ek_backward(loss, .retain_graph = true));
    assert_close(ek_tensor_grad(x), ek_mul_scalar(golden("functional.golden", "hook/d"), 2), 1e-12,
                 1e-12);
    ek_tensor *dx;
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &dx, .retain_graph = true));
    assert_close(dx, golden("functional.golden", "hook/d"), 1e-12, 1e-12);
    assert_ok(ek_tensor_remove_hook(x, id));
    assert_refused(ek_tensor_remove_hook(x, id), EK_E_INVALID, "the tensor has no hook");
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &dx));
    assert_close(dx, ek_neg(golden("functional.golden", "hook/d")), 1e-12, 1e-12);
}

/* With grad buffers, in which gradients are written directly; and twice differentiated. */
TEST(hooks_and_grad_buffers)
{
    const double two = 2;
    int calls = 0;
    ek_tensor *x = ek_clone(input("a")), *w = ek_clone(input("b"));
    ek_tensor *slot = ek_zeros(EK_SHAPE(3, 2), EK_F64), *g;
    assert_ok(ek_tensor_set_requires_grad(x, true));
    assert_ok(ek_tensor_set_requires_grad(w, true));
    assert_ok(ek_leaf_set_grad_buffer(w, slot));
    ck_assert_int_gt(ek_tensor_register_hook(w, times, (void *)(uintptr_t)&two), 0);
    ck_assert_int_gt(ek_tensor_register_hook(x, seen, &calls), 0);
    assert_ok(ek_backward(ek_sum(ek_matmul(x, w))));
    assert_ok(ek_backward(ek_sum(ek_matmul(x, w))));
    assert_close(ek_tensor_grad(w),
                 ek_mul_scalar(ek_expand(ek_reshape(ek_sum(ek_detach(x), EK_DIMS(0)),
                                                    EK_SHAPE(3, 1)),
                                         EK_SHAPE(3, 2)),
                               4),
                 1e-12, 1e-12);
    ck_assert_ptr_eq(ek_tensor_address(ek_tensor_grad(w)), ek_tensor_address(slot));
    ck_assert_int_eq(calls, 2);
    ek_tensor *y = ek_sum(ek_pow_scalar(w, 3));
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = &w, .input_count = 1,
                      .gradients = &g, .create_graph = true));
    y = ek_sum(g); /* 2 * 3 w^2, of which the gradient is doubled again */
    assert_ok(
        ek_grad(.outputs = &y, .output_count = 1, .inputs = &w, .input_count = 1, .gradients = &g));
    assert_close(g, ek_mul_scalar(ek_detach(w), 24), 1e-12, 1e-12);
}

typedef struct changing {
    ek_tensor *tensor;
    int64_t ids[2]; /* to remove; 0: none */
    int calls, later;
    bool adds;
} changing;

/* Removes hooks of its tensor, and may register one, while they are called. */
static ek_tensor *changes(ek_tensor *gradient, void *user)
{
    changing *self = user;
    self->calls++;
    for (int i = 0; i < 2; i++)
        if (self->ids[i])
            assert_ok(ek_tensor_remove_hook(self->tensor, self->ids[i]));
    if (self->adds)
        ck_assert_int_gt(ek_tensor_register_hook(self->tensor, seen, &self->later), 0);
    return ek_mul_scalar(gradient, 2);
}

/* What a hook changes counts from the tensor's next gradient. */
TEST_LOOP(hooks_that_change_the_hooks, 0, 2)
{
    changing self = {0};
    int calls = 0;
    ek_tensor *x = ek_clone(input("a"));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *y = _i ? ek_neg(x) : x, *loss = ek_sum(y);
    self.tensor = y;
    self.ids[0] = ek_tensor_register_hook(y, changes, &self); /* alone */
    assert_ok(ek_backward(loss, .retain_graph = true));
    assert_ok(ek_backward(loss, .retain_graph = true));
    ck_assert_int_eq(self.calls, 1);
    assert_close(ek_tensor_grad(x), ek_full(_i ? -3 : 3, EK_SHAPE(2, 3), EK_F64), 1e-12, 1e-12);
    self.ids[0] = ek_tensor_register_hook(y, changes, &self);
    self.ids[1] = ek_tensor_register_hook(y, seen, &calls);
    self.adds = true;
    assert_ok(ek_backward(loss, .retain_graph = true));
    ck_assert_int_eq(self.calls, 2);
    ck_assert_int_eq(calls, 1);
    ck_assert_int_eq(self.later, 0);
    assert_ok(ek_backward(loss));
    ck_assert_int_eq(self.calls, 2);
    ck_assert_int_eq(calls, 1);
    ck_assert_int_eq(self.later, 1);
}

static ek_tensor *reshaped(ek_tensor *gradient, void *user)
{
    return ek_reshape(gradient, EK_SHAPE(-1));
}

static ek_tensor *failing(ek_tensor *gradient, void *user)
{
    return ek_matmul(gradient, NULL);
}

TEST(refusals_of_hooks)
{
    ek_tensor *x = ek_clone(input("a"));
    assert_refused(ek_tensor_register_hook(NULL, seen, NULL), EK_E_INVALID, "the tensor is NULL");
    assert_refused(ek_tensor_register_hook(x, seen, NULL), EK_E_AUTOGRAD, "requires no gradient");
    assert_ok(ek_tensor_set_requires_grad(x, true));
    assert_refused(ek_tensor_register_hook(x, NULL, NULL), EK_E_INVALID, "the hook is NULL");
    int64_t id = ek_tensor_register_hook(x, reshaped, NULL);
    assert_refused(ek_backward(ek_sum(x)), EK_E_SHAPE, "a hook made f64[6]");
    assert_ok(ek_tensor_remove_hook(x, id));
    id = ek_tensor_register_hook(x, failing, NULL);
    assert_refused(ek_backward(ek_sum(x)), EK_E_INVALID, "matmul: y is NULL");
    assert_ok(ek_tensor_remove_hook(x, id));
    assert_ok(ek_backward(ek_sum(x)));
}
