/* test_imbalance.c: what the main job claims: scenes, memory per device, equal results. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

int imbalance_main(int argc, char **argv);
#define main imbalance_main
#include "imbalance.c"
#undef main
#include "kit/devices.h"

/* The sample's defaults. */
static run_settings defaults(void)
{
    run_settings settings;
    char name[] = "imbalance", *argv[] = {name, NULL};
    ck_assert_int_eq(settings_parse(&settings, 1, argv), 0);
    settings.device = test_kind();
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

TEST(scenes_are_labelled)
{
    int64_t counts[256] = {0};
    ek_dataset *scenes = scenes_make(args_pictures(), false, SCENE_DARK, 100, 64, 5);
    assert_made(scenes);
    const scene_set *set = (const scene_set *)scenes;
    for (int64_t s = 0; s < set->count; s++) {
        const uint8_t *image = set->images + s * 64 * 64, *labels = set->labels + s * 64 * 64;
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
    ek_dataset_free(scenes);
}

TEST(scenes_follow_the_seed)
{
    ek_dataset *made[3];
    const scene_set *of[3];
    for (int i = 0; i < 3; i++) {
        made[i] = scenes_make(args_pictures(), false, SCENE_DARK, 3, 40, i < 2 ? 1 : 2);
        assert_made(made[i]);
        of[i] = (const scene_set *)made[i];
    }
    ck_assert(memcmp(of[0]->images, of[1]->images, 3 * 1600) == 0);
    ck_assert(memcmp(of[0]->labels, of[1]->labels, 3 * 1600) == 0);
    ck_assert(memcmp(of[0]->images, of[2]->images, 3 * 1600) != 0);
    for (int i = 0; i < 3; i++)
        ek_dataset_free(made[i]);
}

TEST(batches_hold_scenes)
{
    ek_dataset *scenes = scenes_make(args_pictures(), false, SCENE_DARK, 3, 32, 1);
    assert_made(scenes);
    const scene_set *set = (const scene_set *)scenes;
    ek_value batch = dataset_first(scenes, 5); /* the last two are the first two again */
    ek_tensor *images = ek_value_tensor(ek_value_at(batch, 0));
    ek_tensor *labels = ek_value_tensor(ek_value_at(batch, 1));
    ck_assert_int_eq(ek_tensor_size(images, 0), 5);
    for (int i = 0; i < 5 * 1024; i++) {
        ck_assert(element(images, i) == (double)((float)set->images[i % 3072] / 255));
        ck_assert(element(labels, i) == set->labels[i % 3072]);
    }
    ek_dataset_free(scenes);
}

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

static void run_mode(const run_settings *settings, train_mode mode, mode_result *result)
{
    ek_dataset *train =
        scenes_make(args_pictures(), true, SCENE_DARK, settings->scenes, settings->size, 0);
    assert_made(train);
    ek_dataset *test =
        scenes_make(args_pictures(), false, SCENE_DARK, settings->test_scenes, settings->size, 1);
    assert_made(test);
    assert_ok(mode_train(settings, train, test, mode, result));
    ek_dataset_free(train);
    ek_dataset_free(test);
}

TEST(classic_and_balanced_agree)
{
    run_settings settings = small();
    mode_result classic, balanced;
    run_mode(&settings, MODE_CLASSIC, &classic);
    run_mode(&settings, MODE_BALANCED, &balanced);
    ck_assert_int_eq(classic.losses.count, 5);
    ck_assert_int_eq(balanced.losses.count, 5);
    for (int i = 0; i < 5; i++)
        ck_assert_double_le(fabs(classic.losses.values[i] - balanced.losses.values[i]),
                            1e-5 * classic.losses.values[i]);
    mode_result_free(&classic);
    mode_result_free(&balanced);
}

/* What is divided is the same numbers elsewhere. */
TEST(sharded_is_balanced_to_the_bit)
{
    run_settings settings = small();
    for (int adam = 0; adam < 2; adam++) {
        mode_result balanced, sharded;
        settings.adam = adam;
        settings.lr = adam ? 0.001 : 0.05;
        run_mode(&settings, MODE_BALANCED, &balanced);
        run_mode(&settings, MODE_SHARDED, &sharded);
        ck_assert_mem_eq(balanced.losses.values, sharded.losses.values, 5 * sizeof(double));
        ck_assert_str_eq(balanced.sha256, sharded.sha256);
        mode_result_free(&balanced);
        mode_result_free(&sharded);
    }
}

/* A run's plans as text give the run again. */
TEST(plans_are_replayed)
{
    run_settings settings = small();
    mode_result measured, replayed;
    char plan[sizeof measured.plan];
    settings.steps = 12;
    run_mode(&settings, MODE_AUTO, &measured);
    memcpy(plan, measured.plan, sizeof plan);
    ck_assert_str_ne(plan, "");
    settings.plan = plan;
    run_mode(&settings, MODE_AUTO, &replayed);
    ck_assert_str_eq(measured.sha256, replayed.sha256);
    settings.plan = "4,4,1,1"; /* another plan, other roundings */
    mode_result_free(&replayed);
    run_mode(&settings, MODE_AUTO, &replayed);
    ck_assert_str_ne(measured.sha256, replayed.sha256);
    ck_assert_int_eq(replayed.share[0], 4);
    ck_assert_int_eq(replayed.share[3], 1);
    mode_result_free(&measured);
    mode_result_free(&replayed);
}

TEST(runs_repeat_to_the_bit)
{
    run_settings settings = small();
    for (int mode = 0; mode < MODES; mode++) {
        mode_result first, second;
        run_mode(&settings, (train_mode)mode, &first);
        run_mode(&settings, (train_mode)mode, &second);
        ck_assert_str_eq(first.sha256, second.sha256);
        ck_assert_mem_eq(first.losses.values, second.losses.values, 5 * sizeof(double));
        ck_assert(first.pixel_accuracy == second.pixel_accuracy);
        mode_result_free(&first);
        mode_result_free(&second);
    }
}

/* ---- memory ---- */

/* Bytes that remain of what training in the classic way must hold on device 0 when the gradient of
 * the loss with respect to the upsampled logits is there: nothing of the replica's activations is
 * freed yet. */
static double needed_on_device_0(const run_settings *settings, double parameters)
{
    const double f32 = 4, i64 = 8, width = (double)settings->width;
    const double pixels = (double)settings->size * (double)settings->size;
    const double whole = (double)settings->batch, part = whole / (double)settings->device_count;
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
    bytes += f32 * whole * upsampled; /* the upsampled logits; their gradient takes this memory */
    return bytes;
}

static uint64_t device_peak(const mode_result *result, int index)
{
    ek_device_report device;
    assert_ok(ek_report_get_device(result->report, index, &device));
    return device.peak.in_use;
}

TEST(classic_is_not_wasteful)
{
    run_settings settings = defaults();
    mode_result classic;
    settings.steps = 2;
    settings.scenes = 128;
    settings.test_scenes = 1;
    run_mode(&settings, MODE_CLASSIC, &classic);
    double needed = needed_on_device_0(&settings, (double)classic.parameters);
    double peak = (double)device_peak(&classic, 0);
    ck_assert_msg(peak <= 1.1 * needed, "the peak %.0f is %.3f of what is needed", peak,
                  peak / needed);
    ck_assert_msg(peak >= 0.9 * needed, "the list is wrong: %.3f of it is enough", peak / needed);
    mode_result_free(&classic);
}

TEST(balanced_is_level)
{
    run_settings settings = defaults();
    mode_result classic, balanced;
    settings.steps = 2;
    settings.scenes = 128;
    settings.test_scenes = 1;
    run_mode(&settings, MODE_CLASSIC, &classic);
    run_mode(&settings, MODE_BALANCED, &balanced);
    ck_assert_int_eq(ek_report_device_count(balanced.report), 4);
    ck_assert_double_ge(ek_report_imbalance(classic.report) / ek_report_imbalance(balanced.report),
                        1.3);
    mode_result_free(&classic);
    mode_result_free(&balanced);
}

TEST(sharded_makes_no_device_special)
{
    run_settings settings = defaults();
    mode_result sharded;
    settings.adam = true;
    settings.lr = 0.001;
    settings.steps = 3;
    settings.scenes = 128;
    settings.test_scenes = 1;
    run_mode(&settings, MODE_SHARDED, &sharded);
    ck_assert_double_ge(ek_report_imbalance(sharded.report), 1);
    ck_assert_double_le(ek_report_imbalance(sharded.report), 1.02);
    mode_result_free(&sharded);
}

#ifndef EK_SANITIZED /* searches over many batches: too long there, and they show nothing new */
TEST(balanced_fits_a_larger_batch)
{
    run_settings settings = defaults();
    settings.cap = 32 << 20;
    ek_dataset *train = scenes_make(args_pictures(), true, SCENE_DARK, 64, settings.size, 0);
    assert_made(train);
    int64_t classic = mode_largest_batch(&settings, train, MODE_CLASSIC, 1 << 16);
    int64_t balanced = mode_largest_batch(&settings, train, MODE_BALANCED, 1 << 16);
    ck_assert_int_gt(classic, 0);
    ck_assert_msg(balanced >= 1.7 * (double)classic, "classic %d, balanced %d", (int)classic,
                  (int)balanced);
    ck_assert_int_eq(mode_largest_batch(&settings, train, MODE_CLASSIC, classic), classic - 1);
    ek_dataset_free(train);
}

/* Devices of 8 and of 4 MiB are all full at the largest batch. */
TEST_LOOP(automatic_plans_fill_unequal_devices, 0, test_kind() == EK_HOST)
{
    run_settings settings = small();
    mode_result result;
    settings.devices = "2x8M,2x4M";
    settings.find_batch = true;
    ek_dataset *train = scenes_make(args_pictures(), true, SCENE_DARK, 64, settings.size, 0);
    assert_made(train);
    assert_ok(mode_find_batch(&settings, train, MODE_AUTO, &result));
    ck_assert_int_gt(result.largest, 0);
    for (int d = 0; d < 4; d++)
        ck_assert_msg(device_peak(&result, d) >= 95 * (uint64_t)(d < 2 ? 8 << 20 : 4 << 20) / 100,
                      "host:%d: %llu", d, (unsigned long long)device_peak(&result, d));
    mode_result_free(&result);
    ek_dataset_free(train);
}
#endif

TEST(memory_does_not_grow)
{
    run_settings settings = small();
    ek_dataset *scenes = scenes_make(args_pictures(), true, SCENE_DARK, 16, settings.size, 0);
    assert_made(scenes);
    for (int mode = 0; mode < MODES; mode++) {
        train_job job;
        uint64_t in_use[EK_MAX_DEVICES] = {0};
        assert_ok(mode_open(&job, &settings, (train_mode)mode));
        for (int step = 0; step < 24; step++) {
            ek_scope scope = ek_scope_begin();
            double loss;
            const int64_t order[] = {step % 16, (step + 5) % 16, 15, 3, 9, 2, 4, 6, 8, 10};
            ek_value batch = ek_dataset_get_batch(scenes, order, 10, ek_cpu());
            assert_ok(job_step(&job, ek_value_at(batch, 0), ek_value_at(batch, 1), &loss));
            ek_scope_end(&scope);
            for (int d = 0; d < job.devices.count && step >= 1; d++) {
                uint64_t now = bytes_in_use(job.devices.devices[d]);
                if (step == 1)
                    in_use[d] = now;
                ck_assert_uint_eq(now, in_use[d]);
            }
        }
        assert_ok(mode_close(&job, 0)); /* every ledger is at zero */
    }
    ek_dataset_free(scenes);
}

/* Set to nothing it is as if it were not set. */
TEST(an_empty_environment_names_no_devices)
{
    setenv("EVENKEEL_HOST_DEVICES", "", 1);
    run_settings settings = small();
    train_job job;
    assert_ok(mode_open(&job, &settings, MODE_BALANCED));
    ck_assert_int_eq(job.devices.count, 4);
    assert_ok(mode_close(&job, 0));
}

/* A step without room fails with a sentence, leaves the job usable, and a smaller one succeeds. */
TEST(a_smaller_step_succeeds)
{
    run_settings settings = small();
    train_job job;
    double loss;
    settings.cap = 2 << 20;
    ek_dataset *scenes = scenes_make(args_pictures(), true, SCENE_DARK, 16, settings.size, 0);
    assert_made(scenes);
    for (int mode = 0; mode < MODES; mode++) {
        ek_value many = dataset_first(scenes, 200), few = dataset_first(scenes, 4);
        ek_value images = ek_value_at(many, 0), labels = ek_value_at(many, 1);
        ek_value few_images = ek_value_at(few, 0), few_labels = ek_value_at(few, 1);
        assert_ok(mode_open(&job, &settings, (train_mode)mode));
        assert_ok(job_step(&job, few_images, few_labels, &loss));
        for (int i = 0; i < 3; i++) {
            ck_assert_int_eq(job_step(&job, images, labels, &loss), EK_E_OUT_OF_MEMORY);
            assert_error(EK_E_OUT_OF_MEMORY, "capacity 2.00 MiB");
            assert_ok(job_step(&job, few_images, few_labels, &loss));
        }
        ck_assert(isfinite(loss));
        assert_ok(mode_close(&job, 0));
    }
    ek_dataset_free(scenes);
}
