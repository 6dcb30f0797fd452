/* npy.h: the header of NumPy's format. */
#ifndef EK_DATA_NPY_H
#define EK_DATA_NPY_H

#include "data/element.h"
#include "data/stream.h"

typedef struct ek_npy_header {
    const ek_element *element;
    bool fortran_order; /* the first index runs fastest */
    ek_shape shape;
} ek_npy_header;

/* Reads magic, version and header. EK_E_DTYPE names an element type that Evenkeel lacks. */
int ek_npy_read_header(ek_stream *stream, ek_npy_header *header);

#endif
