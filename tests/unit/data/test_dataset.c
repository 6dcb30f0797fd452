/* test_dataset.c: data sets of a user's own: counting, checked calls, errors, batches, threads. */
#include "core/device.h"
#include "dataset_setup.h"
#include "kit/devices.h"

/* Sample i: the list of f32 [i, i + 0.5] and i. Fails as told at one sample. */
typedef enum fault { NONE, SAYS, SILENT, HIDES } fault;

typedef struct pairs {
    ek_dataset dataset;
    int64_t count;
    int64_t bad;
    fault fault;
} pairs;

static int64_t pairs_length(ek_dataset *dataset)
{
    return ((pairs *)dataset)->count;
}

static ek_value pairs_get(ek_dataset *dataset, int64_t index)
{
    const pairs *self = (pairs *)dataset;
    if (self->fault && index == self->bad) {
        if (self->fault != SILENT)
            ek_error(EK_E_IO, "no such row");
        if (self->fault != HIDES)
            return ek_value_error();
    }
    ek_empty(EK_SHAPE(1000)); /* what is left in the scope */
    const float row[2] = {(float)index, (float)index + 0.5f};
    return EK_LIST(ek_from_data(row, EK_SHAPE(2)), ek_value_of_int(index));
}

static void pairs_destroy(ek_dataset *dataset)
{
    atomic_fetch_sub(&alive, 1);
}

static const ek_dataset_type pairs_type = {.name = "pairs",
                                           .size = sizeof(pairs),
                                           .length = pairs_length,
                                           .get = pairs_get,
                                           .destroy = pairs_destroy};

static ek_dataset *pairs_new(int64_t count)
{
    pairs *self = (pairs *)ek_dataset_new(&pairs_type);
    assert_made(self);
    atomic_fetch_add(&alive, 1);
    self->count = count;
    return &self->dataset;
}

static ek_dataset *faulty(fault kind)
{
    ek_dataset *dataset = pairs_new(10);
    ((pairs *)dataset)->fault = kind;
    ((pairs *)dataset)->bad = 7;
    return dataset;
}

TEST(counted)
{
    ek_dataset *dataset = pairs_new(3);
    ck_assert_ptr_eq(ek_dataset_keep(dataset), dataset);
    ek_dataset_free(dataset);
    ck_assert_int_eq(atomic_load(&alive), 1);
    ck_assert_int_eq(ek_dataset_length(dataset), 3);
    ek_dataset_free(dataset);
    ck_assert_int_eq(atomic_load(&alive), 0);
    ek_dataset_free(NULL);
    ck_assert_ptr_null(ek_dataset_keep(NULL));
}

typedef struct wide {
    ek_dataset dataset;
    _Alignas(max_align_t) char bytes[100];
} wide;

/* Zeroed, and aligned for whatever the struct holds; without destroy nothing is called. */
TEST(zeroed)
{
    const ek_dataset_type type = {.name = "wide",
                                  .size = sizeof(wide),
                                  .length = pairs_length,
                                  .get = pairs_get};
    wide *self = (wide *)ek_dataset_new(&type);
    assert_made(self);
    const char zeros[100] = {0};
    ck_assert_mem_eq(self->bytes, zeros, sizeof zeros);
    ck_assert_uint_eq((uintptr_t)self % _Alignof(max_align_t), 0);
    ck_assert_ptr_eq(self->dataset.type, &type);
    ek_dataset_free(&self->dataset);
}

TEST(bad_types)
{
    assert_refused(ek_dataset_new(NULL), EK_E_INVALID, "the type is NULL");
    ek_dataset_type type = {0};
    assert_refused(ek_dataset_new(&type), EK_E_INVALID, "no name");
    type.name = "mine";
    assert_refused(ek_dataset_new(&type), EK_E_INVALID, "no length");
    type.length = pairs_length;
    assert_refused(ek_dataset_new(&type), EK_E_INVALID, "no get");
    type.get = pairs_get;
    type.size = sizeof(ek_dataset) - 1;
    assert_refused(ek_dataset_new(&type), EK_E_INVALID, "mine has a size of 7 bytes");
    type.size = SIZE_MAX;
    assert_refused(ek_dataset_new(&type), EK_E_INVALID, "mine has a size of");
}

static ek_value told_batch(ek_dataset *dataset, const int64_t *samples, int64_t count,
                           ek_device device)
{
    return ek_value_none();
}

TEST(length_checked)
{
    ek_dataset *dataset = pairs_new(-4);
    assert_refused(ek_dataset_length(dataset), EK_E_INVALID, "pairs: its length is -4");
    assert_refused(ek_dataset_get(dataset, 0), EK_E_INVALID, "pairs: its length is -4");
    ek_dataset_free(dataset);
    assert_refused(ek_dataset_length(NULL), EK_E_INVALID, "dataset_length: the data set is NULL");
    ck_assert_int_eq(ek_error(EK_E_IO, "earlier"), EK_E_IO);
    assert_refused(ek_dataset_length(NULL), EK_E_IO, "earlier");
}

static int64_t length_fails(ek_dataset *dataset)
{
    return ek_error(EK_E_IO, "cannot count");
}

TEST(length_of_its_own)
{
    const ek_dataset_type type = {.name = "disk",
                                  .size = sizeof(ek_dataset),
                                  .length = length_fails,
                                  .get = pairs_get};
    ek_dataset *dataset = ek_dataset_new(&type);
    assert_refused(ek_dataset_length(dataset), EK_E_IO, "disk: cannot count");
    ek_dataset_free(dataset);
}

static void assert_pair(ek_value sample, int64_t wanted)
{
    ck_assert_int_eq(sample.kind, EK_VALUE_LIST);
    ck_assert_int_eq(ek_value_at(sample, 1).as.integer, wanted);
    ck_assert(element(ek_value_tensor(ek_value_at(sample, 0)), 1) == (double)wanted + 0.5);
}

TEST(samples_one_by_one)
{
    ek_dataset *dataset = pairs_new(10);
    for (int i = 0; i < 10; i++) {
        assert_pair(ek_dataset_get(dataset, i), i);
        assert_pair(ek_dataset_get(dataset, i - 10), i);
    }
    assert_refused(ek_dataset_get(dataset, 10), EK_E_INVALID, "pairs: sample 10 of 10");
    assert_refused(ek_dataset_get(dataset, -11), EK_E_INVALID, "pairs: sample -11 of 10");
    assert_refused(ek_dataset_get(NULL, 0), EK_E_INVALID, "dataset_get: the data set is NULL");
    ek_dataset_free(dataset);
}

/* A data set has no error of others' to answer for, but nor does it hide one. */
TEST(earlier_errors)
{
    ek_dataset *dataset = pairs_new(10), *bad = faulty(SAYS);
    ek_error(EK_E_DTYPE, "earlier");
    assert_pair(ek_dataset_get(dataset, 3), 3);
    ck_assert_int_eq(ek_dataset_length(dataset), 10);
    const int64_t batch[] = {6, 7};
    ck_assert_int_eq(ek_dataset_get_batch(dataset, batch, 2, ek_cpu()).kind, EK_VALUE_LIST);
    ck_assert_int_eq(ek_dataset_get(bad, 7).kind, EK_VALUE_ERROR);
    ck_assert_int_eq(ek_dataset_get_batch(bad, batch, 2, ek_cpu()).kind, EK_VALUE_ERROR);
    ck_assert_int_eq(strncmp(ek_error_message(), "earlier", 7), 0);
    ek_error_clear();
    ek_dataset_free(dataset);
    ek_dataset_free(bad);
}

TEST(errors_name_the_sample)
{
    static const struct {
        fault kind;
        int status;
        const char *sentence;
    } cases[] = {{SAYS, EK_E_IO, "pairs: sample 7: no such row"},
                 {SILENT, EK_E_USER, "pairs: sample 7: it failed"},
                 {HIDES, EK_E_IO, "pairs: sample 7: no such row"}};
    const int64_t batch[] = {1, 7, 2};
    for (int i = 0; i < 3; i++) {
        ek_dataset *dataset = faulty(cases[i].kind);
        assert_refused(ek_dataset_get(dataset, -3), cases[i].status, cases[i].sentence);
        assert_refused(ek_dataset_get_batch(dataset, batch, 3, ek_cpu()), cases[i].status,
                       cases[i].sentence);
        assert_pair(ek_dataset_get(dataset, 6), 6);
        ek_dataset_free(dataset);
    }
}

TEST(batches)
{
    ek_dataset *dataset = pairs_new(10);
    const int64_t order[] = {9, 0, 9, 4};
    const ek_device devices[] = {ek_cpu(), ek_host(0)};
    for (int d = 0; d < 2; d++) {
        ek_value batch = ek_dataset_get_batch(dataset, order, 4, devices[d]);
        ck_assert_int_eq(batch.kind, EK_VALUE_LIST);
        ek_tensor *rows = ek_value_tensor(ek_value_at(batch, 0));
        ek_tensor *labels = ek_value_tensor(ek_value_at(batch, 1));
        assert_close(rows,
                     tensor_of((double[]){9, 9.5, 0, .5, 9, 9.5, 4, 4.5}, EK_SHAPE(4, 2), EK_F32,
                               ek_cpu()),
                     0, 0);
        assert_close(labels, tensor_of((double[]){9, 0, 9, 4}, EK_SHAPE(4), EK_I64, ek_cpu()), 0,
                     0);
        ck_assert(ek_device_equal(ek_tensor_device(rows), devices[d]));
        ck_assert(ek_device_equal(ek_tensor_device(labels), devices[d]));
    }
    ek_dataset_free(dataset);
}

static void assert_no_batch(ek_value batch, int status, const char *part)
{
    ck_assert_int_eq(batch.kind, EK_VALUE_ERROR);
    assert_error(status, part);
}

TEST(bad_batches)
{
    ek_dataset *dataset = pairs_new(10);
    const int64_t high[] = {1, 10}, low[] = {-1};
    assert_no_batch(ek_dataset_get_batch(NULL, high, 1, ek_cpu()), EK_E_INVALID,
                    "dataset_get_batch: the data set is NULL");
    assert_no_batch(ek_dataset_get_batch(dataset, NULL, 1, ek_cpu()), EK_E_INVALID,
                    "pairs: the samples of a batch are NULL");
    assert_no_batch(ek_dataset_get_batch(dataset, high, 0, ek_cpu()), EK_E_INVALID,
                    "pairs: a batch of 0 samples");
    assert_no_batch(ek_dataset_get_batch(dataset, high, -1, ek_cpu()), EK_E_INVALID,
                    "pairs: a batch of -1 samples");
    assert_no_batch(ek_dataset_get_batch(dataset, high, 2, ek_cpu()), EK_E_INVALID,
                    "pairs: sample 10 of 10 in a batch");
    assert_no_batch(ek_dataset_get_batch(dataset, low, 1, ek_cpu()), EK_E_INVALID,
                    "pairs: sample -1 of 10 in a batch");
    assert_no_batch(ek_dataset_get_batch(dataset, high, 1, ek_host(63)), EK_E_DEVICE, "host:63");
    ek_dataset_free(dataset);
}

/* A device whose memory is not the CPU's. */
TEST(devices_of_their_own_memory)
{
    ek_dataset *dataset = pairs_new(10);
    ek_dev *dev = ek_dev_get(ek_host(0));
    const ek_backend *backend = dev->backend;
    ek_backend remote = *backend;
    remote.host_memory = false;
    dev->backend = &remote;
    assert_no_batch(ek_dataset_get_batch(dataset, (int64_t[]){1}, 1, ek_host(0)), EK_E_DEVICE,
                    "dataset_get_batch: the CPU cannot write to the memory of host:0; batches are");
    ek_value sample = ek_value_of_int(1);
    assert_no_batch(ek_collate(&sample, 1, ek_host(0)), EK_E_DEVICE,
                    "collate: the CPU cannot write to the memory of host:0");
    dev->backend = backend;
    ek_dataset_free(dataset);
}

/* Only results stay in the caller's scope, and of a batch only the batch. */
TEST(nothing_piles_up)
{
    ek_dataset *dataset = pairs_new(10), *bad = faulty(SAYS);
    int64_t order[200];
    for (int i = 0; i < 200; i++)
        order[i] = i % 10;
    uint64_t before = bytes_in_use(ek_cpu());
    ek_scope scope = ek_scope_begin();
    ek_dataset_get(dataset, 5);
    ck_assert_uint_eq(bytes_in_use(ek_cpu()) - before, 64);
    ek_value batch = ek_dataset_get_batch(dataset, order, 200, ek_cpu());
    ck_assert_int_eq(batch.kind, EK_VALUE_LIST);
    ck_assert_uint_eq(bytes_in_use(ek_cpu()) - before, 64 + 200 * 8 + 200 * 8);
    assert_no_batch(ek_dataset_get_batch(bad, order, 200, ek_cpu()), EK_E_IO, "sample 7");
    ck_assert_uint_eq(bytes_in_use(ek_cpu()) - before, 64 + 200 * 8 + 200 * 8);
    ek_scope_end(&scope);
    ck_assert_uint_eq(bytes_in_use(ek_cpu()), before);

    ek_memory_stats stats; /* nor while the batch is being made: a row each, and one scratch */
    ek_memory_trim(ek_cpu());
    assert_ok(ek_memory_reset_peak(ek_cpu()));
    scope = ek_scope_begin();
    ek_dataset_get_batch(dataset, order, 200, ek_cpu());
    ek_scope_end(&scope);
    assert_ok(ek_memory_get_stats(ek_cpu(), &stats));
    ck_assert_uint_le(stats.peak - before, 200 * 64 + 4032 + 200 * 16);
    ek_dataset_free(dataset);
    ek_dataset_free(bad);
}

/* ---- types with a get_batch of their own ---- */

static ek_value on_cpu(ek_dataset *dataset, const int64_t *samples, int64_t count, ek_device device)
{
    ek_empty(EK_SHAPE(1000));
    ek_tensor *rows = ek_empty(EK_SHAPE(count, 3));
    return EK_LIST(ek_value_of_int(1), EK_LIST(rows, ek_value_none()));
}

static ek_value fails_at_once(ek_dataset *dataset, const int64_t *samples, int64_t count,
                              ek_device device)
{
    return ek_value_error();
}

TEST(batches_of_its_own)
{
    ek_dataset_type type = {.name = "mine",
                            .size = sizeof(pairs),
                            .length = pairs_length,
                            .get = pairs_get,
                            .get_batch = on_cpu};
    pairs *self = (pairs *)ek_dataset_new(&type);
    assert_made(self);
    self->count = 10;
    const int64_t order[] = {3, 1};
    uint64_t before = bytes_in_use(ek_cpu());
    ek_value batch = ek_dataset_get_batch(&self->dataset, order, 2, ek_cpu());
    ck_assert_int_eq(ek_value_length(batch), 2);
    ck_assert_uint_eq(bytes_in_use(ek_cpu()) - before, 64);
    assert_no_batch(ek_dataset_get_batch(&self->dataset, order, 2, ek_host(0)), EK_E_DEVICE,
                    "mine: get_batch made f32[2, 3] on cpu; it was asked for host:0");
    type.get_batch = fails_at_once;
    assert_no_batch(ek_dataset_get_batch(&self->dataset, order, 2, ek_cpu()), EK_E_USER,
                    "mine: it failed");
    type.get_batch = told_batch;
    ck_assert_int_eq(ek_dataset_get_batch(&self->dataset, order, 2, ek_cpu()).kind, EK_VALUE_NONE);
    ek_dataset_free(&self->dataset);
}

/* ---- threads ---- */

enum { ROUNDS = 60 };

static void *reads(void *user)
{
    ek_dataset *dataset = user;
    for (int64_t i = 0; i < ROUNDS; i++) {
        ek_scope scope = ek_scope_begin();
        const int64_t order[] = {i % 10, (i + 3) % 10};
        ek_value batch = ek_dataset_get_batch(dataset, order, 2, ek_cpu());
        double first = -1;
        if (batch.kind != EK_VALUE_LIST ||
            ek_item(ek_value_tensor(ek_value_at(ek_dataset_get(dataset, i % 10), 0)), &first) == 0)
            return "no batch";
        ek_error_clear(); /* of the item of two elements */
        const float *rows = ek_tensor_data(ek_value_tensor(ek_value_at(batch, 0)));
        if (rows[0] != (float)order[0] || rows[2] != (float)order[1])
            return "wrong rows";
        ek_scope_end(&scope);
        ek_dataset_free(ek_dataset_keep(dataset));
    }
    ek_dataset_free(dataset);
    return NULL;
}

TEST(threads_read_pairs)
{
    read_by_threads(pairs_new(10), reads);
}
