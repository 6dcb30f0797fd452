/* reid.c: trains a network to tell garments of Fashion-MNIST apart that it has never seen, as
 * re-identification tells persons apart: batches of P identities with K views each, a triplet loss
 * over the hardest examples, cross entropy over the identities; ranked by features at the end.
 *
 * The triplet loss compares each view with the whole batch, of which a device has a part only. It
 * is no sum over samples, so that no criterion on each device can be exact. But it needs features
 * alone, 64 numbers per view: in every mode those of all devices and ranks are joined on the first
 * device, with a history, and backward sends each device its rows' gradient. Activations, logits
 * and cross entropy stay where they are. So N devices have one device's loss, however identities
 * are cut. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "views.h"

/* ---- settings ---- */

enum { MOST = 1 << 20, PICTURES = 60000, TEST_PICTURES = 10000 };
#define OPTIONS(ROW)                                                                             \
    JOB_OPTIONS(ROW, "20,16,16,12")                                                              \
    ROW(int, epochs, "12", 1, MOST, "passes over the training views")                            \
    ROW(int, steps, NULL, 1, MOST, "stop after so many, as if all epochs were to follow")        \
    ROW(int, batch, "64", 2, MOST, "views per step: P x K")                                      \
    ROW(int, group, "4", 2, 64, "views of an identity side by side: K")                          \
    ROW(int, width, "16", 1, 512, "channels of the first stage")                                 \
    ROW(int, blocks, "1", 1, RESNET_MOST_BLOCKS, "in each of three stages")                      \
    ROW(int, features, "64", 1, 4096, "numbers that a view is found by")                         \
    ROW(real, lr, "0.003", 0, 1e6, "learning rate of AdamW")                                     \
    ROW(real, weight_decay, "0.01", 0, 1e6, "of AdamW")                                          \
    ROW(real, warm_up, "1", 0, MOST, "epochs in which the rate rises to it")                     \
    ROW(real, gamma, "0.2", 0, 1,                                                                \
        "what the rate is multiplied by after 60 % and after 85 % of the steps")                 \
    ROW(real, margin, "0.3", 0, 1e6, "of the triplet loss")                                      \
    ROW(real, triplet, "1", 0, 1e6, "weight of the triplet loss")                                \
    ROW(real, smoothing, "0.1", 0, 1, "of the labels of cross entropy")                          \
    ROW(real, erasing, "0.5", 0, 1, "probability of random erasing")                             \
    ROW(word, dtype, "f32", args_dtype_words, "TYPE", "of parameters and views")                 \
    ROW(switch, bf16, "compute the forward pass in bf16 (autocast)")                             \
    ROW(int, identities, "1000", 2, PICTURES, "garments to train on")                            \
    ROW(int, test_identities, "250", 2, TEST_PICTURES, "others to test on")                      \
    ROW(int, views, "8", 2 * VIEW_CAMERAS, 64, "of each")                                        \
    ROW(int, seed, NULL, 0, ARG_MOST_SEED, "of views, weights, order, augmentation")             \
    ROW(folder, data, "Fashion-MNIST's files")                                                   \
    ROW(int, loader_workers, "1", 0, 64,                                                         \
        "threads that make batches; 0: none, steps wait for them")                               \
    RUN_OPTIONS(ROW,                                                                             \
                "write pictures, charts and a checkpoint there after each epoch and at the end", \
                NULL, "and each so many steps")
args_declare(OPTIONS);

static const char about[] =
    "Trains a residual network to find other views of a garment of Fashion-MNIST, and tests it\n"
    "after each epoch on garments that it was not trained on: on a single device; on several with\n"
    "outputs and loss on device 0 (classic); with features alone there (balanced); with shares of\n"
    "the batch that follow from measurements (balanced-auto); with gradients and optimizer state\n"
    "sharded (sharded). What --out wrote can be gone on with: --resume.\n\n";

static int64_t reid_epoch_steps(void)
{
    return opt.identities * (opt.views / opt.group) * opt.group / opt.batch;
}

static int reid_check(void)
{
    if (opt.views % VIEW_CAMERAS != 0)
        return args_complain("--views %" PRId64 ": a multiple of %d is needed, the number of "
                             "cameras",
                             opt.views, VIEW_CAMERAS);
    if (opt.group > opt.views)
        return args_complain("--group %" PRId64 ": an identity has only %" PRId64 " views",
                             opt.group, opt.views);
    if (opt.batch % opt.group != 0)
        return args_complain("--batch %" PRId64 ": a multiple of --group %" PRId64 " is needed",
                             opt.batch, opt.group);
    if (reid_epoch_steps() == 0)
        return args_complain("--batch %" PRId64 ": %" PRId64 " identities with %" PRId64
                             " views do not make one",
                             opt.batch, opt.identities, opt.views);
    if (opt.bf16 && opt.dtype == EK_F64)
        return args_complain("--bf16: it is for --dtype f32");
    return job_check_devices((train_mode)opt.mode, opt.device, opt.devices, opt.plan);
}

/* ---- what is trained ---- */

/* What each step measures, and what each epoch's test does. */
enum { LOSSES, TRIPLETS, SECONDS, MAPS, RANK1S, SERIES };
static const char *const series_names[SERIES] = {"losses", "triplet_losses", "step_seconds", "maps",
                                                 "rank1s"};

/* The judged features, with a name each. */
enum { PIXELS, UNTRAINED, TRAINED, JUDGED };
static const char *const judged_names[JUDGED] = {"pixels", "untrained", "trained"};

typedef struct reid {
    train_job job;
    ek_dataset *training, *test; /* views */
    int64_t epoch_steps;         /* steps in an epoch */
    retrieval found[JUDGED];
    int64_t tested; /* the step that found[TRAINED] is of; 0: none */
} reid;

static void reid_close(reid *r)
{
    job_free(&r->job);
    ek_dataset_free(r->training);
    ek_dataset_free(r->test);
}

/* Makes a schedule by which the rate rises, and falls twice. */
static ek_schedule *reid_schedule(ek_optimizer *optimizer, int64_t steps)
{
    const int64_t rising = (int64_t)(opt.warm_up * (double)reid_epoch_steps());
    const int64_t falls[] = {steps * 60 / 100 - rising, steps * 85 / 100 - rising};
    /* Falls within the warm-up are left out. */
    const int past = (falls[0] <= 0) + (falls[1] <= 0);
    ek_schedule *after =
        past == 2 ? NULL : ek_multi_step_lr_of(optimizer, opt.gamma, falls + past, 2 - past);
    if (rising == 0)
        return after;
    return ek_warm_up_lr(optimizer, 0.01, rising, after);
}

/* Makes the network from the seed, with criterion, optimizer and schedule. */
static int reid_make(void *user)
{
    reid *r = user;
    train_job *job = &r->job;
    ek_manual_seed((uint64_t)opt.seed);
    ek_module *network =
        reid_network((int)opt.width, (int)opt.blocks, (int)opt.features, (int)opt.identities);
    ek_module_to_dtype(network, (ek_dtype)opt.dtype);
    job_wrap(job, network, ek_cross_entropy_loss(.label_smoothing = opt.smoothing), job->plan,
             opt.goal);
    job->optimizer = ek_adamw(job->model, .lr = opt.lr, .weight_decay = opt.weight_decay);
    job->schedule = reid_schedule(job->optimizer, opt.epochs * r->epoch_steps);
    return ek_error_status();
}

static const double view_mean = 0.3, view_deviation = 0.33;

/* Makes the training loader: batches of P identities with K views each. */
static ek_loader *reid_loader(reid *r)
{
    ek_dataset *changed =
        ek_transformed(ek_dataset_keep(r->training), 0, ek_random_crop(VIEW_SIDE, .padding = 2),
                       ek_random_horizontal_flip(0.5), ek_to_float(),
                       ek_normalize(&view_mean, &view_deviation, 1),
                       ek_random_erasing(.p = opt.erasing, .scale = {0.02, 0.25}));
    return job_loader(&r->job, changed,
                      .sampler = views_sampler(opt.identities, opt.views, opt.group, opt.seed),
                      .batch_size = opt.batch, .drop_last = true,
                      .workers = (int)opt.loader_workers, .collate = collate_in_dtype,
                      .collate_user = &opt.dtype);
}

enum { TESTED_AT_ONCE = 64 }; /* few, so that a capacity which fits training fits tests */

/* ---- both losses ---- */

/* Returns both losses of the batch of all ranks, which is whole or cut for the devices. `triplet`
 * gets the triplet loss without its weight. */
static ek_tensor *reid_loss(train_job *job, ek_value input, ek_value target, ek_tensor **triplet)
{
    const ek_device first = job->devices.devices[0];
    ek_autocast autocast = ek_autocast_begin(opt.bf16 ? EK_BF16 : EK_F32);
    ek_value outputs = job_forward(job, input);
    ek_tensor *entropy = ek_loss(job->criterion, job_output(outputs, 1), job_rows(target));
    ek_autocast_end(&autocast);
    /* Each rank has the whole loss. ek_dist_join adds up the gradients of all ranks, and DDP
     * averages them. */
    ek_tensor *features = ek_value_tensor(ek_value_to_device(job_output(outputs, 0), first, 0));
    features = world_all(ek_to_dtype(features, (ek_dtype)opt.dtype));
    *triplet =
        f_batch_hard_triplet_loss(features, ek_value_tensor(ek_value_to_device(target, first, 0)),
                                  opt.margin);
    return ek_add(entropy, ek_mul_scalar(*triplet, opt.triplet));
}

/* Takes a step on the batch of all ranks: forward, losses, backward, optimizer and schedule. */
static int reid_train(train_job *job, ek_value input, ek_value target, double *loss,
                      double *triplet)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *part;
    int rc = job_descend(job, reid_loss(job, input, target, &part), loss);
    if (rc == 0)
        rc = ek_item(part, triplet);
    ek_scope_end(&scope);
    return rc;
}

/* Takes a step on a batch of zeros: memory and time depend on sizes alone. */
static int reid_try_batch(int64_t batch, void *user)
{
    double loss, triplet;
    ek_tensor *views = ek_zeros(EK_SHAPE(batch, 1, VIEW_SIDE, VIEW_SIDE), (ek_dtype)opt.dtype);
    ek_tensor *identities = ek_zeros(EK_SHAPE(batch), EK_I64);
    return reid_train(&((reid *)user)->job, EK_VALUE(views), EK_VALUE(identities), &loss, &triplet);
}

/* ---- testing ---- */

typedef struct extraction {
    ek_tensor *rows; /* room for all views' features: f64 on cpu */
    int64_t count;
} extraction;

static int reid_extract(ek_module *network, const ek_batch *batch, void *user)
{
    extraction *self = user;
    ek_tensor *features =
        ek_value_tensor(ek_value_to_device(ek_forward(network, batch->input), ek_cpu(), 0));
    ek_copy_(ek_narrow(self->rows, 0, self->count, batch->count), ek_to_dtype(features, EK_F64));
    self->count += batch->count;
    return ek_error_status();
}

/* Judges the test views. Each rank has a block of the views, and the blocks in the order of ranks
 * are all views. */
static retrieval reid_test(reid *r)
{
    ek_scope scope = ek_scope_begin();
    const int64_t views = opt.test_identities * opt.views;
    extraction own = {.rows = ek_empty(EK_SHAPE(views, opt.features), EK_F64)};
    retrieval found = {0};
    if (own.rows)
        loader_evaluate(r->job.tests, r->job.parallel, reid_extract, &own);
    ek_dist_raise(); /* the other ranks wait for this rank in world_all */
    if (ek_error_status() == 0)
        retrieval_of_features(world_all(ek_narrow(own.rows, 0, 0, own.count)), opt.views, &found);
    ek_scope_end(&scope);
    return found;
}

/* ---- opening ---- */

static int reid_open(reid *r, const ek_archive *from)
{
    const uint64_t seed = (uint64_t)opt.seed;
    r->epoch_steps = reid_epoch_steps();
    r->training = views_make(opt.data, true, opt.identities, opt.views, seed);
    if (r->training) /* other pictures, and another seed */
        r->test = views_make(opt.data, false, opt.test_identities, opt.views, seed + 1);
    if (!r->test)
        return ek_error_status();
    job_begin(&r->job, opt.mode, opt.device, opt.devices);
    int rc = job_prepare(&r->job, opt.plan, from, opt.batch, reid_make, reid_try_batch, r);
    if (rc < 0)
        return rc;
    r->job.loader = reid_loader(r);
    /* A rank tests its share of the views: a block of views, no view twice. */
    ek_dataset *views = ek_transformed(ek_dataset_keep(r->test), 0, ek_to_float(),
                                       ek_normalize(&view_mean, &view_deviation, 1));
    job_tests(&r->job, views, .batch_size = TESTED_AT_ONCE, .collate = collate_in_dtype,
              .collate_user = &opt.dtype, .empty_batches = false,
              .sampler = ek_distributed_inference_sampler(opt.test_identities * opt.views,
                                                          .padding = false));
    return ek_error_status();
}

/* ---- what a run writes ---- */

static void reid_write_table(FILE *page, const reid *s)
{
    fputs("<section>\n<h2>Retrieval</h2>\n<table>\n"
          "<tr><th>by</th><th>mAP</th><th>rank 1</th><th>rank 5</th></tr>\n",
          page);
    for (int i = 0; i < JUDGED; i++) {
        const retrieval *found = &s->found[i];
        if (found->queries > 0)
            fprintf(page, "<tr><td>%s</td><td>%.4f</td><td>%.4f</td><td>%.4f</td></tr>\n",
                    judged_names[i], found->map, found->rank1, found->rank5);
    }
    fputs("</table>\n</section>\n", page);
}

/* Writes results.html to --out, and nearest-<step>.png if this step was tested. */
static void reid_write(void *of, run *r)
{
    reid *s = of;
    ek_scope scope = ek_scope_begin();
    if (s->tested == r->step)
        run_picture(r, "nearest",
                    EK_OPTIONS(ek_grid_options,
                               retrieval_draw(&s->found[TRAINED], s->test, opt.views),
                               .columns = RETRIEVAL_SHOWN + 1, .pad_value = 0.5));
    ek_scope_end(&scope);
    FILE *page = run_page(r);
    if (!page)
        return;
    page_curves(page, "Losses", "step", &r->series[LOSSES], 2);
    page_curves(page, "On garments not trained on", "epoch", &r->series[MAPS], 2);
    reid_write_table(page, s);
    run_page_end(r, &s->job, "results.html", "Re-identification of garments",
                 "Width %" PRId64 ", %" PRId64 " features", opt.width, opt.features);
}

static void reid_json(const reid *s, const run *r, json_writer *json)
{
    json_write(json, "epoch_steps %jd", s->epoch_steps);
    json_network(json, "network", s->job.network);
    json_write(json, "tests [");
    for (int i = 0; i < JUDGED; i++) {
        const retrieval *found = &s->found[i];
        if (found->queries > 0)
            json_write(json, "{ by %s queries %jd map %g rank1 %g rank5 %g }", judged_names[i],
                       found->queries, found->map, found->rank1, found->rank5);
    }
    json_write(json, "]");
    json_write(json, "median_step_seconds %g", series_median(&r->series[SECONDS]));
    json_records(json, r->series, SERIES);
}

static void reid_print(const reid *s, const run *r)
{
    printf("\n%-10s %8s %8s %8s\n", "", "mAP", "rank 1", "rank 5");
    for (int i = 0; i < JUDGED; i++)
        printf("%-10s %6.2f %% %6.2f %% %6.2f %%\n", judged_names[i], 100 * s->found[i].map,
               100 * s->found[i].rank1, 100 * s->found[i].rank5);
    putchar('\n');
    job_print(&s->job);
    printf("Step %" PRId64 ": %" PRId64 " queries, %" PRId64 " garments that were not trained on. "
           "Median step: %.0f ms\n",
           r->step, s->found[TRAINED].queries, opt.test_identities,
           1000 * series_median(&r->series[SECONDS]));
}

/* ---- the program ---- */

int main(int argc, char **argv)
{
    reid s = {0};
    run r = {.about = about,
             .args = option_table,
             .format = "evenkeel reid 2",
             .deciding = "seed dtype bf16 width blocks features epochs batch group lr weight-decay "
                         "warm-up gamma margin triplet smoothing erasing identities "
                         "test-identities views",
             .written = "Pictures, charts, checkpoint",
             .draw = reid_write,
             .of = &s};
    if (!run_begin(&r, argc, argv, reid_check))
        return run_end(&r);
    if (reid_open(&s, r.from) == 0)
        retrieval_of_pixels(s.test, opt.views, &s.found[PIXELS]);
    if (ek_error_status() == 0 && !r.from)
        s.found[UNTRAINED] = reid_test(&s);
    s.found[UNTRAINED].queries = s.found[PIXELS].queries; /* the checkpoint has map and ranks */
    if (!s.test && ek_error_status() != EK_E_INVALID)
        run_hint(&r, PICTURES_HINT, opt.data);
    r.last = run_last(opt.epochs * s.epoch_steps, opt.steps);
    r.epoch = s.epoch_steps;
    run_series(&r, series_names, SERIES);
    run_keep_job(&r, &s.job);
    run_keep_numbers(&r, "untrained", &s.found[UNTRAINED].map,
                     3); /* map, rank1 and rank5 are neighbours */

    while (run_next(&r)) {
        const int64_t epoch = (r.step - 1) / s.epoch_steps, first = epoch * s.epoch_steps;
        ek_batch batch;
        double loss = 0, triplet = 0;
        if (loader_next(s.job.loader, &batch) == 0)
            reid_train(&s.job, batch.input, batch.target, &loss, &triplet);
        run_add(&r, LOSSES, loss);
        run_add(&r, TRIPLETS, triplet);
        run_add(&r, SECONDS, run_seconds(&r));
        loss = series_mean(&r.series[LOSSES], first);
        triplet = series_mean(&r.series[TRIPLETS], first);
        ek_progress_step(r.progress, 1, "epoch %" PRId64 ", loss %.4f, triplet %.4f", epoch + 1,
                         loss, triplet);
        if (r.step % s.epoch_steps == 0) {
            const retrieval found = s.found[TRAINED] = reid_test(&s);
            s.tested = r.step;
            run_add(&r, MAPS, found.map);
            run_add(&r, RANK1S, found.rank1);
            ek_progress_print(r.progress,
                              "Epoch %" PRId64 " of %" PRId64
                              ": loss %.4f, triplet %.4f, mAP %.2f %%, rank 1 %.2f %%",
                              epoch + 1, opt.epochs, loss, triplet, 100 * found.map,
                              100 * found.rank1);
        }
    }

    if (run_judges(&r) && s.tested != r.step)
        s.found[TRAINED] = reid_test(&s);
    json_writer *json = run_json(&r, &s.job);
    if (json)
        reid_json(&s, &r, json);
    if (run_prints(&r))
        reid_print(&s, &r);
    reid_close(&s);
    return run_end(&r);
}
