/* stage_carry.c: other optimizers, schedules, averages, and tools of modules, call by call. */
#include <string.h>

#include "fault.h"
#include "kit/optimizers.h"

static struct {
    ek_module *model;
    ek_optimizer *optimizer;
    ek_schedule *schedule;
    ek_ema *ema;
} carry;

#define CARRY_LIST(X)                               \
    X(rmsprop, "rmsprop", 1, ek_rmsprop(module))    \
    X(adagrad, "adagrad", 1, ek_adagrad(module))    \
    X(adadelta, "adadelta", 2, ek_adadelta(module)) \
    X(adamax, "adamax", 2, ek_adamax(module))       \
    X(nadam, "nadam", 2, ek_nadam(module))          \
    X(radam, "radam", 2, ek_radam(module))          \
    X(rprop, "rprop", 2, ek_rprop(module))          \
    X(asgd, "asgd", 1, ek_asgd(module))
CARRY_LIST(OPTIMIZER_MAKER)
static const optimizer_row carry_optimizers[] = {CARRY_LIST(OPTIMIZER_ROW)};
enum { OPTIMIZERS = sizeof carry_optimizers / sizeof *carry_optimizers };

static int carry_set_up(int row)
{
    carry.model = ek_sequential(ek_linear(2, 3), ek_batch_norm1d(3), ek_linear(3, 1));
    carry.optimizer = carry_optimizers[row % OPTIMIZERS].make(carry.model);
    carry.schedule = ek_reduce_lr_on_plateau(carry.optimizer, .patience = 0);
    carry.ema = ek_ema_new(carry.model, .decay = 0.5);
    ek_tensor *loss = ek_sum(ek_square(ek_apply(carry.model, ek_randn(EK_SHAPE(4, 2)))));
    return carry.ema && carry.schedule ? ek_backward(loss) : ek_error_status();
}

static void carry_clear(int row)
{
    ek_ema_free(carry.ema);
    ek_schedule_free(carry.schedule);
    ek_optimizer_free(carry.optimizer);
    ek_module_free(carry.model);
    memset(&carry, 0, sizeof carry);
}

static int carry_world(int row)
{
    fault_note((double)ek_schedule_steps(carry.schedule) + (double)ek_ema_updates(carry.ema));
    int status = fault_note_tensor(ek_ema_tensor(carry.ema, "0.weight"));
    if (status >= 0)
        status = fault_note_parameters(carry.model);
    return status < 0 ? status : fault_note_optimizer(carry.optimizer, carry.model);
}

/* ---- optimizers ---- */

static int step(void)
{
    return ek_step(carry.optimizer);
}

static int options(void)
{
    double before = 0;
    int status = ek_optimizer_get(carry.optimizer, 0, "lr", &before);
    if (status >= 0)
        status = ek_optimizer_set(carry.optimizer, 0, "lr", before / 2);
    fault_note(before);
    return status;
}

static int clip(void)
{
    double norm = 0;
    int status =
        ek_clip_grad_norm(.max_norm = 0.1, .norm = &norm, .norm_type = 3, .module = carry.model);
    fault_note(norm);
    return status;
}

static int clip_value(void)
{
    ek_tensor *weight = ek_module_tensor(carry.model, "0.weight");
    return weight ? ek_clip_grad_value_of(&weight, 1, 0.01) : ek_error_status();
}

/* ---- schedules ---- */

static double halves(int64_t number, int group, void *user)
{
    return number % 2 ? 0.5 : 1;
}

static int schedule_run(ek_schedule *schedule)
{
    int status = schedule ? 0 : ek_error_status();
    for (int i = 0; i < 4 && status >= 0; i++)
        status = ek_schedule_step(schedule);
    if (status >= 0)
        status = ek_schedule_set_steps(schedule, 2);
    ek_schedule_free(schedule);
    return status;
}

static ek_optimizer *another(void)
{
    return ek_sgd(carry.model, .lr = 0.5, .momentum = 0.5);
}

static int schedules(void)
{
    ek_optimizer *o = another();
    int status = o ? schedule_run(ek_multi_step_lr(o, 0.5, 1, 3)) : ek_error_status();
    if (status >= 0)
        status = schedule_run(ek_exponential_lr(o, 0.5));
    if (status >= 0)
        status = schedule_run(ek_polynomial_lr(o, 5, 1));
    if (status >= 0)
        status = schedule_run(ek_lambda_lr(o, halves, NULL));
    if (status >= 0)
        status = schedule_run(ek_multiplicative_lr(o, halves, NULL));
    if (status >= 0)
        status = schedule_run(ek_cosine_annealing_warm_restarts(o, 2, 2, 0));
    if (status >= 0)
        status = schedule_run(ek_one_cycle_lr(o, 1, 9));
    if (status >= 0)
        status = schedule_run(ek_cyclic_lr(o, 0.1, 1, .step_size_up = 2));
    fault_note(ek_optimizer_lr(o, 0));
    ek_optimizer_free(o);
    return status;
}

static int schedule_lists(void)
{
    static const int64_t milestones[] = {2};
    ek_optimizer *o = another();
    int status = ek_error_status();
    if (o) {
        ek_schedule *both[] = {ek_constant_lr(o, 0.5, 2), ek_linear_lr(o, 0.5, 1, 2)};
        status = schedule_run(ek_sequential_lr(both, 2, milestones));
    }
    if (status >= 0)
        status = schedule_run(ek_chained_lr(ek_step_lr(o, 1, 0.5), ek_exponential_lr(o, 0.5)));
    if (status >= 0)
        status = schedule_run(ek_warm_up_lr(o, 0, 2, ek_step_lr(o, 1, 0.5)));
    fault_note(ek_optimizer_lr(o, 0));
    ek_optimizer_free(o);
    return status;
}

static int measure(void)
{
    return ek_schedule_step_measure(carry.schedule, 3);
}

/* ---- averages ---- */

static int update(void)
{
    return ek_ema_update(carry.ema);
}

/* If ek_ema_restore fails, the next attempt continues with it. */
static int apply(void)
{
    static bool applied;
    int status = applied ? 0 : ek_ema_apply(carry.ema);
    applied = status >= 0;
    if (status >= 0)
        status = ek_ema_restore(carry.ema);
    applied = applied && status < 0;
    return status;
}

static int archive(void)
{
    ek_archive *archive = ek_archive_new();
    int status = archive ? ek_archive_put_ema(archive, "ema", carry.ema) : ek_error_status();
    if (status >= 0)
        status = ek_archive_put_schedule(archive, "schedule", carry.schedule);
    if (status >= 0)
        status = ek_archive_save(archive, fault_path("carry.safetensors"));
    ek_archive_free(archive);
    archive = status >= 0 ? ek_archive_open(fault_path("carry.safetensors")) : NULL;
    if (archive)
        status = ek_archive_load_ema(archive, "ema", carry.ema);
    else
        status = ek_error_status();
    if (status >= 0)
        status = ek_archive_load_schedule(archive, "schedule", carry.schedule);
    ek_archive_free(archive);
    return status;
}

/* Model, optimizer, schedule and averages, in one call each way. */
static int training(void)
{
    const ek_training_state state = {.model = carry.model,
                                     .optimizer = carry.optimizer,
                                     .schedule = carry.schedule,
                                     .ema = carry.ema,
                                     .random = true};
    ek_archive *archive = ek_archive_new();
    int status = archive ? ek_archive_put_training(archive, "all", state) : ek_error_status();
    if (status >= 0)
        status = ek_archive_save(archive, fault_path("carry.safetensors"));
    ek_archive_free(archive);
    archive = status >= 0 ? ek_archive_open(fault_path("carry.safetensors")) : NULL;
    status = archive ? ek_archive_load_training(archive, "all", state) : ek_error_status();
    ek_archive_free(archive);
    return status;
}

/* ---- modules ---- */

static int copy(void)
{
    ek_module *copy = ek_module_copy(carry.model);
    int status = copy ? ek_ema_copy_to(carry.ema, copy) : ek_error_status();
    if (status >= 0)
        status = fault_note_parameters(copy);
    ek_module_free(copy);
    return status;
}

static int visit(const char *path, ek_module *module, void *user)
{
    ++*(int *)user;
    return 0;
}

static int containers(void)
{
    int count = 0;
    ek_module *dict = ek_module_dict_of(NULL, 0), *list = ek_module_list(ek_relu(), ek_tanh());
    int status = ek_module_list_append(list, ek_sigmoid());
    if (status >= 0 && dict) {
        status = ek_register_module(dict, "list", NULL, list);
        list = NULL;
    }
    if (status >= 0 && dict && ek_module_child_name(dict, 0) && ek_module_at(dict, "list.2"))
        status = ek_module_modules(dict, visit, &count);
    else if (status >= 0)
        status = ek_error_status();
    FILE *stream = status >= 0 ? fopen("/dev/null", "w") : NULL;
    if (stream) {
        status = ek_module_print(dict, stream);
        fclose(stream);
    }
    fault_note(count);
    ek_module_free(list);
    ek_module_free(dict);
    return status;
}

static int unwrap(void)
{
    ek_module *module = ek_data_parallel(ek_linear(2, 1), .device_ids = fault_devices());
    ek_module *inner = module ? ek_data_parallel_unwrap(module) : NULL;
    int status = inner ? fault_note_parameters(inner) : ek_error_status();
    ek_module_free(inner ? inner : module);
    return status;
}

static int run_once(ek_module *module, void *user)
{
    return ek_apply(module, user) ? 0 : ek_error_status();
}

static int statistics(void)
{
    ek_tensor *x = ek_ones(EK_SHAPE(4, 2));
    ek_module *module = x ? ek_sequential(ek_batch_norm1d(2)) : NULL;
    int status = module ? ek_update_batch_norm(module, run_once, x) : ek_error_status();
    ek_module_free(module);
    return status;
}

static int layers(void)
{
    ek_module *module =
        ek_sequential(ek_dropout1d(0.5), ek_unflatten(1, EK_SHAPE(1, 2)), ek_dropout2d(0.5),
                      ek_unflatten(2, EK_SHAPE(1, 2)), ek_dropout3d(0.5), ek_alpha_dropout(0.5));
    ek_tensor *y = module ? ek_apply(module, ek_ones(EK_SHAPE(2, 2, 2))) : NULL;
    int status = y ? fault_note_tensor(y) : ek_error_status();
    ek_module_free(module);
    return status;
}

static int initial_values(void)
{
    ek_tensor *x = ek_empty(EK_SHAPE(4, 3)), *kernel = ek_empty(EK_SHAPE(2, 2, 3));
    if (!x || !kernel || ek_init_xavier_normal(x, 1) < 0 || ek_init_orthogonal(x, 1) < 0 ||
        ek_init_trunc_normal(x, 0, 1, -2, 2) < 0 || ek_init_eye(x) < 0 ||
        ek_init_sparse(x, 0.5, 1) < 0 || ek_init_dirac(kernel, 1) < 0)
        return ek_error_status();
    fault_note(ek_init_calculate_gain(EK_GAIN_TANH, 0));
    return fault_note_tensor(x);
}

static const struct {
    const char *name;
    int (*attempt)(void);
} rows[] = {
    /* One row per optimizer. */
    {"step", step},
    {"step-adagrad", step},
    {"step-adadelta", step},
    {"step-adamax", step},
    {"step-nadam", step},
    {"step-radam", step},
    {"step-rprop", step},
    {"step-asgd", step},
    {"options", options},
    {"clip", clip},
    {"clip-value", clip_value},
    {"schedules", schedules},
    {"schedule-lists", schedule_lists},
    {"measure", measure},
    {"update", update},
    {"apply", apply},
    {"archive", archive},
    {"training", training},
    {"copy", copy},
    {"containers", containers},
    {"unwrap", unwrap},
    {"statistics", statistics},
    {"layers", layers},
    {"initial-values", initial_values},
};

static int carry_attempt(int row)
{
    return rows[row].attempt();
}

FAULT_STAGE(carry, FAULT_ROWS(rows), .set_up = carry_set_up, .attempt = carry_attempt,
            .world = carry_world, .clear = carry_clear);
