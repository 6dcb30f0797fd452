/* value.c: values, and trees of them: lists and dictionaries. */
#include "core/value.h"

#include <stdlib.h>
#include <string.h>

#include "core/object.h"
#include "core/tensor.h"
#include "core/thread.h"

struct ek_list {
    ek_object object;
    int count;
    ek_value items[];
};

struct ek_dict {
    ek_object object;
    int count;
    struct {
        char *key;
        ek_value value;
    } entries[];
};

ek_value ek_value_none(void)
{
    return (ek_value){0};
}

ek_value ek_value_error(void)
{
    return (ek_value){.kind = EK_VALUE_ERROR};
}

ek_value ek_value_of_tensor(ek_tensor *tensor)
{
    if (!tensor)
        return ek_error_status() ? ek_value_error() : ek_value_none();
    return (ek_value){.kind = EK_VALUE_TENSOR, .as.tensor = tensor};
}

ek_value ek_value_with_tensor(ek_value value, ek_tensor *tensor)
{
    if (!tensor)
        return ek_value_error();
    value.as.tensor = tensor;
    return value;
}

ek_value ek_value_of_int(int64_t integer)
{
    return (ek_value){.kind = EK_VALUE_INT, .as.integer = integer};
}

ek_value ek_value_of_float(double floating)
{
    return (ek_value){.kind = EK_VALUE_FLOAT, .as.floating = floating};
}

ek_value ek_value_of_pointer(void *pointer)
{
    return (ek_value){.kind = EK_VALUE_POINTER, .as.pointer = pointer};
}

void *ek_value_object(ek_value value)
{
    switch (value.kind) {
    case EK_VALUE_TENSOR:
        return value.as.tensor;
    case EK_VALUE_LIST:
        return value.as.list;
    case EK_VALUE_DICT:
        return value.as.dict;
    default:
        return NULL;
    }
}

ek_value ek_value_keep(ek_value value)
{
    if (ek_check_alive("value_keep", "the value", ek_value_object(value)) < 0)
        return ek_value_error();
    ek_object_retain(ek_value_object(value));
    return value;
}

void ek_value_release(ek_value value)
{
    EK_RELEASES("ek_value_release", ek_value_object(value));
    ek_object_release(ek_value_object(value));
}

ek_value ek_scope_return_value(ek_scope *scope, ek_value value)
{
    void *object = ek_value_object(value);
    if (ek_scope_return_object(scope, object) != object)
        return ek_value_error();
    return value;
}

/* ---- lists ---- */

static size_t list_nbytes(int count)
{
    const size_t nbytes = sizeof(ek_list) + (size_t)count * sizeof(ek_value);
    return EK_RETIRABLE(nbytes);
}

static void list_destroy(ek_object *object)
{
    ek_list *list = (ek_list *)object;
    for (int i = 0; i < list->count; i++)
        ek_object_release(ek_value_object(list->items[i]));
    ek_object_retire(object);
    ek_retire(list, list_nbytes(list->count), "list", list);
}

ek_value ek_value_list(const ek_value *items, int count)
{
    if (count < 0 || (count && !items))
        return EK_FAIL_VALUE(EK_E_INVALID, "a list of %d values%s", count,
                             items ? "" : ", which are NULL");
    for (int i = 0; i < count; i++)
        if (items[i].kind == EK_VALUE_ERROR ||
            ek_check_alive("value_list", "an element", ek_value_object(items[i])) < 0)
            return ek_value_error();
    ek_list *list = ek_calloc(1, list_nbytes(count));
    if (!list)
        return ek_value_error();
    ek_object_init(&list->object, list_destroy);
    list->count = count;
    for (int i = 0; i < count; i++)
        list->items[i] = ek_value_keep(items[i]);
    if (!ek_scope_adopt(list))
        return ek_value_error();
    return (ek_value){.kind = EK_VALUE_LIST, .as.list = list};
}

ek_value ek_value_per_device(const ek_value *items, int count)
{
    ek_value list = ek_value_list(items, count);
    list.per_device = list.kind == EK_VALUE_LIST;
    return list;
}

const ek_value *ek_value_items(ek_value list)
{
    return list.as.list->items;
}

/* ---- dictionaries ---- */

static size_t dict_nbytes(int count)
{
    const size_t nbytes = sizeof(ek_dict) + (size_t)count * sizeof((ek_dict *)0)->entries[0];
    return EK_RETIRABLE(nbytes);
}

static void dict_destroy(ek_object *object)
{
    ek_dict *dict = (ek_dict *)object;
    for (int i = 0; i < dict->count; i++) {
        free(dict->entries[i].key);
        ek_object_release(ek_value_object(dict->entries[i].value));
    }
    ek_object_retire(object);
    ek_retire(dict, dict_nbytes(dict->count), "dictionary", dict);
}

static int dict_fail_twice(const char *key)
{
    return EK_FAIL(EK_E_INVALID, "key \"%s\" stands twice in a dictionary", key);
}

static int dict_compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Checks that no key repeats. Sorts the keys and compares neighbours, because a dictionary from a
 * file may have very many keys. */
static int dict_check_many_keys(const ek_value_entry *entries, int count)
{
    int status = 0;
    const char **keys = ek_calloc((size_t)count, sizeof *keys);
    if (!keys)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < count; i++)
        keys[i] = entries[i].key;
    qsort(keys, (size_t)count, sizeof *keys, dict_compare_keys);
    for (int i = 1; i < count && status == 0; i++)
        if (strcmp(keys[i - 1], keys[i]) == 0)
            status = dict_fail_twice(keys[i]);
    free(keys);
    return status;
}

static int dict_check_few_keys(const ek_value_entry *entries, int count)
{
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++)
            if (strcmp(entries[i].key, entries[j].key) == 0)
                return dict_fail_twice(entries[i].key);
    return 0;
}

static int dict_check(const ek_value_entry *entries, int count)
{
    enum { FEW = 32 };
    if (count < 0 || (count && !entries))
        return EK_FAIL(EK_E_INVALID, "a dictionary of %d entries%s", count,
                       entries ? "" : ", which are NULL");
    for (int i = 0; i < count; i++) {
        if (!entries[i].key)
            return EK_FAIL(EK_E_INVALID, "entry %d of a dictionary has no key", i);
        if (entries[i].value.kind == EK_VALUE_ERROR)
            return ek_error_pending();
        EK_TRY(ek_check_alive("value_dict", entries[i].key, ek_value_object(entries[i].value)));
    }
    return count <= FEW ? dict_check_few_keys(entries, count)
                        : dict_check_many_keys(entries, count);
}

ek_value ek_value_dict(const ek_value_entry *entries, int count)
{
    if (dict_check(entries, count) < 0)
        return ek_value_error();
    ek_dict *dict = ek_calloc(1, dict_nbytes(count));
    if (!dict)
        return ek_value_error();
    ek_object_init(&dict->object, dict_destroy);
    for (int i = 0; i < count; i++) {
        dict->entries[i].key = ek_strdup(entries[i].key);
        if (!dict->entries[i].key) {
            ek_object_release(dict);
            return ek_value_error();
        }
        dict->entries[i].value = ek_value_keep(entries[i].value);
        dict->count++;
    }
    if (!ek_scope_adopt(dict))
        return ek_value_error();
    return (ek_value){.kind = EK_VALUE_DICT, .as.dict = dict};
}

/* ---- trees of equal structure with other leaves ---- */

static ek_value dict_like(ek_value dict, const ek_value *items)
{
    int count = ek_value_length(dict);
    ek_value_entry *entries = ek_calloc((size_t)count, sizeof *entries);
    if (!entries)
        return ek_value_error();
    for (int i = 0; i < count; i++)
        entries[i] = (ek_value_entry){dict.as.dict->entries[i].key, items[i]};
    ek_value made = ek_value_dict(entries, count);
    free(entries);
    return made;
}

ek_value ek_value_like(ek_value container, const ek_value *items)
{
    return container.kind == EK_VALUE_DICT ? dict_like(container, items)
                                           : ek_value_list(items, ek_value_length(container));
}

static ek_value value_map_elements(ek_value value, ek_value_replacement *replace, void *user)
{
    int count = ek_value_length(value), done = 0;
    ek_value *items = ek_calloc((size_t)count, sizeof *items), mapped = ek_value_error();
    while (items && done < count) {
        items[done] = ek_value_map(ek_value_at(value, done), replace, user);
        if (items[done].kind == EK_VALUE_ERROR)
            break;
        done++;
    }
    if (items && done == count)
        mapped = ek_value_like(value, items);
    mapped.per_device = value.per_device;
    free(items);
    return mapped;
}

ek_value ek_value_map(ek_value value, ek_value_replacement *replace, void *user)
{
    if (replace(&value, user))
        return value;
    return value.kind == EK_VALUE_LIST || value.kind == EK_VALUE_DICT
               ? value_map_elements(value, replace, user)
               : value;
}

/* ---- batches ---- */

static bool value_mark_batch(ek_value *value, void *user)
{
    const int dim = *(const int *)user;
    char text[200];
    if (value->kind != EK_VALUE_TENSOR || !value->as.tensor)
        return false;
    const int ndim = value->as.tensor->ndim, from_start = dim < 0 ? dim + ndim : dim;
    if (from_start < 0 || from_start >= ndim)
        *value = EK_FAIL_VALUE(EK_E_SHAPE, "%s has no dimension %d that could be its batch",
                               ek_tensor_text(value->as.tensor, text), dim);
    else
        value->batch = (signed char)(1 + from_start);
    return true;
}

ek_value ek_value_batched(ek_value value, int dim)
{
    return ek_value_map(value, value_mark_batch, &dim);
}

int ek_value_batch_dim(ek_value value, int otherwise)
{
    return value.batch > 0 ? value.batch - 1 : otherwise;
}

/* ---- looking inside ---- */

const char *ek_value_kind_name(ek_value value)
{
    static const char *const names[] = {"none",       "a tensor", "a list",    "a dictionary",
                                        "an integer", "a float",  "a pointer", "an error"};
    return (unsigned)value.kind < sizeof names / sizeof *names ? names[value.kind] : "unknown";
}

ek_tensor *ek_value_tensor(ek_value value)
{
    if (value.kind == EK_VALUE_TENSOR)
        return ek_check_alive("value_tensor", "the tensor", value.as.tensor) < 0 ? NULL
                                                                                 : value.as.tensor;
    if (value.kind != EK_VALUE_ERROR || !ek_error_status())
        EK_FAIL(
            EK_E_INVALID, "a tensor is wanted, but the value is %s%s", ek_value_kind_name(value),
            value.per_device ? " with one element per device; ek_value_to_device joins them"
            : value.kind == EK_VALUE_LIST
                ? "; take one of its elements by ek_value_at, as ek_value_tensor(ek_value_at(v, 0))"
                : "");
    return NULL;
}

int ek_value_length(ek_value value)
{
    if (ek_check_alive("value_length", "the value", ek_value_object(value)) < 0)
        return 0;
    if (value.kind == EK_VALUE_LIST)
        return value.as.list->count;
    return value.kind == EK_VALUE_DICT ? value.as.dict->count : 0;
}

ek_value ek_value_at(ek_value value, int index)
{
    if (ek_check_alive("value_at", "the value", ek_value_object(value)) < 0)
        return ek_value_error();
    int length = ek_value_length(value);
    if (index < 0 || index >= length)
        return EK_FAIL_VALUE(EK_E_INVALID, "element %d of %s of %d", index,
                             ek_value_kind_name(value), length);
    return value.kind == EK_VALUE_LIST ? value.as.list->items[index]
                                       : value.as.dict->entries[index].value;
}

const char *ek_value_key(ek_value value, int index)
{
    if (ek_check_alive("value_key", "the dictionary", ek_value_object(value)) < 0)
        return NULL;
    if (value.kind != EK_VALUE_DICT || index < 0 || index >= value.as.dict->count)
        return EK_FAIL_NULL(EK_E_INVALID, "key %d of %s of %d", index, ek_value_kind_name(value),
                            ek_value_length(value));
    return value.as.dict->entries[index].key;
}

ek_value ek_value_get(ek_value value, const char *key)
{
    if (ek_check_alive("value_get", "the dictionary", ek_value_object(value)) < 0)
        return ek_value_error();
    for (int i = 0; key && value.kind == EK_VALUE_DICT && i < value.as.dict->count; i++)
        if (strcmp(value.as.dict->entries[i].key, key) == 0)
            return value.as.dict->entries[i].value;
    return ek_value_none();
}
