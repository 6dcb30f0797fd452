/* test_element.c: numbers of files that become those of a larger dtype, every one of them. */
#include "data/element.h"

#include "core/bits.h"
#include "unit.h"

/* What sign, exponent and mantissa mean if nothing is infinite. */
static double value_of(unsigned bits, int exponent_bits, int mantissa_bits, int bias)
{
    unsigned sign = bits >> (exponent_bits + mantissa_bits);
    int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double mantissa = (bits & ((1u << mantissa_bits) - 1)) / (double)(1 << mantissa_bits);
    double value =
        exponent == 0 ? mantissa * pow(2, 1 - bias) : (1 + mantissa) * pow(2, exponent - bias);
    return sign ? -value : value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* To the bit, so that zeros have signs; any NaN is one. */
static void assert_f32(unsigned from, float got, double wanted)
{
    if (isnan(wanted) ? !isnan(got) : bits_of(got) != bits_of((float)wanted))
        ck_abort_msg("0x%x is %g, not %g", from, (double)got, wanted);
    if (!isnan(wanted))
        ck_assert((double)(float)wanted == wanted);
}

TEST(all_of_f16)
{
    enum { ALL = 65536 };
    static uint16_t halves[ALL];
    for (int i = 0; i < ALL; i++)
        halves[i] = (uint16_t)i;
    ck_assert_int_eq(ek_element_find("F16")->dtype, EK_F16);
    ck_assert(!ek_element_find("F16")->widen);
    for (unsigned i = 0; i < ALL; i++) {
        float wide = ek_float_of_f16(halves[i]);
        unsigned exponent = i >> 10 & 31, mantissa = i & 0x3ff;
        double infinity = i & 0x8000 ? -(double)INFINITY : (double)INFINITY;
        if (exponent == 31)
            assert_f32(i, wide, mantissa ? (double)NAN : infinity);
        else
            assert_f32(i, wide, value_of(i, 5, 10, 15));
        if (exponent == 31 && mantissa) /* sign and payload stay; quiet, as processors make it */
            ck_assert_uint_eq(bits_of(wide), (i & 0x8000) << 16 | 0x7fc00000 | mantissa << 13);
    }
}

static double e5m2(unsigned byte)
{
    double infinity = byte & 0x80 ? -(double)INFINITY : (double)INFINITY;
    return (byte & 0x7f) < 0x7c ? value_of(byte, 5, 2, 15) : (byte & 3) ? (double)NAN : infinity;
}

static double e4m3(unsigned byte)
{
    return (byte & 0x7f) == 0x7f ? (double)NAN : value_of(byte, 4, 3, 7);
}

static double e8m0(unsigned byte)
{
    return byte == 255 ? (double)NAN : pow(2, (double)byte - 127);
}

static double e4m3fnuz(unsigned byte)
{
    return byte == 0x80 ? (double)NAN : value_of(byte, 4, 3, 8);
}

static double e5m2fnuz(unsigned byte)
{
    return byte == 0x80 ? (double)NAN : value_of(byte, 5, 2, 16);
}

static const struct {
    const char *name;
    double (*value)(unsigned byte);
    double largest; /* what the format's makers say */
} eights[] = {{"F8_E5M2", e5m2, 57344},
              {"F8_E4M3", e4m3, 448},
              {"F8_E8M0", e8m0, 0x1p127},
              {"F8_E4M3FNUZ", e4m3fnuz, 240},
              {"F8_E5M2FNUZ", e5m2fnuz, 57344}};

TEST_LOOP(all_of_f8, 0, sizeof eights / sizeof *eights)
{
    uint8_t bytes[256];
    double largest = 0;
    for (int i = 0; i < 256; i++)
        bytes[i] = (uint8_t)i;
    float *wide = ek_element_widened(ek_element_find(eights[_i].name), bytes, 256);
    ck_assert_ptr_nonnull(wide);
    for (unsigned i = 0; i < 256; i++) {
        assert_f32(i, wide[i], eights[_i].value(i));
        if (isfinite(wide[i]) && wide[i] > largest)
            largest = wide[i];
    }
    ck_assert_double_eq(largest, eights[_i].largest);
    free(wide);
}

/* Each number at an address that is not aligned. */
#define ASSERT_WHOLE(name, type, ...)                                  \
    do {                                                               \
        const type numbers[] = {__VA_ARGS__};                          \
        const size_t count = sizeof numbers / sizeof *numbers;         \
        char bytes[sizeof numbers + 1];                                \
        memcpy(bytes + 1, numbers, sizeof numbers);                    \
        const ek_element *element = ek_element_find(name);             \
        ck_assert_uint_eq(ek_element_size(element), sizeof *numbers);  \
        ck_assert_int_eq(element->dtype, EK_I64);                      \
        int64_t *wide = ek_element_widened(element, bytes + 1, count); \
        ck_assert_ptr_nonnull(wide);                                   \
        for (size_t i = 0; i < count; i++)                             \
            ck_assert_int_eq(wide[i], numbers[i]);                     \
        free(wide);                                                    \
    } while (0)

TEST(whole_numbers)
{
    ASSERT_WHOLE("I8", int8_t, INT8_MIN, -1, 0, 1, INT8_MAX);
    ASSERT_WHOLE("I16", int16_t, INT16_MIN, -1, 0, 0x0102, INT16_MAX);
    ASSERT_WHOLE("U16", uint16_t, 0, 0x0102, 0x8000, UINT16_MAX);
    ASSERT_WHOLE("U32", uint32_t, 0, 0x01020304, 0x80000000, UINT32_MAX);
}
