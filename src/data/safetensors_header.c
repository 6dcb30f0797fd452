/* safetensors_header.c: reads and checks the header of a file. Nothing in it is trusted. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/json.h"
#include "data/safetensors.h"

/* A header that is being read. */
typedef struct header {
    ek_safetensors *file;
    ek_json_reader json;
} header;

/* Fails with a message that begins with the file's name. */
#define FAIL_FORMAT(file_, text, ...) \
    EK_FAIL(EK_E_FORMAT, "safetensors: %s: " text, (file_)->path, __VA_ARGS__)

/* ---- the header's text ---- */

static int header_copy(ek_safetensors *file)
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

/* Turns an error of the JSON reader's into one of the header's. */
static int header_check_json(const header *h, int result)
{
    if (result >= 0)
        return result;
    return FAIL_FORMAT(h->file, "the header is no JSON object, at its byte %zu: %s", h->json.at,
                       h->json.error);
}

/* Reads a value of this kind. On another kind the message is `before`, `name` and `after`. */
static int header_read_value(header *h, ek_json_kind kind, ek_json_value *value, const char *before,
                             const char *name, const char *after)
{
    EK_TRY(header_check_json(h, ek_json_read(&h->json, value)));
    return value->kind == kind ? 0 : FAIL_FORMAT(h->file, "%s%.200s%s", before, name, after);
}

static int header_next(header *h, const char **key)
{
    return header_check_json(h, ek_json_next(&h->json, key));
}

static int header_fail_twice(const ek_safetensors *file, const char *key)
{
    return FAIL_FORMAT(file, "its header has \"%.200s\" twice", key);
}

/* ---- metadata ---- */

static int header_compare_keys(const void *a, const void *b)
{
    return strcmp(((const ek_metadata *)a)->key, ((const ek_metadata *)b)->key);
}

static int header_read_metadata(header *h)
{
    ek_safetensors *file = h->file;
    ek_json_value value;
    const char *key;
    int more;
    if (file->has_metadata)
        return header_fail_twice(file, EK_SAFETENSORS_METADATA);
    file->has_metadata = true;
    EK_TRY(
        header_read_value(h, EK_JSON_OBJECT, &value, "", EK_SAFETENSORS_METADATA, " is no object"));
    while ((more = header_next(h, &key)) > 0) {
        EK_TRY(header_read_value(h, EK_JSON_STRING, &value, "the value of metadata \"", key,
                                 "\" is no string"));
        EK_TRY(ek_grow(&file->metadata, &file->metadata_room, file->metadata_count + 1));
        file->metadata[file->metadata_count++] = (ek_metadata){key, value.text};
    }
    return more;
}

static int header_sort_metadata(ek_safetensors *file)
{
    if (file->metadata_count > 0)
        qsort(file->metadata, (size_t)file->metadata_count, sizeof *file->metadata,
              header_compare_keys);
    for (int i = 1; i < file->metadata_count; i++)
        if (header_compare_keys(&file->metadata[i - 1], &file->metadata[i]) == 0)
            return header_fail_twice(file, file->metadata[i].key);
    return 0;
}

const char *ek_safetensors_find_metadata(const ek_safetensors *file, const char *key)
{
    const ek_metadata wanted = {key, NULL};
    const ek_metadata *found = file->metadata_count > 0
                                   ? bsearch(&wanted, file->metadata, (size_t)file->metadata_count,
                                             sizeof *file->metadata, header_compare_keys)
                                   : NULL;
    return found ? found->value : NULL;
}

/* ---- one tensor ---- */

/* The description of one tensor, as far as it was read. */
typedef struct description {
    const char *name, *dtype; /* dtype: NULL until it was read */
    bool has_shape, has_offsets;
    bool fits; /* the sizes' product fits in `count` */
    bool empty;
    int64_t count;
    int64_t offsets[2];
    int64_t sizes[EK_MAX_DIMS];
    ek_safetensors_entry *entry;
} description;

/* Reads a size or an offset. */
static int header_read_natural(header *h, const description *d, const char *what, int64_t *number)
{
    ek_json_value value;
    EK_TRY(header_check_json(h, ek_json_read(&h->json, &value)));
    if (value.kind != EK_JSON_INTEGER)
        return FAIL_FORMAT(h->file, "tensor \"%.200s\": %s is no whole number", d->name, what);
    if (value.integer < 0)
        return FAIL_FORMAT(h->file, "tensor \"%.200s\": %s is negative: %lld", d->name, what,
                           (long long)value.integer);
    *number = value.integer;
    return 0;
}

static int header_read_dtype(header *h, description *d)
{
    ek_json_value value;
    EK_TRY(header_read_value(h, EK_JSON_STRING, &value, "tensor \"", d->name,
                             "\": dtype is no string"));
    d->dtype = value.text;
    return 0;
}

static int header_read_shape(header *h, description *d)
{
    ek_json_value value;
    const char *key;
    int64_t size = 0;
    int more;
    EK_TRY(
        header_read_value(h, EK_JSON_ARRAY, &value, "tensor \"", d->name, "\": shape is no array"));
    d->has_shape = d->fits = true;
    d->count = 1;
    while ((more = header_next(h, &key)) > 0) {
        EK_TRY(header_read_natural(h, d, "a size", &size));
        if (d->entry->ndim < EK_MAX_DIMS)
            d->sizes[d->entry->ndim] = size;
        d->entry->ndim++;
        d->empty = d->empty || size == 0;
        d->fits = d->fits && !__builtin_mul_overflow(d->count, size, &d->count);
    }
    return more;
}

static int header_fail_offsets(const header *h, const description *d)
{
    return FAIL_FORMAT(h->file, "tensor \"%.200s\": data_offsets is no array of two", d->name);
}

static int header_read_offsets(header *h, description *d)
{
    ek_json_value value;
    const char *key;
    int more, count = 0;
    EK_TRY(header_read_value(h, EK_JSON_ARRAY, &value, "tensor \"", d->name,
                             "\": data_offsets is no array of two"));
    while ((more = header_next(h, &key)) > 0) {
        if (count == 2)
            return header_fail_offsets(h, d);
        EK_TRY(header_read_natural(h, d, "an offset", &d->offsets[count++]));
    }
    EK_TRY(more);
    d->has_offsets = true;
    return count == 2 ? 0 : header_fail_offsets(h, d);
}

/* Skips members that the format does not know. */
static int header_read_description(header *h, description *d)
{
    ek_json_value value;
    const char *key;
    int more;
    EK_TRY(header_read_value(h, EK_JSON_OBJECT, &value, "the description of tensor \"", d->name,
                             "\" is no object"));
    while ((more = header_next(h, &key)) > 0) {
        bool dtype = strcmp(key, "dtype") == 0, shape = strcmp(key, "shape") == 0;
        bool offsets = strcmp(key, "data_offsets") == 0;
        if ((dtype && d->dtype) || (shape && d->has_shape) || (offsets && d->has_offsets))
            return header_fail_twice(h->file, key);
        if (dtype || shape || offsets) {
            EK_TRY((dtype   ? header_read_dtype
                    : shape ? header_read_shape
                            : header_read_offsets)(h, d));
            continue;
        }
        EK_TRY(header_check_json(h, ek_json_read(&h->json, &value)));
        EK_TRY(header_check_json(h, ek_json_skip(&h->json, &value)));
    }
    return more;
}

/* Sets *nbytes to the size that shape and dtype give. */
static int header_check_shape(const ek_safetensors *file, const description *d, int64_t *nbytes)
{
    const ek_element *element = d->entry->element;
    int64_t bits = 0;
    if (!d->has_shape)
        return FAIL_FORMAT(file, "tensor \"%.200s\": shape is no array", d->name);
    if (!d->empty && (!d->fits || __builtin_mul_overflow(d->count, element->bits, &bits)))
        return FAIL_FORMAT(file, "tensor \"%.200s\": its sizes multiply to more than 2^63 bits",
                           d->name);
    if (bits % 8 != 0)
        return FAIL_FORMAT(file, "tensor \"%.200s\": %lld bits of %s are no whole bytes", d->name,
                           (long long)bits, element->name);
    *nbytes = bits / 8;
    return 0;
}

static int header_check_offsets(const header *h, const description *d, int64_t nbytes)
{
    const ek_safetensors *file = h->file;
    int64_t begin = d->offsets[0], end = d->offsets[1];
    if (!d->has_offsets)
        return header_fail_offsets(h, d);
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
    d->entry->elements = file->elements + begin;
    return 0;
}

static int header_read_entry(header *h, ek_safetensors_entry *e)
{
    int64_t nbytes = 0;
    description d = {.name = e->name, .entry = e};
    EK_TRY(header_read_description(h, &d));
    if (!d.dtype)
        return FAIL_FORMAT(h->file, "tensor \"%.200s\": dtype is no string", d.name);
    e->element = ek_element_find(d.dtype);
    if (!e->element)
        return FAIL_FORMAT(h->file, "tensor \"%.200s\": the format has no dtype \"%.200s\"", d.name,
                           d.dtype);
    EK_TRY(header_check_shape(h->file, &d, &nbytes));
    size_t kept = (size_t)(e->ndim < EK_MAX_DIMS ? e->ndim : EK_MAX_DIMS) * sizeof *d.sizes;
    e->sizes = ek_safetensors_keep(h->file, d.sizes, kept, kept);
    if (!e->sizes)
        return EK_E_NO_MEMORY;
    return header_check_offsets(h, &d, nbytes);
}

/* ---- all tensors ---- */

/* Sorts by begin. An empty tensor comes before another that begins at the same offset. */
static int header_compare_places(const void *a, const void *b)
{
    const ek_safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int header_compare_names(const void *a, const void *b, void *entries)
{
    const ek_safetensors_entry *e = entries;
    return strcmp(e[*(const int *)a].name, e[*(const int *)b].name);
}

/* Each tensor must begin where the one before it ends, and the last must end with the file. */
static int header_check_places(const ek_safetensors *file)
{
    int64_t end = 0;
    for (int i = 0; i < file->count; i++) {
        const ek_safetensors_entry *e = &file->entries[i];
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

/* Reads tensors and metadata in the header's order. */
static int header_read_all(ek_safetensors *file)
{
    header h = {file, {.text = file->header, .nbytes = file->header_nbytes}};
    ek_json_value object;
    const char *name;
    int more;
    EK_TRY(header_check_json(&h, ek_json_read(&h.json, &object)));
    while ((more = header_next(&h, &name)) > 0) {
        if (strcmp(name, EK_SAFETENSORS_METADATA) == 0) {
            EK_TRY(header_read_metadata(&h));
            continue;
        }
        EK_TRY(ek_grow(&file->entries, &file->room, file->count + 1));
        file->entries[file->count] = (ek_safetensors_entry){.name = name};
        EK_TRY(header_read_entry(&h, &file->entries[file->count++]));
    }
    EK_TRY(more);
    return header_check_json(&h, ek_json_end(&h.json));
}

int ek_safetensors_sort(ek_safetensors *file)
{
    EK_TRY(header_sort_metadata(file));
    if (file->count == 0)
        return 0;
    file->by_name = ek_calloc((size_t)file->count, sizeof *file->by_name);
    if (!file->by_name)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < file->count; i++)
        file->by_name[i] = i;
    qsort_r(file->by_name, (size_t)file->count, sizeof *file->by_name, header_compare_names,
            file->entries);
    for (int i = 1; i < file->count; i++)
        if (header_compare_names(&file->by_name[i - 1], &file->by_name[i], file->entries) == 0)
            return header_fail_twice(file, file->entries[file->by_name[i]].name);
    return 0;
}

int ek_safetensors_read_header(ek_safetensors *file)
{
    EK_TRY(header_copy(file));
    EK_TRY(header_read_all(file));
    if (file->count > 0)
        qsort(file->entries, (size_t)file->count, sizeof *file->entries, header_compare_places);
    EK_TRY(ek_safetensors_sort(file));
    return header_check_places(file);
}
