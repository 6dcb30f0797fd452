/* inject_io.c: system calls and streams that fail.
 *
 * close and fclose do their work and then say that it failed. A stream whose write failed keeps its
 * mark until it is closed, as libc's own do. Not here: unlink and munmap, which put back what
 * failed before. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "inject.h"
#include "ledger.h"

/* Every call is a point of both series. */
static bool io_fails(const char *function)
{
    bool error = inject_hit(INJECT_ERROR, function), full = inject_hit(INJECT_FULL, function);
    if (error || full)
        errno = error ? EIO : ENOSPC;
    return error || full;
}

/* The same for calls that a signal can interrupt. */
static bool io_breaks(const char *function)
{
    bool interrupted = inject_hit(INJECT_INTERRUPTED, function);
    bool fails = io_fails(function);
    if (interrupted)
        errno = EINTR;
    return interrupted || fails;
}

/* For those that move bytes: how many they are to move, or -1 with errno. */
static ssize_t io_bytes(const char *function, size_t nbytes)
{
    bool is_short = inject_hit(INJECT_SHORT, function), zero = inject_hit(INJECT_ZERO, function);
    if (io_breaks(function))
        return -1;
    if (zero)
        return 0;
    return (ssize_t)(is_short && nbytes > 1 ? nbytes / 2 : nbytes);
}

#define IO_BYTES(name, type, parameters, arguments) \
    ssize_t __real_##name parameters;               \
    ssize_t __wrap_##name parameters;               \
    ssize_t __wrap_##name parameters                \
    {                                               \
        ssize_t most = io_bytes(#name, nbytes);     \
        if (most <= 0 && nbytes > 0)                \
            return most;                            \
        nbytes = (size_t)most;                      \
        return __real_##name arguments;             \
    }

IO_BYTES(read, void *, (int file, void *data, size_t nbytes), (file, data, nbytes))
IO_BYTES(pread, void *, (int file, void *data, size_t nbytes, off_t at), (file, data, nbytes, at))
IO_BYTES(write, const void *, (int file, const void *data, size_t nbytes), (file, data, nbytes))

#define IO_CALL(fails, result, bad, name, parameters, arguments) \
    result __real_##name parameters;                             \
    result __wrap_##name parameters;                             \
    result __wrap_##name parameters                              \
    {                                                            \
        return fails(#name) ? (bad) : __real_##name arguments;   \
    }

IO_CALL(io_breaks, int, -1, fsync, (int file), (file))
IO_CALL(io_fails, FILE *, NULL, fdopen, (int file, const char *mode), (file, mode))
IO_CALL(io_fails, int, -1, rename, (const char *from, const char *to), (from, to))
IO_CALL(io_fails, int, -1, mkdir, (const char *path, mode_t mode), (path, mode))
IO_CALL(io_fails, int, -1, linkat, (int at, const char *from, int to_at, const char *to, int flags),
        (at, from, to_at, to, flags))
IO_CALL(io_fails, int, -1, stat, (const char *path, struct stat *about), (path, about))
IO_CALL(io_fails, int, -1, lstat, (const char *path, struct stat *about), (path, about))
IO_CALL(io_fails, int, -1, fstat, (int file, struct stat *about), (file, about))
IO_CALL(io_fails, int, -1, fchmod, (int file, mode_t mode), (file, mode))
IO_CALL(io_fails, int, -1, fchown, (int file, uid_t owner, gid_t group), (file, owner, group))
IO_CALL(io_fails, int, -1, dup, (int file), (file))
IO_CALL(io_fails, int, -1, access, (const char *path, int mode), (path, mode))
IO_CALL(io_fails, int, -1, faccessat, (int at, const char *path, int mode, int flags),
        (at, path, mode, flags))

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(list, mode_t) : 0;
    va_end(list);
    return io_breaks("open") ? -1 : __real_open(path, flags, mode);
}

int __real_close(int file);
int __wrap_close(int file);
int __wrap_close(int file)
{
    int closed = __real_close(file);
    return io_breaks("close") ? -1 : closed;
}

typedef int io_compare(const struct dirent **a, const struct dirent **b);

/* It fails for want of memory too. */
int __real_scandir(const char *path, struct dirent ***list,
                   int (*filter)(const struct dirent *entry), io_compare *compare);
int __wrap_scandir(const char *path, struct dirent ***list,
                   int (*filter)(const struct dirent *entry), io_compare *compare);
int __wrap_scandir(const char *path, struct dirent ***list,
                   int (*filter)(const struct dirent *entry), io_compare *compare)
{
    bool no_memory = inject_hit(INJECT_MEMORY, "scandir");
    if (io_fails("scandir"))
        return -1;
    if (no_memory) {
        errno = ENOMEM;
        return -1;
    }
    return __real_scandir(path, list, filter, compare);
}

/* ---- streams ---- */

enum { MOST_STREAMS = 16 };

static struct {
    pthread_mutex_t lock;
    FILE *failed[MOST_STREAMS];
} streams = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Puts `to` in the place of `from`; false if there is no `from`. */
static bool stream_exchange(FILE *from, FILE *to)
{
    bool found = false;
    pthread_mutex_lock(&streams.lock);
    for (int i = 0; i < MOST_STREAMS && !found; i++) {
        found = streams.failed[i] == from;
        if (found)
            streams.failed[i] = to;
    }
    pthread_mutex_unlock(&streams.lock);
    return found;
}

/* Only the write that fills a stream's buffer reaches the system: of each 4096 bytes one is a
 * point. */
static bool stream_is_full(size_t nbytes)
{
    static atomic_size_t written;
    size_t before = atomic_fetch_add(&written, nbytes);
    return (before + nbytes) / 4096 != before / 4096;
}

static bool stream_fails(FILE *stream, const char *function, size_t nbytes)
{
    if ((nbytes > 0 && !stream_is_full(nbytes)) || !io_fails(function))
        return false;
    if (!stream_exchange(stream, stream))
        stream_exchange(NULL, stream);
    return true;
}

int __real_ferror(FILE *stream);
int __wrap_ferror(FILE *stream);
int __wrap_ferror(FILE *stream)
{
    return stream_exchange(stream, stream) || __real_ferror(stream);
}

int __real_fclose(FILE *stream);
int __wrap_fclose(FILE *stream);
int __wrap_fclose(FILE *stream)
{
    stream_exchange(stream, NULL);
    int closed = __real_fclose(stream);
    return io_fails("fclose") ? EOF : closed;
}

int __wrap_fprintf(FILE *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));
int __wrap_fprintf(FILE *stream, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int written = vfprintf(stream, format, list);
    va_end(list);
    return written > 0 && stream_fails(stream, "fprintf", (size_t)written) ? -1 : written;
}

#define IO_STREAM(result, bad, nbytes, name, parameters, arguments)                   \
    result __real_##name parameters;                                                  \
    result __wrap_##name parameters;                                                  \
    result __wrap_##name parameters                                                   \
    {                                                                                 \
        return stream_fails(stream, #name, nbytes) ? (bad) : __real_##name arguments; \
    }

IO_STREAM(int, EOF, 0, fflush, (FILE * stream), (stream))
IO_STREAM(int, EOF, strlen(text), fputs, (const char *text, FILE *stream), (text, stream))
IO_STREAM(int, EOF, 1, fputc, (int character, FILE *stream), (character, stream))
IO_STREAM(size_t, 0, size *count, fwrite,
          (const void *data, size_t size, size_t count, FILE *stream), (data, size, count, stream))
