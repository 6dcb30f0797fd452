/* safetensors_dtype.c: the dtypes of the safetensors format. */
#include <string.h>

#include "data/safetensors.h"

/* BOOL comes before U8, so that u8 must be looked for from the end. */
static const ek_safetensors_dtype dtypes[] = {
    {"BOOL", 8, EK_U8},  {"F4", 4, -1},          {"F6_E2M3", 6, -1},     {"F6_E3M2", 6, -1},
    {"U8", 8, EK_U8},    {"I8", 8, -1},          {"F8_E5M2", 8, -1},     {"F8_E4M3", 8, -1},
    {"F8_E8M0", 8, -1},  {"F8_E4M3FNUZ", 8, -1}, {"F8_E5M2FNUZ", 8, -1}, {"I16", 16, -1},
    {"U16", 16, -1},     {"F16", 16, -1},        {"BF16", 16, EK_BF16},  {"I32", 32, -1},
    {"U32", 32, -1},     {"F32", 32, EK_F32},    {"C64", 64, -1},        {"F64", 64, EK_F64},
    {"I64", 64, EK_I64}, {"U64", 64, -1},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

int ek_safetensors_dtype_find(const char *name)
{
    int position = DTYPES - 1;
    while (position >= 0 && strcmp(dtypes[position].name, name) != 0)
        position--;
    return position;
}

int ek_safetensors_dtype_of(ek_dtype dtype)
{
    int position = DTYPES - 1;
    while (position >= 0 && dtypes[position].dtype != (int)dtype)
        position--;
    return position;
}

const ek_safetensors_dtype *ek_safetensors_dtype_at(int position)
{
    return &dtypes[position];
}
