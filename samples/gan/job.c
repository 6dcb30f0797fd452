#include "gan/job.h"

#include <math.h>
#include <stdlib.h>

#include "gan/checkpoint.h"
#include "gan/network.h"

/* ---- opening and closing ---- */

/* `plan` is where a run that is resumed left off; NULL: nowhere. Freed here. */
static ek_module *wrap(const gan_job *job, ek_module *network, char *plan)
{
    const run_settings *settings = &job->settings;
    ek_data_parallel_options options = {
        .module = network,
        .device_ids = job->devices,
        .split = settings->automatic ? EK_SPLIT_AUTO : EK_SPLIT_CHUNK,
        .plan = plan,
        .shard = settings->sharded ? EK_SHARD_OPTIMIZER : EK_SHARD_NONE,
    };
    ek_module *model = settings->mode == MODE_BALANCED ? ek_data_parallel_model_with(options)
                                                       : ek_data_parallel_with(options);
    free(plan);
    return model;
}

/* With as many devices as the run had; with others it begins anew. */
static char *resumed_plan(const gan_job *job, const char *which)
{
    const run_settings *settings = &job->settings;
    char *plan =
        settings->automatic && settings->resume ? checkpoint_plan(settings->resume, which) : NULL;
    if (plan && ek_plan_check(plan, job->devices.count) < 0) {
        ek_error_clear();
        free(plan);
        return NULL;
    }
    return plan;
}

static ek_module *criterion(const gan_job *job, ek_gan_role role)
{
    ek_module *loss = ek_gan_loss(job->settings.loss, role);

    return job->settings.mode == MODE_BALANCED
               ? ek_data_parallel_criterion(loss, .device_ids = job->devices)
               : loss;
}

/* Betas of Adam: half of the usual momentum (Radford et al. 2016), and a short memory of squares,
 * since the critic's gradients change with the generator (Gulrajani et al. 2017). */
static ek_optimizer *optimizer(const gan_job *job, ek_module *model)
{
    double lr = job->settings.lr;

    return ek_adam(model, .lr = lr, .beta1 = 0.5, .beta2 = 0.9);
}

int job_open(gan_job *job, const run_settings *settings, const ek_device_list *devices)
{
    uint64_t seed = (uint64_t)settings->seed;

    *job = (gan_job){.settings = *settings, .devices = *devices};
    ek_manual_seed(seed);
    job->random = ek_generator_new(seed + 1); /* another than that of the pictures' order */
    job->generator = generator_network((int)settings->width);
    ek_module_to_dtype(job->generator, settings->dtype);
    job->generator_model = wrap(job, job->generator, resumed_plan(job, "generator_plan"));
    job->critic = critic_network((int)settings->width, settings->norm);
    ek_module_to_dtype(job->critic, settings->dtype);
    job->critic_model = wrap(job, job->critic, resumed_plan(job, "critic_plan"));
    job->on_real = criterion(job, EK_GAN_CRITIC_REAL);
    job->on_fake = criterion(job, EK_GAN_CRITIC_FAKE);
    job->on_made = criterion(job, EK_GAN_GENERATOR);
    job->generator_optimizer = optimizer(job, job->generator_model);
    job->critic_optimizer = optimizer(job, job->critic_model);
    return ek_error_status();
}

void job_close(gan_job *job)
{
    ek_optimizer_free(job->critic_optimizer);
    ek_optimizer_free(job->generator_optimizer);
    ek_module_free(job->on_made);
    ek_module_free(job->on_fake);
    ek_module_free(job->on_real);
    ek_module_free(job->critic_model);
    ek_module_free(job->generator_model);
    ek_generator_free(job->random);
    *job = (gan_job){0};
}

/* ---- whole batches ---- */

/* One tensor of what lies on several devices, on cpu; a tensor itself where it is one. */
static ek_tensor *whole(ek_value value)
{
    return ek_value_tensor(value.per_device ? ek_value_to_device(value, ek_cpu(), 0) : value);
}

/* Where real pictures are cut up, or scored as a whole. */
static ek_device home(const gan_job *job)
{
    return job->settings.mode == MODE_BALANCED && job->devices.count > 1 ? ek_cpu()
                                                                         : job->devices.devices[0];
}

static int mean_of(ek_value scores, double *mean)
{
    bool had_gradients = ek_set_grad_enabled(false);
    ek_tensor *all = ek_to_dtype(ek_to_device(whole(scores), ek_cpu()), EK_F64);
    ek_tensor *result = ek_mean(all);
    int rc = result ? ek_item(result, mean) : ek_error_status();

    ek_set_grad_enabled(had_gradients);
    return rc;
}

/* ---- drawing ---- */

ek_tensor *job_noise(gan_job *job, int64_t count)
{
    ek_tensor *noise = ek_empty(EK_SHAPE(count, NOISE, 1, 1), job->settings.dtype);

    return noise && ek_normal_(noise, 0, 1, job->random) == 0 ? noise : NULL;
}

ek_value job_make(gan_job *job, ek_tensor *noise)
{
    bool had_gradients = ek_set_grad_enabled(false);
    ek_value made = ek_forward(job->generator_model, noise);

    ek_set_grad_enabled(had_gradients);
    return made;
}

/* ---- the critic ---- */

static int add_gradient(ek_tensor *loss, double *value)
{
    int rc = ek_backward(loss);

    return rc == 0 ? ek_item(loss, value) : rc;
}

static int add_scores(gan_job *job, ek_module *on, ek_value pictures, double *loss, double *mean)
{
    ek_scope scope = ek_scope_begin();
    ek_value scores = ek_forward(job->critic_model, pictures);
    int rc = add_gradient(ek_loss(on, scores), loss);

    if (rc == 0)
        rc = mean_of(scores, mean);
    ek_scope_end(&scope);
    return rc;
}

static int add_penalty(gan_job *job, ek_tensor *real, ek_value made, double *penalty)
{
    const run_settings *settings = &job->settings;
    bool between =
        settings->penalty == EK_PENALTY_WGAN_GP || settings->penalty == EK_PENALTY_WGAN_LP;
    ek_tensor *fake = NULL;

    *penalty = 0;
    if (settings->weight == 0)
        return 0;
    ek_scope scope = ek_scope_begin();
    if (between)
        fake = ek_to_device(whole(made), home(job));
    int rc =
        add_gradient(ek_gradient_penalty(job->critic_model, real, fake, .kind = settings->penalty,
                                         .weight = settings->weight, .generator = job->random),
                     penalty);
    ek_scope_end(&scope);
    return rc;
}

int job_critic_gradient(gan_job *job, ek_tensor *real, ek_value made, critic_record *record)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *here = ek_to_device(real, home(job));
    double of_real = 0, of_fake = 0;

    *record = (critic_record){0};
    ek_zero_grad(job->critic_optimizer);
    int rc = add_scores(job, job->on_real, ek_value_of_tensor(here), &record->on_real, &of_real);
    if (rc == 0)
        rc = add_scores(job, job->on_fake, made, &record->on_fake, &of_fake);
    if (rc == 0)
        rc = add_penalty(job, here, made, &record->penalty);
    /* No limit: only the norm is asked for. */
    if (rc == 0)
        rc = ek_clip_grad_norm(job->critic_optimizer, INFINITY, &record->gradient_norm,
                               .error_if_nonfinite = true);
    record->loss = record->on_real + record->on_fake + record->penalty;
    record->wasserstein = of_real - of_fake;
    ek_scope_end(&scope);
    return rc;
}

int job_critic_step(gan_job *job, ek_tensor *real, critic_record *record)
{
    ek_scope scope = ek_scope_begin();
    ek_value made = job_make(job, job_noise(job, ek_tensor_size(real, 0)));
    int rc = job_critic_gradient(job, real, made, record);

    if (rc == 0)
        rc = ek_step(job->critic_optimizer);
    ek_scope_end(&scope);
    return rc;
}

/* ---- the generator ---- */

int job_generator_gradient(gan_job *job, ek_tensor *noise, double *loss)
{
    ek_scope scope = ek_scope_begin();

    ek_zero_grad(job->generator_optimizer);
    ek_module_set_requires_grad(job->critic, false);
    ek_value scores = ek_forward(job->critic_model, ek_forward(job->generator_model, noise));
    int rc = add_gradient(ek_loss(job->on_made, scores), loss);
    ek_module_set_requires_grad(job->critic, true);
    ek_scope_end(&scope);
    return rc;
}

int job_generator_step(gan_job *job, int64_t count, double *loss)
{
    ek_scope scope = ek_scope_begin();
    int rc = job_generator_gradient(job, job_noise(job, count), loss);

    if (rc == 0)
        rc = ek_step(job->generator_optimizer);
    ek_scope_end(&scope);
    return rc;
}
