/* safetensors_read.c: opens files of named tensors, of which nothing is believed unchecked. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/file.h"
#include "core/thread.h"
#include "data/safetensors.h"

/* A tensor of the file. */
typedef struct entry {
    const char *name; /* the header's */
    int position;     /* of its dtype */
    int ndim;         /* may be more than EK_MAX_DIMS; the sizes beyond are not kept */
    int64_t sizes[EK_MAX_DIMS];
    int64_t begin, end; /* bytes from the first element */
} entry;

struct ek_safetensors {
    char *path;
    const unsigned char *bytes; /* the mapping */
    size_t nbytes;
    const unsigned char *elements;
    int64_t elements_nbytes;
    json_t *header;
    entry *entries; /* by place */
    int *by_name;   /* their indices */
    int count;
};

/* The sentence begins with the file's name. */
#define FAIL_FORMAT(file, text, ...) \
    EK_FAIL(EK_E_FORMAT, "safetensors: %s: " text, (file)->path, __VA_ARGS__)

/* ---- the header ---- */

static int parse_header(ek_safetensors *file)
{
    uint64_t length = 0;
    if (file->nbytes < EK_SAFETENSORS_PREFIX)
        return FAIL_FORMAT(file, "%zu bytes; the length of the header alone takes %d", file->nbytes,
                           EK_SAFETENSORS_PREFIX);
    for (int i = 0; i < EK_SAFETENSORS_PREFIX; i++)
        length |= (uint64_t)file->bytes[i] << 8 * i;
    if (length > EK_SAFETENSORS_MAX_HEADER)
        return FAIL_FORMAT(file, "a header of %llu bytes; at most %d are read",
                           (unsigned long long)length, EK_SAFETENSORS_MAX_HEADER);
    if (length > file->nbytes - EK_SAFETENSORS_PREFIX)
        return FAIL_FORMAT(file, "truncated: a header of %llu bytes in a file of %zu",
                           (unsigned long long)length, file->nbytes);
    const char *text = (const char *)file->bytes + EK_SAFETENSORS_PREFIX;
    if (length == 0 || *text != '{')
        return FAIL_FORMAT(file, "the header, of %llu bytes, does not begin with '{'",
                           (unsigned long long)length);
    json_error_t error;
    file->header = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &error);
    if (!file->header && json_error_code(&error) == json_error_out_of_memory)
        return EK_FAIL(EK_E_NO_MEMORY, "safetensors: %s: no memory for its header", file->path);
    if (!file->header)
        return FAIL_FORMAT(file, "the header is no JSON object, at its byte %d: %s", error.position,
                           error.text);
    file->elements = file->bytes + EK_SAFETENSORS_PREFIX + length;
    file->elements_nbytes = (int64_t)(file->nbytes - EK_SAFETENSORS_PREFIX - (size_t)length);
    return 0;
}

static int check_metadata(const ek_safetensors *file, json_t *metadata)
{
    if (!json_is_object(metadata))
        return FAIL_FORMAT(file, "%s is no object", EK_SAFETENSORS_METADATA);
    for (void *at = json_object_iter(metadata); at; at = json_object_iter_next(metadata, at))
        if (!json_is_string(json_object_iter_value(at)))
            return FAIL_FORMAT(file, "the value of metadata \"%.200s\" is no string",
                               json_object_iter_key(at));
    return 0;
}

/* A size or an offset. */
static int read_natural(const ek_safetensors *file, const entry *e, const char *what, json_t *value,
                        int64_t *number)
{
    if (!json_is_integer(value))
        return FAIL_FORMAT(file, "tensor \"%.200s\": %s is no whole number", e->name, what);
    *number = json_integer_value(value);
    if (*number < 0)
        return FAIL_FORMAT(file, "tensor \"%.200s\": %s is negative: %lld", e->name, what,
                           (long long)*number);
    return 0;
}

/* *nbytes becomes what shape and dtype ask for. */
static int read_shape(const ek_safetensors *file, json_t *shape, entry *e, int64_t *nbytes)
{
    const ek_safetensors_dtype *dtype = ek_safetensors_dtype_at(e->position);
    int64_t bits = dtype->bits;
    bool empty = false, fits = true;
    if (!json_is_array(shape))
        return FAIL_FORMAT(file, "tensor \"%.200s\": shape is no array", e->name);
    e->ndim = (int)json_array_size(shape);
    for (int i = 0; i < e->ndim; i++) {
        int64_t size = 0;
        EK_TRY(read_natural(file, e, "a size", json_array_get(shape, (size_t)i), &size));
        if (i < EK_MAX_DIMS)
            e->sizes[i] = size;
        empty = empty || size == 0;
        fits = fits && !__builtin_mul_overflow(bits, size, &bits);
    }
    if (!fits && !empty)
        return FAIL_FORMAT(file, "tensor \"%.200s\": its sizes multiply to more than 2^63 bits",
                           e->name);
    if (!empty && bits % 8 != 0)
        return FAIL_FORMAT(file, "tensor \"%.200s\": %lld bits of %s are no whole bytes", e->name,
                           (long long)bits, dtype->name);
    *nbytes = empty ? 0 : bits / 8;
    return 0;
}

static int read_offsets(const ek_safetensors *file, json_t *offsets, int64_t nbytes, entry *e)
{
    if (!json_is_array(offsets) || json_array_size(offsets) != 2)
        return FAIL_FORMAT(file, "tensor \"%.200s\": data_offsets is no array of two", e->name);
    EK_TRY(read_natural(file, e, "an offset", json_array_get(offsets, 0), &e->begin));
    EK_TRY(read_natural(file, e, "an offset", json_array_get(offsets, 1), &e->end));
    if (e->begin > e->end)
        return FAIL_FORMAT(file, "tensor \"%.200s\" begins at %lld and ends before, at %lld",
                           e->name, (long long)e->begin, (long long)e->end);
    if (e->end > file->elements_nbytes)
        return FAIL_FORMAT(file, "truncated: tensor \"%.200s\" ends at %lld, the elements at %lld",
                           e->name, (long long)e->end, (long long)file->elements_nbytes);
    if (e->end - e->begin != nbytes)
        return FAIL_FORMAT(
            file, "tensor \"%.200s\": offsets %lld to %lld, but shape and dtype take %lld bytes",
            e->name, (long long)e->begin, (long long)e->end, (long long)nbytes);
    return 0;
}

static int read_entry(const ek_safetensors *file, const char *name, json_t *description, entry *e)
{
    int64_t nbytes = 0;
    *e = (entry){.name = name};
    if (!json_is_object(description))
        return FAIL_FORMAT(file, "the description of tensor \"%.200s\" is no object", name);
    const char *dtype = json_string_value(json_object_get(description, "dtype"));
    if (!dtype)
        return FAIL_FORMAT(file, "tensor \"%.200s\": dtype is no string", name);
    e->position = ek_safetensors_dtype_find(dtype);
    if (e->position < 0)
        return FAIL_FORMAT(file, "tensor \"%.200s\": the format has no dtype \"%.200s\"", name,
                           dtype);
    EK_TRY(read_shape(file, json_object_get(description, "shape"), e, &nbytes));
    EK_TRY(read_offsets(file, json_object_get(description, "data_offsets"), nbytes, e));
    return 0;
}

/* ---- all tensors ---- */

/* Empty tensors come before what begins in their place. */
static int compare_places(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_names(const void *a, const void *b, void *entries)
{
    const entry *e = entries;
    return strcmp(e[*(const int *)a].name, e[*(const int *)b].name);
}

/* Each tensor begins where the one before ends, the last ends with the file. */
static int check_places(const ek_safetensors *file)
{
    int64_t end = 0;
    for (int i = 0; i < file->count; i++) {
        const entry *e = &file->entries[i];
        if (e->begin < end)
            return FAIL_FORMAT(file, "tensor \"%.200s\" begins at %lld, within \"%.200s\"", e->name,
                               (long long)e->begin, file->entries[i - 1].name);
        if (e->begin > end)
            return FAIL_FORMAT(file, "a gap: tensor \"%.200s\" begins at %lld, not at %lld",
                               e->name, (long long)e->begin, (long long)end);
        end = e->end;
    }
    if (end != file->elements_nbytes)
        return FAIL_FORMAT(file, "%lld bytes follow the last tensor",
                           (long long)(file->elements_nbytes - end));
    return 0;
}

static int read_entries(ek_safetensors *file)
{
    size_t size = json_object_size(file->header);
    file->entries = ek_calloc(size, sizeof *file->entries);
    file->by_name = ek_calloc(size, sizeof *file->by_name);
    if (!file->entries || !file->by_name)
        return EK_E_NO_MEMORY;
    for (void *at = json_object_iter(file->header); at;
         at = json_object_iter_next(file->header, at)) {
        const char *name = json_object_iter_key(at);
        json_t *value = json_object_iter_value(at);
        if (strcmp(name, EK_SAFETENSORS_METADATA) == 0)
            EK_TRY(check_metadata(file, value));
        else
            EK_TRY(read_entry(file, name, value, &file->entries[file->count++]));
    }
    qsort(file->entries, (size_t)file->count, sizeof *file->entries, compare_places);
    for (int i = 0; i < file->count; i++)
        file->by_name[i] = i;
    qsort_r(file->by_name, (size_t)file->count, sizeof *file->by_name, compare_names,
            file->entries);
    return check_places(file);
}

/* ---- opening and closing ---- */

static int map_descriptor(ek_safetensors *file, int descriptor)
{
    if (file->nbytes == 0)
        return 0; /* nothing can be mapped; parse_header says what is wrong */
    void *bytes = mmap(NULL, file->nbytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (bytes == MAP_FAILED)
        return ek_file_fail("safetensors", "read", file->path);
    file->bytes = bytes;
    return 0;
}

static int map_file(ek_safetensors *file)
{
    int descriptor = ek_file_open("safetensors", file->path, &file->nbytes);
    EK_TRY(descriptor);
    int status = map_descriptor(file, descriptor);
    close(descriptor); /* the mapping stays */
    return status;
}

ek_safetensors *ek_safetensors_open(const char *path)
{
    if (!path) {
        EK_FAIL(EK_E_INVALID, "safetensors: the path is NULL");
        return NULL;
    }
    ek_safetensors *file = ek_calloc(1, sizeof *file);
    if (!file)
        return NULL;
    file->path = ek_strdup(path);
    if (file->path && map_file(file) == 0 && parse_header(file) == 0 && read_entries(file) == 0)
        return file;
    ek_safetensors_close(file);
    return NULL;
}

void ek_safetensors_close(ek_safetensors *file)
{
    if (!file)
        return;
    if (file->bytes)
        munmap((void *)(uintptr_t)file->bytes, file->nbytes);
    json_decref(file->header);
    free(file->entries);
    free(file->by_name);
    free(file->path);
    free(file);
}

/* ---- looking inside ---- */

static int fail_closed(void)
{
    return ek_error_status() < 0 ? ek_error_pending()
                                 : EK_FAIL(EK_E_INVALID, "safetensors: the file is NULL");
}

int ek_safetensors_count(const ek_safetensors *file)
{
    return file ? file->count : fail_closed();
}

const char *ek_safetensors_name(const ek_safetensors *file, int index)
{
    if (!file) {
        fail_closed();
        return NULL;
    }
    if (index < 0 || index >= file->count) {
        EK_FAIL(EK_E_INVALID, "safetensors: %s has %d tensors, there is none with index %d",
                file->path, file->count, index);
        return NULL;
    }
    return file->entries[index].name;
}

const char *ek_safetensors_sorted(const ek_safetensors *file, int index)
{
    return file->entries[file->by_name[index]].name;
}

static const entry *find(const ek_safetensors *file, const char *name)
{
    int low = 0, high = file->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        const entry *e = &file->entries[file->by_name[middle]];
        int order = strcmp(e->name, name);
        if (order == 0)
            return e;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

int ek_safetensors_view(const ek_safetensors *file, const char *name, ek_array_view *view)
{
    if (!file)
        return fail_closed();
    const entry *e = name ? find(file, name) : NULL;
    if (!e)
        return EK_FAIL(EK_E_INVALID, "safetensors: %s has no tensor \"%.200s\"", file->path,
                       name ? name : "NULL");
    const ek_safetensors_dtype *dtype = ek_safetensors_dtype_at(e->position);
    if (dtype->dtype < 0)
        return EK_FAIL(EK_E_DTYPE,
                       "safetensors: %s: tensor \"%.200s\" is %s; F32, F64, BF16, I64, U8 and BOOL "
                       "are read",
                       file->path, e->name, dtype->name);
    if (e->ndim > EK_MAX_DIMS)
        return EK_FAIL(
            EK_E_SHAPE,
            "safetensors: %s: tensor \"%.200s\" has %d dimensions; at most %d are possible",
            file->path, e->name, e->ndim, EK_MAX_DIMS);
    *view = (ek_array_view){.dtype = (ek_dtype)dtype->dtype,
                            .shape.ndim = e->ndim,
                            .elements = file->elements + e->begin,
                            .nbytes = (size_t)(e->end - e->begin)};
    memcpy(view->shape.dims, e->sizes, sizeof view->shape.dims);
    return 0;
}

ek_tensor *ek_safetensors_read(const ek_safetensors *file, const char *name)
{
    ek_array_view view;
    if (ek_safetensors_view(file, name, &view) < 0)
        return NULL;
    return ek_from_data(view.elements, view.shape, view.dtype);
}

const char *ek_safetensors_metadata(const ek_safetensors *file, const char *key)
{
    if (!file || !key) {
        if (!file)
            fail_closed();
        return NULL;
    }
    json_t *metadata = json_object_get(file->header, EK_SAFETENSORS_METADATA);
    return json_string_value(json_object_get(metadata, key));
}
