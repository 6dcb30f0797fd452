/* test_gan.c: the parts of the GAN sample, and what it rests on: critics trained on any number of
 * devices, either way, have one device's losses and gradients. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int gan_main(int argc, char **argv);
#define main gan_main
#include "gan.c"
#undef main
#include "kit/devices.h"
#include "program.h"

/* The sample's defaults, smaller. */
static void make_small(void)
{
    char name[] = "gan", *argv[] = {name, NULL};
    ck_assert_int_eq(args_read(1, argv, "", option_table), 0);
    opt.device = test_kind();
    opt.width = 4;
    opt.batch = 10; /* does not divide by 3 and 4 */
    opt.critic_steps = 2;
    opt.steps = 4;
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
    gan job;
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

static void open_job(copyable_job *job, int mode, int devices, int reference)
{
    *job = (copyable_job){.reference = reference, .job.devices = ek_devices(test_kind(), devices)};
    opt.mode = mode;
    assert_ok(gan_open_networks(&job->job, NULL));
    ek_module *const networks[] = {job->job.critic.network, job->job.generator.network};
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
    assert_ok(ek_generator_get_state(from->job.random, state, sizeof state));
    assert_ok(ek_generator_set_state(to->job.random, state, sizeof state));
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
static void assert_agree(const char *what, int step, const gan *job, double loss,
                         double wanted_loss, double size, const gradient_vector *gradient,
                         const gradient_vector *wanted)
{
    double limit = opt.dtype == EK_F64 ? 1e-12 : 1e-5;
    double of_loss = fabs(loss - wanted_loss) / size;
    double of_gradient = distance(gradient, wanted);
    if (!(of_loss <= limit && of_gradient <= limit))
        ck_abort_msg("step %d, %s on %d devices, critic norm %s: %s's loss is %.17g instead of "
                     "%.17g (off by %.3g), its gradient off by %.3g",
                     step, job->balanced ? "balanced" : "classic", job->devices.count,
                     norm_names[opt.critic_norm], what, loss, wanted_loss, of_loss, of_gradient);
}

static void compare_critic(copyable_job *jobs, int count, int step, ek_tensor *real)
{
    static gradient_vector gradients[MOST_JOBS];
    critic_record records[MOST_JOBS];
    ek_tensor *shared = NULL;
    for (int i = 0; i < count; i++) {
        gan *job = &jobs[i].job;
        const int wanted = jobs[i].reference;
        ek_value made = gan_make(job, gan_noise(job, opt.batch));
        /* A leaky ReLU's slope jumps at 0. In f32, pictures that differ by their rounding put some
         * of its inputs on the other side, so that gradients differ by one unit's part: there all
         * critics are shown the first one's. */
        if (opt.dtype == EK_F32 && i == 0)
            shared = ek_to_device(ek_value_tensor(made), ek_cpu());
        if (shared)
            made = ek_value_of_tensor(shared);
        assert_ok(gan_critic_gradient(job, real, made, &records[i]));
        read_gradient(job->critic.network, &gradients[i]);
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
        gan *job = &jobs[i].job;
        const int wanted = jobs[i].reference;
        assert_ok(gan_generator_gradient(job, gan_noise(job, opt.batch), &losses[i]));
        read_gradient(job->generator.network, &gradients[i]);
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
    assert_ok(ek_step(jobs[0].job.critic.optimizer));
    if (step % EVERY)
        return;
    /* The generator's gradient goes through the critic's slopes: f64 alone shows it (see above). */
    if (opt.dtype == EK_F64) {
        for (int i = 1; i < count; i++)
            copy_state(&jobs[i], &jobs[0]);
        compare_generator(jobs, count, step);
    } else {
        double loss;
        assert_ok(gan_generator_gradient(&jobs[0].job, gan_noise(&jobs[0].job, 10), &loss));
    }
    assert_ok(ek_step(jobs[0].job.generator.optimizer));
}

/* Jobs to compare: everything with one device, except where batch normalisation sees the parts
 * alone: there the balanced way with the classic one on as many devices. */
static int open_jobs(copyable_job *jobs)
{
    int count = 0;
    open_job(&jobs[count++], MODE_SINGLE, 1, 0);
    for (int devices = 1; devices <= DEVICES; devices++) {
        int classic = count++, balanced = count++;
        bool apart = opt.critic_norm == NORM_BATCH && devices > 1;
        open_job(&jobs[classic], MODE_CLASSIC, devices, apart ? classic : 0);
        open_job(&jobs[balanced], MODE_BALANCED, devices, apart ? classic : 0);
    }
    return count;
}

static void check_agreement(int penalty, int norm, ek_dtype dtype)
{
    static copyable_job jobs[MOST_JOBS];
    ek_generator *random = ek_generator_new(9);
    make_small();
    opt.critic_norm = norm;
    opt.penalty = penalty;
    opt.dtype = dtype;
    opt.width = 2;
    assert_ok(test_devices_configure("4"));
    int count = open_jobs(jobs);
    for (int step = 0; step < STEPS; step++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *real = ek_empty(EK_SHAPE(opt.batch, 1, GAN_SIDE, GAN_SIDE), (ek_dtype)opt.dtype);
        assert_ok(ek_uniform_(real, -1, 1, random));
        compare_step(jobs, count, step, real);
        ek_scope_end(&scope);
    }
    for (int i = 0; i < count; i++)
        gan_close(&jobs[i].job);
    ek_generator_free(random);
    assert_ok(ek_shutdown());
}

/* One for each penalty and dtype, so that they can run side by side. */
#define AGREEMENT(name, penalty)                \
    TEST_LOOP(name##_f32_agrees, 0, NORMS)      \
    {                                           \
        check_agreement((penalty), _i, EK_F32); \
    }                                           \
    TEST_LOOP(name##_f64_agrees, 0, NORMS)      \
    {                                           \
        check_agreement((penalty), _i, EK_F64); \
    }
AGREEMENT(wgan_gp, EK_PENALTY_WGAN_GP)
AGREEMENT(wgan_lp, EK_PENALTY_WGAN_LP)
AGREEMENT(dragan, EK_PENALTY_DRAGAN)
AGREEMENT(r1, EK_PENALTY_R1)

/* ---- parts ---- */

GROUP(parts)

TEST(words_are_options)
{
    static const char *const words[] = {"red", "green", "blue", NULL};
    int chosen = 0;
    arg_spec table[] = {arg_word(colour, &chosen, NULL, words, "WORD", "of it"), arg_end};
    char program[] = "p", right[] = "--colour=blue", wrong[] = "--colour=yellow", *said = NULL;
    char *good[] = {program, right, NULL}, *bad[] = {program, wrong, NULL};
    size_t length;
    FILE *errors = stderr;
    ck_assert_int_eq(args_read(2, good, "", table), 0);
    ck_assert_int_eq(chosen, 2);
    stderr = open_memstream(&said, &length);
    ck_assert_int_eq(args_read(2, bad, "", table), -1);
    fclose(stderr);
    stderr = errors;
    ck_assert_str_eq(said, "p: --colour yellow: red, green or blue is needed\n");
    ck_assert_int_eq(chosen, 2);
    free(said);
}

TEST(pictures_are_padded)
{
    ek_tensor *pixels = ek_zeros(EK_SHAPE(2, 1, 28, 28), EK_U8);
    const int64_t order[] = {1, 0};
    ((uint8_t *)ek_tensor_data(pixels))[784] = 255;          /* the second picture's first */
    ((uint8_t *)ek_tensor_data(pixels))[784 + 27 * 28] = 51; /* its last row's first */
    ek_dataset *pictures =
        adversary_framed(ek_tensor_dataset(pixels, ek_zeros(EK_SHAPE(2), EK_I64)), GAN_SIDE);
    ek_value both = ek_dataset_get_batch(pictures, order, 2, ek_cpu());
    ek_tensor *batch = ek_value_tensor(ek_value_at(both, 0));
    assert_made(batch);
    ek_shape shape = ek_tensor_shape(batch), wanted = EK_SHAPE(2, 1, 32, 32);
    ck_assert(ek_shape_equal(&shape, &wanted));
    for (int i = 0; i < 2 * 1024; i++) {
        double value = i == 2 * 32 + 2 ? 1 : i == 29 * 32 + 2 ? -0.6 : -1;
        ck_assert_double_le(fabs(element(batch, i) - value), 1e-6);
    }
    ek_dataset_free(pictures);
}

TEST(networks_have_their_shapes)
{
    ek_tensor *noise = ek_randn(EK_SHAPE(3, GAN_NOISE, 1, 1));
    ek_module *generator = gan_generator(4);
    ek_tensor *made = ek_apply(generator, noise);
    assert_made(made);
    ek_shape shape = ek_tensor_shape(made), wanted = EK_SHAPE(3, 1, GAN_SIDE, GAN_SIDE);
    ck_assert(ek_shape_equal(&shape, &wanted));
    for (int norm = 0; norm < NORMS; norm++) {
        ek_module *critic = gan_critic(4, norm);
        ek_tensor *scores = ek_apply(critic, made);
        assert_made(scores);
        ek_shape of_scores = ek_tensor_shape(scores), one_each = EK_SHAPE(3, 1, 1, 1);
        ck_assert(ek_shape_equal(&of_scores, &one_each));
        ek_module_free(critic);
    }
    ek_module_free(generator);
}

TEST(records_have_a_median)
{
    double odd[] = {3, 0, 10}, even[] = {0, 1, 10, 3};
    ck_assert(series_median(&(series){.count = 0}) == 0);
    ck_assert(series_median(&(series){.values = odd, .count = 3}) == 3);
    ck_assert(series_median(&(series){.values = even, .count = 4}) == 2);
    ck_assert(even[1] == 1); /* they stay */
}

/* What is no number reaches no page. */
TEST(curves_leave_out_what_is_no_number)
{
    double values[] = {NAN, 1, INFINITY, 2, -INFINITY};
    char *text = NULL;
    size_t length;
    FILE *page = open_memstream(&text, &length);
    page_curves(page, "t", "step", &(series){"a", values, 5}, 1);
    fclose(page);
    ck_assert_ptr_nonnull(strstr(text, "\"values\": [null, 1, null, 2, null]"));
    free(text);
}

TEST(pictures_are_drawn_again)
{
    make_small();
    gan job = {.devices = devices_chosen(opt.device, NULL, false)};
    assert_ok(gan_open_networks(&job, NULL));
    ek_tensor *drawn = gan_draw(&job);
    assert_close(drawn, gan_draw(&job), 0, 0);
    ck_assert_int_eq(ek_tensor_count(drawn), GRID * GRID * GAN_SIDE * GAN_SIDE);
    gan_close(&job);
    assert_ok(ek_shutdown());
}

/* ---- runs ---- */

GROUP(runs)

FIXTURE(program_folder_make, program_folder_remove)

static const char *small_options(int mode)
{
    static char text[256];
    snprintf(text, sizeof text,
             "--device %s --width 4 --batch 10 --critic-steps 2 --steps 4 --mode %s --devices %s",
             program_device(), gan_modes[mode], mode == MODE_SINGLE ? "1" : "3");
    return text;
}

/* Stopped after two of four steps, saved, and gone on with by another: to the bit as if not. */
TEST_LOOP(resumed_runs_are_the_same, 0, 1 + MODE_BALANCED)
{
    static const char *const keys[] = {"parameters_sha256", "generator_losses", "critic_losses",
                                       NULL};
    char options[300], path[64];
    double losses[9];
    snprintf(options, sizeof options, "%s --critic-norm sync-batch", small_options(_i));
    assert_resumes(gan_main, program_folder, options, "--steps 2", keys);
    snprintf(path, sizeof path, "%s/rest.json", program_folder);
    ck_assert_int_eq(program_numbers(path, "critic_losses", losses, 9), 8);
    ck_assert_double_gt(fabs(losses[7]), 0);
}

TEST(other_checkpoints_are_refused)
{
    char path[64];
    snprintf(path, sizeof path, "%s/checkpoint.safetensors", program_folder);
    const char *options = small_options(MODE_SINGLE);
    ck_assert_int_eq(program_run(gan_main, "%s --steps 1 --out %s", options, program_folder), 0);
    ck_assert_int_eq(program_run(gan_main, "%s --resume %s --width 6", options, path), REFUSED);
    ck_assert_int_eq(program_run(gan_main, "%s --resume %s --penalty r1", options, path), REFUSED);
    ck_assert_int_eq(program_run(gan_main, "%s --resume %s --steps 2 --mode balanced --devices 2",
                                 options, path),
                     0); /* the mode may change */
    ck_assert_int_eq(truncate(path, 1000), 0);
    ck_assert_int_eq(program_run(gan_main, "%s --resume %s", options, path), REFUSED);
}

TEST_LOOP(memory_does_not_grow, 0, 1 + MODE_BALANCED)
{
    gan g = {.balanced = false};
    run r = {.name = "test", .last = 30};
    make_small();
    uint64_t before[EK_MAX_DEVICES];
    opt.mode = _i;
    opt.devices = opt.mode == MODE_SINGLE ? NULL : "3";
    assert_ok(gan_open(&g, NULL));
    while (run_next(&r)) {
        gan_step(&g, &r);
        for (int d = 0; d < g.devices.count && r.step >= 2; d++) {
            if (r.step == 2)
                before[d] = bytes_in_use(g.devices.devices[d]);
            ck_assert_uint_eq(bytes_in_use(g.devices.devices[d]), before[d]);
        }
    }
    assert_ok(ek_error_status());
    gan_close(&g);
    series_free(r.series, SERIES);
    assert_ok(ek_shutdown()); /* every ledger is at zero */
}

TEST(losses_have_to_be_finite)
{
    const double losses[] = {INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 3; i++) {
        double value;
        ek_scope scope = ek_scope_begin();
        ek_tensor *loss = ek_full(losses[i], EK_SHAPE(1));
        ek_tensor_set_requires_grad(loss, true);
        ck_assert_int_eq(adversary_backward(ek_sum(loss), &value), EK_E_INVALID);
        ek_error_clear();
        ek_scope_end(&scope);
    }
}
