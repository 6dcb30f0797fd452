/* test_archive_pth_write.c: archives that are saved as torch.save would: what the pickle says, and
 * that all comes back. What PyTorch reads of them is in tests/samples/python. */
#include "archive_setup.h"
#include "data/zip.h"

static char pth[80];

/* Saves, frees, and opens again. */
static ek_archive *through_pth(ek_archive *archive)
{
    snprintf(pth, sizeof pth, "%s", path_of("file.pth"));
    assert_ok(ek_archive_save(archive, pth));
    ek_archive_free(archive);
    ek_archive *opened = ek_archive_open(pth);
    assert_made(opened);
    unlink(pth);
    return opened;
}

/* Reads an entry of the file and returns its size. */
static size_t read_entry(const ek_archive *archive, const char *name, void *bytes, size_t room)
{
    static unsigned char file[1 << 16];
    snprintf(pth, sizeof pth, "%s", path_of("file.pth"));
    assert_ok(ek_archive_save((ek_archive *)archive, pth));
    ek_zip zip = {.what = "test", .path = pth, .bytes = file};
    zip.nbytes = read_file(pth, file, sizeof file);
    const unsigned char *at = NULL;
    assert_ok(ek_zip_open(&zip));
    const ek_zip_entry *entry = ek_zip_find(&zip, name, strlen(name));
    size_t nbytes = entry ? (size_t)entry->nbytes : 0;
    if (entry)
        assert_ok(ek_zip_view(&zip, entry, &at));
    ck_assert_uint_le(nbytes, room);
    if (nbytes > 0)
        memcpy(bytes, at, nbytes);
    ek_zip_close(&zip);
    unlink(pth);
    return nbytes;
}

/* {"n": {"k": 7, "big": 1 << 40}, "x": {"y": 0.5, "y.z": <2 x 3>}, "t.u": "text"}: a module below
 * "x" has names that are single keys; numbers' names nest. */
TEST(the_pickle_nests_as_names_were_given)
{
    static const char wanted[] =
        "\x80\x02}(X\1\0\0\0n}(X\1\0\0\0kJ\7\0\0\0X\3\0\0\0big\x8a\x08\0\0\0\0\0\1\0\0u"
        "X\1\0\0\0x}(X\1\0\0\0yG\x3f\xe0\0\0\0\0\0\0X\x8\0\0\0"
        "1.weightctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\n"
        "X\1\0\0\0"
        "0X\3\0\0\0cpuJ\6\0\0\0tQJ\0\0\0\0(J\2\0\0\0J\3\0\0\0t(J\3\0\0\0J\1\0\0\0t"
        "\x89"
        "ccollections\nOrderedDict\n)RtRuX\3\0\0\0t.uX\4\0\0\0textu.";
    char pickle[1024];
    ek_module *net = ek_sequential(ek_relu(), ek_linear(3, 2, .bias = false));
    ek_archive *a = ek_archive_new();
    assert_ok(ek_archive_put(a, "n.k", ek_value_of_int(7)));
    assert_ok(ek_archive_put(a, "x.y", ek_value_of_float(0.5)));
    assert_ok(ek_archive_put_module(a, "x", net));
    assert_ok(ek_archive_put(a, "n.big", ek_value_of_int(INT64_C(1) << 40)));
    assert_ok(ek_archive_put_text(a, "t.u", "text"));
    size_t nbytes = read_entry(a, "archive/data.pkl", pickle, sizeof pickle);
    ck_assert_uint_eq(nbytes, sizeof wanted - 1);
    ck_assert_mem_eq(pickle, wanted, nbytes);
    ck_assert_uint_eq(read_entry(a, "archive/version", pickle, sizeof pickle), 2);
    ck_assert_uint_eq(read_entry(a, "archive/data/0", pickle, sizeof pickle), 24);
    ck_assert_uint_eq(read_entry(a, "archive/data/1", pickle, sizeof pickle), 0);
    ek_archive_free(a);
    ek_module_free(net);
}

/* Each dtype, strided, empty and from a device: the elements come back, and so do all names. */
TEST(tensors_come_back_to_the_bit)
{
    ek_archive *a = ek_archive_new();
    ek_tensor *x[EK_DTYPES + 3];
    char name[16];
    for (int d = 0; d < EK_DTYPES; d++)
        x[d] = ek_transpose(ek_to_dtype(ek_randint(0, 2, EK_SHAPE(5, 3)), (ek_dtype)d), 0, 1);
    x[EK_DTYPES] = ek_to_device(ek_randn(EK_SHAPE(2, 3, 4, 5)), test_device(1));
    x[EK_DTYPES + 1] = ek_zeros(EK_SHAPE(0, 3), EK_I64);
    x[EK_DTYPES + 2] = ek_expand(ek_randn(EK_SHAPE(1, 4)), EK_SHAPE(3, 4));
    for (int i = 0; i < EK_DTYPES + 3; i++) {
        snprintf(name, sizeof name, "x.%d", i);
        assert_ok(ek_archive_put(a, name, EK_VALUE(x[i])));
    }
    a = through_pth(a);
    for (int i = 0; i < EK_DTYPES + 3; i++) {
        snprintf(name, sizeof name, "x.%d", i);
        ek_tensor *read = ek_value_tensor(ek_archive_get(a, name));
        assert_on(read, ek_cpu());
        assert_close(read, ek_to_device(x[i], ek_cpu()), 0, 0);
        assert_made(ek_archive_name(a, i));
    }
    ck_assert_str_eq(ek_archive_name(a, 2), "x.10"); /* strcmp's order */
    ck_assert_ptr_null(ek_archive_name(a, EK_DTYPES + 3));
    ck_assert_ptr_null(ek_archive_name(a, -1));
    ck_assert_int_eq(ek_error_status(), 0);
    ek_archive_free(a);
}

/* One tensor under two names is stored once; another view of its memory is not it. */
TEST(tied_tensors_share_a_storage)
{
    char bytes[64];
    ek_archive *a = ek_archive_new();
    ek_tensor *x = ek_randn(EK_SHAPE(2, 2));
    assert_ok(ek_archive_put(a, "a", EK_VALUE(x)));
    assert_ok(ek_archive_put(a, "b", EK_VALUE(x)));
    assert_ok(ek_archive_put(a, "c", EK_VALUE(ek_transpose(x, 0, 1))));
    ck_assert_uint_eq(read_entry(a, "archive/data/1", bytes, sizeof bytes), 16);
    ck_assert_uint_eq(read_entry(a, "archive/data/2", bytes, sizeof bytes), 0);
    a = through_pth(a);
    assert_close(ek_value_tensor(ek_archive_get(a, "b")), x, 0, 0);
    assert_close(ek_value_tensor(ek_archive_get(a, "c")), ek_transpose(x, 0, 1), 0, 0);
    ek_archive_free(a);
}

typedef struct training {
    ek_training_state state;
    ek_module *criterion;
} training;

static training training_new(ek_shard_policy shard)
{
    ek_device_list devices = {2, {test_device(0), test_device(1)}};
    ek_module *net =
        ek_data_parallel_model(ek_sequential(ek_linear(4, 5), ek_batch_norm1d(5), ek_linear(5, 1)),
                               .device_ids = devices, .shard = shard, .split = EK_SPLIT_EVEN);
    training t = {.state = {.model = net, .optimizer = ek_adam(net, .lr = 0.01), .random = true},
                  .criterion = ek_data_parallel_criterion(ek_mse_loss(), .device_ids = devices)};
    t.state.schedule = ek_step_lr(t.state.optimizer, 2, 0.5);
    return t;
}

static double training_step(training *t)
{
    double loss = 0;
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_randn(EK_SHAPE(6, 4)), *y = ek_randn(EK_SHAPE(6, 1));
    assert_ok(ek_train_step(&loss, .model = t->state.model, .criterion = t->criterion,
                            .optimizer = t->state.optimizer, .input = EK_VALUE(x),
                            .target = EK_VALUE(y)));
    assert_ok(ek_schedule_step(t->state.schedule));
    ek_scope_end(&scope);
    return loss;
}

static void training_free(training *t)
{
    ek_schedule_free(t->state.schedule);
    ek_optimizer_free(t->state.optimizer);
    ek_module_free(t->state.model);
    ek_module_free(t->criterion);
}

/* A run resumes from a .pth file as if it had not been stopped, also with sharded states. */
TEST_LOOP(a_run_resumes_from_a_pth_file, 0, 2)
{
    training first = training_new(_i ? EK_SHARD_OPTIMIZER : EK_SHARD_NONE);
    double losses[3];
    training_step(&first);
    ek_archive *a = ek_archive_new();
    assert_ok(ek_archive_put_training(a, "", first.state));
    assert_ok(ek_archive_put_text(a, "format", "pt"));
    snprintf(pth, sizeof pth, "%s", path_of("file.pth"));
    assert_ok(ek_archive_save(a, pth));
    ek_archive_free(a);
    for (int i = 0; i < 3; i++)
        losses[i] = training_step(&first);
    training second = training_new(EK_SHARD_NONE);
    a = ek_archive_open(pth);
    unlink(pth);
    assert_made(a);
    assert_ok(ek_archive_load_training(a, "", second.state));
    ck_assert_str_eq(ek_archive_text_name(a, 0), "format");
    ck_assert_ptr_null(ek_archive_text_name(a, 1));
    ck_assert_str_eq(ek_archive_get_text(a, "format"), "pt");
    ek_archive_free(a);
    for (int i = 0; i < 3; i++)
        ck_assert_double_eq(training_step(&second), losses[i]);
    training_free(&first);
    training_free(&second);
}

TEST(what_a_dictionary_cannot_hold)
{
    ek_archive *a = ek_archive_new();
    assert_ok(ek_archive_put_text(a, "net", "ResNet"));
    assert_ok(ek_archive_put(a, "net.weight", EK_VALUE(ek_ones(EK_SHAPE(2)))));
    assert_refused(ek_archive_save(a, path_of("x.pt")), EK_E_INVALID,
                   "\"net\" is a text, and \"net.weight\" lies below it");
    ck_assert_int_eq(files_in_directory(), 0);
    a = (ek_archive_free(a), ek_archive_new());
    a = through_pth(a); /* nothing at all */
    ck_assert_ptr_null(ek_archive_name(a, 0));
    ek_archive_free(a);
    a = ek_archive_new();
    ck_assert_ptr_null(ek_archive_name(a, 0));
    assert_error(EK_E_STATE, "archive_name: the archive is being written");
    ck_assert_ptr_null(ek_archive_text_name(NULL, 0));
    assert_error(EK_E_INVALID, "archive_text_name: the archive is NULL");
    ek_archive_free(a);
}
