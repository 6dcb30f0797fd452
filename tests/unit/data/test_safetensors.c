/* test_safetensors.c: files of named tensors, written and read, here and by Python's library, and
 * what is left when writing fails. Broken files: test_safetensors_hostile.c. */
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/tensor.h"
#include "kit/files.h"

FIXTURE(make_directory, remove_directory)

/* ---- tensors ---- */

static ek_tensor *filled(float value, int64_t count)
{
    ek_tensor *tensor = ek_empty(EK_SHAPE(count));
    assert_made(tensor);
    float *data = ek_tensor_data(tensor);
    for (int64_t i = 0; i < count; i++)
        data[i] = value;
    return tensor;
}

static ek_tensor *read_one(const char *path, const char *name)
{
    ek_safetensors *file = ek_safetensors_open(path);
    assert_made(file);
    ek_tensor *tensor = ek_safetensors_read(file, name);
    assert_made(tensor);
    ek_safetensors_close(file);
    return tensor;
}

static void assert_elements(const ek_safetensors *file, const char *name, ek_dtype dtype,
                            ek_shape wanted, const void *rows)
{
    unsigned char data[64];
    ek_tensor *tensor = ek_safetensors_read(file, name);
    assert_made(tensor);
    ck_assert_int_eq(ek_tensor_dtype(tensor), dtype);
    ck_assert(ek_device_equal(ek_tensor_device(tensor), ek_cpu()));
    ek_shape shape = ek_tensor_shape(tensor);
    ck_assert_msg(ek_shape_equal(&shape, &wanted), "%s has another shape", name);
    size_t nbytes = (size_t)ek_tensor_count(tensor) * ek_dtype_size(dtype);
    ck_assert_uint_le(nbytes, sizeof data);
    assert_ok(ek_to_data(tensor, data, nbytes));
    ck_assert_msg(memcmp(data, rows, nbytes) == 0, "%s has other elements", name);
}

/* ---- goldens ---- */

/* Also in tests/golden/make_safetensors.py. */
static const float weights[] = {0, 1, 2, 3, 4, 5.5f}, two_and_a_half = 2.5f;
static const double doubles[] = {1e-300, -0.1};
static const uint16_t halves[] = {0x3F80, 0xC020, 0x3E20}; /* bf16 1, -2.5, 0.15625 */
static const int64_t integers[] = {-((int64_t)1 << 62), 7};
static const uint8_t bytes3[] = {0, 1, 255}, nine = 9;

static const struct {
    const char *name;
    ek_dtype dtype;
    ek_shape shape;
    const void *data;
} shared[] = {
    {"weights.f32", EK_F32, {2, {2, 3}}, weights},
    {"f64", EK_F64, {1, {2}}, doubles},
    {"bf16", EK_BF16, {1, {3}}, halves},
    {"i64", EK_I64, {3, {1, 2, 1}}, integers},
    {"bytes", EK_U8, {1, {3}}, bytes3},
    {"scalar", EK_F32, {0, {0}}, &two_and_a_half},
    {"empty", EK_F32, {2, {0, 3}}, weights},
    {"odd \"ä中😀\\\n", EK_U8, {1, {1}}, &nine},
};
enum { SHARED = sizeof shared / sizeof *shared };

static const ek_metadata metadata[] = {{"format", "evenkeel"}};

static void save_shared(const char *to)
{
    ek_named_tensor tensors[SHARED];
    for (int i = 0; i < SHARED; i++) {
        ek_tensor *tensor = ek_from_data(shared[i].data, shared[i].shape, .dtype = shared[i].dtype);
        tensors[i] = (ek_named_tensor){shared[i].name, tensor};
    }
    assert_ok(ek_safetensors_save(to, tensors, SHARED, metadata, 1));
}

static void assert_shared(const ek_safetensors *file)
{
    for (int i = 0; i < SHARED; i++)
        assert_elements(file, shared[i].name, shared[i].dtype, shared[i].shape, shared[i].data);
    ck_assert_str_eq(ek_safetensors_metadata(file, "format"), "evenkeel");
    ck_assert_ptr_null(ek_safetensors_metadata(file, "other"));
    ck_assert_int_eq(ek_error_status(), 0);
}

/* Dtypes that there are none of become ones that hold them. The others are kept. */
static void assert_widened(const ek_safetensors *file)
{
    const int64_t i8[] = {-128, -1, 127}, i16[] = {-32768, -1, 32767}, u16[] = {1, 65535};
    const int64_t u32[] = {UINT32_MAX};
    const int32_t i32[] = {INT32_MIN, -1, INT32_MAX};
    ek_tensor *wide = ek_safetensors_read(file, "f16 wide");
    assert_made(wide);
    ek_tensor *halves_of_file = ek_safetensors_read(file, "f16");
    ck_assert_int_eq(ek_tensor_dtype(halves_of_file), EK_F16);
    for (int i = 0; i < 11; i++) {
        double got = element(halves_of_file, i), wanted = element(wide, i);
        ck_assert(isnan(wanted) ? isnan(got) : got == wanted && !signbit(got) == !signbit(wanted));
    }
    assert_elements(file, "f16 empty", EK_F16, EK_SHAPE(2, 0), "");
    assert_elements(file, "i8", EK_I64, EK_SHAPE(3), i8);
    assert_elements(file, "i16", EK_I64, EK_SHAPE(3), i16);
    assert_elements(file, "u16", EK_I64, EK_SHAPE(2), u16);
    assert_elements(file, "i32", EK_I32, EK_SHAPE(3, 1), i32);
    assert_elements(file, "u32", EK_I64, ek_scalar_shape(), u32);
}

TEST(python_writes_and_we_read)
{
    static const char *const order[] = {"u64",         "i64",      "f64",
                                        "empty",       "f16 wide", "scalar",
                                        "weights.f32", "u32",      "i32",
                                        "bf16",        "f16",      "f16 empty",
                                        "u16",         "i16",      "i8",
                                        "bytes",       "nine",     "odd \"ä中😀\\\n",
                                        "bool"};
    enum { COUNT = sizeof order / sizeof *order };
    ek_safetensors *file = ek_safetensors_open(EK_GOLDEN_DIR "/python.safetensors");
    assert_made(file);
    ck_assert_int_eq(ek_safetensors_count(file), COUNT);
    for (int i = 0; i < COUNT; i++)
        ck_assert_str_eq(ek_safetensors_name(file, i), order[i]);
    assert_shared(file);
    assert_elements(file, "bool", EK_BOOL, EK_SHAPE(2), (const uint8_t[]){1, 0});
    assert_widened(file);
    assert_refused(ek_safetensors_read(file, "u64"), EK_E_DTYPE,
                   "tensor \"u64\" is U64, which is not read; all but U64, C64");
    assert_refused(ek_safetensors_read(file, "nine"), EK_E_SHAPE,
                   "tensor \"nine\" has 9 dimensions; at most 8");
    ek_safetensors_close(file);
}

TEST(we_write_what_python_writes)
{
    unsigned char ours[2048], golden_bytes[2048];
    save_shared(file_path);
    const char *golden_path = getenv("EVENKEEL_GOLDEN_WRITE");
    if (golden_path)
        save_shared(golden_path);
    size_t nbytes = read_file(file_path, ours, sizeof ours);
    size_t wanted =
        read_file(EK_GOLDEN_DIR "/evenkeel.safetensors", golden_bytes, sizeof golden_bytes);
    ck_assert_uint_eq(nbytes, wanted);
    ck_assert_mem_eq(ours, golden_bytes, nbytes);
    ek_safetensors *file = ek_safetensors_open(file_path);
    assert_made(file);
    assert_shared(file);
    ck_assert_int_eq(ek_safetensors_count(file), SHARED);
    ek_safetensors_close(file);
}

/* ---- layouts and devices ---- */

/* 0, 1, ... in row-major order of the shape, whatever the strides. */
static void assert_counts(const char *name, ek_shape wanted)
{
    ek_tensor *tensor = read_one(file_path, name);
    ek_shape shape = ek_tensor_shape(tensor);
    ck_assert(ek_shape_equal(&shape, &wanted));
    ck_assert(ek_tensor_is_contiguous(tensor, EK_CONTIGUOUS));
    const float *data = ek_tensor_data(tensor);
    for (int64_t i = 0; i < ek_tensor_count(tensor); i++)
        ck_assert_msg(data[i] == (float)i, "%s: element %d is %g", name, (int)i, (double)data[i]);
}

TEST(row_major_from_any_layout)
{
    float counts[48];
    for (int i = 0; i < 48; i++)
        counts[i] = (float)i;
    assert_ok(ek_host_devices_configure("1"));
    ek_shape image = EK_SHAPE(2, 3, 4, 2);
    ek_tensor *last = ek_from_data(counts, image, .format = EK_CHANNELS_LAST, .device = ek_host(0));
    ek_tensor *flat = ek_from_data(counts, EK_SHAPE(48));
    /* Every second element of [0 0 1 1 2 2 ...]; three elements seen five times; a transposed view.
     */
    float pairs[12], columns[6] = {0, 3, 1, 4, 2, 5};
    for (int i = 0; i < 12; i++)
        pairs[i] = (float)(i / 2);
    ek_tensor *doubled = ek_from_data(pairs, EK_SHAPE(12));
    ek_tensor *sliced = ek_tensor_view(doubled, 2, (int64_t[]){2, 3}, (int64_t[]){6, 2}, 1);
    ek_tensor *expanded = ek_tensor_view(flat, 2, (int64_t[]){5, 3}, (int64_t[]){0, 1}, 7);
    ek_tensor *crossed = ek_tensor_view(ek_from_data(columns, EK_SHAPE(3, 2)), 2, (int64_t[]){2, 3},
                                        (int64_t[]){1, 2}, 0);
    const ek_named_tensor tensors[] = {{"last", last},
                                       {"flat", flat},
                                       {"sliced", sliced},
                                       {"expanded", expanded},
                                       {"crossed", crossed}};
    assert_ok(ek_safetensors_save(file_path, tensors, 5, NULL, 0));
    assert_counts("last", image);
    assert_counts("flat", EK_SHAPE(48));
    assert_counts("sliced", EK_SHAPE(2, 3));
    assert_counts("crossed", EK_SHAPE(2, 3));
    ek_tensor *five = read_one(file_path, "expanded");
    ck_assert_int_eq(ek_tensor_count(five), 15);
    for (int i = 0; i < 15; i++)
        ck_assert_double_eq(element(five, i), 7 + i % 3);
}

TEST(nothing_but_metadata)
{
    const ek_metadata pairs[] = {{"a", ""}, {"ä\"\\", "line\nline"}, {"", "no key"}};
    assert_ok(ek_safetensors_save(file_path, NULL, 0, pairs, 3));
    ek_safetensors *file = ek_safetensors_open(file_path);
    assert_made(file);
    ck_assert_int_eq(ek_safetensors_count(file), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_str_eq(ek_safetensors_metadata(file, pairs[i].key), pairs[i].value);
    assert_refused(ek_safetensors_name(file, 0), EK_E_INVALID,
                   "has 0 tensors, there is none with index 0");
    assert_refused(ek_safetensors_read(file, "a"), EK_E_INVALID, "has no tensor \"a\"");
    assert_refused(ek_safetensors_read(file, NULL), EK_E_INVALID, "has no tensor");
    ek_safetensors_close(file);
    ek_safetensors_close(NULL);

    assert_ok(ek_safetensors_save(file_path, NULL, 0, NULL, 0));
    file = ek_safetensors_open(file_path);
    assert_made(file);
    ck_assert_ptr_null(ek_safetensors_metadata(file, "a"));
    ck_assert_int_eq(ek_error_status(), 0);
    ek_safetensors_close(file);
    assert_refused(ek_safetensors_count(NULL), EK_E_INVALID, "the file is NULL");
}

/* Enough names that looking them up has to be right in every half. */
TEST(many_tensors)
{
    enum { COUNT = 300 };
    char names[COUNT][16];
    ek_named_tensor tensors[COUNT];
    for (int i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i * 7919 % COUNT);
        float value = (float)(i * 7919 % COUNT);
        tensors[i] = (ek_named_tensor){names[i], ek_from_data(&value, ek_scalar_shape())};
    }
    assert_ok(ek_safetensors_save(file_path, tensors, COUNT, NULL, 0));
    ek_safetensors *file = ek_safetensors_open(file_path);
    assert_made(file);
    ck_assert_int_eq(ek_safetensors_count(file), COUNT);
    for (int i = 0; i < COUNT; i++) {
        ek_tensor *tensor = ek_safetensors_read(file, names[i]);
        if (!tensor || element(tensor, 0) != atoi(names[i] + 1))
            ck_abort_msg("%s is another tensor", names[i]);
    }
    assert_refused(ek_safetensors_read(file, "t300"), EK_E_INVALID, "no tensor \"t300\"");
    ek_safetensors_close(file);
}

/* ---- what cannot be written ---- */

TEST(refused_arguments)
{
    ek_tensor *x = filled(0, 2);
    const struct {
        ek_named_tensor tensors[2];
        const char *part;
    } wrong[] = {
        {{{"a", x}, {"a", tensor_of((double[]){0, 1}, EK_SHAPE(2), EK_F64, ek_cpu())}},
         "\"a\" is given twice"},
        {{{"a", x}, {"", x}}, "tensor 1 has no name"},
        {{{"a", x}, {NULL, x}}, "tensor 1 has no name"},
        {{{"a", x}, {"__metadata__", x}}, "tensor 1 is named \"__metadata__\""},
        {{{"a", NULL}, {"b", x}}, "tensor 0, \"a\", is NULL"},
        {{{"a", x}, {"\xff", x}}, "is not UTF-8"},
        {{{"a", x}, {"\xc0\x80", x}}, "is not UTF-8"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_refused(ek_safetensors_save(file_path, wrong[i].tensors, 2, NULL, 0), EK_E_INVALID,
                       wrong[i].part);
    }
    const ek_named_tensor good = {"a", x};
    const struct {
        ek_metadata pairs[2];
        const char *part;
    } wrong_pairs[] = {{{{"k", "v"}, {"k", "w"}}, "metadata key \"k\" is given twice"},
                       {{{"k", "v"}, {"l", NULL}}, "the value of metadata 1 (l) is NULL"},
                       {{{"k", "\xff"}, {"l", ""}}, "the value of metadata 0 (k) is not UTF-8"},
                       {{{NULL, "v"}, {"l", ""}}, "the key of metadata 0"},
                       {{{"\xff", "v"}, {"l", ""}}, "is not UTF-8"}};
    for (size_t i = 0; i < sizeof wrong_pairs / sizeof *wrong_pairs; i++) {
        assert_refused(ek_safetensors_save(file_path, &good, 1, wrong_pairs[i].pairs, 2),
                       EK_E_INVALID, wrong_pairs[i].part);
    }
    ck_assert_int_lt(ek_safetensors_save(NULL, &good, 1, NULL, 0), 0);
    assert_error(EK_E_INVALID, "there is no path");
    ck_assert_int_lt(ek_safetensors_save(file_path, &good, -1, NULL, 0), 0);
    assert_error(EK_E_INVALID, "-1 tensors");
    ck_assert_int_lt(ek_safetensors_save(file_path, NULL, 1, NULL, 0), 0);
    assert_error(EK_E_INVALID, "the list is missing");
    ck_assert_int_eq(files_in_directory(), 0);
}

static void save_value(float value, int64_t count)
{
    const ek_named_tensor tensor = {"x", filled(value, count)};
    assert_ok(ek_safetensors_save(file_path, &tensor, 1, NULL, 0));
}

/* A failed save sets the error; the old file, with value 1, is there alone. */
static void assert_not_saved(const char *to, const char *part)
{
    const ek_named_tensor tensor = {"x", filled(2, 1 << 18)};
    assert_refused(ek_safetensors_save(to, &tensor, 1, NULL, 0), EK_E_IO, part);
    ck_assert_int_eq(files_in_directory(), 1);
    ck_assert_double_eq(element(read_one(file_path, "x"), 0), 1);
}

TEST(replaces_the_old_file)
{
    struct stat status;
    save_value(3, 5);
    umask(022);
    ck_assert_int_eq(chmod(file_path, 0640), 0);
    ek_safetensors *old = ek_safetensors_open(file_path);
    save_value(4, 100);
    ck_assert_int_eq(files_in_directory(), 1);
    ck_assert_double_eq(element(read_one(file_path, "x"), 99), 4);
    ck_assert_double_eq(element(ek_safetensors_read(old, "x"), 4), 3); /* readers keep theirs */
    ek_safetensors_close(old);
    ck_assert_int_eq(stat(file_path, &status), 0);
    ck_assert_int_eq(status.st_mode & 0777, 0640);
    if (geteuid() == 0) { /* who saves another's file leaves it that one's */
        ck_assert_int_eq(chown(file_path, 65534, 65533), 0);
        save_value(4, 10);
        ck_assert_int_eq(stat(file_path, &status), 0);
        ck_assert_uint_eq(status.st_uid, 65534);
        ck_assert_uint_eq(status.st_gid, 65533);
        ck_assert_int_eq(status.st_mode & 0777, 0640);
    }
    unlink(file_path);
    save_value(5, 1);
    ck_assert_int_eq(stat(file_path, &status), 0);
    ck_assert_int_eq(status.st_mode & 0777, 0644);

    /* A path without a directory. */
    ck_assert_int_eq(chdir(directory), 0);
    const ek_named_tensor tensor = {"x", filled(6, 1)};
    assert_ok(ek_safetensors_save("file", &tensor, 1, NULL, 0));
    ck_assert_double_eq(element(read_one(file_path, "x"), 0), 6);
    ck_assert_int_eq(files_in_directory(), 1);
}

/* With the signal as it is at the start, which would end the program, and ignored. */
TEST_LOOP(full_disk_keeps_the_old_file, 0, 2)
{
    struct rlimit limit;
    sigset_t blocked, pending;
    save_value(1, 10);
    signal(SIGXFSZ, _i ? SIG_IGN : SIG_DFL);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    rlim_t before = limit.rlim_cur;
    /* Within the elements, and within the header. */
    for (rlim_t nbytes = 100000; nbytes > 0; nbytes = nbytes > 20 ? 20 : 0) {
        const ek_named_tensor tensor = {"x", filled(2, 1 << 18)};
        limit.rlim_cur = nbytes; /* for Check's file, too, which each assertion is written to */
        int limited = setrlimit(RLIMIT_FSIZE, &limit);
        int status = ek_safetensors_save(file_path, &tensor, 1, NULL, 0);
        limit.rlim_cur = before;
        limited |= setrlimit(RLIMIT_FSIZE, &limit);
        ck_assert_int_eq(limited, 0);
        ck_assert_int_eq(status, EK_E_IO);
        assert_error(EK_E_IO, "file: File too large");
        ck_assert_int_eq(files_in_directory(), 1);
        ck_assert_double_eq(element(read_one(file_path, "x"), 0), 1);
        ck_assert_int_eq(sigpending(&pending) | pthread_sigmask(SIG_SETMASK, NULL, &blocked), 0);
        ck_assert(!sigismember(&pending, SIGXFSZ) && !sigismember(&blocked, SIGXFSZ));
    }
}

TEST(places_that_cannot_be_written)
{
    char other[128];
    save_value(1, 10);
    snprintf(other, sizeof other, "%s/none/file", directory);
    assert_not_saved(other, "none/file: No such file or directory");
    snprintf(other, sizeof other, "%s/file/file", directory);
    assert_not_saved(other, "file/file: Not a directory");
    assert_not_saved(directory, "Is a directory");
    snprintf(other, sizeof other, "%s/", directory);
    assert_not_saved(other, "Is a directory");
    assert_not_saved("/dev/full", "/dev/full: it is no regular file");
    char *name = malloc(400);
    ck_assert_ptr_nonnull(name);
    snprintf(name, 400, "%s/%0300d", directory, 1);
    assert_not_saved(name, "File name too long");
    free(name);
    /* Root may write everywhere. */
    bool root = geteuid() == 0;
    ck_assert_int_eq(chmod(file_path, 0666), 0);
    ck_assert_int_eq(chmod(directory, 0555), 0);
    if (root)
        ck_assert_int_eq(seteuid(65534), 0);
    assert_not_saved(file_path, "no file can be made in its directory: Permission denied");

    /* Nor is what is protected replaced where the directory would allow it. */
    if (root)
        ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(chmod(file_path, 0444), 0);
    ck_assert_int_eq(chmod(directory, 0777), 0);
    if (root)
        ck_assert_int_eq(seteuid(65534), 0);
    assert_not_saved(file_path, "file: Permission denied");
    if (root)
        ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(chmod(directory, 0755), 0);
}

/* The longest name that a file may have leaves no room for a suffix. */
TEST(longest_name)
{
    char longest[320];
    snprintf(longest, sizeof longest, "%s/%0255d", directory, 1);
    const ek_named_tensor tensor = {"x", filled(6, 1)};
    assert_ok(ek_safetensors_save(longest, &tensor, 1, NULL, 0));
    ck_assert_double_eq(element(read_one(longest, "x"), 0), 6);
    ck_assert_int_eq(unlink(longest), 0);
}
