/* test_classify.c: the parts of the classifier, and what it claims: runs that are stopped and gone
 * on with are those that were not, in every mode. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int classify_main(int argc, char **argv);
#define main classify_main
#include "classify.c"
#undef main
#include "unit.h"

/* ---- pictures: few, so that files are read at once ---- */

enum { TRAINING = 110, TESTING = 70, FEW = 10, SIDE = 28, COLOURED = 3073 };

static char directory[32], saved[64], fashion[64], cifar[64];

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
    snprintf(saved, sizeof saved, "%s/checkpoint", directory);
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
    ck_assert_int_eq(args_read(1, argv, "", classify_args) + (classify_check() < 0), 0);
    opt.kind = test_kind();
    opt.data = fashion;
    opt.width = 4;
    opt.batch = 25; /* does not divide by 4 */
    opt.epochs = 2;
    opt.device_text = "4";
}

static int close_run(classify *run)
{
    classify_close(&run->state);
    return ek_shutdown();
}

static void train_to(classify *run, int64_t step)
{
    while (run->state.step < step)
        assert_ok(classify_step(&run->state));
}

FIXTURE(make_pictures, remove_pictures)

/* ---- stopped and gone on with ---- */

GROUP(runs)

enum { END = 10 };

static void finish(classify *run, char sha256[65])
{
    train_to(run, END);
    assert_ok(ek_module_sha256(run->job.network, sha256));
}

/* Stopped after `step` steps, with `workers` loader threads then and the other number afterwards.
 * The epochs' records are to be freed. */
static epoch_record *stop_and_go_on(int64_t step, int workers, char sha256[65])
{
    classify run;
    opt.workers = workers;
    opt.files.resume = NULL;
    assert_ok(run_open(&classify_kind, &run.state));
    train_to(&run, step);
    assert_ok(run_save(&classify_kind, &run.state, saved));
    assert_ok(close_run(&run));
    opt.workers = 1 - workers;
    opt.files.resume = saved;
    assert_ok(run_open(&classify_kind, &run.state));
    ck_assert_int_eq(run.state.step, step);
    finish(&run, sha256);
    ck_assert_int_eq(run.epochs.count, 2);
    epoch_record *epochs = run.epochs.records;
    run.epochs.records = NULL;
    assert_ok(close_run(&run));
    return epochs;
}

/* In the first epoch, at its end, in the second. */
TEST_LOOP(resumed_runs_are_the_same, 0, MODES)
{
    static const int64_t stops[] = {1, 5, 8};
    const int count = (int)(sizeof stops / sizeof stops[0]);
    make_small();
    classify run;
    char whole[65], resumed[65];
    opt.mode = _i;
    if (opt.mode == MODE_SINGLE)
        opt.device_text = "1";
    if (opt.mode == MODE_AUTO && test_kind() == EK_HOST)
        opt.device_text = "64M,64M,32M,32M"; /* something to level */
    assert_ok(run_open(&classify_kind, &run.state));
    finish(&run, whole);
    epoch_record *wanted = run.epochs.records;
    run.epochs.records = NULL;
    assert_ok(close_run(&run));
    for (int i = 0; i < count; i++) {
        epoch_record *epochs = stop_and_go_on(stops[i], i % 2, resumed);
        ck_assert_str_eq(whole, resumed);
        for (int e = 0; e < 2; e++) {
            ck_assert(epochs[e].train_loss == wanted[e].train_loss);
            ck_assert(epochs[e].test_loss == wanted[e].test_loss);
            ck_assert(epochs[e].test_accuracy == wanted[e].test_accuracy);
        }
        free(epochs);
    }
    free(wanted);
}

static double largest_difference(const double *a, const double *b, int count)
{
    double largest = 0;
    for (int i = 0; i < count; i++) /* NaN is large */
        largest = fabs(a[i] - b[i]) <= largest ? largest : fabs(a[i] - b[i]);
    return largest;
}

/* The losses of the last steps, which end in `losses`. */
static void last_losses(classify *run, double *losses)
{
    for (int i = 0; run->state.step < END - 1; i++) {
        double before = run->epochs.now.loss;
        int64_t step = run->state.step;
        assert_ok(classify_step(&run->state));
        losses[i] = step % run->epoch_steps == run->epoch_steps - 1
                        ? run->epochs.records[run->epochs.count - 1].train_loss
                        : run->epochs.now.loss - before;
    }
}

/* Saved on 4 devices, loaded into 2 and into other ways to train: the numbers are those of 4, but
 * for roundings. */
TEST(other_devices_go_on)
{
    make_small();
    classify run;
    double whole[END], other[END];
    const int64_t stop = 3, count = END - 1 - stop;
    opt.mode = MODE_SHARDED;
    opt.lr = 0.01; /* roundings don't grow much in six steps */
    assert_ok(run_open(&classify_kind, &run.state));
    train_to(&run, stop);
    assert_ok(run_save(&classify_kind, &run.state, saved));
    last_losses(&run, whole);
    assert_ok(close_run(&run));
    opt.files.resume = saved;
    for (int mode = 0; mode < MODES; mode++) {
        opt.mode = mode;
        opt.device_text = mode == MODE_SINGLE ? "1" : "2";
        assert_ok(run_open(&classify_kind, &run.state));
        last_losses(&run, other);
        ck_assert_double_le(largest_difference(whole, other, (int)count), 0.02);
        assert_ok(close_run(&run));
    }
}

/* What a file says of shares goes before what would be measured; for other devices it is measured.
 */
TEST(plans_are_kept)
{
    make_small();
    classify run;
    opt.mode = MODE_AUTO;
    opt.plan = "10,7,5,3";
    assert_ok(run_open(&classify_kind, &run.state));
    train_to(&run, 2);
    assert_ok(run_save(&classify_kind, &run.state, saved));
    assert_ok(close_run(&run));
    opt.plan = NULL;
    opt.files.resume = saved;
    assert_ok(run_open(&classify_kind, &run.state));
    ck_assert_str_eq(run.job.plan, "10,7,5,3");
    assert_ok(classify_step(&run.state));
    assert_ok(close_run(&run));
    opt.device_text = "2";
    assert_ok(run_open(&classify_kind, &run.state));
    ck_assert_int_eq(ek_plan_check(run.job.plan, 2), 0);
    assert_ok(classify_step(&run.state));
    assert_ok(close_run(&run));
}

/* ---- what is refused ---- */

static void refuse(int status, const char *part)
{
    classify run;
    ck_assert_int_eq(run_open(&classify_kind, &run.state), status);
    assert_error(status, part);
    assert_ok(close_run(&run));
}

TEST(other_checkpoints_are_refused)
{
    classify run;
    ek_named_tensor one = {"weight", NULL};
    make_small();
    assert_ok(run_open(&classify_kind, &run.state));
    train_to(&run, 1);
    assert_ok(run_save(&classify_kind, &run.state, saved));
    assert_ok(close_run(&run));
    opt.files.resume = saved;
    const struct classify_options same = opt;
    opt.width = 6;
    refuse(EK_E_INVALID, "was made with --width 4, not 6");
    opt = same;
    opt.lr = 0.5;
    refuse(EK_E_INVALID, "was made with --lr 0.1");
    opt = same;
    opt.plain = true;
    refuse(EK_E_INVALID, "was made with --plain off, not on");
    opt = same;
    opt.seed = 1;
    refuse(EK_E_INVALID, "was made with --seed 0, not 1");
    opt = same;
    opt.steps = 1; /* may be */
    assert_ok(run_open(&classify_kind, &run.state));
    assert_ok(close_run(&run));
    one.tensor = ek_ones(EK_SHAPE(2));
    assert_ok(ek_safetensors_save(saved, &one, 1, NULL, 0));
    refuse(EK_E_FORMAT, "a checkpoint of this program");
    ck_assert_int_eq(truncate(saved, 20), 0);
    refuse(EK_E_FORMAT, saved);
}

TEST(missing_pictures_are_told)
{
    classify run;
    make_small();
    opt.data = "/nowhere";
    ck_assert_int_eq(run_open(&classify_kind, &run.state), EK_E_IO);
    ck_assert(run.state.unread);
    assert_error(EK_E_IO, "/nowhere");
    assert_ok(close_run(&run));
}

TEST(losses_must_be_numbers)
{
    make_small();
    classify run;
    const volatile sig_atomic_t stopped = 0;
    opt.lr = 1e6;
    opt.momentum = 0.99;
    opt.epochs = 40;
    assert_ok(run_open(&classify_kind, &run.state));
    ck_assert_int_eq(run_steps(&classify_kind, &run.state, &stopped), EK_E_INVALID);
    assert_error(EK_E_INVALID, "a smaller --lr may help");
    ck_assert_int_lt(run.state.step, run.state.last);
    assert_ok(close_run(&run));
}

TEST(runs_can_be_stopped)
{
    make_small();
    classify run;
    const volatile sig_atomic_t stopped = 1;
    assert_ok(run_open(&classify_kind, &run.state));
    assert_ok(run_steps(&classify_kind, &run.state, &stopped));
    ck_assert_int_eq(run.state.step, 0);
    ck_assert_int_eq(run.tested.count, 0);
    assert_ok(close_run(&run));
}

/* ---- parts ---- */

GROUP(parts)

/* 70 pictures in batches of 64: each once, by the running statistics, which stay. */
TEST(tests_count_each_picture_once)
{
    make_small();
    classify run;
    double sum = 0;
    int64_t right = 0;
    assert_ok(run_open(&classify_kind, &run.state));
    train_to(&run, 2);
    assert_ok(classify_test(&run));
    const evaluation first = run.tested;
    assert_ok(classify_test(&run));
    const evaluation second = run.tested;
    ck_assert_int_eq(first.count, TESTING);
    ck_assert(first.loss == second.loss && first.accuracy == second.accuracy);
    ck_assert(run.job.network->training && ek_grad_enabled());

    ek_dataset *pictures = classify_pictures(false);
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
    assert_ok(close_run(&run));
}

TEST(rates_follow_their_schedule)
{
    make_small();
    classify run;
    opt.device_text = "1";
    assert_ok(run_open(&classify_kind, &run.state));
    train_to(&run, 5); /* half way */
    ck_assert_double_le(fabs(ek_optimizer_lr(run.job.optimizer, 0) - 0.05), 1e-12);
    assert_ok(close_run(&run));
    opt.schedule = SCHEDULE_STEP;
    opt.step_epochs = 1;
    assert_ok(run_open(&classify_kind, &run.state));
    train_to(&run, 4);
    ck_assert_double_le(fabs(ek_optimizer_lr(run.job.optimizer, 0) - 0.1), 1e-12);
    train_to(&run, 5);
    ck_assert_double_le(fabs(ek_optimizer_lr(run.job.optimizer, 0) - 0.01), 1e-12);
    assert_ok(close_run(&run));
}

TEST(coloured_pictures_are_classified)
{
    make_small();
    classify run;
    opt.set = CIFAR10;
    opt.data = cifar;
    opt.batch = 20;
    opt.epochs = 1;
    assert_ok(run_open(&classify_kind, &run.state));
    ck_assert_int_eq(run.train_count, 5 * FEW);
    train_to(&run, 3);
    ck_assert_int_eq(run.tested.count, FEW);
    assert_ok(close_run(&run));
    opt.set = FASHION_MNIST; /* which these are not */
    refuse(EK_E_IO, "images-idx3-ubyte");
}

TEST(the_network_learns)
{
    make_small();
    classify run;
    opt.plain = true;
    opt.epochs = 12;
    opt.lr = 0.05;
    assert_ok(run_open(&classify_kind, &run.state));
    train_to(&run, 60);
    ck_assert_double_gt(run.tested.accuracy, 0.4); /* by chance: 0.1 */
    ck_assert_double_lt(run.epochs.records[11].train_loss, 0.6 * run.epochs.records[0].train_loss);
    assert_ok(close_run(&run));
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
    epoch_record epochs[] = {{.seconds = 3, .waited = 0.5, .test_accuracy = 0.5},
                             {.seconds = 1, .test_accuracy = 0.5},
                             {.seconds = 2, .test_accuracy = 0.75}};
    epoch_list list = {.records = epochs, .now = {.seconds = 1, .waited = 0.25}};
    ck_assert_int_eq(epochs_best(&list), -1);
    list.count = 2;
    ck_assert_int_eq(epochs_best(&list), 0); /* the first of equals */
    ck_assert(epochs_total(&list).seconds == 5 && epochs_total(&list).waited == 0.75);
    list.count = 3;
    ck_assert_int_eq(epochs_best(&list), 2);
}
