/* archive_read.c: looking for names, numbers and texts, and tensors on devices. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "archive/archive.h"
#include "core/tensor.h"

int ek_archive_check_read(const ek_archive *archive, const char *what, const char *name)
{
    EK_TRY(ek_archive_check_given(archive, what, "archive"));
    if (!archive->file)
        return EK_FAIL(EK_E_STATE,
                       "%s: the archive is being written; ek_archive_save it, and open the file",
                       what);
    return ek_archive_check_given(name, what, "name");
}

ek_archive *ek_archive_open(const char *path)
{
    ek_archive *archive = ek_calloc(1, sizeof *archive);
    if (!archive)
        return NULL;
    archive->file = ek_safetensors_open(path);
    archive->path = archive->file ? ek_strdup(path) : NULL;
    if (archive->path)
        return archive;
    ek_archive_free(archive);
    return NULL;
}

/* ---- names ---- */

/* The first name that is not before `name` with `end`, or, with `after`, that is behind all that
 * begin so. */
static int bound(const ek_safetensors *file, const char *name, char end, bool after)
{
    int low = 0, high = ek_safetensors_count(file);
    size_t length = strlen(name);
    while (low < high) {
        int middle = low + (high - low) / 2;
        const char *there = ek_safetensors_sorted(file, middle);
        int order = strncmp(there, name, length);
        if (order == 0)
            order = (int)(unsigned char)there[length] - (int)(unsigned char)end;
        if (order < 0 || (after && order == 0))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

ek_archive_range ek_archive_below(const ek_archive *archive, const char *name)
{
    if (!*name)
        return (ek_archive_range){0, ek_safetensors_count(archive->file)};
    return (ek_archive_range){bound(archive->file, name, '.', false),
                              bound(archive->file, name, '.', true)};
}

bool ek_archive_has_tensor(const ek_archive *archive, const char *name)
{
    return bound(archive->file, name, '\0', false) < bound(archive->file, name, '\0', true);
}

bool ek_archive_has(const ek_archive *archive, const char *name)
{
    if (!archive || !name)
        return false;
    if (!archive->file)
        return ek_name_kinds(&archive->names, name, strlen(name)) != 0;
    ek_archive_range below = ek_archive_below(archive, name);
    return below.begin < below.end || ek_archive_has_tensor(archive, name) ||
           ek_safetensors_metadata(archive->file, name);
}

const char *ek_archive_get_text(const ek_archive *archive, const char *name)
{
    if (ek_archive_check_given(archive, "archive_text", "archive") < 0 ||
        ek_archive_check_given(name, "archive_text", "name") < 0)
        return NULL;
    if (archive->file)
        return ek_safetensors_metadata(archive->file, name);
    for (int i = 0; i < archive->text_count; i++)
        if (strcmp(archive->texts[i].name, name) == 0)
            return archive->texts[i].text;
    return NULL;
}

/* ---- numbers ---- */

int ek_archive_view(const ek_archive *archive, const char *what, const char *name, const char *path,
                    ek_array_view *view)
{
    char *joined = ek_archive_join(name, path);
    if (!joined)
        return EK_E_NO_MEMORY;
    int status =
        ek_archive_has_tensor(archive, joined)
            ? ek_safetensors_view(archive->file, joined, view)
            : EK_FAIL(EK_E_INVALID, "%s: %s has no tensor \"%.200s\"", what, archive->path, joined);
    free(joined);
    return status;
}

/* A view of `dtype` and so many dimensions. */
static int view_as(const ek_archive *archive, const char *what, const char *name, const char *path,
                   ek_dtype dtype, int ndim, ek_array_view *view)
{
    char text[160];
    EK_TRY(ek_archive_view(archive, what, name, path, view));
    const char *dot = *name && *path ? "." : "";
    if (view->dtype != dtype)
        return EK_FAIL(EK_E_DTYPE, "%s: %s: \"%.100s%s%.200s\" is %s, not %s", what, archive->path,
                       name, dot, path, ek_dtype_name(view->dtype), ek_dtype_name(dtype));
    if (view->shape.ndim != ndim)
        return EK_FAIL(EK_E_SHAPE, "%s: %s: \"%.100s%s%.200s\" is %s; %s is wanted", what,
                       archive->path, name, dot, path, ek_shape_text(&view->shape, text),
                       ndim == 0 ? "a number without dimensions" : "one dimension");
    return 0;
}

int ek_archive_view_int(const ek_archive *archive, const char *what, const char *name,
                        const char *path, int64_t *value)
{
    ek_array_view view;
    EK_TRY(view_as(archive, what, name, path, EK_I64, 0, &view));
    ek_array_copy(&view, value);
    return 0;
}

int ek_archive_view_floats(const ek_archive *archive, const char *what, const char *name,
                           const char *path, double *values, int room)
{
    ek_array_view view;
    EK_TRY(view_as(archive, what, name, path, EK_F64, 1, &view));
    int64_t count = view.shape.dims[0];
    if (count > room)
        return EK_FAIL(EK_E_SHAPE, "%s: %s: \"%.100s.%.100s\" holds %lld numbers, and %d %s wanted",
                       what, archive->path, name, path, (long long)count, room,
                       room == 1 ? "is" : "are");
    ek_array_copy(&view, values);
    return (int)count;
}

int ek_archive_get_int(const ek_archive *archive, const char *name, int64_t *value)
{
    EK_TRY(ek_archive_check_read(archive, "archive_get_int", name));
    EK_TRY(ek_archive_check_given(value, "archive_get_int", "value"));
    return ek_archive_view_int(archive, "archive_get_int", name, "", value);
}

int ek_archive_get_float(const ek_archive *archive, const char *name, double *value)
{
    ek_array_view view;
    EK_TRY(ek_archive_check_read(archive, "archive_get_float", name));
    EK_TRY(ek_archive_check_given(value, "archive_get_float", "value"));
    EK_TRY(view_as(archive, "archive_get_float", name, "", EK_F64, 0, &view));
    ek_array_copy(&view, value);
    return 0;
}

/* ---- tensors on devices ---- */

/* Where the tensor was put on. */
static int noted_device(const ek_archive *archive, const char *name, ek_device *device)
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

static int map_device(const ek_archive *archive, const char *name, const ek_device_map *map,
                      ek_device *device)
{
    char text[16];
    if (map && (map->count < 0 || map->count > EK_MAX_DEVICES))
        return EK_FAIL(EK_E_INVALID, "archive_tensor: a map of %d devices; 0 to %d are possible",
                       map->count, EK_MAX_DEVICES);
    EK_TRY(noted_device(archive, name, device));
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
    ek_array_view view;
    ek_device device;
    if (ek_archive_check_read(archive, "archive_tensor", name) < 0 ||
        ek_archive_view(archive, "archive_tensor", name, "", &view) < 0 ||
        map_device(archive, name, map, &device) < 0)
        return NULL;
    return ek_array_tensor(&view, device);
}
