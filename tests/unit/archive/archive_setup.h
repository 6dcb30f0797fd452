/* archive_setup.h: a directory for each test, and archives that go through a file there. */
#ifndef EK_TESTS_ARCHIVE_SETUP_H
#define EK_TESTS_ARCHIVE_SETUP_H

#include <unistd.h>

#include "kit/files.h"

/* Saves, frees, and opens again. */
static inline ek_archive *through_file(ek_archive *archive)
{
    assert_made(archive);
    assert_ok(ek_archive_save(archive, file_path));
    ek_archive_free(archive);
    ek_archive *opened = ek_archive_open(file_path);
    assert_made(opened);
    return opened;
}

/* An open file with these tensors. */
static inline ek_archive *file_of(const ek_named_tensor *tensors, int count)
{
    assert_ok(ek_safetensors_save(file_path, tensors, count, NULL, 0));
    ek_archive *opened = ek_archive_open(file_path);
    assert_made(opened);
    return opened;
}

static inline void begin_devices(void)
{
    make_directory();
    assert_ok(test_devices_configure("4"));
}

FIXTURE(begin_devices, remove_directory)

#endif
