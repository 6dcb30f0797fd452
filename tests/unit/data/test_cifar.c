/* test_cifar.c: CIFAR's binary versions, as files and as data sets. */
#include <sys/stat.h>

#include "files.h"

FIXTURE(make_directory, empty_directory)

enum { PIXELS = 3072, MAX_RECORDS = 12 };

static uint8_t bytes[MAX_RECORDS * (PIXELS + 2) + 1];

/* Every byte of a picture says which it is; no two pictures are alike. */
static uint8_t pixel(int picture, int i)
{
    return (uint8_t)((picture * 31 + i) * 2654435761u >> 11);
}

/* Records first to first + count - 1: record n has label n % 10, or n % 20 and n * 7 % 100. */
static size_t fill(int classes, int first, int count)
{
    uint8_t *to = bytes;
    for (int n = first; n < first + count; n++) {
        if (classes == 100)
            *to++ = (uint8_t)(n % 20);
        *to++ = (uint8_t)(classes == 100 ? n * 7 % 100 : n % 10);
        for (int i = 0; i < PIXELS; i++)
            *to++ = pixel(n, i);
    }
    return (size_t)(to - bytes);
}

/* ---- single files ---- */

static void assert_pixels(const uint8_t *pixels, int number)
{
    for (int i = 0; i < PIXELS; i++)
        if (pixels[i] != pixel(number, i))
            ck_abort_msg("pixel %d of record %d", i, number);
}

static void assert_pictures(const ek_tensor *pictures, int first, int count)
{
    ek_shape shape = ek_tensor_shape(pictures), wanted = EK_SHAPE(count, 3, 32, 32);
    ck_assert(ek_shape_equal(&shape, &wanted));
    ck_assert_int_eq(ek_tensor_dtype(pictures), EK_U8);
    const uint8_t *data = ek_tensor_data(pictures);
    for (int n = 0; n < count; n++)
        assert_pixels(data + n * PIXELS, first + n);
}

static void assert_read(const char *path, int classes, int count)
{
    ek_tensor *pictures, *labels;
    assert_ok(ek_read_cifar(path, classes, &pictures, &labels));
    assert_pictures(pictures, 0, count);
    ek_shape shape = ek_tensor_shape(labels),
             wanted = classes == 10 ? EK_SHAPE(count) : EK_SHAPE(count, 2);
    ck_assert(ek_shape_equal(&shape, &wanted));
    ck_assert_int_eq(ek_tensor_dtype(labels), EK_I64);
    const int64_t *data = ek_tensor_data(labels);
    for (int n = 0; n < count; n++)
        if (classes == 10) {
            ck_assert_int_eq(data[n], n % 10);
        } else {
            ck_assert_int_eq(data[2 * n], n % 20);
            ck_assert_int_eq(data[2 * n + 1], n * 7 % 100);
        }
}

TEST(plain_and_gzip)
{
    size_t nbytes = fill(10, 0, 12);
    assert_read(write_file("file", bytes, nbytes), 10, 12);
    assert_read(write_gzip("file", bytes, nbytes), 10, 12);
    nbytes = fill(100, 0, 12);
    assert_read(write_file("file", bytes, nbytes), 100, 12);
    assert_read(write_gzip("file", bytes, nbytes), 100, 12);
    assert_read(write_file("file", bytes, fill(10, 0, 1)), 10, 1);
}

static void assert_cifar_refused(size_t nbytes, int classes, const char *part)
{
    ek_tensor *pictures = (ek_tensor *)bytes, *labels = pictures;
    assert_refused(ek_read_cifar(write_file("file", bytes, nbytes), classes, &pictures, &labels),
                   EK_E_FORMAT, part);
    ck_assert(!pictures && !labels);
}

TEST(damaged)
{
    static uint8_t zipped[sizeof bytes];
    size_t nbytes = fill(10, 0, 2);
    assert_cifar_refused(0, 10, "file: 0 bytes; cifar10 has whole records of 3073, at least one");
    assert_cifar_refused(nbytes - 1, 10, "6145 bytes; cifar10 has whole records of 3073");
    assert_cifar_refused(nbytes + 1, 10, "6147 bytes");
    assert_cifar_refused(nbytes, 100, "6146 bytes; cifar100 has whole records of 3074");
    bytes[3073] = 10;
    assert_cifar_refused(nbytes, 10, "file: record 1 has label 10; those of cifar10 are below 10");
    nbytes = fill(100, 0, 2);
    bytes[3074] = 20;
    assert_cifar_refused(nbytes, 100,
                         "record 1 has label 20; those of cifar100 (coarse) are below 20");
    bytes[3074] = 19;
    bytes[3075] = 100;
    assert_cifar_refused(nbytes, 100,
                         "record 1 has label 100; those of cifar100 (fine) are below 100");

    FILE *file = fopen(write_gzip("zipped", bytes, fill(10, 0, 1)), "rb");
    ck_assert_ptr_nonnull(file);
    nbytes = fread(zipped, 1, sizeof zipped, file);
    fclose(file);
    memcpy(bytes, zipped, nbytes);
    for (size_t cut = 2; cut < nbytes; cut += cut < nbytes - 10 ? 97 : 1)
        assert_cifar_refused(cut, 10, "truncated");
    bytes[nbytes - 6] ^= 1; /* in the checksum */
    assert_cifar_refused(nbytes, 10, "damaged");
}

/* Few bytes that become many: no more is inflated than all of CIFAR. */
TEST(larger_than_it_can_be)
{
    ek_tensor *pictures, *labels;
    const char *path = write_zeros("file", "", 0, 180);
    assert_refused(ek_read_cifar(path, 10, &pictures, &labels), EK_E_FORMAT,
                   "file: more than 184380000 bytes in a gzip stream of ");
    assert_refused(ek_read_cifar(path, 100, &pictures, &labels), EK_E_FORMAT,
                   "; cifar100 has 60000 records of 3074 in all");
}

TEST(wrong_arguments)
{
    ek_tensor *pictures, *labels;
    const char *path = write_file("file", bytes, fill(10, 0, 1));
    ck_assert_int_lt(ek_read_cifar(path, 20, &pictures, &labels), 0);
    assert_error(EK_E_INVALID, "read_cifar: 20 classes");
    ck_assert(!pictures && !labels);
    ck_assert_int_lt(ek_read_cifar(path, 10, NULL, &labels), 0);
    assert_error(EK_E_INVALID, "no place for the pictures");
    ck_assert_int_lt(ek_read_cifar(path, 10, &pictures, NULL), 0);
    assert_error(EK_E_INVALID, "no place for the labels");
    ck_assert_int_lt(ek_read_cifar(NULL, 10, &pictures, &labels), 0);
    assert_error(EK_E_INVALID, "read_cifar: the path is NULL");
    ck_assert_int_lt(ek_read_cifar("/nowhere/test.bin", 10, &pictures, &labels), 0);
    assert_error(EK_E_IO, "read_cifar: cannot open /nowhere/test.bin: No such file");
    ck_assert_int_lt(ek_read_cifar(directory, 100, &pictures, &labels), 0);
    assert_error(EK_E_IO, "Is a directory");
}

/* ---- data sets ---- */

/* Sample `index` is record `number`, with this label. */
static void assert_sample(ek_dataset *dataset, int64_t index, int number, int64_t label)
{
    int64_t found;
    ek_scope scope = ek_scope_begin();
    ek_value sample = ek_dataset_get(dataset, index);
    ck_assert_int_eq(ek_value_length(sample), 2);
    ek_tensor *picture = ek_value_tensor(ek_value_at(sample, 0));
    ek_tensor *target = ek_value_tensor(ek_value_at(sample, 1));
    assert_made(picture);
    assert_made(target);
    ek_shape shape = ek_tensor_shape(picture), wanted = EK_SHAPE(3, 32, 32);
    ck_assert(ek_shape_equal(&shape, &wanted));
    ck_assert_int_eq(ek_tensor_dtype(picture), EK_U8);
    assert_pixels(ek_tensor_data(picture), number);
    ck_assert_int_eq(ek_tensor_dtype(target), EK_I64);
    ck_assert_int_eq(ek_tensor_ndim(target), 0);
    assert_ok(ek_to_data(target, &found, sizeof found));
    ck_assert_int_eq(found, label);
    ek_scope_end(&scope);
}

/* Five files, of 1 to 5 records; the second one is zipped. */
static void write_train(void)
{
    char name[32];
    for (int i = 0, first = 0; i < 5; first += ++i) {
        snprintf(name, sizeof name, "data_batch_%d.bin%s", i + 1, i == 1 ? ".gz" : "");
        size_t nbytes = fill(10, first, i + 1);
        if (i == 1)
            write_gzip(name, bytes, nbytes);
        else
            write_file(name, bytes, nbytes);
    }
}

TEST(cifar10)
{
    write_train();
    write_file("test_batch.bin", bytes, fill(10, 40, 3));
    ek_dataset *train = ek_cifar10(directory, true), *test = ek_cifar10(directory, false);
    assert_made(train);
    assert_made(test);
    remove_files(); /* all is in memory */
    ck_assert_int_eq(ek_dataset_length(train), 15);
    ck_assert_int_eq(ek_dataset_length(test), 3);
    for (int i = 0; i < 15; i++)
        assert_sample(train, i, i, i % 10);
    for (int i = 0; i < 3; i++)
        assert_sample(test, i, 40 + i, i);
    ek_dataset_free(train);
    ek_dataset_free(test);
}

TEST(cifar100)
{
    write_file("train.bin", bytes, fill(100, 0, 4));
    write_file("test.bin", bytes, fill(100, 30, 2));
    ek_dataset *train = ek_cifar100(directory, true, false);
    ek_dataset *coarse = ek_cifar100(directory, true, true);
    ek_dataset *test = ek_cifar100(directory, false, false);
    assert_made(train);
    assert_made(coarse);
    assert_made(test);
    ck_assert_int_eq(ek_dataset_length(train), 4);
    ck_assert_int_eq(ek_dataset_length(test), 2);
    for (int i = 0; i < 4; i++) {
        assert_sample(train, i, i, i * 7 % 100);
        assert_sample(coarse, i, i, i % 20);
    }
    assert_sample(test, 1, 31, 31 * 7 % 100);
    ek_dataset_free(train);
    ek_dataset_free(coarse);
    ek_dataset_free(test);
}

/* The plain file is read if both are there. */
TEST(plain_before_gzip)
{
    write_file("test.bin", bytes, fill(100, 0, 1));
    write_file("test.bin.gz", "rubbish", 7);
    ek_dataset *test = ek_cifar100(directory, false, false);
    assert_made(test);
    ek_dataset_free(test);
}

TEST(missing_and_broken)
{
    write_train();
    assert_refused(ek_cifar10(directory, false), EK_E_IO,
                   "has neither test_batch.bin nor test_batch.bin.gz; it must hold "
                   "data_batch_1.bin to data_batch_5.bin and test_batch.bin");
    unlink(path_of("data_batch_4.bin"));
    assert_refused(ek_cifar10(directory, true), EK_E_IO,
                   "has neither data_batch_4.bin nor data_batch_4.bin.gz");
    write_file("data_batch_4.bin", bytes, 100);
    assert_refused(ek_cifar10(directory, true), EK_E_FORMAT, "data_batch_4.bin: 100 bytes");
    fill(10, 0, 3);
    bytes[2 * 3073] = 77;
    write_file("data_batch_4.bin", bytes, 3 * 3073);
    assert_refused(ek_cifar10(directory, true), EK_E_FORMAT,
                   "data_batch_4.bin: record 2 has label 77");
    assert_refused(ek_cifar100(directory, true, false), EK_E_IO,
                   "has neither train.bin nor train.bin.gz; it must hold train.bin and "
                   "test.bin");
    assert_refused(ek_cifar10("/dev/null", true), EK_E_IO,
                   "cifar10: read_cifar: cannot open /dev/null/data_batch_1.bin: Not a "
                   "directory");
    assert_refused(ek_cifar10(NULL, true), EK_E_INVALID, "cifar10: the directory is NULL");
    assert_refused(ek_cifar100(NULL, true, true), EK_E_INVALID, "cifar100: the directory is NULL");
}
