/* safetensors.h: what the writer and the reader of safetensors files share. */
#ifndef EK_DATA_SAFETENSORS_H
#define EK_DATA_SAFETENSORS_H

#include "evenkeel/data.h"

#define EK_SAFETENSORS_METADATA "__metadata__"

enum {
    EK_SAFETENSORS_PREFIX = 8,             /* bytes of the header's length */
    EK_SAFETENSORS_MAX_HEADER = 100000000, /* bytes, as the reference reader */
    EK_SAFETENSORS_ALIGNMENT = 8           /* of the first element in the file */
};

/* Elements are copied as they are. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little endian");

/* A dtype of the format. */
typedef struct ek_safetensors_dtype {
    const char *name;
    int bits;  /* of one element */
    int dtype; /* ek_dtype, or -1 where Evenkeel has none */
} ek_safetensors_dtype;

/* All dtypes in the reference's order, in which the alignment never falls: the position of the one
 * with this name, -1 where there is none. */
int ek_safetensors_dtype_find(const char *name);
/* The position of the one that `dtype` is written as. */
int ek_safetensors_dtype_of(ek_dtype dtype);
const ek_safetensors_dtype *ek_safetensors_dtype_at(int position);

#endif
