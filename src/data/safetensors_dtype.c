/* safetensors_dtype.c: the dtypes of the safetensors format. */
#include <string.h>

#include "data/safetensors.h"

/* BOOL comes before U8, so that u8 must be looked for from the end. */
static const ek_safetensors_dtype dtypes[] = {
    {"BOOL", 8, &ek_element_u8},
    {"F4", 4, NULL},
    {"F6_E2M3", 6, NULL},
    {"F6_E3M2", 6, NULL},
    {"U8", 8, &ek_element_u8},
    {"I8", 8, &ek_element_i8},
    {"F8_E5M2", 8, &ek_element_f8_e5m2},
    {"F8_E4M3", 8, &ek_element_f8_e4m3},
    {"F8_E8M0", 8, &ek_element_f8_e8m0},
    {"F8_E4M3FNUZ", 8, &ek_element_f8_e4m3fnuz},
    {"F8_E5M2FNUZ", 8, &ek_element_f8_e5m2fnuz},
    {"I16", 16, &ek_element_i16},
    {"U16", 16, &ek_element_u16},
    {"F16", 16, &ek_element_f16},
    {"BF16", 16, &ek_element_bf16},
    {"I32", 32, &ek_element_i32},
    {"U32", 32, &ek_element_u32},
    {"F32", 32, &ek_element_f32},
    {"C64", 64, NULL},
    {"F64", 64, &ek_element_f64},
    {"I64", 64, &ek_element_i64},
    {"U64", 64, NULL},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

int ek_safetensors_dtype_find(const char *name)
{
    int position = DTYPES - 1;
    while (position >= 0 && strcmp(dtypes[position].name, name) != 0)
        position--;
    return position;
}

static bool holds(const ek_element *element, ek_dtype dtype)
{
    return element && !element->widen && element->dtype == dtype;
}

int ek_safetensors_dtype_of(ek_dtype dtype)
{
    int position = DTYPES - 1;
    while (position >= 0 && !holds(dtypes[position].element, dtype))
        position--;
    return position;
}

const ek_safetensors_dtype *ek_safetensors_dtype_at(int position)
{
    return &dtypes[position];
}
