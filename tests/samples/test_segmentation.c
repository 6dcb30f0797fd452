/* test_segmentation.c: the parts of the segmentation sample, and PyTorch's losses. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int segmentation_main(int argc, char **argv);
#define main segmentation_main
#include "segmentation.c"
#undef main
#include "program.h"

enum { SEED = 7, STEPS = 20, BATCH = 5, SIDE = 16 };
#define GOLDEN "segmentation.golden"

/* The sample's defaults, smaller. */
static void make_small(void)
{
    char name[] = "segmentation", *argv[] = {name, NULL};
    ck_assert_int_eq(args_read(1, argv, "", option_table), 0);
    opt.device = EK_HOST;
    opt.seed = SEED;
    opt.dtype = EK_F64;
    opt.mode = MODE_SINGLE;
    opt.width = 4;
    opt.depth = 2;
    opt.batch = BATCH;
    opt.size = 32;
    opt.crop = SIDE;
    opt.scenes = 18; /* four steps an epoch, the last of three scenes */
    opt.test_scenes = 3;
    opt.epochs = 2;
    opt.dice = 0.5;
}

/* Two classes and the ground: 2 of 3 right of the first, 1 of 2 of the second, 1 ignored. */
TEST(matrices_count_pixels)
{
    const int64_t label[] = {0, 1, 1, 1, 2, 2, SCENE_IGNORED, 0},
                  found[] = {0, 1, 1, 2, 2, 0, 2, 0};
    confusion_matrix sums = {0};
    assert_ok(confusion_add(&sums, ek_from_data(label, EK_SHAPE(2, 4), EK_I64),
                            ek_from_data(found, EK_SHAPE(2, 4), EK_I64)));
    ck_assert_int_eq(sums.counts[0][0], 2);
    ck_assert_int_eq(sums.counts[1][1], 2);
    ck_assert_int_eq(sums.counts[1][2], 1);
    ck_assert_int_eq(sums.counts[2][2], 1);
    ck_assert_int_eq(sums.counts[2][0], 1);
    ck_assert_double_eq(confusion_accuracy(&sums), 5.0 / 7);
    ck_assert_double_eq(confusion_iou(&sums, 0), 2.0 / 3);
    ck_assert_double_eq(confusion_iou(&sums, 1), 2.0 / 3);
    ck_assert_double_eq(confusion_iou(&sums, 2), 1.0 / 3);
    ck_assert(isnan(confusion_iou(&sums, 3)));
    ck_assert_double_eq_tol(confusion_mean_iou(&sums), 5.0 / 9, 1e-15);
    assert_ok(confusion_add(&sums, ek_from_data(label, EK_SHAPE(2, 4), EK_I64),
                            ek_from_data(found, EK_SHAPE(2, 4), EK_I64)));
    ck_assert_int_eq(sums.counts[1][1], 4);
    ck_assert_double_eq(confusion_accuracy(&(confusion_matrix){0}), 0);
    ck_assert_double_eq(confusion_mean_iou(&(confusion_matrix){0}), 0);
}

/* Scenes of 1 x 2 pixels: bright ones are mostly of class 3, dark ones ground. */
TEST(brightness_alone_says_the_most_frequent_label)
{
    uint8_t known[] = {9, 200, 9, 200, 9, 200, 9, 200}, named[] = {0, 3, 0, 3, 4, 5, 255, 255};
    uint8_t bright[] = {200, 9, 200, 77}, labels_of[] = {3, 4, 5, 0};
    scene_set from = {.count = 2, .size = 2, .images = known, .labels = named};
    scene_set of = {.count = 1, .size = 2, .images = bright, .labels = labels_of};
    confusion_matrix sums = {0};
    confusion_of_brightness(&from.dataset, &of.dataset, &sums);
    ck_assert_int_eq(sums.counts[3][3], 1);
    ck_assert_int_eq(sums.counts[4][0], 1);
    ck_assert_int_eq(sums.counts[5][3], 1);
    ck_assert_int_eq(sums.counts[0][0], 1); /* a brightness that was never seen: ground */
}

TEST(clutter_is_ground)
{
    ek_dataset *scenes = scenes_make(args_pictures(), false, SCENE_CLUTTERED, 20, 40, 5);
    ek_dataset *again = scenes_make(args_pictures(), false, SCENE_CLUTTERED, 20, 40, 5);
    assert_made(scenes);
    assert_made(again);
    const scene_set *set = (const scene_set *)scenes;
    int64_t bright_ground = 0, dark_pictures = 0;
    for (int64_t p = 0; p < 20 * 40 * 40; p++) {
        ck_assert(set->labels[p] < SCENE_CLASSES || set->labels[p] == SCENE_IGNORED);
        bright_ground += set->labels[p] == 0 && set->images[p] > 2 * THRESHOLD;
        dark_pictures +=
            set->labels[p] > 0 && set->labels[p] < SCENE_CLASSES && set->images[p] <= THRESHOLD;
    }
    ck_assert_int_gt(bright_ground, 500);
    ck_assert_int_gt(dark_pictures, 20); /* by noise */
    ck_assert_mem_eq(set->images, ((const scene_set *)again)->images, 20 * 40 * 40);
    ek_dataset_free(scenes);
    ek_dataset_free(again);
}

TEST(dice_is_that_of_the_formula)
{
    ek_tensor *logits = ek_to_device(golden(GOLDEN, "dice/logits"), ek_cpu());
    ek_tensor *target = golden(GOLDEN, "dice/target");
    ek_module *criterion = dice_loss();
    assert_ok(ek_tensor_set_requires_grad(logits, true));
    ek_tensor *loss = ek_loss(criterion, logits, target);
    assert_close(loss, golden(GOLDEN, "dice/loss"), 1e-12, 1e-12);
    assert_ok(ek_backward(loss));
    assert_close(ek_tensor_grad(logits), golden(GOLDEN, "dice/gradient"), 1e-12, 1e-12);
    ek_module_free(criterion);
}

TEST(labels_have_colours)
{
    const int64_t drawn[] = {1, SCENE_IGNORED};
    ek_tensor *colours = scenes_colour(ek_from_data(drawn, EK_SHAPE(1, 1, 2), EK_I64));
    for (int c = 0; c < 3; c++) {
        ck_assert(element(colours, 2 * c) == scene_labels[1].colour[c]);
        ck_assert(element(colours, 2 * c + 1) == scene_labels[SCENE_CLASSES].colour[c]);
    }
}

/* Pictures of 16 x 16 whose every value says where in the scene it is. */
TEST(scenes_and_labels_are_cropped_alike)
{
    make_small();
    segmentation s = {.job.devices = EK_DEVICES(ek_cpu())};
    scene_set *set = NULL;
    s.training = scenes_make(args_pictures(), true, SCENE_CLUTTERED, opt.scenes, opt.size, 1);
    assert_made(s.training);
    set = (scene_set *)s.training;
    for (int64_t p = 0; p < opt.scenes * opt.size * opt.size; p++)
        set->labels[p] = set->images[p];
    s.job.loader = segmentation_loader(&s);
    assert_made(s.job.loader);
    ek_batch batch;
    ck_assert_int_eq(ek_loader_next(s.job.loader, &batch), 1);
    ek_tensor *scenes = ek_value_tensor(batch.input), *labels = ek_value_tensor(batch.target);
    ck_assert_int_eq(ek_tensor_count(scenes), BATCH * SIDE * SIDE);
    ck_assert_int_eq(ek_tensor_dtype(scenes), EK_F64);
    for (int64_t i = 0; i < BATCH * SIDE * SIDE; i++)
        ck_assert_double_eq_tol(255 * element(scenes, i), element(labels, i), 1e-4);
    segmentation_close(&s);
}

/* Losses of twenty steps, on what make_segmentation.py draws behind the network's parameters. */
TEST_LOOP(losses_are_those_of_pytorch, 0, 2)
{
    segmentation s = {.epoch_steps = STEPS / 2};
    double losses[STEPS];
    char name[64];
    make_small();
    opt.upsample = _i;
    job_begin(&s.job, opt.mode, EK_HOST, "1");
    assert_ok(segmentation_make(&s));
    ek_tensor *pictures = ek_to_dtype(ek_randn(EK_SHAPE(BATCH, 1, SIDE, SIDE)), EK_F64);
    ek_tensor *targets = ek_randint(0, SCENE_CLASSES, EK_SHAPE(BATCH, SIDE, SIDE));
    ek_tensor *drawn = ek_randint(0, 8, EK_SHAPE(BATCH, SIDE, SIDE));
    ek_tensor *below = ek_reshape(ek_arange(BATCH, EK_I64, ek_cpu()), EK_SHAPE(BATCH, 1, 1));
    targets = ek_masked_fill(targets, ek_lt(drawn, below), SCENE_IGNORED);
    for (int i = 0; i < STEPS; i++)
        assert_ok(segmentation_train(&s.job, EK_VALUE(pictures), EK_VALUE(targets), &losses[i]));
    snprintf(name, sizeof name, "%s/losses", up_names[_i]);
    assert_numbers(name, losses, STEPS, ek_tensor_data(golden(GOLDEN, name)), 1e-10);
    segmentation_close(&s);
    assert_ok(ek_shutdown());
}
