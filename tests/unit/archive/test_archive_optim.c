/* test_archive_optim.c: a training that goes on from a file goes on as if it had not been stopped,
 * also on another number of devices, sharded or not. */
#include "archive_setup.h"
#include "evenkeel/autograd.h"
#include "evenkeel/nn.h"
#include "evenkeel/ops.h"
#include "evenkeel/parallel.h"
#include "kit/optimizers.h"

enum { BATCH = 12, BEFORE = 3, AFTER = 3 };

typedef struct job {
    int devices;
    bool sharded;
} job;

typedef struct training {
    ek_module *model;
    ek_optimizer *optimizer;
    ek_schedule *schedule;
} training;

static ek_module *net(uint64_t seed)
{
    ek_manual_seed(seed);
    ek_module *made =
        ek_sequential(ek_linear(6, 9), ek_tanh(), ek_linear(9, 5), ek_tanh(), ek_linear(5, 2));
    assert_made(made);
    assert_ok(ek_module_to_dtype(made, EK_F64));
    return made;
}

static training begin(job j, uint64_t seed, bool sgd)
{
    training t = {0};
    ek_device_list devices = ek_devices(test_kind(), j.devices);
    t.model = ek_data_parallel(net(seed), .device_ids = devices,
                               .shard = j.sharded ? EK_SHARD_OPTIMIZER : EK_SHARD_NONE);
    assert_made(t.model);
    t.optimizer = sgd ? ek_sgd(t.model, .lr = 0.05, .momentum = 0.9)
                      : ek_adam(t.model, .lr = 0.01, .amsgrad = true);
    t.schedule = ek_step_lr(t.optimizer, 2, 0.5);
    assert_made(t.schedule);
    return t;
}

static void end(training *t)
{
    ek_schedule_free(t->schedule);
    ek_optimizer_free(t->optimizer);
    ek_module_free(t->model);
}

static double step(training *t, int number)
{
    double value = NAN;
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(100 + (uint64_t)number);
    ek_tensor *x = ek_randn(EK_SHAPE(BATCH, 6), .dtype = EK_F64);
    ek_tensor *y = ek_apply(t->model, x);
    ek_tensor *loss = ek_mean(ek_mul(y, y));
    ek_zero_grad(t->optimizer);
    assert_ok(ek_backward(loss));
    assert_ok(ek_step(t->optimizer));
    assert_ok(ek_schedule_step(t->schedule));
    assert_ok(ek_item(loss, &value));
    ek_scope_end(&scope);
    return value;
}

static ek_archive *saved(training *t)
{
    ek_archive *a = ek_archive_new();
    assert_ok(ek_archive_put_module(a, "model", t->model));
    assert_ok(ek_archive_put_optimizer(a, "optimizer", t->optimizer, t->model));
    assert_ok(ek_archive_put_schedule(a, "schedule", t->schedule));
    return through_file(a);
}

static int load_optimizer(const ek_archive *a, training *t)
{
    return ek_archive_load_optimizer(a, "optimizer", t->optimizer, t->model);
}

static void load(const ek_archive *a, training *t)
{
    assert_ok(ek_archive_load_module(a, "model", t->model));
    assert_ok(load_optimizer(a, t));
    assert_ok(ek_archive_load_schedule(a, "schedule", t->schedule));
}

/* ---- going on ---- */

static const job jobs[] = {{4, true}, {4, false}, {2, true}, {2, false}, {1, true}, {1, false}};
enum { JOBS = sizeof jobs / sizeof *jobs };

static void assert_goes_on(job from, job to, bool sgd)
{
    double losses[AFTER];
    char digests[2][65];
    training t = begin(from, 1, sgd);
    for (int i = 0; i < BEFORE; i++)
        step(&t, i);
    ek_archive *a = saved(&t);
    for (int i = 0; i < AFTER; i++)
        losses[i] = step(&t, BEFORE + i);
    assert_ok(ek_module_sha256(t.model, digests[0]));
    double rate = ek_optimizer_lr(t.optimizer, 0);
    end(&t);

    t = begin(to, 2, sgd);
    load(a, &t);
    ek_archive_free(a);
    const double tolerance = from.devices == to.devices ? test_rounding() : 1e-12;
    for (int i = 0; i < AFTER; i++) {
        double loss = step(&t, BEFORE + i);
        ck_assert_msg(fabs(loss - losses[i]) <= tolerance * losses[i],
                      "%d%s to %d%s, step %d: loss %.17g, wanted %.17g", from.devices,
                      from.sharded ? " sharded" : "", to.devices, to.sharded ? " sharded" : "", i,
                      loss, losses[i]);
    }
    ck_assert(ek_optimizer_lr(t.optimizer, 0) == rate);
    ck_assert_int_eq(ek_schedule_steps(t.schedule), BEFORE + AFTER);
    assert_ok(ek_module_sha256(t.model, digests[1]));
    if (tolerance == 0)
        ck_assert_str_eq(digests[0], digests[1]);
    end(&t);
}

TEST_LOOP(training_goes_on, 0, JOBS)
{
    for (int to = 0; to < JOBS; to++)
        assert_goes_on(jobs[_i], jobs[to], to % 2);
}

/* Into one that has trained already, sharded or not; states that are put are not yet gathered. */
TEST_LOOP(a_used_optimizer_is_overwritten, 0, JOBS)
{
    training one = begin(jobs[_i], 1, false), other = begin(jobs[_i], 2, false);
    for (int i = 0; i < BEFORE; i++) {
        step(&one, i);
        step(&other, 7 + i);
    }
    step(&other, 20);
    ek_archive *a = saved(&one);
    load(a, &other);
    ck_assert(step(&one, 5) == step(&other, 5));
    ck_assert(step(&one, 6) == step(&other, 6));
    ek_archive_free(a);
    end(&one);
    end(&other);
}

/* The optimizer may go before the archive is saved. */
TEST_LOOP(states_outlive_their_optimizer, 0, 2)
{
    training t = begin(jobs[_i], 1, false);
    step(&t, 0);
    ek_archive *a = ek_archive_new(), *b = ek_archive_new();
    assert_ok(ek_archive_put_optimizer(a, "o", t.optimizer, t.model));
    assert_ok(ek_archive_put_optimizer(b, "o", t.optimizer, t.model));
    b = through_file(b);
    end(&t);
    a = through_file(a);
    ck_assert(element(ek_archive_tensor(a, "o.0.weight.exp_avg", NULL), 0) != 0);
    assert_close(ek_value_tensor(ek_archive_get(a, "o.0.weight.exp_avg")),
                 ek_value_tensor(ek_archive_get(b, "o.0.weight.exp_avg")), 0, 0);
    ck_assert(ek_device_equal(ek_tensor_device(ek_archive_tensor(a, "o.0.weight.exp_avg", NULL)),
                              test_device(0)));
    ek_archive_free(a);
    ek_archive_free(b);
}

/* Before any step, and with a group that needs no state. */
TEST(optimizers_without_states_come_back)
{
    ek_module *module = net(1);
    ek_optimizer *optimizer = ek_sgd(.lr = 0.5), *again = ek_sgd(.lr = 0.25);
    for (int i = 0; i < 2; i++) {
        static const char *const names[] = {"0.weight", "0.bias"};
        ek_tensor *p = ek_module_tensor(module, names[i]);
        ck_assert_int_eq(add_group_with(optimizer, &p, 1, "lr", i ? 0.125 : 0), i);
        assert_ok(ek_optimizer_set(optimizer, i, "momentum", i ? 0.5 : 0));
        ck_assert_int_eq(add_group_with(again, &p, 1, "momentum", i ? 0.5 : 0), i);
        ek_tensor_set_grad(p, ek_detach(p));
    }
    for (int stepped = 0; stepped < 2; stepped++) {
        ek_archive *a = ek_archive_new();
        assert_ok(ek_archive_put_optimizer(a, "o", optimizer, module));
        a = through_file(a);
        ck_assert(!ek_archive_has(a, "o.0.weight.momentum_buffer"));
        ck_assert_int_eq(ek_archive_has(a, "o.0.bias.momentum_buffer"), stepped);
        assert_ok(ek_archive_load_optimizer(a, "o", again, module));
        ck_assert_int_eq(ek_optimizer_steps(again, ek_module_tensor(module, "0.bias")), stepped);
        ck_assert(ek_optimizer_lr(again, 0) == 0 && ek_optimizer_lr(again, 1) == 0.125);
        ek_archive_free(a);
        assert_ok(ek_step(optimizer));
    }
    ek_optimizer_free(optimizer);
    ek_optimizer_free(again);
    ek_module_free(module);
}

/* ---- schedules ---- */

/* The rates that it began with come along, though it is made with the optimizer's rates of now; a
 * rate that was set by hand stays. */
TEST(schedules_remember_where_they_began)
{
    ek_module *module = net(1);
    ek_optimizer *optimizer = ek_sgd(module, .lr = 0.8);
    ek_schedule *schedule = ek_cosine_annealing_lr(optimizer, 10, 0.1);
    for (int i = 0; i < 4; i++)
        assert_ok(ek_schedule_step(schedule));
    assert_ok(ek_optimizer_set(optimizer, 0, "lr", 0.33));
    ek_archive *a = ek_archive_new();
    assert_ok(ek_archive_put_schedule(a, "s", schedule));
    a = through_file(a);
    ek_optimizer *other = ek_sgd(module, .lr = 0.33);
    ek_schedule *again = ek_cosine_annealing_lr(other, 10, 0.1);
    assert_ok(ek_archive_load_schedule(a, "s", again));
    ck_assert(ek_optimizer_lr(other, 0) == 0.33);
    ck_assert_int_eq(ek_schedule_steps(again), 4);
    assert_ok(ek_schedule_step(schedule));
    assert_ok(ek_schedule_step(again));
    ck_assert(ek_optimizer_lr(other, 0) == ek_optimizer_lr(optimizer, 0));
    ck_assert(ek_optimizer_lr(other, 0) < 0.33); /* from what was set by hand */
    ek_optimizer *untouched = ek_sgd(module, .lr = 0.8);
    ek_schedule *plain = ek_cosine_annealing_lr(untouched, 10, 0.1);
    for (int i = 0; i < 5; i++)
        assert_ok(ek_schedule_step(plain));
    assert_ok(ek_schedule_set_steps(again, 2));
    ck_assert(ek_optimizer_lr(other, 0) > 0.7);
    assert_ok(ek_schedule_set_steps(again, 5));
    ck_assert(ek_optimizer_lr(other, 0) == ek_optimizer_lr(untouched, 0));
    ek_schedule_free(plain);
    ek_optimizer_free(untouched);
    assert_refused(ek_schedule_set_steps(again, -1), EK_E_INVALID, "after -1 steps");
    ck_assert_int_eq((int)ek_schedule_steps(NULL), EK_E_INVALID);
    assert_error(EK_E_INVALID, "the schedule is NULL");
    ek_archive_free(a);
    ek_schedule_free(schedule);
    ek_schedule_free(again);
    ek_optimizer_free(optimizer);
    ek_optimizer_free(other);
    ek_module_free(module);
}

/* ---- what doesn't fit ---- */

/* A file of one Adam step, without the tensors whose name holds `without`, with `added`. */
static ek_archive *changed(training *t, const char *without, ek_named_tensor added)
{
    static char names[64][64];
    ek_named_tensor tensors[64];
    int count = 0;
    ek_archive *a = saved(t);
    ek_archive_free(a);
    ek_safetensors *file = ek_safetensors_open(file_path);
    for (int i = 0; i < ek_safetensors_count(file); i++) {
        const char *name = ek_safetensors_name(file, i);
        if (strstr(name, without))
            continue;
        snprintf(names[count], sizeof names[0], "%s", name);
        tensors[count] = (ek_named_tensor){names[count], ek_safetensors_read(file, name)};
        count++;
    }
    if (added.name)
        tensors[count++] = added;
    ek_safetensors_close(file);
    return file_of(tensors, count);
}

/* Nothing of the training changes: it goes on as one that never tried. */
static void assert_no_load(const char *without, ek_named_tensor added, int status, const char *part)
{
    training t[2];
    for (int i = 0; i < 2; i++) {
        t[i] = begin(jobs[0], 1, false);
        step(&t[i], 0);
    }
    training other = begin(jobs[0], 2, false), fresh = begin(jobs[2], 1, false);
    step(&other, 1);
    step(&other, 2);
    ek_archive *a = changed(&other, without, added);
    assert_refused(load_optimizer(a, &t[0]), status, part);
    assert_refused(load_optimizer(a, &fresh), status, part);
    ck_assert_int_eq(ek_optimizer_steps(fresh.optimizer, ek_module_tensor(fresh.model, "0.weight")),
                     0);
    ck_assert(ek_optimizer_lr(t[0].optimizer, 0) == ek_optimizer_lr(t[1].optimizer, 0));
    ck_assert(step(&t[0], 5) == step(&t[1], 5));
    ck_assert(step(&t[0], 6) == step(&t[1], 6));
    ek_archive_free(a);
    end(&other);
    end(&fresh);
    end(&t[0]);
    end(&t[1]);
}

TEST_LOOP(what_doesnt_fit_changes_nothing, 0, 8)
{
    const double rates[] = {0.1, 0.2}, negative = -1;
    const int64_t minus = -1;
    ek_named_tensor nothing = {NULL, NULL};
    ek_tensor *two = ek_from_data(rates, EK_SHAPE(2), EK_F64);
    switch (_i) {
    case 0:
        assert_no_load("4.bias.exp_avg_sq", nothing, EK_E_INVALID,
                       "state \"exp_avg_sq\" is missing");
        break;
    case 1:
        assert_no_load("optimizer.4.bias", nothing, EK_E_INVALID,
                       "no tensor \"optimizer.4.bias.steps\"");
        break;
    case 2:
        assert_no_load("4.bias.exp_avg_sq",
                       (ek_named_tensor){"optimizer.4.bias.exp_avg_sq", ek_ones(EK_SHAPE(3))},
                       EK_E_SHAPE, "optimizer.4.bias");
        break;
    case 3:
        assert_no_load("optimizer.lr", nothing, EK_E_INVALID, "no tensor \"optimizer.lr\"");
        break;
    case 4:
        assert_no_load("optimizer.lr", (ek_named_tensor){"optimizer.lr", two}, EK_E_SHAPE,
                       "holds 2 numbers");
        break;
    case 5:
        assert_no_load("optimizer.lr",
                       (ek_named_tensor){"optimizer.lr",
                                         ek_from_data(&negative, EK_SHAPE(1), EK_F64)},
                       EK_E_FORMAT, "a rate is 0 or more");
        break;
    case 6:
        assert_no_load("4.bias.steps",
                       (ek_named_tensor){"optimizer.4.bias.steps",
                                         ek_from_data(&minus, ek_scalar_shape(), EK_I64)},
                       EK_E_INVALID, "after -1 updates");
        break;
    default:
        assert_no_load("-", (ek_named_tensor){"optimizer.4.bias.other", two}, EK_E_INVALID,
                       "no state \"other\"");
    }
}

TEST(wrong_calls_are_refused)
{
    training t = begin(jobs[4], 1, false), sgd = begin(jobs[4], 1, true);
    ek_module *part = ek_linear(1, 1);
    ek_archive *a = ek_archive_new();
    step(&t, 0);
    assert_refused(ek_archive_put_optimizer(a, "o", t.optimizer, part), EK_E_INVALID,
                   "6 of the optimizer's 6 parameters are none of the module's");
    ck_assert(!ek_archive_has(a, "o"));
    assert_refused(ek_archive_put_optimizer(a, "o", NULL, part), EK_E_INVALID,
                   "the optimizer is NULL");
    assert_refused(ek_archive_put_optimizer(a, "o", t.optimizer, NULL), EK_E_INVALID,
                   "the module is NULL");
    assert_refused(ek_archive_put_schedule(a, "s", NULL), EK_E_INVALID, "the schedule is NULL");
    ek_archive_free(a);
    a = saved(&t);
    assert_refused(ek_archive_load_optimizer(a, "optimizer", t.optimizer, part), EK_E_INVALID,
                   "none of the module's parameters");
    assert_refused(ek_archive_load_optimizer(a, "optimizer", NULL, part), EK_E_INVALID,
                   "the optimizer is NULL");
    assert_refused(load_optimizer(a, &sgd), EK_E_INVALID, "no state");
    assert_refused(ek_archive_load_schedule(a, "optimizer", t.schedule), EK_E_INVALID,
                   "no tensor \"optimizer.steps\"");
    assert_refused(ek_archive_load_schedule(a, "schedule", NULL), EK_E_INVALID,
                   "the schedule is NULL");
    ek_archive_free(a);
    ek_module_free(part);
    end(&t);
    end(&sgd);
}

/* ---- an algorithm whose state is that of all parameters together ---- */

typedef struct fit {
    training t;
    ek_tensor *x;
} fit;

static int fit_evaluate(double *loss, void *user)
{
    fit *f = user;
    ek_zero_grad(f->t.optimizer);
    ek_tensor *y = ek_apply(f->t.model, f->x);
    ek_tensor *l = ek_mean(ek_square(ek_add_scalar(y, 1)));
    return ek_backward(l) < 0 ? ek_error_status() : ek_item(l, loss);
}

static fit fit_begin(job j, uint64_t seed)
{
    fit f = {.t = begin(j, seed, true)};
    ek_schedule_free(f.t.schedule);
    ek_optimizer_free(f.t.optimizer);
    f.t.optimizer = ek_lbfgs(f.t.model, .max_iter = 3, .line_search = EK_STRONG_WOLFE);
    f.t.schedule = ek_step_lr(f.t.optimizer, 2, 0.5);
    assert_made(f.t.schedule);
    ek_manual_seed(9);
    f.x = ek_randn(EK_SHAPE(BATCH, 6), .dtype = EK_F64);
    return f;
}

/* Among others into an optimizer that was used, and with options that were changed. */
TEST_LOOP(lbfgs_goes_on, 0, JOBS)
{
    if (jobs[_i].sharded)
        return;
    for (int used = 0; used < 2; used++) {
        double losses[AFTER], loss, size;
        fit one = fit_begin(jobs[_i], 1), other = fit_begin((job){3, false}, 2);
        assert_ok(ek_optimizer_set(one.t.optimizer, 0, "history_size", 2));
        for (int i = 0; i < BEFORE; i++)
            assert_ok(ek_step_closure(one.t.optimizer, fit_evaluate, &one, NULL));
        ek_archive *a = saved(&one.t);
        for (int i = 0; i < AFTER; i++)
            assert_ok(ek_step_closure(one.t.optimizer, fit_evaluate, &one, &losses[i]));
        if (used)
            assert_ok(ek_step_closure(other.t.optimizer, fit_evaluate, &other, NULL));
        load(a, &other.t);
        ek_archive_free(a);
        assert_ok(ek_optimizer_get(other.t.optimizer, 0, "history_size", &size));
        ck_assert(size == 2);
        for (int i = 0; i < AFTER; i++) {
            assert_ok(ek_step_closure(other.t.optimizer, fit_evaluate, &other, &loss));
            ck_assert(fabs(loss - losses[i]) <= 1e-10 * losses[i]);
        }
        end(&one.t);
        end(&other.t);
    }
}

/* A file that lacks one parameter changes nothing, although the first one's state is read before.
 */
TEST(half_a_state_of_lbfgs_changes_nothing)
{
    fit f = fit_begin((job){2, false}, 1);
    assert_ok(ek_step_closure(f.t.optimizer, fit_evaluate, &f, NULL));
    ek_tensor *first = ek_module_tensor(f.t.model, "0.weight");
    ek_archive *a = ek_archive_new(), *b;
    for (int i = 0; ek_optimizer_state_name(f.t.optimizer, i); i++) {
        const char *state = ek_optimizer_state_name(f.t.optimizer, i);
        char name[80];
        snprintf(name, sizeof name, "optimizer.0.weight.%s", state);
        assert_ok(
            ek_archive_put(a, name, EK_VALUE(ek_optimizer_state(f.t.optimizer, first, state))));
    }
    const int64_t before_steps = ek_optimizer_steps(f.t.optimizer, first), steps = before_steps + 5;
    double rate = 1;
    assert_ok(ek_archive_put(a, "optimizer.0.weight.steps",
                             EK_VALUE(ek_from_data(&steps, ek_scalar_shape(), EK_I64))));
    assert_ok(
        ek_archive_put(a, "optimizer.lr", EK_VALUE(ek_from_data(&rate, EK_SHAPE(1), EK_F64))));
    b = through_file(a);
    ek_tensor *before = ek_clone(ek_optimizer_state(f.t.optimizer, first, "d"));
    assert_refused(load_optimizer(b, &f.t), EK_E_INVALID, "optimizer.0.bias.steps");
    ck_assert_int_eq(ek_optimizer_steps(f.t.optimizer, first), before_steps);
    assert_close(ek_optimizer_state(f.t.optimizer, first, "d"), before, 0, 0);
    ek_archive_free(b);
    end(&f.t);
}

/* A load that fails keeps the evaluations of an optimizer that had converged from the start. */
TEST(a_failed_load_keeps_lbfgs_evaluations)
{
    fit f = fit_begin((job){2, false}, 1);
    const int64_t steps = 0;
    double rate = 1, evaluations = 9;
    assert_ok(ek_optimizer_set(f.t.optimizer, 0, "tolerance_grad", 1e9));
    assert_ok(ek_step_closure(f.t.optimizer, fit_evaluate, &f, NULL));
    ek_tensor *first = ek_module_tensor(f.t.model, "0.weight");
    ck_assert(element(ek_optimizer_state(f.t.optimizer, first, "func_evals"), 0) == 1);
    ek_archive *whole = saved(&f.t), *a = ek_archive_new(), *b;
    assert_ok(ek_archive_put(a, "optimizer.0.weight.steps",
                             EK_VALUE(ek_from_data(&steps, ek_scalar_shape(), EK_I64))));
    assert_ok(ek_archive_put(a, "optimizer.0.weight.func_evals",
                             EK_VALUE(ek_from_data(&evaluations, ek_scalar_shape(), EK_F64))));
    assert_ok(
        ek_archive_put(a, "optimizer.lr", EK_VALUE(ek_from_data(&rate, EK_SHAPE(1), EK_F64))));
    b = through_file(a);
    assert_refused(load_optimizer(b, &f.t), EK_E_INVALID, "optimizer.0.bias.steps");
    ck_assert(element(ek_optimizer_state(f.t.optimizer, first, "func_evals"), 0) == 1);
    assert_ok(ek_step_closure(f.t.optimizer, fit_evaluate, &f, NULL));
    load(whole, &f.t);
    ck_assert(element(ek_optimizer_state(f.t.optimizer, first, "func_evals"), 0) == 1);
    ek_archive_free(whole);
    ek_archive_free(b);
    end(&f.t);
}
