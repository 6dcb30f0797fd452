/* The GAN sample trains on GPUs as it does on the host. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "evenkeel/device.h"
#include "gan/checkpoint.h"
#include "gan/train.h"
#include "unit.h"

enum { STEPS = 50, CRITIC_STEPS = 2 };

/* What each step measured. */
typedef struct measured {
    double critic[STEPS * CRITIC_STEPS], penalty[STEPS * CRITIC_STEPS], generator[STEPS];
} measured;

static run_settings make_settings(ek_device_kind kind, ek_dtype dtype)
{
    run_settings settings;
    char name[] = "gan", *argv[] = {name, NULL};

    ck_assert_int_eq(settings_parse(&settings, 1, argv), 0);
    settings.kind = kind;
    settings.dtype = dtype;
    settings.devices = 2;
    settings.mode = MODE_BALANCED;
    settings.norm = NORM_LAYER;
    settings.width = 2;
    settings.batch = 5; /* 3 and 2 */
    settings.critic_steps = CRITIC_STEPS;
    settings.steps = STEPS;
    return settings;
}

static void open_run(train_run *run, const run_settings *settings)
{
    ek_device_list devices = settings_devices(settings);

    assert_ok(train_open(run, settings, &devices));
}

static void keep(const train_run *run, measured *into)
{
    int64_t critic = run->step * CRITIC_STEPS;

    memcpy(into->critic, run->records.values[CRITIC_LOSSES], (size_t)critic * sizeof(double));
    memcpy(into->penalty, run->records.values[PENALTIES], (size_t)critic * sizeof(double));
    memcpy(into->generator, run->records.values[GENERATOR_LOSSES],
           (size_t)run->step * sizeof(double));
}

/* Losses are differences of scores: what is close is measured against 1 where they are small. */
static void compare(const char *what, double host, double gpu, double tolerance, int64_t step)
{
    double scale = fabs(host) > 1 ? fabs(host) : 1;

    if (!(fabs(host - gpu) <= tolerance * scale))
        ck_abort_msg("step %d: %s %.12g on the host, %.12g on GPUs", (int)step, what, host, gpu);
}

static void compare_step(const measured *host, const measured *gpu, int64_t step, double tolerance)
{
    for (int64_t i = step * CRITIC_STEPS; i < (step + 1) * CRITIC_STEPS; i++) {
        compare("critic's loss", host->critic[i], gpu->critic[i], tolerance, step);
        compare("penalty", host->penalty[i], gpu->penalty[i], tolerance, step);
    }
    compare("generator's loss", host->generator[step], gpu->generator[step], tolerance, step);
}

START_TEST(f64_stays_close_over_all_steps)
{
    static measured of[2];

    for (int gpu = 0; gpu < 2; gpu++) {
        train_run run;
        run_settings settings = make_settings(gpu ? EK_CUDA : EK_HOST, EK_F64);
        open_run(&run, &settings);
        while (run.step < STEPS)
            assert_ok(train_step(&run));
        keep(&run, &of[gpu]);
        assert_ok(train_close(&run));
    }
    for (int64_t step = 0; step < STEPS; step++)
        compare_step(&of[0], &of[1], step, 1e-8);
}
END_TEST

/* In f32 a rounding can push a value over the corner of a leaky ReLU, so that runs drift apart:
 * each step begins with the host's state. */
START_TEST(f32_steps_are_close_from_the_same_state)
{
    static measured host, gpu;
    char folder[] = "/tmp/test_cuda_gan_XXXXXX", path[64];
    run_settings settings = make_settings(EK_HOST, EK_F32);
    train_run run;

    ck_assert_ptr_nonnull(mkdtemp(folder));
    open_run(&run, &settings);
    while (run.step < STEPS) {
        snprintf(path, sizeof(path), "%s/%d", folder, (int)run.step);
        assert_ok(checkpoint_save(path, &run.job, &run.records, run.step));
        assert_ok(train_step(&run));
    }
    keep(&run, &host);
    assert_ok(train_close(&run));

    settings.kind = EK_CUDA;
    settings.resume = path;
    for (int step = 0; step < STEPS; step++) {
        snprintf(path, sizeof(path), "%s/%d", folder, step);
        open_run(&run, &settings);
        assert_ok(train_step(&run));
        keep(&run, &gpu);
        compare_step(&host, &gpu, step, 1e-4);
        assert_ok(train_close(&run));
        unlink(path);
    }
    rmdir(folder);
}
END_TEST

Suite *suite(void)
{
    skip_without_gpu();
    Suite *s = suite_create("gan on GPUs");
    TCase *tests = tcase_create("host and GPUs");
    tcase_add_test(tests, f64_stays_close_over_all_steps);
    tcase_add_test(tests, f32_steps_are_close_from_the_same_state);
    suite_add_tcase(s, tests);
    return s;
}
