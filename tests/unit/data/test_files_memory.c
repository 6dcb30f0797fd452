/* test_files_memory.c: files that are read and written while each allocation fails in turn, those
 * of zlib, libpng and TurboJPEG among them: the process is to blame, never the file. */
#include <errno.h>

#include "files.h"
#include "readers.h"

FIXTURE(make_directory, empty_directory)

/* ---- allocations that fail ---- */

#ifdef EK_SANITIZED
/* Sanitizers bring an allocator of their own. */
static const bool can_fail;
static int to_go, failed;
#else
static const bool can_fail = true;
static __thread int to_go, failed; /* to_go 0: none fails */

void *__libc_malloc(size_t nbytes);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t nbytes);

/* Exported, so that those of shared libraries come here too. */
static bool fails(void)
{
    if (to_go == 0 || --to_go > 0)
        return false;
    failed++;
    errno = ENOMEM;
    return true;
}

EK_API void *malloc(size_t nbytes)
{
    return fails() ? NULL : __libc_malloc(nbytes);
}

EK_API void *calloc(size_t count, size_t size)
{
    return fails() ? NULL : __libc_calloc(count, size);
}

EK_API void *realloc(void *memory, size_t nbytes)
{
    return fails() ? NULL : __libc_realloc(memory, nbytes);
}
#endif

/* ---- what is tried ---- */

static bool read_image(const char *path)
{
    return ek_read_image(path, 0) != NULL;
}

static bool save_safetensors(const char *path)
{
    static const float one = 1;
    static const ek_metadata pairs[] = {{"key \"\u00e4\"\n", "value"}, {"other", "\u4e2d"}};
    ek_tensor *tensor = ek_from_data(&one, EK_SHAPE(1));
    const ek_named_tensor named[] = {{"first", tensor}, {"\u00e4\\", tensor}};
    return ek_safetensors_save(path, named, 2, pairs, 2) == 0;
}

static const uint8_t idx[] = {0, 0, 8, 1, 0, 0, 0, 1, 7};
static const char npy[] = "\x93NUMPY\1\0\x38\0"
                          "{'descr': '|u1', 'fortran_order': False, 'shape': (1,)}\n\7";
static const char cifar[1 + 3072];
static const char safetensors[] =
    "\x92\0\0\0\0\0\0\0"
    "{\"__metadata__\":{\"k\":\"v\\n\"},\"a\\\"\":{\"dtype\":\"U8\",\"shape\":[1],"
    "\"data_offsets\":[0,1]},\"b\\u00e4\":{\"dtype\":\"U8\",\"shape\":[1,0],"
    "\"data_offsets\":[1,1]}}    7";

static const struct {
    const char *name;
    bool (*run)(const char *path);
    const void *bytes;
    size_t nbytes;
    bool gzip;
} tries[] = {
    {"idx", read_idx, idx, sizeof idx, true},
    {"npy", read_npy, npy, sizeof npy - 1, true},
    {"cifar", read_cifar, cifar, sizeof cifar, true},
    {"safetensors", read_safetensors, safetensors, sizeof safetensors - 1, false},
    {"saved", save_safetensors, "", 0, false},
    {"rgb8", read_image, NULL, 0, false},
    {"palette8", read_image, NULL, 0, false},
    {"rgb16_interlaced", read_image, NULL, 0, false},
    {"rgb8_gamma", read_image, NULL, 0, false},
    {"jpeg_420", read_image, NULL, 0, false},
    {"jpeg_progressive", read_image, NULL, 0, false},
    {"jpeg_ycck", read_image, NULL, 0, false},
    {"gray_jpeg", read_image, NULL, 0, false},
};

static const char *write_try(int i)
{
    char name[64];
    if (tries[i].bytes)
        return (tries[i].gzip ? write_gzip : write_file)("file", tries[i].bytes, tries[i].nbytes);
    snprintf(name, sizeof name, "%s/file", tries[i].name);
    const ek_tensor *bytes = golden("images.golden", name);
    return write_file("file", ek_tensor_data(bytes), (size_t)ek_tensor_count(bytes));
}

/* With the k-th allocation failing; whether one did. */
static bool run_without(int i, const char *path, int k)
{
    ek_scope scope = ek_scope_begin();
    failed = 0;
    to_go = k;
    bool well = tries[i].run(path);
    to_go = 0;
    if (!well) {
        ck_assert_msg(failed > 0, "%s: %s", tries[i].name, ek_error_message());
        ck_assert_msg(ek_error_status() == EK_E_NO_MEMORY ||
                          ek_error_status() == EK_E_OUT_OF_MEMORY,
                      "%s, allocation %d: %s", tries[i].name, k, ek_error_message());
        ck_assert_ptr_nonnull(strstr(ek_error_message(), "memory"));
        ek_error_clear();
    }
    ek_scope_end(&scope);
    return failed > 0;
}

TEST_LOOP(each_allocation, 0, sizeof tries / sizeof *tries)
{
    int k = 1;
    if (!can_fail)
        return;
    const char *path = write_try(_i);
    ck_assert(!run_without(_i, path, 0)); /* what is made once is there then */
    while (run_without(_i, path, k))
        k++;
    ck_assert_int_gt(k, 3);
    run_without(_i, path, 0);
}
