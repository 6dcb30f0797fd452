/* test_idx.c: IDX files as they should be, and in every way damaged. */
#include "files.h"

FIXTURE(make_directory, empty_directory)

static const uint8_t small[] = {0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 10, 20, 30, 40, 50, 255};

static void assert_small(void)
{
    ek_tensor *tensor = ek_read_idx(path_of("file"));
    uint8_t data[6];
    assert_made(tensor);
    ck_assert_int_eq(ek_tensor_dtype(tensor), EK_U8);
    ek_shape shape = ek_tensor_shape(tensor), expected = EK_SHAPE(2, 3);
    ck_assert(ek_shape_equal(&shape, &expected));
    assert_ok(ek_to_data(tensor, data, sizeof(data)));
    ck_assert_mem_eq(data, small + 12, sizeof(data));
}

TEST(plain_and_gzip)
{
    write_file("file", small, sizeof(small));
    assert_small();
    write_gzip("file", small, sizeof(small));
    assert_small();
}

/* Larger than the pieces that are read at a time. */
TEST(several_pieces)
{
    size_t count = 3000 * 1111;
    uint8_t *bytes = malloc(12 + count), *back = malloc(count);
    ck_assert(bytes && back);
    memcpy(bytes, (uint8_t[]){0, 0, 8, 2, 0, 0, 3000 >> 8, 3000 & 255, 0, 0, 1111 >> 8, 1111 & 255},
           12);
    for (size_t i = 0; i < count; i++)
        bytes[12 + i] = (uint8_t)(i * 2654435761u >> 13);
    write_gzip("file", bytes, 12 + count);
    ek_tensor *tensor = ek_read_idx(path_of("file"));
    assert_made(tensor);
    assert_ok(ek_to_data(tensor, back, count));
    ck_assert(memcmp(back, bytes + 12, count) == 0);
    free(bytes);
    free(back);
}

TEST(no_elements)
{
    write_file("file", (uint8_t[]){0, 0, 8, 1, 0, 0, 0, 0}, 8);
    ek_tensor *tensor = ek_read_idx(path_of("file"));
    assert_made(tensor);
    ck_assert_int_eq(ek_tensor_count(tensor), 0);
}

TEST(damaged)
{
    uint8_t bytes[sizeof(small) + 1], zipped[200];
    for (size_t nbytes = 0; nbytes < sizeof(small); nbytes++) {
        write_file("file", small, nbytes);
        assert_refused(ek_read_idx(path_of("file")), EK_E_FORMAT, "truncated");
    }
    memcpy(bytes, small, sizeof(small));
    bytes[sizeof(small)] = 0;
    write_file("file", bytes, sizeof(bytes));
    assert_refused(ek_read_idx(path_of("file")), EK_E_FORMAT, "bytes follow its 6 elements");
    bytes[0] = 1;
    write_file("file", bytes, sizeof(small));
    assert_refused(ek_read_idx(path_of("file")), EK_E_FORMAT, "not an IDX file");
    bytes[0] = 0;
    bytes[2] = 0x0d;
    write_file("file", bytes, sizeof(small));
    assert_refused(ek_read_idx(path_of("file")), EK_E_FORMAT, "type 0x0d");
    bytes[2] = 8;
    bytes[3] = 0;
    write_file("file", bytes, sizeof(small));
    assert_refused(ek_read_idx(path_of("file")), EK_E_FORMAT, "0 dimensions");
    bytes[3] = 9;
    write_file("file", bytes, sizeof(small));
    assert_refused(ek_read_idx(path_of("file")), EK_E_FORMAT, "9 dimensions");
    write_file("file",
               (uint8_t[]){0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255},
               16);
    assert_refused(ek_read_idx(path_of("file")), EK_E_FORMAT, "multiply");
    write_file("file", (uint8_t[]){0, 0, 8, 3, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255},
               16);
    assert_refused(ek_read_idx(path_of("file")), EK_E_FORMAT,
                   "its sizes multiply to more than 2^59");
    /* A size of 4 GiB that the file does not have must not be allocated. */
    write_file("file", (uint8_t[]){0, 0, 8, 1, 255, 255, 255, 255, 1, 2, 3}, 11);
    assert_refused(ek_read_idx(path_of("file")), EK_E_FORMAT,
                   "its header says 4294967295 elements");

    write_gzip("file", small, sizeof(small));
    FILE *file = fopen(path_of("file"), "rb");
    ck_assert_ptr_nonnull(file);
    size_t nbytes = fread(zipped, 1, sizeof(zipped), file);
    fclose(file);
    for (size_t cut = 0; cut < nbytes; cut++) { /* within the checksum and the length too */
        write_file("file", zipped, cut);
        assert_refused(ek_read_idx(path_of("file")), EK_E_FORMAT, "truncated");
    }
    zipped[nbytes - 6] ^= 1; /* in the checksum */
    write_file("file", zipped, nbytes);
    assert_refused(ek_read_idx(path_of("file")), EK_E_FORMAT, "damaged");
}

/* Few bytes that become many: nothing is inflated for a size that no file of theirs can have. */
TEST(larger_than_it_can_be)
{
    static const uint8_t head[] = {0, 0, 8, 2, 0, 16, 0, 0, 0x7f, 0xff, 0xff, 0xff};
    write_zeros("file", head, sizeof head, 20);
    assert_refused(ek_read_idx(path_of("file")), EK_E_FORMAT,
                   "file: truncated: its header says 2251799812636672 elements, which "
                   "take 2251799812636672 bytes; in a file of ");
}

TEST(unreadable)
{
    assert_refused(ek_read_idx("/nowhere/train-images"), EK_E_IO,
                   "/nowhere/train-images: No such file");
    assert_refused(ek_read_idx("/tmp"), EK_E_IO, "/tmp: Is a directory");
    assert_refused(ek_read_idx(NULL), EK_E_INVALID, "NULL");
}
