/* picture_walk.c: lists directories, one after the other, none kept open while others are listed.
 *
 * The order is that of torchvision's ImageFolder: sorted(os.walk(directory, followlinks=True)), in
 * it sorted names. */
#include "data/picture_walk.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "core/locale.h"
#include "core/thread.h"

/* Directories of one walk that are reached over symbolic links. Some that link to each other make
 * more paths than anybody can follow, though none of them comes back to itself. */
static const int max_linked = 1 << 14;

/* ---- texts ---- */

int ek_texts_add(ek_texts *texts, const char *directory, const char *name)
{
    size_t before = directory ? strlen(directory) : 0, after = strlen(name) + 1;
    bool slash = before > 0 && directory[before - 1] != '/';
    size_t nbytes = before + slash + after;
    if (nbytes > texts->room - texts->used) {
        size_t room = 2 * texts->room + nbytes;
        char *larger = ek_realloc(texts->block, room);
        if (!larger)
            return EK_E_NO_MEMORY;
        texts->block = larger;
        texts->room = room;
    }
    if (texts->count == texts->places) {
        int64_t places = 2 * texts->places + 16;
        size_t *more = ek_realloc(texts->starts, (size_t)places * sizeof *more);
        if (!more)
            return EK_E_NO_MEMORY;
        texts->starts = more;
        texts->places = places;
    }
    char *to = texts->block + texts->used;
    if (before > 0)
        memcpy(to, directory, before);
    if (slash)
        to[before] = '/';
    memcpy(to + before + slash, name, after);
    texts->starts[texts->count++] = texts->used;
    texts->used += nbytes;
    return 0;
}

const char *ek_texts_at(const ek_texts *texts, int64_t index)
{
    return texts->block + texts->starts[index];
}

void ek_texts_fit(ek_texts *texts)
{
    char *block = texts->used ? realloc(texts->block, texts->used) : NULL;
    size_t *starts =
        texts->count ? realloc(texts->starts, (size_t)texts->count * sizeof *starts) : NULL;
    if (block) {
        texts->block = block;
        texts->room = texts->used;
    }
    if (starts) {
        texts->starts = starts;
        texts->places = texts->count;
    }
}

void ek_texts_free(ek_texts *texts)
{
    free(texts->block);
    free(texts->starts);
    *texts = (ek_texts){0};
}

/* ---- one directory ---- */

static int fail_list(const char *path)
{
    return ek_file_fail("image_folder", "list", path);
}

static int is_entry(const struct dirent *entry)
{
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* How many there are, in order; the caller frees them and the array. */
static int list(const char *path, struct dirent ***entries)
{
    int count;
    do
        count = scandir(path, entries, is_entry, by_name);
    while (count < 0 && errno == EINTR);
    return count < 0 ? fail_list(path) : count;
}

static void free_entries(struct dirent **entries, int count)
{
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
}

/* What a name stands for. Links count as what they lead to; pipes, sockets and devices are other
 * things. */
typedef enum kind {
    KIND_ERROR = -1,
    KIND_OTHER,
    KIND_FILE,
    KIND_DIRECTORY,
    KIND_LINKED_DIRECTORY
} kind;

/* A link that leads nowhere counts as a file: reading it says what is wrong. */
static kind kind_of_path(const char *path)
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

static kind kind_of(const char *directory, const struct dirent *entry)
{
    ek_texts path = {0};
    if (entry->d_type == DT_DIR)
        return KIND_DIRECTORY;
    if (entry->d_type == DT_REG)
        return KIND_FILE;
    if (entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN)
        return KIND_OTHER;
    kind result = KIND_ERROR;
    if (ek_texts_add(&path, directory, entry->d_name) == 0)
        result = kind_of_path(path.block);
    ek_texts_free(&path);
    return result;
}

int ek_walk_classes(const char *root, ek_texts *names)
{
    struct dirent **entries;
    int count = list(root, &entries), status = 0;
    for (int i = 0; i < count && status == 0; i++) {
        kind found = kind_of(root, entries[i]);
        if (found == KIND_ERROR)
            status = EK_E_NO_MEMORY;
        else if (found == KIND_DIRECTORY || found == KIND_LINKED_DIRECTORY)
            status = ek_texts_add(names, NULL, entries[i]->d_name);
    }
    if (count >= 0)
        free_entries(entries, count);
    return count < 0 ? count : status;
}

/* ---- all below one ---- */

typedef struct directory {
    size_t path;    /* its number in the walk's paths */
    int64_t parent; /* -1: the first */
    bool linked;    /* reached over a link */
    dev_t device;
    ino_t inode;
    struct dirent **pictures;
    int count;
} directory;

typedef struct walk {
    ek_texts paths;
    directory *all; /* in the order in which they were found, later in that of their paths */
    int64_t count, room;
    int linked;
} walk;

static const char *path_of(const walk *self, int64_t number)
{
    return ek_texts_at(&self->paths, (int64_t)self->all[number].path);
}

static int add_directory(walk *self, const char *parent_path, const char *name, int64_t parent,
                         bool linked)
{
    if (linked && ++self->linked > max_linked)
        return EK_FAIL(EK_E_INVALID,
                       "image_folder: symbolic links lead to more than %d directories below %.500s",
                       max_linked, ek_texts_at(&self->paths, 0));
    if (self->count == self->room) {
        int64_t room = 2 * self->room + 4;
        directory *more = ek_realloc(self->all, (size_t)room * sizeof *more);
        if (!more)
            return EK_E_NO_MEMORY;
        self->all = more;
        self->room = room;
    }
    EK_TRY(ek_texts_add(&self->paths, parent_path, name));
    self->all[self->count++] =
        (directory){.path = (size_t)self->paths.count - 1, .parent = parent, .linked = linked};
    return 0;
}

static bool is_within_itself(const walk *self, int64_t number)
{
    const directory *here = &self->all[number];
    for (int64_t at = here->parent; at >= 0; at = self->all[at].parent)
        if (self->all[at].inode == here->inode && self->all[at].device == here->device)
            return true;
    return false;
}

static bool is_picture(const char *name)
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

/* Moves an entry to its directory's pictures, or adds the directory that it is. */
static int take_entry(walk *self, int64_t number, const char *path, struct dirent *entry)
{
    directory *here = &self->all[number];
    kind found = kind_of(path, entry);
    int status = found == KIND_ERROR ? EK_E_NO_MEMORY : 0;
    if (found == KIND_FILE && is_picture(entry->d_name)) {
        here->pictures[here->count++] = entry;
        return 0;
    }
    if (found == KIND_DIRECTORY || found == KIND_LINKED_DIRECTORY)
        status = add_directory(self, path, entry->d_name, number,
                               here->linked || found == KIND_LINKED_DIRECTORY);
    free(entry);
    return status;
}

/* The entries' array becomes that of the pictures among them. */
static int enter(walk *self, int64_t number)
{
    struct stat status;
    const char *path = path_of(self, number);
    if (stat(path, &status) < 0)
        return fail_list(path);
    self->all[number].device = status.st_dev;
    self->all[number].inode = status.st_ino;
    if (is_within_itself(self, number))
        return 0;
    struct dirent **entries;
    int count = list(path, &entries);
    EK_TRY(count);
    char *own = ek_strdup(path); /* the walk's paths move */
    int result = own ? 0 : EK_E_NO_MEMORY;
    self->all[number].pictures = entries;
    for (int i = 0; i < count; i++) {
        if (result == 0)
            result = take_entry(self, number, own, entries[i]);
        else
            free(entries[i]);
    }
    free(own);
    return result;
}

static int by_path(const void *a, const void *b, void *paths)
{
    return strcmp(ek_texts_at(paths, (int64_t)((const directory *)a)->path),
                  ek_texts_at(paths, (int64_t)((const directory *)b)->path));
}

/* Parents' numbers mean nothing afterwards. */
static int give_paths(walk *self, ek_texts *paths)
{
    qsort_r(self->all, (size_t)self->count, sizeof *self->all, by_path, &self->paths);
    for (int64_t i = 0; i < self->count; i++)
        for (int k = 0; k < self->all[i].count; k++)
            EK_TRY(ek_texts_add(paths, path_of(self, i), self->all[i].pictures[k]->d_name));
    return 0;
}

int ek_walk_pictures(const char *path, ek_texts *paths)
{
    walk self = {0};
    int status = add_directory(&self, NULL, path, -1, false);
    for (int64_t i = 0; i < self.count && status == 0; i++)
        status = enter(&self, i);
    if (status == 0)
        status = give_paths(&self, paths);
    for (int64_t i = 0; i < self.count; i++)
        free_entries(self.all[i].pictures, self.all[i].count);
    free(self.all);
    ek_texts_free(&self.paths);
    return status;
}
