/* test_opening.c: how all readers open files: what is no regular file is refused, and interruptions
 * go unnoticed. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "files.h"
#include "readers.h"

FIXTURE(make_directory, empty_directory)

/* ---- interruptions ---- */

static int interruptions;

/* Takes the place of the system's: fails with EINTR as often as that says. */
int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & (O_CREAT | O_TMPFILE)) {
        va_list arguments;
        va_start(arguments, flags);
        mode = (mode_t)va_arg(arguments, int);
        va_end(arguments);
    }
    if (interruptions > 0) {
        interruptions--;
        errno = EINTR;
        return -1;
    }
    return openat(AT_FDCWD, path, flags, mode);
}

/* ---- readers ---- */

static bool read_image(const char *path)
{
    return ek_read_image(path, 3) != NULL;
}

/* Files of one element, pixel, record, or no tensor. */
static const char idx[] = "\0\0\x08\1\0\0\0\1\7";
static const char npy[] = "\x93NUMPY\1\0\x38\0"
                          "{'descr': '|u1', 'fortran_order': False, 'shape': (1,)}\n\7";
static const uint8_t png[] = {0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00,
                              0x00, 0x0d, 0x49, 0x48, 0x44, 0x52, 0x00, 0x00, 0x00, 0x01,
                              0x00, 0x00, 0x00, 0x01, 0x08, 0x00, 0x00, 0x00, 0x00, 0x3a,
                              0x7e, 0x9b, 0x55, 0x00, 0x00, 0x00, 0x0a, 0x49, 0x44, 0x41,
                              0x54, 0x78, 0x9c, 0x63, 0x60, 0x07, 0x00, 0x00, 0x09, 0x00,
                              0x08, 0x20, 0x23, 0xc3, 0x8c, 0x00, 0x00, 0x00, 0x00, 0x49,
                              0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82};
static const char safetensors[] = "\2\0\0\0\0\0\0\0{}";
static const char cifar[1 + 3072];

static const struct {
    const char *name;
    bool (*read)(const char *path);
    const void *bytes;
    size_t nbytes;
} readers[] = {
    {"read_idx", read_idx, idx, sizeof idx - 1},
    {"read_npy", read_npy, npy, sizeof npy - 1},
    {"read_cifar", read_cifar, cifar, sizeof cifar},
    {"read_image", read_image, png, sizeof png},
    {"safetensors", read_safetensors, safetensors, sizeof safetensors - 1},
};
enum { READERS = sizeof readers / sizeof *readers };

static void make_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int end = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_ge(end, 0);
    ck_assert_int_lt(snprintf(address.sun_path, sizeof address.sun_path, "%s", path),
                     (int)sizeof address.sun_path);
    ck_assert_int_eq(bind(end, (struct sockaddr *)&address, sizeof address), 0);
    close(end);
}

static void assert_path_refused(int reader, const char *path)
{
    char sentence[200];
    ck_assert_msg(!readers[reader].read(path), "%s reads %s", readers[reader].name, path);
    snprintf(sentence, sizeof sentence, "%s: cannot open %s: it is no regular file",
             readers[reader].name, path);
    assert_error(EK_E_IO, sentence);
}

/* Nobody writes to the pipe: a reader that waited would wait for ever. */
TEST_LOOP(no_regular_files, 0, READERS)
{
    char link[128];
    ck_assert_int_eq(mkfifo(path_of("pipe"), 0600), 0);
    assert_path_refused(_i, path_of("pipe"));
    snprintf(link, sizeof link, "%s", path_of("link"));
    ck_assert_int_eq(symlink(path_of("pipe"), link), 0);
    assert_path_refused(_i, link);
    make_socket(path_of("socket"));
    assert_path_refused(_i, path_of("socket"));
    assert_path_refused(_i, "/dev/null");
    assert_path_refused(_i, "/dev/zero");
    ck_assert(!readers[_i].read(directory));
    assert_error(EK_E_IO, "Is a directory");
}

static void read_interrupted(int reader, const char *path)
{
    ek_scope scope = ek_scope_begin();
    interruptions = 3;
    bool read = readers[reader].read(path);
    ck_assert_msg(read, "%s", ek_error_message());
    ck_assert_int_eq(interruptions, 0);
    ek_scope_end(&scope);
}

TEST_LOOP(interrupted_reading, 0, READERS)
{
    read_interrupted(_i, write_file("file", readers[_i].bytes, readers[_i].nbytes));
    if (readers[_i].read != read_image && readers[_i].read != read_safetensors)
        read_interrupted(_i, write_gzip("file.gz", readers[_i].bytes, readers[_i].nbytes));
}

TEST(interrupted_writing)
{
    static const float one = 1;
    const ek_named_tensor named = {"one", ek_from_data(&one, EK_SHAPE(1))};
    interruptions = 3;
    assert_ok(ek_safetensors_save(path_of("saved"), &named, 1, NULL, 0));
    ck_assert_int_eq(interruptions, 0);
    ck_assert(read_safetensors(path_of("saved")));
}

/* ---- folders ---- */

/* What is in the only class. */
static const char *in_class(const char *name)
{
    char within[64];
    snprintf(within, sizeof within, "class/%s", name);
    return path_of(within);
}

TEST(folders_skip_them)
{
    static const char *const names[] = {"1.png", "pipe.png", "socket.png", "link.png", "zero.png"};
    char root[128], link[128];
    snprintf(root, sizeof root, "%s", directory);
    ck_assert_int_eq(mkdir(path_of("class"), 0700), 0);
    ck_assert_int_eq(mkfifo(in_class("pipe.png"), 0600), 0);
    make_socket(in_class("socket.png"));
    snprintf(link, sizeof link, "%s", in_class("link.png"));
    ck_assert_int_eq(symlink("pipe.png", link), 0);
    snprintf(link, sizeof link, "%s", in_class("zero.png"));
    ck_assert_int_eq(symlink("/dev/zero", link), 0);
    assert_refused(ek_image_folder(root), EK_E_INVALID,
                   "no .png, .jpg or .jpeg file in class class");
    write_file("class/1.png", png, sizeof png);
    ek_dataset *folder = ek_image_folder(root);
    assert_made(folder);
    ck_assert_int_eq(ek_dataset_length(folder), 1);
    ck_assert_str_eq(ek_image_folder_path(folder, 0), in_class("1.png"));
    ek_scope scope = ek_scope_begin();
    ck_assert_int_ne(ek_dataset_get(folder, 0).kind, EK_VALUE_ERROR);
    ek_scope_end(&scope);
    ek_dataset_free(folder);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(in_class(names[i]));
    ck_assert_int_eq(rmdir(path_of("class")), 0);
}
