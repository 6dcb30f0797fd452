/* test_lbfgs.c: steps of L-BFGS beside PyTorch's, its closures, and what it refuses. */
#include "lbfgs_setup.h"

FIXTURE(four_devices, NULL)

/* ---- beside PyTorch ---- */

static bool case_has(int i, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "%s/%s", cases[i].name, what);
    return golden_has("lbfgs.golden", name);
}

static void assert_state(int i, job *j)
{
    ek_tensor *list[4];
    const char *name;
    job_parameters(j, list);
    ck_assert_int_eq(ek_optimizer_steps(j->optimizer, list[0]),
                     (int64_t)element(case_golden(i, "n_iter"), 0));
    int count = 0;
    for (; (name = ek_optimizer_state_name(j->optimizer, count)); count++) {
        ek_tensor *state = ek_optimizer_state(j->optimizer, list[0], name);
        ck_assert_int_eq(state != NULL, case_has(i, name));
        if (state)
            assert_close_norm(ek_to_device(state, ek_cpu()), case_golden(i, name), 1e-7);
        if (j->network)
            ck_assert_ptr_null(ek_optimizer_state(j->optimizer, list[1], name));
    }
    ck_assert_int_eq(count, 9);
}

TEST_LOOP(steps_are_those_of_pytorch, 0, (int)(sizeof cases / sizeof *cases))
{
    for (int on_host = 0; on_host < 2; on_host++) {
        ek_scope scope = ek_scope_begin();
        job j = job_begin(cases[_i].problem, case_golden(_i, "p0"),
                          on_host ? test_device(0) : ek_cpu(), cases[_i].make);
        ek_tensor *after = case_golden(_i, "p"), *losses = case_golden(_i, "loss");
        for (int64_t step = 0; step < ek_tensor_size(after, 0); step++) {
            double loss, wanted = element(losses, step);
            assert_ok(ek_step_closure(j.optimizer, job_evaluate, &j, &loss));
            ck_assert(fabs(loss - wanted) <= 1e-10 * fabs(wanted));
            assert_close_norm(job_vector(&j), ek_select(after, 0, step), 1e-10);
        }
        assert_state(_i, &j);
        ck_assert_int_eq(j.calls, (int)element(case_golden(_i, "func_evals"), 0));
        job_end(&j);
        ek_scope_end(&scope);
    }
}

/* ---- closures ---- */

/* A step that fails leaves parameters and state as they were, whichever call of the closure it is.
 */
TEST(a_closure_that_fails_changes_nothing)
{
    const int wolfe = 1, steps = 2;
    for (int fails_at = 1; fails_at <= 12; fails_at++) {
        ek_scope scope = ek_scope_begin();
        job j = job_begin(NETWORK, case_golden(wolfe, "p0"), test_device(0), cases[wolfe].make);
        for (int step = 0; step < steps; step++) {
            ek_tensor *before = job_vector(&j), *weight = ek_module_tensor(j.network, "0.weight");
            const int64_t updates = ek_optimizer_steps(j.optimizer, weight);
            j.fails_at = j.calls < fails_at ? fails_at : 0;
            int status = ek_step_closure(j.optimizer, job_evaluate, &j, NULL);
            if (status < 0) {
                char sentence[40];
                snprintf(sentence, sizeof sentence, "lbfgs: call %d fails", fails_at);
                assert_refused(status, EK_E_USER, sentence);
                ck_assert(ek_grad_enabled());
                assert_close(job_vector(&j), before, 0, 0);
                ck_assert_int_eq(ek_optimizer_steps(j.optimizer, weight), updates);
                assert_ok(ek_step_closure(j.optimizer, job_evaluate, &j, NULL));
            }
            assert_close_norm(job_vector(&j), ek_select(case_golden(wolfe, "p"), 0, step), 1e-10);
        }
        job_end(&j);
        ek_scope_end(&scope);
    }
}

/* Other optimizers evaluate once and step, as PyTorch's. */
TEST(other_optimizers_take_closures)
{
    ek_tensor *weights[2];
    for (int i = 0; i < 2; i++) {
        double loss = 0, before = 0;
        job j = job_begin(NETWORK, case_golden(0, "p0"), ek_cpu(), make_defaults);
        ek_optimizer_free(j.optimizer);
        j.optimizer = ek_adam(j.network, .lr = 0.1);
        assert_made(j.optimizer);
        if (i == 0)
            assert_ok(ek_step_closure(j.optimizer, job_evaluate, &j, &loss));
        else if (job_evaluate(&before, &j) >= 0)
            assert_ok(ek_step(j.optimizer));
        ck_assert(i == 1 || loss > 0);
        ck_assert_int_eq(j.calls, 1);
        weights[i] = ek_clone(ek_detach(ek_module_tensor(j.network, "0.weight")));
        j.fails_at = 2;
        assert_refused(ek_step_closure(j.optimizer, job_evaluate, &j, NULL), EK_E_USER, "call 2");
        job_end(&j);
    }
    assert_close(weights[0], weights[1], 0, 0);
}

static int evaluate_nothing(double *loss, void *user)
{
    *loss = 1;
    return 0;
}

TEST(parameters_without_gradients_stay)
{
    job j = job_begin(NETWORK, case_golden(0, "p0"), ek_cpu(), make_defaults);
    ek_tensor *before = job_vector(&j);
    assert_ok(ek_step_closure(j.optimizer, evaluate_nothing, NULL, NULL));
    assert_close(job_vector(&j), before, 0, 0);
    job_end(&j);
}

/* ---- parameters on several devices ---- */

typedef struct split_job {
    ek_tensor *parts[2];
    ek_optimizer *optimizer;
} split_job;

static int split_evaluate(double *loss, void *user)
{
    split_job *j = user;
    ek_zero_grad(j->optimizer);
    ek_tensor *a = j->parts[0], *b = ek_to_device(j->parts[1], ek_tensor_device(a));
    ek_tensor *l = ek_add(ek_mul_scalar(ek_square(ek_sub(b, ek_square(a))), 100),
                          ek_square(ek_rsub_scalar(a, 1)));
    l = ek_sum(l);
    return ek_backward(l) < 0 ? ek_error_status() : ek_item(l, loss);
}

TEST(parameters_lie_on_any_devices)
{
    int valley = 0;
    while (cases[valley].problem != VALLEY)
        valley++;
    ek_tensor *start = case_golden(valley, "p0"), *after = case_golden(valley, "p");
    split_job j = {.optimizer = cases[valley].make(NULL)};
    assert_made(j.optimizer);
    for (int i = 0; i < 2; i++) {
        ek_tensor *part = ek_clone(ek_to_device(ek_narrow(start, 0, i, 1), test_device(i)));
        assert_ok(ek_tensor_set_requires_grad(part, true));
        j.parts[i] = part;
    }
    assert_ok(ek_optimizer_add_group(j.optimizer, j.parts, 2));
    for (int64_t step = 0; step < ek_tensor_size(after, 0); step++) {
        assert_ok(ek_step_closure(j.optimizer, split_evaluate, &j, NULL));
        for (int i = 0; i < 2; i++)
            assert_close(ek_to_device(ek_detach(j.parts[i]), ek_cpu()),
                         ek_narrow(ek_select(after, 0, step), 0, i, 1), 1e-10, 1e-10);
    }
    ek_optimizer_free(j.optimizer);
}

/* ---- refusals ---- */

TEST(refusals)
{
    ek_module *net = ek_linear(2, 2);
    assert_refused(ek_lbfgs(net, .max_iter = -1), EK_E_INVALID, "invalid max_iter -1");
    assert_refused(ek_lbfgs(net, .max_eval = -3), EK_E_INVALID,
                   "invalid max_eval -3, it has to be 0 or more");
    assert_refused(ek_lbfgs(net, .max_eval = -1), EK_E_INVALID, "invalid max_eval -1");
    assert_refused(ek_lbfgs(net, .history_size = 0), EK_E_INVALID,
                   "invalid history_size 0, it has to be 1 or more");
    assert_refused(ek_lbfgs(net, .line_search = (ek_step_length)2), EK_E_INVALID, "line_search");
    assert_refused(ek_lbfgs(net, .tolerance_grad = -1), EK_E_INVALID, "tolerance_grad -1");
    ek_optimizer *optimizer = ek_lbfgs(net, .max_iter = 8);
    double value;
    assert_ok(ek_optimizer_get(optimizer, 0, "max_eval", &value));
    ck_assert(value == 10);
    assert_ok(ek_optimizer_set(optimizer, 0, "line_search", EK_STRONG_WOLFE));
    assert_refused(ek_optimizer_set(optimizer, 0, "history_size", 1.5), EK_E_INVALID,
                   "history_size 1.5");
    assert_refused(ek_step(optimizer), EK_E_INVALID, "call ek_step_closure");
    assert_refused(ek_step_closure(optimizer, NULL, NULL, NULL), EK_E_INVALID, "closure is NULL");
    assert_refused(ek_step_closure(NULL, evaluate_nothing, NULL, NULL), EK_E_INVALID, "NULL");
    ek_tensor *more = ek_zeros(EK_SHAPE(2), EK_F64, .requires_grad = true);
    assert_refused(ek_optimizer_add_group(optimizer, &more, 1), EK_E_INVALID,
                   "lbfgs steps all parameters as one group");
    ek_optimizer_free(optimizer);
    optimizer = ek_lbfgs(NULL);
    assert_refused(ek_step_closure(optimizer, evaluate_nothing, NULL, NULL), EK_E_INVALID,
                   "there are no parameters");
    ek_tensor *both[] = {more, ek_zeros(EK_SHAPE(2), EK_F32, .requires_grad = true)};
    assert_ok(ek_optimizer_add_group(optimizer, both, 2));
    assert_refused(ek_step_closure(optimizer, evaluate_nothing, NULL, NULL), EK_E_DTYPE,
                   "all parameters have to be f32, or all f64");
    ek_optimizer_free(optimizer);
    ek_module_free(net);
}

/* Before gradients are unscaled. */
TEST(scalers_refuse_it)
{
    job j = job_begin(NETWORK, case_golden(0, "p0"), ek_cpu(), make_defaults);
    ek_grad_scaler *scaler = ek_grad_scaler_new(.init_scale = 8);
    double loss;
    assert_ok(job_evaluate(&loss, &j));
    ek_tensor *weight = ek_module_tensor(j.network, "0.weight"),
              *before = ek_clone(ek_tensor_grad(weight));
    assert_refused(ek_grad_scaler_step(scaler, j.optimizer), EK_E_INVALID,
                   "grad_scaler_step: lbfgs evaluates the loss several times in a step");
    assert_close(ek_tensor_grad(weight), before, 0, 0);
    assert_ok(ek_grad_scaler_unscale(scaler, j.optimizer)); /* nothing was noted */
    assert_refused(ek_grad_scaler_step(scaler, j.optimizer), EK_E_INVALID, "call ek_step_closure");
    ek_grad_scaler_free(scaler);
    job_end(&j);
}
