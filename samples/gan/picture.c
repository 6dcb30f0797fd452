#include "gan/picture.h"

#include <math.h>
#include <png.h>
#include <string.h>

static uint8_t brightness(double value)
{
    double scaled = 127.5 * (value + 1);

    return (uint8_t)(scaled > 0 ? fmin(scaled, 255) + 0.5 : 0); /* NaN is black */
}

/* A row at a time, so that showing pictures needs less memory than training. */
static int make_row(gan_job *job, ek_tensor *noise, int row, double *values)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *part = ek_narrow(noise, 0, (int64_t)row * GRID, GRID);
    ek_tensor *made = ek_apply(job->generator, ek_to_device(part, job->devices.devices[0]));
    ek_tensor *wide = ek_to_dtype(ek_to_device(made, ek_cpu()), EK_F64);
    int rc =
        wide ? ek_to_data(wide, values, sizeof(double) * GRID * SIDE * SIDE) : ek_error_status();

    ek_scope_end(&scope);
    return rc;
}

static void place_row(const double *values, int row, uint8_t *pixels)
{
    for (int i = 0; i < GRID; i++) {
        int top = GAP + row * (SIDE + GAP), left = GAP + i * (SIDE + GAP);
        for (int y = 0; y < SIDE; y++)
            for (int x = 0; x < SIDE; x++)
                pixels[(top + y) * GRID_SIDE + left + x] =
                    brightness(values[(i * SIDE + y) * SIDE + x]);
    }
}

int picture_grid(gan_job *job, uint8_t *pixels)
{
    static const uint64_t noise_seed = 2; /* beside those of weights, order and training's noise */
    double values[GRID * SIDE * SIDE];
    ek_scope scope = ek_scope_begin();
    bool had_gradients = ek_set_grad_enabled(false);
    ek_generator *random = ek_generator_new((uint64_t)job->settings.seed + noise_seed);
    ek_tensor *noise = ek_empty(EK_SHAPE(GRID * GRID, NOISE, 1, 1), job->settings.dtype);
    int rc = random && noise ? ek_normal_(noise, 0, 1, random)
                             : ek_error(EK_E_NO_MEMORY, "no memory for noise");

    memset(pixels, 0x20, (size_t)GRID_SIDE * GRID_SIDE);
    ek_module_train(job->generator, false);
    for (int row = 0; row < GRID && rc == 0; row++) {
        rc = make_row(job, noise, row, values);
        if (rc == 0)
            place_row(values, row, pixels);
    }
    ek_module_train(job->generator, true);
    ek_generator_free(random);
    ek_set_grad_enabled(had_gradients);
    ek_scope_end(&scope);
    return rc;
}

int picture_write(const char *path, const uint8_t *pixels, int height, int width)
{
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)width,
                       .height = (png_uint_32)height,
                       .format = PNG_FORMAT_GRAY};

    if (png_image_write_to_file(&image, path, 0, pixels, 0, NULL))
        return 0;
    bool no_memory = strstr(image.message, "memory") != NULL;
    return ek_error(no_memory ? EK_E_NO_MEMORY : EK_E_IO, "%s: %s", path, image.message);
}
