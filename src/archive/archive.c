/* archive.c: filling an archive and saving it. */
#include "archive/archive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/tensor.h"
#include "core/value.h"
#include "evenkeel/parallel.h"

/* ---- checks ---- */

int ek_archive_check_given(const void *argument, const char *what, const char *which)
{
    if (argument)
        return 0;
    return ek_error_status() < 0 ? ek_error_pending()
                                 : EK_FAIL(EK_E_INVALID, "%s: the %s is NULL", what, which);
}

int ek_archive_check_written(const ek_archive *archive, const char *what, const char *name)
{
    EK_TRY(ek_archive_check_given(archive, what, "archive"));
    if (archive->file)
        return EK_FAIL(EK_E_STATE, "%s: %s is open to be read; ek_archive_new makes one to write",
                       what, archive->path);
    return ek_archive_check_given(name, what, "name");
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

/* Parts that are not empty, and not too many. */
static int check_parts(const char *what, const char *name)
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

/* No tensor, and for one nothing below or above, has the name. */
static int check_free(const ek_archive *archive, const char *what, const char *name, bool text)
{
    unsigned kinds = ek_name_kinds(&archive->names, name, strlen(name));
    if (kinds & (EK_NAME_TENSOR | EK_NAME_TEXT))
        return EK_FAIL(EK_E_INVALID, "%s: \"%.200s\" is taken already, by a %s", what, name,
                       kinds & EK_NAME_TEXT ? "text" : "tensor");
    if (text)
        return 0;
    if (kinds & EK_NAME_ABOVE)
        return EK_FAIL(EK_E_INVALID,
                       "%s: \"%.200s\" cannot be a tensor: there are tensors below that name", what,
                       name);
    for (const char *at = name; (at = strchr(at, '.')); at++)
        if (ek_name_kinds(&archive->names, name, (size_t)(at - name)) & EK_NAME_TENSOR)
            return EK_FAIL(EK_E_INVALID, "%s: \"%.200s\" cannot be: \"%.*s\" is a tensor already",
                           what, name, (int)(at - name > 200 ? 200 : at - name), name);
    return 0;
}

static int add_names(ek_name_table *names, const char *name)
{
    for (const char *at = name; (at = strchr(at, '.')); at++)
        EK_TRY(ek_name_add(names, name, (size_t)(at - name), EK_NAME_ABOVE));
    return ek_name_add(names, name, strlen(name), EK_NAME_TENSOR);
}

/* ---- entries ---- */

ek_archive_mark ek_archive_begin(const ek_archive *archive)
{
    return (ek_archive_mark){archive->count, archive->text_count};
}

/* The table has texts of what goes: it is made anew. */
int ek_archive_end(ek_archive *archive, ek_archive_mark mark, int status)
{
    if (status >= 0)
        return 0;
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
    for (size_t i = 0; i < archive->names.capacity; i++)
        archive->names.slots[i] = (ek_name_slot){0};
    archive->names.count = 0;
    /* Fewer than before: there is room. */
    for (int i = 0; i < archive->count; i++)
        add_names(&archive->names, archive->entries[i].name);
    for (int i = 0; i < archive->text_count; i++)
        ek_name_add(&archive->names, archive->texts[i].name, strlen(archive->texts[i].name),
                    EK_NAME_TEXT);
    return status;
}

/* Takes `entry.name`. */
static int append_entry(ek_archive *archive, const char *what, ek_archive_entry entry)
{
    int status = check_parts(what, entry.name);
    if (status >= 0)
        status = check_free(archive, what, entry.name, false);
    if (status >= 0)
        status = ek_grow(&archive->entries, &archive->room, archive->count + 1);
    if (status < 0) {
        free(entry.name);
        return status;
    }
    ek_object_retain(entry.object);
    archive->entries[archive->count++] = entry;
    ek_archive_mark before = {archive->count - 1, archive->text_count};
    return ek_archive_end(archive, before, add_names(&archive->names, entry.name));
}

int ek_archive_add_made(ek_archive *archive, const char *what, ek_archive_entry entry,
                        const char *name, const char *path)
{
    entry.name = ek_archive_join(name, path);
    return entry.name ? append_entry(archive, what, entry) : EK_E_NO_MEMORY;
}

int ek_archive_add(ek_archive *archive, const char *what, const char *name, const char *path,
                   ek_tensor *tensor, ek_device device)
{
    if (!tensor)
        return ek_error_status() < 0
                   ? ek_error_pending()
                   : EK_FAIL(EK_E_INVALID, "%s: \"%.200s\" is NULL", what, *path ? path : name);
    if (tensor->history) /* what it was computed from is not kept alive */
        tensor = ek_tensor_alias(tensor);
    if (!tensor)
        return ek_error_pending();
    return ek_archive_add_made(archive, what,
                               (ek_archive_entry){.object = &tensor->object, .device = device},
                               name, path);
}

int ek_archive_add_int(ek_archive *archive, const char *what, const char *name, const char *path,
                       int64_t value, ek_device device)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *tensor = ek_from_data(&value, ek_scalar_shape(), EK_I64);
    int status = ek_archive_add(archive, what, name, path, tensor, device);
    ek_scope_end(&scope);
    return status;
}

int ek_archive_add_floats(ek_archive *archive, const char *what, const char *name, const char *path,
                          const double *values, int count)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *tensor = ek_from_data(values, EK_SHAPE(count), EK_F64);
    int status = ek_archive_add(archive, what, name, path, tensor, ek_cpu());
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
    if (!archive)
        return;
    for (int i = 0; i < archive->count; i++) {
        ek_object_release(archive->entries[i].object);
        free(archive->entries[i].name);
    }
    for (int i = 0; i < archive->text_count; i++) {
        free(archive->texts[i].name);
        free(archive->texts[i].text);
    }
    ek_name_clear(&archive->names);
    ek_safetensors_close(archive->file);
    free(archive->entries);
    free(archive->texts);
    free(archive->path);
    free(archive);
}

/* ---- putting values ---- */

static int put_value(ek_archive *archive, const char *name, ek_value value, int depth);

static int put_elements(ek_archive *archive, const char *name, ek_value value, int depth)
{
    if (depth >= EK_ARCHIVE_DEPTH)
        return EK_FAIL(EK_E_INVALID, "archive_put: \"%.80s...\" nests more than %d deep", name,
                       EK_ARCHIVE_DEPTH);
    int status = 0;
    for (int i = 0; i < ek_value_length(value) && status == 0; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        const char *key = value.kind == EK_VALUE_DICT ? ek_value_key(value, i) : number;
        if (!*key)
            return EK_FAIL(EK_E_INVALID, "archive_put: a key below \"%.200s\" is empty", name);
        char *below = ek_archive_join(name, key);
        status =
            below ? put_value(archive, below, ek_value_at(value, i), depth + 1) : EK_E_NO_MEMORY;
        free(below);
    }
    return status;
}

static int put_float(ek_archive *archive, const char *name, double value)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *tensor = ek_from_data(&value, ek_scalar_shape(), EK_F64);
    int status = ek_archive_add(archive, "archive_put", name, "", tensor, ek_cpu());
    ek_scope_end(&scope);
    return status;
}

static int put_value(ek_archive *archive, const char *name, ek_value value, int depth)
{
    static const char what[] = "archive_put";
    switch (value.kind) {
    case EK_VALUE_NONE:
        return 0;
    case EK_VALUE_TENSOR:
        EK_TRY(ek_archive_check_given(value.as.tensor, what, "tensor"));
        return ek_archive_add(archive, what, name, "", value.as.tensor,
                              ek_tensor_device(value.as.tensor));
    case EK_VALUE_INT:
        return ek_archive_add_int(archive, what, name, "", value.as.integer, ek_cpu());
    case EK_VALUE_FLOAT:
        return put_float(archive, name, value.as.floating);
    case EK_VALUE_LIST:
    case EK_VALUE_DICT:
        return put_elements(archive, name, value, depth);
    case EK_VALUE_ERROR:
        return ek_error_pending();
    default:
        return EK_FAIL(EK_E_INVALID,
                       "%s: \"%.200s\" is %s; tensors, numbers, dictionaries and lists can be put",
                       what, name, ek_value_kind_name(value));
    }
}

int ek_archive_put(ek_archive *archive, const char *name, ek_value value)
{
    EK_TRY(ek_archive_check_written(archive, "archive_put", name));
    ek_archive_mark mark = ek_archive_begin(archive);
    return ek_archive_end(archive, mark, put_value(archive, name, value, 0));
}

/* ---- putting texts ---- */

static int append_text(ek_archive *archive, const char *name, const char *text)
{
    EK_TRY(ek_grow(&archive->texts, &archive->text_room, archive->text_count + 1));
    ek_archive_mark before = ek_archive_begin(archive);
    ek_archive_text_entry *entry = &archive->texts[archive->text_count++];
    *entry = (ek_archive_text_entry){ek_strdup(name), ek_strdup(text)};
    int status = entry->name && entry->text ? 0 : EK_E_NO_MEMORY;
    if (status >= 0)
        status = ek_name_add(&archive->names, entry->name, strlen(name), EK_NAME_TEXT);
    return ek_archive_end(archive, before, status);
}

int ek_archive_put_text(ek_archive *archive, const char *name, const char *text)
{
    static const char what[] = "archive_put_text";
    EK_TRY(ek_archive_check_written(archive, what, name));
    EK_TRY(ek_archive_check_given(text, what, "text"));
    EK_TRY(check_parts(what, name));
    if (strncmp(name, EK_ARCHIVE_RESERVED, strlen(EK_ARCHIVE_RESERVED)) == 0)
        return EK_FAIL(EK_E_INVALID,
                       "%s: \"%.200s\": names of texts that begin with \"%s\" are "
                       "the archive's own",
                       what, name, EK_ARCHIVE_RESERVED);
    EK_TRY(check_free(archive, what, name, true));
    return append_text(archive, name, text);
}

int ek_archive_put_plan(ek_archive *archive, const char *name, ek_module *data_parallel)
{
    EK_TRY(ek_archive_check_written(archive, "archive_put_plan", name));
    EK_TRY(ek_archive_check_given(data_parallel, "archive_put_plan", "module"));
    int64_t length = ek_data_parallel_plan(data_parallel, NULL, 0);
    if (length <= 0) /* an error, or no plans so far */
        return (int)length;
    char *text = ek_calloc(1, (size_t)length + 1);
    if (!text)
        return EK_E_NO_MEMORY;
    int64_t written = ek_data_parallel_plan(data_parallel, text, (size_t)length + 1);
    int status = written < 0 ? (int)written : ek_archive_put_text(archive, name, text);
    free(text);
    return status;
}
