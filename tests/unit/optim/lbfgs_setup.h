/* lbfgs_setup.h: the problems of tests/golden/make_lbfgs.py, and optimizers that solve them. */
#ifndef EK_TESTS_LBFGS_SETUP_H
#define EK_TESTS_LBFGS_SETUP_H

#include "kit/devices.h"
#include "kit/optimizers.h"
#include "unit.h"

/* ---- problems ---- */

typedef enum problem_kind { NETWORK, VALLEY, CLIFF, STEEP } problem_kind;

typedef struct job {
    problem_kind problem;
    ek_module *network; /* NULL: the problem has none */
    ek_tensor *row;     /* the parameter if there is no network; one reference */
    ek_optimizer *optimizer;
    ek_tensor *x, *y;
    int calls;
    int fails_at;                /* the call that fails; 0: none */
    ek_memory_category category; /* the memory's at the last call */
} job;

static inline ek_tensor *job_loss(const job *j)
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

static inline int job_evaluate(double *loss, void *user)
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

static inline int job_parameters(const job *j, ek_tensor *list[4])
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

/* Returns all parameters as a vector, on cpu. */
static inline ek_tensor *job_vector(const job *j)
{
    ek_tensor *list[4];
    int count = job_parameters(j, list);
    for (int i = 0; i < count; i++)
        list[i] = ek_to_device(ek_reshape(ek_detach(list[i]), EK_SHAPE(-1)), ek_cpu());
    return ek_cat(list, count, 0);
}

static inline void job_set(const job *j, ek_tensor *vector)
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

/* Returns a job on a device whose parameters are those of the vector. Its tensors are in the
 * caller's scope. */
static inline job job_begin(problem_kind problem, ek_tensor *start, ek_device device,
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

static inline void job_end(job *j)
{
    ek_optimizer_free(j->optimizer);
    ek_module_free(j->network);
    ek_release(j->row);
}

/* ---- goldens ---- */

static inline ek_tensor *case_golden(int i, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "%s/%s", cases[i].name, what);
    return golden("lbfgs.golden", name);
}

#endif
