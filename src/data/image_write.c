/* image_write.c: grids of pictures (torchvision.utils.make_grid), and PNG files (save_image). */
#include <math.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtypes.h"
#include "core/error.h"
#include "core/file.h"
#include "core/tensor.h"
#include "data/image.h"

enum { GRID_MOST = 1 << 16 };

/* The pictures as numbers of f32, row-major: (count, channels, height, width). */
typedef struct pictures {
    int64_t count, channels, height, width;
    float *values; /* owned */
    bool whole;    /* they were u8: 0 to 255 instead of 0 to 1 */
} pictures;

/* ---- reading tensors ---- */

static void pictures_convert(ek_dtype dtype, const void *from, float *to, int64_t count)
{
    switch (dtype) {
#define CONVERT_CASE(label, text, type, ...)                         \
    case EK_##label:                                                 \
        for (int64_t i = 0; i < count; i++)                          \
            to[i] = (float)EK_LOAD_##label(((const type *)from)[i]); \
        break;
        EK_DTYPE_ROWS(CONVERT_CASE)
#undef CONVERT_CASE
    }
}

static int pictures_check(const ek_tensor *x)
{
    char text[200];
    EK_TRY(ek_check_handle("make_grid", "the tensor of pictures", x));
    if (!ek_dtype_is_floating(x->dtype) && x->dtype != EK_U8)
        return EK_FAIL(EK_E_DTYPE, "make_grid: %s; pictures are floating, in [0, 1], or u8",
                       ek_tensor_text(x, text));
    if (x->ndim < 2 || x->ndim > 4)
        return EK_FAIL(EK_E_SHAPE, "make_grid: %s; (N, C, H, W), (C, H, W) and (H, W) are possible",
                       ek_tensor_text(x, text));
    for (int i = 0; i < x->ndim; i++)
        if (x->shape[i] < 1 || x->shape[i] > GRID_MOST)
            return EK_FAIL(EK_E_SHAPE, "make_grid: %s; every size has to lie in [1, %d]",
                           ek_tensor_text(x, text), GRID_MOST);
    return 0;
}

/* Reads the pictures. One channel becomes three. The caller frees p->values, also after an error.
 */
static int pictures_read(const ek_tensor *x, pictures *p)
{
    EK_TRY(pictures_check(x));
    const int64_t *sizes = x->shape + x->ndim - 2, own = x->ndim < 3 ? 1 : sizes[-1];
    *p = (pictures){.count = x->ndim < 4 ? 1 : x->shape[0],
                    .channels = own == 1 ? 3 : own,
                    .height = sizes[0],
                    .width = sizes[1],
                    .whole = x->dtype == EK_U8};
    const int64_t plane = p->height * p->width, repeats = p->channels / own, count = ek_count(x);
    void *raw = ek_calloc((size_t)count, ek_dtype_size(x->dtype));
    float *values = ek_calloc((size_t)count, sizeof *values);
    p->values = ek_calloc((size_t)(count * repeats), sizeof *p->values);
    int rc = !raw || !values || !p->values
                 ? EK_E_NO_MEMORY
                 : ek_to_data(x, raw, (size_t)count * ek_dtype_size(x->dtype));
    if (rc >= 0) {
        pictures_convert(x->dtype, raw, values, count);
        for (int64_t i = 0; i < count * repeats; i++)
            p->values[i] = values[repeats == 1 ? i : i / (repeats * plane) * plane + i % plane];
    }
    free(values);
    free(raw);
    return rc;
}

/* ---- normalising ---- */

/* Maps [low, high] to [0, 1]. */
static void pictures_map(float *values, int64_t count, float low, float high)
{
    const float range = fmaxf(high - low, 1e-5f);
    for (int64_t i = 0; i < count; i++) {
        float value = values[i] < low ? low : values[i] > high ? high : values[i];
        values[i] = (value - low) / range;
    }
}

static void pictures_normalize(const pictures *p, const ek_grid_options *options)
{
    const int64_t all = p->count * p->channels * p->height * p->width;
    const int64_t part = options->scale_each ? all / p->count : all;
    for (int64_t begin = 0; begin < all; begin += part) {
        float low = (float)options->low, high = (float)options->high;
        if (options->low == 0 && options->high == 0) {
            low = INFINITY;
            high = -INFINITY;
            for (int64_t i = begin; i < begin + part; i++) {
                low = fminf(low, p->values[i]);
                high = fmaxf(high, p->values[i]);
            }
        }
        pictures_map(p->values + begin, part, low, high);
    }
}

/* ---- the grid ---- */

static int grid_check(const ek_grid_options *options)
{
    const int columns = options->columns, padding = options->padding;
    if (columns < 1 || columns > GRID_MOST || padding < 0 || padding > GRID_MOST)
        return EK_FAIL(
            EK_E_INVALID,
            "make_grid: %d columns and a padding of %d; [1, %d] and [0, %d] are possible", columns,
            padding, GRID_MOST, GRID_MOST);
    if (options->low > options->high)
        return EK_FAIL(EK_E_INVALID, "make_grid: low %g is above high %g", options->low,
                       options->high);
    return 0;
}

/* Copies picture `index` to the grid, whose rows have `width` values, at (top, left). */
static void grid_place(const pictures *p, int64_t index, float *grid, const ek_shape *shape,
                       int64_t top, int64_t left)
{
    const int64_t height = shape->dims[1], width = shape->dims[2];
    for (int64_t c = 0; c < p->channels; c++)
        for (int64_t y = 0; y < p->height; y++)
            memcpy(grid + (c * height + top + y) * width + left,
                   p->values + ((index * p->channels + c) * p->height + y) * p->width,
                   (size_t)p->width * sizeof *grid);
}

/* Returns the grid of the pictures. A single picture becomes a grid without a border. */
static ek_tensor *grid_of(const pictures *p, int columns, int padding, double pad_value)
{
    if (p->count == 1)
        return ek_from_data(p->values, EK_SHAPE(p->channels, p->height, p->width), EK_F32);
    const int64_t across = columns < p->count ? columns : p->count;
    const int64_t down = (p->count + across - 1) / across;
    const int64_t height = p->height + padding, width = p->width + padding;
    const ek_shape shape = EK_SHAPE(p->channels, height * down + padding, width * across + padding);
    ek_tensor *tensor = ek_empty(shape);
    float *grid = tensor ? ek_tensor_data(tensor) : NULL;
    for (int64_t i = 0; grid && i < ek_count(tensor); i++)
        grid[i] = (float)pad_value;
    for (int64_t i = 0; grid && i < p->count; i++)
        grid_place(p, i, grid, &shape, i / across * height + padding, i % across * width + padding);
    return tensor;
}

/* Makes the grid. *whole tells whether its values are 0 to 255. */
static ek_tensor *grid_make(const ek_grid_options *options, bool *whole)
{
    pictures p = {.values = NULL};
    ek_tensor *grid = NULL;
    if (grid_check(options) >= 0 && pictures_read(options->pictures, &p) >= 0) {
        if (options->normalize)
            pictures_normalize(&p, options);
        *whole = p.whole && !options->normalize;
        grid = grid_of(&p, options->columns, options->padding, options->pad_value);
    }
    free(p.values);
    return grid;
}

ek_tensor *ek_make_grid_with(ek_grid_options options)
{
    bool whole = false;
    return grid_make(&options, &whole);
}

/* ---- PNG ---- */

static int png_fail(const char *what, const png_image *image)
{
    bool no_memory = strstr(image->message, "memory") != NULL;
    return EK_FAIL(no_memory ? EK_E_NO_MEMORY : EK_E_IO, "%s: %s", what, image->message);
}

/* Encodes rows of pixels, their channels next to each other. */
static int png_encode(const char *what, const uint8_t *pixels, ek_png *png)
{
    static const png_uint_32 formats[] = {0, PNG_FORMAT_GRAY, PNG_FORMAT_GA, PNG_FORMAT_RGB,
                                          PNG_FORMAT_RGBA};
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)png->width,
                       .height = (png_uint_32)png->height,
                       .format = formats[png->channels]};
    png_alloc_size_t nbytes = 0;
    if (!png_image_write_to_memory(&image, NULL, &nbytes, 0, pixels, 0, NULL))
        return png_fail(what, &image);
    png->bytes = ek_calloc(1, nbytes);
    if (!png->bytes)
        return EK_E_NO_MEMORY;
    if (!png_image_write_to_memory(&image, png->bytes, &nbytes, 0, pixels, 0, NULL))
        return png_fail(what, &image);
    png->nbytes = nbytes;
    return 0;
}

int ek_png_of_grid(const char *what, const ek_grid_options *options, ek_png *png)
{
    bool whole = false;
    *png = (ek_png){0};
    ek_scope scope = ek_scope_begin();
    ek_tensor *grid = grid_make(options, &whole);
    const float *values = grid ? ek_tensor_data(grid) : NULL;
    const int64_t channels = grid ? grid->shape[0] : 0,
                  plane = grid ? ek_count(grid) / channels : 0;
    int rc = grid ? 0 : ek_error_pending();
    if (rc >= 0 && channels > 4)
        rc = EK_FAIL(EK_E_SHAPE, "%s: %lld channels; PNG has 1 to 4", what, (long long)channels);
    uint8_t *pixels = rc < 0 ? NULL : ek_calloc((size_t)(channels * plane), 1);
    for (int64_t i = 0; pixels && i < channels * plane; i++) {
        float value = values[i % channels * plane + i / channels];
        value = whole ? value : value * 255 + 0.5f;
        pixels[i] = (uint8_t)(value > 0 ? fminf(value, 255) : 0); /* NaN is 0 */
    }
    if (pixels) {
        *png = (ek_png){.channels = channels, .height = grid->shape[1], .width = grid->shape[2]};
        rc = png_encode(what, pixels, png);
    } else if (rc >= 0) {
        rc = EK_E_NO_MEMORY;
    }
    free(pixels);
    ek_scope_end(&scope);
    return rc;
}

static int png_write(const ek_file *file, void *user)
{
    const ek_png *png = user;
    return ek_file_write(file, png->bytes, png->nbytes);
}

int ek_png_save(const char *what, const char *path, ek_png *png)
{
    return ek_file_replace(what, path, png_write, png);
}

int ek_save_image_with(const char *path, ek_grid_options options)
{
    ek_png png;
    EK_TRY(ek_check_pointer("save_image", "the path", path));
    int rc = ek_png_of_grid("save_image", &options, &png);
    if (rc >= 0)
        rc = ek_png_save("save_image", path, &png);
    free(png.bytes);
    return rc;
}
