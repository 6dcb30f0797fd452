/* test_zip.c: zip archives that are written and read back, also where they need 64-bit numbers. */
#include <unistd.h>

#include "data/zip.h"
#include "files.h"

FIXTURE(make_directory, empty_directory)

static const char *const names[] = {"a/first", "a/empty", "a/last"};
static const char *const contents[] = {"one", "", "the last of all"};

/* Writes the entries from offset *user on, after a hole. */
static int write_entries(const ek_file *file, void *user)
{
    ek_zip_writer zip = {.file = file, .at = *(uint64_t *)user};
    int status = lseek(file->descriptor, (off_t)zip.at, SEEK_SET) < 0 ? EK_E_IO : 0;
    for (int i = 0; i < 3 && status == 0; i++)
        status = ek_zip_put(&zip, names[i], contents[i], strlen(contents[i]));
    if (status == 0)
        status = ek_zip_finish(&zip);
    free(zip.directory);
    return status;
}

/* Archives in front of which other bytes lie, and archives beyond 4 GiB in a file with a hole. */
TEST_LOOP(entries_come_back, 0, 4)
{
    static const uint64_t begins[] = {0, 77, UINT32_MAX - 200, UINT64_C(5) << 30};
    uint64_t begin = begins[_i];
    ek_mapped mapped;
    assert_ok(ek_file_replace("test", path_of("file"), write_entries, &begin));
    assert_ok(ek_file_map("test", path_of("file"), &mapped));
    ek_zip zip = {.what = "test", .path = "file", .bytes = mapped.bytes, .nbytes = mapped.nbytes};
    assert_ok(ek_zip_open(&zip));
    ck_assert_int_eq(zip.count, 3);
    for (int i = 0; i < 3; i++) {
        const unsigned char *bytes = NULL;
        const ek_zip_entry *entry = ek_zip_find(&zip, names[i], strlen(names[i]));
        assert_made(entry);
        assert_ok(ek_zip_view(&zip, entry, &bytes));
        ck_assert_uint_eq(entry->nbytes, strlen(contents[i]));
        ck_assert_int_eq(memcmp(bytes, contents[i], entry->nbytes), 0);
        ck_assert_uint_eq((uint64_t)(bytes - mapped.bytes) % EK_ZIP_ALIGNMENT, 0);
        ck_assert(entry->plain && entry->header >= begin);
    }
    ek_zip_close(&zip);
    ek_file_unmap(&mapped);
}
