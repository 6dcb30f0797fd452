/* safetensors.h: an open safetensors file, and functions that writer and reader share. */
#ifndef EK_DATA_SAFETENSORS_H
#define EK_DATA_SAFETENSORS_H

#include "core/bytes.h"
#include "core/file.h"
#include "core/object.h"
#include "data/element.h"
#include "evenkeel/data.h"

#define EK_SAFETENSORS_METADATA "__metadata__"

enum {
    EK_SAFETENSORS_PREFIX = 8,             /* bytes of the length in front of the header */
    EK_SAFETENSORS_MAX_HEADER = 100000000, /* bytes, as in the reference reader */
    EK_SAFETENSORS_ALIGNMENT = 8, /* alignment of the first element in the file, in bytes */
    /* Tensors of torch.save's files that share elements are read up to so many times the file. */
    EK_SAFETENSORS_SHARE = 16
};

/* ---- writing ---- */

/* A tensor to be written. It exists already, or `make` makes it when it is written, so that only
 * one made tensor takes memory at a time. */
typedef struct ek_array_source {
    const char *name;
    ek_dtype dtype;
    ek_shape shape;
    ek_tensor *tensor;
    ek_tensor *(*make)(ek_object *object); /* returns the tensor in the scope */
    ek_object *object;
    /* For files of torch.save: how many bytes of the name are keys of nested dictionaries, each
     * with a dot behind it. The rest of the name is one key. */
    size_t nested;
    bool number; /* i64 or f64 without dimensions: torch.save's files have a number, not a tensor */
    /* All processes make the tensor together, another process writes it, and this one drops it. */
    bool elsewhere;
} ek_array_source;

static inline int64_t ek_array_source_nbytes(const ek_array_source *source)
{
    return ek_shape_count(&source->shape) * (int64_t)ek_dtype_size(source->dtype);
}

/* What is written of a source. */
typedef struct ek_array_entry {
    const ek_array_source *source;
    const ek_element *element;
    size_t nbytes;
} ek_array_entry;

/* Tensors and texts for a file. */
typedef struct ek_array_list {
    const char *what, *path; /* the beginning of every error message; borrowed */
    const ek_metadata *metadata;
    int metadata_count;
    ek_array_entry *entries; /* owned; in the order in which the elements are written */
    int count;
} ek_array_list;
/* Checks names and texts, and fills `entries`; the members before are set. EK_E_INVALID says what
 * is wrong. ek_array_list_close frees the entries, also after a failure. */
int ek_array_list_open(ek_array_list *list, const ek_array_source *sources, int count);
void ek_array_list_close(ek_array_list *list);
/* Calls `write` with the elements of an entry, which are made if necessary, row-major and in the
 * host's memory. EK_E_STATE if a tensor from `make` has another dtype or shape. */
int ek_array_list_give(const ek_array_list *list, const ek_array_entry *entry,
                       int (*write)(const void *elements, size_t nbytes, void *user), void *user);

/* ek_safetensors_save for sources. */
int ek_safetensors_save_from(const char *path, const ek_array_source *sources, int count,
                             const ek_metadata *metadata, int metadata_count);

/* Makes the content of the file that ek_safetensors_save_from would write. Sources that are
 * elsewhere are made and dropped, in the order in which all files of tensors are written. The
 * caller frees image->data, also after an error. */
int ek_safetensors_image(const ek_array_source *sources, int count, const ek_metadata *metadata,
                         int metadata_count, ek_bytes *image);
/* Replaces the file at `path` by the content. */
int ek_safetensors_write_image(const char *what, const char *path, ek_bytes image);

/* ---- reading ---- */

/* A tensor of a file. */
typedef struct ek_safetensors_entry {
    const char *name; /* borrowed from the header */
    const ek_element *element;
    int ndim;             /* may exceed EK_MAX_DIMS; then there are only so many sizes */
    bool strided;         /* elements are strides apart instead of row-major */
    bool excess;          /* not to be read: see pth_charge_elements */
    const int64_t *sizes; /* kept; if strided, EK_MAX_DIMS sizes and EK_MAX_DIMS strides */
    int64_t begin, end;   /* byte offsets from the first element of the file; their difference is
                             the size of all elements */
    const unsigned char *elements;
} ek_safetensors_entry;

struct ek_safetensors {
    char *path;
    const unsigned char *bytes; /* the mapped file */
    size_t nbytes;
    const unsigned char *elements;
    int64_t elements_nbytes;
    char *header; /* owned: a copy whose strings are decoded in place */
    size_t header_nbytes;
    ek_safetensors_entry *entries; /* in the order of their offsets */
    int *by_name;                  /* indices of `entries`, sorted by name */
    int count, room;
    bool has_metadata;
    ek_metadata *metadata; /* sorted by key */
    int metadata_count, metadata_room;
    char **owned; /* blocks of sizes, names, texts and numbers that are not in the mapped bytes */
    int owned_count, owned_room;
    char *owned_at;                /* where the last block is free */
    size_t owned_left;             /* for so many bytes */
    struct ek_safetensors **parts; /* The files of a set (safetensors_set.c); owned. */
    int part_count;
};

/* Reads a mapped file's header, and fills the other members, which are zero before. EK_E_FORMAT
 * says what is wrong and where. ek_safetensors_close frees them, also after a failure. */
int ek_safetensors_read_header(ek_safetensors *file);
/* Returns a copy of `nbytes` bytes, with zeros behind them up to `room`, that lives as long as the
 * file; NULL on error. It is aligned for numbers of 8 bytes if `room` is a multiple of 8. */
void *ek_safetensors_keep(ek_safetensors *file, const void *bytes, size_t nbytes, size_t room);
/* Sorts names and metadata. EK_E_FORMAT if a name or a key occurs twice. */
int ek_safetensors_sort(ek_safetensors *file);
/* ek_safetensors_open that also opens files of torch.save (pth.h) and sets of files. Each file is
 * mapped by `map`, as by ek_file_map (NULL: by ek_file_map). A set's files are mapped in an order
 * that depends on the index alone. */
typedef int ek_tensor_file_map(void *user, const char *path, ek_mapped *mapped);
ek_safetensors *ek_tensor_file_open(const char *path, ek_tensor_file_map *map, void *user);
/* Opens a file whose bytes are mapped already, and takes the mapping over. `archive`: it may be a
 * file of torch.save. NULL with an error. */
ek_safetensors *ek_safetensors_open_mapped(const char *path, ek_mapped mapped, bool archive);
/* Returns the value of this key. NULL, without an error, if there is none. */
const char *ek_safetensors_find_metadata(const ek_safetensors *file, const char *key);

/* Returns name `index`, from 0 to the number of tensors less 1, in the order of strcmp. */
const char *ek_safetensors_sorted(const ek_safetensors *file, int index);
/* Returns how many names come before `begin` followed by `end` in the order of strcmp. */
int ek_safetensors_place(const ek_safetensors *file, const char *begin, const char *end);
/* Returns the index, for ek_safetensors_sorted, of the name `begin` followed by `end`, or -1. */
int ek_safetensors_find(const ek_safetensors *file, const char *begin, const char *end);

/* A tensor's elements in the mapped file: unaligned, valid while it is open. */
typedef struct ek_array_view {
    ek_dtype dtype; /* the dtype that ek_array_copy converts to */
    ek_shape shape;
    const ek_element *element; /* the element type in the file */
    const void *elements;
    size_t count, nbytes;   /* of all elements */
    const int64_t *strides; /* in elements; NULL: row-major */
} ek_array_view;
/* Fills the view of the tensor of this name. Errors are those of ek_safetensors_read. */
int ek_safetensors_view(const ek_safetensors *file, const char *name, ek_array_view *view);
/* Returns true if the elements in the file can be used directly: row-major and of view->dtype. */
static inline bool ek_array_is_plain(const ek_array_view *view)
{
    return !view->element->widen && !view->strides;
}
/* Returns true if both views have equal elements, to the bit. Strided views aren't compared by
 * value: they count as equal if they show one range of the file. */
bool ek_array_equal(const ek_array_view *x, const ek_array_view *y);
/* Copies all elements, row-major, converted to view->dtype. */
void ek_array_copy(const ek_array_view *view, void *to);
/* Makes a tensor of the elements on `device`. */
ek_tensor *ek_array_tensor(const ek_array_view *view, ek_device device);

#endif
