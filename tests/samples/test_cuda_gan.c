/* The GAN sample trains on GPUs as it does on the host. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int gan_main(int argc, char **argv);
#define main gan_main
#include "gan.c"
#undef main
#include "unit.h"

enum { STEPS = 50, CRITIC_STEPS = 2 };

BEFORE_ALL(skip_without_gpu)

/* What each step measured. */
typedef struct measured {
    double critic[STEPS * CRITIC_STEPS], penalty[STEPS * CRITIC_STEPS], generator[STEPS];
} measured;

static void choose(ek_device_kind kind, ek_dtype dtype)
{
    char name[] = "gan", *argv[] = {name, NULL};
    ck_assert_int_eq(args_read(1, argv, "", gan_args), 0);
    opt.kind = kind;
    opt.dtype = dtype;
    opt.device_text = "2";
    opt.mode = MODE_BALANCED;
    opt.norm = NORM_LAYER;
    opt.width = 2;
    opt.batch = 5; /* 3 and 2 */
    opt.critic_steps = CRITIC_STEPS;
    opt.steps = STEPS;
}

static int close_run(gan *run)
{
    gan_close(&run->state);
    return ek_shutdown();
}

static void keep(const gan *run, measured *into)
{
    int64_t critic = run->state.step * CRITIC_STEPS;
    memcpy(into->critic, run->series[CRITIC_LOSSES].values, (size_t)critic * sizeof(double));
    memcpy(into->penalty, run->series[PENALTIES].values, (size_t)critic * sizeof(double));
    memcpy(into->generator, run->series[GENERATOR_LOSSES].values,
           (size_t)run->state.step * sizeof(double));
}

/* Losses are differences of scores: what is close is measured against 1 if they are small. */
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

TEST(f64_stays_close_over_all_steps)
{
    static measured of[2];
    for (int gpu = 0; gpu < 2; gpu++) {
        gan run;
        choose(gpu ? EK_CUDA : EK_HOST, EK_F64);
        assert_ok(run_open(&gan_kind, &run.state));
        while (run.state.step < STEPS)
            assert_ok(gan_step(&run.state));
        keep(&run, &of[gpu]);
        assert_ok(close_run(&run));
    }
    for (int64_t step = 0; step < STEPS; step++)
        compare_step(&of[0], &of[1], step, 1e-8);
}

/* In f32 a rounding can push a value over the corner of a leaky ReLU, so that runs drift apart:
 * each step begins with the host's state. */
TEST(f32_steps_are_close_from_the_same_state)
{
    static measured host, gpu;
    char folder[] = "/tmp/test_cuda_gan_XXXXXX", path[64];
    gan run;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    choose(EK_HOST, EK_F32);
    assert_ok(run_open(&gan_kind, &run.state));
    while (run.state.step < STEPS) {
        snprintf(path, sizeof path, "%s/%d", folder, (int)run.state.step);
        assert_ok(run_save(&gan_kind, &run.state, path));
        assert_ok(gan_step(&run.state));
    }
    keep(&run, &host);
    assert_ok(close_run(&run));

    opt.kind = EK_CUDA;
    opt.files.resume = path;
    for (int step = 0; step < STEPS; step++) {
        snprintf(path, sizeof path, "%s/%d", folder, step);
        assert_ok(run_open(&gan_kind, &run.state));
        assert_ok(gan_step(&run.state));
        keep(&run, &gpu);
        compare_step(&host, &gpu, step, 1e-4);
        assert_ok(close_run(&run));
        unlink(path);
    }
    rmdir(folder);
}
