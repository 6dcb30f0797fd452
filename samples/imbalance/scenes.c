#include "imbalance/scenes.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "imbalance/network.h"

enum { PIXELS = PICTURE * PICTURE, PICTURE_CLASSES = 10, FEWEST = 4, MOST = 6 };

/* ---- pictures ---- */

typedef struct picture_set {
    int64_t count;
    const uint8_t *pixels, *classes;
} picture_set;

/* <directory>/<set>-<what>.gz, or without the ending where only that is there. */
static ek_tensor *read_part(const char *directory, const char *set, const char *what)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s-%s", directory, set, what);
    if (access(path, R_OK) != 0)
        snprintf(path, sizeof(path), "%s/%s-%s.gz", directory, set, what);
    return ek_read_idx(path);
}

/* The tensors belong to the caller's scope. */
static int read_pictures(picture_set *pictures, const char *directory, const char *set)
{
    ek_tensor *images = read_part(directory, set, "images-idx3-ubyte");
    ek_tensor *labels = images ? read_part(directory, set, "labels-idx1-ubyte") : NULL;

    if (!labels)
        return ek_error_status();
    ek_shape shape = ek_tensor_shape(images), wanted = shape, of_labels = ek_tensor_shape(labels);
    wanted.ndim = 3;
    wanted.dims[1] = wanted.dims[2] = PICTURE;
    char text[160];
    if (!ek_shape_equal(&shape, &wanted) || shape.dims[0] < 1)
        return ek_error(EK_E_FORMAT, "%s/%s-images: sizes %s; pictures of 28 x 28 are needed",
                        directory, set, ek_shape_text(&shape, text));
    if (of_labels.ndim != 1 || of_labels.dims[0] != shape.dims[0])
        return ek_error(EK_E_FORMAT, "%s/%s-labels: sizes %s; one label for each of %lld is needed",
                        directory, set, ek_shape_text(&of_labels, text), (long long)shape.dims[0]);
    pictures->count = shape.dims[0];
    pictures->pixels = ek_tensor_data(images);
    pictures->classes = ek_tensor_data(labels);
    for (int64_t i = 0; i < pictures->count; i++)
        if (pictures->classes[i] >= PICTURE_CLASSES)
            return ek_error(EK_E_FORMAT, "%s/%s-labels: label %lld is %d; 0 to 9 are known",
                            directory, set, (long long)i, pictures->classes[i]);
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
