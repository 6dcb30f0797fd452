/* noising.c: see noising.h. */
#include "noising.h"

#include <math.h>
#include <stdlib.h>

/* ---- the noise's shares ---- */

static const double pi = 3.14159265358979323846;

/* The cosine's share left at `time` in [0, 1], up to a factor. */
static double noising_cosine(double time)
{
    const double offset = 0.008, root = cos((time + offset) / (1 + offset) * pi / 2);
    return root * root;
}

/* The variance that step t adds. */
static double noising_variance(noising_kind kind, int64_t t, int64_t steps)
{
    const double count = (double)steps, most = 0.999;
    double added;
    if (kind == NOISING_COSINE)
        added = 1 - noising_cosine((double)(t + 1) / count) / noising_cosine((double)t / count);
    else /* from 0.0001 to 0.02 if there are 1000 */
        added = (0.1 + 19.9 * (double)t / (count > 1 ? count - 1 : 1)) / count;
    return fmin(added, most);
}

int noising_open(noising *self, noising_kind kind, int64_t steps)
{
    double left = 1;
    *self = (noising){.steps = steps, .left = malloc((size_t)steps * sizeof(double))};
    if (!self->left)
        return ek_error(EK_E_NO_MEMORY, "no memory for %lld steps", (long long)steps);
    for (int64_t t = 0; t < steps; t++)
        self->left[t] = left *= 1 - noising_variance(kind, t, steps);
    return 0;
}

void noising_close(noising *self)
{
    free(self->left);
    *self = (noising){0};
}

ek_tensor *noising_mix(const noising *self, ek_tensor *pictures, ek_tensor *noise, ek_tensor *t)
{
    if (!pictures)
        return NULL;
    ek_shape shape = ek_tensor_shape(pictures);
    for (int i = 1; i < shape.ndim; i++)
        shape.dims[i] = 1;
    ek_tensor *table = ek_from_data(self->left, EK_SHAPE(self->steps), EK_F64);
    ek_tensor *left = ek_reshape(ek_index_select(table, 0, t), shape);
    ek_tensor *kept = ek_sqrt(left), *added = ek_sqrt(ek_add_scalar(ek_neg(left), 1));
    const ek_dtype dtype = ek_tensor_dtype(pictures);
    return ek_add(ek_mul(pictures, ek_to_dtype(kept, dtype)),
                  ek_mul(noise, ek_to_dtype(added, dtype)));
}

/* ---- making pictures ---- */

/* The noise in pictures x on the device, all of which are after step t. */
static ek_tensor *noising_find(const noising_sampling *how, ek_tensor *x, int64_t t,
                               ek_tensor *classes)
{
    const ek_shape count = ek_tensor_shape(classes);
    ek_tensor *times = ek_full((double)t, count, EK_I64, .device = how->device);
    ek_tensor *of_class = ek_value_tensor(ek_forward(how->network, x, times, classes));
    if (how->guidance == 1)
        return of_class;
    ek_tensor *none = ek_full((double)how->no_class, count, EK_I64, .device = how->device);
    ek_tensor *without = ek_value_tensor(ek_forward(how->network, x, times, none));
    return ek_lerp_scalar(without, of_class, how->guidance);
}

/* From pictures whose share left is `left` to ones with more, `next`. The picture that the noise
 * leaves is kept within the range of pictures, and the noise is what then remains. */
static ek_tensor *noising_step(const noising_sampling *how, ek_tensor *x, ek_tensor *noise,
                               double left, double next, ek_generator *random)
{
    const double sigma = how->eta * sqrt((1 - next) / (1 - left)) * sqrt(fmax(1 - left / next, 0));
    ek_tensor *picture = ek_sub(x, ek_mul_scalar(noise, sqrt(1 - left)));
    picture = ek_clamp(ek_mul_scalar(picture, 1 / sqrt(left)), -1, 1);
    noise = ek_mul_scalar(ek_sub(x, ek_mul_scalar(picture, sqrt(left))), 1 / sqrt(1 - left));
    x = ek_add(ek_mul_scalar(picture, sqrt(next)),
               ek_mul_scalar(noise, sqrt(fmax(1 - next - sigma * sigma, 0))));
    if (sigma == 0 || !x)
        return x;
    ek_tensor *drawn = ek_empty(ek_tensor_shape(x), ek_tensor_dtype(x));
    if (!drawn || ek_normal_(drawn, 0, 1, random) < 0)
        return NULL;
    return ek_add(x, ek_mul_scalar(ek_to_device(drawn, how->device), sigma));
}

ek_tensor *noising_sample(const noising *self, const noising_sampling *how, ek_tensor *classes,
                          ek_shape shape, ek_dtype dtype, ek_generator *random)
{
    ek_tensor *x = ek_empty(shape, dtype);
    if (!x || ek_normal_(x, 0, 1, random) < 0)
        return NULL;
    x = ek_to_device(x, how->device);
    classes = ek_to_device(classes, how->device);
    for (int64_t i = how->steps; i > 0 && x; i--) { /* the last of `steps` equal parts */
        ek_scope scope = ek_scope_begin();
        const int64_t t = i * self->steps / how->steps - 1,
                      before = (i - 1) * self->steps / how->steps - 1;
        ek_tensor *noise = noising_find(how, x, t, classes);
        x = ek_scope_return(&scope, noising_step(how, x, noise, self->left[t],
                                                 before < 0 ? 1 : self->left[before], random));
    }
    return ek_to_device(x, ek_cpu());
}
