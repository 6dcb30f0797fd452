/* element.h: numbers as they lie in files, and the dtypes that hold them exactly. */
#ifndef EK_DATA_ELEMENT_H
#define EK_DATA_ELEMENT_H

#include "evenkeel/tensor.h"

/* Elements are read as the machine lays them out, so it must be little-endian. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "little-endian elements are read");

typedef struct ek_element {
    size_t size;    /* bytes in the file */
    ek_dtype dtype; /* the dtype that holds it exactly */
    /* Converts `count` of them, at any address; NULL: they are the dtype's already. */
    void (*widen)(const void *from, void *to, size_t count);
} ek_element;

extern const ek_element ek_element_f64, ek_element_f32, ek_element_bf16, ek_element_i64,
    ek_element_u8;
/* To f32. NaN is quiet, as processors make it; its other bits stay. */
extern const ek_element ek_element_f16;
/* To f32: the eight bits of the Open Compute Project and of torch.float8_*. */
extern const ek_element ek_element_f8_e5m2, ek_element_f8_e4m3, ek_element_f8_e8m0,
    ek_element_f8_e4m3fnuz, ek_element_f8_e5m2fnuz;
/* To i64. */
extern const ek_element ek_element_i8, ek_element_i16, ek_element_u16, ek_element_i32,
    ek_element_u32;

/* Elements of `dtype`, from those of the file; free() them. NULL without memory. */
void *ek_element_widened(const ek_element *element, const void *from, size_t count);

#endif
