/* classify.c: trains a residual network on Fashion-MNIST or CIFAR-10, from the files to the test:
 * augmentation, loader, schedule, checkpoints, one device or several. */
#include <inttypes.h>

#include "networks.h"
#include "run.h"

/* ---- settings ---- */

enum { FASHION_MNIST, CIFAR10 };
static const char *const set_names[] = {"fashion-mnist", "cifar10", NULL};
enum { SGD, ADAM, ADAMW };
static const char *const optimizer_names[] = {"sgd", "adam", "adamw", NULL};
enum { SCHEDULE_COSINE, SCHEDULE_STEP, SCHEDULE_NONE };
static const char *const schedule_names[] = {"cosine", "step", "none", NULL};
enum { TOGETHER, APART }; /* batch normalisation: over the whole batch, or each device's own */
static const char *const norm_names[] = {"sync-batch", "batch", NULL};

enum { MOST = 1 << 20, CLASSES = 10 };
#define OPTIONS(ROW)                                                                             \
    ROW(word, dataset, "fashion-mnist", set_names, "NAME", "what to classify")                   \
    ROW(text, data, NULL, "DIR",                                                                 \
        "its files; of fashion-mnist those of $EVENKEEL_FASHION_MNIST or Debian's package")      \
    JOB_OPTIONS(ROW, "40,32,32,24")                                                              \
    ROW(int, epochs, "8", 1, MOST, "passes over the training pictures")                          \
    ROW(int, steps, NULL, 1, MOST, "stop after so many, as if all epochs were to follow")        \
    ROW(int, batch, "128", 1, MOST, "pictures per step")                                         \
    ROW(int, width, "16", 1, 512, "channels of the first stage")                                 \
    ROW(int, blocks, "1", 1, RESNET_MOST_BLOCKS, "in each of three stages")                      \
    ROW(word, norm, "sync-batch", norm_names, "KIND", "over the whole batch, or on each device") \
    ROW(word, optimizer, "sgd", optimizer_names, "NAME", "the optimizer")                        \
    ROW(real, lr, NULL, 0, 1e6, "learning rate; 0.1, with adam(w) 0.003")                        \
    ROW(real, momentum, "0.9", 0, 1, "of sgd")                                                   \
    ROW(real, weight_decay, "0.0005", 0, 1e6, "of the optimizer")                                \
    ROW(word, schedule, "cosine", schedule_names, "KIND", "of the learning rate, to its end")    \
    ROW(int, step_epochs, "3", 1, MOST, "after which schedule step multiplies the rate")         \
    ROW(real, gamma, "0.1", 0, 1, "by which it does")                                            \
    ROW(real, smoothing, "0", 0, 1, "of the labels in training")                                 \
    ROW(switch, plain, "train on pictures as they are: neither shifted nor mirrored")            \
    ROW(int, seed, NULL, 0, ARG_MOST_SEED, "of weights, order and augmentation")                 \
    ROW(int, train_samples, NULL, 1, MOST, "train on the first so many pictures")                \
    ROW(int, test_samples, NULL, 1, MOST, "test on the first so many pictures")                  \
    ROW(int, loader_workers, "1", 0, 64,                                                         \
        "threads that make batches; 0: none, steps wait for them")                               \
    RUN_OPTIONS(ROW, "write a checkpoint there after each epoch and at the end", NULL,           \
                "and each so many steps")
args_declare(OPTIONS);

static const char about[] =
    "Trains a residual network to classify the pictures of Fashion-MNIST or CIFAR-10, and tests\n"
    "it after each epoch: " JOB_ABOUT;

static int classify_check(void)
{
    if (opt.lr < 0)
        opt.lr = opt.optimizer == SGD ? 0.1 : 0.003;
    if (!opt.data && opt.dataset == FASHION_MNIST)
        opt.data = args_pictures();
    if (!opt.data || !*opt.data)
        return args_complain("--dataset %s: --data DIR is needed, with the files of its binary "
                             "version (data_batch_1.bin to data_batch_5.bin, test_batch.bin)",
                             set_names[opt.dataset]);
    return job_check_devices((train_mode)opt.mode, opt.device, opt.devices, opt.plan);
}

/* ---- data ---- */

enum { TESTED_AT_ONCE = 64 }; /* few: a capacity that fits training fits this */

/* Mean and deviation are of the training pictures' channels, in [0, 1]. */
static const struct picture_set {
    int channels, side;
    ek_dataset *(*open)(const char *directory, bool train);
    double mean[3], deviation[3];
} picture_sets[] = {
    [FASHION_MNIST] = {1, 28, ek_mnist, {0.2860}, {0.3530}},
    [CIFAR10] = {3, 32, ek_cifar10, {0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}},
};

/* Samples are (f32 picture, i64 class). Unless --plain, each reading of a training picture changes
 * it a little. NULL on an error. */
static ek_dataset *classify_pictures(bool train)
{
    const struct picture_set *set = &picture_sets[opt.dataset];
    ek_dataset *pictures = pictures_checked(set->open(opt.data, train), opt.data,
                                            EK_SHAPE(set->channels, set->side, set->side));
    ek_transform *normalize = ek_normalize(set->mean, set->deviation, set->channels);
    if (!train || opt.plain)
        return ek_transformed(pictures, 0, ek_to_float(), normalize);
    /* Moved as bytes: a quarter of what floats are. */
    return ek_transformed(pictures, 0, ek_random_crop(set->side, .padding = 2),
                          ek_random_horizontal_flip(0.5), ek_to_float(), normalize);
}

/* ---- what is trained ---- */

/* Each step has the loss of its batch, the batch's pictures, seconds, and seconds waited for the
 * batch. Each epoch's test has loss and accuracy. */
enum { LOSSES, COUNTS, SECONDS, WAITS, TEST_LOSSES, ACCURACIES, SERIES };
static const char *const series_names[SERIES] = {"losses", "counts",      "step_seconds",
                                                 "waits",  "test_losses", "test_accuracies"};

typedef struct classify {
    train_job job;       /* network, criterion, optimizer, schedule and loaders */
    int64_t train_count; /* pictures */
    int64_t epoch_steps; /* steps in an epoch */
} classify;

/* Makes the network from the seed, and all that trains it. */
static int classify_make(void *user)
{
    classify *c = user;
    train_job *job = &c->job;
    ek_manual_seed((uint64_t)opt.seed);
    job_wrap(job,
             resnet(picture_sets[opt.dataset].channels, (int)opt.width, (int)opt.blocks,
                    opt.norm == APART, CLASSES),
             ek_cross_entropy_loss(.label_smoothing = opt.smoothing), job->plan, opt.goal);
    if (opt.optimizer == SGD)
        job->optimizer = ek_sgd(job->model, .lr = opt.lr, .weight_decay = opt.weight_decay,
                                .momentum = opt.momentum);
    else if (opt.optimizer == ADAM)
        job->optimizer = ek_adam(job->model, .lr = opt.lr, .weight_decay = opt.weight_decay);
    else
        job->optimizer = ek_adamw(job->model, .lr = opt.lr, .weight_decay = opt.weight_decay);
    /* Schedules are stepped after each step, not after each epoch. */
    if (opt.schedule == SCHEDULE_COSINE)
        job->schedule = ek_cosine_annealing_lr(job->optimizer, opt.epochs * c->epoch_steps, 0);
    else if (opt.schedule == SCHEDULE_STEP)
        job->schedule = ek_step_lr(job->optimizer, opt.step_epochs * c->epoch_steps, opt.gamma);
    return ek_error_status();
}

/* Takes a step on a batch of zeros: memory and time depend on sizes alone. The batch is whole,
 * because a wrapper does not measure batches that are cut already. */
static int classify_try_batch(int64_t batch, void *user)
{
    const struct picture_set *set = &picture_sets[opt.dataset];
    ek_tensor *pictures = ek_zeros(EK_SHAPE(batch, set->channels, set->side, set->side));
    return job_step(&((classify *)user)->job, EK_VALUE(pictures),
                    EK_VALUE(ek_zeros(EK_SHAPE(batch), EK_I64)), NULL);
}

/* Returns how many of the set's samples are used: the first `wanted`; 0: all. */
static int64_t classify_count(ek_dataset *pictures, int64_t wanted)
{
    int64_t length = ek_dataset_length(pictures);
    return wanted == 0 || wanted > length ? length : wanted;
}

/* Opens both sets first: a run without them is not begun. */
static int classify_open(classify *c, const ek_archive *from)
{
    train_job *job = &c->job;
    ek_dataset *training = classify_pictures(true);
    ek_dataset *testing = training ? classify_pictures(false) : NULL;
    if (!testing) {
        ek_dataset_free(training);
        return ek_error_status();
    }
    c->train_count = classify_count(training, opt.train_samples);
    c->epoch_steps = (c->train_count + opt.batch - 1) / opt.batch;
    job_begin(job, opt.mode, opt.device, opt.devices);
    job->loader = job_loader(job, training, .sampler = ek_random_sampler(c->train_count),
                             .batch_size = opt.batch, .workers = (int)opt.loader_workers);
    job_tests(job, testing,
              .sampler = ek_sequential_sampler(classify_count(testing, opt.test_samples)),
              .batch_size = TESTED_AT_ONCE, .workers = (int)opt.loader_workers);
    return job_prepare(job, opt.plan, from, opt.batch, classify_make, classify_try_batch, c);
}

/* ---- testing ---- */

typedef struct evaluation {
    int64_t count; /* pictures; 0: not tested since the last step */
    double loss, accuracy;
} evaluation;

static int classify_test_batch(ek_module *network, const ek_batch *batch, void *user)
{
    evaluation *sums = user;
    ek_tensor *target = ek_value_tensor(batch->target);
    ek_tensor *logits = ek_apply(network, ek_value_tensor(batch->input));
    ek_tensor *right = ek_to_dtype(ek_eq(ek_argmax(logits, 1, false), target), EK_F64);
    double loss = 0, hits = 0;
    ek_item(ek_f_cross_entropy(logits, target, .reduction = EK_SUM), &loss);
    ek_item(ek_sum(right), &hits);
    sums->accuracy += hits;
    sums->loss += loss;
    sums->count += batch->count;
    return ek_error_status();
}

/* Tests the network on all pictures that it was not trained on. */
static evaluation classify_test(classify *c)
{
    evaluation sums = {0};
    loader_evaluate(c->job.tests, c->job.network, classify_test_batch, &sums);
    sums.loss /= (double)sums.count;
    sums.accuracy /= (double)sums.count;
    return sums;
}

/* Returns the seconds that steps have waited for the training loader. */
static double classify_waited(const classify *c)
{
    ek_loader_stats stats = {0};
    ek_loader_get_stats(c->job.loader, &stats);
    return 1e-9 * (double)stats.waited_ns;
}

/* ---- results ---- */

/* Sums over the steps of an epoch, from 0 on, or over all steps (-1). */
typedef struct step_sums {
    double loss; /* a mean over pictures */
    double seconds, waited;
    double share; /* waited / seconds */
} step_sums;

static step_sums classify_sums(const classify *c, const run *r, int64_t epoch)
{
    const series *of = r->series;
    const int64_t first = epoch < 0 ? 0 : epoch * c->epoch_steps;
    const int64_t end = epoch < 0 ? of[LOSSES].count : first + c->epoch_steps;
    step_sums sums = {.seconds = series_sum(&of[SECONDS], first, end),
                      .waited = series_sum(&of[WAITS], first, end)};
    for (int64_t i = first; i < end && i < of[LOSSES].count; i++)
        sums.loss += of[LOSSES].values[i] * of[COUNTS].values[i];
    sums.loss /= series_sum(&of[COUNTS], first, end);
    sums.share = sums.seconds > 0 ? sums.waited / sums.seconds : 0;
    return sums;
}

/* Returns the samples per second of this process's steps. A checkpoint's steps do not count. */
static double classify_speed(const run *r)
{
    const double seconds = series_sum(&r->series[SECONDS], r->first, r->step);
    return seconds > 0 ? (double)((r->step - r->first) * opt.batch) / seconds : 0;
}

/* Returns the epoch with the best accuracy, the first of equals; -1 if no epoch is finished. */
static int64_t classify_best(const run *r)
{
    const series *accuracies = &r->series[ACCURACIES];
    int64_t best = accuracies->count > 0 ? 0 : -1;
    for (int64_t i = 1; i < accuracies->count; i++)
        if (accuracies->values[i] > accuracies->values[best])
            best = i;
    return best;
}

static void classify_print(const classify *c, const run *r, const evaluation *tested)
{
    const step_sums total = classify_sums(c, r, -1);
    const int64_t epochs = r->series[ACCURACIES].count, best = classify_best(r);
    if (epochs > 0)
        printf("\n%5s %14s %10s %10s %8s %8s\n", "epoch", "training loss", "test loss", "accuracy",
               "seconds", "waiting");
    for (int64_t i = 0; i < epochs; i++) {
        const step_sums of = classify_sums(c, r, i);
        printf("%5" PRId64 " %14.4f %10.4f %9.2f%% %8.1f %7.2f%%%s\n", i + 1, of.loss,
               r->series[TEST_LOSSES].values[i], 100 * r->series[ACCURACIES].values[i], of.seconds,
               100 * of.share, i == best ? "  best" : "");
    }
    putchar('\n');
    print_peaks(&c->job.devices);
    if (c->job.plan[0])
        printf("\nPlan: %s\n", c->job.plan);
    printf("\nStep %" PRId64 ": test loss %.4f, accuracy %.2f %% of %" PRId64
           " pictures. %.0f samples/s; %.2f %% of the\ntraining time was spent waiting for "
           "batches\n",
           r->step, tested->loss, 100 * tested->accuracy, tested->count, classify_speed(r),
           100 * total.share);
    if (opt.out)
        printf("Checkpoint: %s/checkpoint.safetensors\n", opt.out);
}

static void classify_json_times(json_writer *json, const step_sums *of)
{
    json_write(json, "training_seconds %g waiting_seconds %g waiting_share %g", of->seconds,
               of->waited, of->share);
}

static void classify_json(const classify *c, const run *r, const evaluation *tested,
                          json_writer *json)
{
    const step_sums total = classify_sums(c, r, -1);
    const int64_t best = classify_best(r);
    json_write(json, "training_samples %jd epoch_steps %jd", c->train_count, c->epoch_steps);
    json_network(json, "network", c->job.network);
    json_write(json, "epochs [");
    for (int64_t i = 0; i < r->series[ACCURACIES].count; i++) {
        const step_sums of = classify_sums(c, r, i);
        json_write(json, "{ training_loss %g test_loss %g test_accuracy %g", of.loss,
                   r->series[TEST_LOSSES].values[i], r->series[ACCURACIES].values[i]);
        classify_json_times(json, &of);
        json_write(json, "}");
    }
    json_write(json, "]");
    if (best >= 0)
        json_write(json, "best_accuracy %g", r->series[ACCURACIES].values[best]);
    if (tested->count > 0)
        json_write(json, "test { samples %jd loss %g accuracy %g }", tested->count, tested->loss,
                   tested->accuracy);
    json_write(json, "samples_per_second %g", classify_speed(r));
    classify_json_times(json, &total);
}

/* ---- the program ---- */

int main(int argc, char **argv)
{
    run r = {.about = about,
             .args = option_table,
             .format = "evenkeel classify 2",
             .deciding = "dataset train-samples plain seed epochs batch width blocks norm "
                         "optimizer lr momentum weight-decay schedule step-epochs gamma smoothing"};
    classify c = {0};
    evaluation tested = {0};
    opt.lr = -1; /* until the optimizer is known */
    if (!run_begin(&r, argc, argv, classify_check))
        return run_end(&r);
    classify_open(&c, r.from);
    if (!c.job.tests && opt.dataset == CIFAR10)
        run_hint(&r,
                 "--data %s must hold the six files of CIFAR-10's binary version: "
                 "data_batch_1.bin to data_batch_5.bin and test_batch.bin",
                 opt.data);
    else if (!c.job.tests)
        run_hint(&r, PICTURES_HINT, opt.data);
    r.last = run_last(opt.epochs * c.epoch_steps, opt.steps);
    r.epoch = c.epoch_steps;
    run_series(&r, series_names, SERIES);
    run_keep_job(&r, &c.job);

    while (run_next(&r)) {
        const int64_t epoch = (r.step - 1) / c.epoch_steps;
        const double waited = classify_waited(&c);
        int64_t pictures;
        run_add(&r, LOSSES, job_train(&c.job, c.job.loader, &pictures));
        run_add(&r, COUNTS, (double)pictures);
        run_add(&r, SECONDS, run_seconds(&r));
        run_add(&r, WAITS, classify_waited(&c) - waited);
        ek_progress_step(r.progress, 1, "epoch %" PRId64 ", loss %.4f", epoch + 1,
                         classify_sums(&c, &r, epoch).loss);
        tested.count = 0;
        if (r.step % c.epoch_steps != 0)
            continue;
        tested = classify_test(&c);
        run_add(&r, TEST_LOSSES, tested.loss);
        run_add(&r, ACCURACIES, tested.accuracy);
        ek_progress_print(r.progress,
                          "Epoch %" PRId64 " of %" PRId64
                          ": training loss %.4f, test loss %.4f, accuracy %.2f %%, %.0f s",
                          epoch + 1, opt.epochs, classify_sums(&c, &r, epoch).loss, tested.loss,
                          100 * tested.accuracy, classify_sums(&c, &r, epoch).seconds);
    }

    if (run_judges(&r) && tested.count == 0)
        tested = classify_test(&c);
    json_writer *json = run_json(&r, &c.job);
    if (json)
        classify_json(&c, &r, &tested, json);
    if (run_prints(&r))
        classify_print(&c, &r, &tested);
    job_free(&c.job);
    return run_end(&r);
}
