/* transform_draws.c: draws as torchvision's, checks of options, fill values and picked elements. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/dtypes.h"
#include "core/generator.h"
#include "core/locale.h"
#include "core/tensor.h"
#include "data/transform_picture.h"

/* ---- fill values ---- */

int ek_fill_check(const ek_transform *transform, const ek_array *array, double fill)
{
    char text[200];
    const ek_dtype_range *range = ek_dtype_range_of(array->dtype);
    char limits[64] = "";
    if (ek_dtype_holds(array->dtype, fill))
        return 0;
    if (array->dtype != EK_I64)
        ek_format(limits, sizeof limits, " in [%.0f, %.0f]", range->first, range->last);
    return EK_FAIL(EK_E_DTYPE, "%s: %s cannot be filled by %g; a whole number%s can be used",
                   transform->type->name, ek_array_text(array, text), fill, limits);
}

void ek_fill_element(ek_dtype dtype, double fill, unsigned char element[8])
{
    memset(element, 0, 8);
    switch (dtype) {
#define FILL(label, text, type, ...)             \
    case EK_##label: {                           \
        type value = EK_##label##_OF_REAL(fill); \
        memcpy(element, &value, sizeof value);   \
        break;                                   \
    }
        EK_DTYPE_ROWS(FILL)
#undef FILL
    }
}

void ek_fill_run(int64_t count, size_t size, const unsigned char *element, void *out)
{
    bool zero = true;
    for (size_t i = 0; i < size; i++)
        zero = zero && element[i] == 0;
    if (zero || size == 1) {
        memset(out, element[0], (size_t)count * size);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)out + (size_t)i * size, element, size);
}

/* ---- picked elements ---- */

#define DEFINE_PICK(bits)                                                                  \
    static void pick_##bits(int64_t count, const int64_t *restrict places, const void *in, \
                            const unsigned char *outside, void *out)                       \
    {                                                                                      \
        const uint##bits##_t *restrict x = in;                                             \
        uint##bits##_t *restrict y = out, other;                                           \
        if (!outside) {                                                                    \
            for (int64_t i = 0; i < count; i++)                                            \
                y[i] = x[places[i]];                                                       \
            return;                                                                        \
        }                                                                                  \
        memcpy(&other, outside, sizeof other);                                             \
        for (int64_t i = 0; i < count; i++)                                                \
            y[i] = places[i] < 0 ? other : x[places[i]];                                   \
    }
DEFINE_PICK(8)
DEFINE_PICK(16)
DEFINE_PICK(32)
DEFINE_PICK(64)
#undef DEFINE_PICK

void ek_pick_run(int64_t count, const int64_t *places, size_t size, const void *in,
                 const unsigned char *outside, void *out)
{
    if (size == 1)
        pick_8(count, places, in, outside, out);
    else if (size == 2)
        pick_16(count, places, in, outside, out);
    else if (size == 4)
        pick_32(count, places, in, outside, out);
    else
        pick_64(count, places, in, outside, out);
}

/* ---- draws ---- */

bool ek_draw_chance(ek_generator *generator, double p)
{
    generator = ek_generator_lock(generator);
    bool yes = ek_generator_f32(generator) < (float)p;
    ek_generator_unlock(generator);
    return yes;
}

float ek_draw_between(ek_generator *locked, double low, double high)
{
    float first = (float)low, length = (float)high - first;
    return fmaf(ek_generator_f32(locked), length, first);
}

void ek_draw_sides(ek_generator *locked, double area, const double scale[2], const double ratio[2],
                   int64_t sides[2])
{
    double share = area * (double)ek_draw_between(locked, scale[0], scale[1]);
    float low = logf((float)ratio[0]), high = logf((float)ratio[1]);
    double aspect = (double)expf(ek_draw_between(locked, (double)low, (double)high));
    sides[0] = (int64_t)fmin(rint(sqrt(share * aspect)), 0x1p40); /* larger than any picture */
    sides[1] = (int64_t)fmin(rint(sqrt(share / aspect)), 0x1p40);
}

/* ---- options ---- */

int ek_check_chance(const char *name, double p)
{
    if (p >= 0 && p <= 1)
        return 0;
    return EK_FAIL(EK_E_INVALID, "%s: the probability has to be between 0 and 1, not %g", name, p);
}

int ek_check_range(const char *name, const char *option, const double range[2], double least,
                   double most)
{
    char limit[64] = "finite";
    if (range[0] >= least && range[0] <= range[1] && range[1] <= most && isfinite(range[0]) &&
        isfinite(range[1]))
        return 0;
    if (isfinite(least) && isfinite(most))
        ek_format(limit, sizeof limit, "in [%g, %g]", least, most);
    else if (isfinite(least))
        ek_format(limit, sizeof limit, "finite and at least %g", least);
    return EK_FAIL(EK_E_INVALID,
                   "%s: %s from %g to %g; both have to be %s, the first not above the second", name,
                   option, range[0], range[1], limit);
}

void ek_range_default(double range[2], double low, double high)
{
    if (range[0] == 0 && range[1] == 0) {
        range[0] = low;
        range[1] = high;
    }
}
