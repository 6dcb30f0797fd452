/* stream.c: see stream.h. zlib reads plain files and gzip alike. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/file.h"
#include "data/stream.h"

enum { FIRST_ROOM = 1 << 16, ZLIB_BUFFER = 1 << 14, MOST_AT_ONCE = 1 << 30 };

/* ---- reading ---- */

int ek_byte_stream_open(ek_byte_stream *stream, const char *what, const char *path)
{
    *stream = (ek_byte_stream){.what = what, .path = path};
    EK_TRY(ek_check_pointer(what, "the path", path));
    int descriptor = ek_file_open(what, path, &stream->file_nbytes);
    EK_TRY(descriptor);
    stream->file = gzdopen(descriptor, "rb");
    if (!stream->file) {
        close(descriptor);
        return EK_FAIL(EK_E_NO_MEMORY, "%s: no memory to read %s", what, path);
    }
    gzbuffer(stream->file, ZLIB_BUFFER);
    return 0;
}

void ek_byte_stream_close(ek_byte_stream *stream)
{
    if (stream->file)
        gzclose(stream->file);
    stream->file = NULL;
}

/* Reports the system's error, or the error of a damaged stream. gzread doesn't report a stream that
 * ends too early: it returns the existing bytes, then nothing. */
static int stream_check(const ek_byte_stream *stream)
{
    int code;
    const char *text = gzerror(stream->file, &code);
    if (code == Z_OK || code == Z_STREAM_END)
        return 0;
    if (code == Z_ERRNO)
        return ek_file_fail(stream->what, "read", stream->path);
    if (code == Z_MEM_ERROR)
        return EK_FAIL(EK_E_NO_MEMORY, "%s: no memory to inflate %s", stream->what, stream->path);
    return EK_FAIL_IN(EK_E_FORMAT, stream, "damaged or truncated: %s", text);
}

/* Reads up to nbytes, fewer only at the end of the file; *got says how many. */
static int stream_read(ek_byte_stream *stream, void *data, size_t nbytes, size_t *got)
{
    *got = 0;
    while (*got < nbytes) {
        size_t left = nbytes - *got;
        int count = gzread(stream->file, (char *)data + *got,
                           left < MOST_AT_ONCE ? (unsigned)left : MOST_AT_ONCE);
        if (count <= 0)
            return stream_check(stream);
        *got += (size_t)count;
    }
    return 0;
}

int ek_byte_stream_read_header(ek_byte_stream *stream, void *data, size_t nbytes)
{
    size_t got;
    EK_TRY(stream_read(stream, data, nbytes, &got));
    if (got < nbytes)
        return EK_FAIL_IN(EK_E_FORMAT, stream, "truncated: it ends within its header");
    return 0;
}

static int bytes_grow(ek_bytes *bytes, size_t most)
{
    size_t room = bytes->room < FIRST_ROOM ? FIRST_ROOM : 2 * bytes->room;
    if (room > most)
        room = most;
    uint8_t *larger = ek_realloc(bytes->bytes, room);
    if (!larger)
        return EK_E_NO_MEMORY;
    bytes->bytes = larger;
    bytes->room = room;
    return 0;
}

int ek_byte_stream_append(ek_byte_stream *stream, size_t most, ek_bytes *bytes)
{
    size_t end = most < SIZE_MAX - bytes->nbytes ? bytes->nbytes + most : SIZE_MAX;
    while (bytes->nbytes < end) {
        if (bytes->nbytes == bytes->room)
            EK_TRY(bytes_grow(bytes, end));
        size_t room = (bytes->room < end ? bytes->room : end) - bytes->nbytes, got;
        EK_TRY(stream_read(stream, bytes->bytes + bytes->nbytes, room, &got));
        bytes->nbytes += got;
        if (got < room)
            break;
    }
    return 0;
}

/* Refuses a claim that no gzip stream of this size can hold. A plain file that is too short fails
 * when it is read. */
static int stream_check_claim(const ek_byte_stream *stream, size_t count, size_t size)
{
    if (count * size / EK_DEFLATE_MOST <= stream->file_nbytes)
        return 0;
    return EK_FAIL_IN(EK_E_FORMAT, stream,
                      "truncated: its header says %zu elements, which take %zu bytes; in a file "
                      "of %zu there are at most %zu",
                      count, count * size, stream->file_nbytes,
                      stream->file_nbytes * EK_DEFLATE_MOST);
}

int ek_byte_stream_append_elements(ek_byte_stream *stream, size_t count, size_t size,
                                   ek_bytes *bytes)
{
    size_t before = bytes->nbytes, got;
    uint8_t after;
    EK_TRY(stream_check_claim(stream, count, size));
    EK_TRY(ek_byte_stream_append(stream, count * size, bytes));
    if (bytes->nbytes - before < count * size)
        return EK_FAIL_IN(EK_E_FORMAT, stream, "truncated: %zu of %zu elements",
                          (bytes->nbytes - before) / size, count);
    EK_TRY(stream_read(stream, &after, 1, &got)); /* also makes zlib verify the checksum */
    if (got > 0)
        return EK_FAIL_IN(EK_E_FORMAT, stream, "bytes follow its %zu elements", count);
    return 0;
}

/* ---- sizes ---- */

int ek_byte_stream_add_size(const ek_byte_stream *stream, ek_shape *shape, int64_t size)
{
    const int64_t most = INT64_MAX / 16; /* elements; their bytes must fit in an int64_t */
    int64_t count = size ? size : 1;
    if (shape->ndim == EK_MAX_DIMS)
        return EK_FAIL_IN(EK_E_FORMAT, stream, "more than %d dimensions", EK_MAX_DIMS);
    for (int i = 0; i < shape->ndim; i++) {
        int64_t other = shape->dims[i] ? shape->dims[i] : 1;
        count = count > most / other ? INT64_MAX : count * other;
    }
    if (count > most)
        return EK_FAIL_IN(EK_E_FORMAT, stream, "its sizes multiply to more than 2^59");
    shape->dims[shape->ndim++] = size;
    return 0;
}

/* ---- names ---- */

static char *stream_path(const char *directory, const char *name, const char *ending)
{
    size_t nbytes = strlen(directory) + strlen(name) + strlen(ending) + 2;
    char *path = ek_calloc(1, nbytes);
    if (path)
        snprintf(path, nbytes, "%s/%s%s", directory, name, ending);
    return path;
}

/* Returns true if no file has this name. Other obstacles are reported when the file is opened. */
static bool stream_is_missing(const char *path)
{
    return access(path, F_OK) != 0 && errno == ENOENT;
}

char *ek_byte_stream_find(const char *what, const char *directory, const char *name,
                          const char *must_hold)
{
    static const char *const endings[] = {"", ".gz"};
    if (ek_check_pointer(what, "the directory", directory) < 0)
        return NULL;
    for (int i = 0; i < 2; i++) {
        char *path = stream_path(directory, name, endings[i]);
        if (!path || !stream_is_missing(path))
            return path;
        free(path);
    }
    return EK_FAIL_NULL(EK_E_IO, "%s: %s has neither %s nor %s.gz; it must hold %s", what,
                        directory, name, name, must_hold);
}
