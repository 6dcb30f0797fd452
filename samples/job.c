/* job.c: batches, ways to train, steps, shares, results. */
#include "job.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- pictures ---- */

ek_dataset *pictures_checked(ek_dataset *pictures, const char *directory, ek_shape wanted)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *first = ek_value_tensor(ek_value_at(ek_dataset_get(pictures, 0), 0));
    ek_shape shape = first ? ek_tensor_shape(first) : wanted;
    char text[160], wanted_text[160];
    if (!ek_shape_equal(&shape, &wanted))
        ek_error(EK_E_SHAPE, "%s: pictures are %s; %s are wanted", directory,
                 ek_shape_text(&shape, text), ek_shape_text(&wanted, wanted_text));
    ek_scope_end(&scope);
    if (ek_error_status() == 0)
        return pictures;
    ek_dataset_free(pictures);
    return NULL;
}

ek_value dataset_first(ek_dataset *set, int64_t count)
{
    const int64_t length = ek_dataset_length(set);
    int64_t *order = malloc((size_t)count * sizeof *order);
    for (int64_t i = 0; order && i < count; i++)
        order[i] = i % length;
    if (!order)
        ek_error(EK_E_NO_MEMORY, "no memory for %lld samples", (long long)count);
    ek_value batch = order ? ek_dataset_get_batch(set, order, count, ek_cpu()) : ek_value_error();
    free(order);
    return batch;
}

ek_sampler *shuffled_sampler(int64_t count, ek_generator *generator)
{
    int64_t *indices = malloc((size_t)count * sizeof *indices);
    for (int64_t i = 0; indices && i < count; i++)
        indices[i] = i;
    ek_sampler *sampler = indices ? ek_subset_random_sampler(indices, count, generator) : NULL;
    if (!indices)
        ek_error(EK_E_NO_MEMORY, "no memory for the order of %lld samples", (long long)count);
    free(indices);
    return sampler;
}

ek_value collate_in_dtype(const ek_value *samples, int64_t count, void *dtype)
{
    ek_value batch = ek_collate(samples, count, ek_cpu());
    ek_tensor *inputs = ek_value_tensor(ek_value_at(batch, 0));
    return EK_LIST(ek_to_dtype(inputs, (ek_dtype) * (const int *)dtype), ek_value_at(batch, 1));
}

int loader_next(ek_loader *loader, ek_batch *batch)
{
    int rc = ek_loader_next(loader, batch);
    if (rc == 0)
        rc = ek_loader_next(loader, batch);
    if (rc == 0)
        return ek_error(EK_E_STATE, "the loader has no batches");
    return rc < 0 ? rc : 0;
}

int loader_evaluate(ek_loader *loader, ek_module *network,
                    int (*take)(ek_module *network, const ek_batch *batch, void *user), void *user)
{
    bool had_gradients = ek_set_grad_enabled(false);
    ek_batch batch;
    int rc = 0;
    ek_module_train(network, false);
    while (rc >= 0 && (rc = ek_loader_next(loader, &batch)) > 0) {
        ek_scope scope = ek_scope_begin();
        rc = take(network, &batch, user);
        ek_scope_end(&scope);
    }
    ek_module_train(network, true);
    ek_set_grad_enabled(had_gradients);
    return rc;
}

/* ---- ways to train ---- */

const char *const mode_names[MODES + 1] = {"single", "classic", "balanced", "balanced-auto",
                                           "sharded"};

int job_check_devices(train_mode mode, int kind, const char *device_text, const char *plan)
{
    if (plan && mode != MODE_AUTO)
        return args_complain("--plan %s: it is for --mode %s", plan, mode_names[MODE_AUTO]);
    if (plan && strchr(plan, ';'))
        return args_complain("--plan %s: one plan for the whole run is needed", plan);
    return devices_check(kind, device_text, mode == MODE_SINGLE, plan);
}

void job_begin(train_job *job, int mode, int kind, const char *device_text)
{
    job->mode = (train_mode)mode;
    job->devices = devices_chosen(kind, device_text, mode == MODE_SINGLE);
}

/* Tells whether outputs are gathered on device 0. */
static bool job_gathers(const train_job *job)
{
    return job->mode == MODE_SINGLE || job->mode == MODE_CLASSIC;
}

ek_module *job_criterion(const train_job *job, ek_module *criterion)
{
    if (!job_gathers(job))
        criterion = ek_data_parallel_criterion(criterion, .device_ids = job->devices);
    return world_size() == 1 ? criterion : ek_distributed_criterion(criterion);
}

void job_wrap_with(train_job *job, ek_data_parallel_options options, ek_module *criterion,
                   bool sharded)
{
    const ek_shard_policy shard = sharded ? EK_SHARD_OPTIMIZER : EK_SHARD_NONE;
    options.device_ids = job->devices;
    if (world_size() == 1)
        options.shard = shard;
    job->parallel =
        job_gathers(job) ? ek_data_parallel_with(options) : ek_data_parallel_model_with(options);
    job->model = world_size() == 1 ? job->parallel
                                   : ek_distributed_data_parallel(job->parallel, .shard = shard);
    job->network = job->model ? options.module : NULL; /* a wrapper that fails frees it */
    job->criterion = job_criterion(job, criterion);
}

/* The ways to train differ in these lines and in job_gathers. */
void job_wrap(train_job *job, ek_module *network, ek_module *criterion, const char *plan, int goal)
{
    ek_data_parallel_options options = EK_OPTIONS(ek_data_parallel_options, network);
    if (job->mode == MODE_AUTO && plan && *plan) {
        options.plan = plan;
    } else if (job->mode == MODE_AUTO) {
        options.split = EK_SPLIT_AUTO;
        options.goal = (ek_plan_goal)goal;
    }
    job_wrap_with(job, options, criterion, job->mode == MODE_SHARDED);
}

void job_wrap_fitting(train_job *job, ek_module *network, ek_module *criterion,
                      ek_fit_options options)
{
    ek_fit_result fit;
    options.module = network;
    options.criterion = criterion;
    options.device_ids = job->devices;
    if (ek_fit_with(&fit, options) < 0) {
        ek_module_free(network);
        ek_module_free(criterion);
        return;
    }
    ek_fit_print(&fit, stdout);
    job->micro_batches = fit.micro_batches;
    job->bf16 = fit.autocast == EK_BF16;
    job->model = job->parallel = ek_fit_model(&fit, network);
    job->network = job->model ? network : NULL;
    job->criterion = ek_fit_criterion(&fit, criterion);
}

static int job_sizes(int64_t batch, int64_t *sizes, void *job)
{
    return ek_data_parallel_sizes(((train_job *)job)->parallel, batch, sizes);
}

ek_loader *job_loader_with(train_job *job, ek_loader_options options)
{
    options.device_ids = world_size() == 1 ? job->devices : EK_DEVICES(ek_cpu());
    if (options.device_ids.count > 1)
        options.sizes = job_sizes;
    options.sizes_user = job;
    return ek_data_loader_with(options);
}

ek_loader *job_tests_with(train_job *job, ek_loader_options options)
{
    job->tests_random = ek_generator_new(0);
    options.generator = job->tests_random;
    options.device_ids = EK_DEVICES(job->devices.devices[0]);
    job->tests = ek_data_loader_with(options);
    return job->tests;
}

static void job_free_model(train_job *job)
{
    ek_schedule_free(job->schedule);
    ek_optimizer_free(job->optimizer);
    ek_module_free(job->other);
    ek_module_free(job->criterion);
    ek_module_free(job->model);
}

void job_free(train_job *job)
{
    ek_loader_free(job->loader);
    ek_loader_free(job->tests);
    ek_generator_free(job->tests_random);
    job_free_model(job);
    *job = (train_job){0};
}

/* ---- steps ---- */

int loss_check(double loss)
{
    return isfinite(loss) ? 0
                          : ek_error(EK_E_INVALID, "the loss is %g; a smaller --lr may help", loss);
}

ek_value job_rows(ek_value batch)
{
    enum { MOST_INPUTS = 8 };
    ek_value rows[MOST_INPUTS];
    const int count = ek_value_length(batch);
    if (world_size() == 1)
        return batch;
    if (batch.kind != EK_VALUE_LIST)
        return EK_VALUE(world_rows(ek_value_tensor(batch)));
    if (count > MOST_INPUTS) {
        ek_error(EK_E_INVALID, "a batch has %d inputs; at most %d are taken", count, MOST_INPUTS);
        return ek_value_error();
    }
    for (int i = 0; i < count; i++)
        rows[i] = job_rows(ek_value_at(batch, i));
    return ek_value_list(rows, count);
}

int job_step(train_job *job, ek_value input, ek_value target, double *loss)
{
    ek_scope scope = ek_scope_begin();
    const ek_autocast autocast = ek_autocast_begin(job->bf16 ? EK_BF16 : EK_F32);
    int rc = ek_train_step(loss, .model = job->model, .criterion = job->criterion,
                           .optimizer = job->optimizer, .input = job_rows(input),
                           .target = job_rows(target), .max_norm = job->max_norm,
                           .micro_batches = job->micro_batches);
    ek_autocast_end(&autocast);
    if (rc == 0 && job->schedule)
        rc = ek_schedule_step(job->schedule);
    if (rc == 0 && loss)
        rc = loss_check(*loss);
    ek_scope_end(&scope);
    return rc;
}

double job_train(train_job *job, ek_loader *loader, int64_t *samples)
{
    ek_batch batch = {.count = 0};
    double loss = 0;
    if (loader_next(loader, &batch) == 0)
        job_step(job, batch.input, batch.target, &loss);
    if (samples)
        *samples = batch.count;
    return loss;
}

ek_value job_forward(train_job *job, ek_value input)
{
    ek_value rows = job_rows(input);
    if (job->devices.count == 1)
        rows = ek_value_to_device(rows, job->devices.devices[0], 0);
    return ek_forward(job->model, rows);
}

ek_value job_output(ek_value outputs, int i)
{
    ek_value parts[EK_MAX_DEVICES];
    const int count = ek_value_length(outputs);
    if (!outputs.per_device)
        return ek_value_at(outputs, i);
    for (int d = 0; d < count; d++)
        parts[d] = ek_value_at(ek_value_at(outputs, d), i);
    return ek_value_per_device(parts, count);
}

int job_descend(train_job *job, ek_tensor *loss, double *value)
{
    int rc = ek_minimize(job->optimizer, loss, .max_norm = job->max_norm, .value = value);
    if (rc == 0 && job->schedule)
        rc = ek_schedule_step(job->schedule);
    return rc == 0 ? loss_check(*value) : rc;
}

/* ---- shares ---- */

const char *job_saved_plan(const ek_archive *archive, const char *name, int devices)
{
    const char *plan = archive ? ek_archive_get_text(archive, name) : NULL;
    if (!plan || !*plan)
        return NULL;
    if (ek_plan_check(plan, devices) == 0)
        return plan;
    ek_error_clear();
    return NULL;
}

/* Measures with a job without a plan, and writes each device's share of a batch: "40,30,30". */
static int job_measure(const train_job *job, int64_t batch, ek_batch_function *step, void *user,
                       char plan[1024])
{
    int64_t sizes[EK_MAX_DEVICES];
    int64_t rc = ek_find_batch(.function = step, .user = user, .device_ids = job->devices,
                               .model = job->model, .optimizer = job->optimizer, .first = batch,
                               .most = batch);
    if (rc == 0)
        rc = ek_error(EK_E_OUT_OF_MEMORY,
                      "a batch of %lld does not fit on these devices, however it is cut",
                      (long long)batch);
    if (rc > 0)
        rc = ek_data_parallel_sizes(job->parallel, world_share(batch), sizes);
    size_t length = 0;
    for (int d = 0; rc == 0 && d < job->devices.count && length < 1024; d++)
        length +=
            (size_t)snprintf(plan + length, 1024 - length, "%s%" PRId64, d ? "," : "", sizes[d]);
    return (int)rc;
}

int job_prepare(train_job *job, const char *given, const ek_archive *from, int64_t batch,
                int (*make)(void *user), ek_batch_function *step, void *user)
{
    train_job begun = *job;
    if (job->mode != MODE_AUTO)
        return make(user);
    if (!given)
        given = job_saved_plan(from, "plan", job->devices.count);
    if (given) {
        snprintf(job->plan, sizeof job->plan, "%s", given);
        return make(user);
    }
    int rc = make(user);
    if (rc == 0)
        rc = job_measure(job, batch, step, user, begun.plan);
    job_free_model(job);
    *job = begun;
    for (int d = 0; d < job->devices.count; d++) /* the run's peaks leave out the measuring */
        ek_memory_reset_peak(job->devices.devices[d]);
    return rc < 0 ? rc : make(user);
}

/* ---- results ---- */

void job_print(const train_job *job)
{
    print_peaks(&job->devices);
    if (job->plan[0])
        printf("Plan: %s\n", job->plan);
}
