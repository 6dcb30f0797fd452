/* test_classify.c: the parts of the classifier, and runs that are resumed with other devices. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int classify_main(int argc, char **argv);
#define main classify_main
#include "classify.c"
#undef main
#include "program.h"

/* ---- pictures: few, so that files are read at once ---- */

enum { TRAINING = 110, TESTING = 70, FEW = 10, SIDE = 28, COLOURED = 3073 };

static char directory[32], fashion[64], cifar[64];

static void write_file(const char *folder, const char *name, const uint8_t *bytes, size_t nbytes)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    ck_assert(file && fwrite(bytes, 1, nbytes, file) == nbytes && fclose(file) == 0);
}

/* As any generator of small numbers: nothing of the library runs before Check forks. */
static unsigned next_random(void)
{
    static unsigned state = 1;
    state = 1664525 * state + 1013904223;
    return state >> 16;
}

/* The class is the brightness. */
static void draw(uint8_t *pixels, int side, int class)
{
    for (int i = 0; i < side * side; i++)
        pixels[i] = (uint8_t)(25 * class + (int)(next_random() % 16));
}

static void write_mnist(const char *set, int count)
{
    const uint8_t n = (uint8_t)count,
                  images_head[16] = {0, 0, 8, 3, 0, 0, 0, n, 0, 0, 0, SIDE, 0, 0, 0, SIDE},
                  labels_head[8] = {0, 0, 8, 1, 0, 0, 0, n};
    static uint8_t images[16 + TRAINING * SIDE * SIDE], labels[8 + TRAINING];
    char name[64];
    memcpy(images, images_head, sizeof images_head);
    memcpy(labels, labels_head, sizeof labels_head);
    for (int i = 0; i < count; i++) {
        labels[8 + i] = (uint8_t)(next_random() % 10);
        draw(images + 16 + i * SIDE * SIDE, SIDE, labels[8 + i]);
    }
    snprintf(name, sizeof name, "%s-images-idx3-ubyte", set);
    write_file(fashion, name, images, (size_t)(16 + count * SIDE * SIDE));
    snprintf(name, sizeof name, "%s-labels-idx1-ubyte", set);
    write_file(fashion, name, labels, (size_t)(8 + count));
}

static void write_cifar(const char *name)
{
    static uint8_t records[FEW * COLOURED];
    for (int i = 0; i < FEW; i++) {
        records[i * COLOURED] = (uint8_t)i;
        for (int c = 0; c < 3; c++)
            draw(records + i * COLOURED + 1 + c * 1024, 32, i);
    }
    write_file(cifar, name, records, sizeof records);
}

static void make_pictures(void)
{
    char name[32];
    strcpy(directory, "/tmp/test_classify_XXXXXX");
    ck_assert(mkdtemp(directory));
    snprintf(fashion, sizeof fashion, "%s/fashion", directory);
    snprintf(cifar, sizeof cifar, "%s/cifar", directory);
    ck_assert(mkdir(fashion, 0777) == 0 && mkdir(cifar, 0777) == 0);
    write_mnist("train", TRAINING);
    write_mnist("t10k", TESTING);
    for (int i = 1; i <= 5; i++) {
        snprintf(name, sizeof name, "data_batch_%d.bin", i);
        write_cifar(name);
    }
    write_cifar("test_batch.bin");
}

static void remove_pictures(void)
{
    char command[256];
    snprintf(command, sizeof command, "rm -r %s", directory);
    ck_assert_int_eq(system(command), 0);
}

/* The sample's defaults, smaller: 5 steps an epoch, the last of 10 pictures. */
static void make_small(void)
{
    char name[] = "classify", *argv[] = {name, NULL};
    opt.lr = -1; /* as main does */
    ck_assert_int_eq(args_read(1, argv, "", option_table) + (classify_check() < 0), 0);
    opt.device = test_kind();
    opt.data = fashion;
    opt.width = 4;
    opt.batch = 25; /* does not divide by 4 */
    opt.epochs = 2;
    opt.devices = "4";
}

static void close_run(classify *c, run *r)
{
    job_free(&c->job);
    series_free(r->series, SERIES);
    assert_ok(ek_shutdown());
}

/* Takes so many steps. */
static void train(classify *c, run *r, int64_t steps)
{
    *c = (classify){.train_count = 0};
    *r = (run){.name = "test", .last = steps};
    assert_ok(classify_open(c, NULL));
    run_series(r, series_names, SERIES);
    while (run_next(r))
        run_add(r, LOSSES, job_train(&c->job, c->job.loader, NULL));
    assert_ok(ek_error_status());
    ck_assert_int_eq(r->step, steps);
}

/* Options of the same training for the program. */
static const char *small_options(int mode, const char *devices)
{
    static char text[256];
    snprintf(
        text, sizeof text,
        "--device %s --data %s --width 4 --batch 25 --epochs 2 --lr 0.1 --mode %s --devices %s",
        program_device(), fashion, mode_names[mode], devices);
    return text;
}

FIXTURE(make_pictures, remove_pictures)

/* ---- stopped and gone on with ---- */

GROUP(runs)

/* Saved on 4 devices, loaded into 2 and into other ways to train: the numbers are those of 4, but
 * for roundings, which a rate of 0.01 keeps small. */
TEST(other_devices_go_on)
{
    enum { END = 10 };
    char checkpoint[128];
    double whole[END], other[END];
    const char *options = small_options(MODE_SHARDED, "4");
    ck_assert_int_eq(program_run(classify_main, "%s --lr 0.01 --steps 9 --out %s/whole", options,
                                 directory),
                     0);
    ck_assert_int_eq(program_run(classify_main, "%s --lr 0.01 --steps 3 --out %s/half", options,
                                 directory),
                     0);
    snprintf(checkpoint, sizeof checkpoint, "%s/whole/checkpoint.safetensors", directory);
    ck_assert_int_eq(program_saved(checkpoint, "records.losses", whole, END), 9);
    for (int mode = 0; mode < MODES; mode++) {
        ck_assert_int_eq(
            program_run(classify_main,
                        "%s --lr 0.01 --steps 9 --resume %s/half/checkpoint.safetensors --out "
                        "%s/other",
                        small_options(mode, mode == MODE_SINGLE ? "1" : "2"), directory, directory),
            0);
        snprintf(checkpoint, sizeof checkpoint, "%s/other/checkpoint.safetensors", directory);
        ck_assert_int_eq(program_saved(checkpoint, "records.losses", other, END), 9);
        for (int i = 0; i < 9; i++)
            ck_assert_double_le(fabs(whole[i] - other[i]), 0.02);
    }
}

/* What a file says of shares goes before what would be measured; for other devices it is measured.
 */
TEST(plans_are_kept)
{
    char json[128];
    const char *options = small_options(MODE_AUTO, "4");
    snprintf(json, sizeof json, "%s/rest.json", directory);
    ck_assert_int_eq(program_run(classify_main, "%s --plan 10,7,5,3 --steps 2 --out %s/half",
                                 options, directory),
                     0);
    for (int devices = 4; devices >= 2; devices -= 2) {
        ck_assert_int_eq(
            program_run(classify_main,
                        "%s --devices %d --steps 3 --resume %s/half/checkpoint.safetensors --json "
                        "%s",
                        options, devices, directory, json),
            0);
        char *plan = program_lines(json, "plan");
        ck_assert_int_eq(strstr(plan, "\"10,7,5,3\"") != NULL, devices == 4);
        free(plan);
    }
}

/* ---- what is refused ---- */

TEST(other_checkpoints_are_refused)
{
    static const char *const refused[] = {"--width 6", "--lr 0.5", "--plain", "--seed 1",
                                          "--data /nowhere"};
    char path[128];
    const char *options = small_options(MODE_SINGLE, "1");
    snprintf(path, sizeof path, "%s/half/checkpoint.safetensors", directory);
    ck_assert_int_eq(program_run(classify_main, "%s --steps 1 --out %s/half", options, directory),
                     0);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(program_run(classify_main, "%s --resume %s %s", options, path, refused[i]),
                         REFUSED);
    ck_assert_int_eq(program_run(classify_main, "%s --resume %s --steps 2", options, path), 0);
    ek_named_tensor one = {"weight", ek_ones(EK_SHAPE(2))};
    assert_ok(ek_safetensors_save(path, &one, 1, NULL, 0));
    ck_assert_int_eq(program_run(classify_main, "%s --resume %s", options, path), REFUSED);
    ck_assert_int_eq(truncate(path, 20), 0);
    ck_assert_int_eq(program_run(classify_main, "%s --resume %s", options, path), REFUSED);
}

TEST(losses_must_be_numbers)
{
    ck_assert_int_eq(program_run(classify_main, "%s --lr 1e6 --momentum 0.99 --epochs 40",
                                 small_options(MODE_BALANCED, "4")),
                     FAILED);
}

TEST(runs_can_be_stopped)
{
    const volatile sig_atomic_t stopped = SIGINT;
    run r = {.name = "test", .last = 3, .stopped = &stopped};
    while (run_next(&r))
        ck_abort_msg("a step was taken");
    ck_assert_int_eq(r.step, 0);
    assert_ok(ek_error_status());
}

/* ---- parts ---- */

GROUP(parts)

/* 70 pictures in batches of 64: each once, by the running statistics, which stay. */
TEST(tests_count_each_picture_once)
{
    make_small();
    classify c;
    run r;
    double sum = 0;
    int64_t right = 0;
    train(&c, &r, 2);
    const evaluation first = classify_test(&c), second = classify_test(&c);
    assert_ok(ek_error_status());
    ck_assert_int_eq(first.count, TESTING);
    ck_assert(first.loss == second.loss && first.accuracy == second.accuracy);
    ck_assert(c.job.network->training && ek_grad_enabled());

    ek_module_train(c.job.network, false);
    ek_dataset *unseen = classify_pictures(false);
    for (int64_t i = 0; i < TESTING; i++) { /* one by one */
        ek_scope scope = ek_scope_begin();
        ek_batch one = {.data = ek_dataset_get_batch(unseen, &i, 1, ek_cpu())};
        ek_device device = c.job.devices.devices[0];
        ek_tensor *x = ek_to_device(ek_value_tensor(ek_value_at(one.data, 0)), device);
        ek_tensor *y = ek_to_device(ek_value_tensor(ek_value_at(one.data, 1)), device);
        ek_tensor *logits = ek_apply(c.job.network, x);
        assert_made(logits);
        sum += element(ek_f_cross_entropy(logits, y), 0);
        right += element(ek_argmax(logits, 1, false), 0) == element(y, 0);
        ek_scope_end(&scope);
    }
    ck_assert_double_le(fabs(first.loss - sum / TESTING), 1e-5 * sum / TESTING);
    ck_assert(first.accuracy == (double)right / TESTING);
    ek_dataset_free(unseen);
    close_run(&c, &r);
}

TEST(rates_follow_their_schedule)
{
    static const struct {
        int schedule, steps;
        double rate;
    } cases[] = {{SCHEDULE_COSINE, 5, 0.05}, {SCHEDULE_STEP, 4, 0.1}, {SCHEDULE_STEP, 5, 0.01}};
    make_small();
    opt.devices = "1";
    opt.step_epochs = 1;
    for (int i = 0; i < 3; i++) {
        classify c;
        run r;
        opt.schedule = cases[i].schedule;
        train(&c, &r, cases[i].steps);
        ck_assert_double_le(fabs(ek_optimizer_lr(c.job.optimizer, 0) - cases[i].rate), 1e-12);
        close_run(&c, &r);
    }
}

TEST(coloured_pictures_are_classified)
{
    char json[128];
    const char *options = small_options(MODE_BALANCED, "4");
    snprintf(json, sizeof json, "%s/coloured.json", directory);
    ck_assert_int_eq(program_run(classify_main,
                                 "%s --dataset cifar10 --data %s --batch 20 --epochs 1 --json %s",
                                 options, cifar, json),
                     0);
    char *lines = program_lines(json, "training_samples");
    ck_assert_ptr_nonnull(strstr(lines, ": 50"));
    free(lines);
    lines = program_lines(json, "samples");
    ck_assert_ptr_nonnull(strstr(lines, ": 10"));
    free(lines);
    ck_assert_int_eq(program_run(classify_main, "%s --data %s", options, cifar), REFUSED);
}

TEST(the_network_learns)
{
    enum { EPOCHS = 12 };
    char json[128], *at;
    double losses[EPOCHS], best;
    snprintf(json, sizeof json, "%s/learns.json", directory);
    ck_assert_int_eq(program_run(classify_main, "%s --plain --epochs 12 --lr 0.05 --json %s",
                                 small_options(MODE_BALANCED, "4"), json),
                     0);
    char *lines = at = program_lines(json, "training_loss");
    for (int i = 0; i < EPOCHS; i++)
        losses[i] = strtod(strchr(at, ':') + 1, &at);
    ck_assert_double_lt(losses[EPOCHS - 1], 0.6 * losses[0]);
    free(lines);
    lines = program_lines(json, "best_accuracy");
    best = strtod(strchr(lines, ':') + 1, NULL);
    ck_assert_double_gt(best, 0.4); /* by chance: 0.1 */
    free(lines);
}

TEST(the_network_has_its_shape)
{
    ek_module *network = resnet(3, 4, 2, false, 10);
    ek_tensor *logits = ek_apply(network, ek_randn(EK_SHAPE(2, 3, 32, 32)));
    assert_made(logits);
    ek_shape shape = ek_tensor_shape(logits), wanted = EK_SHAPE(2, 10);
    ck_assert(ek_shape_equal(&shape, &wanted));
    assert_made(ek_module_tensor(network, "stage3.1.conv2.weight"));
    ek_module_free(network);
}

TEST(records_add_up)
{
    double losses[] = {1, 2, 4}, counts[] = {2, 2, 1}, seconds[] = {3, 1, 2}, waits[] = {0.5, 0, 1},
           accuracies[] = {0.5, 0.5, 0.75};
    run r = {.series = {[LOSSES] = {"", losses, 3},
                        [COUNTS] = {"", counts, 3},
                        [SECONDS] = {"", seconds, 3},
                        [WAITS] = {"", waits, 3},
                        [ACCURACIES] = {"", accuracies, 0}}};
    const classify c = {.epoch_steps = 2};
    ck_assert(classify_sums(&c, &r, 0).loss == 1.5 && classify_sums(&c, &r, 0).seconds == 4);
    ck_assert(classify_sums(&c, &r, 1).loss == 4 && classify_sums(&c, &r, 1).waited == 1);
    ck_assert(classify_sums(&c, &r, -1).loss == 2 && classify_sums(&c, &r, -1).seconds == 6);
    ck_assert_int_eq(classify_best(&r), -1);
    r.series[ACCURACIES].count = 2;
    ck_assert_int_eq(classify_best(&r), 0); /* the first of equals */
    r.series[ACCURACIES].count = 3;
    ck_assert_int_eq(classify_best(&r), 2);
}
