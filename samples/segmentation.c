/* segmentation.c: trains a U-Net to label every pixel of cluttered scenes of Fashion-MNIST's
 * pictures, on one device or several: a loss of two terms, pictures and labels that are cropped and
 * mirrored alike, intersection over union by class.
 *
 * The loss is cross entropy plus Dice. Their denominators differ: cross entropy is a mean over the
 * pixels that count, of which each device has another number, and Dice a mean over samples. So each
 * is a criterion of its own, exact over devices and ranks by itself, and the two means are added.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "scenes.h"

/* ---- settings ---- */

static const char *const up_names[] = {"transposed", "bilinear", NULL};
enum { TOGETHER, APART }; /* batch normalisation: over the whole batch, or each device's own */
static const char *const norm_names[] = {"sync-batch", "batch", NULL};

enum { MOST = 1 << 20 };
#define OPTIONS(ROW)                                                                             \
    JOB_OPTIONS(ROW, "5,4,4,3")                                                                  \
    ROW(int, epochs, "20", 1, MOST, "passes over the training scenes")                           \
    ROW(int, steps, NULL, 1, MOST, "stop after so many, as if all epochs were to follow")        \
    ROW(int, batch, "16", 1, MOST, "scenes per step")                                            \
    ROW(int, width, "16", 1, 512, "channels of the first level")                                 \
    ROW(int, depth, "3", 1, 6, "how often height and width are halved")                          \
    ROW(word, upsample, "transposed", up_names, "KIND", "how they are doubled again")            \
    ROW(word, norm, "sync-batch", norm_names, "KIND",                                            \
        "batch normalisation over the whole batch, or on each device")                           \
    ROW(real, lr, "0.003", 0, 1e6, "learning rate of AdamW at the first step")                   \
    ROW(real, power, "0.9", 0, 100, "with which it falls to 0")                                  \
    ROW(real, weight_decay, "0.01", 0, 1e6, "of AdamW")                                          \
    ROW(real, dice, "1", 0, 1e6, "weight of the Dice loss beside cross entropy")                 \
    ROW(word, dtype, "f32", args_dtype_words, "TYPE", "of parameters and scenes")                \
    ROW(switch, bf16, "compute the forward pass in bf16 (autocast)")                             \
    ROW(int, size, "64", PICTURE, 1024, "height and width of a scene")                           \
    ROW(int, crop, "48", 2, 1024, "height and width of what is trained on")                      \
    ROW(int, scenes, "2048", 1, MOST, "training scenes")                                         \
    ROW(int, test_scenes, "512", 1, MOST, "test scenes")                                         \
    ROW(int, seed, NULL, 0, ARG_MOST_SEED, "of scenes, weights, order and crops")                \
    ROW(folder, data, "Fashion-MNIST's files")                                                   \
    ROW(int, loader_workers, "1", 0, 64,                                                         \
        "threads that make batches; 0: none, steps wait for them")                               \
    RUN_OPTIONS(ROW,                                                                             \
                "write pictures, charts and a checkpoint there after each epoch and at the end", \
                NULL, "and each so many steps")
args_declare(OPTIONS);

static const char about[] =
    "Trains a U-Net to label the pixels of cluttered scenes of Fashion-MNIST's pictures, and "
    "tests\n"
    "it after each epoch: " JOB_ABOUT;

static int segmentation_check(void)
{
    const int64_t unit = (int64_t)1 << opt.depth;
    if (opt.size % unit != 0)
        return args_complain("--size %" PRId64 ": a multiple of %" PRId64
                             " is needed, which --depth %" PRId64 " can halve",
                             opt.size, unit, opt.depth);
    if (opt.crop % unit != 0 || opt.crop > opt.size)
        return args_complain("--crop %" PRId64 ": a multiple of %" PRId64 " up to %" PRId64
                             " is needed",
                             opt.crop, unit, opt.size);
    if (opt.bf16 && opt.dtype == EK_F64)
        return args_complain("--bf16: it is for --dtype f32");
    return job_check_devices((train_mode)opt.mode, opt.device, opt.devices, opt.plan);
}

/* ---- what is trained ---- */

/* What each step measures, and what each epoch's test does. */
enum { LOSSES, SECONDS, MEAN_IOUS, SERIES };
static const char *const series_names[SERIES] = {"losses", "step_seconds", "mean_ious"};

typedef struct segmentation {
    train_job job;                         /* its criteria are cross entropy, and Dice */
    ek_dataset *training, *test;           /* scenes */
    int64_t epoch_steps;                   /* steps in an epoch */
    confusion_matrix found, by_brightness; /* of the test scenes: by the network, and without */
    int64_t tested;                        /* the step that `found` is of; 0: none */
} segmentation;

static void segmentation_close(segmentation *s)
{
    job_free(&s->job);
    ek_dataset_free(s->training);
    ek_dataset_free(s->test);
}

/* Makes the network from the seed, with criteria, optimizer and schedule. */
static int segmentation_make(void *user)
{
    segmentation *s = user;
    train_job *job = &s->job;
    ek_manual_seed((uint64_t)opt.seed);
    ek_module *network = unet(1, (int)opt.width, (int)opt.depth, (unet_up)opt.upsample,
                              opt.norm == APART, SCENE_CLASSES);
    ek_module_to_dtype(network, (ek_dtype)opt.dtype);
    job_wrap(job, network, ek_cross_entropy_loss(.ignore_index = SCENE_IGNORED), job->plan,
             opt.goal);
    job->other = job_criterion(job, dice_loss());
    job->optimizer = ek_adamw(job->model, .lr = opt.lr, .weight_decay = opt.weight_decay);
    job->schedule = ek_polynomial_lr(job->optimizer, opt.epochs * s->epoch_steps, opt.power);
    return ek_error_status();
}

/* Returns the loss of a batch, which is whole or cut for the devices. */
static ek_tensor *segmentation_loss(train_job *job, ek_value input, ek_value target)
{
    ek_autocast autocast = ek_autocast_begin(opt.bf16 ? EK_BF16 : EK_F32);
    ek_value logits = job_forward(job, input);
    target = job_rows(target);
    ek_tensor *loss = ek_loss(job->criterion, logits, target);
    if (opt.dice > 0)
        loss = ek_add(loss, ek_mul_scalar(ek_loss(job->other, logits, target), opt.dice));
    ek_autocast_end(&autocast);
    return loss;
}

/* Takes a step on the batch of all ranks: forward, loss, backward, optimizer and schedule. */
static int segmentation_train(train_job *job, ek_value input, ek_value target, double *loss)
{
    ek_scope scope = ek_scope_begin();
    int rc = job_descend(job, segmentation_loss(job, input, target), loss);
    ek_scope_end(&scope);
    return rc;
}

/* Takes a step on a batch of zeros: memory and time depend on sizes alone. */
static int segmentation_try_batch(int64_t batch, void *user)
{
    double loss;
    ek_tensor *scenes = ek_zeros(EK_SHAPE(batch, 1, opt.crop, opt.crop), (ek_dtype)opt.dtype);
    ek_tensor *labels = ek_zeros(EK_SHAPE(batch, opt.crop, opt.crop), EK_I64);
    return segmentation_train(&((segmentation *)user)->job, EK_VALUE(scenes), EK_VALUE(labels),
                              &loss);
}

/* Scenes and their labels are cropped and mirrored alike, with new numbers at each read. */
static ek_loader *segmentation_loader(segmentation *s)
{
    ek_dataset *crops =
        ek_transformed_alike(ek_dataset_keep(s->training),
                             EK_FIELD(0, ek_random_crop(opt.crop), ek_random_horizontal_flip(0.5)),
                             EK_FIELD(1, ek_random_crop(opt.crop), ek_random_horizontal_flip(0.5)));
    return job_loader(&s->job, crops, .sampler = ek_random_sampler(opt.scenes),
                      .batch_size = opt.batch, .workers = (int)opt.loader_workers,
                      .collate = collate_in_dtype, .collate_user = &opt.dtype);
}

static int segmentation_open(segmentation *s, const ek_archive *from)
{
    const uint64_t seed = (uint64_t)opt.seed;
    s->epoch_steps = (opt.scenes + opt.batch - 1) / opt.batch;
    s->training = scenes_make(opt.data, true, SCENE_CLUTTERED, opt.scenes, opt.size, seed);
    if (s->training) /* other pictures, and another seed */
        s->test =
            scenes_make(opt.data, false, SCENE_CLUTTERED, opt.test_scenes, opt.size, seed + 1);
    if (!s->test)
        return ek_error_status();
    job_begin(&s->job, opt.mode, opt.device, opt.devices);
    int rc = job_prepare(&s->job, opt.plan, from, opt.batch, segmentation_make,
                         segmentation_try_batch, s);
    if (rc == 0)
        s->job.loader = segmentation_loader(s);
    return ek_error_status();
}

static void segmentation_test(segmentation *s, int64_t step)
{
    s->tested = step;
    confusion_of(s->job.network, s->job.devices.devices[0], (ek_dtype)opt.dtype, s->test,
                 &s->found);
}

/* ---- what a run writes ---- */

enum { DRAWN = 8 };

/* Returns the first test scenes, each as a picture, its labels and the network's labels: u8
 * pictures on cpu. NULL on an error. */
static ek_tensor *segmentation_draw(segmentation *s)
{
    ek_module *network = s->job.network;
    const int64_t size = opt.size;
    const bool had_gradients = ek_set_grad_enabled(false);
    ek_value scenes = dataset_first(s->test, DRAWN);
    ek_tensor *pictures = ek_value_tensor(ek_value_at(scenes, 0));
    ek_module_train(network, false);
    ek_tensor *logits = ek_apply(network, ek_to_device(ek_to_dtype(pictures, (ek_dtype)opt.dtype),
                                                       s->job.devices.devices[0]));
    ek_module_train(network, true);
    ek_tensor *bytes = ek_to_dtype(ek_mul_scalar(pictures, 255), EK_U8);
    ek_tensor *of_scene[] = {
        ek_expand(bytes, EK_SHAPE(DRAWN, 3, size, size)),
        scenes_colour(ek_value_tensor(ek_value_at(scenes, 1))),
        scenes_colour(ek_to_device(ek_argmax(logits, 1, false), ek_cpu())),
    };
    ek_tensor *drawn = ek_reshape(ek_stack(of_scene, 3, 1), EK_SHAPE(3 * DRAWN, 3, size, size));
    ek_set_grad_enabled(had_gradients);
    return drawn;
}

static void segmentation_write_table(FILE *page, const segmentation *s)
{
    fputs("<section>\n<h2>Intersection over union</h2>\n<table>\n"
          "<tr><th></th><th>class</th><th>network</th><th>brightness alone</th></tr>\n",
          page);
    for (int i = 0; i < SCENE_CLASSES; i++) {
        const uint8_t *c = scene_labels[i].colour;
        fprintf(page,
                "<tr><td style=\"background:#%02x%02x%02x\"></td><td>%s</td><td>%.4f</td>"
                "<td>%.4f</td></tr>\n",
                c[0], c[1], c[2], scene_labels[i].name, confusion_iou(&s->found, i),
                confusion_iou(&s->by_brightness, i));
    }
    fputs("</table>\n</section>\n", page);
}

/* Writes scenes-<step>.png and results.html to --out. */
static void segmentation_write(void *of, run *r)
{
    segmentation *s = of;
    ek_scope scope = ek_scope_begin();
    run_picture(r, "scenes",
                EK_OPTIONS(ek_grid_options, segmentation_draw(s), .columns = 6, .pad_value = 0.5));
    ek_scope_end(&scope);
    FILE *page = run_page(r);
    if (!page)
        return;
    page_curves(page, "Loss", "step", &r->series[LOSSES], 1);
    page_curves(page, "Mean IoU on the test scenes", "epoch", &r->series[MEAN_IOUS], 1);
    if (s->tested > 0)
        segmentation_write_table(page, s);
    run_page_end(r, &s->job, "results.html", "Segmentation of cluttered scenes",
                 "U-Net of width %" PRId64 " and depth %" PRId64, opt.width, opt.depth);
}

static void segmentation_json_test(const confusion_matrix *of, const char *name, json_writer *json)
{
    double ious[SCENE_CLASSES];
    for (int i = 0; i < SCENE_CLASSES; i++)
        ious[i] = confusion_iou(of, i);
    json_write(json, "test { by %s mean_iou %g pixel_accuracy %g", name, confusion_mean_iou(of),
               confusion_accuracy(of));
    json_series(json, "ious", &(const series){.values = ious, .count = SCENE_CLASSES});
    json_write(json, "}");
}

static void segmentation_json(const segmentation *s, const run *r, json_writer *json)
{
    json_write(json, "epoch_steps %jd", s->epoch_steps);
    json_network(json, "network", s->job.network);
    if (s->tested > 0)
        segmentation_json_test(&s->found, "network", json);
    segmentation_json_test(&s->by_brightness, "brightness", json);
    json_write(json, "median_step_seconds %g", series_median(&r->series[SECONDS]));
    json_records(json, r->series, SERIES);
}

static void segmentation_print(const segmentation *s, const run *r)
{
    printf("\n%-10s %8s %17s\n", "IoU", "network", "brightness alone");
    for (int i = 0; i < SCENE_CLASSES; i++)
        printf("%-10s %8.4f %17.4f\n", scene_labels[i].name, confusion_iou(&s->found, i),
               confusion_iou(&s->by_brightness, i));
    printf("%-10s %8.4f %17.4f\n", "mean", confusion_mean_iou(&s->found),
           confusion_mean_iou(&s->by_brightness));
    printf("%-10s %8.4f %17.4f\n\n", "pixels", confusion_accuracy(&s->found),
           confusion_accuracy(&s->by_brightness));
    job_print(&s->job);
    printf("Step %" PRId64 ": mean IoU %.4f on %" PRId64 " test scenes. Median step: %.0f ms\n",
           r->step, confusion_mean_iou(&s->found), opt.test_scenes,
           1000 * series_median(&r->series[SECONDS]));
}

/* ---- the program ---- */

int main(int argc, char **argv)
{
    segmentation s = {0};
    run r = {.about = about,
             .args = option_table,
             .format = "evenkeel segmentation 1",
             .deciding = "seed dtype bf16 width depth upsample norm epochs batch lr power "
                         "weight-decay dice size crop scenes test-scenes",
             .written = "Pictures, charts, checkpoint",
             .draw = segmentation_write,
             .of = &s};
    if (!run_begin(&r, argc, argv, segmentation_check))
        return run_end(&r);
    if (segmentation_open(&s, r.from) < 0 && !s.test)
        run_hint(&r, PICTURES_HINT, opt.data);
    else if (s.job.loader)
        confusion_of_brightness(s.training, s.test, &s.by_brightness);
    r.last = run_last(opt.epochs * s.epoch_steps, opt.steps);
    r.epoch = s.epoch_steps;
    run_series(&r, series_names, SERIES);
    run_keep_job(&r, &s.job);

    while (run_next(&r)) {
        const int64_t epoch = (r.step - 1) / s.epoch_steps;
        ek_batch batch;
        double loss = 0;
        if (loader_next(s.job.loader, &batch) == 0)
            segmentation_train(&s.job, batch.input, batch.target, &loss);
        run_add(&r, LOSSES, loss);
        run_add(&r, SECONDS, run_seconds(&r));
        loss = series_mean(&r.series[LOSSES], epoch * s.epoch_steps);
        ek_progress_step(r.progress, 1, "epoch %" PRId64 ", loss %.4f", epoch + 1, loss);
        if (r.step % s.epoch_steps == 0) {
            segmentation_test(&s, r.step);
            run_add(&r, MEAN_IOUS, confusion_mean_iou(&s.found));
            ek_progress_print(r.progress,
                              "Epoch %" PRId64 " of %" PRId64 ": loss %.4f, mean IoU %.4f",
                              epoch + 1, opt.epochs, loss, confusion_mean_iou(&s.found));
        }
    }

    if (run_judges(&r) && s.tested != r.step)
        segmentation_test(&s, r.step);
    json_writer *json = run_json(&r, &s.job);
    if (json)
        segmentation_json(&s, &r, json);
    if (run_prints(&r))
        segmentation_print(&s, &r);
    segmentation_close(&s);
    return run_end(&r);
}
