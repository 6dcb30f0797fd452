/* safetensors_write.c: writes tensors to a file that takes the old one's place when it is whole. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/tensor.h"
#include "data/safetensors.h"

/* ---- the header ---- */

/* A tensor and its place. */
typedef struct entry {
    const char *name;
    const ek_array_source *source;
    int position; /* of its dtype */
    size_t nbytes;
} entry;

/* As the reference: by dtype from the last to the first, so that all elements are aligned, then by
 * name. */
static int compare_entries(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->position != y->position)
        return x->position > y->position ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Puts `value` (a reference that is taken over) under a key that is UTF-8 and new. */
static int put(const char *path, json_t *object, const char *what, const char *key, json_t *value)
{
    int status = 0;
    json_t *text = json_string(key); /* NULL where it is not UTF-8 */
    if (!text)
        status = EK_FAIL(EK_E_INVALID, "safetensors_save: %s: %s \"%.200s\" is not UTF-8", path,
                         what, key);
    else if (json_object_get(object, key))
        status = EK_FAIL(EK_E_INVALID, "safetensors_save: %s: %s \"%.200s\" is given twice", path,
                         what, key);
    else if (!value || json_object_set(object, key, value) < 0)
        status = EK_FAIL(EK_E_NO_MEMORY, "safetensors_save: %s: no memory for its header", path);
    json_decref(text);
    json_decref(value);
    return status;
}

static int put_metadata(const char *path, json_t *header, const ek_metadata *metadata, int count)
{
    json_t *object = json_object();
    int status = 0;
    for (int i = 0; i < count && status == 0; i++) {
        const char *key = metadata[i].key, *value = metadata[i].value;
        json_t *text = value ? json_string(value) : NULL;
        if (key && text) {
            status = put(path, object, "metadata key", key, text);
            continue;
        }
        json_decref(text);
        status = EK_FAIL(EK_E_INVALID, "safetensors_save: %s: the %s of metadata %d (%.200s) is %s",
                         path, key ? "value" : "key", i, key ? key : "",
                         key && value ? "not UTF-8" : "NULL");
    }
    if (status == 0 && count > 0)
        return put(path, header, "name", EK_SAFETENSORS_METADATA, object);
    json_decref(object);
    return status;
}

/* NULL without memory. */
static json_t *describe(const entry *e, size_t begin)
{
    json_t *shape = json_array();
    for (int i = 0; i < e->source->shape.ndim; i++)
        if (json_array_append_new(shape, json_integer(e->source->shape.dims[i])) < 0) {
            json_decref(shape);
            return NULL;
        }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", ek_safetensors_dtype_at(e->position)->name,
                     "shape", shape, "data_offsets", (json_int_t)begin,
                     (json_int_t)(begin + e->nbytes));
}

static int check_source(const char *path, const ek_array_source *given, int i)
{
    if (!given->name || !*given->name)
        return EK_FAIL(EK_E_INVALID, "safetensors_save: %s: tensor %d has no name", path, i);
    if (strcmp(given->name, EK_SAFETENSORS_METADATA) == 0)
        return EK_FAIL(EK_E_INVALID,
                       "safetensors_save: %s: tensor %d is named \"%s\", where the format keeps "
                       "its metadata",
                       path, i, given->name);
    if (!given->tensor && !given->make)
        return ek_error_status()
                   ? ek_error_pending()
                   : EK_FAIL(EK_E_INVALID, "safetensors_save: %s: tensor %d, \"%.200s\", is NULL",
                             path, i, given->name);
    return 0;
}

/* Fills `entries` in the file's order and `header`. */
static int describe_all(const char *path, const ek_array_source *sources, entry *entries, int count,
                        json_t *header)
{
    size_t end = 0;
    for (int i = 0; i < count; i++) {
        const ek_array_source *source = &sources[i];
        EK_TRY(check_source(path, source, i));
        entries[i] = (entry){.name = source->name,
                             .source = source,
                             .position = ek_safetensors_dtype_of(source->dtype),
                             .nbytes = (size_t)ek_shape_count(&source->shape) *
                                       ek_dtype_size(source->dtype)};
    }
    qsort(entries, (size_t)count, sizeof *entries, compare_entries);
    for (int i = 0; i < count; i++) {
        EK_TRY(put(path, header, "tensor name", entries[i].name, describe(&entries[i], end)));
        if (__builtin_add_overflow(end, entries[i].nbytes, &end) || end > INT64_MAX / 2)
            return EK_FAIL(EK_E_INVALID, "safetensors_save: %s: more than 2^62 bytes of elements",
                           path);
    }
    return 0;
}

/* The file's first bytes, with length and padding; free() them. NULL on errors. */
static char *header_bytes(const char *path, const json_t *header, size_t *nbytes)
{
    size_t length = json_dumpb(header, NULL, 0, JSON_COMPACT);
    size_t padded = (length + EK_SAFETENSORS_ALIGNMENT - 1) / EK_SAFETENSORS_ALIGNMENT *
                    EK_SAFETENSORS_ALIGNMENT;
    if (padded > EK_SAFETENSORS_MAX_HEADER) {
        EK_FAIL(EK_E_INVALID,
                "safetensors_save: %s: names and metadata take %zu bytes; readers accept %d", path,
                padded, EK_SAFETENSORS_MAX_HEADER);
        return NULL;
    }
    *nbytes = EK_SAFETENSORS_PREFIX + padded;
    char *bytes = ek_calloc(1, *nbytes);
    if (!bytes)
        return NULL;
    for (int i = 0; i < EK_SAFETENSORS_PREFIX; i++)
        bytes[i] = (char)(padded >> 8 * i);
    memset(bytes + EK_SAFETENSORS_PREFIX, ' ', padded);
    if (length == 0 ||
        json_dumpb(header, bytes + EK_SAFETENSORS_PREFIX, length, JSON_COMPACT) != length) {
        EK_FAIL(EK_E_NO_MEMORY, "safetensors_save: %s: no memory for its header", path);
        free(bytes);
        return NULL;
    }
    return bytes;
}

/* ---- the file ---- */

/* What lies in row-major order where the CPU can read it is written from its place. */
static int write_elements(const ek_file *file, const ek_tensor *tensor, size_t nbytes)
{
    ek_dev *dev = ek_tensor_dev(tensor);
    if (ek_dev_is_host(dev) && ek_tensor_is_contiguous(tensor, EK_CONTIGUOUS)) {
        EK_TRY(ek_dev_synchronize(dev));
        return ek_file_write(file, ek_tensor_address(tensor), nbytes);
    }
    void *rows = ek_calloc(1, nbytes);
    if (!rows)
        return EK_E_NO_MEMORY;
    int status = ek_to_data(tensor, rows, nbytes);
    if (status >= 0)
        status = ek_file_write(file, rows, nbytes);
    free(rows);
    return status;
}

/* The shape and dtype that are in the header already. */
static int check_made(const entry *e, const ek_tensor *tensor)
{
    char texts[2][200];
    if (!tensor)
        return ek_error_pending();
    ek_shape shape = ek_tensor_shape(tensor);
    if (tensor->dtype == e->source->dtype && ek_shape_equal(&shape, &e->source->shape))
        return 0;
    return EK_FAIL(EK_E_STATE, "safetensors_save: \"%.200s\" has become %s; it was %s %s", e->name,
                   ek_tensor_text(tensor, texts[0]), ek_dtype_name(e->source->dtype),
                   ek_shape_text(&e->source->shape, texts[1]));
}

static int write_tensor(const ek_file *file, const entry *e)
{
    if (e->nbytes == 0)
        return 0;
    ek_scope scope = ek_scope_begin();
    const ek_tensor *tensor =
        e->source->make ? e->source->make(e->source->object) : e->source->tensor;
    int status = check_made(e, tensor);
    if (status >= 0)
        status = write_elements(file, tensor, e->nbytes);
    ek_scope_end(&scope);
    return status;
}

/* What is written, in this order. */
typedef struct content {
    const char *header;
    size_t header_nbytes;
    const entry *entries;
    int count;
} content;

static int write_content(const ek_file *file, void *user)
{
    const content *c = user;
    EK_TRY(ek_file_write(file, c->header, c->header_nbytes));
    for (int i = 0; i < c->count; i++)
        EK_TRY(write_tensor(file, &c->entries[i]));
    return 0;
}

int ek_safetensors_save_from(const char *path, const ek_array_source *sources, int count,
                             const ek_metadata *metadata, int metadata_count)
{
    if (!path || !*path)
        return EK_FAIL(EK_E_INVALID, "safetensors_save: there is no path");
    entry *entries = ek_calloc((size_t)count, sizeof *entries);
    if (!entries)
        return EK_E_NO_MEMORY;
    json_t *header = json_object();
    char *bytes = NULL;
    size_t nbytes = 0;
    int status = put_metadata(path, header, metadata, metadata_count);
    if (status == 0)
        status = describe_all(path, sources, entries, count, header);
    if (status == 0 && !(bytes = header_bytes(path, header, &nbytes)))
        status = ek_error_pending();
    json_decref(header);
    if (status == 0) {
        content c = {bytes, nbytes, entries, count};
        status = ek_file_replace("safetensors_save", path, write_content, &c);
    }
    free(bytes);
    free(entries);
    return status;
}

int ek_safetensors_save(const char *path, const ek_named_tensor *tensors, int count,
                        const ek_metadata *metadata, int metadata_count)
{
    if (count < 0 || metadata_count < 0 || (count > 0 && !tensors) ||
        (metadata_count > 0 && !metadata))
        return EK_FAIL(EK_E_INVALID,
                       "safetensors_save: %s: %d tensors and %d pairs of metadata, but the list is "
                       "missing or the count negative",
                       path ? path : "NULL", count, metadata_count);
    ek_array_source *sources = ek_calloc((size_t)count, sizeof *sources);
    if (!sources)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < count; i++) {
        ek_tensor *tensor = tensors[i].tensor;
        sources[i] = (ek_array_source){.name = tensors[i].name, .tensor = tensor};
        if (tensor) {
            sources[i].dtype = tensor->dtype;
            sources[i].shape = ek_tensor_shape(tensor);
        }
    }
    int status = ek_safetensors_save_from(path, sources, count, metadata, metadata_count);
    free(sources);
    return status;
}
