/* test_archive_set.c: archives that lie in several files, as Hugging Face writes them. */
#include <stdlib.h>

#include "kit/files.h"

FIXTURE(make_directory, empty_directory)

static void write_text(const char *name, const char *text)
{
    write_file(name, text, strlen(text));
}

/* Writes a part with the tensor `name`, of two numbers, and a text. */
static void write_part(const char *file, const char *name, double value)
{
    const ek_named_tensor tensor = {name, ek_full(value, EK_SHAPE(2))};
    const ek_metadata texts[] = {{"format", "pt"}, {name, file}};
    assert_ok(ek_safetensors_save(path_of(file), &tensor, 1, texts, 2));
}

static const char index_of_two[] =
    "{\"metadata\": {\"total_size\": 16, \"more\": [1, {\"a\": null}]},"
    " \"weight_map\": {\"net.a\": \"m-1.safetensors\", \"net.b\": \"m-2.safetensors\"}, \"x\": 1}";

static void write_two(void)
{
    write_part("m-1.safetensors", "net.a", 3);
    write_part("m-2.safetensors", "net.b", 4);
    write_text("m.safetensors.index.json", index_of_two);
}

static ek_archive *open_in_directory(const char *name)
{
    return ek_archive_open(path_of(name));
}

/* By the index's name, and by the name that the set has without it. */
TEST_LOOP(a_set_is_one_archive, 0, 2)
{
    write_two();
    ek_archive *archive = open_in_directory(_i ? "m.safetensors" : "m.safetensors.index.json");
    assert_made(archive);
    ek_value net = ek_archive_get(archive, "net");
    ck_assert_int_eq(ek_value_length(net), 2);
    ck_assert(element(ek_value_get(net, "a").as.tensor, 1) == 3);
    ck_assert(element(ek_value_get(net, "b").as.tensor, 0) == 4);
    ck_assert_str_eq(ek_archive_name(archive, 1), "net.b");
    ck_assert_str_eq(ek_archive_get_text(archive, "format"), "pt");
    ck_assert_str_eq(ek_archive_get_text(archive, "net.b"), "m-2.safetensors");
    ek_archive_free(archive);
}

/* tests/golden/make_set.py wrote it. */
TEST(a_set_of_python_is_read)
{
    int64_t step = 0;
    ek_archive *archive = ek_archive_open(EK_GOLDEN_DIR "/set/python.safetensors");
    ek_module *net = ek_linear(3, 2);
    assert_ok(ek_archive_load_module(archive, "net", net));
    ck_assert(element(ek_module_tensor(net, "weight"), 5) == 5);
    ck_assert(element(ek_module_tensor(net, "bias"), 1) == 8);
    ck_assert(element(ek_value_tensor(ek_archive_get(archive, "head.weight")), 3) == 3);
    assert_ok(ek_archive_get_int(archive, "step", &step));
    ck_assert_int_eq(step, 9);
    ek_module_free(net);
    ek_archive_free(archive);
}

TEST(a_file_comes_before_a_set_of_its_name)
{
    write_two();
    write_part("m.safetensors", "alone", 1);
    ek_archive *archive = open_in_directory("m.safetensors");
    assert_made(archive);
    ck_assert(ek_archive_has(archive, "alone") && !ek_archive_has(archive, "net"));
    ek_archive_free(archive);
}

TEST(a_part_that_is_missing_is_named_with_its_machine)
{
    write_part("m-1.safetensors", "a", 3);
    write_text("m.index.json",
               "{\"weight_map\": {\"a\": \"m-1.safetensors\", \"b\": \"m-2.safetensors\"},"
               " \"metadata\": {\"hosts\": {\"m-2.safetensors\": \"h2\"}}}");
    ck_assert_ptr_null(open_in_directory("m.index.json"));
    ck_assert_ptr_nonnull(strstr(ek_error_message(), "m-2.safetensors: No such"));
    assert_error(EK_E_IO, "m.index.json lists this part, which h2 wrote");
}

/* Indices are hostile: nothing outside of their directory is opened. */
TEST(indices_that_cannot_be_are_refused)
{
    static const char *const wrong[][2] = {
        {"", "is no JSON object, at its byte 0"},
        {"[]", "the index is no object"},
        {"{\"weight_map\": {}} x", "is no JSON object, at its byte"},
        {"{\"metadata\": {}}", "has no \"weight_map\""},
        {"{\"metadata\": null}", "\"metadata\" of the index is no object"},
        {"{\"weight_map\": []}", "\"weight_map\" of the index is no object"},
        {"{\"weight_map\": {\"a\": 1}}", "\"a\" in \"weight_map\" of the index is no text"},
        {"{\"weight_map\": {\"a\": \"../m-1.safetensors\"}}", "is no name of a part"},
        {"{\"weight_map\": {\"a\": \"\"}}", "\"\" is no name of a part"},
        {"{\"weight_map\": {}, \"metadata\": {\"hosts\": {\"a/b\": \"h\"}}}",
         "is no name of a part"},
        {"{\"weight_map\": {\"b\": \"m-1.safetensors\"}}",
         "the index has \"b\" in m-1.safetensors, which lacks it"},
        {"{\"weight_map\": {\"a\": \"m-1.safetensors\", \"b\": \"again.safetensors\"}}",
         "\"a\" twice"},
        {"{\"weight_map\": {\"a\": \"m.safetensors.index.json\"}}", "safetensors"}};
    const ek_named_tensor both[] = {{"a", ek_ones(EK_SHAPE(2))}, {"b", ek_ones(EK_SHAPE(2))}};
    write_part("m-1.safetensors", "a", 3);
    assert_ok(ek_safetensors_save(path_of("again.safetensors"), both, 2, NULL, 0));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_text("m.safetensors.index.json", wrong[i][0]);
        ck_assert_ptr_null(open_in_directory("m.safetensors"));
        assert_error(EK_E_FORMAT, wrong[i][1]);
    }
}
