/* ek_grad: what its options say, one by one and together. */
#include "toy.h"

static const double values[3] = {0.5, -1, 2};

static int grad_of(ek_tensor *y, ek_tensor *x, ek_tensor **gradient, bool create_graph, bool retain)
{
    return ek_grad(.outputs = &y, .output_count = 1, .inputs = &x, .input_count = 1,
                   .gradients = gradient, .create_graph = create_graph, .retain_graph = retain);
}

TEST(the_graph_is_retained_when_asked)
{
    ek_tensor *x = toy_leaf(values, 3, ek_cpu()), *gradient;
    ek_tensor *y = toy_sum(toy_exp(x));
    assert_ok(grad_of(y, x, &gradient, false, true));
    ck_assert(!ek_tensor_requires_grad(gradient));
    assert_ok(grad_of(y, x, &gradient, true, false)); /* retains */
    ck_assert(ek_tensor_requires_grad(gradient));
    assert_ok(grad_of(y, x, &gradient, false, false)); /* does not */
    assert_refused(grad_of(y, x, &gradient, false, false), EK_E_STATE,
                   "the saved tensors of toy_exp were freed");
    ck_assert_ptr_null(gradient);

    y = toy_sum(toy_mul(x, x));
    ek_tensor *second;
    assert_ok(grad_of(y, x, &gradient, true, false));
    assert_ok(grad_of(toy_sum(gradient), x, &second, false, false));
    ck_assert_double_eq(element(second, 2), 2);
    assert_ok(grad_of(y, x, &gradient, false, false));
    ck_assert_ptr_null(ek_tensor_grad(x));
}

TEST(inputs_that_repeat_and_that_are_outputs)
{
    ek_tensor *x = toy_leaf(values, 3, ek_cpu()), *e = toy_exp(x);
    ek_tensor *weights = toy_full(3, EK_SHAPE(3), ek_cpu()), *gradients[5];
    ek_tensor *outputs[] = {e, e}, *seeds[] = {weights, weights};
    ek_tensor *inputs[] = {x, e, x, e, x};
    assert_ok(ek_grad(.outputs = outputs, .output_count = 2, .inputs = inputs, .input_count = 5,
                      .gradients = gradients, .grad_outputs = seeds));
    for (int i = 0; i < 3; i++) {
        ck_assert_double_eq(element(gradients[1], i), 6);
        ck_assert_double_eq_tol(element(gradients[0], i), 6 * exp(values[i]), 1e-12);
    }
    ck_assert_ptr_eq(gradients[2], gradients[0]);
    ck_assert_ptr_eq(gradients[4], gradients[0]);
    ck_assert_ptr_eq(gradients[3], gradients[1]);
    /* A leaf as its own output. */
    assert_ok(ek_grad(.outputs = &x, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = gradients, .grad_outputs = &weights));
    ck_assert_double_eq(element(gradients[0], 1), 3);
}

/* Entries of grad_outputs that are NULL are ones; those given may carry a gradient. */
TEST(gradients_of_outputs)
{
    ek_tensor *x = toy_leaf(values, 3, ek_cpu());
    ek_tensor *w = toy_leaf(values, 3, ek_cpu()), *gradient, *of_w;
    ek_tensor *outputs[] = {toy_sum(toy_mul(x, x)), toy_exp(x), toy_sum(x)};
    ek_tensor *seeds[] = {NULL, w, NULL};
    assert_ok(ek_grad(.outputs = outputs, .output_count = 3, .inputs = &x, .input_count = 1,
                      .gradients = &gradient, .grad_outputs = seeds, .create_graph = true));
    for (int i = 0; i < 3; i++)
        ck_assert_double_eq_tol(element(gradient, i),
                                2 * values[i] + values[i] * exp(values[i]) + 1, 1e-12);
    assert_ok(grad_of(toy_sum(gradient), w, &of_w, false, false));
    ck_assert_double_eq_tol(element(of_w, 2), exp(values[2]), 1e-12);

    ek_tensor *wrong = toy_full(1, EK_SHAPE(2), ek_cpu());
    assert_refused(ek_grad(.outputs = &outputs[1], .output_count = 1, .inputs = &x,
                           .input_count = 1, .gradients = &gradient, .grad_outputs = &wrong),
                   EK_E_SHAPE, "ek_grad: the gradient given for output 0 is f64[2] on cpu");
    assert_refused(ek_grad(.outputs = &outputs[1], .output_count = 1, .inputs = &x,
                           .input_count = 1, .gradients = &gradient),
                   EK_E_SHAPE, "more than one element");
    wrong = NULL;
    assert_refused(ek_grad(.outputs = &wrong, .output_count = 1, .inputs = &x, .input_count = 1,
                           .gradients = &gradient),
                   EK_E_INVALID, "ek_grad: output 0 is NULL");
    assert_refused(ek_grad(.outputs = outputs, .output_count = 1, .inputs = &wrong,
                           .input_count = 1, .gradients = &gradient),
                   EK_E_INVALID, "ek_grad: input 0 is NULL");
}

TEST(unused_inputs)
{
    ek_tensor *x = toy_leaf(values, 3, ek_cpu()), *other = toy_leaf(values, 3, ek_cpu());
    ek_tensor *aside = toy_exp(x), *y = toy_sum(toy_mul(x, x));
    ek_tensor *inputs[] = {other, x, aside}, *gradients[3] = {x, x, x};
    assert_refused(ek_grad(.outputs = &y, .output_count = 1, .inputs = inputs, .input_count = 3,
                           .gradients = gradients, .retain_graph = true),
                   EK_E_AUTOGRAD, "ek_grad: input 0, f64[3] on cpu, has no part in the outputs");
    for (int i = 0; i < 3; i++)
        ck_assert_ptr_null(gradients[i]);
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = inputs, .input_count = 3,
                      .gradients = gradients, .allow_unused = true, .create_graph = true));
    ck_assert_ptr_null(gradients[0]);
    ck_assert_ptr_null(gradients[2]); /* comes from x, but the outputs do not come from it */
    ck_assert_double_eq(element(gradients[1], 2), 2 * values[2]);
    /* No outputs at all. */
    assert_ok(ek_grad(.outputs = NULL, .output_count = 0, .inputs = inputs, .input_count = 3,
                      .gradients = gradients, .allow_unused = true));
    ck_assert_ptr_null(gradients[1]);
}

/* Of an inner tensor by an inner tensor, and again. */
TEST(inputs_that_are_no_leaves)
{
    ek_tensor *x = toy_leaf(values, 3, ek_cpu()), *inner = toy_scale(x, 3);
    ek_tensor *y = toy_sum(toy_mul(toy_mul(inner, inner), inner));
    static const double factors[] = {3, 6, 6};
    for (int order = 0; order < 3; order++) {
        y = toy_sum(toy_grad(y, inner, true));
        double wanted = 0;
        for (int i = 0; i < 3; i++)
            wanted += factors[order] * pow(3 * values[i], 2 - order);
        ck_assert_double_eq_tol(element(y, 0), wanted, 1e-10);
    }
    /* The way through to the leaf is still there for what is not constant. */
    y = toy_sum(toy_grad(toy_sum(toy_mul(inner, inner)), inner, true));
    ck_assert_double_eq(element(toy_grad(y, x, false), 0), 6);
}

/* Everything above the first order inside of jobs, on each device's own thread. */
enum { DEVICES = 3 };

static int penalty_in_job(void *user, int index)
{
    ek_tensor *x = toy_leaf(values, 3, test_device(index)), *gradient, *unused;
    ek_tensor *other = toy_leaf(values, 3, test_device(index));
    ek_tensor *y = toy_sum(toy_mul(toy_mul(x, x), x)), *inputs[] = {x, other, x};
    ek_tensor *gradients[3];
    EK_TRY(ek_grad(.outputs = &y, .output_count = 1, .inputs = inputs, .input_count = 3,
                   .gradients = gradients, .create_graph = true, .allow_unused = true));
    unused = gradients[1];
    EK_TRY(grad_of(toy_sum(toy_mul(gradients[0], gradients[2])), x, &gradient, true, false));
    EK_TRY(grad_of(toy_sum(gradient), x, &gradient, false, false));
    ((double *)user)[index] = unused ? NAN : element(gradient, 2);
    return 0;
}

TEST(inside_of_jobs)
{
    ek_dev *devs[DEVICES];
    double results[DEVICES];
    assert_ok(test_devices_configure("3"));
    for (int d = 0; d < DEVICES; d++)
        devs[d] = ek_dev_get(test_device(d));
    assert_ok(ek_jobs_run(devs, DEVICES, penalty_in_job, results, NULL));
    for (int d = 0; d < DEVICES; d++)
        ck_assert_double_eq(results[d], 9 * 12 * values[2] * values[2]); /* (9 x^4)'' */
}
