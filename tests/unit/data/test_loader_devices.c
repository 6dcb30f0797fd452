/* test_loader_devices.c: batches cut for devices: sizes, where parts lie, what is kept there. */
#include <pthread.h>
#include <time.h>

#include "core/device.h"
#include "core/staging.h"
#include "loader_setup.h"

FIXTURE(setup_devices, all_is_given_back)

enum { DEVICES = 4 };

typedef struct cutter {
    int64_t sizes[DEVICES];
    int calls, status;
    pthread_t thread;
} cutter;

/* As told, where the batch is full; all of a smaller one to the last device. */
static int cut_as_told(int64_t batch, int64_t *sizes, void *user)
{
    cutter *self = user;
    self->calls++;
    self->thread = pthread_self();
    for (int i = 0; i < DEVICES; i++)
        ck_assert_int_eq(sizes[i], 0);
    if (self->status)
        return ek_error(self->status, "no plan");
    if (batch == 10)
        memcpy(sizes, self->sizes, sizeof self->sizes);
    else
        sizes[DEVICES - 1] = batch;
    return 0;
}

static ek_loader *loader_of(int workers, ek_loader_options options)
{
    options.dataset = &noisy_new(14)->dataset;
    options.batch_size = 10;
    options.workers = workers;
    options.device_ids = EK_DEVICES(ek_host(2), ek_host(0), ek_cpu(), ek_host(3));
    ek_loader *loader = ek_data_loader_with(options);
    assert_made(loader);
    return loader;
}

/* The next batch has parts of these sizes, in the order of device_ids, each on its device. */
static void assert_parts(ek_loader *loader, const int64_t *sizes)
{
    const ek_device_list devices = EK_DEVICES(ek_host(2), ek_host(0), ek_cpu(), ek_host(3));
    ek_batch batch;
    int at = 0;
    assert_ok(ek_loader_next(loader, &batch));
    ck_assert(batch.data.per_device && batch.input.per_device && batch.target.per_device);
    const int64_t *indices = batch.indices;
    for (int d = 0; d < DEVICES; d++) {
        if (sizes[d] == 0)
            continue;
        ek_tensor *input = ek_value_tensor(ek_value_at(batch.input, at));
        ek_tensor *target = ek_value_tensor(ek_value_at(batch.target, at));
        ck_assert_ptr_eq(ek_value_at(ek_value_at(batch.data, at), 0).as.tensor, input);
        ck_assert(ek_device_equal(ek_tensor_device(input), devices.devices[d]));
        ck_assert(ek_device_equal(ek_tensor_device(target), devices.devices[d]));
        ck_assert_int_eq(ek_tensor_size(input, 0), sizes[d]);
        ck_assert_int_eq(ek_tensor_size(target, 0), sizes[d]);
        for (int64_t i = 0; i < sizes[d]; i++)
            ck_assert_int_eq((int64_t)element(input, i), *indices++);
        at++;
    }
    ck_assert_int_eq(ek_value_length(batch.data), at);
    ck_assert_int_eq(ek_value_length(batch.target), at);
}

TEST_LOOP(parts_lie_on_their_devices, 0, 3)
{
    cutter told = {.sizes = {2, 0, 7, 1}};
    ek_loader *loader = loader_of(_i, EK_OPTIONS(ek_loader_options));
    assert_parts(loader, (int64_t[]){3, 3, 3, 1});
    assert_parts(loader, (int64_t[]){1, 1, 1, 1});
    ek_loader_free(loader);
    loader = loader_of(_i, EK_OPTIONS(ek_loader_options, .split = EK_SPLIT_EVEN));
    assert_parts(loader, (int64_t[]){3, 3, 2, 2});
    ek_loader_free(loader);
    loader =
        loader_of(_i, EK_OPTIONS(ek_loader_options, .sizes = cut_as_told, .sizes_user = &told));
    assert_parts(loader, told.sizes);
    assert_parts(loader, (int64_t[]){0, 0, 0, 4});
    ck_assert_int_eq(told.calls, 2);
    ck_assert(pthread_equal(told.thread, pthread_self()));
    ek_loader_free(loader);
}

TEST_LOOP(sizes_that_do_not_add_up_lose_the_batch, 0, 2)
{
    static const struct {
        int64_t sizes[DEVICES];
        const char *part;
    } wrong[] = {{{5, 4, 0, 0}, "loader: batch 0: sizes gave 9 of 10 samples"},
                 {{5, 4, 2, 0}, "sizes gave 2 samples to device 2; 1 of 10 were left"},
                 {{5, 6, -1, 0}, "sizes gave 6 samples to device 1; 5 of 10"},
                 {{11, -1, 0, 0}, "sizes gave 11 samples to device 0"},
                 {{5, -1, 6, 0}, "sizes gave -1 samples to device 1"}};
    ek_batch batch;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cutter told = {0};
        memcpy(told.sizes, wrong[i].sizes, sizeof told.sizes);
        ek_loader *loader =
            loader_of(_i, EK_OPTIONS(ek_loader_options, .sizes = cut_as_told, .sizes_user = &told));
        assert_refused(ek_loader_next(loader, &batch), EK_E_INVALID, wrong[i].part);
        assert_parts(loader, (int64_t[]){0, 0, 0, 4});
        ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
        ek_loader_free(loader);
    }
    /* Each batch has its own error, also if the next one's comes while it is given. */
    cutter fails = {.status = EK_E_STATE};
    ek_loader *loader = loader_of(_i, EK_OPTIONS(ek_loader_options, .sizes = cut_as_told,
                                                 .sizes_user = &fails, .prefetch = 1));
    for (int b = 0; b < 2; b++) {
        assert_refused(ek_loader_next(loader, &batch), EK_E_STATE,
                       b ? "loader: batch 1: no plan" : "loader: batch 0: no plan");
    }
    ek_loader_free(loader);
}

TEST_LOOP(one_device_gets_plain_values, 0, 2)
{
    ek_batch batch;
    ek_loader *loader = ek_data_loader(&noisy_new(3)->dataset, .batch_size = 2, .workers = _i,
                                       .device_ids = EK_DEVICES(ek_host(3)));
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    ck_assert(!batch.data.per_device && !batch.input.per_device);
    ck_assert(ek_device_equal(ek_tensor_device(ek_value_tensor(batch.input)), ek_host(3)));
    ck_assert(ek_device_equal(ek_tensor_device(ek_value_tensor(batch.target)), ek_host(3)));
    ek_loader_free(loader);
}

/* The memory of batches that are ahead is their devices', and goes with them. */
TEST(batches_ahead_are_in_their_devices_memory)
{
    ek_memory_stats stats;
    ek_batch batch;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_PARAMETER);
    ek_loader *loader = ek_data_loader(&noisy_new(40)->dataset, .batch_size = 2, .workers = 1,
                                       .prefetch = 3, .device_ids = ek_devices(EK_HOST, 2));
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    for (int wait = 0; wait < 10000; wait++) {
        struct timespec moment = {.tv_nsec = 1000000};
        assert_ok(ek_memory_get_stats(ek_host(1), &stats));
        if (stats.in_use == 4 * 2 * 64)
            break;
        nanosleep(&moment, NULL);
    }
    ck_assert_uint_eq(stats.in_use, 4 * 2 * 64);
    ck_assert_uint_eq(stats.now[EK_MEMORY_ACTIVATION], 4 * 2 * 64);
    ek_loader_free(loader);
    assert_ok(ek_memory_get_stats(ek_host(1), &stats));
    ck_assert_uint_eq(stats.in_use, 0);
    ck_assert_int_eq(ek_memory_set_category(before), EK_MEMORY_PARAMETER);
}

TEST_LOOP(a_device_without_memory_loses_the_batch, 0, 2)
{
    ek_batch batch;
    ek_loader *loader = ek_data_loader(&noisy_new(8)->dataset, .batch_size = 4, .workers = _i,
                                       .device_ids = ek_devices(EK_HOST, 2));
    assert_ok(ek_memory_set_capacity(ek_host(1), 64));
    assert_refused(ek_loader_next(loader, &batch), EK_E_OUT_OF_MEMORY, "host:1 is out of memory");
    assert_ok(ek_loader_reset(loader));
    assert_ok(ek_memory_set_capacity(ek_host(1), 0));
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    ek_loader_free(loader);
}

/* ---- sets that make batches themselves ---- */

static atomic_int batches_made, made_elsewhere;

static ek_value whole_get_batch(ek_dataset *dataset, const int64_t *samples, int64_t count,
                                ek_device device)
{
    struct timespec time = {.tv_nsec = 5000000};
    nanosleep(&time, NULL);
    atomic_fetch_add(&batches_made, 1);
    atomic_fetch_add(&made_elsewhere, !ek_device_equal(device, ek_host(3)));
    return ek_value_of_tensor(ek_empty(EK_SHAPE(count), .device = device));
}

static const ek_dataset_type whole_type = {.name = "whole",
                                           .size = sizeof(noisy),
                                           .length = noisy_length,
                                           .get = noisy_get,
                                           .get_batch = whole_get_batch};

/* Where they are needed; and those that nobody wants any more are not begun. */
TEST(sets_make_batches_where_they_are_needed)
{
    ek_batch batch;
    noisy *set = (noisy *)ek_dataset_new(&whole_type);
    set->count = 1000;
    ek_loader *loader = ek_data_loader(&set->dataset, .workers = 1, .prefetch = 500,
                                       .device_ids = EK_DEVICES(ek_host(3)));
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    ck_assert(ek_device_equal(ek_tensor_device(ek_value_tensor(batch.data)), ek_host(3)));
    assert_ok(ek_loader_reset(loader));
    ck_assert_int_lt(batches_made, 250);
    ck_assert_int_eq(made_elsewhere, 0);
    ek_loader_free(loader);
}

/* ---- memory that the CPU cannot write to ----
 *
 * host:1 and host:2 as if they were such devices: tensors lie there, but nobody is given their
 * address. host:1 reads page-locked memory by itself. */

static pthread_t receiver;
static atomic_int staged, locked, sent, sent_by_receiver;

static int pinned_alloc(ek_dev *dev, size_t nbytes, void **pointer)
{
    atomic_fetch_add(&staged, !pthread_equal(pthread_self(), receiver));
    atomic_fetch_add(&locked, 1);
    *pointer = malloc(nbytes ? nbytes : 1);
    return *pointer ? 0 : EK_E_NO_MEMORY;
}

static void pinned_free(void *pointer)
{
    atomic_fetch_sub(&locked, 1);
    free(pointer);
}

static int upload_pinned(ek_dev *dev, void *to, const void *from, size_t nbytes)
{
    atomic_fetch_add(&sent, 1);
    atomic_fetch_add(&sent_by_receiver, pthread_equal(pthread_self(), receiver) != 0);
    memcpy(to, from, nbytes);
    return 0;
}

static void assert_fed(const ek_batch *batch)
{
    static const int64_t sizes[] = {2, 2, 1};
    int64_t at = 0;
    for (int d = 0; d < 3; d++) {
        ek_value part = ek_value_at(batch->data, d);
        ek_tensor *index = ek_value_tensor(ek_value_at(part, 0));
        ck_assert(ek_device_equal(ek_tensor_device(index), ek_host(d)));
        ck_assert(ek_device_equal(ek_tensor_device(ek_value_at(part, 1).as.tensor), ek_host(d)));
        ck_assert_int_eq(ek_tensor_count(index), sizes[d]);
        for (int64_t i = 0; i < sizes[d]; i++, at++)
            ck_assert_int_eq(((int64_t *)ek_tensor_address(index))[i], batch->indices[at]);
    }
}

TEST_LOOP(other_memory_is_fed_when_a_batch_is_given, 0, 3)
{
    ek_dev *reads = ek_dev_get(ek_host(1)), *plain = ek_dev_get(ek_host(2));
    const ek_backend *before = reads->backend;
    ek_backend reading = *before, copying = *before;
    ek_batch batch;
    ek_memory_stats stats;
    reading.host_memory = copying.host_memory = false;
    reading.pinned_alloc = pinned_alloc;
    reading.pinned_free = pinned_free;
    reading.upload = upload_pinned;
    reads->backend = &reading;
    plain->backend = &copying;
    receiver = pthread_self();
    ek_loader *loader = ek_data_loader(&noisy_new(15)->dataset, .batch_size = 5, .shuffle = true,
                                       .workers = _i, .device_ids = ek_devices(EK_HOST, 3));
    for (int b = 1; b <= 3; b++) {
        ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
        assert_fed(&batch);
        ck_assert_int_eq(sent, 2 * b);
        ck_assert_int_eq(sent_by_receiver, 2 * b);
        assert_ok(ek_memory_get_stats(ek_host(1), &stats)); /* none that is ahead */
        ck_assert_uint_eq(stats.in_use, 2 * 64);
    }
    ck_assert_int_eq(staged, _i ? 6 : 0);
    ck_assert_int_eq(locked, 0);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
    /* If nothing of it is left to send it to, the batch is lost. */
    assert_ok(ek_memory_set_capacity(ek_host(1), 64));
    assert_refused(ek_loader_next(loader, &batch), EK_E_OUT_OF_MEMORY,
                   "loader: batch 0: host:1 is out of memory");
    assert_ok(ek_memory_set_capacity(ek_host(1), 0));
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    assert_fed(&batch);
    ek_loader_free(loader);
    ck_assert_int_eq(locked, 0);
    reads->backend = plain->backend = before;
}

TEST(fed_memory_is_in_use_until_it_is_released)
{
    ek_dev *reads = ek_dev_get(ek_host(1));
    const ek_backend *before = reads->backend;
    ek_backend reading = *before;
    reading.host_memory = false;
    reading.pinned_alloc = pinned_alloc;
    reading.pinned_free = pinned_free;
    reading.upload = upload_pinned;
    reads->backend = &reading;
    ek_shape shape = EK_SHAPE(3);
    ek_tensor *fed = ek_keep(ek_staging_new(reads, EK_F32, &shape));
    assert_made(fed);
    reads->backend = before;
    assert_refused(ek_shutdown(), EK_E_STATE, "cpu still has 64 bytes in use");
    ck_assert_int_eq(locked, 1);
    ek_release(fed);
    ck_assert_int_eq(locked, 0);
}
