/* archive_setup.h: a directory for each test, and archives that go through a file there. */
#ifndef EK_TESTS_ARCHIVE_SETUP_H
#define EK_TESTS_ARCHIVE_SETUP_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "evenkeel/archive.h"
#include "evenkeel/data.h"
#include "unit.h"

static char directory[40] = "/tmp/evenkeel-archive-XXXXXX";
static char path[64];

static inline void make_directory(void)
{
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/file", directory);
}

static inline void remove_directory(void)
{
    unlink(path);
    ck_assert_msg(rmdir(directory) == 0, "something is left in %s", directory);
}

static inline int files_in_directory(void)
{
    int count = 0;
    DIR *list = opendir(directory);
    ck_assert_ptr_nonnull(list);
    for (struct dirent *entry; (entry = readdir(list));)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(list);
    return count;
}

/* Saves, frees, and opens again. */
static inline ek_archive *through_file(ek_archive *archive)
{
    assert_made(archive);
    assert_ok(ek_archive_save(archive, path));
    ek_archive_free(archive);
    ek_archive *opened = ek_archive_open(path);
    assert_made(opened);
    return opened;
}

/* An open file with these tensors. */
static inline ek_archive *file_of(const ek_named_tensor *tensors, int count)
{
    assert_ok(ek_safetensors_save(path, tensors, count, NULL, 0));
    ek_archive *opened = ek_archive_open(path);
    assert_made(opened);
    return opened;
}

static inline void four_devices(void)
{
    make_directory();
    assert_ok(test_devices_configure("4"));
}

/* Every ledger must be at zero. */
static inline void end_devices(void)
{
    remove_directory();
    assert_ok(ek_shutdown());
}

FIXTURE(four_devices, end_devices)

#endif
