/* files.h: gzip files in a directory for each test. */
#ifndef EK_TESTS_DATA_FILES_H
#define EK_TESTS_DATA_FILES_H

#include <zlib.h>

#include "kit/files.h"

static inline const char *write_gzip(const char *name, const void *bytes, size_t nbytes)
{
    const char *whole = path_of(name);
    gzFile file = gzopen(whole, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(gzwrite(file, bytes, (unsigned)nbytes), (int)nbytes);
    ck_assert_int_eq(gzclose(file), Z_OK);
    return whole;
}

/* A gzip file of `head`, then so many MiB of zeros: a thousandth of that on the disk. */
static inline const char *write_zeros(const char *name, const void *head, size_t nbytes,
                                      int mebibytes)
{
    static uint8_t zeros[1 << 20], zipped[1 << 14];
    FILE *file = fopen(write_gzip("zeros", zeros, sizeof zeros), "rb");
    ck_assert_ptr_nonnull(file);
    size_t zipped_nbytes = fread(zipped, 1, sizeof zipped, file);
    fclose(file);
    file = fopen(write_gzip(name, head, nbytes), "ab");
    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < mebibytes; i++)
        ck_assert_uint_eq(fwrite(zipped, 1, zipped_nbytes, file), zipped_nbytes);
    ck_assert_int_eq(fclose(file), 0);
    return path_of(name);
}

#endif
