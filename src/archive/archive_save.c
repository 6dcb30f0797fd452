/* archive_save.c: an archive as a safetensors file, with the devices of its tensors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "archive/archive.h"
#include "core/tensor.h"

/* ---- devices ---- */

enum { KINDS = EK_CUDA + 1 };

/* Where most of the tensors were put on; of equally many the first by kind and index. */
static ek_device usual_device(const ek_archive *archive)
{
    int counts[KINDS][EK_MAX_DEVICES] = {{0}};
    ek_device usual = ek_cpu();
    for (int i = 0; i < archive->count; i++) {
        ek_device device = archive->entries[i].device;
        counts[device.kind][device.index]++;
    }
    for (int kind = 0; kind < KINDS; kind++)
        for (int index = 0; index < EK_MAX_DEVICES; index++)
            if (counts[kind][index] > counts[usual.kind][usual.index])
                usual = (ek_device){(ek_device_kind)kind, index};
    return usual;
}

/* Pairs of metadata; keys and values from `owned` on are the list's own. */
typedef struct pair_list {
    ek_metadata *pairs;
    int count, owned;
} pair_list;

static void free_pairs(pair_list *list)
{
    for (int i = list->owned; i < list->count; i++) {
        free((char *)(uintptr_t)list->pairs[i].key);
        free((char *)(uintptr_t)list->pairs[i].value);
    }
    free(list->pairs);
}

static int add_device(pair_list *list, const char *of, ek_device device)
{
    char text[16];
    size_t room = sizeof EK_ARCHIVE_DEVICE + strlen(of) + 1;
    char *key = ek_calloc(1, room);
    char *value = ek_strdup(ek_device_name(device, text));
    if (!key || !value) {
        free(key);
        free(value);
        return EK_E_NO_MEMORY;
    }
    snprintf(key, room, "%s%s%s", EK_ARCHIVE_DEVICE, *of ? ":" : "", of);
    list->pairs[list->count++] = (ek_metadata){key, value};
    return 0;
}

static int add_pairs(const ek_archive *archive, pair_list *list)
{
    ek_device usual = usual_device(archive);
    size_t room = (size_t)archive->text_count + (size_t)archive->count + 1;
    list->pairs = ek_calloc(room, sizeof *list->pairs);
    if (!list->pairs)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < archive->text_count; i++)
        list->pairs[list->count++] = (ek_metadata){archive->texts[i].name, archive->texts[i].text};
    list->owned = list->count;
    if (!ek_device_equal(usual, ek_cpu()))
        EK_TRY(add_device(list, "", usual));
    for (int i = 0; i < archive->count; i++)
        if (!ek_device_equal(archive->entries[i].device, usual))
            EK_TRY(add_device(list, archive->entries[i].name, archive->entries[i].device));
    return 0;
}

/* ---- the file ---- */

static ek_array_source source_of(const ek_archive_entry *entry)
{
    if (entry->make)
        return (ek_array_source){.name = entry->name,
                                 .dtype = entry->dtype,
                                 .shape = entry->shape,
                                 .make = entry->make,
                                 .object = entry->object};
    ek_tensor *tensor = (ek_tensor *)entry->object;
    return (ek_array_source){.name = entry->name,
                             .dtype = tensor->dtype,
                             .shape = ek_tensor_shape(tensor),
                             .tensor = tensor};
}

int ek_archive_save(ek_archive *archive, const char *path)
{
    pair_list list = {0};
    EK_TRY(ek_archive_check_written(archive, "archive_save", ""));
    EK_TRY(ek_archive_check_given(path, "archive_save", "path"));
    ek_array_source *sources = ek_calloc((size_t)archive->count, sizeof *sources);
    int status = sources ? add_pairs(archive, &list) : EK_E_NO_MEMORY;
    for (int i = 0; i < archive->count && status == 0; i++)
        sources[i] = source_of(&archive->entries[i]);
    if (status == 0)
        status = ek_safetensors_save_from(path, sources, archive->count, list.pairs, list.count);
    free_pairs(&list);
    free(sources);
    return status;
}
