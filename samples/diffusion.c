/* diffusion.c: trains a denoising diffusion model (Ho et al. 2020) on Fashion-MNIST: a U-Net finds
 * the noise in pictures after any number of noising steps, with their class or without
 * (classifier-free guidance, Ho and Salimans 2022). Averages of its parameters make pictures by
 * DDIM.
 *
 * Steps, noise and dropped classes are drawn on the CPU, for the whole batch, from one generator.
 * Inputs are a list of three (noisy pictures, steps, classes), which devices and ranks cut alike.
 * So a run draws the same numbers in every mode, on any number of devices. */
#include <inttypes.h>
#include <math.h>

#include "adversary.h"
#include "frechet.h"
#include "networks.h"
#include "noising.h"

/* ---- settings ---- */

static const char *const noising_names[] = {"cosine", "linear", NULL};

enum { MOST = 1 << 20 };
#define OPTIONS(ROW)                                                                             \
    ROW(word, mode, "balanced", mode_names, "MODE", "how devices are used")                      \
    ROW(text, devices, NULL, "N", "devices; all there are unless given")                         \
    ROW(device, device, "which kind of devices")                                                 \
    ROW(int, batch, "64", 1, MOST, "pictures per step")                                          \
    ROW(int, steps, "2000", 1, MOST, "those resumed from included")                              \
    ROW(int, width, "16", DIFFUSION_GROUPS, 512,                                                 \
        "channels at 32 x 32; twice as many at each level")                                      \
    ROW(int, depth, "2", 1, 4, "how often height and width are halved")                          \
    ROW(int, noise_steps, "1000", 2, MOST, "from a picture to noise")                            \
    ROW(word, schedule, "cosine", noising_names, "KIND", "how much noise these add")             \
    ROW(real, class_dropout, "0.1", 0, 1,                                                        \
        "share of pictures that are trained on without their class")                             \
    ROW(real, lr, "0.002", 0, 1, "learning rate of AdamW")                                       \
    ROW(int, warm_up, "200", 1, MOST, "steps in which it rises to that")                         \
    ROW(real, weight_decay, "0", 0, 1e6, "of AdamW")                                             \
    ROW(real, max_norm, "1", 0, 1e6, "to which gradients are clipped; 0: none")                  \
    ROW(real, ema, "0.995", 0, 1, "decay of the network's averages")                             \
    ROW(int, sample_steps, "50", 1, MOST, "of DDIM, in which pictures are made")                 \
    ROW(real, eta, "0", 0, 1, "noise in these; 1: as much as in DDPM")                           \
    ROW(real, guidance, "2", 0, 100, "weight of the class in pictures that --out gets; 1: none") \
    ROW(int, tested, "2000", 1, 10000, "test pictures of the loss at the end")                   \
    ROW(int, judged, "1024", 0, 10000, "pictures that a run is judged by at its end")            \
    ROW(int, judge_steps, "500", 1, MOST, "of the classifier that judges")                       \
    ROW(word, dtype, "f32", args_dtype_words, "TYPE", "of parameters and pictures")              \
    ROW(switch, bf16, "compute the forward pass of training in bf16 (autocast)")                 \
    ROW(int, seed, NULL, 0, ARG_MOST_SEED, "of weights, order and noise")                        \
    ROW(folder, data, "Fashion-MNIST's files")                                                   \
    RUN_OPTIONS(ROW, "write pictures, charts and checkpoints there", "500", "steps between those")
args_declare(OPTIONS);

static const char about[] =
    "Trains a diffusion model to make Fashion-MNIST pictures (32 x 32) of noise: on a single\n"
    "device; on several with outputs and loss on device 0 (classic); with the loss on every\n"
    "device (balanced); with shares of the batch that follow from measurements (balanced-auto);\n"
    "with gradients and optimizer state sharded (sharded).\n\n";

static int diffusion_check(void)
{
    if (opt.width % DIFFUSION_GROUPS != 0)
        return args_complain("--width %" PRId64 ": a multiple of %d is needed, because channels "
                             "are normalised in so many groups",
                             opt.width, DIFFUSION_GROUPS);
    if (frechet_check_count(opt.judged) < 0)
        return -1;
    if (opt.sample_steps > opt.noise_steps)
        return args_complain("--sample-steps %" PRId64 ": at most the %" PRId64
                             " of --noise-steps are needed",
                             opt.sample_steps, opt.noise_steps);
    if (opt.guidance != 1 && (opt.class_dropout == 0 || opt.class_dropout == 1))
        return args_complain("--guidance %g: it is for networks that are trained with classes and "
                             "without; with --class-dropout %g it is 1",
                             opt.guidance, opt.class_dropout);
    if (opt.bf16 && opt.dtype == EK_F64)
        return args_complain("--bf16: it is for --dtype f32");
    return job_check_devices((train_mode)opt.mode, opt.device, opt.devices, NULL);
}

/* ---- what is trained ---- */

enum { CHANNELS = 1, SIDE = 32, CLASSES = 10, NO_CLASS = CLASSES };

/* What steps measure. */
enum { LOSSES, SECONDS, SERIES };
static const char *const series_names[SERIES] = {"losses", "step_seconds"};

typedef struct diffusion {
    train_job job;
    noising noising;
    ek_ema *average;
    ek_generator *random;  /* draws steps, noise and dropped classes */
    ek_generator *shuffle; /* draws the order of pictures */
} diffusion;

/* Makes the network from the seed, with criterion, optimizer and schedule. */
static int diffusion_make(void *user)
{
    train_job *job = &((diffusion *)user)->job;
    ek_manual_seed((uint64_t)opt.seed);
    ek_module *network = diffusion_unet(CHANNELS, (int)opt.width, (int)opt.depth, CLASSES);
    ek_module_to_dtype(network, (ek_dtype)opt.dtype);
    job_wrap(job, network, ek_mse_loss(), job->plan, EK_GOAL_MEMORY);
    job->optimizer = ek_adamw(job->model, .lr = opt.lr, .weight_decay = opt.weight_decay);
    job->schedule =
        ek_warm_up_lr(job->optimizer, 1.0 / (double)(opt.warm_up + 1), opt.warm_up, NULL);
    job->max_norm = opt.max_norm;
    job->bf16 = opt.bf16;
    return ek_error_status();
}

/* Takes a step on a batch of zeros: memory and time depend on sizes alone. */
static int diffusion_try_batch(int64_t batch, void *user)
{
    ek_tensor *pictures = ek_zeros(EK_SHAPE(batch, CHANNELS, SIDE, SIDE), (ek_dtype)opt.dtype);
    ek_tensor *numbers = ek_zeros(EK_SHAPE(batch), EK_I64);
    return job_step(&((diffusion *)user)->job, EK_LIST(pictures, numbers, numbers),
                    EK_VALUE(pictures), NULL);
}

/* Makes all but the loader, for the mode and devices of s->job. Returns 0 or a negative status;
 * close it anyway. */
static int diffusion_open_network(diffusion *s, const ek_archive *from)
{
    int rc = noising_open(&s->noising, (noising_kind)opt.schedule, opt.noise_steps);
    if (rc == 0)
        rc = job_prepare(&s->job, NULL, from, opt.batch, diffusion_make, diffusion_try_batch, s);
    if (rc < 0)
        return rc;
    s->random = ek_generator_new((uint64_t)opt.seed + 1);
    s->average = ek_ema_new(s->job.network, .decay = opt.ema);
    return ek_error_status();
}

static int diffusion_open(diffusion *s, const ek_archive *from)
{
    ek_dataset *pictures = adversary_pictures(opt.data, true, SIDE);
    if (!pictures)
        return ek_error_status();
    job_begin(&s->job, opt.mode, opt.device, opt.devices);
    s->shuffle = ek_generator_new((uint64_t)opt.seed);
    s->job.loader =
        ek_data_loader(pictures, .batch_size = opt.batch,
                       .sampler = shuffled_sampler(ek_dataset_length(pictures), s->shuffle));
    return diffusion_open_network(s, from);
}

static void diffusion_close(diffusion *s)
{
    ek_ema_free(s->average);
    job_free(&s->job);
    noising_close(&s->noising);
    ek_generator_free(s->random);
    ek_generator_free(s->shuffle);
}

/* ---- a step ---- */

/* The network's inputs, and the noise that the network has to find; all on cpu. */
typedef struct noised {
    ek_value input;
    ek_tensor *noise;
} noised;

static noised diffusion_noised(const diffusion *s, const ek_batch *batch, ek_generator *random)
{
    const ek_dtype dtype = (ek_dtype)opt.dtype;
    const noised failed = {.input = ek_value_error()};
    ek_tensor *pictures = ek_to_dtype(ek_value_tensor(batch->input), dtype);
    ek_tensor *classes = ek_value_tensor(batch->target);
    if (!pictures || !classes)
        return failed;
    const ek_shape count = ek_tensor_shape(classes);
    ek_tensor *t = ek_empty(count, EK_I64), *dropped = ek_empty(count, EK_I64);
    ek_tensor *noise = ek_empty(ek_tensor_shape(pictures), dtype);
    if (!t || !dropped || !noise || ek_random_(t, 0, opt.noise_steps, random) < 0 ||
        ek_normal_(noise, 0, 1, random) < 0 ||
        ek_bernoulli_(dropped, opt.class_dropout, random) < 0)
        return failed;
    classes = ek_where(ek_ne_scalar(dropped, 0), ek_full(NO_CLASS, count, EK_I64), classes);
    return (noised){.input = EK_LIST(noising_mix(&s->noising, pictures, noise, t), t, classes),
                    .noise = noise};
}

/* Trains on the next pictures. */
static void diffusion_step(diffusion *s, run *r)
{
    ek_batch batch;
    double loss = 0;
    if (loader_next(s->job.loader, &batch) == 0) {
        noised x = diffusion_noised(s, &batch, s->random);
        if (job_step(&s->job, x.input, EK_VALUE(x.noise), &loss) == 0)
            ek_ema_update(s->average);
    }
    run_add(r, LOSSES, loss);
    run_add(r, SECONDS, run_seconds(r));
}

/* ---- what the averaged network is worth ---- */

/* How pictures are made. */
typedef struct making {
    const noising *noising;
    noising_sampling how;
} making;

enum { MADE_AT_ONCE = 64 };

/* Makes pictures of all classes in turn. */
static ek_tensor *diffusion_make_part(int64_t first, int64_t count, ek_generator *random,
                                      void *user)
{
    const making *of = user;
    int64_t classes[MADE_AT_ONCE];
    for (int64_t i = 0; i < count; i++)
        classes[i] = opt.class_dropout == 1 ? NO_CLASS : (first + i) % CLASSES;
    return noising_sample(of->noising, &of->how, ek_from_data(classes, EK_SHAPE(count), EK_I64),
                          EK_SHAPE(count, CHANNELS, SIDE, SIDE), (ek_dtype)opt.dtype, random);
}

/* Returns pictures on cpu (count, 1, side, side) of the averaged network, always from the same
 * numbers. */
static ek_tensor *diffusion_sample(const diffusion *s, int64_t count, double guidance)
{
    making of = {.noising = &s->noising,
                 .how = {.network = s->job.network,
                         .device = s->job.devices.devices[0],
                         .steps = opt.sample_steps,
                         .eta = opt.eta,
                         .guidance = guidance,
                         .no_class = NO_CLASS}};
    return adversary_parts(s->average, (uint64_t)opt.seed + 2, count, MADE_AT_ONCE,
                           diffusion_make_part, &of);
}

/* Returns the loss of the averages on the first of these pictures, with steps and noise that are
 * the same in every run. */
static double diffusion_test(diffusion *s, ek_dataset *testing)
{
    enum { AT_ONCE = 100 };
    const int64_t length = ek_dataset_length(testing);
    const int64_t count = opt.tested < length ? opt.tested : length;
    const ek_device device = s->job.devices.devices[0];
    const bool had_gradients = ek_set_grad_enabled(false);
    ek_module *network = s->job.network;
    ek_generator *random = ek_generator_new(0);
    ek_loader *loader =
        ek_data_loader(testing, .batch_size = AT_ONCE, .sampler = ek_sequential_sampler(count));
    ek_batch batch;
    double sum = 0, loss;
    const bool averaged = ek_ema_apply(s->average) == 0;
    ek_module_train(network, false);
    while (ek_error_status() == 0 && ek_loader_next(loader, &batch) > 0) {
        ek_scope scope = ek_scope_begin();
        noised x = diffusion_noised(s, &batch, random);
        ek_value input = ek_value_to_device(x.input, device, 0);
        ek_tensor *found =
            ek_value_tensor(ek_forward(network, ek_value_at(input, 0), ek_value_at(input, 1),
                                       ek_value_at(input, 2)));
        if (ek_item(ek_f_mse_loss(found, ek_to_device(x.noise, device)), &loss) == 0)
            sum += loss * (double)batch.count;
        ek_scope_end(&scope);
    }
    ek_module_train(network, true);
    if (averaged)
        ek_ema_restore(s->average);
    ek_loader_free(loader);
    ek_generator_free(random);
    ek_set_grad_enabled(had_gradients);
    return sum / (double)count;
}

/* ---- what a run writes ---- */

enum { ROWS = 8 };

/* Writes samples-<step>.png, a column per class, and losses.html to --out. */
static void diffusion_write(void *of, run *r)
{
    diffusion *s = of;
    ek_scope scope = ek_scope_begin();
    adversary_save(r, diffusion_sample(s, (int64_t)ROWS * CLASSES, opt.guidance), CLASSES);
    ek_scope_end(&scope);
    FILE *page = run_page(r);
    if (!page)
        return;
    page_curves(page, "Loss", "step", &r->series[LOSSES], 1);
    run_page_end(r, &s->job, "losses.html", "Fashion-MNIST by diffusion",
                 "width %" PRId64 ", %s schedule of %" PRId64 " steps", opt.width,
                 noising_names[opt.schedule], opt.noise_steps);
}

/* ---- the program ---- */

int main(int argc, char **argv)
{
    enum { AVERAGED = 100 }; /* the loss of a single step depends on the noise that was drawn */
    diffusion s = {0};
    run r = {.about = about,
             .args = option_table,
             .format = "evenkeel diffusion 2",
             /* A run may be resumed in another mode and on other devices. */
             .deciding = "seed dtype bf16 width depth batch noise-steps schedule class-dropout lr "
                         "warm-up weight-decay max-norm ema",
             .written = "Pictures, charts, checkpoint",
             .draw = diffusion_write,
             .of = &s};
    frechet_result judged = {0};
    double test_loss = NAN;
    if (!run_begin(&r, argc, argv, diffusion_check))
        return run_end(&r);
    if (diffusion_open(&s, r.from) < 0 && !s.job.loader)
        run_hint(&r, PICTURES_HINT, opt.data);
    r.last = opt.steps;
    run_series(&r, series_names, SERIES);
    run_keep(&r, "",
             (ek_training_state){.model = s.job.network,
                                 .optimizer = s.job.optimizer,
                                 .schedule = s.job.schedule,
                                 .ema = s.average,
                                 .generator = s.random,
                                 .loader = s.job.loader});
    if (opt.mode == MODE_AUTO)
        run_keep_plan(&r, "plan", s.job.parallel);

    while (run_next(&r)) {
        const series *losses = &r.series[LOSSES];
        diffusion_step(&s, &r);
        ek_progress_step(r.progress, 1, "loss %.4f",
                         series_mean(losses,
                                     losses->count > AVERAGED ? losses->count - AVERAGED : 0));
    }

    if (run_judges(&r)) {
        test_loss = diffusion_test(&s, adversary_pictures(opt.data, false, SIDE));
        if (opt.judged > 0)
            frechet_judge(diffusion_sample(&s, opt.judged, 1), opt.data, opt.judge_steps,
                          (uint64_t)opt.seed, &judged);
    }
    json_writer *json = run_json(&r, &s.job);
    if (json) {
        json_network(json, "network", s.job.network);
        if (r.step == r.last)
            json_write(json, "test { pictures %jd loss %g }", opt.tested, test_loss);
        frechet_json(json, &judged);
        json_write(json, "median_step_seconds %g", series_median(&r.series[SECONDS]));
        json_records(json, r.series, SERIES);
    }
    if (run_prints(&r)) {
        job_print(&s.job);
        printf("Step %" PRId64 ": loss per pixel %.5f on %" PRId64
               " test pictures. Median step: %.0f ms\n",
               r.step, test_loss, opt.tested, 1000 * series_median(&r.series[SECONDS]));
        frechet_print(&judged);
    }
    diffusion_close(&s);
    return run_end(&r);
}
