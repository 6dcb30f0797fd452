/* archive_read.c: reads an archive: names, numbers, texts, tensors on their devices, and all that
 * is below a name as nested dictionaries. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "archive/archive.h"
#include "core/error.h"
#include "core/tensor.h"
#include "core/world.h"

int ek_archive_check_get(ek_archive_get_call *get)
{
    EK_TRY(ek_check_handle(get->what, "the archive", get->archive));
    if (!get->archive->file)
        return EK_FAIL(EK_E_STATE,
                       "%s: the archive is being written; ek_archive_save it, and open the file",
                       get->what);
    get->path = get->archive->path;
    return ek_check_given(get->what, "the name", get->name);
}

ek_archive *ek_archive_open_mapped(const char *path, ek_tensor_file_map *map, void *user)
{
    ek_archive *archive = ek_calloc(1, sizeof *archive);
    if (!archive)
        return NULL;
    archive->file = ek_tensor_file_open(path, map, user);
    archive->path = archive->file ? ek_strdup(path) : NULL;
    if (archive->path)
        return archive;
    ek_archive_free(archive);
    return NULL;
}

ek_archive *ek_archive_open(const char *path)
{
    const int before = ek_error_status();
    if (ek_check_pointer("safetensors", "the path", path) < 0)
        return NULL;
    char *found = ek_set_find(path);
    ek_archive *archive = found ? ek_archive_open_mapped(found, NULL, NULL) : NULL;
    if (!archive && ek_error_status() == EK_E_IO && ek_world.size > 1)
        ek_error_remark(before, "ek_dist_archive_open reads a file on one rank for all");
    free(found);
    return archive;
}

/* ---- names ---- */

/* Byte '/' follows '.', so the range ends where `name` followed by '/' would be in the order. */
ek_archive_range ek_archive_below(const ek_archive *archive, const char *name)
{
    if (!*name)
        return (ek_archive_range){0, ek_safetensors_count(archive->file)};
    return (ek_archive_range){ek_safetensors_place(archive->file, name, "."),
                              ek_safetensors_place(archive->file, name, "/")};
}

bool ek_archive_has(const ek_archive *archive, const char *name)
{
    if (!archive || !name || ek_check_alive("archive_has", "the archive", archive) < 0)
        return false;
    if (!archive->file)
        return ek_archive_has_put(archive, name);
    ek_archive_range below = ek_archive_below(archive, name);
    return below.begin < below.end || ek_safetensors_find(archive->file, name, "") >= 0 ||
           ek_safetensors_metadata(archive->file, name);
}

/* Returns the file of an open archive. */
static const ek_safetensors *archive_listed(const ek_archive *archive, const char *what)
{
    ek_archive_get_call get = {archive, what, "", NULL};
    return ek_archive_check_get(&get) < 0 ? NULL : archive->file;
}

const char *ek_archive_name(const ek_archive *archive, int index)
{
    const ek_safetensors *file = archive_listed(archive, "archive_name");
    return file && index >= 0 && index < file->count ? ek_safetensors_sorted(file, index) : NULL;
}

const char *ek_archive_text_name(const ek_archive *archive, int index)
{
    const ek_safetensors *file = archive_listed(archive, "archive_text_name");
    return file && index >= 0 && index < file->metadata_count ? file->metadata[index].key : NULL;
}

const char *ek_archive_get_text(const ek_archive *archive, const char *name)
{
    if (ek_check_handle("archive_text", "the archive", archive) < 0 ||
        ek_check_given("archive_text", "the name", name) < 0)
        return NULL;
    if (archive->file)
        return ek_safetensors_metadata(archive->file, name);
    for (int i = 0; i < archive->text_count; i++)
        if (strcmp(archive->texts[i].name, name) == 0)
            return archive->texts[i].text;
    return NULL;
}

/* ---- numbers ---- */

int ek_archive_view(const ek_archive_get_call *get, const char *path, ek_array_view *view)
{
    const ek_safetensors *file = get->archive->file;
    char *joined = ek_archive_join(get->name, path);
    if (!joined)
        return EK_E_NO_MEMORY;
    int status = ek_safetensors_find(file, joined, "") >= 0
                     ? ek_safetensors_view(file, joined, view)
                     : EK_FAIL(EK_E_INVALID, "%s: %s has no tensor \"%.200s\"", get->what,
                               get->archive->path, joined);
    free(joined);
    return status;
}

/* Fills the view of a tensor that must have this dtype and number of dimensions. */
static int archive_view_as(const ek_archive_get_call *get, const char *path, ek_dtype dtype,
                           int ndim, ek_array_view *view)
{
    const char *dot = *get->name && *path ? "." : "";
    char text[160];
    EK_TRY(ek_archive_view(get, path, view));
    if (view->dtype != dtype)
        return EK_FAIL_IN(EK_E_DTYPE, get, "\"%.100s%s%.200s\" is %s, not %s", get->name, dot, path,
                          ek_dtype_name(view->dtype), ek_dtype_name(dtype));
    if (view->shape.ndim != ndim)
        return EK_FAIL_IN(EK_E_SHAPE, get, "\"%.100s%s%.200s\" is %s; %s is wanted", get->name, dot,
                          path, ek_shape_text(&view->shape, text),
                          ndim == 0 ? "a number without dimensions" : "one dimension");
    return 0;
}

static int archive_view_number(const ek_archive_get_call *get, const char *path, ek_dtype dtype,
                               void *value)
{
    ek_array_view view = {0};
    EK_TRY(ek_archive_view(get, path, &view));
    bool narrow = dtype == EK_I64 && view.dtype == EK_I32; /* another program wrote it */
    EK_TRY(archive_view_as(get, path, narrow ? EK_I32 : dtype, 0, &view));
    if (narrow) {
        int32_t number;
        ek_array_copy(&view, &number);
        *(int64_t *)value = number;
    } else {
        ek_array_copy(&view, value);
    }
    return 0;
}

int ek_archive_view_int(const ek_archive_get_call *get, const char *path, int64_t *value)
{
    return archive_view_number(get, path, EK_I64, value);
}

int ek_archive_view_floats(const ek_archive_get_call *get, const char *path, double *values,
                           int room)
{
    ek_array_view view = {0};
    EK_TRY(archive_view_as(get, path, EK_F64, 1, &view));
    int64_t count = view.shape.dims[0];
    if (count > room)
        return EK_FAIL_IN(EK_E_SHAPE, get, "\"%.100s.%.100s\" holds %lld numbers, and %d %s wanted",
                          get->name, path, (long long)count, room, room == 1 ? "is" : "are");
    ek_array_copy(&view, values);
    return (int)count;
}

static int archive_get_number(ek_archive_get_call *get, ek_dtype dtype, void *value)
{
    EK_TRY(ek_archive_check_get(get));
    EK_TRY(ek_check_given(get->what, "the value", value));
    return archive_view_number(get, "", dtype, value);
}

int ek_archive_get_int(const ek_archive *archive, const char *name, int64_t *value)
{
    ek_archive_get_call get = {archive, "archive_get_int", name, NULL};
    return archive_get_number(&get, EK_I64, value);
}

int ek_archive_get_float(const ek_archive *archive, const char *name, double *value)
{
    ek_archive_get_call get = {archive, "archive_get_float", name, NULL};
    return archive_get_number(&get, EK_F64, value);
}

/* ---- tensors on devices ---- */

/* Reads the device that the metadata notes for the tensor. */
static int archive_noted_device(const ek_archive *archive, const char *name, ek_device *device)
{
    size_t room = sizeof EK_ARCHIVE_DEVICE + strlen(name) + 1;
    char *key = ek_calloc(1, room);
    if (!key)
        return EK_E_NO_MEMORY;
    snprintf(key, room, "%s:%s", EK_ARCHIVE_DEVICE, name);
    const char *text = ek_safetensors_metadata(archive->file, key);
    free(key);
    text = text ? text : ek_safetensors_metadata(archive->file, EK_ARCHIVE_DEVICE);
    *device = ek_cpu();
    if (!text || ek_device_parse(text, device) == 0)
        return 0;
    ek_error_clear();
    return EK_FAIL(EK_E_FORMAT,
                   "archive_tensor: %s: \"%.100s\", where \"%.200s\" was, is no device",
                   archive->path, text, name);
}

static int archive_map_device(const ek_archive *archive, const char *name, const ek_device_map *map,
                              ek_device *device)
{
    char text[16];
    if (map && (map->count < 0 || map->count > EK_MAX_DEVICES))
        return EK_FAIL(EK_E_INVALID, "archive_tensor: a map of %d devices; 0 to %d are possible",
                       map->count, EK_MAX_DEVICES);
    EK_TRY(archive_noted_device(archive, name, device));
    for (int i = 0; map && i < map->count; i++)
        if (ek_device_equal(map->pairs[i].from, *device)) {
            *device = map->pairs[i].to;
            break;
        }
    bool known = device->kind >= EK_CPU && device->kind <= EK_CUDA;
    int count = known ? ek_device_count(device->kind) : 0;
    if (device->index >= 0 && device->index < count)
        return 0;
    ek_device_name(*device, text);
    return EK_FAIL(EK_E_DEVICE,
                   "archive_tensor: %s: \"%.200s\" is to lie on %s, but there %s %d such device%s "
                   "here; a map sends it elsewhere: {1, {{%s, cpu}}}",
                   archive->path, name, text, count == 1 ? "is" : "are", count,
                   count == 1 ? "" : "s", text);
}

ek_tensor *ek_archive_tensor(const ek_archive *archive, const char *name, const ek_device_map *map)
{
    ek_archive_get_call get = {archive, "archive_tensor", name, NULL};
    ek_array_view view;
    ek_device device;
    if (ek_archive_check_get(&get) < 0 || ek_archive_view(&get, "", &view) < 0 ||
        archive_map_device(archive, name, map, &device) < 0)
        return NULL;
    return ek_array_tensor(&view, device);
}

/* ---- nested dictionaries ---- */

/* A tensor's name, and a copy of it with NULs for its dots. */
typedef struct nest_name {
    const char *full;
    char *parts;
} nest_name;

/* Returns true for a number of at most 9 digits without leading zeros, which is the name of a
 * list's element. */
static bool nest_is_number(const char *part)
{
    enum { DIGITS = 9 };
    size_t length = strspn(part, "0123456789");
    return length > 0 && length <= DIGITS && !part[length] && (length == 1 || part[0] != '0');
}

/* Compares parts of names. Numbers come first, by value, so that a list's elements are in their
 * order. */
static int nest_compare_parts(const char *a, const char *b)
{
    bool number_a = nest_is_number(a), number_b = nest_is_number(b);
    size_t length_a = strlen(a), length_b = strlen(b);
    if (number_a != number_b)
        return number_a ? -1 : 1;
    if (number_a && length_a != length_b)
        return length_a < length_b ? -1 : 1;
    return strcmp(a, b);
}

static int nest_compare(const void *left, const void *right)
{
    const nest_name *a = left, *b = right;
    for (size_t at = 0;; at++) {
        int order = nest_compare_parts(a->parts + at, b->parts + at);
        if (order != 0)
            return order;
        at += strlen(a->parts + at);
        if (!a->full[at] || !b->full[at])
            return (a->full[at] != 0) - (b->full[at] != 0);
    }
}

/* Sorted names of the file whose first `at` bytes are equal. */
typedef struct nest_level {
    const ek_archive *archive;
    const nest_name *names;
    int count;
    size_t at;
} nest_level;

static ek_value nest(const nest_level *level);

/* Returns the value below the next part of these names, which is equal in all of them. */
static ek_value nest_part(const nest_level *part)
{
    const char *name = part->names->full;
    size_t end = part->at + strlen(part->names->parts + part->at);
    if (name[end])
        return nest(&(nest_level){part->archive, part->names, part->count, end + 1});
    if (part->count == 1)
        return ek_value_of_tensor(ek_safetensors_read(part->archive->file, name));
    EK_FAIL(EK_E_FORMAT, "archive_get: %s: \"%.200s\" is a tensor, and \"%.200s\" is below it",
            part->archive->path, name, part->names[1].full);
    return ek_value_error();
}

static ek_value nest(const nest_level *level)
{
    const nest_name *names = level->names;
    ek_value_entry *entries = ek_calloc((size_t)level->count, sizeof *entries);
    ek_value value = entries ? ek_value_none() : ek_value_error();
    int filled = 0;
    for (int i = 0, next; i < level->count && value.kind != EK_VALUE_ERROR; i = next) {
        const char *key = names[i].parts + level->at;
        next = i + 1;
        while (next < level->count && strcmp(names[next].parts + level->at, key) == 0)
            next++;
        value = nest_part(&(nest_level){level->archive, names + i, next - i, level->at});
        entries[filled++] = (ek_value_entry){key, value};
    }
    if (value.kind != EK_VALUE_ERROR)
        value = ek_value_dict(entries, filled);
    free(entries);
    return value;
}

/* Splits a name at its dots. Refuses more than EK_ARCHIVE_DEPTH parts: reading is recursive. */
static int nest_split(const ek_archive *archive, nest_name *name)
{
    int parts = 1;
    for (char *at = name->parts; (at = strchr(at, '.')); parts++)
        *at++ = '\0';
    if (parts <= EK_ARCHIVE_DEPTH)
        return 0;
    return EK_FAIL(EK_E_FORMAT,
                   "archive_get: %s: \"%.80s...\" nests %d deep; at most %d are possible",
                   archive->path, name->full, parts, EK_ARCHIVE_DEPTH);
}

static ek_value nest_below(const ek_archive *archive, const char *name, ek_archive_range range)
{
    ek_value value = ek_value_error();
    int count = range.end - range.begin, status = 0;
    size_t nbytes = 0;
    for (int i = range.begin; i < range.end; i++)
        nbytes += strlen(ek_safetensors_sorted(archive->file, i)) + 1;
    nest_name *names = ek_calloc((size_t)count, sizeof *names);
    char *copies = ek_calloc(1, nbytes), *to = copies;
    for (int i = 0; names && copies && i < count && status == 0; i++) {
        const char *full = ek_safetensors_sorted(archive->file, range.begin + i);
        names[i] = (nest_name){full, memcpy(to, full, strlen(full) + 1)};
        to += strlen(full) + 1;
        status = nest_split(archive, &names[i]);
    }
    if (names && copies && status == 0) {
        qsort(names, (size_t)count, sizeof *names, nest_compare);
        value = nest(&(nest_level){archive, names, count, *name ? strlen(name) + 1 : 0});
    }
    free(copies);
    free(names);
    return value;
}

ek_value ek_archive_get(const ek_archive *archive, const char *name)
{
    ek_archive_get_call get = {archive, "archive_get", name, NULL};
    if (ek_archive_check_get(&get) < 0)
        return ek_value_error();
    ek_archive_range range = ek_archive_below(archive, name);
    bool is_tensor = *name && ek_safetensors_find(archive->file, name, "") >= 0;
    if (is_tensor && range.begin == range.end)
        return ek_value_of_tensor(ek_safetensors_read(archive->file, name));
    if (is_tensor)
        EK_FAIL(EK_E_FORMAT, "%s: %s: \"%.200s\" is a tensor, and \"%.200s\" is below it", get.what,
                archive->path, name, ek_safetensors_sorted(archive->file, range.begin));
    else if (range.begin == range.end)
        EK_FAIL(EK_E_INVALID, "%s: %s has no tensor \"%.200s\" and none below%s", get.what,
                archive->path, name,
                ek_safetensors_metadata(archive->file, name) ? "; it is a text" : "");
    if (is_tensor || range.begin == range.end)
        return ek_value_error();
    ek_scope scope = ek_scope_begin();
    return ek_scope_return_value(&scope, nest_below(archive, name, range));
}
