/* The GAN sample trains on GPUs as it does on the host. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int gan_main(int argc, char **argv);
#define main gan_main
#include "gan.c"
#undef main
#include "program.h"

enum { STEPS = 50, CRITIC_STEPS = 2 };

BEFORE_ALL(skip_without_gpu)

/* What each step measured. */
typedef struct measured {
    double critic[STEPS * CRITIC_STEPS], penalty[STEPS * CRITIC_STEPS], generator[STEPS];
} measured;

static void choose(ek_device_kind kind, ek_dtype dtype)
{
    char name[] = "gan", *argv[] = {name, NULL};
    ck_assert_int_eq(args_read(1, argv, "", option_table), 0);
    opt.device = kind;
    opt.dtype = dtype;
    opt.devices = "2";
    opt.mode = MODE_BALANCED;
    opt.critic_norm = NORM_LAYER;
    opt.width = 2;
    opt.batch = 5; /* 3 and 2 */
    opt.critic_steps = CRITIC_STEPS;
    opt.steps = STEPS;
}

static void close_run(gan *g, run *r)
{
    gan_close(g);
    series_free(r->series, SERIES);
    assert_ok(ek_shutdown());
}

static void keep(const run *r, measured *into)
{
    int64_t critic = r->step * CRITIC_STEPS;
    memcpy(into->critic, r->series[CRITIC_LOSSES].values, (size_t)critic * sizeof(double));
    memcpy(into->penalty, r->series[PENALTIES].values, (size_t)critic * sizeof(double));
    memcpy(into->generator, r->series[GENERATOR_LOSSES].values, (size_t)r->step * sizeof(double));
}

/* Opens a run of so many steps, with what it keeps. */
static void open_run(gan *g, run *r, int64_t steps)
{
    *g = (gan){.random = NULL};
    *r = (run){.name = "test", .last = steps, .format = "evenkeel gan 3", .deciding = ""};
    assert_ok(gan_open(g, r->from));
    run_series(r, series_names, SERIES);
    adversary_keep(r, &g->generator, &g->critic, g->random, g->loader, false);
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
        gan g;
        run r;
        choose(gpu ? EK_CUDA : EK_HOST, EK_F64);
        open_run(&g, &r, STEPS);
        while (run_next(&r))
            gan_step(&g, &r);
        assert_ok(ek_error_status());
        keep(&r, &of[gpu]);
        close_run(&g, &r);
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
    gan g;
    run r;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    choose(EK_HOST, EK_F32);
    open_run(&g, &r, STEPS);
    while (run_next(&r)) {
        r.step--; /* the step that is saved is finished */
        snprintf(path, sizeof path, "%s/%d", folder, (int)r.step);
        assert_ok(run_save(&r, path));
        r.step++;
        gan_step(&g, &r);
    }
    assert_ok(ek_error_status());
    keep(&r, &host);
    close_run(&g, &r);

    opt.device = EK_CUDA;
    for (int step = 0; step < STEPS; step++) {
        snprintf(path, sizeof path, "%s/%d", folder, step);
        open_run(&g, &r, step + 1);
        r.from = ek_archive_open(path);
        ck_assert_ptr_nonnull(r.from);
        while (run_next(&r))
            gan_step(&g, &r);
        assert_ok(ek_error_status());
        keep(&r, &gpu);
        compare_step(&host, &gpu, step, 1e-4);
        close_run(&g, &r);
        unlink(path);
    }
    rmdir(folder);
}
