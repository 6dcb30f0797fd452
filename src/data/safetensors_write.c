/* safetensors_write.c: lists of tensors to be written, and the safetensors file of such a list,
 * which replaces the old file when complete. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/tensor.h"
#include "data/safetensors.h"

/* ---- the list ---- */

/* Compares as the reference does: by dtype from the last to the first, which aligns all elements,
 * then by name. */
static int list_compare_entries(const void *a, const void *b)
{
    const ek_array_entry *x = a, *y = b;
    if (x->element != y->element)
        return x->element > y->element ? -1 : 1;
    return strcmp(x->source->name, y->source->name);
}

static int list_compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Checks that the texts are UTF-8 and all different. Sorts them. */
static int list_check_texts(const ek_array_list *list, const char *what, const char **texts,
                            int count)
{
    for (int i = 0; i < count; i++)
        if (!ek_utf8_is_valid(texts[i]))
            return EK_FAIL_IN(EK_E_INVALID, list, "%s \"%.200s\" is not UTF-8", what, texts[i]);
    if (count > 0)
        qsort(texts, (size_t)count, sizeof *texts, list_compare_texts);
    for (int i = 1; i < count; i++)
        if (strcmp(texts[i - 1], texts[i]) == 0)
            return EK_FAIL_IN(EK_E_INVALID, list, "%s \"%.200s\" is given twice", what, texts[i]);
    return 0;
}

/* `texts` has room for all keys. */
static int list_check_metadata(const ek_array_list *list, const char **texts)
{
    for (int i = 0; i < list->metadata_count; i++) {
        const char *key = list->metadata[i].key, *value = list->metadata[i].value;
        if (!key || !value)
            return EK_FAIL_IN(EK_E_INVALID, list, "the %s of metadata %d (%.200s) is NULL",
                              key ? "value" : "key", i, key ? key : "");
        texts[i] = key;
        if (!ek_utf8_is_valid(value))
            return EK_FAIL_IN(EK_E_INVALID, list, "the value of metadata %d (%.200s) is not UTF-8",
                              i, key);
    }
    return list_check_texts(list, "metadata key", texts, list->metadata_count);
}

static int list_check_source(const ek_array_list *list, const ek_array_source *given, int i)
{
    if (!given->name || !*given->name)
        return EK_FAIL_IN(EK_E_INVALID, list, "tensor %d has no name", i);
    if (strcmp(given->name, EK_SAFETENSORS_METADATA) == 0)
        return EK_FAIL_IN(EK_E_INVALID, list,
                          "tensor %d is named \"%s\", where the format keeps its metadata", i,
                          given->name);
    if (given->tensor || given->make)
        return 0;
    return ek_error_status()
               ? ek_error_pending()
               : EK_FAIL_IN(EK_E_INVALID, list, "tensor %d, \"%.200s\", is NULL", i, given->name);
}

/* Fills `entries` in the file's order. `texts` has room for all names. */
static int list_describe(ek_array_list *list, const ek_array_source *sources, const char **texts)
{
    size_t end = 0;
    for (int i = 0; i < list->count; i++) {
        const ek_array_source *source = &sources[i];
        size_t count = (size_t)ek_shape_count(&source->shape);
        EK_TRY(list_check_source(list, source, i));
        texts[i] = source->name;
        list->entries[i] = (ek_array_entry){source, ek_element_of(source->dtype),
                                            count * ek_dtype_size(source->dtype)};
    }
    if (list->count > 0)
        qsort(list->entries, (size_t)list->count, sizeof *list->entries, list_compare_entries);
    for (int i = 0; i < list->count; i++)
        if (__builtin_add_overflow(end, list->entries[i].nbytes, &end) || end > INT64_MAX / 2)
            return EK_FAIL_IN(EK_E_INVALID, list, "more than 2^62 bytes of elements");
    return list_check_texts(list, "tensor name", texts, list->count);
}

int ek_array_list_open(ek_array_list *list, const ek_array_source *sources, int count)
{
    if (!list->path || !*list->path)
        return EK_FAIL(EK_E_INVALID, "%s: there is no path", list->what);
    int most = count > list->metadata_count ? count : list->metadata_count;
    const char **texts = ek_calloc((size_t)most, sizeof *texts);
    list->count = count;
    list->entries = ek_calloc((size_t)count, sizeof *list->entries);
    int status = texts && list->entries ? list_check_metadata(list, texts) : EK_E_NO_MEMORY;
    if (status == 0)
        status = list_describe(list, sources, texts);
    free(texts);
    return status;
}

void ek_array_list_close(ek_array_list *list)
{
    free(list->entries);
}

/* Checks that a made tensor has the shape and dtype that the file's header states already. */
static int list_check_made(const ek_array_list *list, const ek_array_entry *e,
                           const ek_tensor *tensor)
{
    char texts[2][200];
    if (!tensor)
        return ek_error_pending();
    ek_shape shape = ek_tensor_shape(tensor);
    if (tensor->dtype == e->source->dtype && ek_shape_equal(&shape, &e->source->shape))
        return 0;
    return EK_FAIL(EK_E_STATE, "%s: \"%.200s\" has become %s; it was %s %s", list->what,
                   e->source->name, ek_tensor_text(tensor, texts[0]),
                   ek_dtype_name(e->source->dtype), ek_shape_text(&e->source->shape, texts[1]));
}

int ek_array_list_give(const ek_array_list *list, const ek_array_entry *e,
                       int (*write)(const void *elements, size_t nbytes, void *user), void *user)
{
    if (e->nbytes == 0)
        return write("", 0, user);
    ek_rows rows = {0};
    ek_scope scope = ek_scope_begin();
    const ek_tensor *tensor =
        e->source->make ? e->source->make(e->source->object) : e->source->tensor;
    int status = list_check_made(list, e, tensor);
    if (status >= 0)
        status = ek_rows_of(tensor, &rows);
    if (status >= 0)
        status = write(rows.bytes, e->nbytes, user);
    ek_rows_free(&rows);
    ek_scope_end(&scope);
    return status;
}

/* ---- the header ---- */

/* The content of the file: the header, then the entries in their order. */
typedef struct content {
    ek_array_list list;
    char *header;
    size_t header_nbytes;
} content;

static void content_put_entry(ek_json_writer *json, const ek_array_entry *e, size_t begin)
{
    ek_json_begin(json, e->source->name, '{');
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
static size_t content_put_header(const ek_array_list *list, char *bytes)
{
    ek_json_writer json = {.bytes = bytes};
    size_t end = 0;
    ek_json_begin(&json, NULL, '{');
    if (list->metadata_count > 0) {
        ek_json_begin(&json, EK_SAFETENSORS_METADATA, '{');
        for (int i = 0; i < list->metadata_count; i++)
            ek_json_put_text(&json, list->metadata[i].key, list->metadata[i].value);
        ek_json_close(&json, '}');
    }
    for (int i = 0; i < list->count; i++) {
        if (list->entries[i].source->elsewhere)
            continue;
        content_put_entry(&json, &list->entries[i], end);
        end += list->entries[i].nbytes;
    }
    ek_json_close(&json, '}');
    return json.nbytes;
}

/* Makes the file's first bytes: the length, the header and its padding. */
static int content_make_header(content *c)
{
    size_t length = content_put_header(&c->list, NULL);
    size_t padded = (length + EK_SAFETENSORS_ALIGNMENT - 1) / EK_SAFETENSORS_ALIGNMENT *
                    EK_SAFETENSORS_ALIGNMENT;
    if (padded > EK_SAFETENSORS_MAX_HEADER)
        return EK_FAIL_IN(EK_E_INVALID, &c->list,
                          "names and metadata take %zu bytes; readers accept %d", padded,
                          EK_SAFETENSORS_MAX_HEADER);
    c->header_nbytes = EK_SAFETENSORS_PREFIX + padded;
    c->header = ek_calloc(1, c->header_nbytes);
    if (!c->header)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < EK_SAFETENSORS_PREFIX; i++)
        c->header[i] = (char)(padded >> 8 * i);
    content_put_header(&c->list, c->header + EK_SAFETENSORS_PREFIX);
    memset(c->header + EK_SAFETENSORS_PREFIX + length, ' ', padded - length);
    return 0;
}

/* Makes a tensor and drops it. */
static int content_make_entry(const ek_array_list *list, const ek_array_entry *e)
{
    ek_scope scope = ek_scope_begin();
    int status = list_check_made(list, e, e->source->make(e->source->object));
    ek_scope_end(&scope);
    return status;
}

static int content_give(const content *c,
                        int (*write)(const void *bytes, size_t nbytes, void *user), void *user)
{
    EK_TRY(write(c->header, c->header_nbytes, user));
    for (int i = 0; i < c->list.count; i++) {
        const ek_array_entry *e = &c->list.entries[i];
        if (!e->source->elsewhere)
            EK_TRY(ek_array_list_give(&c->list, e, write, user));
        else if (e->nbytes > 0)
            EK_TRY(content_make_entry(&c->list, e));
    }
    return 0;
}

/* Gives the content of the sources' file to `finish`. */
static int content_make(content *c, const ek_array_source *sources, int count,
                        int (*finish)(const content *c, void *user), void *user)
{
    int status = ek_array_list_open(&c->list, sources, count);
    if (status == 0)
        status = content_make_header(c);
    if (status == 0)
        status = finish(c, user);
    free(c->header);
    ek_array_list_close(&c->list);
    return status;
}

/* ---- to a file ---- */

static int content_write_bytes(const void *bytes, size_t nbytes, void *file)
{
    return ek_file_write(file, bytes, nbytes);
}

static int content_write(const ek_file *file, void *user)
{
    return content_give(user, content_write_bytes, (ek_file *)(uintptr_t)file);
}

static int content_replace(const content *c, void *user)
{
    (void)user;
    return ek_file_replace(c->list.what, c->list.path, content_write, (content *)(uintptr_t)c);
}

int ek_safetensors_save_from(const char *path, const ek_array_source *sources, int count,
                             const ek_metadata *metadata, int metadata_count)
{
    content c = {.list = {"safetensors_save", path, metadata, metadata_count, NULL, 0}};
    return content_make(&c, sources, count, content_replace, NULL);
}

/* ---- to memory ---- */

static int content_copy_bytes(const void *bytes, size_t nbytes, void *user)
{
    char **at = user;
    memcpy(*at, bytes, nbytes);
    *at += nbytes;
    return 0;
}

static int content_copy(const content *c, void *user)
{
    ek_bytes *image = user;
    image->nbytes = c->header_nbytes;
    for (int i = 0; i < c->list.count; i++)
        image->nbytes += c->list.entries[i].source->elsewhere ? 0 : c->list.entries[i].nbytes;
    char *at = image->data = ek_realloc(NULL, image->nbytes);
    return at ? content_give(c, content_copy_bytes, &at) : EK_E_NO_MEMORY;
}

int ek_safetensors_image(const ek_array_source *sources, int count, const ek_metadata *metadata,
                         int metadata_count, ek_bytes *image)
{
    content c = {.list = {"safetensors_save", "a part", metadata, metadata_count, NULL, 0}};
    return content_make(&c, sources, count, content_copy, image);
}

static int image_write(const ek_file *file, void *user)
{
    const ek_bytes *image = user;
    return ek_file_write(file, image->data, image->nbytes);
}

int ek_safetensors_write_image(const char *what, const char *path, ek_bytes image)
{
    return ek_file_replace(what, path, image_write, &image);
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
