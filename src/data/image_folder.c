/* image_folder.c: pictures in one directory per class, read when they are asked for.
 *
 * Directories are listed one after the other, and only one is open at a time. The order of samples
 * does not depend on the file system. It is that of torchvision's ImageFolder: directories in the
 * order of sorted(os.walk(directory, followlinks=True)), and sorted names in each. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/error.h"
#include "core/file.h"
#include "core/locale.h"
#include "data/dataset.h"
#include "data/image.h"

/* The most directories that one walk reaches through symbolic links. A few links between
 * directories can make a huge number of paths even if no path enters a directory twice. */
static const int max_linked = 1 << 14;

/* ---- texts: strings in one block, one after another ---- */

typedef struct texts {
    char *block;
    size_t used, room;
    size_t *starts;
    int count, places;
} texts;

/* Appends `name`, or <directory>/<name> if `directory` is not NULL. */
static int texts_add(texts *self, const char *directory, const char *name)
{
    size_t before = directory ? strlen(directory) : 0, after = strlen(name) + 1;
    bool slash = before > 0 && directory[before - 1] != '/';
    size_t nbytes = before + slash + after;
    if (nbytes > self->room - self->used) {
        size_t room = 2 * self->room + nbytes;
        char *larger = ek_realloc(self->block, room);
        if (!larger)
            return EK_E_NO_MEMORY;
        self->block = larger;
        self->room = room;
    }
    EK_TRY(ek_grow(&self->starts, &self->places, self->count + 1));
    char *to = self->block + self->used;
    if (before > 0)
        memcpy(to, directory, before);
    if (slash)
        to[before] = '/';
    memcpy(to + before + slash, name, after);
    self->starts[self->count++] = self->used;
    self->used += nbytes;
    return 0;
}

static const char *texts_at(const texts *self, int64_t index)
{
    return self->block + self->starts[index];
}

/* Shrinks the allocations to what is used. */
static void texts_fit(texts *self)
{
    char *block = self->used ? realloc(self->block, self->used) : NULL;
    size_t *starts =
        self->count ? realloc(self->starts, (size_t)self->count * sizeof *starts) : NULL;
    if (block) {
        self->block = block;
        self->room = self->used;
    }
    if (starts) {
        self->starts = starts;
        self->places = self->count;
    }
}

static void texts_free(texts *self)
{
    free(self->block);
    free(self->starts);
    *self = (texts){0};
}

/* ---- one directory ---- */

static int entry_is_real(const struct dirent *entry)
{
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

static int entry_by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Lists a directory in the order of names. Returns the number of entries. The caller frees the
 * entries and the array. */
static int entry_list(const char *path, struct dirent ***entries)
{
    int count;
    do
        count = scandir(path, entries, entry_is_real, entry_by_name);
    while (count < 0 && errno == EINTR);
    return count < 0 ? ek_file_fail("image_folder", "list", path) : count;
}

static void entry_free_all(struct dirent **entries, int count)
{
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
}

/* The kind of a directory's entry. A link has its target's kind. Pipes, sockets and devices are
 * KIND_OTHER. */
typedef enum kind {
    KIND_ERROR = -1,
    KIND_OTHER,
    KIND_FILE,
    KIND_DIRECTORY,
    KIND_LINKED_DIRECTORY
} kind;

/* Returns the kind of the entry at a path. If nothing is there, or a link has no target, the entry
 * counts as a file, so that reading the file fails with an error. */
static kind entry_kind_of_path(const char *path)
{
    struct stat status;
    bool there = lstat(path, &status) == 0;
    if (there && S_ISDIR(status.st_mode))
        return KIND_DIRECTORY;
    if (!there || stat(path, &status) < 0)
        return KIND_FILE;
    if (S_ISDIR(status.st_mode))
        return KIND_LINKED_DIRECTORY;
    return S_ISREG(status.st_mode) ? KIND_FILE : KIND_OTHER;
}

static kind entry_kind(const char *directory, const struct dirent *entry)
{
    texts path = {0};
    if (entry->d_type == DT_DIR)
        return KIND_DIRECTORY;
    if (entry->d_type == DT_REG)
        return KIND_FILE;
    if (entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN)
        return KIND_OTHER;
    kind result = KIND_ERROR;
    if (texts_add(&path, directory, entry->d_name) == 0)
        result = entry_kind_of_path(path.block);
    texts_free(&path);
    return result;
}

/* Appends the names of the directories directly in `root`, sorted by their bytes. */
static int walk_classes(const char *root, texts *names)
{
    struct dirent **entries;
    int count = entry_list(root, &entries), status = 0;
    for (int i = 0; i < count && status == 0; i++) {
        kind found = entry_kind(root, entries[i]);
        if (found == KIND_ERROR)
            status = EK_E_NO_MEMORY;
        else if (found == KIND_DIRECTORY || found == KIND_LINKED_DIRECTORY)
            status = texts_add(names, NULL, entries[i]->d_name);
    }
    if (count >= 0)
        entry_free_all(entries, count);
    return count < 0 ? count : status;
}

/* ---- the walk: a directory and all directories below it ---- */

typedef struct directory {
    size_t path;    /* the path's index in the walk's `paths` */
    int64_t parent; /* the parent's index in the walk; -1: the directory is the root */
    bool linked;    /* the path to it leads through a symbolic link */
    dev_t device;
    ino_t inode;
    struct dirent **pictures;
    int count;
} directory;

typedef struct walk {
    texts paths;
    directory *all; /* in the order of discovery; walk_give_paths sorts them by path */
    int count, room;
    int linked;
} walk;

static const char *walk_path(const walk *self, int64_t number)
{
    return texts_at(&self->paths, (int64_t)self->all[number].path);
}

static int walk_add(walk *self, const char *parent_path, const char *name, int64_t parent,
                    bool linked)
{
    if (linked && ++self->linked > max_linked)
        return EK_FAIL(EK_E_INVALID,
                       "image_folder: symbolic links lead to more than %d directories below %.500s",
                       max_linked, texts_at(&self->paths, 0));
    EK_TRY(ek_grow(&self->all, &self->room, self->count + 1));
    EK_TRY(texts_add(&self->paths, parent_path, name));
    self->all[self->count++] =
        (directory){.path = (size_t)self->paths.count - 1, .parent = parent, .linked = linked};
    return 0;
}

static bool walk_is_within_itself(const walk *self, int64_t number)
{
    const directory *here = &self->all[number];
    for (int64_t at = here->parent; at >= 0; at = self->all[at].parent)
        if (self->all[at].inode == here->inode && self->all[at].device == here->device)
            return true;
    return false;
}

static bool walk_is_picture(const char *name)
{
    static const char *const endings[] = {".png", ".jpg", ".jpeg"};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t ending = strlen(endings[i]);
        if (length >= ending && ek_same_letters(name + length - ending, endings[i]))
            return true;
    }
    return false;
}

/* Keeps the entry if it is a picture, adds it to the walk if it is a directory, else frees it. */
static int walk_take(walk *self, int64_t number, const char *path, struct dirent *entry)
{
    directory *here = &self->all[number];
    kind found = entry_kind(path, entry);
    int status = found == KIND_ERROR ? EK_E_NO_MEMORY : 0;
    if (found == KIND_FILE && walk_is_picture(entry->d_name)) {
        here->pictures[here->count++] = entry;
        return 0;
    }
    if (found == KIND_DIRECTORY || found == KIND_LINKED_DIRECTORY)
        status = walk_add(self, path, entry->d_name, number,
                          here->linked || found == KIND_LINKED_DIRECTORY);
    free(entry);
    return status;
}

/* Lists a directory, unless it is within itself. The array of entries becomes the array of the
 * pictures among them. */
static int walk_enter(walk *self, int64_t number)
{
    struct stat status;
    const char *path = walk_path(self, number);
    if (stat(path, &status) < 0)
        return ek_file_fail("image_folder", "list", path);
    self->all[number].device = status.st_dev;
    self->all[number].inode = status.st_ino;
    if (walk_is_within_itself(self, number))
        return 0;
    struct dirent **entries;
    int count = entry_list(path, &entries);
    EK_TRY(count);
    char *own = ek_strdup(path); /* walk_add may move the block of paths */
    int result = own ? 0 : EK_E_NO_MEMORY;
    self->all[number].pictures = entries;
    for (int i = 0; i < count; i++) {
        if (result == 0)
            result = walk_take(self, number, own, entries[i]);
        else
            free(entries[i]);
    }
    free(own);
    return result;
}

static int walk_by_path(const void *a, const void *b, void *paths)
{
    return strcmp(texts_at(paths, (int64_t)((const directory *)a)->path),
                  texts_at(paths, (int64_t)((const directory *)b)->path));
}

/* Appends the sorted paths of all pictures. Sorts the directories, so that `parent` is invalid. */
static int walk_give_paths(walk *self, texts *paths)
{
    qsort_r(self->all, (size_t)self->count, sizeof *self->all, walk_by_path, &self->paths);
    for (int64_t i = 0; i < self->count; i++)
        for (int k = 0; k < self->all[i].count; k++)
            EK_TRY(texts_add(paths, walk_path(self, i), self->all[i].pictures[k]->d_name));
    return 0;
}

/* Appends the paths of the regular files below `path` whose names end in .png, .jpg or .jpeg (or
 * capitals). Directories come in the order of their paths' bytes, files in that of their names.
 * Symbolic links are followed, but a directory within itself is not entered again. EK_E_INVALID if
 * links lead to more than max_linked directories; EK_E_IO if a directory cannot be listed. */
static int walk_pictures(const char *path, texts *paths)
{
    walk self = {0};
    int status = walk_add(&self, NULL, path, -1, false);
    for (int64_t i = 0; i < self.count && status == 0; i++)
        status = walk_enter(&self, i);
    if (status == 0)
        status = walk_give_paths(&self, paths);
    for (int64_t i = 0; i < self.count; i++)
        entry_free_all(self.all[i].pictures, self.all[i].count);
    free(self.all);
    texts_free(&self.paths);
    return status;
}

/* ---- samples ---- */

typedef struct image_folder {
    ek_dataset dataset;
    texts classes;
    texts paths;   /* class by class */
    int64_t *ends; /* where each class's paths end */
    int64_t max_pixels;
} image_folder;

static int64_t folder_length(ek_dataset *dataset)
{
    return ((image_folder *)dataset)->paths.count;
}

static ek_value folder_get(ek_dataset *dataset, int64_t index)
{
    const image_folder *self = (image_folder *)dataset;
    ek_tensor *picture = ek_image_read(texts_at(&self->paths, index), 3, self->max_pixels);
    if (!picture)
        return ek_value_error();
    return EK_LIST(picture,
                   ek_value_of_int(ek_dataset_part(self->ends, self->classes.count, index)));
}

static void folder_destroy(ek_dataset *dataset)
{
    image_folder *self = (image_folder *)dataset;
    texts_free(&self->classes);
    texts_free(&self->paths);
    free(self->ends);
}

static const ek_dataset_type folder_type = {.name = "image_folder",
                                            .size = sizeof(image_folder),
                                            .length = folder_length,
                                            .get = folder_get,
                                            .destroy = folder_destroy};

/* ---- reading the directory ---- */

/* Fails with the names of the first classes without a picture, and counts the others. */
static int folder_fail_empty(const image_folder *self, const char *root, int64_t count)
{
    enum { NAMED = 8 };
    char names[NAMED * 64] = "", more[40] = "";
    int64_t begin = 0, named = 0;
    for (int64_t i = 0; i < self->classes.count && named < NAMED; begin = self->ends[i++]) {
        if (self->ends[i] > begin)
            continue;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%.60s", named++ ? ", " : "",
                 texts_at(&self->classes, i));
    }
    if (count > named)
        snprintf(more, sizeof more, " and %lld more", (long long)(count - named));
    return EK_FAIL(EK_E_INVALID, "image_folder: %.300s: no .png, .jpg or .jpeg file in %s %s%s",
                   root, count == 1 ? "class" : "classes", names, more);
}

static int folder_find_pictures(image_folder *self, const char *root)
{
    int64_t empty = 0;
    self->ends = ek_calloc((size_t)self->classes.count, sizeof *self->ends);
    if (!self->ends)
        return EK_E_NO_MEMORY;
    for (int64_t i = 0; i < self->classes.count; i++) {
        texts path = {0};
        int64_t before = self->paths.count;
        int status = texts_add(&path, root, texts_at(&self->classes, i));
        if (status == 0)
            status = walk_pictures(path.block, &self->paths);
        texts_free(&path);
        EK_TRY(status);
        self->ends[i] = self->paths.count;
        empty += self->paths.count == before;
    }
    return empty ? folder_fail_empty(self, root, empty) : 0;
}

static int folder_fill(image_folder *self, const char *root)
{
    EK_TRY(walk_classes(root, &self->classes));
    if (self->classes.count == 0)
        return EK_FAIL(EK_E_INVALID,
                       "image_folder: there is no directory in %.500s; each directory is a class, "
                       "and holds its pictures",
                       root);
    EK_TRY(folder_find_pictures(self, root));
    texts_fit(&self->classes);
    texts_fit(&self->paths);
    return 0;
}

/* ---- public ---- */

ek_dataset *ek_image_folder_with(ek_image_folder_options options)
{
    const char *root = options.root;
    int64_t max_pixels = options.max_pixels;
    if (max_pixels < 1 || max_pixels > EK_MAX_PIXELS)
        return EK_FAIL_NULL(EK_E_INVALID, "image_folder: max_pixels is %lld; 1 to %d are possible",
                            (long long)max_pixels, EK_MAX_PIXELS);
    if (!root || !*root)
        return EK_FAIL_NULL(EK_E_INVALID, "image_folder: the directory is %s",
                            root ? "\"\"" : "NULL");
    ek_dataset *dataset = ek_dataset_new(&folder_type);
    if (dataset)
        ((image_folder *)dataset)->max_pixels = max_pixels;
    if (dataset && folder_fill((image_folder *)dataset, root) < 0) {
        ek_dataset_free(dataset);
        return NULL;
    }
    return dataset;
}

static const image_folder *folder_given(const ek_dataset *dataset, const char *caller)
{
    if (ek_check_handle(caller, "the data set", dataset) < 0)
        return NULL;
    if (dataset->type != &folder_type)
        return EK_FAIL_NULL(EK_E_INVALID,
                            "%s: the data set is of type %s; image_folder has classes and paths",
                            caller, dataset->type->name);
    return (const image_folder *)dataset;
}

static const char *folder_text(const texts *from, int64_t index, const char *caller,
                               const char *what)
{
    if (index >= 0 && index < from->count)
        return texts_at(from, index);
    return EK_FAIL_NULL(EK_E_INVALID, "%s: %s %lld; there are %lld", caller, what, (long long)index,
                        (long long)from->count);
}

const char *ek_image_folder_class(ek_dataset *folder, int64_t number)
{
    const image_folder *self = folder_given(folder, "image_folder_class");
    return self ? folder_text(&self->classes, number, "image_folder_class", "class") : NULL;
}

const char *ek_image_folder_path(ek_dataset *folder, int64_t index)
{
    const image_folder *self = folder_given(folder, "image_folder_path");
    return self ? folder_text(&self->paths, index, "image_folder_path", "sample") : NULL;
}
