/* image.c: decodes pictures from files and from memory. */
#include "data/image.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/file.h"
#include "evenkeel/data.h"
#include "evenkeel/scope.h"

static const size_t max_file = (size_t)1 << 31;

/* ---- telling formats apart ---- */

enum { FIRST = 8 };

typedef ek_tensor *picture_decoder(const ek_encoded *picture);

/* Returns the decoder for a file that begins with these bytes; NULL if there is none. */
static picture_decoder *picture_decoder_of(const uint8_t *bytes, size_t nbytes)
{
    static const uint8_t png[FIRST] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    static const uint8_t jpeg[3] = {0xff, 0xd8, 0xff};
    if (nbytes >= sizeof png && memcmp(bytes, png, sizeof png) == 0)
        return ek_encoded_png;
    if (nbytes >= sizeof jpeg && memcmp(bytes, jpeg, sizeof jpeg) == 0)
        return ek_encoded_jpeg;
    return NULL;
}

static int picture_fail_unknown(const ek_encoded *picture)
{
    char text[3 * FIRST + 1] = "";
    if (picture->nbytes == 0)
        return EK_FAIL_IN(EK_E_FORMAT, picture, "empty; PNG and JPEG are read");
    for (size_t i = 0; i < picture->nbytes && i < FIRST; i++)
        snprintf(text + 3 * i, 4, " %02x", picture->bytes[i]);
    return EK_FAIL_IN(EK_E_FORMAT, picture, "neither PNG nor JPEG: it begins with%s", text);
}

static ek_tensor *picture_decode(const ek_encoded *picture)
{
    picture_decoder *decoder = picture_decoder_of(picture->bytes, picture->nbytes);
    ek_scope scope = ek_scope_begin(); /* a decoder that fails half-way leaves nothing behind */
    ek_tensor *tensor = decoder ? decoder(picture) : NULL;
    if (!decoder)
        picture_fail_unknown(picture);
    return ek_scope_return(&scope, tensor);
}

static int picture_check_channels(const ek_encoded *picture)
{
    if (picture->channels < 0 || picture->channels > 4)
        return EK_FAIL(
            EK_E_INVALID,
            "%s: %.500s: %d channels; 1 (brightness), 2 (with alpha), 3 (RGB), 4 (RGBA) or "
            "0 (the file's) are possible",
            picture->what, picture->path, picture->channels);
    return 0;
}

ek_tensor *ek_decode_image(const void *bytes, size_t nbytes, int channels, const char *name)
{
    ek_encoded picture = {"decode_image", name ? name : "a picture", bytes, nbytes, channels,
                          EK_MAX_PIXELS};
    if (!bytes && nbytes > 0)
        return EK_FAIL_NULL(EK_E_INVALID, "decode_image: %s: the bytes are NULL", picture.path);
    return picture_check_channels(&picture) < 0 ? NULL : picture_decode(&picture);
}

/* ---- files ---- */

/* Reads on until `most` bytes are there or the file ends. Updates picture->nbytes. */
static int file_read_up_to(int file, ek_encoded *picture, uint8_t *bytes, size_t most)
{
    while (picture->nbytes < most) {
        ssize_t got = read(file, bytes + picture->nbytes, most - picture->nbytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return ek_file_fail(picture->what, "read", picture->path);
        if (got == 0)
            break;
        picture->nbytes += (size_t)got;
    }
    return 0;
}

/* Reads the whole file, or only its first bytes if they are no picture's. The caller frees *bytes.
 * `size` is the file's size as far as known: the file may grow meanwhile. */
static int file_read(int file, ek_encoded *picture, size_t size, uint8_t **bytes)
{
    size_t room = size < FIRST ? FIRST + 1 : size < max_file ? size + 1 : 1u << 16;
    for (size_t most = FIRST;; most = room *= 2) {
        uint8_t *larger = ek_realloc(*bytes, room);
        if (!larger)
            return EK_E_NO_MEMORY;
        *bytes = larger;
        if (most == FIRST) {
            EK_TRY(file_read_up_to(file, picture, *bytes, FIRST));
            if (!picture_decoder_of(*bytes, picture->nbytes))
                return 0;
        }
        EK_TRY(file_read_up_to(file, picture, *bytes, room));
        if (picture->nbytes < room)
            return 0;
        if (room >= max_file)
            return EK_FAIL_IN(EK_E_FORMAT, picture, "a file of more than %zu bytes is not read",
                              max_file);
    }
}

ek_tensor *ek_read_image(const char *path, int channels)
{
    return ek_image_read(path, channels, EK_MAX_PIXELS);
}

ek_tensor *ek_image_read(const char *path, int channels, int64_t max_pixels)
{
    ek_encoded picture = {"read_image", path, NULL, 0, channels, max_pixels};
    ek_tensor *tensor = NULL;
    uint8_t *bytes = NULL;
    size_t size = 0;
    int file = -1;
    if (ek_check_pointer(picture.what, "the path", path) < 0 ||
        picture_check_channels(&picture) < 0 ||
        (file = ek_file_open(picture.what, path, &size)) < 0)
        return NULL;
    int status = file_read(file, &picture, size, &bytes);
    close(file);
    picture.bytes = bytes;
    if (status == 0)
        tensor = picture_decode(&picture);
    free(bytes);
    return tensor;
}
