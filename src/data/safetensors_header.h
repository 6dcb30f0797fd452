/* safetensors_header.h: an open safetensors file, and the part of it that says what is in it. */
#ifndef EK_DATA_SAFETENSORS_HEADER_H
#define EK_DATA_SAFETENSORS_HEADER_H

#include "data/safetensors.h"

/* A tensor of the file. */
typedef struct ek_safetensors_entry {
    const char *name; /* in the header */
    int position;     /* of its dtype */
    int ndim;         /* may be more than EK_MAX_DIMS; the sizes beyond are not kept */
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

#endif
