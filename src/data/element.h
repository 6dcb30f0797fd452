/* element.h: numbers as they lie in files, and the dtypes that hold them exactly. */
#ifndef EK_DATA_ELEMENT_H
#define EK_DATA_ELEMENT_H

#include "evenkeel/tensor.h"

/* Elements are read as the machine lays them out, so it must be little-endian. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "little-endian elements are read");

/* A type of elements in files, those of safetensors: F32, BF16, I8, BOOL, ... */
typedef struct ek_element {
    const char *name;
    int bits;       /* of an element */
    ek_dtype dtype; /* the dtype that holds it exactly */
    /* Converts `count` of them, at any address; NULL: they are the dtype's already. To f32, NaN of
     * F16 is quiet, as processors make it; its other bits stay. F8 of every kind are the eight bits
     * of the Open Compute Project and of torch.float8_*. */
    void (*widen)(const void *from, void *to, size_t count);
    bool unread; /* no dtype holds it */
} ek_element;

/* The type of this name; NULL: there is none. Types lie in one array, in which the alignment never
 * falls: the order of the format's reference. */
const ek_element *ek_element_find(const char *name);
/* The type that `dtype` is written as. */
const ek_element *ek_element_of(ek_dtype dtype);

static inline size_t ek_element_size(const ek_element *element)
{
    return (size_t)element->bits / 8;
}

/* Elements of `dtype`, from those of the file; free() them. NULL without memory. */
void *ek_element_widened(const ek_element *element, const void *from, size_t count);

#endif
