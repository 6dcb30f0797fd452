/* test_samplers_state.c: samplers go on from states, and refuse hostile ones. */
#include "user_samplers.h"

static const int64_t identities[] = {5, 5, 7, 5, 7, 9, 9, 9, 9, 9, 2, 5};
enum { PEOPLE = sizeof identities / sizeof *identities, KINDS = 11 };

/* One of each kind; *generator is for those that take one. */
static ek_sampler *make_kind(int kind, ek_generator *generator)
{
    static const int64_t subset[] = {4, -3, 90, 12, 7, 7};
    static const double weights[] = {1, 0, 2, 0.5};
    switch (kind) {
        CASE_IS(0, ek_sequential_sampler(10));
        CASE_IS(1, ek_random_sampler(10, .generator = generator));
        CASE_IS(2, ek_subset_random_sampler(subset, 6, generator));
        CASE_IS(3, ek_weighted_random_sampler(weights, 4, 9, generator));
        CASE_IS(4, ek_distributed_sampler(10, 3, 1, .automatic_epochs = true));
        CASE_IS(5, ek_distributed_inference_sampler(10, 3, 2, true));
        CASE_IS(6, ek_random_identity_sampler(identities, PEOPLE, 2));
        CASE_IS(7, ek_distributed_random_identity_sampler(identities, PEOPLE, 2));
        CASE_IS(8, make_user(&backwards_type, 9, NO_FAULT));
        CASE_IS(9, ek_batch_sampler(ek_random_sampler(10, .generator = generator), 3, false));
    default:
        return make_user(&pairs_type, 9, NO_FAULT);
    }
}

/* The next samples, or batches, passes' ends as -1: `count` numbers. */
static void go_on(ek_sampler *sampler, int64_t *out, int count)
{
    for (int i = 0; i < count;) {
        const int64_t *batch;
        int64_t index, size = 1;
        int rc = sampler->type->makes_batches ? ek_sampler_next_batch(sampler, &batch, &size)
                                              : ek_sampler_next(sampler, &index);
        assert_ok(rc);
        if (rc == 0) {
            out[i++] = -1;
            continue;
        }
        for (int64_t k = 0; k < size && i < count; k++)
            out[i++] = sampler->type->makes_batches ? batch[k] : index;
    }
}

/* At every place within two passes: the rest is the same from a new sampler with the state. */
TEST_LOOP(state_goes_on, 0, KINDS)
{
    enum { PLACES = 22, REST = 30 };
    int64_t skipped[PLACES], expected[REST], found[REST];
    for (int place = 0; place < PLACES; place++) {
        ek_scope scope = ek_scope_begin();
        ek_generator *mine = ek_generator_new(11), *other = ek_generator_new(12);
        ek_sampler *sampler = make_kind(_i, mine), *again = make_kind(_i, other);
        assert_made(sampler);
        assert_made(again);
        ek_set_seed(3);
        go_on(sampler, skipped, place);
        ek_value state = ek_sampler_state(sampler);
        ck_assert_int_eq(state.kind, EK_VALUE_DICT);
        go_on(again, found, place / 2); /* wherever it was */
        assert_ok(ek_sampler_load_state(again, state));
        ek_set_seed(4);
        go_on(sampler, expected, REST);
        ek_set_seed(4);
        go_on(again, found, REST);
        ck_assert_mem_eq(found, expected, sizeof expected);
        ck_assert_int_eq(again->epoch, sampler->epoch);

        /* And the state of a state. */
        assert_ok(ek_sampler_load_state(sampler, state));
        assert_ok(ek_sampler_load_state(again, ek_sampler_state(sampler)));
        ek_set_seed(4);
        go_on(again, found, REST);
        ck_assert_mem_eq(found, expected, sizeof expected);
        ek_sampler_free(sampler);
        ek_sampler_free(again);
        ek_generator_free(mine);
        ek_generator_free(other);
        ek_scope_end(&scope);
    }
}

/* Tensors only, so that archives take it; numbers may also come as whole numbers. */
TEST(state_of_tensors)
{
    ek_sampler *sampler = ek_distributed_sampler(10, 2);
    int64_t index, after;
    assert_ok(ek_sampler_set_epoch(sampler, INT64_MAX - 5));
    assert_ok(ek_sampler_next(sampler, &index));
    ek_value state = ek_sampler_state(sampler);
    ck_assert_int_eq(ek_value_length(state), 4);
    for (int i = 0; i < 4; i++)
        assert_made(ek_value_tensor(ek_value_at(state, i)));
    int64_t rest[4];
    assert_ok(ek_to_data(ek_value_tensor(ek_value_get(state, "indices")), rest, sizeof rest));
    ek_value_entry entries[4] = {{"kind", ek_value_get(state, "kind")},
                                 {"epoch", ek_value_of_int(INT64_MAX - 6)},
                                 {"begun", ek_value_of_int(1)},
                                 {"indices", ek_value_get(state, "indices")}};
    assert_ok(ek_sampler_load_state(sampler, ek_value_dict(entries, 4)));
    ck_assert_int_eq(sampler->epoch, INT64_MAX - 6);
    assert_ok(ek_sampler_next(sampler, &after));
    ck_assert_int_eq(after, rest[0]);
    ek_sampler_free(sampler);
}

TEST(state_of_another_kind)
{
    ek_generator *generator = ek_generator_new(1);
    for (int a = 0; a < KINDS; a++)
        for (int b = 0; b < KINDS; b++) {
            ek_scope scope = ek_scope_begin();
            ek_sampler *from = make_kind(a, generator), *into = make_kind(b, generator);
            int rc = ek_sampler_load_state(into, ek_sampler_state(from));
            ck_assert_int_eq(rc, a == b ? 0 : EK_E_FORMAT);
            if (a != b)
                assert_error(EK_E_FORMAT, "the state is of sampler \"");
            ek_sampler_free(from);
            ek_sampler_free(into);
            ek_scope_end(&scope);
        }
    ek_sampler *with = make_kind(1, generator), *without = make_kind(1, NULL);
    assert_refused(ek_sampler_load_state(without, ek_sampler_state(with)), EK_E_FORMAT,
                   "was made without one");
    assert_refused(ek_sampler_load_state(with, ek_sampler_state(without)), EK_E_FORMAT,
                   "no \"generator\"");
    ek_sampler_free(with);
    ek_sampler_free(without);
    ek_generator_free(generator);
}

/* ---- hostile states ---- */

static ek_value integers(int64_t a, int64_t b, int64_t c)
{
    return ek_value_of_tensor(ek_from_data(((int64_t[]){a, b, c}), EK_SHAPE(3), EK_I64));
}

static ek_value zeros(ek_shape shape, ek_dtype dtype)
{
    static const double nothing[1000] = {0};
    return ek_value_of_tensor(ek_from_data(nothing, shape, dtype));
}

/* The state of a batch sampler of ten in threes within a pass, with `key` as `value`; none: left
 * out. Keys with a dot are of the inner state. */
static ek_value spoiled(ek_value state, const char *key, ek_value value)
{
    ek_value_entry entries[8];
    const char *dot = strchr(key, '.');
    int count = 0;
    for (int i = 0; i < ek_value_length(state); i++) {
        const char *own = ek_value_key(state, i);
        ek_value kept = ek_value_at(state, i);
        if (dot && strncmp(own, key, (size_t)(dot - key)) == 0)
            kept = spoiled(kept, dot + 1, value);
        else if (strcmp(own, key) == 0)
            kept = value;
        if (kept.kind != EK_VALUE_NONE)
            entries[count++] = (ek_value_entry){own, kept};
    }
    return ek_value_dict(entries, count);
}

TEST(hostile_states)
{
    uint8_t blob[EK_GENERATOR_STATE_BYTES] = {0};
    ek_generator *generator = ek_generator_new(1);
    ek_sampler *sampler = make_kind(9, generator);
    int64_t skipped[4], expected[40], found[40];
    go_on(sampler, skipped, 4); /* 6 are left of a batch that is cut, 3 and 1 */
    ek_value state = ek_sampler_state(sampler), none = ek_value_none();
    ek_value floats = zeros(EK_SHAPE(3), EK_F32);
    const struct {
        const char *key;
        ek_value value;
        const char *part;
    } cases[] = {
        {"kind", none, "no \"kind\""},
        {"kind", ek_value_of_int(3), "is an integer"},
        {"kind", zeros(EK_SHAPE(5), EK_U8), "sampler \"?????\""},
        {"kind", zeros(EK_SHAPE(5000), EK_U8), "5000 bytes"},
        {"kind", zeros(EK_SHAPE(5, 1), EK_U8), "shape [5, 1]"},
        {"epoch", none, "no \"epoch\""},
        {"epoch", ek_value_of_float(1), "is a float"},
        {"epoch", zeros(ek_scalar_shape(), EK_F32), "is f32"},
        {"epoch", integers(1, 2, 3), "3 elements"},
        {"epoch", ek_value_list(NULL, 0), "is a list"},
        {"begun", ek_value_of_int(2), "lie in [0, 1]"},
        {"begun", ek_value_of_int(-1), "lie in [0, 1]"},
        {"indices", none, "no \"indices\""},
        {"indices", floats, "is f32"},
        {"indices", zeros(EK_SHAPE(6, 1), EK_I64), "shape [6, 1]"},
        {"indices", integers(0, 1, 10), "has 10; samples here lie in [0, 9]"},
        {"indices", integers(0, -1, 1), "has -1"},
        {"indices", integers(INT64_MAX, 0, 0), "has 9223372036854775807"},
        {"ends", none, "no \"ends\""},
        {"ends", integers(1, 4, 3), "has 3 after 4"},
        {"ends", integers(0, 4, 7), "has 0 after 0"},
        {"ends", integers(-3, 4, 7), "has -3"},
        {"ends", integers(1, 2, INT64_MAX), "has 9223372036854775807"},
        {"ends", integers(1, 2, 3), "ends at 3 of 4"},
        {"ends", zeros(EK_SHAPE(0), EK_I64), "ends at 0 of 4"},
        {"inner", none, "the state is none"},
        {"inner", ek_value_of_int(0), "the state is an integer"},
        {"inner.kind", ek_value_get(state, "kind"), "sampler \"batch\", this one is \"random\""},
        {"inner.epoch", floats, "is f32"},
        {"inner.generator", none, "no \"generator\""},
        {"inner.generator", zeros(EK_SHAPE(9), EK_U8), "9 bytes"},
        {"inner.generator", ek_value_of_tensor(ek_from_data(blob, EK_SHAPE(sizeof blob), EK_U8)),
         "not a generator's state"},
    };

    assert_refused(ek_sampler_load_state(sampler, ek_value_of_int(1)), EK_E_FORMAT,
                   "the state is an integer; it has to be a dictionary");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ek_value wrong = spoiled(state, cases[i].key, cases[i].value);
        ck_assert_int_eq(wrong.kind, EK_VALUE_DICT);
        assert_refused(ek_sampler_load_state(sampler, wrong), EK_E_FORMAT, cases[i].part);
    }
    ek_error(EK_E_USER, "earlier");
    ck_assert_int_lt(ek_sampler_load_state(sampler, ek_value_error()), 0);
    assert_error(EK_E_USER, "earlier");

    /* None of them changed anything. */
    go_on(sampler, found, 40);
    assert_ok(ek_sampler_load_state(sampler, state));
    go_on(sampler, expected, 40);
    ck_assert_mem_eq(found, expected, sizeof found);
    ek_sampler_free(sampler);
    ek_generator_free(generator);
}

/* What is given lies between the least and the greatest of a subset. */
TEST(hostile_subsets)
{
    static const int64_t subset[] = {40, 7, 12}, outside[] = {6, 41, -1, 0, INT64_MIN, INT64_MAX};
    ek_sampler *sampler = ek_subset_random_sampler(subset, 3, NULL);
    int64_t index;
    assert_made(sampler);
    assert_ok(ek_sampler_next(sampler, &index));
    ek_value state = ek_sampler_state(sampler);
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        ek_value wrong = spoiled(state, "indices", integers(7, 40, outside[i]));
        assert_refused(ek_sampler_load_state(sampler, wrong), EK_E_FORMAT,
                       "samples here lie in [7, 40]");
    }
    assert_ok(ek_sampler_load_state(sampler, spoiled(state, "indices", integers(7, 40, 12))));
    ek_sampler_free(sampler);
}
