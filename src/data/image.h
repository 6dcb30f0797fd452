/* image.h: what the decoders of pictures share.
 *
 * A decoder has pixels as they lie in files, the channels of a pixel side by side, and gives them
 * as planes. Pixels have 1 to 4 channels: brightness, or an index of a palette; brightness and
 * alpha; RGB; RGBA. */
#ifndef EK_DATA_IMAGE_H
#define EK_DATA_IMAGE_H

#include "core/tensor.h"
#include "data/stream.h"

/* An encoded picture. */
typedef struct ek_encoded {
    const char *what, *path; /* sentences begin with them */
    const uint8_t *bytes;
    size_t nbytes;
    int channels; /* asked for; 0: those of the file, and its values */
} ek_encoded;

/* The process has no memory to decode it; returns EK_E_NO_MEMORY. */
int ek_encoded_fail_memory(const ek_encoded *picture);

/* Both leave nothing but the result behind, and that belongs to the scope. NULL with EK_E_FORMAT,
 * or EK_E_NO_MEMORY. */
ek_tensor *ek_encoded_png(const ek_encoded *picture);
ek_tensor *ek_encoded_jpeg(const ek_encoded *picture);

/* EK_E_FORMAT for sizes of which no tensor is made: none, or so many pixels that four channels
 * of a byte would take more than 1 GiB. To be asked before anything of that size is allocated. */
int ek_encoded_check_size(const ek_encoded *picture, int64_t width, int64_t height);

/* The result, uninitialised: of the channels asked for, or of `own` ones. */
ek_tensor *ek_encoded_tensor(const ek_encoded *picture, int own, int64_t width, int64_t height,
                             ek_dtype dtype);

/* Writes `count` pixels of `from` channels to `to` planes, `plane` bytes apart: brightness of
 * colours is ITU-R 601's in 16 bits, as Pillow rounds it; a missing alpha is 255, a superfluous one
 * is dropped without compositing. */
void ek_decoded_planes(const uint8_t *pixels, int from, uint8_t *planes, size_t plane, int to,
                       size_t count);

/* Writes `count` pixels of `channels` samples, each 16 bits, big-endian, to as many planes, `plane`
 * elements apart. */
void ek_decoded_wide_planes(const uint8_t *pixels, int channels, int64_t *planes, size_t plane,
                            size_t count);

#endif
