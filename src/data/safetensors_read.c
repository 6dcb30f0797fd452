/* safetensors_read.c: opens files of named tensors, of which nothing is believed unchecked. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/file.h"
#include "core/json.h"
#include "core/thread.h"
#include "data/safetensors.h"

/* A tensor of the file. */
typedef struct entry {
    const char *name; /* in the header */
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
    char *header; /* a copy, whose strings are decoded in place */
    size_t header_nbytes;
    entry *entries; /* by place */
    int *by_name;   /* their indices */
    int count, room;
    bool has_metadata;
    ek_metadata *metadata; /* by key */
    int metadata_count, metadata_room;
};

/* The sentence begins with the file's name. */
#define FAIL_FORMAT(file, text, ...) \
    EK_FAIL(EK_E_FORMAT, "safetensors: %s: " text, (file)->path, __VA_ARGS__)

/* `array`, moved if it has no room for another element behind its `count`; NULL without memory. */
static void *with_room(void *array, int count, int *room, size_t size)
{
    if (count < *room)
        return array;
    int larger = *room ? 2 * *room : 64;
    void *grown = ek_realloc(array, (size_t)larger * size);
    if (grown)
        *room = larger;
    return grown;
}

/* ---- the header's text ---- */

static int copy_header(ek_safetensors *file)
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
    file->header_nbytes = (size_t)length;
    file->header = ek_realloc(NULL, file->header_nbytes);
    if (!file->header)
        return EK_E_NO_MEMORY;
    memcpy(file->header, text, file->header_nbytes);
    file->elements = file->bytes + EK_SAFETENSORS_PREFIX + length;
    file->elements_nbytes = (int64_t)(file->nbytes - EK_SAFETENSORS_PREFIX - (size_t)length);
    return 0;
}

/* `result` of a function of the reader's: its errors are the header's. */
static int check_json(const ek_safetensors *file, const ek_json_reader *reader, int result)
{
    if (result >= 0)
        return result;
    return FAIL_FORMAT(file, "the header is no JSON object, at its byte %zu: %s", reader->at,
                       reader->error);
}
#define TRY_JSON(result) EK_TRY(check_json(file, reader, (result)))

static int fail_twice(const ek_safetensors *file, const char *key)
{
    return FAIL_FORMAT(file, "its header has \"%.200s\" twice", key);
}

/* ---- metadata ---- */

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const ek_metadata *)a)->key, ((const ek_metadata *)b)->key);
}

static int read_metadata(ek_safetensors *file, ek_json_reader *reader)
{
    ek_json_value value;
    const char *key;
    int more;
    if (file->has_metadata)
        return fail_twice(file, EK_SAFETENSORS_METADATA);
    file->has_metadata = true;
    TRY_JSON(ek_json_read(reader, &value));
    if (value.kind != EK_JSON_OBJECT)
        return FAIL_FORMAT(file, "%s is no object", EK_SAFETENSORS_METADATA);
    while ((more = ek_json_next(reader, &key)) > 0) {
        TRY_JSON(ek_json_read(reader, &value));
        if (value.kind != EK_JSON_STRING)
            return FAIL_FORMAT(file, "the value of metadata \"%.200s\" is no string", key);
        ek_metadata *pairs =
            with_room(file->metadata, file->metadata_count, &file->metadata_room, sizeof *pairs);
        if (!pairs)
            return EK_E_NO_MEMORY;
        file->metadata = pairs;
        file->metadata[file->metadata_count++] = (ek_metadata){key, value.text};
    }
    TRY_JSON(more);
    if (file->metadata_count > 0)
        qsort(file->metadata, (size_t)file->metadata_count, sizeof *file->metadata, compare_keys);
    for (int i = 1; i < file->metadata_count; i++)
        if (compare_keys(&file->metadata[i - 1], &file->metadata[i]) == 0)
            return fail_twice(file, file->metadata[i].key);
    return 0;
}

/* ---- one tensor ---- */

/* What is said of a tensor. */
typedef struct description {
    const char *name, *dtype; /* dtype NULL: none */
    bool has_shape, has_offsets;
    bool fits; /* the sizes' product is in `count` */
    bool empty;
    int64_t count;
    int64_t offsets[2];
    entry *entry;
} description;

/* A size or an offset. */
static int take_natural(const ek_safetensors *file, const description *d, const char *what,
                        const ek_json_value *value)
{
    if (value->kind != EK_JSON_INTEGER)
        return FAIL_FORMAT(file, "tensor \"%.200s\": %s is no whole number", d->name, what);
    if (value->integer < 0)
        return FAIL_FORMAT(file, "tensor \"%.200s\": %s is negative: %lld", d->name, what,
                           (long long)value->integer);
    return 0;
}

static int read_shape(const ek_safetensors *file, ek_json_reader *reader, description *d)
{
    ek_json_value value;
    const char *key;
    int more;
    TRY_JSON(ek_json_read(reader, &value));
    if (value.kind != EK_JSON_ARRAY)
        return FAIL_FORMAT(file, "tensor \"%.200s\": shape is no array", d->name);
    d->has_shape = d->fits = true;
    d->count = 1;
    while ((more = ek_json_next(reader, &key)) > 0) {
        TRY_JSON(ek_json_read(reader, &value));
        EK_TRY(take_natural(file, d, "a size", &value));
        if (d->entry->ndim < EK_MAX_DIMS)
            d->entry->sizes[d->entry->ndim] = value.integer;
        d->entry->ndim++;
        d->empty = d->empty || value.integer == 0;
        d->fits = d->fits && !__builtin_mul_overflow(d->count, value.integer, &d->count);
    }
    TRY_JSON(more);
    return 0;
}

static int fail_offsets(const ek_safetensors *file, const description *d)
{
    return FAIL_FORMAT(file, "tensor \"%.200s\": data_offsets is no array of two", d->name);
}

static int read_offsets(const ek_safetensors *file, ek_json_reader *reader, description *d)
{
    ek_json_value value;
    const char *key;
    int more, count = 0;
    TRY_JSON(ek_json_read(reader, &value));
    if (value.kind != EK_JSON_ARRAY)
        return fail_offsets(file, d);
    while ((more = ek_json_next(reader, &key)) > 0) {
        if (count == 2)
            return fail_offsets(file, d);
        TRY_JSON(ek_json_read(reader, &value));
        EK_TRY(take_natural(file, d, "an offset", &value));
        d->offsets[count++] = value.integer;
    }
    TRY_JSON(more);
    d->has_offsets = true;
    return count == 2 ? 0 : fail_offsets(file, d);
}

static int read_dtype(const ek_safetensors *file, ek_json_reader *reader, description *d)
{
    ek_json_value value;
    TRY_JSON(ek_json_read(reader, &value));
    if (value.kind != EK_JSON_STRING)
        return FAIL_FORMAT(file, "tensor \"%.200s\": dtype is no string", d->name);
    d->dtype = value.text;
    return 0;
}

/* Members that the format does not know are read over. */
static int read_description(const ek_safetensors *file, ek_json_reader *reader, description *d)
{
    ek_json_value value;
    const char *key;
    int more;
    TRY_JSON(ek_json_read(reader, &value));
    if (value.kind != EK_JSON_OBJECT)
        return FAIL_FORMAT(file, "the description of tensor \"%.200s\" is no object", d->name);
    while ((more = ek_json_next(reader, &key)) > 0) {
        bool dtype = strcmp(key, "dtype") == 0, shape = strcmp(key, "shape") == 0;
        bool offsets = strcmp(key, "data_offsets") == 0;
        if ((dtype && d->dtype) || (shape && d->has_shape) || (offsets && d->has_offsets))
            return fail_twice(file, key);
        if (dtype || shape || offsets) {
            EK_TRY((dtype ? read_dtype : shape ? read_shape : read_offsets)(file, reader, d));
            continue;
        }
        TRY_JSON(ek_json_read(reader, &value));
        TRY_JSON(ek_json_skip(reader, &value));
    }
    TRY_JSON(more);
    return 0;
}

/* *nbytes becomes what shape and dtype ask for. */
static int check_shape(const ek_safetensors *file, const description *d, int64_t *nbytes)
{
    const ek_safetensors_dtype *dtype = ek_safetensors_dtype_at(d->entry->position);
    int64_t bits = 0;
    if (!d->has_shape)
        return FAIL_FORMAT(file, "tensor \"%.200s\": shape is no array", d->name);
    if (!d->empty && (!d->fits || __builtin_mul_overflow(d->count, dtype->bits, &bits)))
        return FAIL_FORMAT(file, "tensor \"%.200s\": its sizes multiply to more than 2^63 bits",
                           d->name);
    if (bits % 8 != 0)
        return FAIL_FORMAT(file, "tensor \"%.200s\": %lld bits of %s are no whole bytes", d->name,
                           (long long)bits, dtype->name);
    *nbytes = bits / 8;
    return 0;
}

static int check_offsets(const ek_safetensors *file, const description *d, int64_t nbytes)
{
    int64_t begin = d->offsets[0], end = d->offsets[1];
    if (!d->has_offsets)
        return fail_offsets(file, d);
    if (begin > end)
        return FAIL_FORMAT(file, "tensor \"%.200s\" begins at %lld and ends before, at %lld",
                           d->name, (long long)begin, (long long)end);
    if (end > file->elements_nbytes)
        return FAIL_FORMAT(file, "truncated: tensor \"%.200s\" ends at %lld, the elements at %lld",
                           d->name, (long long)end, (long long)file->elements_nbytes);
    if (end - begin != nbytes)
        return FAIL_FORMAT(
            file, "tensor \"%.200s\": offsets %lld to %lld, but shape and dtype take %lld bytes",
            d->name, (long long)begin, (long long)end, (long long)nbytes);
    d->entry->begin = begin;
    d->entry->end = end;
    return 0;
}

static int read_entry(const ek_safetensors *file, ek_json_reader *reader, entry *e)
{
    int64_t nbytes = 0;
    description d = {.name = e->name, .entry = e};
    EK_TRY(read_description(file, reader, &d));
    if (!d.dtype)
        return FAIL_FORMAT(file, "tensor \"%.200s\": dtype is no string", d.name);
    e->position = ek_safetensors_dtype_find(d.dtype);
    if (e->position < 0)
        return FAIL_FORMAT(file, "tensor \"%.200s\": the format has no dtype \"%.200s\"", d.name,
                           d.dtype);
    EK_TRY(check_shape(file, &d, &nbytes));
    return check_offsets(file, &d, nbytes);
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

/* Tensors and metadata in the header's order. */
static int read_header(ek_safetensors *file)
{
    ek_json_reader reading = {.text = file->header, .nbytes = file->header_nbytes};
    ek_json_reader *reader = &reading;
    ek_json_value object;
    const char *name;
    int more;
    TRY_JSON(ek_json_read(reader, &object));
    while ((more = ek_json_next(reader, &name)) > 0) {
        if (strcmp(name, EK_SAFETENSORS_METADATA) == 0) {
            EK_TRY(read_metadata(file, reader));
            continue;
        }
        entry *entries = with_room(file->entries, file->count, &file->room, sizeof *entries);
        if (!entries)
            return EK_E_NO_MEMORY;
        file->entries = entries;
        file->entries[file->count] = (entry){.name = name};
        EK_TRY(read_entry(file, reader, &file->entries[file->count++]));
    }
    TRY_JSON(more);
    TRY_JSON(ek_json_end(reader));
    return 0;
}

static int sort_entries(ek_safetensors *file)
{
    if (file->count == 0)
        return 0;
    file->by_name = ek_calloc((size_t)file->count, sizeof *file->by_name);
    if (!file->by_name)
        return EK_E_NO_MEMORY;
    qsort(file->entries, (size_t)file->count, sizeof *file->entries, compare_places);
    for (int i = 0; i < file->count; i++)
        file->by_name[i] = i;
    qsort_r(file->by_name, (size_t)file->count, sizeof *file->by_name, compare_names,
            file->entries);
    for (int i = 1; i < file->count; i++)
        if (compare_names(&file->by_name[i - 1], &file->by_name[i], file->entries) == 0)
            return fail_twice(file, file->entries[file->by_name[i]].name);
    return 0;
}

/* ---- opening and closing ---- */

static int map_descriptor(ek_safetensors *file, int descriptor)
{
    if (file->nbytes == 0)
        return 0; /* nothing can be mapped; copy_header says what is wrong */
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
    if (file->path && map_file(file) == 0 && copy_header(file) == 0 && read_header(file) == 0 &&
        sort_entries(file) == 0 && check_places(file) == 0)
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
    free(file->header);
    free(file->entries);
    free(file->by_name);
    free(file->metadata);
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
    if (!dtype->element)
        return EK_FAIL(EK_E_DTYPE,
                       "safetensors: %s: tensor \"%.200s\" is %s, which no dtype holds exactly; "
                       "all but U64, C64, F4 and F6 are read",
                       file->path, e->name, dtype->name);
    if (e->ndim > EK_MAX_DIMS)
        return EK_FAIL(
            EK_E_SHAPE,
            "safetensors: %s: tensor \"%.200s\" has %d dimensions; at most %d are possible",
            file->path, e->name, e->ndim, EK_MAX_DIMS);
    *view = (ek_array_view){.dtype = dtype->element->dtype,
                            .shape.ndim = e->ndim,
                            .element = dtype->element,
                            .elements = file->elements + e->begin,
                            .count = (size_t)(e->end - e->begin) / dtype->element->size,
                            .nbytes = (size_t)(e->end - e->begin)};
    memcpy(view->shape.dims, e->sizes, sizeof view->shape.dims);
    return 0;
}

void ek_array_copy(const ek_array_view *view, void *to)
{
    if (view->element->widen)
        view->element->widen(view->elements, to, view->count);
    else if (view->nbytes > 0)
        memcpy(to, view->elements, view->nbytes);
}

ek_tensor *ek_array_tensor(const ek_array_view *view, ek_device device)
{
    if (!view->element->widen)
        return ek_from_data(view->elements, view->shape, view->dtype, .device = device);
    void *elements = ek_element_widened(view->element, view->elements, view->count);
    if (!elements)
        return NULL;
    ek_tensor *tensor = ek_from_data(elements, view->shape, view->dtype, .device = device);
    free(elements);
    return tensor;
}

ek_tensor *ek_safetensors_read(const ek_safetensors *file, const char *name)
{
    ek_array_view view;
    if (ek_safetensors_view(file, name, &view) < 0)
        return NULL;
    return ek_array_tensor(&view, ek_cpu());
}

const char *ek_safetensors_metadata(const ek_safetensors *file, const char *key)
{
    if (!file || !key) {
        if (!file)
            fail_closed();
        return NULL;
    }
    const ek_metadata wanted = {key, NULL};
    const ek_metadata *found = file->metadata_count > 0
                                   ? bsearch(&wanted, file->metadata, (size_t)file->metadata_count,
                                             sizeof *file->metadata, compare_keys)
                                   : NULL;
    return found ? found->value : NULL;
}
