/* mnist.c: the IDX format and the MNIST family (MNIST, Fashion-MNIST, EMNIST...), which is two IDX
 * files, pictures and labels.
 *
 * IDX: magic (two zero bytes, element type, dimensions), sizes as big-endian u32, then the elements
 * in row-major order. */

#include <stdlib.h>

#include "core/tensor.h"
#include "core/thread.h"
#include "data/stream.h"
#include "evenkeel/data.h"
#include "evenkeel/dataset.h"

/* ---- IDX ---- */

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

/* ---- the MNIST family ---- */

static const char must_hold[] =
    "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
    "t10k-labels-idx1-ubyte, each as it is or with .gz";

/* Reads a file of `ndim` dimensions; *path is for sentences, and to be freed. */
static ek_tensor *read_named(const char *directory, const char *name, int ndim, char **path)
{
    const int before = ek_error_status();
    char text[160];
    *path = ek_stream_find("mnist", directory, name, must_hold);
    if (!*path)
        return NULL;
    ek_tensor *tensor = ek_read_idx(*path);
    if (!tensor) {
        ek_error_prefix(before, "mnist");
        return NULL;
    }
    if (tensor->ndim != ndim) {
        ek_shape shape = ek_tensor_shape(tensor);
        EK_FAIL(EK_E_FORMAT, "mnist: %s is of shape %s; %s", *path, ek_shape_text(&shape, text),
                ndim == 3 ? "pictures are [N, H, W]" : "labels are [N]");
        return NULL;
    }
    return tensor;
}

/* (N, H, W) as (N, 1, H, W). */
static ek_tensor *with_channel(const ek_tensor *pictures)
{
    const int64_t *size = pictures->shape, *step = pictures->stride;
    return ek_tensor_view(pictures, 4, (int64_t[]){size[0], 1, size[1], size[2]},
                          (int64_t[]){step[0], step[0], step[1], step[2]}, pictures->offset);
}

static ek_tensor *labels_of(const ek_tensor *bytes)
{
    ek_tensor *labels = ek_empty(EK_SHAPE(bytes->shape[0]), EK_I64);
    const uint8_t *from = ek_tensor_address(bytes);
    int64_t *to = labels ? ek_tensor_address(labels) : NULL;
    for (int64_t i = 0; to && i < bytes->shape[0]; i++)
        to[i] = from[i];
    return labels;
}

/* The two, of equal counts. */
static ek_dataset *read_pair(const char *directory, bool train)
{
    char *paths[2] = {NULL, NULL};
    ek_dataset *dataset = NULL;
    ek_tensor *labels = NULL,
              *pictures = read_named(directory,
                                     train ? "train-images-idx3-ubyte" : "t10k-images-idx3-ubyte",
                                     3, &paths[0]);
    if (pictures)
        labels = read_named(directory, train ? "train-labels-idx1-ubyte" : "t10k-labels-idx1-ubyte",
                            1, &paths[1]);
    if (labels && pictures->shape[0] != labels->shape[0])
        EK_FAIL(EK_E_FORMAT, "mnist: %s has %lld pictures, but %s has %lld labels", paths[0],
                (long long)pictures->shape[0], paths[1], (long long)labels->shape[0]);
    else if (labels)
        dataset = ek_tensor_dataset(with_channel(pictures), labels_of(labels));
    free(paths[0]);
    free(paths[1]);
    return dataset;
}

ek_dataset *ek_mnist(const char *directory, bool train)
{
    ek_scope scope = ek_scope_begin();
    ek_dataset *dataset = read_pair(directory, train);
    ek_scope_end(&scope);
    return dataset;
}
