/* image_folder.c: pictures in one directory per class, read when they are asked for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "data/dataset.h"
#include "data/picture_walk.h"
#include "evenkeel/data.h"

typedef struct image_folder {
    ek_dataset dataset;
    ek_texts classes;
    ek_texts paths; /* by class */
    int64_t *ends;  /* of each class's paths */
} image_folder;

/* ---- samples ---- */

static int64_t length(ek_dataset *dataset)
{
    return ((image_folder *)dataset)->paths.count;
}

/* The first class that ends behind the sample. */
static int64_t class_of(const image_folder *self, int64_t index)
{
    int64_t low = 0, high = self->classes.count - 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (self->ends[middle] > index)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static ek_value get(ek_dataset *dataset, int64_t index)
{
    const image_folder *self = (image_folder *)dataset;
    ek_tensor *picture = ek_read_image(ek_texts_at(&self->paths, index), 3);
    if (!picture)
        return ek_value_error();
    return EK_LIST(picture, ek_value_of_int(class_of(self, index)));
}

static void destroy(ek_dataset *dataset)
{
    image_folder *self = (image_folder *)dataset;
    ek_texts_free(&self->classes);
    ek_texts_free(&self->paths);
    free(self->ends);
}

static const ek_dataset_type type = {.name = "image_folder",
                                     .size = sizeof(image_folder),
                                     .length = length,
                                     .get = get,
                                     .destroy = destroy};

/* ---- what is there ---- */

/* Names the first of the classes without a picture, and counts the others. */
static int fail_empty(const image_folder *self, const char *root, int64_t count)
{
    enum { NAMED = 8 };
    char names[NAMED * 64] = "", more[40] = "";
    int64_t begin = 0, named = 0;
    for (int64_t i = 0; i < self->classes.count && named < NAMED; begin = self->ends[i++]) {
        if (self->ends[i] > begin)
            continue;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%.60s", named++ ? ", " : "",
                 ek_texts_at(&self->classes, i));
    }
    if (count > named)
        snprintf(more, sizeof more, " and %lld more", (long long)(count - named));
    return EK_FAIL(EK_E_INVALID, "image_folder: %.300s: no .png, .jpg or .jpeg file in %s %s%s",
                   root, count == 1 ? "class" : "classes", names, more);
}

static int find_pictures(image_folder *self, const char *root)
{
    int64_t empty = 0;
    self->ends = ek_calloc((size_t)self->classes.count, sizeof *self->ends);
    if (!self->ends)
        return EK_E_NO_MEMORY;
    for (int64_t i = 0; i < self->classes.count; i++) {
        ek_texts directory = {0};
        int64_t before = self->paths.count;
        int status = ek_texts_add(&directory, root, ek_texts_at(&self->classes, i));
        if (status == 0)
            status = ek_walk_pictures(directory.block, &self->paths);
        ek_texts_free(&directory);
        EK_TRY(status);
        self->ends[i] = self->paths.count;
        empty += self->paths.count == before;
    }
    return empty ? fail_empty(self, root, empty) : 0;
}

static int find_all(image_folder *self, const char *root)
{
    EK_TRY(ek_walk_classes(root, &self->classes));
    if (self->classes.count == 0)
        return EK_FAIL(EK_E_INVALID,
                       "image_folder: there is no directory in %.500s; each directory is a class, "
                       "and holds its pictures",
                       root);
    EK_TRY(find_pictures(self, root));
    ek_texts_fit(&self->classes);
    ek_texts_fit(&self->paths);
    return 0;
}

/* ---- public ---- */

ek_dataset *ek_image_folder(const char *root)
{
    if (!root || !*root) {
        EK_FAIL(EK_E_INVALID, "image_folder: the directory is %s", root ? "\"\"" : "NULL");
        return NULL;
    }
    ek_dataset *dataset = ek_dataset_new(&type);
    if (dataset && find_all((image_folder *)dataset, root) < 0) {
        ek_dataset_free(dataset);
        return NULL;
    }
    return dataset;
}

static const image_folder *folder_of(const ek_dataset *dataset, const char *caller)
{
    if (ek_dataset_given(dataset, caller) < 0)
        return NULL;
    if (dataset->type != &type) {
        EK_FAIL(EK_E_INVALID, "%s: the data set is of type %s; image_folder has classes and paths",
                caller, dataset->type->name);
        return NULL;
    }
    return (const image_folder *)dataset;
}

static const char *text_at(const ek_texts *texts, int64_t index, const char *caller,
                           const char *what)
{
    if (index >= 0 && index < texts->count)
        return ek_texts_at(texts, index);
    EK_FAIL(EK_E_INVALID, "%s: %s %lld; there are %lld", caller, what, (long long)index,
            (long long)texts->count);
    return NULL;
}

const char *ek_image_folder_class(ek_dataset *folder, int64_t number)
{
    const image_folder *self = folder_of(folder, "image_folder_class");
    return self ? text_at(&self->classes, number, "image_folder_class", "class") : NULL;
}

const char *ek_image_folder_path(ek_dataset *folder, int64_t index)
{
    const image_folder *self = folder_of(folder, "image_folder_path");
    return self ? text_at(&self->paths, index, "image_folder_path", "sample") : NULL;
}
