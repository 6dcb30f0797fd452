/* element.c: exact conversions from the element types of files to dtypes. */
#include "data/element.h"

#include <math.h>
#include <string.h>

#include "core/bits.h"
#include "core/error.h"

/* ---- whole numbers ---- */

#define WIDEN_INTEGER(name, type)                                                   \
    static void element_widen_##name(const void *from, void *to, size_t count)      \
    {                                                                               \
        int64_t *wide = to;                                                         \
        for (size_t i = 0; i < count; i++) {                                        \
            type narrow;                                                            \
            memcpy(&narrow, (const char *)from + i * sizeof narrow, sizeof narrow); \
            wide[i] = narrow;                                                       \
        }                                                                           \
    }
WIDEN_INTEGER(i8, int8_t)
WIDEN_INTEGER(i16, int16_t)
WIDEN_INTEGER(u16, uint16_t)
WIDEN_INTEGER(u32, uint32_t)

/* ---- 8 bits ---- */

/* Returns the value of a finite 8-bit number: a sign, the exponent, then `mantissa_bits` bits. */
static float element_value_of_f8(unsigned byte, int mantissa_bits, int bias)
{
    int exponent = (int)(byte & 0x7f) >> mantissa_bits;
    int mantissa = (int)byte & ((1 << mantissa_bits) - 1);
    if (exponent > 0)
        mantissa |= 1 << mantissa_bits;
    else
        exponent = 1;
    float value = ldexpf((float)mantissa, exponent - bias - mantissa_bits);
    return byte & 0x80 ? -value : value;
}

static float element_value_of_e5m2(unsigned byte)
{
    return ek_float_of_f16((uint16_t)(byte << 8)); /* the upper half of an f16 */
}

static float element_value_of_e4m3(unsigned byte)
{
    return (byte & 0x7f) == 0x7f ? copysignf(NAN, byte & 0x80 ? -1.0f : 1.0f)
                                 : element_value_of_f8(byte, 3, 7);
}

/* E8M0 has an exponent only: all values are powers of two, without a sign. */
static float element_value_of_e8m0(unsigned byte)
{
    return byte == 0xff ? NAN : ldexpf(1, (int)byte - 127);
}

/* The fnuz types have no infinities and no negative zero: 0x80 is NaN. */
static float element_value_of_e4m3fnuz(unsigned byte)
{
    return byte == 0x80 ? NAN : element_value_of_f8(byte, 3, 8);
}

static float element_value_of_e5m2fnuz(unsigned byte)
{
    return byte == 0x80 ? NAN : element_value_of_f8(byte, 2, 16);
}

static void element_widen_f8(const void *from, void *to, size_t count,
                             float (*value_of)(unsigned byte))
{
    float values[256], *wide = to;
    for (unsigned byte = 0; byte < 256; byte++)
        values[byte] = value_of(byte);
    for (size_t i = 0; i < count; i++)
        wide[i] = values[((const uint8_t *)from)[i]];
}

#define WIDEN_F8(name)                                                         \
    static void element_widen_##name(const void *from, void *to, size_t count) \
    {                                                                          \
        element_widen_f8(from, to, count, element_value_of_##name);            \
    }
WIDEN_F8(e5m2)
WIDEN_F8(e4m3)
WIDEN_F8(e8m0)
WIDEN_F8(e4m3fnuz)
WIDEN_F8(e5m2fnuz)

/* ---- all types ---- */

static const ek_element elements[] = {
    {"BOOL", 8, EK_BOOL, NULL, false},
    {"F4", 4, EK_F32, NULL, true},
    {"F6_E2M3", 6, EK_F32, NULL, true},
    {"F6_E3M2", 6, EK_F32, NULL, true},
    {"U8", 8, EK_U8, NULL, false},
    {"I8", 8, EK_I64, element_widen_i8, false},
    {"F8_E5M2", 8, EK_F32, element_widen_e5m2, false},
    {"F8_E4M3", 8, EK_F32, element_widen_e4m3, false},
    {"F8_E8M0", 8, EK_F32, element_widen_e8m0, false},
    {"F8_E4M3FNUZ", 8, EK_F32, element_widen_e4m3fnuz, false},
    {"F8_E5M2FNUZ", 8, EK_F32, element_widen_e5m2fnuz, false},
    {"I16", 16, EK_I64, element_widen_i16, false},
    {"U16", 16, EK_I64, element_widen_u16, false},
    {"F16", 16, EK_F16, NULL, false},
    {"BF16", 16, EK_BF16, NULL, false},
    {"I32", 32, EK_I32, NULL, false},
    {"U32", 32, EK_I64, element_widen_u32, false},
    {"F32", 32, EK_F32, NULL, false},
    {"C64", 64, EK_F64, NULL, true},
    {"F64", 64, EK_F64, NULL, false},
    {"I64", 64, EK_I64, NULL, false},
    {"U64", 64, EK_I64, NULL, true},
};
enum { ELEMENTS = sizeof elements / sizeof *elements };

const ek_element *ek_element_find(const char *name)
{
    for (int i = 0; i < ELEMENTS; i++)
        if (strcmp(elements[i].name, name) == 0)
            return &elements[i];
    return NULL;
}

const ek_element *ek_element_of(ek_dtype dtype)
{
    const ek_element *element = &elements[ELEMENTS - 1];
    while (element->dtype != dtype || element->widen || element->unread)
        element--;
    return element;
}

void *ek_element_widened(const ek_element *element, const void *from, size_t count)
{
    size_t size = ek_dtype_size(element->dtype), nbytes;
    if (__builtin_mul_overflow(count, size, &nbytes))
        nbytes = SIZE_MAX;
    void *to = ek_realloc(NULL, nbytes ? nbytes : 1);
    if (!to)
        return NULL;
    if (element->widen)
        element->widen(from, to, count);
    else if (nbytes)
        memcpy(to, from, nbytes);
    return to;
}
