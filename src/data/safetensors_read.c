/* safetensors_read.c: opens files of named tensors and gives what is in them. */
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "core/file.h"
#include "data/pth.h"
#include "data/safetensors.h"
#include "data/safetensors_set.h"

/* ---- opening and closing ---- */

/* Reads the tensors' names and places. `archive`: those of torch.save's files too. */
static int safetensors_read_names(ek_safetensors *file, bool archive)
{
    if (!ek_pth_begins(file->bytes, file->nbytes))
        return ek_safetensors_read_header(file);
    return archive ? ek_pth_read(file)
                   : EK_FAIL(EK_E_FORMAT,
                             "safetensors: %s was written by torch.save; ek_archive_open reads it",
                             file->path);
}

/* Takes the mapping over, also after an error. */
static ek_safetensors *safetensors_new(const char *path, ek_mapped mapped)
{
    ek_safetensors *file = ek_calloc(1, sizeof *file);
    char *copy = file ? ek_strdup(path) : NULL;
    if (!copy) {
        ek_file_unmap(&mapped);
        free(file);
        return NULL;
    }
    file->path = copy;
    file->bytes = mapped.bytes;
    file->nbytes = mapped.nbytes;
    return file;
}

/* Returns the file if it was read, else closes it and returns NULL. */
static ek_safetensors *safetensors_opened(ek_safetensors *file, int rc)
{
    if (rc == 0)
        return file;
    ek_safetensors_close(file);
    return NULL;
}

ek_safetensors *ek_safetensors_open_mapped(const char *path, ek_mapped mapped, bool archive)
{
    ek_safetensors *file = safetensors_new(path, mapped);
    return file ? safetensors_opened(file, safetensors_read_names(file, archive)) : NULL;
}

ek_safetensors *ek_safetensors_open(const char *path)
{
    ek_mapped mapped;
    if (ek_check_pointer("safetensors", "the path", path) < 0 ||
        ek_file_map("safetensors", path, &mapped) < 0)
        return NULL;
    return ek_safetensors_open_mapped(path, mapped, false);
}

static int safetensors_map(void *user, const char *path, ek_mapped *mapped)
{
    (void)user;
    return ek_file_map("safetensors", path, mapped);
}

ek_safetensors *ek_tensor_file_open(const char *path, ek_tensor_file_map *map, void *user)
{
    static const char index[] = EK_SET_INDEX;
    ek_mapped mapped;
    map = map ? map : safetensors_map;
    if (ek_check_pointer("safetensors", "the path", path) < 0 || map(user, path, &mapped) < 0)
        return NULL;
    size_t length = strlen(path), ending = strlen(index);
    if (length < ending || strcmp(path + length - ending, index) != 0)
        return ek_safetensors_open_mapped(path, mapped, true);
    ek_safetensors *file = safetensors_new(path, mapped);
    return file ? safetensors_opened(file, ek_set_read(file, map, user)) : NULL;
}

void ek_safetensors_close(ek_safetensors *file)
{
    EK_RELEASES("ek_safetensors_close", file);
    ek_file_unmap(&(ek_mapped){file->bytes, file->nbytes});
    free(file->header);
    free(file->entries);
    free(file->by_name);
    free(file->metadata);
    for (int i = 0; i < file->part_count; i++)
        ek_safetensors_close(file->parts[i]);
    free(file->parts);
    for (int i = 0; i < file->owned_count; i++)
        free(file->owned[i]);
    free(file->owned);
    free(file->path);
    ek_retire(file, EK_RETIRABLE(sizeof *file), "file", file);
}

void *ek_safetensors_keep(ek_safetensors *file, const void *bytes, size_t nbytes, size_t room)
{
    enum { BLOCK = 1 << 14, ALIGNMENT = sizeof(int64_t) };
    size_t pad = room % ALIGNMENT == 0 ? -(uintptr_t)file->owned_at % ALIGNMENT : 0;
    if (!file->owned_at || file->owned_left < pad + room) {
        size_t all = room < BLOCK ? BLOCK : room;
        int grown = ek_grow(&file->owned, &file->owned_room, file->owned_count + 1);
        char *block = grown < 0 ? NULL : ek_calloc(1, all);
        if (!block)
            return NULL;
        file->owned[file->owned_count++] = file->owned_at = block;
        file->owned_left = all;
        pad = 0;
    }
    char *copy = file->owned_at + pad;
    file->owned_at = copy + room;
    file->owned_left -= pad + room;
    return nbytes > 0 ? memcpy(copy, bytes, nbytes) : copy;
}

/* ---- looking inside ---- */

static int safetensors_check(const ek_safetensors *file)
{
    return ek_check_handle("safetensors", "the file", file);
}

int ek_safetensors_count(const ek_safetensors *file)
{
    return file ? file->count : safetensors_check(file);
}

const char *ek_safetensors_name(const ek_safetensors *file, int index)
{
    if (safetensors_check(file) < 0)
        return NULL;
    if (index < 0 || index >= file->count)
        return EK_FAIL_NULL(EK_E_INVALID,
                            "safetensors: %s has %d tensors, there is none with index %d",
                            file->path, file->count, index);
    return file->entries[index].name;
}

const char *ek_safetensors_sorted(const ek_safetensors *file, int index)
{
    return file->entries[file->by_name[index]].name;
}

int ek_safetensors_place(const ek_safetensors *file, const char *begin, const char *end)
{
    int low = 0, high = file->count;
    size_t length = strlen(begin);
    while (low < high) {
        int middle = low + (high - low) / 2;
        const char *name = ek_safetensors_sorted(file, middle);
        int order = strncmp(name, begin, length);
        if ((order ? order : strcmp(name + length, end)) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int ek_safetensors_find(const ek_safetensors *file, const char *begin, const char *end)
{
    int place = ek_safetensors_place(file, begin, end);
    const char *name = place < file->count ? ek_safetensors_sorted(file, place) : NULL;
    size_t length = strlen(begin);
    return name && strncmp(name, begin, length) == 0 && strcmp(name + length, end) == 0 ? place
                                                                                        : -1;
}

int ek_safetensors_view(const ek_safetensors *file, const char *name, ek_array_view *view)
{
    EK_TRY(safetensors_check(file));
    int index = name ? ek_safetensors_find(file, name, "") : -1;
    if (index < 0)
        return EK_FAIL(EK_E_INVALID, "safetensors: %s has no tensor \"%.200s\"", file->path,
                       name ? name : "NULL");
    const ek_safetensors_entry *e = &file->entries[file->by_name[index]];
    if (e->element->unread)
        return EK_FAIL(EK_E_DTYPE,
                       "safetensors: %s: tensor \"%.200s\" is %s, which is not read; "
                       "all but U64, C64, F4 and F6 are",
                       file->path, e->name, e->element->name);
    if (e->ndim > EK_MAX_DIMS)
        return EK_FAIL(
            EK_E_SHAPE,
            "safetensors: %s: tensor \"%.200s\" has %d dimensions; at most %d are possible",
            file->path, e->name, e->ndim, EK_MAX_DIMS);
    if (e->excess)
        return EK_FAIL(EK_E_FORMAT,
                       "safetensors: %s: tensor \"%.200s\" is expanded from fewer elements, or "
                       "shared: with it the file's tensors are more than %d times the file; save "
                       "a clone",
                       file->path, e->name, EK_SAFETENSORS_SHARE);
    size_t nbytes = (size_t)(e->end - e->begin);
    *view = (ek_array_view){.dtype = e->element->dtype,
                            .shape.ndim = e->ndim,
                            .element = e->element,
                            .elements = e->elements,
                            .count = nbytes / ek_element_size(e->element),
                            .nbytes = nbytes,
                            .strides = e->strided ? e->sizes + EK_MAX_DIMS : NULL};
    if (e->ndim > 0)
        memcpy(view->shape.dims, e->sizes, (size_t)e->ndim * sizeof *e->sizes);
    return 0;
}

bool ek_array_equal(const ek_array_view *x, const ek_array_view *y)
{
    if (x->element != y->element || !ek_shape_equal(&x->shape, &y->shape))
        return false;
    if (x->strides || y->strides)
        return x->strides && y->strides && x->elements == y->elements &&
               memcmp(x->strides, y->strides, sizeof(int64_t[EK_MAX_DIMS])) == 0;
    return x->nbytes == 0 || memcmp(x->elements, y->elements, x->nbytes) == 0;
}

/* Copies `count` neighbours, converted. */
static void array_copy_run(const ek_array_view *view, const char *from, char *to, size_t count)
{
    if (view->element->widen)
        view->element->widen(from, to, count);
    else if (count > 0)
        memcpy(to, from, count * ek_element_size(view->element));
}

void ek_array_copy(const ek_array_view *view, void *to)
{
    const size_t size = ek_element_size(view->element), wide = ek_dtype_size(view->dtype);
    const char *from = view->elements;
    int64_t at[EK_MAX_DIMS] = {0};
    if (!view->strides) {
        array_copy_run(view, from, to, view->count);
        return;
    }
    for (size_t i = 0; i < view->count; i++) {
        array_copy_run(view, from, (char *)to + i * wide, 1);
        for (int d = view->shape.ndim - 1; d >= 0; d--) {
            from += (size_t)view->strides[d] * size;
            if (++at[d] < view->shape.dims[d])
                break;
            from -= (size_t)view->strides[d] * size * (size_t)at[d];
            at[d] = 0;
        }
    }
}

ek_tensor *ek_array_tensor(const ek_array_view *view, ek_device device)
{
    if (ek_array_is_plain(view))
        return ek_from_data(view->elements, view->shape, view->dtype, .device = device);
    size_t nbytes;
    if (__builtin_mul_overflow(view->count, ek_dtype_size(view->dtype), &nbytes))
        nbytes = SIZE_MAX;
    void *elements = ek_realloc(NULL, nbytes ? nbytes : 1);
    if (!elements)
        return NULL;
    ek_array_copy(view, elements);
    ek_tensor *tensor = ek_from_data(elements, view->shape, view->dtype, .device = device);
    free(elements);
    return tensor;
}

ek_tensor *ek_safetensors_read(const ek_safetensors *file, const char *name)
{
    ek_array_view view = {0};
    if (ek_safetensors_view(file, name, &view) < 0)
        return NULL;
    return ek_array_tensor(&view, ek_cpu());
}

const char *ek_safetensors_metadata(const ek_safetensors *file, const char *key)
{
    if (safetensors_check(file) < 0)
        return NULL;
    return key ? ek_safetensors_find_metadata(file, key) : NULL;
}
