/* file_open.c: the one way in which the library opens files. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/thread.h"

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

/* ENXIO is what opening a socket gives. */
static int fail_kind(const char *what, const char *path)
{
    return EK_FAIL(EK_E_IO, "%s: cannot open %.500s: it is no regular file", what, path);
}

static int check_kind(int descriptor, const char *what, const char *path, size_t *nbytes)
{
    struct stat status;
    if (fstat(descriptor, &status) < 0)
        return ek_file_fail(what, "open", path);
    if (S_ISDIR(status.st_mode)) {
        errno = EISDIR;
        return ek_file_fail(what, "open", path);
    }
    if (!S_ISREG(status.st_mode))
        return fail_kind(what, path);
    *nbytes = (size_t)status.st_size;
    return 0;
}

int ek_file_open(const char *what, const char *path, size_t *nbytes)
{
    /* Without O_NONBLOCK the opening of a pipe waits for its writer. */
    int descriptor = ek_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0)
        return errno == ENXIO ? fail_kind(what, path) : ek_file_fail(what, "open", path);
    int status = check_kind(descriptor, what, path, nbytes);
    if (status == 0)
        return descriptor;
    close(descriptor);
    return status;
}
