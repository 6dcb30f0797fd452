/* test_archive.c: values, numbers and texts by their names, there and back. */
#include "archive_setup.h"

/* ---- there and back ---- */

TEST(nests_come_back)
{
    const float data[] = {1, 2, 3, 4, 5, 6};
    ek_tensor *t = ek_from_data(data, EK_SHAPE(2, 3));
    ek_value inner = ek_value_dict(
        (ek_value_entry[]){{"t", EK_VALUE(t)}, {"n", ek_value_of_int(-((int64_t)1 << 62) - 1)}}, 2);
    ek_value list =
        ek_value_list((ek_value[]){inner, ek_value_none(), ek_value_of_float(-0.1), EK_LIST(t, t)},
                      4);
    ek_archive *a = ek_archive_new();
    assert_ok(ek_archive_put(a, "a.b", list));
    assert_ok(ek_archive_put(a, "step", ek_value_of_int(7)));
    assert_ok(ek_archive_put(a, "nothing", ek_value_none()));
    assert_ok(ek_archive_put(a, "empty", ek_value_list(NULL, 0)));
    assert_ok(ek_archive_put(a, "", ek_value_dict((ek_value_entry[]){{"x", EK_VALUE(t)}}, 1)));
    assert_ok(ek_archive_put_text(a, "note", "ä, \"quoted\"\n"));
    a = through_file(a);
    ek_value back = ek_archive_get(a, "a");
    ck_assert_int_eq(back.kind, EK_VALUE_DICT);
    back = ek_value_get(back, "b");
    ck_assert_int_eq(ek_value_length(back), 3); /* no "1" */
    ck_assert_str_eq(ek_value_key(back, 0), "0");
    ck_assert_str_eq(ek_value_key(back, 1), "2");
    assert_close(ek_value_tensor(ek_value_get(ek_value_get(back, "0"), "t")), t, 0, 0);
    assert_close(ek_value_tensor(ek_value_get(ek_value_get(back, "3"), "1")), t, 0, 0);
    assert_close(ek_value_tensor(ek_archive_get(a, "x")), t, 0, 0);
    int64_t n = 0;
    double x = 0;
    assert_ok(ek_archive_get_int(a, "a.b.0.n", &n));
    ck_assert_int_eq(n, -((int64_t)1 << 62) - 1);
    assert_ok(ek_archive_get_float(a, "a.b.2", &x));
    ck_assert(x == -0.1);
    ck_assert_str_eq(ek_archive_get_text(a, "note"), "ä, \"quoted\"\n");
    ck_assert_ptr_null(ek_archive_get_text(a, "none"));
    ck_assert_int_eq(ek_error_status(), 0);
    ck_assert_int_eq(ek_value_length(ek_archive_get(a, "")), 3); /* a, step, x */
    ck_assert(ek_archive_has(a, "a") && ek_archive_has(a, "a.b.0") && ek_archive_has(a, "step"));
    ck_assert(ek_archive_has(a, "note") && ek_archive_has(a, "") && !ek_archive_has(a, "a.b.1"));
    ck_assert(!ek_archive_has(a, "nothing") && !ek_archive_has(a, "empty"));
    ck_assert(!ek_archive_has(a, "ste") && !ek_archive_has(a, "step.") && !ek_archive_has(a, "a."));
    ek_archive_free(a);
}

/* Numbers by value, before words; names that begin alike are not below one another. */
TEST(keys_come_in_order)
{
    static const char *const given[] = {"m.10.x", "m.b", "m.2",    "m.1a",
                                        "m-2",    "m.a", "m.10.a", "mm"};
    static const char *const wanted[] = {"2", "10", "1a", "a", "b"};
    ek_archive *a = ek_archive_new();
    for (int i = 0; i < 8; i++) {
        ck_assert(!ek_archive_has(a, given[i]));
        assert_ok(ek_archive_put(a, given[i], ek_value_of_int(i)));
        ck_assert(ek_archive_has(a, given[i]));
    }
    ck_assert(ek_archive_has(a, "m.10") && !ek_archive_has(a, "m.1"));
    a = through_file(a);
    ek_value m = ek_archive_get(a, "m");
    ck_assert_int_eq(ek_value_length(m), 5);
    for (int i = 0; i < 5; i++)
        ck_assert_str_eq(ek_value_key(m, i), wanted[i]);
    ck_assert_str_eq(ek_value_key(ek_value_get(m, "10"), 0), "a");
    ck_assert_int_eq(ek_value_length(ek_archive_get(a, "")), 3);
    ek_archive_free(a);
}

/* References are noted: what is written is what the tensor holds then. */
TEST(elements_are_read_when_it_is_saved)
{
    ek_archive *a = ek_archive_new();
    ek_scope scope = ek_scope_begin();
    ek_tensor *t = ek_zeros(EK_SHAPE(3, 2), .device = test_device(1));
    ek_tensor *leaf = ek_ones(EK_SHAPE(2), .requires_grad = true);
    assert_ok(ek_archive_put(a, "t", EK_VALUE(ek_transpose(t, 0, 1))));
    assert_ok(ek_archive_put(a, "made", EK_VALUE(ek_mul(leaf, leaf)))); /* has a history */
    const float data[] = {1, 2, 3, 4, 5, 6};
    assert_ok(ek_set_data(t, data, sizeof data));
    ek_scope_end(&scope);
    a = through_file(a);
    const double turned[] = {1, 3, 5, 2, 4, 6};
    assert_close(ek_value_tensor(ek_archive_get(a, "t")),
                 tensor_of(turned, EK_SHAPE(2, 3), EK_F32, ek_cpu()), 0, 0);
    ck_assert(element(ek_value_tensor(ek_archive_get(a, "made")), 1) == 1);
    ek_archive_free(a);
}

/* An archive can be saved twice, and filled further in between. */
TEST(saving_does_not_end_it)
{
    ek_archive *a = ek_archive_new();
    assert_ok(ek_archive_save(a, file_path));
    assert_ok(ek_archive_put(a, "one", ek_value_of_int(1)));
    assert_ok(ek_archive_save(a, file_path));
    assert_ok(ek_archive_put(a, "two", ek_value_of_int(2)));
    a = through_file(a);
    ck_assert_int_eq(ek_value_length(ek_archive_get(a, "")), 2);
    ck_assert_int_eq(files_in_directory(), 1);
    ek_archive_free(a);
}

/* ---- devices ---- */

TEST(tensors_go_back_to_their_devices)
{
    const double values[] = {1, 2};
    ek_archive *a = ek_archive_new();
    for (int i = 0; i < 6; i++) {
        char name[16];
        ek_device device = i == 4 ? test_device(3) : i == 5 ? ek_cpu() : test_device(1);
        snprintf(name, sizeof name, "x.%d", i);
        ek_tensor *t = tensor_of(values, EK_SHAPE(2), EK_F64, device);
        assert_ok(ek_archive_put(a, name, EK_VALUE(t)));
    }
    a = through_file(a);
    ck_assert(ek_device_equal(ek_tensor_device(ek_archive_tensor(a, "x.0", NULL)), test_device(1)));
    ck_assert(ek_device_equal(ek_tensor_device(ek_archive_tensor(a, "x.4", NULL)), test_device(3)));
    ck_assert(ek_device_equal(ek_tensor_device(ek_archive_tensor(a, "x.5", NULL)), ek_cpu()));
    ek_device_map map = {2, {{test_device(3), test_device(0)}, {ek_cpu(), test_device(2)}}};
    ck_assert(ek_device_equal(ek_tensor_device(ek_archive_tensor(a, "x.4", &map)), test_device(0)));
    ck_assert(ek_device_equal(ek_tensor_device(ek_archive_tensor(a, "x.5", &map)), test_device(2)));
    ck_assert(ek_device_equal(ek_tensor_device(ek_archive_tensor(a, "x.1", &map)), test_device(1)));
    assert_close(ek_to_device(ek_archive_tensor(a, "x.4", &map), ek_cpu()),
                 ek_archive_tensor(a, "x.5", NULL), 0, 0);
    map.count = EK_MAX_DEVICES + 1;
    assert_refused(ek_archive_tensor(a, "x.4", &map), EK_E_INVALID, "a map of 65 devices");
    map = (ek_device_map){1, {{test_device(3), {(ek_device_kind)9, 0}}}};
    assert_refused(ek_archive_tensor(a, "x.4", &map), EK_E_DEVICE, "x.4");
    assert_refused(ek_archive_tensor(a, "x", NULL), EK_E_INVALID, "no tensor \"x\"");
    ek_archive_free(a);
}

/* Written where there were more devices. */
TEST(missing_devices_are_named)
{
    float one = 1;
    ek_named_tensor t = {"t", ek_from_data(&one, EK_SHAPE(1))};
    ek_metadata texts[] = {{"evenkeel.device", "host:63"}, {"evenkeel.device:u", "nowhere"}};
    ek_named_tensor both[] = {t, {"u", t.tensor}};
    assert_ok(ek_safetensors_save(file_path, both, 2, texts, 2));
    ek_archive *a = ek_archive_open(file_path);
    ck_assert_ptr_null(ek_archive_tensor(a, "t", NULL));
    ck_assert_ptr_nonnull(strstr(ek_error_message(), "a map sends it elsewhere"));
    ck_assert_ptr_nonnull(strstr(ek_error_message(), "\"t\" is to lie on host:63"));
    ck_assert_int_eq(ek_error_status(), EK_E_DEVICE);
    ek_error_clear();
    ek_device_map map = {1, {{ek_host(63), test_device(1)}}};
    ck_assert(ek_device_equal(ek_tensor_device(ek_archive_tensor(a, "t", &map)), test_device(1)));
    assert_refused(ek_archive_tensor(a, "u", &map), EK_E_FORMAT,
                   "\"nowhere\", where \"u\" was, is no device");
    assert_made(ek_value_tensor(ek_archive_get(a, "u"))); /* on cpu, as all that get gives */
    ek_archive_free(a);
}

/* ---- wrong calls ---- */

static void assert_put(ek_archive *a, const char *name, ek_value value, int status,
                       const char *part)
{
    assert_refused(ek_archive_put(a, name, value), status, part);
}

TEST(wrong_names_are_refused)
{
    ek_value one = ek_value_of_int(1);
    ek_archive *a = ek_archive_new();
    assert_ok(ek_archive_put(a, "a", one));
    assert_ok(ek_archive_put(a, "b.c.d", one));
    assert_ok(ek_archive_put_text(a, "t", "x"));
    assert_put(a, "a", one, EK_E_INVALID, "\"a\" is taken already, by a tensor");
    assert_put(a, "a.x", one, EK_E_INVALID, "\"a\" is a tensor already");
    assert_put(a, "a.x.y", one, EK_E_INVALID, "\"a\" is a tensor already");
    assert_put(a, "b", one, EK_E_INVALID, "there are tensors below");
    assert_put(a, "b.c", one, EK_E_INVALID, "there are tensors below");
    assert_put(a, "t", one, EK_E_INVALID, "taken already, by a text");
    assert_put(a, "", one, EK_E_INVALID, "\"\" is no name");
    assert_put(a, ".x", one, EK_E_INVALID, "a part of it is empty");
    assert_put(a, "x.", one, EK_E_INVALID, "a part of it is empty");
    assert_put(a, "x..y", one, EK_E_INVALID, "a part of it is empty");
    assert_put(a, "__metadata__", one, EK_E_INVALID, "keeps its texts");
    assert_put(a, NULL, one, EK_E_INVALID, "the name is NULL");
    assert_put(a, "p", ek_value_of_pointer(a), EK_E_INVALID, "is a pointer; tensors, numbers");
    assert_put(a, "k", ek_value_dict((ek_value_entry[]){{"", one}}, 1), EK_E_INVALID, "is empty");
    assert_refused(ek_archive_put_text(a, "a", "y"), EK_E_INVALID, "taken already");
    assert_refused(ek_archive_put_text(a, "evenkeel.x", "y"), EK_E_INVALID, "the archive's own");
    assert_refused(ek_archive_put_text(a, "u", NULL), EK_E_INVALID, "the text is NULL");
    assert_ok(ek_archive_put(a, "t.x", one)); /* texts don't nest */
    assert_ok(ek_archive_put_text(a, "b", "x"));
    /* What failed half-way left nothing. */
    ek_value half = ek_value_dict((ek_value_entry[]){{"n1", one}, {"a", one}}, 2);
    assert_put(a, "", half, EK_E_INVALID, "\"a\" is taken");
    ck_assert(!ek_archive_has(a, "n1"));
    a = through_file(a);
    ck_assert_int_eq(ek_value_length(ek_archive_get(a, "")), 3);
    ek_archive_free(a);
}

/* If a put has failed, and nobody has handled its error, the save fails with that error. */
TEST(a_save_fails_with_the_put_that_failed)
{
    ek_value one = ek_value_of_int(1);
    for (int what = 0; what < 4; what++) {
        ek_archive *a = ek_archive_new();
        assert_ok(ek_archive_put(a, "a", one));
        int rc = what == 0   ? ek_archive_put(a, "a", one)
                 : what == 1 ? ek_archive_put(a, NULL, one)
                 : what == 2 ? ek_archive_put_text(a, "evenkeel.x", "y")
                             : ek_archive_put_module(a, "m", NULL);
        ck_assert_int_lt(rc, 0);
        assert_ok(ek_archive_put_text(a, "later", "x"));
        ck_assert_int_eq(ek_archive_save(a, file_path), EK_E_INVALID);
        assert_error(EK_E_INVALID, "archive_put");
        ck_assert_int_eq(files_in_directory(), 0);
        /* Somebody has: the error is cleared. */
        a = through_file(a);
        ck_assert_int_eq(ek_value_length(ek_archive_get(a, "")), 1);
        ek_archive_free(a);
        ck_assert_int_eq(unlink(file_path), 0);
    }
}

TEST(depth_is_bounded)
{
    enum { DEEP = 3000 };
    static char name[2 * DEEP];
    ek_value nest = ek_value_of_int(1);
    ek_archive *a = ek_archive_new();
    for (int i = 0; i < DEEP; i++) {
        nest = ek_value_list(&nest, 1);
        name[2 * i] = 'a';
        name[2 * i + 1] = i + 1 < DEEP ? '.' : '\0';
    }
    assert_put(a, "x", nest, EK_E_INVALID, "nests");
    assert_put(a, name, ek_value_of_int(1), EK_E_INVALID, "nests 3000 deep");
    name[2 * 128 - 1] = '\0';
    assert_ok(ek_archive_put(a, name, ek_value_of_int(1)));
    a = through_file(a);
    assert_made(ek_archive_get(a, "").as.dict);
    ek_archive_free(a);
    name[2 * 128 - 1] = '.';
    ek_named_tensor hostile = {name, ek_zeros(EK_SHAPE(1))};
    a = file_of(&hostile, 1);
    assert_refused(ek_archive_get(a, ""), EK_E_FORMAT, "nests 3000 deep");
    assert_made(ek_archive_tensor(a, name, NULL));
    ek_archive_free(a);
}

TEST(hostile_names_are_told)
{
    ek_tensor *t = ek_zeros(EK_SHAPE(1));
    const ek_named_tensor both[] = {{"m.a", t}, {"m.a.b", t}, {"m.a-", t}, {"n..x", t}, {"n.", t}};
    ek_archive *a = file_of(both, 5);
    assert_refused(ek_archive_get(a, "m"), EK_E_FORMAT,
                   "\"m.a\" is a tensor, and \"m.a.b\" is below it");
    assert_refused(ek_archive_get(a, "m.a"), EK_E_FORMAT,
                   "\"m.a\" is a tensor, and \"m.a.b\" is below it");
    assert_refused(ek_archive_get(a, "n"), EK_E_FORMAT,
                   "\"n.\" is a tensor, and \"n..x\" is below it");
    assert_made(ek_value_tensor(ek_archive_get(a, "m.a-")));
    ek_archive_free(a);
}

TEST(wrong_reads_are_refused)
{
    int64_t n = 3;
    double x = 3;
    ek_archive *a = ek_archive_new();
    assert_ok(ek_archive_put(a, "i", ek_value_of_int(1)));
    assert_ok(ek_archive_put(a, "f", ek_value_of_float(1)));
    assert_ok(ek_archive_put(a, "v", EK_VALUE(ek_zeros(EK_SHAPE(1), .dtype = EK_I64))));
    assert_ok(ek_archive_put_text(a, "t", "x"));
    assert_refused(ek_archive_get_int(a, "i", &n), EK_E_STATE, "is being written");
    assert_refused(ek_archive_get(a, "i"), EK_E_STATE, "is being written");
    ck_assert_str_eq(ek_archive_get_text(a, "t"), "x");
    a = through_file(a);
    assert_refused(ek_archive_put(a, "j", ek_value_of_int(1)), EK_E_STATE, "is open to be read");
    assert_refused(ek_archive_save(a, file_path), EK_E_STATE, "is open to be read");
    assert_refused(ek_archive_get_int(a, "f", &n), EK_E_DTYPE, "\"f\" is f64, not i64");
    assert_refused(ek_archive_get_float(a, "i", &x), EK_E_DTYPE, "\"i\" is i64, not f64");
    assert_refused(ek_archive_get_int(a, "v", &n), EK_E_SHAPE, "\"v\" is [1]; a number");
    assert_refused(ek_archive_get_int(a, "t", &n), EK_E_INVALID, "no tensor \"t\"");
    assert_refused(ek_archive_get_int(a, "i", NULL), EK_E_INVALID, "the value is NULL");
    assert_refused(ek_archive_get(a, "t"), EK_E_INVALID, "it is a text");
    assert_refused(ek_archive_get(a, NULL), EK_E_INVALID, "the name is NULL");
    ck_assert(n == 3 && x == 3);
    ek_archive_free(a);
}

/* The first error stays, also through an archive that could not be opened. */
TEST(errors_travel)
{
    int64_t n;
    ek_archive *a = ek_archive_open("/nowhere/file");
    ck_assert_ptr_null(a);
    ck_assert_int_eq(ek_archive_get_int(a, "i", &n), EK_E_IO);
    ck_assert_int_eq(ek_archive_put(a, "i", ek_value_none()), EK_E_IO);
    ck_assert_int_eq(ek_archive_get(a, "i").kind, EK_VALUE_ERROR);
    ck_assert_ptr_null(ek_archive_get_text(a, "i"));
    ck_assert_ptr_null(ek_archive_tensor(a, "i", NULL));
    ck_assert(!ek_archive_has(a, "i"));
    assert_error(EK_E_IO, "/nowhere/file");
    ek_archive_free(NULL);
    assert_refused(ek_archive_put(NULL, "i", ek_value_none()), EK_E_INVALID,
                   "archive_put: the archive is NULL");
    assert_refused(ek_archive_open(NULL), EK_E_INVALID, "the path is NULL");
    a = ek_archive_new();
    assert_refused(ek_archive_put(a, "x", EK_VALUE(ek_reshape(ek_zeros(EK_SHAPE(2)), EK_SHAPE(3)))),
                   EK_E_SHAPE, "");
    assert_refused(ek_archive_save(a, "/nowhere/file"), EK_E_IO, "/nowhere/file");
    assert_refused(ek_archive_save(a, NULL), EK_E_INVALID, "the path is NULL");
    assert_refused(ek_archive_save(a, "/nowhere/net.pth"), EK_E_IO, "/nowhere/net.pth");
    assert_ok(ek_archive_put(a, "\xff", ek_value_of_int(1)));
    assert_refused(ek_archive_save(a, file_path), EK_E_INVALID, "is not UTF-8");
    ck_assert_int_eq(files_in_directory(), 0);
    ek_archive_free(a);
}
