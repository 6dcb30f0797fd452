/* archive.h: what an archive is made of.
 *
 * An archive that is being written has a list of tensors (or of what makes them), a list of texts,
 * and a table of all names. An archive that is being read has an open safetensors file. */
#ifndef EK_ARCHIVE_ARCHIVE_H
#define EK_ARCHIVE_ARCHIVE_H

#include "core/map.h"
#include "core/object.h"
#include "data/safetensors_set.h"
#include "evenkeel/archive.h"
#include "evenkeel/status.h"

/* The most parts of a name. Values nest no deeper. */
enum { EK_ARCHIVE_DEPTH = 128 };

/* The metadata key for the devices on which tensors lay when they were put. The key alone has the
 * device of most tensors (cpu if the key is missing). With a colon and a tensor's name appended it
 * has that tensor's device. */
#define EK_ARCHIVE_RESERVED "evenkeel."
#define EK_ARCHIVE_DEVICE "evenkeel.device"

/* A tensor to be written. */
typedef struct ek_archive_entry {
    char *name;        /* owned */
    ek_object *object; /* one reference: the tensor, or the argument of `make` */
    ek_tensor *(*make)(ek_object *object); /* result in the scope; NULL: `object` is the tensor */
    bool has_ranks;                        /* `make` is a call of several processes (ek_ranks) */
    bool number;                           /* a number, not a tensor without dimensions */
    bool alike;    /* equal on all ranks of a job: any of them can write it */
    size_t nested; /* see ek_array_source */
    ek_dtype dtype;
    ek_shape shape;
    ek_device device; /* the device that the metadata notes */
} ek_archive_entry;

typedef struct ek_archive_text_entry {
    char *name, *text; /* owned */
} ek_archive_text_entry;

struct ek_archive {
    ek_safetensors *file; /* owned; NULL: the archive is being written */
    char *path;           /* owned; the file's path, for error messages */
    ek_archive_entry *entries;
    int count, room;
    ek_archive_text_entry *texts;
    int text_count, text_room;
    ek_map names;            /* hashes of all names ever put, also of those taken back */
    ek_error_record failure; /* the first failed put's error; status 0 if no put has failed */
};

/* Returns "name.path", or one of them if the other is "". The caller frees it. NULL on error. */
char *ek_archive_join(const char *name, const char *path);

/* ---- writing: archive.c ---- */

/* A call that puts something below `name`. `what` begins its error messages. */
typedef struct ek_archive_put_call {
    ek_archive *archive;
    const char *what, *name;
} ek_archive_put_call;

/* Returns 0 if the archive is being written. */
int ek_archive_check_written(const ek_archive_put_call *put);
/* Returns 0 if the archive is being written and the name is given. */
int ek_archive_check_put(const ek_archive_put_call *put);
/* Returns 0 if what is to be put is given (ek_check_given). */
int ek_archive_check_given(const ek_archive_put_call *put, const char *operand,
                           const void *pointer);
/* Returns the outcome of a put. If it is an error, the archive notes it. */
int ek_archive_noted(ek_archive *archive, int status);

/* How far an archive was filled. If `status` is an error, ek_archive_end takes back what was put
 * after the mark. */
typedef struct ek_archive_mark {
    int count, text_count;
} ek_archive_mark;
ek_archive_mark ek_archive_begin(const ek_archive *archive);
int ek_archive_end(ek_archive *archive, ek_archive_mark mark, int status);

/* Adds a tensor as "name.path"; either may be "". A NULL tensor returns the pending error. */
int ek_archive_add(const ek_archive_put_call *put, const char *path, ek_tensor *tensor,
                   ek_device device);
/* Does what ek_archive_add does, for the tensor that entry.make makes of entry.object, which is
 * retained. */
int ek_archive_add_made(const ek_archive_put_call *put, const char *path, ek_archive_entry entry);
/* Does what ek_archive_add does, for a new tensor of these elements; without dimensions they are a
 * number. */
int ek_archive_add_data(const ek_archive_put_call *put, const char *path, const void *elements,
                        ek_shape shape, ek_dtype dtype, ek_device device);

/* Notes that all ranks of a job have put what was put after the mark. */
void ek_archive_set_alike(ek_archive *archive, ek_archive_mark mark);

/* True if something was put under the name, or below it. */
bool ek_archive_has_put(const ek_archive *archive, const char *name);

/* Adds the learning rates of all groups: archive_schedule.c. */
int ek_archive_put_rates(const ek_archive_put_call *put, const ek_optimizer *optimizer);

/* ---- saving: archive_save.c ---- */

/* Does what ek_archive_save does, for archives with entries that are sharded over ranks. Meanwhile
 * all other ranks call ek_archive_give. */
int ek_archive_save_with_ranks(ek_archive *archive, const char *path);
/* Gives this process's shards of its archive's entries to the process that saves. */
int ek_archive_give(const ek_archive *archive);
/* Returns how many entries are sharded over ranks (with `alike`: are alike or sharded), and writes
 * a digest of their names, dtypes and shapes. */
int ek_archive_count_with_ranks(const ek_archive *archive, bool alike, uint64_t *digest);
/* Writes the owner of each entry, from 0 to ranks - 1. Alike and sharded entries are divided, so
 * that owners have about equally many bytes; all others are the writer's, and all entries if
 * `ranks` is 1. Equal on all ranks for alike and sharded entries. */
int ek_archive_divide(const ek_archive *archive, int ranks, int writer, int *owners);
/* Makes the safetensors file of the entries of one owner; with `texts`, also of all texts and of
 * all entries' devices. Sharded entries are made with all other ranks, which make this call too.
 * NULL is an empty archive. The caller frees image->data, also after an error. */
int ek_archive_part(const ek_archive *archive, const int *owners, int owner, bool texts,
                    ek_bytes *image);
/* Makes the index of a set whose parts are those of the owners. Members of `list` for the sources
 * are not read. */
int ek_archive_index(const ek_archive *archive, const int *owners, ek_set_list list,
                     ek_bytes *image);
/* Returns true for the endings of torch.save's files. */
bool ek_archive_is_pth(const char *path);

/* ---- reading: archive_read.c ---- */

/* ek_archive_open with a function that maps each file (ek_tensor_file_open). */
ek_archive *ek_archive_open_mapped(const char *path, ek_tensor_file_map *map, void *user);

/* A call that reads what is below `name`. */
typedef struct ek_archive_get_call {
    const ek_archive *archive;
    const char *what, *name;
    const char *path; /* borrowed: the file's path, for error messages */
} ek_archive_get_call;

/* Returns 0 if the archive is being read and the name is given. Sets get->path. */
int ek_archive_check_get(ek_archive_get_call *get);

/* The tensors below `name`, or all tensors for "", as a range of ek_safetensors_sorted. */
typedef struct ek_archive_range {
    int begin, end;
} ek_archive_range;
ek_archive_range ek_archive_below(const ek_archive *archive, const char *name);

/* Fills the view of tensor "name.path" in the file. EK_E_INVALID if there is none. */
int ek_archive_view(const ek_archive_get_call *get, const char *path, ek_array_view *view);
/* Reads a number as ek_archive_get_int does. */
int ek_archive_view_int(const ek_archive_get_call *get, const char *path, int64_t *value);
/* Reads up to `room` numbers of a f64 tensor with one dimension. Returns how many there are. */
int ek_archive_view_floats(const ek_archive_get_call *get, const char *path, double *values,
                           int room);
/* Reads one learning rate per group. Fails if there are more or fewer. */
int ek_archive_read_rates(const ek_archive_get_call *get, double *values, int groups);
/* Sets rates that were checked before. */
void ek_archive_set_rates(ek_optimizer *optimizer, const double *values);

#endif
