/* pth.c: see pth.h. The layouts are those of torch/serialization.py and torch/_utils.py. */
#include "data/pth.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "data/pth_file.h"

/* The limits of nesting, and of the bytes of names as a multiple of the file's size. Objects may be
 * shared, so that a small file can have very many names. */
enum {
    PTH_DEPTH = 100,
    PTH_NAME_SHARE = 4,
    PTH_FREE = 1 << 16,
    PTH_FREE_ELEMENTS = 1 << 22, /* bytes of shared elements that a file of any size may have */
    PTH_LONGEST_NAME = 4096
};

/* The walk through the objects of one file. */
typedef struct pth {
    const char *what, *path; /* for EK_FAIL_IN */
    ek_safetensors *file;
    ek_pth_file saved;
    char name[PTH_LONGEST_NAME]; /* of the object that is being visited */
    size_t name_nbytes;
    size_t names_left;     /* bytes of names and texts that may still be added */
    size_t visits_left;    /* objects that may still be visited */
    int64_t elements_left; /* bytes of tensors that may still be added to be read */
    int left_out;          /* tensors of kinds that are not read */
    char first_left_out[256];
} pth;

/* ---- what the file has: tensors, numbers, texts ---- */

/* Returns a copy of the present name that lives as long as the file; NULL on error. */
static char *pth_keep_name(pth *p)
{
    size_t nbytes = p->name_nbytes + 1;
    if (nbytes > p->names_left) {
        EK_FAIL_IN(EK_E_FORMAT, p,
                   "its objects are shared so often that their names take more "
                   "than %d times the file",
                   PTH_NAME_SHARE);
        return NULL;
    }
    p->names_left -= nbytes;
    return ek_safetensors_keep(p->file, p->name, p->name_nbytes, nbytes);
}

static int pth_add_entry(pth *p, ek_safetensors_entry entry)
{
    ek_safetensors *file = p->file;
    EK_TRY(ek_grow(&file->entries, &file->room, file->count + 1));
    entry.name = pth_keep_name(p);
    if (!entry.name)
        return ek_error_pending();
    file->entries[file->count++] = entry;
    return 0;
}

static int pth_add_number(pth *p, const char *element, const void *number)
{
    const char *kept = ek_safetensors_keep(p->file, number, sizeof(int64_t), sizeof(int64_t));
    ek_safetensors_entry entry = {.element = ek_element_find(element),
                                  .end = sizeof(int64_t),
                                  .elements = (const unsigned char *)kept};
    return kept ? pth_add_entry(p, entry) : ek_error_pending();
}

static int pth_add_text(pth *p, const char *text, size_t nbytes)
{
    ek_safetensors *file = p->file;
    EK_TRY(ek_grow(&file->metadata, &file->metadata_room, file->metadata_count + 1));
    if (nbytes + 1 > p->names_left)
        return EK_FAIL_IN(EK_E_FORMAT, p, "its texts are shared too often");
    p->names_left -= nbytes + 1;
    const char *key = pth_keep_name(p);
    const char *value = key ? ek_safetensors_keep(file, text, nbytes, nbytes + 1) : NULL;
    if (!value)
        return ek_error_pending();
    file->metadata[file->metadata_count++] = (ek_metadata){key, value};
    return 0;
}

/* ---- tensors ---- */

/* Sizes and strides of a tensor of `ndim` dimensions. */
typedef struct pth_layout {
    int64_t sizes[EK_MAX_DIMS], strides[EK_MAX_DIMS];
    int ndim; /* if it is more than EK_MAX_DIMS, only so many are kept */
} pth_layout;

/* Reads sizes and strides, which are tuples of one length. */
static int pth_read_layout(const pth *p, int sizes, int strides, pth_layout *l)
{
    const ek_pickle *pickle = &p->saved.pickle;
    int count, others;
    const int *size_items = ek_pickle_items(pickle, sizes, &count);
    const int *stride_items = ek_pickle_items(pickle, strides, &others);
    if (sizes < 0 || pickle->objects[sizes].kind != EK_PICKLE_LIST || strides < 0 ||
        pickle->objects[strides].kind != EK_PICKLE_LIST || others != count)
        return EK_FAIL_IN(EK_E_FORMAT, p, "\"%.200s\" has no sizes, or strides for others",
                          p->name);
    for (int i = 0; i < count; i++) {
        int64_t size = 0, stride = 0;
        if (!ek_pickle_integer(pickle, size_items[i], &size) ||
            !ek_pickle_integer(pickle, stride_items[i], &stride) || size < 0 || stride < 0)
            return EK_FAIL_IN(EK_E_FORMAT, p, "\"%.200s\": size or stride %d is no natural number",
                              p->name, i);
        if (i >= EK_MAX_DIMS)
            continue;
        l->sizes[i] = size;
        l->strides[i] = size == 1 ? 0 : stride;
    }
    l->ndim = count;
    return 0;
}

/* Counts the bytes of a tensor's elements. Tensors may share a storage, and an expanded tensor
 * repeats elements, so that a small file can have very large tensors. Tensors beyond the limit
 * aren't read. */
static void pth_charge_elements(pth *p, ek_safetensors_entry *e)
{
    e->excess = e->end > p->elements_left;
    if (!e->excess)
        p->elements_left -= e->end;
}

/* Checks that all elements lie in the storage from `offset` on. Sets e->end to their size in bytes
 * if they were row-major, and e->strided. Tensors of too many dimensions are refused when read. */
static int pth_check_layout(const pth *p, const ek_pth_storage *s, int64_t offset,
                            const pth_layout *l, ek_safetensors_entry *e)
{
    int64_t count = 1, last = offset, step, next = 1;
    e->ndim = l->ndim;
    if (e->ndim > EK_MAX_DIMS)
        return 0;
    bool fits = offset >= 0;
    for (int i = e->ndim - 1; i >= 0; i--) {
        if (l->sizes[i] != 1 && l->strides[i] != next)
            e->strided = true;
        next = l->sizes[i] == 0 || __builtin_mul_overflow(next, l->sizes[i], &next) ? -1 : next;
        fits = fits && !__builtin_mul_overflow(count, l->sizes[i], &count);
        if (l->sizes[i] > 0)
            fits = fits && !__builtin_mul_overflow(l->sizes[i] - 1, l->strides[i], &step) &&
                   !__builtin_add_overflow(last, step, &last);
    }
    for (int i = 0; i < e->ndim; i++)
        if (l->sizes[i] == 0)
            return e->strided = false, e->end = 0, 0;
    if (!fits || last >= s->count)
        return EK_FAIL_IN(EK_E_FORMAT, p, "\"%.200s\" leaves its storage of %" PRId64 " elements",
                          p->name, s->count);
    if (__builtin_mul_overflow(count, (int64_t)ek_element_size(s->element), &e->end))
        e->end = INT64_MAX;
    return 0;
}

/* Adds the tensor of torch._utils._rebuild_tensor_v2(storage, offset, sizes, strides, ...). Version
 * 3 has an untyped storage, and a dtype after `requires_grad` and hooks. */
static int pth_add_tensor(pth *p, int arguments, bool typed)
{
    const ek_pickle *pickle = &p->saved.pickle;
    ek_safetensors_entry e = {.name = NULL};
    ek_pth_storage s = {NULL, NULL, 0};
    pth_layout layout = {.ndim = 0};
    int64_t offset = 0;
    EK_TRY(ek_pth_file_storage(&p->saved, ek_pickle_item(pickle, arguments, 0), p->name, &s));
    if (!typed) {
        int64_t nbytes = s.count * (int64_t)ek_element_size(s.element);
        s.element = ek_pth_element(&p->saved, ek_pickle_item(pickle, arguments, 6));
        if (!s.element)
            return EK_FAIL_IN(EK_E_FORMAT, p, "\"%.200s\" has an unknown dtype", p->name);
        s.count = nbytes / (int64_t)ek_element_size(s.element);
    }
    if (!ek_pickle_integer(pickle, ek_pickle_item(pickle, arguments, 1), &offset))
        return EK_FAIL_IN(EK_E_FORMAT, p, "\"%.200s\" has no offset", p->name);
    EK_TRY(pth_read_layout(p, ek_pickle_item(pickle, arguments, 2),
                           ek_pickle_item(pickle, arguments, 3), &layout));
    EK_TRY(pth_check_layout(p, &s, offset, &layout, &e));
    pth_charge_elements(p, &e);
    size_t kept = (e.strided ? 2 : 1) * sizeof layout.sizes; /* the strides follow the sizes */
    e.sizes = ek_safetensors_keep(p->file, layout.sizes, kept, kept);
    if (!e.sizes)
        return EK_E_NO_MEMORY;
    e.element = s.element;
    e.elements = e.end > 0 ? s.bytes + (size_t)offset * ek_element_size(s.element) : s.bytes;
    return pth_add_entry(p, e);
}

/* ---- objects ---- */

static int pth_add(pth *p, int object, int depth);

/* Counts visits up to a limit: a small file can share its objects so that a walk would never end.
 */
static int pth_charge(pth *p, int visits)
{
    if ((size_t)visits > p->visits_left)
        return EK_FAIL_IN(EK_E_FORMAT, p,
                          "its objects are shared so often that they are more than "
                          "the file has bytes");
    p->visits_left -= (size_t)visits;
    return 0;
}

/* Adds an object below the present name. */
static int pth_add_below(pth *p, const char *part, size_t nbytes, int object, int depth)
{
    size_t before = p->name_nbytes, dot = before > 0;
    if (nbytes + dot >= sizeof p->name - before)
        return EK_FAIL_IN(EK_E_FORMAT, p, "a name of more than %d bytes", PTH_LONGEST_NAME);
    if (depth >= PTH_DEPTH)
        return EK_FAIL_IN(EK_E_FORMAT, p, "\"%.80s\" nests more than %d deep", p->name, PTH_DEPTH);
    p->name[before] = '.';
    memcpy(p->name + before + dot, part, nbytes);
    p->name_nbytes += nbytes + dot;
    p->name[p->name_nbytes] = '\0';
    int status = pth_add(p, object, depth + 1);
    p->name_nbytes = before;
    p->name[before] = '\0';
    return status;
}

/* Adds what has number `index`. */
static int pth_add_numbered(pth *p, int64_t index, int object, int depth)
{
    char text[24];
    int nbytes = snprintf(text, sizeof text, "%" PRId64, index);
    return pth_add_below(p, text, (size_t)nbytes, object, depth);
}

/* Adds a value by its key. Keys other than texts and whole numbers have no name here. */
static int pth_add_keyed(pth *p, int key, int value, int depth)
{
    const ek_pickle_object *k = &p->saved.pickle.objects[key];
    if (k->kind == EK_PICKLE_INT)
        return pth_add_numbered(p, k->as.integer, value, depth);
    if (k->kind != EK_PICKLE_TEXT || k->as.text.nbytes == 0 || k->has_nul)
        return 0;
    return pth_add_below(p, k->as.text.bytes, k->as.text.nbytes, value, depth);
}

/* Returns true if a list has a text that equals the text `key`. Texts that are too long for a name
 * aren't compared. */
static bool pth_list_has(const ek_pickle *pickle, int list, int key)
{
    int count;
    const int *items = ek_pickle_items(pickle, list, &count);
    const ek_pickle_object *k = &pickle->objects[key], *o;
    bool is_name = k->kind == EK_PICKLE_TEXT && k->as.text.nbytes < PTH_LONGEST_NAME;
    for (int i = 0; is_name && i < count; i++) {
        o = &pickle->objects[items[i]];
        if (o->kind == EK_PICKLE_TEXT && o->as.text.nbytes == k->as.text.nbytes &&
            memcmp(o->as.text.bytes, k->as.text.bytes, k->as.text.nbytes) == 0)
            return true;
    }
    return false;
}

/* Adds the values of a dictionary, or of another object with keys and values, by their keys. Keys
 * in the list `without` are left out. */
static int pth_add_pairs(pth *p, int object, int without, int depth)
{
    int count, others;
    const int *items = ek_pickle_items(&p->saved.pickle, object, &count);
    ek_pickle_items(&p->saved.pickle, without, &others);
    EK_TRY(pth_charge(p, count / 2));
    for (int i = 0; i + 1 < count; i += 2) {
        EK_TRY(pth_charge(p, others));
        if (!pth_list_has(&p->saved.pickle, without, items[i]))
            EK_TRY(pth_add_keyed(p, items[i], items[i + 1], depth));
    }
    return 0;
}

static int pth_add_list(pth *p, int object, int depth)
{
    int count;
    const int *items = ek_pickle_items(&p->saved.pickle, object, &count);
    for (int i = 0; i < count; i++)
        EK_TRY(pth_add_numbered(p, i, items[i], depth));
    return 0;
}

/* Adds a module that was saved whole, from the dictionary of its members. Buffers that its state
 * dictionary lacks are named in a set, which is a call with a list up to protocol 3. */
static int pth_add_module(pth *p, int state, int depth)
{
    static const char *const members[] = {"_parameters", "_buffers", "_modules"};
    const ek_pickle *pickle = &p->saved.pickle;
    int set = ek_pickle_value(pickle, state, "_non_persistent_buffers_set");
    if (set >= 0 && pickle->objects[set].kind == EK_PICKLE_CALL)
        set = ek_pickle_item(pickle, pickle->objects[set].as.call.arguments, 0);
    for (int i = 0; i < 3; i++)
        EK_TRY(
            pth_add_pairs(p, ek_pickle_value(pickle, state, members[i]), i == 1 ? set : -1, depth));
    return 0;
}

/* Records that a tensor of an unsupported kind was left out. Torch's functions that make such
 * tensors have names with this beginning. */
static void pth_note_left_out(pth *p, int callee)
{
    static const char begin[] = "_rebuild_";
    const ek_pickle *pickle = &p->saved.pickle;
    const ek_pickle_object *o = &pickle->objects[callee];
    int name = o->kind == EK_PICKLE_GLOBAL ? o->as.global.name : -1;
    o = name < 0 ? NULL : &pickle->objects[name];
    if (!o || o->as.text.nbytes < sizeof begin || memcmp(o->as.text.bytes, begin, sizeof begin - 1))
        return;
    if (p->left_out++ == 0)
        snprintf(p->first_left_out, sizeof p->first_left_out, "\"%.100s\" (%.*s)", p->name,
                 o->as.text.nbytes < 100 ? (int)o->as.text.nbytes : 100, o->as.text.bytes);
}

static int pth_add_call(pth *p, int object, int depth)
{
    const ek_pickle *pickle = &p->saved.pickle;
    const ek_pickle_object *o = &pickle->objects[object];
    int callee = o->as.call.callee, arguments = o->as.call.arguments, state = o->as.call.state;
    if (ek_pickle_is_global(pickle, callee, "torch._utils", "_rebuild_tensor_v2") ||
        ek_pickle_is_global(pickle, callee, "torch._utils", "_rebuild_tensor"))
        return pth_add_tensor(p, arguments, true);
    if (ek_pickle_is_global(pickle, callee, "torch._utils", "_rebuild_tensor_v3"))
        return pth_add_tensor(p, arguments, false);
    if (ek_pickle_is_global(pickle, callee, "torch._utils", "_rebuild_parameter") ||
        ek_pickle_is_global(pickle, callee, "torch._utils", "_rebuild_parameter_with_state") ||
        ek_pickle_is_global(pickle, callee, "torch", "Size") ||
        ek_pickle_is_global(pickle, callee, "torch", "device")) {
        int first = ek_pickle_item(pickle, arguments, 0);
        if (depth >= PTH_DEPTH)
            return EK_FAIL_IN(EK_E_FORMAT, p, "\"%.80s\" nests more than %d deep", p->name,
                              PTH_DEPTH);
        return first < 0 ? 0 : pth_add(p, first, depth + 1);
    }
    if (ek_pickle_is_global(pickle, callee, "collections", "OrderedDict") ||
        ek_pickle_is_global(pickle, callee, "collections", "defaultdict"))
        return pth_add_pairs(p, object, -1, depth);
    int count;
    ek_pickle_items(pickle, state, &count);
    EK_TRY(pth_charge(p, count));
    pth_note_left_out(p, callee);
    return ek_pickle_value(pickle, state, "_parameters") < 0 ? 0 : pth_add_module(p, state, depth);
}

/* Adds an object under the present name. */
static int pth_add(pth *p, int object, int depth)
{
    EK_TRY(pth_charge(p, 1));
    const ek_pickle_object *o = &p->saved.pickle.objects[object];
    switch (o->kind) {
    case EK_PICKLE_INT:
        return pth_add_number(p, "I64", &o->as.integer);
    case EK_PICKLE_FLOAT:
        return pth_add_number(p, "F64", &o->as.floating);
    case EK_PICKLE_TEXT:
        return pth_add_text(p, o->as.text.bytes, o->as.text.nbytes);
    case EK_PICKLE_LIST:
        return pth_add_list(p, object, depth);
    case EK_PICKLE_DICT:
        return pth_add_pairs(p, object, -1, depth);
    case EK_PICKLE_CALL:
        return pth_add_call(p, object, depth);
    default:
        return 0;
    }
}

/* ---- the file ---- */

bool ek_pth_begins(const unsigned char *bytes, size_t nbytes)
{
    return ek_zip_begins(bytes, nbytes) || ek_pth_is_old(bytes, nbytes);
}

int ek_pth_read(ek_safetensors *file)
{
    pth *p = ek_calloc(1, sizeof *p);
    if (!p)
        return EK_E_NO_MEMORY;
    p->what = "pth";
    p->path = file->path;
    p->file = file;
    p->names_left = file->nbytes * PTH_NAME_SHARE + PTH_FREE;
    p->visits_left = file->nbytes + PTH_FREE;
    p->elements_left = (int64_t)file->nbytes * EK_SAFETENSORS_SHARE + PTH_FREE_ELEMENTS;
    int status = ek_pth_file_open(&p->saved, file);
    if (status >= 0)
        status = pth_add(p, status, 0);
    if (status >= 0)
        status = ek_safetensors_sort(file);
    if (status >= 0 && p->left_out > 0)
        ek_log_line(EK_LOG_WARNING,
                    "pth: %s: %d %s left out, for instance %s: quantized, sparse and other tensors "
                    "without plain elements are not read",
                    p->path, p->left_out, p->left_out == 1 ? "tensor is" : "tensors are",
                    p->first_left_out);
    ek_pth_file_close(&p->saved);
    free(p);
    return status;
}
