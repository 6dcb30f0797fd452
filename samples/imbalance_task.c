/* imbalance_task.c: scenes of pictures with a label per pixel, and how well a network labels them.
 */
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
    const int size = (int)scenes->size;
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

static int64_t scenes_length(ek_dataset *dataset)
{
    return ((scene_set *)dataset)->count;
}

static ek_value scenes_get(ek_dataset *dataset, int64_t index)
{
    const scene_set *self = (const scene_set *)dataset;
    const int64_t pixels = self->size * self->size;
    ek_tensor *image = ek_empty(EK_SHAPE(1, self->size, self->size));
    ek_tensor *labels = ek_empty(EK_SHAPE(self->size, self->size), EK_I64);
    if (!image || !labels)
        return ek_value_error();
    float *brightness = ek_tensor_data(image);
    int64_t *classes = ek_tensor_data(labels);
    for (int64_t p = 0; p < pixels; p++) {
        brightness[p] = (float)self->images[index * pixels + p] / 255;
        classes[p] = self->labels[index * pixels + p];
    }
    return EK_LIST(image, labels);
}

static void scenes_destroy(ek_dataset *dataset)
{
    free(((scene_set *)dataset)->images);
    free(((scene_set *)dataset)->labels);
}

static const ek_dataset_type scenes_type = {.name = "scenes",
                                            .size = sizeof(scene_set),
                                            .length = scenes_length,
                                            .get = scenes_get,
                                            .destroy = scenes_destroy};

ek_dataset *scenes_make(const char *directory, bool train, int64_t count, int64_t size,
                        uint64_t seed)
{
    const size_t pixels = (size_t)size * (size_t)size;
    ek_generator *generator = ek_generator_new(seed);
    ek_dataset *pictures =
        pictures_checked(ek_mnist(directory, train), directory, EK_SHAPE(1, PICTURE, PICTURE));
    scene_set *scenes = pictures ? (scene_set *)ek_dataset_new(&scenes_type) : NULL;
    uint8_t *sharp = malloc(pixels);
    if (scenes) {
        scenes->count = count;
        scenes->size = size;
        scenes->images = malloc((size_t)count * pixels);
        scenes->labels = malloc((size_t)count * pixels);
        if (!sharp || !scenes->images || !scenes->labels)
            ek_error(EK_E_NO_MEMORY, "no memory for %lld scenes", (long long)count);
    }
    int rc = ek_error_status();
    for (int64_t i = 0; rc == 0 && i < count; i++)
        rc = scenes_make_one(scenes, i, pictures, generator, sharp);
    free(sharp);
    ek_dataset_free(pictures);
    ek_generator_free(generator);
    if (rc == 0)
        return &scenes->dataset;
    ek_dataset_free(scenes ? &scenes->dataset : NULL);
    return NULL;
}

ek_value scenes_first(ek_dataset *scenes, int64_t count)
{
    int64_t *order = malloc((size_t)count * sizeof *order), length = ek_dataset_length(scenes);
    for (int64_t i = 0; order && i < count; i++)
        order[i] = i % length;
    if (!order)
        ek_error(EK_E_NO_MEMORY, "no memory for %lld scenes", (long long)count);
    ek_value batch =
        order ? ek_dataset_get_batch(scenes, order, count, ek_cpu()) : ek_value_error();
    free(order);
    return batch;
}

/* ---- how well a network labels them ---- */

enum { AT_ONCE = 16 }; /* scenes: few, so that a capacity which fits training fits this */

typedef int64_t confusion_matrix[SCENE_CLASSES][SCENE_CLASSES]; /* [label][prediction] */

typedef struct evaluation {
    ek_device device;
    confusion_matrix confusion;
} evaluation;

static int evaluate_batch(ek_module *network, const ek_batch *batch, void *user)
{
    evaluation *sums = user;
    ek_tensor *labels = ek_value_tensor(batch->target);
    ek_tensor *images = ek_to_device(ek_value_tensor(batch->input), sums->device);
    ek_tensor *logits = ek_apply(network, images);
    logits = ek_f_upsample(logits, ek_tensor_size(labels, 1), ek_tensor_size(labels, 2),
                           EK_BILINEAR, true);
    ek_tensor *predicted = ek_to_device(ek_argmax(logits, 1, false), ek_cpu());
    if (!predicted)
        return ek_error_status();
    const int64_t *expected = ek_tensor_data(labels), *found = ek_tensor_data(predicted);
    const int64_t count = ek_tensor_count(labels);
    for (int64_t i = 0; i < count; i++)
        if (expected[i] != SCENE_IGNORED)
            sums->confusion[expected[i]][found[i]]++;
    return 0;
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

int evaluate(ek_module *network, ek_device device, ek_dataset *scenes, double *pixel_accuracy,
             double *mean_iou)
{
    evaluation sums = {.device = device};
    ek_loader *loader = ek_data_loader(ek_dataset_keep(scenes), .batch_size = AT_ONCE);
    int rc = loader ? loader_evaluate(loader, network, evaluate_batch, &sums) : ek_error_status();
    ek_loader_free(loader);
    if (rc == 0)
        evaluate_confusion(sums.confusion, pixel_accuracy, mean_iou);
    return rc;
}
