/* files.h: a directory for each test, and files in it. */
#ifndef EK_TESTS_DATA_FILES_H
#define EK_TESTS_DATA_FILES_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "unit.h"

static char directory[] = "/tmp/evenkeel-data-XXXXXX";

/* The path of a name in it, until the next call. */
static const char *path_of(const char *name)
{
    static char path[128];

    ck_assert_int_lt(snprintf(path, sizeof path, "%s/%s", directory, name), (int)sizeof path);
    return path;
}

static void make_directory(void)
{
    ck_assert_ptr_nonnull(mkdtemp(directory));
}

static void remove_files(void)
{
    DIR *list = opendir(directory);

    ck_assert_ptr_nonnull(list);
    for (struct dirent *entry; (entry = readdir(list));)
        if (entry->d_name[0] != '.')
            unlink(path_of(entry->d_name));
    closedir(list);
}

static void remove_directory(void)
{
    remove_files();
    ck_assert_int_eq(rmdir(directory), 0);
    memcpy(directory + strlen(directory) - 6, "XXXXXX", 6);
}

static const char *write_file(const char *name, const void *bytes, size_t nbytes)
{
    const char *path = path_of(name);
    FILE *file = fopen(path, "wb");

    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, nbytes, file), nbytes);
    ck_assert_int_eq(fclose(file), 0);
    return path;
}

static inline const char *write_gzip(const char *name, const void *bytes, size_t nbytes)
{
    const char *path = path_of(name);
    gzFile file = gzopen(path, "wb");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(gzwrite(file, bytes, (unsigned)nbytes), (int)nbytes);
    ck_assert_int_eq(gzclose(file), Z_OK);
    return path;
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
