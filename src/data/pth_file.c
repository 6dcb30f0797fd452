/* pth_file.c: see pth_file.h. The layouts are those of torch/serialization.py. */
#include "data/pth_file.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

/* Keys of storages are compared for each tensor. PyTorch's are numbers. */
enum { PTH_LONGEST_PATH = 4096, PTH_LONGEST_KEY = PTH_LONGEST_PATH / 4 };

/* ---- element types ---- */

/* The names of storage classes and dtypes in torch, and of the dtypes in safetensors. */
static const struct {
    const char *storage, *dtype, *element;
} pth_elements[] = {
    {"FloatStorage", "float32", "F32"},
    {"DoubleStorage", "float64", "F64"},
    {"HalfStorage", "float16", "F16"},
    {"BFloat16Storage", "bfloat16", "BF16"},
    {"LongStorage", "int64", "I64"},
    {"IntStorage", "int32", "I32"},
    {"ShortStorage", "int16", "I16"},
    {"CharStorage", "int8", "I8"},
    {"ByteStorage", "uint8", "U8"},
    {"BoolStorage", "bool", "BOOL"},
    {"UntypedStorage", "", "U8"},
    {"", "uint16", "U16"},
    {"", "uint32", "U32"},
    {"", "uint64", "U64"},
    {"ComplexFloatStorage", "complex64", "C64"},
    {"", "float8_e5m2", "F8_E5M2"},
    {"", "float8_e4m3fn", "F8_E4M3"},
    {"", "float8_e5m2fnuz", "F8_E5M2FNUZ"},
    {"", "float8_e4m3fnuz", "F8_E4M3FNUZ"},
};
enum { PTH_ELEMENTS = sizeof pth_elements / sizeof *pth_elements };

const ek_element *ek_pth_element(const ek_pth_file *p, int global)
{
    for (int i = 0; i < PTH_ELEMENTS; i++)
        if (ek_pickle_is_global(&p->pickle, global, "torch", pth_elements[i].storage) ||
            ek_pickle_is_global(&p->pickle, global, "torch.storage", pth_elements[i].storage) ||
            ek_pickle_is_global(&p->pickle, global, "torch", pth_elements[i].dtype))
            return ek_element_find(pth_elements[i].element);
    return NULL;
}

const char *ek_pth_storage_class(const ek_element *element)
{
    int i = 0;
    while (strcmp(pth_elements[i].element, element->name) != 0)
        i++;
    return pth_elements[i].storage;
}

/* ---- zip archives ---- */

/* Returns the entry "<folder><middle><name>" of the archive; NULL if there is none. */
static const ek_zip_entry *zipped_find(const ek_pth_file *p, const char *middle, const char *name,
                                       size_t name_nbytes)
{
    char path[PTH_LONGEST_PATH];
    size_t nbytes = strlen(middle);
    if (p->folder_nbytes > sizeof path / 2 || name_nbytes > PTH_LONGEST_KEY)
        return NULL;
    memcpy(path, p->folder, p->folder_nbytes);
    memcpy(path + p->folder_nbytes, middle, nbytes);
    nbytes += p->folder_nbytes;
    if (name_nbytes > 0)
        memcpy(path + nbytes, name, name_nbytes);
    return ek_zip_find(&p->zip, path, nbytes + name_nbytes);
}

static int zipped_storage(const ek_pth_file *p, const char *key, size_t key_nbytes,
                          ek_pth_storage *s)
{
    const ek_zip_entry *entry = zipped_find(p, "data/", key, key_nbytes);
    if (!entry)
        return EK_FAIL_IN(EK_E_FORMAT, p, "storage \"%.*s\" is missing",
                          key_nbytes < 200 ? (int)key_nbytes : 200, key);
    EK_TRY(ek_zip_view(&p->zip, entry, &s->bytes));
    s->count = (int64_t)(entry->nbytes / ek_element_size(s->element));
    return 0;
}

/* Checks the byte order, which is an entry of the archive since PyTorch 2.1. Without this entry it
 * is little. */
static int zipped_check_order(const ek_pth_file *p)
{
    static const char big[] = "big";
    const unsigned char *bytes = NULL;
    const ek_zip_entry *entry = zipped_find(p, "byteorder", "", 0);
    if (!entry)
        return 0;
    EK_TRY(ek_zip_view(&p->zip, entry, &bytes));
    if (entry->nbytes == sizeof big - 1 && memcmp(bytes, big, sizeof big - 1) == 0)
        return EK_FAIL_IN(EK_E_FORMAT, p,
                          "its numbers are big-endian; little-endian ones are read");
    return 0;
}

/* Refuses files of torch.jit.save, which torch.load, too, recognises by this entry. */
static int zipped_check_program(const ek_pth_file *p)
{
    return zipped_find(p, "constants.pkl", "", 0)
               ? EK_FAIL_IN(EK_E_FORMAT, p,
                            "a TorchScript file, which holds a program; what torch.save writes of "
                            "the module's state_dict() is read")
               : 0;
}

/* Finds data.pkl, which lies in a folder of any name, and reads it. */
static int zipped_open(ek_pth_file *p, const ek_safetensors *file)
{
    static const char pickled[] = "data.pkl";
    const size_t length = sizeof pickled - 1;
    p->zip =
        (ek_zip){.what = p->what, .path = p->path, .bytes = file->bytes, .nbytes = file->nbytes};
    EK_TRY(ek_zip_open(&p->zip));
    for (int i = 0; i < p->zip.count; i++) {
        const ek_zip_entry *e = &p->zip.entries[i];
        size_t folder = e->name_nbytes < length ? 0 : e->name_nbytes - length;
        if (e->name_nbytes < length || memcmp(e->name + folder, pickled, length) != 0 ||
            (folder > 0 && e->name[folder - 1] != '/'))
            continue;
        p->folder = e->name;
        p->folder_nbytes = folder;
        EK_TRY(zipped_check_program(p));
        EK_TRY(zipped_check_order(p));
        EK_TRY(ek_zip_view(&p->zip, e, &p->pickle.bytes));
        p->pickle.nbytes = (size_t)e->nbytes;
        return ek_pickle_read(&p->pickle);
    }
    return EK_FAIL_IN(EK_E_FORMAT, p, "a zip archive without data.pkl, which torch.save writes");
}

/* ---- files from before PyTorch 1.6 ---- */

/* A storage behind the pickles. */
typedef struct old_storage {
    const char *key;
    size_t key_nbytes;
    const ek_element *element;
    const unsigned char *bytes; /* NULL until it is found */
    uint64_t count;
} old_storage;

/* PROTO 2, then LONG1 with ten bytes: torch.serialization.MAGIC_NUMBER, then STOP. */
static const unsigned char old_magic[] = {0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46,
                                          0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, '.'};

bool ek_pth_is_old(const unsigned char *bytes, size_t nbytes)
{
    return nbytes >= sizeof old_magic && memcmp(bytes, old_magic, sizeof old_magic) == 0;
}

static int old_compare(const void *a, const void *b)
{
    const old_storage *x = a, *y = b;
    size_t nbytes = x->key_nbytes < y->key_nbytes ? x->key_nbytes : y->key_nbytes;
    int order = memcmp(x->key, y->key, nbytes);
    return order ? order : (x->key_nbytes > y->key_nbytes) - (x->key_nbytes < y->key_nbytes);
}

static old_storage *old_find(const ek_pth_file *p, const char *key, size_t key_nbytes)
{
    const old_storage wanted = {.key = key, .key_nbytes = key_nbytes};
    return p->storage_count == 0 ? NULL
                                 : bsearch(&wanted, p->storages, (size_t)p->storage_count,
                                           sizeof *p->storages, old_compare);
}

/* Reads a storage's persistent id: ("storage", class, key, location, count, ...). False if the
 * object is none. */
static bool persistent_storage(const ek_pth_file *p, int object, old_storage *s)
{
    const ek_pickle *pickle = &p->pickle;
    const ek_pickle_object *o = object < 0 ? NULL : &pickle->objects[object];
    int id = o && o->kind == EK_PICKLE_PERSISTENT ? o->as.persistent : -1;
    int key = ek_pickle_item(pickle, id, 2);
    if (!ek_pickle_is_text(pickle, ek_pickle_item(pickle, id, 0), "storage") || key < 0 ||
        pickle->objects[key].kind != EK_PICKLE_TEXT ||
        pickle->objects[key].as.text.nbytes > PTH_LONGEST_KEY)
        return false;
    *s = (old_storage){.key = pickle->objects[key].as.text.bytes,
                       .key_nbytes = pickle->objects[key].as.text.nbytes,
                       .element = ek_pth_element(p, ek_pickle_item(pickle, id, 1))};
    return true;
}

/* Lists the storages that the pickle names, each once. */
static int old_list(ek_pth_file *p)
{
    old_storage s = {.key = NULL};
    int kept = 0;
    for (int i = 0; i < p->pickle.count; i++) {
        if (!persistent_storage(p, i, &s) || !s.element)
            continue;
        EK_TRY(ek_grow(&p->storages, &p->storage_room, p->storage_count + 1));
        p->storages[p->storage_count++] = s;
    }
    if (p->storage_count == 0)
        return 0;
    qsort(p->storages, (size_t)p->storage_count, sizeof *p->storages, old_compare);
    for (int i = 1; i < p->storage_count; i++)
        if (old_compare(&p->storages[kept], &p->storages[i]) != 0)
            p->storages[++kept] = p->storages[i];
    p->storage_count = kept + 1;
    return 0;
}

/* Finds the storages' elements after the pickles, in the order of the list `keys`. A count of 8
 * bytes precedes the elements of each storage. */
static int old_find_elements(ek_pth_file *p, int keys)
{
    ek_pickle *pickle = &p->pickle;
    int key_count;
    const int *items = ek_pickle_items(pickle, keys, &key_count);
    if (pickle->objects[keys].kind != EK_PICKLE_LIST)
        return EK_FAIL_IN(EK_E_FORMAT, p, "damaged: the list of storages is missing");
    for (int i = 0; i < key_count; i++) {
        const ek_pickle_object *key = &pickle->objects[items[i]];
        old_storage *s = key->kind == EK_PICKLE_TEXT
                             ? old_find(p, key->as.text.bytes, key->as.text.nbytes)
                             : NULL;
        size_t left = pickle->nbytes - pickle->at;
        const unsigned char *at = pickle->bytes + pickle->at;
        uint64_t count = 0;
        if (!s)
            return EK_FAIL_IN(EK_E_FORMAT, p, "damaged: storage %d has no type", i);
        for (int b = 0; b < 8 && left >= 8; b++)
            count |= (uint64_t)at[b] << 8 * b;
        if (left < 8 || count > (left - 8) / ek_element_size(s->element))
            return EK_FAIL_IN(EK_E_FORMAT, p, "truncated: storage %d", i);
        s->bytes = at + 8;
        s->count = count;
        pickle->at += 8 + (size_t)count * ek_element_size(s->element);
    }
    return 0;
}

/* Reads the pickles: magic number, protocol, facts about the system, the object, the storages'
 * keys. */
static int old_open(ek_pth_file *p, const ek_safetensors *file)
{
    enum { SYSTEM = 2, OBJECT, KEYS, PICKLES };
    int objects[PICKLES];
    int64_t little = 1;
    p->pickle.bytes = file->bytes;
    p->pickle.nbytes = file->nbytes;
    for (int i = 0; i < PICKLES; i++) {
        objects[i] = ek_pickle_read(&p->pickle);
        EK_TRY(objects[i]);
    }
    int order = ek_pickle_value(&p->pickle, objects[SYSTEM], "little_endian");
    if (ek_pickle_integer(&p->pickle, order, &little) && !little)
        return EK_FAIL_IN(EK_E_FORMAT, p,
                          "its numbers are big-endian; little-endian ones are read");
    EK_TRY(old_list(p));
    EK_TRY(old_find_elements(p, objects[KEYS]));
    return objects[OBJECT];
}

/* ---- both ---- */

int ek_pth_file_open(ek_pth_file *p, const ek_safetensors *file)
{
    p->what = p->pickle.what = "pth";
    p->path = p->pickle.path = file->path;
    return ek_zip_begins(file->bytes, file->nbytes) ? zipped_open(p, file) : old_open(p, file);
}

void ek_pth_file_close(ek_pth_file *p)
{
    ek_zip_close(&p->zip);
    ek_pickle_close(&p->pickle);
    free(p->storages);
    p->storages = NULL;
}

int ek_pth_file_storage(const ek_pth_file *p, int object, const char *name, ek_pth_storage *s)
{
    old_storage found = {.key = NULL};
    if (!persistent_storage(p, object, &found))
        return EK_FAIL_IN(EK_E_FORMAT, p, "\"%.200s\" has no storage", name);
    if (!found.element)
        return EK_FAIL_IN(EK_E_FORMAT, p, "\"%.200s\" lies in a storage of unknown type", name);
    s->element = found.element;
    if (p->zip.entries)
        return zipped_storage(p, found.key, found.key_nbytes, s);
    const old_storage *old = old_find(p, found.key, found.key_nbytes);
    if (!old || !old->bytes || old->element != found.element)
        return EK_FAIL_IN(EK_E_FORMAT, p, "the storage of \"%.200s\" is missing", name);
    s->bytes = old->bytes;
    s->count = (int64_t)old->count;
    return 0;
}
