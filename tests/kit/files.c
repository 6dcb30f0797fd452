/* files.c: a directory for each test, and files in it. */
#include <dirent.h>
#include <unistd.h>

#include "files.h"

char directory[48], file_path[64];

void make_directory(void)
{
    strcpy(directory, "/tmp/evenkeel-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(file_path, sizeof file_path, "%s/file", directory);
}

void remove_directory(void)
{
    unlink(file_path);
    ck_assert_msg(rmdir(directory) == 0, "something is left in %s", directory);
}

void empty_directory(void)
{
    remove_files();
    remove_directory();
}

const char *path_of(const char *name)
{
    static char whole[512];
    ck_assert_int_lt(snprintf(whole, sizeof whole, "%s/%s", directory, name), (int)sizeof whole);
    return whole;
}

/* Calls `visit` for each file, if it isn't NULL. Returns the number of files. */
static int visit_files(void (*visit)(const char *name))
{
    int count = 0;
    DIR *list = opendir(directory);
    ck_assert_ptr_nonnull(list);
    for (struct dirent *entry; (entry = readdir(list));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        count++;
        if (visit)
            visit(entry->d_name);
    }
    closedir(list);
    return count;
}

int files_in_directory(void)
{
    return visit_files(NULL);
}

static void remove_file(const char *name)
{
    unlink(path_of(name));
}

void remove_files(void)
{
    visit_files(remove_file);
}

const char *write_file(const char *name, const void *bytes, size_t nbytes)
{
    const char *whole = path_of(name);
    FILE *file = fopen(whole, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, nbytes, file), nbytes);
    ck_assert_int_eq(fclose(file), 0);
    return whole;
}

size_t read_file(const char *name, void *bytes, size_t room)
{
    FILE *file = fopen(name, "rb");
    ck_assert_msg(file != NULL, "%s cannot be opened", name);
    size_t nbytes = fread(bytes, 1, room, file);
    ck_assert_uint_lt(nbytes, room);
    fclose(file);
    return nbytes;
}
