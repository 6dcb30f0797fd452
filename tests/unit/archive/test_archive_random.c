/* test_archive_random.c: all generators go on from a file with the numbers that came next. */
#include "archive_setup.h"
#include "core/python_random.h"

enum { DRAWS = 64 };

/* A forward with dropout in four replicas: which of 32 x 16 elements are left. */
static ek_tensor *mask(ek_module *model)
{
    ek_tensor *y = ek_apply(model, ek_ones(EK_SHAPE(32, 16)));
    assert_made(y);
    return ek_to_device(y, ek_cpu());
}

static ek_module *dropout(int devices)
{
    ek_module *model = ek_data_parallel(ek_sequential(ek_dropout(0.5)),
                                        .device_ids = ek_devices(test_kind(), devices));
    assert_made(model);
    return model;
}

/* Numbers of all kinds. */
typedef struct numbers {
    double normals[3];
    int64_t of_python[DRAWS], of_numpy[DRAWS];
    uint64_t own[DRAWS];
    double masks[3][512];
} numbers;

static void draw(numbers *n, ek_generator *own, ek_module *model)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *normals = ek_randn(EK_SHAPE(3), .dtype = EK_F64);
    assert_ok(ek_to_data(normals, n->normals, sizeof n->normals));
    for (int i = 0; i < DRAWS; i++) {
        n->of_python[i] = ek_python_below(NULL, 1000003);
        n->of_numpy[i] = ek_numpy_below(NULL, 1000003);
        n->own[i] = ek_random_u64(own);
    }
    for (int i = 0; i < 3; i++)
        assert_ok(ek_to_data(ek_to_dtype(mask(model), EK_F64), n->masks[i], sizeof n->masks[i]));
    ek_scope_end(&scope);
}

/* A first draw of one normal number leaves another cached. */
static void use_all(ek_generator *own, ek_module *model)
{
    ek_scope scope = ek_scope_begin();
    ek_python_seed(NULL, -77);
    ek_numpy_seed(NULL, 78);
    ek_manual_seed(5);
    for (int i = 0; i < 1000; i++) {
        ek_random_u32(own);
        ek_python_below(NULL, 10);
        ek_numpy_below(NULL, 10);
    }
    assert_made(ek_randn(EK_SHAPE(1)));
    mask(model);
    mask(model);
    ek_scope_end(&scope);
}

static ek_archive *saved(ek_generator *own)
{
    ek_archive *a = ek_archive_new();
    assert_ok(ek_archive_put_random(a, "random"));
    assert_ok(ek_archive_put_generator(a, "own", own));
    return through_file(a);
}

/* 0: in the same process. 1: with workers that are new, as in another one. 2: with workers that
 * were seeded otherwise since. 3 to 5: the same with Philox, which the file brings back. */
TEST_LOOP(numbers_go_on, 0, 6)
{
    static numbers wanted, got;
    const ek_random_engine engine = _i < 3 ? EK_RANDOM_TWISTER : EK_RANDOM_PHILOX;
    ek_generator *own = ek_generator_new(3);
    assert_ok(ek_generator_set_engine(NULL, engine));
    assert_ok(ek_generator_set_engine(own, engine));
    ek_module *model = dropout(4);
    use_all(own, model);
    ek_archive *a = saved(own);
    draw(&wanted, own, model);
    if (_i % 3 == 1) {
        ek_module_free(model);
        assert_ok(ek_shutdown());
        assert_ok(test_devices_configure("4"));
        model = dropout(4);
    }
    ek_manual_seed(99);
    ek_python_seed(NULL, 1);
    ek_numpy_seed(NULL, 1);
    if (_i % 3 == 2)
        draw(&got, own, model);
    ek_generator_seed(own, 1);
    assert_ok(ek_generator_set_engine(NULL, EK_RANDOM_TWISTER));
    assert_ok(ek_generator_set_engine(own, EK_RANDOM_TWISTER));
    assert_ok(ek_archive_load_random(a, "random"));
    assert_ok(ek_archive_load_generator(a, "own", own));
    draw(&got, own, model);
    ck_assert_mem_eq(&got, &wanted, sizeof got);
    ck_assert_int_eq(ek_generator_engine(NULL), engine);
    /* The mask is one: it has zeros and twos. */
    ck_assert(got.masks[0][0] == 0 || got.masks[0][0] == 2);
    ck_assert(memcmp(got.masks[0], got.masks[1], sizeof got.masks[0]) != 0);
    ek_archive_free(a);
    ek_module_free(model);
    ek_generator_free(own);
}

/* Devices that have drawn nothing since the seed have no state in the file: they follow it. */
TEST(devices_follow_the_seed)
{
    ek_module *model = dropout(4);
    ek_manual_seed(6);
    mask(model);
    ek_manual_seed(7);
    ek_archive *a = ek_archive_new();
    assert_ok(ek_archive_put_random(a, "random"));
    a = through_file(a);
    ck_assert(!ek_archive_has(a, "random.devices"));
    ek_tensor *wanted = mask(model);
    ek_manual_seed(8);
    mask(model);
    assert_ok(ek_archive_load_random(a, "random"));
    assert_close(mask(model), wanted, 0, 0);
    ek_archive_free(a);
    ek_module_free(model);
}

/* Fewer devices: the others' states are left out, and more of them than there were are seeded. */
TEST(numbers_of_devices_may_differ)
{
    ek_module *model = dropout(4);
    ek_manual_seed(6);
    static float four[512], again[512];
    assert_ok(ek_to_data(mask(model), four, sizeof four));
    ek_archive *a = ek_archive_new();
    assert_ok(ek_archive_put_random(a, "random"));
    a = through_file(a);
    ek_module_free(model);
    assert_ok(ek_shutdown());
    assert_ok(test_devices_configure("2"));
    assert_ok(ek_archive_load_random(a, "random"));
    model = dropout(2);
    mask(model);
    ek_module_free(model);
    ek_archive_free(a);
    /* From two to four: the third is if it is after a seed. */
    ek_manual_seed(6);
    model = dropout(2);
    mask(model);
    a = ek_archive_new();
    assert_ok(ek_archive_put_random(a, "random"));
    a = through_file(a);
    ek_module_free(model);
    assert_ok(ek_shutdown());
    assert_ok(test_devices_configure("4"));
    assert_ok(ek_archive_load_random(a, "random"));
    model = dropout(4);
    assert_ok(ek_to_data(mask(model), again, sizeof again));
    ck_assert_mem_eq(again + 256, four + 256, sizeof four / 2);
    ck_assert(memcmp(again, four, sizeof four / 4) != 0);
    ek_module_free(model);
    ek_archive_free(a);
}

/* A file of torch.save with the state of `g` and something else in turns: "even" has a stride of 2,
 * "last" a stride of 0 at the last element, so that a copy of neighbours would leave the file. */
static ek_archive *strided(ek_generator *g)
{
    enum { COUNT = EK_GENERATOR_STATE_BYTES };
    static const char begin[] = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
                                "\x80\x02M\xe9\x03.\x80\x02}.\x80\x02}(";
#define STATE(name, offset, stride)                                                    \
    name "ctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nByteStorage\nU\x01" \
         "0U\x03"                                                                      \
         "cpuM\x80\x27NtQM" offset "M\xc0\x13\x85K" stride "\x85\x89}tR"
    static const char tensors[] =
        STATE("U\x04"
              "even",
              "\0\0", "\2") STATE("U\x04last", "\x7f\x27", "\0") "u.\x80\x02](U\x01"
                                                                 "0e.\x80\x27\0\0\0\0\0";
#undef STATE
    unsigned char state[COUNT], storage[2 * COUNT];
    assert_ok(ek_generator_get_state(g, state, sizeof state));
    for (int i = 0; i < COUNT; i++) {
        storage[2 * i] = state[i];
        storage[2 * i + 1] = 0xa5;
    }
    FILE *stream = fopen(file_path, "wb");
    ck_assert_ptr_nonnull(stream);
    fwrite(begin, 1, sizeof begin - 1, stream);
    fwrite(tensors, 1, sizeof tensors, stream); /* its NUL is the last byte of the count */
    fwrite(storage, 1, sizeof storage, stream);
    ck_assert_int_eq(fclose(stream), 0);
    return ek_archive_open(file_path);
}

TEST(strided_states)
{
    ek_generator *wanted = ek_generator_new(3), *got = ek_generator_new(4);
    ek_archive *a = strided(wanted);
    assert_made(a);
    assert_ok(ek_archive_load_generator(a, "even", got));
    for (int i = 0; i < DRAWS; i++)
        ck_assert_uint_eq(ek_random_u64(got), ek_random_u64(wanted));
    assert_refused(ek_archive_load_generator(a, "last", got), EK_E_FORMAT,
                   "not a generator's state (left -1515870811");
    ek_archive_free(a);
    ek_generator_free(wanted);
    ek_generator_free(got);
}

/* ---- what doesn't fit ---- */

static void assert_no_load(const ek_named_tensor *tensors, int count, int status, const char *part)
{
    unsigned char states[2][EK_GENERATOR_STATE_BYTES];
    ek_archive *a = file_of(tensors, count);
    int64_t next = (ek_python_seed(NULL, 4), ek_python_below(NULL, 1 << 30));
    ek_python_seed(NULL, 4);
    assert_ok(ek_generator_get_state(NULL, states[0], sizeof states[0]));
    assert_refused(ek_archive_load_random(a, "r"), status, part);
    assert_ok(ek_generator_get_state(NULL, states[1], sizeof states[1]));
    ck_assert_mem_eq(states[0], states[1], sizeof states[0]);
    ck_assert_int_eq(ek_python_below(NULL, 1 << 30), next);
    ek_archive_free(a);
}

TEST(what_doesnt_fit_changes_nothing)
{
    unsigned char state[EK_GENERATOR_STATE_BYTES];
    ek_generator *own = ek_generator_new(3);
    assert_ok(ek_generator_get_state(own, state, sizeof state));
    ek_tensor *good = ek_from_data(state, EK_SHAPE(EK_GENERATOR_STATE_BYTES), EK_U8);
    state[8] = 200;
    state[9] = 200;
    ek_tensor *bad = ek_from_data(state, EK_SHAPE(EK_GENERATOR_STATE_BYTES), EK_U8);
    ek_tensor *brief = ek_zeros(EK_SHAPE(7), .dtype = EK_U8);
    ek_named_tensor all[] = {{"r.default", good},
                             {"r.python", good},
                             {"r.numpy", good},
                             {"r.x", good}};
    assert_no_load(all, 2, EK_E_INVALID, "no tensor \"r.numpy\"");
    all[2].tensor = bad;
    assert_no_load(all, 3, EK_E_FORMAT, "\"r.numpy\": ");
    all[2].tensor = brief;
    assert_no_load(all, 3, EK_E_FORMAT, "\"r.numpy\" is no generator's state");
    all[2].tensor = good;
    all[3].name = "r.devices.moon:1";
    assert_no_load(all, 4, EK_E_FORMAT, "\"r.devices.moon:1\" is of no device");
    all[3].name = "r.devices.host:01";
    assert_no_load(all, 4, EK_E_FORMAT, "is of no device");
    all[3] = (ek_named_tensor){"r.devices.host:1", bad};
    assert_no_load(all, 4, EK_E_FORMAT, ":1\": generator_set_state: not a generator's state");
    ek_archive *a = file_of(all, 4);
    assert_refused(ek_archive_load_generator(a, "r.devices.host:1", own), EK_E_FORMAT,
                   "not a generator's state");
    assert_refused(ek_archive_load_generator(a, "r.x", own), EK_E_INVALID, "no tensor \"r.x\"");
    assert_refused(ek_archive_load_generator(a, "r.default", NULL), EK_E_INVALID,
                   "the generator is NULL");
    ek_archive_free(a);
    a = ek_archive_new();
    assert_refused(ek_archive_put_generator(a, "g", NULL), EK_E_INVALID, "the generator is NULL");
    assert_refused(ek_archive_put_generator(a, "", own), EK_E_INVALID, "is no name");
    assert_ok(ek_archive_put(a, "r.numpy", ek_value_of_int(1)));
    assert_refused(ek_archive_put_random(a, "r"), EK_E_INVALID, "\"r.numpy\" is taken");
    ck_assert(!ek_archive_has(a, "r.default"));
    ek_archive_free(a);
    ek_generator_free(own);
}
