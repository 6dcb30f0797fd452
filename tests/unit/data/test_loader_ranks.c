/* test_loader_ranks.c: ranks whose share is shorter give empty batches until all have given as
 * many. */
#include "core/world.h"
#include "loader_setup.h"

FIXTURE(setup_devices, all_is_given_back)

/* ---- all ranks of a job, one after another ---- */

typedef struct job {
    int64_t count, batch_size;
    int ranks, workers;
    bool drop_last, batches; /* batches: by a batch sampler */
    bool empty;
    ek_seeding seeding;
} job;

static ek_loader *loader_of(const job *j, int rank)
{
    ek_sampler *sampler = ek_distributed_sampler(j->count, j->ranks, rank, .padding = false);
    ek_loader_options options =
        EK_OPTIONS(ek_loader_options, .dataset = &noisy_new(j->count)->dataset,
                   .workers = j->workers, .seeding = j->seeding, .empty_batches = j->empty);
    if (j->batches) {
        options.batch_sampler = ek_batch_sampler(sampler, j->batch_size, j->drop_last);
    } else {
        options.sampler = sampler;
        options.batch_size = j->batch_size;
        options.drop_last = j->drop_last;
    }
    ek_loader *loader = ek_data_loader_with(options);
    assert_made(loader);
    return loader;
}

/* What any batch has, with 0 samples. */
static void assert_empty(const ek_batch *batch)
{
    ck_assert_int_eq(batch->count, 0);
    ck_assert_int_eq(ek_value_length(batch->data), 2);
    ek_tensor *index = ek_value_tensor(batch->input), *draws = ek_value_tensor(batch->target);
    assert_made(index);
    assert_made(draws);
    const ek_shape of_index = ek_tensor_shape(index), of_draws = ek_tensor_shape(draws);
    ck_assert_int_eq(of_index.ndim, 1);
    ck_assert_int_eq(of_index.dims[0], 0);
    ck_assert_int_eq(ek_tensor_dtype(index), EK_I64);
    ck_assert_int_eq(of_draws.ndim, 2);
    ck_assert_int_eq(of_draws.dims[0], 0);
    ck_assert_int_eq(of_draws.dims[1], NOISY_DRAWS);
    ck_assert_int_eq(ek_tensor_dtype(draws), EK_F32);
}

/* A pass: returns its batches, and counts those that are empty, which must be the last. */
static int64_t give_pass(ek_loader *loader, int *seen, int64_t *empty)
{
    ek_batch batch;
    int64_t given = 0;
    int rc;
    *empty = 0;
    while ((rc = ek_loader_next(loader, &batch)) > 0) {
        ck_assert_int_eq(batch.number, given++);
        if (batch.count == 0) {
            assert_empty(&batch);
            ++*empty;
        } else {
            ck_assert_int_eq(*empty, 0);
        }
        for (int64_t i = 0; i < batch.count; i++)
            seen[batch.indices[i]]++;
    }
    assert_ok(rc);
    return given;
}

static void assert_even(const job *j)
{
    int64_t most = 0, given[8], own[8];
    int seen[2][64] = {{0}};
    for (int rank = 0; rank < j->ranks; rank++) {
        ek_loader *loader = loader_of(j, rank);
        for (int pass = 0; pass < 2; pass++) {
            int64_t empty;
            given[rank] = give_pass(loader, seen[pass], &empty);
            own[rank] = given[rank] - empty;
            ck_assert_int_eq(ek_loader_length(loader), given[rank]);
        }
        most = own[rank] > most ? own[rank] : most;
        ek_loader_free(loader);
    }
    for (int rank = 0; rank < j->ranks; rank++)
        ck_assert_int_eq(given[rank], j->empty ? most : own[rank]);
    for (int64_t i = 0; i < j->count && !j->drop_last; i++)
        ck_assert(seen[0][i] == 1 && seen[1][i] == 1);
}

TEST_LOOP(all_ranks_give_as_many_batches, 0, 8)
{
    job j = {.drop_last = _i & 1, .batches = _i & 2, .empty = !(_i & 4)};
    for (j.count = 0; j.count < 12; j.count++)
        for (j.ranks = 1; j.ranks < 5; j.ranks++)
            for (j.batch_size = 1; j.batch_size < 4; j.batch_size++)
                assert_even(&j);
}

TEST_LOOP(workers_give_them_too, 0, 4)
{
    const job j = {.count = 13,
                   .batch_size = 2,
                   .ranks = 3,
                   .workers = 1 + _i / 2,
                   .seeding = _i % 2 ? EK_SEED_WORKER : EK_SEED_BATCH,
                   .empty = true};
    assert_even(&j);
}

/* ---- when ---- */

static int64_t batches_of(ek_loader_options options)
{
    options.dataset = &noisy_new(3)->dataset;
    ek_loader *loader = ek_data_loader_with(options);
    assert_made(loader);
    int64_t length = ek_loader_length(loader);
    ek_loader_free(loader);
    return length;
}

TEST(they_are_given_by_default)
{
    const ek_world_place before = ek_world;
    for (int several = 0; several < 2; several++) {
        ek_world.size = 1 + several;
        ek_world.rank = several;
        /* The second rank's share. */
        ek_sampler *shares[6];
        for (int i = 0; i < 6; i++)
            shares[i] = ek_distributed_sampler(3, 2, 1, .padding = false);
        ck_assert_int_eq(batches_of(EK_OPTIONS(ek_loader_options, .sampler = shares[0])), 2);
        ck_assert_int_eq(batches_of(EK_OPTIONS(ek_loader_options, .sampler = shares[1],
                                               .empty_batches = true)),
                         2);
        ck_assert_int_eq(batches_of(EK_OPTIONS(ek_loader_options, .sampler = shares[2],
                                               .empty_batches = false)),
                         1);
        ck_assert_int_eq(batches_of(
                             EK_OPTIONS(ek_loader_options,
                                        .batch_sampler = ek_batch_sampler(shares[3], 1, false))),
                         2);
        ck_assert_int_eq(batches_of(
                             EK_OPTIONS(ek_loader_options, .sampler = shares[4], .batch_size = 0)),
                         1);
        ck_assert_int_eq(batches_of(
                             EK_OPTIONS(ek_loader_options, .sampler = shares[5], .batch_size = 2)),
                         1);
        /* Nobody's share is longer. */
        ck_assert_int_eq(batches_of(EK_OPTIONS(ek_loader_options, .empty_batches = true)), 3);
        ck_assert_int_eq(batches_of(EK_OPTIONS(ek_loader_options,
                                               .sampler = ek_distributed_sampler(3, 2, 1))),
                         2);
    }
    ek_world = before;
}

/* ---- what they are made of ---- */

/* Reading a sample for its shapes leaves no trace in the default generator. */
TEST_LOOP(an_empty_batch_draws_for_itself, 0, 2)
{
    const job j = {.count = 3,
                   .batch_size = 2,
                   .ranks = 4,
                   .seeding = _i ? EK_SEED_WORKER : EK_SEED_BATCH,
                   .empty = true};
    uint8_t states[2][EK_GENERATOR_STATE_BYTES];
    for (int without = 0; without < 2; without++) {
        job one = j;
        one.empty = without ? false : true;
        ek_loader *loader = loader_of(&one, 3);
        int seen[3] = {0};
        int64_t empty;
        ek_manual_seed(3);
        ck_assert_int_eq(give_pass(loader, seen, &empty), !without);
        ck_assert_int_eq(empty, !without);
        assert_ok(ek_generator_get_state(NULL, states[without], EK_GENERATOR_STATE_BYTES));
        ek_loader_free(loader);
    }
    ck_assert_mem_eq(states[0], states[1], EK_GENERATOR_STATE_BYTES);
}

static int64_t collated[4];
static int collations;

static ek_value collate_counting(const ek_value *samples, int64_t count, void *user)
{
    collated[collations++ % 4] = count;
    ek_value both = ek_collate(samples, count, ek_cpu());
    return EK_LIST(ek_value_at(both, 1), ek_from_data(&(double){7}, ek_scalar_shape(), EK_F64),
                   ek_value_of_int(count));
}

TEST(a_collate_function_makes_them_of_one_sample)
{
    ek_loader *loader = ek_data_loader(&noisy_new(3)->dataset,
                                       .sampler = ek_distributed_sampler(3, 2, 1, .padding = false),
                                       .collate = collate_counting, .empty_batches = true);
    ek_batch batch;
    double seven;
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    ck_assert_int_eq(collations, 2);
    ck_assert_int_eq(collated[1], 1);
    ck_assert_int_eq(batch.count, 0);
    const ek_shape shape = ek_tensor_shape(ek_value_tensor(batch.input));
    ck_assert(shape.ndim == 2 && shape.dims[0] == 0 && shape.dims[1] == NOISY_DRAWS);
    assert_ok(ek_item(ek_value_tensor(batch.target), &seven)); /* it has no rows to lose */
    ck_assert(seven == 7);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
    ek_loader_free(loader);
}

static int sizes_are_never_asked(int64_t batch, int64_t *sizes, void *user)
{
    ck_assert_int_gt(batch, 0);
    sizes[1] = batch;
    return 0;
}

/* Cases: workers; whether a function gives the sizes. */
TEST_LOOP(the_first_device_has_an_empty_part, 0, 4)
{
    ek_loader *loader =
        ek_data_loader(&noisy_new(5)->dataset, .batch_size = 2, .workers = _i % 2 * 2,
                       .sampler = ek_distributed_sampler(5, 4, 1, .padding = false),
                       .device_ids = EK_DEVICES(ek_host(2), ek_host(0)), .empty_batches = true,
                       .sizes = _i < 2 ? NULL : sizes_are_never_asked);
    ek_batch batch;
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    ck_assert_int_eq(batch.count, 1);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
    ek_loader_free(loader);
    loader = ek_data_loader(&noisy_new(3)->dataset, .batch_size = 2, .workers = _i % 2 * 2,
                            .sampler = ek_distributed_sampler(3, 4, 3, .padding = false),
                            .device_ids = EK_DEVICES(ek_host(2), ek_host(0)), .empty_batches = true,
                            .sizes = _i < 2 ? NULL : sizes_are_never_asked);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    ck_assert_int_eq(batch.count, 0);
    ck_assert(batch.data.per_device && batch.input.per_device && batch.target.per_device);
    ck_assert_int_eq(ek_value_length(batch.input), 1);
    ek_tensor *input = ek_value_tensor(ek_value_at(batch.input, 0));
    ek_tensor *target = ek_value_tensor(ek_value_at(batch.target, 0));
    assert_on(input, ek_host(2));
    assert_on(target, ek_host(2));
    ck_assert_int_eq(ek_tensor_count(input), 0);
    ck_assert_int_eq(ek_tensor_shape(target).dims[1], NOISY_DRAWS);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
    ek_loader_free(loader);
}

/* ---- states ---- */

/* Another loader goes on after any number of batches, empty ones too. Rank 3 of 4 has a batch of
 * one sample fewer than rank 0; with 3 samples it has none. */
TEST_LOOP(a_state_goes_on_with_empty_batches, 0, 12)
{
    const job j = {.count = _i / 4 == 0   ? 3
                            : _i / 4 == 1 ? 9
                                          : 13,
                   .batch_size = 1,
                   .ranks = 4,
                   .workers = _i % 2 * 2,
                   .batches = _i & 2,
                   .empty = true};
    static record whole, pieces;
    ek_manual_seed(5);
    ek_loader *loader = loader_of(&j, 3);
    const int64_t length = ek_loader_length(loader);
    memset(&whole, 0, sizeof whole);
    ck_assert_int_eq(record_pass(&whole, loader), length);
    ck_assert_int_eq(length, (j.count + 3) / 4);
    ek_loader_free(loader);
    for (int64_t position = 1; position <= length; position++) {
        ek_batch batch;
        memset(&pieces, 0, sizeof pieces);
        ek_manual_seed(5);
        loader = loader_of(&j, 3);
        for (int64_t b = 0; b < position; b++) {
            ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
            record_batch(&pieces, &batch);
        }
        ek_value state = ek_loader_state(loader);
        ek_loader *other = loader_of(&j, 3);
        assert_ok(ek_loader_load_state(other, state));
        ek_loader_free(loader);
        ck_assert_int_eq(record_pass(&pieces, other), length - position);
        assert_same(&whole, &pieces);
        ek_loader_free(other);
    }
}
