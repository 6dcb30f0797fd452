/* safetensors.h: an open safetensors file, and what the writer and the reader share. */
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

/* ---- writing ---- */

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

/* ---- reading ---- */

/* A tensor of the file. */
typedef struct ek_safetensors_entry {
    const char *name; /* in the header */
    const ek_element *element;
    int ndim; /* may be more than EK_MAX_DIMS; the sizes beyond are not kept */
    int64_t sizes[EK_MAX_DIMS];
    int64_t begin, end; /* bytes from the first element */
} ek_safetensors_entry;

struct ek_safetensors {
    char *path;
    const unsigned char *bytes; /* the mapping */
    size_t nbytes;
    const unsigned char *elements;
    int64_t elements_nbytes;
    char *header; /* a copy, whose strings are decoded in place */
    size_t header_nbytes;
    ek_safetensors_entry *entries; /* by place */
    int *by_name;                  /* their indices */
    int count, room;
    bool has_metadata;
    ek_metadata *metadata; /* by key */
    int metadata_count, metadata_room;
};

/* Reads the header of a mapped file whose other members are zero, and fills them. EK_E_FORMAT says
 * what is wrong and where. After a failure ek_safetensors_close frees what was filled. */
int ek_safetensors_read_header(ek_safetensors *file);
/* NULL without an error if there is none of this key. */
const char *ek_safetensors_find_metadata(const ek_safetensors *file, const char *key);

/* Names in the order of strcmp; index from 0 to the count of tensors less 1. */
const char *ek_safetensors_sorted(const ek_safetensors *file, int index);
/* How many of these are before the text of `begin` and `end`, one after the other. */
int ek_safetensors_place(const ek_safetensors *file, const char *begin, const char *end);
/* The index of this text among them; -1: it is none. */
int ek_safetensors_find(const ek_safetensors *file, const char *begin, const char *end);

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
