/* test_archive_pth.c: files of torch.save (tests/golden/make_pth.py): modules, all that nests in
 * them, and files that no honest program wrote. */
#include <sys/resource.h>

#include "archive_setup.h"
#include "data/element.h"

static ek_archive *opened(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, EK_GOLDEN_DIR "/pth/%s.pth", name);
    return ek_archive_open(path);
}

/* ---- modules ---- */

/* A file, and the name below which its module is. */
static const char *const modules[][2] = {
    {"module", ""}, {"module_old", ""},        {"module_protocol4", ""},
    {"whole", ""},  {"wrapped", "state_dict"},
};

/* Element i of tensor number k of the state dictionary is k + i / 8. */
TEST_LOOP(modules_load, 0, 5)
{
    static const char *const names[] = {"0.weight", "0.bias",         "1.weight",
                                        "1.bias",   "1.running_mean", "1.running_var"};
    ek_module *net = ek_sequential(ek_linear(3, 2), ek_batch_norm1d(2));
    ek_archive *a = opened(modules[_i][0]);
    assert_made(a);
    assert_ok(ek_archive_load_module(a, modules[_i][1], net));
    ek_archive_free(a);
    for (int k = 0; k < 6; k++) {
        ek_tensor *tensor = ek_module_tensor(net, names[k]);
        assert_made(tensor);
        for (int i = 0; i < ek_tensor_count(tensor); i++)
            ck_assert(element(tensor, i) == k + i / 8.0);
    }
    ck_assert(element(ek_module_tensor(net, "1.num_batches_tracked"), 0) == 9);
    ek_module_free(net);
}

TEST(shapes_are_compared)
{
    ek_module *net = ek_sequential(ek_linear(4, 2), ek_batch_norm1d(2));
    ek_archive *a = opened("module");
    assert_made(a);
    ck_assert_int_lt(ek_archive_load_module(a, "", net), 0);
    assert_error(EK_E_SHAPE, "\"0.weight\" is [2, 3], in the module it is [2, 4]");
    ek_archive_free(a);
    ek_module_free(net);
}

/* Buffers that are not persistent are not in the state dictionary: a strict load succeeds. */
TEST_LOOP(modules_without_some_buffers, 0, 2)
{
    static const char *const names[] = {"masked", "masked_protocol4"};
    ek_archive *a = opened(names[_i]);
    assert_made(a);
    ck_assert(!ek_archive_has(a, "mask") && !ek_archive_has(a, "fc.mask"));
    ck_assert(ek_archive_has(a, "kept") && ek_archive_has(a, "fc.kept"));
    ek_module *net = ek_sequential_named({"fc", ek_linear(2, 1)});
    assert_ok(ek_archive_load_module(a, "fc", net, .strict = false));
    ck_assert(ek_archive_has(a, "fc.fc.weight"));
    ek_archive_free(a);
    ek_module_free(net);
}

/* ---- values ---- */

/* Tensor `name` has these sizes, and element i of it is first + i * step. */
static void check_range(const ek_archive *a, const char *name, ek_dtype dtype, ek_shape shape,
                        double first, double step)
{
    ek_tensor *tensor = ek_value_tensor(ek_archive_get(a, name));
    assert_made(tensor);
    ek_shape found = ek_tensor_shape(tensor);
    ck_assert_msg(ek_shape_equal(&found, &shape), "%s", name);
    ck_assert_int_eq(ek_tensor_dtype(tensor), dtype);
    tensor = ek_to_dtype(tensor, EK_F64);
    for (int i = 0; i < ek_tensor_count(tensor); i++)
        ck_assert_msg(element(tensor, i) == first + i * step, "%s", name);
}

/* The dtype that holds what this element type of files has. */
static ek_dtype dtype_of(const char *element)
{
    return ek_element_find(element)->dtype;
}

static const char *const everything[] = {"everything", "everything_old"};

TEST_LOOP(tensors_of_all_types_and_layouts, 0, 2)
{
    const ek_shape whole = EK_SHAPE(3, 4);
    ek_archive *a = opened(everything[_i]);
    assert_made(a);
    check_range(a, "f64", EK_F64, whole, 0, 1);
    check_range(a, "f16", dtype_of("F16"), whole, 0, 1);
    check_range(a, "bf16", EK_BF16, whole, 0, 1);
    check_range(a, "i64", EK_I64, whole, 0, 1);
    check_range(a, "i32", dtype_of("I32"), whole, 0, 1);
    check_range(a, "i16", dtype_of("I16"), whole, 0, 1);
    check_range(a, "i8", dtype_of("I8"), whole, 0, 1);
    check_range(a, "u8", EK_U8, whole, 0, 1);
    check_range(a, "parameter", EK_F32, whole, 0, 1);
    check_range(a, "row", EK_F32, EK_SHAPE(4), 4, 1);
    check_range(a, "channels_last", EK_F32, EK_SHAPE(1, 2, 3, 4), 0, 1);
    check_range(a, "empty", EK_F32, EK_SHAPE(0, 3), 0, 0);
    check_range(a, "scalar", EK_F32, ek_scalar_shape(), 3.5, 0);
    check_range(a, "3.key", EK_F32, EK_SHAPE(2), 1, 0);
    static const char *const turned[] = {"transposed", "transposed_f16"};
    for (int k = 0; k < 2; k++) {
        ek_tensor *t = ek_to_dtype(ek_value_tensor(ek_archive_get(a, turned[k])), EK_F32);
        assert_made(t);
        for (int i = 0; i < 12; i++)
            ck_assert(element(t, i) == i % 3 * 4 + i / 3);
    }
    ek_tensor *columns = ek_value_tensor(ek_archive_get(a, "columns"));
    ek_tensor *larger = ek_to_dtype(ek_value_tensor(ek_archive_get(a, "bool")), EK_F32);
    for (int i = 0; i < 6; i++)
        ck_assert(element(columns, i) == i / 2 * 4 + i % 2 + 1);
    for (int i = 0; i < 12; i++)
        ck_assert(element(larger, i) == (i > 5));
    ek_archive_free(a);
}

TEST_LOOP(numbers_texts_and_lists, 0, 2)
{
    ek_archive *a = opened(everything[_i]);
    static const struct {
        const char *name;
        int64_t number;
    } integers[] = {{"epoch", 7},
                    {"negative", -3},
                    {"million", 1000000},
                    {"flag", 1},
                    {"billions", -INT64_C(10000000000)},
                    {"size.1", 4},
                    {"list.0", 1},
                    {"list.1.0", 2}};
    assert_made(a);
    for (int i = 0; i < 8; i++) {
        int64_t number = 0;
        assert_ok(ek_archive_get_int(a, integers[i].name, &number));
        ck_assert_int_eq(number, integers[i].number);
    }
    double loss = 0;
    assert_ok(ek_archive_get_float(a, "loss", &loss));
    ck_assert(loss == 0.25);
    ck_assert_str_eq(ek_archive_get_text(a, "name"), "caf\xc3\xa9");
    ck_assert_str_eq(ek_archive_get_text(a, "list.1.1"), "two");
    ck_assert_str_eq(ek_archive_get_text(a, "device"), "cpu");
    ck_assert(!ek_archive_has(a, "none") && !ek_archive_has(a, "huge"));
    ek_archive_free(a);
}

/* Objects that nothing here knows are left out: no class is looked up, no function called. */
TEST(nothing_is_called)
{
    ek_archive *a = opened("call"), *wrapped = opened("wrapped");
    assert_made(a);
    assert_made(wrapped);
    ck_assert(!ek_archive_has(a, "w") && !ek_archive_has(wrapped, "args"));
    ck_assert(ek_archive_has(wrapped, "state_dict"));
    ek_archive_free(a);
    ek_archive_free(wrapped);
}

static char last_line[400];

static void keep_line(ek_log_level level, const char *line, void *user)
{
    snprintf(last_line, sizeof last_line, "%s", line);
}

/* Tensors of kinds that are not read are left out, with a line in the log. */
TEST(tensors_of_other_kinds)
{
    ek_set_log(keep_line, NULL);
    ek_archive *a = opened("kinds");
    ek_set_log(NULL, NULL);
    assert_made(a);
    ck_assert(ek_archive_has(a, "w") && !ek_archive_has(a, "sparse"));
    ck_assert(!ek_archive_has(a, "quantized"));
    ck_assert_msg(strstr(last_line, "2 tensors are left out, for instance \"sparse\" "
                                    "(_rebuild_sparse_tensor)"),
                  "%s", last_line);
    ek_archive_free(a);
}

/* Elements that several indices share, as those of expanded tensors. */
TEST(shared_elements)
{
    static const double windows[] = {1, 2, 2, 3};
    ek_archive *a = opened("windows");
    assert_made(a);
    ek_tensor *w = ek_value_tensor(ek_archive_get(a, "w"));
    ek_tensor *v = ek_value_tensor(ek_archive_get(a, "v"));
    assert_made(w);
    assert_made(v);
    for (int i = 0; i < 12; i++)
        ck_assert(element(w, i) == i % 4);
    for (int i = 0; i < 4; i++)
        ck_assert(element(v, i) == windows[i]);
    check_range(a, "s", EK_F32, EK_SHAPE(5), 3, 0);
    ek_archive_free(a);
}

/* A small file cannot so make large tensors: only what is used is refused. */
TEST(expanded_to_very_many)
{
    ek_archive *a = opened("expanded");
    assert_made(a);
    check_range(a, "v", EK_F32, EK_SHAPE(4), 0, 1);
    ck_assert_int_eq(ek_archive_get(a, "w").kind, EK_VALUE_ERROR);
    assert_error(EK_E_FORMAT, "\"w\" is expanded from fewer elements, or shared");
    ek_archive_free(a);
}

/* ---- hostile files ---- */

static const struct {
    const char *name, *sentence;
} refused[] = {
    {"outside", "\"w\" leaves its storage of 4 elements"},
    {"overflow", "\"w\" leaves its storage of 4 elements"},
    {"negative", "size or stride 0 is no natural number"},
    {"missing", "storage \"7\" is missing"},
    {"unknown", "lies in a storage of unknown type"},
    {"twice", "has \"a.b\" twice"},
    {"compressed", "is compressed or encrypted"},
    {"big", "its numbers are big-endian"},
    {"opcode", "byte 2, 0x49, is no operation"},
    {"protocol", "protocol 9; up to 5 are read"},
    {"early", "it ends too early"},
    {"stack", "nothing is on the stack"},
    {"memo", "a memo number larger than the pickle"},
    {"laughs", "shared so often"},
    {"silent", "shared so often"},
    {"deep", "nests more than 100 deep"},
    {"itself", "nests more than 100 deep"},
    {"truncated", "the zip archive has no directory"},
    {"old_truncated", "truncated: storage 6"},
    {"old_magic", "it ends too early"},
    {"other", "without data.pkl"},
    {"skipped", "shared so often"},
    {"longkey", "storage 0 has no type"},
    {"script", "a TorchScript file"},
};

TEST_LOOP(hostile_files_are_refused, 0, sizeof refused / sizeof *refused)
{
    ck_assert_ptr_null(opened(refused[_i].name));
    assert_error(EK_E_FORMAT, refused[_i].sentence);
}

TEST(too_many_dimensions_are_refused_when_read)
{
    ek_archive *a = opened("nine");
    assert_made(a);
    ck_assert_int_eq(ek_archive_get(a, "w").kind, EK_VALUE_ERROR);
    assert_error(EK_E_SHAPE, "\"w\" has 9 dimensions");
    ek_archive_free(a);
}

TEST(safetensors_open_names_the_function_for_them)
{
    ck_assert_ptr_null(ek_safetensors_open(EK_GOLDEN_DIR "/pth/module.pth"));
    assert_error(EK_E_FORMAT, "was written by torch.save; ek_archive_open reads it");
}

/* A megabyte of numbers of one byte each: what it takes at most is some 50 bytes for a byte. */
TEST(small_objects_take_little_memory)
{
    static char pickle[(1 << 20) + 100];
    static const char begin[] = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
                                "\x80\x02M\xe9\x03.\x80\x02}.\x80\x02](";
    struct rusage before, after;
    size_t nbytes = sizeof begin - 1;
    memcpy(pickle, begin, nbytes);
    memset(pickle + nbytes, '\x88', 1 << 20);
    memcpy(pickle + nbytes + (1 << 20), "e.\x80\x02].", 6);
    FILE *stream = fopen(file_path, "wb");
    ck_assert_ptr_nonnull(stream);
    ck_assert_uint_eq(fwrite(pickle, 1, nbytes + (1 << 20) + 6, stream), nbytes + (1 << 20) + 6);
    ck_assert_int_eq(fclose(stream), 0);
    ck_assert_int_eq(getrusage(RUSAGE_SELF, &before), 0);
    ck_assert_ptr_null(ek_archive_open(file_path));
    ck_assert_int_eq(getrusage(RUSAGE_SELF, &after), 0);
    assert_error(EK_E_FORMAT, "shared so often");
#ifndef EK_SANITIZED
    ck_assert_int_lt(after.ru_maxrss - before.ru_maxrss, 80 << 10); /* in units of 1 KiB */
#endif
}
