/* safetensors_set.h: sets of safetensors files, in Hugging Face's layout (safetensors_set.c). */
#ifndef EK_DATA_SAFETENSORS_SET_H
#define EK_DATA_SAFETENSORS_SET_H

#include "data/safetensors.h"

#define EK_SET_INDEX ".index.json" /* how the path of a set's index ends */

/* Returns the path of the file to open for `path`: that of the index if there is only the index of
 * a set with this name. The caller frees the path. NULL with an error. */
char *ek_set_find(const char *path);
/* Reads a mapped index, and opens the parts that it lists. */
int ek_set_read(ek_safetensors *file, ek_tensor_file_map *map, void *user);

/* The parts of one save. Saves at one path take turns with two kinds of names, so that no part of
 * the set that an index lists is overwritten. */
typedef struct ek_set_parts {
    bool second; /* the second kind of names */
    int count;
} ek_set_parts;
/* Return paths, which the caller frees, or NULL with an error: `path` without the ending of an
 * index, the path of its index, and that of part `number`, counted from 0. */
char *ek_set_path(const char *path);
char *ek_set_index_path(const char *path);
char *ek_set_part_path(const char *path, ek_set_parts parts, int number);
/* Tells whether the index at `path` lists parts with the first kind of names. */
bool ek_set_lists_first(const char *path);
/* Removes all parts of the set at `path` but those of the last save, and a plain file at `path`. */
void ek_set_clean(const char *path, ek_set_parts kept);

/* The content of an index. */
typedef struct ek_set_list {
    const char *path; /* the set's */
    ek_set_parts parts;
    const char *const *hosts; /* The machine that writes each part. */
    const ek_array_source *sources;
    const int *owners; /* The number of each source's part. */
    int count;
} ek_set_list;
/* Makes the text of an index. The caller frees image->data. */
int ek_set_index(const ek_set_list *list, ek_bytes *image);

#endif
