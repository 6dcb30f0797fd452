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

enum { MOST = 1 << 20 };
#define OPTIONS(ROW)                                                                  \
    ROW(word, mode, "balanced", mode_names, "MODE", "how devices are used")           \
    ROW(text, devices, NULL, "N", "devices; all there are unless given")              \
    ROW(device, device, "which kind of devices")                                      \
    ROW(int, batch, "32", STYLEGAN_GROUP, MOST, "pictures per step, in fours")        \
    ROW(int, steps, "1250", 1, MOST, "those resumed from included")                   \
    ROW(int, width, "16", 1, 512, "channels at 32 x 32; at 4 x 4 four times as many") \
    ROW(int, latent, "64", 1, 4096, "numbers of a latent")                            \
    ROW(real, lr, "0.003", 0, 1, "learning rate of both")                             \
    ROW(real, gamma, "0.1", 0, 1e6, "weight of R1")                                   \
    ROW(int, r1_every, "16", 1, MOST, "steps from one R1 penalty to the next")        \
    ROW(real, path_weight, "2", 0, 1e6, "of the path length's penalty")               \
    ROW(int, path_every, "8", 1, MOST, "steps from one of these to the next")         \
    ROW(real, mixing, "0.9", 0, 1, "share of pictures made from two latents")         \
    ROW(real, ema, "0.99", 0, 1, "decay of the generator's averages")                 \
    ROW(real, truncation, "0.7", 0, 1, "of the pictures that --out gets; 1: none")    \
    ROW(int, judged, "4096", 0, 10000, "pictures that judge it at its end; 0: none")  \
    ROW(int, judge_steps, "500", 1, MOST, "of the classifier that judges")            \
    ROW(word, dtype, "f32", args_dtype_words, "TYPE", "of parameters and pictures")   \
    ROW(int, seed, NULL, 0, ARG_MOST_SEED, "of weights, order and noise")             \
    ROW(folder, data, "Fashion-MNIST's files")                                        \
    RUN_OPTIONS(ROW, "write pictures, charts and checkpoints there", "250", "steps between those")
args_declare(OPTIONS);

static const char about[] =
    "Trains a small StyleGAN2 to make Fashion-MNIST pictures (32 x 32): on a single device; on\n"
    "several with outputs and losses on device 0 (classic); with losses and penalties on every\n"
    "device (balanced); with shares of the batch that follow from measurements (balanced-auto);\n"
    "with gradients and the optimizers' state sharded (sharded).\n\n";

enum { PATH_SHRINK = 2 }; /* path lengths are measured on fewer groups */

static int64_t stylegan_path_groups(void)
{
    return (opt.batch / STYLEGAN_GROUP + PATH_SHRINK - 1) / PATH_SHRINK;
}

/* Tells whether each rank gets some of the groups. */
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
    return job_check_devices((train_mode)opt.mode, opt.device, opt.devices, NULL);
}

/* ---- what is trained ---- */

/* What steps measure. Penalties and path lengths are of the steps that have them. */
enum { CRITIC_LOSSES, GENERATOR_LOSSES, R1, PATH_LENGTHS, SECONDS, SERIES };
static const char *const series_names[SERIES] = {"critic_losses", "generator_losses",
                                                 "r1_penalties", "path_lengths", "step_seconds"};

typedef struct stylegan {
    /* The critic's criteria are for real pictures and for made ones; the generator's other one is
     * the mean square of path lengths less their mean so far. */
    train_job generator, critic;
    ek_ema *average;       /* the generator's averages */
    double path_mean;      /* moving average of path lengths */
    ek_generator *random;  /* draws latents and noise */
    ek_generator *shuffle; /* draws the order of pictures */
    ek_loader *loader;
} stylegan;

/* Returns the shares that the run of a checkpoint ended with; NULL if the checkpoint has none for
 * so many devices. */
static const char *stylegan_plan(const ek_archive *from, const char *name, int devices)
{
    const char *plan = opt.mode == MODE_AUTO ? job_saved_plan(from, name, devices) : NULL;
    const char *last = plan ? strrchr(plan, ':') : NULL;
    return last ? last + 1 : plan;
}

/* Adam's rate and beta are as if there were no steps for the penalty (Karras et al. 2020, appendix
 * B): of `every` + 1 steps one has the penalty alone. */
static void stylegan_wrap(train_job *job, ek_module *network, ek_gan_role role, int64_t every,
                          const ek_archive *from, const char *plan_name)
{
    const double share = (double)every / (double)(every + 1);
    ek_module_to_dtype(network, (ek_dtype)opt.dtype);
    job_wrap(job, network, ek_gan_loss(EK_GAN_LOGISTIC, role),
             stylegan_plan(from, plan_name, job->devices.count), EK_GOAL_MEMORY);
    job->optimizer =
        ek_adam(job->model, .lr = share * opt.lr, .beta1 = 0, .beta2 = pow(0.99, share));
}

/* Makes the networks on the generator's devices from the seed. Returns 0 or a negative status;
 * close it anyway. */
static int stylegan_open_networks(stylegan *s, const ek_archive *from)
{
    uint64_t seed = (uint64_t)opt.seed;
    s->critic = s->generator; /* on the same devices */
    ek_manual_seed(seed);
    s->random = ek_generator_new(seed + 1);
    stylegan_wrap(&s->generator, stylegan_generator((int)opt.width, (int)opt.latent),
                  EK_GAN_GENERATOR, opt.path_every, from, "generator_plan");
    stylegan_wrap(&s->critic, stylegan_critic((int)opt.width), EK_GAN_CRITIC_REAL, opt.r1_every,
                  from, "critic_plan");
    s->critic.other = job_criterion(&s->critic, ek_gan_loss(EK_GAN_LOGISTIC, EK_GAN_CRITIC_FAKE));
    s->generator.other = job_criterion(&s->generator, ek_mse_loss());
    s->average = ek_ema_new(s->generator.network, .decay = opt.ema);
    return ek_error_status();
}

/* Returns 0 or a negative status; close it anyway. */
static int stylegan_open(stylegan *s, const ek_archive *from)
{
    ek_dataset *pictures = adversary_pictures(opt.data, true, STYLEGAN_SIDE);
    if (!pictures)
        return ek_error_status();
    job_begin(&s->generator, opt.mode, opt.device, opt.devices);
    s->shuffle = ek_generator_new((uint64_t)opt.seed);
    s->loader =
        ek_data_loader(pictures, .batch_size = opt.batch, .drop_last = true,
                       .sampler = shuffled_sampler(ek_dataset_length(pictures), s->shuffle));
    return stylegan_open_networks(s, from);
}

static void stylegan_close(stylegan *s)
{
    ek_loader_free(s->loader);
    ek_ema_free(s->average);
    job_free(&s->critic);
    job_free(&s->generator);
    ek_generator_free(s->random);
    ek_generator_free(s->shuffle);
}

/* ---- a step ---- */

/* This rank's inputs of the generator, on cpu. */
typedef struct seeds {
    ek_tensor *z, *cut, *noise;
} seeds;

/* Draws the inputs of so many groups of all ranks: latents; how many layers get the first latent,
 * which are all layers, or if two latents are mixed 1 to STYLEGAN_LAYERS - 1; noise. */
static seeds stylegan_draw(stylegan *s, int64_t groups)
{
    const ek_dtype dtype = (ek_dtype)opt.dtype;
    const ek_shape shape = EK_SHAPE(groups, STYLEGAN_GROUP);
    ek_tensor *mixed = ek_empty(shape, EK_I64), *cut = ek_empty(shape, EK_I64);
    seeds drawn = {
        .z = adversary_noise(EK_SHAPE(groups, STYLEGAN_GROUP, 2, opt.latent), dtype, s->random)};
    ek_bernoulli_(mixed, opt.mixing, s->random);
    ek_random_(cut, 1, STYLEGAN_LAYERS, s->random);
    drawn.cut =
        world_rows(ek_where(ek_ne_scalar(mixed, 0), cut, ek_full(STYLEGAN_LAYERS, shape, EK_I64)));
    drawn.noise =
        adversary_noise(EK_SHAPE(groups, STYLEGAN_GROUP, STYLEGAN_NOISE), dtype, s->random);
    return drawn;
}

static ek_value stylegan_make(stylegan *s, seeds from)
{
    return ek_forward(s->generator.model, from.z, from.cut, from.noise);
}

/* Trains the critic on `real` (this rank's, on cpu) and on as many made pictures without a history.
 * Returns the loss. Each term has its own backward: the activations of a term are gone before the
 * next term needs memory. */
static double stylegan_critic_step(stylegan *s, ek_tensor *real)
{
    double on_real = 0, on_made = 0;
    ek_scope scope = ek_scope_begin();
    bool had_gradients = ek_set_grad_enabled(false);
    ek_value made = stylegan_make(s, stylegan_draw(s, opt.batch / STYLEGAN_GROUP));
    ek_set_grad_enabled(had_gradients);
    ek_module *critic = s->critic.model;
    ek_zero_grad(s->critic.optimizer);
    if (adversary_backward(ek_loss(s->critic.criterion, ek_forward(critic, real)), &on_real) == 0 &&
        adversary_backward(ek_loss(s->critic.other, ek_forward(critic, made)), &on_made) == 0)
        ek_step(s->critic.optimizer);
    ek_scope_end(&scope);
    return on_real + on_made;
}

static double stylegan_generator_step(stylegan *s)
{
    double loss = 0;
    ek_scope scope = ek_scope_begin();
    ek_zero_grad(s->generator.optimizer);
    ek_value made = stylegan_make(s, stylegan_draw(s, opt.batch / STYLEGAN_GROUP));
    if (adversary_generator_backward(&s->generator, &s->critic, made, &loss) == 0)
        ek_step(s->generator.optimizer);
    ek_scope_end(&scope);
    return loss;
}

/* Steps the critic by R1 alone (Mescheder et al. 2018), with the weight of all steps without R1.
 * The library adds up the squares of a group, which counts as one sample: hence the division. */
static double stylegan_r1_step(stylegan *s, ek_tensor *real)
{
    double penalty = 0;
    ek_scope scope = ek_scope_begin();
    ek_zero_grad(s->critic.optimizer);
    const double weight = opt.gamma / 2 / STYLEGAN_GROUP * (double)opt.r1_every;
    if (adversary_backward(ek_gradient_penalty(s->critic.model, real, .kind = EK_PENALTY_R1,
                                               .weight = weight),
                           &penalty) == 0)
        ek_step(s->critic.optimizer);
    ek_scope_end(&scope);
    return penalty / (double)opt.r1_every;
}

/* Steps the generator by the path lengths' penalty alone, with the weight of all steps without this
 * penalty. Moves the mean of path lengths on, and returns the step's length. */
static double stylegan_path_step(stylegan *s)
{
    static const double path_decay = 0.01;
    ek_scope scope = ek_scope_begin();
    const int64_t groups = stylegan_path_groups();
    const ek_dtype dtype = (ek_dtype)opt.dtype;
    double loss, length = 0;
    seeds from = stylegan_draw(s, groups);
    ek_tensor *direction =
        adversary_noise(EK_SHAPE(groups, STYLEGAN_GROUP, 1, STYLEGAN_SIDE, STYLEGAN_SIDE), dtype,
                        s->random);
    direction = ek_mul_scalar(direction, 1.0 / STYLEGAN_SIDE);
    ek_zero_grad(s->generator.optimizer);
    ek_value lengths = ek_forward(s->generator.model, from.z, from.cut, from.noise, direction);
    if (adversary_mean(lengths, &length) == 0) {
        s->path_mean += path_decay * (length - s->path_mean);
        ek_tensor *wanted = ek_full(s->path_mean, EK_SHAPE(groups, STYLEGAN_GROUP), dtype);
        ek_tensor *penalty = ek_loss(s->generator.other, lengths, world_rows(wanted));
        penalty = ek_mul_scalar(penalty, opt.path_weight * (double)opt.path_every);
        if (adversary_backward(penalty, &loss) == 0)
            ek_step(s->generator.optimizer);
    }
    ek_scope_end(&scope);
    return length;
}

/* Tells whether a penalty is due: every so many steps, from the first step on. */
static bool stylegan_due(const run *r, int64_t every, double weight)
{
    return ek_error_status() == 0 && weight > 0 && (r->step - 1) % every == 0;
}

/* Steps both networks on the next pictures. A step is followed by its penalty if the penalty is
 * due. */
static void stylegan_step(stylegan *s, run *r)
{
    ek_tensor *real = adversary_real(s->loader, (ek_dtype)opt.dtype);
    real = ek_f_unflatten(real, 0, EK_SHAPE(opt.batch / STYLEGAN_GROUP, STYLEGAN_GROUP));
    real = world_rows(real);
    if (real)
        run_add(r, CRITIC_LOSSES, stylegan_critic_step(s, real));
    if (stylegan_due(r, opt.r1_every, opt.gamma))
        run_add(r, R1, stylegan_r1_step(s, real));
    if (ek_error_status() == 0)
        run_add(r, GENERATOR_LOSSES, stylegan_generator_step(s));
    if (stylegan_due(r, opt.path_every, opt.path_weight))
        run_add(r, PATH_LENGTHS, stylegan_path_step(s));
    if (ek_error_status() == 0)
        ek_ema_update(s->average);
    run_add(r, SECONDS, run_seconds(r));
}

/* ---- pictures of the averaged generator ---- */

enum { AVERAGED_LATENTS = 1024, MADE_AT_ONCE = 32 };

typedef struct making {
    const stylegan *by;
    bool truncated;
    ek_tensor *mean; /* the mean of w (1, latent), to which truncation pulls w; one reference */
} making;

/* Draws normal numbers (rows, columns) for the first device. */
static ek_tensor *stylegan_normal(const stylegan *s, int64_t rows, int64_t columns,
                                  ek_generator *random)
{
    ek_tensor *drawn = ek_empty(EK_SHAPE(rows, columns), (ek_dtype)opt.dtype);
    ek_normal_(drawn, 0, 1, random);
    return ek_to_device(drawn, s->generator.devices.devices[0]);
}

static ek_tensor *stylegan_make_part(int64_t first, int64_t count, ek_generator *random, void *user)
{
    making *of = user;
    ek_module *mapping = ek_module_at(of->by->generator.network, "mapping");
    ek_module *synthesis = ek_module_at(of->by->generator.network, "synthesis");
    if (of->truncated && first == 0)
        of->mean = ek_keep(ek_mean(ek_apply(mapping, stylegan_normal(of->by, AVERAGED_LATENTS,
                                                                     opt.latent, random)),
                                   EK_DIMS(0), .keepdim = true));
    ek_tensor *z = stylegan_normal(of->by, count, opt.latent, random);
    ek_tensor *noise = stylegan_normal(of->by, count, STYLEGAN_NOISE, random);
    ek_tensor *w = ek_apply(mapping, z);
    if (of->mean)
        w = ek_lerp_scalar(of->mean, w, opt.truncation);
    w = ek_expand(ek_unsqueeze(w, 1), EK_SHAPE(count, STYLEGAN_LAYERS, opt.latent));
    return ek_value_tensor(ek_forward(synthesis, w, noise));
}

/* Returns pictures on cpu (count, 1, side, side) of the averaged generator, each of one latent,
 * always from the same numbers. NULL on an error. */
static ek_tensor *stylegan_sample(const stylegan *s, int64_t count, bool truncated)
{
    making of = {.by = s, .truncated = truncated};
    ek_tensor *pictures = adversary_parts(s->average, (uint64_t)opt.seed + 2, count, MADE_AT_ONCE,
                                          stylegan_make_part, &of);
    ek_release(of.mean);
    return pictures;
}

/* ---- what a run writes ---- */

enum { GRID = 8 };

/* Writes samples-<step>.png and losses.html to --out. */
static void stylegan_write(void *of, run *r)
{
    stylegan *s = of;
    ek_scope scope = ek_scope_begin();
    adversary_save(r, stylegan_sample(s, (int64_t)GRID * GRID, true), GRID);
    ek_scope_end(&scope);
    FILE *page = run_page(r);
    if (!page)
        return;
    page_curves(page, "Losses", "step", &r->series[CRITIC_LOSSES], 2);
    page_curves(page, "R1 penalties", "penalty", &r->series[R1], 1);
    page_curves(page, "Path lengths", "penalty", &r->series[PATH_LENGTHS], 1);
    run_page_end(r, &s->generator, "losses.html", "Fashion-MNIST by StyleGAN2",
                 "width %" PRId64 ", latents of %" PRId64 " numbers", opt.width, opt.latent);
}

/* ---- the program ---- */

int main(int argc, char **argv)
{
    stylegan s = {0};
    run r = {.about = about,
             .args = option_table,
             .format = "evenkeel stylegan 2",
             /* A run may be resumed in another mode and on other devices. */
             .deciding = "seed dtype width latent batch lr gamma r1-every path-weight path-every "
                         "mixing ema",
             .written = "Pictures, charts, checkpoint",
             .draw = stylegan_write,
             .of = &s};
    frechet_result judged = {0};
    if (!run_begin(&r, argc, argv, stylegan_check))
        return run_end(&r);
    if (stylegan_open(&s, r.from) < 0 && !s.loader)
        run_hint(&r, PICTURES_HINT, opt.data);
    r.last = opt.steps;
    run_series(&r, series_names, SERIES);
    adversary_keep(&r, &s.generator, &s.critic, s.random, s.loader, opt.mode == MODE_AUTO);
    run_keep(&r, "", (ek_training_state){.ema = s.average});
    run_keep_numbers(&r, "path_mean", &s.path_mean, 1);

    while (run_next(&r)) {
        stylegan_step(&s, &r);
        ek_progress_step(r.progress, 1, "critic %.3f  generator %.3f  path length %.3f",
                         series_last(&r.series[CRITIC_LOSSES]),
                         series_last(&r.series[GENERATOR_LOSSES]),
                         series_last(&r.series[PATH_LENGTHS]));
    }

    if (run_judges(&r) && opt.judged > 0)
        frechet_judge(stylegan_sample(&s, opt.judged, false), opt.data, opt.judge_steps,
                      (uint64_t)opt.seed, &judged);
    json_writer *json = run_json(&r, &s.generator);
    if (json) {
        json_write(json, "path_mean %g", s.path_mean);
        json_network(json, "generator", s.generator.network);
        json_network(json, "critic", s.critic.network);
        frechet_json(json, &judged);
        json_write(json, "median_step_seconds %g", series_median(&r.series[SECONDS]));
        json_records(json, r.series, SERIES);
    }
    if (run_prints(&r)) {
        print_peaks(&s.generator.devices);
        printf("Median step: %.0f ms\n", 1000 * series_median(&r.series[SECONDS]));
        frechet_print(&judged);
    }
    stylegan_close(&s);
    return run_end(&r);
}
