/* idx.c: the IDX format of the MNIST family: magic (two zero bytes, element type, dimensions),
 * sizes as big-endian u32, then the elements in row-major order. */
#include <stdlib.h>

#include "core/thread.h"
#include "data/stream.h"
#include "evenkeel/data.h"

enum { IDX_U8 = 0x08 };

static int read_shape(ek_stream *stream, ek_shape *shape)
{
    const char *path = stream->path;
    uint8_t magic[4], size[4];

    EK_TRY(ek_stream_read_header(stream, magic, sizeof magic));
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
    for (int i = 0; i < magic[3]; i++) {
        EK_TRY(ek_stream_read_header(stream, size, sizeof size));
        EK_TRY(ek_stream_add_size(stream, shape,
                                  (int64_t)size[0] << 24 | size[1] << 16 | size[2] << 8 | size[3]));
    }
    return 0;
}

ek_tensor *ek_read_idx(const char *path)
{
    ek_stream stream;
    ek_shape shape = {0};
    ek_bytes elements = {0};
    ek_tensor *tensor = NULL;

    if (ek_stream_open(&stream, "read_idx", path) < 0)
        return NULL;
    if (read_shape(&stream, &shape) == 0 &&
        ek_stream_append_elements(&stream, (size_t)ek_shape_count(&shape), 1, &elements) == 0)
        tensor = ek_from_data(elements.bytes, shape, EK_U8);
    free(elements.bytes);
    ek_stream_close(&stream);
    return tensor;
}
