/* stylegan.c: trains a small StyleGAN2 (Karras et al. 2020) on Fashion-MNIST: a logistic loss, R1
 * and path length penalties every few steps, style mixing, an averaged generator, truncation.
 *
 * Both penalties are gradients of gradients, through modules that are wrapped for several devices:
 * R1 by one gradient over all replicas' scores, the path length by a gradient that each replica
 * takes within its own forward. Everything random is drawn on the CPU, for the whole batch, from
 * one generator. So a run draws the same numbers in every mode, on any number of devices.
 *
 * Batches are (groups, STYLEGAN_GROUP, ...), and devices get whole groups: the discriminator sees
 * the deviation within each group, which is then the same however the batch is cut. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "adversary.h"
#include "frechet.h"
#include "networks.h"

/* ---- settings ---- */

static struct stylegan_options {
    int mode, dtype, kind;
    const char *device_text; /* a number or a list; NULL: all there are */
    int64_t batch, steps, width, latent, r1_every, path_every, judged, judge_steps, every, seed;
    double lr, gamma, path_weight, mixing, decay, truncation;
    const char *data;
    run_files files;
} opt;

enum { MOST = 1 << 20 };
static const arg_spec stylegan_args[] = {
    arg_word("mode", &opt.mode, "balanced", mode_names, "MODE", "how devices are used"),
    arg_text("devices", &opt.device_text, NULL, "N", "devices; all there are unless given"),
    arg_device(&opt.kind),
    arg_int("batch", &opt.batch, "32", STYLEGAN_GROUP, MOST, "pictures per step, in fours"),
    arg_int("steps", &opt.steps, "1250", 1, MOST, "those resumed from included"),
    arg_int("width", &opt.width, "16", 1, 512, "channels at 32 x 32; at 4 x 4 four times as many"),
    arg_int("latent", &opt.latent, "64", 1, 4096, "numbers of a latent"),
    arg_real("lr", &opt.lr, "0.003", 0, 1, "learning rate of both"),
    arg_real("gamma", &opt.gamma, "0.1", 0, 1e6, "weight of R1"),
    arg_int("r1-every", &opt.r1_every, "16", 1, MOST, "steps from one R1 penalty to the next"),
    arg_real("path-weight", &opt.path_weight, "2", 0, 1e6, "of the path length's penalty"),
    arg_int("path-every", &opt.path_every, "8", 1, MOST, "steps from one of these to the next"),
    arg_real("mixing", &opt.mixing, "0.9", 0, 1, "share of pictures made from two latents"),
    arg_real("ema", &opt.decay, "0.99", 0, 1, "decay of the generator's averages"),
    arg_real("truncation", &opt.truncation, "0.7", 0, 1,
             "of the pictures that --out gets; 1: none"),
    arg_int("judged", &opt.judged, "4096", 0, 10000, "pictures that judge it at its end; 0: none"),
    arg_int("judge-steps", &opt.judge_steps, "500", 1, MOST, "of the classifier that judges"),
    arg_word("dtype", &opt.dtype, "f32", args_dtype_words, "TYPE", "of parameters and pictures"),
    arg_int("seed", &opt.seed, NULL, 0, ARG_MOST_SEED, "of weights, order and noise"),
    arg_pictures(&opt.data),
    arg_text("out", &opt.files.out, NULL, "DIR", "write pictures, charts and checkpoints there"),
    arg_int("every", &opt.every, "250", 1, MOST, "steps between those"),
    arg_text("resume", &opt.files.resume, NULL, "FILE", "go on from this checkpoint"),
    arg_text("json", &opt.files.json, NULL, "FILE", "write the results there"),
    arg_end,
};

static const char about[] =
    "Trains a small StyleGAN2 to make Fashion-MNIST pictures (32 x 32): on a single device; on\n"
    "several with outputs and losses on device 0 (classic); with losses and penalties on every\n"
    "device (balanced); with shares of the batch that follow from measurements (balanced-auto);\n"
    "with gradients and the optimizers' state sharded (sharded).\n\n";

enum { PATH_SHRINK = 2 }; /* path lengths are of fewer groups */

static int64_t stylegan_path_groups(void)
{
    return (opt.batch / STYLEGAN_GROUP + PATH_SHRINK - 1) / PATH_SHRINK;
}

/* Whether each rank gets some of them. */
static bool stylegan_suffice(int64_t groups)
{
    const int64_t size = world_size(), each = (groups + size - 1) / size;
    return each * (size - 1) < groups;
}

static int stylegan_check(void)
{
    if (opt.batch % STYLEGAN_GROUP != 0)
        return args_complain("--batch %" PRId64 ": a multiple of %d is needed, because the "
                             "discriminator compares pictures in groups of %d",
                             opt.batch, STYLEGAN_GROUP, STYLEGAN_GROUP);
    if (frechet_check_count(opt.judged) < 0)
        return -1;
    if (!stylegan_suffice(opt.batch / STYLEGAN_GROUP) || !stylegan_suffice(stylegan_path_groups()))
        return args_complain("--batch %" PRId64 ": each of %d ranks needs pictures; %d would do",
                             opt.batch, world_size(), STYLEGAN_GROUP * PATH_SHRINK * world_size());
    return job_check_devices((train_mode)opt.mode, opt.kind, opt.device_text, NULL);
}

/* ---- opening and closing ---- */

/* What steps measure; penalties and path lengths of the steps that have them. */
enum { CRITIC_LOSSES, GENERATOR_LOSSES, R1, PATH_LENGTHS, SECONDS, SERIES };
static const char *const series_names[SERIES] = {"critic_losses", "generator_losses",
                                                 "r1_penalties", "path_lengths", "step_seconds"};

typedef struct stylegan {
    run_state state;
    ek_device_list devices;
    train_job generator, critic; /* the critic's criterion is for real pictures */
    ek_module *on_fake;          /* the critic's criterion for made ones */
    ek_module *on_lengths;       /* the mean square of path lengths less their mean so far */
    ek_ema *average;             /* of the generator */
    double path_mean;            /* moving average of path lengths */
    ek_generator *random;        /* draws latents and noise */
    ek_generator *shuffle;       /* draws the order of pictures */
    ek_loader *loader;
    frechet_result judged; /* when the run is finished */
    series series[SERIES];
} stylegan;

/* Adam as if its steps without a penalty were all there are (Karras et al. 2020, appendix B): of
 * `every` + 1 steps one has the penalty alone. */
static ek_optimizer *stylegan_optimizer(ek_module *model, int64_t every)
{
    double share = (double)every / (double)(every + 1);
    return ek_adam(model, .lr = share * opt.lr, .beta1 = 0, .beta2 = pow(0.99, share));
}

/* The shares that the run of a checkpoint ended with; NULL if there are none for these devices. */
static const char *stylegan_plan(const ek_archive *from, const char *name, int devices)
{
    const char *plan = opt.mode == MODE_AUTO ? checkpoint_plan(from, name, devices) : NULL;
    const char *last = plan ? strrchr(plan, ':') : NULL;
    return last ? last + 1 : plan;
}

static void stylegan_wrap(const stylegan *s, train_job *job, ek_module *network, ek_gan_role role,
                          int64_t every, const char *plan)
{
    ek_module_to_dtype(network, (ek_dtype)opt.dtype);
    job->mode = (train_mode)opt.mode;
    job->devices = s->devices;
    job_wrap(job, network, ek_gan_loss(EK_GAN_LOGISTIC, role), plan, EK_GOAL_MEMORY);
    job->optimizer = stylegan_optimizer(job->model, every);
}

/* Makes the networks on s->devices from the seed. 0 or a negative status; close it anyway. */
static int stylegan_open_networks(stylegan *s, const ek_archive *from)
{
    uint64_t seed = (uint64_t)opt.seed;
    ek_manual_seed(seed);
    s->random = ek_generator_new(seed + 1);
    stylegan_wrap(s, &s->generator, stylegan_generator((int)opt.width, (int)opt.latent),
                  EK_GAN_GENERATOR, opt.path_every,
                  stylegan_plan(from, "generator_plan", s->devices.count));
    stylegan_wrap(s, &s->critic, stylegan_critic((int)opt.width), EK_GAN_CRITIC_REAL, opt.r1_every,
                  stylegan_plan(from, "critic_plan", s->devices.count));
    s->on_fake = job_criterion(&s->critic, ek_gan_loss(EK_GAN_LOGISTIC, EK_GAN_CRITIC_FAKE));
    s->on_lengths = job_criterion(&s->generator, ek_mse_loss());
    s->average = ek_ema_new(s->generator.network, .decay = opt.decay);
    return ek_error_status();
}

static void stylegan_close(run_state *run)
{
    stylegan *s = (stylegan *)run;
    ek_loader_free(s->loader);
    ek_ema_free(s->average);
    ek_module_free(s->on_lengths);
    ek_module_free(s->on_fake);
    job_free(&s->critic);
    job_free(&s->generator);
    ek_generator_free(s->random);
    ek_generator_free(s->shuffle);
    series_free(s->series, SERIES);
}

/* ---- what a generator is called with ---- */

/* What pictures of this rank are made of, on cpu. */
typedef struct seeds {
    ek_tensor *z, *cut, *noise;
} seeds;

/* Which layers get the first latent: all, or if two are mixed those below one in 1 to
 * STYLEGAN_LAYERS - 1. */
static ek_tensor *stylegan_cut(int64_t groups, ek_generator *random)
{
    const ek_shape shape = EK_SHAPE(groups, STYLEGAN_GROUP);
    ek_tensor *mixed = ek_empty(shape, EK_I64), *cut = ek_empty(shape, EK_I64);
    if (!mixed || !cut || ek_bernoulli_(mixed, opt.mixing, random) < 0 ||
        ek_random_(cut, 1, STYLEGAN_LAYERS, random) < 0)
        return NULL;
    return ek_where(ek_ne_scalar(mixed, 0), cut, ek_full(STYLEGAN_LAYERS, shape, EK_I64));
}

/* Draws for `groups` groups of all ranks. */
static seeds stylegan_draw(stylegan *s, int64_t groups)
{
    const ek_dtype dtype = (ek_dtype)opt.dtype;
    seeds drawn;
    drawn.z = adversary_noise(EK_SHAPE(groups, STYLEGAN_GROUP, 2, opt.latent), dtype, s->random);
    drawn.cut = world_rows(stylegan_cut(groups, s->random));
    drawn.noise =
        adversary_noise(EK_SHAPE(groups, STYLEGAN_GROUP, STYLEGAN_NOISE), dtype, s->random);
    return drawn;
}

static ek_value stylegan_make(stylegan *s, seeds from)
{
    return ek_forward(s->generator.model, from.z, from.cut, from.noise);
}

/* ---- a step ---- */

/* Leaves the gradients of the critic's loss on `real` (this rank's, on cpu) and on pictures that
 * are made without a history. One backward per term: the activations of one are gone before the
 * next needs memory. */
static int stylegan_critic_gradient(stylegan *s, ek_tensor *real, seeds from, double *loss)
{
    double on_real = 0, on_fake = 0;
    ek_scope scope = ek_scope_begin();
    bool had_gradients = ek_set_grad_enabled(false);
    ek_value made = stylegan_make(s, from);
    ek_set_grad_enabled(had_gradients);
    ek_zero_grad(s->critic.optimizer);
    int rc = adversary_backward(ek_loss(s->critic.criterion, ek_forward(s->critic.model, real)),
                                &on_real);
    if (rc == 0)
        rc = adversary_backward(ek_loss(s->on_fake, ek_forward(s->critic.model, made)), &on_fake);
    *loss = on_real + on_fake;
    ek_scope_end(&scope);
    return rc;
}

/* Leaves the gradients of the generator's loss; the critic's are as before. */
static int stylegan_generator_gradient(stylegan *s, seeds from, double *loss)
{
    ek_scope scope = ek_scope_begin();
    ek_zero_grad(s->generator.optimizer);
    ek_module_set_requires_grad(s->critic.network, false);
    ek_value scores = ek_forward(s->critic.model, stylegan_make(s, from));
    int rc = adversary_backward(ek_loss(s->generator.criterion, scores), loss);
    ek_module_set_requires_grad(s->critic.network, true);
    ek_scope_end(&scope);
    return rc;
}

/* Leaves the gradients of R1 (Mescheder et al. 2018), as many times as there are steps without it.
 * A group counts as one sample of the library's, whose squares add up: hence the division. */
static int stylegan_r1_gradient(stylegan *s, ek_tensor *real, double *penalty)
{
    ek_scope scope = ek_scope_begin();
    ek_zero_grad(s->critic.optimizer);
    const double weight = opt.gamma / 2 / STYLEGAN_GROUP * (double)opt.r1_every;
    int rc = adversary_backward(ek_gradient_penalty(s->critic.model, real, .kind = EK_PENALTY_R1,
                                                    .weight = weight),
                                penalty);
    *penalty /= (double)opt.r1_every;
    ek_scope_end(&scope);
    return rc;
}

static const double path_decay = 0.01;

/* Leaves the gradients of the path length's penalty, as many times as there are steps without it,
 * and moves the mean of path lengths on. */
static int stylegan_path_gradient(stylegan *s, double *length)
{
    ek_scope scope = ek_scope_begin();
    const int64_t groups = stylegan_path_groups();
    const ek_dtype dtype = (ek_dtype)opt.dtype;
    double loss;
    seeds from = stylegan_draw(s, groups);
    ek_tensor *direction =
        adversary_noise(EK_SHAPE(groups, STYLEGAN_GROUP, 1, STYLEGAN_SIDE, STYLEGAN_SIDE), dtype,
                        s->random);
    direction = ek_mul_scalar(direction, 1.0 / STYLEGAN_SIDE);
    ek_zero_grad(s->generator.optimizer);
    ek_value lengths = ek_forward(s->generator.model, from.z, from.cut, from.noise, direction);
    int rc = adversary_mean(lengths, length);
    if (rc == 0) {
        s->path_mean += path_decay * (*length - s->path_mean);
        ek_tensor *wanted = ek_full(s->path_mean, EK_SHAPE(groups, STYLEGAN_GROUP), dtype);
        wanted = world_rows(wanted);
        if (lengths.kind == EK_VALUE_TENSOR) /* not apart, on several devices */
            wanted = ek_to_device(wanted, ek_tensor_device(lengths.as.tensor));
        ek_tensor *penalty = ek_loss(s->on_lengths, lengths, wanted);
        rc = adversary_backward(ek_mul_scalar(penalty, opt.path_weight * (double)opt.path_every),
                                &loss);
    }
    ek_scope_end(&scope);
    return rc;
}

static bool stylegan_due(const run_state *run, int64_t every, double weight)
{
    return weight > 0 && run->step % every == 0;
}

static int stylegan_critic_step(stylegan *s)
{
    ek_scope scope = ek_scope_begin();
    const int64_t groups = opt.batch / STYLEGAN_GROUP;
    double loss, penalty;
    ek_tensor *real = adversary_real(s->loader, (ek_dtype)opt.dtype);
    real = world_rows(ek_f_unflatten(real, 0, EK_SHAPE(groups, STYLEGAN_GROUP)));
    int rc = stylegan_critic_gradient(s, real, stylegan_draw(s, groups), &loss);
    if (rc == 0)
        rc = ek_step(s->critic.optimizer);
    if (rc == 0)
        rc = series_add(&s->series[CRITIC_LOSSES], loss);
    if (rc == 0 && stylegan_due(&s->state, opt.r1_every, opt.gamma)) {
        rc = stylegan_r1_gradient(s, real, &penalty);
        if (rc == 0)
            rc = ek_step(s->critic.optimizer);
        if (rc == 0)
            rc = series_add(&s->series[R1], penalty);
    }
    ek_scope_end(&scope);
    return rc;
}

static int stylegan_generator_step(stylegan *s)
{
    ek_scope scope = ek_scope_begin();
    double loss, length;
    int rc = stylegan_generator_gradient(s, stylegan_draw(s, opt.batch / STYLEGAN_GROUP), &loss);
    if (rc == 0)
        rc = ek_step(s->generator.optimizer);
    if (rc == 0)
        rc = series_add(&s->series[GENERATOR_LOSSES], loss);
    if (rc == 0 && stylegan_due(&s->state, opt.path_every, opt.path_weight)) {
        rc = stylegan_path_gradient(s, &length);
        if (rc == 0)
            rc = ek_step(s->generator.optimizer);
        if (rc == 0)
            rc = series_add(&s->series[PATH_LENGTHS], length);
    }
    ek_scope_end(&scope);
    return rc;
}

static int stylegan_step(run_state *run)
{
    stylegan *s = (stylegan *)run;
    double begin = seconds_now();
    int rc = stylegan_critic_step(s);
    if (rc == 0)
        rc = stylegan_generator_step(s);
    if (rc == 0)
        rc = ek_ema_update(s->average);
    if (rc < 0)
        return rc;
    run->step++;
    return series_add(&s->series[SECONDS], seconds_now() - begin);
}

/* ---- beginning, or going on ---- */

static void stylegan_list(run_state *run, const checkpoint *file)
{
    stylegan *s = (stylegan *)run;
    checkpoint_part(file, module, "generator", s->generator.network);
    checkpoint_part(file, optimizer, "generator_optimizer", s->generator.optimizer,
                    s->generator.network);
    checkpoint_part(file, ema, "average", s->average);
    checkpoint_part(file, module, "critic", s->critic.network);
    checkpoint_part(file, optimizer, "critic_optimizer", s->critic.optimizer, s->critic.network);
    checkpoint_part(file, generator, "random", s->random);
    checkpoint_numbers(file, "path_mean", &s->path_mean, EK_SHAPE(1));
    checkpoint_loader(file, "loader", s->loader);
    checkpoint_records(file, s->series, SERIES);
    if (opt.mode == MODE_AUTO && !file->path) { /* read as the networks are wrapped */
        ek_archive_put_plan(file->archive, "generator_plan", s->generator.parallel);
        ek_archive_put_plan(file->archive, "critic_plan", s->critic.parallel);
    }
}

/* Pictures of training or of the test. NULL on an error. */
static ek_dataset *stylegan_pictures(bool train)
{
    ek_dataset *bytes = pictures_checked(ek_mnist(opt.data, train), opt.data, EK_SHAPE(1, 28, 28));
    return bytes ? adversary_pictures(bytes, STYLEGAN_SIDE) : NULL;
}

static int stylegan_open(run_state *run, const ek_archive *from)
{
    stylegan *s = (stylegan *)run;
    *run = (run_state){.name = mode_names[opt.mode],
                       .last = opt.steps,
                       .batch = opt.batch,
                       .every = {opt.every}};
    s->devices = devices_chosen(opt.kind, opt.device_text, opt.mode == MODE_SINGLE);
    series_name(s->series, series_names, SERIES);
    ek_dataset *pictures = stylegan_pictures(true);
    run->unread = !pictures;
    if (!pictures)
        return ek_error_status();
    s->shuffle = ek_generator_new((uint64_t)opt.seed);
    s->loader =
        ek_data_loader(pictures, .batch_size = opt.batch, .drop_last = true,
                       .sampler = shuffled_sampler(ek_dataset_length(pictures), s->shuffle));
    return stylegan_open_networks(s, from);
}

static void stylegan_explain(void)
{
    pictures_explain(opt.data);
}

/* ---- pictures of the averaged generator ---- */

enum { AVERAGED_LATENTS = 1024 };

/* The mean of w (1, Z), from which truncation pulls others less far away. */
static ek_tensor *stylegan_mean_latent(ek_module *mapping, ek_device device, ek_generator *random)
{
    ek_tensor *z = ek_empty(EK_SHAPE(AVERAGED_LATENTS, opt.latent), (ek_dtype)opt.dtype);
    if (!z || ek_normal_(z, 0, 1, random) < 0)
        return NULL;
    return ek_mean(ek_apply(mapping, ek_to_device(z, device)), EK_DIMS(0), .keepdim = true);
}

/* Pictures on cpu (count, 1, side, side) of the network as it is, each of one latent: truncated
 * towards `mean` if that isn't NULL. They are made in parts, so that this needs less memory than
 * training. */
static ek_tensor *stylegan_sample(const stylegan *s, int64_t count, ek_tensor *mean,
                                  ek_generator *random)
{
    enum { AT_ONCE = 32, MOST_PARTS = 512 };
    const ek_device device = s->devices.devices[0];
    ek_module *mapping = ek_module_at(s->generator.network, "mapping"),
              *synthesis = ek_module_at(s->generator.network, "synthesis");
    ek_tensor *parts[MOST_PARTS];
    int used = 0;
    for (int64_t made = 0; made < count && used < MOST_PARTS; made += AT_ONCE) {
        ek_scope scope = ek_scope_begin();
        const int64_t size = count - made < AT_ONCE ? count - made : AT_ONCE;
        ek_tensor *z = ek_empty(EK_SHAPE(size, opt.latent), (ek_dtype)opt.dtype);
        ek_tensor *noise = ek_empty(EK_SHAPE(size, STYLEGAN_NOISE), (ek_dtype)opt.dtype);
        ek_normal_(z, 0, 1, random);
        ek_normal_(noise, 0, 1, random);
        ek_tensor *w = ek_apply(mapping, ek_to_device(z, device));
        if (mean)
            w = ek_lerp_scalar(mean, w, opt.truncation);
        w = ek_expand(ek_unsqueeze(w, 1), EK_SHAPE(size, STYLEGAN_LAYERS, opt.latent));
        ek_tensor *part = ek_value_tensor(ek_forward(synthesis, w, ek_to_device(noise, device)));
        parts[used++] = ek_scope_return(&scope, ek_to_device(part, ek_cpu()));
    }
    return ek_cat(parts, used, 0);
}

/* The same of the averaged generator, always from the same numbers. */
static ek_tensor *stylegan_sample_average(const stylegan *s, int64_t count, bool truncated)
{
    bool had_gradients = ek_set_grad_enabled(false);
    ek_generator *random = ek_generator_new((uint64_t)opt.seed + 2); /* its own numbers */
    ek_tensor *pictures = NULL;
    if (ek_ema_apply(s->average) == 0) {
        ek_tensor *mean = truncated
                              ? stylegan_mean_latent(ek_module_at(s->generator.network, "mapping"),
                                                     s->devices.devices[0], random)
                              : NULL;
        pictures = stylegan_sample(s, count, mean, random);
        ek_ema_restore(s->average);
    }
    ek_generator_free(random);
    ek_set_grad_enabled(had_gradients);
    return pictures;
}

/* Judges the finished generator. */
static int stylegan_finish(run_state *run)
{
    stylegan *s = (stylegan *)run;
    if (opt.judged == 0)
        return 0;
    ek_scope scope = ek_scope_begin();
    ek_tensor *made = stylegan_sample_average(s, opt.judged, false);
    ek_dataset *training = stylegan_pictures(true), *testing = stylegan_pictures(false);
    int rc = ek_error_status();
    if (rc == 0)
        rc =
            frechet_judge(made, training, testing, opt.judge_steps, (uint64_t)opt.seed, &s->judged);
    ek_dataset_free(training);
    ek_dataset_free(testing);
    ek_scope_end(&scope);
    return rc;
}

/* ---- what a run writes ---- */

enum { GRID = 8 };

/* Losses, penalties and path lengths over steps. */
static void stylegan_write_charts(FILE *page, void *user)
{
    const stylegan *s = user;
    page_curves(page, "Losses", "step", &s->series[CRITIC_LOSSES], 2);
    page_curves(page, "R1 penalties", "penalty", &s->series[R1], 1);
    page_curves(page, "Path lengths", "penalty", &s->series[PATH_LENGTHS], 1);
}

static int stylegan_write_page(const char *path, stylegan *s)
{
    char text[256];
    snprintf(text, sizeof text,
             "width %" PRId64 ", latents of %" PRId64 " numbers, %s on %d devices, batch %" PRId64
             ", seed %" PRId64 ", step %" PRId64,
             opt.width, opt.latent, mode_names[opt.mode], s->devices.count, opt.batch, opt.seed,
             s->state.step);
    return ek_report_html_page(path, NULL, 0,
                               &(const ek_report_page){.title = "Fashion-MNIST by StyleGAN2",
                                                       .subtitle = text,
                                                       .more = stylegan_write_charts,
                                                       .user = s});
}

/* Writes samples-<step>.png and losses.html to --out. */
static int stylegan_write(run_state *run)
{
    stylegan *s = (stylegan *)run;
    char name[64], path[4096];
    ek_scope scope = ek_scope_begin();
    snprintf(name, sizeof name, "samples-%06" PRId64 ".png", run->step);
    int rc = ek_save_image(run_path(opt.files.out, name, path),
                           stylegan_sample_average(s, (int64_t)GRID * GRID, true),
                           .normalize = true, .low = -1, .high = 1, .pad_value = 0.125);
    ek_scope_end(&scope);
    return rc < 0 ? rc : stylegan_write_page(run_path(opt.files.out, "losses.html", path), s);
}

static int stylegan_results(const run_state *run, json_writer *json)
{
    const stylegan *s = (const stylegan *)run;
    json_write(json, "settings {");
    json_settings(json, stylegan_args, "mode");
    json_write(json, "devices %jd", (int64_t)s->devices.count);
    json_settings(json, stylegan_args,
                  "batch steps width latent lr gamma r1-every path-weight path-every mixing ema "
                  "truncation judged judge-steps dtype seed");
    json_write(json, "} finished_steps %jd path_mean %g", run->step, s->path_mean);
    int rc = json_network(json, "generator", s->generator.network);
    if (rc == 0)
        rc = json_network(json, "critic", s->critic.network);
    if (rc == 0)
        rc = json_devices(json, &s->devices);
    if (s->judged.pictures > 0)
        json_write(json, "frechet { pictures %jd accuracy %g noise %g generated %g training %g }",
                   s->judged.pictures, s->judged.accuracy, s->judged.noise, s->judged.generated,
                   s->judged.training);
    json_write(json, "median_step_seconds %g", series_median(&s->series[SECONDS]));
    for (int i = 0; i < SERIES; i++)
        json_series(json, s->series[i].name, &s->series[i]);
    return rc;
}

static void stylegan_print(const run_state *run)
{
    const stylegan *s = (const stylegan *)run;
    const frechet_result *r = &s->judged;
    print_peaks(&s->devices);
    printf("Median step: %.0f ms\n", 1000 * series_median(&s->series[SECONDS]));
    if (r->pictures > 0)
        printf("Frechet distance of %" PRId64 " pictures to as many test pictures, in features of "
               "a classifier that is right\non %.1f %% of these: noise %.2f, generated %.2f, "
               "training pictures %.2f\n",
               r->pictures, 100 * r->accuracy, r->noise, r->generated, r->training);
    if (opt.files.out)
        printf("Pictures, charts, checkpoint: %s\n", opt.files.out);
}

/* ---- the program ---- */

static bool stylegan_note(const run_state *run, char note[128])
{
    const series *of = ((const stylegan *)run)->series;
    const int64_t last = of[CRITIC_LOSSES].count - 1, lengths = of[PATH_LENGTHS].count;
    snprintf(note, 128, "critic %.3f  generator %.3f  path length %.3f",
             of[CRITIC_LOSSES].values[last], of[GENERATOR_LOSSES].values[last],
             lengths > 0 ? of[PATH_LENGTHS].values[lengths - 1] : 0);
    return false;
}

static const run_kind stylegan_kind = {
    .size = sizeof(stylegan),
    .about = about,
    .args = stylegan_args,
    .files = &opt.files,
    .format = "evenkeel stylegan 1",
    /* A run may go on in another mode and on other devices. */
    .deciding = "seed dtype width latent batch lr gamma r1-every path-weight path-every mixing ema",
    .check = stylegan_check,
    .open = stylegan_open,
    .explain = stylegan_explain,
    .close = stylegan_close,
    .take = stylegan_step,
    .note = stylegan_note,
    .draw = stylegan_write,
    .finish = stylegan_finish,
    .list = stylegan_list,
    .results = stylegan_results,
    .print = stylegan_print,
};

int main(int argc, char **argv)
{
    stylegan s;
    return run_main(&stylegan_kind, &s.state, argc, argv);
}
