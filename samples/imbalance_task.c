/* imbalance_task.c: scenes of pictures with a label per pixel, the network that labels them, its
 * criterion, and how well it does. */
#include <stdlib.h>
#include <string.h>

#include "imbalance.h"

/* ---- scenes ---- */

enum { FEWEST_PICTURES = 4, MOST_PICTURES = 6 };

static int scenes_place(ek_dataset *pictures, int64_t which, uint8_t *image, uint8_t *labels,
                        int size, int top, int left)
{
    ek_value sample = ek_dataset_get(pictures, which); /* picture, class */
    double class;
    ek_tensor *picture = ek_value_tensor(ek_value_at(sample, 0));
    int rc = ek_item(ek_value_tensor(ek_value_at(sample, 1)), &class);
    if (rc < 0 || !picture)
        return ek_error_status();
    if (class >= SCENE_CLASSES - 1)
        return ek_error(EK_E_FORMAT, "picture %lld is of class %g; 0 to %d are known",
                        (long long)which, class, SCENE_CLASSES - 2);
    const uint8_t *from = ek_tensor_data(picture);
    for (int y = 0; y < PICTURE; y++)
        for (int x = 0; x < PICTURE; x++) {
            uint8_t brightness = *from++;
            int at = (top + y) * size + left + x;
            if (brightness > THRESHOLD)
                labels[at] = (uint8_t)(class + 1);
            if (brightness > THRESHOLD || brightness > image[at])
                image[at] = brightness;
        }
    return 0;
}

static bool scenes_touch_border(const uint8_t *labels, int size, int y, int x)
{
    for (int v = y > 0 ? y - 1 : 0; v <= y + 1 && v < size; v++)
        for (int u = x > 0 ? x - 1 : 0; u <= x + 1 && u < size; u++)
            if (labels[v * size + u] != labels[y * size + x])
                return true;
    return false;
}

static int scenes_below(ek_generator *generator, int64_t limit)
{
    return (int)(ek_random_u32(generator) % (uint64_t)limit);
}

/* Scene `index`; `sharp` is room for labels that reach to the pictures' borders. */
static int scenes_make_one(scene_set *scenes, int64_t index, ek_dataset *pictures,
                           ek_generator *generator, uint8_t *sharp)
{
    const int size = scenes->size;
    const size_t pixels = (size_t)size * (size_t)size;
    uint8_t *image = scenes->images + (size_t)index * pixels;
    uint8_t *labels = scenes->labels + (size_t)index * pixels;
    int count = FEWEST_PICTURES + scenes_below(generator, MOST_PICTURES - FEWEST_PICTURES + 1);
    memset(image, 0, pixels);
    memset(sharp, 0, pixels);
    for (int i = 0; i < count; i++) {
        ek_scope scope = ek_scope_begin();
        int which = scenes_below(generator, ek_dataset_length(pictures));
        int top = scenes_below(generator, size - PICTURE + 1);
        int left = scenes_below(generator, size - PICTURE + 1);
        int rc = scenes_place(pictures, which, image, sharp, size, top, left);
        ek_scope_end(&scope);
        if (rc < 0)
            return rc;
    }
    for (int y = 0; y < size; y++)
        for (int x = 0; x < size; x++)
            labels[y * size + x] =
                scenes_touch_border(sharp, size, y, x) ? SCENE_IGNORED : sharp[y * size + x];
    return 0;
}

int scenes_make(scene_set *scenes, const char *directory, bool train, int64_t count, int size,
                uint64_t seed)
{
    const size_t pixels = (size_t)size * (size_t)size;
    ek_generator *generator = ek_generator_new(seed);
    ek_dataset *pictures = ek_mnist(directory, train);
    uint8_t *sharp = malloc(pixels);
    *scenes =
        (scene_set){count, size, malloc((size_t)count * pixels), malloc((size_t)count * pixels)};
    int rc = pictures ? pictures_check(pictures, directory, EK_SHAPE(1, PICTURE, PICTURE))
                      : ek_error_status();
    if (rc == 0 && !(generator && sharp && scenes->images && scenes->labels))
        rc = ek_error(EK_E_NO_MEMORY, "no memory for %lld scenes", (long long)count);
    for (int64_t i = 0; rc == 0 && i < count; i++)
        rc = scenes_make_one(scenes, i, pictures, generator, sharp);
    if (rc < 0)
        scenes_free(scenes);
    free(sharp);
    ek_dataset_free(pictures);
    ek_generator_free(generator);
    return rc;
}

void scenes_free(scene_set *scenes)
{
    free(scenes->images);
    free(scenes->labels);
    *scenes = (scene_set){0};
}

int scenes_batch(const scene_set *scenes, const int64_t *order, int64_t count, ek_tensor **images,
                 ek_tensor **labels)
{
    size_t pixels = (size_t)scenes->size * (size_t)scenes->size;
    *images = ek_empty(EK_SHAPE(count, 1, scenes->size, scenes->size));
    *labels = ek_empty(EK_SHAPE(count, scenes->size, scenes->size), EK_I64);
    if (!*images || !*labels)
        return ek_error_status();
    float *brightness = ek_tensor_data(*images);
    int64_t *classes = ek_tensor_data(*labels);
    for (int64_t i = 0; i < count; i++) {
        size_t from = (size_t)((order ? order[i] : i) % scenes->count) * pixels,
               to = (size_t)i * pixels;
        for (size_t p = 0; p < pixels; p++) {
            brightness[to + p] = (float)scenes->images[from + p] / 255;
            classes[to + p] = scenes->labels[from + p];
        }
    }
    return 0;
}

/* ---- how well it does ---- */

enum { AT_ONCE = 16 }; /* scenes: few, so that a capacity which fits training fits this */

typedef int64_t confusion_matrix[SCENE_CLASSES][SCENE_CLASSES]; /* [label][prediction] */

static int evaluate_batch(ek_module *network, ek_device device, const scene_set *scenes,
                          int64_t first, int64_t count, int64_t *predicted,
                          confusion_matrix confusion)
{
    int64_t order[AT_ONCE], pixels = (int64_t)scenes->size * scenes->size;
    ek_tensor *images, *labels;
    for (int64_t i = 0; i < count; i++)
        order[i] = first + i;
    int rc = scenes_batch(scenes, order, count, &images, &labels);
    if (rc < 0)
        return rc;
    ek_tensor *logits = ek_apply(network, ek_to_device(images, device));
    logits = ek_f_upsample(logits, scenes->size, scenes->size, EK_BILINEAR, true);
    rc = ek_to_data(ek_argmax(logits, 1, false), predicted,
                    (size_t)(count * pixels) * sizeof *predicted);
    const uint8_t *expected = scenes->labels + first * pixels;
    for (int64_t i = 0; rc == 0 && i < count * pixels; i++)
        if (expected[i] != SCENE_IGNORED)
            confusion[expected[i]][predicted[i]]++;
    return rc;
}

static void evaluate_confusion(confusion_matrix confusion, double *pixel_accuracy, double *mean_iou)
{
    double right = 0, all = 0, iou = 0;
    int classes = 0;
    for (int c = 0; c < SCENE_CLASSES; c++) {
        int64_t of_label = 0, of_prediction = 0;
        for (int other = 0; other < SCENE_CLASSES; other++) {
            of_label += confusion[c][other];
            of_prediction += confusion[other][c];
        }
        right += (double)confusion[c][c];
        all += (double)of_label;
        int64_t in_either = of_label + of_prediction - confusion[c][c];
        if (in_either > 0) {
            iou += (double)confusion[c][c] / (double)in_either;
            classes++;
        }
    }
    *pixel_accuracy = all > 0 ? right / all : 0;
    *mean_iou = classes > 0 ? iou / classes : 0;
}

int evaluate(ek_module *network, ek_device device, const scene_set *scenes, double *pixel_accuracy,
             double *mean_iou)
{
    confusion_matrix confusion = {{0}};
    bool had_gradients = ek_set_grad_enabled(false);
    int64_t *predicted =
        malloc((size_t)AT_ONCE * (size_t)scenes->size * (size_t)scenes->size * sizeof *predicted);
    int rc = predicted ? 0 : ek_error(EK_E_NO_MEMORY, "no memory for the predictions");
    ek_module_train(network, false);
    for (int64_t first = 0; rc == 0 && first < scenes->count; first += AT_ONCE) {
        ek_scope scope = ek_scope_begin();
        int64_t left = scenes->count - first;
        rc = evaluate_batch(network, device, scenes, first, left < AT_ONCE ? left : AT_ONCE,
                            predicted, confusion);
        ek_scope_end(&scope);
    }
    ek_module_train(network, true);
    ek_set_grad_enabled(had_gradients);
    free(predicted);
    if (rc == 0)
        evaluate_confusion(confusion, pixel_accuracy, mean_iou);
    return rc;
}
