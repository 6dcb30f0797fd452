/* safetensors_write.c: writes tensors to a new file, which replaces the old one when complete. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/tensor.h"
#include "data/safetensors.h"

/* ---- the header ---- */

/* A tensor and its offset in the file. */
typedef struct entry {
    const char *name;
    const ek_array_source *source;
    const ek_element *element;
    size_t nbytes;
} entry;

/* Compares as the reference does: by dtype from the last to the first, which aligns all elements,
 * then by name. */
static int content_compare_entries(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->element != y->element)
        return x->element > y->element ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* The content of the file: the header, then the entries in their order. */
typedef struct content {
    const char *what, *path; /* the beginning of every error message; borrowed */
    const ek_metadata *metadata;
    int metadata_count;
    entry *entries;
    int count;
    const char **texts; /* room for all names, or all keys, while they are checked */
    char *header;
    size_t header_nbytes;
} content;

static int content_compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Checks that the first `count` texts are UTF-8 and all different. Sorts them. */
static int content_check_texts(const content *c, const char *what, int count)
{
    for (int i = 0; i < count; i++)
        if (!ek_utf8_is_valid(c->texts[i]))
            return EK_FAIL_IN(EK_E_INVALID, c, "%s \"%.200s\" is not UTF-8", what, c->texts[i]);
    if (count > 0)
        qsort(c->texts, (size_t)count, sizeof *c->texts, content_compare_texts);
    for (int i = 1; i < count; i++)
        if (strcmp(c->texts[i - 1], c->texts[i]) == 0)
            return EK_FAIL_IN(EK_E_INVALID, c, "%s \"%.200s\" is given twice", what, c->texts[i]);
    return 0;
}

static int content_check_metadata(const content *c)
{
    for (int i = 0; i < c->metadata_count; i++) {
        const char *key = c->metadata[i].key, *value = c->metadata[i].value;
        if (!key || !value)
            return EK_FAIL_IN(EK_E_INVALID, c, "the %s of metadata %d (%.200s) is NULL",
                              key ? "value" : "key", i, key ? key : "");
        c->texts[i] = key;
        if (!ek_utf8_is_valid(value))
            return EK_FAIL_IN(EK_E_INVALID, c, "the value of metadata %d (%.200s) is not UTF-8", i,
                              key);
    }
    return content_check_texts(c, "metadata key", c->metadata_count);
}

static int content_check_source(const content *c, const ek_array_source *given, int i)
{
    if (!given->name || !*given->name)
        return EK_FAIL_IN(EK_E_INVALID, c, "tensor %d has no name", i);
    if (strcmp(given->name, EK_SAFETENSORS_METADATA) == 0)
        return EK_FAIL_IN(EK_E_INVALID, c,
                          "tensor %d is named \"%s\", where the format keeps its metadata", i,
                          given->name);
    if (given->tensor || given->make)
        return 0;
    return ek_error_status()
               ? ek_error_pending()
               : EK_FAIL_IN(EK_E_INVALID, c, "tensor %d, \"%.200s\", is NULL", i, given->name);
}

/* Fills `entries` in the file's order. */
static int content_describe(content *c, const ek_array_source *sources)
{
    size_t end = 0;
    for (int i = 0; i < c->count; i++) {
        const ek_array_source *source = &sources[i];
        size_t count = (size_t)ek_shape_count(&source->shape);
        EK_TRY(content_check_source(c, source, i));
        c->texts[i] = source->name;
        c->entries[i] = (entry){.name = source->name,
                                .source = source,
                                .element = ek_element_of(source->dtype),
                                .nbytes = count * ek_dtype_size(source->dtype)};
    }
    qsort(c->entries, (size_t)c->count, sizeof *c->entries, content_compare_entries);
    for (int i = 0; i < c->count; i++)
        if (__builtin_add_overflow(end, c->entries[i].nbytes, &end) || end > INT64_MAX / 2)
            return EK_FAIL_IN(EK_E_INVALID, c, "more than 2^62 bytes of elements");
    return content_check_texts(c, "tensor name", c->count);
}

static void content_put_entry(ek_json_writer *json, const entry *e, size_t begin)
{
    ek_json_begin(json, e->name, '{');
    ek_json_put_text(json, "dtype", e->element->name);
    ek_json_begin(json, "shape", '[');
    for (int i = 0; i < e->source->shape.ndim; i++)
        ek_json_put_integer(json, NULL, e->source->shape.dims[i]);
    ek_json_close(json, ']');
    ek_json_begin(json, "data_offsets", '[');
    ek_json_put_integer(json, NULL, (int64_t)begin);
    ek_json_put_integer(json, NULL, (int64_t)(begin + e->nbytes));
    ek_json_close(json, ']');
    ek_json_close(json, '}');
}

/* Writes the header to `bytes`, or only counts if `bytes` is NULL. Returns the number of bytes. */
static size_t content_put_header(const content *c, char *bytes)
{
    ek_json_writer json = {.bytes = bytes};
    size_t end = 0;
    ek_json_begin(&json, NULL, '{');
    if (c->metadata_count > 0) {
        ek_json_begin(&json, EK_SAFETENSORS_METADATA, '{');
        for (int i = 0; i < c->metadata_count; i++)
            ek_json_put_text(&json, c->metadata[i].key, c->metadata[i].value);
        ek_json_close(&json, '}');
    }
    for (int i = 0; i < c->count; end += c->entries[i++].nbytes)
        content_put_entry(&json, &c->entries[i], end);
    ek_json_close(&json, '}');
    return json.nbytes;
}

/* Makes the file's first bytes: the length, the header and its padding. */
static int content_make_header(content *c)
{
    size_t length = content_put_header(c, NULL);
    size_t padded = (length + EK_SAFETENSORS_ALIGNMENT - 1) / EK_SAFETENSORS_ALIGNMENT *
                    EK_SAFETENSORS_ALIGNMENT;
    if (padded > EK_SAFETENSORS_MAX_HEADER)
        return EK_FAIL_IN(EK_E_INVALID, c, "names and metadata take %zu bytes; readers accept %d",
                          padded, EK_SAFETENSORS_MAX_HEADER);
    c->header_nbytes = EK_SAFETENSORS_PREFIX + padded;
    c->header = ek_calloc(1, c->header_nbytes);
    if (!c->header)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < EK_SAFETENSORS_PREFIX; i++)
        c->header[i] = (char)(padded >> 8 * i);
    content_put_header(c, c->header + EK_SAFETENSORS_PREFIX);
    memset(c->header + EK_SAFETENSORS_PREFIX + length, ' ', padded - length);
    return 0;
}

/* ---- the file ---- */

/* Writes row-major elements in memory that the CPU can read directly, others through a copy. */
static int content_write_elements(const ek_file *file, const ek_tensor *tensor, size_t nbytes)
{
    ek_dev *dev = ek_tensor_dev(tensor);
    if (ek_dev_is_host(dev) && ek_tensor_is_contiguous(tensor, EK_CONTIGUOUS)) {
        EK_TRY(ek_dev_synchronize(dev));
        ek_scope scope = ek_scope_begin();
        int rc = ek_tensor_hold(tensor);
        if (rc >= 0)
            rc = ek_file_write(file, ek_tensor_address(tensor), nbytes);
        ek_scope_end(&scope);
        return rc;
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

/* Checks that a made tensor has the shape and dtype that the header states already. */
static int content_check_made(const entry *e, const ek_tensor *tensor)
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

static int content_write_tensor(const ek_file *file, const entry *e)
{
    if (e->nbytes == 0)
        return 0;
    ek_scope scope = ek_scope_begin();
    const ek_tensor *tensor =
        e->source->make ? e->source->make(e->source->object) : e->source->tensor;
    int status = content_check_made(e, tensor);
    if (status >= 0)
        status = content_write_elements(file, tensor, e->nbytes);
    ek_scope_end(&scope);
    return status;
}

static int content_write(const ek_file *file, void *user)
{
    const content *c = user;
    EK_TRY(ek_file_write(file, c->header, c->header_nbytes));
    for (int i = 0; i < c->count; i++)
        EK_TRY(content_write_tensor(file, &c->entries[i]));
    return 0;
}

int ek_safetensors_save_from(const char *path, const ek_array_source *sources, int count,
                             const ek_metadata *metadata, int metadata_count)
{
    if (!path || !*path)
        return EK_FAIL(EK_E_INVALID, "safetensors_save: there is no path");
    int most = count > metadata_count ? count : metadata_count;
    content c = {.what = "safetensors_save",
                 .path = path,
                 .metadata = metadata,
                 .metadata_count = metadata_count,
                 .entries = ek_calloc((size_t)count, sizeof *c.entries),
                 .count = count,
                 .texts = ek_calloc((size_t)most, sizeof *c.texts)};
    int status = c.entries && c.texts ? 0 : EK_E_NO_MEMORY;
    if (status == 0)
        status = content_check_metadata(&c);
    if (status == 0)
        status = content_describe(&c, sources);
    if (status == 0)
        status = content_make_header(&c);
    if (status == 0)
        status = ek_file_replace(c.what, path, content_write, &c);
    free(c.header);
    free(c.texts);
    free(c.entries);
    return status;
}

static int content_make_all(const content *c)
{
    int status = 0;
    for (int i = 0; i < c->count && status >= 0; i++) {
        const entry *e = &c->entries[i];
        ek_scope scope = ek_scope_begin();
        if (e->nbytes > 0)
            status = content_check_made(e, e->source->make(e->source->object));
        ek_scope_end(&scope);
    }
    return status;
}

int ek_safetensors_make(const ek_array_source *sources, int count)
{
    content c = {.what = "safetensors_save",
                 .path = "another process's file",
                 .entries = ek_calloc((size_t)count + 1, sizeof *c.entries),
                 .count = count,
                 .texts = ek_calloc((size_t)count + 1, sizeof *c.texts)};
    int status = c.entries && c.texts ? content_describe(&c, sources) : EK_E_NO_MEMORY;
    if (status >= 0)
        status = content_make_all(&c);
    free(c.texts);
    free(c.entries);
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
