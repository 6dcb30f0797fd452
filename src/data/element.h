/* element.h: the element types of files, and the dtypes that hold them exactly. */
#ifndef EK_DATA_ELEMENT_H
#define EK_DATA_ELEMENT_H

#include "evenkeel/tensor.h"

/* Elements are read in the machine's own byte order, which must be little-endian. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "little-endian elements are read");

/* An element type of files, by its name in safetensors: F32, BF16, I8, BOOL, ... */
typedef struct ek_element {
    const char *name;
    int bits;       /* bits of one element */
    ek_dtype dtype; /* the dtype that holds it exactly */
    /* Converts `count` elements, at any address, to `dtype`; NULL if no conversion is needed. The
     * F8 types are the 8-bit types of the Open Compute Project and of torch.float8_*. */
    void (*widen)(const void *from, void *to, size_t count);
    bool unread; /* no dtype holds this type's values */
} ek_element;

/* Returns the type of this name, or NULL. All types lie in one array, in the order in which the
 * safetensors reference sorts dtypes. In it no type has a smaller alignment than the one before. */
const ek_element *ek_element_find(const char *name);
/* Returns the type that `dtype` is written as. */
const ek_element *ek_element_of(ek_dtype dtype);

static inline size_t ek_element_size(const ek_element *element)
{
    return (size_t)element->bits / 8;
}

/* Returns a converted copy of the elements. The caller frees it. NULL if memory is short. */
void *ek_element_widened(const ek_element *element, const void *from, size_t count);

#endif
