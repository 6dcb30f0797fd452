/* test_loader_state.c: loaders go on where others were, to the bit, and refuse what cannot be. */
#include "loader_setup.h"

FIXTURE(setup_devices, all_is_given_back)

enum { COUNT = 11, PASSES = 3 };

/* ---- ways to make a loader; `generator` is the caller's if there is one ---- */

typedef ek_loader_options way(ek_generator *generator);

static ek_loader_options in_order(ek_generator *generator)
{
    (void)generator;
    return EK_OPTIONS(ek_loader_options, .batch_size = 4, .drop_last = true);
}

static ek_loader_options shuffled(ek_generator *generator)
{
    (void)generator;
    return EK_OPTIONS(ek_loader_options, .batch_size = 3, .shuffle = true);
}

static ek_loader_options with_generator(ek_generator *generator)
{
    return EK_OPTIONS(ek_loader_options, .batch_size = 4, .shuffle = true, .generator = generator);
}

static ek_loader_options seeded_by_generator(ek_generator *generator)
{
    return EK_OPTIONS(ek_loader_options, .batch_size = 6, .generator = generator);
}

static ek_loader_options by_sampler(ek_generator *generator)
{
    const double weights[COUNT] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    (void)generator;
    return EK_OPTIONS(ek_loader_options, .batch_size = 2,
                      .sampler = ek_weighted_random_sampler(weights, COUNT, 7, NULL));
}

static ek_loader_options by_epochs(ek_generator *generator)
{
    (void)generator;
    return EK_OPTIONS(ek_loader_options, .batch_size = 3,
                      .sampler = ek_distributed_sampler(COUNT, .num_replicas = 2,
                                                        .automatic_epochs = true));
}

static ek_loader_options by_batches(ek_generator *generator)
{
    return EK_OPTIONS(ek_loader_options,
                      .batch_sampler =
                          ek_batch_sampler(ek_random_sampler(COUNT, .replacement = true,
                                                             .generator = generator),
                                           4, false));
}

static ek_loader_options one_by_one(ek_generator *generator)
{
    (void)generator;
    return EK_OPTIONS(ek_loader_options, .batch_size = 0, .shuffle = true);
}

static way *const ways[] = {in_order,  shuffled,   with_generator, by_sampler,
                            by_epochs, by_batches, one_by_one,     seeded_by_generator};
enum { WAYS = sizeof ways / sizeof *ways };

typedef struct made {
    ek_loader *loader;
    ek_generator *generator;
} made;

static made make(way *how, ek_seeding seeding, int workers)
{
    made m = {.generator = ek_generator_new(77)};
    ek_loader_options options = how(m.generator);
    options.dataset = &noisy_new(COUNT)->dataset;
    options.seeding = seeding;
    options.workers = workers;
    m.loader = ek_data_loader_with(options);
    assert_made(m.loader);
    return m;
}

static void unmake(made *m)
{
    ek_loader_free(m->loader);
    ek_generator_free(m->generator);
}

/* ---- runs ---- */

/* One call; a pass that ends is noted as an empty batch. False at the end of the last pass. */
static bool step(record *into, ek_loader *loader, int *passes)
{
    ek_batch batch;
    int rc = ek_loader_next(loader, &batch);
    assert_ok(rc);
    if (rc > 0) {
        record_batch(into, &batch);
        return true;
    }
    into->numbers[into->batches] = -1;
    into->ends[into->batches++] = into->samples;
    return ++*passes < PASSES;
}

/* What is stored, of the default generator too, as a process that ends would have it. */
typedef struct stored {
    ek_value loader;
    uint8_t random[EK_GENERATOR_STATE_BYTES];
} stored;

static void store(stored *into, ek_loader *loader)
{
    into->loader = ek_loader_state(loader);
    ck_assert_int_eq(into->loader.kind, EK_VALUE_DICT);
    assert_ok(ek_generator_get_state(NULL, into->random, sizeof into->random));
}

static void restore(const stored *from, ek_loader *loader)
{
    ek_manual_seed(1234);
    assert_ok(ek_generator_set_state(NULL, from->random, sizeof from->random));
    assert_ok(ek_loader_load_state(loader, from->loader));
}

/* Interrupted after `position` calls: another loader goes on, and others again after each `often`
 * calls. */
static void run(record *into, way *how, ek_seeding seeding, const int *workers, int position,
                int often)
{
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(5);
    made m = make(how, seeding, workers[0]);
    int passes = 0;
    memset(into, 0, sizeof *into);
    for (int call = 1, more = true; more; call++) {
        if (call - 1 == position || (often && call > position && (call - position) % often == 0)) {
            stored state;
            store(&state, m.loader);
            unmake(&m);
            m = make(how, seeding, workers[call % 2]);
            restore(&state, m.loader);
        }
        more = step(into, m.loader, &passes);
    }
    unmake(&m);
    ek_scope_end(&scope);
}

/* All ways, and positions in the first two passes. */
static void assert_goes_on(way *how, ek_seeding seeding, const int *workers)
{
    static record whole, pieces;
    run(&whole, how, seeding, workers, -1, 0);
    int positions = whole.batches * 2 / PASSES;
    for (int position = 0; position <= positions; position++) {
        run(&pieces, how, seeding, workers, position, 0);
        assert_same(&whole, &pieces);
    }
    run(&pieces, how, seeding, workers, 0, 1);
    assert_same(&whole, &pieces);
    run(&pieces, how, seeding, workers, 1, 2);
    assert_same(&whole, &pieces);
}

TEST_LOOP(another_loader_goes_on_with_any_number_of_workers, 0, 4 * WAYS)
{
    static const int workers[][2] = {{0, 0}, {0, 2}, {2, 0}, {3, 1}};
    assert_goes_on(ways[_i % WAYS], EK_SEED_BATCH, workers[_i / WAYS]);
}

TEST_LOOP(workers_go_on_with_their_generators, 0, 3 * WAYS)
{
    static const int workers[][2] = {{0, 0}, {1, 1}, {3, 3}};
    assert_goes_on(ways[_i % WAYS], EK_SEED_WORKER, workers[_i / WAYS]);
}

/* Wherever it was, and whatever it had made ahead. */
TEST(a_loader_in_the_midst_of_a_pass_goes_elsewhere)
{
    static record whole, seen, skipped;
    int passes = 0;
    ek_manual_seed(1);
    made m = make(shuffled, EK_SEED_BATCH, 2);
    step(&whole, m.loader, &passes);
    stored state;
    store(&state, m.loader);
    const record first = whole;
    record_pass(&whole, m.loader);
    for (int begun = 0; begun < 4; begun++) {
        made other = make(shuffled, EK_SEED_BATCH, 2);
        for (int b = 0; b < begun; b++)
            step(&skipped, other.loader, &passes);
        restore(&state, other.loader);
        seen = first;
        record_pass(&seen, other.loader);
        assert_same(&whole, &seen);
        unmake(&other);
    }
    unmake(&m);
}

/* A state of no pass has none. */
TEST(between_passes_a_state_is_small)
{
    made m = make(shuffled, EK_SEED_BATCH, 0), other = make(shuffled, EK_SEED_BATCH, 0);
    ek_value state = ek_loader_state(m.loader);
    ck_assert_int_eq(ek_value_get(state, "indices").kind, EK_VALUE_NONE);
    ek_batch batch;
    ck_assert_int_eq(ek_loader_next(other.loader, &batch), 1);
    assert_ok(ek_loader_load_state(other.loader, state));
    ck_assert_int_eq(ek_loader_next(other.loader, &batch), 1);
    ck_assert_int_eq(batch.number, 0);
    unmake(&m);
    unmake(&other);
}

/* ---- states that cannot be ---- */

static ek_value ints(const int64_t *values, int64_t count)
{
    return ek_value_of_tensor(ek_from_data(values, EK_SHAPE(count), EK_I64));
}

/* Refused, and the loader goes on as if nothing had happened. */
static void assert_state_refused(way *how, ek_seeding seeding, int workers, ek_value state,
                                 int status, const char *part)
{
    static record wanted, seen;
    memset(&wanted, 0, sizeof wanted);
    memset(&seen, 0, sizeof seen);
    for (int hostile = 0; hostile < 2; hostile++) {
        int passes = 0;
        record *into = hostile ? &seen : &wanted;
        ek_manual_seed(9);
        made m = make(how, seeding, workers);
        step(into, m.loader, &passes);
        if (hostile) {
            assert_refused(ek_loader_load_state(m.loader, state), status, part);
        }
        while (step(into, m.loader, &passes))
            continue;
        unmake(&m);
    }
    assert_same(&wanted, &seen);
}

static ek_value state_of(way *how, ek_seeding seeding, int workers)
{
    ek_batch batch;
    made m = make(how, seeding, workers);
    ck_assert_int_eq(ek_loader_next(m.loader, &batch), 1);
    ek_value state = ek_loader_state(m.loader);
    ck_assert_int_eq(state.kind, EK_VALUE_DICT);
    unmake(&m);
    return state;
}

TEST(a_key_that_lacks_or_is_something_else_is_refused)
{
    static const struct {
        const char *key;
        way *how;
        ek_seeding seeding;
    } keys[] = {
        {"samples", shuffled, EK_SEED_BATCH},   {"batch_size", shuffled, EK_SEED_BATCH},
        {"drop_last", shuffled, EK_SEED_BATCH}, {"seeding", shuffled, EK_SEED_BATCH},
        {"workers", shuffled, EK_SEED_BATCH},   {"begun", shuffled, EK_SEED_BATCH},
        {"sampler", shuffled, EK_SEED_BATCH},   {"given", shuffled, EK_SEED_BATCH},
        {"base_seed", shuffled, EK_SEED_BATCH}, {"indices", shuffled, EK_SEED_BATCH},
        {"ends", by_batches, EK_SEED_BATCH},    {"generator", with_generator, EK_SEED_BATCH},
        {"of_worker", shuffled, EK_SEED_WORKER}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        ek_value state = state_of(keys[i].how, keys[i].seeding, 2);
        const float other = 1;
        assert_state_refused(keys[i].how, keys[i].seeding, 2,
                             with(state, keys[i].key, ek_value_none()), EK_E_FORMAT, "load_state");
        assert_state_refused(keys[i].how, keys[i].seeding, 2,
                             with(state, keys[i].key, EK_VALUE(ek_from_data(&other, EK_SHAPE(1)))),
                             EK_E_FORMAT, "load_state");
    }
}

TEST(numbers_out_of_range_are_refused)
{
    static const struct {
        const char *key;
        int64_t value;
        int status;
        const char *part;
    } wrong[] = {{"samples", 12, EK_E_INVALID, "a data set of length 12; this one has 11"},
                 {"batch_size", 0, EK_E_INVALID, "0; this one has 3"},
                 {"batch_size", -1, EK_E_INVALID, "-1; this one has 3"},
                 {"drop_last", 1, EK_E_INVALID, "drop_last 1; this one has 0"},
                 {"seeding", 1, EK_E_INVALID, "1; this one has 0"},
                 {"workers", 2, EK_E_INVALID, "2; this one has 0"},
                 {"rank", 1, EK_E_FORMAT, "\"rank\" of the state is 1"},
                 {"ranks", 0, EK_E_FORMAT, "\"ranks\" of the state is 0"},
                 {"position", -1, EK_E_FORMAT, "\"position\" of the state is -1"},
                 {"position", INT64_MAX, EK_E_FORMAT, "\"position\" of the state is"},
                 {"begun", 2, EK_E_FORMAT, "\"begun\" of the state is 2"},
                 {"given", -1, EK_E_FORMAT, "\"given\" of the state is -1"},
                 {"given", INT64_MAX, EK_E_FORMAT, "\"given\" of the state is"},
                 {"base_seed", -5, EK_E_FORMAT, "\"base_seed\" of the state is -5"}};
    static const int64_t indices[][3] = {{0, 11, 1}, {0, 1, -1}, {INT64_MIN, 0, 0}};
    ek_value state = state_of(shuffled, EK_SEED_BATCH, 2);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_state_refused(shuffled, EK_SEED_BATCH, 2,
                             with(state, wrong[i].key, ek_value_of_int(wrong[i].value)),
                             wrong[i].status, wrong[i].part);
    for (int i = 0; i < 3; i++)
        assert_state_refused(shuffled, EK_SEED_BATCH, 2,
                             with(state, "indices", ints(indices[i], 3)), EK_E_FORMAT,
                             "\"indices\" of the state has ");
    /* Fewer than there were are a shorter pass. */
    made m = make(shuffled, EK_SEED_BATCH, 2);
    static record rest;
    assert_ok(ek_loader_load_state(m.loader, with(state, "indices", ints(indices[0], 1))));
    ck_assert_int_eq(record_pass(&rest, m.loader), 1);
    unmake(&m);
    assert_state_refused(shuffled, EK_SEED_BATCH, 2, ek_value_none(), EK_E_FORMAT,
                         "the state is none");
}

TEST(ends_that_do_not_rise_are_refused)
{
    static const int64_t ends[][3] = {{0, 4, 7}, {4, 4, 7}, {4, 3, 7},
                                      {4, 6, 8}, {4, 5, 6}, {-1, 4, 7}};
    ek_value state = state_of(by_batches, EK_SEED_BATCH, 0);
    ck_assert_int_eq(ek_tensor_count(ek_value_get(state, "indices").as.tensor), 7);
    ck_assert_int_eq(ek_tensor_count(ek_value_get(state, "ends").as.tensor), 2);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        assert_state_refused(by_batches, EK_SEED_BATCH, 0, with(state, "ends", ints(ends[i], 3)),
                             EK_E_FORMAT, "load_state");
}

TEST(states_of_other_loaders_are_refused)
{
    assert_state_refused(shuffled, EK_SEED_BATCH, 0, state_of(in_order, EK_SEED_BATCH, 0),
                         EK_E_INVALID, "drop_last");
    assert_state_refused(shuffled, EK_SEED_BATCH, 0, state_of(by_epochs, EK_SEED_BATCH, 0),
                         EK_E_FORMAT, "loader_load_state: sampler_load_state");
    assert_state_refused(shuffled, EK_SEED_WORKER, 3, state_of(shuffled, EK_SEED_WORKER, 2),
                         EK_E_INVALID, "workers (EK_SEED_WORKER) 2; this one has 3");
    assert_state_refused(shuffled, EK_SEED_WORKER, 2, state_of(shuffled, EK_SEED_BATCH, 2),
                         EK_E_INVALID, "seeding");
    ek_value state = state_of(with_generator, EK_SEED_BATCH, 0);
    made m = make(in_order, EK_SEED_BATCH, 0);
    ck_assert_int_lt(ek_loader_load_state(m.loader, with(state, "drop_last", ek_value_of_int(1))),
                     0);
    assert_error(EK_E_FORMAT, "this loader was made without one");
    unmake(&m);
    /* No bytes of a generator. */
    static const uint8_t zeros[2 * EK_GENERATOR_STATE_BYTES];
    ek_value bytes = EK_VALUE(ek_from_data(zeros, EK_SHAPE(EK_GENERATOR_STATE_BYTES), EK_U8));
    assert_state_refused(with_generator, EK_SEED_BATCH, 0, with(state, "generator", bytes),
                         EK_E_FORMAT, "loader_load_state: \"generator\"");
    bytes = EK_VALUE(ek_from_data(zeros, EK_SHAPE(2 * EK_GENERATOR_STATE_BYTES), EK_U8));
    assert_state_refused(shuffled, EK_SEED_WORKER, 2,
                         with(state_of(shuffled, EK_SEED_WORKER, 2), "of_worker", bytes),
                         EK_E_FORMAT, "worker 0 in \"of_worker\"");
}
