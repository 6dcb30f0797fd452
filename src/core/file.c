/* file.c: opens files, replaces them whole, and appends to them. All of the library's files are
 * opened here. */

#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/thread.h"

/* ---- opening ---- */

int ek_file_fail(const char *what, const char *verb, const char *path)
{
    int status = errno == ENOMEM ? EK_E_NO_MEMORY : EK_E_IO;
    return EK_FAIL(status, "%s: cannot %s %.500s: %s", what, verb, path, strerror(errno));
}

int ek_open(const char *path, int flags)
{
    int descriptor;
    do
        descriptor = open(path, flags | O_CLOEXEC, 0666);
    while (descriptor < 0 && errno == EINTR);
    return descriptor;
}

/* Sets the error for files that are not regular. Opening a socket fails with ENXIO, which becomes
 * this error, too. */
static int file_fail_kind(const char *what, const char *path)
{
    return EK_FAIL(EK_E_IO, "%s: cannot open %.500s: it is no regular file", what, path);
}

static int file_check_kind(int descriptor, const char *what, const char *path, size_t *nbytes)
{
    struct stat status;
    if (fstat(descriptor, &status) < 0)
        return ek_file_fail(what, "open", path);
    if (S_ISDIR(status.st_mode)) {
        errno = EISDIR;
        return ek_file_fail(what, "open", path);
    }
    if (!S_ISREG(status.st_mode))
        return file_fail_kind(what, path);
    *nbytes = (size_t)status.st_size;
    return 0;
}

int ek_file_open(const char *what, const char *path, size_t *nbytes)
{
    /* Without O_NONBLOCK, opening a pipe would wait for its writer. */
    int descriptor = ek_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0)
        return errno == ENXIO ? file_fail_kind(what, path) : ek_file_fail(what, "open", path);
    int status = file_check_kind(descriptor, what, path, nbytes);
    if (status == 0)
        return descriptor;
    close(descriptor);
    return status;
}

int ek_file_map_open(const char *what, const char *path, int descriptor, size_t nbytes,
                     ek_mapped *mapped)
{
    *mapped = (ek_mapped){NULL, nbytes};
    if (nbytes == 0) /* an empty file can't be mapped */
        return 0;
    void *bytes = mmap(NULL, nbytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (bytes == MAP_FAILED)
        return ek_file_fail(what, "read", path);
    mapped->bytes = bytes;
    return 0;
}

int ek_file_map(const char *what, const char *path, ek_mapped *mapped)
{
    size_t nbytes;
    int descriptor = ek_file_open(what, path, &nbytes);
    EK_TRY(descriptor);
    int status = ek_file_map_open(what, path, descriptor, nbytes, mapped);
    close(descriptor);
    return status;
}

void ek_file_unmap(ek_mapped *mapped)
{
    if (mapped->bytes)
        munmap((void *)(uintptr_t)mapped->bytes, mapped->nbytes);
    *mapped = (ek_mapped){NULL, 0};
}

/* ---- writing whole or not at all ---- */

static int file_fail_write(const char *what, const char *path)
{
    return ek_file_fail(what, "write", path);
}

int ek_file_write(const ek_file *file, const void *data, size_t nbytes)
{
    const char *at = data;
    while (nbytes > 0) {
        size_t most = (size_t)1 << 30; /* write(2) takes less than 2 GiB at once */
        ssize_t written = write(file->descriptor, at, nbytes < most ? nbytes : most);
        if (written < 0 && errno == EINTR)
            continue;
        if (written == 0)
            errno = EIO;
        if (written <= 0)
            return file_fail_write(file->what, file->path);
        at += written;
        nbytes -= (size_t)written;
    }
    return 0;
}

/* Calls fsync(2), again if it is interrupted, as it may be on network file systems. */
static int file_synchronise(int descriptor)
{
    int rc = -1;
    do
        rc = fsync(descriptor);
    while (rc < 0 && errno == EINTR);
    return rc;
}

/* ---- the file while it is written ---- */

/* A temporary file. If the file system allows, it has no name, so that a process that is killed
 * leaves no file. A nameless file gets a name just before it is renamed to `path`. */
typedef struct temporary {
    const char *what, *path;
    const char *directory; /* ends in a slash, or is empty */
    char *name;            /* owned; NULL: the file has no name */
    int descriptor;
} temporary;

enum { NAME_TRIES = 1000 };

/* Writes the name for `number`. If a file has that name already (EEXIST), the caller tries the next
 * number. */
static void temporary_name(char *name, size_t room, const char *directory, int number)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(name, room, "%s.evenkeel-%ld-%lx-%d.tmp", directory, (long)getpid(),
             (unsigned long)now.tv_nsec, number);
}

/* Calls give(t, name) with one name after another while `give` fails with EEXIST or EINTR, at most
 * NAME_TRIES times. Keeps the name for which `give` returns 0. Returns -1 with errno if no call
 * succeeded. */
static int temporary_with_new_name(temporary *t, int (*give)(temporary *t, const char *name))
{
    size_t room = strlen(t->directory) + 80;
    char *name = malloc(room);
    int rc = -1;
    for (int i = 0; i < NAME_TRIES && name && rc < 0; i++) {
        temporary_name(name, room, t->directory, i);
        rc = give(t, name);
        if (rc < 0 && errno != EEXIST && errno != EINTR)
            break;
    }
    if (rc == 0)
        t->name = name;
    else
        free(name);
    return rc;
}

static int temporary_open_named(temporary *t, const char *name)
{
    t->descriptor = ek_open(name, O_RDWR | O_CREAT | O_EXCL);
    return t->descriptor < 0 ? -1 : 0;
}

/* Writes the path under which the system shows an open file, and returns `text`. */
static char *file_descriptor_path(int descriptor, char text[32])
{
    snprintf(text, 32, "/proc/self/fd/%d", descriptor);
    return text;
}

/* Opens a file without a name. Returns -1 if the system can't, or if the file couldn't be given a
 * name later. */
static int temporary_open_nameless(const char *directory)
{
    char link[32];
    int descriptor = -1;
#ifdef O_TMPFILE
    descriptor = ek_open(*directory ? directory : ".", O_RDWR | O_TMPFILE);
#endif
    if (descriptor >= 0 && access(file_descriptor_path(descriptor, link), F_OK) < 0) {
        close(descriptor);
        descriptor = -1;
    }
    return descriptor;
}

static int temporary_open(temporary *t)
{
    t->descriptor = temporary_open_nameless(t->directory);
    if (t->descriptor >= 0 || temporary_with_new_name(t, temporary_open_named) == 0)
        return 0;
    return EK_FAIL(errno == ENOMEM ? EK_E_NO_MEMORY : EK_E_IO,
                   "%s: cannot write %s: no file can be made in its directory: %s", t->what,
                   t->path, strerror(errno));
}

int ek_file_open_nameless(const char *what)
{
    const char *chosen = getenv("TMPDIR");
    char directory[512];
    snprintf(directory, sizeof directory, "%.500s/", chosen && *chosen ? chosen : "/tmp");
    temporary t = {.what = what, .path = directory, .directory = directory};
    EK_TRY(temporary_open(&t));
    if (t.name)
        unlink(t.name);
    free(t.name);
    return t.descriptor;
}

static int temporary_link(temporary *t, const char *name)
{
    char link[32];
    return linkat(AT_FDCWD, file_descriptor_path(t->descriptor, link), AT_FDCWD, name,
                  AT_SYMLINK_FOLLOW);
}

/* Gives a new file the old file's permissions and, if the system allows, its owner and group. */
static int temporary_make_alike(int descriptor, const struct stat *old)
{
    if (fchown(descriptor, old->st_uid, old->st_gid) < 0 &&
        fchown(descriptor, (uid_t)-1, old->st_gid) < 0)
        errno = 0; /* the new file's owner and group stay the caller's */
    return fchmod(descriptor, old->st_mode & 0777);
}

/* Copies a nameless file to a file with a name, for systems that forbid linking the nameless one.
 */
static int temporary_copy_to_named(temporary *t)
{
    enum { CHUNK = 1 << 16 };
    const int from = t->descriptor;
    struct stat about;
    ssize_t nbytes = 0;
    off_t at = 0;
    int status = 0;
    char *chunk = ek_calloc(1, CHUNK);
    if (!chunk)
        return EK_E_NO_MEMORY;
    if (temporary_with_new_name(t, temporary_open_named) < 0)
        status = file_fail_write(t->what, t->path);
    const ek_file to = {t->what, t->path, t->descriptor};
    while (status >= 0 && (nbytes = pread(from, chunk, CHUNK, at)) > 0) {
        status = ek_file_write(&to, chunk, (size_t)nbytes);
        at += nbytes;
    }
    free(chunk);
    if (status >= 0 &&
        (nbytes < 0 || fstat(from, &about) < 0 || temporary_make_alike(to.descriptor, &about) < 0 ||
         file_synchronise(to.descriptor) < 0))
        status = file_fail_write(t->what, t->path);
    if (t->descriptor != from)
        close(from);
    return status;
}

/* Gives the file a name if it has none, and renames it to `path`. */
static int temporary_take_place(temporary *t)
{
    if (!t->name && temporary_with_new_name(t, temporary_link) < 0)
        EK_TRY(temporary_copy_to_named(t));
    return rename(t->name, t->path) < 0 ? file_fail_write(t->what, t->path) : 0;
}

/* Checks that an old file is regular and writable, so that a protected file is never replaced.
 * *there tells whether there is an old file. */
static int file_check_old(const char *what, const char *path, bool *there, struct stat *old)
{
    *there = stat(path, old) == 0;
    if (!*there)
        return errno == ENOENT ? 0 : file_fail_write(what, path);
    if (S_ISDIR(old->st_mode)) {
        errno = EISDIR;
        return file_fail_write(what, path);
    }
    if (!S_ISREG(old->st_mode))
        return EK_FAIL(EK_E_IO, "%s: cannot write %s: it is no regular file", what, path);
    return faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) < 0 ? file_fail_write(what, path) : 0;
}

/* Synchronises a directory. Some file systems cannot do this (EINVAL, ENOTSUP), which is no
 * error. */
static int file_synchronise_directory(int directory, const char *what, const char *path)
{
    if (file_synchronise(directory) == 0 || errno == EINVAL || errno == ENOTSUP)
        return 0;
    return EK_FAIL(EK_E_IO, "%s: %s is written, but its directory cannot be synchronised: %s", what,
                   path, strerror(errno));
}

/* Returns the path up to and including its last slash, owned by the caller; NULL if memory is
 * short. */
static char *file_directory_of(const char *path)
{
    char *directory = ek_strdup(path);
    char *slash = directory ? strrchr(directory, '/') : NULL;
    if (directory)
        *(slash ? slash + 1 : directory) = '\0';
    return directory;
}

/* Writes the file and synchronises it, so that its data survive a loss of power. */
static int file_fill(temporary *t, int (*write)(const ek_file *file, void *user), void *user,
                     const struct stat *old)
{
    const ek_file file = {t->what, t->path, t->descriptor};
    EK_TRY(write(&file, user));
    if (old && temporary_make_alike(t->descriptor, old) < 0)
        return file_fail_write(t->what, t->path);
    return file_synchronise(t->descriptor) < 0 ? file_fail_write(t->what, t->path) : 0;
}

/* Blocks SIGXFSZ on this thread until file_release_signal. A write beyond the process's limit of a
 * file's size is then an error, EFBIG, and doesn't end the process. */
static void file_hold_signal(sigset_t *before)
{
    sigset_t beyond;
    sigemptyset(&beyond);
    sigaddset(&beyond, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &beyond, before);
}

/* Discards a SIGXFSZ that has arrived since file_hold_signal, and unblocks the signal. If the
 * program had blocked SIGXFSZ before, the signal stays pending and blocked. */
static void file_release_signal(const sigset_t *before)
{
    sigset_t beyond;
    sigemptyset(&beyond);
    sigaddset(&beyond, SIGXFSZ);
    if (!sigismember(before, SIGXFSZ))
        while (sigtimedwait(&beyond, NULL, &(struct timespec){0}) > 0)
            ;
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

static int file_replace(temporary *t, int (*write)(const ek_file *file, void *user), void *user,
                        const struct stat *old)
{
    EK_TRY(temporary_open(t));
    int status = file_fill(t, write, user, old);
    if (status >= 0)
        status = temporary_take_place(t);
    close(t->descriptor); /* fsync has reported all errors of writing */
    if (status < 0 && t->name)
        unlink(t->name);
    return status;
}

int ek_file_replace(const char *what, const char *path,
                    int (*write)(const ek_file *file, void *user), void *user)
{
    bool there;
    struct stat old;
    EK_TRY(file_check_old(what, path, &there, &old));
    char *directory = file_directory_of(path);
    if (!directory)
        return EK_E_NO_MEMORY;
    temporary t = {.what = what, .path = path, .directory = directory};
    sigset_t before;
    file_hold_signal(&before);
    int place = ek_open(*directory ? directory : ".", O_RDONLY | O_DIRECTORY);
    int status = place < 0 ? file_fail_write(what, path)
                           : file_replace(&t, write, user, there ? &old : NULL);
    if (status >= 0)
        status = file_synchronise_directory(place, what, path);
    if (place >= 0)
        close(place);
    file_release_signal(&before);
    free(t.name);
    free(directory);
    return status;
}

/* ---- text ---- */

typedef struct text_file {
    int (*write)(FILE *stream, void *user);
    void *user;
} text_file;

static int file_write_text(const ek_file *file, void *user)
{
    const text_file *text = user;
    int copy = dup(file->descriptor);
    FILE *stream = copy < 0 ? NULL : fdopen(copy, "w");
    if (!stream) {
        int status = file_fail_write(file->what, file->path);
        if (copy >= 0)
            close(copy);
        return status;
    }
    int status = text->write(stream, text->user);
    errno = errno ? errno : EIO; /* errno of the stream's failed write, if it set one */
    bool failed = ferror(stream) || fflush(stream) != 0;
    if (failed && status >= 0)
        status = file_fail_write(file->what, file->path);
    if (fclose(stream) != 0 && status >= 0)
        status = file_fail_write(file->what, file->path);
    return status;
}

int ek_file_replace_text(const char *what, const char *path, int (*write)(FILE *stream, void *user),
                         void *user)
{
    text_file text = {write, user};
    return ek_file_replace(what, path, file_write_text, &text);
}

/* ---- appending ---- */

int ek_file_make_directory(const char *what, const char *path)
{
    char *part = ek_strdup(path);
    int rc = part ? 0 : EK_E_NO_MEMORY;
    for (char *slash = part; slash && *slash && (slash = strchr(slash + 1, '/'));) {
        *slash = '\0';
        mkdir(part, 0777); /* A failure shows at the last part, too */
        *slash = '/';
    }
    if (part && mkdir(part, 0777) < 0 && errno != EEXIST)
        rc = ek_file_fail(what, "make", path);
    free(part);
    return rc;
}

int ek_appended_open(ek_appended *to, const char *what, const char *path)
{
    struct stat status;
    *to = (ek_appended){.file = {what, path, ek_open(path, O_WRONLY | O_CREAT | O_APPEND)}};
    if (to->file.descriptor < 0)
        return file_fail_write(what, path);
    if (fstat(to->file.descriptor, &status) == 0) {
        to->nbytes = (uint64_t)status.st_size;
        return 0;
    }
    int rc = file_fail_write(what, path);
    close(to->file.descriptor);
    return rc;
}

static int appended_cut(ek_appended *to)
{
    if (to->torn && ftruncate(to->file.descriptor, (off_t)to->nbytes) < 0)
        return file_fail_write(to->file.what, to->file.path);
    to->torn = false;
    return 0;
}

int ek_appended_add(ek_appended *to, const void *record, size_t nbytes)
{
    sigset_t before;
    EK_TRY(appended_cut(to));
    file_hold_signal(&before);
    int rc = ek_file_write(&to->file, record, nbytes);
    file_release_signal(&before);
    to->torn = rc < 0;
    if (rc < 0)
        appended_cut(to);
    else
        to->nbytes += nbytes;
    return rc;
}

int ek_appended_close(ek_appended *to)
{
    int rc = file_synchronise(to->file.descriptor);
    if (rc < 0)
        rc = file_fail_write(to->file.what, to->file.path);
    close(to->file.descriptor); /* fsync has reported all errors of writing */
    return rc;
}
