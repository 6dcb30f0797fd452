/* transform_pixels.c: transforms of single elements: to_float, normalize, one_hot. */
#include <math.h>
#include <string.h>

#include "core/dtypes.h"
#include "core/tensor.h"
#include "data/transform_operation.h"

/* ---- to_float ---- */

static int to_float_describe(const ek_transform *self, ek_array *array)
{
    (void)self;
    array->dtype = EK_F32;
    return 0;
}

#define DEFINE_FLOAT_OF(name, type, value)                                                \
    EK_MULTIVERSION                                                                       \
    static void float_of_##name(int64_t count, const type *restrict x, float *restrict y) \
    {                                                                                     \
        for (int64_t i = 0; i < count; i++)                                               \
            y[i] = (value);                                                               \
    }
#define FLOAT_OF_ROW(label, text, type, ...) \
    DEFINE_FLOAT_OF(label, type, (float)EK_LOAD_##label(x[i]) / (EK_##label == EK_U8 ? 255.0f : 1))
EK_DTYPE_ROWS(FLOAT_OF_ROW)
#undef DEFINE_FLOAT_OF

static int to_float_apply(ek_application *a)
{
    int64_t count = ek_shape_count(&a->in->shape);
    switch (a->in->dtype) {
#define FLOAT_CASE(label, ...)                              \
    case EK_##label:                                        \
        float_of_##label(count, a->in->data, a->out->data); \
        break;
        EK_DTYPE_ROWS(FLOAT_CASE)
#undef FLOAT_CASE
    }
    return 0;
}

/* It has no options. */
static const ek_operation to_float = {
    EK_OPERATION(to_float, char, EK_ANY_ARRAY, to_float_describe, NULL, to_float_apply)};

ek_transform *ek_to_float(void)
{
    return ek_operation_new(&to_float, "", 0);
}

/* ---- normalize ---- */

/* The means lie after the options, then the deviations: one of each per channel. */
typedef struct normalization {
    int64_t channels;
} normalization;

static const double *normalize_means(const normalization *o)
{
    return (const double *)(o + 1);
}

static int normalize_describe(const ek_transform *self, ek_array *array)
{
    const normalization *o = ek_options_of(self);
    const double *std = normalize_means(o) + o->channels;
    const int channels = (int)o->channels;
    char text[200];
    if (array->dtype != EK_F32 && array->dtype != EK_F64)
        return EK_FAIL(EK_E_DTYPE, "normalize: %s; f32 and f64 are normalized%s",
                       ek_array_text(array, text),
                       array->dtype == EK_U8 ? " (ek_to_float comes before it)" : "");
    if (channels > 1 && (array->shape.ndim < 3 || ek_picture_channels(array) != channels))
        return EK_FAIL(EK_E_SHAPE,
                       "normalize: %s; %d means and deviations are for pictures of as many "
                       "channels, (..., %d, height, width)",
                       ek_array_text(array, text), channels, channels);
    for (int c = 0; c < channels && array->dtype == EK_F32; c++)
        if (!((float)std[c] > 0) || isinf((float)std[c]))
            return EK_FAIL(EK_E_DTYPE,
                           "normalize: a deviation of %g (channel %d) is %g in f32; pictures of "
                           "f64 could be normalized by it",
                           std[c], c, (double)(float)std[c]);
    return 0;
}

/* Rounds twice, after the subtraction and the division, as PyTorch's sub and div do. */
#define DEFINE_NORMALIZE(name, real)                                                      \
    EK_MULTIVERSION                                                                       \
    static void normalize_##name(int64_t count, const real *restrict x, real *restrict y, \
                                 real mean, real std)                                     \
    {                                                                                     \
        for (int64_t i = 0; i < count; i++)                                               \
            y[i] = (x[i] - mean) / std;                                                   \
    }
DEFINE_NORMALIZE(f32, float)
DEFINE_NORMALIZE(f64, double)
#undef DEFINE_NORMALIZE

static int normalize_apply(ek_application *a)
{
    const normalization *o = a->options;
    int64_t count = ek_shape_count(&a->in->shape), plane = count;
    if (o->channels > 1)
        plane = ek_picture_of(a->in).height * ek_picture_of(a->in).width;
    for (int64_t at = 0, p = 0; at < count; at += plane, p++) {
        const double *mean = normalize_means(o) + p % o->channels, *std = mean + o->channels;
        if (a->in->dtype == EK_F32)
            normalize_f32(plane, (const float *)a->in->data + at, (float *)a->out->data + at,
                          (float)*mean, (float)*std);
        else
            normalize_f64(plane, (const double *)a->in->data + at, (double *)a->out->data + at,
                          *mean, *std);
    }
    return 0;
}

static const ek_operation normalize = {EK_OPERATION(normalize, normalization, EK_ANY_ARRAY,
                                                    normalize_describe, NULL, normalize_apply)};

static int normalize_check(const double *mean, const double *std, int channels)
{
    if (channels < 1 || !mean || !std)
        return EK_FAIL(EK_E_INVALID,
                       "normalize: %d channels%s%s; a mean and a deviation for each "
                       "of at least 1 are needed",
                       channels, mean ? "" : ", no means", std ? "" : ", no deviations");
    for (int c = 0; c < channels; c++)
        if (!isfinite(mean[c]) || !isfinite(std[c]) || !(std[c] > 0))
            return EK_FAIL(EK_E_INVALID,
                           "normalize: channel %d has mean %g and deviation %g; both have to be "
                           "finite, the deviation above 0",
                           c, mean[c], std[c]);
    return 0;
}

ek_transform *ek_normalize(const double *mean, const double *std, int channels)
{
    const normalization options = {channels};
    if (normalize_check(mean, std, channels) < 0)
        return NULL;
    size_t nbytes = (size_t)channels * sizeof *mean;
    ek_transform *self = ek_operation_new(&normalize, &options, 2 * nbytes);
    if (self) {
        memcpy((char *)self + normalize.type.size, mean, nbytes);
        memcpy((char *)self + normalize.type.size + nbytes, std, nbytes);
    }
    return self;
}

/* ---- one_hot ---- */

static int one_hot_describe(const ek_transform *self, ek_array *array)
{
    char text[200];
    if (ek_dtype_is_floating(array->dtype) || array->dtype == EK_BOOL)
        return EK_FAIL(EK_E_DTYPE, "one_hot: %s; labels are i64, i32 or u8",
                       ek_array_text(array, text));
    if (array->shape.ndim == EK_MAX_DIMS)
        return EK_FAIL(EK_E_SHAPE,
                       "one_hot: %s; the classes would be its dimension %d, and tensors have %d",
                       ek_array_text(array, text), EK_MAX_DIMS + 1, EK_MAX_DIMS);
    array->dtype = EK_F32;
    array->shape.dims[array->shape.ndim++] = *(const int64_t *)ek_options_of(self);
    return 0;
}

static int one_hot_apply(ek_application *a)
{
    int64_t classes = *(const int64_t *)a->options, count = ek_shape_count(&a->in->shape);
    float *row = a->out->data;
    memset(row, 0, (size_t)(count * classes) * sizeof *row);
    for (int64_t i = 0; i < count; i++, row += classes) {
        int64_t label = a->in->dtype == EK_I64   ? ((const int64_t *)a->in->data)[i]
                        : a->in->dtype == EK_I32 ? ((const int32_t *)a->in->data)[i]
                                                 : ((const uint8_t *)a->in->data)[i];
        if (label < 0 || label >= classes)
            return EK_FAIL(EK_E_INVALID,
                           "one_hot: label %lld; labels of %lld classes lie in [0, %lld)",
                           (long long)label, (long long)classes, (long long)classes);
        row[label] = 1;
    }
    return 0;
}

static const ek_operation one_hot = {
    EK_OPERATION(one_hot, int64_t, EK_ANY_ARRAY, one_hot_describe, NULL, one_hot_apply)};

ek_transform *ek_one_hot(int64_t classes)
{
    if (classes < 1)
        return EK_FAIL_NULL(EK_E_INVALID, "one_hot: %lld classes; at least 1 is needed",
                            (long long)classes);
    return ek_operation_new(&one_hot, &classes, 0);
}
