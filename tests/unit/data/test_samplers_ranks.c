/* test_samplers_ranks.c: seven cases of two ranks that read batches of four, number for number; and
 * whose share a sampler takes. */
#include "core/world.h"
#include "unit.h"

enum { RANKS = 2, EPOCHS = 2, BATCH = 4 };

static const struct {
    const char *name;
    int64_t count;
    bool everything; /* no distributed sampler */
    bool set_epoch, drop_last;
    const char *batches[EPOCHS][RANKS];
} cases[] = {
    {"1: no sampler",
     8,
     true,
     false,
     false,
     {{"0 1 2 3 / 4 5 6 7", "0 1 2 3 / 4 5 6 7"}, {"0 1 2 3 / 4 5 6 7", "0 1 2 3 / 4 5 6 7"}}},
    {"2: a sampler", 8, false, false, false, {{"4 7 2 1", "0 3 5 6"}, {"4 7 2 1", "0 3 5 6"}}},
    {"3: set_epoch", 8, false, true, false, {{"4 7 2 1", "0 3 5 6"}, {"5 2 7 1", "4 6 3 0"}}},
    {"4: fewer than a batch", 6, false, false, false, {{"2 3 1", "5 0 4"}, {"2 3 1", "5 0 4"}}},
    {"4: dropped", 6, false, false, true, {{"", ""}, {"", ""}}},
    {"5: padded", 5, false, true, false, {{"4 1 2", "0 3 4"}, {"0 2 1", "4 3 0"}}},
    {"6: a last batch of one",
     10,
     false,
     false,
     false,
     {{"4 7 3 0 / 6", "1 5 9 8 / 2"}, {"4 7 3 0 / 6", "1 5 9 8 / 2"}}},
    {"7: dropped", 10, false, false, true, {{"4 7 3 0", "1 5 9 8"}, {"4 7 3 0", "1 5 9 8"}}},
};

static void read_pass(ek_sampler *sampler, char *text, size_t room)
{
    const int64_t *batch;
    int64_t count;
    int rc;
    size_t used = 0;
    *text = '\0';
    for (int b = 0; (rc = ek_sampler_next_batch(sampler, &batch, &count)) > 0; b++)
        for (int64_t i = 0; i < count; i++)
            used += (size_t)snprintf(text + used, room - used, "%s%lld",
                                     used == 0 ? ""
                                     : i == 0  ? " / "
                                               : " ",
                                     (long long)batch[i]);
    assert_ok(rc);
}

TEST_LOOP(seven_cases, 0, sizeof cases / sizeof *cases)
{
    char text[200];
    for (int rank = 0; rank < RANKS; rank++) {
        ek_sampler *samples = cases[_i].everything
                                  ? ek_sequential_sampler(cases[_i].count)
                                  : ek_distributed_sampler(cases[_i].count, RANKS, rank);
        ek_sampler *sampler = ek_batch_sampler(samples, BATCH, cases[_i].drop_last);
        assert_made(sampler);
        for (int epoch = 0; epoch < EPOCHS; epoch++) {
            if (cases[_i].set_epoch)
                assert_ok(ek_sampler_set_epoch(sampler, epoch));
            read_pass(sampler, text, sizeof text);
            ck_assert_msg(strcmp(text, cases[_i].batches[epoch][rank]) == 0,
                          "case %s, epoch %d, rank %d: \"%s\"", cases[_i].name, epoch, rank, text);
        }
        ek_sampler_free(sampler);
    }
}

/* ---- the world's ranks ---- */

static const int64_t people[] = {3, 3, 1, 2, 1, 2, 3, 1, 2, 2, 5, 5, 4, 4};
enum { PEOPLE = sizeof people / sizeof *people };

/* Which of the place is written, to which sampler. */
static ek_sampler *make_of(int kind, bool written, int replicas, int rank)
{
    switch (kind) {
    case 0:
        return written ? ek_distributed_sampler(17, replicas, rank) : ek_distributed_sampler(17);
    case 1:
        return written
                   ? ek_distributed_inference_sampler(17, .num_replicas = replicas, .rank = rank)
                   : ek_distributed_inference_sampler(17);
    default:
        return written
                   ? ek_distributed_random_identity_sampler(people, PEOPLE, 2,
                                                            .num_replicas = replicas, .rank = rank)
                   : ek_distributed_random_identity_sampler(people, PEOPLE, 2);
    }
}

static void assert_same_pass(ek_sampler *a, ek_sampler *b)
{
    ek_pass of_a = {0}, of_b = {0};
    assert_made(a);
    assert_made(b);
    assert_ok(ek_sampler_draw(a, &of_a));
    assert_ok(ek_sampler_draw(b, &of_b));
    ck_assert_int_gt(of_a.count, 0);
    ck_assert_int_eq(of_a.count, of_b.count);
    ck_assert_mem_eq(of_a.indices, of_b.indices, (size_t)of_a.count * sizeof *of_a.indices);
    ek_pass_free(&of_a);
    ek_pass_free(&of_b);
    ek_sampler_free(a);
    ek_sampler_free(b);
}

TEST_LOOP(a_share_is_that_of_this_process, 0, 3)
{
    const ek_world_place before = ek_world;
    for (int size = 1; size < 4; size++)
        for (int rank = 0; rank < size; rank++) {
            ek_world.size = size;
            ek_world.rank = rank;
            ek_sampler *own = make_of(_i, false, 0, 0);
            ek_world = before;
            assert_same_pass(own, make_of(_i, true, size, rank));
        }
}

TEST_LOOP(a_share_that_is_written_is_taken, 0, 3)
{
    const ek_world_place before = ek_world;
    for (int rank = 0; rank < 2; rank++) {
        ek_world.size = 4;
        ek_world.rank = 3;
        ek_sampler *written = make_of(_i, true, 2, rank); /* 0 too means what it says */
        ek_world = before;
        assert_same_pass(written, make_of(_i, true, 2, rank));
    }
}

TEST(one_of_the_two_may_be_written)
{
    const ek_world_place before = ek_world;
    ek_world.size = 4;
    ek_world.rank = 1;
    ek_sampler *of_two = ek_distributed_sampler(17, 2),
               *third = ek_distributed_sampler(17, .rank = 2);
    ek_sampler *first = ek_distributed_sampler(17, .rank = 0);
    assert_refused(ek_distributed_sampler(17, 1), EK_E_INVALID, "Invalid rank 1");
    assert_refused(ek_distributed_sampler(17, 0), EK_E_INVALID, "num_replicas is 0");
    /* A sampler without ranks has none, whatever the world. */
    ek_sampler *whole = ek_random_identity_sampler(people, PEOPLE, 2);
    ck_assert_int_eq(ek_sampler_length(whole), PEOPLE - 2);
    ek_sampler_free(whole);
    ek_world = before;
    assert_same_pass(of_two, ek_distributed_sampler(17, 2, 1));
    assert_same_pass(third, ek_distributed_sampler(17, 4, 2));
    assert_same_pass(first, ek_distributed_sampler(17, 4, 0));
}

/* ---- the longest share ---- */

enum { WAYS = 5, MOST_RANKS = 8 };

static ek_sampler *share(int way, int64_t count, int ranks, int rank)
{
    switch (way) {
    case 0:
        return ek_distributed_sampler(count, ranks, rank);
    case 1:
        return ek_distributed_sampler(count, ranks, rank, .drop_last = true);
    case 2:
        return ek_distributed_sampler(count, ranks, rank, .padding = false);
    case 3:
        return ek_distributed_sampler(count, ranks, rank, .padding = false, .contiguous = true);
    default:
        return ek_distributed_inference_sampler(count, ranks, rank, false);
    }
}

/* batch_size 0: samples. */
static void assert_longest(int way, int64_t count, int ranks, int64_t batch_size, bool drop_last)
{
    int64_t longest = 0, said[MOST_RANKS];
    for (int rank = 0; rank < ranks; rank++) {
        ek_sampler *sampler = share(way, count, ranks, rank);
        if (batch_size)
            sampler = ek_batch_sampler(sampler, batch_size, drop_last);
        assert_made(sampler);
        int64_t length = ek_sampler_length(sampler);
        longest = length > longest ? length : longest;
        said[rank] = ek_sampler_longest(sampler);
        ek_sampler_free(sampler);
    }
    for (int rank = 0; rank < ranks; rank++)
        ck_assert_int_eq(said[rank], longest);
}

TEST_LOOP(every_rank_knows_the_longest_share, 0, WAYS)
{
    for (int64_t count = 0; count < 20; count++)
        for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
            assert_longest(_i, count, ranks, 0, false);
            assert_longest(_i, count, ranks, 2, false);
            assert_longest(_i, count, ranks, 3, true);
        }
}

static int64_t said_length = 3, said_longest = 5;

static int64_t own_length(ek_sampler *self)
{
    return said_length;
}

static int64_t own_longest(ek_sampler *self)
{
    return said_longest;
}

static int own_draw(ek_sampler *self, ek_pass *pass)
{
    for (int64_t i = 0; i < said_length; i++)
        if (ek_pass_add(pass, i) < 0)
            return ek_error_status();
    return 0;
}

TEST(a_sampler_of_ones_own_says_or_has_the_longest)
{
    static const ek_sampler_type silent = {.name = "silent",
                                           .size = sizeof(ek_sampler),
                                           .length = own_length,
                                           .draw = own_draw};
    static const ek_sampler_type saying = {.name = "saying",
                                           .size = sizeof(ek_sampler),
                                           .length = own_length,
                                           .draw = own_draw,
                                           .longest = own_longest};
    ek_sampler *sampler = ek_sampler_new(&silent);
    ck_assert_int_eq(ek_sampler_longest(sampler), 3);
    ek_sampler_free(sampler);
    sampler = ek_batch_sampler(ek_sampler_new(&saying), 2, false);
    ck_assert_int_eq(ek_sampler_length(sampler), 2);
    ck_assert_int_eq(ek_sampler_longest(sampler), 3);
    said_longest = -4;
    assert_refused(ek_sampler_longest(sampler), EK_E_INVALID,
                   "sampler_longest: sampler \"saying\" gives -4");
    ek_sampler_free(sampler);
}
