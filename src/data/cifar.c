/* cifar.c: the binary versions of CIFAR-10 and CIFAR-100: records of one label byte, or two (coarse
 * and fine), and 3 x 32 x 32 bytes of pixels, one colour after the other. */
#include <stdlib.h>
#include <string.h>

#include "core/tensor.h"
#include "data/stream.h"
#include "evenkeel/data.h"
#include "evenkeel/dataset.h"

enum { PIXELS = 3 * 32 * 32, MAX_LABELS = 2, MAX_FILES = 5, MAX_RECORDS = 60000 };

typedef struct cifar {
    const char *name;
    int labels;
    int classes[MAX_LABELS]; /* labels are below */
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

static size_t record_nbytes(const cifar *kind)
{
    return (size_t)kind->labels + PIXELS;
}

/* ---- records ---- */

/* The most bytes that are read. A few bytes of gzip can claim billions, so a compressed file may
 * hold at most all records of the data set; a plain file may be as large as it is. */
static size_t most_nbytes(const cifar *kind, const ek_stream *stream)
{
    size_t all = MAX_RECORDS * record_nbytes(kind);
    return stream->file_nbytes > all ? stream->file_nbytes : all;
}

static int check_labels(const cifar *kind, const char *path, const uint8_t *records, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (int k = 0; k < kind->labels; k++) {
            int label = records[i * record_nbytes(kind) + (size_t)k];
            if (label >= kind->classes[k])
                return EK_FAIL(
                    EK_E_FORMAT,
                    "read_cifar: %s: record %zu has label %d; those of %s%s are below %d", path, i,
                    label, kind->name,
                    kind->labels == 1 ? ""
                    : k == 0          ? " (coarse)"
                                      : " (fine)",
                    kind->classes[k]);
        }
    return 0;
}

static int read_records(const cifar *kind, ek_stream *stream, ek_bytes *records)
{
    size_t before = records->nbytes, size = record_nbytes(kind), most = most_nbytes(kind, stream);
    EK_TRY(ek_stream_append(stream, most + 1, records));
    size_t nbytes = records->nbytes - before;
    if (nbytes > most)
        return EK_FAIL(EK_E_FORMAT,
                       "read_cifar: %s: more than %zu bytes in a gzip stream of %zu; %s has %d "
                       "records of %zu in all",
                       stream->path, most, stream->file_nbytes, kind->name, MAX_RECORDS, size);
    if (nbytes == 0 || nbytes % size != 0)
        return EK_FAIL(EK_E_FORMAT,
                       "read_cifar: %s: %zu bytes; %s has whole records of %zu, at least one",
                       stream->path, nbytes, kind->name, size);
    return check_labels(kind, stream->path, records->bytes + before, nbytes / size);
}

/* Appends a file's records. */
static int read_file(const cifar *kind, const char *path, ek_bytes *records)
{
    ek_stream stream;
    EK_TRY(ek_stream_open(&stream, "read_cifar", path));
    int status = read_records(kind, &stream, records);
    ek_stream_close(&stream);
    return status;
}

/* ---- tensors ---- */

static ek_tensor *pictures_of(const cifar *kind, const ek_bytes *records)
{
    size_t size = record_nbytes(kind), count = records->nbytes / size;
    ek_tensor *pictures = ek_empty(EK_SHAPE((int64_t)count, 3, 32, 32), EK_U8);
    uint8_t *to = pictures ? ek_tensor_address(pictures) : NULL;
    for (size_t i = 0; to && i < count; i++)
        memcpy(to + i * PIXELS, records->bytes + i * size + kind->labels, PIXELS);
    return pictures;
}

/* Labels first to first + columns - 1 of each record: (N), or (N, columns) for several. */
static ek_tensor *labels_of(const cifar *kind, const ek_bytes *records, int first, int columns)
{
    size_t size = record_nbytes(kind), count = records->nbytes / size;
    ek_shape shape = {.ndim = columns > 1 ? 2 : 1, .dims = {(int64_t)count, columns}};
    ek_tensor *labels = ek_empty(shape, EK_I64);
    int64_t *to = labels ? ek_tensor_address(labels) : NULL;
    for (size_t i = 0; to && i < count; i++)
        for (int k = first; k < first + columns; k++)
            *to++ = records->bytes[i * size + (size_t)k];
    return labels;
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
    int status = read_file(kind, path, &records);
    if (status == 0) {
        *pictures = pictures_of(kind, &records);
        *labels = labels_of(kind, &records, 0, kind->labels);
        if (!*pictures || !*labels) {
            *pictures = *labels = NULL;
            status = ek_error_pending();
        }
    }
    free(records.bytes);
    return status;
}

/* ---- data sets ---- */

static int read_named(const cifar *kind, const char *directory, const char *name, ek_bytes *records)
{
    const int before = ek_error_status();
    char *path = ek_stream_find(kind->name, directory, name, kind->must_hold);
    if (!path)
        return ek_error_pending();
    int status = read_file(kind, path, records);
    if (status < 0)
        ek_error_prefix(before, "%s", kind->name);
    free(path);
    return status;
}

static int read_all(const cifar *kind, const char *directory, bool train, ek_bytes *records)
{
    if (!train)
        return read_named(kind, directory, kind->test, records);
    for (int i = 0; i < MAX_FILES && kind->train[i]; i++)
        EK_TRY(read_named(kind, directory, kind->train[i], records));
    return 0;
}

/* With label `column` of each record. */
static ek_dataset *dataset_of(const cifar *kind, const char *directory, bool train, int column)
{
    ek_bytes records = {0};
    ek_dataset *dataset = NULL;
    ek_scope scope = ek_scope_begin();
    if (read_all(kind, directory, train, &records) == 0) {
        ek_tensor *pictures = pictures_of(kind, &records);
        ek_tensor *labels = labels_of(kind, &records, column, 1);
        if (pictures && labels)
            dataset = ek_tensor_dataset(pictures, labels);
    }
    free(records.bytes);
    ek_scope_end(&scope);
    return dataset;
}

ek_dataset *ek_cifar10(const char *directory, bool train)
{
    return dataset_of(&cifar10, directory, train, 0);
}

ek_dataset *ek_cifar100(const char *directory, bool train, bool coarse)
{
    return dataset_of(&cifar100, directory, train, coarse ? 0 : 1);
}
