/* picture_sets.c: data sets of pictures that are stored in a few files.
 *
 * The MNIST family (MNIST, Fashion-MNIST, EMNIST...) has two IDX files: pictures and labels. The
 * binary versions of CIFAR-10 and CIFAR-100 have records: one label byte, or two (coarse and fine),
 * then 3 x 32 x 32 bytes of pixels, one color after the other. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/tensor.h"
#include "data/stream.h"
#include "evenkeel/data.h"
#include "evenkeel/dataset.h"

/* Returns i64 labels (N), or (N, columns) if there are several; records are `step` bytes. */
static ek_tensor *labels_of(const uint8_t *records, size_t count, size_t step, int columns)
{
    ek_shape shape = {.ndim = columns > 1 ? 2 : 1, .dims = {(int64_t)count, columns}};
    ek_tensor *labels = ek_empty(shape, EK_I64);
    int64_t *to = labels ? ek_tensor_address(labels) : NULL;
    for (size_t i = 0; to && i < count; i++)
        for (int k = 0; k < columns; k++)
            *to++ = records[i * step + (size_t)k];
    return labels;
}

/* ---- the MNIST family ---- */

static const char mnist_must_hold[] =
    "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
    "t10k-labels-idx1-ubyte, each as it is or with .gz";

/* Reads a file that must have `ndim` dimensions. *path becomes its path, which the caller frees. */
static ek_tensor *mnist_read(const char *directory, const char *name, int ndim, char **path)
{
    const int before = ek_error_status();
    char text[160];
    *path = ek_byte_stream_find("mnist", directory, name, mnist_must_hold);
    if (!*path)
        return NULL;
    ek_tensor *tensor = ek_read_idx(*path);
    if (!tensor) {
        ek_error_prefix(before, "mnist");
        return NULL;
    }
    if (tensor->ndim != ndim) {
        ek_shape shape = ek_tensor_shape(tensor);
        return EK_FAIL_NULL(EK_E_FORMAT, "mnist: %s is of shape %s; %s", *path,
                            ek_shape_text(&shape, text),
                            ndim == 3 ? "pictures are [N, H, W]" : "labels are [N]");
    }
    return tensor;
}

/* Returns pictures of shape (N, H, W) as (N, 1, H, W). */
static ek_tensor *mnist_with_channel(const ek_tensor *pictures)
{
    const int64_t *size = pictures->shape, *step = pictures->stride;
    return ek_tensor_view(pictures, 4, (int64_t[]){size[0], 1, size[1], size[2]},
                          (int64_t[]){step[0], step[0], step[1], step[2]}, pictures->offset);
}

/* Reads pictures and labels, whose counts must be equal. */
static ek_dataset *mnist_read_pair(const char *directory, bool train)
{
    char *paths[2] = {NULL, NULL};
    ek_dataset *dataset = NULL;
    ek_tensor *labels = NULL,
              *pictures = mnist_read(directory,
                                     train ? "train-images-idx3-ubyte" : "t10k-images-idx3-ubyte",
                                     3, &paths[0]);
    if (pictures)
        labels = mnist_read(directory, train ? "train-labels-idx1-ubyte" : "t10k-labels-idx1-ubyte",
                            1, &paths[1]);
    if (labels && pictures->shape[0] != labels->shape[0])
        EK_FAIL(EK_E_FORMAT, "mnist: %s has %lld pictures, but %s has %lld labels", paths[0],
                (long long)pictures->shape[0], paths[1], (long long)labels->shape[0]);
    else if (labels)
        dataset =
            ek_tensor_dataset(mnist_with_channel(pictures),
                              labels_of(ek_tensor_address(labels), (size_t)labels->shape[0], 1, 1));
    free(paths[0]);
    free(paths[1]);
    return dataset;
}

ek_dataset *ek_mnist(const char *directory, bool train)
{
    ek_scope scope = ek_scope_begin();
    ek_dataset *dataset = mnist_read_pair(directory, train);
    ek_scope_end(&scope);
    return dataset;
}

/* ---- CIFAR ---- */

enum { PIXELS = 3 * 32 * 32, MAX_LABELS = 2, MAX_FILES = 5, MAX_RECORDS = 60000 };

typedef struct cifar {
    const char *name;
    int labels;
    int classes[MAX_LABELS]; /* how many classes each label has */
    const char *train[MAX_FILES], *test, *must_hold;
} cifar;

static const cifar cifar10 = {
    .name = "cifar10",
    .labels = 1,
    .classes = {10},
    .train = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
              "data_batch_5.bin"},
    .test = "test_batch.bin",
    .must_hold = "data_batch_1.bin to data_batch_5.bin and test_batch.bin, CIFAR-10's binary "
                 "version, each as it is or with .gz"};
static const cifar cifar100 = {
    .name = "cifar100",
    .labels = 2,
    .classes = {20, 100},
    .train = {"train.bin"},
    .test = "test.bin",
    .must_hold = "train.bin and test.bin, CIFAR-100's binary version, each as it is or with .gz"};

static size_t cifar_nbytes(const cifar *kind)
{
    return (size_t)kind->labels + PIXELS;
}

/* ---- CIFAR: records ---- */

/* Returns how many bytes are read at most. A few bytes of gzip can expand to billions, so that a
 * compressed file may hold at most all records of the data set. An uncompressed file may have any
 * size. */
static size_t cifar_most_nbytes(const cifar *kind, const ek_byte_stream *stream)
{
    size_t all = MAX_RECORDS * cifar_nbytes(kind);
    return stream->file_nbytes > all ? stream->file_nbytes : all;
}

static int cifar_check_labels(const cifar *kind, const ek_byte_stream *stream,
                              const uint8_t *records, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (int k = 0; k < kind->labels; k++) {
            int label = records[i * cifar_nbytes(kind) + (size_t)k];
            const char *which = kind->labels == 1 ? "" : k == 0 ? " (coarse)" : " (fine)";
            if (label >= kind->classes[k])
                return EK_FAIL_IN(EK_E_FORMAT, stream,
                                  "record %zu has label %d; those of %s%s are below %d", i, label,
                                  kind->name, which, kind->classes[k]);
        }
    return 0;
}

static int cifar_read_records(const cifar *kind, ek_byte_stream *stream, ek_bytes *records)
{
    size_t before = records->nbytes, size = cifar_nbytes(kind),
           most = cifar_most_nbytes(kind, stream);
    EK_TRY(ek_byte_stream_append(stream, most + 1, records));
    size_t nbytes = records->nbytes - before;
    if (nbytes > most)
        return EK_FAIL_IN(EK_E_FORMAT, stream,
                          "more than %zu bytes in a gzip stream of %zu; %s has %d records of "
                          "%zu in all",
                          most, stream->file_nbytes, kind->name, MAX_RECORDS, size);
    if (nbytes == 0 || nbytes % size != 0)
        return EK_FAIL_IN(EK_E_FORMAT, stream,
                          "%zu bytes; %s has whole records of %zu, at least one", nbytes,
                          kind->name, size);
    return cifar_check_labels(kind, stream, records->bytes + before, nbytes / size);
}

/* Appends the records of a file. */
static int cifar_read_file(const cifar *kind, const char *path, ek_bytes *records)
{
    ek_byte_stream stream;
    EK_TRY(ek_byte_stream_open(&stream, "read_cifar", path));
    int status = cifar_read_records(kind, &stream, records);
    ek_byte_stream_close(&stream);
    return status;
}

/* ---- CIFAR: tensors ---- */

static ek_tensor *cifar_pictures(const cifar *kind, const ek_bytes *records)
{
    size_t size = cifar_nbytes(kind), count = records->nbytes / size;
    ek_tensor *pictures = ek_empty(EK_SHAPE((int64_t)count, 3, 32, 32), EK_U8);
    uint8_t *to = pictures ? ek_tensor_address(pictures) : NULL;
    for (size_t i = 0; to && i < count; i++)
        memcpy(to + i * PIXELS, records->bytes + i * size + kind->labels, PIXELS);
    return pictures;
}

/* Returns the labels first to first + columns - 1 of each record. */
static ek_tensor *cifar_labels(const cifar *kind, const ek_bytes *records, int first, int columns)
{
    size_t size = cifar_nbytes(kind);
    return labels_of(records->bytes + first, records->nbytes / size, size, columns);
}

int ek_read_cifar(const char *path, int classes, ek_tensor **pictures, ek_tensor **labels)
{
    const cifar *kind = classes == 100 ? &cifar100 : &cifar10;
    ek_bytes records = {0};
    if (!pictures || !labels)
        return EK_FAIL(EK_E_INVALID, "read_cifar: there is no place for the %s",
                       pictures ? "labels" : "pictures");
    *pictures = *labels = NULL;
    if (classes != 10 && classes != 100)
        return EK_FAIL(EK_E_INVALID, "read_cifar: %d classes; there are CIFAR-10 and CIFAR-100",
                       classes);
    int status = cifar_read_file(kind, path, &records);
    if (status == 0) {
        *pictures = cifar_pictures(kind, &records);
        *labels = cifar_labels(kind, &records, 0, kind->labels);
        if (!*pictures || !*labels) {
            *pictures = *labels = NULL;
            status = ek_error_pending();
        }
    }
    free(records.bytes);
    return status;
}

/* ---- CIFAR: data sets ---- */

static int cifar_read_named(const cifar *kind, const char *directory, const char *name,
                            ek_bytes *records)
{
    const int before = ek_error_status();
    char *path = ek_byte_stream_find(kind->name, directory, name, kind->must_hold);
    if (!path)
        return ek_error_pending();
    int status = cifar_read_file(kind, path, records);
    if (status < 0)
        ek_error_prefix(before, "%s", kind->name);
    free(path);
    return status;
}

static int cifar_read_all(const cifar *kind, const char *directory, bool train, ek_bytes *records)
{
    if (!train)
        return cifar_read_named(kind, directory, kind->test, records);
    for (int i = 0; i < MAX_FILES && kind->train[i]; i++)
        EK_TRY(cifar_read_named(kind, directory, kind->train[i], records));
    return 0;
}

/* Makes the data set with label `column` of each record. */
static ek_dataset *cifar_dataset(const cifar *kind, const char *directory, bool train, int column)
{
    ek_bytes records = {0};
    ek_dataset *dataset = NULL;
    ek_scope scope = ek_scope_begin();
    if (cifar_read_all(kind, directory, train, &records) == 0) {
        ek_tensor *pictures = cifar_pictures(kind, &records);
        ek_tensor *labels = cifar_labels(kind, &records, column, 1);
        if (pictures && labels)
            dataset = ek_tensor_dataset(pictures, labels);
    }
    free(records.bytes);
    ek_scope_end(&scope);
    return dataset;
}

ek_dataset *ek_cifar10(const char *directory, bool train)
{
    return cifar_dataset(&cifar10, directory, train, 0);
}

ek_dataset *ek_cifar100(const char *directory, bool train, bool coarse)
{
    return cifar_dataset(&cifar100, directory, train, coarse ? 0 : 1);
}
