/* image_jpeg.c: JPEG by TurboJPEG: baseline and progressive, with one, three or four components. */
#include <stdlib.h>
#include <string.h>
#include <turbojpeg.h>

#include "core/error.h"
#include "data/image.h"

/* ---- before decoding ---- */

/* Returns where the first scan begins; the file's size if there is none. */
static size_t jpeg_first_scan(const uint8_t *bytes, size_t nbytes)
{
    enum { SOS = 0xda };
    for (size_t at = 2; at + 4 <= nbytes;) {
        int marker = bytes[at + 1];
        if (bytes[at] != 0xff || marker == 0xff) { /* fill bytes, or bytes that decoders skip */
            at++;
            continue;
        }
        if (marker == SOS)
            return at;
        bool alone = marker < 2 || (marker >= 0xd0 && marker <= 0xd8);
        at += alone ? 2 : 2 + ((size_t)bytes[at + 2] << 8 | bytes[at + 3]);
    }
    return nbytes;
}

/* Counts where the two bytes of the scan marker occur. Other data may hold them, too, so that the
 * count may be too large. */
static uint64_t jpeg_count_scans(const uint8_t *bytes, size_t nbytes)
{
    enum { SOS = 0xda };
    uint64_t count = 0;
    const uint8_t *at = bytes, *end = bytes + nbytes;
    while (at < end && (at = memchr(at, 0xff, (size_t)(end - at))))
        count += ++at < end && *at == SOS;
    return count;
}

/* Returns true if an end marker follows the scan. In a scan's data, zero follows 0xff. */
static bool jpeg_has_end(const uint8_t *bytes, size_t nbytes, size_t scan)
{
    for (size_t at = nbytes - 2; at > scan; at--)
        if (bytes[at] == 0xff && bytes[at + 1] == 0xd9)
            return true;
    return false;
}

/* Checks that the file has an end marker, and that its size can hold the picture. TurboJPEG reports
 * a missing end marker only as a warning, and keeps the first of several warnings only.
 *
 * Pixels take memory, and each scan takes time for all pixels, even without data, so that the
 * file's size bounds both. In Huffman's coding a block of 8 x 8 values takes at least one bit. So a
 * white picture takes a byte for 512 pixels, a white picture of ten scans a byte for 1700 pixels of
 * its scans. Arithmetic coding takes hardly any bits for white, for which PIXELS_FREE are allowed.
 */
static int jpeg_check_claim(const ek_encoded *picture, int width, int height)
{
    enum { PIXELS_PER_BYTE = 4096, PIXELS_FREE = 1 << 22 };
    size_t scan = jpeg_first_scan(picture->bytes, picture->nbytes);
    uint64_t scans = jpeg_count_scans(picture->bytes, picture->nbytes);
    uint64_t pixels = (uint64_t)width * (uint64_t)height;
    EK_TRY(ek_encoded_check_size(picture, width, height));
    if (!jpeg_has_end(picture->bytes, picture->nbytes, scan))
        return EK_FAIL_IN(EK_E_FORMAT, picture, "truncated: a JPEG file without an end");
    if (pixels * scans > PIXELS_FREE + (uint64_t)PIXELS_PER_BYTE * picture->nbytes)
        return EK_FAIL_IN(EK_E_FORMAT, picture,
                          "truncated: %d x %d pixels do not fit in a JPEG file of %zu bytes with "
                          "%llu %s",
                          width, height, picture->nbytes, (unsigned long long)scans,
                          scans == 1 ? "scan" : "scans");
    return 0;
}

/* ---- decoding ---- */

/* Returns true for the messages by which TurboJPEG, or libjpeg in it, reports a lack of memory.
 * There is no other sign. */
static bool jpeg_lacks_memory(const char *text)
{
    return strstr(text, "Memory allocation failure") || strstr(text, "Insufficient memory");
}

static int jpeg_fail(const ek_encoded *picture, tjhandle handle)
{
    const char *text = tjGetErrorStr2(handle);
    return jpeg_lacks_memory(text)
               ? ek_encoded_fail_memory(picture)
               : EK_FAIL_IN(EK_E_FORMAT, picture, "no JPEG that can be read: %s", text);
}

/* Returns true if decoding ended with one of the warnings that Pillow ignores, too. In this case
 * the pixels are valid. Compares messages, because after a warning the error code says "warning"
 * even if an error followed. */
static bool jpeg_is_harmless(tjhandle handle)
{
    static const char *const texts[] = {"Corrupt JPEG data", "Warning: unknown JFIF revision",
                                        "Inconsistent progression sequence",
                                        "Invalid SOS parameters for sequential JPEG",
                                        "Unknown Adobe color transform code"};
    const char *text = tjGetErrorStr2(handle);
    if (tjGetErrorCode(handle) != TJERR_WARNING)
        return false;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strncmp(text, texts[i], strlen(texts[i])) == 0)
            return true;
    return false;
}

/* Reads the header. Valid sizes mean success, whatever the status: TurboJPEG returns an error after
 * warnings, too, and for unusual subsampling that it decodes nevertheless. */
static int jpeg_read_header(const ek_encoded *picture, tjhandle handle, int *width, int *height,
                            int *space)
{
    int subsampling = -1;
    *width = *height = 0;
    *space = -1;
    int status = tjDecompressHeader3(handle, picture->bytes, (unsigned long)picture->nbytes, width,
                                     height, &subsampling, space);
    if (status < 0 && (*width < 1 || *height < 1))
        return jpeg_fail(picture, handle);
    if (*width < 1 || *height < 1)
        return EK_FAIL_IN(EK_E_FORMAT, picture,
                          "no JPEG that can be read: tables without a picture");
    if (*space < 0)
        return EK_FAIL_IN(EK_E_FORMAT, picture,
                          "a JPEG file of unknown colors; grey, RGB, YCbCr, CMYK and YCCK "
                          "are read");
    return jpeg_check_claim(picture, *width, *height);
}

/* Converts CMYK pixels to RGB in place. Their values are inverted (255 is no ink), as Adobe writes
 * them and all decoders read them. A color is paper - round(ink * paper / 255): `paper` is the
 * inverted black, and ink is 255 less the color's inverted value. */
static void jpeg_from_inks(uint8_t *pixels, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int paper = pixels[4 * i + 3];
        for (int c = 0; c < 3; c++) {
            int product = (255 - pixels[4 * i + (size_t)c]) * paper + 128;
            int light = paper - ((product + (product >> 8)) >> 8);
            pixels[3 * i + (size_t)c] = (uint8_t)(light > 0 ? light : 0);
        }
    }
}

static int jpeg_decode(const ek_encoded *picture, tjhandle handle, uint8_t **pixels,
                       ek_tensor **tensor)
{
    int width, height, space, flags = TJFLAG_ACCURATEDCT;
#ifdef TJFLAG_LIMITSCANS
    flags |= TJFLAG_LIMITSCANS;
#endif
    EK_TRY(jpeg_read_header(picture, handle, &width, &height, &space));
    bool gray = space == TJCS_GRAY, inks = space == TJCS_CMYK || space == TJCS_YCCK;
    int format = gray ? TJPF_GRAY : inks ? TJPF_CMYK : TJPF_RGB, own = gray ? 1 : 3;
    size_t count = (size_t)width * (size_t)height;
    *pixels = ek_realloc(NULL, count * (size_t)tjPixelSize[format]);
    *tensor = *pixels ? ek_encoded_tensor(picture, own, width, height, EK_U8) : NULL;
    if (!*tensor)
        return EK_E_NO_MEMORY;
    int status = tjDecompress2(handle, picture->bytes, (unsigned long)picture->nbytes, *pixels,
                               width, width * tjPixelSize[format], height, format, flags);
    if (status < 0 && !jpeg_is_harmless(handle))
        return jpeg_fail(picture, handle);
    if (inks)
        jpeg_from_inks(*pixels, count);
    ek_decoded_planes(*pixels, own, ek_tensor_address(*tensor), count, (int)(*tensor)->shape[0],
                      count);
    return 0;
}

ek_tensor *ek_encoded_jpeg(const ek_encoded *picture)
{
    ek_tensor *tensor = NULL;
    uint8_t *pixels = NULL;
    tjhandle handle = tjInitDecompress();
    int status =
        handle ? jpeg_decode(picture, handle, &pixels, &tensor) : ek_encoded_fail_memory(picture);
    if (handle)
        tjDestroy(handle);
    free(pixels);
    return status == 0 ? tensor : NULL;
}
