/* image.h: functions that the decoders of pictures share, and PNG files in memory.
 *
 * Files have interleaved pixels: the channels of a pixel are neighbours. Decoders write planes, one
 * per channel. A pixel with 1 channel is brightness (or an index of a palette), with 2 brightness
 * and alpha, with 3 RGB, with 4 RGBA. */
#ifndef EK_DATA_IMAGE_H
#define EK_DATA_IMAGE_H

#include "core/tensor.h"
#include "data/stream.h"
#include "evenkeel/data.h"

enum { EK_MAX_PIXELS = 1 << 28 }; /* 1 GiB if a pixel has four channels of a byte */

/* An encoded picture. */
typedef struct ek_encoded {
    const char *what, *path; /* the beginning of every error message; borrowed */
    const uint8_t *bytes;
    size_t nbytes;
    int channels; /* the channels asked for; 0: the file's own channels and values */
    int64_t max_pixels;
} ek_encoded;

/* Fails with EK_E_NO_MEMORY, because there is no memory to decode the picture. */
int ek_encoded_fail_memory(const ek_encoded *picture);

/* Decode a PNG or JPEG file. Both return the tensor in the scope, and leave nothing else there.
 * NULL with EK_E_FORMAT or EK_E_NO_MEMORY. */
ek_tensor *ek_encoded_png(const ek_encoded *picture);
ek_tensor *ek_encoded_jpeg(const ek_encoded *picture);

/* ek_read_image with another limit than EK_MAX_PIXELS. */
ek_tensor *ek_image_read(const char *path, int channels, int64_t max_pixels);

/* EK_E_FORMAT for an empty picture, and for one of more pixels than picture->max_pixels. Decoders
 * call it before they allocate anything of that size. */
int ek_encoded_check_size(const ek_encoded *picture, int64_t width, int64_t height);

/* Returns an uninitialised result with picture->channels channels, or with `own` if that is 0. */
ek_tensor *ek_encoded_tensor(const ek_encoded *picture, int own, int64_t width, int64_t height,
                             ek_dtype dtype);

/* Writes `count` pixels of `from` channels to `to` planes, which are `plane` bytes apart. The
 * brightness of colors is ITU-R 601's in 16 bits, rounded as by Pillow. A missing alpha becomes
 * 255. An alpha that was not asked for is dropped without compositing. */
void ek_decoded_planes(const uint8_t *pixels, int from, uint8_t *planes, size_t plane, int to,
                       size_t count);

/* Writes `count` pixels of `channels` big-endian 16-bit samples to `channels` planes, which are
 * `plane` elements apart. */
void ek_decoded_wide_planes(const uint8_t *pixels, int channels, int64_t *planes, size_t plane,
                            size_t count);

/* A PNG file in memory. */
typedef struct ek_png {
    uint8_t *bytes; /* owned */
    size_t nbytes;
    int64_t channels, height, width;
} ek_png;

/* Encodes the grid of pictures that ek_make_grid would make. The caller frees png->bytes, also
 * after an error. */
int ek_png_of_grid(const char *what, const ek_grid_options *options, ek_png *png);
/* Writes the file at `path`, whole or not at all. */
int ek_png_save(const char *what, const char *path, ek_png *png);

#endif
