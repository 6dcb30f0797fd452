/* gan.c: trains a DCGAN on Fashion-MNIST with a gradient penalty: gradients of gradients on one
 * device or several, losses and penalty in one place or on every device.
 *
 * Everything random is drawn on the CPU, for the whole batch, from one generator: noise first, then
 * the penalty's numbers. So any number of devices, in either mode, sees the same ones.
 *
 * In balanced mode nothing meets on a device: pictures stay where the generator made them and go to
 * the critic as they are, and losses and norms are computed there. Only the penalty's choice of
 * points between real and made pictures needs whole batches: for it the made ones are copied to
 * plain memory (cpu), where the real ones are, so that it costs no device anything. */
#include <inttypes.h>
#include <math.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>

#include "networks.h"
#include "run.h"

/* ---- settings ---- */

enum { MODE_SINGLE, MODE_CLASSIC, MODE_BALANCED, MODES };
static const char *const mode_names[MODES + 1] = {"single", "classic", "balanced"};
static const char *const norm_names[NORMS + 1] = {"none", "layer", "instance", "batch",
                                                  "sync-batch"};
enum { PENALTY_KINDS = EK_PENALTY_R1 + 1 };
static const char *const penalty_names[PENALTY_KINDS + 1] = {"wgan-gp", "wgan-lp", "dragan", "r1"};
static const char *const loss_names[] = {"wasserstein", "hinge", "least-squares", "logistic", NULL};
static const char *const dtype_names[] = {[EK_F32] = "f32", [EK_F64] = "f64", NULL};

static struct gan_options {
    int penalty, norm, mode, loss, dtype, kind;
    int64_t devices; /* 0: all there are */
    int64_t batch, critic_steps, steps, width, every, seed;
    double lr, weight;
    bool automatic, sharded;
    const char *data, *out, *json, *resume;
} opt = {/* a sample's gradient is to depend on that sample alone */ .norm = NORM_NONE,
         .mode = MODE_BALANCED,
         .batch = 64,
         .critic_steps = 3,
         .steps = 500,
         .width = 32,
         .every = 100,
         .lr = 5e-4,
         .weight = 10,
         .data = "/usr/share/datasets/fashion-mnist"};

enum { MOST = 1 << 20 };
static const arg_spec gan_args[] = {
    arg_word("penalty", &opt.penalty, penalty_names, "KIND", "of the critic's gradient"),
    arg_real("weight", &opt.weight, 0, 1e6, "of the penalty"),
    arg_word("critic-norm", &opt.norm, norm_names, "KIND", "normalisation in the critic"),
    arg_word("loss", &opt.loss, loss_names, "KIND", "of critic and generator"),
    arg_word("mode", &opt.mode, mode_names, "MODE", "how devices are used"),
    arg_int("devices", &opt.devices, 1, EK_MAX_DEVICES, "N", "devices; all there are unless given"),
    arg_device(&opt.kind),
    arg_switch("auto", &opt.automatic, "each device's share of a batch by measurement"),
    arg_switch("shard", &opt.sharded,
               "divide gradients and the optimizers' state over the devices"),
    arg_int("batch", &opt.batch, 2, MOST, "N", "pictures per critic step"),
    arg_int("critic-steps", &opt.critic_steps, 1, 1000, "N", "critic steps per generator step"),
    arg_int("steps", &opt.steps, 1, MOST, "N", "generator steps, those resumed from included"),
    arg_int("width", &opt.width, 1, 512, "N", "channels of the critic's first layer"),
    arg_real("lr", &opt.lr, 0, 1, "learning rate of both"),
    arg_word("dtype", &opt.dtype, dtype_names, "TYPE", "of parameters and pictures"),
    arg_int("seed", &opt.seed, 0, ARG_MOST_SEED, "N", "of weights, order and noise"),
    arg_text("data", &opt.data, "DIR", "Fashion-MNIST's files"),
    arg_text("out", &opt.out, "DIR", "write pictures, charts and checkpoints there"),
    arg_int("every", &opt.every, 1, MOST, "N", "steps between those"),
    arg_text("resume", &opt.resume, "FILE", "go on from this checkpoint"),
    arg_text("json", &opt.json, "FILE", "write the results there"),
    arg_end,
};

static const char about[] =
    "Trains a generator of Fashion-MNIST pictures (32 x 32) and a critic with a gradient penalty,\n"
    "on a single device, on several with outputs and losses on device 0 (classic), or with losses\n"
    "and penalty on every device (balanced).\n\n";

static ek_device_list gan_devices(void)
{
    return devices_open(opt.kind, opt.mode == MODE_SINGLE ? 1 : (int)opt.devices);
}

static int gan_read_args(int argc, char **argv)
{
    char count[24];
    int rc = args_read(argc, argv, about, gan_args);
    if (rc != 0)
        return rc;
    snprintf(count, sizeof count, "%" PRId64, opt.devices);
    if (opt.mode == MODE_SINGLE && opt.devices > 1)
        return args_complain("--devices %s: --mode single trains on one device; classic or "
                             "balanced is needed for more",
                             count);
    if (gan_devices().count < 1)
        return opt.devices > 0 ? args_complain_error("devices", count) : args_fail(-1);
    return args_check_files(opt.resume, opt.json, opt.out);
}

/* ---- opening and closing ---- */

/* What steps measure: of each critic step, and of each generator step. */
enum { CRITIC_LOSSES, PENALTIES, WASSERSTEIN, GRADIENT_NORMS, GENERATOR_LOSSES, SECONDS, SERIES };
enum { CRITIC_SERIES = GENERATOR_LOSSES };
static const char *const series_names[SERIES] = {"critic_losses",    "penalties",
                                                 "wasserstein",      "critic_gradient_norms",
                                                 "generator_losses", "step_seconds"};

typedef struct gan {
    bool balanced;
    ek_device_list devices;
    ek_module *generator, *critic;             /* the networks; owned by the models */
    ek_module *generator_model, *critic_model; /* their wrappers */
    ek_module *on_real, *on_fake, *on_made;    /* criteria; on_made is the generator's */
    ek_optimizer *generator_optimizer, *critic_optimizer;
    ek_generator *random;
    ek_dataset *pictures;
    sample_order order;
    int64_t step;           /* generator steps that are finished */
    double *values[SERIES]; /* owned */
} gan;

/* A resumed run goes on from its plan if it has as many devices as then. */
static ek_module *gan_wrap(const gan *g, ek_module *network, const char *plan_name)
{
    ek_archive *from = opt.automatic && opt.resume ? ek_archive_open(opt.resume) : NULL;
    const char *plan = from ? ek_archive_get_text(from, plan_name) : NULL;
    if (plan && ek_plan_check(plan, g->devices.count) < 0) {
        ek_error_clear();
        plan = NULL;
    }
    ek_data_parallel_options options = {
        .module = network,
        .device_ids = g->devices,
        .split = opt.automatic ? EK_SPLIT_AUTO : EK_SPLIT_CHUNK,
        .plan = plan,
        .shard = opt.sharded ? EK_SHARD_OPTIMIZER : EK_SHARD_NONE,
    };
    ek_module *model =
        g->balanced ? ek_data_parallel_model_with(options) : ek_data_parallel_with(options);
    ek_archive_free(from);
    return model;
}

static ek_module *gan_criterion(const gan *g, ek_gan_role role)
{
    ek_module *loss = ek_gan_loss((ek_gan_loss_kind)opt.loss, role);
    return g->balanced ? ek_data_parallel_criterion(loss, .device_ids = g->devices) : loss;
}

/* Its betas: half of the usual momentum (Radford et al. 2016), and a short memory of squares,
 * since the critic's gradients change with the generator (Gulrajani et al. 2017). */
static ek_optimizer *gan_adam(ek_module *model)
{
    return ek_adam(model, .lr = opt.lr, .beta1 = 0.5, .beta2 = 0.9);
}

/* Makes the networks on g->devices from the seed. 0 or a negative status; close it anyway. */
static int gan_open_networks(gan *g)
{
    uint64_t seed = (uint64_t)opt.seed;
    g->balanced = opt.mode == MODE_BALANCED;
    ek_manual_seed(seed);
    g->random = ek_generator_new(seed + 1); /* another than that of the pictures' order */
    g->generator = gan_generator((int)opt.width);
    ek_module_to_dtype(g->generator, (ek_dtype)opt.dtype);
    g->generator_model = gan_wrap(g, g->generator, "generator_plan");
    g->critic = gan_critic((int)opt.width, opt.norm);
    ek_module_to_dtype(g->critic, (ek_dtype)opt.dtype);
    g->critic_model = gan_wrap(g, g->critic, "critic_plan");
    g->on_real = gan_criterion(g, EK_GAN_CRITIC_REAL);
    g->on_fake = gan_criterion(g, EK_GAN_CRITIC_FAKE);
    g->on_made = gan_criterion(g, EK_GAN_GENERATOR);
    g->generator_optimizer = gan_adam(g->generator_model);
    g->critic_optimizer = gan_adam(g->critic_model);
    return ek_error_status();
}

static void gan_close(gan *g)
{
    ek_optimizer_free(g->critic_optimizer);
    ek_optimizer_free(g->generator_optimizer);
    ek_module_free(g->on_made);
    ek_module_free(g->on_fake);
    ek_module_free(g->on_real);
    ek_module_free(g->critic_model);
    ek_module_free(g->generator_model);
    ek_generator_free(g->random);
    ek_dataset_free(g->pictures);
    order_close(&g->order);
    for (int i = 0; i < SERIES; i++)
        free(g->values[i]);
    *g = (gan){0};
}

/* ---- a step ---- */

typedef struct critic_record {
    double on_real, on_fake, penalty, loss; /* the last is their sum */
    double wasserstein;                     /* mean score of real pictures less that of made ones */
    double gradient_norm;                   /* of all of the critic's parameters together */
} critic_record;

/* Noise for `count` pictures, on cpu. */
static ek_tensor *gan_noise(gan *g, int64_t count)
{
    ek_tensor *noise = ek_empty(EK_SHAPE(count, GAN_NOISE, 1, 1), (ek_dtype)opt.dtype);
    return noise && ek_normal_(noise, 0, 1, g->random) == 0 ? noise : NULL;
}

/* Pictures without history: one tensor per device in balanced mode on several devices, else one. */
static ek_value gan_make(gan *g, ek_tensor *noise)
{
    bool had_gradients = ek_set_grad_enabled(false);
    ek_value made = ek_forward(g->generator_model, noise);
    ek_set_grad_enabled(had_gradients);
    return made;
}

static int gan_add_gradient(ek_tensor *loss, double *value)
{
    int rc = ek_backward(loss);
    return rc == 0 ? ek_item(loss, value) : rc;
}

/* Adds the gradient of the loss on the pictures' scores; *mean is the scores' own. */
static int gan_add_scores(gan *g, ek_module *on, ek_value pictures, double *loss, double *mean)
{
    ek_scope scope = ek_scope_begin();
    ek_value scores = ek_forward(g->critic_model, pictures);
    int rc = gan_add_gradient(ek_loss(on, scores), loss);
    bool had_gradients = ek_set_grad_enabled(false);
    ek_tensor *all = ek_value_tensor(ek_value_to_device(scores, ek_cpu(), 0));
    if (rc == 0)
        rc = ek_item(ek_mean(ek_to_dtype(all, EK_F64)), mean);
    ek_set_grad_enabled(had_gradients);
    ek_scope_end(&scope);
    return rc;
}

/* Adds the gradient of the penalty at `real`, or between it and what was made. */
static int gan_add_penalty(gan *g, ek_tensor *real, ek_value made, double *penalty)
{
    bool between = opt.penalty == EK_PENALTY_WGAN_GP || opt.penalty == EK_PENALTY_WGAN_LP;
    *penalty = 0;
    if (opt.weight == 0)
        return 0;
    ek_scope scope = ek_scope_begin();
    ek_tensor *fake =
        between ? ek_value_tensor(ek_value_to_device(made, ek_tensor_device(real), 0)) : NULL;
    int rc = gan_add_gradient(ek_gradient_penalty(g->critic_model, real, fake,
                                                  .kind = (ek_penalty_kind)opt.penalty,
                                                  .weight = opt.weight, .generator = g->random),
                              penalty);
    ek_scope_end(&scope);
    return rc;
}

/* Leaves the gradients of the critic's loss on `real` (on cpu) and `made` (as gan_make gives them,
 * or on cpu) in the critic's parameters. One backward per term: the activations of one are gone
 * before the next needs memory. */
static int gan_critic_gradient(gan *g, ek_tensor *real, ek_value made, critic_record *record)
{
    ek_scope scope = ek_scope_begin();
    bool cut = g->balanced && g->devices.count > 1; /* from cpu */
    ek_tensor *here = ek_to_device(real, cut ? ek_cpu() : g->devices.devices[0]);
    double of_real = 0, of_fake = 0;
    *record = (critic_record){0};
    ek_zero_grad(g->critic_optimizer);
    int rc = gan_add_scores(g, g->on_real, ek_value_of_tensor(here), &record->on_real, &of_real);
    if (rc == 0)
        rc = gan_add_scores(g, g->on_fake, made, &record->on_fake, &of_fake);
    if (rc == 0)
        rc = gan_add_penalty(g, here, made, &record->penalty);
    if (rc == 0) /* without a limit: only the norm is asked for */
        rc = ek_clip_grad_norm(g->critic_optimizer, INFINITY, &record->gradient_norm,
                               .error_if_nonfinite = true);
    record->loss = record->on_real + record->on_fake + record->penalty;
    record->wasserstein = of_real - of_fake;
    ek_scope_end(&scope);
    return rc;
}

/* Leaves the gradients of the generator's loss; the critic's are as before. */
static int gan_generator_gradient(gan *g, ek_tensor *noise, double *loss)
{
    ek_scope scope = ek_scope_begin();
    ek_zero_grad(g->generator_optimizer);
    ek_module_set_requires_grad(g->critic, false);
    ek_value scores = ek_forward(g->critic_model, ek_forward(g->generator_model, noise));
    int rc = gan_add_gradient(ek_loss(g->on_made, scores), loss);
    ek_module_set_requires_grad(g->critic, true);
    ek_scope_end(&scope);
    return rc;
}

/* The pictures order[0..count-1] on cpu, (count, 1, GAN_SIDE, GAN_SIDE) in [-1, 1], with a dark
 * border. */
static ek_tensor *gan_real(ek_dataset *pictures, const int64_t *order, int64_t count)
{
    enum { PICTURE = 28, BORDER = (GAN_SIDE - PICTURE) / 2 };
    ek_value samples = ek_dataset_get_batch(pictures, order, count, ek_cpu());
    ek_tensor *bytes = ek_value_tensor(ek_value_at(samples, 0));
    ek_tensor *batch = bytes ? ek_full(-1, EK_SHAPE(count, 1, GAN_SIDE, GAN_SIDE)) : NULL;
    if (!batch)
        return NULL;
    const uint8_t *from = ek_tensor_data(bytes);
    float *to = ek_tensor_data(batch);
    for (int64_t i = 0; i < count; i++, to += GAN_SIDE * GAN_SIDE)
        for (int y = 0; y < PICTURE; y++)
            for (int x = 0; x < PICTURE; x++)
                to[(y + BORDER) * GAN_SIDE + x + BORDER] = (float)*from++ / 127.5F - 1;
    ek_tensor_touch(batch);
    return ek_to_dtype(batch, (ek_dtype)opt.dtype);
}

static int gan_critic_step(gan *g, int64_t index)
{
    ek_scope scope = ek_scope_begin();
    critic_record record;
    int64_t taken;
    const int64_t *which = order_take(&g->order, opt.batch, &taken);
    ek_tensor *real = which ? gan_real(g->pictures, which, taken) : NULL;
    int rc = real ? gan_critic_gradient(g, real, gan_make(g, gan_noise(g, taken)), &record)
                  : ek_error_status();
    if (rc == 0)
        rc = ek_step(g->critic_optimizer);
    if (rc == 0) {
        g->values[CRITIC_LOSSES][index] = record.loss;
        g->values[PENALTIES][index] = record.penalty;
        g->values[WASSERSTEIN][index] = record.wasserstein;
        g->values[GRADIENT_NORMS][index] = record.gradient_norm;
    }
    ek_scope_end(&scope);
    return rc;
}

/* One generator step and the critic steps before it. */
static int gan_step(gan *g)
{
    double begin = seconds_now();
    int rc = 0;
    for (int64_t i = 0; i < opt.critic_steps && rc == 0; i++)
        rc = gan_critic_step(g, g->step * opt.critic_steps + i);
    ek_scope scope = ek_scope_begin();
    if (rc == 0)
        rc = gan_generator_gradient(g, gan_noise(g, opt.batch),
                                    &g->values[GENERATOR_LOSSES][g->step]);
    if (rc == 0)
        rc = ek_step(g->generator_optimizer);
    ek_scope_end(&scope);
    if (rc == 0)
        g->values[SECONDS][g->step++] = seconds_now() - begin;
    return rc;
}

/* ---- checkpoints: all that a run needs to go on as if it had not been stopped ----
 *
 * An archive (evenkeel/archive.h): both networks, both optimizers, the random numbers, what the
 * steps so far measured, measured plans, and as texts the step and the settings that decide the
 * numbers. The pictures' order follows from seed and step. */

static const char gan_format[] = "evenkeel gan 1";
static const char gan_deciding[] =
    "seed dtype width critic-norm penalty weight loss batch critic-steps lr";

/* How many numbers of a series there are after so many steps. */
static int64_t gan_count(int series, int64_t steps)
{
    return series < CRITIC_SERIES ? steps * opt.critic_steps : steps;
}

static int gan_save(const char *path, gan *g)
{
    ek_scope scope = ek_scope_begin();
    ek_archive *to = ek_archive_new();
    char text[64];
    snprintf(text, sizeof text, "%" PRId64, g->step);
    ek_archive_put_text(to, "step", text);
    settings_put(to, gan_format, "", gan_args, gan_deciding);
    ek_archive_put_module(to, "generator", g->generator);
    ek_archive_put_optimizer(to, "generator_optimizer", g->generator_optimizer, g->generator);
    ek_archive_put_module(to, "critic", g->critic);
    ek_archive_put_optimizer(to, "critic_optimizer", g->critic_optimizer, g->critic);
    ek_archive_put_generator(to, "random", g->random);
    for (int i = 0; i < SERIES; i++) {
        ek_shape shape = EK_SHAPE(gan_count(i, g->step));
        snprintf(text, sizeof text, "records.%s", series_names[i]);
        ek_archive_put(to, text, EK_VALUE(ek_from_data(g->values[i], shape, EK_F64)));
    }
    if (opt.automatic) {
        ek_archive_put_plan(to, "generator_plan", g->generator_model);
        ek_archive_put_plan(to, "critic_plan", g->critic_model);
    }
    int rc = ek_error_status();
    if (rc == 0)
        rc = ek_archive_save(to, path);
    ek_archive_free(to);
    ek_scope_end(&scope);
    return rc;
}

/* Mode and devices may be others than when the file was written. */
static int gan_load(gan *g, const ek_archive *from)
{
    int rc = settings_check(from, opt.resume, gan_format, "", gan_args, gan_deciding);
    if (rc < 0)
        return rc;
    const char *step = ek_archive_get_text(from, "step");
    g->step = step ? strtoll(step, NULL, 10) : -1;
    if (g->step < 0 || g->step > opt.steps)
        return ek_error(EK_E_INVALID, "%s is at step %lld; --steps %lld asks for fewer", opt.resume,
                        (long long)g->step, (long long)opt.steps);
    ek_archive_load_module(from, "generator", g->generator);
    ek_archive_load_optimizer(from, "generator_optimizer", g->generator_optimizer, g->generator);
    ek_archive_load_module(from, "critic", g->critic);
    ek_archive_load_optimizer(from, "critic_optimizer", g->critic_optimizer, g->critic);
    ek_archive_load_generator(from, "random", g->random);
    for (int i = 0; i < SERIES; i++) {
        char name[64];
        snprintf(name, sizeof name, "records.%s", series_names[i]);
        ek_tensor *values = ek_to_dtype(ek_value_tensor(ek_archive_get(from, name)), EK_F64);
        ek_to_data(values, g->values[i], (size_t)gan_count(i, g->step) * sizeof(double));
    }
    for (int64_t i = 0, taken; i < g->step * opt.critic_steps; i++)
        order_take(&g->order, opt.batch, &taken);
    return ek_error_status();
}

/* Begins a run, or goes on from settingopt.resume. 0 or a negative status; close it anyway. */
static int gan_open(gan *g)
{
    ek_scope scope = ek_scope_begin();
    *g = (gan){.devices = gan_devices(), .pictures = ek_mnist(opt.data, true)};
    int rc = g->pictures ? pictures_check(g->pictures, opt.data, EK_SHAPE(1, 28, 28))
                         : ek_error_status();
    if (rc == 0)
        rc = gan_open_networks(g);
    if (rc == 0)
        rc = order_open(&g->order, ek_dataset_length(g->pictures), opt.seed);
    for (int i = 0; i < SERIES && rc == 0; i++) {
        g->values[i] = calloc((size_t)gan_count(i, opt.steps), sizeof(double));
        if (!g->values[i])
            rc = ek_error(EK_E_NO_MEMORY, "no memory for the records of %lld steps",
                          (long long)opt.steps);
    }
    if (rc == 0 && opt.resume) {
        ek_archive *from = ek_archive_open(opt.resume);
        rc = from ? gan_load(g, from) : ek_error_status();
        ek_archive_free(from);
    }
    ek_scope_end(&scope);
    return rc;
}

/* ---- what a run writes ---- */

enum { GRID = 8, GAP = 2, GRID_SIDE = GRID * GAN_SIDE + (GRID + 1) * GAP };

/* Draws row `row` of the grid; the pictures' `values` are in [-1, 1]. */
static void gan_draw_row(uint8_t *pixels, int row, const double *values)
{
    for (int i = 0; i < GRID * GAN_SIDE * GAN_SIDE; i++) {
        int column = i / (GAN_SIDE * GAN_SIDE), y = i / GAN_SIDE % GAN_SIDE, x = i % GAN_SIDE;
        int at =
            (GAP + row * (GAN_SIDE + GAP) + y) * GRID_SIDE + GAP + column * (GAN_SIDE + GAP) + x;
        double brightness = 127.5 * (values[i] + 1);
        pixels[at] = (uint8_t)(brightness > 0 ? fmin(brightness, 255) + 0.5 : 0); /* NaN: 0 */
    }
}

/* GRID x GRID pictures of the generator in evaluation mode, always from the same noise, on a dark
 * ground: brightness, GRID_SIDE x GRID_SIDE. They are made row by row, so that this needs less
 * memory than training. */
static int gan_draw(gan *g, uint8_t *pixels)
{
    double values[GRID * GAN_SIDE * GAN_SIDE];
    bool had_gradients = ek_set_grad_enabled(false);
    ek_generator *random = ek_generator_new((uint64_t)opt.seed + 2); /* its own numbers */
    ek_scope scope = ek_scope_begin();
    ek_tensor *noise = ek_empty(EK_SHAPE(GRID * GRID, GAN_NOISE, 1, 1), (ek_dtype)opt.dtype);
    int rc = random && noise ? ek_normal_(noise, 0, 1, random)
                             : ek_error(EK_E_NO_MEMORY, "no memory for noise");
    memset(pixels, 0x20, (size_t)GRID_SIDE * GRID_SIDE);
    ek_module_train(g->generator, false);
    for (int row = 0; row < GRID && rc == 0; row++) {
        ek_scope inner = ek_scope_begin();
        ek_tensor *part = ek_narrow(noise, 0, (int64_t)row * GRID, GRID);
        ek_tensor *made = ek_apply(g->generator, ek_to_device(part, g->devices.devices[0]));
        rc = ek_to_data(ek_to_dtype(ek_to_device(made, ek_cpu()), EK_F64), values, sizeof values);
        if (rc == 0)
            gan_draw_row(pixels, row, values);
        ek_scope_end(&inner);
    }
    ek_module_train(g->generator, true);
    ek_scope_end(&scope);
    ek_generator_free(random);
    ek_set_grad_enabled(had_gradients);
    return rc;
}

static int gan_write_png(const char *path, const uint8_t *pixels, int height, int width)
{
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)width,
                       .height = (png_uint_32)height,
                       .format = PNG_FORMAT_GRAY};
    if (png_image_write_to_file(&image, path, 0, pixels, 0, NULL))
        return 0;
    bool no_memory = strstr(image.message, "memory") != NULL;
    return ek_error(no_memory ? EK_E_NO_MEMORY : EK_E_IO, "%s: %s", path, image.message);
}

/* Losses and norms over steps. */
static void gan_write_charts(FILE *page, void *user)
{
    const gan *g = user;
    page_curve curves[SERIES];
    for (int i = 0; i < SERIES; i++)
        curves[i] = (page_curve){series_names[i], g->values[i], gan_count(i, g->step)};
    page_curves(page, "Critic", "critic step", &curves[CRITIC_LOSSES], 3);
    page_curves(page, "Norm of the critic's gradient", "critic step", &curves[GRADIENT_NORMS], 1);
    page_curves(page, "Generator", "step", &curves[GENERATOR_LOSSES], 1);
}

static int gan_write_page(const char *path, gan *g)
{
    char text[256];
    snprintf(text, sizeof text,
             "%s loss, %s penalty of weight %g, critic norm %s, %s on %d devices, batch %" PRId64
             ", seed %" PRId64 ", step %" PRId64,
             loss_names[opt.loss], penalty_names[opt.penalty], opt.weight, norm_names[opt.norm],
             mode_names[opt.mode], g->devices.count, opt.batch, opt.seed, g->step);
    return ek_report_html_page(path, NULL, 0,
                               &(const ek_report_page){.title = "Fashion-MNIST from noise",
                                                       .subtitle = text,
                                                       .more = gan_write_charts,
                                                       .user = g});
}

static char *gan_path(const char *name, char path[4096])
{
    snprintf(path, 4096, "%s/%s", opt.out, name);
    return path;
}

/* Writes samples-<step>.png, losses.html and checkpoint.safetensors to --out. */
static int gan_write(gan *g)
{
    static uint8_t pixels[GRID_SIDE * GRID_SIDE];
    char name[64], path[4096];
    snprintf(name, sizeof name, "samples-%06" PRId64 ".png", g->step);
    int rc = gan_draw(g, pixels);
    if (rc == 0)
        rc = gan_write_png(gan_path(name, path), pixels, GRID_SIDE, GRID_SIDE);
    if (rc == 0)
        rc = gan_write_page(gan_path("losses.html", path), g);
    return rc == 0 ? gan_save(gan_path("checkpoint.safetensors", path), g) : rc;
}

static int gan_write_json(const gan *g)
{
    json_writer json;
    int rc = json_open(&json, opt.json);
    if (rc < 0)
        return rc;
    json_begin(&json, "settings", '{');
    json_settings(&json, gan_args, "penalty weight critic-norm loss mode");
    json_integer(&json, "devices", g->devices.count);
    json_settings(&json, gan_args, "batch critic-steps steps width lr dtype seed");
    json_end(&json, '}');
    json_integer(&json, "finished_steps", g->step);
    rc = json_network(&json, "generator", g->generator);
    if (rc == 0)
        rc = json_network(&json, "critic", g->critic);
    if (rc == 0)
        rc = json_devices(&json, &g->devices);
    json_real(&json, "median_step_seconds", median_of(g->values[SECONDS], g->step));
    for (int i = 0; i < SERIES; i++)
        json_reals(&json, series_names[i], g->values[i], gan_count(i, g->step));
    return json_close(&json, opt.json, rc);
}

/* ---- the program ---- */

/* Steps until all are finished, or until *stopped after the step at hand; shows progress and, with
 * --out, writes files at every --every-th step and at the end. */
static int gan_train(gan *g, const volatile sig_atomic_t *stopped)
{
    progress_bar bar =
        progress_begin(mode_names[opt.mode], g->step, opt.steps, opt.batch * opt.critic_steps);
    int64_t written = -1; /* the last step with files: none of this run yet */
    char note[96];
    int rc = 0;
    while (rc == 0 && g->step < opt.steps && !*stopped) {
        rc = gan_step(g);
        if (rc < 0)
            break;
        int64_t last = gan_count(CRITIC_LOSSES, g->step) - 1;
        snprintf(note, sizeof note, "critic %.3f  penalty %.3f  W %.3f",
                 g->values[CRITIC_LOSSES][last], g->values[PENALTIES][last],
                 g->values[WASSERSTEIN][last]);
        progress_show(&bar, g->step, note);
        if (opt.out && g->step % opt.every == 0) {
            rc = gan_write(g);
            written = g->step;
        }
    }
    progress_end(&bar);
    return rc == 0 && opt.out && written < g->step ? gan_write(g) : rc;
}

/* Says what there is to say after the steps; returns the exit status. */
static int gan_finish(const gan *g, int argc, char **argv)
{
    char path[4096];
    if (opt.json && gan_write_json(g) < 0)
        return args_fail(FAILED);
    if (g->step < opt.steps)
        return interrupt_explain(g->step, opt.out ? gan_path("checkpoint.safetensors", path) : NULL,
                                 argc, argv);
    print_peaks(&g->devices);
    printf("Median step: %.0f ms\n", 1000 * median_of(g->values[SECONDS], g->step));
    if (opt.out)
        printf("Pictures, charts, checkpoint: %s\n", opt.out);
    return 0;
}

int main(int argc, char **argv)
{
    gan g;
    int status, rc = gan_read_args(argc, argv);
    if (rc != 0)
        return rc == ARGS_HELP ? 0 : REFUSED;
    const volatile sig_atomic_t *stopped = interrupt_catch();
    if (gan_open(&g) < 0) {
        status = args_fail(REFUSED);
        if (!g.pictures)
            pictures_explain(opt.data);
    } else {
        status = gan_train(&g, stopped) < 0 ? args_fail(FAILED) : gan_finish(&g, argc, argv);
    }
    gan_close(&g);
    return ek_shutdown() < 0 && status == 0 ? args_fail(FAILED) : status;
}
