/* gan.c: trains a DCGAN on Fashion-MNIST with a gradient penalty: gradients of gradients on one
 * device or several, losses and penalty in one place or on every device.
 *
 * Everything random is drawn on the CPU, for the whole batch, from one generator: noise first, then
 * the penalty's numbers. So a run draws the same numbers in every mode, on any number of devices.
 *
 * In balanced mode nothing meets on a device: pictures stay where the generator made them and go to
 * the critic as they are, and losses and norms are computed there. Only the penalty's choice of
 * points between real and made pictures needs whole batches. For that choice the made pictures are
 * copied to cpu, where the real ones are, so that the copies take no device's memory. */
#include <inttypes.h>
#include <math.h>

#include "adversary.h"
#include "networks.h"

/* ---- settings ---- */

static const char *const gan_modes[] = {"single", "classic", "balanced", NULL};
static const char *const norm_names[] = {"none", "layer", "instance", "batch", "sync-batch", NULL};
static const char *const penalty_names[] = {"wgan-gp", "wgan-lp", "dragan", "r1", NULL};
static const char *const loss_names[] = {"wasserstein", "hinge", "least-squares", "logistic", NULL};

enum { MOST = 1 << 20 };
/* By default the critic has no normalisation, so that a sample's gradient depends on that sample
 * alone. */
#define OPTIONS(ROW)                                                                  \
    ROW(word, penalty, "wgan-gp", penalty_names, "KIND", "of the critic's gradient")  \
    ROW(real, weight, "10", 0, 1e6, "of the penalty")                                 \
    ROW(word, critic_norm, "none", norm_names, "KIND", "normalisation in the critic") \
    ROW(word, loss, "wasserstein", loss_names, "KIND", "of critic and generator")     \
    ROW(word, mode, "balanced", gan_modes, "MODE", "how devices are used")            \
    ROW(text, devices, NULL, "N", "devices; all there are unless given")              \
    ROW(device, device, "which kind of devices")                                      \
    ROW(switch, auto_, "each device's share of a batch by measurement")               \
    ROW(switch, shard, "shard gradients and the optimizers' state over the devices")  \
    ROW(int, batch, "64", 2, MOST, "pictures per critic step")                        \
    ROW(int, critic_steps, "3", 1, 1000, "critic steps per generator step")           \
    ROW(int, steps, "500", 1, MOST, "generator steps, those resumed from included")   \
    ROW(int, width, "32", 1, 512, "channels of the critic's first layer")             \
    ROW(real, lr, "0.0005", 0, 1, "learning rate of both")                            \
    ROW(word, dtype, "f32", args_dtype_words, "TYPE", "of parameters and pictures")   \
    ROW(int, seed, NULL, 0, ARG_MOST_SEED, "of weights, order and noise")             \
    ROW(folder, data, "Fashion-MNIST's files")                                        \
    RUN_OPTIONS(ROW, "write pictures, charts and checkpoints there", "100", "steps between those")
args_declare(OPTIONS);

static const char about[] =
    "Trains a generator of Fashion-MNIST pictures (32 x 32) and a critic with a gradient penalty,\n"
    "on a single device, on several with outputs and losses on device 0 (classic), or with losses\n"
    "and penalty on every device (balanced).\n\n";

static int gan_check(void)
{
    return job_check_devices((train_mode)opt.mode, opt.device, opt.devices, NULL);
}

/* ---- what is trained ---- */

/* What each critic step measures, and what each generator step measures. */
enum { CRITIC_LOSSES, PENALTIES, WASSERSTEIN, GRADIENT_NORMS, GENERATOR_LOSSES, SECONDS, SERIES };
static const char *const series_names[SERIES] = {"critic_losses",    "penalties",
                                                 "wasserstein",      "critic_gradient_norms",
                                                 "generator_losses", "step_seconds"};

typedef struct gan {
    train_job generator, critic; /* the critic's criteria are for real pictures, for made ones */
    ek_generator *random;        /* draws noise and the penalty's points */
    ek_generator *shuffle;       /* draws the order of pictures */
    ek_loader *loader;
} gan;

/* A resumed run continues with the checkpoint's plan if it has as many devices as that plan.
 *
 * Adam's betas: half of the usual momentum (Radford et al. 2016), and a short memory of squares,
 * since the critic's gradients change with the generator (Gulrajani et al. 2017). */
static void gan_wrap(train_job *job, ek_module *network, ek_gan_role role, const ek_archive *from,
                     const char *plan_name)
{
    ek_data_parallel_options options =
        EK_OPTIONS(ek_data_parallel_options, network,
                   .split = opt.auto_ ? EK_SPLIT_AUTO : EK_SPLIT_CHUNK,
                   .plan = opt.auto_ ? job_saved_plan(from, plan_name, job->devices.count) : NULL);
    ek_module_to_dtype(network, (ek_dtype)opt.dtype);
    job_wrap_with(job, options, ek_gan_loss((ek_gan_loss_kind)opt.loss, role), opt.shard);
    job->optimizer = ek_adam(job->model, .lr = opt.lr, .beta1 = 0.5, .beta2 = 0.9);
}

/* Makes the networks and the loader from the seed. Returns 0 or a negative status; close it anyway.
 */
static int gan_open(gan *g, const ek_archive *from)
{
    const uint64_t seed = (uint64_t)opt.seed;
    ek_dataset *pictures = adversary_pictures(opt.data, true, GAN_SIDE);
    if (!pictures)
        return ek_error_status();
    g->shuffle = ek_generator_new(seed);
    g->random = ek_generator_new(seed + 1);
    g->loader =
        ek_data_loader(pictures, .batch_size = opt.batch,
                       .sampler = shuffled_sampler(ek_dataset_length(pictures), g->shuffle));
    job_begin(&g->generator, opt.mode, opt.device, opt.devices);
    g->critic = g->generator; /* on the same devices */
    ek_manual_seed(seed);
    gan_wrap(&g->generator, gan_generator((int)opt.width), EK_GAN_GENERATOR, from,
             "generator_plan");
    gan_wrap(&g->critic, gan_critic((int)opt.width, opt.critic_norm), EK_GAN_CRITIC_REAL, from,
             "critic_plan");
    g->critic.other =
        job_criterion(&g->critic, ek_gan_loss((ek_gan_loss_kind)opt.loss, EK_GAN_CRITIC_FAKE));
    return ek_error_status();
}

static void gan_close(gan *g)
{
    ek_loader_free(g->loader);
    job_free(&g->critic);
    job_free(&g->generator);
    ek_generator_free(g->random);
    ek_generator_free(g->shuffle);
}

/* ---- a step ---- */

/* Returns this rank's part of `count` pictures. */
static ek_value gan_make(gan *g, int64_t count)
{
    return ek_forward(g->generator.model, adversary_noise(EK_SHAPE(count, GAN_NOISE, 1, 1),
                                                          (ek_dtype)opt.dtype, g->random));
}

/* Adds the gradient of the loss on the pictures' scores to the critic's. `mean` is the scores'. */
static int gan_add_scores(gan *g, ek_module *on, ek_value pictures, double *loss, double *mean)
{
    ek_scope scope = ek_scope_begin();
    ek_value scores = ek_forward(g->critic.model, pictures);
    int rc = adversary_backward(ek_loss(on, scores), loss);
    if (rc == 0)
        rc = adversary_mean(scores, mean);
    ek_scope_end(&scope);
    return rc;
}

/* Adds the gradient of the penalty at `real`, or between `real` and `made`. */
static int gan_add_penalty(gan *g, ek_tensor *real, ek_value made, double *penalty)
{
    bool between = opt.penalty == EK_PENALTY_WGAN_GP || opt.penalty == EK_PENALTY_WGAN_LP;
    if (opt.weight == 0)
        return 0;
    ek_scope scope = ek_scope_begin();
    ek_tensor *fake =
        between ? ek_value_tensor(ek_value_to_device(made, ek_tensor_device(real), 0)) : NULL;
    int rc = adversary_backward(ek_gradient_penalty(g->critic.model, real, fake,
                                                    .kind = (ek_penalty_kind)opt.penalty,
                                                    .weight = opt.weight, .generator = g->random),
                                penalty);
    ek_scope_end(&scope);
    return rc;
}

/* Trains the critic on the next pictures and on as many made pictures without a history. Each term
 * has its own backward: the activations of a term are gone before the next term needs memory. */
static void gan_critic_step(gan *g, run *r)
{
    ek_scope scope = ek_scope_begin();
    const ek_device_list *devices = &g->critic.devices;
    double on_real = 0, on_made = 0, penalty = 0; /* the loss's terms */
    double of_real = 0, of_made = 0;              /* means of scores */
    double norm = 0;                              /* the norm of all gradients together */
    ek_tensor *batch = adversary_real(g->loader, (ek_dtype)opt.dtype), *real = world_rows(batch);
    bool had_gradients = ek_set_grad_enabled(false);
    ek_value made = batch ? gan_make(g, ek_tensor_size(batch, 0)) : ek_value_error();
    ek_set_grad_enabled(had_gradients);
    if (opt.mode != MODE_BALANCED || devices->count == 1) /* otherwise the batch is cut from cpu */
        real = ek_to_device(real, devices->devices[0]);
    ek_zero_grad(g->critic.optimizer);
    if (gan_add_scores(g, g->critic.criterion, ek_value_of_tensor(real), &on_real, &of_real) == 0 &&
        gan_add_scores(g, g->critic.other, made, &on_made, &of_made) == 0 &&
        gan_add_penalty(g, real, made, &penalty) == 0 &&
        /* Without a limit, only the norm is computed. */
        ek_clip_grad_norm(g->critic.optimizer, INFINITY, &norm, .error_if_nonfinite = true) == 0)
        ek_step(g->critic.optimizer);
    run_add(r, CRITIC_LOSSES, on_real + on_made + penalty);
    run_add(r, PENALTIES, penalty);
    run_add(r, WASSERSTEIN, of_real - of_made);
    run_add(r, GRADIENT_NORMS, norm);
    ek_scope_end(&scope);
}

static void gan_generator_step(gan *g, run *r)
{
    double loss = 0;
    ek_zero_grad(g->generator.optimizer);
    if (adversary_generator_backward(&g->generator, &g->critic, gan_make(g, opt.batch), &loss) == 0)
        ek_step(g->generator.optimizer);
    run_add(r, GENERATOR_LOSSES, loss);
}

/* Takes several steps of the critic and one of the generator. */
static void gan_step(gan *g, run *r)
{
    for (int64_t i = 0; i < opt.critic_steps && ek_error_status() == 0; i++)
        gan_critic_step(g, r);
    if (ek_error_status() == 0)
        gan_generator_step(g, r);
    run_add(r, SECONDS, run_seconds(r));
}

/* ---- what a run writes ---- */

enum { GRID = 8 };

static ek_tensor *gan_make_part(int64_t first, int64_t count, ek_generator *random, void *user)
{
    const train_job *generator = &((gan *)user)->generator;
    ek_tensor *noise = ek_empty(EK_SHAPE(count, GAN_NOISE, 1, 1), (ek_dtype)opt.dtype);
    (void)first;
    ek_normal_(noise, 0, 1, random);
    return ek_apply(generator->network, ek_to_device(noise, generator->devices.devices[0]));
}

/* Returns GRID x GRID pictures of the generator in evaluation mode, always from the same noise:
 * values in (-1, 1), on cpu. NULL on an error. */
static ek_tensor *gan_draw(gan *g)
{
    ek_module_train(g->generator.network, false);
    ek_tensor *pictures =
        adversary_parts(NULL, (uint64_t)opt.seed + 2, (int64_t)GRID * GRID, GRID, gan_make_part, g);
    ek_module_train(g->generator.network, true);
    return pictures;
}

/* Writes samples-<step>.png and losses.html to --out. */
static void gan_write(void *of, run *r)
{
    gan *g = of;
    ek_scope scope = ek_scope_begin();
    adversary_save(r, gan_draw(g), GRID);
    ek_scope_end(&scope);
    FILE *page = run_page(r);
    if (!page)
        return;
    page_curves(page, "Critic", "critic step", &r->series[CRITIC_LOSSES], 3);
    page_curves(page, "Norm of the critic's gradient", "critic step", &r->series[GRADIENT_NORMS],
                1);
    page_curves(page, "Generator", "step", &r->series[GENERATOR_LOSSES], 1);
    run_page_end(r, &g->generator, "losses.html", "Fashion-MNIST from noise",
                 "%s loss, %s penalty of weight %g, critic norm %s", loss_names[opt.loss],
                 penalty_names[opt.penalty], opt.weight, norm_names[opt.critic_norm]);
}

/* ---- the program ---- */

int main(int argc, char **argv)
{
    gan g = {0};
    run r = {.about = about,
             .args = option_table,
             .format = "evenkeel gan 3",
             /* A run may be resumed in another mode and on other devices. */
             .deciding = "seed dtype width critic-norm penalty weight loss batch critic-steps lr",
             .written = "Pictures, charts, checkpoint",
             .draw = gan_write,
             .of = &g};
    if (!run_begin(&r, argc, argv, gan_check))
        return run_end(&r);
    if (gan_open(&g, r.from) < 0 && !g.loader)
        run_hint(&r, PICTURES_HINT, opt.data);
    r.last = opt.steps;
    r.batch *= opt.critic_steps;
    run_series(&r, series_names, SERIES);
    adversary_keep(&r, &g.generator, &g.critic, g.random, g.loader, opt.auto_);

    while (run_next(&r)) {
        gan_step(&g, &r);
        ek_progress_step(r.progress, 1, "critic %.3f  penalty %.3f  W %.3f",
                         series_last(&r.series[CRITIC_LOSSES]), series_last(&r.series[PENALTIES]),
                         series_last(&r.series[WASSERSTEIN]));
    }

    json_writer *json = run_json(&r, &g.generator);
    if (json) {
        json_network(json, "generator", g.generator.network);
        json_network(json, "critic", g.critic.network);
        json_write(json, "median_step_seconds %g", series_median(&r.series[SECONDS]));
        json_records(json, r.series, SERIES);
    }
    if (run_prints(&r)) {
        print_peaks(&g.generator.devices);
        printf("Median step: %.0f ms\n", 1000 * series_median(&r.series[SECONDS]));
    }
    gan_close(&g);
    return run_end(&r);
}
