/* test_imbalance.c: what the main job claims: scenes, memory per device, equal results. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

int imbalance_main(int argc, char **argv);
#define main imbalance_main
#include "imbalance.c"
#undef main
#include "unit.h"

static const char data[] = "/usr/share/datasets/fashion-mnist";

/* The sample's defaults. */
static run_settings defaults(void)
{
    run_settings settings;
    char name[] = "imbalance", *argv[] = {name, NULL};

    ck_assert_int_eq(settings_parse(&settings, 1, argv), 0);
    settings.kind = test_kind();
    return settings;
}

/* ---- scenes ---- */

static bool near_another_label(const uint8_t *labels, int size, int y, int x, uint8_t label)
{
    for (int v = y - 1; v <= y + 1; v++)
        for (int u = x - 1; u <= x + 1; u++)
            if (v >= 0 && u >= 0 && v < size && u < size && labels[v * size + u] != SCENE_IGNORED &&
                labels[v * size + u] != label)
                return true;
    return false;
}

START_TEST(scenes_are_labelled)
{
    scene_set scenes;
    int64_t counts[256] = {0};

    assert_ok(scenes_make(&scenes, data, false, 100, 64, 5));
    for (int64_t s = 0; s < scenes.count; s++) {
        const uint8_t *image = scenes.images + s * 64 * 64, *labels = scenes.labels + s * 64 * 64;
        for (int i = 0; i < 64 * 64; i++) {
            uint8_t label = labels[i];
            counts[label]++;
            ck_assert(label <= 10 || label == SCENE_IGNORED);
            if (label == SCENE_IGNORED)
                continue;
            ck_assert_int_eq(image[i] > THRESHOLD, label > 0);
            /* Two labels never touch: what lies between is ignored. */
            ck_assert(!near_another_label(labels, 64, i / 64, i % 64, label));
        }
    }
    for (int label = 0; label <= 10; label++)
        ck_assert_int_gt(counts[label], 100);
    ck_assert_int_gt(counts[SCENE_IGNORED], 100 * 64 * 64 / 20);
    ck_assert_int_lt(counts[SCENE_IGNORED], 100 * 64 * 64 / 2);
    scenes_free(&scenes);
}
END_TEST

START_TEST(scenes_follow_the_seed)
{
    scene_set a, b, c;

    assert_ok(scenes_make(&a, data, false, 3, 40, 1));
    assert_ok(scenes_make(&b, data, false, 3, 40, 1));
    assert_ok(scenes_make(&c, data, false, 3, 40, 2));
    ck_assert(memcmp(a.images, b.images, 3 * 1600) == 0);
    ck_assert(memcmp(a.labels, b.labels, 3 * 1600) == 0);
    ck_assert(memcmp(a.images, c.images, 3 * 1600) != 0);
    scenes_free(&a);
    scenes_free(&b);
    scenes_free(&c);
}
END_TEST

START_TEST(batches_hold_scenes)
{
    scene_set scenes;
    ek_tensor *images, *labels;
    const int64_t order[] = {2, 0, 5}; /* 5 wraps around to 2 */

    assert_ok(scenes_make(&scenes, data, false, 3, 32, 1));
    assert_ok(scenes_batch(&scenes, order, 3, &images, &labels));
    for (int i = 0; i < 1024; i++) {
        ck_assert(element(images, i) == (double)((float)scenes.images[2 * 1024 + i] / 255));
        ck_assert(element(labels, 1024 + i) == scenes.labels[i]);
        ck_assert(element(labels, 2048 + i) == scenes.labels[2 * 1024 + i]);
    }
    scenes_free(&scenes);
}
END_TEST

/* ---- results ---- */

static run_settings small(void)
{
    run_settings settings = defaults();

    settings.size = 32;
    settings.width = 8;
    settings.batch = 10; /* 3, 3, 3 and 1 */
    settings.steps = 5;
    settings.scenes = 40;
    settings.test_scenes = 16;
    return settings;
}

static void run(const run_settings *settings, train_mode mode, mode_result *result)
{
    scene_set train, test;

    assert_ok(scenes_make(&train, data, true, settings->scenes, (int)settings->size, 0));
    assert_ok(scenes_make(&test, data, false, settings->test_scenes, (int)settings->size, 1));
    assert_ok(train_run(settings, &train, &test, mode, result));
    scenes_free(&train);
    scenes_free(&test);
}

START_TEST(classic_and_balanced_agree)
{
    run_settings settings = small();
    mode_result classic, balanced;

    run(&settings, MODE_CLASSIC, &classic);
    run(&settings, MODE_BALANCED, &balanced);
    ck_assert_int_eq(classic.loss_count, 5);
    ck_assert_int_eq(balanced.loss_count, 5);
    for (int i = 0; i < 5; i++)
        ck_assert_double_le(fabs(classic.losses[i] - balanced.losses[i]), 1e-5 * classic.losses[i]);
    mode_result_free(&classic);
    mode_result_free(&balanced);
}
END_TEST

/* What is divided is the same numbers elsewhere. */
START_TEST(sharded_is_balanced_to_the_bit)
{
    run_settings settings = small();

    for (int adam = 0; adam < 2; adam++) {
        mode_result balanced, sharded;
        settings.adam = adam;
        settings.lr = adam ? 0.001 : 0.05;
        run(&settings, MODE_BALANCED, &balanced);
        run(&settings, MODE_SHARDED, &sharded);
        ck_assert_mem_eq(balanced.losses, sharded.losses, 5 * sizeof(double));
        ck_assert_str_eq(balanced.sha256, sharded.sha256);
        mode_result_free(&balanced);
        mode_result_free(&sharded);
    }
}
END_TEST

/* A run's plans as text give the run again. */
START_TEST(plans_are_replayed)
{
    run_settings settings = small();
    mode_result measured, replayed;
    char plan[sizeof(measured.plan)];

    settings.steps = 12;
    run(&settings, MODE_AUTO, &measured);
    memcpy(plan, measured.plan, sizeof(plan));
    ck_assert_str_ne(plan, "");
    settings.plan = plan;
    run(&settings, MODE_AUTO, &replayed);
    ck_assert_str_eq(measured.sha256, replayed.sha256);
    settings.plan = "4,4,1,1"; /* another plan, other roundings */
    mode_result_free(&replayed);
    run(&settings, MODE_AUTO, &replayed);
    ck_assert_str_ne(measured.sha256, replayed.sha256);
    ck_assert_int_eq(replayed.share[0], 4);
    ck_assert_int_eq(replayed.share[3], 1);
    mode_result_free(&measured);
    mode_result_free(&replayed);
}
END_TEST

START_TEST(runs_repeat_to_the_bit)
{
    run_settings settings = small();

    for (int mode = 0; mode < MODES; mode++) {
        mode_result first, second;
        run(&settings, (train_mode)mode, &first);
        run(&settings, (train_mode)mode, &second);
        ck_assert_str_eq(first.sha256, second.sha256);
        ck_assert_mem_eq(first.losses, second.losses, 5 * sizeof(double));
        ck_assert(first.pixel_accuracy == second.pixel_accuracy);
        mode_result_free(&first);
        mode_result_free(&second);
    }
}
END_TEST

/* ---- memory ---- */

/* Bytes that remain of what training in the classic way must hold on device 0 when the gradient of
 * the loss with respect to the upsampled logits is there: nothing of the replica's activations is
 * freed yet. */
static double needed_on_device_0(const run_settings *settings, double parameters)
{
    const double f32 = 4, i64 = 8, width = (double)settings->width;
    const double pixels = (double)settings->size * (double)settings->size;
    const double whole = (double)settings->batch, part = whole / (double)settings->devices;
    /* Elements per scene of each stage's output: channels times pixels at its stride. */
    const double stages =
        width * pixels / 4 + 2 * 2 * width * pixels / 16 + (2 * 4 + 6) * width * pixels / 64;
    const double logits = SCENE_CLASSES * pixels / 64, upsampled = SCENE_CLASSES * pixels;
    double bytes = 0;

    bytes += f32 * parameters;     /* the weights */
    bytes += f32 * parameters;     /* their gradients, one slab */
    bytes += f32 * parameters;     /* the momentum */
    bytes += f32 * part * pixels;  /* the images of this replica: the first convolution's input */
    bytes += f32 * part * stages;  /* outputs of the convolutions: what normalisation was given */
    bytes += f32 * part * stages;  /* outputs of the ReLUs: what the next convolution was given */
    bytes += f32 * whole * logits; /* the gathered outputs */
    bytes += i64 * whole * pixels; /* the whole target */
    bytes += f32 * whole * upsampled; /* the log-probabilities that cross entropy saves */
    bytes += f32 * whole * upsampled; /* the gradient of the upsampled logits */
    return bytes;
}

static uint64_t device_peak(const mode_result *result, int index)
{
    ek_device_report device;

    assert_ok(ek_report_get_device(result->report, index, &device));
    return device.peak.in_use;
}

START_TEST(classic_is_not_wasteful)
{
    run_settings settings = defaults();
    mode_result classic;

    settings.steps = 2;
    settings.scenes = 128;
    settings.test_scenes = 1;
    run(&settings, MODE_CLASSIC, &classic);
    double needed = needed_on_device_0(&settings, (double)classic.parameters);
    double peak = (double)device_peak(&classic, 0);
    ck_assert_msg(peak <= 1.1 * needed, "the peak %.0f is %.3f of what is needed", peak,
                  peak / needed);
    ck_assert_msg(peak >= 0.9 * needed, "the list is wrong: %.3f of it is enough", peak / needed);
    mode_result_free(&classic);
}
END_TEST

START_TEST(balanced_is_level)
{
    run_settings settings = defaults();
    mode_result classic, balanced;

    settings.steps = 2;
    settings.scenes = 128;
    settings.test_scenes = 1;
    run(&settings, MODE_CLASSIC, &classic);
    run(&settings, MODE_BALANCED, &balanced);
    ck_assert_int_eq(ek_report_device_count(balanced.report), 4);
    ck_assert_double_ge(ek_report_imbalance(classic.report) / ek_report_imbalance(balanced.report),
                        1.6);
    mode_result_free(&classic);
    mode_result_free(&balanced);
}
END_TEST

START_TEST(sharded_makes_no_device_special)
{
    run_settings settings = defaults();
    mode_result sharded;

    settings.adam = true;
    settings.lr = 0.001;
    settings.steps = 3;
    settings.scenes = 128;
    settings.test_scenes = 1;
    run(&settings, MODE_SHARDED, &sharded);
    ck_assert_double_ge(ek_report_imbalance(sharded.report), 1);
    ck_assert_double_le(ek_report_imbalance(sharded.report), 1.02);
    mode_result_free(&sharded);
}
END_TEST

#ifndef EK_SANITIZED /* searches over many batches: too long there, and they show nothing new */
START_TEST(balanced_fits_twice_the_batch)
{
    run_settings settings = defaults();
    scene_set train;

    settings.capacity = 32 << 20;
    assert_ok(scenes_make(&train, data, true, 64, (int)settings.size, 0));
    int64_t classic = train_largest_batch(&settings, &train, MODE_CLASSIC, 1 << 16);
    int64_t balanced = train_largest_batch(&settings, &train, MODE_BALANCED, 1 << 16);
    ck_assert_int_gt(classic, 0);
    ck_assert_msg(balanced >= 2 * classic, "classic %d, balanced %d", (int)classic, (int)balanced);
    ck_assert_int_eq(train_largest_batch(&settings, &train, MODE_CLASSIC, classic), classic - 1);
    scenes_free(&train);
}
END_TEST

/* Devices of 8 and of 4 MiB are all full at the largest batch. */
START_TEST(automatic_plans_fill_unequal_devices)
{
    run_settings settings = small();
    scene_set train;
    mode_result result;

    settings.device_text = "2x8M,2x4M";
    settings.find_batch = true;
    assert_ok(scenes_make(&train, data, true, 64, (int)settings.size, 0));
    assert_ok(train_find_batch(&settings, &train, MODE_AUTO, &result));
    ck_assert_int_gt(result.largest, 0);
    for (int d = 0; d < 4; d++)
        ck_assert_msg(device_peak(&result, d) >= 95 * (uint64_t)(d < 2 ? 8 << 20 : 4 << 20) / 100,
                      "host:%d: %llu", d, (unsigned long long)device_peak(&result, d));
    mode_result_free(&result);
    scenes_free(&train);
}
END_TEST
#endif

START_TEST(memory_does_not_grow)
{
    run_settings settings = small();
    scene_set scenes;

    assert_ok(scenes_make(&scenes, data, true, 16, (int)settings.size, 0));
    for (int mode = 0; mode < MODES; mode++) {
        train_job job;
        uint64_t in_use[EK_MAX_DEVICES] = {0};
        assert_ok(job_open(&job, &settings, (train_mode)mode));
        for (int step = 0; step < 200; step++) {
            ek_scope scope = ek_scope_begin();
            ek_tensor *images, *labels;
            double loss;
            int64_t order[10];
            for (int i = 0; i < 10; i++)
                order[i] = step + i;
            assert_ok(scenes_batch(&scenes, order, 10, &images, &labels));
            assert_ok(job_step(&job, images, labels, &loss));
            ek_scope_end(&scope);
            for (int d = 0; d < job.devices.count && step >= 1; d++) {
                ek_memory_stats stats;
                assert_ok(ek_memory_get_stats(job.devices.devices[d], &stats));
                if (step == 1)
                    in_use[d] = stats.in_use;
                ck_assert_uint_eq(stats.in_use, in_use[d]);
            }
        }
        assert_ok(job_close(&job, 0)); /* every ledger is at zero */
    }
    scenes_free(&scenes);
}
END_TEST

/* Set to nothing it is as if it were not set. */
START_TEST(an_empty_environment_names_no_devices)
{
    setenv("EVENKEEL_HOST_DEVICES", "", 1);
    run_settings settings = small();
    train_job job;
    assert_ok(job_open(&job, &settings, MODE_BALANCED));
    ck_assert_int_eq(job.devices.count, 4);
    assert_ok(job_close(&job, 0));
}
END_TEST

/* A step without room fails with a sentence, leaves the job usable, and a smaller one succeeds. */
START_TEST(a_smaller_step_succeeds)
{
    run_settings settings = small();
    scene_set scenes;
    train_job job;
    int64_t order[200] = {0};
    double loss;

    settings.capacity = 2 << 20;
    assert_ok(scenes_make(&scenes, data, true, 16, (int)settings.size, 0));
    for (int mode = 0; mode < MODES; mode++) {
        ek_tensor *images, *labels, *few_images, *few_labels;
        assert_ok(scenes_batch(&scenes, order, 200, &images, &labels));
        assert_ok(scenes_batch(&scenes, order, 4, &few_images, &few_labels));
        assert_ok(job_open(&job, &settings, (train_mode)mode));
        assert_ok(job_step(&job, few_images, few_labels, &loss));
        for (int i = 0; i < 3; i++) {
            ck_assert_int_eq(job_step(&job, images, labels, &loss), EK_E_OUT_OF_MEMORY);
            assert_error(EK_E_OUT_OF_MEMORY, "capacity 2.00 MiB");
            assert_ok(job_step(&job, few_images, few_labels, &loss));
        }
        ck_assert(isfinite(loss));
        assert_ok(job_close(&job, 0));
    }
    scenes_free(&scenes);
}
END_TEST

Suite *suite(void)
{
    Suite *s = suite_create("imbalance");
    TCase *c = tcase_create("scenes"), *r = tcase_create("results"), *m = tcase_create("memory"),
          *d = tcase_create("devices");

    tcase_add_test(d, an_empty_environment_names_no_devices);
    tcase_add_test(c, scenes_are_labelled);
    tcase_add_test(c, scenes_follow_the_seed);
    tcase_add_test(c, batches_hold_scenes);
    tcase_add_test(r, classic_and_balanced_agree);
    tcase_add_test(r, runs_repeat_to_the_bit);
    tcase_add_test(r, sharded_is_balanced_to_the_bit);
    tcase_add_test(r, plans_are_replayed);
    tcase_add_test(m, memory_does_not_grow);
    tcase_add_test(m, a_smaller_step_succeeds);
    tcase_add_test(m, classic_is_not_wasteful);
    tcase_add_test(m, balanced_is_level);
    tcase_add_test(m, sharded_makes_no_device_special);
#ifndef EK_SANITIZED
    tcase_add_test(m, balanced_fits_twice_the_batch);
    if (test_kind() == EK_HOST)
        tcase_add_test(m, automatic_plans_fill_unequal_devices);
#endif
    TCase *const cases[] = {d, c, r, m};
    for (int i = 0; i < 4; i++) {
        tcase_set_timeout(cases[i], 300);
        suite_add_tcase(s, cases[i]);
    }
    return s;
}
