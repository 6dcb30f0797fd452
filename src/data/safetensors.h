/* safetensors.h: what the writer and the reader of safetensors files share. */
#ifndef EK_DATA_SAFETENSORS_H
#define EK_DATA_SAFETENSORS_H

#include "core/object.h"
#include "data/element.h"
#include "evenkeel/data.h"

#define EK_SAFETENSORS_METADATA "__metadata__"

enum {
    EK_SAFETENSORS_PREFIX = 8,             /* bytes of the header's length */
    EK_SAFETENSORS_MAX_HEADER = 100000000, /* bytes, as the reference reader */
    EK_SAFETENSORS_ALIGNMENT = 8           /* of the first element in the file */
};

/* A dtype of the format. */
typedef struct ek_safetensors_dtype {
    const char *name;
    int bits;                  /* an element takes this many */
    const ek_element *element; /* NULL: it is not read */
} ek_safetensors_dtype;

/* All dtypes in the reference's order, in which the alignment never falls: the position of the one
 * with this name, -1 if there is none. */
int ek_safetensors_dtype_find(const char *name);
/* The position of the one that `dtype` is written as. */
int ek_safetensors_dtype_of(ek_dtype dtype);
const ek_safetensors_dtype *ek_safetensors_dtype_at(int position);

/* A tensor to be written: it is there, or it is made when its turn comes, so that never more than
 * one of these takes memory. */
typedef struct ek_array_source {
    const char *name;
    ek_dtype dtype;
    ek_shape shape;
    ek_tensor *tensor;
    ek_tensor *(*make)(ek_object *object); /* in the scope */
    ek_object *object;
} ek_array_source;
/* As ek_safetensors_save. EK_E_STATE if dtype or shape are others than was said. */
int ek_safetensors_save_from(const char *path, const ek_array_source *sources, int count,
                             const ek_metadata *metadata, int metadata_count);

/* Names in the order of strcmp; index from 0 to the count of tensors less 1. */
const char *ek_safetensors_sorted(const ek_safetensors *file, int index);

/* A tensor where it lies in the file: row-major, at any address, as long as the file is open. */
typedef struct ek_array_view {
    ek_dtype dtype; /* the dtype it is read as */
    ek_shape shape;
    const ek_element *element; /* in the file */
    const void *elements;
    size_t count, nbytes;
} ek_array_view;
/* Errors are ek_safetensors_read's. */
int ek_safetensors_view(const ek_safetensors *file, const char *name, ek_array_view *view);
/* All elements, as those of view->dtype. */
void ek_array_copy(const ek_array_view *view, void *to);
/* A new tensor of them on `device`. */
ek_tensor *ek_array_tensor(const ek_array_view *view, ek_device device);

#endif
