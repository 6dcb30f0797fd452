/* test_classify.c: the parts of the classifier, and what it claims: runs that are stopped and gone
 * on with are those that were not, in every mode. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "classify/checkpoint.h"
#include "classify/network.h"
#include "classify/train.h"
#include "unit.h"

/* ---- pictures: few, so that files are read at once ---- */

enum { TRAINING = 110, TESTING = 70, FEW = 10, SIDE = 28, COLOURED = 3073 };

static char directory[32], checkpoint[64], fashion[64], cifar[64];

static void write_file(const char *folder, const char *name, const uint8_t *bytes, size_t nbytes)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
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

    memcpy(images, images_head, sizeof(images_head));
    memcpy(labels, labels_head, sizeof(labels_head));
    for (int i = 0; i < count; i++) {
        labels[8 + i] = (uint8_t)(next_random() % 10);
        draw(images + 16 + i * SIDE * SIDE, SIDE, labels[8 + i]);
    }
    snprintf(name, sizeof(name), "%s-images-idx3-ubyte", set);
    write_file(fashion, name, images, (size_t)(16 + count * SIDE * SIDE));
    snprintf(name, sizeof(name), "%s-labels-idx1-ubyte", set);
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
    write_file(cifar, name, records, sizeof(records));
}

static void make_pictures(void)
{
    char name[32];

    strcpy(directory, "/tmp/test_classify_XXXXXX");
    ck_assert(mkdtemp(directory));
    snprintf(fashion, sizeof(fashion), "%s/fashion", directory);
    snprintf(cifar, sizeof(cifar), "%s/cifar", directory);
    snprintf(checkpoint, sizeof(checkpoint), "%s/checkpoint", directory);
    ck_assert(mkdir(fashion, 0777) == 0 && mkdir(cifar, 0777) == 0);
    write_mnist("train", TRAINING);
    write_mnist("t10k", TESTING);
    for (int i = 1; i <= 5; i++) {
        snprintf(name, sizeof(name), "data_batch_%d.bin", i);
        write_cifar(name);
    }
    write_cifar("test_batch.bin");
}

static void remove_pictures(void)
{
    char command[256];

    snprintf(command, sizeof(command), "rm -r %s", directory);
    ck_assert_int_eq(system(command), 0);
}

/* The sample's defaults, smaller: 5 steps an epoch, the last of 10 pictures. */
static run_settings small(void)
{
    run_settings settings;
    char name[] = "classify", *argv[] = {name, NULL};

    ck_assert_int_eq(settings_parse(&settings, 1, argv), 0);
    settings.kind = test_kind();
    settings.data = fashion;
    settings.width = 4;
    settings.batch = 25; /* does not divide by 4 */
    settings.epochs = 2;
    settings.device_text = "4";
    return settings;
}

static void open_run(train_run *run, const run_settings *settings)
{
    ek_device_list devices = settings_devices(settings);

    assert_ok(train_open(run, settings, &devices));
}

static void train_to(train_run *run, int64_t step)
{
    while (run->step < step)
        assert_ok(train_step(run));
}

/* ---- stopped and gone on with ---- */

enum { END = 10 };

static void finish(train_run *run, char sha256[65])
{
    train_to(run, END);
    assert_ok(ek_module_sha256(run->job.network, sha256));
}

/* Stopped after `step` steps, with `workers` loader threads then and the other number afterwards.
 */
static void stop_and_go_on(const run_settings *settings, int64_t step, int workers, char sha256[65],
                           run_records *records)
{
    train_run run;
    run_settings own = *settings;

    own.workers = workers;
    open_run(&run, &own);
    train_to(&run, step);
    assert_ok(checkpoint_save(checkpoint, &run));
    assert_ok(train_close(&run));
    own.workers = 1 - workers;
    own.resume = checkpoint;
    open_run(&run, &own);
    ck_assert_int_eq(run.step, step);
    finish(&run, sha256);
    *records = run.records;
    run.records.epochs = NULL;
    assert_ok(train_close(&run));
}

/* In the first epoch, at its end, in the second. */
START_TEST(resumed_runs_are_the_same)
{
    static const int64_t stops[] = {1, 5, 8};
    const int count = (int)(sizeof(stops) / sizeof(stops[0]));
    run_settings settings = small();
    train_run run;
    char whole[65], resumed[65];

    settings.mode = (train_mode)_i;
    if (settings.mode == MODE_SINGLE)
        settings.device_text = "1";
    if (settings.mode == MODE_AUTO && test_kind() == EK_HOST)
        settings.device_text = "64M,64M,32M,32M"; /* something to level */
    open_run(&run, &settings);
    finish(&run, whole);
    const run_records wanted = run.records;
    run.records.epochs = NULL;
    assert_ok(train_close(&run));
    for (int i = 0; i < count; i++) {
        run_records records;
        stop_and_go_on(&settings, stops[i], i % 2, resumed, &records);
        ck_assert_str_eq(whole, resumed);
        ck_assert_int_eq(records.count, 2);
        for (int e = 0; e < 2; e++) {
            ck_assert(records.epochs[e].train_loss == wanted.epochs[e].train_loss);
            ck_assert(records.epochs[e].test_loss == wanted.epochs[e].test_loss);
            ck_assert(records.epochs[e].test_accuracy == wanted.epochs[e].test_accuracy);
        }
        records_close(&records);
    }
    free(wanted.epochs);
}
END_TEST

static double largest_difference(const double *a, const double *b, int count)
{
    double largest = 0;

    for (int i = 0; i < count; i++) /* NaN is large */
        largest = fabs(a[i] - b[i]) <= largest ? largest : fabs(a[i] - b[i]);
    return largest;
}

/* The losses of the last steps, which end in `losses`. */
static void last_losses(train_run *run, double *losses)
{
    for (int i = 0; run->step < END - 1; i++) {
        double before = run->records.now.loss;
        int64_t step = run->step;
        assert_ok(train_step(run));
        losses[i] = step % run->epoch_steps == run->epoch_steps - 1
                        ? run->records.epochs[run->records.count - 1].train_loss
                        : run->records.now.loss - before;
    }
}

/* Saved on 4 devices, loaded into 2 and into other ways to train: the numbers are those of 4, but
 * for roundings. */
START_TEST(other_devices_go_on)
{
    run_settings settings = small();
    train_run run;
    double whole[END], other[END];
    const int64_t stop = 3, count = END - 1 - stop;

    settings.mode = MODE_SHARDED;
    settings.lr = 0.01; /* roundings don't grow much in six steps */
    open_run(&run, &settings);
    train_to(&run, stop);
    assert_ok(checkpoint_save(checkpoint, &run));
    last_losses(&run, whole);
    assert_ok(train_close(&run));
    settings.resume = checkpoint;
    for (int mode = 0; mode < MODES; mode++) {
        settings.mode = (train_mode)mode;
        settings.device_text = mode == MODE_SINGLE ? "1" : "2";
        open_run(&run, &settings);
        last_losses(&run, other);
        ck_assert_double_le(largest_difference(whole, other, (int)count), 0.02);
        assert_ok(train_close(&run));
    }
}
END_TEST

/* What a file says of shares goes before what would be measured; for other devices it is measured.
 */
START_TEST(plans_are_kept)
{
    run_settings settings = small();
    train_run run;

    settings.mode = MODE_AUTO;
    settings.plan = "10,7,5,3";
    open_run(&run, &settings);
    train_to(&run, 2);
    assert_ok(checkpoint_save(checkpoint, &run));
    assert_ok(train_close(&run));
    settings.plan = NULL;
    settings.resume = checkpoint;
    open_run(&run, &settings);
    ck_assert_str_eq(run.job.plan, "10,7,5,3");
    assert_ok(train_step(&run));
    assert_ok(train_close(&run));
    settings.device_text = "2";
    open_run(&run, &settings);
    ck_assert_int_eq(ek_plan_check(run.job.plan, 2), 0);
    assert_ok(train_step(&run));
    assert_ok(train_close(&run));
}
END_TEST

/* ---- what is refused ---- */

static void refuse(const run_settings *settings, int status, const char *part)
{
    train_run run;
    ek_device_list devices = settings_devices(settings);

    ck_assert_int_eq(train_open(&run, settings, &devices), status);
    assert_error(status, part);
    assert_ok(train_close(&run));
}

START_TEST(other_checkpoints_are_refused)
{
    run_settings settings = small(), other;
    train_run run;
    ek_named_tensor one = {"weight", NULL};

    open_run(&run, &settings);
    train_to(&run, 1);
    assert_ok(checkpoint_save(checkpoint, &run));
    assert_ok(train_close(&run));
    settings.resume = checkpoint;
    other = settings;
    other.width = 6;
    refuse(&other, EK_E_INVALID, "was made with --width 4, not 6");
    other = settings;
    other.lr = 0.5;
    refuse(&other, EK_E_INVALID, "was made with --lr 0.1");
    other = settings;
    other.plain = true;
    refuse(&other, EK_E_INVALID, "was made with --plain off, not on");
    other = settings;
    other.seed = 1;
    refuse(&other, EK_E_INVALID, "was made with --seed 0, not 1");
    settings.steps = 1; /* may be */
    open_run(&run, &settings);
    assert_ok(train_close(&run));
    one.tensor = ek_ones(EK_SHAPE(2));
    assert_ok(ek_safetensors_save(checkpoint, &one, 1, NULL, 0));
    refuse(&settings, EK_E_FORMAT, "a checkpoint of this program");
    ck_assert_int_eq(truncate(checkpoint, 20), 0);
    refuse(&settings, EK_E_FORMAT, checkpoint);
}
END_TEST

START_TEST(missing_pictures_are_told)
{
    run_settings settings = small();
    train_run run;
    ek_device_list devices = settings_devices(&settings);

    settings.data = "/nowhere";
    ck_assert_int_eq(train_open(&run, &settings, &devices), EK_E_IO);
    ck_assert(!run.has_data);
    assert_error(EK_E_IO, "/nowhere");
    assert_ok(train_close(&run));
}
END_TEST

START_TEST(losses_must_be_numbers)
{
    run_settings settings = small();
    train_run run;
    const volatile sig_atomic_t stopped = 0;

    settings.lr = 1e6;
    settings.momentum = 0.99;
    settings.epochs = 40;
    open_run(&run, &settings);
    ck_assert_int_eq(train_steps(&run, &stopped), EK_E_INVALID);
    assert_error(EK_E_INVALID, "a smaller --lr may help");
    ck_assert_int_lt(run.step, run.last_step);
    assert_ok(train_close(&run));
}
END_TEST

START_TEST(runs_can_be_stopped)
{
    run_settings settings = small();
    train_run run;
    const volatile sig_atomic_t stopped = 1;

    open_run(&run, &settings);
    assert_ok(train_steps(&run, &stopped));
    ck_assert_int_eq(run.step, 0);
    ck_assert_int_eq(run.tested.count, 0);
    assert_ok(train_close(&run));
}
END_TEST

/* ---- parts ---- */

/* 70 pictures in batches of 64: each once, by the running statistics, which stay. */
START_TEST(tests_count_each_picture_once)
{
    run_settings settings = small();
    train_run run;
    evaluation first, second;
    double sum = 0;
    int64_t right = 0;

    open_run(&run, &settings);
    train_to(&run, 2);
    assert_ok(evaluate(run.job.network, run.testing, &first));
    assert_ok(evaluate(run.job.network, run.testing, &second));
    ck_assert_int_eq(first.count, TESTING);
    ck_assert(first.loss == second.loss && first.accuracy == second.accuracy);
    ck_assert(run.job.network->training && ek_grad_enabled());

    ek_dataset *pictures = data_open(&settings, false);
    ek_module_train(run.job.network, false);
    for (int64_t i = 0; i < TESTING; i++) { /* one by one */
        ek_scope scope = ek_scope_begin();
        ek_batch one = {.data = ek_dataset_get_batch(pictures, &i, 1, ek_cpu())};
        ek_device device = run.job.devices.devices[0];
        ek_tensor *x = ek_to_device(ek_value_tensor(ek_value_at(one.data, 0)), device);
        ek_tensor *y = ek_to_device(ek_value_tensor(ek_value_at(one.data, 1)), device);
        ek_tensor *logits = ek_apply(run.job.network, x);
        assert_made(logits);
        sum += element(ek_f_cross_entropy(logits, y), 0);
        right += element(ek_argmax(logits, 1, false), 0) == element(y, 0);
        ek_scope_end(&scope);
    }
    ck_assert_double_le(fabs(first.loss - sum / TESTING), 1e-5 * sum / TESTING);
    ck_assert(first.accuracy == (double)right / TESTING);
    ek_dataset_free(pictures);
    assert_ok(train_close(&run));
}
END_TEST

START_TEST(rates_follow_their_schedule)
{
    run_settings settings = small();
    train_run run;

    settings.device_text = "1";
    open_run(&run, &settings);
    train_to(&run, 5); /* half way */
    ck_assert_double_le(fabs(ek_optimizer_lr(run.job.optimizer, 0) - 0.05), 1e-12);
    assert_ok(train_close(&run));
    settings.schedule = SCHEDULE_STEP;
    settings.step_epochs = 1;
    open_run(&run, &settings);
    train_to(&run, 4);
    ck_assert_double_le(fabs(ek_optimizer_lr(run.job.optimizer, 0) - 0.1), 1e-12);
    train_to(&run, 5);
    ck_assert_double_le(fabs(ek_optimizer_lr(run.job.optimizer, 0) - 0.01), 1e-12);
    assert_ok(train_close(&run));
}
END_TEST

START_TEST(coloured_pictures_are_classified)
{
    run_settings settings = small();
    train_run run;

    settings.set = CIFAR10;
    settings.data = cifar;
    settings.batch = 20;
    settings.epochs = 1;
    open_run(&run, &settings);
    ck_assert_int_eq(run.train_count, 5 * FEW);
    train_to(&run, 3);
    ck_assert_int_eq(run.tested.count, FEW);
    assert_ok(train_close(&run));
    settings.set = FASHION_MNIST; /* which these are not */
    refuse(&settings, EK_E_IO, "images-idx3-ubyte");
}
END_TEST

START_TEST(the_network_learns)
{
    run_settings settings = small();
    train_run run;

    settings.plain = true;
    settings.epochs = 12;
    settings.lr = 0.05;
    open_run(&run, &settings);
    train_to(&run, 60);
    ck_assert_double_gt(run.tested.accuracy, 0.4); /* by chance: 0.1 */
    ck_assert_double_lt(run.records.epochs[11].train_loss, 0.6 * run.records.epochs[0].train_loss);
    assert_ok(train_close(&run));
}
END_TEST

START_TEST(the_network_has_its_shape)
{
    ek_module *network = resnet(.channels = 3, .classes = 10, .width = 4, .blocks = 2);
    ek_tensor *logits = ek_apply(network, ek_randn(EK_SHAPE(2, 3, 32, 32)));

    assert_made(logits);
    ek_shape shape = ek_tensor_shape(logits), wanted = EK_SHAPE(2, 10);
    ck_assert(ek_shape_equal(&shape, &wanted));
    assert_made(ek_module_tensor(network, "stage3.1.conv2.weight"));
    ek_module_free(network);
    ck_assert_ptr_null(resnet(.channels = 1, .classes = 10, .width = 4, .blocks = 0));
    assert_error(EK_E_INVALID, "0 blocks");
}
END_TEST

START_TEST(records_add_up)
{
    run_records records;

    assert_ok(records_open(&records, 2));
    ck_assert_int_eq(records_best(&records), -1);
    records_add(&records, 1, 30, 2, 0.5);
    records_add(&records, 4, 10, 1, 0.25);
    records_end_epoch(&records, 3, 0.5);
    ck_assert(records.epochs[0].train_loss == 1.75 && records.epochs[0].seconds == 3);
    records_add(&records, 1, 10, 1, 0);
    records_end_epoch(&records, 3, 0.5);
    ck_assert_int_eq(records_best(&records), 0);
    records_add(&records, 1, 10, 1, 0.25);
    records_end_epoch(&records, 3, 0.9); /* finds no room */
    ck_assert_int_eq(records.count, 2);
    ck_assert(records_total(&records).seconds == 4 && records_total(&records).waited == 0.75);
    records_close(&records);
}
END_TEST

Suite *suite(void)
{
    Suite *s = suite_create("classify");
    TCase *parts = tcase_create("parts"), *runs = tcase_create("runs");

    tcase_add_unchecked_fixture(parts, make_pictures, remove_pictures);
    tcase_add_test(parts, tests_count_each_picture_once);
    tcase_add_test(parts, rates_follow_their_schedule);
    tcase_add_test(parts, coloured_pictures_are_classified);
    tcase_add_test(parts, the_network_learns);
    tcase_add_test(parts, the_network_has_its_shape);
    tcase_add_test(parts, records_add_up);
    tcase_add_unchecked_fixture(runs, make_pictures, remove_pictures);
    tcase_add_loop_test(runs, resumed_runs_are_the_same, 0, MODES);
    tcase_add_test(runs, other_devices_go_on);
    tcase_add_test(runs, plans_are_kept);
    tcase_add_test(runs, other_checkpoints_are_refused);
    tcase_add_test(runs, missing_pictures_are_told);
    tcase_add_test(runs, losses_must_be_numbers);
    tcase_add_test(runs, runs_can_be_stopped);
    tcase_set_timeout(parts, 300);
    tcase_set_timeout(runs, 300);
    suite_add_tcase(s, parts);
    suite_add_tcase(s, runs);
    return s;
}
