/* stage_optim.c: optim.h call by call, and small calls of other headers. */
#include <string.h>

#include "fault.h"
#include "kit/optimizers.h"

static struct {
    ek_module *model;
    ek_optimizer *optimizer;
    ek_schedule *schedule;
    ek_tensor *weight;
} run;

static bool row_is_lbfgs(int row);

/* The loss of the model, and its gradients. */
static int evaluate(double *loss, void *user)
{
    ek_zero_grad(run.optimizer);
    ek_tensor *x = ek_reshape(ek_linspace(-1, 1, 8, EK_F32, ek_cpu()), EK_SHAPE(4, 2));
    ek_tensor *l = ek_mean(ek_square(ek_square(ek_sub_scalar(ek_apply(run.model, x), 1))));
    int status = ek_backward(l);
    return status < 0 ? status : ek_item(l, loss);
}

/* LBFGS has state after a step. */
static int lbfgs_set_up(void)
{
    run.optimizer =
        ek_lbfgs(run.model, .max_iter = 3, .history_size = 2, .line_search = EK_STRONG_WOLFE);
    run.schedule = run.optimizer ? ek_cosine_annealing_lr(run.optimizer, 10, 0) : NULL;
    run.weight = ek_module_tensor(run.model, "0.weight");
    return run.schedule ? ek_step_closure(run.optimizer, evaluate, NULL, NULL) : ek_error_status();
}

static int optim_set_up(int row)
{
    run.model = ek_sequential(ek_linear(2, 3), ek_linear(3, 1));
    if (row_is_lbfgs(row))
        return lbfgs_set_up();
    run.optimizer = ek_adam(run.model, .lr = 0.01);
    run.schedule = run.optimizer ? ek_cosine_annealing_lr(run.optimizer, 10, 0) : NULL;
    run.weight = ek_module_tensor(run.model, "0.weight");
    ek_tensor *loss = ek_sum(ek_square(ek_apply(run.model, ek_randn(EK_SHAPE(4, 2)))));
    return ek_backward(loss);
}

static void optim_clear(int row)
{
    ek_schedule_free(run.schedule);
    ek_optimizer_free(run.optimizer);
    ek_module_free(run.model);
    memset(&run, 0, sizeof run);
}

static int optim_world(int row)
{
    fault_note((double)ek_schedule_steps(run.schedule));
    int status = fault_note_parameters(run.model);
    if (status >= 0)
        status = fault_note_optimizer(run.optimizer, run.model);
    if (row_is_lbfgs(row)) /* a step that fails leaves the gradients that it had last */
        return status;
    return status < 0 ? status : fault_note_gradients(run.model);
}

static int step(void)
{
    return ek_step(run.optimizer);
}

/* A scaler of its own with scale 1, so that a step that fails leaves the gradients as they were. */
static int scaled(void)
{
    ek_grad_scaler *scaler = ek_grad_scaler_new(.init_scale = 4, .growth_interval = 1);
    ek_tensor *loss = scaler ? ek_grad_scaler_scale(scaler, ek_ones(ek_scalar_shape())) : NULL;
    int status = loss ? ek_grad_scaler_set(scaler, 1, 0) : ek_error_status();
    if (status >= 0)
        status = ek_grad_scaler_unscale(scaler, run.optimizer);
    if (status >= 0)
        status = ek_grad_scaler_step(scaler, run.optimizer);
    if (status >= 0)
        status = ek_grad_scaler_update(scaler);
    fault_note(ek_grad_scaler_factor(scaler) + (double)ek_grad_scaler_tracker(scaler) +
               (double)ek_grad_scaler_skipped(scaler));
    ek_grad_scaler_free(scaler);
    return status;
}

static int clip_value(void)
{
    return ek_clip_grad_value(run.optimizer, 0.01);
}

static int clip_norm(void)
{
    double norm = 0;
    int status = ek_clip_grad_norm(run.optimizer, 0.01, &norm);
    fault_note(norm);
    return status;
}

static int schedule(void)
{
    return ek_schedule_step(run.schedule);
}

static int set_steps(void)
{
    return ek_schedule_set_steps(run.schedule, 4);
}

static int set_lr(void)
{
    return ek_optimizer_set(run.optimizer, 0, "lr", 0.5);
}

/* Another parameter, in a group of its own. */
static int add_group(void)
{
    ek_tensor *extra = ek_ones(EK_SHAPE(3), .requires_grad = true);
    ek_optimizer *optimizer = extra ? ek_sgd(NULL, .lr = 0.1) : NULL;
    int status = optimizer ? add_group_with(optimizer, &extra, 1, "lr", 0.2) : ek_error_status();
    if (status >= 0)
        fault_note(ek_optimizer_parameter_count(optimizer) + ek_optimizer_has(optimizer, extra));
    ek_optimizer_free(optimizer);
    return status;
}

static int set_state(void)
{
    const char *const names[] = {"exp_avg", "exp_avg_sq"};
    ek_tensor *ones = ek_ones(EK_SHAPE(3, 2));
    ek_tensor *const states[] = {ones, ones};
    return ones ? ek_optimizer_set_state(run.optimizer, run.weight, 3, names, states, 2)
                : ek_error_status();
}

/* ---- LBFGS ---- */

static int lbfgs_step(void)
{
    double loss = 0;
    int status = ek_step_closure(run.optimizer, evaluate, NULL, &loss);
    fault_note(loss);
    return status;
}

/* The state of a step before, but for the direction. */
static int lbfgs_set_state(void)
{
    const char *names[12];
    ek_tensor *states[12];
    int count = 0;
    for (; (names[count] = ek_optimizer_state_name(run.optimizer, count)); count++) {
        states[count] = ek_optimizer_state(run.optimizer, run.weight, names[count]);
        if (!states[count])
            return ek_error_status();
    }
    states[0] = ek_mul_scalar(states[0], 2);
    return states[0] ? ek_optimizer_set_state(run.optimizer, run.weight, 2, names, states, count)
                     : ek_error_status();
}

/* ---- others' ---- */

static int without_gradients(void)
{
    bool before = ek_set_grad_enabled(false);
    ek_tensor *y = ek_apply(run.model, ek_ones(EK_SHAPE(1, 2)));
    fault_note(ek_grad_enabled() + (y ? ek_tensor_is_leaf(y) : 0));
    ek_set_grad_enabled(before);
    return y ? fault_note_tensor(y) : ek_error_status();
}

static int draws(void)
{
    ek_generator *generator = ek_generator_new(1);
    if (!generator)
        return ek_error_status();
    ek_generator_seed(generator, 3);
    fault_note((double)ek_random_u32(generator) + (double)(ek_random_u64(generator) >> 40));
    int status = ek_generator_set_engine(generator, EK_RANDOM_PHILOX);
    fault_note((double)ek_random_u32(generator) + (double)ek_generator_engine(generator));
    ek_generator_free(generator);
    return status;
}

/* Replicas that draw as one module does, and a tensor that is filled through memory of the host. */
static int draws_by_count(void)
{
    ek_module *model =
        ek_data_parallel(ek_sequential(ek_dropout(0.5)), .device_ids = ek_devices(EK_HOST, 2));
    int status = model ? ek_generator_set_engine(NULL, EK_RANDOM_PHILOX) : ek_error_status();
    ek_tensor *x = ek_empty(EK_SHAPE(2, 3, 2, 2), .format = EK_CHANNELS_LAST);
    if (status >= 0)
        status = x ? ek_uniform_(x, 1, 2, NULL) : ek_error_status();
    ek_tensor *y = status < 0 ? NULL : ek_apply(model, x);
    ek_generator_set_engine(NULL, EK_RANDOM_TWISTER);
    ek_module_free(model);
    return y ? fault_note_tensor(y) : ek_error_status();
}

static int points(void)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3)), *y = ek_zeros(EK_SHAPE(2, 3));
    return fault_note_tensor(ek_penalty_points(x, y, EK_PENALTY_DRAGAN, NULL));
}

/* ---- a transform of one's own ---- */

static int halve_describe(const ek_transform *self, ek_array *array)
{
    return array->dtype == EK_F32 ? 0 : ek_error(EK_E_DTYPE, "halve: f32 only");
}

static int halve_apply(const ek_transform *self, const ek_array *in, ek_array *out,
                       ek_generator *generator)
{
    for (int64_t i = 0; i < ek_shape_count(&in->shape); i++)
        ((float *)out->data)[i] = ((const float *)in->data)[i] / 2;
    return 0;
}

static const ek_transform_type halve = {.name = "halve",
                                        .size = sizeof(ek_transform),
                                        .describe = halve_describe,
                                        .apply = halve_apply};

static int transform(void)
{
    ek_transform *chain[] = {ek_transform_new(&halve), ek_random_crop(2, .padding = 1)};
    ek_tensor *x = ek_ones(EK_SHAPE(1, 2, 2));
    int status = chain[0] && chain[1] && x
                     ? fault_note_tensor(ek_transform_apply(chain, 2, x, NULL))
                     : ek_error_status();
    ek_transform_free(chain[0]);
    ek_transform_free(chain[1]);
    return status;
}

/* ---- a function that asks ---- */

static int scale_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    y[0] = ek_mul_scalar(x[0], *(double *)ek_function_user(call));
    return 0;
}

static int scale_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    if (ek_function_needs(call, 0))
        dx[0] = ek_mul_scalar(dy[0], *(double *)ek_function_user(call));
    return 0;
}

static const ek_function scale = {.name = "scale",
                                  .forward = scale_forward,
                                  .backward = scale_backward};

static int function(void)
{
    double factor = 3;
    ek_tensor *x = ek_ones(EK_SHAPE(2), .requires_grad = true), *y = NULL, *g = NULL;
    int status = x ? ek_function_apply_user(&scale, &x, 1, &y, &factor) : ek_error_status();
    ek_tensor *sum = status < 0 ? NULL : ek_sum(y);
    if (status >= 0)
        status = ek_grad(.outputs = &sum, .output_count = 1, .inputs = &x, .input_count = 1,
                         .gradients = &g);
    return status < 0 ? status : fault_note_tensor(g);
}

/* ---- a loader's parts ---- */

static int loader(void)
{
    ek_tensor *x = ek_ones(EK_SHAPE(4, 2));
    ek_dataset *dataset = ek_tensor_dataset(x);
    ek_loader *loader = ek_data_loader(ek_dataset_keep(dataset), .batch_size = 2);
    ek_loader_stats stats;
    ek_worker_info info;
    int status = loader ? ek_loader_set_epoch(loader, 2) : ek_error_status();
    if (status >= 0)
        status = ek_loader_get_stats(loader, &stats);
    if (status >= 0)
        fault_note((double)ek_sampler_length(ek_loader_sampler(loader)) +
                   (ek_loader_dataset(loader) == dataset) + ek_loader_worker(&info));
    ek_loader_free(loader);
    ek_dataset_free(dataset);
    return status;
}

static const struct {
    const char *name;
    int (*attempt)(void);
    bool is_lbfgs;
} rows[] = {
    {.name = "step", .attempt = step},
    {.name = "scaled", .attempt = scaled},
    {.name = "clip-value", .attempt = clip_value},
    {.name = "clip-norm", .attempt = clip_norm},
    {.name = "schedule", .attempt = schedule},
    {.name = "set-steps", .attempt = set_steps},
    {.name = "set-lr", .attempt = set_lr},
    {.name = "add-group", .attempt = add_group},
    {.name = "set-state", .attempt = set_state},
    {.name = "lbfgs-step", .attempt = lbfgs_step, .is_lbfgs = true},
    {.name = "lbfgs-set-state", .attempt = lbfgs_set_state, .is_lbfgs = true},
    {.name = "grad-mode", .attempt = without_gradients},
    {.name = "draws", .attempt = draws},
    {.name = "draws-by-count", .attempt = draws_by_count},
    {.name = "penalty-points", .attempt = points},
    {.name = "transform", .attempt = transform},
    {.name = "function", .attempt = function},
    {.name = "loader", .attempt = loader},
};

static bool row_is_lbfgs(int row)
{
    return rows[row].is_lbfgs;
}

static int optim_attempt(int row)
{
    return rows[row].attempt();
}

FAULT_STAGE(optim, FAULT_ROWS(rows), .set_up = optim_set_up, .attempt = optim_attempt,
            .world = optim_world, .clear = optim_clear);
