/* test_lbfgs.c: L-BFGS beside PyTorch's, its closures, its state and what it refuses. */
#include "kit/devices.h"
#include "kit/optimizers.h"
#include "unit.h"

FIXTURE(four_devices, NULL)

/* ---- problems, as tests/golden/make_lbfgs.py has them ---- */

typedef enum problem_kind { NETWORK, VALLEY, CLIFF, STEEP } problem_kind;

typedef struct job {
    problem_kind problem;
    ek_module *network; /* NULL without one */
    ek_tensor *row;     /* the parameter of the others, one reference */
    ek_optimizer *optimizer;
    ek_tensor *x, *y;
    int calls;
    int fails_at;                /* the call that fails; 0: none */
    ek_memory_category category; /* that the last call found */
} job;

static ek_tensor *job_loss(const job *j)
{
    if (j->problem == NETWORK)
        return ek_f_mse_loss(ek_apply(j->network, j->x), j->y, EK_MEAN);
    if (j->problem == CLIFF)
        return ek_neg(ek_sum(ek_square(ek_square(j->row))));
    ek_tensor *a = ek_select(j->row, 0, 0), *b = ek_select(j->row, 0, 1);
    ek_tensor *valley = ek_add(ek_mul_scalar(ek_square(ek_sub(b, ek_square(a))), 100),
                               ek_square(ek_rsub_scalar(a, 1)));
    return j->problem == STEEP ? ek_mul_scalar(valley, 1e4) : valley;
}

static int job_evaluate(double *loss, void *user)
{
    job *j = user;
    if (++j->calls == j->fails_at)
        return ek_error(EK_E_USER, "call %d fails", j->calls);
    ck_assert(ek_grad_enabled());
    j->category = ek_memory_set_category(EK_MEMORY_ACTIVATION);
    ek_memory_set_category(j->category);
    ek_zero_grad(j->optimizer);
    ek_tensor *l = job_loss(j);
    return ek_backward(l) < 0 ? ek_error_status() : ek_item(l, loss);
}

static int job_parameters(const job *j, ek_tensor *list[4])
{
    static const char *const paths[] = {"0.weight", "0.bias", "2.weight", "2.bias"};
    if (!j->network) {
        list[0] = j->row;
        return 1;
    }
    for (int i = 0; i < 4; i++)
        list[i] = ek_module_tensor(j->network, paths[i]);
    return 4;
}

/* All parameters as a vector, on cpu. */
static ek_tensor *job_vector(const job *j)
{
    ek_tensor *list[4];
    int count = job_parameters(j, list);
    for (int i = 0; i < count; i++)
        list[i] = ek_to_device(ek_reshape(ek_detach(list[i]), EK_SHAPE(-1)), ek_cpu());
    return ek_cat(list, count, 0);
}

static void job_set(const job *j, ek_tensor *vector)
{
    ek_tensor *list[4];
    int count = job_parameters(j, list);
    int64_t at = 0;
    bool enabled = ek_set_grad_enabled(false);
    for (int i = 0; i < count; i++) {
        int64_t elements = ek_tensor_count(list[i]);
        ek_tensor *part = ek_reshape(ek_narrow(vector, 0, at, elements), ek_tensor_shape(list[i]));
        assert_made(ek_copy_(list[i], ek_to_device(part, ek_tensor_device(list[i]))));
        at += elements;
    }
    ek_set_grad_enabled(enabled);
}

#define LBFGS_LIST(X)                                                                              \
    X(fixed, NETWORK, ek_lbfgs(module, .lr = 0.3, .max_iter = 3, .history_size = 5))               \
    X(wolfe, NETWORK,                                                                              \
      ek_lbfgs(module, .max_iter = 3, .history_size = 5, .line_search = EK_STRONG_WOLFE))          \
    X(defaults, NETWORK, ek_lbfgs(module))                                                         \
    X(wolfe_defaults, NETWORK, ek_lbfgs(module, .line_search = EK_STRONG_WOLFE))                   \
    X(long, NETWORK, ek_lbfgs(module, .lr = 40, .max_iter = 3, .line_search = EK_STRONG_WOLFE))    \
    X(short, NETWORK, ek_lbfgs(module, .lr = 1e-4, .max_iter = 3, .line_search = EK_STRONG_WOLFE)) \
    X(evaluations, NETWORK, ek_lbfgs(module, .lr = 0.3, .max_iter = 10, .max_eval = 3))            \
    X(gradient, NETWORK,                                                                           \
      ek_lbfgs(module, .tolerance_grad = 0.02, .max_iter = 5, .line_search = EK_STRONG_WOLFE))     \
    X(change, NETWORK, ek_lbfgs(module, .lr = 0.1, .tolerance_change = 0.02, .max_iter = 30))      \
    X(valley, VALLEY, ek_lbfgs(module, .max_iter = 4, .line_search = EK_STRONG_WOLFE))             \
    X(valley_far, VALLEY,                                                                          \
      ek_lbfgs(module, .lr = 3, .max_iter = 3, .history_size = 2, .line_search = EK_STRONG_WOLFE)) \
    X(cliff, CLIFF, ek_lbfgs(module, .lr = 1e-3, .max_iter = 1, .line_search = EK_STRONG_WOLFE))   \
    X(steep, STEEP,                                                                                \
      ek_lbfgs(module, .lr = 1e5, .tolerance_change = 0.05, .line_search = EK_STRONG_WOLFE))       \
    X(converged, NETWORK, ek_lbfgs(module, .tolerance_grad = 100))
#define LBFGS_MAKER(id, problem, ...) OPTIMIZER_MAKER(id, , , __VA_ARGS__)
#define LBFGS_CASE(id, problem, ...) {#id, problem, make_##id},
LBFGS_LIST(LBFGS_MAKER)
static const struct {
    const char *name;
    problem_kind problem;
    ek_optimizer *(*make)(ek_module *module);
} cases[] = {LBFGS_LIST(LBFGS_CASE)};

/* A job on a device that begins at this vector. Its scope is the caller's. */
static job job_begin(problem_kind problem, ek_tensor *start, ek_device device,
                     ek_optimizer *(*make)(ek_module *module))
{
    job j = {.problem = problem};
    if (problem == NETWORK) {
        j.network = ek_sequential(ek_linear(3, 5), ek_tanh(), ek_linear(5, 2));
        assert_made(j.network);
        assert_ok(ek_module_to_dtype(j.network, EK_F64));
        assert_ok(ek_module_to_device(j.network, device));
        j.x = ek_to_device(golden("lbfgs.golden", "data/x"), device);
        j.y = ek_to_device(golden("lbfgs.golden", "data/y"), device);
    } else {
        j.row = ek_keep(ek_zeros(EK_SHAPE(2), EK_F64, .device = device, .requires_grad = true));
    }
    job_set(&j, start);
    j.optimizer = make(j.network);
    assert_made(j.optimizer);
    if (j.row)
        assert_ok(ek_optimizer_add_group(j.optimizer, &j.row, 1));
    return j;
}

static void job_end(job *j)
{
    ek_optimizer_free(j->optimizer);
    ek_module_free(j->network);
    ek_release(j->row);
}

/* ---- beside PyTorch ---- */

static ek_tensor *case_golden(int i, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "%s/%s", cases[i].name, what);
    return golden("lbfgs.golden", name);
}

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

/* ---- memory ---- */

/* Vectors of the state count as the optimizer's, what the closure makes as the caller's. */
TEST(state_counts_as_the_optimizer_s)
{
    /* A GPU keeps the workspace of its first products. */
    job first = job_begin(NETWORK, case_golden(0, "p0"), test_device(0), cases[0].make);
    assert_ok(ek_step_closure(first.optimizer, job_evaluate, &first, NULL));
    job_end(&first);
    for (int wolfe = 0; wolfe < 2; wolfe++) {
        ek_memory_stats before, after;
        job j = job_begin(NETWORK, case_golden(wolfe, "p0"), test_device(0), cases[wolfe].make);
        ek_tensor *weight = ek_module_tensor(j.network, "0.weight");
        ek_memory_category outside = ek_memory_set_category(EK_MEMORY_WORKSPACE);
        assert_ok(ek_memory_get_stats(test_device(0), &before));
        for (int step = 0; step < 4; step++)
            assert_ok(ek_step_closure(j.optimizer, job_evaluate, &j, NULL));
        assert_ok(ek_memory_get_stats(test_device(0), &after));
        ck_assert_int_eq(j.category, EK_MEMORY_WORKSPACE);
        ck_assert_int_eq(ek_memory_set_category(outside), EK_MEMORY_WORKSPACE);
        ek_tensor *d = ek_optimizer_state(j.optimizer, weight, "d"),
                  *history = ek_optimizer_state(j.optimizer, weight, "old_dirs");
        const uint64_t vectors = 2 + 2 * (uint64_t)ek_tensor_size(history, 0);
        ck_assert_uint_ge(vectors, 6);
        ck_assert_uint_eq(after.now[EK_MEMORY_OPTIMIZER] - before.now[EK_MEMORY_OPTIMIZER],
                          vectors * (uint64_t)ek_tensor_count(d) * sizeof(double));
        ck_assert_uint_eq(after.now[EK_MEMORY_WORKSPACE], before.now[EK_MEMORY_WORKSPACE]);
        ck_assert_uint_eq(after.now[EK_MEMORY_ACTIVATION], before.now[EK_MEMORY_ACTIVATION]);
        job_end(&j);
    }
}

/* ---- state ---- */

enum { STATES = 9 };

static int states_of(job *j, const char *names[STATES], ek_tensor *states[STATES])
{
    ek_tensor *list[4];
    const char *name;
    int count = 0;
    job_parameters(j, list);
    for (int i = 0; (name = ek_optimizer_state_name(j->optimizer, i)); i++) {
        names[count] = name;
        states[count] = ek_optimizer_state(j->optimizer, list[0], name);
        if (states[count])
            states[count] = ek_to_device(states[count], ek_cpu());
        count += states[count] != NULL;
    }
    return count;
}

static void carry_over(job *from, job *to)
{
    ek_tensor *of_from[4], *of_to[4], *states[STATES];
    const char *names[STATES];
    const int parameters = job_parameters(from, of_from), count = states_of(from, names, states);
    job_parameters(to, of_to);
    ck_assert_int_eq(count, STATES);
    for (int i = 0; i < parameters; i++)
        assert_ok(ek_optimizer_set_state(to->optimizer, of_to[i],
                                         ek_optimizer_steps(from->optimizer, of_from[i]), names,
                                         states, i ? 0 : count));
    job_set(to, job_vector(from));
}

TEST(training_goes_on_to_the_same_bits)
{
    const int wolfe = 1;
    ek_tensor *start = case_golden(wolfe, "p0");
    job a = job_begin(NETWORK, start, test_device(0), cases[wolfe].make),
        b = job_begin(NETWORK, start, test_device(0), cases[wolfe].make);
    for (int step = 0; step < 3; step++)
        assert_ok(ek_step_closure(a.optimizer, job_evaluate, &a, NULL));
    carry_over(&a, &b);
    for (int step = 0; step < 3; step++) {
        assert_ok(ek_step_closure(a.optimizer, job_evaluate, &a, NULL));
        assert_ok(ek_step_closure(b.optimizer, job_evaluate, &b, NULL));
        assert_close(job_vector(&b), job_vector(&a), 0, 0);
    }
    job_end(&a);
    job_end(&b);
}

TEST(training_goes_on_from_pytorch)
{
    const int wolfe = 1;
    ek_tensor *after = case_golden(wolfe, "p"), *list[4], *states[STATES];
    const int64_t half = ek_tensor_size(after, 0) / 2;
    const char *names[STATES];
    char path[64];
    job j = job_begin(NETWORK, ek_select(after, 0, half - 1), test_device(0), cases[wolfe].make);
    const int parameters = job_parameters(&j, list);
    const int64_t steps = (int64_t)element(golden("lbfgs.golden", "half/n_iter"), 0);
    for (int i = 0; i < STATES; i++) {
        names[i] = ek_optimizer_state_name(j.optimizer, i);
        snprintf(path, sizeof path, "half/%s", names[i]);
        states[i] = golden("lbfgs.golden", path);
    }
    for (int i = 0; i < parameters; i++)
        assert_ok(
            ek_optimizer_set_state(j.optimizer, list[i], steps, names, states, i ? 0 : STATES));
    for (int64_t step = half; step < ek_tensor_size(after, 0); step++) {
        assert_ok(ek_step_closure(j.optimizer, job_evaluate, &j, NULL));
        assert_close_norm(job_vector(&j), ek_select(after, 0, step), 1e-10);
    }
    job_end(&j);
}

/* The state follows parameters to another device, to the same bits. */
TEST(a_model_that_moves_goes_on)
{
    for (int wolfe = 0; wolfe < 2; wolfe++) {
        ek_tensor *start = case_golden(wolfe, "p0");
        job a = job_begin(NETWORK, start, test_device(0), cases[wolfe].make),
            b = job_begin(NETWORK, start, test_device(0), cases[wolfe].make);
        for (int step = 0; step < 6; step++) {
            ek_device there = test_device(step / 2);
            assert_ok(ek_module_to_device(b.network, there));
            b.x = ek_to_device(b.x, there);
            b.y = ek_to_device(b.y, there);
            assert_ok(ek_step_closure(a.optimizer, job_evaluate, &a, NULL));
            assert_ok(ek_step_closure(b.optimizer, job_evaluate, &b, NULL));
            assert_close(job_vector(&b), job_vector(&a), 0, 0);
        }
        ek_tensor *weight = ek_module_tensor(b.network, "0.weight");
        ek_device of_state = ek_tensor_device(ek_optimizer_state(b.optimizer, weight, "d"));
        ck_assert_int_eq(of_state.index, test_device(2).index);
        job_end(&a);
        job_end(&b);
    }
}

typedef struct mover {
    job *j;
    ek_tensor *x, *y; /* where it moves */
    int moves_at;     /* the call that moves the model */
} mover;

static int evaluate_elsewhere(double *loss, void *user)
{
    mover *m = user;
    if (m->j->calls + 1 == m->moves_at) {
        assert_ok(ek_module_to_device(m->j->network, ek_tensor_device(m->x)));
        m->j->x = m->x;
        m->j->y = m->y;
    }
    return job_evaluate(loss, m->j);
}

/* The first call of a closure may move the model, as a wrapper's first forward does; later ones may
 * not. */
TEST(a_model_that_moves_within_a_step_is_refused)
{
    const int wolfe = 1;
    for (int later = 0; later < 2; later++) {
        ek_scope scope = ek_scope_begin();
        job j = job_begin(NETWORK, case_golden(wolfe, "p0"), test_device(0), cases[wolfe].make);
        mover m = {&j, ek_to_device(j.x, test_device(1)), ek_to_device(j.y, test_device(1)), 0};
        assert_ok(ek_step_closure(j.optimizer, evaluate_elsewhere, &m, NULL));
        ek_tensor *before = job_vector(&j), *weight = ek_module_tensor(j.network, "0.weight");
        const int64_t steps = ek_optimizer_steps(j.optimizer, weight);
        m.moves_at = j.calls + 1 + later;
        int status = ek_step_closure(j.optimizer, evaluate_elsewhere, &m, NULL);
        if (later) {
            assert_refused(status, EK_E_DEVICE, "lbfgs: the parameters have moved");
            assert_close(job_vector(&j), before, 0, 0);
            ck_assert_int_eq(ek_optimizer_steps(j.optimizer, weight), steps);
            assert_ok(ek_step_closure(j.optimizer, evaluate_elsewhere, &m, NULL));
        } else {
            assert_ok(status);
        }
        assert_close_norm(job_vector(&j), ek_select(case_golden(wolfe, "p"), 0, 1), 1e-10);
        job_end(&j);
        ek_scope_end(&scope);
    }
}

/* After a first evaluation that has converged there is "func_evals" alone. */
TEST(evaluations_without_iterations_are_state)
{
    int converged = 0;
    while (strcmp(cases[converged].name, "converged") != 0)
        converged++;
    ek_tensor *start = case_golden(converged, "p0"), *states[STATES];
    const char *names[STATES] = {NULL};
    job a = job_begin(NETWORK, start, ek_cpu(), cases[converged].make),
        b = job_begin(NETWORK, start, ek_cpu(), cases[converged].make);
    ek_tensor *weight = ek_module_tensor(b.network, "0.weight"),
              *bias = ek_module_tensor(b.network, "0.bias");
    for (int step = 0; step < 2; step++)
        assert_ok(ek_step_closure(a.optimizer, job_evaluate, &a, NULL));
    ck_assert_int_eq(states_of(&a, names, states), 1);
    ck_assert_str_eq(names[0], "func_evals");
    assert_refused(ek_optimizer_set_state(b.optimizer, bias, 0, names, states, 1), EK_E_INVALID,
                   "that of all parameters is the first one's");
    assert_refused(ek_optimizer_set_state(b.optimizer, weight, 0, (const char *[]){"t"}, states, 1),
                   EK_E_INVALID, "after 0 updates there is no state \"t\"");
    assert_refused(ek_optimizer_set_state(b.optimizer, weight, 0,
                                          (const char *[]){names[0], names[0]},
                                          (ek_tensor *[]){states[0], states[0]}, 2),
                   EK_E_INVALID, "given twice");
    assert_ok(ek_optimizer_set_state(b.optimizer, weight, 0, names, states, 1));
    assert_ok(ek_step_closure(b.optimizer, job_evaluate, &b, NULL));
    ck_assert_int_eq(states_of(&b, names, states), 1);
    ck_assert(element(states[0], 0) == 3);
    assert_ok(ek_optimizer_set_state(b.optimizer, weight, 0, NULL, NULL, 0));
    ck_assert_int_eq(states_of(&b, names, states), 0);
    job_end(&a);
    job_end(&b);
}

TEST(states_that_do_not_fit_are_refused)
{
    job a = job_begin(NETWORK, case_golden(1, "p0"), ek_cpu(), cases[1].make),
        b = job_begin(NETWORK, case_golden(1, "p0"), ek_cpu(), cases[1].make);
    ek_tensor *weight = ek_module_tensor(b.network, "0.weight"),
              *bias = ek_module_tensor(b.network, "0.bias"), *states[STATES];
    const char *names[STATES];
    assert_ok(ek_step_closure(a.optimizer, job_evaluate, &a, NULL));
    ck_assert_int_eq(states_of(&a, names, states), STATES);
    assert_refused(ek_optimizer_set_state(b.optimizer, bias, 4, names, states, STATES),
                   EK_E_INVALID, "that of all parameters is the first one's");
    assert_refused(ek_optimizer_set_state(b.optimizer, weight, 0, names, states, STATES),
                   EK_E_INVALID, "after 0 updates there is no state \"d\"");
    assert_refused(ek_optimizer_set_state(b.optimizer, weight, 4, names, states, STATES - 1),
                   EK_E_INVALID, "state \"func_evals\" is missing");
    names[0] = "old_dirs";
    assert_refused(ek_optimizer_set_state(b.optimizer, weight, 4, names, states, STATES),
                   EK_E_INVALID, "state \"old_dirs\" is given twice");
    names[0] = "exp_avg";
    assert_refused(ek_optimizer_set_state(b.optimizer, weight, 4, names, states, STATES),
                   EK_E_INVALID, "there is no state \"exp_avg\"");
    names[0] = "d";
    for (int i = 0; i < STATES; i++) {
        ek_tensor *state = states[i];
        states[i] = ek_zeros(EK_SHAPE(2, 2, 2), EK_F64);
        ck_assert_int_eq(ek_optimizer_set_state(b.optimizer, weight, 4, names, states, STATES),
                         EK_E_SHAPE);
        ek_error_clear();
        states[i] = state;
    }
    ck_assert_int_eq(ek_optimizer_steps(b.optimizer, weight), 0);
    assert_ok(ek_optimizer_set_state(b.optimizer, weight, 4, names, states, STATES));
    ck_assert_int_eq(ek_optimizer_steps(b.optimizer, weight), 4);
    assert_ok(ek_optimizer_set_state(b.optimizer, weight, 0, NULL, NULL, 0));
    ck_assert_ptr_null(ek_optimizer_state(b.optimizer, weight, "d"));
    job_end(&a);
    job_end(&b);
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
