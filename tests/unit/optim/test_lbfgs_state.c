/* test_lbfgs_state.c: the state of L-BFGS: which memory it takes, and how it is carried over and
 * moved. */
#include "lbfgs_setup.h"

FIXTURE(four_devices, NULL)

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
