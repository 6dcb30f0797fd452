/* views.c: see views.h. */
#include "views.h"

#include <stdlib.h>

/* ---- cameras ---- */

/* Degrees by which a camera turns pictures clockwise, and its factor of brightness. */
static const struct view_camera {
    double tilt, exposure;
} view_cameras[VIEW_CAMERAS] = {{-15, 1.1}, {-5, 0.7}, {5, 1.3}, {15, 0.9}};

enum { CAMERA_TRANSFORMS = 4 };

/* Makes the transforms of a camera, noise excepted. Returns 0 or a negative status; free them
 * anyway. */
static int view_transforms(const struct view_camera *camera, ek_transform **list)
{
    const double tilt = camera->tilt, exposure = camera->exposure;
    list[0] = ek_to_float();
    list[1] = ek_random_affine(.degrees_range = {tilt - 8, tilt + 8}, .shear = 6, .bilinear = true,
                               .translate = {0.1, 0.1}, .scale = {0.8, 1.1});
    list[2] = ek_color_jitter(.brightness_range = {exposure - 0.2, exposure + 0.2});
    list[3] = ek_random_erasing(.p = 1, .value = 0.5, .scale = {0.02, 0.12});
    return ek_error_status();
}

/* ---- views ---- */

static const double view_noise = 0.05; /* deviation */

static int view_make(ek_tensor *picture, ek_transform *const *camera, ek_generator *random,
                     uint8_t *to)
{
    ek_tensor *noise = ek_empty(EK_SHAPE(1, VIEW_SIDE, VIEW_SIDE));
    ek_tensor *seen = ek_transform_apply(camera, CAMERA_TRANSFORMS, picture, random);
    if (!noise || !seen)
        return ek_error_status();
    int rc = ek_normal_(noise, 0, view_noise, random);
    if (rc < 0)
        return rc;
    seen = ek_mul_scalar(ek_clamp(ek_add(seen, noise), 0, 1), 255);
    return ek_to_data(ek_to_dtype(seen, EK_U8), to, (size_t)VIEW_SIDE * VIEW_SIDE);
}

/* Writes all views of the pictures, identity by identity, with the identities' numbers. */
static int views_fill(ek_dataset *pictures, int64_t count, int64_t views, uint64_t seed,
                      uint8_t *images, int64_t *identities)
{
    ek_transform *cameras[VIEW_CAMERAS][CAMERA_TRANSFORMS] = {{NULL}};
    ek_generator *random = ek_generator_new(seed);
    int rc = ek_error_status();
    for (int c = 0; rc == 0 && c < VIEW_CAMERAS; c++)
        rc = view_transforms(&view_cameras[c], cameras[c]);
    for (int64_t i = 0; rc == 0 && i < count; i++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *picture = ek_value_tensor(ek_value_at(ek_dataset_get(pictures, i), 0));
        rc = ek_error_status();
        for (int64_t row = i * views; rc == 0 && row < (i + 1) * views; row++) {
            identities[row] = i;
            rc = view_make(picture, cameras[(row - i * views) % VIEW_CAMERAS], random,
                           images + row * VIEW_SIDE * VIEW_SIDE);
        }
        ek_scope_end(&scope);
    }
    for (int i = 0; i < VIEW_CAMERAS * CAMERA_TRANSFORMS; i++)
        ek_transform_free(cameras[i / CAMERA_TRANSFORMS][i % CAMERA_TRANSFORMS]);
    ek_generator_free(random);
    return rc;
}

ek_dataset *views_make(const char *directory, bool train, int64_t count, int64_t views,
                       uint64_t seed)
{
    const int64_t rows = count * views;
    ek_dataset *set = NULL, *pictures = pictures_checked(ek_mnist(directory, train), directory,
                                                         EK_SHAPE(1, VIEW_SIDE, VIEW_SIDE));
    if (!pictures)
        return NULL;
    uint8_t *images = malloc((size_t)rows * VIEW_SIDE * VIEW_SIDE);
    int64_t *identities = malloc((size_t)rows * sizeof *identities);
    int rc = 0;
    if (!images || !identities)
        rc = ek_error(EK_E_NO_MEMORY, "no memory for %lld views", (long long)rows);
    else if (ek_dataset_length(pictures) < count)
        rc = ek_error(EK_E_INVALID, "%s: %lld identities need as many pictures; there are %lld",
                      directory, (long long)count, (long long)ek_dataset_length(pictures));
    else
        rc = views_fill(pictures, count, views, seed, images, identities);
    if (rc == 0) {
        ek_scope scope = ek_scope_begin();
        set =
            ek_tensor_dataset(ek_from_data(images, EK_SHAPE(rows, 1, VIEW_SIDE, VIEW_SIDE), EK_U8),
                              ek_from_data(identities, EK_SHAPE(rows), EK_I64));
        ek_scope_end(&scope);
    }
    ek_dataset_free(pictures);
    free(images);
    free(identities);
    return set;
}

ek_sampler *views_sampler(int64_t identities, int64_t views, int64_t group, int64_t seed)
{
    const int64_t count = identities * views;
    int64_t *of = malloc((size_t)count * sizeof *of);
    if (!of) {
        ek_error(EK_E_NO_MEMORY, "no memory for %lld identities", (long long)count);
        return NULL;
    }
    for (int64_t i = 0; i < count; i++)
        of[i] = i / views;
    /* The sampler is that of one rank: batches are those of all ranks. */
    ek_sampler *sampler =
        ek_distributed_random_identity_sampler(of, count, .num_instances = group, .num_replicas = 1,
                                               .rank = 0, .seed = seed & INT32_MAX,
                                               .automatic_epochs = true);
    free(of);
    return sampler;
}
