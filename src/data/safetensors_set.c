/* safetensors_set.c: archives that lie in several safetensors files, as Hugging Face writes them.
 *
 * The index of a set is a JSON file beside the parts, which are safetensors files:
 *
 *     {"metadata": {"total_size": bytes, "hosts": {part: machine}}, "weight_map": {tensor: part}}
 *
 * Only Evenkeel writes "hosts": all parts, and the machines that wrote them. A part that has no
 * tensor is listed there alone.
 *
 *     ek_set_read       opens the parts, and lists their tensors and texts as those of one file
 *     ek_set_index      makes the text of an index
 *     ek_set_clean      removes parts that no index lists any more */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/json.h"
#include "data/safetensors_set.h"

/* ---- names of files ---- */

static const char set_ending[] = ".safetensors";

/* Returns the first `length` bytes of `path` and then `rest`. The caller frees the text; NULL with
 * an error. */
static char *set_join(const char *path, size_t length, const char *rest)
{
    size_t room = length + strlen(rest) + 1;
    char *joined = ek_calloc(1, room);
    if (joined)
        snprintf(joined, room, "%.*s%s", (int)length, path, rest);
    return joined;
}

static const char *set_file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Returns the path of a file beside `path`. */
static char *set_beside(const char *path, const char *name)
{
    return set_join(path, (size_t)(set_file_name(path) - path), name);
}

/* Returns the length of the path without the ending. */
static size_t set_stem(const char *path, const char *ending)
{
    size_t length = strlen(path), rest = strlen(ending);
    bool ends = length > rest && strcmp(path + length - rest, ending) == 0;
    return ends ? length - rest : length;
}

char *ek_set_path(const char *path)
{
    return set_join(path, set_stem(path, EK_SET_INDEX), "");
}

char *ek_set_index_path(const char *path)
{
    return set_join(path, strlen(path), EK_SET_INDEX);
}

char *ek_set_part_path(const char *path, ek_set_parts parts, int number)
{
    char ending[64];
    snprintf(ending, sizeof ending, "%s-%05d-of-%05d%s", parts.second ? ".1" : "", number + 1,
             parts.count, set_ending);
    return set_join(path, set_stem(path, set_ending), ending);
}

/* Tells whether a file's name is that of a part of this set. *parts and *number get what
 * ek_set_part_path makes the name from. */
static bool set_is_part(const char *path, const char *name, ek_set_parts *parts, int *number)
{
    const char *file = set_file_name(path);
    size_t stem = set_stem(file, set_ending);
    if (strncmp(name, file, stem) != 0)
        return false;
    const char *rest = name + stem;
    parts->second = strncmp(rest, ".1", 2) == 0;
    if (sscanf(rest + 2 * parts->second, "-%d-of-%d", number, &parts->count) != 2)
        return false;
    char *made = ek_set_part_path(file, *parts, *number - 1);
    bool is = made && strcmp(made, name) == 0;
    free(made);
    return is;
}

char *ek_set_find(const char *path)
{
    char *index = ek_set_index_path(path);
    if (index && access(path, F_OK) < 0 && errno == ENOENT && access(index, F_OK) == 0)
        return index;
    free(index);
    return index ? ek_strdup(path) : NULL;
}

/* ---- reading an index ---- */

typedef struct set_part {
    const char *name, *host; /* host: NULL if the index doesn't name it */
} set_part;

typedef struct set_tensor {
    const char *name;
    int part;
} set_tensor;

typedef struct set {
    ek_safetensors *file;
    ek_json_reader json;
    set_part *parts;
    set_tensor *tensors;
    int count, room, tensor_count, tensor_room;
    bool has_map; /* there is a "weight_map" */
} set;

#define SET_FAIL(set_, text, ...) \
    EK_FAIL(EK_E_FORMAT, "safetensors: %s: " text, (set_)->file->path, __VA_ARGS__)

static int set_check_json(const set *s, int result)
{
    return result >= 0 ? result
                       : SET_FAIL(s, "the index is no JSON object, at its byte %zu: %s", s->json.at,
                                  s->json.error);
}

/* Returns the number of the part of this name, which is added if it is new. A part lies beside the
 * index: a name that leads elsewhere is refused. */
static int set_find_part(set *s, const char *name)
{
    for (int i = s->count; i-- > 0;)
        if (strcmp(s->parts[i].name, name) == 0)
            return i;
    if (!*name || strchr(name, '/'))
        return SET_FAIL(s, "\"%.200s\" is no name of a part: parts lie beside the index", name);
    EK_TRY(ek_grow(&s->parts, &s->room, s->count + 1));
    s->parts[s->count] = (set_part){name, NULL};
    return s->count++;
}

/* Reads an object, and gives each key to `member`, which reads the value. */
static int set_read_object(set *s, const char *what, int (*member)(set *s, const char *key))
{
    ek_json_value value;
    const char *key;
    int more;
    EK_TRY(set_check_json(s, ek_json_read(&s->json, &value)));
    if (value.kind != EK_JSON_OBJECT)
        return SET_FAIL(s, "%s is no object", what);
    while ((more = set_check_json(s, ek_json_next(&s->json, &key))) > 0)
        EK_TRY(member(s, key));
    return more;
}

/* Reads the value of a key in the object `in`. */
static int set_read_text(set *s, const char *in, const char *key, const char **text)
{
    ek_json_value value;
    EK_TRY(set_check_json(s, ek_json_read(&s->json, &value)));
    *text = value.text;
    return value.kind == EK_JSON_STRING
               ? 0
               : SET_FAIL(s, "\"%.200s\" in \"%s\" of the index is no text", key, in);
}

static int set_skip_value(set *s)
{
    ek_json_value value;
    EK_TRY(set_check_json(s, ek_json_read(&s->json, &value)));
    return set_check_json(s, ek_json_skip(&s->json, &value));
}

static int set_read_tensor(set *s, const char *tensor)
{
    const char *part;
    EK_TRY(set_read_text(s, "weight_map", tensor, &part));
    const int number = set_find_part(s, part);
    EK_TRY(number);
    EK_TRY(ek_grow(&s->tensors, &s->tensor_room, s->tensor_count + 1));
    s->tensors[s->tensor_count++] = (set_tensor){tensor, number};
    return 0;
}

static int set_read_host(set *s, const char *part)
{
    const char *host;
    EK_TRY(set_read_text(s, "hosts", part, &host));
    int number = set_find_part(s, part);
    if (number >= 0)
        s->parts[number].host = host;
    return number;
}

static int set_read_metadata(set *s, const char *key)
{
    return strcmp(key, "hosts") == 0 ? set_read_object(s, "\"hosts\" of the index", set_read_host)
                                     : set_skip_value(s);
}

static int set_read_member(set *s, const char *key)
{
    if (strcmp(key, "metadata") == 0)
        return set_read_object(s, "\"metadata\" of the index", set_read_metadata);
    if (strcmp(key, "weight_map") != 0)
        return set_skip_value(s);
    s->has_map = true;
    return set_read_object(s, "\"weight_map\" of the index", set_read_tensor);
}

/* Reads the names of parts and tensors. The caller frees them, also after an error. */
static int set_read_index(set *s)
{
    ek_safetensors *file = s->file;
    if (file->nbytes > EK_SAFETENSORS_MAX_HEADER)
        return SET_FAIL(s, "an index of %zu bytes; at most %d are read", file->nbytes,
                        EK_SAFETENSORS_MAX_HEADER);
    file->header = ek_calloc(1, file->nbytes + 1);
    if (!file->header)
        return EK_E_NO_MEMORY;
    if (file->nbytes > 0)
        memcpy(file->header, file->bytes, file->nbytes);
    s->json = (ek_json_reader){.text = file->header, .nbytes = file->nbytes};
    EK_TRY(set_read_object(s, "the index", set_read_member));
    EK_TRY(set_check_json(s, ek_json_end(&s->json)));
    return s->has_map ? 0 : SET_FAIL(s, "%s", "the index has no \"weight_map\"");
}

static void set_free(set *s)
{
    free(s->parts);
    free(s->tensors);
}

/* ---- opening the parts ---- */

static int set_open_part(const set *s, const set_part *part, ek_tensor_file_map *map, void *user)
{
    const int before = ek_error_status();
    char *path = set_beside(s->file->path, part->name);
    ek_mapped mapped;
    int rc = path ? map(user, path, &mapped) : EK_E_NO_MEMORY;
    if (rc == EK_E_IO && part->host)
        ek_error_remark(before, "%s lists this part, which %s wrote", s->file->path, part->host);
    ek_safetensors *opened = rc >= 0 ? ek_safetensors_open_mapped(path, mapped, false) : NULL;
    free(path);
    if (opened)
        s->file->parts[s->file->part_count++] = opened;
    return opened ? 0 : ek_error_pending();
}

/* Adds the part's tensors, and those texts whose keys no earlier part has. */
static int set_merge(ek_safetensors *file, int number)
{
    const ek_safetensors *part = file->parts[number];
    EK_TRY(ek_grow(&file->entries, &file->room, file->count + part->count));
    if (part->count > 0)
        memcpy(file->entries + file->count, part->entries,
               (size_t)part->count * sizeof *part->entries);
    file->count += part->count;
    for (int i = 0; i < part->metadata_count; i++) {
        bool known = false;
        for (int p = 0; p < number && !known; p++)
            known = ek_safetensors_find_metadata(file->parts[p], part->metadata[i].key);
        if (known)
            continue;
        EK_TRY(ek_grow(&file->metadata, &file->metadata_room, file->metadata_count + 1));
        file->metadata[file->metadata_count++] = part->metadata[i];
    }
    return 0;
}

static int set_open_parts(set *s, ek_tensor_file_map *map, void *user)
{
    s->file->parts = ek_calloc((size_t)s->count + 1, sizeof(ek_safetensors *));
    if (!s->file->parts)
        return EK_E_NO_MEMORY;
    for (int p = 0; p < s->count; p++) {
        EK_TRY(set_open_part(s, &s->parts[p], map, user));
        EK_TRY(set_merge(s->file, p));
    }
    for (int i = 0; i < s->tensor_count; i++) {
        const set_tensor *tensor = &s->tensors[i];
        if (ek_safetensors_find(s->file->parts[tensor->part], tensor->name, "") < 0)
            return SET_FAIL(s, "the index has \"%.200s\" in %.200s, which lacks it", tensor->name,
                            s->parts[tensor->part].name);
    }
    return ek_safetensors_sort(s->file);
}

int ek_set_read(ek_safetensors *file, ek_tensor_file_map *map, void *user)
{
    set s = {.file = file};
    int rc = set_read_index(&s);
    if (rc == 0)
        rc = set_open_parts(&s, map, user);
    set_free(&s);
    return rc;
}

/* ---- replacing a set ---- */

bool ek_set_lists_first(const char *path)
{
    ek_mapped mapped;
    ek_error_record before;
    ek_error_take(&before);
    char *index = ek_set_index_path(path);
    ek_safetensors file = {.path = index};
    set s = {.file = &file};
    bool lists = false;
    if (index && ek_file_map("safetensors", index, &mapped) >= 0) {
        file.bytes = mapped.bytes;
        file.nbytes = mapped.nbytes;
        int rc = set_read_index(&s), number;
        ek_set_parts parts;
        for (int p = 0; p < s.count && rc == 0 && !lists; p++)
            lists = set_is_part(path, s.parts[p].name, &parts, &number) && !parts.second;
        ek_file_unmap(&mapped);
    }
    set_free(&s);
    free(file.header);
    free(index);
    ek_error_clear();
    ek_error_raise(&before);
    return lists;
}

void ek_set_clean(const char *path, ek_set_parts kept)
{
    char *directory = set_beside(path, ".");
    DIR *files = directory ? opendir(directory) : NULL;
    for (struct dirent *one; files && (one = readdir(files));) {
        ek_set_parts parts;
        int number;
        if (!set_is_part(path, one->d_name, &parts, &number) ||
            (parts.second == kept.second && parts.count == kept.count))
            continue;
        char *old = set_beside(path, one->d_name);
        if (old)
            unlink(old);
        free(old);
    }
    if (files)
        closedir(files);
    if (directory)
        unlink(path);
    free(directory);
}

/* ---- writing an index ---- */

static size_t set_put_index(const ek_set_list *list, char *const *names, char *bytes)
{
    ek_json_writer json = {.bytes = bytes, .indented = true};
    int64_t total = 0;
    for (int i = 0; i < list->count; i++)
        total += ek_array_source_nbytes(&list->sources[i]);
    ek_json_begin(&json, NULL, '{');
    ek_json_begin(&json, "metadata", '{');
    ek_json_put_integer(&json, "total_size", total);
    ek_json_begin(&json, "hosts", '{');
    for (int p = 0; p < list->parts.count; p++)
        ek_json_put_text(&json, names[p], list->hosts[p]);
    ek_json_close(&json, '}');
    ek_json_close(&json, '}');
    ek_json_begin(&json, "weight_map", '{');
    for (int i = 0; i < list->count; i++)
        ek_json_put_text(&json, list->sources[i].name, names[list->owners[i]]);
    ek_json_close(&json, '}');
    ek_json_close(&json, '}');
    return json.nbytes;
}

int ek_set_index(const ek_set_list *list, ek_bytes *image)
{
    const int count = list->parts.count;
    char **names = ek_calloc((size_t)count, sizeof *names);
    bool made = names;
    for (int p = 0; p < count && made; p++) {
        names[p] = ek_set_part_path(set_file_name(list->path), list->parts, p);
        made = names[p];
    }
    if (made) {
        image->nbytes = set_put_index(list, names, NULL);
        image->data = ek_calloc(1, image->nbytes);
        made = image->data;
    }
    if (made)
        set_put_index(list, names, image->data);
    for (int p = 0; p < count && names; p++)
        free(names[p]);
    free(names);
    return made ? 0 : EK_E_NO_MEMORY;
}
