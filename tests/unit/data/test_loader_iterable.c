/* test_loader_iterable.c: loaders of data sets without a length: workers, transforms, ranks,
 * states, failures. */
#include "core/world.h"
#include "counter.h"
#include "loader_setup.h"

FIXTURE(setup_devices, all_is_given_back)

typedef struct pass {
    int64_t numbers[300], ends[300];
    float draws[300][2];
    int64_t count, batches, empty;
} pass;

static void pass_add(pass *into, const ek_batch *batch)
{
    ek_tensor *numbers = ek_value_tensor(batch->input), *draws = ek_value_tensor(batch->target);
    ck_assert_ptr_null(batch->indices);
    ck_assert_int_eq(ek_tensor_size(numbers, 0), batch->count);
    ck_assert_int_eq(ek_tensor_size(draws, 0), batch->count);
    ck_assert_int_eq(ek_tensor_size(draws, 1), 2);
    ck_assert_int_eq(batch->number, into->batches);
    ek_to_data(numbers, into->numbers + into->count, (size_t)batch->count * 8);
    ek_to_data(draws, into->draws + into->count, (size_t)batch->count * 8);
    into->count += batch->count;
    into->empty += batch->count == 0;
    into->ends[into->batches++] = into->count;
}

static void pass_read(pass *into, ek_loader *loader, int64_t most)
{
    ek_batch batch;
    int rc = 1;
    while (into->batches < most && (rc = ek_loader_next(loader, &batch)) > 0)
        pass_add(into, &batch);
    assert_ok(rc);
}

static void assert_same_pass(const pass *a, const pass *b)
{
    ck_assert_int_eq(a->count, b->count);
    ck_assert_int_eq(a->batches, b->batches);
    ck_assert_mem_eq(a->numbers, b->numbers, (size_t)a->count * sizeof *a->numbers);
    ck_assert_mem_eq(a->ends, b->ends, (size_t)a->batches * sizeof *a->ends);
    ck_assert_mem_eq(a->draws, b->draws, (size_t)a->count * sizeof *a->draws);
}

/* Batches are the same for any number of workers, pass after pass. */
TEST(loaders)
{
    static const int64_t counts[] = {0, 1, 7, 8, 9, 40, 101};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int drop = 0; drop < 2; drop++)
            for (int passes = 0; passes < 2; passes++) {
                pass expected = {.count = 0};
                for (int workers = 0; workers < 5; workers += 2) {
                    pass got = {.count = 0};
                    ek_manual_seed(9);
                    ek_loader *loader =
                        ek_data_loader(ek_shuffled(counter_new(counts[c]), 5), .batch_size = 8,
                                       .workers = workers, .drop_last = drop);
                    assert_made(loader);
                    for (int p = 0; p <= passes; p++) {
                        got = (pass){.count = 0};
                        pass_read(&got, loader, INT64_MAX);
                    }
                    ek_loader_free(loader);
                    ck_assert_int_eq(got.count, drop ? counts[c] / 8 * 8 : counts[c]);
                    ck_assert_int_eq(got.batches, drop ? counts[c] / 8 : (counts[c] + 7) / 8);
                    if (workers)
                        assert_same_pass(&got, &expected);
                    else
                        expected = got;
                }
            }
    ck_assert_int_eq(open_cursors, 0);
}

/* Transforms run after the turn, and draw from the batch's generator in order. */
TEST(transformed)
{
    pass expected = {.count = 0};
    for (int workers = 0; workers < 4; workers += 3) {
        ek_manual_seed(2);
        pass got = {.count = 0};
        ek_loader *loader =
            ek_data_loader(ek_transformed(counter_new(33), 1,
                                          ek_normalize((double[]){0.5}, (double[]){2}, 1)),
                           .batch_size = 4, .workers = workers);
        pass_read(&got, loader, INT64_MAX);
        ek_loader_free(loader);
        for (int i = 0; i < 33; i++)
            ck_assert(got.numbers[i] == i && got.draws[i][0] >= -0.25 && got.draws[i][1] <= 0.25);
        if (workers)
            assert_same_pass(&got, &expected);
        expected = got;
    }
}

/* Every rank reads its share, each sample once; with empty batches equally many batches. */
TEST(ranks)
{
    const ek_world_place before = ek_world;
    for (int64_t count = 0; count < 14; count++)
        for (int ranks = 1; ranks <= 5; ranks += 2)
            for (int drop = 0; drop < 2; drop++)
                for (int even = 0; even < 2; even++) {
                    int64_t seen[14] = {0}, batches = -1, total = 0;
                    for (int r = 0; r < ranks; r++) {
                        pass got = {.count = 0};
                        ek_world.rank = r;
                        ek_world.size = ranks;
                        ek_loader *loader =
                            ek_data_loader(counter_new(count), .batch_size = 2, .workers = r % 3,
                                           .drop_last = drop, .empty_batches = even ? true : false);
                        assert_made(loader);
                        pass_read(&got, loader, INT64_MAX);
                        ek_loader_free(loader);
                        ck_assert(batches < 0 || !even || got.batches == batches);
                        ck_assert(even || got.empty == 0);
                        batches = got.batches;
                        for (int i = 0; i < got.count; i++) {
                            ck_assert_int_eq(got.numbers[i], i * ranks + r);
                            seen[got.numbers[i]]++;
                        }
                        total += got.count;
                    }
                    ck_assert(drop || total == count);
                    for (int64_t i = 0; i < count; i++)
                        ck_assert(seen[i] == 1 || (drop && seen[i] == 0));
                }
    ek_world = before;
    ck_assert_int_eq(open_cursors, 0);
}

/* A pass goes on where it was saved, also with other workers and on several ranks. */
TEST(states)
{
    const ek_world_place before = ek_world;
    for (int ranks = 1; ranks < 4; ranks += 2)
        for (int given = 0; given < 7; given++)
            for (int workers = 0; workers < 4; workers += 3) {
                pass whole = {.count = 0}, next = {.count = 0};
                pass parts = {.count = 0}, after = {.count = 0};
                ek_world.rank = ranks - 1;
                ek_world.size = ranks;
                ek_loader *first = ek_data_loader(ek_shuffled(counter_new(61), 4), .batch_size = 3,
                                                  .workers = workers);
                ek_manual_seed(8);
                pass_read(&parts, first, given);
                ek_value state = ek_loader_state(first);
                ck_assert_int_eq(state.kind, EK_VALUE_DICT);
                ek_loader *second = ek_data_loader(ek_shuffled(counter_new(61), 4), .batch_size = 3,
                                                   .workers = 3 - workers);
                assert_ok(ek_loader_load_state(second, state));
                ek_manual_seed(8);
                if (given) /* the base seed was drawn before */
                    ek_random_u64(NULL);
                pass_read(&parts, second, INT64_MAX);
                pass_read(&after, second, INT64_MAX);
                ek_manual_seed(8);
                ek_loader *third = ek_data_loader(ek_shuffled(counter_new(61), 4), .batch_size = 3);
                pass_read(&whole, third, INT64_MAX);
                pass_read(&next, third, INT64_MAX);
                assert_same_pass(&parts, &whole);
                assert_same_pass(&after, &next);
                ck_assert(memcmp(whole.numbers, next.numbers, 8 * 10) != 0);
                ek_loader_free(first);
                ek_loader_free(second);
                ek_loader_free(third);
            }
    ek_world.size = 1;
    ek_world.rank = 0;
    ek_world = before;
}

static ek_value collate_sum(const ek_value *samples, int64_t count, void *user)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += number_at(samples[i], 0);
    return ek_value_of_int(sum);
}

/* Devices, collate functions, single samples, and what happens in the middle of a pass. */
TEST(loaders_options)
{
    ek_batch batch;
    ek_loader *loader =
        ek_data_loader(counter_new(10), .batch_size = 4, .workers = 2,
                       .device_ids = EK_DEVICES(ek_host(0), ek_host(1), ek_host(2)));
    static const int parts[] = {2, 2, 2};
    for (int b = 0; b < 3; b++) {
        ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
        ck_assert_int_eq(batch.count, b < 2 ? 4 : 2);
        ck_assert_int_eq(ek_value_length(batch.input), parts[b]);
    }
    ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    assert_ok(ek_loader_reset(loader));
    ck_assert_int_eq(ek_loader_length(loader), EK_E_INVALID);
    assert_error(EK_E_INVALID, "counter has no length");
    assert_ok(ek_loader_set_epoch(loader, 7));
    ck_assert_ptr_null(ek_loader_sampler(loader));
    ek_loader_free(loader);

    loader = ek_data_loader(counter_new(10), .batch_size = 4, .collate = collate_sum);
    for (int b = 0; b < 3; b++) {
        ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
        ck_assert_int_eq(batch.data.as.integer, b == 0 ? 6 : b == 1 ? 22 : 17);
    }
    ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
    ek_loader_free(loader);

    loader = ek_data_loader(counter_new(3), .batch_size = 0, .workers = 1);
    for (int b = 0; b < 3; b++) {
        ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
        ck_assert_int_eq(number_at(batch.data, 0), b);
    }
    ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
    ek_loader_free(loader);
    ck_assert_int_eq(open_cursors, 0);
}

/* An error loses its batch; the next one begins behind it. */
TEST(loaders_fail)
{
    for (int workers = 0; workers < 4; workers += 3) {
        ek_dataset *set = counter_new(9);
        ((counter *)set)->bad = 4;
        ek_loader *loader = ek_data_loader(set, .batch_size = 3, .workers = workers);
        ek_batch batch;
        ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
        ck_assert_int_eq(ek_loader_next(loader, &batch), EK_E_IO);
        assert_error(EK_E_IO, "counter: sample 4: line 4 is bad");
        int rc = ek_loader_next(loader, &batch);
        ck_assert_msg(rc == 1, "%s", ek_error_message());
        ck_assert_int_eq(number_at(batch.data, 0), 5);
        ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
        ck_assert_int_eq(batch.count, 1);
        ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
        ek_loader_free(loader);
    }
    ek_loader *loader = ek_data_loader(ek_text_lines("/nowhere"), .workers = 2);
    ek_batch batch;
    ck_assert_int_eq(ek_loader_next(loader, &batch), EK_E_IO);
    assert_error(EK_E_IO, "text_lines: cannot open /nowhere");
    ek_loader_free(loader);
    ck_assert_ptr_null(ek_data_loader(counter_new(3), .shuffle = true));
    assert_error(EK_E_INVALID, "counter has no samples by index, which shuffle would choose");
    ck_assert_ptr_null(ek_data_loader(counter_new(3), .sampler = ek_sequential_sampler(3)));
    assert_error(EK_E_INVALID, "which a sampler would choose; ek_shuffled");
    ck_assert_ptr_null(ek_subset(counter_new(3), (int64_t[]){0}, 1));
    assert_error(EK_E_INVALID, "counter has no length");
}

/* Fails for one batch: with a status, or with sizes that cannot be. */
typedef struct failing_sizes {
    int calls, bad;
    bool returns;
} failing_sizes;

static int sizes_that_fail(int64_t count, int64_t *sizes, void *user)
{
    failing_sizes *self = user;
    sizes[0] = count / 2;
    sizes[1] = count - count / 2;
    if (self->calls++ != self->bad)
        return 0;
    sizes[0] = -5;
    return self->returns ? ek_error(EK_E_USER, "no sizes today") : 0;
}

/* A batch whose sizes fail is lost, and nobody waits for its turn. A state saved behind it goes on
 * behind it. */
TEST(loaders_sizes_fail)
{
    for (int workers = 0; workers < 4; workers++)
        for (int bad = 0; bad < 7; bad++)
            for (int end = 18; end < 22; end++) {
                failing_sizes sizes = {.bad = bad, .returns = end % 2};
                ek_batch batch;
                ek_value state = ek_value_none();
                ek_loader *loader =
                    ek_data_loader(counter_new(end), .batch_size = 4, .workers = workers,
                                   .drop_last = true, .sizes = sizes_that_fail,
                                   .sizes_user = &sizes,
                                   .device_ids = EK_DEVICES(ek_host(0), ek_host(1)));
                assert_made(loader);
                for (int b = 0; b < end / 4; b++) {
                    int rc = ek_loader_next(loader, &batch);
                    if (b == bad) {
                        ck_assert_int_eq(rc, sizes.returns ? EK_E_USER : EK_E_INVALID);
                        assert_error(rc, sizes.returns ? "no sizes today" : "sizes gave -5");
                        state = ek_loader_state(loader);
                        continue;
                    }
                    ck_assert_int_eq(rc, 1);
                    ck_assert_int_eq(number_at(ek_value_at(batch.data, 0), 0), 4 * b);
                }
                ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
                if (bad < end / 4) {
                    assert_ok(ek_loader_load_state(loader, state));
                    ck_assert_int_eq(ek_loader_next(loader, &batch), bad + 1 < end / 4);
                    if (bad + 1 < end / 4)
                        ck_assert_int_eq(number_at(ek_value_at(batch.data, 0), 0), 4 * (bad + 1));
                }
                ek_loader_free(loader);
            }
    ck_assert_int_eq(open_cursors, 0);
}

/* A batch size that means "all" takes memory for the samples that there are. */
TEST(loaders_whole)
{
    static const int64_t sizes[] = {INT64_C(1) << 48, INT64_C(1) << 60, INT64_MAX};
    for (int workers = 0; workers < 3; workers += 2)
        for (int s = 0; s < 3; s++) {
            ek_loader *loader =
                ek_data_loader(counter_new(290 + s), .batch_size = sizes[s], .workers = workers);
            pass got = {.count = 0};
            assert_made(loader);
            pass_read(&got, loader, INT64_MAX);
            ck_assert_int_eq(got.batches, 1);
            ck_assert_int_eq(got.count, 290 + s);
            for (int i = 0; i < got.count; i++)
                ck_assert_int_eq(got.numbers[i], i);
            ek_loader_free(loader);
        }
}

/* A loader is freed, or reset, while workers wait for their turn. */
TEST(loaders_are_left)
{
    for (int i = 0; i < 30; i++) {
        ek_loader *loader =
            ek_data_loader(counter_new(1000 + i), .batch_size = 1 + i, .workers = 4, .prefetch = 3);
        ek_batch batch;
        for (int b = 0; b < i % 5; b++)
            ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
        if (i % 2) {
            assert_ok(ek_loader_reset(loader));
            ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
            ck_assert_int_eq(number_at(batch.data, 0), 0);
        }
        ek_loader_free(loader);
    }
    ck_assert_int_eq(open_cursors, 0);
}
