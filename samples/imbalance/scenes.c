#include "imbalance/scenes.h"

#include <stdlib.h>
#include <string.h>

#include "common/pictures.h"
#include "imbalance/network.h"

enum { PIXELS = PICTURE * PICTURE, FEWEST = 4, MOST = 6 };

/* ---- pictures ---- */

typedef struct picture_set {
    int64_t count;
    const uint8_t *pixels, *classes;
} picture_set;

/* The tensors belong to the caller's scope. */
static int read_pictures(picture_set *pictures, const char *directory, const char *set)
{
    ek_tensor *images = pictures_read(directory, set);
    int64_t count = images ? ek_tensor_size(images, 0) : 0;
    ek_tensor *labels = images ? picture_labels_read(directory, set, count) : NULL;

    if (!labels)
        return ek_error_status();
    *pictures = (picture_set){count, ek_tensor_data(images), ek_tensor_data(labels)};
    return 0;
}

/* ---- scenes ---- */

static void place(const picture_set *pictures, int64_t which, uint8_t *image, uint8_t *labels,
                  int size, int top, int left)
{
    const uint8_t *from = pictures->pixels + which * PIXELS;
    uint8_t label = (uint8_t)(pictures->classes[which] + 1);

    for (int y = 0; y < PICTURE; y++) {
        for (int x = 0; x < PICTURE; x++) {
            uint8_t brightness = from[y * PICTURE + x];
            int at = (top + y) * size + left + x;
            if (brightness > THRESHOLD) {
                image[at] = brightness;
                labels[at] = label;
            } else if (brightness > image[at]) {
                image[at] = brightness;
            }
        }
    }
}

static bool touches_border(const uint8_t *labels, int size, int y, int x)
{
    for (int v = y > 0 ? y - 1 : 0; v <= y + 1 && v < size; v++)
        for (int u = x > 0 ? x - 1 : 0; u <= x + 1 && u < size; u++)
            if (labels[v * size + u] != labels[y * size + x])
                return true;
    return false;
}

static int below(ek_generator *generator, int64_t limit)
{
    return (int)(ek_random_u32(generator) % (uint64_t)limit);
}

static void make_scene(const picture_set *pictures, ek_generator *generator, uint8_t *image,
                       uint8_t *labels, uint8_t *sharp, int size)
{
    int count = FEWEST + below(generator, MOST - FEWEST + 1);

    memset(image, 0, (size_t)size * (size_t)size);
    memset(sharp, 0, (size_t)size * (size_t)size);
    for (int i = 0; i < count; i++) {
        int which = below(generator, pictures->count);
        int top = below(generator, size - PICTURE + 1);
        int left = below(generator, size - PICTURE + 1);
        place(pictures, which, image, sharp, size, top, left);
    }
    for (int y = 0; y < size; y++)
        for (int x = 0; x < size; x++)
            labels[y * size + x] =
                touches_border(sharp, size, y, x) ? IGNORED : sharp[y * size + x];
}

int scenes_make(scene_set *scenes, const char *directory, const char *set, int64_t count, int size,
                uint64_t seed)
{
    ek_scope scope = ek_scope_begin();
    ek_generator *generator = ek_generator_new(seed);
    size_t pixels = (size_t)size * (size_t)size;
    uint8_t *sharp = malloc(pixels);
    picture_set pictures = {0};

    *scenes =
        (scene_set){count, size, malloc((size_t)count * pixels), malloc((size_t)count * pixels)};
    int rc = generator && sharp && scenes->images && scenes->labels
                 ? read_pictures(&pictures, directory, set)
                 : ek_error(EK_E_NO_MEMORY, "no memory for %lld scenes", (long long)count);
    for (int64_t i = 0; rc == 0 && i < count; i++)
        make_scene(&pictures, generator, scenes->images + (size_t)i * pixels,
                   scenes->labels + (size_t)i * pixels, sharp, size);
    if (rc < 0)
        scenes_free(scenes);
    free(sharp);
    ek_generator_free(generator);
    ek_scope_end(&scope);
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
        size_t from = (size_t)(order[i] % scenes->count) * pixels, to = (size_t)i * pixels;
        for (size_t p = 0; p < pixels; p++) {
            brightness[to + p] = (float)scenes->images[from + p] / 255;
            classes[to + p] = scenes->labels[from + p];
        }
    }
    return 0;
}
