/* scenes.c: scenes of pictures, with a label per pixel: see scenes.h. */
#include "scenes.h"

#include <stdlib.h>
#include <string.h>

/* ---- pictures in a scene ---- */

enum { FEWEST_PICTURES = 4, MOST_PICTURES = 6 };

static int scenes_below(ek_generator *generator, int64_t limit)
{
    return (int)(ek_random_u32(generator) % (uint64_t)limit);
}

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

/* ---- ground that is not dark ---- */

enum { KNOTS = 5, BLOTCH = 140, FEWEST_SHAPES = 6, MOST_SHAPES = 12, NOISE = 24 };

/* Brightness below BLOTCH, drawn at KNOTS x KNOTS points and interpolated between them. */
static void scenes_draw_blotches(uint8_t *image, int size, ek_generator *generator)
{
    double knots[KNOTS + 1][KNOTS + 1] = {{0}}; /* the last row and column have no weight */
    for (int v = 0; v < KNOTS; v++)
        for (int u = 0; u < KNOTS; u++)
            knots[v][u] = scenes_below(generator, BLOTCH);
    for (int y = 0; y < size; y++)
        for (int x = 0; x < size; x++) {
            const double row = (double)y * (KNOTS - 1) / (size - 1);
            const double column = (double)x * (KNOTS - 1) / (size - 1);
            const int v = (int)row, u = (int)column;
            const double b = row - v, a = column - u;
            image[y * size + x] =
                (uint8_t)((1 - b) * ((1 - a) * knots[v][u] + a * knots[v][u + 1]) +
                          b * ((1 - a) * knots[v + 1][u] + a * knots[v + 1][u + 1]));
        }
}

/* A bar or a disc of any brightness, darker towards one side. */
static void scenes_draw_shape(uint8_t *image, int size, ek_generator *generator)
{
    const bool disc = scenes_below(generator, 2) == 1;
    const int brightness = 40 + scenes_below(generator, 200), shade = scenes_below(generator, 4);
    const int middle_y = scenes_below(generator, size), middle_x = scenes_below(generator, size);
    const int tall = 2 + scenes_below(generator, 9), wide = 2 + scenes_below(generator, 9);
    for (int y = middle_y - tall; y <= middle_y + tall; y++)
        for (int x = middle_x - wide; x <= middle_x + wide; x++) {
            const double v = (double)(y - middle_y) / tall, u = (double)(x - middle_x) / wide;
            if (y < 0 || x < 0 || y >= size || x >= size || (disc && v * v + u * u > 1))
                continue;
            const int shaded = brightness - shade * (y - middle_y + tall);
            image[y * size + x] = (uint8_t)(shaded > 0 ? shaded : 0);
        }
}

static void scenes_draw_clutter(uint8_t *image, int size, ek_generator *generator)
{
    const int shapes = FEWEST_SHAPES + scenes_below(generator, MOST_SHAPES - FEWEST_SHAPES + 1);
    scenes_draw_blotches(image, size, generator);
    for (int i = 0; i < shapes; i++)
        scenes_draw_shape(image, size, generator);
}

/* The sum of two even distributions: a triangle between -NOISE and NOISE. */
static void scenes_add_noise(uint8_t *image, size_t pixels, ek_generator *generator)
{
    for (size_t p = 0; p < pixels; p++) {
        int noise = scenes_below(generator, NOISE + 1) + scenes_below(generator, NOISE + 1);
        int noisy = image[p] + noise - NOISE;
        image[p] = (uint8_t)(noisy < 0 ? 0 : noisy > 255 ? 255 : noisy);
    }
}

/* ---- scenes ---- */

/* Scene `index`; `sharp` is room for labels that reach to the pictures' borders. */
static int scenes_make_one(scene_set *scenes, int64_t index, scene_ground ground,
                           ek_dataset *pictures, ek_generator *generator, uint8_t *sharp)
{
    const int size = (int)scenes->size;
    const size_t pixels = (size_t)size * (size_t)size;
    uint8_t *image = scenes->images + (size_t)index * pixels;
    uint8_t *labels = scenes->labels + (size_t)index * pixels;
    int count = FEWEST_PICTURES + scenes_below(generator, MOST_PICTURES - FEWEST_PICTURES + 1);
    memset(image, 0, pixels);
    memset(sharp, 0, pixels);
    if (ground == SCENE_CLUTTERED)
        scenes_draw_clutter(image, size, generator);
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
    if (ground == SCENE_CLUTTERED)
        scenes_add_noise(image, pixels, generator);
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

ek_dataset *scenes_make(const char *directory, bool train, scene_ground ground, int64_t count,
                        int64_t size, uint64_t seed)
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
        rc = scenes_make_one(scenes, i, ground, pictures, generator, sharp);
    free(sharp);
    ek_dataset_free(pictures);
    ek_generator_free(generator);
    if (rc == 0)
        return &scenes->dataset;
    ek_dataset_free(scenes ? &scenes->dataset : NULL);
    return NULL;
}

/* ---- drawing labels ---- */

const scene_label scene_labels[SCENE_CLASSES + 1] = {
    {"ground", {0, 0, 0}},        {"T-shirt", {230, 25, 75}}, {"trousers", {60, 180, 75}},
    {"pullover", {255, 225, 25}}, {"dress", {0, 130, 200}},   {"coat", {245, 130, 48}},
    {"sandal", {145, 30, 180}},   {"shirt", {70, 240, 240}},  {"sneaker", {240, 50, 230}},
    {"bag", {210, 245, 60}},      {"boot", {250, 190, 212}},  {"ignored", {128, 128, 128}},
};

ek_tensor *scenes_colour(ek_tensor *labels)
{
    uint8_t colours[SCENE_CLASSES + 1][3];
    if (!labels)
        return NULL;
    for (int i = 0; i <= SCENE_CLASSES; i++)
        memcpy(colours[i], scene_labels[i].colour, sizeof colours[i]);
    ek_tensor *table = ek_from_data(colours, EK_SHAPE(SCENE_CLASSES + 1, 3), EK_U8);
    ek_tensor *index = ek_reshape(ek_clamp(labels, 0, SCENE_CLASSES), EK_SHAPE(-1));
    const ek_shape shape = EK_SHAPE(ek_tensor_size(labels, 0), ek_tensor_size(labels, 1),
                                    ek_tensor_size(labels, 2), 3);
    return ek_permute(ek_reshape(ek_index_select(table, 0, index), shape), EK_SHAPE(0, 3, 1, 2));
}
