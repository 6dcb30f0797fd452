/* test_image_folder.c: pictures by class, in the order of torchvision's ImageFolder. */
#include <errno.h>
#include <ftw.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit.h"

/* ---- trees ---- */

static char root[] = "/tmp/evenkeel-folder-XXXXXX";

static void make_root(void)
{
    ck_assert_ptr_nonnull(mkdtemp(root));
    ck_assert_int_eq(chmod(root, 0755), 0);
}

static int remove_entry(const char *path, const struct stat *status, int flag, struct FTW *place)
{
    return remove(path);
}

static void remove_root(void)
{
    ck_assert_int_eq(chdir("/"), 0);
    ck_assert_int_eq(nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
    memcpy(root + strlen(root) - 6, "XXXXXX", 6);
}

FIXTURE(make_root, remove_root)

static const char *at(const char *name)
{
    static char paths[4][300];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, 300, "%s/%s", root, name);
    return path;
}

static void directories(const char *name, ...)
{
    va_list names;
    va_start(names, name);
    for (; name; name = va_arg(names, const char *))
        ck_assert_msg(mkdir(at(name), 0755) == 0, "%s: %s", name, strerror(errno));
    va_end(names);
}

static void write_file(const char *path, const char *picture)
{
    char name[100];
    snprintf(name, sizeof name, "%s/file", picture);
    ek_tensor *bytes = golden("images.golden", name);
    size_t nbytes = (size_t)ek_tensor_count(bytes);
    FILE *stream = fopen(path, "wb");
    ck_assert_msg(stream, "%s: %s", path, strerror(errno));
    ck_assert_uint_eq(fwrite(ek_tensor_data(bytes), 1, nbytes, stream), nbytes);
    ck_assert_int_eq(fclose(stream), 0);
}

/* The same small picture, or what is none. */
static void files(const char *name, ...)
{
    va_list names;
    va_start(names, name);
    for (; name; name = va_arg(names, const char *))
        write_file(at(name), "rgb8_interlaced_1_1");
    va_end(names);
}

static void link_to(const char *target, const char *name)
{
    ck_assert_int_eq(symlink(target, at(name)), 0);
}

/* ---- expectations ---- */

typedef struct expected {
    const char *path;
    int class_of;
} expected;

static void assert_samples(ek_dataset *folder, const expected *samples, int count)
{
    assert_made(folder);
    for (int i = 0; i < count && i < ek_dataset_length(folder); i++) {
        ck_assert_str_eq(ek_image_folder_path(folder, i), at(samples[i].path));
        ek_value sample = ek_dataset_get(folder, i);
        ck_assert_int_eq(sample.kind, EK_VALUE_LIST);
        ck_assert_int_eq(ek_value_length(sample), 2);
        ek_value label = ek_value_at(sample, 1);
        ck_assert_int_eq(label.kind, EK_VALUE_INT);
        ck_assert_int_eq(label.as.integer, samples[i].class_of);
    }
    ck_assert_int_eq(ek_dataset_length(folder), count);
}
#define assert_folder(folder, ...)                            \
    assert_samples((folder), (const expected[]){__VA_ARGS__}, \
                   (int)(sizeof((const expected[]){__VA_ARGS__}) / sizeof(expected)))

/* ---- what is found, and in which order ---- */

/* Of directories, whole paths are compared: '-' comes before '/', upper case before lower case. */
TEST(order)
{
    directories("dog", "Cat", "bird", "dog/a", "dog/a-b", "dog/a/z", "dog/a/z/deep", "dog/b", NULL);
    files("dog/2.png", "dog/10.JPEG", "dog/a/1.jpg", "dog/a/z/deep/0.Png", "dog/a-b/9.png", NULL);
    files("Cat/b.PNG", "Cat/a.png", "Cat/B.png", "bird/.png", NULL);
    files("dog/b/0.png", "readme.png", "bird/x.gif", "bird/png", "bird/x.png.txt", "bird/.jpe",
          NULL);
    ek_dataset *folder = ek_image_folder(root);
    assert_folder(folder, {"Cat/B.png", 0}, {"Cat/a.png", 0}, {"Cat/b.PNG", 0}, {"bird/.png", 1},
                  {"dog/10.JPEG", 2}, {"dog/2.png", 2}, {"dog/a/1.jpg", 2}, {"dog/a-b/9.png", 2},
                  {"dog/a/z/deep/0.Png", 2}, {"dog/b/0.png", 2});
    ck_assert_str_eq(ek_image_folder_class(folder, 0), "Cat");
    ck_assert_str_eq(ek_image_folder_class(folder, 1), "bird");
    ck_assert_str_eq(ek_image_folder_class(folder, 2), "dog");
    ek_dataset_free(folder);
}

/* Names are bytes; a root that ends in a slash gets no other. */
TEST(names)
{
    directories("\xc3\xa4", "\xff\xfe", "z", NULL);
    files("\xc3\xa4/\xff.png", "\xff\xfe/a b\n.png", "z/\xc3\xa4.png", "z/y.png", NULL);
    char slash[100];
    snprintf(slash, sizeof slash, "%s/", root);
    ek_dataset *folder = ek_image_folder(slash);
    assert_folder(folder, {"z/y.png", 0}, {"z/\xc3\xa4.png", 0}, {"\xc3\xa4/\xff.png", 1},
                  {"\xff\xfe/a b\n.png", 2});
    ek_dataset_free(folder);
}

TEST(large_pictures_are_refused)
{
    directories("a", NULL);
    write_file(at("a/0.png"), "rgb_alpha8");
    ek_dataset *folder = ek_image_folder(root);
    ek_tensor *picture = ek_value_tensor(ek_value_at(ek_dataset_get(folder, 0), 0));
    assert_made(picture);
    int64_t pixels = ek_tensor_count(picture) / 3;
    ek_dataset_free(folder);
    for (int less = 0; less < 2; less++) {
        folder = ek_image_folder(root, .max_pixels = pixels - less);
        ek_value sample = ek_dataset_get(folder, 0);
        ck_assert_int_eq(sample.kind, less ? EK_VALUE_ERROR : EK_VALUE_LIST);
        if (less)
            assert_error(EK_E_FORMAT, " in all are read");
        ek_dataset_free(folder);
    }
    ck_assert_ptr_null(ek_image_folder(root, .max_pixels = ((int64_t)1 << 28) + 1));
    assert_error(EK_E_INVALID, "max_pixels is 268435457; 1 to 268435456 are possible");
}

TEST(pictures_are_rgb)
{
    static const char *const kinds[] = {"gray_alpha8", "jpeg_cmyk", "rgb_alpha8"};
    char name[100];
    directories("a", NULL);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "a/%d.png", i);
        write_file(at(name), kinds[i]);
    }
    ek_dataset *folder = ek_image_folder(root);
    assert_made(folder);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s/RGB", kinds[i]);
        ek_tensor *picture = ek_value_tensor(ek_value_at(ek_dataset_get(folder, i), 0));
        assert_made(picture);
        assert_close(picture, golden("images.golden", name), 0, 1);
    }
    ek_dataset_free(folder);
}

/* Many classes and samples: the class is found by halving. */
TEST(many)
{
    char name[100];
    for (int i = 0; i < 37; i++) {
        snprintf(name, sizeof name, "%02d", i);
        directories(name, NULL);
        for (int k = 0; k <= i % 5; k++) {
            snprintf(name, sizeof name, "%02d/%d.png", i, k);
            files(name, NULL);
        }
    }
    ek_dataset *folder = ek_image_folder(root);
    assert_made(folder);
    int64_t sample = 0;
    for (int i = 0; i < 37; i++) {
        for (int k = 0; k <= i % 5; k++, sample++) {
            snprintf(name, sizeof name, "%02d/%d.png", i, k);
            ck_assert_str_eq(ek_image_folder_path(folder, sample), at(name));
            ek_value label = ek_value_at(ek_dataset_get(folder, sample), 1);
            ck_assert_int_eq(label.as.integer, i);
        }
    }
    ck_assert_int_eq(ek_dataset_length(folder), sample);
    ek_dataset_free(folder);
}

/* ---- links ---- */

TEST(links)
{
    directories("a", "a/real", NULL);
    files("a/real/1.png", "a/0.png", NULL);
    link_to("a", "b");                /* a class */
    link_to("real", "a/other");       /* a directory: pictures count twice */
    link_to("real/1.png", "a/1.png"); /* a file */
    link_to("nowhere", "a/nothing");
    link_to("nothing", "a/nothing.txt");
    link_to("nowhere", "c");
    ek_dataset *folder = ek_image_folder(root);
    assert_folder(folder, {"a/0.png", 0}, {"a/1.png", 0}, {"a/other/1.png", 0}, {"a/real/1.png", 0},
                  {"b/0.png", 1}, {"b/1.png", 1}, {"b/other/1.png", 1}, {"b/real/1.png", 1});
    ek_dataset_free(folder);
}

/* Over a link upwards the other classes are found, but nothing within itself. */
TEST(loops)
{
    directories("a", "b", "a/in", NULL);
    files("a/1.png", "b/2.png", NULL);
    link_to(".", "a/self");
    link_to("..", "a/in/up");
    link_to("loop", "a/loop");
    ek_dataset *folder = ek_image_folder(root);
    assert_folder(folder, {"a/1.png", 0}, {"b/2.png", 1});
    ek_dataset_free(folder);
    link_to("..", "b/top");
    folder = ek_image_folder(root);
    assert_folder(folder, {"a/1.png", 0}, {"b/2.png", 1}, {"b/top/a/1.png", 1});
    ek_dataset_free(folder);
}

/* Directories that all link to each other: paths without number. */
TEST(links_running_wild)
{
    char name[100], target[100];
    directories("a", "others", NULL);
    files("a/1.png", "others/2.png", NULL);
    link_to("../others/0", "a/begin");
    for (int i = 0; i < 12; i++) {
        snprintf(name, sizeof name, "others/%d", i);
        directories(name, NULL);
        for (int k = 0; k < 12; k++) {
            snprintf(name, sizeof name, "others/%d/%d", i, k);
            snprintf(target, sizeof target, "../%d", k);
            link_to(target, name);
        }
    }
    assert_refused(ek_image_folder(root), EK_E_INVALID,
                   "symbolic links lead to more than 16384 directories below /tmp/");
}

/* ---- what is not there ---- */

TEST(classes_without_pictures)
{
    directories("a", "b", "c", "c/deep", NULL);
    files("b/1.png", "a/1.txt", "c/deep/readme", NULL);
    assert_refused(ek_image_folder(root), EK_E_INVALID,
                   ": no .png, .jpg or .jpeg file in classes a, c [");
    files("c/deep/1.png", NULL);
    assert_refused(ek_image_folder(root), EK_E_INVALID,
                   ": no .png, .jpg or .jpeg file in class a [");
    for (int i = 0; i < 20; i++) {
        char name[100];
        snprintf(name, sizeof name, "empty%02d", i);
        directories(name, NULL);
    }
    assert_refused(ek_image_folder(root), EK_E_INVALID,
                   "classes a, empty00, empty01, empty02, empty03, empty04, empty05, "
                   "empty06 and 13 more");
}

TEST(no_classes)
{
    files("1.png", NULL);
    assert_refused(ek_image_folder(root), EK_E_INVALID,
                   "image_folder: there is no directory in /tmp/");
    assert_refused(ek_image_folder(at("1.png")), EK_E_IO, "1.png: Not a directory");
    assert_refused(ek_image_folder("/nowhere"), EK_E_IO,
                   "image_folder: cannot list /nowhere: No such file or directory");
    assert_refused(ek_image_folder(NULL), EK_E_INVALID, "image_folder: the directory is NULL");
    assert_refused(ek_image_folder(""), EK_E_INVALID, "image_folder: the directory is \"\"");
}

/* The administrator may read everything, so that the test becomes somebody else for a while. */
TEST(unreadable)
{
    directories("a", "a/secret", NULL);
    files("a/1.png", NULL);
    ck_assert_int_eq(chmod(at("a/secret"), 0), 0);
    bool administrator = geteuid() == 0;
    if (administrator)
        ck_assert_int_eq(seteuid(65534), 0);
    ek_dataset *folder = ek_image_folder(root);
    if (administrator)
        ck_assert_int_eq(seteuid(0), 0);
    chmod(at("a/secret"), 0755);
    ck_assert_ptr_null(folder);
    assert_error(EK_E_IO, "a/secret: Permission denied");
}

/* As long as the system takes paths; beyond that it says so. */
TEST(long_paths)
{
    char name[201];
    memset(name, 'd', 200);
    name[200] = '\0';
    directories("a", NULL);
    ck_assert_int_eq(chdir(at("a")), 0);
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(mkdir(name, 0755), 0);
        ck_assert_int_eq(chdir(name), 0);
    }
    write_file("p.png", "rgb8_interlaced_1_1");
    ek_dataset *folder = ek_image_folder(root);
    assert_made(folder);
    ck_assert_uint_eq(strlen(ek_image_folder_path(folder, 0)), strlen(root) + 2 + 20 * 201 + 6);
    ck_assert_int_eq(ek_dataset_get(folder, 0).kind, EK_VALUE_LIST);
    ek_dataset_free(folder);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(mkdir(name, 0755), 0);
        ck_assert_int_eq(chdir(name), 0);
    }
    assert_refused(ek_image_folder(root), EK_E_IO, "File name too long");
    for (int i = 0; i < 2; i++) { /* remove_root does not reach so far */
        ck_assert_int_eq(chdir(".."), 0);
        ck_assert_int_eq(rmdir(name), 0);
    }
}

/* ---- reading ---- */

TEST(damaged_picture)
{
    directories("a", NULL);
    files("a/1.png", "a/2.png", NULL);
    ck_assert_int_eq(truncate(at("a/2.png"), 40), 0);
    ek_dataset *folder = ek_image_folder(root);
    assert_made(folder);
    ck_assert_int_eq(ek_dataset_get(folder, 0).kind, EK_VALUE_LIST);
    ck_assert_int_eq(ek_dataset_get(folder, 1).kind, EK_VALUE_ERROR);
    ck_assert_ptr_nonnull(strstr(ek_error_message(), "image_folder: sample 1"));
    ck_assert_ptr_nonnull(strstr(ek_error_message(), at("a/2.png")));
    assert_error(EK_E_FORMAT, "truncated");
    unlink(at("a/1.png"));
    assert_refused(ek_dataset_get(folder, 0), EK_E_IO, "a/1.png: No such file");
    ek_dataset_free(folder);
}

TEST(questions)
{
    directories("a", NULL);
    files("a/1.png", NULL);
    ek_dataset *folder = ek_image_folder(root);
    assert_made(folder);
    for (int i = -1; i <= 1; i += 2) {
        assert_refused(ek_image_folder_class(folder, i), EK_E_INVALID,
                       "image_folder_class: class ");
        assert_refused(ek_image_folder_path(folder, i), EK_E_INVALID, "; there are 1");
    }
    ek_dataset *other = ek_tensor_dataset(ek_from_data("abc", EK_SHAPE(3), EK_U8));
    assert_made(other);
    assert_refused(ek_image_folder_class(other, 0), EK_E_INVALID,
                   "image_folder_class: the data set is of type ");
    assert_refused(ek_image_folder_path(NULL, 0), EK_E_INVALID,
                   "image_folder_path: the data set is NULL");
    ek_dataset_free(other);
    ek_dataset_free(folder);
}
