/* file.c: writing beside a file's place, and taking it. */
#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/thread.h"

static int fail_write(const char *what, const char *path)
{
    return EK_FAIL(EK_E_IO, "%s: cannot write %s: %s", what, path, strerror(errno));
}

int ek_file_write(const ek_file *file, const void *data, size_t nbytes)
{
    const char *at = data;
    while (nbytes > 0) {
        size_t most = (size_t)1 << 30; /* the system takes less than 2 GiB at once */
        ssize_t written = write(file->descriptor, at, nbytes < most ? nbytes : most);
        if (written < 0 && errno == EINTR)
            continue;
        if (written == 0)
            errno = EIO;
        if (written <= 0)
            return fail_write(file->what, file->path);
        at += written;
        nbytes -= (size_t)written;
    }
    return 0;
}

/* Opens a new file in `directory` (which ends in a slash, or is empty) and names it; the caller
 * frees the name. */
static int open_temporary(const char *what, const char *path, const char *directory, char **name)
{
    enum { TRIES = 1000 };
    size_t room = strlen(directory) + 80;
    *name = ek_calloc(1, room);
    if (!*name)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < TRIES; i++) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        snprintf(*name, room, "%s.evenkeel-%ld-%lx-%d.tmp", directory, (long)getpid(),
                 (unsigned long)now.tv_nsec, i);
        int file = open(*name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file >= 0)
            return file;
        if (errno != EEXIST && errno != EINTR)
            break;
    }
    fail_write(what, path);
    free(*name);
    *name = NULL;
    return EK_E_IO;
}

/* A file that is there already has to be a plain one, whose permissions stay. */
static int check_old(const char *what, const char *path, bool *there, mode_t *mode)
{
    struct stat old;
    *there = stat(path, &old) == 0;
    if (!*there)
        return errno == ENOENT ? 0 : fail_write(what, path);
    if (S_ISDIR(old.st_mode)) {
        errno = EISDIR;
        return fail_write(what, path);
    }
    if (!S_ISREG(old.st_mode))
        return EK_FAIL(EK_E_IO, "%s: cannot write %s: it is no regular file", what, path);
    *mode = old.st_mode & 07777;
    return 0;
}

/* Some file systems cannot synchronise directories. */
static int synchronise_directory(int directory, const char *what, const char *path)
{
    if (fsync(directory) == 0 || errno == EINVAL || errno == ENOTSUP)
        return 0;
    return EK_FAIL(EK_E_IO, "%s: %s is written, but its directory cannot be synchronised: %s", what,
                   path, strerror(errno));
}

/* The bytes before the last slash and the slash itself; the caller frees. */
static char *directory_of(const char *path)
{
    char *directory = ek_strdup(path);
    char *slash = directory ? strrchr(directory, '/') : NULL;
    if (directory)
        *(slash ? slash + 1 : directory) = '\0';
    return directory;
}

int ek_file_replace(const char *what, const char *path,
                    int (*write)(const ek_file *file, void *user), void *user)
{
    bool there;
    mode_t mode = 0;
    char *temporary = NULL;
    EK_TRY(check_old(what, path, &there, &mode));
    char *directory = directory_of(path);
    if (!directory)
        return EK_E_NO_MEMORY;
    int place = open(*directory ? directory : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ek_file file = {what, path, -1};
    file.descriptor =
        place < 0 ? fail_write(what, path) : open_temporary(what, path, directory, &temporary);
    int status = file.descriptor < 0 ? file.descriptor : 0;
    if (file.descriptor >= 0) {
        status = write(&file, user);
        if (status >= 0 && fsync(file.descriptor) < 0)
            status = fail_write(what, path);
        if (status >= 0 && there && fchmod(file.descriptor, mode) < 0)
            status = fail_write(what, path);
        if (close(file.descriptor) < 0 && status >= 0)
            status = fail_write(what, path);
        if (status >= 0 && rename(temporary, path) < 0)
            status = fail_write(what, path);
        if (status < 0)
            unlink(temporary);
        else
            status = synchronise_directory(place, what, path);
    }
    if (place >= 0)
        close(place);
    free(temporary);
    free(directory);
    return status;
}

/* ---- text ---- */

typedef struct text_file {
    int (*write)(FILE *stream, void *user);
    void *user;
} text_file;

static int write_text(const ek_file *file, void *user)
{
    const text_file *text = user;
    int copy = dup(file->descriptor);
    FILE *stream = copy < 0 ? NULL : fdopen(copy, "w");
    if (!stream) {
        int status = fail_write(file->what, file->path);
        if (copy >= 0)
            close(copy);
        return status;
    }
    int status = text->write(stream, text->user);
    errno = errno ? errno : EIO; /* of what was written before */
    bool failed = ferror(stream) || fflush(stream) != 0;
    if (failed && status >= 0)
        status = fail_write(file->what, file->path);
    if (fclose(stream) != 0 && status >= 0)
        status = fail_write(file->what, file->path);
    return status;
}

int ek_file_replace_text(const char *what, const char *path, int (*write)(FILE *stream, void *user),
                         void *user)
{
    text_file text = {write, user};
    return ek_file_replace(what, path, write_text, &text);
}
