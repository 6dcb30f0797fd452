/* test_loader.c: what loaders give: PyTorch's order and numbers, batches, parts of devices. */
#include "core/thread.h"
#include "loader_setup.h"

FIXTURE(setup_devices, all_is_given_back)

/* ---- PyTorch's order ---- */

enum { COUNT = 10, EPOCHS = 3 };

/* The options of make_loader.py. */
static ek_loader_options case_of(const char *name, ek_generator *generator)
{
    ek_loader_options options =
        EK_OPTIONS(ek_loader_options, .dataset = &noisy_new(COUNT)->dataset);
    options.shuffle =
        strstr("shuffle batches drop_last generator generator_drop_last single", name) != NULL;
    options.batch_size = strcmp(name, "single") == 0       ? 0
                         : strcmp(name, "sampler") == 0    ? 2
                         : strcmp(name, "shuffle") == 0    ? 1
                         : strncmp(name, "batch_", 6) == 0 ? 1
                         : strcmp(name, "batches") == 0 || strcmp(name, "generator_drop_last") == 0
                             ? 3
                             : 4;
    options.drop_last = strstr(name, "drop_last") != NULL;
    if (strncmp(name, "generator", 9) == 0) {
        options.generator = generator;
        ek_generator_seed(generator, options.drop_last ? 6 : 5);
    }
    if (strcmp(name, "sampler") == 0)
        options.sampler = ek_random_sampler(COUNT, .replacement = true, .num_samples = 7);
    else if (strcmp(name, "batch_sampler") == 0)
        options.batch_sampler = ek_batch_sampler(ek_random_sampler(COUNT), 3, false);
    else if (strcmp(name, "batch_sequence") == 0)
        options.batch_sampler = ek_batch_sampler(ek_sequential_sampler(COUNT), 4, true);
    return options;
}

static const char *const cases[] = {"plain",         "shuffle",   "batches",
                                    "drop_last",     "generator", "generator_drop_last",
                                    "sampler",       "single",    "batch_sampler",
                                    "batch_sequence"};
enum { CASES = sizeof cases / sizeof *cases };
static const int worker_counts[] = {0, 2, 3};

static void assert_golden(const char *name, int workers, const char *what, const void *data,
                          int64_t count)
{
    char key[64];
    snprintf(key, sizeof key, "%s/%d/%s", name, workers, what);
    ek_tensor *wanted = golden("loader.golden", key);
    ck_assert_msg(ek_tensor_count(wanted) == count, "%s: %d, not %d", key, (int)count,
                  (int)ek_tensor_count(wanted));
    size_t nbytes = (size_t)count * ek_dtype_size(ek_tensor_dtype(wanted));
    ck_assert_msg(memcmp(ek_tensor_data(wanted), data, nbytes) == 0, "%s differs", key);
}

TEST_LOOP(order_and_numbers_are_pytorchs, 0, 3 * CASES)
{
    const char *name = cases[_i % CASES];
    int workers = worker_counts[_i / CASES];
    ek_generator *generator = ek_generator_new(0);
    ek_loader_options options = case_of(name, generator);
    record seen = {0};
    ek_manual_seed(0);
    options.workers = workers;
    options.seeding = EK_SEED_WORKER;
    ek_loader *loader = ek_data_loader_with(options);
    assert_made(loader);
    for (int epoch = 0; epoch < EPOCHS; epoch++)
        ck_assert_int_eq(record_pass(&seen, loader), ek_loader_length(loader));
    assert_golden(name, workers, "indices", seen.indices, seen.samples);
    assert_golden(name, workers, "ends", seen.ends, seen.batches);
    assert_golden(name, workers, "draws", seen.draws, seen.samples * NOISY_DRAWS);
    assert_golden(name, workers, "rest", ek_tensor_data(ek_rand(EK_SHAPE(4))), 4);
    ek_loader_free(loader);
    ek_generator_free(generator);
}

static ek_tensor *range_of(int64_t count)
{
    ek_tensor *range = ek_empty(EK_SHAPE(count), EK_I64);
    assert_made(range);
    for (int64_t i = 0; i < count; i++)
        ((int64_t *)ek_tensor_data(range))[i] = i;
    return range;
}

TEST(a_range_comes_in_pytorchs_order)
{
    static const int64_t wanted[] = {6, 7, 1, 4, 2, 0, 9, 8, 3, 5};
    ek_manual_seed(0);
    ek_loader *loader = ek_data_loader(ek_tensor_dataset(range_of(10)), .shuffle = true);
    ek_batch batch;
    for (int i = 0; i < 10; i++) {
        ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
        ck_assert_int_eq((int)element(ek_value_tensor(batch.data), 0), wanted[i]);
        ck_assert_int_eq((int)element(golden("loader.golden", "range"), i), wanted[i]);
    }
    ek_loader_free(loader);
}

/* ---- the same for any number of workers ---- */

static void run(record *into, ek_loader_options options, int workers, int prefetch)
{
    options.dataset = &noisy_new(25)->dataset;
    options.workers = workers;
    options.prefetch = prefetch;
    ek_manual_seed(3);
    ek_loader *loader = ek_data_loader_with(options);
    assert_made(loader);
    record_pass(into, loader);
    record_pass(into, loader);
    ek_loader_free(loader);
}

TEST(numbers_of_batches_do_not_depend_on_workers)
{
    static record alone, other;
    const ek_loader_options options =
        EK_OPTIONS(ek_loader_options, .shuffle = true, .batch_size = 4);
    run(&alone, options, 0, 2);
    uint64_t next = ek_random_u64(NULL);
    ck_assert(alone.draws[0][0] != alone.draws[4][0]); /* two batches */
    ck_assert_int_eq(alone.batches, 14);
    for (int workers = 1; workers < 5; workers++) {
        memset(&other, 0, sizeof other);
        run(&other, options, workers, 1 + workers % 3);
        assert_same(&alone, &other);
        ck_assert(ek_random_u64(NULL) == next); /* the caller's own numbers neither */
    }
    /* Nor on the devices that a batch is cut for. */
    ek_loader_options cut = options;
    cut.device_ids = ek_devices(EK_HOST, 3);
    memset(&other, 0, sizeof other);
    run(&other, cut, 2, 2);
    assert_same(&alone, &other);
}

TEST(a_batch_draws_from_base_seed_plus_number)
{
    ek_generator *copy = ek_generator_new(11), *own = ek_generator_new(11);
    uint64_t base = ek_random_u64(copy) % ((uint64_t)1 << 63);
    ek_loader *loader = ek_data_loader(&noisy_new(6)->dataset, .batch_size = 2, .generator = own);
    ek_batch batch;
    for (uint64_t b = 0; b < 3; b++) {
        ek_generator *seeded = ek_generator_new(base + b);
        ek_tensor *wanted = ek_empty(EK_SHAPE(2, NOISY_DRAWS));
        assert_ok(ek_uniform_(wanted, 0, 1, seeded));
        ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
        assert_close(ek_value_tensor(batch.target), wanted, 0, 0);
        ek_generator_free(seeded);
    }
    ek_loader_free(loader);
    ek_generator_free(copy);
    ek_generator_free(own);
}

/* ---- batches ---- */

TEST_LOOP(inputs_and_targets_are_the_first_two_of_a_list, 0, 2)
{
    ek_batch batch;
    ek_loader *loader = ek_data_loader(&noisy_new(5)->dataset, .batch_size = 3, .workers = _i);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    ck_assert_int_eq(batch.count, 3);
    ck_assert_ptr_eq(batch.input.as.tensor, ek_value_at(batch.data, 0).as.tensor);
    ck_assert_ptr_eq(batch.target.as.tensor, ek_value_at(batch.data, 1).as.tensor);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    ck_assert_int_eq(batch.count, 2);
    ck_assert_int_eq(batch.number, 1);
    ck_assert_int_eq(batch.indices[1], 4);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
    ck_assert_ptr_null(batch.indices);
    ek_loader_free(loader);
    /* What is no list is the input. */
    loader = ek_data_loader(ek_tensor_dataset(range_of(4)), .batch_size = 4, .workers = _i);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    ck_assert_int_eq(batch.data.kind, EK_VALUE_TENSOR);
    ck_assert_ptr_eq(batch.input.as.tensor, batch.data.as.tensor);
    ck_assert_int_eq(batch.target.kind, EK_VALUE_NONE);
    ek_loader_free(loader);
}

TEST_LOOP(samples_can_come_as_they_are, 0, 2)
{
    ek_batch batch;
    ek_loader *loader = ek_data_loader(&noisy_new(3)->dataset, .batch_size = 0, .workers = _i,
                                       .device_ids = EK_DEVICES(ek_host(2)));
    ck_assert_int_eq(ek_loader_length(loader), 3);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
        ck_assert_int_eq(batch.count, 1);
        ck_assert_int_eq(ek_tensor_ndim(ek_value_tensor(batch.input)), 0);
        ck_assert_int_eq(ek_tensor_ndim(ek_value_tensor(batch.target)), 1);
        ck_assert(ek_device_equal(ek_tensor_device(batch.target.as.tensor), ek_host(2)));
        ck_assert_int_eq((int)element(batch.input.as.tensor, 0), i);
    }
    ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
    ek_loader_free(loader);
}

/* A batch goes with the next one, whatever scope it was asked for in; what is kept stays. */
TEST_LOOP(batches_are_given_back, 0, 3)
{
    ek_memory_stats stats;
    ek_batch batch;
    ek_loader *loader = ek_data_loader(&noisy_new(100)->dataset, .batch_size = 2, .workers = _i,
                                       .device_ids = ek_devices(EK_HOST, 1));
    ek_value kept = ek_value_none();
    for (int i = 0; i < 40; i++) {
        ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
        if (i == 7)
            kept = ek_value_keep(batch.input);
        assert_ok(ek_memory_get_stats(ek_host(0), &stats));
        ck_assert_uint_le(stats.in_use, (uint64_t)(4 + 2 * _i) * 2 * 64);
    }
    ck_assert_int_eq((int)element(ek_value_tensor(kept), 1), 15);
    assert_ok(ek_loader_reset(loader));
    assert_ok(ek_memory_get_stats(ek_host(0), &stats));
    ck_assert_uint_eq(stats.in_use, 64);
    ek_value_release(kept);
    ek_loader_free(loader);
}

TEST_LOOP(an_error_of_the_callers_stays_the_first, 0, 2)
{
    ek_batch batch;
    noisy *set = noisy_new(4);
    set->bad = 2;
    ek_loader *loader = ek_data_loader(&set->dataset, .workers = _i);
    ek_error(EK_E_USER, "older");
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(ek_loader_next(loader, &batch), i == 2 ? EK_E_IO : 1);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
    assert_error(EK_E_USER, "older");
    ek_loader_free(loader);
}

/* ---- a collate function of the user's ---- */

typedef struct sums {
    int calls;
    bool fails, is_silent, hides;
    ek_tensor *given; /* instead of a sum */
} sums;

/* The sum of the samples' numbers, in a dictionary. */
static ek_value collate_sum(const ek_value *samples, int64_t count, void *user)
{
    sums *self = user;
    double sum = 0;
    self->calls++;
    for (int64_t i = 0; i < count; i++)
        sum += element(ek_value_tensor(ek_value_at(samples[i], 0)), 0);
    if (self->fails && !self->is_silent)
        ek_error(EK_E_USER, "cannot add");
    if (self->fails && !self->hides)
        return ek_value_error();
    ek_tensor *tensor =
        self->given ? self->given : tensor_of(&sum, ek_scalar_shape(), EK_F64, ek_cpu());
    ek_value total = self->given ? ek_value_batched(EK_VALUE(tensor), 2) : EK_VALUE(tensor);
    return ek_value_dict((ek_value_entry[]){{"sum", total},
                                            {"list", EK_LIST(ek_value_of_int(count), tensor)}},
                         2);
}

TEST_LOOP(a_function_of_the_users_collates, 0, 2)
{
    sums adder = {0};
    ek_batch batch;
    ek_loader *loader = ek_data_loader(&noisy_new(10)->dataset, .batch_size = 4, .workers = _i,
                                       .collate = collate_sum, .collate_user = &adder);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    ck_assert_int_eq((int)element(ek_value_tensor(ek_value_get(batch.data, "sum")), 0), 6);
    ck_assert_int_eq(batch.input.kind, EK_VALUE_DICT);
    ck_assert_int_eq(batch.target.kind, EK_VALUE_NONE);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    ck_assert_int_eq((int)element(ek_value_tensor(ek_value_get(batch.data, "sum")), 0), 17);
    ck_assert_int_eq(adder.calls, 3);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
    ek_loader_free(loader);
    /* Once for each device, whose memory its tensors are brought to: elements in order, whatever
     * the strides are. */
    static const double rows[] = {1, 2, 3, 4, 5, 6, 7, 8};
    ek_tensor *strided =
        ek_from_data(rows, EK_SHAPE(1, 2, 2, 2), EK_F64, .format = EK_CHANNELS_LAST);
    adder = (sums){.given = strided};
    loader = ek_data_loader(&noisy_new(4)->dataset, .batch_size = 4, .workers = _i,
                            .collate = collate_sum, .collate_user = &adder,
                            .device_ids = EK_DEVICES(ek_host(1), ek_host(3), ek_cpu()));
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    ck_assert_int_eq(adder.calls, 2);
    ck_assert_int_eq(ek_value_length(batch.data), 2);
    for (int i = 0; i < 2; i++) {
        ek_value part = ek_value_at(batch.data, i);
        ek_tensor *tensor = ek_value_tensor(ek_value_get(part, "sum"));
        ck_assert_int_eq(ek_value_batch_dim(ek_value_get(part, "sum"), 0), 2);
        ck_assert(ek_device_equal(ek_tensor_device(tensor), ek_host(i ? 3 : 1)));
        assert_close(tensor, strided, 0, 0);
        ck_assert_int_eq(ek_value_at(ek_value_get(part, "list"), 0).as.integer, 2);
    }
    ek_loader_free(loader);
}

TEST_LOOP(a_function_that_fails_loses_its_batch, 0, 2)
{
    sums adder = {.fails = true};
    ek_batch batch;
    ek_loader *loader =
        ek_data_loader(&noisy_new(2)->dataset, .workers = _i, .collate = collate_sum,
                       .collate_user = &adder, .prefetch = 1);
    assert_refused(ek_loader_next(loader, &batch), EK_E_USER,
                   _i ? "loader: batch 0 (worker 0): collate: cannot add"
                      : "loader: batch 0: collate: cannot add");
    assert_ok(ek_loader_reset(loader));
    adder.hides = true;
    assert_refused(ek_loader_next(loader, &batch), EK_E_USER, "collate: cannot add");
    assert_ok(ek_loader_reset(loader));
    adder.is_silent = true;
    adder.hides = false;
    assert_refused(ek_loader_next(loader, &batch), EK_E_USER, "without saying why");
    assert_ok(ek_loader_reset(loader));
    adder.fails = false;
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    ek_loader_free(loader);
}

/* ---- what a loader says of itself ---- */

TEST_LOOP(a_loader_knows_its_length_parts_and_counts, 0, 2)
{
    ek_loader_stats stats;
    ek_batch batch;
    noisy *set = noisy_new(10);
    ek_loader *loader = ek_data_loader(&set->dataset, .batch_size = 4, .workers = _i);
    ck_assert_int_eq(ek_loader_length(loader), 3);
    ck_assert_ptr_eq(ek_loader_dataset(loader), &set->dataset);
    ck_assert_str_eq(ek_loader_sampler(loader)->type->name, "sequential");
    assert_ok(ek_loader_set_epoch(loader, 4));
    ck_assert_int_eq(ek_loader_sampler(loader)->epoch, 4);
    assert_ok(ek_loader_get_stats(loader, &stats));
    ck_assert(stats.batches == 0 && stats.waited_ns == 0 && stats.worked_ns == 0);
    set->bad = 5;
    for (int pass = 0; pass < 2; pass++) {
        ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
        ck_assert_int_eq(ek_loader_next(loader, &batch), EK_E_IO);
        ek_error_clear();
        ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
        ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
    }
    assert_ok(ek_loader_get_stats(loader, &stats));
    ck_assert_int_eq(stats.batches, 4);
    ck_assert_int_eq(stats.samples, 12);
    ck_assert(stats.waited_ns > 0);
    ck_assert((stats.worked_ns > 0) == (_i > 0));
    ek_loader_free(loader);

    loader = ek_data_loader(&noisy_new(10)->dataset, .batch_size = 4, .drop_last = true);
    ck_assert_int_eq(ek_loader_length(loader), 2);
    ek_loader_free(loader);
    loader = ek_data_loader(&noisy_new(10)->dataset,
                            .batch_sampler = ek_batch_sampler(ek_sequential_sampler(10), 3, false));
    ck_assert_int_eq(ek_loader_length(loader), 4);
    ek_loader_free(loader);
    /* Nothing at all, or less than a batch. */
    loader = ek_data_loader(&noisy_new(0)->dataset, .workers = _i);
    ck_assert_int_eq(ek_loader_length(loader), 0);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
    ek_loader_free(loader);
    loader = ek_data_loader(&noisy_new(3)->dataset, .batch_size = 4, .drop_last = true);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
    ek_loader_free(loader);
}

/* Two passes of different orders by ek_loader_set_epoch. */
TEST_LOOP(epochs_go_to_the_sampler, 0, 3)
{
    static record one, other;
    ek_loader *loader =
        ek_data_loader(&noisy_new(12)->dataset, .sampler = ek_distributed_sampler(12),
                       .batch_size = 5, .workers = _i);
    record_pass(&one, loader);
    assert_ok(ek_loader_set_epoch(loader, 1));
    record_pass(&other, loader);
    ck_assert(memcmp(one.indices, other.indices, sizeof one.indices) != 0);
    memset(&other, 0, sizeof other);
    assert_ok(ek_loader_set_epoch(loader, 0));
    record_pass(&other, loader);
    ck_assert_mem_eq(one.indices, other.indices, sizeof one.indices);
    ek_loader_free(loader);
}

/* ---- options ---- */

static void assert_loader_refused(ek_loader_options options, const char *part)
{
    if (!options.dataset)
        options.dataset = &noisy_new(4)->dataset;
    assert_refused(ek_data_loader_with(options), EK_E_INVALID, part);
}

static int no_sizes(int64_t batch, int64_t *sizes, void *user)
{
    return 0;
}

/* What it was given is freed: the sanitizers see to that. */
TEST(options_that_cannot_be_are_refused)
{
    const ek_device_list two = ek_devices(EK_HOST, 2);
    assert_loader_refused(EK_OPTIONS(ek_loader_options, .shuffle = true,
                                     .sampler = ek_sequential_sampler(4)),
                          "at most one of them");
    assert_loader_refused(EK_OPTIONS(ek_loader_options, .sampler = ek_sequential_sampler(4),
                                     .batch_sampler =
                                         ek_batch_sampler(ek_sequential_sampler(4), 2, false)),
                          "at most one of them");
    assert_loader_refused(EK_OPTIONS(ek_loader_options, .shuffle = true,
                                     .batch_sampler =
                                         ek_batch_sampler(ek_sequential_sampler(4), 2, false)),
                          "at most one of them");
    assert_loader_refused(EK_OPTIONS(ek_loader_options,
                                     .sampler =
                                         ek_batch_sampler(ek_sequential_sampler(4), 2, false)),
                          "give it as batch_sampler");
    assert_loader_refused(EK_OPTIONS(ek_loader_options, .batch_sampler = ek_sequential_sampler(4)),
                          "\"sequential\" makes no batches");
    assert_loader_refused(EK_OPTIONS(ek_loader_options,
                                     .batch_sampler =
                                         ek_batch_sampler(ek_sequential_sampler(4), 2, false),
                                     .batch_size = 2),
                          "the batch_sampler's to decide");
    assert_loader_refused(EK_OPTIONS(ek_loader_options,
                                     .batch_sampler =
                                         ek_batch_sampler(ek_sequential_sampler(4), 2, false),
                                     .drop_last = true),
                          "the batch_sampler's to decide");
    assert_loader_refused(EK_OPTIONS(ek_loader_options, .batch_size = -3), "batch_size -3");
    assert_loader_refused(EK_OPTIONS(ek_loader_options, .batch_size = 0, .drop_last = true),
                          "drop_last has");
    assert_loader_refused(EK_OPTIONS(ek_loader_options, .batch_size = 0, .collate = collate_sum),
                          "collate has");
    assert_loader_refused(EK_OPTIONS(ek_loader_options, .batch_size = 0, .device_ids = two),
                          "cannot be divided among 2");
    assert_loader_refused(EK_OPTIONS(ek_loader_options, .workers = -1), "-1 workers");
    assert_loader_refused(EK_OPTIONS(ek_loader_options, .workers = 1025),
                          "1025 workers; between 0 and 1024");
    assert_loader_refused(EK_OPTIONS(ek_loader_options, .prefetch = -1), "prefetch -1");
    assert_loader_refused(EK_OPTIONS(ek_loader_options, .workers = 4, .prefetch = 20000),
                          "between 1 and 16384");
    assert_loader_refused(EK_OPTIONS(ek_loader_options, .seeding = (ek_seeding)2),
                          "2 is no way of seeding");
    assert_loader_refused(EK_OPTIONS(ek_loader_options,
                                     .device_ids = EK_DEVICES(ek_host(1), ek_cpu(), ek_host(1))),
                          "host:1 stands twice");
    assert_loader_refused(EK_OPTIONS(ek_loader_options, .device_ids = {.count = -1}),
                          "the list of devices could not be made");
    assert_loader_refused(EK_OPTIONS(ek_loader_options, .device_ids = {.count = 65}), "65 devices");
    assert_loader_refused(EK_OPTIONS(ek_loader_options, .device_ids = two, .split = EK_SPLIT_AUTO),
                          "by sizes");
    assert_loader_refused(EK_OPTIONS(ek_loader_options, .device_ids = two, .split = EK_SPLIT_EVEN,
                                     .sizes = no_sizes),
                          "both say how");
    assert_loader_refused(EK_OPTIONS(ek_loader_options, .sizes = no_sizes), "no device_ids");
    assert_refused(ek_data_loader(NULL, .sampler = ek_sequential_sampler(4)), EK_E_INVALID,
                   "the data set is NULL");
    assert_refused(ek_data_loader(&noisy_new(4)->dataset, .device_ids = EK_DEVICES(ek_host(9))),
                   EK_E_DEVICE, "host:9");
    assert_refused(ek_data_loader(&noisy_new(0)->dataset, .shuffle = true), EK_E_INVALID,
                   "random_sampler");
    /* What failed before is what failed. */
    assert_refused(ek_data_loader(&noisy_new(4)->dataset, .sampler = ek_sequential_sampler(-1)),
                   EK_E_INVALID, "sequential_sampler");
}

/* The zero is that of workers; prefetch comes after it and was left out. */
TEST(options_by_position)
{
    ek_loader *loader =
        ek_data_loader(&noisy_new(4)->dataset, false, NULL, NULL, 2, false, true, 0);
    assert_made(loader);
    ek_loader_free(loader);
}

TEST(no_loader_is_the_pending_error)
{
    ek_batch batch;
    ek_loader_stats stats;
    ek_error(EK_E_USER, "why");
    ck_assert_int_eq(ek_loader_next(NULL, &batch), EK_E_USER);
    ck_assert_int_eq(ek_loader_reset(NULL), EK_E_USER);
    ck_assert_int_eq(ek_loader_length(NULL), EK_E_USER);
    ck_assert_int_eq(ek_loader_set_epoch(NULL, 1), EK_E_USER);
    ck_assert_int_eq(ek_loader_get_stats(NULL, &stats), EK_E_USER);
    ck_assert_int_eq(ek_loader_load_state(NULL, ek_value_none()), EK_E_USER);
    ck_assert_int_eq(ek_loader_state(NULL).kind, EK_VALUE_ERROR);
    ck_assert_ptr_null(ek_loader_dataset(NULL));
    ck_assert_ptr_null(ek_loader_sampler(NULL));
    ek_loader_free(NULL);
    assert_error(EK_E_USER, "why");
    ek_loader *loader = ek_data_loader(&noisy_new(4)->dataset);
    assert_refused(ek_loader_next(loader, NULL), EK_E_INVALID, "loader_next: the batch is NULL");
    assert_refused(ek_loader_get_stats(loader, NULL), EK_E_INVALID, "loader_get_stats");
    ek_loader_free(loader);
}
