/* archive.c: fills an archive. */
#include "archive/archive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "core/tensor.h"
#include "core/thread.h"
#include "core/value.h"
#include "evenkeel/parallel.h"

int ek_archive_noted(ek_archive *archive, int status)
{
    if (status < 0 && archive->failure.status >= 0)
        archive->failure = ek_thread_self()->error;
    return status;
}

int ek_archive_check_given(const ek_archive_put_call *put, const char *operand, const void *pointer)
{
    return ek_archive_noted(put->archive, ek_check_handle(put->what, operand, pointer));
}

int ek_archive_check_written(const ek_archive_put_call *put)
{
    EK_TRY(ek_check_handle(put->what, "the archive", put->archive));
    return put->archive->file
               ? EK_FAIL(EK_E_STATE, "%s: %s is open to be read; ek_archive_new makes one to write",
                         put->what, put->archive->path)
               : 0;
}

int ek_archive_check_put(const ek_archive_put_call *put)
{
    EK_TRY(ek_archive_check_written(put));
    return ek_archive_noted(put->archive, ek_check_given(put->what, "the name", put->name));
}

/* ---- the table of names ---- */

typedef enum name_kind {
    NAME_TENSOR = 1,
    NAME_ABOVE, /* a name with tensors below it */
    NAME_TEXT
} name_kind;

/* Returns the hash of the kind and the first `length` bytes, as a key for the map. */
static const void *name_hash(name_kind kind, const char *text, size_t length)
{
    uint64_t hash = ek_digest_bytes(ek_digest_word(EK_DIGEST, kind), text, length);
    return (const void *)(uintptr_t)(hash | 1);
}

static int name_add(ek_archive *archive, name_kind kind, const char *text, size_t length)
{
    void **known = ek_map_at(&archive->names, name_hash(kind, text, length));
    if (known)
        *known = archive;
    return known ? 0 : EK_E_NO_MEMORY;
}

/* Adds a tensor's name, and every name that it lies below. */
static int name_add_tensor(ek_archive *archive, const char *name)
{
    for (const char *at = name; (at = strchr(at, '.')); at++)
        EK_TRY(name_add(archive, NAME_ABOVE, name, (size_t)(at - name)));
    return name_add(archive, NAME_TENSOR, name, strlen(name));
}

/* True if the first `length` bytes of `text` are a name of this kind. If the table has their hash,
 * compares all names, because different names may share a hash. For most names the table doesn't
 * have the hash. */
static bool name_is(const ek_archive *archive, name_kind kind, const char *text, size_t length)
{
    bool found = false, tensors = kind != NAME_TEXT;
    int count = tensors ? archive->count : archive->text_count;
    if (!ek_map_find(&archive->names, name_hash(kind, text, length)))
        return false;
    for (int i = 0; i < count && !found; i++) {
        const char *name = tensors ? archive->entries[i].name : archive->texts[i].name;
        found = strncmp(name, text, length) == 0 && name[length] == (kind == NAME_ABOVE ? '.' : 0);
    }
    return found;
}

bool ek_archive_has_put(const ek_archive *archive, const char *name)
{
    size_t length = strlen(name);
    return name_is(archive, NAME_TENSOR, name, length) ||
           name_is(archive, NAME_ABOVE, name, length) || name_is(archive, NAME_TEXT, name, length);
}

/* ---- names ---- */

char *ek_archive_join(const char *name, const char *path)
{
    size_t length = strlen(name), room = length + strlen(path) + 2;
    char *joined = ek_calloc(1, room);
    if (joined)
        snprintf(joined, room, "%s%s%s", name, *name && *path ? "." : "", path);
    return joined;
}

/* Checks that no part of the name is empty, that the name isn't the format's own, and that it has
 * at most EK_ARCHIVE_DEPTH parts. */
static int name_check_parts(const char *what, const char *name)
{
    int parts = 1;
    size_t length = strlen(name);
    if (length == 0 || name[0] == '.' || name[length - 1] == '.' || strstr(name, ".."))
        return EK_FAIL(EK_E_INVALID, "%s: \"%.200s\" is no name: a part of it is empty", what,
                       name);
    if (strcmp(name, EK_SAFETENSORS_METADATA) == 0)
        return EK_FAIL(EK_E_INVALID, "%s: \"%s\" is where the format keeps its texts", what, name);
    for (const char *at = name; (at = strchr(at, '.')); at++)
        parts++;
    if (parts > EK_ARCHIVE_DEPTH)
        return EK_FAIL(EK_E_INVALID, "%s: \"%.80s...\" nests %d deep; at most %d are possible",
                       what, name, parts, EK_ARCHIVE_DEPTH);
    return 0;
}

/* Checks that no tensor or text has the name. For a tensor also checks that no tensor lies below
 * the name, and that none has a name above it. */
static int name_check_free(const ek_archive *archive, const char *what, const char *name, bool text)
{
    size_t length = strlen(name);
    bool by_text = name_is(archive, NAME_TEXT, name, length);
    if (by_text || name_is(archive, NAME_TENSOR, name, length))
        return EK_FAIL(EK_E_INVALID, "%s: \"%.200s\" is taken already, by a %s", what, name,
                       by_text ? "text" : "tensor");
    if (text)
        return 0;
    if (name_is(archive, NAME_ABOVE, name, length))
        return EK_FAIL(EK_E_INVALID,
                       "%s: \"%.200s\" cannot be a tensor: there are tensors below that name", what,
                       name);
    for (const char *at = name; (at = strchr(at, '.')); at++)
        if (name_is(archive, NAME_TENSOR, name, (size_t)(at - name)))
            return EK_FAIL(EK_E_INVALID, "%s: \"%.200s\" cannot be: \"%.*s\" is a tensor already",
                           what, name, (int)(at - name > 200 ? 200 : at - name), name);
    return 0;
}

/* ---- entries ---- */

ek_archive_mark ek_archive_begin(const ek_archive *archive)
{
    return (ek_archive_mark){archive->count, archive->text_count};
}

/* Takes back what was put after the mark. The names' hashes stay in the table. */
static void archive_cut(ek_archive *archive, ek_archive_mark mark)
{
    while (archive->count > mark.count) {
        ek_archive_entry *entry = &archive->entries[--archive->count];
        ek_object_release(entry->object);
        free(entry->name);
    }
    while (archive->text_count > mark.text_count) {
        ek_archive_text_entry *entry = &archive->texts[--archive->text_count];
        free(entry->name);
        free(entry->text);
    }
}

int ek_archive_end(ek_archive *archive, ek_archive_mark mark, int status)
{
    if (status >= 0)
        return 0;
    archive_cut(archive, mark);
    return ek_archive_noted(archive, status);
}

void ek_archive_set_alike(ek_archive *archive, ek_archive_mark mark)
{
    for (int i = mark.count; i < archive->count; i++)
        archive->entries[i].alike = true;
}

/* Appends an entry, and takes over entry.name. */
static int archive_append(ek_archive *archive, const char *what, ek_archive_entry entry)
{
    int status = name_check_parts(what, entry.name);
    if (status >= 0)
        status = name_check_free(archive, what, entry.name, false);
    if (status >= 0)
        status = ek_grow(&archive->entries, &archive->room, archive->count + 1);
    if (status < 0) {
        free(entry.name);
        return status;
    }
    ek_archive_mark before = ek_archive_begin(archive);
    ek_object_retain(entry.object);
    archive->entries[archive->count++] = entry;
    return ek_archive_end(archive, before, name_add_tensor(archive, entry.name));
}

/* Returns how many bytes of "name.path" are keys of nested dictionaries: those of the name, up to
 * its last dot if there is no path. */
static size_t entry_nested(const ek_archive_put_call *put, const char *path)
{
    const char *dot = strrchr(put->name, '.');
    if (*path)
        return *put->name ? strlen(put->name) + 1 : 0;
    return dot ? (size_t)(dot + 1 - put->name) : 0;
}

int ek_archive_add_made(const ek_archive_put_call *put, const char *path, ek_archive_entry entry)
{
    entry.name = ek_archive_join(put->name, path);
    entry.nested = entry_nested(put, path);
    return entry.name ? archive_append(put->archive, put->what, entry) : EK_E_NO_MEMORY;
}

static int archive_add(const ek_archive_put_call *put, const char *path, ek_tensor *tensor,
                       bool number, ek_device device)
{
    if (!tensor && ek_error_status() == 0)
        return EK_FAIL(EK_E_INVALID, "%s: \"%.200s\" is NULL", put->what, *path ? path : put->name);
    if (tensor && tensor->history) /* an alias has no history, so that the archive keeps no graph */
        tensor = ek_tensor_alias(tensor);
    if (!tensor)
        return ek_error_pending();
    ek_archive_entry entry = {.object = &tensor->object, .number = number, .device = device};
    return ek_archive_add_made(put, path, entry);
}

int ek_archive_add(const ek_archive_put_call *put, const char *path, ek_tensor *tensor,
                   ek_device device)
{
    return archive_add(put, path, tensor, false, device);
}

int ek_archive_add_data(const ek_archive_put_call *put, const char *path, const void *elements,
                        ek_shape shape, ek_dtype dtype, ek_device device)
{
    ek_scope scope = ek_scope_begin();
    int status =
        archive_add(put, path, ek_from_data(elements, shape, dtype), shape.ndim == 0, device);
    ek_scope_end(&scope);
    return status;
}

/* ---- making and freeing ---- */

ek_archive *ek_archive_new(void)
{
    return ek_calloc(1, sizeof(ek_archive));
}

void ek_archive_free(ek_archive *archive)
{
    EK_RELEASES("ek_archive_free", archive);
    archive_cut(archive, (ek_archive_mark){0});
    ek_safetensors_close(archive->file);
    ek_map_clear(&archive->names);
    free(archive->entries);
    free(archive->texts);
    free(archive->path);
    ek_retire(archive, sizeof *archive, "archive", archive);
}

/* ---- putting values ---- */

/* Puts a value as "name.path"; either may be "". */
static int archive_put(const ek_archive_put_call *put, const char *path, ek_value value, int depth);

/* Puts the elements of a list or a dictionary below the name. */
static int archive_put_elements(const ek_archive_put_call *put, ek_value value, int depth)
{
    if (depth >= EK_ARCHIVE_DEPTH)
        return EK_FAIL(EK_E_INVALID, "%s: \"%.80s...\" nests more than %d deep", put->what,
                       put->name, EK_ARCHIVE_DEPTH);
    int status = 0;
    for (int i = 0; i < ek_value_length(value) && status == 0; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        const char *key = value.kind == EK_VALUE_DICT ? ek_value_key(value, i) : number;
        if (!*key)
            return EK_FAIL(EK_E_INVALID, "%s: a key below \"%.200s\" is empty", put->what,
                           put->name);
        status = archive_put(put, key, ek_value_at(value, i), depth + 1);
    }
    return status;
}

static int archive_put_below(const ek_archive_put_call *put, const char *path, ek_value value,
                             int depth)
{
    char *name = ek_archive_join(put->name, path);
    const ek_archive_put_call below = {put->archive, put->what, name};
    int status = name ? archive_put_elements(&below, value, depth) : EK_E_NO_MEMORY;
    free(name);
    return status;
}

static int archive_put(const ek_archive_put_call *put, const char *path, ek_value value, int depth)
{
    switch (value.kind) {
    case EK_VALUE_NONE:
        return 0;
    case EK_VALUE_TENSOR:
        EK_TRY(ek_check_handle(put->what, "the tensor", value.as.tensor));
        return ek_archive_add(put, path, value.as.tensor, ek_tensor_device(value.as.tensor));
    case EK_VALUE_INT:
        return ek_archive_add_data(put, path, &value.as.integer, ek_scalar_shape(), EK_I64,
                                   ek_cpu());
    case EK_VALUE_FLOAT:
        return ek_archive_add_data(put, path, &value.as.floating, ek_scalar_shape(), EK_F64,
                                   ek_cpu());
    case EK_VALUE_LIST:
    case EK_VALUE_DICT:
        return archive_put_below(put, path, value, depth);
    case EK_VALUE_ERROR:
        return ek_error_pending();
    default:
        return EK_FAIL(EK_E_INVALID,
                       "%s: \"%.200s%s%.200s\" is %s; tensors, numbers, dictionaries and lists can "
                       "be put",
                       put->what, put->name, *put->name && *path ? "." : "", path,
                       ek_value_kind_name(value));
    }
}

int ek_archive_put(ek_archive *archive, const char *name, ek_value value)
{
    const ek_archive_put_call put = {archive, "archive_put", name};
    EK_TRY(ek_archive_check_put(&put));
    ek_archive_mark mark = ek_archive_begin(archive);
    return ek_archive_end(archive, mark, archive_put(&put, "", value, 0));
}

/* ---- putting texts ---- */

static int archive_append_text(ek_archive *archive, const char *name, const char *text)
{
    EK_TRY(ek_grow(&archive->texts, &archive->text_room, archive->text_count + 1));
    ek_archive_mark before = ek_archive_begin(archive);
    ek_archive_text_entry *entry = &archive->texts[archive->text_count++];
    *entry = (ek_archive_text_entry){ek_strdup(name), ek_strdup(text)};
    int status = entry->name && entry->text ? 0 : EK_E_NO_MEMORY;
    if (status >= 0)
        status = name_add(archive, NAME_TEXT, entry->name, strlen(name));
    return ek_archive_end(archive, before, status);
}

static int archive_check_text(const ek_archive_put_call *put)
{
    EK_TRY(name_check_parts(put->what, put->name));
    if (strncmp(put->name, EK_ARCHIVE_RESERVED, strlen(EK_ARCHIVE_RESERVED)) == 0)
        return EK_FAIL(EK_E_INVALID,
                       "%s: \"%.200s\": names of texts that begin with \"%s\" are "
                       "the archive's own",
                       put->what, put->name, EK_ARCHIVE_RESERVED);
    return name_check_free(put->archive, put->what, put->name, true);
}

int ek_archive_put_text(ek_archive *archive, const char *name, const char *text)
{
    const ek_archive_put_call put = {archive, "archive_put_text", name};
    EK_TRY(ek_archive_check_put(&put));
    EK_TRY(ek_archive_check_given(&put, "the text", text));
    EK_TRY(ek_archive_noted(archive, archive_check_text(&put)));
    return archive_append_text(archive, name, text);
}

int ek_archive_put_plan(ek_archive *archive, const char *name, ek_module *data_parallel)
{
    const ek_archive_put_call put = {archive, "archive_put_plan", name};
    EK_TRY(ek_archive_check_put(&put));
    EK_TRY(ek_archive_check_given(&put, "the module", data_parallel));
    int64_t length = ek_data_parallel_plan(data_parallel, NULL, 0);
    if (length <= 0) /* an error, or there are no plans yet */
        return ek_archive_noted(archive, (int)length);
    char *text = ek_calloc(1, (size_t)length + 1);
    if (!text)
        return ek_archive_noted(archive, EK_E_NO_MEMORY);
    int64_t written = ek_data_parallel_plan(data_parallel, text, (size_t)length + 1);
    int status = written < 0 ? (int)written : ek_archive_put_text(archive, name, text);
    free(text);
    return ek_archive_noted(archive, status);
}
