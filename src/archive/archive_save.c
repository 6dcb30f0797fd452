/* archive_save.c: writes an archive to its file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "archive/archive.h"
#include "core/digest.h"
#include "core/tensor.h"
#include "data/pth.h"

/* ---- devices ---- */

enum { KINDS = EK_CUDA + 1 };

/* Returns the device on which most tensors lay; of several such devices the first by kind and
 * index. */
static ek_device save_usual_device(const ek_archive *archive)
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

/* The file's metadata. Pairs from index `owned` on are owned, each a block of key and value. */
typedef struct save_pairs {
    ek_metadata *pairs;
    int count, owned;
} save_pairs;

static void save_pairs_free(save_pairs *list)
{
    for (int i = list->owned; i < list->count; i++)
        free((char *)(uintptr_t)list->pairs[i].key);
    free(list->pairs);
}

static int save_add_device(save_pairs *list, const char *of, ek_device device)
{
    enum { LONGEST = 16 }; /* the longest name of a device */
    size_t room = sizeof EK_ARCHIVE_DEVICE + strlen(of) + 1;
    char *key = ek_calloc(1, room + LONGEST);
    if (!key)
        return EK_E_NO_MEMORY;
    snprintf(key, room, "%s%s%s", EK_ARCHIVE_DEVICE, *of ? ":" : "", of);
    list->pairs[list->count++] = (ek_metadata){key, ek_device_name(device, key + room)};
    return 0;
}

static int save_add_pairs(save_pairs *list, const ek_archive *archive)
{
    ek_device usual = save_usual_device(archive);
    size_t room = (size_t)archive->text_count + (size_t)archive->count + 1;
    list->pairs = ek_calloc(room, sizeof *list->pairs);
    if (!list->pairs)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < archive->text_count; i++)
        list->pairs[list->count++] = (ek_metadata){archive->texts[i].name, archive->texts[i].text};
    list->owned = list->count;
    if (!ek_device_equal(usual, ek_cpu()))
        EK_TRY(save_add_device(list, "", usual));
    for (int i = 0; i < archive->count; i++)
        if (!ek_device_equal(archive->entries[i].device, usual))
            EK_TRY(save_add_device(list, archive->entries[i].name, archive->entries[i].device));
    return 0;
}

/* ---- the file ---- */

static ek_array_source save_source(const ek_archive_entry *entry)
{
    ek_array_source source = {.name = entry->name,
                              .dtype = entry->dtype,
                              .shape = entry->shape,
                              .make = entry->make,
                              .object = entry->object,
                              .nested = entry->nested,
                              .number = entry->number};
    if (!entry->make) {
        source.tensor = (ek_tensor *)entry->object;
        source.dtype = source.tensor->dtype;
        source.shape = ek_tensor_shape(source.tensor);
    }
    return source;
}

/* Returns the error of the first put that failed, if that error is still the thread's pending
 * error; else 0. */
static int save_check_complete(const ek_archive *archive)
{
    bool pending = archive->failure.status < 0 && ek_error_status() == archive->failure.status &&
                   strcmp(ek_error_message(), archive->failure.message) == 0;
    return pending ? archive->failure.status : 0;
}

bool ek_archive_is_pth(const char *path)
{
    const char *ending = strrchr(path, '.');
    return ending && (strcmp(ending, ".pth") == 0 || strcmp(ending, ".pt") == 0);
}

static int save_check(const ek_archive *archive, const char *path)
{
    const ek_archive_put_call put = {(ek_archive *)archive, "archive_save", ""};
    EK_TRY(ek_archive_check_written(&put));
    EK_TRY(save_check_complete(archive));
    return ek_check_given(put.what, "the path", path);
}

int ek_archive_save_with_ranks(ek_archive *archive, const char *path)
{
    save_pairs list = {0};
    EK_TRY(save_check(archive, path));
    ek_array_source *sources = ek_calloc((size_t)archive->count, sizeof *sources);
    int status = sources ? save_add_pairs(&list, archive) : EK_E_NO_MEMORY;
    for (int i = 0; i < archive->count && status == 0; i++)
        sources[i] = save_source(&archive->entries[i]);
    if (status == 0 && ek_archive_is_pth(path)) /* without the devices, which follow the texts */
        status = ek_pth_save_from(path, sources, archive->count, list.pairs, archive->text_count);
    else if (status == 0)
        status = ek_safetensors_save_from(path, sources, archive->count, list.pairs, list.count);
    save_pairs_free(&list);
    free(sources);
    return status;
}

int ek_archive_save(ek_archive *archive, const char *path)
{
    EK_TRY(save_check(archive, path));
    for (int i = 0; i < archive->count; i++)
        if (archive->entries[i].has_ranks)
            return EK_FAIL(EK_E_STATE,
                           "archive_save: \"%.200s\" is divided over several processes; "
                           "ek_dist_archive_save, called by all of them, puts it together",
                           archive->entries[i].name);
    return ek_archive_save_with_ranks(archive, path);
}

/* ---- parts that other processes write ---- */

int ek_archive_count_with_ranks(const ek_archive *archive, bool alike, uint64_t *digest)
{
    int count = 0;
    *digest = EK_DIGEST;
    for (int i = 0; archive && i < archive->count; i++) {
        const ek_array_source source = save_source(&archive->entries[i]);
        char shape[200];
        if (!archive->entries[i].has_ranks && !(alike && archive->entries[i].alike))
            continue;
        count++;
        *digest = ek_digest_text(*digest, source.name);
        *digest = ek_digest_text(*digest, ek_shape_text(&source.shape, shape));
        *digest = ek_digest_word(*digest, (uint64_t)source.dtype);
    }
    return count;
}

/* An entry that is divided, and its bytes. */
typedef struct save_load {
    int entry;
    int64_t nbytes;
} save_load;

static int save_compare_loads(const void *a, const void *b)
{
    const save_load *x = a, *y = b;
    if (x->nbytes != y->nbytes)
        return x->nbytes > y->nbytes ? -1 : 1;
    return x->entry < y->entry ? -1 : x->entry > y->entry;
}

/* Gives the largest entries first, each to the owner that has the fewest bytes. Ranks may have put
 * different entries that are not divided, so that these don't count. */
int ek_archive_divide(const ek_archive *archive, int ranks, int writer, int *owners)
{
    int count = archive ? archive->count : 0, divided = 0;
    save_load *loads = ek_calloc((size_t)count + 1, sizeof *loads);
    int64_t *nbytes = ek_calloc((size_t)ranks, sizeof *nbytes);
    bool made = loads && nbytes;
    for (int i = 0; i < count && made; i++) {
        const ek_array_source source = save_source(&archive->entries[i]);
        owners[i] = writer;
        if (archive->entries[i].alike || archive->entries[i].has_ranks)
            loads[divided++] = (save_load){i, ek_array_source_nbytes(&source)};
    }
    if (divided > 0)
        qsort(loads, (size_t)divided, sizeof *loads, save_compare_loads);
    for (int i = 0; i < divided && ranks > 1; i++) {
        int least = 0;
        for (int r = 1; r < ranks; r++)
            least = nbytes[r] < nbytes[least] ? r : least;
        owners[loads[i].entry] = least;
        nbytes[least] += loads[i].nbytes;
    }
    free(loads);
    free(nbytes);
    return made ? 0 : EK_E_NO_MEMORY;
}

int ek_archive_part(const ek_archive *archive, const int *owners, int owner, bool texts,
                    ek_bytes *image)
{
    static const ek_archive empty;
    save_pairs list = {0};
    int count = 0;
    archive = archive ? archive : &empty;
    EK_TRY(save_check(archive, "a part"));
    ek_array_source *sources = ek_calloc((size_t)archive->count + 1, sizeof *sources);
    for (int i = 0; i < archive->count && sources; i++) {
        const ek_archive_entry *entry = &archive->entries[i];
        if (owners[i] != owner && !entry->has_ranks)
            continue;
        sources[count] = save_source(entry);
        sources[count++].elsewhere = owners[i] != owner;
    }
    int status = !sources ? EK_E_NO_MEMORY : texts ? save_add_pairs(&list, archive) : 0;
    if (status == 0)
        status = ek_safetensors_image(sources, count, list.pairs, list.count, image);
    save_pairs_free(&list);
    free(sources);
    return status;
}

int ek_archive_give(const ek_archive *archive)
{
    ek_bytes nothing = {NULL, 0};
    int *owners = ek_calloc((size_t)archive->count + 1, sizeof *owners);
    int status = owners ? ek_archive_part(archive, owners, 1, false, &nothing) : EK_E_NO_MEMORY;
    free(nothing.data);
    free(owners);
    return status;
}

int ek_archive_index(const ek_archive *archive, const int *owners, ek_set_list list,
                     ek_bytes *image)
{
    ek_array_source *sources = ek_calloc((size_t)archive->count + 1, sizeof *sources);
    for (int i = 0; i < archive->count && sources; i++)
        sources[i] = save_source(&archive->entries[i]);
    list.sources = sources;
    list.owners = owners;
    list.count = archive->count;
    int status = sources ? ek_set_index(&list, image) : EK_E_NO_MEMORY;
    free(sources);
    return status;
}
