/* test_gan.c: the parts of the GAN sample, and what it rests on: critics trained on any number of
 * devices, either way, have one device's losses and gradients. */
#include <math.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/args.h"
#include "gan/checkpoint.h"
#include "gan/network.h"
#include "gan/picture.h"
#include "gan/train.h"
#include "unit.h"

/* The sample's defaults, smaller. */
static run_settings small(void)
{
    run_settings settings;
    char name[] = "gan", *argv[] = {name, NULL};

    ck_assert_int_eq(settings_parse(&settings, 1, argv), 0);
    settings.kind = test_kind();
    settings.width = 4;
    settings.batch = 10; /* does not divide by 3 and 4 */
    settings.critic_steps = 2;
    settings.steps = 4;
    return settings;
}

/* ---- one device and several ---- */

#ifdef EK_SANITIZED /* slow there, and more steps show nothing new */
enum { STEPS = 3 };
#else
enum { STEPS = 10 };
#endif
enum { EVERY = 5, DEVICES = 4, MOST_JOBS = 1 + 2 * DEVICES };

/* A job with its tensors in a fixed order, to be copied to another. */
typedef struct copyable_job {
    gan_job job;
    ek_tensor *tensors[128];
    int count;
    int reference; /* the job whose numbers it must have */
} copyable_job;

static int add_tensor(const char *path, ek_tensor *tensor, void *user)
{
    copyable_job *job = user;

    (void)path;
    ck_assert_int_lt(job->count, 128);
    job->tensors[job->count++] = tensor;
    return 0;
}

static void open_job(copyable_job *job, const run_settings *settings, train_mode mode, int devices,
                     int reference)
{
    run_settings own = *settings;
    ek_device_list list = ek_devices(test_kind(), devices);

    *job = (copyable_job){.reference = reference};
    own.mode = mode;
    assert_ok(job_open(&job->job, &own, &list));
    ek_module *const networks[] = {job->job.critic, job->job.generator};
    for (int i = 0; i < 2; i++) {
        assert_ok(ek_module_parameters(networks[i], add_tensor, job));
        assert_ok(ek_module_buffers(networks[i], add_tensor, job));
    }
}

/* Parameters, buffers and random numbers. */
static void copy_state(copyable_job *to, copyable_job *from)
{
    uint8_t state[EK_GENERATOR_STATE_BYTES];
    bool had_gradients = ek_set_grad_enabled(false);

    ck_assert_int_eq(to->count, from->count);
    for (int i = 0; i < to->count; i++)
        assert_made(ek_copy_(to->tensors[i], from->tensors[i]));
    ek_set_grad_enabled(had_gradients);
    assert_ok(ek_generator_get_state(from->job.random, state, sizeof(state)));
    assert_ok(ek_generator_set_state(to->job.random, state, sizeof(state)));
}

enum { MOST_NUMBERS = 1 << 16 };

typedef struct gradient_vector {
    double values[MOST_NUMBERS];
    int64_t count;
} gradient_vector;

static int add_gradient(const char *path, ek_tensor *parameter, void *user)
{
    gradient_vector *vector = user;
    ek_tensor *gradient = ek_tensor_grad(parameter);

    (void)path;
    assert_made(gradient);
    int64_t count = ek_tensor_count(gradient);
    ck_assert_int_le(vector->count + count, MOST_NUMBERS);
    ek_tensor *wide = ek_to_dtype(ek_to_device(gradient, ek_cpu()), EK_F64);
    assert_ok(ek_to_data(wide, vector->values + vector->count, (size_t)count * sizeof(double)));
    vector->count += count;
    return 0;
}

static void read_gradient(ek_module *network, gradient_vector *vector)
{
    bool had_gradients = ek_set_grad_enabled(false);

    vector->count = 0;
    assert_ok(ek_module_parameters(network, add_gradient, vector));
    ek_set_grad_enabled(had_gradients);
}

/* |a - b| over |b|, as vectors. */
static double distance(const gradient_vector *a, const gradient_vector *b)
{
    double difference = 0, norm = 0;

    ck_assert_int_eq(a->count, b->count);
    for (int64_t i = 0; i < b->count; i++) {
        difference += (a->values[i] - b->values[i]) * (a->values[i] - b->values[i]);
        norm += b->values[i] * b->values[i];
    }
    return sqrt(difference / norm);
}

/* `size` is that of the terms that the loss is the sum of: where they cancel, their rounding stays.
 */
static void assert_agree(const char *what, int step, const gan_job *job, double loss,
                         double wanted_loss, double size, const gradient_vector *gradient,
                         const gradient_vector *wanted)
{
    double limit = job->settings.dtype == EK_F64 ? 1e-12 : 1e-5;
    double of_loss = fabs(loss - wanted_loss) / size;
    double of_gradient = distance(gradient, wanted);

    if (!(of_loss <= limit && of_gradient <= limit))
        ck_abort_msg("step %d, %s on %d devices, critic norm %s: %s's loss is %.17g instead of "
                     "%.17g (off by %.3g), its gradient off by %.3g",
                     step, mode_names[job->settings.mode], job->devices.count,
                     norm_names[job->settings.norm], what, loss, wanted_loss, of_loss, of_gradient);
}

static void compare_critic(copyable_job *jobs, int count, int step, ek_tensor *real)
{
    static gradient_vector gradients[MOST_JOBS];
    critic_record records[MOST_JOBS];
    ek_tensor *shared = NULL;

    for (int i = 0; i < count; i++) {
        gan_job *job = &jobs[i].job;
        const int wanted = jobs[i].reference;
        ek_value made = job_make(job, job_noise(job, job->settings.batch));
        /* A leaky ReLU's slope jumps at 0. In f32, pictures that differ by their rounding put some
         * of its inputs on the other side, so that gradients differ by one unit's part: there all
         * critics are shown the first one's. */
        if (job->settings.dtype == EK_F32 && i == 0)
            shared = ek_to_device(ek_value_tensor(made), ek_cpu());
        if (shared)
            made = ek_value_of_tensor(shared);
        assert_ok(job_critic_gradient(job, real, made, &records[i]));
        read_gradient(job->critic, &gradients[i]);
        const critic_record *r = &records[wanted];
        assert_agree("the critic", step, job, records[i].loss, r->loss,
                     fabs(r->on_real) + fabs(r->on_fake) + fabs(r->penalty), &gradients[i],
                     &gradients[wanted]);
    }
}

static void compare_generator(copyable_job *jobs, int count, int step)
{
    static gradient_vector gradients[MOST_JOBS];
    double losses[MOST_JOBS];

    for (int i = 0; i < count; i++) {
        gan_job *job = &jobs[i].job;
        const int wanted = jobs[i].reference;
        assert_ok(job_generator_gradient(job, job_noise(job, job->settings.batch), &losses[i]));
        read_gradient(job->generator, &gradients[i]);
        assert_agree("the generator", step, job, losses[i], losses[wanted], fabs(losses[wanted]),
                     &gradients[i], &gradients[wanted]);
    }
}

/* Losses and gradients of one step from one state, in every job; only the first moves on. */
static void compare_step(copyable_job *jobs, int count, int step, ek_tensor *real)
{
    for (int i = 1; i < count; i++)
        copy_state(&jobs[i], &jobs[0]);
    compare_critic(jobs, count, step, real);
    assert_ok(ek_step(jobs[0].job.critic_optimizer));
    if (step % EVERY)
        return;
    /* The generator's gradient goes through the critic's slopes: f64 alone shows it (see above). */
    if (jobs[0].job.settings.dtype == EK_F64) {
        for (int i = 1; i < count; i++)
            copy_state(&jobs[i], &jobs[0]);
        compare_generator(jobs, count, step);
    } else {
        double loss;
        assert_ok(job_generator_gradient(&jobs[0].job, job_noise(&jobs[0].job, 10), &loss));
    }
    assert_ok(ek_step(jobs[0].job.generator_optimizer));
}

/* Jobs to compare: everything with one device, except where batch normalisation sees the parts
 * alone: there the balanced way with the classic one on as many devices. */
static int open_jobs(const run_settings *settings, copyable_job *jobs)
{
    int count = 0;

    open_job(&jobs[count++], settings, MODE_SINGLE, 1, 0);
    for (int devices = 1; devices <= DEVICES; devices++) {
        int classic = count++, balanced = count++;
        bool apart = settings->norm == NORM_BATCH && devices > 1;
        open_job(&jobs[classic], settings, MODE_CLASSIC, devices, apart ? classic : 0);
        open_job(&jobs[balanced], settings, MODE_BALANCED, devices, apart ? classic : 0);
    }
    return count;
}

START_TEST(devices_agree)
{
    static copyable_job jobs[MOST_JOBS];
    run_settings settings = small();
    ek_generator *random = ek_generator_new(9);

    settings.norm = (critic_norm)(_i % NORMS);
    settings.penalty = (ek_penalty_kind)(_i / NORMS % PENALTY_KINDS);
    settings.dtype = _i / NORMS / PENALTY_KINDS ? EK_F64 : EK_F32;
    settings.width = 2;
    assert_ok(test_devices_configure("4"));
    int count = open_jobs(&settings, jobs);
    for (int step = 0; step < STEPS; step++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *real = ek_empty(EK_SHAPE(settings.batch, 1, SIDE, SIDE), settings.dtype);
        assert_ok(ek_uniform_(real, -1, 1, random));
        compare_step(jobs, count, step, real);
        ek_scope_end(&scope);
    }
    for (int i = 0; i < count; i++)
        job_close(&jobs[i].job);
    ek_generator_free(random);
    assert_ok(ek_shutdown());
}
END_TEST

/* ---- parts ---- */

START_TEST(words_are_options)
{
    static const char *const words[] = {"red", "green", "blue", NULL};
    arg_choice choice = {words, 0};
    const arg_spec args[] = {{"colour", ARG_CHOICE, &choice, 0, 0, "WORD", "of it"}};
    char program[] = "p", right[] = "--colour=blue", wrong[] = "--colour=yellow", error[256];
    char *good[] = {program, right, NULL}, *bad[] = {program, wrong, NULL};

    ck_assert_int_eq(args_parse(2, good, args, 1, error, sizeof(error)), 0);
    ck_assert_int_eq(choice.chosen, 2);
    ck_assert_int_eq(args_parse(2, bad, args, 1, error, sizeof(error)), -1);
    ck_assert_str_eq(error, "--colour yellow: red, green or blue is needed");
    ck_assert_int_eq(choice.chosen, 2);
}
END_TEST

START_TEST(pictures_are_padded)
{
    uint8_t pixels[2 * 28 * 28] = {0};
    picture_data data = {2, pixels};
    const int64_t order[] = {1, 0};

    pixels[784] = 255;          /* the first pixel of the second picture */
    pixels[784 + 27 * 28] = 51; /* its last row's first */
    ek_tensor *batch = data_batch(&data, order, 2, EK_F64);
    ek_shape shape = ek_tensor_shape(batch), wanted = EK_SHAPE(2, 1, 32, 32);
    ck_assert(ek_shape_equal(&shape, &wanted));
    for (int i = 0; i < 2 * 1024; i++) {
        double value = i == 2 * 32 + 2 ? 1 : i == 29 * 32 + 2 ? -0.6 : -1;
        ck_assert_double_le(fabs(element(batch, i) - value), 1e-6);
    }
}
END_TEST

START_TEST(networks_have_their_shapes)
{
    ek_tensor *noise = ek_randn(EK_SHAPE(3, NOISE, 1, 1));
    ek_module *generator = generator_network(4);
    ek_tensor *made = ek_apply(generator, noise);

    assert_made(made);
    ek_shape shape = ek_tensor_shape(made), wanted = EK_SHAPE(3, 1, SIDE, SIDE);
    ck_assert(ek_shape_equal(&shape, &wanted));
    for (int norm = 0; norm < NORMS; norm++) {
        ek_module *critic = critic_network(4, (critic_norm)norm);
        ek_tensor *scores = ek_apply(critic, made);
        assert_made(scores);
        ek_shape of_scores = ek_tensor_shape(scores), one_each = EK_SHAPE(3, 1, 1, 1);
        ck_assert(ek_shape_equal(&of_scores, &one_each));
        ek_module_free(critic);
    }
    ek_module_free(generator);
}
END_TEST

START_TEST(records_have_a_median)
{
    run_records records;

    assert_ok(records_open(&records, 2, 2));
    ck_assert(records_median(&records, PENALTIES) == 0);
    ck_assert(records_last(&records, PENALTIES) == 0);
    for (int i = 0; i < 5; i++) /* the last finds no room */
        records_add(&records, PENALTIES, i == 2 ? 10 : i);
    ck_assert_int_eq(records.counts[PENALTIES], 4);
    ck_assert(records_median(&records, PENALTIES) == 2);
    ck_assert(records_last(&records, PENALTIES) == 3);
    records_close(&records);
}
END_TEST

START_TEST(pictures_are_written)
{
    static uint8_t pixels[GRID_SIDE * GRID_SIDE], again[GRID_SIDE * GRID_SIDE];
    static uint8_t read[GRID_SIDE * GRID_SIDE];
    run_settings settings = small();
    ek_device_list devices = settings_devices(&settings);
    gan_job job;
    png_image image = {.version = PNG_IMAGE_VERSION};
    char path[] = "/tmp/test_gan_XXXXXX";

    assert_ok(job_open(&job, &settings, &devices));
    assert_ok(picture_grid(&job, pixels));
    assert_ok(picture_grid(&job, again));
    ck_assert_mem_eq(pixels, again, sizeof(pixels));
    for (int i = 0; i < GRID_SIDE; i++)
        ck_assert_int_eq(pixels[i], 0x20);
    ck_assert_int_ne(pixels[(GAP + 5) * GRID_SIDE + GAP + 5], 0x20);
    close(mkstemp(path));
    assert_ok(picture_write(path, pixels, GRID_SIDE, GRID_SIDE));
    ck_assert(png_image_begin_read_from_file(&image, path));
    ck_assert_uint_eq(image.width, GRID_SIDE);
    ck_assert_uint_eq(image.height, GRID_SIDE);
    image.format = PNG_FORMAT_GRAY;
    ck_assert(png_image_finish_read(&image, NULL, read, 0, NULL));
    ck_assert_mem_eq(pixels, read, sizeof(pixels));
    unlink(path);
    ck_assert_int_eq(picture_write("/nowhere/x.png", pixels, 1, 1), EK_E_IO);
    assert_error(EK_E_IO, "/nowhere/x.png");
    job_close(&job);
    assert_ok(ek_shutdown());
}
END_TEST

/* ---- runs ---- */

static void open_run(train_run *run, const run_settings *settings)
{
    ek_device_list devices = settings_devices(settings);

    assert_ok(train_open(run, settings, &devices));
}

static void hashes(train_run *run, char text[2][65])
{
    assert_ok(ek_module_sha256(run->job.generator, text[0]));
    assert_ok(ek_module_sha256(run->job.critic, text[1]));
}

/* Stopped after two of four steps, saved, and gone on with by another: to the bit as if not. */
START_TEST(resumed_runs_are_the_same)
{
    train_run run;
    run_settings settings = small();
    char path[] = "/tmp/test_gan_XXXXXX", whole[2][65], resumed[2][65];
    double losses[4];

    settings.mode = (train_mode)_i;
    settings.devices = settings.mode == MODE_SINGLE ? 0 : 3;
    settings.norm = NORM_SYNC_BATCH;
    close(mkstemp(path));
    open_run(&run, &settings);
    for (int step = 0; step < 4; step++) {
        assert_ok(train_step(&run));
        if (step == 1)
            assert_ok(checkpoint_save(path, &run.job, &run.records, run.step));
    }
    hashes(&run, whole);
    memcpy(losses, run.records.values[GENERATOR_LOSSES], sizeof(losses));
    assert_ok(train_close(&run));

    settings.resume = path;
    open_run(&run, &settings);
    ck_assert_int_eq(run.step, 2);
    while (run.step < 4)
        assert_ok(train_step(&run));
    hashes(&run, resumed);
    ck_assert_str_eq(whole[0], resumed[0]);
    ck_assert_str_eq(whole[1], resumed[1]);
    ck_assert_mem_eq(losses, run.records.values[GENERATOR_LOSSES], sizeof(losses));
    ck_assert_int_eq(run.records.counts[CRITIC_LOSSES], 8);
    assert_ok(train_close(&run));
    unlink(path);
}
END_TEST

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
    train_run run;
    run_settings settings = small(), other;
    char path[] = "/tmp/test_gan_XXXXXX";

    close(mkstemp(path));
    open_run(&run, &settings);
    assert_ok(train_step(&run));
    assert_ok(checkpoint_save(path, &run.job, &run.records, run.step));
    assert_ok(train_close(&run));

    settings.resume = path;
    other = settings;
    other.width = 6;
    refuse(&other, EK_E_INVALID, "was made with --width 4, not 6");
    other = settings;
    other.penalty = EK_PENALTY_R1;
    refuse(&other, EK_E_INVALID, "was made with --penalty wgan-gp, not r1");
    other = settings;
    other.mode = MODE_BALANCED; /* may change */
    other.devices = 2;
    open_run(&run, &other);
    assert_ok(train_step(&run));
    assert_ok(train_close(&run));
    ck_assert_int_eq(truncate(path, 1000), 0);
    refuse(&settings, EK_E_FORMAT, path);
    unlink(path);
}
END_TEST

START_TEST(runs_can_be_stopped)
{
    train_run run;
    run_settings settings = small();
    volatile sig_atomic_t stopped = 1;

    open_run(&run, &settings);
    assert_ok(train_steps(&run, &stopped));
    ck_assert_int_eq(run.step, 0);
    assert_ok(train_close(&run));
}
END_TEST

static uint64_t in_use(const train_run *run, int device)
{
    ek_memory_stats stats;

    assert_ok(ek_memory_get(run->job.devices.devices[device], &stats));
    return stats.in_use;
}

START_TEST(memory_does_not_grow)
{
    train_run run;
    run_settings settings = small();
    uint64_t before[EK_MAX_DEVICES];

    settings.mode = (train_mode)_i;
    settings.devices = settings.mode == MODE_SINGLE ? 0 : 3;
    settings.steps = 30;
    open_run(&run, &settings);
    while (run.step < settings.steps) {
        assert_ok(train_step(&run));
        for (int d = 0; d < run.job.devices.count && run.step >= 2; d++) {
            if (run.step == 2)
                before[d] = in_use(&run, d);
            ck_assert_uint_eq(in_use(&run, d), before[d]);
        }
    }
    assert_ok(train_close(&run)); /* every ledger is at zero */
}
END_TEST

/* ---- the suite ---- */

/* One test case per penalty and dtype, so that they can run side by side. */
static void add_agreement(Suite *s)
{
    static char names[2 * PENALTY_KINDS][32];

    for (int i = 0; i < 2 * PENALTY_KINDS; i++) {
        snprintf(names[i], sizeof(names[i]), "%s-%s", penalty_names[i % PENALTY_KINDS],
                 i / PENALTY_KINDS ? "f64" : "f32");
        TCase *tests = tcase_create(names[i]);
        tcase_set_timeout(tests, 300);
        tcase_add_loop_test(tests, devices_agree, i * NORMS, (i + 1) * NORMS);
        suite_add_tcase(s, tests);
    }
}

Suite *suite(void)
{
    Suite *s = suite_create("gan");
    TCase *parts = tcase_create("parts"), *runs = tcase_create("runs");

    tcase_add_test(parts, words_are_options);
    tcase_add_test(parts, pictures_are_padded);
    tcase_add_test(parts, networks_have_their_shapes);
    tcase_add_test(parts, records_have_a_median);
    tcase_add_test(parts, pictures_are_written);
    tcase_add_loop_test(runs, resumed_runs_are_the_same, 0, MODES);
    tcase_add_test(runs, other_checkpoints_are_refused);
    tcase_add_test(runs, runs_can_be_stopped);
    tcase_add_loop_test(runs, memory_does_not_grow, 0, MODES);
    tcase_set_timeout(parts, 300);
    tcase_set_timeout(runs, 300);
    suite_add_tcase(s, parts);
    suite_add_tcase(s, runs);
    add_agreement(s);
    return s;
}
