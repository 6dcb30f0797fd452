/* idx.c: the IDX format of the MNIST family: magic (two zero bytes, element type, dimensions),
 * sizes as big-endian u32, then the elements in row-major order. zlib reads plain files and gzip
 * alike. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "core/thread.h"
#include "evenkeel/data.h"
#include "evenkeel/scope.h"

enum { IDX_U8 = 0x08 };

/* Sets the error for a failed read: the system's or a damaged stream's. */
static int fail_read(gzFile file, const char *path)
{
    int code;
    const char *text = gzerror(file, &code);

    if (code == Z_ERRNO)
        return EK_FAIL(EK_E_IO, "read_idx: cannot read %s: %s", path, strerror(errno));
    return EK_FAIL(EK_E_FORMAT, "read_idx: %s is damaged or truncated: %s", path, text);
}

/* Reads up to nbytes, fewer only at the end of the file; *got says how many. */
static int read_some(gzFile file, const char *path, void *data, size_t nbytes, size_t *got)
{
    *got = 0;
    while (*got < nbytes) {
        size_t left = nbytes - *got;
        int count =
            gzread(file, (char *)data + *got, left < (1u << 30) ? (unsigned)left : 1u << 30);
        if (count < 0)
            return fail_read(file, path);
        if (count == 0)
            break;
        *got += (size_t)count;
    }
    return 0;
}

static int read_header(gzFile file, const char *path, uint8_t bytes[4])
{
    size_t got;

    EK_TRY(read_some(file, path, bytes, 4, &got));
    if (got < 4)
        return EK_FAIL(EK_E_FORMAT, "read_idx: %s is truncated: it ends within its header", path);
    return 0;
}

/* A size of 0 does not save the others: no tensor has sizes that multiply to more. */
static int read_shape(gzFile file, const char *path, ek_shape *shape)
{
    const int64_t most = INT64_MAX / 16;
    uint8_t magic[4], size[4];
    int64_t count = 1;

    EK_TRY(read_header(file, path, magic));
    if (magic[0] != 0 || magic[1] != 0)
        return EK_FAIL(EK_E_FORMAT,
                       "read_idx: %s: not an IDX file: it begins with %02x %02x instead of 00 00",
                       path, magic[0], magic[1]);
    if (magic[2] != IDX_U8)
        return EK_FAIL(EK_E_FORMAT,
                       "read_idx: %s: elements of type 0x%02x; unsigned bytes (0x08) are read",
                       path, magic[2]);
    if (magic[3] < 1 || magic[3] > EK_MAX_DIMS)
        return EK_FAIL(EK_E_FORMAT, "read_idx: %s: %d dimensions; 1 to %d are read", path, magic[3],
                       EK_MAX_DIMS);
    shape->ndim = magic[3];
    for (int i = 0; i < shape->ndim; i++) {
        EK_TRY(read_header(file, path, size));
        shape->dims[i] = (int64_t)size[0] << 24 | size[1] << 16 | size[2] << 8 | size[3];
        if (__builtin_mul_overflow(count, shape->dims[i] ? shape->dims[i] : 1, &count) ||
            count > most)
            return EK_FAIL(EK_E_FORMAT, "read_idx: %s: its sizes multiply to more than 2^59", path);
    }
    return 0;
}

/* The memory grows with what is read, so that sizes which a damaged file only claims cost nothing.
 */
static int read_elements(gzFile file, const char *path, size_t nbytes, uint8_t **elements)
{
    size_t done = 0, room = 1u << 20, got;
    uint8_t after;

    do {
        room = room < nbytes ? room : nbytes;
        uint8_t *larger = ek_realloc(*elements, room + 1);
        if (!larger)
            return EK_E_NO_MEMORY;
        *elements = larger;
        EK_TRY(read_some(file, path, larger + done, room - done, &got));
        done += got;
        if (done < room)
            return EK_FAIL(EK_E_FORMAT, "read_idx: %s is truncated: %zu of %zu elements", path,
                           done, nbytes);
        room *= 2;
    } while (done < nbytes);
    EK_TRY(read_some(file, path, &after, 1, &got)); /* checks the sum of a gzip stream too */
    if (got > 0)
        return EK_FAIL(EK_E_FORMAT, "read_idx: %s: bytes follow its %zu elements", path, nbytes);
    return 0;
}

ek_tensor *ek_read_idx(const char *path)
{
    ek_shape shape = {0};
    ek_tensor *tensor = NULL;
    uint8_t *elements = NULL;

    if (!path) {
        EK_FAIL(EK_E_INVALID, "read_idx: the path is NULL");
        return NULL;
    }
    errno = 0;
    gzFile file = gzopen(path, "rb");
    if (!file) {
        EK_FAIL(EK_E_IO, "read_idx: cannot open %s: %s", path, strerror(errno ? errno : ENOMEM));
        return NULL;
    }
    gzbuffer(file, 1u << 17);
    if (read_shape(file, path, &shape) == 0 &&
        read_elements(file, path, (size_t)ek_shape_count(&shape), &elements) == 0)
        tensor = ek_from_data(elements, shape, EK_U8);
    free(elements);
    gzclose(file);
    return tensor;
}
