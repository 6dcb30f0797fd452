/* pth_write.c: writes the zip archives of torch.save: data.pkl, the pickled dictionary; byteorder
 * and version; and data/0, data/1, ..., the elements of tensors.
 *
 *     ek_pth_save_from    numbers the storages
 *       pickle_level      pickles a dictionary, and the dictionaries below it
 *         pickle_tensor   as torch._utils._rebuild_tensor_v2 takes it
 *       pth_write         entry by entry
 *
 * The layouts are those of torch/serialization.py; opcodes are those of Python's pickle, protocol
 * 2, and none of them calls what torch.load refuses with weights_only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/map.h"
#include "core/tensor.h"
#include "data/pth.h"
#include "data/pth_file.h"

typedef struct pth_writer {
    ek_array_list list;
    const ek_array_source *sources;
    int *storages; /* by source: the number of its storage; -1: a number, which has none */
    bool *done;    /* by source: pickled */
    const ek_array_entry **written; /* by storage: the entry that fills it */
    int written_count;
    unsigned char *pickle;
    int nbytes, room;
    int status; /* 0, or the negative status of the first failure */
} pth_writer;

/* ---- pickling: after an error, nothing more is appended ---- */

static void pickle_bytes(pth_writer *p, const void *bytes, size_t nbytes)
{
    enum { MOST = 1 << 30 };
    if (p->status < 0 || nbytes == 0)
        return;
    p->status =
        nbytes > (size_t)(MOST - p->nbytes)
            ? EK_FAIL_IN(EK_E_INVALID, &p->list, "names and texts take more than %d bytes", MOST)
            : ek_grow(&p->pickle, &p->room, p->nbytes + (int)nbytes);
    if (p->status < 0)
        return;
    memcpy(p->pickle + p->nbytes, bytes, nbytes);
    p->nbytes += (int)nbytes;
}

/* Appends opcodes, or text without a length. */
static void pickle_put(pth_writer *p, const char *opcodes)
{
    pickle_bytes(p, opcodes, strlen(opcodes));
}

static void pickle_text(pth_writer *p, const char *text, size_t nbytes)
{
    uint32_t length = (uint32_t)nbytes;
    pickle_put(p, "X");
    pickle_bytes(p, &length, sizeof length);
    pickle_bytes(p, text, nbytes);
}

static void pickle_integer(pth_writer *p, int64_t integer)
{
    if (integer == (int32_t)integer) {
        pickle_put(p, "J");
        pickle_bytes(p, &integer, sizeof(int32_t));
    } else {
        pickle_put(p, "\x8a\x08"); /* a number of 8 bytes */
        pickle_bytes(p, &integer, sizeof integer);
    }
}

/* Appends a double, whose bytes are big-endian. */
static void pickle_floating(pth_writer *p, double floating)
{
    uint64_t bits;
    memcpy(&bits, &floating, sizeof bits);
    bits = __builtin_bswap64(bits);
    pickle_put(p, "G");
    pickle_bytes(p, &bits, sizeof bits);
}

static void pickle_sizes(pth_writer *p, int count, const int64_t *sizes)
{
    pickle_put(p, "(");
    for (int i = 0; i < count; i++)
        pickle_integer(p, sizes[i]);
    pickle_put(p, "t");
}

/* Appends _rebuild_tensor_v2(storage, 0, sizes, strides, False, OrderedDict()). The storage is a
 * persistent id: ("storage", class, key, "cpu", count). */
static void pickle_tensor(pth_writer *p, const ek_array_source *source, int storage)
{
    int64_t strides[EK_MAX_DIMS];
    char key[16];
    snprintf(key, sizeof key, "%d", storage);
    ek_strides_of(&source->shape, EK_CONTIGUOUS, strides);
    pickle_put(p, "ctorch._utils\n_rebuild_tensor_v2\n((");
    pickle_text(p, "storage", 7);
    pickle_put(p, "ctorch\n");
    pickle_put(p, ek_pth_storage_class(ek_element_of(source->dtype)));
    pickle_put(p, "\n");
    pickle_text(p, key, strlen(key));
    pickle_text(p, "cpu", 3);
    pickle_integer(p, ek_shape_count(&source->shape));
    pickle_put(p, "tQ");
    pickle_integer(p, 0);
    pickle_sizes(p, source->shape.ndim, source->shape.dims);
    pickle_sizes(p, source->shape.ndim, strides);
    pickle_put(p, "\x89"
                  "ccollections\nOrderedDict\n)RtR");
}

static void pickle_number(pth_writer *p, const ek_array_source *source)
{
    union {
        int64_t integer;
        double floating;
    } number = {0};
    if (p->status == 0)
        p->status = ek_to_data(source->tensor, &number, sizeof number);
    if (source->dtype == EK_I64)
        pickle_integer(p, number.integer);
    else
        pickle_floating(p, number.floating);
}

/* ---- dictionaries ---- */

/* Returns true if the source lies below the first `nbytes` bytes of `name`, which end in a dot. */
static bool level_has(const ek_array_source *source, const char *name, size_t nbytes)
{
    return source->nested >= nbytes && memcmp(source->name, name, nbytes) == 0;
}

/* Pickles a dictionary of the sources from number `first` on that lie below the first `nbytes`
 * bytes of the name of source `first`. Sources keep their order. The texts lie in the outermost
 * dictionary. */
static void pickle_level(pth_writer *p, int first, size_t nbytes)
{
    const ek_array_source *sources = p->sources;
    pickle_put(p, "}(");
    for (int i = first; i < p->list.count; i++) {
        const ek_array_source *source = &sources[i];
        const char *key = source->name + nbytes;
        if (p->done[i] || !level_has(source, sources[first].name, nbytes))
            continue;
        if (source->nested > nbytes) {
            size_t length = (size_t)(strchr(key, '.') - key);
            pickle_text(p, key, length);
            pickle_level(p, i, nbytes + length + 1);
            continue;
        }
        pickle_text(p, key, strlen(key));
        if (source->number)
            pickle_number(p, source);
        else
            pickle_tensor(p, source, p->storages[i]);
        p->done[i] = true;
    }
    for (int i = 0; nbytes == 0 && i < p->list.metadata_count; i++) {
        pickle_text(p, p->list.metadata[i].key, strlen(p->list.metadata[i].key));
        pickle_text(p, p->list.metadata[i].value, strlen(p->list.metadata[i].value));
    }
    pickle_put(p, "u");
}

/* Refuses a text that has the name of a dictionary: both would be one key. */
static int pth_check_texts(const pth_writer *p)
{
    for (int i = 0; i < p->list.metadata_count; i++) {
        const char *key = p->list.metadata[i].key;
        size_t length = strlen(key);
        for (int k = 0; k < p->list.count && !strchr(key, '.'); k++)
            if (p->sources[k].nested > length && p->sources[k].name[length] == '.' &&
                memcmp(p->sources[k].name, key, length) == 0)
                return EK_FAIL_IN(EK_E_INVALID, &p->list,
                                  "\"%.200s\" is a text, and \"%.200s\" lies below it; PyTorch's "
                                  "files have one value for a key",
                                  key, p->sources[k].name);
    }
    return 0;
}

/* ---- storages ---- */

/* Returns the number of the storage that has this tensor's elements already; -1 if there is none.
 * `seen` has, by address, 1 + the number of the storage of a tensor that begins there. */
static int storage_find(const pth_writer *p, const ek_map *seen, const ek_tensor *tensor)
{
    int storage = (int)(intptr_t)ek_map_find(seen, ek_tensor_address(tensor)) - 1;
    const ek_tensor *other = storage < 0 ? NULL : p->written[storage]->source->tensor;
    return other && other->storage == tensor->storage && other->dtype == tensor->dtype &&
                   ek_same_layout(other, tensor)
               ? storage
               : -1;
}

/* Numbers the storages in the order in which their elements are written. */
static int storages_number(pth_writer *p, ek_map *seen)
{
    for (int i = 0; i < p->list.count; i++) {
        const ek_array_entry *e = &p->list.entries[i];
        const ek_tensor *tensor = e->source->tensor;
        int *storage = &p->storages[e->source - p->sources];
        bool shares = tensor && e->nbytes > 0 && !tensor->storage->residence;
        *storage = -1;
        if (e->source->number || (shares && (*storage = storage_find(p, seen, tensor)) >= 0))
            continue;
        *storage = p->written_count;
        p->written[p->written_count++] = e;
        void **place = shares ? ek_map_at(seen, ek_tensor_address(tensor)) : NULL;
        if (shares && !place)
            return EK_E_NO_MEMORY;
        if (place)
            *place = (void *)(intptr_t)p->written_count;
    }
    return 0;
}

/* ---- the file ---- */

typedef struct pth_part {
    ek_zip_writer *zip;
    char name[32];
} pth_part;

static int pth_put_part(const void *elements, size_t nbytes, void *user)
{
    const pth_part *part = user;
    return ek_zip_put(part->zip, part->name, elements, nbytes);
}

static int pth_write_parts(const pth_writer *p, ek_zip_writer *zip)
{
    pth_part part = {.zip = zip};
    EK_TRY(ek_zip_put(zip, "archive/data.pkl", p->pickle, (size_t)p->nbytes));
    EK_TRY(ek_zip_put(zip, "archive/byteorder", "little", 6));
    for (int i = 0; i < p->written_count; i++) {
        snprintf(part.name, sizeof part.name, "archive/data/%d", i);
        EK_TRY(ek_array_list_give(&p->list, p->written[i], pth_put_part, &part));
    }
    EK_TRY(ek_zip_put(zip, "archive/version", "3\n", 2));
    return ek_zip_finish(zip);
}

static int pth_write(const ek_file *file, void *user)
{
    ek_zip_writer zip = {.file = file};
    int status = pth_write_parts(user, &zip);
    free(zip.directory);
    return status;
}

static int pth_make(pth_writer *p)
{
    ek_map seen = {0};
    EK_TRY(pth_check_texts(p));
    int status = storages_number(p, &seen);
    ek_map_clear(&seen);
    EK_TRY(status);
    pickle_put(p, "\x80\x02");
    pickle_level(p, 0, 0);
    pickle_put(p, ".");
    return p->status < 0 ? p->status : ek_file_replace(p->list.what, p->list.path, pth_write, p);
}

int ek_pth_save_from(const char *path, const ek_array_source *sources, int count,
                     const ek_metadata *metadata, int metadata_count)
{
    size_t places = (size_t)count;
    pth_writer p = {.list = {"pth_save", path, metadata, metadata_count, NULL, 0},
                    .sources = sources,
                    .storages = ek_calloc(places, sizeof *p.storages),
                    .done = ek_calloc(places, sizeof *p.done),
                    .written = ek_calloc(places, sizeof *p.written)};
    int status = p.storages && p.done && p.written ? ek_array_list_open(&p.list, sources, count)
                                                   : EK_E_NO_MEMORY;
    if (status == 0)
        status = pth_make(&p);
    ek_array_list_close(&p.list);
    free(p.pickle);
    free(p.storages);
    free(p.done);
    free(p.written);
    return status;
}
