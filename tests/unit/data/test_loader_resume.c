/* test_loader_resume.c: passes that continue on other numbers of ranks, with other batch sizes. */
#include "core/world.h"
#include "counter.h"
#include "loader_setup.h"

FIXTURE(setup_devices, all_is_given_back)

enum { COUNT = 100, MOST_RANKS = 4 };

/* How samples are given: by so many ranks, `batch` samples a rank and step. */
typedef struct division {
    int ranks, batch;
} division;

static bool by_batch_sampler;

static ek_loader *loader_of(division d, int rank, bool contiguous)
{
    ek_sampler *sampler = ek_distributed_sampler(COUNT, d.ranks, rank, .automatic_epochs = true,
                                                 .contiguous = contiguous, .padding = false);
    ek_loader_options options =
        EK_OPTIONS(ek_loader_options, .dataset = &noisy_new(COUNT)->dataset);
    if (by_batch_sampler)
        options.batch_sampler = ek_batch_sampler(sampler, d.batch, false);
    else
        options.sampler = sampler;
    if (!by_batch_sampler)
        options.batch_size = d.batch;
    ek_loader *loader = ek_data_loader_with(options);
    assert_made(loader);
    return loader;
}

/* The samples of all ranks in the order that all shares were taken from. */
typedef struct order {
    int64_t samples[4 * COUNT];
    int count;
} order;

/* Gives `steps` steps of all ranks, at most to the end of the pass, from a state (none: from the
 * first epoch). Returns the state of one of the ranks. */
static ek_value give(division d, ek_value state, int steps, int saver, order *into)
{
    ek_loader *loaders[MOST_RANKS];
    bool more = true;
    for (int r = 0; r < d.ranks; r++) {
        loaders[r] = loader_of(d, r, false);
        if (state.kind != EK_VALUE_NONE)
            assert_ok(ek_loader_load_state(loaders[r], state));
    }
    for (int step = 0; step < steps && more; step++) {
        int begin = into->count;
        for (int r = 0; r < d.ranks; r++) {
            ek_batch batch;
            int rc = ek_loader_next(loaders[r], &batch);
            assert_ok(rc);
            ck_assert(r == 0 || (rc > 0) == more); /* empty batches make ranks end together */
            more = rc > 0;
            if (batch.count)
                ck_assert_int_eq(batch.number, begin % COUNT / (d.ranks * d.batch));
            for (int i = 0; i < batch.count; i++)
                into->samples[begin + i * d.ranks + r] = batch.indices[i];
            into->count += (int)batch.count;
        }
    }
    state = ek_loader_state(loaders[saver < d.ranks ? saver : 0]);
    ck_assert_int_eq(state.kind, EK_VALUE_DICT);
    for (int r = 0; r < d.ranks; r++)
        ek_loader_free(loaders[r]);
    return state;
}

/* Each case stops after some steps of one division and continues with another. The order is that of
 * one rank, in this pass and in the next. */
TEST_LOOP(the_order_of_samples_stays, 0, 8)
{
    static const struct {
        division divisions[3];
        int steps[2];
    } cases[] = {{{{1, 12}, {3, 4}, {2, 6}}, {2, 3}},  {{{3, 4}, {1, 12}, {4, 3}}, {1, 4}},
                 {{{2, 6}, {2, 3}, {3, 2}}, {3, 4}},   /* another batch of all ranks */
                 {{{1, 12}, {3, 4}, {1, 12}}, {8, 1}}, /* one whole step is left */
                 {{{1, 12}, {2, 6}, {3, 4}}, {9, 0}},  /* the pass has no samples left */
                 {{{3, 4}, {3, 4}, {2, 6}}, {2, 0}},   /* nothing given in between */
                 {{{2, 6}, {3, 4}, {1, 12}}, {2, 3}},  {{{1, 1}, {4, 1}, {2, 1}}, {8, 2}}};
    order straight = {.count = 0};
    const division *d = cases[_i].divisions;
    by_batch_sampler = _i == 6;
    ek_value whole = give((division){1, COUNT}, ek_value_none(), 2, 0, &straight);
    give((division){1, COUNT}, whole, 2, 0, &straight);
    for (int i = 0; i < 2 * MOST_RANKS; i++) {
        order parts = {.count = 0};
        const int saver = i / 2, passes = i % 2;
        ek_value state = give(d[0], ek_value_none(), passes ? COUNT : 0, saver, &parts);
        state = give(d[0], state, cases[_i].steps[0], saver, &parts);
        state = give(d[1], state, cases[_i].steps[1], saver, &parts);
        give(d[2], state, COUNT, saver, &parts);
        ck_assert_int_eq(parts.count, (1 + passes) * COUNT);
        ck_assert_mem_eq(parts.samples, straight.samples,
                         (size_t)parts.count * sizeof *parts.samples);
    }
}

TEST(a_position_that_does_not_fit_is_refused_with_its_reason)
{
    order given[3] = {{.count = 0}};
    ek_value state = give((division){2, 6}, ek_value_none(), 3, 0, &given[0]);
    ek_loader *loader = loader_of((division){3, 5}, 1, false);
    assert_refused(
        ek_loader_load_state(loader, state), EK_E_INVALID,
        "at sample 36 of all ranks, which is no whole number of batches of 5 on 3 ranks");
    ek_batch batch;
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1); /* nothing has changed */
    ck_assert_int_eq(batch.number, 0);
    ek_loader_free(loader);
    by_batch_sampler = true;
    loader = loader_of((division){2, 4}, 1, false);
    state = give((division){2, 3}, ek_value_none(), 2, 0, &given[1]);
    assert_refused(ek_loader_load_state(loader, state), EK_E_INVALID,
                   "at sample 6 of a rank, where no batch of this loader's batch_sampler begins");
    ek_loader_free(loader);
    by_batch_sampler = false;
    loader = loader_of((division){3, 4}, 0, true);
    assert_refused(ek_loader_load_state(loader,
                                        give((division){2, 6}, ek_value_none(), 2, 0, &given[2])),
                   EK_E_INVALID, "contiguous shares resume on as many only");
    ek_loader_free(loader);
    loader = ek_data_loader(&noisy_new(COUNT)->dataset, .batch_size = 2, .workers = 2,
                            .seeding = EK_SEED_WORKER);
    ek_loader *other = ek_data_loader(&noisy_new(COUNT)->dataset, .batch_size = 1, .workers = 2,
                                      .seeding = EK_SEED_WORKER);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    assert_refused(ek_loader_load_state(other, ek_loader_state(loader)), EK_E_INVALID,
                   "EK_SEED_WORKER resume with these only");
    ek_loader_free(other);
    ek_loader_free(loader);
}

/* Without a rank in it, a state is one of the loading rank, as older versions wrote it. */
TEST(a_state_without_a_position_continues_on_its_rank)
{
    static const char *const newer[] = {"ranks", "rank", "position", "epoch"};
    order given = {.count = 0}, rest = {.count = 0};
    ek_value state = give((division){2, 6}, ek_value_none(), COUNT, 1, &rest), old;
    old = state = give((division){2, 6}, state, 3, 1, &given);
    for (int k = 0; k < 4; k++)
        old = with(old, newer[k], ek_value_none());
    ek_loader *loaders[2];
    for (int i = 0; i < 2; i++) {
        loaders[i] = loader_of((division){2, 6}, 1, false);
        assert_ok(ek_loader_load_state(loaders[i], i ? old : state));
    }
    ek_value later = ek_loader_state(loaders[1]);
    for (ek_batch batch, same; ek_loader_next(loaders[0], &batch) > 0;) {
        ck_assert_int_eq(ek_loader_next(loaders[1], &same), 1);
        ck_assert_int_eq(batch.count, same.count);
        if (batch.count)
            ck_assert_mem_eq(batch.indices, same.indices, (size_t)batch.count * sizeof(int64_t));
    }
    for (int i = 0; i < 2; i++)
        ek_loader_free(loaders[i]);
    give((division){3, 4}, later, COUNT, 0, &given); /* what it saves has all of them */
    state = give((division){1, COUNT}, ek_value_none(), 2, 0, &rest);
    give((division){1, COUNT}, state, 2, 0, &rest);
    ck_assert_int_eq(given.count, COUNT);
    ck_assert_mem_eq(given.samples, rest.samples + 2 * COUNT, sizeof(int64_t[COUNT]));
}

/* Samples in their own order, of a data set without a length. */
TEST(streams_continue_on_other_ranks_too)
{
    static const division divisions[] = {{1, 12}, {3, 4}, {2, 6}};
    const ek_world_place before = ek_world;
    int64_t expected = 0;
    ek_value state = ek_value_none();
    for (int i = 0; i < 3; i++) {
        const division d = divisions[i];
        int64_t begin = expected;
        for (int r = 0; r < d.ranks; r++) {
            ek_batch batch;
            ek_world.rank = r;
            ek_world.size = d.ranks;
            ek_loader *loader = ek_data_loader(counter_new(COUNT), .batch_size = d.batch);
            if (i > 0)
                assert_ok(ek_loader_load_state(loader, state));
            for (int step = 0; step < 2; step++) {
                int64_t numbers[12];
                ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
                ck_assert_int_eq(batch.count, d.batch);
                assert_ok(ek_to_data(ek_value_tensor(batch.input), numbers,
                                     (size_t)d.batch * sizeof *numbers));
                for (int k = 0; k < d.batch; k++)
                    ck_assert_int_eq(numbers[k], begin + 12 * step + k * d.ranks + r);
            }
            if (r == d.ranks - 1)
                state = ek_loader_state(loader);
            ek_loader_free(loader);
        }
        expected += 24;
    }
    ek_world.size = 5;
    ek_loader *loader = ek_data_loader(counter_new(COUNT), .batch_size = 2);
    assert_refused(ek_loader_load_state(loader, state), EK_E_INVALID, "at sample 72 of all ranks");
    ek_loader_free(loader);
    ek_world = before;
}
