/* archive.h: an archive's inside.
 *
 * While it is written, an archive is a list of tensors (or of what makes them) and of texts, and a
 * table of all names. While it is read, it is an open safetensors file. */
#ifndef EK_ARCHIVE_ARCHIVE_H
#define EK_ARCHIVE_ARCHIVE_H

#include "core/map.h"
#include "core/object.h"
#include "data/safetensors.h"
#include "evenkeel/archive.h"

/* Names have at most so many parts: values nest no deeper. */
enum { EK_ARCHIVE_DEPTH = 128 };

/* Where tensors were put on: metadata with this key for most of them (none: cpu), and with this
 * key, a colon and the tensor's name for the others. */
#define EK_ARCHIVE_RESERVED "evenkeel."
#define EK_ARCHIVE_DEVICE "evenkeel.device"

/* A tensor to be written. */
typedef struct ek_archive_entry {
    char *name;        /* owned */
    ek_object *object; /* a reference: the tensor, or what `make` is called with */
    ek_tensor *(*make)(ek_object *object); /* in the scope; NULL: the object is the tensor */
    ek_dtype dtype;
    ek_shape shape;
    ek_device device; /* to be noted */
} ek_archive_entry;

typedef struct ek_archive_text_entry {
    char *name, *text; /* owned */
} ek_archive_text_entry;

struct ek_archive {
    ek_safetensors *file; /* NULL: it is written */
    char *path;           /* of the file, for sentences */
    ek_archive_entry *entries;
    int count, room;
    ek_archive_text_entry *texts;
    int text_count, text_room;
    ek_map names; /* hashes of what was put, kept after what was put is taken back: archive.c */
};

/* "name.path", either may be ""; NULL without memory. Freed with free(). */
char *ek_archive_join(const char *name, const char *path);

/* ---- writing: archive.c ---- */

/* A call that puts something below `name`; `what` begins its sentences. */
typedef struct ek_archive_put_call {
    ek_archive *archive;
    const char *what, *name;
} ek_archive_put_call;

/* 0 if the archive is written and there is a name. */
int ek_archive_check_put(const ek_archive_put_call *put);

/* How far an archive was filled, and back to there if `status` is an error; returns it. */
typedef struct ek_archive_mark {
    int count, text_count;
} ek_archive_mark;
ek_archive_mark ek_archive_begin(const ek_archive *archive);
int ek_archive_end(ek_archive *archive, ek_archive_mark mark, int status);

/* Notes a tensor (NULL with a pending error is that error) as "name.path"; either may be "". */
int ek_archive_add(const ek_archive_put_call *put, const char *path, ek_tensor *tensor,
                   ek_device device);
/* The same of what `make` makes of `object`, of which a reference is taken: on cpu. */
int ek_archive_add_made(const ek_archive_put_call *put, const char *path, ek_archive_entry entry);
/* The same of a new tensor of these elements. */
int ek_archive_add_data(const ek_archive_put_call *put, const char *path, const void *elements,
                        ek_shape shape, ek_dtype dtype, ek_device device);

/* Something was put under the name, or below it. */
bool ek_archive_has_put(const ek_archive *archive, const char *name);

/* ---- reading: archive_read.c ---- */

/* A call that reads what is below `name`. */
typedef struct ek_archive_get_call {
    const ek_archive *archive;
    const char *what, *name;
    const char *path; /* the file's, for sentences */
} ek_archive_get_call;

/* 0 if the archive is read and there is a name. Sets the path. */
int ek_archive_check_get(ek_archive_get_call *get);

/* The tensors below `name`, all of them for "", as a range of ek_safetensors_sorted. */
typedef struct ek_archive_range {
    int begin, end;
} ek_archive_range;
ek_archive_range ek_archive_below(const ek_archive *archive, const char *name);

/* "name.path" where it lies in the file: EK_E_INVALID if there is none. */
int ek_archive_view(const ek_archive_get_call *get, const char *path, ek_array_view *view);
/* A number as ek_archive_get_int reads it. */
int ek_archive_view_int(const ek_archive_get_call *get, const char *path, int64_t *value);
/* Up to `room` f64 numbers of a tensor with one dimension; returns how many there are. */
int ek_archive_view_floats(const ek_archive_get_call *get, const char *path, double *values,
                           int room);

#endif
