/* image.c: pictures, from files and from memory. */
#include "data/image.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "evenkeel/data.h"
#include "evenkeel/scope.h"

static const int64_t max_pixels = (int64_t)1 << 28;
static const size_t max_file = (size_t)1 << 31;

/* ---- for decoders ---- */

int ek_encoded_fail(const ek_encoded *picture, const char *file, int line, const char *format, ...)
{
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return ek_error_set(EK_E_FORMAT, file, line, "%s: %.500s: %s", picture->what, picture->name,
                        text);
}

int ek_encoded_fail_memory(const ek_encoded *picture)
{
    return EK_FAIL(EK_E_NO_MEMORY, "%s: %.500s: the process has no memory left to decode it",
                   picture->what, picture->name);
}

int ek_encoded_check_size(const ek_encoded *picture, int64_t width, int64_t height)
{
    if (width < 1 || height < 1)
        return EK_ENCODED_FAIL(picture, "%lld x %lld pixels are no picture", (long long)width,
                               (long long)height);
    if (height > max_pixels / width)
        return EK_ENCODED_FAIL(picture, "%lld x %lld pixels; at most %lld in all are read",
                               (long long)width, (long long)height, (long long)max_pixels);
    return 0;
}

ek_tensor *ek_encoded_tensor(const ek_encoded *picture, int own, int64_t width, int64_t height,
                             ek_dtype dtype)
{
    int channels = picture->channels ? picture->channels : own;
    return ek_empty(EK_SHAPE(channels, height, width), .dtype = dtype);
}

/* ---- telling formats apart ---- */

enum { FIRST = 8 };

typedef ek_tensor *picture_decoder(const ek_encoded *picture);

/* The decoder of what begins with these bytes; NULL: none's. */
static picture_decoder *decoder_of(const uint8_t *bytes, size_t nbytes)
{
    static const uint8_t png[FIRST] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    static const uint8_t jpeg[3] = {0xff, 0xd8, 0xff};
    if (nbytes >= sizeof png && memcmp(bytes, png, sizeof png) == 0)
        return ek_encoded_png;
    if (nbytes >= sizeof jpeg && memcmp(bytes, jpeg, sizeof jpeg) == 0)
        return ek_encoded_jpeg;
    return NULL;
}

static int fail_unknown(const ek_encoded *picture)
{
    char text[3 * FIRST + 1] = "";
    if (picture->nbytes == 0)
        return EK_ENCODED_FAIL(picture, "empty; PNG and JPEG are read");
    for (size_t i = 0; i < picture->nbytes && i < FIRST; i++)
        snprintf(text + 3 * i, 4, " %02x", picture->bytes[i]);
    return EK_ENCODED_FAIL(picture, "neither PNG nor JPEG: it begins with%s", text);
}

static ek_tensor *decode(const ek_encoded *picture)
{
    picture_decoder *decoder = decoder_of(picture->bytes, picture->nbytes);
    if (!decoder) {
        fail_unknown(picture);
        return NULL;
    }
    ek_scope scope = ek_scope_begin(); /* nothing is left of what fails half-way */
    return ek_scope_return(&scope, decoder(picture));
}

static int check_channels(const char *what, const char *name, int channels)
{
    if (channels < 0 || channels > 4)
        return EK_FAIL(
            EK_E_INVALID,
            "%s: %.500s: %d channels; 1 (brightness), 2 (with alpha), 3 (RGB), 4 (RGBA) or "
            "0 (the file's) are possible",
            what, name, channels);
    return 0;
}

ek_tensor *ek_decode_image(const void *bytes, size_t nbytes, int channels, const char *name)
{
    ek_encoded picture = {"decode_image", name ? name : "a picture", bytes, nbytes, channels};
    if (!bytes && nbytes > 0) {
        EK_FAIL(EK_E_INVALID, "decode_image: %s: the bytes are NULL", picture.name);
        return NULL;
    }
    if (check_channels(picture.what, picture.name, channels) < 0)
        return NULL;
    return decode(&picture);
}

/* ---- files ---- */

/* Reads until there are `most` bytes or the file ends; *nbytes counts on. */
static int read_up_to(int file, const char *path, uint8_t *bytes, size_t most, size_t *nbytes)
{
    while (*nbytes < most) {
        ssize_t got = read(file, bytes + *nbytes, most - *nbytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return ek_file_fail("read_image", "read", path);
        if (got == 0)
            break;
        *nbytes += (size_t)got;
    }
    return 0;
}

/* The whole file, or the first bytes of one that is no picture; the caller frees *bytes. `size` is
 * where to begin with: the file may grow. */
static int read_whole(int file, const char *path, size_t size, uint8_t **bytes, size_t *nbytes)
{
    size_t room = size < FIRST ? FIRST + 1 : size < max_file ? size + 1 : 1u << 16;
    for (size_t most = FIRST;; most = room *= 2) {
        uint8_t *larger = ek_realloc(*bytes, room);
        if (!larger)
            return EK_E_NO_MEMORY;
        *bytes = larger;
        if (most == FIRST) {
            EK_TRY(read_up_to(file, path, *bytes, FIRST, nbytes));
            if (!decoder_of(*bytes, *nbytes))
                return 0;
        }
        EK_TRY(read_up_to(file, path, *bytes, room, nbytes));
        if (*nbytes < room)
            return 0;
        if (room >= max_file)
            return EK_FAIL(EK_E_FORMAT,
                           "read_image: %.500s: a file of more than %zu bytes is not read", path,
                           max_file);
    }
}

ek_tensor *ek_read_image(const char *path, int channels)
{
    ek_encoded picture = {"read_image", path, NULL, 0, channels};
    ek_tensor *tensor = NULL;
    uint8_t *bytes = NULL;
    if (!path) {
        EK_FAIL(EK_E_INVALID, "read_image: the path is NULL");
        return NULL;
    }
    if (check_channels(picture.what, path, channels) < 0)
        return NULL;
    size_t size = 0;
    int file = ek_file_open("read_image", path, &size);
    if (file < 0)
        return NULL;
    int status = read_whole(file, path, size, &bytes, &picture.nbytes);
    close(file);
    picture.bytes = bytes;
    if (status == 0)
        tensor = decode(&picture);
    free(bytes);
    return tensor;
}
