/* safetensors_read.c: opens files of named tensors and gives what is in them. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/file.h"
#include "core/thread.h"
#include "data/safetensors_header.h"

/* ---- opening and closing ---- */

static int map_descriptor(ek_safetensors *file, int descriptor)
{
    if (file->nbytes == 0)
        return 0; /* nothing can be mapped; the header's reader says what is wrong */
    void *bytes = mmap(NULL, file->nbytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (bytes == MAP_FAILED)
        return ek_file_fail("safetensors", "read", file->path);
    file->bytes = bytes;
    return 0;
}

static int map_file(ek_safetensors *file)
{
    int descriptor = ek_file_open("safetensors", file->path, &file->nbytes);
    EK_TRY(descriptor);
    int status = map_descriptor(file, descriptor);
    close(descriptor); /* the mapping stays */
    return status;
}

ek_safetensors *ek_safetensors_open(const char *path)
{
    if (!path) {
        EK_FAIL(EK_E_INVALID, "safetensors: the path is NULL");
        return NULL;
    }
    ek_safetensors *file = ek_calloc(1, sizeof *file);
    if (!file)
        return NULL;
    file->path = ek_strdup(path);
    if (file->path && map_file(file) == 0 && ek_safetensors_read_header(file) == 0)
        return file;
    ek_safetensors_close(file);
    return NULL;
}

void ek_safetensors_close(ek_safetensors *file)
{
    if (!file)
        return;
    if (file->bytes)
        munmap((void *)(uintptr_t)file->bytes, file->nbytes);
    free(file->header);
    free(file->entries);
    free(file->by_name);
    free(file->metadata);
    free(file->path);
    free(file);
}

/* ---- looking inside ---- */

static int fail_closed(void)
{
    return ek_error_status() < 0 ? ek_error_pending()
                                 : EK_FAIL(EK_E_INVALID, "safetensors: the file is NULL");
}

int ek_safetensors_count(const ek_safetensors *file)
{
    return file ? file->count : fail_closed();
}

const char *ek_safetensors_name(const ek_safetensors *file, int index)
{
    if (!file) {
        fail_closed();
        return NULL;
    }
    if (index < 0 || index >= file->count) {
        EK_FAIL(EK_E_INVALID, "safetensors: %s has %d tensors, there is none with index %d",
                file->path, file->count, index);
        return NULL;
    }
    return file->entries[index].name;
}

const char *ek_safetensors_sorted(const ek_safetensors *file, int index)
{
    return file->entries[file->by_name[index]].name;
}

static const ek_safetensors_entry *find(const ek_safetensors *file, const char *name)
{
    int low = 0, high = file->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        const ek_safetensors_entry *e = &file->entries[file->by_name[middle]];
        int order = strcmp(e->name, name);
        if (order == 0)
            return e;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

int ek_safetensors_view(const ek_safetensors *file, const char *name, ek_array_view *view)
{
    if (!file)
        return fail_closed();
    const ek_safetensors_entry *e = name ? find(file, name) : NULL;
    if (!e)
        return EK_FAIL(EK_E_INVALID, "safetensors: %s has no tensor \"%.200s\"", file->path,
                       name ? name : "NULL");
    const ek_safetensors_dtype *dtype = ek_safetensors_dtype_at(e->position);
    if (!dtype->element)
        return EK_FAIL(EK_E_DTYPE,
                       "safetensors: %s: tensor \"%.200s\" is %s, which is not read; "
                       "all but U64, C64, F4 and F6 are",
                       file->path, e->name, dtype->name);
    if (e->ndim > EK_MAX_DIMS)
        return EK_FAIL(
            EK_E_SHAPE,
            "safetensors: %s: tensor \"%.200s\" has %d dimensions; at most %d are possible",
            file->path, e->name, e->ndim, EK_MAX_DIMS);
    *view = (ek_array_view){.dtype = dtype->element->dtype,
                            .shape.ndim = e->ndim,
                            .element = dtype->element,
                            .elements = file->elements + e->begin,
                            .count = (size_t)(e->end - e->begin) / dtype->element->size,
                            .nbytes = (size_t)(e->end - e->begin)};
    memcpy(view->shape.dims, e->sizes, sizeof view->shape.dims);
    return 0;
}

void ek_array_copy(const ek_array_view *view, void *to)
{
    if (view->element->widen)
        view->element->widen(view->elements, to, view->count);
    else if (view->nbytes > 0)
        memcpy(to, view->elements, view->nbytes);
}

ek_tensor *ek_array_tensor(const ek_array_view *view, ek_device device)
{
    if (!view->element->widen)
        return ek_from_data(view->elements, view->shape, view->dtype, .device = device);
    void *elements = ek_element_widened(view->element, view->elements, view->count);
    if (!elements)
        return NULL;
    ek_tensor *tensor = ek_from_data(elements, view->shape, view->dtype, .device = device);
    free(elements);
    return tensor;
}

ek_tensor *ek_safetensors_read(const ek_safetensors *file, const char *name)
{
    ek_array_view view;
    if (ek_safetensors_view(file, name, &view) < 0)
        return NULL;
    return ek_array_tensor(&view, ek_cpu());
}

const char *ek_safetensors_metadata(const ek_safetensors *file, const char *key)
{
    if (!file || !key) {
        if (!file)
            fail_closed();
        return NULL;
    }
    return ek_safetensors_find_metadata(file, key);
}
