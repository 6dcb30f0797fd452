/* safetensors_read.c: opens files of named tensors and gives what is in them. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/error.h"
#include "core/file.h"
#include "data/safetensors.h"

/* ---- opening and closing ---- */

static int safetensors_map_descriptor(ek_safetensors *file, int descriptor)
{
    if (file->nbytes == 0)
        return 0; /* an empty file can't be mapped; reading its header gives the error */
    void *bytes = mmap(NULL, file->nbytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (bytes == MAP_FAILED)
        return ek_file_fail("safetensors", "read", file->path);
    file->bytes = bytes;
    return 0;
}

static int safetensors_map(ek_safetensors *file)
{
    int descriptor = ek_file_open("safetensors", file->path, &file->nbytes);
    EK_TRY(descriptor);
    int status = safetensors_map_descriptor(file, descriptor);
    close(descriptor); /* the mapping stays valid */
    return status;
}

ek_safetensors *ek_safetensors_open(const char *path)
{
    if (ek_check_pointer("safetensors", "the path", path) < 0)
        return NULL;
    ek_safetensors *file = ek_calloc(1, sizeof *file);
    if (!file)
        return NULL;
    file->path = ek_strdup(path);
    if (file->path && safetensors_map(file) == 0 && ek_safetensors_read_header(file) == 0)
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

static int safetensors_check(const ek_safetensors *file)
{
    return ek_check_given("safetensors", "the file", file);
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
    size_t nbytes = (size_t)(e->end - e->begin);
    *view = (ek_array_view){.dtype = e->element->dtype,
                            .shape.ndim = e->ndim,
                            .element = e->element,
                            .elements = file->elements + e->begin,
                            .count = nbytes / ek_element_size(e->element),
                            .nbytes = nbytes};
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
